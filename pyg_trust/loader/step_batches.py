"""Batches drawn afresh at every step, of fixed size or by Poisson sampling."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler

from pyg_trust import rng
from pyg_trust._checks import (
    Natural,
    OneOf,
    check_distinct,
    check_integer,
    check_tensor,
    validated,
)
from pyg_trust._checks.fingerprints import fingerprint
from pyg_trust._checks.graphs import warn_of_roots, with_edge_index
from pyg_trust.graph._marks import check_rows
from pyg_trust.sampler.walks import root_index

__all__ = ['DrawnUnits', 'StepBatches', 'StepLoader']

#: Maps a step, how many units there are, and how many of them to draw (an
#: integer) or with which probability each (a float), to their indices.
Choice = Callable[[int, int, int | float], np.ndarray]
WITHOUT_REPLACEMENT, POISSON = 'without_replacement', 'poisson'
Sampling = Annotated[str, OneOf((WITHOUT_REPLACEMENT, POISSON))]
RELATIONS = ('replace', 'add_remove')
# What says which unit a row is of, by type, and what a transform keeps.
_KEPT = ('n_id', 'batch', 'root_mask', 'input_id')


class StepBatches(Sampler[list[int]]):
    """Draws some of :math:`M` units at every step.

    It draws :math:`m` of them without replacement or, with a :obj:`rate`, each
    independently. Steps are counted through all epochs. A draw depends on the
    seed and the step alone, or is that of ``choose``, which a private engine
    sets; then it is kept until the step is spent.

    Args:
        batch_size (int): :math:`m`, which is constant, or the expected size.
        num_steps (int): the steps of an epoch.
        count (callable): maps a step to its :math:`M`.
        write (callable): maps a step and the units drawn, int64, to the list
            of integers that a worker makes a batch of.
        seed (int): the seed.
        rate (callable, optional): maps a step to the probability of a unit.
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
        self.batch_size, self.num_steps = batch_size, num_steps
        self.count, self.write, self.rate = count, write, rate
        self.seed = seed
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

    def forget(self, steps: int) -> None:
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
    """Base of loaders for private training, which draw anew at every step.

    A step draws some of :math:`M` units. A unit is what is clipped as one: a
    subgraph, a graph, or all rows of a person. A private engine calls the
    methods below; most users do not.

    Args:
        data (Data): the graph.
        sampler (BaseSampler): makes batches of the drawn units.
        roots (Tensor): int64: the nodes that may be roots, at least as many as
            there are units.
        batch_size (int): :math:`m` units a batch; if Poisson, on average.
        num_steps (int): the steps of an epoch.
        seed (int): the seed of batches that are drawn without an engine.
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
    terms: int = 1
    #: How the units of a step are drawn.
    sampling: str = WITHOUT_REPLACEMENT
    #: Whether neighbours exchange a unit for another, or lack one.
    form: str = 'replace'
    #: The digest of the privacy unit, if units are persons; it is private.
    owned_by: str = ''
    #: The steps between two sets of units, None if there is one.
    resample_every: int | None = None
    # The public rate, where the number of units is private.
    _rate: float | None = None

    def __init__(
        self,
        data: Data,
        sampler: BaseSampler | None,
        roots: Tensor,
        batch_size: int,
        num_steps: int,
        seed: int,
        **kwargs: Any,
    ) -> None:
        self.subgraphs_per_batch = batch_size
        self._counts: dict[int, int] = {}
        batches = StepBatches(
            batch_size,
            num_steps,
            self.num_subgraphs_at,
            self._write,
            rng.derive(seed, 1),
            self.sample_rate_at if self.sampling == POISSON else None,
        )
        super().__init__(data, sampler, batch_sampler=batches, **kwargs)
        self.__dict__['dataset'] = _Indices(len(roots))
        self.input_nodes = roots

    @classmethod
    def check_kwargs(cls, kwargs: dict[str, Any], **counts: Any) -> None:
        """Raise an error if arguments would change how batches are drawn.

        Args:
            kwargs (dict): arguments of a PyG loader; ``shuffle``, ``sampler``
                and others that choose batches raise a ``TypeError``.
            **counts (int, optional): arguments that are counts, such as
                ``num_steps``; each has to be None or at least 1.
        """
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

    # What a step draws from ################################################

    @abstractmethod
    def _count_units(self, number: int) -> int:
        """Return the number of units of a partition."""

    @abstractmethod
    def _make(self, number: int, index: Tensor) -> Any:
        """Make a batch of some units of a partition, or what is to be one."""

    def _number(self, step: int) -> int:
        # The number of the partition that a step draws from.
        every = self.resample_every
        return 0 if every is None else step // every

    @validated
    def num_subgraphs_at(self, step: Natural) -> int:
        """Return :math:`M`, the number of units that a step draws from."""
        number = self._number(step)
        if number not in self._counts:
            self._counts[number] = self._count_units(number)
        return self._counts[number]

    @validated
    def sample_rate_at(self, step: Natural) -> float:
        """Return the public sampling rate of a step."""
        if self._rate is not None:
            return float(self._rate)
        return self.subgraphs_per_batch / self.num_subgraphs_at(step)

    @property
    def num_subgraphs(self) -> int:
        """Number of units that the first step draws from."""
        return self.num_subgraphs_at(0)

    @property
    def sample_rate(self) -> float:
        """Public sampling rate of the first step."""
        return self.sample_rate_at(0)

    # Batches ###############################################################

    def _write(self, step: int, index: Tensor) -> list[int]:
        shift = self._number(step) * len(self.input_nodes)
        return (index + shift).tolist()

    def _collated(self, index: Any) -> Any:
        index, number = torch.as_tensor(index, dtype=torch.int64), 0
        if self.resample_every is not None and index.numel():
            which, most = index // len(self.input_nodes), len(self.input_nodes)
            number, index = int(which[0]), index % most
            if bool((which != number).any()):
                raise ValueError(
                    "'index' needs to hold units of one partition (got "
                    'several partitions)'
                )
        return self._make(number, index)

    def collate_fn(self, index: list[int] | Tensor) -> Any:
        """Make a batch of the units that the batch sampler has drawn."""
        out = self._collated(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def of(self, step: int, index: Tensor, transformed: bool = True) -> Any:
        """Make a batch of the units ``index`` of a step, in this process.

        ``index`` is int64, ``[num_units]``, below ``num_subgraphs_at(step)``.
        ``transformed`` is whether to apply the loader's transform.
        """
        out = self._collated(self._write(step, index))
        return self.filter_fn(out) if transformed else self._plain(out)

    def _plain(self, out: Any) -> Any:
        # The batch before the transform.
        bare = copy.copy(self)
        bare.transform = None
        return NodeLoader.filter_fn(bare, out)

    def filter_fn(self, out: Any) -> Any:
        """Apply the loader's transform to a batch, and check the result.

        Raises:
            ValueError: if the transform changes ``n_id``, ``batch``,
                ``input_id`` or the number of rows.
        """
        out = self._plain(out)
        if self.transform is None:
            return out
        before, made = _kept(out), self.transform(out)
        kind = HeteroData if isinstance(out, HeteroData) else Data
        if not isinstance(made, kind):
            raise ValueError(
                f"'transform' needs to return a torch_geometric.data."
                f'{kind.__name__} (got {type(made).__name__})'
            )
        after = _kept(made)
        # A type that it leaves out is missing in all batches.
        here = {store._key: store for store in made.node_stores}
        for (of, name), want in before.items():
            found, store = after.get((of, name)), here.get(of)
            if store is not None and (
                found is None
                or not torch.equal(found.to(want.device), want)
                or store.num_nodes != len(store.batch)
                or len(store.get('x', store.batch)) != len(store.batch)
            ):
                raise ValueError(
                    "'transform' needs to keep whole, distinct units "
                    f"({self.unit}): 'n_id', 'batch', 'input_id' and the "
                    'number of rows as they are'
                )
        return made

    def flat(self, batch: Any) -> Any:
        """Return a batch as one ``Data``; here that is the batch itself."""
        return batch

    # What a report says ####################################################

    @abstractmethod
    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""

    def public(self) -> tuple[Any, ...]:
        """Return the public data, whose hash is in reports and ledgers.

        It has the edges, the roots, the number of nodes and, as a string, the
        features' shape and dtype.
        """
        x = self.data.x
        shape = None if x is None else [list(x.shape), str(x.dtype)]
        edges = self.data.edge_index
        return edges, self.input_nodes, self.data.num_nodes, repr(shape)

    def fingerprint(self) -> str:
        """Return a hash of the public part of the data."""
        return fingerprint(*self.public())

    def layout(self) -> str:
        """Return a hash, to check that processes agree on the units."""
        return ''

    def assumptions(self) -> tuple[str, ...]:
        """Return sentences: what a guarantee assumes and does not cover."""
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

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.node_sampler}, '
            f'batch_size={self.subgraphs_per_batch}, num_steps={len(self)})'
        )


class _Indices:
    # As in PyG's loaders, the length is the number of roots. What is read are
    # units, numbered on through all partitions.
    def __init__(self, num_roots: int) -> None:
        self.num_roots = num_roots

    def __len__(self) -> int:
        return self.num_roots

    def __getitem__(self, index: int) -> int:
        return index


class DrawnUnits(StepLoader):
    """Base of loaders of units that are whole, as graphs or persons.

    A model returns a row for each unit; ``input_id`` of a batch holds the
    numbers of its units.
    """

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
        most: int,
        batch_size: int,
        num_steps: int | None,
        seed: int | None,
        kwargs: dict[str, Any],
        sampler: BaseSampler | None = None,
    ) -> None:
        # Draw from the units, of which there are so many at most.
        self.check_kwargs(kwargs, num_steps=num_steps)
        count, self._num_units = self._count_units(0), most
        self._check_size(count, batch_size)
        if num_steps is None:
            by_rate = max(1, int(1 / self._rate)) if self._rate else None
            num_steps = by_rate or count // batch_size
        super().__init__(
            Data(num_nodes=most),
            sampler,
            torch.arange(most),
            batch_size,
            num_steps,
            rng.resolve(seed),
            **kwargs,
        )

    def _plain(self, out: Any) -> Any:
        return out

    def setting(self) -> dict[str, Any]:
        """Return the public arguments, by name; seeds are secret."""
        # The number is public where neighbours differ by an exchange.
        known: dict[str, Any] = {f'num_{self.noun}s': self._num_units}
        if self._rate is not None:
            known = {'sample_rate': self._rate, 'relation': self.relation}
        if self.sampling == POISSON:
            known['sampling'] = self.sampling
        return {
            'loader': type(self).__name__,
            'batch_size': self.subgraphs_per_batch,
            **known,
        }

    def __repr__(self) -> str:
        count = 'some' if self._rate is not None else self.num_subgraphs
        return (
            f'{type(self).__name__}({count} {self.noun}s, '
            f'batch_size={self.subgraphs_per_batch}, num_steps={len(self)})'
        )


def rooted(data: Any, input_nodes: Any) -> tuple[Any, Any]:
    """Check a graph and roots by the names that a loader's arguments have."""
    check_rows(data)
    if data.get('n_id') is not None:
        check_tensor('data.n_id', data.n_id, torch.int64, (data.num_nodes,))
        check_distinct('data.n_id', data.n_id)
    data = with_edge_index(data)
    warn_of_roots(input_nodes, data)
    if input_nodes is not None and isinstance(data, Data):
        where = getattr(input_nodes, 'device', 'cpu')
        count = int(data.num_nodes or 0)
        input_nodes = root_index(input_nodes, count, where, 'input_nodes')
    return data, input_nodes


def _kept(batch: Any) -> dict[Any, Tensor]:
    return {
        (store._key, name): store[name].clone()
        for store in batch.node_stores
        for name in _KEPT
        if isinstance(store.get(name), Tensor)
    }


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
