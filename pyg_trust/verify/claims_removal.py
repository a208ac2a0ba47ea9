"""Claims of removal: how close a model is to one without what was removed."""

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from .accounting import HOLDS, judge_mu
from .chain import LISTED
from .claims import outwards
from .claims_privacy import pair
from .declare import (
    AMOUNT,
    COUNT,
    DELTA,
    FLAG,
    NATURAL,
    OBJECT,
    POSITIVE,
    TEXT,
    Claim,
    Words,
    alike,
    derived,
    given,
    maybe,
    named,
    one_of,
    several,
)

#: Relations whose releases cover removals.
RELATIONS = ('edge', 'node', 'node_incident', 'feature')
AFTERWARDS = (
    'settings that were chosen with what was removed',
    'releases of copies and forks of the classifier, and of others that went '
    'on from the same state: each counts its own alone',
    'a later fit, or a state that somebody puts back from a copy, with what '
    'was removed in it',
    'the pair of a release before and one after: their difference shows what '
    'was removed',
    'what earlier releases, predictions, logs, saved states and backups '
    'revealed',
    'reports, ledgers, residuals and the time that a removal takes, which are '
    'functions of what was removed: keep them private',
)
_KEPT = (
    'the files of earlier states, which hold what was removed and are kept in '
    'the folder (keep_history=True) until purge()',
)
_OUTPUT = (
    'the reference is exact retraining on the data that remain, with the same '
    'settings, released with the same noise',
    'the weights before the noise stay secret, as does the noise, and that of '
    'every release is fresh',
)
BLANKS = (
    'it is for people who did not decide by looking at this release; for '
    'others it bounds what is learnt about them, not how the model differs '
    'from one that was trained without them',
    'the reference has the same ids, masks, steps, noise, and blank records',
)
OBJECTIVE: tuple[str, ...] = (
    'assumes Theorem 3 of Guo et al. (2020), which does not hold in general: '
    'one removed point can cost 690 times the promised delta',
    'the noise b stays secret, and requests do not depend on a released model',
    'the certificate covers this release, not several together',
)
FROM_SYSTEM = 'keys come from the operating system'


class _Removal(Claim):
    kind = 'removal'
    request = given('ids of the removed items, by graph', named(OBJECT))
    ledger_head = given('SHA-256 of the ledger', maybe(TEXT), None)


class _Certified(_Removal):
    epsilon = given('epsilon of this release, in nats')
    epsilon_transcript = given(
        'epsilon of all releases since the fit, in nats',
        {'anyOf': [AMOUNT, one_of('inf')]},
    )
    delta = given('delta of (epsilon, delta)', DELTA)
    target_epsilon = given('the largest epsilon of a release, in nats')
    seeded = given('whether secret numbers come from a seed', FLAG)
    noise = given(
        'noise on the weights, or in the loss', one_of('output', 'objective')
    )
    residual = given('norm of the gradient before the noise, measured')
    bound = given('amount that counts as spent, at most budget')
    budget = given('the largest bound that is allowed')
    release_std = given('standard deviation of the noise on a weight')
    lam = given('weight of the L2 penalty', POSITIVE)
    history = given(
        'amounts of the newest 64 releases; if there were more, the first is '
        'the root of the sum of squares of all up to it',
        several(AMOUNT, 1),
    )
    residual_checked = given('how the residual was checked', TEXT)

    #: The unit of bound and budget.
    what = 'gradient residual'

    def _paid(self) -> list[float]:
        return list(self.history)

    def _measurable(self) -> float:
        raise NotImplementedError

    def _wrong(self) -> Iterator[str]:
        if self.noise != 'output':
            return
        if not self.release_std > 0:
            yield 'release_std: without noise nothing is hidden'
            return
        most = self._measurable()
        if self.residual > most * (1 + 1e-9):
            yield f'residual: {self.residual:.6g} is more than {most:.6g}'
        if self._paid()[-1] * (1 + 1e-9) < self.bound:
            yield 'history: its last release is less than the bound'

    def _released(self, releases: str) -> Words:
        why, more = OBJECTIVE, 'if Theorem 3 of Guo et al. holds here, which '
        more += 'it does not in general'
        if self.noise == 'output':
            why, more = _OUTPUT, f'and all {releases} since the fit together '
            more += pair(self.epsilon_transcript, self.delta)
        return Words(
            f'the released weights are {pair(self.epsilon, self.delta)}-'
            'indistinguishable from those of exact retraining without what '
            f'was removed, {more}',
            (*why, f'how the residual was checked: {self.residual_checked}'),
            AFTERWARDS,
            {self.what: self.bound},
            {self.what: self.budget},
            {self.what: [*self._paid()[:-1], self.bound]},
        )


