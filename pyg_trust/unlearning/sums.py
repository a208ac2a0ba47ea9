"""Propagated features of a changing graph, as exact sums of integers.

What nodes send is rounded to a grid, so that sums are integers and do not
depend on the order of edits: the state is that of a fresh start on the present
graph and features, to the bit. ``docs/theory/integer_sums.rst`` has the
formulas, the bound of the error and the range.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import check_instance, check_range
from pyg_trust.agp.measures import Measure
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._building import own_loops, transposed, with_loops
from pyg_trust.graph.ragged import pointer, ranges
from pyg_trust.ops import OpenRows
from pyg_trust.removal import NodeIds, NotThere, Part
from pyg_trust.update import directs

__all__ = [
    'BITS',
    'BOUND',
    'Step',
    'Sums',
    'Undo',
    'check_directed',
    'check_measure',
    'edges_of',
    'limits',
    'put_back',
    'reads_of',
]

#: What takes an edit back, the last step first; each step may be run twice.
Undo = list[Callable[[], object]]

BITS = 40
BOUND = 16.0
# Treat all rows as touched if more than this share of the entries is.
WHOLE_ABOVE = 1 / 3
# Rows of sums that an event may change, in the mean: about what a call costs.
WRITES = 96

_CUT, _JOIN, _GO, _COME, _CHANGE = range(5)
_ROWS, _COL, _FREE, _BACK = 0, 1, 2, 3
_CLOCK, _FLAGS, _X, _SUMS, _RANK, _LIMIT, _HOW = range(6, 13)
_NAMES, _EDITS, _BROKEN = range(3)
_NONE = torch.empty(0, dtype=torch.int64)
_NO_EDGES = torch.empty((2, 0), dtype=torch.int64)
_KINDS = [torch.tensor([[kind]]) for kind in range(5)]
_ALL = 127
_LIVE_BUILD, _LIVE_MARK, _LIVE_ROWS, _LIVE_NET, _LIVE_EDIT = (
    getattr(torch.ops.pyg_trust, f'live_{name}').default
    for name in ('build', 'mark', 'rows', 'net', 'edit')
)


class Step(NamedTuple):
    """One edit of a graph: removals, then additions, then changes.

    Removed nodes and edges, features of added nodes, added edges, and nodes,
    each once, with their new features.
    """

    gone: Tensor = _NONE
    cut: Tensor = _NO_EDGES
    new: Tensor | None = None
    edges: Tensor = _NO_EDGES
    nodes: Tensor = _NONE
    x: Tensor | None = None


class Sums:
    """Unweighted graph, features and the sums of what nodes receive.

    On the CPU, without duplicate edges. ``bound`` is the largest magnitude of
    a feature, now or later, and ``bits`` the precision of the grid. ``reads``
    is the number of rows read for each event, by default that of
    :func:`reads_of`; it changes no result. ``gone`` are rows of removed nodes.
    """

    def __init__(
        self,
        graph: CSRGraph,
        x: Tensor,
        measure: Measure,
        *,
        bound: float = BOUND,
        bits: int = BITS,
        reads: float | None = None,
        directed: bool = False,
        gone: Tensor = _NONE,
    ) -> None:
        check_measure(measure)
        if math.log2(bound) + bits > 51:
            raise ValueError(
                "'bits' needs 2^bits * bound <= 2^51 "
                f'(got bits={bits}, bound={bound})'
            )
        self.measure, self.bound, self.bits = measure, bound, bits
        self.undirected = graph.is_undirected and not directed
        #: The ids of the rows, for errors.
        self.ids = NodeIds()
        n, listed = graph.num_nodes, (graph.rowptr, graph.col32)
        flags = torch.ones((2, n), dtype=torch.bool)
        flags[0, gone] = False
        flags[1] = own_loops(*listed)
        if measure.self_loops:
            # Removed nodes have no loop.
            has = flags[1] | ~flags[0]
            listed = with_loops(*listed, has, False)[:2]
        rows = _pooled(*listed)
        back = rows
        if not self.undirected:
            back = _pooled(*transposed(*listed, False)[:2])
        kept = max(measure.K - 1, 0)
        self._reads = reads
        how = (measure.a, measure.b, 2.0**bits)
        self._weights = torch.tensor(measure.weights, dtype=torch.float64)
        self._state = [
            *rows,
            *back,
            torch.tensor([n, 0, 0]),
            flags,
            x.clone(memory_format=torch.contiguous_format),
            torch.empty((kept, n, x.size(1)), dtype=torch.int64),
            torch.zeros(n, dtype=torch.int8),
            torch.empty(0, dtype=torch.int8),
            torch.tensor(
                [*how, measure.along, measure.self_loops], dtype=torch.float64
            ),
        ]
        self._check_features(x)
        most = int(self.receiving.length.max()) if n else 0
        if most >= self._most(n):
            raise self._too_many('a node', 'graph')
        self._build()

    @property
    def num_nodes(self) -> int:
        """The number of rows, those of removed nodes included."""
        return self._state[_CLOCK].tolist()[_NAMES]

    @property
    def num_columns(self) -> int:
        """The number of columns of the features."""
        return self._state[_X].size(1)

    @property
    def x(self) -> Tensor:
        """The features, with zeros for removed nodes."""
        return self._state[_X][: self.num_nodes]

    @property
    def alive(self) -> Tensor:
        """Mask of the present nodes: bool."""
        return self._state[_FLAGS][0, : self.num_nodes]

    @property
    def degree(self) -> Tensor:
        """The number of edges that leave each node: int64."""
        return self._state[_ROWS][1, : self.num_nodes]

    @property
    def own_loop(self) -> Tensor:
        """Bool: the nodes with a self-loop of their own."""
        return self._state[_FLAGS][1, : self.num_nodes]

    @property
    def sending(self) -> OpenRows:
        """Rows by sender: row :math:`v` lists the receivers of :math:`v`."""
        return self._open(_ROWS if self.measure.along else _BACK)

    @property
    def receiving(self) -> OpenRows:
        """Rows by receiver: row :math:`v` lists the senders to :math:`v`."""
        return self._open(_BACK if self.measure.along else _ROWS)

    @property
    def leaving(self) -> OpenRows:
        """Row :math:`v` lists where edges go from :math:`v`."""
        return self._open(_ROWS)

    def _most(self, names: int) -> float:
        # The degree at which a sum over `names` nodes may leave 62 bits.
        room = 2.0 ** (62 - self.bits) / self.bound
        if self.undirected or not self.measure.along:
            return room
        # With b = 1 a node divides its value among its receivers, so that the
        # sum is at most the value.
        if self.measure.b == 1 and names < room / 2:
            return math.inf
        return room ** (1 / max(self.measure.K, 1))

    @property
    def error_bound(self) -> float:
        """Bound of all rows' error in the Frobenius norm, after rounding."""
        measure, unit = self.measure, 2.0**-53
        terms = self.receiving.length.double()
        power = self.degree.clamp(min=1).double()
        recv = power**-measure.a
        growth = float((terms * recv * power**-measure.b).max())
        grid, size = 2.0**-self.bits, self.bound
        last = torch.finfo(self._state[_X].dtype).eps
        # Powers are off by four units each, products by one.
        error = 0.5 + 10 * unit * size / grid
        entry = last * measure.weights[0] * size * torch.ones_like(recv)
        for weight in measure.weights[1:]:
            entry += weight * recv * terms * (error * grid + 2 * last * size)
            size *= growth
            error = growth * error + 0.5 + 12 * unit * size / grid
        return 1.001 * float(entry.norm()) * math.sqrt(self.num_columns)

    def edge_index(self) -> Tensor:
        """The edges by row, without added self-loops: ``[2, m]``."""
        length, col = self.entries()
        row = torch.arange(self.num_nodes).repeat_interleave(length)
        edges = torch.stack([row, col.long()])
        if self.measure.self_loops:
            edges = edges[:, (row != col) | self.own_loop[row]]
        return edges

    def entries(self) -> tuple[Tensor, Tensor]:
        """The degrees, and the neighbours of all nodes, row after row."""
        start, length, col = self.leaving
        return length, col[ranges(start, length)]

    def has_edges(self, edges: Tensor) -> Tensor:
        """Return which edges exist; self-loops of the measure do not count."""
        n, own = self.num_nodes, self.own_loop.numpy()
        start, length, col = (part.numpy() for part in self.leaving)

        def has(u: int, v: int) -> bool:
            if not (0 <= u < n and 0 <= v < n) or u == v:
                return u == v and 0 <= u < n and bool(own[u])
            row = col[start[u] : start[u] + length[u]]
            at = row.searchsorted(v)
            return bool(at < row.size and row[at] == v)

        there = [has(u, v) for u, v in edges.t().tolist()]
        return torch.tensor(there, dtype=torch.bool)

    def cut(self, part: Part) -> tuple[Tensor, Part]:
        """Find the edges that a removal names."""
        if not part.edges and not part.directed_edges:
            return _NO_EDGES, Part()
        if not self.undirected:
            return self._cut_arcs(part)
        for arc in part.directed_edges:
            raise directs(*self.ids.of(torch.tensor(arc)))
        once = {(min(edge), max(edge)): edge for edge in part.edges}
        edges = edges_of([*once])
        there = self.has_edges(edges)
        if bool(there.all()):
            return edges, Part()
        pairs = zip(once.values(), there.tolist(), strict=True)
        lost = tuple(edge for edge, has in pairs if not has)
        return edges[:, there], Part(edges=lost)

    def _cut_arcs(self, part: Part) -> tuple[Tensor, Part]:
        edges, arcs = edges_of(part.edges), edges_of(part.directed_edges)
        one, there = self.has_edges(edges), self.has_edges(arcs)
        back = self.has_edges(edges.flip(0))
        cut = [edges[:, one], edges.flip(0)[:, back], arcs[:, there]]
        missing = Part(
            edges=_listed(edges[:, ~(one | back)]),
            directed_edges=_listed(arcs[:, ~there]),
        )
        return torch.cat(cut, 1).unique(dim=1), missing

    def touched(self, changed: Tensor, features: Tensor) -> Tensor | None:
        r"""Find the rows of :math:`z` that an edit may have changed."""
        measure, length = self.measure, self.sending.length
        found = torch.zeros(self.num_nodes, dtype=torch.bool)
        if measure.weights[0]:
            found[features] = True
        seeds = changed if measure.b > 0 else features
        most = WHOLE_ABOVE * float(length.sum())
        for weight in measure.weights[1:]:
            if int(length[seeds].sum()) > most:
                return None
            level = torch.zeros_like(found)
            level[changed] = True
            _LIVE_MARK(self._state, seeds, level)
            found |= level & (weight > 0)
            seeds = level.nonzero().view(-1)
        return found.nonzero().view(-1)

    def rows(self, nodes: Tensor | None = None) -> Tensor:
        """Compute rows of :math:`z`: ``[k, num_columns]``."""
        count, _, broken = self._state[_CLOCK].tolist()
        if broken:
            self._build()
        x, read = self._state[_X], nodes
        if read is not None:
            read = read.contiguous()
            count = read.numel()
        z = torch.empty((count, x.size(1)), dtype=torch.float64)
        at = _LIVE_ROWS(self._state, self._weights, read, z)
        if at >= 0 and read is not None:
            check_range('nodes', read, self.num_nodes, 'the nodes')
            raise ValueError(
                "'nodes' needs to have nodes that are there (got "
                f'{int(read[at])}, which was removed)'
            )
        return z.to(x.dtype)

    def play(
        self, steps: Sequence[Step], undo: Undo | None = None
    ) -> tuple[Tensor, int]:
        """Apply edits in their order: all of them, or none."""
        first, edits, broken = self._state[_CLOCK].tolist()
        if broken:
            self._build()
        names = first
        events, named, values = [], [], []
        for step in steps:
            if step.gone.numel():
                events.append(_events(_GO, step.gone))
                named.append(step.gone)
                shape = step.gone.numel(), self.num_columns
                values.append(self._state[_X].new_zeros(shape))
            if step.cut.numel():
                events.append(_events(_CUT, step.cut))
            if step.new is not None and step.new.size(0):
                self._check_features(step.new)
                come = torch.arange(names, names + step.new.size(0))
                names += come.numel()
                events.append(_events(_COME, come))
                named.append(come)
                values.append(step.new)
            if step.edges.numel():
                events.append(_events(_JOIN, step.edges))
            if step.x is not None and step.nodes.numel():
                self._check_features(step.x)
                events.append(_events(_CHANGE, step.nodes))
                named.append(step.nodes)
                values.append(step.x)
        if not events:
            return _NONE, first
        played = events[0] if len(events) == 1 else torch.cat(events, dim=1)
        most = self._most(names)
        if not played.is_cpu:
            raise ValueError(
                f"'edge_index' needs to be on the CPU (got {played.device})"
            )
        arcs, loops, lives, changed, at = _LIVE_NET(self._state, played, most)
        if at >= 0:
            self._refuse(played, at // 4, at % 4, names)
        # New names may be what makes them too many.
        if (
            names > first
            and most < self._most(first)
            and self.receiving.length.max() >= most
        ):
            raise self._too_many('a node', 'x', names)
        nodes, x = _NONE, self._state[_X][:0]
        if named:
            nodes, x = _last(torch.cat(named), torch.cat(values))
        if names > self._state[_RANK].numel():
            self._grow(names)
        old = self._state[_X][nodes] if named else x

        def back() -> None:
            self.mend()
            if self._state[_CLOCK].tolist()[_EDITS] != edits:
                away = arcs * torch.tensor([[1], [1], [-1]])
                self._edit(away, loops, lives, first, nodes, old, edits)

        if undo is not None:
            undo.append(back)
        try:
            self._edit(arcs, loops, lives, names, nodes, x, edits + 1)
        except BaseException:
            back()
            raise
        return changed, first

    def mend(self) -> None:
        """Compute the sums anew if an edit was interrupted."""
        if self._state[_CLOCK].tolist()[_BROKEN]:
            self._build()

    def _edit(self, *args: Any) -> None:
        lack = _LIVE_EDIT(self._state, *args)
        if lack:
            self._widen(lack)
            _LIVE_EDIT(self._state, *args)
            self._follow()

    def _build(self) -> None:
        # Limits are those of the sums, so none may be left if this breaks off.
        self._state[_CLOCK][_BROKEN] = 1
        self._now = self._wanted()
        state = list(self._state)
        mean, top = 0.0, 0
        if self.num_nodes:
            length = self.sending.length
            mean, top = float(length.double().mean()), int(length.max())
        limit = limits(self._now, mean)
        state[_LIMIT] = limit.masked_fill(limit >= top.bit_length(), _ALL)
        self._state = state
        _LIVE_BUILD(self._state)

    def _wanted(self) -> float:
        if self.measure.K != 2:
            return math.inf
        if self._reads is not None:
            return self._reads
        # For b = 0 an edge changes no more than two rows of sums.
        length = self.sending.length
        return reads_of(length) if self.measure.b > 0 else math.inf

    def _follow(self) -> None:
        # The graph has grown: other limits may be worth new sums.
        wanted = self._wanted()
        if not self._now / 4 < wanted < 4 * self._now:
            self._build()

    def _open(self, at: int) -> OpenRows:
        start, length, _ = self._state[at][:, : self.num_nodes]
        return OpenRows(start, length, self._state[at + _COL])

    def _grow(self, names: int) -> None:
        # Rows of nothing, with some to spare.
        state = list(self._state)
        size = names + names // 4 + 16
        made: dict[int, Tensor] = {}
        for k, dim in (
            (_ROWS, 1),
            (_BACK, 1),
            (_FLAGS, 1),
            (_X, 0),
            (_SUMS, 1),
            (_RANK, 0),
        ):
            old = state[k]
            if id(old) not in made:
                shape = list(old.shape)
                shape[dim] = size - shape[dim]
                made[id(old)] = torch.cat([old, old.new_zeros(shape)], dim)
            state[k] = made[id(old)]
        self._state = state

    def _widen(self, lack: int) -> None:
        state = list(self._state)
        for k in (_COL, _BACK + _COL):
            if k != _COL and self._state[k] is self._state[_COL]:
                state[k] = state[_COL]
                continue
            old = state[k]
            size = max(lack, old.numel() // 2) + 64
            state[k] = torch.cat([old, old.new_full((size,), -1)])
        self._state = state

    def _check_features(self, x: Tensor) -> None:
        ends = x.aminmax() if x.numel() else ()
        if any(not abs(float(end)) <= self.bound for end in ends):
            raise ValueError(
                f"'x' needs entries of at most 'bound'={self.bound} in "
                'magnitude (got a larger one): scale them, or declare a '
                'larger bound'
            )

    def _too_many(
        self, node: str, name: str, names: int | None = None
    ) -> ValueError:
        most = self._most(self.num_nodes if names is None else names)
        return ValueError(
            f"'{name}' needs less than {most:.0f} neighbours of a node, "
            f'for bits={self.bits} and bound={self.bound} (got more at {node})'
            ": take a smaller 'bits' or 'bound'"
        )

    def _refuse(self, events: Tensor, at: int, why: int, names: int) -> None:
        if why == 3:
            raise self._too_many(f'node {at}', 'edge_index', names)
        kind, u, v = events[:, at].tolist()
        if kind in (_CUT, _JOIN):
            check_range('edge_index', events[1:, at], names, 'the nodes')
            if why == 2:
                u, v = self.ids.of(events[1:, at]).tolist()
                raise ValueError(
                    f'edge {u} -> {v} is there already: an edge can be there '
                    'once'
                )
            if why == 1:
                raise NotThere(self.ids.request(Part(edges=((u, v),))))
            there = self.alive.new_zeros(names)
            there[: self.num_nodes] = self.alive
            for past, node, _ in events[:, :at].t().tolist():
                if past in (_COME, _GO):
                    there[node] = past == _COME
            u = v if bool(there[u]) else u
        raise NotThere(self.ids.request(Part(nodes=(u,))))


def put_back(undo: Undo, keep: int = 0) -> None:
    """Take edits back; if this is interrupted, call it again."""
    while len(undo) > keep:
        undo[-1]()
        undo.pop()


def edges_of(pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Return pairs as int64, ``[2, k]``."""
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()


def _listed(edges: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((u, v) for u, v in edges.t().tolist())


def check_directed(
    directed: bool | None, measure: Measure, undirected: bool | None
) -> bool:
    """Return whether edges of a graph that changes go in one direction."""
    if directed is not None:
        check_instance('directed', directed, bool)
    if directed and measure.undirected:
        raise ValueError(
            f"'directed' needs to be False for measure '{measure.name}', "
            'which is of undirected graphs (got True)'
        )
    if undirected is False and (measure.undirected or directed is False):
        why = '' if measure.undirected else ' with directed=False'
        raise ValueError(
            f"the graph needs to be undirected for measure '{measure.name}'"
            f'{why} (got a directed one): data.edge_index = '
            'torch_geometric.utils.to_undirected(data.edge_index)'
        )
    return bool(directed) or undirected is False


def check_measure(measure: Measure) -> None:
    """Refuse measures that exact integer sums do not support."""
    if measure.shrink != 1 or measure.spectral_radius is not None:
        raise ValueError(
            f"'measure' {measure} depends on the spectral radius of the "
            'graph, which changes with it'
        )
    if measure.a + measure.b < 1 - 1e-12:
        raise ValueError(
            "'measure' needs a + b >= 1, or sums may leave their range "
            f'(got {measure})'
        )


def limits(reads: float, mean: float) -> Tensor:
    """Return the highest rank of a sender that each receiver keeps."""
    if reads == math.inf:
        return torch.full((64,), _ALL, dtype=torch.int8)
    size = 0.75 * 2.0 ** torch.arange(64, dtype=torch.float64)
    size[0] = 0
    most = reads * (1 + size)
    highest = torch.searchsorted(1 + size / max(mean, 1), most, right=True)
    return (highest - 1).to(torch.int8)


def reads_of(length: Tensor) -> float:
    """Choose the number of reads per event for which sums are kept.

    It is the largest power of two with which an event is expected to update at
    most 96 (``WRITES``) rows of sums, in a random graph of these degrees.
    """
    size = length.double()
    rank = torch.frexp(size)[1].long()
    count = rank.bincount(minlength=64).double()
    ends = rank.bincount(size, minlength=64)
    share = ends / ends.sum().clamp(min=1)
    often = count / count.sum().clamp(min=1) + share
    met = (ends / count.clamp(min=1)).view(-1, 1) * share
    met = often.view(-1, 1) * torch.minimum(met, count)
    mean = float(ends.sum() / count.sum().clamp(min=1))
    ranks = torch.arange(64).view(-1, 1)
    for reads in (math.inf, *(2.0**k for k in range(16, -17, -1))):
        if float(met[ranks <= limits(reads, mean)].sum()) <= WRITES:
            break
    return reads


def _pooled(rowptr: Tensor, col: Tensor) -> list[Tensor]:
    # Blocks of powers of two; -1 where nothing is.
    length = rowptr.diff()
    bits = torch.frexp((length - 1).clamp_(min=3).double())[1]
    room = (length > 0).long() << bits
    ends = pointer(room)
    start, size = ends[:-1], int(ends[-1])
    pool = torch.full((size + size // 8 + 64,), -1, dtype=torch.int32)
    pool[ranges(start, length)] = col
    free = torch.full((41,), -1)
    free[40] = size
    return [torch.stack([start, length, room]), pool, free]


def _events(kind: int, names: Tensor) -> Tensor:
    both = names.expand(2, -1) if names.dim() == 1 else names
    if both.size(1) == 1 and both.is_cpu:
        return torch.cat([_KINDS[kind], both])
    return torch.cat([both.new_full((1, both.size(1)), kind), both])


def _last(nodes: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    # The last features of each node.
    if nodes.numel() < 2:
        return nodes, x
    unique, place = nodes.unique(return_inverse=True)
    at = torch.zeros_like(unique)
    at.scatter_reduce_(
        0, place, torch.arange(nodes.numel()), 'amax', include_self=False
    )
    return unique, x[at]
