"""Releases on a public grid: integers of bounded numbers, and exact noise.

What is protected becomes integers on the grid sigma 2^-32; sums of integers
are exact, and with the cells of ``noise`` a release is the ideal Gaussian
mechanism for them. Sensitivities are bounded in integers, too.
See docs/theory/proofs.rst.
"""

import math

import numpy as np

from .noise import SHIFT

#: An integer of a release is smaller than this.
MOST = 2**62
# A normal double times 2^-32 is exact from here on, and sums stay finite.
_LEAST_STD, _MOST_STD = 2.0**-900, 2.0**900


def grid(std: float) -> float:
    """Return the grid of a release, exactly: the deviation times 2^-32."""
    if not _LEAST_STD <= std <= _MOST_STD:
        raise ValueError(
            "'std' needs to be between 2**-900 and 2**900 for a release on a "
            f'grid (got {std})'
        )
    return math.ldexp(std, -SHIFT)


def check_sum(size: float, std: float, name: str = 'std') -> None:
    """Refuse a sum that does not fit into 62 bits of the grid."""
    if not size / grid(std) < MOST / 2:
        raise ValueError(
            f'{name!r} is too small for exact sums: what is added up may be '
            f'{size:.3g}, which does not fit into 62 bits at a resolution of '
            f'2**-{SHIFT} times {std:.3g}'
        )


def fits_float(size: float, std: float) -> bool:
    """Test whether float64 adds these integers exactly.

    By the public numbers of :func:`check_sum` alone, so that the way of a sum
    reveals nothing.
    """
    return size / grid(std) < 2**53 / 2


def truncated(x: np.ndarray, std: float) -> np.ndarray:
    """Return numbers on the grid, towards zero, as float64 integers."""
    made = x / grid(std)
    return np.trunc(made, out=made)


def rounded(x: np.ndarray, std: float) -> np.ndarray:
    """Return numbers on the grid as :func:`truncated` does, to the nearest."""
    made = x / grid(std)
    return np.rint(made, out=made)


def widened(std: float, share: float) -> float:
    """Return a deviation larger by a share, rounded up."""
    return math.nextafter(std * math.nextafter(1 + share, math.inf), math.inf)


def released(k: np.ndarray, cells: np.ndarray, std: float) -> np.ndarray:
    """Return a release: the noisy integers, on their grid.

    Returns:
        ndarray: float64: a function of the sum and :obj:`std` alone.
    """
    noisy = k.astype(np.int64, copy=False) + cells
    return noisy.astype(np.float64) * grid(std)


def sensitivity(
    adjacency: str,
    directed: bool,
    neighboring: str,
    max_degree: int | None = None,
    num_classes: int | None = None,
) -> float:
    r"""Return how far sums of messages of neighbouring data are apart."""
    if adjacency == 'edge':
        return 1.0 if directed else math.sqrt(2)
    if adjacency == 'user':
        return 1.0 if neighboring == 'add_remove' else math.sqrt(2)
    moved = math.sqrt(1 if max_degree is None else max_degree)
    if neighboring == 'add_remove':
        return moved
    classes = max(2, num_classes or 2)
    return math.sqrt(2 * classes / (classes - 1)) * moved


def in_ledgers(adjacency: str, neighboring: str) -> dict[str, str]:
    """Return what ledgers call these, in names that no version changes."""
    form = 'withdraw' if neighboring == 'add_remove' else neighboring
    return {'relation': adjacency, 'form': form}


def pair_mus(
    row_std: float,
    count_std: float | None,
    z: float,
    steps: int,
    directed: bool,
    neighboring: str = 'either',
) -> tuple[float, float, float]:
    r"""Return :math:`\mu` in rows, count and steps; without one, of owners."""
    if count_std is None:
        moved = sensitivity('node', directed, neighboring)
        return moved / row_std, 0.0, moved * math.sqrt(steps) / z
    moved = sensitivity('edge', directed, 'either')
    return moved / row_std, 1 / count_std, math.sqrt(steps) / z
