"""Bound the distance of weights to exact retraining, from what remains.

The loss is strongly convex, so that the norm of the gradient at any weights
bounds their distance to exact retraining; what rounding hides is added to it.
A ledger seals what remains by a salted hash.
See docs/theory/proofs.rst.
"""

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy.sparse import csr_array

from .accounting import FAILS, HOLDS, NOT_PROVED
from .arrays import Tensor, divides, fingerprint

UNIT = 2.0**-53
TINY = 2.0**-500
# Largest slope of the derivative of a head, and the error of a row of its
# values in units of u, for C outputs.
LIPSCHITZ = {'ovr': 0.25, 'softmax': 0.5, 'squared': 2.0}
SLOPE = {
    'ovr': lambda outputs: 8 * math.sqrt(outputs),
    'softmax': lambda outputs: 22 + outputs,
    'squared': lambda outputs: 0,  # 2 (a - y): counted with the product
}


# The dtype and dimensions of each array of a proof. Classes are positions of
# labels; -1 marks a node without a training label.
ARRAYS: dict[str, tuple[str, int]] = {
    **dict.fromkeys(('a', 'b', 'lam', 'std'), ('float64', 0)),
    **dict.fromkeys(
        ('self_loops', 'along', 'directed', 'secure'), ('bool', 0)
    ),
    **dict.fromkeys(('releases', 'bits'), ('int64', 0)),
    **{'head': ('str', 0), 'weights': ('float64', 1), 'col': ('int32', 1)},
    **dict.fromkeys(('alive', 'own_loop', 'featureless'), ('bool', 1)),
    **dict.fromkeys(('classes', 'rowptr', 'labels'), ('int64', 1)),
    'salt': ('uint8', 1),
    **dict.fromkeys(('x', 'W', 'released'), ('float64', 2)),
}
# The same of the ids of the first nodes, where these are not their positions;
# nodes that came later have the ids after the largest one.
IDS: dict[str, tuple[str, int]] = {'ids': ('int64', 1)}
# The same of the lists of a release, before a removal that its noise covers.
COVERED: dict[str, tuple[str, int]] = {
    **{'rowptr': ('int64', 1), 'col': ('int64', 1), 'receivers': ('bool', 1)},
    **{'salts': ('uint8', 2), 'units': ('int64', 0), 'shift': ('float64', 0)},
    **{'grid': ('float64', 0), 'after': ('float64', 0)},
}
# The relation that covers what a request names.
KINDS = {'nodes': 'node', 'features': 'feature', 'labels': 'feature'}
KINDS |= {'edges': 'edge', 'directed_edges': 'edge'}
RESIDUAL = 'that the residual is within its bound'
# Products that a check computes at most; and how seldom noise is farther.
MOST_WORK, LEAST_CHANCE = 10**12, 1e-9
# The number of neighbouring nodes per item of a seal, and of items per hash.
BLOCK, ITEMS = 64, 1024


class Interval(NamedTuple):
    """Bounds of an unknown number.

    Args:
        least (float): the lower bound.
        most (float): the upper bound.
    """

    least: float
    most: float


class Proof(NamedTuple):
    r"""The findings of :func:`prove`.

    Args:
        num_train (int): :math:`n`.
        residual (Interval): bounds of the norm of the gradient.
        shift (float): :math:`m`, of the release over its noise.
    """

    num_train: int
    residual: Interval
    shift: float


class Features(NamedTuple):
    """Rows of features, and a bound of the norm of their rounding error.

    Args:
        Z (ndarray): float64, ``[n, d]``.
        error (float): at least the Frobenius norm of their error.
    """

    Z: np.ndarray
    error: float


def gamma(k: float) -> float:
    r"""Bound :math:`\gamma_k (1 + 2 \gamma_k)` from above, or by infinity."""
    # With k u <= .001 it is at most 1.001 * 1.0021 k u.
    return 1.01 * k * UNIT if k * UNIT <= 0.001 else math.inf


def norm(matrix: np.ndarray) -> float:
    """Bound the Frobenius norm from above."""
    flat = matrix.reshape(-1)
    return math.sqrt(flat @ flat) * (1 + gamma(flat.size + 4)) + TINY


