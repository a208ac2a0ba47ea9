# Longer than 700 lines because one class has its guarantee, its arguments and
# its errors in 280 lines of docstrings.
r"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker.

The training nodes are divided into shards, a model is trained on every shard
alone, and an aggregator makes one prediction of theirs. To forget a node, the
model of its shard is trained again without it, and so is the aggregator,
which has seen labels and the outputs of all models.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    OneOf,
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust.files.commit import ObjectLock, editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import RemovalLedger
from pyg_trust.nn.shard_aggregator import (
    AGGREGATORS,
    ShardAggregator,
    make_aggregator,
)
from pyg_trust.transforms.shards import Shards
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.partition import check_shards
from pyg_trust.unlearning.shards.graph import (
    copied,
    count_classes,
    name_tensor,
    without_features,
)
from pyg_trust.unlearning.shards.inference import ViewRunner
from pyg_trust.unlearning.shards.packing import Forgotten, described
from pyg_trust.unlearning.shards.persons import Persons
from pyg_trust.unlearning.shards.poisoning import (
    PoisonCertificate,
    certify_shards,
)
from pyg_trust.unlearning.shards.removing import Removing
from pyg_trust.unlearning.shards.reports import ShardReport, ShardVerifyReport
from pyg_trust.unlearning.shards.slices import check_slices
from pyg_trust.unlearning.shards.state import Checkpoint, State, hash_of_shards
from pyg_trust.unlearning.shards.training import (
    Recipe,
    check_trainer,
    equal_tensors,
    single_thread,
)
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import rows_of


