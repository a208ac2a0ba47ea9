"""Audits of training, from what it releases: canaries of known gradients.

One training makes hundreds of independent trials, as in `Steinke et al. 2023
<https://arxiv.org/abs/2305.08846>`_.
"""

import math
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Fraction,
    Int,
    Natural,
    OneOf,
    Positive,
    check_instance,
    check_integer,
    check_non_negative,
    check_tensor,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust._progress import Bar
from pyg_trust.audit.report import PrivacyAudit
from pyg_trust.audit.statistics import (
    Trials,
    check_coins,
    empirical_epsilon,
    mu_of,
)
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy.engine import PrivacyEngine
from pyg_trust.privacy.propagation import NEIGHBORING
from pyg_trust.privacy.wrappers import PrivateTraining
from pyg_trust.report import provenance

__all__ = ['audit_function', 'audit_training', 'canary_graph']

Attach = Callable[
    [nn.Module, torch.optim.Optimizer, DisjointWalkLoader],
    tuple[PrivacyEngine, PrivateTraining],
]

_LARGE = 1e6
Claim = float | Callable[[float], float]

# The deltas at which a claimed curve is compared.
_DELTAS = tuple(float(d) for d in np.geomspace(1e-6, 0.5, 24))
_RIDGE = 1e-3
_RUNS = 16


@renamed(form='neighboring')
@validated
def audit_function(
    train: Callable[[Data], Any],
    data: Data,
    *,
    claim: Claim | None = None,
    claim_mu: Positive | None = None,
    delta: Fraction = 1e-5,
    neighboring: Annotated[str, OneOf(NEIGHBORING)] = 'replace',
    num_canaries: Annotated[int, Int(16)] = 1000,
    scale: Positive = 100.0,
    label: Natural = 0,
    runs: Count = 1,
    confidence: Fraction = 0.95,
    independent: Annotated[str, OneOf(('canaries', 'runs'))] = 'canaries',
    seed: int | None = None,
) -> PrivacyAudit:
    r"""Measure a lower bound of epsilon of a training function by attacks.

    Canaries are nodes that are added to the graph, without edges, each with a
    feature of its own, which is ``scale`` or ``-scale`` at random (with
    ``neighboring='add_remove'``, ``scale`` or zero). A linear discriminant
    learns from one half of the canaries to guess the sign from the weights of
    the feature; errors are counted on the other half. TPR, FPR and FNR are the
    rates of true positives, false positives and false negatives, and bars mark
    lower and upper Clopper-Pearson bounds:

    .. math::
        \mu \ge -\Phi^{-1}(\overline{\mathrm{FPR}})
        - \Phi^{-1}(\overline{\mathrm{FNR}}), \qquad
        \epsilon(\delta) \ge \log \frac{\underline{\mathrm{TPR}} - \delta}
        {\overline{\mathrm{FPR}}}.

    A bound above the claim disproves it; a bound below proves nothing.

    Args:
        train (callable): ``train(graph)`` returns what it releases: a model,
            its ``state_dict``, or a list of these. ``graph`` is :obj:`data`
            with canaries; the model needs ``graph.num_features`` inputs.
        data (Data): a graph with ``x``, ``y`` and, best, ``train_mask``.
        claim (float or callable, optional): the claimed :math:`\epsilon` at
            :obj:`delta`; or a function from :math:`\delta` to the claimed
            :math:`\epsilon`, which is compared at many :math:`\delta`.
        claim_mu (float, optional): the claimed :math:`\mu` of Gaussian
            privacy.
        delta (float): the :math:`\delta` of the claim. (default: :obj:`1e-5`)
        neighboring (str): :obj:`'replace'` or :obj:`'add_remove'`, as above.
        num_canaries (int): the canaries of a run. (default: :obj:`1000`)
        scale (float): the size of a canary's feature. (default: :obj:`100.0`)
        label (int): the label of canaries. (default: :obj:`0`)
        runs (int): how often to train. (default: :obj:`1`)
        confidence (float): the probability that all bounds hold.
        independent (str): what counts as a trial: :obj:`'canaries'`, every
            canary, which is valid if noise is independent by coordinates; or
            :obj:`'runs'`, one canary of each run, which is valid for any
            function and needs hundreds of :obj:`runs`.
        seed (int, optional): the seed of draws and splits; random by default.
    """
    _check_graph(data)
    by_run = independent == 'runs'
    check_integer('runs', runs, _RUNS if by_run else 1)
    if claim is not None and not callable(claim):
        check_non_negative('claim', claim)
    seed = rng.resolve(seed)
    chosen: list[tuple[np.ndarray, np.ndarray]] = []
    counted: list[tuple[np.ndarray, np.ndarray]] = []
    same = True
    for run in range(runs):
        stream = rng.stream(seed, run)
        coin = torch.from_numpy(stream.random(num_canaries) < 0.5)
        low = -scale if neighboring == 'replace' else 0.0
        value = torch.where(coin, scale, low)
        found = _of_canaries(train(_planted(data, value, label)), data, value)
        same &= bool((found == found[0]).all())
        order = stream.permutation(num_canaries)
        half = num_canaries // 2
        heads = coin.numpy()
        fit, count = order[:half], order[half:]
        weight = _discriminant(found[fit], heads[fit])
        if by_run and run < runs // 2:
            chosen.append((found[count] @ weight, heads[count]))
            continue
        if by_run:
            count = count[:1]
        else:
            chosen.append((found[fit] @ weight, heads[fit]))
        counted.append((found[count] @ weight, heads[count]))
    if same:
        warnings.warn(
            "'train' releases the same for every canary: it ignores their "
            'rows of data.x, or data.train_mask. A bound of 0 then means '
            'nothing',
            stacklevel=3,
        )
    error = (1 - confidence) / 2
    _, threshold = _trials(chosen, error).best(mu_of)
    trials = _trials(counted, error)
    tpr, fpr = (float(rate[0]) for rate in trials.rates(threshold))

    def lower(at: float) -> float:
        # Also of the test that guesses the other way, by the same intervals.
        one = (tpr - at) / max(fpr, 1e-300)
        two = (1 - fpr - at) / max(1 - tpr, 1e-300)
        return math.log(max(one, two, 1.0))

    claimed: Any = claim
    delta_lower = None
    if callable(claim):
        known = {at: _claimed(claim(at), at) for at in _DELTAS}
        delta = max(_DELTAS, key=lambda at: lower(at) - known[at])
        claimed = known[delta]
    if claimed is not None:
        delta_lower = max(0.0, tpr - math.exp(min(claimed, 700.0)) * fpr)
    return PrivacyAudit.of(
        confidence,
        provenance(
            form='replace' if neighboring == 'replace' else 'withdraw',
            num_canaries=num_canaries,
            scale=scale,
            label=label,
            runs=runs,
            independent=independent,
            seed=seed,
        ),
        epsilon_lower=lower(delta),
        epsilon_claimed=claimed,
        delta=float(delta),
        delta_lower=delta_lower,
        trials=runs if by_run else runs * num_canaries,
        **trials.measured(threshold),
        mu_lower=max(0.0, float(mu_of(tpr, fpr))),
        mu_claimed=claim_mu,
    )


