# Longer than 700 lines because one class has its guarantee, its arguments and
# its errors in 300 lines of docstrings.
r"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker.

The training nodes are divided into shards, a model is trained on every shard
alone, and an aggregator makes one prediction of theirs. To forget a node, the
model of its shard is trained again without it, and so is the aggregator,
which has seen labels and the outputs of all models.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    check_callable,
    check_choice,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust.certificates.poisoning import (
    PoisonCertificate,
    certify_shards,
)
from pyg_trust.files.commit import ObjectLock, editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import RemovalLedger
from pyg_trust.nn.shard_aggregator import (
    AGGREGATORS,
    ShardAggregator,
    make_aggregator,
)
from pyg_trust.removal import Part
from pyg_trust.transforms.shards import Shards
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.partition import check_shards
from pyg_trust.unlearning.shards.checks import (
    handed_in,
    tensors_of,
)
from pyg_trust.unlearning.shards.graph import (
    copied,
    count_classes,
    is_sparse,
    name_tensor,
)
from pyg_trust.unlearning.shards.models import (
    TRAINERS,
    Recipe,
    Shortcuts,
    equal_tensors,
    single_thread,
)
from pyg_trust.unlearning.shards.persons import Persons
from pyg_trust.unlearning.shards.removing import Removing
from pyg_trust.unlearning.shards.reports import (
    FROM_SEED,
    ShardReport,
    ShardVerifyReport,
)
from pyg_trust.unlearning.shards.slices import check_slices
from pyg_trust.unlearning.shards.state import (
    Forgotten,
    State,
    described,
    hash_of_shards,
)
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import rows_of
from pyg_trust.verify.claims_removal import FROM_SYSTEM


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
        report = unlearner.remove(nodes=[3, 14])
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

    **What models start from.** The factory is called under two seeds. If
    weights are the same, or buffers are no constants, they were handed in: a
    model that was trained on everybody, say, or means of all rows, which no
    removal would reach. That is refused, unless ``start_is_public=True``
    states that they come from public data alone; then reports say so.

    **Ids.** Nodes keep the ids that :meth:`fit` saw, ``data.n_id`` if it is
    there, else positions, whatever is removed in between. New nodes get ids
    that were never used. Predictions for the present graph keep the rows of
    the graph that was fitted, with new nodes at the end: a node that was
    removed has the class -1 and NaN as probabilities.

    **Failures.** Whatever interrupts a removal leaves the old state or the
    new one. With a :obj:`folder`, the same holds on the disk, and a removal
    ends with the files that it replaces being deleted (``load()`` finishes
    that for a process that was killed). Threads take turns. Of two processes
    with one folder, the one that comes second is refused with a
    :class:`~pyg_trust.files.commit.StaleStateError` and can ``load()`` and
    repeat its request.

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
        train (Callable, optional): your own training, ``train(model, data,
            generator)``, in place of :obj:`epochs`, :obj:`lr`,
            :obj:`weight_decay` and :obj:`optimizer`: with any loss, class
            weights, mini-batches, schedules and early stopping. ``data`` is
            the subgraph of a shard, with ``x``, ``edge_index``, ``y``,
            ``n_id`` and a ``train_mask`` of all its nodes; random numbers come
            from the default generators or from ``generator`` (for a loader,
            say). It changes the model, or returns another one. :meth:`fit`
            trains a shard twice to see that the same model comes of it.
            (default: :obj:`None`)
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
        folder (str or Path, optional): the folder to which every new state is
            written before it becomes visible; it then holds no file of earlier
            states. (default: :obj:`None`)
        unit (PrivacyUnit, optional): who owns what of a typed graph, which is
            then divided by persons: :meth:`fit` takes that ``HeteroData``,
            models are ``model(x_dict, edge_index_dict)``, a shard is what its
            training persons own with all public rows, and
            ``remove(persons=[...])`` removes rows and edges of all types. A
            unit of another graph or declaration is refused; removals of
            persons make no other. Partitions are by hash, states are kept in
            memory alone, and the order of rows and edges counts, as these have
            no ids. (default: :obj:`None`)
        start_is_public (bool): state that weights and buffers which the
            factory, or an aggregator of your own, does not draw anew come from
            public data alone. (default: :obj:`False`)
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
        num_shards: Count = 20,
        *,
        partition: str | Shards | Tensor | Sequence[Any] = 'hash',
        aggregator: str | ShardAggregator = 'attentive',
        aggregator_nodes: Count = 1000,
        num_classes: Count | None = None,
        epochs: int | None = None,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        optimizer: str = 'adam',
        train: Callable[..., Any] | None = None,
        slices: Sequence[tuple[float, int]] | None = None,
        trainer: str = 'sequential',
        num_workers: Count | None = None,
        over_ranks: bool = False,
        folder: str | Path | None = None,
        unit: PrivacyUnit | None = None,
        start_is_public: bool = False,
        seed: int | None = None,
    ) -> None:
        if isinstance(model_factory, Module):
            raise TypeError(
                "'model_factory' needs to make a new model at every call, as "
                f'lambda: {type(model_factory).__name__}(...) does (got a '
                'model)'
            )
        check_callable('model_factory', model_factory)
        if not isinstance(aggregator, ShardAggregator):
            AGGREGATORS.find('aggregator', aggregator)
        check_shards(num_shards, num_shards)
        check_choice('trainer', trainer, TRAINERS)
        if over_ranks and trainer != 'sequential':
            raise ValueError(
                "'over_ranks' needs the trainer 'sequential', as the ranks "
                f'are the processes (got {trainer!r})'
            )
        self._unit, self._by_person = unit, unit is not None
        for name, given in (
            ('slices', slices is not None),
            ('over_ranks', over_ranks),
            ('folder', folder is not None),
        ):
            if unit is not None and given:
                raise ValueError(
                    f"'{name}' can't be used with a 'unit': leave it out"
                )
        stages = () if slices is None else check_slices(slices)
        total = sum(count for _, count in stages) if stages else 100
        if epochs is not None and stages and epochs != total:
            raise ValueError(
                "'epochs' needs to be the sum of those of 'slices', or to be "
                f'left out (got {epochs}, and {total})'
            )
        self.recipe = Recipe(
            *(total if epochs is None else epochs, lr, weight_decay),
            optimizer,
            stages,
            train,
        )
        if train is not None:
            check_callable('train', train)
            alone = Recipe(train=train)
            given_too = 'slices' if stages else ''
            for name in ('epochs', 'lr', 'weight_decay', 'optimizer'):
                if getattr(self.recipe, name) != getattr(alone, name):
                    given_too = given_too or name
            if given_too:
                raise ValueError(
                    f"'{given_too}' can't be used with 'train', which trains "
                    'as it is written: leave one of them out'
                )
        self._params = {
            'model_factory': model_factory,
            'num_shards': num_shards,
            'aggregator': aggregator,
            'aggregator_nodes': aggregator_nodes,
            'num_classes': num_classes,
            'epochs': epochs,
            'lr': lr,
            'weight_decay': weight_decay,
            'optimizer': optimizer,
            'train': train,
            'slices': slices,
            'trainer': trainer,
            'num_workers': num_workers,
            'over_ranks': over_ranks,
            'folder': folder,
            'start_is_public': start_is_public,
            'seed': seed,
        }
        self.model_factory = model_factory
        self.num_shards = num_shards
        self.aggregator_nodes = aggregator_nodes
        self.num_classes = num_classes
        self.trainer = trainer
        self.num_workers = num_workers
        self.over_ranks = over_ranks
        self.start_is_public = start_is_public
        # Absolute: independent of the working directory.
        self.folder = None if folder is None else Path(folder).absolute()
        self._lock = ObjectLock()
        self._aggregator = copy.deepcopy(make_aggregator(aggregator))
        self._state: State | None = None
        self._ways: Shortcuts | None = None
        self._given = self._checked(partition)
        self._first_seed = rng.resolve_secret(seed)
        self._first_seeded = seed is not None
        held = tensors_of(self._aggregator)
        found = None if start_is_public else handed_in(held, held)
        if found is not None:
            raise ValueError(
                f"'aggregator' has {found!r} already, which may come from "
                'data that are removed: pass one that was not fitted, or '
                'state that it is public, ShardedUnlearner(..., '
                'start_is_public=True)'
            )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of this unlearner, by name.

        Args:
            deep (bool): as in scikit-learn; there is nothing deeper.
                (default: :obj:`True`)
        """
        given = {'partition': self._given, 'unit': self._unit}
        return {**self._params, **given}

    @property
    def classes_(self) -> Tensor:
        """The classes, int64: those of the columns of probabilities."""
        return torch.arange(self._fitted.num_classes)

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
                empty), or the partition does not fit them; if models start
                from something that is handed in; if their outputs have the
                wrong width, or they are no function of their data and seed; if
                the folder holds a state; if ranks were given different data,
                seeds or arguments, with :obj:`over_ranks`.
        """
        self._agree(
            'fit',
            data=data,
            seed=self._first_seed if self._first_seeded else None,
            model_factory=self.model_factory,
            train=self.recipe.train,
            partition=self._given,
            num_classes=self.num_classes,
            folder=None if self.folder is None else str(self.folder),
            arguments=[self._config(), self.start_is_public],
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
        partition = self._shards(self._given)
        exact = isinstance(partition, Shards) and partition.exact
        table, persons = data, None
        if self._by_person:
            if self._unit is None:
                raise ValueError(
                    "'unit' was forgotten at the first removal: fit a new "
                    'unlearner'
                )
            table, persons = Persons.of(data, self._unit)
        kept = copied(table, 1 if exact else self.num_shards)
        if persons is not None:
            kept.persons = persons
        self._first_seed = self._from_first(lambda: self._first_seed)
        new = self._fresh(
            kept,
            kept.n_id.clone(),
            count_classes(kept, self.num_classes),
            self._given,
            RemovalLedger(0.0),
            'fit',
            progress_bar,
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
                a row for each node that :meth:`fit` saw and for each that came
                since, -1 for those that were removed. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): ids of nodes of the present
                graph. (default: :obj:`None`)
            progress_bar (bool, optional): by default in terminals, after 2 s.
        """
        probability = self.predict_proba(
            data, nodes=nodes, progress_bar=progress_bar
        )
        there = ~probability.isnan().any(1)
        return torch.where(there, probability.nan_to_num(0).argmax(1), -1)

    @torch.no_grad()
    def predict_proba(
        self,
        data: Data | None = None,
        *,
        nodes: Any = None,
        progress_bar: bool | None = None,
    ) -> Tensor:
        """Predict the probabilities of classes: ``[num_nodes, num_classes]``.

        Takes the arguments of :meth:`predict`; NaN for nodes that were
        removed.

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
            outputs = self._outputs(
                state, self._other(data), progress_bar=progress_bar
            )
        with single_thread():
            probability = state.aggregator(outputs)
        if nodes is not None:
            return probability[
                rows_of(state.data.n_id, name_tensor('nodes', nodes))
            ]
        return probability if data is not None else self._rows(probability)

    def score(self, nodes: Any = None, y: Any = None) -> float:
        """Return the share of nodes whose predicted class is right.

        Args:
            nodes (list[int] or Tensor, optional): ids of nodes of the present
                graph, or a mask over the rows of :meth:`predict`; by default
                those of the ``test_mask``. (default: :obj:`None`)
            y (list[int] or Tensor, optional): their classes; by default the
                labels in the graph that was fitted. (default: :obj:`None`)

        Raises:
            ValueError: if a node is not there or has no label, or none is
                given and the graph has no ``test_mask``.
        """
        data = self._fitted.data
        if nodes is None and data.get('test_mask') is None:
            raise ValueError(
                "'nodes' needs to be given, as the graph has no 'test_mask'"
            )
        if nodes is None:
            nodes = data.n_id[data.test_mask]
        nodes = torch.as_tensor(nodes)
        if nodes.dtype == torch.bool:
            rows = self._fitted.rows
            check_tensor('nodes', nodes, torch.bool, (rows.numel(),))
            nodes = rows[nodes]
        found = self.predict(nodes=nodes)
        if y is None:
            y = data.y[rows_of(data.n_id, nodes)]
        y = torch.as_tensor(y).view(-1)
        check_tensor('y', y, torch.int64, tuple(found.shape))
        if not y.numel() or int(y.min()) < 0:
            raise ValueError(
                "'nodes' needs at least one node, and each a label from 0 on"
            )
        return float((found == y).double().mean())

    def _rows(self, values: Tensor) -> Tensor:
        # By the rows of the graph that was fitted, NaN where a node is gone.
        state = self._fitted
        place = torch.searchsorted(state.data.n_id, state.rows)
        place = place.clamp(max=state.data.n_id.numel() - 1)
        there = state.data.n_id[place] == state.rows
        return values[place].masked_fill(~there[:, None], torch.nan)

    def _other(self, data: Any) -> Data:
        # Another graph for the same models.
        self._check_untyped('predict for another graph')
        if not isinstance(data, Data):
            raise TypeError(
                "'data' needs to be a Data object, another graph; for nodes "
                'of the present one call predict(nodes=[1, 2]) (got '
                f'{type(data).__name__})'
            )
        own, n = self._fitted.data, int(data.num_nodes)
        x = data.get('x')
        if isinstance(x, Tensor) and x.dtype != own.x.dtype:
            x = x.to(own.x.dtype)
        check_tensor('data.x', x, own.x.dtype, (n, own.x.size(1)))
        weighted = 'edge_weight' in own
        if weighted != (data.get('edge_weight') is not None):
            raise ValueError(
                "'data' needs to "
                + ("have an 'edge_weight'" if weighted else 'have none')
                + ', as the graph that the models were trained on '
                + ('has one' if weighted else "has no 'edge_weight'")
            )
        CSRGraph.from_data(data, duplicates='keep')
        made = Data(
            x=x.detach().cpu(),
            edge_index=data.edge_index.cpu().long(),
            num_nodes=n,
        )
        if weighted:
            made.edge_weight = data.edge_weight.detach().cpu()
        return made

    @property
    def data(self) -> Data | HeteroData:
        """A copy of the present graph, with ``n_id`` and ``shard``."""
        kept = self._fitted.data
        if self._by_person:
            typed = kept.persons.graph.clone()
            for key in ('y', 'shard', 'train_mask'):
                typed[kept.persons.person][key] = kept[key].clone()
            return typed
        made = copy.copy(kept)
        made.x = made.x.to_dense() if is_sparse(made.x) else made.x
        return made.clone()

    @property
    def n_id(self) -> Tensor:
        """The ids of the nodes of the present graph, in order."""
        return self._fitted.data.n_id.clone()

    @property
    def outputs(self) -> Tensor:
        """The outputs of every model for the nodes in :attr:`n_id`.

        Logits, ``[num_shards, num_nodes, num_classes]``, as copies.
        """
        return self._fitted.outputs.clone()

    @property
    def aggregator_n_id(self) -> Tensor:
        """The ids of the nodes that the aggregator is trained on."""
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
        new = self._fresh(
            state.data,
            state.rows,
            state.num_classes,
            given,
            state.ledger,
            'retrain',
            progress_bar,
        )
        self._commit(new)
        return self._reported()

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

        Weights need to be *equal*. Also looks for what should be gone: items
        that the ledger lists as removed in the graph and the checkpoints, and
        files in the folder that are not those of the present state.

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
        check_choice('trainer', trainer, TRAINERS)
        first = dict.fromkeys(which, 0)
        trained, _ = self._train(state.data, first, {}, trainer, progress_bar)
        differing = tuple(
            shard
            for shard, fresh in trained.items()
            if not _equal(fresh, state.checkpoints[shard])
        )
        every = range(self.num_shards)
        everything = self._contents(state.data, every, self._seed)
        keys = not state.seals.differing(everything) and all(
            torch.equal(made.n_id, state.data.n_id[state.data.shard == shard])
            for shard, made in enumerate(state.checkpoints)
        )
        outputs = self._outputs(state, progress_bar=progress_bar)
        aggregator = self._aggregate(state.data, outputs, progress_bar)
        same_outputs = torch.equal(outputs, state.outputs)
        same_aggregator = equal_tensors(
            aggregator.state_dict(), state.aggregator.state_dict()
        )
        leftovers = (
            *_leftovers(state),
            *self._files_left(state),
            *self._strangers(state),
        )
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
        return self._reported()

    @torch.no_grad()
    def certify(self, nodes: Any = None) -> PoisonCertificate:
        r"""Certify the classes that poisoned training data can't change.

        The votes are those of :meth:`predict`. Any nodes, inserted, deleted or
        changed at will in the training data, leave a target's class as it is,
        if their shards are no more than its radius. Changes of the graph at
        inference are not covered.

        Args:
            nodes (list[int] or Tensor, optional): the ids of the targets; by
                default all nodes. (default: :obj:`None`)

        Returns:
            PoisonCertificate: classes, votes and radii.

        Raises:
            ValueError: if the partition is not :obj:`'hash'`, the aggregator
                is a fitted one, :obj:`num_classes` was not given, or an id is
                unknown.
        """
        self._check_untyped('certify against poisoning')
        state = self._fitted
        return certify_shards(
            state.data,
            state.outputs,
            self._shards(state.partition),
            state.aggregator,
            self.num_classes,
            nodes=nodes,
            fingerprint=state.seals.root,
            provenance=self._origin(),
            weights=hash_of_shards(state),
            assumptions=self._assumed(state.data)[4:],
        )

    def __repr__(self) -> str:
        training = f'epochs={self.recipe.epochs}'
        if self.recipe.train is not None:
            training = f'train={self.recipe.plain()["train"]}'
        return (
            f'{type(self).__name__}(num_shards={self.num_shards}, '
            f'partition={described(self._given)}, '
            f'aggregator={type(self._aggregator).__name__}, '
            f'{training}, trainer={self.trainer!r})'
        )

    def _reported(self) -> ShardReport:
        state = self._fitted
        sizes = self._sizes(state.data)
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
            by_hash=self._by_hash(state.data),
            exact=exact,
            exactness=exactness,
            removals=len(removals),
            seconds=state.seconds,
            trainer=self.trainer,
            assumptions=self._assumed(state.data),
            origin=self._origin(),
        )


