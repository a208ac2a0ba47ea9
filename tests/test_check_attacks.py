"""The checker and the pages, against files that somebody wrote to fool them.

Each of these passed, or came out as a traceback, before.
"""

import copy
import json
import math
import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from auditing import (
    DELTA,
    HISTORY,
    LAM,
    RATE,
    STEPS,
    failures,
    forged,
    privacy,
    removal,
    saved,
)
from procedures import cycle
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from pyg_trust.__main__ import main
from pyg_trust.check import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    check_report,
    checker,
    epsilon,
)
from pyg_trust.check.removals import COVERED, NODES
from pyg_trust.check.tensors import Tensor
from pyg_trust.ledger import PrivacyLedger
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.report import (
    Guarantee,
    TrustReport,
    fingerprint_data,
    fingerprint_model,
)
from pyg_trust.transforms import PrivateAGP
from pyg_trust.verify.chain import Chain
from pyg_trust.verify.fields import AWAY

EPSILON = wor_epsilon(HISTORY, DELTA, 'pld_wor')


def edited(folder, change, **values):
    path = saved(folder, privacy(**values))
    whole = json.loads(path.read_text())
    change(whole['guarantees'][0])
    path.write_text(forged(whole))
    return path


def told(text):
    return lambda fields: fields.update(promise=text)


@pytest.mark.parametrize(
    ('change', 'caught'),
    [
        # The fields are right, and whoever reads the page is told less.
        (told('the weights are (0.1, 1e-05)-private'), 'its promise is'),
        (told('all of 7 steps are private'), 'its promise is'),
        (
            lambda fields: fields.update(
                spent={'epsilon': 0.01}, budget={'epsilon': 0.02}
            ),
            'the field has',
        ),
        (lambda fields: fields['values'].update(steps=600), 'steps: 600'),
        (
            lambda fields: fields['values'].update(target_epsilon=1.0),
            'budget is',
        ),
        (
            told('not private: whoever knows or guesses the seed'),
            'comes from a seed',
        ),
    ],
)
def test_a_page_that_says_other_than_its_fields_fails(
    tmp_path, change, caught
):
    from pyg_trust.noise import SEEDED

    def whole(fields):
        change(fields)
        fields['promise'] = fields['promise'].replace(
            'not private: whoever knows or guesses the seed', SEEDED
        )

    texts = failures(edited(tmp_path, whole))
    assert any(caught in text for text in texts)


def book(folder, steps=STEPS, **header):
    path = folder / 'run.ledger'
    ledger = PrivacyLedger(path, {'mechanism': 'a', **header})
    for _ in range(steps):
        ledger.record(2 * LAM, RATE)
    ledger.close()
    return path


def test_a_ledger_is_not_weighed_by_the_report_s_own_noise(tmp_path):
    # 'lam' is what the noise on the ledger makes, whatever the report says.
    low = wor_epsilon([(8 * LAM, RATE, STEPS)], DELTA, 'pld_wor')
    report = saved(tmp_path, privacy(lam=4 * LAM, epsilon=low))
    texts = failures(report, ledger=book(tmp_path))
    assert any('ledger: epsilon ' in text for text in texts)
    assert any('lam: 8 is claimed' in text for text in texts)


def test_a_ledger_that_was_rolled_back_fails_without_its_head(tmp_path):
    # The digest was taken out of the report, the last lines of the ledger.
    texts = failures(saved(tmp_path, privacy()), ledger=book(tmp_path, 2))
    assert any('2 lines were paid for' in text for text in texts)


@pytest.mark.parametrize(
    'header',
    [
        {'data': 'ab' * 32},
        {'seeded': True},
        {'accountant': {'mechanism': 'pld_poisson'}},
    ],
)
def test_the_ledger_of_another_training_fails(tmp_path, header):
    path = book(tmp_path, **header)
    texts = failures(saved(tmp_path, privacy(seeded=False)), ledger=path)
    assert any('ledger: it is of' in text for text in texts)


