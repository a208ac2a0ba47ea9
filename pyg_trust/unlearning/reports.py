"""Reports of models that forget: plans, removals and verifications."""

import math
from dataclasses import dataclass, field
from typing import Any

from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import Verifiable, stated
from pyg_trust.report.charts import Chart, verified
from pyg_trust.report.claimed import ClaimedReport, claimed
from pyg_trust.verify.claims import outwards

__all__ = [
    'SAME',
    'LinkUnlearnReport',
    'NodeAdditionReport',
    'NodePlan',
    'NodeUnlearnReport',
    'NodeVerifyReport',
    'RecommenderPlan',
    'RecommenderReport',
    'RecommenderVerifyReport',
    'RemovalReport',
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardVerifyReport',
    'UnlearnReport',
    'VerificationReport',
    'VerifyReport',
]

SAME = (
    'rounding hides more than the budget: this release was retrained from '
    'what remains alone, and is compared with a fit by the same program on '
    'it, in place of the exact solution; that it was may reveal one bit of '
    'what was removed',
)
NOT_CHECKED = 'not by the kernel'


class RemovalReport(Verifiable, ClaimedReport):
    """Base of the reports of removals.

    Keep reports as private as the data: residuals are functions of what was
    removed, and no part of the release.
    """

    verification: Any

    def guarantee(self) -> Guarantee:
        """State how close the model is to one without the removed items."""
        found, checked = self.verification, self._checked()
        if found is not None:
            checked = [*checked, found.summary()]
        values = {**self.numbers(), 'request': self._asked()}
        if getattr(found, 'proved', False):
            values['residual_checked'] = 'by the kernel, at verify()'
        return stated(
            self._procedure,
            values,
            assumptions=self.assumptions,
            data=self.data,
            origin=self.origin,
            checked=tuple(checked),
            model=self.weights,
        )

    def _asked(self) -> dict[str, Any]:
        return {'0': self.request}

    def _checked(self) -> list[str]:
        return []


_ANY = {
    'data': 'the root of the digests of the remaining data, as in the ledger',
    'origin': 'versions and settings',
    'skipped': 'the items of the request that were not there, by graph; with '
    "`missing='skip'` alone",
    'verification': 'the findings that `verified` adds',
}
_RELEASE = {
    'action': "'hold' (the weights already fit what remains), 'step' (one "
    "step), 'refine' (more steps) or 'retrain' (solved from zero, on features "
    'made anew)',
    'iterations': 'the number of Newton steps',
    'assumptions': 'the assumptions of the certificate',
    **_ANY,
    'weights': 'SHA-256 of the released weights, as a `state_dict` with the '
    'one entry `weight`',
}
_ROWS = {
    'rows_touched': 'the number of feature rows that may have changed',
    'train_rows_touched': 'the number of those rows that the model is trained '
    'on',
    'stale_rows': 'the number of stored rows that are out of date: 0, as rows '
    'outside of the training set are computed on request',
    'gradient_change': 'the residual before the first step',
    'feature_error': 'a bound of what the error of the features adds to the '
    'residual; 0 where they are exact',
    'secure': 'whether the noise came from the operating system',
    **_RELEASE,
}


@claimed('certified removal from a node classifier', None, **_ROWS)
class NodeUnlearnReport(RemovalReport):
    """The result of a removal, and the certificate of its release.

    ``bound`` is the residual at exact features, plus all that rounding can
    hide. It is 0 where the release was retrained, and is compared with a fit
    by the same program. ``history`` is in units of the budget.
    """

    _of_what = 'training nodes'

    @property
    def _verification(self) -> type[Report]:
        return NodeVerifyReport

    @property
    def pending(self) -> int:
        """The number of additions that the weights do not include: 0."""
        return 0

    def _checked(self) -> list[str]:
        measured = (
            'the gradient residual before the noise was measured on the '
            f'{self.num_train} {self._of_what} that remain: '
            f'{self.residual:.3g}, which counts as {self.bound:.3g} of '
            f'{self.budget:.3g}'
        )
        if self.bound == 0:
            measured = 'the weights were retrained from what remains alone'
        return [
            f'{self.rows_touched} rows of features were computed again from '
            'the graph that remains',
            measured,
        ]


