"""Attacks on votes of views, of noisy copies and of shards.

Each of these passed unseen before.
"""

import math
from fractions import Fraction

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import scatter, to_undirected

from pyg_trust import rng
from pyg_trust.certificates import BitFlips, Divided, certify
from pyg_trust.certificates.poisoning import certify_shards
from pyg_trust.certificates.voting import differ
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning import ShardedUnlearner
from pyg_trust.unlearning.aggregate import MeanAggregator, majority_vote
from pyg_trust.verify.votes import answers, needed

OPTIONS = {'num_samples': 2000, 'num_selection': 100}


def graph(seed=0, n=40):
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, n, (2, 2 * n), generator=draw)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return Data(
        x=torch.randn(n, 2, generator=draw),
        edge_index=to_undirected(pairs, num_nodes=n),
        num_nodes=n,
    )


def heard(x, edge_index):
    at = edge_index[1]
    return scatter(x[edge_index[0]], at, 0, dim_size=len(x), reduce='sum')


# A class that nobody may have, far below all others ########################


class Masked(torch.nn.Module):
    """Two classes, and one that is masked, as is done with labels unseen."""

    def __init__(self, wrong, by=-1e9):
        super().__init__()
        self.wrong, self.by = wrong, by

    def forward(self, x, edge_index, batch=None):
        out = self.wrong(x, edge_index, batch)
        return torch.cat([out, torch.full_like(out[:, :1], self.by)], 1)


def of_the_batch(x, edge_index, batch):
    out = scatter(x, batch, 0, reduce='sum')
    return out - out.mean(0)


def of_itself(x, edge_index, batch):
    return scatter(x, batch, 0, reduce='sum')


def of_listeners(x, edge_index, batch):
    degree = edge_index[0].bincount(minlength=len(x)).clamp(min=1)
    return x + heard(x / degree[:, None], edge_index)


def of_neighbours(x, edge_index, batch):
    return x + heard(x, edge_index)


def test_a_masked_class_does_not_hide_that_views_are_mixed():
    graphs = [graph(i, 8) for i in range(4)]
    for wrong, apart in ((of_the_batch, True), (of_itself, False)):
        made = Divided(Masked(wrong), 3, 'edges', seed=0).certify(graphs)
        assert ('one at a time' in ' '.join(made.checked)) == apart


def test_a_masked_class_does_not_hide_out_degrees():
    # One changed node reaches all views by the degrees of who it hears.
    Divided(Masked(of_neighbours), 3, 'nodes', seed=0).certify(graph())
    with pytest.raises(ValueError, match='out-degrees'):
        Divided(Masked(of_listeners), 3, 'nodes', seed=0).certify(graph())


def test_a_masked_class_does_not_hide_that_copies_are_mixed():
    def shared(x, edge_index, batch):
        degree = edge_index[1].bincount(minlength=len(x))[:, None].float()
        out = torch.cat([degree, 2 - degree], 1)
        return out - out.mean(0)

    data, noise = graph(n=12), BitFlips(edges=(0.0, 0.4))
    made = certify(Masked(shared), data, noise, **OPTIONS)
    assert 'one copy at a time' in made.note


@pytest.mark.parametrize('hidden', ['masked', 'hub', 'masked hub', 'shifted'])
def test_logits_that_differ_are_told_from_rounding(hidden):
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(50, 3, generator=draw)
    leak = torch.randn(50, 3, generator=draw)
    if 'masked' in hidden:
        one[:, 2] = -1e9
    if 'hub' in hidden:
        one[7] *= 1e7
    if hidden == 'shifted':
        one += 2e3
    noise = torch.rand(one.shape, generator=draw) - 0.5
    assert not differ(one, one * (1 + 4e-7 * noise))
    assert differ(one, one + 0.1 * leak)
    assert differ(one, one + 0.01 * leak) or hidden == 'shifted'
    # And so of a single graph.
    kept = [row for row in range(50) if row != 7 or 'hub' not in hidden]
    alone = [differ(one[[i]], one[[i]] + 0.5 * leak[[i]]) for i in kept]
    assert all(alone)


# What views share ###########################################################


class Writes(torch.nn.Module):
    """Writes to the features that it is given."""

    def forward(self, x, edge_index):
        x[edge_index[1].bincount(minlength=len(x)) == 0] = 0
        return x + heard(x, edge_index)


