"""Checks that verify a node classifier."""

import torch
from torch import Tensor

from pyg_trust.unlearning.node_release import Model
from pyg_trust.unlearning.node_state import NodeState


def feature_error(
    data: NodeState, fresh: NodeState, ids: Tensor
) -> tuple[float, float]:
    """The error of the features, and what it may be.

    Args:
        data (NodeState): what is held.
        fresh (NodeState): of what remains, computed anew.
        ids (Tensor): int64: the names of its nodes.
    """
    if data.Z is None:
        exact = fresh.levels.solve(fresh.levels.x, 1e-12)  # type: ignore
        error = float((data.levels.rows(ids) - exact).norm())
        return error, data.levels.error_bound + 1e-9
    error = float((data.levels.rows(ids) - fresh.levels.rows()).abs().max())
    there = data.names >= 0
    place = torch.full((data.place.numel(),), -1)
    place[ids] = torch.arange(ids.numel())
    row = fresh.place[place[data.names[there]]]
    gap = data.Z[there] - fresh.Z[row]  # type: ignore[index]
    return max(error, float(gap.abs().max())), 0.0


def labels(margin: Tensor) -> Tensor:
    """The positions of the classes with the largest margins.

    Args:
        margin (Tensor): ``[k, num_outputs]``.
    """
    return margin.view(-1) > 0 if margin.size(1) == 1 else margin.argmax(1)


def still_named(model: Model) -> tuple[str, ...]:
    """Items that the ledger lists as removed and the data still hold.

    Args:
        model (Model): with its ledger.
    """
    data, found = model.data, []
    graph = data.graph
    for entry in model.ledger.entries:
        part = entry.request
        found += [f'node {v}' for v in part.get('nodes', []) if graph.alive[v]]
        found += [
            f'the feature row of node {v}'
            for v in part.get('features', [])
            if bool(data.levels.x[v].any())
        ]
        found += [
            f'the label of node {v}'
            for v in part.get('labels', [])
            if int(data.place[v]) >= 0
        ]
        both = part.get('edges', [])
        pairs = [*both, *(pair[::-1] for pair in both)]
        pairs += part.get('directed_edges', [])
        edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
        found += [
            f'edge {u} -> {v}'
            for u, v in edges[:, graph.has_edges(edges)].t().tolist()
        ]
    return tuple(found)
