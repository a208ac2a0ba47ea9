"""Bound how many targets one budget can break at once, by weak duality.

Any multipliers of the linear program bound how many targets break together
(weak duality). They are rounded down to units of 2^-p, and the rest is exact.
See docs/theory/proofs.rst.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse

from .accounting import FAILS, HOLDS, NOT_PROVED
from .arrays import divides

Matrix: TypeAlias = scipy.sparse.csr_array


class Attack(NamedTuple):
    """The changes of an attacker, and those at which each target breaks.

    Args:
        owner (ndarray): the target of each point, ``[num_points]``.
        points (ndarray): int64, ``[num_points, num_kinds]``.
        reach (list[csr_array]): M by kind, ``[num_targets, num_items]``.
        budget (list[int]): R by kind.
        caps (list[ndarray]): by kind, how often an item can change.
        additions (csr_array, optional): B, ``[num_targets, num_nodes]``: then
            added edges are one more kind, the last one of :obj:`points` and
            :obj:`budget`.
        attackers (int, optional): the most items of all :obj:`rows` together
            that can change.
        rows (list[int]): the kinds, by number, whose items are the nodes.
    """

    owner: np.ndarray
    points: np.ndarray
    reach: Sequence[Matrix]
    budget: Sequence[int]
    caps: Sequence[np.ndarray]
    additions: Matrix | None = None
    attackers: int | None = None
    rows: Sequence[int] = ()

    def within(self) -> 'Attack':
        """Leave out the points that no budget reaches."""
        kept = (self.points <= np.asarray(self.budget)).all(1)
        return self._replace(owner=self.owner[kept], points=self.points[kept])


class Program(NamedTuple):
    """max c x, such that A x <= h and 0 <= x <= u.

    Args:
        matrix (csr_array): A, of whole numbers, as all others.
        right (ndarray): h.
        gain (ndarray): c.
        upper (ndarray): u.
    """

    matrix: Matrix
    right: np.ndarray
    gain: np.ndarray
    upper: np.ndarray


def program(attack: Attack) -> Program:
    """Build the linear program of an attack."""
    owner, points, reach, budget, caps, additions, attackers, rows = attack
    who, place = np.unique(owner, return_inverse=True)
    one = scipy.sparse.csr_array(
        (np.ones(owner.size), (place, np.arange(owner.size))),
        shape=(who.size, owner.size),
    )
    blocks = _Blocks()
    kinds = range(len(reach))
    # 'y': points without additions; 'wide', below: those that need one.
    most = np.ones(owner.size)
    if additions is not None:
        most[points[:, -1] > 0] = 0.0
    blocks.add('y', most, gain=1.0)
    for kind in kinds:
        most = np.minimum(caps[kind], budget[kind])
        blocks.add(f'b{kind}', most)
        blocks.at_most(budget[kind], {f'b{kind}': _ones(most.size)})
        need = _needs(one, points[:, kind])
        blocks.at_most(0, {'y': need, f'b{kind}': -reach[kind][who]})
    each = {'y': one}
    if additions is not None:
        # Every added edge ends at a node that some target sees.
        near = additions[who]
        seen, place = np.unique(near.indices, return_inverse=True)
        near = scipy.sparse.csr_array(
            (near.data, place, near.indptr), shape=(who.size, seen.size)
        )
        blocks.add('wide', np.ones(owner.size), 1.0)
        blocks.add('ends', np.full(seen.size, budget[-1]))
        each['wide'] = one
        column = scipy.sparse.csr_array(np.ones((who.size, 1)))
        for kind in kinds:
            need, every = _needs(one, points[:, kind]), f'all{kind}'
            blocks.add(every, np.array([budget[kind]]))
            some = {f'b{kind}': -_ones(caps[kind].size)}
            blocks.at_most(0, {every: _ones(1), **some})
            blocks.at_most(0, {'y': need, 'wide': need, every: -column})
        blocks.at_most(0, {'wide': one, 'ends': -near})
        blocks.at_most(2 * budget[-1], {'ends': _ones(seen.size)})
    blocks.at_most(1, each)
    if attackers is not None:
        nodes = caps[rows[0]].size
        eye = scipy.sparse.csr_array(scipy.sparse.eye_array(nodes))
        blocks.add('x', np.ones(nodes))
        blocks.at_most(attackers, {'x': _ones(nodes)})
        for kind in rows:
            most = np.minimum(caps[kind], budget[kind])
            blocks.at_most(0, {f'b{kind}': eye, 'x': -_needs(eye, most)})
    return blocks.program()


def _ones(size: int) -> Matrix:
    return scipy.sparse.csr_array(np.ones((1, size)))


def _needs(one: Matrix, amount: np.ndarray) -> Matrix:
    return scipy.sparse.csr_array(one.multiply(amount.astype(float)))


class _Blocks:
    """A linear program over named blocks of variables, from 0 upward."""

    def __init__(self) -> None:
        self.upper: dict[str, np.ndarray] = {}
        self.gain: list[np.ndarray] = []
        self.rows: list[dict[str, Matrix]] = []
        self.right: list[np.ndarray] = []

    def add(self, name: str, upper: np.ndarray, gain: float = 0.0) -> None:
        """Add a block of variables, their bounds, and the gain of each."""
        self.upper[name] = upper.astype(float)
        self.gain.append(np.full(upper.size, gain))

    def at_most(self, right: int, rows: dict[str, Matrix]) -> None:
        """Add rows: each sum over blocks is at most :obj:`right`."""
        self.rows.append(rows)
        count = next(iter(rows.values())).shape[0]
        self.right.append(np.full(count, float(right)))

    def program(self) -> Program:
        """Return all rows and blocks."""
        empty = scipy.sparse.csr_array
        blocks = [
            [
                row.get(name, empty((right.size, upper.size)))
                for name, upper in self.upper.items()
            ]
            for row, right in zip(self.rows, self.right, strict=True)
        ]
        return Program(
            scipy.sparse.csr_array(scipy.sparse.block_array(blocks)),
            np.concatenate(self.right),
            np.concatenate(self.gain),
            np.concatenate(list(self.upper.values())),
        )


def value(multipliers: np.ndarray, linear: Program) -> Fraction:
    """Return the bound that any multipliers give."""
    each = (linear.matrix.data, linear.right, linear.gain, linear.upper)
    if not all((np.rint(x) == x).all() and abs(x).max() < 2**31 for x in each):
        raise ValueError('the program is not of whole numbers')
    if multipliers.shape != linear.right.shape:
        raise ValueError('the multipliers are of another program')
    held = np.where(
        (multipliers > 0) & np.isfinite(multipliers), multipliers, 0
    )
    # A sum over a column is below 2^61.
    matrix = linear.matrix.astype(np.int64).T
    column = int(abs(matrix).sum(1).max())
    top = max(float(held.max()), float(abs(linear.gain).max()), 1.0)
    most = math.frexp(top)[1] + column.bit_length()
    p = 60 - most
    units = np.floor(np.ldexp(held, p)).astype(np.int64)
    gain = np.floor(np.ldexp(-linear.gain, p)).astype(np.int64)
    spare = np.maximum(-gain - matrix @ units, 0).tolist()
    total = sum(
        int(weight) * unit
        for weights, amounts in (
            (linear.right, units.tolist()),
            (linear.upper, spare),
        )
        for weight, unit in zip(weights, amounts, strict=True)
    )
    return Fraction(total) / Fraction(2) ** p


# The witness of a certificate ###############################################


def prove(arrays: Mapping[str, np.ndarray]) -> Fraction:
    """Bound how many targets break together, from a witness."""
    attack = read(arrays).within()
    if not len(attack.owner):
        return Fraction(0)
    broken = len(np.unique(attack.owner))
    return min(value(arrays['multipliers'], program(attack)), Fraction(broken))


def read(arrays: Mapping[str, np.ndarray]) -> Attack:
    """Return the attack of a witness.

    Args:
        arrays (dict): ``owner``, ``points``, ``budget``, ``num_targets``,
            ``multipliers``, ``attackers`` (-1 without) and ``rows``; by kind
            ``caps0`` and so on, with ``ptr0`` and ``items0`` of what is
            seen; with added edges ``near_ptr``, ``near`` and ``num_nodes``.
    """
    kinds = sum(name.startswith('caps') for name in arrays)
    names = ['owner', 'points', 'budget', 'num_targets', 'multipliers']
    names += ['attackers', 'rows']
    names += [
        f'{x}{i}' for i in range(kinds) for x in ('caps', 'ptr', 'items')
    ]
    added = 'near' in arrays
    names += ['near_ptr', 'near', 'num_nodes'] * added
    if set(arrays) != set(names) or any(
        arrays[x].dtype != (np.float64 if x == 'multipliers' else np.int64)
        or (x != 'multipliers' and (arrays[x] < -(x == 'attackers')).any())
        for x in names
    ):
        raise ValueError('the witness has other arrays than a certificate')
    budget, points = arrays['budget'], arrays['points']
    count = int(arrays['num_targets'])
    if (
        points.shape != (len(arrays['owner']), kinds + added)
        or len(budget) != kinds + added
    ):
        raise ValueError('the witness holds points of other kinds')
    rows, most = arrays['rows'].tolist(), int(arrays['attackers'])
    if (
        any(kind >= kinds for kind in rows)
        or (arrays['owner'] >= count).any()
        or (most >= 0 and not rows)
    ):
        raise ValueError('the witness has no such kinds or targets')
    seen = [
        _matrix(arrays[f'ptr{i}'], arrays[f'items{i}'], count, x.size)
        for i, x in ((i, arrays[f'caps{i}']) for i in range(kinds))
    ]
    near = None
    if added:
        size = int(arrays['num_nodes'])
        near = _matrix(arrays['near_ptr'], arrays['near'], count, size)
    return Attack(
        *(arrays['owner'], points, seen, budget.tolist()),
        [arrays[f'caps{i}'] for i in range(kinds)],
        near,
        None if most < 0 else most,
        rows,
    )


def _matrix(
    ptr: np.ndarray, items: np.ndarray, count: int, size: int
) -> Matrix:
    sound = (
        divides(ptr, count, len(items))
        and (items < size).all()
        and size <= 2**26
    )
    if not sound:
        raise ValueError('the witness holds no fields of targets')
    return scipy.sparse.csr_array(
        (np.ones(len(items)), items, ptr), shape=(count, size)
    )


def judge(
    arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], most: float
) -> Iterator[tuple[str, str]]:
    """Prove the fields of a certificate: yield a status and a text each."""
    bound = prove(arrays)
    yield (
        HOLDS if bound <= values['bound'] else NOT_PROVED,
        f'witness: at most {float(bound):.6g} break together, '
        f'{values["bound"]:.6g} is claimed, if its targets see and bear what '
        'it has of them',
    )
    for text in differences(arrays, values):
        yield FAILS, f'witness: {text}'


def differences(
    arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]
) -> Iterator[str]:
    """List the fields of a certificate that differ from its witness."""
    edges, features = values['edges'], values['features']
    limits = [*features, edges[1], edges[0]]
    most = int(arrays['attackers'])
    for name, held, claimed in (
        ('num_targets', int(arrays['num_targets']), values['num_targets']),
        ('attackers', None if most < 0 else most, values['attackers']),
        ('budget', arrays['budget'].tolist(), [r for r in limits if r]),
        # Kinds are features, deleted edges, added ones.
        ('rows', arrays['rows'].tolist(), [*range(sum(map(bool, features)))]),
        ('near', 'near' in arrays, edges[0] > 0),
    ):
        if held != claimed:
            yield f'{name} is {held!r}, {claimed!r} is claimed'
    broken = len(np.unique(read(arrays).within().owner))
    if values['one_by_one'] > values['counted'] - broken:
        yield f'{broken} of {values["counted"]} do not stay one by one'
