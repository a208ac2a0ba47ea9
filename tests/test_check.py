"""The checker, against reports, ledgers, weights and data that lie."""

import json
import math
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch_geometric
from auditing import (
    DELTA,
    HISTORY,
    LAM,
    RATE,
    STEPS,
    failures,
    privacy,
    removal,
    saved,
)
from procedures import cycle, dataset
from torch_geometric.data import Data

import pyg_trust
from pyg_trust.check import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    check_report,
    checker,
    epsilon,
)
from pyg_trust.check.__main__ import main
from pyg_trust.check.answers import arguments, read_report, requests
from pyg_trust.ledger import PrivacyLedger
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import Guarantee, TrustReport, fingerprint_model
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import (
    NodeClassifier,
    ScatteringClassifier,
    ShardedUnlearner,
)
from pyg_trust.verify.accounting import judge_mu
from pyg_trust.verify.sentences import SEEDED


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / 'run.ledger'
    book = PrivacyLedger(path, {'mechanism': 'a'})
    for _ in range(STEPS):
        book.record(2 * LAM, RATE)
    head = book.head
    book.close()
    return path, head


def test_an_honest_report_holds(tmp_path, ledger):
    path, head = ledger
    found = check_report(
        saved(tmp_path, privacy(ledger_head=head)), ledger=path
    )
    assert {each.status for each in found} == {HOLDS}


@pytest.mark.parametrize(
    ('lie', 'caught'),
    [
        (lambda e: {'epsilon': e / 2}, 'epsilon: '),
        (lambda e: {'sample_rates': [[2 * RATE, STEPS]]}, 'sample_rates: '),
        (lambda e: {'account': [[LAM, RATE, STEPS]]}, 'epsilon: '),
        (lambda e: {'lam': LAM / 2}, 'lam: '),
        (lambda e: {'seeded': True}, 'comes from a seed'),
        (lambda e: {'epsilon': 101.0}, 'is spent'),
    ],
)
def test_a_report_that_claims_too_little_fails(tmp_path, lie, caught):
    changes = lie(wor_epsilon(HISTORY, DELTA, 'pld_wor'))
    texts = failures(saved(tmp_path, privacy(**changes)))
    assert any(caught in text for text in texts)


@pytest.mark.parametrize('times', [1.5, 1 + 1e-9])
def test_more_noise_than_the_ledger_says_was_drawn_fails(
    tmp_path, ledger, times
):
    # Epsilon is right, and all that the report says of noise agrees.
    path, head = ledger
    more = {
        'noise_multiplier': 2 * LAM * times,
        'lam': LAM * times,
        'account': [[2 * LAM * times, RATE, STEPS]],
        'ledger_head': head,
    }
    report = saved(tmp_path, privacy(**more))
    (text,) = failures(report, ledger=path)
    assert 'ledger: steps of other noise' in text


def test_a_rate_that_is_not_the_ledgers_fails(tmp_path, ledger):
    path, head = ledger
    less = {
        'sample_rates': [[RATE / 2, STEPS]],
        'account': [[2 * LAM, RATE / 2, STEPS]],
        'ledger_head': head,
    }
    report = saved(tmp_path, privacy(**less))
    texts = failures(report, ledger=path)
    assert any('ledger: steps of other noise' in text for text in texts)


def test_a_lie_of_the_paper_s_mechanism_is_refuted(tmp_path):
    low = wor_epsilon(HISTORY, DELTA, 'rdp_wor') / 2
    report = saved(tmp_path, privacy(mechanism='rdp_wor', epsilon=low))
    (text,) = failures(report)
    assert 'epsilon: ' in text


def test_more_steps_on_the_ledger_than_in_the_report_fail(tmp_path, ledger):
    path, head = ledger
    few = STEPS - 2
    epsilon = wor_epsilon([(2 * LAM, RATE, few)], DELTA, 'pld_wor')
    report = privacy(
        steps=few,
        sample_rates=[[RATE, few]],
        epsilon=epsilon,
        ledger_head=head,
    )
    texts = failures(saved(tmp_path, report), ledger=path)
    assert any(f'{STEPS} lines were paid for' in text for text in texts)
    assert any('ledger: epsilon ' in text for text in texts)


