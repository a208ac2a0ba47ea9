r"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker.

The training nodes are divided into shards, a model is trained on every shard
alone, and an aggregator makes one prediction of theirs. To forget a node, the
model of its shard is trained again without it, and so is the aggregator,
which has seen labels and the outputs of all models.
"""

import copy
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from tqdm import tqdm

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
)
from pyg_trust.functional.partition import (
    check_partition,
    check_shards,
    partition_from_lists,
    shard_sizes,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import RemovalLedger, fingerprint, fingerprints
from pyg_trust.loader import ShardLoader
from pyg_trust.nn.shard_aggregator import ShardAggregator, make_aggregator
from pyg_trust.removal import Part, RemovalRequest, remove_from_data
from pyg_trust.report import Guarantee, Report, provenance
from pyg_trust.transforms.shards import Shards, training_nodes
from pyg_trust.unlearning.isolated import (
    TRAINERS,
    Features,
    Recipe,
    Shard,
    Trained,
    build,
    evaluate,
    single_thread,
    train,
    transposed_adjacency,
)
from pyg_trust.unlearning.store import ShardStore

# Parts of the seed.
_SHARD, _PARTITION, _AGGREGATOR, _SAMPLE = 0, 1, 2, 3

_MASKS = ('train_mask', 'val_mask', 'test_mask')


@dataclass(frozen=True)
class ShardPlan(Report):
    """What a removal would do; nothing was changed.

    Args:
        request (dict): the names of what would be removed.
        shards (tuple[int, ...]): the shards that would be trained again.
        requests_per_shard (dict): how many requests touch each of them.
        nodes (int): how many training nodes they would have.
        node_epochs (int): nodes times epochs of their training.
        full_node_epochs (int): the same for all shards.
        fraction (float): the first of these in the second: the cost of the
            shards in that of a full fit.
        aggregator_nodes (int): on how many nodes the aggregator would be
            trained again, which every removal takes.
    """

    request: dict[str, Any]
    shards: tuple[int, ...]
    requests_per_shard: dict[int, int]
    nodes: int
    node_epochs: int
    full_node_epochs: int
    fraction: float
    aggregator_nodes: int


@dataclass(frozen=True)
class ShardRemovalReport(Report):
    """What a removal did, and what it cost.

    Args:
        request (dict): the names of what was removed.
        shards (tuple[int, ...]): the shards that were trained again.
        nodes (int): how many training nodes they have.
        node_epochs (int): nodes times epochs of their training.
        fraction (float): the cost of the shards in that of a full fit, in
            node-epochs.
        aggregator_nodes (int): on how many nodes the aggregator was trained
            again.
        seconds (dict): what training the shards, running all models on the
            present graph, and training the aggregator took.
        trainer (str): how the shards were trained in the end.
        note (str): why not as asked, or nothing.
        exact (bool): whether the result is what training on the remaining
            data gives, the partition included.
        exactness (str): what that means for this partition.
        assumptions (tuple[str, ...]): what the guarantee rests on.
        origin (dict): versions and settings.
    """

    request: dict[str, Any]
    shards: tuple[int, ...]
    nodes: int
    node_epochs: int
    fraction: float
    aggregator_nodes: int
    seconds: dict[str, float]
    trainer: str
    note: str
    exact: bool
    exactness: str
    assumptions: tuple[str, ...]
    origin: dict[str, Any]

    def guarantee(self) -> Guarantee:
        """That what was removed has left no trace in the models."""
        return Guarantee(
            procedure='exact removal by shards',
            promise=(
                'models and aggregator equal, bit for bit, those trained '
                'from scratch without what was removed: ' + self.exactness
            ),
            assumptions=self.assumptions,
            not_covered=('what earlier releases of the model have revealed',),
            origin=self.origin,
        )


@dataclass(frozen=True)
class ShardReport(Report):
    """What a sharded unlearner is now.

    Args:
        num_nodes (int): the nodes of the present graph.
        num_train (int): the training nodes among them.
        shard_sizes (tuple[int, ...]): the training nodes of every shard.
        imbalance (float): the largest shard over the mean.
        partition (str): how the shards were made.
        exact (bool): as in :class:`ShardRemovalReport`.
        exactness (str): what that means for this partition.
        removals (int): how many removals were done.
        queued (int): how many requests wait.
        seconds (dict): what the last training took, by part.
        trainer (str): how the shards were trained last.
        note (str): why not as asked, or nothing.
        assumptions (tuple[str, ...]): what the guarantee rests on.
        origin (dict): versions and settings.
    """

    num_nodes: int
    num_train: int
    shard_sizes: tuple[int, ...]
    imbalance: float
    partition: str
    exact: bool
    exactness: str
    removals: int
    queued: int
    seconds: dict[str, float]
    trainer: str
    note: str
    assumptions: tuple[str, ...]
    origin: dict[str, Any]


@dataclass(frozen=True)
class ShardVerifyReport(Report):
    """What :meth:`ShardedUnlearner.verify` found.

    Args:
        ok (bool): whether everything below is as it has to be.
        shards (tuple[int, ...]): the shards that were trained from scratch.
        differing (tuple[int, ...]): those of them whose weights are not
            *equal* to the present ones.
        keys_match (bool): whether every checkpoint is keyed by the data that
            its shard has now.
        outputs_equal (bool): whether the cached outputs are those of the
            models on the present graph.
        aggregator_equal (bool): whether the aggregator is the one that is
            trained from scratch.
        leftovers (tuple[str, ...]): what still holds, or could hold,
            something that was removed.
    """

    ok: bool
    shards: tuple[int, ...]
    differing: tuple[int, ...]
    keys_match: bool
    outputs_equal: bool
    aggregator_equal: bool
    leftovers: tuple[str, ...]


class _Checkpoint(NamedTuple):
    # One trained shard. The key is a hash of all that it was trained on.
    key: str
    n_id: Tensor
    weights: dict[str, Tensor]


class _Work(NamedTuple):
    # What was done last.
    shards: tuple[int, ...]
    seconds: dict[str, float]
    trainer: str
    note: str


class _State(NamedTuple):
    # All there is. It is replaced as a whole, by one assignment at the end of
    # whatever may fail, so that a failure changes nothing.
    seed: int
    # As given: what Shards are made of, or themselves.
    partition: Any
    data: Data
    num_classes: int
    checkpoints: tuple[_Checkpoint, ...]
    outputs: Tensor
    aggregator: ShardAggregator
    ledger: RemovalLedger
    queue: tuple[RemovalRequest, ...]
    # Whether the partition has seen nothing that was removed since.
    fresh: bool
    work: _Work


class ShardedUnlearner:
    r"""Node classification that forgets exactly, by retraining of shards.

    `SISA <https://arxiv.org/abs/1912.03817>`_ (Bourtoule et al. 2021),
    `GraphEraser <https://arxiv.org/abs/2103.14991>`_ (Chen et al. 2022) and
    `GraphRevoker <https://arxiv.org/abs/2403.07353>`_ (Zhang et al. 2024),
    which differ in the partition and the aggregator.

    .. code-block:: python

        unlearner = ShardedUnlearner(
            lambda: GCN(1433, 64, 2, 7, dropout=0.5), num_shards=20
        )
        unlearner.fit(data)
        print(unlearner.plan(RemovalRequest(nodes=[3, 14])))
        report = unlearner.remove(RemovalRequest(nodes=[3, 14]))
        assert unlearner.verify().ok
        label = unlearner.predict(nodes=[0, 1, 2])

    Each shard is the subgraph that its training nodes induce; at inference,
    every model sees the whole present graph.

    **The guarantee.** After every removal, models and aggregator *equal*, bit
    for bit, those that training from scratch on the remaining data gives with
    the same seed and the same partition. A model is a function of its own
    shard and of a seed that is derived from the shard's number, and what the
    removal touches is trained anew:

    ====================================  ================================
    removed                               trained again
    ====================================  ================================
    training node                         its shard, aggregator
    other node                            aggregator
    edge inside of a shard                that shard, aggregator
    other edge                            aggregator
    features of a training node           its shard, aggregator
    features of another node              aggregator
    ====================================  ================================

    The aggregator is trained again every time: it learns from outputs over
    the present graph, and from labels of all shards.

    **What is exact about the partition** is for the report to say
    (:obj:`exact`, :obj:`exactness`). By ``partition='hash'`` the shard of a
    node depends on its name alone: the whole equals a fresh start on the
    remaining data. All other partitions have seen something of what was
    removed: unlearning is exact *given the partition*, and
    :meth:`repartition` starts over with a new one.

    It assumes that requests do not depend on a released model, as the seed
    stays the same; equality holds even then, but not that the seed is
    independent of the data that remain. The names of what was removed stay in
    the ledger.

    **Names.** Nodes keep the names that :meth:`fit` saw, ``data.n_id`` if it
    is there, else positions, whatever is removed in between. Predictions for
    the present graph are in its order: row ``i`` is node ``n_id[i]``.

    **Failures.** Whatever interrupts a removal leaves the old state or the
    new one. With a :obj:`folder`, the same holds on the disk.

    Models run on the CPU, on one thread: that is what the bits depend on.

    Args:
        model_factory (Callable): makes a model, ``model(x, edge_index)``, or
            ``model(x, edge_index, edge_weight)`` for graphs with weights,
            that returns logits, ``[num_nodes, num_classes]``. It is called
            with torch's default generator at a shard's seed.
        num_shards (int): the number of shards. (default: :obj:`20`)
        partition (str, Shards, Tensor or list): a method of
            :class:`~pyg_trust.transforms.Shards` or one itself; the shard of
            every training node, int64, ``[num_train]``, in their order; or
            the names of the training nodes of every shard.
            (default: :obj:`'hash'`)
        aggregator (str or ShardAggregator): as
            :func:`~pyg_trust.nn.make_aggregator` takes.
            (default: :obj:`'attentive'`)
        aggregator_nodes (int): the aggregator learns from at most so many
            training nodes, those with the smallest hashes of their names.
            (default: :obj:`1000`)
        num_classes (int, optional): the number of classes; by default the
            largest label of any node plus one. (default: :obj:`None`)
        epochs (int): full-batch epochs of every shard. (default: :obj:`100`)
        lr (float): the learning rate. (default: :obj:`0.01`)
        weight_decay (float): the weight decay. (default: :obj:`5e-4`)
        optimizer (str): :obj:`'adam'`, :obj:`'adamw'` or :obj:`'sgd'`.
            (default: :obj:`'adam'`)
        sparse_x (bool): multiply features that are mostly zero as a sparse
            matrix, in linear layers that take them as they come.
            (default: :obj:`False`)
        sparse_adj (bool): at inference, give models the graph as a transposed
            sparse matrix, with which PyG's layers sum over neighbours in less
            time and memory. Layers need to support it. (default: :obj:`False`)
        trainer (str): :obj:`'stacked'` (all shards as one model, one after
            the other where that is impossible), :obj:`'sequential'` or
            :obj:`'process'` (for which scripts need the usual ``if __name__
            == '__main__'``, and models a class that can be imported). All
            give the same bits.
            (default: :obj:`'stacked'`)
        num_workers (int, optional): the number of processes.
            (default: :obj:`None`)
        folder (str or Path, optional): where every new state is written
            before it becomes visible. (default: :obj:`None`)
        seed (int, optional): the seed of everything. Shard :math:`i` has the
            seed :math:`f(\text{seed}, i)`. (default: :obj:`None`)

    Raises:
        TypeError, ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        model_factory: Callable[[], Module],
        num_shards: int = 20,
        *,
        partition: str | Shards | Tensor | Sequence[Any] = 'hash',
        aggregator: str | ShardAggregator = 'attentive',
        aggregator_nodes: int = 1000,
        num_classes: int | None = None,
        epochs: int = 100,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        optimizer: str = 'adam',
        sparse_x: bool = False,
        sparse_adj: bool = False,
        trainer: str = 'stacked',
        num_workers: int | None = None,
        folder: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        check_callable('model_factory', model_factory)
        check_shards(num_shards, num_shards)
        check_choice('trainer', trainer, TRAINERS)
        for name, value in (
            ('aggregator_nodes', aggregator_nodes),
            ('num_classes', num_classes),
            ('num_workers', num_workers),
        ):
            if value is not None or name == 'aggregator_nodes':
                check_integer(name, cast(int, value), 1)
        if folder is not None:
            check_instance('folder', folder, str, Path)
        self.model_factory = model_factory
        self.num_shards = num_shards
        self.aggregator_nodes = aggregator_nodes
        self.num_classes = num_classes
        self.recipe = Recipe(epochs, lr, weight_decay, optimizer, sparse_x)
        self.sparse_adj = bool(sparse_adj)
        self.trainer = trainer
        self.num_workers = num_workers
        self.folder = None if folder is None else Path(folder)
        self._aggregator = copy.deepcopy(make_aggregator(aggregator))
        self._state: _State | None = None
        self._given = self._checked(partition)
        self._first_seed = rng.resolve(seed)

    # Training and prediction ################################################

    def fit(
        self, data: Data, *, progress_bar: bool = False
    ) -> 'ShardedUnlearner':
        """Divides the training nodes, and trains a model on every shard.

        Keeps copies of what it needs: ``x``, ``edge_index``, ``edge_weight``
        if it is there, ``y``, the masks and ``n_id``. A second call starts
        over, with a new ledger; a :obj:`folder` of an earlier program is not
        written over.

        Args:
            data (Data): the graph, with a ``train_mask``; labels of other
                nodes are not looked at, except for the number of classes.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            TypeError, ValueError: if something is missing or malformed; if
                there are fewer training nodes than shards, or the partition
                does not fit them; if the models' outputs have the wrong
                width.
        """
        if (
            self._state is None
            and self.folder is not None
            and ShardStore(self.folder).manifest() is not None
        ):
            raise ValueError(
                f"'folder' {self.folder} holds a state, whose removals a fit "
                'would undo: load it, or take another folder'
            )
        kept = self._copy(data)
        num_classes = self._count_classes(kept)
        ledger = RemovalLedger(0.0)
        new = self._fresh(
            kept, num_classes, self._given, ledger, 'fit', progress_bar
        )
        self._commit(new, restart=True)
        return self

    def predict(
        self,
        data: Data | None = None,
        *,
        nodes: Any = None,
        progress_bar: bool = False,
    ) -> Tensor:
        """The classes of nodes: int64, ``[num_nodes]``.

        Args:
            data (Data, optional): another graph; by default the present one,
                in the order of :attr:`n_id`. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): names of nodes of the
                present graph. (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)
        """
        probability = self.predict_proba(
            data, nodes=nodes, progress_bar=progress_bar
        )
        return probability.argmax(1)

    @torch.no_grad()
    def predict_proba(
        self,
        data: Data | None = None,
        *,
        nodes: Any = None,
        progress_bar: bool = False,
    ) -> Tensor:
        """The probabilities of classes: ``[num_nodes, num_classes]``.

        Args:
            data (Data, optional): another graph; by default the present one,
                in the order of :attr:`n_id`. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): names of nodes of the
                present graph. (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if a node is not there, or both arguments are given.
        """
        state = self._fitted
        if data is not None and nodes is not None:
            raise ValueError(
                "'nodes' are named in the present graph, not in 'data': give "
                'one of them'
            )
        outputs = state.outputs
        if data is not None:
            self._check_other(data)
            outputs = self._outputs(data, state.checkpoints, progress_bar)
        with single_thread():
            probability = state.aggregator(outputs)
        if nodes is None:
            return probability
        names = _names('nodes', nodes)
        return probability[_rows(state.data.n_id, names)]

    @property
    def data(self) -> Data:
        """The present graph, with ``n_id`` and ``shard``."""
        return copy.copy(self._fitted.data)

    @property
    def n_id(self) -> Tensor:
        """The names of the nodes of the present graph, in its order."""
        return self._fitted.data.n_id.clone()

    @property
    def outputs(self) -> Tensor:
        """What every model says about the nodes of the present graph.

        Logits, ``[num_shards, num_nodes, num_classes]``, as copies.
        """
        return self._fitted.outputs.clone()

    @property
    def aggregator_n_id(self) -> Tensor:
        """The names of the nodes that the aggregator has learnt from."""
        data = self._fitted.data
        return data.n_id[self._sample(data)]

    @property
    def ledger(self) -> RemovalLedger:
        """The account of what was done; nothing is ever spent."""
        return self._fitted.ledger

    @property
    def queue(self) -> tuple[RemovalRequest, ...]:
        """The requests that wait, the oldest first."""
        return self._fitted.queue

    def shard_state(self, shard: int) -> dict[str, Tensor]:
        """The ``state_dict`` of a shard's model, as copies.

        Args:
            shard (int): which one.
        """
        check_integer('shard', shard, 0, self.num_shards - 1)
        weights = self._fitted.checkpoints[shard].weights
        return {name: value.clone() for name, value in weights.items()}

    # Removal ################################################################

    def plan(self, request: RemovalRequest | None = None) -> ShardPlan:
        """What a removal would touch and cost; nothing is changed.

        Args:
            request (RemovalRequest, optional): what to forget; by default all
                that is in the queue. (default: :obj:`None`)

        Raises:
            TypeError, ValueError: as :meth:`remove`.
        """
        state = self._fitted
        if request is None:
            requests = list(self._queued())
        else:
            self._check_queue(state, request)
            requests = [request]
        whole = RemovalRequest.batch(requests)
        # Without the features: a plan should cost nothing to speak of.
        light = copy.copy(state.data)
        light.x = light.x[:, :0]
        data, touched = self._without(light, whole)
        per_shard = dict.fromkeys(touched, 0)
        for part in requests:
            for shard in _touched(light, part.parts[0]):
                per_shard[shard] += 1
        nodes, fraction = self._cost(data, touched)
        return ShardPlan(
            request=whole.to_dict(),
            shards=touched,
            requests_per_shard=per_shard,
            nodes=nodes,
            node_epochs=nodes * self.recipe.epochs,
            full_node_epochs=int((data.shard >= 0).sum()) * self.recipe.epochs,
            fraction=fraction,
            aggregator_nodes=self._sample(data).numel(),
        )

    def remove(
        self, request: RemovalRequest, *, progress_bar: bool = False
    ) -> ShardRemovalReport:
        """Forgets what the request names.

        Trains the touched shards and the aggregator again. If anything fails
        or interrupts it, everything is as before.

        Args:
            request (RemovalRequest): what to forget, in the names that
                :meth:`fit` saw, of graph 0.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            TypeError: on another request.
            ValueError: if something is not there, was removed before or is in
                the queue, or if a shard, or a class, would be left without a
                training node.
        """
        state = self._fitted
        self._check_queue(state, request)
        return self._remove(state, request, state.queue, progress_bar)

    def enqueue(self, request: RemovalRequest) -> int:
        """Puts a request in the queue, and returns how many wait.

        Nothing is forgotten before :meth:`flush`, which trains every shard
        once however many requests touch it.

        Args:
            request (RemovalRequest): as in :meth:`remove`; together with the
                queue it needs to be possible.

        Raises:
            TypeError, ValueError: as :meth:`remove`.
        """
        state = self._fitted
        self._check_queue(state, request)
        queue = (*state.queue, request)
        light = copy.copy(state.data)
        light.x = light.x[:, :0]
        self._without(light, RemovalRequest.batch(queue))
        self._commit(state._replace(queue=queue))
        return len(queue)

    def flush(self, *, progress_bar: bool = False) -> ShardRemovalReport:
        """Forgets what is in the queue, as one request.

        Args:
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if the queue is empty, or is no longer possible as a
                shard or a class would be left without a training node; then
                the queue is as before, and :meth:`withdraw` helps.
        """
        queue = self._queued()
        request = RemovalRequest.batch(queue)
        return self._remove(self._fitted, request, (), progress_bar)

    def withdraw(self) -> tuple[RemovalRequest, ...]:
        """Empties the queue without forgetting, and returns what was in it."""
        state = self._fitted
        self._commit(state._replace(queue=()))
        return state.queue

    def repartition(
        self,
        partition: str | Shards | Tensor | Sequence[Any] | None = None,
        *,
        progress_bar: bool = False,
    ) -> ShardReport:
        """Divides the remaining training nodes anew, and trains all shards.

        What comes of it equals a fit on the remaining data: nothing has seen
        what was removed.

        Args:
            partition (optional): as in the class; by default the same method.
                (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: without a partition, if the present one was given as
                tensors; or as :meth:`fit`.
        """
        state = self._fitted
        given = state.partition
        if partition is not None:
            given = self._checked(partition)
        elif not isinstance(given, str | Shards):
            raise ValueError(
                "'partition' needs to be given, as the present one is no "
                'method that could be repeated'
            )
        ledger = state.ledger.copy()
        new = self._fresh(
            state.data,
            state.num_classes,
            given,
            ledger,
            'retrain',
            progress_bar,
        )
        self._commit(new._replace(queue=state.queue))
        return self.report()

    # What can be checked ####################################################

    def verify(
        self,
        shards: Iterable[int] | None = None,
        *,
        trainer: str = 'sequential',
        progress_bar: bool = False,
    ) -> ShardVerifyReport:
        """Trains shards and aggregator from scratch, and compares.

        Weights need to be *equal*. Also looks for what should be gone: names
        that the ledger lists as removed in the graph, the partition, the
        checkpoints and the queue; checkpoints, in the folder too, that are
        not those of the present data; tensors that are views into larger
        ones. (There is no state of an optimizer to look at: it ends with the
        training.)

        Args:
            shards (list[int], optional): which ones; by default all.
                (default: :obj:`None`)
            trainer (str): how they are trained.
                (default: :obj:`'sequential'`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: on an unknown shard or trainer.
        """
        state = self._fitted
        if shards is None:
            shards = range(self.num_shards)
        if not isinstance(shards, Iterable):
            raise TypeError(
                "'shards' needs to be a list of integers "
                f'(got {type(shards).__name__})'
            )
        which = tuple(shards)
        for shard in which:
            if not 0 <= check_integer('shards', shard) < self.num_shards:
                raise ValueError(
                    f"'shards' needs to be in [0, {self.num_shards}) "
                    f'(got {shard})'
                )
        check_choice('trainer', trainer, TRAINERS)
        trained, _ = self._train(state.data, which, trainer, progress_bar)
        differing = tuple(
            shard
            for shard, fresh in trained.items()
            if not _equal(fresh.weights, state.checkpoints[shard].weights)
        )
        parts = self._parts(state.data, range(self.num_shards))
        keys = all(
            self._key(shard, part) == state.checkpoints[shard].key
            and torch.equal(part.n_id, state.checkpoints[shard].n_id)
            for shard, part in parts.items()
        )
        outputs = self._outputs(state.data, state.checkpoints, progress_bar)
        aggregator = self._aggregate(state.data, outputs, progress_bar)
        same_outputs = torch.equal(outputs, state.outputs)
        same_aggregator = _equal(
            aggregator.state_dict(), state.aggregator.state_dict()
        )
        leftovers = self._leftovers(state)
        return ShardVerifyReport(
            ok=not differing
            and keys
            and same_outputs
            and same_aggregator
            and not leftovers,
            shards=which,
            differing=differing,
            keys_match=keys,
            outputs_equal=same_outputs,
            aggregator_equal=same_aggregator,
            leftovers=leftovers,
        )

    def report(self) -> ShardReport:
        """What the unlearner is now, and what its guarantee means."""
        state = self._fitted
        sizes = shard_sizes(state.data.shard, self.num_shards)
        exact, exactness = self._exactness(state)
        removals = [e for e in state.ledger.entries if e.request]
        return ShardReport(
            num_nodes=int(state.data.num_nodes),
            num_train=int(sizes.sum()),
            shard_sizes=tuple(sizes.tolist()),
            imbalance=float(sizes.max() / sizes.double().mean()),
            partition=_described(state.partition),
            exact=exact,
            exactness=exactness,
            removals=len(removals),
            queued=len(state.queue),
            seconds=state.work.seconds,
            trainer=state.work.trainer,
            note=state.work.note,
            assumptions=_ASSUMPTIONS,
            origin=self._origin(),
        )

    # State ##################################################################

    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on, one checkpoint per shard.

        It contains the remaining data and the seed, which salts the hashes.
        Destroy older states after a removal: they hold what was removed.
        """
        return self._packed(self._fitted)

    def load_state_dict(
        self, state: dict[str, Any], *, progress_bar: bool = False
    ) -> None:
        """Takes over a saved state.

        Args:
            state (dict): of :meth:`state_dict` of an unlearner with the same
                arguments.
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if the arguments differ, a checkpoint is not that of
                the data in the state, or the state's ledger does not continue
                the present one.
        """
        self._commit(self._unpacked(state, progress_bar))

    def save(self, folder: str | Path | None = None) -> None:
        """Writes the state to a folder, at once or not at all.

        Args:
            folder (str or Path, optional): where; by default the folder of
                the class, which holds every state anyway.
                (default: :obj:`None`)

        Raises:
            ValueError: if there is no folder, or it holds the state of
                another unlearner or a later one.
        """
        state = self._fitted
        store = self._store(folder)
        _guard(store, state)
        store.write(*_filed(self._packed(state)))

    def load(
        self,
        folder: str | Path | None = None,
        *,
        progress_bar: bool = False,
    ) -> 'ShardedUnlearner':
        """Takes over the state in a folder.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if there is none, a file is missing or was changed, or
                as :meth:`load_state_dict`.
        """
        store = self._store(folder)
        parts, manifest = store.read()
        new = self._unpacked(_unfiled(parts, manifest), progress_bar)
        if store.folder == self.folder:
            self._state = new
        else:
            self._commit(new)
        return self

    def purge(self, folder: str | Path | None = None) -> tuple[str, ...]:
        """Deletes the checkpoints that hold what was removed.

        These are all in the folder that are not part of the state in force,
        unfinished ones included. Copies elsewhere are out of reach, and what
        a file system or a disk keeps of deleted files is up to them.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)

        Returns:
            tuple[str, ...]: the names of the files that were deleted.

        Raises:
            ValueError: if there is no folder, or the state in force there is
                not the present one.
        """
        store = self._store(folder)
        _, plain = _filed(self._packed(self._fitted))
        if not _in_force(store, plain):
            raise ValueError(
                f"'folder' {store.folder} does not hold the present state: "
                'save it first'
            )
        return tuple(path.name for path in store.purge())

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(num_shards={self.num_shards}, '
            f'partition={_described(self._given)}, '
            f'aggregator={type(self._aggregator).__name__}, '
            f'epochs={self.recipe.epochs}, trainer={self.trainer!r})'
        )

    # Private: arguments and data ############################################

    @property
    def _fitted(self) -> _State:
        if self._state is None:
            raise ValueError('the unlearner needs to be fitted first')
        return self._state

    @property
    def _seed(self) -> int:
        return self._first_seed if self._state is None else self._state.seed

    def _checked(self, partition: Any) -> Any:
        # As given, but nothing that somebody else could change.
        if isinstance(partition, str):
            Shards(self.num_shards, partition, seed=0)
            return partition
        if isinstance(partition, Shards):
            if partition.num_shards != self.num_shards:
                raise ValueError(
                    f"'partition' needs to make {self.num_shards} shards "
                    f'(got {partition.num_shards})'
                )
            return copy.copy(partition)
        if isinstance(partition, Tensor):
            return partition.clone()
        if isinstance(partition, Sequence):
            if len(partition) != self.num_shards:
                raise ValueError(
                    f"'partition' needs to name {self.num_shards} shards "
                    f'(got {len(partition)})'
                )
            return [_names('partition', names) for names in partition]
        raise TypeError(
            "'partition' needs to be the name of a method, a Shards, a tensor "
            f'or a list of tensors (got {type(partition).__name__})'
        )

    def _shards(self, given: Any, progress_bar: bool = False) -> Any:
        if isinstance(given, str):
            seed = rng.derive(self._seed, _PARTITION)
            return Shards(
                self.num_shards, given, seed=seed, progress_bar=progress_bar
            )
        return given

    def _copy(self, data: Data) -> Data:
        if not isinstance(data, Data):
            raise TypeError(
                f"'data' needs to be a Data object (got {type(data).__name__})"
            )
        x, n = data.get('x'), int(data.num_nodes)
        if (
            not isinstance(x, Tensor)
            or x.dim() != 2
            or not x.is_floating_point()
            or x.size(0) != n
        ):
            raise ValueError(
                f"'data' needs to have features 'x' of the shape [{n}, "
                f'channels], floating point (got {_kind(x)})'
            )
        if not bool(x.isfinite().all()):
            raise ValueError("'x' needs to be finite")
        y = data.get('y')
        if (
            not isinstance(y, Tensor)
            or y.shape != (n,)
            or y.dtype != torch.int64
        ):
            raise ValueError(
                f"'data' needs to have labels 'y' of the shape [{n}], int64 "
                f'(got {_kind(y)})'
            )
        index = training_nodes(data)
        check_shards(index.numel(), self.num_shards)
        missing = index[y[index] < 0]
        if missing.numel() > 0:
            raise ValueError(
                "'y' needs to hold a label for every training node (got "
                f'{int(y[missing[0]])} for node {int(missing[0])})'
            )
        # For its checks of the edges.
        CSRGraph.from_data(data, duplicates='keep')
        kept = Data(
            x=x.detach().cpu().clone(memory_format=torch.contiguous_format),
            edge_index=data.edge_index.cpu().clone(),
            y=y.cpu().clone(),
            n_id=torch.arange(n),
            num_nodes=n,
        )
        weight = data.get('edge_weight')
        if weight is not None:
            kept.edge_weight = weight.detach().cpu().clone()
        for name in _MASKS:
            mask = data.get(name)
            if isinstance(mask, Tensor) and mask.shape == (n,):
                kept[name] = mask.cpu().clone()
        n_id = data.get('n_id')
        if n_id is not None:
            if (
                n_id.shape != (n,)
                or n_id.dtype != torch.int64
                or bool((n_id < 0).any())
                or n_id.unique().numel() < n
            ):
                raise ValueError(
                    "'n_id' needs to hold different non-negative names, "
                    f'int64, [{n}]'
                )
            kept.n_id = n_id.cpu().clone()
        return kept

    def _check_other(self, data: Data) -> None:
        # Another graph for the same models.
        check_instance('data', data, Data)
        width = self._fitted.data.x.size(1)
        check_tensor('data.x', data.get('x'), None, (data.num_nodes, width))
        CSRGraph.from_data(data, duplicates='keep')

    def _count_classes(self, data: Data) -> int:
        largest = int(data.y[data.train_mask].max()) + 1
        if self.num_classes is None:
            return max(largest, int(data.y.max()) + 1)
        if largest > self.num_classes:
            raise ValueError(
                f"'y' needs to be in [0, {self.num_classes}) for every "
                f'training node (got {largest - 1})'
            )
        return self.num_classes

    def _divide(self, data: Data, given: Any, progress_bar: bool) -> Data:
        # The graph with the shard of every node, -1 outside of training.
        partition = self._shards(given, progress_bar)
        if isinstance(partition, Shards):
            made = partition(data)
        else:
            index = training_nodes(data)
            shard = partition
            if not isinstance(shard, Tensor):
                shard = partition_from_lists(shard, data.n_id[index])
            check_partition(shard, self.num_shards, index.numel())
            made = copy.copy(data)
            made.shard = torch.full((int(data.num_nodes),), -1)
            made.shard[index] = shard
        check_partition(made.shard[data.train_mask], self.num_shards)
        return made

    def _exactness(self, state: _State) -> tuple[bool, str]:
        partition = self._shards(state.partition)
        if isinstance(partition, Shards) and partition.exact:
            return True, (
                'exact: a node goes to the shard that a keyed hash of its '
                'name gives, so that everything equals a fresh start on the '
                'remaining data'
            )
        seen = 'what its author looked at'
        if isinstance(partition, Shards):
            seen = partition.seen
        if state.fresh:
            return True, (
                'exact so far: nothing was removed since the partition was '
                f'made, which has seen {seen}; after a removal, exact given '
                'the partition'
            )
        return False, (
            'exact given the partition: models and aggregator equal those of '
            'a fresh start with the same partition, but that has seen '
            f'{seen}, with what was removed; repartition() starts over'
        )

    def _origin(self) -> dict[str, Any]:
        # Without the seed, which salts the hashes.
        return provenance(
            num_shards=self.num_shards,
            partition=_described(self._given),
            aggregator=_settings(self._aggregator),
            aggregator_nodes=self.aggregator_nodes,
            sparse_adj=self.sparse_adj,
            trainer=self.trainer,
            **asdict(self.recipe),
        )

    # Private: removal #######################################################

    def _queued(self) -> tuple[RemovalRequest, ...]:
        queue = self._fitted.queue
        if not queue:
            raise ValueError('the queue is empty')
        return queue

    def _check_queue(self, state: _State, request: RemovalRequest) -> None:
        if not isinstance(request, RemovalRequest):
            raise TypeError(
                "'request' needs to be a RemovalRequest "
                f'(got {type(request).__name__})'
            )
        if request.graphs != [0] or request.parts[0].whole:
            raise ValueError(
                "'request' needs to name nodes, features or edges of graph "
                f'0, the only one (got graphs {request.graphs})'
            )
        queued = set().union(*(_named(r.parts[0]) for r in state.queue))
        for what in _named(request.parts[0]):
            if what in queued:
                raise ValueError(
                    f'{what[0]} {what[1]} is in the queue already'
                )

    def _without(
        self, data: Data, request: RemovalRequest
    ) -> tuple[Data, tuple[int, ...]]:
        # The graph that remains, and the shards to train again.
        part = request.parts[0]
        left = remove_from_data(data, part)
        empty = shard_sizes(left.shard, self.num_shards) == 0
        if bool(empty.any()):
            raise ValueError(
                'the request would leave shard '
                f'{int(empty.nonzero()[0])} without a training node'
            )
        count = [
            d.y[d.shard >= 0].bincount(minlength=int(data.y.max()) + 1)
            for d in (data, left)
        ]
        lost = (count[0] > 0) & (count[1] == 0)
        if bool(lost.any()):
            raise ValueError(
                f'the request would leave class {int(lost.nonzero()[0])} '
                'without a training node'
            )
        return left, _touched(data, part)

    def _remove(
        self,
        state: _State,
        request: RemovalRequest,
        queue: tuple[RemovalRequest, ...],
        progress_bar: bool,
    ) -> ShardRemovalReport:
        data, touched = self._without(state.data, request)
        if queue:
            try:
                self._without(data, RemovalRequest.batch(queue))
            except ValueError as error:
                raise ValueError(
                    f'what is in the queue would be impossible then: {error}'
                ) from None
        ledger = state.ledger.copy()
        ledger_line = ('retrain', request.to_dict())
        new = self._build(
            state, data, touched, ledger, progress_bar, *ledger_line
        )
        new = new._replace(queue=queue)
        nodes, fraction = self._cost(data, touched)
        exact, exactness = self._exactness(new)
        report = ShardRemovalReport(
            request=request.to_dict(),
            shards=touched,
            nodes=nodes,
            node_epochs=nodes * self.recipe.epochs,
            fraction=fraction,
            aggregator_nodes=self._sample(data).numel(),
            seconds=new.work.seconds,
            trainer=new.work.trainer,
            note=new.work.note,
            exact=exact,
            exactness=exactness,
            assumptions=_ASSUMPTIONS,
            origin=self._origin(),
        )
        # Last of all, so that a removal that fails is none.
        self._commit(new)
        return report

    def _cost(self, data: Data, shards: Sequence[int]) -> tuple[int, float]:
        sizes = shard_sizes(data.shard, self.num_shards)
        nodes = int(sizes[list(shards)].sum())
        return nodes, nodes / int(sizes.sum())

    def _fresh(
        self,
        data: Data,
        num_classes: int,
        given: Any,
        ledger: RemovalLedger,
        action: str,
        progress_bar: bool,
    ) -> _State:
        # Everything from scratch.
        data = self._divide(data, given, progress_bar)
        first = _as_shard(self._parts(data, [0])[0], self._shard_seed(0))
        out = evaluate(build(self.model_factory, first), first.inputs)
        if not isinstance(out, Tensor) or out.shape[1:] != (num_classes,):
            raise ValueError(
                "'model_factory' needs to make models with outputs of the "
                f'shape [num_nodes, {num_classes}], one per class '
                f'(got {_kind(out)})'
            )
        # What it does not say is written below.
        empty = _State(
            seed=self._seed,
            partition=given,
            data=data,
            num_classes=num_classes,
            checkpoints=(),
            outputs=data.x,
            aggregator=self._aggregator,
            ledger=ledger,
            queue=(),
            fresh=True,
            work=_Work((), {}, '', ''),
        )
        shards = range(self.num_shards)
        state = self._build(empty, data, shards, ledger, progress_bar, action)
        return state._replace(fresh=True)

    def _build(
        self,
        state: _State,
        data: Data,
        shards: Sequence[int],
        ledger: RemovalLedger,
        progress_bar: bool,
        action: str,
        request: dict[str, Any] | None = None,
    ) -> _State:
        # The state in which these shards are trained on the graph.
        clock = [time.perf_counter()]
        trained, how = self._train(data, shards, self.trainer, progress_bar)
        clock.append(time.perf_counter())
        made = tuple(
            trained[shard] if shard in trained else state.checkpoints[shard]
            for shard in range(self.num_shards)
        )
        outputs = self._outputs(data, made, progress_bar)
        clock.append(time.perf_counter())
        aggregator = self._aggregate(data, outputs, progress_bar)
        clock.append(time.perf_counter())
        ledger.record(action, 0.0, request, self._digest(data, made))
        names = ('shards', 'inference', 'aggregator')
        seconds = {
            name: end - start
            for name, start, end in zip(
                names, clock[:-1], clock[1:], strict=True
            )
        }
        return state._replace(
            data=data,
            checkpoints=made,
            outputs=outputs,
            aggregator=aggregator,
            ledger=ledger,
            fresh=False,
            work=_Work(tuple(shards), seconds, how.trainer, how.note),
        )

    def _parts(self, data: Data, shards: Iterable[int]) -> dict[int, Data]:
        # Nothing is shuffled: without a seed, one would be drawn.
        loader = ShardLoader(data, num_shards=self.num_shards, seed=0)
        return {shard: loader.dataset[shard] for shard in shards}

    def _shard_seed(self, shard: int) -> int:
        return rng.derive(self._seed, _SHARD, shard)

    def _train(
        self,
        data: Data,
        shards: Iterable[int],
        trainer: str,
        progress_bar: bool,
    ) -> tuple[dict[int, _Checkpoint], Trained]:
        parts = self._parts(data, shards)
        if not parts:
            return {}, Trained([], trainer)
        done = train(
            self.model_factory,
            [_as_shard(p, self._shard_seed(s)) for s, p in parts.items()],
            self.recipe,
            trainer=trainer,
            num_workers=self.num_workers,
            progress_bar=progress_bar,
        )
        made = {
            shard: _Checkpoint(
                self._key(shard, part), part.n_id.clone(), weights
            )
            for (shard, part), weights in zip(
                parts.items(), done.states, strict=True
            )
        }
        return made, done

    def _outputs(
        self,
        data: Data,
        checkpoints: Sequence[_Checkpoint],
        progress_bar: bool = False,
    ) -> Tensor:
        # What every model says about every node: [num_shards, num_nodes, C].
        with rng.forked(self._seed):
            module = self.model_factory()
        graph = _as_shard(data, 0)
        inputs = graph.inputs
        if self.sparse_adj:
            inputs = (graph.x, transposed_adjacency(graph))
        features = None
        if self.recipe.sparse_x:
            sizes = [data.x.size(0)]
            features = Features.from_dense(data.x, sizes, transposed=False)
        outputs = []
        for checkpoint in tqdm(
            checkpoints, disable=not progress_bar, desc='inference'
        ):
            module.load_state_dict(checkpoint.weights)
            outputs.append(evaluate(module, inputs, features))
        return torch.stack(outputs)

    def _sample(self, data: Data) -> Tensor:
        # By hashes of names: those that stay do not change when others go.
        index = (data.shard >= 0).nonzero().view(-1)
        order = rng.derive_each(
            rng.derive(self._seed, _SAMPLE), data.n_id[index]
        )
        chosen = order.argsort(stable=True)[: self.aggregator_nodes]
        return index[chosen].sort().values

    def _aggregate(
        self, data: Data, outputs: Tensor, progress_bar: bool
    ) -> ShardAggregator:
        aggregator = copy.deepcopy(self._aggregator)
        with single_thread(), torch.enable_grad():
            return aggregator.fit(
                outputs,
                data.y,
                self._sample(data),
                data.edge_index,
                data.shard,
                seed=rng.derive(self._seed, _AGGREGATOR),
                progress_bar=progress_bar,
            ).eval()

    # Private: state #########################################################

    def _key(self, shard: int, part: Data) -> str:
        # Salted: who does not know the seed can't guess small shards.
        salt = json.dumps([asdict(self.recipe), self._shard_seed(shard)])
        return fingerprint(salt, part)

    def _digest(self, data: Data, checkpoints: Sequence[_Checkpoint]) -> str:
        prints = {i: made.key for i, made in enumerate(checkpoints)}
        # What the keys cover needs no second reading.
        rest = copy.copy(data)
        rest.x = data.x[data.shard < 0]
        prints[-1] = fingerprint(str(self._seed), rest)
        return fingerprints(prints)

    def _config(self) -> dict[str, Any]:
        return {
            **asdict(self.recipe),
            'num_shards': self.num_shards,
            'aggregator': _settings(self._aggregator),
            'aggregator_nodes': self.aggregator_nodes,
            'sparse_adj': self.sparse_adj,
        }

    def _packed(self, state: _State) -> dict[str, Any]:
        return {
            'config': self._config(),
            'seed': state.seed,
            'partition': _plain(state.partition),
            'num_classes': state.num_classes,
            'fresh': state.fresh,
            'work': [*state.work],
            'data': state.data.to_dict(),
            'checkpoints': {
                shard: made._asdict()
                for shard, made in enumerate(state.checkpoints)
            },
            'aggregator': state.aggregator.state_dict(),
            'ledger': state.ledger.state_dict(),
            'queue': [request.to_dict()['0'] for request in state.queue],
        }

    def _unpacked(self, packed: dict[str, Any], progress_bar: bool) -> _State:
        try:
            return self._unpack(packed, progress_bar)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                "'state' needs to be what state_dict() returns "
                f'({type(error).__name__}: {error})'
            ) from error

    def _unpack(self, packed: dict[str, Any], progress_bar: bool) -> _State:
        if packed['config'] != self._config():
            raise ValueError(
                'the state was saved with other arguments (got '
                f'{packed["config"]}, need {self._config()})'
            )
        if packed['partition'] != _plain(self._given) and (
            self._state is None
            or packed['partition'] != _plain(self._state.partition)
        ):
            raise ValueError(
                "the state's partition is another one (got "
                f'{packed["partition"]["name"]})'
            )
        ledger = RemovalLedger(0.0)
        if self._state is not None:
            ledger = self._state.ledger.copy()
        ledger.load_state_dict(packed['ledger'])
        data = Data.from_dict(dict(packed['data']))
        checkpoints = tuple(
            _Checkpoint(**packed['checkpoints'][shard])
            for shard in range(self.num_shards)
        )
        # One with the seed of the state.
        other = copy.copy(self)
        other._state, other._first_seed = (
            None,
            check_integer('seed', packed['seed'], 0),
        )
        parts = other._parts(data, range(self.num_shards))
        for shard, part in parts.items():
            if other._key(shard, part) != checkpoints[shard].key:
                raise ValueError(
                    f'the checkpoint of shard {shard} is not that of the '
                    "state's data"
                )
        if ledger.entries[-1].data != other._digest(data, checkpoints):
            raise ValueError(
                'the data of the state are not those of its ledger'
            )
        try:
            outputs = other._outputs(data, checkpoints, progress_bar)
            aggregator = copy.deepcopy(self._aggregator)
            aggregator.load_state_dict(packed['aggregator'])
        except RuntimeError as error:
            raise ValueError(
                "the state is not that of 'model_factory' and 'aggregator': "
                f'{error}'
            ) from None
        fresh, given = packed['fresh'], self._given
        check_instance('fresh', fresh, bool)
        if packed['partition'] != _plain(given) and self._state is not None:
            given = self._state.partition
        return _State(
            seed=other._first_seed,
            partition=given,
            data=data,
            num_classes=check_integer('num_classes', packed['num_classes']),
            checkpoints=checkpoints,
            outputs=outputs,
            aggregator=aggregator.eval(),
            ledger=ledger,
            queue=tuple(RemovalRequest(**part) for part in packed['queue']),
            fresh=fresh,
            work=_Work(*packed['work']),
        )

    def _store(self, folder: str | Path | None) -> ShardStore:
        if folder is not None:
            check_instance('folder', folder, str, Path)
        folder = self.folder if folder is None else Path(folder)
        if folder is None:
            raise ValueError(
                "'folder' needs to be given, here or to the class"
            )
        return ShardStore(folder)

    def _commit(self, state: _State, restart: bool = False) -> None:
        # The one place where a new state takes the place of the old: on the
        # disk by the switch of the manifest, in memory by one assignment.
        if self.folder is None:
            self._state = state
            return
        store = ShardStore(self.folder)
        parts, plain = _filed(self._packed(state))
        if not restart:
            _guard(store, state)
        try:
            store.write(parts, plain)
            self._state = state
        except BaseException:
            # After the switch there is no way back.
            if _in_force(store, plain):
                self._state = state
            raise

    def _leftovers(self, state: _State) -> tuple[str, ...]:
        data = state.data
        there = set(data.n_id.tolist())
        row = {name: i for i, name in enumerate(data.n_id.tolist())}
        ends = data.n_id[data.edge_index].t().tolist()
        edges = {(u, v) for u, v in ends}
        trained_on = {
            name: shard
            for shard, made in enumerate(state.checkpoints)
            for name in made.n_id.tolist()
        }
        queued = set().union(*(_named(r.parts[0]) for r in state.queue))
        found = []
        for entry in state.ledger.entries:
            part = entry.request.get('0', {})
            for name in part.get('nodes', []):
                if name in there:
                    found.append(f'node {name}')
                if name in trained_on:
                    found.append(
                        f'node {name} in the checkpoint of shard '
                        f'{trained_on[name]}'
                    )
                if ('node', name) in queued:
                    found.append(f'node {name} in the queue')
            found += [
                f'features of node {name}'
                for name in part.get('features', [])
                if name in there and bool(data.x[row[name]].any())
            ]
            found += [
                f'edge {u} -> {v}'
                for u, v in part.get('edges', [])
                if (u, v) in edges
            ]
        tensors: dict[str, Tensor] = {'outputs': state.outputs}
        for key, value in data.to_dict().items():
            if isinstance(value, Tensor):
                tensors[f'{key} of the graph'] = value
        for shard, made in enumerate(state.checkpoints):
            tensors[f'n_id of shard {shard}'] = made.n_id
            for name, value in made.weights.items():
                tensors[f'{name} of shard {shard}'] = value
        for name, value in state.aggregator.state_dict().items():
            tensors[f'{name} of the aggregator'] = value
        found += [
            f'{name} is a view into a larger tensor'
            for name, value in tensors.items()
            if value.untyped_storage().nbytes()
            > value.numel() * value.element_size()
        ]
        if self.folder is not None:
            store = ShardStore(self.folder)
            _, plain = _filed(self._packed(state))
            if not _in_force(store, plain):
                found.append(f'the state in {self.folder} is another one')
            found += [
                f'{path} is not of the present state: purge()'
                for path in store.strangers()
            ]
        return tuple(found)


_ASSUMPTIONS = (
    'requests do not depend on a released model',
    'labels, features and edges of what remains were not made from what was '
    'removed',
    'the model factory gives the same model for the same state of '
    "torch's default generator",
    'bits are those of one machine and one version of torch',
)


def _as_shard(part: Data, seed: int) -> Shard:
    return Shard(
        seed, part.x, part.y, part.edge_index, part.get('edge_weight')
    )


def _names(name: str, values: Any) -> Tensor:
    # A copy, of integers.
    try:
        names = torch.as_tensor(values).clone().view(-1)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"'{name}' needs to hold integers (got {values!r})"
        ) from None
    whole = not (names.is_floating_point() or names.is_complex())
    # An empty list makes a tensor of floats.
    if names.numel() > 0 and (names.dtype == torch.bool or not whole):
        raise TypeError(f"'{name}' needs to hold integers (got {names.dtype})")
    return names.long()


def _rows(n_id: Tensor, names: Tensor) -> Tensor:
    # Where the names are in the present graph.
    order = n_id.argsort()
    place = torch.searchsorted(n_id[order], names)
    rows = order[place.clamp(max=n_id.numel() - 1)]
    missing = names[n_id[rows] != names]
    if missing.numel() > 0:
        raise ValueError(
            f'node {int(missing[0])} is not there: it never was, or was '
            'removed before'
        )
    return rows


def _touched(data: Data, part: Part) -> tuple[int, ...]:
    # The shards whose training data a request changes.
    nodes = torch.tensor([*part.nodes, *part.features], dtype=torch.int64)
    touched = data.shard[_rows(data.n_id, nodes)]
    if part.edges:
        ends = torch.tensor(part.edges, dtype=torch.int64)
        one, two = data.shard[_rows(data.n_id, ends.view(-1))].view(-1, 2).t()
        touched = torch.cat([touched, one[one == two]])
    return tuple(touched[touched >= 0].unique().tolist())


def _named(part: Part) -> set[tuple[str, Any]]:
    return {
        *(('node', v) for v in part.nodes),
        *(('features of node', v) for v in part.features),
        *(('edge', (min(edge), max(edge))) for edge in part.edges),
    }


def _equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) for name in one
    )


def _plain(partition: Any) -> dict[str, Any]:
    # To compare two partitions by.
    if isinstance(partition, Shards):
        rest = {
            key: value
            for key, value in sorted(vars(partition).items())
            if isinstance(value, str | int | float | dict | None)
            and key != 'progress_bar'
        }
        return {'name': repr(partition), **rest}
    if isinstance(partition, str):
        return {'name': partition}
    if isinstance(partition, Tensor):
        return {'name': 'a tensor', 'shard': partition.tolist()}
    return {'name': 'a list', 'shards': [v.tolist() for v in partition]}


def _described(partition: Any) -> str:
    if isinstance(partition, Shards):
        return repr(partition)
    if isinstance(partition, str):
        return partition
    if isinstance(partition, Tensor):
        return 'a tensor'
    return 'a list'


def _settings(aggregator: ShardAggregator) -> dict[str, Any]:
    plain = {
        key: value
        for key, value in vars(aggregator).items()
        if not key.startswith('_') and isinstance(value, str | int | float)
    }
    plain.pop('training', None)
    return {'type': type(aggregator).__name__, **plain}


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f'{value.dtype} {list(value.shape)}'
    return type(value).__name__


def _filed(packed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    # What goes to files, and what to the manifest.
    parts = {
        f'shard-{shard}-{made["key"][:16]}': made
        for shard, made in packed['checkpoints'].items()
    }
    parts['data'] = packed['data']
    parts['rest'] = {
        key: packed[key]
        for key in (
            'config',
            'seed',
            'partition',
            'num_classes',
            'fresh',
            'aggregator',
        )
    }
    plain = {key: packed[key] for key in ('ledger', 'queue', 'work')}
    return parts, json.loads(json.dumps(plain))


def _unfiled(
    parts: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, Any]:
    packed = {**parts.pop('rest'), 'data': parts.pop('data')}
    packed['checkpoints'] = {
        int(name.split('-')[1]): made for name, made in parts.items()
    }
    return {**packed, **{k: manifest[k] for k in ('ledger', 'queue', 'work')}}


def _guard(store: ShardStore, state: _State) -> None:
    # A folder goes forward, too.
    manifest = store.manifest()
    if manifest is None:
        return
    ledger = RemovalLedger(0.0)
    try:
        ledger.load_state_dict(manifest['ledger'])
        ledger.load_state_dict(state.ledger.state_dict())
    except ValueError:
        raise ValueError(
            f"'folder' {store.folder} holds another unlearner, or a later "
            'state of this one'
        ) from None


def _in_force(store: ShardStore, plain: dict[str, Any]) -> bool:
    manifest = store.manifest()
    return manifest is not None and all(
        manifest.get(key) == value for key, value in plain.items()
    )
