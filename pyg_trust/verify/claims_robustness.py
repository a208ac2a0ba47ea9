"""Claims of robustness, of accuracy, and of what audits have measured."""

import math
from collections.abc import Iterator
from typing import Any

from . import ranks as _ranks
from .claims import outwards
from .claims_privacy import declared
from .declare import (
    AMOUNT,
    COUNT,
    FLAG,
    NATURAL,
    OBJECT,
    POSITIVE,
    SHARE,
    TEXT,
    Claim,
    Words,
    derived,
    given,
    maybe,
    named,
    one_of,
    row,
    several,
)

UNSEEN = (
    'what the model reads beside its tensors, attributes and code (files, '
    'attributes of imported modules, hooks on all modules of the process), '
    'and changes of it after the certificate was made (see speaks_of())',
)
_NUMBER = '(0|[1-9][0-9]{0,9})'
_BY_NUMBER = named(COUNT, f'^{_NUMBER}$')
_BY_CHANGE = named(
    COUNT, '^(edges|features)(_added_N_deleted_N)$'.replace('N', _NUMBER)
)
_NOISE = {'type': 'number', 'minimum': 0, 'maximum': 1}
_TABLE = maybe(several(several({'type': 'integer', 'minimum': -1}, 1)))
_FIELDS = given(
    'the attributes of the data that data_sha256 is of',
    maybe(several(TEXT)),
    None,
)
_WITNESS = given('SHA-256 of the proof, or why there is none', TEXT, 'none')


class _Robust(Claim):
    kind = 'robustness'
    data_fields = _FIELDS


class ExactCertificate(_Robust):
    """Claim of an exact certificate of predictions."""

    procedure = 'robustness certificate'
    targets = given('number of certified targets', COUNT)
    num_robust = given('number of targets that keep their class', COUNT)
    num_broken = given(
        'number of targets with another class in some graph', COUNT
    )
    num_unknown = derived(
        'number of all other targets',
        lambda c: c.targets - c.num_robust - c.num_broken,
        COUNT,
    )
    scenario = given(
        'which edges may flip',
        one_of('removals', 'additions', 'both', 'explicit'),
    )
    undirected = given('whether both directions flip together', FLAG)
    global_budget = given('the most flips in all, if limited', maybe(COUNT))
    max_local_budget = given('the most flips at any node', COUNT)
    sum_local_budget = given('sum of the local budgets of all nodes', COUNT)
    num_nodes = given('number of nodes', COUNT)
    fixed_edges = given('number of directed edges that never flip', COUNT)
    model = given('class of the model, or logits', TEXT)
    model_sha256 = given("SHA-256 of the model; '' of logits", TEXT)
    alpha = given('teleport probability', SHARE)
    K = given('propagation steps; null: infinitely many', maybe(COUNT))
    normalization = given('that of the adjacency', one_of('rw', 'sym'))
    self_loops = given('whether the model adds self-loops', FLAG)
    dtype = given('dtype of the model', TEXT)
    tolerance = given('margins of at most this size count as unknown')
    witness_digest = _WITNESS

    def _says(self) -> Words:
        within = 'the local budgets'
        if self.global_budget is not None:
            kind = 'undirected' if self.undirected else 'directed'
            within += f' and {self.global_budget} {kind} flips in all'
        most = self.max_local_budget
        ways = 'each direction by itself', 'both directions together'
        return Words(
            f'{self.num_robust} of {self.targets} predictions stay as they '
            f'are in every graph that {within} allow, at most {most} '
            f'flip{"s" * (most != 1)} at a node and '
            f'{self.sum_local_budget:,} at all {self.num_nodes:,} nodes '
            f'together ({self.num_broken} have another class than the '
            f'defended one in such a graph, {self.num_unknown} are unknown)',
            (
                f'only fragile edges flip ({self.scenario}), '
                f'{ways[self.undirected]}',
                f'{self.fixed_edges} directed edges are fixed: they never '
                'change',
            ),
            (
                'changes of features or of labels',
                'several nodes at once: each is certified by itself',
                *(UNSEEN if self.model_sha256 else ()),
            ),
        )


