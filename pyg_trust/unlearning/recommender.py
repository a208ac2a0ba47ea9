"""Recommenders that forget users, items and interactions exactly.

After any removals every recommendation equals that of a new fit with the same
arguments on what remains, bit for bit (in closed form on the same machine,
with as many threads), and so does every number in a saved file, but for salts,
tokens and the ledger, which lists what was removed.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_positive,
    check_tensor,
)
from pyg_trust._moved import renamed
from pyg_trust.files.commit import (
    EditedInPlace,
    editing,
    synchronized,
)
from pyg_trust.files.seals import Seals, sealed
from pyg_trust.ledger import RemovalLedger
from pyg_trust.removal import RemovalRequest, requested
from pyg_trust.report import provenance
from pyg_trust.unlearning.recommender_data import (
    Change,
    Ids,
    Names,
    Pairs,
    read_change,
    read_interactions,
    rows_there,
)
from pyg_trust.unlearning.reports import (
    ForgetPlan,
    ForgetReport,
    VerifyReport,
)
from pyg_trust.unlearning.saved import FORMAT, Saved
from pyg_trust.unlearning.similar import (
    Exponent,
    Inverse,
    Lists,
    Sparse,
    best_items,
    downdate,
    factored,
    lists_of,
    path_counts,
    path_scores,
    sure_scores,
)
from pyg_trust.update import skipping

__all__ = ['Recommender']

METHODS = ('paths', 'closed_form')
EXPONENTS = (0.6, 0.6, 0.3)
NOT_COVERED = (
    'recommendations: they read the lists of all, and are not private',
    'names of what was removed, in ledgers and reports',
    'memory before flush(), where empty counts tell that something was there',
)
# A removal that changes more than so much of all counts counts anew, and one
# of more steps than so many for each item factors anew.
RECOUNT = 1 / 8
# Users whose scores are held at once.
_BLOCK = 256


class _Held(NamedTuple):
    # A fitted recommender. The values of counts are edited in place.
    lists: Lists
    users: Tensor
    items: Tensor
    counts: Sparse | None
    inverse: Inverse | None
    seals: Seals
    ledger: RemovalLedger
    ids: Ids

    @property
    def content(self) -> str:
        # A digest of all that remains, by the salts of the users.
        given = [each for each in _n_id(self.ids) if each is not None]
        return sealed(self.seals.root, self.items, *given)

    @property
    def is_sealed(self) -> bool:
        return self.ledger.records(self.content)


class Recommender(Saved, EditedInPlace):
    """Recommender that forgets users, items and interactions exactly.

    .. code-block:: python

        model = Recommender('paths').fit(edge_index, num_users, num_items)
        top = model.recommend(users, k=20)
        model.remove(users=[7], interactions=[(3, 9)])
        assert model.verify().ok

    The method ``'paths'`` counts paths from a user to one of the user's items,
    to another user and to an item of that user. An item's score is the
    weighted number of these paths. Nothing is trained. The method
    ``'closed_form'`` is EASE, a ridge regression of every item on all others,
    which is better on dense catalogues of some thousands of items.

    Recommendations depend on the lists of all users, and are not
    differentially private. Keep :meth:`state_dict` and the ledger secret. The
    cost of a removal grows with the square of the length of the shortened
    lists. With ``'closed_form'``, the next call then costs as much as a fit.

    Args:
        method (str): :obj:`'paths'` or :obj:`'closed_form'`.
            (default: :obj:`'paths'`)
        exponents (tuple[float, float, float]): of ``'paths'``, each in
            :math:`[0, 2]`: a path is divided by the degrees of the user's
            item, the other user and the recommended item to these powers.
            (default: :obj:`(0.6, 0.6, 0.3)`)
        cached (bool): whether ``'paths'`` keeps its counts, 12 bytes for each
            pair of items with a common user; otherwise each call counts them
            again, with equal results. (default: :obj:`True`)
        weight_decay (float): the L2 penalty of ``'closed_form'``.
            (default: :obj:`500.0`)
        max_items (int): the most items of ``'closed_form'``, which takes 24
            bytes for each pair of them. (default: :obj:`20_000`)

    Raises:
        TypeError, ValueError: if an argument is out of range, or belongs to
            the other method.
    """

    _formats = (FORMAT,)

    @renamed(lam='weight_decay')
    def __init__(
        self,
        method: str = 'paths',
        *,
        exponents: tuple[float, float, float] = EXPONENTS,
        cached: bool = True,
        weight_decay: float = 500.0,
        max_items: int = 20_000,
    ) -> None:
        check_choice('method', method, METHODS)
        check_instance('exponents', exponents, tuple, list)
        if len(exponents) != 3:
            raise ValueError(
                f"'exponents' needs to hold b, c and d (got {len(exponents)})"
            )
        (check,) = Exponent.__metadata__  # type: ignore[attr-defined]
        check_instance('cached', cached, bool)
        self.method = method
        b, c, d = [check('exponents', each) for each in exponents]
        self.exponents = (b, c, d)
        self.cached = cached
        self.weight_decay = check_positive('weight_decay', weight_decay)
        self.max_items = check_integer('max_items', max_items, 1)
        alien = {
            'weight_decay': weight_decay != 500.0,
            'max_items': max_items != 20_000,
        }
        if method == 'closed_form':
            other = self.exponents != EXPONENTS
            alien = {'exponents': other, 'cached': not cached}
        for name, is_given in alien.items():
            if is_given:
                raise ValueError(f"'{name}' can't be given to {method!r}")
        # During an edit: the state before it, and the overwritten values.
        self._way_back: Any = None
        super().__init__()

    @editing
    def fit(
        self,
        interactions: Tensor | HeteroData,
        num_users: int | None = None,
        num_items: int | None = None,
        *,
        edge_type: EdgeType | None = None,
    ) -> 'Recommender':
        """Fit the recommender to interactions; a second call starts over.

        The second call begins a new ledger, too.

        Args:
            interactions (Tensor or HeteroData): int64, ``[2,
                num_interactions]``, users in row 0 and items in row 1; or a
                bipartite graph.
            num_users (int, optional): the number of users; not with a graph.
            num_items (int, optional): the number of items; not with a graph.
            edge_type (tuple, optional): the edge type of the interactions, as
                ``('user', 'likes', 'item')``, if a graph has several.

        Raises:
            TypeError, ValueError: if interactions are listed twice, have
                ratings other than 1 or unknown users or items; or if there are
                more items than ``max_items`` in closed form.
        """
        edges, num_users, num_items, ids = read_interactions(
            interactions, num_users, num_items, edge_type
        )
        lists = lists_of(edges, num_users, num_items)
        users = torch.ones(num_users, dtype=torch.bool)
        items = torch.ones(num_items, dtype=torch.bool)
        before = self._model and self._model.ledger
        ledger = RemovalLedger.after(before, 0.0)
        seals = Seals(_texts(lists, users))
        held = self._counted(lists, users, items, seals, ledger, ids)
        if self.method == 'closed_form':
            inverse = factored(lists, num_items, self.weight_decay)
            held = held._replace(inverse=inverse)
        ledger.record('fit', 0.0, data=held.content)
        self._model = held
        return self

    @synchronized
    def recommend(self, users: Names, k: int = 10) -> Tensor:
        """Return the best items that users do not have yet.

        Args:
            users (list[int] or Tensor): the ids of users, or a bool mask.
            k (int): the number of items for each user. (default: :obj:`10`)

        Returns:
            Tensor: the ids of items, int64, ``[num_users, k]``, from the
            highest score to the lowest; of equal scores the earlier item
            first. Places without an item of positive score, and all places of
            removed users, hold ``num_items`` or, if items have an ``n_id``,
            its largest value plus 1.

        Raises:
            NotThere: if a user was never there.
        """
        held = self._factored(self._fitted)
        of, ids = held.ids.users, held.ids.items
        rows, there = rows_there('users', users, of, held.users)
        k = check_integer('k', k, 1)
        best = [torch.empty((0, k), dtype=torch.int64)]
        liked = torch.from_numpy(held.lists.item)
        degree = liked.bincount(minlength=len(held.items))
        for block in rows[there].split(_BLOCK):
            own = block.numpy()
            if held.inverse is not None:
                scores = sure_scores(held.inverse, held.lists, own)
                scores[:, degree.numpy() == 0] = 0.0
            else:
                scores = path_scores(
                    held.lists, own, degree, self.exponents, held.counts
                )
            for row, user in zip(scores, own, strict=True):
                row[held.lists.of(user)] = 0.0
            best.append(torch.from_numpy(best_items(scores, k)))
        found = torch.full((len(rows), k), len(held.items))
        found[there] = torch.cat(best)
        return ids.of(found)

    @synchronized
    def counts(self, items: Names) -> Tensor:
        """Return the exact counts for pairs of items, from which scores come.

        With ``'paths'``, the weighted number of users who have both items;
        with ``'closed_form'``, the number of these users.

        Args:
            items (list[int] or Tensor): the ids of items, or a bool mask.

        Returns:
            Tensor: float64, ``[len(items), num_items]``; columns are items by
            position; rows of removed items are NaN.

        Raises:
            NotThere: if an item was never there.
        """
        held = self._fitted
        every, there = rows_there('items', items, held.ids.items, held.items)
        names = every[there].numpy()
        if held.counts is None:
            size, c = len(held.items), self._power
            rows = path_counts(held.lists, size, c, names)
        else:
            rows = held.counts[names]
        found = torch.full((len(every), len(held.items)), torch.nan).double()
        found[there] = torch.from_numpy(rows.toarray())
        return found

    @property
    @synchronized
    def edge_index(self) -> Tensor:
        """The remaining interactions: int64, ``[2, num_interactions]``."""
        return self._fitted.lists.pairs()

    @property
    @synchronized
    def data(self) -> HeteroData:
        """A copy of the present graph, in the form that ``fit`` takes."""
        held, made = self._fitted, HeteroData()
        for name, ids in (('user', held.ids.users), ('item', held.ids.items)):
            if ids.n_id is not None:
                made[name].n_id = ids.n_id.clone()
        made['user'].num_nodes = len(held.users)
        made['item'].num_nodes = len(held.items)
        made['user', 'likes', 'item'].edge_index = held.lists.pairs()
        return made

    @property
    @synchronized
    def n_id(self) -> Tensor:
        """The positions of the present users, then of items: int64.

        Item ``i`` has the position ``num_users + i``.
        """
        held = self._fitted
        return torch.cat([held.users, held.items]).nonzero().view(-1)

    @synchronized
    def plan(
        self,
        request: RemovalRequest | Names | None = None,
        *,
        users: Names | None = None,
        items: Names | None = None,
        interactions: Pairs | None = None,
    ) -> ForgetPlan:
        """Estimate the work of a removal; change nothing.

        Takes the arguments of :meth:`remove` that name what to remove.
        """
        held = self._fitted
        asked = self._asked(held, request, users, items, interactions)
        change = self._change(held, asked)
        return ForgetPlan(
            request=change.request,
            touched_users=len(change.rows),
            touched_entries=change.entries,
            num_entries=0 if held.counts is None else held.counts.nnz,
            recount=change.recount,
        )

    @editing
    def remove(
        self,
        request: RemovalRequest | Names | None = None,
        *,
        users: Names | None = None,
        items: Names | None = None,
        interactions: Pairs | None = None,
        persons: Names | None = None,
        missing: str = 'raise',
        reference: str = '',
    ) -> ForgetReport:
        """Forget users, items and interactions.

        If this fails or is interrupted, nothing has changed. Users and items
        without interactions remain. Ids are the ``n_id`` of their node types,
        if the graph had it, else positions.

        Args:
            request (RemovalRequest or list, optional): the ids of users; or a
                request for nodes and edges, with users and items in one
                numbering: item ``i`` has the id ``num_users + i``, or
                ``n_id.max() + 1 + i`` if users have an ``n_id``.
            users (list[int] or Tensor, optional): the ids of users to remove,
                with all their interactions.
            items (list[int] or Tensor, optional): the ids of items to remove,
                with all their interactions.
            interactions (list[tuple[int, int]] or Tensor, optional):
                interactions to remove, as pairs of user and item or ``[2,
                num]``.
            persons (list[int], optional): refused: pass a request that has the
                persons and their privacy unit.
            missing (str): :obj:`'raise'`, or :obj:`'skip'` to leave out items
                that are not there and list them in ``skipped`` of the report.
                (default: :obj:`'raise'`)
            reference (str): ids of the requests for the ledger, 32 hexadecimal
                digits each, joined without a separator. (default: :obj:`''`)

        Raises:
            NotThere: if an item is not there, or with ``missing='skip'`` if no
                item is.
            TypeError, ValueError: if nothing is requested, or the reference is
                malformed or was used before.
        """
        held = self._fitted
        named = users, items, interactions
        asked = self._asked(held, request, *named, persons)
        return skipping(
            asked, missing, lambda each: self._removed(each, reference)
        )

    def _asked(
        self,
        held: _Held,
        request: Any,
        users: Names | None,
        items: Names | None,
        interactions: Pairs | None,
        persons: Names | None = None,
    ) -> RemovalRequest:
        return requested(
            request,
            'users',
            'nodes',
            persons=persons,
            **held.ids.request(users, items, interactions),
        )

    def _removed(
        self, request: RemovalRequest, reference: str
    ) -> ForgetReport:
        held = self._fitted
        held.ledger.check_reference(reference)
        change = self._change(held, request)
        lists, size = held.lists.kept(change.keep), len(held.items)
        counts: Sparse = held.counts
        where, values = np.empty(0, int), np.empty(0)
        if counts is not None and change.recount:
            counts = path_counts(lists, size, self._power)
        elif counts is not None:
            where, values = downdate(counts, change.rows, self._power)
        texts = {
            row.user: _text(row.items[row.stays])
            for row in change.rows
            if change.users[row.user]
        }
        gone = (held.users & ~change.users).nonzero().view(-1).tolist()
        new = held._replace(
            lists=lists,
            users=change.users,
            items=change.items,
            counts=counts,
            inverse=None,
            seals=held.seals.replaced(texts, gone),
            ledger=held.ledger.copy(),
        )
        given = change.named, new.content, reference
        new.ledger.record('step', 0.0, *given)
        changed = change.entries if change.recount else len(where)
        report = ForgetReport.of(
            'exact removal from a recommender',
            request=change.request,
            named=change.named,
            entries_changed=0 if counts is None else changed,
            recounted=change.recount,
            exact=True,
            column_distance=None if self.method == 'paths' else 0.0,
            num_users=int(change.users.sum()),
            num_items=int(change.items.sum()),
            num_interactions=len(lists.item),
            data_sha256=new.content,
            ledger_head=new.ledger.head,
            weights_sha256=new.content,
            origin=provenance(**self._config()),
            not_covered=NOT_COVERED,
        )
        if len(where):
            self._way_back = held, counts, where, counts.data[where]
            counts.data[where] = values
        self._model = new
        self._way_back = None
        return report

    @editing
    def flush(self) -> 'Recommender':
        """Free the memory of counts that are zero since a removal."""
        held = self._fitted
        if held.counts is not None:
            counts = held.counts.copy()
            counts.eliminate_zeros()
            self._model = held._replace(counts=counts)
        return self

    @synchronized
    def verify(self) -> VerifyReport:
        """Fit the remaining interactions anew, and compare bit by bit."""
        held = self._fitted
        size, entries = len(held.items), 0
        lists = lists_of(held.lists.pairs(), len(held.users), size)
        equal, left = True, []
        if held.counts is not None:
            anew = path_counts(lists, size, self._power)
            there = held.counts.copy()
            there.eliminate_zeros()
            empty, entries = held.counts.nnz - there.nnz, there.nnz
            equal = all(
                np.array_equal(getattr(anew, name), getattr(there, name))
                for name in ('indptr', 'indices', 'data')
            )
            if empty:
                left.append(
                    f'{empty} empty counts of items that once shared a user'
                )
        if held.inverse is not None:
            again = factored(lists, size, self.weight_decay).base
            equal, entries = (
                np.array_equal(again, held.inverse.base),
                again.size,
            )
        texts = _texts(lists, held.users)
        is_sealed = held.is_sealed and held.seals.fits(texts)
        return VerifyReport(
            ok=equal and is_sealed,
            counts_equal=equal,
            sealed=is_sealed,
            num_entries=entries,
            leftovers=tuple(left),
            weights_sha256=held.content,
        )

    def _settle(self) -> None:
        if self._way_back is not None:
            before, counts, where, values = self._way_back
            if self._model is before:
                counts.data[where] = values
            self._way_back = None

    def _config(self) -> dict[str, Any]:
        if self.method == 'closed_form':
            return {'method': self.method, 'lam': self.weight_decay}
        return {'method': self.method, 'exponents': list(self.exponents)}

    @property
    def _power(self) -> float:
        return self.exponents[1] if self.method == 'paths' else 0.0

    def _factored(self, held: _Held) -> _Held:
        # In closed form a removal leaves the factoring to the next answer.
        if self.method == 'closed_form' and held.inverse is None:
            inverse = factored(held.lists, len(held.items), self.weight_decay)
            held = self._model = held._replace(inverse=inverse)
        return held

    def _packed(self, model: _Held) -> dict[str, Any]:
        # The counts are not in it: they are counted anew.
        return {
            'interactions': model.lists.pairs(),
            'users': model.users.clone(),
            'items': model.items.clone(),
            'n_id': [*_n_id(model.ids)],
            'salts': model.seals.state_dict(),
        }

    def _rebuilt(self, state: dict[str, Any], ledger: RemovalLedger) -> _Held:
        users, items = state['users'], state['items']
        for each in (users, items):
            check_tensor('state', each, torch.bool, ('num',))
        lists = lists_of(state['interactions'], len(users), len(items))
        if not torch.equal(lists.pairs(), state['interactions']):
            raise ValueError("'interactions' of the state need to be sorted")
        seals = Seals.of(state['salts'], _texts(lists, users))
        ids = Ids.of_tensors(state.get('n_id', [None, None]), len(users))
        return self._counted(
            lists, users.clone(), items.clone(), seals, ledger, ids
        )

    def _counted(
        self, lists: Lists, users: Tensor, items: Tensor, *rest: Any
    ) -> _Held:
        size, counts = len(items), None
        if self.method == 'closed_form':
            if size > self.max_items:
                raise ValueError(
                    f"'num_items' needs to be at most 'max_items', "
                    f'{self.max_items}, in closed form (got {size}): its '
                    f'matrices take {24e-9 * size**2:.1f} GB during a fit; '
                    "Recommender('paths') takes sparse tables of any size"
                )
        elif self.cached:
            counts = path_counts(lists, size, self._power)
        return _Held(lists, users, items, counts, None, *rest)

    def _change(self, held: _Held, request: RemovalRequest) -> Change:
        change = read_change(
            held.lists, held.users, held.items, held.ids, request
        )
        if held.counts is None:
            return change._replace(recount=self.method == 'closed_form')
        many = change.entries > RECOUNT * held.counts.nnz
        return change._replace(recount=bool(many))


def _n_id(ids: Ids) -> tuple[Tensor | None, Tensor | None]:
    return ids.users.n_id, ids.items.n_id


def _text(items: np.ndarray) -> str:
    return ' '.join(map(str, items.tolist()))


def _texts(lists: Lists, users: Tensor) -> dict[int, str]:
    names = users.nonzero().view(-1).tolist()
    return {user: _text(lists.of(user)) for user in names}
