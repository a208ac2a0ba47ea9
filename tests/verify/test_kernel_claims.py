"""Claims and their sentences: of fields that are written out by hand."""

import hashlib
import json
import math
from fractions import Fraction

import pytest

from pyg_trust.verify import claims, sentences
from pyg_trust.verify.claims import PROMISES, claim
from pyg_trust.verify.sentences import words


def made(procedure, **values):
    """A claim in which every field that is not given is none."""
    known = PROMISES[procedure].__dataclass_fields__
    empty = {
        name: 1
        if each.metadata['unit'].startswith('count')
        else False
        if each.metadata['unit'].startswith('whether')
        else None
        for name, each in known.items()
        if each.metadata
    }
    return claim(procedure, {**empty, **values})


@pytest.mark.parametrize('least', [0, 1, 5])
def test_a_count_is_an_integer_from_the_least_on(least):
    assert claims.count('n', least, least) == least
    assert claims.count('n', 0) == 0
    for bad in (least - 1, True, float(least), None, '1'):
        with pytest.raises(ValueError, match="'n' needs to be a count"):
            claims.count('n', bad, least)
    with pytest.raises(ValueError, match="'n' needs to be a count"):
        claims.count('n', -1)


def test_a_number_is_finite_and_above_and_an_amount_not_negative():
    assert claims.number('x', 3) == 3.0
    assert type(claims.number('x', 3)) is float
    assert claims.number('x', -1e300) == -1e300
    assert claims.number('x', 5e-324, above=0.0) == 5e-324
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match="'x' needs to exceed 0"):
            claims.number('x', bad, above=0.0)
    for bad in (math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match="'x' needs to exceed"):
            claims.number('x', bad)
    for bad in (True, None, '1', [1.0]):
        with pytest.raises(ValueError, match="'x' needs to be a number"):
            claims.number('x', bad)
    assert claims.amount('x', 0) == 0.0
    assert claims.amount('x', 0.5) == 0.5
    for bad in (-5e-324, -1):
        with pytest.raises(ValueError, match="'x' needs to be at least 0"):
            claims.amount('x', bad)


def test_numbers_are_the_same_up_to_a_billionth():
    assert claims.same(1.0, 1 + 0.9e-9)
    assert not claims.same(1.0, 1 + 1.1e-9)
    assert claims.same(0.0, 0.9e-300)
    assert not claims.same(0.0, 1.1e-300)


def test_the_digest_is_of_all_but_itself():
    whole = {'b': [1, 2.5], 'a': None, 'digest': 'x'}
    text = b'{"a": null, "b": [1, 2.5]}'
    assert claims.digest(whole) == hashlib.sha256(text).hexdigest()
    with pytest.raises(ValueError, match='JSON'):
        claims.digest({'a': math.nan})


def test_json_is_read_in_one_way_alone():
    assert claims.read_json('{"a": [1, 2.5e3], "b": {"a": 1}}') == {
        'a': [1, 2500.0],
        'b': {'a': 1},
    }
    for text, match in (
        ('{"a": 1, "a": 1}', "'a' is there twice"),
        ('[NaN]', 'NaN is no number'),
        ('[-Infinity]', '-Infinity is no number'),
        ('[1e999]', '1e999 is no number'),
    ):
        with pytest.raises(ValueError, match=match):
            claims.read_json(text)
    with pytest.raises(TypeError, match="'text' needs to be a str"):
        claims.read_json(b'{}')


def test_texts_are_visible_and_numbers_are_of_json():
    assert claims.visible(' a\n b\x1b\u202e\u00e9 ') == 'a b\\x1b\\u202e\u00e9'
    with pytest.raises(TypeError, match=r'a str \(got int\)'):
        claims.visible(1)
    bad = {'a': [math.inf, (math.nan, 1.5)], 'b': {'c': -math.inf}, 'd': 2}
    assert claims.finite(bad) == {
        'a': ['inf', ['nan', 1.5]],
        'b': {'c': '-inf'},
        'd': 2,
    }


