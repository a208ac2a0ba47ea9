"""Certificates of sharded models against poisoned nodes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import check_integer, check_tensor
from pyg_trust.certificates.voting import (
    CollectiveVotes,
    certified_mean,
    certified_votes,
    collective_votes,
    survives_votes,
    tallies,
)
from pyg_trust.removal import integers, rows_of
from pyg_trust.report import Guarantee, Report
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.transforms.shards import Shards
from pyg_trust.unlearning.aggregate import (
    MajorityAggregator,
    MeanAggregator,
    ShardAggregator,
)

__all__ = ['PoisonCertificate', 'certify_shards']

# The least gap between sums of probabilities that counts as one.
_APART = 1e-5
_SHOWN = (1, 2, 3, 5)


@dataclass(frozen=True)
class PoisonCertificate(Report):
    """Predictions certified against poisoning of training nodes.

    ``ShardedUnlearner.certify()`` makes it. One model is trained on each shard
    of the training nodes, and the models vote. A node's shard depends on its
    id alone. So if an attacker changes :math:`k` training nodes, at most
    :math:`k` models change (`Levine and Feizi 2021
    <https://arxiv.org/abs/2006.14768>`_). The graph that all models see at
    inference is assumed to be clean.

    Args:
        targets (Tensor): the ids of the nodes: int64, ``[num_targets]``.
        predicted (Tensor): the voted classes: int64, ``[num_targets]``.
        radius (Tensor): how many shards may be corrupted without changing the
            class: int64, ``[num_targets]``; -1 if not even the present class
            is certain, as votes are tied or most models do not vote.
        votes (Tensor): the classes that the models vote for: int64,
            ``[num_shards, num_targets]``.
        num_classes (int): the number of classes of votes, the last one for
            shards without training nodes.
        aggregator (str): ``'mean'`` of probabilities, or ``'majority'``.
        n_id (Tensor): the ids of all nodes: int64, ``[num_nodes]``.
        group (Tensor): the shard of each of them: int64, ``[num_nodes]``.
        data_sha256, weights_sha256 (str): SHA-256 of the models with their
            data, and of the weights alone.
        provenance (dict): versions and settings.
        checked, assumptions (tuple[str, ...]): the checks and assumptions.
        inference (str): the graph at inference, always ``'clean'``.
    """

    targets: Tensor
    predicted: Tensor
    radius: Tensor
    votes: Tensor
    num_classes: int
    aggregator: str
    n_id: Tensor
    group: Tensor
    data_sha256: str
    provenance: dict[str, Any]
    weights_sha256: str = ''
    checked: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    inference: str = 'clean'

    def certified(self, nodes: int) -> Tensor:
        """Return which targets keep their class: bool, ``[num_targets]``.

        ``nodes`` is the number of poisoned training nodes.
        """
        return self.radius >= check_integer('nodes', nodes, 0)

    def certified_ratio(self, nodes: int) -> float:
        """Return the share of targets that keep their class.

        ``nodes`` is the number of poisoned training nodes.
        """
        return float(self.certified(nodes).double().mean())

    def certified_accuracy(self, labels: Tensor, nodes: int) -> float:
        """Return the share of targets that keep their class and are correct.

        Args:
            labels (Tensor): the true classes of all nodes, in the order of
                :obj:`n_id`: int64, ``[num_nodes]``.
            nodes (int): the number of poisoned training nodes.
        """
        check_tensor('labels', labels, torch.int64, (self.n_id.numel(),))
        right = labels[rows_of(self.n_id, self.targets)] == self.predicted
        return float((self.certified(nodes) & right).double().mean())

    def survives(self, suspects: Any) -> Tensor:
        """Return which targets keep their class if certain nodes are poisoned.

        At most the models of these nodes' shards change.

        Args:
            suspects (list[int] or Tensor): the ids of the poisoned nodes.

        Returns:
            Tensor: bool, ``[num_targets]``.
        """
        ids = torch.tensor(integers('suspects', suspects))
        shards = self.group[rows_of(self.n_id, ids)].unique()
        if self.aggregator != 'majority':
            return self.radius >= shards.numel()
        made = survives_votes(self.votes, self.num_classes, shards)
        # If most models do not vote, another class may win.
        return made & (self.radius >= 0)

    def collective(self, shards: int) -> CollectiveVotes:
        """Bound the number of targets that keep their class in one attack.

        The aggregator has to be ``'majority'``. The same shards are corrupted
        for all targets.

        Args:
            shards (int): the number of corrupted shards.

        Returns:
            CollectiveVotes: the number is at least ``lower`` and at most
            ``upper``, which are equal if ``exact`` is true.
        """
        if self.aggregator != 'majority':
            raise ValueError(
                "'aggregator' needs to be 'majority' to count votes "
                f'(got {self.aggregator!r})'
            )
        # If most models do not vote, one vote may change the class.
        voted = self.votes[:, self.radius >= 0]
        return collective_votes(voted, self.num_classes, shards)

    def chart(self) -> Chart:
        """Chart the share of certified nodes by number of poisoned nodes."""
        most = max(int(self.radius.max()), 0) + 1
        shares = [self.certified_ratio(k) for k in range(most + 1)]
        return Chart(
            f'{shares[1]:.0%} of {self.targets.numel()} predictions stay '
            f'if 1 node is poisoned, {shares[-2]:.0%} if {most - 1} are',
            lines={'certified': (range(most + 1), shares)},
            xlabel='poisoned nodes',
            ylabel='share that is certified',
            steps=True,
        )

    def _tallies(self) -> list[list[int]]:
        # The number of targets, then the votes for the class, the most for
        # another one, which wins a tie, and the other votes. Where most models
        # do not vote, nothing is certified.
        kept = self.radius >= 0
        one_hot = torch.nn.functional.one_hot(self.votes, self.num_classes)
        counts, voted = one_hot.sum(0)[kept], self.predicted[kept, None]
        top = counts.gather(1, voted)[:, 0]
        other = counts.scatter(1, voted, -1).amax(1)
        rest = self.votes.size(0) - top - other
        return tallies(top, other, torch.full_like(top, -1), rest)

    def guarantee(self) -> Guarantee:
        """Return the guarantee: how many classes k poisoned nodes leave."""
        return stated(
            'certificate against poisoning, by shards',
            {
                **self.numbers(),
                'targets': self.targets.numel(),
                'num_shards': self.votes.size(0),
                'tallies': self._tallies()
                if self.aggregator == 'majority'
                else None,
                'certified': {
                    str(k): int((self.radius >= k).sum()) for k in _SHOWN
                },
            },
            data_sha256=self.data_sha256,
            origin=self.provenance,
            checked=self.checked,
            assumptions=self.assumptions,
            weights_sha256=self.weights_sha256,
        )


def certify_shards(
    data: Data,
    outputs: Tensor,
    partition: Any,
    aggregator: ShardAggregator,
    num_classes: int | None,
    *,
    nodes: Any,
    fingerprint: str,
    provenance: dict[str, Any],
    weights: str,
    assumptions: tuple[str, ...] = (),
) -> PoisonCertificate:
    """Certify the predictions of an unlearner from its parts.

    See :meth:`ShardedUnlearner.certify
    <pyg_trust.unlearning.ShardedUnlearner.certify>`.
    """
    if not isinstance(partition, Shards) or not partition.exact:
        raise ValueError(
            "'partition' needs to be 'hash' for certificates: other "
            f'partitions move nodes when others change (got {partition!r})'
        )
    kinds = {MajorityAggregator: 'majority', MeanAggregator: 'mean'}
    if type(aggregator) not in kinds:
        raise ValueError(
            "'aggregator' needs to be 'majority' or 'mean' for certificates: "
            f'a fitted aggregator has read all shards (got {aggregator!r})'
        )
    if num_classes is None:
        raise ValueError(
            "'num_classes' needs to be given to the unlearner for "
            'certificates: one new label would change all models (got None)'
        )
    ids = data.n_id
    if nodes is not None:
        ids = torch.as_tensor(nodes).view(-1)
        if ids.numel():
            integers('nodes', ids)
    if ids.unique().numel() < max(ids.numel(), 1):
        raise ValueError(
            "'nodes' needs to hold different ids, at least one (got "
            f'{ids.tolist()[:5]})'
        )
    rows = rows_of(data.n_id, ids)
    group = rng.derive_each(partition.seed, data.n_id) % partition.num_shards
    trained = data.shard >= 0
    if not torch.equal(group[trained], data.shard[trained]):
        raise ValueError(
            "'partition' needs to be the hash of the ids of training nodes "
            '(got another shard for some)'
        )
    if nodes is not None:
        outputs = outputs[:, rows]
    # An output that is not finite counts as no vote.
    finite = outputs.isfinite().all(2, keepdim=True)
    if not bool(finite.all()):
        outputs = torch.where(finite, outputs, 0.0)
    votes = outputs.argmax(2)
    # Equal logits, as of a shard without training nodes, are no vote. They
    # count as one for a class of their own, which is sound: a silent shard
    # costs the class less than one that votes for another.
    votes[(outputs == outputs[..., :1]).all(2)] = outputs.size(2)
    kind = kinds[type(aggregator)]
    if kind == 'majority':
        # Ties are lost: means of probabilities break them.
        made = certified_votes(votes, outputs.size(2) + 1)
    else:
        # Deployed are means in the dtype of the models.
        shards, eps = outputs.size(0), torch.finfo(outputs.dtype).eps
        made = certified_mean(
            outputs.double().softmax(2),
            tol=max(_APART, shards * (shards + 8) * eps),
        )
    predicted = _deployed(aggregator, outputs, made.counts)
    sure = predicted == made.predicted
    return PoisonCertificate(
        targets=ids.clone(),
        predicted=predicted,
        radius=torch.where(sure, made.radius, -1),
        votes=votes,
        num_classes=outputs.size(2) + 1,
        aggregator=kind,
        n_id=data.n_id.clone(),
        group=group,
        data_sha256=fingerprint,
        provenance=provenance,
        weights_sha256=weights,
        checked=(
            'the shard of every training node is the hash of its id, '
            'computed again',
        ),
        assumptions=assumptions,
    )


def _deployed(
    aggregator: ShardAggregator, outputs: Tensor, counts: Tensor
) -> Tensor:
    # The classes that the aggregator gives. By a majority it is asked about
    # ties alone: elsewhere, they are those with most votes.
    if type(aggregator) is not MajorityAggregator:
        return aggregator(outputs).argmax(1)
    counts = counts[:, : outputs.size(2)]
    most, predicted = counts.max(1)
    tied = ((counts == most[:, None]).sum(1) > 1).nonzero().view(-1)
    if tied.numel():
        predicted[tied] = aggregator(outputs[:, tied]).argmax(1)
    return predicted
