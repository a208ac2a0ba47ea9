"""The reports of audits: a verdict for every test, and no 'passed'."""

from dataclasses import dataclass
from typing import Any

from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart

__all__ = [
    'VERDICTS',
    'AuditReport',
    'AuditRow',
    'PrivacyAudit',
    'RemovalAudit',
]

FAILED, KEPT = 'failed', 'not rejected'
LEAKS, POWERLESS = 'leaks by design', 'no power'
#: No test can show that nothing leaks, so there is no other verdict.
VERDICTS = (FAILED, KEPT, LEAKS, POWERLESS)
NAN = float('nan')


@dataclass(frozen=True)
class AuditRow(Report):
    """One test of an audit, with its result and verdict.

    Args:
        test (str): the name of the test.
        adversary (str): what an adversary needs to run it.
        statistic (str): the name of the measured quantity.
        value (float): the measured quantity.
        low (float): the lower end of its confidence interval; NaN without one.
        high (float): the upper end; NaN without one.
        p (float): the p value of the hypothesis that unlearning is exact; NaN
            if none was computed.
        corrected (float): ``p`` after Holm's correction over all tests of the
            audit that have a p value.
        expected (str): the value that exact unlearning, or the claim, would
            give.
        verdict (str): ``'failed'``, ``'not rejected'``, ``'leaks by design'``
            or ``'no power'`` (the test could have found nothing). A test that
            leaves it empty is judged by ``corrected``.
        note (str): where a trace was found, or why the test has no power.
    """

    test: str
    adversary: str
    statistic: str
    value: float
    low: float = NAN
    high: float = NAN
    p: float = NAN
    corrected: float = NAN
    expected: str = ''
    verdict: str = ''
    note: str = ''

    def chart(self) -> Chart:
        """Draw the statistic with its interval."""
        return Chart(
            f'{self.test}: {self.verdict}; exact unlearning gives '
            f'{self.expected}',
            bars={self.statistic: self.value},
            spans={self.statistic: (self.low, self.high)},
        )


