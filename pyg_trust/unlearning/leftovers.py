"""Search for traces of removed items, for every unlearner."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
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
        if v in there and _is_set(data.x, there[v])
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


def views(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """List tensors that are views of larger tensors.

    Args:
        tensors (list[tuple[str, Tensor]]): pairs of a name and a tensor; all
            parts of a sparse tensor are checked.
    """
    found = []
    for name, tensor in tensors:
        if tensor.layout == torch.sparse_csr:
            pieces = [
                tensor.crow_indices(),
                tensor.col_indices(),
                tensor.values(),
            ]
        else:
            pieces = [tensor]
        if any(
            piece.untyped_storage().nbytes()
            > piece.numel() * piece.element_size()
            for piece in pieces
        ):
            found.append(f'{name} is a view into a larger tensor')
    return found


def _is_set(x: Tensor, row: int) -> bool:
    # Whether a row has a number that is not zero.
    if x.layout != torch.sparse_csr:
        return bool(x[row].any())
    start, end = x.crow_indices()[row : row + 2].tolist()
    return bool(x.values()[start:end].any())
