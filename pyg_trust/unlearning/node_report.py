"""Reports of certified unlearning of node classifiers."""

import math
from dataclasses import dataclass
from typing import Any

from pyg_trust.kernel.sentences import outwards
from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated, with_verification
from pyg_trust.report.charts import Chart, verified

OUTPUT = (
    'the state (state_dict), of which the weights before the noise can be '
    'solved again, stays secret',
    'the noise is exact, as integers on the grid of the release, whose '
    'rounding is paid for',
)

# By what the residual of a claim was checked.
PROVED, LATER = 'by the kernel, at verify()', 'not by the kernel'

SAME = (
    'rounding hides more than the budget: this release was retrained from '
    'what remains alone, and is compared with a fit by the same program on '
    'it, in place of the exact solution; that it was may tell one bit of what '
    'was removed',
)


def checked(found: Any) -> str:
    """By what the residual of a claim was checked.

    Args:
        found (Report, optional): of a verification, with ``proved``.
    """
    return PROVED if found is not None and found.proved else LATER


def told(proved: bool, residual: float) -> str:
    """What the kernel proves, in words.

    Args:
        proved (bool): whether it proves the claim.
        residual (float): from above.
    """
    if proved:
        return (
            f'the kernel proves a residual of at most {outwards(residual, 3)}'
        )
    return 'the kernel does not prove it'


@dataclass(frozen=True)
class NodeUnlearnReport(Report):
    r"""The result of a removal, and the certificate of its release.

    Args:
        action (str): ``'hold'`` (the weights already fit what remains),
            ``'step'`` (one step), ``'refine'`` (more) or ``'retrain'`` (from
            zero).
        request (dict): the names of what was removed.
        rows_touched (int): rows of features that may have changed.
        train_rows_touched (int): those of them that the model is trained on.
        stale_rows (int): rows that are kept and out of date: none, as rows
            outside of the training set are computed when they are asked for.
        num_train (int): how many training nodes remain.
        gradient_change (float): the residual before the first step.
        residual (float): the residual :math:`\lVert \nabla L(W, D')
            \rVert_F`, as measured; 0 where the bound is.
        feature_error (float): what the error of features adds to it at most;
            0 where they are exact.
        bound (float): of the residual at exact features, with all that
            rounding can hide, as it is paid for; 0 where the release was
            retrained and is compared with a fit by the same program.
        budget (float): what the bound may be at most.
        distance_bound (float): of the distance to exact retraining, before
            the noise: :math:`\text{bound} / (\lambda n)`.
        epsilon (float): of this release, at :obj:`delta`.
        epsilon_transcript (float): of all releases since the fit together.
        delta (float): as given to the classifier.
        iterations (int): the number of steps.
        noise (str): ``'output'`` or ``'objective'``.
        release_std (float): the standard deviation of the noise.
        secure (bool): whether the noise came from the operating system.
        assumptions (tuple[str, ...]): what the certificate rests on.
        data (str): a digest, as in the ledger.
        origin (dict): versions and settings.
        weights (str): SHA-256 of the released weights, as a ``state_dict``
            with the one entry ``weight``.
        history (tuple[float, ...]): the bounds of all releases since the fit,
            in units of the budget.
        ledger_head (str): a digest of all lines of the ledger up to this
            removal.
        setting (str): a digest of propagation, head, penalty and deviation
            of the noise.
        verification (NodeVerifyReport, optional): as :meth:`verified` adds
            it.
    """

    action: str
    request: dict[str, Any]
    rows_touched: int
    train_rows_touched: int
    stale_rows: int
    num_train: int
    gradient_change: float
    residual: float
    feature_error: float
    bound: float
    budget: float
    distance_bound: float
    epsilon: float
    epsilon_transcript: float
    delta: float
    iterations: int
    noise: str
    release_std: float
    secure: bool
    assumptions: tuple[str, ...]
    data: str
    origin: dict[str, Any]
    weights: str = ''
    history: tuple[float, ...] = ()
    ledger_head: str = ''
    setting: str = ''
    verification: 'NodeVerifyReport | None' = None

    def verified(self, found: 'NodeVerifyReport') -> 'NodeUnlearnReport':
        """The report with the findings of a verification, for its page.

        Args:
            found (NodeVerifyReport): of :meth:`NodeClassifier.verify`, after
                this removal and before the next.

        Raises:
            TypeError: if it is none.
            ValueError: if it is of other weights.
        """
        return with_verification(self, found, NodeVerifyReport)

    def guarantee(self) -> Guarantee:
        """How close the release is to one that never saw what was removed."""
        given = self.origin.get('arguments', {})
        return stated(
            'certified removal from a node classifier',
            {
                **self.numbers(),
                'request': {'0': self.request},
                'seeded': not self.secure,
                'lam': given.get('lam'),
                'target_epsilon': given.get('epsilon'),
                'residual_checked': checked(self.verification),
            },
            assumptions=self.assumptions,
            data=self.data,
            origin=self.origin,
            history={
                'gradient residual': [
                    *(share * self.budget for share in self.history[:-1]),
                    self.bound,
                ]
            },
            checked=self._checked(),
            model=self.weights,
        )

    def _checked(self) -> tuple[str, ...]:
        measured = (
            'the gradient residual before the noise was measured on the '
            f'{self.num_train} training nodes that remain: {self.residual:.3g}'
            f', which counts as {self.bound:.3g} of {self.budget:.3g}'
        )
        if self.bound == 0:
            measured = 'the weights were retrained from what remains alone'
        lines = [
            f'{self.rows_touched} rows of features were computed again from '
            'the graph that remains',
            measured,
        ]
        found = self.verification
        if found is not None:
            lines.append(found.told())
        return tuple(lines)


