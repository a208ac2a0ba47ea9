"""The report of an audit of unlearning."""

from dataclasses import dataclass
from typing import Any

from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart, axes

FAILED, KEPT = 'failed', 'not rejected'
LEAKS, POWERLESS = 'leaks by design', 'no power'
NAN = float('nan')
_SAID = {
    FAILED: 'found a trace of what was removed',
    KEPT: 'found no trace of what was removed',
    LEAKS: 'found what is released by design',
    POWERLESS: 'could not have found a trace',
}


@dataclass(frozen=True)
class AuditRow(Report):
    """One test of an audit.

    Args:
        test (str): its name.
        adversary (str): what somebody who runs it needs to have.
        statistic (str): what was measured.
        value (float): the measurement.
        low (float): the lower end of its interval; NaN without one.
        high (float): the upper end.
        p (float): the p value of exact unlearning; NaN without one.
        corrected (float): the same after Holm's correction over all tests of
            the audit that have one.
        expected (str): what exact unlearning gives.
        verdict (str): ``'failed'``, ``'not rejected'``, ``'leaks by design'``
            or ``'no power'``.
        note (str): where a trace is, or why there is no power.
    """

    test: str
    adversary: str
    statistic: str
    value: float
    low: float
    high: float
    p: float
    corrected: float
    expected: str
    verdict: str
    note: str

    def chart(self) -> Chart:
        """The statistic, with its interval."""
        return Chart(
            f'{self.test}: {self.verdict}; exact unlearning gives '
            f'{self.expected}',
            bars={self.statistic: self.value},
            spans={self.statistic: (self.low, self.high)},
        )


@dataclass(frozen=True)
class AuditReport(Report):
    """The verdicts of an audit of a removal.

    Args:
        request (dict): the names of what was removed.
        rows (tuple[AuditRow, ...]): one for each test.
        left_out (tuple[str, ...]): tests that were not run, and why.
        not_compared (tuple[str, ...]): releases that differ between two runs
            with the same data and seed (wall times, random salts), so that
            twins can't compare them.
        level (float): the confidence of the intervals.
        origin (dict): versions and arguments, the seed included.
    """

    request: dict[str, Any]
    rows: tuple[AuditRow, ...]
    left_out: tuple[str, ...]
    not_compared: tuple[str, ...]
    level: float
    origin: dict[str, Any]

    @property
    def failed(self) -> tuple[str, ...]:
        """The tests that the removal failed."""
        return tuple(row.test for row in self.rows if row.verdict == FAILED)

    def guarantee(self) -> Guarantee:
        """The verdicts of the audit, no promise that all is forgotten."""
        found = {
            verdict: [row.test for row in self.rows if row.verdict == verdict]
            for verdict in (FAILED, KEPT, LEAKS, POWERLESS)
        }
        return stated(
            'audit of a removal',
            {
                **self.numbers(),
                'verdicts': found,
                'tests': [row.to_dict() for row in self.rows],
            },
            origin=self.origin,
            checked=tuple(
                f'{row.test}: {row.statistic} {row.value:.3f}, {row.verdict} '
                f'(exact unlearning: {row.expected})'
                for row in self.rows
            ),
        )

    def plot(self, ax: Any = None) -> Any:
        """Draws every statistic with its interval and verdict.

        Args:
            ax (matplotlib.axes.Axes, optional): where to draw; by default on
                a new figure. (default: :obj:`None`)

        Returns:
            matplotlib.axes.Axes: with a row for each test.
        """
        ax = axes(ax, 0.4 * len(self.rows) + 1.2)
        colours = {FAILED: 'C3', KEPT: 'C0', LEAKS: 'C1', POWERLESS: 'C7'}
        for at, row in enumerate(self.rows):
            colour = colours[row.verdict]
            if row.low == row.low:
                ax.plot([row.low, row.high], [at, at], color=colour)
            ax.plot([row.value], [at], 'o', color=colour)
            ax.annotate(
                f'{row.statistic}: {row.verdict}',
                (1.02, at),
                xycoords=ax.get_yaxis_transform(),
                color=colour,
                va='center',
                fontsize='small',
            )
        ax.set_yticks(range(len(self.rows)), [row.test for row in self.rows])
        ax.invert_yaxis()
        ax.set_xlim(-0.05, 1.05)
        ax.set_title(
            f'Failed: {", ".join(self.failed)}'
            if self.failed
            else f'No test of {len(self.rows)} finds a trace',
            loc='left',
            fontsize='medium',
        )
        ax.set_xlabel('statistic, with its interval')
        return ax

    def __str__(self) -> str:
        lines = ['AuditReport']
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


def row_of(
    test: str, adversary: str, statistic: str, value: float, **rest: Any
) -> AuditRow:
    """A row without what it does not say.

    Args:
        test (str): as in :class:`AuditRow`.
        adversary (str): as there.
        statistic (str): as there.
        value (float): as there.
        **rest (Any): the other fields.
    """
    given = {'low': NAN, 'high': NAN, 'p': NAN, 'verdict': '', 'note': ''}
    return AuditRow(
        test=test,
        adversary=adversary,
        statistic=statistic,
        value=float(value),
        corrected=NAN,
        **{**given, **rest},
    )
