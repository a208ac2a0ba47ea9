"""The graph that a sharded unlearner keeps: checks, subgraphs, slices."""

import copy
from typing import Any

import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import check_tensor
from pyg_trust._checks.graphs import (
    check_edges,
    check_num_nodes,
    check_weight,
    with_edge_index,
)
from pyg_trust.graph import sparse_rows
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.removal import NodeIds, rows_of
from pyg_trust.transforms.shards import training_nodes
from pyg_trust.unlearning.partition import check_shards

MASKS = ('train_mask', 'val_mask', 'test_mask')
# Features with a smaller share of nonzeros are kept as rows of nonzeros.
FEW = 1 / 8


def copied(data: Data, num_shards: int) -> Data:
    """Check a graph and copy the tensors that an unlearner keeps."""
    if not isinstance(data, Data):
        typed = isinstance(data, HeteroData)
        raise TypeError(
            f"'data' needs to be a Data object (got {type(data).__name__})"
            + ": give 'unit', a pyg_trust.unit.PrivacyUnit" * typed
        )
    data = with_edge_index(data)
    kept = _received(data)
    n, y = int(data.num_nodes or 0), data.get('y')
    if isinstance(y, Tensor) and y.shape == (n, 1):
        y = y.view(-1)
    check_tensor('data.y', y, torch.int64, (n,))
    index = training_nodes(data)
    check_shards(index.numel(), num_shards)
    missing = index[y[index] < 0]
    if missing.numel() > 0:
        raise ValueError(
            "'y' needs to hold a label for every training node (got "
            f'{int(y[missing[0]])} for node {int(missing[0])})'
        )
    for name in data.keys():  # noqa: SIM118
        if data.is_edge_attr(name) and name not in kept:
            raise ValueError(
                f"'data' has '{name}', which models do not receive: of edge "
                "attributes they receive 'edge_weight' alone; take it out of "
                'the graph first'
            )
    kept.y = y
    kept.n_id = NodeIds.of_data(data).of(torch.arange(n))
    for name in MASKS:
        mask = data.get(name)
        if isinstance(mask, Tensor) and mask.shape == (n,):
            kept[name] = mask
    return kept.cpu().clone()


def other_graph(data: Any, own: Data) -> Data:
    """Check another graph for the models of one."""
    if not isinstance(data, Data):
        raise TypeError(
            "'data' needs to be a Data object, another graph; for nodes of "
            'the present one call predict(nodes=[1, 2]) (got '
            f'{type(data).__name__})'
        )
    made = _received(data)
    made.x = made.x.to(own.x.dtype)
    check_tensor('data.x', made.x, own.x.dtype, ('num_nodes', own.x.size(1)))
    if ('edge_weight' in own) != ('edge_weight' in made):
        raise ValueError(
            "'data' needs an 'edge_weight' if, and only if, the graph that "
            f'was fitted has one (got {kind_of(data.get("edge_weight"))})'
        )
    return made


def _received(data: Data) -> Data:
    # What models receive of a graph, checked.
    x, n = data.get('x'), int(data.num_nodes or 0)
    check_tensor('data.x', x, None, (n, 'channels'))
    x = kept_rows(x.detach().cpu())
    if not bool((x.values() if is_sparse(x) else x).isfinite().all()):
        raise ValueError("'x' needs to be finite")
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    edges = check_edges(
        'edge_index', data.edge_index, check_num_nodes(data.num_nodes)
    )
    made = Data(x=x, edge_index=edges, num_nodes=n)
    if (weight := data.get('edge_weight')) is not None:
        weight = check_weight('edge_weight', weight, edges.size(1))
        made.edge_weight = weight.detach()
    return made.cpu()


def count_classes(data: Data, num_classes: int | None) -> int:
    """Return the number of classes, as given or from the largest label."""
    largest = int(data.y[data.train_mask].max()) + 1
    if num_classes is None:
        return max(largest, int(data.y.max()) + 1)
    if largest > num_classes:
        raise ValueError(
            f"'y' needs to be in [0, {num_classes}) for every "
            f'training node (got {largest - 1})'
        )
    return num_classes


def canonical(data: Data) -> Data:
    """Sort nodes by id, and edges by source, target and weight.

    Sums depend on the order of their terms: so models depend on the present
    data alone, and not on the order in which it was given or came about.
    """
    n, weight = int(data.num_nodes or 0), data.get('edge_weight')
    made, order = copy.copy(data), data.n_id.argsort()
    if not torch.equal(order, torch.arange(n)):
        for key, value in data:
            if key not in ('x', 'edge_index', 'edge_weight', 'num_nodes'):
                made[key] = value[order]
        made.x = select_rows(data.x, order)
        made.edge_index = order.argsort()[data.edge_index]
    keys = made.edge_index[0] * n + made.edge_index[1]
    if weight is None and bool((keys.diff() >= 0).all()):
        return made
    first = torch.arange(keys.numel())
    if weight is not None:
        first = weight.argsort(stable=True)
    order = first[keys[first].argsort(stable=True)]
    made.edge_index = made.edge_index[:, order]
    if weight is not None:
        made.edge_weight = weight[order]
    return made


