r"""Slices: a shard trained in stages, with a checkpoint after each.

`SISA <https://arxiv.org/abs/1912.03817>`_ (Bourtoule et al. 2021), for graphs.
Shares :math:`0 < f_1 < \ldots < f_R = 1` cut the values of a keyed hash of
names: slice :math:`r` holds the nodes with :math:`h(u) / 2^{63} \in [f_{r-1},
f_r)`. It is the *value* that is cut, not the rank, so that nobody changes
slices when others go.

Stage :math:`r` trains :math:`e_r` epochs on the subgraph that slices
:math:`1, \ldots, r` induce, from the weights of stage :math:`r - 1` (of the
initial ones for :math:`r = 1`), with a fresh optimizer and streams of dropout
that are keyed by the seed of the shard and :math:`r`. A stage without nodes
hands on the weights that it got.

**Removal.** What is removed belongs to a slice: that of the node, or the later
one of the two ends of an edge. Stages before have seen nothing of it, stages
from there on are trained again. So weights equal, bit for bit, those of
training through all stages on what remains. The checkpoint that training
starts from is keyed by all data of its slices, and refused if these are not
those that remain.

**When it pays.** For single requests, and after everything cheaper: half of
the epochs cost half as much, for requests of any size, and store nothing. A
random node costs :math:`\sum_r c_r f_r / \sum_r c_r` of a shard's training,
:math:`c_r` the cost of stage :math:`r`. For equal slices and epochs, with a
cost by nodes, that is :math:`(2R + 1) / (3R)`, never below two thirds, and an
epoch is dearer than its nodes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import check_integer, check_number
from pyg_trust.removal import Part
from pyg_trust.update import rows_of

Slices = tuple[tuple[float, int], ...]


def check_slices(slices: Any) -> Slices:
    """Check the shares and epochs of stages; return them as plain numbers.

    Args:
        slices (list): pairs of a cumulative share and a number of epochs.
    """
    if isinstance(slices, str) or not isinstance(slices, Sequence):
        raise TypeError(
            "'slices' needs to be a list of pairs of a share and a number of "
            f'epochs (got {type(slices).__name__})'
        )
    made: list[tuple[float, int]] = []
    for pair in slices:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(
                "'slices' needs to hold pairs of a share and a number of "
                f'epochs (got {pair!r})'
            )
        share = check_number('slices', pair[0])
        least = made[-1][0] if made else 0.0
        if not least < share <= 1:
            raise ValueError(
                "'slices' needs to have ascending shares in (0, 1] "
                f'(got {share} after {least})'
            )
        made.append((float(share), check_integer('slices', pair[1], 1)))
    if not made or made[-1][0] != 1:
        raise ValueError(
            f"'slices' needs to end with the share 1 (got {list(slices)})"
        )
    return tuple(made)


def slice_numbers(names: Tensor, slices: Slices, seed: int) -> Tensor:
    """Compute the slice of every node, from 0, by a hash of its name.

    Args:
        names (Tensor): int64, ``[num_nodes]``.
        slices (tuple): the result of :func:`check_slices`.
        seed (int): the key of the hash.
    """
    # The highest 53 bits: exact in float64, and always below one.
    value = (rng.derive_each(seed, names) >> 10).double() / 2**53
    shares = torch.tensor([share for share, _ in slices]).double()
    return torch.searchsorted(shares, value, right=True)


def touched_slices(
    data: Data, part: Part, slices: Slices, seed: int
) -> dict[int, int]:
    """Find, for each shard, the first slice that contains given items."""
    number = slice_numbers(data.n_id, slices or ((1.0, 0),), seed)
    nodes = torch.tensor([*part.nodes, *part.features], dtype=torch.int64)
    rows = rows_of(data.n_id, nodes)
    shard, first = data.shard[rows], number[rows]
    if part.arcs:
        ends = torch.tensor(part.arcs, dtype=torch.int64).view(-1)
        one, two = rows_of(data.n_id, ends).view(-1, 2).t()
        same = data.shard[one] == data.shard[two]
        later = torch.maximum(number[one], number[two])
        shard = torch.cat([shard, data.shard[one][same]])
        first = torch.cat([first, later[same]])
    found: dict[int, int] = {}
    for home, at in zip(shard.tolist(), first.tolist(), strict=True):
        if home >= 0:
            found[home] = min(at, found.get(home, at))
    return found