class NodeRemoval(_Certified):
    """Claim of a removal from a node classifier: a gradient is bounded."""

    procedure = 'certified removal from a node classifier'
    num_train = given('number of training rows that remain', NATURAL)
    setting = given('SHA-256 of propagation, head, penalty and noise', TEXT)
    distance_bound = derived(
        'bound of the distance to exact retraining; null: unknown',
        lambda c: (
            None if c.noise == 'objective' else c.bound / (c.lam * c.num_train)
        ),
        maybe(AMOUNT),
    )

    def _paid(self) -> list[float]:
        return [share * self.budget for share in self.history]

    def _measurable(self) -> float:
        return float(self.bound)

    def _says(self) -> Words:
        made = self._released('releases')
        copies = 'copies of what was removed in other nodes'
        return replace(made, not_covered=(*made.not_covered, copies))


class LinkRemoval(NodeRemoval):
    """Claim of a removal from a link classifier, whose rows are pairs."""

    procedure = 'certified removal from a link classifier'


class GraphRemoval(_Certified):
    """Claim of a removal of graphs: sensitivity over noise is bounded."""

    procedure = 'certified removal'
    num_graphs = given('number of training graphs that remain', NATURAL)
    releases = given('number of releases since the fit', NATURAL)
    distance_bound = derived(
        'bound of the distance to exact retraining; null: unknown',
        lambda c: None if c.noise == 'objective' else c.bound * c.release_std,
        maybe(AMOUNT),
    )

    @property
    def what(self) -> str:  # type: ignore[override]
        """The unit of bound and budget."""
        output = self.noise == 'output'
        return 'sensitivity-to-noise ratio' if output else 'gradient residual'

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        listed = min(self.releases, LISTED)
        if len(self.history) != listed:
            yield f'history: {listed} of {self.releases} releases are listed'

    def _measurable(self) -> float:
        scale = self.release_std * self.lam * self.num_graphs
        return float(self.bound * scale)

    def _says(self) -> Words:
        return self._released(f'{self.releases} releases')


#: The classifiers whose rows are nodes, or pairs of these.
ROWS = (NodeRemoval.procedure, LinkRemoval.procedure)


class ShardRemoval(_Removal):
    """Claim of a removal by training shards again."""

    procedure = 'exact removal by shards'
    secrets = given('origin of the keys of hashes', TEXT)
    stages = given(
        'by shard, the first stage that was trained again',
        named(COUNT, '^(0|[1-9][0-9]*)$'),
    )
    shards = derived(
        'numbers of the shards that were trained again',
        lambda c: sorted(map(int, c.stages)),
        several(COUNT),
    )
    exact = given('whether a new fit would have the same shards', FLAG)
    exactness = given('what exact means for this partition', TEXT)
    keeps_history = given('whether files of earlier states are kept', FLAG)

    def _says(self) -> Words:
        return Words(
            f'{self.secrets}; '
            * (self.secrets != FROM_SYSTEM)
            + 'models and aggregator equal, bit for bit, those trained from '
            'scratch without what was removed'
            + ('' if self.exact else ', but for the partition')
            + f': {self.exactness}',
            (
                'requests do not depend on a released model',
                'labels, features and edges of what remains were not made '
                'from what was removed',
                'the model factory gives the same model for the same state of '
                "torch's default generator",
                'bits are those of one machine and one version of torch',
            ),
            (
                'what earlier releases of the model have revealed',
                'the ids of what was removed, which stay in ledger and '
                'reports',
                'copies, backups and snapshots of the state, a later fit, or '
                'a state that somebody puts back from a copy',
                *_KEPT[: self.keeps_history],
            ),
        )