_NAMES = {'edges': 'edges', 'features': 'entries of the features'}


class SmoothedCertificate(_Robust):
    """Claim of a certificate by randomized smoothing."""

    procedure = 'certificate by smoothing'
    targets = given('number of certified targets', NATURAL)
    task = given('what is classified', one_of('nodes', 'graphs', 'pairs'))
    confidence = given('probability that the bounds hold', SHARE)
    per = given('bounds of all targets, or of one', one_of('all', 'node'))
    alpha = given('probability that a bound of a target is wrong', SHARE)
    num_samples = given('number of copies that bound probabilities', NATURAL)
    num_selection = given('number of copies that choose the class', NATURAL)
    num_classes = given('number of classes', NATURAL)
    num_abstained = given('number of targets without a class', COUNT)
    classes = given('the classes that are bounded', one_of('all', 'one'))
    tolerance = given('taken off bounds of probabilities, for rounding')
    flips = given(
        'by kind: probability that a 0 turns to 1, that a 1 turns to 0',
        named(row(_NOISE, _NOISE), '^(edges|features)$'),
    )
    undirected = given('whether both directions flip together', FLAG)
    tallies = given(
        'rows: targets; votes of class, runner-up, rest; zeros, ones', _TABLE
    )
    certified = given(
        'number of targets that keep their class, by changes', _BY_CHANGE
    )
    answered = given(
        'number of these on which the classifier hardly abstains', _BY_CHANGE
    )
    seeded = given('whether the copies come from a seed', FLAG)
    seed = given('seed of the copies, if known', maybe(COUNT), None)

    def _says(self) -> Words:
        names = {**_NAMES, 'edges': 'undirected ' * self.undirected + 'edges'}
        parts = []
        for name, count in self.certified.items():
            kind, _, added, _, deleted = name.split('_')
            what = f'{added} added and {deleted} deleted {names[kind]}'
            parts.append(f'{count} for up to {what}')
        answers = '; '.join(
            f'{count} at {name.replace("_", " ")}'
            for name, count in self.answered.items()
        )
        if answers:
            least = outwards(1 - self.alpha, 6, False)
            answers = (
                f' ({answers} also have an answer, each in each run that is '
                f'not refused, with probability {least} at least)'
            )
        each = (
            'all together' if self.per == 'all' else 'each of them by itself'
        )
        return Words(
            f"the smoothed classifier's class stays, of {self.targets} "
            f'{self.task}, after one of these: {"; ".join(parts)}; with '
            f'confidence {outwards(self.confidence, 6, False)}, {each} '
            f'({self.num_abstained} abstain)',
            (
                'predictions are those of the smoothed classifier (the '
                'likeliest class over noisy copies), as the report has them',
                'the model is fixed, as are all inputs that have no noise',
                'the random bits were unknown to whoever chose model and '
                'data, and one run was made, or the worst of all reported',
                'rounding in the model does not depend on the batch',
            ),
            (
                'the model without smoothing',
                'that the deployed classifier answers where its class stays: '
                f'it may abstain there, which is no other class{answers}',
                *UNSEEN,
                'changes of the training data',
                'new nodes, self-loops and parallel edges, and changes of '
                'attributes of edges',
                *(
                    f'changes of the {name}'
                    for name in _NAMES
                    if name not in self.flips
                ),
            ),
        )


