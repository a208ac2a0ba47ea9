"""Reports of a sharded unlearner."""

from dataclasses import dataclass, field
from typing import Any

from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import Verifiable, stated
from pyg_trust.report.charts import Chart
from pyg_trust.transforms.shards import Shards

__all__ = [
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardVerifyReport',
    'exactness',
]

ASSUMPTIONS = (
    'requests do not depend on a released model',
    'labels, features and edges of what remains were not made from what was '
    'removed',
    'the model factory gives the same model for the same state of '
    "torch's default generator",
    'bits are those of one machine and one version of torch',
)
# The assumption that start_is_public=True adds, and what exactness says then.
PUBLIC_START = (
    'what the models start from is public, as start_is_public=True states: '
    'nothing in the weights and buffers that the factory makes comes from '
    'people of these data'
)
OF_PUBLIC_START = (
    '; models start from weights or buffers that are passed in and stated to '
    'be public, and are as exact as that is true'
)
# How reports describe keys of hashes that come from a given seed.
FROM_SEED = (
    'keys come from an explicit seed: whoever knows or guesses it knows the '
    'shard of every node id, and can test guesses of the data against hashes'
)
# The share of training nodes by a later hash from which to start over.
_MANY = 0.25


def exactness(
    partition: Any, fresh: bool, by_hash: int, num_train: int, by_person: bool
) -> tuple[bool, str]:
    """Return whether all equals a fit on what remains, and in which sense."""
    seen = 'what its author looked at'
    if isinstance(partition, Shards):
        seen = partition.seen
        if partition.exact:
            order = (
                'remaining data, in the same order of nodes and edges'
                if by_person
                else 'present data, in any order of nodes and edges'
            )
            return True, (
                'exact: a node goes to the shard that a keyed hash of its id '
                'gives, so that everything equals a fresh start with the same '
                f'seed on the {order}'
            )
    if fresh:
        return True, (
            'exact so far: nothing was removed since the partition was made, '
            f'which has seen {seen}; after a removal, exact given the '
            'partition'
        )
    hashed = f'{by_hash} training nodes came later and are by hash; '
    return False, (
        'exact given the partition: models and aggregator equal those of a '
        f'fresh start with the same partition, but that has seen {seen}, with '
        f'what was removed; {hashed * bool(by_hash)}repartition() starts over'
        + ', as it should from a quarter on'
        * (by_hash > _MANY * num_train)
    )


@dataclass(frozen=True, kw_only=True)
class ShardPlan(Report):
    """Estimated cost of a removal that has not been carried out.

    Args:
        request (dict): the ids of what would be removed.
        shards (tuple[int, ...]): the shards that would be retrained.
        nodes (int): the number of training nodes that these shards would have.
        node_epochs (int): the sum over these shards of nodes times epochs.
        full_node_epochs (int): the same sum over all shards.
        seconds (dict): the estimated seconds of each part, from the last time
            of each; empty if nothing was trained since a state was loaded.
        fraction (float): the estimated share of the seconds of a fit; the
            ratio of :obj:`node_epochs` if times are not known.
        aggregator_nodes (int): the number of nodes that the aggregator would
            be retrained on, in every removal.
        stages (dict): the first stage of every shard that would be retrained,
            from 0; always 0 without slices.
    """

    request: dict[str, Any]
    shards: tuple[int, ...]
    nodes: int
    node_epochs: int
    full_node_epochs: int
    seconds: dict[str, float]
    fraction: float
    aggregator_nodes: int
    stages: dict[int, int]


