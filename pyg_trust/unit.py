# Longer than 700 lines because every question about owners is
# answered here, and nowhere else.
"""Privacy unit: ownership of the rows and edges of a typed graph.

A person may be rows in several tables and edges of several types. Everything
that has to know whose a row is asks one :class:`PrivacyUnit`, which holds a
matrix of rows by owners for each type.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Natural,
    NodeIds,
    check_choice,
    check_instance,
    check_integer,
    check_nodes,
    check_number,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._checks.graphs import check_edges, plain_index
from pyg_trust.graph._marks import declare, marked
from pyg_trust.graph.tables import (
    NODE,
    Cascade,
    EdgeType,
    Matrix,
    digest,
    few,
    has_rows,
    kept,
    known,
    matrix,
    mirrors,
    path_steps,
    typed,
    without,
)
from pyg_trust.removal import integers

__all__ = ['Cascade', 'PrivacyUnit']

Persons = Iterable[int] | Tensor
# A part of the seed.
_SPLIT = 0


@validated
class PrivacyUnit:
    """Declares which persons own the rows and edges of a typed graph.

    .. code-block:: python

        unit = PrivacyUnit(
            data,
            person='user',
            owned={'order': ('order', 'by', 'user')},
            joint={'chat': ('chat', 'of', 'user')},
            public=('item',),
        )

    Every node type is declared once: as persons, as owned by them or as
    public. An edge belongs to the owners of both of its ends. You also declare
    that no row was computed from data of persons who do not own it, and that
    public rows were computed from public data alone.

    Args:
        data (Data or HeteroData): the graph. It is marked: functions that
            protect single rows refuse it from then on. The one node type of a
            ``Data`` is called :obj:`None` here, and ``'node'`` in results.
        person (str, optional): the node type whose rows are the persons. A
            person's id is the position of its row.
        num_persons (int, optional): their number, if there is no such type.
        owned (dict): by node type, the owner of each row: an edge type between
            it and :obj:`person` with one edge a row, or int64 ``[num_rows]``.
        joint (dict): by node type, the owners of each row, at least one: an
            edge type, or int64 ``[2, k]`` of rows and persons.
        public (Sequence[str]): the node types that nobody owns.
        public_edges (Sequence): edge types between public rows that are
            public, too.
        edge_owner (dict): by edge type, the owner of each edge, int64
            ``[num_edges]``, beside those of its ends.
        on_removal (dict): by joint node type, ``'drop'`` (the default) if a
            row is removed with any of its owners, ``'keep'`` with the last.
        same (Tensor, optional): pairs of ids that belong to one person, int64,
            ``[2, k]``.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        person: str | None = None,
        *,
        num_persons: int | None = None,
        owned: Mapping[str | None, EdgeType | Tensor] | None = None,
        joint: Mapping[str | None, EdgeType | Tensor] | None = None,
        public: Sequence[str] = (),
        public_edges: Sequence[EdgeType] = (),
        edge_owner: Mapping[EdgeType, Tensor] | None = None,
        on_removal: Mapping[str | None, str] | None = None,
        same: Tensor | None = None,
    ) -> None:
        given, data = data, typed(data)
        owns, shares = _by_type(owned), _by_type(joint)
        if isinstance(public, str):
            raise TypeError(
                "'public' needs a sequence of node types: "
                f'public=({public!r},)'
            )
        self.person, self.public = person, tuple(public)
        self.owned, self.joint = tuple(owns), tuple(shares)
        self.public_edges = tuple((a, b, c) for a, b, c in public_edges)
        self._declared(data)
        self._sizes = {t: int(data[t].num_nodes) for t in data.node_types}
        self._edges = {
            e: check_edges(
                f'data[{e}].edge_index',
                data[e].get('edge_index'),
                (self._sizes[e[0]], self._sizes[e[2]]),
                (e[0], e[2]),
            )
            for e in data.edge_types
        }
        if (person is None) == (num_persons is None):
            raise ValueError(
                "'num_persons' needs to be given exactly where no 'person' is "
                f'(got {num_persons} with {person!r})'
            )
        if num_persons is not None:
            check_integer('num_persons', num_persons, 1)
        self.num_names = num_persons or self._sizes[str(person)]
        self._one = self._joined(same)
        #: By type that persons own, the matrix of rows by owners.
        self._of: dict[str, Matrix] = {}
        if person is not None:
            places = torch.arange(self.num_names)
            self._of[person] = matrix(places, self._one, self._shape(person))
        for name, declared in (('owned', owns), ('joint', shares)):
            for t, by in declared.items():
                self._of[t] = self._ownership(name, t, by)
        self.edge_owner = self._owners_of_edges(dict(edge_owner or {}))
        how = _by_type(on_removal)
        for t, rule in how.items():
            check_choice('on_removal', t, self.joint)
            check_choice('on_removal', rule, ('drop', 'keep'))
        self.on_removal = {t: how.get(t, 'drop') for t in self.joint}
        self.mirrors = mirrors(self._edges, self._sizes)
        self._check_public_edges()
        #: The ids of persons, int64; their places if the graph has none.
        self.n_id = self._ids(data)
        self._close(data)
        declare(given, person)

    def _close(self, data: HeteroData) -> None:
        #: A digest of graph and owners; of persons' edges, so private.
        self._print = digest(data)
        declared = (
            *(self.person, sorted(self.joint), sorted(self.public)),
            *(sorted(self.public_edges), self.on_removal),
        )
        lists = [self.owners(t) for t in self._of]
        self.digest = fingerprint(
            self._print,
            repr(declared),
            self.n_id,
            *(ptr for ptr, _ in lists),
            *(who for _, who in lists),
            *self.edge_owner.values(),
            repr([*self._of, *self.edge_owner]),
        )

    # Who owns what #########################################################

    @property
    def num_persons(self) -> int:
        """Number of persons; one with several ids counts once."""
        return int(self._one.unique().numel())

    @validated
    def owners(self, node_type: str) -> tuple[Tensor, Tensor]:
        """Return the owners of all rows of a type, as ``(ptr, person)``.

        Both are int64. The owners of row ``i`` are the ids
        ``person[ptr[i]:ptr[i + 1]]``.
        """
        check_choice('node_type', node_type, self._of)
        of = self._of[node_type]
        ptr, who = of.indptr.astype(np.int64), of.indices.astype(np.int64)
        return torch.from_numpy(ptr), torch.from_numpy(who)

    @validated
    def rows(self, person: Natural) -> dict[str, Tensor]:
        """Return the rows that a person owns, alone or jointly.

        They are int64, ascending, by node type.
        """
        one = self._mask(self._names([person], 'person'))
        return {
            t: torch.from_numpy((of @ one).nonzero()[0])
            for t, of in self._of.items()
        }

    @validated
    def pairs(
        self,
        along: Iterable[EdgeType | Sequence[EdgeType]] = (),
        max_joint: Count = 16,
    ) -> Tensor:
        """Return the pairs of persons that share a row or an edge.

        Args:
            along (Iterable): what else makes pairs. An edge type pairs owners
                of its two ends. A metapath, a list of edge types from owned
                rows through public to owned ones, pairs owners of its ends,
                such as two users who see one item. (default: :obj:`()`)
            max_joint (int): a row with more owners, or a public row where more
                persons meet, makes no pairs. (default: :obj:`16`)

        Returns:
            Tensor: int64, ``[2, k]``, ascending, the smaller id of a pair
            first.
        """
        found = []
        for t in self.joint:
            each = few(self._of[t], max_joint)
            found.append(each.T @ each)
        for step in along:
            if isinstance(step, list | tuple) and not isinstance(
                [*step, ''][0], str
            ):
                found.append(self._met(step, max_joint))
                continue
            e = self.known(step, 'along')
            if {e[0], e[2]} & set(self.public):
                raise ValueError(
                    "'along' needs edge types between rows that persons own "
                    f'(got {e}, to public rows)'
                )
            one, other = (few(self._of[t], max_joint) for t in e[::2])
            shape = self._sizes[e[0]], self._sizes[e[2]]
            row, column = self._edges[e]
            found.append(one.T @ matrix(row, column, shape) @ other)
        if not found:
            return torch.empty((2, 0), dtype=torch.int64)
        both = sum(found[1:], found[0])
        upper = scipy.sparse.triu(both + both.T, 1, 'csr')
        return torch.from_numpy(np.stack(upper.nonzero()).astype(np.int64))

    def known(self, edge_type: Any, name: str) -> EdgeType:
        """Return an edge type of the graph as a tuple of three strings.

        Raises:
            ValueError: if there is none; the message begins with ``name``.
        """
        return known(edge_type, self._edges, name)

    @validated
    def is_own(
        self,
        path: Sequence[EdgeType],
        node_type: str,
        *,
        symmetric: bool = False,
    ) -> bool:
        """Return whether a metapath sends a person no data of other persons.

        Args:
            path (sequence): the edge types of the metapath, from the rows that
                receive to those that send.
            node_type (str): the type of the rows that receive.
            symmetric (bool): whether messages are scaled by the sender's
                degree, too, which for a public row counts everybody's edges.
        """
        own = True
        for e, receiver, sender, ends in path_steps(
            path, node_type, self._edges
        ):
            if e in self.edge_owner:
                return False
            if sender in self.public:
                private = receiver not in self.public
                if not private and e not in self.public_edges:
                    return False
                if own and symmetric:
                    return False
                own = False
                continue
            if not own or receiver in self.public:
                return False
            one, other = self._of[receiver], self._of[sender]
            if (one[ends[0].numpy()] != other[ends[1].numpy()]).nnz:
                return False
        return True

    @validated
    def has_one_row_each(self, node_type: str) -> bool:
        """Return whether each person owns at most one row of a type."""
        of = self._of.get(node_type)
        return of is not None and int(of.sum(0).max(initial=0)) <= 1

    @validated
    def table(self, data: Data | HeteroData) -> Data:
        """Return the rows of the persons' node type as a graph without edges.

        ``n_id`` holds the ids of the rows. Each person needs one row.
        """
        self.check(data)
        data, t = typed(data), self._table()
        mixed = *marked(data), *marked(data[t])
        of = data[t].get('own_of', self.digest)
        if mixed or of != self.digest:
            raise ValueError(
                f"'data' needs rows of {t!r} that hold what one person owns "
                f'(got propagated features, {mixed}): make them by '
                'MetapathFeatures(paths, unit=unit), of paths that are own'
            )
        out = Data(edge_index=torch.empty((2, 0), dtype=torch.int64))
        for key, value in data[t].items():
            if has_rows(data[t], key, value):
                out[key] = value
        out.num_nodes = self._sizes[t]
        # Names are those that the unit was declared with.
        out.n_id = self.n_id.clone()
        return out

    def names(self, persons: Persons) -> list[int]:
        """Return ``n_id`` of persons, given their positions in their table."""
        self._table()
        return self.n_id[self._names(persons)].tolist()

    # Removal ###############################################################

    def cascade(self, persons: Persons) -> Cascade:
        """Return the rows and edges that are removed along with persons.

        Rows that they own alone are removed, joint rows as :obj:`on_removal`
        says, and all edges of these rows. Results are positions by type.
        """
        return self._cascade(self._names(persons), self.on_removal)

    def _cascade(
        self,
        gone: Tensor,
        on_removal: Mapping[str, str],
        whole: Sequence[str] = (),
    ) -> Cascade:
        # Types of which all rows go are whole.
        rows, edges = {}, {}
        for t, of in self._of.items():
            count = of @ self._mask(gone)
            keep = on_removal.get(t) == 'keep'
            lost = count == of.sum(1) if keep else count > 0
            rows[t] = torch.from_numpy(lost | (t in whole))
        for e, index in self._edges.items():
            edges[e] = torch.zeros(index.size(1), dtype=torch.bool)
            for t, ends in zip(e[::2], index, strict=True):
                if t in rows:
                    edges[e] |= rows[t][ends]
            if e in self.edge_owner:
                edges[e] |= torch.isin(self.edge_owner[e], gone)
        return Cascade(
            {t: m.nonzero().view(-1) for t, m in rows.items() if m.any()},
            {e: m.nonzero().view(-1) for e, m in edges.items() if m.any()},
        )

    @validated
    def without(
        self, data: Data | HeteroData, persons: Persons
    ) -> Data | HeteroData:
        """Return the graph that remains after the removal of persons.

        ``n_id`` of each node type holds the original ids of its rows.
        Attributes with a row for each node or edge lose the same rows. Other
        attributes have to be strings or numbers. :obj:`data` is not changed.
        """
        self.check(data)
        return without(data, self.cascade(persons))

    @validated
    def within(
        self, data: Data | HeteroData, persons: Persons
    ) -> Data | HeteroData:
        """Return the graph of the rows of some persons, and the public rows.

        Of rows with several owners, those are kept whose owners are all among
        :obj:`persons`. ``n_id`` of each node type holds the original ids of
        its rows. :obj:`data` stays as it is.
        """
        self.check(data)
        return self._inside(data, self._names(persons))

    def _inside(
        self, data: Data | HeteroData, kept: Tensor, joint: bool = True
    ) -> Any:
        stay = torch.zeros(self.num_names, dtype=torch.bool)
        stay[kept] = True
        others = (~stay[self._one]).nonzero().view(-1)
        whole = () if joint else self.joint
        return without(data, self._cascade(others, {}, whole))

    def _rest(
        self, data: HeteroData, persons: Persons
    ) -> 'tuple[HeteroData, PrivacyUnit]':
        # The graph that remains, and its unit; neither is checked again, as
        # no removal may fail for what others have.
        names = self._names(persons)
        gone = self._cascade(names, self.on_removal)
        left, made = without(data, gone), copy.copy(self)
        del made.__dict__['digest']
        made._sizes = {t: int(left[t].num_nodes) for t in left.node_types}
        made._edges = {
            e: plain_index(f'data[{e}].edge_index', left[e].edge_index)
            for e in left.edge_types
        }
        keep = torch.ones(self.num_names, dtype=torch.bool)
        if self.person is not None:
            keep = kept(self.num_names, gone.rows.get(self.person))
        place = keep.cumsum(0) - 1
        if self.person is not None:
            made.num_names, made.n_id = int(keep.sum()), self.n_id[keep]
            made._one = place[self._one[keep]]
        made._of = {}
        others = scipy.sparse.diags_array(
            1 - self._mask(names), dtype=np.int64
        )
        for t, of in self._of.items():
            rows = kept(self._sizes[t], gone.rows.get(t)).numpy()
            left_of = scipy.sparse.csr_array(of @ others)[rows][
                :, keep.numpy()
            ]
            left_of.eliminate_zeros()
            left_of.sort_indices()
            made._of[t] = left_of
        made.edge_owner = {
            e: place[who[kept(who.numel(), gone.edges.get(e))]]
            for e, who in self.edge_owner.items()
        }
        made._close(left)
        return left, made

    @validated
    def check_apart(
        self, node_type: str, one: NodeIds, other: NodeIds
    ) -> None:
        """Raise a ``ValueError`` if a person has rows in two groups.

        ``one`` and ``other`` are rows of ``node_type``, int64 or masks.
        """
        check_choice('node_type', node_type, self._sizes)
        size = self._sizes[node_type]
        one, other = (
            check_nodes('one', one, size),
            check_nodes('other', other, size),
        )
        of = self._of.get(node_type)
        if (
            of is not None
            and (of[one.numpy()].sum(0) * of[other.numpy()].sum(0)).any()
        ):
            raise ValueError(
                f"'one' and 'other' need to be rows of {node_type!r} of "
                'different persons (got one with rows in both): '
                'unit.split(ratio, seed=...) divides rows by persons'
            )

    def _agrees(self, other: 'PrivacyUnit') -> bool:
        # Whether both are declared alike for one graph, of which persons whom
        # only one of them has were removed.
        return self._among(other).digest == other._among(self).digest

    def _among(self, other: 'PrivacyUnit') -> 'PrivacyUnit':
        # The unit that is left if persons go whom another does not have.
        gone = (~torch.isin(self.n_id, other.n_id)).nonzero().view(-1)
        if not gone.numel():
            return self
        bare = HeteroData()
        for t, size in self._sizes.items():
            bare[t].num_nodes = size
        for e, index in self._edges.items():
            bare[e].edge_index = index
        return self._rest(bare, gone)[1]

    @validated
    def split(
        self, ratio: Sequence[float], *, seed: int | None = None
    ) -> list[dict[str, Tensor]]:
        """Divide the rows by persons, so that nobody is in two parts.

        Joint rows of persons in different parts, and public rows, are in none.
        A loader with ``neighboring='contents'`` walks through all parts: pass
        it the graph of one part, made by :meth:`within`.

        Args:
            ratio (Sequence[float]): the share of persons in each part, at most
                1 together.
            seed (int, optional): the seed of the draw; random by default.

        Returns:
            list[dict[str, Tensor]]: for each part a bool mask ``[num_rows]``
            by node type that persons own.
        """
        check_instance('ratio', ratio, list, tuple)
        shares = [check_number('ratio', share) for share in ratio]
        if not shares or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
            raise ValueError(
                "'ratio' needs to hold positive shares of at most 1 together "
                f'(got {list(ratio)})'
            )
        persons = self._one.unique()
        n = persons.numel()
        made = rng.generator(rng.derive(rng.resolve(seed), _SPLIT))
        order = persons[torch.randperm(n, generator=made)]
        ends = [round(n * sum(shares[: i + 1])) for i in range(len(shares))]
        parts = []
        for start, end in zip([0, *ends], ends, strict=False):
            inside = self._mask(order[start:end])
            parts.append(
                {
                    t: torch.from_numpy(of @ inside == of.sum(1))
                    for t, of in self._of.items()
                }
            )
        return parts

    # What is declared ######################################################

    @validated
    def check(self, data: Data | HeteroData) -> None:
        """Raise a ``ValueError`` if a graph is not the one that was declared.

        Compared are types, sizes, edges and the persons' ``n_id``.
        """
        data = typed(data)
        if digest(data) != self._print:
            raise ValueError(
                "'data' needs to be the graph that the unit was made of: its "
                'types, sizes or edges differ'
            )
        if not torch.equal(self._ids(data), self.n_id):
            raise ValueError(
                f"'data' needs the names 'n_id' of {self.person!r} that the "
                'unit was made with'
            )

    def summary(self) -> dict[str, Any]:
        """Return the declared types and rules by name, without any data."""
        return {
            'person': self.person,
            'owned': list(self.owned),
            'joint': list(self.joint),
            'declared_public': list(self.public),
            'public_edges': ['/'.join(e) for e in self.public_edges],
            'on_removal': self.on_removal,
        }

    def __repr__(self) -> str:
        return (
            f'PrivacyUnit({self.person!r}, owned={list(self.owned)}, '
            f'joint={list(self.joint)}, public={list(self.public)})'
        )

    # Inside ################################################################

    def _table(self) -> str:
        t = self.person
        if t is None or not self.has_one_row_each(t):
            raise ValueError(
                "the privacy unit needs a table 'person' with one row each "
                f'(got {t!r})'
            )
        return t

    def _declared(self, data: HeteroData) -> None:
        own = () if self.person is None else (self.person,)
        named = [*own, *self.owned, *self.joint, *self.public]
        unknown = [t for t in named if t not in data.node_types]
        twice = sorted({t for t in named if named.count(t) > 1})
        missing = [t for t in data.node_types if t not in named]
        if unknown or twice or missing:
            raise ValueError(
                "'person', 'owned', 'joint' and 'public' need to hold the "
                'node types of the graph, once each, as none is public by '
                f'default (unknown: {unknown}; twice: {twice}; missing: '
                f'{missing})'
            )

    def _joined(self, same: Tensor | None) -> Tensor:
        names = torch.arange(self.num_names)
        if same is None:
            return names
        check_tensor('same', same, torch.int64, (2, 'k'))
        check_range('same', same, self.num_names, 'the persons')
        both = torch.cat([same, same.flip(0)], 1)
        while True:
            least = names.scatter_reduce(0, both[0], names[both[1]], 'amin')
            least = least[least]
            if torch.equal(least, names):
                return names
            names = least

    def _ids(self, data: HeteroData) -> Tensor:
        # The names that the rows of persons have in the graph.
        ids = data[self.person].get('n_id') if self.person else None
        if ids is None:
            return torch.arange(self.num_names)
        check_tensor('n_id', ids, torch.int64, (self.num_names,))
        if bool((ids < 0).any()) or ids.unique().numel() < ids.numel():
            raise ValueError(
                f"'n_id' of {self.person!r} needs to name each person once, "
                'from 0'
            )
        return ids.clone()

    def _names(self, persons: Persons, name: str = 'persons') -> Tensor:
        listed = torch.tensor(integers(name, persons), dtype=torch.int64)
        check_range(name, listed, self.num_names, 'the persons')
        return self._one[listed]

    def _shape(self, node_type: str) -> tuple[int, int]:
        return self._sizes[node_type], self.num_names

    def _ownership(
        self, name: str, node_type: str, by: EdgeType | Tensor
    ) -> Matrix:
        # The matrix of a type's rows by owners.
        what, n = f'{name}[{node_type!r}]', self._sizes[node_type]
        if isinstance(by, Tensor):
            by = plain_index(what, by, *[n] * (name == 'owned'))
            rows, who = (
                (torch.arange(n), by) if name == 'owned' else by.unbind()
            )
            check_range(what, rows, n, 'the rows')
            check_range(what, who, self.num_names, 'the persons')
        else:
            e = self.known(by, what)
            if self.person is None or {e[0], e[2]} != {node_type, self.person}:
                raise ValueError(
                    f"'{what}' needs to be an edge type between {node_type!r} "
                    f"and the table of persons, 'person' (got {e})"
                )
            rows, who = self._edges[e]
            if e[0] != node_type:
                rows, who = who, rows
        count = torch.bincount(rows, minlength=n)
        wrong = count != 1 if name == 'owned' else count == 0
        if bool(wrong.any()):
            need = 'one owner, by one edge' if name == 'owned' else 'an owner'
            i = int(wrong.nonzero()[0])
            raise ValueError(
                f"'{name}' needs to give each row of {node_type!r} {need} "
                f'(row {i} has {int(count[i])})'
            )
        return matrix(rows, self._one[who], self._shape(node_type))

    def _owners_of_edges(
        self, given: Mapping[EdgeType, Tensor]
    ) -> dict[EdgeType, Tensor]:
        made = {}
        for e, who in given.items():
            size = self._edges[self.known(e, 'edge_owner')].size(1)
            who = plain_index('edge_owner', who, size)
            check_range('edge_owner', who, self.num_names, 'the persons')
            made[e] = self._one[who]
        return made

    def _check_public_edges(self) -> None:
        for e in self.public_edges:
            self.known(e, 'public_edges')
        for e in self._edges:
            inside = {e[0], e[2]} <= set(self.public)
            listed, owned = e in self.public_edges, e in self.edge_owner
            if listed and (owned or not inside):
                raise ValueError(
                    "'public_edges' needs to hold edge types between public "
                    f'rows that nobody owns (got {e})'
                )
            if inside and not (listed or owned):
                raise ValueError(
                    "'public_edges' or 'edge_owner' needs to hold every edge "
                    f'type between public rows (missing: {e})'
                )

    def _met(self, path: Sequence[Any], max_joint: int) -> Matrix:
        # Pairs of persons who meet at the last public row of a metapath.
        first = self.known(path[0], 'along')
        start = first[0 if first[2] in self.public else 2]
        steps = path_steps(path, start, self._edges)
        inner = {t for *_, t, _ in steps[:-1]}
        one = {self.person, *self.owned}
        if (
            not {start, steps[-1][2]} <= one
            or not inner
            or not inner <= {*self.public}
            or not {e for e, *_ in steps[1:-1]} <= {*self.public_edges}
        ):
            raise ValueError(
                "'along' needs metapaths from rows of one person through "
                f'public rows and edges to such rows (got {path})'
            )
        held = self._of[start]
        for *_, t, ends in steps[:-1]:
            shape = self._sizes[t], held.shape[0]
            held = few(matrix(ends[1], ends[0], shape) @ held, max_joint)
        _, t, last, ends = steps[-1]
        shape = self._sizes[t], self._sizes[last]
        back = matrix(ends[0], ends[1], shape) @ self._of[last]
        back = few(back, max_joint)
        return held.T @ back

    def _mask(self, persons: Tensor) -> np.ndarray:
        # 1 for these persons, 0 for others.
        mask = np.zeros(self.num_names, dtype=np.int64)
        mask[persons.numpy()] = 1
        return mask


def _by_type(given: Mapping[str | None, Any] | None) -> dict[str, Any]:
    return {NODE if t is None else t: v for t, v in (given or {}).items()}