class CollectiveCertificate(_Robust):
    """Claim of how many smoothed predictions stay at once."""

    procedure = 'collective certificate by smoothing'
    num_targets = given('number of predictions', COUNT)
    counted = given('number that could be guaranteed', COUNT)
    one_by_one = given('number that stay if attacked one at a time', COUNT)
    bound = given('upper bound of the number that change at once')
    guaranteed = derived(
        'number of predictions that stay at once',
        lambda c: max(c.counted - math.floor(c.bound + 1e-6), c.one_by_one),
        COUNT,
    )
    edges = given('the most edges added, and deleted', row(COUNT, COUNT))
    features = given('the most entries set to 1, and to 0', row(COUNT, COUNT))
    local_budget = given('the most of each kind in one row', maybe(COUNT))
    attackers = given('the most nodes whose rows change', maybe(COUNT))
    K = given('number of message passing layers', COUNT)
    degrees = given("whose degree scales messages: 'source', 'target'", TEXT)
    confidence = given('probability that all bounds hold at once', SHARE)
    seeded = given('whether the copies come from a seed', FLAG)
    witness_digest = _WITNESS

    def _wrong(self) -> Iterator[str]:
        if not self.guaranteed <= self.counted <= self.num_targets:
            yield (
                f'counted: {self.guaranteed} of {self.counted} of '
                f'{self.num_targets} are stated'
            )

    def _says(self) -> Words:
        most = ''
        if self.attackers is not None:
            most = f' of at most {self.attackers} nodes'
        if self.local_budget is not None:
            most += f', at most {self.local_budget} of a kind in one row,'
        return Words(
            f'{self.guaranteed} of {self.num_targets} predictions of the '
            f'smoothed classifier stay at once, for up to {self.edges[0]} '
            f'added and {self.edges[1]} deleted undirected edges, '
            f'{self.features[0]} added and {self.features[1]} deleted entries '
            f'of the features{most} together, with confidence '
            f'{outwards(self.confidence, 6, False)}',
            (
                'predictions are those of the smoothed classifier',
                f'the model has at most {self.K} rounds of messages, '
                f"weighted by the {self.degrees}'s degree (probed)",
            ),
            (
                'the model without smoothing',
                *UNSEEN,
                'which of the predictions stay',
                'new nodes, self-loops and parallel edges, and changes of the '
                'training data',
            ),
        )


class RankCertificate(_Robust):
    """Claim of how many items stay in the lists of users."""

    procedure = 'certificate of ranks'
    num_users = given('number of users', COUNT)
    num_items = given('number of items that are ranked', COUNT)
    k = given('number of best items of each user', NATURAL)
    ranks = given(
        'pairs: a worst rank, and the number of items that have it',
        several(row(NATURAL, NATURAL)),
    )
    num_kept = derived(
        "number of items that stay in their user's top k",
        lambda c: sum(n for rank, n in c.ranks if rank <= c.k),
        COUNT,
    )
    num_lost = given('number of items that leave it in some graph', COUNT)
    num_unknown = derived(
        'number of all other items',
        lambda c: sum(n for _, n in c.ranks) - c.num_kept - c.num_lost,
        COUNT,
    )
    num_flips = given('number of undirected pairs that may flip', COUNT)
    global_budget = given('the most pairs that flip at once', COUNT)
    alpha = given('teleport probability', SHARE)
    tolerance = given('scores that differ by at most this count as equal')
    witness_digest = _WITNESS

    def _wrong(self) -> Iterator[str]:
        yield from _ranks.contradictions(self.to_dict())

    def _says(self) -> Words:
        near = outwards(self.tolerance, up=False)
        return Words(
            f'{self.num_kept} items in the lists of {self.num_users} users, '
            f'the first {self.k} of {self.num_items:,} for each, stay there '
            f'in every graph with at most {self.global_budget} of '
            f'{self.num_flips:,} undirected pairs flipped ({self.num_lost} do '
            f'not in some, {self.num_unknown} are unknown)',
            (
                'ranks are by PageRank from the user, without what it is or '
                f'has; scores within {near} of an item count against it',
                "no pair of the user itself flips for the user's ranks",
            ),
            ('other scores', 'several users at once', 'new users and items'),
        )


