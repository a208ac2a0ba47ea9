"""Requests as the ledger records them, after what an update brought back."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyg_trust.removal import NodeIds, Part, Removed

__all__ = ['Arc', 'arcs_of', 'line_of']

Arc = tuple[int, int]


def arcs_of(edges: Tensor, undirected: bool = False) -> set[Arc]:
    """Return edges as pairs of numbers, with their reverses if undirected."""
    arcs = {(u, v) for u, v in edges.t().tolist()}
    return arcs | {(v, u) for u, v in arcs} if undirected else arcs


def line_of(
    part: Part,
    changed: Mapping[str, Iterable[int]],
    lost: dict[str, Callable[[int], bool]],
    present: Callable[[Collection[Arc]], set[Arc]],
    came: set[Arc],
    past: Removed,
    graph: int = 0,
    ids: NodeIds | None = None,
) -> dict[str, Any]:
    """List the items that updates of a graph removed or replaced, by kind.

    An item that was removed and added again is not listed as removed; its new
    features or label are listed as changed. ``'again'`` lists items that an
    earlier request removed and the data hold now.
    """
    ids = NodeIds() if ids is None else ids
    # What nobody brought back is gone, whatever the data say.
    nodes, there = {*part.nodes}, present(came)
    edges, arcs = set[Arc](), {*part.directed_edges} - there
    for u, v in part.edges:
        left = {(u, v), (v, u)} - there
        if {(u, v), (v, u)} == left:
            edges.add((u, v))
        else:
            arcs |= left
    made: dict[str, list[Any]] = {'nodes': sorted(nodes)}
    again: dict[str, list[Any]] = {}
    for kind, is_lost in lost.items():
        asked = {*getattr(part, kind)} - nodes
        others = {
            v for v in {*changed.get(kind, ())} - nodes if not is_lost(v)
        }
        made[kind] = sorted(asked - others)
        made[f'changed_{kind}'] = sorted(others)
        rows = torch.tensor(made[f'changed_{kind}'], dtype=torch.int64)
        again[kind] = sorted({*ids.of(rows).tolist()} & past.of(kind, graph))
    for kind, pairs in (('edges', edges), ('directed_edges', arcs)):
        made[kind] = [list(e) for e in sorted(pairs) if nodes.isdisjoint(e)]
    come = torch.tensor(sorted(there), dtype=torch.int64).view(-1, 2)
    back = {(u, v) for u, v in ids.of(come).tolist()}
    known = sorted(back & past.of('directed_edges', graph))
    again['directed_edges'] = [list(arc) for arc in known]
    line = ids.line({kind: items for kind, items in made.items() if items})
    again = {kind: items for kind, items in again.items() if items}
    return {**line, 'again': again} if again else line
