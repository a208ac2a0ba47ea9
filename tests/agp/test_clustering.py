import networkx as nx
import pytest
import torch

from pyg_trust import agp as F
from pyg_trust.agp.clustering import uniform_signal
from pyg_trust.graph import CSRGraph
from pyg_trust.testing import make_graph


def to_networkx(graph):
    theirs = nx.Graph()
    theirs.add_nodes_from(range(graph.num_nodes))
    theirs.add_edges_from(graph.to_edge_index()[0].t().tolist())
    return theirs


@pytest.mark.parametrize('seed', range(5))
def test_profile_is_the_conductance_of_networkx(seed):
    graph = make_graph('random')
    torch.manual_seed(seed)
    nodes = (graph.degree > 0).nonzero().view(-1)
    nodes = nodes[torch.randperm(len(nodes))[:20]]
    score = torch.rand(20)
    cut = F.sweep_cut(graph, nodes, score)
    ranked = nodes[score.argsort(descending=True)].tolist()
    theirs = to_networkx(graph)
    wanted = [nx.conductance(theirs, ranked[: k + 1]) for k in range(20)]
    torch.testing.assert_close(
        cut.profile, torch.tensor(wanted, dtype=torch.float64)
    )
    best = min(range(20), key=wanted.__getitem__)
    assert cut.nodes.tolist() == ranked[: best + 1]
    assert cut.conductance == pytest.approx(wanted[best])
    assert cut.volume == sum(dict(theirs.degree(ranked[: best + 1])).values())
    few = F.sweep_cut(graph, nodes, score, max_size=3)
    assert few.conductance == pytest.approx(min(wanted[:3]))


def test_sweep_finds_a_planted_cut():
    # Two cliques of six, joined by one edge.
    pairs = [
        (u + k, v + k) for k in (0, 6) for u in range(6) for v in range(u)
    ]
    pairs = torch.tensor([*pairs, (0, 6)]).t()
    graph = CSRGraph.from_edge_index(torch.cat([pairs, pairs.flip(0)], 1), 12)
    row = F.query(graph, torch.tensor([3]), F.ppr(0.1), eps=1e-6)
    score = row.values() / graph.degree[row.col_indices()]
    cut = F.sweep_cut(graph, row.col_indices(), score)
    assert sorted(cut.nodes.tolist()) == [0, 1, 2, 3, 4, 5]
    assert cut.conductance == pytest.approx(1 / 31)


def test_the_whole_graph_is_no_cluster():
    graph = make_graph('cycle')
    cut = F.sweep_cut(graph, torch.arange(5), torch.arange(5.0))
    assert cut.profile[-1] == torch.inf
    assert len(cut.nodes) < 5


def test_uniform_signal():
    row = uniform_signal(torch.tensor([4, 1]), 6).to_dense()
    assert row.tolist() == [[0, 0.5, 0, 0, 0.5, 0]]
