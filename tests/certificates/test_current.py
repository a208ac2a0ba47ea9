"""Certificates after updates, against all admissible graphs."""

import copy
import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust import files
from pyg_trust.certificates import (
    ROBUST,
    BitFlips,
    CurrentCertificate,
    ThreatModel,
    certified_after,
    certify,
    certify_pagerank,
    current,
)
from pyg_trust.certificates.certificate import BROKEN
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.certificates.horizon import Horizon
from pyg_trust.certificates.perturbations import Perturbations
from pyg_trust.graph import CSRGraph
from pyg_trust.nn import PPNP
from pyg_trust.report import fingerprint_data

ALPHA, N, CLASSES = 0.2, 6, 3


class World:
    """A graph as a matrix, its fragile pairs and logits."""

    def __init__(self, seed, undirected):
        self.draw = np.random.default_rng(seed)
        self.undirected = undirected
        self.A = (self.draw.random((N, N)) < 0.3).astype(int)
        np.fill_diagonal(self.A, 0)
        if undirected:
            self.A = np.triu(self.A) + np.triu(self.A).T
        self.fragile = self.some_pairs(5)
        self.local = self.draw.integers(1, 3, N)
        self.budget = int(self.draw.integers(1, 4))
        self.limited = bool(self.draw.integers(2))
        self.H = self.draw.standard_normal((N, CLASSES)) * 2
        self.anywhere = False

    def pairs(self):
        n = len(self.A)
        return [
            (u, v)
            for u in range(n)
            for v in range(n)
            if u < v or (not self.undirected and u > v)
        ]

    def some_pairs(self, count):
        pairs = self.pairs()
        pick = self.draw.choice(len(pairs), count, replace=False)
        return [pairs[i] for i in pick]

    def flip(self, A, u, v):
        A[u, v] ^= 1
        if self.undirected:
            A[v, u] ^= 1

    def change(self, kinds=5):
        kind = self.draw.integers(kinds)
        n = len(self.A)
        if kind == 0:
            self.flip(self.A, *self.some_pairs(1)[0])
        elif kind == 1:
            self.local[self.draw.integers(n)] = self.draw.integers(0, 3)
        elif kind == 2:
            v = self.draw.integers(n)
            self.H[v] += self.draw.standard_normal(CLASSES) / 2
        elif kind == 3:
            self.H += self.draw.standard_normal(self.H.shape) / 20
            self.flip(self.A, *self.some_pairs(1)[0])
        else:
            out = self.fragile.pop()
            new = [p for p in self.pairs() if p not in self.fragile]
            self.fragile.append(new[self.draw.integers(len(new))])
            assert out

    def grow(self):
        """A node that everybody may be linked to."""
        n = len(self.A)
        A = np.zeros((n + 1, n + 1), int)
        A[:n, :n] = self.A
        self.A = A
        for u in self.draw.choice(n, 2, replace=False):
            A[n, u] = 1
            if self.undirected:
                A[u, n] = 1
        self.fragile += [(u, n) for u in range(n) if not A[u, n]]
        self.local = np.append(self.local, 0 if not self.undirected else 2)
        new = self.draw.standard_normal((1, CLASSES)) * 2
        self.H = np.concatenate([self.H, new])

    def threat(self):
        edges = torch.from_numpy(np.argwhere(self.A).T.copy())
        return ThreatModel(
            CSRGraph.from_edge_index(edges, len(self.A)),
            torch.tensor(self.fragile).t(),
            local_budget=torch.from_numpy(self.local.copy()),
            global_budget=self.budget if self.limited else None,
            undirected=self.undirected,
        )

    def graphs(self):
        most = self.budget if self.limited else len(self.fragile)
        for k in range(most + 1):
            for flips in itertools.combinations(self.fragile, k):
                used = np.zeros(len(self.A), int)
                B = self.A.copy()
                for u, v in flips:
                    self.flip(B, u, v)
                    used[u] += 1
                    used[v] += self.undirected
                if (used <= self.local).all():
                    yield B

    def margins(self, reference):
        """The exact margins of each node, by class: ``[n, C]``."""
        worst = np.full((len(self.A), CLASSES), np.inf)
        for B in self.graphs():
            P = B / np.maximum(B.sum(1, keepdims=True), 1)
            inverse = np.linalg.inv(np.eye(len(B)) - (1 - ALPHA) * P)
            z = ALPHA * inverse @ self.H
            held = np.take_along_axis(z[: len(reference)], reference, 1)
            rows = slice(len(reference))
            worst[rows] = np.minimum(worst[rows], held - z[rows])
        return worst[: len(reference)]

    def logits(self):
        return torch.from_numpy(self.H.copy())

    def followed(self):
        return CurrentCertificate(
            self.logits(), None, self.threat(), alpha=ALPHA, method='dual'
        )


