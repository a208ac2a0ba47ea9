"""Private scores of pairs: features, and noisy gradients of a scorer.

A pair is judged without its own edge, by rows from which its own messages were
subtracted. What one pair adds to a sum does not depend on other pairs, as they
are computed in blocks of one shape, and integers are added.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust import rng
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
    """List the pairs of a graph: each edge, undirected or an arc, once."""
    ends, _ = graph.to_edge_index()
    return ends if directed else ends[:, ends[0] < ends[1]]


def public_pairs(num_nodes: int, count: int, seed: int = 0) -> Tensor:
    """Draw pairs of two different ids, uniformly, without a look at edges."""
    stream = rng.stream(rng.resolve(seed))
    first = stream.integers(0, num_nodes, count)
    second = stream.integers(0, num_nodes - 1, count)
    return torch.from_numpy(np.stack([first, second + (second >= first)]))


def public_lists(num_nodes: int, count: int) -> Tensor:
    """Draw so many other ids for each node, without a look at edges."""
    owner = np.arange(num_nodes).repeat(count)
    drawn = rng.stream(0).integers(0, num_nodes - 1, len(owner))
    return torch.from_numpy(np.stack([owner, drawn + (drawn >= owner)]))


def principal_rows(x: Tensor, dim: int) -> Tensor:
    """Reduce public features to their principal columns, the largest first.

    Rows are brought to norm 1, columns weighted by how rare they are (inverse
    document frequency), and a randomised SVD with a fixed start gives the
    columns: float64, ``[num_nodes, dim]`` or fewer.
    """
    rows = unit_rows(x)
    n, columns = rows.shape
    size = min(dim, n, columns)
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


def public_basis(num_columns: int, dim: int) -> Tensor:
    """Draw directions for :func:`projected_rows`, whatever the features."""
    return torch.from_numpy(rng.stream(0).standard_normal((num_columns, dim)))


def projected_rows(x: Tensor, basis: Tensor) -> Tensor:
    """Project features onto public directions, each row by itself."""
    # A sparse product adds up each row by itself, in the order of columns.
    rows = scipy.sparse.csr_array(unit_rows(x))
    return torch.from_numpy(rows @ basis.numpy())


def on_grid(messages: Tensor, std: float) -> Tensor:
    """Truncate messages to the grid of their noise, as in their sums."""
    return torch.from_numpy(truncated(messages.numpy(), std) * grid(std))


# Features of pairs ###########################################################


def pair_features(
    pairs: Tensor,
    x: Tensor,
    messages: Tensor,
    rows: Tensor,
    std: float,
    left_out: str = '',
) -> np.ndarray:
    r"""Compute features of pairs from public features and released rows.

    .. math::
        \phi = \Big[ x_u x_w,\; m_u \tfrac{S_w}{N_w} + m_w \tfrac{S_u}{N_u},\;
        \tfrac{S_u}{N_u} \tfrac{S_w}{N_w},\; \tfrac{\langle S_u, S_w \rangle}
        {\sqrt{N_u N_w}},\; \log N_u N_w \Big], \quad
        N^2 = \|S\|^2 + s^2 D + 10^{-3},

    as ``[num_blocks, d + 2 D + 2, BLOCK]``. The message of the pair's own edge
    is left out at both ends (``'both'``), at the ``'target'`` or nowhere.
    """
    h, m, S = x.numpy(), messages.numpy(), rows.numpy()
    d, D, count = h.shape[1], m.shape[1], pairs.size(1)
    made = np.zeros((-(-count // BLOCK), d + 2 * D + 2, BLOCK))
    extra, step = std * std * D + _EMPTY, grid(std)
    for out, u, w in _blocks(pairs, made):
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
    return _ended(made, count)


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
        \tfrac{S_w}{N_w} \rangle,\; \log N_w \Big],

    the last standardised over all released rows, then as in
    :func:`scaled_features`: ``[num_blocks, D + 3, BLOCK]``. What the source
    has added to the target's row (``own``) is left out.
    """
    m, S = messages.numpy(), rows.numpy()
    D, count = rows.size(1), pairs.size(1)
    made = np.zeros((-(-count // BLOCK), D + 2, BLOCK))
    extra, step = std * std * D + _EMPTY, grid(std)
    for out, v, w in _blocks(pairs, made):
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


def _blocks(
    pairs: Tensor, made: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    # Each block, and the ids of its pairs; the last is filled with id 0.
    ends = np.zeros((2, len(made) * BLOCK), dtype=np.int64)
    ends[:, : pairs.size(1)] = pairs.numpy()
    for k, out in enumerate(made):
        yield (out, *ends[:, k * BLOCK : (k + 1) * BLOCK])


def _ended(made: np.ndarray, count: int) -> np.ndarray:
    # Zeros behind the last pair.
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
    """Compute mean and standard deviation of features over public pairs."""
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
    return _ended(made, count)


def logits(blocks: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute logits of pairs, each by itself: ``[num_blocks * BLOCK]``."""
    made = np.zeros((len(blocks), BLOCK))
    for block, out in zip(blocks, made, strict=True):
        for column, w in zip(block, weight, strict=True):
            out += column * w
    return made.ravel()


# Noisy gradients #############################################################


def clipped_pair_sum(
    blocks: np.ndarray, weight: np.ndarray, max_grad_norm: float, std: float
) -> np.ndarray:
    r"""Sum clipped gradients :math:`-\phi / (1 + e^{w^\top \phi})` of edges.

    One pair more or less moves the sum by at most :obj:`max_grad_norm`. The
    result, and that of :func:`clipped_owner_sum`, is in units of the grid.
    """
    C = max_grad_norm
    check_sum(blocks.shape[0] * BLOCK * C, std, 'max_grad_norm')
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

    Only the sum over edges reads one, and it is divided by a released number.
    """

    def sums(w: np.ndarray) -> np.ndarray:
        return clipped_pair_sum(positives, w, 1.0, noise_multiplier)

    def of_public(w: np.ndarray) -> np.ndarray:
        with np.errstate(over='ignore'):
            error = 1 / (1 + np.exp(-logits(negatives, w)))
        error = error.reshape(len(negatives), BLOCK)
        return np.einsum('bpk,bk->p', negatives, error) / num_neg

    return _trained(
        sums, of_public, cells, noise_multiplier, max(1, count), lr
    )


def _trained(
    sums: Callable[[np.ndarray], np.ndarray],
    of_public: Callable[[np.ndarray], np.ndarray | float],
    cells: Tensor,
    noise_multiplier: float,
    count: float,
    lr: float,
) -> np.ndarray:
    weight = torch.zeros(cells.size(1), dtype=torch.float64)
    optimizer = torch.optim.Adam([weight], lr=lr)
    for drawn in cells.numpy():
        w = weight.numpy()
        made = released(sums(w), drawn, noise_multiplier) / count
        made += of_public(w)
        weight.grad = torch.from_numpy(made + _DECAY * w)
        optimizer.step()
    return weight.numpy()


def owner_sums(
    blocks: np.ndarray,
    owner: np.ndarray,
    sign: int,
    weight: np.ndarray,
    n: int,
) -> np.ndarray:
    r"""Sum gradients of pairs by owner, in multiples of :math:`2^{-40}`.

    Pairs are positive (``sign`` 1) or negative (-1). A sum depends on the
    pairs of its owner alone, to the bit.
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
    r"""Sum mean gradients of lists, clipped once an owner.

    An owner with an empty list adds 0. A record that is removed moves the
    sum by at most :obj:`max_grad_norm`, whatever its degree.
    """
    C = max_grad_norm
    check_sum(len(degree) * C, std, 'max_grad_norm')
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

    Lists are features of pairs and the owner of each; public ones have so many
    pairs (``count``) of each owner.
    """
    n, z = len(degree), noise_multiplier

    def sums(w: np.ndarray) -> np.ndarray:
        up, down = (
            owner_sums(*lists, 1, w, n),
            owner_sums(*negatives, -1, w, n),
        )
        return clipped_owner_sum(up, degree, down, count, 1.0, z)

    return _trained(sums, lambda w: 0.0, cells, z, n, lr)
