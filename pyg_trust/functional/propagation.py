r"""Exact and randomized graph propagation, with its error bounds.

The algorithms are those of `"Approximate Graph Propagation"
<https://arxiv.org/abs/2106.03058>`_ (Wang et al. 2021). Write
:math:`P = D^{-a} A D^{-b}` (times :obj:`shrink` of the :class:`.Measure`),
:math:`W = \sum_i w_i`, :math:`Y_i = \sum_{k \ge i} w_k / W`, and

.. math::
    r^{(0)} = x, \quad
    r^{(i+1)} = \frac{Y_{i+1}}{Y_i} P r^{(i)}, \quad
    q^{(i)} = \frac{w_i}{W Y_i} r^{(i)} = \frac{w_i}{W} P^i x, \quad
    z = W \sum_{i=0}^{L} q^{(i)} .

AGP replaces each :math:`P r^{(i)}` by an unbiased estimate: what
:math:`u` sends to its neighbour :math:`v`, :math:`m = \frac{Y_{i+1}}{Y_i}
r^{(i)}(u) d_u^{-b} d_v^{-a}`, is sent as it is if :math:`|m| \ge \varepsilon
\lVert x \rVert_1`, and otherwise as about :math:`\varepsilon \lVert x
\rVert_1` with probability about :math:`|m| / (\varepsilon \lVert x
\rVert_1)` (``csrc/push.h`` has the exact scheme and the proof of the three
facts used below).

**The bound.** The estimate of :math:`z` is unbiased for every :math:`x`
(Lemma 4.1), and

.. math::
    \operatorname{Var}[\hat{z}(v)] \le \gamma\, \varepsilon \lVert x \rVert_1
    W^2 \sum_{i=1}^{L} i\, q^{(i)}_{|x|}(v)
    \le \gamma\, L\, \varepsilon \lVert x \rVert_1 W\, z_{|x|}(v),

where :math:`z_{|x|}` is the result for the signal :math:`|x|`, and
:math:`\gamma = 1` wherever no entry of :math:`P^k` exceeds one: for
:math:`a + b \ge 1` on undirected graphs, for :math:`b = 1` along and
:math:`a = 1` against the edges of directed ones. This is tighter than Lemma
4.2, whose factor is :math:`L(L+1)/2`.

*Proof.* Take :math:`W = \lVert x \rVert_1 = 1`. Let :math:`\xi^{(k)}(u) =
\hat{r}^{(k)}(u) - \operatorname{E}[\hat{r}^{(k)}(u) \mid \hat{r}^{(k-1)}]`.
A unit of residue at :math:`u` on level :math:`k` ends up as :math:`G_k(v, u)
= \sum_{i \ge k} \frac{w_i}{Y_k} (P^{i-k})_{vu}`, between 0 and
:math:`\gamma`, in :math:`z(v)`, so :math:`\hat{z}(v) - z(v) = \sum_k \sum_u
G_k(v, u) \xi^{(k)}(u)`, a sum of martingale differences over :math:`k`.
Given :math:`\hat{r}^{(k-1)}`, what two senders add is independent; what one
sender adds to two receivers has one sign and is not positively correlated;
and what it adds to one receiver has at most the variance :math:`\varepsilon
|m|`. So :math:`\operatorname{Var}[\sum_u G_k(v, u) \xi^{(k)}(u) \mid \cdot]
\le \sum_u G_k(v, u)^2\, \varepsilon\, \rho^{(k)}(u)`, where
:math:`\rho^{(k)}(u)` is the sum of all :math:`|m|` sent to :math:`u`, whose
expectation is at most :math:`Y_k (P^k |x|)(u)`. With :math:`G_k \le \gamma`
and :math:`\sum_u G_k(v, u) Y_k (P^k |x|)(u) = \sum_{i \ge k} w_i (P^i
|x|)(v)` the sum over :math:`k` is at most :math:`\gamma \varepsilon \sum_k
\sum_{i \ge k} q^{(i)}_{|x|}(v) = \gamma \varepsilon \sum_i i\,
q^{(i)}_{|x|}(v)`.

Signed signals are pushed as they are, not split into :math:`x^+ - x^-` as in
the paper: one run instead of two, opposite residues cancel, and the bound
above, which is the sum of the two parts' bounds, holds all the same.

For Katz on undirected graphs :math:`P = A / \lambda` and :math:`w_i =
(\beta\lambda)^i`, so that :math:`\gamma = 1` again: no entry of :math:`A^j`
exceeds its spectral norm :math:`\lambda^j`. (For :math:`a = b = 0` and another
:obj:`shrink` :math:`\gamma = \max_k \sum_j w_{k+j} (\text{shrink}
\cdot \lambda)^j / \sum_j w_{k+j}`.)
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import torch
from torch import Tensor
from tqdm import tqdm

from pyg_trust import ops, rng
from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_non_negative,
    check_number,
    is_finite,
)
from pyg_trust.functional.measures import Measure
from pyg_trust.graph import CSRGraph, sparse_rows

# A level of a block is pushed if that is expected to cost less than so much of
# an exact level: blocks share the memory that an exact level reads, and one
# that goes its own way leaves more of it to the others (benchmarks/push.py).
PULL_ABOVE = 0.25

METHODS = ('sample', 'prune')  # of queries


@torch.compiler.disable
def propagate(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    *,
    eps: float = 0.0,
    seed: int | None = None,
    force_push: bool = False,
    half: bool = False,
) -> Tensor:
    r"""Computes :math:`z = \sum_i w_i (D^{-a} A D^{-b})^i x`.

    Exactly for :obj:`eps = 0`, for all columns at once; otherwise the unbiased
    AGP estimate, whose variance :func:`variance_bound` bounds. The same seed
    gives the same result for any number of threads, and on CUDA, up to
    rounding (:func:`pyg_trust.ops.push`), that of the CPU. Differentiable in
    :obj:`x`: the gradient is the propagation by the transposed operator,
    exact or estimated with the same :obj:`eps`.

    An estimate goes through the columns in blocks of a cache line, which
    share what is sampled, and level by level: where sampling would cost a
    block more than the exact product, it takes the product. Randomization
    pays for signals that are sparse or concentrated and for errors of several
    percent; otherwise the exact path is as fast (``benchmarks/push.py``).
    Memory beside the result: two vectors for each column in flight, which are
    256 bytes of a row (64 float32 columns) or a block per thread.

    Args:
        graph (CSRGraph): the graph, unweighted.
        x (Tensor): the signals, float32 or float64, of shape ``[num_nodes]``
            or ``[num_nodes, num_columns]``.
        measure (Measure): what to compute (:mod:`.measures`).
        eps (float): the quantum of AGP, relative to the L1 norm of each
            column; 0 for the exact result. (default: :obj:`0.0`)
        seed (int, optional): the seed; by default drawn from torch's default
            generator. (default: :obj:`None`)
        force_push (bool): whether to sample even where the exact product is
            expected to be cheaper, as in the paper. (default: :obj:`False`)
        half (bool): whether the exact path keeps its levels in bfloat16, for
            float32 signals: faster, with a relative error of up to
            :math:`2^{-8}` per level where nothing averages out, and of about
            :math:`10^{-3}` in the Frobenius norm as measured; the gradient
            likewise. (default: :obj:`False`)

    Returns:
        Tensor: :math:`z`, of the shape and dtype of :obj:`x`.

    Raises:
        TypeError: on another graph, measure or dtype.
        ValueError: on a weighted graph, a directed one if the measure needs
            an undirected one, a graph beyond the spectral radius of a Katz
            measure, NaN or infinity in :obj:`x`, a wrong shape or device,
            :obj:`eps` that is negative or not finite, :obj:`half` together
            with :obj:`eps` or with float64, or a result that overflows.

    Example:
        >>> from pyg_trust.functional import ppr
        >>> path = torch.tensor([[0, 1], [1, 0]])
        >>> graph = CSRGraph.from_edge_index(path, num_nodes=2)
        >>> z = propagate(graph, torch.eye(2), ppr(alpha=0.5))
        >>> (z - torch.tensor([[2, 1], [1, 2]]) / 3).abs().max() < 1e-3
        tensor(True)
    """
    graph = _prepare(graph, measure)
    eps = _check_eps(eps)
    _check_signal(x, graph)
    if half and (eps != 0 or x.dtype != torch.float32):
        raise ValueError(
            "'half' needs eps=0 and a float32 'x' "
            f'(got eps={eps:g} and {x.dtype})'
        )
    columns = x.view(-1, 1) if x.dim() == 1 else x
    # Exact propagation leaves the generator alone.
    seed = 0 if eps == 0 else rng.resolve(seed)
    z = _Propagate.apply(columns, graph, measure, eps, seed, force_push, half)
    _check_overflow(z, measure)
    return z.view(-1) if x.dim() == 1 else z


def query(
    graph: CSRGraph,
    signals: Tensor,
    measure: Measure,
    *,
    eps: float,
    method: str = 'sample',
    seed: int | None = None,
    top_k: int | None = None,
    threshold: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    r"""Computes :math:`z` for many nodes, or other sparse signals.

    Each query touches what it pushes, about :math:`1/\varepsilon` edges, not
    the whole graph: its work vectors are kept from call to call (16 bytes per
    node, twice that in float64, and thread). Queries run in parallel and give
    the same result for any number of threads. With :obj:`top_k` the rows are
    what PPRGo trains on and :class:`pyg_trust.transforms.GDC` makes its edges
    of.

    Two methods: :obj:`'sample'` is AGP, unbiased, with the variance of
    :func:`variance_bound`; :obj:`'prune'` pushes nothing at random and leaves
    residues of :math:`|r(u)| < \varepsilon \lVert x \rVert_1 d_u^b` where
    they are, with the error of :func:`prune_bound`. For equal time pruning
    has the smaller error relative to :math:`d_v^b`, and sampling the smaller
    absolute error.

    Args:
        graph (CSRGraph): the graph, unweighted.
        signals (Tensor): nodes :math:`s`, int64, ``[num_queries]``, for the
            signals :math:`e_s`; or the signals themselves as the rows of a
            sparse CSR matrix, ``[num_queries, num_nodes]``, float32 or
            float64.
        measure (Measure): what to compute (:mod:`.measures`).
        eps (float): the quantum of AGP or the threshold of pruning, relative
            to the L1 norm of each signal; 0 for the exact result.
        method (str): :obj:`'sample'` or :obj:`'prune'`.
            (default: :obj:`'sample'`)
        seed (int, optional): the seed; by default drawn from torch's default
            generator. (default: :obj:`None`)
        top_k (int, optional): keep this many entries of each result, the
            largest in magnitude. (default: :obj:`None`)
        threshold (float): drop entries of this magnitude or less.
            (default: :obj:`0.0`)
        dtype (torch.dtype): float32 or float64; a matrix of signals brings
            its own. (default: :obj:`torch.float32`)

    Returns:
        Tensor: a sparse CSR matrix, ``[num_queries, num_nodes]``, with row
        :math:`k` the result for signal :math:`k`.

    Raises:
        TypeError, ValueError: as :func:`propagate`, and on nodes out of
            range, an unknown :obj:`method`, or a negative :obj:`top_k` or
            :obj:`threshold`.
    """
    graph = _prepare(graph, measure)
    eps = _check_eps(eps)
    ptr, node, value = _sparse_signals(signals, graph, dtype)
    if method not in METHODS:
        raise ValueError(
            f"'method' needs to be one of {METHODS} (got {method!r})"
        )
    if top_k is not None:
        check_integer('top_k', top_k, 0)
    if not check_number('threshold', threshold) >= 0:
        raise ValueError(
            f"'threshold' needs to be at least 0 (got {threshold})"
        )
    seed = rng.resolve(seed) if method == 'sample' else 0
    total, ratio, keep = _levels(measure)
    count = ptr.numel() - 1
    row = torch.arange(count, device=graph.device)
    row = row.repeat_interleave(ptr.diff())
    size = torch.zeros(count, dtype=torch.float64, device=graph.device)
    size = eps * size.index_add_(0, row, value.abs().double())
    # A norm may overflow: the largest number is quantum enough, and no bound
    # at all for eps=0 (0 * infinity).
    size = size.to(value.dtype).nan_to_num(0.0)
    none = torch.zeros_like(size)
    quantum, bound = (size, none) if method == 'sample' else (none, size)
    ptr, node, value = ops.push_sparse(
        graph.push_graph(measure.a, value.dtype, measure.along),
        graph.degree_power(-measure.b, value.dtype),
        ptr,
        node,
        value,
        quantum,
        bound,
        ratio,
        keep,
        seed,
        top_k=-1 if top_k is None else top_k,
        threshold=threshold / total,
    )
    value = value * total
    _check_overflow(value, measure)
    return sparse_rows(ptr, node, value, (count, graph.num_nodes))


def _sparse_signals(
    signals: Tensor, graph: CSRGraph, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    num_nodes = graph.num_nodes
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"'dtype' needs to be float32 or float64 (got {dtype})"
        )
    matrix = isinstance(signals, Tensor) and (
        signals.layout == torch.sparse_csr
    )
    if matrix:
        if signals.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                "'signals' needs to be float32 or float64 "
                f'(got {signals.dtype})'
            )
        if signals.dim() != 2 or signals.size(1) != num_nodes:
            raise ValueError(
                "'signals' needs to have the shape [num_queries, "
                f'{num_nodes}] (got {list(signals.shape)})'
            )
        ptr, node = signals.crow_indices(), signals.col_indices()
        ptr, node, value = ptr.long(), node.long(), signals.values()
        if not bool(value.isfinite().all()):
            raise ValueError("'signals' needs to be finite (got NaN or inf)")
    else:
        if not isinstance(signals, Tensor) or signals.dtype != torch.int64:
            got = getattr(signals, 'dtype', type(signals).__name__)
            raise TypeError(
                "'signals' needs to be an int64 tensor of nodes or a sparse "
                f'CSR matrix (got {got})'
            )
        if signals.dim() != 1:
            raise ValueError(
                "'signals' needs to have one dimension, if nodes "
                f'(got the shape {list(signals.shape)})'
            )
        ptr = torch.arange(signals.numel() + 1, device=signals.device)
        node, value = signals, torch.ones_like(signals, dtype=dtype)
    if node.device != graph.device:
        raise ValueError(
            f"'signals' needs to be on the graph's device, {graph.device} "
            f'(got {node.device})'
        )
    if node.numel() > 0:
        low, high = int(node.min()), int(node.max())
        if low < 0 or high >= num_nodes:
            raise ValueError(
                f"'signals' needs to have nodes in [0, {num_nodes}) "
                f'(got {low} to {high})'
            )
    return ptr, node, value


def variance_bound(
    graph: CSRGraph, x: Tensor, measure: Measure, eps: float
) -> Tensor:
    r"""Bounds the variance of every entry of the AGP estimate.

    .. math::
        \operatorname{Var}[\hat{z}(v)] \le \gamma\, \varepsilon \lVert x
        \rVert_1 W \sum_{i=1}^{L} i\, w_i (P^i |x|)(v)

    as derived in the text of this module. The bound costs one exact
    propagation. It is loose: measured variances are often a tenth of it.

    Args:
        graph (CSRGraph): as in :func:`propagate`.
        x (Tensor): as in :func:`propagate`.
        measure (Measure): as in :func:`propagate`.
        eps (float): as in :func:`propagate`.

    Returns:
        Tensor: the bound, of the shape of :obj:`x`, float64.

    Raises:
        TypeError, ValueError: as :func:`propagate`, and if no bound is known
            for the measure on this graph.
    """
    prepared = _prepare(graph, measure)
    eps = _check_eps(eps)
    _check_signal(x, prepared)
    x = x.detach().double().abs()
    spread = tuple(i * w for i, w in enumerate(measure.weights))
    if sum(spread) == 0:
        return torch.zeros_like(x)
    scale = _largest_response(prepared, measure) * eps * sum(measure.weights)
    z = propagate(graph, x, replace(measure, weights=spread))
    return scale * x.sum(0) * z


class Plan(NamedTuple):
    """How to meet a guarantee at the least expected cost.

    Args:
        eps (float): the quantum of every run.
        repetitions (int): the number of runs, odd; their median counts.
        failure (float): the chance that the median of a node is off, at most.
    """

    eps: float
    repetitions: int
    failure: float


def plan(
    delta: float,
    levels: int,
    *,
    relative_error: float = 0.1,
    failure: float = 0.01,
    bound: str = 'tight',
) -> Plan:
    r"""The quantum and the number of runs that guarantee a relative error.

    The promise is that of :func:`eps_for`, for the median of :math:`R` runs
    (:func:`propagate_median`). A run fails with probability :math:`p \propto
    \varepsilon` at most, and the median only if at least :math:`(R + 1)/2`
    runs do, whose probability is the regularized incomplete beta function
    :math:`I_p(\frac{R+1}{2}, \frac{R+1}{2})`. Its inverse at
    :obj:`failure` gives the largest :math:`p`, and with it
    :math:`\varepsilon`, for every :math:`R`; of these the cheapest is
    chosen, by the cost :math:`R / \varepsilon`. For a failure of 1e-6 this is
    thousands of times cheaper than a single run.

    Args:
        delta (float): as in :func:`eps_for`.
        levels (int): as in :func:`eps_for`.
        relative_error (float): as in :func:`eps_for`. (default: :obj:`0.1`)
        failure (float): as in :func:`eps_for`. (default: :obj:`0.01`)
        bound (str): as in :func:`eps_for`. (default: :obj:`'tight'`)

    Raises:
        ValueError: as :func:`eps_for`.

    Example:
        >>> best = plan(1e-3, levels=10, relative_error=0.1, failure=1e-6)
        >>> best.failure <= 1e-6, best.repetitions % 2
        (True, 1)
    """

    def eps(chance: float) -> float:
        return eps_for(
            delta,
            levels,
            relative_error=relative_error,
            failure=chance,
            bound=bound,
        )

    best = Plan(eps(failure), 1, failure)
    # More runs than 4 ln(1/failure) + 9 never pay.
    for runs in range(3, int(4 * math.log(1 / failure)) + 11, 2):
        half = (runs + 1) / 2
        chance = float(scipy.special.betaincinv(half, half, failure))
        if runs / eps(chance) < best.repetitions / best.eps:
            best = Plan(eps(chance), runs, failure)
    return best


def propagate_median(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    plan: Plan,
    *,
    seed: int | None = None,
    force_push: bool = False,
    progress_bar: bool = False,
) -> Tensor:
    r"""The median of independent estimates, entry by entry.

    Unlike a single estimate it is not unbiased, and not differentiable.
    Memory: that of :attr:`Plan.repetitions` results.

    Args:
        graph (CSRGraph): as in :func:`propagate`.
        x (Tensor): as in :func:`propagate`.
        measure (Measure): as in :func:`propagate`.
        plan (Plan): quantum and repetitions, from :func:`plan`.
        seed (int, optional): as in :func:`propagate`.
            (default: :obj:`None`)
        force_push (bool): as in :func:`propagate`. (default: :obj:`False`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Raises:
        TypeError, ValueError: as :func:`propagate`.
    """
    _check_signal(x, _prepare(graph, measure))
    check_instance('plan', plan, Plan)
    _check_eps(plan.eps)
    if check_integer('repetitions', plan.repetitions, 1) % 2 == 0:
        raise ValueError(
            f"'plan' needs odd 'repetitions' (got {plan.repetitions})"
        )
    seed = rng.resolve(seed)
    runs, numbers = [], range(plan.repetitions)
    for run in tqdm(numbers, disable=not progress_bar, desc='runs'):
        z = propagate(
            graph,
            x.detach(),
            measure,
            eps=plan.eps,
            seed=rng.derive(seed, run),
            force_push=force_push,
        )
        runs.append(z)
    return torch.stack(runs).median(0).values


def prune_bound(graph: CSRGraph, measure: Measure, eps: float) -> Tensor:
    r"""Bounds the error of a pruned query, for a signal of L1 norm one.

    .. math::
        |\hat{z}(v) - z(v)| \le \varepsilon\, W \sum_{i<L}
        \frac{Y_{i+1}}{Y_i}\, d_v^b \le \varepsilon\, W L\, d_v^b

    *Proof.* A residue that is left on level :math:`i` would have added
    :math:`\frac{W}{Y_i} \sum_{k>i} \frac{w_k}{W} P^{k-i}` times itself, and
    all that are left there are below :math:`\varepsilon d^b`, entry by entry.
    As :math:`P d^b = D^{-a} A \mathbf{1} = d^{1-a} \le d^b` for :math:`a + b
    \ge 1` (and degrees of at least one), the powers of :math:`P` leave
    :math:`\varepsilon d^b` a bound, and the weights sum to :math:`W Y_{i+1} /
    Y_i`.

    Args:
        graph (CSRGraph): an undirected graph.
        measure (Measure): with :math:`a + b \ge 1`.
        eps (float): the threshold of :func:`query`.

    Returns:
        Tensor: float64, ``[num_nodes]``.

    Raises:
        TypeError, ValueError: as :func:`propagate`, and if the graph is
            directed or :math:`a + b < 1`.
    """
    graph = _prepare(graph, measure)
    eps = _check_eps(eps)
    if (
        not graph.is_undirected
        or measure.a + measure.b < 1
        or measure.shrink > 1
    ):
        raise ValueError(
            "'graph' needs to be undirected and 'measure' to have a + b >= 1 "
            f'(got {measure} on '
            f'{"an undirected" if graph.is_undirected else "a directed"} '
            'graph): no bound is known otherwise'
        )
    total, ratio, _ = _levels(measure)
    scale = eps * total * float(ratio.sum())
    return scale * graph.degree_power(measure.b, torch.float64)


def eps_for(
    delta: float,
    levels: int,
    *,
    relative_error: float = 0.1,
    failure: float = 0.01,
    bound: str = 'tight',
) -> float:
    r"""The quantum that guarantees a relative error above a threshold.

    For every node with :math:`z(v) > \delta \lVert x \rVert_1 W` (non-negative
    signals; :math:`W = 1` for the probability series), the estimate is within
    :obj:`relative_error` of :math:`z(v)` with probability :math:`1 -`
    :obj:`failure`, each node by itself. By Chebyshev's inequality and
    :math:`\operatorname{Var}[\hat{z}(v)] \le c\, \varepsilon \lVert x
    \rVert_1 W z(v)`,

    .. math::
        \varepsilon = \frac{\text{failure} \cdot \text{relative\_error}^2
        \cdot \delta}{c}, \quad c = L \text{ (tight) or } L(L+1)/2
        \text{ (Lemma 4.2)} .

    The defaults are those of Definition 1.1. Chebyshev's inequality and the
    variance bound are both loose, so that a quantum 10 to 1000 times larger
    often meets the same error in practice: measure it.

    Args:
        delta (float): the threshold, in :math:`(0, 1]`.
        levels (int): the number of levels :math:`L` of the measure.
        relative_error (float): in :math:`(0, 1)`. (default: :obj:`0.1`)
        failure (float): in :math:`(0, 1)`. (default: :obj:`0.01`)
        bound (str): :obj:`'tight'`, which needs :math:`\gamma = 1` (see the
            text of this module), or :obj:`'paper'`.
            (default: :obj:`'tight'`)

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < check_number('delta', delta) <= 1:
        raise ValueError(f"'delta' needs to be in (0, 1] (got {delta})")
    check_integer('levels', levels, 1)
    for name, value in (
        ('relative_error', relative_error),
        ('failure', failure),
    ):
        if not 0 < check_number(name, value) < 1:
            raise ValueError(f"'{name}' needs to be in (0, 1) (got {value})")
    factors = {'tight': levels, 'paper': levels * (levels + 1) / 2}
    check_choice('bound', bound, factors)
    return failure * relative_error**2 * delta / factors[bound]


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        graph: CSRGraph,
        measure: Measure,
        eps: float,
        seed: int,
        force_push: bool,
        half: bool,
    ) -> Tensor:
        ctx.arguments = graph, measure, eps, seed, force_push, half
        if eps == 0:
            return _exact(graph, x, measure, half)
        return _randomized(graph, x, measure, eps, seed, force_push)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        graph, measure, eps, seed, *flags = ctx.arguments
        seed = rng.derive(seed, 1)
        adjoint = measure.adjoint()
        z = _Propagate.apply(grads[0], graph, adjoint, eps, seed, *flags)
        return z, None, None, None, None, None, None


