"""Seeds and random streams, all made in this module.

Every random function takes ``seed: int | None``. A given seed gives the same
result for any number of threads or workers, because each draw is keyed by the
seed and by *what* is drawn, never by the thread that draws it. All 63 bits of
a seed matter: torch's own ``manual_seed`` ignores the high half.

Nothing here is secret. Noise and keys that protect somebody come from the
operating system: :mod:`pyg_trust.noise`.
"""

import contextlib
import hashlib
import operator
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import check_integer, check_tensor

__all__ = [
    'derive',
    'derive_each',
    'forked',
    'generator',
    'resolve',
    'resolve_secret',
    'stream',
]

_MASK = 2**64 - 1


def resolve(seed: int | None, name: str = 'seed') -> int:
    """Return a checked seed: an integer in :math:`[0, 2^{63})`.

    With None, a seed is drawn from torch's default generator, so that
    :func:`torch.manual_seed` decides which. ``name`` is for errors.
    """
    if seed is None:
        return int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    if isinstance(seed, bool):
        raise TypeError(
            f"'{name}' needs to be an integer or None (got a bool)"
        )
    try:
        seed = operator.index(seed)
    except TypeError:
        raise TypeError(
            f"'{name}' needs to be an integer or None "
            f'(got {type(seed).__name__})'
        ) from None
    if not 0 <= seed < 2**63:
        raise ValueError(f"'{name}' needs to be in [0, 2**63) (got {seed})")
    return seed


def resolve_secret(seed: int | None) -> int:
    """Return a checked seed, in :math:`[0, 2^{63})`.

    With None, the operating system draws a secret one.
    """
    return secrets.randbits(63) if seed is None else resolve(seed)


def _mix(word: Any) -> Any:
    # Of an integer, or of an array of uint64, which wraps around by itself.
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def derive(seed: int, *items: int) -> int:
    """Derive the seed of a part of a procedure from the seed of the whole.

    Args:
        seed (int): the seed of the whole; it and the result are in
            :math:`[0, 2^{63})`.
        *items (int): non-negative integers that number the part, such as 3, 7
            for shard 3 in epoch 7.

    Example:
        >>> derive(0, 1) == derive(0, 1), derive(0, 1) == derive(0, 2)
        (True, False)
    """
    key = check_integer('seed', seed, 0)
    for item in items:
        check_integer('items', item, 0)
        key = _mix(key ^ _mix(item & _MASK))
    return key >> 1


def derive_each(seed: int, items: Tensor) -> Tensor:
    """Return ``derive(seed, item)`` for each item of an int64 tensor.

    Items are non-negative, of any shape, which the result has too.
    """
    check_integer('seed', seed, 0)
    check_tensor('items', items, torch.int64, getattr(items, 'shape', ()))
    words = items.cpu().numpy().astype(np.uint64).reshape(-1)
    key = (_mix(seed ^ _mix(words)) >> 1).astype(np.int64)
    return torch.from_numpy(key).view(items.shape).to(items.device)


@contextlib.contextmanager
def forked(seed: int) -> Iterator[None]:
    """Seed torch's default generator with ``seed`` inside a ``with`` block.

    After the block, the CPU's generator is in its earlier state. Those of
    other devices are seeded, too, and not restored.
    """
    check_integer('seed', seed, 0)
    with torch.random.fork_rng(devices=[]):
        # Without this, torch queues the call, and its stack, for a device.
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        torch.set_rng_state(generator(seed).get_state())
        yield


def generator(seed: int | None) -> torch.Generator:
    """Return a new torch generator on the CPU, seeded with ``seed``.

    All bits of the seed count. With None, it is drawn from torch's default
    generator.
    """
    seed = resolve(seed)
    made = torch.Generator().manual_seed(seed)
    state = made.get_state()
    # The 624 words of the Mersenne Twister, one in each eight bytes, are kept
    # behind three numbers; torch fills them from 32 bits of the seed.
    words = stream(seed).integers(2**32, size=624, dtype=np.uint64)
    state[24 : 24 + 8 * 624] = torch.from_numpy(words.view(np.uint8))
    made.set_state(state)
    return made


def stream(seed: int, *items: int) -> np.random.Generator:
    """Return a numpy generator for one part of a procedure.

    Args:
        seed (int): the seed, from :func:`resolve`.
        *items (int): non-negative integers that number the part. Other numbers
            give an independent generator.

    Example:
        >>> stream(0).random() == stream(2**32).random()
        False
    """
    check_integer('seed', seed, 0)
    for item in items:
        check_integer('items', item, 0)
    # Hash the list as text: numpy's SeedSequence takes [1] for [1, 0].
    digest = hashlib.sha256(repr([seed, *items]).encode()).digest()
    key = int.from_bytes(digest[:16], 'big')
    return np.random.Generator(np.random.Philox(key=key))