def features(
    entries: np.ndarray,
    x: np.ndarray,
    rows: np.ndarray,
    weights: tuple[float, ...],
    a: float,
    b: float,
    self_loops: bool,
    along: bool = True,
    bits: int = 40,
) -> Features:
    r"""Propagate from scratch, by sums of integers: step 1.

    Args:
        entries (ndarray): int64, ``[2, num_entries]``: edges from the first
            to the second; an undirected one is there both ways; the degree of
            a node is how many leave it.
        x (ndarray): float64, ``[num_nodes, d]``.
        rows (ndarray): int64, ``[n]``: the rows that are asked for.
        weights (tuple[float, ...]): :math:`w_0, \ldots, w_L`, non-negative.
        a (float): the exponent of the receiver's degree.
        b (float): the exponent of the sender's degree.
        self_loops (bool): whether missing self-loops are added.
        along (bool): whether signals go along the edges, or against them.
            (default: :obj:`True`)
        bits (int): :math:`f`. (default: :obj:`40`)
    """
    count = len(x)
    source, target = entries
    if self_loops:
        bare = np.setdiff1d(np.arange(count), source[source == target])
        source = np.concatenate([source, bare])
        target = np.concatenate([target, bare])
    if len(np.unique(target * count + source)) < len(source):
        raise ValueError("'entries' needs every edge once")
    if not np.isfinite(x).all() or min(weights) < 0:
        raise ValueError("'x' and 'weights' need to be finite and positive")
    degree = np.bincount(source, minlength=count)
    ends = (target, source) if along else (source, target)
    matrix = csr_array((np.ones(len(source), int), ends), (count, count))
    receive, send = _power(degree, a)[:, None], _power(degree, b)[:, None]
    grid, known = 2.0**bits, {a, b} <= {0, 0.5, 1}
    q, Z = send * grid * x, weights[0] * x
    for weight in weights[1:]:
        q = np.rint(q)
        if (matrix @ np.abs(q)).max(initial=0) >= 2.0**62:
            return Features(Z[rows], math.inf)
        total = (matrix @ q.astype(np.int64)).astype(np.float64)
        Z = Z + weight * (receive / grid * total)
        q = receive * send * total
    return Features(Z[rows], 0.0 if known else math.inf)


def _power(degree: np.ndarray, exponent: float) -> np.ndarray:
    # d^-e: 0 at degree 0, but for the exponent 0, which gives ones.
    there = np.where(degree > 0, degree, 1).astype(np.float64)
    root = {0.5: np.sqrt(there), 1.0: there}.get(exponent)
    power = there**-exponent if root is None else 1 / root
    return power if exponent == 0 else np.where(degree > 0, power, 0.0)


def targets(labels: np.ndarray, num_classes: int, head: str) -> np.ndarray:
    """Encode classes as targets: two share an output, except for softmax."""
    first = 1 if num_classes == 2 and head != 'softmax' else 0
    hot = labels[:, None] == np.arange(first, num_classes)
    return np.where(hot, 1.0, 0.0 if head == 'softmax' else -1.0)


@np.errstate(over='ignore')  # 1 / inf is 0, to 300 digits
def slopes(margins: np.ndarray, targets: np.ndarray, head: str) -> np.ndarray:
    r"""Return the derivative :math:`G` of the loss by the margins: step 3."""
    if head == 'ovr':
        return -targets / (1 + np.exp(targets * margins))
    if head == 'softmax':
        power = np.exp(margins - margins.max(1, keepdims=True))
        return power / power.sum(1, keepdims=True) - targets
    return 2 * (margins - targets)


