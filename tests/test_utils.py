import json

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import stochastic_blockmodel_graph

from pyg_trust import agp as F
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
