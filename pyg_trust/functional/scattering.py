r"""Graph scattering: wavelets, frames, moments, paths.

The transform is that of `"Geometric Scattering for Graph Data Analysis"
<https://arxiv.org/abs/1810.03068>`_ (Gao et al. 2019) and `"Unlearning Graph
Classifiers with Limited Data Resources" <https://arxiv.org/abs/2211.03216>`_
(Pan et al. 2023). With a bank of :math:`J` filters :math:`H_0, \dots,
H_{J-1}` on a graph of :math:`g` nodes,

.. math::
    U_{()} = X, \quad U_{(p, j)} = | H_j U_p |, \quad
    \phi_{p, f, q} = u^\top (U_p)_{:, f}^{\,q}, \quad q = 1, \dots, Q,

for all paths :math:`p` of fewer than :math:`L` filters (:math:`L` counts the
root), :math:`T = \sum_{l < L} J^l` of them, where :math:`u` is the low-pass,
:math:`1/g` unless stated otherwise. Only :math:`q = 1` feeds the next layer,
the moments of the root are those of :math:`X` itself, with its signs, and no
root of a moment is taken. The order of the coefficients is (path, feature,
moment), paths breadth first.

**Banks.** Write :math:`d` for the degrees, :math:`1/d = 0` at degree zero.

==================== =====================================================
``geometric``        :math:`H_0 = I - P,\; H_j = P^{2^{j-1}} - P^{2^j}` of
                     the row walk :math:`P = \frac12 (I + D^{-1} A)`
``geometric_column`` the same of :math:`P = \frac12 (I + A D^{-1})`
``diffusion``        the same of :math:`P = \frac12 (I + D^{-1/2} A
                     D^{-1/2})`
``itersine``         :math:`H_j = h_j(\Lambda)` of the Laplacian
                     :math:`\Lambda = I - D^{-1/2} A D^{-1/2}`,
                     :func:`itersine`
``monic_cubic``      the same with :func:`monic_cubic`
==================== =====================================================

**Frames.** :math:`\sum_j \lVert H_j x \rVert^2 \le B^2 \lVert x \rVert^2`
with :math:`B = 1` for ``diffusion`` (the eigenvalues :math:`t` of :math:`P`
are in :math:`[0, 1]`, the filters :math:`1 - t, t - t^2, \dots` are
non-negative and sum to :math:`1 - t^{2^{J-1}} \le 1`, so their squares do
too) and for ``itersine`` (with equality: a tight frame). The geometric banks
have no such constant for all graphs: on a star of :math:`g` nodes :math:`B`
grows as :math:`\sqrt{g}`. :func:`frame_bound` and :func:`frame_bounds` tell.

**Range.** With the row walk and features in :math:`[0, 1]` every coefficient
is in :math:`[0, 1]`: the rows of every power of :math:`P` are probabilities,
so that :math:`|H_j U|` is a difference of two averages of numbers in
:math:`[0, 1]`, and a moment is an average of powers of these. The column walk
has no bound that is free of the graph.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from pyg_trust._checks import check_choice, check_integer, check_tensor
from pyg_trust.functional.ragged import pointer, ranges
from pyg_trust.graph import CSRGraph, sparse_rows

WAVELETS = (
    'geometric',
    'geometric_column',
    'diffusion',
    'itersine',
    'monic_cubic',
)
LOW_PASSES = ('mean', 'degree')
METHODS = ('auto', 'dense', 'sparse')

# The spectrum of the normalized Laplacian is in [0, 2].
LAMBDA_MAX = 2.0
# The widest over the narrowest scale of monic cubic wavelets (Hammond et al.).
MONIC_CUBIC_RATIO = 20.0

# A multiplication in a batched dense product costs a sixth of one in a sparse
# product, and a call costs as much as 20,000 of the latter
# (benchmarks/scattering.py --tune).
_DENSE_COST = 1 / 6
_CALL_COST = 20_000
# Nodes of a sparse block and numbers in the last layer of a dense block: both
# keep a block's signals in the cache.
_SPARSE_NODES = 2048
_DENSE_NUMBERS = 2**18
# Numbers in the last layer of a sparse block that is one large graph: more
# columns are taken one part after the other.
_SPARSE_NUMBERS = 2**22


class ScatteringPath(NamedTuple):
    """What one scattering coefficient is.

    Args:
        layer (int): how many filters were applied.
        filters (tuple[int, ...]): which, the first one first.
        feature (int): the column of the features.
        moment (int): the power that was averaged.
    """

    layer: int
    filters: tuple[int, ...]
    feature: int
    moment: int

    @property
    def name(self) -> str:
        """The path as text, such as ``'U[0,2] x3 q1'``."""
        filters = ','.join(map(str, self.filters))
        return f'U[{filters}] x{self.feature} q{self.moment}'


def num_paths(J: int, L: int) -> int:
    r"""The number :math:`T = \sum_{l < L} J^l` of nodes in the tree."""
    check_integer('J', J, 1)
    check_integer('L', L, 0)
    return sum(J**layer for layer in range(L))


def scattering_path(
    index: int, num_features: int, J: int, Q: int, L: int
) -> ScatteringPath:
    """The path of a coefficient.

    Args:
        index (int): the position in the coefficient vector.
        num_features (int): the number of features.
        J (int): the number of filters.
        Q (int): the number of moments.
        L (int): the number of layers.

    Raises:
        ValueError: if there is no such coefficient.
    """
    check_integer('num_features', num_features, 1)
    check_integer('Q', Q, 1)
    size = num_paths(J, L) * num_features * Q
    if not 0 <= check_integer('index', index) < size:
        raise ValueError(f"'index' needs to be in [0, {size}) (got {index})")
    node, rest = divmod(index, num_features * Q)
    layer = 0
    while node >= J**layer:
        node -= J**layer
        layer += 1
    filters = tuple(
        node // J ** (layer - 1 - depth) % J for depth in range(layer)
    )
    return ScatteringPath(layer, filters, rest // Q, rest % Q + 1)


def itersine(eigenvalue: Tensor, J: int) -> Tensor:
    r"""The itersine kernels, rescaled to be tight on :math:`[0, 2]`.

    .. math::
        h_j(\lambda) = \sin\!\left( \tfrac{\pi}{2} \cos^2\!\left( \pi
        \left( s - \tfrac{j-1}{2} \right) \right) \right)
        \mathbb{1}\!\left[ \tfrac{j}{2} - 1 \le s \le \tfrac{j}{2} \right],
        \quad s = \frac{J - 1}{2} \cdot \frac{\lambda}{2},
        \quad j = 1, \dots, J.

    :math:`s` runs over :math:`[0, (J-1)/2]`, where every point lies in two
    neighbouring windows (three where one of them is zero), whose arguments
    are :math:`\frac{\pi}{2} \cos^2` and :math:`\frac{\pi}{2} \sin^2`, so
    that :math:`\sum_j h_j^2 = 1`. Without the rescaling, as printed in the
    paper, this holds on :math:`[0, 2]` only for :math:`J = 5`.

    Args:
        eigenvalue (Tensor): eigenvalues of the normalized Laplacian.
        J (int): the number of kernels, at least 3.

    Returns:
        Tensor: the kernels in a new last dimension of size :obj:`J`.
    """
    _check_floating('eigenvalue', eigenvalue)
    check_integer('J', J, 3)
    s = (eigenvalue * ((J - 1) / (2 * LAMBDA_MAX))).unsqueeze(-1)
    j = torch.arange(1, J + 1, dtype=s.dtype, device=s.device)
    inside = (s >= j / 2 - 1) & (s <= j / 2)
    wave = (math.pi * (s - (j - 1) / 2)).cos().square() * (math.pi / 2)
    return wave.sin() * inside


def monic_cubic(eigenvalue: Tensor, J: int) -> Tensor:
    r"""The monic cubic kernels: a low-pass and :math:`J - 1` bands.

    .. math::
        h(\lambda) = \begin{cases} \lambda & \lambda < 1 \\
        -2 + 5.5 \lambda - 3 \lambda^2 + 0.5 \lambda^3 & 1 \le \lambda \le 2
        \\ 2 / \lambda & \lambda > 2 \end{cases}

    at the scales :math:`t_1, \dots, t_{J-1}`, spaced logarithmically from
    :math:`2 / \lambda_\mathrm{max}` to :math:`2 K / \lambda_\mathrm{max}`
    with :math:`K = 20` and :math:`\lambda_\mathrm{max} = 2`, and the low-pass
    :math:`\max_\lambda h(\lambda) \cdot \exp(-(\lambda / (0.6\,
    \lambda_\mathrm{max} / K))^4)` (`Hammond et al. 2011
    <https://arxiv.org/abs/0912.3848>`_).

    The cubic is the one that meets :math:`\lambda` and :math:`2 / \lambda`
    with equal slopes. The paper prints the cubic of :math:`\lambda^2` and
    :math:`4 / \lambda^2` between them, which leaves kinks.

    Args:
        eigenvalue (Tensor): eigenvalues of the normalized Laplacian.
        J (int): the number of kernels, at least 3.

    Returns:
        Tensor: the kernels in a new last dimension of size :obj:`J`, the
        low-pass first, then from high to low frequencies.
    """
    _check_floating('eigenvalue', eigenvalue)
    check_integer('J', J, 3)
    low, high = 2 / LAMBDA_MAX, 2 * MONIC_CUBIC_RATIO / LAMBDA_MAX
    scales = torch.logspace(
        math.log10(low), math.log10(high), J - 1, dtype=torch.float64
    ).to(eigenvalue)
    scaled = eigenvalue.unsqueeze(-1) * scales
    # The maximum of the cubic is at 2 - 1 / sqrt(3).
    peak = 2 - 3**-0.5
    gamma = -2 + peak * (5.5 + peak * (-3 + 0.5 * peak))
    cubic = -2 + scaled * (5.5 + scaled * (-3 + 0.5 * scaled))
    bands = torch.where(
        scaled < 1,
        scaled,
        torch.where(scaled <= 2, cubic, 2 / scaled.clamp(min=1)),
    )
    cut = 0.6 * LAMBDA_MAX / MONIC_CUBIC_RATIO
    lowest = gamma * (-((eigenvalue / cut) ** 4)).exp()
    return torch.cat([lowest.unsqueeze(-1), bands], dim=-1)


_KERNELS = {'itersine': itersine, 'monic_cubic': monic_cubic}


def frame_bound(wavelet: str, J: int) -> float:
    r"""A constant :math:`B` that holds on every undirected graph.

    .. math::
        \sum_j \lVert H_j x \rVert^2 \le B^2 \lVert x \rVert^2

    One for ``diffusion`` and ``itersine``. For ``monic_cubic`` the supremum
    of :math:`\sqrt{\sum_j h_j(\lambda)^2}` over :math:`[0, 2]`, from above:
    the largest value on a fine grid plus half a step times
    :math:`\sqrt{\sum_j \max |h_j'|^2}`, which bounds the slope of the root.
    Infinite for the geometric banks, which have none.

    Args:
        wavelet (str): the bank.
        J (int): the number of filters.
    """
    _check_wavelet(wavelet)
    check_integer('J', J, _least_filters(wavelet))
    if wavelet in ('diffusion', 'itersine'):
        return 1.0
    if wavelet != 'monic_cubic':
        return math.inf
    grid = torch.linspace(0, LAMBDA_MAX, 2**18 + 1, dtype=torch.float64)
    height = monic_cubic(grid, J).norm(dim=-1).max()
    # |h'| <= 1 at scale 1, times the scale; |(e^{-u^4})'| <= 4 u^3 e^{-u^4}
    # <= 1.6, times gamma < 1.2 and 1 / cut.
    low, high = 2 / LAMBDA_MAX, 2 * MONIC_CUBIC_RATIO / LAMBDA_MAX
    slopes = [low * (high / low) ** (j / (J - 2)) for j in range(J - 1)]
    slopes.append(1.2 * 1.6 / (0.6 * LAMBDA_MAX / MONIC_CUBIC_RATIO))
    step = float(grid[1] - grid[0])
    return float(height) + step / 2 * math.hypot(*slopes)


def frame_bounds(bank: Tensor) -> tuple[Tensor, Tensor]:
    r"""The frame constants :math:`A \le B` of a bank on its graph.

    .. math::
        A^2 \lVert x \rVert^2 \le \sum_j \lVert H_j x \rVert^2
        \le B^2 \lVert x \rVert^2,

    the square roots of the extreme eigenvalues of :math:`\sum_j H_j^\top
    H_j`.

    Args:
        bank (Tensor): ``[..., J, num_nodes, num_nodes]``,
            :func:`wavelet_bank`.

    Returns:
        tuple[Tensor, Tensor]: :math:`A` and :math:`B`, ``[...]``.
    """
    _check_square('bank', bank, 3)
    gram = (bank.mT @ bank).sum(-3)
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    return values[..., 0], values[..., -1]


def lazy_walk(adj: Tensor, wavelet: str) -> Tensor:
    r"""The lazy walk :math:`P = \frac12 (I + D^{-a} A D^{-b})` of a bank.

    :math:`(a, b)` is :math:`(1, 0)` for ``geometric``, :math:`(0, 1)` for
    ``geometric_column`` and :math:`(\frac12, \frac12)` else. A node of degree
    zero has :math:`P_{ii} = \frac12`.

    Args:
        adj (Tensor): dense, ``[..., num_nodes, num_nodes]``, non-negative.
        wavelet (str): the bank.
    """
    _check_wavelet(wavelet)
    _check_square('adj', adj, 2)
    scaled = adj
    for dim, power in (
        (-1, _EXPONENTS[wavelet][0]),
        (-2, _EXPONENTS[wavelet][1]),
    ):
        if power:
            scaled = scaled * _power(adj.sum(dim, keepdim=True), -power)
    eye = torch.eye(adj.size(-1), dtype=adj.dtype, device=adj.device)
    return (eye + scaled) / 2


def wavelet_bank(adj: Tensor, wavelet: str, J: int) -> Tensor:
    r"""The filters of graphs as dense matrices.

    Memory: :math:`J + 2` matrices of the size of :obj:`adj`.

    Args:
        adj (Tensor): dense, ``[..., num_nodes, num_nodes]``, non-negative;
            symmetric unless the bank is geometric.
        wavelet (str): the bank.
        J (int): the number of filters.

    Returns:
        Tensor: ``[..., J, num_nodes, num_nodes]``.
    """
    walk = lazy_walk(adj, wavelet)
    check_integer('J', J, _least_filters(wavelet))
    eye = torch.eye(adj.size(-1), dtype=adj.dtype, device=adj.device)
    if wavelet in _KERNELS:
        values, vectors = torch.linalg.eigh(2 * (eye - walk))
        response = _KERNELS[wavelet](values.clamp(0, LAMBDA_MAX), J)
        scaled = vectors.unsqueeze(-3) * response.mT.unsqueeze(-2)
        return scaled @ vectors.mT.unsqueeze(-3)
    filters = [eye - walk]
    for _ in range(J - 1):
        square = walk @ walk
        filters.append(walk - square)
        walk = square
    return torch.stack(filters, dim=-3)


def scattering_transform(
    graph: CSRGraph,
    x: Tensor,
    ptr: Tensor | None = None,
    *,
    J: int,
    Q: int,
    L: int,
    wavelet: str = 'geometric',
    low_pass: str = 'mean',
    linear: bool = False,
    sparse: bool = False,
    method: str = 'auto',
    progress_bar: bool = False,
) -> Tensor:
    r"""The scattering coefficients of every graph of a batch.

    A column of features that is zero on a graph is zero along all of its
    paths: only the *active* columns of each graph are computed. Graphs are
    taken in blocks of alike ones, by one of two ways: ``dense`` (the filters
    as matrices, powers by squaring, all paths of a layer in one product;
    memory :math:`O(J g^2)`) or ``sparse`` (all paths of a layer share each
    power of the walk; memory :math:`O(J^{L-1} g)` for as many active columns
    at a time as fit into 32 MB, at least one). ``auto`` takes for each graph
    the one that costs less. The spectral banks are always dense.

    Args:
        graph (CSRGraph): the disjoint union of the graphs, without
            self-loops; weights, if any, non-negative; undirected unless the
            bank is geometric, where row :math:`u` averages over the nodes
            that the edges of :math:`u` lead to.
        x (Tensor): the features, float32 or float64, ``[num_nodes,
            num_features]``, dense or sparse CSR.
        ptr (Tensor, optional): int64, ``[num_graphs + 1]``: where the nodes
            of each graph start; by default one graph.
            (default: :obj:`None`)
        J (int): the number of filters, at least 1 (3 for spectral banks).
        Q (int): the number of moments, at least 1.
        L (int): the number of layers, the root included, at least 1.
        wavelet (str): the bank, see the text of this module.
            (default: :obj:`'geometric'`)
        low_pass (str): the weights :math:`u`: :obj:`'mean'` for :math:`1/g`
            or :obj:`'degree'` for :math:`d / \lVert d \rVert_1` (of a graph
            without edges: :math:`1/g`). (default: :obj:`'mean'`)
        linear (bool): whether to leave out the absolute value.
            (default: :obj:`False`)
        sparse (bool): whether to return a sparse CSR matrix.
            (default: :obj:`False`)
        method (str): :obj:`'auto'`, :obj:`'dense'` or :obj:`'sparse'`.
            (default: :obj:`'auto'`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Tensor: ``[num_graphs, T * num_features * Q]``, of the dtype of
        :obj:`x`.

    Raises:
        TypeError: on a wrong graph or dtype.
        ValueError: on an argument out of range, features that are not finite,
            edges between graphs or to themselves, negative weights, or a
            directed graph where the bank needs an undirected one.
    """
    check_order(wavelet, low_pass, J, Q, L)
    check_choice('method', method, METHODS)
    if method == 'sparse' and wavelet in _KERNELS:
        raise ValueError(
            f"'method' needs to be 'dense' for the bank {wavelet!r}, which "
            'is no polynomial of the walk'
        )
    batch = _Batch.make(graph, x, ptr, wavelet)
    num_graphs, d, T = batch.num_graphs, x.size(1), num_paths(J, L)
    values = batch.value.new_empty((batch.pair_graph.numel(), T, Q))
    blocks = batch.blocks(wavelet, J, L, method)
    for block, dense in tqdm(
        blocks, disable=not progress_bar, desc='scattering'
    ):
        embed = _embed_dense if dense else _embed_sparse
        out = embed(batch, block, wavelet, J, Q, L, low_pass, linear)
        active = batch.active[block]
        slots = torch.arange(out.size(1), device=active.device)
        rows = ranges(batch.first[block], active)
        values[rows] = out[slots < active.view(-1, 1)]
    graph_id, column = batch.pair_graph, batch.pair_column
    if not sparse:
        if graph_id.numel() == num_graphs * d:
            z = values.view(num_graphs, d, T, Q).transpose(1, 2)
        else:
            z = values.new_zeros((num_graphs, T, d, Q))
            z[graph_id, :, column] = values
        return z.reshape(num_graphs, T * d * Q)
    path = torch.arange(T, device=x.device).view(1, T, 1)
    moment = torch.arange(Q, device=x.device)
    crow = pointer(batch.active * (T * Q))
    local = torch.arange(graph_id.numel(), device=x.device)
    local = local - batch.first[graph_id]
    at = path * batch.active[graph_id].view(-1, 1, 1) + local.view(-1, 1, 1)
    at = (at * Q + crow[graph_id].view(-1, 1, 1) + moment).view(-1)
    index = ((path * d + column.view(-1, 1, 1)) * Q + moment).view(-1)
    col = torch.empty_like(index)
    col[at] = index
    value = torch.empty_like(values).view(-1)
    value[at] = values.view(-1)
    return sparse_rows(
        crow,
        col,
        value,
        (num_graphs, T * d * Q),
    )


def graph_fourier(
    graph: CSRGraph,
    x: Tensor,
    ptr: Tensor | None = None,
    *,
    num_bands: int | None = None,
    progress_bar: bool = False,
) -> Tensor:
    r"""The graph Fourier embedding of the paper, or a well-defined one.

    With the eigenvectors :math:`V` of the normalized Laplacian of each graph
    and :math:`\hat{X} = V^\top X`,

    .. math::
        z_f = \frac1g \sum_k \hat{X}_{kf}
        \quad \text{or} \quad
        z_{b, f} = \frac1g \sum_{k : \lambda_k \in \text{band } b}
        \hat{X}_{kf}^2,

    the first (:obj:`num_bands = None`) as in the paper. It hangs on the signs
    of the eigenvectors, which are chosen here so that each sums to at least
    zero, and on their basis where an eigenvalue is repeated, which is the
    linear algebra library's; that is a flaw of this embedding, and one reason
    for its poor accuracy. The second is the energy in :obj:`num_bands` equal
    parts of :math:`[0, 2]` (the last one closed) and depends on neither.

    Memory: the dense eigenvectors of one graph at a time.

    Args:
        graph (CSRGraph): as in :func:`scattering_transform`, undirected.
        x (Tensor): dense, as in :func:`scattering_transform`.
        ptr (Tensor, optional): as in :func:`scattering_transform`.
            (default: :obj:`None`)
        num_bands (int, optional): the number of bands; by default the paper's
            mean. (default: :obj:`None`)
        progress_bar (bool): whether to show one. (default: :obj:`False`)

    Returns:
        Tensor: ``[num_graphs, num_features]`` or ``[num_graphs, num_bands *
        num_features]``.
    """
    if num_bands is not None:
        check_integer('num_bands', num_bands, 1)
    _check_features(graph, x)
    if x.layout == torch.sparse_csr:
        x = x.to_dense()
    batch = _Batch.make(graph, x, ptr, 'diffusion')
    rows = []
    graphs = range(batch.num_graphs)
    for i in tqdm(graphs, disable=not progress_bar, desc='spectra'):
        block = torch.tensor([i], device=x.device)
        adj, _ = batch.dense(block)
        laplacian = 2 * (
            torch.eye(adj.size(-1), dtype=x.dtype, device=x.device)
            - lazy_walk(adj[0], 'diffusion')
        )
        values, vectors = torch.linalg.eigh(laplacian)
        signal = x[batch.ptr[i] : batch.ptr[i + 1]]
        if num_bands is None:
            sums = vectors.sum(0)
            # 1^T V^T X / g with every sum made non-negative.
            sign = torch.where(sums < 0, -1.0, 1.0).to(x.dtype)
            rows.append(sign @ (vectors.t() @ signal) / signal.size(0))
        else:
            energy = (vectors.t() @ signal).square() / signal.size(0)
            band = (values * (num_bands / LAMBDA_MAX)).long()
            band = band.clamp(0, num_bands - 1)
            parts = energy.new_zeros((num_bands, x.size(1)))
            rows.append(parts.index_add_(0, band, energy).view(-1))
    return torch.stack(rows)


# Private ####################################################################

# a and b of D^-a A D^-b.
_EXPONENTS = {
    'geometric': (1.0, 0.0),
    'geometric_column': (0.0, 1.0),
    'diffusion': (0.5, 0.5),
    'itersine': (0.5, 0.5),
    'monic_cubic': (0.5, 0.5),
}


class _Batch(NamedTuple):
    # A checked batch: its graph, where its graphs start, and the non-zero
    # features as entries (node, slot, value), where the slot counts the
    # active columns of each graph. A pair is a graph and an active column.
    graph: CSRGraph
    row: Tensor
    weight: Tensor
    ptr: Tensor
    size: Tensor
    edges: Tensor
    entry_ptr: Tensor
    node: Tensor
    slot: Tensor
    value: Tensor
    active: Tensor
    first: Tensor
    pair_graph: Tensor
    pair_column: Tensor

    @property
    def num_graphs(self) -> int:
        return self.size.numel()

    @classmethod
    def make(
        cls, graph: CSRGraph, x: Tensor, ptr: Tensor | None, wavelet: str
    ) -> '_Batch':
        _check_features(graph, x)
        n = graph.num_nodes
        ptr = _check_ptr(graph, ptr)
        size = ptr.diff()
        owner = torch.arange(size.numel(), device=ptr.device)
        owner = owner.repeat_interleave(size)
        row = graph.row
        if bool((row == graph.col).any()):
            raise ValueError(
                "'graph' needs to have no self-loops: the lazy walk has its "
                'own'
            )
        if size.numel() > 1 and bool((owner[row] != owner[graph.col]).any()):
            raise ValueError("'graph' has edges between the parts of 'ptr'")
        if _EXPONENTS[wavelet] == (0.5, 0.5) and not graph.is_undirected:
            raise ValueError(
                f"'graph' needs to be undirected for the bank {wavelet!r}: "
                'make it so with torch_geometric.transforms.ToUndirected, or '
                "choose 'geometric'"
            )
        dtype = x.dtype
        if graph.weight is None:
            weight = torch.ones(row.numel(), dtype=dtype, device=x.device)
        else:
            weight = graph.weight.to(dtype)
            if bool((weight < 0).any()):
                raise ValueError("'graph' needs to have no negative weights")

        if x.layout == torch.strided:
            node, column = x.nonzero(as_tuple=True)
            value = x[node, column]
        else:
            node = torch.arange(n, device=x.device)
            node = node.repeat_interleave(x.crow_indices().diff())
            column, value = x.col_indices(), x.values()
        d = x.size(1)
        pairs, slot = (owner[node] * d + column).unique(return_inverse=True)
        pair_graph = pairs // d
        active = pair_graph.bincount(minlength=size.numel())
        first = pointer(active)[:-1]
        return cls(
            graph=graph,
            row=row,
            weight=weight,
            ptr=ptr,
            size=size,
            edges=graph.rowptr[ptr],
            entry_ptr=torch.searchsorted(node, ptr),
            node=node,
            slot=slot - first[owner[node]],
            value=value,
            active=active,
            first=first,
            pair_graph=pair_graph,
            pair_column=pairs % d,
        )

    def blocks(
        self, wavelet: str, J: int, L: int, method: str
    ) -> list[tuple[Tensor, bool]]:
        # Ids of graphs that are computed together, and whether densely.
        def prefers_dense(size: Any, nnz: Any, active: Any) -> Any:
            # Of numbers or of tensors: what each way multiplies.
            signals = active * num_paths(J, L - 1)
            dense = J * size**2 * signals + (J - 1) * size**3
            steps = 2 ** (J - 1) * (L - 1)
            sparse = 2 ** (J - 1) * (nnz + size) * signals
            sparse = sparse + steps * _CALL_COST / self.num_graphs
            return dense * _DENSE_COST <= sparse

        if method == 'auto' and wavelet not in _KERNELS:
            count = (self.size, self.edges.diff(), self.active)
            if self.num_graphs == 1:
                # A graph after a removal: no time for the sorting below.
                numbers = [int(each) for each in count]
                if numbers[2] == 0:
                    return []
                one = torch.zeros(1, dtype=torch.int64, device=self.ptr.device)
                return [(one, prefers_dense(*numbers))]
            choice = prefers_dense(*(each.double() for each in count))
        else:
            choice = torch.full_like(
                self.size, method != 'sparse', dtype=torch.bool
            )
        active = self.active
        # Graphs without an active column have nothing to compute.
        busy = active > 0
        blocks = []
        # A step of the key is 15 % in size. Spectra are not padded.
        key = (self.size.double().log() / math.log(1.15)).long()
        if wavelet in _KERNELS:
            key = self.size
        ids = _sorted(choice & busy, key, active)
        sizes, widths, keys = (
            each[ids].tolist() for each in (self.size, active, key)
        )
        start = 0
        for end in range(1, len(sizes) + 1):
            if end < len(sizes):
                numbers = max(sizes[start : end + 1]) * widths[end]
                numbers *= (end + 1 - start) * J ** (L - 1)
                if (
                    keys[end] == keys[start]
                    and widths[end] <= 1.3 * widths[start] + 1
                    and numbers <= _DENSE_NUMBERS
                ):
                    continue
            blocks.append((ids[start:end], True))
            start = end
        ids = _sorted(~choice & busy, torch.zeros_like(key), active)
        sizes, start, nodes = self.size[ids].tolist(), 0, 0
        for end in range(1, len(sizes) + 1):
            nodes += sizes[end - 1]
            if end == len(sizes) or nodes + sizes[end] > _SPARSE_NODES:
                blocks.append((ids[start:end], False))
                start, nodes = end, 0
        return blocks

    def edges_of(self, block: Tensor) -> tuple[Tensor, Tensor]:
        # The positions of the block's edges, and the graph's place in it.
        return self._rows_of(self.edges, block)

    def entries_of(self, block: Tensor) -> tuple[Tensor, Tensor]:
        # The same of the block's entries.
        return self._rows_of(self.entry_ptr, block)

    def _rows_of(self, ptr: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        if self.num_graphs == 1:
            every = torch.arange(int(ptr[-1]), device=ptr.device)
            return every, torch.zeros_like(every)
        count = ptr.diff()[block]
        place = torch.arange(block.numel(), device=block.device)
        return ranges(ptr[block], count), place.repeat_interleave(count)

    def dense(self, block: Tensor) -> tuple[Tensor, Tensor]:
        # Adjacency [B, g, g] and signals [B, active, g], padded with zeros.
        b, g = block.numel(), int(self.size[block].max())
        edge, place = self.edges_of(block)
        start = self.ptr[block]
        row = self.row[edge] - start[place]
        col = self.graph.col32[edge] - start[place]
        adj = self.value.new_zeros((b, g, g))
        adj.view(-1)[(place * g + row) * g + col] = self.weight[edge]
        entry, place = self.entries_of(block)
        a = int(self.active[block].max())
        node = self.node[entry] - start[place]
        signal = self.value.new_zeros((b, a, g))
        signal = signal.view(-1).index_put(
            ((place * a + self.slot[entry]) * g + node,), self.value[entry]
        )
        return adj, signal.view(b, a, g)

    def low_pass(self, kind: str, block: Tensor) -> tuple[Tensor, Tensor]:
        # The weights of the block's nodes, and the place of each node's graph.
        count = self.size[block]
        place = torch.arange(block.numel(), device=block.device)
        place = place.repeat_interleave(count)
        mean = (1 / count.to(self.value.dtype))[place]
        if kind == 'mean':
            return mean, place
        edge, owner = self.edges_of(block)
        offset = pointer(count)[:-1] - self.ptr[block]
        row = self.row[edge] + offset[owner]
        degree = torch.zeros_like(mean).index_add_(0, row, self.weight[edge])
        total = degree.new_zeros(block.numel()).index_add(0, place, degree)
        share = degree / total[place]
        return torch.where(total[place] > 0, share, mean), place


def _embed_dense(
    batch: _Batch,
    block: Tensor,
    wavelet: str,
    J: int,
    Q: int,
    L: int,
    low_pass: str,
    linear: bool,
) -> Tensor:
    # [B, active, T, Q]. Signals are rows, so that the children of all signals
    # of a layer, [B, signals, J, g], are the rows of the next layer.
    adj, signal = batch.dense(block)
    b, a, g = signal.shape
    weight, place = batch.low_pass(low_pass, block)
    low = weight.new_zeros((b, 1, g))
    first = pointer(batch.size[block])[place]
    node = torch.arange(place.numel(), device=place.device) - first
    low.view(-1)[place * g + node] = weight
    out = []
    bank = None
    for layer in range(L):
        if layer > 0:
            if bank is None:
                bank = wavelet_bank(adj, wavelet, J)
                bank = bank.view(b, J * g, g).transpose(1, 2)
            signal = torch.bmm(signal, bank)
            if not linear:
                signal = signal.abs_()
            signal = signal.view(b, -1, g)
        moments = _moments(signal, low, lambda y: y.sum(-1), Q)
        out.append(moments.view(b, a, -1, Q))
    return torch.cat(out, dim=2)


def _embed_sparse(
    batch: _Batch,
    block: Tensor,
    wavelet: str,
    J: int,
    Q: int,
    L: int,
    low_pass: str,
    linear: bool,
) -> Tensor:
    # [B, active, T, Q]. Signals are columns; the filters of a layer stand
    # before the paths they continue, which is undone at the end.
    b, a = block.numel(), int(batch.active[block].max())
    weight, owner = batch.low_pass(low_pass, block)
    n = owner.numel()
    nodes = ranges(batch.ptr[block], batch.size[block])
    offset = pointer(batch.size[block])[:-1] - batch.ptr[block]
    edge, place = batch.edges_of(block)
    row = batch.row[edge] + offset[place]
    col = batch.graph.col32[edge] + offset[place]
    weights = batch.weight[edge]
    value = weights / 2
    for ends, power in zip((row, col), _EXPONENTS[wavelet], strict=True):
        if power:
            degree = torch.zeros_like(weight).index_add_(0, ends, weights)
            value = value * _power(degree, -power)[ends]
    rowptr = pointer(batch.graph.rowptr.diff()[nodes])
    half_walk = sparse_rows(rowptr, col, value, (n, n))
    members = sparse_rows(
        pointer(batch.size[block]),
        torch.arange(n, device=owner.device),
        torch.ones_like(weight),
        (b, n),
    )
    low = weight.view(-1, 1)
    entry, place = batch.entries_of(block)
    signal = batch.value.new_zeros((n, a)).index_put(
        (batch.node[entry] + offset[place], batch.slot[entry]),
        batch.value[entry],
    )
    width = max(1, _SPARSE_NUMBERS // (n * J ** (L - 1)))
    parts = []
    for columns in signal.split(width, dim=1):
        out, layer_signal = [], columns
        for layer in range(L):
            if layer > 0:
                filters, last = [], layer_signal
                for j in range(J):
                    walked = last
                    for _ in range(1 if j == 0 else 2 ** (j - 1)):
                        walked = torch.addmm(
                            walked, half_walk, walked, beta=0.5
                        )
                    filters.append(last - walked)
                    last = walked
                layer_signal = torch.cat(filters, dim=1)
                if not linear:
                    layer_signal = layer_signal.abs_()
            moments = _moments(layer_signal, low, lambda y: members @ y, Q)
            moments = moments.view(b, *(J,) * layer, columns.size(1), Q)
            order = (0, layer + 1, *range(layer, 0, -1), layer + 2)
            moments = moments.permute(order)
            out.append(moments.reshape(b, columns.size(1), -1, Q))
        parts.append(torch.cat(out, dim=2))
    return torch.cat(parts, dim=1)


def _moments(
    signal: Tensor, low: Tensor, total: Callable[[Tensor], Tensor], Q: int
) -> Tensor:
    # The low-pass of the powers, in a new last dimension.
    power = low * signal
    out = [total(power)]
    for _ in range(Q - 1):
        power = power * signal
        out.append(total(power))
    return torch.stack(out, dim=-1)


def _power(degree: Tensor, exponent: float) -> Tensor:
    return torch.where(degree > 0, degree.pow(exponent), 0)


def _sorted(mask: Tensor, key: Tensor, second: Tensor) -> Tensor:
    # The places of a mask in the order of two keys.
    ids = mask.nonzero().view(-1)
    ids = ids[second[ids].argsort(stable=True)]
    return ids[key[ids].argsort(stable=True)]


def _check_wavelet(wavelet: str) -> None:
    check_choice('wavelet', wavelet, WAVELETS)


def check_order(wavelet: str, low_pass: str, J: int, Q: int, L: int) -> None:
    """Raises an error unless there is such a transform.

    Args:
        wavelet (str): as in :func:`scattering_transform`.
        low_pass (str): as in :func:`scattering_transform`.
        J (int): as in :func:`scattering_transform`.
        Q (int): as in :func:`scattering_transform`.
        L (int): as in :func:`scattering_transform`.
    """
    _check_wavelet(wavelet)
    check_choice('low_pass', low_pass, LOW_PASSES)
    check_integer('J', J, _least_filters(wavelet))
    check_integer('Q', Q, 1)
    check_integer('L', L, 1)


def _least_filters(wavelet: str) -> int:
    return 3 if wavelet in _KERNELS else 1


def _check_square(name: str, value: Tensor, least: int) -> None:
    _check_floating(name, value)
    if value.dim() < least or value.size(-1) != value.size(-2):
        raise ValueError(
            f"'{name}' needs to have the shape "
            f'[..., {"J, " if least == 3 else ""}num_nodes, num_nodes] '
            f'(got {list(value.shape)})'
        )
    if not bool(value.isfinite().all()):
        raise ValueError(f"'{name}' needs to be finite (got NaN or infinity)")


def _check_floating(name: str, value: Tensor) -> None:
    shape = getattr(value, 'shape', ())
    check_tensor(name, value, None, shape)


def _check_features(graph: CSRGraph, x: Tensor) -> None:
    if not isinstance(graph, CSRGraph):
        raise TypeError(
            f"'graph' needs to be a CSRGraph (got {type(graph).__name__})"
        )
    if not isinstance(x, Tensor) or x.layout not in (
        torch.strided,
        torch.sparse_csr,
    ):
        got = getattr(x, 'layout', type(x).__name__)
        raise TypeError(
            f"'x' needs to be a dense or sparse CSR tensor (got {got})"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"'x' needs to be float32 or float64 (got {x.dtype})")
    if x.dim() != 2 or x.size(0) != graph.num_nodes or x.size(1) < 1:
        raise ValueError(
            f"'x' needs to have the shape [{graph.num_nodes}, num_features] "
            f'with at least one feature (got {list(x.shape)})'
        )
    if x.device != graph.device:
        raise ValueError(
            f"'x' needs to be on the graph's device, {graph.device} "
            f'(got {x.device})'
        )
    value = x if x.layout == torch.strided else x.values()
    if not bool(value.isfinite().all()):
        raise ValueError("'x' needs to be finite (got NaN or infinity)")


def _check_ptr(graph: CSRGraph, ptr: Tensor | None) -> Tensor:
    n = graph.num_nodes
    if ptr is None:
        return torch.tensor([0, n], device=graph.device)
    if not isinstance(ptr, Tensor) or ptr.dtype != torch.int64:
        got = getattr(ptr, 'dtype', type(ptr).__name__)
        raise TypeError(f"'ptr' needs to be an int64 tensor (got {got})")
    if (
        ptr.dim() != 1
        or ptr.numel() < 2
        or int(ptr[0]) != 0
        or int(ptr[-1]) != n
        or bool((ptr.diff() < 1).any())
    ):
        raise ValueError(
            f"'ptr' needs to ascend from 0 to {n}, the number of nodes, and "
            'every graph to have a node'
        )
    return ptr