@np.errstate(all='ignore')  # what is not finite proves nothing
def residual(
    rows: Features, targets: np.ndarray, W: np.ndarray, lam: float, head: str
) -> Interval:
    r"""Bound :math:`\lVert \nabla L(W) \rVert_F`, by :math:`\beta`: step 4."""
    Z, error = rows
    (n, d), outputs = Z.shape, W.shape[1]
    allowed = (0, 1) if head == 'softmax' else (-1, 1)
    whole = head != 'softmax' or bool((targets.sum(1) == 1).all())
    if not (np.isin(targets, allowed).all() and whole):
        raise ValueError(f"'targets' needs to hold those of {head!r}")
    if not (np.isfinite(W).all() and np.isfinite(Z).all() and lam > 0):
        raise ValueError("'W', 'rows' and 'lam' need to be finite")
    mu = lam * n
    margins = Z @ W
    G = slopes(margins, targets, head)
    R = Z.T @ G + mu * W
    z, w, g, r = norm(Z), norm(W), norm(G), norm(R)
    margins_off = (gamma(d) * z + error) * w
    slope = UNIT * SLOPE[head](outputs) * math.sqrt(n)
    slopes_wrong = slope + LIPSCHITZ[head] * margins_off + 2 * UNIT * g
    hidden = (gamma(n) * z + error) * g + (z + error) * slopes_wrong
    hidden += gamma(4) * (mu * w + r)
    # The roundings of these twenty operations, and of r from below.
    beta = (r + hidden) * (1 + 2.0**-47) + TINY
    if not math.isfinite(beta):
        return Interval(0.0, math.inf)
    least = r * (1 - 3 * gamma(R.size + 4) - 2.0**-47) - hidden - 2 * TINY
    return Interval(max(0.0, least - hidden * 2.0**-47), beta)


def shift(beta: float, n: int, lam: float, W: np.ndarray, std: float) -> float:
    r"""Return :math:`m \ge \lVert W' - W^* \rVert_F / s`."""
    distance = beta / (lam * n)
    grid = math.sqrt(W.size) * std * 2.0**-33 + 2 * UNIT * norm(W)
    return (distance + grid) / std * (1 + 2.0**-47) + TINY


def together(shifts: list[float]) -> float:
    r"""Return :math:`\sqrt{\sum_j m_j^2}`, the shift of several releases.

    Gaussian mechanisms compose so, also where a request was chosen by looking
    at earlier releases, if each :math:`m_j` was fixed before release
    :math:`j` (Dong, Roth and Su 2022, corollary 2).
    """
    return math.hypot(*shifts) * (1 + 2.0**-50)


def check_kinds(
    arrays: Mapping[str, np.ndarray], kinds: Mapping[str, tuple[str, int]]
) -> None:
    """Refuse arrays of other names, dtypes or dimensions, or not finite."""
    for name in {*arrays, *kinds}:
        array, wanted = arrays.get(name), kinds.get(name)
        if array is None or wanted is None:
            raise ValueError(
                f'the array {name!r} is missing, or no part of it'
            )
        kind = array.dtype.name if array.dtype.kind != 'U' else 'str'
        if (kind, array.ndim) != wanted:
            raise ValueError(f'the array {name!r} is of another kind')
        if kind == 'float64' and not np.isfinite(array).all():
            raise ValueError(f'the array {name!r} is not finite')