def test_a_claim_has_its_fields_and_the_others_as_settings():
    one = made('exact removal from a recommender', num_interactions=3, own=4)
    assert (one.num_interactions, one.more) == (3, {'own': 4})
    with pytest.raises(AttributeError):
        one.num_interactions = 4
    assert (one.kind, one.notes, one.limits, one.vouched) == (
        'removal',
        (),
        (),
        '',
    )
    assert claims.values(one) == {
        'request': None,
        'num_interactions': 3,
        'column_distance': None,
        'ledger_head': None,
        'notes': (),
        'limits': (),
        'vouched': '',
        'own': 4,
    }
    name = 'exact removal by shards'
    for changes, match in (
        ({'exact': 1}, "'exact' needs to be true or false"),
        ({'notes': [1]}, 'need to be texts'),
        ({'limits': [None]}, 'need to be texts'),
        ({'vouched': None}, 'need to be texts'),
    ):
        with pytest.raises(ValueError, match=match):
            made(name, **changes)
    with pytest.raises(ValueError, match="'num_interactions' needs to be a c"):
        made('exact removal from a recommender', num_interactions=-1)
    with pytest.raises(ValueError, match="'x' is no procedure"):
        claim('x', {})
    with pytest.raises(ValueError, match="'column_distance' is missing"):
        claim('exact removal from a recommender', {})
    old = made('private training')
    assert (old.checked, old.arithmetic) == (None, None)
    less = dict(claims.values(old))
    del less['checked'], less['arithmetic']
    assert claim('private training', less).checked == ''
    assert not hasattr(one, 'checked')


def test_digits_are_rounded_to_where_less_is_promised():
    assert sentences.outwards(2.00001) == '2.001'
    assert sentences.outwards(2.00001, up=False) == '2'
    assert sentences.outwards(0.9999999, 6, False) == '0.999999'
    assert sentences.outwards(1.2341, 3) == '1.24'
    assert sentences.outwards(3) == '3'
    assert sentences.outwards(-0.0) == '0'
    assert sentences.outwards(1234.5678) == '1235'
    for value in (1e-7, 0.1, 1 / 3, 12345.6):
        up, down = (
            Fraction(sentences.outwards(value, 4, way))
            for way in (True, False)
        )
        assert down <= Fraction(repr(value)) <= up
        assert up - down <= up / 1000
    with pytest.raises(TypeError):
        sentences.outwards('2.0')


def settings_of(one):
    (text,) = [t for t in words(one).assumptions if sentences.ALONE in t]
    return text


def test_settings_name_every_field_once():
    name = 'exact removal by shards'
    text = settings_of(
        made(
            name,
            shards=[1],
            stages={'1': 0},
            own='a' * 64,
            longer='a' * 65,
            to={'b': 1, 'a': 2},
        )
    )
    long = hashlib.sha256(json.dumps('a' * 65).encode()).hexdigest()[:16]
    alone = sentences.ALONE
    start = f'settings: shards [1], stages {{"1": 0}}; {alone}: '
    assert text == start + ', '.join(
        (
            'exact false',
            'exactness null',
            'keeps_history false',
            'ledger_head null',
            f'longer SHA-256 {long}',
            f'own "{"a" * 64}"',
            'secrets null',
            'to {"a": 2, "b": 1}',
        )
    )
    text = settings_of(made('exact removal from a recommender'))
    known = 'column_distance null, ledger_head null, num_interactions 1'
    assert text == f'settings: {alone}: {known}'
    # A field that old reports have not is left out where it is empty.
    fields = {'epsilon': 1.0, 'delta': 1e-5}
    for checked, there in (('', False), ('not', True)):
        one = made('private training', checked=checked, **fields)
        assert ('checked "' in settings_of(one)) == there


