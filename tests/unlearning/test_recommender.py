"""Recommenders that forget: the bits of counting anew, whatever the way."""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from procedures import liked
from states import same, without_chance
from torch_geometric.data import HeteroData

from pyg_trust.files import load
from pyg_trust.removal import NotThere, RemovalRequest
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning import Recommender, recommender
from pyg_trust.unlearning import similar as recommend
from pyg_trust.unlearning.similar import (
    best_items,
    fixed_weights,
    lists_of,
    path_scores,
)

# Values of numpy alone, from the oracle of the specification.
LISTS = {
    **{0: [0, 3], 1: [7], 2: [0, 4], 3: [3, 4], 4: [2, 5], 5: [6]},
    **{6: [2, 3, 5, 8], 7: [5, 7], 8: [3, 5, 7], 9: [0, 6, 7]},
    **{10: [0, 1, 3, 4, 7], 11: [0, 5, 8]},
}
ORACLE = list(zip(*((u, i) for u in LISTS for i in LISTS[u]), strict=True))
COUNTS_OF_5 = [
    *(0.5172818582504988, 0.0, 1.0950292367488146, 0.9525571400299668, 0.0),
    *(2.7893469082191586, 0.0, 1.1770358132198453, 0.9525571400299668),
]
SCORES_OF_10 = [
    *(1.6648954431589194, 1.0125437140210816, 0.13460866095048504),
    *(1.6456301475227855, 1.5804772866345467, 0.6218138587141588),
    *(0.3199383065742592, 1.5007767020031892, 0.29457781423761464),
]


def table(generator, num_users=12, num_items=9, share=0.4):
    return generator.random((num_users, num_items)) < share


def edges_of(liked):
    return torch.from_numpy(np.stack(np.nonzero(liked)))


def scored(model, users):
    held = model._model
    degree = torch.bincount(
        torch.from_numpy(held.lists.item), minlength=len(held.items)
    )
    return path_scores(
        *(held.lists, np.asarray(users), degree, model.exponents),
        held.counts,
    )


@pytest.mark.parametrize('cached', [True, False])
def test_counts_and_scores_are_those_of_the_oracle(cached):
    edges = torch.tensor(ORACLE)
    model = Recommender('paths', cached=cached).fit(edges, 12, 9)
    assert model.counts([5]).tolist() == [COUNTS_OF_5]
    assert scored(model, [10])[0] == pytest.approx(SCORES_OF_10, rel=1e-12)


@pytest.mark.parametrize('seed', range(3))
def test_counts_and_scores_are_sums_over_paths(seed):
    # By enumeration, in rationals: b = d = 1, c = 1.
    generator = np.random.default_rng(seed)
    liked = table(generator, 6, 5, 0.5)
    model = Recommender(exponents=(1.0, 1.0, 1.0))
    model.fit(edges_of(liked), 6, 5)
    users, items = range(6), range(5)

    def weight(user):
        degree = int(liked[user].sum())
        return Fraction(round(Fraction(2**30, degree)), 2**30)

    def degree(item):
        return int(liked[:, item].sum())

    count = {(i, j): Fraction(0) for i in items for j in items}
    score = {(u, j): Fraction(0) for u in users for j in items}
    for other in users:
        for i in items:
            for j in items:
                if liked[other, i] and liked[other, j]:
                    count[i, j] += weight(other)
                    for user in users:
                        if liked[user, i]:
                            part = weight(other) / degree(i) / degree(j)
                            score[user, j] += part
    found = model.counts(list(items))
    assert [Fraction(x) for x in found.view(-1).tolist()] == [*count.values()]
    values = [float(x) for x in score.values()]
    assert scored(model, list(users)).ravel() == pytest.approx(
        values, rel=1e-14, abs=0
    )


