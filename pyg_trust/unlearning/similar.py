"""Recommendations by paths of three steps in fixed point, and in closed form.

Sums of rounded weights are exact in any order, so that what a user added can
be taken off again: ``docs/theory/exact_removal.rst`` has the formulas.
"""

from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import Array, Count, Number, check_range, validated
from pyg_trust.unlearning.incremental import degree_power

#: Weights are multiples of two to the power of minus this.
BITS = 30
#: An item may have as many users: sums of 2^22 weights of 2^30 are exact.
MOST_USERS = 2**22
# Exponents, of degrees of at most 2^22, are not larger than this.
Exponent = Annotated[float, Number(0, 2, 'low high')]
Pairs = Annotated[Tensor, Array(torch.int64, 2, 'num_interactions')]
Degrees = Annotated[Tensor, Array(torch.int64, 'num')]
# A sparse matrix of scipy, which has no types.
Sparse = Any


class Lists(NamedTuple):
    """Items of each user: where rows begin, and their ascending items."""

    start: np.ndarray
    item: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """int64, ``[num_users]``: the number of items of each user."""
        return np.diff(self.start)

    def of(self, user: int) -> np.ndarray:
        """Return the items of a user."""
        return self.item[self.start[user] : self.start[user + 1]]

    def pairs(self) -> Tensor:
        """Return the interactions in order, int64, ``[2, num]``."""
        users = np.repeat(np.arange(len(self.length)), self.length)
        return torch.from_numpy(np.stack([users, self.item]))

    def kept(self, mask: np.ndarray) -> 'Lists':
        """Return the lists of some of the interactions."""
        gone = np.flatnonzero(~mask)
        start = self.start - np.searchsorted(gone, self.start)
        return Lists(start, np.delete(self.item, gone))

    def matrix(self, num_items: int, weights: Tensor | None = None) -> Sparse:
        """Return :math:`R`, or :math:`W R`, as a sparse matrix of scipy."""
        from scipy.sparse import csr_matrix

        value = np.ones(len(self.item))
        if weights is not None:
            value = np.repeat(weights.numpy(), self.length)
        shape = len(self.length), num_items
        return csr_matrix((value, self.item, self.start), shape=shape)


class Row(NamedTuple):
    """A user, their items so far, ascending, and which of them stay."""

    user: int
    items: np.ndarray
    stays: np.ndarray


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenate integer arrays; an empty list gives an empty array."""
    return np.concatenate([np.empty(0, np.int64), *parts])


@validated
def lists_of(interactions: Pairs, num_users: Count, num_items: Count) -> Lists:
    """Sort interactions into the lists of users."""
    users, items = interactions
    check_range('interactions', users, num_users, 'the users', private=True)
    check_range('interactions', items, num_items, 'the items', private=True)
    if num_users * num_items >= 2**63:
        raise ValueError(
            "'num_users' times 'num_items' needs to be below 2**63, or two "
            f'pairs have one number (got {num_users} and {num_items})'
        )
    keys = np.sort((users * num_items + items).numpy())
    if (keys[1:] == keys[:-1]).any():
        raise ValueError(
            "'interactions' needs to name each pair of user and item once: "
            'torch.unique(edge_index, dim=1)'
        )
    if len(keys) > MOST_USERS and items.bincount().max() > MOST_USERS:
        raise ValueError(
            f"'interactions' needs to have at most {MOST_USERS} users of an "
            'item: the sums of more are not exact'
        )
    count = np.bincount(keys // num_items, minlength=num_users)
    start = np.concatenate([[0], np.cumsum(count)])
    return Lists(start, keys % num_items)


@validated
def fixed_weights(degree: Degrees, exponent: Exponent) -> Tensor:
    r"""Round :math:`d^{-c}` to a positive multiple of :math:`2^{-30}`.

    0 at degree 0. Equal degrees get equal weights.

    Example:
        >>> fixed_weights(torch.tensor([0, 1, 4]), 0.5)
        tensor([0.0000, 1.0000, 0.5000], dtype=torch.float64)
    """
    units = (degree_power(degree, -exponent) * 2.0**BITS).round()
    return units.clamp(min=1).where(degree > 0, 0) * 2.0**-BITS


def path_counts(
    lists: Lists,
    num_items: int,
    exponent: float,
    items: np.ndarray | None = None,
) -> Sparse:
    """Count paths between items: all rows of :math:`G`, or some."""
    weights = fixed_weights(torch.from_numpy(lists.length), exponent)
    plain = lists.matrix(num_items)
    if items is not None:
        plain = plain[:, items]
    made = plain.T.tocsr() @ lists.matrix(num_items, weights)
    made.sort_indices()
    return made


def places(counts: Sparse, items: np.ndarray) -> np.ndarray:
    """Find the entries of :math:`G` between all pairs of some items."""
    start, column = counts.indptr, counts.indices
    wanted = items.astype(column.dtype)
    return joined(
        [
            start[i] + column[start[i] : start[i + 1]].searchsorted(wanted)
            for i in items
        ]
    )


def downdate(
    counts: Sparse, rows: list[Row], exponent: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Subtract the removed entries of users from :math:`G`, exactly."""
    sizes = [(len(items), int(stays.sum())) for _, items, stays in rows]
    degree = torch.tensor(sizes, dtype=torch.int64).view(-1)
    weights = fixed_weights(degree, exponent).view(-1, 2).tolist()
    where, amounts = [], [np.empty(0)]
    for (_, items, stays), (old, new) in zip(rows, weights, strict=True):
        if len(items):
            both = np.logical_and.outer(stays, stays).ravel()
            where.append(places(counts, items))
            amounts.append(np.where(both, new, 0.0) - old)
    found, index = np.unique(joined(where), return_inverse=True)
    # Exact: multiples of 2^-30, at most as many as an item has users.
    moved = np.bincount(index, np.concatenate(amounts), len(found))
    return found, counts.data[found] + moved


