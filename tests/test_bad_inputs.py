"""One table of bad inputs: every public entry point, every argument.

Each entry of :obj:`TABLE` is a call that works, and the kind of each of its
arguments (:mod:`bad_inputs`). The kinds make bad values, one argument at a
time; rows add what only several arguments together make bad. Every bad call
has to be refused by the package itself, by a ``TypeError`` or ``ValueError``
that names the argument, with everything as it was; and then the good call
has to work, on the same objects.
"""

import functools
import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import bad_aggregation  # noqa: F401
import bad_certificates  # noqa: F401
import bad_erasure  # noqa: F401
import bad_functional  # noqa: F401
import bad_ground  # noqa: F401
import bad_layers  # noqa: F401
import bad_node  # noqa: F401
import bad_procedures  # noqa: F401
import bad_unit  # noqa: F401
import pytest
from bad_inputs import (
    Row,
    changed,
    complaint,
    entry_points,
    leaves,
    parameters,
)
from bad_table import EXEMPT, TABLE, kind_of

import pyg_trust
from pyg_trust._checks import declared

FOUND = entry_points()


def test_every_entry_point_is_in_the_table() -> None:
    known = set(TABLE) | set(EXEMPT)
    assert not set(FOUND) - known, 'needs an entry of the table'
    assert not known - set(FOUND), 'is gone'
    assert not set(TABLE) & set(EXEMPT)
    assert all(EXEMPT.values())


@pytest.mark.parametrize('key', TABLE)
def test_every_argument_has_a_kind(key: str) -> None:
    found = set(parameters(FOUND[key])) - {'self'}
    missing = {name for name in found if kind_of(key, name) is None}
    assert not missing, f'{key} needs a kind for {sorted(missing)}'
    unknown = set(TABLE[key].kinds) - found
    assert not unknown, f'{key} has no argument {sorted(unknown)}'


def bad_rows(key: str, arguments: dict[str, Any]) -> list[Row]:
    """Every bad call of an entry."""
    made = []
    signature = inspect.signature(FOUND[key])
    for name in parameters(FOUND[key]):
        kind = kind_of(key, name)
        assert kind is not None
        default = signature.parameters[name].default
        good = arguments.get(name, default)
        if good is None and not isinstance(default, type(None)):
            continue
        named = TABLE[key].names.get(name, f"'{name}\\b")
        made += [
            Row(f'{name}: {label}', {name: bad}, named)
            for label, bad in kind(good)
        ]
    return [*made, *TABLE[key].rows]


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
    needs = TABLE[key].needs
    if needs is not None:
        pytest.importorskip(needs)
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


def test_functions_declared_to_check_inside_are_tried_here() -> None:
    # `declared` by itself checks nothing: the rows above see whether a step
    # inside does.
    trusted = {
        key
        for key, function in FOUND.items()
        if getattr(function, 'is_validated', False)
        and not hasattr(function, '__wrapped__')
    }
    written = {
        f'{path.stem}.{name}'
        for path in Path(pyg_trust.__file__).parent.rglob('*.py')
        for name in re.findall(
            r'^ *@declared\n(?: *@.*\n)* *def (\w+)', path.read_text(), re.M
        )
    }
    assert trusted
    assert trusted <= set(TABLE)
    assert {key.rpartition('.')[2] for key in trusted} == {
        name.rpartition('.')[2] for name in written
    }


def test_a_function_that_is_declared_and_checks_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = 'agp.propagate_to'

    def nothing(**arguments: Any) -> None:
        return None

    checked = FOUND[key]
    nothing.__signature__ = inspect.signature(checked)  # type: ignore
    monkeypatch.setitem(FOUND, key, declared(nothing))
    with pytest.raises(AssertionError, match='accepted'):
        test_bad_inputs_are_refused(key)


# What takes a number.
NUMBERS = [
    (key, name)
    for key in TABLE
    for name in parameters(FOUND[key])
    if getattr(kind_of(key, name), 'limits', None) is not None
    and TABLE[key].needs is None
]


def test_random_values_are_refused() -> None:
    hypothesis = pytest.importorskip('hypothesis')
    from hypothesis import strategies as st

    prepared = functools.cache(prepare)
    junk = st.one_of(
        st.none(),
        st.booleans(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.complex_numbers(),
        st.decimals(),
        st.fractions(),
        st.dates(),
        st.lists(st.floats(), max_size=2),
        st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
        st.integers(),
        st.floats(),
    )

    @hypothesis.settings(
        max_examples=600,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.sampled_from(NUMBERS), junk)
    def refused(place: tuple[str, str], value: Any) -> None:
        key, name = place
        hypothesis.assume(not kind_of(key, name).limits.allow(value))
        call, arguments = prepared(key)
        before = leaves([call, arguments])
        named = TABLE[key].names.get(name, f"'{name}'")
        try:
            perform(call, {**arguments, name: value})
        except Exception as error:
            said = complaint(error, named)
        else:
            said = 'accepted'
        assert said is None, f'{key}, {name}={value!r}: {said}'
        assert not changed(before, leaves([call, arguments])), key

    refused()