def check(world, held):
    """No bound is above, no stale one served; return what the bounds use."""
    reference = held.certificate.reference.numpy()[:, None]
    exact = world.margins(reference)
    np.put_along_axis(exact, reference, np.inf, 1)
    lower = held._lower.numpy()
    assert (lower <= exact + 1e-12).all()
    robust = held.status.numpy() == ROBUST
    assert (exact.min(1)[robust] > 0).all()
    return robust.sum()


def follow(rounds, steps, undirected, change=World.change):
    kept = total = 0
    for seed in range(rounds):
        world = World(seed, undirected)
        held = world.followed()
        for step in range(steps):
            before = held.debit
            change(world)
            held = held.after(
                world.logits(),
                None,
                world.threat(),
                solve=(seed + step) % 2 > 0,
            )
            assert (held.debit >= before).all()
            kept, total = kept + check(world, held), total + N
            if step % 3 == 2:
                held = held.renewed()
                check(world, held)
                assert not held.stale.any()
    return kept / total


@pytest.mark.parametrize('undirected', [False, True])
def test_no_stale_certificate_is_served_in_a_thousand_updates(undirected):
    share = follow(50, 10, undirected)
    # Some are kept, so that something was checked.
    assert share > (0.02 if undirected else 0.1)


@pytest.mark.parametrize('undirected', [False, True])
def test_a_new_node_that_anybody_may_be_linked_to(undirected):
    follow(40, 1, undirected, World.grow)


def without_new(old, new, undirected, kind):
    rows = ROWS(old, new, undirected, kind)
    rows[old.num_nodes :] = False
    return rows


def of_the_clean_graph(new, touched, now, tol):
    clean = new.with_budget(torch.zeros_like(new.budget))
    return SOLVED(clean, touched, now, tol)


ROWS, NEAR, SOLVED = current.changed_rows, current._near, current._solved


@pytest.mark.parametrize(
    ('name', 'fault'),
    [('changed_rows', without_new), ('_solved', of_the_clean_graph)],
)
def test_planted_faults_of_a_new_node_are_seen(monkeypatch, name, fault):
    monkeypatch.setattr(current, name, fault)
    with pytest.raises(AssertionError):
        follow(80, 1, False, World.grow)


def test_a_planted_debit_that_does_not_add_up_is_seen(monkeypatch):
    after = CurrentCertificate.after

    def forgetting(self, *args, **kwargs):
        made = after(self, *args, **kwargs)
        made._lower = self.certificate.class_margins - made.debit + self.debit
        return made

    monkeypatch.setattr(CurrentCertificate, 'after', forgetting)
    with pytest.raises(AssertionError):
        follow(50, 10, False)


def visits(B, touched, K):
    """The exact chance to visit these before the stop, for every node."""
    P = (1 - ALPHA) * B / np.maximum(B.sum(1, keepdims=True), 1)
    P[touched] = 0
    if K is None:
        return np.linalg.solve(np.eye(len(B)) - P, touched * 1.0)
    h = touched * 1.0
    for _ in range(K):
        h = np.where(touched, 1.0, P @ h)
    return h


def every_row(world):
    """All pairs may flip, at most two at a node: as many graphs as few."""
    world.fragile, world.local = world.pairs(), np.minimum(world.local, 1)
    world.budget, world.limited = 2, True


