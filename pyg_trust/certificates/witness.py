"""Witnesses: the vectors from which a certificate is proved again."""

import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pyg_trust._checks import check_instance, validated
from pyg_trust.kernel import proofs

# A larger one is left out of a certificate.
MOST_BYTES = 64 * 2**20


class Witness:
    """All that a robustness certificate is proved from, as arrays.

    It holds the logits and the edges: personal data where these are. Delete
    it with a removal.

    Args:
        arrays (dict): as :func:`pyg_trust.kernel.proofs.prove` takes them.
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
        """Copy tensors and texts; return the witness and its digest.

        Args:
            tensors (dict): by name, on any device.
            texts (dict): by name.
        """
        arrays = {
            name: value.detach().cpu().contiguous().numpy().copy()
            for name, value in tensors.items()
        }
        made = cls({**arrays, **{k: np.array(x) for k, x in texts.items()}})
        return made, made.digest

    @validated
    def prove(self, most: float = math.inf) -> list[int]:
        """Prove again which targets are robust (1) or broken (-1).

        Nothing is solved, and nothing of what found the certificate is used
        (:mod:`pyg_trust.kernel.proofs`). A 0 is neither.

        Args:
            most (float): how many numbers may be looked at, about.
                (default: ``math.inf``)

        Raises:
            ValueError: if it is no witness.
            OverflowError: if it is more work than that.
        """
        if math.isnan(most):
            raise ValueError("'most' can't be NaN")
        return proofs.prove(self.arrays, most)

    @validated
    def save(self, path: str | os.PathLike) -> None:
        """Write it to a new file, ``.npz`` without pickle.

        Args:
            path (str): of the file, which may not be there yet.
        """
        held = io.BytesIO()
        values: dict[str, Any] = self.arrays
        np.savez(held, **values)
        with open(path, 'xb') as file:
            file.write(held.getvalue())

    @classmethod
    @validated
    def load(cls, path: str | os.PathLike) -> 'Witness':
        """Read a file of :meth:`save`; nothing in it is executed.

        Args:
            path (str): of the file.

        Raises:
            ValueError: if it is damaged or no witness.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(
                f"'path' needs to be a witness, whole and undamaged "
                f'({Path(path).name}: {error})'
            ) from None
        return cls(arrays)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Witness):
            return NotImplemented
        # Arrays can be written to, so a digest may be older than they are.
        return proofs.digest(self.arrays) == proofs.digest(other.arrays)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f'Witness(digest={self.digest[:16]!r})'
