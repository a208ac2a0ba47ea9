"""Checks that verify a node classifier."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust.removal import Part
from pyg_trust.unlearning.certified import proved
from pyg_trust.unlearning.node_parts import Edit
from pyg_trust.unlearning.node_solving import Model
from pyg_trust.unlearning.node_state import NodeState
from pyg_trust.unlearning.sums import Sums
from pyg_trust.verify import removal

Arc = tuple[int, int]


def evidence(model: Model, std: float) -> dict[str, np.ndarray] | None:
    """Collect the arrays from which the kernel proves a release.

    For linear terms, infinite series and pairs, of which the kernel proves
    nothing, return :obj:`None`, and for a state as version 0.1 wrote it.
    """
    data, seal = model.data, model.seals.state_dict()
    settings = data.settings
    linear = model.B is not None or 'salt' not in seal
    if linear or (settings.theta, settings.pairs) != (None, None):
        return None
    ids, (degree, col) = data.ids.n_id, data.graph.entries()
    labels = torch.where(data.place >= 0, data.y[data.place], -1)
    held = {
        'col': col,
        'alive': data.graph.alive,
        'own_loop': data.graph.own_loop,
        'featureless': data.featureless,
        'x': data.levels.x,
        'labels': labels,
        'salt': seal['salt'],
        'W': model.W,
        'released': model.weight,
    }
    return {
        **{name: np.ascontiguousarray(t) for name, t in held.items()},
        **settings.arrays(std),
        **({} if ids is None else {'ids': ids.numpy()}),
        'rowptr': np.concatenate([[0], degree.cumsum(0)]),
        'classes': np.array(data.classes),
        'directed': np.array(not data.graph.undirected),
        'secure': np.array(model.secure),
        'releases': np.array(model.releases),
    }


def proved_by_kernel(
    model: Model, std: float, claimed: bool
) -> dict[str, Any]:
    """Prove the last release by the kernel; return fields of a report.

    Args:
        model (Model): the state, with data, weights and ledger.
        std (float): the standard deviation of a release's noise.
        claimed (bool): whether the residual was measured to be within its
            bound.

    Raises:
        RuntimeError: if the bound was claimed, and the kernel refutes it.
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


def named(model: Model, edits: Sequence[Edit]) -> dict[str, Any]:
    """List the items that edits removed or replaced, by kind.

    An item that one edit removes and a later one adds again is not listed as
    removed; its new features or labels are listed as changed. ``'again'``
    lists items that an earlier request removed and the data hold now.

    Args:
        model (Model): the model with the data after the edits.
        edits (Sequence[Edit]): the edits, in order.
    """
    data, graph = model.data, model.data.graph
    nodes, both, one = set[int](), set[Arc](), set[Arc]()
    gone = {'features': set[int](), 'labels': set[int]()}
    changed = {'features': set[int](), 'labels': set[int]()}
    for edit in edits:
        part = edit.part
        nodes |= {*part.nodes}
        both |= {*part.edges}
        one |= {*part.directed_edges}
        arcs = _arcs_of(edit.edges, graph)
        again = {e for e in both if not arcs.isdisjoint((e, e[::-1]))}
        both -= again
        if not graph.undirected:
            one |= {arc for e in again for arc in (e, e[::-1])}
        one -= arcs
        for name, given in (
            ('features', edit.features),
            ('labels', edit.labels),
        ):
            there = {*getattr(part, name)}
            come = set[int]()
            if given is not None:
                out = given[1] < 0 if name == 'labels' else None
                there |= set() if out is None else {*given[0][out].tolist()}
                come = {*given[0].tolist()} - there
            gone[name] = (gone[name] | there) - come
            changed[name] = (changed[name] | come) - there
    made: dict[str, list[Any]] = {'nodes': sorted(nodes)}
    for name, items in gone.items():
        made[name] = sorted(items - nodes)
        made[f'changed_{name}'] = sorted(changed[name] - nodes)
    for name, pairs in (('edges', both), ('directed_edges', one)):
        held = sorted(e for e in pairs if nodes.isdisjoint(e))
        made[name] = [list(e) for e in held]
    past, ids = model.ledger.removed, data.ids
    came = sorted(_there(graph, _came(data)))
    arcs = {(u, v) for u, v in ids.of(_pairs(came)).tolist()}
    anew: dict[str, list[Any]] = {}
    anew['directed_edges'] = sorted(arcs & past.of('directed_edges'))
    for kind, items in changed.items():
        rows = torch.tensor(sorted(items), dtype=torch.int64)
        anew[kind] = sorted({*ids.of(rows).tolist()} & past.of(kind))
    anew['directed_edges'] = [list(arc) for arc in anew['directed_edges']]
    # In ids, as in the ledger.
    found = ids.line({k: v for k, v in made.items() if v})
    if any(anew.values()):
        found['again'] = {k: v for k, v in anew.items() if v}
    return found


def still_named(model: Model) -> tuple[str, ...]:
    """List the items that the ledger says are removed but the data contain."""
    data, gone, ids = model.data, _gone(model), model.data.ids
    rows, graph = data.levels.x, data.graph
    alive = graph.alive | (graph.degree > 0)
    held = {
        'node': (gone.nodes, lambda v: bool(alive[v] | rows[v].any())),
        'the feature row of node': (
            gone.features,
            lambda v: bool(rows[v].any()),
        ),
        'the label of node': (gone.labels, data.trains),
    }
    found = [
        f'{what} {int(ids.of(torch.tensor(v)))}'
        for what, (names, there) in held.items()
        for v in names
        if there(v)
    ]
    arcs = _there(data.graph, {*gone.directed_edges} - _came(data))
    left = ids.of(_pairs(sorted(arcs))).tolist()
    return (*found, *(f'edge {u} -> {v}' for u, v in left))


def _gone(model: Model) -> Part:
    # All items that the ledger says are removed, edges by direction.
    found = model.ledger.removed.request()
    return Part() if found is None else model.data.ids.part(found.parts[0])


def _arcs_of(edges: Tensor, graph: Sums) -> set[Arc]:
    arcs = {(u, v) for u, v in edges.t().tolist()}
    return arcs | {(v, u) for u, v in arcs if graph.undirected}


def _came(data: NodeState) -> set[Arc]:
    # Every direction that came since the last release.
    parts = (_arcs_of(part, data.graph) for part in data.pending.edges)
    return set[Arc]().union(*parts)


def _there(graph: Sums, arcs: set[Arc]) -> set[Arc]:
    listed = sorted(arcs)
    mask = graph.has_edges(_pairs(listed).t()).tolist()
    return {arc for arc, has in zip(listed, mask, strict=True) if has}


def _pairs(arcs: Sequence[Arc]) -> Tensor:
    return torch.tensor(arcs, dtype=torch.int64).view(-1, 2)
