r"""Claims: the fields of a promise, and JSON both ways.

A claim is a frozen dataclass of one kind for each promise. Its fields are
what the promise is about, with units. People read sentences that
:mod:`.sentences` makes from the fields alone, programs read the fields: a
checker makes the sentences again and compares, so that no field can be
changed without a sentence, nor a sentence without a field. The rest: settings.

A report in JSON can be read in one way alone: no name twice, no number that
JSON does not know or that no double holds. Its ``digest`` is a SHA-256 of all
else in it: it finds damage, not malice, as it can be written anew, too.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from typing import Any

# Fields of every claim, besides those of its promise.
_COMMON = {
    'notes': ('further conditions, of this run', ()),
    'limits': ('what this run does not cover as well', ()),
    'vouched': ('who states it, if it is not this package', ''),
    'more': ('further settings, by name', {}),
}
#: Promises of one report; the proof of each may take half a minute.
MOST_PROMISES = 100
LATER = ('checked', 'arithmetic')  # '' in reports that had not yet these
#: The kinds of claims, by the procedure that makes the promise.
PROMISES: dict[str, Any] = {}


def _promise(name: str, procedure: str, kind: str, **units: str) -> type:
    made = make_dataclass(
        name,
        [(each, Any, field(metadata={'unit': units[each]})) for each in units]
        + [
            (each, Any, field(default_factory=type(empty)))
            for each, (_, empty) in _COMMON.items()
        ],
        frozen=True,
        namespace={'procedure': procedure, 'kind': kind},
    )
    PROMISES[procedure] = made
    return made


_SPENT = {
    'epsilon': 'nats, of everything released',
    'delta': 'probability',
    'target_epsilon': 'nats, what may be spent; None without a limit',
    'seeded': 'whether anything secret comes from a seed',
    'ledger_head': 'SHA-256 of the ledger; None without one',
}
_RELEASES = {
    'mu': 'sensitivity over noise, of everything',
    'directed': 'whether edges are arcs',
    'releases': 'lines of the account',
    'num_nodes': 'count, public',
    **_SPENT,
}
PrivateTraining = _promise(
    *('PrivateTraining', 'private training', 'privacy'),
    steps='count',
    relation='which data are neighbours',
    sampling='how units are drawn',
    mechanism='the accountant',
    batch_size='units of a step',
    sample_rates='share of the units, number of steps with it',
    noise_multiplier='deviation of the noise over the clipping norm',
    account='noise multiplier, rate, number of steps',
    pure_epsilon='nats, of releases without delta',
    checked='units that were run alone: always, sampled (k of n) or not',
    arithmetic='what holds to the last bit: exact, sums or float',
    **_SPENT,
)
Search = _promise(
    *('Search', 'search for settings of private training', 'privacy'),
    epsilon='nats, of the whole search',
    delta='probability',
    mean_runs='expected number of runs',
    shape='of the law of the number of runs',
    seeded='whether anything secret comes from a seed',
    mechanism='the accountant of a run',
    relation='which data are neighbours',
    account='noise multiplier, rate, number of steps of a run',
    pure_epsilon='nats, of releases without delta in a run',
)
PrivateSums = _promise(
    *('PrivateSums', 'private aggregation', 'privacy'),
    mu_encoder='sensitivity over noise, of the encoder',
    mu_aggregation='the same, of the sums',
    mu_head='the same, of the head',
    relation='which data are neighbours',
    form='withdraw, replace or either',
    max_degree='edges of a node; None without a limit',
    hops='sums of a release',
    receivers='nodes whose rows hold sums',
    rows='which rows may be published',
    raw_columns='whether the first columns are raw rows',
    predictions='whether weights and predictions are released',
    **_RELEASES,
)
PrivateLinks = _promise(
    *('PrivateLinks', 'private link prediction', 'privacy'),
    mu_parts='sensitivity over noise, of rows, count, scorer and others',
    relation='which data are neighbours',
    form='withdraw, replace or either',
    steps='noisy gradients of the scorer',
    **_RELEASES,
)
_REMOVED = {
    **_SPENT,
    'request': 'names of what was removed, by graph',
    'noise': 'output or objective',
    'residual': 'norm of the gradient, as measured',
    'bound': 'what counts as spent',
    'budget': 'what the bound may be',
    'distance_bound': 'of the weights to exact retraining',
    'release_std': 'deviation of the noise on a weight',
    'epsilon': 'nats, of this release',
    'epsilon_transcript': 'nats, of all releases since the fit',
    'lam': 'weight of the penalty',
    'history': 'what every release spent',
    'residual_checked': 'by what the residual was checked',
}
for _of, _rows in (('node', 'training nodes'), ('link', 'pairs')):
    _what = f'certified removal from a {_of} classifier', 'removal'
    _promise(
        *(f'{_of.title()}Removal', *_what),
        num_train=f'{_rows} that remain',
        setting='SHA-256 of propagation, head, penalty and noise',
        **_REMOVED,
    )
GraphRemoval = _promise(
    *('GraphRemoval', 'certified removal', 'removal'),
    num_graphs='training graphs that remain',
    releases='count, since the fit',
    **_REMOVED,
)
ShardRemoval = _promise(
    *('ShardRemoval', 'exact removal by shards', 'removal'),
    request='names of what was removed',
    secrets='where the keys of hashes come from',
    shards='numbers of those that were trained again',
    exact='whether the partition is that of what remains, too',
    exactness='what exact means for this partition',
    keeps_history='whether files of earlier states are kept',
    ledger_head='SHA-256 of the ledger',
)
CountRemoval = _promise(
    *('CountRemoval', 'exact removal from a recommender', 'removal'),
    request='names of what was removed',
    num_interactions='count, of those that remain',
    column_distance='of weights to exact ones; None of counts',
    ledger_head='SHA-256 of the ledger',
)
CoveredRemoval = _promise(
    *('CoveredRemoval', 'removal covered by privacy', 'removal'),
    relation='which data are neighbours',
    units='count, of what was removed since the release',
    mu='sensitivity over noise, of all of it',
    budget='mu that it may have',
    history='mu after every line of the ledger',
    **{**_SPENT, 'request': _REMOVED['request']},
)
ExactCertificate = _promise(
    *('ExactCertificate', 'robustness certificate', 'robustness'),
    targets='count',
    num_robust='targets that keep their class',
    num_broken='targets that do not have the defended class in some graph',
    num_unknown='all other targets',
    scenario='which edges may flip',
    undirected='whether both directions flip together',
    global_budget='flips in all; None without a limit',
    max_local_budget='flips at a node',
    sum_local_budget='flips at all nodes',
    num_nodes='count',
    fixed_edges='directed edges that never change',
    model_digest="SHA-256 of the model; '' of logits",
)
SmoothedCertificate = _promise(
    *('SmoothedCertificate', 'certificate by smoothing', 'robustness'),
    targets='count',
    task='nodes, graphs or pairs',
    confidence='probability',
    per='all or node: whose confidence it is',
    alpha='probability, that bounds of a target are wrong',
    look='the look at which sampling ended; 0 if it was fixed',
    num_samples='votes of a target',
    num_classes='count',
    num_abstained='targets without a class',
    classes='all or one: the classes that are bounded',
    tolerance='probability, taken off bounds',
    noise='the noise, as printed',
    flips='by kind: probability that a 0 is set, that a 1 is deleted',
    undirected='whether an edge is both directions',
    tallies='targets, votes: class, runner-up, others; zeros and ones',
    certified='targets that stay, by number of changes',
    answered='of these, targets that the classifier answers, too',
    seeded='whether the copies come from a seed',
)
CollectiveCertificate = _promise(
    'CollectiveCertificate',
    'collective certificate by smoothing',
    'robustness',
    num_targets='count',
    guaranteed='predictions that stay at once',
    counted='predictions with a class',
    one_by_one='predictions that stay by themselves',
    bound='predictions that break together, at most',
    edges='added, deleted',
    features='entries set, deleted',
    local_budget='changes of a kind in a row; None without a limit',
    attackers='nodes; None without a limit',
    hops='rounds of messages',
    degrees='whose degree weighs messages',
    confidence='probability, of all at once',
    seeded='whether the copies come from a seed',
)
RankCertificate = _promise(
    *('RankCertificate', 'certificate of ranks', 'robustness'),
    num_users='count',
    num_items='count, of all that are ranked',
    k='count, of places',
    num_kept='count, of items that stay in these places',
    num_lost='count, of items that do not in some graph',
    num_unknown='count, of all other items',
    ranks='worst rank, number of items that have it',
    num_flips='count, of undirected pairs that may flip',
    global_budget='count, of those that do at once',
    alpha='teleport probability',
    tolerance='scores that are closer count as equal',
)
VoteCertificate = _promise(
    *('VoteCertificate', 'certificate by division and voting', 'robustness'),
    targets='count',
    task='nodes or graphs',
    views='votes of a target',
    num_groups='groups of a division',
    by='which elements are divided',
    vote='majority or mean',
    tallies='targets, votes: class, best before, best after, others',
    certified='targets that stay, by changed views',
)
PoisonCertificate = _promise(
    'PoisonCertificate',
    'certificate against poisoning, by shards',
    'robustness',
    targets='count',
    num_shards='votes of a target',
    aggregator='majority or mean',
    inference='isolated or clean',
    tallies='targets, votes: class, runner-up, -1, others',
    certified='targets that stay, by changed shards',
)
Propagation = _promise(
    *('Propagation', 'propagation', 'accuracy'),
    read='the field that is propagated',
    written='the field that has the result',
    measure='the weights of the levels',
    levels='count',
    eps='error that a push may make; 0 if it is exact',
    half='whether levels are in float16',
    level_bound='error by cut levels; None if none is cut',
    standard_deviation='of an entry, at most; None if nothing is sampled',
)
Audit = _promise(
    *('Audit', 'audit of a removal', 'measurement'),
    request='names of what was removed',
    verdicts='tests, by verdict',
    tests='rows: statistic, value, interval, verdict',
    left_out='tests that were not run, and why',
)


def claim(procedure: str, values: Mapping[str, Any]) -> Any:
    """Build the claim of a procedure from the fields of a report, by name.

    Raises:
        ValueError: if the procedure is unknown, or a field is missing.
    """
    if procedure not in PROMISES:
        raise ValueError(f'{procedure!r} is no procedure of pyg_trust')
    kind = PROMISES[procedure]
    known = [each.name for each in fields(kind) if each.name != 'more']
    values = {**{name: '' for name in LATER if name in known}, **values}
    if missing := set(known) - set(values) - set(_COMMON):
        raise ValueError(f'the field {min(missing)!r} is missing')
    for each in fields(kind):
        unit = each.metadata.get('unit', '')
        if unit.startswith('whether') and type(values[each.name]) is not bool:
            raise ValueError(f'{each.name!r} needs to be true or false')
        if unit.startswith('count'):
            count(each.name, values[each.name])
    texts = [*values.get('notes', ()), *values.get('limits', ())]
    texts.append(values.get('vouched', ''))
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("'notes', 'limits' and 'vouched' need to be texts")
    more = {name: values[name] for name in values if name not in known}
    return kind(more=more, **{n: values[n] for n in known if n in values})


def values(made: Any) -> dict[str, Any]:
    """Return the fields of a claim as a report in JSON has them."""
    found = {name: vars(made)[name] for name in vars(made) if name != 'more'}
    return {**found, **made.more}


def visible(text: str) -> str:
    """Return one line, with escapes for signs that could forge a text."""
    if not isinstance(text, str):
        raise TypeError(
            f"'text' needs to be a str (got {type(text).__name__})"
        )
    return ''.join(
        sign if sign.isprintable() else sign.encode('unicode_escape').decode()
        for sign in ' '.join(text.split())
    )


def finite(value: Any) -> Any:
    """Return the plain value, with texts for NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def digest(fields: dict[str, Any]) -> str:
    """Digest a report's JSON by SHA-256, without the entry ``digest``."""
    rest = {name: fields[name] for name in fields if name != 'digest'}
    text = json.dumps(rest, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(text: str) -> Any:
    """Read JSON; refuse any that programs read differently.

    Raises:
        ValueError: if it is no JSON, an object has a name twice, or a number
            is none of JSON's (``NaN``, ``Infinity``) or too large (``1e999``).
    """
    if not isinstance(text, str):
        raise TypeError(
            f"'text' needs to be a str (got {type(text).__name__})"
        )
    return json.loads(
        text,
        object_pairs_hook=_each_once,
        parse_constant=_number,
        parse_float=_number,
    )


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f'the name {name!r} is there twice')
        made[name] = value
    return made


def _number(text: str) -> float:
    if not math.isfinite(made := float(text)):
        raise ValueError(f'{text} is no number of JSON')
    return made


def count(name: str, value: Any, least: int = 0) -> int:
    """Read an integer of at least ``least``."""
    if type(value) is not int or value < least:
        raise ValueError(f'{name!r} needs to be a count (got {value!r})')
    return value


def number(name: str, value: Any, *, above: float = -math.inf) -> float:
    """Read a finite number that exceeds ``above``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'{name!r} needs to be a number (got {value!r})')
    made = float(value)
    if not math.isfinite(made) or made <= above:
        raise ValueError(f'{name!r} needs to exceed {above:g} (got {value!r})')
    return made


def amount(name: str, value: Any) -> float:
    """Read a number that is not negative."""
    if number(name, value) < 0:
        raise ValueError(f'{name!r} needs to be at least 0 (got {value!r})')
    return float(value)


def same(one: Any, two: Any) -> bool:
    """Compare two numbers up to the rounding of a sum of doubles."""
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-300)
