"""Reports: guarantees of procedures, and the settings to run them again.

A procedure returns a frozen dataclass that inherits from :class:`Report`. Its
fields are plain (numbers, strings, booleans, tensors, and lists, tuples and
dictionaries of these), so that it can be printed, stored as JSON and compared.
What it guarantees is a :class:`Guarantee`, in the same words for all; a
:class:`TrustReport` puts those of a whole application on one page.
"""

import dataclasses
import json
import math
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch_geometric
from torch import Tensor

import pyg_trust
from pyg_trust._moved import old_field
from pyg_trust.report.charts import Chart, draw
from pyg_trust.verify.claims import finite, outwards
from pyg_trust.verify.declare import SEEDED, misfit
from pyg_trust.verify.promises import GUARANTEE, claim
from pyg_trust.verify.promises import KINDS as KINDS

__all__ = [
    'KINDS',
    'Guarantee',
    'Report',
    'plain',
    'provenance',
    'short',
    'stated',
]


def provenance(**arguments: Any) -> dict[str, Any]:
    """Return the versions in use and the arguments of a run.

    Args:
        **arguments (Any): the seed and all other arguments that are needed to
            repeat the run.

    Returns:
        dict[str, Any]: the versions ``'pyg_trust'``, ``'torch'``,
        ``'torch_geometric'`` and ``'python'``, and the ``'arguments'``.
    """
    return {
        'pyg_trust': pyg_trust.__version__,
        'torch': torch.__version__,
        'torch_geometric': torch_geometric.__version__,
        'python': platform.python_version(),
        'arguments': arguments,
    }


# Fields that are attributes of the guarantee itself.
_ELSEWHERE = (
    'assumptions',
    'checked',
    'data_sha256',
    'origin',
    'proof',
    'provenance',
    'weights_sha256',
)


@dataclass(frozen=True)
class Report:
    """Base class of all reports.

    A report prints as a table, and converts to a dictionary or to JSON.
    """

    #: The first line of a report whose randomness is of an explicit seed.
    _weakness: ClassVar[str] = SEEDED

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Else each dataclass prints all of its fields.
        super().__init_subclass__(**kwargs)
        if '__repr__' not in vars(cls):
            cls.__repr__ = Report.__repr__  # type: ignore[method-assign]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # The names of 0.1.
            return old_field(self, name)

    def __repr__(self) -> str:
        """Return one line; ``print(report)`` shows all fields."""
        parts, room = [], 150
        for name, value in self.numbers().items():
            text = f'{name}={value!r}'
            if len(text) <= min(room, 60):
                parts.append(text)
                room -= len(text) + 2
        return f'{type(self).__name__}({", ".join([*parts, "..."])})'

    def numbers(self) -> dict[str, Any]:
        """Return the report's numbers and settings, by the name of the field.

        Left out are tensors, nested reports, assumptions, SHA-256 digests and
        versions; :meth:`guarantee` has these.
        """
        return {
            name: plain(value)
            for name in self._names()
            for value in [getattr(self, name)]
            if name not in _ELSEWHERE and _is_plain(value)
        }

    def _names(self) -> list[str]:
        return [field.name for field in dataclasses.fields(self)]

    def guarantee(self) -> 'Guarantee':
        """Return the guarantee of this report, with its assumptions.

        Raises:
            TypeError: if this kind of report guarantees nothing by itself.
        """
        kind = type(self).__name__
        raise TypeError(f'a {kind} guarantees nothing by itself')

    def chart(self) -> Chart:
        """Return the chart that :meth:`plot` draws, such as spent budgets."""
        try:
            promise = self.guarantee()
        except TypeError:
            return _chart_of_numbers(self.numbers(), type(self).__name__)
        procedure = promise.procedure
        if not promise.spent:
            return _chart_of_numbers(promise.values, procedure)
        name = next(iter({**promise.history, **promise.spent}))
        amounts = promise.history.get(name)
        spent, limit = promise.spent[name], promise.budget[name]
        share = f'{outwards(spent, 3)} of {limit:.3g}'
        if 0 < limit < math.inf:
            share = f'{outwards(100 * spent / limit, 3)} %'
        title = f'{procedure}: {share} of the {name} that is allowed'
        if amounts is None:
            return Chart(title, bars={name: spent}, limit=limit)
        return Chart(
            title,
            lines={name: (range(len(amounts)), amounts)},
            xlabel='releases',
            ylabel=name,
            limit=limit,
        )

    def summary(self) -> str:
        """Return the main result in one line: the title of the chart."""
        return self.chart().title

    def explain(self) -> str:
        """Return the guarantee with its assumptions as text, or all fields."""
        try:
            return str(self.guarantee())
        except TypeError:
            return str(self)

    def plot(self, ax: Any = None) -> Any:
        """Draw the report's chart, with its main result as the title.

        Args:
            ax (matplotlib.axes.Axes, optional): the axes to draw on; by
                default those of a new figure. (default: :obj:`None`)

        Returns:
            matplotlib.axes.Axes: the axes with the drawing.
        """
        return draw(self.chart(), ax)

    def to_dict(self) -> dict[str, Any]:
        """Convert all fields to a dictionary, and tensors to nested lists."""
        return {name: plain(getattr(self, name)) for name in self._names()}

    def to_json(self) -> str:
        """Convert all fields to JSON, with infinity and NaN as strings."""
        return json.dumps(finite(self.to_dict()), indent=2, allow_nan=False)

    def _repr_html_(self) -> str:
        # A notebook shows the fields as they are printed.
        return f'<pre>{escape(str(self))}</pre>'

    def __str__(self) -> str:
        rows = [
            (name.replace('_', ' '), short(getattr(self, name)))
            for name in self._names()
        ]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f'{name:<{width}}  {value}' for name, value in rows]
        first = [self._weakness] * getattr(self, 'seeded', False)
        return '\n'.join([*first, type(self).__name__, *lines])


