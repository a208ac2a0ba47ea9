"""SGC and APPNP layers whose propagation is AGP."""

from typing import Annotated, Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import WITH_TORCH_SPARSE, OptTensor, SparseTensor

from pyg_trust import rng
from pyg_trust._checks import (
    REAL,
    Count,
    Int,
    Natural,
    NotNegative,
    Rate,
    Share,
    check_dtype,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.agp.checks import How
from pyg_trust.agp.measures import Measure, appnp, sgc
from pyg_trust.agp.propagation import propagate_rows
from pyg_trust.graph import CSRGraph, LastGraph


class _Propagation:
    """Base of SGC and APPNP: the graph, caches and options."""

    measure: Measure
    cached: bool
    explain: bool | None
    _cached_x: Tensor | None
    _cached_graph: CSRGraph | None = None

    def _set_up(self, how: How) -> None:
        self._measured: tuple | None = None
        self._measure_again()
        self.eps, self.seed = how.eps, how.seed
        self.half, self.tol = how.half, how.tol
        self._last_graph = LastGraph()
        self._cached_graph = None

    def _asked(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def _make(self, *asked: Any) -> Measure:
        raise NotImplementedError

    def _measure_again(self) -> None:
        # Attributes may change after construction, as in PyG's layers.
        asked = self._asked()
        if asked != self._measured:
            self.measure = self._make(*asked)
            self._measured = asked

    def _forget(self) -> None:
        self._last_graph.clear()
        self._cached_graph = None

    def _graph_of(self, x: Tensor, edge_index: Any) -> CSRGraph:
        if self._cached_graph is not None:
            return self._cached_graph
        if isinstance(edge_index, CSRGraph):
            return CSRGraph.convert(edge_index, x.size(0))
        return self._last_graph.convert(edge_index, x.size(0))

    def _need_exact(self, name: str) -> None:
        _need_exact(name, self.eps, self.half, self.tol)

    def _run(self, x: Tensor, graph: CSRGraph, of: Any) -> Tensor:
        self._measure_again()
        # NaN in x gives NaN in the same rows as PyG's layers do.
        how = How(self.eps, self.seed, False, self.half, self.tol, check=False)
        z = propagate_rows(graph, x, self.measure, None, how)
        if self.cached:
            self._cached_graph = graph
        elif graph is not of and not torch.compiler.is_compiling():
            self._last_graph.keep(graph, of, x.size(0))
        return z

    def _options(self) -> str:
        # As PyG prints it, if all arguments are PyG's.
        text = f', eps={self.eps:g}' if self.eps else ''
        if self.seed is not None:
            text += f', seed={self.seed}'
        if self.half:
            text += ', half=True'
        if self.tol:
            text += f', tol={self.tol:g}'
        return text


def _checked(eps: float, seed: int | None, half: bool, tol: float) -> How:
    seed = None if seed is None else rng.resolve(seed)
    if eps != 0 and (half or tol != 0):
        raise ValueError(
            "'eps' is for estimates, 'half' and 'tol' for the exact path "
            f'(got eps={eps:g}, half={half}, tol={tol:g})'
        )
    return How(eps, seed, False, half, tol)


def _need_exact(name: str, eps: float, half: bool, tol: float) -> None:
    if eps != 0 or half or tol != 0:
        raise ValueError(
            f"'{name}' is taken message by message, as in PyG, and needs "
            f'eps=0, half=False and tol=0 (got eps={eps:g}, half={half}, '
            f'tol={tol:g})'
        )


def _as_edges(
    edge_index: Any, edge_weight: Tensor | None, num_nodes: int
) -> tuple[Any, Tensor | None]:
    # Return the arguments of PyG's layers.
    if isinstance(edge_index, Tensor) and edge_index.layout == torch.strided:
        check_tensor(
            'edge_index', edge_index, (torch.int64, torch.int32), (2, 'num')
        )
        check_range('edge_index', edge_index, num_nodes, 'as x has rows')
        if edge_weight is not None:
            size = edge_index.size(1)
            check_tensor('edge_weight', edge_weight, REAL, (size,))
        return edge_index, edge_weight
    if edge_weight is not None:
        raise ValueError(
            "'edge_weight' goes with an 'edge_index' alone "
            f'(got a {type(edge_index).__name__}, which has its own weights)'
        )
    graph = CSRGraph.convert(edge_index, num_nodes, transposed=True)
    return graph.to_edge_index()


def _check_x(x: Tensor) -> None:
    check_dtype('x', x, REAL)
    if x.dim() not in (1, 2):
        raise ValueError(
            "'x' needs to have a row per node and one or two dimensions "
            f'(got the shape {list(x.shape)})'
        )


@validated
class SGConv(_Propagation, pyg.SGConv):
    r"""The simple graph convolution, propagated by AGP.

    .. math::
        \mathbf{X}^{\prime} = \left( \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2} \right)^K \mathbf{X}
        \mathbf{\Theta}

    (`"Simplifying Graph Convolutional Networks"
    <https://arxiv.org/abs/1902.07153>`_, Wu et al. 2019), a drop-in for
    :class:`torch_geometric.nn.SGConv` on undirected graphs. For :obj:`eps=0`
    the two agree; otherwise the propagated features are the unbiased estimate
    of :func:`pyg_trust.agp.propagate`, and so are the gradients with
    respect to the features.

    With edge weights, and while an explainer masks edges, the messages are
    PyG's own: exact, as fast as there.

    Args:
        in_channels (int): the size of each input sample; -1 to derive it
            from the first input.
        out_channels (int): the size of each output sample.
        K (int): the number of hops. (default: :obj:`1`)
        cached (bool): whether to propagate the first input and to keep the
            result, for transductive learning on fixed features; later inputs
            are then ignored. (default: :obj:`False`)
        add_self_loops (bool): whether missing self-loops are added.
            (default: :obj:`True`)
        bias (bool): whether to learn a bias. (default: :obj:`True`)
        eps (float): the quantum of AGP, relative to the L1 norm of each
            column; 0 for the exact result. (default: :obj:`0.0`)
        seed (int, optional): the seed of every forward pass; by default each
            draws its own from torch's default generator.
        half (bool): whether levels are kept in float16, as in
            :func:`pyg_trust.agp.propagate`. (default: :obj:`False`)
        tol (float): the certain error that fewer levels may cost, as in
            :func:`pyg_trust.agp.propagate`; a single power saves few.
            (default: :obj:`0.0`)
        **kwargs (optional): additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:** node features ``[num_nodes, in_channels]``, dense or
          sparse CSR; the graph as an ``edge_index``, :class:`EdgeIndex`,
          sparse :obj:`adj_t`, or, to convert it once, a
          :class:`~pyg_trust.graph.CSRGraph`; edge weights ``[num_edges]``
          (optional). The graph of the last ``edge_index`` is kept until
          another one comes or it is changed in place.
        - **output:** ``[num_nodes, out_channels]``.

    Raises:
        TypeError, ValueError: as :func:`pyg_trust.agp.propagate` and
            :meth:`CSRGraph.convert <pyg_trust.graph.CSRGraph.convert>`, and on
            edge weights where :obj:`eps`, :obj:`half` or :obj:`tol` is set.

    Example:
        >>> import torch
        >>> conv = SGConv(3, 2, K=2)
        >>> conv(torch.rand(2, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 2])
    """

    # PyG compiles 'propagate' for every class; explainers restore this one,
    # which must not be the parent's.
    propagate = pyg.MessagePassing.propagate

    def __init__(
        self,
        in_channels: Annotated[int, Int(-1)],
        out_channels: Count,
        K: Natural = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        *,
        eps: NotNegative = 0.0,
        seed: int | None = None,
        half: bool = False,
        tol: NotNegative = 0.0,
        **kwargs: Any,
    ) -> None:
        how = _checked(eps, seed, half, tol)
        super().__init__(
            in_channels,
            out_channels,
            K,
            cached,
            add_self_loops,
            bias,
            **kwargs,
        )
        self._set_up(how)

    def _asked(self) -> tuple[Any, ...]:
        return self.K, bool(self.add_self_loops)

    def _make(self, *asked: Any) -> Measure:
        return sgc(asked[0], self_loops=asked[1])

    def reset_parameters(self) -> None:
        """Draw the parameters anew and clear the caches."""
        super().reset_parameters()
        if hasattr(self, '_last_graph'):
            self._forget()

    def forward(
        self, x: Tensor, edge_index: Any, edge_weight: OptTensor = None
    ) -> Tensor:
        """Propagate and transform :obj:`x`."""
        if self._cached_x is not None:
            return self.lin(self._cached_x.detach())
        wanted = self.lin.in_channels
        width = 'in_channels' if wanted < 1 else wanted
        check_tensor('x', x, REAL, ('num_nodes', width))
        if edge_weight is not None or self.explain:
            self._need_exact('explain' if self.explain else 'edge_weight')
            # propagate_type: (x: Tensor, edge_weight: OptTensor)
            return super().forward(
                x, *_as_edges(edge_index, edge_weight, x.size(0))
            )
        graph = self._graph_of(x, edge_index)
        if graph.is_weighted:
            self._need_exact('edge_weight')
            return super().forward(x, *graph.to_edge_index())
        z = self._run(x, graph, edge_index)
        if self.cached:
            self._cached_x = z
        return self.lin(z)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.in_channels}, {self.out_channels}, '
            f'K={self.K}{self._options()})'
        )