class ShardedUnlearner(Removing):
    r"""Node classifier that forgets exactly by retraining shards.

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
        unlearner.update(Update(edges=torch.tensor([[0], [5]])))
        label = unlearner.predict(nodes=[0, 1, 2])

    Each shard is the subgraph that its training nodes induce; at inference,
    every model sees the whole present graph.

    **The guarantee.** After every removal or other update, models and
    aggregator *equal*, bit for bit, those that training from scratch on the
    present data gives with the same seed and the same partition, whatever came
    and went before and in whatever order rows and edges are given. A model is
    a function of its own shard, sorted by name, and of a seed that is derived
    from the shard's number, and what an update touches is trained anew:

    ====================================  ================================
    removed, added or changed             trained again
    ====================================  ================================
    training node                         its shard, aggregator
    other node                            aggregator
    edge inside of a shard                that shard, aggregator
    other edge                            aggregator
    features, label of a training node    its shard, aggregator
    features of another node              aggregator
    ====================================  ================================

    The aggregator is trained again every time: it learns from outputs over
    the present graph, and from labels of all shards.

    **What is exact about the partition** is for the report to say
    (:obj:`exact`, :obj:`exactness`). By ``partition='hash'`` the shard of a
    node depends on its name alone: the whole equals a fresh start on the
    present data. All other partitions have seen something of what was
    removed: unlearning is exact *given the partition*, and
    :meth:`repartition` starts over with a new one. Training nodes that come
    later are put into their shards by a hash as well, never by their
    neighbours, of which a shard would be a trace; reports count them.

    It assumes that requests do not depend on a released model, as the seed
    stays the same; equality holds even then, but not that the seed is
    independent of the data that remain. The names of what was removed stay in
    the ledger.

    **Empty shards.** A shard whose last training node goes is a constant
    voter: uniform probabilities, and no vote in a majority. So is one that is
    left with a single node, which models with batch norms can't be trained on.
    A class may lose its last training node if :obj:`num_classes` is given, so
    that a fresh start would know of it too. The report names empty shards.

    **Names.** Nodes keep the names that :meth:`fit` saw, ``data.n_id`` if it
    is there, else positions, whatever is removed in between. New nodes get
    names that were never used. Predictions for the present graph are in the
    order of names: row ``i`` is node ``n_id[i]``.

    **Failures.** Whatever interrupts a removal leaves the old state or the
    new one. With a :obj:`folder`, the same holds on the disk, and a removal
    ends with the files that it replaces being deleted (``load()`` finishes
    that for a process that was killed), unless :obj:`keep_history` is set.
    Threads take turns. Of two processes with one folder, the one that comes
    second is refused with a :class:`~pyg_trust.files.commit.StaleStateError`
    and can ``load()`` and repeat its request.

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
        num_classes (int, optional): the number of classes, of those to come
            too; by default the largest label of any node plus one.
        epochs (int, optional): full-batch epochs of every shard; by default
            100, or those of all :obj:`slices`. (default: :obj:`None`)
        lr (float): the learning rate. (default: :obj:`0.01`)
        weight_decay (float): the weight decay. (default: :obj:`5e-4`)
        optimizer (str): :obj:`'adam'`, :obj:`'adamw'` or :obj:`'sgd'`.
            (default: :obj:`'adam'`)
        sparse_x (bool): keep features that are mostly zero as rows of
            nonzeros, and multiply them so in linear layers that take them as
            they come. (default: :obj:`False`)
        sparse_adj (bool or str): multiply by the graph as a sparse matrix in
            the layers that are known for it (:obj:`GCNConv`, :obj:`APPNP`,
            :obj:`GCN2Conv`, :obj:`SGConv`, :obj:`SAGEConv`, :obj:`GINConv`
            and :obj:`GraphConv`), in less time and memory; others sum over
            the edge list as they are written. :obj:`'auto'` does so if all
            layers are known, and in none otherwise. (default: :obj:`True`)
        slices (list, optional): stages of the training of a shard, as pairs
            of a cumulative share of its nodes and a number of epochs, such as
            ``[(0.5, 90), (1, 10)]``: a removal starts from the last stage
            that has not seen what goes
            (:mod:`~pyg_trust.unlearning.shards.slices`). It pays for single
            requests, once fewer epochs do not. (default: :obj:`None`)
        trainer (str): :obj:`'sequential'`, or :obj:`'process'` (for which
            scripts need the usual ``if __name__ == '__main__'``, and models a
            class that can be imported). Both give the same bits.
            (default: :obj:`'sequential'`)
        num_workers (int, optional): the number of processes.
            (default: :obj:`None`)
        over_ranks (bool): whether the processes of torchrun share the shards,
            each training and running every :math:`P`-th. All of them call what
            changes the unlearner (:meth:`fit`, :meth:`update`, :meth:`remove`,
            :meth:`repartition`) with the same arguments, and hold all models,
            with the bits of one process; one writes the :obj:`folder`. Where
            one fails or dies, all others get an error, within the timeout of
            the process group. (default: :obj:`False`)
        outputs (str): :obj:`'present'` runs all models on the graph in every
            removal; :obj:`'on_request'` when somebody asks for predictions or
            outputs, which a sequence of removals without questions is spared.
            Aggregators that learn need the outputs in any case; the others are
            :obj:`'mean'` and :obj:`'majority'`. (default: :obj:`'present'`)
        folder (str or Path, optional): the folder to which every new state is
            written before it becomes visible; it then holds no file of earlier
            states. (default: :obj:`None`)
        keep_history (bool): leave the files of earlier states in the folder,
            with what was removed, until ``purge()``; reports say so.
            (default: :obj:`False`)
        unit (PrivacyUnit, optional): who owns what of a typed graph, which is
            then divided by persons: :meth:`fit` takes that ``HeteroData``,
            models are ``model(x_dict, edge_index_dict)``, a shard is what its
            training persons own with all public rows, and
            ``RemovalRequest(persons=[...], unit=unit)`` removes rows and edges
            of all types. A unit of another graph or declaration is refused;
            removals of persons make no other. Partitions are by hash, states
            are kept in memory alone, and the order of rows and edges counts,
            as these have no names. (default: :obj:`None`)
        seed (int, optional): the seed of everything, the keys of hashes
            included, and named in reports; by default from the operating
            system. Shard :math:`i` has the seed :math:`f(\text{seed}, i)`.

    Raises:
        TypeError, ValueError: if an argument is out of range.
    """

    @validated
    def __init__(
        self,
        model_factory: Callable[[], Module],
        num_shards: int = 20,
        *,
        partition: str | Shards | Tensor | Sequence[Any] = 'hash',
        aggregator: str | ShardAggregator = 'attentive',
        aggregator_nodes: int = 1000,
        num_classes: int | None = None,
        epochs: int | None = None,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        optimizer: str = 'adam',
        sparse_x: bool = False,
        sparse_adj: bool | str = True,
        slices: Sequence[tuple[float, int]] | None = None,
        trainer: str = 'sequential',
        num_workers: int | None = None,
        over_ranks: bool = False,
        outputs: Annotated[str, OneOf(('present', 'on_request'))] = 'present',
        folder: str | Path | None = None,
        keep_history: bool = False,
        unit: PrivacyUnit | None = None,
        seed: int | None = None,
    ) -> None:
        if isinstance(model_factory, Module):
            raise TypeError(
                "'model_factory' needs to make a new model at every call, as "
                f'lambda: {type(model_factory).__name__}(...) does (got a '
                'model)'
            )
        if not isinstance(aggregator, ShardAggregator):
            AGGREGATORS.find('aggregator', aggregator)
        check_shards(num_shards, num_shards)
        trainer = check_trainer(trainer)
        for name, value in (
            ('aggregator_nodes', aggregator_nodes),
            ('num_classes', num_classes),
            ('num_workers', num_workers),
        ):
            if value is not None or name == 'aggregator_nodes':
                check_integer(name, cast(int, value), 1)
        if isinstance(sparse_adj, str):
            check_choice('sparse_adj', sparse_adj, ('auto',))
        if over_ranks and trainer != 'sequential':
            raise ValueError(
                "'over_ranks' needs the trainer 'sequential', as the ranks "
                f'are the processes (got {trainer!r})'
            )
        self._unit, self._by_person = unit, unit is not None
        for name, given in (
            ('slices', slices is not None),
            ('sparse_x', sparse_x),
            ('over_ranks', over_ranks),
            ('folder', folder is not None),
        ):
            if unit is not None and given:
                raise ValueError(
                    f"'{name}' can't be used with a 'unit': leave it out"
                )
        self._on_request = outputs == 'on_request'
        self._auto_adj = sparse_adj == 'auto'
        self._asked_seconds = 0.0
        self.model_factory = model_factory
        self.num_shards = num_shards
        self.aggregator_nodes = aggregator_nodes
        self.num_classes = num_classes
        stages = () if slices is None else check_slices(slices)
        total = sum(count for _, count in stages) if stages else 100
        if epochs is not None and stages and epochs != total:
            raise ValueError(
                "'epochs' needs to be the sum of those of 'slices', or to be "
                f'left out (got {epochs}, and {total})'
            )
        self.recipe = Recipe(
            total if epochs is None else epochs,
            lr,
            weight_decay,
            optimizer,
            bool(sparse_x),
            bool(sparse_adj),
            slices=stages,
        )
        self.trainer = trainer
        self.num_workers = num_workers
        self.over_ranks = over_ranks
        # Absolute: independent of the working directory.
        self.folder = None if folder is None else Path(folder).absolute()
        self.keep_history = keep_history
        self._lock = ObjectLock()
        self._aggregator = copy.deepcopy(make_aggregator(aggregator))
        self._state: State | None = None
        self._given = self._checked(partition)
        self._first_seed = rng.resolve_secret(seed)
        self._first_seeded = seed is not None

    # Training and prediction ################################################

    @editing
    def fit(
        self, data: Data | HeteroData, *, progress_bar: bool | None = None
    ) -> 'ShardedUnlearner':
        """Divide the training nodes into shards; train a model on each.

        Keeps copies of what it needs: ``x``, ``edge_index``, ``edge_weight``
        if it is there, ``y``, the masks and ``n_id``. A second call starts
        over, with a new ledger. If anything was removed before, it may come
        back with it: so the result can't be saved over an earlier state, and a
        :obj:`folder` that holds one is not written over, nor is that of an
        earlier program.

        Args:
            data (Data or HeteroData): the graph, with a ``train_mask``; labels
                of other nodes are ignored, except for the number of classes.
                With a :obj:`unit`, its ``HeteroData``, with labels and mask of
                the table of persons.
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            TypeError, ValueError: if something is missing or malformed; if
                there are fewer training nodes than shards (hash shards may be
                empty), or the partition does not fit them; if the models'
                outputs have the wrong width, or models are no function of
                their data and seed; if the folder holds a state; if ranks were
                given different data, seeds or arguments, with
                :obj:`over_ranks`.
        """
        self._agree(
            'fit',
            data=data,
            seed=self._first_seed if self._first_seeded else None,
            model_factory=self.model_factory,
            partition=self._given,
            num_classes=self.num_classes,
            folder=None if self.folder is None else str(self.folder),
            arguments=[
                self._config(),
                self.keep_history,
                self._on_request,
                self._auto_adj,
            ],
        )
        if isinstance(self._given, Forgotten):
            raise ValueError(
                f"'partition' was {self._given.name}, and was forgotten at "
                'the first removal: fit a new unlearner'
            )
        before = self._state
        anew = before is None or before.ledger.has_removals
        if (
            anew
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
        table, persons = data, None
        if self._by_person:
            if self._unit is None:
                raise ValueError(
                    "'unit' was forgotten at the first removal: fit a new "
                    'unlearner'
                )
            table, persons = Persons.of(data, self._unit)
        kept = copied(table, least, self.recipe.sparse_x)
        if persons is not None:
            kept.persons = persons
        num_classes = count_classes(kept, self.num_classes)
        ledger = RemovalLedger(0.0)
        self._first_seed = self._from_first(lambda: self._first_seed)
        new = self._fresh(
            kept, num_classes, self._given, ledger, 'fit', progress_bar
        )
        self._commit(new, anew=anew)
        return self

    def predict(
        self,
        data: Data | None = None,
        *,
        nodes: Any = None,
        progress_bar: bool | None = None,
    ) -> Tensor:
        """Predict the classes of nodes: int64, ``[num_nodes]``.

        Args:
            data (Data, optional): another graph; by default the present one,
                in the order of :attr:`n_id`. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): names of nodes of the
                present graph. (default: :obj:`None`)
            progress_bar (bool, optional): by default in terminals, after 2 s.
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
        progress_bar: bool | None = None,
    ) -> Tensor:
        """Predict the probabilities of classes: ``[num_nodes, num_classes]``.

        Takes the arguments of :meth:`predict`.

        Raises:
            ValueError: if a node is not there, or both arguments are given.
        """
        state = self._fitted
        if data is not None and nodes is not None:
            raise ValueError(
                "'nodes' are named in the present graph, not in 'data': give "
                'one of them'
            )
        if data is None:
            outputs = self._present(state, progress_bar)
        else:
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
    def data(self) -> Data | HeteroData:
        """A copy of the present graph, with ``n_id`` and ``shard``."""
        kept = self._fitted.data
        if self._by_person:
            typed = kept.persons.graph.clone()
            for key in ('y', 'shard', 'train_mask'):
                typed[kept.persons.person][key] = kept[key].clone()
            return typed
        made = without_features(kept).clone()
        made.x = kept.x.to_dense().clone()
        return made

    @property
    def n_id(self) -> Tensor:
        """The names of the nodes of the present graph, in order."""
        return self._fitted.data.n_id.clone()

    @property
    def outputs(self) -> Tensor:
        """The outputs of every model for the nodes of the present graph.

        Logits, ``[num_shards, num_nodes, num_classes]``, as copies.
        """
        return self._present(self._fitted).clone()

    @property
    def aggregator_n_id(self) -> Tensor:
        """The names of the nodes that the aggregator is trained on."""
        data = self._fitted.data
        return data.n_id[self._sample(data)]

    @property
    def ledger(self) -> RemovalLedger:
        """A copy of the removal ledger; nothing is ever spent."""
        return self._fitted.ledger.copy()

    def shard_state(self, shard: int) -> dict[str, Tensor]:
        """Copy the ``state_dict`` of a shard's model.

        Args:
            shard (int): the number of the shard.
        """
        check_integer('shard', shard, 0, self.num_shards - 1)
        weights = self._fitted.checkpoints[shard].weights
        return {name: value.clone() for name, value in weights.items()}

    @editing
    def repartition(
        self,
        partition: str | Shards | Tensor | Sequence[Any] | None = None,
        *,
        progress_bar: bool | None = None,
    ) -> ShardReport:
        """Divide the remaining training nodes again, and train all shards.

        The result equals a fit on the remaining data.

        Args:
            partition (optional): as in the class; by default the same method.
            progress_bar (bool, optional): by default in terminals, after 2 s.

        Raises:
            ValueError: without a partition, if the present one was given as
                tensors; or as :meth:`fit`.
        """
        self._agree('repartition', partition=partition)
        state = self._fitted
        given = state.partition
        if partition is not None:
            given = self._checked(partition)
        elif not isinstance(given, str | Shards):
            raise ValueError(
                "'partition' needs to be given, as the present partition came "
                'from no method that can be repeated'
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
        self._commit(new)
        return self._report()

    # What can be checked ####################################################

    @synchronized
    def verify(
        self,
        shards: Iterable[int] | None = None,
        *,
        trainer: str = 'sequential',
        progress_bar: bool | None = None,
    ) -> ShardVerifyReport:
        """Retrain shards and aggregator from scratch, and compare.

        Weights need to be *equal*. Also looks for what should be gone: names
        that the ledger lists as removed in the graph, the partition, the
        checkpoints; checkpoints, in the folder too, that are not those of the
        present data; tensors that are views into larger ones. (There is no
        state of an optimizer to look at: it ends with the training.)

        Args:
            shards (list[int], optional): the shards to retrain; by default
                all. (default: :obj:`None`)
            trainer (str): the trainer to use. (default: :obj:`'sequential'`)
            progress_bar (bool, optional): by default in terminals, after 2 s.

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
            or not _equal_stages(fresh, state.checkpoints[shard])
        )
        parts = self._parts(state.data, range(self.num_shards))
        everything = self._contents(state.data, range(self.num_shards))
        keys = not state.seals.differing(everything) and all(
            self._keys_match(state.seals, shard, state.checkpoints[shard])
            and torch.equal(part.n_id, state.checkpoints[shard].n_id)
            for shard, part in parts.items()
        )
        outputs = self._outputs(
            state.data, state.checkpoints, state.num_classes, progress_bar
        )
        aggregator = self._aggregate(state.data, outputs, progress_bar)
        held = state.outputs
        same_outputs = held is None or torch.equal(outputs, held)
        same_aggregator = equal_tensors(
            aggregator.state_dict(), state.aggregator.state_dict()
        )
        leftovers = (*self._leftovers(state), *self._strangers(state))
        if not state.is_sealed:
            leftovers += ('the state is not that of the ledger',)
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
            weights=hash_of_shards(state),
        )

    @synchronized
    def report(self) -> ShardReport:
        """Report the present state of the unlearner and its guarantee."""
        return self._report()

    @torch.no_grad()
    def certify(
        self, nodes: Any = None, *, inference: str = 'isolated'
    ) -> PoisonCertificate:
        r"""Certify the classes that poisoned nodes can't change.

        At ``inference='isolated'``, vote :math:`i` comes from model :math:`i`
        hearing nodes of group :math:`i` alone, by the hash that makes the
        shards, extended to all nodes. Then any nodes :math:`U` other than the
        target, inserted, deleted or changed at will in training *and* at
        inference, leave its class as it is, if their groups are no more than
        its radius. At ``'clean'`` the votes are those of :meth:`predict`, and
        only changes of the training data are covered.

        Args:
            nodes (list[int] or Tensor, optional): the names of the targets; by
                default all nodes. (default: :obj:`None`)
            inference (str): :obj:`'isolated'` or :obj:`'clean'`.
                (default: :obj:`'isolated'`)

        Returns:
            PoisonCertificate: classes, votes and radii.

        Raises:
            ValueError: if the partition is not :obj:`'hash'`, the aggregator
                is a fitted one, :obj:`num_classes` was not given, a name is
                unknown, or the model mixes nodes that no edge joins.
        """
        self._check_untyped('certify against poisoning')
        state = self._fitted
        return certify_shards(
            state.data,
            self._present(state),
            self._shards(state.partition),
            state.aggregator,
            self.num_classes,
            ViewRunner(
                self.model_factory,
                [made.weights for made in state.checkpoints],
                state.num_classes,
                self.recipe,
            ),
            nodes=nodes,
            inference=inference,
            fingerprint=state.seals.root,
            provenance=self._origin(),
            weights=hash_of_shards(state),
        )

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(num_shards={self.num_shards}, '
            f'partition={described(self._given)}, '
            f'aggregator={type(self._aggregator).__name__}, '
            f'epochs={self.recipe.epochs}, trainer={self.trainer!r})'
        )

    # Private: arguments and data ############################################

    def _check_other(self, data: Data) -> None:
        # Another graph for the same models.
        self._check_untyped('predict for another graph')
        check_instance('data', data, Data)
        width = self._fitted.data.x.size(1)
        check_tensor('data.x', data.get('x'), None, (data.num_nodes, width))
        CSRGraph.from_data(data, duplicates='keep')

    # Private: removal #######################################################


def _equal_stages(one: Checkpoint, two: Checkpoint) -> bool:
    return len(one.stages) == len(two.stages) and all(
        equal_tensors(a.weights, b.weights)
        for a, b in zip(one.stages, two.stages, strict=True)
    )
