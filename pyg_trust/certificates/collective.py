r"""Number of smoothed predictions that stay at once under one budget.

`"Collective Robustness Certificates"
<https://openreview.net/forum?id=ULQdiUTHe3y>`_ (Schuchardt, Bojchevski,
Klicpera and Günnemann 2021), with a tighter relaxation, a bound that does not
trust the solver, and receptive fields that know of degrees.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust._checks import Natural, OneOf, check_tensor, validated
from pyg_trust._checks.identity import (
    SpeaksOf,
    check_process,
    identity,
    identity_on,
)
from pyg_trust._moved import renamed
from pyg_trust.certificates.sampling import check_uncached, evaluating
from pyg_trust.certificates.smoothing import check_radius
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.certificates.witness import MOST_BYTES, Proved, Witness
from pyg_trust.report import DATA_FIELDS, Guarantee, Report
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.verify import collective as kernel
from pyg_trust.verify.collective import Attack, Matrix
from pyg_trust.verify.declare import SEEDED_COPIES

__all__ = ['CollectiveCertificate', 'certify_collective']

DEGREES = ('source', 'target')
_PROBES = 20


@dataclass(frozen=True)
class CollectiveCertificate(Proved, SpeaksOf, Report):
    """Number of predictions that stay, all at once, under one joint attack.

    :func:`certify_collective` makes it.

    Args:
        num_targets (int): the number of predictions.
        guaranteed (int): how many predictions stay at once. With labels, how
            many stay and are correct.
        counted (int): how many predictions could be guaranteed: without labels
            those that did not abstain, with labels the correct ones.
        one_by_one (int): how many predictions are certified if each node is
            attacked alone.
        bound (float): an upper bound of how many predictions the attacker can
            change at once.
        edges (tuple[int, int]): the most added and deleted edges.
        features (tuple[int, int]): the most entries of ``x`` that turn to 1,
            and to 0.
        local_budget, attackers, degrees: the arguments of
            :func:`certify_collective`.
        K (int): the number of message passing layers.
        confidence (float): the probability that all bounds hold at once.
        run_sha256, model_sha256, weights_sha256, data_sha256 (str): SHA-256
            of model and data, of the model, of its weights, and of the data.
        provenance (dict): versions and settings.
        checked (tuple[str, ...]): the checks of the model in this run.
        named (tuple[str, ...]): sentences: which inputs, beside those that the
            noise flips, are assumed to stay under an attack.
        seeded (bool): whether the copies came from an explicit seed: then
            nothing is certified.
        witness_digest (str): SHA-256 of :obj:`proof`, or why there is none.
        proof (Witness, optional): the data from which :meth:`verify` proves
            :obj:`bound`, if the receptive fields and single certificates in it
            are right. It reveals which nodes are near each other, so no report
            contains it: save it separately.
    """

    num_targets: int
    guaranteed: int
    counted: int
    one_by_one: int
    bound: float
    edges: tuple[int, int]
    features: tuple[int, int]
    local_budget: int | None
    attackers: int | None
    K: int
    degrees: str
    confidence: float
    run_sha256: str
    model_sha256: str
    provenance: dict[str, Any]
    weights_sha256: str = ''
    data_sha256: str = ''
    checked: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    seeded: bool = False
    _weakness = SEEDED_COPIES
    witness_digest: str = ''
    proof: Witness | None = field(default=None, repr=False, compare=False)
    _kernel: ClassVar[ModuleType] = kernel

    def _fields(self) -> dict[str, Any]:
        return {**self.numbers(), 'data_fields': list(DATA_FIELDS)}

    def certified_ratio(self) -> float:
        """Return :obj:`guaranteed` divided by :obj:`num_targets`."""
        return self.guaranteed / self.num_targets

    def chart(self) -> Chart:
        """Return a bar chart of :obj:`guaranteed` and :obj:`one_by_one`."""
        return Chart(
            f'{self.guaranteed} of {self.num_targets} predictions stay at '
            f'once; {self.one_by_one} by certificates of their own',
            bars={
                'all predictions': self.num_targets,
                'that count': self.counted,
                'guaranteed together': self.guaranteed,
                'guaranteed one by one': self.one_by_one,
            },
            xlabel='predictions',
        )

    def guarantee(self) -> Guarantee:
        """Return the guarantee of how many predictions stay at once."""
        return stated(
            'collective certificate by smoothing',
            self._fields(),
            assumptions=self.named,
            data_sha256=self.data_sha256 or self.run_sha256,
            origin=self.provenance,
            checked=self.checked,
            weights_sha256=self.weights_sha256,
        )


@renamed(hops='K')
@validated
def certify_collective(
    report: SmoothedCertificate,
    model: Module,
    data: Data,
    *,
    K: Natural,
    edges: tuple[int, int] = (0, 0),
    features: tuple[int, int] = (0, 0),
    degrees: Annotated[str, OneOf(DEGREES)] = 'source',
    local_budget: Natural | None = None,
    attackers: Natural | None = None,
    labels: Tensor | None = None,
    forward: Callable[[Data], Tensor] | None = None,
) -> CollectiveCertificate:
    """Certify how many smoothed predictions any one attack leaves unchanged.

    Single certificates assume that every node can be attacked with the whole
    budget. But for a node, a model of :obj:`K` layers reads only the nodes
    within :obj:`K` hops and the edges to them, so one attack can't change all
    predictions. This is tested on some nodes: changes elsewhere have to leave
    equal outputs. The noise must not add edges (:math:`p_+ = 0`).

    Args:
        report (SmoothedCertificate): a certificate of nodes by
            :func:`certify_smoothed` with ``per='all'``.
        model (Module): the model that was smoothed.
        data (Data): the graph of the report.
        K (int): the number of message passing layers.
        edges (tuple[int, int]): how many edges an attacker adds and deletes,
            at most. (default: :obj:`(0, 0)`)
        features (tuple[int, int]): how many entries of ``x`` it turns to 1 and
            to 0, at most. (default: :obj:`(0, 0)`)
        degrees (str): :obj:`'source'` if a message may depend on the degree of
            its sender (GCN, SGC, APPNP; always right); :obj:`'target'` if not
            (SAGE, GAT, GIN; certifies more). (default: :obj:`'source'`)
        local_budget (int, optional): the most entries that turn to 1, or to 0,
            in one row of ``x``; by default no limit. (default: :obj:`None`)
        attackers (int, optional): the most nodes whose features change; by
            default no limit. (default: :obj:`None`)
        labels (Tensor, optional): the true classes of all nodes, int64,
            ``[num_nodes]``: only correct predictions count then. By default
            all predictions count. (default: :obj:`None`)
        forward (Callable, optional): the :obj:`forward` of the report's run.

    Returns:
        CollectiveCertificate: the number of guaranteed predictions.

    Raises:
        ValueError: if model or data are not those of the report, its run had a
            ``transform`` or noise that adds edges, or outputs failed the test.
    """
    budgets: dict[str, Any] = {
        'edges': check_radius('edges', edges),
        'features': check_radius('features', features),
    }
    for name, limit in (
        ('local_budget', local_budget),
        ('attackers', attackers),
    ):
        if limit is not None and budgets['features'] == (0, 0):
            raise ValueError(
                f"'{name}' needs a budget of 'features' that it limits "
                f'(got {name}={limit}, features={features})'
            )
    if labels is not None:
        size = (int(data.num_nodes or 0),)
        check_tensor('labels', labels, torch.int64, size)
    # Refuses budgets of kinds without noise.
    report.certified(**budgets)
    digest = _same_model(report, model, data, forward)
    # A layer may keep its graph since then.
    check_uncached(model)
    fields = _Fields(data, K, degrees)

    def call(graph: Data) -> Tensor:
        if forward is not None:
            return forward(graph)
        weight = graph.get('edge_weight')
        weights = [] if weight is None else [weight]
        return model(graph.x, graph.edge_index, *weights)

    with evaluating(model):
        fields.probe(call, budgets)
    rows = report.targets.numpy()
    sides = ('features', 0), ('features', 1), ('edges', 1), ('edges', 0)
    axes = [(kind, side) for kind, side in sides if budgets[kind][side]]
    reach: list[Matrix] = []
    caps: list[np.ndarray] = []
    for kind, side in axes:
        if kind == 'features':
            ones = data.x.sum(1).double().cpu().numpy()
            cap = ones if side else data.x.size(1) - ones
            most = np.inf if local_budget is None else local_budget
            reach.append(fields.nodes[rows])
            caps.append(np.minimum(cap, most))
        elif side:
            reach.append(fields.edges[rows])
            caps.append(np.ones(fields.pairs.size(1)))
    limited = [i for i, (kind, _) in enumerate(axes) if kind == 'features']
    counts = (report.predicted >= 0).numpy()
    if labels is not None:
        counts &= (labels[report.targets] == report.predicted).numpy()
    limits = [budgets[kind][place] for kind, place in axes]
    shape = [r + 1 for r in limits]
    sure = np.zeros((rows.size, *shape), dtype=bool)
    table = sure.reshape(rows.size, -1)
    for number, point in enumerate(np.ndindex(*shape)):
        spent: dict[str, Any] = {'edges': [0, 0], 'features': [0, 0]}
        for (kind, side), r in zip(axes, point, strict=True):
            spent[kind][side] = r
        mask = report.certified(**{k: tuple(r) for k, r in spent.items()})
        table[:, number] = mask.numpy()
    owner, points = frontier(sure)
    # Without a budget nothing changes, and no prediction breaks.
    held = counts[owner] & bool(axes)
    attack = Attack(
        *(owner[held], points[held], reach, limits, caps),
        fields.near[rows] if budgets['edges'][0] else None,
        attackers,
        limited,
    )
    bound, multipliers = broken_bound(attack)
    proof, found_digest = _witness(attack, rows.size, multipliers)
    alone = int((table[:, -1] & counts).sum())
    total = int(counts.sum())
    return CollectiveCertificate(
        num_targets=rows.size,
        guaranteed=max(total - math.floor(bound + 1e-6), alone),
        counted=total,
        one_by_one=alone,
        bound=bound,
        edges=budgets['edges'],
        features=budgets['features'],
        local_budget=local_budget,
        attackers=attackers,
        K=K,
        degrees=degrees,
        confidence=report.confidence,
        run_sha256=report.run_sha256,
        model_sha256=digest,
        provenance=report.provenance,
        weights_sha256=report.weights_sha256,
        data_sha256=report.data_sha256,
        checked=(
            'model, graph and call were compared with those of the '
            'certificate by smoothing, by their digests',
            f'changes outside of the fields of up to {_PROBES} nodes moved '
            'no bit of their outputs',
        ),
        named=report.named,
        seeded=report.seeded,
        proof=proof,
        witness_digest=found_digest,
    )


def _same_model(
    report: SmoothedCertificate,
    model: Module,
    data: Data,
    forward: Callable[[Data], Tensor] | None,
) -> str:
    # The digest of the model, which has to be that of the report.
    if report.task != 'nodes' or report.per != 'all':
        raise ValueError(
            "'report' needs to be of nodes, with confidence per='all' (got "
            f'{report.task}, per {report.per!r})'
        )
    if report.noise.edges[0] > 0 or report.noise.directed:
        raise ValueError(
            "'report' needs to have noise that adds no edges, on undirected "
            f'graphs: every node would see everything (got {report.noise})'
        )
    check_process()
    if identity_on(model, [data]) != report.run_sha256:
        raise ValueError(
            "'model' and 'data' need to be those of the report (got other "
            'weights, attributes or code, or another graph)'
        )
    called = report.provenance['arguments']
    if called['transform'] is not None:
        raise ValueError(
            "'report' needs to be of a model without a 'transform', which "
            f'may show every node everything (got {called["transform"]})'
        )
    digest = identity(model, None, forward)
    if digest != report.model_sha256:
        raise ValueError(
            f"'forward' needs to be that of the report, {called['forward']}, "
            f'with the same code and what it refers to (got {forward})'
        )
    return digest


def _witness(
    attack: Attack, num_targets: int, multipliers: np.ndarray
) -> tuple[Witness | None, str]:
    # The arrays from which the kernel computes the bound.
    most, near = attack.attackers, attack.additions
    numbers: dict[str, Any] = {
        'owner': attack.owner,
        'points': attack.points,
        'budget': attack.budget,
        'num_targets': num_targets,
        'attackers': -1 if most is None else most,
        'rows': attack.rows,
    }
    for i, seen in enumerate(attack.reach):
        numbers[f'caps{i}'] = attack.caps[i]
        numbers[f'ptr{i}'], numbers[f'items{i}'] = seen.indptr, seen.indices
    if near is not None:
        numbers['near_ptr'], numbers['near'] = near.indptr, near.indices
        numbers['num_nodes'] = near.shape[1]
    arrays = {
        name: np.asarray(value).astype(np.int64)
        for name, value in numbers.items()
    }
    size = sum(value.nbytes for value in arrays.values())
    if size > MOST_BYTES:
        return None, f'none: {size / 2**20:.0f} MiB were left out'
    witness = Witness({**arrays, 'multipliers': multipliers})
    return witness, witness.digest


def receptive_field(edge_index: Tensor, num_nodes: int, hops: int) -> Matrix:
    """Mark the nodes whose features reach each target, by ones in its row."""
    source, target = edge_index.numpy()
    eye = scipy.sparse.eye_array(num_nodes, format='csr')
    step = eye + scipy.sparse.csr_array(
        (np.ones(source.size), (target, source)), shape=(num_nodes, num_nodes)
    )
    reach = eye
    for _ in range(hops):
        reach = scipy.sparse.csr_array(reach @ step)
        reach.data[:] = 1
    return reach


def frontier(certified: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whose, and the smallest, budgets that are not certified."""
    closed = certified.copy()
    for axis in range(1, closed.ndim):
        closed = np.logical_and.accumulate(closed, axis=axis)
    smallest = ~closed
    for axis in range(1, closed.ndim):
        # Targets certified with one change less of this kind.
        before = np.ones_like(closed)
        rest = [slice(None)] * closed.ndim
        less = rest.copy()
        rest[axis], less[axis] = slice(1, None), slice(None, -1)
        before[tuple(rest)] = closed[tuple(less)]
        smallest &= before
    points = np.argwhere(smallest)
    return points[:, 0], points[:, 1:]


