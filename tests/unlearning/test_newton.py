import math

import numpy as np
import pytest
import torch
from heads import gradient, residual
from heads import objective as stated

from pyg_trust.unlearning.heads import (
    GAMMA_2,
    LOSSES,
    curvatures,
    hessian_solve,
)
from pyg_trust.unlearning.newton import minimize
from pyg_trust.unlearning.removal_bounds import (
    feature_removal_bound,
    node_removal_bound,
    paper_bound,
    tight_bound,
)
from pyg_trust.unlearning.rows import (
    dense_rows,
    gram,
    keep_rows,
    max_row_norm,
    replace_rows,
    spectral_norm,
)
from pyg_trust.unlearning.shifts import removal_budget


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def problem(n, d, num_outputs=1, seed=0, sparse=False, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    Z = torch.randn(n, d, generator=g, dtype=torch.float64) * scale
    if sparse:
        Z = Z * (torch.rand(n, d, generator=g) < 0.3)
        Z = Z.to_sparse_csr()
    Y = torch.randint(0, 2, (n, num_outputs), generator=g).double() * 2 - 1
    B = 0.1 * torch.randn(d, num_outputs, generator=g, dtype=torch.float64)
    return Z, Y, B


def objective(Z, Y, W, B, lam, loss):
    margin = Z @ W
    if loss == 'logistic':
        each = torch.nn.functional.softplus(-Y * margin)
    else:
        each = (margin - Y).square()
    n = Z.size(0)
    return each.sum() + lam * n / 2 * W.square().sum() + (B * W).sum()


@pytest.mark.parametrize('loss', LOSSES)
def test_derivatives_are_those_of_the_objective(loss):
    Z, Y, B = problem(9, 4, 2)
    W = torch.randn(4, 2, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(objective(Z, Y, W, B, 0.2, loss), W)
    for matrix in (Z, Z.to_sparse_csr()):
        got = gradient(matrix, Y, W.detach(), B, 0.2, loss)
        torch.testing.assert_close(got, expected)
    P = torch.randn(4, 2, dtype=torch.float64)
    hessian = torch.autograd.functional.hvp(
        lambda w: objective(Z, Y, w, B, 0.2, loss), W.detach(), P
    )[1]
    for matrix in (Z, Z.to_sparse_csr()):
        got = stated(matrix, Y, B, 0.2, loss).times(W.detach(), P)
        torch.testing.assert_close(got, hessian)


def test_gamma_2_is_the_lipschitz_constant():
    a = torch.linspace(-10, 10, 2_000_001, dtype=torch.float64)
    second = curvatures(a, torch.ones_like(a), 'ovr')
    slope = (second.diff() / a.diff()).abs().max()
    assert float(slope) == pytest.approx(GAMMA_2['ovr'], rel=1e-8)


@pytest.mark.parametrize('sparse', [False, True])
@pytest.mark.parametrize('shape', [(6, 20), (20, 6)])
def test_solve_inverts_the_hessian(shape, sparse):
    # One by Woodbury's identity, one by Cholesky's decomposition.
    Z, Y, _ = problem(*shape, 3, sparse=sparse)
    curvature = torch.rand_like(Y)
    right = torch.randn(shape[1], 3, dtype=torch.float64)
    dense = Z.to_dense() if sparse else Z
    P = hessian_solve(Z, curvature, 0.3, right)
    for c in range(3):
        H = dense.t() @ torch.diag(curvature[:, c]) @ dense
        H += 0.3 * torch.eye(shape[1])
        expected = torch.linalg.solve(H, right[:, c])
        torch.testing.assert_close(P[:, c], expected)


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('shape', [(15, 40), (60, 5)])
def test_minimize_from_anywhere(loss, shape):
    Z, Y, B = problem(*shape, 2, scale=3.0)
    solution = minimize(Z, Y, B, 1e-3, loss)
    assert solution.residual <= 1e-10
    assert gradient(Z, Y, solution.W, B, 1e-3, loss).norm() <= 1e-9
    # Far away the logistic loss is flat and full steps overshoot.
    far = minimize(Z, Y, B, 1e-3, loss, W=torch.full_like(B, 50.0))
    torch.testing.assert_close(far.W, solution.W, rtol=1e-6, atol=1e-6)
    near = minimize(Z, Y, B, 1e-3, loss, W=solution.W)
    assert near.iterations == 0


def test_minimize_against_lbfgs():
    Z, Y, B = problem(30, 8)
    W = torch.zeros_like(B, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [W],
        max_iter=1000,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn='strong_wolfe',
    )

    def closure():
        optimizer.zero_grad()
        loss = objective(Z, Y, W, B, 1e-2, 'logistic')
        loss.backward()
        return loss

    optimizer.step(closure)
    solution = minimize(Z, Y, B, 1e-2)
    torch.testing.assert_close(solution.W, W.detach(), rtol=0, atol=1e-6)


def test_minimize_says_when_it_fails():
    Z, Y, B = problem(30, 8)
    with pytest.raises(RuntimeError, match='did not reach'):
        minimize(Z, Y, B, 1e-2, max_iter=1)


@pytest.mark.parametrize('sparse', [False, True])
@pytest.mark.parametrize('loss', LOSSES)
def test_residual_covers_its_rounding(loss, sparse):
    # Against the same gradient in extended precision. In the second half
    # margins are small differences of large numbers, and most of the rounding
    # enters through them.
    for seed in range(20):
        Z, Y, B = problem(40, 60, 2, seed, sparse, 10.0)
        W = 100 * torch.randn_like(B)
        if seed >= 10:
            dense = Z.to_dense()
            dense[:, 30:] = dense[:, :30]
            Z = dense.to_sparse_csr() if sparse else dense
            W[:30] *= 1e6
            W[30:] = 1e-4 * torch.randn(30, 2) - W[:30]
        measured, upper = residual(Z, Y, W, B, 1e-4, loss)
        z, y, w, b = (
            np.asarray(t.to_dense() if t.is_sparse_csr else t, np.longdouble)
            for t in (Z, Y, W, B)
        )
        a = z @ w
        with np.errstate(over='ignore'):
            grown = np.exp(y * a)
        first = -y / (1 + grown) if loss == 'logistic' else 2 * (a - y)
        lam = np.longdouble(1e-4)
        exact = np.sqrt(((z.T @ first + lam * 40 * w + b) ** 2).sum())
        assert abs(float(exact - measured)) <= upper - measured
        assert upper - measured <= 1e-4 * max(measured, 1.0)


@pytest.mark.parametrize('num_outputs', [1, 4])
@pytest.mark.parametrize('sparse', [False, True])
def test_bounds_hold_for_any_step(num_outputs, sparse):
    ratios = []
    for seed in range(60):
        n, d = (12, 30) if seed % 2 else (30, 7)
        Z, Y, B = problem(n, d, num_outputs, seed, sparse)
        W = torch.randn_like(B)
        lam = 1e-2
        size = 10.0 ** (seed % 5 - 3)
        P = size * torch.randn_like(B)
        before = gradient(Z, Y, W, B, lam, 'logistic')
        after = gradient(Z, Y, W + P, B, lam, 'logistic')
        linear = stated(Z, Y, B, lam, 'logistic').times(W, P)
        added = float((after - before - linear).norm())
        tight = tight_bound(Z, P)
        assert added <= tight + 1e-13
        assert tight <= paper_bound(Z, P)
        assert paper_bound(Z, P, radius=2 * max_row_norm(Z)) == pytest.approx(
            2 * paper_bound(Z, P)
        )
        ratios.append(tight / added)
    # Not so loose that the test could not fail.
    assert min(ratios) < 6


def test_tight_bound_is_attained_in_one_dimension():
    # At the steepest curvature, for a small step, there is no slack.
    steepest = math.log(2 + math.sqrt(3))
    Z = torch.ones(1, 1, dtype=torch.float64)
    Y = torch.ones(1, 1, dtype=torch.float64)
    W = torch.full((1, 1), -steepest, dtype=torch.float64)
    P = torch.full((1, 1), 1e-4, dtype=torch.float64)
    B = torch.zeros(1, 1, dtype=torch.float64)
    second = curvatures(Z @ W, Y, 'ovr')
    added = (
        gradient(Z, Y, W + P, B, 0.0, 'logistic')
        - gradient(Z, Y, W, B, 0.0, 'logistic')
        - second * P
    )
    assert float(added.abs()) == pytest.approx(tight_bound(Z, P), rel=1e-3)


def test_squared_loss_needs_one_step():
    Z, Y, B = problem(10, 25, 2)
    W = minimize(Z, Y, B, 1e-2, 'squared').W
    Z = Z.clone()
    Z[3] = torch.randn(25)
    right = -gradient(Z, Y, W, B, 1e-2, 'squared')
    P = hessian_solve(Z, torch.full_like(Y, 2.0), 0.1, right)
    assert gradient(Z, Y, W + P, B, 1e-2, 'squared').norm() < 1e-10
    assert tight_bound(Z, P, 'squared') == paper_bound(Z, P, 'squared') == 0


@pytest.mark.parametrize('sparse', [False, True])
@pytest.mark.parametrize('shape', [(6, 20), (20, 6)])
def test_spectral_norm_is_an_upper_bound(shape, sparse):
    for seed in range(20):
        Z, _, _ = problem(*shape, seed=seed, sparse=sparse)
        dense = Z.to_dense() if sparse else Z
        exact = float(torch.linalg.matrix_norm(dense, 2))
        for K in (None, gram(Z)):
            got = spectral_norm(Z, K)
            assert exact * (1 - 1e-15) <= got <= exact * (1 + 1e-11)


def test_budget():
    # specs/unlearning.md: sqrt(2 log(1.5 / delta)) = 4.385 at 1e-4.
    assert removal_budget(1.0, 1e-4, 0.1) == pytest.approx(0.0228, abs=1e-5)
    assert removal_budget(0.5, 1e-4, 0.1) == pytest.approx(
        removal_budget(1.0, 1e-4, 0.1) / 2
    )


@pytest.mark.parametrize(
    ('arguments', 'match'),
    [
        ((1.1, 1e-4, 0.1), "'epsilon'"),
        ((0.0, 1e-4, 0.1), "'epsilon'"),
        ((math.nan, 1e-4, 0.1), "'epsilon'"),
        ((1.0, 0.0, 0.1), "'delta'"),
        ((1.0, 1.0, 0.1), "'delta'"),
        ((1.0, 1e-4, -0.1), "'noise_std'"),
        ((1.0, 1e-4, math.inf), "'noise_std'"),
    ],
)
def test_budget_refuses(arguments, match):
    with pytest.raises(ValueError, match=match):
        removal_budget(*arguments)


def test_worst_cases_cover_what_happens():
    # One row of unit vectors changes: the residual of the Newton step is
    # below Theorem 4.4 with C1 = F.
    for seed in range(20):
        n, d, lam = 20, 8, 0.05
        Z, Y, B = problem(n, d, seed=seed)
        Z = Z / Z.norm(dim=1, keepdim=True) * 2
        new = Z.clone()
        new[0] = -Z[0]
        W = minimize(Z, Y, B, lam).W
        change = gradient(Z, Y, W, B, lam, 'logistic') - gradient(
            new, Y, W, B, lam, 'logistic'
        )
        curvature = curvatures(new @ W, Y, 'ovr')
        P = hessian_solve(new, curvature, lam * n, change)
        left, _ = residual(new, Y, W + P, B, lam, 'logistic')
        worst = node_removal_bound(n, lam, 2.0)
        assert left <= tight_bound(new, P) + 1e-10
        assert paper_bound(new, P) <= worst
        # The change of the embedding is 2 |z| = 4 <= stability / sqrt(1).
        feature = feature_removal_bound(
            n, 1, lam, 2.0, 4.0, float(B.norm()), 1
        )
        assert paper_bound(new, P) <= feature <= worst


def test_rows():
    Z, _, _ = problem(7, 9, sparse=True)
    other, _, _ = problem(2, 9, seed=1, sparse=True)
    index = torch.tensor([5, 0])
    expected = Z.to_dense()
    expected[index] = other.to_dense()
    for matrix, rows in ((Z, other), (Z.to_dense(), other.to_dense())):
        replaced = replace_rows(matrix, index, rows)
        assert replaced.layout == matrix.layout
        assert torch.equal(replaced.to_dense(), expected)
        kept = keep_rows(matrix, torch.tensor([6, 2, 3]))
        assert kept.layout == matrix.layout
        assert torch.equal(kept.to_dense(), Z.to_dense()[[6, 2, 3]])
        assert torch.equal(dense_rows(matrix, index), Z.to_dense()[index])
        assert max_row_norm(matrix) == pytest.approx(
            float(Z.to_dense().norm(dim=1).max())
        )
        torch.testing.assert_close(
            gram(matrix), Z.to_dense() @ Z.to_dense().t()
        )


def test_oracle(shared):
    oracle = np.load(shared / 'oracles' / 'unlearning' / 'certified_step.npz')

    def read(key):
        return torch.from_numpy(np.atleast_1d(oracle[key]))

    Z, Z2, y, b = read('Z'), read('Z2'), read('y'), read('b')
    y, b, lam = y.view(-1, 1), b.view(-1, 1), float(oracle['lam'])
    close = {'rtol': 0, 'atol': 1e-9}
    W = minimize(Z, y, b, lam).W
    np.testing.assert_allclose(W[:, 0], oracle['w_star'], **close)
    change = gradient(Z, y, W, b, lam, 'logistic') - gradient(
        Z2, y, W, b, lam, 'logistic'
    )
    np.testing.assert_allclose(change[:, 0], oracle['delta_grad'], **close)
    curvature = curvatures(Z2 @ W, y, 'ovr')
    for matrix in (Z2, Z2.to_sparse_csr()):
        P = hessian_solve(matrix, curvature, lam * 60, change)
        np.testing.assert_allclose(P[:, 0], oracle['newton_step'], **close)
        moved = W + P
        np.testing.assert_allclose(moved[:, 0], oracle['w_unlearned'], **close)
        measured, upper = residual(matrix, y, moved, b, lam, 'logistic')
        assert measured == pytest.approx(
            float(oracle['true_residual']), abs=1e-9
        )
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
