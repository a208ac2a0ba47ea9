"""Noisy propagation as a transform, released once."""

import math
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from pyg_trust._checks import (
    Count,
    Fraction,
    Positive,
    validated,
)
from pyg_trust._checks.graphs import warn_of_delta
from pyg_trust._describe import described
from pyg_trust._moved import renamed
from pyg_trust.account import (
    PaidNoise,
    ReleaseAccount,
)
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._marks import mark
from pyg_trust.privacy.gaussian import gaussian_mu_for
from pyg_trust.privacy.mechanisms import check_delta
from pyg_trust.privacy.propagation import (
    MAX_COLUMNS,
    MessageBlocks,
    columns,
    energy_weights,
    private_propagate,
    rounding_share,
    scaled_propagate,
)
from pyg_trust.report import fingerprint, provenance
from pyg_trust.transforms.aggregation_report import (
    RENAMED,
    AggregationReport,
    make_relation,
    make_report,
)
from pyg_trust.transforms.release_checks import (
    Releasing,
    check_alone,
    check_own,
    release_graph,
    warn_of_other_releases,
)
from pyg_trust.verify.release import widened

__all__ = ['PrivateAGP']

#: The propagation of ``'feature'``: one and two hops, symmetric.
TWO_HOPS = Measure(0.5, 0.5, (0.0, 0.5, 0.5), name='two_hops')
_LOCK = threading.RLock()


