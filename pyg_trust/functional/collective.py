r"""Collective certificates: the damage of one budget to many nodes at once.

`"Collective Robustness Certificates"
<https://openreview.net/forum?id=ULQdiUTHe3y>`_ (Schuchardt, Bojchevski,
Klicpera and Günnemann 2021), with a tighter relaxation, a bound that does not
trust the solver, and receptive fields that know of degrees.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import scipy.sparse
from torch import Tensor

from pyg_trust._checks import check_integer

Matrix: TypeAlias = scipy.sparse.csr_array


def receptive_field(edge_index: Tensor, num_nodes: int, hops: int) -> Matrix:
    """Mark the nodes whose features reach each target in K rounds.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``.
        num_nodes (int): the number of nodes.
        hops (int): the number of rounds, 0 for the node itself alone.

    Returns:
        scipy.sparse.csr_array: ``[num_nodes, num_nodes]``, ones.
    """
    check_integer('hops', hops, 0)
    source, target = edge_index.numpy()
    eye = scipy.sparse.eye_array(num_nodes, format='csr')
    step = eye + scipy.sparse.csr_array(
        (np.ones(source.size), (target, source)), shape=(num_nodes, num_nodes)
    )
    reach = eye
    for _ in range(hops):
        reach = scipy.sparse.csr_array(reach @ step)
        reach.data[:] = 1
    return reach


def edge_field(field: Matrix, edges: Tensor) -> Matrix:
    """Mark the edges with at least one end in a target's receptive field.

    For layers whose messages are weighted by the *source's* degree (GCN, SGC,
    APPNP) the field is that of all rounds: the deletion of an edge between
    distance :math:`L` and :math:`L + 1` changes a degree within. For layers
    that are normalized at the target alone it is that of one round less.

    Args:
        field (scipy.sparse.csr_array): of :func:`receptive_field`.
        edges (Tensor): int64, ``[2, num_items]``.

    Returns:
        scipy.sparse.csr_array: ``[num_nodes, num_items]``, ones.
    """
    u, v = edges.numpy()
    item = np.arange(u.size)
    ends = scipy.sparse.csr_array(
        (
            np.ones(2 * u.size),
            (np.concatenate([u, v]), np.concatenate([item, item])),
        ),
        shape=(field.shape[0], u.size),
    )
    reach = scipy.sparse.csr_array(field @ ends)
    reach.data[:] = 1
    return reach


def frontier(certified: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest budgets at which each target is not certified.

    Args:
        certified (numpy.ndarray): bool, ``[num_targets, R_1 + 1, ...]``, by
            budget of each kind.

    Returns:
        tuple[numpy.ndarray, numpy.ndarray]: whose points they are,
        ``[num_points]``, and their budgets, ``[num_points, num_kinds]``.
    """
    closed = certified.copy()
    for axis in range(1, closed.ndim):
        closed = np.logical_and.accumulate(closed, axis=axis)
    smallest = ~closed
    for axis in range(1, closed.ndim):
        # Certified with one change less of this kind, or without any.
        before = np.ones_like(closed)
        rest = [slice(None)] * closed.ndim
        less = rest.copy()
        rest[axis], less[axis] = slice(1, None), slice(None, -1)
        before[tuple(rest)] = closed[tuple(less)]
        smallest &= before
    points = np.argwhere(smallest)
    return points[:, 0], points[:, 1:]


