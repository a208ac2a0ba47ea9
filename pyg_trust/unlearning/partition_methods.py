"""Partitions by edges, features and labels, and their quality."""

from collections import deque
from typing import Annotated, NamedTuple

import torch
import torch_geometric.typing
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Natural,
    Number,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.graph.ragged import pointer
from pyg_trust.unlearning.partition import (
    PARTITIONS,
    check_edges,
    check_partition,
    random_partition,
    shard_limits,
    shard_sizes,
    simple_edges,
)


def round_partition(score: Tensor, *, slack: float = 0.1) -> Tensor:
    r"""Round scores greedily to balanced shards, none of them empty.

    Pairs of a node and a shard are gone through from the largest score to the
    smallest, and a node goes to the first shard that has room for it, up to
    the largest size of :func:`shard_limits`. A bare argmax leaves most shards
    empty where scores are close to uniform. Then every shard below the
    smallest size takes the nodes that lose least by moving, from shards above
    it.

    The result is the unique stable matching of nodes and places, by deferred
    acceptance: in each round every node asks at the best shard that has not
    refused it, and each shard keeps the best that ask. As both sides rank by
    the same scores, it is the greedy assignment. Memory: :math:`O(N S)`.

    Args:
        score (Tensor): ``[num_nodes, num_shards]``, finite: the larger the
            better. Of equal scores the earlier node comes first, and of one
            node's the earlier shard.
        slack (float): as in :func:`shard_limits`. (default: :obj:`0.1`)

    Returns:
        Tensor: int64, ``[num_nodes]``.

    Raises:
        ValueError: as :func:`shard_limits`, or if a score is not finite.
    """
    shape = ('num_nodes', 'num_shards')
    check_tensor('score', score, None, shape, finite=True)
    num_nodes, num_shards = score.shape
    low, high = shard_limits(num_nodes, num_shards, slack)
    value, wish = score.sort(dim=1, descending=True, stable=True)
    nodes = torch.arange(num_nodes, device=score.device)
    asked = torch.zeros_like(nodes)
    while True:
        shard = wish[nodes, asked]
        here = value[nodes, asked]
        refused = _rank_within(shard, -here, num_shards) >= high
        if not bool(refused.any()):
            break
        asked = asked + refused.long()
    sizes = shard_sizes(shard, num_shards)
    for poor in (sizes < low).nonzero().view(-1).tolist():
        loss = score[nodes, shard] - score[:, poor]
        # The nodes that other shards can spare, the cheapest first.
        spare = (sizes - low).clamp(min=0)[shard]
        spare[shard == poor] = 0
        open_ = (_rank_within(shard, loss, num_shards) < spare).nonzero()
        open_ = open_.view(-1)
        cheap = loss[open_].sort(stable=True).indices
        moved = open_[cheap[: low - int(sizes[poor])]]
        shard[moved] = poor
        sizes = shard_sizes(shard, num_shards)
    return shard


def _rank_within(group: Tensor, cost: Tensor, num_groups: int) -> Tensor:
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
    edge_index: Tensor,
    num_nodes: int,
    num_shards: int,
    *,
    slack: float = 0.1,
) -> Tensor:
    r"""Partition with few edges between shards, by METIS.

    (`"A Fast and High Quality Multilevel Scheme for Partitioning Irregular
    Graphs" <https://doi.org/10.1137/S1064827595287997>`_, Karypis and Kumar
    1998.) Through pyg-lib, torch-sparse or pymetis, whichever is there first.
    METIS itself may leave parts empty or too large; such nodes move to where
    they have most neighbours (:func:`round_partition`).

    Beware: shards without edges between them have few classes each, and
    their sub-models vote badly. Memory: :math:`O(|E| + N S)`.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph;
            directions, loops and repetitions do not matter.
        num_nodes (int): the number of training nodes.
        num_shards (int): the number of shards.
        slack (float): as in :func:`shard_limits`. (default: :obj:`0.1`)

    Returns:
        Tensor: int64, ``[num_nodes]``.

    Raises:
        ImportError: if there is no METIS.
        TypeError, ValueError: as :func:`check_shards`, or if an edge is out
            of range.
    """
    shard_limits(num_nodes, num_shards, slack)
    edge_index = simple_edges(edge_index, num_nodes)
    row, col = edge_index
    ptr = pointer(row.bincount(minlength=num_nodes))
    cluster = _metis(ptr.cpu(), col.cpu(), num_shards).to(row.device)
    # A bonus for staying, above the score of any number of neighbours.
    score = _neighbours(edge_index, cluster, num_nodes, num_shards)
    score = score / (score.sum(1, keepdim=True) + 1)
    score[torch.arange(num_nodes, device=row.device), cluster] += 1
    return round_partition(score, slack=slack)


