"""Releases of a node classifier: noise, their account, and predictions."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust import noise, rng
from pyg_trust._checks import check_nodes, check_tensor
from pyg_trust.commit import Lineage, ObjectLock, synchronized
from pyg_trust.functional.heads import Factor, Gradient
from pyg_trust.functional.newton import Refined, refine
from pyg_trust.functional.shifts import (
    grid_shift,
    largest_weights,
    shift_epsilon,
)
from pyg_trust.kernel import release, removal
from pyg_trust.kernel.sentences import OBJECTIVE
from pyg_trust.ledger import (
    BudgetExceededError,
    RemovalLedger,
    coarse,
)
from pyg_trust.noise import SecureNoise, SeededNoise
from pyg_trust.seals import (
    Seals,
    sealed,
)
from pyg_trust.unlearning.node_report import OUTPUT
from pyg_trust.unlearning.node_state import NodeState

# A release spends this part of the budget, if the steps below reach it.
PART = 0.01


class Model(NamedTuple):
    """All that training leaves behind, and its account.

    It is replaced as a whole, by one assignment at the end of whatever may
    fail. The data are edited in place, with a way back.
    """

    data: NodeState
    ledger: RemovalLedger
    seals: Seals
    lineage: Lineage
    W: Tensor
    B: Tensor | None
    weight: Tensor
    gradient: Gradient
    factor: Factor
    frozen: bool
    releases: int
    # Whether all noise so far came from the operating system.
    secure: bool
    # Steps beyond the few of a fresh factor, since the factor was made.
    excess: int = 0

    @property
    def sealed(self) -> str:
        """A digest, for a line of the ledger, of all that a file has."""
        held = [self.weight] if self.B is None else [self.weight, self.B]
        directed = not self.data.graph.undirected
        return sealed(
            self.seals.root,
            str(self.data.classes),
            directed,
            self.releases,
            self.secure,
            *held,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the last line of the ledger stands for all that there is."""
        lines = self.ledger.entries
        # Lines of version 0.1 stand for the data alone.
        return bool(lines) and lines[-1].data in (self.sealed, self.seals.root)


def noised(W: Tensor, source: SecureNoise | SeededNoise, std: float) -> Tensor:
    """Weights as they are released: on the grid of their noise.

    Args:
        W (Tensor): before the noise.
        source (SecureNoise or SeededNoise): of the noise.
        std (float): its standard deviation.
    """
    k = release.rounded(W.contiguous().numpy(), std)
    cells = source.cells(tuple(W.shape)).numpy()
    return torch.from_numpy(release.released(k, cells, std))


def noise_p_value(weight: Tensor, W: Tensor, std: float) -> float:
    """How likely released weights are that far from those before the noise.

    Args:
        weight (Tensor): of :func:`noised`.
        W (Tensor): before the noise.
        std (float): its standard deviation.
    """
    off = weight / release.grid(std) - (W / release.grid(std)).round()
    return noise.p_value(off * 2.0**-32)


def check_paid(shift: float, spent: float, budget: float) -> None:
    """Check that a release is paid for, as the kernel counts.

    Args:
        shift (float): of the release over its noise, proved.
        spent (float): what is put on the account; 0 where the release is
            compared with a fit by this program.
        budget (float): what it may be.

    Raises:
        RuntimeError: if less is paid than the release costs.
    """
    if spent and not shift <= spent <= budget:
        raise RuntimeError(
            f'the kernel proves a shift of {shift:.6g} of the noise, and '
            f'{spent:.6g} of {budget:.6g} would be paid for: this is a bug of '
            'pyg_trust; nothing was changed'
        )


