"""Attacks on certificates by somebody who knows the code."""

import os
import subprocess
import sys

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import to_undirected

from pyg_trust.certificates import (
    BitFlips,
    Divided,
    ThreatModel,
    certify,
    certify_collective,
)
from pyg_trust.nn import PPNP
from pyg_trust.unlearning import ShardedUnlearner


def ring(n=6):
    """A ring with features: no edge of it is one way."""
    nodes = torch.arange(n)
    edge_index = to_undirected(torch.stack([nodes, (nodes + 1) % n]))
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=edge_index)


def test_what_sees_no_edge_may_be_the_users():
    class Named(PPNP):
        """Logits of its own, and something to print."""

        def logits(self, x):
            return 2 * super().logits(x)

        def __repr__(self):
            return 'mine'

    data = ring()
    model = Named(torch.nn.Linear(3, 2), K=2).eval()
    model.encoder.register_forward_hook(lambda *args: args[-1] + 1)
    model.explain = True
    model.explain = None  # as an explainer leaves it
    threat = ThreatModel(data, local_budget=1)
    assert certify(model, data, threat).targets.numel() == 6


@pytest.mark.parametrize('added', [False, True])
def test_self_loops_are_flips_of_an_undirected_budget(added):
    # A self-loop is one flip, but takes from one row alone: two flips of
    # them are not half of four rows.
    n, budget = 4, 2
    nodes = torch.arange(n)
    loops = torch.stack([nodes, nodes])
    path = torch.stack([nodes[:-1], nodes[1:]])
    edges = torch.cat([path, path.flip(0)], 1)
    if not added:
        edges = torch.cat([edges, loops], 1)
    broken = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(n, 2, generator=generator).double()
        threat = ThreatModel(
            edges, loops, global_budget=budget, undirected=True, num_nodes=n
        )
        made = certify(logits, threat)
        for row in range(made.flips_ptr.numel() - 1):
            first, last = made.flips_ptr[row : row + 2].tolist()
            assert last - first <= budget
        exact = certify(logits, threat, method='exact')
        assert not bool((made.broken & exact.robust).any())
        assert not bool((made.robust & exact.broken).any())
        broken += int(made.broken.sum())
    assert broken > 0


class Least(torch.nn.Module):
    """The sign of the feature, which a transform makes that of all."""

    def forward(self, x, edge_index):
        return torch.cat([x - 0.5, 0.5 - x], 1)


def least(data):
    data.x = data.x.min().expand(data.num_nodes, 1).clone()
    return data


def test_a_transform_that_shows_everything_is_no_part_of_a_field():
    # One deleted entry changes all nodes; without the transform, which is
    # not probed, every node sees itself alone.
    n = 12
    data = ring(n)
    data.x = torch.ones(n, 1)
    noise = BitFlips(features=(0.0, 0.01))
    options = {'num_samples': 2000, 'num_selection': 100, 'seed': 1}
    report = certify(Least(), data, noise, transform=least, **options)
    assert not report.certified(features=(0, 1)).any()
    with pytest.raises(ValueError, match="'transform'"):
        certify_collective(report, Least(), data, K=0, features=(0, 1))


def test_silent_shards_hold_no_class():
    # One shard has training nodes, and so the only vote: whoever poisons it
    # decides. Six silent ones are no majority for the class it gave.
    generator = torch.Generator().manual_seed(0)
    n = 30
    y = torch.arange(n) % 2
    x = torch.randn(n, 4, generator=generator)
    x[:, 0] += 4 * y - 2
    data = Data(x=x, y=y, edge_index=torch.zeros(2, 0).long())
    data.n_id = torch.arange(n)

    def fit(data):
        return ShardedUnlearner(
            lambda: GCN(4, 8, 2, 2),
            7,
            aggregator='majority',
            num_classes=2,
            epochs=12,
            seed=4,
        ).fit(data)

    data.train_mask = torch.ones(n, dtype=torch.bool)
    group = fit(data).certify().group
    data.train_mask = group == group.mode().values
    one = fit(data).certify()
    bad = data.clone()
    bad.y = 1 - y
    two = fit(bad).certify()
    shard = data.n_id[data.train_mask]
    outside = ~data.train_mask
    stays = one.predicted == two.predicted
    assert not bool(stays[outside].all())
    assert not bool((one.survives(shard) & ~stays)[outside].any())
    assert one.collective(1).lower <= int(stays.sum())
    assert one.collective(0).lower <= n