@pytest.mark.parametrize('damage', ['change', 'drop', 'cut'])
def test_a_ledger_that_was_changed_or_shortened_fails(
    tmp_path, ledger, damage
):
    path, head = ledger
    lines = path.read_text().splitlines()
    if damage == 'change':
        entry = json.loads(lines[3])
        entry['body']['spent'][0] *= 10
        lines[3] = json.dumps(entry)
    elif damage == 'drop':
        del lines[3]
    else:
        # At the end of a line the chain is whole: the digest tells.
        del lines[-2:]
    path.write_text('\n'.join(lines) + '\n')
    texts = failures(saved(tmp_path, privacy(ledger_head=head)), ledger=path)
    wanted = 'other or more lines' if damage == 'cut' else 'was changed'
    assert any(wanted in text for text in texts)


def test_other_weights_fail(tmp_path):
    state = {'a': torch.ones(2), 'b': torch.zeros(3)}
    promise = Guarantee('removal', 'gone', (), model=fingerprint_model(state))
    path = tmp_path / 'weights.pt'
    torch.save(state, path)
    assert not failures(saved(tmp_path, promise), model=path)
    torch.save({**state, 'b': torch.tensor([0.0, 0.0, 1e-30])}, path)
    (text,) = failures(saved(tmp_path, promise), model=path)
    assert 'not those' in text


@pytest.mark.parametrize(
    'request_', [{'nodes': [5]}, {'features': [7]}, {'edges': [[7, 9]]}]
)
def test_what_was_removed_and_is_there_fails(tmp_path, request_):
    data = Data(
        x=torch.eye(3),
        edge_index=torch.tensor([[1, 2], [2, 1]]),
        n_id=torch.tensor([5, 7, 9]),
    )
    path = tmp_path / 'data.pt'
    torch.save(data.to_dict(), path)
    (text,) = failures(saved(tmp_path, removal(**request_)), data=path)
    assert 'is still there' in text
    kept = data.subgraph(torch.tensor([False, False, True]))
    torch.save([kept.to_dict()], path)
    assert not failures(saved(tmp_path, removal(**request_)), data=path)


@pytest.mark.parametrize(
    ('request_', 'caught'),
    [
        ({'edges': [[7, 9]]}, True),
        ({'edges': [[9, 7]]}, True),
        ({'directed_edges': [[9, 7]]}, True),
        ({'directed_edges': [[7, 9]]}, False),
    ],
)
def test_the_other_direction_of_a_removed_edge_is_found(
    tmp_path, request_, caught
):
    # Somebody left (9, 7) there, and took (7, 9) out.
    data = Data(
        x=torch.eye(3),
        edge_index=torch.tensor([[2, 0], [1, 1]]),
        n_id=torch.tensor([5, 7, 9]),
    )
    path = tmp_path / 'data.pt'
    torch.save(data.to_dict(), path)
    found = failures(saved(tmp_path, removal(**request_)), data=path)
    assert len(found) == caught


@pytest.mark.parametrize(
    ('part', 'graphs', 'said'),
    [
        # By position, by name, and one graph by itself.
        ({'1': {'nodes': [3]}}, [2, 4], {FAILS: 'node 3 of graph 1 is'}),
        ({'1': {'nodes': [3]}}, (2, 3), {HOLDS: 'by its name'}),
        ({'0': {'nodes': [3]}}, 4, {FAILS: 'node 3 of graph 0 is still'}),
        ({'a': {'nodes': [3]}}, {'b': 4, 'a': 2}, {HOLDS: 'by its name'}),
        ({'a': {'nodes': [3]}}, {'b': 2, 'a': 4}, {FAILS: 'of graph a is'}),
        (
            {'1': {'nodes': [3]}},
            [2],
            {UNKNOWN: 'no graph 1 in the file', HOLDS: 'by its name'},
        ),
        ({'1': {'whole': True}}, [2], {HOLDS: 'by its name'}),
        ({'1': {'whole': True}}, [2, 2], {FAILS: 'data: graph 1 is still'}),
        (
            {'0': {'labels': [1]}},
            2,
            {UNKNOWN: 'whether a label is', HOLDS: 'by its name'},
        ),
        (
            {'0': {'changed_labels': [1]}},
            2,
            {UNKNOWN: 'whether what was replaced', HOLDS: 'by its name'},
        ),
    ],
)
def test_data_are_by_name_or_position(tmp_path, part, graphs, said):
    def graph(nodes):
        edges = torch.zeros(2, 0, dtype=torch.int64)
        return {'edge_index': edges, 'num_nodes': nodes}

    if isinstance(graphs, dict):
        content = {name: graph(n) for name, n in graphs.items()}
    elif isinstance(graphs, int):
        content = graph(graphs)
    else:
        content = type(graphs)(graph(n) for n in graphs)
    torch.save(content, tmp_path / 'data.pt')
    promise = Guarantee(
        'removal', 'gone', (), kind='removal', values={'request': part}
    )
    found = check_report(saved(tmp_path, promise), data=tmp_path / 'data.pt')
    texts = {e.status: e.text for e in found if ': data: ' in e.text}
    assert texts.keys() == said.keys()
    assert all(text in texts[status] for status, text in said.items())