def test_a_promise_of_which_nothing_is_checked_says_so(tmp_path):
    # Renamed, private training is a promise that nobody looks into.
    path = edited(
        tmp_path,
        lambda fields: fields.update(
            procedure='training', spent={}, budget={}, history={}
        ),
    )
    statuses = [found.status for found in check_report(path)]
    assert statuses.count(UNKNOWN) == 1


@pytest.mark.parametrize(
    'text',
    [
        # Two programs read two promises.
        '{"guarantees": [], "guarantees": [%s], "created": "%s",'
        ' "schema_version": 1}',
        '{"guarantees": [%s], "created": "%s", "schema_version": true}',
        '{"guarantees": [%s], "created": "%s", "schema_version": NaN}',
    ],
)
def test_a_file_that_can_be_read_in_two_ways_is_none(tmp_path, text):
    report = TrustReport.of(removal(nodes=[1]))
    whole = report.to_dict()
    path = tmp_path / 'trust.json'
    (entry,) = whole['guarantees']
    path.write_text(text % (json.dumps(entry), report.created))
    with pytest.raises(ValueError, match='trust report in JSON'):
        check_report(path)


@pytest.mark.parametrize(
    'damage',
    [
        lambda text: text.replace(
            '"epsilon": 100.0', '"epsilon": 1' + '0' * 400
        ),
        lambda text: '[' * 100_000,
        lambda text: text.replace('100.0', 'Infinity'),
    ],
)
def test_numbers_and_depths_that_nothing_holds_are_refused(tmp_path, damage):
    path = saved(tmp_path, privacy())
    text = forged(json.loads(path.read_text()))
    assert damage(text) != text
    path.write_text(damage(text))
    with pytest.raises(ValueError, match='trust report in JSON'):
        check_report(path)


HOSTILE = (None, 0, -1, 10**400, 'x', True, [], {'a': 1}, [[1]], [[0, 1]])


@pytest.mark.parametrize('name', sorted(privacy().values))
def test_no_field_of_a_report_is_a_traceback_or_holds(tmp_path, name):
    path = saved(tmp_path, privacy())
    whole = json.loads(path.read_text())
    for bad in HOSTILE:
        changed = copy.deepcopy(whole)
        values = changed['guarantees'][0]['values']
        if json.dumps(values[name]) == json.dumps(bad):
            continue
        values[name] = bad
        path.write_text(forged(changed))
        statuses = [found.status for found in check_report(path)]
        known = name in ('mechanism', 'lam', 'sample_rates')
        assert FAILS in statuses or (known and UNKNOWN in statuses), bad


@pytest.mark.parametrize(
    'request_',
    [5, {'0': 5}, {'0': {'nodes': 5}}, {'0': {'edges': [[1]]}}, {'0': None}],
)
def test_requests_of_another_form_fail(tmp_path, request_):
    promise = Guarantee(
        'removal', 'gone', (), kind='removal', values={'request': request_}
    )
    torch.save(
        {'edge_index': torch.zeros(2, 0), 'num_nodes': 1}, tmp_path / 'data.pt'
    )
    found = check_report(saved(tmp_path, promise), data=tmp_path / 'data.pt')
    assert {each.status for each in found[1:]} <= {FAILS, UNKNOWN}


@pytest.mark.parametrize('part', ['ledger', 'model', 'data'])
@pytest.mark.parametrize(
    'content',
    [b'', b'5', b'text', b'{"entries": 5}', b'{"entries": [5]}', b'\x80\x02.'],
)
def test_other_files_are_refused_in_one_line(tmp_path, capsys, part, content):
    path = tmp_path / 'file'
    path.write_bytes(content)
    report = saved(tmp_path, removal(nodes=[1]))
    status = main(['check', str(report), f'--{part}', str(path)])
    assert status == 2
    if (part, content) != ('ledger', b''):
        (line,) = capsys.readouterr().err.splitlines()
        assert f"'{part}'" in line


