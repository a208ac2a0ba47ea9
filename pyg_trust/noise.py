r"""Noise and secret choices: where the randomness of privacy comes from.

Noise that protects somebody has to be unknown to everybody else. It comes from
the operating system's generator (:class:`SecureNoise`) unless the user asks
for a repeatable run with an explicit seed (:class:`SeededNoise`), and then
every report says so first (:data:`SEEDED`): whoever knows or guesses the seed
draws the same noise and subtracts it. No default generator of torch or numpy
plays a part, so that ``seed_everything`` can't fix a secret.

Of private training three streams are drawn. Which subgraphs there are (the
*partition*) may be public. Which of them a step draws (the *batch*) and the
*noise* have to stay secret: whoever can predict either undoes amplification
or the whole of the guarantee.
"""

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import gammainc, gammaincc
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_instance,
    check_integer,
    check_share,
    check_tensor,
)
from pyg_trust._registry import Registry

# Its home is where sentences are made.
from pyg_trust.kernel.sentences import SEEDED  # noqa: F401

Bytes = Callable[[int], bytes]

#: Where the bits of secret noise come from: functions from a number to so many
#: random bytes, by name. Private training takes a name; noisy releases
#: (:class:`~pyg_trust.transforms.PrivateAGP`,
#: :class:`~pyg_trust.privacy.PrivateNodeClassifier`) and certified removal
#: draw from the operating system whatever is registered.
NOISES: Registry[Bytes] = Registry('noise')
SYSTEM = 'system'


@NOISES.builtin(SYSTEM)
def system(count: int) -> bytes:
    """The operating system's cryptographic generator, :func:`os.urandom`.

    Args:
        count (int): how many bytes.
    """
    return os.urandom(check_integer('count', count, 0))


# Of the test whether a release has the noise that it should (p_value).
LEAST_P_VALUE = 1e-9

# Summing 2n Gaussians costs an attacker who inverts the floating-point
# arithmetic 2^(53 (2n - 1)) tries.
_SUMMED = 4
# So many at a time: what they are made of is forty times as large.
_PIECE = 2**16


