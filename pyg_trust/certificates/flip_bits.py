"""Random flips of edges and features: the noise of smoothing."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust import ops, rng
from pyg_trust._checks import check_instance, check_tensor
from pyg_trust._checks.graphs import with_edge_index
from pyg_trust._describe import described
from pyg_trust.certificates.smoothing import check_noise, sampling_slack
from pyg_trust.graph import CSRGraph
from pyg_trust.graph.attributes import adjacencies, edge_attributes
from pyg_trust.graph.ragged import pointer

__all__ = ['BitFlips', 'FlipBits', 'NoisyCopies']

# Their places are parts of the seed.
KINDS = ('edges', 'features')


@dataclass(frozen=True)
class BitFlips:
    """Random flips of edges and binary features, for smoothing.

    :func:`certify_smoothed` certifies a model against changes of the entries
    that this noise flips. Every entry flips independently: a 0 becomes 1 with
    probability :math:`p_+`, and a 1 becomes 0 with probability :math:`p_-`.
    For edges, the entries are the :math:`n (n - 1) / 2` pairs of distinct
    nodes (with :obj:`directed` the :math:`n (n - 1)` ordered pairs);
    self-loops never flip. For features, they are the entries of ``x``, which
    are all 0 or 1. If both probabilities are 0, nothing of this kind flips,
    and changes of it are not certified.

    Take a small :math:`p_+` on a large sparse graph: most entries are 0, and
    each that flips adds an edge. With :math:`p_+ = 0` and :math:`p_-` above
    1/2, one addition and many deletions can be certified.

    Args:
        edges (tuple[float, float]): :math:`(p_+, p_-)` of the edges, with
            :math:`p_+ + p_- < 1`. (default: :obj:`(0.0, 0.0)`)
        features (tuple[float, float]): :math:`(p_+, p_-)` of the features,
            with the same condition. (default: :obj:`(0.0, 0.0)`)
        directed (bool): whether the two directions of an edge flip
            independently, not together. (default: :obj:`False`)

    Example:
        >>> BitFlips(edges=(0.0, 0.6))
        BitFlips(edges=(0.0, 0.6), features=(0.0, 0.0), directed=False)
    """

    edges: tuple[float, float] = (0.0, 0.0)
    features: tuple[float, float] = (0.0, 0.0)
    directed: bool = False

    def __post_init__(self) -> None:
        for kind in KINDS:
            pair = check_noise(kind, getattr(self, kind))
            object.__setattr__(self, kind, pair)
        if not any(max(getattr(self, kind)) > 0 for kind in KINDS):
            raise ValueError(
                "'edges' or 'features' needs to have noise (got none)"
            )

    @property
    def noisy(self) -> tuple[str, ...]:
        """The kinds that can flip: ``'edges'``, ``'features'`` or both."""
        return tuple(kind for kind in KINDS if max(getattr(self, kind)) > 0)


class NoisyCopies:
    """Numbered noisy copies of one graph."""

    def __init__(self, data: Data, noise: BitFlips) -> None:
        self.data, self.noise = data, noise
        self.num_nodes = int(data.num_nodes)
        #: The rows and columns of what is noisy, and its zeros and ones.
        self.held: dict[str, tuple[Tensor, Tensor]] = {}
        self.cells = dict.fromkeys(KINDS, (0, 0))
        if 'edges' in noise.noisy:
            graph = _graph(data, noise)
            self.held['edges'] = graph.rowptr, graph.col.int()
            n, ones = self.num_nodes, int((graph.row != graph.col).sum())
            total = n * (n - 1)
            if not noise.directed:
                total, ones = total // 2, ones // 2
            self.cells['edges'] = total - ones, ones
        if 'features' in noise.noisy:
            self.held['features'] = _bits(data)
            ones = self.held['features'][1].numel()
            self.cells['features'] = data.x.numel() - ones, ones

    @property
    def slack(self) -> float:
        """Bound of the total variation between drawn and stated noise."""
        return sum(
            sampling_slack(sum(self.cells[kind]))
            for kind in self.noise.noisy
            if getattr(self.noise, kind)[0] > 0
        )

    def draw(
        self, kind: str, seed: int, first: int, count: int
    ) -> tuple[Tensor, Tensor]:
        """Draw the edges or the features of some copies as a CSR.

        Edges are block-diagonal, features one copy below the other.
        """
        (rowptr, col), cells, width = self.held[kind], 'all', self.num_nodes
        if kind == 'features':
            width = self.data.x.size(1)
        else:
            cells = 'directed' if self.noise.directed else 'undirected'
        plus, minus = getattr(self.noise, kind)
        key = rng.derive(seed, KINDS.index(kind))
        return ops.flip_bits(
            rowptr, col, width, plus, minus, cells, key, first, count
        )


@functional_transform('flip_bits')
class FlipBits(BaseTransform):
    """Flips edges and binary features at random (functional name:
    :obj:`flip_bits`).

    Train a model on such graphs, with new noise each epoch, if it will be
    certified with the same noise (:class:`BitFlips`), as in `"Efficient
    Robustness Certificates for Discrete Data"
    <https://arxiv.org/abs/2008.12952>`_ (Bojchevski et al. 2020).

    .. code-block:: python

        flip = FlipBits(edges=(0.0, 0.6))
        for epoch in range(200):
            noisy = flip(data)
            loss = criterion(model(noisy.x, noisy.edge_index)[mask], y[mask])

    Args:
        edges (tuple[float, float]): :math:`(p_+, p_-)` of the edges: one is
            added with :math:`p_+` wherever there is none, and deleted with
            :math:`p_-`. (default: :obj:`(0.0, 0.0)`)
        features (tuple[float, float]): :math:`(p_+, p_-)` of the entries of
            ``x``, which are all 0 or 1. (default: :obj:`(0.0, 0.0)`)
        directed (bool): whether the two directions of an edge flip
            independently, not together. (default: :obj:`False`)
        seed (int, optional): a seed, with which every call draws the same
            noise; by default every call draws new noise from torch's
            generator.
    """  # noqa: D205

    def __init__(
        self,
        edges: tuple[float, float] = (0.0, 0.0),
        features: tuple[float, float] = (0.0, 0.0),
        directed: bool = False,
        seed: int | None = None,
    ) -> None:
        self.noise = BitFlips(edges, features, directed)
        self.seed = None if seed is None else rng.resolve(seed)

    def forward(self, data: Data) -> Data:
        """Return a copy of the graph with flipped edges and features."""
        data = with_edge_index(data)
        check_graph(data, self.noise)
        copies = NoisyCopies(data, self.noise)
        seed = rng.resolve(self.seed)
        if 'edges' in copies.held:
            data.num_nodes = copies.num_nodes
            flipped = edge_index_of(*copies.draw('edges', seed, 0, 1))
            data.edge_index = flipped.to(data.edge_index.device)
        if 'features' in copies.held:
            row, col = edge_index_of(*copies.draw('features', seed, 0, 1))
            x = torch.zeros_like(data.x)
            x[row.to(x.device), col.to(x.device)] = 1
            data.x = x
        return data

    def __repr__(self) -> str:
        return described(
            self,
            edges=self.noise.edges,
            features=self.noise.features,
            directed=self.noise.directed,
        )


def edge_index_of(ptr: Tensor, col: Tensor) -> Tensor:
    """Return the rows of a CSR as an ``edge_index``."""
    row = torch.arange(ptr.numel() - 1).repeat_interleave(ptr.diff())
    return torch.stack([row, col.long()])


def check_graph(data: Any, noise: BitFlips) -> None:
    """Refuse a graph that the noise can't be applied to."""
    check_instance('data', data, Data)
    if data.edge_index is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    if not data.num_nodes:
        raise ValueError("'data' needs to have at least one node (got 0)")
    CSRGraph.from_edge_index(
        data.edge_index.cpu(), data.num_nodes, duplicates='keep'
    )
    if 'edges' in noise.noisy:
        for name in (*edge_attributes(data), *adjacencies(data)):
            if name != 'edge_index':
                raise ValueError(
                    f"'data' can't have an '{name}' under noise on the "
                    'edges: it would stay that of the clean graph. Drop it '
                    f'(del data.{name}) if the model does without, or '
                    'have noise on the features alone'
                )
        _graph(data, noise)
    if data.get('x') is not None:
        check_instance('x', data.x, Tensor)
    if 'features' in noise.noisy:
        _bits(data)


def _graph(data: Data, noise: BitFlips) -> CSRGraph:
    # The conversion refuses duplicates.
    graph = CSRGraph.from_edge_index(data.edge_index.cpu(), data.num_nodes)
    if not noise.directed and not graph.is_undirected:
        raise ValueError(
            "'data' needs to have both directions of every edge, or the "
            'noise directed=True, which counts each by itself (got a '
            'directed graph)'
        )
    return graph


def check_features(data: Data) -> None:
    """Refuse features that are no dense rows of the nodes."""
    x = data.get('x')
    if x is None:
        raise ValueError(
            "'data' needs to have features 'x', or a 'transform' that makes "
            'them'
        )
    check_tensor('x', x, None, (data.num_nodes, 'num_features'))


def _bits(data: Data) -> tuple[Tensor, Tensor]:
    check_features(data)
    x = data.x.detach().cpu()
    if not bool(((x == 0) | (x == 1)).all()):
        raise ValueError(
            "'x' needs to be 0 or 1 everywhere under noise on the features "
            '(got another value)'
        )
    row, col = x.nonzero(as_tuple=True)
    return pointer(row.bincount(minlength=x.size(0))), col.int()
