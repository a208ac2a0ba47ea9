r"""Claims of privacy: what private training and noisy sums state.

A sum of sensitivity :math:`\Delta` with noise of standard deviation :math:`s`
has :math:`\mu = \Delta / s`; several together have the root of the sum of
their squares. The noise of a private step is ``noise_multiplier`` clipping
norms.
"""

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from .accounting import HOLDS, judge_mu
from .claims import outwards
from .declare import (
    AMOUNT,
    COUNT,
    DELTA,
    FLAG,
    NATURAL,
    OBJECT,
    POSITIVE,
    SHARE,
    TEXT,
    Claim,
    Words,
    alike,
    derived,
    given,
    maybe,
    one_of,
    row,
    several,
)
from .noise import DIGEST, SHIFT
from .release import pair_mus, sensitivity

#: The relations whose sentences speak of somebody who is there or not.
AWAY = 'add-or-remove-one-graph', 'add-or-remove-one-person'
#: Accountants, and whether a record may be in several of their units.
MECHANISMS = {
    **dict.fromkeys(('pld_wor', 'rdp_wor', 'pld_poisson'), False),
    **dict.fromkeys(('pld_group_wor', 'pld_group', 'rdp_fdp'), True),
}
_BY_COINS = 'pld_poisson', 'pld_group'
_WITHOUT = 'uniform-without-replacement', 'without replacement'
_ROW, _PERSON = 'replace-one-feature-row', 'replace-one-person'
CONTENTS = 'replace-contents-of-one-person'
_WHOLE = 'persons, with all they own'
#: By what is clipped as one: the relations that it protects.
PROTECTS: dict[str, tuple[str, ...]] = {
    'node-disjoint random walks': (_ROW,),
    'ego graphs of roots in a graph of bounded degree': (_ROW,),
    'whole graphs': ('replace-one-graph', AWAY[0]),
    'persons, a row each': (_PERSON, AWAY[1]),
    _WHOLE: (_PERSON, AWAY[1]),
    f'walks between {_WHOLE}': (CONTENTS,),
}

NO_LEDGER = (
    'all steps were taken by this process, or by those whose checkpoint it '
    'went on from, each of which was gone on from once: without a ledger '
    'nothing else is counted'
)
LEDGER = (
    'the ledger is the only account of this training: no copy of it was spent '
    'as well, and no older one was put back (ledger_head, noted elsewhere and '
    'passed to the next engine, shows the latter)'
)
TRAINING = (
    'the weights that training began with do not depend on private data',
    'released are weights, optimizer state and this report; training losses, '
    'clipping rates, batches and seeds are not covered, nor are stops, '
    'learning rates and other settings that depend on private data',
    'no process was ended and started again for the sake of another batch: in '
    'a process, a batch that was drawn is kept until its step is spent, but a '
    'new process draws another',
)
RUN_ALONE = (
    'a unit adds to a step what it adds when it is run alone; run alone were '
    'all units (always), or one drawn in secret in k of n steps, if there is '
    'one that the model runs on alone (sampled): '
)


def pair(epsilon: float, delta: float) -> str:
    """Format epsilon and delta, rounded up."""
    return f'({outwards(epsilon)}, {outwards(delta, 6)})'


def protected_unit(relation: str) -> str:
    """Name the unit in which neighbours differ, for use after 'any one'."""
    person = 'person: all rows that it owns, their labels and edges'
    return {
        'replace-one-graph': 'graph: its nodes, edges, features and label',
        AWAY[0]: 'graph, and in whether it is there',
        _PERSON: person,
        AWAY[1]: f'{person}, and in whether it is there',
        CONTENTS: "person's contents: its rows, their labels and edges, but "
        'not with whom it shares them',
    }.get(relation, "node's features")


def declared(persons: dict[str, Any]) -> list[str]:
    """Describe what the owner of the data has declared public."""
    names = [*persons['declared_public'], *persons['public_edges']]
    shared = ', '.join([*persons['joint'], *persons.get('along', [])])
    by = (
        f'who shares {shared or "rows"} with whom, and by which rows: fixed '
        'and public'
    )
    public = f'DECLARED PUBLIC: {", ".join(names) or "nothing"}'
    return [public, *[by] * ('along' in persons)]


