"""Heads and their solver: against dense algebra, autograd and fractions."""

import math

import numpy as np
import pytest
import torch
from heads import gradient
from heads import objective as stated

from pyg_trust.unlearning import heads as H
from pyg_trust.unlearning.heads import (
    gram,
    keep_rows,
    max_row_norm,
    minimize,
    spectral_norm,
    stacked,
)
from pyg_trust.unlearning.published import (
    paper_bound,
    removal_budget,
    tight_bound,
)

SEQUENCES = ('sequence', 'sequence_appnp')


def load(shared, name):
    held = np.load(shared / f'oracles/node_unlearning/{name}.npz')
    return {
        key: torch.from_numpy(value.copy())
        for key, value in held.items()
        if value.dtype.kind in 'fiub'
    }


def objectives(oracle):
    """The objective at the fit and after each request."""
    y = oracle['y'].clone().long()
    classes = int(y.max()) + 1
    y[~oracle['train'].bool()] = -1
    lam = float(oracle['lam'])

    def made(Z):
        Z = Z.clone()
        Z[y < 0] = 0
        mu = lam * int((y >= 0).sum())
        return H.Objective(Z, H.targets(y, classes), mu, oracle['B'])

    yield made(oracle['Z_fit'])
    for k, (kind, u, _) in enumerate(oracle['requests'].tolist()):
        if kind in (0, 3):
            y[u] = -1
        assert int((y >= 0).sum()) == int(oracle['num_train'][k])
        yield made(oracle['Z_after'][k])


@pytest.mark.parametrize('name', SEQUENCES)
def test_steps_of_a_sequence_are_those_of_dense_algebra(shared, name):
    oracle = load(shared, name)
    made = objectives(oracle)
    first = next(made)
    W = oracle['ovr/W_fit']
    found = H.refine(first, torch.zeros_like(W), 1e-11, 50)
    torch.testing.assert_close(found.W, W, rtol=0, atol=1e-9)
    frozen, factor = W, first.factor(W)

    def alike(mine, what, k):
        wanted = float(oracle[f'ovr/{what}'][k])
        assert mine == pytest.approx(wanted, rel=1e-7, abs=1e-11), (what, k)

    for k, objective in enumerate(made):
        before = objective.gradient(W)
        alike(before.norm.measured, 'residual_before', k)
        P = objective.factor(W).solve(before.value)
        bound = tight_bound(objective.Z, P)
        alike(bound, 'bound_tight', k)
        W = W - P
        torch.testing.assert_close(
            W, oracle['ovr/W_newton'][k], rtol=0, atol=1e-9
        )
        after = objective.gradient(W).norm
        alike(after.measured, 'residual_newton', k)
        # What rounding hides counts: some requests change nothing.
        assert after.measured <= bound + 2 * (after.upper - after.measured)
        frozen = frozen - factor.solve(objective.gradient(frozen).value)
        torch.testing.assert_close(
            frozen, oracle['ovr/W_frozen'][k], rtol=0, atol=1e-9
        )
        norm = objective.gradient(frozen).norm
        alike(norm.measured, 'residual_frozen', k)
        distance = float((frozen - oracle['ovr/W_exact'][k]).norm())
        alike(distance, 'distance_frozen', k)
        assert distance <= norm.upper / objective.mu


def drawn(seed, n=60, d=5, classes=4, lam=0.05, B=False):
    random = torch.Generator().manual_seed(seed)
    Z = torch.randn((n, d), generator=random, dtype=torch.float64)
    y = torch.randint(classes, (n,), generator=random)
    y[:classes] = torch.arange(classes)
    Y = H.targets(y, classes)
    noise = torch.randn((d, Y.size(1)), generator=random).double()
    return H.Objective(Z, Y, lam * n, noise if B else None), random


def loss(objective, W):
    """The formula, by autograd's means."""
    A = objective.Z.to_dense() @ W
    total = torch.nn.functional.softplus(-objective.Y * A).sum()
    total = total + objective.mu / 2 * W.square().sum()
    return total if objective.B is None else total + (objective.B * W).sum()


def whole_gradient(objective, W):
    V = W.clone().requires_grad_()
    return torch.autograd.grad(loss(objective, V), V)[0]


