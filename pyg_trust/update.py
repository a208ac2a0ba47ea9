"""Updates of a graph: what goes, what comes, and what changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import check_instance, check_tensor
from pyg_trust.removal import Part, RemovalRequest

_NO_EDGES = torch.empty((2, 0), dtype=torch.int64)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Update:
    """An update: removals, then additions, then changes.

    .. code-block:: python

        Update(edges=torch.tensor([[0], [5]]))
        Update(nodes=x_new, edges=torch.tensor([[n], [3]]))
        Update(remove=RemovalRequest(nodes=[7]), features=(nodes, x))

    New nodes get the next names. A
    :class:`~pyg_trust.removal.RemovalRequest` is an update that removes only,
    and is taken wherever an update is. What an update both removes and adds,
    or removes and changes, is refused: leave it out, or make two updates of
    it. The tensors are copied. Printing and :meth:`to_dict` show names only.

    Args:
        nodes (Tensor, optional): features of new nodes, ``[k, num_columns]``.
            (default: :obj:`None`)
        edges (Tensor, optional): edges to add, int64, ``[2, k]``; in both
            directions, if not :obj:`directed`. (default: :obj:`None`)
        features (tuple[Tensor, Tensor], optional): nodes, int64, each once,
            and their new features. (default: :obj:`None`)
        remove (RemovalRequest, optional): what goes.
            (default: :obj:`None`)
        directed (bool): whether edges to add go in the given direction alone.
            (default: :obj:`False`)

    Raises:
        TypeError: on a tensor of another type, or another request.
        ValueError: on names that are negative or there twice, features that
            do not fit or are not finite, or anything that both goes and comes
            or changes.

    Example:
        >>> new = Update(edges=torch.tensor([[0], [5]]))
        >>> Update.of([RemovalRequest(nodes=[3]), new])
        (Update({'remove': {'nodes': [3]}}), Update({'edges': [[0, 5]]}))
    """

    nodes: Tensor | None
    edges: Tensor
    features: tuple[Tensor, Tensor] | None
    remove: RemovalRequest | None
    directed: bool

    def __init__(
        self,
        *,
        nodes: Tensor | None = None,
        edges: Tensor | None = None,
        features: tuple[Tensor, Tensor] | None = None,
        remove: RemovalRequest | None = None,
        directed: bool = False,
    ) -> None:
        check_instance('directed', directed, bool)
        if remove is not None:
            check_instance('remove', remove, RemovalRequest)
        if nodes is not None:
            check_tensor('nodes', nodes, None, ('k', 'columns'), finite=True)
            nodes = nodes.detach().clone()
        edges = _NO_EDGES if edges is None else edges
        check_tensor('edges', edges, torch.int64, (2, 'k'))
        _named('edges', edges)
        if features is not None:
            check_instance('features', features, tuple)
            if len(features) != 2:
                raise ValueError(
                    "'features' needs nodes and their features "
                    f'(got {len(features)} things)'
                )
            of, x = features
            check_tensor('features', of, torch.int64, ('k',))
            _named('features', of)
            if of.unique().numel() != of.numel():
                raise ValueError("'features' needs to have each node once")
            shape = of.numel(), 'columns'
            check_tensor('features', x, None, shape, finite=True)
            features = of.clone(), x.detach().clone()
        held: dict[str, Any] = {
            'nodes': nodes,
            'edges': edges.clone(),
            'features': features,
        }
        held |= {'remove': remove, 'directed': directed}
        for name, value in held.items():
            object.__setattr__(self, name, value)
        self._check_removed()

    @classmethod
    def of(cls, update: Any) -> tuple['Update', ...]:
        """Read an update, a removal request, or a list of them.

        Args:
            update (Update, RemovalRequest or list): what to do, in its order.

        Raises:
            TypeError: on anything else.
        """
        if isinstance(update, RemovalRequest):
            update = cls(remove=update)
        if isinstance(update, cls):
            return (update,)
        check_instance('update', update, Sequence)
        made = (
            cls(remove=each) if isinstance(each, RemovalRequest) else each
            for each in update
        )
        every = tuple(made)
        for each in every:
            check_instance('update', each, cls)
        return every

    @property
    def part(self) -> Part:
        """What goes, of the only graph.

        Raises:
            ValueError: if a whole graph goes, or a part of another one.
        """
        if self.remove is None:
            return Part()
        if self.remove.graphs != [0] or self.remove.parts[0].whole:
            raise ValueError(
                "'remove' needs to name nodes, edges, features or labels of "
                f'graph 0, the only one (got graphs {self.remove.graphs})'
            )
        return self.remove.parts[0]

    def arcs(self, undirected: bool) -> Tensor:
        """Return the directions in which edges come: int64, ``[2, k]``.

        Args:
            undirected (bool): whether one direction of the graph means both.

        Raises:
            ValueError: if an undirected graph would become directed.
        """
        check_instance('undirected', undirected, bool)
        edges = self.edges
        both = not undirected and not self.directed
        if undirected and self.directed and edges.numel():
            raise directs(*edges[:, 0].tolist())
        back = edges[:, edges[0] != edges[1]].flip(0)
        return torch.cat([edges, back], dim=1) if both else edges

    def to_dict(self) -> dict[str, Any]:
        """Return the names, without features: plain lists."""
        new = 0 if self.nodes is None else self.nodes.size(0)
        changed = [] if self.features is None else self.features[0].tolist()
        found = {
            'remove': self.part.to_dict(),
            'new_nodes': new,
            'edges': self.edges.t().tolist(),
            'features': changed,
            'directed': self.directed,
        }
        return {name: value for name, value in found.items() if value}

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.to_dict()})'

    def _check_removed(self) -> None:
        part = self.part
        gone, cut = {*part.nodes}, {*part.arcs}
        for u, v in self.edges.t().tolist():
            there = (u, v) in cut or (not self.directed and (v, u) in cut)
            if there or u in gone or v in gone:
                raise ValueError(
                    f"'edges' has {u} -> {v}, which 'remove' has too, or an "
                    'end of it: an update removes a thing or adds it'
                )
        changed = () if self.features is None else self.features[0].tolist()
        for node in changed:
            if node in gone or node in part.features:
                raise ValueError(
                    f"'features' has node {node}, of which 'remove' takes "
                    'them: an update removes a thing or changes it'
                )


def directs(u: int, v: int) -> ValueError:
    """Return the refusal of an edge that makes a graph a directed one.

    Args:
        u (int): where it begins.
        v (int): where it ends.
    """
    return ValueError(
        f"'directed' needs a directed graph (got {u} -> {v} of an undirected "
        'one, which it would make directed)'
    )


def _named(name: str, nodes: Tensor) -> None:
    if nodes.numel() and int(nodes.min()) < 0:
        raise ValueError(
            f"'{name}' needs names from 0 on (got {int(nodes.min())})"
        )
