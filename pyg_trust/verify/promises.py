"""All claims of the package by their procedure, and the schema of reports."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from . import claims_privacy, claims_removal, claims_robustness
from .claims import MOST_PROMISES, digest, read_json
from .declare import OBJECT, TEXT, Claim, Form, misfit, named, one_of, several

#: The version of a report's layout.
LAYOUT = 4
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
#: A guarantee of a report in JSON.
GUARANTEE = _object(
    procedure=_SOME,
    promise=_SOME,
    assumptions=several(TEXT),
    not_covered=several(TEXT),
    spent=named(_NUMBER),
    budget=named(_NUMBER),
    data_sha256=_SHA,
    origin=OBJECT,
    kind=one_of(*KINDS),
    values=OBJECT,
    history=named(several(_NUMBER)),
    checked=several(TEXT),
    weights_sha256=_SHA,
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
    guarantees=several(GUARANTEE, 1, MOST_PROMISES),
)


# What guarantees of older layouts call their digests.
_NAMES = {'data': 'data_sha256', 'model': 'weights_sha256'}
#: Errors of malformed fields and files.
WRONG = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


def read(path: str | Path) -> dict[str, Any]:
    """Read a report in JSON; budgets become numbers, and the digest goes."""
    hint = ''
    try:
        text = Path(path).read_text()
        if '"entries":' in text or '"link":' in text:
            hint = (
                ': it looks like a ledger, which goes beside its report. '
                "TrustReport.of(report).save('trust.json') writes one, for "
                'python -m pyg_trust check trust.json --ledger LEDGER'
            )
        fields: dict[str, Any] = read_json(text)
        whole = 'digest' not in fields or digest(fields) == fields['digest']
        if fields['schema_version'] in range(LAYOUT):
            for entry in fields['guarantees']:
                for old, new in _NAMES.items():
                    entry[new] = entry.pop(old, '')
        if (at := misfit(fields, REPORT)) is not None:
            raise ValueError(f'{at!r} does not fit the schema of a report')
        if not whole:
            raise ValueError('its digest is not that of its content')
        fields.pop('digest', '')
        if datetime.fromisoformat(fields['created']).tzinfo is None:
            raise ValueError("'created' has no time zone")
        for entry in fields['guarantees']:
            for name in ('spent', 'budget'):
                entry[name] = {k: float(v) for k, v in entry[name].items()}
            if entry['spent'].keys() != entry['budget'].keys():
                raise ValueError("'spent' and 'budget' are of other things")
        return fields
    except WRONG as error:
        raise ValueError(
            f"'path' needs to be a trust report in JSON: {path} is none "
            f'({type(error).__name__}: {error}){hint}'
        ) from None


def schema() -> Form:
    """Return the JSON schema of a trust report, as a dictionary.

    It includes the fields of each kind of guarantee.
    """
    of_claims = [
        {
            'if': {'properties': {'procedure': {'const': name}}},
            'then': {'properties': {'values': kind.schema()}},
        }
        for name, kind in PROMISES.items()
    ]
    guarantee = {**GUARANTEE, 'allOf': of_claims}
    listed = {**REPORT['properties']['guarantees'], 'items': guarantee}
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'pyg_trust trust report',
        **REPORT,
        'properties': {**REPORT['properties'], 'guarantees': listed},
    }
