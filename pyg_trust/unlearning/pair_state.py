r"""The data of a link classifier's state: its training rows are pairs.

Every edge is a positive pair, once. Every name :math:`u` has :math:`k`
negative pairs, with the names :math:`h(u, j) \bmod N_0`, if both ends are
there and differ; they never look at edges. So the list is a function of the
present graph: what leaves takes its own pairs along, and moves no other.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from pyg_trust import rng
from pyg_trust._checks import check_integer
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import NodeIds, Part
from pyg_trust.unlearning.heads import Gradient, targets
from pyg_trust.unlearning.node_parts import Change, Edit, Pairs, Settings
from pyg_trust.unlearning.node_state import NodeState
from pyg_trust.unlearning.sums import Sums

_NONE = torch.empty(0, dtype=torch.int64)


class PairState(NodeState):
    """Graph, features and pairs; see :class:`.NodeState`.

    A pair has a key in ``names``: :math:`u N_0 + v` of an edge :math:`u < v`,
    :math:`N_0^2 + u k + j` of a negative one, -1 of one that was dropped.
    """

    pairs: Pairs
    levels: Sums
    Z: Tensor

    def __init__(
        self,
        settings: Settings,
        classes: tuple[int, ...],
        graph: CSRGraph,
        x: Tensor,
        y: Tensor,
        *held: Any,
        ids: NodeIds | None = None,
    ) -> None:
        # No node has a label.
        none = torch.full_like(y, -1)
        # The arguments by position end with the ids.
        given = held if ids is None else (None, None, False, False, ids)
        super().__init__(settings, classes, graph, x, none, *given)
        assert settings.pairs is not None
        self.pairs = settings.pairs
        if self.pairs.names > graph.num_nodes:
            _choosers(*self.pairs[:3])
        self.cuts: tuple[Tensor, ...] = ()
        keys = torch.cat([self._edges(), self._negatives()])
        self.ends = self._ends(keys)
        self.names, self.y = keys, self._signs(keys)
        self.Y = targets(self.y, 2, settings.head)
        self.Z = self._fresh(torch.arange(keys.numel()))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of columns of a pair, and of outputs."""
        return self.levels.num_columns + 1, 1

    def margins(self, weight: Tensor, nodes: Tensor) -> Tensor:
        """Compute the margins of pairs, their ends int64 ``[2, k]``."""
        parts = nodes.split(2**16, dim=1)
        made = [self._rows(part) @ weight for part in parts]
        return torch.cat([weight.new_empty((0, 1)), *made])

    # Pairs ##################################################################

    def _edges(self) -> Tensor:
        source, target = self.graph.edge_index()
        once = source < target
        return source[once] * self.pairs.names + target[once]

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
        u, v = self._ends(keys)
        known = (u < n) & (v < n) & (u != v)
        known[known.clone()] = self.graph.alive[
            torch.stack([u, v])[:, known]
        ].all(0)
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
        if 'ends' not in vars(self):
            # The base's start: no node is trained on.
            return self.levels.rows(_NONE)
        return self._rows(self.ends[:, rows])

    # Updates ################################################################

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
                f"'nodes' needs names below 'num_names', {self.pairs.names}: "
                'give more to fit()'
            )
        super().play(edit)
        if not edit.part.arcs:
            return
        before, u, v = self.cuts, *_arcs(edit.part)
        keys = torch.minimum(u, v) * self.pairs.names + torch.maximum(u, v)
        self.journal.note(lambda: setattr(self, 'cuts', before))
        self.cuts = (*before, keys)

    def follow(self, W: Tensor, old: Gradient | None) -> Change:
        """Apply pending edits to the pairs and the gradient.

        Refuses to leave no edge.
        """
        was, before, graph = self.pending, self.mu, self.graph
        named = torch.cat([_NONE, *was.named]).unique()
        features = torch.cat([_NONE, *was.features])
        sealed = torch.cat([*was.sealed, named])
        cuts, count = self.cuts, self.pairs.names
        self._wait(was._replace(first=graph.num_nodes, **_EMPTY))
        self.journal.note(lambda: setattr(self, 'cuts', cuts))
        self.cuts = ()
        touched = self.levels.touched(named, features)
        hit = torch.zeros(graph.num_nodes, dtype=torch.bool)
        hit[slice(None) if touched is None else touched] = True
        # Edges that left, but for those that came again.
        keys = torch.cat([_NONE, *cuts]).unique()
        lost = keys[
            ~graph.has_edges(torch.stack([keys // count, keys % count]))
        ]
        gone = torch.isin(self.names, lost)
        gone |= ~graph.alive[self.ends].all(0)
        dropped = ((self.names >= 0) & gone).nonzero().view(-1)
        goals = self.Y.index_select(0, dropped)
        self._drop(dropped)
        edges = torch.cat([_NONE.view(2, 0), *was.edges], 1).sort(0).values
        edges = edges[:, (edges[0] < edges[1]) & graph.alive[edges].all(0)]
        edges = edges[:, graph.has_edges(edges)]
        come = (edges[0] * count + edges[1]).unique()
        if graph.num_nodes > was.first:
            come = torch.cat([come, self._negatives(was.first)])
        come = come[~torch.isin(come, self.names)]
        self._append(come)
        there = self.names >= 0
        kept = (there & hit[self.ends].any(0)).nonzero().view(-1)
        new = torch.arange(self.names.numel() - come.numel(), there.numel())
        kept = torch.cat([kept, new]).unique()
        goals = torch.cat([self.Y.index_select(0, kept), goals])
        self.y[new] = self._signs(come)
        self.Y[new] = targets(self.y[new], 2, self.settings.head)
        if not bool((self.y == 1).any()):
            raise ValueError('the request would leave no edge to train on')
        gradient = self._moved(kept, dropped, goals, W, old, before)
        return Change(int(hit.sum()), kept.numel(), gradient, sealed)

    def _append(self, keys: Tensor) -> None:
        # Rows of nothing, for what is written next; new tensors, which an
        # undone edit forgets.
        k = keys.numel()
        made = {'names': torch.cat([self.names, keys])}
        made['ends'] = torch.cat([self.ends, self._ends(keys)], 1)
        for name, value in (('y', -1), ('Y', 0), ('Z', 0)):
            held = getattr(self, name)
            made[name] = held
            if k:
                more = held.new_full((k, *held.shape[1:]), value)
                made[name] = torch.cat([held, more])
        self._replace(**made)

    def _drop(self, rows: Tensor) -> None:
        for name, value in (('y', -1), ('names', -1), ('Y', 0)):
            tensor = getattr(self, name)
            self.journal.rows(tensor, rows)
            tensor.index_fill_(0, rows, value)
        ends = self.ends.clone()
        ends[:, rows] = 0
        self._replace(ends=ends)

    def compact(self) -> None:
        """Delete the dropped pairs; this can't be undone."""
        keep = self.names >= 0
        parts = {n: getattr(self, n)[keep] for n in ('names', 'y', 'Y', 'Z')}
        # All at once: what fails before leaves no rows of two lengths.
        vars(self).update(parts, ends=self.ends[:, keep], square=None)

    # Looking back ###########################################################

    def scratch(self) -> tuple['PairState', Tensor]:
        """Recompute a state of the present graph, with the same names."""
        graph = self.graph
        count = graph.num_nodes
        made = CSRGraph.from_edge_index(graph.edge_index(), count)
        held = graph.alive, self.featureless
        none = torch.full((count,), -1)
        fresh = PairState(
            self.settings, self.classes, made, self.levels.x, none, *held
        )
        return fresh, graph.alive.nonzero().view(-1)

    def every(self) -> Tensor:
        """Return the ends of all training pairs."""
        return self.ends[:, self.names >= 0]

    def error(self, fresh: NodeState, ids: Tensor) -> tuple[float, float]:
        """Compute the error of features and pairs, with 0 as its bound."""
        assert isinstance(fresh, PairState)
        now = self.scratch()[0] if self.num_pending else fresh
        gap = self.levels.rows(ids) - now.levels.rows(ids)
        error = float(gap.abs().max())
        (mine, Z), (other, anew) = self._sorted(), fresh._sorted()
        if not torch.equal(mine, other):
            return float('inf'), 0.0
        return max(error, float((Z - anew).abs().max())), 0.0

    def _sorted(self) -> tuple[Tensor, Tensor]:
        there = (self.names >= 0).nonzero().view(-1)
        order = there[self.names[there].argsort()]
        return self.names[order], self.Z[order]

    def _labels(self, count: int) -> Tensor:
        return torch.full((count,), -1)

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


_EMPTY: dict[str, Any] = {
    'labels': {},
    **dict.fromkeys(('named', 'features', 'sealed', 'edges'), ()),
}


def _arcs(part: Part) -> Tensor:
    return torch.tensor(part.arcs, dtype=torch.int64).view(-1, 2).t()
