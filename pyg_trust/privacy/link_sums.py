r"""Private scores of pairs: features, and noisy gradients of a scorer.

A scorer of pairs learns from edges twice. Every edge is a *message*, in the
noisy sums :math:`S` of a hop
(:mod:`pyg_trust.privacy.propagation`), and an *example*, a positive
pair whose clipped gradient is in a noisy sum at every step. Both are releases
of the same edge, and one closed form accounts for them
(:mod:`pyg_trust.verify.release`, "Pairs").

**A pair is judged without its own edge** (:func:`pair_features`). The row of
:math:`u` holds the message of :math:`w` if :math:`(u, w)` is an edge, so a
positive example would show a scorer what no new pair has. For a positive pair
the rows :math:`S_u - m_w` and :math:`S_w - m_u` are read instead: the rows of
the same release without the edge, to the bit, as :math:`S` is on a grid and
messages are truncated to it (:func:`on_grid`). That is a function of what was
released and of the pair, so it costs nothing.

**Negatives never look at edges** (:func:`public_pairs`). Pairs that were drawn
until they are no edges move a sum twice: a new edge adds its gradient and
takes that of a negative away. The list here is a function of public numbers;
some of its pairs are edges.

**To the last bit.** What one pair adds to a sum may not depend on the other
pairs. The number of edges is private, and which way a library takes may depend
on the shape of an array. So pairs are computed in blocks of a fixed shape,
column by column, by operations on single entries, and a last block is filled
with zeros (:func:`pair_features`, :func:`clipped_pair_sum`). A clipped
gradient is at most :math:`(1 - 10^{-6})\, C` long before each of its numbers
is truncated to the grid of the noise, and integers are added in 64 bits.
"""

import math

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    check_instance,
    check_integer,
    check_number,
    check_positive,
    check_range,
    check_tensor,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.descent import unit_rows
from pyg_trust.privacy.propagation import MARGIN
from pyg_trust.verify.release import check_sum, grid, released, truncated

#: Pairs of a block.
BLOCK = 1024
#: The most pairs of a graph whose gradients are added up.
MOST_PAIRS = 2**28
_CUT, _DECAY = 8.0, 1e-5
_EMPTY = 1e-3
_ROUNDS = 4
# Gradients of pairs are multiples of 2^-40 before lists are added up.
_PLACES = 40


def pairs_of(graph: CSRGraph, directed: bool = False) -> Tensor:
    """List the pairs of a graph: each edge, undirected or an arc, once.

    Args:
        graph (CSRGraph): without self-loops and duplicates; undirected edges
            in both directions.
        directed (bool): whether edges are arcs. (default: :obj:`False`)

    Returns:
        Tensor: int64, ``[2, num_pairs]``.
    """
    check_instance('graph', graph, CSRGraph)
    ends, _ = graph.to_edge_index()
    return ends if directed else ends[:, ends[0] < ends[1]]


def public_pairs(num_nodes: int, count: int, seed: int = 0) -> Tensor:
    """Draw pairs of two different ids, uniformly, without a look at edges.

    Args:
        num_nodes (int): :math:`n`, at least 2.
        count (int): the number of pairs.
        seed (int): public. (default: :obj:`0`)

    Returns:
        Tensor: int64, ``[2, count]``.
    """
    check_integer('num_nodes', num_nodes, 2)
    check_integer('count', count, 0)
    stream = rng.stream(rng.resolve(check_integer('seed', seed, 0)))
    first = stream.integers(0, num_nodes, count)
    second = stream.integers(0, num_nodes - 1, count)
    return torch.from_numpy(np.stack([first, second + (second >= first)]))