def check_visits(K, bounds, rounds=40):
    """No graph of small worlds has a chance above a bound."""
    for seed in range(rounds):
        world = World(seed, seed % 2 > 0)
        if seed % 3 == 0:
            world.grow()
        elif seed % 3 == 1:
            every_row(world)
        touched = world.draw.random(len(world.A)) < 0.3
        touched[0] = seed % 4 > 0
        if not touched.any():
            continue
        exact = np.max([visits(B, touched, K) for B in world.graphs()], 0)
        now = Deployed.of_logits(world.logits(), ALPHA, world.threat().graph)
        made = world.threat().perturbations
        if seed % 3 == 1 and seed % 2 == 0:
            made = ThreatModel(
                world.threat().graph,
                'both',
                fixed='none',
                local_budget=torch.from_numpy(world.local),
            ).perturbations
            assert made.all_pairs
        now = replace(now, K=K)
        for bound in bounds:
            h = bound(made, torch.from_numpy(touched), now).numpy()
            assert (h >= exact).all()
            assert (h[touched] == 1).all()


COARSE = partial(SOLVED, tol=current._COARSE)
FINE = partial(SOLVED, tol=current._FINE)


@pytest.mark.parametrize('K', [None, 1, 3])
def test_chances_of_a_visit_hold_in_every_graph(K):
    check_visits(K, (NEAR, COARSE, FINE))


class OffByTheGap(Horizon):
    side = 0

    def maximize(self, *args, **kwargs):
        found = super().maximize(*args, **kwargs)
        return replace(found, high=self.side * found.low)


class OnTheWrongSide(OffByTheGap):
    side = 1


def without_pairs(new, touched, now):
    made = Perturbations(new.graph, new.removable, new.budget)
    return NEAR(made, touched, now)


def with_free_rows(new, touched, now, tol):
    return SOLVED(new, touched & (new.graph.degree > 2), now, tol)


@pytest.mark.parametrize('wrong', [OffByTheGap, OnTheWrongSide])
def test_planted_faults_of_the_gap_are_seen(monkeypatch, wrong):
    monkeypatch.setattr(current, 'Horizon', wrong)
    with pytest.raises(AssertionError):
        check_visits(None, (COARSE,))


@pytest.mark.parametrize(
    'bound',
    [
        without_pairs,
        partial(of_the_clean_graph, tol=current._FINE),
        partial(with_free_rows, tol=current._FINE),
    ],
)
def test_planted_faults_of_chances_are_seen(bound):
    with pytest.raises(AssertionError):
        check_visits(None, (bound,))


@pytest.mark.parametrize('how', [{}, {'undirected': True}, {'K': 4}])
def test_a_coarse_solve_keeps_nearly_what_a_fine_one_keeps(how):
    K, n = how.pop('K', None), 400
    edges = ring(n, 300)
    draw = torch.Generator().manual_seed(1)
    now = Deployed.of_logits(torch.zeros(n, 2).double(), 0.15, edges_of(edges))
    pairs = torch.randint(n, (2, 50), generator=draw)
    threat = ThreatModel(edges_of(edges), local_budget=1, **how)
    if not how:
        threat = explicit(edges, pairs)
    touched = torch.rand(n, generator=draw) < 0.02
    coarse, fine = (
        each(threat.perturbations, touched, replace(now, K=K))
        for each in (COARSE, FINE)
    )
    assert (coarse >= fine - 2 * current._FINE).all()
    assert (coarse <= fine + 2 * current._COARSE).all()
    assert (fine < NEAR(threat.perturbations, touched, now)).sum() > n / 2


def edges_of(edges):
    return CSRGraph.from_edge_index(edges, 400)


