import networkx
import pytest
import torch
from citeseer import local_oracle
from exhaustive import csr, random_problem
from torch_geometric.data import Data

from pyg_trust.certificates import ThreatModel
from pyg_trust.certificates.threat import spanning_tree
from pyg_trust.graph import CSRGraph

# A square with a diagonal.
SQUARE = torch.tensor(
    [[0, 1, 1, 2, 2, 3, 3, 0, 0, 2], [1, 0, 2, 1, 3, 2, 0, 3, 2, 0]]
)


def fragile_edges(threat):
    graph = threat.graph
    removable = threat.perturbations.removable
    pairs = graph.row[removable], graph.col[removable]
    return set(zip(*(part.tolist() for part in pairs), strict=True))


@pytest.mark.parametrize('seed', range(5))
def test_tree_is_kruskals_in_the_order_of_edges(seed):
    adj, _ = random_problem(seed, 12)
    graph = csr(adj)
    parent = list(range(12))

    def find(i):
        while parent[i] != i:
            i = parent[i]
        return i

    tree = set()
    for i, j in adj.nonzero().tolist():
        if i < j and find(i) != find(j):
            parent[find(i)] = find(j)
            tree |= {(i, j), (j, i)}
    on_tree = spanning_tree(graph)
    pairs = graph.row[on_tree].tolist(), graph.col[on_tree].tolist()
    assert set(zip(*pairs, strict=True)) == tree
    assert networkx.is_tree(networkx.Graph(tree))


def test_tree_of_a_forest_with_loops_and_one_way_edges():
    edge_index = torch.tensor([[0, 0, 1, 3, 3], [0, 1, 0, 4, 3]])
    graph = CSRGraph.from_edge_index(edge_index, 5)
    tree = spanning_tree(graph)
    pairs = graph.row[tree].tolist(), graph.col[tree].tolist()
    assert set(zip(*pairs, strict=True)) == {(0, 1), (1, 0), (3, 4)}


def test_fragile_edges_are_those_of_the_oracle(shared):
    graph, _, oracle = local_oracle(shared)
    threat = ThreatModel(graph, strength=6)
    fragile = oracle['fragile_rem']
    assert fragile_edges(threat) == set(map(tuple, fragile.tolist()))
    # Budgets in excess of what is fragile are cut down.
    count = fragile[:, 0].bincount(minlength=2110)
    budget = oracle['budget_s6'].minimum(count)
    assert torch.equal(threat.local_budget, budget)


def test_scenarios():
    data = Data(edge_index=SQUARE, num_nodes=4)
    removals = ThreatModel(data)
    # Kruskal: 0-1, 0-2, 0-3.
    assert fragile_edges(removals) == {(1, 2), (2, 1), (2, 3), (3, 2)}
    assert removals.local_budget.tolist() == [0, 1, 2, 1]
    additions = ThreatModel(data, 'additions')
    assert fragile_edges(additions) == set()
    assert additions.local_budget.tolist() == [0, 1, 0, 1]
    both = ThreatModel(data, 'both')
    assert fragile_edges(both) == fragile_edges(removals)
    assert both.local_budget.tolist() == [0, 2, 2, 2]
    explicit = ThreatModel(data, torch.tensor([[1, 0], [3, 1]]))
    assert fragile_edges(explicit) == {(0, 1)}
    assert explicit.perturbations.addable.tolist() == [[1], [3]]
    assert explicit.local_budget.tolist() == [1, 1, 0, 0]


def test_budgets():
    graph = csr(random_problem(0, 14)[0])
    threat = ThreatModel(graph, 'both', strength=9)
    held = graph.row[spanning_tree(graph)].bincount(minlength=14)
    rule = (graph.degree - 11 + 9).clamp(min=0).minimum(13 - held)
    assert torch.equal(threat.local_budget, rule)
    assert ThreatModel(graph, 'both', local_budget=1).local_budget.max() == 1
    given = torch.arange(14) % 2
    threat = ThreatModel(graph, 'both', local_budget=given)
    assert torch.equal(threat.local_budget, given)
    threat = ThreatModel(graph, 'both', global_budget=3)
    assert int(threat.local_budget.max()) == 3
    assert 'global_budget=3' in repr(threat)


def test_fixed_edges_can_be_chosen():
    fixed = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    threat = ThreatModel(SQUARE, num_nodes=4, fixed=fixed, local_budget=1)
    assert len(fragile_edges(threat)) == 6
    threat = ThreatModel(SQUARE, num_nodes=4, fixed='none', local_budget=1)
    assert len(fragile_edges(threat)) == 10
