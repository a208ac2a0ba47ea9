"""Transform that splits a graph so that a changed element affects one view."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust import rng
from pyg_trust._checks import (
    check_choice,
    check_instance,
    check_integer,
    check_tensor,
)
from pyg_trust._checks.graphs import check_edges
from pyg_trust._describe import described
from pyg_trust.certificates.voting import strays
from pyg_trust.graph.attributes import keep_edges, subgraph
from pyg_trust.unit import PrivacyUnit

__all__ = [
    'DIVISIONS',
    'Division',
    'check_apart',
    'check_named',
    'ids_of',
    'incoming_view',
]

DIVISIONS = (
    *('edges', 'nodes', 'subgraphs', 'features', 'entries', 'grid'),
    'owners',
)
# Parts of the key.
_NODES, _EDGES, _ENTRIES, _OWNERS = 0, 1, 2, 3


@functional_transform('division')
class Division(BaseTransform):
    """Return a random view of a graph, which shows a part of its elements
    (functional name: :obj:`division`).

    The views are those that :class:`~pyg_trust.certificates.Divided` votes
    over; train its model on them, with a new view each epoch. Every element
    (an edge, a node, ...) belongs to one of :math:`T` groups, by a keyed hash
    of its node ids alone (``data.n_id``, else positions). So an attacker can't
    move other elements to another group.

    ===============  =======================================================
    ``'edges'``      view :math:`i` has the undirected edges of group
                     :math:`i` (both directions together)
    ``'nodes'``      the edges that leave nodes of group :math:`i`, which are
                     then the only senders of messages in all layers
    ``'subgraphs'``  the subgraph that group :math:`i` induces
    ``'features'``   all edges; the rows of ``x`` of group :math:`i`, zeros
                     elsewhere
    ``'entries'``    all edges; the entries of ``x`` of group :math:`i`, zeros
                     elsewhere
    ``'grid'``       edges of group :math:`i` and rows of ``x`` of group
                     :math:`j`, in view :math:`i T + j`
    ``'owners'``     public rows, and the rows and edges that have a single
                     owner, a person of group :math:`i`
    ===============  =======================================================

    Args:
        num_groups (int): the number :math:`T` of groups; for ``'grid'`` that
            of edges and that of rows, so that there are :math:`T^2` views.
        by (str): the elements to divide, one of the table.
        seed (int, optional): the seed of the hash; by default from the
            operating system. (default: :obj:`None`)
        unit (PrivacyUnit, optional): who owns what; for ``'owners'`` alone.
    """  # noqa: D205

    def __init__(
        self,
        num_groups: int,
        by: str = 'nodes',
        seed: int | None = None,
        unit: PrivacyUnit | None = None,
    ) -> None:
        check_choice('by', by, DIVISIONS)
        if unit is not None:
            check_instance('unit', unit, PrivacyUnit)
        if (by == 'owners') != (unit is not None):
            raise ValueError(
                "'unit' needs to say who owns what for by='owners', and is "
                f'of no other (got {unit} for {by!r})'
            )
        self.unit = unit
        self.num_groups = check_integer('num_groups', num_groups, 1)
        self.by = by
        self.seed = rng.resolve_secret(seed)

    @property
    def num_views(self) -> int:
        """The number of views: :math:`T`, or :math:`T^2` for ``'grid'``."""
        return self.num_groups ** (2 if self.by == 'grid' else 1)

    def forward(self, data: Data | HeteroData) -> Any:
        """Return a random view as a new graph, drawn by torch's generator."""
        self.check(data)
        return self.part(data, int(torch.randint(self.num_views, ())))

    def view(self, data: Data | HeteroData, number: int) -> Any:
        """Return one view as a new graph.

        Args:
            data (Data or HeteroData): the graph; for ``'owners'`` that of the
                :obj:`unit`.
            number (int): which view, from 0 to :obj:`num_views` - 1.
        """
        self.check(data)
        check_integer('number', number, 0, self.num_views - 1)
        return self.part(data, number)

    def check(self, data: Data | HeteroData) -> None:
        """Raise an error if the graph can't be divided."""
        if self.unit is None:
            check_named(data)
        else:
            check_instance('data', data, HeteroData)
            self.unit.check(data)

    def owner_groups(self) -> Tensor:
        """Return the group of every person: int64, ``[num_persons]``.

        It is for ``'owners'``. Entry i is of the person at position i of the
        :obj:`unit`, and depends on the person's id alone.
        """
        assert self.unit is not None
        key = rng.derive(self.seed, _OWNERS)
        return rng.derive_each(key, self.unit.n_id) % self.num_groups

    def part(self, data: Data | HeteroData, number: int) -> Any:
        """Return one view, like :meth:`view`, without any check."""
        if self.unit is not None:
            kept = (self.owner_groups() == number).nonzero().view(-1)
            view = self.unit._inside(data, kept, joint=False)
            for t in data.node_types:
                if 'n_id' not in data[t]:
                    del view[t].n_id  # Places move with rows of others.
            return view
        view = copy.copy(data)
        n = int(data.num_nodes)
        view.num_nodes = n
        if self.by == 'subgraphs':
            inside = self.node_groups(data) == number
            return subgraph(view, inside.nonzero().view(-1))
        first, second = divmod(number, self.num_groups)
        edges = second if self.by != 'grid' else first
        if self.by == 'nodes':
            return incoming_view(view, self.node_groups(data) == edges)
        if self.by in ('edges', 'grid'):
            keep_edges(view, self.edge_groups(data) == edges)
        if self.by in ('features', 'grid'):
            held = self.node_groups(data) == second
            # Select, as a product with zero would turn infinities into NaN in
            # all views.
            keep = held[:, None].to(data.x.device)
            view.x = torch.where(keep, data.x, 0)
        if self.by == 'entries':
            view.x = self._entries(data, second)
        return view

    def node_groups(self, data: Data) -> Tensor:
        """Return the group of every node: int64, ``[num_nodes]``."""
        check_named(data)
        ids = ids_of(data)
        key = rng.derive(self.seed, _NODES)
        group = rng.derive_each(key, ids.cpu()) % self.num_groups
        return group.to(ids.device)

    def edge_groups(self, data: Data) -> Tensor:
        """Return the group of every edge: int64, ``[num_edges]``.

        An edge and its reverse are in the same group.
        """
        check_named(data)
        ends = ids_of(data)[data.edge_index].cpu()
        key = rng.derive(self.seed, _EDGES)
        low, high = ends.min(0).values, ends.max(0).values
        word = rng.derive_each(key, low) ^ high
        group = rng.derive_each(key, word) % self.num_groups
        return group.to(data.edge_index.device)

    def _entries(self, data: Data, number: int) -> Tensor:
        # A stored 0 is the same as no entry, in every view.
        node, column = data.x.nonzero().cpu().t()
        key = rng.derive(self.seed, _ENTRIES)
        word = rng.derive_each(key, ids_of(data).cpu()[node]) ^ column
        held = rng.derive_each(key, word) % self.num_groups == number
        keep = torch.zeros(data.x.shape, dtype=torch.bool)
        keep[node[held], column[held]] = True
        return torch.where(keep.to(data.x.device), data.x, 0)

    def __repr__(self) -> str:
        return described(self, 'num_groups', by=self.by)


