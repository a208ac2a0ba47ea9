"""Reports of :class:`~pyg_trust.unlearning.ScatteringClassifier`."""

import math
from dataclasses import dataclass
from typing import Any

from pyg_trust.kernel.sentences import OBJECTIVE
from pyg_trust.noise import SEEDED
from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated, with_verification
from pyg_trust.report.charts import Chart, verified
from pyg_trust.unlearning.node_report import checked, told


@dataclass(frozen=True)
class UnlearnReport(Report):
    r"""The result of a removal, and the certificate of the model after it.

    Keep reports as private as the data: residuals are functions of what was
    removed, and no part of the release.

    Args:
        action (str): :obj:`'refine'` (solved exactly; with
            ``noise='objective'`` for the stored noise), :obj:`'step'` (one
            Newton step) or :obj:`'retrain'` (solved exactly with fresh
            :math:`b`).
        request (dict): the names of what was removed.
        mode (str): :obj:`'delete'` or :obj:`'mask'`.
        noise (str): :obj:`'output'` or :obj:`'objective'`.
        seeded (bool): whether the noise came from an explicit seed, and hides
            nothing from who knows or guesses it.
        accounting (str): how the bound was found.
        graphs_embedded (int): how many graphs were embedded again.
        num_graphs (int): how many training graphs remain.
        empty_classes (tuple[int, ...]): classes without a training graph.
        residual (float): the gradient residual as measured, before noise.
        bound (float): what the ledger holds: with ``noise='output'`` the
            bound :math:`m` of the shift over the noise, else the bound of the
            residual.
        budget (float): what the bound may be at most.
        distance_bound (float): how far the solution is from that of exact
            retraining at most, before noise, in the Frobenius norm:
            :math:`\Delta`.
        release_std (float): the standard deviation of the noise on the
            released weights; 0 with ``noise='objective'``.
        epsilon (float): of this release, at :obj:`delta`.
        epsilon_transcript (float): of all releases since the fit together, at
            :obj:`delta`; infinite with ``noise='objective'``, which says
            nothing about more than one.
        delta (float): as given to the classifier.
        releases (int): how many releases these are.
        iterations (int): Newton steps taken.
        increments (dict): with ``noise='objective'``, bounds of the residual
            that the certified step added or would have added: ``tight``,
            ``paper`` (Theorem 4.7), and the worst cases ``node`` (Theorem
            4.4, Corollary 4.6) and ``feature`` (Theorem 4.3, Corollary 4.5);
            those that the accounting computes and the request allows.
        assumptions (tuple[str, ...]): what the certificate rests on.
        data (str): the root of the seals of the data that remain, as in the
            ledger.
        origin (dict): versions and settings.
        weights (str): SHA-256 of the released weights, as a ``state_dict``
            with the one entry ``weight``.
        history (tuple[float, ...]): the bounds of all releases since the fit.
        ledger_head (str): a digest of all lines of the ledger up to this
            removal.
        verification (VerifyReport, optional): as :meth:`verified` adds it.
    """

    action: str
    request: dict[str, Any]
    mode: str
    noise: str
    seeded: bool
    accounting: str
    graphs_embedded: int
    num_graphs: int
    empty_classes: tuple[int, ...]
    residual: float
    bound: float
    budget: float
    distance_bound: float
    release_std: float
    epsilon: float
    epsilon_transcript: float
    delta: float
    releases: int
    iterations: int
    increments: dict[str, float]
    assumptions: tuple[str, ...]
    data: str
    origin: dict[str, Any]
    weights: str = ''
    history: tuple[float, ...] = ()
    ledger_head: str = ''
    verification: 'VerifyReport | None' = None

    def verified(self, found: 'VerifyReport') -> 'UnlearnReport':
        """The report with the findings of a verification, for its page.

        Args:
            found (VerifyReport): of :meth:`ScatteringClassifier.verify`,
                after this removal and before the next.

        Raises:
            TypeError: if it is none.
            ValueError: if it is of other weights.
        """
        return with_verification(self, found, VerifyReport)

    def guarantee(self) -> Guarantee:
        """How close the model is to one that never saw what was removed."""
        given = self.origin.get('arguments', {})
        output = self.noise == 'output'
        what = 'shift over noise' if output else 'gradient residual'
        return stated(
            'certified removal',
            {
                **self.numbers(),
                'lam': given.get('lam'),
                'target_epsilon': given.get('epsilon'),
                'residual_checked': checked(self.verification),
            },
            assumptions=self.assumptions,
            data=self.data,
            origin=self.origin,
            history={what: list(self.history)},
            checked=self._checked(),
            model=self.weights,
        )

    def _checked(self) -> tuple[str, ...]:
        lines = [
            f'the gradient residual before the noise: {self.residual:.3g}, '
            f'measured on the {self.num_graphs} graphs that remain'
        ]
        if self.verification is not None:
            lines.append(self.verification.told())
        return tuple(lines)

    def __str__(self) -> str:
        table = super().__str__()
        return f'{SEEDED}\n{table}' if self.seeded else table


