"""Propagated features of a graph that changes."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Fraction,
    Int,
    Positive,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import plain_index
from pyg_trust._moved import renamed
from pyg_trust.agp.measures import Measure, make_measure
from pyg_trust.files.commit import (
    EditedInPlace,
    ObjectLock,
    editing,
    synchronized,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import (
    NodeIds,
    Nodes,
    NotThere,
    Part,
    RemovalRequest,
)
from pyg_trust.unlearning.incremental import SeriesState, bare
from pyg_trust.unlearning.sums import (
    BITS,
    BOUND,
    Step,
    Sums,
    Undo,
    check_directed,
    put_back,
)
from pyg_trust.update import Update

__all__ = ['PropagatedFeatures']

_NONE = torch.empty(0, dtype=torch.int64)


@validated
class PropagatedFeatures(EditedInPlace):
    r"""Propagated features :math:`z = \sum_i w_i P^i x` of a changing graph.

    Here :math:`P = D^{-a} A D^{-b}`. Edges, nodes and features can be added,
    changed or removed: :math:`z` then has the same bits as if it were computed
    from scratch, as all sums are of integer multiples of :math:`2^{-f}`. An
    edit that fails or is interrupted changes nothing. Ids of removed nodes are
    not used again. All runs on the CPU.

    Args:
        graph (CSRGraph or Data): the graph, unweighted, without duplicate
            edges. The ids of its nodes are ``graph.n_id``, else positions.
        x (Tensor, optional): the features: float32 or float64, ``[num_nodes,
            num_columns]``; by default ``graph.x``.
        measure (str or Measure): the propagation: a name such as
            :obj:`'appnp'`, or a measure with :math:`a + b \ge 1` (not Katz).
        alpha (float, optional): the teleport probability of the named measure,
            or of :obj:`theta`.
        t (float, optional): the time of :obj:`'heat'` and :obj:`'hkpr'`.
        K (int, optional): the number of hops; by default that of the
            named measure.
        theta (float, optional): if given, :math:`z = \alpha (I - (1 - \alpha)
            P)^{-1} x` is approximated: up to :math:`\theta \sqrt{d_v}` of what
            a node of degree :math:`d_v` has to send is left out, with an error
            of at most :attr:`error_bound`. Then :math:`z` also depends on
            earlier states of the graph.
        bound (float): the largest magnitude that an entry of :obj:`x` may
            ever have. (default: :obj:`16.0`)
        bits (int): :math:`f`, from 1 to 51. More bits are more exact, but a
            node may have fewer neighbours: less than :math:`2^{62 - f} /`
            :obj:`bound`. (default: :obj:`40`)
        directed (bool, optional): whether edges have one direction; by default
            yes, if any edge of :obj:`graph` lacks its reverse.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> data = Data(x=torch.eye(3), edge_index=path)
        >>> PropagatedFeatures(data, 'sgc').remove_edges([[0], [1]])
        2
    """

    @renamed(levels='K')
    def __init__(
        self,
        graph: CSRGraph | Data,
        x: Tensor | str | Measure | None = None,
        measure: str | Measure = 'sgc',
        *,
        alpha: Fraction | None = None,
        t: float | None = None,
        K: int | None = None,
        theta: Positive | None = None,
        bound: Positive = BOUND,
        bits: Annotated[int, Int(1, 51)] = BITS,
        directed: bool | None = None,
    ) -> None:
        ids = NodeIds()
        if isinstance(x, str | Measure):
            measure, x = x, None
        if isinstance(graph, Data):
            ids, data = NodeIds.of_data(graph, 'graph'), graph
            graph, x = CSRGraph.from_data(data), data.x if x is None else x
        if x is None:
            raise ValueError("'x' needs to be given beside a CSRGraph")
        if isinstance(measure, str):
            K = 2 if (measure, K) == ('sgc', None) else K
            own = alpha if theta is None else None
            alpha = None if theta is None else alpha
            measure = make_measure(measure, None, alpha=own, t=t, K=K)
        if graph.is_weighted or graph.has_duplicates:
            raise ValueError(
                "'graph' needs to be unweighted and without duplicate edges"
            )
        one_way = check_directed(directed, measure, graph.is_undirected)
        if graph.device.type != 'cpu':
            raise ValueError(
                f"'graph' needs to be on the CPU (got {graph.device})"
            )
        if (alpha is None) != (theta is None):
            raise ValueError(
                "'alpha' and 'theta' need each other (got "
                f'alpha={alpha} and theta={theta})'
            )
        dtypes = (torch.float32, torch.float64)
        shape = (graph.num_nodes, 'num_columns')
        dtype = dtypes if theta is None else dtypes[1:]
        check_tensor('x', x, dtype, shape, finite=True)
        if theta is not None and one_way:
            raise ValueError("'graph' needs to be undirected with 'theta'")
        self._how: dict[str, Any] = {'alpha': alpha, 'theta': theta}
        self._how |= {'bound': bound, 'bits': bits}
        self._begin(graph, x, measure, one_way, _NONE, ids)

    def _begin(
        self,
        graph: CSRGraph,
        x: Tensor,
        measure: Measure,
        directed: bool,
        gone: Tensor,
        ids: NodeIds,
    ) -> None:
        # From these arguments alone, independently of any earlier state.
        self._live: Sums | SeriesState
        if self._how['theta'] is None:
            how = {name: self._how[name] for name in ('bound', 'bits')}
            self._graph = self._live = Sums(
                graph, x, measure, directed=directed, gone=gone, **how
            )
        else:
            self._graph = bare(graph, measure, directed, gone)
            steps = self._how['alpha'], self._how['theta']
            self._live = SeriesState(self._graph, x, measure, *steps)
        self._graph.ids = self._ids = ids
        self._lock = ObjectLock()
        # What takes an edit back that has not ended.
        self._undo: Undo = []

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        # The pickle is a function of the present data: what sums are kept,
        # spare room in the lists and residues would reveal the history.
        self._settle()
        live = self._live
        return {
            'edge_index': live.edge_index(),
            'x': live.x.clone(),
            'measure': live.measure,
            'alive': live.alive.clone(),
            'directed': not live.undirected,
            'n_id': self._ids.n_id,
            **self._how,
        }

    def __setstate__(self, held: dict[str, Any]) -> None:
        alive, x = held['alive'], held['x']
        # States of earlier versions have no bound: take one that holds their
        # features.
        most = max(float(x.abs().max()) if x.numel() else 0.0, BOUND)
        size = math.ceil(math.log2(most))
        names = 'alpha', 'theta', 'bound', 'bits'
        earlier = {'bound': 2.0**size, 'bits': min(BITS, 51 - size)}
        self._how = {name: {**earlier, **held}[name] for name in names}
        self._begin(
            CSRGraph.from_edge_index(held['edge_index'], alive.numel()),
            x,
            held['measure'],
            held['directed'],
            (~alive).nonzero().view(-1),
            NodeIds(held.get('n_id')),
        )

    @property
    @synchronized
    def graph(self) -> CSRGraph:
        """The present graph; nodes that were removed have no edges in it."""
        self._settle()
        live = self._live
        return CSRGraph.from_edge_index(live.edge_index(), live.num_nodes)

    @property
    @synchronized
    def nodes(self) -> Tensor:
        """The row numbers of the present nodes: int64, ascending."""
        self._settle()
        return self._live.alive.nonzero().view(-1)

    @property
    def n_id(self) -> Tensor:
        """The ids of the present nodes: int64, by ascending row number."""
        return self._ids.of(self.nodes)

    @property
    @synchronized
    def num_nodes(self) -> int:
        """Number of rows, including those of removed nodes."""
        self._settle()
        return self._live.num_nodes

    @property
    @synchronized
    def error_bound(self) -> float:
        """Bound of the Frobenius norm of the errors of all features."""
        self._settle()
        return self._live.error_bound

    @editing
    def rows(self, nodes: Nodes | None = None) -> Tensor:
        """Return a copy of propagated features: ``[k, num_columns]``.

        Args:
            nodes (list[int] or Tensor, optional): the ids of k nodes, or a
                bool mask; by default all rows, with zeros for removed nodes.

        Raises:
            NotThere: if a node was removed or never added.
        """
        self._settle()
        exact = self._live is self._graph and self._ids.n_id is None
        if nodes is None:
            return self._live.rows()
        if exact and isinstance(nodes, Tensor) and nodes.dtype == torch.int64:
            # The sums themselves find those that are not there.
            check_tensor('nodes', nodes, torch.int64, ('num',))
            return self._live.rows(nodes)
        return self._live.rows(self._there('nodes', nodes))

    @editing
    def insert_edges(self, edge_index: Tensor) -> int:
        """Add edges.

        Args:
            edge_index (Tensor): the ids of their ends: int64, ``[2, k]``. In
                an undirected graph, each pair stands for both directions.

        Returns:
            int: the number of nodes whose degree, neighbours or features
            changed.
        """
        return self._play(Step(edges=self._edges(edge_index)))

    @editing
    def remove_edges(self, edge_index: Tensor) -> int:
        """Remove edges.

        Args:
            edge_index (Tensor): the ids of their ends: int64, ``[2, k]``. In
                an undirected graph, each pair stands for both directions.

        Returns:
            int: the number of nodes whose degree, neighbours or features
            changed.

        Raises:
            NotThere: if an edge does not exist.
        """
        return self._play(Step(cut=self._edges(edge_index)))

    @editing
    def remove_nodes(self, nodes: Nodes) -> int:
        """Remove nodes, with their edges and features.

        Args:
            nodes (list[int] or Tensor): the ids of nodes, or a bool mask.

        Returns:
            int: the number of nodes whose degree, neighbours or features
            changed.

        Raises:
            NotThere: if a node does not exist.
        """
        return self._play(Step(gone=self._there('nodes', nodes).unique()))

    @editing
    def insert_nodes(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Add nodes, with edges between them and to others.

        Args:
            x (Tensor): the features of the new nodes, ``[k, num_columns]``.
            edge_index (Tensor): the ids of the ends of added edges: int64,
                ``[2, m]``. The new nodes get the ids after the largest one so
                far (from :attr:`num_nodes` on, if ids are positions).

        Returns:
            Tensor: int64, ``[k]``: the ids of the new nodes.
        """
        dtype, columns = self._live.x.dtype, self._live.num_columns
        check_tensor('x', x, dtype, ('k', columns), finite=True)
        first = self._live.num_nodes
        edges = self._edges(edge_index, x.size(0))
        self._play(Step(new=x, edges=edges))
        return self._ids.of(torch.arange(first, first + x.size(0)))

    @editing
    def update_features(self, nodes: Nodes, x: Tensor) -> int:
        """Replace the features of nodes.

        Args:
            nodes (list[int] or Tensor): the ids of k distinct nodes.
            x (Tensor): the new features of these nodes, ``[k, num_columns]``.

        Returns:
            int: the number of nodes whose propagated features changed.
        """
        nodes = self._there('nodes', nodes)
        if nodes.unique().numel() != nodes.numel():
            raise ValueError("'nodes' needs to have each node once")
        shape = (nodes.numel(), self._live.num_columns)
        check_tensor('x', x, self._live.x.dtype, shape, finite=True)
        return self._play(Step(nodes=nodes, x=x))

    @editing
    def update(self, update: Update | RemovalRequest | Sequence[Any]) -> int:
        """Apply removals, additions and changes as one edit: all or none.

        Args:
            update (Update, RemovalRequest or list): the edit, or a list of
                edits, which are applied in this order.

        Returns:
            int: the number of nodes whose degree, neighbours or features
            changed.
        """
        updates = Update.of(update)
        self._settle()
        try:
            changed = [*map(self._updated, updates)]
        except BaseException:
            self._settle()
            raise
        self._undo = []
        if len(changed) == 1:
            return changed[0].numel()
        return torch.cat([_NONE, *changed]).unique().numel()

    def _updated(self, update: Update) -> Tensor:
        return update.played(
            lambda left: self._live.play([self._step(left)], self._undo)[0]
        )

    def _step(self, update: Update) -> Step:
        live, part = self._live, Part()
        if update.remove is not None:
            part = self._ids.part(update.part)
        nodes, new, names = update.nodes, None, live.num_nodes
        labelled = nodes is not None and nodes.is_labelled
        if part.labels or update.labels is not None or labelled:
            raise ValueError(
                "'update' needs nodes, edges and features (got labels, of "
                'which there are none here)'
            )
        if update.graphs or update.graph:
            raise ValueError(
                "'graphs' and 'graph' need a classifier of graphs"
            )
        shape = ('k', live.num_columns)
        if nodes is not None:
            nodes.check_next(self._ids.next(names))
            new = nodes.x
            check_tensor('nodes', new, live.x.dtype, shape)
            names += new.size(0)
        edges = self._edges(
            update.arcs(live.undirected), names - live.num_nodes
        )
        check_range('edges', edges, names, 'the nodes')
        of = torch.tensor(part.features, dtype=torch.int64)
        x = live.x.new_zeros((of.numel(), live.num_columns))
        if update.features is not None:
            check_tensor('features', update.features[1], live.x.dtype, shape)
            changed = self._ids.rows(update.features[0])
            check_range('features', changed, names, 'the nodes')
            of = torch.cat([of, changed])
            x = torch.cat([x, update.features[1]])
        cut, missing = self._graph.cut(part)
        if missing != Part():
            raise NotThere(self._ids.request(missing))
        gone = torch.tensor(part.nodes, dtype=torch.int64)
        return Step(gone, cut, new, edges, of, x)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self._live.measure}, '
            f'num_nodes={self._live.num_nodes}, '
            f'num_columns={self._live.num_columns})'
        )

    def _settle(self) -> None:
        # End an interrupted edit.
        put_back(self._undo)
        self._live.mend()

    def _play(self, step: Step) -> int:
        self._settle()
        return self._live.play([step])[0].numel()

    def _there(self, name: str, nodes: Nodes) -> Tensor:
        alive = self._live.alive
        rows = self._ids.rows_of(name, nodes, alive.numel())
        if not bool(alive[rows].all()):
            gone = self._ids.of(rows[~alive[rows]])
            raise NotThere(RemovalRequest(nodes=gone))
        return rows

    def _edges(self, edge_index: Tensor, new: int = 0) -> Tensor:
        edges = plain_index('edge_index', edge_index)
        if self._ids.n_id is None:
            return edges
        count = self._live.num_nodes + new
        rows = self._ids.rows_of('edge_index', edges.reshape(-1), count)
        return rows.view(2, -1)
