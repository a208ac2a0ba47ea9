r"""Collective certificates: the damage of one budget to many nodes at once.

`"Collective Robustness Certificates"
<https://openreview.net/forum?id=ULQdiUTHe3y>`_ (Schuchardt, Bojchevski,
Klicpera and Günnemann 2021), with a tighter relaxation, a bound that does not
trust the solver, and receptive fields that know of degrees.
"""

import numpy as np
import scipy.sparse
from torch import Tensor

from pyg_trust._checks import check_integer
from pyg_trust.verify.collective import Attack, Matrix, program, value

__all__ = ['broken_bound', 'edge_field', 'frontier', 'receptive_field']


def receptive_field(edge_index: Tensor, num_nodes: int, hops: int) -> Matrix:
    """Mark the nodes whose features reach each target in K rounds.

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

    Returns:
        tuple[numpy.ndarray, numpy.ndarray]: whose points they are,
        ``[num_points]``, and their budgets, ``[num_points, num_kinds]``.
    """
    closed = certified.copy()
    for axis in range(1, closed.ndim):
        closed = np.logical_and.accumulate(closed, axis=axis)
    smallest = ~closed
    for axis in range(1, closed.ndim):
        # Targets certified with one change less of this kind.
        before = np.ones_like(closed)
        rest = [slice(None)] * closed.ndim
        less = rest.copy()
        rest[axis], less[axis] = slice(1, None), slice(None, -1)
        before[tuple(rest)] = closed[tuple(less)]
        smallest &= before
    points = np.argwhere(smallest)
    return points[:, 0], points[:, 1:]


def broken_bound(attack: Attack) -> tuple[float, np.ndarray]:
    r"""Bound from above how many targets one budget can break at once.

    The program is that of :mod:`pyg_trust.verify.collective`. The points of a
    node share what it sees, where the published relaxation counts it once for
    each. The solver's objective is not used: from its multipliers the kernel
    computes a bound, which holds whatever they are.

    Returns:
        tuple[float, numpy.ndarray]: the bound (at most its floor, with 1e-6
        to spare, can break) and the multipliers of the linear program.
    """
    from scipy import optimize  # slow to import

    attack = attack.within()
    if attack.owner.size == 0:
        return 0.0, np.zeros(0)
    most = float(np.unique(attack.owner).size)
    made = program(attack)
    solved = optimize.linprog(
        -made.gain,
        A_ub=made.matrix,
        b_ub=made.right,
        bounds=np.stack([np.zeros(made.gain.size), made.upper], 1),
        method='highs',
    )
    multipliers = np.zeros(made.right.size)
    if solved.ineqlin is not None and solved.ineqlin.marginals is not None:
        multipliers = np.maximum(-solved.ineqlin.marginals, 0.0)
    proved = value(multipliers, made)
    bound = float(proved)
    if bound < proved:
        bound = float(np.nextafter(bound, np.inf))
    return min(bound, most), multipliers
