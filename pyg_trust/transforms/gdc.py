"""Graph diffusion convolution by AGP queries."""

import copy
import inspect
from typing import Any

import torch
import torch_geometric.transforms as pyg
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform

from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_non_negative,
)
from pyg_trust._describe import described
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.queries import METHODS, query
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._building import row_of_entries
from pyg_trust.transforms import _pyg_gdc
from pyg_trust.transforms.agp import MeasureTransform

__all__ = ['GDC']

NORMALIZATIONS = ('in', 'sym', None)


@functional_transform('agp_gdc')
class GDC(MeasureTransform):
    r"""Replace the edges by a sparsified diffusion matrix.

    Graph diffusion convolution (`"Diffusion Improves Graph Learning"
    <https://arxiv.org/abs/1911.05485>`_, Gasteiger et al. 2019) lets any
    message-passing model run on

    .. math::
        \mathbf{S} = \sum_{i=0}^{L} w_i \left( D^{-a} A D^{-b} \right)^i

    instead of the graph (functional name: :obj:`agp_gdc`). Row :math:`s` of
    :math:`\mathbf{S}` is :math:`\mathbf{S}^{\top} e_s`, one AGP query
    (:func:`pyg_trust.agp.query`), so that nothing dense is ever built:
    time is about :math:`n/\varepsilon`, memory that of the result. Heat
    kernels work like PPR, unlike in PyG's
    :class:`~torch_geometric.transforms.GDC`, whose approximate path knows PPR
    alone.

    Node :math:`s` receives from the nodes :math:`u` that are largest in its
    row: :obj:`edge_index` holds :math:`u \to s`, :obj:`edge_weight` the
    normalised value. Attributes of the old edges are refused, as they have no
    meaning for the new ones.

    With the arguments of PyG's :class:`~torch_geometric.transforms.GDC`, or
    with none, this is that transform, which reads and writes
    :obj:`edge_attr`: :obj:`exact=True` is PyG's dense computation itself;
    :obj:`exact=False` prunes queries, at half of PyG's threshold :obj:`eps`,
    needs no numba, and knows heat kernels, coefficients and top-k as well.

    Args:
        measure (str or Measure): :obj:`'appnp'` (PPR on the symmetrically
            normalised graph) or :obj:`'heat'`, as in the paper; or any other,
            as in :class:`AGP`. (default: :obj:`'appnp'`)
        *args (optional): PyG's arguments by position, if the first is its
            :obj:`self_loop_weight`.
        alpha (float, optional): as in :class:`AGP`. (default: :obj:`None`)
        t (float, optional): as in :class:`AGP`. (default: :obj:`None`)
        beta (float, optional): as in :class:`AGP`. (default: :obj:`None`)
        levels (int, optional): as in :class:`AGP`. (default: :obj:`None`)
        tol (float, optional): as in :class:`AGP`. (default: :obj:`None`)
        top_k (int, optional): the number of largest entries to keep of each
            query. (default: :obj:`None`)
        threshold (float): the value at or below which entries are dropped.
            (default: :obj:`0.0`)
        normalization (str, optional): :obj:`'in'` makes the weights that
            enter a node sum to one, :obj:`'sym'` divides by the square roots
            of the sums at both ends, :obj:`None` leaves the diffusion values.
            (default: :obj:`'in'`)
        eps (float): the quantum of AGP, or the threshold of pruning.
            (default: :obj:`1e-4`)
        method (str): :obj:`'sample'` or :obj:`'prune'`, as in
            :func:`pyg_trust.agp.query`: at equal time pruning finds
            more of the largest entries where walks mix slowly.
            (default: :obj:`'sample'`)
        seed (int, optional): as in :class:`AGP`. (default: :obj:`None`)
        **kwargs (optional): PyG's arguments, which can't be combined with the
            others: :obj:`self_loop_weight`, :obj:`normalization_in`,
            :obj:`normalization_out`, :obj:`diffusion_kwargs`,
            :obj:`sparsification_kwargs` and :obj:`exact`.

    Raises:
        TypeError, ValueError: as :class:`AGP`, and if :obj:`top_k` and
            :obj:`threshold` both leave the result dense, :obj:`method` or
            :obj:`normalization` is unknown, or PyG's arguments go with others.
    """

    def __init__(
        self,
        measure: str | Measure | float | None = 'appnp',
        *args: Any,
        alpha: float | None = None,
        t: float | None = None,
        beta: float | None = None,
        levels: int | None = None,
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
        default = {'measure': 'appnp', **(GDC.__init__.__kwdefaults__ or {})}
        own = [n for n, value in default.items() if values[n] != value]
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
            self._pyg = _pyg_gdc.checked(**kwargs)
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
            levels=levels,
            tol=tol,
        )
        self.top_k = top_k
        self.method = method
        self.threshold = threshold
        self.normalization = normalization

    def forward(self, data: Data) -> Data:
        """Return the graph with the diffusion matrix as its edges."""
        if self._pyg is not None:
            return _pyg_gdc.transform(self._pyg, data)
        graph = CSRGraph.from_data(data)
        _pyg_gdc.refuse_attributes(data, 'edge_weight')
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
        """Make the measure for :obj:`graph`, from PyG's arguments if given."""
        if self._pyg is not None:
            check_instance('graph', graph, CSRGraph)
            return _pyg_gdc.measure_of(self._pyg.diffusion_kwargs)
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
