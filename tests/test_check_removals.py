"""A removal's residual, proved by whoever is handed what remains."""

import io
import json
import math
import time
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from auditing import forge, forged, honest, reworded
from forgetting import forgotten
from torch_geometric.data import Data

from pyg_trust.check import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    check_report,
    removals,
)
from pyg_trust.check.__main__ import main
from pyg_trust.check.answers import read_report
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport, save_tensors
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import NodeClassifier, ScatteringClassifier
from pyg_trust.verify import chain, removal
from pyg_trust.verify.arrays import read_arrays
from pyg_trust.verify.promises import claim


@pytest.fixture(scope='module')
def handed(tmp_path_factory):
    """A report, and all that it takes to check it."""
    folder = tmp_path_factory.mktemp('handed')
    model, report, data = forgotten('appnp')
    TrustReport.of(report.verified(model.verify())).save(folder / 'trust.json')
    model.save_for_check(folder / 'proof.npz')
    save_tensors(folder / 'weights.pt', {'weight': model.weight})
    ledger = model.ledger.state_dict()
    (folder / 'ledger.json').write_text(json.dumps(ledger))
    return folder, model, data


def check(folder, report='trust.json', proof='proof.npz', **kwargs):
    return check_report(
        folder / report,
        data=folder / proof,
        model=folder / 'weights.pt',
        ledger=folder / 'ledger.json',
        **kwargs,
    )


def command(folder, proof, report='trust.json'):
    files = {
        'data': proof,
        'model': folder / 'weights.pt',
        'ledger': folder / 'ledger.json',
    }
    named = [f'--{name}={path}' for name, path in files.items()]
    return main(['check', str(folder / report), *named])


def test_a_removal_holds_with_all_that_it_names(handed, capsys):
    folder, *_ = handed
    found = check(folder)
    assert {each.status for each in found} == {HOLDS}
    said = '\n'.join(map(str, found))
    assert 'the residual is within its bound: at most' in said
    assert 'is paid for' in said
    assert command(folder, folder / 'proof.npz') == 0
    # What it can't say without: the residual.
    assert main(['check', str(folder / 'trust.json')]) == 3
    capsys.readouterr()


def rewritten(folder, name, **changes):
    arrays = {**read_arrays(folder / 'proof.npz'), **changes}
    np.savez(folder / name, **arrays)
    return arrays


def statuses(found, text):
    return {each.status for each in found if text in each.text}


def test_other_data_are_not_those_of_the_report(handed):
    folder, _model, data = handed
    arrays = read_arrays(folder / 'proof.npz')
    x = arrays['x'].copy()
    x[3, 1] += 1e-9
    labels = arrays['labels'].copy()
    labels[np.flatnonzero(labels >= 0)[:2]] = [0, 2]
    for name, changes, what in (
        ('x.npz', {'x': x}, 'graph and release'),
        ('labels.npz', {'labels': labels}, 'graph and release'),
        ('lam.npz', {'lam': arrays['lam'] * 2}, 'setting'),
        ('std.npz', {'std': arrays['std'] * 2}, 'setting'),
        ('released.npz', {'released': arrays['W']}, 'data: weights'),
        ('W.npz', {'W': arrays['W'] + 9e-3}, 'the noise between'),
    ):
        rewritten(folder, name, **changes)
        found = check(folder, proof=name)
        assert statuses(found, what) == {FAILS}
        assert command(folder, folder / name) == 1
    # Another graph altogether: all of it.
    other = NodeClassifier('appnp', alpha=0.2, weight_decay=0.1)
    other = other.fit(data)
    other.remove(RemovalRequest(nodes=[70]))
    other.save_for_check(folder / 'other.npz')
    texts = [e.text for e in check(folder, proof='other.npz')]
    assert any('graph and release, not as' in text for text in texts)


