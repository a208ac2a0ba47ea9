"""The arguments of propagation, and their checks."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import check_instance, check_non_negative, is_finite
from pyg_trust._checks.graphs import check_real
from pyg_trust.agp.measures import Measure, chebyshev
from pyg_trust.graph import CSRGraph


class How(NamedTuple):
    """Options of :func:`.propagate`, under the same names.

    Args:
        eps (float): the quantum. (default: :obj:`0.0`)
        seed (int, optional): the seed. (default: :obj:`None`)
        force_push (bool): whether to sample always. (default: :obj:`False`)
        half (bool): whether levels are float16. (default: :obj:`False`)
        tol (float): the error of fewer levels. (default: :obj:`0.0`)
        check (bool): whether NaN and infinity are refused, and not passed on
            as in other layers. (default: :obj:`True`)
        loops (bool): whether the exact path adds a self-loop at every node
            without one as it goes. (default: :obj:`False`)
    """

    eps: float = 0.0
    seed: int | None = None
    force_push: bool = False
    half: bool = False
    tol: float = 0.0
    check: bool = True
    loops: bool = False


def prepare_graph(graph: CSRGraph, measure: Measure) -> CSRGraph:
    """Check the graph; add self-loops if the measure has them."""
    check_graph(graph, measure)
    return graph.with_self_loops() if measure.self_loops else graph


def prepare_exact(
    graph: CSRGraph, measure: Measure, how: How
) -> tuple[CSRGraph, bool]:
    """Check the graph; say whether the kernels add its self-loops."""
    if how.eps != 0:
        return prepare_graph(graph, measure), False
    check_graph(graph, measure)
    return prepare_loops(graph, measure)


def prepare_loops(graph: CSRGraph, measure: Measure) -> tuple[CSRGraph, bool]:
    """Return the graph to use, and whether the kernels add self-loops.

    The kernels of the CPU do.
    """
    if not measure.self_loops:
        return graph, False
    if graph.device.type == 'cpu':
        return graph, True
    return graph.with_self_loops(), False


def check_graph(graph: CSRGraph, measure: Measure) -> None:
    """Refuse a graph that the measure is not defined on."""
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


def check_options(
    eps: float, half: bool, tol: float, name: str = 'tol'
) -> None:
    """Refuse options of estimates and of the exact path together."""
    if eps != 0 and (half or tol != 0):
        raise ValueError(
            f"'eps' is for estimates, 'half' and '{name}' for the exact path "
            f'(got eps={eps:g}, half={half}, {name}={tol:g})'
        )


def check_how(how: How, x: Tensor, graph: CSRGraph, measure: Measure) -> None:
    """Refuse options that exclude each other, the signal or the graph."""
    check_instance('half', how.half, bool)
    check_instance('force_push', how.force_push, bool)
    check_non_negative('tol', how.tol)
    check_options(how.eps, how.half, how.tol)
    if how.half and x.dtype != torch.float32:
        raise ValueError(f"'half' needs a float32 'x' (got {x.dtype})")
    if how.tol != 0:
        if not graph.is_undirected:
            raise ValueError(
                "'tol' needs an undirected 'graph', as the eigenvalues of a "
                'directed one are complex (got a directed one)'
            )
        chebyshev(measure, how.tol)


def check_device(name: str, tensor: Tensor, graph: CSRGraph) -> None:
    """Refuse a tensor on another device than the graph's."""
    if tensor.device != graph.device:
        raise ValueError(
            f"'{name}' needs to be on the graph's device, {graph.device} "
            f'(got {tensor.device})'
        )


def check_signal(x: Tensor, graph: CSRGraph) -> None:
    """Refuse another layout, dtype, shape or device."""
    layouts = (torch.strided, torch.sparse_csr)
    if not isinstance(x, Tensor) or x.layout not in layouts:
        got = getattr(x, 'layout', type(x).__name__)
        raise TypeError(
            f"'x' needs to be a dense or a sparse CSR tensor (got {got})"
        )
    check_real('x', x.dtype)
    if x.dim() not in (1, 2) or x.size(0) != graph.num_nodes:
        raise ValueError(
            f"'x' needs to have the shape [{graph.num_nodes}] or "
            f'[{graph.num_nodes}, num_columns], a row per node '
            f'(got {list(x.shape)})'
        )
    check_device('x', x, graph)
    if x.layout == torch.sparse_csr:
        ops.sparse_parts(x)


def values_of(x: Tensor) -> Tensor:
    """Return the numbers of a dense or sparse signal."""
    return (x.values() if x.layout == torch.sparse_csr else x).detach()


