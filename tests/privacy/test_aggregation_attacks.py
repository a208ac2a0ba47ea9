"""Odd graphs, second accounts, copies: all that is released is paid."""

import math
import warnings

import pytest
import torch
from references import Silence
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.privacy import propagation as private_propagation
from pyg_trust.privacy.propagation import (
    MessageBlocks,
    hop_sensitivity,
    messages,
    private_propagate,
)
from pyg_trust.transforms import PrivateAGP

RELATIONS = [
    {'adjacency': 'edge'},
    {'adjacency': 'node', 'neighboring': 'replace', 'K': 2},
    {'adjacency': 'node_incident', 'max_degree': 2},
    {'adjacency': 'feature'},
]
QUICK = {'epsilon': 8.0, 'delta': 1e-4, 'steps': 3, 'epochs': 3}


def graph(pairs, n, **changes):
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    generator = torch.Generator().manual_seed(0)
    given = {
        'x': torch.randn(n, 4, generator=generator),
        'y': torch.arange(n) % 2,
        'edge_index': to_undirected(edges, num_nodes=n),
        'train_mask': torch.ones(n, dtype=torch.bool),
        **changes,
    }
    return Data(num_nodes=n, **given)


def odd_graphs():
    path = [(0, 1), (1, 2), (2, 3)]
    yield 'one node', graph([], 1)
    yield 'no edges', graph([], 6)
    yield 'one edge', graph([(0, 1)], 2)
    yield 'isolated nodes', graph(path, 9)
    yield 'a hub', graph([(0, k) for k in range(1, 800)], 800)
    yield 'zeros', graph(path, 4, x=torch.zeros(4, 4))
    yield 'no columns', graph(path, 4, x=torch.zeros(4, 0))
    yield 'no numbers', graph(path, 4, x=torch.full((4, 4), math.nan))
    yield 'huge', graph(path, 4, x=torch.full((4, 4), 3e38))
    yield 'tiny', graph(path, 4, x=torch.full((4, 4), 1e-45))
    # A class that nobody trains on, and labels that nobody may read.
    yield 'missing class', graph(path, 4, y=torch.tensor([0, 3, 3, 0]))
    some = torch.tensor([True, True, False, False])
    yield (
        'unknown labels',
        graph(path, 4, y=torch.tensor([0, 1, -1, -1]), train_mask=some),
    )


@pytest.mark.parametrize('arguments', RELATIONS, ids=lambda a: a['adjacency'])
@pytest.mark.parametrize(
    'data', [pytest.param(data, id=name) for name, data in odd_graphs()]
)
def test_odd_graphs_are_like_any_other(data, arguments):
    # What they are is private, so neither shapes nor costs may tell.
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)  # a large delta
        asked = {'K': 1, **arguments}
        transform = PrivateAGP(mu=1.0, delta=1e-4, cat=False, **asked)
        rows = transform.released(data)
        hops = asked['K']
        assert [row.shape for row in rows] == [data.x.shape] * hops
        assert all(bool(row.isfinite().all()) for row in rows)
        assert transform.account.lines == pytest.approx(
            [1 / math.sqrt(hops)] * hops
        )
        model = PrivateNodeClassifier(**QUICK, **arguments).fit(data)
        assert bool(model.logits().isfinite().all())
        assert model.predict().shape == (data.num_nodes,)
        private = arguments['adjacency'] != 'edge'
        assert len(model.account.lines) == hops + 2 * private
        assert model.report().epsilon == pytest.approx(8.0, rel=1e-9)


def test_a_hub_moves_no_more_than_anybody():
    # The record of a node that names all others, against a blank.
    n = 3000
    arcs = torch.stack([torch.zeros(n - 1).long(), torch.arange(1, n)])
    x = torch.full((n, 20), 1e30)
    hub = CSRGraph.from_edge_index(arcs, n)
    blank = CSRGraph.from_edge_index(arcs[:, :0], n)
    moved = [
        private_propagate(each, x, [1.0], Silence(), 'node')[0]
        for each in (hub, blank)
    ]
    found = float((moved[0] - moved[1]).norm())
    assert 0.999 < found <= hop_sensitivity('node')