@dataclass(frozen=True)
class Guarantee(Report):
    """Guarantee of a procedure, with its assumptions and its numbers.

    Args:
        procedure (str): the procedure that was run.
        promise (str): the guarantee in one sentence; for a measurement, the
            finding.
        assumptions (tuple[str, ...]): the assumptions of the guarantee.
        not_covered (tuple[str, ...]): properties that a reader could expect,
            but that are not guaranteed.
        spent (dict[str, float]): the amount spent of each budget, by its name,
            such as ``'epsilon'``.
        budget (dict[str, float]): the size of each budget, by the same names.
        data_sha256 (str): SHA-256 of the data that the guarantee is about.
        origin (dict[str, Any]): versions and arguments of the run, as from
            :func:`provenance`.
        kind (str): ``'privacy'``, ``'removal'``, ``'robustness'``,
            ``'accuracy'``, ``'measurement'`` or ``'other'``.
        values (dict[str, Any]): all numbers and settings of the guarantee, by
            the field's name: ``epsilon``, ``delta``, ``mu``, ``sigma``,
            ``neighboring``, ``mechanism``, counts, bounds.
        history (dict[str, list[float]]): the amounts spent over time, a list
            for each name in :obj:`spent`.
        checked (tuple[str, ...]): the checks of the guarantee in this run.
        weights_sha256 (str): SHA-256 of the weights that it is about.
    """

    procedure: str
    promise: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...] = ()
    spent: dict[str, float] = dataclasses.field(default_factory=dict)
    budget: dict[str, float] = dataclasses.field(default_factory=dict)
    data_sha256: str = ''
    origin: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = 'other'
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    history: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    checked: tuple[str, ...] = ()
    weights_sha256: str = ''

    def __post_init__(self) -> None:
        at = misfit(finite(self.to_dict()), GUARANTEE)
        if at is not None:
            name = re.split(r'[.\[]', at)[0]
            raise ValueError(
                f"'{name}' of a guarantee needs to fit "
                f'{GUARANTEE["properties"][name]} (got {getattr(self, name)})'
            )
        if self.spent.keys() != self.budget.keys():
            raise ValueError(
                "'spent' and 'budget' need the same keys (got "
                f'{sorted(self.spent)} and {sorted(self.budget)})'
            )
        for name in self.history.keys() - self.spent.keys():
            raise ValueError(
                f"'history' needs keys of 'spent' (got {name!r}, need one of "
                f'{sorted(self.spent)})'
            )

    def guarantee(self) -> 'Guarantee':
        """Return this guarantee itself, as every report has this method."""
        return self

    @property
    def remaining(self) -> dict[str, float]:
        """The budgets minus the spent amounts, by name."""
        return {
            name: self.budget[name] - spent
            for name, spent in self.spent.items()
        }


def stated(
    procedure: str,
    values: dict[str, Any],
    *,
    assumptions: Sequence[str] = (),
    not_covered: Sequence[str] = (),
    **rest: Any,
) -> Guarantee:
    """Make the guarantee of a claim: derived fields, sentences and budgets.

    Args:
        procedure (str): one of :obj:`pyg_trust.verify.promises.PROMISES`.
        values (dict): the fields of the claim; other entries are left out.
        assumptions (sequence of str): the assumptions of this run, to which
            those of the claim are added. (default: :obj:`()`)
        not_covered (sequence of str): the exclusions of this run, to which
            those of the claim are added. (default: :obj:`()`)
        **rest (Any): further fields of :class:`Guarantee`.
    """
    values = finite(plain(values))
    always = claim(procedure, values).words()
    own = {
        'notes': [t for t in assumptions if t not in always.assumptions],
        'limits': [t for t in not_covered if t not in always.not_covered],
    }
    made = claim(procedure, {**values, **own})
    # What the procedure computed itself has to be what follows.
    computed = {
        name: value if None in (value, values.get(name)) else values[name]
        for name, value in made.to_dict().items()
    }
    for text in made.contradictions({**computed, **own}):
        raise ValueError(f'the report contradicts itself: {text}')
    return Guarantee(
        procedure=procedure,
        kind=made.kind,
        values=made.to_dict(),
        **vars(made.words()),
        **rest,
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _chart_of_numbers(values: dict[str, Any], title: str) -> Chart:
    # Plot positive finite values, on a scale that fits all sizes.
    bars = {
        name.replace('_', ' '): float(value)
        for name, value in values.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < value < math.inf
    }
    return Chart(title, bars=bars, log=True, xlabel='logarithmic scale')


def plain(value: Any) -> Any:
    """Convert a value to numbers, texts, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def short(value: Any) -> str:
    """Format a value for a table: four digits, and of long lists the ends."""
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return short(value.item())
        shape = ', '.join(map(str, value.shape))
        return f'{value.dtype} tensor [{shape}]'.replace('torch.', '')
    if isinstance(value, float):
        return f'{value:.4g}'
    if isinstance(value, list | tuple):
        if len(value) > 12:
            value = [*value[:6], '...', *value[-6:]]
        return f'[{", ".join(map(short, value))}]'
    if isinstance(value, dict):
        pairs = (f'{key}: {short(item)}' for key, item in value.items())
        return f'{{{", ".join(pairs)}}}'
    return str(value)
