"""The state that a node classifier keeps of its data, with undoable edits."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust import report
from pyg_trust._checks import check_instance
from pyg_trust.functional.heads import (
    GAMMA_1,
    UNIT,
    Factor,
    Gradient,
    Objective,
    Problem,
    Residual,
    hidden,
    hidden_by,
    slopes,
    targets,
)
from pyg_trust.functional.incremental import SeriesState, bare
from pyg_trust.functional.journal import Journal
from pyg_trust.functional.measures import Measure
from pyg_trust.functional.sums import Step, Sums
from pyg_trust.graph import CSRGraph
from pyg_trust.ops import loss_change
from pyg_trust.removal import Part

# So many neighbouring names have one digest.
BLOCK = 64


class Settings(NamedTuple):
    r"""The hyperparameters of a node classifier, independent of the data.

    Args:
        measure (Measure): of the features.
        alpha (float, optional): of the infinite series.
        theta (float, optional): the threshold of pushes; :obj:`None` for
            exact features.
        head (str): of :mod:`~pyg_trust.functional.heads`.
        lam (float): :math:`\lambda`.
        bound (float): of the features.
    """

    measure: Measure
    alpha: float | None
    theta: float | None
    head: str
    lam: float
    bound: float

    @property
    def bits(self) -> int:
        """The grid of sums: :math:`2^f` times the bound is about 2^44."""
        return min(44 - math.ceil(math.log2(self.bound)), 51)


class Change(NamedTuple):
    """The changes that a removal made to features and gradient.

    Args:
        rows (int): rows of features that may have changed.
        train_rows (int): those of them that count in the objective.
        gradient (Gradient, optional): at the old weights, on what remains;
            :obj:`None` where it has to be measured.
        named (Tensor): int64: nodes whose degree, neighbours or features
            changed. It tells what was removed: not to be kept.
    """

    rows: int
    train_rows: int
    gradient: Gradient | None
    named: Tensor


class ColumnProblem(NamedTuple):
    r"""Objective at exact features, with estimates alone in memory.

    The gradient comes from two solves of as many columns as there are outputs
    (:func:`~pyg_trust.functional.feature_errors.column_residual`), cut off
    where what is missing is a small part of :obj:`goal`, and what is missing
    is added to its norm: with the tail :math:`\rho` of the series and
    :math:`\kappa` its growth in the Frobenius norm (1 for :math:`a = b`),
    :math:`\kappa \rho \lVert xW \rVert` of the margins and, with :math:`\lVert
    Z^* \rVert \le \kappa \lVert x \rVert`, at most :math:`\kappa \rho \lVert x
    \rVert (\gamma_1 \kappa \lVert xW \rVert + \lVert G \rVert)` of the
    gradient. The estimates steer the step.

    Args:
        state (SeriesState): features and graph.
        train (Tensor): int64: the training nodes.
        Y (Tensor): their targets.
        mu (float): :math:`\lambda n`.
        head (str): of :mod:`~pyg_trust.functional.heads`.
        goal (float): the residual that matters.
        B (Tensor, optional): the linear term. (default: :obj:`None`)
    """

    state: SeriesState
    train: Tensor
    Y: Tensor
    mu: float
    head: str
    goal: float
    B: Tensor | None = None

    def gradient(self, W: Tensor) -> Gradient:
        """As :meth:`.Objective.gradient`, at exact features.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        state, head = self.state, self.head
        x, grow = state.x, state.spread
        signal = x @ W
        size, most = float(x.norm()), math.sqrt(max(self.Y.numel(), 1))
        scale = grow * size * GAMMA_1[head] * grow * float(signal.norm())
        scale += grow * size * most
        tail = 1e-3
        # If all features are removed, nothing is missing.
        if scale > 0:
            tail = min(max(self.goal / (8 * scale), 1e-15), tail)
        margin = state.solve(signal, tail)[self.train]
        G = slopes(margin, self.Y, head)
        spread = x.new_zeros(signal.shape)
        spread[self.train] = G
        rest = self.mu * W
        drift = float(rest.norm())
        if self.B is not None:
            rest = rest + self.B
            drift += float(self.B.norm())
        value = x.t() @ state.solve(spread, tail, adjoint=True) + rest
        measured = float(value.norm())
        # The rounding of a sum grows with the length of a row, on every level.
        levels = math.log(tail) / math.log1p(-min(state.alpha, 0.999)) + 1
        degree = int(state.graph.degree.max()) + 8
        tail += UNIT * (levels * degree + x.size(1) + 8)
        missing = (
            grow
            * tail
            * size
            * (GAMMA_1[head] * grow * float(signal.norm()) + float(G.norm()))
        )
        missing += hidden(x, spread, W, head, drift)
        return Gradient(value, Residual(measured, measured + missing))

    def factor(self, W: Tensor) -> Factor:
        """Factor the Hessian at the estimates.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        return self._estimate.factor(W)

    def direction(self, W: Tensor, grad: Tensor, factor: Factor) -> Tensor:
        """As :meth:`.Objective.direction`, at the estimates.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            grad (Tensor): as :obj:`W`.
            factor (Factor): of :meth:`factor`.
        """
        return self._estimate.direction(W, grad, factor)

    @property
    def _estimate(self) -> Objective:
        Z = self.state.rows(self.train)
        return Objective(Z, self.Y, self.mu, self.head)


class NodeState:
    """Graph, features and training rows of a node classifier.

    All tensors are its own. Names are those of the nodes at the fit.

    Args:
        settings (Settings): what does not depend on the data.
        classes (tuple[int, ...]): the labels, ascending.
        graph (CSRGraph): the graph.
        x (Tensor): float64, ``[num_nodes, d]``.
        y (Tensor): int64, ``[num_nodes]``: positions in :obj:`classes`; -1
            for nodes that are not trained on.
        alive (Tensor, optional): bool, ``[num_nodes]``: the nodes that are
            there. (default: :obj:`None`)
        featureless (Tensor, optional): bool: whose features were removed.
            (default: :obj:`None`)
        directed (bool): whether the graph is a directed one, if edges go
            both ways too. (default: :obj:`False`)
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
    ) -> None:
        self.settings = settings
        self.classes = classes
        measure = settings.measure
        self.journal = Journal()
        n = graph.num_nodes
        self.featureless = torch.zeros(n, dtype=torch.bool)
        if featureless is not None:
            self.featureless |= featureless
        gone = torch.empty(0, dtype=torch.int64)
        if alive is not None:
            gone = (~alive).nonzero().view(-1)
        self.graph: Sums
        self.levels: Sums | SeriesState
        if settings.theta is None:
            # A removal reads more rows than it writes: no sender is heavy.
            self.graph = self.levels = Sums(
                graph,
                x,
                measure,
                bound=settings.bound,
                bits=settings.bits,
                heavy=math.inf,
                directed=directed,
                gone=gone,
            )
        else:
            assert settings.alpha is not None
            self.graph = bare(graph, measure, directed, gone)
            self.levels = SeriesState(
                self.graph, x, measure, settings.alpha, settings.theta
            )
            self.levels.journal = self.journal
        self.names = (y >= 0).nonzero().view(-1)
        self.place = torch.full((n,), -1)
        self.place[self.names] = torch.arange(self.names.numel())
        self.num_train = self.names.numel()
        self.y = y[self.names]
        # How many training nodes each class has.
        self.members = self._members(torch.arange(self.num_train))
        self.Y = targets(self.y, len(classes), settings.head)
        self.Z: Tensor | None = None
        # The square of its norm, from above, once it is needed.
        self.square: float | None = None
        if isinstance(self.levels, Sums):
            self.Z = self.levels.rows(self.names)

    @property
    def mu(self) -> float:
        r""":math:`\lambda n`, of the training nodes that there are."""
        return self.settings.lam * self.num_train

    @property
    def shape(self) -> tuple[int, int]:
        """The number of features and of outputs."""
        return self.levels.x.size(1), self.Y.size(1)

    @property
    def feature_error(self) -> float:
        """The error of the features that a residual has to include: zero.

        Where estimates are held, the residual comes from exact solves.
        """
        return 0.0

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
        """Compute the margins of nodes, at exact present features.

        Args:
            weight (Tensor): ``[d, num_outputs]``.
            nodes (Tensor): int64, nodes that are there.
        """
        if isinstance(self.levels, Sums):
            return self.levels.rows(nodes) @ weight
        signal = self.levels.x @ weight
        return self.levels.solve(signal, 1e-12)[nodes]

    # Forgetting #############################################################

    def check(self, part: Part) -> None:
        """Refuse a request that can't be done; change nothing."""
        alive, n = self.graph.alive.numpy(), self.graph.num_nodes

        def there(what: str, node: int, found: bool) -> None:
            if not found:
                raise ValueError(
                    f'{what} {node} is not there: it never was, or was '
                    'removed before'
                )

        for node in (*part.nodes, *part.features, *part.labels):
            there('node', node, node < n and bool(alive[node]))
        gone, place = self.featureless.numpy(), self.place.numpy()
        for node in part.features:
            there('the feature row of node', node, not gone[node])
        for node in part.labels:
            there('the training label of node', node, place[node] >= 0)
        self._check_edges(part)
        dropped = self._dropped(part)
        if dropped.numel() == 0:
            return
        count = self.members - self._members(dropped)
        if not bool(count.any()):
            raise ValueError('the request would leave no training node')
        if not bool(count.all()):
            empty = self.classes[int((count == 0).nonzero()[0])]
            raise ValueError(
                f'the request would leave class {empty} without a training '
                'node: retrain with the classes that remain'
            )

    def forget(self, part: Part, W: Tensor, old: Gradient | None) -> Change:
        """Remove the named items from graph, features and training rows.

        Follows the gradient at the weights by the rows that change alone,
        with the rounding of that in its bound.

        Args:
            part (Part): what to forget, checked.
            W (Tensor): the weights.
            old (Gradient, optional): there, before; without it no gradient
                is followed.
        """
        nodes = torch.tensor(part.nodes, dtype=torch.int64)
        features = torch.tensor(part.features, dtype=torch.int64)
        changed = torch.cat([nodes, features])
        before = self.mu
        arcs = _edges(part.arcs)
        # Of both directions one, or those that are there.
        once = arcs[0] <= arcs[1]
        if not self.graph.undirected:
            once = self.graph.has_edges(arcs)
        arcs = arcs[:, once]
        zeros = self.graph.x.new_zeros((len(features), self.graph.num_columns))
        step = Step(nodes, arcs, nodes=features, x=zeros)
        named, _ = self.graph.play([step], self.journal)
        self.journal.rows(self.featureless, changed)
        self.featureless[changed] = True
        touched: Tensor | None
        if isinstance(self.levels, Sums):
            touched = self.levels.touched(named, changed)
        else:
            structure = named if part.nodes or part.arcs else named[:0]
            touched = self.levels.update(structure, changed)
        dropped = self._dropped(part)
        goals = self.Y.index_select(0, dropped)
        if dropped.numel():
            self._drop(dropped)
        if touched is None:
            kept = (self.names >= 0).nonzero().view(-1)
            count = int(self.graph.alive.sum())
        else:
            kept = self.place.index_select(0, touched)
            kept = kept[kept >= 0]
            count = touched.numel()
        if self.Z is None:
            return Change(count, kept.numel(), None, named)
        rows = torch.cat([kept, dropped])
        Z, held = self.Z, self.Z.index_select(0, rows)
        self.journal.note(lambda: Z.index_copy_(0, rows, held))
        if dropped.numel():
            Z.index_fill_(0, dropped, 0)
        names = self.names.index_select(0, kept)
        Z.index_copy_(0, kept, self.levels.rows(names))
        if old is None or 2 * rows.numel() >= self.names.numel():
            self._resize(None)
            return Change(count, kept.numel(), None, named)
        goals = torch.cat([self.Y.index_select(0, kept), goals])
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
        follow = self._follow(value, norms, read, W, more, old)
        return Change(count, kept.numel(), follow, named)

    def _resize(self, square: float | None) -> None:
        before = self.square
        self.journal.note(lambda: setattr(self, 'square', before))
        self.square = square

    def _drop(self, rows: Tensor) -> None:
        # Drop training rows, except for their features.
        gone, count, members = self.names[rows], self.num_train, self.members
        self.journal.note(lambda: setattr(self, 'num_train', count))
        self.journal.note(lambda: setattr(self, 'members', members))
        self.num_train = count - rows.numel()
        self.members = members - self._members(rows)
        for tensor, at, value in (
            (self.place, gone, -1),
            (self.y, rows, -1),
            (self.names, rows, -1),
            (self.Y, rows, 0),
        ):
            self.journal.rows(tensor, at)
            tensor.index_fill_(0, at, value)

    def compact(self) -> None:
        """Delete the rows that were dropped; this can't be undone."""
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

    def _check_edges(self, part: Part) -> None:
        if not part.edges and not part.directed_edges:
            return
        graph = self.graph
        if part.directed_edges and graph.undirected:
            u, v = part.directed_edges[0]
            raise ValueError(
                f"'directed' needs a directed graph (got {u} -> {v} of an "
                'undirected one, which it would make directed)'
            )
        edges = _edges(part.edges)
        # Either direction suffices.
        there = graph.has_edges(edges)
        if not graph.undirected:
            there |= graph.has_edges(edges.flip(0))
        arcs = _edges(part.directed_edges)
        missing = torch.cat(
            [edges[:, ~there], arcs[:, ~graph.has_edges(arcs)]], dim=1
        )
        for u, v in missing.t().tolist()[:1]:
            raise ValueError(
                f'edge {u} -> {v} is not there: it never was, or was removed '
                'before'
            )

    def _dropped(self, part: Part) -> Tensor:
        named = (*part.nodes, *part.labels)
        if not named:
            return self.names[:0]
        rows = self.place.numpy()[np.array(named, dtype=np.int64)]
        return torch.from_numpy(rows[rows >= 0])

    def _members(self, rows: Tensor) -> Tensor:
        return self.y[rows].bincount(minlength=len(self.classes))

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
        """Compute a state of the remaining data anew, with names from 0.

        Returns:
            tuple[NodeState, Tensor]: the state, and the present names of its
            nodes.
        """
        graph = self.graph
        ids = graph.alive.nonzero().view(-1)
        place = torch.full((graph.num_nodes,), -1)
        place[ids] = torch.arange(ids.numel())
        made = CSRGraph.from_edge_index(place[graph.edge_index()], ids.numel())
        y = torch.full((graph.num_nodes,), -1)
        there = self.names >= 0
        y[self.names[there]] = self.y[there]
        return (
            NodeState(
                self.settings, self.classes, made, self.levels.x[ids], y[ids]
            ),
            ids,
        )

    def leftovers(self) -> tuple[str, ...]:
        """List traces of removed data, and tensors that could hold them."""
        found = []
        gone = (~self.graph.alive).nonzero().view(-1)
        levels = self.levels
        rows = {'x': levels.x}
        arrays = self.graph.arrays()
        if isinstance(levels, Sums):
            count = levels.num_nodes
            kept = arrays['sums'][:, :count]
            rows |= {f'level {i}': t for i, t in enumerate(kept, 1)}
        else:
            names = 'x', 'z', 'residue', 'recv', 'send'
            rows = {name: getattr(levels, name) for name in names}
            arrays |= rows
        for name, array in rows.items():
            power = name in ('recv', 'send')
            # A power of exponent 0 is one everywhere.
            left = array[gone] if not power else array[gone] % 1
            if bool(left.any()):
                found.append(f'{name} has a row of a removed node')
        if bool(levels.x[self.featureless].any()):
            found.append('x has a feature row that was removed')
        for name in ('neighbours', 'in-neighbours'):
            if bool(torch.isin(arrays[name], gone.int()).any()):
                found.append(f'{name} name a removed node')
        empty = self.names < 0
        arrays |= {'names': self.names, 'y': self.y, 'Y': self.Y}
        if self.Z is not None:
            arrays['Z'] = self.Z
        for name in ('Y', 'Z'):
            if name in arrays and bool(arrays[name][empty].any()):
                found.append(f'{name} has a row that was dropped')
        if bool(torch.isin(self.names, gone).any()) or bool(
            (self.place[gone] >= 0).any()
        ):
            found.append('the training rows name a removed node')
        if not self.journal.empty:
            found.append('the way back is kept')
        found += [
            f'{name} is a view into a larger tensor'
            for name, array in arrays.items()
            if array.untyped_storage().nbytes()
            > array.numel() * array.element_size()
        ]
        return tuple(found)

    def blocks(self, nodes: Tensor | None = None) -> dict[int, str]:
        """Hash the data of each block of ``BLOCK`` neighbouring names.

        They have no salt: seal them.

        Args:
            nodes (Tensor, optional): int64: of whose blocks; of all by
                default. (default: :obj:`None`)
        """
        graph, n = self.graph, self.graph.num_nodes
        if nodes is None:
            nodes = torch.arange(0, n, BLOCK)
        start, length, col = (part.numpy() for part in graph.leaving)
        made = {}
        for block in sorted({node // BLOCK for node in nodes.tolist()}):
            held = slice(block * BLOCK, (block + 1) * BLOCK)
            place = self.place[held]
            # Row after row, without the spare room behind each.
            count = length[held]
            end = count.cumsum()
            at = np.arange(end[-1]) + (start[held] - end + count).repeat(count)
            made[block] = report.fingerprint(
                graph.degree[held],
                torch.from_numpy(col[at]),
                graph.alive[held],
                graph.own_loop[held],
                self.featureless[held],
                self.levels.x[held],
                torch.where(place >= 0, self.y[place], -1),
            )
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the remaining data, to make the state again."""
        there = self.names >= 0
        y = torch.full((self.graph.num_nodes,), -1)
        y[self.names[there]] = self.y[there]
        return {
            'edge_index': self.graph.edge_index(),
            'x': self.levels.x.clone(),
            'y': y,
            'alive': self.graph.alive.clone(),
            'featureless': self.featureless.clone(),
            'directed': not self.graph.undirected,
        }

    @classmethod
    def from_dict(
        cls, settings: Settings, classes: tuple[int, ...], held: dict[str, Any]
    ) -> 'NodeState':
        """Compute a state from the result of :meth:`to_dict`.

        Args:
            settings (Settings): what does not depend on the data.
            classes (tuple[int, ...]): the labels, ascending.
            held (dict): of :meth:`to_dict`.
        """
        check_instance('directed', held['directed'], bool)
        return cls(
            settings,
            classes,
            CSRGraph.from_edge_index(held['edge_index'], held['y'].numel()),
            held['x'],
            held['y'],
            held['alive'],
            held['featureless'],
            held['directed'],
        )

    def rebuilt(self) -> 'NodeState':
        """Compute the state anew: a function of the remaining data alone."""
        return self.from_dict(self.settings, self.classes, self.to_dict())


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.vector_norm(matrix))


def _edges(pairs: Sequence[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
