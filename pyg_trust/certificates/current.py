r"""Certificates that follow updates of the graph, or become stale.

A margin :math:`m_c(t)` is the least chance-weighted sum of :math:`\rho_c = H_y
- H_c` at the stop of a walk from :math:`t`, over admissible graphs. Let
:math:`T` be the nodes whose rows an update changed (edges, fragile set, local
budget, added self-loops), with their fragile partners if both directions flip
together, those whose :math:`\rho` changed, and new ones. With :math:`h(t)` the
largest chance that the walk visits :math:`T` before it stops, and :math:`R_c`
the range of :math:`\rho_c` over old and new nodes and zero,

.. math::
    m_c^{\text{new}}(t) \ge m_c(t) - h(t) R_c.

*Proof.* Take the flips of a new admissible graph without those in changed
rows: an admissible graph of before. Both have equal rows outside of :math:`T`,
so walks from :math:`t` can be coupled until they see it. After that their
stops differ by at most :math:`R_c`; zero is the reward of a walk that is lost
in an empty row. (Where no :math:`\rho` changed and no node is new, a walk that
stops where it meets :math:`T` has the same reward, so :math:`(1 - \alpha) R_c`
is enough.) The same holds for :math:`K` steps, and debits of updates add
up by induction. For symmetric normalization :math:`\rho` is divided by the
root of the degree, which a row decides.

**A new node that anybody may be linked to** changes all rows by entries into
:math:`T` alone: walks part only by a step into it, so :math:`T` has the node
and no other, and :math:`h` is over the new graphs, where such links are there.

**Another model** moves margins by averages of :math:`\rho^{\text{new}} -
\rho`, so at least by its smallest entry. Where both change, the smaller of two
debits counts: of this first, or of all nodes with another :math:`\rho` in
:math:`T`.

:math:`h` is at most :math:`(1 - \alpha)^{d(t, T)}`, along edges and fragile
pairs, and zero where no walk leads. What that leaves open is the largest value
of a policy, with :math:`T` absorbing and the reward 1 there, for all nodes at
once. By :mod:`pyg_trust.certificates.policy` no graph makes more of it than
:math:`V + \max_j (TV - V)_j / \alpha`, whatever :math:`V` is: few steps of
policy iteration give a bound, and more of them a smaller one. A global budget
is left out, which allows more graphs.
"""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust import files
from pyg_trust._checks import (
    Fraction,
    check_dtype,
    check_instance,
    check_tensor,
    validated,
)
from pyg_trust._checks.states import check_state, reading
from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.exact import _deployed, certify_pagerank, subject
from pyg_trust.certificates.flip_bits import check_graph
from pyg_trust.certificates.horizon import Horizon
from pyg_trust.certificates.perturbations import Perturbations
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.ragged import pointer
from pyg_trust.graph.sparse import pick_rows
from pyg_trust.report import fingerprint, fingerprint_data
from pyg_trust.report.base import plain

# Tensors of a certificate that an update changes.
_NUMBERS = {
    'debit': torch.float64,
    '_lower': torch.float64,
    '_fresh': torch.bool,
}
# The goals of policy iteration: its bounds are at most twice that too large.
_FINE, _COARSE = 1e-6, 5e-3
# Of products and sums of a few numbers in float64, rounded to nearest.
_OUT = 1 + 2.0**-48


