"""Checks of arguments that are graphs: tensors, matrices and ``Data``."""

import copy
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.utils import to_edge_index

from pyg_trust._checks import (
    REAL,
    check_dtype,
    check_integer,
    check_range,
    check_tensor,
    is_finite,
)

SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def is_edge_index(graph: Any) -> bool:
    """Return whether a graph is a list of edges instead of a matrix."""
    return isinstance(graph, Tensor) and graph.layout not in SPARSE_LAYOUTS


def plain_index(name: str, index: Any, *shape: int | str) -> Tensor:
    """Return an index as a plain int64 tensor, of any type PyG takes.

    Its shape is ``[2, num_edges]``, if no other is given.
    """
    if isinstance(index, EdgeIndex):
        index = index.as_tensor()
    if isinstance(index, list | tuple | np.ndarray):
        try:
            array = np.asarray(index)
        except ValueError:
            raise ValueError(
                f"'{name}' needs rows of one length (got a ragged list)"
            ) from None
        if array.dtype.kind in 'iu' or not array.size:
            index = torch.from_numpy(array.astype(np.int64))
    if isinstance(index, Tensor) and index.dtype == torch.int32:
        index = index.long()
    check_tensor(name, index, torch.int64, shape or (2, 'num_edges'))
    return index


def check_graph(name: str, i: int, data: Any) -> None:
    """Check that an item of a list of graphs is one graph."""
    if isinstance(data, Batch) or not isinstance(data, Data):
        raise TypeError(
            f"'{name}' needs to hold homogeneous torch_geometric.data.Data "
            f'(got {type(data).__name__} at {i}); of a DataLoader, pass '
            'its .dataset'
        )


def list_graphs(name: str, graphs: Any) -> list[Data]:
    """List the graphs of a list, dataset, ``Subset``, ``Data`` or batch."""
    if isinstance(graphs, Batch):
        graphs = graphs.to_data_list()
    elif isinstance(graphs, Data):
        graphs = [graphs]
    elif hasattr(graphs, '__getitem__') and not isinstance(
        graphs, BaseData | Iterable
    ):
        # A Subset of torch.utils.data, as of random_split.
        graphs = [graphs[i] for i in range(len(graphs))]
    if not isinstance(graphs, Iterable) or isinstance(graphs, BaseData | str):
        raise TypeError(
            f"'{name}' needs to be a torch_geometric.data.Data, or a list of "
            f'them (got {type(graphs).__name__})'
        )
    listed = list(graphs)
    for i, data in enumerate(listed):
        check_graph(name, i, data)
    if not listed:
        raise ValueError(f"'{name}' needs to have at least one graph")
    return listed


def with_edge_index(data: Any) -> Any:
    """Return a graph with its edges as ``edge_index``, if it has ``adj_t``."""
    if not isinstance(data, Data | HeteroData):
        return data
    stores = [s for s in data.edge_stores if 'adj_t' in s]
    if all('edge_index' in s for s in stores):
        return data
    data = copy.copy(data)
    for store in data.edge_stores:
        if 'adj_t' in store and 'edge_index' not in store:
            adj_t = store.pop('adj_t')
            edge_index, weight = (
                (adj_t.coo()[:2], adj_t.storage.value())
                if hasattr(adj_t, 'coo')
                else to_edge_index(adj_t)
            )
            target, source = edge_index
            store.edge_index = torch.stack([source, target])
            # A matrix of torch has values in any case: ones are no weights.
            if weight is not None and (
                hasattr(adj_t, 'coo') or bool((weight != 1).any())
            ):
                store.edge_weight = weight
    return data


def check_edges(
    name: str,
    edge_index: Any,
    num_nodes: int | tuple[int, int],
    types: tuple[str, str] | None = None,
) -> Tensor:
    """Return edges as int64, ``[2, num_edges]``; refuse ends elsewhere."""
    edge_index = plain_index(name, edge_index)
    sizes = (num_nodes,) * 2 if isinstance(num_nodes, int) else num_nodes
    for k, size in enumerate(sizes):
        what = 'the nodes' if types is None else f'the rows of {types[k]!r}'
        check_range(f'{name}[{k}]', edge_index[k], size, what)
    return edge_index


def check_weight(name: str, weight: Tensor, num_edges: int) -> Tensor:
    """Return one finite weight per edge, also of a column, or refuse it."""
    check_dtype(name, weight, REAL)
    if weight.shape == (num_edges, 1):
        weight = weight.view(-1)
    if weight.shape != (num_edges,):
        raise ValueError(
            f"'{name}' needs to have the shape [{num_edges}], one weight per "
            f'edge (got {list(weight.shape)})'
        )
    if not bool(weight.isfinite().all()):
        raise ValueError(f"'{name}' needs to be finite (got NaN or infinity)")
    return weight


