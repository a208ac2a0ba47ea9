r"""The proximity measures of AGP's unified equation, as data.

`"Approximate Graph Propagation" <https://arxiv.org/abs/2106.03058>`_ (Wang et
al. 2021) writes every measure as

.. math::
    z = \sum_{i=0}^{K} w_i \left( D^{-a} A D^{-b} \right)^i x

and each function here returns the :math:`(a, b, w)` of one of them:

======================= ===== ===== ============================== ===========
function                a     b     :math:`w_i`                    signal
======================= ===== ===== ============================== ===========
:func:`transition`      0     1     1 at :math:`i = K`, else 0     :math:`e_s`
:func:`pagerank`        0     1     :math:`\alpha(1-\alpha)^i`     :math:`1/n`
:func:`ppr`             0     1     :math:`\alpha(1-\alpha)^i`     teleport
:func:`single_target`   1     0     :math:`\alpha(1-\alpha)^i`     :math:`e_t`
:func:`hkpr`            0     1     :math:`e^{-t} t^i / i!`        :math:`e_s`
:func:`katz`            0     0     :math:`\beta^i`                :math:`e_s`
:func:`sgc`             1/2   1/2   1 at :math:`i = K`, else 0     features
:func:`appnp`           1/2   1/2   :math:`\alpha(1-\alpha)^i`     features
:func:`heat`            1/2   1/2   :math:`e^{-t} t^i / i!`        features
======================= ===== ===== ============================== ===========

The last three are the propagations of SGC, APPNP and GDC: they add the
missing self-loops and need an undirected graph. On a directed graph
:math:`D` holds the out-degrees, the others follow the edges (:math:`A` stands
for the transposed adjacency matrix), and :func:`single_target` goes against
them. A node of degree zero has :math:`d^{-a} = 0`: mass that reaches it stays.

A series that does not end by itself is cut at the smallest :math:`K` whose
tail :math:`\sum_{k>K} w_k` is at most :obj:`tol`. Of the probability series,
:math:`w_K` gets the tail, so that :func:`appnp` is exactly that of APPNP.
"""

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pyg_trust._checks import (
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Share,
    check_fraction,
    check_integer,
    check_non_negative,
    check_number,
    check_rate,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust.graph import CSRGraph
from pyg_trust.registries import Registry

__all__ = [
    'MEASURES',
    'Chebyshev',
    'Measure',
    'appnp',
    'chebyshev',
    'heat',
    'hkpr',
    'katz',
    'make_measure',
    'pagerank',
    'ppr',
    'sgc',
    'single_target',
    'transition',
]

#: The functions that give a measure: their keywords are its arguments; one
#: that is called ``graph`` is given the graph.
MEASURES: Registry[Callable[..., 'Measure']] = Registry('measure')

TOL = 1e-4
#: The most levels of a measure: beyond, a closed form is the better way.
MAX_LEVELS = 1_000_000


@validated
@dataclass(frozen=True)
class Measure:
    r"""Weights and exponents of :math:`z = \sum_i w_i (D^{-a} A D^{-b})^i x`.

    :math:`A` is the adjacency matrix and :math:`D` the degree matrix. The
    functions :func:`appnp`, :func:`ppr` and others return measures. Make your
    own for other exponents or weights.

    Args:
        a (float): the exponent :math:`a` of the receiving node's degree.
        b (float): the exponent :math:`b` of the sending node's degree.
        weights (tuple[float, ...]): :math:`w_0, \ldots, w_K`, non-negative.
        self_loops (bool): whether missing self-loops are added first.
        undirected (bool): whether the graph has to be undirected.
        along (bool): whether messages travel along the edges (True) or
            against them. (default: :obj:`True`)
        spectral_radius (float, optional): the largest spectral radius that a
            graph may have; propagation on any other graph is an error. By
            default any graph is accepted. (default: :obj:`None`)
        shrink (float): a factor of the matrix, :math:`(\text{shrink} \cdot
            D^{-a} A D^{-b})^i`, to keep high powers from overflow.
        name (str): for printing. (default: :obj:`'custom'`)
    """

    a: Share
    b: Share
    weights: tuple[float, ...]
    self_loops: bool = False
    undirected: bool = False
    along: bool = True
    spectral_radius: NotNegative | None = None
    shrink: Positive = 1.0
    name: str = 'custom'

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Sequence) or isinstance(
            self.weights, str
        ):
            raise TypeError(
                "'weights' needs to be a tuple of numbers "
                f'(got {type(self.weights).__name__})'
            )
        if len(self.weights) == 0:
            raise ValueError("'weights' needs at least one entry (got none)")
        for weight in self.weights:
            check_non_negative('weights', weight)
        if sum(self.weights) == 0:
            raise ValueError("'weights' needs a positive entry (got zeros)")
        if sum(self.weights) == math.inf:
            raise ValueError("'weights' needs a finite sum (got infinity)")
        object.__setattr__(self, 'weights', tuple(map(float, self.weights)))
        numbers = (self.a, self.b, self.shrink, self.spectral_radius)
        flags = (self.self_loops, self.undirected, self.along)
        key = repr((numbers, flags, self.weights))
        object.__setattr__(self, '_key', key)

    @property
    def key(self) -> str:
        """A text of all parameters, which is equal for equal measures."""
        return self.__dict__['_key']

    @property
    def K(self) -> int:
        """The number of hops :math:`K`: the number of weights minus one."""
        return len(self.weights) - 1

    def adjoint(self) -> 'Measure':
        r"""Return the measure whose matrix is the transpose of this one's.

        .. math::
            \left( D^{-a} A D^{-b} \right)^{\top} = D^{-b} A^{\top} D^{-a}
        """
        return replace(self, a=self.b, b=self.a, along=not self.along)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.name}, a={self.a:g}, b={self.b:g}, '
            f'K={self.K})'
        )


