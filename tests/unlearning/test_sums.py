"""Sums of integers against dense ones, whatever happens in whatever order."""

import copy
import json
import math
import random
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from states import level_of

from pyg_trust.agp.measures import Measure, sgc, single_target
from pyg_trust.graph import CSRGraph
from pyg_trust.transforms import PropagatedFeatures
from pyg_trust.unlearning import sums as kept_in
from pyg_trust.unlearning.sums import Step, Sums
from pyg_trust.verify import removal

MEASURES = {
    'sgc': (0.5, 0.5, True),
    'walk': (1.0, 0.0, False),
    'mixed': (0.3, 0.7, True),
}


def edges_of(pairs):
    return torch.tensor(sorted(pairs), dtype=torch.int64).view(-1, 2).t()


class World:
    """A graph of sets and lists, and what its sums are by definition."""

    def __init__(self, n, columns, seed, directed=False):
        self.rng = random.Random(seed)
        self.columns, self.directed = columns, directed
        self.x = {v: self.row() for v in range(n)}
        self.names = n
        self.arcs = set()
        for _ in range(2 * n):
            self.join(self.rng.randrange(n), self.rng.randrange(n))

    def row(self):
        return [self.rng.uniform(-9, 9) for _ in range(self.columns)]

    def join(self, u, v):
        self.arcs |= {(u, v)} if self.directed else {(u, v), (v, u)}

    def event(self):
        """A random one, played here; as a step."""
        rng, alive = self.rng, sorted(self.x)
        kind = rng.choice(['join'] * 6 + ['cut'] * 5 + ['x', 'come', 'go'])
        if kind == 'join':
            u, v = rng.choice(alive), rng.choice(alive)
            if rng.random() < 0.3:
                u = alive[0]  # a hub
            if (u, v) in self.arcs:
                return Step()
            self.join(u, v)
            return Step(edges=torch.tensor([[u], [v]]))
        if kind == 'cut' and self.arcs:
            u, v = rng.choice(sorted(self.arcs))
            self.arcs -= {(u, v)} if self.directed else {(u, v), (v, u)}
            return Step(cut=torch.tensor([[u], [v]]))
        if kind == 'go' and len(alive) > 4:
            v = rng.choice(alive)
            del self.x[v]
            self.arcs = {a for a in self.arcs if v not in a}
            return Step(gone=torch.tensor([v]))
        if kind == 'come':
            new, u = self.names, rng.choice(alive)
            self.names += 1
            self.x[new] = self.row()
            self.join(new, u)
            return Step(
                new=torch.tensor([self.x[new]], dtype=torch.float64),
                edges=torch.tensor([[new], [u]]),
            )
        v = rng.choice(alive)
        self.x[v] = self.row()
        x = torch.tensor([self.x[v]], dtype=torch.float64)
        return Step(nodes=torch.tensor([v]), x=x)

    def state(self, measure, **how):
        x = torch.zeros(self.names, self.columns, dtype=torch.float64)
        for v, row in self.x.items():
            x[v] = torch.tensor(row, dtype=x.dtype)
        gone = sorted(set(range(self.names)) - set(self.x))
        graph = CSRGraph.from_edge_index(edges_of(self.arcs), self.names)
        gone = torch.tensor(gone, dtype=torch.int64)
        how = {'directed': self.directed, 'gone': gone, **how}
        return Sums(graph, x, measure, **how)

    def dense(self, measure, bits=40):
        """Sums of all levels, and z, by the definition."""
        at = {v: i for i, v in enumerate(sorted(self.x))}
        A = np.zeros((len(at), len(at)), dtype=np.int64)
        for u, v in self.arcs:
            A[at[u], at[v]] = 1
        if measure.self_loops:
            np.fill_diagonal(A, 1)
        degree = A.sum(1)

        def power(e):
            return np.array(
                [float(d) ** -e if d or not e else 0.0 for d in degree]
            )

        def root(e):
            half = [1 / np.sqrt(d) if d else 0.0 for d in degree]
            return np.array(half) if e == 0.5 else power(e)

        x = np.array([self.x[v] for v in at])
        recv, send = root(measure.a)[:, None], root(measure.b)[:, None]
        q = np.rint(send * x * 2.0**bits).astype(np.int64)
        z, sums = measure.weights[0] * x, []
        for weight in measure.weights[1:]:
            S = (A.T if measure.along else A) @ q
            sums.append(S)
            z = z + weight * (recv * 2.0**-bits * S.astype(np.float64))
            q = np.rint(recv * send * S.astype(np.float64)).astype(np.int64)
        return sums, z

    def check(self, state, measure):
        ids = torch.tensor(sorted(self.x))
        sums, z = self.dense(measure)
        assert torch.equal(state.alive.nonzero().view(-1), ids)
        for level, want in enumerate(sums[:-1]):
            found = level_of(state, level)
            assert found[ids].tolist() == want.tolist()
            # Of removed nodes nothing is left, not by one unit.
            assert int(found.abs().sum()) == int(found[ids].abs().sum())
        assert state.rows()[ids].tolist() == z.tolist()
        for v, row in zip(ids[:3], z, strict=False):
            assert state.rows(v.view(1))[0].tolist() == row.tolist()


