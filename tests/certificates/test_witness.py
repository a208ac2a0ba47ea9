"""What the kernel proves again from the witness of a certificate."""

import json
import time

import numpy as np
import pytest
import torch
from auditing import forged
from procedures import cycle
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_trust.certificates import ThreatModel, Witness, certify, exact
from pyg_trust.check import check_report
from pyg_trust.nn import PPNP
from pyg_trust.report import TrustReport
from pyg_trust.testing import make_graph
from pyg_trust.verify import proofs as kernel


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
    # No more and no fewer than what the fast code found.
    assert report.proof.prove() == report.status.tolist()


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
    assert report.proof.prove() == report.status.tolist()


def test_roundoff_of_large_logits_is_paid_for_by_prices_too():
    # Some nodes are robust by local budgets alone but for their roundoff.
    data, generator = people(), torch.Generator().manual_seed(3)
    common = 1e5 * torch.randn(40, 1, generator=generator)
    data.x = common + torch.randn(40, 3, generator=generator)
    model = PPNP(torch.nn.Identity(), alpha=0.3).eval()
    threat = ThreatModel(
        data, local_budget=1, global_budget=1, undirected=True
    )
    report = certify(model, data, threat, method='dual')
    assert report.roundoff > 1e-3
    assert report.proof.prove() == report.status.tolist()


def test_a_file_brings_it_back(tmp_path):
    report = certificate()
    report.proof.save(tmp_path / 'witness.npz')
    found = Witness.load(tmp_path / 'witness.npz')
    assert found.digest == report.witness_digest == report.proof.digest
    assert report.verify(found) == 'holds'
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


@pytest.mark.parametrize('threat', [*SCENARIOS, {'global_budget': 2}], ids=str)
def test_a_file_is_small_and_holds_the_same(tmp_path, threat):
    report = certificate(**threat)
    report.proof.save(tmp_path / 'w.npz')
    found = Witness.load(tmp_path / 'w.npz')
    assert found == report.proof
    for name, value in report.proof.arrays.items():
        assert found.arrays[name].dtype == value.dtype
        assert np.array_equal(found.arrays[name], value)
    # As files were written before.
    np.savez(tmp_path / 'wide.npz', **report.proof.arrays)
    assert Witness.load(tmp_path / 'wide.npz') == report.proof
    sizes = [(tmp_path / f'{x}.npz').stat().st_size for x in ('w', 'wide')]
    assert sizes[0] < sizes[1]


def test_what_has_no_small_form_is_saved_as_it_is(tmp_path):
    report = certificate()
    for number, changes in enumerate(
        (
            {'scores': lambda x: x * np.nan},
            {'scores': lambda x: x * 1e200},
            {'scores': lambda x: x * 0 - 0.0},
            {'scores': lambda x: np.where(x > 0, 2.0**-90, x)},
            {'scores': lambda x: x * 2.0**60},
            {'logits': lambda x: x[:0]},
            {'flips': lambda x: x + 99},
            {'flips': lambda x: x[:, ::-1]},
            {'flips_ptr': lambda x: x[:-1]},
            {'rowptr': lambda x: x * 2},
            {'budget': lambda x: x - 2**40},
        )
    ):
        made = spoiled(report, **changes)
        made.save(tmp_path / f'{number}.npz')
        found = Witness.load(tmp_path / f'{number}.npz')
        assert found.digest == made.digest