class CurrentCertificate:
    """Certificate of PageRank that follows updates of the graph.

    .. code-block:: python

        current = CurrentCertificate(model, data, threat)
        current = current.after(model, data_new, threat_new)
        current.status_of(nodes, fingerprint_data(data_new))
        current = current.renewed()

    A node that was robust stays so while its margin exceeds the debits of all
    updates (:mod:`pyg_trust.certificates.current`); any other has a status of
    before that is not served: it is *stale*, until :meth:`renewed` certifies
    it. Names are positions: a removed node stays as one without edges, and
    new ones come last. Keeps logits and threat, which are private.

    Args:
        model (PageRankDiffusion or Tensor): as
            :func:`~pyg_trust.certificates.certify_pagerank` takes.
        data (Data, optional): the input of the model; :obj:`None` with logits.
        threat (ThreatModel): the attacker.
        alpha (float, optional): the teleport probability that goes with
            logits. (default: :obj:`None`)
        **options (Any): further arguments of ``certify_pagerank``.

    Raises:
        TypeError, ValueError: as ``certify_pagerank``.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        threat: ThreatModel,
        *,
        alpha: Fraction | None = None,
        **options: Any,
    ) -> None:
        check_instance('threat', threat, ThreatModel)
        found = certify_pagerank(model, data, threat, alpha=alpha, **options)
        options.pop('targets', None)
        self._given = options.pop('reference', None) is not None
        self._arguments = model, data, threat, alpha, options
        self._deployed = _deployed(model, data, threat, alpha)
        self._threat = threat
        self.certificate: Certificate = found
        #: What was taken off the margins so far, by target and class.
        self.debit = torch.zeros_like(found.class_margins)
        self._lower = found.class_margins.clone()
        self._fresh = torch.ones_like(found.robust)
        self.kept = found.num_robust
        self.root = _root(model, data, threat)

    @property
    def targets(self) -> Tensor:
        """The certified nodes: int64, ``[num_targets]``."""
        return self.certificate.targets

    @property
    def lower(self) -> Tensor:
        """Lower bounds of the present margins: float64, ``[num_targets]``."""
        return self._lower.amin(1)

    @property
    def status(self) -> Tensor:
        """Present status of each target, unknown where it is stale: int8."""
        robust = self.lower > self.certificate.tolerance
        found = torch.where(robust, ROBUST, UNKNOWN).to(torch.int8)
        # Before the first update attacks are known, too.
        broken = self._fresh & (self.certificate.status == BROKEN)
        return found.masked_fill(broken, BROKEN)

    @property
    def stale(self) -> Tensor:
        """Mask of the targets whose status an update made out of date."""
        return ~self._fresh & (self.status != ROBUST)

    @validated
    def status_of(self, nodes: Tensor, root: str) -> Tensor:
        """Return the status of nodes in the deployed graph: int8.

        Args:
            nodes (Tensor): int64: nodes among the targets.
            root (str): :func:`~pyg_trust.report.fingerprint_data` of the
                deployed graph; :attr:`root` with logits.

        Raises:
            ValueError: if the certificate is of another graph, a node is no
                target, or stale.
        """
        if root != self.root:
            raise ValueError(
                "'root' needs to be that of the graph of the certificate (got "
                'another): after() follows an update'
            )
        check_dtype('nodes', nodes, torch.int64)
        place = torch.searchsorted(self.targets.sort().values, nodes)
        order = self.targets.argsort()
        rows = order[place.clamp(max=order.numel() - 1)]
        bad = (self.targets[rows] != nodes) | self.stale[rows]
        if bool(bad.any()):
            raise ValueError(
                f"'nodes' has {int(nodes[bad][0])}, which is no target, or "
                'stale: renewed() certifies it'
            )
        return self.status[rows]

    @validated
    def after(
        self,
        model: Any,
        data: Any,
        threat: ThreatModel,
        *,
        solve: bool = True,
    ) -> 'CurrentCertificate':
        """Return the certificate after an update of graph, model or threat.

        Args:
            model (PageRankDiffusion or Tensor): the present model or logits.
            data (Data, optional): the present graph; :obj:`None` with logits.
            threat (ThreatModel): the same attacker, on the present graph.
            solve (bool): whether chances to meet what changed are solved to
                1e-6, or coarsely, to .005. (default: :obj:`True`)

        Raises:
            TypeError, ValueError: as ``certify_pagerank``, or if there are
                fewer nodes than before, or other classes.
        """
        *_, alpha, options = self._arguments
        now = _deployed(model, data, threat, alpha)
        was = self._deployed
        if now.logits.size(0) < was.logits.size(0):
            raise ValueError(
                f"'threat' needs at least {was.logits.size(0)} nodes (got "
                f'{now.logits.size(0)}): a removed node stays, without edges'
            )
        if now.logits.size(1) != was.logits.size(1):
            raise ValueError(
                f"'model' needs {was.logits.size(1)} classes (got "
                f'{now.logits.size(1)})'
            )
        made = copy.copy(self)
        made._arguments = model, data, threat, alpha, options
        made._deployed, made._threat = now, threat
        made.root = _root(model, data, threat)
        debit = _debit(self, now, threat, _FINE if solve else _COARSE)
        # At the reference class there is nothing to lose.
        debit[torch.arange(len(debit)), self.certificate.reference] = 0
        made.debit = (self.debit + debit) * _OUT
        made._lower = torch.where(
            debit == 0, self._lower, _down(self._lower - debit)
        )
        made._fresh = torch.zeros_like(self._fresh)
        # Of fewer flips, an attack of before may be none.
        equal = self._threat.global_budget == threat.global_budget
        if equal and torch.equal(was.logits, now.logits[: len(was.logits)]):
            made._fresh = self._fresh & (debit == 0).all(1)
        made.kept = int(made.status.eq(ROBUST).sum())
        return made

    def renewed(self) -> 'CurrentCertificate':
        """Certify the stale targets again; keep the results of the others.

        Raises:
            ValueError: if model or data were changed in place.
        """
        model, data, threat, alpha, options = self._arguments
        now = _deployed(model, data, threat, alpha)
        about = (subject(each, threat) for each in (self._deployed, now))
        if len({fingerprint(*each) for each in about}) > 1:
            raise ValueError(
                "'model' and 'data' need to be those of the certificate: they "
                'were changed in place, which after() follows'
            )
        stale, made = self.stale, copy.copy(self)
        old = self.certificate
        held = None
        if self._given:
            held = torch.zeros(threat.num_nodes, dtype=torch.int64)
            held[self.targets] = old.reference
        found = certify_pagerank(
            *(model, data, threat),
            alpha=alpha,
            targets=self.targets[stale],
            reference=held,
            **options,
        )
        made._lower, made.debit = self._lower.clone(), self.debit.clone()
        made._lower[stale], made.debit[stale] = found.class_margins, 0.0
        made._fresh = self._fresh | stale
        status, reference = old.status.clone(), old.reference.clone()
        status[stale], reference[stale] = found.status, found.reference
        made.certificate = replace(old, status=status, reference=reference)
        made.kept = int(made.status.eq(ROBUST).sum())
        return made

    def save(self, path: str | Path) -> None:
        """Write bounds and debits to a file, atomically.

        The file tells of the graph and the attacker, and is believed when it
        is loaded: guard it. It has no proof of the first certificate.

        Args:
            path (str or Path): the path of the file, which is replaced.
        """
        *_, alpha, options = self._arguments
        about = fingerprint(*subject(self._deployed, self._threat))
        names = (field.name for field in fields(Certificate) if field.repr)
        held = {name: getattr(self.certificate, name) for name in names}
        # Versions are more than text, which files do not hold.
        origin = json.dumps(plain(held['provenance']))
        held['provenance'] = json.loads(origin)
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        state = {'format': 1, 'about': about, 'certificate': held}
        state |= {'alpha': alpha, 'options': options, 'given': self._given}
        files.save(path, {**state, **numbers})

    @classmethod
    def load(
        cls, path: str | Path, model: Any, data: Any, threat: ThreatModel
    ) -> 'CurrentCertificate':
        """Read a certificate that :meth:`save` has written.

        Args:
            path (str or Path): the path of the file.
            model (PageRankDiffusion or Tensor): the model or logits of the
                saved certificate.
            data (Data, optional): the graph of the saved certificate;
                :obj:`None` with logits.
            threat (ThreatModel): the attacker of the saved certificate.

        Raises:
            TypeError, ValueError: on another file, model, graph or threat:
                with :meth:`after` an update is followed.
        """
        check_instance('threat', threat, ThreatModel)
        state = files.load(path)
        check_state(state, ('about', 'alpha', 'certificate'), (1,))
        made = cls.__new__(cls)
        made._deployed = _deployed(model, data, threat, state['alpha'])
        if state['about'] != fingerprint(*subject(made._deployed, threat)):
            raise ValueError(
                "'path' has the certificate of another model, graph or "
                'threat: load it with those that it was saved with, and '
                'follow the update by after()'
            )
        with reading():
            arguments = model, data, threat, state['alpha'], state['options']
            made._arguments, made._threat = arguments, threat
            made._given, made.root = state['given'], _root(model, data, threat)
            made.certificate = Certificate(**state['certificate'])
            shape = made.certificate.class_margins.shape
            for name, kind in _NUMBERS.items():
                size = shape if kind == torch.float64 else shape[:1]
                check_tensor('state', state[name], kind, tuple(size))
                setattr(made, name, state[name])
            made.kept = int(made.status.eq(ROBUST).sum())
        return made

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(robust={self.kept}, '
            f'stale={int(self.stale.sum())}, targets={self.targets.numel()})'
        )


@validated
def certified_after(
    certificate: SmoothedCertificate,
    model: Module,
    before: Data,
    now: Data,
    *,
    edges: tuple[int, int] = (0, 0),
    features: tuple[int, int] = (0, 0),
) -> Tensor:
    """Return a mask of targets whose smoothed class stays after changes.

    With so many bits that came and went since the certificate, each pair of
    radii is within a larger pair around the graph of then, which needs to be
    certified: changes of both kinds are added, never the larger one alone.
    The confidence stays, as no copy is drawn.

    Args:
        certificate (SmoothedCertificate): the certificate of nodes, without a
            transform.
        model (Module): the model, unchanged since the certificate.
        before (Data): the graph of the certificate.
        now (Data): the present graph, with the same nodes; only edges and
            features that have noise may differ.
        edges (tuple[int, int]): as in :meth:`~SmoothedCertificate.certified`,
            around the present graph. (default: :obj:`(0, 0)`)
        features (tuple[int, int]): as in
            :meth:`~SmoothedCertificate.certified`. (default: :obj:`(0, 0)`)

    Returns:
        Tensor: bool, ``[num_targets]``.

    Raises:
        ValueError: on another model or graph, or if something differs that
            has no noise, as self-loops.
    """
    # Refuses other radii, which are added to below.
    certificate.certified(edges=edges, features=features)
    if certificate.task != 'nodes':
        raise ValueError("'certificate' needs to be of nodes (got graphs)")
    if not certificate.speaks_of(model):
        raise ValueError(
            "'model' needs to be the one of the certificate, as all votes are "
            'of one function'
        )
    if certificate.data != fingerprint_data([before]):
        raise ValueError("'before' needs to be the graph of the certificate")
    names = {*before.keys(), *now.keys()} - {'edge_index', 'x'}
    same = all(_equal(before.get(name), now.get(name)) for name in names)
    noisy = certificate.cells
    changes = {'edges': (0, 0), 'features': (0, 0)}
    if before.num_nodes != now.num_nodes or not same:
        raise ValueError(
            "'now' needs the nodes of 'before', and to differ by edges and "
            'features alone'
        )
    n, graphs, loops = int(before.num_nodes), [], []
    for data in (before, now):
        row, col = data.edge_index
        loops.append(row[row == col].unique())
        if not certificate.noise.directed:
            row, col = torch.minimum(row, col), torch.maximum(row, col)
        graphs.append((row * n + col).unique())
    if not torch.equal(*loops):
        raise ValueError(
            "'now' has other self-loops, which have no noise: they stay in "
            'each copy, so that no vote tells of them'
        )
    come = int((~torch.isin(graphs[1], graphs[0])).sum())
    gone = int((~torch.isin(graphs[0], graphs[1])).sum())
    changes['edges'] = come, gone
    if not _equal(before.get('x'), now.get('x')):
        if 'features' not in noisy:
            raise ValueError("'now' has other features, which have no noise")
        if now.x.shape != before.x.shape or not bool(
            ((now.x == 0) | (now.x == 1)).all()
        ):
            raise ValueError(
                "'now' needs as many features as 'before', zeros and ones"
            )
        more = now.x.double() - before.x.double()
        changes['features'] = int((more > 0).sum()), int((more < 0).sum())
    # Sets of edges would hide an order, or one that is there twice.
    if 'edges' not in noisy and not _equal(before.edge_index, now.edge_index):
        raise ValueError("'now' has other edges, which have no noise")
    check_graph(now, certificate.noise)
    wide = {
        kind: (radius[0] + changes[kind][0], radius[1] + changes[kind][1])
        for kind, radius in (('edges', edges), ('features', features))
    }
    return certificate.certified(**wide)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one, two)
    return type(one) is type(two) and one == two


def _root(model: Any, data: Any, threat: ThreatModel) -> str:
    if data is not None:
        return fingerprint_data(data)
    return fingerprint(model, threat.graph.rowptr, threat.graph.col)


def _down(value: Tensor) -> Tensor:
    # At or below an exact difference that was rounded once.
    return torch.nextafter(value, torch.full_like(value, -math.inf))


def _debit(
    held: CurrentCertificate, now: Deployed, threat: ThreatModel, tol: float
) -> Tensor:
    # What an update may take off, by target and class: [targets, C].
    was, reference = held._deployed, held.certificate.reference
    targets, before = held.targets, held._threat
    shape = held._lower.shape
    found = torch.full(shape, math.inf, dtype=torch.float64)
    for name in ('alpha', 'K', 'normalization', 'self_loops'):
        if getattr(was, name) != getattr(now, name):
            return found
    old, new = was.perturbations(before), now.perturbations(threat)
    more = (before.global_budget, threat.global_budget)
    if more[0] is not None and (more[1] is None or more[1] > more[0]):
        return found
    if before.undirected != threat.undirected:
        return found
    n, m = old.num_nodes, new.num_nodes
    rows = changed_rows(old, new, threat.undirected, now.normalization)
    other = torch.zeros(m, dtype=torch.bool)
    other[:n] = (was.logits != now.logits[:n]).any(1)
    # Of the deployed models' roundoff.
    slack = [
        each.error(int(made.largest.max()))
        for each, made in ((was, old), (now, new))
    ]
    error = (slack[1] - slack[0]).clamp(min=0) * _OUT
    extra = (error[reference][:, None] + error) * _OUT

    def width(first: Tensor, same: bool) -> Tensor:
        wide = _range(first, now.logits, old, new, now.normalization)
        if same and n == m and now.normalization == 'rw':
            # Walks that stop where they meet have the same reward.
            wide = wide * ((1 - now.alpha) * _OUT)
        return wide[reference]

    same = not bool(other.any())
    none = torch.zeros(shape, dtype=torch.float64)
    # Where walks part, what that costs, and what is lost before.
    ways = [(rows | other, width(was.logits, same), none)]
    if not same:
        # The gap of every class to the others moves by no more than this.
        gap = now.logits[:n] - was.logits
        if now.normalization == 'sym':
            least = 1 / _smallest(old).sqrt()
        else:
            least = torch.ones(n, dtype=torch.float64)
        off = 2.0**-50 * gap.abs().max()
        falls = off + torch.stack(
            [
                ((gap - gap[:, [y]]) * least[:, None]).amax(0).clamp(min=0)
                for y in range(shape[1])
            ]
        )
        shift = falls[reference] * _OUT**2
        ways.append((rows, width(now.logits[:n], True), shift))
    floor = held.certificate.tolerance
    for visits in (_near, partial(_solved, tol=tol)):
        for touched, wide, shift in ways:
            h = visits(new, touched, now)[targets]
            taken = h[:, None] * wide * _OUT
            # Not even zero times infinity.
            taken[h == 0] = 0
            found = found.minimum((taken + shift + extra) * _OUT)
        lost = (held._lower - found).amin(1) <= floor
        if not bool((lost & (held.lower > floor)).any()):
            break
    return found


def changed_rows(
    old: Perturbations, new: Perturbations, undirected: bool, kind: str
) -> Tensor:
    """Return a mask of the rows that an update changed, new nodes included.

    Args:
        old (Perturbations): the admissible graphs before the update.
        new (Perturbations): the admissible graphs after it, with the old nodes
            first.
        undirected (bool): whether both directions of an edge flip together.
        kind (str): the normalization.
    """
    n, m = old.num_nodes, new.num_nodes
    rows = torch.zeros(m, dtype=torch.bool)
    rows[n:] = True

    def keys(made: Perturbations) -> Iterator[Tensor]:
        graph = made.graph
        into = kind == 'sym'
        for row, col, marks, all_of in (
            (graph.row, graph.col, made.removable.long(), True),
            # Links into new nodes that may come are steps into T.
            (*made.pairs, made.pairs.new_zeros(()), into),
        ):
            inside = (row < n) & ((col < n) | all_of)
            yield ((row * m + col) * 2 + marks)[inside]

    for both in zip(keys(old), keys(new), strict=True):
        key, count = torch.cat(both).unique(return_counts=True)
        rows[key[count == 1] // 2 // m] = True
    budget = old.budget != new.budget[:n]
    if m > n and kind != 'sym':
        # A budget that was all there is grows by entries into T alone.
        grown = new.budget[:n] > old.budget
        into = new.pairs[0][(new.pairs[0] < n) & (new.pairs[1] >= n)]
        most = into.bincount(minlength=m)[:n]
        if new.all_pairs:
            most = torch.full((n,), m - n)
        spare = old.budget == _fragile(old)
        budget &= ~(grown & spare & (new.budget[:n] <= old.budget + most))
    rows[:n] |= budget
    if old.all_pairs != new.all_pairs or (
        kind == 'sym' and new.all_pairs and m > n
    ):
        rows[:] = True
    if undirected:
        partners = rows.clone()
        for made in (old, new):
            ends = torch.stack([made.graph.row, made.graph.col])
            for row, col in (ends[:, made.removable], made.pairs):
                here = (row < n) & (col < n)
                for one, two in ((row, col), (col, row)):
                    partners[two[here & rows[one]]] = True
        if new.all_pairs and bool(rows[:n].any()):
            partners[:] = True
        rows = partners
    return rows


def _fragile(made: Perturbations) -> Tensor:
    # How many flips a row has at all.
    size = made.num_nodes
    found = made.graph.row[made.removable].bincount(minlength=size)
    return found + made.pairs[0].bincount(minlength=size)


def _smallest(made: Perturbations) -> Tensor:
    return made.smallest.clamp(min=1).double()


def _range(
    first: Tensor,
    second: Tensor,
    old: Perturbations,
    new: Perturbations,
    kind: str,
) -> Tensor:
    # Of the rewards H_y - H_c, and zero, over old and new nodes: [C, C].
    count = second.size(1)
    high, low = torch.zeros(2, count, count, dtype=torch.float64)
    for logits, made in ((first, old), (second, new)):
        by_class = logits.t().contiguous()
        size = _smallest(made)[: len(logits)]
        if made is new and len(first) == len(logits):
            size = size.minimum(_smallest(old))
        for y in range(count):
            rho = by_class[y] - by_class
            if kind == 'sym':
                rho = rho / size.sqrt()
            high[y] = high[y].maximum(rho.amax(1))
            low[y] = low[y].minimum(rho.amin(1))
    return (high - low) * _OUT**2


def _near(new: Perturbations, touched: Tensor, now: Deployed) -> Tensor:
    # The largest chance to visit these before the stop, by the steps there in
    # the union of the new graphs: rows elsewhere are as before.
    n, graph = new.num_nodes, new.graph
    ends = torch.cat([torch.stack([graph.row, graph.col]), new.pairs], 1)
    back = CSRGraph.from_edge_index(ends.flip(0), n)
    far = torch.full((n,), math.inf, dtype=torch.float64)
    front, step = touched.nonzero().view(-1), 0
    far[front] = 0
    while front.numel() > 0:
        step += 1
        _, entries = pick_rows(back.rowptr, front)
        reached = torch.zeros(n, dtype=torch.bool)
        reached[back.col32[entries].long()] = True
        if new.all_pairs:
            reached |= new.budget > 0
        front = (reached & far.isinf()).nonzero().view(-1)
        far[front] = step
    h = torch.tensor(1 - now.alpha).double().nextafter(torch.tensor(2.0))
    h = h**far * (1 + 2.0**-40)
    steps = math.inf if now.K is None else now.K
    return torch.where(far > steps, 0.0, h).clamp(max=1)


def _solved(
    new: Perturbations, touched: Tensor, now: Deployed, tol: float
) -> Tensor:
    # The same by policy iteration, and what it may be off: with these
    # absorbing, by one edge to themselves.
    graph, own = new.graph, touched.nonzero().view(-1)
    rowptr = pointer(torch.where(touched, 1, graph.degree))
    rest = torch.ones(int(rowptr[-1]), dtype=torch.bool)
    rest[rowptr[own]] = False
    kept = ~touched[graph.row]
    col = torch.empty(rest.numel(), dtype=torch.int64)
    col[rest], col[~rest] = graph.col[kept], own
    removable = torch.zeros_like(rest)
    removable[rest] = new.removable[kept]
    pairs = new.pairs[:, ~touched[new.pairs[0]]]
    made = Perturbations(
        CSRGraph(rowptr, col),
        removable,
        new.budget.masked_fill(touched, 0),
        None if new.all_pairs else pairs,
        all_pairs=new.all_pairs,
    )
    horizon = Horizon(now.alpha, now.K, 'rw')
    found = horizon.maximize(made, touched.double()[None], tol=tol)
    h = now.alpha * (found.value + found.high[:, None])[0] * _OUT
    h = np.nextafter(h.clamp(0, 1).numpy(), 2.0)
    return torch.from_numpy(h).masked_fill(touched, 1.0).clamp(max=1)
