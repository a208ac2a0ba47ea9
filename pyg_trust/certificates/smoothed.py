# Longer than 700 lines because the run that certifies and the classifier that
# is deployed have to sample alike.
"""Smoothing: certificates for any classifier of graphs or of nodes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from tqdm import tqdm

from pyg_trust import rng
from pyg_trust._checks import (
    check_callable,
    check_choice,
    check_instance,
    check_integer,
    check_nodes,
    check_non_negative,
    check_number,
    check_tensor,
)
from pyg_trust.certificates.certify import certifies
from pyg_trust.certificates.identity import (
    UNSEEN,
    SpeaksOf,
    check_process,
    identity,
)
from pyg_trust.certificates.sampling import (
    Pipeline,
    Sampler,
    check_uncached,
    evaluating,
)
from pyg_trust.distributed import (
    check_same,
    from_first,
    rank_and_size,
    run_over_ranks,
)
from pyg_trust.functional.confidence import clopper_pearson, look_level
from pyg_trust.functional.smoothing import (
    certified,
    check_radius,
    min_probability,
    regions_at,
)
from pyg_trust.nn.ppnp import PPNP, FeaturePropagation, LabelPropagation
from pyg_trust.report import (
    DATA_FIELDS,
    Guarantee,
    Report,
    fingerprint,
    fingerprint_data,
    fingerprint_model,
    provenance,
)
from pyg_trust.report.charts import Chart
from pyg_trust.transforms.flip_bits import KINDS, BitFlips, check_graph

PER = ('all', 'node')
CLASSES = ('all', 'one')
_SHOWN = (1, 2, 5, 10)
_LINEAR = (PPNP, FeaturePropagation, LabelPropagation)
_EXACT = (
    'the model is linear in personalized PageRank: against flips of edges, '
    'certify(model, data, ThreatModel(...)) is exact, without confidence, and '
    'certifies more'
)


@dataclass(frozen=True)
class SmoothedCertificate(SpeaksOf, Report):
    r"""How likely every class is under noise, and what follows from it.

    It speaks of the *smoothed* classifier, the likeliest class of the model
    over noisy copies of its input, not of the model itself: predict with
    :obj:`predicted`, or with :class:`SmoothedClassifier`. One run serves all
    radii and budgets.
    """

    targets: Tensor
    """The nodes, or graphs: int64, ``[num_targets]``."""
    predicted: Tensor
    """The smoothed class, -1 where it abstains: int64, ``[num_targets]``."""
    votes: Tensor
    """How many copies voted for each class, the last column for outputs that
    were not finite: int64, ``[num_targets, num_classes + 1]``."""
    p_lower: Tensor
    """Lower bounds of the probability of the class: float64."""
    p_upper: Tensor
    """Upper bounds of the others', 0 at the class itself: float64, as
    :obj:`votes`."""
    cells: dict[str, Tensor]
    """By kind, how many cells are 0 and how many 1: int64, ``[1, 2]``, or
    ``[num_targets, 2]`` for graphs."""
    noise: BitFlips
    task: str
    """``'nodes'`` or ``'graphs'``."""
    num_samples: int
    num_selection: int
    look: int
    """At which look it ended, 0 if the number of samples was fixed."""
    alpha: float
    """The level of each target's bounds together."""
    confidence: float
    per: str
    classes: str
    tolerance: float
    """What is taken off :obj:`p_lower` and added to :obj:`p_upper`."""
    seed: int
    note: str
    advice: str
    """Another certificate that fits the model better, or nothing."""
    fingerprint: str
    """SHA-256 of the model and of the data."""
    model_digest: str
    """SHA-256 of the model: tensors, attributes and code."""
    num_abstained: int
    provenance: dict[str, Any]
    weights: str = ''
    """SHA-256 of the model's weights."""
    data: str = ''
    """SHA-256 of the graphs that were handed in."""

    def certified(
        self,
        *,
        edges: tuple[int, int] = (0, 0),
        features: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Whose class stays under so many changes: bool, ``[num_targets]``.

        Args:
            edges (tuple[int, int]): at most so many additions and deletions
                of edges. (default: :obj:`(0, 0)`)
            features (tuple[int, int]): the same of entries of the features.
                (default: :obj:`(0, 0)`)

        Raises:
            ValueError: on a negative budget, or one of a kind that has no
                noise.
        """
        budget = self._budget(edges, features)
        made = torch.zeros(self.targets.numel(), dtype=torch.bool)
        # No more zeros can be set than there are, nor ones deleted.
        clipped = torch.cat(
            [
                torch.minimum(self.cells[kind], torch.tensor([radius]))
                for kind, radius in budget.items()
            ],
            dim=1,
        )
        for row in clipped.unique(dim=0):
            which = (clipped == row).all(1).expand(made.numel())
            radius = [tuple(pair) for pair in row.view(-1, 2).tolist()]
            regions = regions_at(
                [getattr(self.noise, kind) for kind in budget], radius
            )
            made[which] = certified(
                self.p_lower[which],
                self.p_upper[which] if self.classes == 'all' else None,
                regions,
                tolerance=self.tolerance,
            )
        return made & (self.predicted >= 0)

    def certified_ratio(
        self,
        *,
        edges: tuple[int, int] = (0, 0),
        features: tuple[int, int] = (0, 0),
    ) -> float:
        """The share of targets whose class stays, see :meth:`certified`.

        Args:
            edges (tuple[int, int]): additions and deletions.
                (default: :obj:`(0, 0)`)
            features (tuple[int, int]): additions and deletions.
                (default: :obj:`(0, 0)`)
        """
        mask = self.certified(edges=edges, features=features)
        return float(mask.double().mean())

    def certified_accuracy(
        self,
        labels: Tensor,
        *,
        edges: tuple[int, int] = (0, 0),
        features: tuple[int, int] = (0, 0),
    ) -> float:
        """The share of targets that stay and are right.

        Args:
            labels (Tensor): the true classes of all nodes, or graphs: int64.
            edges (tuple[int, int]): additions and deletions.
                (default: :obj:`(0, 0)`)
            features (tuple[int, int]): additions and deletions.
                (default: :obj:`(0, 0)`)

        Raises:
            ValueError: if there are fewer labels than the largest target
                takes.
        """
        check_tensor('labels', labels, torch.int64, ('num',))
        if labels.numel() <= int(self.targets.max()):
            raise ValueError(
                f"'labels' needs to have all {self.task} "
                f'(got {labels.numel()}, for {int(self.targets.max()) + 1})'
            )
        right = labels[self.targets] == self.predicted
        mask = self.certified(edges=edges, features=features)
        return float((mask & right).double().mean())

    def radii(self, kind: str = 'edges', *, limit: int = 100) -> Tensor:
        """The frontier of each target: how many deletions with so many
        additions.

        Args:
            kind (str): :obj:`'edges'` or :obj:`'features'`.
                (default: :obj:`'edges'`)
            limit (int): the largest radius that is tried.
                (default: :obj:`100`)

        Returns:
            Tensor: int64, ``[num_targets, R + 1]``: in column :math:`r_a` the
            largest certified :math:`r_d`, -1 if there is none.
        """  # noqa: D205
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

    def _budget(self, *budgets: Any) -> dict[str, tuple[int, int]]:
        made = {}
        for kind, value in zip(KINDS, budgets, strict=True):
            radius = check_radius(kind, value)
            if radius != (0, 0):
                self._check_noise(kind)
            if kind in self.noise.noisy:
                made[kind] = radius
        return made

    def guarantee(self) -> Guarantee:
        """That classes stay, with confidence, and for which classifier."""
        total, parts = self.targets.numel(), []
        counts: dict[str, int] = {}
        names = {'edges': 'edges', 'features': 'entries of the features'}
        if not self.noise.directed:
            names['edges'] = 'undirected edges'
        for kind in self.noise.noisy:
            for radius in ((1, 0), (0, 1), (0, 5)):
                count = int(self.certified(**{kind: radius}).sum())
                name = f'{kind}_added_{radius[0]}_deleted_{radius[1]}'
                counts[name] = count
                parts.append(
                    f'{count} for up to {radius[0]} added and {radius[1]} '
                    f'deleted {names[kind]}'
                )
        each = (
            'all together' if self.per == 'all' else 'each of them by itself'
        )
        return Guarantee(
            procedure='certificate by smoothing',
            promise=(
                f"the smoothed classifier's class stays, of {total} "
                f'{self.task}: {"; ".join(parts)}; with confidence '
                f'{self.confidence:g}, {each} '
                f'({self.num_abstained} abstain)'
            ),
            assumptions=(
                'predictions are those of the smoothed classifier (the '
                'likeliest class over noisy copies), as the report has them',
                'the model is fixed, as are all inputs that have no noise',
                'the random bits were unknown to whoever chose model and '
                'data, and one run was made, or the worst of all reported',
                'rounding in the model does not depend on the batch',
            ),
            not_covered=(
                'the model without smoothing',
                *UNSEEN,
                'changes of the training data',
                'new nodes, self-loops and parallel edges, and changes of '
                'attributes of edges',
                *(
                    f'changes of the {kind}'
                    for kind in KINDS
                    if kind not in self.noise.noisy
                ),
            ),
            data=self.data or self.fingerprint,
            origin=self.provenance,
            kind='robustness',
            values={
                **self.numbers(),
                'noise': repr(self.noise),
                'targets': total,
                'certified': counts,
                'data_fields': list(DATA_FIELDS),
            },
            model=self.weights,
        )

    def chart(self) -> Chart:
        """The share of targets that stays, by the number of changes."""
        radii, lines = range(_SHOWN[-1] + 1), {}
        for kind in self.noise.noisy:
            for side, place in (('added', 0), ('deleted', 1)):
                pairs = [(r, 0) if place == 0 else (0, r) for r in radii]
                shares = [self.certified_ratio(**{kind: p}) for p in pairs]
                lines[f'{side} {kind}'] = (radii, shares)
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
            f'smoothed classifier, {self.noise}',
            f'{total} {self.task}, {self.num_abstained} abstain; '
            f'{self.num_samples} samples, confidence {self.confidence:g} '
            f'per {self.per}',
        ]
        for kind in self.noise.noisy:
            for side, place in (('additions', 0), ('deletions', 1)):
                counts = []
                for r in _SHOWN:
                    radius = (r, 0) if place == 0 else (0, r)
                    mask = self.certified(**{kind: radius})
                    counts.append(f'{r}: {int(mask.sum())}')
                lines.append(
                    f'certified, {side} of {kind}: {", ".join(counts)}'
                )
        notes = [text for text in (self.note, self.advice) if text]
        return '\n'.join([*lines, *notes])


@certifies(BitFlips)
def certify_smoothed(
    model: Module,
    data: Data | Sequence[Data],
    threat: BitFlips,
    *,
    num_samples: int | Sequence[int] = 10_000,
    num_selection: int = 1_000,
    confidence: float = 0.99,
    per: str = 'all',
    classes: str = 'all',
    targets: Tensor | None = None,
    until: dict[str, tuple[int, int]] | None = None,
    transform: Callable[[Data], Data] | None = None,
    forward: Callable[[Data], Tensor] | None = None,
    batch_size: int | None = None,
    sparse_x: bool = False,
    sparse_adj: bool = False,
    seed: int | None = None,
    tolerance: float = 1e-9,
    over_ranks: bool = False,
    progress_bar: bool = False,
) -> SmoothedCertificate:
    r"""Certifies the smoothed version of any classifier, with confidence.

    `"Efficient Robustness Certificates for Discrete Data"
    <https://arxiv.org/abs/2008.12952>`_ (Bojchevski, Klicpera and Günnemann
    2020). The smoothed class of a node or graph is the likeliest one of the
    model over noisy copies of the input. :obj:`num_selection` copies choose
    the class; :obj:`num_samples` *fresh* ones bound its probability from
    below, and those of all others from above (Clopper and Pearson). What
    follows for changed inputs is exact over all classifiers
    (:mod:`pyg_trust.functional.smoothing`).

    With :math:`\alpha = 1 -` confidence, over the number of targets for
    :obj:`per` ``'all'``: the class's bound has level :math:`\alpha / 2`,
    those of the :math:`C` others (outputs that are not finite are one)
    :math:`\alpha / 2 C`; with :obj:`classes` ``'one'`` the class alone has
    :math:`\alpha`. One run serves all budgets without further correction.

    **Adaptive.** With several numbers of samples the run ends at the first
    of them at which every target is certified :obj:`until` that budget; look
    :math:`j` has level :math:`6 \alpha / \pi^2 j^2`, so that stopping early
    costs nothing else.

    A model that is linear in personalized PageRank has exact certificates
    against a :class:`ThreatModel`, which certify some 10 % of the nodes more
    and show the edges that break the rest.

    Memory: :obj:`batch_size` copies of the graph at a time, nothing
    quadratic.

    Args:
        model (Module): ``model(x, edge_index)``, or ``model(x, edge_index,
            edge_weight)`` if the data have weights, to logits; for graphs
            with :obj:`batch` last. It is evaluated as one function: copies
            go through it in evaluation mode.
        data (Data or list[Data]): a graph, to classify nodes; or a list of
            graphs (or a :class:`~torch_geometric.data.Batch`), to classify
            these.
        threat (BitFlips): the noise.
        num_samples (int or list[int]): how many copies bound probabilities,
            or at how many to look. (default: :obj:`10_000`)
        num_selection (int): how many copies choose the class.
            (default: :obj:`1_000`)
        confidence (float): see above. (default: :obj:`0.99`)
        per (str): whether the confidence is that of :obj:`'all'` targets at
            once, or of each :obj:`'node'`. (default: :obj:`'all'`)
        classes (str): whether bounds of :obj:`'all'` classes are used or of
            :obj:`'one'`. (default: :obj:`'all'`)
        targets (Tensor, optional): nodes, or graphs: int64 indices or a
            mask. By default all. (default: :obj:`None`)
        until (dict, optional): by kind, additions and deletions, see above.
            (default: :obj:`None`)
        transform (Callable, optional): applied to every noisy copy, as part
            of the model: degrees as features, positional encodings.
            (default: :obj:`None`)
        forward (Callable, optional): from a
            :class:`~torch_geometric.data.Batch` of copies to logits, for
            models that are called otherwise. (default: :obj:`None`)
        batch_size (int, optional): how many copies go through the model at
            once; by default what takes about 256 MiB.
            (default: :obj:`None`)
        sparse_x (bool): features as a sparse matrix, in models that are
            linear in them before anything else. (default: :obj:`False`)
        sparse_adj (bool): edges as a transposed sparse matrix, for layers
            that take one. (default: :obj:`False`)
        seed (int, optional): the seed of the copies. By default from the
            operating system: nobody may know the noise beforehand.
            (default: :obj:`None`)
        tolerance (float): taken off the probabilities for rounding, beside
            what the sampler costs. (default: :obj:`1e-9`)
        over_ranks (bool): whether the processes of torchrun share the
            batches of copies. All of them call it with the same arguments,
            and get the certificate of one process: copies are drawn by their
            numbers. (default: :obj:`False`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        SmoothedCertificate: classes, bounds and votes.

    Raises:
        TypeError: on a wrong type.
        ValueError: if the data don't fit the noise (see :class:`BitFlips`);
            on layers that keep the clean graph (``cached=True``), or a model
            that is random in evaluation mode; if so few samples can't
            certify anything; if ranks were given different arguments; or if
            something is out of range.
    """
    check_instance('over_ranks', over_ranks, bool)
    if over_ranks:
        check_same(
            {
                'model': model,
                'data': data,
                'threat': threat,
                'num_samples': num_samples,
                'num_selection': num_selection,
                'confidence': confidence,
                'per': per,
                'classes': classes,
                'targets': targets,
                'until': until,
                'transform': transform,
                'forward': forward,
                'batch_size': batch_size,
                'sparse_x': sparse_x,
                'sparse_adj': sparse_adj,
                'seed': seed,
                'tolerance': tolerance,
            }
        )
    options = _checked_options(
        num_samples, num_selection, confidence, per, classes, until, threat
    )
    looks, alpha = options
    graphs, task = _graphs(data)
    _check_model(model, sparse_x, sparse_adj, transform, forward)
    check_process()
    for graph in graphs:
        check_graph(graph, threat)
        if transform is None and forward is None:
            _check_features(graph)
    check_non_negative('tolerance', tolerance)
    if batch_size is not None:
        check_integer('batch_size', batch_size, 1)
    size = len(graphs) if task == 'graphs' else int(graphs[0].num_nodes)
    index = torch.arange(size)
    if targets is not None:
        index = check_nodes('targets', targets, size)
        if index.numel() == 0 or index.unique().numel() < index.numel():
            raise ValueError(
                "'targets' needs to hold different ones, at least one "
                f'(got {index.tolist()[:5]})'
            )
    level = alpha / index.numel() if per == 'all' else alpha
    _check_enough(looks, level, classes, threat)
    # Who knows the noise beforehand can choose a model that it flatters.
    key = rng.resolve_secret(seed)
    if over_ranks:
        key = from_first(lambda: key)
    pipeline = Pipeline(
        model, task == 'graphs', transform, forward, sparse_x, sparse_adj
    )
    if task == 'graphs':
        graphs = [graphs[i] for i in index.tolist()]
    with evaluating(model):
        run = _Run(pipeline, graphs, threat, key, batch_size, over_ranks)
        rows = index if task == 'nodes' else None
        with tqdm(disable=not progress_bar, desc='copies') as bar:
            chosen = run.votes(0, num_selection, rows, bar).argmax(1)
            made: SmoothedCertificate | None = None
            done, votes = 0, torch.zeros(0)
            for look, total in enumerate(looks, 1):
                fresh = run.votes(
                    num_selection + done, total - done, rows, bar
                )
                votes = votes + fresh if done else fresh
                done = total
                spent = look_level(level, look) if until else level
                lower, upper = _bounds(votes, chosen, total, spent, classes)
                made = _report(
                    run,
                    index,
                    chosen,
                    votes,
                    (lower, upper),
                    task=task,
                    num_samples=total,
                    num_selection=num_selection,
                    look=look if until else 0,
                    alpha=spent,
                    confidence=float(confidence),
                    per=per,
                    classes=classes,
                    tolerance=tolerance + run.slack,
                    seed=key,
                )
                if until and bool(made.certified(**until).all()):
                    break
    assert made is not None
    return made


class SmoothedClassifier(Module):
    """The classifier that certificates by smoothing speak of.

    .. code-block:: python

        deployed = SmoothedClassifier(model, BitFlips(edges=(0.0, 0.6)))
        classes = deployed(data)  # -1 where it abstains
        report = deployed.certify(data)

    Args:
        model (Module): the model.
        noise (BitFlips): the noise.
        **options (Any): of :func:`certify_smoothed`.

    Raises:
        TypeError: if an option is none of that function.
    """

    def __init__(self, model: Module, noise: BitFlips, **options: Any) -> None:
        check_instance('model', model, Module)
        check_instance('noise', noise, BitFlips)
        known = certify_smoothed.__kwdefaults__ or {}
        for name in options:
            if name not in known:
                raise TypeError(
                    f"'{name}' needs to be an option of certify_smoothed: "
                    f'{sorted(known)}'
                )
        super().__init__()
        self.model, self.noise, self.options = model, noise, options

    def forward(self, data: Data | Sequence[Data]) -> Tensor:
        """The smoothed classes, -1 where it abstains: int64.

        Args:
            data (Data or list[Data]): as in :func:`certify_smoothed`.
        """
        return self.certify(data).predicted

    def certify(self, data: Data | Sequence[Data]) -> SmoothedCertificate:
        """What :func:`certify_smoothed` says of this model.

        Args:
            data (Data or list[Data]): as there.
        """
        return certify_smoothed(self.model, data, self.noise, **self.options)


class _Run:
    """The samplers of one call, and how many copies go together."""

    def __init__(
        self,
        pipeline: Pipeline,
        graphs: list[Data],
        noise: BitFlips,
        seed: int,
        batch_size: int | None,
        over_ranks: bool,
    ) -> None:
        self.pipeline, self.noise = pipeline, noise
        self.graphs, self.note = graphs, ''
        self.samplers = [
            Sampler(
                pipeline,
                graph,
                noise,
                rng.derive(seed, number) if pipeline.graphs else seed,
            )
            for number, graph in enumerate(graphs)
        ]
        self.slack = max(sampler.copies.slack for sampler in self.samplers)
        self.place = rank_and_size() if over_ranks else (0, 1)
        self.note = from_first(self._checked, self.place[1])
        self.batch_size = 1 if self.note else batch_size

    def _checked(self) -> str:
        notes = (sampler.check() for sampler in self.samplers[:3])
        return next(filter(None, notes), '')

    def votes(
        self, first: int, count: int, rows: Tensor | None, bar: tqdm
    ) -> Tensor:
        size = self.place[1]
        if size == 1:
            parts = [self._own_votes(first, count, bar)]
        else:
            parts = run_over_ranks(
                range(size), lambda _: self._own_votes(first, count, bar)
            )
        found = [
            [votes for votes in row if votes is not None]
            for row in zip(*parts, strict=True)
        ]
        if len({votes.size(1) for row in found for votes in row}) > 1:
            raise ValueError(
                "'model' needs to return as many classes for every graph"
            )
        votes = torch.cat([torch.stack(row).sum(0) for row in found])
        return votes if rows is None else votes[rows]

    def _own_votes(
        self, first: int, count: int, bar: tqdm
    ) -> list[Tensor | None]:
        # A graph's first batch is the next process's.
        (rank, size), made = self.place, []
        for number, sampler in enumerate(self.samplers):
            together = self.batch_size or sampler.batch_size()
            place = (rank - number) % size, size
            made.append(
                sampler.votes(
                    first, count, together, bar, bool(self.note), place
                )
            )
        return made


def _bounds(
    votes: Tensor, chosen: Tensor, total: int, alpha: float, classes: str
) -> tuple[Tensor, Tensor]:
    # Of the class at alpha / 2 and of the C others at alpha / (2 C), outputs
    # that are not finite among them; or of the class alone at alpha.
    others = votes.size(1) - 1
    count = votes.gather(1, chosen[:, None])[:, 0]
    share = alpha / 2 if classes == 'all' else alpha
    lower = clopper_pearson(count, total, share)
    if classes == 'one':
        upper = torch.ones(votes.shape, dtype=torch.float64)
    else:
        upper = clopper_pearson(votes, total, alpha / (2 * others), 'upper')
    return lower, upper.scatter(1, chosen[:, None], 0.0)


def _report(
    run: _Run,
    index: Tensor,
    chosen: Tensor,
    votes: Tensor,
    bounds: tuple[Tensor, Tensor],
    **fields: Any,
) -> SmoothedCertificate:
    lower, upper = bounds
    margin = fields['tolerance']
    sure = lower - margin > 0.5
    if fields['classes'] == 'all':
        sure |= lower - margin > upper.amax(1) + margin
    # An output that is not finite is no class.
    sure &= chosen < votes.size(1) - 1
    noise, pipe = run.noise, run.pipeline
    return SmoothedCertificate(
        targets=index,
        predicted=torch.where(sure, chosen, -1),
        votes=votes,
        p_lower=lower,
        p_upper=upper,
        cells={
            kind: torch.tensor(
                [sampler.copies.cells[kind] for sampler in run.samplers]
            )
            for kind in noise.noisy
        },
        noise=noise,
        note=run.note,
        advice=_EXACT if isinstance(pipe.model, _LINEAR) else '',
        fingerprint=digest(pipe.model, run.graphs),
        model_digest=identity(pipe.model, pipe.transform, pipe.forward),
        weights=fingerprint_model(pipe.model.state_dict()),
        data=fingerprint_data(run.graphs),
        num_abstained=int((~sure).sum()),
        provenance=provenance(
            noise=repr(noise),
            seed=fields['seed'],
            num_samples=fields['num_samples'],
            num_selection=fields['num_selection'],
            confidence=fields['confidence'],
            per=fields['per'],
            classes=fields['classes'],
            sparse_x=pipe.sparse_x,
            sparse_adj=pipe.sparse_adj,
            transform=_named(pipe.transform),
            forward=_named(pipe.forward),
        ),
        **fields,
    )


def _named(call: Callable | None) -> str | None:
    if call is None:
        return None
    return getattr(call, '__qualname__', type(call).__name__)


def digest(model: Module, graphs: Sequence[Data]) -> str:
    """SHA-256 of a model (``identity``) and of graphs.

    Args:
        model (Module): the model.
        graphs (list[Data]): the graphs.
    """
    parts: list[Any] = [identity(model)]
    for graph in graphs:
        parts.append(int(graph.num_nodes or 0))
        # All that a transform or 'forward' may read, but what is to be told.
        for name, value in sorted(graph.to_dict().items()):
            if name != 'y' and not name.endswith('_mask'):
                parts += [
                    name,
                    value if isinstance(value, Tensor) else repr(value),
                ]
    return fingerprint(*parts)


def _graphs(data: Any) -> tuple[list[Data], str]:
    if isinstance(data, Batch):
        data = data.to_data_list()
    if isinstance(data, Data):
        return [data], 'nodes'
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise TypeError(
            "'data' needs to be a torch_geometric.data.Data, or a list of "
            f'them (got {type(data).__name__})'
        )
    if len(data) == 0:
        raise ValueError("'data' needs to have at least one graph (got none)")
    return list(data), 'graphs'


def _check_features(graph: Data) -> None:
    x = graph.get('x')
    if x is None:
        raise ValueError(
            "'data' needs to have features 'x', or a 'transform' that makes "
            'them'
        )
    if not x.is_floating_point():
        raise TypeError(f"'x' needs to be floating point (got {x.dtype})")
    if x.dim() != 2 or x.size(0) != graph.num_nodes:
        raise ValueError(
            f"'x' needs to have the shape [{graph.num_nodes}, num_features] "
            f'(got {list(x.shape)})'
        )
    weight = graph.get('edge_weight')
    if weight is not None and weight.shape != graph.edge_index.shape[1:]:
        raise ValueError(
            f"'edge_weight' needs to have {graph.edge_index.size(1)} entries "
            f'(got the shape {list(weight.shape)})'
        )


def _check_model(
    model: Any, sparse_x: bool, sparse_adj: bool, *calls: Any
) -> None:
    check_instance('model', model, Module)
    for name, call in zip(('transform', 'forward'), calls, strict=True):
        if call is not None:
            check_callable(name, call)
            for flag, value in (
                ('sparse_x', sparse_x),
                ('sparse_adj', sparse_adj),
            ):
                if value:
                    raise ValueError(
                        f"'{flag}' can't be combined with '{name}', which "
                        'takes dense features and an edge_index'
                    )
    check_uncached(model)


def _checked_options(
    num_samples: Any,
    num_selection: int,
    confidence: float,
    per: str,
    classes: str,
    until: Any,
    threat: Any,
) -> tuple[list[int], float]:
    check_instance('threat', threat, BitFlips)
    check_integer('num_selection', num_selection, 1)
    if not 0 < check_number('confidence', confidence) < 1:
        raise ValueError(
            f"'confidence' needs to be in (0, 1) (got {confidence})"
        )
    check_choice('per', per, PER)
    check_choice('classes', classes, CLASSES)
    looks = (
        list(num_samples)
        if isinstance(num_samples, list | tuple)
        else [num_samples]
    )
    for total in looks:
        check_integer('num_samples', total, 1)
    if looks != sorted(set(looks)) or not looks:
        raise ValueError(
            f"'num_samples' needs to be ascending (got {num_samples})"
        )
    if until is None and len(looks) > 1:
        raise ValueError(
            "'until' needs to say when to stop, with several 'num_samples'"
        )
    if until is not None:
        check_instance('until', until, dict)
        for kind, radius in until.items():
            check_choice('until', kind, KINDS)
            check_radius('until', radius)
            if kind not in threat.noisy:
                raise ValueError(
                    f"'until' needs to be of kinds with noise (got {kind!r})"
                )
    # Rounded down: 1 - 0.99 is a little above 0.01.
    return looks, (1 - confidence) * (1 - 1e-12)


def _check_enough(
    looks: list[int], alpha: float, classes: str, threat: BitFlips
) -> None:
    # All votes for one class leave p_A = alpha^(1 / n).
    smallest = min(
        min_probability(regions_at([getattr(threat, kind)], [radius]))
        for kind in threat.noisy
        for radius in ((1, 0), (0, 1))
    )
    if smallest >= 1:
        return
    share = alpha / 2 if classes == 'all' else alpha
    if len(looks) > 1:
        share = look_level(share, len(looks))
    needed = math.floor(math.log(share) / math.log(smallest)) + 1
    if looks[-1] < needed:
        raise ValueError(
            f"'num_samples' needs to be at least {needed} to certify "
            f'anything at this confidence (got {looks[-1]})'
        )
