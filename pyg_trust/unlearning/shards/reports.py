"""Reports of a sharded unlearner."""

from dataclasses import dataclass, field
from typing import Any

from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import Verifiable, stated
from pyg_trust.report.charts import Chart

__all__ = [
    'ASSUMPTIONS',
    'FROM_SEED',
    'PUBLIC_START',
    'ShardPlan',
    'ShardRemovalReport',
    'ShardReport',
    'ShardVerifyReport',
]

ASSUMPTIONS = (
    'requests do not depend on a released model',
    'labels, features and edges of what remains were not made from what was '
    'removed',
    'the model factory gives the same model for the same state of '
    "torch's default generator",
    'bits are those of one machine and one version of torch',
)
#: The assumption that ``start_is_public=True`` adds.
PUBLIC_START = (
    'what the models start from is public, as start_is_public=True states: '
    'nothing in the weights and buffers that the factory makes comes from '
    'people of these data'
)
#: How reports describe keys of hashes that come from a given seed.
FROM_SEED = (
    'keys come from an explicit seed: whoever knows or guesses it knows the '
    'shard of every node id, and can test guesses of the data against hashes'
)


@dataclass(frozen=True)
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
        fraction (float): the sum of :obj:`seconds`, divided by that of
            training all shards; the ratio of :obj:`node_epochs` if times are
            not known.
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


@dataclass(frozen=True)
class ShardRemovalReport(Verifiable):
    """The result of a removal and its cost.

    Args:
        secrets (str): the source of the keys of the hashes.
        request (dict): the ids of what was removed.
        shards (tuple[int, ...]): the shards that were retrained.
        empty (tuple[int, ...]): the shards without a training node, which
            are constant voters.
        nodes (int): the number of training nodes of the retrained shards.
        node_epochs (int): the sum over these shards of nodes times epochs.
        fraction (float): the seconds of the removal, divided by those of a
            full fit.
        aggregator_nodes (int): the number of nodes that the aggregator was
            retrained on.
        seconds (dict): the seconds of each part: training the shards, running
            all models on the present graph, training the aggregator, and the
            rest.
        trainer (str): the trainer that was used.
        exact (bool): whether the result equals training on the remaining data,
            the partition included.
        exactness (str): the meaning of :obj:`exact` for this partition.
        assumptions (tuple[str, ...]): the assumptions of the guarantee.
        origin (dict): versions and settings.
        stages (dict): the first stage of every shard that was retrained, from
            0; always 0 without slices.
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
        keeps_history (bool): always :obj:`False`.
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
    trainer: str
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


@dataclass(frozen=True)
class ShardReport(Report):
    """The present state of a sharded unlearner.

    Args:
        secrets (str): the source of the keys of the hashes.
        num_nodes (int): the number of nodes of the present graph.
        num_train (int): the number of training nodes among them.
        shard_sizes (tuple[int, ...]): the number of training nodes of every
            shard.
        empty (tuple[int, ...]): the shards without a training node, which
            are constant voters.
        imbalance (float): the size of the largest shard, divided by the mean.
        partition (str): the method that made the shards.
        by_hash (int): as in :class:`ShardRemovalReport`.
        exact (bool): as in :class:`ShardRemovalReport`.
        exactness (str): the meaning of :obj:`exact` for this partition.
        removals (int): the number of removals so far.
        seconds (dict): the seconds of the last training, by part; empty if
            nothing was trained since a load.
        trainer (str): the trainer that was used last.
        assumptions (tuple[str, ...]): the assumptions of the guarantee.
        origin (dict): versions and settings.
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
    trainer: str
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


@dataclass(frozen=True)
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
