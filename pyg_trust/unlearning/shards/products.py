r"""Prepared products with a fixed graph and with fixed features.

What a full-batch training multiplies again in every epoch, and inference in
every model, stays the same: the features, and the adjacency as a layer
normalises it. Both are kept as CSR matrices with 32-bit indices, and for
gradients transposed. Inside of :class:`PreparedMode`,

- a linear layer of sparse features, and a product with a prepared adjacency,
  go to one function, :math:`M x`, with the gradient :math:`M^\top g`;
- what is constant (the mean of the neighbours' features, say) is computed
  once;
- dropout draws from a stream of its own, which no other part of the program
  can move.

:func:`prepared_layers` hands the matrices to the layers that are known to
multiply by them: exactly these classes, and only when they are called with
the graph itself. All else is run as it is written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import (
    APPNP,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    SGConv,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from pyg_trust import rng
from pyg_trust.graph import sparse_rows
from pyg_trust.graph.ragged import pointer, ranges

# Layers that normalise the adjacency, and keep it if asked.
_NORMALISING = (GCNConv, APPNP, GCN2Conv)
# Layers that sum over neighbours as they are.
_SUMMING = (SAGEConv, GINConv, GraphConv)


# Matrices ###################################################################


def csr(
    row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]
) -> Tensor:
    """Make a CSR matrix with 32-bit indices from entries in any order.

    Args:
        row (Tensor): int64, ``[num_entries]``.
        col (Tensor): int64, ``[num_entries]``.
        value (Tensor): ``[num_entries]``.
        shape (tuple[int, int]): the shape of the matrix.
    """
    order = (row * shape[1] + col).argsort(stable=True)
    ptr = pointer(row.bincount(minlength=shape[0]))
    return sparse_rows(ptr.int(), col[order].int(), value[order], shape)


def rows_of_nonzeros(x: Tensor) -> Tensor:
    """Convert features to a CSR matrix with 32-bit indices.

    Args:
        x (Tensor): ``[num_nodes, channels]``, dense or CSR.
    """
    if x.layout == torch.sparse_csr:
        return x
    flat, (n, width) = x.reshape(-1), x.shape
    # torch finds nonzeros of a vector in half the time of a matrix's.
    at = flat.nonzero().view(-1)
    ptr = torch.searchsorted(at, width * torch.arange(n + 1))
    start = (width * torch.arange(n)).repeat_interleave(ptr.diff())
    value = flat.index_select(0, at)
    return sparse_rows(ptr.int(), (at - start).int(), value, (n, width))


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Copy some rows of features.

    Args:
        x (Tensor): ``[num_nodes, channels]``, dense or CSR.
        index (Tensor): int64, ``[num_rows]``.
    """
    if x.layout != torch.sparse_csr:
        return x[index]
    ptr = x.crow_indices().long()
    count = (ptr[1:] - ptr[:-1])[index]
    entry = ranges(ptr[index], count)
    return sparse_rows(
        pointer(count).int(),
        x.col_indices()[entry],
        x.values()[entry],
        (index.numel(), x.size(1)),
    )


def multiply(matrix: Tensor, dense: Tensor) -> Tensor:
    """Multiply ``matrix @ dense`` without filling a result of zeros first.

    Args:
        matrix (Tensor): CSR, ``[num_rows, num_cols]``.
        dense (Tensor): ``[num_cols, channels]``.
    """
    out = dense.new_empty(matrix.size(0), dense.size(1))
    return torch.addmm(out, matrix, dense, beta=0, out=out)


# Dtypes for which torch multiplies sparse matrices.
_MULTIPLIED = (torch.float32, torch.float64)