def explicit(edges, pairs):
    key = edges[0] * 400 + edges[1]
    new = (pairs[0] * 400 + pairs[1]).unique()
    new = new[~torch.isin(new, key) & (new // 400 != new % 400)]
    fragile = torch.cat(
        [edges[:, ::3], torch.stack([new // 400, new % 400])], 1
    )
    return ThreatModel(edges_of(edges), fragile, local_budget=2)


def ring(n, chords=0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    at = torch.arange(n)
    pairs = torch.stack([at, (at + 1) % n])
    more = torch.randint(n, (2, chords), generator=draw)
    pairs = torch.cat([pairs, more[:, more[0] != more[1]]], 1)
    return torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1)


@pytest.mark.parametrize(
    'how',
    [
        {'K': 2},
        {'K': None},
        {'K': 3, 'normalization': 'sym'},
        {'K': None, 'add_self_loops': True},
    ],
)
def test_deployed_models_are_followed(how):
    torch.manual_seed(1)
    n = 40
    x = torch.eye(n)[:, :8] * 3 + torch.rand(n, 8)
    model = PPNP(torch.nn.Linear(8, 3), alpha=0.4, **how).eval()

    def graph(edges):
        return Data(x=x, edge_index=edges, num_nodes=n)

    def threat(edges):
        return ThreatModel(
            CSRGraph.from_edge_index(edges, n), local_budget=1, fixed='none'
        )

    edges = ring(n, 10)
    held = CurrentCertificate(model, graph(edges), threat(edges))
    start = held.kept
    assert start > 0
    data = graph(edges)
    for seed in range(4):
        gone = edges[:, 5 * seed]
        back = (edges[0] == gone[1]) & (edges[1] == gone[0])
        edges = edges[:, ~(back | (edges == gone[:, None]).all(0))]
        data = graph(edges)
        held = held.after(model, data, threat(edges))
        fresh = certify_pagerank(
            model, data, threat(edges), reference=whole(held, n)
        )
        assert (held.lower <= fresh.lower + 1e-9).all()
    assert 0 < held.kept <= start
    assert held.root == fingerprint_data(data)
    robust = held.targets[held.status == ROBUST]
    assert (held.status_of(robust, fingerprint_data(data)) == ROBUST).all()
    with pytest.raises(ValueError, match="'root'"):
        held.status_of(robust, 'another')
    with pytest.raises(ValueError, match='stale'):
        held.status_of(held.targets[held.stale], held.root)
    with pytest.raises(ValueError, match='no target'):
        held.status_of(torch.tensor([n]), held.root)
    renewed = held.renewed()
    assert renewed.kept >= held.kept
    renewed.status_of(renewed.targets, held.root)
    assert held.stale.any()


def whole(held, n):
    made = torch.zeros(n, dtype=torch.int64)
    made[held.targets] = held.certificate.reference
    return made


def two_rings():
    return torch.cat([ring(8), ring(8) + 8], 1)


def test_another_component_keeps_everything():
    edges = two_rings()
    H = torch.randn(16, 2, generator=torch.Generator().manual_seed(0)).double()
    cut = edges[:, ~((edges[0] < 2) & (edges[1] < 2))]
    threats = [
        ThreatModel(CSRGraph.from_edge_index(e, 16), local_budget=1)
        for e in (edges, cut)
    ]
    before = CurrentCertificate(H, None, threats[0])
    held = before.after(H, None, threats[1])
    assert (held.debit[8:] == 0).all()
    assert torch.equal(held.status[8:], before.status[8:])
    assert not held.stale[8:].any()
    assert (held.debit[:8].amax(1) > 0).all()


def test_what_can_not_be_followed_makes_all_stale_or_is_refused():
    edges = ring(8)
    graph = CSRGraph.from_edge_index(edges, 8)
    H = torch.randn(8, 2).double()
    held = CurrentCertificate(
        H, None, ThreatModel(graph, global_budget=1), method='dual'
    )
    more = held.after(H, None, ThreatModel(graph, global_budget=2))
    assert (more.status != ROBUST).all()
    assert more.stale.all()
    small = CSRGraph.from_edge_index(ring(7), 7)
    with pytest.raises(ValueError, match='at least 8 nodes'):
        held.after(H[:7], None, ThreatModel(small, global_budget=1))
    with pytest.raises(ValueError, match='2 classes'):
        held.after(
            torch.randn(8, 3).double(),
            None,
            ThreatModel(graph, global_budget=1),
        )


def test_an_attack_of_more_flips_than_now_is_not_served():
    edges = ring(4)
    graph = CSRGraph.from_edge_index(edges, 4)
    H = torch.tensor([[-1.5, 0], [2, 1], [1, -0.5], [-1.5, 1]]).double()
    two, one = (
        ThreatModel(graph, fixed='none', local_budget=1, global_budget=b)
        for b in (2, 1)
    )
    wide = certify_pagerank(H, None, two, alpha=0.2, method='exact')
    close = certify_pagerank(H, None, one, alpha=0.2, method='exact')
    turned = (wide.status == BROKEN) & (close.status != BROKEN)
    assert turned.any()
    held = CurrentCertificate(H, None, two, alpha=0.2, method='exact')
    held = held.after(H, None, one)
    assert held.stale[turned].all()
    assert (held.renewed().status == close.status)[turned].all()


def test_what_changes_in_place_is_not_served():
    edges = ring(8)
    threat = ThreatModel(CSRGraph.from_edge_index(edges, 8), local_budget=1)
    H = torch.tensor([[3.0, 0]] * 8, dtype=torch.float64)
    held = CurrentCertificate(H, None, threat)
    assert (held.status == ROBUST).all()
    H.copy_(H.flip(1))
    assert (held.after(H, None, threat).status != ROBUST).all()
    model = PPNP(torch.nn.Linear(2, 2), K=2, alpha=0.4).eval()
    data = Data(x=H.float(), edge_index=edges, num_nodes=8)
    held = CurrentCertificate(model, data, threat)
    for change in (next(model.parameters()), data.x):
        was = change.detach().clone()
        with torch.no_grad():
            change.neg_()
        with pytest.raises(ValueError, match='in place'):
            held.renewed()
        with torch.no_grad():
            change.copy_(was)
    held.renewed()


@pytest.fixture(scope='module')
def smoothed():
    torch.manual_seed(0)
    n = 30
    x = (torch.rand(n, 6) < 0.4).float()
    data = Data(x=x, edge_index=ring(n, 20), num_nodes=n)
    model = GCN(6, 8, 2, 2).eval()
    noise = BitFlips(edges=(0.01, 0.3), features=(0.02, 0.4))
    return model, data, certify(model, data, noise, num_samples=2000)


def moved(data):
    """Two edges gone, one come, and a bit of the features of each kind."""
    edges = data.edge_index
    links = {*map(tuple, edges.t().tolist())}
    gone = sorted(e for e in links if e[0] < e[1])[:2]
    new = next(
        (u, v) for u in range(30) for v in range(u) if (u, v) not in links
    )
    links -= {*gone, *(e[::-1] for e in gone)}
    links |= {new, new[::-1]}
    x = data.x.clone()
    x.view(-1)[int((x == 0).view(-1).nonzero()[0])] = 1
    x.view(-1)[int((x == 1).view(-1).nonzero()[-1])] = 0
    edges = torch.tensor(sorted(links)).t()
    return Data(x=x, edge_index=edges, num_nodes=30)


def test_smoothed_classes_stay_within_smaller_radii(smoothed, monkeypatch):
    model, data, found = smoothed
    certified, asked = type(found).certified, []

    def recorded(self, **radii):
        asked.append(radii)
        return certified(self, **radii)

    monkeypatch.setattr(type(found), 'certified', recorded)
    left = certified_after(found, model, data, moved(data), edges=(0, 1))
    # Not the larger of both kinds, but their sum, around the graph of then.
    assert asked[-1] == {'edges': (1, 3), 'features': (1, 1)}
    assert torch.equal(left, found.certified(**asked[-1]))
    same = certified_after(found, model, data, data, edges=(0, 1))
    assert torch.equal(same, found.certified(edges=(0, 1)))
    assert same.any()


def test_smoothed_classes_of_another_model_or_graph_are_refused(smoothed):
    model, data, found = smoothed
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)
    with pytest.raises(ValueError, match="'model'"):
        certified_after(found, other, data, data)
    with pytest.raises(ValueError, match="'before'"):
        certified_after(found, model, moved(data), data)
    for change in (
        {'num_nodes': 31, 'x': torch.ones(31, 6)},
        {'y': torch.zeros(30)},
        {'x': data.x + 0.5},
    ):
        now = data.clone()
        for name, value in change.items():
            now[name] = value
        with pytest.raises(ValueError, match="'now'"):
            certified_after(found, model, data, now)


@pytest.mark.parametrize('kind', ['edges', 'features'])
def test_edges_that_a_set_would_hide_are_refused(kind):
    torch.manual_seed(0)
    x, edges = torch.randint(2, (12, 3)).float(), ring(12, 4)
    data = Data(x=x, edge_index=edges, num_nodes=12)
    if kind == 'features':
        data.edge_weight = torch.rand(edges.size(1))
    model = GCN(3, 4, 2, 2).eval()
    noise = BitFlips(**{kind: (0.01, 0.3)})
    found = certify(model, data, noise, num_samples=200)
    certified_after(found, model, data, data.clone())
    changes = [edges[:, 1:], torch.cat([edges, edges[:, :2]], 1)]
    changes += [edges.flip(1)] * (kind == 'features')
    for change in changes:
        now = data.clone()
        now.edge_index = change
        with pytest.raises(ValueError, match='edge'):
            certified_after(found, model, data, now)


class SelfLoops(torch.nn.Module):
    """Another class for a node with a self-loop."""

    def forward(self, x, edge_index):
        own = edge_index[0][edge_index[0] == edge_index[1]]
        has = torch.zeros(x.size(0)).index_fill(0, own, 1.0)
        return torch.stack([0.5 - has, has], 1)


@pytest.mark.parametrize('came', [True, False])
def test_self_loops_have_no_noise_and_may_not_differ(came):
    plain = Data(x=torch.ones(12, 1), edge_index=ring(12, 4), num_nodes=12)
    looped = plain.clone()
    own = torch.tensor([[3], [3]])
    looped.edge_index = torch.cat([plain.edge_index, own], 1)
    before, now = (plain, looped) if came else (looped, plain)
    noise = BitFlips(edges=(0.1, 0.3))
    model = SelfLoops().eval()
    found = certify(model, before, noise, num_samples=500)
    assert found.certified(edges=(1, 1))[3]
    # The class of this node is another one, in every copy.
    of = [int(model(d.x, d.edge_index)[3].argmax()) for d in (before, now)]
    assert of == [1 - came, came]
    with pytest.raises(ValueError, match='self-loops'):
        certified_after(found, model, before, now)


@pytest.mark.parametrize('change', ['not a number', 'one column'])
def test_features_without_noise_may_not_differ(change):
    torch.manual_seed(0)
    x = torch.randint(2, (12, 3)).float()
    data = Data(x=x.clone(), edge_index=ring(12, 4), num_nodes=12)
    if change == 'not a number':
        data.x[0, 0] = math.nan
    model = GCN(3, 4, 2, 2).eval()
    noise = BitFlips(edges=(0.01, 0.3))
    found = certify(model, data, noise, num_samples=200)
    now = data.clone()
    now.x = x if change == 'not a number' else x[:, :1]
    with pytest.raises(ValueError, match="'now'"):
        certified_after(found, model, data, now)


def test_a_restart_serves_no_stale_certificate(tmp_path):
    # Debits outlive the process: saved and loaded at every step.
    path = tmp_path / 'current.pt'
    for seed in range(4):
        world = World(seed, seed % 2 > 0)
        held = world.followed()
        for _ in range(4):
            was = world.logits(), None, world.threat()
            held.save(path)
            again = CurrentCertificate.load(path, *was)
            world.change()
            now = world.logits(), None, world.threat()
            held, again = held.after(*now), again.after(*now)
            check(world, again)
            for name in ('status', 'stale', 'lower', 'debit', 'targets'):
                assert torch.equal(getattr(held, name), getattr(again, name))
            assert again.root == held.root
            moved = was[0].clone()
            moved[3, 1] += 2.0**-40
            for other in (
                (moved, *was[1:]),
                (*was[:2], World(9, False).threat()),
            ):
                with pytest.raises(ValueError, match='follow the update'):
                    CurrentCertificate.load(path, *other)
            again = again.renewed()
            check(world, again)
            assert not again.stale.any()


@pytest.mark.parametrize('change', ['shape', 'none', 'field', 'file'])
def test_a_damaged_file_of_a_certificate_is_refused(tmp_path, change):
    world = World(0, False)
    world.followed().save(path := tmp_path / 'current.pt')
    state = files.load(path)
    if change == 'shape':
        state['debit'] = state['debit'][:, :1]
    elif change == 'none':
        del state['_fresh']
    elif change == 'field':
        state['certificate']['extra'] = 1
    else:
        state = {'format': 1}
    files.save(path, state)
    with pytest.raises(ValueError, match='state'):
        CurrentCertificate.load(path, world.logits(), None, world.threat())
