"""Properties and derived views of a graph, computed on demand."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from typing_extensions import Self

from pyg_trust._checks import (
    Finite,
    check_finite,
    check_nodes,
    graphs,
    validated,
)
from pyg_trust.graph import _building as building
from pyg_trust.graph.ragged import pick_rows
from pyg_trust.ops import PushGraph

T = TypeVar('T')


class Views:
    """Mixin of :class:`.CSRGraph`: properties and derived views."""

    rowptr: Tensor
    col32: Tensor
    weight: Tensor | None
    perm: Tensor | None
    _cache: dict[Any, Any]

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
    ) -> Self:
        # Make a graph of rows that were checked already, with int32 columns.
        graph = cls.__new__(cls)
        graph._set(rowptr, col, weight, perm)
        graph._cache.update(known)
        return graph

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
        """Device of the graph."""
        return self.col32.device

    @property
    def col(self) -> Tensor:
        """Target of each edge: int64, converted from :obj:`col32`."""
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
        """Number of edges that leave each node: int64."""
        return self.rowptr.diff()

    @property
    def in_degree(self) -> Tensor:
        """Number of edges that enter each node: int64."""
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
        r"""Largest magnitude of an eigenvalue of the adjacency matrix.

        Computed in float64: densely up to 500 nodes, else by ARPACK to about
        machine precision.
        """
        return self._cached(
            'spectral_radius',
            lambda: _largest_eigenvalue(self.to_scipy(), self.is_undirected),
        )

    # Derived graphs and layouts #############################################

    def transpose(self) -> Self:
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
            reversed_ = type(self)._trusted(
                rowptr,
                col,
                None if self.weight is None else self.weight[perm],
                None if self.perm is None else self.perm[perm],
                is_undirected=False,
            )
            reversed_._cache['transpose'] = self
            return reversed_

        return self._cached('transpose', build)

    def with_self_loops(self) -> Self:
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
            return type(self)._trusted(rowptr, col, weight, perm, **known)

        return self._cached('with_self_loops', build)

    def receivers(self, along: bool = True) -> tuple[Tensor, Tensor]:
        """Return compressed rows that list each node's senders.

        Args:
            along (bool): whether signals travel along the edges or against
                them. (default: :obj:`True`)

        Returns:
            tuple[Tensor, Tensor]: ``rowptr`` (int64) and ``col`` (int32).
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
        r"""Return the layout for randomized pushes.

        Every row is sorted by the degree of the receiving node (nodes of
        degree zero last) and cut into groups of doubling degree.

        Args:
            a (float): the exponent of the receiving degree, :math:`d_v^{-a}`.
            dtype (torch.dtype): the dtype of the signals.
                (default: :obj:`torch.float32`)
            along (bool): whether signals travel along the edges or against
                them. (default: :obj:`True`)
            nodes (Tensor, optional): int64, ascending: the only rows to lay
                out, the others being empty; this is not kept.
                (default: :obj:`None`)
        """
        check_finite('a', a)
        graphs.check_real('dtype', dtype)
        along = along or self.is_undirected
        if nodes is not None:
            nodes = check_nodes('nodes', nodes, self.num_nodes)

        def build() -> PushGraph:
            rows = (self.rowptr, self.col32) if along else self._transposed
            return _push_layout(*rows, self.degree, nodes)

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
        """Whether the layout of :meth:`push_graph` is cached."""
        along = bool(along) or self.is_undirected
        return ('push_graph', along) in self._cache

    @validated
    def degree_power(
        self, exponent: Finite, dtype: torch.dtype, loops: bool = False
    ) -> Tensor:
        r"""Return the diagonal of :math:`D^{exponent}`, 0 at degree 0.

        Args:
            exponent (float): the exponent; 0 gives ones, at degree 0 too.
            dtype (torch.dtype): the dtype of the result.
            loops (bool): whether degrees are those of
                :meth:`with_self_loops`. (default: :obj:`False`)
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

    # Private ################################################################

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


def _push_layout(
    rowptr: Tensor, col: Tensor, degree: Tensor, nodes: Tensor | None
) -> PushGraph:
    # Rows sorted by degree, without a scale.
    n, device = rowptr.numel() - 1, rowptr.device
    if nodes is None:
        row = building.row_of_entries(rowptr)
        target = col.long()
    else:
        start, entry = pick_rows(rowptr, nodes)
        row = nodes.repeat_interleave(start.diff())
        target, rowptr = col[entry].long(), building.rowptr_of(row, n)
    # Rank by degree, zero last; ties by index.
    order = torch.where(degree == 0, 2**62, degree)
    order = order.sort(stable=True).indices
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=device)
    key = (row * n + rank[target]).sort().values
    target = order[key % n]
    # frexp is exact: 2^(exponent - 1) <= degree < 2^exponent.
    bucket = torch.frexp(degree.double()).exponent.long()
    bucket[degree == 0] = 64
    groups, count = (row * 128 + bucket[target]).unique_consecutive(
        return_counts=True
    )
    return PushGraph(
        rowptr,
        target.to(torch.int32),
        building.rowptr_of(groups // 128, n),
        count.cumsum(0),
    )


def _largest_eigenvalue(adj: scipy.sparse.csr_array, symmetric: bool) -> float:
    if adj.nnz == 0:
        return 0.0
    if adj.shape[0] <= 500:
        dense = adj.toarray()
        eigenvalues = (
            np.linalg.eigvalsh(dense)
            if symmetric
            else np.linalg.eigvals(dense)
        )
        return float(np.abs(eigenvalues).max())
    import scipy.sparse.linalg  # slow to import

    solve = (
        scipy.sparse.linalg.eigsh if symmetric else scipy.sparse.linalg.eigs
    )
    start = np.ones(adj.shape[0])
    largest = solve(adj, k=1, v0=start, return_eigenvectors=False)
    return float(np.abs(largest).max())
