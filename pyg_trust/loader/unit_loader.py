"""Batches of persons, each with all rows and edges that it owns."""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_trust._checks import Count, Natural, OneOf, Rate, validated
from pyg_trust.functional.claims import Ownership, expand
from pyg_trust.graph._marks import marked
from pyg_trust.loader.graph_loader import RELATIONS, GraphLoader
from pyg_trust.loader.schema import Schema
from pyg_trust.loader.step_batches import Sampling
from pyg_trust.unit import PrivacyUnit

#: The name of these units in reports.
PERSONS = 'persons, with all they own'


@validated
class UnitLoader(GraphLoader):
    r"""Loads batches of persons with all they own, for private training.

    A person's subgraph has all rows that it owns alone, the edges between
    them, and copies of the public rows that are at most :obj:`hops` steps
    away. Rows of several persons and edges between persons are in none: they
    are not used. So a subgraph is a function of one person and of what is
    public, and all that one person owns, how many rows and edges it may be,
    changes one clipped gradient (:class:`GraphLoader` has the account). No
    number of rows or edges needs to be capped.

    With ``relation='replace'``, neighbours differ in all that one person
    owns; how many persons there are is public. With ``'add_remove'``, by
    coins alone, they differ in whether a person is there at all.

    Batches are :class:`~torch_geometric.data.HeteroData` that have every node
    and edge type, if need be without rows: ``x``, ``n_id`` and ``batch`` by
    node type; ``y``, ``input_id`` and ``batch_size`` of the type of persons,
    whose row :math:`i` is that of subgraph :math:`i`. The loop is PyG's:

    .. code-block:: python

        loader = UnitLoader(data, unit, batch_size=256, sampling='poisson')
        model, optimizer, loader = engine.make_private(
            module=to_hetero(GraphSAGE(-1, 64, 2, 4), data.metadata()),
            optimizer=optimizer, data_loader=loader, ...
        )
        for batch in loader:
            out = model(batch.x_dict, batch.edge_index_dict)['author']
            F.cross_entropy(out, batch['author'].y).backward()
            optimizer.step()

    In private training, rows are for the model alone: until ``backward()``
    the batch has made-up rows in their place. The model returns a row per
    person, or such rows by type.

    Args:
        data (HeteroData): the graph that :obj:`unit` was declared for, on the
            CPU, with features ``x`` of each node type, of one float type.
        unit (PrivacyUnit): says who owns what; needs a table of persons with
            one row each.
        batch_size (int): :math:`m`, as of :class:`GraphLoader`.
        input_nodes (Tensor, optional): the persons to train on, by their rows
            or as a mask, which is public; by default all.
            (default: :obj:`None`)
        hops (int): how many steps public rows are away at most.
            (default: :obj:`2`)
        num_steps (int, optional): as of :class:`GraphLoader`.
            (default: :obj:`None`)
        sampling (str): as of :class:`GraphLoader`. (default:
            :obj:`'without_replacement'`)
        relation (str): :obj:`'replace'` or :obj:`'add_remove'`. (default:
            :obj:`'replace'`)
        sample_rate (float, optional): as of :class:`GraphLoader`.
            (default: :obj:`None`)
        seed (int, optional): the seed. (default: :obj:`None`)
        **kwargs (optional): as of :class:`GraphLoader`.

    Raises:
        ValueError: if the graph is another than that of the unit, a type has
            no features of one float type, rows are marked as propagated, and
            as :class:`GraphLoader`.
    """

    unit = PERSONS
    noun = 'person'

    def __init__(
        self,
        data: HeteroData,
        unit: PrivacyUnit,
        batch_size: Count,
        input_nodes: Tensor | None = None,
        *,
        hops: Natural = 2,
        num_steps: Count | None = None,
        sampling: Sampling = 'without_replacement',
        relation: Annotated[str, OneOf(RELATIONS)] = 'replace',
        sample_rate: Rate | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_law(sampling, relation, sample_rate)
        # Also refuses another graph, rows of several persons in their table,
        # and features along metapaths that are not a person's own.
        table = unit.table(data)
        target = unit.person
        assert target is not None
        for t in data.node_types:
            of = data[t].get('own_of', unit.digest)
            if marked(data[t]) or of != unit.digest:
                raise ValueError(
                    f"'data' needs rows of {t!r} that hold what one person "
                    'owns, or what is public (got features marked as '
                    'propagated): train on raw features'
                )
        rows = torch.arange(int(table.num_nodes or 0))
        if input_nodes is not None:
            rows = _chosen(input_nodes, rows)
        self.tables, self._hops = data, hops
        self._declared = unit.summary()
        self._ownership = Ownership(unit, data, joint=False)
        self._names = unit.owners(target)[1][rows]
        sizes = {t: int(data[t].num_nodes) for t in data.node_types}
        plain = Schema(data, target, sizes)
        transform = kwargs.get('transform')
        self._plain = self.schema = plain
        if transform is not None:
            made = transform(plain.typed(plain.made(_SHOWN)))
            self.schema = Schema(_typed(made), target, sizes)
        self._whose = self._find_owners(unit, sizes)
        self._open(len(rows), batch_size, num_steps, seed, kwargs)

    def _find_owners(self, unit: PrivacyUnit, sizes: dict[str, int]) -> Tensor:
        # The unit of each row of all tables, -1 where no unit owns it.
        number = torch.full((unit.num_names,), -1)
        number[self._names] = torch.arange(len(self._names))
        parts = []
        for t in self.schema.node_types:
            if t in unit.public or t in unit.joint:
                parts.append(torch.full((sizes[t],), -1))
            else:
                parts.append(number[unit.owners(t)[1]])
        return torch.cat(parts)

    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""
        return {
            **super().setting(),
            'hops': self._hops,
            'persons': self._declared,
        }

    def public(self) -> tuple[Any, ...]:
        """Return the public part: the schema, and what is declared."""
        schema, count = self.schema, None
        if self._rate is None:
            count = self._num_units
        return (
            repr((schema.widths, schema.edge_types, schema.y, count)),
            repr(self._declared),
        )

    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions and limits of a guarantee in one person."""
        of = self._declared
        owned = ', '.join([of['person'], *of['owned']])
        unread = ', '.join(of['joint'])
        what = (
            f'protected is one person: all its rows of {owned}, how many they '
            'are, features, labels and edges, also those to public rows'
        )
        if self._rate is not None:
            what += (
                ', and whether it is there at all: the rate and the number by '
                'which sums are divided were chosen without counting persons'
            )
        else:
            what += (
                '; how many persons there are, and who of them is a training '
                'row, are not'
            )
        return (
            what,
            'the owners of all rows and edges are those that the privacy unit '
            'was told, and one person has one name',
            'not used are edges between persons'
            + (f', and rows of several: {unread}' if unread else ''),
            'what a trained model predicts for a person reads what that '
            'person owns, and public rows',
            'no feature was computed beforehand from several persons '
            '(vocabularies, category codes, embeddings, scaling); C, the '
            'noise, the number of steps and the hyper-parameters were chosen '
            'without looking at private rows (each run of a search is a '
            'release of its own, unless pyg_trust.privacy.search made it)',
            'the model passed its probe on rows that were made up; unless it '
            'is left unchecked, the loss sees rows that are made up in place '
            'of the private ones, and no number of them',
        )

    def collate_fn(self, index: list[int] | Tensor) -> Any:
        """Make a batch of the drawn persons."""
        index = torch.as_tensor(index, dtype=torch.int64)
        ptr = torch.arange(index.numel() + 1)
        found = expand(self._ownership, ptr, self._names[index], self._hops)
        out, data = HeteroData(), self.tables
        for t in self._plain.node_types:
            out[t].x = data[t].x[found.n_id[t]]
            out[t].n_id, out[t].batch = found.n_id[t], found.batch[t]
        for e in self._plain.edge_types:
            out[e].edge_index = found.edge_index[e]
        store = out[self.schema.target]
        if self._plain.y is not None:
            store.y = data[self.schema.target].y[store.n_id]
        store.input_id, store.batch_size = index, index.numel()
        return self._finish(out)

    def flat(self, batch: Any) -> Data:
        """Return a batch as one graph of all rows, as training follows it.

        Raises:
            ValueError: if it has other types, widths or numbers of rows.
        """
        if isinstance(batch, Data):
            return batch
        return self.schema.flat(_typed(batch))

    def made(self, count: Count) -> tuple[Data, Data, Callable[..., Any]]:
        """Make a batch up from the schema, for checks of a model.

        Args:
            count (int): the number of subgraphs.

        Returns:
            tuple[Data, Data, callable]: one as training follows it, one
            before the transform, and the transform of such.
        """
        plain = self._plain.made(count)

        def transformed(flat: Data) -> Data:
            if self.transform is None:
                return flat
            return self.flat(self.transform(self._plain.typed(flat)))

        return self.schema.made(count), plain, transformed

    @validated
    def check_batch(
        self, batch: Any, step: Natural, count: Count | None = None
    ) -> tuple[Tensor, int]:
        """Refuse a batch that does not hold all that persons own.

        Rows that somebody owns have to be those of distinct persons, each
        with all of its rows, once, in the subgraph of that person.

        Args:
            batch (HeteroData): a batch.
            step (int): the step, counted from 0 through all epochs.
            count (int, optional): how many persons it needs to have; by
                default any number up to ``most_at``. (default: :obj:`None`)

        Returns:
            tuple[Tensor, int]: int64, the subgraph of each row of all types,
            and the number of persons.

        Raises:
            ValueError: if it does not.
        """
        return super().check_batch(self.flat(batch), step, count)

    def _count(self, batch: Data, step: int, most: int) -> int | None:
        node, owner = batch.n_id, batch.batch
        if node.numel() and not (
            0 <= int(node.min()) <= int(node.max()) < len(self._whose)
        ):
            return None
        # Of public rows, there may be any copies; of strangers', none.
        public = [
            k
            for k, t in enumerate(self.schema.node_types)
            if t in self._declared['declared_public']
        ]
        kind = batch.node_type.long()
        free = torch.isin(kind, torch.tensor(public, dtype=torch.int64))
        starts = torch.tensor([*self.schema.first.values()])
        if not torch.equal(
            torch.searchsorted(starts, node, right=True) - 1, kind
        ):
            return None
        part = Data(n_id=node[~free], batch=owner[~free])
        part.num_nodes, part.input_id = len(part.n_id), batch.input_id
        number = super()._count(part, step, most)
        inside = owner[free]
        if number is None or (
            inside.numel()
            and not 0 <= int(inside.min()) <= int(inside.max()) < number
        ):
            return None
        ends = owner[batch.edge_index]
        return number if torch.equal(ends[0], ends[1]) else None

    def _units(self, step: int) -> Tensor:
        return self._whose


# The subgraphs on which a transform is tried.
_SHOWN = 8


def _typed(batch: Any) -> HeteroData:
    if not isinstance(batch, HeteroData):
        raise ValueError(
            "'transform' needs to return a torch_geometric.data.HeteroData "
            f'(got {type(batch).__name__})'
        )
    return batch


def _chosen(given: Tensor, rows: Tensor) -> Tensor:
    if given.dtype == torch.bool and given.shape == rows.shape:
        chosen = rows[given]
    elif given.dtype == torch.int64 and given.dim() == 1:
        chosen = given
    else:
        chosen = rows[:0]
    if (
        chosen.numel() == 0
        or int(chosen.min()) < 0
        or int(chosen.max()) >= len(rows)
        or chosen.unique().numel() < chosen.numel()
    ):
        raise ValueError(
            "'input_nodes' needs to choose persons once each, by their rows, "
            f'int64, or a mask, bool, [{len(rows)}] (got {given.dtype}, '
            f'{list(given.shape)})'
        )
    return chosen
