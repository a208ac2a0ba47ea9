"""Exact certificates, proved from what a witness holds.

A target keeps its class y if for every other class c the score of the signal
:math:`H_c - H_y` is below all rounding in all admissible graphs
(:func:`.pagerank.bound`, and :func:`.pagerank.bound_within` under a global
budget). It is broken if one graph, made by flips that are looked up, has a
score of :math:`H_y - H_c` below all rounding. Whatever numbers the witness
holds, a status that is returned is true: they decide only how much is proved.
"""

import hashlib
import io
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from .accounting import FAILS, HOLDS, NOT_PROVED
from .arrays import divides, read_arrays, widened
from .pagerank import (
    KINDS,
    TOLERANCE,
    Graphs,
    Model,
    bound,
    bound_within,
    check,
    reach,
    rows,
    sizes,
    slack,
)

ROBUST, UNKNOWN, BROKEN = 1, 0, -1
# Numbers that a checker looks at before it gives up: some minutes.
MOST = 2**31
# Float steps that look for a vector of one graph.
STEPS = 10_000
# Flips that a file may hold as bits.
MOST_FLIPS = 2**26

# The name, dimensions and dtype of each array of a witness.
ARRAYS = {
    **dict.fromkeys(('rowptr', 'col', 'budget'), (1, 'i8')),
    **dict.fromkeys(('targets', 'reference'), (1, 'i8')),
    **dict.fromkeys(('flips_ptr', 'flips_of'), (1, 'i8')),
    **dict.fromkeys(('pairs', 'classes', 'columns'), (2, 'i8')),
    **dict.fromkeys(('charged', 'flips'), (2, 'i8')),
    **dict.fromkeys(('logits', 'scores', 'values'), (2, 'f8')),
    **dict.fromkeys(('reach', 'upper', 'shares'), (2, 'f8')),
    **dict.fromkeys(('K', 'global_budget'), (0, 'i8')),
    **dict.fromkeys(('alpha', 'tolerance'), (0, 'f8')),
    **dict.fromkeys(('all_pairs', 'undirected', 'self_loops'), (0, 'b1')),
    **dict.fromkeys(('normalization', 'dtype'), (0, 'U')),
    'multipliers': (1, 'f8'),
    'removable': (1, 'b1'),
}


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Digest names, kinds, shapes and bytes by SHA-256."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        sha.update(f'{name} {value.dtype.str} {value.shape} '.encode())
        sha.update(value.tobytes())
    return sha.hexdigest()


