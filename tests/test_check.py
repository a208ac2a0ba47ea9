"""The checker, against reports, ledgers, weights and data that lie."""

import json
import math
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
import torch_geometric
from auditing import (
    DELTA,
    EPSILON,
    HISTORY,
    LAM,
    RATE,
    STEPS,
    failures,
    forge,
    forged,
    honest,
    judged,
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
from pyg_trust.check.answers import read_report
from pyg_trust.ledger import PrivacyLedger
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.poisson import poisson_epsilon
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import (
    Guarantee,
    TrustReport,
    fingerprint_data,
    fingerprint_model,
    save_tensors,
)
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import (
    NodeClassifier,
    ScatteringClassifier,
    ShardedUnlearner,
)
from pyg_trust.verify.accounting import judge, judge_mu
from pyg_trust.verify.chain import Chain
from pyg_trust.verify.promises import claim


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / 'run.ledger'
    book = PrivacyLedger(path, {'mechanism': 'a'})
    for _ in range(STEPS):
        book.record(2 * LAM, RATE)
    head = book.head
    book.close()
    return path, head


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
    promise = Guarantee(
        'removal', 'gone', (), weights_sha256=fingerprint_model(state)
    )
    path = tmp_path / 'weights.pt'
    save_tensors(path, state)
    assert not failures(saved(tmp_path, promise), model=path)
    save_tensors(path, {**state, 'b': torch.tensor([0.0, 0.0, 1e-30])})
    (text,) = failures(saved(tmp_path, promise), model=path)
    assert 'not those' in text


@pytest.mark.parametrize(
    ('request_', 'caught'),
    [
        *(({'nodes': [5]}, True), ({'features': [7]}, True)),
        *(({'edges': [[7, 9]]}, True), ({'edges': [[9, 7]]}, True)),
        ({'directed_edges': [[9, 7]]}, True),
        ({'directed_edges': [[7, 9]]}, False),
    ],
)
def test_what_was_removed_and_is_there_fails(tmp_path, request_, caught):
    # Somebody left (9, 7) there, and took (7, 9) out.
    data = Data(
        x=torch.eye(3),
        edge_index=torch.tensor([[2, 0], [1, 1]]),
        n_id=torch.tensor([5, 7, 9]),
    )
    path = tmp_path / 'data.pt'
    save_tensors(path, data)
    found = failures(saved(tmp_path, removal(**request_)), data=path)
    assert ['is still there' in text for text in found] == [True] * caught
    save_tensors(path, [data.subgraph(torch.tensor([False, False, True]))])
    assert not failures(saved(tmp_path, removal(**request_)), data=path)


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
        return Data(edge_index=edges, num_nodes=nodes)

    if isinstance(graphs, dict):
        content = {name: graph(n) for name, n in graphs.items()}
    elif isinstance(graphs, int):
        content = graph(graphs)
    else:
        content = type(graphs)(graph(n) for n in graphs)
    save_tensors(tmp_path / 'data.pt', content)
    promise = Guarantee(
        'removal', 'gone', (), kind='removal', values={'request': part}
    )
    found = check_report(saved(tmp_path, promise), data=tmp_path / 'data.pt')
    texts = {e.status: e.text for e in found if ': data: ' in e.text}
    assert texts.keys() == said.keys()
    assert all(text in texts[status] for status, text in said.items())


def test_data_that_are_no_graphs_are_refused(tmp_path):
    save_tensors(tmp_path / 'data.pt', {'a': torch.ones(2)})
    with pytest.raises(ValueError, match='a graph has no edges'):
        check_report(
            saved(tmp_path, removal(nodes=[1])), data=tmp_path / 'data.pt'
        )


def test_what_no_promise_names_is_said(tmp_path, ledger):
    path, head = ledger
    report = saved(tmp_path, privacy())
    save_tensors(tmp_path / 'weights.pt', {'a': torch.ones(1)})
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
    assert text.endswith('ledger: it was not passed (--ledger)')


def test_what_is_no_path_is_refused_by_its_name(tmp_path):
    # The model 0 was read from the keyboard.
    for name in ('path', 'ledger', 'model', 'data', 'witness'):
        for value in (0, b'a', *([None] if name == 'path' else [])):
            files = {'path': saved(tmp_path, privacy()), name: value}
            with pytest.raises(TypeError, match=f"'{name}' needs to be a pa"):
                check_report(**files)


def removed_reports():
    data = cycle(16)
    node = NodeClassifier(weight_decay=0.1).fit(data)
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
        save_tensors(tmp_path / 'data.pt', data)
        path = saved(tmp_path, report.guarantee())
        (text,) = failures(path, data=tmp_path / 'data.pt')
        assert 'node 3 of graph 0 is still there' in text
        keep = torch.arange(data.num_nodes) != 3
        left = data.subgraph(keep)
        left.n_id = keep.nonzero().view(-1)
        save_tensors(tmp_path / 'data.pt', left)
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


def test_a_ledger_alone_says_what_to_do(tmp_path, ledger, capsys):
    model = NodeClassifier(weight_decay=0.1).fit(cycle(16))
    removals = tmp_path / 'removals.json'
    removals.write_text(json.dumps(model.ledger.state_dict()))
    for path in (ledger[0], removals):
        assert main(['check', str(path)]) == 2
        told = capsys.readouterr().err
        assert "TrustReport.of(report).save('trust.json')" in told
        assert 'check trust.json --ledger LEDGER' in told
    # The manifest of shards has the ledger among others.
    shards = ShardedUnlearner(
        lambda: torch_geometric.nn.GCN(5, 4, 1, 2),
        num_shards=2,
        folder=tmp_path / 'folder',
        epochs=1,
    )
    shards.fit(cycle(16))
    manifest = tmp_path / 'folder' / 'manifest.json'
    report = str(saved(tmp_path, removal(nodes=[1])))
    assert main(['check', report, '--ledger', str(manifest)]) == 2
    told = capsys.readouterr().err
    assert 'json.dump(model.ledger.state_dict(), file)' in told
    removals.write_text(json.dumps(shards.ledger.state_dict()))
    assert main(['check', report, '--ledger', str(removals)]) != 2


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
    with pytest.raises(ValueError, match=r"'guarantees'.* 100 entries"):
        TrustReport.of(*promises)


def first(name, value):
    """A change of a field of the first promise."""

    def change(report):
        report['guarantees'][0][name] = value

    return change


MALFORMED = {
    "'more' does not fit": lambda r: r.update(more=1),
    "'guarantees' does not": lambda r: r.pop('guarantees'),
    "'schema_version' does not": lambda r: r.update(schema_version=0),
    "schema_version' does not": lambda r: r.update(schema_version=True),
    'no time zone': lambda r: r.update(created='2026-01-01T00:00:00'),
    "guarantees' does not": lambda r: r.update(guarantees={}),
    "guarantees' does": lambda r: r.update(guarantees=r['guarantees'] * 101),
    "'guarantees' does": lambda r: r.update(guarantees=[]),
    "'guarantees[0].kind'": first('kind', 1),
    "'guarantees[0].promise'": first('promise', ''),
    "'guarantees[0].procedure'": first('procedure', ''),
    "'guarantees[0].assumptions'": first('assumptions', 'a text'),
    "'guarantees[0].not_covered[1]'": first('not_covered', ['a', 1]),
    "'guarantees[0].checked[1]'": first('checked', ['a', 1]),
    "'guarantees[0].values'": first('values', [1]),
    "'spent' and 'budget' are of": first('budget', {'another': 1.0}),
    "'guarantees[0].history.epsilon[0]'": first(
        'history', {'epsilon': ['much']}
    ),
}


@pytest.mark.parametrize('text', MALFORMED)
def test_a_malformed_report_is_refused_by_what_is_wrong(tmp_path, text):
    path = saved(tmp_path, privacy())
    report = json.loads(path.read_text())
    assert read_report(path)[0] == 4
    MALFORMED[text](report)
    path.write_text(forged(report))
    for read in (read_report, TrustReport.load):
        with pytest.raises(ValueError, match=re.escape(text)):
            read(path)


@pytest.mark.parametrize(
    'damage',
    [
        lambda text: text.replace('100.0', '1' + '0' * 400),
        lambda text: text.replace('100.0', '1e999'),
        lambda text: text.replace('100.0', 'Infinity'),
        lambda text: '[' * 100_000,
        lambda text: text[:-1] + ', "created": "now"}',
    ],
)
def test_numbers_and_depths_that_nothing_holds_are_refused(tmp_path, damage):
    path = saved(tmp_path, privacy())
    text = forged(json.loads(path.read_text()))
    assert damage(text) != text
    path.write_text(damage(text))
    with pytest.raises(ValueError, match='trust report in JSON'):
        check_report(path)


def test_no_damage_leaves_a_report_with_another_text(tmp_path):
    report = TrustReport.of(privacy())
    path = saved(tmp_path, privacy())
    report.save(path)
    good, draw = path.read_bytes(), random.Random(0)
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(bad))
            kind = draw.randrange(3)
            if kind == 0:
                bad[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                del bad[at : at + draw.randrange(1, 40)]
            else:
                bad[at:at] = bad[at : at + draw.randrange(1, 40)]
        path.write_bytes(bytes(bad))
        try:
            assert TrustReport.load(path) == report
        except ValueError:
            continue


def training(folder, **changes):
    """A promise of private training as JSON."""
    text = saved(folder, privacy(**changes)).read_text()
    (each,) = json.loads(text)['guarantees']
    return each


@pytest.mark.parametrize(
    'changes',
    [
        {'epsilon': 0.5 * EPSILON},
        {'mechanism': 'rdp_wor', 'epsilon': 0.2 * EPSILON},
        {'account': [[LAM, RATE, STEPS]], 'noise_multiplier': LAM},
        {'account': [[2 * LAM, RATE, 3 * STEPS]]},
        {'pure_epsilon': 0.1},
        {'delta': DELTA / 1e3},
        {'epsilon': 101.0},
        {'seeded': True},
        # A unit that is there or not costs less than one that is replaced.
        {
            'mechanism': 'pld_poisson',
            'sampling': 'poisson',
            'epsilon': 0.7 * poisson_epsilon(HISTORY, DELTA, 'replace'),
        },
        {'together': [[2, EPSILON]]},
    ],
    ids=str,
)
def test_a_training_that_claims_too_little_fails(tmp_path, changes):
    assert not judged(tmp_path, training(tmp_path))
    (text,) = judged(tmp_path, training(tmp_path, **changes))
    wanted = 'seed' if 'seeded' in changes else r'epsilon: |together: '
    assert re.search(wanted, text)


def test_what_the_kernel_can_not_prove_is_said(tmp_path):
    own = training(tmp_path, unit='pairs of somebody', neighboring='my own')
    for each, status, said in (
        (training(tmp_path, mechanism='rdp_fdp'), UNPROVED, 'no proof for'),
        (training(tmp_path, vouched='me'), UNKNOWN, 'me vouches for it'),
        (own, UNKNOWN, 'a loader of the user'),
        ({**training(tmp_path), 'procedure': 'x'}, UNKNOWN, 'has this name'),
    ):
        assert not judged(tmp_path, each)
        assert any(said in t for t in judged(tmp_path, each, status=status))


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
        rest = Fraction(high) - Fraction(pure)
        each = training(
            tmp_path,
            account=[[float(z), 1.0, 1]],
            noise_multiplier=float(z),
            pure_epsilon=pure,
            epsilon=high,
        )
        lines = judged(tmp_path, each, status=HOLDS)
        held = any(': epsilon: ' in text and 'steps' in text for text in lines)
        assert held == (judge_mu(mu2, rest, DELTA) == HOLDS)
        refused += not held
    assert refused


def test_draws_of_a_group_have_one_size():
    # At another rate it would be so many of another number of units.
    one, two, every = (8.0, 0.125, 1), (8.0, 0.25, 1), (80.0, 1.0, 1)
    for mechanism, lines, status in (
        ('pld_group_wor', [one], HOLDS),
        ('pld_group_wor', [one, every], HOLDS),
        ('pld_group_wor', [one, two], UNPROVED),
        ('pld_group', [one, two], HOLDS),
    ):
        values = {'units_per_row': 2, 'batch_size': 4, 'delta': 0.1}
        values['mechanism'] = mechanism
        c = claim('private training', {**privacy().values, **values})
        assert epsilon.proved(c, lines, Fraction(9)) == status


def test_releases_are_proved_by_their_mu(tmp_path):
    # Other steps of an engine are on no line here.
    for name, off, engine, status in (
        ('AggregationReport', 1.0, False, HOLDS),
        ('AggregationReport', 1.0, True, UNPROVED),
        ('AggregationReport', 1 - 1e-6, True, FAILS),
        ('AggregationReport', 1 - 1e-6, False, FAILS),
        ('LinkReport', 1.0, False, HOLDS),
        ('LinkReport', 1 - 1e-6, False, FAILS),
    ):
        each = honest(name)
        each = forge(each, epsilon=each['values']['epsilon'] * off)
        each['origin']['arguments']['engine'] = engine
        texts = judged(tmp_path, each, status=status)
        assert any('is claimed of releases with mu' in t for t in texts)


# Ledgers #####################################################################


def held(procedure, lines, **header):
    """What is said of a ledger: H, F, p or c for each line."""
    bodies = [header, *(line or {'more': 1} for line in lines)]
    chain = Chain(bodies, [f'l{i}' for i in range(len(bodies))], 0)
    chain.links[-1] = 'l2'

    def letters(values, data='d'):
        c = claim(procedure, values)
        each = SimpleNamespace(kind=c.kind, values=values, data_sha256=data)
        found = [*checker._check_ledger(c, each, (chain, None))]
        names = {HOLDS: 'H', FAILS: 'F', UNPROVED: 'p', UNKNOWN: 'c'}
        return ''.join(names[status] for status, _ in found)

    return letters


# Releases of mu .3 and .4, which are .5 together.
SPENT = [{'spent': [2 / 0.3, 1.0]}, {'spent': [2 / 0.4, 1.0]}]


@pytest.mark.parametrize(
    ('change', 'wanted'),
    [
        ({}, 'HHHH'),
        ({'mu': 0.6}, 'HHHH'),
        # Sums are rounded: a mu may be off by 1e-9.
        ({'mu': 0.5 * (1 - 8e-10)}, 'HHHH'),
        ({'mu': 0.5 * (1 - 1.2e-9)}, 'HHFHH'),
        ({'off': 1 - 1e-9}, 'HHFH'),
        ({'releases': 3}, 'HFHH'),
        ({'lines': [*SPENT, {}]}, 'HHHH'),
        # What is pure adds to epsilon as it is.
        ({'lines': [*SPENT, {'epsilon': 0.1}]}, 'HHFH'),
        ({'lines': [*SPENT, {'epsilon': 0.1}], 'more': 0.11}, 'HHHH'),
        ({'ledger_head': 'l1'}, 'HHHF'),
        ({'ledger_head': None}, 'HHHp'),
        ({'header': {'relation': 'node'}}, 'HFHHH'),
        ({'header': {'max_degree': None, 'data': 'd', 'other': 1}}, 'HHHH'),
        ({'header': {'mechanism': 'a'}}, 'c'),
        ({'header': {'mechanism': 'a'}, 'ledger_head': None}, ''),
    ],
    ids=str,
)
def test_a_ledger_of_sums_is_compared_field_by_field(change, wanted):
    change = dict(change)
    header = {'mechanism': 'gaussian', **change.pop('header', {})}
    letters = held('private aggregation', change.pop('lines', SPENT), **header)
    cost = gaussian_epsilon(0.5, DELTA) * change.pop('off', 1.0)
    values = {
        **honest('AggregationReport')['values'],
        **{'delta': DELTA, 'releases': 2, 'ledger_head': 'l2'},
        'epsilon': cost + change.pop('more', 0.0),
        'mu_aggregation': change.pop('mu', 0.5),
        **change,
    }
    assert letters(values) == wanted


STEPPED = [{'spent': [0.9, 0.25]}, {'spent': [0.9, 0.25]}]


@pytest.mark.parametrize(
    ('values', 'header', 'wanted'),
    [
        ({'mechanism': 'pld_wor'}, {}, 'HHHH'),
        # How Poisson accounts call neighbours, which training does not say.
        ({'mechanism': 'pld_wor'}, {'form': 'replace'}, 'HHHH'),
        # The kernel has no proof of it.
        ({'mechanism': 'rdp_fdp'}, {}, 'HHpH'),
        ({'mechanism': 'rdp_fdp'}, {'occurrences': 3}, 'HFHpH'),
        ({'mechanism': 'pld_group'}, {'terms': 3}, 'HFHHH'),
        # A quarter of 8 roots, of 9 and of 20.
        ({'mechanism': 'pld_group_wor'}, {'num_roots': 8}, 'HHHH'),
        ({'mechanism': 'pld_group_wor'}, {'num_roots': 9}, 'HHHH'),
        ({'mechanism': 'pld_group_wor'}, {'num_roots': 20}, 'HFHHH'),
        ({'account': [[0.9, 0.25, 3]]}, {}, 'HFFHH'),
        ({'account': [[0.9, 0.2, 2]]}, {}, 'HHFHH'),
        ({'account': [[0.8, 0.25, 2]]}, {}, 'HHFHH'),
        ({'ledger_head': 'l1'}, {}, 'HHHF'),
        ({'ledger_head': None}, {}, 'HHHp'),
    ],
    ids=str,
)
def test_a_ledger_of_steps_is_compared_field_by_field(
    monkeypatch, values, header, wanted
):
    monkeypatch.setattr(checker, 'proved', lambda *_: HOLDS)
    given = {'units_per_row': 2, 'batch_size': 2, 'ledger_head': 'l2'}
    given['account'] = [[0.9, 0.25, 2]]
    values = {**privacy().values, **given, **values}
    letters = held('private training', STEPPED, accountant=header)
    assert letters(values) == wanted
    # Of a step without noise, or with no rate, nothing is said.
    for spent in ([0.0, 0.25], [0.9, 0.0], [-1.0, 1.0]):
        one = [{'spent': spent}]
        lines = held('private training', one, accountant=header)
        with pytest.raises(ValueError, match='spent'):
            lines(values)


# Texts of others #############################################################

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
    for page in (printed, str(report), report.to_html(), report.to_markdown()):
        assert not re.search('[\x1b\u202e\u2028]', page)
        assert not any(
            line.startswith('holds  ') for line in page.splitlines()[1:]
        )
    assert len(printed.splitlines()) == 3


@pytest.mark.parametrize('part', ['ledger', 'model', 'data'])
@pytest.mark.parametrize(
    'content',
    [b'5', b'text', b'{"entries": 5}', b'{"entries": [5]}', b'\x80\x02.'],
)
def test_other_files_are_refused_in_one_line(tmp_path, capsys, part, content):
    path = tmp_path / 'file'
    path.write_bytes(content)
    report = saved(tmp_path, removal(nodes=[1]))
    assert main(['check', str(report), f'--{part}', str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"'{part}'" in line


@pytest.mark.parametrize(
    'request_',
    [5, {'0': 5}, {'0': {'nodes': 5}}, {'0': {'edges': [[1]]}}, {'0': None}],
)
def test_requests_of_another_form_fail(tmp_path, request_):
    promise = Guarantee(
        'removal', 'gone', (), kind='removal', values={'request': request_}
    )
    data = Data(edge_index=torch.zeros(2, 0), num_nodes=1)
    save_tensors(tmp_path / 'data.pt', data)
    found = check_report(saved(tmp_path, promise), data=tmp_path / 'data.pt')
    assert {each.status for each in found[1:]} <= {FAILS, UNKNOWN}


def test_data_are_compared_by_the_fields_that_were_used(tmp_path):
    data = cycle(6)

    def found(fields=('x', 'edge_index'), **changes):
        save_tensors(
            tmp_path / 'data.pt', Data(**{**data.to_dict(), **changes})
        )
        promise = Guarantee(
            *('measured', 'it is so', ()),
            kind='measurement',
            data_sha256=fingerprint_data(data, fields=('x', 'edge_index')),
            values={'data_fields': list(fields)},
        )
        return check_report(
            saved(tmp_path, promise), data=tmp_path / 'data.pt'
        )[-1]

    assert found().status == found(y=data.y + 1).status == HOLDS
    last = found(x=data.x + 1)
    assert (last.status, 'graphs are not those' in last.text) == (FAILS, True)
    # Without names of fields nothing is compared, and that is said.
    assert found(()).text == 'no guarantee speaks of a data'


# Time ########################################################################


@pytest.mark.parametrize(
    ('law', 'lines', 'epsilon'),
    [
        ('replace', [(1e-3, 0.1, 5)], 1.0),
        ('replace', [(0.1, 0.9, 1)], 800.0),
        ('wor', [(3.0, 0.5, 1 << 41)], 800.0),
    ],
)
def test_steps_that_take_long_are_not_proved_soon(law, lines, epsilon):
    start = time.process_time()
    assert judge(law, lines, epsilon, 1e-5) == 'not proved'
    assert time.process_time() - start < 10
    assert judge_mu(1, 1e300, 1e-5) == 'not proved'


def test_many_different_steps_and_names_are_checked_soon(tmp_path):
    lines = [[4 + 1e-3 * i, 0.05, 1] for i in range(3000)]
    each = training(tmp_path, account=lines, epsilon=9.0)
    start = time.process_time()
    assert judged(tmp_path, each)
    names = ','.join(f'"a{i}":1' for i in range(200_000))
    (tmp_path / 'trust.json').write_text(f'{{{names},"a7":2}}')
    with pytest.raises(ValueError, match='is there twice'):
        check_report(tmp_path / 'trust.json')
    assert time.process_time() - start < 30


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