def path_scores(
    lists: Lists,
    users: np.ndarray,
    degree: Tensor,
    exponents: tuple[float, float, float],
    counts: Sparse | None = None,
) -> np.ndarray:
    """Score all items for some users; the same bits with counts or without."""
    from scipy.sparse import csr_matrix

    b, c, d = exponents
    own = [lists.of(user) for user in users]
    start = np.cumsum([0, *map(len, own)])
    item = joined(own)
    value = degree_power(degree, -b).numpy()[item]
    width = len(degree)
    if counts is None:
        wanted, item = np.unique(item, return_inverse=True)
        counts, width = path_counts(lists, width, c, wanted), len(wanted)
    # scipy adds rows of G in the order of a user's items.
    rows = csr_matrix((value, item, start), shape=(len(users), width))
    return (rows @ counts).toarray() * degree_power(degree, -d).numpy()


def best_items(scores: np.ndarray, k: int) -> np.ndarray:
    """Choose the best items: by score, equal scores by ascending name."""
    best = np.full((len(scores), k), scores.shape[1])
    for row, score in zip(best, scores, strict=True):
        (item,) = (score > 0).nonzero()
        if len(item) > k:
            least = np.partition(score[item], -k)[-k]
            item = item[score[item] >= least]
        item = item[np.argsort(-score[item], kind='stable')][:k]
        row[: len(item)] = item
    return best


class Inverse(NamedTuple):
    """The inverse matrix of the closed form, and the size of its rounding."""

    base: np.ndarray
    rounding: float


def factored(lists: Lists, num_items: int, lam: float) -> Inverse:
    """Invert by Cholesky's decomposition, with the bits of any other fit."""
    from scipy.linalg import LinAlgError, cholesky, lapack

    # Integers, so exact.
    shifted = path_counts(lists, num_items, 0.0).toarray()
    wide = lam + float(shifted.sum(1).max())
    shifted.flat[:: num_items + 1] += lam
    rounding = 8 * num_items * 2.0**-53 * wide / lam
    if rounding < 1 and lam < 2.0**52:
        with suppress(LinAlgError):
            lower = cholesky(shifted, True, True, check_finite=False)
            half = np.tril(lapack.dpotri(lower, lower=1)[0])
            base = np.ascontiguousarray(half + np.tril(half, -1).T)
            return Inverse(base, rounding / lam)
    raise ValueError(
        "'weight_decay' needs to be another for these interactions: rounding "
        f'hides all of the weights (got {lam})'
    )


def sure_scores(
    inverse: Inverse, lists: Lists, users: np.ndarray
) -> np.ndarray:
    """Score all items for some users; 0 where rounding may hide the sign."""
    value = inverse.base.diagonal()
    made = np.zeros((len(users), len(value)))
    for row, user in zip(made, users, strict=True):
        items = lists.of(user)
        score = -inverse.base[items].sum(0) / value
        least = len(items) * inverse.rounding / value
        row[:] = np.where(score > least, score, 0.0)
        row[items] = 0.0
    return made
