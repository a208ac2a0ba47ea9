r"""Base of the classifiers with certified removal.

A regularised linear head is trained on features that a removal can change.
:class:`~pyg_trust.unlearning.NodeClassifier`,
:class:`~pyg_trust.unlearning.LinkClassifier` and
:class:`~pyg_trust.unlearning.ScatteringClassifier` make the features;
noise, account, predictions and saved states are those of
:class:`CertifiedClassifier`.

**The guarantee.** The reference is retraining on what remains, :math:`D'`,
with the same settings, *exactly*, released with noise: :math:`W^*(D') + s\,
\Xi`. The classifier keeps its weights :math:`W` secret and releases :math:`W +
s\,\Xi`, with fresh noise for every release. The residual of :math:`W` is
measured, and bounds the distance to :math:`W^*(D')`; so the two releases are
:math:`(\varepsilon, \delta)`-indistinguishable, both ways, and releases
compose, also when requests are chosen by looking at earlier ones
(:mod:`pyg_trust.unlearning.shifts` has the proof). The reference is then to
retrain exactly after every request, under the same transcript.

Threads take turns. A file that another object has changed since this one read
it is not written over (:class:`~pyg_trust.files.commit.StaleStateError`).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_trust import noise, rng
from pyg_trust.files.commit import synchronized
from pyg_trust.ledger import RemovalLedger
from pyg_trust.noise import SecureNoise, SeededNoise
from pyg_trust.report import fingerprint_model
from pyg_trust.unlearning.heads import Residual
from pyg_trust.unlearning.reports import NOT_CHECKED, SAME
from pyg_trust.unlearning.saved import Saved
from pyg_trust.unlearning.shifts import (
    gaussian_budget,
    grid_shift,
    largest_weights,
    shift_epsilon,
)
from pyg_trust.verify import release, removal

__all__ = ['CertifiedClassifier', 'noised']

#: An assumption of every release.
EXACT_NOISE = (
    'the noise is exact, as integers on the grid of the release, whose '
    'rounding is paid for'
)


class CertifiedClassifier(Saved):
    r"""Base of classifiers with certified removal: release, account, state.

    A subclass keeps features and weights in ``_model``: ``W`` before the
    noise, the released ``weight``, ``classes``, ``releases`` of all fits and
    ``num_items`` that remain.
    """

    noise = 'output'

    def __init__(
        self,
        *,
        weight_decay: float,
        release_std: float,
        epsilon: float,
        delta: float,
        tol: float,
        seed: int | None,
    ) -> None:
        self.weight_decay, self.tol = weight_decay, tol
        self.release_std = release_std
        self.budget = gaussian_budget(epsilon, delta)
        self.epsilon = float(epsilon)
        self.delta = float(delta)
        self._first_seed = None if seed is None else rng.resolve(seed)
        # Most releases spend the same: the last amount and its epsilon.
        self._known_epsilon = (0.0, 0.0)
        super().__init__()

    @property
    def classes(self) -> tuple[int, ...]:
        """The class labels, in ascending order; empty before the first fit."""
        return () if self._model is None else self._model.classes

    @property
    def classes_(self) -> Tensor:
        """The class labels, in ascending order: int64, ``[num_classes]``."""
        return torch.tensor(self._fitted.classes)

    @property
    @synchronized
    def weight(self) -> Tensor:
        """The released weights, noise included: float64, ``[d, num_outputs]``.

        A copy. They are the same until the next release.
        """
        return self._fitted.weight.clone()

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state; keep it secret.

        The state holds the remaining data, their salts, the released weights
        and the ledger. It does not hold the weights before the noise, by which
        guesses of the removed data could be tested: these are solved again.
        Guard it like the data, and destroy older states after a removal: they
        hold what was removed.
        """
        return super().state_dict()

    def _packed(self, model: Any) -> dict[str, Any]:
        return {'classes': model.classes}

    def _unpacked(self, state: dict[str, Any]) -> Any:
        config, mine = dict(state['config']), self._config()
        if 'feature_bound' in mine:
            # States of earlier versions have no bound; features beyond it are
            # refused.
            config.setdefault('feature_bound', mine['feature_bound'])
        # States of 0.1 have it, without an effect.
        config.pop('noise_std', None)
        model = super()._unpacked({**state, 'config': config})
        if self._noise_p_value(model) < noise.LEAST_P_VALUE:
            raise ValueError(
                'the released weights of the state do not match its ledger: '
                'they may be those of an earlier release'
            )
        return model

    def _config(self) -> dict[str, Any]:
        """Return the settings that a saved state has to agree with."""
        return {
            'lam': self.weight_decay,
            'noise': self.noise,
            'release_std': self.release_std,
            'epsilon': self.epsilon,
            'delta': self.delta,
            'tol': self.tol,
        }

    def _begins(self) -> tuple[int, RemovalLedger]:
        # The releases so far, and the ledger of a fit.
        model = self._model
        ledger = RemovalLedger.after(model and model.ledger, self.budget)
        return 0 if model is None else model.releases, ledger

    @property
    def _seed(self) -> int | None:
        return self._first_seed

    def _labels(self, margin: Tensor) -> Tensor:
        # What is not there has NaN, and no class.
        found = torch.tensor(self.classes)[best(margin)]
        gone = margin.isnan() if margin.dim() == 1 else margin.isnan().any(1)
        return torch.where(gone, -1, found)

    def _release(self, W: Tensor, number: int) -> Tensor:
        seed = self._seed
        part = None if seed is None else rng.derive(seed, number, 0)
        return noised(W, noise.source(part), self.release_std)

    def _noise_p_value(self, model: Any) -> float:
        """Compute the p value of a test of the noise's law."""
        grid = release.grid(self.release_std)
        off = model.weight / grid - (model.W / grid).round()
        return noise.p_value(off * 2.0**-32)

    def _spends(self, beta: float, mu: float) -> float:
        """Convert a bound of the residual to units of the budget."""
        return beta / (mu * self.release_std)

    def _allowed(self, spent: float, mu: float) -> float:
        """Convert units of the budget to a bound of the residual."""
        return spent * self.release_std * mu

    def _grid(self, shape: tuple[int, ...]) -> float:
        """Bound the rounding of a release, in units of the budget."""
        size = self._largest(shape[1])
        return grid_shift(shape[0] * shape[1], size, self.release_std)

    def _largest(self, outputs: int) -> float:
        """Bound the weights of any solution that stays within the budget.

        The first term bounds exact training; others are at most the second
        away from it.
        """
        size = largest_weights(outputs, self.weight_decay)
        return size + self.budget * self.release_std

    def _check_grid(self, outputs: int) -> None:
        # Depends on no data, so that no removal is refused for it.
        size = self._largest(outputs)
        release.check_sum(size, self.release_std, 'release_std')

    def _bound(self, model: Any) -> float:
        """Return the bound of the residual that the ledger stands for."""
        mu = self.weight_decay * model.num_items
        return self._allowed(model.ledger.spent, mu)

    def _epsilon(self, spent: float) -> float:
        if spent != self._known_epsilon[0]:
            found = shift_epsilon(spent, self.delta)
            self._known_epsilon = (spent, found)
        return self._known_epsilon[1]

    def _transcript(self, ledger: RemovalLedger) -> float:
        # All releases since the fit, as one shift.
        return shift_epsilon(removal.together([*ledger.amounts()]), self.delta)

    def _check_shift(
        self, count: int, W: Tensor, beta: float, spent: float
    ) -> None:
        """Check that a release is paid for, as the kernel counts."""
        given = count, self.weight_decay, W.numpy(), self.release_std
        shift = removal.shift(beta, *given)
        if spent and not shift <= spent <= self.budget:
            raise RuntimeError(
                f'the kernel proves a shift of {shift:.6g} of the noise, and '
                f'{spent:.6g} of {self.budget:.6g} would be paid for: this is '
                'a bug of pyg_trust; nothing was changed'
            )

    def _certificate(
        self,
        model: Any,
        spent: float,
        residual: Residual,
        assumptions: tuple[str, ...],
        **origin: Any,
    ) -> dict[str, Any]:
        # The fields that reports of all releases have. A release that spends
        # nothing is compared with a fit by the same program.
        ledger = model.ledger
        return {
            'residual': residual.measured * (spent > 0),
            'assumptions': (
                *assumptions,
                EXACT_NOISE,
                *SAME * (spent == 0),
            ),
            'data_sha256': model.sealed,
            'origin': origin,
            'epsilon': self._epsilon(spent),
            'epsilon_transcript': self._transcript(ledger),
            'delta': self.delta,
            'target_epsilon': self.epsilon,
            'noise': self.noise,
            'release_std': self.release_std,
            'lam': self.weight_decay,
            'residual_checked': NOT_CHECKED,
            'weights_sha256': fingerprint_model({'weight': model.weight}),
            'ledger_head': ledger.head,
        }

    def _compared(
        self,
        model: Any,
        exact: Tensor,
        residuals: tuple[Residual, Residual],
        margins: Callable[[Tensor], Tensor],
    ) -> dict[str, Any]:
        """Compare a model with exact retraining: fields of a report."""
        upper = sum(residual.upper for residual in residuals)
        alike = best(margins(exact)) == best(margins(model.weight))
        return {
            'bound': self._bound(model),
            'distance_to_retrain': float((exact - model.W).norm()),
            'distance_bound': upper / (self.weight_decay * model.num_items),
            'noise_p_value': self._noise_p_value(model),
            'agreement': float(alike.double().mean()),
            'proved': False,
            'proved_residual': math.inf,
            'proved_shift': math.inf,
            'weights_sha256': fingerprint_model({'weight': model.weight}),
        }


