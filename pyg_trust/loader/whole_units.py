"""Base of loaders of disjoint units."""

from abc import abstractmethod
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Natural,
    check_distinct,
    check_tensor,
    validated,
)
from pyg_trust.loader.step_batches import POISSON, StepLoader
from pyg_trust.report import fingerprint

__all__ = ['DrawnUnits', 'WholeUnitLoader']

RELATIONS = ('replace', 'add_remove')


class WholeUnitLoader(StepLoader):
    """Base of loaders of disjoint units, each loaded as a whole."""

    _sizes: tuple[Tensor, Tensor] | None = None
    _known: tuple[int, Tensor] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._counts: dict[int, int] = {}
        super().__init__(*args, **kwargs)

    @abstractmethod
    def _count_units(self, number: int) -> int:
        """Return the number of units of a partition."""

    @abstractmethod
    def _find_units(self, number: int) -> Tensor:
        """Return the unit of every node, ``[num_nodes]``, or -1."""

    def _units(self, step: int) -> Tensor:
        number = self._number(step)
        if self._known is None or self._known[0] != number:
            self._known = number, self._find_units(number)
        return self._known[1]

    @validated
    def num_subgraphs_at(self, step: Natural) -> int:
        """Return the number of units, from which a step draws."""
        number = self._number(step)
        if number not in self._counts:
            self._counts[number] = self._count_units(number)
        return self._counts[number]

    def _is_consistent(self, batch: Data, units: Tensor) -> bool:
        """Return whether the batch's other attributes name the same units."""
        return True

    def setting(self) -> dict[str, Any]:
        """Return the law of batches, unless it is the default."""
        if self.sampling == POISSON:
            return {'sampling': self.sampling}
        return {}

    def layout(self) -> str:
        """Return a hash of the units' nodes, to compare processes."""
        seed = getattr(self.node_sampler, 'seed', 0)
        return fingerprint(self._units(0), seed)

    @validated
    def check_batch(
        self, batch: Any, step: Natural, count: Count | None = None
    ) -> tuple[Tensor, int]:
        """Refuse a batch that does not hold whole units of a step."""
        if not isinstance(batch, Data):
            raise ValueError(
                "'transform' needs to return a torch_geometric.data.Data "
                f'(got {type(batch).__name__})'
            )
        found = self._count(batch, step, count or self.most_at(step))
        if found is None or count not in (None, found):
            raise ValueError(
                f'a batch needs to hold whole, distinct units ({self.unit}), '
                "each node once: is there a 'transform' that changes 'n_id', "
                "'batch', 'input_id' or the number of nodes?"
            )
        return batch.batch, found

    def _positions(self, batch: Data) -> Tensor | None:
        """Return the positions of a batch's nodes, whatever ids they have."""
        return positions(self.data.get('n_id'), batch.get('n_id'))

    def _count(self, batch: Data, step: int, most: int) -> int | None:
        # The number of units in a batch, None if they are not whole.
        node, owner = self._positions(batch), batch.get('batch')
        known = self._units(step)
        if (
            not isinstance(node, Tensor)
            or not isinstance(owner, Tensor)
            or node.dim() != 1
            or node.shape != owner.shape
            or node.is_floating_point()
            or owner.is_floating_point()
            or node.numel() != batch.num_nodes
            or (batch.x is not None and batch.x.size(0) != node.numel())
        ):
            return None
        if node.numel() == 0:
            may_be = self.sampling == POISSON
            may_be |= self.batch_sampler.num_ranks > 1
            return 0 if may_be and self._is_consistent(batch, node) else None
        outside = (node < 0) | (node >= known.numel())
        if bool(outside.any()) or int(owner.min()) != 0:
            return None
        number = int(owner.max()) + 1
        units = known[node]
        # A one-to-one map between units of the batch and of the partition.
        of = units.new_full((number,), -1)
        of[owner] = units
        size = owner.bincount(minlength=number)
        if self._sizes is None or self._sizes[0] is not known:
            self._sizes = known, known[known >= 0].bincount()
        good = (
            number <= most
            and int(of.min()) >= 0
            and bool((of[owner] == units).all())
            and of.unique().numel() == number
            and node.unique().numel() == node.numel()
            and bool((size == self._sizes[1][of]).all())
            and self._is_consistent(batch, of)
        )
        return number if good else None


def positions(ids: Any, node: Any) -> Any:
    """Return where the user's ids of nodes are, -1 for those that are not."""
    if ids is None or not isinstance(node, Tensor) or node.dim() != 1:
        return node
    order = ids.to(node.device).sort()
    place = torch.searchsorted(order.values, node.contiguous())
    place = place.clamp(max=order.values.numel() - 1)
    found = order.values[place] == node
    return torch.where(found, order.indices[place], -1)


def check_ids(data: Data) -> None:
    """Refuse ids of nodes, ``data.n_id``, that are not distinct."""
    if data.get('n_id') is not None:
        check_tensor('data.n_id', data.n_id, torch.int64, (data.num_nodes,))
        check_distinct('data.n_id', data.n_id)