@pytest.mark.parametrize('sparse', [False, True])
@pytest.mark.parametrize('classes', [2, 4])
def test_gradient_and_hessian_are_derivatives_of_the_loss(classes, sparse):
    objective, random = drawn(0, classes=classes, B=True)
    if sparse:
        objective = objective._replace(Z=objective.Z.to_sparse_csr())
    shape = 5, objective.Y.size(1)
    W, P = torch.randn((2, *shape), generator=random, dtype=torch.float64)
    found, wanted = objective.gradient(W), whole_gradient(objective, W)
    torch.testing.assert_close(found.value, wanted)
    assert found.norm.measured == pytest.approx(float(wanted.norm()))
    assert found.norm.measured < found.norm.upper
    hessian = torch.autograd.functional.hvp(
        lambda w: loss(objective, w), W, P
    )[1]
    torch.testing.assert_close(objective.times(W, P), hessian)
    for K in (None, gram(objective.Z)):
        factor = objective._replace(K=K).factor(W)
        torch.testing.assert_close(factor.solve(hessian), P)


def test_gamma_2_is_the_lipschitz_constant_of_the_curvature():
    a = torch.linspace(-10, 10, 2_000_001, dtype=torch.float64)
    second = H.curvatures(a, torch.ones_like(a))
    slope = (second.diff() / a.diff()).abs().max()
    assert float(slope) == pytest.approx(H.GAMMA_2, rel=1e-8)
    # There, for a small step in one dimension, the bound has no slack.
    one = torch.ones(1, 1, dtype=torch.float64)
    W, P = -math.log(2 + math.sqrt(3)) * one, 1e-4 * one
    objective = H.Objective(one, one, 0.0)
    added = objective.gradient(W + P).value - objective.gradient(W).value
    added = added - objective.times(W, P)
    assert float(added.abs()) == pytest.approx(tight_bound(one, P), rel=1e-3)


def test_a_useless_factor_is_replaced():
    objective, _ = drawn(3)
    other, _ = drawn(4, lam=500.0)
    W = torch.zeros((5, 4), dtype=torch.float64)
    found = H.refine(objective, W, 1e-9, 20, factor=other.factor(W))
    assert found.gradient.norm.upper <= 1e-9
    assert found.iterations < 20


def test_corrected_steps_are_those_of_the_matrix_of_bfgs():
    # Nocedal and Wright 2006, (6.17), written out for every output.
    random = torch.Generator().manual_seed(8)
    d, outputs = 4, 3

    def draw(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64)

    root = draw(d, d)
    hessian = torch.linalg.inv(root @ root.t() + torch.eye(d))
    steps, grad = draw(2, d, outputs), draw(d, outputs)
    changes = steps + 0.2 * draw(2, d, outputs)
    # An output that was solved before, and one with a negative curvature.
    changes[0, :, 1] = steps[0, :, 1] = 0
    changes[1, :, 2] = -steps[1, :, 2]
    past = list(torch.stack([steps, changes], dim=1))
    lower = torch.linalg.cholesky(hessian).expand(outputs, d, d)
    plain = H.Factor(lower.contiguous(), 1.0)
    found = H._step(grad, plain, past)
    for c in range(outputs):
        matrix = torch.linalg.inv(hessian)
        for s, y in zip(steps[:, :, c], changes[:, :, c], strict=True):
            if s @ y <= 0:
                continue
            left = torch.eye(d) - torch.outer(s, y) / (s @ y)
            matrix = left @ matrix @ left.t() + torch.outer(s, s) / (s @ y)
        torch.testing.assert_close(found[:, c], matrix @ grad[:, c])


def test_rows_with_targets_of_zero_do_not_count():
    objective, random = drawn(6)
    W = torch.randn((5, 4), generator=random, dtype=torch.float64)
    Y, Z = objective.Y.clone(), objective.Z.clone()
    Y[::2], Z[::2] = 0, 0
    some = objective._replace(Y=Y, Z=Z)
    rest = objective._replace(Y=Y[1::2], Z=Z[1::2])
    torch.testing.assert_close(some.gradient(W).value, rest.gradient(W).value)
    torch.testing.assert_close(some.factor(W).lower, rest.factor(W).lower)
    assert not H.targets(torch.tensor([0, -1, 3]), 4)[1].any()


