"""SGC and APPNP layers whose propagation is AGP."""

from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.dense.linear import Linear

from pyg_trust import rng
from pyg_trust._checks import (
    REAL,
    check_integer,
    check_non_negative,
    check_tensor,
)
from pyg_trust.functional.measures import Measure, appnp, sgc
from pyg_trust.functional.propagation import propagate
from pyg_trust.graph import CSRGraph


class _AGPConv(MessagePassing):
    """What SGC and APPNP share: the graph, the cache, the propagation."""

    def __init__(
        self,
        measure: Measure,
        eps: float,
        seed: int | None,
        cached: bool,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault('aggr', 'add')
        super().__init__(**kwargs)
        self.measure = measure
        self.eps = check_non_negative('eps', eps)
        self.seed = None if seed is None else rng.resolve(seed)
        self.cached = cached
        self._cached_graph: CSRGraph | None = None

    def reset_parameters(self) -> None:
        """Forgets what is cached."""
        super().reset_parameters()
        self._cached_graph = None

    def _propagate(self, x: Tensor, edge_index: Any) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() == 0:
            raise TypeError(
                f"'x' needs to be a tensor with a row per node (got {x!r})"
            )
        graph = self._cached_graph
        if graph is None:
            graph = CSRGraph.convert(edge_index, x.size(0), transposed=True)
            if self.cached:
                self._cached_graph = graph
        return propagate(graph, x, self.measure, eps=self.eps, seed=self.seed)


class SGConv(_AGPConv):
    r"""The simple graph convolution, propagated by AGP.

    .. math::
        \mathbf{X}^{\prime} = \left( \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2} \right)^K \mathbf{X}
        \mathbf{\Theta}

    (`"Simplifying Graph Convolutional Networks"
    <https://arxiv.org/abs/1902.07153>`_, Wu et al. 2019), a drop-in for
    :class:`torch_geometric.nn.SGConv` on undirected, unweighted graphs. For
    :obj:`eps=0` the two agree; otherwise the propagated features are the
    unbiased estimate of :func:`pyg_trust.functional.propagate`, and so are
    the gradients with respect to the features.

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
            column; 0 for the exact result. (default: :obj:`1e-5`)
        seed (int, optional): the seed of every forward pass; by default each
            draws its own from torch's default generator.
            (default: :obj:`None`)
        **kwargs (optional): additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:** node features ``[num_nodes, in_channels]``; the graph as
          an ``edge_index``, :class:`EdgeIndex`, sparse :obj:`adj_t`,
          or, to convert it once, a :class:`~pyg_trust.graph.CSRGraph`.
        - **output:** ``[num_nodes, out_channels]``.

    Raises:
        TypeError, ValueError: as :func:`pyg_trust.functional.propagate` and
            :meth:`CSRGraph.convert <pyg_trust.graph.CSRGraph.convert>`.

    Example:
        >>> import torch
        >>> conv = SGConv(3, 2, K=2, eps=0.0)
        >>> conv(torch.rand(2, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        *,
        eps: float = 1e-5,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_integer('in_channels', in_channels, -1)
        check_integer('out_channels', out_channels, 1)
        check_integer('K', K, 0)
        measure = sgc(K, self_loops=add_self_loops)
        super().__init__(measure, eps, seed, cached, **kwargs)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.lin = Linear(in_channels, out_channels, bias=bias)
        self._cached_x: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew, and forgets what is cached."""
        super().reset_parameters()
        self.lin.reset_parameters()
        self._cached_x = None

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """Propagates and transforms :obj:`x`."""
        z = self._cached_x
        if z is None:
            wanted = self.lin.in_channels
            width = 'in_channels' if wanted < 1 else wanted
            check_tensor('x', x, REAL, ('num_nodes', width))
            z = self._propagate(x, edge_index)
            if self.cached:
                self._cached_x = z
        return self.lin(z)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.in_channels}, {self.out_channels}, '
            f'K={self.measure.levels}, eps={self.eps:g})'
        )


class APPNP(_AGPConv):
    r"""The propagation of APPNP by AGP.

    .. math::
        \mathbf{X}^{(k)} = (1 - \alpha) \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2} \mathbf{X}^{(k-1)}
        + \alpha \mathbf{X}^{(0)}, \quad k = 1, \ldots, K

    (`"Predict then Propagate" <https://arxiv.org/abs/1810.05997>`_, Gasteiger
    et al. 2019), a drop-in for :class:`torch_geometric.nn.APPNP` on
    undirected, unweighted graphs. For :obj:`eps=0` the two agree; otherwise
    values and gradients are the unbiased estimates of
    :func:`pyg_trust.functional.propagate`.

    Args:
        K (int): the number of steps.
        alpha (float): the teleport probability.
        cached (bool): whether to keep the converted graph, for transductive
            learning. (default: :obj:`False`)
        add_self_loops (bool): whether missing self-loops are added.
            (default: :obj:`True`)
        eps (float): as in :class:`SGConv`. (default: :obj:`1e-5`)
        seed (int, optional): as in :class:`SGConv`. (default: :obj:`None`)
        **kwargs (optional): additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:** as in :class:`SGConv`.
        - **output:** the shape of the input features.

    Raises:
        TypeError, ValueError: as :class:`SGConv`.
    """

    def __init__(
        self,
        K: int,
        alpha: float,
        cached: bool = False,
        add_self_loops: bool = True,
        *,
        eps: float = 1e-5,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_integer('K', K, 0)
        measure = appnp(alpha, levels=K, self_loops=add_self_loops)
        super().__init__(measure, eps, seed, cached, **kwargs)
        self.K = K
        self.alpha = alpha

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        """Propagates :obj:`x`."""
        return self._propagate(x, edge_index)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(K={self.K}, alpha={self.alpha}, '
            f'eps={self.eps:g})'
        )
