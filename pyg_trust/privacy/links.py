"""Private link prediction: scores of pairs that keep every edge private."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust import noise, rng
from pyg_trust._checks import (
    check_instance,
    check_integer,
    check_ledger,
    check_number,
    check_positive,
    check_range,
    check_tensor,
)
from pyg_trust._fingerprints import fingerprint, stored
from pyg_trust._states import FORMAT, check_settings, check_state
from pyg_trust.account import NoCopies, PaidNoise, ReleaseAccount
from pyg_trust.commit import ObjectLock, editing, synchronized
from pyg_trust.functional.links import (
    MOST_PAIRS,
    logits,
    moments,
    on_grid,
    pair_features,
    pairs_of,
    principal_rows,
    private_pairs,
    public_pairs,
    scaled_features,
)
from pyg_trust.functional.mechanisms import check_delta
from pyg_trust.functional.private_accounting import (
    gaussian_epsilon,
    gaussian_mu_for,
)
from pyg_trust.functional.private_descent import descent_noise
from pyg_trust.functional.private_propagation import (
    MARGIN,
    messages,
    private_propagate,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.kernel.noise import DIGEST, SHIFT
from pyg_trust.kernel.release import check_sum, pair_mus, released, truncated
from pyg_trust.kernel.sentences import SEEDED
from pyg_trust.privacy.state import check_history, check_shares
from pyg_trust.report import Guarantee, Report, provenance
from pyg_trust.report.base import stated
from pyg_trust.transforms.aggregation_report import make_relation
from pyg_trust.transforms.release_checks import (
    check_alone,
    check_own,
    release_graph,
    warn_of_other_releases,
)

_SHARES = (0.69, 0.01, 0.3)
_NEGATIVES, _MOST_NEGATIVES = 5, 200_000
_LR = 0.1
# Of a checkpoint: tensors and their shapes, by what they are called.
_TENSORS = {
    'x': ('num_nodes', 'dim'),
    'messages': ('num_nodes', 'message_dim'),
    'rows': ('num_nodes', 'message_dim'),
    'mean': ('features',),
    'deviation': ('features',),
    'weight': ('columns',),
}
_ENTRIES = ('format', 'setting', 'history', 'ledger', 'count', 'negatives')
_REFUSED = {
    'node': 'own lists need a scorer that reads released rows alone',
    'node_incident': 'a node of degree D moves D examples at every step, for '
    "D times the noise: protect edges ('edge') or use PrivateNodeClassifier",
    'feature': 'edges are public there, so that no link is private',
}


@dataclass(frozen=True)
class LinkReport(Report):
    r"""Privacy guarantee of a link predictor, with its assumptions.

    Args:
        epsilon (float): :math:`\epsilon` of everything on the account.
        delta (float): :math:`\delta`.
        target_epsilon (float): the budget.
        mu (float): :math:`\mu` of everything on the account.
        mu_parts (tuple): of the rows, of the number of edges, of the scorer,
            and of other releases on the account.
        relation (str): ``'edge'``.
        directed (bool): whether edges are arcs.
        steps (int): the noisy gradients.
        releases (int): the lines of the account.
        num_nodes (int): :math:`n`, public.
        num_neg (int): the public pairs that count as negatives.
        leave_out (bool): whether examples are judged without their own edge.
        row_std (float): the standard deviation of the noise on rows.
        count_std (float): the same, on the number of edges.
        noise_multiplier (float): of every gradient.
        arithmetic (str): ``'exact'``: noise is drawn, and integers are summed,
            to the last bit (:mod:`pyg_trust.kernel.release`).
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
    directed: bool
    steps: int
    releases: int
    num_nodes: int
    num_neg: int
    leave_out: bool
    row_std: float
    count_std: float
    noise_multiplier: float
    arithmetic: str
    grid_exponent: int
    table: str
    seeded: bool
    ledger_head: str | None
    provenance: dict[str, Any]

    def promise(self) -> str:
        """Guarantee in one sentence."""
        return self.guarantee().promise

    def guarantee(self) -> Guarantee:
        """Return the privacy guarantee, in the form that all reports share."""
        fields = self.to_dict()
        fields.pop('provenance')
        kind = 'arcs' if self.directed else 'both ways'
        where = 'account' if self.ledger_head is None else 'ledger'
        return stated(
            'private link prediction',
            fields,
            assumptions=(
                'ids, number of nodes, whether edges are directed, features '
                'and all arguments were chosen without looking at edges, and '
                'no column of the features was computed from them',
                'errors, warnings and the time that a fit takes are not '
                'published',
                'which way a function of torch or numpy takes on one pair '
                'does not depend on the others: pairs are computed in blocks '
                'of one shape',
            ),
            not_covered=(
                'which pairs were held out for evaluation, and measures of '
                'quality on them',
                "the relations 'node', 'node_incident' and 'feature'",
            ),
            origin=self.provenance,
            checked=(
                f'before anything was released the graph was looked through: '
                f'edges are {kind}, without weights, self-loops and doubles',
                f'every release was on the {where} before its noise was drawn',
            ),
        )

    def explain(self) -> str:
        """Explain the guarantee in words."""
        made = self.guarantee()
        names = ('sums', 'count', 'scorer', 'other releases')
        parts = ', '.join(
            f'{name} {mu:.3g}'
            for name, mu in zip(names, self.mu_parts, strict=True)
            if mu
        )
        lines = [
            f'{made.promise[0].upper()}{made.promise[1:]} (mu {self.mu:.3g}: '
            f'{parts}).',
            'Noise was drawn once: scores of any pairs cost nothing, another '
            'graph is another release.',
            'This rests on:',
            *(f'- {line}' for line in made.conditions),
            'Not covered:',
            *(f'- {line}' for line in made.not_covered),
        ]
        return '\n'.join(lines)

    def __str__(self) -> str:
        table = super().__str__()
        return f'{SEEDED}\n{table}' if self.seeded else table