def test_distance_to_the_minimiser_is_bounded_for_any_weights():
    objective, random = drawn(7)
    zero = torch.zeros((5, 4), dtype=torch.float64)
    exact = H.refine(objective, zero, 1e-11, 40).W
    for scale in (1e-6, 1e-3, 1.0, 30.0):
        W = torch.randn((5, 4), generator=random, dtype=torch.float64)
        W = exact + scale * W
        bound = objective.gradient(W).norm.upper / objective.mu
        assert float((W - exact).norm()) <= bound


def test_gradients_are_sound_at_large_margins():
    # sigmoid(-a) for a = 800 is 0, not NaN; and rounding is in the bound.
    Z = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    Y = H.targets(torch.tensor([0, 1]), 2)
    W = torch.full((1, 1), -800.0, dtype=torch.float64)
    found = H.Objective(Z, Y, 0.0).gradient(W)
    assert bool(found.value.isfinite().all())
    assert math.isfinite(found.norm.upper)


@pytest.mark.parametrize('sparse', [False, True])
def test_residual_covers_its_rounding(sparse):
    # Against the same gradient in extended precision. In the second half
    # margins are small differences of large numbers, and most of the rounding
    # enters through them.
    for seed in range(20):
        Z, Y, B = problem(40, 60, 2, seed, sparse, 10.0)
        random = torch.Generator().manual_seed(seed)
        W = 100 * torch.randn(B.shape, generator=random).double()
        if seed >= 10:
            dense = Z.to_dense()
            dense[:, 30:] = dense[:, :30]
            Z = dense.to_sparse_csr() if sparse else dense
            W[:30] *= 1e6
            rest = 1e-4 * torch.randn((30, 2), generator=random).double()
            W[30:] = rest - W[:30]
        measured, upper = stated(Z, Y, B, 1e-4).gradient(W).norm
        z, y, w, b = (
            np.asarray(t.to_dense() if t.is_sparse_csr else t, np.longdouble)
            for t in (Z, Y, W, B)
        )
        with np.errstate(over='ignore'):
            first = -y / (1 + np.exp(y * (z @ w)))
        lam = np.longdouble(1e-4)
        exact = np.sqrt(((z.T @ first + lam * 40 * w + b) ** 2).sum())
        assert abs(float(exact - measured)) <= upper - measured
        assert upper - measured <= 1e-4 * max(measured, 1.0)


# The solver ##################################################################


