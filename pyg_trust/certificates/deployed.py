r"""The deployed model that a certificate is about.

A certificate of another model than the one that answers is worth nothing:
with two steps in place of the limit, another normalization, self-loops or
another teleport probability, nodes that are "robust" are of another class in
the graph as it is. So all of this is taken from the model.

**To the last bit.** The score of a class that the model returns differs from
that of exact arithmetic by at most :attr:`Deployed.error`, in every admissible
graph; margins have to exceed the errors of both classes. With unit roundoff
:math:`u` of the model's dtype, :math:`\gamma_m = m u / (1 - m u)`, the largest
degree :math:`d` of an admissible graph, and :math:`h_c = \max_j |H_{j, c}|`:

* :obj:`K` steps of message passing: a step computes :math:`a \hat{A} z +
  \alpha h` with at most :math:`d + 8` roundings on the way of any number
  (weights, products, sums in any order), so that it is off by
  :math:`\gamma_{d+8}` times the largest number in it, and what was off
  before is multiplied by :math:`a`: :math:`e_{k+1} \le a e_k + \gamma_{d+8}
  (h_c + e_k)`, which is :math:`\gamma_{d+8} h_c \sum_{k<K} (a +
  \gamma_{d+8})^k` in all.
* the limit: :func:`~pyg_trust.certificates.diffuse` solves in float64 and
  returns only what has a residual within a bound that it checks
  (:func:`~pyg_trust.certificates.diffusion_error`); then it rounds once:
  :math:`u h_c`.

(For :obj:`'sym'` all of this holds of :math:`D^{-1/2} z`, whose margins have
the same signs.)
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import Fraction, check_instance, validated
from pyg_trust._checks.identity import check_process, identity
from pyg_trust.certificates.as_built import check_as_built, check_blind
from pyg_trust.certificates.diffusion import (
    check_logits,
    diffuse,
    diffusion_error,
)
from pyg_trust.certificates.perturbations import Perturbations
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.nn.ppnp import PPNP, LabelPropagation, PageRankDiffusion


@dataclass(frozen=True)
class Deployed:
    r"""Model that diffuses logits by personalized PageRank.

    Args:
        logits (Tensor): :math:`H`, float64, ``[num_nodes, num_classes]``.
        alpha (float): the teleport probability.
        K (int, optional): the number of steps, :obj:`None` for the limit.
        normalization (str): :obj:`'rw'` or :obj:`'sym'`.
        self_loops (bool): whether nodes without a self-loop get one.
        dtype (torch.dtype, optional): the dtype that the model computes in;
            :obj:`None` for exact arithmetic.
        predicted (Tensor, optional): int64, ``[num_nodes]``: the classes that
            the model returns in the clean graph.
        name (str): the name of the model.
        digest (str): the model's ``identity``.
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

    def error(self, degree: int) -> Tensor:
        """Bound the rounding error of computed scores, by class."""
        top = self.logits.abs().amax(0)
        if self.dtype is None:
            return torch.zeros_like(top)
        kind = torch.finfo(self.dtype)
        if self.K is None:
            relative = diffusion_error(self.alpha, degree, self.dtype)
        else:
            part = (degree + 8) * kind.eps / 2
            if part > 0.1:
                raise ValueError(
                    f"'model' computes in {kind.dtype}, which is too coarse "
                    f'for sums over {degree} neighbours'
                )
            part = part / (1 - part)
            rate = 1 - self.alpha + part
            if rate < 1:
                steps = (1 - rate**self.K) / (1 - rate)
            else:
                power = min(self.K * math.log(rate), 600.0)
                steps = self.K * math.exp(power)
            relative = part * steps
        if float(top.max()) > kind.max / 4:
            raise ValueError(
                "'model' has logits that may overflow in "
                f'{kind.dtype} (up to {float(top.max()):.3g})'
            )
        # Underflow loses less than the smallest normal number.
        tiny = kind.tiny * (degree + 8) / self.alpha
        return relative * top * (1 + 1e-6) + tiny

    @property
    def kind(self) -> str:
        """Return the name of the dtype."""
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
        """Return the model's admissible graphs, with added self-loops fixed.

        Args:
            threat (ThreatModel): the attacker, who sees the graph without
                these self-loops.
        """
        plain = threat.perturbations
        limit = self.normalization == 'sym' and self.K is None
        if limit and not threat.undirected and bool(plain.budget.any()):
            raise ValueError(
                "'threat' needs undirected=True for a model with "
                "normalization='sym' and K=None, which takes undirected "
                'graphs alone (got a directed attacker): a graph with one '
                'flipped direction has no prediction'
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
            graph,
            removable,
            plain.budget,
            addable,
            all_pairs=plain.all_pairs,
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions about the model."""
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
                'all of this was said by whoever handed the logits over: no '
                'model was seen',
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
    @validated
    def of_logits(
        cls, logits: Tensor, alpha: Fraction, graph: CSRGraph
    ) -> 'Deployed':
        """Make a model of given logits, diffused in exact arithmetic."""
        check_logits(logits, graph)
        return cls(_copied(logits), alpha)

    @classmethod
    def of_model(cls, model: Any, data: Any, graph: CSRGraph) -> 'Deployed':
        """Describe a model and the data that it is applied to.

        Args:
            model (PageRankDiffusion): PPNP, label or feature propagation.
            data (Data): the graph, with :obj:`x` (or :obj:`y` and maybe
                :obj:`train_mask`, for label propagation).
            graph (CSRGraph): the graph of the threat, which has to be that of
                the data.

        Raises:
            TypeError: if the model is not linear in PageRank.
            ValueError: if the model computes something else than it says, or
                the threat is about another graph.
        """
        check_as_built(model)
        check_process()
        check_instance('data', data, Data)
        check_blind(model, data.get('edge_index'))
        converted = CSRGraph.convert(data).to('cpu')
        weight = converted.weight
        if weight is not None and bool(weight.ne(1).any()):
            raise ValueError(
                "'data' needs to be unweighted: an edge is there or not (got "
                "an 'edge_weight')"
            )
        if not (
            torch.equal(converted.rowptr, graph.rowptr)
            and torch.equal(converted.col, graph.col)
        ):
            raise ValueError(
                "'data' and 'threat' need to have the same graph (got "
                f'{converted} and {graph})'
            )
        before = identity(model)
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                graph_of = data.edge_index if 'edge_index' in data else data
                logits, scores = _run(model, data, graph_of)
                # Compare on a random graph, too, which no model can know
                # beforehand.
                other = _drawn(graph, model.normalization == 'sym')
                edges = torch.stack([other.row, other.col]).to(logits.device)
                moved = _run(model, data, edges)
                # Compare with gradients enabled, too: a deployed model may run
                # without 'no_grad'.
                with torch.enable_grad():
                    learnt = _logits(model, data)
        finally:
            for module, mode in modes:
                module.training = mode
        _check_plain(logits, moved[0], learnt)
        check_logits(logits, graph)
        deployed = cls(
            _copied(logits),
            model.alpha,
            model.K,
            model.normalization,
            model.add_self_loops,
            logits.dtype,
            scores.argmax(1).cpu(),
            type(model).__name__,
            before,
        )
        _check_scores(deployed, scores.cpu().double(), graph)
        for again, when in (
            (moved[0], 'when it was called with another graph'),
            (learnt, 'when gradients were enabled'),
        ):
            if not torch.equal(again, logits):
                raise ValueError(
                    "'model' needs the same logits at every call (got others "
                    f'{when})'
                )
        _check_scores(deployed, moved[1].cpu().double(), other)
        if identity(model) != before:
            raise ValueError(
                "'model' needs to stay as it is when it is called (its "
                'attributes changed in a call, and may change later calls)'
            )
        return deployed


def _copied(logits: Tensor) -> Tensor:
    # A change in place is none of this.
    return logits.detach().cpu().double().clone()


def _drawn(graph: CSRGraph, symmetric: bool) -> CSRGraph:
    # Two thirds of the edges, each direction by itself or both together.
    row, col, n = graph.row, graph.col, graph.num_nodes
    pair = row * n + col
    if symmetric:
        pair = torch.minimum(row, col) * n + torch.maximum(row, col)
    word = rng.derive_each(rng.resolve_secret(None), pair)
    keep = word % 3 != 0
    return CSRGraph.convert(torch.stack([row[keep], col[keep]]), n)


def _run(
    model: PageRankDiffusion, data: Data, graph: Any
) -> tuple[Tensor, Tensor]:
    # The logits and the scores of all nodes.
    logits = _logits(model, data)
    if isinstance(model, LabelPropagation):
        return logits, model(data.y, graph, data.get('train_mask'))
    return logits, model(data.x, graph)


def _logits(model: PageRankDiffusion, data: Data) -> Tensor:
    if isinstance(model, LabelPropagation):
        if data.get('y') is None:
            raise ValueError("'data' needs to have labels, 'y'")
        return model.logits(data.y, data.get('train_mask'))
    if data.get('x') is None:
        raise ValueError("'data' needs to have features, 'x'")
    assert isinstance(model, PPNP)
    return model.logits(data.x)


def _check_plain(*tensors: Tensor) -> None:
    # A tensor of another class, or with attributes, can act by itself in the
    # diffusion, and in what is compared here.
    for logits in tensors:
        if type(logits) not in (Tensor, Parameter) or vars(logits):
            raise TypeError(
                "'model' needs logits that are plain tensors, without "
                f'attributes (got {type(logits).__name__}'
                f'{", with attributes" if vars(logits) else ""}): '
                'return logits.as_subclass(torch.Tensor)'
            )


def _check_scores(deployed: Deployed, scores: Tensor, graph: CSRGraph) -> None:
    # Its output is the diffusion: no hook, no layer in between.
    if deployed.self_loops:
        graph = graph.with_self_loops()
    degree = graph.degree.clamp(min=1).double()
    expected = diffuse_steps(
        *(graph, deployed.logits, deployed.alpha),
        *(deployed.K, deployed.normalization),
    )
    most = int(graph.degree.max())
    exact = replace(deployed, dtype=torch.float64)
    allowed = deployed.error(most) + exact.error(most)
    if deployed.normalization == 'sym':
        expected, scores = (
            z / degree.sqrt()[:, None] for z in (expected, scores)
        )
    off = (scores - expected).abs() - 2 * allowed
    if not bool((off <= 0).all()):
        node = int(off.nan_to_num(math.inf).amax(1).argmax())
        raise ValueError(
            "'model' needs to return the PageRank diffusion of its logits "
            '(alpha, K, normalization and self-loops as it says), with no '
            f'hook and nothing else on top: the scores of node {node} are '
            'others'
        )


def diffuse_steps(
    graph: CSRGraph,
    h: Tensor,
    alpha: float,
    K: int | None,
    normalization: str,
) -> Tensor:
    """Return the diffused logits of a model, in float64."""
    if K is None:
        return diffuse(graph, h, alpha, normalization=normalization)
    degree = graph.degree.clamp(min=1).double()
    row, col = graph.row, graph.col
    weight = 1 / degree[row]
    if normalization == 'sym':
        weight = 1 / (degree[row] * degree[col]).sqrt()
    size = (graph.num_nodes, graph.num_nodes)
    matrix = sparse_rows(graph.rowptr, col, weight, size)
    z = h
    for _ in range(K):
        z = (1 - alpha) * (matrix @ z) + alpha * h
    return z
