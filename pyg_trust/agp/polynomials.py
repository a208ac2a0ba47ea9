"""Save levels at a certified error: series in Chebyshev polynomials.

On undirected graphs with a + b = 1 the operator is similar to a symmetric one
with eigenvalues in [-1, 1], so that what is cut is bounded for every signal.
See docs/theory/propagation.rst.
"""

from typing import NamedTuple

import numpy as np

from pyg_trust._checks import NotNegative, validated
from pyg_trust.agp.measures import Measure

__all__ = ['Chebyshev', 'chebyshev']


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
