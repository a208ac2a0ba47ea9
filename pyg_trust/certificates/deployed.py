r"""The deployed model that a certificate is about.

A certificate of another model than the one that answers is worth nothing, so
alpha, steps, normalization and self-loops are taken from the model. The scores
that it returns differ from those of exact arithmetic by at most
:meth:`Deployed.error` in every admissible graph, and margins have to exceed
the errors of both classes. For :obj:`'sym'` all of this holds of
:math:`D^{-1/2} z`, whose margins have the same signs.
"""

import copy
from dataclasses import dataclass, replace
from math import inf, nextafter
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust._checks import check_instance
from pyg_trust._checks.identity import check_process, identity
from pyg_trust._checks.starts import takes_data
from pyg_trust.certificates.diffusion import (
    check_alpha,
    check_logits,
    diffuse,
)
from pyg_trust.certificates.sampling import evaluating
from pyg_trust.certificates.threat import (
    Perturbations,
    ThreatModel,
    check_same_graph,
)
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.nn._messages import changed
from pyg_trust.nn.agp_conv import APPNP
from pyg_trust.nn.ppnp import PPNP, LabelPropagation, PageRankDiffusion
from pyg_trust.verify.pagerank import Model, slack

__all__ = ['Deployed', 'diffuse_steps']

_NOISE = (
    'Any model is certified by noise: certify(model, data, '
    'BitFlips(edges=(0.0, 0.6)))'
)
_READ = {'x': 'features', 'y': 'labels'}


