"""Typed graphs of a sharded unlearner, which are divided by person."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust._checks import check_instance
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust.removal import Part
from pyg_trust.unit import PrivacyUnit
from pyg_trust.update import Update, rows_of


@dataclass(frozen=True)
class Persons:
    """All that persons own, beside their table.

    Args:
        graph (HeteroData): features and edges, and the names of persons.
        unit (PrivacyUnit): who owns what of it.
    """

    graph: HeteroData
    unit: PrivacyUnit

    @classmethod
    def of(cls, data: HeteroData, unit: PrivacyUnit) -> tuple[Data, 'Persons']:
        """Return the table of persons, and a copy of what they own.

        Raises:
            TypeError: if the graph is none of several types.
            ValueError: if the data are not those of the unit, its persons are
                not in the order of their names, or it has what models do not
                receive.
        """
        check_instance('data', data, HeteroData)
        table = unit.table(data)
        if bool((table.n_id.diff() <= 0).any()):
            raise ValueError(
                f"'data' needs persons, rows of {unit.person!r}, in ascending "
                "order of their names 'n_id'"
            )
        graph = HeteroData()
        for t in data.node_types:
            x = data[t].get('x')
            graph[t].num_nodes = data[t].num_nodes
            if x is None:
                continue
            if not _is_matrix(x):
                raise ValueError(
                    f"'data' needs features 'x' of {t!r} of the shape "
                    '[num_rows, channels], dense, floating point and finite'
                )
            graph[t].x = x.detach().cpu().clone()
        graph[unit.person].n_id = table.n_id
        for e in data.edge_types:
            for key in data[e]:
                if key != 'edge_index':
                    raise ValueError(
                        f"'data' has {key!r} of {e}, which models do not "
                        'receive: of edges they receive their ends alone; '
                        'take it off first'
                    )
            graph[e].edge_index = data[e].edge_index.cpu().clone()
        # Not the caller's tensors, which the caller may write to.
        edges = {id(unit._edges): dict(graph.edge_index_dict)}
        return table, cls(graph, copy.deepcopy(unit, edges))

    @property
    def person(self) -> str:
        """The node type of persons."""
        assert self.unit.person is not None
        return self.unit.person

    def within(self, n_id: Tensor) -> HeteroData:
        """Return what persons own alone or together, with all public rows."""
        rows = rows_of(self.graph[self.person].n_id, n_id)
        return _inputs(self.unit._inside(self.graph, rows))

    def whole(self) -> HeteroData:
        """Return all rows."""
        return _inputs(self.graph)

    def print_of(self, n_id: Tensor | None) -> str:
        """Hash the rows and edges that some persons own.

        Args:
            n_id (Tensor, optional): the persons; all of them, with the public
                rows that all shards have, if there is none.
        """
        data = self.whole() if n_id is None else self.within(n_id)
        skip = (*self.unit.public, *self.unit.public_edges)
        held = {**data.x_dict, **data.edge_index_dict}
        names = held.keys() - {*(() if n_id is None else skip)}
        parts: list[Tensor | str | float | None] = [self.person]
        for key in sorted(names, key=repr):
            parts += [repr(key), held[key]]
        return fingerprint(*parts)

    def without(self, n_id: Iterable[int]) -> 'Persons':
        """Return what is left after the removal of persons."""
        names = torch.tensor([*n_id], dtype=torch.int64)
        rows = rows_of(self.graph[self.person].n_id, names)
        graph, unit = self.unit._rest(self.graph, rows)
        for t in graph.node_types:
            if t != self.person:
                # Positions in the graph before.
                del graph[t].n_id
        return Persons(graph, unit)

    def assumptions(self) -> tuple[str, ...]:
        """Return what a report says of the unit, without data."""
        of = self.unit.summary()
        owned = ', '.join([self.person, *of['owned']])
        public = ', '.join(of['declared_public']) or 'nothing'
        stated = (
            f'a person is its rows of {owned}, as the privacy unit was told; '
            f'declared public: {public}, of which every model sees all',
        )
        if not of['joint']:
            return stated
        joint = ', '.join(of['joint'])
        return *stated, (
            f'rows of persons of several shards ({joint}) are in the '
            'training of none'
        )


def removed_names(updates: Iterable[Update], unit: PrivacyUnit) -> list[int]:
    """Return the persons that updates remove.

    Args:
        updates (Iterable[Update]): the updates.
        unit (PrivacyUnit): that of the data at present.

    Raises:
        ValueError: if the updates do anything else, or name persons of
            another unit.
    """
    names: list[int] = []
    for each in updates:
        asked = each.remove
        if asked is not None and asked._unit not in ('', unit.digest):
            named_by = asked._units
            known = len(named_by) == asked._unit.count('+') + 1
            if not known or not all(map(unit._agrees, named_by)):
                raise ValueError(
                    "'request' needs to name persons of the unlearner's "
                    "'unit', or of one that is declared alike for what "
                    'remains (got one of another graph or declaration, or a '
                    'copy of a request)'
                )
        part = each.part
        names += part.nodes
        came = (each.nodes, each.features, each.labels)
        if (
            part != Part(nodes=part.nodes)
            or each.edges.numel()
            or any(value is not None for value in came)
        ):
            raise ValueError(
                "'update' needs to be a RemovalRequest(persons=..., unit=...) "
                "alone, as the unlearner has a 'unit': fit a new one to rows "
                'that came or changed'
            )
    return names


def touched(before: Data, after: Data, num_shards: int) -> dict[int, int]:
    """Return the shards whose training data differ, from the first stage on.

    Those of removed persons and, for joint rows that stay, of their other
    owners.
    """
    prints = (
        [_print(table, i) for i in range(num_shards)]
        for table in (before, after)
    )
    both = enumerate(zip(*prints, strict=True))
    return {i: 0 for i, (one, two) in both if one != two}


def _print(table: Data, shard: int) -> tuple[str, list[int]]:
    inside = table.shard == shard
    made = table.persons.print_of(table.n_id[inside])
    return made, table.y[inside].tolist()


def _inputs(graph: HeteroData) -> HeteroData:
    # What models receive.
    made = HeteroData()
    for t in graph.node_types:
        if 'x' in graph[t]:
            made[t].x = graph[t].x
    for e in graph.edge_types:
        made[e].edge_index = graph[e].edge_index
    return made


def _is_matrix(x: object) -> bool:
    return (
        isinstance(x, Tensor)
        and x.layout == torch.strided
        and x.dim() == 2
        and x.is_floating_point()
        and bool(x.isfinite().all())
    )