class Private(Claim):
    """Base of claims of differential privacy."""

    kind = 'privacy'
    epsilon = given('epsilon of everything that was released, in nats')
    delta = given('the delta of (epsilon, delta)-differential privacy', DELTA)
    target_epsilon = given(
        'the budget of epsilon, in nats', maybe(AMOUNT), None
    )
    seeded = given(
        'whether noise comes from a seed, so that nothing is private', FLAG
    )
    ledger_head = given(
        'SHA-256 of the ledger, if there is one', maybe(TEXT), None
    )

    def _budgets(self) -> dict[str, Any]:
        goal = math.inf if self.target_epsilon is None else self.target_epsilon
        return {
            'spent': {'epsilon': self.epsilon},
            'budget': {'epsilon': goal},
        }


_STEPS = 'triples of noise multiplier, sampling rate and number of steps'
_ACCOUNT = several(row(POSITIVE, SHARE, NATURAL))


def _rates(c: Any) -> list[list[Any]]:
    rates: dict[float, int] = {}
    for _, rate, count in c.account:
        rates[rate] = rates.get(rate, 0) + count
    return [[rate, count] for rate, count in rates.items()]


def _moves(c: Any) -> int:
    # By how many clipping norms neighbours move the sum.
    return int(c.units_per_row) * (1 if c.neighboring in AWAY else 2)


class PrivateTraining(Private):
    """Claim of private training."""

    procedure = 'private training'
    history = given(
        'epsilon (nats) after up to nine numbers of steps, from 0 to the last',
        several(AMOUNT, 1),
    )
    epsilon = derived(
        'epsilon of everything that was released, in nats',
        lambda c: c.history[-1],
    )
    account = given(_STEPS, _ACCOUNT)
    steps = derived(
        'number of steps', lambda c: sum(n for *_, n in c.account), COUNT
    )
    sample_rates = derived(
        'pairs of a sampling rate and the number of steps with it',
        _rates,
        several(row(SHARE, NATURAL)),
    )
    neighboring = given(
        "how neighbouring data differ, such as 'replace-one-graph'", TEXT
    )
    unit = given('what is clipped as one, such as whole graphs', TEXT)
    sampling = given('how the units of a step are drawn', TEXT)
    mechanism = given('name of the accountant', TEXT)
    batch_size = given('units per step; the mean, if Poisson', NATURAL)
    units_per_row = given('the most units that contain the same row', NATURAL)
    max_grad_norm = given('the clipping norm', POSITIVE)
    clipping = given('flat, automatic or adaptive clipping', TEXT)
    noise_multiplier = given(
        'standard deviation of the noise over the clipping norm'
    )
    pure_epsilon = given(
        'sum of the epsilons (nats) of all releases that have delta 0'
    )
    sensitivity = derived(
        'largest L2 change of the clipped sum between neighbouring data',
        lambda c: _moves(c) * c.max_grad_norm,
    )
    noise_std = derived(
        'standard deviation of the noise; None where the norm adapts',
        lambda c: (
            None
            if c.clipping == 'adaptive'
            else c.noise_multiplier * c.max_grad_norm
        ),
        maybe(AMOUNT),
    )
    checked = given(
        'in how many steps a unit was run alone, to compare it with the '
        'batch: always, sampled (k of n steps), or not',
        TEXT,
        '',
    )
    arithmetic = given(
        'what is computed exactly, in integers: all (exact), the sums of '
        'gradients (sums) or nothing (float)',
        one_of('exact', 'sums', 'float', ''),
        '',
    )
    grid_exponent = given(
        'noise is a multiple of 2 to this power times its standard deviation',
        one_of(-SHIFT),
    )
    persons = given('summary of the PrivacyUnit, if any', OBJECT, {})
    together = given(
        'pairs: a number k, and the epsilon for any k persons together',
        several(row({'type': 'integer', 'minimum': 2}, AMOUNT)),
        [],
    )

    def _wrong(self) -> Iterator[str]:
        if self.mechanism not in MECHANISMS:
            yield f'mechanism: {self.mechanism!r} is none of {[*MECHANISMS]}'
            return
        coins = self.mechanism in _BY_COINS
        known = (
            ('poisson',)
            if coins
            else ()
            if self.neighboring in AWAY
            else _WITHOUT
        )
        if self.sampling not in known:
            yield (
                f'sampling: {self.mechanism} counts no {self.sampling!r} '
                f'under {self.neighboring!r}'
            )
        for _, rate, _ in self.account:
            units = self.batch_size / rate
            if not coins and not math.isclose(
                units, round(units), rel_tol=1e-6
            ):
                yield (
                    f'batch_size: {self.batch_size} at {rate:.6g}: no whole '
                    'number of units'
                )
        # A release beside the training is at rate 1, with its own noise.
        same = [alike(z, self.noise_multiplier) for z, *_ in self.account]
        of_steps = [
            alike(z, self.noise_multiplier)
            for z, rate, _ in self.account
            if rate < 1
        ]
        if not all(of_steps) or (same and not any(same)):
            yield 'noise_multiplier: it is not that of the account'
        some = re.fullmatch(r'sampled \(([0-9]+) of ([0-9]+)\)', self.checked)
        if some is None and self.checked not in (
            *('', 'always', 'at verify', 'not'),
        ):
            yield f'checked: {self.checked!r} is no way to run units alone'
        if some and not 0 < int(some[1]) <= int(some[2]) <= self.steps:
            yield f'checked: {self.checked} of {self.steps} steps'
        if self.units_per_row > 1 and not MECHANISMS[self.mechanism]:
            yield f'units_per_row: {self.mechanism} counts one unit a row'
        # What a loader of the user protects, nothing here can tell.
        near = str(self.neighboring)
        if near not in PROTECTS.get(self.unit, (near,)):
            yield f'neighboring: {self.unit} do not protect {near!r}'
        if bool(self.persons) != near.endswith('person'):
            yield 'persons: declared are those who are protected'
        if self.history != sorted(self.history):
            yield 'history: what is spent never becomes less'

    def _says(self) -> Words:
        exact = self.arithmetic == 'exact' and self.checked
        alone = [RUN_ALONE + self.checked] if self.checked else []
        public: tuple[str, ...] = (
            'edges, and which nodes there are',
            'predictions, which read the features of neighbours',
        )
        about = str(self.neighboring)
        if about.startswith('add-or-remove'):
            public = ('the rate, and the number that sums are divided by',)
        elif about.endswith(('graph', 'person')):
            public = (f'how many {about.rsplit("-", 1)[1]}s there are',)
        if about.endswith('person') and self.persons:
            public = *public, *declared(self.persons)
        return Words(
            f'the weights after each of {self.steps} steps, all together, are '
            f'{pair(self.epsilon, self.delta)}-differentially private'
            f'{", in exact arithmetic," if exact else ""} in any one '
            f'{protected_unit(about)}',
            (
                *TRAINING,
                NO_LEDGER if self.ledger_head is None else LEDGER,
                *alone,
            ),
            public,
            **self._budgets(),
            history={'epsilon': list(self.history)},
        )


