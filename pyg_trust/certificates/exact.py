"""Certificates of models that are linear in personalized PageRank."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust._checks import (
    Fraction,
    NotNegative,
    check_choice,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust.certificates.any_model import certifies
from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.deployed import Deployed, diffuse_steps
from pyg_trust.certificates.proofs import witness_of
from pyg_trust.certificates.solver import Solver
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.distributed import check_same
from pyg_trust.report import (
    fingerprint,
    fingerprint_data,
    fingerprint_model,
    provenance,
)

__all__ = ['certify_pagerank']

METHODS = ('auto', 'dual', 'lp', 'exact')
COSTS = ('best', 'pagerank', 'visits')


@certifies(ThreatModel)
@validated
def certify_pagerank(
    model: Any,
    data: Any,
    threat: ThreatModel,
    *,
    alpha: Fraction | None = None,
    targets: Tensor | None = None,
    reference: Tensor | None = None,
    method: str = 'auto',
    cost: str = 'best',
    sign_only: bool = False,
    tolerance: NotNegative = 1e-9,
    over_ranks: bool = False,
) -> Certificate:
    r"""Certify predictions :math:`\arg\max_c (\Pi H)_{v, c}` of a model.

    For :class:`~pyg_trust.nn.PPNP`, label and feature propagation, and models
    that end in an ``APPNP``: all that are linear in personalized PageRank.
    Certified is the model as it is deployed, with its :obj:`alpha`,
    normalization, self-loops and steps, and the roundoff of its dtype. A model
    that returns anything else than the diffusion of its logits is refused.

    Without a global budget the worst-case margins are exact, by policy
    iteration over pairs of classes, and so is the status of every node; with
    :obj:`K` steps or an undirected attacker they are bounds. With one they
    are bounded from below by the local worst case under budgets
    :math:`\min(b_v, B)` and by the dual of the relaxed program. What that
    leaves is attacked, and where all admissible graphs are few they are tried
    (:obj:`method='auto'`): for a budget of one as a rule.

    Memory with a global budget: 8 bytes per pair of a target that the local
    worst case leaves open (all targets, unless :obj:`sign_only`) and a node.
    Few targets in a large graph are bounded in a region around each.

    Args:
        model (PageRankDiffusion or Tensor): the deployed model; or :math:`H`,
            the logits **before** diffusion, ``[num_nodes, num_classes]``.
        data (Data, optional): the input of the model; :obj:`None` with logits.
            For label propagation :obj:`y`, and :obj:`train_mask` if there is
            one.
        threat (ThreatModel): the attacker.
        alpha (float, optional): the teleport probability that goes with
            logits, in :math:`(0, 1)`, by default 0.15; a model has its own.
        targets (Tensor, optional): the nodes to certify: int64 indices or a
            bool mask. By default all. (default: :obj:`None`)
        reference (Tensor, optional): the class to defend, int64,
            ``[num_nodes]``. By default the predicted one.
        method (str): for a global budget: :obj:`'auto'`, every method that is
            worth its time; :obj:`'dual'`, bounds and attacks alone;
            :obj:`'lp'`, which takes the multipliers from the linear program
            (cvxpy, HiGHS) and proves the bound they give; or :obj:`'exact'`,
            every admissible graph. (default: :obj:`'auto'`)
        cost (str): the relaxation: :obj:`'pagerank'` (tighter as a rule),
            :obj:`'visits'` (the paper's, and the one of :obj:`'lp'`), or
            :obj:`'best'`, the second where the first leaves a target open.
            (default: :obj:`'best'`)
        sign_only (bool): whether to refine bounds only until their sign is
            known, which is many times faster. (default: :obj:`False`)
        tolerance (float): the largest absolute margin that counts as unknown.
            (default: :obj:`1e-9`)
        over_ranks (bool): whether the processes of torchrun share the work.
            All of them call it with the same arguments, and get the
            certificate of one process. Attacks and exhaustive search are done
            by each, but in regions. (default: :obj:`False`)

    Returns:
        Certificate: bounds, status and witnesses.

    Raises:
        TypeError: on a wrong type or dtype, or a model of another kind.
        ValueError: on logits of a wrong shape or not finite, :obj:`alpha`
            outside :math:`(0, 1)`, targets out of range, a model that
            computes something else than PageRank, data with another graph
            than the threat, or a method that does not fit.
    """
    if over_ranks:
        check_same(
            {
                'model': model,
                'data': data,
                'threat': _parts(threat),
                'alpha': alpha,
                'targets': targets,
                'reference': reference,
                'method': method,
                'cost': cost,
                'sign_only': sign_only,
                'tolerance': tolerance,
            }
        )
    nodes = torch.arange(threat.num_nodes)
    if targets is not None:
        # A copy: the caller may change the tensor after the report.
        nodes = check_nodes('targets', targets, threat.num_nodes).cpu().clone()
    deployed = _deployed(model, data, threat, alpha)
    _check_method(method, cost, threat, deployed)
    held = deployed.predicted
    if held is None:
        held = diffuse_steps(
            threat.graph, deployed.logits, deployed.alpha, None, 'rw'
        ).argmax(1)
    predicted = held
    if reference is not None:
        check_tensor('reference', reference, torch.int64, (threat.num_nodes,))
        check_range(
            'reference', reference, deployed.logits.size(1), 'the classes'
        )
        held = reference.cpu()
    solver = Solver(
        *(deployed, threat, nodes, held[nodes]),
        *(tolerance, over_ranks),
    )
    used = solver.solve(method, cost, sign_only)
    return _report(
        solver,
        predicted[nodes],
        method=used,
        provenance=provenance(
            threat=repr(threat),
            model=repr(deployed),
            method=method,
            cost=cost,
            sign_only=sign_only,
            tolerance=tolerance,
        ),
        weights=fingerprint_model(model.state_dict())
        if isinstance(model, Module)
        else '',
        data=fingerprint_data(data) if isinstance(data, Data) else '',
    )


def _report(solver: Solver, predicted: Tensor, **fields: Any) -> Certificate:
    threat, deployed, slack = solver.threat, solver.deployed, solver.slack
    perturbations = solver.perturbations
    status = torch.full_like(solver.targets, UNKNOWN, dtype=torch.int8)
    # The deployed scores are off by roundoff of their own.
    class_margins = solver.lower - slack
    lower, upper = class_margins.amin(1), solver.upper + slack.amax(1)
    status[lower > solver.tolerance] = ROBUST
    status[upper < -solver.tolerance] = BROKEN
    flips = solver.witnesses
    counts = [pairs.size(1) for pairs in flips]
    empty = torch.zeros((2, 0), dtype=torch.int64)
    scale = float(deployed.logits.abs().max())
    width = solver.upper - solver.lower.amin(1)
    proof, digest = witness_of(solver)
    return Certificate(
        num_robust=int((status == ROBUST).sum()),
        num_broken=int((status == BROKEN).sum()),
        num_unknown=int((status == UNKNOWN).sum()),
        model=deployed.name,
        scenario=threat.scenario,
        undirected=threat.undirected,
        global_budget=threat.global_budget,
        alpha=deployed.alpha,
        K=deployed.K,
        normalization=deployed.normalization,
        self_loops=deployed.self_loops,
        dtype=deployed.kind,
        exact=bool((width <= 1e-6 * max(scale, 1e-300)).all()),
        tolerance=float(solver.tolerance),
        roundoff=float(slack.max()) if slack.numel() else 0.0,
        fingerprint=fingerprint(
            *(deployed.logits, deployed.alpha, deployed.K),
            *(deployed.normalization, str(deployed.self_loops)),
            *(deployed.kind, *_parts(threat)),
            solver.reference,
            solver.targets,
            perturbations.graph.num_edges,
        ),
        model_digest=deployed.digest,
        targets=solver.targets,
        reference=solver.reference,
        predicted=predicted,
        status=status,
        lower=lower,
        upper=upper,
        class_margins=class_margins,
        local_budget=threat.local_budget,
        flips=torch.cat([empty, *flips], dim=1),
        flips_ptr=torch.tensor([0, *counts]).cumsum(0),
        flips_of=solver.witness_of,
        assumptions=deployed.assumptions,
        fixed_edges=int((~perturbations.removable).sum()),
        proof=proof,
        witness_digest=digest,
        **fields,
    )


def _parts(threat: ThreatModel) -> list[Any]:
    # What a threat consists of.
    return [
        threat.graph.rowptr,
        threat.graph.col,
        threat.perturbations.removable,
        threat.perturbations.pairs,
        str(threat.perturbations.all_pairs),
        threat.local_budget,
        threat.global_budget,
        str(threat.undirected),
    ]


def _deployed(
    model: Any, data: Any, threat: ThreatModel, alpha: float | None
) -> Deployed:
    if isinstance(model, Tensor):
        if data is not None:
            raise TypeError(
                "'data' needs to be left out with logits: "
                'certify(logits, threat)'
            )
        alpha = 0.15 if alpha is None else alpha
        return Deployed.of_logits(model, alpha, threat.graph)
    deployed = Deployed.of_model(model, data, threat.graph)
    if alpha is not None:
        raise ValueError(
            "'alpha' goes with logits alone: a model has its own teleport "
            f'probability (got {alpha}); a failure rate of {alpha:g} is '
            f'confidence={1 - alpha:g}, with a threat of BitFlips'
        )
    return deployed


def _check_method(
    method: str, cost: str, threat: ThreatModel, deployed: Deployed
) -> None:
    check_choice('method', method, METHODS)
    check_choice('cost', cost, COSTS)
    if cost == 'visits' and threat.undirected and method != 'lp':
        raise ValueError(
            "'cost' needs to be 'best' or 'pagerank' for an undirected "
            "attacker (got 'visits')"
        )
    if method == 'lp' and (
        deployed.K is not None or deployed.normalization != 'rw'
    ):
        raise ValueError(
            "'method' can be 'lp' for the limit of row-normalized steps alone "
            f'(got K={deployed.K}, {deployed.normalization!r})'
        )
