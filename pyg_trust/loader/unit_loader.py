"""Batches of persons, each with all rows and edges that it owns."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Natural,
    NodeIds,
    OneOf,
    Rate,
    as_ids,
    check_instance,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._checks.graphs import (
    warn_of_roots,
    warn_user,
    with_edge_index,
)
from pyg_trust._moved import renamed
from pyg_trust.graph._marks import marked
from pyg_trust.loader.claims import Ownership, expand
from pyg_trust.loader.schema import Schema
from pyg_trust.loader.step_batches import (
    RELATIONS,
    DrawnUnits,
    Sampling,
    of_persons,
)
from pyg_trust.sampler import DisjointWalkSampler
from pyg_trust.sampler.walks import DisjointWalks, min_subgraphs, root_index
from pyg_trust.unit import EdgeType, PrivacyUnit
from pyg_trust.verify.claims_privacy import CONTENTS

__all__ = ['UnitLoader']

#: The name of these units in reports; of walks between persons, the others.
PERSONS = 'persons, with all they own'
WALKS = 'walks between persons, with all they own'
SHARED = 'contents'
# Streams of the seed; batches have another one.
_WALKS, _HASHES = 0, 2
# The label that losses of torch ignore by default.
_IGNORED = -100


@validated
class UnitLoader(DrawnUnits):
    """Loads batches of persons with all they own, for private training.

    A person's subgraph has all rows that belong to this person alone, the
    edges between them, and copies of public rows within :obj:`num_hops` steps.
    A batch is a :class:`~torch_geometric.data.HeteroData` with ``x``, ``n_id``
    and ``batch`` (the subgraph of each row) by node type. Of the type to
    predict, the first ``batch_size`` rows have labels ``y``.
    A trained model predicts on the batch of :meth:`own_view`.

    Args:
        data (HeteroData): the graph that :obj:`unit` was declared for, on the
            CPU, with features ``x`` of each node type, of one float type.
        unit (PrivacyUnit): the owner of each row. The persons have to be a
            node type, with one row each.
        batch_size (int): persons per batch; with Poisson sampling on average.
        input_nodes (Tensor, str or tuple, optional): the persons to train on,
            as public ids or a mask (all by default); or a node type that
            persons own, such as ``'order'``, whose labels are then predicted;
            or this type and a private mask of its training rows.
        num_hops (int): how many steps away public rows may be.
        num_neighbors (dict or list, optional): the most public neighbours of a
            row, by edge type, or as a list, ``[10, 10]``, with one number a
            hop; -1, the default, keeps all.
        num_steps (int, optional): the batches of an epoch; by default the
            number of persons over :obj:`batch_size`.
        sampling (str): :obj:`'without_replacement'` or :obj:`'poisson'`.
        sample_rate (float, optional): the public probability with which each
            person is drawn, for ``'add_remove'`` alone.
        neighboring (str): :obj:`'replace'`: all that one person owns is
            replaced; :obj:`'add_remove'`: a person is added or removed;
            :obj:`'contents'`: the contents of a person's rows are replaced,
            while it is public which persons share rows. A subgraph is then a
            group of persons with the rows that they share; random walks over
            the public :meth:`PrivacyUnit.pairs
            <pyg_trust.unit.PrivacyUnit.pairs>` of persons make the groups.
        walk_length (int): for ``'contents'``, how many steps a walk has.
        restarts (int): for ``'contents'``, how many walks begin at a person.
        resample_every (int, optional): for ``'contents'``, after how many
            training steps new groups are drawn; by default never.
        along (sequence): for ``'contents'``, edge types and metapaths that
            also pair persons.
        max_joint (int): a row of more persons than this does not pair them.
        seed (int, optional): the seed; random by default.
        **kwargs (optional): more arguments of :class:`NodeLoader`.
    """

    unit = PERSONS
    noun = 'person'

    @renamed(relation='neighboring', hops='num_hops')
    def __init__(
        self,
        data: HeteroData,
        unit: PrivacyUnit,
        batch_size: Count,
        input_nodes: Any = None,
        *,
        num_hops: Natural = 2,
        num_neighbors: Mapping[EdgeType, int | Sequence[int]]
        | Sequence[int]
        | None = None,
        num_steps: Count | None = None,
        sampling: Sampling = 'without_replacement',
        neighboring: Annotated[str, OneOf((*RELATIONS, SHARED))] = 'replace',
        sample_rate: Rate | None = None,
        walk_length: Natural = 0,
        restarts: Count = 1,
        along: Sequence[EdgeType | Sequence[EdgeType]] = (),
        max_joint: Count = 16,
        resample_every: Count | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.check_kwargs(
            kwargs, num_steps=num_steps, resample_every=resample_every
        )
        self._set_law(sampling, neighboring, sample_rate)
        shared = neighboring == SHARED
        check_instance('along', along, list, tuple)
        data = with_edge_index(data)
        num_hops, limits = _limits(num_neighbors, unit, data, num_hops)
        if not shared and (walk_length or along):
            raise ValueError(
                "'neighboring' needs to be 'contents' for walks between "
                "persons, by 'walk_length' or 'along', as a person who leaves "
                f"re-routes others' (got {neighboring!r})"
            )
        if resample_every is not None and not walk_length:
            raise ValueError(
                "'resample_every' needs a 'walk_length' of at least 1: a "
                f'group of one is always the same (got {resample_every})'
            )
        # Also refuses another graph, rows of several persons in their table,
        # and features along metapaths that are not a person's own.
        table = unit.table(data)
        assert unit.person is not None
        target = unit.person
        if isinstance(input_nodes, str):
            input_nodes = input_nodes, None
        if isinstance(input_nodes, tuple) and isinstance(
            [*input_nodes, None][0], str
        ):
            target, input_nodes = self._targets(unit, input_nodes, shared)
        by_row = target != unit.person
        warn_of_roots(input_nodes, data[target])
        for e in data.edge_types:
            if not shared and e[0] == e[2] == unit.person:
                warn_user(
                    f'edges of {e} join persons, so that no batch has them: '
                    'leave this type out of the data and of the model, or '
                    f"pass neighboring='contents', along=[{e}], walk_length=1"
                )
        for t in data.node_types:
            of = data[t].get('own_of', unit.digest)
            if marked(data[t]) or of != unit.digest:
                raise ValueError(
                    f"'data' needs rows of {t!r} that hold what one person "
                    'owns, or what is public (got propagated features)'
                )
        count = int(table.num_nodes or 0)
        # The rows that a loss reads, where a person has any number of them;
        # that there may be none is private.
        self._read: Tensor | None = None
        if by_row:
            self._read, input_nodes = (
                _rows_read(data[target], input_nodes),
                None,
            )
        rows = root_index(input_nodes, count, name='input_nodes')
        self.tables, self._hops = data, num_hops
        self._declared, self.owned_by = unit.summary(), unit.digest
        transform = kwargs.get('transform')
        law = target, shared, by_row
        self._schema = self.schema = Schema(data, *law)
        if transform is not None:
            made = transform(self._schema.typed(self._schema.made()))
            self.schema = Schema(_typed(made), *law)
        self._capped = {e: k for e, k in limits.items() if k >= 0}
        self._pairs = torch.empty((2, 0), dtype=torch.int64)
        if shared:
            self._pairs = unit.pairs(along, max_joint)
        self._check_size(len(rows), batch_size)
        seed = rng.resolve(seed)
        self._ownership = Ownership(
            unit,
            data,
            max_joint if shared else 0,
            self._capped,
            rng.derive(seed, _HASHES),
        )
        # The law of walks.
        self._law: dict[str, Any] = {}
        # A person's name is its row, as each has one.
        self._alone = DisjointWalks(torch.arange(len(rows) + 1), rows)
        walks = None
        if shared:
            self.relation, self.unit, self.noun = CONTENTS, WALKS, 'group'
            self._law = {'walk_length': walk_length, 'restarts': restarts}
            both = torch.cat([self._pairs, self._pairs.flip(0)], 1)
            # Claims are those of a DisjointWalkLoader of this seed.
            walks = DisjointWalkSampler(
                Data(edge_index=both, num_nodes=unit.num_names),
                walk_length,
                restarts,
                rows,
                seed=rng.derive(seed, _WALKS),
            )
            wide = [unit.owners(t)[0].diff() > max_joint for t in unit.joint]
            self._declared |= {
                'along': [_called(step) for step in along],
                'max_joint': max_joint,
                'left_out': sum(int(found.sum()) for found in wide),
            }
        if resample_every is not None:
            least = min_subgraphs(len(rows), walk_length, restarts)
            sure = ' that every partition is sure to have'
            self._check_size(least, batch_size, sure)
            self._law['resample_every'] = resample_every
        self.resample_every, self._walks = resample_every, walks
        self._open(len(rows), batch_size, num_steps, seed, kwargs, walks)

    @staticmethod
    def _targets(
        unit: PrivacyUnit, given: tuple[Any, ...], shared: bool
    ) -> tuple[str, Tensor | None]:
        # The type of the rows that the loss reads, and which of them.
        target, rows = given if len(given) == 2 else (given, None)
        owned = unit.person, *unit.owned, *unit.joint
        if target not in owned or (target in unit.joint and not shared):
            raise ValueError(
                "'input_nodes' needs to be rows of persons, or a type that "
                'persons own and rows of it; joint rows with '
                f"neighboring='contents' alone (got {target!r})"
            )
        return target, rows

    def _claims(self, number: int) -> DisjointWalks:
        walks = self._walks
        return self._alone if walks is None else walks.partition(number)

    def _count_units(self, number: int) -> int:
        return self._claims(number).num_subgraphs

    def layout(self) -> str:
        """Return a hash, to check that processes agree on persons' rows."""
        seed = getattr(self._walks, 'seed', 0)
        return fingerprint(*self._claims(0), repr((seed, self.owned_by)))

    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""
        most = {'/'.join(e): k for e, k in self._capped.items()}
        known = super().setting()
        if self._law:
            known['num_roots'] = known.pop('num_groups')
        return {
            **known,
            'hops': self._hops,
            **({'num_neighbors': most} if most else {}),
            **({'relation': self.relation, **self._law} if self._law else {}),
            **({'target': self.schema.target} if self.schema.by_row else {}),
            'persons': self._declared,
        }

    def public(self) -> tuple[Any, ...]:
        """Return the public data, whose hash is in reports and ledgers.

        It has, as strings, types with sizes and the unit's declaration; with
        ``'contents'`` also int64 ``[2, k]``, pairs of persons who share rows.
        """
        schema, count = self.schema, None
        if self._rate is None:
            count = self._num_units
        return (
            repr((schema.widths, schema.edge_types, schema.y, count)),
            repr(self._declared),
            *([self._pairs] if self._law else []),
        )

    def assumptions(self) -> tuple[str, ...]:
        """Return sentences: what a guarantee assumes and does not cover."""
        target = self.schema.target
        by_row = (
            f'protected is also which rows of {target} are training rows, and '
            'how many a person has; the term of a subgraph is the mean of '
            'those of its rows',
        )
        return (
            *of_persons(self._declared, self._rate is None),
            *(by_row if self.schema.by_row else ()),
            'the model passed its probe on rows that were made up',
        )

    def _make(self, number: int, index: Tensor) -> HeteroData:
        claims = self._claims(number).select(index)
        return self._made(claims, index, self._ownership)

    @validated
    def own_view(self, persons: NodeIds | None = None) -> HeteroData:
        """Return the input from which a trained model predicts for persons.

        Each person has a subgraph of its own, with all rows that it owns; with
        ``neighboring='contents'`` also copies of rows that it shares. If
        persons are predicted, row :math:`i` of their table is ``persons[i]``.
        Predictions are not private: give each to its person alone.

        Args:
            persons (Tensor, optional): ids (int64) or a mask; by default all,
                also those not trained on. (default: :obj:`None`)

        Returns:
            HeteroData: a batch. If another type than persons is predicted, it
            has all of their rows of this type.
        """
        size = self._ownership.num_names
        rows = root_index(persons, size, name='persons')
        alone = DisjointWalks(torch.arange(len(rows) + 1), rows)
        # A row comes with any one of its owners.
        held = copy.copy(self._ownership)
        if self._law:
            held.count = {t: c * 0 + 1 for t, c in held.count.items()}
        return self.filter_fn(self._made(alone, rows, held, every=True))

    def _made(
        self,
        claims: DisjointWalks,
        index: Tensor,
        ownership: Ownership,
        every: bool = False,
    ) -> HeteroData:
        found, t = expand(ownership, *claims, self._hops), self.schema.target
        n_id, edges = found.n_id, found.edge_index
        # Those that the loss reads come first.
        if self._read is None:
            first = n_id[t] == claims.roots[found.batch[t]]
        else:
            first = self._read[n_id[t]] | every
        roots = int(first.sum())
        if not bool(first[:roots].all()):
            order = (~first).long().argsort(stable=True)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order))
            for of in (n_id, found.batch):
                of[t] = of[t][order]
            for e, ends in edges.items():
                if t in e[::2]:
                    edges[e] = torch.stack(
                        [
                            place[i] if of == t else i
                            for i, of in zip(ends, e[::2], strict=True)
                        ]
                    )
        out, data = HeteroData(), self.tables
        for of in self._schema.node_types:
            store, x = out[of], data[of].x
            store.x = x.index_select(0, n_id[of])
            store.n_id, store.batch = n_id[of], found.batch[of]
        for e in self._schema.edge_types:
            out[e].edge_index = edges[e]
        store = out[t]
        if self._schema.y is not None:
            store.y = data[t].y[n_id[t][:roots]]
        if self._schema.several:
            store.root_mask = torch.arange(len(first)) < roots
        store.input_id, store.batch_size = index, roots
        return out

    def flat(self, batch: Any) -> Data:
        """Return a batch as one ``Data``; zeros pad the narrower features."""
        return self.schema.flat(batch)

    def made(self) -> tuple[Data, Data, Callable[..., Any]]:
        """Make random batches to check a model with, without reading rows.

        Returns:
            tuple[Data, Data, callable]: a batch as it is after the loader's
            transform; a batch as it is before it; and the transform, which
            maps the second to the first. Batches are results of :meth:`flat`.
        """

        def transformed(flat: Data) -> Data:
            if self.transform is None:
                return flat
            return self.flat(self.transform(self._schema.typed(flat)))

        return self.schema.made(), self._schema.made(), transformed


