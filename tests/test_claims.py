"""Claims: no field can be changed without a sentence, and none is unread."""

import copy
import json
import re

import pytest
import torch
from auditing import forged, reworded
from guarantees import MADE
from jsonschema import validate
from procedures import Private, cycle

from pyg_trust.check import FAILS, HOLDS, UNPROVED, check_report
from pyg_trust.privacy import (
    AdaptiveNorm,
    PrivateNodeClassifier,
)
from pyg_trust.report import TrustReport, schema
from pyg_trust.transforms import PrivateAGP
from pyg_trust.verify import claims, fields
from pyg_trust.verify.fields import confirmed
from pyg_trust.verify.sentences import ALONE, words

PROCEDURES = {
    'CoverageReport',
    'AggregationReport',
    'LinkReport',
    'LinkReport, nodes',
    'AGP, cut',
    'AGP, sampled',
    'Certificate, global',
    'UserCertificate',
    'SmoothedCertificate',
    'CollectiveCertificate',
    'RankCertificate',
    'VoteCertificate',
    'PrivacyReport',
    'SearchReport',
    'NodeUnlearnReport',
    'LinkUnlearnReport',
    'UnlearnReport',
    'RecommenderReport',
    'ShardRemovalReport',
    'PoisonCertificate',
    'RemovalAudit',
}


@pytest.fixture(scope='module')
def complete(tmp_path_factory):
    """A report of every promise, as JSON."""
    folder = tmp_path_factory.mktemp('complete')
    reports = [MADE[name](folder)[0] for name in sorted(PROCEDURES)]
    text = TrustReport.of(*reports).to_json()
    return lambda: json.loads(text)


def test_the_report_has_every_promise(complete):
    found = {each['procedure'] for each in complete()['guarantees']}
    assert found == set(claims.PROMISES)
    validate(complete(), schema())


