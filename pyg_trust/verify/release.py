r"""Releases on a public grid: integers of bounded numbers, and exact noise.

**The grid.** A release with noise of standard deviation :math:`\sigma` lives
on the grid :math:`g = \sigma 2^{-32}`. A double :math:`\sigma` that is not
tiny gives a double :math:`g`, exactly (:func:`grid`). What is protected is
brought to integers :math:`k` first, each number by itself; sums of integers
are exact, in whatever order and by whatever program; :math:`g (k + N)`, with
the cells :math:`N` of :mod:`pyg_trust.verify.noise`, is the ideal Gaussian
mechanism for the sum :math:`g k`, rounded to the grid (the statement there).
So whoever bounds how far neighbours are apart **in integers** has the claim of
the ideal mechanism, to the last bit. :func:`released` turns :math:`k + N`
into a float: post-processing.

**Truncated numbers** (:func:`truncated`). :math:`t(x)` is :math:`x / g`
rounded towards zero, to an integer. So :math:`g |t(x)| \le |x|`: a message
that is withdrawn moves the sum by no more than in real numbers, and every
sensitivity of the form :math:`\|w m^\top\|_F \le \sqrt{D}` stays as it is.
Two messages against each other: :math:`\|t(a) - t(b)\| \le \|t(a)\| +
\|t(b)\|` stays, too, while a bound that reads an angle gains
:math:`\sqrt{d}\, g` for each (the :math:`d` entries are less than :math:`g`
off each).
*In floats:* :math:`x / g` is one rounding, by at most :math:`u = 2^{-53}` of
itself, and truncation never raises a size; so :math:`g |t(x)| \le |x| (1 +
u)`, which the bound on :math:`\|x\|` has to leave room for.

**Rounded numbers** (:func:`rounded`). :math:`r(x)` is the integer nearest to
the float :math:`x / g`: :math:`|g\, r(x) - x| \le g / 2 + u |x| (1 + u)`, and
:math:`d` numbers are off by at most :math:`\sqrt{d}\, g / 2 + 2 u \|x\|`.

**Range.** An integer that is stored is below :math:`2^{62}` in size, and
:math:`|N| < 2^{41}` but with a probability below :math:`2^{-180000}`, so that
nothing wraps. A sum of integers in float64 is exact as long as the sizes add
up to :math:`2^{53}` at most (:func:`fits_float`), whatever the order, since
each partial sum is an integer below it.

**Sensitivity** (:func:`sensitivity`). Messages have norm at most 1. Weights
of a list have energy :math:`\|w\|^2 \le D`. What one record adds is
:math:`w m^\top`, of Frobenius norm at most :math:`\sqrt{D}`; another record in
its place moves the sum by twice that at most (triangle inequality). Of
messages of :math:`C` classes, where :math:`m^\top m' \ge -1 / (C-1)`, the
square of that is :math:`\|w\|^2 \|m\|^2 + \|w'\|^2 \|m'\|^2 - 2 (w^\top
w')(m^\top m') \le 2 D + 2 D / (C - 1)`, as weights are not negative. An arc is
one message, an undirected edge is two, in different rows: :math:`\sqrt{2}`.

**Users.** Of a user with :math:`d` items let :math:`x` hold :math:`1 /
\sqrt{d}` at these and zeros elsewhere (nothing but zeros without items). The
matrix :math:`\sum x x^\top` is released as its triangle, the diagonal and
:math:`\sqrt{2}` times what is above, whose norm is the matrix's. What one user
adds has norm :math:`\|x\|^2 \le 1`, and another user in their place moves the
sum by :math:`(\|x\|^4 + \|y\|^4 - 2 (x^\top y)^2)^{1/2} \le \sqrt{2}`. Both
hold for truncated entries: none gets longer, and all stay non-negative, so
that of two users the inner product is not negative.

**Pairs** (:func:`pair_mus`). Let :math:`S = A m + \mathcal{N}(0, s^2 I)` with
messages of norm at most 1; :math:`K = |E| + \mathcal{N}(0, c^2)`; and for
:math:`t = 1, \ldots, T` let :math:`G_t = \sum_{e \in E} \mathrm{clip}_C(g_t(
\phi_e)) + \mathcal{N}(0, z^2 C^2 I)`, where each edge is in the sum **once**,
and :math:`\phi_e` and :math:`g_t` are functions of :math:`S, K, G_1, \ldots,
G_{t-1}`, of the pair and of what is public. Then all of these together are
:math:`\mu`-GDP in one edge, with :math:`\mu^2 = \Delta^2 / s^2 + 1 / c^2 + T /
z^2` and :math:`\Delta` as above. *Proof.* Given what was released before,
:math:`E` and :math:`E \setminus e` differ in one summand of each :math:`G_t`,
of norm at most :math:`C`, in one of :math:`K`, and by :math:`\Delta` in
:math:`A m`; Gaussian releases compose so adaptively. Steps that add gradients
of public pairs, or divide by :math:`K`, are post-processing; to divide by
:math:`|E|`, or to leave edges out of the public pairs, is none. On the grid a
summand is truncated, so that it is not longer, and :math:`|E|` is counted by
one truncated number.

**Owners.** Under ``'node'`` the record of :math:`v` is its features and its
own list. Let lists have energy 1, and :math:`G_t = \sum_v
\mathrm{clip}_C(g_{t,v})` plus noise, where :math:`g_{t,v}` is a function of
the record of :math:`v` **alone**, of what is public and of earlier releases,
and 0 for a blank one. One summand of each :math:`G_t` differs: :math:`\mu^2 =
\Delta^2 (1 / s^2 + T / z^2)`, with 1 to withdraw a record, 2 to replace it.
"""

