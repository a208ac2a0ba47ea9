"""Attacks on certificates of any model by somebody who knows the code."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust.certificates import (
    BitFlips,
    Divided,
    certify,
    certify_collective,
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


class Keeps(torch.nn.Module):
    """Keeps the features of its first call, by the number of nodes."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x, edge_index):
        return sign(self.kept.setdefault(len(x), x))


def ones():
    return Data(x=torch.ones(12, 1), edge_index=NONE)


def test_what_all_nodes_see_without_a_path_is_found_out():
    # One deleted entry changes all twelve; the fields end at each node, and
    # nothing is within two more rounds.
    noise = BitFlips(features=(0.0, 0.01))
    report = certify(Least(), ones(), noise, seed=1, **OPTIONS)
    with pytest.raises(ValueError, match='outside of its field'):
        certify_collective(report, Least(), ones(), hops=0, features=(0, 1))


@pytest.mark.slow
def test_copies_that_show_each_other_their_first_node():
    # Three alike copies have the same output together; 2,000 of them then
    # all say what the first one says.
    noise = BitFlips(features=(0.0, 0.3))
    for seed in range(8):
        report = certify(Anchor(), ones(), noise, seed=seed, **OPTIONS)
        assert 'one copy at a time' in report.note
        assert not report.certified(features=(0, 2)).any()


def test_what_a_model_keeps_of_its_first_call_is_found_out():
    # Without edges that differ, a homemade cache makes all copies equal.
    noise = BitFlips(features=(0.3, 0.3))
    with pytest.raises(ValueError, match='same function at every call'):
        certify(Keeps(), ones(), noise, seed=1, **OPTIONS)


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
    budget = {'hops': 1, 'edges': (1, 0)}
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
        report, model, ones(), hops=0, features=(0, 2), local_budget=0
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
    arguments = {'hops': 1, 'features': (0, 1)}
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
            report, model, other, forward=near, hops=1, features=(0, 1)
        )
