"""Gaussian noise rounded to integers, exactly.

A cell is the integer nearest to 2^32 Z, a function of a stream of fair bits: a
table of polynomials decides it nearly always, integers otherwise. Adding cells
to integers on a grid is the ideal Gaussian mechanism, rounded to the grid.
See docs/theory/proofs.rst.
"""

import hashlib
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache
from math import factorial, inf, nextafter
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from .intervals import root, tail

Bytes = Callable[[int], bytes]

#: A cell is 2^-SHIFT standard deviations wide.
SHIFT = 32
_K = 6
_DEGREE = 6
_OCTAVES = 20
# Words processed at a time, so that they and their results fit into the cache.
_PIECE = 2**14
# A word needs ten more with a probability below 2^-600.
_MOST_WORDS = 10
# The table is the same on every machine: integers and decimals round exactly.
DIGEST = '2b5b74289685135e4cfba7d4cc6b2cf55d0c32326783ffb6bd52a782ad585fb5'


def _is_below(m: int, v: int, known: int, b: int) -> bool | None:
    """Compare :math:`|Z|` with :math:`m / 2^b`; None if v is too short."""
    bits = known + 17
    while True:
        low, high = tail(m, b, bits)
        # v / 2 lies between these two, in units of 2^-bits.
        least = v << (bits - known - 1)
        most = (v + 1) << (bits - known - 1)
        if least >= high:
            return True
        if most <= low:
            return False
        if least < low and high < most:
            return None
        bits += 64


def magnitude(v: int, known: int, b: int = SHIFT) -> int | None:
    """Return the integer nearest to :math:`2^b |Z|`, by integers alone.

    Returns:
        int: the cell, or None if these bits do not decide it.
    """
    # A starting point: the result does not depend on it.
    guess = -NormalDist().inv_cdf((v + 0.5) / 2 ** (known + 1))
    n = max(0, round(guess * 2**b))
    while True:
        is_less = _is_below(2 * n + 1, v, known, b + 1)
        if is_less is None:
            return None
        if not is_less:
            n += 1
            continue
        is_least = n == 0 or _is_below(2 * n - 1, v, known, b + 1)
        if is_least is None:
            return None
        if n == 0 or not is_least:
            return n
        n -= 1


def settle(word: int, more: Iterator[int]) -> int | None:
    """Return the cell of a stream of bits, by integers alone.

    Returns:
        int: the integer nearest to :math:`2^{32} Z`, or None if the stream
        ended before its bits decided.
    """
    sign, v, known = word >> 63, word & (2**63 - 1), 63
    while (found := magnitude(v, known)) is None:
        extra = next(more, None)
        if extra is None:
            return None
        v, known = (v << 64) | extra, known + 64
    return -found if sign else found


class Table(NamedTuple):
    """The polynomials of the segments, and how close is too close.

    Args:
        coefficients (ndarray): float64, ``[7, 1281]``: :math:`c_0` to
            :math:`c_6` of each segment, octave by octave; 0 in the last row,
            which stands for :math:`e >= 20`.
        room (ndarray): float64, ``[1281]``: :math:`1/2 - E`, rounded down; -1
            in the last row.
    """

    coefficients: np.ndarray
    room: np.ndarray

    def digest(self) -> str:
        """Return the SHA-256 of all entries."""
        both = self.coefficients.tobytes() + self.room.tobytes()
        return hashlib.sha256(both).hexdigest()


@lru_cache(None)
def _polynomials(count: int) -> list[list[int]]:
    """Return :math:`P_1` to :math:`P_{count}`, lowest power first."""
    found = [[1]]
    for r in range(1, count):
        old = [0, *found[-1], 0, 0]
        # The power i of P_r' and of r x P_r.
        found.append([(i + 1) * old[i + 2] + r * old[i] for i in range(r + 1)])
    return found


def _density(x: Decimal) -> Decimal:
    return Decimal(sum(root(256))) / 2**257 * (-x * x / 2).exp()


def _quantile(p: Decimal) -> Decimal:
    r"""Return :math:`x = Q^{-1}(p)`, at most 5.3, to :math:`2^{-80}`.

    Newton's step from :math:`x_0` leaves an error of
    :math:`\xi \varphi(\xi) / (2 \varphi(x_0)) (x - x_0)^2`, with a
    :math:`\xi` between :math:`x` and :math:`x_0`, as :math:`Q'' = x \varphi`.
    """
    start = -NormalDist().inv_cdf(float(p))
    m, base = start.as_integer_ratio()
    value = Decimal(sum(tail(m, base.bit_length() - 1, 160))) / 2**161
    x = Decimal(start)
    step = (value - p) / _density(x)
    if abs(step) > Decimal(2) ** -42:
        raise ArithmeticError("Newton's method starts too far away")
    return x + step


