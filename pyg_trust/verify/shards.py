r"""Shards and stages that may see items, from names and requests alone.

**Items.** A graph of named nodes has the items ``('node', v)``, ``('features',
v)`` and ``('edge', u, v)``, one for each direction. A *division* gives a
training node a shard :math:`s(v)` and a stage :math:`t(v)`, from 0; other
nodes have neither. An item of a node has its node's *home* :math:`(s(v),
t(v))`. An edge has the home :math:`(s(u), \max(t(u), t(v)))` if :math:`s(u) =
s(v)`, and none otherwise: it is between shards, or touches a node outside of
training.

**Statement.** Stage :math:`r` of shard :math:`i` is trained on

.. math::
    \text{seen}(i, r) = \{ \text{items at home in } (i, t), \; t \le r \}

and on nothing else. Let :math:`G` be what a request removes (a node goes with
its features and edges), and :math:`f(i)` the least stage of the items of
:math:`G` at home in shard :math:`i`, infinite if there is none. Then for every
:math:`r < f(i)` the stage sees the same set before and after, and for :math:`r
\ge f(i)` it does not.

*Proof.* :math:`\text{seen}` is a union over items of what one item alone
decides. An item of :math:`G` is in :math:`\text{seen}(i, r)` if and only if
its home is :math:`(i, t)` with :math:`t \le r`; such a :math:`t` exists if and
only if :math:`f(i) \le r`.

**Updates.** What comes goes when the update is undone; what gets another home
or content goes and comes. So with the least stage of both, each at home on its
side, statement and proof hold for any update.

**Exactness.** Let training be a function of a shard's items, its number and
its stages, and :math:`s, t` those of :func:`divided`: functions of a key and
of the node's *own* name. Then to train the stages from :math:`f(i)` on again
on what remains, and to leave all else as it is, equals training from scratch
on what remains. *Proof.* The division is one function of the name, whoever
else comes or goes. So every stage has seen what it would see from scratch:
those below :math:`f(i)` by the statement, the others because they were trained
on it. By induction it holds after any sequence. With a division that was made
by looking at the data, the same holds *given the division*.

That training is a function of these is not proved here: the claim says how it
was checked (shards trained from scratch and compared bit by bit).
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
    """Divide nodes by keyed hashes of their own names.

    Args:
        names (list[int]): the names of the training nodes.
        num_shards (int): the shard is the hash modulo this number.
        key (int): the key of the shards' hash.
        shares (list[float]): ascending, the last 1: the stage is how many
            of them the hash, as a number in [0, 1), has reached.
        stage_key (int): the key of the stages' hash.
    """
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

    Args:
        trained (dict): by shard and stage, the items that it was trained on.
        items (set): the items of the remaining graph.
        division (Division): the division of its training nodes.
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
