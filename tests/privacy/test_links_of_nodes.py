"""Private links under 'node': one clip an owner, all graphs, free scores."""

import itertools
import math

import numpy as np
import pytest
import torch
from graphs import homes as graph
from references import Silence
from sklearn.metrics import roc_auc_score

from pyg_trust import noise
from pyg_trust.check import HOLDS, check_report
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy import PrivateLinkPredictor, links
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.link_sums import (
    clipped_owner_sum,
    on_grid,
    owner_features,
    owner_sums,
    public_basis,
    public_lists,
)
from pyg_trust.privacy.propagation import energy_weights, messages
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.transforms import PrivateAGP

QUICK = {'epsilon': 4.0, 'delta': 1e-4, 'steps': 5}
STD, C = 2.0**-8, 0.125
FORMS = {'add_remove': 1, 'replace': 2}


def fixed(n, columns=3, seed=0):
    """Messages of norm 1, released rows and weights, for any lists."""
    draw = torch.Generator().manual_seed(seed)
    m = messages(torch.randn(n, columns, generator=draw).double())
    rows = on_grid(4 * torch.randn(n, columns, generator=draw).double(), STD)
    weight = torch.randn(columns + 3, generator=draw).double() * 3
    return m, rows, weight.numpy()


def gradients(lists, m, rows, weight, count=2, target=None, clip=None):
    """Of each owner, as the package makes them; planted faults by name."""
    n = len(lists)
    pairs = [(v, w) for v in range(n) for w in sorted(lists[v])]
    pairs = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
    degree = np.array([len(each) for each in lists])
    c = torch.tensor([1 / math.sqrt(max(1, d)) for d in degree])
    own = on_grid(m * c[:, None].double(), STD)
    public = public_lists(n, count)
    up = owner_features(pairs, m, rows, STD, own)
    if target is not None:  # planted: the target's own record is read
        up = owner_features(pairs, m, target[0] + 8 * target[1], STD, own)
    down = owner_features(public, m, rows, STD)
    positive = owner_sums(up, pairs[0].numpy(), 1, weight, n)
    negative = owner_sums(down, public[0].numpy(), -1, weight, n)
    return positive, degree, negative, count


def one_sum(lists, *fixed):
    return (
        clipped_owner_sum(*gradients(lists, *fixed), C, STD) * STD * 2.0**-32
    )


def all_lists(n):
    others = [[w for w in range(n) if w != v] for v in range(n)]
    each = [
        [c for k in range(n) for c in itertools.combinations(o, k)]
        for o in others
    ]
    return each, list(itertools.product(*each))


@pytest.mark.parametrize('n', [2, 3, 4])
def test_one_record_moves_a_sum_by_a_clip_in_all_digraphs(n):
    each, graphs = all_lists(n)
    assert len(graphs) == 2 ** (n * (n - 1))
    kept = fixed(n)
    made = {lists: one_sum(lists, *kept) for lists in graphs}
    largest = dict.fromkeys(FORMS, 0.0)
    for lists, total in made.items():
        for v in range(n):
            for other in each[v]:
                if other == lists[v]:
                    continue
                near = made[(*lists[:v], other, *lists[v + 1 :])]
                form = 'add_remove' if not other else 'replace'
                moved = float(np.linalg.norm(near - total))
                assert moved <= C * FORMS[form]
                largest[form] = max(largest[form], moved)
    # Attained: gradients are longer than the clip.
    assert largest['add_remove'] > 0.999 * C
    assert n == 2 or largest['replace'] > C / 4


def test_features_are_of_the_record_too_and_opposites_attain_twice_a_clip():
    m, rows, weight = fixed(3)
    lists = ((1, 2), (0,), ())
    opposite = m.clone()
    opposite[0] = -m[0]
    largest = 0.0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        w = draw.standard_normal(len(weight)) * 30
        moved = np.linalg.norm(
            one_sum(lists, m, rows, w) - one_sum(lists, opposite, rows, w)
        )
        assert moved <= 2 * C
        largest = max(largest, float(moved))
        gone = one_sum(((), (0,), ()), opposite, rows, w)
        assert np.linalg.norm(one_sum(lists, m, rows, w) - gone) <= C
    assert largest > 1.2 * C


