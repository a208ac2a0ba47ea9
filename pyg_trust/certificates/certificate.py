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
    """Bounds of the worst-case margins of target nodes.

    :func:`certify_pagerank` makes it. The margin of a node is the score of its
    reference class, which is to be kept, minus the largest score of another
    class. The worst-case margin, the smallest one in any graph that the
    attacker can make, is between :obj:`lower` and :obj:`upper`. A node is
    robust if :obj:`lower` is above :obj:`tolerance`, broken if :obj:`upper` is
    below -:obj:`tolerance`, else unknown. Nodes are attacked one at a time.

    Args:
        num_robust, num_broken, num_unknown (int): numbers of targets.
        model, alpha, K, normalization, self_loops, dtype: of the model; K is
            None for the limit of infinitely many steps.
        scenario, undirected, global_budget: of the threat; ``fixed_edges``
            (int): the number of edges that never flip.
        method, assumptions, provenance: the method, assumptions and settings.
        exact (bool): whether :obj:`lower` equals :obj:`upper` for all targets.
        tolerance (float): the largest absolute margin that counts as unknown.
        roundoff (float): the largest rounding error of the model's margins.
        run_sha256, model_sha256, weights_sha256, data_sha256 (str): SHA-256
            of model and threat, of the model, of its weights, of the graph.
        targets (Tensor): the certified nodes: int64, ``[num_targets]``.
        reference (Tensor): the reference class, int64, ``[num_targets]``.
        predicted (Tensor): the class in the clean graph, of the same shape.
        status (Tensor): :obj:`ROBUST` (1), :obj:`UNKNOWN` (0) or
            :obj:`BROKEN` (-1), int8, of the same shape.
        lower (Tensor): proven lower bounds of margins, float64. With ``'sym'``
            normalization, scores are divided by the root of the degree.
        upper (Tensor): margins in the worst graphs that were found, float64.
        class_margins (Tensor): lower bounds against each class, infinite at
            the reference class: float64, ``[num_targets, num_classes]``.
        local_budget (Tensor): the most flips at each node, ``[num_nodes]``.
        flips (Tensor): the edges that attacks flip, ``[2, num_flips]``: attack
            i has the columns ``flips_ptr[i]:flips_ptr[i + 1]``.
        flips_of (Tensor): the attack of each target, -1 if none was found.
        witness_digest (str): SHA-256 of :obj:`proof`, or why there is none.
        proof (Witness, optional): logits and edges that prove each status, by
            :meth:`verify`; no report contains it, so save it separately.
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
    run_sha256: str
    model_sha256: str
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
    weights_sha256: str = ''
    data_sha256: str = ''
    fixed_edges: int = 0
    witness_digest: str = ''
    proof: Witness | None = field(default=None, repr=False, compare=False)
    _kernel: ClassVar[ModuleType] = proofs

    def status_of(self, nodes: Tensor, data: Data) -> Tensor:
        """Return the status of nodes; refuse a graph that has changed since.

        Args:
            nodes (Tensor): target nodes of this certificate: int64 indices, or
                a bool mask.
            data (Data): the present graph, with all its features and labels.

        Returns:
            Tensor: int8, one per node: 1 (robust), 0 (unknown) or -1 (broken).

        Raises:
            ValueError: if :obj:`data` differs from the certified data, the
                certificate was made of logits without data, or a node is no
                target.
        """
        check_instance('data', data, Data)
        if self.data_sha256 != fingerprint_data(data):
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
            'data_fields': list(DATA_FIELDS) if self.data_sha256 else None,
        }

    @property
    def robust(self) -> Tensor:
        """Mask of the targets that are robust: bool, ``[num_targets]``."""
        return self.status == ROBUST

    @property
    def broken(self) -> Tensor:
        """Mask of the targets that an attack was found for: bool."""
        return self.status == BROKEN

    @property
    def unknown(self) -> Tensor:
        """Mask of the targets that are neither robust nor broken: bool."""
        return self.status == UNKNOWN

    def certified_ratio(self) -> float:
        """Return the share of targets that are certified robust."""
        return float(self.robust.double().mean())

    def certified_accuracy(self, labels: Tensor) -> float:
        """Return the share of targets that are robust and correct.

        It is a lower bound of the accuracy under attack.

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
            f'  data    SHA-256 {self.run_sha256[:16]}'
        )

    def guarantee(self) -> Guarantee:
        """Return the guarantee that robust nodes keep their class."""
        return stated(
            'robustness certificate',
            self._fields(),
            assumptions=self.assumptions,
            data_sha256=self.data_sha256 or self.run_sha256,
            origin=self.provenance,
            checked=_CHECKED if self.model_sha256 else (),
            weights_sha256=self.weights_sha256,
        )

    def chart(self) -> Chart:
        """Return a chart of the :obj:`lower` and :obj:`upper` margins."""
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
        """Return the edge flips that break a node: int64, ``[2, num_flips]``.

        Args:
            node (int): the index of the node in the graph, a value of
                :obj:`targets`.
        """
        where = (self.targets == node).nonzero()
        if where.numel() == 0:
            raise ValueError(f'node {node} is not among the targets')
        which = int(self.flips_of[int(where[0])])
        if which < 0:
            raise ValueError(f'node {node} has no witness: it is not broken')
        start, end = self.flips_ptr[which : which + 2].tolist()
        return self.flips[:, start:end]
