"""The arguments of propagation, and their checks."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust import ops
from pyg_trust._checks import check_instance, check_non_negative, is_finite
from pyg_trust._checks.graphs import check_real
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.polynomials import chebyshev
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


def check_eps(eps: float) -> float:
    """Refuse a negative or infinite quantum ``eps``."""
    return check_non_negative('eps', eps)


def check_how(how: How, x: Tensor, graph: CSRGraph, measure: Measure) -> None:
    """Refuse options that exclude each other."""
    check_instance('half', how.half, bool)
    check_instance('force_push', how.force_push, bool)
    if how.half and (how.eps != 0 or x.dtype != torch.float32):
        raise ValueError(
            "'half' needs eps=0 and a float32 'x' "
            f'(got eps={how.eps:g} and {x.dtype})'
        )
    if check_non_negative('tol', how.tol) == 0:
        return
    if how.eps != 0:
        raise ValueError(f"'tol' needs eps=0 (got eps={how.eps:g})")
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
