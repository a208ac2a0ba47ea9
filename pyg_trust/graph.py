"""The graph: compressed rows, and the one converter from and to PyG's forms.

Row :math:`u` lists the edges that leave :math:`u`, so rows are
``edge_index[0]``. All methods of the package take their graph from here.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_trust._checks import (
    check_choice,
    check_finite,
    check_instance,
    check_integer,
    check_nodes,
    check_tensor,
)
from pyg_trust.ops import PushGraph

T = TypeVar('T')
DUPLICATES = ('raise', 'merge', 'keep')


class CSRGraph:
    r"""A graph in compressed sparse rows. It never changes.

    What is derived from it (degrees, transpose, layouts for the kernels) is
    built once, when first asked for, and kept on the object; build the graph
    once and pass it wherever an ``edge_index`` is taken.

    Memory: 8 bytes per edge for :obj:`col`, 8 for :obj:`perm`, the same again
    for the transpose of a directed graph, 4 to 12 for each layout.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``: where each row starts.
        col (Tensor): int64, ``[num_edges]``: the target of each edge,
            ascending in every row.
        weight (Tensor, optional): float32 or float64, ``[num_edges]``: the
            weight of each edge; :obj:`None` for an unweighted graph.
            (default: :obj:`None`)
        perm (Tensor, optional): int64, ``[num_edges]``: the position of each
            edge in the ``edge_index`` the graph was made from (the first one
            of merged duplicates). (default: :obj:`None`)

    Raises:
        TypeError: if a tensor has another dtype.
        ValueError: if there is no node, an index is out of range, a row is
            not ascending, or a weight is not finite.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> CSRGraph.from_edge_index(edge_index, num_nodes=4)
        CSRGraph(num_nodes=4, num_edges=4)
    """

    def __init__(
        self,
        rowptr: Tensor,
        col: Tensor,
        weight: Tensor | None = None,
        perm: Tensor | None = None,
    ) -> None:
        _check_index('rowptr', rowptr, 1)
        _check_index('col', col, 1)
        n, m = rowptr.numel() - 1, col.numel()
        if n < 1:
            raise ValueError(
                "the graph needs to have at least one node (got 'rowptr' of "
                f'{rowptr.numel()} entries)'
            )
        if n >= 2**31:
            raise ValueError(
                "'rowptr' needs to have fewer than 2**31 nodes, as the "
                f'kernels index nodes with 32 bits (got {n})'
            )
        if int(rowptr[0]) != 0 or int(rowptr[-1]) != m:
            raise ValueError(
                f"'rowptr' needs to run from 0 to {m}, the number of entries "
                f"of 'col' (got {int(rowptr[0])} to {int(rowptr[-1])})"
            )
        if bool((rowptr.diff() < 0).any()):
            raise ValueError("'rowptr' needs to be ascending")
        if m > 0:
            low, high = int(col.min()), int(col.max())
            if low < 0 or high >= n:
                raise ValueError(
                    f"'col' needs to be in [0, {n}), the number of nodes "
                    f'(got {low} to {high})'
                )
            falls = col.diff() < 0
            starts = rowptr[1:-1]
            inner = starts[(starts > 0) & (starts < m)]
            falls[inner - 1] = False
            if bool(falls.any()):
                raise ValueError("'col' needs to be ascending in every row")
        if weight is not None:
            _check_weight('weight', weight, m)
        if perm is not None:
            _check_index('perm', perm, 1)
            if perm.numel() != m:
                raise ValueError(
                    f"'perm' needs to have {m} entries, one per edge "
                    f'(got {perm.numel()})'
                )
        self.rowptr = rowptr
        self.col = col
        self.weight = weight
        self.perm = perm
        self.order: Tensor | None = None
        self._cache: dict[Any, Any] = {}

    # From PyG's forms #######################################################

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_nodes: int | None = None,
        edge_weight: Tensor | None = None,
        *,
        duplicates: str = 'raise',
    ) -> 'CSRGraph':
        r"""Makes the graph of an ``edge_index``.

        Args:
            edge_index (Tensor or EdgeIndex): int64, ``[2, num_edges]``; an
                :class:`EdgeIndex` also int32.
            num_nodes (int, optional): the number of nodes, isolated ones
                included. Needed unless an :class:`EdgeIndex` knows it.
            edge_weight (Tensor, optional): float32 or float64,
                ``[num_edges]``. (default: :obj:`None`)
            duplicates (str): what to do with an edge that is listed twice:
                :obj:`'raise'` an error, :obj:`'merge'` it into one edge (its
                weights added), or :obj:`'keep'` it as parallel edges, each of
                which counts in the degrees. (default: :obj:`'raise'`)

        Raises:
            TypeError: on a wrong dtype.
            ValueError: on a wrong shape, an index out of range, an empty
                graph, weights that are not finite, or duplicate edges.
        """
        check_choice('duplicates', duplicates, DUPLICATES)
        if isinstance(edge_index, EdgeIndex):
            if num_nodes is None:
                # Not get_sparse_size, which guesses from the edges.
                known = [s for s in edge_index.sparse_size() if s is not None]
                num_nodes = max(known, default=None)
            edge_index = edge_index.as_tensor().long()
        _check_index('edge_index', edge_index, 2)
        if edge_index.size(0) != 2:
            raise ValueError(
                "'edge_index' needs to have the shape [2, num_edges] "
                f'(got {list(edge_index.shape)})'
            )
        n = _check_num_nodes(num_nodes)
        m = edge_index.size(1)
        if m > 0:
            low, high = int(edge_index.min()), int(edge_index.max())
            if low < 0 or high >= n:
                raise ValueError(
                    f"'edge_index' needs to be in [0, {n}), as 'num_nodes' is "
                    f'{n} (got {low} to {high})'
                )
        if edge_weight is not None:
            _check_weight('edge_weight', edge_weight, m)

        row, col, perm = _sort_edges(edge_index[0], edge_index[1], n)
        weight = None if edge_weight is None else edge_weight[perm]
        first = torch.ones(m, dtype=torch.bool, device=col.device)
        first[1:] = (row.diff() != 0) | (col.diff() != 0)
        if duplicates != 'keep' and not bool(first.all()):
            repeated = int((~first).nonzero()[0])
            if duplicates == 'raise':
                raise ValueError(
                    f"'edge_index' lists {m - int(first.sum())} edges more "
                    f'than once (the first is {int(row[repeated])} -> '
                    f'{int(col[repeated])}): coalesce it, or choose what '
                    "duplicates mean with duplicates='merge' or 'keep'"
                )
            if weight is not None:
                group = first.cumsum(0) - 1
                weight = weight.new_zeros(int(first.sum())).index_add_(
                    0, group, weight
                )
            row, col, perm = row[first], col[first], perm[first]
        return cls(_rowptr(row, n), col, weight, perm)

    @classmethod
    def from_torch_sparse(
        cls, adj: Tensor, *, weighted: bool, transposed: bool = False
    ) -> 'CSRGraph':
        r"""Makes the graph of a :class:`torch.sparse` COO, CSR or CSC matrix.

        Args:
            adj (Tensor): a square sparse matrix; entry :math:`(u, v)` is the
                edge from :math:`u` to :math:`v`. Explicit zeros are edges.
                Duplicates of an uncoalesced COO matrix are refused.
            weighted (bool): whether the values are edge weights. A sparse
                matrix always has values; :obj:`False` is accepted only if all
                of them are one.
            transposed (bool): whether it is PyG's :obj:`adj_t`, whose entry
                :math:`(v, u)` is the edge from :math:`u` to :math:`v`.
                (default: :obj:`False`)
        """
        if not isinstance(adj, Tensor) or adj.layout not in _SPARSE_LAYOUTS:
            got = getattr(adj, 'layout', type(adj).__name__)
            raise TypeError(
                "'adj' needs to be a sparse COO, CSR or CSC tensor "
                f'(got {got})'
            )
        n = _check_square('adj', adj.shape)
        if adj.layout == torch.sparse_coo:
            row, col = adj._indices()
            value = adj._values()
        else:
            ptr, other = (
                (adj.crow_indices(), adj.col_indices())
                if adj.layout == torch.sparse_csr
                else (adj.ccol_indices(), adj.row_indices())
            )
            nodes = torch.arange(n, device=ptr.device)
            major = nodes.repeat_interleave(ptr.diff())
            row, col = (
                (major, other)
                if adj.layout == torch.sparse_csr
                else (other, major)
            )
            value = adj.values()
        pair = (col, row) if transposed else (row, col)
        edge_index = torch.stack([index.long() for index in pair])
        return cls.from_edge_index(
            edge_index, n, _weights_or_ones('adj', value, weighted)
        )

    @classmethod
    def from_sparse_tensor(
        cls, adj: Any, *, weighted: bool, transposed: bool = False
    ) -> 'CSRGraph':
        """Makes the graph of a :class:`torch_sparse.SparseTensor`.

        Args:
            adj (SparseTensor): a square matrix.
            weighted (bool): as in :meth:`from_torch_sparse`.
            transposed (bool): as in :meth:`from_torch_sparse`.
                (default: :obj:`False`)
        """
        if type(adj).__name__ != 'SparseTensor':
            raise TypeError(
                f"'adj' needs to be a SparseTensor (got {type(adj).__name__})"
            )
        n = _check_square('adj', adj.sizes())
        row, col, value = adj.coo()
        pair = (col, row) if transposed else (row, col)
        if value is not None:
            value = _weights_or_ones('adj', value, weighted)
        return cls.from_edge_index(torch.stack(pair), n, value)

    @classmethod
    def from_data(cls, data: Data, *, duplicates: str = 'raise') -> 'CSRGraph':
        """Makes the graph of a :class:`~torch_geometric.data.Data` object.

        Reads :obj:`edge_index` and :obj:`edge_weight`, or else :obj:`adj_t`,
        and :obj:`num_nodes`.

        Args:
            data (Data): the homogeneous graph.
            duplicates (str): as in :meth:`from_edge_index`.
                (default: :obj:`'raise'`)
        """
        if isinstance(data, HeteroData) or not isinstance(data, Data):
            raise TypeError(
                "'data' needs to be a homogeneous "
                f'torch_geometric.data.Data (got {type(data).__name__})'
            )
        if data.num_nodes is None:
            raise ValueError("'data' needs to know its 'num_nodes'")
        if data.get('edge_index') is not None:
            return cls.from_edge_index(
                data.edge_index,
                data.num_nodes,
                data.get('edge_weight'),
                duplicates=duplicates,
            )
        if data.get('adj_t') is not None:
            return cls.convert(data.adj_t, data.num_nodes, transposed=True)
        raise ValueError("'data' needs to have an 'edge_index' or an 'adj_t'")

    @classmethod
    def convert(
        cls,
        graph: Any,
        num_nodes: int | None = None,
        edge_weight: Tensor | None = None,
        *,
        transposed: bool = False,
        duplicates: str = 'raise',
    ) -> 'CSRGraph':
        r"""Makes the graph of whatever PyG users hold.

        Args:
            graph (Any): a :class:`CSRGraph`, :class:`Data`,
                ``edge_index``, :class:`EdgeIndex`, sparse COO, CSR or CSC
                tensor, or :class:`torch_sparse.SparseTensor`. The values of a
                sparse matrix are weights, unless all are one.
            num_nodes (int, optional): the number of nodes, for forms that do
                not know it; checked against the others.
                (default: :obj:`None`)
            edge_weight (Tensor, optional): the weights of an
                ``edge_index``. (default: :obj:`None`)
            transposed (bool): whether a sparse matrix is PyG's
                :obj:`adj_t`. (default: :obj:`False`)
            duplicates (str): as in :meth:`from_edge_index`.
                (default: :obj:`'raise'`)

        Raises:
            TypeError: on a form that is none of these.
            ImportError: on a :class:`SparseTensor` without torch-sparse.
            ValueError: as the other converters.
        """
        if edge_weight is not None and not _is_edge_index(graph):
            raise ValueError(
                "'edge_weight' goes with an 'edge_index' alone "
                f'(got a {type(graph).__name__}, which has its own weights)'
            )
        if isinstance(graph, CSRGraph):
            made = graph
        elif isinstance(graph, Data | HeteroData):
            made = cls.from_data(graph, duplicates=duplicates)
        elif _is_edge_index(graph):
            return cls.from_edge_index(
                graph, num_nodes, edge_weight, duplicates=duplicates
            )
        elif isinstance(graph, Tensor):
            made = cls.from_torch_sparse(
                graph,
                weighted=not bool((_sparse_values(graph) == 1).all()),
                transposed=transposed,
            )
        elif type(graph).__name__ == 'SparseTensor':
            if not WITH_TORCH_SPARSE:
                raise ImportError(
                    "a SparseTensor needs 'torch-sparse': install it with "
                    "'pip install pyg_trust[sparse]'"
                )
            value = graph.storage.value()
            made = cls.from_sparse_tensor(
                graph,
                weighted=value is not None and not bool((value == 1).all()),
                transposed=transposed,
            )
        else:
            raise TypeError(
                "'graph' needs to be a CSRGraph, Data, edge_index, "
                'EdgeIndex, torch.sparse tensor or SparseTensor '
                f'(got {type(graph).__name__})'
            )
        if num_nodes is not None and made.num_nodes != check_integer(
            'num_nodes', num_nodes
        ):
            raise ValueError(
                f"'num_nodes' is {num_nodes}, but the graph has "
                f'{made.num_nodes} nodes'
            )
        return made

    # To PyG's forms #########################################################

    def to_edge_index(self) -> tuple[Tensor, Tensor | None]:
        """The ``edge_index``, sorted by row, and the edge weights if any."""
        return torch.stack([self.row, self.col]), self.weight

    def to_torch_sparse(
        self,
        layout: torch.layout = torch.sparse_csr,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The adjacency matrix; an unweighted graph has ones.

        Args:
            layout (torch.layout): :obj:`torch.sparse_coo`,
                :obj:`torch.sparse_csr` or :obj:`torch.sparse_csc`.
                (default: :obj:`torch.sparse_csr`)
            dtype (torch.dtype, optional): of the values; by default that of
                the weights, or float32. (default: :obj:`None`)
        """
        if layout not in _SPARSE_LAYOUTS:
            raise ValueError(
                f"'layout' needs to be one of {_SPARSE_LAYOUTS} (got {layout})"
            )
        if dtype is not None:
            check_instance('dtype', dtype, torch.dtype)
        value = self.weight
        if value is None:
            value = torch.ones(self.num_edges, device=self.device)
        value = value if dtype is None else value.to(dtype)
        size = (self.num_nodes, self.num_nodes)
        if layout == torch.sparse_csr:
            return sparse_rows(self.rowptr, self.col, value, size)
        if layout == torch.sparse_csc:
            rowptr, col, perm = self._transposed
            return sparse_rows(rowptr, col, value[perm], size, layout)
        index = torch.stack([self.row, self.col])
        return torch.sparse_coo_tensor(
            index,
            value,
            size,
            is_coalesced=not self.has_duplicates,
            check_invariants=False,
        )

    def to_scipy(self) -> scipy.sparse.csr_array:
        """The adjacency matrix in float64, for scipy's algorithms."""
        value = (
            np.ones(self.num_edges)
            if self.weight is None
            else self.weight.detach().cpu().double().numpy()
        )
        return scipy.sparse.csr_array(
            (value, self.col.cpu().numpy(), self.rowptr.cpu().numpy()),
            shape=(self.num_nodes, self.num_nodes),
        )

    def to_sparse_tensor(self) -> Any:
        """The adjacency matrix as a :class:`torch_sparse.SparseTensor`.

        Raises:
            ImportError: if torch-sparse is not installed.
        """
        if not WITH_TORCH_SPARSE:
            raise ImportError(
                "'to_sparse_tensor' needs 'torch-sparse': install it with "
                "'pip install pyg_trust[sparse]'"
            )
        from torch_sparse import SparseTensor

        return SparseTensor(
            rowptr=self.rowptr,
            col=self.col,
            value=self.weight,
            sparse_sizes=(self.num_nodes, self.num_nodes),
            is_sorted=True,
        )

    def to(self, device: torch.device | str) -> 'CSRGraph':
        """The graph on another device; itself if it is there already."""
        try:
            device = torch.device(device)
        except (TypeError, RuntimeError):
            raise ValueError(
                f"'device' needs to be a torch.device (got {device!r})"
            ) from None
        if device == self.device:
            return self
        return CSRGraph(
            self.rowptr.to(device),
            self.col.to(device),
            None if self.weight is None else self.weight.to(device),
            None if self.perm is None else self.perm.to(device),
        )

    # What it is #############################################################

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """The number of directed edges: an undirected edge counts twice."""
        return self.col.numel()

    @property
    def device(self) -> torch.device:
        """The device of the graph."""
        return self.col.device

    @property
    def is_weighted(self) -> bool:
        """Whether the edges have weights."""
        return self.weight is not None

    @property
    def row(self) -> Tensor:
        """The source of each edge: int64, ``[num_edges]``."""
        nodes = torch.arange(self.num_nodes, device=self.device)
        return nodes.repeat_interleave(self.degree)

    @property
    def degree(self) -> Tensor:
        """The number of edges that leave each node: int64."""
        return self._cached('degree', self.rowptr.diff)

    @property
    def in_degree(self) -> Tensor:
        """The number of edges that enter each node: int64."""
        return self._cached('in_degree', self._transposed[0].diff)

    @property
    def isolated(self) -> Tensor:
        """A mask of the nodes without any edge but self-loops."""
        row, col = self.row, self.col
        touched = torch.zeros(
            self.num_nodes, dtype=torch.bool, device=self.device
        )
        proper = row != col
        touched[row[proper]] = True
        touched[col[proper]] = True
        return ~touched

    @property
    def has_self_loops(self) -> bool:
        """Whether an edge leads from a node to itself."""
        return bool((self.row == self.col).any())

    @property
    def has_duplicates(self) -> bool:
        """Whether an edge is there more than once."""

        def build() -> bool:
            same = (self.row.diff() == 0) & (self.col.diff() == 0)
            return bool(same.any())

        return self._cached('has_duplicates', build)

    @property
    def is_undirected(self) -> bool:
        """Whether every edge is there in both directions, weights alike."""

        def build() -> bool:
            rowptr, col, perm = self._transposed
            if not torch.equal(rowptr, self.rowptr):
                return False
            if not torch.equal(col, self.col):
                return False
            return self.weight is None or torch.equal(
                self.weight[perm], self.weight
            )

        return self._cached('is_undirected', build)

    @property
    def spectral_radius(self) -> float:
        r"""The largest magnitude of an eigenvalue of the adjacency matrix.

        Computed in float64: densely up to 500 nodes, else by ARPACK to about
        machine precision.
        """
        return self._cached('spectral_radius', self._spectral_radius)

    # What is derived from it ################################################

    def transpose(self) -> 'CSRGraph':
        """The graph with every edge reversed; itself if undirected."""

        def build() -> CSRGraph:
            if self.is_undirected:
                return self
            rowptr, col, perm = self._transposed
            made = CSRGraph(
                rowptr,
                col,
                None if self.weight is None else self.weight[perm],
                None if self.perm is None else self.perm[perm],
            )
            made.order = self.order
            made._cache['transpose'] = self
            return made

        return self._cached('transpose', build)

    def with_self_loops(self) -> 'CSRGraph':
        """The graph with a self-loop at every node that has none.

        The loops that are added have weight one, and -1 in :obj:`perm`.
        """

        def build() -> CSRGraph:
            row, col = self.row, self.col
            missing = torch.ones(
                self.num_nodes, dtype=torch.bool, device=self.device
            )
            missing[row[row == col]] = False
            loops = missing.nonzero().view(-1)
            if loops.numel() == 0:
                return self
            row, col, perm = _sort_edges(
                torch.cat([row, loops]),
                torch.cat([col, loops]),
                self.num_nodes,
            )
            weight, old = self.weight, self.perm
            if weight is not None:
                weight = torch.cat([weight, weight.new_ones(loops.shape)])
                weight = weight[perm]
            if old is not None:
                old = torch.cat([old, old.new_full(loops.shape, -1)])[perm]
            made = CSRGraph(_rowptr(row, self.num_nodes), col, weight, old)
            made.order = self.order
            return made

        return self._cached('with_self_loops', build)

    def reorder(
        self, parts: int | None = None, *, rounds: int = 8
    ) -> 'CSRGraph':
        r"""The same graph, which exact propagation goes through in its order.

        Nodes are put next to their neighbours, by a partition into parts of
        equal size with few edges between them (restreaming linear
        deterministic greedy: one pass over the edges a round). Names and
        results stay those of this graph, bit for bit, as every row is summed
        in the same order: only the memory is read in another one. It pays
        where the graph has communities, after some propagations
        (``benchmarks/push.py``). Memory: 4 bytes per edge more.

        :obj:`order` of the result has the nodes as they are gone through.

        Args:
            parts (int, optional): the number of parts; by default so many
                that 64 float32 columns of a part take a megabyte.
                (default: :obj:`None`)
            rounds (int): the number of passes. (default: :obj:`8`)

        Raises:
            TypeError: if a number is no integer.
            ValueError: if there are more parts than nodes, or a graph that is
                not on the CPU.
        """
        if parts is None:
            parts = max(1, self.num_nodes // 4096)
        check_integer('parts', parts, 1, self.num_nodes)
        check_integer('rounds', rounds, 1)
        if self.device.type != 'cpu':
            raise ValueError(
                f'the graph needs to be on the CPU to reorder (got '
                f'{self.device})'
            )
        rowptr, col = self.receivers(along=False)
        part = torch.ops.pyg_trust.partition_nodes(rowptr, col, parts, rounds)
        made = CSRGraph(self.rowptr, self.col, self.weight, self.perm)
        made._cache = {
            key: value
            for key, value in self._cache.items()
            if key not in ('transpose', 'with_self_loops')
            and key[0] != 'ordered_receivers'
        }
        made.order = part.sort(stable=True).indices
        return made

    def ordered_receivers(
        self, along: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Is :meth:`receivers` in the kept :obj:`order`.

        Args:
            along (bool): as in :meth:`receivers`. (default: :obj:`True`)

        Returns:
            tuple[Tensor, Tensor, Tensor, Tensor]: ``rowptr`` and ``col`` of
            the nodes in that order, each row's entries in the order they had;
            the order, and the place of each node in it.

        Raises:
            ValueError: if the graph keeps no order.
        """
        order = self.order
        if order is None:
            raise ValueError('the graph keeps no order: see reorder')
        along = bool(along) and not self.is_undirected

        def build() -> tuple[Tensor, Tensor, Tensor, Tensor]:
            rowptr, col = self.receivers(along)
            rank = torch.empty_like(order)
            rank[order] = torch.arange(self.num_nodes, device=order.device)
            made, entry = pick_rows(rowptr, order)
            return made, rank.int()[col[entry].long()], order, rank

        return self._cached(('ordered_receivers', along), build)

    def receivers(self, along: bool = True) -> tuple[Tensor, Tensor]:
        """Compressed rows in which a node lists whom it receives from.

        Args:
            along (bool): whether signals travel along the edges or against
                them. (default: :obj:`True`)

        Returns:
            tuple[Tensor, Tensor]: ``rowptr`` (int64) and ``col`` (int32).
        """
        along = along and not self.is_undirected

        def build() -> tuple[Tensor, Tensor]:
            rowptr, col = (
                self._transposed[:2] if along else (self.rowptr, self.col)
            )
            return rowptr, col.to(torch.int32)

        return self._cached(('receivers', along), build)

    def push_graph(
        self,
        a: float,
        dtype: torch.dtype = torch.float32,
        along: bool = True,
        nodes: Tensor | None = None,
    ) -> PushGraph:
        r"""The layout that randomized pushes need.

        Every row is sorted by the degree of the receiving node (nodes of
        degree zero last) and cut into groups of doubling degree.

        Args:
            a (float): the exponent of the receiving degree,
                :math:`d_v^{-a}`.
            dtype (torch.dtype): of the signals.
                (default: :obj:`torch.float32`)
            along (bool): whether signals travel along the edges or against
                them. (default: :obj:`True`)
            nodes (Tensor, optional): int64, ascending: the only rows to lay
                out, the others being empty; this is not kept.
                (default: :obj:`None`)
        """
        check_finite('a', a)
        _check_real('dtype', dtype)
        along = along or self.is_undirected
        if nodes is not None:
            nodes = check_nodes('nodes', nodes, self.num_nodes)

        def build() -> PushGraph:
            rowptr, col = (
                (self.rowptr, self.col) if along else self._transposed[:2]
            )
            row = torch.arange(self.num_nodes, device=self.device)
            if nodes is None:
                row = row.repeat_interleave(rowptr.diff())
            else:
                start, entry = pick_rows(rowptr, nodes)
                row = nodes.repeat_interleave(start.diff())
                col, rowptr = col[entry], _rowptr(row, self.num_nodes)
            degree = self.degree
            # Rank by degree, zero last; ties by index.
            order = torch.where(degree == 0, 2**62, degree)
            order = order.sort(stable=True).indices
            rank = torch.empty_like(order)
            rank[order] = torch.arange(len(order), device=self.device)
            key = (row * self.num_nodes + rank[col]).sort().values
            col = order[key % self.num_nodes]
            # frexp is exact: 2^(exponent - 1) <= degree < 2^exponent.
            bucket = torch.frexp(degree.double()).exponent.long()
            bucket[degree == 0] = 64
            groups, count = (row * 128 + bucket[col]).unique_consecutive(
                return_counts=True
            )
            return PushGraph(
                rowptr,
                col.to(torch.int32),
                _rowptr(groups // 128, self.num_nodes),
                count.cumsum(0),
            )

        if nodes is not None:
            part = build()
            if a == 0:
                return part
            scale = self.degree_power(-a, dtype)[part.col.long()]
            return part._replace(scale=scale)
        graph = self._cached(('push_graph', along), build)
        if a == 0:
            return graph
        # One exponent and dtype at a time: a new one replaces the last.
        kept = self._cache.get(('scale', along))
        if kept is None or kept[0] != (a, dtype):
            scale = self.degree_power(-a, dtype)[graph.col.long()]
            self._cache[('scale', along)] = kept = ((a, dtype), scale)
        return graph._replace(scale=kept[1])

    def has_push_graph(self, along: bool = True) -> bool:
        """Whether :meth:`push_graph` was built already.

        Args:
            along (bool): as in :meth:`push_graph`. (default: :obj:`True`)
        """
        along = bool(along) or self.is_undirected
        return ('push_graph', along) in self._cache

    def degree_power(self, exponent: float, dtype: torch.dtype) -> Tensor:
        r"""The diagonal of :math:`D^{exponent}`, with :math:`0` at degree 0.

        Args:
            exponent (float): the exponent; 0 gives ones, at degree 0 too.
            dtype (torch.dtype): of the result.
        """
        check_finite('exponent', exponent)
        _check_real('dtype', dtype)

        def build() -> Tensor:
            power = self.degree.to(torch.float64).pow(exponent)
            if exponent != 0:
                power[self.degree == 0] = 0
            return power.to(dtype)

        return self._cached(('degree_power', exponent, dtype), build)

    # Private ################################################################

    def _cached(self, key: Any, build: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    @property
    def _transposed(self) -> tuple[Tensor, Tensor, Tensor]:
        # rowptr, col and position in self.col of the reversed edges.
        def build() -> tuple[Tensor, Tensor, Tensor]:
            col, perm = self.col.sort(stable=True)
            return _rowptr(col, self.num_nodes), self.row[perm], perm

        return self._cached('transposed', build)

    def _spectral_radius(self) -> float:
        if self.num_edges == 0:
            return 0.0
        adj = self.to_scipy()
        if self.num_nodes <= 500:
            dense = adj.toarray()
            eigenvalues = (
                np.linalg.eigvalsh(dense)
                if self.is_undirected
                else np.linalg.eigvals(dense)
            )
            return float(np.abs(eigenvalues).max())
        solve = (
            scipy.sparse.linalg.eigsh
            if self.is_undirected
            else scipy.sparse.linalg.eigs
        )
        start = np.ones(self.num_nodes)
        largest = solve(adj, k=1, v0=start, return_eigenvectors=False)
        return float(np.abs(largest).max())

    def __repr__(self) -> str:
        weighted = ', weighted' if self.is_weighted else ''
        return (
            f'{type(self).__name__}(num_nodes={self.num_nodes}, '
            f'num_edges={self.num_edges}{weighted})'
        )


class LastGraph:
    """Keeps the last graph that was made, for the tensor it was made of.

    A tensor is known again by what it is (not by its numbers) and by its
    version, which every operation in place on it or on its views moves; only
    a write that torch does not see (through :obj:`.data` or numpy) goes
    unnoticed. Copies and pickles of it are empty.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets it."""
        self._of: tuple[weakref.ref[Tensor], tuple, int] | None = None
        self._graph: CSRGraph | None = None

    def convert(self, graph: Any, num_nodes: int | None = None) -> CSRGraph:
        """Is :meth:`CSRGraph.convert`, of PyG's :obj:`adj_t` if sparse.

        Args:
            graph (Any): as in :meth:`CSRGraph.convert`.
            num_nodes (int, optional): as in :meth:`CSRGraph.convert`.
                (default: :obj:`None`)
        """
        if self._of is not None and self._graph is not None:
            reference, version, nodes = self._of
            if (
                isinstance(graph, Tensor)
                and reference() is graph
                and version == _versions(graph)
                and nodes == num_nodes
            ):
                return self._graph
        return CSRGraph.convert(graph, num_nodes, transposed=True)

    def keep(self, made: CSRGraph, graph: Any, num_nodes: int) -> None:
        """Keeps what :meth:`convert` made, once it has served.

        Args:
            made (CSRGraph): the graph.
            graph (Any): what it was made of; only an ``edge_index`` is known
                again.
            num_nodes (int): its number of nodes.
        """
        check_instance('made', made, CSRGraph)
        check_integer('num_nodes', num_nodes, 1)
        if (
            isinstance(graph, Tensor)
            and graph.layout == torch.strided
            and not graph.is_inference()
        ):
            self._of = (weakref.ref(graph), _versions(graph), num_nodes)
            self._graph = made

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


def _versions(graph: Tensor) -> tuple[int, ...]:
    # An EdgeIndex wraps a tensor, which counts by itself.
    if isinstance(graph, EdgeIndex):
        return graph._version, graph.as_tensor()._version
    return (graph._version,)


def sparse_rows(
    ptr: Tensor,
    index: Tensor,
    value: Tensor,
    size: tuple[int, int],
    layout: torch.layout = torch.sparse_csr,
) -> Tensor:
    """A sparse CSR (or CSC) tensor, without torch's warning that it is new.

    Args:
        ptr (Tensor): int64 or int32: where each row (column) starts.
        index (Tensor): as :obj:`ptr`: the columns (rows) of its entries.
        value (Tensor): the values of its entries.
        size (tuple[int, int]): the shape.
        layout (torch.layout): :obj:`torch.sparse_csr` or
            :obj:`torch.sparse_csc`. (default: :obj:`torch.sparse_csr`)
    """
    if layout not in (torch.sparse_csr, torch.sparse_csc):
        raise ValueError(
            "'layout' needs to be torch.sparse_csr or torch.sparse_csc "
            f'(got {layout!r})'
        )
    check_instance('size', size, tuple)
    if len(size) != 2:
        raise ValueError(f"'size' needs to have two entries (got {len(size)})")
    for length in size:
        check_integer('size', length, 0)
    dtype = (torch.int64, torch.int32)
    major = size[0] if layout == torch.sparse_csr else size[1]
    check_tensor('ptr', ptr, dtype, (major + 1,))
    check_tensor('index', index, dtype, ('nnz',))
    check_instance('value', value, Tensor)
    if value.shape[:1] != index.shape:
        raise ValueError(
            f"'value' needs to have {index.numel()} entries, as 'index' "
            f'(got the shape {list(value.shape)})'
        )
    with quiet_sparse():
        return torch.sparse_compressed_tensor(
            ptr, index, value, size, layout=layout, check_invariants=False
        )


@contextmanager
def quiet_sparse() -> Iterator[None]:
    """Keeps torch from saying, once per process, that CSR tensors are new.

    For blocks in which we make them, or make layers of PyG do so.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Sparse CS[RC] tensor support')
        yield


_SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def _is_edge_index(graph: Any) -> bool:
    return isinstance(graph, Tensor) and graph.layout not in _SPARSE_LAYOUTS


def _sparse_values(adj: Tensor) -> Tensor:
    return adj._values() if adj.layout == torch.sparse_coo else adj.values()


def _weights_or_ones(
    name: str, value: Tensor, weighted: bool
) -> Tensor | None:
    if weighted:
        return value
    if not bool((value == 1).all()):
        raise ValueError(
            f"'{name}' needs to have only ones as values, as weighted=False "
            f'(got {float(value[value != 1][0])})'
        )
    return None


def _check_index(name: str, index: Tensor, dim: int) -> None:
    if not isinstance(index, Tensor):
        raise TypeError(
            f"'{name}' needs to be a tensor (got {type(index).__name__})"
        )
    if index.dtype != torch.int64:
        raise TypeError(f"'{name}' needs to be int64 (got {index.dtype})")
    if index.dim() != dim:
        raise ValueError(
            f"'{name}' needs to have {dim} dimensions "
            f'(got the shape {list(index.shape)})'
        )


def _check_weight(name: str, weight: Tensor, num_edges: int) -> None:
    if not isinstance(weight, Tensor) or weight.dtype not in (
        torch.float32,
        torch.float64,
    ):
        got = getattr(weight, 'dtype', type(weight).__name__)
        raise TypeError(
            f"'{name}' needs to be a float32 or float64 tensor (got {got})"
        )
    if weight.shape != (num_edges,):
        raise ValueError(
            f"'{name}' needs to have the shape [{num_edges}], one weight per "
            f'edge (got {list(weight.shape)})'
        )
    if not bool(weight.isfinite().all()):
        raise ValueError(f"'{name}' needs to be finite (got NaN or infinity)")


def _check_num_nodes(num_nodes: int | None) -> int:
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


def _check_real(name: str, dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"'{name}' needs to be float32 or float64 (got {dtype})"
        )


def _check_square(name: str, shape: Any) -> int:
    shape = tuple(shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"'{name}' needs to be a square matrix (got {list(shape)})"
        )
    return _check_num_nodes(int(shape[0]))


def _sort_edges(
    row: Tensor, col: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    # Stable, so that of duplicates the first one comes first.
    key, perm = (row * num_nodes + col).sort(stable=True)
    return key // num_nodes, key % num_nodes, perm


def pick_rows(rowptr: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows start when put one after the other, and their entries.

    Args:
        rowptr (Tensor): int64: where each row starts.
        nodes (Tensor): int64: the rows.
    """
    check_tensor('rowptr', rowptr, torch.int64, ('num_rows + 1',))
    if rowptr.numel() == 0:
        raise ValueError("'rowptr' needs at least one entry (got none)")
    nodes = check_nodes('nodes', nodes, rowptr.numel() - 1)
    count = rowptr[nodes + 1] - rowptr[nodes]
    start = torch.cat([count.new_zeros(1), count.cumsum(0)])
    shift = (rowptr[nodes] - start[:-1]).repeat_interleave(count)
    return start, torch.arange(len(shift), device=shift.device) + shift


def _rowptr(row: Tensor, num_nodes: int) -> Tensor:
    rowptr = row.new_zeros(num_nodes + 1)
    rowptr[1:] = row.bincount(minlength=num_nodes).cumsum(0)
    return rowptr
