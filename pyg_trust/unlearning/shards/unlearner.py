# Longer than 700 lines because one class has its guarantee, its arguments and
# its errors in 350 lines of docstrings.
r"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker.

The training nodes are divided into shards, a model is trained on every shard
alone, and an aggregator makes one prediction of theirs. To forget a node, the
model of its shard is trained again without it, and so is the aggregator,
which has seen labels and the outputs of all models.
"""

import copy
import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    check_callable,
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._checks.starts import same_start, tensors_of
from pyg_trust._checks.states import (
    check_settings,
    check_state,
    kind_of,
    reading,
)
from pyg_trust.certificates.poisoning import (
    PoisonCertificate,
    certify_shards,
)
from pyg_trust.distributed import check_same
from pyg_trust.files.commit import (
    Lineage,
    ObjectLock,
    editing,
    synchronized,
)
from pyg_trust.files.seals import Seals
from pyg_trust.ledger import RemovalLedger
from pyg_trust.nn.shard_aggregator import (
    AGGREGATORS,
    ShardAggregator,
    make_aggregator,
    unchecked,
)
from pyg_trust.removal import RemovalRequest, requested, skipping
from pyg_trust.report import provenance
from pyg_trust.transforms.shards import Shards
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.partition import PARTITIONS, check_shards
from pyg_trust.unlearning.shards import reports
from pyg_trust.unlearning.shards import state as states
from pyg_trust.unlearning.shards.building import _SLICE, Builder
from pyg_trust.unlearning.shards.graph import (
    check_slices,
    checked_edges,
    copied,
    count_classes,
    id_tensor,
    is_sparse,
    touched_slices,
)
from pyg_trust.unlearning.shards.models import (
    TRAINERS,
    Recipe,
    single_thread,
)
from pyg_trust.unlearning.shards.persons import (
    Persons,
    removed_persons,
    touched_by_persons,
)
from pyg_trust.unlearning.shards.reports import (
    ShardPlan,
    ShardRemovalReport,
    ShardReport,
    ShardVerifyReport,
)
from pyg_trust.unlearning.shards.state import Forgotten, State, described
from pyg_trust.unlearning.shards.updating import Change, played
from pyg_trust.unlearning.shards.verifying import verified
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import Update, rows_of
from pyg_trust.verify.claims_removal import FROM_SYSTEM

__all__ = ['ShardedUnlearner']

_Self = TypeVar('_Self', bound='ShardedUnlearner')
# The share of training nodes by a later hash from which to start over.
_MANY = 0.25


class ShardedUnlearner:
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
    present data gives with the same seed and the same partition, in whatever
    order rows and edges are given. What an update touches is trained again:

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

    By ``partition='hash'`` the shard of a node depends on its id alone, and
    the whole equals a fresh start. All other partitions have seen something of
    what was removed: unlearning is exact *given the partition*, as reports
    state, and :meth:`repartition` starts over. Training nodes that come later
    are put into shards by a hash in any case.

    It assumes that requests do not depend on a released model. The ids of what
    was removed stay in the ledger.

    **Empty shards.** A shard whose last training node is removed votes for
    nothing, and so does one with a single node if models with batch norms
    can't be trained on it. A class may lose its last training node if
    :obj:`num_classes` is given, so that a fresh start would know of it too.

    **What models start from.** The factory is called under two seeds. Weights
    and buffers that are then the same, other than 0 and 1, could come from the
    data and would never be removed: they are refused, unless
    ``start_is_public=True`` states that they come from public data alone.

    **Ids** are ``data.n_id`` if it is there, else positions; new nodes get ids
    that were never used. Predictions keep the rows of the graph that was
    fitted, with new nodes at the end: a node that was removed has the class -1
    and NaN as probabilities.

    **Failures.** Whatever interrupts a removal leaves the old state or the
    new one, in memory and in the :obj:`folder`. Threads take turns. Of two
    processes with one folder, the second is refused with a
    :class:`~pyg_trust.files.commit.StaleStateError` and can :meth:`load` and
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
            the ids of the training nodes of every shard.
            (default: :obj:`'hash'`)
        aggregator (str or ShardAggregator): as
            :func:`~pyg_trust.nn.make_aggregator` takes.
            (default: :obj:`'attentive'`)
        aggregator_nodes (int): the aggregator learns from at most so many
            training nodes, those with the smallest hashes of their ids.
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
            :obj:`weight_decay` and :obj:`optimizer`. ``data`` is the subgraph
            of a shard, with ``x``, ``edge_index``, ``y``, ``n_id`` and a
            ``train_mask`` of all its nodes; random numbers come from the
            default generators or from ``generator``. It changes the model, or
            returns another one. :meth:`fit` trains a shard twice to see that
            the same model comes of it. (default: :obj:`None`)
        slices (list, optional): stages of the training of a shard, as pairs
            of a cumulative share of its nodes and a number of epochs, such as
            ``[(0.5, 90), (1, 10)]``: a removal starts from the last stage
            that has not seen what is removed. It pays for single requests,
            once fewer epochs do not. (default: :obj:`None`)
        trainer (str): :obj:`'sequential'`, or :obj:`'process'` (for which
            scripts need the usual ``if __name__ == '__main__'``, and models a
            class that can be imported). Both give the same bits.
            (default: :obj:`'sequential'`)
        num_workers (int, optional): the number of processes.
            (default: :obj:`None`)
        over_ranks (bool): whether the processes of torchrun share the shards,
            each training and running every :math:`P`-th. All of them call what
            changes the unlearner with the same arguments, and hold all models,
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
            ``remove(persons=[...])`` removes rows and edges of all types.
            Partitions are by hash, states are kept in memory alone, and the
            order of rows and edges counts. (default: :obj:`None`)
        start_is_public (bool): state that weights and buffers which the
            factory, or an aggregator of your own, does not draw anew come from
            public data alone. (default: :obj:`False`)
        seed (int, optional): the seed of everything, the keys of hashes
            included, and named in reports; by default from the operating
            system. (default: :obj:`None`)

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
        given = locals()
        self._params = {name: given[name] for name in _ARGUMENTS}
        if isinstance(model_factory, Module):
            raise TypeError(
                "'model_factory' needs to make a new model at every call, as "
                f'lambda: {type(model_factory).__name__}(...) does'
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
        for name in ('slices', 'over_ranks', 'folder'):
            if unit is not None and self._params[name] not in (None, False):
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
            total if epochs is None else epochs,
            lr,
            weight_decay,
            optimizer,
            stages,
            train,
        )
        if train is not None:
            check_callable('train', train)
            alone = Recipe(train=train)
            for name in ('slices', *_STEPS):
                if getattr(self.recipe, name) != getattr(alone, name):
                    raise ValueError(
                        f"'{name}' can't be used with 'train', which trains "
                        'as it is written: leave one of them out'
                    )
        self._unit, self._by_person = unit, unit is not None
        self.num_shards, self.num_classes = num_shards, num_classes
        # Absolute: independent of the working directory.
        self.folder = None if folder is None else Path(folder).absolute()
        self._lock = ObjectLock()
        self._state: State | None = None
        self._given = self._checked(partition)
        self._first_seed = rng.resolve_secret(seed)
        self._first_seeded = seed is not None
        made = copy.deepcopy(make_aggregator(aggregator))
        held = tensors_of(made)
        found = None if start_is_public else same_start(held, held)
        if found is not None:
            raise ValueError(
                f"'aggregator' has {found!r} already, which may come from "
                'data that are removed: pass one that was not fitted, or '
                'state that it is public, ShardedUnlearner(..., '
                'start_is_public=True)'
            )
        self._builder = Builder(
            model_factory,
            num_shards,
            self.recipe,
            made,
            aggregator_nodes,
            start_is_public,
            trainer,
            num_workers,
            over_ranks,
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
    def fit(self: _Self, data: Data | HeteroData) -> _Self:
        """Divide the training nodes into shards; train a model on each.

        Keeps copies of ``x``, ``edge_index``, ``edge_weight``, ``y``, the
        masks and ``n_id``. A second call starts over, with a new ledger, and
        is not written over a :obj:`folder` that holds a state.

        Args:
            data (Data or HeteroData): the graph, with a ``train_mask``; labels
                of other nodes are ignored, except for the number of classes.
                With a :obj:`unit`, its ``HeteroData``, with labels and mask of
                the table of persons.

        Raises:
            TypeError, ValueError: if something is missing or malformed; if
                the partition does not fit the training nodes; if models start
                from weights that were passed in, have outputs of the wrong
                width, or are no function of their data and seed; if the folder
                holds a state; if ranks were given different arguments.
        """
        builder, given = self._builder, self._given
        self._agree(
            'fit',
            data=data,
            seed=self._first_seed if self._first_seeded else None,
            model_factory=builder.factory,
            train=self.recipe.train,
            partition=states.plain_partition(given),
            num_classes=self.num_classes,
            folder=None if self.folder is None else str(self.folder),
            arguments=[self._config(), builder.start_is_public],
        )
        if isinstance(given, Forgotten):
            raise ValueError(
                f"'partition' was {given.name}, and was forgotten at the "
                'first removal: fit a new unlearner'
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
        method = builder.method(given, self._first_seed)
        exact = isinstance(method, Shards) and method.exact
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
        self._first_seed = builder.from_first(lambda: self._first_seed)
        empty = State(
            seed=self._first_seed if before is None else before.seed,
            seeded=self._first_seeded if before is None else before.seeded,
            partition=given,
            data=kept,
            rows=kept.n_id.clone(),
            num_classes=count_classes(kept, self.num_classes),
            aggregator=builder.aggregator,
            ledger=RemovalLedger(0.0),
        )
        new = builder.fresh(empty, given, 'fit')
        self._commit(new, anew=anew)
        return self

    def predict(
        self, data: Data | None = None, *, nodes: Any = None
    ) -> Tensor:
        """Predict the classes of nodes: int64, ``[num_nodes]``.

        Args:
            data (Data, optional): another graph; by default the present one,
                a row for each node that :meth:`fit` saw and for each that came
                since, -1 for those that were removed. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): ids of nodes of the present
                graph. (default: :obj:`None`)
        """
        probability = self.predict_proba(data, nodes=nodes)
        there = ~probability.isnan().any(1)
        return torch.where(there, probability.nan_to_num(0).argmax(1), -1)

    @torch.no_grad()
    def predict_proba(
        self, data: Data | None = None, *, nodes: Any = None
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
                "'nodes' are ids of the present graph, not of 'data': give "
                'one of them'
            )
        outputs, n_id = state.outputs, state.data.n_id
        if data is not None:
            outputs = self._builder.outputs(state, self._other(data))
        with single_thread():
            probability = state.aggregator(outputs)
        if data is not None:
            return probability
        if nodes is not None:
            return probability[rows_of(n_id, id_tensor('nodes', nodes))]
        # By the rows of the graph that was fitted.
        place = torch.searchsorted(n_id, state.rows)
        place = place.clamp(max=n_id.numel() - 1)
        gone = n_id[place] != state.rows
        return probability[place].masked_fill(gone[:, None], torch.nan)

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
        data, rows = self._fitted.data, self._fitted.rows
        if nodes is None and data.get('test_mask') is None:
            raise ValueError(
                "'nodes' needs to be given, as the graph has no 'test_mask'"
            )
        if nodes is None:
            nodes = data.n_id[data.test_mask]
        nodes = torch.as_tensor(nodes)
        if nodes.dtype == torch.bool:
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
        state = self._fitted
        return state.data.n_id[self._builder.sample(state)]

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

    # Removals and other updates #############################################

    @synchronized
    def plan(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        shard: Mapping[int, int] | str | None = None,
    ) -> ShardPlan:
        """Estimate the shards and the cost of an update; change nothing.

        Args:
            update (Update, RemovalRequest or list): as in :meth:`update`.
            shard (dict or str, optional): as in :meth:`update`.
                (default: :obj:`None`)

        Raises:
            TypeError, ValueError: as :meth:`update`.
        """
        state, builder = self._fitted, self._builder
        change = self._change(state, update, shard, light=True)
        after, first = self._after(state, change)
        seconds, fraction = builder.estimate(state, after.data, first)
        every = dict.fromkeys(range(self.num_shards), 0)
        return ShardPlan(
            request=change.request,
            seconds=seconds,
            fraction=fraction,
            full_node_epochs=builder.node_epochs(
                after.data, state.seed, every
            ),
            **self._costs(after, first),
        )

    @editing
    def remove(
        self,
        request: RemovalRequest | Sequence[Any] | None = None,
        *,
        nodes: Any = None,
        edges: Any = None,
        features: Any = None,
        labels: Any = None,
        persons: Any = None,
        missing: str = 'raise',
        reference: str = '',
        on_report: Callable[[ShardRemovalReport], Any] | None = None,
    ) -> ShardRemovalReport:
        """Remove the requested items; retrain their shards.

        Args:
            request (RemovalRequest or list, optional): the items to forget, by
                the ids that ``fit`` saw, or the ids of nodes; or by the
                following. (default: :obj:`None`)
            nodes (list[int] or Tensor, optional): nodes, with their features
                and edges. (default: :obj:`None`)
            edges (list or Tensor, optional): edges, in both directions, as
                ``[2, num_edges]`` or a list of pairs. (default: :obj:`None`)
            features (list[int] or Tensor, optional): nodes whose features are
                removed. (default: :obj:`None`)
            labels (list[int] or Tensor, optional): nodes whose labels are
                removed. (default: :obj:`None`)
            persons (list[int] or Tensor, optional): persons of the
                :obj:`unit` of this unlearner. (default: :obj:`None`)
            missing (str): what to do with items that are not there:
                :obj:`'raise'` an error, or :obj:`'skip'` them and list them
                in ``skipped`` of the report.
                (default: :obj:`'raise'`)
            reference (str): the id of the batch of requests, 32 hexadecimal
                digits, for the ledger. (default: :obj:`''`)
            on_report (Callable, optional): stores the report, before the
                folder has the removal: no crash comes in between. If it
                raises, everything is as before. (default: :obj:`None`)

        Raises:
            TypeError: on another request.
            ValueError: as :meth:`update`.
        """
        if persons is not None and self._by_person and request is None:
            unit = self._fitted.data.persons.unit
            request, persons = RemovalRequest(persons=persons, unit=unit), None
        request = requested(
            request,
            nodes=nodes,
            edges=edges,
            features=features,
            labels=labels,
            persons=persons,
        )
        self._agree('remove', request=request.to_dict(), reference=reference)
        if on_report is not None:
            check_callable('on_report', on_report)
        if request.graphs != [0] or request.parts[0].whole:
            raise ValueError(
                "'request' needs to name nodes, edges, features or labels of "
                f'graph 0, the only one (got graphs {request.graphs})'
            )

        def apply(left: RemovalRequest) -> ShardRemovalReport:
            return self._apply(left, None, reference, on_report)

        report, skipped = skipping(request, missing, apply)
        return replace(report, skipped=skipped) if skipped else report

    @editing
    def update(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        shard: Mapping[int, int] | str | None = None,
        reference: str = '',
    ) -> ShardRemovalReport:
        """Apply updates in order as one, all or none; retrain their shards.

        A new training node is put into the shard that a keyed hash of its id
        gives; where the partition is another, the report counts these nodes.

        Args:
            update (Update, RemovalRequest or list): the removals, additions
                and changes, by ids in graph 0. Labels are those of training.
            shard (dict or str, optional): the shard of every new training
                node, by id, or :obj:`'hash'`; for a partition that was given
                as tensors. (default: :obj:`None`)
            reference (str): as in :meth:`remove`. (default: :obj:`''`)

        Raises:
            TypeError: on anything else.
            ValueError: if something is not there, is there already, or was
                there before; if no training node would be left, or none of a
                class without :obj:`num_classes`, or one of a new class; if a
                graph has edge weights, which new edges lack.
        """
        if self._builder.over_ranks:
            self._agree(
                'update',
                update=states.plain_updates(update),
                reference=reference,
                shard=shard,
            )
        return self._apply(update, shard, reference)

    @editing
    def repartition(
        self, partition: str | Shards | Tensor | Sequence[Any] | None = None
    ) -> ShardReport:
        """Divide the remaining training nodes again, and train all shards.

        The result equals a fit on the remaining data.

        Args:
            partition (optional): as in the class; by default the same method.

        Raises:
            ValueError: without a partition, if the present one was given as
                tensors; or as :meth:`fit`.
        """
        self._agree('repartition', partition=states.plain_partition(partition))
        state = self._fitted
        given = state.partition
        if partition is not None:
            given = self._checked(partition)
        elif not isinstance(given, str | Shards):
            raise ValueError(
                "'partition' needs to be given, as the present partition came "
                'from no method that can be repeated'
            )
        new = self._builder.fresh(state, given, 'retrain')
        self._commit(new)
        return self._reported()

    # What can be checked ####################################################

    @synchronized
    def verify(
        self,
        shards: Iterable[int] | None = None,
        *,
        trainer: str = 'sequential',
    ) -> ShardVerifyReport:
        """Retrain shards and aggregator from scratch, and compare.

        Also looks for what should be gone: items that the ledger lists as
        removed, and files that are not those of the present state.

        Args:
            shards (list[int], optional): the shards to retrain; by default
                all. (default: :obj:`None`)
            trainer (str): the trainer to use. (default: :obj:`'sequential'`)

        Raises:
            ValueError: on an unknown shard or trainer.
        """
        state = self._fitted
        shards = range(self.num_shards) if shards is None else shards
        check_instance('shards', shards, Iterable)
        which = tuple(shards)
        for shard in which:
            check_integer('shards', shard, 0, self.num_shards - 1)
        check_choice('trainer', trainer, TRAINERS)
        return verified(
            self._builder, state, which, trainer, self._files_left(state)
        )

    @synchronized
    def report(self) -> ShardReport:
        """Report the present state of the unlearner and its guarantee."""
        return self._reported()

    @torch.no_grad()
    def certify(self, nodes: Any = None) -> PoisonCertificate:
        r"""Certify the classes that poisoned training data can't change.

        Any nodes, inserted, deleted or changed at will in the training data,
        leave a target's class as it is, if their shards are no more than its
        radius. Changes of the graph at inference are not covered.

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
            self._builder.method(state.partition, state.seed),
            state.aggregator,
            self.num_classes,
            nodes=nodes,
            fingerprint=state.seals.root,
            provenance=self._origin(),
            weights=states.hash_of_shards(state),
            assumptions=self._assumed(state.data)[len(reports.ASSUMPTIONS) :],
        )

    # State ##################################################################

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state, one checkpoint per shard.

        It contains the remaining data, the salt and the seed. Guard it like
        the data, and destroy older states: they hold what was removed.
        """
        # Copies: the caller can't change the state in force.
        return copy.deepcopy(self._packed(self._fitted))

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state.

        Args:
            state (dict): the :meth:`state_dict` of an unlearner with the same
                arguments.

        Raises:
            ValueError: if the arguments differ, the state was changed, or its
                ledger does not continue the present one.
        """
        self._commit(self._unpacked(state), loaded=True)

    @synchronized
    def save(self, folder: str | Path | None = None) -> None:
        """Write the state to a folder atomically.

        Args:
            folder (str or Path, optional): the folder; by default that of the
                class, where every state is written anyway.

        Raises:
            StaleStateError: if the folder was changed since this unlearner
                read or wrote it.
            ValueError: if there is no folder, or it holds the state of
                another fit.
        """
        store = self._store(folder)
        store.write(*states.to_files(self._packed(self._fitted)))

    @editing
    def load(self: _Self, folder: str | Path | None = None) -> _Self:
        """Load the state that :meth:`save` wrote to a folder; return self.

        If it is the object's own folder, files of other states are deleted: a
        process may have been killed before it could.

        Args:
            folder (str or Path, optional): as in :meth:`save`.
                (default: :obj:`None`)

        Raises:
            ValueError: if there is no state, a file is missing or was changed,
                or as :meth:`load_state_dict`.
        """
        store = self._store(folder)
        if store.manifest() is None:
            raise ValueError(
                f"'folder' needs to hold a saved state, with a manifest (got "
                f'{store.folder})'
            )
        new = self._unpacked(states.from_files(*store.read()))
        if store.folder == self.folder:
            self._take(new)
            if os.access(store.folder, os.W_OK):
                store.purge()
        else:
            self._commit(new, loaded=True)
        return self

    def __repr__(self) -> str:
        training = f'epochs={self.recipe.epochs}'
        if self.recipe.train is not None:
            training = f'train={self.recipe.plain()["train"]}'
        return (
            f'{type(self).__name__}(num_shards={self.num_shards}, '
            f'partition={described(self._given)}, '
            f'aggregator={type(self._builder.aggregator).__name__}, '
            f'{training}, trainer={self._builder.trainer!r})'
        )

    # Arguments ##############################################################

    @property
    def _fitted(self) -> State:
        if self._state is None:
            raise ValueError('the unlearner needs to be fitted first')
        return self._state

    def _checked(self, partition: Any) -> Any:
        # Copies, so that the caller can't change them.
        if self._by_person and not (
            partition == 'hash'
            if isinstance(partition, str)
            else isinstance(partition, Shards) and partition.exact
        ):
            raise ValueError(
                "'partition' needs to be 'hash' with a 'unit': all others "
                f'look at one kind of nodes (got {described(partition)})'
            )
        count = self.num_shards
        if isinstance(partition, str):
            PARTITIONS.find('partition', partition)
            Shards(self.num_shards, partition, seed=0)
            return partition
        if isinstance(partition, Tensor):
            return partition.clone()
        if isinstance(partition, Shards):
            partition, count = copy.copy(partition), partition.num_shards
        elif isinstance(partition, Sequence):
            partition = [id_tensor('partition', ids) for ids in partition]
            count = len(partition)
        else:
            raise TypeError(
                "'partition' needs to be the name of a method, a Shards, a "
                f'tensor or a list of tensors (got {type(partition).__name__})'
            )
        if count != self.num_shards:
            raise ValueError(
                f"'partition' needs to make {self.num_shards} shards "
                f'(got {count})'
            )
        return partition

    def _check_untyped(self, what: str) -> None:
        if self._by_person:
            raise ValueError(
                f"an unlearner with a 'unit' can't {what}: fit it to the "
                "table of persons, 'unit.table(data)', without a unit"
            )

    def _other(self, data: Any) -> Data:
        # Another graph for the same models.
        self._check_untyped('predict for another graph')
        if not isinstance(data, Data):
            raise TypeError(
                "'data' needs to be a Data object, another graph; for nodes "
                'of the present one call predict(nodes=[1, 2]) (got '
                f'{type(data).__name__})'
            )
        own, x, n = self._fitted.data, data.get('x'), int(data.num_nodes or 0)
        if isinstance(x, Tensor):
            x = x.to(own.x.dtype)
        check_tensor('data.x', x, own.x.dtype, (n, own.x.size(1)))
        edges, weight = checked_edges(data)
        if ('edge_weight' in own) != (weight is not None):
            raise ValueError(
                "'data' needs to "
                + ('have none' if weight is not None else '')
                + ("have an 'edge_weight'" if weight is None else '')
                + ', as the graph that the models were trained on '
                + ('has one' if weight is None else "has no 'edge_weight'")
            )
        made = Data(x=x.detach().cpu(), edge_index=edges, num_nodes=n)
        if weight is not None:
            made.edge_weight = weight
        return made

    def _config(self) -> dict[str, Any]:
        return {
            **self.recipe.plain(),
            'num_shards': self.num_shards,
            'aggregator': states.plain_settings(self._builder.aggregator),
            'aggregator_nodes': self._builder.aggregator_nodes,
        }

    def _agree(self, call: str, **given: Any) -> None:
        # All processes do the same to the same state.
        if self._builder.over_ranks:
            before = None if self._state is None else self._state.lineage.runs
            check_same({'call': call, **given, 'state': before})

    # Updates ################################################################

    def _apply(
        self,
        update: Any,
        shard: Any,
        reference: str,
        on_report: Callable[[ShardRemovalReport], Any] | None = None,
    ) -> ShardRemovalReport:
        state = self._fitted
        state.ledger.check_reference(reference)
        change = self._change(state, update, shard)
        started = time.perf_counter()
        after, first = self._after(state, change)
        new = self._builder.updated(
            after,
            first,
            'retrain',
            request=change.request,
            reference=reference,
            started=started,
        )
        exact, exactness = self._exactness(new)
        report = ShardRemovalReport(
            secrets=reports.FROM_SEED if new.seeded else FROM_SYSTEM,
            request=change.request,
            empty=self._builder.empty(new.data),
            fraction=self._builder.estimate(new, new.data, first)[1],
            seconds=new.seconds,
            trainer=self._builder.trainer,
            exact=exact,
            exactness=exactness,
            assumptions=self._assumed(new.data),
            origin=self._origin(),
            by_hash=self._by_hash(new.data),
            weights=states.hash_of_shards(new),
            data=new.ledger.newest(1)[0].data,
            ledger_head=new.ledger.head,
            **self._costs(new, first),
        )
        if on_report is not None:
            on_report(report)
        # Last of all, so that a removal that fails is none.
        self._commit(new)
        return report

    def _change(
        self, state: State, update: Any, shard: Any, *, light: bool = False
    ) -> Change:
        updates = Update.of(update)
        if not updates:
            raise ValueError("'update' needs to hold an update (got none)")
        if isinstance(shard, str):
            check_choice('shard', shard, ('hash',))
        elif shard is not None:
            check_instance('shard', shard, Mapping)
            for each in shard.values():
                check_integer('shard', each, 0, self.num_shards - 1)
        persons = state.data.get('persons')
        gone = (
            [] if persons is None else removed_persons(updates, persons.unit)
        )
        change = played(
            state.data,
            updates,
            lambda n_id: self._builder.homes(n_id, state, shard),
            state.rows,
            state.ledger.removed,
            light=light,
        )
        if persons is not None:
            change.data.persons = persons.without(gone)
        self._check_classes(state, change.data)
        return change

    def _check_classes(self, state: State, left: Data) -> None:
        data, classes = state.data, state.num_classes
        trained = left.y[left.shard >= 0]
        if not trained.numel():
            raise ValueError('the request would leave no training node')
        largest = int(trained.max())
        if largest >= classes:
            raise ValueError(
                f"'labels' needs to be below {classes} (got {largest}): give "
                "'num_classes' at the start for classes to come"
            )
        if self.num_classes is not None:
            return
        count = [
            d.y[d.shard >= 0].bincount(minlength=classes) for d in (data, left)
        ]
        lost = ((count[0] > 0) & (count[1] == 0)).nonzero()
        if lost.numel():
            raise ValueError(
                f'the request would leave class {int(lost[0])} without a '
                'training node, so that a fresh start would not know of it: '
                "give 'num_classes' to allow that"
            )
        if left.y.max() != data.y.max():
            # Nodes outside of training count, too: models have that many
            # outputs.
            raise ValueError(
                'the request would leave no node of the largest label '
                f'{int(data.y.max())}, or a larger one, so that a fresh start '
                "would have another number of classes: give 'num_classes' to "
                'allow that'
            )

    def _after(
        self, state: State, change: Change
    ) -> tuple[State, dict[int, int]]:
        # The state with the new graph, and the first stage of every touched
        # shard that is to be trained again: of what goes, and of what would
        # go if the update were undone.
        data, first = change.data, dict[int, int]()
        come = data.n_id[~torch.isin(data.n_id, state.rows)]
        after = state._replace(data=data, rows=torch.cat([state.rows, come]))
        if self._by_person:
            first = touched_by_persons(state.data, data, self.num_shards)
            return after, first
        key = rng.derive(state.seed, _SLICE)
        for graph, part in (state.data, change.gone), (data, change.came):
            found = touched_slices(graph, part, self.recipe.slices, key)
            for shard, stage in found.items():
                first[shard] = min(stage, first.get(shard, stage))
        return after, dict(sorted(first.items()))

    def _costs(self, state: State, first: dict[int, int]) -> dict[str, Any]:
        # What a plan and the report of a removal count.
        builder, data = self._builder, state.data
        return {
            'shards': tuple(first),
            'nodes': int(builder.sizes(data)[[*first]].sum()),
            'node_epochs': builder.node_epochs(data, state.seed, first),
            'aggregator_nodes': builder.sample(state).numel(),
            'stages': first,
        }

    # What reports state #####################################################

    def _reported(self) -> ShardReport:
        state, builder = self._fitted, self._builder
        sizes = builder.sizes(state.data)
        exact, exactness = self._exactness(state)
        return ShardReport(
            secrets=reports.FROM_SEED if state.seeded else FROM_SYSTEM,
            num_nodes=int(state.data.num_nodes or 0),
            num_train=int(sizes.sum()),
            shard_sizes=tuple(sizes.tolist()),
            empty=builder.empty(state.data),
            imbalance=float(sizes.max() / sizes.double().mean()),
            partition=described(state.partition),
            by_hash=self._by_hash(state.data),
            exact=exact,
            exactness=exactness,
            removals=sum(bool(e.request) for e in state.ledger.entries),
            seconds=state.seconds,
            trainer=builder.trainer,
            assumptions=self._assumed(state.data),
            origin=self._origin(),
        )

    def _assumed(self, data: Data) -> tuple[str, ...]:
        builder, persons = self._builder, data.get('persons')
        return (
            *reports.ASSUMPTIONS,
            *(reports.PUBLIC_START,) * builder.start_is_public,
            *(() if persons is None else persons.assumptions()),
            *unchecked(builder.aggregator),
        )

    def _by_hash(self, data: Data) -> int:
        late = data.get('by_hash')
        return 0 if late is None else int(late.sum())

    def _exactness(self, state: State) -> tuple[bool, str]:
        exact, text = self._of_partition(state)
        if self._builder.start_is_public:
            text += (
                '; models start from weights or buffers that are passed in '
                'and stated to be public, and are as exact as that is true'
            )
        return exact, text

    def _of_partition(self, state: State) -> tuple[bool, str]:
        partition = self._builder.method(state.partition, state.seed)
        if isinstance(partition, Shards) and partition.exact:
            order = (
                'remaining data, in the same order of nodes and edges'
                if self._by_person
                else 'present data, in any order of nodes and edges'
            )
            return True, (
                'exact: a node goes to the shard that a keyed hash of its id '
                'gives, so that everything equals a fresh start with the same '
                f'seed on the {order}'
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
        later = self._by_hash(state.data)
        many = later > _MANY * int((state.data.shard >= 0).sum())
        hashed = f'{later} training nodes came later and are by hash; '
        return False, (
            'exact given the partition: models and aggregator equal those of '
            'a fresh start with the same partition, but that has seen '
            f'{seen}, with what was removed; {hashed * bool(later)}'
            'repartition() starts over'
            + ', as it should from a quarter on'
            * many
        )

    def _origin(self) -> dict[str, Any]:
        # Without the seed, which salts the hashes.
        return provenance(
            partition=described(self._given),
            trainer=self._builder.trainer,
            start_is_public=self._builder.start_is_public,
            **self._config(),
        )

    # Commits ################################################################

    def _packed(self, state: State) -> dict[str, Any]:
        self._check_untyped('be saved')
        given = state.partition
        if state.ledger.has_removals:
            given = states.remembered(given)
        return {
            'format': states.FORMAT,
            'class': kind_of(self),
            'config': self._config(),
            **states.packed(state, given),
        }

    def _unpacked(self, plain: dict[str, Any]) -> State:
        self._check_untyped('load a state')
        with reading():
            check_state(plain, ('config',), (states.FORMAT,), self)
            check_settings('config', plain['config'], self._config())
            present, given = self._state, self._given
            if (
                not states.fits_partition(plain['partition'], given)
                and present
            ):
                given = present.partition
            if not states.fits_partition(plain['partition'], given):
                raise ValueError(
                    "the state's partition is another one (got "
                    f'{plain["partition"]["name"]})'
                )
            builder = self._builder
            before = present and present.lineage
            state = states.unpacked(plain, given, builder.aggregator, before)
            parts = builder.parts(state, range(self.num_shards))
            contents = builder.contents(state, parts)
            state = state._replace(seals=Seals.of(plain['salts'], contents))
            if len(state.checkpoints) != len(parts) or not state.is_sealed:
                raise ValueError(
                    'the data, models or account of the state do not match '
                    'its ledger: they were changed'
                )
            try:
                outputs = builder.outputs(state)
            except (KeyError, RuntimeError) as error:
                raise ValueError(
                    f"the state is not that of 'model_factory': {error}"
                ) from None
            for one, two in zip(
                states.trace(outputs), plain['trace'], strict=True
            ):
                if abs(one - two) > 1e-2 * abs(two):
                    raise ValueError(
                        "the state is not that of 'model_factory', whose "
                        'models give other outputs with the same weights: '
                        'pass the function that the state was fitted with'
                    )
        return state._replace(outputs=outputs)

    def _store(self, folder: str | Path | None) -> ShardStore:
        if folder is not None:
            check_instance('folder', folder, str, Path)
        folder = self.folder if folder is None else Path(folder)
        if folder is None:
            raise ValueError(
                "'folder' needs to be given, here or to the class"
            )
        return ShardStore(folder)

    def _commit(
        self, state: State, *, loaded: bool = False, anew: bool = False
    ) -> None:
        # The one place where a new state takes the place of the old: on the
        # disk by the switch of the manifest, in memory by one assignment.
        present, first = self._state, self._builder.from_first
        if not loaded:
            before = Lineage()
            if present is not None and not anew:
                before = present.lineage
            lineage, seconds, each = first(
                lambda: (before.next(), state.seconds, state.shard_seconds)
            )
            state = state._replace(
                lineage=lineage, seconds=seconds, shard_seconds=each
            )
        if self.folder is None:
            self._take(state)
            return
        store = ShardStore(self.folder)
        parts, plain = states.to_files(self._packed(state))
        goes_on = present is not None and not (loaded or anew)
        try:
            first(lambda: store.write(parts, plain, goes_on=goes_on))
            self._take(state)
        except BaseException:
            # After the switch there is no way back.
            if _in_force(store, plain):
                self._take(state)
            raise

    def _take(self, state: State) -> None:
        if state.ledger.has_removals:
            state = state._replace(
                partition=states.remembered(state.partition)
            )
            self._given = states.remembered(self._given)
            # It names removed persons.
            self._unit = None
        self._state = state

    def _files_left(self, state: State) -> list[str]:
        # What the folder holds beside the present state.
        if self.folder is None:
            return []
        store = ShardStore(self.folder)
        found = [
            f'{path}, which is not of the present state: load() deletes it'
            for path in store.strangers()
        ]
        if not _in_force(store, states.to_files(self._packed(state))[1]):
            found.append(f'the state in {self.folder}, which is another one')
        return found


_ARGUMENTS = tuple(inspect.signature(ShardedUnlearner).parameters)
_STEPS = ('epochs', 'lr', 'weight_decay', 'optimizer')


def _in_force(store: ShardStore, plain: dict[str, Any]) -> bool:
    manifest = store.manifest()
    return manifest is not None and all(
        manifest.get(key) == value for key, value in plain.items()
    )
