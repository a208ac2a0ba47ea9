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
    check_instance,
    check_positive,
    validated,
)
from pyg_trust._checks.graphs import warn_of_delta
from pyg_trust._describe import described
from pyg_trust.account import (
    PaidNoise,
    ReleaseAccount,
    TrainingAccount,
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

#: The propagation of ``'feature'``: one and two hops, symmetric.
TWO_HOPS = Measure(0.5, 0.5, (0.0, 0.5, 0.5), name='two_hops')
_LOCK = threading.RLock()


@validated
@functional_transform('private_agp')
class PrivateAGP(Releasing, BaseTransform):
    r"""Release noisy sums over neighbours, once, on an account.

    .. math::
        S_k = W\, m(S_{k-1}) + \mathcal{N}(0, s^2 I), \quad S_0 = X

    for :math:`k = 1, \ldots, K` (functional name: :obj:`private_agp`), with
    messages :math:`m` of norm 1 (:func:`~pyg_trust.privacy.messages`) and
    weights that bound what one edge or node can move
    (:func:`~pyg_trust.privacy.hop_sensitivity`). All else is post-processing:
    training on the released rows, heads and any number of predictions cost
    nothing, as long as they read no edges.

    .. code-block:: python

        transform = PrivateAGP(
            hops=1, relation='edge', epsilon=2.0, delta=1e-6,
            ledger='graph.ledger',
        )
        data = transform(data)
        print(transform.report().explain())

    Take ``'edge'`` where links are the secret and features are known;
    ``'node'`` where a person's own record is (features, label, the list of
    those it names), at any degree; ``'node_incident'`` where a node with all
    its edges must leave no trace, up to a degree; ``'feature'`` where edges
    are public.

    The same graph and features get the same rows again, without cost. Other
    ones are another release, and need budget. Kept rows are in memory: a new
    process with the ledger spends anew, or is refused.

    Args:
        hops (int): the number of hops :math:`K`; 1 for ``'feature'``, where
            the measure sets the range. (default: :obj:`1`)
        relation (str): the neighbouring relation: ``'edge'``, ``'node'``,
            ``'node_incident'`` or ``'feature'``. (default: :obj:`'edge'`)
        epsilon (float, optional): the budget of all releases. One release
            spends all of it, unless :obj:`mu` is given. (default: :obj:`None`)
        delta (float, optional): the :math:`\delta` of the budget; below one
            over ten times the number of edges (a public power of ten) for
            ``'edge'``, of nodes otherwise. Needed, unless there is an
            :obj:`engine` with a budget. (default: :obj:`None`)
        mu (float, optional): the :math:`\mu` of one release.
            (default: :obj:`None`)
        engine (PrivacyEngine, optional): private training whose account the
            release goes on, for ``'feature'`` in the form ``'replace'``; with
            :obj:`mu`. (default: :obj:`None`)
        form (str, optional): ``'replace'`` (a record against any other:
            somebody's features or label, changed) or ``'withdraw'`` (against
            an empty one: half the sensitivity, and no answer to what the
            record says). By default ``'withdraw'`` for ``'node_incident'``,
            else ``'replace'``. (default: :obj:`None`)
        directed (bool): whether edges are arcs; the data have to be so, and
            that they are has to be public: a graph all of whose arcs have one
            back is refused, in case an edge was meant, which costs
            :math:`\sqrt{2}` times as much. (default: :obj:`False`)
        max_degree (int, optional): the largest degree :math:`D`; required for
            ``'node_incident'``, optional for ``'node'`` (1 by default).
        measure (Measure, optional): the linear propagation for ``'feature'``;
            by default :math:`(P + P^2) / 2` with :math:`P = D^{-1/2} A
            D^{-1/2}` and without a node's own message. (default: :obj:`None`)
        cat (bool, optional): whether the output begins with the raw rows. By
            default only for ``'edge'``, which assumes that they are known; the
            other relations keep them private. (default: :obj:`None`)
        attr (str): the attribute to sum, float32 or float64 with a row per
            node. (default: :obj:`'x'`)
        seed (int, optional): the seed of the noise, to repeat an experiment;
            the output is then not private. (default: :obj:`None`)
        ledger (str or Path, optional): the path of a file for the account.
            (default: :obj:`None`)
        ledger_head (str, optional): as in
            :class:`~pyg_trust.privacy.PrivacyEngine`. (default: :obj:`None`)

    Raises:
        TypeError, ValueError: on a wrong argument; when called, on data whose
            release can't be accounted for. Nothing is spent then.
        BudgetExceededError: when called, if the budget does not allow it.
            Nothing is spent then.

    Example:
        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> data = Data(x=torch.eye(3), edge_index=edges)
        >>> transform = PrivateAGP(relation='edge', epsilon=1.0, delta=1e-3)
        >>> tuple(transform(data).x.shape)
        (3, 6)
        >>> round(transform.report().mu, 3)
        0.388
    """

    advice = 'Transform first, and save the data'

    def __init__(
        self,
        hops: Count = 1,
        relation: str = 'edge',
        *,
        epsilon: Positive | None = None,
        delta: Fraction | None = None,
        mu: Positive | None = None,
        engine: TrainingAccount | None = None,
        form: str | None = None,
        directed: bool = False,
        max_degree: Count | None = None,
        measure: Measure | None = None,
        cat: bool | None = None,
        attr: str = 'x',
        seed: int | None = None,
        ledger: str | Path | None = None,
        ledger_head: str | None = None,
    ) -> None:
        self.hops = hops
        self.relation = make_relation(relation, form, directed, max_degree)
        self.cat = relation == 'edge' if cat is None else cat
        self.attr = attr
        self._check_measure(measure)
        self.engine = engine
        self._check_budget(epsilon, delta, mu, engine, ledger)
        self._set_account(ledger, ledger_head, seed)
        self._kept: dict[str, list[Tensor]] = {}
        self._num_nodes = 0
        self._others, self._rho = 0.0, 0.0
        self._through_engine: list[float] = []

    def _check_measure(self, measure: Measure | None) -> None:
        feature = self.relation.name == 'feature'
        if measure is not None:
            check_instance('measure', measure, Measure)
            if not feature:
                raise ValueError(
                    "'measure' is for the relation 'feature' (got "
                    f'{self.relation.name!r}): a linear chain of sums has no '
                    'bounded sensitivity in edges'
                )
        if feature and self.hops != 1:
            raise ValueError(
                "'hops' is for sums: under 'feature', 'measure' has the "
                f'levels (got {self.hops})'
            )
        self.measure = measure if measure is not None else TWO_HOPS
        self._own = measure is not None

    def _check_budget(
        self,
        epsilon: float | None,
        delta: float | None,
        mu: float | None,
        engine: Any,
        ledger: Any,
    ) -> None:
        if mu is not None:
            check_positive('mu', mu)
        if epsilon is not None:
            check_positive('epsilon', epsilon)
        if engine is not None:
            if not hasattr(engine, 'spend_gaussian'):
                raise TypeError(
                    "'engine' needs to be a PrivacyEngine (got "
                    f'{type(engine).__name__})'
                )
            relation = self.relation
            if (relation.name, relation.form) != ('feature', 'replace'):
                raise ValueError(
                    "'engine' counts for the relation 'feature' in the form "
                    f"'replace' (got {relation.name!r}, {relation.form!r}): "
                    'training on walks protects no edge and no presence, and '
                    'two relations have no account together'
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
        if delta is None and engine is None:
            raise ValueError("'delta' needs to be given")
        self.epsilon = None if epsilon is None else float(epsilon)
        self.delta = None if delta is None else check_delta(delta)
        self.limit: float | None = None
        if epsilon is not None and delta is not None:
            self.limit = gaussian_mu_for(epsilon, delta)
        self.mu = float(mu) if mu is not None else self.limit
        assert self.mu is not None
        if self.limit is not None and self.mu > self.limit:
            raise ValueError(
                f"'mu' needs to be at most {self.limit:.6g}, which is all of "
                f'the budget (got {mu})'
            )

    @property
    def noise_stds(self) -> tuple[float, ...]:
        """Standard deviation of the noise of each hop.

        Under ``'feature'`` a release makes it larger by what rounding adds to
        the sensitivity, a millionth or so.
        """
        assert self.mu is not None
        each = self.mu / math.sqrt(self.hops)
        std = self.relation.sensitivity / each
        return (widened(std, self._rho) if self._rho else std,) * self.hops

    def released(self, data: Data) -> list[Tensor]:
        r"""Noisy sums :math:`S_1, \ldots, S_K`, float64.

        Args:
            data (Data): the graph.

        Returns:
            list[Tensor]: the sums, computed now or kept from the first call;
            rounded to the dtype of the features, in which they are kept.
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
        if self.relation.name == 'feature' and graph.num_nodes > MAX_COLUMNS:
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
        assert self.mu is not None
        # Check the whole cost first: no budget is spent on half of the hops.
        if account is not None:
            account.check(self.mu)
            number, spend = len(account.lines), account.spend
        else:
            assert self.engine is not None
            number, spend = self.engine.steps, self._through
        each = [self.mu / math.sqrt(self.hops)] * self.hops
        paid = PaidNoise(self._source(number), spend, each)
        if self.relation.name == 'feature':
            self._rho, scales = 0.0, columns(graph, self.measure)
            self._rho = rounding_share(
                *(graph, x.size(1), self.noise_stds[0]),
                *(self.relation.sensitivity, self.measure),
                own=self._own,
                scales=scales,
            )
            return [
                scaled_propagate(
                    *(graph, x, self.measure, self.noise_stds[0], paid),
                    own=self._own,
                    scales=scales,
                )
            ]
        weights = None
        if self.relation.name == 'node':
            weights = energy_weights(graph, self.relation.max_degree or 1)
        return private_propagate(
            graph,
            x,
            self.noise_stds,
            paid,
            self.relation.name,
            weights,
            dtype=x.dtype,
        )

    def _account_of(self, num_nodes: int) -> ReleaseAccount | None:
        first = self._account is None
        account = None if self.engine is not None else self._open(num_nodes)
        if account is not None and first:
            self._others = account.mu
        if self._num_nodes and self._num_nodes != num_nodes:
            raise ValueError(
                f"'data' needs to have the {self._num_nodes} nodes of the "
                f'first release (got {num_nodes}): other data need another '
                'account'
            )
        self._num_nodes = num_nodes
        return account

    def _through(self, mu: float) -> None:
        assert self.engine is not None
        self.engine.spend_gaussian(mu)
        self._through_engine.append(mu)

    def forward(self, data: Data) -> Data:
        """Return the graph with released rows.

        ``data.propagated`` names the attribute that holds them.
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
            delta (float, optional): :math:`\delta`; by default that of the
                budget. (default: :obj:`None`)
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
            hops=self.hops,
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
            relation=known.name,
            mu=self.mu if self.limit != self.mu else None,
            form=None if known.name == 'edge' else known.form,
            directed=known.directed,
            max_degree=known.max_degree,
            measure=measure if known.name == 'feature' else None,
            cat=self.cat,
            **dict.fromkeys(('engine', 'ledger', 'ledger_head')),
        )
