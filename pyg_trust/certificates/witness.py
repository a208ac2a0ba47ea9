"""Witnesses: the vectors from which a certificate is proved again."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from pyg_trust._checks import check_instance
from pyg_trust.kernel import pagerank

# A larger one is left out of a certificate.
MOST_BYTES = 64 * 2**20


class Witness:
    """All that a robustness certificate is proved from, as arrays.

    It holds the logits and the edges: personal data where these are. Delete
    it with a removal.

    Args:
        arrays (dict): as :func:`pyg_trust.kernel.pagerank.prove` takes them.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        check_instance('arrays', arrays, dict)
        for name, value in arrays.items():
            check_instance(f'arrays[{name!r}]', value, np.ndarray)
        self.arrays = arrays
        self.digest = pagerank.digest(arrays)

    def prove(self) -> list[bool]:
        """Prove again which targets are robust: a bool for each."""
        return pagerank.prove(self.arrays)

    def save(self, path: str | os.PathLike) -> None:
        """Write it to a new file, ``.npz`` without pickle.

        Args:
            path (str): of the file, which may not be there yet.
        """
        check_instance('path', path, str, os.PathLike)
        held = io.BytesIO()
        values: dict[str, Any] = self.arrays
        np.savez(held, **values)
        with open(path, 'xb') as file:
            file.write(held.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike) -> 'Witness':
        """Read a file of :meth:`save`; nothing in it is executed.

        Args:
            path (str): of the file.

        Raises:
            ValueError: if it is damaged or no witness.
        """
        check_instance('path', path, str, os.PathLike)
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
        return pagerank.digest(self.arrays) == pagerank.digest(other.arrays)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f'Witness(digest={self.digest[:16]!r})'