@dataclass(frozen=True)
class Deployed:
    r"""Model that diffuses logits by personalized PageRank.

    ``dtype`` is that in which it computes, None for exact arithmetic, and
    ``undirected`` whether it is PageRank of undirected graphs alone.
    """

    logits: Tensor
    alpha: float
    K: int | None = None
    normalization: str = 'rw'
    self_loops: bool = False
    dtype: torch.dtype | None = None
    predicted: Tensor | None = None
    name: str = 'logits'
    digest: str = ''
    undirected: bool = False

    def error(self, degree: int) -> Tensor:
        """Bound the rounding error of computed scores, by class.

        It is the bound of the checker: :func:`pyg_trust.verify.pagerank.slack`
        has its terms.
        """
        top = self.logits.abs().amax(0)
        if self.dtype is None:
            return torch.zeros_like(top)
        if float(top.max()) > torch.finfo(self.dtype).max / 4:
            raise ValueError(
                "'model' has logits that may overflow in "
                f'{self.kind} (up to {float(top.max()):.3g})'
            )
        model = Model(self.alpha, self.K, self.normalization)
        try:
            off = [slack(self.kind, model, degree, h) for h in top.tolist()]
        except (LookupError, OverflowError):
            raise ValueError(
                f"'model' computes in {self.kind}, which is too coarse for "
                f'sums over {degree} neighbours'
            ) from None
        return top.new_tensor([nextafter(float(x), inf) for x in off])

    @property
    def kind(self) -> str:
        """The name of the dtype."""
        if self.dtype is None:
            return 'exact arithmetic'
        return str(self.dtype).removeprefix('torch.')

    def __repr__(self) -> str:
        return (
            f'{self.name}(alpha={self.alpha!r}, K={self.K}, '
            f'normalization={self.normalization!r}, '
            f'add_self_loops={self.self_loops}, dtype={self.kind})'
        )

    def perturbations(self, threat: ThreatModel) -> Perturbations:
        """Return the admissible graphs of the model, added loops fixed."""
        plain = threat.perturbations
        if (
            self.undirected
            and not threat.undirected
            and bool(plain.budget.any())
        ):
            raise ValueError(
                "'threat' needs undirected=True for an APPNP, and for a model "
                "with normalization='sym' and K=None (got a directed "
                'attacker): a graph with one flipped direction has no '
                f'prediction that this describes. {_NOISE}'
            )
        if not self.self_loops:
            return plain
        graph, n = plain.graph.with_self_loops(), plain.num_nodes
        old = plain.graph.row * n + plain.graph.col
        key = graph.row * n + graph.col
        removable = torch.zeros(key.numel(), dtype=torch.bool)
        removable[torch.searchsorted(key, old)] = plain.removable
        # The model adds a self-loop again that was taken away.
        removable &= graph.row != graph.col
        addable = None
        if not plain.all_pairs:
            addable = plain.pairs[:, plain.pairs[0] != plain.pairs[1]]
        return Perturbations(
            *(graph, removable, plain.budget, addable),
            all_pairs=plain.all_pairs,
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions about the model."""
        steps = 'in the limit' if self.K is None else f'K={self.K} steps'
        loops = 'with' if self.self_loops else 'without'
        sentences = (
            f'the deployed model is personalized PageRank (alpha '
            f'{self.alpha:g}, {steps}, {self.normalization!r}, {loops} '
            'added self-loops) of logits that do not depend on the edges'
        )
        if self.dtype is None:
            return (
                sentences,
                'all of this was stated with the logits: no model was seen',
                'the model computes in exact arithmetic',
            )
        return (
            sentences,
            f'taken from the {self.name} itself, in evaluation mode, and its '
            f'roundoff in {self.kind} is accounted for',
            'what makes its logits reads no graph from anywhere else (files, '
            'attributes of imported modules)',
        )

    @classmethod
    def of_logits(
        cls, logits: Tensor, alpha: float, graph: CSRGraph
    ) -> 'Deployed':
        """Make a model of given logits, diffused in exact arithmetic."""
        check_logits(logits, graph)
        return cls(_copied(logits), alpha)

    @classmethod
    def of_model(
        cls, model: Any, data: Any, threat: ThreatModel
    ) -> 'Deployed':
        """Describe a model and its data; refuse what is not PageRank."""
        layer = _layer_of(model)
        check_process()
        check_instance('data', data, Data)
        graph, converted = threat.graph, CSRGraph.convert(data).to('cpu')
        weight = converted.weight
        if weight is not None and bool(weight.ne(1).any()):
            raise ValueError(
                "'data' needs to be unweighted: an edge is there or not (got "
                "an 'edge_weight')"
            )
        check_same_graph('data', converted, threat)
        digest = identity(model)
        with evaluating(model):
            graph_of = data.get('edge_index', data.get('adj_t'))
            logits, scores = _run(model, layer, data, graph_of)
            # Compare on a random graph, too.
            symmetric = getattr(layer, 'normalization', 'sym') == 'sym'
            other = _drawn(graph, symmetric)
            edges = torch.stack([other.row, other.col]).to(logits.device)
            moved = _run(model, layer, data, edges)
        check_logits(logits, graph)
        deployed = cls(
            _copied(logits),
            float(layer.alpha),
            layer.K,
            getattr(layer, 'normalization', 'sym'),
            bool(layer.add_self_loops),
            logits.dtype,
            scores.argmax(1).cpu(),
            type(model).__name__,
            digest,
            symmetric and (layer.K is None or layer is not model),
        )
        _check_scores(deployed, scores.cpu().double(), graph)
        if not torch.equal(moved[0], logits):
            raise ValueError(
                "'model' needs logits that do not depend on the edges (got "
                'others when it was called with another graph)'
            )
        _check_scores(deployed, moved[1].cpu().double(), other)
        return deployed


def _copied(logits: Tensor) -> Tensor:
    # A change in place is none of this.
    return logits.detach().cpu().double().clone()


def _drawn(graph: CSRGraph, symmetric: bool) -> CSRGraph:
    # Two thirds of the edges, each direction by itself or both together.
    row, col, n = graph.row, graph.col, graph.num_nodes
    key = row * n + col
    if symmetric:
        key = torch.minimum(row, col) * n + torch.maximum(row, col)
    pairs, which = key.unique(return_inverse=True)
    draw = torch.Generator().manual_seed(0)
    rank = torch.randperm(len(pairs), generator=draw)[which]
    keep = 3 * rank >= len(pairs)
    return CSRGraph.convert(torch.stack([row[keep], col[keep]]), n)


def _layer_of(model: Any) -> pyg.MessagePassing:
    # The layer whose PageRank the model ends in.
    if isinstance(model, PageRankDiffusion):
        if not hasattr(model, 'logits') or getattr(model, 'layers', None):
            raise TypeError(
                "'model' needs logits that PageRank diffuses: a PPNP, "
                'FeaturePropagation or LabelPropagation(num_classes=...) (got '
                f'{model})'
            )
        layer, own, flow = model, PageRankDiffusion, 'target_to_source'
        other = type(model).diffuse is not PageRankDiffusion.diffuse
        name = 'diffuse' if other else changed(layer, own, flow)
    else:
        parts = model.modules() if isinstance(model, Module) else ()
        layers = [x for x in parts if isinstance(x, pyg.MessagePassing)]
        if len(layers) != 1 or not isinstance(layers[0], pyg.APPNP):
            kinds = ', '.join(type(part).__name__ for part in layers)
            raise TypeError(
                "'model' needs to end in personalized PageRank for an exact "
                'certificate: pyg_trust.nn.PPNP(encoder, alpha), or an APPNP '
                f'as its only layer that reads edges (got a '
                f'{type(model).__name__}{" of " if kinds else ""}{kinds}). '
                f'{_NOISE}'
            )
        layer, own, flow = layers[0], pyg.APPNP, 'source_to_target'
        name = changed(layer, own, flow)
        names = ('eps', 'half', 'tol') if isinstance(layer, APPNP) else ()
        wrong = [each for each in names if getattr(layer, each)]
        wrong += ['normalize'] * (not layer.normalize)
        wrong += ['cached'] * layer.cached
        name = wrong[0] if wrong else name
    if name is not None:
        raise ValueError(
            f"'model' needs the '{name}' of {own.__name__} as it is by "
            'default, which the certificate describes (got another). '
            f'{_NOISE}'
        )
    check_alpha(layer.alpha)
    return layer


def _run(
    model: Any, layer: pyg.MessagePassing, data: Data, graph: Any
) -> tuple[Tensor, Tensor]:
    # The logits and the scores of all nodes.
    needed = 'y' if isinstance(model, LabelPropagation) else 'x'
    if data.get(needed) is None:
        raise ValueError(f"'data' needs to have {_READ[needed]}, '{needed}'")
    if isinstance(model, LabelPropagation):
        mask = data.get('train_mask')
        return model.logits(data.y, mask), model(data.y, graph, mask)
    if isinstance(model, PPNP):
        return model.logits(data.x), model(data.x, graph)
    seen = []
    handle = layer.register_forward_hook(
        lambda _, args, kwargs, out: seen.append(
            (args[0] if args else kwargs['x'], out)
        ),
        with_kwargs=True,
    )
    try:
        if takes_data(model):
            view = copy.copy(data)
            view.edge_index = graph
            out = model(view)
        else:
            out = model(data.x, graph)
    finally:
        handle.remove()
    last = seen[-1][1] if len(seen) == 1 else None
    if last is None or not any(
        torch.equal(out, z)
        for z in (last, last.softmax(-1), last.log_softmax(-1))
    ):
        raise ValueError(
            f"'model' needs to return what its APPNP does, or the softmax of "
            f'that (got a {type(model).__name__} that does something else on '
            f'top). {_NOISE}'
        )
    return seen[0]


def _check_scores(deployed: Deployed, scores: Tensor, graph: CSRGraph) -> None:
    # Its output is the diffusion: no hook, no layer in between.
    if deployed.self_loops:
        graph = graph.with_self_loops()
    degree = graph.degree.clamp(min=1).double()
    expected = diffuse_steps(graph, deployed)
    most = int(graph.degree.max())
    exact = replace(deployed, dtype=torch.float64)
    allowed = deployed.error(most) + exact.error(most)
    if deployed.normalization == 'sym':
        expected, scores = (
            z / degree.sqrt()[:, None] for z in (expected, scores)
        )
    off = (scores - expected).abs() - 2 * allowed
    if not bool((off <= 0).all()):
        node = int(off.nan_to_num(inf).amax(1).argmax())
        raise ValueError(
            "'model' needs to return the PageRank diffusion of its logits "
            '(with its alpha, K, normalization and self-loops), with no '
            f'hook and nothing else on top: the scores of node {node} are '
            'others'
        )


def diffuse_steps(graph: CSRGraph, model: Deployed) -> Tensor:
    """Return the diffused logits of a model, in float64."""
    h, alpha, normalization = model.logits, model.alpha, model.normalization
    if model.K is None:
        return diffuse(graph, h, alpha, normalization=normalization)
    degree = graph.degree.clamp(min=1).double()
    row, col = graph.row, graph.col
    weight = 1 / degree[row]
    if normalization == 'sym':
        weight = 1 / (degree[row] * degree[col]).sqrt()
    size = (graph.num_nodes, graph.num_nodes)
    matrix = sparse_rows(graph.rowptr, col, weight, size)
    z = h
    for _ in range(model.K):
        z = (1 - alpha) * (matrix @ z) + alpha * h
    return z