def test_a_residual_above_its_bound_is_not_proved_or_fails(handed):
    folder, _model, _ = handed
    W = read_arrays(folder / 'proof.npz')['W']
    # Within what noise hides, and beyond what is paid for.
    rewritten(folder, 'far.npz', W=W + 1e-5)
    found = check(folder, proof='far.npz')
    assert statuses(found, 'the residual is within') == {FAILS}
    assert statuses(found, 'the noise between') == {HOLDS}
    whole = json.loads((folder / 'trust.json').read_text())
    each = whole['guarantees'][0]
    values = each['values']
    # A bound that rounding alone is above proves nothing.
    for bound, status in ((1e-18, UNPROVED), (0.0, UNPROVED)):
        whole['guarantees'][0]['values']['bound'] = bound
        (folder / 'less.json').write_text(forged(reworded(whole)))
        found = check(folder, 'less.json')
        seen = statuses(found, 'the residual is within')
        assert seen == {status} or (bound and seen == {FAILS})
    values = whole['guarantees'][0]['values']
    values['bound'], values['num_train'] = 1.0, values['num_train'] + 1
    (folder / 'more.json').write_text(forged(whole))
    found = check(folder, 'more.json')
    assert statuses(found, 'the residual is within') == {FAILS}
    assert {e.status for e in found} != {HOLDS}


def test_what_was_removed_and_is_still_there_fails(handed):
    folder, _model, _data = handed
    arrays = read_arrays(folder / 'proof.npz')
    whole = json.loads((folder / 'trust.json').read_text())
    values = whole['guarantees'][0]['values']
    trained = int(np.flatnonzero(arrays['labels'] >= 0)[0])
    edge = [0, int(arrays['col'][arrays['col'] != 0][0])]
    for part, left in (
        ({'nodes': [3]}, 'node 3'),
        ({'labels': [trained]}, 'label of node'),
        ({'labels': [71]}, ''),
        ({'nodes': [70, 71], 'features': [72]}, ''),
        ({'edges': [edge]}, 'edge 0 ->'),
        # A loop that propagation adds is no edge of the data.
        ({'edges': [[3, 3]]}, ''),
        ({'edges': [[9, 9]]}, 'edge 9 -> 9'),
    ):
        values['request'] = {'0': part}
        (folder / 'kept.json').write_text(forged(whole))
        found = check(folder, 'kept.json')
        texts = [e.text for e in found if 'is still there' in e.text]
        assert bool(texts) == bool(left)
        assert all(left in text for text in texts)


# By hand #####################################################################


NODES, GRAPHS = 'ForgetReport, nodes', 'ForgetReport, graphs'
BUDGET = {'budget': 6.0, 'release_std': 0.5, 'lam': 0.1, 'delta': 1e-5}
# 6 / (0.5 * 0.1 * 40) is 3 deviations, and of these a share each.
OF_NODES = {**BUDGET, 'num_train': 40, 'history': [0.25, 0.5], 'bound': 3.0}


def promised(name, **values):
    """A claim, and the promise that states it."""
    each = forge(honest(name), **values)
    return claim(each['procedure'], each['values']), SimpleNamespace(**each)