@dataclass(frozen=True, kw_only=True)
class ShardRemovalReport(Verifiable):
    """The result of a removal and its cost.

    :obj:`request`, :obj:`shards`, :obj:`nodes`, :obj:`node_epochs`,
    :obj:`fraction`, :obj:`aggregator_nodes`, :obj:`seconds` and :obj:`stages`
    are those of :class:`ShardPlan`, as they were.

    Args:
        secrets (str): the source of the keys of the hashes.
        empty (tuple[int, ...]): the shards without a training node, which
            are constant voters.
        exact (bool): whether the result equals training on the remaining data,
            the partition included.
        exactness (str): the meaning of :obj:`exact` for this partition.
        assumptions (tuple[str, ...]): the assumptions of the guarantee.
        origin (dict): versions and settings.
        by_hash (int): the number of training nodes that came later and were
            assigned by a hash of their ids, although the partition is
            another.
        weights (str): SHA-256 of the weights of all shards, ``{i:
            unlearner.shard_state(i)}`` for each of them.
        data (str): a salted digest of the remaining data, as in the ledger.
        ledger_head (str): a digest of all lines of the ledger up to this
            removal.
        verification (ShardVerifyReport, optional): the findings that
            :meth:`verified` adds.
        skipped (dict): the items of the request that were not there.
    """

    secrets: str
    request: dict[str, Any]
    shards: tuple[int, ...]
    empty: tuple[int, ...]
    nodes: int
    node_epochs: int
    fraction: float
    aggregator_nodes: int
    seconds: dict[str, float]
    exact: bool
    exactness: str
    assumptions: tuple[str, ...]
    origin: dict[str, Any]
    stages: dict[int, int]
    by_hash: int = 0
    weights: str = ''
    data: str = ''
    ledger_head: str = ''
    verification: 'ShardVerifyReport | None' = None
    keeps_history: bool = False
    skipped: dict[str, Any] = field(default_factory=dict)

    @property
    def _verification(self) -> type[Report]:
        return ShardVerifyReport

    def chart(self) -> Chart:
        """Draw the removal's time, by part."""
        return Chart(
            f'Forgetting trained {len(self.shards)} shards again and took '
            f'{self.fraction:.0%} of a full fit',
            bars=self.seconds,
            xlabel='seconds',
        )

    def guarantee(self) -> Guarantee:
        """State that the models hold no trace of the removed items."""
        found = self.verification
        return stated(
            'exact removal by shards',
            self.numbers(),
            assumptions=self.assumptions,
            data=self.data,
            origin=self.origin,
            checked=() if found is None else (found.summary(),),
            model=self.weights,
        )


@dataclass(frozen=True, kw_only=True)
class ShardReport(Report):
    """The present state of a sharded unlearner.

    Fields that are not listed are as in :class:`ShardRemovalReport`.

    Args:
        num_nodes (int): the number of nodes of the present graph.
        num_train (int): the number of training nodes among them.
        shard_sizes (tuple[int, ...]): the number of training nodes of every
            shard.
        imbalance (float): the size of the largest shard, divided by the mean.
        partition (str): the method that made the shards.
        removals (int): the number of removals so far.
        seconds (dict): the seconds of the last training, by part; empty if
            nothing was trained since a load.
    """

    secrets: str
    num_nodes: int
    num_train: int
    shard_sizes: tuple[int, ...]
    empty: tuple[int, ...]
    imbalance: float
    partition: str
    by_hash: int
    exact: bool
    exactness: str
    removals: int
    seconds: dict[str, float]
    assumptions: tuple[str, ...]
    origin: dict[str, Any]

    def chart(self) -> Chart:
        """Draw the number of training nodes of every shard."""
        sizes = enumerate(self.shard_sizes)
        return Chart(
            f'{self.num_train} training nodes in {len(self.shard_sizes)} '
            f'shards, the largest {self.imbalance:.3g} times the mean',
            bars={f'shard {i}': size for i, size in sizes},
            xlabel='training nodes',
        )


@dataclass(frozen=True, kw_only=True)
class ShardVerifyReport(Report):
    """The findings of :meth:`ShardedUnlearner.verify`.

    Args:
        ok (bool): whether all checks below passed.
        shards (tuple[int, ...]): the shards that were trained from scratch.
        differing (tuple[int, ...]): the shards among these whose weights are
            not *equal* to the present ones.
        keys_match (bool): whether the key of every checkpoint matches the
            present data of its shard.
        outputs_equal (bool): whether the cached outputs equal those of the
            models on the present graph.
        aggregator_equal (bool): whether the aggregator equals one that is
            trained from scratch.
        leftovers (tuple[str, ...]): the places that still hold, or could hold,
            removed items.
        weights (str): SHA-256 of the weights of all shards.
    """

    ok: bool
    shards: tuple[int, ...]
    differing: tuple[int, ...]
    keys_match: bool
    outputs_equal: bool
    aggregator_equal: bool
    leftovers: tuple[str, ...]
    weights: str = ''

    def summary(self) -> str:
        """State the findings in one sentence."""

        def equal(found: bool) -> str:
            return 'equal' if found else 'NOT equal'

        left = '; '.join(self.leftovers) or 'nothing that was removed'
        same = len(self.shards) - len(self.differing)
        return (
            f'verify() {"found" if self.ok else "FAILED, and found"}: '
            f'{same} of {len(self.shards)} shards equal, to the bit, to '
            'those that it trained from scratch on what remains; aggregator '
            f'{equal(self.aggregator_equal)}; outputs '
            f'{equal(self.outputs_equal)}; keys of the data '
            f'{equal(self.keys_match)}; left in memory and files: {left}'
        )