@pytest.mark.parametrize('by', ['edges', 'nodes'])
def test_what_a_model_writes_to_is_no_other_view_s(by):
    data = graph()
    kept = data.clone()
    divided = Divided(Writes(), 5, by, seed=0)
    made = divided.certify(data)
    assert torch.equal(data.x, kept.x)
    for number in range(5):
        view = divided.division.view(kept, number).clone()
        votes = Writes()(view.x, view.edge_index).argmax(1)
        assert torch.equal(made.votes[number], votes)


def test_a_transform_that_drops_nodes_is_refused():
    def fewer(view):
        return view.subgraph(torch.arange(40) > 0)

    model = torch.nn.Module()
    model.forward = lambda x, edge_index: x
    with pytest.raises(ValueError, match=r"'transform'.*39 of 40"):
        Divided(model, 3, 'edges', transform=fewer).certify(graph())


# Shards #####################################################################

NODES, SHARDS = 60, 7


def labelled():
    data = graph(n=NODES)
    data.y = torch.arange(NODES) % 2
    data.x[:, 0] += 3 * data.y - 1.5
    data.train_mask = torch.arange(NODES) % 3 > 0
    return data


class Row(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x, edge_index):
        return self.linear(x)


def fitted(aggregator):
    made = ShardedUnlearner(
        Row, SHARDS, aggregator=aggregator, num_classes=2, epochs=5, seed=1
    )
    return made.fit(labelled())


@pytest.mark.parametrize('nodes', [[3, 5, 3], []])
def test_a_target_counts_once(nodes):
    with pytest.raises(ValueError, match='different ids, at least one'):
        fitted('majority').certify(nodes)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_means_in_half_precision_promise_less(dtype):
    # Of bfloat16, eight bits: what is certified stays as it is deployed.
    n, shards = 20000, 9
    partition = Shards(shards, 'hash', seed=0)
    names = torch.arange(n)
    group = rng.derive_each(partition.seed, names) % shards
    data = Data(x=torch.zeros(n, 1), n_id=names, shard=group)
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(shards, n, 3, generator=draw)
    outputs[..., 2] += 1.5
    outputs = outputs.to(dtype)
    made = certify_shards(
        data,
        outputs,
        partition,
        MeanAggregator(),
        3,
        nodes=None,
        fingerprint='',
        provenance={},
        weights='',
    )
    share = float(made.certified(1).double().mean())
    assert share > (0.5 if dtype == torch.float32 else 0.2)
    sure, broken = made.certified(1), 0
    margin = outputs.float().softmax(2)
    for other in range(3):
        # The shard that says most against another class says all for it.
        lead = margin.gather(2, made.predicted.expand(shards, n)[..., None])
        worst = (lead[..., 0] - margin[..., other]).argmax(0)
        bad = outputs.clone()
        said = torch.full((n, 3), -40.0, dtype=dtype)
        said[:, other] = 40
        bad[worst, names] = said
        found = MeanAggregator()(bad).argmax(1)
        broken += int((sure & (found != made.predicted)).sum())
    assert broken == 0


def test_votes_are_counted_whole_in_half_precision():
    outputs = torch.zeros(513, 1, 2, dtype=torch.bfloat16)
    outputs[:256, 0, 0], outputs[256:, 0, 1] = 20.0, 1.0
    assert int(majority_vote(outputs).argmax(1)) == 1


# Answers ####################################################################


def test_an_answer_is_that_of_two_binomials_in_the_kernel():
    def at_least(n, k, p):
        return sum(
            math.comb(n, i) * p**i * (1 - p) ** (n - i)
            for i in range(k, n + 1)
        )

    level, failure = Fraction(1, 50), Fraction(1, 20)
    for n, m in ((60, 21), (61, 40), (33, 2)):
        k = needed(n, level, 0)
        half = Fraction(1, 2)
        assert at_least(n, k, half) <= level < at_least(n, k - 1, half)
        for i in range(50, 101):
            p = Fraction(i, 100)
            exact = at_least(n, k, p) + at_least(m, m // 2 + 1, p) - 1
            wanted = p > half and exact >= 1 - failure
            assert answers(p, n, k, m, failure) == wanted
    assert needed(3, level, 0) == 4