@pytest.mark.parametrize(
    ('history', 'bound', 'last'),
    [
        ([0.25, 0.5], 3.0, 1.5),
        ([0.25, 0.5], 3.2, 1.6),
        ([0.5, 0.25], 1.0, 0.75),
        ([0.25, 0.5, 0.1], 0.4, 0.3),
    ],
)
def test_each_epsilon_is_of_its_shift(history, bound, last):
    # A budget is searched for: its epsilon alone may be off, by 1e-9.
    every = 3 * math.hypot(*history)
    for off, wanted in ((1, 'hhh'), (1 - 8e-10, 'FFh'), (1 - 1.2e-9, 'FFF')):
        values = {
            'epsilon': gaussian_epsilon(last, 1e-5) * off,
            'epsilon_transcript': gaussian_epsilon(every, 1e-5) * off,
            'target_epsilon': gaussian_epsilon(3.0, 1e-5) * off,
            **{'history': history, 'bound': bound},
        }
        made = promised(NODES, **{**OF_NODES, **values})
        checks = removals.check_removal(made[0])
        assert ''.join(status[0] for status, _ in checks) == wanted
    # A part of a removal that noise covers is of its mu and its budget.
    for off, wanted in ((1, 'hh'), (1 - 1e-6, 'FF')):
        values = {
            **{'units': 1, 'mu_units': 0.5, 'shift': 0.0, 'budget': 2.0},
            **{'delta': 1e-5, 'epsilon': gaussian_epsilon(0.5, 1e-5) * off},
            'target_epsilon': gaussian_epsilon(2.0, 1e-5) * off,
        }
        checks = removals.check_removal(
            promised('CoverageReport', **values)[0]
        )
        assert ''.join(status[0] for status, _ in checks) == wanted
    # Of graphs one has to measure, too; of others all.
    for name in (GRAPHS, 'ForgetReport, shards'):
        *_, last = removals.check_removal(promised(name)[0])
        assert last[0] == UNKNOWN
    ((status, said),) = removals.check_removal(
        promised('ForgetReport, objective')[0]
    )
    assert (status, 'a theorem' in said) == (UNPROVED, True)


@pytest.mark.parametrize(
    ('change', 'wanted'),
    [
        ({}, 'hhhhh'),
        # The last line with this removal, and what is before it.
        ({'request': [1, 1, 2], 'seals': 'ddd', 'head': 'l1'}, 'hhhhF'),
        ({'request': [1, 1, 2], 'seals': 'ddd', 'head': 'l0'}, 'hhhFF'),
        ({'seals': 'xyx'}, 'hhF'),
        ({'seals': ['', '', ''], 'data': ''}, 'hhF'),
        ({'request': [2, 3, 2]}, 'hhF'),
        ({'named': '0'}, 'hhhhh'),
        ({'named': '1'}, 'hhF'),
        ({'budget': 1.5}, 'hhhhh'),
        ({'budget': 1.4}, 'hFhhh'),
        ({'spent': [0.75, 1.5, 1.0]}, 'hhhhF'),
        ({'spent': [0.75, 1.5, 0.75 * (1 + 1e-12)]}, 'hhhhh'),
        ({'spent': [0.7, 1.5, 0.75]}, 'hhhhF'),
        ({'broken': 2}, 'Fhhhh'),
        ({'head': 'l1'}, 'hhhFh'),
        ({'head': None}, 'hhhnh'),
        ({'history': [0.25, 0.5]}, 'hhhhF'),
        ({'before': 'y'}, 'hhhhh'),
        ({'before': 'x'}, 'hhhhFh'),
    ],
)
def test_a_ledger_of_removals_is_compared_line_by_line(change, wanted):
    held = {
        **{'request': [2, 3, 1], 'seals': 'xyd', 'spent': [0.75, 1.5, 0.75]},
        **{'broken': 0, 'head': 'l2', 'history': [0.25, 0.5, 0.25]},
        **{'budget': 2.0, 'data': 'd', 'named': None, **change},
    }
    bodies = []
    for node, seal, spent in zip(
        held['request'], held['seals'], held['spent'], strict=True
    ):
        part = {'nodes': [node]}
        part = part if held['named'] is None else {held['named']: part}
        bodies.append({'request': part, 'data': seal, 'spent': spent})
    lines = chain.Chain(bodies, ['l0', 'l1', 'l2'], held['broken'])
    c, each = promised(
        NODES,
        **{**OF_NODES, 'history': held['history']},
        request={'0': {'nodes': [1]}},
        ledger_head=held['head'],
    )
    each.data_sha256 = held['data']
    if 'before' in held:
        each.values['before'] = held['before']
    found = [*removals.check_ledger(c, each, lines, held['budget'])]
    assert ''.join(status[0] for status, _ in found) == wanted
    if 'amounts' in found[-1][1]:
        assert ('not those' in found[-1][1]) == (found[-1][0] == FAILS)


