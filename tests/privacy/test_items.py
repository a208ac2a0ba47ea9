"""Private recommendations: one release of users' lists, free afterwards."""

import math

import numpy as np
import pytest
import torch
from references import Silence
from torch_geometric.data import HeteroData

from pyg_trust import noise
from pyg_trust.privacy import PrivateItemCounts, items
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.items import item_sums
from pyg_trust.unlearning.similar import lists_of
from pyg_trust.verify.release import grid

QUICK = {'epsilon': 4.0, 'delta': 1e-4}
USERS, ITEMS = 40, 12


def likes(seed=0, users=USERS, num_items=ITEMS):
    """Two kinds of users, who like items of their kind."""
    source = torch.Generator().manual_seed(seed)
    kind = torch.arange(users)[:, None] % 2 == torch.arange(num_items) % 2
    chance = torch.where(kind, 0.5, 0.05)
    return (torch.rand(chance.shape, generator=source) < chance).nonzero().t()


def fitted(data=0, **kwargs):
    made = PrivateItemCounts(**{**QUICK, **kwargs})
    return made.fit(likes(data), USERS, ITEMS)


def test_without_noise_users_get_what_their_kind_likes(monkeypatch):
    monkeypatch.setattr(noise, 'source', lambda *_: Silence())
    model = fitted(rank=2)
    history = torch.tensor([[0, 0, 2, 2], [0, 2, 1, 3]])
    best = model.recommend(history, 3)
    assert best.shape == (3, 3)
    assert not (best[0] % 2).any()
    assert (best[2] % 2).all()
    # Without a history nothing is known, and nothing is recommended.
    assert best[1].tolist() == [ITEMS] * 3
    assert set(best[0].tolist()).isdisjoint([0, 2])
    # The table is that of the lists, and its scores are those of the formula.
    lists = lists_of(likes(), USERS, ITEMS)
    rows = np.zeros((USERS, ITEMS))
    for user in range(USERS):
        own = lists.of(user)
        rows[user, own] = 1 / math.sqrt(max(1, len(own)))
    table = model.released.numpy()
    assert np.abs(table - rows.T @ rows).max() < 1e-4
    values, vectors = np.linalg.eigh(table)
    part = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    score = part[[0, 2]].sum(0)
    score[[0, 2]] = -math.inf
    assert best[0].tolist() == np.argsort(-score)[:3].tolist()


@pytest.mark.parametrize('form', ['add_remove', 'replace'])
def test_one_release_is_all_of_the_budget(form):
    model = fitted(neighboring=form)
    moved = 1.0 if form == 'add_remove' else math.sqrt(2)
    assert model.account.lines == pytest.approx([moved / model.noise_std])
    report = model.report()
    assert report.sensitivity == moved
    assert report.epsilon <= 4.0 < gaussian_epsilon(report.mu * 1.001, 1e-4)
    other = report.epsilon_replace
    if form == 'replace':
        assert other is None
    else:
        least = gaussian_epsilon(math.sqrt(2) * report.mu, 1e-4)
        assert other == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize('form', ['add_remove', 'replace'])
def test_the_noise_is_as_large_as_the_account_says(form):
    # 78 entries of 60 tables: half of the noise, or a sensitivity that it was
    # not made for, is 30 standard errors away.
    off = []
    for seed in range(60):
        table = fitted(seed + 100, neighboring=form, insecure_seed=seed)
        sums = item_sums(lists_of(likes(seed + 100), USERS, ITEMS), ITEMS, 1.0)
        exact = sums * grid(1.0)
        off.append(table._triangle - exact)
    moved = 1.0 if form == 'add_remove' else math.sqrt(2)
    found = np.concatenate(off).std() * table.report().mu / moved
    assert 0.95 < found < 1.05


def test_empty_places_hold_the_number_of_items():
    model = fitted()
    everything = torch.stack([torch.zeros(ITEMS).long(), torch.arange(ITEMS)])
    assert model.recommend(everything, 2).tolist() == [[ITEMS, ITEMS]]
    most = everything[:, :-2]
    best = model.recommend(most, 4, num_users=2)
    assert set(best[0, :2].tolist()) == {ITEMS - 2, ITEMS - 1}
    assert best[0, 2:].tolist() == [ITEMS] * 2
    assert best[1].tolist() == [ITEMS] * 4
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert model.recommend(none, 1, num_users=3).tolist() == [[ITEMS]] * 3


def test_a_public_list_leaves_other_items_out(monkeypatch):
    monkeypatch.setattr(noise, 'source', lambda *_: Silence())
    public = [7, 1, 4, 6, 0]
    model = fitted(items=public, rank=5)
    assert model.released.shape == (5, 5)
    best = model.recommend(likes(), ITEMS)
    assert set(best.unique().tolist()) <= {*public, ITEMS}
    # As if others had never been: lists are brought to norm 1 without them.
    kept = likes()[:, torch.isin(likes()[1], torch.tensor(public))]
    place = torch.tensor([public.index(i) for i in kept[1].tolist()])
    alone = PrivateItemCounts(**QUICK, rank=5)
    alone.fit(torch.stack([kept[0], place]), USERS, 5)
    assert torch.equal(model.released, alone.released)
    monkeypatch.setattr(items, 'MOST_ITEMS', 9)
    with pytest.raises(ValueError, match=r"'num_items'.*'items'"):
        fitted()
    given = torch.tensor(public)
    model = fitted(items=given)
    given[:] = 9
    assert model.items.tolist() == public


def test_a_bipartite_graph_is_read():
    data = HeteroData()
    data['user'].num_nodes, data['item'].num_nodes = USERS, ITEMS
    data['user', 'likes', 'item'].edge_index = likes()
    model = PrivateItemCounts(**QUICK).fit(data)
    model.fit(likes(), USERS, ITEMS)
    assert len(model.account.lines) == 1


def test_a_budget_without_noise_is_refused_and_nothing_is_spent():
    model = PrivateItemCounts(epsilon=1e9, delta=1e-3)
    with pytest.raises(ValueError, match="noise of 'epsilon'"):
        model.fit(likes(), 2**40, ITEMS)
    assert model.account is None


def test_many_users_beat_the_most_popular_items():
    # 3,000 users of two kinds at epsilon 8; the same noise for any number.
    edges = likes(5, 3000, 30)
    out = torch.rand(edges.size(1), generator=torch.Generator().manual_seed(0))
    train, test = edges[:, out > 0.2], edges[:, out <= 0.2]
    model = PrivateItemCounts(epsilon=8.0, delta=1e-5, rank=4)
    best = model.fit(train, 3000, 30).recommend(train, 5, 3000)
    popular = train[1].bincount(minlength=30).argsort(descending=True)[:5]
    wanted = torch.zeros(3000, 31, dtype=torch.bool)
    wanted[test[0], test[1]] = True
    hits = wanted.gather(1, best).sum()
    assert hits > 1.3 * wanted[:, popular].sum()