@MEASURES.builtin('transition')
@renamed(levels='K')
def transition(K: int) -> Measure:
    """Return the :class:`Measure` of a random walk of :math:`K` steps.

    For a start distribution :math:`x`, :math:`z` is the distribution of the
    walk's end.

    Args:
        K (int): the number of steps.
    """
    return Measure(0, 1, _last(K), name='transition')


@MEASURES.builtin('pagerank')
@renamed(levels='K')
def pagerank(
    alpha: float, *, K: int | None = None, tol: float = TOL
) -> Measure:
    """Return the :class:`Measure` of PageRank, for the signal :math:`x = 1/n`.

    Nodes without out-edges end walks, so that :math:`z` sums to less than one.
    Divide by the sum to restart such walks, as networkx does.

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1]`.
        K (int, optional): the number of hops; by default as many as
            :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest total weight of the hops that are left out.
    """
    weights = _geometric(alpha, K, tol)
    return Measure(0, 1, weights, name='pagerank')


@MEASURES.builtin('ppr')
@renamed(levels='K')
def ppr(alpha: float, *, K: int | None = None, tol: float = TOL) -> Measure:
    """Return the :class:`Measure` of personalized PageRank.

    The signal :math:`x` is the teleport distribution.

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1]`.
        K (int, optional): the number of hops; by default as many as
            :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest total weight of the hops that are left out.
    """
    return replace(pagerank(alpha, K=K, tol=tol), name='ppr')


@MEASURES.builtin('single_target')
@renamed(levels='K')
def single_target(
    alpha: float, *, K: int | None = None, tol: float = TOL
) -> Measure:
    """Return the :class:`Measure` of one node's PageRank from every node.

    If :math:`x` is 1 at node :math:`t` and 0 elsewhere, :math:`z_s` is the
    entry of :math:`t` in the personalized PageRank of :math:`s`.

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1]`.
        K (int, optional): the number of hops; by default as many as
            :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest total weight of the hops that are left out.
    """
    weights = _geometric(alpha, K, tol)
    return Measure(1, 0, weights, along=False, name='single_target')


@MEASURES.builtin('hkpr')
@renamed(levels='K')
def hkpr(t: float, *, K: int | None = None, tol: float = TOL) -> Measure:
    """Return the :class:`Measure` of heat kernel PageRank.

    Args:
        t (float): the mean number of steps of a walk, positive.
        K (int, optional): the number of hops; by default as many as
            :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest total weight of the hops that are left out.
    """
    return Measure(0, 1, _poisson(t, K, tol), name='hkpr')