def _claimed(epsilon: Any, delta: float) -> float:
    # Infinite at a small delta, maybe; but a number.
    if not isinstance(epsilon, numbers.Real) or not float(epsilon) >= 0:
        raise ValueError(
            "'claim' needs to return an epsilon, at least 0, for every delta "
            f'(got {epsilon!r} at {delta:.6g})'
        )
    return float(epsilon)


def _trials(
    pairs: list[tuple[np.ndarray, np.ndarray]], error: float
) -> Trials:
    # The scores of all runs by their coins.
    scores, heads = map(np.concatenate, zip(*pairs, strict=True))
    return Trials(scores[~heads], scores[heads], error)


def _discriminant(found: np.ndarray, heads: np.ndarray) -> np.ndarray:
    # Fisher's, with some ridge: where the means differ for their spread.
    if heads.all() or not heads.any():
        return np.ones(found.shape[1])
    high, low = found[heads], found[~heads]
    gap = high.mean(0) - low.mean(0)
    inside = np.concatenate([high - high.mean(0), low - low.mean(0)])
    spread = inside.T @ inside / len(inside)
    ridge = _RIDGE * max(float(np.trace(spread)) / len(gap), 1e-300)
    return np.linalg.solve(spread + ridge * np.eye(len(gap)), gap)


def _check_graph(data: Any) -> None:
    check_instance('data', data, Data)
    shape = ('num_nodes', 'num_features')
    check_tensor('data.x', data.get('x'), None, shape)
    check_tensor('data.y', data.get('y'), torch.int64, data.x.shape[:1])
    if data.get('edge_index') is None:
        raise ValueError("'data' needs to have an 'edge_index'")


def _planted(data: Data, value: Tensor, label: int) -> Data:
    # The graph and the canaries, without edges, a feature for each.
    count, n = value.numel(), data.x.size(0)
    out = data.clone()
    for name, held in data.to_dict().items():
        if isinstance(held, Tensor) and data.is_node_attr(name):
            more = held.new_zeros((count, *held.shape[1:]))
            if name == 'train_mask':
                more = torch.ones_like(more)
            out[name] = torch.cat([held, more])
    out.y[n:] = label
    width = data.x.size(1)
    out.x = torch.cat([out.x, out.x.new_zeros(n + count, count)], 1)
    index = torch.arange(count)
    out.x[n + index, width + index] = value.to(out.x)
    out.num_nodes = n + count
    return out


