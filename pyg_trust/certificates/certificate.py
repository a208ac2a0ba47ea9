"""Certificates: what is known about the worst-case margins of nodes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import check_integer, check_tensor
from pyg_trust.report import Guarantee, Report

ROBUST, UNKNOWN, BROKEN = 1, 0, -1


@dataclass(frozen=True)
class Certificate(Report):
    r"""What is known about the worst-case margins of some nodes.

    The worst-case margin of a node is the smallest margin of its reference
    class over any other class, in any admissible graph. It lies in ``[lower,
    upper]``, roundoff included; :obj:`lower` > :obj:`tolerance` means robust,
    :obj:`upper` < -:obj:`tolerance` broken, with :meth:`witness` as the
    proof, and anything else unknown.

    It speaks of the exact real-valued model with the given logits, and of
    each node by itself: the worst graphs of two nodes may differ.
    """

    targets: Tensor
    """The nodes: int64, ``[num_targets]``."""
    reference: Tensor
    """The class that is defended: int64, ``[num_targets]``."""
    predicted: Tensor
    """The class predicted in the clean graph: int64, ``[num_targets]``."""
    status: Tensor
    """:obj:`ROBUST` (1), :obj:`UNKNOWN` (0) or :obj:`BROKEN` (-1): int8."""
    lower: Tensor
    """Proven lower bound of the worst-case margin: float64."""
    upper: Tensor
    """Upper bound: the margin in the worst graph found: float64."""
    class_margins: Tensor
    """Lower bounds by class, infinite at the reference class: float64,
    ``[num_targets, num_classes]``."""
    exact: bool
    """Whether both bounds are the worst case itself, up to roundoff."""
    scenario: str
    local_budget: Tensor
    """What each node of the graph can lose or gain at most: int64."""
    global_budget: int | None
    alpha: float
    method: str
    tolerance: float
    fingerprint: str
    """SHA-256 of logits, graph and teleport probability."""
    flips: Tensor
    """The edges of all witnesses one after another: ``[2, num_flips]``."""
    flips_ptr: Tensor
    """Where each witness starts: ``[num_witnesses + 1]``."""
    flips_of: Tensor
    """The witness of each target, -1 if there is none."""
    num_robust: int
    num_broken: int
    num_unknown: int
    provenance: dict[str, Any]

    @property
    def margins(self) -> Tensor:
        """The proven worst-case margins: :obj:`lower`."""
        return self.lower

    @property
    def robust(self) -> Tensor:
        """A mask of the targets that are certified robust."""
        return self.status == ROBUST

    @property
    def broken(self) -> Tensor:
        """A mask of the targets with an adversarial graph."""
        return self.status == BROKEN

    @property
    def unknown(self) -> Tensor:
        """A mask of the targets that could not be decided."""
        return self.status == UNKNOWN

    @property
    def certified_ratio(self) -> float:
        """The share of targets that are certified robust."""
        return float(self.robust.double().mean())

    def certified_accuracy(self, labels: Tensor) -> float:
        """The share of targets that are robust and rightly classified.

        A lower bound on the accuracy under attack, even if every node meets
        its own worst graph.

        Args:
            labels (Tensor): the true classes of all nodes of the graph:
                int64, ``[num_nodes]``.
        """
        size = (self.local_budget.numel(),)
        check_tensor('labels', labels, torch.int64, size)
        right = self.reference == labels[self.targets]
        return float((self.robust & right).double().mean())

    def guarantee(self) -> Guarantee:
        """That the robust nodes keep their predictions, and when."""
        within = 'the local budgets'
        if self.global_budget is not None:
            within += f' and {self.global_budget} flips in all'
        return Guarantee(
            procedure='robustness certificate',
            promise=(
                f'{self.num_robust} of {self.targets.numel()} predictions '
                f'stay as they are in every graph that {within} allow '
                f'({self.num_broken} can be broken, {self.num_unknown} are '
                'unknown)'
            ),
            assumptions=(
                f'the model is personalized PageRank (alpha {self.alpha:g}) '
                'of logits that do not depend on the edges',
                f'only fragile edges flip ({self.scenario}), each direction '
                'by itself',
            ),
            not_covered=(
                'changes of features or of labels',
                'several nodes at once: each is certified by itself',
            ),
            data=self.fingerprint,
            origin=self.provenance,
        )

    def witness(self, node: int) -> Tensor:
        """The edges to flip to break a node: int64, ``[2, num_flips]``.

        Args:
            node (int): the node, as in :obj:`targets`.

        Raises:
            ValueError: if the node is no target or has no witness.
        """
        check_integer('node', node, 0)
        where = (self.targets == node).nonzero()
        if where.numel() == 0:
            raise ValueError(f'node {node} is not among the targets')
        which = int(self.flips_of[int(where[0])])
        if which < 0:
            raise ValueError(f'node {node} has no witness: it is not broken')
        start, end = self.flips_ptr[which : which + 2].tolist()
        return self.flips[:, start:end]
