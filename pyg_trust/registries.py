"""Registries: all extension points, listed on one page.

Each is a mapping of names to functions or classes, and takes more of them:

.. code-block:: python

    from pyg_trust.registries import MEASURES

    @MEASURES.register('two_hops')
    def two_hops(weight=0.5):
        return Measure(0, 1, (1 - weight, 0.0, weight), name='two_hops')

========================= ====================================================
registry                  named by
========================= ====================================================
:obj:`MEASURES`           ``measure`` of :class:`~pyg_trust.transforms.AGP`
                          and all else that propagates
:obj:`PARTITIONS`         ``method`` of :class:`~pyg_trust.transforms.Shards`,
                          ``partition`` of the sharded unlearner
:obj:`AGGREGATORS`        ``aggregator`` of the sharded unlearner
:obj:`ACCOUNTANTS`        ``accountant`` of private training
:obj:`NOISES`             ``noise`` of private training
:obj:`ATTACKS`            ``tests`` of :func:`~pyg_trust.audit.audit_removal`
:obj:`CERTIFICATES`       kinds of threats, for
                          :func:`~pyg_trust.certificates.certify`
========================= ====================================================

A name that is taken stays what it is. What a user registers is not checked by
this package: reports that rest on it say so, and guarantees that are proved
for one entry alone (the ``'hash'`` partition, the votes of ``'majority'``)
are not given for another.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from pyg_trust._checks import check_callable, check_choice, check_instance

#: How reports speak of what users added; a page of reports looks for it.
UNCHECKED = 'not checked by this package'

_HOMES = {
    'ACCOUNTANTS': 'privacy.accountant',
    'ATTACKS': 'audit.attacks',
    'AGGREGATORS': 'unlearning.aggregate',
    'CERTIFICATES': 'certificates.any_model',
    'MEASURES': 'agp.measures',
    'NOISES': 'noise',
    'PARTITIONS': 'transforms.shards',
}

Entry = TypeVar('Entry')
Made = TypeVar('Made')


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Mapping from names to functions or classes of one kind.

    Args:
        kind (str): the kind of the entries, for messages.
        check (callable, optional): ``check(name, entry)`` raises if an entry
            is none of this kind. (default: :obj:`None`)
        facts (tuple[str, ...]): the names of texts that are registered along
            with every entry. (default: :obj:`()`)
        homes (tuple[str, ...]): the modules that register this package's
            entries, imported when the registry is first read.
            (default: :obj:`()`)
    """

    def __init__(
        self,
        kind: str,
        check: Callable[[str, Any], None] | None = None,
        facts: tuple[str, ...] = (),
        homes: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self._homes = homes
        self._check = check
        self._names = facts
        self._entries: dict[str, Entry] = {}
        self._facts: dict[str, dict[str, str]] = {}
        self._own: set[str] = set()

    def _all(self) -> dict[str, Entry]:
        homes, self._homes = self._homes, ()
        for home in homes:
            importlib.import_module(f'pyg_trust.{home}')
        return self._entries

    def __getitem__(self, name: str) -> Entry:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.kind!r}, {list(self)})'

    def register(self, name: str, **facts: str) -> Callable[[Made], Made]:
        """Register the decorated object as an entry of the user.

        Args:
            name (str): the name of the entry in arguments, not taken yet.
            **facts (str): the texts of the entry.
        """
        self._all()
        return self._add(name, facts, own=True)

    def builtin(self, name: str, **facts: str) -> Callable[[Made], Made]:
        """Register the decorated object as an entry of this package."""
        return self._add(name, facts, own=False)

    def _add(
        self, name: str, facts: dict[str, str], own: bool
    ) -> Callable[[Made], Made]:
        check_instance('name', name, str)
        if not name.isprintable() or not name.strip():
            raise ValueError(
                f"'name' needs to be a printable word (got {name!r})"
            )
        for fact in (*self._names, *facts):
            if fact not in facts or fact not in self._names:
                raise TypeError(
                    f"'facts' of a {self.kind} need to be {self._names} "
                    f'(got {tuple(facts)})'
                )
            check_instance(fact, facts[fact], str)

        def add(entry: Made) -> Made:
            if name in self._entries:
                whose = 'by the user' if name in self._own else 'here'
                raise ValueError(
                    f"'name' needs to be new: the {self.kind} {name!r} is "
                    f'registered {whose} (taken are {tuple(self)})'
                )
            check_callable('entry', entry)
            if self._check is not None:
                self._check(name, entry)
            self._entries[name] = entry  # type: ignore[assignment]
            self._facts[name] = dict(facts)
            if own:
                self._own.add(name)
            return entry

        return add

    def remove(self, name: str) -> None:
        """Remove an entry of the user."""
        check_choice('name', name, self._own)
        self._own.remove(name)
        del self._entries[name], self._facts[name]

    def find(self, argument: str, name: str) -> Entry:
        """Return the entry of a name, or refuse it as an argument's value."""
        check_choice(argument, name, self)
        return self._entries[name]

    def fact(self, name: str, fact: str) -> str:
        """Return a text that was registered along with an entry."""
        return self._facts[name][fact]

    def name_of(self, entry: Any) -> str | None:
        """Return the name of an entry, if the entry is registered."""
        for name, known in self._entries.items():
            if known is entry:
                return name
        return None

    def is_own(self, name: str) -> bool:
        """Return whether an entry is the user's, not built in."""
        return name not in self._entries or name in self._own

    def note(self, name: str) -> str:
        """Describe a user's entry for reports."""
        return f'the {self.kind} {name!r}, registered by the user, {UNCHECKED}'


def __getattr__(name: str) -> Any:
    # From where all entries of this package are registered.
    if name in _HOMES:
        module = importlib.import_module(f'pyg_trust.{_HOMES[name]}')
        return getattr(module, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted(_HOMES)
