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
    Number,
    Positive,
    Rate,
    as_ids,
    check_instance,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint, stored
from pyg_trust._checks.starts import start_of
from pyg_trust._checks.states import check_settings
from pyg_trust._moved import renamed, retired
from pyg_trust.account import PaidNoise
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.coverage import Coverage
from pyg_trust.privacy.descent import (
    LinearRows,
    check_module,
    class_rows,
    default_model,
    descent_noise,
    like,
    outputs,
    posteriors,
    probe,
    rows_of,
    train_freely,
    train_privately,
)
from pyg_trust.privacy.fitted import Task, check_shares
from pyg_trust.privacy.propagation import (
    choose_receivers,
    class_messages,
    columns,
    energy_weights,
    private_propagate,
    received_lists,
    rounding_share,
    scaled_propagate,
)
from pyg_trust.transforms.aggregation_report import (
    RENAMED,
    Relation,
    make_relation,
    make_report,
)
from pyg_trust.transforms.private_agp import TWO_HOPS
from pyg_trust.transforms.release_checks import check_own, release_graph
from pyg_trust.verify.noise import SHIFT
from pyg_trust.verify.release import widened

__all__ = ['PrivateNodeClassifier']

_SHARES = (0.4, 0.5, 0.1)
_SMOOTHING = 2
# The share of training nodes that receive sums, if most nodes train.
_RECEIVERS = 0.2
_HOP = Measure(0.5, 0.5, (0.0, 1.0), name='hop')


class _Nodes(NamedTuple):
    # Labels, 0 where they are not read; who trains and who validates.
    y: Tensor
    train: Tensor
    val: Tensor | None
    classes: int


