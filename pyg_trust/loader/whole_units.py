"""Base of loaders of disjoint units."""

from abc import abstractmethod
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from pyg_trust._checks import Count, Natural, validated
from pyg_trust.loader.step_batches import POISSON, StepLoader
from pyg_trust.report import fingerprint


class WholeUnitLoader(StepLoader):
    """Base of loaders of disjoint units, each of which comes whole."""

    _sizes: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def _units(self, step: int) -> Tensor:
        """Return the unit of every node, ``[num_nodes]``, or -1."""

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
        """Refuse a batch that does not hold whole units of a step.

        After any ``transform``, its nodes have to be those of distinct units,
        each with all of its nodes and once.
        """
        if not isinstance(batch, Data):
            raise ValueError(
                "'transform' needs to return a torch_geometric.data.Data "
                f'(got {type(batch).__name__})'
            )
        count_here = self._count(batch, step, count or self.most_at(step))
        if count_here is None or count_here != (
            count_here if count is None else count
        ):
            raise ValueError(
                f'a batch needs to hold whole, distinct units ({self.unit}) '
                "of the loader's partition, each node once: is there a "
                "'transform' that changes 'n_id', 'batch', 'input_id' or the "
                'number of nodes?'
            )
        return batch.batch, count_here

    def _count(self, batch: Data, step: int, most: int) -> int | None:
        # The number of units in a batch, None if they are not whole.
        node, owner = batch.get('n_id'), batch.get('batch')
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
        if (
            int(node.min()) < 0
            or int(node.max()) >= known.numel()
            or int(owner.min()) != 0
        ):
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
