"""Data of a node classifier: graph, features and training rows.

Graph and features are edited in place, with undo. What describes the training
rows is replaced, never changed, but for the features of the rows; so an undo
puts back the old objects and the rows that were written over.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import check_instance
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import NodeIds, NotThere, Part
from pyg_trust.report import fingerprint
from pyg_trust.unlearning.heads import (
    HEAD,
    UNIT,
    Gradient,
    Objective,
    Problem,
    Residual,
    hidden,
    norm,
    slopes,
    targets,
    times,
    transposed_times,
)
from pyg_trust.unlearning.incremental import ColumnProblem, SeriesState, bare
from pyg_trust.unlearning.sums import Step, Sums, put_back
from pyg_trust.update import Update
from pyg_trust.verify import arrays, removal

__all__ = ['Change', 'Edit', 'NodeState', 'Pairs', 'Pending', 'Settings']

# The number of neighbouring rows that share one digest.
BLOCK = 64
_NONE = torch.empty(0, dtype=torch.int64)
# The parts that an edit replaces.
_REPLACED = {
    *('pending', 'featureless', 'names', 'place', 'ends', 'cuts'),
    *('y', 'Y', 'Z', 'square'),
}


class Pairs(NamedTuple):
    """Settings of a link classifier's pairs, independent of the edges."""

    # An upper bound of the number of rows there may ever be.
    names: int
    # The number of negative pairs of a node, and the seed of the partners.
    partners: int
    seed: int
    # The factor of products of rows.
    scale: float


class Settings(NamedTuple):
    """The hyperparameters of a node classifier, independent of the data.

    ``theta`` is :obj:`None` for exact features, ``pairs`` for nodes.
    """

    measure: Measure
    alpha: float | None
    theta: float | None
    lam: float
    bound: float
    pairs: Pairs | None = None

    def arrays(self, std: float) -> dict[str, np.ndarray]:
        """Return the settings of the kernel's proof of a noisy release."""
        measure = self.measure
        given = {
            'head': HEAD,
            'weights': measure.weights,
            'a': float(measure.a),
            'b': float(measure.b),
            'bits': self.bits,
            'lam': self.lam,
            'std': std,
            'self_loops': measure.self_loops,
            'along': measure.along,
        }
        return {name: np.array(value) for name, value in given.items()}

    def digest(self, std: float) -> str:
        """Hash the settings of a proof, without data and weights."""
        made = removal.setting(self.arrays(std))
        return made if self.pairs is None else fingerprint(made, *self.pairs)

    @property
    def bits(self) -> int:
        """The bits f of the grid: 2^f times the bound is about 2^44."""
        return min(44 - math.ceil(math.log2(self.bound)), 51)


class Edit(NamedTuple):
    """An update of a node classifier: removals, then additions, then changes.

    Nodes are rows, features are encoded, and labels are positions of classes,
    -1 for nodes that are not trained on. ``features`` and ``labels`` are pairs
    of nodes and new values. ``update`` is the user's argument.
    """

    part: Part
    x: Tensor | None = None
    y: Tensor = _NONE
    edges: Tensor = _NONE.view(2, 0)
    features: tuple[Tensor, Tensor] | None = None
    labels: tuple[Tensor, Tensor] | None = None
    update: Update | None = None

    @property
    def only_adds(self) -> bool:
        """Whether the edit removes nothing and changes nothing."""
        changes = self.features is not None or self.labels is not None
        return self.part == Part() and not changes


class Pending(NamedTuple):
    """Edits that are applied to the graph, but not to the training rows."""

    # The number of nodes before the edits.
    first: int
    # By node, the position of its class; -1 if it is not trained on.
    labels: dict[int, int]
    # Nodes whose degree, neighbours or features changed.
    named: tuple[Tensor, ...] = ()
    # Nodes whose features changed; with pushes, nodes that were pushed.
    features: tuple[Tensor, ...] = ()
    # Other nodes whose digest changed.
    sealed: tuple[Tensor, ...] = ()
    # The added edges.
    edges: tuple[Tensor, ...] = ()


class Change(NamedTuple):
    """The changes that an update made to features and gradient."""

    # Feature rows that may have changed, and how many of them are trained on.
    rows: int
    train_rows: int
    # At the old weights, on what remains; None where it has to be measured.
    gradient: Gradient | None
    # Nodes whose digest changed. They show what was removed: not to be kept.
    named: Tensor


