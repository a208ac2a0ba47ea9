"""Private link prediction: scores of pairs that keep every edge private."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    REAL,
    Count,
    Fraction,
    Number,
    Positive,
    check_integer,
    check_number,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint, stored
from pyg_trust._checks.graphs import check_examples
from pyg_trust._moved import renamed
from pyg_trust.account import PaidNoise
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.privacy.coverage import Coverage
from pyg_trust.privacy.descent import descent_noise
from pyg_trust.privacy.fitted import Task, check_shares
from pyg_trust.privacy.link_sums import (
    MOST_PAIRS,
    logits,
    moments,
    on_grid,
    owner_features,
    pair_features,
    pairs_of,
    principal_rows,
    private_owners,
    private_pairs,
    projected_rows,
    public_basis,
    public_lists,
    public_pairs,
    scaled_features,
)
from pyg_trust.privacy.propagation import (
    MARGIN,
    energy_weights,
    messages,
    private_propagate,
)
from pyg_trust.removal import RemovalRequest
from pyg_trust.report.claimed import claimed
from pyg_trust.transforms.aggregation_report import (
    EXACT,
    RENAMED,
    ReleaseReport,
    make_relation,
)
from pyg_trust.transforms.release_checks import check_own, release_graph
from pyg_trust.verify.release import check_sum, released, truncated

__all__ = ['LinkReport', 'PrivateLinkPredictor']

_SHARES, _OF_OWNERS = (0.69, 0.01, 0.3), (0.95, 0.05)
# Columns of messages, and the most public pairs of each owner.
_COLUMNS, _MOST_EACH = {'edge': 8, 'node': 16}, 20
_NEGATIVES, _MOST_NEGATIVES = 5, 200_000
_LR = 0.1
# The tensors of a checkpoint: their shapes by name.
_TENSORS = {
    'edge': {
        'x': ('num_nodes', 'dim'),
        'messages': ('num_nodes', 'message_dim'),
        'rows': ('num_nodes', 'message_dim'),
        'mean': ('features',),
        'deviation': ('features',),
        'weight': ('columns',),
    },
    'node': {
        'rows': ('num_nodes', 'message_dim'),
        'basis': ('num_columns', 'message_dim'),
        'weight': ('columns',),
    },
}
_REFUSED = {
    'node_incident': 'a node of degree D moves D examples at every step, for '
    "D times the noise: protect edges ('edge') or records ('node')",
    'feature': 'edges are public there, so that no link is private',
}


@claimed(
    'private link prediction',
    num_neg="the number of negative examples, per node for 'node'",
    leave_out='whether the features of a training edge leave out its own '
    'message',
    provenance='versions of packages and arguments; no seeds',
)
class LinkReport(ReleaseReport):
    r"""Privacy guarantee of a link predictor, with its assumptions.

    A part's :math:`\mu` is its sensitivity over the standard deviation of its
    noise.
    """

    def _notes(self) -> list[str]:
        chosen = 'ids, number of nodes, whether edges are directed'
        lines = [
            f'{chosen}, features and all arguments were chosen without '
            'looking at edges, and no column of the features was computed '
            'from them'
        ]
        if self.adjacency == 'node':
            lines = [
                f'{chosen} and all arguments were chosen without looking at '
                'records, and no column of the features was computed from '
                'edges or from other rows'
            ]
        if self.adjacency == 'node' and not self.directed:
            lines.append(
                'that every edge is in both directions is known: a graph with '
                'one that is not is refused'
            )
        return [
            *lines,
            'errors, warnings and the time that a fit takes are not published',
            'which way a function of torch or numpy takes on one pair does '
            'not depend on the others: pairs are computed in blocks of one '
            'shape',
        ]

    def _limits(self) -> list[str]:
        held = (
            'which pairs were held out for evaluation, and measures of '
            'quality on them'
        )
        if self.adjacency == 'edge':
            return [held, "the relations 'node', 'node_incident', 'feature'"]
        return [
            held,
            'that the lists of others name a node, and scores that read the '
            "source's own record: they are for that node",
            "the relations 'edge', 'node_incident' and 'feature'",
        ]

    def _parts(self) -> dict[str, float]:
        names = ('sums', 'count', 'scorer', 'other releases')
        return dict(zip(names, self.mu_parts, strict=True))


@validated
class PrivateLinkPredictor(Coverage):
    r"""Predicts links, with differential privacy of every edge or node.

    :meth:`fit` releases noisy sums of the features of neighbours once. From
    these and the features, noisy gradient descent trains a logistic model of
    pairs, with edges as positive and random pairs as negative examples.
    Predictions read no edge and cost nothing. ``'edge'`` protects each edge,
    while features are public. ``'node'`` protects a node's features and its
    list of edges, and needs tens of thousands of nodes. Only edges of the
    fitted ``edge_index`` are protected: another split of ``RandomLinkSplit``
    is another graph, and costs again.

    Args:
        adjacency (str): what is protected, ``'edge'`` or ``'node'``.
        epsilon (float): the budget.
        delta (float): the :math:`\delta` of the budget. Choose a public power
            of ten of at most :math:`1 / (10 m)`, for :math:`m` edges.
        ledger (str or Path, optional): a file that records what is spent.
        neighboring (str, optional): for ``'node'``, whether neighbouring data
            have another record in place of a node's (``'replace'``, the
            default) or lack it (``'add_remove'``).
        directed (bool): whether edges are directed.
        shares (sequence of float, optional): how the budget (its squared mu)
            is divided: for ``'edge'``, by default sums .69, number of edges
            .01, model .3; for ``'node'``, by default sums .95, model .05.
        dim (int): for ``'edge'``, the columns to which features are reduced.
        message_dim (int, optional): how many columns are summed; 8 by default,
            16 for ``'node'``, and at most :obj:`dim`.
        steps (int): the number of gradient steps.
        lr (float, optional): the learning rate; by default :math:`.1 \sqrt p`
            for :math:`p` features of a pair.
        num_neg (int, optional): the number of negative examples, by default 5
            an edge; for ``'node'``, the number per node, by default up to 20.
        leave_out (bool): whether the features of a training edge leave out the
            message along this edge.
        insecure_seed (int, optional): a seed; nothing is private then.
        ledger_head (str, optional): ``ledger_head`` of an earlier report.
        forget_epsilon (float): for ``'edge'``, the largest :math:`\epsilon` at
            which noise may cover removed edges, so that nothing is fitted
            again.
    """

    _entries = ('count', 'negatives')
    _arguments = ('dim', 'message_dim', 'steps', 'lr', 'num_neg', 'leave_out')

    @renamed(**RENAMED)
    def __init__(
        self,
        adjacency: str = 'edge',
        epsilon: Positive = 4.0,
        delta: Fraction = 1e-6,
        ledger: str | Path | None = None,
        *,
        neighboring: str | None = None,
        directed: bool = False,
        shares: Sequence[float] | None = None,
        dim: Count = 32,
        message_dim: Count | None = None,
        steps: Count = 30,
        lr: Annotated[float, Number(0, 1e6, 'high')] | None = None,
        num_neg: Count | None = None,
        leave_out: bool = True,
        insecure_seed: int | None = None,
        ledger_head: str | None = None,
        forget_epsilon: Positive = 1.0,
    ) -> None:
        if adjacency in _REFUSED:
            raise ValueError(
                f"'adjacency' needs to be 'edge' or 'node' (got "
                f'{adjacency!r}): {_REFUSED[adjacency]}'
            )
        self.relation = make_relation(adjacency, neighboring, directed, None)
        made = (
            check_shares(shares, _SHARES, 'rows, count and scorer')
            if adjacency == 'edge'
            else check_shares(shares, _OF_OWNERS, 'rows and scorer')
        )
        self._set_budget(
            epsilon, delta, made, ledger, ledger_head, insecure_seed
        )
        self._set_coverage(forget_epsilon, math.inf)
        if message_dim is None:
            message_dim = min(dim, _COLUMNS[adjacency])
        check_integer('message_dim', message_dim, 1, dim)
        if num_neg is not None:
            check_integer('num_neg', num_neg, 1, MOST_PAIRS)
        self.dim, self.message_dim = dim, message_dim
        self.steps, self.lr = steps, lr
        self.num_neg, self.leave_out = num_neg, leave_out
        self._state: dict[str, Tensor] = {}
        self._count, self._negatives = 0.0, 0

    @property
    def noise_stds(self) -> tuple[float, ...]:
        """Standard deviations of the noise of all releases.

        The first is of the sums; then, for ``'edge'``, of the number of edges;
        the last is of the gradients, as a multiple of their clipping norm.
        """
        rows, *count, scorer = self.mus
        return (
            self.relation.sensitivity / rows,
            *(1 / mu for mu in count),
            descent_noise(scorer, self.steps, self.relation.neighboring),
        )

    @property
    @synchronized
    def released(self) -> Tensor:
        """The noisy sums, float64, ``[num_nodes, message_dim]``."""
        self._check_fitted()
        return self._state['rows'].clone()

    @property
    @synchronized
    def num_edges(self) -> float:
        """The noisy number of edges; ``'node'`` raises a ``RuntimeError``."""
        self._check_fitted()
        if self._of_owners:
            raise RuntimeError("edges are counted under 'edge' alone")
        return self._count

    @property
    def _of_owners(self) -> bool:
        return self.relation.adjacency == 'node'

    @editing
    @validated
    def fit(self, data: Data) -> 'PrivateLinkPredictor':
        """Release noisy sums, and train the model on edges of :obj:`data`.

        Fitting the same data again changes nothing and costs nothing.

        Args:
            data (Data): with ``x`` (float32 or float64, dense or sparse) and
                ``edge_index``; labels of pairs are not read.

        Raises:
            TypeError, ValueError: if a release of the data can't be accounted
                for. Nothing is spent then.
            BudgetExceededError: if the budget does not allow it. Nothing is
                spent then.

        Example:
            >>> edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
            >>> data = Data(x=torch.eye(4), edge_index=edges)
            >>> model = PrivateLinkPredictor(epsilon=4.0, delta=1e-3).fit(data)
            >>> model.decision_function(torch.tensor([[0], [2]])).shape
            torch.Size([1])
        """
        graph = release_graph(data, self.relation).to('cpu')
        x = check_own(data, 'x', self.relation).cpu()
        if graph.num_nodes < 2:
            raise ValueError("'data' needs to have at least two nodes")
        pairs = pairs_of(graph, self._of_owners or self.relation.directed)
        if pairs.size(1) > MOST_PAIRS:
            raise ValueError(
                f"'data' needs to have at most {MOST_PAIRS:,} edges"
            )
        check_examples(data, graph.row, graph.col, graph.num_nodes)
        for std in self.noise_stds:
            check_sum(MOST_PAIRS, std, "the noise of 'epsilon'")
        key = fingerprint(graph.rowptr, graph.col, *stored(x))
        return self._fit(Task(graph, x, key, pairs))

    def _release(self, task: Task, paid: PaidNoise) -> None:
        made = self._by_owner if self._of_owners else self._by_edge
        self._state, self._count, self._negatives = made(task, paid)

    def _rate(self, columns: int) -> float:
        return _LR * math.sqrt(columns) if self.lr is None else self.lr

    def _by_edge(
        self, task: Task, paid: PaidNoise
    ) -> tuple[dict[str, Tensor], float, int]:
        graph, pairs = task.graph, task.more
        row_std, count_std, z = self.noise_stds
        principal = principal_rows(task.x, self.dim)
        sent = principal[:, : self.message_dim]
        state = {
            'x': messages(principal),
            'messages': on_grid(messages(sent), row_std),
        }
        (state['rows'],) = private_propagate(graph, sent, [row_std], paid)
        # Every edge adds the same integer, which is 1 at most.
        one = truncated(np.array([1 - MARGIN]), count_std).astype(np.int64)
        cells = paid.cells((1,)).numpy()
        noisy = released(one * pairs.size(1), cells, count_std)
        count = float(noisy[0]) / (1 - MARGIN)
        num_neg = self.num_neg
        if num_neg is None:
            num_neg = int(min(_NEGATIVES * max(1.0, count), _MOST_NEGATIVES))
        raw = self._raw(state, public_pairs(graph.num_nodes, num_neg))
        mean, deviation = moments(raw, num_neg)
        negatives = scaled_features(raw, mean, deviation, num_neg)
        left_out = 'target' if self.relation.directed else 'both'
        positives = scaled_features(
            self._raw(state, pairs, left_out if self.leave_out else ''),
            *(mean, deviation, pairs.size(1)),
        )
        size = negatives.shape[1]
        weight = private_pairs(
            *(positives, negatives, count, num_neg),
            *(paid.cells((self.steps, size)), z, self._rate(size)),
        )
        state['mean'] = torch.from_numpy(mean)
        state['deviation'] = torch.from_numpy(deviation)
        state['weight'] = torch.from_numpy(weight)
        return state, count, num_neg

    def _by_owner(
        self, task: Task, paid: PaidNoise
    ) -> tuple[dict[str, Tensor], float, int]:
        graph, pairs = task.graph, task.more
        std, z = self.noise_stds
        n, weights = graph.num_nodes, energy_weights(graph)
        basis = public_basis(task.x.size(1), self.message_dim)
        sent = projected_rows(task.x, basis)
        (rows,) = private_propagate(graph, sent, [std], paid, 'node', weights)
        made = messages(sent)
        own = on_grid(made * weights[:, None], std) if self.leave_out else None
        each = self.num_neg or max(1, min(_MOST_EACH, _MOST_NEGATIVES // n))
        public = public_lists(n, each)
        size = self.message_dim + 3
        cells = paid.cells((self.steps, size))
        weight = private_owners(
            (owner_features(pairs, made, rows, std, own), pairs[0].numpy()),
            graph.degree.cpu().numpy(),
            (owner_features(public, made, rows, std), public[0].numpy()),
            *(each, cells, z, self._rate(size)),
        )
        state = {'rows': rows, 'basis': basis}
        state['weight'] = torch.from_numpy(weight)
        return state, 0.0, each

    def _raw(
        self, state: dict[str, Tensor], pairs: Tensor, left_out: str = ''
    ) -> np.ndarray:
        parts = state['x'], state['messages'], state['rows']
        return pair_features(pairs, *parts, self.noise_stds[0], left_out)

    def score(
        self,
        edge_label_index: Tensor,
        edge_label: Tensor,
        x: Tensor | None = None,
    ) -> float:
        """Return the area under the ROC curve of labelled pairs.

        Args:
            edge_label_index (Tensor): pairs of nodes, int64, ``[2,
                num_pairs]``.
            edge_label (Tensor): ``[num_pairs]``: 1 for links, else 0.
            x (Tensor, optional): as in :meth:`decision_function`, for
                ``'node'`` alone: features, so that scores read the source's
                own row.

        Raises:
            ValueError: unless there are pairs of both labels.
        """
        found = self.decision_function(edge_label_index, x).numpy()
        dtypes = torch.int64, torch.float32, torch.float64
        check_tensor('edge_label', edge_label, dtypes, (found.size,))
        linked = edge_label.cpu() > 0
        count, others = int(linked.sum()), int((~linked).sum())
        if not count or not others:
            raise ValueError("'edge_label' needs to have both labels, 0 and 1")
        ranks = rankdata(found)[linked.numpy()].sum()
        return float((ranks - count * (count + 1) / 2) / (count * others))

    @synchronized
    def decision_function(
        self, edge_label_index: Tensor, x: Tensor | None = None
    ) -> Tensor:
        """Compute logits of pairs, larger for likelier links.

        No edge of the graph is read.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``.
            x (Tensor, optional): for ``'node'`` alone, the features, float32
                or float64, ``[num_nodes, num_columns]``. The logit of a pair
                then also reads its source's row: show it to the source alone.
                Without it, logits may be shown to all.

        Returns:
            Tensor: float64, ``[num_pairs]``.
        """
        self._check_fitted()
        shape = (2, 'num_pairs')
        check_tensor('edge_label_index', edge_label_index, torch.int64, shape)
        n = self._state['rows'].size(0)
        check_range('edge_label_index', edge_label_index, n, 'the nodes')
        if x is not None and not self._of_owners:
            raise ValueError(
                "'x' needs to be left out with adjacency='edge', where "
                'features are kept since fit()'
            )
        scores = self._by_record if self._of_owners else self._by_features
        # A part at a time, as memory is for each pair.
        parts = edge_label_index.cpu().split(2**16, dim=1)
        made = scores(x)
        return torch.from_numpy(np.concatenate([made(part) for part in parts]))

    def _by_features(self, x: Tensor | None) -> Any:
        state = self._state
        weight = state['weight'].numpy()
        mean, deviation = state['mean'].numpy(), state['deviation'].numpy()

        def scores(part: Tensor) -> np.ndarray:
            blocks, count = self._raw(state, part), part.size(1)
            blocks = scaled_features(blocks, mean, deviation, count)
            return logits(blocks, weight)[:count]

        return scores

    def _by_record(self, x: Tensor | None) -> Any:
        state, std = self._state, self.noise_stds[0]
        rows, basis, weight = state['rows'], state['basis'], state['weight']
        # Without a node's record, use its released row.
        made = shown = messages(rows)
        if x is not None:
            check_tensor('x', x, REAL, (rows.size(0), basis.size(0)))
            made = messages(projected_rows(x.cpu(), basis))
        ways = [(False, made), (True, shown)][: 2 - self.relation.directed]

        def scores(part: Tensor) -> np.ndarray:
            total = np.zeros(part.size(1))
            for back, sent in ways:
                way = part.flip(0) if back else part
                blocks = owner_features(way, sent, rows, std)
                total += logits(blocks, weight.numpy())[: part.size(1)]
            return total / len(ways)

        return scores

    def _reported(
        self, shared: dict[str, Any], own: list[float], others: list[float]
    ) -> LinkReport:
        row_std, *counts, z = self.noise_stds
        return LinkReport.of(
            **shared,
            **EXACT,
            mu_others=math.hypot(*others),
            adjacency=self.relation.adjacency,
            neighboring=self.relation.neighboring,
            directed=self.relation.directed,
            steps=self.steps,
            num_neg=self._negatives,
            leave_out=self.leave_out,
            row_std=row_std,
            count_std=counts[0] if counts else None,
            noise_multiplier=z,
        )

    def _has_fit(self) -> bool:
        return bool(self._state)

    def _pack(self) -> dict[str, Any]:
        tensors = {name: value.clone() for name, value in self._state.items()}
        return {'count': self._count, 'negatives': self._negatives, **tensors}

    def _unpack(self, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        made: dict[str, Tensor] = {}
        sizes: dict[str, int] = {}
        for name, shape in _TENSORS[self.relation.adjacency].items():
            value = state.get(name, torch.zeros(()))
            check_tensor('state', value, torch.float64, shape, finite=True)
            for dim, size in zip(shape, value.shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(
                        f"'state' needs {sizes[dim]} {dim} in {name!r} (got "
                        f'{size})'
                    )
            made[name] = value.clone()
        features = sizes['message_dim'] + 2
        if not self._of_owners:
            features += sizes['dim'] + sizes['message_dim']
        known = sizes.get('features', features), sizes['columns']
        if known != (features, features + 1):
            raise ValueError(f"'state' needs {features} features of a pair")
        return sizes['num_nodes'], {
            '_state': made,
            '_count': check_number('state', state['count']),
            '_negatives': check_integer('state', state['negatives'], 1),
        }

    def _asked(self, request: RemovalRequest, fit: str) -> Any:
        if self._of_owners:
            raise ValueError(
                "'request' can't be covered by noise, as lists of others name "
                f'a node: fit again without them, which spends {fit}'
            )
        return super()._asked(request, fit)

    def _mu_of(self) -> tuple[float, float]:
        row_std, count_std, _ = self.noise_stds
        return math.hypot(1 / count_std, self.mus[2]), 1 / row_std

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.relation.adjacency!r}, '
            f'epsilon={self.epsilon:g}, delta={self.delta:g})'
        )
