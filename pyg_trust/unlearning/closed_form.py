r"""Closed-form item weights (EASE), downdated with a bound of their error.

With the interactions :math:`X` of users and items, :math:`A = X^\top X +
\lambda I` and :math:`P \approx A^{-1}`, the weights are :math:`B = I - P
\operatorname{diag}(1 / P_{jj})`, and a user's scores :math:`x B` (Steck 2019).

**A step.** A user leaves, :math:`\sigma = 1`, or enters, :math:`\sigma = -1`:
:math:`A' = A - \sigma x x^\top`. With *any* number :math:`s` and vector
:math:`w`, :math:`P' = P + \sigma w w^\top` has, for :math:`E = I - A P` and
symmetric :math:`P`,

.. math::
    E' = E + \sigma \left[ (s x - A' w)\, w^\top + x\, (P x - s w)^\top
    \right] ,

by multiplying out. For :math:`w = P x / s` and :math:`s^2 = 1 - \sigma x^\top
P x` both brackets are rounding alone. They are measured, in two products of
sparse matrices, so

.. math::
    \lVert E' \rVert_F \le \lVert E \rVert_F + \lVert s x - A' w \rVert\,
    \lVert w \rVert + \lVert x \rVert\, \lVert P x - s w \rVert :

bounds add up and do not multiply. Vectors :math:`w` are kept beside :math:`P`
and added to it from time to time, which rounds it by some :math:`F` and adds
:math:`\lVert A \rVert_2 \lVert F \rVert_F`.

**What is served.** :math:`A \succeq \lambda I`, so :math:`\lVert P - A^{-1}
\rVert_F \le \rho = \lVert E \rVert_F / \lambda`, and column :math:`j` of
:math:`B` is off by at most

.. math::
    \frac{\rho + (1 / \lambda + \rho)\, \rho / P_{jj}}{P_{jj} - \rho} .

**Rounding.** All bounds are of numbers as they are stored, and are rounded
upwards: a sum of :math:`k` products is off by at most :math:`\gamma_k` of that
of absolute values (Higham 2002, chapter 3). The first :math:`E` is measured.
"""

import math
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pyg_trust.unlearning.similar import Lists, Row, path_counts
from pyg_trust.verify.removal import gamma, norm

# So many steps are kept beside the inverse.
KEPT = 64
# More than the roundings of the operations on norms.
_UP = 1 + 2.0**-40