def problem(n, d, num_outputs=1, seed=0, sparse=False, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    Z = torch.randn(n, d, generator=g, dtype=torch.float64) * scale
    if sparse:
        Z = Z * (torch.rand(n, d, generator=g) < 0.3)
        Z = Z.to_sparse_csr()
    Y = torch.randint(0, 2, (n, num_outputs), generator=g).double() * 2 - 1
    B = 0.1 * torch.randn(d, num_outputs, generator=g, dtype=torch.float64)
    return Z, Y, B


@pytest.mark.parametrize('shape', [(15, 40), (60, 5)])
def test_minimize_from_anywhere(shape):
    Z, Y, B = problem(*shape, 2, scale=3.0)
    solution = minimize(Z, Y, B, 1e-3)
    assert solution.gradient.norm.measured <= 1e-10
    assert gradient(Z, Y, solution.W, B, 1e-3).norm() <= 1e-9
    # Far away the loss is flat and full steps overshoot.
    far = minimize(Z, Y, B, 1e-3, W=torch.full_like(B, 50.0))
    torch.testing.assert_close(far.W, solution.W, rtol=1e-6, atol=1e-6)
    near = minimize(Z, Y, B, 1e-3, W=solution.W)
    assert near.iterations == 0
    with pytest.raises(RuntimeError, match='did not reach'):
        minimize(Z, Y, B, 1e-2, max_iter=1)


def test_the_oracle_of_a_step_and_its_bounds(shared):
    oracle = np.load(shared / 'oracles' / 'unlearning' / 'certified_step.npz')

    def read(key):
        return torch.from_numpy(np.atleast_1d(oracle[key]))

    Z, Z2, y, b = read('Z'), read('Z2'), read('y'), read('b')
    y, b, lam = y.view(-1, 1), b.view(-1, 1), float(oracle['lam'])
    close = {'rtol': 0, 'atol': 1e-9}
    W = minimize(Z, y, b, lam).W
    np.testing.assert_allclose(W[:, 0], oracle['w_star'], **close)
    change = gradient(Z, y, W, b, lam) - gradient(Z2, y, W, b, lam)
    np.testing.assert_allclose(change[:, 0], oracle['delta_grad'], **close)
    for matrix in (Z2, Z2.to_sparse_csr()):
        made = stated(matrix, y, b, lam)._replace(K=gram(matrix))
        P = made.factor(W).solve(change)
        np.testing.assert_allclose(P[:, 0], oracle['newton_step'], **close)
        moved = W + P
        np.testing.assert_allclose(moved[:, 0], oracle['w_unlearned'], **close)
        measured, upper = stated(matrix, y, b, lam).gradient(moved).norm
        true = float(oracle['true_residual'])
        assert measured == pytest.approx(true, abs=1e-9)
        assert measured <= upper <= float(oracle['bound_tight'])
        for got, key in (
            (tight_bound(matrix, P), 'bound_tight'),
            (paper_bound(matrix, P), 'bound_paper'),
            (spectral_norm(matrix), 'spec'),
            (max_row_norm(matrix), 'F_used'),
        ):
            assert got == pytest.approx(float(oracle[key]), rel=1e-9)
    exact = minimize(Z2, y, b, lam, W=moved)
    np.testing.assert_allclose(
        exact.W[:, 0], oracle['w_exact_retrain'], **close
    )


# Bounds as published #########################################################


@pytest.mark.parametrize('num_outputs', [1, 4])
@pytest.mark.parametrize('sparse', [False, True])
def test_bounds_hold_for_any_step(num_outputs, sparse):
    ratios = []
    for seed in range(60):
        n, d = (12, 30) if seed % 2 else (30, 7)
        Z, Y, B = problem(n, d, num_outputs, seed, sparse)
        W, P = 10 * B, 10.0 ** (seed % 5 - 2) * B.flip(0)
        objective = stated(Z, Y, B, 1e-2)
        gap = objective.gradient(W + P).value - objective.gradient(W).value
        added = float((gap - objective.times(W, P)).norm())
        tight = tight_bound(Z, P)
        assert added <= tight + 1e-13
        assert tight <= paper_bound(Z, P)
        ratios.append(tight / added)
    # Not so loose that the test could not fail.
    assert min(ratios) < 6


def test_budget_of_guo_et_al():
    # specs/unlearning.md: sqrt(2 log(1.5 / delta)) = 4.385 at 1e-4.
    whole = removal_budget(1.0, 1e-4, 0.1)
    assert whole == pytest.approx(0.0228, abs=1e-5)
    assert removal_budget(0.5, 1e-4, 0.1) == pytest.approx(whole / 2)
    for given, match in (
        ((1.1, 1e-4, 0.1), "'epsilon'"),
        ((0.0, 1e-4, 0.1), "'epsilon'"),
        ((1.0, 1.0, 0.1), "'delta'"),
        ((1.0, 1e-4, -0.1), "'noise_std'"),
    ):
        with pytest.raises(ValueError, match=match):
            removal_budget(*given)


# Rows ########################################################################


@pytest.mark.parametrize('sparse', [False, True])
@pytest.mark.parametrize('shape', [(6, 20), (20, 6)])
def test_rows_and_norms_are_those_of_dense_matrices(shape, sparse):
    for seed in range(20):
        Z, _, _ = problem(*shape, seed=seed, sparse=sparse)
        dense = Z.to_dense() if sparse else Z
        exact = float(torch.linalg.matrix_norm(dense, 2))
        for K in (None, gram(Z)):
            got = spectral_norm(Z, K)
            assert exact * (1 - 1e-15) <= got <= exact * (1 + 1e-11)
        torch.testing.assert_close(gram(Z), dense @ dense.t())
        largest = float(dense.norm(dim=1).max())
        assert max_row_norm(Z) == pytest.approx(largest)
        index = torch.tensor([5, 0, 3, 3])
        for found, wanted in (
            (keep_rows(Z, index), dense[index]),
            (
                stacked([Z, keep_rows(Z, index)]),
                torch.cat([dense, dense[index]]),
            ),
        ):
            assert found.layout == Z.layout
            assert torch.equal(found.to_dense(), wanted)