def _of_canaries(released: Any, data: Data, value: Tensor) -> np.ndarray:
    # The released value of each canary's feature: [num_canaries, *].
    count, first = value.numel(), data.x.size(1)
    width, items = first + count, released
    if isinstance(released, nn.Module | Mapping | Tensor):
        items = [released]
    if not isinstance(items, Sequence):
        raise TypeError(
            "'train' needs to return a model, its state_dict, or a list of "
            f'these (got {type(released).__name__})'
        )
    found = []
    for item in items:
        item = item.state_dict() if isinstance(item, nn.Module) else item
        for tensor in item.values() if isinstance(item, Mapping) else [item]:
            if not isinstance(tensor, Tensor) or width not in tensor.shape:
                continue
            part = tensor.detach().to_dense().cpu()
            part = part.movedim(list(tensor.shape).index(width), 0)
            if part.is_complex():
                part = torch.view_as_real(part)
            found.append(part.double()[first:].reshape(count, -1))
    if not found:
        raise ValueError(
            "'train' needs to release a tensor with a dimension of "
            f"{width}, 'data.num_features' (got none): a first layer "
            'that reads all features has one'
        )
    flat = torch.cat(found, 1).numpy()
    # Bounded by 1. Whether a number is NaN or infinite is a signal, too.
    signs = (np.isnan(flat), np.isposinf(flat), np.isneginf(flat))
    held = np.where(np.isfinite(flat), flat, 0.0)
    held /= np.abs(held).max(initial=0.0) or 1.0
    odd = [sign.astype(np.float64) for sign in signs if sign.any()]
    return np.concatenate([held, *odd], 1)


@validated
def canary_graph(num_canaries: Count, size: Count = 3) -> Data:
    """Make a graph of stars; each centre is a canary with its own feature.

    Args:
        num_canaries (int): the number of stars, and of features.
        size (int): the nodes of a star. (default: :obj:`3`)

    Returns:
        Data: the graph, with ``x`` of zeros. Node ``i`` is the centre of star
        ``i``; ``train_mask`` is true at the centres.
    """
    centre = torch.arange(num_canaries).repeat_interleave(size - 1)
    leaf = torch.arange(num_canaries, num_canaries * size)
    pairs = torch.stack([centre, leaf])
    return Data(
        x=torch.zeros(num_canaries * size, num_canaries),
        y=torch.zeros(num_canaries * size, dtype=torch.int64),
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        train_mask=torch.arange(num_canaries * size) < num_canaries,
    )


@validated
def audit_training(
    attach: Attach,
    *,
    num_canaries: Count = 1000,
    size: Count = 3,
    batch_size: int | None = None,
    steps: Count = 1,
    delta: Fraction = 0.05,
    confidence: Fraction = 0.99,
    seed: int | None = None,
) -> PrivacyAudit:
    r"""Audit an engine with its settings, by worst-case canaries.

    A made-up graph has a star for each canary. A star is one subgraph of the
    loader. Its centre has a feature of its own, which is a large number or its
    negative, at random. The model is linear and its loss a sum of outputs, so
    that the two signs move the gradient as far apart as clipping lets them.
    Guesses of the signs from noisy gradients bound epsilon from below.

    Args:
        attach (callable): ``attach(model, optimizer, loader)`` makes an engine
            and returns it with the result of its
            :meth:`PrivacyEngine.make_private`, called with
            ``loss_reduction='sum'``.
        num_canaries (int): the number of trials. (default: :obj:`1000`)
        size (int): the nodes of a star. (default: :obj:`3`)
        batch_size (int, optional): the subgraphs of a step; by default all,
            which makes trials independent.
        steps (int): the steps of training. (default: :obj:`1`)
        delta (float): the :math:`\delta` at which to compare; a larger one
            takes fewer trials to see a fault. (default: :obj:`0.05`)
        confidence (float): the bound's confidence level, in (0, 1).
        seed (int, optional): the seed of draws and loader; random by default.

    Returns:
        PrivacyAudit: the bound, beside the engine's claim.
    """
    if batch_size is not None:
        check_integer('batch_size', batch_size, 1, num_canaries)
    seed = rng.resolve(seed)
    data = canary_graph(num_canaries, size)
    coin = torch.rand(num_canaries, generator=rng.generator(seed)) < 0.5
    check_coins(coin)
    index = torch.arange(num_canaries)
    data.x[index, index] = torch.where(coin, _LARGE, -_LARGE)
    loader = DisjointWalkLoader(
        data,
        num_canaries if batch_size is None else batch_size,
        1,
        max(1, size - 1),
        data.train_mask,
        num_steps=steps,
        seed=rng.derive(seed, 1),
    )
    linear = nn.Linear(num_canaries, 1, bias=False)
    nn.init.zeros_(linear.weight)
    module = GINConv(linear)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    engine, (model, private, batches) = attach(module, optimizer, loader)
    before = engine.steps
    score = torch.zeros(num_canaries, dtype=torch.float64)
    for batch in Bar(batches, desc='steps'):
        private.zero_grad()
        model(batch.x, batch.edge_index).sum().backward()
        private.step()
        assert linear.weight.grad is not None
        score += linear.weight.grad[0].double()
    if before or engine.steps != steps:
        # The claim is of all steps on the account.
        raise ValueError(
            f"'attach' needs to make an engine that takes {steps} steps, and "
            'has no earlier ones on its ledger: an audit sees what its own '
            f'steps release (got {engine.steps - before} steps, after '
            f'{before})'
        )
    return empirical_epsilon(
        score[~coin].numpy(),
        score[coin].numpy(),
        delta,
        claim=engine.get_epsilon(delta),
        confidence=confidence,
        seed=rng.derive(seed, 2),
    )
