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
    """All that persons own, beside their table."""

    #: Features and edges of all types, and the ids of persons.
    graph: HeteroData
    #: The declaration of who owns what of it.
    unit: PrivacyUnit

    @classmethod
    def of(cls, data: HeteroData, unit: PrivacyUnit) -> tuple[Data, 'Persons']:
        """Return the table of persons, and a copy of what they own."""
        check_instance('data', data, HeteroData)
        table = unit.table(data)
        if bool((table.n_id.diff() <= 0).any()):
            raise ValueError(
                f"'data' needs persons, rows of {unit.person!r}, in ascending "
                "order of their ids 'n_id'"
            )
        graph = HeteroData()
        for t in data.node_types:
            x = data[t].get('x')
            graph[t].num_nodes = data[t].num_nodes
            if x is None:
                continue
            if (
                not isinstance(x, Tensor)
                or x.layout != torch.strided
                or x.dim() != 2
                or not x.is_floating_point()
                or not bool(x.isfinite().all())
            ):
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

    def whole(self) -> HeteroData:
        """Return the input of a model of all rows."""
        return _inputs(self.graph)

    def within(self, n_id: Tensor) -> HeteroData:
        """Return what persons own alone or together, with all public rows."""
        rows = rows_of(self.graph[self.person].n_id, n_id)
        return _inputs(self.unit._inside(self.graph, rows))

    def digest_of(self, n_id: Tensor | None) -> str:
        """Hash what some persons own, or all with the public rows."""
        data = self.whole() if n_id is None else self.within(n_id)
        held = {**data.x_dict, **data.edge_index_dict}
        if n_id is not None:
            for key in (*self.unit.public, *self.unit.public_edges):
                held.pop(key, None)
        keys = sorted(held, key=repr)
        return fingerprint(
            self.person, *(part for k in keys for part in (repr(k), held[k]))
        )

    def without(self, n_id: Iterable[int]) -> 'Persons':
        """Return what is left after the removal of persons."""
        ids = torch.tensor([*n_id], dtype=torch.int64)
        rows = rows_of(self.graph[self.person].n_id, ids)
        graph, unit = self.unit._rest(self.graph, rows)
        for t in graph.node_types:
            if t != self.person:
                # Positions in the graph before.
                del graph[t].n_id
        return Persons(graph, unit)

    def assumptions(self) -> tuple[str, ...]:
        """Return what a report states about the unit, without data."""
        of = self.unit.summary()
        owned = ', '.join([self.person, *of['owned']])
        public = ', '.join(of['declared_public']) or 'nothing'
        joint = ', '.join(of['joint'])
        return (
            f'a person is its rows of {owned}, as the privacy unit declares; '
            f'declared public: {public}, of which every model sees all',
            f'rows of persons of several shards ({joint}) are in the '
            'training of none',
        )[: 2 if joint else 1]


def removed_persons(updates: Iterable[Update], unit: PrivacyUnit) -> list[int]:
    """Return the persons that updates remove; refuse all other updates."""
    ids: list[int] = []
    for each in updates:
        asked = each.remove
        if asked is not None and asked._unit not in ('', unit.digest):
            units = asked._units
            known = len(units) == asked._unit.count('+') + 1
            if not known or not all(map(unit._agrees, units)):
                raise ValueError(
                    "'request' needs to name persons of the unlearner's "
                    "'unit', or of one that is declared alike for what "
                    'remains (got one of another graph or declaration, or a '
                    'copy of a request)'
                )
        ids += each.part.nodes
        if each.part != Part(nodes=each.part.nodes) or each.edits:
            raise ValueError(
                "'update' needs to be a RemovalRequest(persons=..., unit=...) "
                "alone, as the unlearner has a 'unit': fit a new one to rows "
                'that came or changed'
            )
    return ids


def touched_by_persons(
    before: Data, after: Data, num_shards: int
) -> dict[int, int]:
    """Return the shards whose training data differ, from the first stage on.

    Those of removed persons and, for joint rows that stay, of their other
    owners.
    """

    def held(table: Data, shard: int) -> tuple[str, list[int]]:
        inside = table.shard == shard
        ids = table.n_id[inside]
        return table.persons.digest_of(ids), table.y[inside].tolist()

    return {
        i: 0 for i in range(num_shards) if held(before, i) != held(after, i)
    }


def _inputs(graph: HeteroData) -> HeteroData:
    # What models receive.
    made = HeteroData()
    for t in graph.node_types:
        if 'x' in graph[t]:
            made[t].x = graph[t].x
    for e in graph.edge_types:
        made[e].edge_index = graph[e].edge_index
    return made