import math

import numpy as np

from .noise import SHIFT

#: An integer of a release is smaller than this.
MOST = 2**62
# A normal double times 2^-32 is exact from here on, and sums stay finite.
_LEAST_STD, _MOST_STD = 2.0**-900, 2.0**900


def grid(std: float) -> float:
    """Return the grid of a release, exactly: the deviation times 2^-32.

    Args:
        std (float): standard deviation of the noise.

    Raises:
        ValueError: if the product is not exact, or sums may overflow.
    """
    if not _LEAST_STD <= std <= _MOST_STD:
        raise ValueError(
            "'std' needs to be between 2**-900 and 2**900 for a release on a "
            f'grid (got {std})'
        )
    return math.ldexp(std, -SHIFT)


def check_sum(size: float, std: float, name: str = 'std') -> None:
    """Refuse a sum that does not fit into 62 bits of the grid.

    Args:
        size (float): a public bound of the sizes that are added up.
        std (float): standard deviation of the noise.
        name (str): whose fault it would be. (default: :obj:`'std'`)
    """
    if not size / grid(std) < MOST / 2:
        raise ValueError(
            f'{name!r} is too small for exact sums: what is added up may be '
            f'{size:.3g}, which does not fit into 62 bits at a resolution of '
            f'2**-{SHIFT} times {std:.3g}'
        )


def fits_float(size: float, std: float) -> bool:
    """Test whether float64 adds these integers exactly.

    By the public numbers of :func:`check_sum` alone, so that the way of a sum
    tells nothing.
    """
    return size / grid(std) < 2**53 / 2


def truncated(x: np.ndarray, std: float) -> np.ndarray:
    """Return numbers on the grid, towards zero, as float64 integers.

    Args:
        x (ndarray): float64, finite.
        std (float): standard deviation of the noise.
    """
    made = x / grid(std)
    return np.trunc(made, out=made)


def rounded(x: np.ndarray, std: float) -> np.ndarray:
    """Return numbers on the grid as :func:`truncated` does, to the nearest."""
    made = x / grid(std)
    return np.rint(made, out=made)


def widened(std: float, share: float) -> float:
    """Return a deviation larger by a share, rounded up.

    Args:
        std (float): standard deviation of the noise.
        share (float): by what part of it rounding adds to the sensitivity.
    """
    return math.nextafter(std * math.nextafter(1 + share, math.inf), math.inf)


def released(k: np.ndarray, cells: np.ndarray, std: float) -> np.ndarray:
    """Return a release: the noisy integers, on their grid.

    Args:
        k (ndarray): int64, or float64 integers: the private sum.
        cells (ndarray): int64, of the same shape: noise of
            :func:`pyg_trust.verify.noise.cells`.
        std (float): standard deviation of the noise.

    Returns:
        ndarray: float64: a function of the sum and :obj:`std` alone.
    """
    noisy = k.astype(np.int64, copy=False) + cells
    return noisy.astype(np.float64) * grid(std)


def sensitivity(
    relation: str,
    directed: bool,
    form: str,
    max_degree: int | None = None,
    num_classes: int | None = None,
) -> float:
    r"""Return how far sums of messages of neighbouring data are apart.

    Args:
        relation (str): ``'edge'``, ``'user'``, or one of nodes.
        directed (bool): whether edges are arcs.
        form (str): ``'withdraw'`` or ``'replace'``; any of an edge.
        max_degree (int, optional): :math:`D`; 1 by default.
            (default: :obj:`None`)
        num_classes (int, optional): :math:`C`, of messages of classes.
            (default: :obj:`None`)
    """
    if relation == 'edge':
        return 1.0 if directed else math.sqrt(2)
    if relation == 'user':
        return 1.0 if form == 'withdraw' else math.sqrt(2)
    moved = math.sqrt(1 if max_degree is None else max_degree)
    if form == 'withdraw':
        return moved
    classes = max(2, num_classes or 2)
    return math.sqrt(2 * classes / (classes - 1)) * moved


def pair_mus(
    row_std: float,
    count_std: float | None,
    z: float,
    steps: int,
    directed: bool,
    form: str = 'either',
) -> tuple[float, float, float]:
    r"""Return :math:`\mu` in rows, count and steps; without one, of owners."""
    if count_std is None:
        moved = sensitivity('node', directed, form)
        return moved / row_std, 0.0, moved * math.sqrt(steps) / z
    moved = sensitivity('edge', directed, 'either')
    return moved / row_std, 1 / count_std, math.sqrt(steps) / z
