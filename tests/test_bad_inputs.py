"""Bad inputs: what is declared, and what only a call together makes bad.

An argument whose hint is checked is refused wherever it is bad, which needs
no call that works. Each entry of :obj:`TABLE` is such a call; its rows are
what several arguments together make bad, its kinds (:mod:`bad_inputs`) what
no hint says. Every bad call has to be refused by the package itself, by a
``TypeError`` or ``ValueError`` that names the argument, with everything as it
was; and then the good call has to work, on the same objects.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import bad_certificates  # noqa: F401
import bad_ground  # noqa: F401
import bad_layers  # noqa: F401
import bad_privacy  # noqa: F401
import bad_unlearning  # noqa: F401
import pytest
from bad_inputs import (
    Row,
    all_functions,
    changed,
    complaint,
    constraints,
    declared,
    entry_points,
    leaves,
    parameters,
)
from bad_table import TABLE, kind_of

from pyg_trust._checks import validated

FOUND = entry_points()


def declarations() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that check their hints first, under any other wrapper."""
    checks = validated(lambda: None).__code__
    for key, function in all_functions():
        while getattr(function, '__code__', checks) is not checks:
            function = getattr(function, '__wrapped__', None)
        if inspect.isfunction(function):
            yield key, function


def test_what_is_declared_is_refused_by_every_function() -> None:
    wrong, tried = [], 0
    for key, function in declarations():
        first = next(iter(inspect.signature(function).parameters))
        owner = [None] * (first in ('self', 'cls'))
        for name in constraints(function):
            kind = declared(function, name)
            for label, bad in () if kind is None else kind(None):
                tried += 1
                try:
                    function(*owner, **{name: bad})
                except Exception as error:
                    said = complaint(error, f"'{name}\\b")
                else:
                    said = 'accepted'
                if said is not None:
                    wrong.append(f'{key}, {name}, {label}: {said}')
    assert not wrong, '\n'.join(wrong)
    assert tried > 3000


def bad_rows(key: str, arguments: dict[str, Any]) -> list[Row]:
    """Every bad call of an entry."""

    def named(name: str) -> str:
        return TABLE[key].names.get(name, f"'{name}\\b")

    made = []
    signature = inspect.signature(FOUND[key])
    for name in parameters(FOUND[key]):
        kind = kind_of(key, name)
        if kind is None:
            continue
        default = signature.parameters[name].default
        good = arguments.get(name, default)
        if good is None and not isinstance(default, type(None)):
            continue
        made += [
            Row(f'{name}: {label}', {name: bad}, named(name))
            for label, bad in kind(good)
        ]
    for row in TABLE[key].rows:
        if row.names is None:
            row = row._replace(names=named(next(iter(row.changes))))
        made.append(row)
    return made


def prepare(key: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable of an entry and arguments that work."""
    made = TABLE[key].make()
    if isinstance(made, tuple):
        owner, arguments = made
        return getattr(owner, key.rpartition('.')[2]), arguments
    return FOUND[key], made


def perform(call: Callable[..., Any], arguments: dict[str, Any]) -> None:
    made = call(**arguments)
    if isinstance(made, AbstractContextManager):
        with made:
            pass


@pytest.mark.parametrize('key', TABLE)
def test_bad_inputs_are_refused(key: str) -> None:
    call, arguments = prepare(key)
    before = leaves([call, arguments])
    wrong = []
    for row in bad_rows(key, arguments):
        bad = leaves(row.changes)
        try:
            perform(call, {**arguments, **row.changes})
        except Exception as error:
            said = complaint(error, row.names)
        else:
            said = 'accepted'
        moved = changed(before, leaves([call, arguments]))
        moved += changed(bad, leaves(row.changes))
        if said is None and moved:
            said = f'changes {sorted(moved)[:3]}'
        if said is not None:
            wrong.append(f'{row.label}: {said}')
            call, arguments = prepare(key)
            before = leaves([call, arguments])
    assert not wrong, '\n'.join([key, *wrong])
    try:
        perform(call, arguments)
    except ImportError as error:
        pytest.skip(str(error))


def test_functions_that_check_inside_are_tried_here() -> None:
    # `declared` by itself checks nothing: rows see whether a step inside does.
    trusted = {
        key
        for key, function in FOUND.items()
        if getattr(function, 'is_validated', False)
        and not hasattr(function, '__wrapped__')
    }
    assert trusted
    assert trusted <= set(TABLE)