class Search(Private):
    """Claim of a search for settings of private training."""

    procedure = 'search for settings of private training'
    mean_runs = given('expected number of runs', POSITIVE)
    shape = given(
        'shape parameter of the distribution of the number of runs',
        {'type': 'number'},
    )
    mechanism = given('name of the accountant of a run', TEXT)
    neighboring = given(
        "how neighbouring data differ, such as 'replace-one-graph'", TEXT
    )
    account = given(f'what a run may spend: {_STEPS}', _ACCOUNT)
    pure_epsilon = given(
        'sum of the epsilons (nats) of the releases of a run that have delta 0'
    )
    batch_size = given('units per step, if drawn', maybe(NATURAL), None)
    units_per_row = given(
        'the most units that contain the same row', NATURAL, 1
    )

    def _says(self) -> Words:
        return Words(
            'the weights, settings and score of the best run are '
            f'{pair(self.epsilon, self.delta)}-differentially private in any '
            f'one {protected_unit(self.neighboring)}',
            (),
            ('all other runs, how many there were, and the time',),
            **self._budgets(),
        )


# Noisy sums ##################################################################

_RECORDS = {
    'edge': "edge's presence",
    'node': "node's record: features, label and own list of neighbours",
    'node_incident': "node with all its edges, up to {} of them: the node's "
    'features, label and edges',
    'feature': "node's features and label",
    'user': "user's list of items",
}
_SUMS = {'feature': 'a linear propagation', 'user': 'pairs of items'}
_NEIGHBORING = one_of('add_remove', 'replace', 'either')


def unit_of_sums(
    adjacency: str, neighboring: str, directed: bool, max_degree: int | None
) -> str:
    """Name the unit of privacy of sums over neighbours."""
    if adjacency == 'edge':
        return f'{"arc" if directed else "undirected edge"}, there or not'
    against = 'an empty one' if neighboring == 'add_remove' else 'any other'
    return f'{_RECORDS[adjacency].format(max_degree)}, against {against}'


