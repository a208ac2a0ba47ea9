"""Releases of node classifiers: steps, their cost, proofs and saved states."""

from typing import Any, NamedTuple

import torch

from pyg_trust._checks import check_instance, check_integer, check_tensor
from pyg_trust.agp.measures import Measure
from pyg_trust.files.commit import Lineage
from pyg_trust.files.seals import Seals
from pyg_trust.ledger import BudgetExceededError, RemovalLedger, coarse
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.unlearning.certified import (
    CertifiedClassifier,
    proved,
)
from pyg_trust.unlearning.heads import HEAD, Gradient, Problem
from pyg_trust.unlearning.newton import Refined, refine
from pyg_trust.unlearning.node_data import Model, waiting
from pyg_trust.unlearning.node_rows import Change, Edit, NodeState, Settings
from pyg_trust.unlearning.reports import ForgetReport
from pyg_trust.verify import removal
from pyg_trust.verify.claims_removal import ROWS

# A release spends this part of the budget, if the steps below reach it.
PART = 0.01
MAX_STEPS = 20
# A fresh factor takes about so many steps. What the others cost is added up,
# until it is as much as a new factor: about one step for 8 columns.
FEW_STEPS = 3
COLUMNS_A_STEP = 8


class Step(NamedTuple):
    """Weights after a removal, the action that found them, and their cost.

    ``bound`` is of the residual, ``spent`` what it spends of the budget.
    """

    action: str
    found: Refined
    bound: float
    spent: float


