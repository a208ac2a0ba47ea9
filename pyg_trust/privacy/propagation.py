"""Noisy sums over neighbours, and their sensitivities.

A node receives the sum of *messages* of its neighbours, rows of norm at most
1, plus Gaussian noise. What neighbouring graphs differ in is described in
:func:`pyg_trust.privacy.hop_sensitivity`. Sums are of integers on the grid of
the noise, so that bounds hold to the last bit
(:mod:`pyg_trust.verify.release`). Proofs are in the documentation, "Private
aggregation".
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import (
    REAL,
    Array,
    Count,
    Natural,
    OneOf,
    Positive,
    Rate,
    check_instance,
    check_positive,
    check_tensor,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.verify.release import (
    check_sum,
    fits_float,
    grid,
    released,
    rounded,
    sensitivity,
    truncated,
)

__all__ = [
    'choose_receivers',
    'class_messages',
    'energy_weights',
    'hop_sensitivity',
    'messages',
    'private_propagate',
    'received_lists',
    'scaled_propagate',
]

#: The neighbouring relations.
RELATIONS = ('edge', 'node', 'node_incident', 'feature')
NEIGHBORING = ('add_remove', 'replace')
BETWEEN = ('normalize', 'clip')
#: Norms stay this far below 1, so that no float64 rounding takes them above.
MARGIN = 1e-6
#: The most nodes of a graph all of whose columns are propagated.
MAX_COLUMNS = 200_000
# The public key of the hash that chooses receivers.
_KEY = 0
_BLOCK, _LEAST_BLOCK = 256, 16
_DENSE = 0.1
# Numbers in a block of messages, and in a block whose norms are computed: no
# release holds all messages beside its sums.
_NUMBERS = 2**20
_LEAST_COLUMNS = 2


class Noise(Protocol):
    """Source of exact noise, as in :mod:`pyg_trust.noise`."""

    def cells(self, shape: tuple[int, ...]) -> Tensor:
        """Draw integers nearest to 2^32 Z, int64, on the CPU, to overwrite."""
        ...


@validated
class MessageBlocks:
    """Messages of rows, as of :func:`messages`, some columns at a time."""

    def __init__(
        self,
        x: Annotated[Tensor, Array(REAL, 'num_nodes', 'num_columns')],
        between: Annotated[str, OneOf(BETWEEN)] = 'normalize',
    ) -> None:
        self._x, self.width = x.detach(), x.size(1)
        # Allocate the results first, so that they fill no gap of temporaries.
        shape = (x.size(0), 1)
        length = torch.zeros(shape, dtype=torch.float64)
        self._scale = torch.ones_like(length)
        self._broken = torch.zeros(shape, dtype=torch.bool)
        size = max(1, _NUMBERS // 8 // max(1, x.size(1)))
        for start in range(0, x.size(0) if x.size(1) else 0, size):
            part = slice(start, start + size)
            rows = self._x[part].cpu().to(torch.float64, copy=True)
            self._broken[part] = ~rows.isfinite().all(1, keepdim=True)
            rows.masked_fill_(self._broken[part], 0.0)
            # Scaled by the largest entry, as the square of 1e200 overflows.
            largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-300)
            self._scale[part] = largest
            length[part] = rows.div_(largest).square_().sum(1, keepdim=True)
        length.sqrt_()
        self._norm = length.clamp(min=1.0)
        self._clip: Tensor | None = None
        if between == 'clip':
            clip = (length * self._scale).clamp(max=1.0)
            self._clip = torch.where(length > 0, clip, 0.0)

    def columns(self, start: int, stop: int) -> Tensor:
        """Return messages, float64, on the CPU: ``[num_nodes, columns]``."""
        block = self._x[:, start:stop].cpu()
        block = block.to(
            torch.float64, copy=True, memory_format=torch.contiguous_format
        )
        block.masked_fill_(self._broken, 0.0)
        block.div_(self._scale).div_(self._norm)
        if self._clip is not None:
            block.mul_(self._clip)
        return block.mul_(1 - MARGIN)

    def blocks(
        self, numbers: int = _NUMBERS
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Iterate over first column, end and messages of the blocks."""
        size = max(_LEAST_COLUMNS, numbers // max(1, self._x.size(0)))
        for start in range(0, self.width, size):
            stop = min(self.width, start + size)
            yield start, stop, self.columns(start, stop)


def messages(x: Tensor, *, between: str = 'normalize') -> Tensor:
    """Return rows of norm at most 1 for any input, in float64.

    :obj:`'normalize'` scales every row to norm 1, :obj:`'clip'` only those
    that are longer; norms stay :math:`10^{-6}` below 1. A row with an entry
    that is not finite becomes zero.

    Args:
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        between (str): :obj:`'normalize'` or :obj:`'clip'`.

    Returns:
        Tensor: float64, ``[num_nodes, num_columns]``.
    """
    blocks = MessageBlocks(x, between)
    return blocks.columns(0, blocks.width)


def class_messages(probabilities: Tensor) -> Tensor:
    r"""Turn class probabilities into messages of norm at most 1.

    .. math::
        m = \frac{q - 1/C}{\sqrt{1 - 1/C}}

    for the probabilities :math:`q` of :math:`C` classes. Two messages are at
    most :math:`\sqrt{2C/(C-1)}` apart, if :func:`private_propagate` sends them
    with ``between='clip'``, which leaves them as they are.

    Args:
        probabilities (Tensor): float64, ``[num_nodes, num_classes]``: rows
            that are not negative and sum to 1.

    Returns:
        Tensor: float64, ``[num_nodes, num_classes]``.

    Example:
        >>> class_messages(torch.eye(2).double())
        tensor([[ 0.7071, -0.7071],
                [-0.7071,  0.7071]], dtype=torch.float64)
    """
    check_tensor(
        *('probabilities', probabilities, torch.float64),
        ('num_nodes', 'num_classes'),
        finite=True,
    )
    total = probabilities.sum(1)
    if bool((probabilities < 0).any()) or bool(
        ((total - 1).abs() > 1e-9).any()
    ):
        raise ValueError(
            "'probabilities' needs rows that are not negative and sum to 1"
        )
    classes = probabilities.size(1)
    return (probabilities - 1 / classes) / math.sqrt(1 - 1 / max(2, classes))


@renamed(relation='adjacency', form='neighboring')
@validated
def hop_sensitivity(
    adjacency: Annotated[str, OneOf(RELATIONS)],
    *,
    directed: bool = False,
    neighboring: Annotated[str, OneOf(NEIGHBORING)] = 'add_remove',
    max_degree: Count | None = None,
    num_classes: Count | None = None,
) -> float:
    r"""Return how far neighbouring data move one sum over neighbours.

    Messages are rows of norm at most 1, and every node receives the sum of
    those of its neighbours. The result is the largest change of all sums, in
    Frobenius norm; with ``'node_incident'``, without the node's own sum. With
    ``'feature'``, squared weights of a node's messages have to sum to 1.

    ================= ================================ ====================
    adjacency         add_remove                       replace
    ================= ================================ ====================
    ``edge``          :math:`\sqrt{2}`, directed: 1    the same
    ``node``          :math:`\sqrt{D}`, by default 1   twice as much
    ``node_incident`` :math:`\sqrt{D}`                 twice as much
    ``feature``       1                                2
    ================= ================================ ====================

    Args:
        adjacency (str): what differs: one edge; a node's features and outgoing
            edges; a node with all its edges; or a node's features.
        directed (bool): for ``'edge'``, whether edges have one direction.
        neighboring (str): whether this is removed (:obj:`'add_remove'`) or
            exchanged for any other (:obj:`'replace'`).
        max_degree (int, optional): :math:`D`. For ``'node_incident'``, which
            needs it, the most edges of a node. For ``'node'``, the largest sum
            of the squared weights of a node's outgoing messages.
        num_classes (int, optional): the number :math:`C` of classes, if
            messages are those of :func:`class_messages`, for ``'node'`` and
            ``'feature'``: a replaced record then moves a sum by :math:`\sqrt{2
            D C / (C - 1)}`.

    Example:
        >>> hop_sensitivity('node')
        1.0
        >>> hop_sensitivity('node', neighboring='replace')
        2.0
    """
    if max_degree is not None and adjacency in ('edge', 'feature'):
        raise ValueError(
            f"'max_degree' is for relations of nodes (got {adjacency!r})"
        )
    if max_degree is None and adjacency == 'node_incident':
        raise ValueError(
            "'max_degree' is needed for 'node_incident': the most edges of a "
            'node that is added or removed'
        )
    if num_classes is not None and adjacency not in ('node', 'feature'):
        raise ValueError(
            f"'num_classes' is for 'node' and 'feature' (got {adjacency!r})"
        )
    return sensitivity(
        adjacency, directed, neighboring, max_degree, num_classes
    )


@validated
def energy_weights(graph: CSRGraph, max_degree: Count = 1) -> Tensor:
    r"""Return weights :math:`\min(1, \sqrt{D / |L_u|})` of messages.

    The squared weights of a list sum to :math:`D` at most.
    """
    degree = graph.degree.cpu().double().clamp(min=1)
    return (max_degree / degree).sqrt().clamp(max=1)


@validated
def choose_receivers(train: Tensor, share: Rate) -> Tensor:
    """Choose all nodes that don't train, and a share of those that do.

    The choice depends on ids and the mask alone, which are public. It is a
    bool mask, ``[num_nodes]``, on the CPU.

    Example:
        >>> choose_receivers(torch.tensor([True, False, True]), 1.0)
        tensor([True, True, True])
    """
    check_tensor('train', train, torch.bool, ('num_nodes',))
    ids = torch.arange(train.numel())
    drawn = (rng.derive_each(_KEY, ids) >> 10).double() / 2**53
    return ~train.cpu() | (drawn < share)


@validated
def received_lists(graph: CSRGraph, receivers: Tensor) -> CSRGraph:
    """Return the graph without edges to nodes that are no receivers."""
    check_tensor('receivers', receivers, torch.bool, (graph.num_nodes,))
    if graph.is_weighted:
        raise ValueError("'graph' needs to be unweighted")
    edges, _ = graph.to_edge_index()
    kept = receivers.to(edges.device)[edges[1]]
    return CSRGraph.from_edge_index(edges[:, kept], graph.num_nodes)


@renamed(relation='adjacency')
@validated
def private_propagate(
    graph: CSRGraph,
    x: Annotated[Tensor, Array(REAL, 'num_nodes', 'num_columns')],
    stds: Sequence[float],
    noise: Noise,
    adjacency: Annotated[str, OneOf(RELATIONS[:3])] = 'edge',
    weights: Tensor | None = None,
    *,
    between: str = 'normalize',
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    r"""Compute noisy sums over neighbours, hop by hop.

    .. math::
        S_k = A^\top \mathrm{diag}(c)\, m(S_{k-1}) + \mathcal{N}(0, s_k^2 I),
        \quad S_0 = X,

    where :math:`m` brings rows to norm at most 1 (:func:`messages`), and
    :math:`c` are weights of senders: 1, or :obj:`weights` for ``'node'``.
    Neighbouring data move each hop by at most :func:`hop_sensitivity`. The
    cost is not recorded: :class:`pyg_trust.transforms.PrivateAGP` does that.

    Args:
        graph (CSRGraph): unweighted, without duplicates.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        stds (sequence of float): the standard deviation :math:`s_k` of each
            hop.
        noise (Noise): the source of noise, such as
            ``pyg_trust.noise.SecureNoise()``.
        adjacency (str): what is protected, as in :func:`hop_sensitivity`:
            ``'edge'``, ``'node'`` or ``'node_incident'``. Here it only decides
            whether messages have :obj:`weights`.
        weights (Tensor, optional): float64, ``[num_nodes]``: :math:`c`, for
            ``'node'`` alone; by default one over the root of the out-degree.
        between (str): how rows get norm at most 1: :obj:`'normalize'` or
            :obj:`'clip'`. (default: :obj:`'normalize'`)
        dtype (torch.dtype): the dtype to round noisy sums to; the next hop
            reads rounded ones. (default: ``torch.float64``)

    Returns:
        list[Tensor]: :math:`S_1, S_2, \ldots`, each ``[num_nodes,
        num_columns]``, of :obj:`dtype`.
    """
    if graph.is_weighted or graph.has_duplicates:
        raise ValueError(
            "'graph' needs to be unweighted and without duplicate edges"
        )
    _check_noise(noise)
    if dtype not in REAL:
        raise ValueError(
            f"'dtype' needs to be torch.float32 or torch.float64 (got {dtype})"
        )
    if isinstance(stds, str) or not isinstance(stds, Sequence) or not stds:
        raise TypeError(
            f"'stds' needs to be a list of at least one number (got {stds!r})"
        )
    stds = [check_positive('stds', std) for std in stds]
    if adjacency == 'node':
        if weights is None:
            weights = energy_weights(graph)
        check_tensor('weights', weights, torch.float64, (graph.num_nodes,))
    elif weights is not None:
        raise ValueError(
            f"'weights' are for adjacency='node' alone (got {adjacency!r})"
        )
    into = _incoming(graph)
    n = graph.num_nodes
    for std in stds:
        check_sum(n, std, 'stds')
    hops: list[Tensor] = []
    rows = x
    for std in stds:
        sent = MessageBlocks(rows, between)
        # Numbers of at most 1, n of them at most: by public sizes alone.
        kind = np.float64 if fits_float(n, std) else np.int64
        summed = into.astype(kind)
        # The sums are added to noise that is there, and paid for, as a whole.
        cells = noise.cells((n, sent.width))
        rows = cells.view(torch.float64)
        for start, stop, block in sent.blocks():
            if weights is not None:
                block.mul_(weights[:, None])
            sums = summed @ truncated(block.numpy(), std).astype(kind)
            part = released(sums, cells[:, start:stop].numpy(), std)
            rows[:, start:stop] = torch.from_numpy(part)
        # Convert now, so that only one hop is held in float64.
        rows = rows.to(dtype)
        hops.append(rows)
    return hops


@validated
def rounding_share(
    graph: CSRGraph,
    width: Natural,
    std: Positive,
    sensitivity: Positive,
    measure: Measure | None = None,
    own: bool = True,
    scales: tuple[Tensor, Tensor] | None = None,
) -> float:
    r"""Return the share that rounding adds to the sensitivity of a release.

    The release is a linear propagation if there is a :obj:`measure`, with the
    results of :func:`columns`, else messages of :obj:`width` classes under
    ``'node'``. A standard deviation larger by the share pays for it.
    """
    n, g = graph.num_nodes, grid(std)
    if measure is None:
        moved = math.sqrt(2 * width * n) * g
    else:
        norms, used = _scales(graph, own, scales or columns(graph, measure))
        ratio = torch.where(used > 0, norms / used, 1.0)
        degree = int(graph.degree.max()) + 1 if n else 0
        if measure.along and not graph.is_undirected:
            degree = max(degree, int(graph.transpose().degree.max()) + 1)
        levels = len(measure.weights)
        gamma = (levels + 1) * (degree + 6) * 2.0**-52
        moved = 2 * gamma * n * float(ratio.max() if n else 1.0)
        moved += math.sqrt(n * width) * g
    # Allow for rounding here, and for the larger deviation.
    share = moved / sensitivity * (1 + 2.0**-6)
    if not share <= 0.01:
        raise ValueError(
            "'std' is too small, or 'graph' too large, for sums in float64: "
            f'rounding may move them by {share:.2g} of their sensitivity'
        )
    return share


def columns(graph: CSRGraph, measure: Measure) -> tuple[Tensor, Tensor]:
    r"""Compute norms :math:`\|\Pi e_v\|` of columns, and the diagonal.

    Unit vectors are propagated, :math:`O(N m L)`; sparse results stay sparse.
    """
    operator = _operator(graph, measure)
    n = graph.num_nodes
    if n > MAX_COLUMNS:
        raise ValueError(
            f"'graph' needs to have at most {MAX_COLUMNS} nodes, as each "
            f'column is propagated by itself (got {n})'
        )
    norms, diagonal = np.empty(n), np.empty(n)
    unit = scipy.sparse.eye_array(n, format='csc')
    # Choose columns so that each block holds about equally many numbers.
    start, size = 0, _LEAST_BLOCK
    while start < n:
        stop = min(n, start + size)
        result = _series(operator, measure, unit[:, start:stop])
        squares = (result * result).sum(0)
        norms[start:stop] = np.sqrt(np.asarray(squares).ravel())
        diagonal[start:stop] = result[start:stop].diagonal()
        filled = result.nnz if scipy.sparse.issparse(result) else result.size
        if filled > _NUMBERS:
            size = max(_LEAST_BLOCK, size // 2)
        elif filled < _NUMBERS // 4:
            size = min(_BLOCK, 2 * size)
        start = stop
    return torch.from_numpy(norms), torch.from_numpy(diagonal)


@validated
def scaled_propagate(
    graph: CSRGraph,
    x: Annotated[Tensor, Array(REAL, 'num_nodes', 'num_columns')],
    measure: Measure,
    std: Positive,
    noise: Noise,
    own: bool = True,
    scales: tuple[Tensor, Tensor] | None = None,
    *,
    between: str = 'normalize',
) -> Tensor:
    r"""Run one noisy linear propagation over public edges, columns scaled.

    .. math::
        S = \Pi\, \mathrm{diag}(\|\Pi e_v\|^{-1})\, m(X)
        + \mathcal{N}(0, s^2 I)

    Under ``'feature'`` one row moves it by 2, or 1 if it is removed.

    Args:
        graph (CSRGraph): public.
        x (Tensor): float32 or float64, ``[num_nodes, num_columns]``.
        measure (Measure): the propagation :math:`\Pi`, computed exactly.
        std (float): :math:`s`.
        noise (Noise): where noise comes from.
        own (bool): whether a node's row holds its own message.
        scales (tuple[Tensor, Tensor], optional): the norms of the columns of
            :math:`\Pi` and its diagonal, if known.
        between (str): how rows get norm at most 1.
    """
    _check_noise(noise)
    operator = _operator(graph, measure)
    if scales is None:
        scales = columns(graph, measure)
    _, norms = _scales(graph, own, scales)
    _, diagonal = scales
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    # Nearly N columns of norm 1 may meet in a row.
    check_sum(2 * graph.num_nodes, std)
    sent = MessageBlocks(x, between)
    cells = noise.cells((graph.num_nodes, sent.width))
    rows = cells.view(torch.float64)
    # Beside a block there are its last level and the sum of all.
    for start, stop, block in sent.blocks(_NUMBERS // 4):
        block.mul_(inverse[:, None])
        result = torch.from_numpy(_series(operator, measure, block.numpy()))
        if not own:
            result.sub_(block.mul_(diagonal[:, None]))
        sums = rounded(result.numpy(), std)
        part = released(sums, cells[:, start:stop].numpy(), std)
        rows[:, start:stop] = torch.from_numpy(part)
    return rows


def _scales(
    graph: CSRGraph, own: bool, scales: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    # The norms of columns, and those that messages are divided by: 0 where
    # nothing is sent, as what is nothing but rounding is not scaled up to 1.
    check_instance('scales', scales, tuple)
    for tensor in scales:
        check_tensor('scales', tensor, torch.float64, (graph.num_nodes,))
    norms, diagonal = scales
    if own:
        return norms, norms
    used = (norms.square() - diagonal.square()).clamp(min=0).sqrt()
    return norms, torch.where(used > 1e-3 * diagonal.abs(), used, 0.0)


def _check_noise(noise: Noise) -> None:
    if not hasattr(noise, 'cells'):
        raise TypeError(
            "'noise' needs to be a source of noise, as pyg_trust.noise has "
            f'(got {type(noise).__name__})'
        )


def _incoming(graph: CSRGraph) -> scipy.sparse.csr_array:
    # Row w holds those who send to w.
    turned = graph if graph.is_undirected else graph.transpose()
    n = graph.num_nodes
    return scipy.sparse.csr_array(
        (
            np.ones(graph.num_edges),
            turned.col.cpu().numpy(),
            turned.rowptr.cpu().numpy(),
        ),
        shape=(n, n),
    )


def _operator(graph: CSRGraph, measure: Measure) -> scipy.sparse.csr_array:
    # shrink * D^-a A D^-b, with A as propagate has it.
    check_instance('graph', graph, CSRGraph)
    check_instance('measure', measure, Measure)
    if graph.is_weighted:
        raise ValueError("'graph' needs to be unweighted")
    if measure.undirected and not graph.is_undirected:
        raise ValueError(
            f"'graph' needs to be undirected for measure '{measure.name}'"
        )
    if measure.self_loops:
        graph = graph.with_self_loops()
    n = graph.num_nodes
    adjacency = _incoming(graph) if measure.along else graph.to_scipy()
    degree = graph.degree.cpu().double()
    inverse = torch.where(degree > 0, 1 / degree, 0.0)

    def power(exponent: float) -> scipy.sparse.dia_array:
        result = torch.where(degree > 0, inverse**exponent, 0.0)
        result = result if exponent else torch.ones_like(result)
        return scipy.sparse.dia_array((result.numpy()[None], [0]), (n, n))

    left, right = power(measure.a), power(measure.b)
    scaled = left @ adjacency.astype(np.float64) @ right
    return scipy.sparse.csr_array(scaled * measure.shrink)


def _series(operator: scipy.sparse.csr_array, measure: Measure, x: Any) -> Any:
    level, total = x, measure.weights[0] * x
    for weight in measure.weights[1:]:
        level = operator @ level
        sparse = scipy.sparse.issparse(level)
        if sparse and level.nnz > _DENSE * math.prod(level.shape):
            level, total = level.toarray(), total.toarray()
        total += weight * level
    return total