class _Released(Private):
    adjacency = given('what is protected, such as an edge', TEXT)
    directed = given('whether edges have one direction', FLAG)
    neighboring = given(
        "how neighbouring data differ: a record is removed ('add_remove') or "
        "exchanged ('replace'), or an edge is added or removed ('either')",
        _NEIGHBORING,
    )
    releases = given('number of noisy releases in the account', NATURAL)
    num_nodes = given('number of nodes, which is public', COUNT)
    arithmetic = given("'exact': all sums are of integers", one_of('exact'))
    grid_exponent = given(
        'noise is a multiple of 2 to this power times its standard deviation',
        one_of(-SHIFT),
    )
    table = given(
        'SHA-256 of the table from which Gaussian noise is drawn',
        one_of(DIGEST),
    )

    def _once(self) -> tuple[str, str]:
        return (
            'which calls had the same data is known: the first release of '
            'data costs, the next is free, and the number of releases '
            f'({self.releases}) shows which were alike',
            'this object made all releases of these data: without a ledger '
            'nothing else is counted'
            if self.ledger_head is None
            else 'the ledger is the only account of these data: no copy of it '
            'was spent as well, and no older one was put back',
        )

    def _wrong(self) -> Iterator[str]:
        about, near = self.adjacency, self.neighboring
        known = ('either',) if about == 'edge' else ('add_remove', 'replace')
        if near not in known:
            yield f'neighboring: {near!r} is none of {about!r}'


class PrivateSums(_Released):
    """Claim of noisy sums over neighbours, or over lists of items."""

    procedure = 'private aggregation'
    adjacency = given('what is protected, such as an edge', one_of(*_RECORDS))
    max_degree = given('largest degree of a node', maybe(NATURAL))
    num_classes = given(
        'number of classes, if labels are summed', maybe(NATURAL), None
    )
    sensitivity = derived(
        'largest L2 distance between the sums of neighbouring data',
        lambda c: sensitivity(
            *(c.adjacency, c.directed, c.neighboring),
            *(c.max_degree, c.num_classes),
        ),
    )
    noise_stds = given(
        'standard deviation of the noise of each sum', several(POSITIVE)
    )
    num_sums = derived(
        'number of sums that are released together',
        lambda c: len(c.noise_stds),
        COUNT,
    )
    rho = given('relative increase of the noise, to cover rounding')
    mu_encoder = given('mu of training a model on features alone, or 0')
    mu_aggregation = given('mu of the noisy sums')
    mu_head = given('mu of training a model on the sums, or 0')
    mu = derived(
        'mu of all three: the root of their sum of squares',
        lambda c: math.hypot(c.mu_encoder, c.mu_aggregation, c.mu_head),
    )
    mu_edge = given('mu of the sums if one edge differs', maybe(AMOUNT))
    epsilon_replace = given(
        'epsilon if a record is exchanged, in nats', maybe(AMOUNT)
    )
    degree_curve = given(
        'pairs: a degree, and epsilon of the sums for nodes of this degree',
        several(row(NATURAL, AMOUNT), 0, 20),
    )
    receivers = given('number of nodes that get noisy sums', COUNT)
    rows = derived(
        "who may see a node's row: 'all', or 'others' than the node",
        lambda c: 'others' if c.adjacency == 'node_incident' else 'all',
        TEXT,
    )
    raw_columns = given('whether the first columns are the raw features', FLAG)
    predictions = given('whether weights and predictions are released', FLAG)

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        if self.adjacency in ('edge', 'feature', 'user') and self.max_degree:
            yield f'max_degree: none is of {self.adjacency!r}'
        if self.num_classes is not None and not self.predictions:
            yield 'num_classes: without predictions there are no classes'
        if self.receivers > self.num_nodes:
            yield f'receivers: {self.receivers} of {self.num_nodes} nodes'
        sums, hops = self.mu_aggregation, self.num_sums
        wider = self.sensitivity * (1 + self.rho)
        each = math.hypot(*(wider / std for std in self.noise_stds))
        lines = self.releases - bool(self.mu_encoder) - bool(self.mu_head)
        if not hops or lines < hops:
            yield f'releases: {lines} lines of {hops} sums each'
        elif self.ledger_head is None:
            # No other owner's releases are counted here.
            if not math.isclose(
                sums, each * math.sqrt(lines / hops), rel_tol=1e-6
            ):
                yield f'mu_aggregation: {sums:.6g} is not that of its noise'
        elif sums < each * (1 - 1e-6):
            yield f'mu_aggregation: {sums:.6g} is less than one of {each:.6g}'
        yield from self._others()

    def _others(self) -> Iterator[str]:
        # The same releases in other relations, and with other degrees.
        mu2, claims = Fraction(self.mu_aggregation) ** 2, []
        incident = self.adjacency == 'node_incident'
        if incident != bool(self.degree_curve) or (
            incident and self.max_degree is None
        ):
            yield 'degree_curve: it is of nodes with their edges'
        elif incident:
            claims = [
                (mu2 * d / self.max_degree, e) for d, e in self.degree_curve
            ]
        removed = self.neighboring == 'add_remove'
        if removed != (self.epsilon_replace is not None):
            yield "epsilon_replace: it is of neighboring='add_remove'"
        elif self.epsilon_replace is not None:
            apart = 2 if self.adjacency == 'user' else 4
            of_all = apart * Fraction(self.mu) ** 2
            claims.append((of_all, self.epsilon_replace))
        for squared, epsilon in claims:
            # Roots and quotients of the report were rounded.
            squared *= 1 - Fraction(1, 2**44)
            if judge_mu(squared, epsilon, self.delta) != HOLDS:
                name = 'degree_curve, epsilon_replace'
                yield f'{name}: {epsilon:.6g} is too small'
        node = self.adjacency == 'node' and self.max_degree in (None, 1)
        if node != (self.mu_edge is not None):
            yield 'mu_edge: it is of nodes whose lists have the energy of one'
        elif node:
            # Sums of other people may hold other classes than one's own.
            moved = 1.0 if self.directed else math.sqrt(2)
            least = moved * self.mu_aggregation / self.sensitivity
            if self.mu_edge < least * (1 - 1e-9):
                yield f'mu_edge: it is at least {least:.6g}'

    def _says(self) -> Words:
        hops = _SUMS.get(
            self.adjacency, f'{self.num_sums} hop{"s" * (self.num_sums > 1)}'
        )
        nodes = 'users and items' if self.adjacency == 'user' else 'nodes'
        what = f'the noisy sums of {hops} over {self.num_nodes:,} {nodes}'
        if self.predictions:
            others = '' if self.adjacency == 'edge' else ' for others'
            what += f', the weights and every prediction{others}, together,'
        unit = unit_of_sums(
            self.adjacency, self.neighboring, self.directed, self.max_degree
        )
        public = ['all arguments', 'ids and number of nodes']
        if self.raw_columns and self.adjacency != 'edge':
            public.append('the first columns, which are the raw rows')
        if self.rows == 'others':
            public.append("a node's own row, which is for that node")
        return Words(
            f'{what} are {pair(self.epsilon, self.delta)}-differentially '
            f'private in one {unit}',
            self._once(),
            tuple(public),
            **self._budgets(),
        )