@claimed('certified removal from a link classifier', None, **_ROWS)
class LinkUnlearnReport(NodeUnlearnReport):
    """The result of a removal from a link classifier: training rows are pairs.

    ``num_train`` is the number of pairs that remain, positive and negative.
    """

    _of_what = 'pairs'


@claimed(
    'certified removal',
    None,
    accounting='the method that computed the bound',
    graphs_embedded='the number of graphs that were embedded again',
    empty_classes='classes without a training graph',
    increments='of a method as published, bounds of the residual that the '
    'step added: tight, and paper (Theorem 4.7)',
    **_RELEASE,
)
class UnlearnReport(RemovalReport):
    """The result of a removal, and the certificate of the model after it.

    The bound is that of the shift over the noise; with objective perturbation
    of the residual.
    """

    @property
    def _verification(self) -> type[Report]:
        return VerifyReport

    def _asked(self) -> dict[str, Any]:
        return dict(self.request)

    def _checked(self) -> list[str]:
        return [
            f'the gradient residual before the noise: {self.residual:.3g}, '
            f'measured on the {self.num_graphs} graphs that remain'
        ]


@dataclass(frozen=True, kw_only=True)
class VerificationReport(Report):
    """Base of the reports of verifications: a sentence and a chart.

    Args:
        ok (bool): whether all checks below passed.
        residual (float): the residual before the noise, measured again on
            features that were made anew.
        bound (float): the bound of the residual that the ledger records.
        bound_holds (bool): whether the residual is at most the bound.
        distance_to_retrain (float): the Frobenius norm of the difference
            between the weights before the noise and those of exact retraining.
        distance_bound (float): the largest distance that the residual allows.
        noise_p_value (float): how likely Gaussian noise of the standard
            deviation :obj:`release_std` is as far from what it has to be as
            that on the released weights (chi-squared, two-sided); less than
            1e-9 is not accepted.
        agreement (float): the share of the remaining items that the released
            weights and exact retraining classify alike.
        leftovers (tuple[str, ...]): the places that still hold, or could hold,
            removed items.
        weights (str): SHA-256 of the released weights.
        proved (bool): whether :mod:`pyg_trust.verify.removal` proves what the
            ledger has of this release, from what remains alone. It can't for
            ``features='push'``, and a release that is compared with a fit by
            the same program.
        proved_residual (float): the kernel's bound of the residual; infinite
            where there is no proof.
        proved_shift (float): the kernel's bound of the release's shift over
            its noise; infinite where there is no proof.
    """

    ok: bool
    residual: float
    bound: float
    bound_holds: bool
    distance_to_retrain: float
    distance_bound: float
    noise_p_value: float
    agreement: float
    leftovers: tuple[str, ...]
    weights: str = ''
    proved: bool = False
    proved_residual: float = math.inf
    proved_shift: float = math.inf

    def summary(self) -> str:
        """State the findings in one sentence."""
        left = '; '.join(self.leftovers) or 'nothing that was removed'
        proof = 'the kernel does not prove it'
        if self.proved:
            proof = (
                'the kernel proves a residual of at most '
                f'{outwards(self.proved_residual, 3)}'
            )
        return (
            f'verify() {"found" if self.ok else "FAILED, and found"}, from '
            f'{self._of} a residual of {self.residual:.3g} (allowed '
            f'{self.bound:.3g}), exact retraining '
            f'{self.distance_to_retrain:.3g} away (allowed '
            f'{self.distance_bound:.3g}), and left in memory: {left}; {proof}'
        )

    @property
    def _of(self) -> str:
        raise NotImplementedError

    def chart(self) -> Chart:
        """Draw measured values as shares of their bounds."""
        return verified(
            self.ok,
            residual=(self.residual, self.bound),
            distance=(self.distance_to_retrain, self.distance_bound),
        )