@pytest.mark.parametrize('reads', [0.01, 0.3, math.inf])
@pytest.mark.parametrize('name', MEASURES)
def test_sums_of_the_oracle(name, reads, shared):
    held = json.loads((shared / 'oracles/living/events.json').read_text())
    a, b, loops = MEASURES[name]
    for levels in (2, 4):
        weights = (0.1,) * (levels + 1)
        edges = torch.tensor(held['edges']).t()
        edges = torch.cat([edges, edges.flip(0)], dim=1)
        state = Sums(
            CSRGraph.from_edge_index(edges, held['n']),
            torch.tensor(held['x']),
            Measure(a, b, weights, self_loops=loops),
            reads=reads,
        )
        for count, (kind, *what) in enumerate(held['events'], 1):
            if kind in ('edge+', 'edge-'):
                edge = torch.tensor(what).view(2, 1)
                name_of = 'edges' if kind == 'edge+' else 'cut'
                step = Step(**{name_of: edge})
            elif kind == 'node-':
                step = Step(gone=torch.tensor(what))
            elif kind == 'node+':
                step = Step(new=torch.tensor(what[1:]))
            else:
                nodes, x = torch.tensor(what[:1]), torch.tensor(what[1:])
                step = Step(nodes=nodes, x=x)
            state.play([step])
            for level in range(levels - 1):
                wanted = held['sums'].get(str(count), {}).get(name)
                for v, row in wanted[level].items() if wanted else ():
                    assert level_of(state, level)[int(v)].tolist() == row


@pytest.mark.parametrize('reads', [0.0, 0.2, 1.0, math.inf])
@pytest.mark.parametrize(
    ('measure', 'directed'),
    [
        (sgc(1), False),
        (sgc(2), False),
        (sgc(2), True),
        (Measure(1, 0, (0.0, 0.5, 0.5)), False),
        (Measure(1, 0, (0.1, 0.5, 0.5, 0.25)), True),
        (Measure(0.5, 0.5, (0.1, 0.2, 0.3, 0.4), self_loops=True), False),
        (single_target(0.3, K=2), True),
        (Measure(0, 1, (0.3, 0.2, 0.4, 0.1)), False),
        (Measure(1, 1, (1.0,)), False),
    ],
)
def test_sums_follow_every_event(measure, directed, reads):
    measure = Measure(
        measure.a,
        measure.b,
        measure.weights,
        self_loops=measure.self_loops,
        along=measure.along,
    )
    world = World(9, 3, seed=1, directed=directed)
    state = world.state(measure, reads=reads)
    for step in range(120):
        state.play([world.event()])
        if step % 10 == 0:
            world.check(state, measure)
    world.check(state, measure)
    # And many at once.
    for size in (2, 7, 40):
        state.play([world.event() for _ in range(size)])
        world.check(state, measure)
    state._build()
    world.check(state, measure)