class PrivateLinks(_Released):
    """Claim of private link prediction."""

    procedure = 'private link prediction'
    adjacency = given('what is protected', one_of('edge', 'node'))
    steps = given('number of noisy gradient steps of the model', NATURAL)
    row_std = given('standard deviation of the noise of sums', POSITIVE)
    count_std = given(
        "standard deviation of the noise of the number of edges, for 'edge'",
        maybe(POSITIVE),
    )
    noise_multiplier = given(
        'standard deviation of the noise of gradients over the clipping norm',
        POSITIVE,
    )
    mu_others = given('mu (sensitivity over noise) of all other releases')
    mu_parts = derived(
        'mu of four parts: sums, number of edges, model, other releases',
        lambda c: [*_of_pairs(c), c.mu_others],
        several(AMOUNT),
    )
    mu = derived('mu of everything', lambda c: math.hypot(*c.mu_parts))

    def _wrong(self) -> Iterator[str]:
        yield from super()._wrong()
        nodes = self.adjacency == 'node'
        if nodes != (self.count_std is None):
            yield 'count_std: the number of edges is released of edges alone'
        own = 2 if nodes else 3
        if self.releases < own or (self.releases > own) != (
            self.mu_others > 0
        ):
            yield f'releases: {self.releases}, of which {own} are its own'

    def _says(self) -> Words:
        edge = self.adjacency == 'edge'
        counted = 'a noisy number of edges, ' * edge
        whose = ' for others' * (not edge)
        role = '; an edge counts as a message and as an example' * edge
        known = ' and features: known to all' * edge
        unit = unit_of_sums(
            self.adjacency, self.neighboring, self.directed, None
        )
        return Words(
            f'the noisy sums of 1 hop over {self.num_nodes:,} nodes, {counted}'
            f'{self.steps} noisy gradients of a scorer of pairs and every '
            f'score of every pair{whose}, together, are '
            f'{pair(self.epsilon, self.delta)}-differentially private in one '
            f'{unit}{role}',
            self._once(),
            (f'all arguments, ids, number of nodes{known}',),
            **self._budgets(),
        )


def _of_pairs(c: Any) -> list[float]:
    return list(
        pair_mus(
            *(c.row_std, c.count_std, c.noise_multiplier, c.steps),
            *(c.directed, c.neighboring),
        )
    )
