"""Models that training starts from: handed in, or drawn by a factory."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphEmbedding
from pyg_trust.unlearning import (
    LinkClassifier,
    NodeClassifier,
    ScatteringClassifier,
)

PRIVATE = {'epsilon': 8.0, 'delta': 1e-3, 'steps': 2, 'insecure_seed': 0}


def ring(n=24):
    ids = torch.arange(n)
    pairs = torch.stack([ids, ids.roll(1)])
    return Data(
        x=torch.rand(n, 4, generator=torch.Generator().manual_seed(0)),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        y=ids % 2,
        train_mask=ids < n - 4,
    )


def trained():
    """Weights as they come out of a training."""
    net = nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-0.3, 0.4, 8).view(2, 4))
    return net


class Scaled(nn.Module):
    """Draws weights anew, and scales rows by what it found before."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
        self.mean = torch.tensor([0.12, 0.34, 0.56, 0.78])

    def forward(self, x):
        return self.out(x - self.mean)


def makers():
    for where in (
        partial(NodeClassifier, weight_decay=0.1),
        partial(LinkClassifier, weight_decay=0.1),
    ):
        yield where, 'encoder', 4
    for name, size in (('encoder', 4), ('head', 4)):
        yield partial(PrivateNodeClassifier, 'node', **PRIVATE), name, size


@pytest.mark.parametrize(('make', 'name', 'size'), makers())
def test_a_factory_needs_no_statement_unless_it_hands_in_what_it_loads(
    make, name, size
):
    net = trained()
    for given in (
        net,
        lambda: net,
        trained,
        lambda: copy.deepcopy(net),
        Scaled,
    ):
        with pytest.raises(ValueError, match='start_is_public=True') as error:
            make(**{name: given})
        assert f"'{name}'" in str(error.value)
        make(**{name: given}, start_is_public=True)
    for given in (
        lambda: nn.Linear(size, 2),
        partial(nn.Linear, size, 2, bias=False),
        lambda: nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2)),
    ):
        before = torch.get_rng_state()
        model = make(**{name: given})
        assert before.equal(torch.get_rng_state())
        # The same in another process, unless torch is seeded otherwise.
        one = getattr(model, name).state_dict()
        two = getattr(make(**{name: given}), name).state_dict()
        assert all(one[key].equal(two[key]) for key in one)
    with pytest.raises(TypeError, match=f"'{name}'"):
        make(**{name: 5})


def test_models_with_a_factory_fit_remove_and_load(tmp_path):
    def make():
        return NodeClassifier(
            weight_decay=0.1, seed=0, encoder=lambda: nn.Linear(4, 3)
        )

    model = make().fit(ring())
    report = model.remove(RemovalRequest(nodes=[3]))
    assert model.verify().ok
    assert any('another seed' in line for line in report.assumptions)
    model.save(tmp_path / 'model.pt')
    again = make().load(tmp_path / 'model.pt')
    assert again.predict().equal(model.predict())
    model = PrivateNodeClassifier(
        'node', **PRIVATE, encoder=lambda: nn.Linear(4, 2)
    )
    assert model.fit(ring()).predict().shape == (24,)


class Embedding(GraphEmbedding):
    """Sums of what a network makes of the rows."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def _embed(self, graph, x):
        with torch.no_grad():
            return self.net(x.float()).double().sum(0)[None]


def test_a_transform_of_graphs_with_weights_starts_from_them(tmp_path):
    net = trained()
    for given in (Embedding(net), lambda: Embedding(net)):
        with pytest.raises(ValueError, match=r"'transform'.*start_is_public"):
            ScatteringClassifier(given)
        ScatteringClassifier(given, start_is_public=True)
    model = ScatteringClassifier(lambda: Embedding(nn.Linear(4, 2)))
    assert isinstance(model.transform, Embedding)
    # Of two networks of a class one fits a saved state.
    one = model._config()
    two = ScatteringClassifier(lambda: Embedding(nn.Linear(4, 2)))._config()
    other = ScatteringClassifier(Embedding(net), start_is_public=True)
    assert one == two != other._config()
