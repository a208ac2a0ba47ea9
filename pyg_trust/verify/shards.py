"""Shards and stages that may see items, from names and requests alone.

A stage sees the items whose home is in its shard, at its stage or before. A
request changes the stages from the least home of what it names on, and no
others.
See docs/theory/proofs.rst.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Item = tuple[str, int] | tuple[str, int, int]
_MASK = 2**64 - 1


class Division(NamedTuple):
    """The shard and the stage of every training node, by name.

    Args:
        shard (dict): the number of the shard, from 0.
        stage (dict): the number of the stage, from 0.
    """

    shard: Mapping[int, int]
    stage: Mapping[int, int]


def hashed(key: int, name: int) -> int:
    """Return 63 bits that depend on a key and a name alone (SplitMix64)."""

    def mixed(word: int) -> int:
        word = (word + 0x9E3779B97F4A7C15) & _MASK
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        return word ^ (word >> 31)

    return mixed(key & _MASK ^ mixed(name & _MASK)) >> 1


def divided(
    names: Iterable[int],
    num_shards: int,
    key: int,
    shares: Sequence[float],
    stage_key: int,
) -> Division:
    """Divide nodes by keyed hashes of their own names."""
    names = list(names)
    value = {v: (hashed(stage_key, v) >> 10) / 2**53 for v in names}
    return Division(
        {v: hashed(key, v) % num_shards for v in names},
        {v: sum(share <= value[v] for share in shares) for v in names},
    )


def items_of(
    nodes: Iterable[int],
    edges: Iterable[tuple[int, int]],
    featureless: Iterable[int] = (),
) -> frozenset[Item]:
    """Return the items of a graph, by names."""
    nodes, without = list(nodes), set(featureless)
    items: set[Item] = {('node', v) for v in nodes}
    items |= {('features', v) for v in nodes if v not in without}
    return frozenset(items | {('edge', u, v) for u, v in edges})


def home(item: Item, division: Division) -> tuple[int, int] | None:
    """Return the shard and the stage where an item is seen, if anywhere."""
    shards = {division.shard.get(v) for v in item[1:]}
    if None in shards or len(shards) > 1:
        return None
    stage = max(division.stage[int(v)] for v in item[1:])
    return division.shard[int(item[1])], stage


def strangers(
    trained: Mapping[tuple[int, int], Iterable[Item]],
    items: Iterable[Item],
    division: Division,
) -> dict[tuple[int, int], set[Item]]:
    """List, by stage, the items that it has wrongly or lacks.

    Nothing, if every stage was trained on what it may see.
    """
    at_home: dict[tuple[int, int] | None, set[Item]] = {}
    for item in items:
        at_home.setdefault(home(item, division), set()).add(item)
    wrong = {}
    for (shard, stage), had in trained.items():
        stages = (at_home.get((shard, t), set()) for t in range(stage + 1))
        wrong[shard, stage] = set(had).symmetric_difference(
            set().union(*stages)
        )
    return {where: items for where, items in wrong.items() if items}