def mixed(state, events, sizes, seed, n):
    """Random events, netted in batches; the present edges as a set."""
    rng = np.random.default_rng(seed)
    held = {tuple(sorted(e)) for e in state.edge_index().t().tolist()}
    pool = sorted(held)
    done = 0
    while done < events:
        size = int(rng.choice(sizes))
        join, cut, nodes = [], [], set()
        for kind, u, v in zip(
            rng.choice(3, size, p=[0.45, 0.45, 0.1]),
            rng.integers(0, n, size).tolist(),
            # Some are ends of many.
            (n * rng.random(size) ** 4).astype(int).tolist(),
            strict=True,
        ):
            if kind == 0 and u != v and (min(u, v), max(u, v)) not in held:
                edge = min(u, v), max(u, v)
                held.add(edge)
                pool.append(edge)
                join.append(edge)
            elif kind == 1:
                at = int(rng.integers(len(pool)))
                pool[at], pool[-1] = pool[-1], pool[at]
                if pool[-1] not in join:
                    cut.append(pool.pop())
                    held.discard(cut[-1])
            else:
                nodes.add(v)
        nodes = torch.tensor(sorted(nodes), dtype=torch.int64)
        shape = nodes.numel(), state.num_columns
        x = torch.tensor(rng.standard_normal(shape)).to(state.x.dtype)
        # An edge that goes and comes back is one that stays.
        state.play(
            [
                Step(cut=edges_of(cut)),
                Step(edges=edges_of(join), nodes=nodes, x=x),
            ]
        )
        done += size
    return held


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', MEASURES)
def test_a_hundred_thousand_events_leave_the_bits_of_a_fresh_start(
    name, dtype
):
    a, b, loops = MEASURES[name]
    measure = Measure(a, b, (0.2, 0.3, 0.5), self_loops=loops)
    n = 600
    edges = torch.randint(n, (2, 2000), generator=_random())
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    x = torch.randn((n, 3), generator=_random(), dtype=dtype)
    graph = CSRGraph.from_edge_index(edges, n)
    states = [Sums(graph, x, measure, reads=r) for r in (0.1, None, 9.0)]
    count = 10**5
    for seed, state in enumerate(states):
        # Not all of them one by one: a third each of the events.
        sizes = [1, 30, 3000]
        held = mixed(state, count // 3, sizes, seed, n)
        pairs = edges_of({*held, *((v, u) for u, v in held)})
        present = CSRGraph.from_edge_index(pairs, n)
        fresh = Sums(present, state.x, measure)
        assert torch.equal(state.edge_index(), fresh.edge_index())
        assert torch.equal(level_of(state, 0), level_of(fresh, 0))
        assert torch.equal(state.rows(), fresh.rows())


def _random():
    return torch.Generator().manual_seed(3)


def star(n=40, columns=3, **how):
    ends = torch.stack([torch.zeros(n - 1).long(), torch.arange(1, n)])
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    x = torch.randn((n, columns), generator=_random(), dtype=torch.float64)
    return Sums(CSRGraph.from_edge_index(edges, n), x, sgc(2), **how)


@pytest.mark.parametrize('reads', [0.1, 0.5, 1.0])
def test_a_hub_that_flaps_around_a_limit_is_summed_rightly(reads):
    state = star(reads=reads)
    spoke = torch.stack([torch.zeros(39).long(), torch.arange(1, 40)])
    ranks = []
    for _ in range(3):
        for some in (spoke[:, :25], spoke[:, 25:32], spoke[:, 32:]):
            state.play([Step(cut=some)])
            ranks.append(int(state._state[10][0]))
        for v in range(39):
            state.play([Step(edges=spoke[:, v : v + 1])])
            ranks.append(int(state._state[10][0]))
        # Around 16 and 12, where its rank changes, on and off.
        for k in 4 * [24, 28]:
            state.play([Step(cut=spoke[:, :k])])
            ranks.append(int(state._state[10][0]))
            state.play([Step(edges=spoke[:, :k])])
    assert {1, 4, 5, 6} <= set(ranks)
    fresh = star(reads=math.inf)
    assert torch.equal(level_of(state, 0), level_of(fresh, 0))
    assert torch.equal(state.rows(), fresh.rows())


@pytest.mark.parametrize('reads', [0.1, 1.0, math.inf])
@pytest.mark.parametrize('threads', [1, 2, 4])
def test_threads_make_the_same_sums(threads, reads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        n, columns = 3000, 64
        state = star(n, columns, reads=reads)
        random = torch.Generator().manual_seed(5)
        edges = torch.randint(1, n, (2, 9000), generator=random)
        edges = edges[:, edges[0] < edges[1]].unique(dim=1)
        # Of more than 2^22 numbers to add.
        state.play([Step(edges=edges)])
        state.play([Step(cut=edges[:, ::2])])
        held = level_of(state, 0)
        rows = state.rows()
        assert torch.equal(rows, state.rows(torch.arange(n)))
        assert torch.equal(rows[::99], state.rows(torch.arange(n)[::99]))
        state._build()
        assert torch.equal(level_of(state, 0), held)
    finally:
        torch.set_num_threads(before)


def test_a_list_of_edits_is_netted():
    state, once = star(), star()
    edge, x = torch.tensor([[3], [4]]), torch.ones(1, 3).double()
    new = torch.tensor([[40], [3]])
    changed, first = state.play(
        [
            Step(edges=edge),
            Step(cut=edge.flip(0)),
            Step(nodes=torch.tensor([5]), x=x),
            Step(nodes=torch.tensor([5]), x=2 * x),
            Step(new=x, edges=new),
            Step(gone=torch.tensor([40])),
        ]
    )
    once.play([Step(nodes=torch.tensor([5]), x=2 * x)])
    # 40 was never there, and its name is used up.
    assert first == 40
    assert changed.tolist() == [5, 40]
    assert state.num_nodes == 41
    assert not bool(state.alive[40])
    assert torch.equal(level_of(state, 0)[:40], level_of(once, 0))
    assert not level_of(state, 0)[40].any()
    assert torch.equal(state.edge_index(), once.edge_index())


@pytest.mark.parametrize(
    ('steps', 'message'),
    [
        ([Step(edges=torch.tensor([[0], [1]]))], 'is there already'),
        ([Step(cut=torch.tensor([[1], [2]]))], 'edge 1 -> 2 is not there'),
        ([Step(gone=torch.tensor([3, 3]))], 'node 3 is not there'),
        ([Step(gone=torch.tensor([40]))], 'node 40 is not there'),
        (
            [
                Step(gone=torch.tensor([3])),
                Step(nodes=torch.tensor([3]), x=torch.ones(1, 3).double()),
            ],
            'node 3 is not there',
        ),
        (
            [Step(gone=torch.tensor([3]), edges=torch.tensor([[3], [4]]))],
            'node 3 is not there',
        ),
        ([Step(edges=torch.tensor([[40], [4]]))], r'in \[0, 40\)'),
        (
            [Step(new=17 * torch.ones(1, 3).double())],
            "entries of at most 'bound'=16",
        ),
        (
            [Step(nodes=torch.tensor([3]), x=-17 * torch.ones(1, 3).double())],
            "entries of at most 'bound'=16",
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(steps, message):
    state = star()
    before = copy.deepcopy(state._state)
    good = Step(edges=torch.tensor([[7], [8]]))
    with pytest.raises(ValueError, match=message):
        state.play([good, *steps])
    for old, new in zip(before, state._state, strict=True):
        assert torch.equal(old, new)


def test_a_node_of_too_many_neighbours_is_refused():
    # 2^62 / (2^40 2^11): a sum of so many of the largest is out of range.
    state = star(60, bound=2.0**11, bits=40)
    assert state._most(60) == 2**11
    with pytest.raises(ValueError, match="'bits' needs"):
        star(60, bound=2.0**12, bits=40)
    state = star(60, bound=2.0**45, bits=6)
    assert state._most(60) == 2.0**11
    graph = CSRGraph.from_edge_index(state.edge_index(), 60)
    wide = Sums(graph, state.x, sgc(2), bits=2, bound=2.0**49)
    assert wide._most(60) == 2.0**11
    # Directed edges with signals along them: the square root of it.
    arcs = edges_of({(u, 0) for u in range(1, 40)})
    into = CSRGraph.from_edge_index(arcs, 60)
    measure = Measure(0.5, 0.5, (0.0, 0.0, 1.0), self_loops=True)
    small = Sums(into, state.x, measure, bits=41, bound=2.0**10)
    assert 45 < small._most(60) < 46
    more = edges_of({(u, 0) for u in range(40, 60)})
    before = small.rows()
    with pytest.raises(ValueError, match='needs less than 45 neighbours'):
        small.play([Step(edges=more)])
    assert torch.equal(small.rows(), before)
    small.play([Step(edges=more[:, :5])])
    against = Measure(0.5, 0.5, (0.0, 0.0, 1.0), along=False)
    assert (
        Sums(into, state.x, against, bits=41, bound=2.0**10)._most(60) == 2048
    )


def strided(tensor):
    """The same numbers, with others between."""
    wide = torch.full((*tensor.shape, 2), 1, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def test_strides_are_read():
    held, other = star(), star()
    steps = (
        {
            'edges': edges_of({(3, 5)}),
            'cut': edges_of({(0, 1)}),
        },
        {'new': torch.rand(2, 3).double()},
        {'nodes': torch.tensor([4, 2]), 'x': torch.rand(2, 3).double()},
        {'gone': torch.tensor([7, 9])},
    )
    for step in steps:
        held.play([Step(**step)])
        other.play([Step(**{name: strided(a) for name, a in step.items()})])
    at = torch.tensor([3, 1, 4])
    assert torch.equal(held.rows(strided(at)), other.rows(at))
    assert torch.equal(held.rows(), other.rows())


def test_rows_of_no_node_are_none():
    state = star(60)
    assert state.rows(torch.empty(0, dtype=torch.int64)).shape[0] == 0


def test_what_nodes_share_among_receivers_stays_in_range():
    # b = 1 along directed edges: 59 in-neighbours, one edge to leave by. The
    # seventh power of 59 is out of range, the sum of all features is not.
    n, bits, bound = 60, 20, 1024.0
    arcs = edges_of({(u, 0) for u in range(1, n)})
    arcs = torch.cat([arcs, edges_of({(0, 1), (1, 2)})], dim=1).unique(dim=1)
    arcs = arcs[:, (arcs[0] != 1) | (arcs[1] == 2)]
    graph = CSRGraph.from_edge_index(arcs, n)
    x = torch.full((n, 1), bound, dtype=torch.float64)
    measure = Measure(0, 1, (0.0,) * 7 + (1.0,))
    state = Sums(graph, x, measure, bits=bits, bound=bound)
    dense = torch.zeros((n, n), dtype=torch.float64)
    dense[arcs[1], arcs[0]] = 1 / graph.degree[arcs[0]].double()
    want = torch.linalg.matrix_power(dense, 7) @ x
    torch.testing.assert_close(state.rows(), want, rtol=1e-4, atol=1e-3)
    # For other measures the limit is what it was.
    power = Measure(0.5, 0.5, measure.weights)
    with pytest.raises(ValueError, match='less than 24 neighbours'):
        Sums(graph, x, power, bits=bits, bound=bound)
    # And where names are too many, for this one too: 2^(62 - 50) = 4,096.
    wide = Sums(graph, x / bound, measure, bits=50, bound=1.0)
    new = torch.zeros((2100, 1), dtype=torch.float64)
    with pytest.raises(ValueError, match='less than 3 neighbours'):
        wide.play([Step(new=new)])
    assert wide.num_nodes == n
    wide.play([Step(new=new[:1000])])


def test_the_largest_numbers_do_not_overflow():
    n = 2000
    ends = torch.stack([torch.zeros(n - 1).long(), torch.arange(1, n)])
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    x = torch.full((n, 1), 2.0**11, dtype=torch.float64)
    walk = Measure(1, 0, (0.0, 0.0, 1.0))
    graph = CSRGraph.from_edge_index(edges, n)
    state = Sums(graph, x, walk, bound=2.0**11)
    torch.testing.assert_close(state.rows(), x, rtol=1e-15, atol=0)
    assert int(level_of(state, 0)[0, 0]) == (n - 1) * 2**51
    # Conversions of numbers of 2^51 and more are not those of small ones.
    x = x + torch.arange(n).double().unsqueeze(1) / 7
    state = Sums(graph, x, walk, bound=2.0**12, bits=39)
    want = sum(round(Fraction(v) * 2**39) for v in x[1:, 0].tolist())
    assert int(level_of(state, 0)[0, 0]) == want


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', MEASURES)
def test_errors_stay_within_their_bound(name, dtype):
    a, b, loops = MEASURES[name]
    measure = Measure(a, b, (0.2, 0.3, 0.5), self_loops=loops)
    for bits in (12, 40):
        world = World(30, 4, seed=bits)
        graph = CSRGraph.from_edge_index(edges_of(world.arcs), 30)
        x = torch.tensor([world.x[v] for v in range(30)]).to(dtype)
        state = Sums(graph, x, measure, bits=bits)
        A = np.zeros((30, 30), dtype=np.longdouble)
        for u, v in world.arcs:
            A[u, v] = 1
        if loops:
            np.fill_diagonal(A, 1)
        degree = A.sum(1)
        there = np.where(degree > 0, degree, 1)
        recv = np.where(degree > 0, there ** -np.longdouble(a), 0)
        send = there ** -np.longdouble(b) * ((degree > 0) | (b == 0))
        y = x.numpy().astype(np.longdouble)
        z = np.longdouble(0.2) * y
        for weight in (0.3, 0.5):
            y = recv[:, None] * (A.T @ (send[:, None] * y))
            z = z + np.longdouble(weight) * y
        found = state.rows().numpy().astype(np.longdouble)
        error = float(np.sqrt(((found - z) ** 2).sum()))
        assert error <= state.error_bound
        if bits == 12:
            assert error > 0.05 * state.error_bound


def test_room_that_is_free_names_nobody():
    world = World(20, 2, seed=4)
    state = world.state(sgc(2))
    for _ in range(400):
        state.play([world.event()])
    (start, length, room), col, free = state._state[:3]
    used = torch.zeros(col.numel(), dtype=torch.int32)
    blocks = torch.zeros(col.numel(), dtype=torch.int32)
    for v in range(length.numel()):
        used[start[v] : start[v] + length[v]] += 1
        blocks[start[v] : start[v] + room[v]] += 1
    # No block is in another one, and what is not used is negative.
    assert int(blocks.max()) == 1
    assert bool((col[used == 0] < 0).all())
    named = col[used > 0].unique()
    assert bool(state.alive[named.long()].all())
    # Free blocks are used again, not new ones.
    assert int(free[40]) < 2 * int(room.sum()) + 512
    gone = ~state.alive
    assert not state.x[gone].any()
    assert not state.degree[gone].any()
    assert not state._state[7][1, : state.num_nodes][gone].any()


def test_features_of_before_there_were_bounds_are_read():
    state = star()
    graph = CSRGraph.from_edge_index(state.edge_index(), 40)
    how = {'bound': 1e4, 'bits': 37}
    features = PropagatedFeatures(graph, 1000 * state.x, sgc(2), **how)
    held = features.__getstate__()
    del held['bound'], held['bits']
    again = object.__new__(PropagatedFeatures)
    again.__setstate__(held)
    rows = again.rows()
    assert float((rows - features.rows()).norm()) <= features.error_bound
    # Features of 2^30 times the size have a grid of that many bits less.
    held['x'] = held['x'] * 2.0**30
    again.__setstate__(held)
    assert torch.equal(again.rows(), 2.0**30 * rows)


@pytest.mark.parametrize('grows', [False, True])
def test_an_interrupt_at_any_line_leaves_all_of_an_edit_or_nothing(
    grows, monkeypatch
):
    x = torch.ones(1, 3).double()
    # With so many more edges other sums are kept, which are made anew.
    monkeypatch.setattr(kept_in, 'WRITES', 12)
    reads = None if grows else 0.3
    pairs = torch.combinations(torch.arange(10, 10 + 14 * grows)).t()
    edit = [
        Step(gone=torch.tensor([5]), cut=torch.tensor([[0], [7]])),
        Step(new=x, edges=torch.tensor([[40, 40], [3, 0]])),
        Step(nodes=torch.tensor([9]), x=2 * x, edges=pairs),
    ]
    old, new = star(reads=reads), star(reads=reads)
    new.play(edit)
    assert (new._now != old._now) == grows
    line, seen = 0, set()
    while True:
        state, left = star(reads=reads), [line]

        def tracer(frame, event, argument, left=left):
            if not frame.f_code.co_filename.endswith('sums.py'):
                return None
            left[0] -= event == 'line'
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return tracer

        try:
            sys.settrace(tracer)
            state.play(edit)
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        done = state.num_nodes == 41
        seen.add(done)
        wanted = new if done else old
        assert torch.equal(state.rows(), wanted.rows())
        assert torch.equal(level_of(state, 0), level_of(wanted, 0))
        assert torch.equal(state.edge_index(), wanted.edge_index())
        assert torch.equal(state.alive, wanted.alive)
        assert torch.equal(state.x, wanted.x)
        if not done:
            state.play(edit)
            assert torch.equal(state.rows(), new.rows())
        line += 1
    assert line > 60
    assert seen == {False, True}


@pytest.mark.parametrize('bound', [16.0, 2.0**11])
def test_long_rows_are_summed_as_integers(bound):
    # 2^53 / (2^40 bound) = 512 neighbours, or 4, is as far as doubles go.
    n = 2000
    ends = torch.stack([torch.zeros(n - 1).long(), torch.arange(1, n)])
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    x = bound * torch.rand((n, 3), generator=_random(), dtype=torch.float64)
    graph = CSRGraph.from_edge_index(edges, n)
    measure = Measure(1, 0, (0.0, 0.3, 0.7))
    state = Sums(graph, x, measure, bound=bound, reads=math.inf)
    q = [round(v * 2**40) for v in x[:, 0].tolist()]
    assert int(level_of(state, 0)[0, 0]) == sum(q[1:])
    # Together, one by one, and as all.
    rows = state.rows()
    nodes = torch.arange(n)
    assert torch.equal(state.rows(nodes), rows)
    some = torch.tensor([0, 7])
    assert torch.equal(state.rows(some), rows[some])
    assert torch.equal(
        state.rows(torch.tensor([1999, 3, 3])), rows[[-1, 3, 3]]
    )
    # A change of nearly all makes the sums anew.
    new = -x[:1500]
    state.play([Step(nodes=torch.arange(1500), x=new)])
    now = torch.cat([new, x[1500:]])
    # Differences of a few are added to what is as large.
    for v in range(1990, 2000):
        now[v] /= 3
        state.play([Step(nodes=torch.tensor([v]), x=now[[v]])])
    fresh = Sums(graph, now, measure, bound=bound)
    assert torch.equal(level_of(state, 0), level_of(fresh, 0))
    assert torch.equal(state.rows(), fresh.rows())


@pytest.mark.parametrize('columns', [1, 24])
def test_more_rows_than_one_task_takes_are_those_of_the_kernel(columns):
    # What a task leaves in its scratch is in no row of the next.
    n, seed = 2000, torch.Generator().manual_seed(0)
    pairs = torch.randint(n, (2, 5000), generator=seed)
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)
    x = torch.randn(n, columns, generator=seed, dtype=torch.float64)
    sums = Sums(CSRGraph.from_edge_index(edges, n), x, sgc(2))
    found = removal.features(
        *(edges.numpy(), x.numpy(), np.arange(n)),
        *((0.0, 0.0, 1.0), 0.5, 0.5, True),
    )
    assert torch.equal(sums.rows(), torch.from_numpy(found.Z))
