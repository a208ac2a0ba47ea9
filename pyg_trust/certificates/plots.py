"""Plots of certificates; they need matplotlib."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from pyg_trust._checks import (
    Array,
    Count,
    Natural,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust.certificates.certificate import Certificate
from pyg_trust.certificates.collective import receptive_field
from pyg_trust.certificates.divided import VoteCertificate
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.graph import CSRGraph
from pyg_trust.report.charts import axes

__all__ = [
    'neighborhood_purity',
    'plot_certified_grid',
    'plot_certified_ratio',
    'plot_certified_votes',
    'plot_purity',
]


@validated
def neighborhood_purity(
    graph: CSRGraph, labels: Tensor, hops: Count = 2
) -> Tensor:
    """Return the share of a node's neighbourhood that has its class.

    Args:
        graph (CSRGraph): the graph.
        labels (Tensor): int64, ``[num_nodes]``.
        hops (int): how far the neighbourhood reaches, the node itself
            excluded. (default: :obj:`2`)

    Returns:
        Tensor: float64, ``[num_nodes]``; NaN without any neighbour.
    """
    check_tensor('labels', labels, torch.int64, (graph.num_nodes,))
    n, edges = graph.num_nodes, torch.stack([graph.col, graph.row])
    row, col = receptive_field(edges, n, hops).tocoo().coords
    proper = row != col
    row, col = row[proper], col[proper]
    same = (labels[row] == labels[col]).numpy()
    total = np.bincount(row, minlength=n)
    with np.errstate(invalid='ignore'):
        share = np.bincount(row, weights=same, minlength=n) / total
    return torch.from_numpy(share)


def plot_certified_ratio(
    budgets: Sequence[int],
    certificates: Sequence[Certificate],
    *,
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the certified ratio against the budget.

    Args:
        budgets (Sequence[int]): the attack strength or global budget of each
            certificate.
        certificates (Sequence[Certificate]): one certificate per budget.
        label (str, optional): the name of the curve. (default: :obj:`None`)
        ax (matplotlib.axes.Axes, optional): the axes to draw on; by default
            those of a new figure. (default: :obj:`None`)
    """
    check_instance('budgets', budgets, Sequence)
    check_instance('certificates', certificates, Sequence)
    for budget in budgets:
        check_integer('budgets', budget, 0)
    for certificate in certificates:
        check_instance('certificates', certificate, Certificate)
    _check_drawing(label, ax)
    if len(budgets) != len(certificates):
        raise ValueError(
            f"'budgets' and 'certificates' need to have the same length "
            f'(got {len(budgets)} and {len(certificates)})'
        )
    ax = axes(ax)
    ratios = [certificate.certified_ratio() for certificate in certificates]
    ax.plot(budgets, ratios, marker='.', label=label)
    ax.set_xlabel('budget')
    ax.set_ylabel('share certified robust')
    return ax


@validated
def plot_purity(
    certificate: Certificate,
    purity: Tensor,
    *,
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the worst-case margin against the neighbourhood purity.

    Args:
        certificate (Certificate): the certificate whose margins are drawn.
        purity (Tensor): the purity of all nodes, from
            :func:`neighborhood_purity`.
        label (str, optional): the name of the points. (default: :obj:`None`)
        ax (matplotlib.axes.Axes, optional): the axes to draw on; by default
            those of a new figure. (default: :obj:`None`)
    """
    _check_drawing(label, ax)
    size = (certificate.local_budget.numel(),)
    check_tensor('purity', purity, torch.float64, size)
    ax = axes(ax)
    ax.scatter(
        purity[certificate.targets],
        certificate.lower,
        s=4,
        alpha=0.4,
        label=label,
    )
    ax.axhline(0, color='gray', linewidth=0.5)
    ax.set_xlabel('neighbourhood purity')
    ax.set_ylabel('worst-case margin')
    return ax


@validated
def plot_certified_grid(
    report: SmoothedCertificate,
    kind: str = 'edges',
    *,
    limit: Natural = 20,
    ax: Any = None,
) -> Any:
    """Draw the certified share by additions and deletions as a heat map.

    Args:
        report (SmoothedCertificate): the certificate, which serves all radii.
        kind (str): :obj:`'edges'` or :obj:`'features'`.
            (default: :obj:`'edges'`)
        limit (int): the largest radius to draw. (default: :obj:`20`)
        ax (matplotlib.axes.Axes, optional): the axes to draw on; by default
            those of a new figure. (default: :obj:`None`)
    """
    _check_drawing(None, ax)
    reached = report.radii(kind, limit=limit)
    most = max(int(reached.max()), 0)
    steps = torch.arange(most + 1)
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
    labels: Annotated[Tensor, Array(torch.int64, 'num')],
    *,
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the certified accuracy against the number of changes.

    Args:
        certificate (VoteCertificate): the certificate; its :obj:`baseline`, if
            there is one, is drawn as a horizontal line.
        labels (Tensor): the true classes of all targets: int64.
        label (str, optional): the name of the curve. (default: :obj:`None`)
        ax (matplotlib.axes.Axes, optional): the axes to draw on; by default
            those of a new figure. (default: :obj:`None`)
    """
    _check_drawing(label, ax)
    most = max(int(certificate.radius.max()), 0) + 1
    shares = [
        certificate.certified_accuracy(labels, k) for k in range(most + 1)
    ]
    ax = axes(ax)
    ax.step(range(most + 1), shares, where='mid', label=label)
    if certificate.baseline is not None:
        ax.axhline(certificate.baseline, color='gray', linestyle=':')
    ax.set_xlabel(f'changes ({certificate.by})')
    ax.set_ylabel('certified accuracy')
    return ax


def _check_drawing(label: str | None, ax: Any) -> None:
    if label is not None:
        check_instance('label', label, str)
    if ax is not None and not hasattr(ax, 'scatter'):
        raise TypeError(
            f"'ax' needs to be matplotlib's axes (got {type(ax).__name__})"
        )