class CountRemoval(_Removal):
    """Claim of a removal from the counts of a recommender."""

    procedure = 'exact removal from a recommender'
    num_interactions = given('number of interactions that remain', COUNT)
    column_distance = given(
        'distance of weights to exact ones; null for counts', maybe(AMOUNT)
    )
    residual_bound = given('residual for that distance', maybe(AMOUNT), None)

    def _wrong(self) -> Iterator[str]:
        far, rest = self.column_distance, self.residual_bound
        if far is None and rest is not None:
            yield 'residual_bound: counts have none'
        # Diagonal entries of the inverse are at most 1 / lam.
        elif far is not None and (rest or 0) > far:
            yield f'column_distance: {far:.6g} is stated, of {rest:.6g}'

    def _says(self) -> Words:
        made = 'counts', 'have the bits of counting anew'
        if self.column_distance == 0:
            made = 'closed-form weights', 'have the bits of a fit on them'
        elif self.column_distance is not None:
            # Models of 0.1 followed by steps of rank one.
            near = f'within {outwards(self.column_distance, 3)} of the exact'
            made = 'closed-form weights', f'are, by column, {near} ones'
        return Words(
            f'the {made[0]} of {self.num_interactions:,} interactions that '
            f'remain {made[1]}, without what was removed',
            ('what remains was not made from what was removed',),
            (AFTERWARDS[0], *AFTERWARDS[2:5]),
        )


def _mu(c: Any) -> float:
    return math.hypot(c.units * c.mu_units, c.shift * c.mu_shift)


class CoveredRemoval(_Removal):
    """Claim of a removal that the noise of a release covers."""

    procedure = 'removal covered by privacy'
    adjacency = given('what is protected, such as an edge', one_of(*RELATIONS))
    units = given('number of items removed since the release', NATURAL)
    shift = given('L2 norm of the change of the released sums by all removals')
    mu_units = given(
        'mu (sensitivity over noise) of all but the sums, for one item'
    )
    mu_shift = given('mu of the released sums, for a change of norm 1')
    mu = derived(
        'mu of all removals: hypot(units * mu_units, shift * mu_shift)',
        _mu,
        POSITIVE,
    )
    budget = given('the largest mu that target_epsilon allows', POSITIVE)
    epsilon = given('epsilon of forgetting all removed items, in nats')
    delta = given('the delta of (epsilon, delta)-indistinguishability', DELTA)
    target_epsilon = given('the largest epsilon that is allowed, in nats')
    seeded = given('whether noise comes from a seed', one_of(False))
    history = given(
        'mu of all removals so far, after each of the newest lines of the '
        'ledger; it begins with 0',
        several(AMOUNT, 2),
    )
    before = given('salted hash of the edges before the removal', TEXT, '')
    neighboring = given(
        "how neighbouring data differ: a record is removed ('add_remove') or "
        "exchanged ('replace'), or an edge is added or removed ('either')",
        TEXT,
    )
    directed = given('whether edges have one direction', FLAG)
    max_degree = given(
        'the most edges of a node that are protected', maybe(NATURAL), None
    )

    def _wrong(self) -> Iterator[str]:
        if not alike([self.history[0], self.history[-1]], [0.0, self.mu]):
            yield 'history: it goes from nothing to mu'
        more = (Fraction(self.budget) * (1 + Fraction(1, 2**20))) ** 2
        if judge_mu(more, self.target_epsilon, self.delta) == HOLDS:
            yield 'budget: target_epsilon allows more'

    def _says(self) -> Words:
        return Words(
            f'what was released under {self.adjacency!r} is '
            f'{pair(self.epsilon, self.delta)}-indistinguishable from the '
            f'same release of data without the {self.units} units that were '
            'removed since',
            BLANKS,
            (*AFTERWARDS[4:], 'other releases: each covers its own'),
            {'mu': self.mu},
            {'mu': self.budget},
        )