def _equal(one: Any, two: Any) -> bool:
    pairs = zip(
        (*one.stages, one.weights), (*two.stages, two.weights), strict=True
    )
    return all(equal_tensors(a, b) for a, b in pairs)


def _leftovers(state: State) -> list[str]:
    # Items that the ledger lists as removed, and that are there.
    gone = state.ledger.removed.request()
    part, data = Part() if gone is None else gone.parts[0], state.data
    rows = {v: row for row, v in enumerate(data.n_id.tolist())}
    trained = {
        v: shard
        for shard, made in enumerate(state.checkpoints)
        for v in made.n_id.tolist()
    }
    found = [f'node {v}' for v in part.nodes if v in rows]
    found += [
        f'node {v} in the checkpoint of shard {trained[v]}'
        for v in part.nodes
        if v in trained
    ]
    found += [f'the label of node {v}' for v in part.labels if v in trained]
    x = data.x.to_dense() if part.features else data.x
    found += [
        f'features of node {v}'
        for v in part.features
        if v in rows and bool(x[rows[v]].any())
    ]
    if part.arcs:
        edges = {*map(tuple, data.edge_index.t().tolist())}
        found += [
            f'edge {u} -> {v}'
            for u, v in part.arcs
            if (rows.get(u), rows.get(v)) in edges
        ]
    if 'persons' in data:
        held = data.persons
        there = {*held.graph[held.person].n_id.tolist()}
        found += [
            f'node {v} in the typed graph' for v in part.nodes if v in there
        ]
    return found
