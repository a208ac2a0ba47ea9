"""Votes of one run: calling, checking and counting noisy copies."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks.identity import identity
from pyg_trust._progress import Bar
from pyg_trust.certificates.flip_bits import BitFlips
from pyg_trust.certificates.sampling import Pipeline, Sampler, fresh_copy
from pyg_trust.distributed import from_first, rank_and_size, run_over_ranks

# The share of entries that are not 0 up to which features are sparse.
_SPARSE = 0.1


class Run:
    """Votes of one certification: a sampler per graph, one batch size."""

    def __init__(
        self,
        pipeline: Pipeline,
        graphs: list[Data],
        noise: BitFlips,
        seed: int,
        batch_size: int | None,
        over_ranks: bool,
        sparse: tuple[bool | None, bool | None],
    ) -> None:
        self.pipeline, self.noise = pipeline, noise
        self.graphs, self.seed = graphs, seed
        self.digest, self.fresh = self._identity(), fresh_copy(pipeline)
        self.place = rank_and_size() if over_ranks else (0, 1)
        self.note, self.samplers = '', self._samplers(graphs[:3])
        flags = from_first(lambda: self._chosen(sparse), self.place[1])
        self.pipeline = pipeline.with_sparse(*flags)
        if self.fresh is not None:
            self.fresh = self.fresh.with_sparse(*flags)
        self.samplers = self._samplers(graphs)
        self.slack = max(sampler.copies.slack for sampler in self.samplers)
        self.note, self.named = from_first(self._checked, self.place[1])
        self.batch_size = 1 if self.note else batch_size

    def _samplers(self, graphs: list[Data]) -> list[Sampler]:
        return [
            Sampler(
                self.pipeline,
                graph,
                self.noise,
                rng.derive(self.seed, i)
                if self.pipeline.graphs
                else self.seed,
                self.fresh,
            )
            for i, graph in enumerate(graphs)
        ]

    def _chosen(self, sparse: tuple[bool | None, bool | None]) -> list[bool]:
        # Sparse matrices where they may pay and change no output.
        given = [bool(flag) for flag in sparse]
        pipe = self.pipeline
        if pipe.transform is not None or pipe.forward is not None:
            return given
        few = all(sampler.density <= _SPARSE for sampler in self.samplers)
        for flags in ((True, True), (False, True), (True, False)):
            if flags[0] and not few and not sparse[0]:
                continue
            if any(
                one is not None and one != other
                for one, other in zip(sparse, flags, strict=True)
            ):
                continue
            if None in sparse and all(
                sampler.agrees(*flags) for sampler in self.samplers
            ):
                return list(flags)
        return given

    def _identity(self) -> str:
        pipe = self.pipeline
        return identity(pipe.model, pipe.transform, pipe.forward)

    def _checked(self) -> tuple[str, tuple[str, ...]]:
        some, pipe = self.samplers[:3], self.pipeline
        notes = [sampler.check() for sampler in some]
        named = []
        for kind in self.noise.noisy:
            if not all(sampler.hides(kind) for sampler in some):
                continue
            around = ' or '.join(
                repr(name)
                for name in ('transform', 'forward')
                if getattr(pipe, name) is not None
            )
            if around:
                raise ValueError(
                    f'{around} needs to pass on the noise on the {kind} (got '
                    'the outputs of the clean graph, to the bit, for each '
                    f'noisy copy): values from the clean {kind} stay fixed '
                    'here, and would change in an attack'
                )
            named.append(
                f'no output of the model changes with the {kind}: nor was '
                f'anything that it is given computed from the {kind}'
            )
        for name in some[0].reads():
            named.append(
                f'{name!r} of the data, which the model is given, stays as it '
                'is: it was not computed from features or edges that may '
                'change'
            )
        for name in some[0].constant():
            named.append(
                f"{name!r}, which 'transform' makes, is the same in every "
                'noisy copy as in the clean graph, to the bit: it is not '
                'computed from what may change'
            )
        return next(filter(None, notes), ''), tuple(named)

    def votes(
        self, first: int, count: int, rows: Tensor | None, bar: Bar
    ) -> Tensor:
        """Count the votes of copies for each class: ``[targets, C + 1]``."""
        size = self.place[1]
        if size == 1:
            parts = [self._own_votes(first, count, bar)]
        else:
            parts = run_over_ranks(
                range(size), lambda _: self._own_votes(first, count, bar)
            )
        counts = [
            [votes for votes in row if votes is not None]
            for row in zip(*parts, strict=True)
        ]
        if len({votes.size(1) for row in counts for votes in row}) > 1:
            raise ValueError(
                "'model' needs to return as many classes for every graph"
            )
        votes = torch.cat([torch.stack(row).sum(0) for row in counts])
        return votes if rows is None else votes[rows]

    def _own_votes(
        self, first: int, count: int, bar: Bar
    ) -> list[Tensor | None]:
        votes = self._counted(first, count, bar, False)
        if self._identity() == self.digest:
            return votes
        # Calls leave something in the model: it may not matter.
        with Bar(progress_bar=False) as quiet:
            again = self._counted(first, count, quiet, True)
        for one, two in zip(votes, again, strict=True):
            if one is None or two is None:
                continue
            if not torch.equal(one, two):
                raise ValueError(
                    "'model' needs to be the same function at every call (it "
                    'keeps state between calls: a fresh copy has other votes)'
                )
        return votes

    def _counted(
        self, first: int, count: int, bar: Bar, as_new: bool
    ) -> list[Tensor | None]:
        # A graph's first batch is the next process's.
        (rank, size), counts = self.place, []
        for number, sampler in enumerate(self.samplers):
            together = self.batch_size or sampler.batch_size()
            place = (rank - number) % size, size
            counts.append(
                sampler.votes(
                    *(first, count, together, bar, bool(self.note), place),
                    as_new,
                )
            )
        return counts
