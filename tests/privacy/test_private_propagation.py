"""Sensitivities by brute force over all small graphs; messages; columns."""

import itertools
import math

import pytest
import torch
from references import Silence

from pyg_trust import noise
from pyg_trust.agp.measures import Measure, appnp, ppr, sgc, single_target
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.propagation import (
    class_messages,
    columns,
    energy_weights,
    hop_sensitivity,
    messages,
    private_propagate,
    scaled_propagate,
)

MARGIN = 1 - 1e-6


def column_norms(graph, measure, *, own=True):
    norms, diagonal = columns(graph, measure)
    return norms if own else (norms.square() - diagonal.square()).sqrt()


def weights(arcs, n, relation):
    """The matrix W that a hop really applies, by unit messages."""
    edges = torch.tensor(sorted(arcs), dtype=torch.int64).view(-1, 2).t()
    graph = CSRGraph.from_edge_index(edges, n)
    # A grid of 2^-50: truncation stays below what is compared.
    std, eye = [2.0**-18], torch.eye(n, dtype=torch.float64)
    made = private_propagate(graph, eye, std, Silence(), relation)
    return made[0] / MARGIN


def signs(n):
    return torch.tensor(
        list(itertools.product([1.0, -1.0], repeat=n)), dtype=torch.float64
    ).t()


def pairs_of(n):
    return list(itertools.combinations(range(n), 2))


def undirected(pairs):
    pairs = list(pairs)
    return {*pairs, *((v, u) for u, v in pairs)}


def graphs(n):
    pairs = pairs_of(n)
    for bits in range(2 ** len(pairs)):
        yield [p for i, p in enumerate(pairs) if bits >> i & 1]


@pytest.mark.parametrize('relation', ['edge', 'node'])
@pytest.mark.parametrize('n', [3, 4])
def test_an_undirected_edge_moves_two_rows(n, relation):
    H, worst = signs(n), 0.0
    for pairs in graphs(n):
        whole = weights(undirected(pairs), n, relation)
        for pair in pairs:
            less = undirected(p for p in pairs if p != pair)
            moved = (whole - weights(less, n, relation)) @ H
            worst = max(worst, float(moved.norm(dim=0).max()))
    # Attained, by an isolated edge, and never exceeded.
    assert worst == pytest.approx(hop_sensitivity('edge'), abs=1e-12)
    assert worst == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize('relation', ['edge', 'node'])
def test_an_arc_moves_one_row(relation):
    n, worst = 4, 0.0
    arcs = [(u, v) for u in range(n) for v in range(n) if u != v]
    H = signs(n)
    generator = torch.Generator().manual_seed(0)
    some = torch.rand(150, len(arcs), generator=generator) < 0.4
    small = [[arc] for arc in arcs]
    for kept in small + [
        [a for a, k in zip(arcs, row, strict=True) if k] for row in some
    ]:
        whole = weights(kept, n, relation)
        for arc in kept:
            less = weights([a for a in kept if a != arc], n, relation)
            moved = float(((whole - less) @ H).norm(dim=0).max())
            worst = max(worst, moved)
    bound = hop_sensitivity('edge', directed=True)
    assert worst == pytest.approx(bound, abs=1e-12)
    assert bound == 1