def check_finite_signal(x: Tensor) -> None:
    """Refuse NaN and infinity in the signal."""
    if not is_finite(values_of(x)):
        raise ValueError("'x' needs to be finite (got NaN or infinity)")


def check_overflow(z: Tensor, measure: Measure, half: bool = False) -> None:
    """Refuse a result that left the range of its dtype."""
    if is_finite(z.detach()):
        return
    if half:
        raise ValueError(
            f"'half' overflows float16 for 'measure' {measure} on this graph, "
            'as the powers of its operator grow: use half=False'
        )
    raise ValueError(
        f"'measure' {measure} overflows {z.dtype} on this graph, as the "
        "powers of its operator grow: use float64 or a smaller 'shrink'"
    )


# The range of a dtype ########################################################

# In sum_i w_i P^i x a weight that vanishes counts for nothing only if P^i does
# not make up for it. The largest sum of a row of (S R B)^i, P = R B S, is what
# a level may grow by.


def check_shrink(measure: Measure, dtype: torch.dtype) -> None:
    """Refuse a measure whose ``shrink`` is out of range in the dtype."""
    rounded = float(torch.tensor(measure.shrink, dtype=dtype))
    if not 0 < rounded <= torch.finfo(dtype).max:
        raise ValueError(
            f"'measure' {measure} needs a 'shrink' in the range of {dtype} "
            f'(got {measure.shrink}): use float64'
        )


def check_weights(
    measure: Measure, dtype: torch.dtype, norms: Callable[[], list[float]]
) -> None:
    """Refuse weights that underflow in the dtype and whose terms count."""
    info = torch.finfo(dtype)
    if max(measure.weights) < info.tiny:
        raise ValueError(
            f"'measure' {measure} needs a weight of at least {info.tiny:.2g}, "
            f'the smallest {dtype} (got {max(measure.weights):.2g} at most)'
        )
    if min(measure.weights) >= info.tiny:
        return
    small = [i for i, w in enumerate(measure.weights) if 0 < w < info.tiny]
    if not small:
        return
    size = norms()
    lost = sum(measure.weights[i] * size[i] for i in small)
    if not lost <= info.eps * sum(measure.weights):
        raise ValueError(
            f"'measure' {measure} has weights that vanish in {dtype} (the "
            f'first is that of level {small[0]}), while the powers of its '
            "operator grow on this graph: give it a 'shrink', or use float64"
        )


def known_norms(measure: Measure, undirected: bool) -> list[float] | None:
    """Return bounds of the powers of P that need no graph, or None.

    They are 1 if no row of S R B sums to more, or if P keeps a signal's sum.
    """
    keeps_sums = measure.b == 1 if measure.along else measure.a == 1
    bounded = undirected and measure.a + measure.b >= 1
    if measure.shrink <= 1 and (bounded or keeps_sums):
        return [1.0] * (measure.K + 1)
    return None


def check_half(
    measure: Measure, weights: Tensor, room: float, norms: list[float]
) -> None:
    """Refuse weights whose float16 levels underflow but still matter.

    A level's largest number is at least 2^13 / room. What is below 2^-25 is
    lost, and later levels amplify the loss.
    """
    size = weights.abs().tolist()
    while len(size) > 1 and size[-1] == 0:
        size.pop()
    levels = len(size) - 1
    lost = sum(norms[:levels]) * room * 2.0**-38
    kept = size[0] + sum(map(_times, size[1:], norms))
    if levels > 1 and not lost <= 2.0**-11 * kept:
        raise ValueError(
            f"'half' loses levels of 'measure' {measure} on this graph, as "
            'its weights fall while the powers of its operator grow: give it '
            "a 'shrink', or use half=False"
        )


def power_norms(
    rowptr: Tensor, col: Tensor, ends: Tensor, levels: int, loops: bool
) -> list[float]:
    """Return the largest row sum of each power of S R B from 0 on."""
    ones, once = torch.ones_like(ends), torch.tensor([0.0, 1.0]).double()
    sums, norms = ones.view(-1, 1), [1.0]
    for _ in range(levels):
        sums = ops.propagate(
            *(rowptr, col, sums, ends, ones, once), loops=loops
        )
        norms.append(float(sums.max()))
        if not norms[-1] < float('inf'):
            norms[-1] = float('inf')
        if norms[-1] == float('inf') or (len(norms) == 2 and norms[1] <= 1):
            # Later powers are no larger, or infinite as well.
            return norms + norms[-1:] * (levels + 1 - len(norms))
    return norms


def _times(weight: float, norm: float) -> float:
    return weight * norm if weight > 0 else 0.0