def test_weights_are_positive_multiples_and_no_other_power_enters():
    degree = torch.arange(2000) ** 2
    weights = fixed_weights(degree, 2.0)
    units = weights * 2.0**30
    assert torch.equal(units, units.round())
    assert (weights[1:] > 0).all()
    assert weights[0] == 0
    assert weights[1] == 1
    assert ((weights[1:] - degree[1:].double() ** -2.0).abs() <= 2**-30).all()
    one_by_one = torch.cat([fixed_weights(d.view(1), 0.6) for d in degree])
    assert torch.equal(fixed_weights(degree, 0.6), one_by_one)


# Forgetting ##################################################################


def remove_at_random(model, liked, generator, there):
    """A removal of up to four things, done to the model and to the table."""
    users, items = there
    request = {}
    if generator.random() < 0.5 and len(users) > 1:
        request['users'] = [int(generator.choice(sorted(users)))]
    if generator.random() < 0.3 and len(items) > 1:
        request['items'] = torch.tensor([generator.choice(sorted(items))])
    pairs = np.argwhere(liked)
    if len(pairs):
        some = pairs[generator.integers(0, len(pairs), 2)].tolist()
        request['interactions'] = some
    if not request:
        return
    plan = model.plan(**request)
    report = model.remove(**request)
    assert plan.request == report.request
    assert report.entries_changed <= plan.touched_entries
    assert plan.recount == report.recounted
    for user in request.get('users', ()):
        liked[user] = False
        users.discard(user)
    for item in map(int, request.get('items', ())):
        liked[:, item] = False
        items.discard(item)
    for user, item in request.get('interactions', ()):
        liked[user, item] = False


CLOSED = {'method': 'closed_form', 'weight_decay': 3.0}


@pytest.mark.parametrize('recount', [0.0, 1 / 8, 1e9])
@pytest.mark.parametrize('how', [{}, {'cached': False}, CLOSED], ids=str)
def test_any_removals_leave_the_bits_of_counting_anew(
    how, recount, monkeypatch, tmp_path
):
    monkeypatch.setattr(recommender, 'RECOUNT', recount)
    generator = np.random.default_rng(5)
    threads = torch.get_num_threads()
    for k in range(12):
        liked = table(generator)
        there = set(range(12)), set(range(9))
        if how is not CLOSED:
            exponents = (0.6, 2.0 if k % 3 == 0 else 0.6, 0.3)
            how = {**how, 'exponents': exponents}
        model = Recommender(**how).fit(edges_of(liked), 12, 9)
        for step in range(6):
            remove_at_random(model, liked, generator, there)
            if generator.random() < 0.3:
                model.flush()
                assert not model.verify().leftovers
            if step == 3:
                model.save(tmp_path / f'{k}')
                model = Recommender(**how).load(tmp_path / f'{k}')
        try:
            torch.set_num_threads(1 + (k % 4) * (how is not CLOSED))
            anew = Recommender(**how).fit(edges_of(liked), 12, 9)
        finally:
            torch.set_num_threads(threads)
        users, items = sorted(there[0]), sorted(there[1])
        assert torch.equal(model.counts(items), anew.counts(items))
        best = model.recommend(torch.tensor(users), 4)
        assert torch.equal(best, anew.recommend(users, 4))
        if how is CLOSED:
            mine, other = model._model.inverse, anew._model.inverse
            assert np.array_equal(mine.base, other.base)
            assert mine.rounding == other.rounding
            wanted = (liked.T.astype(float) @ liked)[items]
            assert np.array_equal(model.counts(items).numpy(), wanted)
        else:
            assert np.array_equal(scored(model, users), scored(anew, users))
        assert torch.equal(model.edge_index, anew.edge_index)
        assert model.verify().ok