@pytest.mark.parametrize('n', [3, 4])
def test_a_clip_for_every_pair_is_found_out(n):
    # Planted: the sum of clipped gradients of pairs, not of their mean.
    m, rows, weight = fixed(n)
    # All targets look the same, and the scorer is wrong on each.
    rows[:] = rows[1].clone()
    up = owner_features(torch.tensor([[0], [1]]), m, rows, STD)[0, :, 0]
    weight = -100 * up
    full = (tuple(range(1, n)), *[()] * (n - 1))
    positive, degree, negative, count = gradients(full, m, rows, weight)
    pairs = np.zeros(len(weight))
    for w in full[0]:
        one = gradients(((w,), *[()] * (n - 1)), m, rows, weight)
        pairs += clipped_owner_sum(one[0], one[1], 0 * negative, 1, C, STD)
    moved = np.linalg.norm(pairs) * STD * 2.0**-32
    assert moved > 0.99 * (n - 1) * C
    total = clipped_owner_sum(positive, degree, negative, count, C, STD)
    assert np.linalg.norm(total) * STD * 2.0**-32 <= C


def test_a_target_whose_own_record_is_read_is_found_out():
    # Planted: everybody who names node 0 reads its record.
    m, rows, weight = fixed(4)
    lists = ((), (0,), (0,), (0,))
    near = m.clone()
    near[0] = -m[0]
    faulty = [
        clipped_owner_sum(
            *gradients(lists, m, rows, weight, target=(rows, record)), C, STD
        )
        for record in (
            torch.where(torch.arange(4)[:, None] == 0, each, 0.0)
            for each in (m, near)
        )
    ]
    moved = np.linalg.norm(faulty[0] - faulty[1]) * STD * 2.0**-32
    right = one_sum(lists, m, rows, weight) - one_sum(
        lists, near, rows, weight
    )
    # An empty list has no gradient: nobody else reads the record.
    assert np.linalg.norm(right) == 0
    assert moved > 0.01 * C


def test_sums_are_the_formula_and_owners_do_not_meet():
    n, count = 5, 2
    m, rows, weight = fixed(n, seed=3)
    lists = ((1, 2, 4), (0,), (), (0, 1, 2, 4), (3,))
    positive, *_ = gradients(lists, m, rows, weight)
    D = m.size(1)
    extra = STD**2 * D + 1e-3
    sizes = np.log((rows.numpy() ** 2).sum(1) + extra)

    def feature(v, w, left_out):
        row = rows[w].numpy().copy()
        if left_out:
            row -= on_grid(m * len(lists[v]) ** -0.5, STD)[v].numpy()
        size = (row**2).sum() + extra
        a = m[v].numpy() * row / math.sqrt(size)
        last = (math.log(size) - sizes.mean()) / (sizes.std() + 1e-9)
        z = np.array([*(D * a), math.sqrt(D) * a.sum(), last])
        z = np.append(np.clip(z, -8, 8), 1.0)
        return (1 - 1e-6) * z / max(math.sqrt(D + 3), np.linalg.norm(z))

    total = np.zeros(D + 3)
    public = public_lists(n, count)[1].view(n, count).tolist()
    for v, mine in enumerate(lists):
        if not mine:
            continue
        up = [feature(v, w, True) for w in mine]
        down = [feature(v, w, False) for w in public[v]]
        g = -np.mean([z / (1 + math.exp(z @ weight)) for z in up], 0)
        g += np.mean([z / (1 + math.exp(-z @ weight)) for z in down], 0)
        total += g * min(1, C / np.linalg.norm(g))
    assert one_sum(lists, m, rows, weight) == pytest.approx(total, abs=1e-6)
    # To the bit: what the others have moves nobody's own gradient.
    others = ((1, 2, 4), (0, 2, 3, 4), (0,), (), (3,))
    again, *_ = gradients(others, m, rows, weight)
    assert (again[[0, 4]] == positive[[0, 4]]).all()
    assert (again[1] != positive[1]).any()


@pytest.mark.parametrize('form', FORMS)
def test_two_lines_are_all_of_the_budget(tmp_path, form):
    model = PrivateLinkPredictor('node', **QUICK, neighboring=form).fit(
        graph()
    )
    assert model.account.lines == pytest.approx(model.mus, rel=1e-12)
    report, moved = model.report(), FORMS[form]
    parts = moved / report.row_std
    parts = parts, moved * math.sqrt(report.steps) / report.noise_multiplier
    assert report.mu == pytest.approx(math.hypot(*parts), rel=1e-9)
    assert report.epsilon <= 4.0 < gaussian_epsilon(report.mu * 1.001, 1e-4)
    assert report.count_std is None
    path = tmp_path / 'trust.json'
    TrustReport.of(report).save(path)
    found = check_report(path)
    assert {f.status for f in found} <= {HOLDS, 'not checked', 'not proved'}
    assert any(f.status == HOLDS and 'epsilon' in f.text for f in found)
    assert "one node's record" in report.guarantee().promise


