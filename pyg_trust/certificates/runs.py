"""Votes of one certification: a sampler per graph, one batch size."""

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._progress import Bar
from pyg_trust.certificates.flip_bits import BitFlips
from pyg_trust.certificates.sampling import Pipeline, Sampler, fresh_copy
from pyg_trust.distributed import from_first, rank_and_size, run_over_ranks

__all__ = ['Run']

# The share of entries that are not 0 up to which features are sparse.
_SPARSE = 0.1
# How many graphs are tried out.
_TRIED = 3


class Run:
    """Noisy copies of all graphs, and how the model is called with them."""

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
        self.place = rank_and_size() if over_ranks else (0, 1)
        # Copied before any call.
        self.fresh = fresh_copy(pipeline)
        self.samplers = self._samplers(graphs[:_TRIED])
        flags = from_first(lambda: self._chosen(sparse), self.place[1])
        self.pipeline = pipeline._replace(
            sparse_x=flags[0], sparse_adj=flags[1]
        )
        self.samplers = self._samplers(graphs)
        self.slack = max(sampler.copies.slack for sampler in self.samplers)
        self.note, self.named = from_first(self._checked, self.place[1])
        self.batch_size = 1 if self.note else batch_size

    def _samplers(self, graphs: list[Data]) -> list[Sampler]:
        seeds = [
            rng.derive(self.seed, i) if self.pipeline.graphs else self.seed
            for i in range(len(graphs))
        ]
        return [
            Sampler(self.pipeline, graph, self.noise, seed)
            for graph, seed in zip(graphs, seeds, strict=True)
        ]

    @property
    def calls(self) -> dict[str, object]:
        """Return the transform and the call around the model, if any."""
        pipe = self.pipeline
        given = {'transform': pipe.transform, 'forward': pipe.forward}
        return {name: call for name, call in given.items() if call is not None}

    def _chosen(self, sparse: tuple[bool | None, bool | None]) -> list[bool]:
        # Sparse matrices where they may pay and change no output.
        given = [bool(flag) for flag in sparse]
        if self.calls or None not in sparse:
            return given
        few = all(sampler.density <= _SPARSE for sampler in self.samplers)
        for flags in ((True, True), (False, True), (True, False)):
            asked = all(
                one is None or one == other
                for one, other in zip(sparse, flags, strict=True)
            )
            if (
                asked
                and (few or sparse[0] or not flags[0])
                and all(sampler.agrees(*flags) for sampler in self.samplers)
            ):
                return list(flags)
        return given

    def _checked(self) -> tuple[str, tuple[str, ...]]:
        some = self.samplers[:_TRIED]
        notes = [sampler.check(self.fresh) for sampler in some]
        around = ' or '.join(map(repr, self.calls))
        named = []
        for kind in self.noise.noisy:
            if not all(sampler.hides(kind) for sampler in some):
                continue
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
        if around:
            known = {'x', 'edge_index', 'num_nodes', 'y'}
            rest = sorted({*self.graphs[0].keys()} - known)
            named.append(
                f'what {around} reads beside the noisy features and edges '
                f'({", ".join(map(repr, rest)) or "no attribute of the data"})'
                ' stays as it is: it was not computed from features or edges '
                'that may change'
            )
        return next(filter(None, notes), ''), tuple(named)

    def votes(
        self, first: int, count: int, rows: Tensor | None, bar: Bar
    ) -> Tensor:
        """Count the votes of copies for each class: ``[targets, C + 1]``."""

        def own(_: int) -> list[Tensor | None]:
            # A graph's first batch is the next process's.
            rank, size = self.place
            return [
                sampler.votes(
                    *(first, count, self.batch_size or sampler.batch_size()),
                    *(bar, bool(self.note), ((rank - i) % size, size)),
                )
                for i, sampler in enumerate(self.samplers)
            ]

        if self.place[1] == 1:
            parts = [own(0)]
        else:
            parts = run_over_ranks(range(self.place[1]), own)
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
