"""Methods as published, to compare certified removal with.

Objective perturbation, whose certificate does not hold in general, and the
bounds of its steps: ``docs/theory/certified_removal.rst`` derives them, and
has a counterexample.
"""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import noise, rng
from pyg_trust._checks import (
    Fraction,
    Int,
    NotNegative,
    OneOf,
    Positive,
    Rate,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust._describe import described
from pyg_trust.ledger import RemovalLedger, coarse
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning.heads import (
    GAMMA_2,
    Objective,
    check_rows,
    max_row_norm,
    minimize,
    spectral_norm,
)
from pyg_trust.unlearning.reports import NOT_CHECKED, ForgetReport
from pyg_trust.unlearning.training_graphs import (
    GraphKeeper,
    GraphPredictor,
    TrainingGraphs,
    check_graphs,
)
from pyg_trust.update import Update
from pyg_trust.verify.claims_removal import OBJECTIVE

__all__ = [
    'PublishedScatteringClassifier',
    'paper_bound',
    'removal_budget',
    'tight_bound',
]

# Bits kept of a bound in the account, as it is a function of removed data.
BITS = 4
# The residual of exact solves.
TOL = 1e-10
PAPER_GAMMA_2 = 0.25
ON_EXCEED = ('refine', 'retrain')
ACCOUNTS = ('residual', 'bound', 'paper')


@validated
def removal_budget(
    epsilon: Rate, delta: Fraction, noise_std: NotNegative
) -> float:
    r"""Return the largest gradient norm that Theorem 3 of Guo et al. allows.

    .. math::
        \sigma \varepsilon / \sqrt{2 \log(1.5 / \delta)}

    The theorem is for training with a random linear term :math:`b^\top w` in
    the objective. It does not hold in general
    (:doc:`/theory/certified_removal`).

    Args:
        epsilon (float): :math:`\varepsilon`, in :math:`(0, 1]`.
        delta (float): :math:`\delta`, in :math:`(0, 1)`.
        noise_std (float): the standard deviation :math:`\sigma` of each entry
            of :math:`b`, at least 0.
    """
    return noise_std * epsilon / math.sqrt(2 * math.log(1.5 / delta))


def tight_bound(Z: Tensor, P: Tensor, K: Tensor | None = None) -> float:
    r"""Bound the residual that a step adds, without any bound on embeddings.

    .. math::
        \frac{\gamma_2}{2} \lVert Z' \rVert_2 \lVert (Z'P) \circ (Z'P)
        \rVert_F

    Args:
        Z (Tensor): the remaining embeddings :math:`Z'`, ``[n, d]``.
        P (Tensor): the step, ``[d, C]``.
        K (Tensor, optional): :math:`Z Z^\top`, if known.
    """
    _check_step(Z, P, K)
    spread = float((Z @ P).square().norm())
    return GAMMA_2 / 2 * spectral_norm(Z, K) * spread


def paper_bound(Z: Tensor, P: Tensor, K: Tensor | None = None) -> float:
    r"""Bound the residual by Theorem 4.7 of the paper, with a valid :math:`F`.

    .. math::
        \sqrt{\sum_c \left( \tfrac14 F \lVert Z' \rVert_2 \lVert p_c \rVert
        \lVert Z'p_c \rVert \right)^2},
        \quad F \ge \max_i \lVert z'_i \rVert .

    Args:
        Z (Tensor): the remaining embeddings :math:`Z'`, ``[n, d]``.
        P (Tensor): the step, ``[d, C]``.
        K (Tensor, optional): :math:`Z Z^\top`, if known.
    """
    _check_step(Z, P, K)
    per_class = P.norm(dim=0) * (Z @ P).norm(dim=0)
    scale = PAPER_GAMMA_2 * max_row_norm(Z) * spectral_norm(Z, K)
    return scale * float(per_class.norm())


def _check_step(Z: Tensor, P: Tensor, K: Tensor | None) -> None:
    check_rows(Z, K)
    check_tensor('P', P, None, (Z.size(1), 'num_classes'), finite=True)


class _State(NamedTuple):
    # Replaced as a whole, so that a failure changes nothing.
    train: TrainingGraphs
    B: Tensor
    weight: Tensor
    ledger: RemovalLedger
    draws: int

    def objective(self, lam: float) -> Objective:
        Z, Y, K = self.train.Z, self.train.Y, self.train.K
        return Objective(Z, Y, lam * Z.size(0), self.B, K=K)


class PublishedScatteringClassifier(GraphPredictor):
    """Graph classifier by objective perturbation; *its certificate may fail*.

    Kept for comparison with the published method;
    :doc:`/theory/certified_removal` explains why its theorem does not hold in
    general.

    Args:
        transform (GraphEmbedding): embeds the graphs.
        weight_decay (float): the regularisation. (default: :obj:`1e-3`)
        noise_std (float): the standard deviation of :math:`b`, the random
            linear term of the objective. With 0 removals are refused.
            (default: :obj:`0.1`)
        epsilon (float): at most 1. (default: :obj:`1.0`)
        delta (float): in :math:`(0, 1)`. (default: :obj:`1e-4`)
        accounting (str): :obj:`'residual'` measures the residual;
            :obj:`'bound'` adds up :func:`tight_bound`; :obj:`'paper'` adds up
            :func:`paper_bound`. (default: :obj:`'residual'`)
        on_exceed (str): where the budget does not allow a step,
            :obj:`'refine'` solves exactly with the stored :math:`b`,
            :obj:`'retrain'` draws a fresh one. (default: :obj:`'refine'`)
        num_classes (int, optional): by default those of the training graphs,
            each of which has to keep one.
        seed (int, optional): the seed of :math:`b`.
    """

    @validated
    def __init__(
        self,
        transform: GraphEmbedding,
        *,
        weight_decay: Positive = 1e-3,
        noise_std: NotNegative = 0.1,
        epsilon: Rate = 1.0,
        delta: Fraction = 1e-4,
        accounting: Annotated[str, OneOf(ACCOUNTS)] = 'residual',
        on_exceed: Annotated[str, OneOf(ON_EXCEED)] = 'refine',
        num_classes: Annotated[int, Int(2)] | None = None,
        seed: int | None = None,
    ) -> None:
        self.transform = transform
        self.weight_decay = weight_decay
        self.noise_std = noise_std
        self.epsilon, self.delta = epsilon, delta
        self.accounting, self.on_exceed = accounting, on_exceed
        self.budget = removal_budget(epsilon, delta, noise_std)
        self.seed = None if seed is None else rng.resolve(seed)
        self._keeper = GraphKeeper(transform, num_classes)
        self.num_classes = num_classes
        self._state: _State | None = None

    def __repr__(self) -> str:
        return described(self)

    def fit(self, graphs: Sequence[Data]) -> 'PublishedScatteringClassifier':
        """Embed and train."""
        train = self._keeper.keep(check_graphs(graphs))
        draws = 0 if self._state is None else self._state.draws
        B = self._drawn((train.Z.size(1), train.Y.size(1)), draws)
        ledger = RemovalLedger(self.budget)
        state = _State(train, B, torch.zeros_like(B), ledger, draws + 1)
        state = self._solved(state, None)[0]
        if self.noise_std:
            spent = self._measured(state)
            ledger.record('fit', spent, data=train.seals.root)
        self._state = state
        return self

    def remove(self, request: RemovalRequest) -> ForgetReport:
        """Remove the requested items by one step, or as ``on_exceed`` says."""
        check_instance('request', request, RemovalRequest)
        old, budget = self._fitted, self.budget
        if not self.noise_std:
            raise ValueError(
                "'noise_std' needs to be positive for a certified removal "
                '(got 0)'
            )
        change = self._keeper.changed(
            old.train, [Update(remove=request)], old.ledger.removed
        )
        spent, new = old.ledger.spent, old._replace(train=change.left)
        decay = self.weight_decay
        before, after = old.objective(decay), new.objective(decay)
        right = (
            before.gradient(old.weight).value
            - after.gradient(old.weight).value
        )
        P = after.factor(old.weight).solve(right)
        new = new._replace(weight=old.weight + P, ledger=old.ledger.copy())
        measured, upper = after.gradient(new.weight).norm
        action, line, iterations = 'step', 'measured', 1
        added: dict[str, float] = {}
        exact, cost = upper, coarse(upper)
        if self.accounting != 'residual':
            added = {'tight': tight_bound(after.Z, P, after.K)}
            if self.accounting == 'paper':
                added['paper'] = paper_bound(after.Z, P, after.K)
            left = after.times(old.weight, P) - right
            which = 'tight' if self.accounting == 'bound' else 'paper'
            # The parts of the step round too, as gradients do.
            more = added[which] + float(left.norm()) + 4 * (upper - measured)
            exact, line = _sum(spent, more), 'step'
            cost = _sum(spent, coarse(more, BITS))
        if cost > budget >= exact:
            cost = budget
        # Within an account what is spent never falls.
        cost = max(cost, spent)
        if cost > budget:
            action = line = self.on_exceed
            start: Tensor | None = new.weight
            if action == 'retrain':
                B, start = self._drawn(new.B.shape, new.draws), None
                new = new._replace(B=B, draws=new.draws + 1)
            new, steps = self._solved(new, start)
            iterations, cost = iterations + steps, self._measured(new)
            measured = new.objective(decay).gradient(new.weight).norm.measured
        root = change.left.seals.root
        new.ledger.record(line, cost, change.request, root)
        ledger, self._state = new.ledger, new
        return ForgetReport.of(
            'certified removal',
            action=action,
            request=change.request,
            residual=measured,
            bound=cost,
            budget=budget,
            distance_bound=cost / after.mu,
            epsilon=self.epsilon * cost / budget,
            epsilon_transcript=math.inf,
            delta=self.delta,
            target_epsilon=self.epsilon,
            lam=self.weight_decay,
            residual_checked=NOT_CHECKED,
            iterations=iterations,
            noise='objective',
            release_std=0.0,
            assumptions=OBJECTIVE,
            data_sha256=root,
            origin=provenance(
                transform=str(self.transform),
                lam=self.weight_decay,
                epsilon=self.epsilon,
                noise_std=self.noise_std,
            ),
            weights_sha256=fingerprint_model({'weight': new.weight}),
            history=ledger.amounts(),
            ledger_head=ledger.head,
            seeded=self.seed is not None,
            accounting=self.accounting,
            graphs_embedded=len(change.touched),
            num_graphs=len(change.left.graphs),
            empty_classes=change.left.empty_classes,
            releases=ledger.num_lines,
            increments=added,
        )

    @property
    def ledger(self) -> RemovalLedger:
        """A copy of the removal ledger."""
        if self._state is None:
            return RemovalLedger(self.budget)
        return self._state.ledger.copy()

    @property
    def weight(self) -> Tensor:
        """The released weights: ``[d, num_outputs]``, a copy."""
        return self._fitted.weight.clone()

    @property
    def linear_term(self) -> Tensor:
        """The secret noise :math:`b` of the objective, a copy."""
        return self._fitted.B.clone()

    @property
    def objective(self) -> Objective:
        """The objective that is minimised, on the graphs that remain."""
        return self._fitted.objective(self.weight_decay)

    @property
    def _fitted(self) -> _State:
        if self._state is None:
            raise ValueError('the classifier needs to be fitted first')
        return self._state

    def _drawn(self, shape: tuple[int, ...], number: int) -> Tensor:
        seed = self.seed
        part = None if seed is None else rng.derive(seed, number, 1)
        return noise.source(part).normal(tuple(shape)) * self.noise_std

    def _solved(
        self, state: _State, start: Tensor | None
    ) -> tuple[_State, int]:
        train = state.train
        found = minimize(
            train.Z,
            train.Y,
            state.B,
            self.weight_decay,
            W=start,
            K=train.K,
            tol=TOL / 2,
        )
        return state._replace(weight=found.W), found.iterations

    def _measured(self, state: _State) -> float:
        # What a solved model spends: that of tol, or of a power of two times
        # tol if rounding hides more.
        found = state.objective(self.weight_decay).gradient(state.weight)
        return TOL * max(1.0, coarse(found.norm.upper / TOL))


def _sum(one: float, two: float) -> float:
    # Round up: with the larger first the difference is exact.
    one, two = max(one, two), min(one, two)
    total = one + two
    return total if total - one >= two else math.nextafter(total, math.inf)