def one_by_one(liked):
    """A model after all users of the second half were removed."""
    model = Recommender().fit(edges_of(liked), *liked.shape)
    for user in range(len(liked) // 2, len(liked)):
        model.remove(users=[user])
    return model


def same_in_every_order():
    # Whether counts are those of other orders of users, and of subtracting.
    generator = np.random.default_rng(1)
    liked = table(generator, 60, 8)
    every = list(range(8))
    once = Recommender().fit(edges_of(liked), 60, 8).counts(every)
    orders = [
        Recommender().fit(edges_of(liked[order]), 60, 8).counts(every)
        for order in (generator.permutation(60) for _ in range(5))
    ]
    anew = Recommender().fit(edges_of(liked[:30]), 30, 8).counts(every)
    left = one_by_one(liked).counts(every)
    return all(torch.equal(once, each) for each in orders), torch.equal(
        anew, left
    )


def test_the_order_of_users_leaves_no_trace(monkeypatch):
    assert same_in_every_order() == (True, True)
    # The planted fault: weights that are not rounded.
    monkeypatch.setattr(
        recommend,
        'fixed_weights',
        lambda degree, c: recommend.degree_power(degree, -c),
    )
    assert same_in_every_order() == (False, False)


def test_reports_say_what_remains():
    model = Recommender().fit(torch.tensor(ORACLE), 12, 9)
    report = model.remove(
        users=[10],
        items=[8],
        interactions=[(10, 0), (0, 3)],
        reference='a' * 32,
    )
    assert (report.num_users, report.num_items) == (11, 8)
    # 5 of user 10, 2 of item 8, and (0, 3).
    assert report.num_interactions == 30 - 5 - 2 - 1
    assert report.request == {
        'users': [10],
        'items': [8],
        'interactions': [[0, 3]],
    }
    line = model.ledger.entries[-1]
    # What goes with user 10 is not named again.
    assert line.request == {'nodes': [10, 20], 'edges': [[0, 15]]}
    assert model.ledger.refers_to('a' * 32)
    assert line.data == report.data_sha256
    assert line.link == report.ledger_head
    assert report.exact
    promise = report.verified(model.verify()).guarantee()
    assert '22 interactions that remain have the bits' in promise.promise
    assert 'verify() found' in promise.checked[0]
    model.remove(users=[0])
    with pytest.raises(ValueError, match='before the next removal'):
        report.verified(model.verify())
    assert line.spent == 0


def test_a_request_for_nodes_and_edges_is_the_same():
    # Item 5 is node 17; user 5 is another.
    edges = torch.tensor(ORACLE)
    one, two = (Recommender().fit(edges, 12, 9) for _ in range(2))
    request = RemovalRequest(nodes=[3, 17], edges=[(12, 0), (6, 15)])
    plan = one.plan(request)
    first = one.remove(request)
    assert plan.request == first.request
    second = two.remove(users=[3], items=[5], interactions=[(0, 0), (6, 3)])
    assert first.request == second.request
    assert first.named == second.named
    again = RemovalRequest.from_dict({'0': first.named})
    assert again.parts[0].nodes == request.parts[0].nodes
    assert torch.equal(one.data['likes'].edge_index, two.edge_index)
    assert one.n_id.tolist() == [i for i in range(21) if i not in (3, 17)]
    anew = Recommender().fit(one.data)
    assert torch.equal(anew.counts([0, 4]), one.counts([0, 4]))
    for bad in (
        RemovalRequest(graphs=[0]),
        RemovalRequest(features=[1]),
        RemovalRequest(labels=[1]),
        RemovalRequest(nodes={0: [1], 1: [2]}),
        RemovalRequest(nodes={1: [1]}),
    ):
        with pytest.raises(ValueError, match="'request' needs to name nodes"):
            one.remove(bad)
    # What stands beside a request would stay, and be taken for removed.
    for name, more in (('items', [1]), ('interactions', edges[:, -1:])):
        for call in (one.plan, one.remove):
            with pytest.raises(ValueError, match='beside'):
                call(RemovalRequest(nodes=[1]), **{name: more})
    # Two users, two items: the names that came are told.
    for ends in ((1, 2), (15, 16)):
        with pytest.raises(ValueError, match=f'got {ends[0]} to {ends[1]}'):
            one.plan(RemovalRequest(edges=[ends]))
    for bad in (
        RemovalRequest(edges=[(1, 30)]),
        RemovalRequest(nodes=[21]),
        RemovalRequest(nodes=[3]),
    ):
        with pytest.raises(ValueError, match='removed before'):
            one.plan(bad)


def test_users_and_items_may_end_with_nothing():
    model = Recommender().fit(torch.tensor([[0, 1], [1, 1]]), 3, 2)
    model.remove(interactions=[(0, 1)])
    assert model.recommend([0, 1, 2], 2).tolist() == [[2, 2]] * 3
    model.remove(users=[0, 1, 2])
    assert model.edge_index.shape == (2, 0)
    assert model.verify().ok
    assert model.recommend([], 4).shape == (0, 4)
    empty = Recommender().fit(model.edge_index, 3, 2)
    assert empty.recommend([1]).tolist() == [[2] * 10]


# Recommending ################################################################


def test_ties_go_to_the_smaller_name_and_no_own_or_unreached_item_is_best():
    scores = np.array([[0.5, 0.9, 0.5, 0.0, -1.0, 0.9], [0.0] * 6])
    assert best_items(scores, 3).tolist() == [[1, 5, 0], [6, 6, 6]]
    assert best_items(scores, 9)[0].tolist() == [1, 5, 0, 2, 6, 6, 6, 6, 6]
    generator = np.random.default_rng(2)
    liked = table(generator, 20, 30, 0.15)
    model = Recommender(exponents=(0.0, 0.0, 0.0))
    model.fit(edges_of(liked), 20, 30)
    # Whole numbers: many ties.
    values = liked.astype(int) @ liked.T.astype(int) @ liked.astype(int)
    for k in (1, 3, 40):
        for user, row in enumerate(model.recommend(range(20), k).tolist()):
            order = sorted(range(30), key=lambda i: (-values[user, i], i))
            new = [i for i in order if values[user, i] and not liked[user, i]]
            assert row == (new + [30] * k)[:k]


def test_the_blocks_of_users_leave_no_trace(monkeypatch):
    liked = table(np.random.default_rng(3), 40, 15)
    models = [
        Recommender(cached=cached).fit(edges_of(liked), 40, 15)
        for cached in (True, False)
    ]
    whole = models[0].recommend(range(40), 5)
    monkeypatch.setattr(recommender, '_BLOCK', 7)
    for model in models:
        assert torch.equal(model.recommend(range(40), 5), whole)
        users = torch.tensor([31, 2, 2])
        assert torch.equal(model.recommend(users, 5), whole[users])


def test_metrics_of_pyg_take_what_is_recommended():
    metrics = pytest.importorskip('torch_geometric.metrics')
    model = Recommender().fit(torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]]), 4, 3)
    best = model.recommend([0, 1, 2], 2)
    assert best.tolist() == [[3, 3], [0, 3], [3, 3]]
    truth = torch.tensor([[0, 1, 2], [2, 0, 0]])
    recall = metrics.LinkPredRecall(2)
    recall.update(best, truth)
    # User 1's only item is found; the fillers of users 0 and 2 hit nothing.
    assert float(recall.compute()) == pytest.approx(1 / 3)