def _segment(e: int, j: int) -> tuple[list[Decimal], Decimal]:
    """Return :math:`c_0` to :math:`c_n` of a segment, and its :math:`E`."""
    scale, n = Decimal(2**SHIFT), _DEGREE

    def term(q: int, x: Decimal) -> Decimal:
        power = Decimal(0)
        for c in reversed(_polynomials(n + 1)[q - 1]):
            power = power * x + c
        return scale * power * (h / _density(x)) ** q / factorial(q)

    # p of the segment: from 2^-(e+2) (1 + j / 2^K), and 2 h wide.
    h = Decimal(2) ** -(e + 3 + _K)
    outer = 2 * h * (2**_K + j)
    x = _quantile(outer + h)
    c = [scale * x] + [(-1) ** q * term(q, x) for q in range(1, n + 1)]
    error = term(n + 1, _quantile(outer))
    for q, value in enumerate(c):
        gamma = Decimal(3 * q + 3) / (2**53 - (3 * q + 3))
        error += abs(value) * (gamma + q * Decimal(2) ** -(61 - e - _K))
    # Quantiles are good to 2^-80, other steps to 10^-49 of each number: what
    # c_0 can be off by, and more than all else.
    error += Decimal(2) ** (SHIFT - 80)
    return c, error * (1 + Decimal(2) ** -60)


def make_table() -> Table:
    """Compute the polynomials, and the error of each."""
    count = _OCTAVES << _K
    coefficients = np.zeros((_DEGREE + 1, count + 1))
    room = np.full(count + 1, -1.0)
    # The context of the caller plays no part.
    with localcontext(Context(50, ROUND_HALF_EVEN, -(10**6), 10**6)):
        for row in range(count):
            c, error = _segment(*divmod(row, 1 << _K))
            coefficients[:, row] = [float(value) for value in c]
            # Down, whatever way the last two steps were rounded.
            room[row] = nextafter(float(Decimal('0.5') - error), -inf)
    for values in (coefficients, room):
        values.flags.writeable = False
    return Table(coefficients, room)


#: The table of this process, made at first use.
table = lru_cache(None)(make_table)


def quick(words: np.ndarray, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Find the cells of words by the table.

    Returns:
        tuple: int64, ``[n]``: the cells; bool, ``[n]``: whether a word is
        open, so that its cell has to come from :func:`settle`.
    """
    v = words << np.uint64(1)
    # Leave no two neighbouring bits at the top, so that float64 does not round
    # up to the next power of two.
    top = v >> np.uint64(1)
    np.bitwise_and(v, ~top, out=top)
    e = np.int64(1086) - (top.astype(np.float64).view(np.int64) >> 52)
    v <<= e.view(np.uint64)
    row = (v >> np.uint64(63 - _K)).view(np.int64)
    # The leading 1 of v is in the segment: 2^K e + (2^K + j) - 2^K.
    e <<= _K
    row += e
    row -= 1 << _K
    v <<= np.uint64(1 + _K)
    v ^= np.uint64(2**63)
    t = v.view(np.int64).astype(np.float64)
    t *= 2.0**-63
    y = table.coefficients[_DEGREE].take(row, mode='clip')
    c = np.empty_like(y)
    for q in range(_DEGREE - 1, -1, -1):
        y *= t
        y += table.coefficients[q].take(row, mode='clip', out=c)
    f = np.rint(y)
    y -= f
    np.abs(y, out=y)
    is_open = y >= table.room.take(row, mode='clip', out=c)
    found = f.astype(np.int64)
    sign = words.view(np.int64) >> 63
    found ^= sign
    found -= sign
    return found, is_open


def cells(source: Bytes, count: int) -> np.ndarray:
    """Draw independent cells: the integers nearest to :math:`2^{32} Z`.

    Words are read first, eight bytes a cell; then eight bytes at a time for
    those whose bits do not decide yet, in their order.

    Returns:
        ndarray: int64, ``[count]``.

    Raises:
        RuntimeError: if the table is not the one whose error is proved.
        ValueError: if the source returns too few bytes, or bytes that no
            random source returns.
    """
    made = table()
    if made.digest() != DIGEST:
        raise RuntimeError(
            'the table of the noise has changed in memory: no noise is drawn'
        )

    def read(size: int) -> np.ndarray:
        found = source(8 * size)
        if len(found) != 8 * size:
            raise ValueError(
                f"'source' needs to return {8 * size} bytes (got {len(found)})"
            )
        return np.frombuffer(found, dtype='<u8').astype(np.uint64, copy=False)

    out = np.empty(count, dtype=np.int64)
    waiting: list[tuple[int, int]] = []
    for start in range(0, count, _PIECE):
        words = read(min(_PIECE, count - start))
        out[start : start + len(words)], is_open = quick(words, made)
        waiting += [
            (start + int(i), int(words[i])) for i in np.flatnonzero(is_open)
        ]
    for i, word in waiting:
        more = (int(read(1)[0]) for _ in range(_MOST_WORDS))
        found = settle(word, more)
        if found is None:
            raise ValueError(
                "'source' returned bytes that are not random: "
                f'{_MOST_WORDS + 1} words did not decide one number'
            )
        out[i] = found
    return out
