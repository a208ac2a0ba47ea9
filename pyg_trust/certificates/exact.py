"""Certificates of models that are linear in personalized PageRank."""

import math
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from pyg_trust._checks import (
    check_integer,
    check_nodes,
    check_number,
    check_tensor,
)
from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.certify import certifies
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.functional.budget import (
    budget_attacks,
    clip_budget,
    dual_bound,
    linear_program,
    pagerank_bounds,
    refine_pagerank_bounds,
    single_flip_margins,
)
from pyg_trust.functional.diffusion import diffuse
from pyg_trust.functional.perturbations import Perturbations, Policy
from pyg_trust.functional.policy import (
    WorstCase,
    policy_iteration,
    policy_value,
    worst_case_margins,
)
from pyg_trust.report import fingerprint, provenance

METHODS = ('dual', 'lp', 'exact')
# Numbers in a dense block of target-class pairs by nodes.
_BLOCK = 2**24


@certifies(ThreatModel)
def certify_pagerank(
    model: Any,
    data: Any,
    threat: ThreatModel,
    *,
    alpha: float | None = None,
    targets: Tensor | None = None,
    reference: Tensor | None = None,
    method: str = 'dual',
    cost: str = 'pagerank',
    sign_only: bool = False,
    refine: int = 0,
    tolerance: float = 1e-9,
    progress_bar: bool = False,
) -> Certificate:
    r"""Certifies predictions :math:`\arg\max_c (\Pi H)_{v, c}`.

    For every model whose predictions are linear in personalized PageRank:
    :class:`~pyg_trust.nn.PPNP`, label propagation, feature propagation and
    SGC-like models; hand over :obj:`model.logits(...)`.

    Without a global budget the worst-case margins are exact, by policy
    iteration over all pairs of classes
    (:func:`~pyg_trust.functional.worst_case_margins`), and so is the status of
    every node. With one they are bounded from below by the local worst case
    under budgets :math:`\min(b_v, B)` and by the dual of the relaxed program
    (:func:`~pyg_trust.functional.dual_bound`); where the bound is negative,
    the relaxed solution is tried as an attack.

    Memory with a global budget: 8 bytes per pair of a target that the local
    worst case leaves open (all targets, unless :obj:`sign_only`) and a node.

    Args:
        model (PageRankDiffusion or Tensor): the model that is deployed; or
            :math:`H`, the logits **before** diffusion, ``[num_nodes,
            num_classes]``.
        data (Data, optional): what the model is applied to; :obj:`None` with
            logits.
        threat (ThreatModel): the attacker.
        alpha (float, optional): the teleport probability that goes with
            logits, in :math:`(0, 1)`, by default 0.15; a model has its own.
            (default: :obj:`None`)
        targets (Tensor, optional): the nodes to certify: int64 indices or a
            bool mask. By default all. (default: :obj:`None`)
        reference (Tensor, optional): the class to defend, int64,
            ``[num_nodes]``. By default the predicted one.
            (default: :obj:`None`)
        method (str): for a global budget: :obj:`'dual'`; :obj:`'lp'`, which
            takes the multipliers from the linear program (cvxpy, HiGHS) and
            proves the bound they give; or :obj:`'exact'`, brute force, for a
            budget of one. (default: :obj:`'dual'`)
        cost (str): the relaxation: :obj:`'pagerank'` (tighter as a rule) or
            :obj:`'visits'` (the paper's, and the one of :obj:`'lp'`).
            (default: :obj:`'pagerank'`)
        sign_only (bool): whether to refine bounds only until their sign is
            known, which is many times faster. (default: :obj:`False`)
        refine (int): how often targets that are still unknown are tried
            again with upper bounds of PageRank under the global budget
            (:func:`~pyg_trust.functional.refine_pagerank_bounds`), for the
            dual with the cost :obj:`'pagerank'`: seconds for each.
            (default: :obj:`0`)
        tolerance (float): margins within this of zero are unknown.
            (default: :obj:`1e-9`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Certificate: bounds, status and witnesses.

    Raises:
        TypeError: on a wrong type or dtype.
        ValueError: on logits of a wrong shape or not finite, :obj:`alpha`
            outside :math:`(0, 1)`, targets out of range, or a method that
            does not fit the budget.
    """
    if not isinstance(threat, ThreatModel):
        raise TypeError(
            f"'threat' needs to be a ThreatModel (got {type(threat).__name__})"
        )
    deployed = _deployed(model, data, threat, alpha)
    if deployed.K is not None or deployed.normalization != 'rw':
        raise ValueError('not yet')
    logits, alpha = deployed.logits, deployed.alpha
    nodes = torch.arange(threat.num_nodes)
    if targets is not None:
        nodes = check_nodes('targets', targets, threat.num_nodes)
    if not check_number('tolerance', tolerance) >= 0:
        raise ValueError(
            f"'tolerance' needs to be non-negative (got {tolerance})"
        )
    _check_method(method, cost, threat.global_budget)
    check_integer('refine', refine, 0)
    if refine > 0 and (method, cost) != ('dual', 'pagerank'):
        raise ValueError(
            "'refine' needs the method 'dual' and the cost 'pagerank' "
            f'(got {method!r} and {cost!r})'
        )
    predicted = deployed.predicted
    if predicted is None:
        predicted = diffuse(threat.graph, logits, alpha).argmax(1)
    held = predicted if reference is None else reference
    check_tensor('reference', held, torch.int64, (threat.num_nodes,))
    if not 0 <= int(held.min()) <= int(held.max()) < logits.size(1):
        raise ValueError(
            f"'reference' needs to be in [0, {logits.size(1)}), the classes "
            f'(got {int(held.min())} to {int(held.max())})'
        )
    problem = _Problem(
        logits, threat, alpha, nodes, held[nodes], tolerance, progress_bar
    )
    total = int(threat.local_budget.sum())
    if threat.global_budget is None or threat.global_budget >= total:
        used = 'local'
        problem.solve_local()
    elif method == 'exact':
        used = method
        problem.solve_single_flip()
    else:
        used = method
        problem.solve_local(witnesses=False)
        problem.solve_global(method, cost, sign_only, refine)
    status = torch.full_like(nodes, UNKNOWN, dtype=torch.int8)
    lower, upper = problem.lower.amin(1), problem.upper
    status[lower > tolerance] = ROBUST
    status[upper < -tolerance] = BROKEN
    flips = problem.witnesses
    counts = [pairs.size(1) for pairs in flips]
    empty = torch.zeros((2, 0), dtype=torch.int64)
    return Certificate(
        targets=nodes,
        reference=held[nodes],
        predicted=predicted[nodes],
        status=status,
        lower=lower,
        upper=upper,
        class_margins=problem.lower,
        exact=used in ('local', 'exact'),
        scenario=threat.scenario,
        local_budget=threat.local_budget,
        global_budget=threat.global_budget,
        alpha=alpha,
        method=used,
        tolerance=float(tolerance),
        fingerprint=fingerprint(
            logits, threat.graph.rowptr, threat.graph.col, alpha
        ),
        flips=torch.cat([empty, *flips], dim=1),
        flips_ptr=torch.tensor([0, *counts]).cumsum(0),
        flips_of=problem.witness_of,
        num_robust=int((status == ROBUST).sum()),
        num_broken=int((status == BROKEN).sum()),
        num_unknown=int((status == UNKNOWN).sum()),
        provenance=provenance(
            threat=repr(threat),
            alpha=alpha,
            method=method,
            cost=cost,
            sign_only=sign_only,
            refine=refine,
            tolerance=tolerance,
        ),
    )


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
    if alpha is not None:
        raise ValueError(
            "'alpha' goes with logits alone: a model has its own "
            f'(got {alpha})'
        )
    return Deployed.of_model(model, data, threat.graph)


