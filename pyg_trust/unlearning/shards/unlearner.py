r"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker.

The training nodes are divided into shards, a model is trained on every shard
alone, and an aggregator makes one prediction of theirs. To forget a node, the
model of its shard is trained again without it, and so is the aggregator,
which has seen labels and the outputs of all models.
"""

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
)
from pyg_trust.commit import ObjectLock, synchronized
from pyg_trust.functional.partition import (
    check_partition,
    check_shards,
    hash_partition,
    partition_from_lists,
    shard_sizes,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import RemovalLedger, Seals
from pyg_trust.loader.shard_loader import ShardDataset
from pyg_trust.nn.shard_aggregator import (
    AGGREGATORS,
    ShardAggregator,
    make_aggregator,
)
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.transforms.shards import METHODS, Shards, training_nodes
from pyg_trust.unlearning.shards.graph import (
    as_shard,
    copied,
    count_classes,
    kind_of,
    name_tensor,
    named_items,
    rows_of,
    touched_shards,
    without_features,
)
from pyg_trust.unlearning.shards.inference import evaluate_all
from pyg_trust.unlearning.shards.poisoning import (
    PoisonCertificate,
    certify_shards,
)
from pyg_trust.unlearning.shards.products import (
    clear_rows,
    select_rows,
)
from pyg_trust.unlearning.shards.reports import (
    ASSUMPTIONS,
    FROM_SEED,
    FROM_SYSTEM,
    ShardPlan,
    ShardRemovalReport,
    ShardReport,
    ShardVerifyReport,
)
from pyg_trust.unlearning.shards.state import (
    Checkpoint,
    State,
    Stateful,
    Work,
    described,
    plain_settings,
)
from pyg_trust.unlearning.shards.training import (
    Recipe,
    Trained,
    check_model,
    check_trainer,
    equal_tensors,
    single_thread,
    train,
)
from pyg_trust.unlearning.store import ShardStore

# Parts of the seed.
_SHARD, _PARTITION, _AGGREGATOR, _SAMPLE = 0, 1, 2, 3


class ShardedUnlearner(Stateful):
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

    **Empty shards.** A shard whose last training node goes is a constant
    voter: uniform probabilities, and no vote in a majority. A class may lose
    its last training node if :obj:`num_classes` is given, so that a fresh
    start would know of it too. The report names empty shards.

    **Names.** Nodes keep the names that :meth:`fit` saw, ``data.n_id`` if it
    is there, else positions, whatever is removed in between. Predictions for
    the present graph are in its order: row ``i`` is node ``n_id[i]``.

    **Failures.** Whatever interrupts a removal leaves the old state or the
    new one. With a :obj:`folder`, the same holds on the disk, and a removal
    ends with the files that it replaces being deleted (``load()`` finishes
    that for a process that was killed), unless :obj:`keep_history` is set.
    Threads take turns. Of two processes with one folder, the one that comes
    second is refused with a :class:`~pyg_trust.commit.StaleStateError` and
    can ``load()`` and repeat its request.

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
        sparse_x (bool): keep features that are mostly zero as rows of
            nonzeros, and multiply them so in linear layers that take them as
            they come. (default: :obj:`False`)
        sparse_adj (bool): multiply by the graph as a sparse matrix in the
            layers that are known for it (:obj:`GCNConv`, :obj:`APPNP`,
            :obj:`GCN2Conv`, :obj:`SGConv`, :obj:`SAGEConv`, :obj:`GINConv`
            and :obj:`GraphConv`), in less time and memory; others sum over
            the edge list as they are written. (default: :obj:`True`)
        trainer (str): :obj:`'sequential'`, or :obj:`'process'` (for which
            scripts need the usual ``if __name__ == '__main__'``, and models a
            class that can be imported). Both give the same bits.
            (default: :obj:`'sequential'`)
        num_workers (int, optional): the number of processes.
            (default: :obj:`None`)
        folder (str or Path, optional): where every new state is written
            before it becomes visible, and which then holds no file of an
            earlier one. (default: :obj:`None`)
        keep_history (bool): leave the files of earlier states in the folder,
            with what was removed, until ``purge()``; reports say so.
            (default: :obj:`False`)
        seed (int, optional): the seed of everything, the keys of hashes
            included, and named in reports; by default from the operating
            system. Shard :math:`i` has the seed :math:`f(\text{seed}, i)`.
            (default: :obj:`None`)

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
        sparse_adj: bool = True,
        trainer: str = 'sequential',
        num_workers: int | None = None,
        folder: str | Path | None = None,
        keep_history: bool = False,
        seed: int | None = None,
    ) -> None:
        check_callable('model_factory', model_factory)
        if isinstance(model_factory, Module):
            raise TypeError(
                "'model_factory' needs to make a new model at every call, as "
                f'lambda: {type(model_factory).__name__}(...) does (got a '
                'model)'
            )
        if not isinstance(aggregator, ShardAggregator):
            check_choice('aggregator', aggregator, AGGREGATORS)
        check_shards(num_shards, num_shards)
        trainer = check_trainer(trainer)
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
        self.recipe = Recipe(
            epochs,
            lr,
            weight_decay,
            optimizer,
            bool(sparse_x),
            bool(sparse_adj),
        )
        self.trainer = trainer
        self.num_workers = num_workers
        check_instance('keep_history', keep_history, bool)
        # Absolute: a change of the working directory is none of the folder.
        self.folder = None if folder is None else Path(folder).absolute()
        self.keep_history = keep_history
        self._lock = ObjectLock()
        self._aggregator = copy.deepcopy(make_aggregator(aggregator))
        self._state: State | None = None
        self._given = self._checked(partition)
        self._first_seed = rng.resolve_secret(seed)
        self._first_seeded = seed is not None

    # Training and prediction ################################################

    @synchronized
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
                there are fewer training nodes than shards (hash shards may be
                empty), or the partition does not fit them; if the models'
                outputs have the wrong width, or models are no function of
                their data and seed.
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
        least = self.num_shards
        partition = self._shards(self._given)
        if isinstance(partition, Shards) and partition.exact:
            least = 1
        kept = copied(data, least, self.recipe.sparse_x)
        num_classes = count_classes(kept, self.num_classes)
        ledger = RemovalLedger(0.0)
        new = self._fresh(
            kept, num_classes, self._given, ledger, 'fit', progress_bar
        )
        self._commit(new)
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
            outputs = self._outputs(
                data, state.checkpoints, state.num_classes, progress_bar
            )
        with single_thread():
            probability = state.aggregator(outputs)
        if nodes is None:
            return probability
        names = name_tensor('nodes', nodes)
        return probability[rows_of(state.data.n_id, names)]

    @property
    def data(self) -> Data:
        """The present graph, with ``n_id`` and ``shard``, as a copy."""
        kept = self._fitted.data
        made = without_features(kept).clone()
        made.x = kept.x.to_dense().clone()
        return made

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
        """The account of what was done, a copy; nothing is ever spent."""
        return self._fitted.ledger.copy()

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

    @synchronized
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
        light = without_features(state.data)
        data, touched = self._without(light, whole)
        per_shard = dict.fromkeys(touched, 0)
        for part in requests:
            for shard in touched_shards(light, part.parts[0]):
                per_shard[shard] += 1
        nodes = self._nodes(data, touched)
        seconds, fraction = self._estimate(state.work, touched)
        return ShardPlan(
            request=whole.to_dict(),
            shards=touched,
            requests_per_shard=per_shard,
            nodes=nodes,
            node_epochs=nodes * self.recipe.epochs,
            full_node_epochs=int((data.shard >= 0).sum()) * self.recipe.epochs,
            seconds=seconds,
            fraction=fraction,
            aggregator_nodes=self._sample(data).numel(),
        )

    @synchronized
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
                the queue; if no training node would be left, or none of a
                class without :obj:`num_classes`.
        """
        state = self._fitted
        self._check_queue(state, request)
        return self._remove(state, request, state.queue, progress_bar)

    @synchronized
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
        light = without_features(state.data)
        self._without(light, RemovalRequest.batch(queue))
        self._commit(state._replace(queue=queue))
        return len(queue)

    @synchronized
    def flush(self, *, progress_bar: bool = False) -> ShardRemovalReport:
        """Forgets what is in the queue, as one request.

        Args:
            progress_bar (bool): whether to show one.
                (default: :obj:`False`)

        Raises:
            ValueError: if the queue is empty, or is no longer possible; then
                the queue is as before, and :meth:`withdraw` helps.
        """
        queue = self._queued()
        request = RemovalRequest.batch(queue)
        return self._remove(self._fitted, request, (), progress_bar)

    @synchronized
    def withdraw(self) -> tuple[RemovalRequest, ...]:
        """Empties the queue without forgetting, and returns what was in it."""
        state = self._fitted
        self._commit(state._replace(queue=()))
        return state.queue

    @synchronized
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

    @synchronized
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
        trainer = check_trainer(trainer)
        trained, _ = self._train(state.data, which, trainer, progress_bar)
        differing = tuple(
            shard
            for shard, fresh in trained.items()
            if not equal_tensors(
                fresh.weights, state.checkpoints[shard].weights
            )
        )
        parts = self._parts(state.data, range(self.num_shards))
        everything = self._contents(state.data, range(self.num_shards))
        keys = not state.seals.differing(everything) and all(
            state.seals.digest(shard) == state.checkpoints[shard].key
            and torch.equal(part.n_id, state.checkpoints[shard].n_id)
            for shard, part in parts.items()
        )
        outputs = self._outputs(
            state.data, state.checkpoints, state.num_classes, progress_bar
        )
        aggregator = self._aggregate(state.data, outputs, progress_bar)
        same_outputs = torch.equal(outputs, state.outputs)
        same_aggregator = equal_tensors(
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

    @synchronized
    def report(self) -> ShardReport:
        """What the unlearner is now, and what its guarantee means."""
        state = self._fitted
        sizes = shard_sizes(state.data.shard, self.num_shards)
        exact, exactness = self._exactness(state)
        removals = [e for e in state.ledger.entries if e.request]
        return ShardReport(
            secrets=FROM_SEED if state.seeded else FROM_SYSTEM,
            num_nodes=int(state.data.num_nodes),
            num_train=int(sizes.sum()),
            shard_sizes=tuple(sizes.tolist()),
            empty=self._empty(state.data),
            imbalance=float(sizes.max() / sizes.double().mean()),
            partition=described(state.partition),
            exact=exact,
            exactness=exactness,
            keeps_history=self._keeps_history,
            removals=len(removals),
            queued=len(state.queue),
            seconds=state.work.seconds,
            trainer=state.work.trainer,
            assumptions=ASSUMPTIONS,
            origin=self._origin(),
        )

    @torch.no_grad()
    def certify(
        self, nodes: Any = None, *, inference: str = 'isolated'
    ) -> PoisonCertificate:
        r"""Certifies which classes poisoned nodes can't change.

        At ``inference='isolated'``, vote :math:`i` comes from model
        :math:`i` hearing nodes of group :math:`i` alone, by the hash that
        makes the shards, extended to all nodes. Then any nodes :math:`U`
        other than the target, inserted, deleted or changed at will in
        training *and* at inference, leave its class as it is, if their
        groups are no more than its radius. At ``'clean'`` the votes are
        those of :meth:`predict`, and only changes of the training data are
        covered.

        Args:
            nodes (list[int] or Tensor, optional): names of the targets; by
                default all. (default: :obj:`None`)
            inference (str): :obj:`'isolated'` or :obj:`'clean'`.
                (default: :obj:`'isolated'`)

        Returns:
            PoisonCertificate: classes, votes and radii.

        Raises:
            ValueError: if the partition is not :obj:`'hash'`, the aggregator
                is a fitted one, :obj:`num_classes` was not given, a name is
                unknown, or the model mixes nodes that no edge joins.
        """
        state = self._fitted
        return certify_shards(
            self.data,
            state.outputs,
            self._shards(state.partition),
            state.aggregator,
            self.num_classes,
            lambda view, i: self._outputs(
                view, [state.checkpoints[i]], state.num_classes
            )[0],
            nodes=nodes,
            inference=inference,
            fingerprint=state.seals.root,
            provenance=self._origin(),
            weights=self._weights(state),
        )

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(num_shards={self.num_shards}, '
            f'partition={described(self._given)}, '
            f'aggregator={type(self._aggregator).__name__}, '
            f'epochs={self.recipe.epochs}, trainer={self.trainer!r})'
        )

    # Private: arguments and data ############################################

    def _checked(self, partition: Any) -> Any:
        # As given, but nothing that somebody else could change.
        if isinstance(partition, str):
            check_choice('partition', partition, METHODS)
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
            return [name_tensor('partition', names) for names in partition]
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

    def _check_other(self, data: Data) -> None:
        # Another graph for the same models.
        check_instance('data', data, Data)
        width = self._fitted.data.x.size(1)
        check_tensor('data.x', data.get('x'), None, (data.num_nodes, width))
        CSRGraph.from_data(data, duplicates='keep')

    def _divide(self, data: Data, given: Any, progress_bar: bool) -> Data:
        # The graph with the shard of every node, -1 outside of training.
        partition = self._shards(given, progress_bar)
        index = training_nodes(data)
        if isinstance(partition, Shards) and partition.exact:
            # As it has to be possible after any removal.
            shard = hash_partition(
                data.n_id[index],
                self.num_shards,
                seed=partition.seed,
                allow_empty=True,
            )
            made = copy.copy(data)
            made.shard = torch.full((int(data.num_nodes),), -1)
            made.shard[index] = shard
        elif isinstance(partition, Shards):
            light = without_features(data)
            if partition.method != 'random':
                light.x = data.x.to_dense()
            made = copy.copy(data)
            made.shard = partition(light).shard
        else:
            shard = partition
            if not isinstance(shard, Tensor):
                shard = partition_from_lists(shard, data.n_id[index])
            check_partition(shard, self.num_shards, index.numel())
            made = copy.copy(data)
            made.shard = torch.full((int(data.num_nodes),), -1)
            made.shard[index] = shard
        return made

    def _exactness(self, state: State) -> tuple[bool, str]:
        partition = self._shards(state.partition)
        if isinstance(partition, Shards) and partition.exact:
            return True, (
                'exact: a node goes to the shard that a keyed hash of its '
                'name gives, so that everything equals a fresh start with '
                'the same seed on the remaining data, in the same order of '
                'nodes and edges'
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
            partition=described(self._given),
            aggregator=plain_settings(self._aggregator),
            aggregator_nodes=self.aggregator_nodes,
            trainer=self.trainer,
            **asdict(self.recipe),
        )

    @property
    def _keeps_history(self) -> bool:
        return self.folder is not None and self.keep_history

    # Private: removal #######################################################

    def _queued(self) -> tuple[RemovalRequest, ...]:
        queue = self._fitted.queue
        if not queue:
            raise ValueError('the queue is empty')
        return queue

    def _check_queue(self, state: State, request: RemovalRequest) -> None:
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
        queued = set().union(*(named_items(r.parts[0]) for r in state.queue))
        for what in named_items(request.parts[0]):
            if what in queued:
                raise ValueError(
                    f'{what[0]} {what[1]} is in the queue already'
                )

    def _without(
        self, data: Data, request: RemovalRequest
    ) -> tuple[Data, tuple[int, ...]]:
        # The graph that remains, and the shards to train again.
        part = request.parts[0]
        light = without_features(data)
        left = remove_from_data(light, part)
        # The features on their own: most of them stay where they are.
        if part.features:
            gone = rows_of(data.n_id, torch.tensor(part.features))
            left.x = clear_rows(data.x, gone)
        else:
            left.x = data.x
        if part.nodes:
            left.x = select_rows(left.x, rows_of(data.n_id, left.n_id))
        if not bool((left.shard >= 0).any()):
            raise ValueError('the request would leave no training node')
        count = [
            d.y[d.shard >= 0].bincount(minlength=int(data.y.max()) + 1)
            for d in (data, left)
        ]
        lost = (count[0] > 0) & (count[1] == 0)
        if self.num_classes is None and bool(lost.any()):
            raise ValueError(
                f'the request would leave class {int(lost.nonzero()[0])} '
                'without a training node, so that a fresh start would not '
                "know of it: give 'num_classes' to allow that"
            )
        return left, touched_shards(data, part)

    def _remove(
        self,
        state: State,
        request: RemovalRequest,
        queue: tuple[RemovalRequest, ...],
        progress_bar: bool,
    ) -> ShardRemovalReport:
        started = time.perf_counter()
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
            state,
            data,
            touched,
            ledger,
            progress_bar,
            *ledger_line,
            started=started,
        )
        new = new._replace(queue=queue)
        nodes = self._nodes(data, touched)
        full, _ = self._estimate(new.work, range(self.num_shards))
        exact, exactness = self._exactness(new)
        report = ShardRemovalReport(
            secrets=FROM_SEED if new.seeded else FROM_SYSTEM,
            request=request.to_dict(),
            shards=touched,
            empty=self._empty(data),
            nodes=nodes,
            node_epochs=nodes * self.recipe.epochs,
            fraction=sum(new.work.seconds.values()) / sum(full.values()),
            aggregator_nodes=self._sample(data).numel(),
            seconds=new.work.seconds,
            trainer=new.work.trainer,
            exact=exact,
            exactness=exactness,
            keeps_history=self._keeps_history,
            assumptions=ASSUMPTIONS,
            origin=self._origin(),
            weights=self._weights(new),
            data=new.seals.root,
        )
        # Last of all, so that a removal that fails is none.
        self._commit(new)
        return report

    @staticmethod
    def _weights(state: State) -> str:
        # Of what shard_state gives for every shard.
        shards = enumerate(state.checkpoints)
        return fingerprint_model({i: shard.weights for i, shard in shards})

    def _empty(self, data: Data) -> tuple[int, ...]:
        sizes = shard_sizes(data.shard, self.num_shards)
        return tuple((sizes == 0).nonzero().view(-1).tolist())

    def _nodes(self, data: Data, shards: Sequence[int]) -> int:
        sizes = shard_sizes(data.shard, self.num_shards)
        return int(sizes[list(shards)].sum())

    def _estimate(
        self, work: Work, shards: Sequence[int]
    ) -> tuple[dict[str, float], float]:
        # From what each part took last; over the same of all shards.
        training = sum(work.shard_seconds[shard] for shard in shards)
        seconds = {**work.seconds, 'shards': training}
        total = sum(seconds.values())
        return seconds, total / (total - training + sum(work.shard_seconds))

    def _fresh(
        self,
        data: Data,
        num_classes: int,
        given: Any,
        ledger: RemovalLedger,
        action: str,
        progress_bar: bool,
    ) -> State:
        # Everything from scratch.
        data = self._divide(data, given, progress_bar)
        sizes = shard_sizes(data.shard, self.num_shards)
        smallest = int(sizes.where(sizes > 0, sizes.max() + 1).argmin())
        probe = as_shard(
            self._parts(data, [smallest])[smallest], self._shard_seed(smallest)
        )
        out = check_model(self.model_factory, probe, self.recipe)
        if not isinstance(out, Tensor) or out.shape[1:] != (num_classes,):
            raise ValueError(
                "'model_factory' needs to make models with outputs of the "
                f'shape [num_nodes, {num_classes}], one per class '
                f'(got {kind_of(out)})'
            )
        # What it does not say is written below.
        empty = State(
            seed=self._seed,
            seeded=self._seeded,
            partition=given,
            data=data,
            num_classes=num_classes,
            checkpoints=(),
            outputs=data.x,
            aggregator=self._aggregator,
            ledger=ledger,
            queue=(),
            seals=Seals(),
            fresh=True,
            work=Work((), {}, '', (0.0,) * self.num_shards),
        )
        shards = range(self.num_shards)
        state = self._build(empty, data, shards, ledger, progress_bar, action)
        return state._replace(fresh=True)

    def _build(
        self,
        state: State,
        data: Data,
        shards: Sequence[int],
        ledger: RemovalLedger,
        progress_bar: bool,
        action: str,
        request: dict[str, Any] | None = None,
        *,
        started: float | None = None,
    ) -> State:
        # The state in which these shards are trained on the graph.
        started = time.perf_counter() if started is None else started
        clock = [time.perf_counter()]
        trained, how = self._train(data, shards, self.trainer, progress_bar)
        clock.append(time.perf_counter())
        seals, made = self._sealed(state, data, trained)
        clock.append(time.perf_counter())
        outputs = self._outputs(data, made, state.num_classes, progress_bar)
        clock.append(time.perf_counter())
        aggregator = self._aggregate(data, outputs, progress_bar)
        clock.append(time.perf_counter())
        ledger.record(action, 0.0, request, seals.root)
        last = list(state.work.shard_seconds)
        for shard, taken in zip(trained, how.seconds, strict=True):
            last[shard] = taken
        names = ('shards', 'handling', 'inference', 'aggregator')
        seconds = {
            name: end - start
            for name, start, end in zip(
                names, clock[:-1], clock[1:], strict=True
            )
        }
        # All that is none of the others.
        seconds['handling'] += (
            time.perf_counter() - started - (clock[-1] - clock[0])
        )
        return state._replace(
            data=data,
            checkpoints=made,
            seals=seals,
            outputs=outputs,
            aggregator=aggregator,
            ledger=ledger,
            fresh=False,
            work=Work(tuple(shards), seconds, how.trainer, tuple(last)),
        )

    def _parts(self, data: Data, shards: Iterable[int]) -> dict[int, Data]:
        light = without_features(data)
        light.row = torch.arange(int(data.num_nodes))
        dataset = ShardDataset(light, data.shard, self.num_shards)
        parts = {}
        for shard in shards:
            part = dataset[shard]
            part.x = select_rows(data.x, part.row)
            del part.row
            parts[shard] = part
        return parts

    def _shard_seed(self, shard: int) -> int:
        return rng.derive(self._seed, _SHARD, shard)

    def _train(
        self,
        data: Data,
        shards: Iterable[int],
        trainer: str,
        progress_bar: bool,
    ) -> tuple[dict[int, Checkpoint], Trained]:
        parts = self._parts(data, shards)
        filled = {s: p for s, p in parts.items() if p.num_nodes > 0}
        done = train(
            self.model_factory,
            [as_shard(p, self._shard_seed(s)) for s, p in filled.items()],
            self.recipe,
            trainer=trainer,
            num_workers=self.num_workers,
            progress_bar=progress_bar,
        )
        weights = dict(zip(filled, done.states, strict=True))
        seconds = dict(zip(filled, done.seconds, strict=True))
        made = {
            # Its data are sealed when the state is made.
            shard: Checkpoint('', part.n_id.clone(), weights.get(shard, {}))
            for shard, part in parts.items()
        }
        taken = [seconds.get(shard, 0.0) for shard in parts]
        return made, done._replace(seconds=taken)

    def _outputs(
        self,
        data: Data,
        checkpoints: Sequence[Checkpoint],
        num_classes: int,
        progress_bar: bool = False,
    ) -> Tensor:
        # Of every model for every node: [num_shards, num_nodes, C].
        return evaluate_all(
            self.model_factory,
            as_shard(data, 0),
            [made.weights for made in checkpoints],
            num_classes,
            self.recipe,
            progress_bar=progress_bar,
        )

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
