"""Certificates of shards: attacks with retraining within the radius."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.aggregate import MajorityAggregator

N, SHARDS, CLASSES = 60, 7, 2


def graph(seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % CLASSES
    x = torch.randn(N, 4, generator=generator)
    x[:, 0] += 3 * y - 1.5
    pairs = torch.randint(N, (2, 5 * N), generator=generator)
    pairs = pairs[:, pairs[0] < pairs[1]].unique(dim=1)
    same = y[pairs[0]] == y[pairs[1]]
    keep = same | (torch.rand(same.shape, generator=generator) < 0.1)
    pairs = pairs[:, keep]
    mask = torch.rand(N, generator=generator) < 0.7
    return Data(
        x=x,
        y=y,
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        train_mask=mask,
        n_id=3 * torch.arange(N) + 5,
    )


def fit(data, **options):
    given = {
        'aggregator': 'majority',
        'num_classes': CLASSES,
        'epochs': 12,
        'seed': 4,
    }
    return ShardedUnlearner(
        lambda: GCN(4, 8, 2, CLASSES), SHARDS, **{**given, **options}
    ).fit(data)


def poisoned(data, nodes, generator):
    """Everything at some nodes changed at will."""
    bad = data.clone()
    for v in nodes:
        bad.x[v] = 20 * torch.randn(4, generator=generator)
        bad.y[v] = 1 - bad.y[v]
        keep = (bad.edge_index != v).all(0)
        new = torch.randint(N, (25,), generator=generator).unique()
        new = new[new != v]
        pairs = torch.stack([new, torch.full_like(new, v)])
        bad.edge_index = torch.cat(
            [bad.edge_index[:, keep], pairs, pairs.flip(0)], 1
        )
        bad.train_mask[v] = True
    return bad


def on(unlearner, data):
    """What every model says of a graph, by plain PyG."""
    made = []
    for shard in range(SHARDS):
        model = GCN(4, 8, 2, CLASSES).eval()
        model.load_state_dict(unlearner.shard_state(shard))
        with torch.no_grad():
            made.append(model(data.x, data.edge_index))
    return torch.stack(made)


def test_a_poisoned_node_changes_its_own_shard_alone():
    data = graph()
    clean = fit(data)
    made = clean.certify()
    generator = torch.Generator().manual_seed(0)
    moved = 0
    for v in (0, 11, 37):
        after = fit(poisoned(data, [v], generator))
        # The graph at inference is the same.
        again = on(after, data)
        own = int(made.group[v])
        for shard in range(SHARDS):
            one, two = clean.shard_state(shard), after.shard_state(shard)
            same = all(torch.equal(one[k], two[k]) for k in one)
            assert same or shard == own
        others = torch.arange(N) != v
        votes = again.argmax(2)
        differ = (made.votes != votes)[:, others].any(1)
        differ[own] = False
        assert not differ.any()
        moved += int((made.votes != votes)[own].sum())
    assert moved > 0, 'no attack'


def test_attacks_within_the_radius_break_nothing():
    data = graph()
    made = fit(data).certify()
    generator = torch.Generator().manual_seed(1)
    assert int((made.radius >= 1).sum()) > 10
    changed = broken = 0
    for _ in range(10):
        nodes = torch.randperm(N, generator=generator)[:2].tolist()
        after = on(fit(poisoned(data, nodes, generator)), data).argmax(2)
        predicted = torch.stack(
            [(after == c).sum(0) for c in range(CLASSES)], 1
        ).argmax(1)
        shards = made.group[nodes].unique().numel()
        held = made.radius >= shards
        assert torch.equal(predicted[held], made.predicted[held])
        kept = made.survives(made.n_id[nodes])
        assert torch.equal(predicted[kept], made.predicted[kept])
        changed += int((after != made.votes).sum())
        broken += int((predicted != made.predicted).sum())
    assert changed > 0
    assert broken > 0, 'nothing breaks at all: the attack is no test'


def test_means_are_certified_as_deployed():
    unlearner = fit(graph(), aggregator='mean')
    made = unlearner.certify()
    assert torch.equal(made.predicted, unlearner.predict())
    assert made.survives([5]).shape == (N,)
    with pytest.raises(ValueError, match='majority'):
        made.collective(1)


def test_a_mean_is_turned_by_no_fewer_shards_than_suspects_are_in():
    # Suspects in k shards may be all that an attacker of k shards needs.
    data = graph()
    made = fit(data, aggregator='mean').certify()
    groups, names = made.group.tolist(), made.n_id.tolist()
    one_of = dict(zip(groups, names, strict=True))
    assert len(one_of) == SHARDS
    suspects, at_the_edge = [], 0
    for k, name in enumerate(one_of.values(), 1):
        suspects.append(name)
        # A second node of a shard that is counted already.
        twin = made.n_id[made.group == made.group[made.n_id == name]][0]
        kept = made.survives([*suspects, int(twin)])
        assert torch.equal(kept, made.certified(k))
        at_the_edge += int((made.radius == k - 1).sum())
    assert at_the_edge > 0


def test_reports_count_shards_and_suspects():
    data = graph()
    made = fit(data).certify(nodes=[5, 8, 11])
    assert made.targets.tolist() == [5, 8, 11]
    assert made.to_json()
    assert 'whatever other nodes do' in made.guarantee().promise
    all_of = fit(data).certify()
    for k in range(3):
        both = all_of.collective(k)
        assert both.exact
        assert both.lower >= int(all_of.certified(k).sum())
    y = data.y
    assert all_of.certified_accuracy(y, 1) <= all_of.certified_ratio(1)


def test_shards_that_run_empty_give_no_vote():
    # All training nodes of a shard leave; and come: nobody within the radius
    # moves, and no phantom vote counts.
    data = graph()
    clean = fit(data)
    made = clean.certify()
    gone = data.clone()
    gone.train_mask = data.train_mask & (made.group != 2)
    empty = clean.data.shard == 2
    assert bool(empty.any())
    from pyg_trust.removal import RemovalRequest

    names = clean.n_id[empty].tolist()
    clean.remove(RemovalRequest(nodes=names))
    after = clean.certify()
    assert bool((after.votes[2] == CLASSES).all())
    keep = torch.isin(made.targets, after.targets)
    held = made.radius[keep] >= 1
    assert torch.equal(after.predicted[held], made.predicted[keep][held])
    held = after.radius >= 1
    assert torch.equal(made.predicted[keep][held], after.predicted[held])
    counts = torch.stack(
        [(after.votes == c).sum(0) for c in range(CLASSES)], 1
    )
    best = counts.amax(1)
    assert bool((2 * after.radius <= best).all())


def test_what_breaks_the_promise_is_refused():
    data = graph()
    for options, says in (
        ({'partition': 'random'}, "'partition'"),
        ({'aggregator': 'attentive'}, "'aggregator'"),
        ({'num_classes': None}, "'num_classes'"),
    ):
        with pytest.raises(ValueError, match=says):
            fit(data, epochs=1, **options).certify()


def test_the_class_is_the_deployed_one_where_votes_are_tied():
    # Six shards, four classes and little training: many ties, which means of
    # probabilities break.
    data = graph()
    data.y = torch.arange(N) % 3
    unlearner = ShardedUnlearner(
        lambda: GCN(4, 8, 2, 4),
        6,
        aggregator='majority',
        num_classes=4,
        epochs=2,
        seed=4,
    ).fit(data)
    made = unlearner.certify()
    counts = torch.stack([(made.votes == c).sum(0) for c in range(4)], 1)
    tied = (counts == counts.amax(1, keepdim=True)).sum(1) > 1
    assert 0 < int(tied.sum()) < N
    first = counts.argmax(1)
    assert not torch.equal(first[tied], made.predicted[tied])
    assert bool((made.radius[tied] < 0).all())
    outputs = unlearner.outputs
    assert torch.equal(made.predicted, unlearner.predict())
    whole = MajorityAggregator()(outputs).argmax(1)
    assert torch.equal(made.predicted, whole)
    some = unlearner.certify(made.n_id[tied].flip(0))
    assert torch.equal(some.predicted, whole[tied].flip(0))