TRAINED = {'epsilon': 1.0, 'delta': 1e-5, 'steps': 3, 'checked': ''}
REMOVED = {
    'epsilon': 1.0,
    'delta': 1e-4,
    'epsilon_transcript': 2.0,
    'residual_checked': 'by hand',
    'bound': 0.5,
    'budget': 4.0,
}
SUMS = {
    'epsilon': 1.0,
    'delta': 1e-3,
    'relation': 'node',
    'form': 'withdraw',
    'num_nodes': 1234,
    'hops': 1,
    'rows': 'all',
}
SMOOTHED = {
    'targets': 9,
    'task': 'nodes',
    'confidence': 0.99,
    'alpha': 0.25,
    'per': 'all',
    'flips': {'edges': [0.0, 0.1]},
    'certified': {
        'edges_added_1_deleted_2': 7,
        'features_added_0_deleted_3': 5,
    },
    'answered': {'edges_added_1': 4},
}
EXACT = {
    'targets': 12,
    'num_robust': 10,
    'max_local_budget': 1,
    'model_digest': 'a',
    'scenario': 'removals',
    'sum_local_budget': 5,
    'num_nodes': 6,
}
AGP = {
    'read': 'x',
    'written': 'z',
    'measure': 'ppr',
    'eps': 0.0,
    'levels': 4,
}
ROWS = [
    {'test': 'a', 'verdict': 'failed'},
    {'test': 'b', 'verdict': 'no power'},
    {'test': 'c', 'verdict': 'no power'},
]
TRAIN, SUM = 'private training', 'private aggregation'
NODE, GRAPH = (
    'certified removal from a node classifier',
    'certified removal',
)
SHARDS, ALL = 'exact removal by shards', 'collective certificate by smoothing'
POISON = 'certificate against poisoning, by shards'
VOTES = 'certificate by division and voting'
VOTED = {'views': 5, 'targets': 3, 'task': 'nodes', 'certified': {'1': 2}}
COLLECTED = {
    'num_targets': 9,
    'guaranteed': 4,
    'edges': [1, 2],
    'features': [3, 4],
    'confidence': 0.99,
}