@MEASURES.builtin('katz')
@renamed(levels='K')
@validated
def katz(
    beta: float,
    graph: CSRGraph,
    *,
    K: Natural | None = None,
    tol: Fraction = TOL,
) -> Measure:
    r"""Return the :class:`Measure` of Katz: :math:`z = (I - \beta A)^{-1} x`.

    Let :math:`\lambda` be the spectral radius of :math:`A`. To avoid overflow,
    powers of :math:`A / \lambda` are computed.

    Args:
        beta (float): the attenuation, in :math:`(0, 1/\lambda)`.
        graph (CSRGraph): the graph that will be propagated on.
        K (int, optional): the number of hops; by default as many as
            :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest L1 norm of the hops that are left out,
            relative to that of :math:`x`. (default: :obj:`1e-4`)

    Raises:
        ValueError: if :obj:`beta` is not below :math:`1/\lambda`, where the
            series diverges, or if the graph is directed and the weights of
            the measure underflow float64.
    """
    radius = graph.spectral_radius
    if not (beta > 0 and beta * radius < 1 - 1e-12 and beta < math.inf):
        limit = math.inf if radius == 0 else 1 / radius
        raise ValueError(
            "'beta' needs to be in (0, 1/lambda_max), which is "
            f'(0, {limit:.6g}) for this graph (got {beta}): beyond it the '
            'Katz series diverges'
        )
    if K is None:
        K = _katz_levels(beta, graph, tol)
    shrink = 1 / radius if radius > 0 else 1.0
    weights = tuple((beta / shrink) ** i for i in range(_check_levels(K) + 1))
    if weights[-1] < sys.float_info.min and not graph.is_undirected:
        raise ValueError(
            f"'beta' ({beta:g}) and 'K' ({K}) give weights that "
            'underflow float64, which could cut the series short: choose '
            "a smaller 'K' or a larger 'tol'"
        )
    return Measure(
        0, 0, weights, spectral_radius=radius, shrink=shrink, name='katz'
    )


@MEASURES.builtin('sgc')
@renamed(levels='K')
def sgc(K: int = 2, *, self_loops: bool = True) -> Measure:
    r"""Return the :class:`Measure` of SGC's propagation (Wu et al. 2019).

    .. math::
        z = (\tilde{D}^{-1/2} \tilde{A} \tilde{D}^{-1/2})^K x, \quad
        \tilde{A} = A + I

    Args:
        K (int): the number of hops. (default: :obj:`2`)
        self_loops (bool): whether missing self-loops are added.
    """
    return Measure(0.5, 0.5, _last(K), self_loops, True, name='sgc')


@MEASURES.builtin('appnp')
@renamed(levels='K')
def appnp(
    alpha: float,
    *,
    K: int | None = None,
    tol: float = TOL,
    self_loops: bool = True,
) -> Measure:
    """Return the :class:`Measure` of APPNP (Gasteiger et al. 2019).

    Args:
        alpha (float): the teleport probability, in :math:`(0, 1]`.
        K (int, optional): the number of steps; by
            default as many as :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest total weight of the steps that are left out.
        self_loops (bool): whether missing self-loops are added.
    """
    weights = _geometric(alpha, K, tol)
    return Measure(0.5, 0.5, weights, self_loops, True, name='appnp')


@MEASURES.builtin('heat')
@renamed(levels='K')
def heat(
    t: float,
    *,
    K: int | None = None,
    tol: float = TOL,
    self_loops: bool = True,
) -> Measure:
    """Return the :class:`Measure` of GDC's heat kernel diffusion.

    Args:
        t (float): the diffusion time, positive.
        K (int, optional): the number of hops; by default as many as
            :obj:`tol` needs. (default: :obj:`None`)
        tol (float): the largest total weight of the hops that are left out.
        self_loops (bool): whether missing self-loops are added.
    """
    weights = _poisson(t, K, tol)
    return Measure(0.5, 0.5, weights, self_loops, True, name='heat')


