"""Certificates after updates of the graph."""

import copy
import math

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.certificates import (
    BitFlips,
    ThreatModel,
    certified_after,
    certify,
)
from pyg_trust.nn import PPNP


def ring(n, chords=0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    at = torch.arange(n)
    pairs = torch.stack([at, (at + 1) % n])
    more = torch.randint(n, (2, chords), generator=draw)
    pairs = torch.cat([pairs, more[:, more[0] != more[1]]], 1)
    return torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)


def test_a_certificate_is_stale_on_another_graph():
    data = Data(x=torch.rand(8, 3), edge_index=ring(8, 2), num_nodes=8)
    model = PPNP(torch.nn.Linear(3, 2)).eval()
    threat = ThreatModel(data, local_budget=1)
    found = certify(model, data, threat, nodes=torch.tensor([5, 2]))
    want = found.status.flip(0)
    assert found.status_of(torch.tensor([2, 5]), data.clone()).equal(want)
    with pytest.raises(ValueError, match=r"'nodes'.*got 3"):
        found.status_of(torch.tensor([3]), data)
    for change in ('x', 'edge_index'):
        now = data.clone()
        now[change] = now[change][:, 1:]
        with pytest.raises(ValueError, match='certify again'):
            found.status_of(torch.tensor([2]), now)
    with pytest.raises(ValueError, match='certify again'):
        certify(torch.rand(8, 2), threat).status_of(torch.tensor([2]), data)


@pytest.fixture(scope='module')
def smoothed():
    torch.manual_seed(0)
    n = 30
    x = (torch.rand(n, 6) < 0.4).float()
    data = Data(x=x, edge_index=ring(n, 20), num_nodes=n)
    model = GCN(6, 8, 2, 2).eval()
    noise = BitFlips(edges=(0.01, 0.3), features=(0.02, 0.4))
    return model, data, certify(model, data, noise, num_samples=2000)


def moved(data):
    """Two edges gone, one come, and a bit of the features of each kind."""
    edges = data.edge_index
    links = {*map(tuple, edges.t().tolist())}
    gone = sorted(e for e in links if e[0] < e[1])[:2]
    new = next(
        (u, v) for u in range(30) for v in range(u) if (u, v) not in links
    )
    links -= {*gone, *(e[::-1] for e in gone)}
    links |= {new, new[::-1]}
    x = data.x.clone()
    x.view(-1)[int((x == 0).view(-1).nonzero()[0])] = 1
    x.view(-1)[int((x == 1).view(-1).nonzero()[-1])] = 0
    edges = torch.tensor(sorted(links)).t()
    return Data(x=x, edge_index=edges, num_nodes=30)


def test_smoothed_classes_stay_within_smaller_radii(smoothed, monkeypatch):
    model, data, found = smoothed
    certified, asked = type(found).certified, []

    def recorded(self, **radii):
        asked.append(radii)
        return certified(self, **radii)

    monkeypatch.setattr(type(found), 'certified', recorded)
    left = certified_after(found, model, data, moved(data), edges=(0, 1))
    # Not the larger of both kinds, but their sum, around the graph of then.
    assert asked[-1] == {'edges': (1, 3), 'features': (1, 1)}
    assert torch.equal(left, found.certified(**asked[-1]))
    same = certified_after(found, model, data, data, edges=(0, 1))
    assert torch.equal(same, found.certified(edges=(0, 1)))
    assert same.any()


def test_smoothed_classes_of_another_model_or_graph_are_refused(smoothed):
    model, data, found = smoothed
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)
    with pytest.raises(ValueError, match="'model'"):
        certified_after(found, other, data, data)
    with pytest.raises(ValueError, match="'before'"):
        certified_after(found, model, moved(data), data)
    for change in (
        {'num_nodes': 31, 'x': torch.ones(31, 6)},
        {'y': torch.zeros(30)},
        {'x': data.x + 0.5},
    ):
        now = data.clone()
        for name, value in change.items():
            now[name] = value
        with pytest.raises(ValueError, match=r"'now'|'x'"):
            certified_after(found, model, data, now)


@pytest.mark.parametrize('kind', ['edges', 'features'])
def test_edges_that_a_set_would_hide_are_refused(kind):
    torch.manual_seed(0)
    x, edges = torch.randint(2, (12, 3)).float(), ring(12, 4)
    data = Data(x=x, edge_index=edges, num_nodes=12)
    if kind == 'features':
        data.edge_weight = torch.rand(edges.size(1))
    model = GCN(3, 4, 2, 2).eval()
    noise = BitFlips(**{kind: (0.01, 0.3)})
    found = certify(model, data, noise, num_samples=200)
    certified_after(found, model, data, data.clone())
    changes = [edges[:, 1:], torch.cat([edges, edges[:, :2]], 1)]
    changes += [edges.flip(1)] * (kind == 'features')
    for change in changes:
        now = data.clone()
        now.edge_index = change
        with pytest.raises(ValueError, match='edge'):
            certified_after(found, model, data, now)


class SelfLoops(torch.nn.Module):
    """Another class for a node with a self-loop."""

    def forward(self, x, edge_index):
        own = edge_index[0][edge_index[0] == edge_index[1]]
        has = torch.zeros(x.size(0)).index_fill(0, own, 1.0)
        return torch.stack([0.5 - has, has], 1)


@pytest.mark.parametrize('came', [True, False])
def test_self_loops_have_no_noise_and_may_not_differ(came):
    plain = Data(x=torch.ones(12, 1), edge_index=ring(12, 4), num_nodes=12)
    looped = plain.clone()
    own = torch.tensor([[3], [3]])
    looped.edge_index = torch.cat([plain.edge_index, own], 1)
    before, now = (plain, looped) if came else (looped, plain)
    noise = BitFlips(edges=(0.1, 0.3))
    model = SelfLoops().eval()
    found = certify(model, before, noise, num_samples=500)
    assert found.certified(edges=(1, 1))[3]
    # The class of this node is another one, in every copy.
    of = [int(model(d.x, d.edge_index)[3].argmax()) for d in (before, now)]
    assert of == [1 - came, came]
    with pytest.raises(ValueError, match='self-loops'):
        certified_after(found, model, before, now)


@pytest.mark.parametrize('change', ['not a number', 'one column'])
def test_features_without_noise_may_not_differ(change):
    torch.manual_seed(0)
    x = torch.randint(2, (12, 3)).float()
    data = Data(x=x.clone(), edge_index=ring(12, 4), num_nodes=12)
    if change == 'not a number':
        data.x[0, 0] = math.nan
    model = GCN(3, 4, 2, 2).eval()
    noise = BitFlips(edges=(0.01, 0.3))
    found = certify(model, data, noise, num_samples=200)
    now = data.clone()
    now.x = x if change == 'not a number' else x[:, :1]
    with pytest.raises(ValueError, match="'now'"):
        certified_after(found, model, data, now)
