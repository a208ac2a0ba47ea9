"""Graph scattering as a transform, and the base of such embeddings."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust._checks import Count, check_tensor, validated
from pyg_trust._describe import described
from pyg_trust._moved import retired
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.scattering.transform import check_order, scattering_transform

__all__ = ['GFT', 'GraphEmbedding', 'GraphScattering']


@validated
class GraphEmbedding(BaseTransform):
    """Base of transforms that write one vector per graph.

    The features of a graph are ``data.x``, or the one-hot degrees of its nodes
    if :obj:`max_degree` is given. A graph's vector depends on no other graph,
    so that a removal of one graph does not change the vectors of others.

    Args:
        max_degree (int, optional): use one-hot degrees as features, of the
            width ``max_degree + 1``; larger degrees count as
            :obj:`max_degree`. Choose it without looking at the data. By
            default ``data.x`` is used. (default: :obj:`None`)
        clip (bool): whether to clip features to :math:`[-1, 1]`; otherwise
            features outside are an error. (default: :obj:`False`)
        attr (str): the attribute to write. (default: :obj:`'z'`)
    """

    def __init__(
        self,
        max_degree: Count | None = None,
        clip: bool = False,
        attr: str = 'z',
    ) -> None:
        self.max_degree = max_degree
        self.clip = clip
        self.attr = attr

    def forward(self, data: Data) -> Data:
        """Write the vectors, ``[num_graphs, num_coefficients]``, to the graph.

        They become the attribute :obj:`attr` of the graph or batch.
        """
        data[self.attr] = self.embed(data)
        return data

    def embed(
        self,
        data: Data | Sequence[Data],
        dtype: torch.dtype | None = None,
        sparse: bool = False,
    ) -> Tensor:
        """Return the vectors of a graph, a batch or a list of graphs.

        Args:
            data (Data, Batch or list[Data]): the graphs.
            dtype (torch.dtype, optional): the dtype of the vectors; by default
                that of the features.
            sparse (bool): whether to return a sparse CSR matrix.

        Returns:
            Tensor: ``[num_graphs, num_coefficients]``.
        """
        _check_dtype(dtype)
        if not isinstance(data, Data | HeteroData):
            if not isinstance(data, Iterable) or isinstance(data, Tensor):
                raise TypeError(
                    "'data' needs to hold homogeneous "
                    f'torch_geometric.data.Data (got {type(data).__name__})'
                )
            data = list(data)
            if not data:
                raise ValueError("'data' needs to hold at least one graph")
            if len(data) == 1:
                data = data[0]
            else:
                keys = ['edge_index', 'adj_t', 'edge_weight', 'x']
                data = Batch.from_data_list([_only(g, keys) for g in data])
        graph = CSRGraph.from_data(data)
        x = self.signal(data, graph, dtype)
        return self._embed(graph, x, _ptr(data), sparse)

    @validated
    def signal(
        self,
        data: Data,
        graph: CSRGraph | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the features to embed: ``[num_nodes, num_features]``.

        Args:
            data (Data): the graph or batch.
            graph (CSRGraph, optional): the same graph, already converted.
            dtype (torch.dtype, optional): the dtype of the result; by default
                that of ``data.x``. One-hot degrees are a sparse CSR matrix.
        """
        _check_dtype(dtype)
        if self.max_degree is not None:
            graph = CSRGraph.from_data(data) if graph is None else graph
            n = graph.num_nodes
            dtype = dtype or torch.get_default_dtype()
            return sparse_rows(
                torch.arange(n + 1, device=graph.device),
                graph.degree.clamp(max=self.max_degree),
                torch.ones(n, dtype=dtype, device=graph.device),
                (n, self.max_degree + 1),
            )
        x = data.get('x')
        if x is None:
            raise ValueError(
                "'data' needs to have features 'x', or 'max_degree' to be "
                'given to use one-hot degrees'
            )
        x = x.view(-1, 1) if isinstance(x, Tensor) and x.dim() == 1 else x
        n = data.num_nodes
        check_tensor('x', x, None, (n, 'num_features'))
        x = x if dtype is None else x.to(dtype)
        if self.clip:
            return x.clamp(-1, 1)
        largest = float(x.abs().max()) if x.numel() > 0 else 0.0
        if not largest <= 1:
            raise ValueError(
                f"'x' needs to be in [-1, 1] (got {largest:.6g} in magnitude)"
                ': scale it by constants that do not depend on the data, or '
                'clip=True'
            )
        return x

    def _embed(
        self, graph: CSRGraph, x: Tensor, ptr: Tensor | None, sparse: bool
    ) -> Tensor:
        raise NotImplementedError


