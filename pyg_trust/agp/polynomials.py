r"""Save levels at a certified error: series in Chebyshev polynomials.

Take a measure with :math:`a + b = 1` on an undirected graph. Its operator
:math:`P = D^{-a} A D^{-b}` is similar to the symmetric :math:`N = D^{-1/2} A
D^{-1/2}`,

.. math::
    P = D^{1/2-a} N D^{a-1/2},

whose eigenvalues lie in :math:`[-1, 1]`. Write the series as :math:`p(t) =
\sum_i w_i t^i = \sum_j c_j T_j(t)`, with the Chebyshev polynomials
:math:`T_j`, and cut it after :math:`j = k`. As :math:`|T_j| \le 1` on
:math:`[-1, 1]`, the symmetric matrices :math:`T_j(N)` have no norm above one,
and the result :math:`z_k` of :math:`k` levels is off by

.. math::
    \lVert D^{a-1/2} (z_k - z) \rVert_F \le \Big( \sum_{j>k} |c_j| \Big)
    \lVert D^{a-1/2} x \rVert_F,

the plain Frobenius norm for :math:`a = 1/2`. (At a node of degree zero
:math:`P = 0`, and any weight will do in place of :math:`D^{a-1/2}`.) This
holds for every graph and every signal and is known before anything is
computed; it is in exact arithmetic, and rounding comes on top.

For :math:`w_i \ge 0` every :math:`c_j \ge 0`, because :math:`t^i = 2^{1-i}
\sum_{m \le i/2} \binom{i}{m} T_{i-2m}` (the last term halved if its index is
zero), so that nothing cancels in the tail. It falls by :math:`\alpha' = (1 -
\alpha) / (1 + \sqrt{1 - (1 - \alpha)^2})` a level for PageRank instead of by
:math:`1 - \alpha`.

Nothing of this holds on directed graphs, whose eigenvalues are complex:
:math:`T_j` grows exponentially off the interval.

The sum is evaluated by Clenshaw's recursion (``csrc/horner.h``), not by powers
of :math:`P`, whose weights would grow like :math:`2^k` and cancel. Its levels
:math:`u_j = \sum_{i \ge j} c_i U_{i-j}(P) x` are larger than :math:`z` where
the series is slow: they have up to :math:`\sum_{i \ge j} (i - j + 1) |c_i|`
times the norm of :math:`x`, as :math:`|U_i| \le i + 1`. The rounding error of
:math:`u_j` enters :math:`z` by :math:`T_j(P)`, whose norm is at most one, so
that a relative rounding of :math:`\delta` a level adds up to at most

.. math::
    \delta \sum_{i=1}^{k} \frac{i (i + 1)}{2} |c_i|

times the norm of :math:`x`; for levels in float16 :math:`\delta = 2^{-11}`.
For PageRank this is 0.003 at :math:`\alpha = 0.1` and 0.2 at :math:`\alpha =
0.001`, where a constant signal on a cycle has been seen to be off by 0.01.
"""

from typing import NamedTuple

import numpy as np

from pyg_trust._checks import NotNegative, validated
from pyg_trust.agp.measures import Measure


class Chebyshev(NamedTuple):
    r"""Truncated series of a measure in Chebyshev polynomials.

    Args:
        coefficients (tuple[float, ...]): :math:`c_0, \ldots, c_k`.
        bound (float): :math:`\sum_{j>k} |c_j|`, relative to the sum of the
            weights.
    """

    coefficients: tuple[float, ...]
    bound: float

    @property
    def levels(self) -> int:
        """The number of levels :math:`k`."""
        return len(self.coefficients) - 1


@validated
def chebyshev(measure: Measure, tol: NotNegative) -> Chebyshev:
    r"""Cut a measure's series to the fewest levels within a tolerance.

    The bound of this module's text holds for :math:`a + b = 1` on undirected
    graphs; :func:`pyg_trust.agp.propagate` refuses the rest.

    Args:
        measure (Measure): the series.
        tol (float): the largest :math:`\sum_{j>k} |c_j| / \sum_i w_i`; 0 to
            cut off nothing.

    Raises:
        ValueError: if :obj:`tol` is negative or not finite, or the measure has
            not :math:`a + b = 1`, or a :obj:`shrink` above one.

    Example:
        >>> from pyg_trust.agp import heat
        >>> heat(5.0, tol=1e-6).levels, chebyshev(heat(5.0, tol=1e-6), 1e-6)[1]
        (19, ...)
    """
    if abs(measure.a + measure.b - 1) > 1e-12 or measure.shrink > 1:
        raise ValueError(
            "'tol' needs a measure with a + b = 1 and no shrink above 1: no "
            f'bound is known otherwise (got {measure})'
        )
    coefficients = np.polynomial.chebyshev.poly2cheb(measure.weights)
    total = sum(measure.weights)
    # tails[k] sums the terms after level k, the smallest first.
    tails = np.append(np.abs(coefficients)[::-1].cumsum()[::-1], 0.0)[1:]
    # Rounding of up to one part in 2^52 for each of the additions.
    slack = 1 + 4 * len(coefficients) * np.finfo(np.float64).eps
    bounds = tails / total * slack
    levels = int(np.argmax(bounds <= tol))
    return Chebyshev(
        tuple(coefficients[: levels + 1].tolist()), float(bounds[levels])
    )