def test_rows_are_sums_of_own_lists_and_a_list_of_one_is_left_out(monkeypatch):
    monkeypatch.setattr(noise, 'source', lambda *_: Silence())
    data = graph()
    model = PrivateLinkPredictor('node', **QUICK).fit(data)
    csr = CSRGraph.from_data(data)
    x = torch.nn.functional.normalize(data.x.double())
    m = messages(x @ public_basis(6, 16)) * energy_weights(csr)[:, None]
    rows = torch.zeros(60, 16, dtype=torch.float64)
    rows.index_add_(0, data.edge_index[1], m[data.edge_index[0]])
    assert torch.allclose(model.released, rows, atol=1e-6)
    assert model.released.shape == (60, 16)


@pytest.mark.parametrize('leave_out', [True, False])
def test_own_lists_are_read_without_what_the_owner_added(
    leave_out, monkeypatch
):
    kept, seen = links.owner_features, []

    def owner_features(*args):
        seen.append((args[0].size(1), *args[4:]))
        return kept(*args)

    monkeypatch.setattr(links, 'owner_features', owner_features)
    data = graph()
    PrivateLinkPredictor('node', **QUICK, num_neg=7, leave_out=leave_out).fit(
        data
    )
    (listed, own), others = seen
    # Whom a list names and whom it does not: these are read as they are.
    assert (listed, others) == (data.num_edges, (60 * 7,))
    if not leave_out:
        assert own is None
        return
    x = torch.nn.functional.normalize(data.x.double())
    sent = torch.nn.functional.normalize(x @ public_basis(6, 16))
    lists = data.edge_index[0].bincount(minlength=60).clamp(min=1)
    assert torch.allclose(own, sent / lists.sqrt()[:, None], atol=1e-5)


def test_scores_read_no_edge_and_of_records_the_source_alone():
    data = graph()
    model = PrivateLinkPredictor('node', **QUICK).fit(data)
    pairs = torch.randint(60, (2, 3000))
    for_all, for_one = (
        model.decision_function(pairs),
        model.decision_function(pairs, data.x),
    )
    assert torch.equal(for_all, model.decision_function(pairs))
    # An undirected pair has one score for all.
    label = torch.arange(pairs.size(1)) % 2
    for given, logits in (((), for_all), ((data.x,), for_one)):
        auc = model.score(pairs, label, *given)
        assert auc == pytest.approx(roc_auc_score(label, logits))
    with pytest.raises(ValueError, match="'edge_label'"):
        model.score(pairs, label * 0)
    assert torch.allclose(for_all, model.decision_function(pairs.flip(0)))
    assert not torch.allclose(for_all, for_one)
    other = data.x.clone()
    other[1:] = other[1:].flip(0)
    mine = pairs[0] == 0
    mine[:50] = True
    pairs[0, :50] = 0
    again = model.decision_function(pairs, other)
    assert torch.equal(
        again[mine], model.decision_function(pairs, data.x)[mine]
    )
    assert model.decision_function(pairs[:, :0]).shape == (0,)
    sparse = model.decision_function(pairs, data.x.to_sparse())
    assert torch.allclose(sparse, model.decision_function(pairs, data.x))
    with pytest.raises(RuntimeError, match='counted'):
        _ = model.num_edges
    with pytest.raises(ValueError, match="'x'"):
        model.decision_function(pairs, data.x[:, :5])
    plain = PrivateLinkPredictor(**QUICK).fit(data)
    with pytest.raises(ValueError, match=r"'x'.*adjacency='edge'"):
        plain.decision_function(pairs, data.x)


def test_nobody_is_covered_and_nothing_changes():
    data = graph()
    model = PrivateLinkPredictor('node', **QUICK, forget_epsilon=100.0)
    model.fit(data)
    lines = len(model.removals.entries)
    for request in (
        RemovalRequest(nodes=[3]),
        RemovalRequest(edges=[tuple(data.edge_index[:, 0].tolist())]),
    ):
        with pytest.raises(ValueError, match="can't be covered by noise"):
            model.remove(request, data)
    assert len(model.removals.entries) == lines


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('form', FORMS)
def test_an_edge_is_an_example_of_both_ends_on_a_shared_account(
    tmp_path, form, directed
):
    # Of both ends the record changes, and with it the gradient, by two clips.
    ends = 1 if directed else 2
    data = graph(20)
    if directed:
        data.edge_index = data.edge_index[:, data.edge_index[0] < 9]
    ledger = tmp_path / 'all.ledger'
    links = PrivateLinkPredictor(
        'node', 2.0, 1e-3, ledger, neighboring=form, directed=directed, steps=2
    ).fit(data)
    links.close()
    model = PrivateAGP(
        *(1, 'node'),
        **{'epsilon': 6.0, 'delta': 1e-3, 'mu': 0.5, 'ledger': ledger},
        **{'neighboring': form, 'directed': directed},
    )
    model(data)
    scorer = links.mus[1] / FORMS[form] * 2 * ends
    assert model.report().mu_edge >= scorer