def make_measure(
    measure: str | Measure, graph: CSRGraph | None, **kwargs: float | None
) -> Measure:
    """Return a measure by its name, such as ``'appnp'``.

    Args:
        measure (str or Measure): ``'appnp'``, ``'ppr'`` or the name of another
            function that returns a measure; or a measure, which is returned as
            it is.
        graph (CSRGraph, optional): the graph that will be propagated on, which
            only ``'katz'`` needs; else it may be None.
        **kwargs (float, optional): the arguments of that function, such as
            ``alpha``; one that is None keeps its default.
    """
    given = {name: v for name, v in kwargs.items() if v is not None}
    if isinstance(measure, Measure):
        if given:
            raise ValueError(
                f"'{next(iter(given))}' goes with the name of a measure, not "
                f'with a Measure (got {measure})'
            )
        return measure
    if not isinstance(measure, str):
        raise TypeError(
            "'measure' needs to be a Measure or a name "
            f'(got {type(measure).__name__})'
        )
    if measure not in MEASURES:
        raise ValueError(
            f"'measure' needs to be a Measure or one of {list(MEASURES)} "
            f'(got {measure!r})'
        )
    function = MEASURES[measure]
    parameters = dict(inspect.signature(function).parameters)
    fixed: dict[str, Any] = {}
    if parameters.pop('graph', None) is not None:
        fixed['graph'] = graph
    for name in given:
        if name not in parameters:
            raise ValueError(
                f"measure '{measure}' takes no '{name}' (it takes "
                f'{", ".join(parameters)})'
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise ValueError(f"measure '{measure}' needs '{name}'")
    result = function(**fixed, **given)
    if not isinstance(result, Measure):
        raise TypeError(
            f'{MEASURES.note(measure)}, needs to return a Measure '
            f'(got {type(result).__name__})'
        )
    return result


def needs_graph(measure: Any) -> bool:
    """Return whether a measure of this name depends on the graph."""
    if not isinstance(measure, str) or measure not in MEASURES:
        return False
    return 'graph' in inspect.signature(MEASURES[measure]).parameters


def _check_levels(levels: int) -> int:
    return check_integer('K', levels, 0, MAX_LEVELS, numpy=True)


def _check_needed(name: str, value: float, needed: float, tol: float) -> None:
    # Refuse before anything of that size is allocated.
    if needed > MAX_LEVELS:
        raise ValueError(
            f"'{name}' = {value:g} needs about {needed:.3g} levels for tol = "
            f'{tol:g}, more than {MAX_LEVELS:g}: choose '
            + ('a larger' if name == 'alpha' else 'a smaller')
            + f" '{name}' or a larger 'tol', or give 'K'"
        )


def _last(levels: int) -> tuple[float, ...]:
    return (0.0,) * _check_levels(levels) + (1.0,)


def _geometric(
    alpha: float, levels: int | None, tol: float
) -> tuple[float, ...]:
    check_rate('alpha', alpha)
    if levels is None:
        check_fraction('tol', tol)
        # The tail after level L is (1 - alpha)^(L + 1).
        needed = 0.0 if alpha == 1 else _terms(tol, math.log1p(-alpha))
        _check_needed('alpha', alpha, needed, tol)
        levels = max(0, math.ceil(needed) - 1)
    levels = _check_levels(levels)
    follow = 1 - alpha
    weights = [alpha * follow**i for i in range(levels)]
    return (*weights, follow**levels)


def _terms(tol: float, log: float) -> float:
    # The number of factors of this logarithm that reach the tolerance.
    try:
        return math.log(tol) / log
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _katz_levels(beta: float, graph: CSRGraph, tol: float) -> int:
    # No power has a smaller norm than its spectral radius.
    rate = beta * graph.spectral_radius
    needed = _terms(tol, math.log(rate)) if rate > 0 else 0.0
    _check_needed('beta', beta, needed, tol)
    adj = graph.to_scipy()
    power = np.ones(graph.num_nodes)
    norms = [1.0]
    total: float | None = None  # bounds the sum of all norms
    level = 0
    while True:
        power = beta * (adj @ power)
        norms.append(float(power.max()))
        _check_needed('beta', beta, len(norms) - 1, tol)
        if total is None and norms[-1] <= 0.5:
            total = sum(norms[:-1]) / (1 - norms[-1])
        while total is not None and level + 1 < len(norms):
            if norms[level + 1] * total <= tol:
                return level
            level += 1


def _poisson(t: float, levels: int | None, tol: float) -> tuple[float, ...]:
    if not 0 < check_number('t', t) < math.inf:
        raise ValueError(f"'t' needs to be positive and finite (got {t})")
    if levels is None:
        check_fraction('tol', tol)
    else:
        _check_levels(levels)
    _check_needed('t', t, t, tol)
    # Far enough that nothing is left beyond; in log space, as e^-t
    # underflows; the tail summed from its small end, as 1 - sum cancels.
    end = int(t + 50 * math.sqrt(t) + 100)
    if levels is not None:
        end = max(end, levels + 1)
    index = np.arange(end + 1)
    logs = (
        -t
        + index * math.log(t)
        - np.array([math.lgamma(i + 1) for i in index])
    )
    weights = np.exp(logs)
    tail = weights[::-1].cumsum()[::-1]  # tail[i] = sum over k >= i
    if levels is None:
        levels = int(np.argmax(np.append(tail[1:], 0.0) <= tol))
        _check_needed('t', t, levels, tol)
    return (*weights[:levels].tolist(), float(tail[levels]))


# Fewer levels at a certified error ###########################################

# On undirected graphs with a + b = 1 the operator is similar to a symmetric
# one with eigenvalues in [-1, 1], so that what is cut off is bounded for every
# signal (docs/theory/propagation.rst).


class Chebyshev(NamedTuple):
    r"""Truncated series of a measure in Chebyshev polynomials.

    Args:
        coefficients (tuple[float, ...]): :math:`c_0, \ldots, c_k`.
        bound (float): :math:`\sum_{j>k} |c_j|`, relative to the sum of the
            weights.
    """

    coefficients: tuple[float, ...]
    bound: float

    @property
    def K(self) -> int:
        """The number of hops :math:`k`."""
        return len(self.coefficients) - 1


@validated
def chebyshev(measure: Measure, tol: NotNegative) -> Chebyshev:
    r"""Write a measure as a shorter series of Chebyshev polynomials.

    With :math:`P = D^{-a} A D^{-b}`, :math:`\sum_i w_i P^i = \sum_j c_j
    T_j(P)`. On an undirected graph the eigenvalues of :math:`T_j(P)` are in
    :math:`[-1, 1]`. So the last terms can be left out if their :math:`|c_j|`
    are small, and fewer products with :math:`P` are needed.

    Args:
        measure (Measure): the measure, with :math:`a + b = 1`.
        tol (float): the largest sum of the :math:`|c_j|` that are left out,
            relative to :math:`\sum_i w_i`; with 0 none is left out.

    Returns:
        Chebyshev: the coefficients :math:`c_0, \ldots, c_k` that remain, and a
        bound of the sum that is left out.

    Example:
        >>> from pyg_trust.agp import heat
        >>> measure = heat(5.0, tol=1e-6)
        >>> measure.K, chebyshev(measure, 1e-3).K
        (19, 8)
    """
    if abs(measure.a + measure.b - 1) > 1e-12 or measure.shrink > 1:
        raise ValueError(
            "'tol' needs a measure with a + b = 1 and no shrink above 1: no "
            f'bound is known otherwise (got {measure})'
        )
    coefficients = np.polynomial.chebyshev.poly2cheb(measure.weights)
    total = sum(measure.weights)
    # tails[k] sums the terms after level k, the smallest first.
    tails = np.append(np.abs(coefficients)[::-1].cumsum()[::-1], 0.0)[1:]
    # Rounding of up to one part in 2^52 for each of the additions.
    slack = 1 + 4 * len(coefficients) * np.finfo(np.float64).eps
    bounds = tails / total * slack
    levels = int(np.argmax(bounds <= tol))
    return Chebyshev(
        tuple(coefficients[: levels + 1].tolist()), float(bounds[levels])
    )
