# Longer than 700 lines because three releases share one account, and 150 lines
# say what each of them promises.
"""Private node classification: edges, nodes and predictions."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust._checks import (
    Count,
    Fraction,
    Natural,
    Positive,
    Rate,
    check_instance,
    check_nodes,
    check_number,
    check_range,
    check_rate,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint, stored
from pyg_trust._checks.starts import start_of
from pyg_trust._checks.states import check_settings
from pyg_trust.account import PaidNoise, ReleaseAccount
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.noise import SecureNoise, SeededNoise
from pyg_trust.privacy.descent import descent_noise
from pyg_trust.privacy.fitted import PrivateFit, check_shares, take
from pyg_trust.privacy.propagation import (
    class_messages,
    columns,
    energy_weights,
    private_propagate,
    rounding_share,
    scaled_propagate,
)
from pyg_trust.privacy.receivers import choose_receivers, received_lists
from pyg_trust.privacy.row_models import (
    LinearRows,
    MLPRows,
    check_module,
    class_rows,
    head_start,
    kind_of,
    like,
    outputs,
    posteriors,
    rows_of,
    train_freely,
    train_privately,
)
from pyg_trust.transforms.aggregation_report import (
    AggregationReport,
    make_relation,
    make_report,
)
from pyg_trust.transforms.private_agp import TWO_HOPS
from pyg_trust.transforms.release_checks import (
    check_own,
    release_graph,
)
from pyg_trust.verify.noise import SHIFT
from pyg_trust.verify.release import widened

_SHARES = (0.4, 0.5, 0.1)
_SMOOTHING = 2
# The share of training nodes that receive sums, if most nodes train.
_RECEIVERS = 0.2
_HOP = Measure(0.5, 0.5, (0.0, 1.0), name='hop')


class _Task(NamedTuple):
    # The data that a fit reads; the key tells data apart.
    graph: CSRGraph
    x: Tensor
    y: Tensor
    train: Tensor
    val: Tensor | None
    classes: int
    key: str


@validated
class PrivateNodeClassifier(PrivateFit):
    r"""Node classifier with private edges or nodes, and private predictions.

    .. code-block:: python

        model = PrivateNodeClassifier('node', epsilon=8.0, delta=1e-6)
        classes = model.fit(data).predict()
        print(model.report().explain())

    **What it does.** An *encoder* classifies rows by themselves. Every node
    sends a *message*: its label, where it trains, else the posterior of the
    encoder, less the mean, brought to norm 1; it has as many numbers as there
    are classes, since every number gets noise. The noisy sums of messages
    over neighbours are released once. A *head* reads a node's own posterior
    and its released rows; under ``'feature'``, where edges are public, also
    these rows :math:`S` after more hops :math:`P S, P^2 S, \ldots` with
    :math:`P = D^{-1/2} A D^{-1/2}`, which average the noise of many rows and
    cost nothing, being functions of :math:`S` and edges. (Predictions are not
    propagated: each reads its node's own record, so their sums would show
    records of neighbours, which nothing paid for.)

    **Who receives.** Under ``'node'`` a list has an energy of 1, however many
    nodes are on it. Nodes that train have labels and need no prediction, but
    most messages go to them. So where most nodes train only a fifth of these
    receive sums (:func:`~pyg_trust.privacy.receivers.choose_receivers`; the
    mask and a hash of ids choose), the head trains on that fifth, and the
    others, the nodes that don't train among them, receive the energy of the
    rest (:mod:`pyg_trust.privacy.receivers`, with the proof that the
    sensitivity stays 1). Rows of nodes that receive nothing are zero, and
    **their predictions come from their own features alone**: ask for
    :obj:`train_receivers=1` if you need those of nodes that train.

    Heads start at public weights, which add the posterior of a node and the
    classes of its neighbours: few rows and few steps make a head of them.

    **What protects whom.** Under ``'edge'`` features and labels are known,
    encoder and head train without noise, and the sums have all of the budget.
    Under the other relations encoder and head train by full-batch private
    gradient descent (:mod:`pyg_trust.privacy.descent`), as linear
    models of normalised rows, and with the sums they are one Gaussian release:

    .. math::
        \mu^2 = \mu_{\text{encoder}}^2 + \mu_{\text{sums}}^2
        + \mu_{\text{head}}^2,

    in closed form. Of ``'node'`` and ``'feature'`` in the form ``'replace'``
    messages are :func:`~pyg_trust.privacy.class_messages`, which are closer
    to each other than any of norm 1, by a factor :math:`\sqrt{C / (2 (C -
    1))}`, and need as much less noise. What was released is kept: predictions
    read kept rows, the weights and the row of the node that is asked for,
    never an edge, so any number of them costs nothing. Labels of nodes that
    don't train are not read (under ``'edge'`` those of ``val_mask`` choose
    among epochs), but for the number of classes: give :obj:`num_classes`.

    **Assumed public:** ids, masks, the number of classes, all arguments.

    Args:
        relation (str): who is protected: ``'edge'``, ``'node'``,
            ``'node_incident'`` or ``'feature'``
            (:mod:`pyg_trust.privacy.propagation`).
            (default: :obj:`'node'`)
        epsilon (float): the budget. (default: :obj:`8.0`)
        delta (float): its :math:`\delta`. (default: :obj:`1e-5`)
        hops (int): how often sums are released; 1 for ``'feature'``.
            (default: :obj:`1`)
        shares (sequence of float, optional): of :math:`\mu^2`, for encoder,
            sums and head; by default :obj:`(.4, .5, .1)`. Not for ``'edge'``.
        encoder (torch.nn.Module, optional): maps rows to logits; trained from
            its present weights, in a copy. Or a factory, a callable without
            an argument, that draws one anew. By default an MLP with 16 hidden
            units for ``'edge'``, else a linear model. (default: :obj:`None`)
        head (torch.nn.Module, optional): maps ``(hops + smoothing + 1) *
            num_classes`` columns to logits, as the encoder.
            (default: :obj:`None`)
        ledger (str or Path, optional): a file for the account.
            (default: :obj:`None`)
        form (str, optional): ``'replace'`` or ``'withdraw'``, with the
            defaults of :class:`~pyg_trust.transforms.PrivateAGP`.
            (default: :obj:`None`)
        directed (bool): whether edges are arcs. (default: :obj:`False`)
        max_degree (int, optional): :math:`D` of ``'node_incident'``.
            (default: :obj:`None`)
        measure (Measure, optional): of ``'feature'``, as of
            :class:`~pyg_trust.transforms.PrivateAGP`. (default: :obj:`None`)
        train_receivers (float, optional): of ``'node'`` with one hop: the
            share of the nodes that train which receive sums, in :math:`(0,
            1]`. By default .2 if more than half of the nodes train, but not
            all, and there is no :obj:`head`; else 1. (default: :obj:`None`)
        smoothing (int, optional): of ``'feature'``: how many more hops of
            released rows the head reads; by default 2, as chosen on Cora-ML.
        steps (int): the steps of private descent, each. (default: :obj:`60`)
        lr (float): the learning rate; the default head, which starts at
            weights that do, takes a fifth of it. (default: :obj:`0.1`)
        epochs (int): the epochs of training without noise, for ``'edge'``.
            (default: :obj:`150`)
        num_classes (int, optional): by default one more than the largest
            label. (default: :obj:`None`)
        seed (int, optional): the seed of the noise, to repeat an experiment;
            the result is not private. (default: :obj:`None`)
        ledger_head (str, optional): as of
            :class:`~pyg_trust.privacy.PrivacyEngine`. (default: :obj:`None`)
        start_is_public (bool): your statement that :obj:`encoder` and
            :obj:`head` were not trained on what is protected; needed if
            either is handed in, and repeated in the report.
            (default: :obj:`False`)

    Example:
        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> data = Data(
        ...     x=torch.eye(3),
        ...     y=torch.tensor([0, 1, 0]),
        ...     edge_index=edges,
        ...     train_mask=torch.tensor([True, True, False]),
        ... )
        >>> model = PrivateNodeClassifier('node', epsilon=8.0, delta=1e-3)
        >>> model.fit(data).predict().shape
        torch.Size([3])
        >>> model.report().epsilon <= 8.0
        True
    """

    _entries = ('encoder', 'head', 'released', 'smoothed')

    def __init__(
        self,
        relation: str = 'node',
        epsilon: Positive = 8.0,
        delta: Fraction = 1e-5,
        hops: Count = 1,
        shares: Sequence[float] | None = None,
        encoder: nn.Module | Callable[[], nn.Module] | None = None,
        head: nn.Module | Callable[[], nn.Module] | None = None,
        ledger: str | Path | None = None,
        *,
        form: str | None = None,
        directed: bool = False,
        max_degree: Count | None = None,
        measure: Measure | None = None,
        smoothing: Natural | None = None,
        train_receivers: Rate | None = None,
        steps: Count = 60,
        lr: Positive = 0.1,
        epochs: Count = 150,
        num_classes: Count | None = None,
        seed: int | None = None,
        ledger_head: str | None = None,
        forget_epsilon: Positive = 1.0,
        max_units: Positive = 4.0,
        start_is_public: bool = False,
    ) -> None:
        self.relation = make_relation(relation, form, directed, max_degree)
        made = _check_shares(shares, relation)
        self._set_budget(epsilon, delta, made, ledger, ledger_head, seed)
        self._set_coverage(forget_epsilon, max_units)
        self.hops = hops
        if (relation == 'feature' and hops != 1) or (
            relation != 'feature' and measure is not None
        ):
            raise ValueError(
                "'hops' goes with the relations 'edge' and 'node', 'measure' "
                f"with 'feature' (got {relation!r}, hops={hops} and "
                f'measure={measure})'
            )
        self.measure = TWO_HOPS if measure is None else measure
        self._own_messages = measure is not None
        if smoothing is not None:
            if smoothing and relation != 'feature':
                raise ValueError(
                    "'smoothing' reads edges after the release, which are "
                    f"public under 'feature' alone (got {relation!r})"
                )
        elif relation == 'feature':
            smoothing = _SMOOTHING
        self.smoothing = smoothing or 0
        self.train_receivers = _check_receivers(
            train_receivers, relation, self.hops
        )
        self.encoder = start_of('encoder', encoder, start_is_public)
        self.head = start_of('head', head, start_is_public)
        for name, module in (('encoder', self.encoder), ('head', self.head)):
            if module is not None:
                check_module(name, module, private=relation != 'edge')
        self.steps = steps
        self.lr = lr
        self.epochs = epochs
        self.num_classes = num_classes
        # Posteriors of the rows of `fit`, not the rows: these are the
        # caller's, who may write into them.
        self._own: Tensor | None = None
        self._num_features: int | None = None
        self._encoder: nn.Module | None = None
        self._head: nn.Module | None = None
        self._released: list[Tensor] = []
        self._smoothed: list[Tensor] = []
        self._num_nodes, self._rho = 0, 0.0

    @property
    def noise_stds(self) -> tuple[float, ...]:
        """The standard deviation of the noise of each sum.

        Before :meth:`fit`, it lacks the share of rounding, a millionth or so;
        with ``'replace'`` and no :obj:`num_classes`, it is that of any number
        of classes.
        """
        each = self.mus[1] / math.sqrt(self.hops)
        std = self.relation.sensitivity / each
        return (widened(std, self._rho) if self._rho else std,) * self.hops

    @property
    @synchronized
    def released(self) -> tuple[Tensor, ...]:
        """The noisy sums, float64, ``[num_nodes, num_classes]`` each."""
        self._check_fitted()
        return tuple(row.clone() for row in self._released)

    @editing
    @validated
    def fit(self, data: Data) -> 'PrivateNodeClassifier':
        """Train the classifier and release the sums of :obj:`data`.

        The same data again change nothing and cost nothing.

        Args:
            data (Data): with ``x`` (float32 or float64, dense or sparse),
                ``y`` (int64), ``train_mask``, ``edge_index`` and, for
                ``'edge'`` if there is one, ``val_mask``; on any device,
                the work is done on the CPU.

        Returns:
            PrivateNodeClassifier: itself.

        Raises:
            TypeError, ValueError: if a release of the data can't be accounted
                for. Nothing is spent then.
            BudgetExceededError: if the budget does not allow it. Nothing is
                spent then.
        """
        return self._fit(self._read(data))

    def _read(self, data: Data) -> _Task:
        # Noise is drawn, and models are, on the CPU.
        graph = release_graph(data, self.relation).to('cpu')
        x = check_own(data, 'x', self.relation).cpu()
        # Unused labels are 0 by now.
        y, train, val, classes = self._labels(data, graph.num_nodes)
        masks = (train,) if val is None else (train, val)
        setting = (graph.rowptr, graph.col, y, *masks)
        key = fingerprint(*setting, *stored(x), repr(classes))
        return _Task(graph, x, y, train, val, classes, key)

    def _train_on(self, task: _Task, account: ReleaseAccount) -> None:
        # Encoder, messages, release, head: each pays before it draws noise.
        graph, classes = task.graph, task.classes
        # Refuses graphs that its measure is not for.
        feature = self.relation.name == 'feature'
        scales = columns(graph, self.measure) if feature else None
        self._round(graph, classes, scales)
        source = self._source(len(account.lines))
        before = self._released, self._smoothed
        try:
            encoder = self._model('encoder', task.x.size(1), classes)
            encoder = self._train(encoder, task, self.mus[0], source)
            own = posteriors(outputs(encoder, task.x, self._private))
            messages = class_rows(task.y, own, task.train)
            receivers = self._receivers(task.train)
            self._released = self._release(
                graph, messages, source, receivers, scales
            )
            self._smoothed = self._smooth(graph)
            read = self._columns(own)
            head = self._model('head', read.size(1), classes)
            rows = task._replace(x=read, train=task.train & receivers)
            self._head = self._train(head, rows, self.mus[2], source, True)
            self._encoder, self._own = encoder, own
            self._num_features = task.x.size(1)
            self._num_nodes, self.num_classes = graph.num_nodes, classes
        except BaseException:
            # Spent budget stays spent; predictions stay those before.
            self._released, self._smoothed = before
            raise

    @synchronized
    def logits(self, x: Tensor | None = None) -> Tensor:
        """Return the logits of all nodes, ``[num_nodes, num_classes]``.

        Args:
            x (Tensor, optional): the features of all nodes; by default those
                of :meth:`fit`, as they were then. Needed after
                :meth:`load_state_dict`, as a checkpoint holds no private row.
                Rows have to be a node's own: propagated ones would show edges,
                which nothing paid for. (default: :obj:`None`)
        """
        encoder, head = self._check_fitted()
        own = self._own
        if x is None and own is None:
            raise ValueError(
                "'x' needs to be given: a checkpoint holds no features"
            )
        if x is not None:
            width = self._num_features
            shape = self._num_nodes, 'num_columns' if width is None else width
            check_tensor('x', x, None, shape)
            own = posteriors(outputs(encoder, x.cpu(), self._private))
        assert own is not None
        made = outputs(head, self._columns(own), self._private)
        # Removed nodes have no scores.
        return made.index_fill(0, self._erased(), math.nan)

    @synchronized
    def predict(
        self, index: Tensor | None = None, x: Tensor | None = None
    ) -> Tensor:
        """Predict the classes of nodes, int64. No edge is read.

        Of nodes that were removed it is -1.

        Args:
            index (Tensor, optional): int64 ids or a bool mask; by default all
                nodes. (default: :obj:`None`)
            x (Tensor, optional): as of :meth:`logits`. (default: :obj:`None`)
        """
        self._check_fitted()
        if index is not None:
            index = check_nodes('index', index, self._num_nodes)
        classes = self.logits(x).argmax(1).index_fill(0, self._erased(), -1)
        return classes if index is None else classes[index]

    @synchronized
    def report(self, delta: float | None = None) -> AggregationReport:
        r"""Return the guarantee so far, with every assumption.

        Args:
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
        """
        shared = self._reported(delta)
        encoder, sums, head, others = self._parts()
        receivers = None
        if self.relation.name == 'node' and self._released:
            # Noise is never exactly zero: rows of zeros are of no receiver.
            rows = self._released[0].any(1)
            if not bool(rows.index_fill(0, self._erased(), True).all()):
                receivers = int(rows.sum())
        return make_report(
            self.relation,
            **shared,
            mu_encoder=encoder,
            mu_aggregation=sums,
            mu_head=head,
            mu_others=others,
            hops=self.hops,
            noise_stds=self.noise_stds,
            rho=self._rho,
            receivers=receivers,
            raw_columns=False,
            predictions=True,
        )

    def _parts(self) -> tuple[float, float, float, float]:
        # Split the spent mu into encoder, other releases (sums included),
        # head, and the share of other releases that holds no row of one's own.
        assert self._account is not None
        rest = list(self._account.lines)
        encoder, sums, head = self.mus
        each = sums / math.sqrt(self.hops)

        if self._encoder is None:
            others = math.hypot(*rest)
            return 0.0, others, 0.0, others
        own = [take(rest, encoder), take(rest, head)]
        total = math.hypot(*rest)
        for _ in range(self.hops):
            take(rest, each)
        return own[0], total, own[1], math.hypot(*rest)

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return weights, released rows and the account, without features."""
        encoder, head = self._check_fitted()
        return {
            **self._saved(),
            'encoder': deepcopy(encoder.state_dict()),
            'head': deepcopy(head.state_dict()),
            'released': [row.clone() for row in self._released],
            'smoothed': [row.clone() for row in self._smoothed],
            'rho': self._rho,
        }

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; predictions then need ``x``.

        Args:
            state (dict): the :meth:`state_dict` of a classifier with the same
                arguments.

        Raises:
            ValueError: if the state has other arguments or doesn't continue
                the present account. Nothing is changed then.
        """
        covered = self._check_saved(state)
        theirs = state['setting']
        mine = self._setting()
        for name in ('num_nodes', 'num_classes'):
            if not mine[name]:
                mine[name] = theirs.get(name)
        # Older states have no 'train_receivers': all nodes received. Their
        # noise may come from a seed.
        before = None if mine['train_receivers'] is None else 1.0
        theirs = {'train_receivers': before, 'seeded': True, **theirs}
        check_settings('setting', theirs, mine)
        encoder = like(state['encoder'], self.encoder)
        head = like(state['head'], self.head)
        if isinstance(encoder, LinearRows):
            encoder.unit = True
        n, classes = theirs['num_nodes'], theirs['num_classes']
        for name, count in (
            ('released', self.hops),
            ('smoothed', self.smoothing),
        ):
            check_instance('state', state[name], list)
            if len(state[name]) != count:
                raise ValueError(
                    f"'state' needs {count} {name} rows (got "
                    f'{len(state[name])})'
                )
            for row in state[name]:
                check_tensor('state', row, torch.float64, (n, classes))
        # Older states have no 'rho': their rows are not on a grid.
        rho = check_number('state', state.get('rho', 0.0))
        if not 0 <= rho <= 0.01:
            raise ValueError(f"'state' needs a 'rho' in [0, .01] (got {rho})")
        lines = self._check_paid(state)
        self._open(n).resume(lines, state['ledger'])
        self._encoder, self._head = encoder, head
        self._released = [row.clone() for row in state['released']]
        self._smoothed = [row.clone() for row in state['smoothed']]
        self._tell(classes)
        self._num_nodes, self.num_classes = n, classes
        self._own, self._num_features = None, None
        self._rho = rho
        self._take_coverage(covered)

    def _erased(self) -> Tensor:
        return torch.tensor(sorted(self._gone()[0]), dtype=torch.int64)

    def _receiving(self) -> tuple[Tensor | None, float]:
        if self.relation.name == 'feature':
            return None, self._rho
        grid = self.noise_stds[0] * 2.0**-SHIFT
        rows = self._released[0]
        return rows.any(1), grid * math.sqrt(rows.size(1))

    def _mu_of(self) -> tuple[float, float]:
        # A blank record is half as far as any other.
        near = 2 if self.relation.form == 'replace' else 1
        trained = math.hypot(self.mus[0], self.mus[2]) / near
        return trained, math.sqrt(self.hops) / self.noise_stds[0]

    def _erase(self, nodes: Tensor, graph: CSRGraph) -> tuple[str, ...]:
        if not nodes.numel():
            return ()
        rows = self._released, self._smoothed
        made = [
            [row.index_fill(0, nodes, 0.0) for row in each] for each in rows
        ]
        self._released, self._smoothed = made
        if self.smoothing:
            self._smoothed = self._smooth(graph)
        if self._own is not None:
            even = 1 / max(1, self._own.size(1))
            self._own = self._own.index_fill(0, nodes, even)
        return 'their released rows', 'their own posteriors'

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.relation.name!r}, '
            f'epsilon={self.epsilon:g}, delta={self.delta:g}, '
            f'hops={self.hops})'
        )

    def _setting(self) -> dict[str, Any]:
        return {
            'relation': self.relation.name,
            'form': self.relation.form,
            'directed': self.relation.directed,
            'max_degree': self.relation.max_degree,
            'epsilon': self.epsilon,
            'delta': self.delta,
            'hops': self.hops,
            'shares': self.shares,
            'measure': self.measure.key
            if self.relation.name == 'feature'
            else None,
            'own_messages': self._own_messages,
            'smoothing': self.smoothing,
            'train_receivers': self.train_receivers,
            'steps': self.steps,
            'lr': self.lr,
            'epochs': self.epochs,
            'seeded': self.seed is not None,
            'num_nodes': self._num_nodes,
            'num_classes': self.num_classes,
        }

    def _check_fitted(self) -> tuple[nn.Module, nn.Module]:
        if self._encoder is None or self._head is None:
            raise RuntimeError('fit data first')
        return self._encoder, self._head

    def _labels(
        self, data: Data, n: int
    ) -> tuple[Tensor, Tensor, Tensor | None, int]:
        # Labels are read where they may be: elsewhere they become 0.
        for name in ('y', 'train_mask'):
            if not isinstance(data.get(name), Tensor):
                raise ValueError(f"'data' needs to have a tensor '{name}'")
        check_tensor('y', data.y, torch.int64, (n,))
        check_tensor('train_mask', data.train_mask, torch.bool, (n,))
        y, train, val = data.y.cpu(), data.train_mask.cpu(), None
        if not train.any():
            raise ValueError("'train_mask' needs to have a node (got none)")
        read = train
        if self.relation.name == 'edge' and data.get('val_mask') is not None:
            check_tensor('val_mask', data.val_mask, torch.bool, (n,))
            val = data.val_mask.cpu()
            read = train | val
            val = val if bool(val.any()) else None
        classes = self.num_classes
        if classes is None:
            classes = max(1, int(y.max()) + 1)
        check_range('y', y[read], classes, 'the classes', private=True)
        return torch.where(read, y, 0), train, val, classes

    def _probe(self, x: Tensor, classes: int) -> None:
        # Modules of the user have to give logits, before anything is spent.
        for name, module, size in (
            ('encoder', self.encoder, x.size(1)),
            (
                'head',
                self.head,
                classes * (self.hops + self.smoothing + 1),
            ),
        ):
            if module is None:
                continue
            rows = torch.zeros(2, size, dtype=kind_of(module))
            try:
                out = outputs(deepcopy(module).eval(), rows, self._private)
            except Exception as error:
                raise ValueError(
                    f"'{name}' needs to map rows of {size} columns to logits, "
                    f'each by itself (got {type(error).__name__}: {error})'
                ) from error
            if out.shape != (2, classes):
                raise ValueError(
                    f"'{name}' needs to return {classes} logits a row (got "
                    f'the shape {list(out.shape)})'
                )

    def _prepare(self, task: _Task) -> None:
        self._probe(task.x, task.classes)
        self._tell(task.classes)

    def _tell(self, classes: int) -> None:
        # Rows that are replaced have messages without opposites.
        relation = self.relation
        if relation.form == 'replace' and relation.name != 'node_incident':
            self.relation = relation._replace(num_classes=classes)

    def _round(
        self,
        graph: CSRGraph,
        classes: int,
        scales: tuple[Tensor, Tensor] | None,
    ) -> None:
        # If rounding adds to the sensitivity, the noise grows as much.
        self._rho = 0.0
        relation, given = self.relation, None
        if scales is not None:
            given = self.measure
        elif relation.num_classes is None:
            return
        self._rho = rounding_share(
            *(graph, classes, self.noise_stds[0], relation.sensitivity, given),
            own=self._own_messages,
            scales=scales,
        )

    def _receivers(self, train: Tensor) -> Tensor:
        # Chosen by the mask and ids, which are public.
        share = self.train_receivers
        if share is None:
            # If few nodes train, or all are receivers, shorter lists save
            # nothing.
            n, number = train.numel(), int(train.sum())
            shorter = self.relation.name == 'node' and self.hops == 1
            shorter = shorter and self.head is None and n < 2 * number < 2 * n
            share = _RECEIVERS if shorter else 1.0
        return choose_receivers(train, share)

    def _release(
        self,
        graph: CSRGraph,
        q: Tensor,
        source: Any,
        receivers: Tensor,
        scales: tuple[Tensor, Tensor] | None,
    ) -> list[Tensor]:
        assert self._account is not None
        x, between = q - 1 / q.size(1), 'normalize'
        if self.relation.num_classes is not None:
            x, between = class_messages(q), 'clip'
        each = [self.mus[1] / math.sqrt(self.hops)] * self.hops
        paid = PaidNoise(source, self._account.spend, each)
        stds, relation = self.noise_stds, self.relation
        if relation.name == 'feature':
            return [
                scaled_propagate(
                    *(graph, x, self.measure, stds[0], paid),
                    own=self._own_messages,
                    scales=scales,
                    between=between,
                )
            ]
        weights = None
        if relation.name == 'node':
            graph = received_lists(graph, receivers)
            weights = energy_weights(graph, relation.max_degree or 1)
        made = private_propagate(
            *(graph, x, stds, paid, relation.name, weights), between=between
        )
        # The other rows are noise alone.
        return [row.masked_fill_(~receivers[:, None], 0.0) for row in made]

    def _smooth(self, graph: CSRGraph) -> list[Tensor]:
        # Smooth with released and public values alone.
        made, rows = [], self._released[-1]
        for _ in range(self.smoothing):
            rows = propagate(graph, rows, _HOP)
            made.append(rows)
        return made

    def _columns(self, own: Tensor) -> Tensor:
        # Rows of norm 1 about, whatever the degree: a mean needs no degree.
        made = [own.clamp(min=1e-12).log()]
        for row, std in zip(self._released, self.noise_stds, strict=True):
            scale = row.square().sum(1, keepdim=True) + std**2 * row.size(1)
            made.append(row / scale.sqrt())
        for row in self._smoothed:
            made.append(row / row.norm(dim=1, keepdim=True).clamp(min=1e-12))
        return torch.cat(made, 1)

    @property
    def _private(self) -> bool:
        return self.relation.name != 'edge'

    def _model(self, name: str, size: int, classes: int) -> nn.Module:
        given = self.encoder if name == 'encoder' else self.head
        if given is not None:
            return deepcopy(given)
        if self._private:
            made = LinearRows(size, classes, name == 'encoder')
            if name == 'head':
                start = head_start(self.hops, self.smoothing, classes)
                made.weight = nn.Parameter(start)
            return made
        if name == 'encoder':
            return MLPRows(size, 16, classes, 0.5)
        return MLPRows(size, 32, classes, 0.1)

    def _train(
        self,
        module: nn.Module,
        task: _Task,
        mu: float,
        source: SecureNoise | SeededNoise,
        small: bool = False,
    ) -> nn.Module:
        x, y, train = task.x, task.y, task.train
        if not self._private:
            # Wide rows of features, or a few columns.
            lr, decay = (0.02, 1e-4) if small else (0.01, 5e-4)
            return train_freely(
                module, x, y, train, task.val, self.epochs, lr, decay
            )
        assert self._account is not None
        z = descent_noise(mu, self.steps, self.relation.form)
        self._account.spend(mu)
        return train_privately(
            *(module, rows_of(x, train), y[train], task.classes, source, z),
            *(self.steps, self.lr),
        )


def _check_shares(
    shares: Sequence[float] | None, relation: str
) -> tuple[float, ...]:
    if relation == 'edge':
        if shares is not None:
            raise ValueError(
                "'shares' needs a relation of nodes: under 'edge', encoder "
                f'and head read no edges and cost nothing (got {shares})'
            )
        return 0.0, 1.0, 0.0
    return check_shares(shares, _SHARES, 'encoder, sums and head')


def _check_receivers(
    share: float | None, relation: str, hops: int
) -> float | None:
    if share is None:
        return None
    check_rate('train_receivers', share)
    if share < 1 and (relation != 'node' or hops > 1):
        raise ValueError(
            "'train_receivers' below 1 needs the relation 'node' with one "
            f'hop: shorter lists gain nothing elsewhere (got {relation!r}, '
            f'hops={hops})'
        )
    return float(share)
