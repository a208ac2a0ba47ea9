"""Parts of a node classifier's state: settings, edits, and a problem."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust.agp.measures import Measure
from pyg_trust.removal import Part
from pyg_trust.report import fingerprint
from pyg_trust.unlearning.heads import (
    GAMMA_1,
    UNIT,
    Factor,
    Gradient,
    Objective,
    Residual,
    hidden,
    slopes,
)
from pyg_trust.unlearning.incremental import SeriesState
from pyg_trust.update import NewNodes, Update
from pyg_trust.verify import removal

_NONE = torch.empty(0, dtype=torch.int64)


class Pairs(NamedTuple):
    """Settings of a link classifier's pairs, independent of the edges.

    Args:
        names (int): an upper bound of the number of names there may ever be.
        partners (int): the number of negative pairs of a name.
        seed (int): the public seed of the partners.
        scale (float): the factor of products of rows.
    """

    names: int
    partners: int
    seed: int
    scale: float


class Settings(NamedTuple):
    r"""The hyperparameters of a node classifier, independent of the data.

    Args:
        measure (Measure): the propagation of the features.
        alpha (float, optional): the :math:`\alpha` of the infinite series.
        theta (float, optional): the threshold of pushes; :obj:`None` for
            exact features.
        head (str): the loss, an entry of :mod:`~pyg_trust.unlearning.heads`.
        lam (float): the regularisation :math:`\lambda`.
        bound (float): the largest magnitude of a feature.
        pairs (Pairs, optional): the pairs of a link classifier.
            (default: :obj:`None`)
    """

    measure: Measure
    alpha: float | None
    theta: float | None
    head: str
    lam: float
    bound: float
    pairs: Pairs | None = None

    def arrays(self, std: float) -> dict[str, np.ndarray]:
        """Return the settings of the kernel's proof.

        Args:
            std (float): the standard deviation of a release's noise.
        """
        measure = self.measure
        return {
            'head': np.array(self.head),
            'weights': np.array(measure.weights),
            'a': np.array(float(measure.a)),
            'b': np.array(float(measure.b)),
            'bits': np.array(self.bits),
            'lam': np.array(self.lam),
            'std': np.array(std),
            'self_loops': np.array(measure.self_loops),
            'along': np.array(measure.along),
        }

    def digest(self, std: float) -> str:
        """Hash the settings of a proof, without data and weights.

        Args:
            std (float): as for :meth:`arrays`.
        """
        made = removal.setting(self.arrays(std))
        return made if self.pairs is None else fingerprint(made, *self.pairs)

    @property
    def bits(self) -> int:
        """The bits f of the grid: 2^f times the bound is about 2^44."""
        return min(44 - math.ceil(math.log2(self.bound)), 51)


class Edit(NamedTuple):
    """An update of a node classifier: removals, then additions, then changes.

    Args:
        part (Part): the items to remove.
        x (Tensor, optional): float64: features of new nodes, encoded.
        y (Tensor): int64: positions of the classes of new nodes; -1 for
            those that are not trained on.
        new (NewNodes, optional): the new nodes, as the user passed them.
        edges (Tensor): int64, ``[2, k]``: edges to add.
        features (tuple, optional): nodes, and their new features, encoded.
        labels (tuple, optional): nodes, and positions of their classes; -1
            for nodes that leave the training.
        update (Update, optional): what the user passed, to leave out what is
            not there.
    """

    part: Part
    x: Tensor | None = None
    y: Tensor = _NONE
    new: NewNodes | None = None
    edges: Tensor = _NONE.view(2, 0)
    features: tuple[Tensor, Tensor] | None = None
    labels: tuple[Tensor, Tensor] | None = None
    update: Update | None = None

    @property
    def only_adds(self) -> bool:
        """Whether the edit removes nothing and changes nothing."""
        return self.part == Part() and self._changes_nothing

    @property
    def only_removes(self) -> bool:
        """Whether the edit adds nothing and changes nothing."""
        comes = self.x is not None or bool(self.edges.numel())
        return self._changes_nothing and not comes

    @property
    def _changes_nothing(self) -> bool:
        return self.features is None and self.labels is None


class Pending(NamedTuple):
    """Edits that are applied to the graph, but not to the training rows yet.

    Args:
        first (int): the number of node names before the edits.
        labels (dict[int, int]): by node, the position of its class; -1 for a
            node that is not trained on.
        named (tuple[Tensor, ...]): int64: nodes whose degree, neighbours or
            features changed.
        features (tuple[Tensor, ...]): int64: nodes whose features changed;
            with pushes, nodes that were pushed.
        sealed (tuple[Tensor, ...]): int64: other nodes whose digest changed.
        edges (tuple[Tensor, ...]): int64, ``[2, k]``: the added edges.
    """

    first: int
    labels: dict[int, int]
    named: tuple[Tensor, ...] = ()
    features: tuple[Tensor, ...] = ()
    sealed: tuple[Tensor, ...] = ()
    edges: tuple[Tensor, ...] = ()


class Change(NamedTuple):
    """The changes that an update made to features and gradient.

    Args:
        rows (int): the number of feature rows that may have changed.
        train_rows (int): the number of those rows that count in the objective.
        gradient (Gradient, optional): the gradient at the old weights, on the
            remaining data; :obj:`None` where it has to be measured.
        named (Tensor): int64: nodes whose digest changed, some of them twice.
            They tell what was removed, so do not keep them.
    """

    rows: int
    train_rows: int
    gradient: Gradient | None
    named: Tensor


class ColumnProblem(NamedTuple):
    r"""Objective at exact features, which holds only estimates of them.

    The gradient comes from two solves of as many columns as there are outputs
    (:func:`~pyg_trust.unlearning.feature_errors.column_residual`), cut off
    where what is missing is a small part of :obj:`goal`, and what is missing
    is added to its norm: with the tail :math:`\rho` of the series and
    :math:`\kappa` its growth in the Frobenius norm (1 for :math:`a = b`),
    :math:`\kappa \rho \lVert xW \rVert` of the margins and, with :math:`\lVert
    Z^* \rVert \le \kappa \lVert x \rVert`, at most :math:`\kappa \rho \lVert x
    \rVert (\gamma_1 \kappa \lVert xW \rVert + \lVert G \rVert)` of the
    gradient. The estimates steer the step.

    Args:
        state (SeriesState): the propagated features and the graph.
        train (Tensor): int64: the training nodes.
        Y (Tensor): the targets of the training nodes.
        mu (float): :math:`\lambda n`.
        head (str): the loss, an entry of :mod:`~pyg_trust.unlearning.heads`.
        goal (float): the residual to reach.
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
        """Compute :meth:`.Objective.gradient` at exact features.

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
        # If all features are removed, the scale is zero and no entry is
        # missing.
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
        """Factor the Hessian at the estimated features.

        Args:
            W (Tensor): ``[d, num_outputs]``.
        """
        return self._estimate.factor(W)

    def direction(self, W: Tensor, grad: Tensor, factor: Factor) -> Tensor:
        """Compute :meth:`.Objective.direction` at the estimated features.

        Args:
            W (Tensor): ``[d, num_outputs]``.
            grad (Tensor): as :obj:`W`.
            factor (Factor): the result of :meth:`factor`.
        """
        return self._estimate.direction(W, grad, factor)

    @property
    def _estimate(self) -> Objective:
        Z = self.state.rows(self.train)
        return Objective(Z, self.Y, self.mu, self.head)
