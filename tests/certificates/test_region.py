"""Bounds in a region against exhaustive search: never too small."""

import pytest
import torch
from exhaustive import (
    admissible,
    csr,
    pagerank,
    random_problem,
    undirected_graphs,
    with_budget,
)

from pyg_trust.certificates.policy import worst_case_margins
from pyg_trust.certificates.region import (
    Region,
    local_attack,
    local_bound,
    nearest,
)
from pyg_trust.certificates.threat import Perturbations

ALPHA = 0.15


def problem(seed, kind, n=6):
    adj, logits = random_problem(seed, n, directed=kind == 'directed')
    nodes = torch.arange(n)
    fixed = torch.zeros_like(adj)
    fixed[nodes, (nodes + 1) % n] = True
    if kind != 'directed':
        fixed = fixed | fixed.t()
    fragile = adj & ~fixed
    addable, pairs = None, kind == 'both'
    if kind in ('both', 'explicit'):
        fragile = ~fixed & ~torch.eye(n, dtype=torch.bool)
    if kind == 'explicit':
        addable = (fragile & ~adj).nonzero().t()
    graph = csr(adj)
    budget = torch.full((n,), 1 if kind in ('both', 'explicit') else 2)
    made = Perturbations(
        graph,
        (adj & fragile)[graph.row, graph.col],
        budget,
        addable,
        all_pairs=pairs,
    )
    return adj, logits, fragile, budget, made


@pytest.mark.parametrize('kind', ['removals', 'both', 'explicit', 'directed'])
@pytest.mark.parametrize('size', [1, 2, 4, 6])
@pytest.mark.parametrize('seed', range(4))
def test_no_admissible_graph_exceeds_a_bound_of_a_region(kind, size, seed):
    adj, logits, fragile, budget, made = problem(seed, kind)
    graphs = admissible(adj, fragile, budget, 2)
    reach = pagerank(graphs, ALPHA)
    local = worst_case_margins(logits, made, ALPHA)
    first, second = 0, 1
    reward = (logits[:, second] - logits[:, first])[None].contiguous()
    free = -local[first, second][None] / ALPHA
    most = reach @ reward[0]
    for target in range(6):
        bound = local_bound(made, reward, target, free, 2, ALPHA, size=size)
        assert float(bound[0]) >= float(most[:, target].max()) - 1e-12
        region = Region(made, nearest(made.graph, target, ALPHA, size))
        upper = region.upper(made, target, ALPHA)
        for i, node in enumerate(region.inside.tolist()):
            if int(made.budget[node]) > 0:
                exact = float(reach[:, target, node].max())
                assert float(upper[i]) >= exact - 1e-12


@pytest.mark.parametrize('size', [2, 6])
@pytest.mark.parametrize('seed', range(6))
def test_no_undirected_graph_exceeds_a_bound_of_a_region(size, seed):
    adj, logits, fragile, _, made = problem(seed, 'explicit')
    made = with_budget(made, torch.full((6,), 2))
    local = worst_case_margins(logits, made, ALPHA)
    reward = (logits[:, 1] - logits[:, 0])[None].contiguous()
    free = -local[0, 1][None] / ALPHA
    graphs = undirected_graphs(adj, fragile, 2)
    most = (pagerank(graphs, ALPHA) @ reward[0]).amax(0)
    for target in range(6):
        bound = local_bound(
            made, reward, target, free, 2, ALPHA, undirected=True, size=size
        )
        assert float(bound[0]) >= float(most[target]) - 1e-12
        flips = local_attack(
            made,
            reward[0],
            target,
            torch.zeros(6, dtype=torch.float64),
            2,
            ALPHA,
            undirected=True,
            size=size,
        )
        assert flips.size(1) <= 4
        assert bool(fragile[flips[0], flips[1]].all())


@pytest.mark.parametrize('size', [1, 2, 3])
@pytest.mark.parametrize('far', [4, 5])
def test_an_edge_may_be_added_to_a_node_far_beyond_the_border(far, size):
    # A ring: what pays is neither in the region nor next to it, and only the
    # target can add an edge, so that nodes of the border are worth little.
    n, alpha = 10, ALPHA
    nodes = torch.arange(n)
    adj = torch.zeros((n, n), dtype=torch.bool)
    adj[nodes, (nodes + 1) % n] = True
    adj = adj | adj.t()
    fragile = ~adj & ~torch.eye(n, dtype=torch.bool)
    graph = csr(adj)
    budget = (nodes == 0).long()
    none = torch.zeros(graph.num_edges, dtype=torch.bool)
    made = Perturbations(graph, none, budget, all_pairs=True)
    region = Region(made, nearest(graph, 0, alpha, size))
    known = torch.cat([region.inside, region.border])
    assert far not in known.tolist()
    logits = torch.zeros((n, 2), dtype=torch.float64)
    logits[far, 1] = 1.0
    local = worst_case_margins(logits, made, alpha)
    free = -local[0, 1][None] / alpha
    graphs = admissible(adj, fragile, budget, 1)
    most = (pagerank(graphs, alpha) @ logits[:, 1])[:, 0].max()
    reward = logits[:, 1][None].contiguous()
    bound = local_bound(made, reward, 0, free, 1, alpha, size=size)
    assert float(bound[0]) >= float(most) - 1e-12


def test_the_nearest_nodes_are_those_of_pagerank():
    adj, _ = random_problem(1, 30)
    reach = pagerank(adj, ALPHA)
    for target in (0, 7):
        near = nearest(csr(adj), target, ALPHA, 8)
        assert target in near.tolist()
        assert near.unique().numel() == near.numel() == 8
        best = reach[target].topk(4).indices
        assert len(set(best.tolist()) & set(near.tolist())) >= 3
