"""What reports draw: data, words and whether they fit on the figure."""

import math
from itertools import pairwise

import pytest
import torch
from guarantees import MADE, OTHERS
from package import import_all, reports

from pyg_trust.report import Guarantee, Report
from pyg_trust.report.charts import RED, Chart, draw

mpl = pytest.importorskip('matplotlib')
mpl.use('agg')
from matplotlib import colors, pyplot  # noqa: E402


@pytest.fixture(autouse=True)
def closed():
    # Whatever other tests of this process left.
    pyplot.switch_backend('agg')
    yield
    pyplot.close('all')


def test_every_report_is_drawn_here():
    import_all()
    drawn = {name.partition(',')[0] for name in MADE}
    drawn |= {name.partition(',')[0] for name in OTHERS} | {'Guarantee'}
    # Bases that no procedure returns.
    drawn |= {'ReleaseReport', 'ClaimedReport', 'Facts'}
    missing = {each.__name__ for each in reports()} - drawn
    assert not missing, f'give {missing} an entry in tests/guarantees.py'


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    kept = {}

    def make(name):
        if name not in kept:
            if name in OTHERS:
                kept[name] = OTHERS[name]()
            else:
                kept[name] = MADE[name](tmp_path_factory.mktemp('made'))[0]
        return kept[name]

    return make


def on_the_figure(ax):
    """Every word lies within the figure, and no two labels on each other."""
    figure = ax.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    texts = [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label]
    low, high = sorted(ax.get_ylim())
    ticks = ax.get_yticklabels()
    ticks = [t for t in ticks if low <= t.get_position()[1] <= high]
    texts += [*ax.texts, *ticks]
    for text in texts:
        if not text.get_text() or not text.get_visible():
            continue
        box = text.get_window_extent(renderer)
        assert -2 <= box.x0 <= box.x1 <= width + 2, text
        assert -2 <= box.y0 <= box.y1 <= height + 2, text
    labels = [tick.get_window_extent(renderer) for tick in ticks]
    for one, two in pairwise(labels):
        assert one.y0 >= two.y1 - 1 or two.y0 >= one.y1 - 1


@pytest.mark.parametrize('name', [*MADE, *OTHERS])
def test_a_plot_shows_the_chart_and_fits(made, name):
    report = made(name)
    ax = report.plot()
    on_the_figure(ax)
    title = ax.get_title('left')
    assert len(title) > 5
    # Whoever does not draw reads the same.
    assert '\n' not in report.summary()
    assert report.explain()
    if type(report).plot is not Report.plot:
        return
    chart = report.chart()
    assert title == chart.title
    assert ax.get_xlabel() == chart.xlabel
    assert ax.get_ylabel() == chart.ylabel
    assert chart.bars or chart.lines
    assert not (chart.lines and not (chart.xlabel and chart.ylabel))
    drawn = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in ax.lines
    }
    for label, (x, y) in chart.lines.items():
        assert drawn[label] == (list(x), list(y))
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == list(chart.bars.values())
    ticks = [t.get_text().replace('\n', ' ') for t in ax.get_yticklabels()]
    if chart.bars:
        assert ticks == list(chart.bars)
        said = ' '.join(text.get_text() for text in ax.texts)
        assert all(f'{value:.4g}' in said for value in chart.bars.values())
    if len(chart.lines) > 1:
        legend = [t.get_text() for t in ax.get_legend().get_texts()]
        assert legend == list(chart.lines)


def test_a_limit_is_drawn_named_and_what_is_over_it_is_red():
    chart = Chart('x', bars={'a': 1.0, 'b': 3.0}, limit=2.0)
    ax = draw(chart)
    reds = [p.get_facecolor() == colors.to_rgba(RED) for p in ax.patches]
    assert reds == [False, True]
    (line,) = ax.lines
    assert list(line.get_xdata()) == [2.0, 2.0]
    assert 'budget: 2' in [text.get_text().strip() for text in ax.texts]
    on_the_figure(ax)
    ax = draw(
        Chart(
            *('x', {}, {'a': (range(3), [1.0, 2.0, 3.0])}),
            limit=4.0,
            limit_label='most',
        )
    )
    assert list(ax.lines[1].get_ydata()) == [4.0, 4.0]
    assert [text.get_text() for text in ax.texts] == ['most: 4']


def test_an_interval_and_what_is_not_finite_are_drawn():
    ax = draw(Chart('x', bars={'a': 0.4}, spans={'a': (0.2, 0.7)}))
    (line,) = ax.lines
    assert list(line.get_xdata()) == [0.2, 0.7]
    draw(Chart('x', bars={'a': math.nan}, spans={'a': (math.nan, 1.0)}))
    draw(Chart('x', bars={'a': math.inf}, limit=1.0)).figure.canvas.draw()


def test_a_plot_goes_where_it_is_told_and_nowhere_else(made):
    _, ax = pyplot.subplots()
    assert made('TrustReport').plot(ax) is ax
    with pytest.raises(TypeError, match="'ax' needs to be matplotlib's axes"):
        made('TrustReport').plot(3)


def test_the_privacy_plot_is_epsilon_by_steps_up_to_the_budget(made):
    report = made('PrivacyReport')
    (x, y) = report.chart().lines['epsilon']
    assert (x[0], y[0]) == (0, 0.0)
    assert x[-1] == report.steps
    assert y[-1] == report.epsilon
    assert list(y) == sorted(y)


def test_the_certificate_plot_says_how_many_are_robust(made):
    report = made('Certificate')
    x, y = report.chart().lines['proven']
    assert len(x) == report.targets.numel()
    assert sum(v > report.tolerance for v in y) == report.num_robust
    assert str(report.num_robust) in report.chart().title


def test_vote_plots_are_the_certified_ratio_by_changes(made):
    for name in ('VoteCertificate', 'PoisonCertificate'):
        report = made(name)
        x, y = report.chart().lines['certified']
        for k, share in zip(x, y, strict=True):
            assert share == float((report.radius >= k).double().mean())
        assert y[-1] == 0


def test_a_guarantee_without_numbers_is_still_a_plot():
    ax = Guarantee('a thing', 'holds', (), values={'p': 0.5}).plot()
    assert [p.get_width() for p in ax.patches] == [0.5]
    ax = Guarantee('a thing', 'holds', ()).plot()
    assert ax.get_title('left') == 'a thing'
    assert torch.tensor(len(ax.patches)) == 0