def incoming_view(data: Data, speaks: Tensor) -> Data:
    """Return the graph with only the edges that leave masked nodes."""
    view = copy.copy(data)
    view.num_nodes = int(data.num_nodes)
    keep_edges(view, speaks[data.edge_index[0]])
    return view


def check_apart(
    call: Callable[[Data], Tensor],
    data: Data,
    group: Tensor,
) -> None:
    """Refuse a model whose outputs mix nodes that no edge joins.

    Nodes receive messages from one group alone, and then nodes of other groups
    change, one half of them and then the other. Outputs of the rest must keep
    every bit. Weights must not depend on the other receivers.

    Args:
        call (Callable): maps a graph to logits.
        data (Data): the graph.
        group (Tensor): int64, ``[num_nodes]``: the group of every node.
    """
    # Larger and smaller than all that is there.
    far = 2 + data.x.abs().max() if data.x.numel() else 0
    # Another group, too: a node that all see may be of the first.
    for heard in (*group[group != 0][:1].tolist(), 0):
        view = incoming_view(data, group == heard)
        clean, silent = call(view), (group != heard).nonzero().view(-1)
        for some in (silent[::2], silent[1::2]):
            other = copy.copy(view)
            other.x = view.x.clone()
            other.x[some[::2]], other.x[some[1::2]] = far, -far
            moved = call(other)
            same = (moved == clean) | (moved.isnan() & clean.isnan())
            same[some] = True
            if not bool(same.all()):
                raise ValueError(
                    "'model' needs to keep nodes apart that no edge joins "
                    f'(got another output for node '
                    f'{int((~same).nonzero()[0, 0])} after changes of nodes '
                    'that send nothing in this view): normalization over all '
                    'nodes breaks the isolation of views'
                )
    _check_listeners(call, view, clean, group == 0)


def _check_listeners(
    call: Callable[[Data], Tensor], view: Data, clean: Tensor, heard: Tensor
) -> None:
    # The group alone, and with one receiver of each of its nodes: without
    # all others, those who are left get the same messages.
    source, target = view.edge_index
    outer = ~heard[target]
    some = heard.clone()
    first = torch.full_like(heard, -1, dtype=torch.int64)
    first[source[outer]] = target[outer]
    some[first[first >= 0]] = True
    for keep in (heard, some):
        if not bool(keep.any()):
            continue
        found = call(view.subgraph(keep))
        bad = strays(clean[keep], found) & clean[keep].isfinite().cpu()
        if bool(bad.any()):
            node = int(keep.nonzero()[int(bad.nonzero()[0, 0]), 0])
            raise ValueError(
                "'model' needs weights that do not depend on a node's other "
                'receivers, such as out-degrees (got another output for node '
                f'{node} in a subgraph of its view)'
            )


def ids_of(data: Data) -> Tensor:
    """Return the ids of the nodes: ``n_id``, or else their positions."""
    if data.get('n_id') is not None:
        return data.n_id
    device = data.edge_index.device
    return torch.arange(int(data.num_nodes or 0), device=device)


def check_named(data: Any) -> None:
    """Refuse a graph whose nodes or edges cannot be divided."""
    check_instance('data', data, Data)
    if data.edge_index is None:
        raise ValueError("'data' needs to have an 'edge_index'")
    n = int(data.num_nodes or 0)
    if n == 0:
        raise ValueError("'data' needs to have at least one node (got 0)")
    check_edges('edge_index', data.edge_index, n)
    if data.get('n_id') is not None:
        check_tensor('n_id', data.n_id, torch.int64, (n,))
        if int(data.n_id.min()) < 0 or data.n_id.unique().numel() < n:
            raise ValueError(
                "'n_id' needs to hold different non-negative ids (got one "
                'that is negative, or there twice)'
            )