class Releasing:
    """The part of a node classifier that releases and predicts."""

    head: str
    noise: str
    encoder: Any
    epsilon: float
    delta: float
    budget: float
    release_std: float
    lam: float
    tol: float
    _seed: int | None
    _known_epsilon: tuple[float, float]
    _empty: RemovalLedger
    _model: Model | None
    # What is edited in place: the model before a removal, during it.
    _editing: Model | None
    _lock: ObjectLock

    @synchronized
    def decision_function(self, nodes: Tensor | None = None) -> Tensor:
        """The margins by the released weights: ``[k]`` or ``[k, C]``.

        One for two classes with one output, else one per class.

        Args:
            nodes (Tensor, optional): int64 indices or a mask; all nodes that
                are there, ascending, by default. (default: :obj:`None`)

        Raises:
            ValueError: on a node that was removed, or never was.
        """
        model = self._fitted
        margin = model.data.margins(model.weight, self._nodes(nodes))
        return margin.view(-1) if margin.size(1) == 1 else margin

    def predict(self, nodes: Tensor | None = None) -> Tensor:
        """The labels of nodes: int64, ``[k]``.

        Args:
            nodes (Tensor, optional): as in :meth:`decision_function`.
                (default: :obj:`None`)
        """
        margin = self.decision_function(nodes)
        best = (margin > 0).long() if margin.dim() == 1 else margin.argmax(1)
        return torch.tensor(self.classes)[best]

    def predict_proba(self, nodes: Tensor | None = None) -> Tensor:
        """The probabilities of the classes: ``[k, num_classes]``.

        For :obj:`'ovr'` with more than two classes those of the outputs,
        scaled to sum to one.

        Args:
            nodes (Tensor, optional): as in :meth:`decision_function`.
                (default: :obj:`None`)

        Raises:
            ValueError: with ``head='squared'``, which has none.
        """
        if self.head == 'squared':
            raise ValueError("'predict_proba' needs another head than squared")
        margin = self.decision_function(nodes)
        if margin.dim() == 1:
            return torch.sigmoid(torch.stack([-margin, margin], dim=1))
        if self.head == 'softmax':
            return margin.softmax(1)
        return torch.nn.functional.logsigmoid(margin).softmax(1)

    @synchronized
    def score(self, nodes: Tensor, y: Tensor) -> float:
        """The share of nodes that are classified as their label.

        Args:
            nodes (Tensor): int64 indices or a mask.
            y (Tensor): int64: the labels of all nodes, by name.
        """
        check_tensor('y', y, torch.int64, (self._fitted.data.place.numel(),))
        nodes = check_nodes('nodes', nodes, y.numel())
        return float((self.predict(nodes) == y[nodes]).double().mean())

    @property
    def classes(self) -> tuple[int, ...]:
        """The labels, ascending; none before the first fit."""
        return () if self._model is None else self._model.data.classes

    @property
    def ledger(self) -> RemovalLedger:
        """The account of what was done. It names what was removed."""
        ledger = self._empty if self._model is None else self._model.ledger
        return ledger.copy()

    @property
    @synchronized
    def weight(self) -> Tensor:
        """The released weights: float64, ``[d, num_outputs]``, a copy."""
        return self._fitted.weight.clone()

    # Private ################################################################

    @property
    def _fitted(self) -> Model:
        self._settle()
        if self._model is None:
            raise ValueError('the classifier needs to be fitted first')
        return self._model

    def _settle(self) -> None:
        # Ends an edit: backwards, unless its model is in place. Where an
        # interrupt ends this, whoever comes next goes on with it.
        if self._editing is None:
            return
        journal = self._editing.data.journal
        if self._model is self._editing:
            journal.undo()
        else:
            journal.clear()
        self._editing = None

    def _solved(self, data: NodeState, B: Tensor | None) -> Refined:
        # From zero: of data that were made anew, a function of what remains.
        shape = (data.levels.x.size(1), data.Y.size(1))
        W, goal = torch.zeros(shape, dtype=torch.float64), self._goal(data)
        return refine(data.problem(goal, B), W, min(self.tol, goal), 100)

    def _weights(
        self, data: NodeState, B: Tensor | None, released: Tensor
    ) -> tuple[Tensor, Gradient]:
        # The weights before the noise, of data that were made anew.
        if self.noise == 'output':
            return self._solved(data, B)[:2]
        W = released.clone()
        return W, data.problem(self._goal(data), B).gradient(W)

    def _factor(self, data: NodeState, W: Tensor, B: Tensor | None) -> Factor:
        return data.problem(self._goal(data), B).factor(W)

    def _limit(self, data: NodeState) -> float:
        # The largest residual that the budget allows.
        if self.noise == 'objective':
            return self.budget
        return self.budget * self.release_std * data.mu

    def _goal(self, data: NodeState) -> float:
        # What steps aim at: most releases spend a small part of the budget,
        # their grid included.
        share = 1 - self._grid(data) / (PART * self.budget)
        # By what rounding may add, below what the account has for them.
        return PART * max(share, 0.5) * (1 - 2.0**-40) * self._limit(data)

    def _grid(self, data: NodeState) -> float:
        # What the grid of a release adds, in units of the budget.
        if self.noise == 'objective':
            return 0.0
        count = data.levels.x.size(1) * data.Y.size(1)
        return grid_shift(count, self._largest(data), self.release_std)

    def _largest(self, data: NodeState) -> float:
        # A bound of the weights before the noise: those of exact training are
        # in the first, and the others at most that far from these.
        loss = 'logistic' if self.head == 'ovr' else self.head
        size = largest_weights(data.Y.size(1), self.lam, loss)
        return size + self.budget * self.release_std

    def _spent(self, data: NodeState, bound: float) -> float:
        # In units of the budget. The same for all releases that meet the goal,
        # and rounded up for others, so that the ledger says little of the
        # data: where in between a residual lies tests guesses of them.
        limit, grid = self._limit(data), self._grid(data)
        spent = bound * self.budget / limit + grid
        if spent > self.budget:
            return spent
        goal = self._goal(data) * self.budget / limit + grid
        least = PART * self.budget
        # Of a coarse grid it is more than that, by public numbers.
        least = least if goal <= least else coarse(goal)
        return min(least if spent <= goal else coarse(spent), self.budget)

    def _bound(self, model: Model) -> float:
        # The residual that the ledger allows.
        return model.ledger.spent / self.budget * self._limit(model.data)

    def _exceeded(
        self, bound: float, limit: float, other: str = ''
    ) -> BudgetExceededError:
        return BudgetExceededError(
            f'the residual is at most {bound:.6g}, of a budget of {limit:.6g}:'
            " choose a larger 'release_std' or 'lam', or divide the features "
            f'by their size{other}'
        )

    def _epsilon(self, spent: float) -> float:
        if self.noise == 'objective':
            return self.epsilon * spent / self.budget
        if spent != self._known_epsilon[0]:
            # Most releases spend the same.
            found = shift_epsilon(spent, self.delta)
            self._known_epsilon = (spent, found)
        return self._known_epsilon[1]

    def _transcript(self, ledger: RemovalLedger) -> float:
        # Releases compose as one shift.
        if self.noise == 'objective':
            return math.inf
        spent = [line.spent for line in ledger.entries]
        return shift_epsilon(removal.together(spent), self.delta)

    def _check_shift(
        self, data: NodeState, W: Tensor, bound: float, spent: float
    ) -> None:
        if self.noise == 'output':
            given = data.num_train, self.lam, W.numpy(), self.release_std
            check_paid(removal.shift(bound, *given), spent, self.budget)

    def _assumptions(self) -> tuple[str, ...]:
        made: tuple[str, ...] = OUTPUT if self.noise == 'output' else OBJECTIVE
        if self.encoder is not None:
            made += ('the encoder never saw the data, as the user declared',)
        return made

    def _source(self, *what: int) -> SecureNoise | SeededNoise:
        seed = None if self._seed is None else rng.derive(self._seed, *what)
        return noise.source(seed)

    def _draw_linear(
        self, shape: torch.Size | tuple[int, ...], release: int
    ) -> Tensor | None:
        if self.noise == 'output':
            return None
        return self._source(release, 1).normal(tuple(shape)) * self.release_std

    def _release(self, W: Tensor, number: int) -> Tensor:
        if self.noise == 'objective':
            return W.clone()
        return noised(W, self._source(number, 0), self.release_std)

    def _noise_p_value(self, model: Model) -> float:
        if self.noise == 'objective':
            return float(torch.equal(model.weight, model.W))
        return noise_p_value(model.weight, model.W, self.release_std)

    def _nodes(self, nodes: Tensor | None) -> Tensor:
        alive = self._fitted.data.graph.alive
        if nodes is None:
            return alive.nonzero().view(-1)
        nodes = check_nodes('nodes', nodes, alive.numel())
        gone = ~alive[nodes]
        if bool(gone.any()):
            raise ValueError(
                "'nodes' needs to have nodes that are there (got "
                f'{int(nodes[gone][0])}, which was removed)'
            )
        return nodes