@functional_transform('graph_scattering')
class GraphScattering(GraphEmbedding):
    r"""Embed graphs by moments of their filtered features.

    A bank of :math:`J` wavelet filters is applied to the features, and again
    to the absolute values of the results, in :math:`L - 1` layers. Each of the
    :math:`T = \sum_{l < L} J^l` sequences of filters (paths) gives the means
    over nodes of the powers 1 to :math:`Q` (moments) of each feature. So
    ``[num_graphs, T * num_features * Q]`` is written to ``data.z``, in the
    order (path, feature, moment). See
    :func:`~pyg_trust.scattering.scattering_transform` (functional name:
    :obj:`graph_scattering`).

    Args:
        J (int): the number of filters. (default: :obj:`5`)
        Q (int): the number of moments. (default: :obj:`4`)
        L (int): the number of layers, where the features themselves count as
            the first one. (default: :obj:`3`)
        wavelet (str): :obj:`'geometric'` (of :math:`D^{-1} A`; the default),
            :obj:`'geometric_column'` (of :math:`A D^{-1}`), :obj:`'itersine'`,
            :obj:`'diffusion'` or :obj:`'monic_cubic'`.
        low_pass (str): :obj:`'mean'` for means over nodes, or :obj:`'degree'`
            to weight nodes by their degrees. (default: :obj:`'mean'`)
        linear (bool): whether to leave out the absolute value (linear-GST).
        max_degree (int, optional): use one-hot degrees up to this one as
            features; by default ``data.x``. (default: :obj:`None`)
        clip (bool): whether to clip features to :math:`[-1, 1]`; otherwise
            features outside are an error. (default: :obj:`False`)
        attr (str): the attribute to write. (default: :obj:`'z'`)

    Example:
        >>> data = Data(
        ...     x=torch.rand(3, 2),
        ...     edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        ... )
        >>> GraphScattering(J=2, Q=1, L=2)(data).z.shape  # 1 + J paths
        torch.Size([1, 6])
    """

    @retired(sparse=(False,), dtype=(None,))
    def __init__(
        self,
        J: int = 5,
        Q: int = 4,
        L: int = 3,
        *,
        wavelet: str = 'geometric',
        low_pass: str = 'mean',
        linear: bool = False,
        max_degree: int | None = None,
        clip: bool = False,
        attr: str = 'z',
    ) -> None:
        super().__init__(max_degree, clip, attr)
        check_order(wavelet, low_pass, J, Q, L)
        self.J = J
        self.Q = Q
        self.L = L
        self.wavelet = wavelet
        self.low_pass = low_pass
        self.linear = linear

    def _embed(
        self, graph: CSRGraph, x: Tensor, ptr: Tensor | None, sparse: bool
    ) -> Tensor:
        return scattering_transform(
            graph,
            x,
            ptr,
            J=self.J,
            Q=self.Q,
            L=self.L,
            wavelet=self.wavelet,
            low_pass=self.low_pass,
            linear=self.linear,
            sparse=sparse,
        )

    def __repr__(self) -> str:
        return described(self)


