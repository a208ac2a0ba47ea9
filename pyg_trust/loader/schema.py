"""Typed batches as one graph: types, widths and made-up rows."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust.unit import EdgeType

_SEED = 0
# How many subgraphs are made up, the most rows of a type that one has, and
# the share of pairs that have an edge.
MADE, _ROWS, _EDGES = 8, 4, 0.6


class FlatBatch(Data):
    """A typed batch as one graph; those rows are of type 0 that a loss reads.

    Others of the same type have the ``node_type`` after all types.
    """

    @property
    def terms(self) -> Tensor:
        """Subgraph of each row that the loss reads, int64."""
        return self.batch[self.node_type == 0]


class Schema:
    """Types of rows and edges of typed batches, and widths of features.

    :meth:`flat` makes one graph of a typed batch: the rows of all types, those
    of :obj:`target` first, in one ``x`` that is filled up with zeros to the
    widest, with ``node_type``, ``edge_type`` and one ``batch``.

    Args:
        data (HeteroData): a typed graph or batch; its values are not used.
        target (str): the node type of labels and outputs.
        several (bool): whether a subgraph may have several rows of
            :obj:`target`; those of ``root_mask``, which the loss reads, come
            first.
        by_row (bool): whether the loss reads any number of them.
    """

    def __init__(
        self,
        data: HeteroData,
        target: str,
        several: bool = False,
        by_row: bool = False,
    ) -> None:
        self.several, self.by_row = several or by_row, by_row
        self.target = target
        self.node_types = sorted(data.node_types, key=lambda t: t != target)
        self.edge_types: list[EdgeType] = list(data.edge_types)
        dtypes, self.widths = set(), {}
        for t in self.node_types:
            x = data[t].get('x')
            if not _is_rows(x) or x.dim() != 2 or not x.is_floating_point():
                raise ValueError(
                    f"'data' needs features 'x' of {t!r}, floating point, "
                    f'[num_rows, num_columns] (got {type(x).__name__})'
                )
            self.widths[t] = x.size(1)
            dtypes.add(x.dtype)
        if len(dtypes) > 1:
            raise ValueError(
                "'data' needs features 'x' of one floating-point type (got "
                f'{sorted(map(str, dtypes))})'
            )
        self.dtype = dtypes.pop()
        y = data[target].get('y')
        self.y = (list(y.shape[1:]), y.dtype) if _is_rows(y) else None

    def flat(self, batch: HeteroData) -> FlatBatch:
        """Return a typed batch as one graph; refuse one of other types."""
        out, parts, start, size = FlatBatch(), [], {}, {}
        widest, first = max(self.widths.values()), 0
        for k, t in enumerate(self.node_types):
            store, width = batch[t], self.widths[t]
            n = size[t] = len(store.get('n_id', ()))
            x = self._rows(t, store.get('x'), self.dtype, n, width)
            kind = torch.full((n,), k, dtype=torch.int32, device=x.device)
            if t == self.target and self.several:
                mask = self._rows(t, store.get('root_mask'), torch.bool, n)
                kind[~mask] = len(self.node_types)
            ids = (
                self._rows(t, store.get(name), torch.int64, n)
                for name in ('n_id', 'batch')
            )
            x = torch.nn.functional.pad(x, (0, widest - width))
            parts.append((x, kind, *ids))
            start[t], first = first, first + n
        names = ('x', 'node_type', 'n_id', 'batch')
        for name, values in zip(names, zip(*parts, strict=True), strict=True):
            out[name] = torch.cat(values)
        ends = [torch.empty((2, 0), dtype=torch.int64)]
        for e in self.edge_types:
            edges = self._rows(e, batch[e].get('edge_index'), torch.int64, 2)
            most, shift = (
                torch.tensor([[of[e[0]]], [of[e[2]]]], device=edges.device)
                for of in (size, start)
            )
            if not bool(((edges >= 0) & (edges < most)).all()):
                self._refuse(e)
            ends.append(edges + shift)
        sizes = torch.tensor([index.size(1) for index in ends[1:]])
        kinds = torch.arange(len(sizes), dtype=torch.int32)
        out.edge_type = kinds.repeat_interleave(sizes)
        out.edge_index, out.num_nodes = torch.cat(ends, 1), first
        store = batch[self.target]
        out.input_id, out.batch_size = store.input_id, store.batch_size
        if self.y is not None:
            rest, dtype = self.y
            y, n = store.get('y'), len(out.terms)
            out.y = self._rows(self.target, y, dtype, n, *rest)
        return out

    def typed(self, flat: Data) -> HeteroData:
        """Return a copy of one graph as a batch of types."""
        out, k = HeteroData(), len(self.node_types)
        kind = flat.node_type % k
        sizes = kind.bincount(minlength=k).tolist()
        start = dict(zip(self.node_types, sizes, strict=True))
        first = 0
        for t, size in start.items():
            start[t], here = first, slice(first, first + size)
            first += size
            out[t].x = flat.x[here, : self.widths[t]].clone()
            for name in ('n_id', 'batch'):
                if name in flat:
                    out[t][name] = flat[name][here].clone()
            if t == self.target and self.several:
                out[t].root_mask = flat.node_type[here] == 0
        count = flat.edge_type.bincount(minlength=len(self.edge_types))
        split = flat.edge_index.split(count.tolist(), 1)
        for e, ends in zip(self.edge_types, split, strict=True):
            shift = ends.new_tensor([[start[e[0]]], [start[e[2]]]])
            out[e].edge_index = ends - shift
        for name in ('y', 'input_id', 'batch_size'):
            if name in flat:
                out[self.target][name] = flat[name]
        return out

    def made(self) -> FlatBatch:
        """Make up a flat batch of eight subgraphs of different sizes.

        One has no edge, one the most rows, and one no row of each other type.
        """
        generator = torch.Generator().manual_seed(_SEED)
        out = HeteroData()
        for k, t in enumerate(self.node_types):
            sizes = torch.ones(MADE, dtype=torch.int64)
            if t != self.target or self.several:
                drawn = torch.randint(_ROWS + 1, (MADE,), generator=generator)
                # One subgraph has no such rows, another the most.
                drawn[1 + k % (MADE - 2)], drawn[0] = 0, _ROWS
                single = t == self.target and not self.by_row
                sizes = drawn + sizes * single
            store = out[t]
            store.batch = torch.arange(MADE).repeat_interleave(sizes)
            store.n_id = torch.arange(len(store.batch))
            shape = len(store.batch), self.widths[t]
            store.x = torch.randn(shape, generator=generator).to(self.dtype)
        store = out[self.target]
        first = store.batch.diff(prepend=store.batch.new_tensor([-1])) > 0
        if self.by_row:
            first = torch.rand(len(store.x), generator=generator) < 0.5
        # Rows that the loss reads come first.
        order = (~first).long().argsort(stable=True)
        store.batch, first = store.batch[order], first[order]
        if self.several:
            store.root_mask = first
        for e in self.edge_types:
            source, target = out[e[0]].batch, out[e[2]].batch
            # Some of the pairs of a subgraph; none of the last.
            pair = source.view(-1, 1) == target
            pair &= (source < MADE - 1).view(-1, 1)
            pair &= torch.rand(pair.shape, generator=generator) < _EDGES
            out[e].edge_index = pair.nonzero().t().contiguous()
        store.input_id, store.batch_size = torch.arange(MADE), int(first.sum())
        if self.y is not None:
            rest, dtype = self.y
            store.y = torch.zeros(store.batch_size, *rest, dtype=dtype)
        return self.flat(out)

    def _rows(
        self, where: Any, value: Any, dtype: torch.dtype, n: int, *width: int
    ) -> Tensor:
        # A tensor of so many rows, of this type.
        if (
            not _is_rows(value)
            or value.dtype != dtype
            or len(value) != n
            or (width and value.shape != (n, *width))
        ):
            self._refuse(where)
        return value

    def _refuse(self, where: Any) -> None:
        raise ValueError(
            f"'transform' needs to return {where!r} in each batch with 'x' of "
            "one width and type, 'n_id' and 'batch' of as many rows, and "
            "'edge_index' between these"
        )


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dim() > 0
    )
