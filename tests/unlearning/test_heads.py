"""Heads: the step, the residual, and bounds, against dense oracles."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyg_trust import ops
from pyg_trust.agp.measures import Measure, appnp, sgc
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.unlearning import heads as H
from pyg_trust.unlearning import newton as N
from pyg_trust.unlearning.feature_errors import (
    column_residual,
    feature_error_bound,
)
from pyg_trust.unlearning.removal_bounds import tight_bound

SEQUENCES = ('sequence', 'sequence_appnp')


def load(shared, name):
    held = np.load(shared / f'oracles/node_unlearning/{name}.npz')
    return {
        key: torch.from_numpy(value.copy())
        for key, value in held.items()
        if value.dtype.kind in 'fiub'
    }


def objectives(oracle, head):
    """The objective at the fit and after each request."""
    y = oracle['y'].clone().long()
    classes = int(y.max()) + 1
    y[~oracle['train'].bool()] = -1
    B = oracle['B'] if head == 'ovr' else None
    lam = float(oracle['lam'])

    def made(Z):
        Z = Z.clone()
        Z[y < 0] = 0
        Y = H.targets(y, classes, head)
        return H.Objective(Z, Y, lam * int((y >= 0).sum()), head, B)

    yield made(oracle['Z_fit'])
    for k, (kind, u, _) in enumerate(oracle['requests'].tolist()):
        if kind in (0, 3):
            y[u] = -1
        assert int((y >= 0).sum()) == int(oracle['num_train'][k])
        yield made(oracle['Z_after'][k])


@pytest.mark.parametrize('head', ['ovr', 'softmax'])
@pytest.mark.parametrize('name', SEQUENCES)
def test_steps_of_a_sequence_are_those_of_dense_algebra(shared, name, head):
    oracle = load(shared, name)
    made = objectives(oracle, head)
    first = next(made)
    W = oracle[f'{head}/W_fit']
    found = N.refine(first, torch.zeros_like(W), 1e-11, 50)
    torch.testing.assert_close(found.W, W, rtol=0, atol=1e-9)
    frozen, factor = W, first.factor(W)

    def alike(mine, what, k):
        wanted = float(oracle[f'{head}/{what}'][k])
        assert mine == pytest.approx(wanted, rel=1e-7, abs=1e-11), (what, k)

    for k, objective in enumerate(made):
        before = objective.gradient(W)
        alike(before.norm.measured, 'residual_before', k)
        P = objective.factor(W).solve(before.value)
        bound = tight_bound(objective.Z, P, head)
        alike(bound, 'bound_tight', k)
        W = W - P
        torch.testing.assert_close(
            W, oracle[f'{head}/W_newton'][k], rtol=0, atol=1e-9
        )
        after = objective.gradient(W).norm
        alike(after.measured, 'residual_newton', k)
        # What rounding hides counts: some requests change nothing.
        assert after.measured <= bound + 2 * (after.upper - after.measured)
        frozen = frozen - factor.solve(objective.gradient(frozen).value)
        torch.testing.assert_close(
            frozen, oracle[f'{head}/W_frozen'][k], rtol=0, atol=1e-9
        )
        norm = objective.gradient(frozen).norm
        alike(norm.measured, 'residual_frozen', k)
        exact = oracle[f'{head}/W_exact'][k]
        distance = float((frozen - exact).norm())
        alike(distance, 'distance_frozen', k)
        assert distance <= norm.upper / objective.mu


def test_a_step_with_the_change_alone_accumulates(shared):
    # The papers' step corrects what the request changed and carries along
    # what earlier steps left; the step with the full gradient corrects both.
    oracle = load(shared, 'sequence')
    made = objectives(oracle, 'ovr')
    last = next(made)
    change = full = oracle['ovr/W_fit']
    factor = last.factor(change)
    left = {'change': [], 'full': []}
    for objective in made:
        gap = objective.gradient(change).value - last.gradient(change).value
        change = change - factor.solve(gap)
        full = full - factor.solve(objective.gradient(full).value)
        for name, W in (('change', change), ('full', full)):
            left[name].append(objective.gradient(W).norm.measured)
        last = objective
    assert left['change'][-1] > 3 * left['full'][-1]
    # Requests that change nothing: one has to live with what is left.
    for _ in range(20):
        gap = objective.gradient(change).value - last.gradient(change).value
        change = change - factor.solve(gap)
        full = full - factor.solve(objective.gradient(full).value)
    assert objective.gradient(change).norm.measured == left['change'][-1]
    assert objective.gradient(full).norm.upper < 1e-6


def random_objective(head, seed, n=60, d=5, classes=4, lam=0.05, B=False):
    random = torch.Generator().manual_seed(seed)
    Z = torch.randn((n, d), generator=random, dtype=torch.float64)
    y = torch.randint(classes, (n,), generator=random)
    y[:classes] = torch.arange(classes)
    Y = H.targets(y, classes, head)
    noise = torch.randn((d, Y.size(1)), generator=random).double()
    return H.Objective(Z, Y, lam * n, head, noise if B else None), random


def loss(objective, W):
    """The formula of each head, by autograd's means."""
    A, Y = objective.Z @ W, objective.Y
    if objective.head == 'ovr':
        data = torch.nn.functional.softplus(-Y * A).sum()
    elif objective.head == 'softmax':
        data = -(Y * A.log_softmax(1)).sum()
    else:
        data = (A - Y).square().sum()
    total = data + objective.mu / 2 * W.square().sum()
    return total if objective.B is None else total + (objective.B * W).sum()


