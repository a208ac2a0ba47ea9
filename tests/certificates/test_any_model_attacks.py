"""Attacks on certificates of any model by somebody who knows the code."""

import math
from fractions import Fraction

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv
from torch_geometric.utils import scatter, to_undirected

from pyg_trust.certificates import (
    BitFlips,
    Divided,
    SmoothedClassifier,
    certify,
    certify_collective,
)
from pyg_trust.certificates.smoothing import (
    answering_probability,
    clopper_pearson,
)
from pyg_trust.transforms import Division

NONE = torch.zeros(2, 0, dtype=torch.int64)
OPTIONS = {'num_samples': 2000, 'num_selection': 100}


def sign(x):
    return torch.cat([x - 0.5, 0.5 - x], 1)


class Least(torch.nn.Module):
    """Every node sees all twelve of its graph, without an edge."""

    def forward(self, x, edge_index):
        least = x.view(-1, 12, 1).amin(1, keepdim=True)
        return sign(least.expand(-1, 12, 1).reshape(-1, 1))


class Anchor(torch.nn.Module):
    """Every node sees the first one of the batch."""

    def forward(self, x, edge_index):
        return sign(x[:1].expand(x.size(0), -1))


def ones():
    return Data(x=torch.ones(12, 1), edge_index=NONE)


def test_what_all_nodes_see_without_a_path_is_found_out():
    # One deleted entry changes all twelve; the fields end at each node, and
    # nothing is within two more rounds.
    noise = BitFlips(features=(0.0, 0.01))
    report = certify(Least(), ones(), noise, seed=1, **OPTIONS)
    with pytest.raises(ValueError, match='outside of its field'):
        certify_collective(report, Least(), ones(), K=0, features=(0, 1))


def test_copies_that_show_each_other_their_first_node():
    # Three alike copies have the same output together; 2,000 of them then
    # all say what the first one says.
    noise = BitFlips(features=(0.0, 0.3))
    for seed in range(8):
        report = certify(Anchor(), ones(), noise, seed=seed, **OPTIONS)
        assert 'one copy at a time' in report.note
        assert not report.certified(features=(0, 2)).any()


