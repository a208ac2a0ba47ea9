"""Marks of attributes that hold features propagated over the graph.

``data.propagated`` names these attributes. The transforms AGP and PrivateAGP
write it, PyG keeps it in copies and subgraphs, and private training refuses
what it names. Set it by hand where such features come from elsewhere.
``data.own_of`` is the digest of the privacy unit for which features along
metapaths are a person's own. ``data.privacy_unit`` names the table of persons
of the graph's privacy unit; a graph that has it is refused where each row is
protected alone.
"""

from typing import Any

from torch_geometric.data import Data
from torch_geometric.data.storage import BaseStorage


def marked(data: Data | BaseStorage) -> tuple[str, ...]:
    """Return the names of attributes that are marked as propagated."""
    names, todo = [], [data.get('propagated', ())]
    while todo:
        value = todo.pop(0)
        if isinstance(value, str):
            names.append(value)
        elif isinstance(value, tuple | list):
            todo[:0] = value  # a batch has the names of each graph
        else:
            raise TypeError(
                "'data.propagated' needs to hold names of attributes (got "
                f'{type(value).__name__})'
            )
    return tuple(dict.fromkeys(names))


def mark(data: Data | BaseStorage, attr: str) -> None:
    """Mark an attribute as propagated, in place."""
    data.propagated = tuple(dict.fromkeys((*marked(data), attr)))


def declare(data: Any, person: str | None) -> None:
    """Mark a graph as one of persons of several rows, in place."""
    data.privacy_unit = person or 'persons'


def check_rows(data: Any) -> None:
    """Refuse a graph of persons where each row is protected alone."""
    person = data.get('privacy_unit') if isinstance(data, Data) else None
    if person is not None:
        raise ValueError(
            "'data' needs rows that are protected one by one (got a graph for "
            f'which a PrivacyUnit of {person!r} was declared, whose persons '
            'may be several rows): use UnitLoader(data, unit, batch_size) or '
            'DisjointWalkLoader(data, batch_size, 0, unit=unit); if each '
            "person is one row, take the mark off by 'del data.privacy_unit'"
        )
