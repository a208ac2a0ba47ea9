"""Plots of certificates; they need matplotlib."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import Natural, check_instance, validated
from pyg_trust.certificates.certificate import Certificate
from pyg_trust.certificates.divided import VoteCertificate
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.report.charts import axes

__all__ = [
    'plot_certified_grid',
    'plot_certified_ratio',
    'plot_certified_votes',
]


def plot_certified_ratio(
    budgets: Sequence[int],
    certificates: Sequence[Certificate],
    *,
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the share of robust targets against the attacker's budget.

    Args:
        budgets (Sequence[int]): the number on the x-axis for each certificate:
            the ``strength`` or ``global_budget`` of its threat.
        certificates (Sequence[Certificate]): one certificate per budget.
        label (str, optional): the name of the curve; by default none.
        ax (matplotlib.axes.Axes, optional): the axes to draw on, which are
            returned; by default those of a new figure.
    """
    if len(budgets) != len(certificates):
        raise ValueError(
            f"'budgets' and 'certificates' need to have the same length "
            f'(got {len(budgets)} and {len(certificates)})'
        )
    for certificate in certificates:
        check_instance('certificates', certificate, Certificate)
    ax = axes(ax)
    ratios = [certificate.certified_ratio() for certificate in certificates]
    ax.plot(budgets, ratios, marker='.', label=label)
    ax.set_xlabel('budget')
    ax.set_ylabel('share certified robust')
    return ax


@validated
def plot_certified_grid(
    report: SmoothedCertificate,
    kind: str = 'edges',
    *,
    limit: Natural = 20,
    ax: Any = None,
) -> Any:
    """Draw the certified share of predictions by additions and deletions.

    Args:
        report (SmoothedCertificate): the certificate.
        kind (str): the changes: :obj:`'edges'` or :obj:`'features'`.
        limit (int): the most additions, and deletions, that are drawn.
        ax (matplotlib.axes.Axes, optional): the axes to draw on, which are
            returned; by default those of a new figure.
    """
    reached = report.radii(kind, limit=limit)
    steps = torch.arange(max(int(reached.max()), 0) + 1)
    share = (reached[..., None] >= steps).double().mean(0)
    ax = axes(ax)
    image = ax.imshow(
        share.numpy(), origin='lower', vmin=0, vmax=1, aspect='auto'
    )
    ax.figure.colorbar(image, ax=ax, label='share certified')
    ax.set_xlabel(f'deleted {kind}')
    ax.set_ylabel(f'added {kind}')
    return ax


@validated
def plot_certified_votes(
    certificate: VoteCertificate,
    labels: Tensor,
    *,
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the certified accuracy against the number of changes.

    Args:
        certificate (VoteCertificate): the certificate; its ``baseline``, if
            there is one, is drawn as a horizontal line.
        labels (Tensor): the true classes of all nodes, or graphs: int64.
        label (str, optional): the name of the curve; by default none.
        ax (matplotlib.axes.Axes, optional): the axes to draw on, which are
            returned; by default those of a new figure.
    """
    radii = range(max(int(certificate.radius.max()), 0) + 2)
    shares = [certificate.certified_accuracy(labels, k) for k in radii]
    ax = axes(ax)
    ax.step(radii, shares, where='mid', label=label)
    if certificate.baseline is not None:
        ax.axhline(certificate.baseline, color='gray', linestyle=':')
    ax.set_xlabel(f'changes ({certificate.by})')
    ax.set_ylabel('certified accuracy')
    return ax