class Degree(torch.nn.Module):
    """Weighted by the degree of the source, in pairs of nodes."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(1, 1, bias=False)
        torch.nn.init.ones_(self.conv.lin.weight)

    def forward(self, x, edge_index):
        off = (self.conv(x, edge_index) - 1).abs()
        return torch.cat([0.05 - off, off - 0.05], 1)


def test_added_edges_show_degrees_where_none_can_be_deleted():
    # Pairs: an edge between two of them changes all four nodes, of which two
    # alone have an end. No edge that is there is outside of a field.
    low = torch.arange(0, 12, 2)
    edges = torch.stack([low, low + 1])
    data = Data(
        x=torch.ones(12, 1), edge_index=torch.cat([edges, edges.flip(0)], 1)
    )
    model, noise = Degree(), BitFlips(edges=(0.0, 0.1))
    report = certify(model, data, noise, seed=1, **OPTIONS)
    bad = data.clone()
    new = torch.tensor([[0, 2], [2, 0]])
    bad.edge_index = torch.cat([data.edge_index, new], 1)
    moved = certify(model, bad, noise, seed=2, **OPTIONS).predicted
    budget = {'K': 1, 'edges': (1, 0)}
    assert int((moved != report.predicted).sum()) == 4
    good = certify_collective(report, model, data, **budget)
    assert good.guaranteed <= 12 - 4
    with pytest.raises(ValueError, match='outside of its field'):
        certify_collective(report, model, data, degrees='target', **budget)


def test_a_local_budget_is_part_of_the_promise():
    noise = BitFlips(features=(0.0, 0.01))
    model = torch.nn.Module()
    model.forward = lambda x, edge_index: sign(x)
    report = certify(model, ones(), noise, seed=1, **OPTIONS)
    made = certify_collective(
        report, model, ones(), K=0, features=(0, 2), local_budget=0
    )
    assert made.local_budget == 0
    assert 'at most 0 of a kind in one row' in made.guarantee().promise


@pytest.mark.parametrize('by', ['features', 'entries', 'grid'])
def test_an_infinite_row_shows_in_one_view_alone(by):
    data = Data(x=torch.ones(6, 2), edge_index=NONE)
    bad = data.clone()
    bad.x[0] = -torch.inf
    division = Division(3, by, seed=1)
    differ = [
        not torch.equal(division.view(data, i).x, division.view(bad, i).x)
        for i in range(division.num_views)
    ]
    assert (
        1
        <= sum(differ)
        <= (1, 2, 3)[('features', 'entries', 'grid').index(by)]
    )
    if by == 'features':
        model = torch.nn.Module()
        model.forward = lambda x, edge_index: sign(
            x.isnan().any(1, keepdim=True) * -1.0 + 1
        )
        divided = Divided(model, 3, by, seed=1)
        one, two = divided.certify(data), divided.certify(bad)
        stays = one.predicted == two.predicted
        assert bool(one.certified(1).any())
        assert bool(stays[one.certified(1)].all())


def test_rows_of_edges_that_noise_would_leave_behind_are_refused():
    edges = torch.tensor([[0, 1], [1, 0]])
    data = Data(x=torch.ones(3, 1), edge_index=edges)
    data.edge_type = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="'edge_type'"):
        certify(Anchor(), data, BitFlips(edges=(0.0, 0.4)), seed=1, **OPTIONS)


class Shown(torch.nn.Module):
    """Everybody sees one node, whom no edge needs to join."""

    def __init__(self, node):
        super().__init__()
        self.node = node

    def forward(self, x, edge_index):
        return sign(x[self.node].expand(x.size(0), -1)[:, :1])


@pytest.mark.parametrize('node', [0, 7, 11])
def test_one_node_that_all_views_see_is_found_out(node):
    # Three silent nodes of the first group were changed one by one: a node
    # that is heard there, or comes later, was not among them.
    for seed in range(4):
        with pytest.raises(ValueError, match='keep nodes apart'):
            Divided(Shown(node), 3, 'nodes', seed=seed).certify(ones())


def test_another_function_than_the_certified_one_is_refused():
    model = GCNConv(1, 2)
    pairs = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    data = Data(x=torch.ones(4, 1), edge_index=pairs)
    noise = BitFlips(features=(0.0, 0.3))

    def alone(graph):
        return model(graph.x, graph.edge_index)

    def louder(graph):
        return 2 * model(graph.x, graph.edge_index)

    report = certify(model, data, noise, forward=alone, seed=0, **OPTIONS)
    arguments = {'K': 1, 'features': (0, 1)}
    certify_collective(report, model, data, forward=alone, **arguments)
    with pytest.raises(ValueError, match="'forward'"):
        certify_collective(report, model, data, forward=louder, **arguments)


def test_what_a_forward_reads_of_the_graph_is_in_its_fingerprint():
    model = GCNConv(1, 2)
    pairs = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    data = Data(x=torch.ones(4, 1), edge_index=pairs, pos=torch.zeros(4, 1))
    noise = BitFlips(features=(0.0, 0.3))

    def near(graph):
        return model(graph.x + graph.pos, graph.edge_index)

    report = certify(model, data, noise, forward=near, seed=0, **OPTIONS)
    other = data.clone()
    other.pos = other.pos + 1
    with pytest.raises(ValueError, match='another graph'):
        certify_collective(
            report, model, other, forward=near, K=1, features=(0, 1)
        )


def linked(n=40, seed=0):
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, n, (2, 3 * n), generator=draw)
    pairs = pairs[:, pairs[0] != pairs[1]]
    x = torch.randn(n, 4, generator=draw)
    edge_index = to_undirected(pairs, num_nodes=n)
    return Data(x=x, edge_index=edge_index, num_nodes=n)


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf, 1e38])
def test_one_poisoned_row_costs_one_view(bad):
    torch.manual_seed(0)
    data, model = linked(), GCN(4, 8, 2, 3).eval()
    divided = Divided(model, 10, 'nodes', seed=1)
    clean = divided.certify(data)
    data.x = data.x.clone()
    data.x[7, 2] = bad
    found = divided.certify(data)
    group = divided.division.node_groups(data)
    others = torch.arange(40) != 7
    for view in range(10):
        if view != int(group[7]):
            assert torch.equal(
                found.votes[view, others], clean.votes[view, others]
            )
    # A view that is lost is one of those that a certificate pays for.
    stays = found.predicted == clean.predicted
    assert bool(stays[clean.certified(1) & others].all())


@pytest.mark.parametrize('by', ['subgraphs', 'features', 'edges'])
def test_a_poisoned_graph_is_voted_on(by):
    class Pools(torch.nn.Module):
        def forward(self, x, edge_index, batch):
            return scatter(x, batch, 0, reduce='sum')[:, :2]

    graphs = [linked(8, seed) for seed in range(4)]
    graphs[2].x[3] = math.nan
    report = Divided(Pools(), 3, by, seed=0).certify(graphs)
    assert report.votes.shape == (3, 4)


def test_a_report_does_not_say_that_views_agreed_where_they_did_not():
    class Mixes(torch.nn.Module):
        def forward(self, x, edge_index, batch):
            out = scatter(x, batch, 0, reduce='sum')[:, :2]
            return out - out.mean(0)

    graphs = [linked(8, seed) for seed in range(4)]
    mixed = Divided(Mixes(), 3, 'edges', seed=0).certify(graphs)
    apart = Divided(Sums(), 3, 'edges', seed=0).certify(graphs)
    said = ' '.join(mixed.guarantee().checked)
    assert 'one at a time' in said
    assert 'same outputs alone' not in said
    assert 'same outputs alone' in ' '.join(apart.guarantee().checked)


class Sums(torch.nn.Module):
    def forward(self, x, edge_index, batch):
        return scatter(x, batch, 0, reduce='sum')[:, :2]


class FromDegree(torch.nn.Module):
    def forward(self, x, edge_index):
        return torch.cat([x[:, :1] - 2.5, 2.5 - x[:, :1]], 1)


def cube():
    corners = torch.arange(12)
    ends = [(corners, (corners + 1) % 12), (corners, (corners + 6) % 12)]
    pairs = torch.cat([torch.stack(pair) for pair in ends], 1)
    edge_index = to_undirected(pairs)
    return Data(x=torch.ones(12, 1), edge_index=edge_index)


def test_attributes_of_the_data_that_a_forward_may_read_are_named():
    # Degrees of the clean graph, which no copy changes.
    data, model = cube(), FromDegree()
    data.degree = data.edge_index[0].bincount()[:, None].float()

    def forward(batch):
        found = batch.edge_index[0].bincount(minlength=batch.num_nodes)
        return model(batch.degree + 0.1 * found[:, None], None)

    noise = BitFlips(edges=(0.05, 0.4))
    report = certify(model, data, noise, forward=forward, **OPTIONS)
    for text in (*report.guarantee().assumptions, str(report)):
        if "('degree') stays as it is" in text:
            break
    else:
        pytest.fail('not named')
    assert "('degree') stays as it is" in str(report)


def test_a_seed_is_in_the_first_line():
    # A model that knows the copies of its seed can be certified for a class
    # that it never returns else.
    noise = BitFlips(edges=(0.05, 0.4))
    model, data = FromDegree(), cube()
    seeded = certify(model, data, noise, seed=0, **OPTIONS)
    secret = certify(model, data, noise, **OPTIONS)
    first = 'not certified: seeded'
    assert str(seeded).startswith(first)
    assert seeded.guarantee().promise.startswith(first)
    assert seeded.guarantee().values['seeded'] is True
    data.x = torch.ones(12, 1)
    noise = BitFlips(features=(0.0, 0.3))
    seeded = certify(FromDegree(), data, noise, seed=0, **OPTIONS)
    made = certify_collective(seeded, FromDegree(), data, K=0, features=(0, 1))
    assert made.guarantee().promise.startswith(first)
    assert first not in str(secret)
    assert not secret.guarantee().promise.startswith(first)


def exactly_answers(p, samples, selection, level):
    """The least chance of an answer, from binomials in fractions."""

    def tail(n, k):
        return sum(
            math.comb(n, i) * p**i * (1 - p) ** (n - i)
            for i in range(k, n + 1)
        )

    counts = torch.arange(samples + 1)
    bound = clopper_pearson(counts, samples, level) > 0.5
    least = int(counts[bound][0])
    return tail(samples, least) + tail(selection, selection // 2 + 1) - 1


@pytest.mark.parametrize(('samples', 'selection'), [(60, 21), (151, 40)])
@pytest.mark.parametrize('failure', [0.01, 0.2])
def test_the_probability_of_an_answer_is_that_of_two_binomials(
    samples, selection, failure
):
    found = answering_probability(samples, selection, 0.01, failure)
    left = Fraction(failure)
    for p, enough in ((found, True), (found - 1e-6, False)):
        made = exactly_answers(Fraction(p), samples, selection, 0.01)
        assert (made >= 1 - left) == enough
    assert answering_probability(3, 3, 0.01, 0.01) == math.inf


class Held(torch.nn.Module):
    """Class 1 if the edge (0, 1) is there, or if no other one is."""

    def __init__(self, nodes):
        super().__init__()
        self.nodes = nodes

    def forward(self, x, edge_index):
        n = self.nodes
        copy, ends = edge_index[0] // n, edge_index % n
        first = ends.sum(0) == 1
        copies = len(x) // n
        held = copy[first].bincount(minlength=copies) > 0
        held |= copy[~first].bincount(minlength=copies) == 0
        held = held.repeat_interleave(n)[:, None].float()
        return torch.cat([1 - held, held], 1)


def chain(others):
    nodes = torch.arange(others + 1)
    edge_index = to_undirected(torch.stack([nodes, nodes + 1]))
    return Data(x=torch.ones(others + 2, 1), edge_index=edge_index)


def without_the_first(data):
    keep = data.edge_index.amin(0) > 0
    return Data(x=data.x, edge_index=data.edge_index[:, keep])


def test_a_class_stays_where_the_classifier_may_still_abstain():
    # Without its edge the class has .9^5 = .59 of .63: the likeliest one, as
    # certified, and too little to be found by 300 copies each time.
    noise = BitFlips(edges=(0.0, 0.9))
    options = {
        'num_samples': 300,
        'num_selection': 100,
        'nodes': torch.tensor([0]),
    }
    data, abstained = chain(5), 0
    attacked = without_the_first(data)
    deployed = SmoothedClassifier(Held(7), noise, **options)
    for _ in range(60):
        report = deployed.certify(data)
        if bool(report.certified(edges=(0, 1))):
            abstained += int(deployed(attacked)) == -1
            assert not bool(report.answered(edges=(0, 1)))
    assert abstained > 0
    # With .9 after the change it answers, and the report says so.
    data = chain(1)
    attacked = without_the_first(data)
    deployed = SmoothedClassifier(Held(3), noise, **options)
    report = deployed.certify(data)
    assert bool(report.answered(edges=(0, 1)))
    assert all(int(deployed(attacked)) == 1 for _ in range(10))
    said = report.guarantee()
    assert '1 at edges added 0 deleted 1' in ' '.join(said.not_covered)
    assert said.values['answered']['edges_added_0_deleted_1'] == 1
