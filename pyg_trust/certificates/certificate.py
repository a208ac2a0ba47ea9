"""Certificates: bounds of nodes' worst-case margins."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Natural,
    check_instance,
    check_nodes,
    check_tensor,
    validated,
)
from pyg_trust._checks.identity import SpeaksOf
from pyg_trust.certificates.witness import Proved, Witness
from pyg_trust.report import (
    DATA_FIELDS,
    Guarantee,
    Report,
    fingerprint_data,
)
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.verify import proofs
from pyg_trust.verify.accounting import FAILS, HOLDS, NOT_PROVED

__all__ = ['BROKEN', 'ROBUST', 'UNKNOWN', 'Certificate']

ROBUST, UNKNOWN, BROKEN = 1, 0, -1
_CHECKED = (
    'the scores of the model were compared with the PageRank diffusion of its '
    'logits in float64: they are apart by roundoff alone',
    'the graph of the data is that of the threat, edge by edge',
)


@dataclass(frozen=True)
class Certificate(Proved, SpeaksOf, Report):
    r"""Bounds of the worst-case margins of target nodes.

    The worst-case margin of a node is the smallest margin of its reference
    class over any other class, in any admissible graph. It lies between
    :obj:`lower` and :obj:`upper`, roundoff included. A node with a lower bound
    above :obj:`tolerance` is robust. One with an upper bound below
    -:obj:`tolerance` is broken, and :meth:`witness` has the flips. Any other
    is unknown. Each node is attacked by itself: worst graphs may differ.

    Fields that are not listed are numbers of targets, and properties of the
    model and the threat.

    Args:
        method (str): the method that was run.
        exact (bool): whether all bounds meet.
        tolerance (float): the largest absolute margin that counts as unknown.
        roundoff (float): how far margins of the deployed model may be off.
        fingerprint (str): SHA-256 of logits, graph, threat and targets.
        model_digest (str): SHA-256 of the model; '' with logits.
        targets (Tensor): the nodes: int64, ``[num_targets]``.
        reference (Tensor): the class that is defended, likewise.
        predicted (Tensor): the class predicted in the clean graph, likewise.
        status (Tensor): :obj:`ROBUST`, :obj:`UNKNOWN` or :obj:`BROKEN`: int8.
        lower (Tensor): proven lower bounds of margins: float64. With symmetric
            normalization these are margins of :math:`D^{-1/2} Z`.
        upper (Tensor): margins in the worst graphs that were found.
        class_margins (Tensor): lower bounds by class, infinite at the
            reference class: float64, ``[num_targets, num_classes]``.
        local_budget (Tensor): the budget of each node of the graph: int64.
        flips (Tensor): the edges of all witnesses: ``[2, num_flips]``.
        flips_ptr (Tensor): where each witness starts.
        flips_of (Tensor): the witness of each target, -1 if there is none.
        witness_digest (str): SHA-256 of ``proof``, or why there is none.
        proof (Witness, optional): what :meth:`verify` proves each status from;
            none for a large graph. It holds logits and edges, so no report
            contains it: :meth:`~Witness.save` it separately.
    """

    num_robust: int
    num_broken: int
    num_unknown: int
    model: str
    scenario: str
    undirected: bool
    global_budget: int | None
    alpha: float
    K: int | None
    normalization: str
    self_loops: bool
    dtype: str
    method: str
    exact: bool
    tolerance: float
    roundoff: float
    fingerprint: str
    model_digest: str
    targets: Tensor
    reference: Tensor
    predicted: Tensor
    status: Tensor
    lower: Tensor
    upper: Tensor
    class_margins: Tensor
    local_budget: Tensor
    flips: Tensor
    flips_ptr: Tensor
    flips_of: Tensor
    assumptions: tuple[str, ...]
    provenance: dict[str, Any]
    weights: str = ''
    data: str = ''
    fixed_edges: int = 0
    witness_digest: str = ''
    proof: Witness | None = field(default=None, repr=False, compare=False)
    _kernel: ClassVar[ModuleType] = proofs

    def status_of(self, nodes: Tensor, data: Data) -> Tensor:
        """Return the status of targets in the graph of today: int8.

        Raises:
            ValueError: if the certificate is stale, as it is of another
                graph or of logits without one, or a node is no target.
        """
        check_instance('data', data, Data)
        if self.data != fingerprint_data(data):
            raise ValueError(
                "'data' is another graph than that of the certificate, which "
                'is stale: certify again, by certify(model, data, threat)'
            )
        nodes = check_nodes('nodes', nodes, data.num_nodes)
        place = (nodes[:, None] == self.targets).int()
        if nodes.numel() and int(place.amax(1).min()) == 0:
            raise ValueError(
                f"'nodes' needs targets of the certificate (got "
                f'{int(nodes[place.amax(1) == 0][0])}, which is none)'
            )
        return self.status[place.argmax(1)]

    def _judged(self, arrays: dict[str, np.ndarray]) -> Iterator[str]:
        # Of each target, where a report has their number alone.
        found = torch.tensor(proofs.prove(arrays), dtype=torch.int8)
        same = (
            np.array_equal(arrays['targets'], self.targets.numpy())
            and np.array_equal(arrays['reference'], self.reference.numpy())
            and np.array_equal(arrays['budget'], self.local_budget.numpy())
            and self.num_robust == int(self.robust.sum())
            and self.num_broken == int(self.broken.sum())
            and not any(proofs.differences(arrays, self._fields()))
        )
        sure = (self.status == UNKNOWN) | (self.status == found)
        yield (HOLDS if bool(sure.all()) else NOT_PROVED) if same else FAILS

    def _fields(self) -> dict[str, Any]:
        return {
            **self.numbers(),
            'targets': self.targets.numel(),
            'max_local_budget': int(self.local_budget.max()),
            'sum_local_budget': int(self.local_budget.sum()),
            'num_nodes': self.local_budget.numel(),
            'data_fields': list(DATA_FIELDS) if self.data else None,
        }

    @property
    def robust(self) -> Tensor:
        """Return a mask of the targets that are certified robust."""
        return self.status == ROBUST

    @property
    def broken(self) -> Tensor:
        """Return a mask of the targets with an adversarial graph."""
        return self.status == BROKEN

    @property
    def unknown(self) -> Tensor:
        """Return a mask of the targets that are neither robust nor broken."""
        return self.status == UNKNOWN

    def certified_ratio(self) -> float:
        """Return the share of targets that are certified robust."""
        return float(self.robust.double().mean())

    def certified_accuracy(self, labels: Tensor) -> float:
        """Return the share of targets robust and correctly classified.

        A lower bound on the accuracy under attack.

        Args:
            labels (Tensor): the true classes of all nodes: int64,
                ``[num_nodes]``.
        """
        size = (self.local_budget.numel(),)
        check_tensor('labels', labels, torch.int64, size)
        right = self.reference == labels[self.targets]
        return float((self.robust & right).double().mean())

    def __str__(self) -> str:
        counts = {
            'robust': self.num_robust,
            'broken': self.num_broken,
            'unknown': self.num_unknown,
        }
        total, told = self.targets.numel(), self.provenance['arguments']
        shares = ', '.join(
            f'{count} {name} ({count / max(total, 1):.1%})'
            for name, count in counts.items()
        )
        return (
            f'Certificate of {total} nodes: {shares}\n'
            f'  model   {told["model"]}\n'
            f'  threat  {told["threat"]}\n'
            f'  method  {self.method}{", exact" * self.exact}, tolerance '
            f'{self.tolerance:g}, roundoff {self.roundoff:.2g}\n'
            f'  data    SHA-256 {self.fingerprint[:16]}'
        )

    def guarantee(self) -> Guarantee:
        """State the conditions for robust nodes to keep their predictions."""
        return stated(
            'robustness certificate',
            self._fields(),
            assumptions=self.assumptions,
            data=self.data or self.fingerprint,
            origin=self.provenance,
            checked=_CHECKED if self.model_digest else (),
            model=self.weights,
        )

    def chart(self) -> Chart:
        """Draw each node's proven margin, and that of its best attack."""
        total = self.targets.numel()
        return Chart(
            f'{self.num_robust} of {total} predictions are proven to stay, '
            f'{self.num_broken} have another class in some graph',
            lines={
                'proven': (range(total), self.lower.sort()[0].tolist()),
                'best attack': (range(total), self.upper.sort()[0].tolist()),
            },
            xlabel='nodes, from the weakest on',
            ylabel='worst-case margin',
            limit=0.0,
            limit_label='the prediction changes below',
        )

    @validated
    def witness(self, node: Natural) -> Tensor:
        """Return the flips that break a node: int64, ``[2, num_flips]``.

        Args:
            node (int): the node, as in :obj:`targets`.

        Raises:
            ValueError: if the node is no target or has no witness.
        """
        where = (self.targets == node).nonzero()
        if where.numel() == 0:
            raise ValueError(f'node {node} is not among the targets')
        which = int(self.flips_of[int(where[0])])
        if which < 0:
            raise ValueError(f'node {node} has no witness: it is not broken')
        start, end = self.flips_ptr[which : which + 2].tolist()
        return self.flips[:, start:end]
