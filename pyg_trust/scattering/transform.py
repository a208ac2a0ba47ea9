r"""Graph scattering: paths and moments of wavelet coefficients.

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

**Banks** are those of :mod:`pyg_trust.scattering.wavelets`.

**Range.** With the row walk and features in :math:`[0, 1]` every coefficient
is in :math:`[0, 1]`: the rows of every power of :math:`P` are probabilities,
so that :math:`|H_j U|` is a difference of two averages of numbers in
:math:`[0, 1]`, and a moment is an average of powers of these. The column walk
has no bound that is free of the graph.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import (
    Count,
    OneOf,
    check_choice,
    check_integer,
    validated,
)
from pyg_trust._progress import Bar
from pyg_trust.graph import CSRGraph, sparse_rows
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.scattering.batch import Batch, num_paths
from pyg_trust.scattering.wavelets import (
    WAVELETS,
    find_bank,
    power_of,
    wavelet_bank,
)

__all__ = ['scattering_transform']

LOW_PASSES = ('mean', 'degree')
METHODS = ('auto', 'dense', 'sparse')

# Numbers in the last layer of a sparse block that is one large graph: more
# columns are taken one part after the other.
_SPARSE_NUMBERS = 2**22


class Order(NamedTuple):
    """Settings of a transform: as in :func:`scattering_transform`."""

    wavelet: str
    J: int
    Q: int
    L: int
    low_pass: str
    linear: bool


@validated
def scattering_transform(
    graph: CSRGraph,
    x: Tensor,
    ptr: Tensor | None = None,
    *,
    J: Count,
    Q: Count,
    L: Count,
    wavelet: str = 'geometric',
    low_pass: str = 'mean',
    linear: bool = False,
    sparse: bool = False,
    method: Annotated[str, OneOf(METHODS)] = 'auto',
) -> Tensor:
    r"""Compute the scattering coefficients of every graph of a batch.

    They are :math:`\phi_{p, f, q} = u^\top (U_p)_{:, f}^{\,q}` with node
    weights :math:`u`, :math:`U_{()} = X` and :math:`U_{(p, j)} = | H_j U_p |`,
    for all paths :math:`p`, sequences of fewer than :math:`L` of the :math:`J`
    filters :math:`H_j`, columns :math:`f` of :obj:`x` and :math:`q = 1, \dots,
    Q`. Columns that are zero on a graph are skipped. On a graph of :math:`g`
    nodes the method ``dense`` takes memory :math:`O(J g^2)` for the filters as
    matrices; ``sparse`` takes :math:`O(J^{L-1} g)`, by sparse products.

    Args:
        graph (CSRGraph): the disjoint union of the graphs, without self-loops;
            weights, if any, non-negative; undirected unless :obj:`wavelet` is
            a geometric one, by which a node reads the nodes that its edges
            lead to.
        x (Tensor): the features, float32 or float64, ``[num_nodes,
            num_features]``, dense or sparse CSR.
        ptr (Tensor, optional): int64, ``[num_graphs + 1]``: where the nodes of
            each graph start; by default one graph.
        J (int): the number of filters, at least 1 (3 if spectral).
        Q (int): the number of moments, at least 1.
        L (int): the number of filters in the longest path plus 1, at least 1.
        wavelet (str): the filters, as in ``wavelet_bank``: ``'geometric'``,
            ``'geometric_column'``, ``'diffusion'``, or spectral ones,
            ``'itersine'`` or ``'monic_cubic'``. (default: :obj:`'geometric'`)
        low_pass (str): the weights :math:`u`: :obj:`'mean'` for :math:`1/g` or
            :obj:`'degree'` for degrees over their sum.
            (default: :obj:`'mean'`)
        linear (bool): whether to leave out the absolute value.
            (default: :obj:`False`)
        sparse (bool): whether to return a sparse CSR matrix.
            (default: :obj:`False`)
        method (str): :obj:`'dense'`, :obj:`'sparse'`, or :obj:`'auto'` for the
            cheaper one of each graph. (default: :obj:`'auto'`)

    Returns:
        Tensor: ``[num_graphs, T * num_features * Q]``, of the dtype of
        :obj:`x`, by path, feature and moment, for :math:`T = \sum_{l < L} J^l`
        paths.

    Raises:
        ValueError: on an argument out of range, features that are not finite,
            edges between graphs or to themselves, negative weights, or a
            directed graph where the bank needs an undirected one.
    """
    check_order(wavelet, low_pass, J, Q, L)
    if method == 'sparse' and WAVELETS[wavelet].kernel is not None:
        raise ValueError(
            f"'method' needs to be 'dense' for the bank {wavelet!r}, which "
            'is no polynomial of the walk'
        )
    order = Order(wavelet, J, Q, L, low_pass, linear)
    batch = Batch.make(graph, x, ptr, wavelet)
    num_graphs, d, T = batch.num_graphs, x.size(1), num_paths(J, L)
    values = batch.value.new_empty((batch.pair_graph.numel(), T, Q))
    blocks = batch.blocks(wavelet, J, L, method)
    for block, dense in Bar(blocks, desc='scattering'):
        embed = _embed_dense if dense else _embed_sparse
        out = embed(batch, block, order)
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
    return sparse_rows(crow, col, value, (num_graphs, T * d * Q))


def _embed_dense(batch: Batch, block: Tensor, order: Order) -> Tensor:
    # [B, active, T, Q]. Signals are rows, so that the children of all signals
    # of a layer, [B, signals, J, g], are the rows of the next layer.
    wavelet, J, Q, L, low_pass, linear = order
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


def _embed_sparse(batch: Batch, block: Tensor, order: Order) -> Tensor:
    # [B, active, T, Q]. Signals are columns; the filters of a layer stand
    # before the paths they continue, which is undone at the end.
    wavelet, J, Q, L, low_pass, linear = order
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
    for ends, power in zip(
        (row, col), WAVELETS[wavelet].exponents, strict=True
    ):
        if power:
            degree = torch.zeros_like(weight).index_add_(0, ends, weights)
            value = value * power_of(degree, -power)[ends]
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
            axes = (0, layer + 1, *range(layer, 0, -1), layer + 2)
            moments = moments.permute(axes)
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


def check_order(wavelet: str, low_pass: str, J: int, Q: int, L: int) -> None:
    """Check the low pass, scales, moments and layers of a transform."""
    bank = find_bank(wavelet)
    check_choice('low_pass', low_pass, LOW_PASSES)
    check_integer('J', J, bank.least)
    check_integer('Q', Q, 1)
    check_integer('L', L, 1)
