# Longer than 700 lines because all methods set up, bound and check one
# problem, whose parts have no meaning apart.
"""Certificates of models that are linear in personalized PageRank."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from tqdm import tqdm

from pyg_trust._checks import (
    check_instance,
    check_integer,
    check_nodes,
    check_number,
    check_range,
    check_tensor,
)
from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.certify import certifies
from pyg_trust.certificates.deployed import Deployed, diffuse_steps
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.distributed import check_same, shared
from pyg_trust.functional.budget import (
    clip_budget,
    dual_bound,
    pagerank_bounds,
    refine_pagerank_bounds,
)
from pyg_trust.functional.flips import budget_attacks, single_flip_margins
from pyg_trust.functional.horizon import Horizon
from pyg_trust.functional.perturbations import Policy
from pyg_trust.functional.policy import policy_iteration
from pyg_trust.functional.program import linear_program
from pyg_trust.functional.region import local_attack, local_bound
from pyg_trust.functional.search import (
    Exhaustive,
    candidates,
    count_sets,
    greedy_attacks,
)
from pyg_trust.report import (
    fingerprint,
    fingerprint_data,
    fingerprint_model,
    provenance,
)

METHODS = ('auto', 'dual', 'lp', 'exact')
COSTS = ('best', 'pagerank', 'visits')
# Numbers in a dense block of target-class pairs by nodes.
_BLOCK = 2**24
# What exhaustive search may cost by itself: graphs times numbers in each.
_CHEAP = 2**28
_FEW = 2**14


@certifies(ThreatModel)
def certify_pagerank(
    model: Any,
    data: Any,
    threat: ThreatModel,
    *,
    alpha: float | None = None,
    targets: Tensor | None = None,
    reference: Tensor | None = None,
    method: str = 'auto',
    cost: str = 'best',
    sign_only: bool = False,
    refine: int = 0,
    tolerance: float = 1e-9,
    over_ranks: bool = False,
    progress_bar: bool = False,
) -> Certificate:
    r"""Certifies predictions :math:`\arg\max_c (\Pi H)_{v, c}` of a model.

    For :class:`~pyg_trust.nn.PPNP`, label and feature propagation: models
    that are linear in personalized PageRank. Certified is the model as it is
    deployed, or nothing: its :obj:`alpha`, normalization and self-loops; its
    :obj:`K` steps (:mod:`pyg_trust.functional.horizon`); and the roundoff of
    its dtype (:mod:`pyg_trust.certificates.deployed`). A model that returns
    anything else than the diffusion of its logits is refused.

    Without a global budget the worst-case margins are exact, by policy
    iteration over pairs of classes, and so is the status of every node; with
    :obj:`K` steps or an undirected attacker they are bounds. With one they
    are bounded from below by the local worst case under budgets
    :math:`\min(b_v, B)` and by the dual of the relaxed program
    (:func:`~pyg_trust.functional.dual_bound`). What that leaves open is
    attacked, greedily and with swaps, and where all admissible graphs are few
    they are tried (:obj:`method='auto'`): for a budget of one as a rule.

    Memory with a global budget: 8 bytes per pair of a target that the local
    worst case leaves open (all targets, unless :obj:`sign_only`) and a node.
    Few targets in a large graph are bounded in a region around each.

    Args:
        model (PageRankDiffusion or Tensor): the model that is deployed; or
            :math:`H`, the logits **before** diffusion, ``[num_nodes,
            num_classes]``.
        data (Data, optional): what the model is applied to; :obj:`None` with
            logits. For label propagation :obj:`y`, and :obj:`train_mask` if
            there is one.
        threat (ThreatModel): the attacker.
        alpha (float, optional): the teleport probability that goes with
            logits, in :math:`(0, 1)`, by default 0.15; a model has its own.
            (default: :obj:`None`)
        targets (Tensor, optional): the nodes to certify: int64 indices or a
            bool mask. By default all. (default: :obj:`None`)
        reference (Tensor, optional): the class to defend, int64,
            ``[num_nodes]``. By default the predicted one.
            (default: :obj:`None`)
        method (str): for a global budget: :obj:`'auto'`, all that is worth
            its time; :obj:`'dual'`, bounds and attacks alone; :obj:`'lp'`,
            which takes the multipliers from the linear program (cvxpy, HiGHS)
            and proves the bound they give; or :obj:`'exact'`, every
            admissible graph. (default: :obj:`'auto'`)
        cost (str): the relaxation: :obj:`'pagerank'` (tighter as a rule),
            :obj:`'visits'` (the paper's, and the one of :obj:`'lp'`), or
            :obj:`'best'`, the second where the first leaves a target open.
            (default: :obj:`'best'`)
        sign_only (bool): whether to refine bounds only until their sign is
            known, which is many times faster. (default: :obj:`False`)
        refine (int): how often targets that are still unknown are tried
            again with upper bounds of PageRank under the global budget
            (:func:`~pyg_trust.functional.refine_pagerank_bounds`): seconds
            for each. (default: :obj:`0`)
        tolerance (float): margins within this of zero are unknown.
            (default: :obj:`1e-9`)
        over_ranks (bool): whether the processes of torchrun share the pairs
            of classes of the local worst case, the rows of PageRank bounds,
            and the targets of a global budget. All of them call it with the
            same arguments, and get the certificate of one process. Greedy
            attacks and exhaustive search are done by each, but in regions.
            (default: :obj:`False`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Certificate: bounds, status and witnesses.

    Raises:
        TypeError: on a wrong type or dtype, or a model of another kind.
        ValueError: on logits of a wrong shape or not finite, :obj:`alpha`
            outside :math:`(0, 1)`, targets out of range, a model that
            computes something else than it says, data with another graph
            than the threat, or a method that does not fit.
    """
    if not isinstance(threat, ThreatModel):
        raise TypeError(
            f"'threat' needs to be a ThreatModel (got {type(threat).__name__})"
        )
    check_instance('over_ranks', over_ranks, bool)
    if over_ranks:
        made = threat.perturbations
        check_same(
            {
                'model': model,
                'data': data,
                'threat': [
                    threat.graph.rowptr,
                    threat.graph.col,
                    made.removable,
                    made.pairs,
                    made.all_pairs,
                    threat.local_budget,
                    threat.global_budget,
                    threat.undirected,
                ],
                'alpha': alpha,
                'targets': targets,
                'reference': reference,
                'method': method,
                'cost': cost,
                'sign_only': sign_only,
                'refine': refine,
                'tolerance': tolerance,
            }
        )
    nodes = torch.arange(threat.num_nodes)
    if targets is not None:
        nodes = check_nodes('targets', targets, threat.num_nodes).cpu()
    if not 0 <= check_number('tolerance', tolerance) < math.inf:
        raise ValueError(
            f"'tolerance' needs to be non-negative (got {tolerance})"
        )
    check_integer('refine', refine, 0)
    deployed = _deployed(model, data, threat, alpha)
    _check_method(method, cost, refine, threat, deployed)
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
    problem = _Problem(
        *(deployed, threat, nodes, held[nodes]),
        tolerance,
        over_ranks,
        progress_bar,
    )
    used = problem.solve(method, cost, sign_only, refine)
    return _report(
        problem,
        used,
        predicted[nodes],
        {
            'threat': repr(threat),
            'model': repr(deployed),
            'method': method,
            'cost': cost,
            'sign_only': sign_only,
            'refine': refine,
            'tolerance': tolerance,
        },
        {
            'weights': fingerprint_model(model.state_dict())
            if isinstance(model, Module)
            else '',
            'data': fingerprint_data(data) if isinstance(data, Data) else '',
        },
    )


def _report(
    problem: '_Problem',
    used: str,
    predicted: Tensor,
    arguments: dict[str, Any],
    hashes: dict[str, str],
) -> Certificate:
    threat, deployed = problem.threat, problem.deployed
    made = problem.perturbations
    slack = problem.slack
    status = torch.full_like(problem.targets, UNKNOWN, dtype=torch.int8)
    # What is deployed may be off by its own roundoff.
    class_margins = problem.lower - slack
    lower, upper = class_margins.amin(1), problem.upper + slack.amax(1)
    status[lower > problem.tolerance] = ROBUST
    status[upper < -problem.tolerance] = BROKEN
    flips = problem.witnesses
    counts = [pairs.size(1) for pairs in flips]
    empty = torch.zeros((2, 0), dtype=torch.int64)
    scale = float(deployed.logits.abs().max())
    width = problem.upper - problem.lower.amin(1)
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
        method=used,
        exact=bool((width <= 1e-6 * max(scale, 1e-300)).all()),
        tolerance=float(problem.tolerance),
        roundoff=float(slack.max()) if slack.numel() else 0.0,
        fingerprint=fingerprint(
            deployed.logits,
            deployed.alpha,
            deployed.K,
            deployed.normalization,
            str(deployed.self_loops),
            deployed.kind,
            threat.graph.rowptr,
            threat.graph.col,
            threat.perturbations.removable,
            threat.perturbations.pairs,
            str(threat.perturbations.all_pairs),
            threat.local_budget,
            threat.global_budget,
            str(threat.undirected),
            problem.reference,
            problem.targets,
            made.graph.num_edges,
        ),
        model_digest=deployed.digest,
        targets=problem.targets,
        reference=problem.reference,
        predicted=predicted,
        status=status,
        lower=lower,
        upper=upper,
        class_margins=class_margins,
        local_budget=threat.local_budget,
        flips=torch.cat([empty, *flips], dim=1),
        flips_ptr=torch.tensor([0, *counts]).cumsum(0),
        flips_of=problem.witness_of,
        assumptions=deployed.assumptions,
        provenance=provenance(**arguments),
        fixed_edges=int((~threat.perturbations.removable).sum()),
        **hashes,
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
    made = Deployed.of_model(model, data, threat.graph)
    if alpha is not None:
        raise ValueError(
            "'alpha' goes with logits alone: a model has its own "
            f'(got {alpha})'
        )
    return made


class _Problem:
    """The bounds of one certificate, as they get tighter."""

    def __init__(
        self,
        deployed: Deployed,
        threat: ThreatModel,
        targets: Tensor,
        reference: Tensor,
        tolerance: float,
        over_ranks: bool,
        progress_bar: bool,
    ) -> None:
        self.deployed, self.threat = deployed, threat
        self.logits, self.alpha = deployed.logits, deployed.alpha
        self.horizon = Horizon(
            deployed.alpha, deployed.K, deployed.normalization
        )
        self.targets, self.reference = targets, reference
        self.tolerance, self.progress_bar = tolerance, progress_bar
        self.over_ranks = over_ranks
        self.budget = threat.global_budget
        self.undirected = threat.undirected
        self.perturbations = deployed.perturbations(threat)
        if self.budget is not None:
            self.perturbations = clip_budget(self.perturbations, self.budget)
        error = deployed.error(int(self.perturbations.largest.max()))
        self.slack = error + error[reference][:, None]
        shape = (targets.numel(), self.logits.size(1))
        self.lower = self.logits.new_full(shape, -math.inf)
        self.upper = self.logits.new_full(shape[:1], math.inf)
        self.witnesses: list[Tensor] = []
        self.witness_of = torch.full(shape[:1], -1)
        # V of the local worst case, by pair of classes.
        self.local: dict[tuple[int, int], Tensor] = {}

    # What is open ###########################################################

    @property
    def is_plain(self) -> bool:
        """Whether the model is PageRank itself, in the limit."""
        return self.horizon.K is None and self.horizon.normalization == 'rw'

    def open_pairs(self) -> Tensor:
        """The classes that are not ruled out: ``[num_targets, classes]``."""
        return self.lower - self.slack <= self.tolerance

    def unknown(self) -> Tensor:
        """The positions of targets that are neither robust nor broken."""
        broken = self.upper + self.slack.amax(1) < -self.tolerance
        return (self.open_pairs().any(1) & ~broken).nonzero().view(-1)

    def signal(self, k: Tensor, against: Tensor) -> Tensor:
        """What the attacker gains per visit, a row per target and class."""
        held = self.logits[:, self.reference[k]]
        return (self.logits[:, against] - held).t().contiguous()

    def clean(self, k: Tensor, against: Tensor) -> Tensor:
        """What the attacker has without a flip."""
        held = self.reference[k]
        return self.scores[k, against] - self.scores[k, held]

    def clean_value(self, k: int, against: int) -> Tensor:
        """V of the clean graph for a target and a class."""
        return (
            self.clean_values[against]
            - self.clean_values[int(self.reference[k])]
        )

    # The way ################################################################

    def solve(
        self, method: str, cost: str, sign_only: bool, refine: int
    ) -> str:
        """Runs what a method asks for; returns what was done."""
        if self.targets.numel() == 0:
            return 'local'
        budget = self.budget
        total = int(self.perturbations.budget.sum())
        if self.undirected:
            # A flip takes from two rows, but that of a self-loop from one.
            total = (total + self.loops()) // 2
        if budget is None or budget >= total:
            self.solve_local(witnesses=True)
            exact = self.horizon.K is None and not self.undirected
            if method == 'exact' and not exact:
                every = torch.arange(self.targets.numel())
                self.try_all(every, total)
                return 'exact'
            if not exact and self.unknown().numel() > 0:
                self.see_clean()
                self.attack_greedily(total)
                self.decide(total)
            return 'local'
        every = torch.arange(self.targets.numel())
        if method == 'exact' or (
            method == 'auto' and budget <= 1 and self.is_cheap(budget)
        ):
            if self.is_plain and budget <= 1 and not self.undirected:
                self.solve_single_flip()
            else:
                self.try_all(every, budget)
            return 'exact'
        if method == 'lp' and bool((self.perturbations.smallest < 1).any()):
            raise ValueError(
                "'method' can be 'lp' only where every node keeps an edge: "
                'the linear program knows no empty rows'
            )
        self.solve_local(witnesses=False)
        self.see_clean()
        self.solve_global(method, cost, sign_only, refine)
        if self.unknown().numel() > 0:
            self.attack_greedily(budget)
        if method == 'auto':
            self.decide(budget)
        return method

    def loops(self) -> int:
        """How many nodes can flip their self-loop."""
        made = self.perturbations
        row, col = made.graph.row, made.graph.col
        gone = made.removable & (row == col) & (made.budget[row] > 0)
        return int(gone.sum()) + int((made.pairs[0] == made.pairs[1]).sum())

    def see_clean(self) -> None:
        """The clean graph's values, where searches start."""
        clean = self.horizon.evaluate(
            self.perturbations.clean_policy(self.logits.size(1)),
            self.logits.t().contiguous(),
        )
        self.clean_values = clean.value
        self.scores = self.alpha * clean.value[:, self.targets].t()

    def is_cheap(self, budget: int) -> bool:
        """Whether all admissible graphs can be tried in a few seconds."""
        made = self.perturbations
        if made.all_pairs and made.num_nodes > 1500:
            return False
        numbers = self.logits.numel() + made.graph.num_edges
        if self.is_plain and budget <= 1 and not self.undirected:
            # A system per row, not per flip.
            sets = made.active.numel()
        else:
            flips = candidates(made, self.undirected).size(1)
            sets = count_sets(flips, budget, _FEW)
            if sets > _FEW:
                return False
        return sets * numbers <= _CHEAP

    def decide(self, budget: int) -> None:
        """Tries all graphs for what is open, where they are few."""
        open_ = self.unknown()
        if open_.numel() > 0 and self.is_cheap(budget):
            self.try_all(open_, budget)

    def found(self, k: int, upper: float, flips: Tensor) -> None:
        """Keeps an attack on a target, if it is the best one so far."""
        if upper >= float(self.upper[k]):
            return
        self.upper[k] = upper
        if upper + float(self.slack[k].max()) < -self.tolerance:
            self.witness_of[k] = len(self.witnesses)
            self.witnesses.append(flips)

    # Local budgets ##########################################################

    def solve_local(self, *, witnesses: bool) -> None:
        """The worst case under local budgets, for all nodes."""
        num_classes = self.logits.size(1)
        classes = self.reference.unique().tolist()
        pairs = [
            (c1, c2) for c1 in classes for c2 in range(num_classes) if c1 != c2
        ]
        first, second = torch.tensor(pairs).t()
        signal = (self.logits[:, second] - self.logits[:, first]).t()
        signal = signal.contiguous()
        # The clean graph's, which takes a column per class, not per pair.
        clean = self.horizon.evaluate(
            self.perturbations.clean_policy(num_classes),
            self.logits.t().contiguous(),
        ).value
        here = torch.arange(self.targets.numel())
        self.lower[here, self.reference] = math.inf
        blocks = list(self.perturbations.column_blocks(len(pairs)))

        def worst(block: slice) -> tuple[Any, ...]:
            found = self.horizon.maximize(
                self.perturbations,
                signal[block],
                start=clean[second[block]] - clean[first[block]],
            )
            reached = None
            if witnesses:
                reached = self.reach(found.policy, signal[block])
            return found.value, found.high, reached

        with tqdm(
            blocks, disable=not self.progress_bar, desc='class pairs'
        ) as bar:
            for block, (values, high, reached) in zip(
                bar, shared(blocks, worst, self.over_ranks), strict=True
            ):
                for column, (c1, c2) in enumerate(pairs[block]):
                    mine = (self.reference == c1).nonzero().view(-1)
                    value = values[column]
                    if not witnesses:
                        self.local[c1, c2] = value + high[column]
                    top = value[self.targets[mine]] + high[column]
                    self.lower[mine, c2] = -self.alpha * top
                    if witnesses:
                        self.take(mine, reached[0][column], reached[1][column])

    def reach(
        self, policy: Policy, signal: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """What the graphs of a policy do, with both directions if need be."""
        flips = [policy.edges(k) for k in range(policy.num_columns)]
        if self.undirected:
            flips = [self.mutual(pairs) for pairs in flips]
        policy = Policy.from_flips(self.perturbations, flips)
        found = self.horizon.evaluate(policy, signal)
        return -self.alpha * (found.value + found.low[:, None]), flips

    def mutual(self, flips: Tensor) -> Tensor:
        """An undirected attack out of a directed one, within all budgets."""
        left = self.perturbations.budget.tolist()
        chosen = []
        for i, j in sorted({(min(p), max(p)) for p in flips.t().tolist()}):
            if left[i] > 0 and left[j] > 0:
                left[i] -= 1
                left[j] -= i != j
                chosen += [(i, j), (j, i)] if i != j else [(i, j)]
        return torch.tensor(chosen).view(-1, 2).t().long()

    def take(self, mine: Tensor, upper: Tensor, flips: Tensor) -> None:
        """Keeps the graph of a column for all targets that it is best for."""
        now = upper[self.targets[mine]]
        better = now < self.upper[mine]
        self.upper[mine[better]] = now[better]
        broken = better & (now + self.slack[mine].amax(1) < -self.tolerance)
        if bool(broken.any()):
            self.witness_of[mine[broken]] = len(self.witnesses)
            self.witnesses.append(flips)

    # Exhaustive search ######################################################

    def solve_single_flip(self) -> None:
        """The exact worst case of one directed flip of PageRank."""
        found = single_flip_margins(
            self.logits,
            self.perturbations,
            self.targets,
            self.reference,
            self.alpha,
            progress_bar=self.progress_bar,
        )
        self.lower = found.margins - found.errors
        upper, against = (found.margins + found.errors).min(1)
        for k, value in enumerate(upper.tolist()):
            flip = found.flips[k, against[k]].view(2, 1)
            self.found(k, value, flip[:, :0] if flip[0] < 0 else flip)

    def try_all(self, which: Tensor, budget: int) -> None:
        """Every admissible graph, for some targets."""
        flips = candidates(self.perturbations, self.undirected).size(1)
        numbers = self.logits.numel()
        most = 64 * _CHEAP // numbers
        if count_sets(flips, budget, most) > most:
            raise ValueError(
                "'method' can be 'exact' only for few admissible graphs (got "
                f'more than {most} sets of at most {budget} of {flips} flips)'
            )
        found = Exhaustive(
            self.perturbations,
            self.logits,
            self.targets[which],
            self.reference[which],
            budget,
            self.horizon,
            self.undirected,
            self.progress_bar,
        )
        self.lower[which] = torch.maximum(self.lower[which], found.lower)
        upper, against = found.upper.min(1)
        for k, value in enumerate(upper.tolist()):
            flip = found.flips[k][int(against[k])]
            assert flip is not None
            self.found(int(which[k]), value, flip)

    # A global budget ########################################################

    def solve_global(
        self, method: str, cost: str, sign_only: bool, refine: int
    ) -> None:
        """The dual bound where it is wanted, attacks where it is negative."""
        open_ = self.open_pairs() | (not sign_only)
        here = torch.arange(len(self.reference))
        open_[here, self.reference] = False
        which = open_.any(1).nonzero().view(-1)
        costs = ['visits'] if method == 'lp' or cost == 'visits' else []
        costs += ['pagerank'] if not costs else []
        if cost == 'best' and method != 'lp' and not self.undirected:
            costs.append('visits')
        if (
            which.numel() > 0
            and self.is_local(which)
            and ('pagerank' in costs and refine == 0 and method != 'lp')
        ):
            self.bound_regions(which, open_, sign_only)
            return
        kept = None
        for number, charged in enumerate(costs):
            if number > 0:
                open_ &= self.open_pairs()
                which = self.unknown()
            if which.numel() == 0:
                return
            bounds = pagerank_bounds(
                self.perturbations,
                self.targets[which],
                self.alpha,
                cost=charged,
                over_ranks=self.over_ranks,
                progress_bar=self.progress_bar,
            )
            self.try_columns(which, open_, bounds, method, charged, sign_only)
            if number == 0:
                kept = which, bounds
        assert kept is not None
        which, bounds = kept
        for _ in range(refine):
            inside = torch.isin(which, self.unknown())
            which, bounds = which[inside], bounds[inside]
            assert self.budget is not None
            bounds = refine_pagerank_bounds(
                self.perturbations,
                self.targets[which],
                bounds,
                self.budget * (1 + (self.undirected and not self.is_priced)),
                self.alpha,
                undirected=self.is_priced,
                progress_bar=self.progress_bar,
            )
            open_ = open_ & self.open_pairs()
            self.try_columns(
                which, open_, bounds, method, 'pagerank', sign_only
            )

    @property
    def is_priced(self) -> bool:
        """Whether an undirected edge has one price for both directions."""
        return self.undirected and not self.perturbations.all_pairs

    def is_local(self, which: Tensor) -> bool:
        """Whether a region around each target is cheaper than the graph."""
        made = self.perturbations
        whole = made.active.numel() * made.num_nodes
        return self.is_plain and which.numel() * 2**19 < whole

    def bound_regions(
        self, which: Tensor, open_: Tensor, sign_only: bool
    ) -> None:
        """Bounds in a region around each target."""
        budget = self.budget
        assert budget is not None

        def bounded(k: int) -> Tensor:
            against = open_[k].nonzero().view(-1)
            c1 = int(self.reference[k])
            every = torch.full_like(against, k)
            return local_bound(
                self.perturbations,
                self.signal(every, against),
                int(self.targets[k]),
                torch.stack([self.local[c1, c2] for c2 in against.tolist()]),
                budget,
                self.alpha,
                undirected=self.undirected,
                sign_only=sign_only,
            )

        every_k = which.tolist()
        with tqdm(
            every_k, disable=not self.progress_bar, desc='regions'
        ) as bar:
            for k, made in zip(
                bar, shared(every_k, bounded, self.over_ranks), strict=True
            ):
                against = open_[k].nonzero().view(-1)
                self.lower[k, against] = torch.maximum(
                    self.lower[k, against], -made
                )

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

            def tried(first: int) -> tuple[Any, ...]:
                part = which[first : first + size]
                before = len(self.witnesses)
                row, against = open_[part].nonzero(as_tuple=True)
                columns = _Columns(
                    self, part[row], against, bounds[first : first + size][row]
                )
                multiplier = columns.bound(method, cost, sign_only, bar)
                columns.attack(multiplier, cost)
                return (
                    self.lower[part],
                    self.upper[part],
                    self.witness_of[part],
                    before,
                    self.witnesses[before:],
                )

            kept = len(self.witnesses)
            every = range(0, which.numel(), size)
            made = list(shared(every, tried, self.over_ranks))
        if not self.over_ranks:
            return
        # Of all processes, in the order of one.
        del self.witnesses[kept:]
        for first, (lower, upper, of, before, found) in zip(
            every, made, strict=True
        ):
            part = which[first : first + size]
            self.lower[part], self.upper[part] = lower, upper
            moved = of + len(self.witnesses) - before
            self.witness_of[part] = torch.where(of >= before, moved, of)
            self.witnesses += found

    def attack_greedily(self, budget: int) -> None:
        """Greedy and swap attacks on what is open."""
        which = self.unknown()
        # The class that is nearest to winning, by its bound.
        against = (self.lower - self.slack)[which].argmin(1)
        signal = self.signal(which, against)
        if self.is_local(which):

            def attacked(i: int) -> Tensor:
                k = int(which[i])
                return local_attack(
                    self.perturbations,
                    signal[i],
                    int(self.targets[k]),
                    self.clean_value(k, int(against[i])),
                    min(budget, 64),
                    self.alpha,
                    undirected=self.undirected,
                )

            each = range(which.numel())
            flips = list(shared(each, attacked, self.over_ranks))
            self.try_flips(which, signal, flips)
            return
        flips = greedy_attacks(
            self.perturbations,
            signal,
            self.targets[which],
            min(budget, 64),
            self.alpha,
            normalization=self.horizon.normalization,
            undirected=self.undirected,
            swaps=1 if budget <= 10 else 0,
            progress_bar=self.progress_bar,
        )
        self.try_flips(which, signal, flips)

    def try_flips(
        self, which: Tensor, signal: Tensor, flips: list[Tensor]
    ) -> None:
        """Evaluates an attack per column in its own graph."""
        for block in self.perturbations.column_blocks(which.numel()):
            policy = Policy.from_flips(self.perturbations, flips[block])
            made = self.horizon.evaluate(policy, signal[block])
            here = torch.arange(policy.num_columns)
            at = made.value[here, self.targets[which[block]]]
            upper = -self.alpha * (at + made.low)
            for i, k in enumerate(which[block].tolist()):
                self.found(k, float(upper[i]), flips[block.start + i])


class _Columns:
    """Pairs of a target (its position k) and a class it may turn to."""

    def __init__(
        self, problem: _Problem, k: Tensor, against: Tensor, upper: Tensor
    ) -> None:
        self.problem, self.k, self.against = problem, k, against
        self.upper = upper
        self.targets = problem.targets[k]
        self.signal = problem.signal(k, against)

    def bound(
        self, method: str, cost: str, sign_only: bool, bar: tqdm
    ) -> Tensor:
        """Lowers the bounds; returns the multipliers that prove them."""
        problem = self.problem
        budget, alpha = problem.budget, problem.alpha
        assert budget is not None
        held = problem.reference[self.k]
        start = self.signal.new_empty(self.signal.shape)
        for i, pair in enumerate(
            zip(held.tolist(), self.against.tolist(), strict=True)
        ):
            start[i] = problem.local[pair]
        priced, upper = problem.is_priced, self.upper
        if method == 'lp' and priced:
            # The program charges visits, and an edge is priced by PageRank.
            upper = pagerank_bounds(
                problem.perturbations, problem.targets, alpha
            )[self.k]
        if method != 'lp' or priced:
            found = dual_bound(
                problem.perturbations,
                self.signal,
                self.targets,
                upper,
                # Without a price per edge an undirected flip is two.
                budget * (1 + (problem.undirected and not priced)),
                alpha,
                cost='pagerank' if priced else cost,
                K=problem.horizon.K,
                normalization=problem.horizon.normalization,
                undirected=priced,
                sign_only=sign_only,
                start=start,
                clean=problem.clean(self.k, self.against),
            )
            made, multiplier = found.bound, found.multiplier
        if method != 'lp':
            bar.update(self.k.numel())
        if method == 'lp':
            program, multiplier = self.programs(start, bar)
            # Its price is per direction: that of an edge may prove more.
            made = program.minimum(made) if priced else program
        # The local worst case is a lower bound as well.
        pair = self.k, self.against
        problem.lower[pair] = torch.maximum(problem.lower[pair], -made)
        return multiplier

    def programs(self, start: Tensor, bar: tqdm) -> tuple[Tensor, Tensor]:
        """Multipliers of linear programs, and the bounds that they prove."""
        problem = self.problem
        budget, alpha = problem.budget, problem.alpha
        assert budget is not None
        budget = budget * (1 + problem.undirected)
        multiplier = self.signal.new_zeros(self.k.numel())
        made = self.signal.new_zeros(self.k.numel())
        for i, target in enumerate(self.targets.tolist()):
            _, multiplier[i] = linear_program(
                problem.perturbations,
                self.signal[i],
                target,
                self.upper[i],
                budget,
                alpha,
            )
            price = multiplier[i] / self.upper[i : i + 1] * (1 - 1e-15)
            proof = policy_iteration(
                problem.perturbations,
                self.signal[i : i + 1],
                alpha,
                visit_cost=price,
                start=start[i : i + 1],
            )
            top = proof.value[0, target] + proof.high[0]
            made[i] = multiplier[i] * budget + alpha * top
            bar.update()
        return made, multiplier

    def attack(self, multiplier: Tensor, cost: str) -> None:
        """Tries what the relaxation suggests where the bound is negative."""
        problem = self.problem
        assert problem.budget is not None
        if problem.undirected or not problem.is_plain:
            return
        weak = problem.open_pairs()[self.k, self.against]
        column = weak.nonzero().view(-1)
        if column.numel() == 0:
            return
        flips = budget_attacks(
            problem.perturbations,
            self.signal[column],
            self.targets[column],
            self.upper[column],
            multiplier[column],
            problem.budget,
            problem.alpha,
            cost=cost,
        )
        problem.try_flips(self.k[column], self.signal[column], flips)


def _check_method(
    method: str,
    cost: str,
    refine: int,
    threat: ThreatModel,
    deployed: Deployed,
) -> None:
    if method not in METHODS:
        raise ValueError(
            f"'method' needs to be one of {METHODS} (got {method!r})"
        )
    if cost not in COSTS:
        raise ValueError(f"'cost' needs to be one of {COSTS} (got {cost!r})")
    if refine > 0 and (
        method not in ('auto', 'dual') or cost not in ('best', 'pagerank')
    ):
        raise ValueError(
            "'refine' needs the method 'auto' or 'dual' and the cost 'best' "
            f"or 'pagerank' (got {method!r} and {cost!r})"
        )
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
