"""State of an exact certificate: its bounds and open targets."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust.certificates.budget import clip_budget
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.horizon import Horizon
from pyg_trust.certificates.perturbations import Policy
from pyg_trust.certificates.threat import ThreatModel


class Priced(NamedTuple):
    """Multiplier that proves a bound under a global budget.

    Args:
        cost (str): the cost of a flip, by name.
        multiplier (float): the multiplier lambda.
        bound (float): the bound of the other class's score minus the
            reference's.
        upper (Tensor): float64, ``[num_nodes]``: upper bounds of PageRank or
            visits.
    """

    cost: str
    multiplier: float
    bound: float
    upper: Tensor


class Problem:
    """Bounds of every target's margins, with the attacks that were found."""

    def __init__(
        self,
        deployed: Deployed,
        threat: ThreatModel,
        targets: Tensor,
        reference: Tensor,
        tolerance: float,
        over_ranks: bool,
        progress_bar: bool | None,
    ) -> None:
        self.deployed, self.threat = deployed, threat
        self.logits, self.alpha = deployed.logits, deployed.alpha
        self.horizon = Horizon(
            deployed.alpha, deployed.K, deployed.normalization
        )
        self.targets, self.reference = targets, reference
        self.tolerance, self.bar = tolerance, progress_bar
        self.progress_bar = bool(progress_bar)
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
        # Better proofs, by target and class, and upper bounds at all
        # nodes, by cost.
        self.priced: dict[tuple[int, int], Priced] = {}
        self.vectors: dict[str, Tensor] = {}
        self.sign_only = False

    # What is open ###########################################################

    @property
    def is_plain(self) -> bool:
        """Tell whether the model is PageRank in the limit, by random walks."""
        return self.horizon.K is None and self.horizon.normalization == 'rw'

    def open_pairs(self) -> Tensor:
        """Return a mask of the open classes: ``[num_targets, classes]``."""
        return self.lower - self.slack <= self.tolerance

    def unknown(self) -> Tensor:
        """Return the positions of targets neither robust nor broken."""
        broken = self.upper + self.slack.amax(1) < -self.tolerance
        return (self.open_pairs().any(1) & ~broken).nonzero().view(-1)

    def signal(self, k: Tensor, against: Tensor) -> Tensor:
        """Return the attacker's reward per visit, by target and class."""
        held = self.logits[:, self.reference[k]]
        return (self.logits[:, against] - held).t().contiguous()

    def see_clean(self) -> None:
        """Compute and store the clean graph's values, where searches start."""
        clean = self.horizon.evaluate(
            self.perturbations.clean_policy(self.logits.size(1)),
            self.logits.t().contiguous(),
        )
        self.clean_values = clean.value
        self.scores = self.alpha * clean.value[:, self.targets].t()

    def clean(self, k: Tensor, against: Tensor) -> Tensor:
        """Return clean margins of other classes over the reference class."""
        held = self.reference[k]
        return self.scores[k, against] - self.scores[k, held]

    def clean_value(self, k: int, against: int) -> Tensor:
        """Return the clean graph's values V for a target and a class."""
        return (
            self.clean_values[against]
            - self.clean_values[int(self.reference[k])]
        )

    @property
    def is_priced(self) -> bool:
        """Tell whether both directions of an edge share one price."""
        return self.undirected and not self.perturbations.all_pairs

    def is_local(self, which: Tensor) -> bool:
        """Tell whether regions around targets cost less than the graph."""
        perturbations = self.perturbations
        whole = perturbations.active.numel() * perturbations.num_nodes
        return self.is_plain and which.numel() * 2**19 < whole

    # What is known ##########################################################

    def keep_attack(self, k: int, upper: float, flips: Tensor) -> None:
        """Store an attack on a target, if it is the best one so far."""
        if upper >= float(self.upper[k]):
            return
        self.upper[k] = upper
        if upper + float(self.slack[k].max()) < -self.tolerance:
            self.witness_of[k] = len(self.witnesses)
            self.witnesses.append(flips)

    def take(self, mine: Tensor, upper: Tensor, flips: Tensor) -> None:
        """Store the graph of a column for all targets that it is best for."""
        now = upper[self.targets[mine]]
        better = now < self.upper[mine]
        self.upper[mine[better]] = now[better]
        broken = better & (now + self.slack[mine].amax(1) < -self.tolerance)
        if bool(broken.any()):
            self.witness_of[mine[broken]] = len(self.witnesses)
            self.witnesses.append(flips)

    def try_flips(
        self, which: Tensor, signal: Tensor, flips: list[Tensor]
    ) -> None:
        """Evaluate one attack per column, each in its own graph."""
        for block in self.perturbations.column_blocks(which.numel()):
            policy = Policy.from_flips(self.perturbations, flips[block])
            values = self.horizon.evaluate(policy, signal[block])
            here = torch.arange(policy.num_columns)
            at = values.value[here, self.targets[which[block]]]
            upper = -self.alpha * (at + values.low)
            for i, k in enumerate(which[block].tolist()):
                self.keep_attack(k, float(upper[i]), flips[block.start + i])
