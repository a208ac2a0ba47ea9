"""Search of stored graphs for what a ledger lists as removed."""

from collections.abc import Mapping
from typing import Any

from torch_geometric.data import Data

from pyg_trust._checks import check_instance, validated


@validated
def named_leftovers(
    data: Data, part: Mapping[str, Any], where: str = ''
) -> list[str]:
    """List the items of a request that a graph still contains.

    Searches each removed direction of an edge.

    Args:
        data (Data): the graph after the removal, with its node names ``n_id``.
        part (dict): a :class:`~pyg_trust.removal.Part` as a dictionary, from a
            ledger's line.
        where (str): the text to append to every finding. (default: :obj:`''`)
    """
    check_instance('part', part, Mapping)
    there = {v: row for row, v in enumerate(data.n_id.tolist())}
    found = [f'node {v}{where}' for v in part.get('nodes', ()) if v in there]
    found += [
        f'features of node {v}{where}'
        for v in part.get('features', ())
        if v in there and bool(data.x[there[v]].any())
    ]
    arcs = [
        *((u, v) for u, v in part.get('edges', ())),
        *((v, u) for u, v in part.get('edges', ()) if u != v),
        *((u, v) for u, v in part.get('directed_edges', ())),
    ]
    if arcs:
        edges = {tuple(edge) for edge in data.edge_index.t().tolist()}
        found += [
            f'edge {u} -> {v}{where}'
            for u, v in arcs
            if (there.get(u), there.get(v)) in edges
        ]
    return found
