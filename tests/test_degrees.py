"""Attacks by columns that tell degrees, in forms that are no degrees."""

import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Data

from pyg_trust._checks.degrees import tells_degrees
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.transforms import PrivateAGP

NODES = 150


def graph():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.rand(NODES, NODES, generator=generator) < 0.03
    pairs = (pairs | pairs.t()) & ~torch.eye(NODES, dtype=torch.bool)
    edges = pairs.nonzero().t().contiguous()
    return Data(
        x=torch.randn(NODES, 5, generator=generator),
        edge_index=edges,
        y=torch.randint(3, (NODES,), generator=generator),
        train_mask=torch.arange(NODES) % 2 == 0,
    )


def degrees(data):
    return torch.bincount(data.edge_index[0], minlength=NODES).float()


COLUMNS = {
    'degrees': lambda d: d,
    'scaled': lambda d: d / 7,
    'shifted': lambda d: d + 1,
    'standardised': lambda d: (d - d.mean()) / d.std(),
    'logarithms': lambda d: (d + 1).log(),
    'inverse roots': lambda d: (d + 1).rsqrt(),
    'whether few': lambda d: (d < 5).float(),
}
FORMS = {
    'dense': lambda x: x,
    'float64': lambda x: x.double(),
    'coo': lambda x: x.to_sparse(),
    'csr': lambda x: x.to_sparse().to_sparse_csr(),
}


@pytest.mark.parametrize('edges', ['edge_index', 'adj_t'])
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('column', COLUMNS)
def test_columns_that_tell_degrees_are_refused(column, form, edges):
    data = graph()
    told = COLUMNS[column](degrees(data))[:, None]
    data.x = FORMS[form](torch.cat([data.x, told], 1))
    if edges == 'adj_t':
        data = T.ToSparseTensor(layout=torch.sparse_csr)(data)
        assert 'edge_index' not in data
    for relation in ('edge', 'node'):
        transform = PrivateAGP(relation=relation, mu=1.0, delta=1e-3)
        with pytest.raises(ValueError, match='come from the graph'):
            transform(data)
        assert transform.account is None
        model = PrivateNodeClassifier(relation, delta=1e-3)
        with pytest.raises(ValueError, match='come from the graph'):
            model.fit(data)
        assert model.account is None


def test_one_hot_degrees_are_refused():
    data = T.OneHotDegree(30, cat=False)(graph())
    with pytest.raises(ValueError, match='come from the graph'):
        PrivateAGP(mu=1.0, delta=1e-3)(data)


def test_degrees_of_arcs_are_refused_at_both_ends():
    data = graph()
    data.edge_index = data.edge_index[:, data.edge_index[0] % 3 > 0]
    for row in data.edge_index:
        degree = torch.bincount(row, minlength=NODES).float()
        assert tells_degrees(degree[:, None] / 3, data.edge_index)


@pytest.mark.parametrize('kind', ['numbers', 'words', 'rare', 'constant'])
def test_own_columns_pass(kind):
    generator = torch.Generator().manual_seed(1)
    data, many = graph(), 20_000
    x = torch.randn(NODES, many, generator=generator)
    if kind == 'words':
        x = (x > 1).float()
    elif kind == 'rare':
        # A word of one node alone, also of the one of most edges.
        x = torch.zeros(NODES, NODES).fill_diagonal_(1.0)
    elif kind == 'constant':
        x = torch.ones(NODES, 3)
    assert not tells_degrees(x, data.edge_index)
    assert not tells_degrees(x.to_sparse(), data.edge_index)


def test_few_nodes_may_be_on_a_line_by_chance():
    edges = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    x = torch.tensor([[5.0], [3.0], [3.0], [3.0]])
    assert not tells_degrees(x, edges)
