"""All claims of the package by their procedure, and the schema of reports."""

from collections.abc import Mapping
from typing import Any

from . import claims_privacy, claims_removal, claims_robustness
from .claims import MOST_PROMISES
from .declare import OBJECT, TEXT, Claim, Form, named, one_of, several

#: The version of a report's layout.
LAYOUT = 3
#: Sorts of promises: about one person's data in what is released; about what
#: was removed; about changed inputs; about numerical error; any other. A
#: measurement promises nothing: it says what tests have found.
KINDS = (
    'privacy',
    'removal',
    'robustness',
    'accuracy',
    'measurement',
    'other',
)
#: What a report says of the application: texts of its author.
ABOUT = ('title', 'owner', 'data_set', 'people', 'utility')
_DECLARED = claims_privacy, claims_removal, claims_robustness
#: The claims by procedure.
PROMISES = {
    name: kind
    for name, kind in Claim.kinds.items()
    if kind.__module__ in {module.__name__ for module in _DECLARED}
}


def claim(procedure: str, values: Mapping[str, Any]) -> Claim:
    """Make the claim of a procedure from its fields.

    Args:
        procedure (str): one of :obj:`PROMISES`.
        values (dict): the fields by name, as plain data.

    Raises:
        ValueError: if the procedure is unknown, or a field is missing or of
            another type.
    """
    if procedure not in PROMISES:
        raise ValueError(f'{procedure!r} is no procedure of pyg_trust')
    return PROMISES[procedure](values)


def _object(optional: tuple[str, ...] = (), **properties: Form) -> Form:
    return {
        'type': 'object',
        'additionalProperties': False,
        'required': [n for n in properties if n not in optional],
        'properties': properties,
    }


_SOME: Form = {'type': 'string', 'pattern': '[^ ]'}
_SHA: Form = {'type': 'string', 'pattern': '^([0-9a-f]{64})?$'}
_NUMBER: Form = {
    'description': "A number; 'inf', '-inf' and 'nan' are texts.",
    'anyOf': [{'type': 'number'}, one_of('inf', '-inf', 'nan')],
}
_GUARANTEE = _object(
    procedure=_SOME,
    promise=_SOME,
    assumptions=several(TEXT),
    not_covered=several(TEXT),
    spent=named(_NUMBER),
    budget=named(_NUMBER),
    data=_SHA,
    origin=OBJECT,
    kind=one_of(*KINDS),
    values=OBJECT,
    history=named(several(_NUMBER)),
    checked=several(TEXT),
    model=_SHA,
)
#: A report in JSON, without the fields of its claims.
REPORT = _object(
    optional=('digest', 'about'),
    schema_version={'type': 'integer', 'minimum': 1, 'maximum': LAYOUT},
    created={'type': 'string', 'format': 'date-time'},
    digest={
        'description': 'SHA-256 of all else, as JSON with sorted names and '
        "the separators ', ' and ': '.",
        **_SHA,
    },
    about=_object(ABOUT, **dict.fromkeys(ABOUT, TEXT)),
    guarantees=several(_GUARANTEE, 1, MOST_PROMISES),
)


def schema() -> Form:
    """Return the JSON schema of a report, with the fields of every claim."""
    of_claims = [
        {
            'if': {'properties': {'procedure': {'const': name}}},
            'then': {'properties': {'values': kind.schema()}},
        }
        for name, kind in PROMISES.items()
    ]
    guarantee = {**_GUARANTEE, 'allOf': of_claims}
    listed = {**REPORT['properties']['guarantees'], 'items': guarantee}
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'pyg_trust trust report',
        **REPORT,
        'properties': {**REPORT['properties'], 'guarantees': listed},
    }
