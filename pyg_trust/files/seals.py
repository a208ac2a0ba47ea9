"""Seals: salted digests of items, which reveal nothing without the salts."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import report
from pyg_trust._checks import check_instance, check_integer, check_tensor

_HELD = ('edge_index', 'edge_weight', 'x', 'x_removed', 'n_id', 'y', 'shard')


def _tensors(data: Data) -> list[Tensor | str]:
    # The contents of a graph, sparse features by rows.
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
    return parts


def content(data: Data, *context: str | int | float) -> str:
    """Hash a graph's contents for its seal; do not store the hash.

    It has no salt: whoever has it can test guesses of the graph.

    Args:
        data (Data): the graph.
        *context (str or int or float): further values that belong to the item.
    """
    check_instance('data', data, Data)
    return report.fingerprint(*context, *_tensors(data))


def sealed(root: str, *held: str | int | float | Tensor) -> str:
    """Return a digest of a :class:`Seals` root and further values.

    The values are no secret beside the data, or the root's salts hide them.

    Args:
        root (str): the root, :attr:`Seals.root`.
        *held (str or int or float or Tensor): the further values.
    """
    check_instance('root', root, str)
    return report.fingerprint('state', root, *held)


class Seals:
    r"""Salted digests of the items of a data set, with one common root.

    Every item :math:`i` has 256 random bits :math:`s_i` of its own, from the
    operating system, and the digest :math:`\mathrm{HMAC}(s_i, c_i)` of its
    content (SHA-256). The root is a hash of all names and digests, by way of
    the hashes of blocks of 1024 names, so that a change of one item costs a
    thousandth of the whole.

    A root in a ledger can be verified as long as all salts are there. **To
    forget an item is to destroy its salt**: :meth:`replaced` gives what
    changed a new one and drops those of what is gone. The old roots then
    depend on 256 bits that nobody has, and no guess of the old content can be
    tested against them, however few contents are possible and whatever else
    is known. What stayed can still be verified against the new root.

    An object is never changed, so that a failed removal leaves the old one.

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

    _BLOCK = 1024

    def __init__(self, contents: Mapping[int, str] | None = None) -> None:
        self._blocks: dict[int, _Block] = {}
        self._root = ''
        salted = {
            name: (secrets.token_bytes(32), text)
            for name, text in _checked_contents(contents or {}).items()
        }
        self._take(salted, ())

    @property
    def root(self) -> str:
        """Digest of all items: 64 hexadecimal digits."""
        return self._root

    @property
    def names(self) -> tuple[int, ...]:
        """The names of the items, in ascending order."""
        found = (block.sealed for block in self._blocks.values())
        return tuple(sorted(name for block in found for name in block))

    def digest(self, name: int) -> str:
        """Return the digest of an item: 64 hexadecimal digits."""
        check_integer('name', name, 0)
        block = self._blocks.get(name // self._BLOCK)
        if block is None or name not in block.sealed:
            raise ValueError(f"'name' needs to name an item (got {name})")
        return block.sealed[name][1].hex()

    def replaced(
        self, changed: Mapping[int, str], gone: Iterable[int] = ()
    ) -> 'Seals':
        """Return the seals after a change; salts of old contents are deleted.

        Args:
            changed (dict): the contents of new and of changed items, by name.
            gone (list[int]): the names of removed items. (default: :obj:`()`)

        Raises:
            ValueError: if something that is gone was not there.
        """
        salted = {
            name: (secrets.token_bytes(32), text)
            for name, text in _checked_contents(changed).items()
        }
        if not isinstance(gone, Iterable) or isinstance(gone, str):
            raise TypeError(
                f"'gone' needs to hold integers (got {type(gone).__name__})"
            )
        made = Seals()
        made._blocks = dict(self._blocks)
        made._take(salted, [check_integer('gone', name) for name in gone])
        return made

    def matches(self, name: int, content: str) -> bool:
        """Compare an item's content with its seal.

        Raises:
            ValueError: if there is no such item.
        """
        check_instance('content', content, str)
        known = self.digest(name)
        salt, _ = self._blocks[name // self._BLOCK].sealed[name]
        return _seal(salt, content).hex() == known

    def differing(self, contents: Mapping[int, str]) -> tuple[int, ...]:
        """List the names whose content differs from the sealed one, ascending.

        Args:
            contents (dict): the contents of all items, by name; a name missing
                on one side differs.
        """
        contents = _checked_contents(contents)
        known = {
            name: pair
            for block in self._blocks.values()
            for name, pair in block.sealed.items()
        }
        return tuple(
            sorted(
                name
                for name in {*known, *contents}
                if name not in known
                or name not in contents
                or _seal(known[name][0], contents[name]) != known[name][1]
            )
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the names, int64 ``[n]``, and salts, uint8 ``[n, 32]``."""
        names = self.names
        salts = b''.join(
            self._blocks[name // self._BLOCK].sealed[name][0] for name in names
        )
        flat = np.frombuffer(salts, dtype=np.uint8).reshape(-1, 32)
        return {
            'names': torch.tensor(names, dtype=torch.int64),
            'salts': torch.from_numpy(flat.copy()),
        }

    @classmethod
    def of(
        cls, state: dict[str, Tensor], contents: Mapping[int, str]
    ) -> 'Seals':
        """Rebuild the seals of a saved state from its contents.

        Compare its root with the recorded one.

        Args:
            state (dict): the result of :meth:`state_dict`.
            contents (dict): the contents of all items, by name.

        Raises:
            TypeError, ValueError: if the state is malformed, or not of these
                items.
        """
        check_instance('state', state, dict)
        contents = _checked_contents(contents)
        names, salts = state.get('names'), state.get('salts')
        check_tensor('state', names, torch.int64, ('n',))  # type: ignore
        assert isinstance(names, Tensor)
        shape = (names.numel(), 32)
        check_tensor('state', salts, torch.uint8, shape)  # type: ignore
        assert isinstance(salts, Tensor)
        listed = names.tolist()
        if set(listed) != set(contents) or len(listed) != len(contents):
            raise ValueError(
                "'state' needs to have salts for the items that are there "
                f'(got {len(listed)} for {len(contents)})'
            )
        made = cls()
        made._take(
            {
                name: (bytes(salt), contents[name])
                for name, salt in zip(listed, salts.numpy(), strict=True)
            },
            (),
        )
        return made

    def _take(
        self,
        salted: dict[int, tuple[bytes, str]],
        gone: Iterable[int],
    ) -> None:
        touched: dict[int, dict[int, tuple[bytes, bytes]]] = {}

        def block(name: int) -> dict[int, tuple[bytes, bytes]]:
            number = name // self._BLOCK
            if number not in touched:
                known = self._blocks.get(number)
                touched[number] = {} if known is None else dict(known.sealed)
            return touched[number]

        for name in gone:
            if block(name).pop(name, None) is None:
                raise ValueError(
                    f"'gone' needs to name items that are there (got {name})"
                )
        for name, (salt, text) in salted.items():
            block(name)[name] = (salt, _seal(salt, text))
        for number, sealed in touched.items():
            self._blocks.pop(number, None)
            if sealed:
                self._blocks[number] = _Block(sealed)
        whole = hashlib.sha256()
        for number in sorted(self._blocks):
            whole.update(f'{number} '.encode() + self._blocks[number].digest)
        self._root = whole.hexdigest()

    def __repr__(self) -> str:
        count = sum(len(block.sealed) for block in self._blocks.values())
        return f'{type(self).__name__}(items={count})'


class _Block:
    # Salts and digests of neighbouring names, and the hash of them.
    def __init__(self, sealed: dict[int, tuple[bytes, bytes]]) -> None:
        self.sealed = sealed
        parts = (b'%d ' % name + sealed[name][1] for name in sorted(sealed))
        self.digest = hashlib.sha256(b''.join(parts)).digest()


def _seal(salt: bytes, text: str) -> bytes:
    return hmac.digest(salt, text.encode(), 'sha256')


def _checked_contents(contents: Mapping[int, str]) -> dict[int, str]:
    if not isinstance(contents, Mapping):
        raise TypeError(
            "'contents' needs to be a dictionary "
            f'(got {type(contents).__name__})'
        )
    for name, text in contents.items():
        check_integer('contents', name, 0)
        check_instance('contents', text, str)
    return dict(contents)