@pytest.mark.parametrize('content', [torch.ones(2), [1], {'a': [1]}])
def test_data_that_are_no_graphs_are_refused(tmp_path, content):
    torch.save(content, tmp_path / 'data.pt')
    with pytest.raises(ValueError, match='dictionaries of tensors'):
        check_report(
            saved(tmp_path, removal(nodes=[1])), data=tmp_path / 'data.pt'
        )


def test_what_no_promise_names_is_said(tmp_path, ledger):
    path, head = ledger
    report = saved(tmp_path, privacy())
    torch.save({'a': torch.ones(1)}, tmp_path / 'weights.pt')
    found = check_report(report, ledger=path, model=tmp_path / 'weights.pt')
    texts = {e.text: e.status for e in found if e.status != HOLDS}
    assert texts == {
        '1. private training: ledger: the report has no digest of its '
        'lines': UNPROVED,
        'no guarantee speaks of a model': UNKNOWN,
    }
    # What it names and nobody hands in.
    found = check_report(saved(tmp_path, privacy(ledger_head=head)))
    (text,) = [e.text for e in found if e.status != HOLDS]
    assert text.endswith('ledger: it was not handed in (--ledger)')


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        *product(('path', 'ledger', 'model', 'data', 'witness'), (0, b'a')),
        ('path', None),
    ],
)
def test_what_is_no_path_is_refused_by_its_name(tmp_path, name, value):
    # The model 0 was read from the keyboard.
    files = {'path': saved(tmp_path, privacy()), name: value}
    with pytest.raises(TypeError, match=f"'{name}' needs to be a path"):
        check_report(**files)


def removed_reports():
    data = cycle(16)
    node = NodeClassifier(lam=0.1).fit(data)
    shards = ShardedUnlearner(
        lambda: torch_geometric.nn.GCN(5, 4, 1, 2), num_shards=2, epochs=1
    ).fit(data)
    graphs = ScatteringClassifier(GraphScattering(J=2, Q=1, L=2)).fit(
        dataset()
    )
    for unlearner, whole in ((node, data), (shards, data), (graphs, None)):
        yield unlearner.remove(RemovalRequest(nodes=[3])), whole


def test_reports_of_removals_are_checked_against_data(tmp_path):
    # They had no field that the checker could have read.
    for report, data in removed_reports():
        data = dataset()[0] if data is None else data
        torch.save(data.to_dict(), tmp_path / 'data.pt')
        path = saved(tmp_path, report.guarantee())
        (text,) = failures(path, data=tmp_path / 'data.pt')
        assert 'node 3 of graph 0 is still there' in text
        keep = torch.arange(data.num_nodes) != 3
        left = data.subgraph(keep)
        left.n_id = keep.nonzero().view(-1)
        torch.save(left.to_dict(), tmp_path / 'data.pt')
        assert not failures(path, data=tmp_path / 'data.pt')
        # Nobody's name is on a page.
        page = TrustReport.load(path).to_markdown()
        assert "'nodes'" not in page


def test_the_command_says_it_in_lines_and_in_its_status(tmp_path):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, '-m', 'pyg_trust', 'check', *arguments],
            capture_output=True,
            text=True,
        )

    done = command(str(saved(tmp_path, privacy())))
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(HOLDS) for line in done.stdout.splitlines())
    done = command(str(saved(tmp_path, privacy(epsilon=0.01))))
    assert done.returncode == 1
    assert FAILS in done.stdout
    done = command(str(tmp_path / 'nothing.json'))
    assert done.returncode == 2
    assert 'nothing.json' in done.stderr
    # What is used wrongly differs from what is not proved.
    open_ = privacy(mechanism='rdp_fdp')
    assert command(str(saved(tmp_path, open_))).returncode == 3
    assert command().returncode == 2
    assert '3  nothing fails' in command('--help').stdout