def _exact(
    graph: CSRGraph, x: Tensor, measure: Measure, half: bool = False
) -> Tensor:
    recv = graph.degree_power(-measure.a, x.dtype)
    weights = torch.tensor(measure.weights, dtype=torch.float64)
    if measure.shrink != 1:
        # As rounded; the weights make up for the rounding.
        shrink = torch.tensor(measure.shrink, dtype=x.dtype)
        recv = recv * shrink
        weights *= (measure.shrink / shrink.double()) ** torch.arange(
            len(weights)
        )
    return ops.propagate(
        *graph.receivers(measure.along),
        x,
        recv,
        graph.degree_power(-measure.b, x.dtype),
        weights,
        half,
    )


def _randomized(
    graph: CSRGraph,
    x: Tensor,
    measure: Measure,
    eps: float,
    seed: int,
    force_push: bool,
) -> Tensor:
    quantum = (eps * _norms(x)).to(x.dtype)
    if not bool(quantum.isfinite().all()):
        # A norm that overflows, or the gradient of a loss that is not finite,
        # which has to show: sampling would send nothing.
        return _exact(graph, x, measure)
    total, ratio, keep = _levels(measure)
    z, _ = ops.push(
        graph.push_graph(measure.a, x.dtype, measure.along),
        graph.receivers(measure.along),
        graph.degree_power(-measure.a, x.dtype),
        graph.degree_power(-measure.b, x.dtype),
        x,
        quantum,
        ratio,
        keep,
        seed,
        pull_above=math.inf if force_push else PULL_ABOVE,
    )
    return z if total == 1 else z.mul_(total)