class _Problem:
    """The bounds of one call of :func:`certify`, as they get tighter."""

    def __init__(
        self,
        logits: Tensor,
        threat: ThreatModel,
        alpha: float,
        targets: Tensor,
        reference: Tensor,
        tolerance: float,
        progress_bar: bool,
    ) -> None:
        self.logits, self.alpha = logits, alpha
        self.targets, self.reference = targets, reference
        self.tolerance, self.progress_bar = tolerance, progress_bar
        self.budget = threat.global_budget
        self.perturbations: Perturbations = threat.perturbations
        if self.budget is not None:
            self.perturbations = clip_budget(self.perturbations, self.budget)
        shape = (targets.numel(), logits.size(1))
        self.lower = logits.new_full(shape, -math.inf)
        self.upper = logits.new_full(shape[:1], math.inf)
        self.witnesses: list[Tensor] = []
        self.witness_of = torch.full(shape[:1], -1)
        self.worst: WorstCase | None = None
        self.clean = diffuse(threat.graph, logits, alpha)[targets]

    def solve_local(self, *, witnesses: bool = True) -> None:
        """The exact worst case under local budgets, for all nodes."""
        worst = worst_case_margins(
            self.logits,
            self.perturbations,
            self.alpha,
            progress_bar=self.progress_bar,
        )
        self.worst = worst
        # [num_targets, num_classes], infinite at the reference class.
        self.lower = worst.lower[self.reference, :, self.targets]
        if not witnesses:
            return
        upper = worst.upper[self.reference, :, self.targets]
        self.upper, against = upper.min(1)
        made: dict[tuple[int, int], int] = {}
        for k in (self.upper < -self.tolerance).nonzero().view(-1).tolist():
            pair = int(self.reference[k]), int(against[k])
            if pair not in made:
                made[pair] = len(self.witnesses)
                self.witnesses.append(worst.flips(*pair))
            self.witness_of[k] = made[pair]

    def solve_single_flip(self) -> None:
        """The exact worst case of one flip, by brute force."""
        found = single_flip_margins(
            self.logits,
            self.perturbations,
            self.targets,
            self.reference,
            self.alpha,
            progress_bar=self.progress_bar,
        )
        self.lower = found.margins - found.error
        margins, against = found.margins.min(1)
        self.upper = margins + found.error
        for k in (self.upper < -self.tolerance).nonzero().view(-1).tolist():
            flip = found.flips[k, against[k]].view(2, 1)
            self.witness_of[k] = len(self.witnesses)
            self.witnesses.append(flip[:, :0] if flip[0] < 0 else flip)

    def solve_global(
        self, method: str, cost: str, sign_only: bool, refine: int
    ) -> None:
        """The dual bound where it is wanted, attacks where it is negative."""
        if method == 'lp':
            cost = 'visits'
        open_ = self.lower <= (self.tolerance if sign_only else math.inf)
        open_[torch.arange(len(self.reference)), self.reference] = False
        which = open_.any(1).nonzero().view(-1)
        bounds = pagerank_bounds(
            self.perturbations,
            self.targets[which],
            self.alpha,
            cost=cost,
            progress_bar=self.progress_bar,
        )
        self.try_columns(which, open_, bounds, method, cost, sign_only)
        for _ in range(refine):
            unsure = self.lower[which].amin(1) <= self.tolerance
            unsure &= self.upper[which] >= -self.tolerance
            which, bounds = which[unsure], bounds[unsure]
            assert self.budget is not None
            bounds = refine_pagerank_bounds(
                self.perturbations,
                self.targets[which],
                bounds,
                self.budget,
                self.alpha,
                progress_bar=self.progress_bar,
            )
            open_ = open_ & (self.lower <= self.tolerance)
            self.try_columns(which, open_, bounds, method, cost, sign_only)

    def try_columns(
        self,
        which: Tensor,
        open_: Tensor,
        bounds: Tensor,
        method: str,
        cost: str,
        sign_only: bool,
    ) -> None:
        """Bounds and attacks of the classes that are open for some targets."""
        size = max(1, _BLOCK // (self.logits.numel() * 4))
        total = int(open_[which].sum())
        with tqdm(
            total=total, disable=not self.progress_bar, desc='targets, classes'
        ) as bar:
            for first in range(0, which.numel(), size):
                part = which[first : first + size]
                row, against = open_[part].nonzero(as_tuple=True)
                columns = _Columns(
                    self, part[row], against, bounds[first : first + size][row]
                )
                multiplier = columns.bound(method, cost, sign_only, bar)
                columns.attack(multiplier, cost)

    def reward(self, k: Tensor, against: Tensor) -> Tensor:
        """What the attacker gains per visit, a row per target and class."""
        held = self.logits[:, self.reference[k]]
        return (self.logits[:, against] - held).t().contiguous()


class _Columns:
    """Pairs of a target (its position k) and a class it may turn to."""

    def __init__(
        self, problem: _Problem, k: Tensor, against: Tensor, upper: Tensor
    ) -> None:
        self.problem, self.k, self.against = problem, k, against
        self.upper = upper
        self.targets = problem.targets[k]
        self.reward = problem.reward(k, against)

    def bound(
        self, method: str, cost: str, sign_only: bool, bar: tqdm
    ) -> Tensor:
        problem = self.problem
        budget, alpha = problem.budget, problem.alpha
        assert budget is not None
        assert problem.worst is not None
        held = problem.reference[self.k]
        start = -problem.worst.margins[held, self.against] / alpha
        if method == 'dual':
            found = dual_bound(
                problem.perturbations,
                self.reward,
                self.targets,
                self.upper,
                budget,
                alpha,
                cost=cost,
                sign_only=sign_only,
                start=start,
                clean=self.clean(),
            )
            made, multiplier = found.bound, found.multiplier
            bar.update(self.k.numel())
        else:
            multiplier = self.reward.new_zeros(self.k.numel())
            made = self.reward.new_zeros(self.k.numel())
            for i, target in enumerate(self.targets.tolist()):
                _, multiplier[i] = linear_program(
                    problem.perturbations,
                    self.reward[i],
                    target,
                    self.upper[i],
                    budget,
                    alpha,
                )
                price = multiplier[i] / self.upper[i : i + 1] * (1 - 1e-15)
                proof = policy_iteration(
                    problem.perturbations,
                    self.reward[i : i + 1],
                    alpha,
                    visit_cost=price,
                    start=start[i : i + 1],
                )
                top = proof.value[0, target] + proof.high[0]
                made[i] = multiplier[i] * budget + alpha * top
                bar.update()
        # The local worst case is a lower bound as well.
        pair = self.k, self.against
        problem.lower[pair] = torch.maximum(problem.lower[pair], -made)
        return multiplier

    def clean(self) -> Tensor:
        """What the attacker has without a flip."""
        clean = self.problem.clean[self.k]
        here = torch.arange(self.k.numel())
        held = self.problem.reference[self.k]
        return clean[here, self.against] - clean[here, held]

    def attack(self, multiplier: Tensor, cost: str) -> None:
        problem = self.problem
        assert problem.budget is not None
        weak = problem.lower[self.k, self.against] <= problem.tolerance
        column = weak.nonzero().view(-1)
        if column.numel() == 0:
            return
        flips = budget_attacks(
            problem.perturbations,
            self.reward[column],
            self.targets[column],
            self.upper[column],
            multiplier[column],
            problem.budget,
            problem.alpha,
            cost=cost,
        )
        for block in problem.perturbations.column_blocks(column.numel()):
            here = column[block]
            policy = Policy.from_flips(problem.perturbations, flips[block])
            found = policy_value(policy, self.reward[here], problem.alpha)
            at = found.value[torch.arange(here.numel()), self.targets[here]]
            upper = -problem.alpha * (at + found.low)
            for i, k in enumerate(self.k[here].tolist()):
                if upper[i] < problem.upper[k]:
                    problem.upper[k] = upper[i]
                    if upper[i] < -problem.tolerance:
                        problem.witness_of[k] = len(problem.witnesses)
                        problem.witnesses.append(flips[block.start + i])


def _check_method(method: str, cost: str, budget: int | None) -> None:
    if method not in METHODS:
        raise ValueError(
            f"'method' needs to be one of {METHODS} (got {method!r})"
        )
    if cost not in ('pagerank', 'visits'):
        raise ValueError(
            f"'cost' needs to be 'pagerank' or 'visits' (got {cost!r})"
        )
    if method == 'exact' and budget not in (None, 0, 1):
        raise ValueError(
            "'method' can be 'exact' for a global budget of at most one "
            f'(got a budget of {budget})'
        )
