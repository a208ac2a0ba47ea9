"""The mark of features that hold the rows of other nodes."""

import copy

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from pyg_trust.graph._marks import mark, marked
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.transforms import AGP, PrivateAGP

NODES = 40


def graph():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.rand(NODES, NODES, generator=generator) < 0.1
    pairs = (pairs | pairs.t()) & ~torch.eye(NODES, dtype=torch.bool)
    return Data(
        x=torch.randn(NODES, 5, generator=generator),
        edge_index=pairs.nonzero().t().contiguous(),
        y=torch.randint(3, (NODES,), generator=generator),
        train_mask=torch.arange(NODES) % 2 == 0,
    )


def is_refused(data):
    transform = PrivateAGP(mu=1.0, delta=1e-3)
    with pytest.raises(ValueError, match="node's own"):
        transform(copy.copy(data))
    assert transform.account is None
    model = PrivateNodeClassifier('node', delta=1e-3)
    with pytest.raises(ValueError, match="node's own"):
        model.fit(data)
    assert model.account is None


COPIES = {
    'itself': lambda data: data,
    'a copy': copy.copy,
    'a deep copy': copy.deepcopy,
    'a clone': lambda data: data.clone(),
    'a subgraph': lambda data: data.subgraph(torch.arange(30)),
    'in double': lambda data: data.update({'x': data.x.double()}),
    'of a dictionary': lambda data: Data(**data.to_dict()),
}


@pytest.mark.parametrize('how', COPIES)
def test_what_was_propagated_is_refused_in_copies(how):
    data = AGP('appnp', alpha=0.1)(graph())
    is_refused(COPIES[how](data))


def test_what_was_released_is_not_released_again():
    data = PrivateAGP(mu=1.0, delta=1e-3)(graph())
    assert marked(data) == ('x',)
    is_refused(data)


@pytest.mark.parametrize('names', [('x',), ['x1', 'x'], 'x'])
def test_users_mark_what_others_have_propagated(names):
    data = graph()
    row, col = data.edge_index
    means = torch.zeros_like(data.x).index_reduce(0, row, data.x[col], 'mean')
    data.x = torch.cat([data.x, means], 1)
    data.propagated = names
    is_refused(data)


def test_other_attributes_may_be_propagated():
    data = AGP('appnp', alpha=0.1, out='z')(graph())
    assert data.propagated == ('z',)
    PrivateAGP(mu=1.0, delta=1e-3)(copy.copy(data))
    PrivateNodeClassifier('node', delta=1e-3, steps=1).fit(data)


def test_marks_add_up_and_each_is_there_once():
    data = graph()
    for name in ('x', 'z', 'x'):
        mark(data, name)
    assert data.propagated == ('x', 'z')
    assert marked(graph()) == ()


@pytest.mark.parametrize('bad', [True, 3, (3,), {'x': 1}])
def test_a_mark_that_names_nothing_is_refused(bad):
    data = graph()
    data.propagated = bad
    with pytest.raises(TypeError, match='needs to hold names of attr'):
        PrivateAGP(mu=1.0, delta=1e-3)(data)


def test_batches_of_marked_graphs_are_marked():
    graphs = [AGP('sgc')(graph()) for _ in range(3)]
    graphs[1] = AGP('sgc', attr='x', out='z')(graphs[1])
    graphs[0].z = graphs[2].z = graphs[1].z
    batch = next(iter(DataLoader(graphs, 3)))
    assert marked(batch) == ('x', 'z')
    assert AGP('sgc', out='h')(batch).propagated == ('x', 'z', 'h')