def broken_bound(
    owner: np.ndarray,
    points: np.ndarray,
    reach: Sequence[Matrix],
    budget: Sequence[int],
    caps: Sequence[np.ndarray],
    num_targets: int,
    *,
    additions: Matrix | None = None,
    attackers: int | None = None,
    rows: Sequence[int] = (),
    exact: bool = False,
    time_limit: float = 60.0,
) -> float:
    r"""Bound from above how many targets one budget can break at once.

    Target :math:`v` breaks only if what it sees reaches a point :math:`p` of
    its frontier. With :math:`b_{d i}` changes of kind :math:`d` at item
    :math:`i`,

    .. math::
        \max \sum_{v, p} y_{v p} \quad \text{s.t.} \quad
        \sum_p y_{v p} \le 1, \quad
        \sum_p p_d y_{v p} \le \sum_i M^d_{v i} b_{d i}, \quad
        \sum_i b_{d i} \le R_d, \quad 0 \le b \le u, \; 0 \le y \le 1.

    The points of a node share what it sees, where the published relaxation
    counts it once for each. The solver's objective is not used: from its
    multipliers :math:`\lambda`, clipped at 0,

    .. math::
        \lambda^\top h + \sum_j u_j \max(0, c_j - (A^\top \lambda)_j)

    is a bound for any :math:`\lambda \ge 0`.

    **Added edges** (:obj:`additions`). With noise that only deletes, all
    that :math:`v` can see lies within its rounds of messages, unless one of
    :math:`a` added edges has an end there: on a path from what :math:`v` sees
    to :math:`v`, look at the added edge that is the nearest to :math:`v`.
    From then on it may see every change. So each point :math:`p` has a second
    variable :math:`y'_{v p}`, without :math:`M`, that asks for an added edge
    also where :math:`p` has none (a deletion far away counts once an added
    edge leads there):

    .. math::
        \sum_p y_{v p} + y'_{v p} \le 1, \quad
        \sum_p p_d (y_{v p} + y'_{v p}) \le \sum_i b_{d i}, \quad
        \sum_p \max(1, p_a) y'_{v p} \le a, \quad
        \sum_p y'_{v p} \le \sum_{i \in B_v} e_i, \quad
        \sum_i e_i \le 2 a, \quad e_i \le a \le R_a.

    Args:
        owner (numpy.ndarray): whose points they are, ``[num_points]``.
        points (numpy.ndarray): int, ``[num_points, num_kinds]``.
        reach (list[csr_array]): by kind, ``[num_targets, num_items]``.
        budget (list[int]): by kind, :math:`R_d`.
        caps (list[numpy.ndarray]): by kind, ``[num_items]``: how often an item
            can change.
        num_targets (int): the number of targets.
        additions (scipy.sparse.csr_array, optional): at which nodes
            :math:`B_v` the ends of added edges are seen, ``[num_targets,
            num_nodes]``. Then added edges are one more kind, the last column
            of :obj:`points` and the last :obj:`budget`, which :obj:`reach`
            and :obj:`caps` don't have. (default: :obj:`None`)
        attackers (int, optional): the most items of all :obj:`rows` together
            that can change. (default: :obj:`None`)
        rows (list[int]): the kinds, by number, whose items are the nodes.
            (default: :obj:`()`)
        exact (bool): whether to solve the integer program, up to a time
            limit; its dual bound is returned. (default: :obj:`False`)
        time_limit (float): in seconds. (default: :obj:`60.0`)

    Returns:
        float: the bound; at most its floor, with 1e-6 to spare, can break.
    """
    within = (points <= np.asarray(budget)).all(1)
    owner, points = owner[within], points[within]
    if owner.size == 0:
        return 0.0
    who, place = np.unique(owner, return_inverse=True)
    one = scipy.sparse.csr_array(
        (np.ones(owner.size), (place, np.arange(owner.size))),
        shape=(who.size, owner.size),
    )
    program = _Program()
    kinds = range(len(reach))
    near = np.ones(owner.size)
    if additions is not None:
        # A point that needs an added edge is reached by that edge alone.
        near[points[:, -1] > 0] = 0.0
    program.add('y', near, gain=1.0)
    for kind in kinds:
        most = np.minimum(caps[kind], budget[kind])
        program.add(f'b{kind}', most)
        program.at_most(float(budget[kind]), {f'b{kind}': _ones(most.size)})
        program.at_most(
            np.zeros(who.size),
            {'y': _needs(one, points[:, kind]), f'b{kind}': -reach[kind][who]},
        )
    each = {'y': one}
    if additions is not None:
        program.add('wide', float(budget[-1] > 0) * np.ones(owner.size), 1.0)
        program.add('added', np.array([float(budget[-1])]))
        ends = np.full(additions.shape[1], float(budget[-1]))
        program.add('ends', ends)
        each['wide'] = one
        column = scipy.sparse.csr_array(np.ones((who.size, 1)))
        for kind in kinds:
            need = _needs(one, points[:, kind])
            program.add(f'all{kind}', np.array([float(budget[kind])]))
            program.at_most(
                0.0, {f'all{kind}': _ones(1), f'b{kind}': -_ones(caps[kind])}
            )
            program.at_most(
                np.zeros(who.size),
                {'y': need, 'wide': need, f'all{kind}': -column},
            )
        need = _needs(one, np.maximum(points[:, -1], 1))
        program.at_most(np.zeros(who.size), {'wide': need, 'added': -column})
        program.at_most(
            np.zeros(who.size), {'wide': one, 'ends': -additions[who]}
        )
        program.at_most(0.0, {'ends': _ones(ends), 'added': -2 * _ones(1)})
    program.at_most(np.ones(who.size), each)
    if attackers is not None:
        program.add('x', np.ones(caps[rows[0]].size))
        program.at_most(float(attackers), {'x': _ones(caps[rows[0]])})
        for kind in rows:
            most = np.minimum(caps[kind], budget[kind])
            program.at_most(
                np.zeros(most.size),
                {
                    f'b{kind}': scipy.sparse.eye_array(most.size).tocsr(),
                    'x': -scipy.sparse.diags_array(most).tocsr(),
                },
            )
    return min(program.bound(exact, time_limit), float(who.size))