def induced(data: Data, inside: Tensor) -> Data:
    """Return the subgraph of some nodes, with what models receive."""
    keys = ('edge_index', 'edge_weight', 'y', 'n_id', 'num_nodes')
    held = {key: data[key] for key in keys if key in data}
    made = Data.from_dict(held).subgraph(inside)
    made.x = select_rows(data.x, inside.nonzero().view(-1))
    return made


# Features ####################################################################


def is_sparse(x: Tensor) -> bool:
    """Test whether features are a CSR matrix."""
    return x.layout == torch.sparse_csr


def kept_rows(x: Tensor) -> Tensor:
    """Copy features: as CSR if few are not zero, else as a dense matrix.

    The layout is a function of the values.
    """
    if x.layout not in (torch.strided, torch.sparse_csr):
        x = x.to_dense()
    count = x.values().numel() if is_sparse(x) else int(x.count_nonzero())
    if count < FEW * x.numel():
        return nonzeros(x)
    return x.to_dense().clone(memory_format=torch.contiguous_format)


def nonzeros(x: Tensor) -> Tensor:
    """Convert features to a CSR matrix with 32-bit indices."""
    if is_sparse(x):
        if x.crow_indices().dtype == torch.int32 and bool(
            x.values().count_nonzero() == x.values().numel()
        ):
            return x
        x = x.to_dense()
    flat, (n, width) = x.reshape(-1), x.shape
    # torch finds nonzeros of a vector in half the time of a matrix's.
    at = flat.nonzero().view(-1)
    ptr = torch.searchsorted(at, width * torch.arange(n + 1))
    value = flat.index_select(0, at)
    return sparse_rows(ptr.int(), (at % width).int(), value, (n, width))


def turned_rows(x: Tensor) -> Tensor:
    """Transpose a CSR matrix."""
    parts = x.values(), x.col_indices(), x.crow_indices()
    held = csr_matrix(tuple(part.numpy() for part in parts), tuple(x.shape))
    made = held.T.tocsr()
    return sparse_rows(
        torch.from_numpy(made.indptr),
        torch.from_numpy(made.indices),
        torch.from_numpy(made.data),
        (x.size(1), x.size(0)),
    )


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Copy some rows of features, dense or CSR."""
    if not is_sparse(x):
        return x[index]
    ptr = x.crow_indices().long()
    count = ptr.diff()[index]
    entry = ranges(ptr[index], count)
    return sparse_rows(
        pointer(count).int(),
        x.col_indices()[entry],
        x.values()[entry],
        (index.numel(), x.size(1)),
    )


def stacked_rows(matrices: list[Tensor]) -> Tensor:
    """Stack features, in the layout of the first."""
    if not is_sparse(matrices[0]):
        return torch.cat([x.to_dense() for x in matrices])
    parts = [nonzeros(x) for x in matrices]
    counts = torch.cat([x.crow_indices().diff() for x in parts])
    return sparse_rows(
        pointer(counts).int(),
        torch.cat([x.col_indices() for x in parts]),
        torch.cat([x.values() for x in parts]),
        (counts.numel(), parts[0].size(1)),
    )


# Slices ######################################################################


def slice_numbers(
    n_id: Tensor, slices: tuple[tuple[float, int], ...], seed: int
) -> Tensor:
    """Compute the slice of every node, from 0, by a keyed hash of its id.

    It is the value of the hash that is cut, not its rank: so nobody changes
    slices when others are removed.
    """
    # The highest 53 bits: exact in float64, and always below one.
    value = (rng.derive_each(seed, n_id) >> 10).double() / 2**53
    shares = torch.tensor([share for share, _ in slices] or [1.0]).double()
    return torch.searchsorted(shares, value, right=True)


def touched_slices(
    data: Data,
    nodes: Tensor,
    arcs: Tensor,
    slices: tuple[tuple[float, int], ...],
    seed: int,
) -> dict[int, int]:
    """Find, for each shard, the first slice that contains given items.

    A node belongs to its own slice, and an edge to the later one of its ends,
    if both are of one shard. Earlier stages have seen nothing of them. Nodes
    and arcs, ``[2, num_arcs]``, are by their ids.
    """
    number = slice_numbers(data.n_id, slices, seed)
    rows = rows_of(data.n_id, nodes)
    ends = rows_of(data.n_id, arcs.reshape(-1)).view(2, -1)
    ends = ends[:, data.shard[ends[0]] == data.shard[ends[1]]]
    shard = data.shard[torch.cat([rows, ends[0]])].tolist()
    stage = torch.cat([number[rows], number[ends].amax(0)]).tolist()
    found: dict[int, int] = {}
    for home, at in zip(shard, stage, strict=True):
        if home >= 0:
            found[home] = min(at, found.get(home, at))
    return found


def kind_of(value: Any) -> str:
    """Describe the type of a value for an error message."""
    if isinstance(value, Tensor):
        return f'{value.dtype} {list(value.shape)}'
    return type(value).__name__