def broken_bound(attack: Attack) -> tuple[float, np.ndarray]:
    """Bound from above how many targets one budget can break at once.

    The points of a node share what it sees, where the published relaxation
    counts it once for each. The solver's objective is not used: from its
    multipliers, also returned, the kernel computes a bound, which holds
    whatever they are.
    """
    from scipy import optimize  # slow to import

    attack = attack.within()
    if attack.owner.size == 0:
        return 0.0, np.zeros(0)
    most = float(np.unique(attack.owner).size)
    made = kernel.program(attack)
    solved = optimize.linprog(
        -made.gain,
        A_ub=made.matrix,
        b_ub=made.right,
        bounds=np.stack([np.zeros(made.gain.size), made.upper], 1),
        method='highs',
    )
    multipliers = np.zeros(made.right.size)
    if solved.ineqlin is not None and solved.ineqlin.marginals is not None:
        multipliers = np.maximum(-solved.ineqlin.marginals, 0.0)
    proved = kernel.value(multipliers, made)
    bound = float(proved)
    if bound < proved:
        bound = float(np.nextafter(bound, np.inf))
    return min(bound, most), multipliers


class _Fields:
    """The receptive field of every node, in features and in edges.

    An edge is seen if one end is within the field. For layers whose messages
    are weighted by the *source's* degree (GCN, SGC, APPNP) that is the field
    of all rounds: the deletion of an edge between distance :math:`L` and
    :math:`L + 1` changes a degree within. For layers that are normalized at
    the target alone it is the field of one round less.
    """

    def __init__(self, data: Data, hops: int, degrees: str) -> None:
        self.data = data
        self.edge_index = data.edge_index.cpu()
        u, v = self.edge_index
        self.pairs = self.edge_index[:, u < v]
        self.num_nodes = n = int(data.num_nodes or 0)
        self.nodes = receptive_field(self.edge_index, n, hops)
        near = hops if degrees == 'source' else max(hops - 1, 0)
        # Nodes that see an end of an edge that is added or deleted.
        self.near = receptive_field(self.edge_index, n, near)
        item = np.arange(self.pairs.size(1))
        ends = scipy.sparse.csr_array(
            (np.ones(2 * item.size), (self.pairs.flatten(), [*item, *item])),
            shape=(n, item.size),
        )
        self.edges = scipy.sparse.csr_array(self.near @ ends)
        self.edges.data[:] = 1

    def probe(
        self, call: Callable[[Data], Tensor], budgets: dict[str, Any]
    ) -> None:
        """Change what is outside of some fields; compare outputs to the bit.

        About half of all bits change at once, those right outside, which
        further rounds would see, and those far away, which layers see that
        mix all nodes.
        """
        draw = np.random.default_rng(0)
        with torch.no_grad():
            clean = call(self.data)
            for row in draw.permutation(self.num_nodes)[:_PROBES].tolist():
                moved = call(self._changed(row, budgets, draw))[row]
                same = (moved == clean[row]) | clean[row].isnan()
                if not bool(same.all()):
                    raise ValueError(
                        "'K' or 'degrees' need to cover all that a node sees "
                        f'(got another output for node {row} after a change '
                        'outside of its field)'
                    )

    def _changed(
        self, row: int, budgets: dict[str, Any], draw: np.random.Generator
    ) -> Data:
        bad, n = self.data.clone(), self.num_nodes

        def outside(field: Matrix) -> np.ndarray:
            rest = np.arange(field.shape[1])
            return np.setdiff1d(rest, field[[row]].indices)

        if any(budgets['features']):
            # Single entries: in a row's sum a change of all may cancel.
            rows = torch.from_numpy(outside(self.nodes)).to(bad.x.device)
            some = draw.random((rows.numel(), bad.x.size(1))) < 0.5
            flip = torch.from_numpy(some).to(bad.x.device)
            bad.x[rows] = torch.where(flip, 1 - bad.x[rows], bad.x[rows])
        u, v = self.edge_index
        key = torch.minimum(u, v) * n + torch.maximum(u, v)
        edge_index = self.edge_index
        if any(budgets['edges']):
            items = outside(self.edges)
            low, high = self.pairs[:, items[draw.random(items.size) < 0.5]]
            edge_index = edge_index[:, ~torch.isin(key, low * n + high)]
        if budgets['edges'][0]:
            one = torch.from_numpy(draw.permutation(outside(self.near)))
            new = torch.stack([one, one.roll(1)]).sort(0).values
            new = new[:, (new[0] != new[1])].unique(dim=1)
            new = new[:, ~torch.isin(new[0] * n + new[1], key)]
            edge_index = torch.cat([edge_index, new, new.flip(0)], 1)
        bad.edge_index = edge_index.to(self.data.edge_index.device)
        return bad