def test_the_command_knows_its_name_and_version(capsys):
    for asked in ('--version', '--help'):
        with pytest.raises(SystemExit) as end:
            main([asked])
        assert end.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f'pyg_trust {pyg_trust.__version__}\n')
    assert 'usage: python -m pyg_trust [' in told


def test_releases_of_version_0_1_0_are_said_to_leak(tmp_path):
    for version, leaks in (('0.1.0', True), ('0.2.0.dev0', False)):
        each = replace(privacy(), origin={'pyg_trust': version})
        told = failures(saved(tmp_path, each))
        assert any('leak' in text for text in told) == leaks


def test_a_report_that_is_saved_can_be_checked(tmp_path):
    promises = [privacy()] * 101
    check_report(saved(tmp_path, *promises[:100]))
    with pytest.raises(ValueError, match=r"'guarantees'.* 100 promises"):
        TrustReport.of(*promises)


def first(name, value):
    """A change of a field of the first promise."""

    def change(report):
        report['guarantees'][0][name] = value

    return change


MALFORMED = {
    'has the fields': lambda r: r.update(more=1),
    r"has the fields \['created', 'schema": lambda r: r.pop('guarantees'),
    'layout is 3': lambda r: r.update(schema_version=3),
    "'schema_version'": lambda r: r.update(schema_version=0),
    'no time zone': lambda r: r.update(created='2026-01-01T00:00:00'),
    "'guarantees' is no list": lambda r: r.update(guarantees={}),
    'more than 100 promises': lambda r: r.update(
        guarantees=r['guarantees'] * 101
    ),
    'promises nothing': lambda r: r.update(guarantees=[]),
    "'kind' is no text": first('kind', 1),
    r'\(ValueError: a promise is empty': first('promise', ''),
    'a promise is empty': first('procedure', ''),
    "'assumptions' is no list": first('assumptions', 'a text'),
    "'not_covered' is no list": first('not_covered', ['a', 1]),
    "'checked' is no list": first('checked', ('a', 1)),
    "'values' is no dictionary": first('values', [1]),
    "'spent' and 'budget' are not": first('budget', {'another': 1.0}),
    "'history' has 'another'": first('history', {'another': [1.0]}),
    "'history'": first('history', {'epsilon': ['much']}),
}


@pytest.mark.parametrize('text', MALFORMED)
def test_a_malformed_report_is_refused_by_what_is_wrong(tmp_path, text):
    path = saved(tmp_path, privacy())
    report = json.loads(path.read_text())
    assert read_report(path)[0] <= 2
    MALFORMED[text](report)
    report.pop('digest', None)
    path.write_text(json.dumps(report))
    with pytest.raises(ValueError, match=text):
        read_report(path)


def test_a_hundred_promises_are_read_and_the_first_layout(tmp_path):
    path = saved(tmp_path, privacy())
    report = json.loads(path.read_text())
    report.pop('digest', None)
    report |= {'schema_version': 1, 'guarantees': report['guarantees'] * 100}
    path.write_text(json.dumps(report))
    version, stated = read_report(path)
    assert (version, len(stated)) == (1, 100)


def test_a_pure_epsilon_is_taken_off_to_the_last_bit(tmp_path):
    # Half a unit of the last place is lost where doubles are subtracted.
    refused = 0
    for z in range(3, 9):
        low, high = 0.0, gaussian_epsilon(2 / z, DELTA) * 1.01
        mu2 = Fraction(2, z) ** 2
        while (middle := (low + high) / 2) not in (low, high):
            holds = judge_mu(mu2, middle, DELTA) == HOLDS
            low, high = (low, middle) if holds else (middle, high)
        pure = 0.49 * math.ulp(high)
        assert high - pure == high
        rest = Fraction(high) - Fraction(pure)
        changes = {
            **{'account': [[z, 1.0, 1]], 'steps': 1, 'sample_rates': [[1, 1]]},
            **{'noise_multiplier': z, 'lam': z / 2, 'pure_epsilon': pure},
            'epsilon': high,
        }
        _, (stated,) = read_report(saved(tmp_path, privacy(**changes)))
        ((status, _),) = epsilon.check_epsilon(stated)
        assert status == judge_mu(mu2, rest, DELTA)
        refused += status != HOLDS
    assert refused


