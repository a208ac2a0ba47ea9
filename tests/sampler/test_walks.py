import json
from collections import Counter
from itertools import chain, pairwise

import pytest
import torch
from scipy.stats import chi2

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
DRAWS = 40_000


def as_lists(walks):
    bounds = walks.ptr.tolist()
    return [walks.node[a:b].tolist() for a, b in pairwise(bounds)]


def undirected(edges, num_nodes):
    pairs = torch.tensor(edges).t()
    return CSRGraph.from_edge_index(
        torch.cat([pairs, pairs.flip(0)], 1), num_nodes
    )


def p_value(counts, law, draws):
    """Pearson's test of counts against probabilities, by outcome."""
    assert set(counts) <= set(law)
    statistic = sum(
        (counts[outcome] - draws * p) ** 2 / (draws * p)
        for outcome, p in law.items()
    )
    return chi2.sf(statistic, len(law) - 1)


def exact_law(neighbours, roots, length, restarts):
    """The law of Algorithms 2 and 3, by walking every branch."""
    law = Counter()

    def roots_from(claimed, done, p):
        free = [r for r in roots if r not in claimed]
        if not free:
            law[done] += p
        for r in free:
            walk(r, r, 0, 0, {*claimed, r}, (r,), done, p / len(free))

    def walk(root, v, i, walks, claimed, subgraph, done, p):
        if walks == restarts:
            roots_from(claimed, (*done, subgraph), p)
            return
        free = [w for w in neighbours[v] if w not in claimed]
        if i == length or not free:
            walk(root, root, 0, walks + 1, claimed, subgraph, done, p)
            return
        for w in free:
            grown, q = {*claimed, w}, p / len(free)
            walk(root, w, i + 1, walks, grown, (*subgraph, w), done, q)

    roots_from(frozenset(), (), 1.0)
    return law


@pytest.mark.parametrize('case', range(5))
def test_law_is_that_of_the_oracle(shared, case):
    oracle = json.loads((shared / 'oracles/dp/sampler_exact.json').read_text())
    graph = undirected(oracle['edges'], 5)
    case = oracle['cases'][case]

    def name(subgraphs):  # the oracle does not tell the order of subgraphs
        return tuple(sorted(map(tuple, subgraphs)))

    law = {
        name(outcome['subgraphs']): outcome['p'][0] / outcome['p'][1]
        for outcome in case['outcomes']
    }
    assert sum(law.values()) == pytest.approx(1)
    roots = torch.tensor(case['roots'])
    counts = Counter(
        name(
            as_lists(
                F.disjoint_walks(
                    graph, case['L'], case['R'], roots=roots, seed=seed
                )
            )
        )
        for seed in range(DRAWS)
    )
    assert p_value(counts, law, DRAWS) > 0.001


@pytest.mark.parametrize('restarts', [1, 2, 4])
def test_law_at_a_hub(restarts):
    # Tries fail often here, so that the lists decide.
    edges = [(0, v) for v in range(1, 5)]
    graph = undirected([*edges, (1, 2)], 5)
    neighbours = {0: [1, 2, 3, 4], 1: [0, 2], 2: [0, 1], 3: [0], 4: [0]}
    law = exact_law(neighbours, [0, 3], 1, restarts)
    roots = torch.tensor([0, 3])
    counts = Counter(
        tuple(
            map(
                tuple,
                as_lists(
                    F.disjoint_walks(
                        graph, 1, restarts, roots=roots, seed=seed
                    )
                ),
            )
        )
        for seed in range(20_000)
    )
    assert p_value(counts, law, 20_000) > 0.001


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
            subgraphs = as_lists(walks)
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
