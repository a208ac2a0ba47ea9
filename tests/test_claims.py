"""Claims: every field is declared once, and all else follows from it.

What a derived field has to be is computed here from the given ones by hand.
"""

import copy
import json
import math
import re

import jsonschema
import pytest
import torch
from auditing import forge, honest, judged, privacy, saved, written
from guarantees import MADE
from procedures import cycle
from scipy.stats import norm

from pyg_trust.certificates import BitFlips, ThreatModel, certify
from pyg_trust.check import FAILS, HOLDS, UNPROVED, check_report
from pyg_trust.nn import PPNP
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.report import TrustReport, schema
from pyg_trust.report.base import stated
from pyg_trust.transforms import AGP
from pyg_trust.verify import claims
from pyg_trust.verify.declare import misfit
from pyg_trust.verify.promises import PROMISES, REPORT, claim

OWN = 'UserCertificate'
NODES = 'ForgetReport, nodes'
GONE = object()


def test_the_schema_has_every_claim_and_accepts_every_report():
    assert {honest(name)['procedure'] for name in MADE} == set(PROMISES)
    check = jsonschema.Draft202012Validator(schema())
    check.check_schema(schema())
    for name in MADE:
        whole = {'guarantees': [honest(name)], 'schema_version': 4}
        whole['created'] = '2026-01-01T00:00:00+00:00'
        check.validate(whole)
        assert misfit(whole, REPORT) is None
        whole['guarantees'][0]['values']['more'] = 1
        assert not check.is_valid(whole)