@pytest.mark.parametrize(
    'spoil',
    [
        lambda a: {'flips.bits': a['flips.bits'][:, :-1]},
        lambda a: {'flips.bits': a['flips.bits'].astype(np.int64)},
        lambda a: {'flips.bits': a['flips.bits'][0]},
        lambda a: {'rowptr': a['rowptr'] * 200},
        lambda a: {'rowptr': a['rowptr'][:0]},
        lambda a: {'pairs': a['pairs'][0]},
        lambda a: {'budget': a['budget'].astype(np.float32)},
        lambda a: {'removable': None},
        lambda a: {'scores.places': None},
        # More flips than a file may hold.
        lambda a: {},
    ],
)
def test_a_file_of_other_flips_is_refused(tmp_path, spoil, monkeypatch):
    report = certificate()
    report.proof.save(tmp_path / 'w.npz')
    with np.load(tmp_path / 'w.npz') as file:
        arrays = dict(file)
    changes = spoil(arrays)
    arrays = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
    np.savez(tmp_path / 'other.npz', **arrays)
    if not changes:
        assert Witness.load(tmp_path / 'other.npz') == report.proof
        total = report.proof.arrays['flips'].shape[1]
        monkeypatch.setattr(kernel, 'MOST_FLIPS', total)
        assert Witness.load(tmp_path / 'other.npz') == report.proof
        monkeypatch.setattr(kernel, 'MOST_FLIPS', total - 1)
    with pytest.raises(ValueError, match="'path'"):
        Witness.load(tmp_path / 'other.npz')


@pytest.mark.parametrize('scale', [1e-6, 1.0, 1e3])
def test_rounding_loses_a_billionth_of_a_margin_at_most(scale):
    # Of scores that the file rounds, and of the proof; and no status.
    data = people()
    logits = torch.randn(40, 3, dtype=torch.float64) * scale
    threat = ThreatModel(data, local_budget=1)
    report = certify(logits, threat, tol=0.0)
    assert report.verify() == 'holds'
    held = report.proof.arrays
    proved = kernel.lower(held, *kernel.read(held))
    top = float(logits.abs().max())
    # By units of the file, and by the kernel's of 45 bits.
    most = 2.0**-32 * min(1.0, top) + 2.0**-36 * top
    assert scale != 1.0 or most < 1e-9
    for k, margins in enumerate(proved):
        for c, margin in margins.items():
            lost = float(report.class_margins[k, c]) - float(margin)
            assert -1e-12 * scale < lost < most
    # Five or six bytes are enough for every score.
    assert not (np.ldexp(held['scores'], 47 - 10) % 1).any() or scale < 1


def test_scores_that_decide_by_a_hair_are_not_rounded():
    # The least margin is above the tolerance by 1e-10: units would take it.
    data, logits = people(), torch.randn(40, 3, dtype=torch.float64)
    threat = ThreatModel(data, local_budget=1)
    report = certify(logits, threat)
    least = float(report.lower[report.robust].min())
    made = certify(logits, threat, tol=least - 1e-11)
    assert made.num_robust == report.num_robust
    assert made.verify() == 'holds'


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


def test_a_changed_array_fails_and_what_is_no_witness_is_refused():
    report = certificate()
    for name, change in (
        ('scores', lambda x: x - 1),
        ('reference', lambda x: (x + 1) % 3),
        ('dtype', lambda x: np.array('float64')),
        ('global_budget', lambda x: x + 8),
    ):
        assert report.verify(spoiled(report, **{name: change})) == 'FAILS'
    for name, change in (
        ('scores', lambda x: x * np.nan),
        ('logits', lambda x: x * np.inf),
        ('dtype', lambda x: np.array('float16')),
        ('budget', lambda x: x.astype(np.int32)),
    ):
        with pytest.raises(ValueError, match='witness'):
            report.verify(spoiled(report, **{name: change}))
    arrays = dict(report.proof.arrays)
    del arrays['budget']
    with pytest.raises(ValueError, match='witness'):
        report.verify(Witness(arrays))


def test_lower_scores_prove_less_and_nothing_false():
    report = certificate()
    for shift in (1e-6, 1e-2):
        made = spoiled(report, scores=lambda x, s=shift: lowered(x, s))
        proved = torch.tensor(made.prove()) == 1
        assert not bool((proved & ~report.robust).any())
    assert 1 not in spoiled(report, scores=lambda x: x + 9).prove()


def lowered(scores, shift):
    scores[:, 7] -= shift
    return scores


