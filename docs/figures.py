"""Figures of the guides."""

import math
from pathlib import Path

import matplotlib as mpl

mpl.use('svg')
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

# What examples/audit_unlearners.py prints; tests/test_examples.py runs it.
COLUMNS = ('features', 'labels', 'edges', 'worlds', 'poison')
AUDITS = {
    'exact shards': 'kkkkk',
    'certified classifier': 'kkkkk',
    'gradient ascent': 'fffkf',
    'influence update': 'fffff',
}
VERDICTS = {
    'k': ('not rejected', '#dbeafe'),
    'f': ('failed', '#fecaca'),
    'n': ('no power', '#e5e7eb'),
}


def audit() -> plt.Figure:
    """The verdicts of an audit of four ways to forget."""
    figure, axis = plt.subplots(figsize=(8.2, 2.4))
    axis.set(xlim=(-1.7, len(COLUMNS)), ylim=(len(AUDITS), -0.8))
    axis.axis('off')
    for j, name in enumerate(COLUMNS):
        text = name if j > 2 else f'twins:\n{name}'
        axis.text(j + 0.5, -0.4, text, ha='center', va='center')
    for i, (name, verdicts) in enumerate(AUDITS.items()):
        axis.text(-0.1, i + 0.5, name, ha='right', va='center')
        for j, letter in enumerate(verdicts):
            text, color = VERDICTS[letter]
            axis.add_patch(
                Rectangle((j + 0.03, i + 0.05), 0.94, 0.9, facecolor=color)
            )
            axis.text(
                *(j + 0.5, i + 0.5, text),
                ha='center',
                va='center',
                fontsize=8.5,
            )
    figure.subplots_adjust(0, 0, 1, 1)
    return figure


def chosen() -> plt.Figure:
    """Noise beyond 3, of who was chosen by looking and of anybody."""
    figure, axis = plt.subplots(figsize=(6.4, 1.6))
    names = ['anybody, or a release without them', 'the largest of 1,000']
    beyond = math.erfc(3 / math.sqrt(2))
    chances = [beyond, 1 - (1 - beyond) ** 1000]
    bars = axis.barh(names, chances, color=['#dbeafe', '#fecaca'])
    axis.bar_label(bars, [f'{chance:.2g}' for chance in chances], padding=3)
    axis.set(xlim=(0, 1.1), xlabel='probability that the noise is beyond 3')
    figure.tight_layout()
    return figure


def draw(folder: Path) -> None:
    """Writes all figures into a folder.

    Args:
        folder (Path): made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for made in (audit, chosen):
        name, figure = made.__name__, made()
        with mpl.rc_context({'svg.hashsalt': 'pyg_trust'}):
            figure.savefig(folder / f'{name}.svg', metadata={'Date': None})
        plt.close(figure)
