"""The budget that a removal from a graph classifier spends, and its report."""

import math
from typing import TYPE_CHECKING, Any

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
from pyg_trust.functional.shifts import compose_shifts, shift_epsilon
from pyg_trust.functional.wavelets import WAVELETS, frame_bound
from pyg_trust.ledger import (
    coarse,
)
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import fingerprint_model, provenance
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning.node_report import SAME
from pyg_trust.unlearning.scattering_reports import (
    ASSUMPTIONS,
    UnlearnReport,
)
from pyg_trust.unlearning.scattering_state import Model
from pyg_trust.unlearning.training_graphs import (
    Change,
)

if TYPE_CHECKING:
    from pyg_trust.unlearning.scattering import ScatteringClassifier

# What a bound adds to an account keeps so many bits: it is a function of what
# was removed.
BITS = 4


def newton_step(
    classifier: 'ScatteringClassifier',
    old: Model,
    new: Model,
    change: Change,
    request: RemovalRequest,
) -> tuple[Model, tuple[str, int, float, float, dict[str, float]]]:
    """One Newton step on the objective with its noise, and its account."""
    train, n = new.train, len(new.train.graphs)
    mu = classifier.lam * n
    head = LOSSES[classifier.loss]
    curvature = curvatures(train.Z @ old.W, train.Y, head)
    # grad L(w, D) - grad L(w, D'), to which untouched rows add nothing.
    right = classifier.lam * (len(old.train.graphs) - n) * old.W
    for (rows, Y), sign in ((change.before, 1), (change.after, -1)):
        right += sign * (rows.t() @ slopes(rows @ old.W, Y, head))
    P = hessian_solve(train.Z, curvature, mu, right, train.K)
    model = new._replace(W=old.W + P)
    measured, upper = classifier._residual(model)
    added: dict[str, float] = {}
    if classifier.accounting == 'residual':
        spent = coarse(upper)
        if spent > classifier.budget >= upper:
            spent = classifier.budget
    else:
        added = increments(classifier, old, new, request, P)
        objective = Objective(train.Z, train.Y, mu, head)
        left = objective.times(old.W, P) - right
        which = 'tight' if classifier.accounting == 'bound' else 'paper'
        # The parts of the step round too, as gradients do.
        more = added[which] + float(left.norm()) + 4 * (upper - measured)
        spent = _sum(old.ledger.spent, coarse(more, BITS))
        if spent > classifier.budget >= _sum(old.ledger.spent, more):
            spent = classifier.budget
    # Within an account what is spent never falls.
    spent = max(spent, old.ledger.spent)
    return model, ('step', 1, measured, spent, added)


def _sum(one: float, two: float) -> float:
    # From above: with the larger first the difference is exact.
    one, two = max(one, two), min(one, two)
    total = one + two
    return total if total - one >= two else math.nextafter(total, math.inf)


def increments(
    classifier: 'ScatteringClassifier',
    old: Model,
    new: Model,
    request: RemovalRequest,
    P: Tensor,
) -> dict[str, float]:
    """Bounds of the residual that a step adds."""
    was, now = old.train, new.train
    bounds = {'tight': tight_bound(now.Z, P, classifier.loss, now.K)}
    if classifier.accounting == 'bound':
        return bounds
    bounds['paper'] = paper_bound(now.Z, P, classifier.loss, now.K)
    parts = list(request.parts.values())
    n, m = len(now.graphs), len(parts)
    if classifier.loss != 'logistic' or n < len(was.graphs):
        return bounds
    # The worst cases are per class; together their Frobenius norm.
    classes = math.sqrt(now.Y.size(1))
    radius = max(max_row_norm(was.Z), max_row_norm(now.Z))
    bounds['node'] = classes * node_removal_bound(n, classifier.lam, radius, m)
    transform = classifier.transform
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
            classifier.lam,
            radius,
            stability * math.sqrt(width),
            noise,
            m,
        )
    return bounds


def describe(
    classifier: 'ScatteringClassifier',
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
    mu = classifier.lam * len(model.train.graphs)
    output = classifier.noise == 'output'
    epsilon = classifier.epsilon * spent / classifier.budget
    transcript, beta = math.inf, spent
    if output:
        epsilon = shift_epsilon(spent, classifier.delta)
        together = compose_shifts(line.spent for line in lines)
        transcript = shift_epsilon(together, classifier.delta)
        beta = spent * classifier.release_std * mu
    return UnlearnReport(
        action=action,
        request=request.to_dict(),
        mode=classifier.mode,
        noise=classifier.noise,
        seeded=model.seed is not None,
        accounting=classifier.accounting,
        graphs_embedded=len(change.touched),
        num_graphs=len(model.train.graphs),
        empty_classes=model.train.empty_classes,
        # 0 beside a fit by the same program, which has it too.
        residual=measured * (spent > 0),
        bound=spent,
        budget=classifier.budget,
        distance_bound=beta / mu,
        release_std=classifier.release_std if output else 0.0,
        epsilon=epsilon,
        epsilon_transcript=transcript,
        delta=classifier.delta,
        releases=len(lines),
        iterations=iterations,
        increments=increments,
        assumptions=(
            *ASSUMPTIONS[classifier.noise],
            *SAME * (output and spent == 0),
            *_unchecked(classifier.transform),
        ),
        data=lines[-1].data,
        origin=provenance(
            transform=str(classifier.transform),
            lam=classifier.lam,
            epsilon=classifier.epsilon,
            noise_std=classifier.noise_std,
            loss=classifier.loss,
            on_exceed=classifier.on_exceed,
            num_classes=classifier.num_classes,
            tol=classifier.tol,
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
