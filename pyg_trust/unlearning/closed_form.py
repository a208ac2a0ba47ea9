"""Closed-form item weights (EASE), a function of what remains.

``docs/theory/exact_removal.rst`` has the formulas and the rounding.
"""

from contextlib import suppress
from typing import NamedTuple

import numpy as np

from pyg_trust.unlearning.similar import Lists, path_counts


class Inverse(NamedTuple):
    r"""The inverse :math:`P` of :math:`A`, and the size of its rounding.

    Args:
        base (ndarray): float64, ``[num_items, num_items]``.
        rounding (float): :math:`\delta`.
    """

    base: np.ndarray
    rounding: float


def factored(lists: Lists, num_items: int, lam: float) -> Inverse:
    """Invert :math:`A` by Cholesky's decomposition.

    The bits depend on the interactions alone, on one machine with as many
    threads.
    """
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
