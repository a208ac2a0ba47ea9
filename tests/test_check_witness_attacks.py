"""Witnesses, votes and data of an attacker who knows the code.

Each was accepted, or worse, before it was found: what somebody hands in to a
checker is the only thing that an attacker can choose.
"""

import copy
import json
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from auditing import forged, reworded
from forgetting import forgotten
from guarantees import MADE
from procedures import cycle

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.check import FAILS, HOLDS, UNKNOWN, check_report
from pyg_trust.report import TrustReport
from pyg_trust.verify import collective, pagerank, proofs
from pyg_trust.verify.arrays import fingerprint, read_arrays
from pyg_trust.verify.removal import plausible, sealed, setting


def as_json(report):
    return json.loads(TrustReport.of(report).to_json())


def exact(**threat):
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(12, 3, generator=generator).double()
    threat = {'local_budget': 1, **threat}
    return certify(logits, ThreatModel(cycle(12), **threat))


def statuses(folder, whole, arrays=None, text='witness: ', name='witness'):
    """The answers to a forger's report, digests and sentences fitted."""
    handed = {}
    if arrays is not None:
        handed[name] = folder / 'forged.npz'
        np.savez(handed[name], **arrays)
        if name == 'witness':
            values = whole['guarantees'][0]['values']
            values['witness_digest'] = proofs.digest(arrays)
    path = folder / 'trust.json'
    path.write_text(forged(reworded(whole)))
    return [
        each.status
        for each in check_report(path, **handed)
        if text in each.text
    ]


# Exact certificates ##########################################################

# Differences of these wrap around to counts: numpy then wrote beyond its
# memory, and Python was gone.
WRAPPED = [0, 2**63 - 1, -2]