def check_num_nodes(num_nodes: int | None) -> int:
    """Refuse a missing or invalid number of nodes."""
    if num_nodes is None:
        raise ValueError(
            "'num_nodes' is needed with an 'edge_index', which cannot show "
            'isolated nodes'
        )
    if check_integer('num_nodes', num_nodes) < 1:
        raise ValueError(
            f"'num_nodes' needs to be at least 1 (got {num_nodes}): the graph "
            'is empty'
        )
    if num_nodes >= 2**31:
        raise ValueError(
            "'num_nodes' needs to be below 2**31, as the kernels index nodes "
            f'with 32 bits (got {num_nodes})'
        )
    return num_nodes


def check_real(name: str, dtype: torch.dtype) -> None:
    """Refuse any dtype but float32 and float64."""
    if dtype not in REAL:
        raise TypeError(
            f"'{name}' needs to be float32 or float64 (got {dtype}): "
            f'{name}.float()'
        )


def check_square(name: str, shape: Any) -> int:
    """Refuse a shape that is not square; return its number of nodes."""
    shape = tuple(shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"'{name}' needs to be a square matrix (got {list(shape)})"
        )
    return check_num_nodes(int(shape[0]))


def check_examples(data: Data, row: Tensor, col: Tensor, n: int) -> None:
    """Refuse labels of pairs but those of positive ones that are edges."""
    for name in ('edge_label', 'neg_edge_label'):
        label = data.get(name)
        if label is not None and bool((torch.as_tensor(label) == 0).any()):
            raise ValueError(
                f"'data' can't have an '{name}' of 0: those pairs were drawn "
                'until they were no edges, and negative pairs never look at '
                'edges here (RandomLinkSplit(add_negative_train_samples='
                'False))'
            )
    for name in ('edge_label_index', 'pos_edge_label_index'):
        pairs = data.get(name)
        if pairs is None:
            continue
        check_tensor(name, pairs, torch.int64, (2, 'num_pairs'))
        check_range(name, pairs, n, 'the nodes', private=True)
        u, w = pairs.cpu()
        if not bool(torch.isin(u * n + w, (row * n + col).cpu()).all()):
            raise ValueError(
                f"'{name}' needs to hold edges of 'edge_index' alone: an edge "
                'is a message and an example here '
                '(RandomLinkSplit(disjoint_train_ratio=0.0))'
            )


def warn_user(message: str) -> None:
    """Warn at the line of the user's code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals['__name__'].startswith(
        ('pyg_trust', 'torch_geometric')
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def warn_of_delta(delta: float | None, count: int, what: str) -> None:
    """Warn if a delta is so large that it guarantees nothing."""
    if delta is not None and delta >= 1 / max(count, 1):
        warn_user(
            f'delta={delta:g} is not below 1 / {count}: publishing all data '
            f'of one of the {count} {what}, drawn at random, would be '
            'allowed; choose a smaller delta'
        )


def warn_of_roots(input_nodes: Any, store: Any) -> None:
    """Warn if all nodes are trained on by default, despite a mask."""
    mask = store.get('train_mask')
    if input_nodes is not None or not isinstance(mask, Tensor):
        return
    if mask.dtype != torch.bool or not bool(mask.all()):
        warn_user(
            "'input_nodes' is not given, so that all nodes are trained on, "
            "also those outside of 'train_mask': pass "
            'input_nodes=data.train_mask, or data.subgraph(data.train_mask)'
        )


def warn_of_features(name: str, x: Any) -> None:
    """Warn of NaN, and of columns that are scaled over all rows.

    All columns, but binary ones, then have mean 0 and variance 1, or range
    from 0 to 1, and each row holds statistics of all others.
    """
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.dim() != 2:
        return
    if x.is_floating_point() and not is_finite(x):
        warn_user(
            f"'{name}' has NaN or infinite values: a unit whose gradient is "
            'not finite adds nothing, and predictions from such rows mean '
            'nothing; fill them in, or drop their rows'
        )
        return
    x = x[:, :64].detach().double()
    x = x[:, ((x != 0) & (x != 1)).any(0) & (x != x[:1]).any(0)]
    if x.numel() == 0:
        return
    near = 1e-4 + 1 / len(x)  # of the population or of a sample
    standard = x.mean(0).abs() <= 1e-4
    standard &= (x.var(0, correction=0) - 1).abs() <= near
    between = (x.amin(0) == 0) & (x.amax(0) == 1)
    for found, what in (
        (standard, 'mean 0 and variance 1'),
        (between, 'minimum 0 and maximum 1'),
    ):
        if bool(found.all()):
            warn_user(
                f"'{name}' seems to be scaled over all rows (columns have "
                f'{what}): each row then holds statistics of all others, '
                'which the guarantee does not cover; scale by public '
                'constants, or by a private estimate of them'
            )
