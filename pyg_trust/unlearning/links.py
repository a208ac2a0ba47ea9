r"""Link classifiers with certified removal.

Features are propagated, :math:`z = \sum_i w_i P^i x`, and a regularised
logistic head is trained on pairs, :math:`\phi = [c\, z_u \odot z_w, 1]`: every
edge against pairs of nodes that never depend on edges. All of
:mod:`pyg_trust.unlearning.certified` holds with a pair for a training row. An
edge that leaves takes its message and its example along; a node takes all
pairs it is in.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_trust import rng
from pyg_trust._checks import (
    Count,
    Natural,
    Positive,
    check_integer,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._checks.graphs import check_examples, plain_index
from pyg_trust._moved import renamed, retired
from pyg_trust.agp.measures import Measure
from pyg_trust.files.commit import editing, synchronized
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import NodeIds
from pyg_trust.unlearning.certified import probabilities
from pyg_trust.unlearning.heads import targets
from pyg_trust.unlearning.node import NodeClassifier
from pyg_trust.unlearning.node_releases import read_features
from pyg_trust.unlearning.node_rows import (
    Edit,
    Moves,
    NodeState,
    Pairs,
    Pending,
    Settings,
)
from pyg_trust.unlearning.sums import BOUND, Sums, edges_of
from pyg_trust.verify.claims_removal import ROWS

__all__ = ['LinkClassifier', 'PairState']

# Squares of larger products do not add up in float64.
_MOST = 1e100
_NONE = torch.empty(0, dtype=torch.int64)


class PairState(NodeState):
    r"""Graph, features and pairs; see :class:`.NodeState`.

    Every edge is a positive pair, once. Every node :math:`u` has :math:`k`
    negative pairs, with the nodes :math:`h(u, j) \bmod N_0`, if both ends are
    there and differ; they never look at edges. So the list is a function of
    the present graph: what leaves takes its own pairs along, and moves no
    other. A pair has a number in ``names``: :math:`u N_0 + v` of an edge
    :math:`u < v`, :math:`N_0^2 + u k + j` of a negative one, -1 of one that
    was dropped.
    """

    pairs: Pairs
    levels: Sums
    Z: Tensor

    def _train(self, y: Tensor) -> None:
        assert self.settings.pairs is not None
        self.pairs = self.settings.pairs
        if self.pairs.names > self.graph.num_nodes:
            _choosers(*self.pairs[:3])
        # The edges that left since the last fit, by number.
        self.cuts: tuple[Tensor, ...] = ()
        u, v = self.graph.edge_index()
        edges = (u * self.pairs.names + v)[u < v]
        self.names = torch.cat([edges, self._negatives()])
        self.ends = self._ends(self.names)
        self.y = self._signs(self.names)
        self.Y = targets(self.y, 2)
        self.Z = self._fresh(torch.arange(self.names.numel()))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of columns of a pair, and of outputs."""
        return self.levels.num_columns + 1, 1

    def margins(self, weight: Tensor, nodes: Tensor) -> Tensor:
        """Compute the margins of pairs, their ends int64 ``[2, k]``."""
        parts = nodes.split(2**16, dim=1)
        made = [self._rows(part) @ weight for part in parts]
        return torch.cat([weight.new_empty((0, 1)), *made])

    def _negatives(self, first: int = 0) -> Tensor:
        # Those with an end whose row is not below `first`, ascending.
        (count, k, *_), n = self.pairs, self.graph.num_nodes
        # Pairs of new rows, and those of others that chose them: a newcomer
        # costs as much as it has pairs, however many may come.
        keys = torch.arange(first * k, n * k)
        if first:
            by_partner, start = _choosers(count, k, self.pairs.seed)
            lo, hi = start[first], start[n]
            keys = torch.cat([by_partner[lo:hi], keys]).unique()
            keys = keys[keys < n * k]
        keys = keys + count**2
        ends = self._ends(keys)
        known = (ends < n).all(0) & (ends[0] != ends[1])
        known[known.clone()] = self.graph.alive[ends[:, known]].all(0)
        return keys[known]

    def _ends(self, keys: Tensor) -> Tensor:
        count, k, seed, _ = self.pairs
        row = (keys - count**2).clamp(min=0)
        partner = rng.derive_each(seed, row) % count
        is_edge = keys < count**2
        u = torch.where(is_edge, keys // count, row // k)
        return torch.stack([u, torch.where(is_edge, keys % count, partner)])

    def _signs(self, keys: Tensor) -> Tensor:
        return (keys < self.pairs.names**2).long()

    def _rows(self, pairs: Tensor) -> Tensor:
        nodes, place = pairs.unique(return_inverse=True)
        z = self.levels.rows(nodes)
        made = z.new_ones((pairs.size(1), z.size(1) + 1))
        part = made[:, :-1]
        torch.mul(z[place[0]], z[place[1]], out=part)
        part *= self.pairs.scale
        return made

    def _fresh(self, rows: Tensor) -> Tensor:
        return self._rows(self.ends[:, rows])

    def play(self, edit: Edit) -> None:
        """Apply an edit to graph and features; leave the pairs."""
        if edit.labels is not None or bool((edit.y >= 0).any()):
            raise ValueError(
                "'labels' can't be given to a classifier of links: its "
                'examples are edges'
            )
        count = self.graph.num_nodes
        count += 0 if edit.x is None else edit.x.size(0)
        if count > self.pairs.names:
            raise ValueError(
                f"'nodes' needs rows below 'num_names', {self.pairs.names}: "
                'give more to fit()'
            )
        super().play(edit)
        if edit.part.arcs:
            ends = edges_of(edit.part.arcs).sort(0).values
            keys = ends[0] * self.pairs.names + ends[1]
            self.cuts = (*self.cuts, keys)

    def _moves(self, was: Pending, touched: Tensor | None) -> Moves:
        graph, count = self.graph, self.pairs.names
        hit = torch.zeros(graph.num_nodes, dtype=torch.bool)
        hit[slice(None) if touched is None else touched] = True
        # Edges that left, but for those that came again.
        keys = torch.cat([_NONE, *self.cuts]).unique()
        ends = torch.stack([keys // count, keys % count])
        gone = torch.isin(self.names, keys[~graph.has_edges(ends)])
        gone |= ~graph.alive[self.ends].all(0)
        gone &= self.names >= 0
        edges = torch.cat([_NONE.view(2, 0), *was.edges], 1).sort(0).values
        edges = edges[:, (edges[0] < edges[1]) & graph.alive[edges].all(0)]
        edges = edges[:, graph.has_edges(edges)]
        come = (edges[0] * count + edges[1]).unique()
        if graph.num_nodes > was.first:
            come = torch.cat([come, self._negatives(was.first)])
        come = come[~torch.isin(come, self.names[~gone])]
        self.cuts = ()
        there = (self.names >= 0) & ~gone
        kept = (there & hit[self.ends].any(0)).nonzero().view(-1)
        dropped = gone.nonzero().view(-1)
        return Moves(int(hit.sum()), dropped, come, self._signs(come), kept)

    def _append(self, keys: Tensor) -> None:
        self.ends = torch.cat([self.ends, self._ends(keys)], 1)
        self._extend(keys)

    def _drop(self, rows: Tensor) -> None:
        self.ends = self.ends.index_fill(1, rows, 0)
        self._clear(rows)

    def _places(self, keep: Tensor) -> dict[str, Tensor]:
        return {'ends': self.ends[:, keep]}

    def _check_members(self, had: Tensor) -> None:
        if not bool((self.y == 1).any()):
            raise ValueError('the request would leave no edge to train on')

    def trains(self, node: int) -> bool:
        """Whether a node has a label: none has."""
        return False

    def every(self) -> Tensor:
        """Return the ends of all training pairs."""
        return self.ends[:, self.names >= 0]

    def _label(self, nodes: Tensor) -> Tensor:
        return torch.full_like(nodes, -1)

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted data and the pending additions, canonically."""
        return {**super().to_dict(), 'num_names': self.pairs.names}

    @classmethod
    def from_dict(
        cls, settings: Settings, classes: tuple[int, ...], held: dict[str, Any]
    ) -> 'NodeState':
        """Rebuild the fitted data from the result of :meth:`to_dict`."""
        count = check_integer('num_names', held['num_names'], 1)
        assert settings.pairs is not None
        pairs = settings.pairs._replace(names=count)
        return super().from_dict(settings._replace(pairs=pairs), classes, held)


@functools.lru_cache(maxsize=2)
def _choosers(count: int, partners: int, seed: int) -> tuple[Tensor, Tensor]:
    # The numbers of negative pairs, sorted by the partner that each chose, and
    # where those of each partner begin. Public: from the seed alone.
    chosen = rng.derive_each(seed, torch.arange(count * partners)) % count
    size = chosen.bincount(minlength=count)
    start = torch.cat([_NONE.new_zeros(1), size.cumsum(0)])
    return chosen.argsort(stable=True), start


class LinkClassifier(NodeClassifier):
    r"""Link predictor that forgets nodes and edges, with a certificate.

    A logistic head is trained on pairs of nodes. Each edge is a positive pair.
    Each node has some negative pairs, with nodes that a hash chooses. A pair's
    features are the elementwise product of its nodes' propagated features.
    Each *release* adds fresh noise to the weights, which are then
    :math:`(\varepsilon, \delta)`-indistinguishable from weights trained on the
    remaining data alone (:mod:`pyg_trust.unlearning.certified`).

    Keep scores of pairs secret: they depend on the present features of both
    nodes, without noise. Runs on the CPU, in float64, with :math:`P (d + 1)`
    numbers in memory for :math:`P` pairs and :math:`d` features. Reduce wide
    features by a public encoder: an SVD of these features would remember
    removed items.

    Args:
        measure (str or Measure): the propagation, :obj:`'sgc'`,
            :obj:`'appnp'`, :obj:`'heat'`, :obj:`'ppr'` or another of
            :mod:`pyg_trust.agp.measures`, but not :obj:`'katz'`.
            (default: :obj:`'sgc'`)
        alpha, t, K (optional): arguments of the measure: the teleport
            probability, the diffusion time and the number of hops.
        bound (float): the largest magnitude that a feature may ever have.
            (default: :obj:`16.0`)
        scale (float): advanced: the factor of the products of features; good
            values are near one over the squared norm of a propagated row.
            Choose it without looking at the data. (default: :obj:`30.0`)
        partners (int): the number of negative pairs of each node.
            (default: :obj:`4`)
        pair_seed (int): advanced: the public seed of negative pairs.
            (default: :obj:`0`)
        weight_decay (float): :math:`\lambda` of the penalty
            :math:`\lambda P \lVert w \rVert^2 / 2`. (default: :obj:`1e-4`)
        release_std (float): the standard deviation of the noise on each
            released weight. (default: :obj:`1e-4`)
        epsilon, delta (float): the guarantee of one release.
            (default: :obj:`1.0`, :obj:`1e-4`)
        encoder (callable, optional): maps the features of each node before the
            propagation, such as a network.
        start_is_public (bool): your statement, needed with an :obj:`encoder`,
            that it never saw the data. (default: :obj:`False`)
        tol (float): advanced: the gradient's norm at which exact solves end.
            (default: :obj:`1e-8`)
        max_pending (int): advanced: the most nodes and edges that may be added
            before a release. (default: :obj:`1_000`)
        seed (int, optional): the seed of the noise, which is then repeatable
            and not private; by default the operating system's randomness.

    Example:
        >>> ring = torch.arange(12)
        >>> edge_index = torch.stack([ring, (ring + 1) % 12])
        >>> edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        >>> data = Data(x=torch.eye(12), edge_index=edge_index)
        >>> model = LinkClassifier(K=1, weight_decay=0.1, seed=0).fit(data)
        >>> report = model.remove(nodes=[3], edges=[(7, 8)])
        >>> report.bound <= report.budget, model.verify().ok
        (True, True)
    """

    _state = PairState
    _procedure = ROWS[1]

    @retired(on_exceed=('refine', 'retrain'))
    @renamed(
        encoder_is_public='start_is_public', levels='K', lam='weight_decay'
    )
    @validated
    def __init__(
        self,
        measure: str | Measure = 'sgc',
        *,
        alpha: float | None = None,
        t: float | None = None,
        K: Natural | None = None,
        bound: Positive = BOUND,
        scale: Positive = 30.0,
        partners: Count = 4,
        pair_seed: Natural = 0,
        weight_decay: Positive = 1e-4,
        release_std: Positive = 1e-4,
        epsilon: Positive = 1.0,
        delta: float = 1e-4,
        encoder: Callable[..., Any] | None = None,
        start_is_public: bool = False,
        tol: Positive = 1e-8,
        max_pending: Natural = 1_000,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            measure,
            alpha=alpha,
            t=t,
            K=K,
            bound=bound,
            weight_decay=weight_decay,
            release_std=release_std,
            epsilon=epsilon,
            delta=delta,
            encoder=encoder,
            start_is_public=start_is_public,
            tol=tol,
            max_pending=max_pending,
            seed=seed,
        )
        if not scale * self.bound**2 <= _MOST:
            raise ValueError(
                f"'scale' needs to be at most {_MOST:g} over the square of "
                f"'bound', {self.bound:g}, or products of rows overflow (got "
                f'{scale:g})'
            )
        pairs = Pairs(0, partners, pair_seed, float(scale))
        self._settings = self._settings._replace(pairs=pairs)

    @editing
    def fit(  # type: ignore[override]
        self, data: Data, *, num_names: int | None = None
    ) -> 'LinkClassifier':
        """Propagate the features, train on pairs, and release weights.

        Removals and updates take ``data.n_id`` if the graph has it, else
        positions. A second fit begins a new ledger.

        Args:
            data (Data): the graph, unweighted and undirected, with ``x`` and
                ``edge_index``, such as the training data of
                ``RandomLinkSplit``.
            num_names (int, optional): the largest number of nodes in total,
                those of :obj:`data` and all added later, even if removed; by
                default no node can be added.

        Raises:
            TypeError, ValueError: if the graph or its features can't be used,
                it has no edge, or :obj:`num_names` is below its number of
                nodes.
        """
        graph = CSRGraph.from_data(data).to('cpu')
        if graph.is_weighted or not graph.is_undirected:
            raise ValueError(
                "'data' needs to be undirected and unweighted (got others; "
                'torch_geometric.utils.to_undirected makes it so)'
            )
        if not bool((graph.row != graph.col).any()):
            raise ValueError("'data' needs to have an edge (got none)")
        check_examples(data, graph.row, graph.col, graph.num_nodes)
        n = graph.num_nodes
        count = n if num_names is None else num_names
        count = check_integer('num_names', count, n)
        x = self._encoded(read_features(data))
        assert self._settings.pairs is not None
        pairs = self._settings.pairs._replace(names=count)
        if count * (count + pairs.partners) >= 2**63:
            raise ValueError(
                "'num_names' needs to be smaller, or 'partners': their pairs "
                f'need numbers below 2**63 (got {count} and {pairs.partners})'
            )
        settings = self._settings._replace(pairs=pairs)
        none = torch.full((n,), -1)
        ids = NodeIds.of_data(data)
        self._begun(PairState(settings, (0, 1), graph, x, none, ids=ids))
        return self

    @synchronized
    def decision_function(self, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        """Compute the logits of pairs; the larger, the likelier the link.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``: the nodes of
                each pair, as positions in the data of :meth:`fit`; nodes that
                were added later follow in their order.

        Returns:
            Tensor: float64, ``[num_pairs]``; NaN if a node was removed.

        Raises:
            ValueError: if a node was never in the graph.
        """
        model = self._fitted
        pairs = plain_index('edge_label_index', edge_label_index).cpu()
        alive = model.data.graph.alive
        check_range('edge_label_index', pairs, alive.numel(), 'the nodes')
        there = alive[pairs].all(0)
        found = model.weight.new_full((pairs.size(1),), torch.nan)
        margin = model.data.margins(model.weight, pairs[:, there])
        found[there] = margin.view(-1)
        return found

    def score(self, edge_label_index: Tensor, edge_label: Tensor) -> float:  # type: ignore[override]
        """Return the accuracy on pairs without removed nodes.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``: the nodes of
                each pair, as in :meth:`decision_function`.
            edge_label (Tensor): ``[num_pairs]``: 1 for links, else 0.

        Raises:
            ValueError: if every pair has a removed node.
        """
        found = self.predict(edge_label_index)
        dtypes = torch.int64, torch.float32, torch.float64
        check_tensor('edge_label', edge_label, dtypes, (found.numel(),))
        there = found >= 0
        if not bool(there.any()):
            raise ValueError(
                "'edge_label_index' needs to have a pair that is there"
            )
        right = found[there] == edge_label.cpu()[there]
        return float(right.double().mean())

    def predict_on(self, data: Data) -> Tensor:
        """Raise an error: fit another model to predict for another graph."""
        raise TypeError(
            "'predict_on' is for classifiers of nodes: fit a LinkClassifier "
            'to the other graph'
        )

    def predict(self, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        """Predict links: int64, ``[num_pairs]``: 0, 1, or -1 if removed.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``: the nodes of
                each pair, as in :meth:`decision_function`.
        """
        return self._labels(self.decision_function(edge_label_index))

    def predict_proba(self, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        """Predict the probabilities of no link and of a link.

        They assume that links are as frequent as among the pairs of the fit.

        Args:
            edge_label_index (Tensor): int64, ``[2, num_pairs]``: the nodes of
                each pair, as in :meth:`decision_function`.

        Returns:
            Tensor: float64, ``[num_pairs, 2]``; NaN if a node was removed.
        """
        return probabilities(self.decision_function(edge_label_index))

    def _config(self) -> dict[str, Any]:
        assert self._settings.pairs is not None
        pairs = self._settings.pairs._asdict()
        del pairs['names']
        return {**super()._config(), 'pairs': pairs}