def _ones(size: int | np.ndarray) -> Matrix:
    count = size if isinstance(size, int) else size.size
    return scipy.sparse.csr_array(np.ones((1, count)))


def _needs(one: Matrix, amount: np.ndarray) -> Matrix:
    return scipy.sparse.csr_array(
        one @ scipy.sparse.diags_array(amount.astype(float))
    )


class _Program:
    """Linear program over named blocks of non-negative variables."""

    def __init__(self) -> None:
        self.upper: dict[str, np.ndarray] = {}
        self.gain: list[np.ndarray] = []
        self.rows: list[dict[str, Matrix]] = []
        self.right: list[np.ndarray] = []

    def add(self, name: str, upper: np.ndarray, gain: float = 0.0) -> None:
        """Add a block of variables with upper bounds and gains."""
        self.upper[name] = upper.astype(float)
        self.gain.append(np.full(upper.size, gain))

    def at_most(
        self, right: float | np.ndarray, row: dict[str, Matrix]
    ) -> None:
        """Add rows that bound sums over blocks from above."""
        self.rows.append(row)
        self.right.append(np.atleast_1d(right))

    def bound(self, exact: bool, time_limit: float) -> float:
        """Bound the largest gain from above."""
        from scipy import optimize  # slow to import

        matrix = scipy.sparse.csr_array(
            scipy.sparse.block_array(
                [
                    [
                        row.get(name, _empty(right.size, upper.size))
                        for name, upper in self.upper.items()
                    ]
                    for row, right in zip(self.rows, self.right, strict=True)
                ]
            )
        )
        right = np.concatenate(self.right)
        upper = np.concatenate(list(self.upper.values()))
        gain = np.concatenate(self.gain)
        if exact:
            solved = optimize.milp(
                -gain,
                integrality=np.ones(gain.size),
                bounds=optimize.Bounds(0, upper),
                constraints=optimize.LinearConstraint(matrix, -np.inf, right),
                options={'time_limit': time_limit},
            )
            dual = getattr(solved, 'mip_dual_bound', None)
            if dual is not None and np.isfinite(dual):
                return float(-dual)
        solved = optimize.linprog(
            -gain,
            A_ub=matrix,
            b_ub=right,
            bounds=np.stack([np.zeros(gain.size), upper], 1),
            method='highs',
        )
        multipliers = np.zeros(right.size)
        if solved.ineqlin is not None and solved.ineqlin.marginals is not None:
            multipliers = np.maximum(-solved.ineqlin.marginals, 0.0)
        return weak_bound(multipliers, matrix, right, gain, upper)


def _empty(rows: int, columns: int) -> Matrix:
    return scipy.sparse.csr_array((rows, columns))


def weak_bound(
    multipliers: np.ndarray,
    matrix: Matrix,
    right: np.ndarray,
    gain: np.ndarray,
    upper: np.ndarray,
) -> float:
    """Bound the optimum by any non-negative multipliers (weak duality).

    Args:
        multipliers (numpy.ndarray): of the rows.
        matrix (scipy.sparse.csr_array): of the constraints.
        right (numpy.ndarray): their right-hand sides.
        gain (numpy.ndarray): the objective, which is maximised.
        upper (numpy.ndarray): bounds of the variables.
    """
    held = np.where(np.isfinite(multipliers), multipliers, 0.0)
    held = np.maximum(held, 0.0)
    spare = np.maximum(gain - matrix.T @ held, 0.0)
    return float(right @ held + upper @ spare)
