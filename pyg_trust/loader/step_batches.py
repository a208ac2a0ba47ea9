"""Batches drawn afresh at every step, of fixed size or by Poisson sampling."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler

from pyg_trust import rng
from pyg_trust._checks import Natural, OneOf, check_integer, validated
from pyg_trust._checks.fingerprints import fingerprint

__all__ = ['StepBatches', 'StepLoader']

#: Maps a step, how many units there are, and how many of them to draw (an
#: integer) or with which probability each (a float), to their indices.
Choice = Callable[[int, int, int | float], np.ndarray]
WITHOUT_REPLACEMENT, POISSON = 'without_replacement', 'poisson'
SAMPLINGS = (WITHOUT_REPLACEMENT, POISSON)
Sampling = Annotated[str, OneOf(SAMPLINGS)]


class StepBatches(Sampler[list[int]]):
    r"""Draws some of :math:`M` units at every step, without replacement.

    :math:`m` of them, uniformly; or, where there is a :obj:`rate`, each
    independently, so that a batch may have any size, also none.

    Steps are counted through all epochs. The draw of a step depends on the
    seed and its number alone, or is that of ``choose``, where a private engine
    has set it; then it is kept until the step is spent, so that whoever begins
    an epoch anew is given the same batch.

    Args:
        batch_size (int): :math:`m`, which is constant, or the expected size.
        num_steps (int): the steps of an epoch.
        count (callable): maps a step to its :math:`M`.
        write (callable): maps a step and the units drawn, int64, to the list
            of integers that a worker makes a batch of.
        seed (int): the seed.
        rate (callable, optional): maps a step to the probability of each
            unit. (default: :obj:`None`)
    """

    #: Whether something in it was erased: copies and pickles say so, too.
    erased = False

    def __init__(
        self,
        batch_size: int,
        num_steps: int,
        count: Callable[[int], int],
        write: Callable[[int, Tensor], list[int]],
        seed: int,
        rate: Callable[[int], float] | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.count = count
        self.write = write
        self.seed = seed
        self.rate = rate
        # This process's part of a step's draw, and the number of parts.
        self.rank, self.num_ranks = 0, 1
        # The next step; the most units of a batch in memory, by which a draw
        # is split into several batches; another source of randomness.
        self.position = 0
        self.chunk_size: int | None = None
        self.choose: Choice | None = None
        self._kept: dict[int, Tensor] = {}

    def check_present(self) -> None:
        """Refuse to draw where something was erased."""
        if self.erased:
            raise ValueError(
                "'data_loader' holds what covers() was asked to erase: make a "
                'new loader of the data that remain, and give it to '
                'make_private of a new engine'
            )

    @validated
    def forget(self, steps: Natural) -> None:
        """Drop the kept draws of the first steps, which were spent."""
        self._kept = {k: v for k, v in self._kept.items() if k >= steps}

    def drawn_after(self, steps: int) -> bool:
        """Return whether units were drawn beyond the first steps."""
        return any(step >= steps for step in self._kept)

    def __getstate__(self) -> dict[str, Any]:
        # Workers collate batches of drawn units and draw none.
        return {**self.__dict__, 'choose': None, '_kept': {}}

    def index(self, step: int) -> Tensor:
        """Draw the units of a step: int64, ``[batch_size]`` or any number."""
        self.check_present()
        count = self.count(step)
        size = self.batch_size if self.rate is None else self.rate(step)
        if self.choose is not None:
            if step not in self._kept:
                drawn = self.choose(step, count, size)
                self._kept[step] = torch.from_numpy(drawn)
            return self._kept[step]
        # Without torch.randperm, whose seed has 32 bits and whose law has the
        # bias of a remainder: rates are exact, and so is this.
        philox = np.random.Philox(key=rng.derive(self.seed, step))
        generator = np.random.Generator(philox)
        if self.rate is not None:
            drawn = np.flatnonzero(generator.random(count) < size)
        else:
            drawn = generator.choice(count, self.batch_size, replace=False)
        return torch.from_numpy(drawn)

    def parts(self, step: int) -> tuple[Tensor, ...]:
        """Return this process's units of a step by batches, at least one."""
        here = self.index(step)[self.rank :: self.num_ranks]
        return here.split(self.chunk_size or max(1, here.numel()))

    def __iter__(self) -> Iterator[list[int]]:
        first = self.position
        self.position += self.num_steps
        for step in range(first, first + self.num_steps):
            for part in self.parts(step):
                yield self.write(step, part)

    def __len__(self) -> int:
        # By batches of the expected size, for Poisson sampling.
        here = max(1, -(-self.batch_size // self.num_ranks))
        return self.num_steps * -(-here // (self.chunk_size or here))


class StepLoader(NodeLoader):
    r"""Base of loaders for private training.

    Every step draws some of :math:`M` units (subgraphs). This is the interface
    that a private engine uses.

    Args:
        data (Data): the graph.
        sampler (BaseSampler): makes batches of what was drawn.
        batches (StepBatches): draws.
        roots (Tensor): int64: the nodes that may be roots.
        **kwargs (optional): more arguments of :class:`NodeLoader`.
    """

    OWN = ('sampler', 'batch_sampler', 'shuffle', 'drop_last', 'in_order')

    #: The name of a unit.
    unit: str
    #: What is protected one at a time, in the plural.
    protected: str = 'nodes'
    #: Which data are neighbours.
    relation: str = 'replace-one-feature-row'
    #: Whether a model has to return a row per unit, as sizes are private.
    by_unit: bool = False
    #: How many of the units a node's row can be in.
    terms: int
    #: How the units of a step are drawn.
    sampling: str = WITHOUT_REPLACEMENT
    #: Whether neighbours exchange a unit for another, or lack one.
    form: str = 'replace'
    #: The digest of the privacy unit, if units are persons; it is private.
    owned_by: str = ''
    #: The steps between two sets of units, None if there is one.
    resample_every: int | None = None

    def __init__(
        self,
        data: Data,
        sampler: BaseSampler,
        batches: StepBatches,
        roots: Tensor,
        **kwargs: Any,
    ) -> None:
        # Indices are nodes, of any kind, and not positions in input_nodes.
        super().__init__(data, sampler, batch_sampler=batches, **kwargs)
        self.input_nodes = roots
        self.subgraphs_per_batch = batches.batch_size

    def _drawn(
        self, batch_size: int, num_steps: int, seed: int
    ) -> StepBatches:
        # The batches that this loader draws.
        return StepBatches(
            batch_size,
            num_steps,
            self.num_subgraphs_at,
            self._write,
            rng.derive(seed, 1),
            self.sample_rate_at if self.sampling == POISSON else None,
        )

    def _write(self, step: int, index: Tensor) -> list[int]:
        return index.tolist()

    @classmethod
    def check_kwargs(cls, kwargs: dict[str, Any], **counts: Any) -> None:
        """Refuse arguments that would change the law of batches."""
        for name in cls.OWN:
            if name in kwargs:
                raise TypeError(
                    f"'{name}' cannot be chosen: batches are drawn afresh at "
                    "every step, as 'sampling' says"
                )
        if 'collate_fn' in kwargs:
            raise TypeError(
                "'collate_fn' cannot be chosen. Change batches by 'transform'"
            )
        for name, value in counts.items():
            if value is not None:
                check_integer(name, value, 1)

    def _number(self, step: int) -> int:
        # The number of the partition that a step draws from.
        every = self.resample_every
        return 0 if every is None else step // every

    def most_at(self, step: int) -> int:
        """Return the most units that a batch of a step can have."""
        if self.sampling == POISSON:
            return self.num_subgraphs_at(step)
        return self.subgraphs_per_batch

    @abstractmethod
    def num_subgraphs_at(self, step: int) -> int:
        r"""Return :math:`M`, the number of units that a step draws from."""

    @abstractmethod
    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""

    def public(self) -> tuple[Any, ...]:
        """Return the public part of the data: no value of a feature."""
        x = self.data.x
        shape = None if x is None else [list(x.shape), str(x.dtype)]
        edges = self.data.edge_index
        return edges, self.input_nodes, self.data.num_nodes, repr(shape)

    def fingerprint(self) -> str:
        """Digest the public part of the data."""
        return fingerprint(*self.public())

    def layout(self) -> str:
        """Return a hash of the units' nodes, to compare processes."""
        return ''

    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions and limits of a guarantee in one unit."""
        return (
            'protected is one row of the features (with the label, if masks, '
            'sampling and loss weights do not depend on labels); edges, the '
            'presence of a node and who is a training node are not',
            'predictions are not protected: to infer is to read the features '
            'of neighbours',
            'graph, training nodes and subgraphs were made without looking at '
            'features; so were C, the noise, the number of steps and the '
            'hyper-parameters (each run of a search is a release of its own, '
            'unless pyg_trust.privacy.search made it)',
            'no transform before the loader mixes the rows of several nodes '
            '(row-wise scaling is fine; propagation, PCA and standardisation '
            'are not)',
        )

    @abstractmethod
    def check_batch(
        self, batch: Data, step: int, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Refuse a batch that does not hold units of a step.

        Args:
            batch (Data): a batch, or a part of one, on the CPU.
            step (int): the step, counted from 0 through all epochs.
            count (int, optional): how many units it needs to have; by default
                any number up to ``batch_size``. (default: :obj:`None`)

        Returns:
            tuple[Tensor, int]: int64, ``[num_nodes]``, the unit of each node,
            and the number of units.
        """

    def _check_drawn(self, batch: Any, step: int, index: Tensor) -> None:
        """Refuse a batch that does not hold the drawn units, int64."""
        name, want = self._mark(step, index)
        actual = batch.get(name) if isinstance(batch, Data) else None
        if not isinstance(actual, Tensor) or not torch.equal(
            actual.cpu().sort().values, want.cpu().sort().values
        ):
            raise ValueError(
                'a batch needs to hold the units that were drawn for it (got '
                f"others in '{name}'): is there a 'transform' of batches?"
            )

    def flat(self, batch: Any) -> Any:
        """Return the batch as one graph, which private training needs."""
        return batch

    def _mark(self, step: int, index: Tensor) -> tuple[str, Tensor]:
        # The attribute that identifies units in a batch.
        return 'input_id', index

    def untransformed(self, index: list[int]) -> Any:
        """Return the batch of drawn units before ``transform``."""
        plain = copy.copy(self)
        plain.__dict__['transform'] = None
        # Bound to the loader itself, with its transform.
        plain.__dict__.pop('collate_fn', None)
        return plain(index)

    def sample_rate_at(self, step: int) -> float:
        """Return the public sampling rate of a step."""
        return self.subgraphs_per_batch / self.num_subgraphs_at(step)

    @property
    def num_subgraphs(self) -> int:
        """Number of units of the first step."""
        return self.num_subgraphs_at(0)

    @property
    def sample_rate(self) -> float:
        """Public sampling rate of the first step."""
        return self.sample_rate_at(0)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.node_sampler}, '
            f'batch_size={self.subgraphs_per_batch}, num_steps={len(self)})'
        )