_PROTECTED = {
    'edges': 'undirected edges, inserted or deleted',
    'nodes': 'nodes other than the target, inserted, deleted or changed with '
    'features and all edges; or undirected edges',
    'subgraphs': 'nodes, with features and all edges; or edges',
    'features': 'rows of the features',
    'entries': 'entries of the features',
    'grid': 'undirected edges and rows of the features',
    'owners': 'persons, each with all rows and edges that it owns',
}
_OPEN = {
    'edges': ('changes of features', 'changes of the set of nodes'),
    'nodes': ("changes of the target's own features",),
    'subgraphs': (),
    'features': ('changes of edges', 'changes of the set of nodes'),
    'entries': ('changes of edges', 'changes of the set of nodes'),
    'grid': ('changes of the set of nodes',),
    'owners': ('who owns what', 'rows of several persons: in no view'),
}


class VoteCertificate(_Robust):
    """Claim of a certificate by votes over divided inputs."""

    procedure = 'certificate by division and voting'
    targets = given('number of certified targets', NATURAL)
    task = given('what is classified', one_of('nodes', 'graphs'))
    num_groups = given('number of groups of elements', NATURAL)
    by = given('the elements that are divided', one_of(*_PROTECTED))
    views = derived(
        'number of views that vote',
        lambda c: c.num_groups ** (1 + (c.by == 'grid')),
        NATURAL,
    )
    vote = given('how views vote', one_of('majority', 'mean'))
    tallies = given(
        'rows: targets; votes: class, best before, best after, rest', _TABLE
    )
    certified = given(
        'number of targets that keep it, by changed views', _BY_NUMBER
    )
    seed = given('key of the hash that divides', COUNT)
    persons = given('the declared owners of rows', OBJECT, {})

    def _says(self) -> Words:
        counts = [f'{count} at {k}' for k, count in self.certified.items()]
        persons = self.by == 'owners' and self.persons
        return Words(
            f'the class that {self.views} views vote for stays, of '
            f'{self.targets} {self.task}, after so many changed views: '
            f'{", ".join(counts)}; one changed element, of '
            f'{_PROTECTED[self.by]}, changes one view'
            + (', or a row or column of them' if self.by == 'grid' else ''),
            (
                'predictions are those of the voted classifier, as the report '
                'has them',
                'the model is fixed, and the same function at every call',
                'rounding in the model does not depend on the batch',
                'nodes keep their ids (n_id; else their positions, so that '
                'new ones come last)',
            ),
            (
                'the model without division',
                *UNSEEN,
                'changes of the training data',
                'changes of what a transform reads beside features (x) and '
                'edges',
                *_OPEN[self.by],
                *(declared(self.persons) if persons else ()),
            ),
        )


class PoisonCertificate(_Robust):
    """Claim of a certificate against poisoning, by votes of shards."""

    procedure = 'certificate against poisoning, by shards'
    targets = given('number of certified targets', NATURAL)
    num_shards = given('number of shards, which vote', NATURAL)
    aggregator = given('how votes are counted, such as majority', TEXT)
    inference = given('graph at inference', one_of('isolated', 'clean'))
    tallies = given('rows: targets; votes: class, next, -1, rest', _TABLE)
    certified = given(
        'number of targets that keep it, by changed shards', _BY_NUMBER
    )

    def _says(self) -> Words:
        counts = [f'{count} if {k} do' for k, count in self.certified.items()]
        isolated = self.inference == 'isolated'
        when = 'in training and at inference' if isolated else 'in training'
        return Words(
            f'of {self.targets} nodes these keep the class that the shards '
            f'vote for, whatever other nodes do {when} (are inserted or '
            'deleted, have other features, labels or edges): '
            f'{", ".join(counts)}',
            (
                'predictions are the classes of this report'
                + (', of isolated inference' if isolated else ''),
                'nodes keep their ids, and new ones take new ids',
                'seed, number of shards, number of classes and '
                'hyperparameters were not chosen on data that can be '
                'attacked, and nothing was computed across nodes before',
                'the factory of the models is deterministic',
            ),
            (
                "changes of the target's own features"
                if isolated
                else 'changes of the graph at inference',
                "more than one vote for the target's own label",
                'the outputs of a single shard, and other aggregators',
            ),
        )


