"""Graph diffusion convolution by AGP queries."""

import copy
import inspect
from typing import Annotated, Any

import torch
import torch_geometric.transforms as pyg
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
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
    check_non_negative,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import check_edges
from pyg_trust._describe import described
from pyg_trust._moved import renamed
from pyg_trust.agp.measures import Measure, hkpr, ppr
from pyg_trust.agp.queries import METHODS, query
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._building import row_of_entries
from pyg_trust.graph.attributes import edge_attributes, refuse_adjacencies
from pyg_trust.transforms.agp import MeasureTransform

__all__ = ['GDC']

NORMALIZATIONS = ('in', 'sym', None)
_EPS = 1e-4  # what PyG recommends
_NORMALIZATIONS = ('sym', 'col', 'row')
_NEEDED = {
    'ppr': {'alpha'},
    'heat': {'t'},
    'coeff': {'coeffs'},
    'threshold': set(),
    'topk': {'k', 'dim'},
}


@functional_transform('agp_gdc')
class GDC(MeasureTransform):
    r"""Replace the edges by a sparsified diffusion matrix.

    Graph diffusion convolution (`Gasteiger et al. 2019
    <https://arxiv.org/abs/1911.05485>`_) lets any message-passing model run on

    .. math::
        \mathbf{S} = \sum_{i=0}^{K} w_i \left( D^{-a} A D^{-b} \right)^i

    instead of the graph (functional name: :obj:`agp_gdc`). Rows are computed
    one by one, so that no dense matrix is built. If :math:`u` is among the
    largest entries of row :math:`s`, ``edge_index`` gets the edge :math:`u \to
    s`, and ``edge_weight`` the normalised entry. A graph with other edge
    attributes is refused.

    With the arguments of PyG's :class:`~torch_geometric.transforms.GDC`, or
    with none, this is PyG's transform, which reads and writes ``edge_attr``.
    With ``exact=False`` this package computes it, with half of PyG's ``eps``.

    Args:
        measure (str or Measure): :obj:`'appnp'`, :obj:`'heat'`, another name
            that :class:`AGP` takes, or a measure. (default: :obj:`'appnp'`)
        *args (optional): PyG's arguments by position. The first is then its
            ``self_loop_weight``, not a measure.
        alpha (float, optional): the teleport probability, which APPNP and the
            PageRank measures need. (default: :obj:`None`)
        t (float, optional): the time, for :obj:`'heat'` and :obj:`'hkpr'`.
        beta (float, optional): the attenuation, for :obj:`'katz'`.
        K (int, optional): the number of hops; by default 2 for
            :obj:`'sgc'`, else as many as :obj:`tol` needs.
        tol (float, optional): the largest total weight of the hops that are
            left out; by default 1e-4.
        top_k (int, optional): how many of the largest entries of each row are
            kept; by default all. (default: :obj:`None`)
        threshold (float): entries of at most this value are dropped.
        normalization (str, optional): :obj:`'in'` makes the weights that enter
            a node sum to one, :obj:`'sym'` divides by the square roots of the
            sums at both ends, :obj:`None` leaves the diffusion values.
        eps (float): smaller messages are sampled or left out, by
            :obj:`method`; 0 for the exact matrix. (default: :obj:`1e-4`)
        method (str): :obj:`'sample'` small messages without bias, or
            :obj:`'prune'` them. (default: :obj:`'sample'`)
        seed (int, optional): the seed of sampling; by default torch's
            generator draws one in every call. (default: :obj:`None`)
        **kwargs (optional): PyG's arguments, if no argument above is given.
    """

    @renamed(levels='K')
    def __init__(
        self,
        measure: str | Measure | float | None = 'appnp',
        *args: Any,
        alpha: float | None = None,
        t: float | None = None,
        beta: float | None = None,
        K: int | None = None,
        tol: float | None = None,
        top_k: int | None = None,
        threshold: float = 0.0,
        normalization: str | None = 'in',
        eps: float = 1e-4,
        method: str = 'sample',
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        values = locals()
        init: Any = inspect.unwrap(GDC.__init__)
        default = {'measure': 'appnp', **init.__kwdefaults__}
        own = [n for n, value in default.items() if values[n] is not value]
        if args or not isinstance(measure, str | Measure):
            # The positions of PyG's arguments.
            given = inspect.signature(pyg.GDC).bind(measure, *args, **kwargs)
            own.remove('measure')
            kwargs = given.arguments
        self._pyg: pyg.GDC | None = None
        if kwargs or not own:
            if own:
                raise ValueError(
                    f"'{own[0]}' does not go with '{next(iter(kwargs))}', an "
                    "argument of PyG's GDC (got both)"
                )
            self._given = copy.deepcopy(kwargs)
            self._pyg = _checked(**kwargs)
            for name, value in vars(self._pyg).items():
                setattr(self, name, value)  # under PyG's names
            return
        check_non_negative('threshold', threshold)
        if top_k is not None:
            check_integer('top_k', top_k, 1)
        if top_k is None and threshold == 0:
            raise ValueError(
                "one of 'top_k' and 'threshold' is needed to make the "
                'diffusion matrix sparse (got neither)'
            )
        check_choice('method', method, METHODS)
        if normalization not in NORMALIZATIONS:
            raise ValueError(
                f"'normalization' needs to be one of {NORMALIZATIONS} "
                f'(got {normalization!r})'
            )
        assert isinstance(measure, str | Measure)
        super().__init__(
            measure,
            eps,
            seed,
            alpha=alpha,
            t=t,
            beta=beta,
            K=K,
            tol=tol,
        )
        self.top_k = top_k
        self.method = method
        self.threshold = threshold
        self.normalization = normalization

    def forward(self, data: Data) -> Data:
        """Return the graph with the diffusion matrix as its edges."""
        if self._pyg is not None:
            return _transform(self._pyg, data)
        graph = CSRGraph.from_data(data)
        _refuse_attributes(data, 'edge_weight')
        rows = query(
            graph,
            torch.arange(graph.num_nodes, device=graph.device),
            self.make_measure(graph).adjoint(),
            eps=self.eps,
            method=self.method,
            seed=self.seed,
            top_k=self.top_k,
            threshold=self.threshold,
        )
        ptr, source = rows.crow_indices(), rows.col_indices()
        target = row_of_entries(ptr)
        data.num_nodes = graph.num_nodes
        data.edge_index = torch.stack([source, target])
        data.edge_weight = _normalize(
            data.edge_index, rows.values(), graph.num_nodes, self.normalization
        )
        return data

    def make_measure(self, graph: CSRGraph) -> Measure:
        """Return the measure whose matrix replaces the edges.

        Args:
            graph (CSRGraph): the graph, whose spectral radius :obj:`'katz'`
                needs.
        """
        if self._pyg is not None:
            check_instance('graph', graph, CSRGraph)
            return _measure_of(self._pyg.diffusion_kwargs)
        return super().make_measure(graph)

    def __repr__(self) -> str:
        if self._pyg is None:
            return super().__repr__()
        return described(self, measure='appnp', **self._given)

    def _options(self) -> dict[str, Any]:
        return {
            **super()._options(),
            'method': None if self.method == 'sample' else self.method,
            'top_k': self.top_k,
            'threshold': self.threshold,
            'normalization': (
                None if self.normalization == 'in' else str(self.normalization)
            ),
        }


def _normalize(
    edge_index: Tensor,
    value: Tensor,
    num_nodes: int,
    normalization: str | None,
) -> Tensor:
    if normalization is None:
        return value
    source, target = edge_index
    entering = value.new_zeros(num_nodes).index_add_(0, target, value)
    if normalization == 'in':
        return value / entering[target]
    leaving = value.new_zeros(num_nodes).index_add_(0, source, value)
    return value / (leaving[source] * entering[target]).sqrt()


# With the arguments of PyG #############################################


@validated
def _checked(
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
        check_fraction('eps', diffusion.setdefault('eps', _EPS))
    if not exact or diffusion['method'] != 'coeff':
        _measure_of(diffusion)
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


def _measure_of(diffusion: dict[str, Any]) -> Measure:
    """Return the diffusion as a measure of random walks."""
    tol = min(_EPS, diffusion.get('eps', _EPS))
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


def _transform(gdc: pyg.GDC, data: Data) -> Data:
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
    _refuse_attributes(data, *(['edge_attr'] if gdc.exact else []))
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


def _refuse_attributes(data: Data, *known: str) -> None:
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
        _measure_of(gdc.diffusion_kwargs),
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
