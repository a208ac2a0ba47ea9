"""SGC and APPNP layers whose propagation is AGP."""

import inspect
from typing import Annotated, Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import OptTensor

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
    validated,
)
from pyg_trust.agp.checks import How, check_options
from pyg_trust.agp.measures import Measure, appnp, sgc
from pyg_trust.agp.propagation import propagate_rows
from pyg_trust.graph import CSRGraph, LastGraph
from pyg_trust.nn._messages import METHODS, as_edges, changed, recording

__all__ = ['APPNP', 'SGConv']


class _Propagation(pyg.MessagePassing):
    """Base of SGC and APPNP: the fast path, its caches and options."""

    cached: bool
    _own: type[pyg.MessagePassing]
    _made: tuple[Any, Any] = (None, None)

    def _set_up(
        self, eps: float, seed: int | None, half: bool, tol: float
    ) -> None:
        check_options(eps, half, tol)
        self.eps, self.half, self.tol = eps, half, tol
        self.seed = None if seed is None else rng.resolve(seed)
        self._forget()
        self.measure  # noqa: B018  checks its arguments

    def _forget(self) -> None:
        self._last_graph = LastGraph()
        self._cached_graph: CSRGraph | None = None
        self._cached_loops: bool | None = None

    def _asked(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def _make(self, *asked: Any) -> Measure:
        raise NotImplementedError

    @property
    def measure(self) -> Measure:
        """The propagation, by the attributes as they are now."""
        asked = self._asked()
        if asked != self._made[0]:
            self._made = asked, self._make(*asked)
        return self._made[1]

    def _fast(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: OptTensor,
        slow: str = '',
    ) -> Tensor | None:
        """Return the propagated rows, or nothing where PyG has to do it."""
        given = isinstance(edge_index, CSRGraph)
        slow = slow or changed(self, self._own, 'source_to_target') or ''
        if edge_weight is not None:
            slow = 'edge_weight'
        elif x.dtype not in REAL or x.dim() > 2 or x.size(0) == 0:
            slow = slow or 'x'
        elif torch.jit.is_tracing() or (recording() and not given):
            slow = slow or 'torch.compile, export or trace of an edge_index'
        if slow:
            self._need_exact(slow)
            return None
        graph = self._cached_graph
        if graph is None and given:
            graph = CSRGraph.convert(edge_index, x.size(0))
        elif graph is None:
            graph = self._last_graph.convert(edge_index, x.size(0))
        if graph.is_weighted or not self._covers(graph):
            self._need_exact('edge_weight')
            return None
        # NaN in x gives NaN in the same rows as PyG's layers do.
        how = How(self.eps, self.seed, False, self.half, self.tol, check=False)
        z = propagate_rows(graph, x, self.measure, None, how)
        if self.cached and self._cached_graph is None:
            self._cached_graph = graph
            self._cached_loops = bool(self.add_self_loops)
        elif graph is not edge_index and not torch.compiler.is_compiling():
            self._last_graph.keep(graph, edge_index, x.size(0))
        return z

    def _covers(self, graph: CSRGraph) -> bool:
        # Whether degrees give PyG's weights. Estimates refuse by themselves,
        # and so do recordings of a graph that was never propagated on.
        if not self._exact or (
            recording() and 'is_undirected' not in graph._cache
        ):
            return True
        return graph.is_undirected and not graph.has_duplicates

    def _slow(self, graph: Any, edge_weight: OptTensor, x: Tensor) -> tuple:
        # The graph and its weights, as PyG's layers take them.
        layout = getattr(graph, 'layout', None)
        theirs = layout in (torch.sparse_coo, torch.sparse_csr)
        if type(graph).__name__ == 'SparseTensor' or (
            theirs and changed(self, self._own, 'source_to_target')
        ):
            return graph, edge_weight
        return as_edges(graph, edge_weight, x.shape[self.node_dim])

    @property
    def _loops(self) -> bool:
        # As in PyG, the first call of a cached layer decides.
        cached = self._cached_loops
        return bool(self.add_self_loops) if cached is None else cached

    @property
    def _exact(self) -> bool:
        return self.eps == 0 and not self.half and self.tol == 0

    def _need_exact(self, name: str) -> None:
        if not self._exact:
            raise ValueError(
                f"'{name}' is taken message by message, as in PyG, and needs "
                f'eps=0, half=False and tol=0 (got eps={self.eps:g}, '
                f'half={self.half}, tol={self.tol:g})'
            )

    def __prepare_scriptable__(self) -> pyg.MessagePassing:
        # TorchScript runs PyG's own layer, with these parameters.
        self._need_exact('torch.jit.script')
        name = changed(self, self._own, self.flow)
        made_by = next(c for c in type(self).__mro__ if 'forward' in vars(c))
        if '_own' not in vars(made_by):
            name = 'forward'
        if name in ('forward', *METHODS):
            raise TypeError(
                f"torch.jit.script does not know the '{name}' of "
                f'{type(self).__name__}: use torch.export.export(model, (x, '
                'edge_index)) or torch.jit.trace'
            )
        names = [*inspect.signature(self._own).parameters]
        names += ['aggr', 'flow', 'node_dim', 'decomposed_layers']
        made = self._own(
            **{n: vars(self)[n] for n in names if n in vars(self)}
        )
        if hasattr(self, 'lin'):
            made.lin = self.lin
        return made.train(self.training)

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


def _check_x(x: Tensor, dims: tuple[int, ...]) -> None:
    check_dtype('x', x, None)
    if x.dim() not in dims:
        raise ValueError(
            "'x' needs to have the shape [num_nodes, num_features], or "
            '[batch_size, num_nodes, num_features] for one graph with several '
            f'signals (got {list(x.shape)})'
        )


@validated
class SGConv(_Propagation, pyg.SGConv):
    r"""Simple graph convolution, exact or by approximate graph propagation.

    .. math::
        \mathbf{X}^{\prime} = \left( \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2} \right)^K \mathbf{X}
        \mathbf{\Theta}

    (`Wu et al. 2019 <https://arxiv.org/abs/1902.07153>`_), a drop-in for
    :class:`torch_geometric.nn.SGConv` on undirected graphs. For :obj:`eps=0`
    the two agree. Otherwise features and gradients are unbiased random
    estimates (:func:`pyg_trust.agp.propagate`). PyG's own messages are used
    with edge weights, and while an explainer masks edges. The layer keeps a
    converted copy of the graph until it gets another ``edge_index``.

    Args:
        in_channels (int): the size of each input sample; -1 to derive it from
            the first input.
        out_channels (int): the size of each output sample.
        K (int): the number of hops. (default: :obj:`1`)
        cached (bool): whether to propagate the first input and to keep the
            result; later inputs are then ignored. (default: :obj:`False`)
        add_self_loops (bool): whether missing self-loops are added.
            (default: :obj:`True`)
        bias (bool): whether to learn a bias. (default: :obj:`True`)
        eps (float): messages below this share of a column's L1 norm are
            sampled; 0 for the exact result. (default: :obj:`0.0`)
        seed (int, optional): the seed of every forward pass; by default each
            draws its own from torch's default generator.
        half (bool): whether to keep float32 values in float16 between hops,
            which is faster and less accurate. (default: :obj:`False`)
        tol (float): the relative error that is allowed in order to compute
            fewer hops. (default: :obj:`0.0`)
        **kwargs (optional): additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or on edge
            weights where :obj:`eps`, :obj:`half` or :obj:`tol` is set.

    Example:
        >>> import torch
        >>> conv = SGConv(3, 2, K=2)
        >>> conv(torch.rand(2, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 2])
    """

    _own = pyg.SGConv

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
        check_options(eps, half, tol)  # before weights are drawn
        super().__init__(
            *(in_channels, out_channels, K, cached, add_self_loops, bias),
            **kwargs,
        )
        self._set_up(eps, seed, half, tol)

    def _asked(self) -> tuple[Any, ...]:
        return self.K, self._loops

    def _make(self, *asked: Any) -> Measure:
        return sgc(asked[0], self_loops=asked[1])

    def reset_parameters(self) -> None:
        """Draw the parameters anew and clear the caches."""
        super().reset_parameters()
        self._forget()

    def forward(
        self, x: Tensor, edge_index: Any, edge_weight: OptTensor = None
    ) -> Tensor:
        """Propagate :obj:`x`, and apply the linear layer to the result.

        The arguments are those of PyG's layer. Returns ``[num_nodes,
        out_channels]``.
        """
        kept: OptTensor = getattr(self, '_cached_x')  # noqa: B009
        if kept is not None:
            return self.lin(kept.detach())
        _check_x(x, (2, 3))
        wanted = self.lin.in_channels
        if wanted > 0 and x.size(-1) != wanted:
            raise ValueError(
                f"'x' needs to have the shape [num_nodes, {wanted}] "
                f'(got {list(x.shape)})'
            )
        z = self._fast(x, edge_index, edge_weight)
        if z is None:
            # propagate_type: (x: Tensor, edge_weight: OptTensor)
            return super().forward(x, *self._slow(edge_index, edge_weight, x))
        if self.cached and self.K > 0:
            self._cached_x = z
        return self.lin(z)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.in_channels}, {self.out_channels}, '
            f'K={self.K}{self._options()})'
        )


