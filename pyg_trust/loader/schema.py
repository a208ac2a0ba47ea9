"""Typed batches as one graph: types, widths and made-up rows."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust.unit import EdgeType

_SEED = 0
# The most rows that a made-up subgraph has of a type.
_ROWS = 4
# Made-up subgraphs repeat after so many.
_PERIOD = 8
# The share of pairs that have an edge.
_EDGES = 0.6


class FlatBatch(Data):
    """A typed batch as one graph; those rows are of type 0 that a loss reads.

    Others of the same type have a ``node_type`` beyond those of all types.
    """

    @property
    def terms(self) -> Tensor:
        """Subgraph of each row that the loss reads, int64."""
        return self.batch[self.node_type == 0]


class Schema:
    r"""Types of rows and edges of typed batches, and widths of features.

    A typed batch is one graph for all code that keeps subgraphs apart: the
    rows of all types, those of :obj:`target` first, in one ``x`` that is
    filled up with zeros to the widest, with ``node_type``, ``edge_type`` and
    one ``batch``. :meth:`flat` makes it of a batch, :meth:`typed` a batch of
    it.

    Args:
        data (HeteroData): a typed graph or batch; its values are not used.
        target (str): the node type of labels and outputs.
        sizes (dict[str, int]): the number of rows of each table.
        several (bool): whether a subgraph may have several rows of
            :obj:`target`; those that the loss reads come first, as
            ``root_mask`` says.
        by_row (bool): whether the loss reads any number of them, and not one
            of each subgraph.
    """

    def __init__(
        self,
        data: HeteroData,
        target: str,
        sizes: dict[str, int],
        several: bool = False,
        by_row: bool = False,
    ) -> None:
        self.several, self.by_row = several or by_row, by_row
        rest = [t for t in data.node_types if t != target]
        self.target, self.node_types = target, [target, *rest]
        self.edge_types: list[EdgeType] = list(data.edge_types)
        self.widths: dict[str, int] = {}
        dtypes = set()
        for t in self.node_types:
            x = data[t].get('x')
            if (
                not isinstance(x, Tensor)
                or x.layout != torch.strided
                or x.dim() != 2
                or not x.is_floating_point()
            ):
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
        first = 0
        #: The number of the first row of each table among all rows.
        self.first: dict[str, int] = {}
        for t in self.node_types:
            self.first[t] = first
            first += sizes[t]
        self.num_rows = first

    def flat(self, batch: HeteroData) -> FlatBatch:
        """Return a typed batch as one graph; refuse one of other types."""
        out, first = FlatBatch(), 0
        parts: dict[str, list[Tensor]] = {}
        start = {}
        for k, t in enumerate(self.node_types):
            store = batch[t]
            n = len(store.n_id) if _is_rows(store.get('n_id')) else -1
            x = self._rows(t, store.get('x'), self.dtype, n, self.widths[t])
            n_id = self._rows(t, store.get('n_id'), torch.int64, n)
            owner = self._rows(t, store.get('batch'), torch.int64, n)
            start[t], first = first, first + len(x)
            kind = owner.new_full(owner.shape, k).int()
            if t == self.target and self.several:
                mask = self._rows(t, store.get('root_mask'), torch.bool, n)
                kind[~mask] = len(self.node_types)
            room = max(self.widths.values()) - self.widths[t]
            for name, value in (
                ('x', torch.nn.functional.pad(x, (0, room))),
                ('n_id', n_id + self.first[t]),
                ('batch', owner),
                ('node_type', kind),
            ):
                parts.setdefault(name, []).append(value)
        for k, e in enumerate(self.edge_types):
            edges = self._rows(e, batch[e].get('edge_index'), torch.int64, 2)
            sizes = [len(batch[t].n_id) for t in e[::2]]
            most = torch.tensor(sizes, device=edges.device)[:, None]
            if not bool(((edges >= 0) & (edges < most)).all()):
                self._refuse(e)
            ends = [edges[i] + start[t] for i, t in enumerate(e[::2])]
            kind = torch.full(ends[0].shape, k, dtype=torch.int32)
            parts.setdefault('edge_type', []).append(kind)
            parts.setdefault('edge_index', []).append(torch.stack(ends))
        for name, values in parts.items():
            out[name] = torch.cat(values, 1 if name == 'edge_index' else 0)
        if not self.edge_types:
            out.edge_index = torch.empty((2, 0), dtype=torch.int64)
            out.edge_type = torch.empty(0, dtype=torch.int32)
        out.num_nodes = first
        target = batch[self.target]
        out.input_id, out.batch_size = target.input_id, target.batch_size
        if self.y is not None:
            out.y = target.get('y')
            if (
                not _is_rows(out.y)
                or self.y != (list(out.y.shape[1:]), out.y.dtype)
                or len(out.y) != len(out.terms)
            ):
                self._refuse(self.target)
        return out

    def typed(self, flat: Data) -> HeteroData:
        """Return a batch of types from one graph; rows keep their order."""
        out, node_type = HeteroData(), flat.node_type
        # By index, as rows of all types may come in any order.
        rows = [(node_type == k).nonzero() for k in range(len(self.widths))]
        if self.several:
            more = (node_type == len(self.node_types)).nonzero()
            roots, rows[0] = len(rows[0]), torch.cat([rows[0], more])
        order = torch.cat(rows).view(-1)
        sizes = [len(each) for each in rows]
        made = [torch.arange(n, device=order.device) for n in sizes]
        place = torch.empty_like(order)
        place[order] = torch.cat(made)
        parts = {
            name: flat[name].index_select(0, order).split(sizes)
            for name in ('n_id', 'batch')
            if name in flat
        }
        for k, t in enumerate(self.node_types):
            store = out[t]
            if t == self.target and self.several:
                store.root_mask = made[k] < roots
            # A copy, of the width that this type has.
            store.x = flat.x.index_select(0, rows[k].view(-1))
            if self.widths[t] < flat.x.size(1):
                store.x = store.x[:, : self.widths[t]].contiguous()
            if 'n_id' in parts:
                store.n_id = parts['n_id'][k] - self.first[t]
            if 'batch' in parts:
                store.batch = parts['batch'][k]
        kinds = range(len(self.edge_types))
        edges = [(flat.edge_type == k).nonzero() for k in kinds]
        if edges:
            at = torch.cat(edges).view(-1)
            ends = place[flat.edge_index.index_select(1, at)]
            split = ends.split([len(each) for each in edges], 1)
            for e, pair in zip(self.edge_types, split, strict=True):
                out[e].edge_index = pair.contiguous()
        for name in ('y', 'input_id', 'batch_size'):
            if name in flat:
                out[self.target][name] = flat[name]
        return out

    def made(self, count: int) -> FlatBatch:
        """Make up a flat batch of so many subgraphs, without data.

        Each has a row of the target type, or up to five where there may be
        several, and up to four of every other, and edges between some. Of
        eight in a row, one has no edge, and one no row of each other type.
        With ``by_row``, the loss reads half of up to four rows.
        """
        single = not self.by_row
        generator = torch.Generator().manual_seed(_SEED)
        times = -(-count // _PERIOD)
        out, owners = HeteroData(), {}
        for k, t in enumerate(self.node_types):
            sizes = torch.ones(_PERIOD, dtype=torch.int64)
            if t != self.target or self.several:
                drawn = torch.randint(
                    _ROWS + 1, (_PERIOD,), generator=generator
                )
                # One subgraph has no such rows, another the most.
                drawn[1 + k % (_PERIOD - 2)] = 0
                drawn[0] = _ROWS
                sizes = drawn + sizes * (single and t == self.target)
            owners[t] = torch.arange(_PERIOD).repeat_interleave(sizes)
            shape = len(owners[t]), self.widths[t]
            x = torch.randn(shape, generator=generator).to(self.dtype)
            batch = _tiled(owners[t], _PERIOD, times)
            inside = batch < count
            out[t].x = x.repeat(times, 1)[inside]
            out[t].batch = batch[inside]
            out[t].n_id = torch.arange(len(out[t].x))
        for e in self.edge_types:
            source, target = owners[e[0]], owners[e[2]]
            # Some of the pairs of a subgraph; none of the last.
            pair = source.view(-1, 1) == target
            pair &= (source < _PERIOD - 1).view(-1, 1)
            pair &= torch.rand(pair.shape, generator=generator) < _EDGES
            ends = pair.nonzero().t()
            edges = torch.stack(
                [
                    _tiled(ends[0], len(source), times),
                    _tiled(ends[1], len(target), times),
                ]
            )
            out[e].edge_index = edges[:, edges[0] < len(out[e[0]].x)]
        store = out[self.target]
        mask = store.batch.diff(prepend=store.batch.new_tensor([-1])) > 0
        if not single:
            mask = torch.rand(len(store.x), generator=generator) < 0.5
        if self.several:
            store.root_mask = mask
        store.input_id, store.batch_size = torch.arange(count), int(mask.sum())
        if self.y is not None:
            rest, dtype = self.y
            store.y = torch.zeros(store.batch_size, *rest, dtype=dtype)
        # Rows in the order that a transform returns them in.
        return self.flat(self.typed(self.flat(out)))

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


def _tiled(values: Tensor, size: int, times: int) -> Tensor:
    # Several times, each of the next numbers.
    more = torch.arange(times).repeat_interleave(len(values)) * size
    return values.repeat(times) + more


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dim() > 0
    )