class Inverse(NamedTuple):
    r"""An approximate inverse :math:`P` of :math:`A`, symmetric.

    Args:
        base (ndarray): float64, ``[num_items, num_items]``.
        steps (ndarray): float64, ``[num_items, m]``: vectors :math:`w`.
        signs (ndarray): float64, ``[m]``: their :math:`\sigma`; :math:`P` is
            the base and the sum of :math:`\sigma w w^\top`.
        residual (float): a bound of :math:`\lVert I - A P \rVert_F`.
        moved (int): the number of steps since the base was factored.
    """

    base: np.ndarray
    steps: np.ndarray
    signs: np.ndarray
    residual: float
    moved: int = 0

    def times(self, items: np.ndarray) -> np.ndarray:
        """Multiply by the indicator of some items."""
        inner = self.signs * self.steps[items].sum(0)
        return self.base[items].sum(0) + self.steps @ inner

    def hidden(self, items: np.ndarray, lam: float) -> np.ndarray:
        r"""Bound the rounding error of :meth:`times`, by entry.

        Columns of the base are at most :math:`(1 + |E|) / \lambda` long.
        """
        root = math.sqrt(len(items))
        long = (1 + self.residual) / lam
        wide = np.sqrt((self.steps**2).sum(1)) * norm(self.steps[items])
        count = len(items) + len(self.signs) + 8
        return gamma(count) * root * (long + wide) * _UP

    def diagonal(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonal, and bounds of its rounding error."""
        square, base = self.steps**2, self.base.diagonal()
        off = gamma(len(self.signs) + 4) * (np.abs(base) + square.sum(1))
        return base + square @ self.signs, off * _UP


def factored(lists: Lists, num_items: int, lam: float) -> Inverse:
    """Invert :math:`A` by Cholesky's decomposition, and measure the residual.

    The bits depend on the lists alone, on one machine with as many threads.

    Raises:
        ValueError: if the regularisation is so small, or so large, that
            nothing can be said about the weights.
    """
    from scipy.linalg import LinAlgError, cholesky, lapack

    # Integers, so exact.
    gram = path_counts(lists, num_items, 0.0).toarray()
    shifted = gram.copy()
    shifted.flat[:: num_items + 1] += lam
    none = np.empty((num_items, 0)), np.empty(0)
    with suppress(LinAlgError):
        lower = cholesky(shifted, True, True, check_finite=False)
        base = _mirrored(lapack.dpotri(lower, lower=1)[0])
        made = Inverse(base, *none, 0.0)
        made = made._replace(residual=sum(_measured(gram, made, lam)))
        if np.isfinite(column_bounds(made, lam)).all():
            return made
    raise ValueError(
        "'lam' needs to be another for these interactions: rounding hides all "
        f'of the weights (got {lam})'
    )


def measured(
    lists: Lists, inverse: Inverse, lam: float
) -> tuple[float, float]:
    """Measure the residual: its norm, and a bound of the rounding in that."""
    gram = path_counts(lists, len(inverse.base), 0.0).toarray()
    return _measured(gram, inverse, lam)


def stepped(
    inverse: Inverse, lists: Lists, rows: list[Row], lam: float
) -> Inverse | None:
    """Replace lists of users by shorter ones, step by step.

    Args:
        inverse (Inverse): of the lists before.
        lists (Lists): the lists after all changes.
        rows (list[Row]): the users whose lists get shorter.
        lam (float): the regularisation.

    Returns:
        Inverse: that of the lists, or :obj:`None` if a step is not possible,
        or leaves a bound of nothing: factor it anew.
    """
    size, users = len(inverse.base), len(lists.length)
    held = lists.matrix(size)
    moves = _moves(rows)
    made = _indicators([items for _, items in moves], size)
    signs = np.array([sign for sign, _ in moves])
    # Terms of a sum: of a list, of users of an item, of steps.
    most = max((len(items) for _, items in moves), default=0)
    most += int(lists.length.max()) + int((held.T @ np.ones(users)).max())
    terms = most + len(moves) + 8
    # Of the spectral norm of A: the largest sum of a row.
    wide = float((held.T @ lists.length).max()) + lam + made.sum()
    for each, (sign, items) in enumerate(moves, 1):
        if len(inverse.signs) >= KEPT:
            inverse = _folded(inverse, wide)
        p, root = inverse.times(items), math.sqrt(len(items))
        square = 1 - sign * float(p[items].sum())
        if not square > 0:
            return None
        s = math.sqrt(square)
        w = p / s
        both = np.stack([w, np.abs(w)], 1)
        # Products by A after this step: later steps are taken back.
        later = made[each:]
        rest = later @ both
        rest[:, 0] *= signs[each:]
        product = held.T @ (held @ both) + lam * both + later.T @ rest
        left = -product[:, 0]
        left[items] += s
        first = norm(left)
        first += gamma(terms) * (norm(product[:, 1]) + s * root)
        second = norm(inverse.hidden(items, lam)) + gamma(2) * norm(p)
        more = (first * norm(w) + root * second) * _UP
        inverse = Inverse(
            inverse.base,
            np.column_stack([inverse.steps, w]),
            np.append(inverse.signs, sign),
            (inverse.residual + more) * _UP,
            inverse.moved + 1,
        )
    return inverse if np.isfinite(column_bounds(inverse, lam)).all() else None


def column_bounds(inverse: Inverse, lam: float) -> np.ndarray:
    """Bound the distances of the columns of :math:`B` to exact ones.

    Infinite where the residual is too large for a bound.
    """
    rho = inverse.residual / lam * _UP
    value, off = inverse.diagonal()
    least = value - off
    room = (least - rho) * (1 - 2.0**-40)
    with np.errstate(all='ignore'):
        far = (rho + (1 / lam + rho) * rho / least) / room * _UP
    return np.where(room > 0, far, math.inf)


def sure_scores(
    inverse: Inverse, lists: Lists, users: np.ndarray, lam: float
) -> np.ndarray:
    r"""Score all items for some users; 0 where the sign is not sure.

    A score that exceeds its error bound is kept: the exact one is positive.

    Args:
        inverse (Inverse): of the lists.
        lists (Lists): the lists.
        users (np.ndarray): int64.
        lam (float): the regularisation.

    Returns:
        np.ndarray: float64, ``[num, num_items]``, 0 for own items.
    """
    rho = inverse.residual / lam * _UP
    value, off = inverse.diagonal()
    room = (value - off - rho) * (1 - 2.0**-40)
    made = np.zeros((len(users), len(value)))
    for row, user in zip(made, users, strict=True):
        items = lists.of(user)
        score = -inverse.times(items) / value
        missing = math.sqrt(len(items)) * rho + inverse.hidden(items, lam)
        missing += np.abs(score) * (rho + off + gamma(4) * value)
        row[:] = np.where(score > missing / room * _UP, score, 0.0)
        row[items] = 0.0
    return made


# Inside ######################################################################


def _measured(
    gram: np.ndarray, inverse: Inverse, lam: float
) -> tuple[float, float]:
    dense, size = inverse, len(gram)
    hidden = 0.0
    if len(inverse.signs):
        dense, rounded = _added(inverse)
        wide = float(gram.sum(1).max()) + lam
        hidden = wide * rounded * _UP
    error = gram @ dense.base
    error += lam * dense.base
    error.flat[:: size + 1] -= 1.0
    sizes = (norm(gram) + lam) * norm(dense.base) + math.sqrt(size)
    return norm(error), (hidden + gamma(size + 8) * sizes) * _UP


def _added(inverse: Inverse) -> tuple[Inverse, float]:
    # The inverse with all steps added in, and the norm of the rounding.
    base, off = inverse.base, norm(inverse.base)
    made = base.copy()
    for sign in (1.0, -1.0):
        part = inverse.steps[:, inverse.signs == sign]
        made += sign * (part @ part.T)
        off += norm(part) ** 2
    none = np.empty((len(base), 0)), np.empty(0)
    done = Inverse(made, *none, inverse.residual, inverse.moved)
    return done, gamma(len(inverse.signs) + 6) * off * _UP


def _folded(inverse: Inverse, wide: float) -> Inverse:
    # `wide` is a bound of the spectral norm of A.
    made, rounded = _added(inverse)
    more = wide * rounded * _UP
    return made._replace(
        base=_mirrored(made.base), residual=(made.residual + more) * _UP
    )


def _mirrored(matrix: np.ndarray) -> np.ndarray:
    lower = np.tril(matrix)
    return np.ascontiguousarray(lower + np.tril(lower, -1).T)


def _moves(rows: list[Row]) -> list[tuple[float, np.ndarray]]:
    # What stays enters before the whole list leaves, so that A is never less
    # than before or after.
    made = []
    for _, items, stays in rows:
        if not stays.all():
            if stays.any():
                made.append((-1.0, items[stays]))
            made.append((1.0, items))
    return made


def _indicators(parts: list[np.ndarray], size: int) -> Any:
    from scipy.sparse import csr_matrix

    start = np.cumsum([0, *map(len, parts)])
    item = np.concatenate([np.empty(0, np.int64), *parts])
    shape = len(parts), size
    return csr_matrix((np.ones(len(item)), item, start), shape=shape)