@pytest.mark.parametrize('kind', ['witness', 'data'])
def test_rows_of_two_to_the_63_edges_are_refused(tmp_path, kind):
    if kind == 'witness':
        arrays = exact().proof.arrays
    else:
        model, *_ = forgotten('appnp')
        model.save_for_check(tmp_path / 'proof.npz')
        arrays = read_arrays(tmp_path / 'proof.npz')
    rowptr = arrays['rowptr'].copy()
    rowptr[:3] = WRAPPED
    np.savez(tmp_path / 'bad.npz', **{**arrays, 'rowptr': rowptr})
    # Of its own process, which may end.
    code = (
        'import sys\n'
        'from pyg_trust.verify import arrays, proofs, removal\n'
        'found = arrays.read_arrays(sys.argv[1])\n'
        'prove = {"witness": proofs.prove, "data": removal.prove}\n'
        'try:\n'
        '    prove[sys.argv[2]](found)\n'
        'except ValueError as error:\n'
        '    print(error)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, tmp_path / 'bad.npz', kind],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert 'rows' in done.stdout or 'range' in done.stdout


def test_a_class_that_is_not_predicted_is_not_said_to_be_broken(tmp_path):
    # Nothing flips, and another class than the defended one has more score.
    report = exact()
    arrays = dict(report.proof.arrays)
    wrong = (report.predicted.numpy() + 1) % 3
    arrays.update(
        reference=wrong,
        flips=np.zeros((2, 0), dtype=np.int64),
        flips_ptr=np.zeros(2, dtype=np.int64),
        flips_of=np.zeros(12, dtype=np.int64),
    )
    whole = as_json(report)
    (each,) = whole['guarantees']
    each['values'].update(num_robust=0, num_broken=12, num_unknown=0)
    assert FAILS not in statuses(tmp_path, whole, arrays)
    assert 'broken' not in each['promise']
    assert '12 have another class than the defended one' in each['promise']


def test_budgets_that_few_nodes_have_are_said(tmp_path):
    # One node may lose an edge, and "at most 1 flip at a node" is all there
    # was to read.
    budget = torch.zeros(12, dtype=torch.int64)
    whole = exact().local_budget
    budget[int(whole.argmax())] = 1
    report = exact(local_budget=budget)
    promise = report.guarantee().promise
    assert '1 flip at a node and 1 at all 12 nodes together' in promise
    for lie in ({'sum_local_budget': 12}, {'num_nodes': 13}):
        whole = as_json(report)
        whole['guarantees'][0]['values'].update(lie)
        assert FAILS in statuses(tmp_path, whole, report.proof.arrays)


def test_logits_of_a_model_are_not_proved_to_be_its_own(tmp_path):
    torch.manual_seed(0)
    report, _ = MADE['Certificate'](tmp_path)
    whole = as_json(report)
    (each,) = whole['guarantees']
    each['weights_sha256'] = each['values']['model_sha256'] = ''
    assert each['values']['model'] == 'PPNP'
    found = statuses(tmp_path, whole, report.proof.arrays)
    assert UNKNOWN in found


def test_a_tie_is_not_broken():
    # Without edges a score is alpha times the logit: -1 to the last bit.
    arrays = {
        'rowptr': np.zeros(2, dtype=np.int64),
        'logits': np.array([[0.0, 2.0]]),
        'flips': np.zeros((2, 0), dtype=np.int64),
        'flips_ptr': np.zeros(2, dtype=np.int64),
        'flips_of': np.zeros(1, dtype=np.int64),
        'targets': np.zeros(1, dtype=np.int64),
        'reference': np.zeros(1, dtype=np.int64),
        'global_budget': np.array(-1),
        'undirected': np.array(False),
        'dtype': np.array('exact arithmetic'),
    }
    none = np.zeros(0, dtype=np.int64)
    graphs = pagerank.Graphs(
        *(arrays['rowptr'], none, none.astype(bool), none[:0]),
        *(np.zeros((2, 0), dtype=np.int64), False),
    )._replace(budget=np.zeros(1, dtype=np.int64))
    model = pagerank.Model(0.5)
    for need, broken in ((1, []), (Fraction(1) - Fraction(1, 2**30), [0])):
        made = proofs.attacked(arrays, graphs, model, Fraction(need))
        assert list(made) == broken


# Collective certificates #####################################################


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    torch.manual_seed(0)
    report, _ = MADE['CollectiveCertificate'](tmp_path_factory.mktemp('made'))
    return as_json(report), report.proof.arrays


def test_a_proof_of_deleted_edges_is_none_of_other_changes(together, tmp_path):
    for lie in (
        {'edges': [1, 0]},
        {'edges': [0, 0], 'features': [1, 0]},
        {'edges': [0, 0], 'features': [0, 1]},
    ):
        whole = copy.deepcopy(together[0])
        whole['guarantees'][0]['values'].update(lie)
        assert FAILS in statuses(tmp_path, whole, together[1])


def test_who_breaks_alone_is_not_said_to_stay_alone(together, tmp_path):
    whole, arrays = copy.deepcopy(together[0]), together[1]
    values = whole['guarantees'][0]['values']
    assert len(collective.read(arrays).within().owner) > 0
    values.update(one_by_one=12, guaranteed=12, counted=12)
    assert FAILS in statuses(tmp_path, whole, arrays)


def test_nothing_that_was_seen_is_not_all_that_was_there(together, tmp_path):
    # A witness without targets proves that none of its targets breaks.
    whole = copy.deepcopy(together[0])
    arrays = dict(together[1])
    arrays.update(
        owner=arrays['owner'][:0],
        points=arrays['points'][:0],
        multipliers=np.zeros(0),
    )
    values = whole['guarantees'][0]['values']
    values.update(bound=0.0, guaranteed=12, counted=12, one_by_one=12)
    assert FAILS not in statuses(tmp_path, whole, arrays)
    found = check_report(
        tmp_path / 'trust.json', witness=tmp_path / 'forged.npz'
    )
    (said,) = [e.text for e in found if 'witness: at most' in e.text]
    assert 'if its targets see and bear what it has of them' in said
    assert any('how many break together' in e.text for e in found)


def test_a_witness_of_many_nodes_takes_no_memory():
    # A kilobyte took six gigabytes, and a minute.
    numbers = {
        'owner': [0],
        'points': [[1]],
        'budget': [1],
        'rows': [],
        'near_ptr': [0, 1],
        'near': [5],
        'num_targets': 1,
        'attackers': -1,
        'num_nodes': 2**26,
    }
    arrays = {k: np.array(x, dtype=np.int64) for k, x in numbers.items()}
    tracemalloc.start()
    # As few rows as with a handful of nodes.
    arrays['multipliers'] = np.zeros(3)
    assert collective.prove(arrays) == 1
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


# Votes #######################################################################


@pytest.fixture(scope='module')
def voted(tmp_path_factory):
    kept = {}

    def make(name):
        if name not in kept:
            torch.manual_seed(0)
            report, _ = MADE[name](tmp_path_factory.mktemp('made'))
            kept[name] = as_json(report)
        return copy.deepcopy(kept[name])

    return make


@pytest.mark.parametrize('name', ['VoteCertificate', 'PoisonCertificate'])
def test_a_vote_without_another_class_is_none(voted, tmp_path, name):
    whole = voted(name)
    values = whole['guarantees'][0]['values']
    votes = values.get('views', values.get('num_shards'))
    total = values['targets']
    values['tallies'] = [[total, votes, -1, -1, 0]]
    values['certified'] = {str(votes): total}
    assert FAILS in statuses(tmp_path, whole, text='')


def test_changes_of_both_kinds_are_not_promised_at_once(voted):
    (each,) = voted('SmoothedCertificate')['guarantees']
    assert {name.split('_')[0] for name in each['values']['certified']} == {
        'edges',
        'features',
    }
    assert 'after one of these: ' in each['promise']


# Removal #####################################################################


def removed(folder):
    model, report, _ = forgotten('appnp')
    model.save_for_check(folder / 'proof.npz')
    whole = as_json(report.verified(model.verify()))
    return whole, read_arrays(folder / 'proof.npz')


@pytest.mark.parametrize('name', ['lam', 'std', 'secure'])
def test_a_proof_of_another_penalty_or_noise_fails(tmp_path, name):
    whole, arrays = removed(tmp_path)
    each = whole['guarantees'][0]
    arrays = dict(arrays)
    if name == 'secure':
        arrays['secure'] = np.array(not arrays['secure'])
    elif name == 'std':
        # Noise of twice the deviation, and a report that says half of it.
        off = arrays['released'] - arrays['W']
        arrays['std'] = np.array(arrays['std'] * 2)
        arrays['released'] = arrays['W'] + 2 * off
        assert plausible(arrays) > 1e-9
        each['weights_sha256'] = fingerprint('weight', arrays['released'])
    else:
        arrays['lam'] = np.array(arrays['lam'] * (1 + 1e-9))
    each['data_sha256'] = sealed(arrays)
    each['values']['setting'] = setting(arrays)
    found = statuses(tmp_path, whole, arrays, 'data: ', 'data')
    assert FAILS in found
    assert HOLDS in found