@validated
class APPNP(_Propagation, pyg.APPNP):
    r"""The propagation of APPNP by AGP.

    .. math::
        \mathbf{X}^{(k)} = (1 - \alpha) \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2} \mathbf{X}^{(k-1)}
        + \alpha \mathbf{X}^{(0)}, \quad k = 1, \ldots, K

    (`"Predict then Propagate" <https://arxiv.org/abs/1810.05997>`_, Gasteiger
    et al. 2019), a drop-in for :class:`torch_geometric.nn.APPNP` on undirected
    graphs. For :obj:`eps=0` the two agree; otherwise values and gradients are
    the unbiased estimates of :func:`pyg_trust.agp.propagate`.

    With edge weights, :obj:`normalize=False`, :obj:`dropout` in training, and
    while an explainer masks edges, the messages are PyG's own: exact, as fast
    as there.

    Args:
        K (int): the number of steps.
        alpha (float): the teleport probability.
        dropout (float): the dropout of edges during training, as in PyG.
            (default: :obj:`0.0`)
        cached (bool): whether to keep the converted graph, for transductive
            learning. (default: :obj:`False`)
        add_self_loops (bool): whether missing self-loops are added.
            (default: :obj:`True`)
        normalize (bool): whether the adjacency matrix is normalised, as in
            PyG. (default: :obj:`True`)
        eps (float): as in :class:`SGConv`. (default: :obj:`0.0`)
        seed (int, optional): as in :class:`SGConv`. (default: :obj:`None`)
        half (bool): as in :class:`SGConv`. (default: :obj:`False`)
        tol (float): as in :class:`SGConv`. (default: :obj:`0.0`)
        **kwargs (optional): additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes: - **input:** as in :class:`SGConv`. - **output:** the shape of the
        input features.

    Raises:
        TypeError, ValueError: as :class:`SGConv`, and if :obj:`dropout` or
            :obj:`normalize=False` goes with :obj:`eps`, :obj:`half` or
            :obj:`tol`.
    """

    # PyG compiles one of its own for every class, and explainers go back to
    # what they find here: not to the one compiled for the parent.
    propagate = pyg.MessagePassing.propagate

    def __init__(
        self,
        K: Natural,
        alpha: Rate,
        dropout: Share = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        *,
        eps: NotNegative = 0.0,
        seed: int | None = None,
        half: bool = False,
        tol: NotNegative = 0.0,
        **kwargs: Any,
    ) -> None:
        appnp(alpha, levels=K)
        how = _checked(eps, seed, half, tol)
        if dropout > 0:
            _need_exact('dropout', eps, half, tol)
        if not normalize:
            _need_exact('normalize', eps, half, tol)
        super().__init__(
            K, alpha, dropout, cached, add_self_loops, normalize, **kwargs
        )
        self._set_up(how)

    _edges: tuple[Tensor, Tensor] | None
    _adj_t: Any

    # PyG's names for cached values, made of the graph that is kept here: its
    # messages (dropout, explainers) and users read them.
    @property
    def _cached_edge_index(self) -> tuple[Tensor, Tensor] | None:
        graph = self._cached_graph
        if self._edges is None and graph is not None:
            self._edges = gcn_norm(
                graph.to_edge_index()[0],
                num_nodes=graph.num_nodes,
                add_self_loops=self.add_self_loops,
            )
        return self._edges

    @_cached_edge_index.setter
    def _cached_edge_index(self, edges: tuple[Tensor, Tensor] | None) -> None:
        self._edges = edges

    @property
    def _cached_adj_t(self) -> Any:
        graph, edges = self._cached_graph, self._cached_edge_index
        if self._adj_t is not None or graph is None or edges is None:
            return self._adj_t
        if WITH_TORCH_SPARSE:
            size = graph.num_nodes, graph.num_nodes
            self._adj_t = SparseTensor.from_edge_index(*edges, size).t()
        return self._adj_t

    @_cached_adj_t.setter
    def _cached_adj_t(self, adj_t: Any) -> None:
        self._adj_t = adj_t

    def _asked(self) -> tuple[Any, ...]:
        return self.alpha, self.K, bool(self.add_self_loops)

    def _make(self, *asked: Any) -> Measure:
        return appnp(asked[0], levels=asked[1], self_loops=asked[2])

    def reset_parameters(self) -> None:
        """Clear the caches."""
        super().reset_parameters()
        self._forget()

    def forward(
        self, x: Tensor, edge_index: Any, edge_weight: OptTensor = None
    ) -> Tensor:
        """Propagate :obj:`x`."""
        _check_x(x)
        dropping = self.dropout > 0 and self.training
        if edge_weight is not None or self.explain:
            self._need_exact('explain' if self.explain else 'edge_weight')
        elif self.normalize and not dropping:
            graph = self._graph_of(x, edge_index)
            if not graph.is_weighted:
                return self._run(x, graph, edge_index)
            self._need_exact('edge_weight')
            edge_index, edge_weight = graph.to_edge_index()
        edges = _as_edges(edge_index, edge_weight, x.size(0))
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        return super().forward(x, *edges)

    def __repr__(self) -> str:
        text = f'{type(self).__name__}(K={self.K}, alpha={self.alpha}'
        if self.dropout:
            text += f', dropout={self.dropout}'
        if not self.normalize:
            text += ', normalize=False'
        return f'{text}{self._options()})'