def test_what_the_last_release_paid_has_to_cover_it(handed):
    folder, *_ = handed
    arrays = read_arrays(folder / 'proof.npz')
    _, (each,) = read_report(folder / 'trust.json')
    *others, last = each.values['history']
    tiny = [1e-9] * len(others)
    for history, wanted in (
        ([*tiny, last], HOLDS),
        ([*others, 1e-9], UNPROVED),
    ):
        c = claim(each.procedure, {**each.values, 'history': history})
        *_, (status, _) = removals.check_proof(c, each, arrays, False)
        assert status == wanted


def many_graphs(count):
    """A classifier of graphs, and a request for each of most of them."""
    graphs = []
    for k in range(count):
        ring = torch.arange(5 + k % 4)
        pairs = torch.stack([ring, ring.roll(1)])
        graph = Data(
            x=torch.sin(1.0 + k + ring.float()).view(-1, 1),
            edge_index=torch.cat([pairs, pairs.flip(0)], 1),
            y=torch.tensor([k % 2]),
        )
        graphs.append(graph)
    model = ScatteringClassifier(
        GraphScattering(J=2, Q=1, L=2), weight_decay=0.05
    )
    return model.fit(graphs), [RemovalRequest(graphs=[k]) for k in range(70)]


@pytest.mark.parametrize('kind', ['nodes', 'graphs'])
def test_reports_of_many_removals_stay_short_and_hold(kind, tmp_path):
    if kind == 'nodes':
        model, _, _ = forgotten('appnp')
        left = [int(v) for v in model.n_id if int(v) > 70][:70]
        steps = [RemovalRequest(nodes=[v]) for v in left]
    else:
        model, steps = many_graphs(90)
    for request in steps:
        report = model.remove(request)
    assert len(report.history) == 64
    files = {'ledger': tmp_path / 'ledger.json', 'model': tmp_path / 'w.pt'}
    files['ledger'].write_text(json.dumps(model.ledger.state_dict()))
    save_tensors(files['model'], {'weight': model.weight})
    TrustReport.of(report).save(tmp_path / 'trust.json')
    found = check_report(tmp_path / 'trust.json', **files)
    assert not statuses(found, '') & {FAILS}
    assert statuses(found, 'its amounts are') == {HOLDS}
    assert statuses(found, 'epsilon_transcript') == {HOLDS}
    # What came before counts.
    whole = json.loads((tmp_path / 'trust.json').read_text())
    values = whole['guarantees'][0]['values']
    for amounts in (
        values['history'],
        *whole['guarantees'][0]['history'].values(),
    ):
        amounts[0] *= 0.9
    (tmp_path / 'less.json').write_text(forged(reworded(whole)))
    found = check_report(tmp_path / 'less.json', **files)
    assert statuses(found, 'its amounts are') == {FAILS}


def test_without_a_ledger_some_releases_are_not_all(handed):
    # The last alone was called all of them: no line seals how many there are.
    folder, *_ = handed
    whole = json.loads((folder / 'trust.json').read_text())
    (each,) = whole['guarantees']
    values = each['values']
    last = values['history'][-1:]
    assert len(values['history']) > 1
    values.update(ledger_head=None, history=last)
    values['epsilon_transcript'] = values['epsilon']
    for amounts in each['history'].values():
        del amounts[:-1]
    (folder / 'one.json').write_text(forged(reworded(whole)))
    files = {'data': folder / 'proof.npz', 'model': folder / 'weights.pt'}
    for ledger in (None, folder / 'ledger.json'):
        found = check_report(folder / 'one.json', ledger=ledger, **files)
        assert statuses(found, 'ledger: ') - {HOLDS}


