"""Check that private rows reach a model only as rows of its batch.

A model is probed on random rows (:mod:`pyg_trust.privacy.validation`). What it
looks up elsewhere escapes that: in a buffer with the features of all nodes, by
their names (``n_id``) or their places in the batch, or in what a transform of
the loader writes into the batch. Here each of these ways is tried.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust.graph.ragged import pointer
from pyg_trust.loader.schema import FlatBatch
from pyg_trust.privacy.draws import DrawsBySubgraph, NoDropout
from pyg_trust.privacy.flow import is_structure
from pyg_trust.privacy.validation import (
    SEED,
    Forward,
    features_of,
    in_training,
    other_rows,
    randomised,
    same,
)

_NAMES = ('n_id', 'e_id', 'input_id')
_DEPTH = 4


def check_tables(
    module: nn.Module,
    num_nodes: int | None,
    public: Sequence[str] = (),
    data: Data | None = None,
    num_units: int = 1,
) -> None:
    """Refuse tensors of a model, or of each batch, with all nodes' entries.

    Args:
        module (torch.nn.Module): the model.
        num_nodes (int, optional): the graph's number of nodes; None if it is
            private, and no refusal may depend on it.
        public (Sequence[str]): the buffers, frozen parameters and attributes,
            of the model or the data, that hold nothing private.
            (default: :obj:`()`)
        data (Data, optional): the graph. (default: :obj:`None`)
        num_units (int): the number of units whose private data may be in what
            each batch holds whole. (default: :obj:`1`)

    Raises:
        ValueError: if a buffer, a frozen parameter or an attribute has a
            dimension of this length, each batch has as many numbers as there
            are units that are no rows, or a name is not there.
    """
    if isinstance(public, str) or not isinstance(public, Sequence):
        raise TypeError(
            "'public' needs to be a list of names (got "
            f'{type(public).__name__})'
        )
    found = dict(tables_of(module))
    whole = {} if data is None else dict(_whole(data))
    unknown = [name for name in public if name not in {**found, **whole}]
    if unknown:
        raise ValueError(
            "'public' needs to hold names of buffers, frozen parameters or "
            f"attributes of 'module' that are tensors, or of what 'data' has "
            f'that are no rows (got {unknown})'
        )
    large = [
        name
        for name, count in whole.items()
        if count >= max(2, num_units) and name not in public
    ]
    if large and num_nodes is not None:
        raise ValueError(
            "'data' needs to have a row for each node or edge in what a model "
            f'or a loss may read, but {large} may hold rows of all of its '
            f'{num_nodes} nodes in another form: each batch has that whole, '
            'and nobody clips it. Take it out of the data, or name what is '
            f"public with 'public={large}'"
        )
    tables = [
        name
        for name, value in found.items()
        if num_nodes in tuple(value.shape) and name not in public
    ]
    if tables and num_nodes is not None and num_nodes > 1:
        raise ValueError(
            f"'module' needs to be without data of the graph's {num_nodes} "
            f'nodes, but {tables} may be: rows that it looks up are in no '
            'subgraph, and nobody clips them. Put features into the data, or '
            f"name what is public with 'public={tables}'"
        )


def _whole(data: Data) -> Iterator[tuple[str, int]]:
    # Attributes that each batch holds whole, with their numbers of entries.
    n = data.num_nodes
    sizes = n, data.num_edges
    for name, value in data.to_dict().items():
        rows = data.is_node_attr(name) or data.is_edge_attr(name)
        if isinstance(value, Tensor):
            places = not value.is_floating_point() and is_structure(name)
            sparse = value.layout != torch.strided and value.shape == (n, n)
            if places or sparse or value.dim() == 0:
                continue
            # PyG has columns of nodes where a name says 'index'.
            rows = rows and value.size(0) in sizes
        if not rows:
            yield name, _count(value)


def _count(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(_count, value))
    if isinstance(value, Data):
        return _count(value.to_dict())
    return int(isinstance(value, bool | int | float | str))


def check_names(
    module: nn.Module,
    call: Forward,
    batch: Data,
    owner: Tensor,
    public: Sequence[str] = (),
) -> None:
    """Refuse a model whose outputs depend on node ids or positions.

    On random rows, outputs have to be the same if nodes are called otherwise
    (``n_id``, ``e_id``, ``input_id``), and move with the subgraphs if these
    come in another order. What is declared public is blanked before.

    Args:
        module (torch.nn.Module): the model.
        call (callable): calls it with a batch.
        batch (Data): a batch.
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        public (Sequence[str]): as in :func:`check_tables`.
            (default: :obj:`()`)

    Raises:
        ValueError: if outputs depend on ids or positions.
    """
    generator = torch.Generator().manual_seed(SEED)
    base = randomised(batch, features_of(batch, owner.numel()), generator)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        probe, base, tolerance = _precise(module, call, base)
        for name, value in tables_of(probe):
            if name in public and isinstance(value, Tensor):
                value.detach().zero_()
        count = int(owner.max()) + 1
        units = torch.arange(count, device=owner.device)
        out = _alike(probe, call, base, owner, units)
        renamed = _renamed(base, generator)
        found = _alike(probe, call, renamed, owner, units)
        if not same(out, found):
            _by_name("the names of nodes ('n_id')")
        order, units = _other_order(owner, count)
        moved, owners = _moved(base, owner, order, units)
        found = _alike(probe, call, moved, owners, units)
        if isinstance(base, FlatBatch):
            at = (base.node_type == 0).cumsum(0) - 1
            want = out[at[order[base.node_type[order] == 0]]]
        else:
            want = out[order] if len(out) == len(owner) else out[units]
        error = (
            (found - want).abs().max() if found.numel() else out.new_zeros(())
        )
        if not error <= tolerance * max(1.0, float(out.abs().max())):
            _by_name('the places of nodes in the batch')


def check_transform(
    transform: Any, batch: Data, by_unit: bool = False
) -> None:
    """Test that a loader's transform works on each subgraph by itself.

    Args:
        transform (callable, optional): the loader's transform.
        batch (Data): a batch before it was transformed.
        by_unit (bool): whether features of edges, and labels of subgraphs,
            are private as well. (default: :obj:`False`)

    Raises:
        ValueError: if something that is of one subgraph, or of none, changes
            with the rows of others, or floating-point values change with the
            names of nodes.
    """
    if transform is None:
        return
    owner, count = batch.batch, int(batch.batch.max()) + 1
    generator = torch.Generator().manual_seed(SEED)
    names = features_of(batch, owner.numel())
    if isinstance(batch.get('y'), Tensor) and batch.is_node_attr('y'):
        names.both = [*dict.fromkeys([*names.both, 'y'])]
    base = randomised(batch, names, generator)

    def run(given: Data) -> Data:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return transform(copy.copy(given).clone())

    first = run(base)
    for trial in range(3 if count > 1 else 0):
        half = torch.randperm(count, generator=generator) < count // 2
        value = (None, None, 1e4)[trial]
        mine = half[owner]
        other = other_rows(batch, base, names, generator, mine, value)
        if by_unit:
            _change_units(other, base, owner, half, generator)
        second = run(other)
        for name in dict.fromkeys([*first.keys(), *second.keys()]):
            one, two = first.get(name), second.get(name)
            rows = _rows_of(first, name, one, owner, count)
            public = not by_unit and is_structure(name)
            if public and _is_tensor(one) and name != 'edge_index':
                rows = None
            if rows is not None and _is_tensor(two) and len(two) == len(rows):
                one, two = one[half[rows]], two[half[rows]]
            if not _equal(one, two):
                raise ValueError(
                    "'transform' of 'data_loader' needs to treat subgraphs "
                    f"apart, but the '{name}' of one changes with the rows of "
                    'others (row-wise scaling is fine; standardisation, PCA '
                    'and propagation are not)'
                )
    second = run(_renamed(base, generator))
    for name, one in first.to_dict().items():
        is_feature = _is_tensor(one) and one.is_floating_point()
        if is_feature and not _equal(one, second.get(name)):
            raise ValueError(
                "'transform' of 'data_loader' needs to work on the rows of "
                f"the batch, but '{name}' changes with the names of nodes "
                "('n_id'): rows that it looks up by name can't be checked. "
                "Put them into the loader's 'data'"
            )


def _change_units(
    other: Data,
    base: Data,
    owner: Tensor,
    half: Tensor,
    generator: torch.Generator,
) -> None:
    # Change attributes of other subgraphs besides rows of nodes.
    for name, value in base.to_dict().items():
        rows = _rows_of(base, name, value, owner, len(half))
        kept = (*_NAMES, 'ptr', 'edge_type')
        if rows is None or rows is owner or name in kept:
            continue
        drawn = value[torch.randperm(len(value), generator=generator)]
        if value.is_floating_point():
            drawn = torch.randn(value.shape, generator=generator).to(value)
        elif torch.equal(drawn, value):
            # Labels that were made up are all alike.
            drawn = (value == 0).to(value)
        mine = half[rows].view(-1, *[1] * (value.dim() - 1))
        other[name] = torch.where(mine, value, drawn)


def _renamed(batch: Data, generator: torch.Generator) -> Data:
    out = batch.clone()
    for name, value in _names(batch):
        other = torch.randint(
            int(value.max()) + 1, value.shape, generator=generator
        )
        out[name] = other.to(value)
    return out


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.layout != two.layout:
            return False
        if one.layout != torch.strided:
            one, two = one.to_dense(), two.to_dense()
        return same(one, two)
    if isinstance(one, int | float | str | bool | None):
        return bool(one == two)
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return np.array_equal(one, two)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(
            _equal(value, two[key]) for key, value in one.items()
        )
    return type(one) is type(two)


def _rows_of(
    batch: Data, name: str, value: Any, owner: Tensor, count: int
) -> Tensor | None:
    # The subgraph of each row of an attribute.
    if not _is_tensor(value) or value.dim() == 0:
        return None
    if name == 'y' and isinstance(batch, FlatBatch):
        return batch.terms
    edges = batch.get('edge_index')
    if batch.is_node_attr(name) and len(value) == len(owner):
        return owner
    if (
        batch.is_edge_attr(name)
        and _is_tensor(edges)
        and edges.numel()
        and len(value) == edges.size(1)
    ):
        return owner[edges[0]]
    if len(value) == count:
        return torch.arange(count, device=owner.device)
    return None


def _by_name(what: str) -> None:
    raise ValueError(
        "'module' needs to compute its output from the rows of the batch, but "
        f'it changes with {what} while these stay: rows that it looks up are '
        'in no subgraph, and nobody clips them. Put features into the data, '
        "or name the table with 'public' if it holds nothing private"
    )


def tables_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a model that are not trained, with their names."""
    for name, value in module.named_buffers(remove_duplicate=False):
        yield name, value
    for name, value in module.named_parameters(remove_duplicate=False):
        if not value.requires_grad:
            yield name, value
    for prefix, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name.startswith('_') and name in nn.Module().__dict__:
                continue
            path = f'{prefix}.{name}' if prefix else name
            yield from _arrays(path, value, _DEPTH)


