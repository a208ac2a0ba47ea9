"""Small random problems, and every graph an attacker could make of them.

Dense matrices, and of the package the graphs alone that certificates take:
what these are compared with.
"""

import itertools

import torch
from torch import Tensor

from pyg_trust.certificates.threat import Perturbations
from pyg_trust.graph import CSRGraph


def random_problem(
    seed: int, num_nodes: int, *, directed: bool = False, loops: bool = False
) -> tuple[Tensor, Tensor]:
    """A dense adjacency matrix with a cycle in it, and logits."""
    generator = torch.Generator().manual_seed(seed)
    n = num_nodes
    adj = torch.rand(n, n, generator=generator) < 0.35
    if not directed:
        adj = adj | adj.t()
    if not loops:
        adj.fill_diagonal_(False)
    nodes = torch.arange(n)
    adj[nodes, (nodes + 1) % n] = True
    if not directed:
        adj = adj | adj.t()
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return adj, logits


def csr(adj: Tensor) -> CSRGraph:
    return CSRGraph.from_edge_index(adj.nonzero().t(), adj.size(0))


def pagerank(adj: Tensor, alpha: float) -> Tensor:
    """The matrices of personalized PageRank of a batch of graphs."""
    adj = adj.double()
    step = adj / adj.sum(-1, keepdim=True)
    eye = torch.eye(adj.size(-1), dtype=torch.float64)
    return alpha * torch.linalg.inv(eye - (1 - alpha) * step)


def admissible(
    adj: Tensor,
    fragile: Tensor,
    local_budget: Tensor,
    global_budget: int | None = None,
) -> Tensor:
    """All admissible graphs: ``[num_graphs, num_nodes, num_nodes]``.

    Args:
        adj: bool, the clean graph.
        fragile: bool, the pairs that may be flipped.
        local_budget: per row.
        global_budget: in all.
    """
    rows = []
    for i in range(adj.size(0)):
        pairs = fragile[i].nonzero().view(-1).tolist()
        most = min(len(pairs), int(local_budget[i]))
        options = []
        for k in range(most + 1):
            for chosen in itertools.combinations(pairs, k):
                row = adj[i].clone()
                row[list(chosen)] ^= True
                options.append(row)
        rows.append(torch.stack(options))
    graphs = adj.new_zeros((1, 0, adj.size(0)))
    for i, options in enumerate(rows):
        graphs = torch.cat(
            [
                graphs.repeat_interleave(len(options), 0),
                options.repeat(len(graphs), 1)[:, None],
            ],
            dim=1,
        )
        if global_budget is not None:
            flips = (graphs != adj[: i + 1]).sum((1, 2))
            graphs = graphs[flips <= global_budget]
    assert len(graphs) < 2e5, 'too many graphs to try them all'
    return graphs


def undirected_graphs(
    adj: Tensor,
    fragile: Tensor,
    budget: int,
    local: Tensor | int | None = None,
) -> Tensor:
    """Every graph that at most so many undirected flips make.

    Args:
        adj: bool, the clean graph, which comes first.
        fragile: bool, the pairs that may be flipped.
        budget: in all.
        local: per row, or the same for all.
    """
    pairs = torch.triu(fragile, 1).nonzero().tolist()
    made = []
    for k in range(budget + 1):
        for chosen in itertools.combinations(pairs, k):
            graph = adj.clone()
            for i, j in chosen:
                graph[i, j] ^= True
                graph[j, i] ^= True
            flips = (graph ^ adj).sum(1)
            if local is None or bool((flips <= local).all()):
                made.append(graph)
    return torch.stack(made)


def worst_margins(graphs: Tensor, logits: Tensor, alpha: float) -> Tensor:
    """The smallest margins: ``[num_classes, num_classes, num_nodes]``."""
    worst = None
    for part in graphs.split(20000):
        z = pagerank(part, alpha) @ logits
        made = (z[..., :, None] - z[..., None, :]).amin(0)
        worst = made if worst is None else torch.minimum(worst, made)
    return worst.permute(1, 2, 0)


def random_perturbations(adj, seed, kind):
    """Perturbations of a kind, and their fragile pairs as a dense mask."""
    generator = torch.Generator().manual_seed(1000 + seed)
    n = adj.size(0)
    nodes = torch.arange(n)
    free = torch.ones(n, n, dtype=torch.bool)
    fixed = torch.zeros(n, n, dtype=torch.bool)
    fixed[nodes, (nodes + 1) % n] = True
    budget = torch.randint(0, 4, (n,), generator=generator)
    graph = csr(adj)
    removable = torch.zeros_like(adj)
    addable, all_pairs = None, False
    if kind in ('removals', 'both', 'explicit'):
        removable = adj & ~fixed
    if kind == 'explicit':
        removable &= torch.rand(n, n, generator=generator) < 0.7
        added = ~adj & (torch.rand(n, n, generator=generator) < 0.5)
        addable = added.nonzero().t()
        addable = addable[:, torch.randperm(addable.size(1))]
        fragile = removable | added
    elif kind == 'removals':
        fragile = removable
    else:
        all_pairs = True
        fragile = removable | (~adj & free.fill_diagonal_(False))
    mask = removable[graph.row, graph.col]
    made = Perturbations(graph, mask, budget, addable, all_pairs=all_pairs)
    return made, fragile, budget


def with_budget(made: Perturbations, budget: Tensor) -> Perturbations:
    """The same fragile edges with another budget per node."""
    return Perturbations(
        *(made.graph, made.removable, budget, made.addable),
        all_pairs=made.all_pairs,
    )