# Damaged files ###############################################################


def damaged(whole):
    """Files that are no proof."""
    yield b''
    yield b'PK\x05\x06' + b'\0' * 18
    yield from (whole[:k] for k in (10, len(whole) // 2, len(whole) - 1))
    source = np.random.default_rng(0)
    for at in source.integers(len(whole), size=25):
        bad = bytearray(whole)
        bad[at] ^= 1 << int(source.integers(8))
        yield bytes(bad)
    arrays = {}
    with np.load(io.BytesIO(whole)) as file:
        arrays = dict(file)

    def saved(how=np.savez, **changes):
        stream = io.BytesIO()
        how(stream, **{**arrays, **changes})
        return stream.getvalue()

    yield saved(np.savez_compressed)
    yield saved(x=np.full_like(arrays['x'], np.nan))
    yield saved(W=np.array([[object()]]))
    yield saved(x=arrays['x'].astype('>f8'))
    yield saved(schema=np.array(2))
    lied = {name: value for name, value in arrays.items() if name != 'x'}
    for header in (
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 4)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10, -4)}",
        "{'descr': '<f8', 'shape': __import__('os')}",
        '(' * 5000,
    ):
        text = header.encode() + b'\n'
        lie = b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text
        stream = io.BytesIO()
        np.savez(stream, **lied)
        with zipfile.ZipFile(stream, 'a') as archive:
            archive.writestr('x.npy', lie + b'\0' * 64)
        yield stream.getvalue()
    stream = io.BytesIO(whole)
    with zipfile.ZipFile(stream, 'a') as archive:
        content = archive.read('x.npy')
        with pytest.warns(UserWarning, match='Duplicate'):
            archive.writestr('x.npy', content)
    yield stream.getvalue()


def test_damaged_proofs_are_one_error_in_little_memory(handed, capsys):
    folder, *_ = handed
    whole = (folder / 'proof.npz').read_bytes()
    path, tried = folder / 'bad.npz', 0
    tracemalloc.start()
    for content in damaged(whole):
        path.write_bytes(content)
        start = time.perf_counter()
        code = command(folder, path)
        said = capsys.readouterr()
        if code == 2 and said.err:
            # One line, which names the file.
            assert said.err.count('\n') == 1
            assert 'bad.npz' in said.err
            assert 'Traceback' not in said.err
            tried += 1
        else:
            # A flipped bit of a name in the zip, or of nothing.
            assert code in (0, 1)
        assert time.perf_counter() - start < 20
    assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    tracemalloc.stop()
    assert tried > 25


def test_work_without_end_is_not_begun(handed, monkeypatch):
    folder, *_ = handed
    # A graph of a kilobyte may have a million levels.
    rewritten(folder, 'long.npz', weights=np.full(10**6, 1e-9))
    monkeypatch.setattr(removal, 'MOST_WORK', 10**9)
    start = time.perf_counter()
    found = check(folder, proof='long.npz')
    assert time.perf_counter() - start < 20
    assert statuses(found, 'the residual is within') == {UNPROVED}
    # An honest one is within the limit, whatever the machine.
    assert removal.work(read_arrays(folder / 'proof.npz')) < 10**6


def test_what_the_kernel_has_no_theorem_for_is_said(handed, tmp_path):
    *_, data = handed
    kwargs = {'measure': 'appnp', 'alpha': 0.2, 'features': 'push'}
    model = NodeClassifier(weight_decay=0.1, **kwargs).fit(data)
    report = model.remove(RemovalRequest(nodes=[3]))
    found = model.verify()
    assert found.ok
    assert not found.proved
    with pytest.raises(ValueError, match='save_for_check'):
        model.save_for_check(tmp_path / 'a.npz')
    said = report.verified(found).guarantee()
    assert said.values['residual_checked'] == 'not by the kernel'
    assert any('not by the kernel' in text for text in said.assumptions)
