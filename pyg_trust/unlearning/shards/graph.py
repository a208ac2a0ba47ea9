"""Graphs of a sharded unlearner: node names, and shards of a request."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust.graph import CSRGraph
from pyg_trust.transforms.shards import training_nodes
from pyg_trust.unlearning.partition import check_shards
from pyg_trust.unlearning.shards.products import rows_of_nonzeros
from pyg_trust.unlearning.shards.training import Shard

MASKS = ('train_mask', 'val_mask', 'test_mask')


def copied(data: Data, num_shards: int, sparse_x: bool) -> Data:
    """Copy the tensors of a graph that an unlearner stores."""
    if not isinstance(data, Data):
        advice = ''
        if isinstance(data, HeteroData):
            advice = ": give 'unit', a pyg_trust.unit.PrivacyUnit"
        raise TypeError(
            f"'data' needs to be a Data object (got {type(data).__name__})"
            + advice
        )
    x, n = data.get('x'), int(data.num_nodes)
    if isinstance(x, Tensor):
        x = x.detach().cpu()
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
    if not bool(x.isfinite().all()):
        raise ValueError("'x' needs to be finite")
    y = data.get('y')
    if not isinstance(y, Tensor) or y.shape != (n,) or y.dtype != torch.int64:
        raise ValueError(
            f"'data' needs to have labels 'y' of the shape [{n}], int64 "
            f'(got {kind_of(y)})'
        )
    index = training_nodes(data)
    check_shards(index.numel(), num_shards)
    _check_edges(data, n)
    missing = index[y[index] < 0]
    if missing.numel() > 0:
        raise ValueError(
            "'y' needs to hold a label for every training node (got "
            f'{int(y[missing[0]])} for node {int(missing[0])})'
        )
    # Run its checks of the edges.
    CSRGraph.from_data(data, duplicates='keep')
    kept = Data(
        x=rows_of_nonzeros(x)
        if sparse_x
        else x.clone(memory_format=torch.contiguous_format),
        edge_index=data.edge_index.cpu().clone(),
        y=y.cpu().clone(),
        n_id=torch.arange(n),
        num_nodes=n,
    )
    weight = data.get('edge_weight')
    if weight is not None:
        kept.edge_weight = weight.detach().cpu().clone()
    for name in MASKS:
        mask = data.get(name)
        if isinstance(mask, Tensor) and mask.shape == (n,):
            kept[name] = mask.cpu().clone()
    n_id = data.get('n_id')
    if n_id is not None:
        if not isinstance(n_id, Tensor):
            raise TypeError(
                "'n_id' needs to be a tensor of names, int64, "
                f'[{n}] (got {type(n_id).__name__})'
            )
        if (
            n_id.shape != (n,)
            or n_id.dtype != torch.int64
            or bool((n_id < 0).any())
            or n_id.unique().numel() < n
        ):
            raise ValueError(
                "'n_id' needs to hold different non-negative names, "
                f'int64, [{n}]'
            )
        kept.n_id = n_id.cpu().clone()
    return kept


def _check_edges(data: Data, num_nodes: int) -> None:
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


def without_features(data: Data) -> Data:
    """Return the graph with features of width 0."""
    light = copy.copy(data)
    n = int(data.num_nodes)
    light.x = torch.empty(n, 0, dtype=data.x.dtype)
    return light


def as_shard(part: Data, seed: int) -> Shard:
    """Convert a graph to the training data of a shard's model."""
    return Shard(
        seed,
        part.x,
        part.y,
        part.edge_index,
        part.get('edge_weight'),
        typed=part.get('typed'),
    )


def name_tensor(name: str, values: Any) -> Tensor:
    """Copy the names of nodes to a tensor of integers."""
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