class Operand:
    """Constant matrix with a lazily computed transpose.

    Args:
        matrix (Tensor): CSR, ``[num_rows, num_cols]``.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._transposed: Tensor | None = None
        self._mean: Operand | None = None
        self._longer: Operand | None = None

    @property
    def transposed(self) -> Tensor:
        """Return the transpose, as CSR."""
        if self._transposed is None:
            row, col = self._entries()
            shape = (self.matrix.size(1), self.matrix.size(0))
            self._transposed = csr(col, row, self.matrix.values(), shape)
        return self._transposed

    @property
    def mean(self) -> 'Operand':
        """Return the matrix with rows divided by their number of entries."""
        if self._mean is None:
            row, col = self._entries()
            count = row.bincount(minlength=self.matrix.size(0))
            value = self.matrix.values() / count[row]
            shape = (self.matrix.size(0), self.matrix.size(1))
            self._mean = Operand(csr(row, col, value, shape))
        return self._mean

    def _as(self, dtype: torch.dtype) -> 'Operand':
        if dtype == self.matrix.dtype:
            return self
        if self._longer is None:
            self._longer = Operand(self.matrix.to(dtype))
        return self._longer

    def _entries(self) -> tuple[Tensor, Tensor]:
        ptr = self.matrix.crow_indices().long()
        count = ptr[1:] - ptr[:-1]
        row = torch.arange(count.numel()).repeat_interleave(count)
        return row, self.matrix.col_indices().long()

    def times(self, dense: Tensor) -> Tensor:
        """Multiply by a dense matrix, with gradients for that matrix.

        Args:
            dense (Tensor): ``[num_cols, channels]``.
        """
        kind = self.matrix.dtype
        exact = kind if kind in _MULTIPLIED else torch.float32
        if dense.dtype != exact or kind != exact:
            # torch has no sparse products of half precision: convert, as
            # autocast does.
            out = self._as(exact).times(dense.to(exact))
            return out.to(torch.promote_types(kind, dense.dtype))
        if not torch.is_grad_enabled():
            return multiply(self.matrix, dense.contiguous())
        return _Product.apply(dense, self)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, operand: Operand) -> Tensor:
        ctx.operand = operand
        return multiply(operand.matrix, dense.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return multiply(ctx.operand.transposed, grad.contiguous()), None


class PreparedGraph:
    """Adjacency matrices of a graph for its layers, targets by sources.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``.
        edge_weight (Tensor or None): ``[num_edges]``.
        num_nodes (int): the number of nodes.
        dtype (torch.dtype): the dtype of the features.
    """

    def __init__(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
    ) -> None:
        self.edge_index, self.edge_weight = edge_index, edge_weight
        self.num_nodes, self.dtype = num_nodes, dtype
        self.version = edge_index._version
        self.operands: dict[int, Operand] = {}
        self._made: dict[tuple, tuple[Tensor, Tensor | None]] = {}

    def adjacency(self, weighted: bool) -> Tensor:
        """Return the adjacency matrix, with or without edge weights."""
        weight = self.edge_weight if weighted else None
        key = ('plain', weight is not None)
        if key not in self._made:
            # Do not intercept these operations.
            with torch._C.DisableTorchFunction():
                self._made[key] = self._adjacency(weight), None
        return self._made[key][0]

    def normalised(
        self, improved: bool, loops: bool, flow: str, matrix: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the adjacency matrix normalised as by ``gcn_norm``."""
        key = ('norm', improved, loops, flow, matrix)
        if key not in self._made:
            with torch._C.DisableTorchFunction():
                self._made[key] = self._normalised(
                    improved, loops, flow, matrix
                )
        return self._made[key]

    def _adjacency(self, weight: Tensor | None) -> Tensor:
        if weight is None:
            count = self.edge_index.size(1)
            weight = torch.ones(count, dtype=self.dtype)
        return self._matrix(self.edge_index, weight)

    def _normalised(
        self, improved: bool, loops: bool, flow: str, matrix: bool
    ) -> tuple[Tensor, Tensor | None]:
        edge_index, weight = gcn_norm(
            self.edge_index,
            self.edge_weight,
            self.num_nodes,
            improved,
            loops,
            flow,
            self.dtype,
        )
        if matrix:
            return self._matrix(edge_index, weight), None
        return edge_index, weight

    def _matrix(self, edge_index: Tensor, weight: Tensor) -> Tensor:
        shape = (self.num_nodes, self.num_nodes)
        return self._kept(csr(edge_index[1], edge_index[0], weight, shape))

    def _kept(self, matrix: Tensor) -> Tensor:
        self.operands[id(matrix)] = Operand(matrix)
        return matrix


