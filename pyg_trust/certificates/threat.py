"""Attacker on edges: the edges that may be flipped, and the budgets."""

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust._checks import (
    Natural,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.certificates.perturbations import (
    Perturbations,
    check_budgets,
    check_once,
)
from pyg_trust.graph import CSRGraph

__all__ = ['ThreatModel', 'spanning_tree']

SCENARIOS = ('removals', 'additions', 'both')
# Undirected additions are listed, with a price each, up to so many pairs.
_LISTED = 2**22


@validated
class ThreatModel:
    r"""Set of perturbed graphs that a certificate holds for.

    The threat model of `"Certifiable Robustness to Graph Perturbations"
    <https://arxiv.org/abs/1910.14356>`_ (Bojchevski and Günnemann 2019): the
    attacker flips **directed** fragile edges, at most :math:`b_v` among those
    that leave node :math:`v` and, if there is a global budget, at most
    :math:`B` in all. Features, logits and fixed edges stay. With
    :obj:`undirected=True` both directions of an edge are added or removed
    together, as one flip; otherwise one direction may flip without the other.

    A node that loses its last edge is left with :math:`\alpha H_v`, so that
    its own logits decide; forbid it with :obj:`fixed` or with budgets if that
    can't happen.

    Args:
        graph (Any): the clean graph, in any form that :meth:`CSRGraph.convert`
            takes: unweighted and without duplicate edges.
        fragile (str or Tensor): :obj:`'removals'` (all edges that are not
            fixed), :obj:`'additions'` (all ordered pairs of distinct nodes
            without an edge), :obj:`'both'`, or an explicit set of edges and
            non-edges, int64, ``[2, num_pairs]``: those that are in the graph
            may be removed, the others added. (default: :obj:`'removals'`)
        fixed (Tensor or str, optional): the edges that stay, int64, ``[2,
            num_fixed]``, :obj:`'mst'` (both directions of a spanning tree of
            the undirected graph, see :func:`spanning_tree`), or :obj:`'none'`.
            By default the tree for a named scenario, and all edges that are
            not fragile for an explicit set. (default: :obj:`None`)
        local_budget (int or Tensor, optional): :math:`b_v`, for all nodes or
            int64, ``[num_nodes]``. By default as many as there are fragile
            edges; with all pairs fragile this needs :math:`n^2` memory unless
            a global budget is given. (default: :obj:`None`)
        strength (int, optional): the paper's local budget :math:`b_v =
            \max(d_v - 11 + s, 0)` for strength :math:`s`, in place of
            :obj:`local_budget`. (default: :obj:`None`)
        global_budget (int, optional): :math:`B`. (default: :obj:`None`)
        undirected (bool): whether both directions of an edge flip together,
            as one flip; an explicit set may list either direction.
            (default: :obj:`False`)
        num_nodes (int, optional): as in :meth:`CSRGraph.convert`.
            (default: :obj:`None`)

    Raises:
        ValueError: if an edge is fragile and fixed, listed twice or out of
            range, a fixed edge is not in the graph, a budget is negative, or
            an undirected attacker is given a directed graph.
    """

    def __init__(
        self,
        graph: Any,
        fragile: str | Tensor = 'removals',
        *,
        fixed: str | Tensor | None = None,
        local_budget: int | Tensor | None = None,
        strength: int | None = None,
        global_budget: Natural | None = None,
        undirected: bool = False,
        num_nodes: int | None = None,
    ) -> None:
        graph = _convert(graph, num_nodes)
        if undirected and not graph.is_undirected:
            raise ValueError(
                "'graph' needs to be undirected for undirected=True (got an "
                'edge in one direction)'
            )
        explicit = isinstance(fragile, Tensor)
        held = _fixed_edges(graph, fixed, explicit, undirected)
        addable = None
        all_pairs = not explicit and fragile in ('additions', 'both')
        if isinstance(fragile, Tensor):
            self.scenario = 'explicit'
            edges, place = _listed('fragile', graph, fragile, undirected)
            there = place >= 0
            removable = torch.zeros_like(held)
            removable[place[there]] = True
            addable = edges[:, ~there]
            if bool((removable & held).any()):
                edge = int((removable & held).nonzero()[0])
                raise ValueError(
                    "'fragile' and 'fixed' both hold the edge "
                    f'{int(graph.row[edge])} -> {int(graph.col[edge])}: it '
                    'can be one of the two'
                )
        elif fragile in SCENARIOS:
            self.scenario = fragile
            removable = ~held & (fragile != 'additions')
        else:
            raise ValueError(
                f"'fragile' needs to be one of {SCENARIOS} or a tensor "
                f'(got {fragile!r})'
            )
        budget = _local_budget(graph, local_budget, strength)
        if global_budget is not None:
            budget = budget.clamp(max=global_budget)
        if undirected and all_pairs and graph.num_nodes**2 <= _LISTED:
            addable, all_pairs = _absent(graph), False
        self.perturbations = Perturbations(
            graph, removable, budget, addable, all_pairs=all_pairs
        )
        self.undirected = undirected
        self.strength = strength
        self.global_budget = global_budget

    @property
    def graph(self) -> CSRGraph:
        """Return the clean graph."""
        return self.perturbations.graph

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return self.perturbations.num_nodes

    @property
    def local_budget(self) -> Tensor:
        """Return the local budget in flips: int64, ``[num_nodes]``.

        At most the number of its fragile edges, and the global budget.
        """
        return self.perturbations.budget

    def __repr__(self) -> str:
        strength = '' if self.strength is None else f's={self.strength}, '
        return (
            f'{type(self).__name__}({self.scenario}, {strength}'
            f'local_budget={int(self.local_budget.sum())} in all, '
            f'global_budget={self.global_budget}'
            f'{", undirected" if self.undirected else ""})'
        )


def _convert(graph: Any, num_nodes: int | None) -> CSRGraph:
    converted = CSRGraph.convert(graph, num_nodes, duplicates='keep')
    if converted.has_duplicates:
        same = (converted.row.diff() == 0) & (converted.col.diff() == 0)
        place = int(same.nonzero()[0])
        raise ValueError(
            "'edge_index' (the 'graph' of a threat) needs to list each edge "
            f'once (got {int(converted.row[place])} -> '
            f'{int(converted.col[place])} more than once): coalesce it, '
            'torch_geometric.utils.coalesce'
        )
    return converted.to('cpu')


def _absent(graph: CSRGraph) -> Tensor:
    free = torch.ones((graph.num_nodes,) * 2, dtype=torch.bool)
    free[graph.row, graph.col] = False
    return free.fill_diagonal_(False).nonzero().t()


def spanning_tree(graph: CSRGraph) -> Tensor:
    """Return the edges on a minimum spanning tree: bool, ``[num_edges]``.

    Directions are ignored, and with unit weights every spanning tree is
    minimal; this is Kruskal's with ties broken by the order of the edges
    (row, then column), a forest if the graph is not connected. The authors'
    code leaves ties to numpy's unstable sort, which moves certified ratios by
    up to 1.6 points from one version to another.
    """
    row, col = graph.row, graph.col
    key = torch.minimum(row, col) * graph.num_nodes + torch.maximum(row, col)
    pairs, which = key.unique(return_inverse=True)
    low, high = pairs // graph.num_nodes, pairs % graph.num_nodes
    proper = low != high
    # Distinct weights leave no ties; zero would be no edge.
    weight = np.arange(1.0, len(pairs) + 1)
    tree = scipy.sparse.csgraph.minimum_spanning_tree(
        scipy.sparse.csr_array(
            (
                weight[proper.numpy()],
                # Older SciPy takes 32-bit indices only.
                (low[proper].int().numpy(), high[proper].int().numpy()),
            ),
            shape=(graph.num_nodes, graph.num_nodes),
        )
    )
    on_tree = torch.zeros(len(pairs), dtype=torch.bool)
    on_tree[torch.from_numpy(tree.data).long() - 1] = True
    return on_tree[which]


def _listed(
    name: str, graph: CSRGraph, edges: Tensor, undirected: bool
) -> tuple[Tensor, Tensor]:
    # The listed edges, and the position of each in the graph or -1.
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(
            f"'{name}' needs to have the shape [2, num_pairs] "
            f'(got {list(edges.shape)})'
        )
    check_tensor(name, edges, torch.int64, tuple(edges.shape))
    n = graph.num_nodes
    check_range(name, edges, n, 'the nodes')
    check_once(name, edges[0] * n + edges[1], n)
    if undirected:
        edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    key = edges[0] * n + edges[1]
    # Behind the last one stands a key that is none.
    keys = torch.cat([graph.row * n + graph.col, key.new_full((1,), n * n)])
    place = torch.searchsorted(keys, key)
    return edges, torch.where(keys[place] == key, place, -1)


def _fixed_edges(
    graph: CSRGraph,
    fixed: str | Tensor | None,
    explicit: bool,
    undirected: bool,
) -> Tensor:
    if fixed is None:
        fixed = 'none' if explicit else 'mst'
    held = torch.zeros(graph.num_edges, dtype=torch.bool)
    if isinstance(fixed, Tensor):
        edges, place = _listed('fixed', graph, fixed, undirected)
        if bool((place < 0).any()):
            u, v = edges[:, place < 0][:, 0].tolist()
            raise ValueError(
                "'fixed' needs to hold edges of the graph "
                f'(got {u} -> {v}, which is none)'
            )
        held[place] = True
        return held
    if fixed == 'mst':
        return spanning_tree(graph)
    if fixed == 'none':
        return held
    raise ValueError(
        f"'fixed' needs to be 'mst', 'none', None or a tensor (got {fixed!r})"
    )


def _local_budget(
    graph: CSRGraph, budget: int | Tensor | None, strength: int | None
) -> Tensor:
    if strength is not None:
        if budget is not None:
            raise ValueError(
                "'local_budget' and 'strength' both set a budget: give "
                'one of them'
            )
        return (graph.degree - 11 + check_integer('strength', strength)).clamp(
            min=0
        )
    n = graph.num_nodes
    if budget is None:
        return torch.full((n,), 2 * n)
    if isinstance(budget, Tensor):
        check_budgets('local_budget', budget, n)
        return budget
    return torch.full((n,), check_integer('local_budget', budget, 0))
