"""Attacks on the memory of what was propagated, by who knows it is hashed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from pyg_trust import _marks
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.transforms import AGP, PrivateAGP

NODES = 120


@pytest.fixture(autouse=True)
def nothing_before():
    _marks._KEPT.clear()
    yield
    _marks._KEPT.clear()


def graph(columns, kind='dense'):
    generator = torch.Generator().manual_seed(columns)
    pairs = torch.rand(NODES, NODES, generator=generator) < 0.05
    pairs = (pairs | pairs.t()) & ~torch.eye(NODES, dtype=torch.bool)
    x = torch.randn(NODES, columns, generator=generator)
    return Data(
        x=x if kind == 'dense' else (x > 1.3).float(),
        edge_index=pairs.nonzero().t().contiguous(),
        y=torch.randint(3, (NODES,), generator=generator),
        train_mask=torch.arange(NODES) % 2 == 0,
    )


def scaled(z):
    return (z - z.mean(0)) / z.std(0)


HIDDEN = {
    'float64': lambda x, z: z.double(),
    'there and back': lambda x, z: z.double().float(),
    'sparse': lambda x, z: z.to_sparse(),
    'sparse and float64': lambda x, z: z.double().to_sparse(),
    'half precision': lambda x, z: z.half().float(),
    'standardised': lambda x, z: scaled(z),
    'beside the raw ones': lambda x, z: torch.cat([x, z], 1),
    'in another order': lambda x, z: z.flip(0).double(),
    'columns in another order': lambda x, z: z.flip(1),
    'negated': lambda x, z: -z,
}


@pytest.mark.parametrize('columns', [3, 40])
@pytest.mark.parametrize('kind', ['dense', 'words'])
@pytest.mark.parametrize('how', HIDDEN)
def test_propagated_rows_do_not_pass_in_another_form(how, kind, columns):
    data = graph(columns, kind)
    mixed = AGP('appnp', alpha=0.1)(copy.copy(data)).x
    hidden = Data(**data.to_dict())
    hidden.x = HIDDEN[how](data.x, mixed)
    transform = PrivateAGP(mu=1.0, delta=1e-3)
    with pytest.raises(ValueError, match="node's own"):
        transform(hidden)
    assert transform.account is None
    model = PrivateNodeClassifier('node', delta=1e-3)
    with pytest.raises(ValueError, match="node's own"):
        model.fit(hidden)
    assert model.account is None


def test_propagated_rows_of_some_norm_do_not_pass():
    data = graph(16)
    data.x = F.normalize(AGP('appnp', alpha=0.1)(copy.copy(data)).x)
    with pytest.raises(ValueError, match="node's own"):
        PrivateAGP(mu=1.0, delta=1e-3)(data)


@pytest.mark.parametrize('how', ['float64', 'sparse', 'half precision'])
def test_predictions_do_not_read_edges_in_another_form(how):
    data = graph(16)
    model = PrivateNodeClassifier('node', delta=1e-3, steps=2).fit(data)
    mixed = AGP('appnp', alpha=0.1)(copy.copy(data)).x
    with pytest.raises(ValueError, match="'x' needs rows"):
        model.predict(x=HIDDEN[how](data.x, mixed))


@pytest.mark.parametrize('kind', ['dense', 'words'])
def test_own_rows_pass_in_any_form_after_a_propagation(kind):
    # What was there before is nobody's but the node's, also on other graphs.
    data = graph(40, kind)
    for alpha in (0.1, 0.9):
        AGP('appnp', alpha=alpha)(copy.copy(data))
    own = [data.x, data.x.double(), data.x.to_sparse(), data.x.half().float()]
    own += [scaled(data.x), F.normalize(data.x), data.x.flip(0), -data.x]
    other = graph(41, kind).x
    for x in (*own, other, torch.cat([data.x, other], 1)):
        assert _marks.share(x) == 0


def test_rows_that_a_neighbour_had_before_are_own_rows():
    # Where all neighbours are of one kind, means of kinds are kinds: these
    # rows were remembered, and the raw features refused.
    group = torch.arange(NODES) % 2
    ring = torch.arange(NODES)
    edges = torch.stack([ring, (ring + 1) % NODES])
    data = Data(
        x=F.one_hot(group).float(),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
    )
    mixed = AGP('sgc', levels=1)(copy.copy(data)).x
    assert not torch.equal(mixed, data.x)
    assert _marks.share(data.x) == 0


def test_hashes_are_of_values():
    x = torch.tensor([[0.0, -0.0, 1.5], [2.0, 0.0, -3.0]])
    found = _marks.hashes(x)
    assert found.unique().numel() == 2
    for other in (
        *(x + 0.0, x.double(), x.half(), x.to_sparse()),
        *(x.double().to_sparse(), x.to_sparse().to_sparse_csr()),
    ):
        assert torch.equal(_marks.hashes(other), found)
    assert not torch.equal(_marks.hashes(x[:, [1, 2, 0]]), found)