class PrivateLinkPredictor(NoCopies):
    r"""Scores pairs of nodes, with differential privacy of every edge.

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
    (:func:`~pyg_trust.functional.links.pair_features`) and trains by
    full-batch noisy gradient descent: every edge is a positive pair, judged
    *without its own message*, and pairs of uniform ids, which never look at
    edges, are the negatives. A noisy number of edges balances both.

    **One account.** Every edge is a message and an example. With the noise
    :math:`s` of the sums, :math:`c` of the number of edges and the noise
    multiplier :math:`z` of :math:`T` gradients

    .. math::
        \mu^2 = \frac{\Delta^2}{s^2} + \frac{1}{c^2} + \frac{T}{z^2}, \quad
        \Delta = \sqrt 2 \text{ for undirected edges, } 1 \text{ for arcs}

    (:mod:`pyg_trust.kernel.release` has the proof). After that any number of
    scores of any pairs costs nothing and reads no edge.

    **Which graph?** Only edges of ``data.edge_index`` are private, and all of
    them are used. The test split of ``RandomLinkSplit`` holds validation edges
    in its ``edge_index``: it is another graph, whose release costs again.

    **Assumed public:** ids, features, labels, all arguments. Graphs of about
    5,000 edges pay for privacy; on 170,000 the loss is small.

    Memory: 8 bytes for each of :math:`d + 2 D + 3` columns of every edge.

    Args:
        relation (str): ``'edge'``. (default: :obj:`'edge'`)
        epsilon (float): the budget. (default: :obj:`4.0`)
        delta (float): its :math:`\delta`: a public power of ten, at most one
            over ten times the number of edges. (default: :obj:`1e-6`)
        ledger (str or Path, optional): a file for the account.
            (default: :obj:`None`)
        shares (sequence of float, optional): of :math:`\mu^2`, for the rows,
            the number of edges and the scorer; by default
            :obj:`(.69, .01, .3)`. (default: :obj:`None`)
        dim (int): :math:`d`: the columns of features. (default: :obj:`32`)
        message_dim (int): :math:`D`: the columns of messages, each of which
            gets noise. (default: :obj:`8`)
        steps (int): :math:`T`. (default: :obj:`30`)
        lr (float, optional): Adam's; by default :math:`.1 \sqrt p` of
            :math:`p` columns. (default: :obj:`None`)
        num_neg (int, optional): the number of negatives; by default five for
            each edge by the noisy number, at most 200,000.
            (default: :obj:`None`)
        leave_out (bool): whether an example is judged without its own edge;
            it is free, and better. (default: :obj:`True`)
        directed (bool): whether edges are arcs. (default: :obj:`False`)
        seed (int, optional): of the noise, to repeat an experiment; what
            comes out is not private. (default: :obj:`None`)
        ledger_head (str, optional): as of
            :class:`~pyg_trust.privacy.PrivacyEngine`.
            (default: :obj:`None`)

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

    advice = 'Save state_dict()'

    def __init__(
        self,
        relation: str = 'edge',
        epsilon: float = 4.0,
        delta: float = 1e-6,
        ledger: str | Path | None = None,
        *,
        shares: Sequence[float] | None = None,
        dim: int = 32,
        message_dim: int = 8,
        steps: int = 30,
        lr: float | None = None,
        num_neg: int | None = None,
        leave_out: bool = True,
        directed: bool = False,
        seed: int | None = None,
        ledger_head: str | None = None,
    ) -> None:
        if isinstance(relation, str) and relation in _REFUSED:
            raise ValueError(
                f"'relation' needs to be 'edge' (got {relation!r}): "
                f'{_REFUSED[relation]}'
            )
        self.relation = make_relation(relation, None, directed, None)
        self.epsilon = check_positive('epsilon', epsilon)
        self.delta = check_delta(delta)
        self.limit = gaussian_mu_for(self.epsilon, self.delta)
        self.shares = check_shares(shares, _SHARES, 'rows, count and scorer')
        self.dim = check_integer('dim', dim, 1)
        self.message_dim = check_integer('message_dim', message_dim, 1, dim)
        self.steps = check_integer('steps', steps, 1)
        self.lr = None if lr is None else check_positive('lr', lr)
        if num_neg is not None:
            check_integer('num_neg', num_neg, 1)
        self.num_neg = num_neg
        check_instance('leave_out', leave_out, bool)
        self.leave_out = leave_out
        check_ledger(ledger, ledger_head)
        self.ledger, self.ledger_head = ledger, ledger_head
        self.seed = None if seed is None else rng.resolve(seed)
        self._owner = os.getpid()
        self._lock = ObjectLock()
        self._account: ReleaseAccount | None = None
        self._fitted = ''
        self._state: dict[str, Tensor] = {}
        self._count, self._negatives = 0.0, 0

    @property
    def mus(self) -> tuple[float, float, float]:
        r""":math:`\mu` of rows, number of edges and scorer."""
        rows, count, scorer = (
            self.limit * math.sqrt(share) for share in self.shares
        )
        return rows, count, scorer

    @property
    def noise_stds(self) -> tuple[float, float, float]:
        """Noise of the rows and the count; multiplier of each gradient."""
        rows, count, scorer = self.mus
        return (
            self.relation.sensitivity / rows,
            1 / count,
            descent_noise(scorer, self.steps),
        )

    @property
    @synchronized
    def released(self) -> Tensor:
        """The noisy sums, float64, ``[num_nodes, message_dim]``."""
        return self._check_fitted()['rows'].clone()

    @property
    @synchronized
    def num_edges(self) -> float:
        """The noisy number of edges."""
        self._check_fitted()
        return self._count

    @property
    def account(self) -> ReleaseAccount | None:
        """The account, once there are data."""
        return self._account

    @editing
    def fit(self, data: Data) -> 'PrivateLinkPredictor':
        """Releases sums and a scorer of the edges of :obj:`data`.

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
        if isinstance(data, HeteroData) or not isinstance(data, Data):
            raise TypeError(
                "'data' needs to be a homogeneous "
                f'torch_geometric.data.Data (got {type(data).__name__})'
            )
        graph = release_graph(data, self.relation).to('cpu')
        x = check_own(data, 'x', self.relation).cpu()
        if graph.num_nodes < 2:
            raise ValueError("'data' needs to have at least two nodes")
        pairs = pairs_of(graph, self.relation.directed)
        if pairs.size(1) > MOST_PAIRS:
            raise ValueError(
                f"'data' needs to have at most {MOST_PAIRS:,} edges"
            )
        _check_examples(data, graph)
        key = fingerprint(graph.rowptr, graph.col, *stored(x))
        if key == self._fitted:
            return self
        check_alone()
        account = self._open(graph.num_nodes)
        mus = self.mus
        with account.lock:
            # All or nothing: no budget goes into half of a model.
            account.check(math.hypot(*mus))
            for std in self.noise_stds:
                check_sum(MOST_PAIRS, std, "the noise of 'epsilon'")
            source = noise.source(
                None
                if self.seed is None
                else rng.derive(self.seed, len(account.lines))
            )
            paid = PaidNoise(source, account.spend, list(mus))
            # What was paid stays paid; scores stay those before.
            self._train(graph, x, pairs, paid)
            self._fitted = key
        if self.seed is None:
            warn_of_other_releases(
                *(self.relation, graph, '', account, self.delta, 4)
            )
        return self

    def _train(
        self, graph: CSRGraph, x: Tensor, pairs: Tensor, paid: PaidNoise
    ) -> None:
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

    def _raw(
        self, state: dict[str, Tensor], pairs: Tensor, left_out: str = ''
    ) -> np.ndarray:
        parts = state['x'], state['messages'], state['rows']
        return pair_features(pairs, *parts, self.noise_stds[0], left_out)

    @synchronized
    def score(self, edge_label_index: Tensor) -> Tensor:
        """Score pairs: logits, larger for likelier links. No edge is read.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``.

        Returns:
            Tensor: float64, ``[num_pairs]``.
        """
        state = self._check_fitted()
        shape = (2, 'num_pairs')
        check_tensor('edge_label_index', edge_label_index, torch.int64, shape)
        n = state['rows'].size(0)
        check_range('edge_label_index', edge_label_index, n, 'the nodes')
        mean, deviation = state['mean'].numpy(), state['deviation'].numpy()
        made = []
        # A part at a time, as memory is for each pair.
        for part in edge_label_index.cpu().split(2**16, dim=1):
            count = part.size(1)
            blocks = self._raw(state, part)
            blocks = scaled_features(blocks, mean, deviation, count)
            made.append(logits(blocks, state['weight'].numpy())[:count])
        return torch.from_numpy(np.concatenate(made))

    @synchronized
    def report(self, delta: float | None = None) -> LinkReport:
        r"""The guarantee so far, with every assumption.

        Args:
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
        """
        self._check_fitted()
        assert self._account is not None
        delta = self.delta if delta is None else check_delta(delta)
        lines = list(self._account.lines)
        row_std, count_std, z = self.noise_stds
        directed = self.relation.directed
        parts = pair_mus(row_std, count_std, z, self.steps, directed)
        for mu in parts:
            own = [m for m in lines if math.isclose(m, mu, rel_tol=1e-9)]
            lines.remove(own[0])
        return LinkReport(
            epsilon=gaussian_epsilon(self._account.mu, delta),
            delta=delta,
            target_epsilon=self.epsilon,
            mu=self._account.mu,
            mu_parts=(*parts, math.hypot(*lines)),
            relation='edge',
            directed=directed,
            steps=self.steps,
            releases=len(self._account.lines),
            num_nodes=self._state['rows'].size(0),
            num_neg=self._negatives,
            leave_out=self.leave_out,
            row_std=row_std,
            count_std=count_std,
            noise_multiplier=z,
            arithmetic='exact',
            grid_exponent=-SHIFT,
            table=DIGEST,
            seeded=self.seed is not None,
            ledger_head=self._account.head,
            provenance=provenance(**self._setting()),
        )

    @synchronized
    def state_dict(self) -> dict[str, Any]:
        """Released rows, weights, reduced features and the account."""
        state = self._check_fitted()
        assert self._account is not None
        return {
            'format': FORMAT,
            'setting': self._setting(),
            'history': list(self._account.lines),
            'ledger': self._account.head or '',
            'count': self._count,
            'negatives': self._negatives,
            **{name: state[name].clone() for name in _TENSORS},
        }

    @editing
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Args:
            state (dict): of :meth:`state_dict`, of a predictor with the same
                arguments.

        Raises:
            ValueError: if it is of other arguments or does not continue the
                present account. Nothing is changed then.
        """
        check_instance('state', state, dict)
        check_state(state, _ENTRIES, (FORMAT,))
        check_settings('setting', state['setting'], self._setting())
        made: dict[str, Tensor] = {}
        sizes: dict[str, int] = {}
        for name, shape in _TENSORS.items():
            value = state.get(name, torch.zeros(()))
            check_tensor('state', value, torch.float64, shape, finite=True)
            for dim, size in zip(shape, value.shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(
                        f"'state' needs {sizes[dim]} {dim} in {name!r} (got "
                        f'{size})'
                    )
            made[name] = value.clone()
        features = sizes['dim'] + 2 * sizes['message_dim'] + 2
        if (sizes['features'], sizes['columns']) != (features, features + 1):
            raise ValueError(f"'state' needs {features} features of a pair")
        count = check_number('state', state['count'])
        negatives = check_integer('state', state['negatives'], 1)
        lines = check_history(state['history'], math.hypot(*self.mus))
        for mu in self.mus:
            if not any(math.isclose(m, mu, rel_tol=1e-9) for m in lines):
                raise ValueError("'state' needs a 'history' with its releases")
        self._open(sizes['num_nodes']).resume(lines, state['ledger'])
        self._state, self._count, self._negatives = made, count, negatives
        self._fitted = ''

    def close(self) -> None:
        """Closes the ledger's file."""
        if self._account is not None:
            self._account.close()

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.relation.name!r}, '
            f'epsilon={self.epsilon:g}, delta={self.delta:g})'
        )

    def _setting(self) -> dict[str, Any]:
        return {
            'relation': 'edge',
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

    def _open(self, num_nodes: int) -> ReleaseAccount:
        if os.getpid() != self._owner:
            raise RuntimeError(
                'the predictor belongs to another process, whose account '
                'would not know what is spent here'
            )
        if self._account is None:
            # As of other releases of edges, which may share the ledger.
            about = {
                'relation': 'edge',
                'form': self.relation.form,
                'directed': self.relation.directed,
                'max_degree': None,
                'delta': self.delta,
                'num_nodes': num_nodes,
                'seeded': self.seed is not None,
            }
            self._account = ReleaseAccount(
                about,
                limit=self.limit,
                ledger=self.ledger,
                ledger_head=self.ledger_head,
            )
        elif self._account.about['num_nodes'] != num_nodes:
            raise ValueError(
                f"'data' needs to have {self._account.about['num_nodes']} "
                f'nodes, those of the first (got {num_nodes}): other data '
                'need another account'
            )
        return self._account


def _check_examples(data: Data, graph: CSRGraph) -> None:
    # Labels of pairs would be in one role alone, or drawn by edges.
    for name in ('edge_label', 'neg_edge_label'):
        label = data.get(name)
        if isinstance(label, Tensor) and bool((label == 0).any()):
            raise ValueError(
                f"'data' can't have an '{name}' of 0: those pairs were drawn "
                'until they were no edges, which moves two examples an edge '
                '(RandomLinkSplit(add_negative_train_samples=False))'
            )
    source, target = graph.to_edge_index()[0].numpy()
    known = source * graph.num_nodes + target
    for name in ('edge_label_index', 'pos_edge_label_index'):
        pairs = data.get(name)
        if pairs is None:
            continue
        check_tensor(name, pairs, torch.int64, (2, 'num_pairs'))
        check_range(name, pairs, graph.num_nodes, 'the nodes', private=True)
        u, w = pairs.cpu().numpy()
        if not np.isin(u * graph.num_nodes + w, known).all():
            raise ValueError(
                f"'{name}' needs to hold edges of 'edge_index' alone: an edge "
                'is a message and an example here '
                '(RandomLinkSplit(disjoint_train_ratio=0.0))'
            )