class _NoSampler(BaseSampler):
    def sample_from_nodes(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError('units are drawn whole')

    sample_from_edges = sample_from_nodes


class DrawnUnits(WholeUnitLoader):
    """Base of loaders of units that are numbered, and drawn by number.

    A model returns a row for each unit; ``input_id`` of a batch holds the
    numbers of its units.
    """

    terms = 1
    by_unit = True
    #: What the data of one unit are called.
    noun: str

    @property
    def protected(self) -> str:  # type: ignore[override]
        """What is protected one at a time, in the plural."""
        return f'{self.noun}s'

    def _set_law(
        self, sampling: str, neighboring: str, sample_rate: float | None
    ) -> None:
        if neighboring == 'add_remove' and sampling != POISSON:
            raise ValueError(
                "'neighboring' needs to be 'replace' without replacement: "
                "'add_remove' is for sampling='poisson'"
            )
        if (sample_rate is not None) != (neighboring == 'add_remove'):
            raise ValueError(
                "'sample_rate' needs to be given for neighboring='add_remove' "
                f'and for no other (got {sample_rate} for {neighboring!r})'
            )
        self.relation = f'replace-one-{self.noun}'
        if sample_rate is not None:
            self.relation = f'add-or-remove-one-{self.noun}'
            self.form = 'withdraw'
        self.sampling, self._rate = sampling, sample_rate

    def _check_size(self, count: int, batch_size: int, what: str = '') -> None:
        if batch_size > count and self._rate is None:
            raise ValueError(
                f"'batch_size' needs to be at most {count}, the number of "
                f'{self.noun}s{what} (got {batch_size})'
            )

    def _open(
        self,
        count: int,
        batch_size: int,
        num_steps: int | None,
        seed: int | None,
        kwargs: dict[str, Any],
        sampler: BaseSampler | None = None,
    ) -> None:
        # Draw from so many units.
        self.check_kwargs(kwargs, num_steps=num_steps)
        self._check_size(count, batch_size)
        if num_steps is None:
            by_rate = max(1, int(1 / self._rate)) if self._rate else None
            num_steps = by_rate or count // batch_size
        self._num_units = count
        super().__init__(
            Data(num_nodes=count),
            sampler or _NoSampler(),
            self._drawn(batch_size, num_steps, rng.resolve(seed)),
            torch.arange(count),
            **kwargs,
        )

    def _count_units(self, number: int) -> int:
        return self._num_units

    @validated
    def sample_rate_at(self, step: Natural) -> float:
        """Return the public sampling rate of a step."""
        if self._rate is not None:
            return float(self._rate)
        return super().sample_rate_at(step)

    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""
        # The number is public where neighbours differ by an exchange.
        known: dict[str, Any] = {f'num_{self.noun}s': self._num_units}
        if self._rate is not None:
            known = {'sample_rate': self._rate, 'relation': self.relation}
        return {
            'loader': type(self).__name__,
            'batch_size': self.subgraphs_per_batch,
            **known,
            **super().setting(),
        }

    def _finish(self, out: Data) -> Any:
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Apply the transform."""
        return out if self.transform is None else self.transform(out)

    def _is_consistent(self, batch: Data, units: Tensor) -> bool:
        index = batch.get('input_id')
        return isinstance(index, Tensor) and torch.equal(index, units)

    def __repr__(self) -> str:
        count = 'some' if self._rate is not None else self.num_subgraphs
        return (
            f'{type(self).__name__}({count} {self.noun}s, '
            f'batch_size={self.subgraphs_per_batch}, num_steps={len(self)})'
        )


def of_persons(
    declared: dict[str, Any], counted: bool = True
) -> tuple[str, ...]:
    """Return the assumptions and limits of a guarantee in one person."""
    count = (
        '; how many persons there are, and who of them is a training row, are '
        'not'
        if counted
        else ', and whether it is there at all: the rate and the number by '
        'which sums are divided were chosen without counting persons'
    )
    owned = ', '.join([declared['person'], *declared['owned']])
    joint = ', '.join(declared['joint'])
    what = (
        f'protected is one person: all its rows of {owned}, how many they '
        f'are, features, labels and edges, also those to public rows{count}'
    )
    read, unread = ', and public rows', 'between persons'
    unread += f', and rows of several: {joint}' if joint else ''
    if 'along' in declared:
        along = ', '.join(declared['along'])
        alone = f' (not counting rows with edges of {along})' * bool(along)
        what = (
            f'protected are the contents of one person: its rows of {owned}, '
            f'how many it owns alone{alone}, features and labels of these and '
            f'of rows that it shares ({joint or "none"}), and edges'
            f'{f", but those of {along}" * bool(along)}{count}, nor is who '
            'shares such a row or edge with whom, and by which rows, which '
            'walks take as fixed'
        )
        read = ', rows that it shares with others, and public rows'
        unread = 'and rows of persons of several walks, and rows of more than '
        unread += f'{declared["max_joint"]} persons ({declared["left_out"]})'
    return (
        what,
        'the owners of all rows and edges are those that were declared, and '
        'one person has one name',
        f'not used are edges {unread}',
        'the weights are private; the prediction for a person reads what that '
        f'person owns{read}',
        'no feature was computed beforehand from several persons '
        '(vocabularies, category codes, embeddings, scaling); C, the noise, '
        'the number of steps and the hyper-parameters were chosen without '
        'looking at private rows (each run of a search is a release of its '
        'own, unless pyg_trust.privacy.search made it)',
    )