@pytest.mark.parametrize('classes', [2, 4])
@pytest.mark.parametrize('head', H.HEADS)
def test_gradient_and_hessian_are_derivatives_of_the_loss(head, classes):
    objective, random = random_objective(head, 0, classes=classes, B=True)
    shape = objective.Z.size(1), objective.Y.size(1)
    W = torch.randn(shape, generator=random, dtype=torch.float64)
    found = objective.gradient(W)
    V = W.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(objective, V), V)
    torch.testing.assert_close(found.value, wanted)
    assert found.norm.measured == pytest.approx(float(wanted.norm()))
    assert found.norm.measured < found.norm.upper
    P = torch.randn(shape, generator=random, dtype=torch.float64)
    h = 1e-6
    ahead, behind = (objective.gradient(W + s * h * P).value for s in (1, -1))
    times = objective.times(W, P)
    torch.testing.assert_close(
        times, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(objective.factor(W).solve(times), P)


def test_the_majoriser_is_above_the_hessian(monkeypatch):
    objective, random = random_objective('softmax', 1)
    monkeypatch.setattr(H, 'JOINT_LIMIT', 0)
    W = torch.randn((5, 4), generator=random, dtype=torch.float64)
    factor = objective.factor(W)
    assert factor.kind == 'majoriser'
    for _ in range(50):
        P = torch.randn((5, 4), generator=random, dtype=torch.float64)
        # P' H P <= P' M P, with P = M^-1 Q.
        solved = factor.solve(P)
        above = float((solved * P).sum())
        assert float((solved * objective.times(W, solved)).sum()) <= above


@pytest.mark.parametrize('limit', [0, 1024])
def test_softmax_reaches_what_newton_reaches(monkeypatch, limit):
    # The majoriser alone stalls; conjugate gradients do not.
    monkeypatch.setattr(H, 'JOINT_LIMIT', limit)
    objective, _ = random_objective('softmax', 2, lam=1e-3)
    start = torch.zeros((5, 4), dtype=torch.float64)
    found = N.refine(objective, start, 1e-9, 30)
    assert found.gradient.norm.upper <= 1e-9
    again = N.refine(objective, found.W + 0.1, 1e-9, 30, factor=found.factor)
    assert again.gradient.norm.upper <= 1e-9
    torch.testing.assert_close(again.W, found.W, rtol=0, atol=1e-7)


def test_a_useless_factor_is_replaced():
    objective, _ = random_objective('ovr', 3)
    other, _ = random_objective('ovr', 4, lam=500.0)
    W = torch.zeros((5, 4), dtype=torch.float64)
    found = N.refine(objective, W, 1e-9, 20, factor=other.factor(W))
    assert found.gradient.norm.upper <= 1e-9
    assert found.iterations < 20


@pytest.mark.parametrize('d', [5, H.INVERSE_LIMIT + 1])
@pytest.mark.parametrize('head', H.HEADS)
def test_a_factor_that_is_kept_solves_the_same(head, d):
    random = torch.Generator().manual_seed(21)
    Z = torch.randn((40, d), generator=random).double()
    Y = H.targets(torch.arange(40) % 3, 3, head)
    W = torch.randn((d, 3), generator=random).double()
    factor = H.Objective(Z, Y, 0.3, head).factor(W)
    kept = factor.kept()
    assert (kept.inverse is not None) == (head == 'ovr' and d == 5)
    # A matrix whose columns are not contiguous, as steps are.
    right = torch.randn((3, d), generator=random).double().t()
    torch.testing.assert_close(kept.solve(right), factor.solve(right))


@pytest.mark.parametrize('separate', [True, False])
def test_corrected_steps_are_those_of_the_matrix_of_bfgs(separate):
    # Nocedal and Wright 2006, (6.17), written out for every problem.
    random = torch.Generator().manual_seed(8)
    d, outputs = 4, 3

    def draw(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64)

    root = draw(d, d)
    inverse = root @ root.t() + torch.eye(d)
    steps, grad = draw(2, d, outputs), draw(d, outputs)
    changes = steps + 0.2 * draw(2, d, outputs)
    if separate:
        # An output that was solved before, and one with a negative curvature.
        changes[0, :, 1] = steps[0, :, 1] = 0
        changes[1, :, 2] = -steps[1, :, 2]
    pairs = torch.stack([steps, changes], dim=1)
    found = N._corrected(grad, pairs, lambda g: inverse @ g, separate)
    if separate:
        # A third pair is there, and does not count.
        held = torch.cat([pairs, pairs[:1]])
        each = inverse.expand(outputs, d, d).contiguous()
        torch.testing.assert_close(
            ops.quasi_newton(grad, each, held, 2), found
        )
    if separate:
        problems = [(inverse, slice(c, c + 1)) for c in range(outputs)]
    else:
        problems = [
            (torch.kron(inverse, torch.eye(outputs)), slice(0, outputs))
        ]
    for matrix, at in problems:
        for s, y in zip(steps, changes, strict=True):
            s, y = s[:, at].reshape(-1).double(), y[:, at].reshape(-1).double()
            if s @ y <= 0:
                continue
            left = torch.eye(len(s)) - torch.outer(s, y) / (s @ y)
            matrix = left @ matrix @ left.t() + torch.outer(s, s) / (s @ y)
        expected = matrix @ grad[:, at].reshape(-1)
        torch.testing.assert_close(found[:, at].reshape(-1), expected)


def test_outputs_that_are_problems_of_their_own_take_fewer_steps(monkeypatch):
    steps = {}
    for separate in (True, False):
        monkeypatch.setattr(H.Factor, 'separate', separate)
        steps[separate] = 0
        for seed in range(8):
            objective, _ = random_objective('ovr', seed)
            other, _ = random_objective('ovr', seed + 8)
            W = torch.zeros((5, 4), dtype=torch.float64)
            found = N.refine(objective, W, 1e-9, 40, factor=other.factor(W))
            assert found.gradient.norm.upper <= 1e-9
            steps[separate] += found.iterations
    assert steps[True] < steps[False]


def whole_gradient(objective, W):
    """All columns, by autograd."""
    V = W.clone().requires_grad_()
    return torch.autograd.grad(loss(objective, V), V)[0]


@pytest.mark.parametrize('head', ['ovr', 'squared'])
def test_a_residual_does_not_hide_in_columns_that_take_no_step(head):
    # Whoever knows that columns with less than half of what is allowed stay
    # where they are puts the residual there.
    objective, _ = random_objective(head, 9, classes=5, B=True)
    other, _ = random_objective(head, 10, classes=5)
    exact = N.refine(objective, torch.zeros((5, 5)).double(), 1e-12, 50)
    tol = 1e-3
    left = torch.zeros((5, 5), dtype=torch.float64)
    left[0, :3], left[1, 3:] = 0.28 * tol, 40 * tol
    start = exact.W + exact.factor.solve(left)
    factor = other.factor(torch.zeros((5, 5)).double())
    found = N.refine(objective, start, tol, 40, factor=factor)
    assert torch.equal(found.W[:, :3], start[:, :3])
    assert not (found.W[:, 3:] == start[:, 3:]).any()
    # What they hold is most of what is left, and it counts.
    truth = whole_gradient(objective, found.W)
    assert float(truth[:, :3].norm()) > 0.4 * tol
    assert float(truth.norm()) <= found.gradient.norm.upper <= tol
    torch.testing.assert_close(found.gradient.value, truth)
    # To the bit what a pass over all columns finds, rounding included.
    again = objective.gradient(found.W)
    assert found.gradient.norm == again.norm
    assert torch.equal(found.gradient.value, again.value)


@pytest.mark.parametrize('head', ['ovr', 'squared'])
@pytest.mark.parametrize('classes', [3, 7, 12])
def test_gradients_of_columns_that_moved_are_those_of_all(head, classes):
    objective, random = random_objective(head, 11, classes=classes, B=True)
    W = torch.randn((5, classes), generator=random, dtype=torch.float64)
    known = objective.gradient(W)
    for _ in range(10):
        columns = torch.randperm(classes, generator=random)[: classes // 2]
        W = W.clone()
        W[:, columns] += torch.randn(
            (5, columns.numel()), generator=random, dtype=torch.float64
        )
        known = objective.moved(W, known, columns)
        again = objective.gradient(W)
        assert known.norm == again.norm
        assert torch.equal(known.value, again.value)
        assert known.sizes == again.sizes
        assert known.slopes == again.slopes


def test_columns_take_turns_until_all_are_there(monkeypatch):
    # Every column is left out at some time, and comes back.
    counts, moved = [], H.Objective.moved

    def counted(self, W, known, columns):
        counts.append(columns.numel())
        return moved(self, W, known, columns)

    monkeypatch.setattr(H.Objective, 'moved', counted)
    for seed in range(20):
        objective, random = random_objective('ovr', seed, classes=6)
        other, _ = random_objective('ovr', seed + 20, classes=6)
        W = torch.randn((5, 6), generator=random, dtype=torch.float64)
        scale = torch.logspace(-12, 0, 6, dtype=torch.float64)
        W = N.refine(objective, W, 1e-11, 50).W + scale * W
        found = N.refine(objective, W, 1e-9, 40, factor=other.factor(W))
        assert found.gradient.norm.upper <= 1e-9
        assert found.gradient.norm == objective.gradient(found.W).norm
        truth = whole_gradient(objective, found.W)
        assert float(truth.norm()) <= found.gradient.norm.upper
    assert {1, 2, 3, 4, 5} <= set(counts)


def test_one_exact_step_solves_least_squares():
    objective, _ = random_objective('squared', 5)
    W = torch.zeros((5, 4), dtype=torch.float64)
    found = N.refine(objective, W, 1e-10, 9)
    assert found.iterations == 1
    assert tight_bound(objective.Z, found.W, 'squared') == 0


@pytest.mark.parametrize('head', H.HEADS)
def test_rows_with_targets_of_zero_do_not_count(head):
    objective, random = random_objective(head, 6)
    W = torch.randn((5, 4), generator=random, dtype=torch.float64)
    Y, Z = objective.Y.clone(), objective.Z.clone()
    Y[::2], Z[::2] = 0, 0
    some = objective._replace(Y=Y, Z=Z)
    rest = objective._replace(Y=Y[1::2], Z=Z[1::2])
    torch.testing.assert_close(some.gradient(W).value, rest.gradient(W).value)
    torch.testing.assert_close(some.factor(W).lower, rest.factor(W).lower)
    y = torch.tensor([0, -1, 3])
    assert not H.targets(y, 4, head)[1].any()


def test_distance_to_the_minimiser_is_bounded_for_any_weights():
    for head in H.HEADS:
        objective, random = random_objective(head, 7)
        zero = torch.zeros((5, 4), dtype=torch.float64)
        exact = N.refine(objective, zero, 1e-11, 40).W
        for scale in (1e-6, 1e-3, 1.0, 30.0):
            W = torch.randn((5, 4), generator=random, dtype=torch.float64)
            W = exact + scale * W
            bound = objective.gradient(W).norm.upper / objective.mu
            assert float((W - exact).norm()) <= bound


def test_the_constant_of_softmax_is_never_reached():
    # |D^3 l[u, h, h]| <= |u| |h|^2 / sqrt 2: the two-class value, 0.2722, is
    # the largest that a search finds.
    random = torch.Generator().manual_seed(8)
    largest = 0.0
    for classes in (2, 3, 5, 20, 50):
        size = (20_000, classes)
        spread = 3 * torch.rand((20_000, 1), generator=random)
        p = (spread * torch.randn(size, generator=random)).double().softmax(1)
        u = torch.randn(size, generator=random).double()
        h = torch.randn(size, generator=random).double()
        for _ in range(2):
            mean_h = (p * h).sum(1, keepdim=True)
            mean_u = (p * u).sum(1, keepdim=True)
            third = (p * (u - mean_u) * (h - mean_h).square()).sum(1).abs()
            size_of = u.norm(dim=1) * h.square().sum(1)
            largest = max(largest, float((third / size_of).max()))
            # The best u for this h, which is linear in it.
            u = p * ((h - mean_h).square())
            u = u - p * u.sum(1, keepdim=True)
    assert 0.26 < largest < H.GAMMA_2['softmax']


@pytest.mark.parametrize('head', ['ovr', 'softmax', 'squared'])
def test_what_an_error_of_the_features_adds_is_bounded(head):
    random = torch.Generator().manual_seed(9)
    for trial in range(40):
        objective, _ = random_objective(head, trial, n=20)
        W = torch.randn((5, 4), generator=random, dtype=torch.float64)
        W *= 10 ** float(3 * torch.rand((), generator=random) - 1)
        E = torch.randn((20, 5), generator=random).double()
        E *= 10 ** float(4 * torch.rand((), generator=random) - 3)
        G = H.slopes(objective.Z @ W, objective.Y, head)
        exact = objective._replace(Z=objective.Z + E)
        gap = exact.gradient(W).value - objective.gradient(W).value
        bound = feature_error_bound(float(E.norm()), G, W, objective.Z, head)
        assert float(gap.norm()) <= bound


def test_the_bound_has_the_norm_of_the_weights():
    # z = (1, 0), w = (0, 50), E = (0, rho): the change is 12.5 rho, not at
    # most 2 rho, as ScaleGUN's term has it.
    rho = 1e-4
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    W = torch.tensor([[0.0], [50.0]], dtype=torch.float64)
    Y = torch.ones((1, 1), dtype=torch.float64)
    E = torch.tensor([[0.0, rho]], dtype=torch.float64)
    near, exact = (
        H.Objective(Z, Y, 0.0, 'ovr').gradient(W).value for Z in (z, z + E)
    )
    change = float((exact - near).norm())
    assert change == pytest.approx(12.5 * rho, rel=1e-2)
    G = H.slopes(z @ W, Y, 'ovr')
    assert 2 * rho < change <= feature_error_bound(rho, G, W, z)


@pytest.mark.parametrize('head', ['ovr', 'softmax'])
def test_feature_terms_are_those_of_the_oracle(shared, head):
    oracle = load(shared, 'approximate')
    train = oracle['train'].long()
    Z, exact = oracle['z_approximate'][train], oracle['z_exact'][train]
    y = oracle['y'].long()
    classes = int(y.max()) + 1
    Y = H.targets(y[train], classes, head)
    mu = float(oracle['lam']) * train.numel()
    W = oracle[f'{head}/W']
    near, true = (H.Objective(z, Y, mu, head).gradient(W) for z in (Z, exact))
    what = oracle[f'{head}/residual_at_approximate_features']
    assert near.norm.measured == pytest.approx(float(what), abs=1e-11)
    torch.testing.assert_close(
        true.value,
        oracle[f'{head}/gradient_at_exact_features'],
        rtol=0,
        atol=1e-11,
    )
    eta = float(oracle['error_bound'])
    G = H.slopes(Z @ W, Y, head)
    bound = feature_error_bound(eta, G, W, Z, head)
    wanted = float(oracle[f'{head}/feature_term_bound'])
    assert bound == pytest.approx(wanted, rel=1e-7)
    gap = float((true.value - near.value).norm())
    assert gap == pytest.approx(
        float(oracle[f'{head}/feature_term_true']), rel=1e-7
    )
    # The way around: the exact gradient from two propagations of C columns.
    alpha = float(oracle['alpha'])
    graph = CSRGraph.from_edge_index(oracle['edge_index'], y.numel())
    found = column_residual(
        graph, appnp(alpha, levels=250), oracle['x'], W, Y, train, mu, head
    )
    torch.testing.assert_close(found, true.value, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    'measure', [sgc(2), Measure(0.3, 0.7, (0.5, 0.3, 0.2), True, True)]
)
def test_column_residual_is_the_gradient(measure):
    random = torch.Generator().manual_seed(10)
    pairs = torch.randint(40, (2, 90), generator=random)
    pairs = torch.unique(torch.cat([pairs, pairs.flip(0)], 1), dim=1)
    graph = CSRGraph.from_edge_index(pairs, 40)
    x = torch.randn((40, 6), generator=random, dtype=torch.float64)
    train = torch.arange(0, 40, 2)
    for head in H.HEADS:
        Y = H.targets(train % 3, 3, head)
        W = torch.randn((6, 3), generator=random, dtype=torch.float64)
        Z = propagate(graph, x, measure)[train]
        direct = H.Objective(Z, Y, 0.7, head).gradient(W).value
        found = column_residual(graph, measure, x, W, Y, train, 0.7, head)
        torch.testing.assert_close(found, direct, rtol=0, atol=1e-11)


def test_gradients_are_sound_at_large_margins():
    # sigmoid(-a) for a = 800 is 0, not NaN; and rounding is in the bound.
    Z = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    for head in H.HEADS:
        Y = H.targets(torch.tensor([0, 1]), 2, head)
        W = torch.full((1, Y.size(1)), 800.0, dtype=torch.float64)
        W[0, -1] = -800.0
        found = H.Objective(Z, Y, 0.0, head).gradient(W)
        assert bool(found.value.isfinite().all())
        assert math.isfinite(found.norm.upper)


@pytest.mark.parametrize('seed', range(3))
def test_margins_that_cancel_hide_no_more_than_the_bound(seed):
    # Large features whose margins are almost the targets: the slopes are
    # small, and nearly all of them is rounding. The truth is in fractions.
    random = torch.Generator().manual_seed(seed)
    Z = 1e5 * torch.randn((12, 6), generator=random, dtype=torch.float64)
    W = torch.randn((6, 1), generator=random, dtype=torch.float64)
    Y = H.targets(torch.arange(12) % 2, 2, 'squared')[:, :1]
    W[-1] = 1.0
    Z[:, -1:] += Y - Z @ W
    found = H.Objective(Z, Y, 0.0, 'squared').gradient(W)
    exact = [Fraction(0)] * 6
    w = [Fraction(v) for v in W[:, 0].tolist()]
    for row, y in zip(Z.tolist(), Y[:, 0].tolist(), strict=True):
        z = [Fraction(v) for v in row]
        gap = sum(a * b for a, b in zip(z, w, strict=True)) - Fraction(y)
        exact = [e + 2 * gap * a for e, a in zip(exact, z, strict=True)]
    norm = math.sqrt(sum(e * e for e in exact))
    assert norm <= found.norm.upper
    off = [
        Fraction(v) - e
        for v, e in zip(found.value[:, 0].tolist(), exact, strict=True)
    ]
    hidden = found.norm.upper - found.norm.measured
    assert math.sqrt(sum(e * e for e in off)) <= hidden
