"""PyG's label propagation and what is built on it, by fast products."""

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.utils import one_hot

from pyg_trust._checks import (
    REAL,
    Finite,
    Natural,
    Share,
    check_callable,
    check_instance,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.functional.measures import sgc
from pyg_trust.functional.propagation import propagate_rows
from pyg_trust.functional.propagation_checks import How
from pyg_trust.graph import CSRGraph


@validated
class LabelLayers(pyg.LabelPropagation):
    """PyG's label propagation.

    On undirected graphs without weights each layer is one product by the
    normalised adjacency matrix; otherwise the messages are PyG's own.
    """

    # PyG compiles one of its own for every class, as for SGConv.
    propagate = pyg.MessagePassing.propagate

    def __init__(self, num_layers: Natural, alpha: Share) -> None:
        super().__init__(num_layers, alpha)

    @torch.no_grad()
    def forward(
        self,
        y: Tensor,
        edge_index: Any,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The propagated labels: ``[num_nodes, num_classes]``."""
        check_instance('y', y, Tensor)
        if y.dtype == torch.int64:
            classes = _classes('y', y)
            check_range('y', classes, int(y.max()) + 1, 'the classes')
            y = one_hot(classes)
        check_tensor('y', y, REAL, ('num_nodes', 'num_classes'))
        if mask is not None:
            check_nodes('mask', mask, y.size(0))
        if post_step is not None:
            check_callable('post_step', post_step)
        graph = CSRGraph.convert(edge_index, y.size(0), edge_weight)
        if graph.is_weighted or not graph.is_undirected:
            # propagate_type: (x: Tensor, edge_weight: OptTensor)
            return super().forward(y, edge_index, mask, edge_weight, post_step)
        out = y
        if mask is not None:
            out = torch.zeros_like(y)
            out[mask] = y[mask]
        step, how = sgc(1, self_loops=False), How(check=False)
        kept = (1 - self.alpha) * out
        for _ in range(self.num_layers):
            out = propagate_rows(graph, out, step, None, how)
            out = out.mul_(self.alpha).add_(kept)
            out = out.clamp_(0, 1) if post_step is None else post_step(out)
        return out


@validated
class CorrectAndSmooth(pyg.CorrectAndSmooth):
    r"""Corrects predictions by their errors on training nodes, and smooths.

    `"Combining Label Propagation And Simple Models Out-performs Graph Neural
    Networks" <https://arxiv.org/abs/2010.13993>`_ (Huang et al. 2021), a
    drop-in for :class:`torch_geometric.nn.CorrectAndSmooth` that spreads
    errors and labels as :class:`LabelPropagation` does.

    The result shows the labels of training nodes to their neighbours: no
    guarantee of this package covers it.

    Args:
        num_correction_layers (int): how often errors are propagated.
        correction_alpha (float): the share of an error that comes from the
            neighbours, in each layer.
        num_smoothing_layers (int): how often corrected predictions are.
        smoothing_alpha (float): the share of the neighbours in those.
        autoscale (bool): whether errors are scaled to their mean on the
            training nodes. (default: :obj:`True`)
        scale (float): what errors are multiplied by, without
            :obj:`autoscale`. (default: :obj:`1.0`)
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
            num_correction_layers,
            correction_alpha,
            num_smoothing_layers,
            smoothing_alpha,
            autoscale,
            scale,
        )
        self.prop1 = LabelLayers(num_correction_layers, correction_alpha)
        self.prop2 = LabelLayers(num_smoothing_layers, smoothing_alpha)

    def correct(
        self,
        y_soft: Tensor,
        y_true: Tensor,
        mask: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """The predictions plus what their errors tell.

        Args:
            y_soft (Tensor): the predictions, ``[num_nodes, num_classes]``.
            y_true (Tensor): the labels of the training nodes, classes or
                rows like those of :obj:`y_soft`.
            mask (Tensor): the training nodes, a mask or indices.
            edge_index (Any): the graph, in any form.
            edge_weight (Tensor, optional): with an ``edge_index``.
                (default: :obj:`None`)
        """
        _check_labels(y_soft, y_true, mask)
        return super().correct(y_soft, y_true, mask, edge_index, edge_weight)

    def smooth(
        self,
        y_soft: Tensor,
        y_true: Tensor,
        mask: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Spreads predictions, with the true labels of training nodes.

        Args:
            y_soft (Tensor): what :meth:`correct` returns.
            y_true (Tensor): as in :meth:`correct`.
            mask (Tensor): as in :meth:`correct`.
            edge_index (Any): as in :meth:`correct`.
            edge_weight (Tensor, optional): as in :meth:`correct`.
                (default: :obj:`None`)
        """
        _check_labels(y_soft, y_true, mask)
        return super().smooth(y_soft, y_true, mask, edge_index, edge_weight)


def _check_labels(y_soft: Tensor, y_true: Tensor, mask: Tensor) -> None:
    check_tensor('y_soft', y_soft, REAL, ('num_nodes', 'num_classes'))
    count = check_nodes('mask', mask, y_soft.size(0)).numel()
    check_instance('y_true', y_true, Tensor)
    if y_true.dtype == torch.int64:
        classes = _classes('y_true', y_true)
        check_tensor('y_true', classes, torch.int64, (count,))
        check_range('y_true', classes, y_soft.size(1), 'the classes')
    else:
        shape = (count, y_soft.size(1))
        check_tensor('y_true', y_true, y_soft.dtype, shape)


def _classes(name: str, y: Tensor) -> Tensor:
    # PyG takes columns as well.
    if y.dim() == 2 and y.size(1) == 1:
        y = y.view(-1)
    check_tensor(name, y, torch.int64, ('num',))
    return y