def _arrays(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | np.ndarray):
        if not isinstance(value, nn.Parameter):
            yield path, value
    elif depth == 0:
        return
    elif isinstance(value, Data):
        yield from _arrays(path, value.to_dict(), depth - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _arrays(f'{path}.{key}', item, depth - 1)
    elif isinstance(value, list | tuple | set):
        for key, item in enumerate(value):
            yield from _arrays(f'{path}.{key}', item, depth - 1)
    elif hasattr(value, '__dict__') and not callable(value):
        yield from _arrays(path, vars(value), depth - 1)


def _precise(
    module: nn.Module, call: Forward, base: Data
) -> tuple[nn.Module, Data, float]:
    # A copy in double precision, if it works in that.
    hooks = module._forward_pre_hooks, module._forward_hooks
    memo: dict[int, Any] = {id(hook): type(hook)() for hook in hooks}
    probe = copy.deepcopy(module, memo)
    fine = base.clone()
    for name, value in base.to_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point():
            fine[name] = value.double()
    try:
        probe.double()
        with in_training(probe, {}), torch.no_grad():
            call(probe, fine)
    except (RuntimeError, TypeError, ValueError):
        memo = {id(hook): type(hook)() for hook in hooks}
        return copy.deepcopy(module, memo), base, 1e-4
    return probe, fine, 1e-9


def _alike(
    module: nn.Module,
    call: Forward,
    batch: Data,
    owner: Tensor,
    units: Tensor,
) -> Tensor:
    # With the random numbers that each subgraph has, wherever it is.
    edges = batch.get('edge_index')
    of_edge = owner[edges[0]] if _is_tensor(edges) else None
    draws = DrawsBySubgraph(owner, of_edge, units.tolist(), SEED)
    with in_training(module, {}), torch.no_grad(), NoDropout(), draws:
        return call(module, batch)


def _names(batch: Data) -> Iterator[tuple[str, Tensor]]:
    # Names, and what is a copy of them.
    n_id = batch.get('n_id')
    for name, value in batch.to_dict().items():
        if not isinstance(value, Tensor) or value.numel() == 0:
            continue
        is_copy = (
            isinstance(n_id, Tensor)
            and value.shape == n_id.shape
            and not value.is_floating_point()
            and value.dtype != torch.bool
            and torch.equal(value, n_id.to(value.dtype))
            and name not in ('batch', 'y')
        )
        if name in _NAMES or is_copy:
            yield name, value


def _other_order(owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # The nodes, and the subgraphs, with the last subgraph first: roots stay
    # in front if they were.
    units = torch.arange(count, device=owner.device)
    key = count - 1 - owner
    if torch.equal(owner[:count], units):
        key = key + count * (
            torch.arange(len(owner), device=owner.device) >= count
        )
    return key.argsort(stable=True), units.flip(0)


def _moved(
    batch: Data, owner: Tensor, order: Tensor, units: Tensor
) -> tuple[Data, Tensor]:
    out = batch.clone()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    owners = (len(units) - 1 - owner)[order]
    edges = batch.get('edge_index')
    sort = None
    if _is_tensor(edges) and bool((edges[1].diff() >= 0).all()):
        sort = place[edges[1]].argsort(stable=True)
    for name, value in batch.to_dict().items():
        if hasattr(value, 'coo') and hasattr(value, 'index_select'):
            out[name] = value.index_select(0, order).index_select(1, order)
        elif not isinstance(value, Tensor) or value.dim() == 0:
            continue
        elif value.layout != torch.strided:
            coo = value.to_sparse_coo().coalesce()
            turned = torch.sparse_coo_tensor(
                place[coo.indices()], coo.values(), coo.shape
            ).coalesce()
            if value.layout == torch.sparse_csr:
                turned = turned.to_sparse_csr()
            elif value.layout == torch.sparse_csc:
                turned = turned.to_sparse_csc()
            out[name] = turned
        elif name == 'batch':
            out[name] = owners
        elif name == 'ptr':
            out[name] = pointer(owners.bincount(minlength=len(units)))
        elif 'index' in name and value.dim() == 2 and len(value) == 2:
            value = place[value]
            out[name] = value if sort is None else value[:, sort]
        elif batch.is_node_attr(name) and len(value) == len(owner):
            out[name] = value[order]
        elif batch.is_edge_attr(name):
            out[name] = value if sort is None else value[sort]
        elif len(value) == len(units):
            out[name] = value[units]
    return out, owners
