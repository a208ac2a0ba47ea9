"""Private links: one account for messages and examples, free scores."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from graphs import homes as graph
from references import Silence
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit

from pyg_trust import account, noise
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.privacy import (
    PrivateLinkPredictor,
    links,
)
from pyg_trust.privacy.gaussian import gaussian_epsilon

QUICK = {'epsilon': 4.0, 'delta': 1e-4, 'steps': 5}


def test_scores_are_of_pairs_and_edges_in_any_order_are_the_same_data():
    data = graph()
    model = PrivateLinkPredictor(**QUICK).fit(data)
    pairs = torch.randint(60, (2, 3000))
    first = model.decision_function(pairs)
    assert torch.equal(first[7:9], model.decision_function(pairs[:, 7:9]))
    assert model.decision_function(pairs[:, :0]).shape == (0,)
    data.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    assert torch.equal(model.fit(data).decision_function(pairs), first)
    assert len(model.account.lines) == 3
    data.edge_index = pairs_without_one(data.edge_index)
    with pytest.raises(BudgetExceededError):
        model.fit(data)


def pairs_without_one(edge_index):
    u, w = edge_index[:, 0].tolist()
    gone = (edge_index == torch.tensor([[u], [w]])).all(0)
    gone |= (edge_index == torch.tensor([[w], [u]])).all(0)
    return edge_index[:, ~gone]


@pytest.mark.parametrize('directed', [False, True])
def test_three_lines_are_all_of_the_budget(shared, directed):
    rows = json.loads(
        (shared / 'oracles' / 'links' / 'accounting.json').read_text()
    )
    form = 'directed' if directed else 'undirected'
    tried = 0
    for row in rows:
        if row['relation'] != 'edge' or row['form'] != form:
            continue
        model = PrivateLinkPredictor(
            epsilon=row['epsilon'],
            delta=row['delta'],
            steps=row['steps'],
            shares=row['shares'],
            directed=directed,
        )
        wanted = [
            row[k] for k in ('row_std', 'count_std', 'head_noise_multiplier')
        ]
        assert model.noise_stds == pytest.approx(wanted, rel=1e-9)
        tried += 1
    assert tried == 40
    model = PrivateLinkPredictor(**QUICK, directed=directed)
    model.fit(graph(directed=directed))
    assert model.account.lines == pytest.approx(model.mus, rel=1e-12)
    report = model.report()
    assert report.epsilon <= 4.0 < gaussian_epsilon(report.mu * 1.001, 1e-4)
    moved = 1 if directed else math.sqrt(2)
    parts = moved / report.row_std, 1 / report.count_std
    parts += (math.sqrt(report.steps) / report.noise_multiplier,)
    assert report.mu == pytest.approx(math.hypot(*parts), rel=1e-9)
    # A scorer that is free, or an account without the number of steps.
    assert math.hypot(*parts[:2]) < report.mu * 0.9


def test_without_noise_all_sums_are_exact(monkeypatch):
    silence = Silence()
    monkeypatch.setattr(noise, 'source', lambda *_: silence)
    data = graph()
    model = PrivateLinkPredictor(**QUICK).fit(data)
    num_pairs = data.num_edges // 2
    # Of six columns all are sent; a pair has 20 features and a constant.
    assert silence.drawn == [(60, 6), (1,), (5, 6 + 2 * 6 + 3)]
    assert model.num_edges == pytest.approx(num_pairs, rel=1e-6)
    sums = torch.zeros_like(model.released)
    sent = model._state['messages']
    sums.index_add_(0, data.edge_index[1], sent[data.edge_index[0]])
    assert torch.allclose(model.released, sums, atol=1e-9)
    assert (sent.norm(dim=1) <= 1).all()


@pytest.mark.parametrize('relation', ['edge', 'node'])
def test_releases_are_all_that_is_read_of_edges(relation, monkeypatch):
    # If these are the same for two graphs, all is. A division by |E| is not.
    data = graph()
    less = Data(x=data.x, edge_index=data.edge_index[:, :0])
    monkeypatch.setattr(
        links, 'private_propagate', lambda _, x, *__: (torch.ones_like(x),)
    )
    monkeypatch.setattr(links, 'released', lambda *_: np.array([90.0]))

    def sums(examples, *_):
        return np.zeros(examples.shape[1], np.int64)

    inner = sys.modules['pyg_trust.privacy.link_sums']
    for name in ('clipped_pair_sum', 'clipped_owner_sum'):
        monkeypatch.setattr(inner, name, sums)
    states = []
    for each in (data, less):
        model = PrivateLinkPredictor(
            relation, **QUICK, insecure_seed=0, num_neg=50
        )
        state = model.fit(each).state_dict()
        states.append({k: v for k, v in state.items() if torch.is_tensor(v)})
    assert states[0].keys() == states[1].keys() >= {'weight', 'rows'}
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert states[0]['weight'].abs().min() > 0


def test_a_split_of_pyg_works_and_its_traps_are_refused():
    data = graph(seed=3)
    good = RandomLinkSplit(
        is_undirected=True, add_negative_train_samples=False
    )
    train, _, test = good(data)
    model = PrivateLinkPredictor(**QUICK)
    assert (
        model.fit(train)
        .decision_function(test.edge_label_index)
        .isfinite()
        .all()
    )
    fresh = PrivateLinkPredictor(**QUICK)
    with pytest.raises(ValueError, match="'edge_label'"):
        fresh.fit(RandomLinkSplit(is_undirected=True)(data)[0])
    with pytest.raises(ValueError, match="'edge_label'"):
        fresh.fit(test)
    apart = RandomLinkSplit(
        is_undirected=True,
        add_negative_train_samples=False,
        disjoint_train_ratio=0.3,
    )
    with pytest.raises(ValueError, match="'edge_label_index'"):
        fresh.fit(apart(data)[0])
    split = RandomLinkSplit(is_undirected=True, split_labels=True)
    with pytest.raises(ValueError, match="'neg_edge_label'"):
        fresh.fit(split(data)[0])
    assert fresh.account is None
    # The graph of the test split holds the validation edges.
    test.edge_label = test.edge_label_index = None
    with pytest.raises(BudgetExceededError):
        model.fit(test)


def changed(**values):
    made = graph(12)
    for name, value in values.items():
        made[name] = value
    return made


LOOP = torch.tensor([[0, 1, 2], [1, 0, 2]])
TWICE = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])


@pytest.mark.parametrize(
    ('data', 'name'),
    [
        (HeteroData(), "'data'"),
        (changed(edge_index=LOOP), 'self-loops'),
        (changed(edge_index=TWICE), 'duplicate'),
        (changed(edge_index=LOOP[:, :1]), "'directed'"),
        (changed(edge_weight=torch.ones(9999)), 'edge_weight|weights'),
        (changed(x=None), "'x'"),
        (changed(propagated=('x',)), 'propagated'),
        (changed(edge_label=[1, 0]), "'edge_label' of 0"),
        (changed(edge_label=np.array([1, 0])), "'edge_label' of 0"),
        (changed(edge_label_index=torch.ones(2, 1)), "'edge_label_index'"),
        (
            changed(edge_label_index=torch.tensor([[0], [99]])),
            "'edge_label_index'",
        ),
        (
            Data(x=torch.ones(1, 2), edge_index=LOOP[:, :0], num_nodes=1),
            'two nodes',
        ),
    ],
)
def test_bad_data_are_refused_and_nothing_is_spent(data, name):
    model = PrivateLinkPredictor(**QUICK)
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        model.fit(data)
    assert '99' not in str(caught.value)
    assert model.account is None
    model.fit(graph(12))


def test_a_budget_without_noise_is_refused_and_nothing_is_spent():
    model = PrivateLinkPredictor(epsilon=1e5, delta=1e-3)
    with pytest.raises(ValueError, match="noise of 'epsilon'"):
        model.fit(graph(12))
    assert model.account is None


def test_a_graph_without_edges_has_a_release_too():
    for directed in (False, True):
        data = Data(x=torch.rand(8, 3), edge_index=torch.zeros(2, 0).long())
        account._RELEASED.clear()
        model = PrivateLinkPredictor(**QUICK, directed=directed).fit(data)
        assert (
            model.decision_function(torch.tensor([[0], [1]])).isfinite().all()
        )


def test_leaving_the_own_edge_out_is_what_examples_read(monkeypatch):
    kept, seen = links.pair_features, []

    def pair_features(*args):
        seen.append((args[0].size(1), args[5]))
        return kept(*args)

    monkeypatch.setattr(links, 'pair_features', pair_features)
    data = graph()
    num_pairs = data.num_edges // 2
    for leave_out, which in ((True, 'both'), (False, '')):
        seen.clear()
        account._RELEASED.clear()
        PrivateLinkPredictor(**QUICK, num_neg=9, leave_out=leave_out).fit(data)
        # Negatives are read as they are, though some of them are edges.
        assert seen == [(9, ''), (num_pairs, which)]
    seen.clear()
    arcs = graph(directed=True)
    PrivateLinkPredictor(**QUICK, num_neg=9, directed=True).fit(arcs)
    assert seen == [(9, ''), (arcs.num_edges, 'target')]


def test_edges_of_the_fit_are_no_likelier_than_the_rows_allow():
    # Link stealing: nodes without features in common, joined at random, so
    # that a pair of the graph differs from others by its edge alone.
    generator = torch.Generator().manual_seed(0)
    n, wins, total = 400, 0.0, 0
    for seed in range(5):
        x = torch.randn(n, 8, generator=generator)
        order = torch.randperm(n, generator=generator).view(2, -1)
        edge_index = torch.cat([order, order.flip(0)], 1)
        data = Data(x=x, edge_index=edge_index)
        model = PrivateLinkPredictor(epsilon=2.0, delta=1e-3).fit(data)
        inside = model.decision_function(order)
        outside = model.decision_function(
            torch.stack([order[0], order[1].roll(1 + seed)])
        )
        wins += float((inside[:, None] > outside[None]).double().mean())
        total += 1
    # An attacker of one release with mu has at most this AUC.
    mu = model.limit
    most = 0.5 * math.erfc(-mu / 2)
    # Five graphs of 200 pairs: a standard error of about .01.
    assert wins / total <= most + 0.05