def hostile(value):
    """Values of the same kind that promise more, and of no kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 0) if value else 7]
    if isinstance(value, float):
        return [value / 2 if value else 1e-9, 2 * value or 1.0]
    if isinstance(value, str):
        return [value + 'x', '' if value else 'x']
    if isinstance(value, list):
        return [value[:-1], [*value, 'x']] if value else [['x']]
    if isinstance(value, dict):
        return [{}] if value else [{'x': 1}]
    return [0, 'x']


def changed(whole):
    """The report with one field of one claim changed, one at a time."""
    for number, each in enumerate(whole['guarantees']):
        for name, value in each['values'].items():
            for bad in hostile(value):
                made = copy.deepcopy(whole)
                made['guarantees'] = [made['guarantees'][number]]
                made['guarantees'][0]['values'][name] = bad
                yield f'{each["procedure"]}: {name} = {bad!r}', made
        for name in ('promise', 'assumptions', 'not_covered', 'kind'):
            for bad in hostile(each[name]):
                made = copy.deepcopy(whole)
                made['guarantees'] = [made['guarantees'][number]]
                made['guarantees'][0][name] = bad
                yield f'{each["procedure"]}: {name}', made


# Who was removed stands in no sentence: the ledger and the data have it.
ELSEWHERE = ('request',)

# Of these changes the claim promises less, or as much: by claim and field,
# which of the values of 'promising'.
LESS = {
    'private aggregation': {'delta': [1]},
    'private link prediction': {'delta': [1]},
    'private training': {'delta': [1]},
    **{
        name: {'epsilon': [1], 'epsilon_transcript': [1]}
        for name in fields.ROWS
    },
    'removal covered by privacy': {'epsilon': [1]},
    # A shift that is as small as this has an epsilon of 0 at this delta.
    'certified removal': {
        'epsilon': [0, 1],
        'epsilon_transcript': [0, 1],
        'delta': [1],
        'budget': [0],
        'history': [3],
    },
    'collective certificate by smoothing': {
        'num_targets': [0],
        'counted': [1],
        'one_by_one': [1],
        'bound': [1],
    },
    'certificate by division and voting': {'targets': [0], 'certified': [0]},
    'certificate against poisoning, by shards': {
        'targets': [0],
        'certified': [0],
    },
    'certificate by smoothing': {'answered': [0], 'confidence': [0]},
}
GONE = object()


def promising(value):
    """The hostile values, some with each number of a list changed alone."""
    yield from hostile(value)
    if isinstance(value, list):
        for i, part in enumerate(value[:3]):
            if isinstance(part, float):
                yield [*value[:i], 2 * part + 1e-9, *value[i + 1 :]]


# A number is in no field as a text, nor a truth as a number.
STRANGE = (GONE, None, 'x', [], {}, [[]], 'NaN')


def strange(value):
    """No value, and values of other types."""
    yield from (bad for bad in STRANGE if type(bad) is not type(value))
    if isinstance(value, bool):
        yield int(value)
    elif value != 1:
        yield True
    if isinstance(value, int) and not isinstance(value, bool):
        yield value + 0.5


def put(each, field, value):
    """A promise with another field, or without it."""
    made = copy.deepcopy(each)
    if value is GONE:
        made['values'].pop(field)
    else:
        made['values'][field] = value
    return made


@pytest.fixture(scope='module')
def judged(complete, tmp_path_factory):
    """Counts failures and what holds of a promise, in words of its fields."""
    path = tmp_path_factory.mktemp('judged') / 'trust.json'

    def told(each):
        whole = {**complete(), 'guarantees': [copy.deepcopy(each)]}
        try:
            path.write_text(forged(reworded(whole)))
            found = check_report(path)
        except (ValueError, TypeError, LookupError, AttributeError):
            return 99, 0
        failed = [e for e in found if e.status == FAILS]
        # Reports of these tests have seeds, which alone is a failure.
        number = sum('comes from a seed' not in e.text for e in failed)
        return number, sum(e.status == HOLDS for e in found)

    return told


def noticed(found, honest):
    return found[0] > honest[0] or found[1] < honest[1]


def spared(each, judged, honest):
    """The promise without all that can be deleted unnoticed."""
    for name in [*each['values']]:
        less = put(each, name, GONE)
        if not noticed(judged(less), honest):
            each = less
    for name in [*each['origin'].get('arguments', ())]:
        less = copy.deepcopy(each)
        del less['origin']['arguments'][name]
        if not noticed(judged(less), honest):
            each = less
    return each


@pytest.fixture(scope='module')
def every(complete, tmp_path_factory):
    """Every promise, and those of which less is confirmed."""
    folder = tmp_path_factory.mktemp('every')
    more = [
        MADE[name](folder)[0]
        for name in ('UnlearnReport, objective', 'PrivacyReport, persons')
    ]
    more = json.loads(TrustReport.of(*more).to_json())['guarantees']
    return [*complete()['guarantees'], *more]


def test_what_promises_more_is_noticed_or_said_to_be_alone(every, judged):
    passed, tried = [], 0
    for each in every:
        name, values = each['procedure'], each['values']
        if values['vouched']:
            continue
        honest = judged(each)
        assert honest[0] == 0
        known = confirmed(name, values)
        alone = each['assumptions'][-1].split(ALONE)[1]
        for field in values:
            if field not in (*ELSEWHERE, 'tallies', 'notes', 'limits'):
                own = f' {field} ' in alone or field == 'vouched'
                assert own != (field in known), field
        bare = spared(each, judged, honest)
        assert known <= set(bare['values'])
        for field in sorted(known):
            less = LESS.get(name, {}).get(field, ())
            bad = [
                value
                for i, value in enumerate(promising(values[field]))
                if i not in less
            ]
            for value in [*bad, *strange(values[field])]:
                tried += 1
                if not noticed(judged(put(bare, field, value)), honest):
                    passed.append(f'{name}: {field} = {value!r}')
    assert tried > 1000
    assert not passed


def test_nothing_of_a_stranger_is_said_to_be_confirmed(every):
    vouched = [each for each in every if each['values']['vouched']]
    assert vouched
    for each in vouched:
        assert not confirmed(each['procedure'], each['values'])
        (settings,) = [t for t in each['assumptions'] if ALONE in t]
        assert settings.startswith(f'settings: {ALONE}')


@pytest.mark.parametrize(
    ('procedure', 'field', 'value', 'alone'),
    [
        # Others write on a ledger; an engine has a budget of its own.
        ('private aggregation', 'ledger_head', '0' * 64, 'noise_stds'),
        ('private aggregation', 'predictions', True, 'target_epsilon'),
        # The noise on the gradients is more than that of the account.
        ('private training', 'clipping', 'adaptive', 'noise_std'),
        # Of this accountant the kernel has no proof.
        ('private training', 'mechanism', 'rdp_fdp', 'delta'),
        ('private training', 'vouched', 'me', 'epsilon'),
        # Means of probabilities have no table.
        ('certificate by division and voting', 'vote', 'mean', 'certified'),
        (
            'certificate against poisoning, by shards',
            'aggregator',
            'mean',
            'certified',
        ),
    ],
)
def test_less_is_confirmed_where_less_is_known(
    complete, procedure, field, value, alone
):
    values = next(
        each['values']
        for each in complete()['guarantees']
        if each['procedure'] == procedure
    )
    assert alone in confirmed(procedure, values)
    made = claims.claim(procedure, {**values, field: value})
    (settings,) = [t for t in words(made).assumptions if ALONE in t]
    known, unknown = settings.split(ALONE)
    assert f' {alone} ' not in known
    assert f' {alone} ' in unknown


@pytest.mark.parametrize(
    ('procedure', 'field', 'values'),
    [
        # In Python a truth is a number, and equal to the right one.
        (
            'private training',
            'sensitivity',
            {'max_grad_norm': 0.5, 'sensitivity': True, 'noise_std': 2.0},
        ),
        # Each has to be proved, and takes its time.
        (
            'private aggregation',
            'degree_curve',
            {'degree_curve': [[1, 9]] * 21},
        ),
    ],
)
def test_a_field_of_another_kind_is_named(
    complete, tmp_path, procedure, field, values
):
    (each,) = [
        each
        for each in complete()['guarantees']
        if each['procedure'] == procedure
    ]
    each['values'].update(values)
    path = tmp_path / 'trust.json'
    path.write_text(forged(reworded({**complete(), 'guarantees': [each]})))
    failed = [e.text for e in check_report(path) if e.status == FAILS]
    assert sum(field in text for text in failed) == 1, failed
    assert not any('is too small' in text for text in failed)


LEDGER = {'ledger_head': '0' * 64}


@pytest.mark.parametrize(
    ('procedure', 'field', 'values'),
    [
        # One release of its own is on a ledger, whoever else writes there.
        (
            'private aggregation',
            'mu_aggregation',
            {**LEDGER, 'mu_aggregation': 0.1, 'mu': 0.1, 'releases': 9},
        ),
        (
            'private aggregation',
            'mu_aggregation',
            {**LEDGER, 'hops': 2, 'noise_stds': [90.0, 90.0]},
        ),
        # What is sampled has a deviation.
        ('propagation', 'standard_deviation', {'standard_deviation': None}),
        # The shift of graphs is the residual over deviation, lam and number.
        ('certified removal', 'residual', {'residual': 2e-10}),
    ],
)
def test_a_field_that_follows_from_others_is_contradicted(
    every, tmp_path, procedure, field, values
):
    each = next(
        each
        for each in every
        if each['procedure'] == procedure
        and each['values'].get('standard_deviation', 1) is not None
    )
    each = copy.deepcopy(each)
    each['values'].update(values)
    path = tmp_path / 'trust.json'
    whole = {'guarantees': [each], 'schema_version': 2}
    whole['created'] = '2026-01-01T00:00:00+00:00'
    path.write_text(forged(reworded(whole)))
    failed = [e.text for e in check_report(path) if e.status == FAILS]
    assert sum(f' {field}: ' in text for text in failed) == 1, failed


@pytest.mark.parametrize('gone', ['lam', 'unit', 'history', 'sensitivity'])
def test_a_confirmer_that_is_missing_confirms_nothing(
    complete, tmp_path, gone
):
    # Without its confirmers a relation was said to be confirmed.
    (each,) = [
        each
        for each in complete()['guarantees']
        if each['procedure'] == 'private training'
    ]
    assert each['values'].pop(gone)
    each['values']['relation'] = 'replace-one-graph'
    path = tmp_path / 'trust.json'
    whole = {**complete(), 'guarantees': [each]}
    path.write_text(forged(reworded(whole)))
    told = [e.text for e in check_report(path) if e.status == FAILS]
    assert any(gone in text for text in told)
    # A layout that had not yet the field does not prove it.
    path.write_text(forged({**reworded(whole), 'schema_version': 1}))
    told = [e for e in check_report(path) if gone in e.text]
    assert {e.status for e in told} == {UNPROVED}


@pytest.mark.parametrize(
    ('procedure', 'field', 'value'),
    [
        ('private training', 'checked', 'sampled (\u0663 of 3)'),
        ('certificate by division and voting', 'certified', {'\u0661': 12}),
        ('certificate by division and voting', 'certified', {'01': 12}),
        (
            'certificate by smoothing',
            'certified',
            {'edges_added_\u0661_deleted_0': 0},
        ),
    ],
)
def test_digits_are_those_of_ascii(every, judged, procedure, field, value):
    each = next(e for e in every if e['procedure'] == procedure)
    assert noticed(judged(put(each, field, value)), judged(each))


def test_what_only_the_digest_covers_is_said_to_be_alone(complete, tmp_path):
    # Anybody can compute a digest: the sentence says whose words these are.
    for each in complete()['guarantees']:
        assert ALONE in each['assumptions'][-1] or each['values']['vouched']
    for word in ('time', 'origin', 'checked on the run', 'notes', 'limits'):
        assert word in ALONE
    path = tmp_path / 'trust.json'
    for created in ('', 'yesterday', '2026-13-01T00:00:00+00:00'):
        path.write_text(forged({**complete(), 'created': created}))
        with pytest.raises(ValueError, match='trust report'):
            check_report(path)


@pytest.mark.parametrize('relation', ['edge', 'node', 'feature'])
def test_arguments_of_the_run_contradict_a_field(tmp_path, relation):
    transform = PrivateAGP(relation=relation, epsilon=1.0, delta=1e-3)
    transform(cycle(20))
    text = TrustReport.of(transform.report()).to_json()
    path = tmp_path / 'trust.json'
    path.write_text(text)
    assert {e.status for e in check_report(path)} == {HOLDS}
    arguments = "PrivateAGP(hops=1, relation='{}', epsilon={}, seed={})"
    for other in (('edge', 2.0, None), ('gone', 1.0, 3), (relation, 1.0, 3)):
        whole = json.loads(text)
        made = arguments.format(*other)
        whole['guarantees'][0]['origin']['arguments']['transform'] = made
        path.write_text(forged(whole))
        assert FAILS in {e.status for e in check_report(path)}


def settings():
    """Honest releases of every relation, form and account."""
    for directed in (False, True):
        for kwargs in (
            {'relation': 'edge', 'hops': 2},
            {'relation': 'node', 'form': 'withdraw'},
            {'relation': 'node', 'hops': 3, 'max_degree': 2},
            {'relation': 'node_incident', 'max_degree': 4},
            {'relation': 'node_incident', 'max_degree': 2, 'form': 'replace'},
        ):
            yield {**kwargs, 'directed': directed}
    yield {'relation': 'feature'}
    yield {'relation': 'feature', 'form': 'withdraw'}


@pytest.mark.parametrize('kwargs', list(settings()), ids=str)
@pytest.mark.parametrize('ledger', [False, True])
def test_no_honest_release_is_contradicted(tmp_path, kwargs, ledger):
    data = cycle(20)
    if kwargs.get('directed'):
        data.edge_index = data.edge_index[:, ::2]
    if ledger:
        kwargs = {**kwargs, 'ledger': tmp_path / 'run.ledger'}
    transform = PrivateAGP(mu=0.3, epsilon=3.0, delta=1e-3, **kwargs)
    for _ in range(3):
        transform(data)
        data = data.clone()
        data.x = data.x + 1
    path = tmp_path / 'trust.json'
    TrustReport.of(transform.report()).save(path)
    found = check_report(path, ledger=kwargs.get('ledger'))
    assert FAILS not in {each.status for each in found}, found


@pytest.mark.parametrize(
    'kwargs',
    [
        {'relation': 'edge'},
        {'relation': 'node', 'hops': 2},
        {'relation': 'feature', 'form': 'withdraw'},
    ],
    ids=str,
)
def test_no_honest_classifier_is_contradicted(tmp_path, kwargs):
    torch.manual_seed(0)
    data = cycle(40)
    data.train_mask = torch.arange(40) < 20
    data.y = torch.arange(40) % 3
    model = PrivateNodeClassifier(
        epsilon=4.0, delta=1e-3, steps=2, epochs=2, **kwargs
    ).fit(data)
    path = tmp_path / 'trust.json'
    TrustReport.of(model.report()).save(path)
    found = check_report(path)
    assert FAILS not in {each.status for each in found}, found


@pytest.mark.parametrize(
    'kwargs',
    [
        {'max_grad_norm': AdaptiveNorm()},
        {'max_grad_norm': 1.0, 'clipping': 'automatic'},
    ],
    ids=['adaptive', 'automatic'],
)
def test_no_honest_training_is_contradicted(tmp_path, kwargs):
    made = Private(tmp_path)
    made.make(**kwargs).train()
    made.engine.close()
    path = tmp_path / 'trust.json'
    TrustReport.of(made.engine.report(1e-3)).save(path)
    failed = [e.text for e in check_report(path) if e.status == FAILS]
    assert all('comes from a seed' in text for text in failed), failed


def test_every_field_that_is_changed_is_noticed(
    complete, tmp_path, monkeypatch
):
    from pyg_trust.check import epsilon

    # Of epsilon the sentences tell too: here these alone have to.
    monkeypatch.setattr(epsilon, '_judged', lambda *_: UNPROVED)
    path, passed, tried = tmp_path / 'trust.json', [], 0
    for text, whole in changed(complete()):
        path.write_text(forged(whole))
        try:
            found = check_report(path)
        except ValueError:
            continue
        tried += 1
        told = [e for e in found if e.status == FAILS]
        if all('comes from a seed' in each.text for each in told):
            passed.append(text)
    assert tried > 500
    unread = [
        t for t in passed if t.split(': ')[1].split(' = ')[0] not in ELSEWHERE
    ]
    assert not unread


def test_a_claim_survives_json(complete):
    for each in complete()['guarantees']:
        made = claims.claim(each['procedure'], each['values'])
        again = json.loads(json.dumps(claims.values(made)))
        assert claims.claim(each['procedure'], again) == made
        with pytest.raises(AttributeError):
            made.notes = ()


def test_sentences_of_a_claim_are_those_of_its_report(complete):
    for each in complete()['guarantees']:
        made = words(claims.claim(each['procedure'], each['values']))
        assert made.promise == each['promise']
        assert list(made.assumptions) == each['assumptions']


@pytest.mark.parametrize('name', sorted(claims.PROMISES))
def test_a_missing_field_is_named(complete, name):
    values = next(
        each['values']
        for each in complete()['guarantees']
        if each['procedure'] == name
    )
    for field in values:
        if field in ('notes', 'limits', 'vouched'):
            continue
        less = {k: v for k, v in values.items() if k != field}
        known = field in claims.PROMISES[name].__dataclass_fields__
        # Two fields are younger than reports that are to be read.
        if known and field not in claims.LATER:
            with pytest.raises(ValueError, match=field):
                claims.claim(name, less)
        else:
            claims.claim(name, less)


def test_every_field_has_a_unit():
    for kind in claims.PROMISES.values():
        for name, field in kind.__dataclass_fields__.items():
            if name not in ('notes', 'limits', 'vouched', 'more'):
                assert field.metadata['unit'], (kind, name)


def test_a_report_of_layout_1_is_read_and_its_certificates_are_not_proved(
    complete, tmp_path
):
    whole = complete()
    whole['schema_version'] = 1
    path = tmp_path / 'trust.json'
    path.write_text(forged(whole))
    assert TrustReport.load(path).schema_version == 1
    for name in claims.PROMISES:
        lines = [
            e for e in check_report(path) if f'. {name}: its sent' in e.text
        ]
        assert {e.status for e in lines} == {UNPROVED}
        assert all('again' in e.text for e in lines)


def test_a_forger_who_words_it_anew_is_told_apart_by_numbers(
    complete, tmp_path
):
    # Sentences fit the fields: what follows from other fields does not.
    whole = complete()
    lies = {
        'private aggregation': {'epsilon': 0.5},
        'private link prediction': {'epsilon': 0.5},
        'certified removal from a node classifier': {'epsilon': 1e-12},
        'certified removal': {'distance_bound': 0.0},
        'certificate by smoothing': {'alpha': 0.5},
        'certificate by division and voting': {'views': 16},
        'certificate against poisoning, by shards': {'num_shards': 30},
        'collective certificate by smoothing': {'guaranteed': 12},
        'robustness certificate': {'num_robust': 12},
        'certificate of ranks': {'num_kept': 6},
    }
    for each in whole['guarantees']:
        lie = lies.get(each['procedure'])
        if lie is None or each['values']['vouched']:
            continue
        single = {**whole, 'guarantees': [copy.deepcopy(each)]}
        single['guarantees'][0]['values'].update(lie)
        path = tmp_path / 'trust.json'
        path.write_text(forged(reworded(single)))
        told = [e.text for e in check_report(path) if e.status == FAILS]
        assert any('comes from a seed' not in text for text in told), lie


@pytest.mark.parametrize('epsilon', [2.0, 2.0004, 7.00001, 1234.5, 1e-9, 0.0])
def test_no_sentence_promises_less_than_its_fields(complete, epsilon):
    # 2.0004 is no epsilon of 2, and a confidence of .9999999 is none of 1.
    for each in complete()['guarantees']:
        values = each['values']
        if 'epsilon' in values:
            values['epsilon'] = epsilon
            values['delta'] = delta = 1.0000004e-5
            said = words(claims.claim(each['procedure'], values)).promise
            pairs = re.findall(r'\(([\d.e+-]+), ([\d.e+-]+)\)', said)
            assert pairs[0] == (f'{float(pairs[0][0]):.4g}', '1.00001e-05')
            assert epsilon <= float(pairs[0][0]) <= 1.001 * epsilon
            assert delta <= float(pairs[0][1])
        if 'confidence' in values:
            values['confidence'] = 0.9999999
            said = words(claims.claim(each['procedure'], values)).promise
            assert 'with confidence 0.999999' in said
        if 'standard_deviation' in values and values['eps']:
            values['standard_deviation'] = 0.12341
            said = words(claims.claim(each['procedure'], values)).promise
            assert 'above 0.124' in said


@pytest.mark.parametrize('text', ['2.0', 'inf', None, [2.0]])
def test_a_text_is_no_number_of_a_sentence(complete, text):
    for each in complete()['guarantees']:
        if 'epsilon' in each['values']:
            each['values']['epsilon'] = text
            with pytest.raises((TypeError, ValueError)):
                words(claims.claim(each['procedure'], each['values']))
