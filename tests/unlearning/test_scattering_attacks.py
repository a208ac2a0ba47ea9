"""Attacks on ScatteringClassifier by somebody who knows its code."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import ScatteringClassifier
from pyg_trust.unlearning.heads import minimize
from pyg_trust.unlearning.published import PublishedScatteringClassifier

TRANSFORM = {'J': 2, 'Q': 3, 'L': 2}
LAM = 1e-2


def graph_of(n, pairs, x, label):
    both = [*pairs, *((v, u) for u, v in pairs)]
    return Data(
        x=torch.tensor(x, dtype=torch.float64).view(n, -1),
        edge_index=torch.tensor(sorted(both)).view(-1, 2).t().contiguous(),
        y=torch.tensor([label]),
        num_nodes=n,
    )


def protein_like(count=24, seed=0):
    """Small graphs with one-hot labels of three kinds."""
    source = np.random.default_rng(seed)
    graphs = []
    for i in range(count):
        n = int(source.integers(5, 9))
        pairs = [
            (u, v)
            for u in range(n)
            for v in range(u)
            if source.random() < 0.3 + 0.3 * (i % 2)
        ]
        x = np.eye(3)[source.integers(0, 3, n)]
        graphs.append(graph_of(n, pairs, x.tolist(), i % 2))
    return graphs


KINDS = {
    'output': ScatteringClassifier,
    'objective': PublishedScatteringClassifier,
}


def make(noise='output', **kwargs):
    return KINDS[noise](
        GraphScattering(**TRANSFORM), weight_decay=LAM, **kwargs
    )


def solved(graphs):
    """The exact solution without noise, and the design."""
    Z = GraphScattering(**TRANSFORM).embed(graphs, torch.float64)
    Y = torch.tensor([[2.0 * int(g.y) - 1] for g in graphs]).double()
    B = torch.zeros(Z.size(1), 1, dtype=torch.float64)
    return Z, Y, B, minimize(Z, Y, B, LAM).W


# The noise ##################################################################


def test_noise_too_small_for_the_solver_is_refused():
    graphs = protein_like()
    with pytest.raises(ValueError, match="'release_std' needs to be at least"):
        make(release_std=1e-7, tol=1e-8).fit(graphs)
    # And for the integers of its grid.
    with pytest.raises(ValueError, match="'release_std' is too small"):
        make(release_std=1e-12).fit(graphs)


# What a saved state tells ###################################################


def test_amounts_are_those_of_other_data():
    spent = []
    for seed in range(2):
        model = make().fit(protein_like(seed=seed))
        model.remove(RemovalRequest(nodes={3: [0]}))
        spent.append([line.spent for line in model.ledger.entries])
    assert spent[0] == spent[1]


# Removals that are removed ##################################################


@pytest.mark.parametrize('weighted', [False, True])
def test_no_half_of_an_edge_stays(weighted):
    graphs = protein_like()
    data = graphs[2]
    u, v = data.edge_index[:, 0].tolist()
    if weighted:
        for each in graphs:
            weight = torch.arange(1.0, each.num_edges + 1).double()
            each.edge_weight = weight
    else:
        # A stray directed edge elsewhere.
        pairs = data.edge_index.t().tolist()
        stray = next(
            [a, b]
            for a in range(data.num_nodes)
            for b in range(data.num_nodes)
            if a != b and {a, b} != {u, v} and [a, b] not in pairs
        )
        data.edge_index = torch.tensor([*pairs, stray]).t()
    model = make().fit(graphs)
    model.remove(RemovalRequest(edges={2: [(u, v)]}))
    left = {tuple(e) for e in model.graphs[2].edge_index.t().tolist()}
    assert not left & {(u, v), (v, u)}
    assert model.verify().ok


@pytest.mark.parametrize('noise', KINDS)
@pytest.mark.parametrize('num_classes', [2, 3])
def test_a_class_may_run_empty(noise, num_classes):
    graphs = protein_like()
    whole = RemovalRequest(graphs=range(1, len(graphs), 2))
    refused = make(noise=noise).fit(graphs)
    with pytest.raises(ValueError, match="give 'num_classes'"):
        refused.remove(whole)
    model = make(noise=noise, num_classes=num_classes).fit(graphs)
    report = model.remove(whole)
    assert report.empty_classes == tuple(range(1, num_classes))
    assert set(model.predict(graphs).tolist()) == {0}
    with pytest.raises(ValueError, match='no graph'):
        model.remove(RemovalRequest(graphs=range(0, len(graphs), 2)))
    graphs[0].y = torch.tensor([num_classes])
    with pytest.raises(ValueError, match=f'num_classes|{num_classes}'):
        make(num_classes=num_classes).fit(graphs)


def test_errors_name_the_graph():
    graphs = protein_like()
    odd = graphs[4].clone()
    odd.edge_weight = torch.ones(odd.num_edges)
    with pytest.raises(ValueError, match=r'one in graph 4'):
        make().fit([*graphs[:4], odd, *graphs[5:]])
    loop = graphs[4].clone()
    loop.edge_index = torch.cat(
        [loop.edge_index, torch.tensor([[1], [1]])], dim=1
    )
    with pytest.raises(ValueError, match=r'graph 4.*self-loop'):
        make().fit([*graphs[:4], loop, *graphs[5:]])
