"""Randomized smoothing: certificates for any classifier of graphs or nodes."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Fraction,
    NodeIds,
    NotNegative,
    OneOf,
    check_callable,
    check_instance,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import list_graphs
from pyg_trust._checks.identity import check_process, identity, identity_on
from pyg_trust._checks.starts import takes_data
from pyg_trust._moved import by_new_names, renamed
from pyg_trust._progress import Bar
from pyg_trust.certificates.any_model import certifies
from pyg_trust.certificates.flip_bits import (
    BitFlips,
    check_features,
    check_graph,
)
from pyg_trust.certificates.sampling import (
    Pipeline,
    Run,
    check_uncached,
    evaluating,
)
from pyg_trust.certificates.smoothing import (
    clopper_pearson,
    min_probability,
    regions_at,
)
from pyg_trust.certificates.votes import SmoothedCertificate
from pyg_trust.distributed import check_same, from_first
from pyg_trust.nn.ppnp import PPNP, FeaturePropagation, LabelPropagation
from pyg_trust.report import fingerprint_data, fingerprint_model, provenance

__all__ = ['SmoothedClassifier', 'certify_smoothed']

PER = ('all', 'node')
CLASSES = ('all', 'one')
_LINEAR = (PPNP, FeaturePropagation, LabelPropagation)
_EXACT = (
    'the model is linear in personalized PageRank: against flips of edges, '
    'certify(model, data, ThreatModel(...)) is exact, without confidence, and '
    'certifies more'
)


@certifies(BitFlips)
@renamed(targets='nodes', tolerance='tol')
@validated
def certify_smoothed(
    model: Module,
    data: Data | Sequence[Data],
    threat: BitFlips,
    *,
    num_samples: Count = 10_000,
    num_selection: Count = 1_000,
    confidence: Fraction = 0.99,
    per: Annotated[str, OneOf(PER)] = 'all',
    classes: Annotated[str, OneOf(CLASSES)] = 'all',
    nodes: NodeIds | None = None,
    transform: Callable[[Data], Data] | None = None,
    forward: Callable[[Data], Tensor] | None = None,
    pairs: bool = False,
    batch_size: Count | None = None,
    sparse_x: bool | None = None,
    sparse_adj: bool | None = None,
    seed: int | None = None,
    tol: NotNegative = 1e-9,
    over_ranks: bool = False,
) -> SmoothedCertificate:
    """Certify the majority class of any classifier over noisy inputs.

    The smoothed class is the most frequent class of the model on noisy copies
    of the input (`Bojchevski, Klicpera and Günnemann 2020
    <https://arxiv.org/abs/2008.12952>`_). Some copies choose the class. Others
    bound its probability from below, and those of other classes from above.
    The result's ``certified()`` uses them to certify any number of changes.

    Args:
        model (Module): returns logits from ``model(x, edge_index)``. An
            ``edge_weight`` of the data is passed third, and for graphs
            ``batch`` last.
        data (Data or list[Data]): a graph, to classify its nodes; or graphs.
        threat (BitFlips): the noise.
        num_samples (int): how many copies bound probabilities.
        num_selection (int): how many copies choose the class.
        confidence (float): the probability that all bounds hold.
        per (str): :obj:`'all'` if all bounds of all targets hold together with
            this probability, :obj:`'node'` if those of each target do.
        classes (str): :obj:`'all'` to bound every class's probability,
            :obj:`'one'` for that of the chosen class alone.
        nodes (Tensor, optional): the nodes, or graphs, to certify: int64
            indices or a bool mask; by default all.
        transform (Callable, optional): changes each copy before the model,
            for example to add degrees as features.
        forward (Callable, optional): called with a batch of copies in place
            of the model; returns their logits.
        pairs (bool): whether the logits are of the node pairs in
            ``data.edge_label_index``, not of nodes.
        batch_size (int, optional): copies per call of the model; by default
            as many as fit in 256 MiB.
        sparse_x (bool, optional): whether the model gets its features as a
            sparse matrix; by default if its outputs stay the same.
        sparse_adj (bool, optional): the same of its edges.
        seed (int, optional): repeats a run, which then certifies nothing. By
            default the operating system draws a secret one.
        tol (float): taken off bounds of probabilities, to cover rounding.
        over_ranks (bool): whether the processes of torchrun share the copies.

    Returns:
        SmoothedCertificate: classes, bounds and votes.

    Raises:
        ValueError: if data and noise don't fit, a layer has ``cached=True``,
            the model is random, or so few samples can't certify anything.
    """
    if over_ranks:
        given = dict(locals())
        del given['over_ranks']
        check_same(given)
    check_instance('threat', threat, BitFlips)
    # Rounded down: 1 - 0.99 is a little above 0.01.
    alpha = (1 - confidence) * (1 - 1e-12)
    graphs = list_graphs('data', data)
    task = 'nodes' if graphs[0] is data else 'graphs'
    if forward is None and takes_data(model):
        forward = model.forward
    for name, call in (('transform', transform), ('forward', forward)):
        if call is None:
            continue
        check_callable(name, call)
        if sparse_x or sparse_adj:
            raise ValueError(
                f"'{'sparse_x' if sparse_x else 'sparse_adj'}' can't be "
                f"combined with '{name}', which takes dense features and an "
                'edge_index'
            )
    check_uncached(model)
    check_process()
    for graph in graphs:
        check_graph(graph, threat)
        if transform is None and forward is None:
            check_features(graph)
            weight = graph.get('edge_weight')
            if weight is not None:
                shape = (graph.edge_index.size(1),)
                check_tensor('edge_weight', weight, None, shape)
    size = len(graphs) if task == 'graphs' else int(graphs[0].num_nodes)
    if pairs:
        size, task = _check_pairs(graphs[0], task, forward), 'pairs'
    index = torch.arange(size)
    if nodes is not None:
        index = check_nodes('nodes', nodes, size).clone()
    if index.numel() == 0 or index.unique().numel() < index.numel():
        raise ValueError(
            f"'nodes' needs to hold different {task}, at least one "
            f'(got {index.tolist()[:5]})'
        )
    level = alpha / index.numel() if per == 'all' else alpha
    _check_enough(num_samples, level, classes, threat)
    # An attacker who knows the noise beforehand can choose a model by it.
    key = rng.resolve_secret(seed)
    if over_ranks:
        key = from_first(lambda: key)
    pipeline = Pipeline(model, task == 'graphs', transform, forward)
    pipeline = pipeline._replace(pairs=size if pairs else 0)
    if task == 'graphs':
        graphs = [graphs[i] for i in index.tolist()]
    with evaluating(model):
        run = Run(
            *(pipeline, graphs, threat, key, batch_size, over_ranks),
            (sparse_x, sparse_adj),
        )
        rows = None if task == 'graphs' else index
        total = num_selection + num_samples
        total *= len(graphs) if task == 'graphs' else 1
        with Bar(total=total, desc='copies') as bar:
            chosen = run.votes(0, num_selection, rows, bar).argmax(1)
            return _report(
                *(run, index, chosen),
                run.votes(num_selection, num_samples, rows, bar),
                task=task,
                num_samples=num_samples,
                num_selection=num_selection,
                alpha=level,
                confidence=float(confidence),
                per=per,
                classes=classes,
                tolerance=tol + run.slack,
                seed=key,
                seeded=seed is not None,
            )


@validated
class SmoothedClassifier(Module):
    """Classifier by the vote of a model over noisy copies of its input.

    .. code-block:: python

        deployed = SmoothedClassifier(model, BitFlips(edges=(0.0, 0.6)))
        classes = deployed(data)  # -1 where it abstains
        report = deployed.certify(data)

    Args:
        model (Module): ``model(x, edge_index)``, which returns logits.
        noise (BitFlips): the noise.
        **options (Any): further arguments of :func:`certify_smoothed`, such as
            ``num_samples`` and ``confidence``.
    """

    def __init__(self, model: Module, noise: BitFlips, **options: Any) -> None:
        by_new_names(options, certify_smoothed)
        known = inspect.signature(certify_smoothed).parameters
        for name in options:
            if name not in known:
                raise TypeError(f"'{name}' is no option of certify_smoothed")
        super().__init__()
        self.model, self.noise, self.options = model, noise, options

    def forward(self, data: Data | Sequence[Data]) -> Tensor:
        """Return the smoothed classes: int64, of a graph's nodes or of graphs.

        It draws new noisy copies, and returns -1 where too few of them agree.
        """
        return self.certify(data).predicted

    def certify(self, data: Data | Sequence[Data]) -> SmoothedCertificate:
        """Certify the smoothed classes of a graph's nodes, or of graphs.

        It passes the options of the constructor to :func:`certify_smoothed`.
        """
        return certify_smoothed(self.model, data, self.noise, **self.options)


def _bounds(
    votes: Tensor, chosen: Tensor, total: int, alpha: float, classes: str
) -> tuple[Tensor, Tensor]:
    # Levels: alpha / 2 for the class and alpha / (2 C) for each of the C
    # others, one of which stands for outputs that are not finite.
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
    run: Run, index: Tensor, chosen: Tensor, votes: Tensor, **fields: Any
) -> SmoothedCertificate:
    lower, upper = _bounds(
        *(votes, chosen, fields['num_samples']),
        *(fields['alpha'], fields['classes']),
    )
    margin = fields['tolerance']
    sure = lower - margin > 0.5
    if fields['classes'] == 'all':
        sure |= lower - margin > upper.amax(1) + margin
    # An output that is not finite is no class.
    sure &= chosen < votes.size(1) - 1
    noise, pipe, graphs = run.noise, run.pipeline, run.samplers
    linear = isinstance(pipe.model, _LINEAR)
    linear = linear and not getattr(pipe.model, 'layers', None)
    of = f' of {min(len(graphs), 3)} graphs' if pipe.graphs else ''
    together = f'copies{of} had the same outputs together as alone, also '
    together += 'beside graphs that are unlike them'
    if run.note:
        together = 'copies went through the model one at a time, as outputs '
        together += 'depend on what else is in a batch'
    settings = ('num_samples', 'num_selection', 'confidence', 'per', 'classes')
    return SmoothedCertificate(
        targets=index,
        predicted=torch.where(sure, chosen, -1),
        votes=votes,
        p_lower=lower,
        p_upper=upper,
        cells={
            kind: torch.tensor([one.copies.cells[kind] for one in graphs])
            for kind in noise.noisy
        },
        noise=noise,
        note=run.note,
        named=run.named,
        advice=_EXACT if linear else '',
        run_sha256=identity_on(pipe.model, run.graphs),
        model_sha256=identity(pipe.model, pipe.transform, pipe.forward),
        weights_sha256=fingerprint_model(pipe.model.state_dict()),
        data_sha256=fingerprint_data(run.graphs),
        num_abstained=int((~sure).sum()),
        checked=(
            f'the model gave the same output for the same noisy copy{of} '
            'twice, and for one of them after all others',
            together,
            f'classes were chosen by {fields["num_selection"]} copies, and '
            f'their probabilities bounded by {fields["num_samples"]} others',
        ),
        provenance=provenance(
            noise=repr(noise),
            seed=fields['seed'],
            **{name: fields[name] for name in settings},
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


def _check_pairs(graph: Data, task: str, forward: Any) -> int:
    if task == 'graphs' or forward is None:
        raise ValueError(
            "'pairs' needs one graph and a 'forward', which maps copies to "
            f'logits of pairs (got {task} and {forward})'
        )
    pairs = graph.get('edge_label_index')
    check_tensor('edge_label_index', pairs, torch.int64, (2, 'num_pairs'))
    check_range(
        'edge_label_index', pairs, int(graph.num_nodes or 0), 'the nodes'
    )
    return int(pairs.size(1))


def _check_enough(
    num_samples: int, alpha: float, classes: str, threat: BitFlips
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
    needed = math.floor(math.log(share) / math.log(smallest)) + 1
    if num_samples < needed:
        raise ValueError(
            f"'num_samples' needs to be at least {needed} to certify "
            f'anything at this confidence (got {num_samples})'
        )