def _metis(ptr: Tensor, col: Tensor, num_parts: int) -> Tensor:
    if num_parts == 1:
        return ptr.new_zeros(ptr.numel() - 1)
    if torch_geometric.typing.WITH_METIS:
        return torch_geometric.typing.pyg_lib.partition.metis(
            ptr, col, num_parts, recursive=False
        )
    if torch_geometric.typing.WITH_TORCH_SPARSE:
        try:
            return torch.ops.torch_sparse.partition(
                ptr, col, None, num_parts, False
            )
        except (AttributeError, RuntimeError):
            pass  # built without METIS
    try:
        import pymetis
    except ImportError:
        raise ImportError(
            "'metis_partition' needs METIS: install pyg-lib, pymetis, or "
            'torch-sparse built with METIS'
        ) from None
    options = pymetis.Options(seed=0)
    csr = pymetis.CSRAdjacency(ptr.tolist(), col.tolist())
    result = pymetis.part_graph(num_parts, csr, options=options)
    return torch.tensor(result[1], dtype=torch.int64)


@PARTITIONS.builtin('blpa', sees='all edges between training nodes')
@validated
def blpa(
    edge_index: Tensor,
    num_nodes: Count,
    num_shards: int,
    *,
    slack: Annotated[float, Number(0, 1, 'low')] = 0.095,
    max_rounds: Natural = 100,
    seed: int | None = None,
    progress_bar: bool | None = None,
) -> Tensor:
    r"""Balanced label propagation, GraphEraser's BLPA.

    (`"Graph Unlearning" <https://arxiv.org/abs/2103.14991>`_, Chen et al.
    2022.) Starts from :func:`random_partition`. In each round every node wants
    the shard of most of its neighbours: its own if that is among them, else
    one of them at random. Those that want another go in the order of how many
    neighbours they have there; a node moves if the shard has room, else it
    waits at it until somebody leaves. It ends when nobody moves.

    Two things differ from the public code: a node without neighbours stays
    where it is (there it wants shard 0), and no shard falls below the
    smallest size of :func:`shard_limits`. Memory: :math:`O(|E| + N S)`.

    Args:
        edge_index (Tensor): as in :func:`metis_partition`.
        num_nodes (int): the number of training nodes.
        num_shards (int): the number of shards.
        slack (float): as in :func:`shard_limits`. (default: :obj:`0.095`)
        max_rounds (int): the most rounds. (default: :obj:`100`)
        seed (int, optional): the seed. (default: :obj:`None`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        Tensor: int64, ``[num_nodes]``.

    Raises:
        TypeError, ValueError: as :func:`check_shards`, or if an edge is out
            of range.
    """
    low, high = shard_limits(num_nodes, num_shards, slack)
    edge_index = simple_edges(edge_index, num_nodes)
    seed = rng.resolve(seed)
    start = random_partition(num_nodes, num_shards, seed=rng.derive(seed, 0))
    shard = start.to(edge_index.device)
    nodes = torch.arange(num_nodes, device=shard.device)
    rounds = range(max_rounds)
    for step in Bar(rounds, progress_bar, desc='blpa'):
        count = _neighbours(edge_index, shard, num_nodes, num_shards)
        most = count.max(1).values
        draw = torch.rand(
            count.shape, generator=rng.generator(rng.derive(seed, 1, step))
        ).to(shard.device)
        draw[count < most.unsqueeze(1)] = -1
        wanted = draw.argmax(1)
        content = count[nodes, shard] == most
        order = most.sort(descending=True, stable=True).indices
        order = order[~content[order]]
        moved = _move(
            shard.tolist(),
            order.tolist(),
            wanted.tolist(),
            shard_sizes(shard, num_shards).tolist(),
            (low, high),
        )
        after = torch.tensor(moved, device=shard.device)
        if torch.equal(after, shard):
            break
        shard = after
    return shard