def principal_rows(x: Tensor, dim: int) -> Tensor:
    """Reduce features to their principal columns, the largest first.

    Rows are brought to norm 1, columns weighted by how rare they are (inverse
    document frequency), and a randomised SVD with a fixed start gives the
    columns. Features are public here: every row is a function of all of them.

    Args:
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``, dense or
            sparse.
        dim (int): the most columns.

    Returns:
        Tensor: float64, ``[num_nodes, dim]`` or fewer columns.
    """
    rows = unit_rows(x)
    n, columns = rows.shape
    size = min(check_integer('dim', dim, 1), n, columns)
    wide = min(size + 8, n, columns)
    seen = np.asarray((rows != 0).sum(0)).ravel()
    rows = rows * np.log((1 + n) / np.maximum(1, seen))[None]
    rows = rows.tocsr() if scipy.sparse.issparse(rows) else rows
    basis = rng.stream(0).standard_normal((columns, wide))
    for _ in range(_ROUNDS):
        basis = rows.T @ np.linalg.qr(rows @ basis)[0]
    basis = np.linalg.qr(rows @ basis)[0]
    left, scale, _ = np.linalg.svd((rows.T @ basis).T, full_matrices=False)
    made = (basis @ left[:, :size]) * scale[:size]
    return torch.from_numpy(np.ascontiguousarray(made))


def on_grid(messages: Tensor, std: float) -> Tensor:
    """Truncate messages to the grid of their noise, as their sums have them.

    Args:
        messages (Tensor): float64.
        std (float): the standard deviation of the noise.
    """
    check_tensor('messages', messages, torch.float64, tuple(messages.shape))
    whole = truncated(messages.numpy(), check_positive('std', std))
    return torch.from_numpy(whole * grid(std))


