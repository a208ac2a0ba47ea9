"""Graphs in compressed sparse rows, converted from PyG's formats.

Row :math:`u` lists the edges that leave :math:`u`, so rows are
``edge_index[0]``. All methods of the package take their graph from here. The
file is long as a graph is one class: what it is made from, and what is made
from it.
"""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_trust._checks import (
    Count,
    Finite,
    OneOf,
    check_choice,
    check_finite,
    check_instance,
    check_integer,
    check_nodes,
    check_range,
    check_tensor,
    graphs,
    validated,
)
from pyg_trust.graph import _building as building
from pyg_trust.graph import _sources, _storage
from pyg_trust.graph.ragged import pick_rows, quiet_sparse, sparse_rows
from pyg_trust.ops import PushGraph

__all__ = ['CSRGraph', 'LastGraph', 'pick_rows', 'quiet_sparse', 'sparse_rows']

T = TypeVar('T')
DUPLICATES = ('raise', 'merge', 'keep')


class CSRGraph:
    """Immutable graph in compressed sparse rows.

    Row :math:`u` lists the nodes that the edges of :math:`u` lead to. Build
    the graph once and pass it in place of an ``edge_index``: derived data,
    such as the transpose, are computed on first use and kept. It takes 4 bytes
    per edge and 8 per node. A directed graph may keep its transpose too, and
    randomized propagation keeps 4 to 12 more bytes per edge. Targets are
    stored as int32 (``col32``), and ``col`` converts them at every access.

    Args:
        rowptr (Tensor): int64, ``[num_nodes + 1]``: where each row starts.
        col (Tensor): int64, ``[num_edges]``: the target of each edge,
            ascending in every row.
        weight (Tensor, optional): float32 or float64, ``[num_edges]``: the
            weight of each edge; :obj:`None` for an unweighted graph.
        perm (Tensor, optional): int64, ``[num_edges]``: the position of each
            edge in the ``edge_index`` the graph was made from (the first one
            of merged duplicates). (default: :obj:`None`)

    Example:
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> CSRGraph.from_edge_index(edge_index, num_nodes=4)
        CSRGraph(num_nodes=4, num_edges=4)
    """

    _sizes = ('num_nodes', 'num_edges')

    rowptr: Tensor
    col32: Tensor
    weight: Tensor | None
    perm: Tensor | None
    _cache: dict[Any, Any]

    def __init__(
        self,
        rowptr: Tensor,
        col: Tensor,
        weight: Tensor | None = None,
        perm: Tensor | None = None,
    ) -> None:
        check_tensor('rowptr', rowptr, torch.int64, ('num_nodes + 1',))
        check_tensor('col', col, torch.int64, ('num_edges',))
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
        if m > 0:
            check_range('col', col, n, 'the number of nodes')
        rows = rowptr.cpu().contiguous(), col.cpu().to(torch.int32)
        wrong = torch.ops.pyg_trust.check_rows(*rows)
        if wrong == 1:
            raise ValueError(
                f"'rowptr' needs to ascend from 0 to {m}, the number of "
                f"entries of 'col' (got {int(rowptr[0])} to {int(rowptr[-1])})"
            )
        if wrong:
            raise ValueError("'col' needs to be ascending in every row")
        if weight is not None:
            graphs.check_weight('weight', weight, m)
        if perm is not None:
            check_tensor('perm', perm, torch.int64, (m,))
        self._set(rowptr, col.to(torch.int32), weight, perm)

    def _set(
        self,
        rowptr: Tensor,
        col: Tensor,
        weight: Tensor | None,
        perm: Tensor | None,
    ) -> None:
        self.rowptr = rowptr
        self.col32 = col
        self.weight = weight
        self.perm = perm
        self._cache = {}

    @classmethod
    def _trusted(
        cls,
        rowptr: Tensor,
        col: Tensor,
        weight: Tensor | None = None,
        perm: Tensor | None = None,
        **known: bool,
    ) -> 'CSRGraph':
        # Make a graph of rows that were checked already, with int32 columns.
        graph = cls.__new__(cls)
        graph._set(rowptr, col, weight, perm)
        graph._cache.update(known)
        return graph

    # From PyG's forms #######################################################

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_nodes: int | None = None,
        edge_weight: Tensor | None = None,
        *,
        duplicates: str = 'raise',
        perm: bool = False,
    ) -> 'CSRGraph':
        """Make a graph from an ``edge_index``.

        Args:
            edge_index (Tensor or EdgeIndex): int64 or int32,
                ``[2, num_edges]``.
            num_nodes (int, optional): the number of nodes, isolated ones
                included. It is required unless an :class:`EdgeIndex` stores
                it.
            edge_weight (Tensor, optional): float32 or float64,
                ``[num_edges]``; by default the graph is unweighted.
            duplicates (str): what to do with an edge that is listed twice:
                :obj:`'raise'` an error, :obj:`'merge'` it into one edge (its
                weights added), or :obj:`'keep'` it as parallel edges, each of
                which counts in the degrees. (default: :obj:`'raise'`)
            perm (bool): whether the graph keeps where in the ``edge_index``
                each edge was (:obj:`perm`, 8 bytes per edge).
        """
        check_choice('duplicates', duplicates, DUPLICATES)
        check_instance('perm', perm, bool)
        if isinstance(edge_index, EdgeIndex) and num_nodes is None:
            # Not get_sparse_size, which guesses from the edges.
            known = [s for s in edge_index.sparse_size() if s is not None]
            num_nodes = max(known, default=None)
        edge_index = graphs.plain_index('edge_index', edge_index)
        n = graphs.check_num_nodes(num_nodes)
        m = edge_index.size(1)
        check_range('edge_index', edge_index, n, f"as 'num_nodes' is {n}")
        if edge_weight is not None:
            edge_weight = graphs.check_weight('edge_weight', edge_weight, m)

        rows = building.rows_of(edge_index, n, edge_weight, perm, duplicates)
        return cls._trusted(
            *rows[:4], has_duplicates=bool(rows.has_duplicates)
        )

    @classmethod
    @validated
    def from_edges(
        cls,
        source: Any,
        num_nodes: int,
        *,
        folder: str | Path | None = None,
        memory: int | str = '4GB',
        duplicates: Annotated[str, OneOf(DUPLICATES)] = 'raise',
        undirected: bool = False,
    ) -> 'CSRGraph':
        """Make an unweighted graph from files or chunks of edges.

        The source is read in chunks, once to count the edges and once to fill
        the rows. With a :obj:`folder`, as many rows are filled at a time as
        fit into the memory, and the source is read again each time.

        Args:
            source (Any): a path or a list of paths: ``.npy`` (``[2,
                num_edges]`` or ``[num_edges, 2]``), ``.npz`` with
                ``edge_index`` (OGB's raw files), ``.csv``, ``.txt`` (both
                also ``.gz``) or ``.parquet`` with two columns; a tensor or
                array; or a function that returns an iterator of pairs
                (sources, targets) of arrays, the same at every call.
            num_nodes (int): the number of nodes.
            folder (str or Path, optional): a folder to write the graph to; the
                returned graph then reads its edges from there. By default the
                graph is kept in memory. (default: :obj:`None`)
            memory (int or str): the largest number of bytes to use, such as
                ``'8GB'``. (default: :obj:`'4GB'`)
            duplicates (str): what to do with an edge that is listed twice:
                :obj:`'raise'` an error, :obj:`'merge'` it into one edge, or
                :obj:`'keep'` parallel edges. (default: :obj:`'raise'`)
            undirected (bool): whether every edge stands for both directions.

        Raises:
            ValueError: on an index out of range, duplicate edges, too little
                memory, a source that changes, or a damaged file.
        """
        n = graphs.check_num_nodes(num_nodes)
        rowptr, col, repeats = _sources.rows_from_edges(
            source,
            n,
            folder=None if folder is None else Path(folder).absolute(),
            memory=_storage.parse_memory(memory),
            duplicates=duplicates,
            undirected=undirected,
        )
        graph = cls._trusted(rowptr, col, has_duplicates=repeats)
        if undirected:
            graph._cache['is_undirected'] = True
        graph._cache['is_mapped'] = folder is not None
        return graph

    def save(self, folder: str | Path) -> None:
        """Write the graph to a folder atomically.

        It writes ``.npy`` files, and ``graph.json`` with sizes and checksums.

        Args:
            folder (str or Path): the folder, which is made if it does not
                exist. A graph in it is replaced.
        """
        check_instance('folder', folder, str, Path)
        tensors = {
            'rowptr': self.rowptr,
            'col': self.col32,
            'weight': self.weight,
            'perm': self.perm,
        }
        _storage.save_rows(
            Path(folder),
            {k: v for k, v in tensors.items() if v is not None},
            {},
            {
                name: self._cache.get(name)
                for name in ('is_undirected', 'has_duplicates')
            },
        )

    @classmethod
    @validated
    def load(
        cls, folder: str | Path, *, mmap: bool = False, verify: bool = True
    ) -> 'CSRGraph':
        """Read a graph that :meth:`save` or :meth:`from_edges` wrote.

        Args:
            folder (str or Path): the folder.
            mmap (bool): whether the edges stay on disk and are read where
                they are needed; processes of a machine then share them. The
                files must not change meanwhile. (default: :obj:`False`)
            verify (bool): whether all files are read and checked first. If
                false, a damaged file can crash the process or give wrong
                results. (default: :obj:`True`)

        Raises:
            FileNotFoundError: if there is no graph.
            DamagedFileError: if a file has changed; a :class:`ValueError` that
                names the file.
        """
        tensors, known = _storage.load_rows(Path(folder), mmap, verify)
        graph = cls._trusted(
            tensors['rowptr'],
            tensors['col'],
            tensors.get('weight'),
            tensors.get('perm'),
            **known,
        )
        graph._cache['is_mapped'] = mmap
        return graph

    @classmethod
    def from_data(cls, data: Data, *, duplicates: str = 'raise') -> 'CSRGraph':
        """Make a graph from a :class:`~torch_geometric.data.Data` object.

        Reads :obj:`edge_index` and :obj:`edge_weight`, or else :obj:`adj_t`,
        and :obj:`num_nodes`.

        Args:
            data (Data): the homogeneous graph.
            duplicates (str): what to do with an edge that is listed twice:
                :obj:`'raise'` an error, :obj:`'merge'` it into one edge (its
                weights added), or :obj:`'keep'` parallel edges.
        """
        check_instance('data', data, Data)
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
            return cls.convert(data.adj_t, data.num_nodes)
        raise ValueError("'data' needs to have an 'edge_index' or an 'adj_t'")

    @classmethod
    def convert(
        cls,
        graph: Any,
        num_nodes: int | None = None,
        edge_weight: Tensor | None = None,
        *,
        transposed: bool = True,
        duplicates: str = 'raise',
    ) -> 'CSRGraph':
        """Make a graph from any format that PyG users have.

        Args:
            graph (Any): a :class:`CSRGraph`, :class:`Data`,
                ``edge_index``, :class:`EdgeIndex`, sparse COO, CSR or CSC
                tensor, or :class:`torch_sparse.SparseTensor`. The values of a
                sparse matrix are weights, unless all are one.
            num_nodes (int, optional): the number of nodes, required for an
                ``edge_index``. If the graph stores its number of nodes, the
                two have to be equal. (default: :obj:`None`)
            edge_weight (Tensor, optional): the weights of an ``edge_index``.
            transposed (bool): whether a sparse matrix is PyG's
                :obj:`adj_t`, whose entry :math:`(v, u)` is the edge from
                :math:`u` to :math:`v`. (default: :obj:`True`)
            duplicates (str): what to do with an edge that is listed twice:
                :obj:`'raise'` an error, :obj:`'merge'` it into one edge (its
                weights added), or :obj:`'keep'` parallel edges.
        """
        if edge_weight is not None and not graphs.is_edge_index(graph):
            raise ValueError(
                "'edge_weight' goes with an 'edge_index' alone "
                f'(got a {type(graph).__name__}, which has its own weights)'
            )
        kind = type(graph).__name__
        if isinstance(graph, CSRGraph):
            converted = graph
        elif isinstance(graph, Data | HeteroData):
            converted = cls.from_data(graph, duplicates=duplicates)
        elif graphs.is_edge_index(graph):
            return cls.from_edge_index(
                graph, num_nodes, edge_weight, duplicates=duplicates
            )
        elif isinstance(graph, Tensor) or kind == 'SparseTensor':
            if kind == 'SparseTensor':
                _need_torch_sparse('a SparseTensor')
            sizes = graph.shape if isinstance(graph, Tensor) else graph.sizes()
            n = graphs.check_square('graph', sizes)
            edge_index, value = building.entries(graph)
            if value is not None and not value.requires_grad:
                value = None if bool((value == 1).all()) else value
            if transposed:
                edge_index = edge_index.flip(0)
            converted = cls.from_edge_index(edge_index, n, value)
        else:
            raise TypeError(
                "'graph' needs to be a CSRGraph, Data, edge_index, "
                f'EdgeIndex, torch.sparse tensor or SparseTensor (got {kind})'
            )
        if num_nodes is not None and converted.num_nodes != check_integer(
            'num_nodes', num_nodes
        ):
            raise ValueError(
                f"'num_nodes' is {num_nodes}, but the graph has "
                f'{converted.num_nodes} nodes'
            )
        return converted

    # To PyG's forms #########################################################

    def to_edge_index(self) -> tuple[Tensor, Tensor | None]:
        """Return ``(edge_index, edge_weight)``, sorted by source, then target.

        ``edge_weight`` is None for an unweighted graph.
        """
        return torch.stack([self.row, self.col]), self.weight

    def to_torch_sparse(
        self,
        layout: torch.layout = torch.sparse_csr,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the adjacency matrix; an unweighted graph has ones.

        Args:
            layout (torch.layout): :obj:`torch.sparse_coo`,
                :obj:`torch.sparse_csr` or :obj:`torch.sparse_csc`.
            dtype (torch.dtype, optional): the dtype of the values; by default
                that of the weights, or float32. (default: :obj:`None`)
        """
        if layout not in graphs.SPARSE_LAYOUTS:
            raise ValueError(
                f"'layout' needs to be one of {graphs.SPARSE_LAYOUTS} "
                f'(got {layout})'
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
            rowptr, col, perm = building.transposed(
                self.rowptr, self.col32, True
            )
            return sparse_rows(rowptr, col.long(), value[perm], size, layout)
        index = torch.stack([self.row, self.col])
        return torch.sparse_coo_tensor(
            index,
            value,
            size,
            is_coalesced=not self.has_duplicates,
            check_invariants=False,
        )

    def to_sparse_tensor(self) -> Any:
        """Return the adjacency matrix as a ``torch_sparse.SparseTensor``."""
        _need_torch_sparse("'to_sparse_tensor'")
        from torch_sparse import SparseTensor

        return SparseTensor(
            rowptr=self.rowptr,
            col=self.col,
            value=self.weight,
            sparse_sizes=(self.num_nodes, self.num_nodes),
            is_sorted=True,
        )

    def to(self, device: torch.device | str) -> 'CSRGraph':
        """Copy the graph to a device; return itself if it is there already.

        Derived data, such as the transpose, are not copied.
        """
        try:
            device = torch.device(device)
        except (TypeError, RuntimeError):
            raise ValueError(
                f"'device' needs to be a torch.device (got {device!r})"
            ) from None
        if device == self.device:
            return self
        return CSRGraph._trusted(
            self.rowptr.to(device),
            self.col32.to(device),
            None if self.weight is None else self.weight.to(device),
            None if self.perm is None else self.perm.to(device),
        )

    # Properties #############################################################

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of directed edges: an undirected edge counts twice."""
        return self.col32.numel()

    @property
    def device(self) -> torch.device:
        """Device of the graph's tensors."""
        return self.col32.device

    @property
    def col(self) -> Tensor:
        """Target of each edge: int64, ``[num_edges]``."""
        return self.col32.long()

    @property
    def is_mapped(self) -> bool:
        """Whether the edges stay on disk and are read on demand."""
        return self._cached('is_mapped', lambda: False)

    @property
    def is_weighted(self) -> bool:
        """Whether the edges have weights."""
        return self.weight is not None

    @property
    def row(self) -> Tensor:
        """Source of each edge: int64, ``[num_edges]``."""
        return building.row_of_entries(self.rowptr)

    @property
    def degree(self) -> Tensor:
        """Number of edges that leave each node: int64, ``[num_nodes]``."""
        return self.rowptr.diff()

    @property
    def in_degree(self) -> Tensor:
        """Number of edges that enter each node: int64, ``[num_nodes]``."""
        return self._cached(
            'in_degree',
            lambda: torch.bincount(self.col32, minlength=self.num_nodes),
        )

    @property
    def has_self_loops(self) -> bool:
        """Whether any node has a self-loop."""
        return bool(building.own_loops(self.rowptr, self.col32).any())

    @property
    def has_duplicates(self) -> bool:
        """Whether any edge occurs more than once."""

        def build() -> bool:
            same = (self.row.diff() == 0) & (self.col32.diff() == 0)
            return bool(same.any())

        return self._cached('has_duplicates', build)

    @property
    def is_undirected(self) -> bool:
        """Whether every edge occurs in both directions with equal weights."""
        return self._cached(
            'is_undirected',
            lambda: building.is_symmetric(
                self.rowptr, self.col32, self.weight
            ),
        )

    @property
    def spectral_radius(self) -> float:
        """Largest magnitude of an eigenvalue of the adjacency matrix.

        Computed in float64 to about machine precision.
        """
        return self._cached(
            'spectral_radius',
            lambda: building.largest_eigenvalue(
                self.to_scipy(), self.is_undirected
            ),
        )

    # Derived graphs and layouts #############################################

    def transpose(self) -> 'CSRGraph':
        """Return the graph with every edge reversed; itself if undirected."""

        def build() -> Any:
            if self.is_undirected:
                return self
            carried = self.is_weighted or self.perm is not None
            if carried:
                rowptr, col, perm = building.transposed(
                    self.rowptr, self.col32, True
                )
            else:
                rowptr, col, perm = *self._transposed, None
            reversed_ = CSRGraph._trusted(
                rowptr,
                col,
                None if self.weight is None else self.weight[perm],
                None if self.perm is None else self.perm[perm],
                is_undirected=False,
            )
            reversed_._cache['transpose'] = self
            return reversed_

        return self._cached('transpose', build)

    def with_self_loops(self) -> 'CSRGraph':
        """Return the graph with a self-loop at every node that has none.

        The loops that are added have weight one, and -1 in :obj:`perm`.
        """

        def build() -> Any:
            own = building.own_loops(self.rowptr, self.col32)
            if bool(own.all()):
                return self
            carried = self.is_weighted or self.perm is not None
            rowptr, col, old = building.with_loops(
                self.rowptr, self.col32, own, carried
            )
            weight, perm = self.weight, self.perm
            if old is not None:
                before = old >= 0
                if weight is not None:
                    weight = weight.new_ones(old.shape).masked_scatter(
                        before, weight
                    )
                if perm is not None:
                    perm = perm.new_full(old.shape, -1).masked_scatter(
                        before, perm
                    )
            # Loops have one direction and, by this, one weight.
            known = {
                key: self._cache[key]
                for key in ('is_undirected', 'has_duplicates')
                if key in self._cache
            }
            return CSRGraph._trusted(rowptr, col, weight, perm, **known)

        return self._cached('with_self_loops', build)

    def receivers(self, along: bool = True) -> tuple[Tensor, Tensor]:
        """Return the nodes that each node receives messages from.

        Args:
            along (bool): whether messages travel along the edges (True) or
                against them. (default: :obj:`True`)

        Returns:
            tuple[Tensor, Tensor]: ``rowptr``, int64, ``[num_nodes + 1]``, and
            ``col``, int32: node v receives from ``col[rowptr[v]:rowptr[v +
            1]]``.
        """
        if along and not self.is_undirected:
            return self._transposed
        return self.rowptr, self.col32

    def push_graph(
        self,
        a: float,
        dtype: torch.dtype = torch.float32,
        along: bool = True,
        nodes: Tensor | None = None,
    ) -> PushGraph:
        """Return the graph in the layout that randomized propagation reads.

        Every row is sorted by the degree of the receiving node (degree 0
        last), and divided into groups of degrees within a factor of two.

        Args:
            a (float): the exponent of the receiving node's degree, in the
                factor :math:`d_v^{-a}` of a message.
            dtype (torch.dtype): the dtype of the factors, float32 or float64.
            along (bool): whether messages travel along the edges (True) or
                against them. (default: :obj:`True`)
            nodes (Tensor, optional): int64, ascending: the rows to include;
                the others are empty, and the result is not kept. By default
                all rows are included, and kept. (default: :obj:`None`)
        """
        check_finite('a', a)
        graphs.check_real('dtype', dtype)
        along = along or self.is_undirected
        if nodes is not None:
            nodes = check_nodes('nodes', nodes, self.num_nodes)

        def build() -> PushGraph:
            rows = (self.rowptr, self.col32) if along else self._transposed
            return building.push_layout(*rows, self.degree, nodes)

        if nodes is not None:
            part = build()
            if a == 0:
                return part
            scale = self.degree_power(-a, dtype)[part.col.long()]
            return part._replace(scale=scale)
        graph = self._cached(('push_graph', along), build)
        if a == 0:
            return graph
        # Keep one exponent and dtype: a new one replaces the last.
        kept = self._cache.get(('scale', along))
        if kept is None or kept[0] != (a, dtype):
            scale = self.degree_power(-a, dtype)[graph.col.long()]
            self._cache[('scale', along)] = kept = ((a, dtype), scale)
        return graph._replace(scale=kept[1])

    def has_push_graph(self, along: bool = True) -> bool:
        """Return whether a :meth:`push_graph` with ``along`` is kept."""
        along = bool(along) or self.is_undirected
        return ('push_graph', along) in self._cache

    @validated
    def degree_power(
        self, exponent: Finite, dtype: torch.dtype, loops: bool = False
    ) -> Tensor:
        """Return each node's degree to a power: ``[num_nodes]``.

        Args:
            exponent (float): the exponent. A node of degree 0 gets 0, or 1 if
                the exponent is 0.
            dtype (torch.dtype): the dtype of the result.
            loops (bool): whether degrees count a self-loop at every node, as
                after :meth:`with_self_loops`. (default: :obj:`False`)
        """
        graphs.check_real('dtype', dtype)

        def build() -> Tensor:
            degree = self.degree
            if loops:
                degree += ~building.own_loops(self.rowptr, self.col32)
            power = degree.to(torch.float64).pow_(exponent)
            if exponent != 0:
                power[degree == 0] = 0
            return power.to(dtype)

        return self._cached(('degree_power', exponent, dtype, loops), build)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the adjacency matrix as a scipy CSR array in float64."""
        value = (
            np.ones(self.num_edges)
            if self.weight is None
            else self.weight.detach().cpu().double().numpy()
        )
        return scipy.sparse.csr_array(
            (value, self.col.cpu().numpy(), self.rowptr.cpu().numpy()),
            shape=(self.num_nodes, self.num_nodes),
        )

    def _cached(self, key: Any, build: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    @property
    def _transposed(self) -> tuple[Tensor, Tensor]:
        # rowptr and col of the reversed edges.
        if 'transpose' in self._cache:
            other = self._cache['transpose']
            return other.rowptr, other.col32
        return self._cached(
            'transposed',
            lambda: building.transposed(self.rowptr, self.col32, False)[:2],
        )

    def __repr__(self) -> str:
        weighted = ', weighted' if self.is_weighted else ''
        return (
            f'{type(self).__name__}(num_nodes={self.num_nodes}, '
            f'num_edges={self.num_edges}{weighted})'
        )


def _need_torch_sparse(what: str) -> None:
    if not WITH_TORCH_SPARSE:
        raise ImportError(
            f"{what} needs 'torch-sparse': install it with 'pip install "
            "pyg_trust[sparse]'"
        )


class LastGraph:
    """Cache of the last graph that was converted to a :class:`CSRGraph`.

    :meth:`convert` returns it if the same tensor comes again, and its version
    (which in-place operations increase) is the same. It does not notice writes
    through ``.data`` or numpy. Copies and pickles of the cache are empty.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Empty the cache."""
        self._of: tuple[weakref.ref[Tensor], tuple, int] | None = None
        self._graph: CSRGraph | None = None

    def convert(self, graph: Any, num_nodes: int | None = None) -> CSRGraph:
        """Convert a graph, or return the one that :meth:`keep` kept for it.

        Args:
            graph (Any): the graph, in any form that :meth:`CSRGraph.convert`
                takes; duplicate edges count as parallel edges.
            num_nodes (int, optional): the number of nodes, required for an
                ``edge_index``. (default: :obj:`None`)
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
        return CSRGraph.convert(graph, num_nodes, duplicates='keep')

    @validated
    def keep(self, made: CSRGraph, graph: Any, num_nodes: Count) -> None:
        """Keep the last graph for :meth:`convert`, which itself keeps none.

        Args:
            made (CSRGraph): the graph as :meth:`convert` returned it.
            graph (Any): the object that was converted. Nothing is kept unless
                it is a dense tensor, such as an ``edge_index``.
            num_nodes (int): the ``num_nodes`` of the call of :meth:`convert`.
        """
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
    # An EdgeIndex wraps a tensor with a version counter of its own.
    if isinstance(graph, EdgeIndex):
        return graph._version, graph.as_tensor()._version
    return (graph._version,)
