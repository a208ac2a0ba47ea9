r"""The infinite series of a changing graph, by pushes.

For :math:`z = \alpha (I - (1 - \alpha) P)^{-1} x`, where
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
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.unlearning.heads import (
    GAMMA_1,
    UNIT,
    Factor,
    Gradient,
    Objective,
    Residual,
    hidden,
    norm,
    slopes,
)
from pyg_trust.unlearning.sums import Step, Sums, Undo, put_back

__all__ = ['ColumnProblem', 'SeriesState', 'bare', 'degree_power']

_NONE = torch.empty(0, dtype=torch.int64)


def degree_power(degree: Tensor, exponent: float) -> Tensor:
    r"""Powers :math:`d^{e}` of degrees, with :math:`0` at degree 0.

    Equal degrees get equal bits: vectorized powers may differ between the
    middle and the end of a tensor.
    """
    if exponent == 0:
        return torch.ones(degree.shape, dtype=torch.float64)
    values, place = degree.unique(return_inverse=True)
    power = [
        # The special case of pow in torch and numpy.
        (1 / math.sqrt(d) if exponent == -0.5 else float(d) ** exponent)
        if d
        else 0.0
        for d in values.tolist()
    ]
    return torch.tensor(power, dtype=torch.float64)[place]


def bare(
    graph: CSRGraph,
    measure: Measure,
    directed: bool = False,
    gone: Tensor | None = None,
) -> Sums:
    """Make the sums of an editable graph, without feature columns."""
    return Sums(
        graph,
        torch.empty((graph.num_nodes, 0), dtype=torch.float64),
        replace(measure, weights=(1.0,)),
        bound=1.0,
        bits=1,
        directed=directed,
        gone=_NONE if gone is None else gone,
    )


class SeriesState:
    r"""Features of the infinite series, to a known error.

    .. math::
        z = \alpha (I - (1 - \alpha) P)^{-1} x, \qquad a + b = 1,

    on an undirected graph of :func:`bare`. :meth:`rows` are *not* a function
    of the present data: what is left below the threshold depends on what was
    there before. Use :meth:`solve` for what is released and for what
    certifies. Rows are pushed while :math:`\lVert R_v \rVert_2 > \theta
    \sqrt{d_v}`. Edit graph and features by :meth:`play`, or the graph first
    and the rest by :meth:`update`.
    """

    def __init__(
        self,
        graph: Sums,
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
        self.graph = graph
        self.undirected = True
        self.measure = measure
        self.x = x.clone(memory_format=torch.contiguous_format)
        self.recv = degree_power(graph.degree, -measure.a)
        # Share one tensor if both normalizations are equal.
        self.send = self.recv
        if measure.b != measure.a:
            self.send = degree_power(graph.degree, -measure.b)
        # What takes an interrupted edit back.
        self._undo: Undo = []
        self.alpha = alpha
        self.theta = theta
        self._interrupted = False
        # The nodes that the last edit pushed, some twice.
        self.pushed = _NONE
        self.z = torch.zeros_like(self.x)
        self.residue = alpha * self.x
        self._push(torch.arange(graph.num_nodes))
        self._undo = []

    @property
    def error_bound(self) -> float:
        r"""Bound of :math:`\lVert z - \hat z \rVert_F`, from :math:`R`."""
        self._settle()
        degree = self.graph.degree.clamp(min=1).double()
        power = degree ** (self.measure.a - 0.5)
        size = float((power.unsqueeze(1) * self.residue).norm())
        return size * float((1 / power).max()) / self.alpha

    @property
    def num_nodes(self) -> int:
        """The number of rows, those of removed nodes included."""
        return self.graph.num_nodes

    @property
    def num_columns(self) -> int:
        """The number of columns of the features."""
        return self.x.size(1)

    @property
    def alive(self) -> Tensor:
        """Mask of the present nodes: bool."""
        return self.graph.alive

    def edge_index(self) -> Tensor:
        """The edges by row, without added self-loops: ``[2, m]``."""
        return self.graph.edge_index()

    def play(
        self, steps: Sequence[Step], undo: Undo | None = None
    ) -> tuple[Tensor, int]:
        """Apply edits of graph and features in order: all, or none."""
        self.mend()
        first, self._undo = self.num_nodes, [] if undo is None else undo
        self.pushed, before = _NONE, len(self._undo)
        try:
            touched = [part for step in steps for part in self._play(step)]
        except BaseException:
            put_back(self._undo, before)
            raise
        self._undo = []
        return torch.cat([_NONE, *touched]).unique(), first

    def mend(self) -> None:
        """Undo an edit that was interrupted."""
        put_back(self._undo)

    def _keep(self, tensor: Tensor, index: Tensor) -> None:
        # Rows that are about to be written.
        old = tensor.index_select(0, index)
        self._undo.append(lambda: tensor.index_copy_(0, index, old))

    def _play(self, step: Step) -> list[Tensor]:
        graph, new, undo = self.graph, step.new, self._undo
        changed, _ = graph.play([Step(step.gone, step.cut)], undo)
        self.update(changed, step.gone)
        empty = None if new is None else new[:, :0]
        more, first = graph.play([Step(new=empty, edges=step.edges)], undo)
        names = torch.arange(first, graph.num_nodes)
        if names.numel():
            self._grow(names.numel())
        self.update(more, names, new)
        if step.x is None or not step.nodes.numel():
            return [changed, more]
        graph.play([Step(nodes=step.nodes, x=step.x[:, :0])], undo)
        self.update(step.gone[:0], step.nodes, step.x)
        return [changed, more, step.nodes]

    def update(
        self, structure: Tensor, features: Tensor, x: Tensor | None = None
    ) -> Tensor:
        """Recompute the residual where an edit changed it, and push."""
        self._settle()
        nodes = features
        if structure.numel() + nodes.numel() == 0:
            return nodes
        self._take(structure, features, x)
        if structure.numel():
            gone = structure[~self.graph.alive[structure]]
            self._keep(self.z, gone)
            self.z.index_fill_(0, gone, 0)
            start, length, col = self.graph.sending
            near = ranges(start[structure], length[structure])
            nodes = torch.cat([structure, nodes, col[near].long()]).unique()
        pushed = self._push(nodes, self.x)
        self.pushed = torch.cat([self.pushed, pushed])
        return pushed

    def _take(
        self, structure: Tensor, features: Tensor, x: Tensor | None
    ) -> None:
        # New degrees and features.
        degree = self.graph.degree[structure]
        a, b = self.measure.a, self.measure.b
        powers = {id(self.recv): (self.recv, a), id(self.send): (self.send, b)}
        for power, exponent in powers.values():
            self._keep(power, structure)
            power[structure] = degree_power(degree, -exponent)
        self._keep(self.x, features)
        self.x[features] = 0 if x is None else x

    def rows(self, nodes: Tensor | None = None) -> Tensor:
        r"""Return rows of the estimate: ``[k, num_columns]``."""
        return self.z.clone() if nodes is None else self.z[nodes]

    def solve(
        self, signal: Tensor, tail: float, adjoint: bool = False
    ) -> Tensor:
        r"""Sum the truncated series of other signals on the present graph.

        By :math:`\sum_{i < L} \alpha (1 - \alpha)^i P^i u` with the smallest
        :math:`L` for which :math:`(1 - \alpha)^L` is at most :obj:`tail`. In
        the norm of :attr:`error_bound`, the error is at most :obj:`tail` times
        the signal.
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

        The series grows no Frobenius norm by more.
        """
        degree = self.graph.degree.clamp(min=1).double()
        power = degree ** (self.measure.a - 0.5)
        return float(power.max() / power.min())

    def _grow(self, count: int) -> None:
        # Rows of zeros for nodes that were added to the graph.
        names = 'x', 'z', 'residue', 'recv', 'send'
        before = {name: getattr(self, name) for name in names}
        self._undo.append(lambda: vars(self).update(before))
        new = {}
        for old in before.values():
            more = old.new_zeros((count, *old.shape[1:]))
            # Once, if it has two names.
            new[id(old)] = torch.cat([old, more])
        vars(self).update({n: new[id(old)] for n, old in before.items()})

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
        # The residual of the estimate, correct for any estimate.
        if self._interrupted:
            nodes = torch.arange(self.graph.num_nodes)
            self.residue.copy_(self._residue(nodes))
            self._interrupted = False

    def _push(self, seeds: Tensor, x: Tensor | None = None) -> Tensor:
        # An interrupt before the way back is noted leaves an estimate that is
        # not the old one, and of which the residual is not known.
        self._interrupted = True
        nodes, residue, pushed, z, _ = ops.push_rows(
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
        self._undo.append(lambda: state.index_copy_(0, pushed, z))
        self._undo.append(lambda: left.index_copy_(0, nodes, residue))
        self._interrupted = False
        return nodes


class ColumnProblem(NamedTuple):
    r"""Objective at exact features, which holds only estimates of them.

    The gradient comes from two solves of as many columns as there are outputs,
    as :math:`Z^\top G = x^\top M^\top \bar G` for features :math:`M x`, cut
    off where what is missing is a small part of :obj:`goal`, and what is
    missing is added to its norm: with the tail :math:`\rho` of the series and
    :math:`\kappa` its growth in the Frobenius norm (1 for :math:`a = b`),
    :math:`\kappa \rho \lVert xW \rVert` of the margins and, with :math:`\lVert
    Z^* \rVert \le \kappa \lVert x \rVert`, at most :math:`\kappa \rho \lVert x
    \rVert (\gamma_1 \kappa \lVert xW \rVert + \lVert G \rVert)` of the
    gradient. The estimates steer the step.
    """

    state: SeriesState
    train: Tensor
    Y: Tensor
    mu: float
    goal: float

    def gradient(self, W: Tensor) -> Gradient:
        """Compute the gradient at exact features."""
        state, grow = self.state, self.state.spread
        x, signal = state.x, state.x @ W
        size, most = float(x.norm()), math.sqrt(max(self.Y.numel(), 1))
        sent = grow * float(signal.norm())
        scale, tail = grow * size * (GAMMA_1 * sent + most), 1e-3
        # If all features are removed, the scale is zero and no entry is
        # missing.
        if scale > 0:
            tail = min(max(self.goal / (8 * scale), 1e-15), tail)
        G = slopes(state.solve(signal, tail)[self.train], self.Y)
        spread = x.new_zeros(signal.shape)
        spread[self.train] = G
        value = x.t() @ state.solve(spread, tail, adjoint=True) + self.mu * W
        measured, weight, slope = map(norm, (value, W, G))
        # The rounding of a sum grows with the length of a row, on every level.
        levels = math.log(tail) / math.log1p(-min(state.alpha, 0.999)) + 1
        degree = int(state.graph.degree.max()) + 8
        tail += UNIT * (levels * degree + x.size(1) + 8)
        missing = grow * tail * size * (GAMMA_1 * sent + slope)
        sizes = len(x), *W.shape
        missing += hidden(size, slope, weight, sizes, self.mu * weight)
        return Gradient(value, Residual(measured, measured + missing))

    def factor(self, W: Tensor) -> Factor:
        """Factor the Hessian at the estimated features."""
        Z = self.state.rows(self.train)
        return Objective(Z, self.Y, self.mu).factor(W)