# Accuracy, and measurements ##################################################


class Propagation(Claim):
    """Claim of the accuracy of propagated features."""

    procedure = 'propagation'
    kind = 'accuracy'
    read = given('attribute that is propagated', TEXT)
    written = given('attribute that has the result', TEXT)
    measure = given('name of the propagation measure', TEXT)
    a = given("exponent of receiving nodes' degrees", {'type': 'number'})
    b = given("exponent of sending nodes' degrees", {'type': 'number'})
    levels = given('number of hops', COUNT)
    eps = given('share below which messages are sampled; 0 if exact')
    half = given('whether hops are kept in float16', FLAG)
    level_tol = given('largest error of a shorter series', maybe(POSITIVE))
    level_bound = given('bound of that error', maybe(AMOUNT))
    standard_deviation = given('largest of any entry', maybe(AMOUNT))
    seed = given('seed of the estimate', maybe(COUNT), None)
    data_fields = _FIELDS

    def _wrong(self) -> Iterator[str]:
        bound, most = self.level_bound, self.level_tol
        if (bound is None) != (most is None or bool(self.eps)):
            yield 'level_bound: it is there if levels are cut'
        elif bound is not None and bound > most:
            yield f'level_bound: {bound:.6g} is more than {most:.6g}'
        if (self.standard_deviation is None) != (self.eps == 0):
            yield 'standard_deviation: it is there if values are estimated'

    def _says(self) -> Words:
        promise = (
            f'{self.written!r} holds {self.read!r} propagated by '
            f'{self.measure!r} in {self.levels} steps (a={self.a:g}, '
            f'b={self.b:g}), '
        )
        if self.standard_deviation is not None:
            most = outwards(self.standard_deviation, 3)
            promise += 'right on average over seeds; no entry has a standard '
            promise += f'deviation above {most}'
        else:
            promise += 'up to rounding' + ' (levels in float16)' * self.half
        if self.level_bound is not None:
            most = outwards(self.level_bound, 3)
            promise += f' and to within {most} times the sum of the weights '
            promise += f'times |D^(a-1/2) {self.read}|_F, a norm, as levels '
            promise += 'are cut'
        seed = ('the seed does not depend on graph and features',)
        return Words(
            promise,
            seed * (self.eps > 0),
            (f'what the measure leaves out after {self.levels} levels',),
        )


_FOUND = {
    'failed': 'found a trace of what was removed',
    'not rejected': 'found no trace of what was removed',
    'leaks by design': 'found what is released by design',
    'no power': 'could not have found a trace',
}


def _verdicts(c: Any) -> dict[str, list[str]]:
    return {
        verdict: [
            str(row['test']) for row in c.tests if row['verdict'] == verdict
        ]
        for verdict in _FOUND
    }


class Audit(Claim):
    """Claim of what the tests of an audit have found."""

    procedure = 'audit of a removal'
    kind = 'measurement'
    request = given('ids of the removed items, by graph', OBJECT)
    tests = given('rows: statistic, value, interval, verdict', several(OBJECT))
    verdicts = derived('tests by verdict', _verdicts, named(several(TEXT)))
    level = given('confidence of intervals and verdicts', SHARE)
    left_out = given('tests that were not run, and why', several(TEXT))

    def _says(self) -> Words:
        parts = []
        for verdict, what in _FOUND.items():
            tests = self.verdicts[verdict]
            of = f'{len(tests)} of {len(self.tests)} tests {what}'
            parts += [f'{of} ({", ".join(tests)})'] * bool(tests)
        return Words(
            '; '.join(parts),
            (
                'the subject releases nothing but what released() lists',
                'verdicts are of this request, this data and these seeds',
            ),
            (
                'that everything was forgotten: a test that does not reject '
                'proves nothing',
                *self.left_out,
            ),
        )
