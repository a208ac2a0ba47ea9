from collections import Counter
from itertools import chain

import pytest
import torch
from laws import as_lists, law_of, oracle_cases, outcome, p_value, rows_of

from pyg_trust.graph import CSRGraph
from pyg_trust.sampler import walks as F
from pyg_trust.sampler.walks import (
    DisjointWalks,
    check_walks,
    max_size,
    min_subgraphs,
)
from pyg_trust.testing import make_graph

SMALL = ['random', 'star', 'path', 'self_loop', 'isolated', 'no_edges']
LENGTHS = [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (5, 1)]


def undirected(edges, num_nodes):
    pairs = torch.tensor(edges).t()
    return CSRGraph.from_edge_index(
        torch.cat([pairs, pairs.flip(0)], 1), num_nodes
    )


def draw(edges, roots, length, restarts, draws):
    """How often which subgraphs came."""
    graph = undirected(edges, 5)
    roots = torch.tensor(roots)
    return Counter(
        outcome(
            *F.disjoint_walks(graph, length, restarts, roots=roots, seed=s)
        )
        for s in range(draws)
    )


def test_law_is_that_of_the_oracle(shared):
    for *case, law in oracle_cases(shared):
        assert sum(law.values()) == 1
        assert p_value(draw(*case, 40_000), law) > 0.001


@pytest.mark.parametrize('restarts', [1, 2, 4])
def test_law_at_a_hub(restarts):
    # Tries fail often here, so that the lists decide.
    edges = [*((0, v) for v in range(1, 5)), (1, 2)]
    law = law_of(rows_of(edges), (0, 3), 1, restarts, rounds=False)
    counts = draw(edges, [0, 3], 1, restarts, 20_000)
    assert p_value(counts, law) > 0.001


@pytest.mark.parametrize(('length', 'restarts'), LENGTHS)
@pytest.mark.parametrize('name', [*SMALL, 'directed'])
def test_invariants_by_brute_force(name, length, restarts):
    graph = make_graph(name)
    edges = {tuple(pair) for pair in graph.to_edge_index()[0].t().tolist()}
    masks = [torch.ones(graph.num_nodes, dtype=torch.bool)]
    masks += [torch.arange(graph.num_nodes) % 3 != 1]
    for seed in range(30):
        for mask in masks:
            walks = F.disjoint_walks(
                graph, length, restarts, roots=mask, seed=seed
            )
            subgraphs = as_lists(walks.ptr, walks.node)
            nodes = list(chain(*subgraphs))
            assert len(nodes) == len(set(nodes))
            assert set(mask.nonzero().view(-1).tolist()) <= set(nodes)
            least = min_subgraphs(int(mask.sum()), length, restarts)
            assert least <= walks.num_subgraphs == len(subgraphs)
            assert walks.roots.tolist() == [s[0] for s in subgraphs]
            for subgraph in subgraphs:
                assert bool(mask[subgraph[0]])
                assert 1 <= len(subgraph) <= 1 + length * restarts
                for i, v in enumerate(subgraph[1:], 1):
                    assert any((v, u) in edges for u in subgraph[:i])


def test_least_number_of_subgraphs_is_attained():
    graph = make_graph('star')
    counts = {
        F.disjoint_walks(
            graph, 1, 5, roots=torch.tensor([5, 0, 1]), seed=seed
        ).num_subgraphs
        for seed in range(50)
    }
    assert min(counts) == 1 == min_subgraphs(3, 1, 5)
    assert min_subgraphs(140, 2) == 47
    assert min_subgraphs(140, 1) == 70
    assert min_subgraphs(140, 2, 2) == 28
    assert min_subgraphs(7, 0) == 7
    assert min_subgraphs(9, 2) == 3
    assert max_size(2, 3) == 7


def test_weights_and_order_of_edges_do_not_matter():
    pairs, _ = make_graph('random').to_edge_index()
    plain = F.disjoint_walks(make_graph('random'), 2, seed=1)
    order = torch.randperm(
        pairs.size(1), generator=torch.Generator().manual_seed(0)
    )
    weight = torch.rand(pairs.size(1))
    graph = CSRGraph.from_edge_index(pairs[:, order], 40, weight)
    other = F.disjoint_walks(graph, 2, seed=1)
    assert plain.node.equal(other.node)
    assert plain.ptr.equal(other.ptr)


def walks(*subgraphs):
    size = torch.tensor([0, *map(len, subgraphs)])
    node = torch.tensor(list(chain(*subgraphs)), dtype=torch.int64)
    return DisjointWalks(size.cumsum(0), node)


@pytest.mark.parametrize(
    ('bad', 'size', 'roots'),
    [
        (walks([0, 1], [1]), 3, [0, 1]),
        (walks([0, 1, 0]), 3, [0]),
        (walks([0, 1, 2]), 2, [0]),
        (walks([0, 4]), 3, [0]),
        (walks([-1]), 3, [0]),
        (walks([0], [], [1]), 3, [0, 1]),
        (walks([]), 3, [0]),
        (walks([0, 1]), 3, [1, 0, 2]),
        (walks([0, 1]), 3, [1]),
        (walks([0])._replace(ptr=torch.tensor([0])), 3, [0]),
        (walks([0])._replace(ptr=torch.tensor([0, 2])), 3, [0]),
        (walks([0])._replace(ptr=torch.tensor([1, 1])), 3, [0]),
    ],
)
def test_what_breaks_privacy_is_found_in_walks(bad, size, roots):
    check_walks(walks([0, 1], [3]), 4, 2, torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match='disjoint subgraphs'):
        check_walks(bad, 4, size, torch.tensor(roots))
