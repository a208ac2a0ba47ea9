r"""Closed-form item weights (EASE), a function of what remains.

With the interactions :math:`X` of users and items, :math:`A = X^\top X +
\lambda I` and :math:`P = A^{-1}`, the weights are :math:`B = I - P
\operatorname{diag}(1 / P_{jj})`, and a user's scores :math:`x B` (Steck 2019).

A removal drops :math:`P`; the next answer factors :math:`A` anew, by the call
that a fit makes. :math:`X^\top X` holds integers, which are exact in any
order, so the weights have the bits of a fit on what remains, on one machine
with as many threads.

**Rounding.** The error of an entry of :math:`P` is of the size :math:`\delta =
8 k u\, \kappa / \lambda`, for :math:`k` items, :math:`u = 2^{-53}` and
:math:`\kappa = (\lambda + \lVert X^\top X \rVert_\infty) / \lambda` (Higham
2002, chapter 14). Of a list of :math:`m` items a score below :math:`m \delta /
P_{jj}` counts as zero, so that rounding recommends nothing.
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
