"""Witnesses: arrays from which a certificate can be proved again."""

import io
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from pyg_trust import files
from pyg_trust._checks import check_instance, validated
from pyg_trust.verify import proofs
from pyg_trust.verify.accounting import FAILS, HOLDS, NOT_PROVED

__all__ = ['Proved', 'Witness']

# A larger witness is left out of a certificate.
MOST_BYTES = 64 * 2**20


class Witness:
    """Arrays that prove a robustness certificate.

    They contain the logits and the edges, which may be personal data: delete
    the witness when you remove a person.

    Args:
        arrays (dict[str, numpy.ndarray]): the arrays, by name.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        check_instance('arrays', arrays, dict)
        for name, value in arrays.items():
            check_instance(f'arrays[{name!r}]', value, np.ndarray)
        self.arrays = arrays
        self.digest = proofs.digest(arrays)

    @classmethod
    def of(
        cls, tensors: dict[str, Tensor], texts: dict[str, str]
    ) -> tuple['Witness', str]:
        """Copy tensors and texts, both by name, to a witness.

        Returns:
            tuple[Witness, str]: the witness, and its SHA-256 digest.
        """
        arrays = {
            name: value.detach().cpu().contiguous().numpy().copy()
            for name, value in tensors.items()
        }
        witness = cls({**arrays, **{k: np.array(x) for k, x in texts.items()}})
        return witness, witness.digest

    @validated
    def prove(self, most: float = math.inf) -> list[int]:
        """Prove which targets are robust or broken, from the arrays alone.

        Args:
            most (float): about how many numbers the proof may read.

        Returns:
            list[int]: for each target 1 if it is proved to be robust, -1 if it
            is proved to be broken, else 0.

        Raises:
            ValueError: if the arrays are no witness.
            OverflowError: if the proof needs to read more than :obj:`most`.
        """
        if math.isnan(most):
            raise ValueError("'most' can't be NaN")
        return proofs.prove(self.arrays, most)

    @validated
    def save(self, path: str | os.PathLike) -> None:
        """Write the arrays to a ``.npz`` file, which is replaced."""
        content = _file(_small(self.arrays))
        if proofs.digest(proofs.load(content)) != proofs.digest(self.arrays):
            # Arrays that are no certificate may have no small form.
            content = _file(self.arrays)
        files.write(os.fspath(path), content.getvalue())

    @classmethod
    @validated
    def load(cls, path: str | os.PathLike) -> 'Witness':
        """Read a witness from a file of :meth:`save`, without pickle.

        Args:
            path (str): the path of the file.
        """
        try:
            return cls(proofs.load(Path(path)))
        except ValueError as error:
            raise ValueError(
                f"'path' needs to be a witness, whole and undamaged "
                f'({Path(path).name}: {error})'
            ) from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Witness):
            return NotImplemented
        # Arrays can be written to, so a digest may be older than they are.
        return proofs.digest(self.arrays) == proofs.digest(other.arrays)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f'Witness(digest={self.digest[:16]!r})'


class Proved:
    """Mixin: certificate that can be proved again from its witness."""

    proof: Witness | None
    witness_digest: str
    # What proves it, and what it states.
    _kernel: ClassVar[ModuleType]
    _fields: Callable[[], dict[str, Any]]

    def verify(self, witness: Witness | None = None) -> str:
        """Prove the certificate again from its witness.

        Nothing is used of the code that found the certificate: the kernel
        (``pyg_trust.verify``) proves each number in integers that round
        outwards.

        Args:
            witness (Witness, optional): a witness read from a file; by default
                ``proof``. (default: :obj:`None`)

        Returns:
            str: ``'holds'``; ``'FAILS'`` if the witness is that of another
            certificate; ``'not proved'`` if there is none, or it proves less
            than the certificate states.
        """
        witness = self.proof if witness is None else witness
        if witness is None:
            return NOT_PROVED
        check_instance('witness', witness, Witness)
        if proofs.digest(witness.arrays) != self.witness_digest:
            self._kernel.read(witness.arrays)
            return FAILS
        found = {*self._judged(witness.arrays)}
        return next((s for s in (FAILS, NOT_PROVED) if s in found), HOLDS)

    def _judged(self, arrays: dict[str, np.ndarray]) -> Iterator[str]:
        judged = self._kernel.judge(arrays, self._fields(), math.inf)
        return (status for status, _ in judged)


def _file(arrays: dict[str, Any]) -> io.BytesIO:
    held = io.BytesIO()
    np.savez(held, **arrays)
    return held


def _small(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Make arrays as narrow as their values allow; ``proofs.load`` widens."""
    small: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        if value.dtype == np.int64 and value.size:
            small[name] = value.astype(
                np.promote_types(
                    np.min_scalar_type(value.min()),
                    np.min_scalar_type(value.max()),
                )
            )
        elif value.dtype == np.float64 and value.ndim and value.size:
            small.update(_units(name, value))
        else:
            small[name] = value
    bits = _bits(arrays)
    if bits is not None:
        del small['flips'], small['flips_ptr']
        small['flips.bits'] = bits
    return small


def _units(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    # Store whole numbers in at most six bytes, if they convert back exactly.
    if not (np.abs(value) < 2.0**100).all():
        return {name: value}
    single = value.astype(np.float32)
    if np.array_equal(single, value):
        return {name: single}
    mantissa, exponent = np.frexp(value)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    lowest = np.frexp((whole & -whole).astype(float))[1] + exponent
    places = int(54 - lowest[whole != 0].min())
    units = np.ldexp(value, places)
    top = float(np.abs(units).max())
    if top >= 2.0**47 or ((value == 0) & np.signbit(value)).any():
        return {name: value}
    width = (math.frexp(top)[1] + 8) // 8
    held = units.astype('<i8')[..., None].view(np.uint8)[..., :width]
    return {
        f'{name}.units': held.copy(),
        f'{name}.places': np.array(places, dtype=np.int16),
    }


def _bits(arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    # Flags, per graph, of the fragile edges that flip.
    try:
        graphs, _ = proofs.read(arrays)
    except ValueError:
        return None
    edges, (row, col) = proofs.fragile(graphs), arrays['flips']
    key, count = row * len(graphs.budget) + col, np.diff(arrays['flips_ptr'])
    # Use flags if they take no more bits than the list of numbers.
    few = len(count) * len(edges) <= 64 * key.size
    if not few or not np.isin(key, edges).all():
        return None
    bits = np.zeros((len(count), len(edges)), dtype=bool)
    at = np.repeat(np.arange(len(count)), count)
    bits[at, np.searchsorted(edges, key)] = True
    return np.packbits(bits, axis=1)
