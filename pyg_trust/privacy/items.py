"""Private recommendations: a noisy table of which items users share."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from pyg_trust._checks import (
    Count,
    Fraction,
    Positive,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._moved import renamed
from pyg_trust.account import PaidNoise
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.fitted import Fitted, Task
from pyg_trust.privacy.propagation import MARGIN
from pyg_trust.removal import NodeIds
from pyg_trust.transforms.aggregation_report import (
    AggregationReport,
    Relation,
    check_neighboring,
    make_report,
)
from pyg_trust.unlearning.recommender_data import read_interactions
from pyg_trust.unlearning.similar import Lists, best_items, lists_of
from pyg_trust.verify.claims import outwards
from pyg_trust.verify.release import check_sum, released, truncated

__all__ = ['ItemReport', 'PrivateItemCounts']

# Rows of items whose sums are held as they come.
_BLOCK = 256
# A Lanczos method finds this share of all eigenvectors sooner.
_FEW = 16
#: The most items of a table, unless a public list names them.
MOST_ITEMS = 20_000


class ItemReport(AggregationReport):
    """Privacy guarantee of a noisy table of items, with its assumptions.

    Neighbouring data differ in one user's list (``adjacency`` is ``'user'``),
    which is empty in one of them if ``neighboring`` is ``'add_remove'``.
    ``epsilon`` (nats), ``delta`` and ``mu`` (sensitivity over noise) are those
    of all tables on the account (``releases`` is their number), and
    ``epsilon_replace`` is epsilon against any other list. ``noise_stds`` has
    the standard deviation on the diagonal; ``num_nodes`` counts users and
    items. Sums and noise are exact integers (``arithmetic``). Other fields
    are those of :class:`~pyg_trust.transforms.AggregationReport`; those of an
    encoder, a head or edges are empty, 0 or None.
    """

    def _notes(self) -> list[str]:
        return [
            'ids, the numbers of users and items, the list of items and all '
            'arguments were chosen without looking at interactions',
            'an id is one person: two accounts of a person are two users',
            'errors, warnings and the time that a fit takes are not published',
        ]

    def _limits(self) -> list[str]:
        return [
            'what is recommended to the user: it reads their own list and is '
            'for them',
            'which interactions were held out for evaluation, and measures of '
            'quality on them',
        ]

    def _parts(self) -> dict[str, float]:
        return {'table of items': self.mu}

    def _details(self) -> list[str]:
        lines = ['The table may be published.']
        if self.epsilon_replace is not None:
            lines.append(
                'That is against an empty list. Against any other list '
                f'epsilon is {outwards(self.epsilon_replace)}.'
            )
        return lines


@validated
class PrivateItemCounts(Fitted):
    r"""Recommends items, with differential privacy of every user's list.

    :meth:`fit` releases once, with noise, how often two items are in one list:
    the table :math:`G = \sum_u x_u x_u^\top`, where :math:`x_u` marks the
    items of user :math:`u` and has norm 1. The table may be published.
    :meth:`recommend` scores items by :math:`x_u F`, where :math:`F` is the
    positive part of :math:`G` of a low rank, and :math:`x_u` is the history
    that you pass: show the result to this user alone.

    Args:
        epsilon (float): the budget.
        delta (float): the :math:`\delta` of the budget. Choose a public power
            of ten of at most :math:`1 / (10 m)`, for :math:`m` users.
        ledger (str or Path, optional): a file that records what is spent.
        neighboring (str): :obj:`'add_remove'` compares a user's list with an
            empty one, :obj:`'replace'` with any other list.
        rank (int): the rank of :math:`F`.
        items (Tensor or list[int], optional): the public ids of the items that
            are counted and recommended; by default all. Needed if there are
            more than 20,000 items (8 GB).
        insecure_seed (int, optional): the seed of the noise, to repeat an
            experiment; the result is then not private.
        ledger_head (str, optional): the ``ledger_head`` of an earlier report,
            from which the ledger has to continue.

    Example:
        >>> likes = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 2, 2]])
        >>> model = PrivateItemCounts(epsilon=8.0, delta=1e-3)
        >>> model = model.fit(likes, num_users=3, num_items=3)
        >>> model.recommend(likes, k=1).shape
        torch.Size([3, 1])
        >>> model.report().epsilon <= 8.0
        True
    """

    _entries = ('num_users', 'num_items', 'released')
    _arguments = ('rank',)
    _noun = 'interactions'

    @renamed(form='neighboring', seed='insecure_seed')
    def __init__(
        self,
        epsilon: Positive = 8.0,
        delta: Fraction = 1e-5,
        ledger: str | Path | None = None,
        *,
        neighboring: str = 'add_remove',
        rank: Count = 16,
        items: Tensor | Sequence[int] | None = None,
        insecure_seed: int | None = None,
        ledger_head: str | None = None,
    ) -> None:
        self.relation = Relation(
            'user', check_neighboring(neighboring), False, None
        )
        self._set_budget(
            epsilon, delta, (1.0,), ledger, ledger_head, insecure_seed
        )
        self.rank, self.items = rank, _public(items)
        self._size = 0, 0
        self._triangle: np.ndarray | None = None
        self._factor = np.empty((0, 0))

    @property
    def noise_std(self) -> float:
        r"""Standard deviation of the noise on the diagonal of the table.

        On other entries it is smaller by a factor of :math:`\sqrt 2`.
        """
        return self.relation.sensitivity / self.mus[0]

    @property
    @synchronized
    def released(self) -> Tensor:
        """The noisy table of items, float64, ``[num_items, num_items]``."""
        self._check_fitted()
        assert self._triangle is not None
        return torch.from_numpy(item_matrix(self._triangle, len(self._factor)))

    @editing
    @validated
    def fit(
        self,
        interactions: Tensor | HeteroData,
        num_users: int | None = None,
        num_items: int | None = None,
        *,
        edge_type: EdgeType | None = None,
    ) -> 'PrivateItemCounts':
        """Count which items share users, and release the counts with noise.

        Fitting the same interactions again changes nothing and costs nothing.

        Args:
            interactions (Tensor or HeteroData): int64, ``[2,
                num_interactions]``, users in the first row and items in the
                second; or a bipartite graph.
            num_users (int, optional): the number of users; read from a
                bipartite graph. (default: :obj:`None`)
            num_items (int, optional): the number of items; read from a
                bipartite graph. (default: :obj:`None`)
            edge_type (tuple, optional): the type of a graph's interactions;
                not needed if the graph has one type alone.

        Raises:
            TypeError, ValueError: if a pair is listed twice, a rating is not
                1, or an id is out of range. Nothing is spent then.
            BudgetExceededError: if the budget does not allow it.
        """
        edges, num_users, num_items, _ = read_interactions(
            interactions, num_users, num_items, edge_type
        )
        if self.items is not None:
            check_range('items', self.items, num_items, 'the items')
        elif num_items > MOST_ITEMS:
            raise ValueError(
                f"'num_items' needs to be at most {MOST_ITEMS:,} (got "
                f"{num_items:,}), or 'items' a public list of those that count"
            )
        check_sum(num_users, self.noise_std, "the noise of 'epsilon'")
        lists = self._listed(edges, num_users, num_items)
        both = edges + torch.tensor([[0], [num_users]])
        graph = CSRGraph.from_edge_index(both, num_nodes=num_users + num_items)
        key = fingerprint(graph.rowptr, graph.col, num_users)
        return self._fit(Task(graph, edges, key, (lists, num_items)))

    def _release(self, task: Task, paid: PaidNoise) -> None:
        lists, num_items = task.more
        sums = item_sums(lists, self._count(num_items), self.noise_std)
        cells = paid.cells(sums.shape).numpy()
        triangle = released(sums, cells, self.noise_std)
        size = len(lists.length), num_items
        vars(self).update(self._made(triangle, size))

    def _made(
        self, triangle: np.ndarray, size: tuple[int, int]
    ) -> dict[str, Any]:
        matrix = item_matrix(triangle, self._count(size[1]))
        factor = positive_factor(matrix, self.rank)
        return {'_triangle': triangle, '_size': size, '_factor': factor}

    def _count(self, num_items: int) -> int:
        return num_items if self.items is None else len(self.items)

    def _listed(self, edges: Tensor, num_users: int, num_items: int) -> Lists:
        # Items by their place in the public list, others left out.
        lists = lists_of(edges, num_users, num_items)
        if self.items is None:
            return lists
        place = torch.full((num_items,), -1).index_put(
            (self.items,), torch.arange(len(self.items))
        )
        users, items = edges[0], place[edges[1]]
        kept = torch.stack([users, items])[:, items >= 0]
        return lists_of(kept, num_users, len(self.items))

    @synchronized
    def recommend(
        self, history: Tensor, k: Count = 10, num_users: int | None = None
    ) -> Tensor:
        """Return the best new items of users: int64, ``[num_users, k]``.

        Items are in order of descending score, without those of the history.
        Missing ones are ``num_items``: all of a user without a history, and
        the last ones of a user for whom fewer than :obj:`k` are left.

        Args:
            history (Tensor): int64, ``[2, num_interactions]``: users, which
                are rows of the result and may be new ones, and their items.
            k (int): the number of items. (default: :obj:`10`)
            num_users (int, optional): the number of rows; by default one more
                than the largest user in :obj:`history`.
        """
        self._check_fitted()
        k = check_integer('k', k, 1)
        check_tensor('history', history, torch.int64, (2, 'num_interactions'))
        if num_users is None and history.numel():
            num_users = int(history[0].max()) + 1
        num_users = check_integer('num_users', num_users, 1)  # type: ignore
        try:
            lists = self._listed(history.cpu(), num_users, self._size[1])
        except ValueError as error:
            text = str(error).replace("'interactions'", "'history'")
            raise ValueError(text) from None
        weight = torch.from_numpy(lists.length).clamp(min=1).double().rsqrt()
        rows = lists.matrix(len(self._factor), weight)
        scores = (rows @ self._factor) @ self._factor.T
        # Only positive scores are chosen.
        scores -= scores.min(1, initial=0.0, keepdims=True) - 1
        for user, row in enumerate(scores):
            own = lists.of(user)
            row[own if len(own) else slice(None)] = 0.0
        best = torch.from_numpy(best_items(scores, k))
        if self.items is not None:
            best = torch.cat([self.items, torch.tensor([self._size[1]])])[best]
        return best

    def _reported(
        self, shared: dict[str, Any], own: list[float], others: list[float]
    ) -> Any:
        return make_report(
            self.relation,
            ItemReport,
            **shared,
            mu_aggregation=shared['mu'],
            predictions=True,
            noise_stds=(self.noise_std,),
            rho=0.0,
            raw_columns=False,
        )

    def _has_fit(self) -> bool:
        return self._triangle is not None

    def _pack(self) -> dict[str, Any]:
        assert self._triangle is not None
        users, items = self._size
        triangle = torch.from_numpy(self._triangle.copy())
        return {'num_users': users, 'num_items': items, 'released': triangle}

    def _unpack(self, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        users, items = (
            check_integer('state', state[name], 1)
            for name in ('num_users', 'num_items')
        )
        count = self._count(items)
        shape = (count * (count + 1) // 2,)
        triangle = state['released']
        check_tensor('state', triangle, torch.float64, shape, finite=True)
        made = self._made(triangle.numpy().copy(), (users, items))
        return users + items, made

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(epsilon={self.epsilon:g}, '
            f'delta={self.delta:g}, rank={self.rank})'
        )

    def _setting(self) -> dict[str, Any]:
        items = None if self.items is None else fingerprint(self.items)
        return {**super()._setting(), 'items': items}


def _public(items: Tensor | Sequence[int] | None) -> Tensor | None:
    # A list of different items.
    if items is None:
        return None
    made = NodeIds().rows_of('items', items, 2**63 - 1)
    if not len(made) or len(made.unique()) < len(made):
        raise ValueError("'items' needs to name items, each of them once")
    return made.clone()


# The table ###################################################################


def item_sums(lists: Lists, num_items: int, std: float) -> np.ndarray:
    """Sum the triangles of all users on the grid of the noise, exactly."""
    check_sum(len(lists.length), std)
    unit = (1 - MARGIN) / np.maximum(lists.length, 1)
    both, own = (
        torch.from_numpy(truncated(unit * scale, std).astype(np.int64))
        for scale in (math.sqrt(2), 1.0)
    )
    ones = torch.ones(len(unit), dtype=torch.int64)
    into = lists.matrix(num_items, ones).T.tocsr()
    rows = lists.matrix(num_items, both)
    diagonal, start = into @ own.numpy(), 0
    made = np.empty(num_items * (num_items + 1) // 2, dtype=np.int64)
    for first in range(0, num_items, _BLOCK):
        block = (into[first : first + _BLOCK] @ rows).toarray()
        for i, row in enumerate(block, first):
            row[i] = diagonal[i]
            made[start : start + num_items - i] = row[i:]
            start += num_items - i
    return made


def item_matrix(triangle: np.ndarray, num_items: int) -> np.ndarray:
    """Convert a released triangle to the symmetric table."""
    made, start = np.empty((num_items, num_items)), 0
    for i in range(num_items):
        row = triangle[start : start + num_items - i] / math.sqrt(2)
        made[i, i:], made[i:, i] = row, row
        made[i, i] = triangle[start]
        start += num_items - i
    return made


def positive_factor(matrix: np.ndarray, rank: int) -> np.ndarray:
    r"""Return :math:`B` with :math:`B B^\top` the positive part of low rank.

    Of the largest eigenvalues; negative ones are noise and count as zero.
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    k = len(matrix)
    rank = min(rank, k)
    if k > _FEW * rank:
        try:
            values, vectors = eigsh(
                matrix, rank, which='LA', v0=np.ones(k), tol=1e-6
            )
        except ArpackNoConvergence as some:
            values, vectors = some.eigenvalues, some.eigenvectors
    else:
        values, vectors = eigh(matrix, subset_by_index=[k - rank, k - 1])
    return vectors * np.sqrt(np.maximum(values, 0.0))
