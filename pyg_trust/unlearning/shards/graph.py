"""The graph that a sharded unlearner keeps: checks, rows, and their order."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.transforms.shards import training_nodes
from pyg_trust.unlearning.partition import check_shards

MASKS = ('train_mask', 'val_mask', 'test_mask')
# Features that are kept as rows of nonzeros have fewer of them.
_FEW = 1 / 8


def copied(data: Data, num_shards: int) -> Data:
    """Copy the tensors of a graph that an unlearner stores, sorted by id.

    Args:
        data (Data): the user's graph.
        num_shards (int): the least number of training nodes.
    """
    if not isinstance(data, Data):
        advice = ''
        if isinstance(data, HeteroData):
            advice = ": give 'unit', a pyg_trust.unit.PrivacyUnit"
        raise TypeError(
            f"'data' needs to be a Data object (got {type(data).__name__})"
            + advice
        )
    x, n = data.get('x'), int(data.num_nodes)
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
    x = x.detach().cpu()
    if not bool((x.values() if is_sparse(x) else x).isfinite().all()):
        raise ValueError("'x' needs to be finite")
    y = data.get('y')
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
    kept = Data(
        x=kept_rows(x),
        edge_index=_edges(data),
        y=y.cpu().clone(),
        n_id=_names(data, n),
        num_nodes=n,
    )
    weight = data.get('edge_weight')
    if weight is not None:
        kept.edge_weight = weight.detach().cpu().clone()
    for name in MASKS:
        mask = data.get(name)
        if isinstance(mask, Tensor) and mask.shape == (n,):
            kept[name] = mask.cpu().clone()
    return kept


def _edges(data: Data) -> Tensor:
    if data.get('edge_index') is None:
        also = ' (got adj_t)' if data.get('adj_t') is not None else ''
        raise ValueError(f"'data' needs to have an 'edge_index'{also}")
    known = ('edge_index', 'edge_weight')
    for name in data.keys():  # noqa: SIM118
        if data.is_edge_attr(name) and name not in known:
            raise ValueError(
                f"'data' has '{name}', which models do not receive: of edge "
                "attributes they receive 'edge_weight' alone; take it out of "
                'the graph first'
            )
    # Run its checks of the edges.
    CSRGraph.from_data(data, duplicates='keep')
    edges = data.edge_index
    if isinstance(edges, EdgeIndex):
        edges = edges.as_tensor()
    return edges.cpu().long().clone()


def _names(data: Data, n: int) -> Tensor:
    n_id = data.get('n_id')
    if n_id is None:
        return torch.arange(n)
    names = name_tensor('n_id', n_id)
    if (
        names.shape != (n,)
        or bool((names < 0).any())
        or names.unique().numel() < n
    ):
        raise ValueError(
            f"'n_id' needs to hold different non-negative ids, int64, [{n}]"
        )
    return names.cpu()


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

    So bits depend on the present data alone, not on their order or history.

    Args:
        data (Data): the graph, with ``n_id``; returned as it is if it is
            sorted.
    """
    if is_canonical(data):
        return data
    made = copy.copy(data)
    n, order = int(data.num_nodes), data.n_id.argsort()
    for key, value in data:
        if key not in ('x', 'edge_index', 'edge_weight', 'num_nodes'):
            made[key] = value[order]
    if not torch.equal(order, torch.arange(n)):
        made.x = select_rows(data.x, order)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(n))
    made.edge_index = place[data.edge_index]
    weight = data.get('edge_weight')
    first = torch.arange(made.edge_index.size(1))
    if weight is not None:
        first = weight.argsort(stable=True)
    keys = made.edge_index[0] * n + made.edge_index[1]
    order = first[keys[first].argsort(stable=True)]
    made.edge_index = made.edge_index[:, order]
    if weight is not None:
        made.edge_weight = weight[order]
    return made


def is_canonical(data: Data) -> bool:
    """Test whether nodes and edges are sorted by id."""
    row, col = data.edge_index
    steps = (row * int(data.num_nodes) + col).diff()
    weight = data.get('edge_weight')
    ties = weight is not None and bool(
        ((steps == 0) & (weight.diff() < 0)).any()
    )
    sorted_rows = bool((data.n_id.diff() > 0).all())
    return sorted_rows and bool((steps >= 0).all()) and not ties


def induced(data: Data, inside: Tensor) -> Data:
    """Return the subgraph of some nodes, with what models receive.

    Args:
        data (Data): the graph.
        inside (Tensor): bool, ``[num_nodes]``.
    """
    rows = inside.nonzero().view(-1)
    place = torch.full(inside.shape, -1)
    place[rows] = torch.arange(rows.numel())
    ends = place[data.edge_index]
    kept = (ends >= 0).all(0)
    made = Data(
        x=select_rows(data.x, rows),
        edge_index=ends[:, kept],
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
    """Convert features to a CSR matrix with 32-bit indices.

    Args:
        x (Tensor): ``[num_nodes, channels]``, dense or CSR.
    """
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
    start = (width * torch.arange(n)).repeat_interleave(ptr.diff())
    value = flat.index_select(0, at)
    return sparse_rows(ptr.int(), (at - start).int(), value, (n, width))


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Copy some rows of features.

    Args:
        x (Tensor): ``[num_nodes, channels]``, dense or CSR.
        index (Tensor): int64, ``[num_rows]``.
    """
    if not is_sparse(x):
        return x[index]
    ptr = x.crow_indices().long()
    count = (ptr[1:] - ptr[:-1])[index]
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
    light.x = torch.empty(int(data.num_nodes), 0, dtype=data.x.dtype)
    return light


# Arguments ###################################################################


def name_tensor(name: str, values: Any) -> Tensor:
    """Copy the ids of nodes to a tensor of integers."""
    try:
        names = torch.as_tensor(values).clone().view(-1)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"'{name}' needs to hold integers (got {values!r})"
        ) from None
    whole = not (names.is_floating_point() or names.is_complex())
    # An empty list makes a tensor of floats.
    if names.numel() > 0 and (names.dtype == torch.bool or not whole):
        raise TypeError(f"'{name}' needs to hold integers (got {names.dtype})")
    return names.long()


def kind_of(value: Any) -> str:
    """Describe the type of a value for an error message."""
    if isinstance(value, Tensor):
        return f'{value.dtype} {list(value.shape)}'
    return type(value).__name__
