r"""Exact unlearning by shards: SISA, GraphEraser and GraphRevoker."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    as_ids,
    check_callable,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._moved import retired
from pyg_trust.certificates.poisoning import (
    PoisonCertificate,
    certify_shards,
)
from pyg_trust.files.commit import (
    ObjectLock,
    editing,
    synchronized,
)
from pyg_trust.ledger import RemovalLedger
from pyg_trust.removal import RemovalRequest, requested, rows_of
from pyg_trust.transforms.shards import Shards
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning.aggregate import (
    ShardAggregator,
)
from pyg_trust.unlearning.partition import check_shards
from pyg_trust.unlearning.reports import (
    ForgetPlan,
    ForgetReport,
    ShardReport,
    VerifyReport,
)
from pyg_trust.unlearning.shards import state as states
from pyg_trust.unlearning.shards.building import (
    Builder,
    checked_aggregator,
    checked_partition,
    verified,
)
from pyg_trust.unlearning.shards.graph import (
    copied,
    count_classes,
    other_graph,
)
from pyg_trust.unlearning.shards.models import Recipe, single_thread
from pyg_trust.unlearning.shards.state import (
    AGGREGATOR_NODES,
    ASSUMPTIONS,
    Forgotten,
    State,
    Stateful,
    described,
)
from pyg_trust.unlearning.shards.updating import Persons, applied
from pyg_trust.unlearning.store import ShardStore
from pyg_trust.update import Update, skipping

__all__ = ['ShardedUnlearner']

_Self = TypeVar('_Self', bound='ShardedUnlearner')


class ShardedUnlearner(Stateful):
    """Node classifier that removes data exactly, by retraining shards.

    As `SISA <https://arxiv.org/abs/1912.03817>`_, `GraphEraser
    <https://arxiv.org/abs/2103.14991>`_ and `GraphRevoker
    <https://arxiv.org/abs/2403.07353>`_: training nodes are divided into
    shards, one model is trained on the subgraph of each, and an aggregator
    combines the models' outputs for each node. After a removal or another
    update, the affected shards and the aggregator are trained again. The
    result *equals*, bit for bit, a fit on the present data with the same seed
    and partition. With ``partition='hash'`` the shard of a node depends on its
    id alone. Other partitions also depend on data that may be removed later
    (:meth:`repartition` renews them).

    Args:
        model_factory (Callable): makes a new PyG model of node logits, which
            takes ``x, edge_index[, edge_weight]`` or ``data``.
        num_shards (int): the number of shards. (default: :obj:`20`)
        partition (str, Shards, Tensor or list): a method of
            :class:`~pyg_trust.transforms.Shards`; the shard of each training
            node; or the ids of nodes by shard. (default: :obj:`'hash'`)
        aggregator (str or ShardAggregator): :obj:`'mean'`, :obj:`'majority'`,
            :obj:`'lbaggr'`, :obj:`'attentive'`, :obj:`'contrastive'` or an
            object. (default: :obj:`'attentive'`)
        num_classes (int, optional): needed if a class may lose all of its
            training nodes, or come later. (default: the largest label plus 1)
        epochs (int, optional): full-batch epochs of a shard. (default: 100)
        lr (float): the learning rate. (default: :obj:`0.01`)
        weight_decay (float): the weight decay. (default: :obj:`5e-4`)
        optimizer (str): 'adam', 'adamw' or 'sgd'. (default: :obj:`'adam'`)
        train (Callable, optional): trains a model on the subgraph of a shard,
            in place of the built-in loop: ``train(model, data, generator)``.
        slices (list, optional): stages of a shard's training, as pairs (share
            of its nodes used so far, epochs); after a removal, training starts
            from the last stage that had not used the removed nodes.
        over_ranks (bool): whether the processes of torchrun share the shards.
        folder (str or Path, optional): where every new state is saved.
        unit (PrivacyUnit, optional): which person owns which rows of a
            ``HeteroData``; persons are then put into shards and removed.
        start_is_public (bool): states that initial weights saw no data.
        seed (int, optional): the seed of everything; by default a secret one.
    """

    @retired(
        aggregator_nodes=(AGGREGATOR_NODES,),
        trainer=('sequential', 'process'),
        num_workers=None,
    )
    @validated
    def __init__(
        self,
        model_factory: Callable[[], Module],
        num_shards: Count = 20,
        *,
        partition: str | Shards | Tensor | Sequence[Any] = 'hash',
        aggregator: str | ShardAggregator = 'attentive',
        num_classes: Count | None = None,
        epochs: int | None = None,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        optimizer: str = 'adam',
        train: Callable[..., Any] | None = None,
        slices: Sequence[tuple[float, int]] | None = None,
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
        check_shards(num_shards, num_shards)
        for name in ('slices', 'over_ranks', 'folder'):
            if unit is not None and self._params[name] not in (None, False):
                raise ValueError(
                    f"'{name}' can't be used with a 'unit': leave it out"
                )
        self.recipe = Recipe.of(
            epochs,
            slices,
            lr=lr,
            weight_decay=weight_decay,
            optimizer=optimizer,
            train=train,
        )
        self._unit, self._by_person = unit, unit is not None
        self.num_shards, self.num_classes = num_shards, num_classes
        # Absolute: independent of the working directory.
        self.folder = None if folder is None else Path(folder).absolute()
        self._lock = ObjectLock()
        self._state: State | None = None
        self._given = checked_partition(partition, num_shards, self._by_person)
        self._first_seed = rng.resolve_secret(seed)
        self._first_seeded = seed is not None
        self._builder = Builder(
            model_factory,
            num_shards,
            self.recipe,
            checked_aggregator(aggregator, start_is_public),
            start_is_public,
            over_ranks,
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments; ``deep`` has no effect."""
        given = {'partition': self._given, 'unit': self._unit}
        return {**self._params, **given}

    @property
    def classes_(self) -> Tensor:
        """The classes of the columns of ``predict_proba``: int64."""
        return torch.arange(self._fitted.num_classes)

    # Training and prediction ################################################

    @editing
    def fit(self: _Self, data: Data | HeteroData) -> _Self:
        """Divide the training nodes into shards; train a model on each.

        Keeps copies of ``x``, ``edge_index``, ``edge_weight``, ``y``, the
        masks and ``n_id``. A second call begins a new ledger. If the
        :obj:`folder` holds a state, the first call by this object, or a call
        after a removal, is refused.

        Args:
            data (Data or HeteroData): the graph, with a ``train_mask``. Labels
                of other nodes only count for the number of classes. Later
                calls take ``n_id`` as ids if the graph has it, else the
                positions. With a :obj:`unit`, the ``HeteroData`` of its
                persons, whose node type has the labels and the mask.

        Raises:
            TypeError, ValueError: if the data, the partition or the models do
                not fit, the folder holds a state, or ranks were given
                different arguments.
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
        folder = self.folder
        if anew and folder and ShardStore(folder).manifest() is not None:
            raise ValueError(
                f"'folder' {self.folder} holds a state, whose removals a fit "
                'would undo: load it, or take another folder'
            )
        exact = builder.is_exact(given, self._first_seed)
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
            ledger=RemovalLedger.after(before and before.ledger, 0.0),
        )
        self._commit(builder.fresh(empty, given, 'fit'), anew=anew)
        return self

    def predict(
        self, data: Data | None = None, *, nodes: Any = None
    ) -> Tensor:
        """Predict the classes of nodes: int64, ``[num_nodes]``.

        Args:
            data (Data, optional): another graph; by default the present one.
            nodes (list[int] or Tensor, optional): ids of nodes of the present
                graph, or a bool mask of all its rows. By default all rows: the
                nodes of :meth:`fit`, then later ones; -1 for removed nodes.
        """
        probability = self.predict_proba(data, nodes=nodes)
        there = ~probability.isnan().any(1)
        return torch.where(there, probability.nan_to_num(0).argmax(1), -1)

    @torch.no_grad()
    def predict_proba(
        self, data: Data | None = None, *, nodes: Any = None
    ) -> Tensor:
        """Predict class probabilities: ``[num_nodes, num_classes]``.

        Takes the arguments of :meth:`predict`: another graph, or ids or a mask
        of nodes of the present one. Removed nodes have NaN.
        """
        state = self._fitted
        if data is not None and nodes is not None:
            raise ValueError(
                "'nodes' are ids of the present graph, not of 'data': give "
                'one of them'
            )
        outputs, n_id = state.outputs, state.data.n_id
        if data is not None:
            self._check_untyped('predict for another graph')
            other = other_graph(data, state.data)
            outputs = self._builder.outputs(state, other)
        with single_thread():
            probability = state.aggregator(outputs)
        if data is not None:
            return probability
        if nodes is not None:
            nodes = self._ids_of(nodes)
            return probability[rows_of(n_id, nodes)]
        # By the rows of the graph that was fitted.
        place = torch.searchsorted(n_id, state.rows)
        place = place.clamp(max=n_id.numel() - 1)
        gone = n_id[place] != state.rows
        return probability[place].masked_fill(gone[:, None], torch.nan)

    def score(self, nodes: Any = None, y: Any = None) -> float:
        """Return the accuracy on nodes.

        Args:
            nodes (list[int] or Tensor, optional): ids of nodes of the present
                graph, or a bool mask of the rows of :meth:`predict`; by
                default the ``test_mask``.
            y (list[int] or Tensor, optional): the classes of these nodes, or
                with a mask those of all rows; by default the labels in the
                data.
        """
        data = self._fitted.data
        if nodes is None and data.get('test_mask') is None:
            raise ValueError(
                "'nodes' needs to be given, as the graph has no 'test_mask'"
            )
        if nodes is None:
            nodes = data.n_id[data.test_mask]
        mask, nodes = as_ids('nodes', nodes), self._ids_of(nodes)
        found = self.predict(nodes=nodes)
        if y is None:
            y = data.y[rows_of(data.n_id, nodes)]
        y = torch.as_tensor(y).view(-1)
        if mask.dtype == torch.bool and y.shape == mask.shape:
            y = y[mask.to(y.device)]
        check_tensor('y', y, torch.int64, tuple(found.shape))
        if not y.numel() or int(y.min()) < 0:
            raise ValueError(
                "'nodes' needs at least one node, and each a label from 0 on"
            )
        return float((found == y).double().mean())

    def _ids_of(self, nodes: Any) -> Tensor:
        # Ids as they are, or of the rows of a mask.
        nodes, rows = as_ids('nodes', nodes), self._fitted.rows
        if isinstance(nodes, Tensor) and nodes.dtype == torch.bool:
            check_tensor('nodes', nodes, torch.bool, (rows.numel(),))
            return rows[nodes.cpu()]
        check_tensor('nodes', nodes, torch.int64, ('num_nodes',))
        return nodes.cpu()

    @property
    def data(self) -> Data | HeteroData:
        """A copy of the present graph, with nodes' ``n_id`` and ``shard``."""
        kept = self._fitted.data
        if self._by_person:
            typed = kept.persons.graph.clone()
            for key in ('y', 'shard', 'train_mask'):
                typed[kept.persons.person][key] = kept[key].clone()
            return typed
        made = copy.copy(kept)
        made.x = made.x.to_dense()
        return made.clone()

    @property
    def n_id(self) -> Tensor:
        """The ids of the nodes in ``data``: int64, ``[num_nodes]``."""
        return self._fitted.data.n_id.clone()

    @property
    def outputs(self) -> Tensor:
        """Copy of all logits: ``[num_shards, num_nodes, num_classes]``."""
        return self._fitted.outputs.clone()

    @property
    def ledger(self) -> RemovalLedger:
        """A copy of the ledger of removals; exact removal spends no budget."""
        return self._fitted.ledger.copy()

    def shard_state(self, shard: int) -> dict[str, Tensor]:
        """Return a copy of the ``state_dict`` of a shard's model."""
        check_integer('shard', shard, 0, self.num_shards - 1)
        weights = self._fitted.checkpoints[shard].weights
        return {name: value.clone() for name, value in weights.items()}

    # Removals and other updates #############################################

    @synchronized
    def plan(
        self,
        update: Update | RemovalRequest | Sequence[Any] | None = None,
        *,
        shard: Mapping[int, int] | str | None = None,
        **items: Any,
    ) -> ForgetPlan:
        """Estimate the shards and the cost of an update; change nothing.

        Takes the arguments of :meth:`update`: the removals, additions and
        changes, and the shards of new training nodes; or what to remove, as in
        :meth:`remove`.
        """
        if items or update is None:
            update = requested(update, **items)
        state, builder = self._fitted, self._builder
        after, first, request = applied(
            builder, state, update, shard, self.num_classes
        )
        seconds, fraction = builder.estimate(after, first)
        return ForgetPlan(
            request=request,
            seconds=seconds,
            fraction=fraction,
            full_node_epochs=builder.node_epochs(after),
            **builder.costs(after, first),
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
        on_report: Callable[[ForgetReport], Any] | None = None,
    ) -> ForgetReport:
        """Remove the requested items; retrain their shards.

        Args:
            request (RemovalRequest or list, optional): the items to remove, or
                the ids of nodes. Without it, use the arguments below.
            nodes (list[int] or Tensor, optional): the ids of nodes to remove,
                with their features and edges.
            edges (list or Tensor, optional): edges to remove, in both
                directions, as ``[2, num_edges]`` or a list of pairs of ids.
            features (list[int] or Tensor, optional): the ids of nodes whose
                features are removed.
            labels (list[int] or Tensor, optional): the ids of nodes whose
                labels are removed.
            persons (list[int] or Tensor, optional): the ids of persons, of the
                :obj:`unit` of this unlearner.
            missing (str): :obj:`'raise'`, or :obj:`'skip'` to leave out items
                that are not there and list them in ``skipped`` of the report.
                (default: :obj:`'raise'`)
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)
            on_report (Callable, optional): is called with the report before
                the new state is saved. If it raises, nothing has changed.
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

        def apply(left: RemovalRequest) -> ForgetReport:
            return self._apply(left, None, reference, on_report)

        return skipping(request, missing, apply)

    @editing
    def update(
        self,
        update: Update | RemovalRequest | Sequence[Any],
        *,
        shard: Mapping[int, int] | str | None = None,
        reference: str = '',
    ) -> ForgetReport:
        """Apply updates in order, all or none, and retrain their shards.

        A keyed hash of a new training node's id chooses its shard. If the
        partition is by another method, ``by_hash`` of the report counts these.

        Args:
            update (Update, RemovalRequest or list): the removals, additions
                and changes of graph 0, by ids. Nodes with a new label are
                trained on.
            shard (dict or str, optional): the shard of every new training
                node, by id, or :obj:`'hash'`; needed if the partition was
                given as tensors.
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            ValueError: if an item to remove is missing, or an item to add
                exists or was removed before; if no training node would be
                left; or, without :obj:`num_classes`, if a class would appear
                or be left empty.
        """
        if self._builder.over_ranks:
            self._agree(
                'update',
                update=states.plain_updates(update),
                reference=reference,
                shard=shard,
            )
        return self._apply(update, shard, reference)

    def _apply(
        self,
        update: Any,
        shard: Any,
        reference: str,
        on_report: Callable[[ForgetReport], Any] | None = None,
    ) -> ForgetReport:
        state, builder = self._fitted, self._builder
        state.ledger.check_reference(reference)
        after, first, request = applied(
            builder, state, update, shard, self.num_classes
        )
        new = builder.updated(
            after, first, 'retrain', request=request, reference=reference
        )
        report = ForgetReport.of(
            'exact removal by shards',
            keeps_history=False,
            request=request,
            fraction=builder.estimate(new, first)[1],
            weights_sha256=states.hash_of_shards(new),
            data_sha256=new.ledger.newest(1)[0].data,
            ledger_head=new.ledger.head,
            **self._of(new),
            **builder.costs(new, first),
        )
        if on_report is not None:
            on_report(report)
        # Last of all, so that a removal that fails is none.
        self._commit(new)
        return report

    @editing
    def repartition(
        self, partition: str | Shards | Tensor | Sequence[Any] | None = None
    ) -> ShardReport:
        """Divide the remaining training nodes again, and train all shards.

        The result equals a fit on the remaining data.

        Args:
            partition (str, Shards, Tensor or list, optional): a method, the
                shard of each training node, or ids by shard; by default the
                present method; needed if the shards were given as tensors.
        """
        self._agree('repartition', partition=states.plain_partition(partition))
        state = self._fitted
        given = state.partition
        if partition is not None:
            given = checked_partition(
                partition, self.num_shards, self._by_person
            )
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
    def verify(self, shards: Iterable[int] | None = None) -> VerifyReport:
        """Retrain shards and aggregator from scratch, and compare all bits.

        Also looks for removed items in the data and the checkpoints, and for
        files that do not belong to the present state.

        Args:
            shards (list[int], optional): the numbers of the shards to retrain;
                by default all.
        """
        state = self._fitted
        shards = range(self.num_shards) if shards is None else shards
        check_instance('shards', shards, Iterable)
        last = self.num_shards - 1
        which = tuple(check_integer('shards', s, 0, last) for s in shards)
        return verified(self._builder, state, which, self._files_left(state))

    @synchronized
    def report(self) -> ShardReport:
        """Report the present state of the unlearner and its guarantee."""
        return self._reported()

    @torch.no_grad()
    def certify(self, nodes: Any = None) -> PoisonCertificate:
        """Certify predictions against poisoned training nodes.

        Each target gets a radius: its class stays, whatever happens to the
        training nodes of that many shards. The graph at inference is assumed
        to be clean. The partition has to be :obj:`'hash'`, the aggregator
        :obj:`'mean'` or :obj:`'majority'`, and :obj:`num_classes` given.

        Args:
            nodes (list[int] or Tensor, optional): the ids of the targets; by
                default all nodes.
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
            assumptions=self._assumed(state.data)[len(ASSUMPTIONS) :],
        )

    def __repr__(self) -> str:
        training = f'epochs={self.recipe.epochs}'
        if self.recipe.train is not None:
            training = f'train={self.recipe.plain()["train"]}'
        return (
            f'{type(self).__name__}(num_shards={self.num_shards}, '
            f'partition={described(self._given)}, '
            f'aggregator={type(self._builder.aggregator).__name__}, '
            f'{training})'
        )


_ARGUMENTS = tuple(inspect.signature(ShardedUnlearner).parameters)