class NodeReleases(CertifiedClassifier):
    """Base of node classifiers: how they release, and are saved."""

    measure: Measure
    encoder: Any
    features: str
    _stated_public: bool
    _settings: Settings
    _state: type[NodeState] = NodeState
    _procedure = ROWS[0]

    def _begun(self, state: NodeState) -> None:
        # The first release, with a new ledger.
        releases, lineage = self._begins()
        self._check_grid(state.Y.size(1))
        W, gradient, _, _ = self._solved(state)
        upper = gradient.norm.upper
        spent = self._spent(state, upper)
        if spent > self.budget:
            raise self._exceeded(state, upper)
        self._check_shift(state.num_train, W, upper, spent)
        ledger = RemovalLedger(self.budget)
        model = Model(
            state,
            ledger,
            Seals(state.blocks()),
            lineage,
            W,
            self._release(W, releases),
            gradient,
            state.problem(self._goal(state)).factor(W).kept(),
            False,
            releases + 1,
            self._seed is None,
            self.release_std,
        )
        ledger.record('fit', spent, data=model.sealed)
        self._model = model

    def _solved(self, data: NodeState) -> Refined:
        # Start from zero: on data built anew, weights are a function of the
        # remaining data.
        W, goal = data.Y.new_zeros(data.shape), self._goal(data)
        return refine(data.problem(goal), W, min(self.tol, goal), 100)

    def _goal(self, data: NodeState) -> float:
        # The residual that steps aim at: most releases spend a small part of
        # the budget, their grid included.
        share = 1 - self._grid(data.shape) / (PART * self.budget)
        # Lower by a margin for rounding.
        part = PART * max(share, 0.5) * (1 - 2.0**-40)
        return part * self._allowed(self.budget, data.mu)

    def _spent(self, data: NodeState, bound: float) -> float:
        # In units of the budget. Constant for all releases that meet the goal,
        # and rounded up for others: an attacker could test guesses of the data
        # by the exact residual.
        grid = self._grid(data.shape)
        spent = self._spends(bound, data.mu) + grid
        if spent > self.budget:
            return spent
        goal = self._spends(self._goal(data), data.mu) + grid
        least = PART * self.budget
        # A coarse grid raises the goal, by public numbers.
        least = least if goal <= least else coarse(goal)
        return min(least if spent <= goal else coarse(spent), self.budget)

    def _exceeded(self, data: NodeState, bound: float) -> BudgetExceededError:
        limit = self._allowed(self.budget, data.mu)
        return BudgetExceededError(
            f'the residual is at most {bound:.6g}, of a budget of {limit:.6g}:'
            " choose a larger 'release_std' or 'weight_decay', or divide the "
            'features by their size'
        )

    def _followed(self, model: Model) -> tuple[Change, Problem, Gradient]:
        # The training rows as the data are, and the gradient at old weights.
        data = model.data
        change = data.follow(model.W, model.gradient)
        problem = data.problem(self._goal(data))
        return change, problem, change.gradient or problem.gradient(model.W)

    def _step(self, model: Model, problem: Problem, start: Gradient) -> Step:
        # Steps from the old weights; a fit where these do not do.
        data, goal = model.data, self._goal(model.data)

        def paid(action: str, found: Refined) -> Step:
            bound = found.gradient.norm.upper
            return Step(action, found, bound, self._spent(data, bound))

        if start.norm.upper <= goal:
            return paid('hold', Refined(model.W, start, model.factor, 0))
        found = refine(
            problem, model.W, goal, MAX_STEPS, start=start, factor=model.factor
        )
        made = paid('step' if found.iterations == 1 else 'refine', found)
        if made.spent <= self.budget:
            return made
        # Retrain as a fit does, on data built anew.
        again = self._solved(data.rebuilt())
        steps = found.iterations + again.iterations
        made = paid('retrain', again._replace(iterations=steps))
        if made.spent > self.budget:
            measured, upper = again.gradient.norm
            if measured > max(goal, upper - measured):
                raise self._exceeded(data, made.bound)
            # Rounding hides more than the budget, and these weights are those
            # of a fit of the remaining data, independent of the removed data.
            made = made._replace(bound=0.0, spent=0.0)
        return made

    def _forget(
        self, model: Model, edits: list[Edit], reference: str
    ) -> tuple[Model, ForgetReport]:
        data = model.data
        request = model.line(edits)
        change, problem, start = self._followed(model)
        action, found, bound, spent = self._step(model, problem, start)
        W, gradient, factor, iterations = found
        excess = model.excess + max(0, iterations - FEW_STEPS)
        if factor is model.factor and (
            excess * COLUMNS_A_STEP > W.size(0) or iterations == MAX_STEPS
        ):
            factor = problem.factor(W)
        fresh = factor is not model.factor
        self._check_shift(data.num_train, W, bound, spent)
        ledger = model.ledger.copy()
        new = model._replace(
            ledger=ledger,
            seals=model.seals.replaced(data.blocks(change.named)),
            lineage=model.lineage.next(),
            W=W,
            weight=self._release(W, model.releases),
            gradient=gradient,
            factor=factor.kept() if fresh else factor,
            frozen=not fresh,
            excess=0 if fresh else excess,
            releases=model.releases + 1,
            secure=model.secure and self._seed is None,
        )
        # The action depends on the removed data: no line names it.
        ledger.record('measured', spent, request, new.sealed, reference)
        if spent > 0:
            # The bound that is paid for: a smaller one reveals more of the
            # data.
            paid = self._allowed(spent - self._grid(data.shape), data.mu)
            bound = max(bound, paid)
        return new, ForgetReport.of(
            self._procedure,
            action=action,
            request=request,
            rows_touched=change.rows,
            train_rows_touched=change.train_rows,
            stale_rows=0,
            pending=0,
            num_train=data.num_train,
            gradient_change=start.norm.measured,
            # With estimates, the residual is that of exact solves.
            feature_error=0.0,
            bound=bound,
            budget=self._allowed(self.budget, data.mu),
            distance_bound=bound / data.mu,
            iterations=iterations,
            secure=new.secure,
            seeded=not new.secure,
            history=tuple(spent / self.budget for spent in ledger.amounts()),
            setting=data.settings.digest(self.release_std),
            **self._certificate(
                new,
                spent,
                gradient.norm,
                self._assumptions(),
                **provenance(
                    **{**self._config(), 'measure': str(self.measure)},
                    seed=self._seed,
                ),
            ),
        )

    def _assumptions(self) -> tuple[str, ...]:
        made = (
            'the state (state_dict), of which the weights before the noise '
            'can be solved again, stays secret',
        )
        if self.encoder is None:
            return made
        if self._stated_public:
            stated = 'as the user stated by start_is_public=True'
            return (*made, f'the encoder never saw the data, {stated}')
        return (
            *made,
            'the encoder never saw the data: its factory draws other weights '
            'under another seed',
        )

    def _proved(self, model: Model, claimed: bool) -> dict[str, Any]:
        # Prove the last release by the kernel; fields of a report.
        arrays, spent = model.evidence(), model.ledger.spent
        # A release of spent 0 is compared with a fit by this program.
        if arrays is None or spent == 0:
            return {}
        try:
            found = removal.prove(arrays)
        except ValueError:
            # The data are not those of the ledger, which the report says.
            return {}
        most = self._allowed(spent, model.data.mu)
        return proved(found, most, spent, claimed)

    def _config(self) -> dict[str, Any]:
        measure = {
            name: getattr(self.measure, name)
            for name in self.measure.__dataclass_fields__
        }
        return {
            **super()._config(),
            'measure': measure,
            'alpha': self._settings.alpha,
            'theta': self._settings.theta,
            'feature_bound': self._settings.bound,
            'head': HEAD,
            'features': self.features,
            'encoder': self._encoder_digest(),
        }

    def _encoder_digest(self) -> str | None:
        # Of two encoders of a class only one fits the saved features.
        encoder = self.encoder
        if encoder is None:
            return None
        name = type(encoder).__name__
        if not isinstance(encoder, torch.nn.Module):
            return getattr(encoder, '__qualname__', name)
        return f'{name} {fingerprint_model(encoder.state_dict())}'

    def _unpacked(self, state: dict[str, Any]) -> Model:
        config = dict(state['config'])
        if self.encoder is not None and config.get('encoder') == (
            type(self.encoder).__name__
        ):
            # States of 0.1 hold the class alone.
            config['encoder'] = self._encoder_digest()
        return super()._unpacked({**state, 'config': config})

    def _packed(self, model: Model) -> dict[str, Any]:
        data = model.data.to_dict()
        waits = waiting(model.sealed, data)
        return {
            **super()._packed(model),
            **({'waits': waits} if waits else {}),
            'seals': model.seals.state_dict(),
            'data': data,
            'weight': model.weight.clone(),
            'releases': model.releases,
            'secure': model.secure,
        }

    def _rebuilt(
        self, state: dict[str, Any], ledger: RemovalLedger, lineage: Lineage
    ) -> Model:
        held, weight = state['data'], state['weight']
        classes = tuple(state['classes'])
        data = self._state.from_dict(self._settings, classes, held)
        seals = Seals.of(state['seals'], data.blocks())
        check_tensor('state', weight, torch.float64, data.shape, finite=True)
        check_instance('secure', state['secure'], bool)
        releases = check_integer('releases', state['releases'], 1)
        # Files of version 0.1 have weights before the noise too: from these a
        # guess of what was removed could be tested. They are solved again.
        W, gradient, _, _ = self._solved(data)
        made = Model(
            data,
            ledger,
            seals,
            lineage,
            W,
            weight.clone(),
            gradient,
            data.problem(self._goal(data)).factor(W),
            False,
            releases,
            state['secure'],
            self.release_std,
        )
        if state.get('waits', '') != waiting(made.sealed, held):
            raise ValueError(
                'the pending additions of the state were changed since it '
                'was saved'
            )
        data.take(held)
        return made
