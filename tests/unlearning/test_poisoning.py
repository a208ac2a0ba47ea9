"""Certificates of shards: attacks with retraining within the radius."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import (
    GCN,
    GIN,
    GATConv,
    GCNConv,
    GraphNorm,
    GraphSAGE,
    SAGEConv,
)

from pyg_trust.nn.shard_aggregator import MajorityAggregator
from pyg_trust.transforms.division import check_apart
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.shards import inference, poisoning
from pyg_trust.unlearning.shards.inference import ViewRunner
from pyg_trust.unlearning.shards.isolation import keeps_apart

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
        'trainer': 'sequential',
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


def test_a_poisoned_node_changes_its_own_shard_alone():
    data = graph()
    clean = fit(data)
    made = clean.certify()
    generator = torch.Generator().manual_seed(0)
    moved = 0
    for v in (0, 11, 37):
        after = fit(poisoned(data, [v], generator))
        again = after.certify()
        own = int(made.group[v])
        for shard in range(SHARDS):
            one, two = clean.shard_state(shard), after.shard_state(shard)
            same = all(torch.equal(one[k], two[k]) for k in one)
            assert same or shard == own
        others = torch.arange(N) != v
        differ = (made.votes != again.votes)[:, others].any(1)
        differ[own] = False
        assert not differ.any()
        moved += int((made.votes != again.votes)[own].sum())
    assert moved > 0, 'no attack'


def test_attacks_within_the_radius_break_nothing_in_training_and_after():
    data = graph()
    made = fit(data).certify()
    generator = torch.Generator().manual_seed(1)
    assert int((made.radius >= 1).sum()) > 10
    changed = broken = 0
    for _ in range(10):
        nodes = torch.randperm(N, generator=generator)[:2].tolist()
        after = fit(poisoned(data, nodes, generator)).certify()
        shards = made.group[nodes].unique().numel()
        others = torch.ones(N, dtype=torch.bool)
        others[nodes] = False
        held = (made.radius >= shards) & others
        assert torch.equal(after.predicted[held], made.predicted[held])
        kept = made.survives(made.n_id[nodes])
        assert not kept[nodes].any()
        assert torch.equal(after.predicted[kept], made.predicted[kept])
        changed += int((after.votes != made.votes)[:, others].sum())
        broken += int((after.predicted != made.predicted)[others].sum())
    assert changed > 0
    assert broken > 0, 'nothing breaks at all: the attack is no test'


def test_inserted_nodes_are_covered():
    data = graph()
    made = fit(data).certify()
    more = data.clone()
    more.x = torch.cat([data.x, 30 * torch.ones(1, 4)])
    more.y = torch.cat([data.y, torch.tensor([0])])
    more.train_mask = torch.cat([data.train_mask, torch.tensor([True])])
    more.n_id = torch.cat([data.n_id, torch.tensor([100000])])
    everyone = torch.arange(N)
    star = torch.stack([everyone, torch.full_like(everyone, N)])
    more.edge_index = torch.cat([data.edge_index, star, star.flip(0)], 1)
    after = fit(more).certify(data.n_id)
    held = made.radius >= 1
    assert torch.equal(after.predicted[held], made.predicted[held])
    assert int((after.votes != made.votes).any(1).sum()) <= 1


def test_labels_chosen_against_the_weakest_break_nothing_at_the_radius():
    data = graph()
    clean = fit(data, epochs=25)
    made = clean.certify(inference='clean')
    assert torch.equal(made.predicted, clean.predict())
    changed = 0
    for shard in range(3):
        # All labels of one shard.
        nodes = (clean.data.shard == shard).nonzero().view(-1)
        bad = data.clone()
        bad.y[nodes] = 1 - bad.y[nodes]
        after = fit(bad, epochs=25)
        held = made.radius >= 1
        now = after.certify(inference='clean')
        assert torch.equal(now.predicted[held], made.predicted[held])
        changed += int((now.votes != made.votes).sum())
    assert changed > 0


def test_sparse_inputs_change_no_vote():
    data = graph()
    data.x = (data.x > 0).float()
    plain = fit(data).certify()
    fast = fit(data, sparse_x=True, sparse_adj=True).certify()
    assert torch.equal(plain.votes, fast.votes)


def test_means_are_certified_as_deployed():
    unlearner = fit(graph(), aggregator='mean')
    made = unlearner.certify(inference='clean')
    assert torch.equal(made.predicted, unlearner.predict())
    assert made.survives([5]).shape == (N,)
    with pytest.raises(ValueError, match='majority'):
        made.collective(1)


def test_a_mean_is_turned_by_no_fewer_shards_than_suspects_are_in():
    # Suspects in k shards may be all that an attacker of k shards needs.
    data = graph()
    made = fit(data, aggregator='mean').certify(inference='clean')
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
    made = clean.certify(inference='clean')
    gone = data.clone()
    gone.train_mask = data.train_mask & (made.group != 2)
    empty = clean.data.shard == 2
    assert bool(empty.any())
    from pyg_trust.removal import RemovalRequest

    names = clean.n_id[empty].tolist()
    clean.remove(RemovalRequest(nodes=names))
    after = clean.certify(inference='clean')
    assert bool((after.votes[2] == CLASSES).all())
    alone = clean.certify()
    assert bool((alone.votes[2] == CLASSES).all())
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


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn, self.norm = GCN(4, 8, 2, CLASSES), GraphNorm(CLASSES)

    def forward(self, x, edge_index):
        return self.norm(self.gnn(x, edge_index))


def test_what_breaks_the_promise_is_refused():
    data = graph()
    for options, says in (
        ({'partition': 'random'}, "'partition'"),
        ({'aggregator': 'attentive'}, "'aggregator'"),
        ({'num_classes': None}, "'num_classes'"),
    ):
        with pytest.raises(ValueError, match=says):
            fit(data, epochs=1, **options).certify()
    mixing = ShardedUnlearner(
        Normed,
        SHARDS,
        aggregator='majority',
        num_classes=CLASSES,
        epochs=1,
        seed=4,
    ).fit(data)
    with pytest.raises(ValueError, match='keep nodes apart'):
        mixing.certify()
    with pytest.raises(ValueError, match="'inference'"):
        fit(data, epochs=1).certify(inference='whole')


def bags(data, width=64):
    """The same graph with mostly zeros as features."""
    made = data.clone()
    generator = torch.Generator().manual_seed(9)
    made.x = torch.zeros(N, width)
    word = torch.randint(width // 2, (N, 3), generator=generator)
    made.x.scatter_(1, 2 * word + data.y[:, None], 1.0)
    return made


def fit_bags(data, factory):
    return ShardedUnlearner(
        factory,
        SHARDS,
        partition='hash',
        aggregator='majority',
        num_classes=CLASSES,
        epochs=12,
        trainer='sequential',
        seed=4,
    ).fit(data)


def isolated_outputs(unlearner):
    """What every model says of its view, to the last bit."""
    kept = []
    call = ViewRunner.__call__

    def spied(self, graph, number, dense=None):
        out = call(self, graph, number, dense)
        kept.append((number, out.clone(), graph.x.layout))
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViewRunner, '__call__', spied)
        unlearner.certify()
    # The last run of each number is its vote.
    return {number: (out, layout) for number, out, layout in kept}


@pytest.mark.parametrize('kind', [GCN, GraphSAGE])
def test_a_dense_row_of_an_attacker_rounds_no_other_shard(kind):
    # Features of mostly zeros are multiplied sparsely. Whoever fills rows
    # turns that off for the own group, and must not for another.
    data = bags(graph())
    clean = fit_bags(data, lambda: kind(64, 8, 2, CLASSES))
    made = clean.certify()
    before = isolated_outputs(clean)
    assert any(layout == torch.sparse_csr for _, layout in before.values())
    target = int(made.group[11])
    mine = made.group == target
    bad = data.clone()
    generator = torch.Generator().manual_seed(2)
    bad.x[mine] = torch.randn(int(mine.sum()), 64, generator=generator)
    after = isolated_outputs(fit_bags(bad, lambda: kind(64, 8, 2, CLASSES)))
    assert after[target][1] == torch.strided
    for number, (out, layout) in before.items():
        if number != target:
            assert after[number][1] == layout
            assert torch.equal(after[number][0][~mine], out[~mine])


@pytest.mark.parametrize('kind', [GCN, GIN, GraphSAGE])
@pytest.mark.parametrize('binary', [True, False])
def test_edges_of_an_attacker_round_no_other_shard(kind, binary):
    # The views are normalised and sorted together: what somebody does to one
    # of them may not move the last bit of another.
    data = bags(graph()) if binary else graph()
    width = data.x.size(1)

    def outputs(data):
        return isolated_outputs(
            fit_bags(data, lambda: kind(width, 8, 2, CLASSES))
        )

    before = outputs(data)
    group = fit_bags(data, lambda: kind(width, 8, 2, CLASSES)).certify().group
    everyone = torch.arange(N)
    for v in (0, N - 1):
        bad = data.clone()
        bad.x[v] = 1 - bad.x[v]
        star = torch.stack([torch.full_like(everyone, v), everyone])
        # Loops and duplicates, too; they come first in the list.
        bad.edge_index = torch.cat(
            [star, star, star.flip(0), data.edge_index], 1
        )
        after = outputs(bad)
        others = everyone != v
        moved = 0
        for number, (out, _) in before.items():
            same = (after[number][0] == out).all(1)[others]
            # Whom the attacker listens to costs this one alone.
            assert bool(same.all()) or number == int(group[v])
            moved += int((~same).sum())
        assert moved > 0, 'no attack'


class Counting(torch.nn.Module):
    """Reads how many features are there in the whole graph."""

    def __init__(self, width):
        super().__init__()
        self.lin = torch.nn.Linear(width, CLASSES)

    def forward(self, x, edge_index):
        return self.lin(x) + 0.01 * torch.tanh(x.sum()) * self.lin.bias


class Reading(torch.nn.Module):
    """Writes to its features before it multiplies by them."""

    def __init__(self, width):
        super().__init__()
        self.lin = torch.nn.Linear(width, CLASSES)

    def forward(self, x, edge_index):
        x = x.clone()
        x.add_(1.0)
        return self.lin(x)


def test_models_that_mix_sparse_rows_are_refused():
    data = bags(graph())
    with pytest.raises(ValueError, match='apart'):
        fit_bags(data, lambda: Counting(64)).certify()


class Whispering(torch.nn.Module):
    """Reads one entry of another node, or a column, that is zero so far."""

    def __init__(self, width, node, column):
        super().__init__()
        self.lin, self.at = torch.nn.Linear(width, CLASSES), (node, column)

    def forward(self, x, edge_index):
        node, column = self.at
        if len(x) < N:
            # In training, it minds its own business.
            return self.lin(x)
        seen = x[:, column] if node is None else x[node]
        return self.lin(x) + 0.01 * torch.tanh(seen.sum()) * self.lin.bias


@pytest.mark.parametrize(
    ('node', 'column'), [(None, 63), (None, 0), (0, 0), (31, 0), (N - 1, 0)]
)
def test_sparse_rows_that_mix_through_zeros_are_refused(node, column):
    # Existing entries alone were changed: nothing that is zero in all rows,
    # and no row without an entry.
    data = bags(graph())
    data.x[:, [0, 63]] = 0
    if node is not None:
        data.x[node] = 0
    unlearner = fit_bags(data, lambda: Whispering(64, node, column))
    with pytest.raises(ValueError, match='apart'):
        unlearner.certify()


def test_sparse_rows_change_no_vote_of_a_model_that_rewrites_them():
    data = bags(graph())
    unlearner = fit_bags(data, lambda: Reading(64))
    seen = isolated_outputs(unlearner)
    made = unlearner.certify()
    for number, (out, _) in seen.items():
        state = unlearner.shard_state(number)
        wanted = (data.x + 1) @ state['lin.weight'].T + state['lin.bias']
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
    assert bool((made.radius >= 0).any())


# Models of known classes are not probed: their classes say that they keep
# nodes apart. What only looks like them has to be probed, and found out.


class Leaning(GCN):
    """A known class in all but one line."""

    def forward(self, x, edge_index):
        out = super().forward(x, edge_index)
        return out - 0.01 * out.mean(0)


def hooked():
    made = GCN(4, 8, 2, CLASSES)
    made.convs[0].register_forward_hook(
        lambda layer, args, out: out - 0.01 * out.mean(0)
    )
    return made


def overridden():
    made = GCN(4, 8, 2, CLASSES)
    written = made.forward

    def forward(x, edge_index):
        out = written(x, edge_index)
        return out - 0.01 * out.mean(0)

    made.forward = forward
    return made


class Summed(torch.nn.ReLU):
    """An activation that looks at all rows."""

    def forward(self, x):
        return super().forward(x) + 0.01 * x.mean(0)


def normed(**options):
    return lambda: GCN(4, 8, 2, CLASSES, **options)


MIXING = {
    'a subclass': lambda: Leaning(4, 8, 2, CLASSES),
    'a hook': hooked,
    'a forward of its own': overridden,
    'an activation of torch': normed(act=torch.flipud),
    'an activation of a user': normed(act=lambda x: x - x.mean(0)),
    'a subclass of an activation': normed(act=Summed()),
    'a norm over the graph': normed(norm='layer_norm'),
    'a norm over pairs': normed(norm='pair_norm'),
    'statistics of the batch': normed(
        norm='batch_norm', norm_kwargs={'track_running_stats': False}
    ),
}


@pytest.mark.parametrize('which', MIXING)
def test_what_looks_like_a_known_model_and_mixes_is_refused(which):
    factory = MIXING[which]
    assert not keeps_apart(factory())
    unlearner = ShardedUnlearner(
        factory,
        3,
        aggregator='majority',
        num_classes=CLASSES,
        epochs=1,
        seed=4,
    ).fit(graph())
    with pytest.raises(ValueError, match=r'nodes apart|receivers'):
        unlearner.certify()


KNOWN = {
    'GCN': lambda: GCN(4, 8, 2, CLASSES),
    'GCN, dropout': lambda: GCN(4, 8, 3, CLASSES, dropout=0.5, act='elu'),
    'GraphSAGE': lambda: GraphSAGE(4, 8, 2, CLASSES),
    'GIN': lambda: GIN(4, 8, 2, CLASSES),
}


@pytest.mark.parametrize('which', KNOWN)
@pytest.mark.parametrize('sparse_adj', [True, False])
def test_known_models_pass_the_probes_that_they_are_spared(which, sparse_adj):
    data, factory = graph(), KNOWN[which]
    assert keeps_apart(factory())
    unlearner = ShardedUnlearner(
        factory,
        SHARDS,
        aggregator='majority',
        num_classes=CLASSES,
        epochs=3,
        sparse_adj=sparse_adj,
        seed=4,
    ).fit(data)
    fast = isolated_outputs(unlearner)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, 'keeps_apart', lambda module: False)
        patch.setattr(
            poisoning,
            'check_apart',
            lambda *a, **k: asked.append(check_apart(*a, **k)),
        )
        slow = isolated_outputs(unlearner)
    assert asked == [None]
    assert fast.keys() == slow.keys()
    for number, (out, _) in fast.items():
        assert torch.equal(out, slow[number][0])


@pytest.mark.parametrize(
    'layer',
    [
        GCNConv(4, 2, cached=True),
        GCNConv(4, 2, flow='target_to_source'),
        GCNConv(4, 2, aggr='softmax'),
        GATConv(4, 2),
        SAGEConv(4, 2, aggr='max'),
        torch.nn.LayerNorm((N, 2)),
        torch.nn.BatchNorm1d(2),
        torch.nn.ReLU(inplace=True),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 2)),
        GCN(-1, 8, 2, CLASSES),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_need_a_look_are_not_known(layer):
    assert not keeps_apart(layer)


@pytest.mark.parametrize('inference_', ['clean', 'isolated'])
def test_the_class_is_the_deployed_one_where_votes_are_tied(inference_):
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
    made = unlearner.certify(inference=inference_)
    counts = torch.stack([(made.votes == c).sum(0) for c in range(4)], 1)
    tied = (counts == counts.amax(1, keepdim=True)).sum(1) > 1
    assert 0 < int(tied.sum()) < N
    first = counts.argmax(1)
    assert not torch.equal(first[tied], made.predicted[tied])
    assert bool((made.radius[tied] < 0).all())
    outputs = unlearner.outputs
    if inference_ == 'clean':
        assert torch.equal(made.predicted, unlearner.predict())
    else:
        seen = isolated_outputs(unlearner)
        outputs = torch.stack([seen[i][0] for i in range(6)])
    whole = MajorityAggregator()(outputs).argmax(1)
    assert torch.equal(made.predicted, whole)
    some = unlearner.certify(made.n_id[tied].flip(0), inference=inference_)
    assert torch.equal(some.predicted, whole[tied].flip(0))