def test_many_steps_are_merged_to_few_that_spend_more():
    draw = random.Random(0)
    lines = [
        (4 + draw.random(), 0.01 + 0.01 * draw.random(), draw.randint(1, 9))
        for _ in range(200)
    ]
    assert epsilon.fewer(lines[:8], 8) == lines[:8]
    for most in (1, 8, 199):
        made = epsilon.fewer(lines, most)
        assert len(made) <= most
        assert sum(n for *_, n in made) == sum(n for *_, n in lines)
        for z, q, _ in lines:
            assert any(least <= z and q <= rate for least, rate, _ in made)
    # No coarser than it takes.
    near, far = (4.0, 0.01, 2), (8.0, 0.02, 1)
    almost = (4.0 * (1 + 1e-7), 0.01 * (1 - 1e-7), 3)
    assert sorted(epsilon.fewer([near, far, almost], 2)) == [
        (4.0, 0.01, 5),
        far,
    ]


def test_a_rate_is_the_share_of_whole_numbers_that_it_is(tmp_path):
    _, (stated,) = read_report(saved(tmp_path, privacy(batch_size=3)))
    for law, q, rate in (
        ('wor', 3 / 7, Fraction(3, 7)),
        ('wor', 1.0, Fraction(1)),
        ('coins', 3 / 7, Fraction(3 / 7)),
        ('wor', 3 / 7 + 1e-9, Fraction(3 / 7 + 1e-9)),
        ('wor', 0.9, Fraction(0.9)),
    ):
        ((z, found, n),) = epsilon._exact(stated, [(0.1, q, 5)], law)
        assert (z, found, n) == (Fraction(0.1), rate, 5)
    other = replace(stated, values={**stated.values, 'batch_size': 1})
    ((_, found, _),) = epsilon._exact(other, [(0.1, 1 / 7, 5)], 'wor')
    assert found == Fraction(1, 7)
    for size in (0, -3, None, 3.0, True):
        other = replace(stated, values={**stated.values, 'batch_size': size})
        ((_, found, _),) = epsilon._exact(other, [(0.1, 1 / 7, 5)], 'wor')
        assert found == Fraction(1 / 7)


def test_draws_of_a_group_have_one_size():
    # At another rate it would be so many of another number of units.
    values = {'units_per_row': 2, 'batch_size': 4}
    one, two, every = (8.0, 0.125, 1), (8.0, 0.25, 1), (80.0, 1.0, 1)
    for mechanism, lines, status in (
        ('pld_group_wor', [one], HOLDS),
        ('pld_group_wor', [one, one], HOLDS),
        ('pld_group_wor', [one, every], HOLDS),
        ('pld_group_wor', [one, two], UNPROVED),
        ('pld_group', [one, two], HOLDS),
    ):
        each = SimpleNamespace(values={**values, 'mechanism': mechanism})
        assert epsilon.proved(each, lines, Fraction(9), 0.1) == status


@pytest.mark.parametrize(
    'line', [[0.0, 0.5, 1], [1.0, 0.0, 1], [1.0, 1.1, 1], [1.0, 0.5, 0]]
)
def test_what_is_no_step_is_in_no_account(tmp_path, line):
    _, (stated,) = read_report(saved(tmp_path, privacy()))
    good = replace(stated, values={'account': [[1.0, 1.0, 1]]})
    assert epsilon.account(good) == [(1.0, 1.0, 1)]
    with pytest.raises(ValueError, match=r'account|rate'):
        epsilon.account(replace(stated, values={'account': [line]}))


@pytest.mark.parametrize('request_', [[], {'0': 1}, {'0': {}, '1': 2}])
def test_a_request_is_by_graph(request_):
    assert requests({'request': {'0': {'nodes': [1]}}})
    with pytest.raises(ValueError, match="'request'"):
        requests({'request': request_})