class SeededNoise:
    """Noise of a seed: for experiments that have to be repeated.

    It hides nothing from somebody who knows the seed or tries the likely
    ones. Use :class:`SecureNoise` for a release.

    Args:
        seed (int, optional): the seed, all bits of which matter.
            (default: :obj:`None`)
    """

    secure = False

    def __init__(self, seed: int | None = None) -> None:
        self._stream = rng.stream(rng.resolve(seed))

    def normal(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Standard Gaussians, float64, on the CPU."""
        _check_shape(shape)
        drawn = np.asarray(self._stream.standard_normal(tuple(shape)))
        return torch.from_numpy(drawn)

    def uniform(self, count: int) -> np.ndarray:
        """Uniform numbers in (0, 1)."""
        check_integer('count', count, 0)
        return np.clip(self._stream.random(count), 2.0**-53, 1 - 2.0**-53)

    def choose(self, count: int, size: int) -> np.ndarray:
        """Draws :obj:`size` of :obj:`count` uniformly without replacement.

        Args:
            count (int): how many there are.
            size (int): how many to choose.

        Returns:
            ndarray: int64, ``[size]``, in no particular order.
        """
        check_integer('count', count, 1)
        check_integer('size', size, 0, count)
        return self._stream.choice(count, size, replace=False)


class SecureNoise:
    r"""Noise and choices of the operating system's cryptographic generator.

    Every bit comes from :func:`os.urandom`: there is no seed that could leak
    or be guessed, no state that a checkpoint could restore, and no draw that
    tells of another. Uniform numbers of 53 bits become Gaussians by the
    transform of Box and Muller in float64, and four of them, summed and
    halved, become one (`Holohan and Braghin 2021, section 5.1
    <https://arxiv.org/abs/2107.10138>`_): which gradient a noisy one came
    from can be read off the low bits of a *single* floating-point Gaussian
    (`Mironov 2012 <https://doi.org/10.1145/2382196.2382264>`_), while here
    about :math:`2^{53 \cdot 3}` combinations would have to be tried. Noise is
    added in float64 and the sum is rounded to the type of the parameters.

    What it does *not* do: it is a defence against known attacks, not a proof
    for finite arithmetic (a proof needs discrete noise); uniform numbers end
    at :math:`2^{-53}`, so that a Gaussian stays below 17.2; and time taken
    and memory left behind tell what they tell.

    Args:
        source (callable): maps a number to so many random bytes.
            (default: :func:`os.urandom`)
    """

    secure = True

    def __init__(self, source: Bytes = os.urandom) -> None:
        check_callable('source', source)
        self._source = source

    def uniform(self, count: int) -> np.ndarray:
        r"""Uniform numbers on the grid :math:`2^{-53} \{1, ..., 2^{53}\}`."""
        check_integer('count', count, 0)
        word = np.frombuffer(self._source(8 * count), dtype=np.uint64)
        return ((word >> np.uint64(11)) + np.uint64(1)) * 2.0**-53

    def normal(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Standard Gaussians, float64, on the CPU."""
        _check_shape(shape)
        count = math.prod(shape)
        out = np.empty(count)
        for start in range(0, count, _PIECE):
            size = min(_PIECE, count - start)
            # Cosine and sine of a draw make two, which are independent.
            radius, angle = self.uniform(size * _SUMMED).reshape(2, -1, size)
            radius = np.sqrt(-2 * np.log(radius))
            angle = 2 * math.pi * angle
            total = (radius * (np.cos(angle) + np.sin(angle))).sum(0)
            out[start : start + size] = total / math.sqrt(_SUMMED)
        return torch.from_numpy(out).view(shape)

    def choose(self, count: int, size: int) -> np.ndarray:
        """So many of :obj:`count`, uniformly without replacement.

        Those with the least of :obj:`count` random words of 64 bits; on a
        tie, which would favour one, all are drawn again.

        Args:
            count (int): how many there are.
            size (int): how many to choose.

        Returns:
            ndarray: int64, ``[size]``, in no particular order.
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
    """The noise of a procedure: the system's, or that of an explicit seed.

    Args:
        seed (int, optional): makes a run repeatable, and not private; its
            report has to begin with :data:`SEEDED`. (default: :obj:`None`)
        kind (str): an entry of :obj:`NOISES`, for secret noise; a report has
            to name one that is not of this package.
            (default: :obj:`'system'`)

    Raises:
        ValueError: if there is no such entry, or it comes with a seed.
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


def coins(
    source: SecureNoise | SeededNoise, count: int, rate: float
) -> np.ndarray:
    r"""Those of :obj:`count` for which a coin shows heads, independently.

    The coin of :class:`SecureNoise` has a probability of at most
    :obj:`rate`, and :math:`2^{-53}` less at most.

    Args:
        source (SecureNoise or SeededNoise): what throws them.
        count (int): how many there are.
        rate (float): the probability of each, in :math:`[0, 1]`.

    Returns:
        ndarray: int64, increasing.
    """
    check_instance('source', source, SecureNoise, SeededNoise)
    check_integer('count', count, 0)
    check_share('rate', rate)
    return np.flatnonzero(source.uniform(count) <= rate)


def _check_shape(shape: torch.Size | tuple[int, ...]) -> None:
    check_instance('shape', shape, tuple)
    for size in shape:
        check_integer('shape', size, 0)


def p_value(drawn: Tensor) -> float:
    """How likely Gaussians have so large or so small a norm.

    By the chi-squared distribution of the square, two-sided.

    Args:
        drawn (Tensor): float64, ``[d, num_columns]``: what should be
            standard Gaussians.
    """
    shape = ('d', 'num_columns')
    check_tensor('drawn', drawn, torch.float64, shape, finite=True)
    half, count = float(drawn.square().sum()) / 2, drawn.numel() / 2
    below, above = gammainc(count, half), gammaincc(count, half)
    return float(min(1.0, 2 * min(below, above)))