def _norms(x: Tensor) -> Tensor:
    # The L1 norm of every column, in float64, so that all devices agree. On
    # the CPU by numpy: torch adds in an order that depends on the number of
    # threads, and a last bit of the quantum changes what is sampled. Few rows
    # at a time, which stay in the cache.
    values = x.detach()
    if values.device.type != 'cpu':
        return values.abs().sum(0, dtype=torch.float64)
    rows, total = values.numpy(), np.zeros(x.size(1))
    for start in range(0, len(rows), 8192):
        part = np.abs(rows[start : start + 8192])
        total += part.sum(0, dtype=np.float64)
    return torch.from_numpy(total)


def _levels(measure: Measure) -> tuple[float, Tensor, Tensor]:
    # W, Y_{i+1} / Y_i (times the factor of the operator) and w_i / (W Y_i).
    # The tails are summed from the small end, as 1 - (what came before)
    # cancels.
    weights = np.trim_zeros(np.array(measure.weights), 'b')
    tails = weights[::-1].cumsum()[::-1]
    return (
        float(tails[0]),
        torch.from_numpy(tails[1:] / tails[:-1] * measure.shrink),
        torch.from_numpy(weights / tails),
    )


def _largest_response(graph: CSRGraph, measure: Measure) -> float:
    # gamma: the largest G_k(v, u) that is known to be possible.
    a, b = measure.a, measure.b
    if measure.shrink <= 1 and (
        (graph.is_undirected and a + b >= 1)
        or (b == 1 and measure.along)
        or (a == 1 and not measure.along)
    ):
        return 1.0
    if graph.is_undirected and a == b == 0:
        weights = np.array(measure.weights)
        growth = graph.spectral_radius * measure.shrink
        powers = growth ** np.arange(len(weights))
        return max(
            float((weights[k:] * powers[: len(weights) - k]).sum() / tail)
            for k, tail in enumerate(weights[::-1].cumsum()[::-1])
            if k > 0 and tail > 0
        )
    raise ValueError(
        f"no variance bound is known for 'measure' {measure} on "
        f'{"an undirected" if graph.is_undirected else "a directed"} graph: '
        'it needs a + b >= 1 or a = b = 0 (undirected), b = 1 (along the '
        'edges) or a = 1 (against them), and no shrink above 1'
    )


