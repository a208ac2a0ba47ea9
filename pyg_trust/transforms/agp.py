"""Approximate Graph Propagation (AGP) as a transform."""

from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust import rng
from pyg_trust._checks import (
    Fraction,
    Natural,
    NotNegative,
    Positive,
    Rate,
    check_integer,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust.agp.checks import (
    How,
    check_finite_signal,
    check_graph,
    check_how,
    check_options,
    check_signal,
)
from pyg_trust.agp.estimates import variance_bound
from pyg_trust.agp.measures import (
    Measure,
    chebyshev,
    make_measure,
    needs_graph,
)
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._marks import mark
from pyg_trust.graph._storage import parse_memory
from pyg_trust.report import (
    DATA_FIELDS,
    Guarantee,
    fingerprint_data,
    provenance,
)
from pyg_trust.report.base import stated

__all__ = ['AGP']


@validated
class MeasureTransform(BaseTransform):
    """Base of transforms that take a measure and its arguments."""

    def __init__(
        self,
        measure: str | Measure,
        eps: NotNegative,
        seed: int | None,
        **arguments: float | None,
    ) -> None:
        self.measure = measure
        self.arguments = arguments
        if not needs_graph(measure):
            make_measure(measure, None, **arguments)
        self.eps = eps
        self.seed = None if seed is None else rng.resolve(seed)

    @validated
    def make_measure(self, graph: CSRGraph) -> Measure:
        """Make the measure for :obj:`graph`."""
        return make_measure(self.measure, graph, **self.arguments)

    def __repr__(self) -> str:
        # Every argument that changes the result: PyG compares the text with
        # that of a dataset on the disk (pre_transform).
        measure = self.measure
        if isinstance(measure, Measure):
            measure = f'{measure} of {measure.key}'
        given = ''.join(
            f', {name}={value!r}'
            for name, value in {**self.arguments, **self._options()}.items()
            if value is not None
        )
        return f'{type(self).__name__}({measure}{given})'

    def _options(self) -> dict[str, Any]:
        return {'eps': self.eps, 'seed': self.seed}


def _is_file(out: str | Path | None) -> TypeGuard[str | Path]:
    return isinstance(out, Path) or (
        isinstance(out, str) and out.endswith('.npy')
    )


@validated
@functional_transform('agp')
class AGP(MeasureTransform):
    r"""Propagate node features by Approximate Graph Propagation (AGP).

    Computes :math:`Z = \sum_{i=0}^{K} w_i (D^{-a} A D^{-b})^i X` with the
    adjacency matrix :math:`A` and the degree matrix :math:`D`. The measure
    sets the weights :math:`w` and the exponents :math:`a` and :math:`b`. The
    result is exact with ``eps=0``, else an unbiased estimate of bounded
    variance (`Wang et al. 2021 <https://arxiv.org/abs/2106.03058>`_). The
    edges stay as they are (functional name: :obj:`agp`).

    Args:
        measure (str or Measure): :obj:`'appnp'`, :obj:`'sgc'` or
            :obj:`'heat'`, which are meant for features; :obj:`'ppr'`,
            :obj:`'pagerank'`, :obj:`'single_target'`, :obj:`'hkpr'`,
            :obj:`'katz'`, :obj:`'transition'`; or a measure of your own.
        alpha (float, optional): the teleport probability, which APPNP and the
            PageRank measures need.
        t (float, optional): the time, for :obj:`'heat'` and :obj:`'hkpr'`.
        beta (float, optional): the attenuation, for :obj:`'katz'`.
        K (int, optional): the number of hops; by default 2 for
            :obj:`'sgc'`, else as many as :obj:`tol` needs.
        tol (float, optional): the largest total weight of the hops that are
            left out, for infinite series; by default 1e-4.
        eps (float): messages below this share of a column's L1 norm are
            sampled; 0 for the exact result. (default: :obj:`0.0`)
        seed (int, optional): the seed of an estimate; by default torch's
            generator draws one in every call.
        force_push (bool): whether to sample even if the exact result is
            expected to be cheaper. (default: :obj:`False`)
        half (bool): whether exact hops are kept in float16, for speed.
        level_tol (float): the largest relative error that a faster series with
            fewer hops may have (the ``tol`` of
            :func:`~pyg_trust.agp.propagate`); 0 for none.
        attr (str): the attribute with the features. (default: :obj:`'x'`)
        out (str or Path, optional): the attribute to write, by default
            :obj:`attr`; or the path of a ``.npy`` file, to which the result is
            written in blocks; :obj:`attr` is then memory-mapped from it.
        columns (int or str): for a file, the number of columns in memory at
            once; :obj:`'auto'` for as many as fit. (default: :obj:`'auto'`)
        memory (int or str, optional): for a file, the most bytes to use, such
            as ``'8GB'``; by default nine tenths of what is free.
        over_ranks (bool): for a file, whether the processes of torchrun share
            the columns. (default: :obj:`False`)
    """

    @renamed(levels='K')
    def __init__(
        self,
        measure: str | Measure,
        *,
        alpha: Rate | None = None,
        t: Positive | None = None,
        beta: Positive | None = None,
        K: Natural | None = None,
        tol: Fraction | None = None,
        eps: NotNegative = 0.0,
        seed: int | None = None,
        force_push: bool = False,
        half: bool = False,
        level_tol: NotNegative = 0.0,
        attr: str = 'x',
        out: str | Path | None = None,
        columns: int | str = 'auto',
        memory: int | str | None = None,
        over_ranks: bool = False,
    ) -> None:
        super().__init__(
            measure,
            eps,
            seed,
            alpha=alpha,
            t=t,
            beta=beta,
            K=K,
            tol=tol,
        )
        if columns != 'auto':
            check_integer('columns', columns, 1)  # type: ignore[arg-type]
        self.file = Path(out).absolute() if _is_file(out) else None
        if self.file is not None:
            if eps != 0:
                raise ValueError(
                    f"'out' is a file, which needs eps=0 (got eps={eps:g})"
                )
            out = None
        elif over_ranks:
            raise ValueError("'over_ranks' needs a file as 'out'")
        self.columns = columns
        self.memory = None if memory is None else parse_memory(memory)
        self.over_ranks = over_ranks
        self.force_push = force_push
        self.half = half
        self.level_tol = level_tol
        check_options(eps, half, level_tol, 'level_tol')
        self.attr = attr
        self.out = attr if out is None else str(out)

    def forward(self, data: Data) -> Data:
        """Write the propagated features to the graph, and return it.

        It also adds the attribute's name to ``data.propagated``, a list of the
        attributes whose rows depend on other nodes. Private training refuses
        these.
        """
        if self.file is not None:
            return self._to_file(data, self.file)
        graph, x = self._inputs(data)
        data[self.out] = propagate(
            graph,
            x,
            self.make_measure(graph),
            eps=self.eps,
            seed=self.seed,
            force_push=self.force_push,
            half=self.half,
            tol=self.level_tol,
        )
        mark(data, self.out)
        return data

    def _to_file(self, data: Data, file: Path) -> Data:
        graph, x = CSRGraph.from_data(data), data.get(self.attr)
        z = propagate_to(
            file,
            graph,
            x,
            self.make_measure(graph),
            half=self.half,
            tol=self.level_tol,
            columns=self.columns,
            memory=self.memory,
            over_ranks=self.over_ranks,
        )
        data[self.attr] = z
        mark(data, self.attr)
        return data

    def guarantee(self, data: Data) -> Guarantee:
        """Return the guarantee of how accurate the written features are.

        For an estimate it states the largest standard deviation of an entry.

        Args:
            data (Data): the graph *before* it was transformed.
        """
        graph, x = self._inputs(data)
        measure = self.make_measure(graph)
        check_graph(graph, measure)
        check_signal(x, graph)
        how = How(half=self.half, tol=self.level_tol)
        check_how(how, x, graph, measure)
        check_finite_signal(x)
        if x.layout == torch.sparse_csr:
            x = x.to_dense()
        values: dict[str, Any] = {
            'level_tol': self.level_tol or None,
            'read': self.attr,
            'written': self.out,
            'level_bound': None,
            'standard_deviation': None,
            'half': self.half,
            'measure': measure.name,
            'a': measure.a,
            'b': measure.b,
            'levels': measure.K,
            'eps': self.eps,
            'seed': self.seed,
        }
        names = list(dict.fromkeys((self.attr, *DATA_FIELDS)))
        values['data_fields'] = names
        if self.eps == 0:
            if self.level_tol:
                values['level_bound'] = chebyshev(
                    measure, self.level_tol
                ).bound
        else:
            variance = variance_bound(graph, x, measure, self.eps)
            values['standard_deviation'] = float(variance.max().sqrt())
        return stated(
            'propagation',
            values,
            data_sha256=fingerprint_data(data, names),
            origin=provenance(transform=repr(self), seed=self.seed),
        )

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = super()._options()
        for name in ('force_push', 'half'):
            options[name] = True if getattr(self, name) else None
        options['level_tol'] = self.level_tol or None
        options['attr'] = None if self.attr == 'x' else self.attr
        options['out'] = None if self.out == self.attr else self.out
        if self.file is not None:
            options['out'] = str(self.file)
        return options

    def _inputs(self, data: Data) -> tuple[CSRGraph, Tensor]:
        graph = CSRGraph.from_data(data)
        x = data.get(self.attr)
        if not isinstance(x, Tensor):
            raise ValueError(
                f"'data' needs to have a tensor '{self.attr}' "
                f'(got {type(x).__name__})'
            )
        return graph, x.to_sparse_csr() if x.layout == torch.sparse_coo else x
