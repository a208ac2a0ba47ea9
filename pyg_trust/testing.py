"""Helpers for tests of pyg_trust and of projects that build on it."""

import torch
from torch import Tensor

from pyg_trust._checks import check_choice, validated
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph

__all__ = ['dense_operator', 'make_graph']

UNDIRECTED = ('path', 'star', 'cycle', 'self_loop', 'isolated', 'no_edges')


def make_graph(name: str) -> CSRGraph:
    """Make a small graph for tests.

    Args:
        name (str): :obj:`'path'`, :obj:`'star'` (its centre is the last node),
            :obj:`'cycle'`, :obj:`'self_loop'` (at one node), :obj:`'isolated'`
            (the first and last node have no edges), :obj:`'no_edges'`,
            :obj:`'duplicate'` (a parallel edge), :obj:`'directed'` (with a
            sink and a source) or :obj:`'random'` (40 nodes, undirected).
    """
    check_choice(
        'name', name, (*UNDIRECTED, 'duplicate', 'directed', 'random')
    )
    if name == 'random':
        generator = torch.Generator().manual_seed(0)
        pairs = torch.randint(38, (2, 90), generator=generator)
        pairs = pairs[:, pairs[0] != pairs[1]]
        pairs = torch.cat([pairs, pairs.flip(0)], 1)
        return CSRGraph.from_edge_index(pairs, 40, duplicates='merge')
    undirected: dict[str, tuple[int, list]] = {
        'path': (4, [(0, 1), (1, 2), (2, 3)]),
        'star': (6, [(5, 0), (5, 1), (5, 2), (5, 3), (5, 4)]),
        'cycle': (5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]),
        'self_loop': (3, [(0, 1), (1, 2), (1, 1)]),
        'isolated': (5, [(1, 2), (2, 3), (1, 3)]),
        'no_edges': (3, []),
        'duplicate': (3, [(0, 1), (0, 1), (1, 2)]),
    }
    if name == 'directed':
        pairs = torch.tensor([[0, 0, 1, 2, 3, 3], [1, 2, 2, 4, 0, 4]])
        return CSRGraph.from_edge_index(pairs, 5)
    num_nodes, edges = undirected[name]
    both = [*edges, *((v, u) for u, v in edges if u != v)]
    pairs = torch.tensor(both, dtype=torch.int64).view(-1, 2).t()
    return CSRGraph.from_edge_index(pairs, num_nodes, duplicates='keep')


@validated
def dense_operator(graph: CSRGraph, measure: Measure) -> Tensor:
    r"""Return the matrix that propagates a signal, by dense products.

    Args:
        graph (CSRGraph): a small graph.
        measure (Measure): the propagation.

    Returns:
        Tensor: :math:`\sum_i w_i (D^{-a} A D^{-b})^i`: float64, ``[num_nodes,
        num_nodes]``.
    """
    adj = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    edge_index, _ = graph.to_edge_index()
    for u, v in edge_index.t().tolist():
        adj[u, v] += 1
    if measure.self_loops:
        adj += torch.diag((adj.diagonal() == 0).double())
    degree = adj.sum(1)

    def power(exponent: float) -> Tensor:
        if exponent == 0:
            return torch.eye(graph.num_nodes, dtype=torch.float64)
        inverse = torch.where(degree > 0, degree.pow(-exponent), 0.0)
        return torch.diag(inverse)

    step = power(measure.a) @ (adj.t() if measure.along else adj)
    step = measure.shrink * step @ power(measure.b)
    total = torch.zeros_like(adj)
    term = torch.eye(graph.num_nodes, dtype=torch.float64)
    for weight in measure.weights:
        total += weight * term
        term = step @ term
    return total