def test_what_is_not_in_the_file_is_not_called_gone(tmp_path):
    # An empty file has nothing of anybody.
    torch.save({}, tmp_path / 'data.pt')
    found = check_report(
        saved(tmp_path, removal(nodes=[1])), data=tmp_path / 'data.pt'
    )
    assert UNKNOWN in {each.status for each in found}


def test_two_tensors_of_one_name_have_no_fingerprint():
    # Whoever loads 'a.b' got other weights than those of the fingerprint.
    good, evil = torch.ones(2), torch.zeros(2)
    with pytest.raises(ValueError, match='a name of its own'):
        fingerprint_model({'a.b': evil, 'a': {'b': good}})


SNEAKY = 'a\nholds        1. b\x1b[2K\u202e\u2028c'


def test_a_name_does_not_write_lines_of_its_own(tmp_path, capsys):
    promise = Guarantee(
        SNEAKY,
        SNEAKY,
        (SNEAKY,),
        spent={SNEAKY: 2.0},
        budget={SNEAKY: 1.0},
        values={SNEAKY: SNEAKY},
        origin={'pyg_trust': SNEAKY},
    )
    path = saved(tmp_path, promise)
    assert main(['check', str(path)]) == 1
    report = TrustReport.load(path)
    printed = capsys.readouterr().out
    for page in (
        printed,
        str(report),
        report.to_html(),
        report.to_markdown(),
    ):
        assert not re.search('[\x1b\u202e\u2028]', page)
        assert not any(
            line.startswith('holds  ') for line in page.splitlines()[1:]
        )
    assert len(printed.splitlines()) == 3


def test_versions_and_texts_are_no_markup_in_a_model_card():
    promise = Guarantee(
        'removal',
        'it is ~~not~~ gone $x$ &lt;b&gt;',
        (),
        origin={'pyg_trust': '0.1\n\n# Certified\n\n[by](http://x) <b>'},
    )
    text = TrustReport.of(promise).to_markdown()
    assert not re.search(r'(?<!\\)(~~|\$|\[by|<b>|&lt;)', text)
    assert '\n# Certified' not in text


def test_infinite_budgets_are_still_read(tmp_path):
    path = saved(tmp_path, privacy(target_epsilon=None))
    assert TrustReport.load(path).guarantees[0].budget['epsilon'] == math.inf
    assert not failures(path)


def test_what_procedures_report_is_not_called_false(tmp_path):
    # Honest reports of the package, with a thousand nodes in a sentence.
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(1200, (2, 4000), generator=generator)
    data = Data(
        x=torch.rand(1200, 4, generator=generator),
        y=torch.arange(1200) % 3,
        edge_index=to_undirected(remove_self_loops(edges)[0]),
        train_mask=torch.arange(1200) < 600,
    )
    transform = PrivateAGP(relation='edge', epsilon=2.0, delta=1e-5)
    transform(data.clone())
    engine = PrivacyEngine(ledger=tmp_path / 'run.ledger')
    net = torch.nn.Linear(4, 3)
    model, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DisjointWalkLoader(data, batch_size=8, walk_length=1),
        noise_multiplier=4.0,
        max_grad_norm=0.5,
        target_epsilon=3.0,
        target_delta=1e-5,
    )
    for _, batch in zip(range(2), loader, strict=False):
        optimizer.zero_grad()
        out = model(batch.x)[: batch.batch_size]
        cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    path = tmp_path / 'trust.json'
    TrustReport.of(engine.report(), transform.report()).save(path)
    engine.close()
    torch.save(net.state_dict(), tmp_path / 'weights.pt')
    assert not failures(
        path,
        ledger=tmp_path / 'run.ledger',
        model=tmp_path / 'weights.pt',
    )
    whole = json.loads(path.read_text())
    promise = whole['guarantees'][1]['promise']
    assert '1,200 nodes' in promise
    whole['guarantees'][1]['promise'] = promise.replace('1,200', '9,200')
    path.write_text(forged(whole))
    assert any('its promise is' in text for text in failures(path))