@dataclass(frozen=True)
class VerifyReport(Report):
    r"""The findings of :meth:`~.ScatteringClassifier.verify`.

    Args:
        ok (bool): whether everything below is as it has to be.
        seeded (bool): as in :class:`UnlearnReport`.
        residual (float): the gradient residual before noise, recomputed from
            the graphs that remain, rounding included.
        bound (float): the bound of it that the ledger stands for.
        bound_holds (bool): whether the residual is at most the bound.
        embedding_error (float): the largest difference of the cached
            embeddings and their inner products from those recomputed from
            the graphs that remain.
        distance_to_retrain (float): the Frobenius norm of the difference
            between the solution, before noise, and the exact one on the data
            that remain (with the same :math:`b`).
        distance_bound (float): what the residual allows it to be,
            :math:`\lVert r \rVert / (\lambda n)`.
        noise_p_value (float): how likely Gaussian noise of the standard
            deviation :obj:`release_std` is as far from what it has to be as
            that on the released weights (chi-squared, two-sided); less than
            1e-9 is not accepted. 1 with ``noise='objective'``.
        agreement (float): the share of the remaining graphs that the released
            weights and exact retraining classify alike.
        sealed (bool): whether the graphs are those that the ledger seals.
        leftovers (tuple[str, ...]): what still holds, or could hold,
            something that was removed.
        weights (str): SHA-256 of the released weights.
        proved (bool): whether :mod:`pyg_trust.kernel.removal` proves what the
            ledger has of this release, of embeddings that were made anew. It
            can't with ``noise='objective'``.
        proved_residual (float): the residual as the kernel bounds it;
            infinite where it can't.
        proved_shift (float): likewise, the shift of the release over its
            noise.
    """

    ok: bool
    seeded: bool
    residual: float
    bound: float
    bound_holds: bool
    embedding_error: float
    distance_to_retrain: float
    distance_bound: float
    noise_p_value: float
    agreement: float
    sealed: bool
    leftovers: tuple[str, ...]
    weights: str = ''
    proved: bool = False
    proved_residual: float = math.inf
    proved_shift: float = math.inf

    def told(self) -> str:
        """The findings, in one sentence."""
        left = '; '.join(self.leftovers) or 'nothing that was removed'
        return (
            f'verify() {"found" if self.ok else "FAILED, and found"}, from '
            f'the graphs that remain alone: a residual of {self.residual:.3g} '
            f'(allowed {self.bound:.3g}), exact retraining '
            f'{self.distance_to_retrain:.3g} away (allowed '
            f'{self.distance_bound:.3g}), and left in memory: {left}; '
            + told(self.proved, self.proved_residual)
        )

    def chart(self) -> Chart:
        """A bar chart of measured values, as shares of their bounds."""
        return verified(
            self.ok,
            residual=(self.residual, self.bound),
            distance=(self.distance_to_retrain, self.distance_bound),
        )

    def __str__(self) -> str:
        table = super().__str__()
        return f'{SEEDED}\n{table}' if self.seeded else table


ASSUMPTIONS = {
    'output': (
        'the transform takes nothing from other graphs',
        'the noise is exact, as integers on the grid of the release, whose '
        'rounding is paid for',
    ),
    'objective': (
        *OBJECTIVE,
        'the transform takes nothing from other graphs',
    ),
}