def certified(seed, method='auto', steps=None, normalization='rw', **threat):
    """A model on a small graph, and its certificate under all budgets."""
    torch.manual_seed(seed)
    data = cycle(16, seed)
    model = PPNP(
        *(Linear(5, 3), 0.2, steps), normalization=normalization
    ).eval()
    model.reset_parameters()  # to weights which leave nodes open
    with torch.no_grad():
        model.encoder.weight *= 3
    threat = ThreatModel(data, **{'local_budget': 2, **threat})
    return certify(model, data, threat, method=method)


WITHIN = [
    {'global_budget': 3, 'fixed': 'none'},
    {'global_budget': 3, 'fragile': 'both'},
    {'global_budget': 2, 'fragile': 'additions'},
    {'global_budget': 3, 'fixed': 'none', 'undirected': True},
    {'global_budget': 2, 'fragile': 'both', 'undirected': True},
    {'global_budget': 2, 'fragile': 'both', 'steps': 4},
    {
        'global_budget': 2,
        'fragile': 'both',
        'undirected': True,
        'steps': 2,
        'normalization': 'sym',
    },
    {
        'global_budget': 2,
        'fragile': 'both',
        'undirected': True,
        'normalization': 'sym',
    },
    {'global_budget': 2, 'fragile': 'both', 'method': 'lp'},
    {
        'global_budget': 2,
        'fragile': 'both',
        'undirected': True,
        'method': 'lp',
    },
    {'global_budget': 1},
    {'global_budget': 1, 'undirected': True},
]


@pytest.mark.parametrize('case', WITHIN, ids=str)
def test_global_budgets_are_proved_and_nothing_is_lost(case):
    method = case.get(
        'method', 'dual' if case['global_budget'] > 1 else 'auto'
    )
    report = certified(2, **{**case, 'method': method})
    assert report.num_robust > 0
    assert report.verify() == 'holds'
    held = report.proof.arrays
    # More than the local worst case is needed, and found again.
    assert held['columns'].size
    if method in ('dual', 'lp'):
        found = kernel.lower(held, *kernel.read(held))
        for k, c, _ in held['columns'].T.tolist():
            fast = float(report.class_margins[k, c])
            assert float(found[k][c]) > fast - 1e-9
    # A budget of one flip more, no price and no bound prove less.
    less = []
    for name, change in (
        ('global_budget', lambda x: x + 20),
        ('upper', lambda x: x / 4),
        ('reach', lambda x: x + 1),
        ('values', lambda x: x - 0.1),
        ('multipliers', lambda x: 0 * x),
    ):
        if held[name].size:
            proved = np.array(spoiled(report, **{name: change}).prove())
            assert ((proved == 1) <= (report.status == 1).numpy()).all()
            less.append((proved == 1).sum() < report.num_robust)
    assert sum(less) > 1


def test_what_only_all_graphs_show_is_not_proved():
    report = certified(2, 'exact', global_budget=2)
    assert report.verify() == 'not proved'
    assert 0 < report.proof.prove().count(1) < report.num_robust


@pytest.mark.parametrize('undirected', [False, True])
def test_broken_nodes_are_proved_by_their_flips(undirected):
    report = certificate(undirected=undirected)
    assert report.num_broken > 0
    held = report.proof.arrays
    assert (np.array(report.proof.prove()) == -1).sum() == report.num_broken

    def none(**changes):
        return -1 not in spoiled(report, **changes).prove()

    # Of a margin that is not below what is needed; of no flips.
    assert none(tolerance=lambda x: x + 100)
    assert none(flips_of=lambda x: 0 * x - 1)
    empty = {'flips': lambda x: x[:, :0], 'flips_ptr': lambda x: 0 * x}
    assert none(**empty)
    for changes in (
        {'flips': lambda x: 0 * x},
        {'budget': lambda x: 0 * x},
        {'removable': lambda x: x & False},
        {'global_budget': lambda x: 0 * x},
        {'flips_ptr': lambda x: x + 1},
        {'flips_of': lambda x: x + len(held['flips_ptr'])},
    ):
        with pytest.raises(ValueError, match='witness'):
            spoiled(report, **changes).prove()
    if undirected:
        # One direction by itself is no flip of this attacker.
        half = held['flips'][0] < held['flips'][1]
        ptr = np.concatenate([[0], np.cumsum(half)])[held['flips_ptr']]
        with pytest.raises(ValueError, match='flips'):
            spoiled(
                report, flips=lambda x: x[:, half], flips_ptr=lambda x: ptr
            ).prove()