# By hand #####################################################################


def held(lines, **header):
    """A chain of a header and of what each line spends."""
    bodies = [header, *(line if line else {'more': 1} for line in lines)]
    return Chain(bodies, [f'l{i}' for i in range(len(bodies))], 0)


def told_of(procedure, kind='privacy', **values):
    return SimpleNamespace(
        procedure=procedure, kind=kind, values=values, data='d', model=''
    )


def letters(found):
    """H of holds, F of FAILS, p of not proved and c of not checked."""
    names = {HOLDS: 'H', FAILS: 'F', UNPROVED: 'p', UNKNOWN: 'c'}
    return ''.join(names[status] for status, _ in found)


# Releases of mu .3 and .4, which are .5 together.
SPENT = [{'spent': [2 / 0.3, 1.0]}, {'spent': [2 / 0.4, 1.0]}]
PURE, COST = {'epsilon': 0.1}, gaussian_epsilon(0.5, DELTA)


@pytest.mark.parametrize(
    ('change', 'wanted'),
    [
        ({}, 'HHHH'),
        # Sums are rounded: a mu may be off by 1e-9.
        ({'mu': 0.6}, 'HHHH'),
        ({'mu': 0.5 * (1 - 8e-10)}, 'HHHH'),
        ({'mu': 0.5 * (1 - 1.2e-9)}, 'HHFHH'),
        ({'mu': 0.45}, 'HHFHH'),
        ({'epsilon': COST * (1 - 1e-9)}, 'HHFH'),
        ({'releases': 3}, 'HFHH'),
        ({'lines': [*SPENT, {}]}, 'HHHH'),
        # What is pure adds to epsilon as it is.
        ({'lines': [*SPENT, {'epsilon': 0.1}]}, 'HHFH'),
        (
            {'lines': [*SPENT, {'epsilon': 0.1}], 'epsilon': COST + 0.11},
            'HHHH',
        ),
        ({'ledger_head': 'l1'}, 'HHHF'),
        ({'ledger_head': None}, 'HHHp'),
        ({'header': {'relation': 'node'}}, 'HFHHH'),
        ({'header': {'relation': 'edge', 'max_degree': 4}}, 'HFHHH'),
        ({'header': {'max_degree': 3, 'data': 'd', 'other': 1}}, 'HHHH'),
        ({'header': {'mechanism': 'a'}}, 'c'),
        ({'header': {'mechanism': 'a'}, 'ledger_head': None}, ''),
        ({'procedure': 'private training'}, 'c'),
        ({'kind': 'removal'}, 'c'),
    ],
)
def test_a_ledger_of_sums_is_compared_field_by_field(change, wanted):
    values = {'epsilon': COST, 'delta': DELTA, 'mu': 0.5, 'releases': 2}
    values |= {'ledger_head': 'l2', 'relation': 'edge', 'max_degree': 3}
    change = dict(change)
    lines = held(
        change.pop('lines', SPENT),
        **{'mechanism': 'gaussian', **change.pop('header', {})},
    )
    lines.links[-1] = 'l2'
    what = change.pop('procedure', 'private aggregation')
    each = told_of(what, change.pop('kind', 'privacy'), **{**values, **change})
    found = [*checker._check_ledger(each, (lines, None))]
    assert letters(found) == wanted
    for status, text in found:
        if text.endswith('was made from'):
            assert ('other or more' in text) == (status == FAILS)


TRAINED = {'account': [[0.9, 0.25, 2]], 'steps': 2, 'ledger_head': 'l2'}
STEPPED = [{'spent': [0.9, 0.25]}, {'spent': [0.9, 0.25]}]


