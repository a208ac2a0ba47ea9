"""What the kernel proves again from the witness of a certificate."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_trust.certificates import ThreatModel, Witness, certify
from pyg_trust.check import check_report
from pyg_trust.nn import PPNP
from pyg_trust.report import TrustReport
from pyg_trust.testing import make_graph


def people(seed=0):
    edge_index, _ = make_graph('random').to_edge_index()
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(40, 5, generator=generator), edge_index=edge_index
    )


def certificate(seed=0, **threat):
    data = people(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    logits[:, 0] += 1
    threat.setdefault('local_budget', 1)
    return certify(logits, ThreatModel(data, **threat))


SCENARIOS = (
    {},
    {'fragile': 'both'},
    {'fragile': 'additions'},
    {'undirected': True},
)


@pytest.mark.parametrize('threat', SCENARIOS)
def test_every_robust_node_is_proved(threat):
    report = certificate(**threat)
    assert 0 < report.num_robust < 40
    assert report.verify() == 'holds'
    proved = torch.tensor(report.proof.prove())
    # No more and no fewer than what the fast code found.
    assert torch.equal(proved, report.robust)


@pytest.mark.parametrize('steps', [{}, {'K': 2}, {'K': 10}])
@pytest.mark.parametrize('normalization', ['rw', 'sym'])
@pytest.mark.parametrize('loops', [False, True])
def test_models_as_they_are_deployed(steps, normalization, loops):
    torch.manual_seed(1)
    data = people()
    model = PPNP(
        Linear(5, 3),
        alpha=0.3,
        normalization=normalization,
        add_self_loops=loops,
        **steps,
    ).eval()
    threat = ThreatModel(data, local_budget=1, undirected=True)
    report = certify(model, data, threat)
    assert report.num_robust > 0
    assert report.verify() == 'holds'
    assert torch.equal(torch.tensor(report.proof.prove()), report.robust)


def test_a_file_brings_it_back(tmp_path):
    report = certificate()
    report.proof.save(tmp_path / 'witness.npz')
    found = Witness.load(tmp_path / 'witness.npz')
    assert found.digest == report.witness_digest == report.proof.digest
    assert report.verify(found) == 'holds'
    with pytest.raises(FileExistsError):
        report.proof.save(tmp_path / 'witness.npz')
    raw = (tmp_path / 'witness.npz').read_bytes()
    for name, spoiled in (
        ('short', raw[: len(raw) // 2]),
        ('empty', b''),
        ('other', b'no witness'),
        ('flipped', raw[:900] + bytes([raw[900] ^ 1]) + raw[901:]),
    ):
        (tmp_path / name).write_bytes(spoiled)
        with pytest.raises(ValueError, match="'path'"):
            Witness.load(tmp_path / name)


def test_witnesses_are_equal_by_what_they_hold():
    one, two = certificate().proof, certificate().proof
    assert one == two
    assert one is not two
    assert one != certificate(1).proof
    assert one != one.digest
    two.arrays['scores'][0, 0] += 1
    assert one != two


def test_nothing_in_a_file_is_executed(tmp_path):
    arrays = dict(certificate().proof.arrays)
    arrays['dtype'] = np.array([{'a': 1}], dtype=object)
    np.savez(tmp_path / 'w.npz', **arrays)
    with pytest.raises(ValueError, match="'path'"):
        Witness.load(tmp_path / 'w.npz')


def test_a_witness_of_another_graph_fails():
    assert certificate(0).verify(certificate(1).proof) == 'FAILS'


def spoiled(report, **changes):
    arrays = {
        name: np.asarray(changes.get(name, lambda x: x)(value.copy()))
        for name, value in report.proof.arrays.items()
    }
    return Witness(arrays)


HOSTILE = {
    'scores': lambda x: x - 1,
    'removable': lambda x: x & False,
    'budget': lambda x: x + 1,
    'logits': lambda x: x * 2,
    'alpha': lambda x: x / 2,
    'tolerance': lambda x: x - x,
    'K': lambda x: x + 3,
    'normalization': lambda x: np.array('sym'),
    'all_pairs': lambda x: ~x,
    'reference': lambda x: (x + 1) % 3,
    'targets': lambda x: x[::-1].copy(),
    'dtype': lambda x: np.array('float64'),
}


@pytest.mark.parametrize('name', HOSTILE)
def test_every_changed_array_fails(name):
    report = certificate()
    made = spoiled(report, **{name: HOSTILE[name]})
    assert report.verify(made) == 'FAILS'


@pytest.mark.parametrize(
    'changes',
    [
        {'scores': lambda x: x * np.nan},
        {'logits': lambda x: x * np.inf},
        {'col': lambda x: x + 40},
        {'rowptr': lambda x: x[:-1]},
        {'targets': lambda x: x + 40},
        {'dtype': lambda x: np.array('float16')},
        {'normalization': lambda x: np.array('col')},
        {'alpha': lambda x: x * 0},
        {'budget': lambda x: x.astype(np.int32)},
        {'tolerance': lambda x: x - 1},
    ],
)
def test_what_is_no_witness_is_refused(changes):
    report = certificate()
    with pytest.raises(ValueError, match='witness'):
        report.verify(spoiled(report, **changes))
    arrays = dict(report.proof.arrays)
    del arrays['budget']
    with pytest.raises(ValueError, match='witness'):
        report.verify(Witness(arrays))


def test_lower_scores_prove_less_and_nothing_false():
    report = certificate()
    for shift in (1e-6, 1e-2):
        made = spoiled(report, scores=lambda x, s=shift: lowered(x, s))
        proved = torch.tensor(made.prove())
        assert not bool((proved & ~report.robust).any())
    assert not any(spoiled(report, scores=lambda x: x + 9).prove())


def lowered(scores, shift):
    scores[:, 7] -= shift
    return scores


def test_a_global_budget_has_no_witness_and_says_so():
    report = certificate(local_budget=2, global_budget=3)
    assert report.proof is None
    assert report.witness_digest.startswith('none')
    assert report.verify() == 'not proved'


def test_a_large_witness_is_left_out(monkeypatch):
    from pyg_trust.certificates import exact

    monkeypatch.setattr(exact, 'MOST_BYTES', 1000)
    report = certificate()
    assert report.proof is None
    assert 'left out' in report.witness_digest
    assert report.verify() == 'not proved'


def test_reports_have_the_digest_and_no_edges():
    report = certificate()
    values = report.guarantee().values
    assert values['witness_digest'] == report.proof.digest
    assert 'proof' not in values
    assert 'edge' not in str(report.to_dict()['proof'])


def test_the_checker_proves_a_model_with_added_self_loops(tmp_path):
    torch.manual_seed(1)
    data = people()
    model = PPNP(Linear(5, 3), alpha=0.3, add_self_loops=True).eval()
    report = certify(model, data, ThreatModel(data, local_budget=1))
    TrustReport.of(report).save(tmp_path / 'trust.json')
    report.proof.save(tmp_path / 'w.npz')
    found = check_report(tmp_path / 'trust.json', witness=tmp_path / 'w.npz')
    assert not [one for one in found if one.status == 'FAILS']
    assert [one for one in found if 'proved to stay' in one.text]


def test_a_budget_that_overflows_proves_nothing():
    # On ba488b9: no edge was added, and all eight nodes were proved.
    nodes = torch.arange(8)
    edge_index = to_undirected(torch.stack([nodes, (nodes + 1) % 8]))
    logits = torch.tensor([[1.0, 0.0]]).repeat(8, 1).double()
    logits[0, 1] = 2.5
    report = certify(
        logits,
        ThreatModel(edge_index, 'additions', local_budget=0, num_nodes=8),
    )
    assert report.verify() == 'holds'
    for budget in (1, 2**31 - 1):
        changed = {'budget': np.full(8, budget), 'all_pairs': np.array(True)}
        found = Witness({**report.proof.arrays, **changed}).prove()
        assert not any(found)
    changed['budget'] = np.full(8, 2**63 - 1)
    with pytest.raises(ValueError, match='witness'):
        Witness({**report.proof.arrays, **changed}).prove()


def test_a_witness_of_one_class_is_none():
    # On ba488b9: what has no other class was proved to stay.
    report = certificate()
    arrays = {
        **report.proof.arrays,
        'logits': report.proof.arrays['logits'][:, :1],
        'classes': np.zeros((2, 0), dtype=np.int64),
        'scores': np.zeros((0, 40)),
    }
    with pytest.raises(ValueError, match='witness'):
        Witness(arrays).prove()


@pytest.mark.parametrize(
    'lie',
    [
        {'alpha': 0.9},
        {'K': 2},
        {'normalization': 'sym'},
        {'dtype': 'float32'},
        {'tolerance': 0.5},
        {'local_budget': torch.full((40,), 7)},
        {'fixed_edges': 0},
        {'scenario': 'both'},
    ],
)
def test_a_report_that_promises_more_than_its_witness_fails(lie):
    # On ba488b9: it was said to hold.
    assert dataclasses.replace(certificate(), **lie).verify() == 'FAILS'
