"""Certificates: bounds of nodes' worst-case margins."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import (
    Natural,
    as_ids,
    check_instance,
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

ROBUST, UNKNOWN, BROKEN = 1, 0, -1


@dataclass(frozen=True)
class Certificate(Proved, SpeaksOf, Report):
    r"""Bounds of the worst-case margins of target nodes.

    The worst-case margin of a node is the smallest margin of its reference
    class over any other class, in any admissible graph. It lies in ``[lower,
    upper]``, roundoff included; :obj:`lower` > :obj:`tolerance` means robust,
    :obj:`upper` < -:obj:`tolerance` broken, with :meth:`witness` as the
    proof, and anything else unknown.

    It speaks of the model as it is deployed (of exact arithmetic, for logits
    without a model), and of each node by itself: the worst graphs of two nodes
    may differ. With symmetric normalization margins are those of
    :math:`D^{-1/2} Z`, which have the same signs.
    """

    num_robust: int
    num_broken: int
    num_unknown: int
    model: str
    """The kind of the model, or 'logits' without a model."""
    scenario: str
    undirected: bool
    """Whether both directions of an edge flip together, as one flip."""
    global_budget: int | None
    alpha: float
    K: int | None
    """The number of steps; :obj:`None` for the limit."""
    normalization: str
    self_loops: bool
    """Whether the model adds self-loops."""
    dtype: str
    """In which the model computes."""
    method: str
    exact: bool
    """Whether all bounds meet, up to a millionth of the largest logit."""
    tolerance: float
    roundoff: float
    """How far margins of the deployed model may be off at most: in the
    bounds already."""
    fingerprint: str
    """SHA-256 of the logits, the graph, the threat and the targets."""
    model_digest: str
    """SHA-256 of the model: tensors, attributes and code; '' with logits."""
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
    local_budget: Tensor
    """The local budget of each node of the graph, in flips: int64."""
    flips: Tensor
    """The edges of all witnesses one after another: ``[2, num_flips]``."""
    flips_ptr: Tensor
    """Where each witness starts: ``[num_witnesses + 1]``."""
    flips_of: Tensor
    """The witness of each target, -1 if there is none."""
    assumptions: tuple[str, ...]
    """The assumptions about the model."""
    provenance: dict[str, Any]
    weights: str = ''
    """SHA-256 of the model's weights, if there is a model that has some."""
    data: str = ''
    """SHA-256 of the graph that was handed in, if one was."""
    fixed_edges: int = 0
    """How many directed edges never change, added self-loops included."""
    witness_digest: str = ''
    """SHA-256 of :attr:`proof`, or why there is none."""
    proof: Witness | None = field(default=None, repr=False, compare=False)
    """What :meth:`verify` proves each robust and each broken node from, by
    :mod:`pyg_trust.verify.proofs`. There is none for a large graph; it proves
    fewer nodes where all graphs were tried. It holds the logits and the edges,
    so it is in no report: :meth:`~Witness.save` it beside."""

    def status_of(self, nodes: Tensor, data: Data) -> Tensor:
        """Return the status of nodes in the graph of today: int8.

        Args:
            nodes (Tensor): int64: nodes among the targets.
            data (Data): the graph of today.

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
        nodes = as_ids('nodes', nodes)
        place = (nodes[:, None] == self.targets).int()
        if nodes.numel() and int(place.amax(1).min()) == 0:
            raise ValueError(
                f"'nodes' needs targets of the certificate (got "
                f'{int(nodes[place.amax(1) == 0][0])}, which is none)'
            )
        return self.status[place.argmax(1)]

    def _is_about(self, arrays: dict[str, np.ndarray]) -> bool:
        proofs.read(arrays)
        return (
            np.array_equal(arrays['targets'], self.targets.numpy())
            and np.array_equal(arrays['reference'], self.reference.numpy())
            and np.array_equal(arrays['budget'], self.local_budget.numpy())
            and self.num_robust == int(self.robust.sum())
            and self.num_broken == int(self.broken.sum())
            and not list(proofs.differences(arrays, self._fields()))
        )

    def _follows(self, arrays: dict[str, np.ndarray]) -> bool:
        status = torch.tensor(proofs.prove(arrays), dtype=torch.int8)
        sure = (self.status == UNKNOWN) | (status == self.status)
        return bool(sure.all())

    def _fields(self) -> dict[str, Any]:
        return {
            **vars(self),
            'targets': self.targets.numel(),
            **self._budgets(),
        }

    def _budgets(self) -> dict[str, int]:
        return {
            'max_local_budget': int(self.local_budget.max()),
            'sum_local_budget': int(self.local_budget.sum()),
            'num_nodes': self.local_budget.numel(),
        }

    @property
    def margins(self) -> Tensor:
        """Return the proven worst-case margins: :obj:`lower`."""
        return self.lower

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

    @property
    def certified_ratio(self) -> float:
        """Return the share of targets that are certified robust."""
        return float(self.robust.double().mean())

    def certified_accuracy(self, labels: Tensor) -> float:
        """Return the share of targets robust and correctly classified.

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

    def __str__(self) -> str:
        count = self.targets.numel()
        lines = [f'Certificate of {count} nodes']
        for name, number in (
            ('robust', self.num_robust),
            ('broken', self.num_broken),
            ('unknown', self.num_unknown),
        ):
            share = number / count if count else 0.0
            lines.append(f'  {name:<8} {number:>8}  ({share:.1%})')
        steps = 'the limit' if self.K is None else f'{self.K} steps'
        loops = ', self-loops' if self.self_loops else ''
        flips = 'undirected' if self.undirected else 'directed'
        most = self.global_budget
        lines += [
            f'  model    {self.model}: alpha {self.alpha:g}, {steps}, '
            f'{self.normalization}{loops}, {self.dtype}',
            f'  threat   {self.scenario}, {flips}: at most '
            f'{int(self.local_budget.max())} flips at a node and '
            f'{"any number" if most is None else most} in all',
            f'  method   {self.method}'
            f'{", exact" if self.exact else ""}, tolerance '
            f'{self.tolerance:g}, roundoff {self.roundoff:.2g}',
            f'  data     SHA-256 {self.fingerprint[:16]}',
        ]
        return '\n'.join(lines)

    def guarantee(self) -> Guarantee:
        """State the conditions for robust nodes to keep their predictions."""
        return stated(
            'robustness certificate',
            {
                **self.numbers(),
                'targets': self.targets.numel(),
                **self._budgets(),
                'data_fields': list(DATA_FIELDS) if self.data else None,
            },
            assumptions=self.assumptions,
            data=self.data or self.fingerprint,
            origin=self.provenance,
            checked=self._checks(),
            model=self.weights,
        )

    def _checks(self) -> tuple[str, ...]:
        # Checks that stop a certificate where it does not hold.
        if not self.model_digest:
            return ()
        return (
            'the scores of the model were compared with the PageRank '
            'diffusion of its logits in float64: they are apart by roundoff '
            'alone',
            'the graph of the data is that of the threat, edge by edge',
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
