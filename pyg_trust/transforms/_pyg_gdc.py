"""GDC with the arguments of PyG's transform; sparse on request."""

from typing import Annotated, Any

import torch
import torch_geometric.transforms as pyg
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from pyg_trust._checks import (
    REAL,
    NotNegative,
    OneOf,
    check_choice,
    check_finite,
    check_fraction,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import check_edges
from pyg_trust.agp.measures import Measure, hkpr, ppr
from pyg_trust.agp.queries import query
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._building import row_of_entries
from pyg_trust.graph.attributes import edge_attributes, refuse_adjacencies

EPS = 1e-4  # what PyG recommends
_NORMALIZATIONS = ('sym', 'col', 'row')
_NEEDED = {
    'ppr': {'alpha'},
    'heat': {'t'},
    'coeff': {'coeffs'},
    'threshold': set(),
    'topk': {'k', 'dim'},
}


@validated
def checked(
    self_loop_weight: NotNegative | None = 1.0,
    normalization_in: str | None = 'sym',
    normalization_out: Annotated[str, OneOf(_NORMALIZATIONS)] | None = 'col',
    diffusion_kwargs: dict[str, Any] | None = None,
    sparsification_kwargs: dict[str, Any] | None = None,
    exact: bool = True,
) -> pyg.GDC:
    """Check the arguments of PyG's GDC and construct it."""
    if not exact and self_loop_weight not in (0, 1, None):
        raise ValueError(
            "'self_loop_weight' needs to be 1, 0 or None for exact=False "
            f'(got {self_loop_weight})'
        )
    if normalization_in is not None or not exact:
        name = 'normalization_in'
        check_choice(name, normalization_in, _NORMALIZATIONS)  # type: ignore
    diffusion = _part(
        'diffusion_kwargs',
        diffusion_kwargs or {'method': 'ppr', 'alpha': 0.15},
        ('ppr', 'heat', 'coeff'),
    )
    cut = _part(
        'sparsification_kwargs',
        sparsification_kwargs or {'method': 'threshold', 'avg_degree': 64},
        ('threshold', 'topk'),
    )
    coeffs = diffusion.get('coeffs', ())
    check_instance('coeffs', coeffs, list, tuple)
    for coeff in coeffs:
        check_finite('coeffs', coeff)
    if not exact:
        check_fraction('eps', diffusion.setdefault('eps', EPS))
    if not exact or diffusion['method'] != 'coeff':
        measure_of(diffusion)
    elif not coeffs:
        raise ValueError("'coeffs' needs at least one number (got none)")
    if cut['method'] == 'topk':
        check_integer('k', cut['k'], 1)
        check_integer('dim', cut['dim'], 0, 1)
    elif 'eps' in cut:
        check_finite('eps', cut['eps'])
    elif 'avg_degree' in cut:
        check_integer('avg_degree', cut['avg_degree'], 1)
    else:
        raise ValueError(
            "'sparsification_kwargs' needs 'eps' or 'avg_degree' for "
            f"method='threshold' (got {sorted(cut)})"
        )
    return pyg.GDC(
        self_loop_weight,
        normalization_in,
        normalization_out,
        diffusion,
        cut,
        exact,
    )


def _part(
    name: str, given: dict[str, Any], methods: tuple[str, ...]
) -> dict[str, Any]:
    check_instance(name, given, dict)
    method = given.get('method')
    if not isinstance(method, str) or method not in methods:
        raise ValueError(
            f"'{name}' needs a 'method' that is one of {methods} "
            f'(got {method!r})'
        )
    missing = sorted(_NEEDED[method] - set(given))
    if missing:
        raise ValueError(
            f"'{name}' needs '{missing[0]}' for method={method!r} "
            f'(got {sorted(given)})'
        )
    return dict(given)


def measure_of(diffusion: dict[str, Any]) -> Measure:
    """Return the diffusion as a measure of random walks."""
    tol = min(EPS, diffusion.get('eps', EPS))
    if diffusion['method'] == 'ppr':
        return ppr(diffusion['alpha'], tol=tol)
    if diffusion['method'] == 'heat':
        return hkpr(diffusion['t'], tol=tol)
    coeffs = diffusion['coeffs']
    if not coeffs or min(coeffs) < 0 or sum(coeffs) == 0:
        raise ValueError(
            "'coeffs' needs non-negative numbers, one of them above 0, for "
            f'the random walks of exact=False (got {coeffs})'
        )
    return Measure(0, 1, tuple(coeffs))


def transform(gdc: pyg.GDC, data: Data) -> Data:
    """Apply PyG's GDC, with estimated diffusion unless ``exact``."""
    check_instance('data', data, Data)
    num_nodes = data.num_nodes
    if num_nodes is None:
        raise ValueError("'data' needs to know its 'num_nodes'")
    if data.get('edge_index') is None:
        # PyG's transform knows no adj_t.
        graph = CSRGraph.from_data(data)
        data.num_nodes = num_nodes
        data.edge_index, data.edge_attr = graph.to_edge_index()
    edge_index = check_edges('edge_index', data.edge_index, num_nodes)
    refuse_attributes(data, *(['edge_attr'] if gdc.exact else []))
    data.edge_index = edge_index
    if gdc.exact:
        if data.edge_attr is not None:
            shape = (edge_index.size(1),)
            check_tensor('edge_attr', data.edge_attr, REAL, shape, finite=True)
        return gdc.forward(data)
    edges, value = _estimate(gdc, edge_index, num_nodes)
    edges, value = _sparsify(gdc, edges, value, num_nodes)
    edges, value = coalesce(edges, value, num_nodes)
    data.edge_index, data.edge_attr = gdc.transition_matrix(
        edges, value, num_nodes, gdc.normalization_out
    )
    return data


def refuse_attributes(data: Data, *known: str) -> None:
    """Refuse attributes of edges, and drop the matrix, of the old graph."""
    data.pop('adj_t', None)
    if data.get('edge_index') is not None:
        refuse_adjacencies(data)
        for name in edge_attributes(data):
            if name not in ('edge_index', *known):
                raise ValueError(
                    f"'data' needs to have no edge attribute '{name}', which "
                    'has no meaning for the edges of the diffusion: delete '
                    f'it first (del data.{name})'
                )


def _estimate(
    gdc: pyg.GDC, edge_index: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor]:
    # Walks along the edges, from all nodes, rescaled by degrees to the
    # normalisation, as PyG does. The largest error is half of its threshold.
    graph = CSRGraph.from_edge_index(coalesce(edge_index), num_nodes)
    if gdc.self_loop_weight:
        graph = graph.with_self_loops()
    nodes = torch.arange(num_nodes, device=edge_index.device)
    rows = query(
        graph,
        nodes,
        measure_of(gdc.diffusion_kwargs),
        eps=gdc.diffusion_kwargs['eps'] / 2,
        method='prune',
    )
    row = row_of_entries(rows.crow_indices())
    col, value = rows.col_indices(), rows.values()
    if gdc.normalization_in == 'col':
        row, col = col, row
    elif gdc.normalization_in == 'sym':
        degree = graph.to_edge_index()[0][1].bincount(minlength=num_nodes)
        root = degree.clamp(min=1).to(value.dtype).sqrt()
        value = root[row] * value / root[col]
    return torch.stack([row, col]), value


def _sparsify(
    gdc: pyg.GDC, edge_index: Tensor, value: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor]:
    cut = gdc.sparsification_kwargs
    if cut['method'] == 'threshold':
        return gdc.sparsify_sparse(edge_index, value, num_nodes, **cut)
    # The largest k of each column (dim=0) or row.
    end = edge_index[1 - cut['dim']]
    order = value.argsort(descending=True, stable=True)
    order = order[end[order].argsort(stable=True)]
    count = end.bincount(minlength=num_nodes)
    rank = torch.arange(end.numel(), device=end.device)
    first = (count.cumsum(0) - count).repeat_interleave(count)
    order = order[rank - first < cut['k']]
    return edge_index[:, order], value[order]