def _rows_read(store: Any, given: Any) -> Tensor:
    # A mask of the rows whose labels a loss reads.
    size = int(store.num_nodes)
    read = torch.ones(size, dtype=torch.bool)
    if given is not None:
        read = as_ids('input_nodes', given)
        check_tensor('input_nodes', read, torch.bool, (size,))
    y = store.get('y')
    if (
        isinstance(y, Tensor)
        and y.layout == torch.strided
        and y.shape[:1] == read.shape
        and not y.is_floating_point()
    ):
        # Losses of torch ignore such labels: these rows have no term.
        return read & (y[:, None].flatten(1).long() != _IGNORED).any(1)
    return read.clone()


def _limits(
    given: Any, unit: PrivacyUnit, data: HeteroData, num_hops: int
) -> tuple[int, dict[EdgeType, int]]:
    # The hops, and a number for each edge type: -1 for all.
    listed, by_type = (list, tuple), given or {}
    if isinstance(given, listed):
        public = {*unit.public}
        by_type = {e: given for e in data.edge_types if public & {e[0], e[2]}}
    check_instance('num_neighbors', by_type, Mapping)
    each = [k for k in (given, *by_type.values()) if isinstance(k, listed)]
    if any(len({*k}) != 1 or len(k) != len(each[0]) for k in each):
        raise ValueError(
            "'num_neighbors' needs one number for all hops, as [10, 10], or a "
            f'number by edge type (got {given!r})'
        )
    made = {
        unit.known(e, 'num_neighbors'): check_integer(
            'num_neighbors', k[0] if isinstance(k, listed) else k, -1
        )
        for e, k in by_type.items()
    }
    for e, k in made.items():
        other = made.get(unit.mirrors.get(e, e), k)
        if other != k:
            raise ValueError(
                "'num_neighbors' needs one number for an edge type and "
                f'its mirror (got {k} and {other} for {e})'
            )
    return len(each[0]) if each else num_hops, made


def _called(step: Any) -> str:
    # An edge type, or a metapath.
    steps = [step] if isinstance(step[0], str) else step
    return '+'.join(map('/'.join, steps))


def _typed(batch: Any) -> HeteroData:
    if not isinstance(batch, HeteroData):
        raise ValueError(
            "'transform' needs to return a torch_geometric.data.HeteroData "
            f'(got {type(batch).__name__})'
        )
    return batch
