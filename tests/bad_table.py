"""The table of bad inputs: its entries, and what they share."""

import atexit
import math
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from bad_inputs import (
    PATH,
    SEED,
    Kind,
    Row,
    any_graph,
    choice,
    constraints_of,
    data,
    edge_indices,
    entry_points,
    hinted,
    instance,
    integer,
    number,
    parameters,
    sized,
    tensor,
    values,
)

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


class Entry(NamedTuple):
    make: Callable[[], Any]
    kinds: dict[str, Kind]
    rows: tuple[Row, ...]
    names: dict[str, str]


TABLE: dict[str, Entry] = {}

# What an argument of this name is, wherever an entry says nothing else.
NAMED: dict[str, Kind] = {
    **dict.fromkeys(('model', 'noise', 'request', 'threat'), instance()),
    **dict.fromkeys(
        ('adjacency', 'duplicates', 'low_pass', 'measure', 'method', 'name'),
        choice(),
    ),
    'neighboring': choice(none=True),
    'data': data(),
    'graph': any_graph(),
    'edge_index': edge_indices(6),
    'edge_type': values(3, 'a'),
    'edge_weight': tensor(none=True),
    'num_nodes': integer(6),
    'num_shards': integer(1, 6),
    'path': PATH,
    'columns': values(0, -1, 2.5, None, 'all', True),
    'memory': values(0, -1, 2.5, 'lots', True),
    **dict.fromkeys(('directed', 'start_is_public'), values(3, None, 'a')),
    **dict.fromkeys(('ledger', 'ledger_head'), values(3, ['a'])),
    't': values('a', [1.0], 0.5),
    'eps': number(0, closed='low'),
    'threshold': values('a', None, math.nan, -1.0, True, [0.5]),
    'seed': SEED,
    'alpha': number(0, 1),
    'delta': number(0, 1),
    'K': integer(0, none=True),
    'tol': number(0, 1),
    'reference': values(3, ['a'], 'a', 'G' * 32, 'a' * 33),
}


def entry(
    key: str,
    make: Callable[[], Any],
    *rows: Row,
    names: dict[str, str] | None = None,
    **kinds: Kind,
) -> None:
    """Adds an entry.

    Args:
        key: as :func:`entry_points` has it.
        make: makes the arguments, by name; of a method, the object too.
        rows: what several arguments together make bad.
        names: by argument, what the error names if not the argument.
        kinds: by argument.
    """
    assert key not in TABLE, key
    assert set(kinds) <= set(parameters(entry_points()[key])), key
    TABLE[key] = Entry(make, kinds, rows, names or {})


def kind_of(key: str, name: str) -> Kind | None:
    """The kind that the table, the hint that is checked, or the name says.

    Else that of the hint, which some other check of the package has to know.
    """
    found, checked = constraints_of(entry_points()[key])
    hint = hinted(found.get(name))
    if hasattr(found.get(name), 'shape'):
        hint = sized(found, name)
    kinds = TABLE[key].kinds.get(name), hint if checked else None
    return next(
        (kind for kind in (*kinds, NAMED.get(name), hint) if kind is not None),
        None,
    )
