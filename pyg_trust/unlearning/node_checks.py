"""Checks that verify a node classifier."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust.kernel import removal
from pyg_trust.unlearning.certified import proved
from pyg_trust.unlearning.node_solving import Model
from pyg_trust.unlearning.node_state import NodeState, Settings


def evidence(model: Model, std: float) -> dict[str, np.ndarray] | None:
    """Collect the arrays from which the kernel proves a release.

    For linear terms and infinite series, for which the kernel has no theorem,
    return :obj:`None`.
    """
    data = model.data
    settings = data.settings
    if model.B is not None or settings.theta is not None:
        return None
    degree, col = data.graph.entries()
    labels = torch.where(data.place >= 0, data.y[data.place], -1)
    held = {
        'col': col,
        'alive': data.graph.alive,
        'own_loop': data.graph.own_loop,
        'featureless': data.featureless,
        'x': data.levels.x,
        'labels': labels,
        'salts': model.seals.state_dict()['salts'],
        'W': model.W,
        'released': model.weight,
    }
    return {
        **{name: np.ascontiguousarray(t) for name, t in held.items()},
        **_settings(settings, std),
        'rowptr': np.concatenate([[0], degree.cumsum(0)]),
        'classes': np.array(data.classes),
        'directed': np.array(not data.graph.undirected),
        'secure': np.array(model.secure),
        'releases': np.array(model.releases),
    }


def _settings(settings: Settings, std: float) -> dict[str, np.ndarray]:
    measure = settings.measure
    return {
        'head': np.array(settings.head),
        'weights': np.array(measure.weights),
        'a': np.array(float(measure.a)),
        'b': np.array(float(measure.b)),
        'bits': np.array(settings.bits),
        'lam': np.array(settings.lam),
        'std': np.array(std),
        'self_loops': np.array(measure.self_loops),
        'along': np.array(measure.along),
    }


def setting(settings: Settings, std: float) -> str:
    """Hash the settings of a proof: all but data and weights."""
    return removal.setting(_settings(settings, std))


def proved_by_kernel(
    model: Model, std: float, claimed: bool
) -> dict[str, Any]:
    """Prove the last release by the kernel: fields of a report.

    Args:
        model (Model): with its data, weights and ledger.
        std (float): of the noise of a release.
        claimed (bool): whether the residual was measured to be within its
            bound.

    Raises:
        RuntimeError: if it was, and the kernel refutes it.
    """
    arrays, spent = evidence(model, std), model.ledger.spent
    # A release of spent 0 is compared with a fit by this program.
    if arrays is None or spent == 0:
        return {}
    try:
        found = removal.prove(arrays)
    except ValueError:
        # The data still hold a removed item, which the report says elsewhere.
        return {}
    return proved(found, spent * std * model.data.mu, spent, claimed)


def feature_error(
    data: NodeState, fresh: NodeState, ids: Tensor
) -> tuple[float, float]:
    """Compute the error of the features, and its bound.

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


def still_named(model: Model) -> tuple[str, ...]:
    """List the items that are removed by the ledger and still in the data."""
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