def load(path: str | Path | io.BytesIO) -> dict[str, np.ndarray]:
    """Read a witness from a file, in which numbers may be narrow.

    ``flips.bits`` holds a row of bits for each graph, one for each of
    :func:`fragile`, and becomes ``flips`` and ``flips_ptr``.
    """
    arrays = widened(read_arrays(path))
    packed = arrays.pop('flips.bits', None)
    if packed is None:
        return arrays
    graphs = attacker(arrays)
    edges = fragile(graphs)
    if packed.dtype != np.uint8 or packed.shape[1:] != (-(-len(edges) // 8),):
        raise ValueError('the witness holds flips of other edges')
    bits = np.unpackbits(packed, axis=1, count=len(edges))
    if int(bits.sum()) > MOST_FLIPS:
        raise ValueError('the witness holds too many flips')
    arrays['flips_ptr'] = np.cumsum([0, *bits.sum(1).tolist()])
    key = edges[np.nonzero(bits)[1]]
    arrays['flips'] = np.stack(np.divmod(key, len(graphs.budget)))
    return arrays


def fragile(graphs: Graphs) -> np.ndarray:
    """List the edges that may flip: numbers ``i * n + j`` that rise."""
    n, row = len(graphs.budget), rows(graphs)
    gone = (row * n + graphs.col)[graphs.removable]
    come = graphs.pairs[0] * n + graphs.pairs[1]
    return np.sort(np.concatenate([gone, come]))


def known(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return an array of a witness; check its dimensions and dtype."""
    (dim, kind), array = ARRAYS[name], arrays.get(name, np.array(None))
    if array.ndim != dim or not array.dtype.str[1:].startswith(kind):
        raise ValueError(f'the witness holds another array as {name!r}')
    if kind == 'f8' and not np.isfinite(array).all():
        raise ValueError(f'the witness holds NaN or infinity in {name!r}')
    return array


def attacker(arrays: Mapping[str, np.ndarray]) -> Graphs:
    """Return the graphs of a witness, checked."""
    parts: list[Any] = [known(arrays, name) for name in Graphs._fields]
    graphs = Graphs(*parts)._replace(all_pairs=bool(parts[-1]))
    check(graphs)
    return graphs


def read(arrays: Mapping[str, np.ndarray]) -> tuple[Graphs, Model]:
    """Return the graphs and the model of a witness."""
    if set(arrays) != set(ARRAYS):
        raise ValueError(
            'the witness has other arrays than those of a certificate of '
            'this version: certify again'
        )
    for name in ARRAYS:
        known(arrays, name)
    graphs, logits = attacker(arrays), arrays['logits']
    n = len(graphs.budget)
    K, normalization = int(arrays['K']), str(arrays['normalization'])
    alpha = float(arrays['alpha'])
    model = Model(alpha, None if K < 0 else K, normalization)
    kinds = TOLERANCE if K < 0 else KINDS
    pairs, columns = arrays['classes'], arrays['columns']
    charged, flips_of = arrays['charged'], arrays['flips_of']
    count, many, kept = len(arrays['targets']), columns.shape[1], K < 0
    graphs_found = len(arrays['flips_ptr']) - 1
    shapes = {
        'logits': (n, max(2, logits.shape[1])),
        'classes': (2, pairs.shape[1]),
        'scores': (kept * pairs.shape[1], n),
        'reference': (count,),
        'columns': (3, many),
        'multipliers': (many,),
        'values': (kept * many, n),
        'charged': (2, charged.shape[1]),
        'reach': (charged.shape[1], n),
        'upper': (many, charged.shape[1]),
        'flips': (2, arrays['flips'].shape[1]),
        'flips_of': (count,),
    }
    shares = many, len(graphs.col) + graphs.pairs.shape[1]
    classes = logits.shape[1]
    limits = [
        *((arrays['targets'], 0, n), (arrays['reference'], 0, classes)),
        *((pairs, 0, classes), (columns[:1], 0, count)),
        *((columns[1:2], 0, classes), (columns[2:], 0, 2)),
        *((charged[:1], 0, n), (charged[1:], 0, 2)),
        *((arrays['flips'], 0, n), (flips_of, -1, graphs_found)),
    ]
    sound = (
        all(arrays[name].shape == shape for name, shape in shapes.items())
        and arrays['shares'].shape in ((0, 0), shares)
        and not (arrays['shares'].size and not bool(arrays['undirected']))
        and all(((x >= low) & (x < top)).all() for x, low, top in limits)
        and divides(
            arrays['flips_ptr'], graphs_found, arrays['flips'].shape[1]
        )
        and normalization in ('rw', 'sym')
        and 0 < alpha < 1
        and str(arrays['dtype']) in ('exact arithmetic', *kinds)
        and float(arrays['tolerance']) >= 0
        and (arrays['upper'] > 0).all()
        and (not many or int(arrays['global_budget']) >= 0)
    )
    if not sound:
        raise ValueError('the witness holds no targets of a model')
    return graphs, model


def work(
    arrays: Mapping[str, np.ndarray], graphs: Graphs, model: Model
) -> int:
    """Estimate how many numbers a proof reads."""
    degree, (small, large) = np.diff(graphs.rowptr), sizes(graphs)
    lost, won = degree - small, large - degree
    numbers = len(graphs.col) + graphs.pairs.shape[1] + len(degree)
    ways = (1 + int(lost.max())) * (1 + int(won.max()))
    each = int(((1 + lost) * (1 + won)).sum()) + numbers + 500 * ways
    if graphs.all_pairs:
        each += int((500 + degree + won)[graphs.budget > 0].sum())
    if arrays['shares'].size:
        each += numbers * (int(lost.max()) + int(won.max()))
    steps = 1 if model.K is None else model.K
    columns = arrays['classes'].shape[1] + arrays['columns'].shape[1]
    count = columns * steps + arrays['charged'].shape[1]
    graphs_tried = len(np.unique(arrays['flips_of']))
    return count * each + graphs_tried * tries(model) * numbers


def tries(model: Model) -> int:
    """Count the steps that compute the scores of a graph."""
    if model.K is not None:
        return model.K
    return math.ceil(min(40 / model.alpha, STEPS))


def prove(
    arrays: Mapping[str, np.ndarray], most: float = math.inf
) -> list[int]:
    """Prove that targets are robust (1) or broken (-1); 0 is neither.

    Args:
        arrays (dict): the attacker (``rowptr``, ``col``, ``removable``,
            ``budget``, ``pairs``, ``all_pairs``, ``undirected``,
            ``global_budget``, -1 without), the model (``alpha``, ``K``, -1
            for the limit, ``normalization``, ``self_loops``, ``dtype``,
            ``logits``) and the ``tolerance`` of ``targets`` and
            ``reference``. With them ``scores`` of pairs of ``classes``
            (defended, other); ``columns`` of a target's place, another class
            and the cost (1 for visits), with ``multipliers``, ``values``
            and ``shares``; ``charged`` rows and their cost, with vectors of
            ``reach`` and, for every column, ``upper``; and ``flips`` of
            graphs, ``flips_of`` targets. None for K steps are ``scores`` and
            ``values``.
        most (float): the work to be done; OverflowError if it is more.
    """
    graphs, model = read(arrays)
    if work(arrays, graphs, model) > most:
        raise OverflowError(
            'the proof takes minutes: prove it by report.verify(witness)'
        )
    need = Fraction(float(arrays['tolerance']))
    margins = lower(arrays, graphs, model)
    count = arrays['logits'].shape[1]
    status = [
        ROBUST
        if len(margin) == count - 1 and min(margin.values()) > need
        else UNKNOWN
        for margin in margins
    ]
    for place in attacked(arrays, graphs, model, need):
        status[place] = BROKEN
    return status


def slacks(
    arrays: Mapping[str, np.ndarray], graphs: Graphs, model: Model
) -> list[Fraction]:
    """Bound how far computed scores may be off, by class."""
    degree, kind = int(sizes(graphs)[1].max()), str(arrays['dtype'])
    top = np.abs(arrays['logits']).max(0).tolist()
    return [slack(kind, model, degree, h) for h in top]


def lower(
    arrays: Mapping[str, np.ndarray], graphs: Graphs, model: Model
) -> list[dict[int, Fraction]]:
    """Bound the margins of targets over other classes from below."""
    logits, limit = arrays['logits'], model.K is None
    targets, held = arrays['targets'], arrays['reference']
    off = slacks(arrays, graphs, model)
    margins: list[dict[int, Fraction]] = [{} for _ in held]

    def keep(place: int, other: int, score: Fraction) -> None:
        margin = -score - off[other] - off[int(held[place])]
        known = margins[place].get(other, margin)
        margins[place][other] = max(margin, known)

    for i, (y, c) in enumerate(arrays['classes'].T.tolist()):
        witness = arrays['scores'][i] if limit else None
        above, p = bound(graphs, model, logits[:, c], logits[:, y], witness)
        for place in np.flatnonzero((held == y) & (y != c)).tolist():
            keep(place, c, Fraction(above[targets[place]]) / Fraction(2) ** p)
    columns = arrays['columns'].T.tolist()
    nodes = targets[arrays['columns'][0]]
    upper = reached(arrays, graphs, model, nodes)
    budget, shared = int(arrays['global_budget']), arrays['shares'].size > 0
    for i, (place, c, visits) in enumerate(columns):
        y = int(held[place])
        if c == y:
            continue
        part = arrays['shares'][i] if shared and not visits else None
        directed = bool(arrays['undirected']) and part is None
        score = bound_within(
            *(graphs, model, logits[:, c], logits[:, y]),
            arrays['values'][i] if limit else None,
            int(nodes[i]),
            float(arrays['multipliers'][i]),
            upper[visits][i],
            *(budget * (1 + directed), bool(visits), part),
        )
        keep(place, c, score)
    return margins


def reached(
    arrays: Mapping[str, np.ndarray],
    graphs: Graphs,
    model: Model,
    nodes: np.ndarray,
) -> np.ndarray:
    """Prove bounds of PageRank (0) and visits (1) of columns.

    Returns:
        ndarray: float64, ``[2, num_columns, num_nodes]``, infinite where
        nothing is proved.
    """
    bounds = np.full((2, len(nodes), len(graphs.budget)), np.inf)
    for j, (row, visits) in enumerate(arrays['charged'].T.tolist()):
        proved, p = reach(
            *(graphs, model.alpha, row, arrays['reach'][j], bool(visits))
        )
        claimed = np.minimum(arrays['upper'][:, j], 2.0)
        most = np.floor(np.ldexp(claimed, p)).astype(np.int64)
        good = np.array(proved, dtype=object)[nodes] <= most
        bounds[visits, good, row] = claimed[good]
    return bounds


def flipped(
    graphs: Graphs, flips: np.ndarray, most: int, undirected: bool
) -> Graphs:
    """Return the graph after flips, without an attacker."""
    n, (i, j) = len(graphs.budget), flips
    edge, key = rows(graphs) * n + graphs.col, i * n + j
    new = ~np.isin(key, edge)
    free = i != j
    if not graphs.all_pairs:
        free = np.isin(key, graphs.pairs[0] * n + graphs.pairs[1])
    count = len(key)
    sound = (
        len(np.unique(key)) == count
        and np.isin(key[~new], edge[graphs.removable]).all()
        and free[new].all()
        and (np.bincount(i, minlength=n) <= graphs.budget).all()
    )
    if undirected:
        sound = sound and np.isin(j * n + i, key).all()
        count = (count + int((i == j).sum())) // 2
    if not sound or count > most >= 0:
        raise ValueError('the witness holds flips that no attacker has')
    edges = np.setxor1d(edge, key)
    rowptr = np.cumsum([0, *np.bincount(edges // n, minlength=n).tolist()])
    none = np.zeros(len(edges), dtype=bool)
    return Graphs(
        *(rowptr, edges % n, none, 0 * graphs.budget),
        *(np.zeros((2, 0), dtype=np.int64), False),
    )


def attacked(
    arrays: Mapping[str, np.ndarray],
    graphs: Graphs,
    model: Model,
    need: Fraction,
) -> Iterator[int]:
    """Find the targets that change their class in a graph of the attacker."""
    logits, ptr = arrays['logits'], arrays['flips_ptr']
    targets, held = arrays['targets'].tolist(), arrays['reference'].tolist()
    off = slacks(arrays, graphs, model)
    of = arrays['flips_of']
    for which in np.unique(of[of >= 0]).tolist():
        one = flipped(
            graphs,
            arrays['flips'][:, ptr[which] : ptr[which + 1]],
            int(arrays['global_budget']),
            bool(arrays['undirected']),
        )
        guess = scores(one, model, logits)
        known: dict[tuple[int, int], tuple[list[int], int]] = {}
        for place in np.flatnonzero(of == which).tolist():
            u, y = targets[place], held[place]
            rest = guess[u].copy()
            rest[y] = -np.inf
            c = int(rest.argmax())
            if (y, c) not in known:
                known[y, c] = bound(
                    *(one, model, logits[:, y], logits[:, c]),
                    guess[:, y] - guess[:, c],
                )
            proved, p = known[y, c]
            score = Fraction(proved[u]) / Fraction(2) ** p
            if score + off[y] + off[c] < -need:
                yield place


def scores(graphs: Graphs, model: Model, logits: np.ndarray) -> np.ndarray:
    """Estimate the scores of one graph; proofs hold for any numbers."""
    degree = np.diff(graphs.rowptr)
    full = np.maximum(degree, 1)
    signal = logits
    if model.normalization == 'sym':
        signal = logits / np.sqrt(full)[:, None]
    part = np.repeat((1 - model.alpha) / full, degree)
    step = scipy.sparse.csr_array(
        (part, graphs.col, graphs.rowptr), shape=(len(full), len(full))
    )
    z = signal
    for _ in range(tries(model)):
        z = model.alpha * signal + step @ z
    return z


# What a report says of it ###################################################


def judge(
    arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], most: float
) -> Iterator[tuple[str, str]]:
    """Prove the fields of a certificate: yield a status and a text each."""
    status, total = prove(arrays, most), len(arrays['targets'])
    for text in differences(arrays, values):
        yield FAILS, f'witness: {text}'
    for name, is_, other, text in (
        ('num_robust', ROBUST, BROKEN, 'stay'),
        ('num_broken', BROKEN, ROBUST, 'be broken'),
    ):
        claimed, proved = values[name], status.count(is_)
        wrong = claimed > total - status.count(other)
        yield (
            FAILS if wrong else HOLDS if claimed <= proved else NOT_PROVED,
            f'witness: {proved} of {total} are proved to {text}, {claimed} '
            'are claimed',
        )


def differences(
    arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]
) -> Iterator[str]:
    """List the fields of a certificate that differ from its witness."""
    K, most = int(arrays['K']), int(arrays['global_budget'])
    graphs = attacker(arrays)
    n, row = len(graphs.budget), rows(graphs)
    about = {
        'targets': len(arrays['targets']),
        'K': None if K < 0 else K,
        'global_budget': None if most < 0 else most,
        'max_local_budget': int(graphs.budget.max()),
        'sum_local_budget': int(graphs.budget.sum()),
        'num_nodes': n,
        'fixed_edges': int((~arrays['removable']).sum()),
    }
    names = ('alpha', 'tolerance', 'normalization', 'dtype', 'undirected')
    for name in (*names, 'self_loops'):
        about[name] = arrays[name].item()
    for name, held in about.items():
        if values[name] != held:
            yield f'{name} is {held!r}, {values[name]!r} is claimed'
    loops = (row == graphs.col) & ~graphs.removable
    if values['self_loops'] and loops.sum() < n:
        yield 'self_loops is claimed, and there are rows without'
    if len(set(arrays['targets'].tolist())) < len(arrays['targets']):
        yield 'a target is there twice'
    absent = n * (n - 1) - int((row != graphs.col).sum())
    listed = int((graphs.pairs[0] != graphs.pairs[1]).sum())
    addable = absent if graphs.all_pairs else listed
    if values['scenario'] in ('additions', 'both') and addable < absent:
        yield (
            f'{addable} of {absent} absent edges can be added, '
            f'{values["scenario"]!r} is claimed'
        )