def record_changes(n):
    """All own lists of node 0 over a fixed rest, and the others' lists."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        rest = [
            (u, v)
            for u in range(1, n)
            for v in range(n)
            if u != v and torch.rand((), generator=generator) < 0.5
        ]
        for bits in range(2 ** (n - 1)):
            yield rest, [(0, v) for v in range(1, n) if bits >> (v - 1) & 1]


def certain_and_mixed(C):
    """Posteriors: every certain one, every even pair, and some between."""
    eye = torch.eye(C, dtype=torch.float64)
    pairs = [(eye[a] + eye[b]) / 2 for a, b in pairs_of(C)]
    generator = torch.Generator().manual_seed(C)
    some = torch.rand(20, C, generator=generator, dtype=torch.float64) ** 4
    return torch.cat(
        [eye, *[p[None] for p in pairs], some / some.sum(1)[:, None]]
    )


@pytest.mark.parametrize('C', [2, 3, 4, 7])
@pytest.mark.parametrize('D', [1, 2])
def test_messages_of_classes_have_no_opposites(C, D):
    n, worst = 4, 0.0
    q = certain_and_mixed(C)
    lists = [own for _, own in record_changes(n)][: 2 ** (n - 1)]
    sent = {}
    for own in lists:
        # What a record adds to the sums, by the package, for every message.
        edges = torch.tensor(own, dtype=torch.int64).view(-1, 2).t()
        graph = CSRGraph.from_edge_index(edges, n)
        made = []
        for row in q:
            x = torch.zeros(n, C, dtype=torch.float64)
            x[0] = class_messages(row[None])[0]
            made += private_propagate(
                *(graph, x, [1.0], Silence(), 'node'),
                energy_weights(graph, D),
                between='clip',
            )
        sent[tuple(own)] = torch.stack(made).flatten(1)
    for one, other in itertools.product(sent.values(), repeat=2):
        worst = max(worst, float(torch.cdist(one, other).max()))
    bound = hop_sensitivity(
        'node', neighboring='replace', max_degree=D, num_classes=C
    )
    assert bound == pytest.approx(math.sqrt(2 * D * C / (C - 1)))
    assert worst == pytest.approx(bound, rel=1e-5)
    assert worst <= bound


@pytest.mark.parametrize('own', [True, False])
def test_a_replaced_row_moves_a_scaled_propagation_by_the_bound(own):
    generator = torch.Generator().manual_seed(4)
    dense = torch.rand(12, 12, generator=generator) < 0.3
    dense = (dense | dense.t()) & ~torch.eye(12, dtype=torch.bool)
    graph = CSRGraph.from_edge_index(dense.nonzero().t().contiguous(), 12)
    measure = Measure(0.5, 0.5, (0.1, 0.5, 0.5))
    q, worst = certain_and_mixed(4), 0.0

    def made(v, row):
        every = q[torch.arange(12) % len(q)].clone()
        every[v] = row
        return scaled_propagate(
            *(graph, class_messages(every), measure, 1.0, Silence()),
            own=own,
            between='clip',
        )

    for v in range(12):
        found = torch.stack([made(v, row) for row in q]).flatten(1)
        worst = max(worst, float(torch.cdist(found, found).max()))
    bound = hop_sensitivity('feature', neighboring='replace', num_classes=4)
    assert worst == pytest.approx(bound, rel=1e-5)
    assert worst <= bound


@pytest.mark.parametrize('n', [3, 4])
def test_a_node_with_its_edges_moves_others_by_the_root_of_its_degree(n):
    H, worst = signs(n), {}
    for pairs in graphs(n):
        whole = weights(undirected(pairs), n, 'node_incident')
        for v in range(n):
            less = undirected(p for p in pairs if v not in p)
            moved = (whole - weights(less, n, 'node_incident')) @ H
            others = moved[[w for w in range(n) if w != v]]
            d = sum(v in p for p in pairs)
            worst[d] = max(worst.get(d, 0), float(others.norm(dim=0).max()))
            own = float(moved.norm(dim=0).max())
            assert own <= math.sqrt(d + d * d) + 1e-12
    for d, found in worst.items():
        if d:
            bound = hop_sensitivity('node_incident', max_degree=d)
            assert found == pytest.approx(bound)


@pytest.mark.parametrize('between', ['normalize', 'clip'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_no_message_is_longer_than_one(between, dtype):
    rows = torch.randn(200, 7, dtype=dtype)
    rows = rows / rows.norm(dim=1, keepdim=True) * (1 + 1e-7)
    bad = torch.zeros(8, 7, dtype=dtype)
    largest = torch.finfo(dtype).max
    bad[0, 0], bad[1, 1] = math.inf, math.nan
    bad[2] = largest
    bad[3, 0] = 1e20
    bad[4] = torch.finfo(dtype).tiny
    bad[5, 1] = 5e-324 if dtype == torch.float64 else 1e-45
    bad[6] = -largest
    sent = messages(torch.cat([rows, bad]), between=between)
    assert sent.dtype == torch.float64
    assert bool(sent.isfinite().all())
    norms = sent.norm(dim=1)
    assert float(norms.max()) <= 1
    assert float(sent.float().double().norm(dim=1).max()) <= 1
    # Nothing comes of rows that are no numbers, and of zeros.
    assert not norms[[200, 201, 207]].any()
    assert float(norms[:200].min()) > 0.9


def test_a_hop_adds_noise_of_its_deviation():
    edges = torch.zeros(2, 0, dtype=torch.int64)
    graph = CSRGraph.from_edge_index(edges, 2000)
    source = noise.SeededNoise(3)
    made = private_propagate(graph, torch.zeros(2000, 5), [0.5, 2.0], source)
    # Isolated nodes: nothing but noise; by chance wrong once in 1e9.
    assert noise.p_value(made[0] / 0.5) > noise.LEAST_P_VALUE
    assert noise.p_value(made[1] / 2.0) > noise.LEAST_P_VALUE


def test_the_next_hop_reads_the_rounded_one():
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    graph = CSRGraph.from_edge_index(path, 4)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    first, second = private_propagate(
        graph, x, [1.0, 1.0], noise.SeededNoise(1), dtype=torch.float32
    )
    assert first.dtype == second.dtype == torch.float32
    source = noise.SeededNoise(1)
    (again,) = private_propagate(graph, x, [1.0], source)
    assert torch.equal(first, again.float())
    # The noise of the second hop is the next of the same source.
    (alone,) = private_propagate(graph, first, [1.0], source)
    assert torch.equal(second, alone.float())


def test_later_messages_read_released_rows_of_their_own_node_alone():
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    graph = CSRGraph.from_edge_index(path, 4)
    fixed = torch.randn(2, 4, 3, dtype=torch.float64)

    class Kept:
        def __init__(self, moved):
            self.left = [fixed[0] + moved, torch.zeros(4, 3)]

        def cells(self, shape):
            return (self.left.pop(0).double() * 2**32).long()

    def second(moved):
        x = torch.eye(4, 3, dtype=torch.float64)
        return private_propagate(graph, x, [1.0, 1.0], Kept(moved))[1]

    base = second(torch.zeros(4, 3, dtype=torch.float64))
    for v in range(4):
        moved = torch.zeros(4, 3, dtype=torch.float64)
        moved[v] = torch.randn(3)
        changed = (second(moved) - base).abs().sum(1) > 1e-12
        near = {int(u) for u in path[1][path[0] == v]}
        assert {int(u) for u in changed.nonzero().view(-1)} == near


@pytest.mark.parametrize(
    'measure',
    [
        sgc(2),
        appnp(0.2),
        ppr(0.15),
        single_target(0.3),
        Measure(0.5, 0.5, (0.0, 0.5, 0.5)),
    ],
)
def test_columns_are_those_of_the_propagation(measure):
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(40, 40, generator=generator) < 0.1
    dense = (dense | dense.t()) & ~torch.eye(40, dtype=torch.bool)
    dense[7] = dense[:, 7] = False
    graph = CSRGraph.from_edge_index(dense.nonzero().t().contiguous(), 40)
    pi = propagate(graph, torch.eye(40, dtype=torch.float64), measure)
    found = column_norms(graph, measure)
    assert torch.allclose(found, pi.norm(dim=0), rtol=1e-12)
    off = pi - pi.diag().diag()
    found = column_norms(graph, measure, own=False)
    assert torch.allclose(found, off.norm(dim=0), atol=1e-9)
    # Scaled, every column has the norm 1 or 0.
    for own, whole in ((True, pi), (False, off)):
        eye = torch.eye(40, dtype=torch.float64)
        made = scaled_propagate(graph, eye, measure, 1.0, Silence(), own=own)
        norms = made.norm(dim=0) / MARGIN
        there = whole.norm(dim=0) > 1e-9
        assert torch.allclose(norms[there], torch.ones(()).double())
        assert not norms[~there].any()