def others(value):
    """Values of the same kind, and of others."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, 2 * value + 0.5, -value - 1, value + 2e-9)
        yield from (0, 10**400, math.nan, value / 2)
    elif isinstance(value, str):
        yield from (f'{value}x', '')
    elif isinstance(value, list):
        yield from ([*value, 'x'], value[:-1], [value])
    elif isinstance(value, dict):
        yield from ({**value, 'x': 1}, {}, {'x': value})
    yield from (None, 'x', True, 1, 0.5, [], {}, [[]], 'nan')


@pytest.mark.parametrize('name', [name for name in MADE if name != OWN])
def test_every_derived_field_that_is_altered_is_refused(tmp_path, name):
    each = honest(name)
    assert not judged(tmp_path, each)
    fields = PROMISES[each['procedure']].declared
    for field in fields:
        if fields[field].made is None:
            continue
        right = each['values'][field]
        for bad in (*others(right), GONE):
            lie = copy.deepcopy(each)
            lie['values'].pop(field)
            if bad is not GONE:
                if type(bad) is type(right) and bad == right:
                    continue
                if isinstance(bad, float) and not abs(bad) < math.inf:
                    continue
                lie['values'][field] = bad
            if isinstance(bad, int) and abs(bad) > 10**300:
                continue
            kind = claim(each['procedure'], each['values'])
            texts = [*kind.contradictions(lie['values'])]
            # A double may be off by its rounding.
            near = isinstance(right, float) and type(bad) in (int, float)
            near = near and math.isclose(bad, right, rel_tol=1e-9)
            said = any(text.startswith(field) for text in texts)
            assert said != near, (field, bad)
        # A checker says it.
        (text,) = judged(tmp_path, lie)
        assert f': {field}' in text


@pytest.mark.parametrize('name', [name for name in MADE if name != OWN])
def test_given_fields_have_the_type_of_the_schema(name):
    each = honest(name)
    kind = PROMISES[each['procedure']]
    for field, about in kind.declared.items():
        check = jsonschema.Draft202012Validator(about.form)
        right = each['values'][field]
        assert misfit(right, about.form) is None
        for bad in others(right):
            if isinstance(bad, float) and bad != bad:
                assert misfit(bad, about.form) is not None
                continue
            if isinstance(bad, int) and abs(bad) > 10**300:
                # A schema has no largest number; a double does.
                numbers = str(about.form).count("'number'")
                assert misfit(bad, about.form) is not None or not numbers
                continue
            # To JSON a whole double is an integer, to a report it is none.
            whole = isinstance(bad, float) and bad.is_integer()
            fits = misfit(bad, about.form) is None
            assert fits == check.is_valid(bad) or whole, (field, bad)
            if about.made is None and not fits:
                with pytest.raises(ValueError, match=re.escape(field)):
                    claim(each['procedure'], {**each['values'], field: bad})
        if about.made is None and about.default is ...:
            less = {k: v for k, v in each['values'].items() if k != field}
            with pytest.raises(ValueError, match=f"'{field}'.*missing"):
                claim(each['procedure'], less)


def gaussian_delta(mu, epsilon):
    """Delta of a Gaussian mechanism, by its closed form."""
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)


def test_derived_fields_are_what_they_are_by_hand():
    v = privacy(
        account=[[4.0, 0.05, 2], [4.0, 0.1, 3], [4.0, 0.05, 1]],
        max_grad_norm=0.5,
        history=[0.0, 1.5, 2.5],
    ).values
    assert v['steps'] == 6
    assert v['sample_rates'] == [[0.05, 3], [0.1, 3]]
    assert (v['epsilon'], v['sensitivity']) == (2.5, 1.0)
    assert v['noise_std'] == 2.0
    away = 'add-or-remove-one-graph'
    v = privacy(neighboring=away, units_per_row=3, clipping='adaptive').values
    assert v['sensitivity'] == 3.0
    assert v['noise_std'] is None
    v = forge(honest('AggregationReport'), noise_stds=[3.0, 4.0])['values']
    assert (v['num_sums'], v['rows']) == (2, 'all')
    assert v['sensitivity'] == pytest.approx(math.sqrt(2))
    v = forge(
        honest('AggregationReport'),
        **{
            'adjacency': 'node_incident',
            'neighboring': 'replace',
            'max_degree': 9,
        },
        **{'num_classes': 5, 'mu_encoder': 0.3, 'mu_aggregation': 0.4},
    )['values']
    # Two messages apart sqrt(2 C / (C - 1)), in nine sums.
    assert v['sensitivity'] == pytest.approx(3 * math.sqrt(2.5))
    assert (v['mu'], v['rows']) == (pytest.approx(0.5), 'others')
    v = forge(
        honest('LinkReport'),
        **{'row_std': 4.0, 'count_std': 8.0, 'noise_multiplier': 16.0},
        **{'steps': 4, 'mu_others': 0.5},
    )['values']
    parts = [math.sqrt(2) / 4, 1 / 8, 2 / 16, 0.5]
    assert v['mu_parts'] == pytest.approx(parts)
    assert v['mu'] == pytest.approx(math.hypot(*parts))
    node = {'bound': 6.0, 'lam': 0.5, 'num_train': 4, 'release_std': 2.0}
    v = forge(honest(NODES), **node, history=[0.5])
    assert v['values']['distance_bound'] == 3.0
    made = honest('ForgetReport, graphs')
    v = forge(made, bound=3.0, release_std=2.0)['values']
    assert v['distance_bound'] == 6.0
    covered = {'units': 3, 'mu_units': 1.0, 'shift': 2.0, 'mu_shift': 2.0}
    v = forge(honest('CoverageReport'), **covered)['values']
    assert v['mu'] == 5.0
    made = honest('ForgetReport, shards')
    v = forge(made, stages={'10': 0, '2': 3})['values']
    assert v['shards'] == [2, 10]
    v = forge(honest('Certificate'), targets=50, num_broken=1)['values']
    assert v['num_unknown'] == 50 - 1 - v['num_robust']
    for bound, most in ((2.5, 10), (2.0, 10), (2 - 1e-7, 10), (1.99, 11)):
        each = forge(honest('CollectiveCertificate'), bound=bound, counted=12)
        one = {'one_by_one': 0}
        assert forge(each, **one)['values']['guaranteed'] == most
    v = forge(honest('RankCertificate'), ranks=[[1, 4], [3, 2], [9, 6]], k=3)
    assert v['values']['num_kept'] == 6
    assert v['values']['num_unknown'] == 6 - v['values']['num_lost']
    v = forge(honest('VoteCertificate'), by='grid', num_groups=7)['values']
    assert v['views'] == 49


TRAINED = privacy()
# On a ledger others' releases count, too.
SHARED = {'ledger_head': 'a', 'noise_stds': [90.0], 'max_degree': 4}
INCIDENT = {**SHARED, 'adjacency': 'node_incident', 'neighboring': 'replace'}
NODE = {
    **SHARED,
    'adjacency': 'node',
    'neighboring': 'replace',
    'max_degree': 1,
}
# Given fields that contradict each other: promise, changes, which is said.
WRONG = [
    (TRAINED, {'mechanism': 'x'}, 'mechanism'),
    (TRAINED, {'sampling': 'poisson'}, 'sampling'),
    (TRAINED, {'mechanism': 'pld_poisson'}, 'sampling'),
    (TRAINED, {'neighboring': 'add-or-remove-one-graph'}, 'sampling'),
    (TRAINED, {'batch_size': 7, 'account': [[4.0, 0.3, 6]]}, 'batch_size'),
    (TRAINED, {'noise_multiplier': 9.0}, 'noise_multiplier'),
    (TRAINED, {'account': [[4.0, 0.05, 3], [5.0, 0.05, 3]]}, 'noise_mult'),
    (TRAINED, {'account': [[9.0, 1.0, 6]]}, 'noise_multiplier'),
    (TRAINED, {'checked': 'never'}, 'checked'),
    (TRAINED, {'checked': 'sampled (7 of 7)'}, 'checked'),
    (TRAINED, {'checked': 'sampled (0 of 3)'}, 'checked'),
    (TRAINED, {'checked': 'sampled (\u0663 of 3)'}, 'checked'),
    (TRAINED, {'units_per_row': 2}, 'units_per_row'),
    (TRAINED, {'unit': 'whole graphs'}, 'neighboring'),
    (TRAINED, {'persons': {'joint': []}}, 'persons'),
    (TRAINED, {'history': [0.0, 2.0, 1.0]}, 'history'),
    ('AggregationReport', {'neighboring': 'add_remove'}, 'neighboring'),
    ('AggregationReport', {'max_degree': 3}, 'max_degree'),
    ('AggregationReport', {'num_classes': 3}, 'num_classes'),
    ('AggregationReport', {'receivers': 21}, 'receivers'),
    ('AggregationReport', {'releases': 2}, 'mu_aggregation'),
    ('AggregationReport', {'mu_head': 0.1}, 'releases'),
    ('AggregationReport', {'noise_stds': []}, 'releases'),
    ('AggregationReport', {'noise_stds': [1.0]}, 'mu_aggregation'),
    ('AggregationReport', {'mu_aggregation': 0.1}, 'mu_aggregation'),
    (
        'AggregationReport',
        {'mu_aggregation': 0.1, 'releases': 9, 'ledger_head': 'a'},
        'mu_aggregation',
    ),
    ('AggregationReport', {'rho': 0.1}, 'mu_aggregation'),
    ('AggregationReport', {'epsilon_replace': 9.0}, 'epsilon_replace'),
    ('AggregationReport', {'degree_curve': [[1, 9.0]]}, 'degree_curve'),
    ('AggregationReport', INCIDENT, 'degree_curve'),
    ('AggregationReport', NODE, 'mu_edge'),
    ('AggregationReport', {**NODE, 'mu_edge': 0.01}, 'mu_edge'),
    ('ItemReport', {'epsilon_replace': None}, 'epsilon_replace'),
    ('ItemReport', {'epsilon_replace': 1.5}, 'degree_curve, epsilon_replace'),
    ('LinkReport', {'count_std': None}, 'count_std'),
    ('LinkReport', {'releases': 4}, 'releases'),
    ('LinkReport', {'mu_others': 0.1}, 'releases'),
    ('LinkReport, nodes', {'neighboring': 'either'}, 'neighboring'),
    (NODES, {'release_std': 0.0}, 'release_std'),
    (NODES, {'residual': 1.0}, 'residual'),
    (NODES, {'history': [0.01, 0.001]}, 'history'),
    ('ForgetReport, graphs', {'residual': 2e-10}, 'residual'),
    ('ForgetReport, counts', {'residual_bound': 0.1}, 'residual_bound'),
    ('ForgetReport, closed form', {'residual_bound': 1.0}, 'column_dist'),
    ('CoverageReport', {'history': [0.0, 1.0]}, 'history'),
    ('CoverageReport', {'budget': 0.1}, 'budget'),
    ('Certificate', {'targets': 11}, 'num_unknown'),
    ('CollectiveCertificate', {'num_targets': 11}, 'counted'),
    ('RankCertificate', {'num_users': 3}, 'ranks'),
    ('RankCertificate', {'ranks': [[4, 2], [4, 4]]}, 'ranks'),
    ('RankCertificate', {'num_items': 4}, 'ranks'),
    ('AGP, cut', {'level_tol': None}, 'level_bound'),
    ('AGP, cut', {'level_tol': 0.01}, 'level_bound'),
    ('AGP, sampled', {'standard_deviation': None}, 'standard_deviation'),
    ('AGP, exact', {'level_bound': 0.1}, 'level_bound'),
]


@pytest.mark.parametrize(('promise', 'changes', 'said'), WRONG, ids=str)
def test_given_fields_that_contradict_each_other_are_refused(
    tmp_path, promise, changes, said
):
    whole = promise
    if isinstance(promise, str):
        each = honest(promise)
    else:
        saved(tmp_path, whole)
        text = (tmp_path / 'trust.json').read_text()
        (each,) = json.loads(text)['guarantees']
    lie = forge(each, **changes)
    texts = judged(tmp_path, lie)
    assert any(f': {said}' in text for text in texts), texts
    # Whoever makes a report is told, too; whoever vouches is believed.
    with pytest.raises(ValueError, match=f'contradicts itself: {said}'):
        stated(each['procedure'], lie['values'])
    if said != 'num_unknown':
        trusted = forge(lie, vouched='me')
        assert not any(f': {said}' in t for t in judged(tmp_path, trusted))


@pytest.mark.parametrize('name', MADE)
def test_sentences_and_budgets_are_those_of_the_fields(tmp_path, name):
    each = honest(name)
    for part, bad in (
        ('promise', each['promise'] + ', for ever'),
        ('assumptions', each['assumptions'][1:]),
        ('assumptions', [*each['assumptions'], 'more']),
        ('not_covered', []),
        ('kind', 'other'),
        ('spent', {'epsilon': 0.0}),
        ('budget', {'mu': 1e6}),
        ('history', {'epsilon': [0.0]}),
    ):
        if each[part] == bad:
            continue
        lie = {**each, part: bad}
        if part in ('spent', 'budget'):
            lie |= dict.fromkeys(('spent', 'budget'), bad)
        texts = judged(tmp_path, lie)
        assert any('is not what its fields make' in t for t in texts), part


@pytest.mark.parametrize('epsilon', [2.0, 2.0004, 7.00001, 1234.5, 1e-9, 0.0])
def test_no_sentence_promises_less_than_its_fields(epsilon):
    # 2.0004 is no epsilon of 2, and a confidence of .9999999 is none of 1.
    changes = {'epsilon': epsilon, 'delta': 1.0000004e-5}
    changes['confidence'], tried = 0.9999999, 0
    for name in MADE:
        each = honest(name)
        mine = {k: v for k, v in changes.items() if k in each['values']}
        if 'epsilon' in mine and 'account' in each['values']:
            mine['history'] = [0.0, epsilon]
        said = forge(each, **mine)['promise']
        if 'epsilon' in mine:
            pairs = re.findall(r'\(([\d.e+-]+), ([\d.e+-]+)\)', said)
            assert pairs[0] == (f'{float(pairs[0][0]):.4g}', '1.00001e-05')
            assert epsilon <= float(pairs[0][0]) <= 1.001 * epsilon
        elif 'confidence' in mine:
            assert 'with confidence 0.999999' in said
        tried += bool(mine)
    assert tried > 10


def test_a_relation_of_somebody_who_may_be_away_is_said():
    away = {'mechanism': 'pld_poisson', 'sampling': 'poisson'}
    persons = {'declared_public': ['item'], 'public_edges': [], 'joint': []}
    for relation, words in (
        ('replace-one-graph', 'one graph: its nodes, edges, features'),
        ('add-or-remove-one-graph', 'and in whether it is there'),
        ('replace-one-person', 'one person: all rows that it owns'),
        ('replace-contents-of-one-person', 'not with whom it shares them'),
    ):
        made = privacy(neighboring=relation, **away, persons=persons)
        assert words in made.promise
        known = 'DECLARED PUBLIC: item' in made.not_covered
        assert known == relation.endswith('person')
    assert 'NOT CHECKED' not in str(privacy())
    assert 'as says me' in privacy(vouched='me').promise


# Fields are data #############################################################


def graph_of_many_classes():
    data = cycle(1500)
    data.y = torch.arange(1500)
    return data


def test_reports_of_many_classes_hold(tmp_path):
    model = PrivateNodeClassifier(
        'node',
        epsilon=8.0,
        delta=1e-5,
        neighboring='replace',
        num_classes=1500,
        K=1,
        epochs=1,
        steps=1,
    ).fit(graph_of_many_classes())
    report = model.report()
    moved = math.sqrt(2 * 1500 / 1499)
    assert report.sensitivity == pytest.approx(moved)
    found = check_report(saved(tmp_path, report))
    assert {each.status for each in found} == {HOLDS}


def test_a_text_of_the_user_is_no_field(tmp_path):
    class Threat(ThreatModel):
        def __repr__(self):
            return 'Threat(additions, my own, undirected)'

    class Noise(BitFlips):
        def __repr__(self):
            return 'my noise'

    class Model(PPNP):
        def __repr__(self):
            return 'my model'

    torch.manual_seed(0)
    data = cycle(12)
    model = Model(torch.nn.Linear(5, 3), alpha=0.2).eval()
    reports = [
        certify(model, data, Threat(data, 'removals', local_budget=1)),
        certify(model, data, Noise(edges=(0.0, 0.3)), num_samples=100),
    ]
    data['half=True'] = data.x
    transform = AGP('appnp', alpha=0.2, attr='half=True', out='seed=3')
    reports.append(transform.guarantee(data))
    assert not [
        each.text
        for each in check_report(saved(tmp_path, *reports))
        if each.status == FAILS
    ]


def test_reports_of_older_layouts_are_read_and_not_proved(tmp_path):
    each = honest('AggregationReport')
    each['values']['epsilon'] = 0.1
    names = {'data_sha256': 'data', 'weights_sha256': 'model'}
    old = {names.get(name, name): value for name, value in each.items()}
    for layout in (1, 2, 3):
        path = written(tmp_path, old, schema_version=layout)
        (found,) = check_report(path)
        assert found.status == UNPROVED
        assert f'layout {layout}: make it again' in found.text
        assert TrustReport.load(path).guarantees[0].values['epsilon'] == 0.1
    path = written(tmp_path, each, schema_version=5)
    with pytest.raises(ValueError, match='schema_version'):
        check_report(path)


# Numbers, texts and JSON #####################################################


def test_json_is_read_in_one_way_alone():
    assert claims.read_json('{"a": [1, 2.5, "x", null]}') == {
        'a': [1, 2.5, 'x', None]
    }
    for text, said in (
        ('{"a": 1, "a": 2}', 'twice'),
        ('NaN', 'no number'),
        ('[-Infinity]', 'no number'),
        ('1e999', 'no number'),
        ('{', 'Expecting'),
    ):
        with pytest.raises(ValueError, match=said):
            claims.read_json(text)
    with pytest.raises(TypeError, match="'text'"):
        claims.read_json(b'{}')


def test_numbers_are_finite_and_amounts_not_negative():
    assert claims.number('a', 2) == 2.0
    for bad in (True, '2', None, math.inf, math.nan, 0.0, -1):
        with pytest.raises(ValueError, match="'a'"):
            claims.number('a', bad, above=0.0)
    assert claims.amount('a', 0) == 0.0
    with pytest.raises(ValueError, match="'a'"):
        claims.amount('a', -1e-9)


def test_digits_are_rounded_to_where_less_is_promised():
    for value, digits, up, text in (
        (2.0004, 4, True, '2.001'),
        (2.0, 4, True, '2'),
        (0.9999999, 6, False, '0.999999'),
        (1.0000004e-5, 6, True, '1.00001e-05'),
        (0.0, 4, True, '0'),
        (-0.0, 4, True, '0'),
        (math.inf, 4, True, 'inf'),
    ):
        assert claims.outwards(value, digits, up) == text
    with pytest.raises(TypeError):
        claims.outwards('2.0')


def test_texts_are_one_visible_line_and_a_digest_is_of_all_else():
    assert claims.visible('a\n b\x1b\u202e') == 'a b\\x1b\\u202e'
    assert claims.finite({'a': (math.inf, 1.5)}) == {'a': ['inf', 1.5]}
    whole = {'a': 1, 'b': [2]}
    made = claims.digest(whole)
    assert claims.digest({**whole, 'digest': 'x'}) == made
    assert claims.digest({**whole, 'a': 2}) != made


def test_epsilon_of_a_release_is_that_of_its_mu():
    # The closed form here, by scipy, and the one that claims rest on.
    for mu in (0.1, 0.5, 2.0):
        epsilon = gaussian_epsilon(mu, 1e-5)
        assert gaussian_delta(mu, epsilon) == pytest.approx(1e-5, rel=1e-6)
