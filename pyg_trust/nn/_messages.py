"""Whether messages are a class's own, and graphs as PyG takes them."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SumAggregation

from pyg_trust._checks import REAL, check_instance, check_tensor
from pyg_trust._checks.graphs import check_edges
from pyg_trust.graph import CSRGraph

METHODS = ('message', 'message_and_aggregate', 'aggregate', 'update')
_TORCH = vars(torch.nn.Module())


def changed(layer: MessagePassing, own: type, flow: str) -> str | None:
    """Return what makes a layer send other messages than those of its class.

    A fast path stands for sums of the messages of one class. Whoever passes
    another aggregation, overrides a method, registers a hook or explains the
    layer has to get what PyG's message passing does.
    """
    if layer.explain:
        return 'explain'
    for name in METHODS:
        method = getattr(layer, name)
        if getattr(method, '__func__', method) is not getattr(own, name):
            return name
    hooks = (name for name in vars(layer) if name.endswith('_hooks'))
    if any(getattr(layer, name) for name in hooks if name not in _TORCH):
        return 'hooks'
    aggr = layer.aggr_module
    if type(aggr) is not SumAggregation or aggr._forward_hooks:
        return 'aggr'
    if layer.flow != flow:
        return 'flow'
    return None if layer.node_dim == -2 else 'node_dim'


def recording() -> bool:
    """Return whether torch records operations instead of running them."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def as_edges(
    graph: Any, edge_weight: Tensor | None, num_nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Return a graph as an ``edge_index`` in the user's order, and weights."""
    if isinstance(graph, Tensor) and graph.layout == torch.strided:
        if recording():  # the numbers are not there to be checked
            return graph.long(), edge_weight
        edges = check_edges('edge_index', graph, num_nodes)
        if edge_weight is not None:
            dtypes = (*REAL, torch.bfloat16, torch.float16)
            check_instance('edge_weight', edge_weight, Tensor)
            if edge_weight.dim() == 2 and edge_weight.size(1) == 1:
                edge_weight = edge_weight.view(-1)  # as an edge_attr
            check_tensor('edge_weight', edge_weight, dtypes, (edges.size(1),))
        return edges, edge_weight
    if edge_weight is not None:
        raise ValueError(
            "'edge_weight' goes with an 'edge_index' alone "
            f'(got a {type(graph).__name__}, which has its own weights)'
        )
    known = CSRGraph.convert(graph, num_nodes, duplicates='keep')
    return known.to_edge_index()