@dataclass(frozen=True, kw_only=True)
class NodeVerifyReport(VerificationReport):
    r"""The findings of :meth:`NodeClassifier.verify`.

    Args:
        feature_error (float): the largest difference of the features from
            those of a computation from scratch on what remains: 0, to the
            bit, for exact features; for ``features='push'`` the Frobenius
            norm of the error.
        feature_error_bound (float): the largest error that is allowed.
        frozen_factor (bool): whether the factored Hessian is older than the
            last removal, which :meth:`NodeClassifier.flush` changes.
    """

    feature_error: float
    feature_error_bound: float
    frozen_factor: bool

    @property
    def _of(self) -> str:
        return (
            f'what remains alone: features off by {self.feature_error:.3g} '
            f'(allowed {self.feature_error_bound:.3g}),'
        )


@dataclass(frozen=True, kw_only=True)
class VerifyReport(VerificationReport):
    r"""The findings of :meth:`~.ScatteringClassifier.verify`.

    Args:
        seeded (bool): as in :class:`UnlearnReport`.
        embedding_error (float): the largest difference of the cached
            embeddings and their inner products from those recomputed from
            the graphs that remain.
        sealed (bool): whether the graphs are those that the ledger records.
    """

    seeded: bool
    embedding_error: float
    sealed: bool

    @property
    def _of(self) -> str:
        return 'the graphs that remain alone:'


@dataclass(frozen=True)
class NodeAdditionReport(Report):
    """The result of additions that wait for the next release.

    It guarantees nothing: the released weights are unchanged.

    Args:
        pending (int): the number of nodes and edges that the released weights
            do not include.
        rows_changed (int): the number of nodes whose degree, neighbours or
            features changed since the last release.
    """

    pending: int
    rows_changed: int


@dataclass(frozen=True)
class NodePlan(Report):
    """A dry run of a removal: its action, and the rows that it would touch.

    Args:
        action (str): ``'hold'`` or ``'refine'`` (one step or more).
        rows_touched (int): as in :class:`NodeUnlearnReport`.
        train_rows_touched (int): as in :class:`NodeUnlearnReport`.
        num_train (int): the number of training nodes that would remain.
        gradient_change (float): the residual before the first step.
    """

    action: str
    rows_touched: int
    train_rows_touched: int
    num_train: int
    gradient_change: float


@dataclass(frozen=True, kw_only=True)
class RecommenderPlan(Report):
    """A dry run of a removal from a recommender.

    Args:
        request (dict): the names of what would be removed.
        touched_users (int): the number of users whose lists would change or be
            removed.
        touched_entries (int): an upper bound of the number of counts that
            would change.
        num_entries (int): the number of stored counts; 0 if none are stored.
        recount (bool): whether everything would be counted again, which is
            faster for a large request.
    """

    request: dict[str, Any]
    touched_users: int
    touched_entries: int
    num_entries: int
    recount: bool


@dataclass(frozen=True, kw_only=True)
class RecommenderReport(Verifiable):
    """The result of a removal from a recommender, and its guarantee.

    Counts, and weights in closed form, have the bits of a fit on what remains.

    Args:
        request (dict): the ids of the removed items.
        named (dict): the same ids as nodes and edges of the whole graph, as in
            the ledger; the ids of items follow those of all users.
        entries_changed (int): the number of counts that changed; 0 if none are
            stored.
        recounted (bool): whether everything was counted again.
        exact (bool): whether counts, or weights in closed form, have the bits
            of a fit on what remains.
        num_users (int): the number of users that remain.
        num_items (int): the number of items that remain.
        num_interactions (int): the number of interactions that remain.
        data (str): a salted digest of the remaining data, as in the ledger.
        ledger_head (str): a digest of all lines of the ledger up to this
            removal.
        origin (dict): versions and settings.
        column_distance (float, optional): in closed form 0: the distance of
            the weights to those of a fit. (default: :obj:`None`)
        skipped (dict): as in :class:`NodeUnlearnReport`.
        verification (RecommenderVerifyReport, optional): the findings that
            :meth:`verified` adds.
    """

    request: dict[str, Any]
    named: dict[str, Any]
    entries_changed: int
    recounted: bool
    exact: bool
    num_users: int
    num_items: int
    num_interactions: int
    data: str
    ledger_head: str
    origin: dict[str, Any]
    column_distance: float | None = None
    skipped: dict[str, Any] = field(default_factory=dict)
    verification: 'RecommenderVerifyReport | None' = None

    @property
    def weights(self) -> str:  # type: ignore[override]
        """Digest of the data that determine the counts."""
        return self.data

    @property
    def _verification(self) -> type[Report]:
        return RecommenderVerifyReport

    def guarantee(self) -> Guarantee:
        """State that the counts hold no trace of the removed items."""
        found = self.verification
        return stated(
            'exact removal from a recommender',
            {**self.numbers(), 'request': {'0': self.named}},
            not_covered=(
                'recommendations: they read the lists of all, and are not '
                'private',
                'names of what was removed, in ledgers and reports',
                'memory before flush(), where empty counts tell that '
                'something was there',
            ),
            data=self.data,
            origin=self.origin,
            checked=() if found is None else (found.summary(),),
        )