class Block(PreparedGraph):
    """One of several graphs of equal size that are prepared together.

    Args:
        union (PreparedGraph): the disjoint union of all graphs.
        number (int): the number of this graph in the union.
        edge_index (Tensor): int64, ``[2, num_edges]``: the edges of this
            graph.
        edge_weight (Tensor or None): ``[num_edges]``.
        num_nodes (int): the number of nodes of this graph.
    """

    def __init__(
        self,
        union: PreparedGraph,
        number: int,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
    ) -> None:
        super().__init__(edge_index, edge_weight, num_nodes, union.dtype)
        self._union, self._number = union, number

    def _adjacency(self, weight: Tensor | None) -> Tensor:
        return self._cut(self._union.adjacency(weight is not None))

    def _normalised(
        self, improved: bool, loops: bool, flow: str, matrix: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not matrix:
            return super()._normalised(improved, loops, flow, matrix)
        whole, _ = self._union.normalised(improved, loops, flow, True)
        return self._cut(whole), None

    def _cut(self, whole: Tensor) -> Tensor:
        n = self.num_nodes
        first = self._number * n
        ptr = whole.crow_indices()[first : first + n + 1]
        start, end = int(ptr[0]), int(ptr[-1])
        return self._kept(
            sparse_rows(
                ptr - start,
                whole.col_indices()[start:end] - first,
                whole.values()[start:end].clone(),
                (n, n),
            )
        )


def blocks(
    edge_index: Tensor,
    edge_weight: Tensor | None,
    number: Tensor,
    count: int,
    num_nodes: int,
    dtype: torch.dtype,
) -> list[PreparedGraph]:
    """Prepare several graphs on the same nodes, which share out the edges.

    They are normalised and sorted together if 32-bit indices suffice, with the
    bits of each alone.

    Args:
        edge_index (Tensor): int64, ``[2, num_edges]``.
        edge_weight (Tensor or None): ``[num_edges]``.
        number (Tensor): int64, ``[num_edges]``: the graph of each edge.
        count (int): the number of graphs.
        num_nodes (int): the number of nodes of each graph.
        dtype (torch.dtype): the dtype of the features.
    """
    order = number.argsort(stable=True)
    edges, number = edge_index[:, order], number[order]
    weight = None if edge_weight is None else edge_weight[order]
    union = None
    if count * num_nodes + edges.size(1) < 2**31:
        union = PreparedGraph(
            edges + number * num_nodes, weight, count * num_nodes, dtype
        )
    ends = pointer(number.bincount(minlength=count)).tolist()
    made: list[PreparedGraph] = []
    for i in range(count):
        here = slice(ends[i], ends[i + 1])
        own = None if weight is None else weight[here].clone()
        part = edges[:, here].contiguous()
        if union is None:
            made.append(PreparedGraph(part, own, num_nodes, dtype))
        else:
            made.append(Block(union, i, part, own, num_nodes))
    return made


# Layers #####################################################################


def can_multiply(layer: Any) -> bool:
    """Test whether a layer accepts the graph as a prepared matrix."""
    if getattr(layer, 'flow', '') != 'source_to_target':
        return False
    if type(layer) in _NORMALISING:
        return bool(layer.normalize) and not getattr(layer, 'dropout', 0)
    if type(layer) is SGConv:
        return not layer.cached
    return type(layer) in _SUMMING and layer.aggr in ('add', 'sum', 'mean')


@contextmanager
def prepared_layers(
    module: Module, graph: PreparedGraph, matrices: bool
) -> Iterator[None]:
    """Patch layers to use a prepared graph within a block.

    Args:
        module (Module): a model of this package; it is patched in place, and
            restored at the end of the block.
        graph (PreparedGraph): the graph.
        matrices (bool): whether layers multiply by matrices where they can;
            otherwise they sum over the edge list.
    """
    undo: list[Callable[[], None]] = []
    try:
        for layer in module.modules():
            matrix = matrices and can_multiply(layer)
            if type(layer) in _NORMALISING:
                if layer.normalize and not layer.cached:
                    undo += _fill_cache(layer, graph, matrix)
            elif type(layer) is SGConv:
                if not layer.cached:
                    undo += _fill_propagation(layer, graph, matrix)
            elif type(layer) in _SUMMING and matrix:
                undo += _swap_edges(layer, graph)
        yield
    finally:
        for call in undo:
            call()


def _is_graph(graph: PreparedGraph, edge_index: Any, weight: Any) -> bool:
    return (
        edge_index is graph.edge_index
        and edge_index._version == graph.version
        and weight is graph.edge_weight
    )


def _arguments(layer: Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    # The argument names of the layers.
    names = ['x', 'edge_index', 'edge_weight']
    if type(layer) is GCN2Conv:
        names.insert(1, 'x_0')
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _fill_cache(
    layer: Any, graph: PreparedGraph, matrix: bool
) -> list[Callable[[], None]]:
    def before(layer: Any, args: tuple, kwargs: dict) -> None:
        given = _arguments(layer, args, kwargs)
        if _is_graph(graph, given['edge_index'], given.get('edge_weight')):
            layer._cached_edge_index = graph.normalised(
                getattr(layer, 'improved', False),
                layer.add_self_loops,
                layer.flow,
                matrix,
            )

    def after(layer: Any, args: tuple, out: Any) -> None:
        layer._cached_edge_index = None

    return [
        layer.register_forward_pre_hook(before, with_kwargs=True).remove,
        layer.register_forward_hook(after, always_call=True).remove,
    ]


def _fill_propagation(
    layer: Any, graph: PreparedGraph, matrix: bool
) -> list[Callable[[], None]]:
    written: Callable[..., Tensor] = layer.forward

    def forward(
        x: Tensor, edge_index: Any, edge_weight: Tensor | None = None
    ) -> Tensor:
        if not _is_graph(graph, edge_index, edge_weight):
            return written(x, edge_index, edge_weight)
        adj, weight = graph.normalised(
            False, layer.add_self_loops, layer.flow, matrix
        )
        for _ in range(layer.K):
            x = layer.propagate(adj, x=x, edge_weight=weight)
        return layer.lin(x)

    layer.forward = forward
    return [lambda: delattr(layer, 'forward')]


def _swap_edges(layer: Any, graph: PreparedGraph) -> list[Callable[[], None]]:
    def before(
        layer: Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        given = _arguments(layer, args, kwargs)
        weight = given.get('edge_weight')
        if type(layer) is not GraphConv and weight is not None:
            # The third argument is 'size', and no weight.
            return None
        same = graph.edge_weight if weight is None else weight
        if not _is_graph(graph, given['edge_index'], same):
            return None
        given['edge_index'] = graph.adjacency(weight is not None)
        given.pop('edge_weight', None)
        return (), given

    return [layer.register_forward_pre_hook(before, with_kwargs=True).remove]


# Inside of a model ##########################################################

# Methods of sparse features that do not need them dense.
_ASKED = frozenset(['size', 'dim', 'numel', 'is_floating_point', '__len__'])
_READ = frozenset(
    ['shape', 'dtype', 'device', 'requires_grad', 'ndim', 'is_cuda']
)
_NESTED = (tuple, list, dict)
_MATMULS = frozenset(['mm', '_sparse_mm', 'matmul', '__matmul__'])


class PreparedMode(TorchFunctionMode):
    """Mode that computes products by prepared matrices and seeds dropout.

    Args:
        x (Tensor): the features that the model is called with: dense, or CSR,
            which is converted to dense where a model does more than multiply
            it.
        graph (PreparedGraph): the graph that the model is called with.
        seed (int): the seed of dropout.
        dense (Tensor, optional): CSR features as a dense matrix, if the caller
            has it. (default: :obj:`None`)
    """

    def __init__(
        self,
        x: Tensor,
        graph: PreparedGraph,
        seed: int,
        dense: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.x, self.graph = x, graph
        self.features: Operand | None = None
        if x.layout == torch.sparse_csr:
            self.features = Operand(x)
        self._seed = seed
        self._generator: torch.Generator | None = None
        self._dense = dense
        # Products of constants, and what they are products of.
        self._constants: dict[tuple[int, int, int], Tensor] = {}
        self._constant_ids = {id(x)}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        """Run one operation of the model."""
        kwargs = kwargs or {}
        name = getattr(func, '__name__', '')
        if name == '__get__':
            asked = getattr(getattr(func, '__self__', None), '__name__', '')
            if asked in _READ:
                return func(*args, **kwargs)
        elif name == 'linear' and self.features is not None:
            return self._linear(func, *args, **kwargs)
        elif name in _MATMULS and args and isinstance(args[0], Tensor):
            operand = self.graph.operands.get(id(args[0]))
            if operand is not None:
                return self._product(operand, *args[1:])
        if self.features is not None and name not in _ASKED:
            if any(v is self.x or type(v) in _NESTED for v in args):
                args = self._densified(args)
            if kwargs:
                kwargs = self._densified(kwargs)
        if name == 'dropout':
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def _linear(
        self, func: Any, input: Tensor, weight: Tensor, bias: Any = None
    ) -> Tensor:
        if input is not self.x and input is not self._dense:
            return func(input, weight, bias)
        assert self.features is not None
        out = self.features.times(weight.t())
        return out if bias is None else out + bias

    def _product(
        self, operand: Operand, dense: Tensor, reduce: str = 'sum'
    ) -> Tensor:
        if reduce == 'mean':
            operand = operand.mean
        dense = self._densified(dense)
        if dense is not self._dense and id(dense) not in self._constant_ids:
            return operand.times(dense)
        # A model may write to what it was given.
        key = (id(operand), id(dense), dense._version)
        made = self._constants.get(key)
        if made is None or made._version > 0:
            made = operand.times(dense)
            self._constants[key] = made
            self._constant_ids.add(id(made))
        return made

    def _densified(self, value: Any) -> Any:
        if value is self.x and self.features is not None:
            if self._dense is None:
                self._dense = self.x.to_dense()
            return self._dense
        if type(value) in (tuple, list):
            return type(value)(self._densified(v) for v in value)
        if type(value) is dict:
            return {k: self._densified(v) for k, v in value.items()}
        return value

    def _dropout(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        # torch.dropout calls it 'train'.
        if not kwargs.get('train', training) or p == 0:
            return input
        drawn = torch.empty(input.shape, dtype=torch.int32)
        if self._generator is None:
            self._generator = rng.generator(self._seed)
        drawn.random_(generator=self._generator)
        # Keep entries whose draw of 2^31 values is below this.
        keep = (drawn < round((1 - p) * 2**31)).to(input.dtype)
        if p < 1:
            keep *= 1 / (1 - p)
        return input.mul_(keep) if inplace else input * keep
