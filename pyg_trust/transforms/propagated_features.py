"""Propagated features of a changing graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import (
    Fraction,
    Positive,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.commit import EditedInPlace, ObjectLock, editing, synchronized
from pyg_trust.functional.dynamic_graph import DynamicGraph, Edit, Journal
from pyg_trust.functional.incremental import LevelState, SeriesState
from pyg_trust.functional.measures import Measure
from pyg_trust.graph import CSRGraph

_NONE = torch.empty(0, dtype=torch.int64)


@validated
class PropagatedFeatures(EditedInPlace):
    r"""Propagated features :math:`z = \sum_i w_i P^i x` of a changing graph.

    Edges, nodes and features come and go, and only the rows that this touches
    are computed again: those within :math:`L` hops. They have the bits of a
    computation from scratch, after any history
    (:mod:`pyg_trust.functional.incremental`).

    .. code-block:: python

        features = PropagatedFeatures(graph, x, sgc(2))
        features.insert_edges(torch.tensor([[0], [5]]))
        new = features.insert_nodes(x_new, torch.tensor([[n], [3]]))
        z = features.rows(torch.tensor([0, 5]))

    With :obj:`theta` it holds the infinite series :math:`\alpha (I - (1 -
    \alpha) P)^{-1} x` instead, up to :attr:`error_bound`: an edit then costs a
    few pushes where exact rows would be all rows. Those features depend on
    what was there before.

    A pickle holds the present data, to the bit, and no trace of what was
    before; it is computed anew where it is read.

    Names never change, and those of removed nodes are not used again. If an
    edit fails or is interrupted, everything is as before. Threads take turns;
    a signal handler can't use it during an edit. On the CPU; memory
    :math:`(L + 2) N d` numbers for :math:`L` levels, :math:`3 N d` for the
    series.

    Args:
        graph (CSRGraph): unweighted, without duplicate edges.
        x (Tensor): float32 or float64 (the series: float64),
            ``[num_nodes, num_columns]``; copied.
        measure (Measure): with fixed weights, so no Katz; of the series, its
            :math:`a` and :math:`b` count, with :math:`a + b = 1`.
        alpha (float, optional): of the series, in :math:`(0, 1)`.
            (default: :obj:`None`)
        theta (float, optional): of the series: residues above
            :math:`\theta \sqrt{d_v}` are pushed. (default: :obj:`None`)

    Raises:
        TypeError, ValueError: on another graph, measure or shape, NaN or
            infinity, or one of :obj:`alpha` and :obj:`theta` alone.

    Example:
        >>> from pyg_trust.functional import sgc
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> graph = CSRGraph.from_edge_index(path, num_nodes=3)
        >>> features = PropagatedFeatures(graph, torch.eye(3), sgc(1))
        >>> features.remove_edges(torch.tensor([[0], [1]]))
        3
        >>> features.rows(torch.tensor([0]))
        tensor([[1., 0., 0.]])
    """

    def __init__(
        self,
        graph: CSRGraph,
        x: Tensor,
        measure: Measure,
        *,
        alpha: Fraction | None = None,
        theta: Positive | None = None,
    ) -> None:
        if graph.is_weighted or graph.has_duplicates:
            raise ValueError(
                "'graph' needs to be unweighted and without duplicate edges"
            )
        if measure.undirected and not graph.is_undirected:
            raise ValueError(
                f"'graph' needs to be undirected for measure '{measure.name}'"
            )
        if graph.device.type != 'cpu':
            raise ValueError(
                f"'graph' needs to be on the CPU (got {graph.device})"
            )
        dtypes = (torch.float32, torch.float64)
        if (alpha is None) != (theta is None):
            raise ValueError(
                "'alpha' and 'theta' need each other (got "
                f'alpha={alpha} and theta={theta})'
            )
        shape = (graph.num_nodes, 'num_columns')
        self._dtype = dtypes if theta is None else dtypes[1:]
        check_tensor('x', x, self._dtype, shape, finite=True)
        self._begin(graph, x, measure, alpha, theta)

    def _begin(
        self,
        graph: CSRGraph,
        x: Tensor,
        measure: Measure,
        alpha: float | None,
        theta: float | None,
        gone: Tensor = _NONE,
        directed: bool = False,
    ) -> None:
        # From these arguments alone, independently of any earlier state.
        self._graph = DynamicGraph(
            graph, measure.self_loops, measure.along, directed
        )
        if gone.numel():
            none = _NONE.view(1, 0).expand(2, 0)
            self._graph.remove(gone, none, Journal())
        self._state: LevelState | SeriesState
        if alpha is None or theta is None:
            self._state = LevelState(self._graph, x, measure)
        else:
            self._state = SeriesState(self._graph, x, measure, alpha, theta)
        self._journal = self._state.journal = Journal()
        self._z: Tensor | None = None
        self._stale = torch.ones(graph.num_nodes, dtype=torch.bool)
        self._lock = ObjectLock()

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        # The pickle is a function of the present data: stale rows, spare room
        # in the lists and residues would reveal the history.
        self._settle()
        state, graph = self._state, self._graph
        return {
            'dtype': self._dtype,
            'edge_index': graph.edge_index(),
            'x': state.x,
            'measure': state.measure,
            'alpha': getattr(state, 'alpha', None),
            'theta': getattr(state, 'theta', None),
            'alive': graph.alive,
            'directed': not graph.undirected,
        }

    def __setstate__(self, held: dict[str, Any]) -> None:
        self._dtype = held['dtype']
        alive = held['alive']
        self._begin(
            CSRGraph.from_edge_index(held['edge_index'], alive.numel()),
            held['x'],
            held['measure'],
            held['alpha'],
            held['theta'],
            (~alive).nonzero().view(-1),
            held['directed'],
        )

    @property
    @synchronized
    def graph(self) -> CSRGraph:
        """The present graph; removed nodes have no edges."""
        self._settle()
        return self._graph.to_csr()

    @property
    @synchronized
    def nodes(self) -> Tensor:
        """Names of the present nodes: int64, ascending."""
        self._settle()
        return self._graph.alive.nonzero().view(-1)

    @property
    @synchronized
    def num_nodes(self) -> int:
        """Number of names, those of removed nodes included."""
        self._settle()
        return self._graph.num_nodes

    @property
    @synchronized
    def stale_rows(self) -> int:
        """Number of rows that the next read has to compute."""
        self._settle()
        return int((self._stale & self._graph.alive).sum())

    @property
    @synchronized
    def error_bound(self) -> float:
        """Bound of all rows' error, in the Frobenius norm; 0 if exact."""
        self._settle()
        return self._state.error_bound

    @editing
    def rows(self, nodes: Tensor | None = None) -> Tensor:
        """Return a copy of present features: ``[k, num_columns]``.

        Args:
            nodes (Tensor, optional): int64 indices or a mask; by default all
                names, with zeros for removed ones. (default: :obj:`None`)

        Raises:
            ValueError: on a node that was removed.
        """
        self._settle()
        if nodes is None:
            wanted = torch.arange(self._graph.num_nodes)
        else:
            wanted = self._there('nodes', nodes)
        if isinstance(self._state, SeriesState):
            return self._state.rows(wanted)
        if self._z is None:
            self._z = torch.zeros_like(self._state.x)
        missing = wanted[self._stale[wanted]].unique()
        self._z[missing] = self._state.rows(missing)
        self._stale[missing] = False
        return self._z[wanted]

    @editing
    def insert_edges(self, edge_index: Tensor) -> int:
        """Add edges.

        Args:
            edge_index (Tensor): int64, ``[2, k]``; of an undirected graph,
                either direction means both.

        Returns:
            int: how many rows are touched.

        Raises:
            ValueError: if an end is not there, or an edge is there already.
        """
        edges = self._edges(edge_index)
        return self._edit(lambda: self._insert(edges))

    @editing
    def remove_edges(self, edge_index: Tensor) -> int:
        """Remove edges.

        Args:
            edge_index (Tensor): as in :meth:`insert_edges`.

        Returns:
            int: how many rows are touched.

        Raises:
            ValueError: if an edge is not there.
        """
        edges = self._edges(edge_index)
        return self._edit(lambda: self._remove(_NONE, edges))

    @editing
    def remove_nodes(self, nodes: Tensor) -> int:
        """Remove nodes, with their edges and features.

        Args:
            nodes (Tensor): int64 indices or a mask.

        Returns:
            int: how many rows are touched.

        Raises:
            ValueError: if a node is not there.
        """
        nodes = self._there('nodes', nodes).unique()
        none = _NONE.view(1, 0).expand(2, 0)
        return self._edit(lambda: self._remove(nodes, none))

    @editing
    def insert_nodes(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Add nodes, and edges between them and the others.

        Args:
            x (Tensor): their features, ``[k, num_columns]``.
            edge_index (Tensor): as in :meth:`insert_edges`; the new nodes
                are named :attr:`num_nodes` and so on.

        Returns:
            Tensor: int64, ``[k]``: their names.

        Raises:
            ValueError: as :meth:`insert_edges`.
        """
        self._settle()
        check_tensor('x', x, self._state.x.dtype, ('k', self._columns))
        check_tensor('x', x, self._dtype, ('k', self._columns), finite=True)
        count, first = x.size(0), self._graph.num_nodes
        edges = self._edges(edge_index, first + count)
        names = torch.arange(first, first + count)

        def change() -> tuple[Edit, Tensor]:
            self._graph.grow(count, self._journal)
            self._state.grow(count)
            stale = self._stale
            self._journal.note(lambda: setattr(self, '_stale', stale))
            z = self._z
            if z is not None:
                self._journal.note(lambda: setattr(self, '_z', z))
                self._z = torch.cat([z, z.new_zeros((count, z.size(1)))])
            self._stale = torch.cat([stale, names >= 0])
            structure = self._graph.insert(edges, self._journal)
            return Edit(torch.cat([structure, names]).unique(), names), x

        self._edit(change)
        return names

    @editing
    def update_features(self, nodes: Tensor, x: Tensor) -> int:
        """Replace the features of nodes.

        Args:
            nodes (Tensor): int64, each once.
            x (Tensor): their features, ``[k, num_columns]``.

        Returns:
            int: how many rows are touched.
        """
        nodes = self._there('nodes', nodes)
        if nodes.unique().numel() != nodes.numel():
            raise ValueError("'nodes' needs to have each node once")
        shape = (nodes.numel(), self._columns)
        check_tensor('x', x, self._state.x.dtype, shape, finite=True)
        return self._edit(lambda: (Edit(_NONE, nodes), x))

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self._state.measure}, '
            f'num_nodes={self._graph.num_nodes}, num_columns={self._columns})'
        )

    @property
    def _columns(self) -> int:
        return self._state.x.size(1)

    def _settle(self) -> None:
        # Undo an interrupted edit.
        self._journal.undo()

    def _edit(self, change: Callable[[], tuple[Edit, Tensor | None]]) -> int:
        self._settle()
        try:
            edit, x = change()
            touched = self._state.update(edit, x)
            stale = self._stale.clone()
            stale[slice(None) if touched.nodes is None else touched.nodes] = (
                True
            )
        except BaseException:
            self._settle()
            raise
        # In this order: computing a row once too often does no harm.
        self._stale = stale
        self._journal.clear()
        if self._z is not None and touched.nodes is not None:
            # Erase the outdated rows.
            self._z.index_fill_(0, touched.nodes, 0)
        elif touched.nodes is None:
            self._z = None
        return touched.rows

    def _insert(self, edges: Tensor) -> tuple[Edit, None]:
        return Edit(self._graph.insert(edges, self._journal), _NONE), None

    def _remove(self, nodes: Tensor, edges: Tensor) -> tuple[Edit, None]:
        structure = self._graph.remove(nodes, edges, self._journal)
        return Edit(structure, nodes), None

    def _there(self, name: str, nodes: Tensor) -> Tensor:
        self._settle()
        alive = self._graph.alive
        nodes = check_nodes(name, nodes, alive.numel())
        gone = ~alive[nodes]
        if bool(gone.any()):
            raise ValueError(
                f"'{name}' needs to have nodes that are there (got "
                f'{int(nodes[gone][0])}, which was removed)'
            )
        return nodes

    def _edges(self, edge_index: Tensor, count: int | None = None) -> Tensor:
        self._settle()
        check_tensor('edge_index', edge_index, torch.int64, (2, 'k'))
        n = self._graph.num_nodes if count is None else count
        check_range('edge_index', edge_index, n, 'the nodes')
        return edge_index