class Moves(NamedTuple):
    """The training rows that an edit drops, adds and changes."""

    # The number of feature rows that may have changed.
    rows: int
    # Positions of rows that go.
    dropped: Tensor
    # The nodes, or pairs, that come, and the positions of their classes.
    keys: Tensor
    y: Tensor
    # Positions of rows whose features changed.
    kept: Tensor
    # Positions, and new classes.
    relabelled: tuple[Tensor, Tensor] = (_NONE, _NONE)


class NodeState:
    """Graph, features and training rows of a node classifier.

    Nodes are numbered by their rows, the positions at the fit; ``ids``
    has the ids that requests use. ``y`` has positions in ``classes``, -1 for
    nodes that are not trained on. With ``declared`` classes one may have no
    training node.
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
        # What takes the edits in place back, the last first.
        self.undo: list[Callable[[], object]] = []
        n = graph.num_nodes
        self.featureless = torch.zeros(n, dtype=torch.bool)
        if featureless is not None:
            self.featureless |= featureless
        gone = _NONE if alive is None else (~alive).nonzero().view(-1)
        measure = settings.measure
        self.levels: Sums | SeriesState
        if settings.theta is None:
            # A removal reads more rows than it writes: all sums are kept.
            self.levels = self.graph = Sums(
                graph,
                x,
                measure,
                bound=settings.bound,
                bits=settings.bits,
                reads=math.inf,
                directed=directed,
                gone=gone,
            )
        else:
            assert settings.alpha is not None
            self.graph = bare(graph, measure, directed, gone)
            self.levels = SeriesState(
                self.graph, x, measure, settings.alpha, settings.theta
            )
        self.graph.ids = self.ids
        self.pending = Pending(n, {})
        # Names are replaced and not changed: those that were counted last.
        self._counted: tuple[Tensor | None, int] = None, 0
        # The square of the norm of Z, from above, once it is needed.
        self.square: float | None = None
        self._train(y)

    def _train(self, y: Tensor) -> None:
        # The training rows: nodes by name, -1 for rows that were dropped.
        self.names = (y >= 0).nonzero().view(-1)
        self.place = torch.full((y.numel(),), -1)
        self.place[self.names] = torch.arange(self.names.numel())
        self.y = y[self.names]
        self.Y = targets(self.y, len(self.classes))
        exact = isinstance(self.levels, Sums)
        self.Z = self.levels.rows(self.names) if exact else None

    @property
    def num_train(self) -> int:
        """The number of training rows that the weights are fitted to."""
        if self._counted[0] is not self.names:
            self._counted = self.names, int((self.names >= 0).sum())
        return self._counted[1]

    @property
    def num_pending(self) -> int:
        """The number of nodes and edges added since the last fit."""
        edges = sum(edges.size(1) for edges in self.pending.edges)
        return self.graph.num_nodes - self.pending.first + edges

    @property
    def mu(self) -> float:
        r"""Weight of the penalty: :math:`\lambda n`, for n training rows."""
        return self.settings.lam * self.num_train

    @property
    def shape(self) -> tuple[int, int]:
        """The number of features and of outputs."""
        return self.levels.x.size(1), self.Y.size(1)

    def problem(self, goal: float) -> Problem:
        """Return the objective that training minimises."""
        if self.Z is not None:
            if self.square is None:
                self.square = norm(self.Z) ** 2
            size = math.sqrt(self.square)
            return Objective(self.Z, self.Y, self.mu, size=size)
        assert isinstance(self.levels, SeriesState)
        there = self.names >= 0
        train, Y = self.names[there], self.Y[there]
        return ColumnProblem(self.levels, train, Y, self.mu, goal)

    def margins(self, weight: Tensor, nodes: Tensor) -> Tensor:
        """Compute the margins of present nodes at exact features."""
        if isinstance(self.levels, Sums):
            return self.levels.rows(nodes) @ weight
        signal = self.levels.x @ weight
        return self.levels.solve(signal, 1e-12)[nodes]

    def check(self, edit: Edit) -> Tensor:
        """Refuse an edit of missing nodes or edges; return edges to cut.

        :meth:`play` checks additions.
        """
        part, n = edit.part, self.graph.num_nodes
        alive, gone = self.graph.alive.numpy(), self.featureless.numpy()

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
        unlabelled = (v for v in (*part.labels, *off) if not self.trains(v))
        cut, lost = self.graph.cut(part)
        missing = Part(
            nodes=tuple({*lacking(part.nodes), *left}),
            features=(*(v for v in part.features if lacking([v]) or gone[v]),),
            labels=tuple(unlabelled),
            edges=lost.edges,
            directed_edges=lost.directed_edges,
        )
        if missing != Part():
            raise NotThere(self.ids.request(missing))
        return cut

    def play(self, edit: Edit) -> None:
        """Apply an edit to graph and features; leave the training rows."""
        part, was, levels = edit.part, self.pending, self.levels
        cut = self.check(edit)
        self._remember()
        n = self.graph.num_nodes
        known = (v for v in part.nodes if self.trains(v))
        labels = dict.fromkeys((*known, *part.labels), -1)
        gone = torch.tensor(part.nodes, dtype=torch.int64)
        empty = torch.tensor(part.features, dtype=torch.int64)
        of, x = empty, levels.x.new_zeros((len(empty), levels.num_columns))
        if edit.features is not None:
            of = torch.cat([of, edit.features[0]])
            x = torch.cat([x, edit.features[1]])
        step = Step(gone, cut, edit.x, edit.edges, of, x)
        named, _ = levels.play([step], self.undo)
        new = torch.arange(n, self.graph.num_nodes)
        none = torch.full_like(new, -1)
        if new.numel() and not self.settings.pairs:
            self.place = torch.cat([self.place, none])
        marked = torch.cat([gone, of])
        if marked.numel() or new.numel():
            self.featureless = torch.cat([self.featureless, none < -1])
            self.featureless[of] = False
            self.featureless[torch.cat([gone, empty])] = True
        labels |= {n + k: y for k, y in enumerate(edit.y.tolist()) if y >= 0}
        if edit.labels is not None:
            nodes, y = (each.tolist() for each in edit.labels)
            labels |= dict(zip(nodes, y, strict=True))
        moved = torch.cat([marked, new])
        if isinstance(levels, SeriesState):
            moved = levels.pushed.unique()
        ends = cut.reshape(-1), edit.edges.reshape(-1)
        self.pending = Pending(
            was.first,
            {**was.labels, **labels},
            (*was.named, named),
            (*was.features, moved),
            (*was.sealed, torch.cat([*ends, marked, new])),
            (*was.edges, edit.edges),
        )

    def follow(self, W: Tensor, old: Gradient) -> Change:
        """Apply pending edits to the training rows and the gradient.

        Updates the gradient by the changed rows alone; its bound includes the
        rounding. Refuses to leave a class without a training node.
        """
        self._remember()
        was, before, had = self.pending, self.mu, self._members()
        named, features, sealed = (
            torch.cat([_NONE, *part])
            for part in (was.named, was.features, was.sealed)
        )
        named = named.unique()
        sealed = torch.cat([sealed, named, torch.tensor([*was.labels]).long()])
        self.pending = Pending(self.graph.num_nodes, {})
        touched: Tensor | None = features
        if isinstance(self.levels, Sums):
            touched = self.levels.touched(named, features)
        moves = self._moves(was, touched)
        dropped, kept = moves.dropped, moves.kept
        goals = self.Y[dropped]
        first = self.names.numel()
        if dropped.numel():
            self._drop(dropped)
            kept = kept[self.names[kept] >= 0]
        if moves.keys.numel():
            self._append(moves.keys)
        new = first + torch.arange(moves.keys.numel())
        rows = torch.cat([moves.relabelled[0], new])
        kept = torch.cat([kept, rows]).unique() if rows.numel() else kept
        goals = torch.cat([self.Y[kept], goals])
        if rows.numel():
            self._relabel(rows, torch.cat([moves.relabelled[1], moves.y]))
        self._check_members(had)
        gradient = self._write(kept, dropped, goals, W, old, before)
        return Change(moves.rows, kept.numel(), gradient, sealed)

    def back(self) -> None:
        """Take all edits since :meth:`done` back; may be interrupted."""
        put_back(self.undo)

    def done(self) -> None:
        """Drop the way back, and with it what was removed."""
        self.undo.clear()

    def compact(self) -> None:
        """Delete the dropped rows; this can't be undone."""
        keep = self.names >= 0
        parts: dict[str, Any] = {
            name: getattr(self, name)[keep] for name in ('names', 'y', 'Y')
        }
        parts['Z'] = None if self.Z is None else self.Z[keep]
        parts |= self._places(keep)
        # All at once: what fails before leaves no rows of two lengths.
        vars(self).update(parts, square=None)

    def _places(self, keep: Tensor) -> dict[str, Tensor]:
        names = self.names[keep]
        place = torch.full_like(self.place, -1)
        place[names] = torch.arange(names.numel())
        return {'place': place}

    def _remember(self) -> None:
        # The parts that are replaced, before the first of them is.
        if not self.undo:
            held = {k: v for k, v in vars(self).items() if k in _REPLACED}
            self.undo.append(lambda: vars(self).update(held))

    def _moves(self, was: Pending, touched: Tensor | None) -> Moves:
        nodes = torch.tensor(sorted(was.labels), dtype=torch.int64)
        y = torch.tensor([was.labels[v] for v in nodes.tolist()]).long()
        place = self.place[nodes]
        dropped = place[(place >= 0) & (y < 0)]
        if touched is None:
            kept = (self.names >= 0).nonzero().view(-1)
            count = int(self.graph.alive.sum())
        else:
            kept, count = self.place[touched], touched.unique().numel()
            kept = kept[kept >= 0]
        stays, comes = (place >= 0) & (y >= 0), (place < 0) & (y >= 0)
        relabelled = place[stays], y[stays]
        return Moves(count, dropped, nodes[comes], y[comes], kept, relabelled)

    def _relabel(self, rows: Tensor, y: Tensor) -> None:
        self.y = self.y.index_copy(0, rows, y)
        self.Y = self.Y.index_copy(0, rows, targets(y, len(self.classes)))

    def _drop(self, rows: Tensor) -> None:
        # All of training rows but their features.
        self.place = self.place.index_fill(0, self.names[rows], -1)
        self._clear(rows)

    def _clear(self, rows: Tensor) -> None:
        self.names = self.names.index_fill(0, rows, -1)
        self.y = self.y.index_fill(0, rows, -1)
        self.Y = self.Y.index_fill(0, rows, 0)

    def _append(self, keys: Tensor) -> None:
        # Training rows of nothing, for what is written next.
        first = self.names.numel()
        self._extend(keys)
        at = torch.arange(first, first + keys.numel())
        self.place = self.place.index_copy(0, keys, at)

    def _extend(self, keys: Tensor) -> None:
        self.names = torch.cat([self.names, keys])
        for name, value in (('y', -1), ('Y', 0), ('Z', 0)):
            old = getattr(self, name)
            if old is not None:
                more = old.new_full((keys.numel(), *old.shape[1:]), value)
                setattr(self, name, torch.cat([old, more]))

    def _fresh(self, rows: Tensor) -> Tensor:
        # Training rows, computed from the present graph.
        return self.levels.rows(self.names[rows])

    def _write(
        self,
        kept: Tensor,
        dropped: Tensor,
        goals: Tensor,
        W: Tensor,
        old: Gradient,
        before: float,
    ) -> Gradient | None:
        # Writes training rows, and follows the gradient where that is faster.
        if self.Z is None:
            return None
        rows = torch.cat([kept, dropped])
        Z, held = self.Z, self.Z.index_select(0, rows)
        self.undo.append(lambda: Z.index_copy_(0, rows, held))
        if dropped.numel():
            Z.index_fill_(0, dropped, 0)
        fresh = self._fresh(kept)
        Z.index_copy_(0, kept, fresh)
        square, self.square = self.square, None
        if 2 * rows.numel() >= self.names.numel():
            return None
        G = slopes(times(fresh, W), self.Y.index_select(0, kept))
        gone_G = slopes(times(held, W), goals)
        value = transposed_times(fresh, G).sub_(transposed_times(held, gone_G))
        new, gone = norm(fresh) ** 2, norm(held) ** 2
        if square is not None:
            # Include the rounding.
            shift = new - gone + 1e-10 * (new + gone)
            self.square = max(0.0, square + shift) + 4 * UNIT * square
        norms = math.sqrt(new + gone), math.hypot(norm(G), norm(gone_G))
        count, more = rows.numel() + kept.numel(), self.mu - before
        return self._follow(old, value, norms, count, W, more)

    def _follow(
        self,
        old: Gradient,
        value: Tensor,
        norms: tuple[float, float],
        count: int,
        W: Tensor,
        more: float,
    ) -> Gradient:
        # So many rows of these norms, and of such slopes, change the gradient
        # by `value`, and the penalty by `more`.
        value.add_(old.value).add_(W, alpha=more)
        weight = norm(W)
        drift = (abs(more) + self.mu) * weight
        missing = hidden(*norms, weight, (count, *W.shape), drift)
        # Adding matrices rounds the last bits of the sums.
        measured = norm(value)
        missing += old.norm.upper - old.norm.measured
        missing += 4 * UNIT * (measured + old.norm.measured)
        return Gradient(value, Residual(measured, measured + missing))

    def trains(self, node: int) -> bool:
        """Whether a node is trained on, pending edits included."""
        label = self.pending.labels.get(node)
        if label is not None:
            return label >= 0
        known = 0 <= node < self.place.numel()
        return known and int(self.place[node]) >= 0

    def _members(self) -> Tensor:
        # How many training rows each class has.
        return self.y[self.y >= 0].bincount(minlength=len(self.classes))

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

    def every(self) -> Tensor:
        """Return the arguments of :meth:`margins` for all predictions."""
        return self.graph.alive.nonzero().view(-1)

    def error(self, fitted: 'NodeState') -> tuple[float, float]:
        """Compute the error of the features and a bound of it."""
        now = self.rebuilt() if self.num_pending else fitted
        if isinstance(now.levels, SeriesState):
            exact = now.levels.solve(now.levels.x, 1e-12)
            error = float((self.levels.rows() - exact).norm())
            return error, self.levels.error_bound + 1e-9
        error = float((self.levels.rows() - now.levels.rows()).abs().max())
        (mine, Z), (other, anew) = self._sorted(), fitted._sorted()
        if not torch.equal(mine, other):
            return math.inf, 0.0
        return max(error, float((Z - anew).abs().max())), 0.0

    def _sorted(self) -> tuple[Tensor, Tensor]:
        assert self.Z is not None
        there = (self.names >= 0).nonzero().view(-1)
        order = there[self.names[there].argsort()]
        return self.names[order], self.Z[order]

    def blocks(self, nodes: Tensor | None = None) -> dict[int, str]:
        """Hash the data of each block of ``BLOCK`` neighbouring rows.

        They have no salt: seal them.
        """
        graph, n = self.graph, self.graph.num_nodes
        if nodes is None:
            nodes = torch.arange(0, n, BLOCK)
        start, length, col = (part.numpy() for part in graph.leaving)
        parts = graph.alive, graph.own_loop, self.featureless, self.levels.x
        rows = [(str(part.dtype), part.numpy()) for part in parts]
        degree = graph.degree.numpy()
        made = {}
        for block in (nodes // BLOCK).unique().tolist():
            held = slice(block * BLOCK, min((block + 1) * BLOCK, n))
            # Row after row, without the spare room behind each.
            count = length[held]
            end = count.cumsum()
            at = np.arange(end[-1]) + (start[held] - end + count).repeat(count)
            label = self._label(torch.arange(held.start, held.stop)).numpy()
            made[block] = arrays.fingerprint(
                arrays.Tensor('torch.int64', degree[held]),
                arrays.Tensor('torch.int32', col[at]),
                *(arrays.Tensor(kind, part[held]) for kind, part in rows),
                arrays.Tensor('torch.int64', label),
            )
        return made

    def _label(self, nodes: Tensor) -> Tensor:
        # The classes that the weights are fitted to, -1 for other nodes.
        place = self.place[nodes]
        return torch.where(place >= 0, self.y[place], -1)

    def labels(self) -> Tensor:
        """Return the classes of all nodes: int64, -1 for others."""
        return self._label(torch.arange(self.graph.num_nodes))

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted data and the pending additions, canonically."""
        graph, was, n = self.graph, self.pending, self.pending.first
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
            'y': self._label(torch.arange(n)),
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
        # Older files have no declared classes.
        directed, declared = held['directed'], held.get('declared', False)
        check_instance('directed', directed, bool)
        check_instance('declared', declared, bool)
        return cls(
            settings,
            classes,
            CSRGraph.from_edge_index(held['edge_index'], held['y'].numel()),
            held['x'],
            held['y'],
            held['alive'],
            held['featureless'],
            directed,
            declared,
            NodeIds(held.get('n_id'), 'n_id'),
        )

    def take(self, held: dict[str, Any]) -> 'NodeState':
        """Apply the pending additions in the result of :meth:`to_dict`."""
        if 'came' in held:
            came = held['came']
            self.play(Edit(Part(), came['x'], came['y'], came['edges']))
            self.done()
        return self

    def fitted(self) -> 'NodeState':
        """Make the data that the weights are fitted to, from scratch."""
        return self.from_dict(self.settings, self.classes, self.to_dict())

    def rebuilt(self) -> 'NodeState':
        """Make the state from the present data alone."""
        held = self.to_dict()
        return self.from_dict(self.settings, self.classes, held).take(held)
