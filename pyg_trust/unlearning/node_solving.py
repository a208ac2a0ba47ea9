"""Exact solutions of node classifiers, their ledger, and their states."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import check_instance, check_integer, check_tensor
from pyg_trust.agp.measures import Measure
from pyg_trust.files.commit import Lineage
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.ledger import BudgetExceededError, RemovalLedger, coarse
from pyg_trust.report import fingerprint_model
from pyg_trust.unlearning.certified import CertifiedClassifier
from pyg_trust.unlearning.heads import Factor, Gradient
from pyg_trust.unlearning.newton import Refined, refine
from pyg_trust.unlearning.node_parts import Settings
from pyg_trust.unlearning.node_state import NodeState

# A release spends this part of the budget, if the steps below reach it.
PART = 0.01


class Model(NamedTuple):
    """State of a fitted node classifier, with its removal ledger.

    It is replaced as a whole, by one assignment at the end of an operation
    that may fail. The data are edited in place, with undo.
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
    release_std: float
    # Steps since the factor was made, beyond FEW_STEPS for each removal.
    excess: int = 0

    @property
    def classes(self) -> tuple[int, ...]:
        """The class labels, in ascending order."""
        return self.data.classes

    @property
    def num_items(self) -> int:
        """The number of training nodes that remain."""
        return self.data.num_train

    @property
    def sealed(self) -> str:
        """Digest of the saved state, recorded in the ledger."""
        held = [self.weight] if self.B is None else [self.weight, self.B]
        directed = not self.data.graph.undirected
        if self.data.ids.n_id is not None:
            held.append(self.data.ids.n_id)
        return sealed(
            self.seals.root,
            str(self.data.classes),
            directed,
            self.releases,
            self.secure,
            self.data.settings.digest(self.release_std),
            *held,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger's last line records this state."""
        last = self.ledger.last
        # Lines of version 0.1 stand for the data alone.
        known = (self.sealed, self.seals.root)
        return last is not None and last.data in known


class NodeSolver(CertifiedClassifier[Model]):
    """Base of node classifiers: exact solves, spent budget, saved states."""

    measure: Measure
    head: str
    features: str
    encoder: Callable[[Tensor], Tensor] | None
    _stated_public: bool
    _settings: Settings
    _state: type[NodeState] = NodeState

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
            'head': self.head,
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

    def _unpacked(
        self, state: dict[str, Any], progress_bar: bool | None
    ) -> Model:
        config = dict(state['config'])
        if self.encoder is not None and config.get('encoder') == (
            type(self.encoder).__name__
        ):
            # States of 0.1 hold the class alone.
            config['encoder'] = self._encoder_digest()
        return super()._unpacked({**state, 'config': config}, progress_bar)

    def _packed(self, model: Model) -> dict[str, Any]:
        linear = {} if model.B is None else {'B': model.B.clone()}
        data = model.data.to_dict()
        waits = _waiting(model.sealed, data)
        return {
            **super()._packed(model),
            **linear,
            **({'waits': waits} if waits else {}),
            'seals': model.seals.state_dict(),
            'data': data,
            'weight': model.weight.clone(),
            'releases': model.releases,
            'secure': model.secure,
        }

    def _rebuilt(
        self,
        state: dict[str, Any],
        ledger: RemovalLedger,
        lineage: Lineage,
        progress_bar: bool | None,
    ) -> Model:
        held, classes = state['data'], tuple(state['classes'])
        data = self._state.from_dict(self._settings, classes, held)
        seals = Seals.of(state['seals'], data.blocks())
        shape = data.shape
        B, weight = self._read_linear(state, shape), state['weight']
        check_tensor('state', weight, torch.float64, shape, finite=True)
        check_instance('secure', state['secure'], bool)
        releases = check_integer('releases', state['releases'], 1)
        # Files of version 0.1 have weights before the noise too: from these a
        # guess of what was removed could be tested. They are solved again.
        W, gradient = self._weights(data, B, weight)
        factor = self._factor(data, W, B)
        made = Model(
            data,
            ledger,
            seals,
            lineage,
            W,
            B,
            weight.clone(),
            gradient,
            factor,
            False,
            releases,
            state['secure'],
            self.release_std,
        )
        if state.get('waits', '') != _waiting(made.sealed, held):
            raise ValueError(
                'the pending additions of the state were changed since it '
                'was saved'
            )
        data.take(held)
        return made

    def _solved(self, data: NodeState, B: Tensor | None) -> Refined:
        # Start from zero: on data built anew, weights are a function of the
        # remaining data.
        W, goal = (
            torch.zeros(data.shape, dtype=torch.float64),
            self._goal(data),
        )
        return refine(data.problem(goal, B), W, min(self.tol, goal), 100)

    def _weights(
        self, data: NodeState, B: Tensor | None, released: Tensor
    ) -> tuple[Tensor, Gradient]:
        # The weights before the noise, on data that were made anew.
        return self._solved(data, B)[:2]

    def _factor(self, data: NodeState, W: Tensor, B: Tensor | None) -> Factor:
        return data.problem(self._goal(data), B).factor(W)

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

    def _exceeded(
        self, data: NodeState, bound: float, other: str = ''
    ) -> BudgetExceededError:
        limit = self._allowed(self.budget, data.mu)
        return BudgetExceededError(
            f'the residual is at most {bound:.6g}, of a budget of {limit:.6g}:'
            " choose a larger 'release_std' or 'lam', or divide the features "
            f'by their size{other}'
        )

    def _assumptions(self) -> tuple[str, ...]:
        made = (
            'the state (state_dict), of which the weights before the noise '
            'can be solved again, stays secret',
            *self._rests_on,
        )
        if self.encoder is not None:
            made += (
                'the encoder never saw the data, as the user stated by '
                'start_is_public=True'
                if self._stated_public
                else 'the encoder never saw the data: its factory draws other '
                'weights under another seed',
            )
        return made


def _waiting(root: str, held: dict[str, Any]) -> str:
    # A digest of the additions, which no line of the ledger covers.
    came = held.get('came')
    return '' if came is None else sealed(root, *map(came.get, sorted(came)))