def test_a_layer_that_learns_to_cache_shows_one_view_to_all():
    # All views then say what the first one says: a radius of 3 for nothing.
    data = ring()
    model = GCN(3, 8, 2, 2)
    divided = Divided(model, 7, 'edges', seed=1)
    for conv in model.convs:
        conv.cached = True
    with pytest.raises(ValueError, match='cached=True'):
        divided.certify(data)
    with pytest.raises(ValueError, match='cached=True'):
        divided(data)


# Certified, and something else deployed ######################################


class Switch(torch.nn.Module):
    """Does something else when it is told to, with the same weights."""

    def __init__(self):
        super().__init__()
        self.net = GCN(3, 4, 1, 2)
        self.flag, self._hidden = False, {'scale': [1.0]}
        self.act, self.wrap = (lambda out: out), torch.abs
        self.register_buffer('sign', torch.ones(2), persistent=False)

    def forward(self, x, edge_index, batch=None):
        out = self.net(x, edge_index) * self._hidden['scale'][0]
        out = out * self.sign
        out = out + 0 * self.wrap(out)
        return self.act(-out if self.flag else out)


def hidden(model):
    model._hidden['scale'][0] = -1.0


def closure(model):
    sign = -1
    model.act = lambda out: out * sign


def method(model):
    model.net.forward = lambda x, edge_index: -x[:, :2]


SWITCHES = [
    lambda model: setattr(model, 'flag', True),
    lambda model: setattr(model, 'sign', -torch.ones(2)),
    *(hidden, closure, method),
]


def bits():
    data = ring(8)
    data.x = (data.x > 0).float()
    return data


SMOOTHING = {'num_samples': 200, 'num_selection': 20, 'confidence': 0.9}


def by_smoothing(model):
    return certify(model, bits(), BitFlips(edges=(0.0, 0.4)), **SMOOTHING)


def by_votes(model):
    return Divided(model, 3, 'edges').certify(bits())


def by_field(model):
    made = by_smoothing(model)
    return certify_collective(made, model, bits(), edges=(0, 1), K=1)


@pytest.mark.parametrize('certificate', [by_smoothing, by_votes, by_field])
def test_a_model_that_is_switched_is_not_the_certified_one(certificate):
    # All of them leave state_dict() as it was.
    for switch in SWITCHES:
        torch.manual_seed(0)
        model = Switch().eval()
        report = certificate(model)
        with torch.no_grad():
            model(bits().x, bits().edge_index)
        assert report.speaks_of(model)
        before = str(model.state_dict())
        switch(model)
        assert str(model.state_dict()) == before
        assert not report.speaks_of(model)


def test_an_exact_certificate_knows_its_model():
    data = ring()
    model = PPNP(torch.nn.Linear(3, 2), K=3)
    threat = ThreatModel(data, local_budget=1)
    report = certify(model, data, threat)
    assert report.speaks_of(model)
    model(data.x, data.edge_index)
    assert report.speaks_of(model)
    model.alpha = 0.3
    assert not report.speaks_of(model)
    logits = certify(torch.rand(6, 2).double(), threat)
    with pytest.raises(ValueError, match='of logits'):
        logits.speaks_of(model)


def test_a_fingerprint_is_the_same_in_another_process():
    # Nothing of it is an address, an order of sets or a number of hooks.
    script = (
        'import sys; sys.path.insert(0, sys.argv[1]); import torch;'
        'from test_certificate_attacks import Switch;'
        'from pyg_trust._checks.identity import identity;'
        'torch.manual_seed(0); model = Switch();'
        'model.some = {"b", "a", "c", ("d", 1)};'
        '[model.register_forward_hook(lambda *_: None).remove() '
        'for _ in range(int(sys.argv[2]))];'
        'model.register_forward_hook(lambda *_: None);'
        'print(identity(model))'
    )
    said = {
        subprocess.run(
            [sys.executable, '-c', script, os.path.dirname(__file__), count],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, 'PYTHONHASHSEED': count},
        ).stdout
        for count in ('1', '2')
    }
    assert len(said) == 1
    assert len(said.pop()) == 65