@dataclass(frozen=True)
class AuditReport(Report):
    """The verdicts of an audit.

    Args:
        rows (tuple[AuditRow, ...]): the result and verdict of each test.
        level (float): the confidence of intervals, bounds and verdicts, in (0,
            1).
        origin (dict): versions of packages and the arguments of the call, the
            seed included.
    """

    rows: tuple[AuditRow, ...]
    level: float
    origin: dict[str, Any]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the tests that were failed."""
        return tuple(row.test for row in self.rows if row.verdict == FAILED)

    @property
    def violated(self) -> bool:
        """Whether at least one test was failed."""
        return bool(self.failed)


@dataclass(frozen=True)
class RemovalAudit(AuditReport):
    """The verdicts of an audit of a removal.

    ``rows``, ``level`` and ``origin`` are those of :class:`AuditReport`.

    Args:
        request (dict): the ids of the removed items.
        left_out (tuple[str, ...]): the tests that were not run, each with the
            reason.
        not_compared (tuple[str, ...]): released values that differ even
            between two runs with the same data and seed (wall times, random
            salts). A test for equal bits leaves them out.
    """

    request: dict[str, Any]
    left_out: tuple[str, ...]
    not_compared: tuple[str, ...]

    def guarantee(self) -> Guarantee:
        """Return the findings; no audit shows that all was forgotten."""
        found = {
            verdict: [r.test for r in self.rows if r.verdict == verdict]
            for verdict in VERDICTS
        }
        tests = [row.to_dict() for row in self.rows]
        return stated(
            'audit of a removal',
            {**self.numbers(), 'verdicts': found, 'tests': tests},
            origin=self.origin,
            checked=tuple(
                f'{row.test}: {row.statistic} {row.value:.3f}, {row.verdict} '
                f'(exact unlearning: {row.expected})'
                for row in self.rows
            ),
        )

    def chart(self) -> Chart:
        """Draw every statistic with its interval and verdict."""
        named = {f'{r.test}, {r.statistic}: {r.verdict}': r for r in self.rows}
        return Chart(
            f'Failed: {", ".join(self.failed)}'
            if self.failed
            else f'No test of {len(self.rows)} finds a trace',
            bars={name: r.value for name, r in named.items()},
            spans={name: (r.low, r.high) for name, r in named.items()},
            xlabel='statistic, with its interval',
        )

    def __str__(self) -> str:
        lines = [type(self).__name__]
        for row in self.rows:
            span = ''
            if row.low == row.low:
                span = f' [{row.low:.3f}, {row.high:.3f}]'
            chance = f', p {row.corrected:.4g}' if row.p == row.p else ''
            lines.append(
                f'{row.test:<18} {row.verdict:<16} {row.statistic} '
                f'{row.value:.3f}{span}{chance}; exact: {row.expected}'
            )
            if row.note:
                lines.append(f'{"":<18} {row.note}')
        lines += [f'left out: {text}' for text in self.left_out]
        if self.not_compared:
            lines.append(f'not compared: {", ".join(self.not_compared)}')
        return '\n'.join(lines)


@dataclass(frozen=True)
class PrivacyAudit(AuditReport):
    r"""Measured lower bounds of privacy, beside the claims.

    ``rows``, ``level`` and ``origin`` are those of :class:`AuditReport`. A
    lower bound above the claim disproves it; ``rows`` has a test for each
    claim. All bounds together hold with probability ``level``, for any
    mechanism, if the trials are independent of each other.

    Args:
        trials (int): the number of trials, each on one of two neighbouring
            data sets; the attack guesses on which.
        true_positive_rate (float): the share of right guesses on one of them.
        false_positive_rate (float): the share of wrong guesses on the other.
        epsilon_lower (float, optional): the true :math:`\epsilon` at ``delta``
            is at least this.
        epsilon_claimed (float, optional): the claimed :math:`\epsilon`.
        delta (float, optional): the :math:`\delta` of both epsilons.
        delta_lower (float, optional): the true :math:`\delta` at the claimed
            :math:`\epsilon` is at least this.
        mu_lower (float): the true :math:`\mu` of Gaussian differential privacy
            is at least this; 0 if not computed.
        mu_claimed (float, optional): the claimed :math:`\mu`.
    """

    trials: int
    true_positive_rate: float
    false_positive_rate: float
    epsilon_lower: float | None = None
    epsilon_claimed: float | None = None
    delta: float | None = None
    delta_lower: float | None = None
    mu_lower: float = 0.0
    mu_claimed: float | None = None

    @staticmethod
    def of(
        level: float, origin: dict[str, Any], **found: Any
    ) -> 'PrivacyAudit':
        """Make the report, with a row and a verdict for each claim.

        ``level``, ``origin`` and ``found`` are the fields of the class; the
        rows are made of bounds and claims, such as ``mu_lower``.
        """
        rows = tuple(
            AuditRow(
                test=name,
                adversary='plants canaries and knows the rest',
                statistic=f'{name} is at least',
                value=found[f'{name}_lower'],
                expected=f'at most {claimed:.4g}',
                verdict=FAILED if found[f'{name}_lower'] > claimed else KEPT,
            )
            for name, claimed in (
                ('epsilon', found.get('epsilon_claimed')),
                ('delta', found.get('delta')),
                ('mu', found.get('mu_claimed')),
            )
            if claimed is not None and found.get(f'{name}_lower') is not None
        )
        return PrivacyAudit(rows, level, origin, **found)

    @property
    def confidence(self) -> float:
        """The probability that all bounds hold: ``level``."""
        return self.level

    def chart(self) -> Chart:
        """Draw the measured lower bound, beside the claim."""
        name, low, claim = 'epsilon', self.epsilon_lower, self.epsilon_claimed
        if low is None:
            name, low, claim = 'mu', self.mu_lower, self.mu_claimed
        bars = {'measured, at least': low}
        if claim is not None:
            bars['claimed, at most'] = claim
        return Chart(
            f'The claim is disproved, with confidence {self.level:g}'
            if self.violated
            else 'The attack does not disprove the claim'
            if claim is not None
            else f'{name} is at least {low:.4g}',
            bars=bars,
            xlabel=name,
        )