@pytest.mark.parametrize('between', ['normalize', 'clip'])
def test_blocks_of_messages_are_the_messages(between, monkeypatch):
    monkeypatch.setattr(private_propagation, '_NUMBERS', 330)
    # By the definition, row by row, with a width that no block divides.
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.rand(40, 21, generator=generator).double() - 1
    x[:5] /= 50
    x[7], x[8, 2] = 0.0, math.inf
    length = x.norm(dim=1, keepdim=True)
    wanted = x / (length if between == 'normalize' else length.clamp(min=1))
    wanted[[7, 8]] = 0
    made = MessageBlocks(x, between)
    found = torch.cat([block for *_, block in made.blocks()], 1)
    assert made.width == wanted.size(1)
    assert torch.allclose(found, (1 - 1e-6) * wanted, rtol=1e-12, atol=0)
    assert torch.equal(found, messages(x, between=between))
    assert float(found.norm(dim=1).max()) <= 1


def test_two_accounts_on_one_file(tmp_path):
    file, data = tmp_path / 'ledger', graph([(0, 1), (1, 2)], 4)
    first = PrivateAGP(adjacency='node', mu=0.5, delta=1e-4, ledger=file)
    first(data)
    # While it is open nobody else spends from it, in this process either.
    second = PrivateAGP(adjacency='node', mu=0.5, delta=1e-4, ledger=file)
    model = PrivateNodeClassifier('node', **QUICK, ledger=file)
    for attempt in (lambda: second(data), lambda: model.fit(data)):
        with pytest.raises(RuntimeError, match='open'):
            attempt()
    assert len(first.account.lines) == 1
    first.account.close()
    # Afterwards they go on from what was spent: half a mu is too much here.
    with pytest.raises(BudgetExceededError):
        model.fit(data)
    model.close()
    second(data)
    assert second.report().mu == pytest.approx(math.sqrt(2) * 0.5)
    second.account.close()


@pytest.mark.parametrize('relation', ['edge', 'node'])
def test_what_a_refusal_tells_is_in_the_guarantee(relation):
    # One arc less, and the graph is refused: whoever sees that knows it.
    arcs = torch.tensor([[0, 1, 1], [1, 0, 2]])
    asked = {'adjacency': relation, 'mu': 1.0, 'delta': 1e-4}
    transform = PrivateAGP(**asked, directed=True)
    transform(Data(x=torch.eye(3), edge_index=arcs))
    with pytest.raises(ValueError, match='directed'):
        transform(Data(x=torch.eye(3), edge_index=arcs[:, :2]))
    said = transform.report().guarantee().assumptions
    assert any('not every arc has one back is known' in s for s in said)
    assert any('errors' in s and 'not published' in s for s in said)
    # And the reverse, where edges are in both directions.
    transform = PrivateAGP(**asked)
    transform(Data(x=torch.eye(3), edge_index=arcs[:, :2]))
    with pytest.raises(ValueError, match='directed'):
        transform(Data(x=torch.eye(3), edge_index=arcs))
    said = transform.report().guarantee().assumptions
    assert any('in both directions is known' in s for s in said)
    # A second call with one edge less is a line more: the count tells.
    transform(Data(x=torch.eye(3), edge_index=arcs[:, :0]))
    report = transform.report()
    assert report.releases == 2
    assert any('(2) shows which were alike' in s for s in report.assumptions)


def test_errors_do_not_name_what_is_private():
    data = graph([(i, (i * i + 1) % 30) for i in range(2, 30)], 30)
    model = PrivateNodeClassifier('edge', epsilon=1.0, epochs=1, num_classes=2)
    twice = data.clone()
    twice.edge_index = torch.cat([data.edge_index, data.edge_index[:, 4:5]], 1)
    outside = data.clone()
    outside.edge_index = data.edge_index.clone()
    outside.edge_index[0, 3] = 77
    label = data.clone()
    label.y = data.y.clone()
    label.y[7] = 77
    for bad in (twice, outside, label):
        with pytest.raises(ValueError, match="'") as error:
            model.fit(bad)
        said = str(error.value)
        assert '77' not in said
        assert '->' not in said
