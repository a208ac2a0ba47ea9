"""Claims: no field can be changed without a sentence, and none is unread."""

import copy
import json
import re
from functools import lru_cache

import pytest
import torch
from auditing import forged, reworded
from guarantees import MADE
from jsonschema import validate
from procedures import cycle

from pyg_trust.check import FAILS, HOLDS, UNPROVED, check_report
from pyg_trust.kernel import claims
from pyg_trust.kernel.accounting import judge
from pyg_trust.kernel.fields import CONFIRMED
from pyg_trust.kernel.sentences import ALONE, words
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.report import TrustReport, schema
from pyg_trust.transforms import PrivateAGP

PROCEDURES = {
    'AggregationReport',
    'LinkReport',
    'AGP, cut',
    'AGP, sampled',
    'Certificate, global',
    'UserCertificate',
    'SmoothedCertificate',
    'CollectiveCertificate',
    'VoteCertificate',
    'PrivacyReport',
    'SearchReport',
    'NodeUnlearnReport',
    'UnlearnReport',
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
# which of the hostile values.
LESS = {
    'private aggregation': {'delta': [1]},
    'private link prediction': {'delta': [1]},
    'private training': {'delta': [1]},
    'certified removal from a node classifier': {
        'epsilon': [1],
        'epsilon_transcript': [1],
    },
    # A shift that is as small as this has an epsilon of 0 at this delta.
    'certified removal': {
        'epsilon': [0, 1],
        'epsilon_transcript': [0, 1],
        'delta': [1],
        'budget': [0],
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
    # Of a sample there is one kind of levels, whatever is said of half.
    'propagation': {'half': [0]},
}


def test_a_field_with_its_sentence_is_contradicted_or_said_to_be_alone(
    complete, tmp_path, monkeypatch
):
    from pyg_trust.check import epsilon

    monkeypatch.setattr(epsilon, '_judged', lru_cache(judge))
    path, passed, tried = tmp_path / 'trust.json', [], 0

    def told(each):
        whole = {**complete(), 'guarantees': [each]}
        path.write_text(forged(reworded(whole)))
        return {
            (e.status, e.text) for e in check_report(path) if e.status != HOLDS
        }

    for each in complete()['guarantees']:
        name, honest = each['procedure'], told(copy.deepcopy(each))
        if each['values']['vouched']:
            continue
        *_, settings = each['assumptions']
        alone = settings.split(ALONE)[1]
        for field, value in each['values'].items():
            if field in (*ELSEWHERE, 'tallies', 'notes', 'limits', 'vouched'):
                continue
            own = f' {field} ' in alone
            assert own != (field in CONFIRMED[name])
            if own:
                continue
            for number, bad in enumerate(hostile(value)):
                if number in LESS.get(name, {}).get(field, ()):
                    continue
                made = copy.deepcopy(each)
                made['values'][field] = bad
                tried += 1
                try:
                    found = told(made) - honest
                except (ValueError, TypeError, LookupError):
                    continue
                if not any('comes from a seed' not in t for _, t in found):
                    passed.append(f'{name}: {field} = {bad!r}')
    assert tried > 150
    assert not passed


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