def test_a_bipartite_graph_is_read():
    data = HeteroData()
    data['person'].num_nodes, data['film'].num_nodes = 12, 9
    data['person', 'saw', 'film'].edge_index = torch.tensor(ORACLE)
    one = Recommender().fit(data)
    assert one.counts([5]).tolist() == [COUNTS_OF_5]
    data['film', 'rev_saw', 'person'].edge_index = torch.tensor(ORACLE).flip(0)
    with pytest.raises(ValueError, match="'edge_type'"):
        Recommender().fit(data)
    saw = ('person', 'saw', 'film')
    two = Recommender().fit(data, edge_type=saw)
    assert torch.equal(one.edge_index, two.edge_index)
    data[saw].rating = torch.full((30,), 4.0)
    with pytest.raises(ValueError, match="ratings other than 1 in 'rating'"):
        two.fit(data, edge_type=saw)
    data[saw].rating = torch.ones(30)
    with pytest.raises(ValueError, match="'num_items'"):
        two.fit(data, num_items=8, edge_type=saw)
    assert two.fit(data, 12, 9, edge_type=saw).verify().ok


# Refusals ####################################################################


@pytest.mark.parametrize(
    ('request_', 'match'),
    [
        ({}, 'needs to name something'),
        ({'items': [9], 'users': [1]}, 'item 9 is not there'),
        ({'users': [2]}, 'user 2 is not there.*removed before'),
        ({'items': [-1]}, "'items'"),
        ({'interactions': [(0, 1)]}, r'interaction \(0, 1\) is not there'),
        ({'interactions': [(2, 0)]}, r'interaction \(2, 0\) is not there'),
        ({'users': [4], 'interactions': [(0, 1)]}, r'interaction \(0, 1\)'),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_changes(request_, match):
    model = Recommender().fit(torch.tensor(ORACLE), 12, 9)
    model.remove(users=[2])
    before, counts = model.state_dict(), model._model.counts.data.copy()
    for call in (model.plan, model.remove):
        with pytest.raises(ValueError, match=match):
            call(**request_)
    assert same(model.state_dict(), before)
    assert np.array_equal(model._model.counts.data, counts)
    # Who was removed has a row without items, who never was has none.
    assert model.recommend([1, 2], k=3)[1].tolist() == [9] * 3
    with pytest.raises(NotThere, match='node 12'):
        model.recommend([2, 12])
    model.remove(items=[3])
    assert model.counts([3, 4]).isnan().any(1).tolist() == [True, False]
    report = model.remove(users=[1, 2, 4], items=[0, 3], missing='skip')
    assert report.request == {'users': [1, 4], 'items': [0]}
    assert report.skipped == {'0': {'nodes': [2, 12 + 3]}}
    with pytest.raises(NotThere):
        model.remove([2], missing='skip')


def test_users_and_items_have_the_ids_of_the_data(tmp_path):
    edges = torch.tensor(ORACLE)
    one = Recommender().fit(edges, 12, 9)
    data = one.data
    users, items = torch.randperm(40)[:12], torch.randperm(40)[:9]
    data['user'].n_id, data['item'].n_id = users, items
    two = Recommender().fit(data)
    user, other, item = users.tolist()[3], users.tolist()[0], items.tolist()[5]
    later = int(users.max()) + 1
    first = one.remove(users=[3], items=[5], interactions=[(0, 0)])
    pair = (other, items.tolist()[0])
    second = two.remove(users=[user], items=[item], interactions=[pair])
    assert second.request == {
        'users': [user],
        'items': [item],
        'interactions': [[*pair]],
    }
    assert sorted(second.named['nodes']) == [user, later + item]
    assert torch.equal(one.edge_index, two.edge_index)
    assert torch.equal(one.n_id, two.n_id)
    top = one.recommend(range(12), k=4)
    ids = torch.cat([items, items.max().view(1) + 1])
    assert torch.equal(two.recommend(users, k=4), ids[top])
    # What asks for nodes of the whole graph, after a restart, too.
    two.save(tmp_path / 'model.pt')
    again = Recommender()
    again.load(tmp_path / 'model.pt')
    assert again.verify().ok
    two = again
    one.remove(RemovalRequest(nodes=[4, 12 + 6]))
    node = later + items.tolist()[6]
    report = two.remove(RemovalRequest(nodes=[users.tolist()[4], node]))
    assert report.request['items'] == [items.tolist()[6]]
    assert torch.equal(one.edge_index, two.edge_index)
    assert first.num_items == second.num_items == 8
    unit = PrivacyUnit(data, person='user', public=('item',))
    two.remove(RemovalRequest(persons=[1], unit=unit))
    one.remove(users=[1])
    assert torch.equal(one.edge_index, two.edge_index)


@pytest.mark.parametrize('fit', [lists_of, Recommender().fit])
def test_pairs_whose_numbers_would_wrap_are_refused(fit):
    # Without a check these two pairs have one number: 4 * 2^62 is 2^64.
    edges = torch.tensor([[0, 4], [0, 0]])
    with pytest.raises(ValueError, match=r"'num_users' times 'num_items'"):
        fit(edges, 5, 2**62)


@pytest.mark.parametrize('name', ['rating', 'weight'])
@pytest.mark.parametrize('rating', [[1, 5], np.array([1.0, np.nan])])
def test_ratings_in_any_container_are_refused(name, rating):
    data = HeteroData()
    data['user'].num_nodes = data['item'].num_nodes = 2
    store = data['user', 'likes', 'item']
    store.edge_index = torch.tensor([[0, 1], [1, 0]])
    store[name] = rating
    with pytest.raises(ValueError, match=f'ratings other than 1 in {name!r}'):
        Recommender().fit(data)
    store[name] = [1, 1]
    assert Recommender().fit(data).recommend([0], 1).tolist() == [[2]]


def test_repeated_interactions_and_too_popular_items_are_refused(monkeypatch):
    twice = torch.tensor([[0, 1, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match='each pair of user and item once'):
        Recommender().fit(twice, 2, 2)
    # Any sum or difference of so many is an integer of 53 bits.
    assert recommend.MOST_USERS * 2**recommend.BITS == 2**52
    monkeypatch.setattr(recommend, 'MOST_USERS', 2)
    liked = torch.tensor([[0, 1, 2], [1, 1, 1]])
    with pytest.raises(ValueError, match='at most 2 users'):
        lists_of(liked, 3, 2)
    assert lists_of(liked[:, :2], 3, 2).length.tolist() == [1, 1, 0]


# Interrupts, verification, files #############################################


def test_what_fails_in_the_middle_is_undone(monkeypatch):
    monkeypatch.setattr(recommender, 'RECOUNT', 1e9)
    model = Recommender().fit(liked(), 30, 20)
    anew = copy.deepcopy(model)
    model._model.counts.data.flags.writeable = False
    with pytest.raises(ValueError, match='read-only'):
        model.remove(interactions=[(0, int(model.edge_index[1, 0]))])
    model._model.counts.data.flags.writeable = True
    # A removal without a report is none.
    with monkeypatch.context() as patch:
        patch.setattr(recommender, 'provenance', lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.remove(users=[3])
    assert model.verify().ok
    assert same(model.state_dict(), anew.state_dict())


@pytest.mark.parametrize('part', ['count', 'list', 'ledger'])
def test_verification_finds_what_is_planted(part):
    model = Recommender().fit(liked(), 30, 20)
    model.remove(users=[4])
    assert model.verify().ok
    held = model._model
    if part == 'count':
        held.counts.data[7] += 2.0**-30
    elif part == 'list':
        own, item = held.lists.of(0), held.lists.item
        item[0] = next(i for i in range(20) if i not in own)
        item[: len(own)] = np.sort(item[: len(own)])
    else:
        held.items[2] = False
    found = model.verify()
    assert not found.ok
    assert 'FAILED' in found.summary()
    assert found.sealed == (part == 'count')
    assert found.counts_equal == (part == 'ledger')


def test_files_tell_nothing_of_the_way(tmp_path):
    edges = liked()
    first = tuple(edges[:, 0].tolist())
    model = Recommender().fit(edges, 30, 20)
    model.remove(users=[4, 9])
    model.remove(items=[3])
    model.remove(interactions=[first])
    other = Recommender(cached=False).fit(edges, 30, 20)
    other.remove(interactions=[first])
    other.remove(items=[3], users=[9])
    other.remove(users=[4])
    files = [tmp_path / name for name in 'ab']
    for each, path in zip((model, other), files, strict=True):
        each.save(path)
    states = []
    for path in files:
        state = without_chance(load(path))
        states.append({**state, 'ledger': 0})
    assert same(*states)
    assert 'counts' not in states[0]


def test_a_pickle_has_no_empty_counts(monkeypatch):
    monkeypatch.setattr(recommender, 'RECOUNT', 1e9)
    model = Recommender().fit(liked(), 30, 20)
    model.remove(users=[*range(15)])
    assert model.verify().leftovers
    made = pickle.loads(pickle.dumps(model))
    assert not made.verify().leftovers
    assert made.verify().ok
    assert torch.equal(made.recommend([20]), model.recommend([20]))