def test_arguments_are_by_name(tmp_path):
    _, (stated,) = read_report(saved(tmp_path, privacy()))
    assert arguments(replace(stated, origin={})) == {}
    with pytest.raises(ValueError, match="'arguments'"):
        arguments(replace(stated, origin={'arguments': [1]}))


def promised(kind='privacy', **changes):
    fields = {
        **{'procedure': 'another', 'kind': kind, 'promise': 'it is so'},
        **{'values': {}, 'origin': {}, 'history': {}, 'model': ''},
        **{'data': '', 'spent': {}, 'budget': {}, **changes},
    }
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({}, ''),
        ({'values': {'ledger_head': ''}}, 'ledger'),
        ({'values': {'ledger_head': None}}, ''),
        ({'model': 'm'}, 'model'),
        ({'data': 'd'}, ''),
        ({'values': {'data_fields': ['x']}}, ''),
        ({'data': 'd', 'values': {'data_fields': ['x']}}, 'data'),
        ({'kind': 'removal'}, ''),
        ({'kind': 'removal', 'values': {'request': {}}}, 'ledger data'),
        ({'kind': 'measurement', 'values': {'request': {}}}, ''),
        ({'values': {'witness_digest': '0' * 64}}, 'witness'),
        ({'values': {'witness_digest': '0' * 63}}, ''),
        ({'values': {'witness_digest': '0' * 65}}, ''),
        ({'values': {'witness_digest': 10**63}}, ''),
    ],
)
def test_a_promise_names_the_files_that_it_rests_on(changes, named):
    found = checker._named(promised(**changes))
    assert list(found) == ['ledger', 'model', 'data', 'witness']
    assert [name for name in found if found[name]] == named.split()


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({}, [(HOLDS, 'a: 1 of 2 is spent')]),
        ({'budget': {'a': 1.0}}, [(HOLDS, 'a: 1 of 1 is spent')]),
        ({'budget': {'a': 0.9}}, [(FAILS, 'a: 1 of 0.9 is spent')]),
        (
            {'values': {'a': 1.1}},
            [(FAILS, 'a: 1 is said to be'), (HOLDS, 'a: 1 of 2')],
        ),
        (
            {'history': {'a': [1.0, 0.5]}},
            [(HOLDS, 'a: 1 of 2'), (FAILS, 'a: its history ends at 0.5')],
        ),
        ({'history': {'a': [0.5, 1.0]}}, [(HOLDS, 'a: 1 of 2')]),
        ({'history': {'a': []}}, [(HOLDS, 'a: 1 of 2')]),
        (
            {'values': {'seeded': True}},
            [(HOLDS, 'a: 1 of 2'), (FAILS, 'the noise comes from a seed')],
        ),
        (
            {'promise': f'{SEEDED}; with secret noise, it is so'},
            [(HOLDS, 'a: 1 of 2'), (FAILS, 'the noise comes from a seed')],
        ),
    ],
)
def test_what_is_spent_is_compared_with_fields_and_budget(changes, said):
    start = {'spent': {'a': 1.0}, 'budget': {'a': 2.0}}
    for kind, what in (('privacy', 'private'), ('robustness', 'certified')):
        each = promised(kind, **{**start, **changes})
        found = [*checker._check_fields(each)]
        assert [status for status, _ in found] == [s for s, _ in said]
        for (_, text), (_, wanted) in zip(found, said, strict=True):
            assert text.startswith(wanted)
            assert 'a seed' not in text or text.endswith(f'nothing is {what}')


@pytest.mark.parametrize('kind', ['accuracy', 'measurement'])
def test_what_was_measured_is_not_checked(kind):
    ((status, text),) = checker._BY_KIND[kind](promised(kind))
    assert (status, 'run it again' in text) == (UNKNOWN, True)


def test_promises_are_told_apart_by_their_number(tmp_path):
    torch.save({'a': torch.ones(2)}, tmp_path / 'weights.pt')
    state = fingerprint_model({'a': torch.ones(2)})
    first = Guarantee('one', 'it is so', (), model=state)
    other = Guarantee('two', 'it is so', (), model='0' * 64)
    path = saved(tmp_path, first, other)
    found = [str(e) for e in check_report(path, model=tmp_path / 'weights.pt')]
    assert [text[:20] for text in found] == [
        'holds        the rep',
        'not checked  1. one:',
        'not checked  2. two:',
        'holds        1. one:',
        'FAILS        2. two:',
    ]