def noised(W: Tensor, source: SecureNoise | SeededNoise, std: float) -> Tensor:
    """Round weights to the grid of the noise, and add noise to them."""
    k = release.rounded(W.contiguous().numpy(), std)
    cells = source.cells(tuple(W.shape)).numpy()
    return torch.from_numpy(release.released(k, cells, std))


def proved(
    found: removal.Proof, most: float, spent: float, claimed: bool
) -> dict[str, Any]:
    """Convert a proof of the kernel to the fields of a report."""
    if claimed and found.residual.least > most:
        raise RuntimeError(
            f'the kernel finds a residual above {found.residual.least:.6g}, '
            f'where {most:.6g} is claimed: this is a bug of pyg_trust'
        )
    return {
        'proved': found.shift <= spent,
        'proved_residual': found.residual.most,
        'proved_shift': found.shift,
    }


def probabilities(margin: Tensor) -> Tensor:
    """Convert margins to class probabilities: ``[n, num_classes]``."""
    if margin.dim() == 1:
        return torch.sigmoid(torch.stack([-margin, margin], dim=1))
    # In logarithms, so that tiny probabilities do not all vanish.
    return torch.nn.functional.logsigmoid(margin).softmax(1)


def best(margin: Tensor) -> Tensor:
    """Return the positions of the classes with the largest margins."""
    if margin.dim() == 1 or margin.size(1) == 1:
        return (margin.view(-1) > 0).long()
    return margin.argmax(1)
