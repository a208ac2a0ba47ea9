"""The budget that a removal from a graph classifier spends, and its report."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from pyg_trust.functional.heads import (
    LOSSES,
    Objective,
    curvatures,
    hessian_solve,
    slopes,
)
from pyg_trust.functional.removal_bounds import (
    feature_removal_bound,
    node_removal_bound,
    paper_bound,
    tight_bound,
)
from pyg_trust.functional.rows import max_row_norm
from pyg_trust.functional.shifts import shift_epsilon
from pyg_trust.functional.wavelets import WAVELETS, frame_bound
from pyg_trust.kernel import removal
from pyg_trust.ledger import coarse
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning.node_checks import settled
from pyg_trust.unlearning.node_release import check_paid
from pyg_trust.unlearning.node_report import SAME
from pyg_trust.unlearning.scattering_reports import ASSUMPTIONS, UnlearnReport
from pyg_trust.unlearning.scattering_state import Model, Settings
from pyg_trust.unlearning.training_graphs import Change

# What a bound adds to an account keeps so many bits: it is a function of what
# was removed.
BITS = 4
# Numbers of embeddings that the kernel takes: half a gigabyte.
MOST = 2**26


def newton_step(
    settings: Settings,
    old: Model,
    new: Model,
    change: Change,
    request: RemovalRequest,
) -> tuple[Model, tuple[str, int, float, float, dict[str, float]]]:
    """One Newton step on the objective with its noise, and its account."""
    train, n = new.train, len(new.train.graphs)
    mu = settings.lam * n
    head = LOSSES[settings.loss]
    curvature = curvatures(train.Z @ old.W, train.Y, head)
    # grad L(w, D) - grad L(w, D'), to which untouched rows add nothing.
    right = settings.lam * (len(old.train.graphs) - n) * old.W
    for (rows, Y), sign in ((change.before, 1), (change.after, -1)):
        right += sign * (rows.t() @ slopes(rows @ old.W, Y, head))
    P = hessian_solve(train.Z, curvature, mu, right, train.K)
    model = new._replace(W=old.W + P)
    measured, upper = settings.residual(model)
    added: dict[str, float] = {}
    if settings.accounting == 'residual':
        spent = coarse(upper)
        if spent > settings.budget >= upper:
            spent = settings.budget
    else:
        added = increments(settings, old, new, request, P)
        objective = Objective(train.Z, train.Y, mu, head)
        left = objective.times(old.W, P) - right
        which = 'tight' if settings.accounting == 'bound' else 'paper'
        # The parts of the step round too, as gradients do.
        more = added[which] + float(left.norm()) + 4 * (upper - measured)
        spent = _sum(old.ledger.spent, coarse(more, BITS))
        if spent > settings.budget >= _sum(old.ledger.spent, more):
            spent = settings.budget
    # Within an account what is spent never falls.
    spent = max(spent, old.ledger.spent)
    return model, ('step', 1, measured, spent, added)


def _sum(one: float, two: float) -> float:
    # From above: with the larger first the difference is exact.
    one, two = max(one, two), min(one, two)
    total = one + two
    return total if total - one >= two else math.nextafter(total, math.inf)


def increments(
    settings: Settings,
    old: Model,
    new: Model,
    request: RemovalRequest,
    P: Tensor,
) -> dict[str, float]:
    """Bounds of the residual that a step adds."""
    was, now = old.train, new.train
    bounds = {'tight': tight_bound(now.Z, P, settings.loss, now.K)}
    if settings.accounting == 'bound':
        return bounds
    bounds['paper'] = paper_bound(now.Z, P, settings.loss, now.K)
    parts = list(request.parts.values())
    n, m = len(now.graphs), len(parts)
    if settings.loss != 'logistic' or n < len(was.graphs):
        return bounds
    # The worst cases are per class; together their Frobenius norm.
    classes = math.sqrt(now.Y.size(1))
    radius = max(max_row_norm(was.Z), max_row_norm(now.Z))
    bounds['node'] = classes * node_removal_bound(n, settings.lam, radius, m)
    transform = settings.transform
    if (
        isinstance(transform, GraphScattering)
        and transform.Q == 1
        and transform.low_pass == 'mean'
        and math.isfinite(frame_bound(transform.wavelet, transform.J))
        and all(
            len(part.features) == 1 and not part.nodes and not part.edges
            for part in parts
        )
    ):
        frame = frame_bound(transform.wavelet, transform.J)
        stability = math.sqrt(
            sum(frame ** (2 * layer) for layer in range(transform.L))
        )
        # The removed features are at most 1 each, and the present
        # residual adds to what the noise does to the weights.
        width = was.graphs[request.graphs[0]].x.size(1)
        size = min(now.graphs[i].num_nodes for i in request.graphs)
        noise = float(old.B.norm(dim=0).max()) + old.ledger.spent
        bounds['feature'] = classes * feature_removal_bound(
            n,
            size,
            settings.lam,
            radius,
            stability * math.sqrt(width),
            noise,
            m,
        )
    return bounds


def paid(settings: Settings, model: Model, upper: float, spent: float) -> None:
    """Check that a release with noise is paid for, as the kernel counts.

    Args:
        settings (Settings): of the classifier.
        model (Model): with the weights before the noise.
        upper (float): of their residual.
        spent (float): what is put on the account.

    Raises:
        RuntimeError: as :func:`.check_paid`.
    """
    given = len(model.train.graphs), settings.lam, model.W.numpy()
    shift = removal.shift(upper, *given, settings.release_std)
    check_paid(shift, spent, settings.budget)


def proved(settings: Settings, again: Model, claimed: bool) -> dict[str, Any]:
    """What the kernel proves of the last release: fields of a report.

    Of embeddings as they are handed in: it makes none itself.

    Args:
        settings (Settings): of the classifier.
        again (Model): with embeddings that were made anew.
        claimed (bool): whether the residual was found to be within its bound.

    Raises:
        RuntimeError: as :func:`.settled`.
    """
    Z, spent = again.train.Z, again.ledger.spent
    if settings.noise == 'objective' or not spent or Z.numel() > MOST:
        return {}
    graphs = again.train.graphs.values()
    y = np.array([int(graph.y) for graph in graphs])
    labels = np.searchsorted(again.train.classes, y)
    head, lam = LOSSES[settings.loss], settings.lam
    Y = removal.targets(labels, len(again.train.classes), head)
    rows, W = removal.Features(Z.to_dense().numpy(), 0.0), again.W.numpy()
    beta = removal.residual(rows, Y, W, lam, head)
    std, n = settings.release_std, len(labels)
    found = removal.Proof(n, beta, removal.shift(beta.most, n, lam, W, std))
    return settled(found, spent * std * lam * n, spent, claimed)


def describe(
    settings: Settings,
    model: Model,
    action: str,
    request: RemovalRequest,
    change: Change,
    measured: float,
    iterations: int,
    increments: dict[str, float],
) -> UnlearnReport:
    """The report of a removal."""
    lines = model.ledger.entries
    spent = lines[-1].spent
    mu = settings.lam * len(model.train.graphs)
    output = settings.noise == 'output'
    epsilon = settings.epsilon * spent / settings.budget
    transcript, beta = math.inf, spent
    if output:
        epsilon = shift_epsilon(spent, settings.delta)
        together = removal.together([line.spent for line in lines])
        transcript = shift_epsilon(together, settings.delta)
        beta = spent * settings.release_std * mu
    return UnlearnReport(
        action=action,
        request=request.to_dict(),
        mode=settings.mode,
        noise=settings.noise,
        seeded=model.seed is not None,
        accounting=settings.accounting,
        graphs_embedded=len(change.touched),
        num_graphs=len(model.train.graphs),
        empty_classes=model.train.empty_classes,
        # 0 beside a fit by the same program, which has it too.
        residual=measured * (spent > 0),
        bound=spent,
        budget=settings.budget,
        distance_bound=beta / mu,
        release_std=settings.release_std if output else 0.0,
        epsilon=epsilon,
        epsilon_transcript=transcript,
        delta=settings.delta,
        releases=len(lines),
        iterations=iterations,
        increments=increments,
        assumptions=(
            *ASSUMPTIONS[settings.noise],
            *SAME * (output and spent == 0),
            *_unchecked(settings.transform),
        ),
        data=lines[-1].data,
        origin=provenance(
            transform=str(settings.transform),
            lam=settings.lam,
            epsilon=settings.epsilon,
            noise_std=settings.noise_std,
            loss=settings.loss,
            on_exceed=settings.on_exceed,
            num_classes=settings.num_classes,
            tol=settings.tol,
        ),
        weights=fingerprint_model({'weight': model.released}),
        history=tuple(line.spent for line in lines),
        ledger_head=model.ledger.head,
    )


def _unchecked(transform: Any) -> tuple[str, ...]:
    wavelet = getattr(transform, 'wavelet', 'geometric')
    if not WAVELETS.is_own(wavelet):
        return ()
    return (
        f'NOT CHECKED: that {WAVELETS.note(wavelet)}, is a function of one '
        'graph alone',
    )
