import json
import warnings

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_trust import agp as F
from pyg_trust._checks.graphs import warn_of_features
from pyg_trust.graph import CSRGraph
from pyg_trust.utils import local_cluster


@pytest.fixture(scope='module')
def data():
    torch.manual_seed(0)
    edge_index = stochastic_blockmodel_graph(
        [50] * 6, 0.01 + 0.29 * torch.eye(6)
    )
    return Data(edge_index=edge_index, num_nodes=300)


@pytest.mark.parametrize('method', ['prune', 'sample'])
@pytest.mark.parametrize('measure', [None, F.ppr(0.1), F.hkpr(10.0)])
def test_local_cluster_finds_the_planted_block(data, method, measure):
    found = local_cluster(
        data, 110, measure=measure, eps=1e-5, method=method, seed=0
    )
    block = set(range(100, 150))
    overlap = len(block & set(found.nodes.tolist()))
    assert overlap / len(block | set(found.nodes.tolist())) > 0.8
    assert found.conductance < 0.3
    assert 'eps' in json.loads(found.to_json())['provenance']['arguments']


def test_local_cluster_from_many_seeds(data):
    graph = CSRGraph.from_data(data)
    found = local_cluster(graph, torch.tensor([101, 120, 149]), eps=1e-5)
    assert set(found.nodes.tolist()) <= set(range(90, 160))
    small = local_cluster(graph, 110, max_size=10, eps=1e-5)
    assert len(small.nodes) <= 10
    again = local_cluster(data.edge_index, 110, num_nodes=300, eps=1e-5)
    assert torch.equal(again.nodes, local_cluster(graph, 110, eps=1e-5).nodes)


def test_columns_that_were_scaled_over_all_rows_get_a_warning():
    x = torch.randn(50, 6, dtype=torch.float64).exp()
    binary = (x > 1).double()
    standard = (x - x.mean(0)) / x.std(0)
    unit = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
    for scaled, what in (
        (standard, 'mean 0 and variance 1'),
        ((x - x.mean(0)) / x.std(0, correction=0), 'mean 0 and variance 1'),
        (unit.float(), 'minimum 0 and maximum 1'),
        (torch.cat([binary, unit], 1), 'minimum 0 and maximum 1'),
    ):
        with pytest.warns(UserWarning, match=what):
            warn_of_features('x', scaled)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for plain in (x, binary, x[:0], torch.cat([x, unit], 1), x.sum(1)):
            warn_of_features('x', plain)
        warn_of_features('x', None)
