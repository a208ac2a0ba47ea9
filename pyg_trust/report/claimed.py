"""Reports whose fields are those of a claim, declared once."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyg_trust.report.base import Guarantee, Report, plain, stated
from pyg_trust.verify.claims import finite
from pyg_trust.verify.declare import Claim
from pyg_trust.verify.promises import PROMISES

__all__ = ['ClaimedReport', 'claimed']

Made = TypeVar('Made', bound='ClaimedReport')


class ClaimedReport(Report):
    """Base of reports whose fields are those that a claim declares.

    A subclass is decorated by :func:`claimed`.
    """

    _procedure: ClassVar[str]
    # Fields of the claim that the report calls otherwise.
    _renamed: ClassVar[dict[str, str]]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def of(cls: type[Made], **values: Any) -> Made:
        """Make the report: fields that are not given follow from others."""
        names = [each.name for each in fields(cls)]
        known = {}
        if set(names) - values.keys():
            made = PROMISES[cls._procedure](finite(plain(values))).to_dict()
            known = {name: _fixed(value) for name, value in made.items()}
        return cls(
            **{n: values[n] if n in values else known[n] for n in names}
        )

    def guarantee(self) -> Guarantee:
        """Return the guarantee of this report, in the form of all reports."""
        values = self.numbers()
        for old, new in self._renamed.items():
            values[old] = values.pop(new)
        says = self._says()
        values['vouched'] = says.pop('vouched', '')
        return stated(self._procedure, values, **says)

    def _says(self) -> dict[str, Any]:
        # What the guarantee says beside the claim, and who vouches for it.
        return {}


def claimed(
    procedure: str, renamed: dict[str, str] | None = None, **more: str
) -> Callable[[type[Made]], type[Made]]:
    """Give a report the fields of a claim, and some more.

    Args:
        procedure (str): the claim's.
        renamed (dict, optional): fields of the claim that the report calls
            otherwise. (default: :obj:`None`)
        **more (str): further fields, with what they are.
    """
    names = renamed or {}
    about = {
        names.get(name, name): f'{_kind(each.form)}: {each.about}'
        for name, each in PROMISES[procedure].declared.items()
        if name not in vars(Claim)
    } | {name: f': {text}' for name, text in more.items()}

    def made(cls: type[Made]) -> type[Made]:
        cls._procedure, cls._renamed = procedure, names
        own = vars(cls).get('__annotations__', {})
        cls.__annotations__ = {**own, **dict.fromkeys(about, Any)}
        lines = [
            fill(f'{name}{text}.', 75, subsequent_indent=' ' * 8)
            for name, text in about.items()
        ]
        text = '\n    '.join(['Args:', *lines])
        cls.__doc__ = f'{inspect.cleandoc(cls.__doc__ or "")}\n\n{text}\n'
        return dataclass(frozen=True, kw_only=True)(cls)

    return made


_KINDS = {
    **{'boolean': 'bool', 'string': 'str', 'integer': 'int'},
    **{'number': 'float', 'array': 'tuple', 'object': 'dict'},
}


def _kind(form: dict[str, Any]) -> str:
    # The type of a field, as in other docstrings.
    if 'anyOf' in form:
        return _kind(form['anyOf'][0])[:-1] + ', optional)'
    if 'enum' in form:
        return f' ({type(form["enum"][0]).__name__})'
    return f' ({_KINDS[form["type"]]})' if 'type' in form else ''


def _fixed(value: Any) -> Any:
    # Lists as tuples: a report does not change.
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
