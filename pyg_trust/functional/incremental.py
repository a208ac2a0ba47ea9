r"""Propagated features of a changing graph, updated where edits reach.

With :math:`P = D^{-a} A D^{-b}` and :math:`z = \sum_{i=0}^L w_i P^i x`
(:mod:`.measures`), the state is what nodes *send* on each level,

.. math::
    t_i = D^{-b} y_i, \quad y_i = P^i x, \quad
    y_{i+1}(v) = d_v^{-a} \sum_{u \to v} t_i(u), \quad i = 0, \ldots, L - 1,

sums in ascending order of :math:`u`. Let :math:`S` be the nodes whose degree
or neighbours an edit changed and :math:`F` those whose features changed. Then
:math:`t_0` changes at :math:`F`, and for :math:`b > 0` at :math:`S`, whose
degrees changed; and where :math:`t_i` changes at :math:`C_i`, :math:`y_{i+1}`
and :math:`t_{i+1}` change at most at

.. math::
    C_{i+1} = N'[C_i] \cup S ,

where :math:`N'` are those who receive in the new graph. (For :math:`b > 0` all
neighbours of :math:`S` are in :math:`C_1`, since what :math:`S` sends depends
on its degree.) Everything else reads the same numbers as before.

**From scratch.** A row is computed by :func:`pyg_trust.ops.pull_rows` alone,
for one node or for all: the inner loop of ``csrc/gather.h``, which exact
propagation runs on too. What it returns depends on the row and on nothing
else, and the powers of a degree come from one table. So after any sequence of
edits the state has the bits of a new :class:`LevelState` of the graph as it
is; nothing of what was before is in it. (:func:`.propagate` agrees with it to
rounding, and to the bit where it adds in the same order.)

Rows :math:`z(v)` are computed when they are asked for, from :math:`x` and
:math:`t_0, \ldots, t_{L-1}`, and not kept: none can be out of date.

**Infinite series.** For :math:`z = \alpha (I - (1 - \alpha) P)^{-1} x`, where
an edit changes everything a little, :class:`SeriesState` holds an estimate
:math:`\hat z` and its residual :math:`R = \alpha x + (1 - \alpha) P \hat z -
\hat z`, and pushes what is above a threshold (`Zhang et al. 2016
<https://arxiv.org/abs/1602.04120>`_, `Zheng et al. 2022
<https://arxiv.org/abs/2212.09963>`_). Whatever :math:`\hat z` is, the error is
:math:`E = z - \hat z = (I - (1 - \alpha) P)^{-1} R`. For :math:`a + b = 1` the
operator is similar to the symmetric :math:`D^{-1/2} A D^{-1/2}`, whose norm is
at most one, so

.. math::
    \lVert D^{a - 1/2} E \rVert_F \le \lVert D^{a - 1/2} R \rVert_F / \alpha .

(Norms, not signed sums: residues :math:`+\rho` and :math:`-\rho` do not cancel
in the error.)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import check_range, is_finite
from pyg_trust.functional._ranges import known_norms
from pyg_trust.functional.dynamic_graph import DynamicGraph, Edit, Journal
from pyg_trust.functional.measures import Measure
from pyg_trust.functional.ragged import pointer, ranges
from pyg_trust.functional.sums import Step
from pyg_trust.graph import CSRGraph

# From so much of all edges on, a level is computed as a whole.
WHOLE_ABOVE = 1 / 3
# Up to this number of degrees, their powers are computed one by one.
FEW = 64
_NO_EDGES = torch.empty((2, 0), dtype=torch.int64)


def degree_power(degree: Tensor, exponent: float) -> Tensor:
    r"""Powers :math:`d^{e}` of degrees, with :math:`0` at degree 0.

    One number for a degree, wherever it stands: vectorized powers may differ
    in the last bit between the middle and the end of a tensor.

    Args:
        degree (Tensor): int64.
        exponent (float): the exponent; 0 gives ones, at degree 0 too.

    Returns:
        Tensor: float64.
    """
    if exponent == 0:
        return torch.ones(degree.shape, dtype=torch.float64)
    if degree.numel() <= FEW:
        power = [_power(d, exponent) for d in degree.tolist()]
        return torch.tensor(power, dtype=torch.float64)
    values, place = degree.unique(return_inverse=True)
    power = [_power(d, exponent) for d in values.tolist()]
    return torch.tensor(power, dtype=torch.float64)[place]


def _power(degree: int, exponent: float) -> float:
    if degree == 0:
        return 0.0
    # As torch and numpy do.
    if exponent == -0.5:
        return 1 / math.sqrt(degree)
    return float(degree) ** exponent


class Touched(NamedTuple):
    """Nodes that an update recomputed, and its work.

    Args:
        nodes (Tensor, optional): int64: the nodes whose :math:`z` may have
            changed; :obj:`None` for all.
        rows (int): how many these are.
        work (int): entries of rows that were read.
    """

    nodes: Tensor | None
    rows: int
    work: int


class _State:
    # The graph, the features and the powers of the degrees.

    def __init__(
        self, graph: DynamicGraph, x: Tensor, measure: Measure
    ) -> None:
        if measure.shrink != 1 or measure.spectral_radius is not None:
            raise ValueError(
                f"'measure' {measure} depends on the spectral radius of the "
                'graph, which changes with it'
            )
        self.graph = graph
        self.measure = measure
        self.x = x.clone(memory_format=torch.contiguous_format)
        self.recv = self._power(graph.degree, measure.a)
        # One tensor, where both are the same.
        self.send = self.recv
        if measure.b != measure.a:
            self.send = self._power(graph.degree, measure.b)
        self.journal = Journal()

    def _power(self, degree: Tensor, exponent: float) -> Tensor:
        return degree_power(degree, -exponent).to(self.x.dtype)

    def _take(self, edit: Edit, x: Tensor | None) -> None:
        # New degrees and features.
        self._take_degrees(edit)
        if edit.features.numel():
            self.journal.rows(self.x, edit.features)
            if x is None:
                self.x.index_fill_(0, edit.features, 0)
            else:
                self.x[edit.features] = x

    def _take_degrees(self, edit: Edit) -> None:
        if edit.structure.numel() == 0:
            return
        degree = self.graph.degree.index_select(0, edit.structure)
        a, b = self.measure.a, self.measure.b
        powers = {id(self.recv): (self.recv, a), id(self.send): (self.send, b)}
        for power, exponent in powers.values():
            self.journal.rows(power, edit.structure)
            new = self._power(degree, exponent)
            power.index_copy_(0, edit.structure, new)

    def _grow_rows(self, count: int, *names: str) -> None:
        before = {name: getattr(self, name) for name in names}
        self.journal.note(lambda: vars(self).update(before))
        new = {}
        for old in before.values():
            more = old.new_zeros((count, *old.shape[1:]))
            # Once, if it has two names.
            new[id(old)] = torch.cat([old, more])
        vars(self).update({n: new[id(old)] for n, old in before.items()})

    def undo(self) -> None:
        """Undo all updates since the last :meth:`commit`.

        The graph has a journal of its own.
        """
        self.journal.undo()

    def commit(self) -> None:
        """Drop the undo log, and with it the old rows."""
        self.journal.clear()


class LevelState(_State):
    r"""Features of :math:`L` levels, exact after every edit.

    Memory: :math:`(L + 1) N d` numbers, :math:`L N d` for :math:`b = 0`.

    Args:
        graph (DynamicGraph): the graph, made for :obj:`measure`; it is edited
            first, and :meth:`update` is then told what changed.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``; copied.
        measure (Measure): with fixed weights.

    Raises:
        ValueError: if weights vanish in the dtype, and the powers of the
            operator may make up for it; or if a level leaves its range.
    """

    def __init__(
        self, graph: DynamicGraph, x: Tensor, measure: Measure
    ) -> None:
        tiny = torch.finfo(x.dtype).tiny
        vanish = any(0 < w < tiny for w in measure.weights)
        # From a + b = 1 on, P is similar to a matrix whose rows or columns sum
        # to 1 at most, whichever way edges go: what vanishes stays small.
        if vanish and known_norms(measure, undirected=True) is None:
            raise ValueError(
                f"'measure' {measure} has weights that vanish in {x.dtype}, "
                'while the powers of its operator may grow: take float64, or '
                'fewer levels'
            )
        super().__init__(graph, x, measure)
        self.sent: list[Tensor] = []
        if measure.levels:
            first = self.x if self._shared else self.send.unsqueeze(1) * self.x
            self.sent.append(first)
        for level in range(1, measure.levels):
            self.sent.append(self._whole(level))
        if self.sent and not is_finite(self.sent[-1]):
            raise ValueError(
                f"'measure' {measure} has levels beyond the range of "
                f'{x.dtype} on this graph: take float64, or fewer levels'
            )

    @property
    def _shared(self) -> bool:
        return self.measure.b == 0

    @property
    def error_bound(self) -> float:
        """Bound of all rounding errors, in the Frobenius norm."""
        return 0.0

    def update(self, edit: Edit, x: Tensor | None = None) -> Touched:
        """Recompute the rows that an edit touches.

        Args:
            edit (Edit): what changed.
            x (Tensor, optional): the new features of ``edit.features``; zeros
                by default. (default: :obj:`None`)
        """
        measure = self.measure
        if edit.structure.numel() + edit.features.numel() == 0:
            return Touched(edit.features, 0, 0)
        self._take(edit, x)
        first = edit.features
        if measure.b > 0:
            # Some twice, which does no harm.
            first = torch.cat([edit.features, edit.structure])
            if self.sent:
                self.journal.rows(self.sent[0], first)
                send = self.send.index_select(0, first).unsqueeze(1)
                new = self.x.index_select(0, first).mul_(send)
                self.sent[0].index_copy_(0, first, new)
        entries = self.graph.num_entries
        touched, read = self.graph.receivers(
            first, edit.structure, measure.levels, WHOLE_ABOVE * entries
        )
        work = sum(read) + entries * (measure.levels - len(read))
        for level in range(1, measure.levels):
            if level > len(touched):
                self._swap(level, self._whole(level))
            else:
                self.journal.rows(self.sent[level], touched[level - 1])
                self._pull(level, touched[level - 1], self.sent[level])
        if len(touched) < measure.levels:
            return Touched(None, int(self.graph.alive.sum()), work)
        parts = [
            nodes
            for nodes, weight in zip(
                (edit.features, *touched), measure.weights, strict=True
            )
            if weight
        ]
        nodes = parts[0] if len(parts) == 1 else torch.cat(parts).unique()
        return Touched(nodes, nodes.numel(), work)

    def rows(self, nodes: Tensor | None = None) -> Tensor:
        """Return rows of :math:`z` of the present graph: ``[k, num_columns]``.

        Args:
            nodes (Tensor, optional): int64; all by default.
                (default: :obj:`None`)
        """
        count = self.x.size(0) if nodes is None else nodes.numel()
        z = self.x.new_empty((count, self.x.size(1)))
        self.write_rows(nodes, z)
        return z

    def write_rows(
        self, nodes: Tensor | None, z: Tensor, place: Tensor | None = None
    ) -> None:
        """Write the result of :meth:`rows` into rows of a matrix.

        Args:
            nodes (Tensor, optional): int64; :obj:`None` for all.
            z (Tensor): as the features.
            place (Tensor, optional): int64: its rows to write, one for each
                node and each once; the first ones, in order, by default.
                (default: :obj:`None`)
        """
        weights = self.measure.weights
        add = weights[0] != 0 or not any(weights)
        if add:
            x = self.x if nodes is None else self.x.index_select(0, nodes)
            if place is None:
                torch.mul(x, weights[0], out=z)
            else:
                z.index_copy_(0, place, weights[0] * x)
        for level in range(1, len(weights)):
            if weights[level] == 0:
                continue
            ops.pull_rows(
                self.graph.receiving,
                nodes,
                self.sent[level - 1],
                self.recv,
                self.send,
                z=z,
                weight=weights[level],
                place=place,
                add=add,
            )
            add = True

    def grow(self, count: int) -> None:
        """Add rows of zeros for nodes that were added to the graph.

        Args:
            count (int): how many; tell :meth:`update` of them afterwards.
        """
        self._grow_rows(count, 'x', 'recv', 'send')
        for level, old in enumerate(self.sent):
            shared = level == 0 and self._shared
            more = old.new_zeros((count, old.size(1)))
            self._swap(level, self.x if shared else torch.cat([old, more]))

    def _swap(self, level: int, new: Tensor) -> None:
        old, sent = self.sent[level], self.sent
        self.journal.note(lambda: sent.__setitem__(level, old))
        sent[level] = new

    def _whole(self, level: int) -> Tensor:
        out = torch.empty_like(self.x)
        self._pull(level, None, out)
        return out

    def _pull(self, level: int, nodes: Tensor | None, out: Tensor) -> None:
        ops.pull_rows(
            self.graph.receiving,
            nodes,
            self.sent[level - 1],
            self.recv,
            self.send,
            out=out,
        )


class SeriesState(_State):
    r"""Features of the infinite series, to a known error.

    .. math::
        z = \alpha (I - (1 - \alpha) P)^{-1} x, \qquad a + b = 1,

    on an undirected graph. :meth:`rows` are *not* a function of the present
    data: what is left below the threshold depends on what was there before.
    Use :meth:`solve` for what is served and for what certifies. Memory:
    :math:`3 N d` numbers.

    Args:
        graph (DynamicGraph): undirected, made for :obj:`measure`.
        x (Tensor): float64, ``[num_nodes, num_columns]``; copied.
        measure (Measure): :math:`a` and :math:`b`; its weights play no part.
        alpha (float): the teleport probability, in :math:`(0, 1]`.
        theta (float): rows are pushed while :math:`\lVert R_v \rVert_2 >
            \theta \sqrt{d_v}`.
    """

    def __init__(
        self,
        graph: DynamicGraph,
        x: Tensor,
        measure: Measure,
        alpha: float,
        theta: float,
    ) -> None:
        if abs(measure.a + measure.b - 1) > 1e-12 or not graph.undirected:
            raise ValueError(
                "'measure' needs a + b = 1 and an undirected graph for an "
                f'infinite series (got {measure})'
            )
        super().__init__(graph, x, measure)
        self.alpha = alpha
        self.theta = theta
        self._interrupted = False
        self.z = torch.zeros_like(self.x)
        self.residue = alpha * self.x
        self._push(torch.arange(graph.num_nodes))
        self.commit()

    @property
    def error_bound(self) -> float:
        r"""Bound of :math:`\lVert z - \hat z \rVert_F`, from :math:`R`."""
        self._settle()
        degree = self.graph.degree.clamp(min=1).double()
        power = degree ** (self.measure.a - 0.5)
        size = float((power.unsqueeze(1) * self.residue).norm())
        return size * float((1 / power).max()) / self.alpha

    def update(self, edit: Edit, x: Tensor | None = None) -> Touched:
        """Recompute the residual where an edit changed it, and push.

        Args:
            edit (Edit): what changed.
            x (Tensor, optional): the new features of ``edit.features``; zeros
                by default. (default: :obj:`None`)
        """
        self._settle()
        nodes, graph = edit.features, self.graph
        if edit.structure.numel() + nodes.numel() == 0:
            return Touched(nodes, 0, 0)
        self._take(edit, x)
        if edit.structure.numel():
            there = graph.alive.index_select(0, edit.structure)
            if not bool(there.all()):
                gone = edit.structure[~there]
                self.journal.rows(self.z, gone)
                self.z.index_fill_(0, gone, 0)
            both = torch.cat([edit.structure, nodes])
            (nodes,), _ = graph.receivers(edit.structure, both)
        nodes, work = self._push(nodes, self.x)
        return Touched(nodes, nodes.numel(), work)

    def rows(self, nodes: Tensor | None = None) -> Tensor:
        r"""Return rows of the estimate :math:`\hat z`: ``[k, num_columns]``.

        Args:
            nodes (Tensor, optional): int64; all by default.
                (default: :obj:`None`)
        """
        return self.z.clone() if nodes is None else self.z[nodes]

    def solve(
        self, signal: Tensor, tail: float, adjoint: bool = False
    ) -> Tensor:
        r"""Sum the truncated series of other signals on the present graph.

        By :math:`\sum_{i < L} \alpha (1 - \alpha)^i P^i u` with the smallest
        :math:`L` for which :math:`(1 - \alpha)^L` is at most :obj:`tail`. In
        the norm of :attr:`error_bound` what is missing is at most
        :obj:`tail` of the signal.

        Args:
            signal (Tensor): float64, ``[num_nodes, num_columns]``.
            tail (float): in :math:`(0, 1)`.
            adjoint (bool): whether :math:`P` is transposed.
                (default: :obj:`False`)
        """
        follow, graph = 1 - self.alpha, self.graph
        recv, send, rows = self.recv, self.send, graph.receiving
        if adjoint:
            recv, send, rows = send, recv, graph.sending
        count = 1
        if follow > 0:
            count = max(1, math.ceil(math.log(tail) / math.log(follow)))
        z = self.alpha * signal
        sent = send.unsqueeze(1) * signal
        other = torch.empty_like(sent)
        for level in range(1, count):
            weight = self.alpha * follow**level
            ops.pull_rows(
                rows, None, sent, recv, send, out=other, z=z, weight=weight
            )
            sent, other = other, sent
        return z

    @property
    def spread(self) -> float:
        r"""Condition number :math:`\max_{uv} (d_u / d_v)^{|a - 1/2|}`.

        In the Frobenius norm the series grows nothing by more than this.
        """
        degree = self.graph.degree.clamp(min=1).double()
        power = degree ** (self.measure.a - 0.5)
        return float(power.max() / power.min())

    def grow(self, count: int) -> None:
        """Add rows of zeros for nodes that were added to the graph.

        Args:
            count (int): how many; tell :meth:`update` of them afterwards.
        """
        self._grow_rows(count, 'x', 'z', 'residue', 'recv', 'send')

    def _residue(self, nodes: Tensor) -> Tensor:
        rows = self.graph.receiving
        local = rows.length[nodes]
        # Sums of the rows that these read, as they are sent.
        sender = rows.col[ranges(rows.start[nodes], local)].long()
        follow = torch.nn.functional.embedding_bag(
            sender,
            self.z,
            pointer(local)[:-1],
            mode='sum',
            per_sample_weights=self.send[sender],
        )
        follow *= (1 - self.alpha) * self.recv[nodes].unsqueeze(1)
        return self.alpha * self.x[nodes] + follow - self.z[nodes]

    def _settle(self) -> None:
        # Whatever the estimate is, this is its residual.
        if self._interrupted:
            nodes = torch.arange(self.graph.num_nodes)
            self.residue.copy_(self._residue(nodes))
            self._interrupted = False

    def _push(
        self, seeds: Tensor, x: Tensor | None = None
    ) -> tuple[Tensor, int]:
        # An interrupt before the way back is noted leaves an estimate that is
        # not the old one, and of which the residual is not known.
        self._interrupted = True
        nodes, residue, pushed, z, count = ops.push_rows(
            self.graph.sending,
            seeds,
            self.recv,
            self.send,
            self.theta,
            1 - self.alpha,
            self.z,
            self.residue,
            x,
        )
        state, left = self.z, self.residue
        self.journal.note(lambda: state.index_copy_(0, pushed, z))
        self.journal.note(lambda: left.index_copy_(0, nodes, residue))
        self._interrupted = False
        return nodes, count


class EditedSeries:
    """Graph and :class:`SeriesState` of it, edited as one.

    Args:
        graph (CSRGraph): unweighted, without duplicates.
        x (Tensor): as in :class:`SeriesState`.
        measure (Measure): likewise.
        alpha (float): likewise.
        theta (float): likewise.
        directed (bool): as in ``DynamicGraph``.
            (default: :obj:`False`)
        gone (Tensor, optional): int64: names that are there no more.
            (default: :obj:`None`)
    """

    def __init__(
        self,
        graph: CSRGraph,
        x: Tensor,
        measure: Measure,
        alpha: float,
        theta: float,
        directed: bool = False,
        gone: Tensor | None = None,
    ) -> None:
        self.graph = DynamicGraph(
            graph, measure.self_loops, measure.along, directed
        )
        if gone is not None and gone.numel():
            self.graph.remove(gone, _NO_EDGES, Journal())
        self.state = SeriesState(self.graph, x, measure, alpha, theta)
        self.measure = measure
        self.undirected = self.graph.undirected

    @property
    def num_nodes(self) -> int:
        """The number of names, those of removed nodes included."""
        return self.graph.num_nodes

    @property
    def num_columns(self) -> int:
        """The number of columns of the features."""
        return self.state.x.size(1)

    @property
    def x(self) -> Tensor:
        """The features."""
        return self.state.x

    @property
    def alive(self) -> Tensor:
        """Bool: the names that are there."""
        return self.graph.alive

    @property
    def error_bound(self) -> float:
        """As of :class:`SeriesState`."""
        return self.state.error_bound

    def edge_index(self) -> Tensor:
        """The edges by name, without added self-loops: ``[2, m]``."""
        return self.graph.edge_index()

    def rows(self, nodes: Tensor | None = None) -> Tensor:
        """As of :class:`SeriesState`.

        Args:
            nodes (Tensor, optional): int64. (default: :obj:`None`)
        """
        return self.state.rows(nodes)

    def play(self, steps: Sequence[Step]) -> tuple[Tensor, int]:
        """As :meth:`.Sums.play`.

        Args:
            steps (list[Step]): the edits.
        """
        self.mend()
        first = self.num_nodes
        try:
            touched = [part for step in steps for part in self._play(step)]
        except BaseException:
            self.mend()
            raise
        self.state.journal.clear()
        return torch.cat(touched).unique(), first

    def mend(self) -> None:
        """Undo an edit that was interrupted."""
        self.state.undo()

    def _play(self, step: Step) -> list[Tensor]:
        graph, state, journal = self.graph, self.state, self.state.journal
        count = graph.num_nodes + (0 if step.new is None else len(step.new))
        for edges in (step.cut, step.edges):
            check_range('edge_index', edges, count, 'the nodes')
        names = torch.empty(0, dtype=torch.int64)
        changed = [graph.remove(step.gone, step.cut, journal)]
        if changed[0].numel():
            state.update(Edit(changed[0], step.gone))
        if step.new is not None and step.new.size(0):
            names = graph.grow(step.new.size(0), journal)
            state.grow(names.numel())
        changed += [graph.insert(step.edges, journal), names]
        if changed[1].numel() + names.numel():
            both = torch.cat([changed[1], names]).unique()
            state.update(Edit(both, names), step.new)
        if step.x is not None and step.nodes.numel():
            for node in step.nodes[~graph.alive[step.nodes]].tolist()[:1]:
                raise ValueError(f'node {node} is not there')
            state.update(Edit(names[:0], step.nodes), step.x)
            changed.append(step.nodes)
        return changed
