r"""Partitions of the training nodes into shards.

A partition is an int64 tensor ``shard`` of ``[num_nodes]``: the shard, in
:math:`0, \ldots, S-1`, of every training node. Graphs are those of the
training nodes alone, numbered in the order in which these are given.

What a partition reads decides what sharded unlearning guarantees: by
:func:`hash_partition` the removal of a node leaves the partition that would
have been drawn without it. :func:`random_partition` depends on the number of
training nodes; all others have seen edges, features or labels of *every*
training node, so that unlearning is exact **given the partition**.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch_geometric.utils import remove_self_loops, subgraph, to_undirected

from pyg_trust import rng
from pyg_trust._checks import (
    Array,
    Count,
    Natural,
    Number,
    as_ids,
    check_distinct,
    check_instance,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.graph.ragged import pointer
from pyg_trust.registries import Registry

__all__ = [
    'PARTITIONS',
    'PartitionLosses',
    'bekm',
    'blpa',
    'check_edges',
    'check_partition',
    'check_shards',
    'hash_partition',
    'metis_partition',
    'partition_from_lists',
    'partition_losses',
    'random_partition',
    'round_partition',
    'shard_limits',
    'shard_sizes',
    'training_graph',
]

Slack = Annotated[float, Number(0, 1, 'low')]

#: Functions from what their first arguments name (``num_nodes``, ``n_id``,
#: ``edge_index``, ``x``, ``y`` or ``embedding``, of the training nodes) and
#: ``num_shards`` to a partition; ``sees`` states what the shard of a node
#: depends on, beside the seed.
PARTITIONS: Registry[Callable[..., Tensor]] = Registry(
    'partition', facts=('sees',)
)


@validated
def training_graph(
    edge_index: Tensor, index: Tensor, num_nodes: Natural
) -> Tensor:
    """Return the edges between training nodes, renumbered.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``: the whole graph.
        index (Tensor): int64: the training nodes, each once.
        num_nodes (int): the number of nodes of the whole graph.

    Returns:
        Tensor: int64, ``[2, *]``: ends are positions in :obj:`index`; every
        edge in both directions, once, without loops.
    """
    check_edges(edge_index, num_nodes, 'the nodes')
    check_tensor('index', index, torch.int64, ('num_train',))
    check_range('index', index, num_nodes, 'the nodes')
    check_distinct('index', index)
    inner, _ = subgraph(
        index, edge_index, relabel_nodes=True, num_nodes=num_nodes
    )
    return _simple(inner, index.numel())


@validated
def shard_sizes(shard: Tensor, num_shards: Count) -> Tensor:
    """Count the nodes of each shard, without nodes of negative shards."""
    check_tensor('shard', shard, torch.int64, ('num_nodes',))
    sizes = shard[shard >= 0].bincount(minlength=num_shards)
    if sizes.numel() > num_shards:
        raise ValueError(
            f"'shard' needs to be below {num_shards}, the number of shards "
            f'(got {sizes.numel() - 1})'
        )
    return sizes


@validated
def shard_limits(
    num_nodes: Count, num_shards: int, slack: Slack = 0.1
) -> tuple[int, int]:
    r"""Return the least and the largest shard size of a balanced partition.

    .. math::
        \min\{ \lfloor N/S \rfloor, \lceil (1 - \text{slack}) N/S \rceil \},
        \quad
        \max\{ \lceil N/S \rceil, \lfloor (1 + \text{slack}) N/S \rfloor \}

    Args:
        num_nodes (int): the number of training nodes :math:`N`.
        num_shards (int): the number of shards :math:`S`.
        slack (float): in :math:`[0, 1)`. (default: :obj:`0.1`)
    """
    check_shards(num_nodes, num_shards)
    mean = num_nodes / num_shards
    low = min(num_nodes // num_shards, math.ceil((1 - slack) * mean))
    high = max(-(-num_nodes // num_shards), math.floor((1 + slack) * mean))
    return max(low, 1), high


def check_shards(num_nodes: int, num_shards: int) -> None:
    """Refuse more shards than nodes."""
    check_integer('num_nodes', num_nodes)
    check_integer('num_shards', num_shards, 1)
    if num_nodes < num_shards:
        raise ValueError(
            f"'num_shards' needs to be at most {num_nodes}, the number of "
            f'training nodes (got {num_shards})'
        )


def check_partition(
    shard: Tensor, num_shards: int, num_nodes: int | None = None
) -> Tensor:
    """Raise an error if a node has no shard, or a shard no node.

    Args:
        shard (Tensor): int64, ``[num_nodes]``: the shard of each node.
        num_shards (int): the number of shards.
        num_nodes (int, optional): the number of training nodes, if known.

    Returns:
        Tensor: the number of nodes of each shard, int64, ``[num_shards]``.
    """
    size: int | str = 'num_nodes'
    if num_nodes is not None:
        size = check_integer('num_nodes', num_nodes)
    check_tensor('shard', shard, torch.int64, (size,))
    check_shards(shard.numel(), num_shards)
    wrong = ((shard < 0) | (shard >= num_shards)).nonzero().view(-1)
    if wrong.numel():
        raise ValueError(
            f"'shard' needs to be in [0, {num_shards}) for every training "
            f'node (got {int(shard[wrong[0]])} for the one at '
            f'{int(wrong[0])})'
        )
    sizes = shard_sizes(shard, num_shards)
    empty = (sizes == 0).nonzero().view(-1).tolist()
    if empty:
        raise ValueError(
            f"'shard' needs to give every shard a node (shards {empty[:10]} "
            'are empty)'
        )
    return sizes


def partition_from_lists(shards: Sequence[Tensor], index: Tensor) -> Tensor:
    """Make a partition of a list of node ids per shard.

    Args:
        shards (list[Tensor]): the ids of the nodes of every shard: every
            training node once, and no other.
        index (Tensor): int64: the ids of the training nodes.

    Returns:
        Tensor: int64, ``[num_nodes]``, in the order of :obj:`index`.
    """
    check_tensor('index', index, torch.int64, ('num_nodes',))
    check_distinct('index', index)
    check_instance('shards', shards, list, tuple)
    lists = [as_ids('shards', nodes) for nodes in shards]
    for each in lists:
        check_tensor('shards', each, torch.int64, ('num_ids',))
    named = torch.cat([index[:0].cpu(), *(each.cpu() for each in lists)])
    ids, count = named.unique(return_counts=True)
    for what, wrong in (
        ('named twice', ids[count > 1]),
        ('left out', index[~torch.isin(index.cpu(), ids)]),
        ('no training node', ids[~torch.isin(ids, index.cpu())]),
    ):
        if wrong.numel():
            raise ValueError(
                "'shards' needs to name every training node once, and no "
                f'other (node {int(wrong[0])} is {what})'
            )
    sizes = torch.tensor([each.numel() for each in lists])
    home = torch.arange(len(lists)).repeat_interleave(sizes)
    made = home[named.argsort()][index.cpu().argsort().argsort()]
    check_partition(made, len(lists), index.numel())
    return made.to(index)


@PARTITIONS.builtin('random', sees='the number of training nodes')
def random_partition(
    num_nodes: int, num_shards: int, *, seed: int | None = None
) -> Tensor:
    """Split nodes into equal shards at random, as in SISA.

    (`"Machine Unlearning" <https://arxiv.org/abs/1912.03817>`_, Bourtoule et
    al. 2021.) Sizes differ by at most one. Returns the shard of each node,
    int64, ``[num_nodes]``.

    Args:
        num_nodes (int): the number of training nodes.
        num_shards (int): the number of shards.
        seed (int, optional): the seed; by default torch's generator draws one.
    """
    check_shards(num_nodes, num_shards)
    generator = rng.generator(seed)
    order = torch.randperm(num_nodes, generator=generator)
    # The choice of the larger shards is random too.
    numbers = torch.randperm(num_shards, generator=generator)
    return numbers[order % num_shards]


@PARTITIONS.builtin('hash', sees='the id of the node alone')
@validated
def hash_partition(
    n_id: Annotated[Tensor, Array(torch.int64, 'num_nodes')],
    num_shards: int,
    *,
    seed: int | None = None,
    allow_empty: bool = False,
) -> Tensor:
    r"""Assign a shard to each node by a keyed hash of its id alone.

    Adding or removing a node changes no other node's shard. Sizes vary by
    about :math:`\sqrt{N/S}` for :math:`N` nodes in :math:`S` shards. The hash
    is equidistributed, but not secret: use another method if users choose
    their own ids. Returns the shard of each node, int64, ``[num_nodes]``.

    Args:
        n_id (Tensor): int64, ``[num_nodes]``: ids of the training nodes, which
            they keep when others are removed.
        num_shards (int): the number of shards.
        seed (int, optional): the key; by default from the operating system.
        allow_empty (bool): whether shards may get no node.
            (default: :obj:`False`)
    """
    check_shards(num_shards if allow_empty else n_id.numel(), num_shards)
    check_shards(n_id.numel(), 1)
    if int(n_id.min()) < 0 or n_id.unique().numel() < n_id.numel():
        raise ValueError(
            "'n_id' needs to hold different non-negative ids (the smallest "
            f'is {int(n_id.min())}, {n_id.unique().numel()} of '
            f'{n_id.numel()} are different)'
        )
    shard = rng.derive_each(rng.resolve_secret(seed), n_id) % num_shards
    sizes = shard_sizes(shard, num_shards)
    if not allow_empty and int(sizes.min()) == 0:
        raise ValueError(
            f"'num_shards' needs to be smaller: {n_id.numel()} nodes leave "
            f'one of {num_shards} shards empty under this seed'
        )
    return shard


def round_partition(score: Tensor, *, slack: float = 0.1) -> Tensor:
    """Round scores greedily to balanced shards, none of them empty.

    From the largest score to the smallest, a node is put into the first shard
    that has space for it. Then shards that are too small take the nodes that
    lose least by moving.

    Args:
        score (Tensor): ``[num_nodes, num_shards]``, finite: the larger the
            better. Of equal scores the earlier node comes first, and of one
            node's the earlier shard.
        slack (float): how far sizes may differ from their mean, relative to
            it. (default: :obj:`0.1`)
    """
    shape = ('num_nodes', 'num_shards')
    check_tensor('score', score, None, shape, finite=True)
    num_nodes, num_shards = score.shape
    low, high = shard_limits(num_nodes, num_shards, slack)
    value, wish = score.sort(dim=1, descending=True, stable=True)
    nodes = torch.arange(num_nodes, device=score.device)
    asked = torch.zeros_like(nodes)
    # Deferred acceptance: every node asks at the best shard that has not
    # refused it, and each shard keeps the best that ask. As both rank by the
    # same scores, the one stable matching is the greedy assignment.
    while True:
        shard = wish[nodes, asked]
        refused = _rank(shard, -value[nodes, asked], num_shards) >= high
        if not bool(refused.any()):
            break
        asked = asked + refused.long()
    sizes = shard_sizes(shard, num_shards)
    for poor in (sizes < low).nonzero().view(-1).tolist():
        loss = score[nodes, shard] - score[:, poor]
        # The nodes that other shards can spare, the cheapest first.
        spare = (sizes - low).clamp(min=0)[shard]
        spare[shard == poor] = 0
        free = (_rank(shard, loss, num_shards) < spare).nonzero().view(-1)
        cheap = loss[free].sort(stable=True).indices
        shard[free[cheap[: low - int(sizes[poor])]]] = poor
        sizes = shard_sizes(shard, num_shards)
    return shard


def _rank(group: Tensor, cost: Tensor, num_groups: int) -> Tensor:
    # The place of every item in its group, the smallest cost first.
    order = cost.sort(stable=True).indices
    order = order[group[order].sort(stable=True).indices]
    start = pointer(group.bincount(minlength=num_groups))
    rank = torch.empty_like(group)
    places = torch.arange(group.numel(), device=group.device)
    rank[order] = places - start[group[order]]
    return rank


@PARTITIONS.builtin('metis', sees='all edges between training nodes')
def metis_partition(
    edge_index: Tensor, num_nodes: int, num_shards: int, *, slack: float = 0.1
) -> Tensor:
    """Partition nodes by METIS, with few edges between shards.

    (`"A Fast and High Quality Multilevel Scheme for Partitioning Irregular
    Graphs" <https://doi.org/10.1137/S1064827595287997>`_, Karypis and Kumar
    1998.) Nodes of parts that are empty or too large move to the shard of most
    of their neighbours. Such shards have few classes each, and their models
    vote badly. Returns the shard of each node, int64, ``[num_nodes]``.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph;
            directions, loops and repetitions do not matter.
        num_nodes (int): the number of training nodes.
        num_shards (int): the number of shards.
        slack (float): how far sizes may differ from their mean, relative to
            it. (default: :obj:`0.1`)

    Raises:
        ImportError: without ``pymetis``.
    """
    shard_limits(num_nodes, num_shards, slack)
    edge_index = _simple(edge_index, num_nodes)
    if num_shards == 1:
        return edge_index.new_zeros(num_nodes)
    try:
        import pymetis
    except ImportError:
        raise ImportError(
            "'metis_partition' needs METIS: pip install pymetis"
        ) from None
    row, col = edge_index
    ptr = pointer(row.bincount(minlength=num_nodes))
    _, part = pymetis.part_graph(
        num_shards,
        pymetis.CSRAdjacency(ptr.tolist(), col.tolist()),
        options=pymetis.Options(seed=0),
    )
    cluster = torch.tensor(part, dtype=torch.int64).to(row)
    # A bonus for staying, above the score of any number of neighbours.
    score = _neighbours(edge_index, cluster, num_nodes, num_shards)
    score = score / (score.sum(1, keepdim=True) + 1)
    score[torch.arange(num_nodes, device=row.device), cluster] += 1
    return round_partition(score, slack=slack)


@PARTITIONS.builtin('blpa', sees='all edges between training nodes')
@validated
def blpa(
    edge_index: Tensor,
    num_nodes: Count,
    num_shards: int,
    *,
    slack: Slack = 0.095,
    max_rounds: Natural = 100,
    seed: int | None = None,
) -> Tensor:
    """Partition nodes by balanced label propagation, GraphEraser's BLPA.

    (`"Graph Unlearning" <https://arxiv.org/abs/2103.14991>`_, Chen et al.
    2022.) Starts from :func:`random_partition`. In each round nodes move to
    the shard of most of their neighbours, those with the most first, if there
    is space. It ends when no node moves. Nodes without neighbours stay.
    Returns the shard of each node, int64, ``[num_nodes]``.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph;
            directions, loops and repetitions do not matter.
        num_nodes (int): the number of training nodes.
        num_shards (int): the number of shards.
        slack (float): how far sizes may differ from their mean, relative to
            it. (default: :obj:`0.095`)
        max_rounds (int): the most rounds. (default: :obj:`100`)
        seed (int, optional): the seed of the random partition; by default
            torch's generator draws one.
    """
    limits = shard_limits(num_nodes, num_shards, slack)
    edge_index = _simple(edge_index, num_nodes)
    seed = rng.resolve(seed)
    start = random_partition(num_nodes, num_shards, seed=rng.derive(seed, 0))
    shard = start.to(edge_index.device)
    nodes = torch.arange(num_nodes, device=shard.device)
    for step in Bar(range(max_rounds), desc='blpa'):
        count = _neighbours(edge_index, shard, num_nodes, num_shards)
        most = count.max(1).values
        draw = torch.rand(
            count.shape, generator=rng.generator(rng.derive(seed, 1, step))
        ).to(shard.device)
        draw[count < most.unsqueeze(1)] = -1
        content = count[nodes, shard] == most
        order = most.sort(descending=True, stable=True).indices
        sizes = shard_sizes(shard, num_shards)
        moved = _moved(
            shard.tolist(),
            order[~content[order]].tolist(),
            draw.argmax(1).tolist(),
            sizes.tolist(),
            limits,
        )
        before, shard = shard, torch.tensor(moved, device=shard.device)
        if torch.equal(before, shard):
            break
    return shard


def _moved(
    shard: list[int],
    order: list[int],
    wanted: list[int],
    sizes: list[int],
    limits: tuple[int, int],
) -> list[int]:
    # One round of BLPA: moves in order, and then moves into the freed places.
    low, high = limits
    waiting: list[deque[int]] = [deque() for _ in sizes]
    for node in order:
        while True:
            source, target = shard[node], wanted[node]
            if sizes[target] >= high or sizes[source] <= low:
                waiting[target].append(node)
                break
            shard[node] = target
            sizes[source] -= 1
            sizes[target] += 1
            if not waiting[source]:
                break
            node = waiting[source].popleft()
    return shard


@PARTITIONS.builtin(
    'bekm', sees='edges, features and labels of all training nodes'
)
@validated
def bekm(
    embedding: Tensor,
    num_shards: int,
    *,
    slack: Slack = 0.095,
    max_rounds: Count = 20,
    seed: int | None = None,
) -> Tensor:
    """Partition nodes by balanced :math:`k`-means, GraphEraser's BEKM.

    (`"Graph Unlearning" <https://arxiv.org/abs/2103.14991>`_, Chen et al.
    2022.) Nodes are put into shards by their distances to centroids, which
    then become the means of their shards, until no node moves. GraphEraser's
    embeddings are the logits of a GNN trained on the whole training graph
    (:func:`pyg_trust.nn.partition_embedding`). Returns the shard of each node,
    int64, ``[num_nodes]``.

    Args:
        embedding (Tensor): ``[num_nodes, channels]``, finite.
        num_shards (int): the number of shards.
        slack (float): how far sizes may differ from their mean, relative to
            it. (default: :obj:`0.095`)
        max_rounds (int): the most rounds. (default: :obj:`20`)
        seed (int, optional): the seed of the first centroids, which are nodes;
            by default torch's generator draws one.
    """
    shape = ('num_nodes', 'channels')
    check_tensor('embedding', embedding, None, shape, finite=True)
    embedding, num_nodes = embedding.detach(), embedding.size(0)
    shard_limits(num_nodes, num_shards, slack)
    first = torch.randperm(num_nodes, generator=rng.generator(seed))
    centroid = embedding[first[:num_shards].to(embedding.device)]
    shard = first.new_empty(0)
    for _ in Bar(range(max_rounds), desc='bekm'):
        distance = torch.cdist(
            embedding, centroid, compute_mode='donot_use_mm_for_euclid_dist'
        )
        before, shard = shard, round_partition(-distance, slack=slack)
        if torch.equal(before.to(shard), shard):
            break
        sizes = shard_sizes(shard, num_shards).to(embedding.dtype)
        centroid = torch.zeros_like(centroid).index_add_(0, shard, embedding)
        centroid /= sizes.unsqueeze(1)
    return shard


class PartitionLosses(NamedTuple):
    """Three objectives of a soft partition, each to be minimised."""

    time: Tensor
    """The expected cost of retraining."""
    struct: Tensor
    """The normalised cut."""
    sem: Tensor
    """Minus the mean label entropy."""


@validated
def partition_losses(
    assign: Tensor, edge_index: Tensor, y: Tensor, num_classes: Count
) -> PartitionLosses:
    r"""Compute GraphRevoker's partition objectives (Zhang et al. 2024).

    With the soft assignment :math:`P` and its expected numbers of nodes
    :math:`n_i = \sum_u P_{ui}`, of edges :math:`e_i = \sum_{(u,v)} P_{ui}
    P_{vi}`, of edge ends :math:`\text{vol}_i = \sum_u d_u P_{ui}` and its
    label laws :math:`q_i = (P^\top Y)_i / n_i`,

    .. math::
        L_{\text{time}} = \frac1N \sum_i n_i e_i, \quad
        L_{\text{struct}} = \sum_i \frac{\text{vol}_i - e_i}{\text{vol}_i},
        \quad
        L_{\text{sem}} = - \frac1S \sum_i H(q_i)

    The paper prints the last with a plus, against its own text.

    Args:
        assign (Tensor): :math:`P`, ``[num_nodes, num_shards]``, rows summing
            to one.
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph,
            every edge in both directions.
        y (Tensor): the classes of the training nodes, int64.
        num_classes (int): the number of classes.
    """
    check_tensor('assign', assign, None, ('num_nodes', 'num_shards'))
    num_nodes, num_shards = assign.shape
    check_edges(edge_index, num_nodes)
    check_tensor('y', y, torch.int64, (num_nodes,))
    check_range('y', y, num_classes, 'the classes')
    row, col = edge_index
    nodes = assign.sum(0)
    edges = (assign[row] * assign[col]).sum(0)
    degree = row.bincount(minlength=num_nodes).to(assign.dtype)
    volume = degree @ assign
    labels = assign.new_zeros(num_classes, num_shards).index_add(0, y, assign)
    # Finite gradients for a shard without a node too.
    least = torch.finfo(assign.dtype)
    law = labels / nodes.clamp(min=least.eps)
    entropy = -(law * law.clamp(min=least.tiny).log()).sum(0)
    return PartitionLosses(
        time=(nodes * edges).sum() / num_nodes,
        struct=((volume - edges) / volume.clamp(min=least.eps)).sum(),
        sem=-entropy.mean(),
    )


def check_edges(
    edge_index: Tensor,
    num_nodes: int,
    what: str = 'the training nodes in their order',
) -> None:
    """Refuse edges with ends outside of the graph."""
    check_tensor('edge_index', edge_index, torch.int64, (2, 'num_edges'))
    check_range('edge_index', edge_index, num_nodes, what)


def _simple(edge_index: Tensor, num_nodes: int) -> Tensor:
    # Edges in both directions, without loops, each once, sorted.
    check_edges(edge_index, num_nodes)
    edge_index, _ = remove_self_loops(edge_index)
    return to_undirected(edge_index, num_nodes=num_nodes)


def _neighbours(
    edge_index: Tensor, shard: Tensor, num_nodes: int, num_shards: int
) -> Tensor:
    # The number of neighbours of each node in each shard.
    row, col = edge_index
    key = row * num_shards + shard[col]
    count = key.bincount(minlength=num_nodes * num_shards)
    return count.view(num_nodes, num_shards)
