"""Charts of reports: data and texts, independent of matplotlib."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ['Chart', 'axes', 'draw', 'verified']

BLUE, RED, GREY = '#1f6feb', '#cf222e', '#57606a'
_COLOURS = (BLUE, '#bf8700', '#1a7f37', '#8250df', '#57606a')
_MOST = 30


@dataclass(frozen=True)
class Chart:
    """Bars or lines, with the finding as the title.

    Args:
        title (str): the finding, in a few words.
        bars (dict[str, float]): the length of each bar, by its label.
            (default: :obj:`{}`)
        lines (dict[str, tuple]): the x values and the y values of each line,
            by its name. (default: :obj:`{}`)
        spans (dict[str, tuple]): the ends of an interval, by the label of its
            bar. (default: :obj:`{}`)
        xlabel (str): the label of the x axis. (default: :obj:`''`)
        ylabel (str): the label of the y axis. (default: :obj:`''`)
        limit (float): the limit, drawn as a line; not finite for none.
            (default: infinity)
        limit_label (str): the label of the limit. (default: :obj:`'budget'`)
        steps (bool): whether lines are step functions, constant up to the next
            x value. (default: :obj:`False`)
        log (bool): whether lengths are on a logarithmic scale.
            (default: :obj:`False`)
    """

    title: str
    bars: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(
        default_factory=dict
    )
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    xlabel: str = ''
    ylabel: str = ''
    limit: float = math.inf
    limit_label: str = 'budget'
    steps: bool = False
    log: bool = False


def verified(
    ok: bool, *, residual: tuple[float, float], distance: tuple[float, float]
) -> Chart:
    """Make a bar chart of a verification's measurements relative to bounds."""
    pairs = {'gradient residual': residual, 'distance to retraining': distance}
    return Chart(
        'Verified: all within what was promised'
        if ok
        else 'NOT verified: see the fields of the report',
        bars={
            name: value / most if most else (math.inf if value else 0.0)
            for name, (value, most) in pairs.items()
        },
        xlabel='share of the bound',
        limit=1.0,
        limit_label='bound',
    )


def axes(ax: Any, height: float = 3.2) -> Any:
    """Return the given axes, or those of a new figure."""
    if ax is not None:
        if not hasattr(ax, 'scatter'):
            raise TypeError(
                f"'ax' needs to be matplotlib's axes (got {type(ax).__name__})"
            )
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plots need 'matplotlib': install it with 'pip install matplotlib'"
        ) from error
    return pyplot.subplots(figsize=(7, height), layout='constrained')[1]


def draw(chart: Chart, ax: Any = None) -> Any:
    """Draw a chart."""
    if chart.lines:
        ax = axes(ax)
        _lines(chart, ax)
    else:
        ax = axes(ax, 1.2 + 0.42 * min(len(chart.bars), _MOST))
        _bars(chart, ax)
    ax.set_title(chart.title, loc='left', fontsize='medium', wrap=True)
    ax.set(xlabel=chart.xlabel, ylabel=chart.ylabel)
    for side in ('top', 'right'):
        ax.spines[side].set_visible(False)
    return ax


def _lines(chart: Chart, ax: Any) -> None:
    for (name, (x, y)), colour in zip(
        chart.lines.items(), _COLOURS, strict=False
    ):
        style = {'drawstyle': 'steps-post'} if chart.steps else {}
        mark = '.' if len(x) <= _MOST else ''
        ax.plot(x, y, marker=mark, color=colour, label=name, **style)
    if math.isfinite(chart.limit):
        ax.axhline(chart.limit, color=RED, linestyle='--', linewidth=1)
        ax.annotate(
            f'{chart.limit_label}: {chart.limit:.4g}',
            (0.02, chart.limit),
            xycoords=ax.get_yaxis_transform(),
            va='bottom',
            fontsize='small',
            color=RED,
        )
    if len(chart.lines) > 1:
        ax.legend(fontsize='small', frameon=False)
    ax.margins(y=0.12)
    ax.yaxis.set_major_formatter('{x:.3g}')
    ax.xaxis.get_major_locator().set_params(integer=True)


def _bars(chart: Chart, ax: Any) -> None:
    names = list(chart.bars)[:_MOST]
    for at, name in enumerate(names):
        value = chart.bars[name]
        over = value > chart.limit
        ax.barh(at, value, height=0.6, color=RED if over else BLUE)
        ends = chart.spans.get(name, (value, value))
        if all(map(math.isfinite, ends)) and ends[0] < ends[1]:
            ax.plot(ends, [at, at], color='black', linewidth=1.5)
        places = [end for end in (value, *ends) if math.isfinite(end)]
        ax.annotate(
            f' {value:.4g}',
            (max(places, default=0.0), at),
            va='center',
            fontsize='small',
        )
    wrapped = [textwrap.fill(name, 26) for name in names]
    ax.set_yticks(range(len(names)), wrapped)
    ax.invert_yaxis()
    if chart.log:
        ax.set_xscale('log')
    if math.isfinite(chart.limit):
        ax.axvline(chart.limit, color=RED, linestyle='--', linewidth=1)
        ax.annotate(
            f'{chart.limit_label}: {chart.limit:.4g} ',
            (chart.limit, 1.0),
            xycoords=ax.get_xaxis_transform(),
            ha='right',
            va='top',
            fontsize='small',
            color=RED,
        )
    ax.margins(x=0.15)
