"""Promises of the sharded unlearner, attacked."""

import copy
import json
import pickle

import pytest
import torch
from sharded import (
    CHANNELS,
    CLASSES,
    MODELS,
    SHARDS,
    TRAIN,
    Counting,
    Normed,
    learnt,
    make,
)
from sharded import make_data as graph
from states import same, without_chance
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GIN, PairNorm, SGConv

from pyg_trust.nn import make_aggregator
from pyg_trust.removal import RemovalRequest, remove_from_data


class SG(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SGConv(CHANNELS, CLASSES, K=2)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


KINDS = {
    **MODELS,
    'GIN': lambda: GIN(CHANNELS, 8, 2, CLASSES, norm=None),
    'SGConv': SG,
    'BatchNorm': lambda: GCN(CHANNELS, 8, 2, CLASSES, norm='batch_norm'),
    'PairNorm': lambda: GCN(CHANNELS, 8, 2, CLASSES, norm=PairNorm()),
    'a counter': Counting,
    'a buffer of its own': Normed,
}
AGGREGATORS = ('mean', 'majority', 'lbaggr', 'attentive', 'contrastive')


def requests(data, count, seed):
    """Random requests of every kind, one after the other possible."""
    generator = torch.Generator().manual_seed(seed)
    cleared = set()
    for _ in range(count):
        kind = int(torch.randint(3, (), generator=generator))
        if kind == 0 or data.edge_index.size(1) == 0:
            at = int(torch.randint(data.num_nodes, (), generator=generator))
            request = RemovalRequest(nodes=[int(data.n_id[at])])
        elif kind == 1:
            at = torch.randint(
                data.edge_index.size(1), (), generator=generator
            )
            ends = data.n_id[data.edge_index[:, at]]
            request = RemovalRequest(edges=[tuple(ends.tolist())])
        else:
            left = [v for v in data.n_id.tolist() if v not in cleared]
            at = int(torch.randint(len(left), (), generator=generator))
            request = RemovalRequest(features=[left[at]])
            cleared.add(left[at])
        data = remove_from_data(data, request.parts[0])
        yield request, data


@pytest.mark.parametrize('name', KINDS)
def test_random_removals_equal_a_fresh_start(name):
    data = graph()
    data.n_id = torch.arange(70) * 3 + 1
    options = {
        'aggregator': 'mean',
        'num_classes': CLASSES,
        'epochs': 2,
    }
    unlearner = make(KINDS[name], **options).fit(data)
    for i, (request, left) in enumerate(requests(data, 12, 3)):
        unlearner.remove(request)
        if i % 4 == 3:
            fresh = make(KINDS[name], **options).fit(left)
            assert torch.equal(fresh.outputs, unlearner.outputs)
            assert same(
                [fresh.shard_state(s) for s in range(SHARDS)],
                [unlearner.shard_state(s) for s in range(SHARDS)],
            )
    found = unlearner.verify()
    assert found.ok, found


@pytest.mark.parametrize('aggregator', AGGREGATORS)
def test_random_removals_under_every_aggregator(aggregator):
    data = graph()
    options = {'aggregator': aggregator, 'num_classes': CLASSES, 'epochs': 2}
    unlearner = make(**options).fit(data)
    named = data.clone().update({'n_id': torch.arange(70)})
    done = list(requests(named, 6, 5))
    for request, _ in done:
        unlearner.remove(request)
    fresh = make(**options).fit(done[-1][1])
    assert same(learnt(fresh)['aggregator'], learnt(unlearner)['aggregator'])
    # Predictions keep their rows, with none for whoever was removed.
    found = unlearner.predict_proba()
    there = torch.isin(named.n_id, done[-1][1].n_id)
    assert torch.equal(found[there], fresh.predict_proba())
    assert bool(found[~there].isnan().all())
    assert torch.equal(unlearner.predict() < 0, ~there)
    assert unlearner.verify().ok


def test_another_graph_between_two_removals_leaves_nothing():
    # A normalised adjacency that outlives its graph would be seen here.
    data, other = graph(), graph(1, nodes=90)
    unlearner, alone = make().fit(data), make().fit(data)
    unlearner.remove(RemovalRequest(nodes=[3]))
    first = unlearner.predict_proba(other)
    unlearner.remove(RemovalRequest(nodes=[9]))
    unlearner.predict_proba(other)
    alone.remove(RemovalRequest(nodes=[3]))
    assert torch.equal(first, alone.predict_proba(other))
    alone.remove(RemovalRequest(nodes=[9]))
    assert torch.equal(unlearner.outputs, alone.outputs)
    assert unlearner.verify().ok


def odd(kind):
    """A graph with something unusual in it, and what goes."""
    data = graph()
    a, b = data.edge_index
    if kind == 'a node without neighbours':
        data.edge_index = data.edge_index[:, (a != 5) & (b != 5)]
        return data, RemovalRequest(nodes=[5])
    if kind == 'all neighbours of a node':
        return data, RemovalRequest(nodes=b[a == 5].unique().tolist())
    if kind == 'a directed edge':
        data.edge_index = data.edge_index[:, a < b]
        return data, RemovalRequest(edges=[tuple(data.edge_index[:, 2])])
    if kind == 'self-loops':
        loops = torch.tensor([[3, 9, 60], [3, 9, 60]])
        data.edge_index = torch.cat([data.edge_index, loops], 1)
        return data, RemovalRequest(nodes=[3], edges=[(9, 9)])
    if kind == 'edges twice':
        data.edge_index = data.edge_index.repeat(1, 2)
        return data, RemovalRequest(edges=[tuple(data.edge_index[:, 2])])
    if kind == 'weights':
        data.edge_weight = torch.rand(
            a.numel(), generator=torch.Generator().manual_seed(1)
        )
        return data, RemovalRequest(nodes=[5], features=[7])
    assert kind == 'features alone'
    return data, RemovalRequest(features=[5, 60])


@pytest.mark.parametrize(
    'kind',
    [
        'a node without neighbours',
        'all neighbours of a node',
        'a directed edge',
        'self-loops',
        'edges twice',
        'weights',
        'features alone',
    ],
)
def test_odd_removals_equal_a_fresh_start(kind):
    data, request = odd(kind)
    options = {
        'aggregator': 'mean',
        'num_classes': CLASSES,
        'epochs': 2,
    }
    unlearner = make(**options).fit(data)
    unlearner.remove(request)
    left = remove_from_data(data, request.parts[0])
    fresh = make(**options).fit(left)
    for shard in range(SHARDS):
        assert same(fresh.shard_state(shard), unlearner.shard_state(shard))
    assert torch.equal(fresh.outputs, unlearner.outputs)
    assert unlearner.verify().ok


# Empty shards and classes ####################################################


@pytest.mark.parametrize('aggregator', ['mean', 'majority', 'attentive'])
def test_a_shard_may_run_empty(aggregator, tmp_path):
    data = graph()
    options = {'aggregator': aggregator, 'num_classes': CLASSES}
    unlearner = make(**options).fit(data)
    home = (unlearner.data.shard == 1).nonzero().view(-1)
    report = unlearner.remove(RemovalRequest(nodes=home))
    assert report.empty == unlearner.report().empty == (1,)
    left = remove_from_data(data, RemovalRequest(nodes=home).parts[0])
    fresh = make(**options).fit(left)
    assert same(learnt(fresh), learnt(unlearner))
    assert unlearner.verify().ok
    # A constant voter, with the voice of none.
    assert not bool(unlearner.outputs[1].any())
    others = unlearner.outputs[[0, 2, 3]]
    if aggregator != 'attentive':
        expected = make_aggregator(aggregator)(others).argmax(1)
        found = unlearner.predict()
        assert torch.equal(found[unlearner.n_id], expected)
        assert torch.equal((found < 0).nonzero().view(-1), home)
    # And it can be saved, loaded, and go on.
    unlearner.save(tmp_path)
    again = make(**options).load(tmp_path)
    assert same(learnt(again), learnt(unlearner))
    for node in again.n_id[again.data.shard == 0][:2].tolist():
        again.remove(RemovalRequest(nodes=[node]))
    assert again.verify().ok


def test_nobody_can_block_a_removal_by_what_would_run_empty():
    data = graph()
    unlearner = make(num_classes=CLASSES).fit(data)
    last = (data.y[:TRAIN] == 1).nonzero().view(-1)
    unlearner.remove(RemovalRequest(nodes=last[:-1]))
    unlearner.remove(RemovalRequest(nodes=last[-1:]))
    assert unlearner.verify().ok
    left = remove_from_data(data, RemovalRequest(nodes=last).parts[0])
    fresh = make(num_classes=CLASSES).fit(left)
    assert same(learnt(fresh), learnt(unlearner))
    # Without it, a fresh start may have fewer outputs.
    plain = make().fit(data)
    with pytest.raises(ValueError, match='num_classes'):
        plain.remove(RemovalRequest(nodes=last))
    # Nobody is left.
    with pytest.raises(ValueError, match='no training node'):
        unlearner.remove(
            RemovalRequest(nodes=unlearner.n_id[unlearner.data.shard >= 0])
        )


# What is handed out, and what is taken #######################################


def test_nobody_reaches_what_is_in_force():
    unlearner = make().fit(graph())
    before = copy.deepcopy(unlearner.state_dict())
    unlearner.data.x.zero_()
    unlearner.data.edge_index.zero_()
    unlearner.n_id.zero_()
    unlearner.outputs.zero_()
    unlearner.shard_state(0)['convs.0.bias'].fill_(9)
    unlearner.ledger.record('retrain', 0.0)
    state = unlearner.state_dict()
    state['data']['y'].zero_()
    state['checkpoints'][0]['weights']['convs.0.bias'].fill_(9)
    state['ledger']['entries'].clear()
    assert same(before, unlearner.state_dict())
    assert unlearner.verify().ok


def without(data, *names):
    for name in names:
        del data[name]
    return data


@pytest.mark.parametrize(
    ('change', 'error', 'message'),
    [
        ({'n_id': ['a'] * 70}, TypeError, 'n_id'),
        ({'edge_attr': torch.ones(200, 3)}, ValueError, 'edge_attr'),
        ({'edge_index': None}, ValueError, 'edge_index'),
    ],
)
def test_data_that_it_could_not_keep(change, error, message):
    data = graph()
    if 'edge_attr' in change:
        change = {'edge_attr': torch.ones(data.edge_index.size(1), 3)}
    data.update(change)
    with pytest.raises(error, match=message):
        make().fit(data)


def test_a_graph_with_one_edge_that_goes():
    data = graph()
    data.edge_index = torch.tensor([[0], [5]])
    unlearner = make(epochs=1).fit(data)
    unlearner.remove(RemovalRequest(edges=[(0, 5)]))
    assert torch.equal(unlearner.data.y, data.y)
    other = make(epochs=1)
    other.load_state_dict(unlearner.state_dict())
    assert other.verify().ok


# Secrets #####################################################################


def test_who_knows_the_seed_of_torch_does_not_know_the_shards():
    data = graph()
    torch.manual_seed(4)
    one = make(seed=None, epochs=1, aggregator='mean').fit(data)
    torch.manual_seed(4)
    two = make(seed=None, epochs=1, aggregator='mean').fit(data)
    assert not torch.equal(one.data.shard, two.data.shard)
    assert 'operating system' in str(one.report()).splitlines()[1]


def test_a_given_seed_is_named_first_and_kept():
    data = graph()
    unlearner = make(seed=3, epochs=1, aggregator='mean').fit(data)
    report = unlearner.remove(RemovalRequest(nodes=[1]))
    for text in (str(unlearner.report()), str(report)):
        assert 'explicit seed' in text.splitlines()[1]
    assert report.guarantee().promise.startswith('keys come from an explicit')
    other = make(seed=None, epochs=1, aggregator='mean')
    other.load_state_dict(unlearner.state_dict())
    assert 'explicit seed' in other.report().secrets


def test_all_bits_of_a_seed_matter():
    data = graph()
    one = make(seed=5, epochs=1, aggregator='mean').fit(data)
    two = make(seed=5 + 2**32, epochs=1, aggregator='mean').fit(data)
    assert not torch.equal(one.data.shard, two.data.shard)
    for name, value in one.shard_state(0).items():
        if name.endswith('weight'):
            assert not torch.equal(value, two.shard_state(0)[name])


def test_a_hash_partition_takes_fewer_nodes_than_shards():
    data = graph()
    data.train_mask = torch.arange(70) < 3
    unlearner = make(num_classes=CLASSES, aggregator='mean').fit(data)
    assert len(unlearner.report().empty) >= 1
    assert unlearner.verify().ok
    assert isinstance(unlearner.data, Data)


def test_a_division_that_looks_at_more_than_names_is_found(monkeypatch):
    # The kernel divides the names again: a node in another shard is noticed
    # though weights, keys and digests all agree with one another.
    from pyg_trust.unlearning.shards import building

    honest = building.hash_partition

    def crowded(names, num_shards, **options):
        return (honest(names, num_shards, **options) + 1) % num_shards

    data = graph()
    unlearner = make().fit(data)
    assert unlearner.verify(shards=[]).ok
    monkeypatch.setattr(building, 'hash_partition', crowded)
    unlearner = make().fit(data)
    found = unlearner.verify(shards=[])
    assert not found.ok
    assert not found.differing
    assert found.keys_match
    assert any('that it should not' in line for line in found.leftovers)


# What files and pickles tell ################################################


def small(**kwargs):
    return make(KINDS['SGConv'], epochs=1, aggregator='mean', **kwargs)


def test_a_folder_does_not_tell_what_was_trained_last(tmp_path):
    told = []
    for number, order in enumerate(((3, 9), (9, 3))):
        folder = tmp_path / str(number)
        unlearner = small(folder=folder).fit(graph())
        for name in order:
            unlearner.remove(RemovalRequest(nodes=[name]))
        state = without_chance(unlearner.state_dict())
        del state['ledger']
        told.append(state)
        # Names and ledger tell who was removed; nothing else is there.
        manifest = json.loads((folder / 'manifest.json').read_bytes())
        assert set(manifest) == {
            'format',
            'files',
            'lineage',
            'ledger',
        }
    assert same(*told)


def test_times_that_nobody_has_seen_are_not_made_up(tmp_path):
    fitted = small(folder=tmp_path).fit(graph())
    request = RemovalRequest(nodes=[3])
    assert fitted.plan(request).seconds
    loaded = small(folder=tmp_path).load()
    plan = loaded.plan(request)
    assert plan.seconds == {}
    assert loaded.report().seconds == {}
    assert plan.fraction == plan.node_epochs / plan.full_node_epochs
    report = loaded.remove(request)
    assert sum(report.seconds.values()) > 0
    assert 0 < report.fraction < 1


def test_all_that_a_state_of_shards_has_is_sealed():
    unlearner = make(epochs=1).fit(graph())
    good = unlearner.state_dict()
    one = good['checkpoints'][1]
    bias = {name: value + 1 for name, value in one['weights'].items()}
    learnt = {k: v + 1e-3 for k, v in good['aggregator'].items()}
    other = make(epochs=1)
    for change in (
        {'seeded': False},
        {'fresh': False},
        {'num_classes': CLASSES - 1},
        {'aggregator': learnt},
        {'checkpoints': {**good['checkpoints'], 1: {**one, 'weights': bias}}},
    ):
        with pytest.raises(ValueError, match='ledger'):
            other.load_state_dict({**good, **change})
    # And in memory.
    held = unlearner._state
    unlearner._state = held._replace(seeded=False)
    assert not unlearner.verify([]).ok
    unlearner._state = held
    assert unlearner.verify([]).ok


@pytest.mark.parametrize('kind', ['tensor', 'lists'])
def test_a_pickle_does_not_tell_the_shard_of_a_removed_node(kind):
    data, kept = graph(), []
    for shard in (0, 1):
        given = torch.arange(TRAIN) % SHARDS
        given[5] = shard
        if kind == 'lists':
            names = data.train_mask.nonzero().view(-1)
            given = [names[given == i] for i in range(SHARDS)]
        unlearner = make(SG, partition=given, epochs=1, aggregator='mean').fit(
            data
        )
        name = int(data.train_mask.nonzero()[5])
        unlearner.remove(RemovalRequest(nodes=[name]))
        for each in (unlearner, pickle.loads(pickle.dumps(unlearner))):
            kept.append((each._given, each._state.partition))
            assert each.verify([]).ok
            with pytest.raises(ValueError, match='forgotten'):
                each.fit(data)
            state = each.state_dict()
            again = make(SG, partition=given, epochs=1, aggregator='mean')
            again.load_state_dict(state)
            kept.append((again._given, again._state.partition))
    assert len(set(kept)) == 1
