"""The data of a node classifier's state, with undoable edits."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import check_instance
from pyg_trust.graph import CSRGraph
from pyg_trust.ops import loss_change
from pyg_trust.removal import NodeIds, NotThere, Part
from pyg_trust.unlearning.heads import (
    UNIT,
    Gradient,
    Objective,
    Problem,
    Residual,
    hidden_by,
    targets,
)
from pyg_trust.unlearning.incremental import SeriesState, bare
from pyg_trust.unlearning.journal import Journal
from pyg_trust.unlearning.node_parts import (
    Change,
    ColumnProblem,
    Edit,
    Pending,
    Settings,
)
from pyg_trust.unlearning.sums import Step, Sums
from pyg_trust.update import directs
from pyg_trust.verify import arrays

# The number of neighbouring names that share one digest.
BLOCK = 64
_NONE = torch.empty(0, dtype=torch.int64)


class NodeState:
    """Graph, features and training rows of a node classifier.

    All tensors are its own. Nodes are named by their rows, the positions at
    the fit; :attr:`ids` has the ids by which requests name them.

    Args:
        settings (Settings): the settings, which do not depend on the data.
        classes (tuple[int, ...]): the class labels, in ascending order.
        graph (CSRGraph): the graph.
        x (Tensor): float64, ``[num_nodes, d]``.
        y (Tensor): int64, ``[num_nodes]``: positions in :obj:`classes`; -1
            for nodes that are not trained on.
        alive (Tensor, optional): bool, ``[num_nodes]``: a mask of the present
            nodes. (default: :obj:`None`)
        featureless (Tensor, optional): bool, ``[num_nodes]``: a mask of the
            nodes whose features were removed. (default: :obj:`None`)
        directed (bool): whether the graph counts as directed, even if all
            edges go both ways. (default: :obj:`False`)
        declared (bool): whether the user passed the classes, so that a class
            may have no training node. (default: :obj:`False`)
        ids (NodeIds, optional): the ids of the nodes; by default the rows.
            (default: :obj:`None`)
    """

    def __init__(
        self,
        settings: Settings,
        classes: tuple[int, ...],
        graph: CSRGraph,
        x: Tensor,
        y: Tensor,
        alive: Tensor | None = None,
        featureless: Tensor | None = None,
        directed: bool = False,
        declared: bool = False,
        ids: NodeIds | None = None,
    ) -> None:
        self.settings = settings
        self.ids = NodeIds() if ids is None else ids
        self.classes, self.declared = classes, declared
        measure = settings.measure
        self.journal = Journal()
        n = graph.num_nodes
        self.featureless = torch.zeros(n, dtype=torch.bool)
        if featureless is not None:
            self.featureless |= featureless
        gone = torch.empty(0, dtype=torch.int64)
        if alive is not None:
            gone = (~alive).nonzero().view(-1)
        self.levels: Sums | SeriesState
        if settings.theta is None:
            # A removal reads more rows than it writes: all sums are kept.
            self.levels = Sums(
                graph,
                x,
                measure,
                bound=settings.bound,
                bits=settings.bits,
                reads=math.inf,
                directed=directed,
                gone=gone,
            )
            self.graph = self.levels
        else:
            assert settings.alpha is not None
            self.graph = bare(graph, measure, directed, gone)
            self.levels = SeriesState(
                self.graph, x, measure, settings.alpha, settings.theta
            )
        self.graph.ids = self.ids
        self.pending = Pending(n, {})
        self.names = (y >= 0).nonzero().view(-1)
        self.place = torch.full((n,), -1)
        self.place[self.names] = torch.arange(self.names.numel())
        self.y = y[self.names]
        self.Y = targets(self.y, len(classes), settings.head)
        self.Z: Tensor | None = None
        # The square of its norm, from above, once it is needed.
        self.square: float | None = None
        if isinstance(self.levels, Sums):
            self.Z = self.levels.rows(self.names)

    @property
    def num_train(self) -> int:
        """The number of training nodes that the weights are fitted to."""
        return int((self.names >= 0).sum())

    @property
    def num_pending(self) -> int:
        """The number of nodes and edges added since the last fit."""
        edges = sum(edges.size(1) for edges in self.pending.edges)
        return self.graph.num_nodes - self.pending.first + edges

    @property
    def mu(self) -> float:
        r"""Weight of the penalty: :math:`\lambda n`, for n training nodes."""
        return self.settings.lam * self.num_train

    @property
    def shape(self) -> tuple[int, int]:
        """The number of features and of outputs."""
        return self.levels.x.size(1), self.Y.size(1)

    def problem(self, goal: float, B: Tensor | None = None) -> Problem:
        """Return the objective that training minimises."""
        head = self.settings.head
        if self.Z is not None:
            if self.square is None:
                self.square = _norm(self.Z) ** 2
            size = math.sqrt(self.square)
            return Objective(self.Z, self.Y, self.mu, head, B, size)
        assert isinstance(self.levels, SeriesState)
        there = self.names >= 0
        train, Y = self.names[there], self.Y[there]
        return ColumnProblem(self.levels, train, Y, self.mu, head, goal, B)

    def margins(self, weight: Tensor, nodes: Tensor) -> Tensor:
        """Compute the margins of nodes at exact features.

        Args:
            weight (Tensor): ``[d, num_outputs]``.
            nodes (Tensor): int64: present nodes.
        """
        if isinstance(self.levels, Sums):
            return self.levels.rows(nodes) @ weight
        signal = self.levels.x @ weight
        return self.levels.solve(signal, 1e-12)[nodes]

    # Updates ################################################################

    def check(self, edit: Edit) -> None:
        """Refuse an edit of missing nodes or edges; change nothing.

        :meth:`play` checks additions.
        """
        part = edit.part
        alive, n = self.graph.alive.numpy(), self.graph.num_nodes
        gone = self.featureless.numpy()

        def lacking(nodes: Iterable[int]) -> list[int]:
            return [v for v in nodes if not (0 <= v < n and alive[v])]

        there_now = n + (0 if edit.x is None else edit.x.size(0))
        ends, off = [edit.edges.reshape(-1)], list[int]()
        if edit.features is not None:
            ends.append(edit.features[0])
        if edit.labels is not None:
            ends.append(edit.labels[0])
            off = edit.labels[0][edit.labels[1] < 0].tolist()
        named = torch.cat(ends).unique().tolist()
        # What an edit changes may be new with it, and not what it removes.
        left = [v for v in lacking(named) if not n <= v < there_now]
        missing = Part(
            nodes=tuple({*lacking(part.nodes), *left}),
            features=(*(v for v in part.features if lacking([v]) or gone[v]),),
            labels=tuple(
                v for v in (*part.labels, *off) if not self.trains(v)
            ),
            **self._missing_edges(part),
        )
        if missing != Part():
            raise NotThere(self.ids.request(missing))

    def play(self, edit: Edit) -> None:
        """Apply an edit to graph and features; leave the training rows."""
        part, was, levels = edit.part, self.pending, self.levels
        self.check(edit)
        n = self.graph.num_nodes
        known = (v for v in part.nodes if self.trains(v))
        labels = dict.fromkeys((*known, *part.labels), -1)
        arcs = _edges(part.arcs)
        # One direction of undirected edges, or the present directed ones.
        once = arcs[0] <= arcs[1]
        if not self.graph.undirected:
            once = self.graph.has_edges(arcs)
        gone = torch.tensor(part.nodes, dtype=torch.int64)
        empty = torch.tensor(part.features, dtype=torch.int64)
        of, x = empty, levels.x.new_zeros((len(empty), levels.num_columns))
        if edit.features is not None:
            of = torch.cat([of, edit.features[0]])
            x = torch.cat([x, edit.features[1]])
        step = Step(gone, arcs[:, once], edit.x, edit.edges, of, x)
        named, _ = levels.play([step], self.journal)
        new = torch.arange(n, self.graph.num_nodes)
        if new.numel():
            self._grow(new)
        marked = torch.cat([gone, of])
        self.journal.rows(self.featureless, marked)
        self.featureless[of] = False
        self.featureless[torch.cat([gone, empty])] = True
        labels |= {n + k: y for k, y in enumerate(edit.y.tolist()) if y >= 0}
        if edit.labels is not None:
            nodes, y = (each.tolist() for each in edit.labels)
            labels |= dict(zip(nodes, y, strict=True))
        moved = torch.cat([marked, new])
        if isinstance(levels, SeriesState):
            moved = levels.pushed.unique()
        also = torch.cat(
            [arcs.reshape(-1), edit.edges.reshape(-1), marked, new]
        )
        self._wait(
            Pending(
                was.first,
                {**was.labels, **labels},
                (*was.named, named),
                (*was.features, moved),
                (*was.sealed, also),
                (*was.edges, edit.edges),
            )
        )

    def follow(self, W: Tensor, old: Gradient | None) -> Change:
        """Apply pending edits to the training rows and the gradient.

        Updates the gradient by the changed rows alone; its bound includes the
        rounding. Refuses to leave a class without a training node.
        """
        was, before, levels = self.pending, self.mu, self.levels
        named, features, sealed = (
            torch.cat([_NONE, *part])
            for part in (was.named, was.features, was.sealed)
        )
        nodes = torch.tensor(sorted(was.labels), dtype=torch.int64)
        named, sealed = named.unique(), torch.cat([sealed, named, nodes])
        y = torch.tensor([was.labels[v] for v in nodes.tolist()]).long()
        self._wait(Pending(self.graph.num_nodes, {}))
        touched: Tensor | None = features
        if isinstance(levels, Sums):
            touched = levels.touched(named, features)
        had, place = self._members(), self.place[nodes]
        dropped = place[(place >= 0) & (y < 0)]
        goals = self.Y.index_select(0, dropped)
        if dropped.numel():
            self._drop(dropped)
        self._append(nodes[(place < 0) & (y >= 0)])
        place, y = self.place[nodes[y >= 0]], y[y >= 0]
        if touched is None:
            kept = (self.names >= 0).nonzero().view(-1)
            count = int(self.graph.alive.sum())
        else:
            count = touched.unique().numel()
            kept = self.place.index_select(0, touched)
            kept = kept[kept >= 0]
        if y.numel():
            kept = torch.cat([kept, place]).unique()
        goals = torch.cat([self.Y.index_select(0, kept), goals])
        self._label(place, y)
        self._check_members(had)
        gradient = self._moved(kept, dropped, goals, W, old, before)
        return Change(count, kept.numel(), gradient, sealed)

    def _fresh(self, rows: Tensor) -> Tensor:
        # Training rows, computed from the present graph.
        return self.levels.rows(self.names.index_select(0, rows))

    def _moved(
        self,
        kept: Tensor,
        dropped: Tensor,
        goals: Tensor,
        W: Tensor,
        old: Gradient | None,
        before: float,
    ) -> Gradient | None:
        # Writes training rows, and follows the gradient where that is faster.
        if self.Z is None:
            return None
        rows = torch.cat([kept, dropped])
        Z, held = self.Z, self.Z.index_select(0, rows)
        self.journal.note(lambda: Z.index_copy_(0, rows, held))
        if dropped.numel():
            Z.index_fill_(0, dropped, 0)
        Z.index_copy_(0, kept, self._fresh(kept))
        if old is None or 2 * rows.numel() >= self.names.numel():
            self._resize(None)
            return None
        value, squares, sizes = loss_change(
            Z, self.Y, kept, held, goals, W, self.settings.head
        )
        new, gone = sizes.tolist()
        square = self.square
        if square is not None:
            # Include the rounding.
            shift = new - gone + 1e-10 * (new + gone)
            square = max(0.0, square + shift) + 4 * UNIT * square
        self._resize(square)
        slope = math.sqrt(math.fsum(squares.tolist()))
        norms = math.sqrt(new + gone), slope
        read, more = rows.numel() + kept.numel(), self.mu - before
        return self._follow(value, norms, read, W, more, old)

    def _wait(self, pending: Pending) -> None:
        was = self.pending
        self.journal.note(lambda: setattr(self, 'pending', was))
        self.pending = pending

    def _grow(self, new: Tensor) -> None:
        mark = torch.zeros_like(new, dtype=torch.bool)
        self._replace(
            featureless=torch.cat([self.featureless, mark]),
            place=torch.cat([self.place, torch.full_like(new, -1)]),
        )

    def _append(self, nodes: Tensor) -> None:
        # Training rows of nothing, for what is written next.
        k = nodes.numel()
        if k == 0:
            return
        first = self.names.numel()
        made = {'names': torch.cat([self.names, nodes])}
        for name, value in (('y', -1), ('Y', 0), ('Z', 0)):
            old = getattr(self, name)
            if old is not None:
                more = old.new_full((k, *old.shape[1:]), value)
                made[name] = torch.cat([old, more])
        self._replace(**made)
        self.journal.rows(self.place, nodes)
        self.place[nodes] = torch.arange(first, first + k)

    def _replace(self, **made: Tensor) -> None:
        before = {name: getattr(self, name) for name in made}
        self.journal.note(lambda: vars(self).update(before))
        vars(self).update(made)

    def _label(self, rows: Tensor, y: Tensor) -> None:
        Y = targets(y, len(self.classes), self.settings.head)
        for tensor, value in ((self.y, y), (self.Y, Y)):
            self.journal.rows(tensor, rows)
            tensor[rows] = value

    def _check_members(self, had: Tensor) -> None:
        # Classes that were declared may be empty.
        count = self._members()
        if not bool(count.any()):
            raise ValueError('the request would leave no training node')
        lost = (had > 0) & (count == 0)
        if bool(lost.any()) and not self.declared:
            empty = self.classes[int(lost.nonzero()[0])]
            raise ValueError(
                f'the request would leave class {empty} without a training '
                'node: retrain with the classes that remain'
            )

    def _resize(self, square: float | None) -> None:
        before = self.square
        self.journal.note(lambda: setattr(self, 'square', before))
        self.square = square

    def _drop(self, rows: Tensor) -> None:
        # Drop training rows, except for their features.
        gone = self.names[rows]
        for tensor, at, value in (
            (self.place, gone, -1),
            (self.y, rows, -1),
            (self.names, rows, -1),
            (self.Y, rows, 0),
        ):
            self.journal.rows(tensor, at)
            tensor.index_fill_(0, at, value)

    def compact(self) -> None:
        """Delete the dropped rows; this can't be undone."""
        keep = self.names >= 0
        names = self.names[keep]
        place = torch.full_like(self.place, -1)
        place[names] = torch.arange(names.numel())
        parts = {
            'names': names,
            'place': place,
            'y': self.y[keep],
            'Y': self.Y[keep],
            'Z': None if self.Z is None else self.Z[keep],
        }
        vars(self).update(parts)
        if self.Z is not None:
            self.square = _norm(self.Z) ** 2

    def _missing_edges(self, part: Part) -> dict[str, Any]:
        if not part.edges and not part.directed_edges:
            return {}
        graph = self.graph
        if part.directed_edges and graph.undirected:
            raise directs(*self.ids.of(_edges(part.directed_edges)[:, 0]))
        edges, arcs = _edges(part.edges), _edges(part.directed_edges)
        # One direction of an edge suffices.
        there = graph.has_edges(edges)
        if not graph.undirected:
            there |= graph.has_edges(edges.flip(0))
        lost = {
            'edges': edges[:, ~there],
            'directed_edges': arcs[:, ~graph.has_edges(arcs)],
        }
        return {
            kind: tuple((u, v) for u, v in found.t().tolist())
            for kind, found in lost.items()
        }

    def trains(self, node: int) -> bool:
        """Whether a node is trained on, pending edits included."""
        label = self.pending.labels.get(node)
        if label is not None:
            return label >= 0
        known = 0 <= node < self.place.numel()
        return known and int(self.place[node]) >= 0

    def _members(self) -> Tensor:
        # How many training nodes each class has.
        return self.y[self.y >= 0].bincount(minlength=len(self.classes))

    def _follow(
        self,
        value: Tensor,
        norms: tuple[float, float],
        count: int,
        W: Tensor,
        mu: float,
        old: Gradient,
    ) -> Gradient:
        # `count` rows of these norms, and of such slopes, change the gradient
        # by `value`, and the penalty by `mu`.
        value.add_(old.value).add_(W, alpha=mu)
        weight = _norm(W)
        missing = hidden_by(
            *norms,
            weight,
            (count, *W.shape),
            self.settings.head,
            (abs(mu) + self.mu) * weight,
        )
        # Adding matrices rounds the last bits of the sums.
        measured = _norm(value)
        missing += old.norm.upper - old.norm.measured
        missing += 4 * UNIT * (measured + old.norm.measured)
        return Gradient(value, Residual(measured, measured + missing))

    # Looking back ###########################################################

    def scratch(self) -> tuple['NodeState', Tensor]:
        """Recompute a state of the remaining data, with names from 0.

        Returns:
            tuple[NodeState, Tensor]: the state, and the present names of its
            nodes.
        """
        graph = self.graph
        ids = graph.alive.nonzero().view(-1)
        place = torch.full((graph.num_nodes,), -1)
        place[ids] = torch.arange(ids.numel())
        made = CSRGraph.from_edge_index(place[graph.edge_index()], ids.numel())
        y = self._labels(graph.num_nodes)
        return (
            NodeState(
                self.settings, self.classes, made, self.levels.x[ids], y[ids]
            ),
            ids,
        )

    def _labels(self, count: int) -> Tensor:
        # Look up pending names by the names of the fit.
        there = self.names >= 0
        y = torch.full((count,), -1)
        y[self.names[there]] = self.y[there]
        return y

    def every(self) -> Tensor:
        """Return the arguments of :meth:`margins` for all predictions."""
        return torch.arange(self.graph.num_nodes)

    def error(self, fresh: 'NodeState', ids: Tensor) -> tuple[float, float]:
        """Compute the error of the features and a bound of it.

        Args:
            fresh (NodeState): the data that the weights have to fit, computed
                anew by :meth:`scratch`.
            ids (Tensor): int64: their names.
        """
        now, names = self.scratch() if self.num_pending else (fresh, ids)
        held = self.levels.rows(names)
        if self.Z is None or fresh.Z is None:
            assert isinstance(now.levels, SeriesState)
            exact = now.levels.solve(now.levels.x, 1e-12)
            error = float((held - exact).norm())
            return error, self.levels.error_bound + 1e-9
        error = float((held - now.levels.rows()).abs().max())
        there = self.names >= 0
        place = torch.full((self.place.numel(),), -1)
        place[ids] = torch.arange(ids.numel())
        row = fresh.place[place[self.names[there]]]
        gap = self.Z[there] - fresh.Z[row]
        return max(error, float(gap.abs().max())), 0.0

    def blocks(self, nodes: Tensor | None = None) -> dict[int, str]:
        """Hash the data of each block of ``BLOCK`` neighbouring names.

        They have no salt: seal them.

        Args:
            nodes (Tensor, optional): int64: nodes whose blocks are hashed; by
                default all. (default: :obj:`None`)
        """
        graph, n = self.graph, self.graph.num_nodes
        if nodes is None:
            nodes = torch.arange(0, n, BLOCK)
        start, length, col = (part.numpy() for part in graph.leaving)
        parts = graph.alive, graph.own_loop, self.featureless, self.levels.x
        rows = [(str(part.dtype), part.numpy()) for part in parts]
        degree, y = graph.degree.numpy(), self.y.numpy()
        made = {}
        for block in (nodes // BLOCK).unique().tolist():
            held = slice(block * BLOCK, (block + 1) * BLOCK)
            place = self.place[held].numpy()
            label = np.where(place >= 0, y[place], -1)
            # Row after row, without the spare room behind each.
            count = length[held]
            end = count.cumsum()
            at = np.arange(end[-1]) + (start[held] - end + count).repeat(count)
            made[block] = arrays.fingerprint(
                arrays.Tensor('torch.int64', degree[held]),
                arrays.Tensor('torch.int32', col[at]),
                *(arrays.Tensor(kind, part[held]) for kind, part in rows),
                arrays.Tensor('torch.int64', label),
            )
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted data and the pending additions, canonically."""
        graph, was, n = self.graph, self.pending, self.pending.first
        y = self._labels(n)
        edges, x = graph.edge_index(), self.levels.x
        new = torch.cat([_NONE.view(2, 0), *was.edges], dim=1)
        if new.numel():
            both = torch.cat([new, new.flip(0)], 1)
            known = both if graph.undirected else new
            row, col = known * torch.tensor([[graph.num_nodes], [1]])
            keys = edges[0] * graph.num_nodes + edges[1]
            edges = edges[:, ~torch.isin(keys, row + col)]
            if graph.undirected:
                new = new.sort(0).values
            new = new.unique(dim=1)
        held = {
            'edge_index': edges,
            'x': x[:n].clone(),
            'y': y,
            'alive': graph.alive[:n].clone(),
            'featureless': self.featureless[:n].clone(),
            'directed': not graph.undirected,
            'declared': self.declared,
        }
        if self.ids.n_id is not None:
            held['n_id'] = self.ids.n_id.clone()
        if self.num_pending:
            names = range(n, graph.num_nodes)
            came = [was.labels.get(v, -1) for v in names]
            held['came'] = {
                'x': x[n:].clone(),
                'y': torch.tensor(came).long(),
                'edges': new,
            }
        return held

    @classmethod
    def from_dict(
        cls, settings: Settings, classes: tuple[int, ...], held: dict[str, Any]
    ) -> 'NodeState':
        """Rebuild the fitted data from the result of :meth:`to_dict`."""
        check_instance('directed', held['directed'], bool)
        # Older files have no declared classes.
        declared = held.get('declared', False)
        check_instance('declared', declared, bool)
        made = cls(
            settings,
            classes,
            CSRGraph.from_edge_index(held['edge_index'], held['y'].numel()),
            held['x'],
            held['y'],
            held['alive'],
            held['featureless'],
            held['directed'],
            declared,
            NodeIds(held.get('n_id'), 'n_id'),
        )
        return made

    def take(self, held: dict[str, Any]) -> 'NodeState':
        """Apply the pending additions in the result of :meth:`to_dict`."""
        if 'came' in held:
            came = held['came']
            self.play(Edit(Part(), came['x'], came['y'], edges=came['edges']))
            self.journal.clear()
        return self

    def fitted(self) -> 'NodeState':
        """Rebuild the data that the weights are fitted to.

        Itself, where nothing came since.
        """
        if not self.num_pending:
            return self
        return self.from_dict(self.settings, self.classes, self.to_dict())

    def rebuilt(self) -> 'NodeState':
        """Rebuild the state from the present data alone."""
        held = self.to_dict()
        return self.from_dict(self.settings, self.classes, held).take(held)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.vector_norm(matrix))


def _edges(pairs: Sequence[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