def checked(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays that do not make a proof."""
    check_kinds(arrays, {**ARRAYS, **(IDS if 'ids' in arrays else {})})
    count, classes = len(arrays['x']), len(arrays['classes'])
    rowptr, col, labels = (arrays[k] for k in ('rowptr', 'col', 'labels'))
    single = classes == 2 and arrays['head'] != 'softmax'
    shape = arrays['x'].shape[1], 1 if single else classes
    sizes = {
        **dict.fromkeys(('alive', 'own_loop', 'featureless'), (count,)),
        **{'labels': (count,), 'rowptr': (count + 1,)},
        **{'salt': (32,), 'W': shape, 'released': shape},
    }
    for name, size in sizes.items():
        if arrays[name].shape != size:
            raise ValueError(f'the array {name!r} is of another size')
    inside = ((col >= 0) & (col < count)).all()
    good = (
        divides(rowptr, count, len(col)),
        inside,
        ((labels >= -1) & (labels < classes)).all(),
        classes > 1,
        len(arrays['weights']) and (arrays['weights'] >= 0).all(),
        str(arrays['head']) in LIPSCHITZ,
        min(arrays['lam'], arrays['std']) > 0,
        0 < arrays['bits'] <= 51,
        (labels >= 0).any(),
        # A removed node has no entries.
        inside and arrays['alive'][col].all(),
        (np.diff(rowptr) == 0)[~arrays['alive']].all(),
        (labels == -1)[~arrays['alive']].all(),
        not arrays['x'][~arrays['alive'] | arrays['featureless']].any(),
        'ids' not in arrays
        or (
            len({*arrays['ids'].tolist()}) == len(arrays['ids']) <= count
            and min(arrays['ids'], default=0) >= 0
        ),
    )
    if not all(good):
        raise ValueError('its numbers are out of range')


def setting(arrays: Mapping[str, np.ndarray]) -> str:
    """Digest the settings of a proof: head, propagation, penalty, noise."""
    names = 'weights', 'a', 'b', 'bits', 'self_loops', 'along', 'lam', 'std'
    return fingerprint(str(arrays['head']), *(arrays[n] for n in names))


def work(arrays: Mapping[str, np.ndarray]) -> int:
    """Estimate the number of products of a proof."""
    edges = len(arrays['col']) + 2 * len(arrays['x'])
    return 2 * len(arrays['weights']) * edges * arrays['x'].shape[1]


def prove(arrays: Mapping[str, np.ndarray]) -> Proof:
    """Bound the residual and the shift of a release, from scratch."""
    checked(arrays)
    rowptr, labels, head = arrays['rowptr'], arrays['labels'], arrays['head']
    sender = np.repeat(np.arange(len(labels)), np.diff(rowptr))
    rows = np.flatnonzero(labels >= 0)
    entries = np.stack([sender, arrays['col'].astype(np.int64)])
    weights = tuple(arrays['weights'].tolist())
    a, b, lam, std = (float(arrays[k]) for k in ('a', 'b', 'lam', 'std'))
    loops, along = bool(arrays['self_loops']), bool(arrays['along'])
    how = weights, a, b, loops, along, int(arrays['bits'])
    known = features(entries, arrays['x'], rows, *how)
    Y = targets(labels[rows], len(arrays['classes']), str(head))
    beta = residual(known, Y, arrays['W'], lam, str(head))
    m = shift(beta.most, len(rows), lam, arrays['W'], std)
    return Proof(len(rows), beta, m)


def sealed(arrays: Mapping[str, np.ndarray]) -> str:
    """Compute the digest of data, settings and release in a ledger's line."""
    rowptr, root = arrays['rowptr'], hashlib.sha256()
    kept = ('alive', 'own_loop', 'featureless', 'x', 'labels')
    hashes: list[bytes] = []
    for block in range(-(-len(arrays['x']) // BLOCK)):
        held = slice(block * BLOCK, (block + 1) * BLOCK)
        ends = rowptr[block * BLOCK : (block + 1) * BLOCK + 1]
        text = fingerprint(
            np.diff(ends),
            arrays['col'][ends[0] : ends[-1]],
            *(arrays[name][held] for name in kept),
        )
        digest = hashlib.sha256(text.encode()).digest()
        hashes.append(b'%d ' % block + digest)
    for at in range(0, len(hashes), ITEMS):
        part = hashlib.sha256(b''.join(hashes[at : at + ITEMS])).digest()
        root.update(b'%d ' % (at // ITEMS) + part)
    salt = arrays['salt'].tobytes()
    return fingerprint(
        'state',
        hmac.digest(salt, root.digest(), 'sha256').hex(),
        str(tuple(arrays['classes'].tolist())),
        bool(arrays['directed']),
        int(arrays['releases']),
        bool(arrays['secure']),
        setting(arrays),
        arrays['released'],
        *([arrays['ids']] if 'ids' in arrays else []),
    )


def _ids(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    first = arrays.get('ids', np.arange(0))
    later = len(arrays['alive']) - len(first)
    return np.append(first, np.arange(later) + max(first, default=-1) + 1)


def plausible(arrays: Mapping[str, np.ndarray]) -> float:
    r"""Return how likely noise leads from :math:`W` to the released weights.

    Two-sided, of the sum of squares: it is chi-squared.
    """
    off = (arrays['released'] - arrays['W']) / float(arrays['std'])
    half, square = off.size / 2, float((off**2).sum()) / 2
    law = scipy.special
    tails = law.gammainc(half, square), law.gammaincc(half, square)
    return 2 * float(min(tails))


def remaining(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the remaining graph with names, and the proof."""
    checked(arrays)
    alive, col, labels = (arrays[k] for k in ('alive', 'col', 'labels'))
    sender = np.repeat(np.arange(len(alive)), np.diff(arrays['rowptr']))
    # Without the self-loops that were added.
    kept = (sender != col) | arrays['own_loop'][sender]
    place, ids = np.cumsum(alive) - 1, _ids(arrays)
    return {
        'n_id': Tensor('torch.int64', ids[alive]),
        'x': Tensor('torch.float64', arrays['x'][alive]),
        'edge_index': Tensor(
            'torch.int64', place[np.stack([sender, col])[:, kept]]
        ),
        'trained': set(ids[labels >= 0].tolist()),
        'proof': arrays,
    }


def compare(
    arrays: Mapping[str, np.ndarray], claimed: Mapping[str, Any], paid: float
) -> Iterator[tuple[str, str]]:
    """Compare a claim with what is proved.

    Args:
        arrays (dict): arrays that :func:`checked` accepts.
        claimed (dict): fields of the report: ``'data'``, ``'model'``,
            ``'setting'``, ``'lam'``, ``'release_std'``, ``'seeded'``,
            ``'num_train'`` and ``'bound'``.
        paid (float): the shift that is paid for.
    """
    for name, what, digest in (
        ('data', 'graph and release', sealed(arrays)),
        ('model', 'weights', fingerprint('weight', arrays['released'])),
        ('setting', 'setting', setting(arrays)),
    ):
        status, same = FAILS, digest == claimed.get(name)
        if same or not claimed.get(name):
            status = HOLDS if same else NOT_PROVED
        yield (
            status,
            f'data: {what}, {"" if same else "not "}as the report has it',
        )
    lam, std, secure = (
        arrays[name].item() for name in ('lam', 'std', 'secure')
    )
    about = {'lam': lam, 'release_std': std, 'seeded': not secure}
    for name, value in about.items():
        if claimed[name] != value:
            yield FAILS, f'data: {name} {value}, {claimed[name]} is claimed'
    chance = plausible(arrays)
    yield (
        HOLDS if chance >= LEAST_CHANCE else FAILS,
        'data: the noise between the weights and those that were released is '
        f'as large as it should be (p {chance:.2g})',
    )
    bound = claimed['bound']
    if work(arrays) > MOST_WORK or bound == 0:
        yield NOT_PROVED, f'{RESIDUAL}: it takes too long, or has no bound'
        return
    n, beta, m = prove(arrays)
    status = NOT_PROVED
    if beta.least > bound or n != claimed['num_train']:
        status = FAILS
    elif beta.most <= bound and m <= paid:
        status = HOLDS
    yield (
        status,
        f'{RESIDUAL}: at most {beta.most:.6g}, {bound:.6g} is claimed, of {n} '
        f'training nodes; the release is shifted by at most {m:.6g}, '
        f'{paid:.6g} is paid for, if these are the weights that the noise was '
        'added to',
    )


# Removals that noise covers ##################################################


def root(x: Fraction | int, above: bool = True) -> Fraction:
    """Bound a square root from above or below, to 2^-80."""
    num, den = x.as_integer_ratio()
    return Fraction(math.isqrt((num << 160) // den) + above, 1 << 80)


def node_shift(
    ends: np.ndarray, gone: np.ndarray, most: int, grid: float = 0.0
) -> Fraction:
    r"""Bound :math:`\kappa` from above (docs/theory/forgetting.rst)."""
    lists, n = np.bincount(ends[0], minlength=len(gone)), len(gone)
    left = np.bincount(ends[0, ~gone[ends[1]]], minlength=n)
    cut = ~gone & (left < lists) & (left > 0)
    pairs = Counter(zip(lists[cut].tolist(), left[cut].tolist(), strict=True))
    total = int(gone.sum()) * root(most)
    for (d, k), count in pairs.items():
        # The root of k times the weight of a row: as it is now, as it was.
        now, then = root(min(k, most)), Fraction(k * min(d, most), d)
        total += count * (now - root(then, False) + Fraction(grid) * root(k))
    return total


def edge_shift(rows: np.ndarray) -> Fraction:
    r"""Bound :math:`\sqrt{\sum_r j_r^2}` of the rows that messages enter."""
    return root(sum(j * j for j in np.bincount(rows).tolist()))


def covered(
    arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
) -> tuple[int, Fraction, list[np.ndarray]]:
    """Return units and shift of a request, and the lists that it leaves."""
    (part,), relation = about['request'].values(), about['adjacency']
    n, degree = len(arrays['receivers']), np.diff(arrays['rowptr'])
    ends = np.stack([np.repeat(np.arange(n), degree), arrays['col']])
    if {KINDS[k] for k in part} != {relation.removesuffix('_incident')}:
        raise ValueError('the request is of another relation')
    nodes = {v for k in part if relation != 'edge' for v in part[k]}
    both = [e for u, v in part.get('edges', ()) for e in ((u, v), (v, u))]
    named = [*both, *part.get('directed_edges', ())]
    if not {*nodes}.union(*named) <= {*range(n)}:
        raise ValueError('the request names nodes that are not there')
    gone = np.isin(np.arange(n), [*nodes])
    cut = np.isin(ends[0] * n + ends[1], [u * n + v for u, v in named])
    units, grid = len(nodes), arrays['grid'].item()
    moved, most = units + 2 * Fraction(grid), about['max_degree'] or 1
    if relation == 'edge':
        pairs = {*map(frozenset, named)}
        units = int(cut.sum()) if about['directed'] else len(pairs)
        moved = edge_shift(ends[1, cut])
    elif relation == 'node_incident':
        each = (root(max(d, most)) for d in degree[gone].tolist())
        moved = sum(each, Fraction(0))
    elif relation == 'node':
        sums = arrays['receivers'][ends[1]]
        moved = node_shift(ends[:, sums], gone, most, grid)
    if relation != 'feature':
        cut |= gone[ends].any(0)
    degree = np.bincount(ends[0, ~cut], minlength=n)
    rowptr = np.cumsum([0, *degree.tolist()])
    return units, moved, [rowptr, arrays['col'][~cut]]


def compare_covered(
    arrays: Mapping[str, np.ndarray], claimed: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Compare a removal that noise covers with the lists before it."""
    check_kinds(arrays, COVERED)
    lists, n = [arrays['rowptr'], arrays['col']], len(arrays['receivers'])
    before, shift, grid, total = (
        arrays[k].item() for k in ('units', 'shift', 'grid', 'after')
    )
    inside = ((lists[1] >= 0) & (lists[1] < n)).all()
    sound = divides(lists[0], n, len(lists[1])) and inside
    if not sound or arrays['salts'].shape != (2, 32) or min(shift, grid) < 0:
        raise ValueError('its numbers are out of range')
    units, moved, left = covered(arrays, claimed)
    after = claimed['units'], claimed['shift']
    seals = ('before', *lists, before, shift), ('data', *left, after[0], total)
    for salt, (name, *parts) in zip(arrays['salts'], seals, strict=True):
        made = hmac.digest(salt, fingerprint(*parts).encode(), 'sha256').hex()
        alike = made == claimed[name]
        yield (
            HOLDS if alike else FAILS,
            f'{name}: the lists are {"" if alike else "not "}those it seals',
        )
    units, most = units + before, Fraction(shift) + moved
    yield (
        HOLDS if units <= after[0] and most <= total <= after[1] else FAILS,
        f'shift: {units} units move sums by at most {float(most):.6g}, if '
        f'these rows hold them; {after[1]:.6g} is claimed of {after[0]}',
    )