@pytest.mark.parametrize(
    ('values', 'header', 'wanted'),
    [
        ({'mechanism': 'pld_wor'}, {}, 'HHHH'),
        # The kernel has no proof of it.
        ({'mechanism': 'rdp_fdp'}, {}, 'HHpH'),
        ({'mechanism': 'rdp_fdp'}, {'occurrences': 2}, 'HHpH'),
        ({'mechanism': 'rdp_fdp'}, {'occurrences': 3}, 'HFHpH'),
        ({'mechanism': 'pld_group'}, {'terms': 3}, 'HFHHH'),
        # A quarter of 8 roots, of 9 and of 20.
        ({'mechanism': 'pld_group_wor'}, {'num_roots': 8}, 'HHHH'),
        ({'mechanism': 'pld_group_wor'}, {'num_roots': 9}, 'HHHH'),
        ({'mechanism': 'pld_group_wor'}, {'num_roots': 20}, 'HFHHH'),
        (
            {
                'mechanism': 'pld_group_wor',
                'account': [[0.9, 0.25, 2], [0.9, 1.0, 1]],
            },
            {'num_roots': 8},
            'HHFHH',
        ),
        ({'mechanism': 'pld_wor', 'account': [[0.9, 0.2, 2]]}, {}, 'HHFHH'),
        ({'mechanism': 'pld_wor', 'account': []}, {}, 'HHFHH'),
    ],
)
def test_a_ledger_of_steps_is_compared_field_by_field(
    monkeypatch, values, header, wanted
):
    monkeypatch.setattr(checker, 'proved', lambda *_: HOLDS)
    lines = held(STEPPED, accountant=header)
    given = {'epsilon': 1.0, 'delta': DELTA, 'units_per_row': 2}
    given |= {'batch_size': 2, **TRAINED, **values}
    each = told_of('private training', **given)
    assert letters(checker._check_ledger(each, (lines, None))) == wanted
    # Of a step without noise, or with no rate, nothing is said.
    for spent in ([0.0, 0.25], [0.9, 0.0], [-1.0, 1.0]):
        lines = held([{'spent': spent}], accountant=header)
        with pytest.raises(ValueError, match='spent'):
            [*checker._check_ledger(each, (lines, None))]


ACCOUNT = {
    **{'mechanism': 'pld_wor', 'account': [[4.0, 0.05, 6], [8.0, 1.0, 1]]},
    **{'epsilon': 1.0, 'delta': DELTA, 'pure_epsilon': 0.25},
}
SEARCH = 'search for settings of private training'


@pytest.mark.parametrize(
    ('procedure', 'mechanism', 'wanted'),
    [
        ('private training', 'pld_wor', {HOLDS: 'H', FAILS: 'F'}),
        ('private training', 'rdp_fdp', {HOLDS: 'p', FAILS: 'p'}),
        # The epsilon of one run is less than that of a search.
        (SEARCH, 'pld_wor', {HOLDS: 'p', FAILS: 'F', UNPROVED: 'p'}),
        (SEARCH, 'rdp_fdp', {HOLDS: 'p', FAILS: 'p'}),
    ],
)
def test_what_the_kernel_proves_is_said_of_training_alone(
    monkeypatch, procedure, mechanism, wanted
):
    asked = []
    each = told_of(procedure, **{**ACCOUNT, 'mechanism': mechanism})
    for answer, letter in wanted.items():
        monkeypatch.setattr(
            epsilon, 'proved', lambda *of, _=answer: asked.append(of) or _
        )
        ((_, text),) = found = [*epsilon.check_epsilon(each)]
        assert letters(found) == letter
        assert '1 at delta 1e-05 is claimed of 7 recorded steps' in text
        assert ('secret number of runs' in text) == (procedure == SEARCH)
        unproved = procedure == SEARCH or mechanism == 'rdp_fdp'
        assert text.endswith('no proof for this accountant') == unproved
    lines = [(4.0, 0.05, 6), (8.0, 1.0, 1)]
    known = [(each, lines, Fraction(3, 4), DELTA)] * len(wanted)
    assert asked == known * (mechanism == 'pld_wor')