@validated
class PrivateNodeClassifier(Coverage):
    r"""Classifies nodes, and protects edges or nodes, also in predictions.

    An *encoder* classifies each node by its own features. Sums of its class
    probabilities over neighbours are released once, with noise. A *head*
    predicts from a node's own class probabilities and these sums. Predictions
    read no edge and cost nothing (:doc:`/theory/private_aggregation`). Ids,
    masks and arguments are public.

    Args:
        adjacency (str): what is protected: an ``'edge'``; the features, label
            and outgoing edges of a ``'node'``; also its incoming ones
            (``'node_incident'``); or features and label alone (``'feature'``).
        epsilon, delta (float): the budget of all that is released.
        K (int): the number of hops, each a noisy sum; 1 for ``'feature'``.
        shares (sequence of float, optional): how to divide the budget's mu
            squared among encoder, sums and head, by default (.4, .5, .1); not
            for ``'edge'``, where the sums get all of it.
        encoder (torch.nn.Module, optional): maps features to logits, or makes
            such a module. By default a linear model, for ``'edge'`` an MLP.
        head (torch.nn.Module, optional): maps a node's log-probabilities and
            ``K`` sums, ``(K + 1) * num_classes`` columns, to logits. For
            ``'feature'`` it reads ``4 * num_classes`` columns: also the noisy
            sum after one and after two more hops, without further noise.
        ledger (str or Path, optional): a file that records what is spent.
        neighboring (str, optional): whether neighbouring data have another
            record in place of one (``'replace'``), or lack one
            (``'add_remove'``, by default for ``'node_incident'`` alone).
        directed (bool): whether edges are directed.
        max_degree (int, optional): the most edges of a node that are
            protected; required for ``'node_incident'``.
        num_classes (int, optional): by default read from the labels.
        train_receivers (float, optional): for ``'node'`` with ``K=1``, the
            share of training nodes that get a sum. By default 1; but 0.2 with
            the default head if most nodes, but not all, are training nodes.
        steps, lr (int, float): noisy gradient steps, and their learning rate.
        epochs (int): the epochs of training without noise, for ``'edge'``.
        insecure_seed (int, optional): a seed; nothing is private then.
        ledger_head (str, optional): ``ledger_head`` of an earlier report.
        forget_epsilon (float): the largest :math:`\epsilon` at which a removal
            may rely on the noise of the release, without a new fit.
        max_units (float): the most records as which a node that is removed may
            count; it counts as more, the more edges lead to it.
        start_is_public (bool): you state that :obj:`encoder` and :obj:`head`
            were not trained on protected data.
    """

    _entries = ('encoder', 'head', 'released', 'smoothed', 'rho')
    _arguments = (
        *('smoothing', 'train_receivers'),
        *('steps', 'lr', 'epochs', 'num_classes'),
    )

    @retired(measure=(None,), smoothing=(None,))
    @renamed(**RENAMED)
    def __init__(
        self,
        adjacency: str = 'node',
        epsilon: Positive = 8.0,
        delta: Fraction = 1e-5,
        K: Count = 1,
        shares: Sequence[float] | None = None,
        encoder: nn.Module | Callable[[], nn.Module] | None = None,
        head: nn.Module | Callable[[], nn.Module] | None = None,
        ledger: str | Path | None = None,
        *,
        neighboring: str | None = None,
        directed: bool = False,
        max_degree: Count | None = None,
        num_classes: Count | None = None,
        train_receivers: Rate | None = None,
        steps: Count = 60,
        lr: Positive = 0.1,
        epochs: Count = 150,
        insecure_seed: int | None = None,
        ledger_head: str | None = None,
        forget_epsilon: Positive = 1.0,
        max_units: Positive = 4.0,
        start_is_public: bool = False,
    ) -> None:
        self.relation = make_relation(
            adjacency, neighboring, directed, max_degree
        )
        made: tuple[float, ...] = (0.0, 1.0, 0.0)
        if self._private:
            made = check_shares(shares, _SHARES, 'encoder, sums and head')
        elif shares is not None:
            raise ValueError(
                "'shares' can't be given with adjacency='edge', where encoder "
                f'and head cost nothing (got {shares})'
            )
        self._set_budget(
            epsilon, delta, made, ledger, ledger_head, insecure_seed
        )
        self._set_coverage(forget_epsilon, max_units)
        self.K = K
        if self._feature and K != 1:
            raise ValueError(
                f"'K' needs to be 1 with adjacency='feature' (got {K})"
            )
        self.smoothing = _SMOOTHING if self._feature else 0
        shorter = train_receivers is not None and train_receivers < 1
        if shorter and (adjacency != 'node' or K > 1):
            raise ValueError(
                "'train_receivers' below 1 needs adjacency='node' and K=1 "
                f'(got {adjacency!r} and K={K})'
            )
        self.train_receivers = train_receivers
        self.encoder = start_of('encoder', encoder, start_is_public)
        self.head = start_of('head', head, start_is_public)
        for name, module in (('encoder', self.encoder), ('head', self.head)):
            if module is not None:
                check_module(name, module, private=self._private)
        self.steps, self.lr, self.epochs = steps, lr, epochs
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
        """The standard deviation of the noise of each of the ``K`` sums.

        :meth:`fit` makes it larger by about a millionth, for rounding.
        """
        return self._stds(self._rho)

    def _stds(self, rho: float) -> tuple[float, ...]:
        std = self.relation.sensitivity / self._each()
        return (widened(std, rho) if rho else std,) * self.K

    def _each(self) -> float:
        # The mu of each sum.
        return self.mus[1] / math.sqrt(self.K)

    def _costs(self) -> list[float]:
        encoder, _, head = self.mus
        sums = [self._each()] * self.K
        return [encoder, *sums, head] if self._private else sums

    @property
    def _private(self) -> bool:
        return self.relation.adjacency != 'edge'

    @property
    def _feature(self) -> bool:
        return self.relation.adjacency == 'feature'

    @property
    @synchronized
    def released(self) -> tuple[Tensor, ...]:
        """The ``K`` noisy sums, float64, ``[num_nodes, num_classes]`` each."""
        self._check_fitted()
        return tuple(row.clone() for row in self._released)

    @editing
    @validated
    def fit(self, data: Data) -> 'PrivateNodeClassifier':
        """Train the classifier and release the noisy sums of :obj:`data`.

        Fitting the same data again changes nothing and costs nothing.

        Args:
            data (Data): with ``x`` (float32 or float64, dense or sparse),
                ``y`` (int64), ``train_mask`` and ``edge_index``; for
                ``'edge'``, ``val_mask`` is read if the data has one.

        Raises:
            TypeError, ValueError: if a release of the data can't be accounted
                for. Nothing is spent then.
            BudgetExceededError: if the budget does not allow it. Nothing is
                spent then.

        Example:
            >>> x, y = torch.eye(3), torch.tensor([0, 1, 0])
            >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
            >>> data = Data(x=x, y=y, edge_index=edges, train_mask=y == y)
            >>> model = PrivateNodeClassifier('node', epsilon=8.0, delta=1e-3)
            >>> model.fit(data).predict().shape
            torch.Size([3])
        """
        return self._fit(self._read(data))

    def _read(self, data: Data) -> Task:
        # Noise is drawn, and models are, on the CPU.
        graph = release_graph(data, self.relation).to('cpu')
        x = check_own(data, 'x', self.relation).detach().cpu()
        nodes = self._labels(data, graph.num_nodes)
        masks = [m for m in (nodes.train, nodes.val) if m is not None]
        setting = (graph.rowptr, graph.col, nodes.y, *masks)
        key = fingerprint(*setting, *stored(x), repr(nodes.classes))
        return Task(graph, x, key, nodes)

    def _labels(self, data: Data, n: int) -> _Nodes:
        # Labels are read where they may be: elsewhere they become 0.
        for name in ('y', 'train_mask'):
            if data.get(name) is None:
                raise ValueError(f"'data' needs to have a tensor '{name}'")
        y, train = as_ids('y', data.y), as_ids('train_mask', data.train_mask)
        check_tensor('y', y, torch.int64, (n,))
        check_tensor('train_mask', train, torch.bool, (n,))
        y, train, val = y.cpu(), train.cpu(), None
        if not train.any():
            raise ValueError("'train_mask' needs to have a node (got none)")
        read = train
        if not self._private and data.get('val_mask') is not None:
            val = as_ids('val_mask', data.val_mask)
            check_tensor('val_mask', val, torch.bool, (n,))
            val = val.cpu()
            read = train | val
            val = val if bool(val.any()) else None
        classes = self.num_classes
        if classes is None:
            classes = max(1, int(y.max()) + 1)
        check_range('y', y[read], classes, 'the classes', private=True)
        return _Nodes(torch.where(read, y, 0), train, val, classes)

    def _prepare(self, task: Task) -> None:
        # Modules of the user have to give logits, before anything is spent.
        classes = task.more.classes
        width = classes * (self.K + self.smoothing + 1)
        probe('encoder', self.encoder, task.x.size(1), classes, self._private)
        probe('head', self.head, width, classes, self._private)
        self.relation = self._of_classes(classes)

    def _of_classes(self, classes: int) -> Relation:
        # Rows that are replaced have messages without opposites.
        relation = self.relation
        if (
            relation.neighboring == 'replace'
            and relation.adjacency != 'node_incident'
        ):
            return relation._replace(num_classes=classes)
        return relation

    def _release(self, task: Task, paid: PaidNoise) -> None:
        # Refuses graphs that the measure is not for, before anything is paid.
        graph, (y, train, _, classes) = task.graph, task.more
        rho, scales = self._rounding(graph, classes)
        encoder = self._train('encoder', task.x, task.more, paid)
        own = posteriors(outputs(encoder, task.x, self._private))
        receivers = self._receivers(train)
        stds, messages = self._stds(rho), class_rows(y, own, train)
        released = self._sums(graph, messages, paid, receivers, scales, stds)
        smoothed = self._smooth(graph, released)
        read = self._columns(own, released, smoothed, stds)
        rows = task.more._replace(train=train & receivers)
        head = self._train('head', read, rows, paid)
        self._encoder, self._head, self._own = encoder, head, own
        self._released, self._smoothed, self._rho = released, smoothed, rho
        self._num_features = task.x.size(1)
        self._num_nodes, self.num_classes = graph.num_nodes, classes

    def _rounding(
        self, graph: CSRGraph, classes: int
    ) -> tuple[float, tuple[Tensor, Tensor] | None]:
        # If rounding adds to the sensitivity, the noise grows as much.
        if not self._feature and self.relation.num_classes is None:
            return 0.0, None
        known = classes, self._stds(0.0)[0], self.relation.sensitivity
        if not self._feature:
            return rounding_share(graph, *known), None
        scales = columns(graph, TWO_HOPS)
        return rounding_share(graph, *known, TWO_HOPS, False, scales), scales

    def _receivers(self, train: Tensor) -> Tensor:
        # Chosen by the mask and ids, which are public.
        share = self.train_receivers
        if share is None:
            # If few nodes train, or all are receivers, shorter lists save
            # nothing.
            n, number = train.numel(), int(train.sum())
            shorter = self.relation.adjacency == 'node' and self.K == 1
            shorter = shorter and self.head is None and n < 2 * number < 2 * n
            share = _RECEIVERS if shorter else 1.0
        return choose_receivers(train, share)

    def _sums(
        self,
        graph: CSRGraph,
        q: Tensor,
        paid: PaidNoise,
        receivers: Tensor,
        scales: tuple[Tensor, Tensor] | None,
        stds: tuple[float, ...],
    ) -> list[Tensor]:
        x, between = q - 1 / q.size(1), 'normalize'
        relation = self.relation
        if relation.num_classes is not None:
            x, between = class_messages(q), 'clip'
        if self._feature:
            sums = graph, x, TWO_HOPS, stds[0], paid, False, scales
            return [scaled_propagate(*sums, between=between)]
        weights = None
        if relation.adjacency == 'node':
            graph = received_lists(graph, receivers)
            weights = energy_weights(graph, relation.max_degree or 1)
        made = private_propagate(
            *(graph, x, stds, paid, relation.adjacency, weights),
            between=between,
        )
        # The other rows are noise alone.
        return [row.masked_fill_(~receivers[:, None], 0.0) for row in made]

    def _smooth(self, graph: CSRGraph, rows: list[Tensor]) -> list[Tensor]:
        # Smooth with released and public values alone.
        made, row = [], rows[-1]
        for _ in range(self.smoothing):
            row = propagate(graph, row, _HOP)
            made.append(row)
        return made

    @staticmethod
    def _columns(
        own: Tensor,
        released: list[Tensor],
        smoothed: list[Tensor],
        stds: tuple[float, ...],
    ) -> Tensor:
        # Rows of norm 1 about, whatever the degree: a mean needs no degree.
        made = [own.clamp(min=1e-12).log()]
        for row, std in zip(released, stds, strict=True):
            scale = row.square().sum(1, keepdim=True) + std**2 * row.size(1)
            made.append(row / scale.sqrt())
        for row in smoothed:
            made.append(row / row.norm(dim=1, keepdim=True).clamp(min=1e-12))
        return torch.cat(made, 1)

    def _train(
        self, name: str, x: Tensor, nodes: _Nodes, paid: PaidNoise
    ) -> nn.Module:
        head, (y, train, val, classes) = name == 'head', nodes
        given = self.head if head else self.encoder
        if given is None:
            blocks = self.K + self.smoothing if head else 0
            module = default_model(x.size(1), classes, self._private, blocks)
        else:
            module = deepcopy(given)
        if not self._private:
            # Wide rows of features, or a few columns.
            lr, decay = (0.02, 1e-4) if head else (0.01, 5e-4)
            return train_freely(
                *(module, x, y, train, val, self.epochs, lr, decay)
            )
        mu = self.mus[2 if head else 0]
        z = descent_noise(mu, self.steps, self.relation.neighboring)
        return train_privately(
            *(module, rows_of(x, train), y[train], classes, paid.pay(), z),
            *(self.steps, self.lr),
        )

    @synchronized
    def logits(self, x: Tensor | None = None) -> Tensor:
        """Return the logits of all nodes, ``[num_nodes, num_classes]``.

        Rows of removed nodes are NaN.

        Args:
            x (Tensor, optional): the features of all nodes; by default those
                of :meth:`fit`. Needed after loading a checkpoint, which holds
                none.
        """
        self._check_fitted()
        own = self._own
        if x is None and own is None:
            raise ValueError(
                "'x' needs to be given: a checkpoint holds no features"
            )
        if x is not None:
            width = self._num_features
            shape = self._num_nodes, 'num_columns' if width is None else width
            check_tensor('x', x, None, shape)
            assert self._encoder is not None
            own = posteriors(outputs(self._encoder, x.cpu(), self._private))
        assert own is not None
        assert self._head is not None
        kept = self._released, self._smoothed, self.noise_stds
        made = outputs(self._head, self._columns(own, *kept), self._private)
        # Removed nodes have no scores.
        return made.index_fill(0, self._erased(), math.nan)

    @synchronized
    def predict(
        self, index: Tensor | None = None, x: Tensor | None = None
    ) -> Tensor:
        """Predict the classes of nodes, int64; -1 for removed nodes.

        Args:
            index (Tensor, optional): int64 ids or a bool mask; by default all
                nodes. (default: :obj:`None`)
            x (Tensor, optional): the features of all nodes; by default those
                of :meth:`fit`. Needed after loading a checkpoint.
        """
        self._check_fitted()
        if index is not None:
            index = check_nodes('index', index, self._num_nodes)
        classes = self.logits(x).argmax(1).index_fill(0, self._erased(), -1)
        return classes if index is None else classes[index]

    def score(self, nodes: Tensor, y: Tensor) -> float:
        """Return the accuracy on nodes; removed nodes are left out.

        Args:
            nodes (list[int] or Tensor): int64 ids, or a bool mask of all
                nodes.
            y (list[int] or Tensor): int64, ``[num_nodes]``: the labels of all
                nodes.

        Raises:
            ValueError: if all of the nodes were removed.
        """
        self._check_fitted()
        y, rows = as_ids('y', y), check_nodes('nodes', nodes, self._num_nodes)
        check_tensor('y', y, torch.int64, (self._num_nodes,))
        found = self.predict(rows).cpu()
        there = found >= 0
        if not bool(there.any()):
            raise ValueError("'nodes' needs to have a node that is there")
        right = found[there] == y.cpu()[rows.cpu()[there]]
        return float(right.double().mean())

    def _reported(
        self, shared: dict[str, Any], own: list[float], others: list[float]
    ) -> Any:
        encoder, *sums, head = own if self._private else [0.0, *own, 0.0]
        receivers = shared['num_nodes']
        if self.relation.adjacency == 'node':
            # Noise is never exactly zero: rows of zeros are of no receiver.
            rows = self._released[0].any(1)
            if not bool(rows.index_fill(0, self._erased(), True).all()):
                receivers = int(rows.sum())
        return make_report(
            self.relation,
            **shared,
            mu_encoder=encoder,
            mu_aggregation=math.hypot(*sums, *others),
            mu_head=head,
            mu_others=math.hypot(*others),
            noise_stds=self.noise_stds,
            rho=self._rho,
            receivers=receivers,
            raw_columns=False,
            predictions=True,
        )

    def _has_fit(self) -> bool:
        return self._head is not None

    def _setting(self) -> dict[str, Any]:
        return {
            **super()._setting(),
            'hops': self.K,
            'measure': TWO_HOPS.key if self._feature else None,
            'own_messages': False,
            'num_nodes': self._num_nodes,
        }

    def _pack(self) -> dict[str, Any]:
        assert self._encoder is not None
        assert self._head is not None
        return {
            'encoder': deepcopy(self._encoder.state_dict()),
            'head': deepcopy(self._head.state_dict()),
            'released': [row.clone() for row in self._released],
            'smoothed': [row.clone() for row in self._smoothed],
            'rho': self._rho,
        }

    def _check_setting(self, theirs: dict[str, Any]) -> None:
        mine = self._setting()
        for name in ('num_nodes', 'num_classes'):
            mine[name] = mine[name] or theirs.get(name)
        check_settings('setting', theirs, mine)

    def _unpack(self, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        encoder = like(state['encoder'], self.encoder)
        if isinstance(encoder, LinearRows):
            encoder.unit = True
        n = state['setting']['num_nodes']
        classes = state['setting']['num_classes']
        made: dict[str, Any] = {}
        counts = {'released': self.K, 'smoothed': self.smoothing}
        for name, count in counts.items():
            check_instance('state', state[name], list)
            if len(state[name]) != count:
                raise ValueError(
                    f"'state' needs {count} {name} rows (got "
                    f'{len(state[name])})'
                )
            for row in state[name]:
                check_tensor('state', row, torch.float64, (n, classes))
            made[f'_{name}'] = [row.clone() for row in state[name]]
        rho = Number(0, 0.01, 'low')('state', state['rho'])
        head = like(state['head'], self.head)
        return n, {
            **made,
            '_encoder': encoder,
            '_head': head,
            '_rho': rho,
            'relation': self._of_classes(classes),
            '_num_nodes': n,
            'num_classes': classes,
            '_own': None,
            '_num_features': None,
        }

    def _erased(self) -> Tensor:
        return torch.tensor(sorted(self._gone()[0]), dtype=torch.int64)

    def _receiving(self) -> tuple[Tensor | None, float]:
        if self._feature:
            return None, self._rho
        grid = self.noise_stds[0] * 2.0**-SHIFT
        rows = self._released[0]
        return rows.any(1), grid * math.sqrt(rows.size(1))

    def _mu_of(self) -> tuple[float, float]:
        # A blank record is half as far as any other.
        near = 2 if self.relation.neighboring == 'replace' else 1
        trained = math.hypot(self.mus[0], self.mus[2]) / near
        return trained, math.sqrt(self.K) / self.noise_stds[0]

    def _erase(self, nodes: Tensor, graph: CSRGraph) -> tuple[str, ...]:
        if not nodes.numel():
            return ()
        made = [
            [row.index_fill(0, nodes, 0.0) for row in each]
            for each in (self._released, self._smoothed)
        ]
        self._released, self._smoothed = made
        if self.smoothing:
            self._smoothed = self._smooth(graph, self._released)
        if self._own is not None:
            even = 1 / max(1, self._own.size(1))
            self._own = self._own.index_fill(0, nodes, even)
        return 'their released rows', 'their own posteriors'

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.relation.adjacency!r}, '
            f'epsilon={self.epsilon:g}, delta={self.delta:g}, '
            f'K={self.K})'
        )
