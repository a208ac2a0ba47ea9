"""The graph that a sharded unlearner keeps: checks, subgraphs, slices."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import check_integer, check_number, check_tensor
from pyg_trust._checks.graphs import (
    check_edges,
    check_num_nodes,
    check_weight,
    with_edge_index,
)
from pyg_trust.graph import sparse_rows
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.removal import Part
from pyg_trust.transforms.shards import training_nodes
from pyg_trust.unlearning.partition import check_shards
from pyg_trust.update import rows_of

__all__ = [
    'MASKS',
    'Slices',
    'canonical',
    'check_slices',
    'checked_edges',
    'copied',
    'count_classes',
    'id_tensor',
    'induced',
    'is_sparse',
    'kept_rows',
    'kind_of',
    'nonzeros',
    'other_graph',
    'select_rows',
    'slice_numbers',
    'stacked_rows',
    'touched_slices',
    'without_features',
]

MASKS = ('train_mask', 'val_mask', 'test_mask')
Slices = tuple[tuple[float, int], ...]
# Features with a smaller share of nonzeros are kept as rows of nonzeros.
_FEW = 1 / 8


def copied(data: Data, num_shards: int) -> Data:
    """Check a graph and copy the tensors that an unlearner keeps."""
    if not isinstance(data, Data):
        typed = isinstance(data, HeteroData)
        raise TypeError(
            f"'data' needs to be a Data object (got {type(data).__name__})"
            + ": give 'unit', a pyg_trust.unit.PrivacyUnit" * typed
        )
    data = with_edge_index(data)
    x, y, n = data.get('x'), data.get('y'), int(data.num_nodes or 0)
    if (
        not isinstance(x, Tensor)
        or x.dim() != 2
        or not x.is_floating_point()
        or x.size(0) != n
    ):
        raise ValueError(
            f"'data' needs to have features 'x' of the shape [{n}, "
            f'channels], floating point (got {kind_of(x)})'
        )
    x = kept_rows(x.detach().cpu())
    if not bool((x.values() if is_sparse(x) else x).isfinite().all()):
        raise ValueError("'x' needs to be finite")
    if isinstance(y, Tensor) and y.shape == (n, 1):
        y = y.view(-1)
    if not isinstance(y, Tensor) or y.shape != (n,) or y.dtype != torch.int64:
        raise ValueError(
            f"'data' needs to have labels 'y' of the shape [{n}], int64 "
            f'(got {kind_of(y)})'
        )
    index = training_nodes(data)
    check_shards(index.numel(), num_shards)
    missing = index[y[index] < 0]
    if missing.numel() > 0:
        raise ValueError(
            "'y' needs to hold a label for every training node (got "
            f'{int(y[missing[0]])} for node {int(missing[0])})'
        )
    for name in data.keys():  # noqa: SIM118
        if data.is_edge_attr(name) and name not in (
            'edge_index',
            'edge_weight',
        ):
            raise ValueError(
                f"'data' has '{name}', which models do not receive: of edge "
                "attributes they receive 'edge_weight' alone; take it out of "
                'the graph first'
            )
    edges, weight = checked_edges(data)
    kept = Data(
        x=x,
        edge_index=edges.clone(),
        y=y.cpu().clone(),
        n_id=_ids(data, n),
        num_nodes=n,
    )
    if weight is not None:
        kept.edge_weight = weight.clone()
    for name in MASKS:
        mask = data.get(name)
        if isinstance(mask, Tensor) and mask.shape == (n,):
            kept[name] = mask.cpu().clone()
    return kept


def checked_edges(data: Data) -> tuple[Tensor, Tensor | None]:
    """Check the edges and weights of a graph, and return them on the CPU."""
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    n, weight = check_num_nodes(data.num_nodes), data.get('edge_weight')
    edges = check_edges('edge_index', data.edge_index, n)
    if weight is None:
        return edges.cpu(), None
    check_weight('edge_weight', weight, edges.size(1))
    return edges.cpu(), weight.detach().cpu()


def other_graph(data: Any, own: Data) -> Data:
    """Check another graph for the models of one, and copy what they read."""
    if not isinstance(data, Data):
        raise TypeError(
            "'data' needs to be a Data object, another graph; for nodes of "
            'the present one call predict(nodes=[1, 2]) (got '
            f'{type(data).__name__})'
        )
    x, n = data.get('x'), int(data.num_nodes or 0)
    if isinstance(x, Tensor):
        x = x.to(own.x.dtype)
    check_tensor('data.x', x, own.x.dtype, (n, own.x.size(1)))
    edges, weight = checked_edges(data)
    if ('edge_weight' in own) != (weight is not None):
        raise ValueError(
            "'data' needs an 'edge_weight' if, and only if, the graph that "
            f'was fitted has one (got {kind_of(weight)})'
        )
    made = Data(x=x.detach().cpu(), edge_index=edges, num_nodes=n)
    if weight is not None:
        made.edge_weight = weight
    return made


def _ids(data: Data, n: int) -> Tensor:
    if data.get('n_id') is None:
        return torch.arange(n)
    ids = id_tensor('n_id', data.n_id)
    if ids.shape != (n,) or bool((ids < 0).any()) or ids.unique().numel() < n:
        raise ValueError(
            f"'n_id' needs to hold different non-negative ids, int64, [{n}]"
        )
    return ids.cpu()


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
    rows = inside.nonzero().view(-1)
    place = inside.cumsum(0) - 1
    kept = inside[data.edge_index].all(0)
    made = Data(
        x=select_rows(data.x, rows),
        edge_index=place[data.edge_index[:, kept]],
        y=data.y[rows],
        n_id=data.n_id[rows],
        num_nodes=rows.numel(),
    )
    if 'edge_weight' in data:
        made.edge_weight = data.edge_weight[kept]
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
    if count < _FEW * x.numel():
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


def without_features(data: Data) -> Data:
    """Return the graph with features of width 0."""
    light = copy.copy(data)
    light.x = torch.empty(int(data.num_nodes or 0), 0, dtype=data.x.dtype)
    return light


# Slices ######################################################################


def check_slices(slices: Any) -> Slices:
    """Check the shares and epochs of stages; return them as plain numbers."""
    plain = not isinstance(slices, str) and isinstance(slices, Sequence)
    made: list[tuple[float, int]] = []
    for pair in slices if plain else [None]:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(
                "'slices' needs to be a list of pairs of a share and a number "
                f'of epochs (got {slices!r})'
            )
        share = float(check_number('slices', pair[0]))
        made.append((share, check_integer('slices', pair[1], 1)))
    shares = [0.0, *(share for share, _ in made)]
    rising = all(a < b for a, b in itertools.pairwise(shares))
    if not rising or shares[-1] != 1:
        raise ValueError(
            "'slices' needs to have ascending shares in (0, 1], the last 1 "
            f'(got {list(slices)})'
        )
    return tuple(made)


def slice_numbers(n_id: Tensor, slices: Slices, seed: int) -> Tensor:
    """Compute the slice of every node, from 0, by a keyed hash of its id.

    It is the value of the hash that is cut, not its rank: so nobody changes
    slices when others are removed.
    """
    # The highest 53 bits: exact in float64, and always below one.
    value = (rng.derive_each(seed, n_id) >> 10).double() / 2**53
    shares = torch.tensor([share for share, _ in slices]).double()
    return torch.searchsorted(shares, value, right=True)


def touched_slices(
    data: Data, part: Part, slices: Slices, seed: int
) -> dict[int, int]:
    """Find, for each shard, the first slice that contains given items.

    A node belongs to its own slice, and an edge to the later one of its ends,
    if both are of one shard. Earlier stages have seen nothing of them.
    """
    number = slice_numbers(data.n_id, slices or ((1.0, 0),), seed)
    nodes = torch.tensor([*part.nodes, *part.features], dtype=torch.int64)
    rows = rows_of(data.n_id, nodes)
    shard, first = data.shard[rows], number[rows]
    if part.arcs:
        ends = torch.tensor(part.arcs, dtype=torch.int64).view(-1)
        one, two = rows_of(data.n_id, ends).view(-1, 2).t()
        same = data.shard[one] == data.shard[two]
        later = torch.maximum(number[one], number[two])
        shard = torch.cat([shard, data.shard[one][same]])
        first = torch.cat([first, later[same]])
    found: dict[int, int] = {}
    for home, at in zip(shard.tolist(), first.tolist(), strict=True):
        if home >= 0:
            found[home] = min(at, found.get(home, at))
    return found


# Arguments ###################################################################


def id_tensor(name: str, values: Any) -> Tensor:
    """Copy the ids of nodes to a tensor of integers."""
    try:
        ids = torch.as_tensor(values).clone().view(-1)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"'{name}' needs to hold integers (got {values!r})"
        ) from None
    whole = not (ids.is_floating_point() or ids.is_complex())
    # An empty list makes a tensor of floats.
    if ids.numel() > 0 and (ids.dtype == torch.bool or not whole):
        raise TypeError(f"'{name}' needs to hold integers (got {ids.dtype})")
    return ids.long()


def kind_of(value: Any) -> str:
    """Describe the type of a value for an error message."""
    if isinstance(value, Tensor):
        return f'{value.dtype} {list(value.shape)}'
    return type(value).__name__