def pair_features(
    pairs: Tensor,
    x: Tensor,
    messages: Tensor,
    rows: Tensor,
    std: float,
    left_out: str = '',
) -> np.ndarray:
    r"""Compute features of pairs from released rows.

    .. math::
        \phi = \Big[ x_u x_w,\; m_u \tfrac{S_w}{N_w} + m_w \tfrac{S_u}{N_u},\;
        \tfrac{S_u}{N_u} \tfrac{S_w}{N_w},\; \tfrac{\langle S_u, S_w \rangle}
        {\sqrt{N_u N_w}},\; \log N_u N_w \Big], \quad
        N^2 = \|S\|^2 + s^2 D + 10^{-3}

    Args:
        pairs (Tensor): int64, ``[2, num_pairs]``.
        x (Tensor): float64, ``[num_nodes, d]``: public.
        messages (Tensor): float64, ``[num_nodes, D]``: those that were sent.
        rows (Tensor): float64, ``[num_nodes, D]``: :math:`S`, released, on
            the grid of its noise.
        std (float): :math:`s`.
        left_out (str): the ends where the message of the pair's own edge is
            left out: ``'both'``, ``'target'`` (of an arc) or neither.
            (default: :obj:`''`)

    Returns:
        ndarray: float64, ``[num_blocks, d + 2 D + 2, BLOCK]``; pairs in their
        order, zeros behind the last.
    """
    if left_out not in ('', 'both', 'target'):
        raise ValueError(
            f"'left_out' needs to be 'both', 'target' or '' (got {left_out!r})"
        )
    std = check_positive('std', std)
    n = x.size(0)
    for name, value in (('x', x), ('messages', messages), ('rows', rows)):
        check_tensor(name, value, torch.float64, (n, 'num_columns'))
    check_tensor('pairs', pairs, torch.int64, (2, 'num_pairs'))
    check_range('pairs', pairs, n, 'the nodes', private=True)
    h, m, S = x.numpy(), messages.numpy(), rows.numpy()
    d, D = h.shape[1], m.shape[1]
    count = pairs.size(1)
    made = np.zeros((-(-count // BLOCK), d + 2 * D + 2, BLOCK))
    ends = np.zeros((2, len(made) * BLOCK), dtype=np.int64)
    ends[:, :count] = pairs.numpy()
    extra, step = std * std * D + _EMPTY, grid(std)
    for k, out in enumerate(made):
        u, w = ends[:, k * BLOCK : (k + 1) * BLOCK]
        mu, mw = m[u].T.copy(), m[w].T.copy()
        a, b = S[u].T.copy(), S[w].T.copy()
        if left_out == 'both':
            a = np.rint((a - mw) / step) * step
        if left_out:
            b = np.rint((b - mu) / step) * step
        nu, nw = (np.sqrt(_dot(each, each) + extra) for each in (a, b))
        inner = _dot(a, b) / np.sqrt(nu * nw)
        a /= nu
        b /= nw
        np.multiply(h[u].T, h[w].T, out=out[:d])
        out[d : d + D] = mu * b + mw * a
        out[d + D : -2] = a * b
        out[-2] = inner
        out[-1] = np.log(nu * nw)
    if count % BLOCK:
        made[-1, :, count % BLOCK :] = 0.0
    return made


def _dot(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    # Sum column by column, so that the order of additions is fixed.
    total = np.zeros(one.shape[1])
    for a, b in zip(one, two, strict=True):
        total += a * b
    return total


def moments(blocks: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of features over public pairs.

    Args:
        blocks (ndarray): the result of :func:`pair_features`.
        count (int): the number of pairs, at least 1.
    """
    count = check_integer('count', count, 1)
    mean = blocks.sum((0, 2)) / count
    squares = (blocks * blocks).sum((0, 2)) / count
    return mean, np.sqrt(np.maximum(squares - mean * mean, 0.0))


def scaled_features(
    blocks: np.ndarray, mean: np.ndarray, deviation: np.ndarray, count: int
) -> np.ndarray:
    r"""Standardise features, add a constant, and bring rows to norm 1 at most.

    .. math::
        z = \big[ \mathrm{clip}_8 ((\phi - \mu) / \sigma),\; 1 \big], \quad
        (1 - 10^{-6})\, z / \max(\sqrt{p}, \|z\|)

    Returns:
        ndarray: float64, with a column more, which is the constant.
    """
    size = len(mean) + 1
    made = np.empty((len(blocks), size, BLOCK))
    inverse = 1 / (deviation + 1e-9)
    for block, out in zip(blocks, made, strict=True):
        block -= mean[:, None]
        block *= inverse[:, None]
        np.clip(block, -_CUT, _CUT, out=out[:-1])
        out[-1] = 1.0
        norm = np.sqrt(_dot(out, out))
        out /= np.maximum(norm, math.sqrt(size))
        out *= 1 - MARGIN
    if count % BLOCK:
        made[-1, :, count % BLOCK :] = 0.0
    return made


def logits(blocks: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute logits of pairs, each by itself: ``[num_blocks * BLOCK]``.

    Args:
        blocks (ndarray): the result of :func:`scaled_features`.
        weight (ndarray): float64, ``[num_columns]``.
    """
    made = np.zeros((len(blocks), BLOCK))
    for block, out in zip(blocks, made, strict=True):
        for column, w in zip(block, weight, strict=True):
            out += column * w
    return made.ravel()


def clipped_pair_sum(
    blocks: np.ndarray, weight: np.ndarray, max_grad_norm: float, std: float
) -> np.ndarray:
    r"""Sum the clipped gradients of positive pairs on the grid of the noise.

    Of the logistic loss :math:`\log(1 + e^{-w^\top \phi})`, whose gradient is
    :math:`-\phi / (1 + e^{w^\top \phi})`. One pair more or less moves the sum
    by at most :math:`C`, if it is listed once.

    Args:
        blocks (ndarray): float64, ``[num_blocks, num_columns, BLOCK]``: a
            column of zeros adds nothing.
        weight (ndarray): float64, ``[num_columns]``.
        max_grad_norm (float): :math:`C`.
        std (float): the standard deviation of the noise.

    Returns:
        ndarray: int64, ``[num_columns]``: times the grid it is the sum.
    """
    C = check_positive('max_grad_norm', max_grad_norm)
    size = blocks.shape[0] * BLOCK * C
    check_sum(size, check_positive('std', std), 'max_grad_norm')
    total = np.zeros(len(weight), dtype=np.int64)
    for block in blocks:
        with np.errstate(over='ignore', invalid='ignore'):
            error = 1 / (1 + np.exp(logits(block[None], weight)))
            norm = error * np.sqrt(_dot(block, block))
        factor = np.minimum(1.0, C / np.maximum(norm, 1e-300))
        factor *= (MARGIN - 1) * error
        factor = np.where(np.isfinite(norm), factor, 0.0)
        gradient = np.where(factor == 0, 0.0, block * factor)
        total += truncated(gradient, std).astype(np.int64).sum(1)
    return total


def private_pairs(
    positives: np.ndarray,
    negatives: np.ndarray,
    count: float,
    num_neg: int,
    cells: Tensor,
    noise_multiplier: float,
    lr: float,
) -> np.ndarray:
    r"""Train a linear scorer of pairs by noisy full-batch steps of Adam.

    A step follows

    .. math::
        \frac{1}{K} \Big( \sum_{e \in E} \mathrm{clip}_1 \nabla \ell^+_e +
        \mathcal{N}(0, z^2 I) \Big) + \frac{1}{|Q|} \sum_{q \in Q} \nabla
        \ell^-_q + 10^{-5} w

    Only the first sum reads an edge.

    Args:
        positives (ndarray): of :func:`scaled_features`: every edge once.
        negatives (ndarray): the same, of public pairs.
        count (float): :math:`K`, released; at least 1 is used.
        num_neg (int): :math:`|Q|`.
        cells (Tensor): int64, ``[steps, num_columns]``: the noise.
        noise_multiplier (float): :math:`z`.
        lr (float): Adam's.

    Returns:
        ndarray: float64, ``[num_columns]``.
    """
    size = positives.shape[1]
    check_tensor('cells', cells, torch.int64, ('steps', size))
    scale = max(1.0, check_number('count', count))
    num_neg = check_integer('num_neg', num_neg, 1)
    weight = torch.zeros(size, dtype=torch.float64)
    optimizer = torch.optim.Adam([weight], lr=check_positive('lr', lr))
    for drawn in cells.numpy():
        w = weight.numpy()
        sums = clipped_pair_sum(positives, w, 1.0, noise_multiplier)
        made = released(sums, drawn, noise_multiplier) / scale
        with np.errstate(over='ignore'):
            error = 1 / (1 + np.exp(-logits(negatives, w)))
        error = error.reshape(len(negatives), BLOCK)
        made += np.einsum('bpk,bk->p', negatives, error) / num_neg
        weight.grad = torch.from_numpy(made + _DECAY * w)
        optimizer.step()
    return weight.numpy()


def public_basis(num_columns: int, dim: int) -> Tensor:
    """Draw directions for :func:`projected_rows`, without a look at features.

    Returns:
        Tensor: float64, ``[num_columns, dim]``.
    """
    check_integer('num_columns', num_columns, 0)
    shape = num_columns, check_integer('dim', dim, 1)
    return torch.from_numpy(rng.stream(0).standard_normal(shape))


def projected_rows(x: Tensor, basis: Tensor) -> Tensor:
    """Project features onto public directions, each row by itself.

    Args:
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``, dense or
            sparse.
        basis (Tensor): float64, ``[num_columns, dim]``.

    Returns:
        Tensor: float64, ``[num_nodes, dim]``.
    """
    # A sparse product adds up each row by itself, in the order of columns.
    rows = scipy.sparse.csr_array(unit_rows(x))
    check_tensor('basis', basis, torch.float64, (rows.shape[1], 'dim'))
    return torch.from_numpy(rows @ basis.numpy())


def owner_features(
    pairs: Tensor,
    messages: Tensor,
    rows: Tensor,
    std: float,
    own: Tensor | None = None,
) -> np.ndarray:
    r"""Compute features of pairs from the source's record and released rows.

    .. math::
        \phi = \Big[ D\, m_v \tfrac{S_w}{N_w},\; \sqrt{D}\, \langle m_v,
        \tfrac{S_w}{N_w} \rangle,\; \log N_w \Big], \quad
        N^2 = \|S\|^2 + s^2 D + 10^{-3},

    the last standardised over all released rows, and then as in
    :func:`scaled_features`.

    Args:
        pairs (Tensor): int64, ``[2, num_pairs]``: sources and targets.
        messages (Tensor): float64, ``[num_nodes, D]``: of the sources.
        rows (Tensor): float64, ``[num_nodes, D]``: :math:`S`, released, on
            the grid of its noise.
        std (float): :math:`s`.
        own (Tensor, optional): float64, ``[num_nodes, D]``: what the source
            has added to the row of the target, on the grid: it is left out.
            (default: :obj:`None`)

    Returns:
        ndarray: float64, ``[num_blocks, D + 3, BLOCK]``; pairs in their
        order, zeros behind the last.
    """
    std, n = check_positive('std', std), rows.size(0)
    check_tensor('rows', rows, torch.float64, (n, 'num_columns'))
    D = rows.size(1)
    check_tensor('messages', messages, torch.float64, (n, D))
    check_tensor('pairs', pairs, torch.int64, (2, 'num_pairs'))
    check_range('pairs', pairs, n, 'the nodes', private=True)
    m, S, count = messages.numpy(), rows.numpy(), pairs.size(1)
    made = np.zeros((-(-count // BLOCK), D + 2, BLOCK))
    ends = np.zeros((2, len(made) * BLOCK), dtype=np.int64)
    ends[:, :count] = pairs.numpy()
    extra, step = std * std * D + _EMPTY, grid(std)
    for k, out in enumerate(made):
        v, w = ends[:, k * BLOCK : (k + 1) * BLOCK]
        a, b = m[v].T.copy(), S[w].T.copy()
        if own is not None:
            b = np.rint((b - own.numpy()[v].T) / step) * step
        squares = _dot(b, b) + extra
        b /= np.sqrt(squares)
        out[:D] = D * a * b
        out[D] = math.sqrt(D) * _dot(a, b)
        out[D + 1] = np.log(squares)
    size = np.log(np.square(S).sum(1) + extra)
    mean, deviation = np.zeros(D + 2), np.ones(D + 2)
    mean[-1], deviation[-1] = size.mean(), size.std()
    return scaled_features(made, mean, deviation, count)


def public_lists(num_nodes: int, count: int) -> Tensor:
    """Draw ids for every node, others than its own, without a look at edges.

    Args:
        num_nodes (int): :math:`n`, at least 2.
        count (int): :math:`k`, the number of ids of each node.

    Returns:
        Tensor: int64, ``[2, num_nodes * count]``: node by node.
    """
    owner = np.arange(check_integer('num_nodes', num_nodes, 2))
    owner = owner.repeat(check_integer('count', count, 1))
    drawn = rng.stream(0).integers(0, num_nodes - 1, len(owner))
    return torch.from_numpy(np.stack([owner, drawn + (drawn >= owner)]))


def owner_sums(
    blocks: np.ndarray,
    owner: np.ndarray,
    sign: int,
    weight: np.ndarray,
    n: int,
) -> np.ndarray:
    r"""Sum gradients of pairs by owner, in multiples of :math:`2^{-40}`.

    Of the logistic loss of pairs that are positive (``sign`` 1) or negative
    (-1). Each number is rounded by itself, and integers are added: a sum
    depends on the pairs of its owner alone, to the bit.

    Args:
        blocks (ndarray): of :func:`scaled_features`.
        owner (ndarray): int64, ``[num_pairs]``.
        sign (int): 1 or -1.
        weight (ndarray): float64, ``[num_columns]``.
        n (int): the number of owners.

    Returns:
        ndarray: int64, ``[n, num_columns]``.
    """
    total = np.zeros((n, len(weight)), dtype=np.int64)
    whole = np.zeros(len(blocks) * BLOCK, dtype=np.int64)
    whole[: len(owner)] = owner
    for block, mine in zip(blocks, whole.reshape(-1, BLOCK), strict=True):
        with np.errstate(over='ignore'):
            error = -sign / (1 + np.exp(sign * logits(block[None], weight)))
        made = np.rint(block * error * 2.0**_PLACES).astype(np.int64)
        np.add.at(total, mine, made.T)
    return total


def clipped_owner_sum(
    positive: np.ndarray,
    degree: np.ndarray,
    negative: np.ndarray,
    count: int,
    max_grad_norm: float,
    std: float,
) -> np.ndarray:
    r"""Sum gradients, clipped once an owner, on the grid of the noise.

    .. math::
        g_v = \mathrm{clip}_C \Big( \frac{1}{|L_v|} \sum_{w \in L_v} \nabla
        \ell^+_{vw} + \frac{1}{k} \sum_{w \in Q_v} \nabla \ell^-_{vw} \Big)

    and 0 for an empty list :math:`L_v`. A record that is withdrawn moves the
    sum by at most :math:`C`, one that is replaced by at most :math:`2 C`,
    whatever its degree.

    Args:
        positive (ndarray): int64, ``[n, num_columns]``: of
            :func:`owner_sums`, over :math:`L_v`.
        degree (ndarray): int64, ``[n]``: :math:`|L_v|`.
        negative (ndarray): the same over :math:`Q_v`.
        count (int): :math:`k`.
        max_grad_norm (float): :math:`C`.
        std (float): the standard deviation of the noise.

    Returns:
        ndarray: int64, ``[num_columns]``: times the grid it is the sum.
    """
    C = check_positive('max_grad_norm', max_grad_norm)
    check_sum(len(degree) * C, check_positive('std', std), 'max_grad_norm')
    each = (positive / np.maximum(degree, 1)[:, None] + negative / count).T
    each = np.where(degree > 0, each * 2.0**-_PLACES, 0.0)
    norm = np.sqrt(_dot(each, each))
    each *= (1 - MARGIN) * np.minimum(1.0, C / np.maximum(norm, 1e-300))
    return truncated(each, std).astype(np.int64).sum(1)


def private_owners(
    lists: tuple[np.ndarray, np.ndarray],
    degree: np.ndarray,
    negatives: tuple[np.ndarray, np.ndarray],
    count: int,
    cells: Tensor,
    noise_multiplier: float,
    lr: float,
) -> np.ndarray:
    r"""Train a linear scorer of pairs by noisy steps, clipped by owner.

    Args:
        lists (tuple): blocks of :func:`scaled_features` of all own lists, and
            the owner of each pair, int64.
        degree (ndarray): int64, ``[n]``: the lengths of the lists.
        negatives (tuple): the same of the public lists.
        count (int): the length of a public list.
        cells (Tensor): int64, ``[steps, num_columns]``: the noise.
        noise_multiplier (float): :math:`z`.
        lr (float): Adam's.

    Returns:
        ndarray: float64, ``[num_columns]``.
    """
    size, n = lists[0].shape[1], len(degree)
    check_tensor('cells', cells, torch.int64, ('steps', size))
    weight = torch.zeros(size, dtype=torch.float64)
    optimizer = torch.optim.Adam([weight], lr=check_positive('lr', lr))
    for drawn in cells.numpy():
        w = weight.numpy()
        up, down = (
            owner_sums(*lists, 1, w, n),
            owner_sums(*negatives, -1, w, n),
        )
        sums = clipped_owner_sum(
            up, degree, down, count, 1.0, noise_multiplier
        )
        made = released(sums, drawn, noise_multiplier) / n
        weight.grad = torch.from_numpy(made + _DECAY * w)
        optimizer.step()
    return weight.numpy()
