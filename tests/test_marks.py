"""The mark of features that hold the rows of other nodes."""

import copy

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader

from pyg_trust.graph._marks import mark, marked
from pyg_trust.loader import DisjointWalkLoader, EgoLoader
from pyg_trust.privacy import PrivacyEngine, PrivateNodeClassifier
from pyg_trust.transforms import AGP, PrivateAGP
from pyg_trust.unit import PrivacyUnit

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


def rows_alone(data):
    """All that protects single rows."""
    yield lambda: DisjointWalkLoader(data, 4, 1)
    yield lambda: EgoLoader(data, 4, 1, max_degree=NODES)
    yield lambda: PrivateAGP(adjacency='node', mu=1.0, delta=1e-3)(data)
    yield lambda: PrivateNodeClassifier('node', delta=1e-3).fit(data)


def test_persons_of_several_rows_are_not_taken_for_rows():
    data = graph()
    for make in [*rows_alone(data)][:2]:
        make()
    PrivacyUnit(data, num_persons=8, owned={None: torch.arange(NODES) // 5})
    typed = HeteroData(user={'x': torch.rand(9, 5)})
    typed['user'].update(
        {'y': torch.arange(9), 'train_mask': torch.ones(9).bool()}
    )
    typed['user', 'by', 'user'].edge_index = torch.tensor([[0, 1], [1, 0]])
    PrivacyUnit(typed, 'user')
    flat = typed.to_homogeneous()
    for make in (*rows_alone(data), *rows_alone(flat)):
        with pytest.raises(ValueError, match='UnitLoader'):
            make()
    # Edges are protected one by one; and a user may say what rows are.
    PrivateAGP(adjacency='edge', mu=1.0, delta=1e-3)(data)
    del data.privacy_unit
    DisjointWalkLoader(data, 4, 1)


def test_a_delta_of_one_node_is_noticed():
    with pytest.warns(UserWarning, match=f'not below 1 / {NODES}'):
        PrivateNodeClassifier('node', delta=1 / NODES).fit(graph())
    data, net = graph(), torch.nn.Linear(5, 3)
    with pytest.warns(UserWarning, match=f'the {NODES} nodes'):
        PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=DisjointWalkLoader(data, 4, 0),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            target_epsilon=8.0,
            target_delta=0.5,
            forward=lambda model, batch: model(batch.x),
        )
