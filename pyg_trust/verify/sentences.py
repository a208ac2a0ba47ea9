"""Sentences: what people read of a claim, made from its fields alone.

One function for each promise. All of :func:`words` is a function of the claim.
Every field is in it, but names of people and tables of votes, which are read.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from .claims import LATER, finite
from .fields import CONTENTS, confirmed

SEEDED = (
    'not private and not certified: the noise comes from an explicit seed, '
    'and whoever knows or guesses the seed can subtract it'
)
SEEDED_COPIES = (
    'not certified: seeded (the noisy copies come from an explicit seed, and '
    'whoever knows or guesses the seed can choose a model that they flatter)'
)
UNSEEN = (
    'what the model reads beside its tensors, attributes and code (files, '
    'attributes of imported modules, hooks on all modules of the process), '
    'and changes of it after the certificate was made (speaks_of tells)',
)
#: What stands before fields that no other field confirms.
ALONE = (
    'stated by this report alone, as are who is named, its notes, limits, '
    'fingerprints and time, its origin, and what was checked on the run'
)
FROM_SYSTEM = 'keys come from the operating system'


@dataclass(frozen=True)
class Words:
    """The sentences of a claim, and its budgets."""

    promise: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    spent: dict[str, float] = field(default_factory=dict)
    budget: dict[str, float] = field(default_factory=dict)


SETTINGS = 'settings: '
_MEASURE = r'Measure\((.+), a=(.+), b=(.+), levels=(.+)\)'
# Names of people, tables, other sentences.
_UNSAID = ('request', 'tallies', 'vouched', 'notes', 'limits')


def words(claim: Any) -> Words:
    """Make the sentences of a claim."""
    made = _RULES[claim.procedure](claim)
    assumed = [*made.assumptions, *claim.notes, _settings(claim)]
    promise = made.promise
    if claim.vouched and claim.kind == 'privacy':
        promise += f', as says {claim.vouched}'
    elif claim.vouched:
        promise = f'as says {claim.vouched}: {promise}'
        assumed.append(f'NOT CHECKED: {claim.vouched}')
    if getattr(claim, 'seeded', False) and claim.kind == 'robustness':
        promise = f'{SEEDED_COPIES}; with secret copies, {promise}'
    elif getattr(claim, 'seeded', False):
        promise = f'{SEEDED}; with secret noise, {promise}'
        assumed.insert(0, SEEDED)
    return replace(
        made,
        promise=promise,
        assumptions=tuple(dict.fromkeys(assumed)),
        not_covered=tuple(dict.fromkeys((*made.not_covered, *claim.limits))),
    )


def _settings(claim: Any) -> str:
    pairs = {each.name: getattr(claim, each.name) for each in fields(claim)}
    pairs |= pairs.pop('more')
    sure = confirmed(claim.procedure, pairs)
    known, alone = list[str](), list[str]()
    for name, value in sorted(pairs.items()):
        if name in _UNSAID or (name in LATER and value == ''):
            continue
        text = json.dumps(finite(value), sort_keys=True)
        if len(text) > 66:
            text = 'SHA-256 ' + hashlib.sha256(text.encode()).hexdigest()[:16]
        (known if name in sure else alone).append(f'{name} {text}')
    others = '; ' * bool(known) + ALONE
    return f'{SETTINGS}{", ".join(known)}{others}: {", ".join(alone)}'


def outwards(value: float, digits: int = 4, up: bool = True) -> str:
    """Format some digits, rounded so that no more is promised."""
    way = Context(digits, ROUND_CEILING if up else ROUND_FLOOR)
    made = way.create_decimal(repr(float(value + 0.0)))  # a text is none
    return f'{float(made):.{digits}g}'


def _pair(epsilon: float, delta: float) -> str:
    return f'({outwards(epsilon)}, {outwards(delta, 6)})'


def _spends(c: Any) -> tuple[dict[str, float], dict[str, float]]:
    goal = getattr(c, 'target_epsilon', None)
    limit = math.inf if goal is None else goal
    return {'epsilon': c.epsilon}, {'epsilon': limit}


_RULES: dict[str, Callable[[Any], Words]] = {}
Rule = Callable[[Any], Words]


def _of(procedure: str) -> Callable[[Rule], Rule]:
    return lambda rule: _RULES.setdefault(procedure, rule)


# Privacy #####################################################################

NO_LEDGER = (
    'all steps were taken by this process, or by those whose checkpoint it '
    'went on from, each of which was gone on from once: without a ledger '
    'nothing else is counted'
)
LEDGER = (
    'the ledger is the only account of this training: no copy of it was spent '
    'as well, and no older one was put back (ledger_head, noted elsewhere and '
    'handed to the next engine, shows the latter)'
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
_UNITS = {
    'edge': "edge's presence",
    'node': "node's record: features, label and own list of neighbours",
    'node_incident': "node with all its edges, up to {} of them: the node's "
    'features, label and edges',
    'feature': "node's features and label",
    'user': "user's list of items",
}
_SUMS = {'feature': 'a linear propagation', 'user': 'pairs of items'}
RUN_ALONE = (
    'a unit adds to a step what it adds when it is run alone; run alone were '
    'all units (always), or one drawn in secret in k of n steps, if there is '
    'one that the model runs on alone (sampled): '
)


def protected_unit(relation: str) -> str:
    """Name the unit in which neighbours differ, for use after 'any one'."""
    person = 'person: all rows that it owns, their labels and edges'
    return {
        'replace-one-graph': 'graph: its nodes, edges, features and label',
        'add-or-remove-one-graph': 'graph, and in whether it is there',
        'replace-one-person': person,
        'add-or-remove-one-person': f'{person}, and in whether it is there',
        CONTENTS: "person's contents: its rows, their labels and edges, but "
        'not with whom it shares them',
    }.get(relation, "node's features")


def _declared(of: dict[str, Any]) -> list[str]:
    named = ', '.join([*of['declared_public'], *of['public_edges']])
    shared = ', '.join([*of['joint'], *of.get('along', [])]) or 'rows'
    by = f'who shares {shared} with whom, and by which rows: fixed and public'
    return [f'DECLARED PUBLIC: {named or "nothing"}', *[by] * ('along' in of)]


@_of('private training')
def _training(c: Any) -> Words:
    exact = c.arithmetic == 'exact' and c.checked
    alone = [RUN_ALONE + c.checked] if c.checked else []
    public: tuple[str, ...] = (
        'edges, and which nodes there are',
        'predictions, which read the features of neighbours',
    )
    if (about := str(c.relation)).startswith('add-or-remove'):
        public = ('the rate, and the number that sums are divided by',)
    elif about.endswith(('graph', 'person')):
        public = (f'how many {about.rsplit("-", 1)[1]}s there are',)
    if about.endswith('person'):
        public = *public, *_declared(c.more['persons'])
    return Words(
        f'the weights after each of {c.steps} steps, all together, are '
        f'{_pair(c.epsilon, c.delta)}-differentially private'
        f'{", in exact arithmetic," if exact else ""} in any one '
        f'{protected_unit(c.relation)}',
        (*TRAINING, NO_LEDGER if c.ledger_head is None else LEDGER, *alone),
        public,
        *_spends(c),
    )


@_of('search for settings of private training')
def _search(c: Any) -> Words:
    return Words(
        'the weights, settings and score of the best run are '
        f'{_pair(c.epsilon, c.delta)}-differentially private in any one '
        f'{protected_unit(c.relation)}',
        (),
        ('all other runs, how many there were, and the time',),
        *_spends(c),
    )


def unit_of_sums(
    relation: str, form: str, directed: bool, max_degree: int | None
) -> str:
    """Name the unit of privacy of sums over neighbours."""
    if relation == 'edge':
        return f'{"arc" if directed else "undirected edge"}, there or not'
    against = 'a blank' if form == 'withdraw' else 'any other'
    return f'{_UNITS[relation].format(max_degree)}, against {against}'


@_of('private aggregation')
def _sums(c: Any) -> Words:
    hops = _SUMS.get(c.relation, f'{c.hops} hop{"s" * (c.hops > 1)}')
    nodes = 'users and items' if c.relation == 'user' else 'nodes'
    what = f'the noisy sums of {hops} over {c.num_nodes:,} {nodes}'
    if c.predictions:
        others = '' if c.relation == 'edge' else ' for others'
        what += f', the weights and every prediction{others}, together,'
    unit = unit_of_sums(c.relation, c.form, c.directed, c.max_degree)
    public = ['all arguments', 'ids and number of nodes']
    if c.raw_columns and c.relation != 'edge':
        public.append('the first columns, which are the raw rows')
    if c.rows == 'others':
        public.append("a node's own row, which is for that node")
    return Words(
        f'{what} are {_pair(c.epsilon, c.delta)}-differentially private in '
        f'one {unit}',
        _once(c),
        tuple(public),
        *_spends(c),
    )


def _once(c: Any) -> tuple[str, str]:
    return (
        'which calls had the same data is known: the first release of data '
        'costs, the next is free, and the number of releases '
        f'({c.releases}) tells which were alike',
        'this object made all releases of these data: without a ledger '
        'nothing else is counted'
        if c.ledger_head is None
        else 'the ledger is the only account of these data: no copy of it was '
        'spent as well, and no older one was put back',
    )


@_of('private link prediction')
def _links(c: Any) -> Words:
    edge = c.relation == 'edge'
    counted = 'a noisy number of edges, ' * edge
    whose = ' for others' * (not edge)
    role = '; an edge counts as a message and as an example' * edge
    known = ' and features: known to all' * edge
    return Words(
        f'the noisy sums of 1 hop over {c.num_nodes:,} nodes, {counted}'
        f'{c.steps} noisy gradients of a scorer of pairs and every score of '
        f'every pair{whose}, together, are {_pair(c.epsilon, c.delta)}-'
        'differentially private in one '
        f'{unit_of_sums(c.relation, c.form, c.directed, None)}{role}',
        _once(c),
        (f'all arguments, ids, number of nodes{known}',),
        *_spends(c),
    )


# Removal #####################################################################

_AFTERWARDS = (
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


def _released(c: Any, releases: str, unit: str) -> Words:
    why, more = OBJECTIVE, 'if Theorem 3 of Guo et al. holds here, which it '
    more += 'does not in general'
    if c.noise == 'output':
        why, more = _OUTPUT, f'and all {releases} since the fit together '
        more += _pair(c.epsilon_transcript, c.delta)
    return Words(
        f'the released weights are {_pair(c.epsilon, c.delta)}-'
        'indistinguishable from those of exact retraining without what was '
        f'removed, {more}',
        (*why, f'how the residual was checked: {c.residual_checked}'),
        _AFTERWARDS,
        {unit: c.bound},
        {unit: c.budget},
    )


@_of('certified removal from a link classifier')
@_of('certified removal from a node classifier')
def _node_removal(c: Any) -> Words:
    made = _released(c, 'releases', 'gradient residual')
    copies = 'copies of what was removed in other nodes'
    return replace(made, not_covered=(*made.not_covered, copies))


@_of('certified removal')
def _graph_removal(c: Any) -> Words:
    unit = 'shift over noise' if c.noise == 'output' else 'gradient residual'
    return _released(c, f'{c.releases} releases', unit)


@_of('exact removal by shards')
def _shard_removal(c: Any) -> Words:
    return Words(
        f'{c.secrets}; '
        * (c.secrets != FROM_SYSTEM)
        + 'models and aggregator equal, bit for bit, those trained from '
        'scratch without what was removed'
        + ('' if c.exact else ', but for the partition')
        + f': {c.exactness}',
        (
            'requests do not depend on a released model',
            'labels, features and edges of what remains were not made from '
            'what was removed',
            'the model factory gives the same model for the same state of '
            "torch's default generator",
            'bits are those of one machine and one version of torch',
        ),
        (
            'what earlier releases of the model have revealed',
            'the names of what was removed, which stay in ledger and reports',
            'copies, backups and snapshots of the state, a later fit, or a '
            'state that somebody puts back from a copy',
            *_KEPT[: c.keeps_history],
        ),
    )


@_of('exact removal from a recommender')
def _count_removal(c: Any) -> Words:
    made = 'counts', 'have the bits of counting anew'
    if c.column_distance == 0:
        made = 'closed-form weights', 'have the bits of a fit on them'
    elif c.column_distance is not None:
        # Reports of 0.1.
        near = f'within {outwards(c.column_distance, 3)} of the exact ones'
        made = 'closed-form weights', f'are, by column, {near}'
    return Words(
        f'the {made[0]} of {c.num_interactions:,} interactions that remain '
        f'{made[1]}, without what was removed',
        ('what remains was not made from what was removed',),
        (_AFTERWARDS[0], *_AFTERWARDS[2:5]),
    )


@_of('removal covered by privacy')
def _covered_removal(c: Any) -> Words:
    return Words(
        f'what was released under {c.relation!r} is '
        f'{_pair(c.epsilon, c.delta)}-indistinguishable from the same release '
        f'of data without the {c.units} units that were removed since',
        BLANKS,
        (*_AFTERWARDS[4:], 'other releases: each covers its own'),
        {'mu': c.mu},
        {'mu': c.budget},
    )


# Robustness ##################################################################


@_of('robustness certificate')
def _exact(c: Any) -> Words:
    within = 'the local budgets'
    if c.global_budget is not None:
        kind = 'undirected' if c.undirected else 'directed'
        within += f' and {c.global_budget} {kind} flips in all'
    most = c.max_local_budget
    ways = 'each direction by itself', 'both directions together'
    return Words(
        f'{c.num_robust} of {c.targets} predictions stay as they are in every '
        f'graph that {within} allow, at most {most} '
        f'flip{"s" * (most != 1)} at a node and {c.sum_local_budget:,} at all '
        f'{c.num_nodes:,} nodes together ({c.num_broken} have another class '
        f'than the defended one in such a graph, {c.num_unknown} are unknown)',
        (
            f'only fragile edges flip ({c.scenario}), {ways[c.undirected]}',
            f'{c.fixed_edges} directed edges are fixed: they never change',
        ),
        (
            'changes of features or of labels',
            'several nodes at once: each is certified by itself',
            *(UNSEEN if c.model_digest else ()),
        ),
    )


@_of('certificate by smoothing')
def _smoothed(c: Any) -> Words:
    names = {**_NAMES, 'edges': 'undirected ' * c.undirected + 'edges'}
    parts = []
    for name, count in c.certified.items():
        kind, _, added, _, deleted = name.split('_')
        what = f'{added} added and {deleted} deleted {names[kind]}'
        parts.append(f'{count} for up to {what}')
    answers = '; '.join(
        f'{count} at {name.replace("_", " ")}'
        for name, count in c.answered.items()
    )
    if answers:
        least = outwards(1 - c.alpha, 6, False)
        answers = f' ({answers} also have an answer, each in each run that is'
        answers += f' not refused, with probability {least} at least)'
    each = 'all together' if c.per == 'all' else 'each of them by itself'
    return Words(
        f"the smoothed classifier's class stays, of {c.targets} {c.task}, "
        f'after one of these: {"; ".join(parts)}; with confidence '
        f'{outwards(c.confidence, 6, False)}, {each} '
        f'({c.num_abstained} abstain)',
        (
            'predictions are those of the smoothed classifier (the likeliest '
            'class over noisy copies), as the report has them',
            'the model is fixed, as are all inputs that have no noise',
            'the random bits were unknown to whoever chose model and data, '
            'and one run was made, or the worst of all reported',
            'rounding in the model does not depend on the batch',
        ),
        (
            'the model without smoothing',
            'that the deployed classifier answers where its class stays: it '
            f'may abstain there, which is no other class{answers}',
            *UNSEEN,
            'changes of the training data',
            'new nodes, self-loops and parallel edges, and changes of '
            'attributes of edges',
            *(f'changes of the {n}' for n in _NAMES if n not in c.flips),
        ),
    )


@_of('collective certificate by smoothing')
def _collective(c: Any) -> Words:
    at_most = '' if c.attackers is None else f' of at most {c.attackers} nodes'
    if c.local_budget is not None:
        at_most += f', at most {c.local_budget} of a kind in one row,'
    return Words(
        f'{c.guaranteed} of {c.num_targets} predictions of the smoothed '
        f'classifier stay at once, for up to {c.edges[0]} added and '
        f'{c.edges[1]} deleted undirected edges, {c.features[0]} added and '
        f'{c.features[1]} deleted entries of the features{at_most} together, '
        f'with confidence {outwards(c.confidence, 6, False)}',
        (
            'predictions are those of the smoothed classifier',
            f'the model has at most {c.hops} rounds of messages, weighted by '
            f"the {c.degrees}'s degree (probed)",
        ),
        (
            'the model without smoothing',
            *UNSEEN,
            'which of the predictions stay',
            'new nodes, self-loops and parallel edges, and changes of the '
            'training data',
        ),
    )


_NAMES = {'edges': 'edges', 'features': 'entries of the features'}
_FOUND = {
    'failed': 'found a trace of what was removed',
    'not rejected': 'found no trace of what was removed',
    'leaks by design': 'found what is released by design',
    'no power': 'could not have found a trace',
}
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


@_of('certificate of ranks')
def _ranks(c: Any) -> Words:
    near = outwards(c.tolerance, up=False)
    return Words(
        f'{c.num_kept} items in the lists of {c.num_users} users, the first '
        f'{c.k} of {c.num_items:,} for each, stay there in every graph with '
        f'at most {c.global_budget} of {c.num_flips:,} undirected pairs '
        f'flipped ({c.num_lost} do not in some, {c.num_unknown} are unknown)',
        (
            'ranks are by PageRank from the user, without what it is or has; '
            f'scores within {near} of an item count against it',
            "no pair of the user itself flips for the user's ranks",
        ),
        ('other scores', 'several users at once', 'new users and items'),
    )


@_of('certificate by division and voting')
def _voted(c: Any) -> Words:
    counts = [f'{count} at {k}' for k, count in c.certified.items()]
    return Words(
        f'the class that {c.views} views vote for stays, of {c.targets} '
        f'{c.task}, after so many changed views: {", ".join(counts)}; one '
        f'changed element, of {_PROTECTED[c.by]}, changes one view'
        + (', or a row or column of them' if c.by == 'grid' else ''),
        (
            'predictions are those of the voted classifier, as the report has '
            'them',
            'the model is fixed, and the same function at every call',
            'rounding in the model does not depend on the batch',
            'nodes keep their names (n_id; else their positions, so that new '
            'ones come last)',
        ),
        (
            'the model without division',
            *UNSEEN,
            'changes of the training data',
            'changes of what a transform reads beside features (x) and edges',
            *_OPEN[c.by],
            *(_declared(c.more['persons']) if c.by == 'owners' else ()),
        ),
    )


@_of('certificate against poisoning, by shards')
def _poisoned(c: Any) -> Words:
    counts = [f'{count} if {k} do' for k, count in c.certified.items()]
    isolated = c.inference == 'isolated'
    when = 'in training and at inference' if isolated else 'in training'
    return Words(
        f'of {c.targets} nodes these keep the class that the shards vote for, '
        f'whatever other nodes do {when} (are inserted or deleted, have other '
        f'features, labels or edges): {", ".join(counts)}',
        (
            'predictions are the classes of this report'
            + (', of isolated inference' if isolated else ''),
            'nodes keep their names, and new ones take new names',
            'seed, number of shards, number of classes and hyperparameters '
            'were not chosen on data that can be attacked, and nothing was '
            'computed across nodes before',
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


@_of('propagation')
def _propagation(c: Any) -> Words:
    by = re.sub(_MEASURE, r"'\1' in \4 steps (a=\2, b=\3)", c.measure)
    promise = f'{c.written!r} holds {c.read!r} propagated by {by}, '
    if c.standard_deviation is not None:
        promise += 'right on average over seeds; no entry has a standard '
        promise += f'deviation above {outwards(c.standard_deviation, 3)}'
    else:
        promise += 'up to rounding' + ' (levels in float16)' * c.half
    if c.level_bound is not None:
        most = outwards(c.level_bound, 3)
        promise += f' and to within {most} times the sum of the weights times '
        promise += f'|D^(a-1/2) {c.read}|_F, a norm, as levels are cut'
    return Words(
        promise,
        ('the seed does not depend on graph and features',) * (c.eps > 0),
        (f'what the measure leaves out after {c.levels} levels',),
    )


@_of('audit of a removal')
def _audit(c: Any) -> Words:
    parts = []
    for verdict, what in _FOUND.items():
        tests = [row['test'] for row in c.tests if row['verdict'] == verdict]
        of = f'{len(tests)} of {len(c.tests)} tests {what}'
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
            *c.left_out,
        ),
    )