@dataclass(frozen=True, kw_only=True)
class RecommenderVerifyReport(Report):
    """The findings of :meth:`Recommender.verify`.

    Args:
        ok (bool): whether the counts are equal and the lists match their
            seals.
        counts_equal (bool): whether the counts and the number of users per
            item equal a recount, to the bit; in closed form, whether the
            weights do.
        sealed (bool): whether the lists of users match the seals in the
            ledger.
        num_entries (int): the number of compared counts; 0 if none are stored.
        leftovers (tuple[str, ...]): traces of removed items in memory, which
            ``flush()`` deletes.
        weights (str): the digest of the remaining data, as in the ledger.
    """

    ok: bool
    counts_equal: bool
    sealed: bool
    num_entries: int
    leftovers: tuple[str, ...]
    weights: str

    def summary(self) -> str:
        """State the findings in one sentence."""
        left = '; '.join(self.leftovers) or 'nothing that was removed'
        equal = 'equal' if self.counts_equal else 'NOT equal'
        found = f'{self.num_entries} counts {equal}, to the bit'
        return (
            f'verify() {"found" if self.ok else "FAILED, and found"}, from '
            f'what remains alone: {found}; lists '
            f'{"as sealed" if self.sealed else "NOT as sealed"}; left in '
            f'memory: {left}'
        )


@dataclass(frozen=True, kw_only=True)
class ShardPlan(Report):
    """Estimated cost of a removal that has not been carried out.

    Args:
        request (dict): the ids of what would be removed.
        shards (tuple[int, ...]): the shards that would be retrained.
        nodes (int): the number of training nodes that these shards would have.
        node_epochs (int): the sum over these shards of nodes times epochs.
        full_node_epochs (int): the same sum over all shards.
        seconds (dict): the estimated seconds of each part, from the last time
            of each; empty if nothing was trained since a state was loaded.
        fraction (float): the estimated share of the seconds of a fit; the
            ratio of :obj:`node_epochs` if times are not known.
        aggregator_nodes (int): the number of nodes that the aggregator would
            be retrained on, in every removal.
        stages (dict): the first stage of every shard that would be retrained,
            from 0; always 0 without slices.
    """

    request: dict[str, Any]
    shards: tuple[int, ...]
    nodes: int
    node_epochs: int
    full_node_epochs: int
    seconds: dict[str, float]
    fraction: float
    aggregator_nodes: int
    stages: dict[int, int]