def test_shares_of_more_than_a_price_are_refused():
    report = certified(
        *(2, 'dual'), global_budget=2, fragile='both', undirected=True
    )
    assert report.proof.arrays['shares'].size
    for change in (lambda x: x + 0.51, lambda x: -x, lambda x: x[:, 1:]):
        with pytest.raises(ValueError, match='witness'):
            spoiled(report, shares=change).prove()
    # Prices of edges are of undirected attackers alone.
    with pytest.raises(ValueError, match='witness'):
        spoiled(report, undirected=lambda x: ~x).prove()
    # Without, an undirected flip pays twice.
    alone = spoiled(report, shares=lambda x: np.zeros((0, 0)))
    assert alone.prove().count(1) <= report.num_robust


def test_a_large_witness_is_left_out(monkeypatch):
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


@pytest.mark.parametrize('undirected', [False, True])
def test_self_loops_that_come_back_are_no_false_alarm(tmp_path, undirected):
    torch.manual_seed(1)
    nodes = torch.arange(40)
    data = people()
    data.edge_index = torch.cat(
        [data.edge_index, torch.stack([nodes, nodes])], 1
    )
    model = PPNP(Linear(5, 3), alpha=0.3, add_self_loops=True).eval()
    threat = ThreatModel(
        *(data, torch.stack([nodes, nodes])),
        local_budget=1,
        undirected=undirected,
    )
    report = certify(model, data, threat)
    assert report.num_robust == 40
    assert report.verify() == 'holds'
    TrustReport.of(report).save(tmp_path / 'trust.json')
    report.proof.save(tmp_path / 'w.npz')
    found = check_report(tmp_path / 'trust.json', witness=tmp_path / 'w.npz')
    assert not [one for one in found if one.status == 'FAILS']
    assert [one for one in found if 'proved to stay' in one.text]


def test_a_huge_proof_is_not_begun(tmp_path):
    report = certified(2, steps=3, global_budget=2)
    for name, value in (('K', 10**9), ('K', 2**62), ('alpha', 1e-300)):
        made = spoiled(report, **{name: lambda x, v=value: np.array(v)})
        start = time.process_time()
        if name == 'K':
            with pytest.raises(OverflowError, match='minutes'):
                made.prove(most=2**31)
        assert report.verify(made) == 'FAILS'
        assert time.process_time() - start < 5
    # Both files agree, and the checker gives up at once.
    values = json.loads(TrustReport.of(report).to_json())
    made = spoiled(report, K=lambda x: np.array(10**9))
    values['guarantees'][0]['values'].update(
        K=10**9, witness_digest=made.digest
    )
    (tmp_path / 'trust.json').write_text(forged(values))
    made.save(tmp_path / 'w.npz')
    start = time.process_time()
    found = check_report(tmp_path / 'trust.json', witness=tmp_path / 'w.npz')
    assert time.process_time() - start < 5
    said = [one for one in found if 'minutes' in one.text]
    assert [one.status for one in said] == ['not proved']


def test_a_budget_that_overflows_proves_nothing():
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
        assert 1 not in found
    changed['budget'] = np.full(8, 2**63 - 1)
    with pytest.raises(ValueError, match='witness'):
        Witness({**report.proof.arrays, **changed}).prove()


def test_a_witness_of_one_class_is_none():
    report = certificate()
    arrays = {
        **report.proof.arrays,
        'logits': report.proof.arrays['logits'][:, :1],
        'reference': 0 * report.proof.arrays['reference'],
        'classes': np.zeros((2, 0), dtype=np.int64),
        'scores': np.zeros((0, 40)),
    }
    with pytest.raises(ValueError, match='witness'):
        Witness(arrays).prove()
