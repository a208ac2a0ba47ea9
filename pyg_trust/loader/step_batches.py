"""Batches that every step draws afresh, uniformly without replacement."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from pyg_trust import rng

Choice = Callable[[int, int], np.ndarray]


class StepBatches(Sampler[list[int]]):
    r"""Draws :math:`m` of :math:`M` units at every step, none twice.

    Steps are counted through all epochs, and the draw of a step depends on
    the seed and its number alone.

    Args:
        batch_size (int): :math:`m`, which is constant.
        num_steps (int): the steps of an epoch.
        count (callable): maps a step to its :math:`M`.
        write (callable): maps a step and the units drawn, int64, to the list
            of integers that a worker makes a batch of.
        seed (int): the seed.
    """

    def __init__(
        self,
        batch_size: int,
        num_steps: int,
        count: Callable[[int], int],
        write: Callable[[int, Tensor], list[int]],
        seed: int,
    ) -> None:
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.count = count
        self.write = write
        self.seed = seed
        # The step that comes next; the most units of a batch in memory, by
        # which a step's draw is cut into several; another source of chance.
        self.position = 0
        self.chunk_size: int | None = None
        self.choose: Choice | None = None

    def index(self, step: int) -> Tensor:
        """The units that a step draws, int64, ``[batch_size]``."""
        count = self.count(step)
        if self.choose is not None:
            return torch.from_numpy(self.choose(count, self.batch_size))
        # Without torch.randperm, whose seed has 32 bits and whose law has the
        # bias of a remainder: rates are exact, and so is this.
        philox = np.random.Philox(key=rng.derive(self.seed, step))
        return torch.from_numpy(
            np.random.Generator(philox).choice(
                count, self.batch_size, replace=False
            )
        )

    def __iter__(self) -> Iterator[list[int]]:
        first = self.position
        self.position += self.num_steps
        for step in range(first, first + self.num_steps):
            index = self.index(step)
            for part in index.split(self.chunk_size or self.batch_size):
                yield self.write(step, part)

    def __len__(self) -> int:
        chunks = -(-self.batch_size // (self.chunk_size or self.batch_size))
        return self.num_steps * chunks