def _move(
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
    slack: Annotated[float, Number(0, 1, 'low')] = 0.095,
    max_rounds: Count = 20,
    seed: int | None = None,
    progress_bar: bool | None = None,
) -> Tensor:
    r"""Balanced :math:`k`-means of embeddings, GraphEraser's BEKM.

    (`"Graph Unlearning" <https://arxiv.org/abs/2103.14991>`_, Chen et al.
    2022.) In each round the pairs of a node and a centroid are gone through
    from the closest to the farthest, and a node goes to the first shard with
    room (:func:`round_partition`); then centroids become means. It ends when
    no node moves. GraphEraser's embeddings are the logits of a GNN trained on
    the whole training graph (:func:`pyg_trust.nn.partition_embedding`).

    Beware: logits cluster by class, and so do the shards. Memory: :math:`O(N
    S)`.

    Args:
        embedding (Tensor): ``[num_nodes, channels]``, finite.
        num_shards (int): the number of shards.
        slack (float): as in :func:`shard_limits`. (default: :obj:`0.095`)
        max_rounds (int): the most rounds. (default: :obj:`20`)
        seed (int, optional): the seed: of the nodes that the centroids start
            from. (default: :obj:`None`)
        progress_bar (bool, optional): by default in terminals, after 2 s.

    Returns:
        Tensor: int64, ``[num_nodes]``.

    Raises:
        TypeError, ValueError: as :func:`round_partition`.
    """
    shape = ('num_nodes', 'channels')
    check_tensor('embedding', embedding, None, shape, finite=True)
    num_nodes = embedding.size(0)
    shard_limits(num_nodes, num_shards, slack)
    embedding = embedding.detach()
    generator = rng.generator(seed)
    first = torch.randperm(num_nodes, generator=generator)[:num_shards]
    centroid = embedding[first.to(embedding.device)]
    shard = None
    rounds = range(max_rounds)
    for _ in Bar(rounds, progress_bar, desc='bekm'):
        distance = torch.cdist(
            embedding, centroid, compute_mode='donot_use_mm_for_euclid_dist'
        )
        after = round_partition(-distance, slack=slack)
        if shard is not None and torch.equal(after, shard):
            break
        shard = after
        sizes = shard_sizes(shard, num_shards).to(embedding.dtype)
        centroid = torch.zeros_like(centroid).index_add_(0, shard, embedding)
        centroid /= sizes.unsqueeze(1)
    assert shard is not None
    return shard


class PartitionLosses(NamedTuple):
    """Three objectives of a soft partition, each to be minimised.

    Args:
        time (Tensor): the expected cost of retraining.
        struct (Tensor): the normalised cut.
        sem (Tensor): minus the mean label entropy.
    """

    time: Tensor
    struct: Tensor
    sem: Tensor


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

    (equations 5, 6, 7). The paper minimises *plus* the entropy, which drives
    every shard to a single class; the aim of its text, and its ablation,
    is a high entropy, hence the minus. Shards without edge ends cut nothing.
    Time and memory: :math:`O(|E| S)`.

    Args:
        assign (Tensor): :math:`P`, ``[num_nodes, num_shards]``, rows summing
            to one.
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph,
            every edge in both directions.
        y (Tensor): the classes of the training nodes, int64.
        num_classes (int): the number of classes.

    Raises:
        ValueError: if :obj:`y` or :obj:`edge_index` does not fit.
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
    labels = assign.new_zeros(num_classes, num_shards)
    labels = labels.index_add(0, y, assign)
    # Finite gradients for a shard without a node too.
    least = torch.finfo(assign.dtype)
    law = labels / nodes.clamp(min=least.eps)
    entropy = -(law * law.clamp(min=least.tiny).log()).sum(0)
    return PartitionLosses(
        time=(nodes * edges).sum() / num_nodes,
        struct=((volume - edges) / volume.clamp(min=least.eps)).sum(),
        sem=-entropy.mean(),
    )


class PartitionQuality(NamedTuple):
    """Balance, edge cut and label entropy of a partition.

    Args:
        balance (float): the largest shard over the mean.
        cut (float): the share of edges between shards.
        entropy (float): the mean entropy of the shards' labels, in nats.
    """

    balance: float
    cut: float
    entropy: float


def partition_quality(
    shard: Tensor, num_shards: int, edge_index: Tensor, y: Tensor
) -> PartitionQuality:
    """Measure a partition of the training graph.

    Args:
        shard (Tensor): int64, ``[num_nodes]``: the partition.
        num_shards (int): the number of shards.
        edge_index (Tensor): int64, ``[2, num_edges]``: the training graph.
        y (Tensor): the classes of the training nodes, int64.

    Raises:
        TypeError, ValueError: as :func:`check_partition`.
    """
    sizes = check_partition(shard, num_shards)
    check_edges(edge_index, shard.numel())
    check_tensor('y', y, torch.int64, shard.shape)
    row, col = edge_index
    cut = (shard[row] != shard[col]).double().mean() if row.numel() else 0.0
    hard = torch.nn.functional.one_hot(shard, num_shards).double()
    losses = partition_losses(hard, edge_index, y, int(y.max()) + 1)
    return PartitionQuality(
        balance=float(sizes.max()) * num_shards / shard.numel(),
        cut=float(cut),
        entropy=-float(losses.sem),
    )


def _neighbours(
    edge_index: Tensor, shard: Tensor, num_nodes: int, num_shards: int
) -> Tensor:
    # The number of neighbours of each node in each shard.
    row, col = edge_index
    key = row * num_shards + shard[col]
    count = key.bincount(minlength=num_nodes * num_shards)
    return count.view(num_nodes, num_shards)
