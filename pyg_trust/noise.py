r"""Sources of noise and secret choices: the randomness behind privacy.

Noise that protects somebody has to be unknown to everybody else. It comes from
the operating system's generator (:class:`SecureNoise`) unless the user asks
for a repeatable run with an explicit seed (:class:`SeededNoise`), and then
every report says so first. No default generator of torch or numpy plays a
part, so that ``seed_everything`` can't fix a secret.
"""

import math
import os

import numpy as np
import scipy
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    Natural,
    Share,
    check_callable,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust.registries import Registry

# Defined where sentences are made.
from pyg_trust.verify.declare import SEEDED  # noqa: F401
from pyg_trust.verify.noise import SHIFT, Bytes, cells

__all__ = [
    'NOISES',
    'SecureNoise',
    'SeededNoise',
    'coins',
    'p_value',
    'source',
]

#: Where the bits of secret noise of private training come from: functions from
#: a number to so many random bytes, by name.
NOISES: Registry[Bytes] = Registry('noise')
SYSTEM = 'system'


@NOISES.builtin(SYSTEM)
def system(count: int) -> bytes:
    """Return random bytes of the operating system, :func:`os.urandom`."""
    return os.urandom(check_integer('count', count, 0))


# The level of the test that a release has its noise (p_value).
LEAST_P_VALUE = 1e-9


class _Noise:
    """Noise of bits that a source gives."""

    secure: bool

    def __init__(self, source: Bytes) -> None:
        check_callable('source', source)
        self._source = source

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'

    def random_bytes(self, count: int) -> bytes:
        """Draw a number of random bytes."""
        return self._source(check_integer('count', count, 0))

    def cells(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Draw noise of a release: integers nearest to 2^32 Z, for Gaussian Z.

        They are int64, on the CPU.
        """
        check_instance('shape', shape, tuple)
        for size in shape:
            check_integer('shape', size, 0)
        drawn = cells(self._source, math.prod(shape))
        return torch.from_numpy(drawn).view(shape)

    def normal(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Draw standard Gaussians on the grid 2^-32: float64, on the CPU.

        A float that is added to them is no release: see :meth:`cells`.
        """
        return self.cells(shape).double().mul_(2.0**-SHIFT)


class SeededNoise(_Noise):
    """Noise from a seed, for experiments that have to be repeatable.

    It protects nothing: somebody who tries the likely seeds can subtract it.

    Args:
        seed (int, optional): a seed in :math:`[0, 2^{63})`, all bits of which
            count; by default torch's generator draws one.
    """

    secure = False

    def __init__(self, seed: int | None = None) -> None:
        self._stream = rng.stream(rng.resolve(seed))
        super().__init__(self._stream.bytes)

    def uniform(self, count: int) -> np.ndarray:
        """Draw uniform numbers in (0, 1).

        Args:
            count (int): how many; a float64 array of this length is returned.
        """
        check_integer('count', count, 0)
        return np.clip(self._stream.random(count), 2.0**-53, 1 - 2.0**-53)

    def choose(self, count: int, size: int) -> np.ndarray:
        """Choose items without replacement: an int64 array of positions.

        Args:
            count (int): the number of items.
            size (int): how many of them are chosen.
        """
        check_integer('count', count, 1)
        check_integer('size', size, 0, count)
        return self._stream.choice(count, size, replace=False)


class SecureNoise(_Noise):
    """Noise and random choices from the operating system's secure generator.

    A standard Gaussian :math:`Z` is drawn as the integer nearest to
    :math:`2^{32} Z`, exactly. It is added to a sum of integers, whose last
    bits then reveal nothing; those of floats would (`Mironov 2012
    <https://doi.org/10.1145/2382196.2382264>`_). It does *not* protect against
    a weak generator, the measured time of a draw, or memory left behind.

    Args:
        source (callable): returns as many random bytes as it is asked for.
            (default: :func:`os.urandom`)
    """

    secure = True

    def __init__(self, source: Bytes = os.urandom) -> None:
        super().__init__(source)

    def uniform(self, count: int) -> np.ndarray:
        """Draw uniform numbers in (0, 1], multiples of :math:`2^{-53}`.

        Args:
            count (int): how many; a float64 array of this length is returned.
        """
        check_integer('count', count, 0)
        word = np.frombuffer(self._source(8 * count), dtype=np.uint64)
        return ((word >> np.uint64(11)) + np.uint64(1)) * 2.0**-53

    def choose(self, count: int, size: int) -> np.ndarray:
        """Choose items without replacement: an int64 array of positions.

        Args:
            count (int): the number of items.
            size (int): how many of them are chosen.
        """
        check_integer('count', count, 1)
        check_integer('size', size, 0, count)
        while True:
            word = np.frombuffer(self._source(8 * count), dtype=np.uint64)
            order = np.argsort(word, kind='stable')
            ranked = word[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order[:size]


def source(
    seed: int | None = None, kind: str = SYSTEM
) -> SecureNoise | SeededNoise:
    """Make a source of noise: a secret one, or from a given seed.

    Args:
        seed (int, optional): a seed, which makes a run repeatable and not
            private; by default the noise is secret.
        kind (str): the kind of secret noise, an entry of
            :obj:`pyg_trust.registries.NOISES`. (default: :obj:`'system'`)

    Returns:
        SecureNoise or SeededNoise: the latter if there is a seed.
    """
    draw = NOISES.find('kind', kind)
    if seed is not None:
        if kind != SYSTEM:
            raise ValueError(
                f"'kind' needs to be {SYSTEM!r} with a 'seed' (got {kind!r})"
            )
        return SeededNoise(seed)
    if not NOISES.is_own(kind):
        return SecureNoise()

    def checked(count: int) -> bytes:
        found = draw(count)
        if not isinstance(found, bytes) or len(found) != count:
            raise ValueError(
                f'{NOISES.note(kind)}, needs to return {count} bytes (got '
                f'{type(found).__name__})'
            )
        return found

    return SecureNoise(checked)


@validated
def coins(
    source: SecureNoise | SeededNoise, count: Natural, rate: Share
) -> np.ndarray:
    """Choose each item with the same probability: Poisson sampling.

    With :class:`SecureNoise` the probability is at most :math:`2^{-53}` below
    :obj:`rate`, and never above.

    Args:
        source (SecureNoise or SeededNoise): the source of the randomness.
        count (int): the number of items.
        rate (float): the probability of each item, in :math:`[0, 1]`.

    Returns:
        numpy.ndarray: the positions of the chosen items: int64, ascending.
    """
    return np.flatnonzero(source.uniform(count) <= rate)


def p_value(drawn: Tensor) -> float:
    """Test whether all entries are standard Gaussian; return the p-value.

    It is the two-sided p-value of the sum of squares, which is chi-squared
    distributed.

    Args:
        drawn (Tensor): float64, ``[num_rows, num_columns]``.
    """
    shape = ('d', 'num_columns')
    check_tensor('drawn', drawn, torch.float64, shape, finite=True)
    at = drawn.numel() / 2, float(drawn.square().sum()) / 2
    tails = scipy.special.gammainc(*at), scipy.special.gammaincc(*at)
    return float(min(1.0, 2 * min(tails)))
