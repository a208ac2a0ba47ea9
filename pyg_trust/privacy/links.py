# Longer than 700 lines because edges and records share account and report.
"""Private link prediction: scores of pairs that keep every edge private."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
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
from pyg_trust._checks.states import check_settings
from pyg_trust.account import PaidNoise, ReleaseAccount
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.descent import descent_noise
from pyg_trust.privacy.fitted import PrivateFit, check_shares, take
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
from pyg_trust.report import Guarantee
from pyg_trust.transforms.aggregation_report import (
    ReleaseReport,
    make_relation,
)
from pyg_trust.transforms.release_checks import (
    check_own,
    release_graph,
)
from pyg_trust.verify.noise import DIGEST, SHIFT
from pyg_trust.verify.release import check_sum, pair_mus, released, truncated

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


class _Task(NamedTuple):
    graph: CSRGraph
    x: Tensor
    pairs: Tensor
    key: str


@dataclass(frozen=True)
class LinkReport(ReleaseReport):
    r"""Privacy guarantee of a link predictor, with its assumptions.

    Args:
        epsilon (float): :math:`\epsilon` of everything on the account.
        delta (float): :math:`\delta`.
        target_epsilon (float): the budget.
        mu (float): :math:`\mu` of everything on the account.
        mu_parts (tuple): the :math:`\mu` of the rows, of the number of edges
            (0 under ``'node'``, which counts none), of the scorer, and of
            other releases on the account.
        relation (str): ``'edge'`` or ``'node'``.
        form (str): ``'either'`` of edges, ``'withdraw'`` or ``'replace'`` of
            nodes.
        directed (bool): whether edges are arcs.
        steps (int): the noisy gradients.
        releases (int): the lines of the account.
        num_nodes (int): :math:`n`, public.
        num_neg (int): the public pairs that count as negatives; under
            ``'node'`` of each node.
        leave_out (bool): whether examples are judged without their own edge.
        row_std (float): the standard deviation of the noise on rows.
        count_std (float, optional): the same, on the number of edges.
        noise_multiplier (float): the noise multiplier of every gradient.
        arithmetic (str): ``'exact'``: noise is drawn, and integers are summed,
            to the last bit (:mod:`pyg_trust.verify.release`).
        grid_exponent (int): numbers are integers times this power of two of
            the standard deviation.
        table (str): a digest of the table that draws noise.
        seeded (bool): whether noise comes from an explicit seed: then nothing
            is private.
        ledger_head (str, optional): a digest of all lines of the ledger.
        provenance (dict): versions and arguments; no seeds.
    """

    epsilon: float
    delta: float
    target_epsilon: float
    mu: float
    mu_parts: tuple[float, float, float, float]
    relation: str
    form: str
    directed: bool
    steps: int
    releases: int
    num_nodes: int
    num_neg: int
    leave_out: bool
    row_std: float
    count_std: float | None
    noise_multiplier: float
    arithmetic: str
    grid_exponent: int
    table: str
    seeded: bool
    ledger_head: str | None
    provenance: dict[str, Any]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee."""
        lines = [
            'ids, number of nodes, whether edges are directed, features and '
            'all arguments were chosen without looking at edges, and no '
            'column of the features was computed from them'
        ]
        if self.relation == 'node':
            lines = [
                'ids, number of nodes, whether edges are directed and all '
                'arguments were chosen without looking at records, and no '
                'column of the features was computed from edges or from other '
                'rows'
            ]
        if self.relation == 'node' and not self.directed:
            lines.append(
                'that every edge is in both directions is known: a graph with '
                'one that is not is refused'
            )
        return (
            *lines,
            'errors, warnings and the time that a fit takes are not published',
            'which way a function of torch or numpy takes on one pair does '
            'not depend on the others: pairs are computed in blocks of one '
            'shape',
        )

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Data and relations that the guarantee does not cover."""
        held = (
            'which pairs were held out for evaluation, and measures of '
            'quality on them'
        )
        if self.relation == 'edge':
            return held, "the relations 'node', 'node_incident' and 'feature'"
        return (
            held,
            'what the lists of others tell of a node, and scores that read '
            "the source's own record: they are for that node",
            "the relations 'edge', 'node_incident' and 'feature'",
        )

    def guarantee(self) -> Guarantee:
        """State how private the released rows and scores are."""
        others = self.mu_parts[-1]
        return self._stated('private link prediction', mu_others=others)

    def _parts(self) -> dict[str, float]:
        names = ('sums', 'count', 'scorer', 'other releases')
        return dict(zip(names, self.mu_parts, strict=True))

    def _details(self) -> list[str]:
        return [
            'Noise was drawn once: scores of any pairs cost nothing, another '
            'graph is another release.',
        ]


@validated
class PrivateLinkPredictor(PrivateFit):
    r"""Scores pairs of nodes, with privacy of every edge or every record.

    .. code-block:: python

        split = RandomLinkSplit(
            is_undirected=True, add_negative_train_samples=False
        )
        train, val, test = split(data)
        model = PrivateLinkPredictor('edge', epsilon=4.0, delta=1e-6)
        scores = model.fit(train).score(test.edge_label_index)

    **What it does.** Features are reduced to their principal columns. Every
    node sends the first of these, brought to norm 1, and the noisy sums
    :math:`S` over neighbours are released once. A logistic scorer reads
    features of pairs made of :math:`S` and of features alone
    (:func:`~pyg_trust.privacy.link_sums.pair_features`) and trains by
    full-batch noisy gradient descent: every edge is a positive pair, judged
    *without its own message*, and pairs of uniform ids, which never look at
    edges, are the negatives. A noisy number of edges balances both.

    **One account.** Every edge is a message and an example. With the noise
    :math:`s` of the sums, :math:`c` of the number of edges and the noise
    multiplier :math:`z` of :math:`T` gradients

    .. math::
        \mu^2 = \frac{\Delta^2}{s^2} + \frac{1}{c^2} + \frac{T}{z^2}, \quad
        \Delta = \sqrt 2 \text{ for undirected edges, } 1 \text{ for arcs}

    (:mod:`pyg_trust.verify.release` has the proof). After that any number of
    scores of any pairs costs nothing and reads no edge.

    **Which graph?** Only edges of ``data.edge_index`` are private, and all of
    them are used. The test split of ``RandomLinkSplit`` holds validation edges
    in its ``edge_index``: it is another graph, whose release costs again.

    **Assumed public:** ids, features, labels, all arguments. Graphs of about
    5,000 edges pay for privacy; on 170,000 the loss is small.

    **Relation** ``'node'`` protects the record of a node: its features and its
    own list of neighbours. A pair is judged from the *source's own* record and
    the *released* row of the target, less what the source has added to it. The
    gradients of a list are averaged with those of :obj:`num_neg` public pairs
    and clipped **once an owner**, so that a list of any length moves a sum by
    at most the clipping norm
    (:func:`~pyg_trust.privacy.link_sums.clipped_owner_sum`):

    .. math::
        \mu^2 = \frac{\Delta^2}{s^2} + \frac{\Delta^2 T}{z^2}, \quad
        \Delta = 1 \text{ to withdraw a record, } 2 \text{ to replace it}

    Scores of released rows are for all; those that read the source's record
    are for its owner. Graphs need tens of thousands of nodes, and nothing is
    covered when somebody leaves.

    Memory: 8 bytes for each of :math:`d + 2 D + 3` columns of every edge.

    Args:
        relation (str): ``'edge'`` or ``'node'``. (default: :obj:`'edge'`)
        epsilon (float): the budget. (default: :obj:`4.0`)
        delta (float): its :math:`\delta`: a public power of ten, at most one
            over ten times the number of edges. (default: :obj:`1e-6`)
        ledger (str or Path, optional): a file for the account.
            (default: :obj:`None`)
        form (str, optional): of ``'node'``: ``'withdraw'`` or ``'replace'``,
            which is the default. (default: :obj:`None`)
        shares (sequence of float, optional): shares of :math:`\mu^2` for the
            rows, the number of edges and the scorer; by default :obj:`(.69,
            .01, .3)`. Under ``'node'``, of the rows and the scorer; by default
            :obj:`(.95, .05)`. (default: :obj:`None`)
        dim (int): :math:`d`: the columns of features, of ``'edge'``.
            (default: :obj:`32`)
        message_dim (int, optional): :math:`D`: the columns of messages, each
            of which gets noise; by default 8, under ``'node'`` 16.
        steps (int): :math:`T`. (default: :obj:`30`)
        lr (float, optional): Adam's; by default :math:`.1 \sqrt p` of
            :math:`p` columns. (default: :obj:`None`)
        num_neg (int, optional): the number of negatives; by default five for
            each edge by the noisy number, at most 200,000. Under ``'node'``
            those of each node; by default 20, fewer above 10,000 nodes.
        leave_out (bool): whether an example is judged without its own edge;
            it is free, and better. (default: :obj:`True`)
        directed (bool): whether edges are arcs. (default: :obj:`False`)
        seed (int, optional): the seed of the noise, to repeat an experiment;
            the result is not private. (default: :obj:`None`)
        ledger_head (str, optional): as of
            :class:`~pyg_trust.privacy.PrivacyEngine`. (default: :obj:`None`)
        forget_epsilon (float): up to which :math:`\epsilon` the noise may
            cover edges that are removed. (default: :obj:`1.0`)

    Raises:
        TypeError, ValueError: on a wrong argument.

    Example:
        >>> edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> data = Data(x=torch.eye(4), edge_index=edges)
        >>> model = PrivateLinkPredictor(epsilon=4.0, delta=1e-3).fit(data)
        >>> model.score(torch.tensor([[0], [2]])).shape
        torch.Size([1])
        >>> model.report().epsilon <= 4.0
        True
    """

    _entries = ('count', 'negatives')

    def __init__(
        self,
        relation: str = 'edge',
        epsilon: Positive = 4.0,
        delta: Fraction = 1e-6,
        ledger: str | Path | None = None,
        *,
        form: str | None = None,
        shares: Sequence[float] | None = None,
        dim: Count = 32,
        message_dim: Count | None = None,
        steps: Count = 30,
        lr: Annotated[float, Number(0, 1e6, 'high')] | None = None,
        num_neg: Count | None = None,
        leave_out: bool = True,
        directed: bool = False,
        seed: int | None = None,
        ledger_head: str | None = None,
        forget_epsilon: Positive = 1.0,
    ) -> None:
        if isinstance(relation, str) and relation in _REFUSED:
            raise ValueError(
                f"'relation' needs to be 'edge' or 'node' (got {relation!r}): "
                f'{_REFUSED[relation]}'
            )
        self.relation = make_relation(relation, form, directed, None)
        made = (
            check_shares(shares, _SHARES, 'rows, count and scorer')
            if relation == 'edge'
            else check_shares(shares, _OF_OWNERS, 'rows and scorer')
        )
        self._set_budget(epsilon, delta, made, ledger, ledger_head, seed)
        self._set_coverage(forget_epsilon, math.inf)
        if message_dim is None:
            message_dim = min(dim, _COLUMNS[relation])
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
        """Noise of rows and, of edges, the count; multiplier of gradients."""
        rows, *count, scorer = self.mus
        form = 'replace' if self.relation.form == 'replace' else 'withdraw'
        return (
            self.relation.sensitivity / rows,
            *(1 / mu for mu in count),
            descent_noise(scorer, self.steps, form),
        )

    @property
    @synchronized
    def released(self) -> Tensor:
        """The noisy sums, float64, ``[num_nodes, message_dim]``."""
        return self._check_fitted()['rows'].clone()

    @property
    @synchronized
    def num_edges(self) -> float:
        """The noisy number of edges; under ``'node'`` nothing is counted."""
        self._check_fitted()
        if self._of_owners:
            raise RuntimeError("edges are counted under 'edge' alone")
        return self._count

    @property
    def _of_owners(self) -> bool:
        return self.relation.name == 'node'

    @editing
    @validated
    def fit(self, data: Data) -> 'PrivateLinkPredictor':
        """Release sums and a scorer of the edges of :obj:`data`.

        The same data again change nothing and cost nothing.

        Args:
            data (Data): with ``x`` (float32 or float64, dense or sparse) and
                ``edge_index``; labels of pairs are not read, as every edge is
                a positive one.

        Returns:
            PrivateLinkPredictor: itself.

        Raises:
            TypeError, ValueError: if a release of the data can't be accounted
                for. Nothing is spent then.
            BudgetExceededError: if the budget does not allow it. Nothing is
                spent then.
        """
        return self._fit(self._read(data))

    def _read(self, data: Data) -> _Task:
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
        key = fingerprint(graph.rowptr, graph.col, *stored(x))
        return _Task(graph, x, pairs, key)

    def _train_on(self, task: _Task, account: ReleaseAccount) -> None:
        graph, x, pairs, _ = task
        for std in self.noise_stds:
            check_sum(MOST_PAIRS, std, "the noise of 'epsilon'")
        source = self._source(len(account.lines))
        paid = PaidNoise(source, account.spend, list(self.mus))
        if self._of_owners:
            self._train_by_owner(task, paid)
            return
        row_std, count_std, z = self.noise_stds
        principal = principal_rows(x, self.dim)
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
        public = public_pairs(graph.num_nodes, num_neg)
        raw = self._raw(state, public)
        mean, deviation = moments(raw, num_neg)
        negatives = scaled_features(raw, mean, deviation, num_neg)
        left_out = 'target' if self.relation.directed else 'both'
        positives = scaled_features(
            self._raw(state, pairs, left_out if self.leave_out else ''),
            *(mean, deviation, pairs.size(1)),
        )
        size = negatives.shape[1]
        lr = _LR * math.sqrt(size) if self.lr is None else self.lr
        weight = private_pairs(
            *(positives, negatives, count, num_neg),
            *(paid.cells((self.steps, size)), z, lr),
        )
        for name, made in (
            ('mean', mean),
            ('deviation', deviation),
            ('weight', weight),
        ):
            state[name] = torch.from_numpy(made)
        self._state, self._count, self._negatives = state, count, num_neg

    def _train_by_owner(self, task: _Task, paid: PaidNoise) -> None:
        graph, x, pairs, _ = task
        std, z = self.noise_stds
        n, weights = graph.num_nodes, energy_weights(graph)
        basis = public_basis(x.size(1), self.message_dim)
        sent = projected_rows(x, basis)
        (rows,) = private_propagate(graph, sent, [std], paid, 'node', weights)
        made = messages(sent)
        own = on_grid(made * weights[:, None], std) if self.leave_out else None
        each = self.num_neg or max(1, min(_MOST_EACH, _MOST_NEGATIVES // n))
        public = public_lists(n, each)
        cells = paid.cells((self.steps, self.message_dim + 3))
        lr = _LR * math.sqrt(cells.size(1)) if self.lr is None else self.lr
        weight = private_owners(
            (owner_features(pairs, made, rows, std, own), pairs[0].numpy()),
            graph.degree.cpu().numpy(),
            (owner_features(public, made, rows, std), public[0].numpy()),
            *(each, cells, z, lr),
        )
        self._state = {'rows': rows, 'basis': basis}
        self._state['weight'] = torch.from_numpy(weight)
        self._negatives = each

    def _raw(
        self, state: dict[str, Tensor], pairs: Tensor, left_out: str = ''
    ) -> np.ndarray:
        parts = state['x'], state['messages'], state['rows']
        return pair_features(pairs, *parts, self.noise_stds[0], left_out)

    @synchronized
    def score(
        self, edge_label_index: Tensor, x: Tensor | None = None
    ) -> Tensor:
        """Score pairs: logits, larger for likelier links. No edge is read.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``.
            x (Tensor, optional): under ``'node'``, the features, float32 or
                float64, ``[num_nodes, num_columns]``: scores then read the
                source's own row, and are for the source alone. Without it,
                they read released rows, and are for all.
                (default: :obj:`None`)

        Returns:
            Tensor: float64, ``[num_pairs]``.

        Raises:
            TypeError, ValueError: if the pairs are no pairs of nodes, or the
                features are others' or not needed.
        """
        state = self._check_fitted()
        shape = (2, 'num_pairs')
        check_tensor('edge_label_index', edge_label_index, torch.int64, shape)
        n = state['rows'].size(0)
        check_range('edge_label_index', edge_label_index, n, 'the nodes')
        pairs = edge_label_index.cpu()
        if self._of_owners:
            return self._score_by_owner(state, pairs, x)
        if x is not None:
            raise ValueError(
                "'x' needs to be left out but for the relation 'node': "
                "features are public under 'edge', and kept since fit()"
            )
        mean, deviation = state['mean'].numpy(), state['deviation'].numpy()
        made = []
        # A part at a time, as memory is for each pair.
        for part in pairs.split(2**16, dim=1):
            count = part.size(1)
            blocks = self._raw(state, part)
            blocks = scaled_features(blocks, mean, deviation, count)
            made.append(logits(blocks, state['weight'].numpy())[:count])
        return torch.from_numpy(np.concatenate(made))

    def _score_by_owner(
        self, state: dict[str, Tensor], pairs: Tensor, x: Tensor | None
    ) -> Tensor:
        rows, basis, std = state['rows'], state['basis'], self.noise_stds[0]
        # Without a node's record, use its released row.
        made = shown = messages(rows)
        if x is not None:
            check_tensor('x', x, REAL, (rows.size(0), basis.size(0)))
            made = messages(projected_rows(x.cpu(), basis))
        ways = [(pairs, made)]
        if not self.relation.directed:
            ways.append((pairs.flip(0), shown))
        weight, total = state['weight'].numpy(), np.zeros(pairs.size(1))
        for way, sent in ways:
            # A part at a time, as memory is for each pair.
            total += np.concatenate(
                [
                    logits(owner_features(part, sent, rows, std), weight)[
                        : part.size(1)
                    ]
                    for part in way.split(2**16, dim=1)
                ]
            )
        return torch.from_numpy(total / len(ways))

    @synchronized
    def report(self, delta: float | None = None) -> LinkReport:
        r"""Return the guarantee so far, with every assumption.

        Args:
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
        """
        self._check_fitted()
        shared = self._reported(delta)
        directed, form = self.relation.directed, self.relation.form
        row_std, *counts, z = self.noise_stds
        count_std = counts[0] if counts else None
        parts = pair_mus(row_std, count_std, z, self.steps, directed, form)
        lines = list(self._saved()['history'])
        for mu in parts:
            take(lines, mu)
        return LinkReport(
            **shared,
            mu_parts=(*parts, math.hypot(*lines)),
            relation=self.relation.name,
            form=form,
            directed=directed,
            steps=self.steps,
            num_neg=self._negatives,
            leave_out=self.leave_out,
            row_std=row_std,
            count_std=count_std,
            noise_multiplier=z,
            arithmetic='exact',
            grid_exponent=-SHIFT,
            table=DIGEST,
        )

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Return released rows, weights, reduced features and the account."""
        state = self._check_fitted()
        return {
            **self._saved(),
            'count': self._count,
            'negatives': self._negatives,
            **{name: value.clone() for name, value in state.items()},
        }

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        Args:
            state (dict): the :meth:`state_dict` of a predictor with the same
                arguments.

        Raises:
            ValueError: if the state has other arguments or doesn't continue
                the present account. Nothing is changed then.
        """
        covered = self._check_saved(state)
        check_settings('setting', state['setting'], self._setting())
        made: dict[str, Tensor] = {}
        sizes: dict[str, int] = {}
        for name, shape in _TENSORS[self.relation.name].items():
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
        count = check_number('state', state['count'])
        negatives = check_integer('state', state['negatives'], 1)
        lines = self._check_paid(state)
        others = list(lines)
        if not all(take(others, mu) for mu in self.mus):
            raise ValueError("'state' needs a 'history' with its releases")
        self._open(sizes['num_nodes']).resume(lines, state['ledger'])
        self._state, self._count, self._negatives = made, count, negatives
        self._take_coverage(covered)

    def _asked(self, request: RemovalRequest, fit: str) -> Any:
        if self._of_owners:
            raise ValueError(
                "'request' can't be covered by noise: a node is also in the "
                'gradients of all whose lists name it. Fit again without '
                f'them, which spends {fit}'
            )
        return super()._asked(request, fit)

    def _mu_of(self) -> tuple[float, float]:
        row_std, count_std, _ = self.noise_stds
        return math.hypot(1 / count_std, self.mus[2]), 1 / row_std

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.relation.name!r}, '
            f'epsilon={self.epsilon:g}, delta={self.delta:g})'
        )

    def _setting(self) -> dict[str, Any]:
        return {
            'relation': self.relation.name,
            'form': self.relation.form,
            'directed': self.relation.directed,
            'epsilon': self.epsilon,
            'delta': self.delta,
            'shares': self.shares,
            'dim': self.dim,
            'message_dim': self.message_dim,
            'steps': self.steps,
            'lr': self.lr,
            'num_neg': self.num_neg,
            'leave_out': self.leave_out,
            'seeded': self.seed is not None,
        }

    def _check_fitted(self) -> dict[str, Tensor]:
        if not self._state:
            raise RuntimeError('fit data first')
        return self._state