@pytest.mark.parametrize(
    ('name', 'values', 'there', 'absent'),
    [
        (
            TRAIN,
            {**TRAINED, 'relation': 'replace-one-feature-row'},
            [
                'after each of 3 steps',
                "any one node's features",
                'are (1, 1e-05)-',
                'without a ledger',
                'predictions, which read',
            ],
            [
                'in exact arithmetic',
                'run alone',
                'how many graphs',
                'the rate, ',
            ],
        ),
        (
            TRAIN,
            {**TRAINED, 'relation': 'replace-one-graph', 'ledger_head': 'a'},
            ['graph: its nodes', 'how many graphs', 'the ledger is the only'],
            [
                'and in whether',
                'the rate, ',
                'predictions, which',
                'without a l',
            ],
        ),
        (
            TRAIN,
            {**TRAINED, 'relation': 'add-or-remove-one-graph'},
            ['graph, and in whether it is there', 'the rate, and'],
            ['graph: its nodes', 'how many graphs', 'predictions, which'],
        ),
        (
            TRAIN,
            {**TRAINED, 'checked': 'always', 'arithmetic': 'exact'},
            [
                'in exact arithmetic',
                'one that the model runs on alone (sampled): always',
            ],
            [],
        ),
        (
            TRAIN,
            {**TRAINED, 'checked': 'always', 'arithmetic': 'float'},
            ['(sampled): always'],
            ['in exact arithmetic'],
        ),
        (
            TRAIN,
            {**TRAINED, 'arithmetic': 'exact'},
            [],
            ['in exact', 'run al'],
        ),
        (
            TRAIN,
            {**TRAINED, 'seeded': True, 'vouched': 'me'},
            ['with secret noise, the weights', 'as says me'],
            ['NOT CHECKED', 'flatter'],
        ),
        (
            SUM,
            SUMS,
            [
                'sums of 1 hop over 1,234 nodes are',
                'against a blank',
                'without a ledger',
            ],
            ['every prediction', 'raw rows', "a node's own row"],
        ),
        (
            SUM,
            {**SUMS, 'hops': 2, 'predictions': True, 'raw_columns': True},
            [
                '2 hops over',
                'every prediction for others, together, are',
                'raw rows',
            ],
            [],
        ),
        (
            SUM,
            {
                **SUMS,
                'relation': 'edge',
                'predictions': True,
                'raw_columns': True,
            },
            ['every prediction, together', 'undirected edge, there or not'],
            ['for others', 'raw rows', 'against'],
        ),
        (
            SUM,
            {**SUMS, 'relation': 'edge', 'directed': True, 'ledger_head': 'a'},
            ['one arc, there or not', 'the ledger is the only'],
            ['undirected edge', 'without a ledger'],
        ),
        (
            SUM,
            {
                **SUMS,
                'relation': 'feature',
                'form': 'replace',
                'rows': 'others',
            },
            [
                'sums of a linear propagation',
                'against any other',
                "a node's own row",
            ],
            [' hop', 'a blank'],
        ),
        (
            SUM,
            {**SUMS, 'relation': 'node_incident', 'max_degree': 7},
            ['up to 7 of them'],
            [],
        ),
        (
            NODE,
            {**REMOVED, 'noise': 'output'},
            [
                'all releases since the fit together (2, 0.0001)',
                'by hand',
                'copies of what was removed in other nodes',
                'fresh',
            ],
            ['Theorem 3'],
        ),
        (
            NODE,
            {**REMOVED, 'noise': 'objective'},
            ['if Theorem 3', '690 times'],
            ['together (2', 'is fresh'],
        ),
        (
            GRAPH,
            {**REMOVED, 'noise': 'output', 'releases': 3},
            ['all 3 releases since'],
            ['in other nodes'],
        ),
        (
            SHARDS,
            {'secrets': sentences.FROM_SYSTEM, 'exact': True},
            ['what was removed: None'],
            ['keys come from', 'but for the partition', 'purge()'],
        ),
        (
            SHARDS,
            {'secrets': 'a seed', 'keeps_history': True},
            ['a seed; models', 'removed, but for the partition: ', 'purge()'],
            [],
        ),
        (
            SHARDS,
            {'vouched': 'me', 'secrets': 'a', 'notes': ['n'], 'limits': ['l']},
            ['as says me: a; models', 'NOT CHECKED: me'],
            [', as says'],
        ),
        (
            'exact removal from a recommender',
            {'num_interactions': 1234},
            [
                '1,234 interactions',
                'settings that were chosen',
                'a later fit',
                'the pair of a release',
                'what earlier releases',
            ],
            ['releases of copies and forks', 'reports, ledgers'],
        ),
        (
            'robustness certificate',
            EXACT,
            [
                'graph that the local budgets allow',
                'at most 1 flip at a node',
                'each direction by itself',
                'what the model reads beside',
            ],
            ['flips in all', '1 flips'],
        ),
        (
            'robustness certificate',
            {
                **EXACT,
                'global_budget': 0,
                'undirected': True,
                'max_local_budget': 2,
                'model_digest': '',
            },
            [
                'and 0 undirected flips in all',
                'at most 2 flips at a node',
                'both directions together',
            ],
            ['what the model reads'],
        ),
        (
            'robustness certificate',
            {**EXACT, 'global_budget': 3},
            ['and 3 directed flips in all'],
            ['undirected flips'],
        ),
        (
            'certificate by smoothing',
            SMOOTHED,
            [
                '7 for up to 1 added and 2 deleted edges; 5 for up to 0 added '
                'and 3 deleted entries of the features; with confidence 0.99, '
                'all together',
                '(4 at edges added 1 also have an answer',
                'with probability 0.75 at least',
                'changes of the features',
            ],
            [
                'by itself',
                'undirected edges',
                'changes of the edges',
                'flatter',
            ],
        ),
        (
            'certificate by smoothing',
            {
                **SMOOTHED,
                'answered': {},
                'per': 'node',
                'undirected': True,
                'flips': {'features': 1},
                'seeded': True,
            },
            [
                'deleted undirected edges',
                'each of them by itself',
                'flatter',
                'with secret copies, the smoothed',
                'changes of the edges',
            ],
            [
                'have an answer',
                'all together',
                'changes of the features',
                'secret noise',
            ],
        ),
        (
            'certificate by smoothing',
            {**SMOOTHED, 'alpha': 4e-7, 'confidence': 1 - 4e-7},
            ['probability 0.999999 at least', 'confidence 0.999999, '],
            [],
        ),
        (
            ALL,
            {**COLLECTED, 'confidence': 1 - 4e-7},
            [
                'up to 1 added and 2 deleted undirected edges, 3 added',
                ' undirected edges, 3 added and 4 deleted ',
                'entries of the features together, with confidence 0.999999',
            ],
            ['of at most', 'in one row'],
        ),
        (
            ALL,
            {**COLLECTED, 'attackers': 0, 'local_budget': 0},
            ['of at most 0 nodes, at most 0 of a kind in one row, together'],
            [],
        ),
        (
            VOTES,
            {**VOTED, 'by': 'grid'},
            ['changed views: 2 at 1; one', 'or a row or column of them'],
            ['changes of edges'],
        ),
        (
            VOTES,
            {**VOTED, 'by': 'features'},
            ['changes of edges'],
            ['a row or'],
        ),
        (
            POISON,
            {'certified': {'1': 4}, 'inference': 'isolated'},
            [
                'in training and at inference (',
                '4 if 1 do',
                'of isolated inference',
                "the target's own features",
            ],
            ['changes of the graph at inference'],
        ),
        (
            POISON,
            {'certified': {}, 'inference': 'clean'},
            ['do in training (', 'changes of the graph at inference'],
            ['of isolated inference', "the target's own features"],
        ),
        (
            'propagation',
            {**AGP, 'measure': 'Measure(ppr, a=0.5, b=0, levels=9)'},
            ["propagated by 'ppr' in 9 steps (a=0.5, b=0), up to round"],
            ['Measure', 'levels='],
        ),
        (
            'propagation',
            AGP,
            ["'z' holds 'x' propagated by ppr, up to rounding", 'after 4 lev'],
            [
                'float16',
                'on average',
                'to within',
                'the seed does not',
                'rounding ',
            ],
        ),
        (
            'propagation',
            {**AGP, 'half': True, 'level_bound': 0.12301},
            ['rounding (levels in float16) and to within 0.124 times'],
            ['on average'],
        ),
        (
            'propagation',
            {
                **AGP,
                'eps': 0.5,
                'standard_deviation': 0.0,
                'level_bound': None,
            },
            ['right on average', 'deviation above 0', 'the seed does not'],
            ['up to rounding', 'to within'],
        ),
        (
            'propagation',
            {**AGP, 'eps': 0.5, 'standard_deviation': 0.12301},
            ['deviation above 0.124'],
            [],
        ),
        (
            'audit of a removal',
            {'tests': ROWS, 'left_out': ['other: why']},
            [
                '1 of 3 tests found a trace of what was removed (a); ',
                '(a); 2 of 3 tests could not have found a trace (b, c)',
                'other: why',
            ],
            ['found no trace', 'by design'],
        ),
    ],
)
def test_what_a_promise_says(name, values, there, absent):
    told = words(made(name, **values))
    said = (t for t in told.assumptions if sentences.ALONE not in t)
    text = ' | '.join((told.promise, *said, *told.not_covered))
    for part in there:
        assert part in text
    for part in absent:
        if part == 'rounding ':
            assert told.promise.endswith('rounding')
        else:
            assert part not in text
    copies = told.promise.startswith(sentences.SEEDED_COPIES)
    assert copies == ('flatter' in there)
    first = values.get('seeded') and PROMISES[name].kind != 'robustness'
    assert (told.assumptions[0] == sentences.SEEDED) == bool(first)
    assert set(values.get('notes', ())) <= {*told.assumptions}
    assert set(values.get('limits', ())) <= {*told.not_covered}


@pytest.mark.parametrize(
    ('name', 'values', 'spent', 'budget'),
    [
        (TRAIN, TRAINED, {'epsilon': 1.0}, {'epsilon': math.inf}),
        (
            SUM,
            {**SUMS, 'target_epsilon': 0.0},
            {'epsilon': 1.0},
            {'epsilon': 0.0},
        ),
        (
            'search for settings of private training',
            TRAINED,
            {'epsilon': 1.0},
            {'epsilon': math.inf},
        ),
        (
            GRAPH,
            {**REMOVED, 'noise': 'output'},
            {'shift over noise': 0.5},
            {'shift over noise': 4.0},
        ),
        (
            GRAPH,
            {**REMOVED, 'noise': 'objective'},
            {'gradient residual': 0.5},
            {'gradient residual': 4.0},
        ),
        (
            NODE,
            {**REMOVED, 'noise': 'output'},
            {'gradient residual': 0.5},
            {'gradient residual': 4.0},
        ),
        (VOTES, {**VOTED, 'by': 'nodes'}, {}, {}),
    ],
)
def test_what_a_promise_spends(name, values, spent, budget):
    told = words(made(name, **values))
    assert (told.spent, told.budget) == (spent, budget)