def test_persons_together_are_proved_up_to_a_number(monkeypatch):
    asked = []

    def proved(each, lines, claimed, delta, units=1):
        asked.append((claimed, units))
        return HOLDS

    monkeypatch.setattr(epsilon, 'proved', proved)
    many = [[k, k + 0.5] for k in range(2, 12)]
    each = told_of('private training', **ACCOUNT, together=many)
    found = [*epsilon.check_epsilon(each)]
    assert letters(found) == 'H' + 8 * 'H' + 2 * 'p'
    # Everybody's share of what is pure is taken off.
    first = [(Fraction(3, 4), 1)]
    assert asked == first + [
        (k + Fraction(1, 2) - k * Fraction(1, 4), k) for k in range(2, 10)
    ]
    for k in (1, 0, -3, 2.0):
        each.values['together'] = [[k, 9.0]]
        with pytest.raises(ValueError, match='together'):
            [*epsilon.check_epsilon(each)]


@pytest.mark.parametrize(
    ('values', 'units', 'wanted'),
    [
        ({'mechanism': 'pld_wor'}, 1, ('wor',)),
        ({'mechanism': 'rdp_wor'}, 1, ('wor',)),
        ({'mechanism': 'pld_poisson', 'relation': 'a'}, 1, ('replace',)),
        ({'mechanism': 'pld_poisson'}, 1, ('replace',)),
        *(
            ({'mechanism': 'pld_poisson', 'relation': about}, 1, ('withdraw',))
            for about in AWAY
        ),
        ({'mechanism': 'pld_group', 'units_per_row': 3}, 1, (3, None)),
        ({'mechanism': 'pld_group_wor', 'units_per_row': 3}, 1, (3, 20)),
        ({'mechanism': 'pld_poisson', 'relation': AWAY[0]}, 2, (2, None)),
        ({'mechanism': 'pld_wor'}, 2, (2, 20)),
        ({'mechanism': 'pld_wor', 'batch_size': 1}, 2, (2, 1)),
        ({'mechanism': 'pld_group', 'units_per_row': 3}, 2, (6, None)),
    ],
)
def test_the_kernel_is_asked_for_the_law_of_the_mechanism(
    monkeypatch, values, units, wanted
):
    lines = [(4.0, 0.05, 6), (8.0, 1.0, 1)]
    each = told_of(
        'private training', **{'units_per_row': 1, 'batch_size': 20, **values}
    )
    merged = [(4 + i / 9, 0.05, 1) for i in range(9)]
    for answer in (HOLDS, FAILS, UNPROVED):

        def alone(law, exact, claimed, delta, _=answer):
            assert ((law,), claimed, delta) == (wanted, Fraction(1), DELTA)
            return _

        def group(exact, claimed, delta, size, drawn, _=answer):
            assert (size, drawn) == wanted
            assert (claimed, delta) == (Fraction(1), DELTA)
            return _

        monkeypatch.setattr(epsilon, '_judged', alone)
        monkeypatch.setattr(epsilon, '_judged_group', group)
        of = Fraction(1), DELTA, units
        assert epsilon.proved(each, lines, *of) == answer
        # What holds of more than was spent holds; nothing else is known.
        less = HOLDS if answer == HOLDS else UNPROVED
        assert epsilon.proved(each, merged, *of) == less
    for name in ('units_per_row', 'batch_size') * (len(wanted) > 1):
        each.values[name] = 0
        with pytest.raises(ValueError, match=name):
            epsilon.proved(each, lines, *of)
        each.values[name] = 1