def _prepare(graph: CSRGraph, measure: Measure) -> CSRGraph:
    if not isinstance(graph, CSRGraph):
        raise TypeError(
            "'graph' needs to be a CSRGraph, see CSRGraph.convert "
            f'(got {type(graph).__name__})'
        )
    if not isinstance(measure, Measure):
        raise TypeError(
            f"'measure' needs to be a Measure (got {type(measure).__name__})"
        )
    if graph.is_weighted:
        raise ValueError(
            "'graph' needs to be unweighted: AGP is defined by degrees alone "
            '(got edge weights; drop them if that is what you want)'
        )
    if measure.undirected and not graph.is_undirected:
        raise ValueError(
            f"'graph' needs to be undirected for measure '{measure.name}' "
            '(got a directed one; torch_geometric.utils.to_undirected makes '
            'it so)'
        )
    limit = measure.spectral_radius
    if limit is not None and graph.spectral_radius > limit * (1 + 1e-9):
        raise ValueError(
            f"'measure' {measure} was made for a graph of spectral radius "
            f'{limit:.6g}, and this one has {graph.spectral_radius:.6g}: make '
            'it for this graph'
        )
    return graph.with_self_loops() if measure.self_loops else graph


def _check_eps(eps: float) -> float:
    return check_non_negative('eps', eps)


def _check_signal(x: Tensor, graph: CSRGraph) -> None:
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        got = getattr(x, 'layout', type(x).__name__)
        raise TypeError(f"'x' needs to be a dense tensor (got {got})")
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"'x' needs to be float32 or float64 (got {x.dtype})")
    if x.dim() not in (1, 2) or x.size(0) != graph.num_nodes:
        raise ValueError(
            f"'x' needs to have the shape [{graph.num_nodes}] or "
            f'[{graph.num_nodes}, num_columns], a row per node '
            f'(got {list(x.shape)})'
        )
    if x.device != graph.device:
        raise ValueError(
            f"'x' needs to be on the graph's device, {graph.device} "
            f'(got {x.device})'
        )
    if not is_finite(x):
        raise ValueError("'x' needs to be finite (got NaN or infinity)")


def _check_overflow(z: Tensor, measure: Measure) -> None:
    if not is_finite(z.detach()):
        raise ValueError(
            f"'measure' {measure} overflows {z.dtype} on this graph, as the "
            "powers of its operator grow: use float64 or a smaller 'shrink'"
        )
