"""Batches of graphs for scattering, and their blocks."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import (
    Count,
    Natural,
    check_dtype,
    check_instance,
    validated,
)
from pyg_trust.agp.checks import check_finite_signal, check_signal
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.scattering.wavelets import WAVELETS

# A multiplication in a batched dense product costs a sixth of one in a sparse
# product, and a call costs as much as 20,000 of the latter
# (benchmarks/scattering.py --tune).
_DENSE_COST = 1 / 6
_CALL_COST = 20_000
# Nodes of a sparse block and numbers in the last layer of a dense block: both
# keep a block's signals in the cache.
_SPARSE_NODES = 2048
_DENSE_NUMBERS = 2**18


@validated
def num_paths(J: Count, L: Natural) -> int:
    r"""Count the nodes :math:`T = \sum_{l < L} J^l` of the tree."""
    return sum(J**layer for layer in range(L))


class Batch(NamedTuple):
    """Checked batch: its graph, where its graphs start, and its features.

    These are entries (node, slot, value), without zeros, where the slot counts
    the active columns of each graph. A pair is a graph and an active column.
    """

    graph: CSRGraph
    row: Tensor
    weight: Tensor
    ptr: Tensor
    size: Tensor
    edges: Tensor
    entry_ptr: Tensor
    node: Tensor
    slot: Tensor
    value: Tensor
    active: Tensor
    first: Tensor
    pair_graph: Tensor
    pair_column: Tensor

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return self.size.numel()

    @classmethod
    def make(
        cls, graph: CSRGraph, x: Tensor, ptr: Tensor | None, wavelet: str
    ) -> 'Batch':
        """Check a graph and its features and make a batch of them."""
        check_features(graph, x)
        n = graph.num_nodes
        ptr = _check_ptr(graph, ptr)
        size = ptr.diff()
        owner = torch.arange(size.numel(), device=ptr.device)
        owner = owner.repeat_interleave(size)
        row = graph.row
        if bool((row == graph.col).any()):
            raise ValueError(
                "'graph' needs to have no self-loops: the lazy walk has its "
                'own'
            )
        if size.numel() > 1 and bool((owner[row] != owner[graph.col]).any()):
            raise ValueError("'graph' has edges between the parts of 'ptr'")
        if (
            WAVELETS[wavelet].exponents == (0.5, 0.5)
            and not graph.is_undirected
        ):
            raise ValueError(
                f"'graph' needs to be undirected for the bank {wavelet!r}: "
                'make it so with torch_geometric.transforms.ToUndirected, or '
                "choose 'geometric'"
            )
        dtype = x.dtype
        if graph.weight is None:
            weight = torch.ones(row.numel(), dtype=dtype, device=x.device)
        else:
            weight = graph.weight.to(dtype)
            if bool((weight < 0).any()):
                raise ValueError("'graph' needs to have no negative weights")

        if x.layout == torch.strided:
            node, column = x.nonzero(as_tuple=True)
            value = x[node, column]
        else:
            node = torch.arange(n, device=x.device)
            node = node.repeat_interleave(x.crow_indices().diff())
            column, value = x.col_indices(), x.values()
        d = x.size(1)
        pairs, slot = (owner[node] * d + column).unique(return_inverse=True)
        pair_graph = pairs // d
        active = pair_graph.bincount(minlength=size.numel())
        first = pointer(active)[:-1]
        return cls(
            graph=graph,
            row=row,
            weight=weight,
            ptr=ptr,
            size=size,
            edges=graph.rowptr[ptr],
            entry_ptr=torch.searchsorted(node, ptr),
            node=node,
            slot=slot - first[owner[node]],
            value=value,
            active=active,
            first=first,
            pair_graph=pair_graph,
            pair_column=pairs % d,
        )

    def blocks(
        self, wavelet: str, J: int, L: int, method: str
    ) -> list[tuple[Tensor, bool]]:
        """Group graphs that are computed together, and say which densely."""

        def prefers_dense(size: Any, nnz: Any, active: Any) -> Any:
            # The multiplications of each way, for numbers or for tensors.
            signals = active * num_paths(J, L - 1)
            dense = J * size**2 * signals + (J - 1) * size**3
            steps = 2 ** (J - 1) * (L - 1)
            sparse = 2 ** (J - 1) * (nnz + size) * signals
            sparse = sparse + steps * _CALL_COST / self.num_graphs
            return dense * _DENSE_COST <= sparse

        if method == 'auto' and WAVELETS[wavelet].kernel is None:
            count = (self.size, self.edges.diff(), self.active)
            if self.num_graphs == 1:
                # A graph after a removal: no time for the sorting below.
                numbers = [int(each) for each in count]
                if numbers[2] == 0:
                    return []
                one = torch.zeros(1, dtype=torch.int64, device=self.ptr.device)
                return [(one, prefers_dense(*numbers))]
            choice = prefers_dense(*(each.double() for each in count))
        else:
            choice = torch.full_like(
                self.size, method != 'sparse', dtype=torch.bool
            )
        active = self.active
        # Graphs without an active column have nothing to compute.
        busy = active > 0
        blocks = []
        # Group sizes within 15 %. Spectra are not padded.
        key = (self.size.double().log() / math.log(1.15)).long()
        if WAVELETS[wavelet].kernel is not None:
            key = self.size
        ids = _sorted(choice & busy, key, active)
        sizes, widths, keys = (
            each[ids].tolist() for each in (self.size, active, key)
        )
        start = 0
        for end in range(1, len(sizes) + 1):
            if end < len(sizes):
                numbers = max(sizes[start : end + 1]) * widths[end]
                numbers *= (end + 1 - start) * J ** (L - 1)
                if (
                    keys[end] == keys[start]
                    and widths[end] <= 1.3 * widths[start] + 1
                    and numbers <= _DENSE_NUMBERS
                ):
                    continue
            blocks.append((ids[start:end], True))
            start = end
        ids = _sorted(~choice & busy, torch.zeros_like(key), active)
        sizes, start, nodes = self.size[ids].tolist(), 0, 0
        for end in range(1, len(sizes) + 1):
            nodes += sizes[end - 1]
            if end == len(sizes) or nodes + sizes[end] > _SPARSE_NODES:
                blocks.append((ids[start:end], False))
                start, nodes = end, 0
        return blocks

    def edges_of(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of a block's edges, and the graph of each."""
        return self._rows_of(self.edges, block)

    def entries_of(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of a block's entries, and the graph of each."""
        return self._rows_of(self.entry_ptr, block)

    def _rows_of(self, ptr: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        if self.num_graphs == 1:
            every = torch.arange(int(ptr[-1]), device=ptr.device)
            return every, torch.zeros_like(every)
        count = ptr.diff()[block]
        place = torch.arange(block.numel(), device=block.device)
        return ranges(ptr[block], count), place.repeat_interleave(count)

    def dense(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return dense adjacency [B, g, g] and signals [B, active, g]."""
        b, g = block.numel(), int(self.size[block].max())
        edge, place = self.edges_of(block)
        start = self.ptr[block]
        row = self.row[edge] - start[place]
        col = self.graph.col32[edge] - start[place]
        adj = self.value.new_zeros((b, g, g))
        adj.view(-1)[(place * g + row) * g + col] = self.weight[edge]
        entry, place = self.entries_of(block)
        a = int(self.active[block].max())
        node = self.node[entry] - start[place]
        signal = self.value.new_zeros((b, a, g))
        signal = signal.view(-1).index_put(
            ((place * a + self.slot[entry]) * g + node,), self.value[entry]
        )
        return adj, signal.view(b, a, g)

    def low_pass(self, kind: str, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return pooling weights of a block's nodes, and each node's graph."""
        count = self.size[block]
        place = torch.arange(block.numel(), device=block.device)
        place = place.repeat_interleave(count)
        mean = (1 / count.to(self.value.dtype))[place]
        if kind == 'mean':
            return mean, place
        edge, owner = self.edges_of(block)
        offset = pointer(count)[:-1] - self.ptr[block]
        row = self.row[edge] + offset[owner]
        degree = torch.zeros_like(mean).index_add_(0, row, self.weight[edge])
        total = degree.new_zeros(block.numel()).index_add(0, place, degree)
        share = degree / total[place]
        return torch.where(total[place] > 0, share, mean), place


def _sorted(mask: Tensor, key: Tensor, second: Tensor) -> Tensor:
    # The positions of a mask, sorted by two keys.
    ids = mask.nonzero().view(-1)
    ids = ids[second[ids].argsort(stable=True)]
    return ids[key[ids].argsort(stable=True)]


def check_features(graph: CSRGraph, x: Tensor) -> None:
    """Refuse features that do not fit the graph."""
    check_instance('graph', graph, CSRGraph)
    check_signal(x, graph)
    if x.dim() != 2 or x.size(1) < 1:
        raise ValueError(
            f"'x' needs to have the shape [{graph.num_nodes}, num_features] "
            f'with at least one feature (got {list(x.shape)})'
        )
    check_finite_signal(x)


def _check_ptr(graph: CSRGraph, ptr: Tensor | None) -> Tensor:
    n = graph.num_nodes
    if ptr is None:
        return torch.tensor([0, n], device=graph.device)
    check_dtype('ptr', ptr, torch.int64)
    if (
        ptr.dim() != 1
        or ptr.numel() < 2
        or int(ptr[0]) != 0
        or int(ptr[-1]) != n
        or bool((ptr.diff() < 1).any())
    ):
        raise ValueError(
            f"'ptr' needs to ascend from 0 to {n}, the number of nodes, and "
            'every graph to have a node'
        )
    return ptr
