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
from pyg_trust._checks import check_instance, check_integer, check_tensor

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
    check_instance('data', data, Data)
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
    check_instance('root', root, str)
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
        >>> seals.differing({0: 'a', 1: 'c'})
        (1,)
        >>> seals.replaced({1: 'c'}).root == seals.root
        False
    """

    def __init__(self, contents: Mapping[int, str] | None = None) -> None:
        # Hashes of items by name, by block; and of whole blocks.
        self._items: dict[int, dict[int, bytes]] = {}
        self._blocks: dict[int, bytes] = {}
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
        made = object.__new__(Seals)
        made._items, made._blocks = dict(self._items), dict(self._blocks)
        made._take(changed, gone, secrets.token_bytes(32))
        return made

    def differing(self, contents: Mapping[int, str]) -> tuple[int, ...]:
        """List the names whose content differs from the sealed one, ascending.

        Args:
            contents (dict): the contents of all items, by name; a name missing
                on one side differs.
        """
        mine, others = self._flat(), Seals(contents)._flat()
        return tuple(
            sorted(
                name
                for name in {*mine, *others}
                if mine.get(name) != others.get(name)
            )
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the salt, uint8 ``[32]``; keep it secret."""
        if self._salt is None:
            return dict(self._old)
        salt = torch.frombuffer(bytearray(self._salt), dtype=torch.uint8)
        return {'salt': salt}

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

            made._root = root_01(state, contents)
            made._salt, made._old = None, dict(state)
            return made
        salt: Any = state.get('salt')
        check_tensor('state', salt, torch.uint8, (32,))
        made._take({}, (), salt.numpy().tobytes())
        return made

    def _flat(self) -> dict[int, bytes]:
        items = self._items.values()
        return {name: each for block in items for name, each in block.items()}

    def _take(
        self, contents: Mapping[int, str], gone: Iterable[int], salt: bytes
    ) -> None:
        if not isinstance(contents, Mapping):
            raise TypeError(
                "'contents' needs to be a dictionary "
                f'(got {type(contents).__name__})'
            )
        touched: dict[int, dict[int, bytes]] = {}

        def block(name: int) -> dict[int, bytes]:
            at = name // _BLOCK
            if at not in touched:
                touched[at] = dict(self._items.get(at, {}))
            return touched[at]

        for name in gone:
            if block(name).pop(name, None) is None:
                raise ValueError(
                    f"'gone' needs to name items that are there (got {name})"
                )
        for name, text in contents.items():
            check_integer('contents', name, 0)
            check_instance('contents', text, str)
            block(name)[name] = hashlib.sha256(text.encode()).digest()
        for at, items in touched.items():
            self._items.pop(at, None)
            self._blocks.pop(at, None)
            if items:
                parts = (b'%d ' % name + items[name] for name in sorted(items))
                self._items[at] = items
                self._blocks[at] = hashlib.sha256(b''.join(parts)).digest()
        whole = hashlib.sha256()
        for at in sorted(self._blocks):
            whole.update(b'%d ' % at + self._blocks[at])
        self._salt: bytes | None = salt
        self._old: dict[str, Tensor] = {}
        self._root = hmac.digest(salt, whole.digest(), 'sha256').hex()

    def __repr__(self) -> str:
        return f'{type(self).__name__}(items={len(self._flat())})'