@functional_transform('graph_fourier')
class GFT(GraphEmbedding):
    r"""Embed undirected graphs by Fourier coefficients of their features.

    The baseline of `Pan et al. <https://arxiv.org/abs/2211.10627>`_
    (functional name: :obj:`graph_fourier`). For a graph of :math:`g` nodes,
    let :math:`V` be the eigenvectors and :math:`\lambda` the eigenvalues of
    the normalized Laplacian, and :math:`\hat{X} = V^\top X`. The vector has
    the entries

    .. math::
        z_f = \frac1g \sum_k \hat{X}_{kf}
        \quad \text{or} \quad
        z_{b, f} = \frac1g \sum_{k : \lambda_k \in \text{band } b}
        \hat{X}_{kf}^2,

    the second if :obj:`num_bands` is given. The first depends on the signs of
    the eigenvectors (chosen so that each sums to at least 0), and on their
    basis where an eigenvalue is repeated. The second depends on neither.

    Args:
        num_bands (int, optional): into how many equal bands the range
            :math:`[0, 2]` of eigenvalues is cut; by default the first formula
            is used. (default: :obj:`None`)
        max_degree (int, optional): use one-hot degrees up to this one as
            features; by default ``data.x``. (default: :obj:`None`)
        clip (bool): whether to clip features to :math:`[-1, 1]`; otherwise
            features outside are an error. (default: :obj:`False`)
        attr (str): the attribute to write. (default: :obj:`'z'`)
    """

    def __init__(
        self,
        num_bands: Count | None = None,
        *,
        max_degree: Count | None = None,
        clip: bool = False,
        attr: str = 'z',
    ) -> None:
        super().__init__(max_degree, clip, attr)
        self.num_bands = num_bands

    def _embed(
        self,
        graph: CSRGraph,
        x: Tensor,
        ptr: Tensor | None,
        sparse: bool,
    ) -> Tensor:
        if not graph.is_undirected:
            raise ValueError(
                "'data' needs to be undirected for the graph Fourier "
                'embedding: apply torch_geometric.transforms.ToUndirected()'
            )
        x = x if x.layout == torch.strided else x.to_dense()
        row, col = graph.to_edge_index()[0]
        ends = [0, x.size(0)] if ptr is None else ptr.tolist()
        rows = []
        for start, end in pairwise(ends):
            inside = slice(int(graph.rowptr[start]), int(graph.rowptr[end]))
            adj = x.new_zeros((end - start, end - start))
            adj[row[inside] - start, col[inside] - start] = 1
            scale = adj.sum(1).pow(-0.5).nan_to_num(posinf=0)
            lonely = torch.diag((scale == 0).to(x.dtype))
            walk = scale[:, None] * adj * scale + lonely
            values, vectors = torch.linalg.eigh(
                torch.eye(len(adj)).to(x) - walk
            )
            signal = vectors.t() @ x[start:end]
            if self.num_bands is None:
                sign = torch.where(vectors.sum(0) < 0, -1.0, 1.0).to(x.dtype)
                rows.append(sign @ signal / len(adj))
                continue
            band = (values * self.num_bands / 2).long()
            band = band.clamp(0, self.num_bands - 1)
            energy = x.new_zeros((self.num_bands, x.size(1)))
            energy.index_add_(0, band, signal.square() / len(adj))
            rows.append(energy.view(-1))
        z = torch.stack(rows)
        return z.to_sparse_csr() if sparse else z

    def __repr__(self) -> str:
        return described(self)


def _check_dtype(dtype: torch.dtype | None) -> None:
    if dtype not in (None, torch.float32, torch.float64):
        raise TypeError(
            f"'dtype' needs to be float32 or float64 (got {dtype})"
        )


def _only(data: Any, keys: list[str]) -> Data:
    # The attributes that an embedding reads: batches hold nothing else.
    if not isinstance(data, Data):
        raise TypeError(
            "'data' needs to hold homogeneous torch_geometric.data.Data "
            f'(got {type(data).__name__})'
        )
    kept = {key: data[key] for key in keys if data.get(key) is not None}
    return Data(**kept, num_nodes=data.num_nodes)


def _ptr(data: Data) -> Tensor | None:
    if data.get('ptr') is not None:
        return data.ptr
    if data.get('batch') is None:
        return None
    batch = data.batch
    if bool((batch.diff() < 0).any()):
        raise ValueError("'batch' needs to be ascending")
    ptr = batch.new_zeros(int(batch.max()) + 2)
    ptr[1:] = batch.bincount().cumsum(0)
    return ptr
