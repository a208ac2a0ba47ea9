"""Requests as the ledger records them, after what an update brought back."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from pyg_trust.removal import Part, RemovalRequest, Removed
from pyg_trust.update import Update

__all__ = ['arcs_of', 'line_of']

Arc = tuple[int, int]
# Those of some ids, or of some pairs of ids, that something holds for.
Some = Callable[[Collection[Any]], set[Any]]


def arcs_of(edges: Tensor, undirected: bool = False) -> set[Arc]:
    """Return edges as pairs of numbers, with their reverses if undirected."""
    arcs = {(u, v) for u, v in edges.t().tolist()}
    return arcs | {(v, u) for u, v in arcs} if undirected else arcs


def line_of(
    updates: Sequence[Update],
    came: set[Arc],
    present: Some,
    lost: dict[str, Some],
    past: Removed,
    graph: int = 0,
) -> dict[str, Any]:
    """List the items that updates of a graph removed or replaced, by kind.

    An item that was removed and added again is not listed as removed; its new
    features or label are listed as changed. ``'again'`` lists items that an
    earlier request removed and the data hold now.
    """
    asked = [each.remove for each in updates if each.remove is not None]
    part = Part()
    if asked:
        part = RemovalRequest.batch(asked).parts.get(graph, part)
    # What nobody brought back is gone, whatever the data say.
    nodes, there = {*part.nodes}, present(came)
    edges, arcs = set[Arc](), {*part.directed_edges} - there
    for u, v in part.edges:
        left = {(u, v), (v, u)} - there
        if {(u, v), (v, u)} == left:
            edges.add((u, v))
        else:
            arcs |= left
    line: dict[str, list[Any]] = {'nodes': sorted(nodes)}
    again: dict[str, list[Any]] = {}
    for kind, gone in lost.items():
        pairs = [getattr(u, kind) for u in updates if u.graph == graph]
        named = [pair[0].tolist() for pair in pairs if pair is not None]
        changed = set[int]().union(*named) - nodes
        others = changed - gone(changed)
        line[kind] = sorted({*getattr(part, kind), *changed} - others)
        line[f'changed_{kind}'] = sorted(others)
        again[kind] = sorted(others & past.of(kind, graph))
    for kind, cut in (('edges', edges), ('directed_edges', arcs)):
        line[kind] = [list(arc) for arc in sorted(cut)]
    known = there & past.of('directed_edges', graph)
    again['directed_edges'] = [list(arc) for arc in sorted(known)]
    line = {kind: items for kind, items in line.items() if items}
    again = {kind: items for kind, items in again.items() if items}
    return {**line, 'again': again} if again else line