@claimed(
    'exact removal by shards',
    None,
    empty='the shards without a training node, which are constant voters',
    nodes='the number of training nodes of the retrained shards',
    node_epochs='the sum over these shards of nodes times epochs',
    fraction='the seconds of the removal, divided by those of a full fit',
    aggregator_nodes='the number of nodes that the aggregator learnt from',
    seconds='the seconds of each part: training the shards, running all '
    'models on the present graph, training the aggregator, and the rest',
    by_hash='the number of training nodes that came later and were assigned '
    'by a hash of their ids, although the partition is another',
    assumptions='the assumptions of the guarantee',
    weights='SHA-256 of the weights of all shards, `{i: '
    'unlearner.shard_state(i)}` for each of them',
    **_ANY,
)
class ShardRemovalReport(RemovalReport):
    """The result of a removal by shards, and its cost."""

    # The first line of the report.
    secrets: str

    @property
    def _verification(self) -> type[Report]:
        return ShardVerifyReport

    def _asked(self) -> dict[str, Any]:
        return dict(self.request)

    def chart(self) -> Chart:
        """Draw the removal's time, by part."""
        return Chart(
            f'Forgetting trained {len(self.shards)} shards again and took '
            f'{self.fraction:.0%} of a full fit',
            bars=self.seconds,
            xlabel='seconds',
        )


@dataclass(frozen=True, kw_only=True)
class ShardReport(Report):
    """The present state of a sharded unlearner.

    Fields that are not listed are as in :class:`ShardRemovalReport`.

    Args:
        num_nodes (int): the number of nodes of the present graph.
        num_train (int): the number of training nodes among them.
        shard_sizes (tuple[int, ...]): the number of training nodes of every
            shard.
        imbalance (float): the size of the largest shard, divided by the mean.
        partition (str): the method that made the shards.
        removals (int): the number of removals so far.
        seconds (dict): the seconds of the last training, by part; empty if
            nothing was trained since a load.
    """

    secrets: str
    num_nodes: int
    num_train: int
    shard_sizes: tuple[int, ...]
    empty: tuple[int, ...]
    imbalance: float
    partition: str
    by_hash: int
    exact: bool
    exactness: str
    removals: int
    seconds: dict[str, float]
    assumptions: tuple[str, ...]
    origin: dict[str, Any]

    def chart(self) -> Chart:
        """Draw the number of training nodes of every shard."""
        sizes = enumerate(self.shard_sizes)
        return Chart(
            f'{self.num_train} training nodes in {len(self.shard_sizes)} '
            f'shards, the largest {self.imbalance:.3g} times the mean',
            bars={f'shard {i}': size for i, size in sizes},
            xlabel='training nodes',
        )


@dataclass(frozen=True, kw_only=True)
class ShardVerifyReport(Report):
    """The findings of :meth:`ShardedUnlearner.verify`.

    Args:
        ok (bool): whether all checks below passed.
        shards (tuple[int, ...]): the shards that were trained from scratch.
        differing (tuple[int, ...]): the shards among these whose weights are
            not *equal* to the present ones.
        keys_match (bool): whether the key of every checkpoint matches the
            present data of its shard.
        outputs_equal (bool): whether the cached outputs equal those of the
            models on the present graph.
        aggregator_equal (bool): whether the aggregator equals one that is
            trained from scratch.
        leftovers (tuple[str, ...]): the places that still hold, or could hold,
            removed items.
        weights (str): SHA-256 of the weights of all shards.
    """

    ok: bool
    shards: tuple[int, ...]
    differing: tuple[int, ...]
    keys_match: bool
    outputs_equal: bool
    aggregator_equal: bool
    leftovers: tuple[str, ...]
    weights: str = ''

    def chart(self) -> Chart:
        """Draw how many shards equal those that were trained again."""
        bars = {
            'equal': len(self.shards) - len(self.differing),
            'differing': len(self.differing),
        }
        title = 'Shards, against training from scratch on what remains'
        return Chart(title, bars=bars, xlabel='shards')

    def summary(self) -> str:
        """State the findings in one sentence."""

        def equal(found: bool) -> str:
            return 'equal' if found else 'NOT equal'

        left = '; '.join(self.leftovers) or 'nothing that was removed'
        same = len(self.shards) - len(self.differing)
        return (
            f'verify() {"found" if self.ok else "FAILED, and found"}: '
            f'{same} of {len(self.shards)} shards equal, to the bit, to '
            'those that it trained from scratch on what remains; aggregator '
            f'{equal(self.aggregator_equal)}; outputs '
            f'{equal(self.outputs_equal)}; keys of the data '
            f'{equal(self.keys_match)}; left in memory and files: {left}'
        )
