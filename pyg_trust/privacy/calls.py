"""Calls of a module on a batch of disjoint subgraphs, and on its parts."""

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

# Names that PyG has for how many subgraphs there are.
_COUNTS = ('batch_size', 'num_graphs')
NODE, EDGE, INDEX = 'node', 'edge', 'index'

Leaf = Callable[[str, Any], Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Call:
    r"""Arguments of a module's call, with the level of each tensor's rows.

    A tensor of type int64 and shape ``[2, num_edges]`` holds edges. Of the
    others, one with ``num_nodes`` rows holds nodes and one with ``num_edges``
    rows holds edges. If both numbers are the same, an argument (or a key of
    :class:`Data`) whose name begins with ``edge``, as PyG names them, holds
    edges, and so does one without a name (``*args``) of floats behind the
    edges. A wrong guess does not go unseen, as rows of different subgraphs
    meet then.

    Args:
        module (torch.nn.Module): the called module.
        args (tuple): its positional arguments.
        kwargs (dict): its keyword arguments.
        owner (Tensor): int64, ``[num_nodes]``, the subgraph of each node.
        num_subgraphs (int): how many subgraphs there are.
    """

    def __init__(
        self,
        module: nn.Module,
        args: Args,
        kwargs: Kwargs,
        owner: Tensor,
        num_subgraphs: int,
    ) -> None:
        self.module = module
        self.owner = owner
        self.num_subgraphs = num_subgraphs
        self.bound = inspect.signature(module.forward).bind(*args, **kwargs)
        # Positional arguments after the edges, as in PyG's layers.
        self._unnamed: set[str] = set()
        self.edges: Tensor | None = None
        for _, value in self.leaves():
            if _is_edges(value) or _is_sparse(value):
                self.edges = value if _is_edges(value) else _pairs(value)
                break
        self._check_edges()
        parameters = self.bound.signature.parameters
        self._unnamed = {
            name
            for name, parameter in parameters.items()
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL
            and any(_is_edges(v) for n, v in self.leaves() if n != name)
        }

    def _check_edges(self) -> None:
        edges, owner = self.edges, self.owner
        if edges is None or edges.numel() == 0:
            return
        if int(edges.min()) < 0 or int(edges.max()) >= owner.numel():
            raise ValueError(
                "'owner' needs to have an entry for every node (got "
                f'{owner.numel()} entries, and edges between other nodes)'
            )
        if not torch.equal(owner[edges[0]], owner[edges[1]]):
            raise ValueError(
                "'owner' needs to be the same at both ends of every edge "
                '(an edge joins two subgraphs)'
            )

    def on(self, module: nn.Module, dtype: torch.dtype | None) -> 'Call':
        """Return this call for a copy of the module, in another precision."""

        def leaf(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return value.detach().to(dtype)

        args, kwargs = self.map(leaf)
        return Call(module, args, kwargs, self.owner, self.num_subgraphs)

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the names and values of the arguments' leaves."""
        found: list[tuple[str, Any]] = []
        self.map(lambda name, value: found.append((name, value)))
        yield from found

    def level(self, name: str, value: Any) -> str | None:
        """Return the level of a tensor's rows: node, edge, index or None."""
        if not isinstance(value, Tensor) or value.dim() == 0:
            return None
        if _is_edges(value) or _is_sparse(value):
            return INDEX
        num_edges = None if self.edges is None else self.edges.size(1)
        if value.size(0) == num_edges and (
            name.startswith('edge')
            or num_edges != self.owner.numel()
            or (name in self._unnamed and value.is_floating_point())
        ):
            return EDGE
        return NODE if value.size(0) == self.owner.numel() else None

    def rows(self, name: str, value: Any) -> Tensor | None:
        """Return the subgraph of each row of a tensor, if it is known."""
        level = self.level(name, value)
        if level == NODE:
            return self.owner
        if level == EDGE and self.edges is not None:
            return self.owner[self.edges[0]]
        return None

    def run(self, leaf: Leaf | None = None) -> Any:
        """Call the module again, with leaves changed."""
        args, kwargs = self.map(leaf or (lambda name, value: value))
        return self.module(*args, **kwargs)

    def extract(
        self, subgraphs: Tensor, leaf: Leaf | None = None
    ) -> tuple['Call', Tensor]:
        r"""Return the call on some of the subgraphs alone.

        Args:
            subgraphs (Tensor): int64, the subgraphs to keep, without
                duplicates.
            leaf (callable, optional): changes leaves before they are cut.
                (default: :obj:`None`)

        Returns:
            tuple[Call, Tensor]: the call, in which the subgraphs have the
            numbers 0, 1, ... in the order of :obj:`subgraphs`, and its nodes.
        """
        owner = self.owner
        number = owner.new_full((self.num_subgraphs,), -1)
        number[subgraphs] = torch.arange(
            subgraphs.numel(), device=number.device
        )
        new_owner = number[owner]
        kept = new_owner >= 0
        nodes = kept.nonzero().view(-1)
        position = torch.full_like(owner, -1)
        position[nodes] = torch.arange(nodes.numel(), device=owner.device)
        edges = None if self.edges is None else kept[self.edges[0]]

        def cut(name: str, value: Any) -> Any:
            if leaf is not None:
                value = leaf(name, value)
            level = self.level(name, value)
            if level == INDEX and _is_sparse(value):
                return _cut_sparse(value, kept, position, nodes.numel())
            if level == INDEX:
                return position[value[:, kept[value[0]]]]
            if level == NODE and _same(value, owner):
                return new_owner[nodes]
            if level == NODE:
                return value[nodes]
            if level == EDGE:
                return value[edges]
            if name in _COUNTS and value == self.num_subgraphs:
                return subgraphs.numel()
            if name == 'num_nodes' and value == owner.numel():
                return nodes.numel()
            return value

        def cut_data(data: Data) -> Data:
            out = data.clone()
            for key, value in data.items():
                if isinstance(value, Tensor):
                    out[key] = cut(key, value)
            if 'batch_size' in data:
                out.batch_size = int(subgraphs.numel())
            if 'num_nodes' in data:
                out.num_nodes = nodes.numel()
            return out

        args, kwargs = self.map(cut, cut_data)
        call = Call(
            self.module, args, kwargs, new_owner[nodes], subgraphs.numel()
        )
        return call, nodes

    def map(
        self,
        leaf: Leaf,
        of_data: Callable[[Data], Data] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with a function applied to every leaf."""

        def visit(name: str, value: Any) -> Any:
            if isinstance(value, Data):
                if of_data is not None:
                    return of_data(value)
                out = copy.copy(value)
                for key, item in value.items():
                    if isinstance(item, Tensor):
                        out[key] = leaf(key, item)
                return out
            if isinstance(value, tuple | list) and type(value) in (
                tuple,
                list,
            ):
                return type(value)(visit(name, item) for item in value)
            return leaf(name, value)

        parameters = self.bound.signature.parameters
        new: dict[str, Any] = {}
        for name, value in self.bound.arguments.items():
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                new[name] = {k: visit(k, v) for k, v in value.items()}
            else:
                new[name] = visit(name, value)
        bound = inspect.BoundArguments(self.bound.signature, new)
        return bound.args, bound.kwargs


def _same(value: Tensor, owner: Tensor) -> bool:
    return value.dtype == owner.dtype and torch.equal(value, owner)


def _is_edges(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.dtype == torch.int64
        and value.dim() == 2
        and value.size(0) == 2
    )


def _is_sparse(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout != torch.strided
        and value.dim() == 2
    )


def _pairs(value: Tensor) -> Tensor:
    return value.detach().to_sparse_coo().coalesce().indices()


def _cut_sparse(
    value: Tensor, kept: Tensor, position: Tensor, num_nodes: int
) -> Tensor:
    coo = value.to_sparse_coo().coalesce()
    inside = kept[coo.indices()[0]]
    out = torch.sparse_coo_tensor(
        position[coo.indices()[:, inside]],
        coo.values()[inside],
        (num_nodes, num_nodes),
        check_invariants=True,
    ).coalesce()
    if value.layout == torch.sparse_csr:
        return out.to_sparse_csr()
    if value.layout == torch.sparse_csc:
        return out.to_sparse_csc()
    return out
