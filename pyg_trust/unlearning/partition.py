r"""Partitions of the training nodes into shards.

A partition is an int64 tensor ``shard`` of ``[num_nodes]``: the shard, in
:math:`0, \ldots, S-1`, of every training node, in the order in which the
training nodes are given. Graphs are those of the training nodes alone, whose
nodes are numbered in that order.

The data that a partition reads decide the promise of sharded unlearning. The
shard of a node by :func:`hash_partition` is a function of a key and of the
node's own name: to remove a node leaves the partition that would have been
drawn without it. :func:`random_partition` has seen how many training nodes
there are, and nothing else; all others have seen edges, features or labels of
*every* training node, so that unlearning is exact **given the partition**.

.. math::
    \text{cap} = \max\{ \lceil N/S \rceil, \lfloor (1 + \text{slack}) N/S
    \rfloor \}

is the size that no shard of a balanced partition exceeds
(:func:`shard_limits`); GraphEraser's :math:`\lceil N/S + \delta (N - N/S)
\rceil` has a :obj:`slack` of :math:`\delta (S - 1)`, 0.095 for its
:math:`\delta = 0.005` and :math:`S = 20`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch_geometric.utils import remove_self_loops, subgraph, to_undirected

from pyg_trust import rng
from pyg_trust._checks import (
    Array,
    Count,
    Natural,
    Number,
    check_distinct,
    check_dtype,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.registries import Registry

#: Functions from what their first arguments name (``num_nodes``, ``n_id``,
#: ``edge_index``, ``x``, ``y`` or ``embedding``, of the training nodes) and
#: ``num_shards`` to a partition; ``sees`` says what the shard of a node
#: depends on, beside the seed.
PARTITIONS: Registry[Callable[..., Tensor]] = Registry(
    'partition', facts=('sees',)
)


@validated
def training_graph(
    edge_index: Tensor, index: Tensor, num_nodes: Natural
) -> Tensor:
    """Return the subgraph of the training nodes, renumbered.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``: the whole graph.
        index (Tensor): int64: the training nodes, each once.
        num_nodes (int): the number of nodes of the whole graph.

    Returns:
        Tensor: int64, ``[2, *]``: the edges between training nodes, numbered
        as in :obj:`index`; each in both directions, once, without loops.
    """
    check_edges(edge_index, num_nodes, 'the nodes')
    check_tensor('index', index, torch.int64, ('num_train',))
    check_range('index', index, num_nodes, 'the nodes')
    check_distinct('index', index)
    inner, _ = subgraph(
        index, edge_index, relabel_nodes=True, num_nodes=num_nodes
    )
    return simple_edges(inner, index.numel())


@validated
def shard_sizes(shard: Tensor, num_shards: Count) -> Tensor:
    """Count the nodes of each shard: int64, ``[num_shards]``.

    Args:
        shard (Tensor): the partition; negative entries are in no shard.
        num_shards (int): the number of shards.
    """
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
    num_nodes: Count,
    num_shards: int,
    slack: Annotated[float, Number(0, 1, 'low')] = 0.1,
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

    Raises:
        TypeError, ValueError: if an argument is out of range, or there are
            fewer nodes than shards.
    """
    check_shards(num_nodes, num_shards)
    mean = num_nodes / num_shards
    low = min(num_nodes // num_shards, math.ceil((1 - slack) * mean))
    high = max(-(-num_nodes // num_shards), math.floor((1 + slack) * mean))
    return max(low, 1), high


def check_shards(num_nodes: int, num_shards: int) -> None:
    """Refuse more shards than nodes.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if there is no shard, or fewer nodes than shards.
    """
    for name, value in (('num_shards', num_shards), ('num_nodes', num_nodes)):
        check_integer(name, value)
    check_integer('num_shards', num_shards, 1)
    if num_nodes < num_shards:
        raise ValueError(
            f"'num_shards' needs to be at most {num_nodes}, the number of "
            f'training nodes (got {num_shards})'
        )


def check_partition(
    shard: Tensor, num_shards: int, num_nodes: int | None = None
) -> Tensor:
    """Refuse a node without a shard, or a shard without a node.

    Args:
        shard (Tensor): int64, ``[num_nodes]``: the partition.
        num_shards (int): the number of shards.
        num_nodes (int, optional): the number of training nodes, if known.
            (default: :obj:`None`)

    Returns:
        Tensor: the sizes of the shards.

    Raises:
        TypeError: if :obj:`shard` is no int64 tensor.
        ValueError: if a node is left out, a shard is unknown, or one is empty.
    """
    check_dtype('shard', shard, torch.int64)
    if num_nodes is None:
        num_nodes = shard.numel()
    if shard.shape != (num_nodes,):
        raise ValueError(
            f"'shard' needs to have the shape [{num_nodes}], one entry per "
            f'training node (got {list(shard.shape)})'
        )
    check_shards(num_nodes, num_shards)
    low, high = int(shard.min()), int(shard.max())
    if low < 0 or high >= num_shards:
        wrong = int(((shard < 0) | (shard >= num_shards)).nonzero()[0])
        raise ValueError(
            f"'shard' needs to be in [0, {num_shards}) for every training "
            f'node (got {int(shard[wrong])} for the one at {wrong})'
        )
    sizes = shard_sizes(shard, num_shards)
    if bool((sizes == 0).any()):
        empty = (sizes == 0).nonzero().view(-1).tolist()
        raise ValueError(
            f"'shard' needs to give every shard a node (shards {empty[:10]} "
            'are empty)'
        )
    return sizes


def partition_from_lists(shards: Sequence[Tensor], index: Tensor) -> Tensor:
    """Make a partition of a list of node ids per shard.

    Args:
        shards (list[Tensor]): the ids of the nodes of every shard.
        index (Tensor): int64: the ids of the training nodes.

    Returns:
        Tensor: int64, ``[num_nodes]``, in the order of :obj:`index`.

    Raises:
        TypeError: if an id is no integer.
        ValueError: if a training node is left out or named twice, or another
            node is named, or a shard is empty.
    """
    check_tensor('index', index, torch.int64, ('num_nodes',))
    check_distinct('index', index)
    try:
        named = [torch.as_tensor(nodes).view(-1) for nodes in shards]
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"'shards' needs to be a list of node ids per shard ({error})"
        ) from None
    if not named:
        raise ValueError("'shards' needs to hold at least one shard")
    for nodes in named:
        wrong = nodes.dtype == torch.bool or nodes.is_floating_point()
        # An empty list makes a float tensor; it is refused as empty below.
        if wrong and nodes.numel() > 0:
            raise TypeError(
                f"'shards' needs to hold integers (got {nodes.dtype})"
            )
    named = [nodes.to(index) for nodes in named]
    count = torch.tensor([len(nodes) for nodes in named]).to(index)
    which = torch.arange(len(named)).to(index).repeat_interleave(count)
    nodes, order = torch.cat(named).sort()
    twice = nodes[1:][nodes.diff() == 0]
    if twice.numel() > 0:
        raise ValueError(
            "'shards' needs to name every training node once (node "
            f'{int(twice[0])} is named twice)'
        )
    known = torch.isin(nodes, index)
    if not bool(known.all()):
        raise ValueError(
            "'shards' needs to name training nodes only "
            f'(got node {int(nodes[~known][0])})'
        )
    if nodes.numel() < index.numel():
        missing = index[~torch.isin(index, nodes)]
        raise ValueError(
            "'shards' needs to name every training node once (node "
            f'{int(missing[0])} is left out)'
        )
    shard = which[order][torch.searchsorted(nodes, index)]
    check_partition(shard, len(shards), index.numel())
    return shard


@PARTITIONS.builtin('random', sees='the number of training nodes')
def random_partition(
    num_nodes: int, num_shards: int, *, seed: int | None = None
) -> Tensor:
    r"""Split nodes into equal shards at random, as in SISA.

    (`"Machine Unlearning" <https://arxiv.org/abs/1912.03817>`_, Bourtoule et
    al. 2021.) Sizes differ by at most one. It depends on the number of nodes
    alone.

    Args:
        num_nodes (int): the number of training nodes.
        num_shards (int): the number of shards.
        seed (int, optional): the seed. (default: :obj:`None`)

    Returns:
        Tensor: int64, ``[num_nodes]``.

    Raises:
        TypeError, ValueError: as :func:`check_shards`.
    """
    check_shards(num_nodes, num_shards)
    generator = rng.generator(seed)
    order = torch.randperm(num_nodes, generator=generator)
    # The choice of the larger shards is random too.
    names = torch.randperm(num_shards, generator=generator)
    return names[order % num_shards]


@PARTITIONS.builtin('hash', sees='the name of the node alone')
@validated
def hash_partition(
    n_id: Annotated[Tensor, Array(torch.int64, 'num_nodes')],
    num_shards: int,
    *,
    seed: int | None = None,
    allow_empty: bool = False,
) -> Tensor:
    r"""Assign a shard to each node by a keyed hash of its name alone.

    .. math::
        s_u = h(\text{seed}, u) \bmod S

    Adding or removing a node changes no other node's shard: this is the one
    partition that unlearning makes exact as well. The price is that sizes
    vary as those of a multinomial do, by about :math:`\sqrt{N/S}`, and that
    it cannot be balanced. (:math:`h` is :func:`pyg_trust.rng.derive`, whose
    output is equidistributed, but not secret: use another one where users
    choose their own names in order to meet in a shard.)

    Args:
        n_id (Tensor): int64, ``[num_nodes]``: names of the training nodes
            that they keep when others go.
        num_shards (int): the number of shards.
        seed (int, optional): the key; by default from the operating system.
        allow_empty (bool): whether shards may get no node.
            (default: :obj:`False`)

    Returns:
        Tensor: int64, ``[num_nodes]``.

    Raises:
        TypeError: if :obj:`n_id` is no int64 tensor.
        ValueError: as :func:`check_shards`; if a name is negative or there
            twice; if a shard gets no node, which only fewer shards, or
            another key, can help.
    """
    if allow_empty:
        check_shards(num_shards, num_shards)
        check_shards(n_id.numel(), 1)
    else:
        check_shards(n_id.numel(), num_shards)
    if int(n_id.min()) < 0 or n_id.unique().numel() < n_id.numel():
        raise ValueError(
            "'n_id' needs to hold different non-negative names "
            f'(the smallest is {int(n_id.min())}, '
            f'{n_id.unique().numel()} of {n_id.numel()} are different)'
        )
    shard = rng.derive_each(rng.resolve_secret(seed), n_id) % num_shards
    sizes = shard_sizes(shard, num_shards)
    if not allow_empty and int(sizes.min()) == 0:
        raise ValueError(
            f"'num_shards' needs to be smaller: {n_id.numel()} nodes leave "
            f'one of {num_shards} shards empty under this seed'
        )
    return shard


def simple_edges(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return edges in both directions, without loops, each once, sorted."""
    check_edges(edge_index, num_nodes)
    edge_index, _ = remove_self_loops(edge_index)
    return to_undirected(edge_index, num_nodes=num_nodes)


def check_edges(
    edge_index: Tensor,
    num_nodes: int,
    what: str = 'the training nodes in their order',
) -> None:
    """Refuse edges with ends outside of the graph."""
    check_tensor('edge_index', edge_index, torch.int64, (2, 'num_edges'))
    check_range('edge_index', edge_index, num_nodes, what)