@validated
class APPNP(_Propagation, pyg.APPNP):
    r"""Propagation of APPNP, exact or by approximate graph propagation.

    .. math::
        \mathbf{X}^{(k)} = (1 - \alpha) \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2} \mathbf{X}^{(k-1)}
        + \alpha \mathbf{X}^{(0)}, \quad k = 1, \ldots, K

    (`"Predict then Propagate" <https://arxiv.org/abs/1810.05997>`_, Gasteiger
    et al. 2019), a drop-in for :class:`torch_geometric.nn.APPNP` on undirected
    graphs. For :obj:`eps=0` the two agree. Otherwise values and gradients are
    unbiased random estimates (:func:`pyg_trust.agp.propagate`). PyG's own
    messages are used with edge weights, with :obj:`normalize=False`, with
    :obj:`dropout` in training, and while an explainer masks edges.

    Args:
        K (int): the number of steps.
        alpha (float): the teleport probability.
        dropout (float): the dropout of edges during training, as in PyG.
            (default: :obj:`0.0`)
        cached (bool): whether to use the graph of the first call in all later
            ones, for transductive learning. (default: :obj:`False`)
        add_self_loops (bool): whether missing self-loops are added.
            (default: :obj:`True`)
        normalize (bool): whether the adjacency matrix is normalised, as in
            PyG. (default: :obj:`True`)
        eps (float): messages below this share of a column's L1 norm are
            sampled; 0 for the exact result. (default: :obj:`0.0`)
        seed (int, optional): the seed of every forward pass; by default each
            draws its own from torch's default generator.
        half (bool): whether to keep float32 values in float16 between steps,
            which is faster and less accurate. (default: :obj:`False`)
        tol (float): the relative error that is allowed in order to compute
            fewer steps. (default: :obj:`0.0`)
        **kwargs (optional): additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or if edge
            weights, :obj:`dropout` or :obj:`normalize=False` are used with
            :obj:`eps`, :obj:`half` or :obj:`tol`.
    """

    _own = pyg.APPNP

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
        super().__init__(
            K, alpha, dropout, cached, add_self_loops, normalize, **kwargs
        )
        self._set_up(eps, seed, half, tol)
        if dropout > 0:
            self._need_exact('dropout')
        if not normalize:
            self._need_exact('normalize')

    _edges: tuple[Tensor, Tensor] | None

    # PyG's name for the cached edges, made of the graph that is kept here:
    # its messages (dropout, explainers) and users read them.
    @property
    def _cached_edge_index(self) -> tuple[Tensor, Tensor] | None:
        graph = self._cached_graph
        if self._edges is None and graph is not None:
            self._edges = gcn_norm(
                graph.to_edge_index()[0],
                num_nodes=graph.num_nodes,
                add_self_loops=self._loops,
            )
        return self._edges

    @_cached_edge_index.setter
    def _cached_edge_index(self, edges: tuple[Tensor, Tensor] | None) -> None:
        self._edges = edges

    def _asked(self) -> tuple[Any, ...]:
        return self.alpha, self.K, self._loops

    def _make(self, *asked: Any) -> Measure:
        return appnp(asked[0], K=asked[1], self_loops=asked[2])

    def reset_parameters(self) -> None:
        """Clear the caches; there are no parameters."""
        super().reset_parameters()
        self._forget()

    def forward(
        self, x: Tensor, edge_index: Any, edge_weight: OptTensor = None
    ) -> Tensor:
        """Propagate the rows of :obj:`x`, ``[num_nodes, num_columns]``.

        The arguments are those of PyG's layer. The shape stays.
        """
        _check_x(x, (1, 2, 3))
        slow = '' if self.normalize else 'normalize'
        if self.dropout > 0 and self.training:
            slow = 'dropout'
        if self._cached_graph is not None:
            edge_weight = None  # as in PyG, the first call decides
        elif self.cached and (
            self._edges is not None
            or type(edge_index).__name__ == 'SparseTensor'
        ):
            slow = 'cached'
        z = self._fast(x, edge_index, edge_weight, slow)
        if z is not None:
            return z
        column = x.view(-1, 1) if x.dim() == 1 else x
        edges = self._slow(edge_index, edge_weight, column)
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        out = super().forward(column, *edges)
        return out.view(-1) if x.dim() == 1 else out

    def __repr__(self) -> str:
        text = f'{type(self).__name__}(K={self.K}, alpha={self.alpha}'
        if self.dropout:
            text += f', dropout={self.dropout}'
        if not self.normalize:
            text += ', normalize=False'
        return f'{text}{self._options()})'