@dataclass(frozen=True)
class NodePlan(Report):
    """A dry run of a removal: its action, and the rows that it would touch.

    Args:
        action (str): ``'hold'`` or ``'refine'`` (one step or more).
        rows_touched (int): as in :class:`NodeUnlearnReport`.
        train_rows_touched (int): as in :class:`NodeUnlearnReport`.
        num_train (int): how many training nodes would remain.
        gradient_change (float): the residual before the first step.
    """

    action: str
    rows_touched: int
    train_rows_touched: int
    num_train: int
    gradient_change: float

    def chart(self) -> Chart:
        """How many rows of features the request touches."""
        return Chart(
            f'Forgetting would touch {self.train_rows_touched} of '
            f'{self.num_train} training rows ({self.action})',
            bars={
                'rows touched': self.rows_touched,
                'of the training set': self.train_rows_touched,
                'training rows that remain': self.num_train,
            },
            xlabel='rows',
        )


@dataclass(frozen=True)
class NodeVerifyReport(Report):
    r"""The findings of :meth:`NodeClassifier.verify`.

    Args:
        ok (bool): whether everything below is as it has to be.
        feature_error (float): the largest difference of the features from
            those of a computation from scratch on what remains: 0, to the
            bit, for exact features; for ``features='push'`` the Frobenius
            norm of the error.
        feature_error_bound (float): what it may be.
        residual (float): recomputed from scratch, with all that rounding can
            hide.
        bound (float): the bound of it that the ledger holds.
        bound_holds (bool): whether the residual is at most the bound.
        distance_to_retrain (float): from the weights before the noise to
            those of exact retraining.
        distance_bound (float): what the residual allows it to be.
        noise_p_value (float): how likely Gaussian noise of the standard
            deviation :obj:`release_std` is as far from what it has to be as
            that on the released weights (chi-squared, two-sided); less than
            1e-9 is not accepted. 1 with ``noise='objective'``, if what is
            released are the weights.
        agreement (float): the share of the nodes that the released weights
            and exact retraining classify alike.
        frozen_factor (bool): whether the factored Hessian is older than the
            last removal, which :meth:`NodeClassifier.flush` changes.
        leftovers (tuple[str, ...]): what still holds something removed.
        weights (str): SHA-256 of the released weights.
        proved (bool): whether :mod:`pyg_trust.kernel.removal` proves what the
            ledger has of this release, from what remains alone. It can't for
            ``features='push'``, ``noise='objective'``, and a release that is
            compared with a fit by the same program.
        proved_residual (float): the residual as the kernel bounds it, from
            features that it computes itself; infinite where it can't.
        proved_shift (float): likewise, the shift of the release over its
            noise.
    """

    ok: bool
    feature_error: float
    feature_error_bound: float
    residual: float
    bound: float
    bound_holds: bool
    distance_to_retrain: float
    distance_bound: float
    noise_p_value: float
    agreement: float
    frozen_factor: bool
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
            'what remains alone: features off by '
            f'{self.feature_error:.3g} (allowed {self.feature_error_bound:.3g}'
            f'), a residual of {self.residual:.3g} (allowed {self.bound:.3g})'
            f', exact retraining {self.distance_to_retrain:.3g} away (allowed '
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
