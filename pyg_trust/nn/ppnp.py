r"""Models that diffuse logits by personalized PageRank.

`PPNP <https://arxiv.org/abs/1810.05997>`_ (Gasteiger et al. 2019) and
:math:`\pi`-PPNP, label propagation and feature propagation of `"Certifiable
Robustness to Graph Perturbations" <https://arxiv.org/abs/1910.14356>`_
(Bojchevski and Günnemann 2019): :math:`\Pi H` for logits :math:`H`. PyG's
label propagation, and "Correct and Smooth", use the same fast products.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_remaining_self_loops, one_hot

from pyg_trust._checks import (
    REAL,
    Count,
    Finite,
    Natural,
    OneOf,
    Share,
    check_callable,
    check_dtype,
    check_instance,
    check_integer,
    check_nodes,
    check_range,
    check_share,
    check_tensor,
    validated,
)
from pyg_trust.agp.checks import How
from pyg_trust.agp.measures import sgc
from pyg_trust.agp.propagation import propagate_rows
from pyg_trust.certificates.diffusion import check_alpha, diffuse
from pyg_trust.graph import CSRGraph
from pyg_trust.nn._messages import as_edges, changed, recording

__all__ = [
    'PPNP',
    'CorrectAndSmooth',
    'FeaturePropagation',
    'LabelPropagation',
    'PageRankDiffusion',
]


@validated
class PageRankDiffusion(pyg.MessagePassing):
    r"""Diffuse a signal by personalized PageRank, exactly or step by step.

    The result is :math:`\Pi H = \alpha (I - (1 - \alpha) \hat{A})^{-1} H`, or
    after :math:`K` steps

    .. math::
        Z^{(k+1)} = (1 - \alpha) \hat{A} Z^{(k)} + \alpha H, \; Z^{(0)} = H,

    with :math:`\hat{A} = D^{-1} A` (:obj:`'rw'`, :math:`\pi`-PPNP) or
    :math:`\hat{A} = D^{-1/2} A D^{-1/2}` (:obj:`'sym'`, PPNP and APPNP). The
    exact form is an iterative solve to about the precision of the dtype.

    Node :math:`v` receives from the targets of its **out**-edges: its row of
    :math:`\Pi` is the distribution of a random walk that starts at :math:`v`
    and follows edges. On undirected graphs this is PyG's usual direction. A
    node without out-edges keeps :math:`\alpha H_v`.

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1)`.
            (default: :obj:`0.15`)
        K (int, optional): the number of steps; :obj:`None` for the exact
            solution.
        normalization (str): :obj:`'rw'` or :obj:`'sym'`.
            (default: :obj:`'rw'`)
        add_self_loops (bool): whether nodes without a self-loop get one, as in
            the original PPNP. (default: :obj:`False`)
        **kwargs (Any): arguments of
            :class:`~torch_geometric.nn.MessagePassing`.
    """

    def __init__(
        self,
        alpha: float = 0.15,
        K: Natural | None = None,
        *,
        normalization: Annotated[str, OneOf(('rw', 'sym'))] = 'rw',
        add_self_loops: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault('aggr', 'add')
        kwargs.setdefault('flow', 'target_to_source')
        super().__init__(**kwargs)
        self.alpha = check_alpha(alpha)
        self.K = K
        self.normalization = normalization
        self.add_self_loops = add_self_loops

    def diffuse(
        self, h: Tensor, graph: Any, edge_weight: Tensor | None = None
    ) -> Tensor:
        r"""Return the diffused signal :math:`\Pi H`, of the shape of :obj:`h`.

        Args:
            h (Tensor): :math:`H`, ``[num_nodes, num_columns]``.
            graph (Any): an ``edge_index``, a sparse tensor or a ``CSRGraph``.
            edge_weight (Tensor, optional): the weights of an ``edge_index``.
        """
        _check_rows('h', h, (2, 3))
        if h.size(self.node_dim) == 0:
            return h.clone()
        why = changed(self, PageRankDiffusion, 'target_to_source')
        if self.K is None and not (why or recording()):
            known = CSRGraph.convert(
                graph, h.size(-2), edge_weight, duplicates='keep'
            )
            weight = known.weight
            if weight is None or not weight.requires_grad:
                return self._solve(h, known)
        steps = self.K
        if steps is None:
            # What is left then is below the precision of the dtype.
            rest = math.log(torch.finfo(h.dtype).eps)
            steps = math.ceil(rest / math.log1p(-self.alpha))
        edge_index, weight = self._steps_of(h, graph, edge_weight)
        z = h
        for _ in range(steps):
            spread = self.propagate(edge_index, x=z, edge_weight=weight)
            z = (1 - self.alpha) * spread + self.alpha * h
        return z

    def _solve(self, h: Tensor, graph: CSRGraph) -> Tensor:
        # In float64 and rounded once; static graphs as more columns.
        if self.add_self_loops:
            graph = graph.with_self_loops()
        rows = h if h.dtype in REAL else h.float()
        columns = rows.movedim(-2, 0).flatten(1)
        z = diffuse(
            graph, columns, self.alpha, normalization=self.normalization
        )
        z = z.view(rows.movedim(-2, 0).shape).movedim(0, -2)
        return z.to(h.dtype)

    def _steps_of(
        self, h: Tensor, graph: Any, edge_weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # The edges in the user's order, which masks of explainers have.
        n = h.shape[self.node_dim]
        edge_index, weight = as_edges(graph, edge_weight, n)
        dtype = h.dtype if h.dtype in REAL else torch.float32
        if weight is None:
            weight = h.new_ones(edge_index.size(1), dtype=dtype)
        weight = weight.to(dtype)
        if self.add_self_loops:
            edge_index, weight = add_remaining_self_loops(
                edge_index, weight, 1.0, n
            )
        to, of = edge_index
        if self.flow != 'target_to_source':
            to, of = of, to
        degree = weight.new_zeros(n).index_add_(0, to, weight)
        degree = torch.where(degree == 0, 1, degree)
        if self.normalization == 'rw':
            weight = weight / degree[to]
        else:
            weight = weight / (degree[to] * degree[of]).sqrt()
        return edge_index, weight.to(h.dtype)

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        """Return the messages: the sources' rows times the edge weights."""
        return edge_weight.view(-1, 1) * x_j

    def __prepare_scriptable__(self) -> Any:
        raise TypeError(
            f'torch.jit.script does not take {type(self).__name__}: use '
            'torch.export.export(model, (x, edge_index)), or torch.jit.trace'
        )

    def _set_jittable_templates(self, *_: Any) -> None:
        # PyG compiles a 'propagate' for each class and sets it there. Without
        # it the code of the class runs, which certificates compare.
        return

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(alpha={self.alpha:g}, K={self.K}, '
            f'normalization={self.normalization!r})'
        )


@validated
class PPNP(PageRankDiffusion):
    r"""Propagates a network's logits by PageRank: :math:`Z = \Pi f_\theta(X)`.

    :math:`\Pi` is the matrix of personalized PageRank, as in
    :class:`PageRankDiffusion`.

    Args:
        encoder (torch.nn.Module): :math:`f_\theta`, from features to logits,
            node by node.
        alpha (float): the teleport probability. (default: :obj:`0.15`)
        K (int, optional): the number of steps; by default the exact solution.
        **kwargs (Any): arguments of :class:`PageRankDiffusion`.

    Example:
        >>> model = PPNP(torch.nn.Linear(3, 2), alpha=0.15)
        >>> model(torch.rand(2, 3), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        encoder: torch.nn.Module,
        alpha: float = 0.15,
        K: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(alpha, K, **kwargs)
        self.encoder = encoder

    def reset_parameters(self) -> None:
        """Reset the parameters of the encoder's modules."""
        for module in self.encoder.modules():
            reset = getattr(module, 'reset_parameters', None)
            if callable(reset):
                reset()

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits before diffusion: ``[num_nodes, num_classes]``."""
        check_instance('x', x, Tensor)
        return self.encoder(x)

    def forward(
        self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Return the diffused logits: ``[num_nodes, num_classes]``.

        ``x`` has the features, ``[num_nodes, in_channels]``. The graph is
        given as in PyG, or as a ``CSRGraph``.
        """
        check_instance('x', x, Tensor)
        return self.diffuse(self.logits(x), edge_index, edge_weight)


@validated
class FeaturePropagation(PPNP):
    r"""Logistic regression on features diffused by PageRank.

    This is :class:`PPNP` with a linear encoder: the logits are :math:`\Pi (X W
    + b)`, with the matrix :math:`\Pi` of :class:`PageRankDiffusion`. If each
    row of it sums to one (``normalization='rw'``, and every node has an
    out-edge), this equals :math:`\Pi X W + b`.

    Args:
        in_channels (int): the number of features.
        out_channels (int): the number of classes.
        alpha (float): the teleport probability. (default: :obj:`0.15`)
        K (int, optional): the number of steps; by default the exact solution.
        bias (bool): whether there is a bias. (default: :obj:`True`)
        **kwargs (Any): arguments of :class:`PageRankDiffusion`.
    """

    def __init__(
        self,
        in_channels: Count,
        out_channels: Count,
        alpha: float = 0.15,
        K: Natural | None = None,
        *,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        encoder = torch.nn.Linear(in_channels, out_channels, bias=bias)
        super().__init__(encoder, alpha, K, **kwargs)


class LabelPropagation(PageRankDiffusion):
    r"""Label propagation: by PageRank, or in layers as in PyG.

    With :obj:`num_classes` the result is :math:`\Pi H`, with :math:`\Pi` of
    :class:`PageRankDiffusion`: :math:`H` holds the one-hot classes of the
    labelled nodes and zeros elsewhere. Such predictions can be certified. With
    :obj:`num_layers` the model is a drop-in for
    :class:`torch_geometric.nn.LabelPropagation`,

    .. math::
        Y^{(k)} = \alpha D^{-1/2} A D^{-1/2} Y^{(k-1)} + (1 - \alpha) Y^{(0)},

    cut to [0, 1] after each layer.

    Args:
        num_layers (int, optional): the number of layers, as in PyG.
        alpha (float, optional): with :obj:`num_layers` the share of the
            neighbours, in :math:`[0, 1]`; with :obj:`num_classes` the teleport
            probability, by default 0.15.
        num_classes (int, optional): the number of classes, for PageRank.
        K (int, optional): with :obj:`num_classes`, the number of steps; by
            default the exact solution.
        **kwargs (Any): with :obj:`num_classes`, arguments of
            :class:`PageRankDiffusion`.
    """

    def __init__(
        self,
        num_layers: int | None = None,
        alpha: float | None = None,
        *,
        num_classes: int | None = None,
        K: int | None = None,
        **kwargs: Any,
    ) -> None:
        if (num_layers is None) == (num_classes is None):
            raise ValueError(
                "one of 'num_layers' (layers, as in PyG) and 'num_classes' "
                f'(PageRank) is needed (got {num_layers} and {num_classes})'
            )
        if num_layers is None:
            alpha = 0.15 if alpha is None else alpha
            super().__init__(alpha, K, **kwargs)
            check_integer('num_classes', num_classes, 2)  # type: ignore
        elif alpha is None:
            raise ValueError(
                "'alpha' is needed with 'num_layers', as in PyG; for labels "
                f'by PageRank, say num_classes={num_layers}'
            )
        else:
            for name in [*kwargs, *(() if K is None else ('K',))]:
                raise ValueError(
                    f"'{name}' goes with 'num_classes' (got it with "
                    "'num_layers')"
                )
            super().__init__(flow='source_to_target')
            check_integer('num_layers', num_layers, 0)
            self.alpha = check_share('alpha', alpha)
        self.num_classes, self.num_layers = num_classes, num_layers

    @property
    def layers(self) -> 'LabelPropagation | None':
        """This model if it has ``num_layers``; :obj:`None` for PageRank."""
        return None if self.num_layers is None else self

    def logits(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the one-hot classes: float, ``[num_nodes, num_classes]``.

        Rows of unlabelled nodes are zero. The model needs ``num_classes``.

        Args:
            y (Tensor): int64, ``[num_nodes]``; only labelled nodes are read.
            mask (Tensor, optional): the labelled nodes, a bool mask or int64
                positions; by default all.
        """
        if self.num_classes is None:
            raise ValueError(
                "'num_classes' is needed for labels that are diffused by "
                'PageRank (got a model in layers)'
            )
        y = _classes('y', y)
        labelled = torch.arange(y.numel(), device=y.device)
        if mask is not None:
            labelled = labelled[check_nodes('mask', mask, y.numel())]
        check_range('y', y[labelled], self.num_classes, 'the classes')
        h = torch.zeros((y.numel(), self.num_classes), device=y.device)
        h[labelled] = F.one_hot(y[labelled], self.num_classes).to(h.dtype)
        return h

    def forward(
        self,
        y: Tensor,
        edge_index: Any,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the propagated labels: ``[num_nodes, num_classes]``.

        Args:
            y (Tensor): the classes, int64, ``[num_nodes]``; with
                ``num_layers`` also scores, ``[num_nodes, num_classes]``.
            edge_index (Any): the graph, as in PyG or a ``CSRGraph``.
            mask (Tensor, optional): the labelled nodes, a bool mask or int64
                positions; by default all.
            edge_weight (Tensor, optional): the weights of an ``edge_index``;
                with ``num_layers`` they are not normalised.
            post_step (callable, optional): with ``num_layers``, maps the
                result of each layer, instead of cutting to [0, 1].
        """
        if self.num_layers is None:
            if post_step is not None:
                raise ValueError(
                    "'post_step' goes with 'num_layers' (got a model of "
                    'PageRank)'
                )
            return self.diffuse(self.logits(y, mask), edge_index, edge_weight)
        check_instance('y', y, Tensor)
        if not y.is_floating_point():
            y = _classes('y', y)
            if y.numel() and int(y.min()) < 0:
                check_range('y', y, int(y.max()) + 1, 'the classes')
            y = one_hot(y)
        _check_rows('y', y)
        if post_step is not None:
            check_callable('post_step', post_step)
        with torch.no_grad():
            out = y
            if mask is not None:
                mask = check_nodes('mask', mask, y.size(0))
                out = torch.zeros_like(y)
                out[mask] = y[mask]
            step = self._step(out, edge_index, edge_weight)
            kept = (1 - self.alpha) * out
            for _ in range(self.num_layers):
                out = step(out).mul_(self.alpha).add_(kept)
                out = out.clamp_(0, 1) if post_step is None else post_step(out)
            return out

    def _step(
        self, y: Tensor, graph: Any, edge_weight: Tensor | None
    ) -> Callable[[Tensor], Tensor]:
        # One product by the normalised adjacency matrix; a fast one on
        # undirected graphs without weights.
        n = y.size(0)
        if edge_weight is not None:
            check_instance('edge_weight', edge_weight, Tensor)
            if not edge_weight.is_floating_point():
                edge_weight = edge_weight.to(y)  # counts, as PyG takes them
        slow = changed(self, PageRankDiffusion, 'source_to_target')
        given = y if edge_weight is None else edge_weight
        real = y.dtype in REAL and given.dtype in REAL
        if n and real and not slow and not recording():
            known = CSRGraph.convert(graph, n, edge_weight, duplicates='keep')
            if known.is_undirected and not (
                known.is_weighted or known.has_duplicates
            ):
                fast, how = sgc(1, self_loops=False), How(check=False)
                return lambda x: propagate_rows(known, x, fast, None, how)
        edge_index, weight = as_edges(graph, edge_weight, n)
        if weight is None or (
            # As in PyG, values of a matrix of torch are normalised.
            isinstance(graph, Tensor) and graph.layout != torch.strided
        ):
            edge_index, weight = gcn_norm(
                edge_index, weight, n, add_self_loops=False
            )
        return lambda x: self.propagate(edge_index, x=x, edge_weight=weight)

    def __repr__(self) -> str:
        if self.num_layers is None:
            return super().__repr__()
        return (
            f'{type(self).__name__}(num_layers={self.num_layers}, '
            f'alpha={self.alpha})'
        )


@validated
class CorrectAndSmooth(pyg.CorrectAndSmooth):
    """Correct predictions by the errors on training nodes, then smooth them.

    `"Combining Label Propagation And Simple Models Out-performs Graph Neural
    Networks" <https://arxiv.org/abs/2010.13993>`_ (Huang et al. 2021), a
    drop-in for :class:`torch_geometric.nn.CorrectAndSmooth`. The result
    reveals the labels of training nodes to their neighbours: no guarantee of
    this package covers it.

    Args:
        num_correction_layers (int): the number of steps that propagate errors.
        correction_alpha (float): the share of the neighbours in each of these
            steps; the rest is a node's own error.
        num_smoothing_layers (int): the number of steps that smooth corrected
            predictions.
        smoothing_alpha (float): the share of the neighbours in each of these.
        autoscale (bool): whether the propagated errors of each node are scaled
            to the mean error of training nodes. (default: :obj:`True`)
        scale (float): the factor of errors, without :obj:`autoscale`.
            (default: :obj:`1.0`)
    """

    def __init__(
        self,
        num_correction_layers: Natural,
        correction_alpha: Share,
        num_smoothing_layers: Natural,
        smoothing_alpha: Share,
        autoscale: bool = True,
        scale: Finite = 1.0,
    ) -> None:
        super().__init__(
            *(num_correction_layers, correction_alpha),
            *(num_smoothing_layers, smoothing_alpha, autoscale, scale),
        )
        self.prop1 = LabelPropagation(num_correction_layers, correction_alpha)
        self.prop2 = LabelPropagation(num_smoothing_layers, smoothing_alpha)

    def correct(
        self,
        y_soft: Tensor,
        y_true: Tensor,
        mask: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Correct predictions by propagated errors of training nodes.

        Args:
            y_soft (Tensor): the predictions, ``[num_nodes, num_classes]``; the
                result has this shape.
            y_true (Tensor): the labels of the training nodes: classes, int64,
                ``[num_train]``, or one-hot, ``[num_train, num_classes]``.
            mask (Tensor): the training nodes: a bool mask or int64 positions.
            edge_index (Any): the graph, as in PyG or a ``CSRGraph``.
            edge_weight (Tensor, optional): the weights of an ``edge_index``.
        """
        _check_labels(y_soft, y_true, mask)
        out = super().correct(y_soft, y_true, mask, edge_index, edge_weight)
        # Without errors there is no scale of them, and nothing to correct.
        return torch.where(out.isnan(), y_soft, out)

    def smooth(
        self,
        y_soft: Tensor,
        y_true: Tensor,
        mask: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Smooth corrected predictions, with the labels of training nodes.

        Takes the arguments of :meth:`correct`, with its result as ``y_soft``.
        """
        _check_labels(y_soft, y_true, mask)
        return super().smooth(y_soft, y_true, mask, edge_index, edge_weight)


def _check_rows(name: str, rows: Tensor, dims: tuple[int, ...] = (2,)) -> None:
    check_dtype(name, rows, None)
    if rows.dim() not in dims:
        raise ValueError(
            f"'{name}' needs to have the shape [num_nodes, num_columns] (got "
            f'{list(rows.shape)})'
        )


def _check_labels(y_soft: Tensor, y_true: Tensor, mask: Tensor) -> None:
    _check_rows('y_soft', y_soft)
    count = check_nodes('mask', mask, y_soft.size(0)).numel()
    check_instance('y_true', y_true, Tensor)
    if y_true.dtype != torch.int64:
        shape = (count, y_soft.size(1))
        check_tensor('y_true', y_true, y_soft.dtype, shape)
        return
    classes = _classes('y_true', y_true)
    check_tensor('y_true', classes, torch.int64, (count,))
    check_range('y_true', classes, y_soft.size(1), 'the classes')


def _classes(name: str, y: Tensor) -> Tensor:
    # PyG takes columns as well.
    if y.dim() == 2 and y.size(1) == 1:
        y = y.view(-1)
    check_tensor(name, y, torch.int64, ('num',))
    return y
