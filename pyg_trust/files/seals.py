"""Seals: digests of items that reveal nothing without their salt."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import report
from pyg_trust._checks import check_instance, check_tensor

__all__ = ['Seals', 'content', 'sealed']

_HELD = ('edge_index', 'edge_weight', 'x', 'x_removed', 'n_id', 'y', 'shard')
# The number of neighbouring items that are hashed together.
_BLOCK = 1024


def content(data: Data, *context: str | int | float) -> str:
    """Hash a graph's contents for its seal; do not store the hash.

    It has no salt: whoever has it can test guesses of the graph.

    Args:
        data (Data): the graph.
        *context (str or int or float): further values that belong to the item.
    """
    parts: list[Tensor | str] = []
    for key in _HELD:
        value = data.get(key)
        if value is None:
            continue
        parts.append(key)
        if value.layout == torch.sparse_csr:
            parts += [value.crow_indices(), value.col_indices()]
            value = value.values()
        parts.append(value)
    return report.fingerprint(*context, *parts)


def sealed(root: str, *held: str | int | float | Tensor) -> str:
    """Return a digest of a :class:`Seals` root and further values.

    The values are no secret beside the data, or the root's salt hides them.

    Args:
        root (str): the root, :attr:`Seals.root`.
        *held (str or int or float or Tensor): the further values.
    """
    return report.fingerprint('state', root, *held)


class Seals:
    r"""Digest of the items of a state, under a salt of this state.

    The root is :math:`\mathrm{HMAC}(s, h)`: a hash :math:`h` of the names and
    contents of all items, under 256 random bits :math:`s`, the salt. Every
    change draws another salt and destroys the old one: no guess of the earlier
    contents can then be tested. An object is never changed.

    Args:
        contents (dict): the content of each item, a text from :func:`content`,
            by an integer name. (default: :obj:`None`)

    Example:
        >>> seals = Seals({0: 'a', 1: 'b'})
        >>> seals.fits({0: 'a', 1: 'c'})
        False
        >>> seals.replaced({1: 'c'}).root == seals.root
        False
    """

    def __init__(self, contents: Mapping[int, str] | None = None) -> None:
        # Hashes of items by name, by block; and of whole blocks.
        self._items: dict[int, dict[int, bytes]] = {}
        self._blocks: dict[int, bytes] = {}
        self._old: dict[str, Tensor] = {}
        self._take(contents or {}, (), secrets.token_bytes(32))

    @property
    def root(self) -> str:
        """Digest of all items: 64 hexadecimal digits."""
        return self._root

    def replaced(
        self, changed: Mapping[int, str], gone: Iterable[int] = ()
    ) -> 'Seals':
        """Return the seals after a change, under a new salt.

        Args:
            changed (dict): the contents of new and of changed items, by name.
            gone (list[int]): the names of removed items. (default: :obj:`()`)
        """
        made = Seals()
        made._items, made._blocks = dict(self._items), dict(self._blocks)
        made._take(changed, gone, secrets.token_bytes(32))
        return made

    def fits(self, contents: Mapping[int, str]) -> bool:
        """Return whether these are the contents of all items, by name."""
        return self._items == Seals(contents)._items

    def state_dict(self) -> dict[str, Tensor]:
        """Return the salt, uint8 ``[32]``; keep it secret."""
        salt = torch.frombuffer(bytearray(self._salt), dtype=torch.uint8)
        return dict(self._old) or {'salt': salt}

    @classmethod
    def of(
        cls, state: dict[str, Tensor], contents: Mapping[int, str]
    ) -> 'Seals':
        """Rebuild the seals of a saved state; compare the root afterwards.

        Args:
            state (dict): the result of :meth:`state_dict`.
            contents (dict): the contents of all items, by name.
        """
        check_instance('state', state, dict)
        made = cls(contents)
        if 'salts' in state:
            from pyg_trust.files.old import root_01

            made._root, made._old = root_01(state, contents), dict(state)
            return made
        salt: Any = state.get('salt')
        check_tensor('state', salt, torch.uint8, (32,))
        made._take({}, (), salt.numpy().tobytes())
        return made

    def _take(
        self, contents: Mapping[int, str], gone: Iterable[int], salt: bytes
    ) -> None:
        lost = [*gone]
        touched = {
            at: dict(self._items.pop(at, {}))
            for at in {name // _BLOCK for name in (*contents, *lost)}
        }
        for name in lost:
            touched[name // _BLOCK].pop(name, None)
        for name, text in contents.items():
            made = hashlib.sha256(text.encode()).digest()
            touched[name // _BLOCK][name] = made
        for at, items in touched.items():
            self._blocks.pop(at, None)
            if items:
                parts = (b'%d ' % name + items[name] for name in sorted(items))
                self._items[at] = items
                self._blocks[at] = hashlib.sha256(b''.join(parts)).digest()
        whole = hashlib.sha256()
        for at in sorted(self._blocks):
            whole.update(b'%d ' % at + self._blocks[at])
        self._salt = salt
        self._root = hmac.digest(salt, whole.digest(), 'sha256').hex()