@validated
@functional_transform('private_agp')
class PrivateAGP(Releasing, BaseTransform):
    r"""Replace features by noisy sums over neighbours, with privacy.

    .. math::
        S_k = W\, m(S_{k-1}) + \mathcal{N}(0, s^2 I), \quad S_0 = X

    for :math:`k = 1, \ldots, K` (functional name: :obj:`private_agp`). Here
    :math:`m` scales each row to norm 1, and :math:`W` is the adjacency matrix,
    weighted so that one edge or node can change a sum only by a known amount
    (:func:`~pyg_trust.privacy.hop_sensitivity`), which sets the noise
    :math:`s`. Training on the sums costs no more privacy, nor do predictions
    that read no edges. The same graph and features get the same sums again.

    Args:
        K (int): the number of sums; 1 for ``'feature'``. (default: :obj:`1`)
        adjacency (str): what is protected. :obj:`'edge'`: one edge; features
            are taken as known. :obj:`'node'`: a node's features, label and own
            list of neighbours, at any degree. :obj:`'node_incident'`: a node
            with all its edges, up to :obj:`max_degree`. :obj:`'feature'`: a
            node's features and label; edges are public.
        epsilon (float, optional): the budget of all releases. One release
            spends all of it, unless :obj:`mu` is given. (default: :obj:`None`)
        delta (float, optional): the :math:`\delta` of the budget. Choose a
            public power of ten below :math:`1 / (10 m)`, for :math:`m` edges
            with ``'edge'``, else :math:`m` nodes. (default: :obj:`None`)
        mu (float, optional): the :math:`\mu` of one release, in Gaussian
            differential privacy; by default computed from :obj:`epsilon`.
        engine (PrivacyEngine, optional): an engine of private training that
            also accounts for the release; needs ``'feature'``, ``'replace'``
            and :obj:`mu`. (default: :obj:`None`)
        neighboring (str, optional): ``'replace'`` (a record against any other)
            or ``'add_remove'`` (against an empty one); by default
            ``'add_remove'`` for ``'node_incident'``, else ``'replace'``.
        directed (bool): whether edges are directed, which has to be public.
        max_degree (int, optional): for ``'node_incident'`` the largest degree,
            for ``'node'`` the largest sum of a node's squared weights (1).
        measure (Measure, optional): the propagation for ``'feature'``; by
            default :math:`(P + P^2) / 2`, :math:`P = D^{-1/2} A D^{-1/2}`,
            without a node's own message. (default: :obj:`None`)
        cat (bool, optional): whether the raw features are the first columns of
            the output; by default only for ``'edge'``. (default: :obj:`None`)
        attr (str): the attribute with the features. (default: :obj:`'x'`)
        insecure_seed (int, optional): a seed of the noise, to repeat an
            experiment without privacy; by default the noise is secret.
        ledger (str or Path, optional): the path of a file that records every
            release; by default none is written. (default: :obj:`None`)
        ledger_head (str, optional): the ``ledger_head`` of an earlier report,
            from which the ledger has to continue. (default: :obj:`None`)

    Raises:
        ValueError: on data that can't be released with privacy. Nothing is
            spent then.
        BudgetExceededError: when called, if too little budget is left.

    Example:
        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> data = Data(x=torch.eye(3), edge_index=edges)
        >>> transform = PrivateAGP(adjacency='edge', epsilon=1.0, delta=1e-3)
        >>> tuple(transform(data).x.shape), round(transform.report().mu, 3)
        ((3, 6), 0.388)
    """

    advice = 'Transform first, and save the data'

    @renamed(**RENAMED)
    def __init__(
        self,
        K: Count = 1,
        adjacency: str = 'edge',
        *,
        epsilon: Positive | None = None,
        delta: Fraction | None = None,
        mu: Positive | None = None,
        engine: Any = None,
        neighboring: str | None = None,
        directed: bool = False,
        max_degree: Count | None = None,
        measure: Measure | None = None,
        cat: bool | None = None,
        attr: str = 'x',
        insecure_seed: int | None = None,
        ledger: str | Path | None = None,
        ledger_head: str | None = None,
    ) -> None:
        self.relation = make_relation(
            adjacency, neighboring, directed, max_degree
        )
        self.K, self.attr = K, attr
        self.cat = adjacency == 'edge' if cat is None else cat
        feature = adjacency == 'feature'
        if measure is not None and not feature:
            raise ValueError(
                f"'measure' is for adjacency='feature' (got {adjacency!r})"
            )
        if feature and K != 1:
            raise ValueError(
                "'K' needs to be 1 with adjacency='feature', where 'measure' "
                f'has the levels (got {K})'
            )
        self.measure = measure or TWO_HOPS
        self._own = measure is not None
        self.engine = engine
        self._set_limit(epsilon, delta, mu, ledger)
        self._set_account(ledger, ledger_head, insecure_seed)
        self._kept: dict[str, list[Tensor]] = {}
        self._num_nodes = 0
        self._others, self._rho = 0.0, 0.0
        self._through_engine: list[float] = []

    def _set_limit(
        self,
        epsilon: float | None,
        delta: float | None,
        mu: float | None,
        ledger: Any,
    ) -> None:
        if self.engine is not None:
            if not hasattr(self.engine, 'spend_gaussian'):
                raise TypeError(
                    "'engine' needs to be a PrivacyEngine (got "
                    f'{type(self.engine).__name__})'
                )
            protects = self.relation.adjacency, self.relation.neighboring
            if protects != ('feature', 'replace'):
                raise ValueError(
                    "'engine' has an account of adjacency='feature' and "
                    f"neighboring='replace' alone (got {protects})"
                )
            if mu is None or epsilon is not None or ledger is not None:
                raise ValueError(
                    "'engine' has the budget and the ledger: give 'mu', what "
                    "the release spends, and neither 'epsilon' nor 'ledger'"
                )
        elif epsilon is None and mu is None:
            raise ValueError(
                "'epsilon' (the budget) or 'mu' (what a release spends) needs "
                'to be given'
            )
        elif delta is None:
            raise ValueError("'delta' needs to be given")
        self.epsilon = None if epsilon is None else float(epsilon)
        self.delta = None if delta is None else check_delta(delta)
        self.limit: float | None = None
        if epsilon is not None and delta is not None:
            self.limit = gaussian_mu_for(epsilon, delta)
        self.mu: float = mu if mu is not None else self.limit  # type: ignore
        if self.limit is not None and self.mu > self.limit:
            raise ValueError(
                f"'mu' needs to be at most {self.limit:.6g}, which is all of "
                f'the budget (got {mu})'
            )

    @property
    def noise_stds(self) -> tuple[float, ...]:
        """Standard deviation of the noise of each sum: :math:`K` numbers.

        With ``'feature'``, a release raises the noise by about a millionth, to
        cover rounding errors.
        """
        each = self.mu / math.sqrt(self.K)
        std = self.relation.sensitivity / each
        return (widened(std, self._rho) if self._rho else std,) * self.K

    def released(self, data: Data) -> list[Tensor]:
        r"""Return the noisy sums :math:`S_1, \ldots, S_K`.

        The first call with a graph computes them. Later calls return the same.

        Args:
            data (Data): the graph, with its original features.

        Returns:
            list[Tensor]: float64, ``[num_nodes, num_columns]`` each, rounded
            to the dtype of the features.
        """
        return [
            row.to(torch.float64, copy=True) for row in self._rows(data, 3)
        ]

    def _rows(self, data: Data, level: int) -> list[Tensor]:
        # Return the kept rows; callers must not write into them.
        self._check_owner()
        graph = release_graph(data, self.relation)
        x = check_own(data, self.attr, self.relation)
        if x.layout != torch.strided:
            x = x.to_dense()
        if (
            self.relation.adjacency == 'feature'
            and graph.num_nodes > MAX_COLUMNS
        ):
            raise ValueError(
                f"'data' needs to have at most {MAX_COLUMNS} nodes, as each "
                f'column is propagated by itself (got {graph.num_nodes})'
            )
        warn_of_delta(self.delta, graph.num_nodes, 'nodes')
        sent = MessageBlocks(x)
        each = [fingerprint(block) for *_, block in sent.blocks()]
        key = fingerprint(graph.rowptr, graph.col, *each)
        with _LOCK:
            if key in self._kept:
                return self._kept[key]
            check_alone()
            # Under the lock: else two threads could open an account each.
            account = self._account_of(graph.num_nodes)
            rows = self._release(graph, x, account)
            self._kept[key] = [row.to(x.dtype) for row in rows]
            if account is not None and not self.seeded:
                assert self.delta is not None
                warn_of_other_releases(
                    *(self.relation, graph, fingerprint(x), account),
                    *(self.delta, level + 1),
                )
            return self._kept[key]

    def _release(
        self, graph: CSRGraph, x: Tensor, account: ReleaseAccount | None
    ) -> list[Tensor]:
        # Check the whole cost first: no budget is spent on half of the hops.
        if account is not None:
            account.check(self.mu)
            number, spend = len(account.lines), account.spend
        else:
            assert self.engine is not None
            number, spend = self.engine.steps, self._through
        each = [self.mu / math.sqrt(self.K)] * self.K
        paid = PaidNoise(self._source(number), spend, each)
        if self.relation.adjacency == 'feature':
            self._rho, scales = 0.0, columns(graph, self.measure)
            self._rho = rounding_share(
                *(graph, x.size(1), self.noise_stds[0]),
                *(self.relation.sensitivity, self.measure),
                *(self._own, scales),
            )
            sums = graph, x, self.measure, self.noise_stds[0], paid
            return [scaled_propagate(*sums, self._own, scales)]
        weights = None
        if self.relation.adjacency == 'node':
            weights = energy_weights(graph, self.relation.max_degree or 1)
        noisy = (
            graph,
            x,
            self.noise_stds,
            paid,
            self.relation.adjacency,
            weights,
        )
        return private_propagate(*noisy, dtype=x.dtype)

    def _account_of(self, num_nodes: int) -> ReleaseAccount | None:
        first = self._account is None
        account = None if self.engine is not None else self._open(num_nodes)
        if account is not None and first:
            self._others = account.mu
        if self._num_nodes and self._num_nodes != num_nodes:
            raise ValueError(
                f"'data' needs to have the {self._num_nodes} nodes of the "
                f'first release (got {num_nodes})'
            )
        self._num_nodes = num_nodes
        return account

    def _through(self, mu: float) -> None:
        assert self.engine is not None
        self.engine.spend_gaussian(mu)
        self._through_engine.append(mu)

    def forward(self, data: Data) -> Data:
        """Write the noisy sums to the graph, and return it.

        Their columns stand side by side in the attribute :obj:`attr`, after
        the raw features if :obj:`cat` is true. ``data.propagated`` lists this
        attribute.
        """
        rows = self._rows(data, 4)
        x = data[self.attr]
        if x.layout != torch.strided:
            x = x.to_dense()
        parts = [x, *rows] if self.cat else rows
        # Written in place, part by part, so that rows are not held twice.
        out = x.new_empty(x.size(0), sum(part.size(1) for part in parts))
        at = 0
        for part in parts:
            out[:, at : at + part.size(1)] = part
            at += part.size(1)
        data[self.attr] = out
        mark(data, self.attr)
        return data

    def report(self, delta: float | None = None) -> AggregationReport:
        r"""Return the privacy guarantee so far, with every assumption.

        Args:
            delta (float, optional): the :math:`\delta` for which epsilon is
                stated; by default that of the budget. (default: :obj:`None`)
        """
        if not self._num_nodes:
            raise RuntimeError('transform data first: nothing was released')
        if delta is None:
            delta = self.delta
        if delta is None and self.engine is not None:
            delta = self.engine.target_delta
        if delta is None:
            raise ValueError("'delta' needs to be given if there is no target")
        delta, engine = check_delta(delta), self.engine
        if engine is None:
            spent = self._spent(delta)
        else:
            spent = {
                'epsilon': engine.get_epsilon(delta),
                'delta': delta,
                'target_epsilon': engine.target_epsilon,
                'mu': math.hypot(*self._through_engine),
                'releases': len(self._through_engine),
                'num_nodes': self._num_nodes,
                'seeded': self.seeded or engine.seeded,
                'ledger_head': engine.ledger_head,
            }
        return make_report(
            self.relation,
            **spent,
            mu_aggregation=spent['mu'],
            mu_others=self._others,
            noise_stds=self.noise_stds,
            rho=self._rho,
            raw_columns=self.cat,
            predictions=engine is not None,
            provenance=provenance(
                transform=repr(self), engine=engine is not None
            ),
        )

    def __repr__(self) -> str:
        known = self.relation
        measure = f'{self.measure} of {self.measure.key}'
        return described(
            self,
            adjacency=known.adjacency,
            mu=self.mu if self.limit != self.mu else None,
            neighboring=None
            if known.adjacency == 'edge'
            else known.neighboring,
            insecure_seed=self.seed,
            directed=known.directed,
            max_degree=known.max_degree,
            measure=measure if known.adjacency == 'feature' else None,
            cat=self.cat,
            **dict.fromkeys(('engine', 'ledger', 'ledger_head')),
        )