@pytest.mark.parametrize(
    ('arguments', 'off', 'wanted'),
    [
        ({}, 1.0, 'H'),
        ({'engine': False}, 1.0, 'H'),
        # Its other steps are on no line here.
        ({'engine': True}, 1.0, 'p'),
        ({'engine': True}, 1 - 1e-6, 'F'),
        ({}, 1 - 1e-6, 'F'),
    ],
)
def test_releases_are_proved_by_their_mu(arguments, off, wanted):
    each = told_of(
        *('private aggregation', 'privacy'),
        **{'epsilon': COST * off, 'delta': DELTA, 'mu': 0.5},
    )
    each.origin = {'arguments': arguments}
    assert letters(epsilon.check_epsilon(each)) == wanted


def graph(nodes, **fields):
    edges = Tensor('torch.int64', np.zeros((2, 0), np.int64))
    return {'edge_index': edges, 'num_nodes': nodes, **fields}


GONE = 'Hdata: nothing that was removed is there'


@pytest.mark.parametrize(
    ('procedure', 'kind', 'graphs', 'said'),
    [
        (
            NODES,
            'removal',
            {'0': graph(2)},
            ['cthat the residual', GONE],
        ),
        (
            COVERED,
            'removal',
            {'0': graph(2)},
            ['cshift: the file', GONE],
        ),
        ('another', 'removal', {'0': graph(2)}, [GONE]),
        ('another', 'removal', {'0': graph(4)}, ['Fdata: node 3 of graph 0']),
        ('another', 'removal', {}, ['cdata: there is no graph 0', GONE]),
        ('another', 'measurement', {'0': graph(4)}, []),
        # Lists of another procedure, in which there are no names.
        (NODES, 'removal', {'0': {'lists': {'a': 1}}}, ['cdata: they are of']),
    ],
)
def test_what_is_said_of_a_removal_s_data(procedure, kind, graphs, said):
    each = told_of(procedure, kind, request={'0': {'nodes': [3]}})
    found = [*checker._check_data(each, graphs)]
    assert letters(found) == ''.join(text[0] for text in said)
    for (_, text), wanted in zip(found, said, strict=True):
        assert text.startswith(wanted[1:])
    del each.values['request']
    assert not [*checker._check_data(each, graphs)]


def test_labels_that_somebody_may_train_on_are_not_checked():
    part = {'labels': [0]}
    for request, status in (
        ({'0': part, '1': {'nodes': [3]}}, 'cH'),
        ({'0': {'changed_labels': [0]}, '1': {'nodes': [3]}}, 'cH'),
        ({'0': {'changed_labels': [0], 'nodes': [3]}}, 'cH'),
        ({'0': {'nodes': [3]}}, 'H'),
    ):
        each = told_of('another', 'removal', request=request)
        graphs = {'0': graph(2), '1': graph(2)}
        assert letters(checker._check_data(each, graphs)) == status


def test_data_are_compared_by_the_fields_that_were_used(tmp_path):
    data = cycle(6)
    whole = {'edge_index': data.edge_index, 'x': data.x, 'y': data.y}
    names = ['x', 'edge_index']

    def found(fields=names, **changes):
        torch.save({**whole, **changes}, tmp_path / 'data.pt')
        promise = Guarantee(
            *('measured', 'it is so', ()),
            kind='measurement',
            data=fingerprint_data(data, fields=tuple(names)),
            values={'data_fields': fields},
        )
        found = check_report(
            saved(tmp_path, promise), data=tmp_path / 'data.pt'
        )
        return [e.status for e in found if 'graphs are' in e.text], found

    said, lines = found()
    assert said == [HOLDS]
    assert 'graphs are those' in lines[-1].text
    assert found(y=data.y + 1)[0] == [HOLDS]
    said, lines = found(x=data.x + 1)
    assert said == [FAILS]
    assert 'graphs are not those' in lines[-1].text
    said, lines = found('x')
    assert not said
    assert "'data_fields' needs to be a list" in lines[-1].text
    # Without names of fields nothing is compared, and that is said.
    said, lines = found([])
    assert not said
    assert lines[-1].text == 'no guarantee speaks of a data'
