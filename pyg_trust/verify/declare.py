"""Declarations of claims: every field once, and all else follows from it.

A *claim* is what a procedure states about one run. Its class declares each
field once, with a JSON type and a description: as *given* (the run states it)
or as *derived* (a function of other fields). The constructor, the JSON schema
of a report, and the check that refuses another value of a derived field, or
fields that contradict a rule, follow from it. Fields are data, never the
``repr`` of an object. People read the sentences of :meth:`Claim.words`.
Nothing here proves a number: that is what the other files of this folder do.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from .claims import finite

SEEDED = (
    'not private and not certified: the noise comes from an explicit seed, '
    'and whoever knows or guesses the seed can subtract it'
)
SEEDED_COPIES = (
    'not certified: seeded (the noisy copies come from an explicit seed, and '
    'whoever knows or guesses the seed can choose a model that they flatter)'
)

Form = dict[str, Any]
_REST = 'additionalProperties'
_TYPES: dict[str, tuple[type, ...]] = {
    **{'boolean': (bool,), 'string': (str,), 'null': (type(None),)},
    **{'integer': (int,), 'number': (int, float)},
    **{'array': (list,), 'object': (dict,)},
}
# The largest number of a field: none is infinite.
HUGE = 2.0**1000
FLAG: Form = {'type': 'boolean'}
TEXT: Form = {'type': 'string'}
OBJECT: Form = {'type': 'object'}
COUNT: Form = {'type': 'integer', 'minimum': 0}
NATURAL: Form = {'type': 'integer', 'minimum': 1}
AMOUNT: Form = {'type': 'number', 'minimum': 0}
POSITIVE: Form = {'type': 'number', 'exclusiveMinimum': 0}
SHARE: Form = {'type': 'number', 'exclusiveMinimum': 0, 'maximum': 1}
DELTA: Form = {'type': 'number', 'minimum': 0, 'exclusiveMaximum': 1}


def maybe(form: Form) -> Form:
    """Return the type of values that may also be missing (null)."""
    return {'anyOf': [form, {'type': 'null'}]}


def several(form: Form, least: int = 0, most: int | None = None) -> Form:
    """Return the type of lists of so many values."""
    made = {'type': 'array', 'items': form, 'minItems': least}
    return made if most is None else {**made, 'maxItems': most}


def row(*forms: Form) -> Form:
    """Return the type of lists with one value of each type, in this order."""
    size = len(forms)
    made = {'type': 'array', 'prefixItems': list(forms)}
    return {**made, 'minItems': size, 'maxItems': size}


def named(form: Form, pattern: str = '') -> Form:
    """Return the type of dictionaries with values of a type."""
    made: Form = {'type': 'object', 'additionalProperties': form}
    return {**made, 'propertyNames': {'pattern': pattern}} if pattern else made


def one_of(*values: Any) -> Form:
    """Return the type of these values alone."""
    return {'enum': list(values)}


def misfit(value: Any, form: Form, at: str = '') -> str | None:
    """Find what does not fit, by the keywords of JSON schema used here.

    Returns:
        str or None: the name of the first part that does not fit.
    """
    parts: Iterable[tuple[Any, Form, str]] = ()
    if 'anyOf' in form:
        fits = None in (misfit(value, each) for each in form['anyOf'])
        return None if fits else at
    if 'enum' in form:
        known = [x for x in form['enum'] if type(x) is type(value)]
        return None if value in known else at
    kind, size = form['type'], len(value) if isinstance(value, list) else 0
    if type(value) not in _TYPES[kind]:
        return at
    if kind in ('integer', 'number'):
        fits = (
            form.get('minimum', -HUGE) <= value <= form.get('maximum', HUGE)
            and form.get('exclusiveMinimum', -math.inf) < value
            and value < form.get('exclusiveMaximum', math.inf)
        )
    elif kind == 'array':
        fits = (
            form.get('minItems', 0) <= size <= form.get('maxItems', math.inf)
        )
        forms = form.get('prefixItems') or [form['items']] * size
        names = [f'{at}[{i}]' for i in range(size)]
        parts = zip(value, forms, names, strict=True) if fits else ()
    elif kind == 'object':
        fits = True
        known, rest = form.get('properties', {}), form.get(_REST)
        sign = form.get('propertyNames', {}).get('pattern', '')
        odd = set(form.get('required', ())) - value.keys()
        odd |= {name for name in value if not re.search(sign, str(name))}
        odd |= value.keys() - known.keys() if rest is False else set()
        if odd:
            return f'{at}.{min(odd)}'.lstrip('.')
        parts = [
            (item, known.get(name, rest), f'{at}.{name}'.lstrip('.'))
            for name, item in value.items()
            if name in known or rest is not None
        ]
    else:
        fits = re.search(form.get('pattern', ''), str(value)) is not None
    if not fits:
        return at
    found = (misfit(*part) for part in parts)
    return next((each for each in found if each is not None), None)


def alike(one: Any, two: Any) -> bool:
    """Compare plain values; numbers up to the rounding of a few doubles."""
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(alike, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(
            alike(one[name], two[name]) for name in one
        )
    if type(one) is float and type(two) is float:
        return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-300)
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    return bool(one == two)


class Field(NamedTuple):
    """Declaration of one field of a claim.

    Args:
        about (str): what it is, with its unit.
        form (dict): its type, as JSON schema.
        made (Callable, optional): for a derived field, the function of the
            claim that computes it. (default: :obj:`None`)
        default (Any): the value if none is given; by default one has to be.
    """

    about: str
    form: Form
    made: Callable[[Any], Any] | None = None
    default: Any = ...


def given(about: str, form: Form = AMOUNT, default: Any = ...) -> Any:
    """Declare a field that the run states; an amount by default."""
    return Field(about, form, None, default)


def derived(
    about: str, made: Callable[[Any], Any], form: Form = AMOUNT
) -> Any:
    """Declare a field that follows from others; an amount by default."""
    return Field(about, form, made)


@dataclass(frozen=True)
class Words:
    """The sentences of a claim, its budgets, and what was spent over time."""

    promise: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    spent: dict[str, float] = field(default_factory=dict)
    budget: dict[str, float] = field(default_factory=dict)
    history: dict[str, list[float]] = field(default_factory=dict)


class Claim:
    """Base of all claims.

    A subclass declares its ``procedure``, its ``kind``, its fields and
    ``_says``.

    Args:
        values (dict): the fields by name, as plain data. Values of derived
            fields are ignored: they are computed.


    """

    #: The claims by the name of their procedure.
    kinds: ClassVar[dict[str, type['Claim']]] = {}
    procedure: ClassVar[str]
    kind: ClassVar[str]
    declared: ClassVar[dict[str, Field]]

    notes = given('further conditions of this run', several(TEXT), [])
    limits = given('what this run does not cover as well', several(TEXT), [])
    vouched = given('who states it, if not this package', TEXT, '')

    def __init_subclass__(cls) -> None:
        cls.declared = {
            name: each
            for base in reversed(cls.__mro__)
            for name, each in vars(base).items()
            if isinstance(each, Field)
        }
        if hasattr(cls, 'procedure'):
            Claim.kinds[cls.procedure] = cls

    def __init__(self, values: Mapping[str, Any]) -> None:
        for name, each in self.declared.items():
            if each.made is not None:
                continue
            value = values.get(name, each.default)
            if value is ...:
                raise ValueError(
                    f'the field {name!r} ({each.about}) is missing'
                )
            if (at := misfit(value, each.form, name)) is not None:
                raise ValueError(
                    f'{at!r} ({each.about}) needs to fit {each.form} (got '
                    f'{_short(value)})'
                )
            setattr(self, name, value)
        for name, each in self.declared.items():
            if each.made is not None:
                setattr(self, name, finite(each.made(self)))

    def _says(self) -> Words:
        # The sentences of this kind of claim.
        raise NotImplementedError

    def _wrong(self) -> Iterator[str]:
        # Given fields that contradict each other.
        yield from ()

    def contradictions(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Describe every field that contradicts others."""
        for name in values.keys() - self.declared.keys():
            yield f'{name} is no field of {self.procedure}'
        for name, each in self.declared.items():
            if each.made is None:
                continue
            made = getattr(self, name)
            if misfit(made, each.form) is not None:
                yield f'{name}: other fields make {_short(made)}: none'
            elif name not in values:
                yield f'{name} ({each.about}) is missing'
            elif (
                not alike(values[name], made)
                or misfit(values[name], each.form) is not None
            ):
                yield (
                    f'{name}: {_short(values[name])} is stated, and '
                    f'{_short(made)} follows from the other fields'
                )
        if not self.vouched:
            yield from self._wrong()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, as a report in JSON has them."""
        return {name: getattr(self, name) for name in self.declared}

    def words(self) -> Words:
        """Make the sentences, with those that every kind of claim has."""
        made = self._says()
        assumed, promise = [*made.assumptions, *self.notes], made.promise
        if self.vouched and self.kind == 'privacy':
            promise += f', as says {self.vouched}'
        elif self.vouched:
            promise = f'as says {self.vouched}: {promise}'
            assumed.append(f'NOT CHECKED: {self.vouched}')
        if getattr(self, 'seeded', False) and self.kind == 'robustness':
            promise = f'{SEEDED_COPIES}; with secret copies, {promise}'
        elif getattr(self, 'seeded', False):
            promise = f'{SEEDED}; with secret noise, {promise}'
            assumed.insert(0, SEEDED)
        limits = (*made.not_covered, *self.limits)
        return replace(
            made,
            promise=promise,
            assumptions=tuple(dict.fromkeys(assumed)),
            not_covered=tuple(dict.fromkeys(limits)),
        )

    @classmethod
    def schema(cls) -> Form:
        """Return the JSON schema of the fields."""
        return {
            'type': 'object',
            'additionalProperties': False,
            'required': list(cls.declared),
            'properties': {
                name: {
                    'description': each.about
                    + '; follows from the other fields' * bool(each.made),
                    **each.form,
                }
                for name, each in cls.declared.items()
            },
        }


def _short(value: Any) -> str:
    text = f'{value:.6g}' if isinstance(value, float) else repr(value)
    return text if len(text) < 80 else f'{text[:70]} ...'
