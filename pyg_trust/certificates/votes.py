"""Reports of smoothing certificates, made from votes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust._checks import (
    check_choice,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._checks.identity import SpeaksOf
from pyg_trust.certificates.flip_bits import KINDS, BitFlips, check_graph
from pyg_trust.certificates.smoothing import (
    FlipRegions,
    answering_probability,
    certified,
    check_radius,
    regions_at,
    worst_case_probability,
)
from pyg_trust.certificates.voting import tallies
from pyg_trust.report import DATA_FIELDS, Guarantee, Report, fingerprint_data
from pyg_trust.report.base import stated
from pyg_trust.report.charts import Chart
from pyg_trust.verify.declare import SEEDED_COPIES

__all__ = ['SmoothedCertificate', 'certified_after']

_SHOWN = (1, 2, 5, 10)


def is_right(
    labels: Tensor, targets: Tensor, predicted: Tensor, task: str
) -> Tensor:
    """Mark the targets that are classified as the labels of all have it."""
    check_tensor('labels', labels, torch.int64, ('num',))
    if labels.numel() <= int(targets.max()):
        raise ValueError(
            f"'labels' needs to have all {task} "
            f'(got {labels.numel()}, for {int(targets.max()) + 1})'
        )
    return labels[targets] == predicted


@dataclass(frozen=True)
class SmoothedCertificate(SpeaksOf, Report):
    """Certificates of a smoothed classifier, from votes on noisy copies.

    :func:`certify_smoothed` makes it. The *smoothed* classifier returns the
    class that the model predicts for most noisy copies of an input. Its
    classes, :obj:`predicted`, are certified, not those of the model. As
    :class:`SmoothedClassifier` draws new copies at every call, it may abstain
    on a certified target; :meth:`answered` marks where it will hardly do so.

    Args:
        targets (Tensor): the nodes, graphs or pairs: int64, ``[num_targets]``.
        predicted (Tensor): the smoothed classes, -1 where too few copies
            agree: int64, ``[num_targets]``.
        votes (Tensor): how many copies voted for each class: int64,
            ``[num_targets, num_classes + 1]``. The last column counts outputs
            with NaN or infinity.
        p_lower (Tensor): lower bounds of the probability of the predicted
            class: float64, ``[num_targets]``.
        p_upper (Tensor): upper bounds of the other classes' probabilities, 0
            at the predicted class: float64, of the shape of :obj:`votes`.
        cells (dict): for ``'edges'`` and ``'features'``, if they flip, how
            many zeros and how many ones a graph has: ``[num_graphs, 2]``.
        noise (BitFlips): the noise.
        task (str): ``'nodes'``, ``'graphs'`` or ``'pairs'``.
        num_samples, num_selection, confidence, per, classes, tolerance: the
            arguments of :func:`certify_smoothed`, where the last is ``tol``.
        alpha (float): the probability that any bound of one target is wrong.
        note, advice (str): how the model was called, and another certificate
            that would suit it better, or ''.
        run_sha256, model_sha256, weights_sha256, data_sha256 (str): SHA-256
            of model and data, of the model, of its weights, and of the data.
        num_abstained (int): the number of targets with class -1.
        checked, provenance: the checks of the model, and the settings.
        named (tuple[str, ...]): sentences: which inputs, beside those that the
            noise flips, are assumed to stay under an attack.
        seeded (bool): whether the copies came from an explicit seed: then
            nothing is certified.
    """

    targets: Tensor
    predicted: Tensor
    votes: Tensor
    p_lower: Tensor
    p_upper: Tensor
    cells: dict[str, Tensor]
    noise: BitFlips
    task: str
    num_samples: int
    num_selection: int
    alpha: float
    confidence: float
    per: str
    classes: str
    tolerance: float
    seed: int
    note: str
    advice: str
    run_sha256: str
    model_sha256: str
    num_abstained: int
    provenance: dict[str, Any]
    weights_sha256: str = ''
    data_sha256: str = ''
    checked: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    seeded: bool = False

    def certified(
        self,
        *,
        edges: tuple[int, int] = (0, 0),
        features: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Return which targets keep their class: bool, ``[num_targets]``.

        Args:
            edges (tuple[int, int]): how many edges an attacker adds and
                deletes, at most. (default: :obj:`(0, 0)`)
            features (tuple[int, int]): how many entries of ``x`` it turns to 1
                and to 0, at most. (default: :obj:`(0, 0)`)
        """
        stays = torch.zeros(self.targets.numel(), dtype=torch.bool)
        for which, regions in self._regions(edges=edges, features=features):
            stays[which] = certified(
                self.p_lower[which],
                self.p_upper[which] if self.classes == 'all' else None,
                regions,
                tolerance=self.tolerance,
            )
        return stays & (self.predicted >= 0)

    def answered(self, **budget: tuple[int, int]) -> Tensor:
        r"""Return on which targets the classifier hardly ever abstains: bool.

        :class:`SmoothedClassifier`, with the same numbers of samples, returns
        the certified class for any graph within the budget, in each call with
        probability at least :math:`1 - \alpha` (:obj:`alpha`).

        Args:
            **budget (tuple[int, int]): ``edges`` and ``features``, the most
                additions and deletions, as :meth:`certified` takes them.
        """
        needed = answering_probability(
            self.num_samples,
            self.num_selection,
            self.alpha / 2 if self.classes == 'all' else self.alpha,
            self.alpha,
            self.tolerance,
        )
        answered = self.certified(**budget)
        for which, regions in self._regions(**budget):
            low = (self.p_lower[which] - self.tolerance).clamp(min=0)
            left = worst_case_probability(low, regions) - self.tolerance
            answered[which] &= left > needed
        return answered

    def _regions(
        self, **given: tuple[int, int]
    ) -> Iterator[tuple[Tensor, FlipRegions]]:
        # Targets with the same cells, and the regions of a budget for them.
        budget, total = {}, self.targets.numel()
        for kind in KINDS:
            radius = check_radius(kind, given.get(kind, (0, 0)))
            if radius != (0, 0):
                self._check_noise(kind)
            if kind in self.noise.noisy:
                budget[kind] = radius
        # A budget can't add more ones than there are zeros, nor delete more
        # ones than there are.
        clipped = torch.cat(
            [
                torch.minimum(self.cells[kind], torch.tensor([radius]))
                for kind, radius in budget.items()
            ],
            dim=1,
        )
        for row in clipped.unique(dim=0):
            which = (clipped == row).all(1).expand(total)
            pairs = [(added, gone) for added, gone in row.view(-1, 2).tolist()]
            noise = [getattr(self.noise, kind) for kind in budget]
            yield which, regions_at(noise, pairs)

    def certified_ratio(self, **budget: tuple[int, int]) -> float:
        """Return the share of targets that keep their class.

        Args:
            **budget (tuple[int, int]): ``edges`` and ``features``, the most
                additions and deletions, as :meth:`certified` takes them.
        """
        return float(self.certified(**budget).double().mean())

    def certified_accuracy(
        self, labels: Tensor, **budget: tuple[int, int]
    ) -> float:
        """Return the share of targets that keep their class and are correct.

        Args:
            labels (Tensor): the true classes of all nodes, or graphs: int64.
            **budget (tuple[int, int]): ``edges`` and ``features``, the most
                additions and deletions, as :meth:`certified` takes them.
        """
        right = is_right(labels, self.targets, self.predicted, self.task)
        return float((self.certified(**budget) & right).double().mean())

    def radii(self, kind: str = 'edges', *, limit: int = 100) -> Tensor:
        """Return how many deletions are certified, by number of additions.

        Args:
            kind (str): :obj:`'edges'` or :obj:`'features'`.
            limit (int): the largest number of additions, and of deletions,
                that is tried. (default: :obj:`100`)

        Returns:
            Tensor: int64, ``[num_targets, R + 1]``: in column :math:`r` the
            most deletions that are certified with :math:`r` additions, -1 if
            not even 0 are. Column :math:`R` is the last that is not all -1.
        """
        check_choice('kind', kind, KINDS)
        self._check_noise(kind)
        check_integer('limit', limit, 0)
        columns: list[Tensor] = []
        for added in range(limit + 1):
            reached = torch.full_like(self.targets, -1)
            for deleted in range(limit + 1):
                mask = self.certified(**{kind: (added, deleted)})
                reached += mask
                if not bool(mask.any()):
                    break
            if columns and not bool((reached >= 0).any()):
                break
            columns.append(reached)
        return torch.stack(columns, dim=1)

    def _check_noise(self, kind: str) -> None:
        if kind not in self.noise.noisy:
            raise ValueError(
                f"'{kind}' need to have noise to be certified (got "
                f'{self.noise})'
            )

    def _tallies(self) -> list[list[int]]:
        # Of all that do not abstain: how many targets, then the votes for the
        # class, the most for another one and those for the rest, and how
        # many cells are 0 and 1 of each kind.
        kept = self.predicted >= 0
        votes, chosen = self.votes[kept], self.predicted[kept, None]
        top = votes.gather(1, chosen)[:, 0]
        runner_up = votes.scatter(1, chosen, -1).amax(1)
        rest = votes.sum(1) - top - runner_up
        cells = [
            column[kept]
            for kind in sorted(self.noise.noisy)
            for column in self.cells[kind].expand(kept.numel(), 2).unbind(1)
        ]
        return tallies(top, runner_up, rest, *cells)

    def guarantee(self) -> Guarantee:
        """Return the guarantee of which classes stay, and its confidence."""
        counts: dict[str, int] = {}
        answers: dict[str, int] = {}
        for kind in self.noise.noisy:
            for radius in ((1, 0), (0, 1), (0, 5)):
                name = f'{kind}_added_{radius[0]}_deleted_{radius[1]}'
                counts[name] = int(self.certified(**{kind: radius}).sum())
                answers[name] = int(self.answered(**{kind: radius}).sum())
        return stated(
            'certificate by smoothing',
            {
                **self.numbers(),
                'flips': {
                    kind: list(getattr(self.noise, kind))
                    for kind in sorted(self.noise.noisy)
                },
                'undirected': not self.noise.directed,
                'targets': self.targets.numel(),
                'num_classes': self.votes.size(1) - 1,
                'tallies': self._tallies(),
                'certified': counts,
                'answered': answers,
                'data_fields': list(DATA_FIELDS),
            },
            assumptions=self.named,
            data_sha256=self.data_sha256 or self.run_sha256,
            origin=self.provenance,
            checked=self.checked,
            weights_sha256=self.weights_sha256,
        )

    def _sides(self) -> Iterator[tuple[str, str, Any]]:
        # Kinds, sides and the budget of so many changes there.
        for kind in self.noise.noisy:
            yield kind, 'additions', lambda r, kind=kind: {kind: (r, 0)}
            yield kind, 'deletions', lambda r, kind=kind: {kind: (0, r)}

    def chart(self) -> Chart:
        """Chart the share of certified predictions by number of changes."""
        radii, lines = range(_SHOWN[-1] + 1), {}
        for kind, side, budget in self._sides():
            shares = [self.certified_ratio(**budget(r)) for r in radii]
            lines[f'{side} of {kind}'] = (radii, shares)
        best = max(lines, key=lambda name: sum(lines[name][1]))
        return Chart(
            f'{lines[best][1][1]:.0%} of {self.targets.numel()} '
            f'{self.task} stay after 1 change ({best}), with confidence '
            f'{self.confidence:g}',
            lines=lines,
            xlabel='changes',
            ylabel='share that is certified',
            steps=True,
        )

    def __str__(self) -> str:
        total = self.targets.numel()
        lines = [
            *([SEEDED_COPIES] * self.seeded),
            f'smoothed classifier, {self.noise}',
            f'{total} {self.task}, {self.num_abstained} abstain; '
            f'{self.num_samples} samples, confidence {self.confidence:g} '
            f'per {self.per}',
        ]
        for kind, side, budget in self._sides():
            masks = {r: self.certified(**budget(r)) for r in _SHOWN}
            counts = [f'{r}: {int(mask.sum())}' for r, mask in masks.items()]
            lines.append(f'certified, {side} of {kind}: {", ".join(counts)}')
        notes = [text for text in (self.note, self.advice) if text]
        notes += self.named
        return '\n'.join([*lines, *notes])


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
    """Return which nodes keep their class, if the graph has changed since.

    The changes since the certificate are added to those of the attacker. No
    copy is drawn, so that the confidence is that of the certificate.

    Args:
        certificate (SmoothedCertificate): the certificate of nodes.
        model (Module): the model, unchanged since the certificate.
        before (Data): the graph of the certificate.
        now (Data): the present graph, with the same nodes; only edges and
            features that have noise may differ.
        edges (tuple[int, int]): how many edges an attacker adds to the present
            graph and deletes from it, at most. (default: :obj:`(0, 0)`)
        features (tuple[int, int]): how many entries of the present ``x`` it
            turns to 1 and to 0, at most. (default: :obj:`(0, 0)`)

    Returns:
        Tensor: bool, one per target of the certificate.
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
    if certificate.data_sha256 != fingerprint_data([before]):
        raise ValueError("'before' needs to be the graph of the certificate")
    noisy = {'edges': 'edge_index', 'features': 'x'}
    free = {noisy[kind] for kind in certificate.noise.noisy}
    names = {*before.keys(), *now.keys()} - free
    if before.num_nodes != now.num_nodes:
        raise ValueError("'now' needs the nodes of 'before'")
    for name in sorted(names):
        if not _equal(before.get(name), now.get(name)):
            raise ValueError(
                f"'now' needs to differ from 'before' by what has noise alone "
                f'(got another {name!r})'
            )
    check_graph(now, certificate.noise)
    if 'x' in free:
        if now.x.shape != before.x.shape:
            raise ValueError("'now' needs as many features as 'before'")
        more = now.x.double() - before.x.double()
        added, removed = int((more > 0).sum()), int((more < 0).sum())
        features = features[0] + added, features[1] + removed
    if 'edge_index' in free:
        n, bits = int(before.num_nodes), []
        for data in (before, now):
            row, col = data.edge_index
            if not certificate.noise.directed:
                row, col = torch.minimum(row, col), torch.maximum(row, col)
            edge = (row * n + col).unique()
            loops = edge // n == edge % n
            bits.append((edge[~loops], edge[loops]))
        (old, loops), (new, other) = bits
        if not torch.equal(loops, other):
            raise ValueError(
                "'now' has other self-loops, which have no noise: they stay "
                'in each copy, so that no vote depends on them'
            )
        added = int((~torch.isin(new, old)).sum())
        removed = int((~torch.isin(old, new)).sum())
        edges = edges[0] + added, edges[1] + removed
    return certificate.certified(edges=edges, features=features)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one, two)
    return type(one) is type(two) and one == two
