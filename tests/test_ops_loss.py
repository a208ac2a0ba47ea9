"""The gradient of a linear head in one pass, against 40 digits."""

import os

import mpmath
import pytest
import torch
import warm
from heads import digest, problem, slopes, targets

from pyg_trust import ops
from pyg_trust.unlearning.heads import Objective

UNIT = 2.0**-53


def exact_slope(a, t):
    """The derivative of log(1 + exp(-t a)) in a."""
    return -t / (1 + mpmath.exp(t * mpmath.mpf(a)))


def exact_gradient(Z, Y, W):
    Z, Y, W = Z.tolist(), Y.tolist(), W.tolist()
    columns = list(zip(*W, strict=True))
    value = [[mpmath.mpf(0)] * len(columns) for _ in W]
    square = mpmath.mpf(0)
    for z, y in zip(Z, Y, strict=True):
        z = [mpmath.mpf(x) for x in z]
        for c, (w, t) in enumerate(zip(columns, y, strict=True)):
            g = exact_slope(mpmath.fdot(z, w), t)
            square += g * g
            for k, x in enumerate(z):
                value[k][c] += x * g
    return value, square


@pytest.mark.parametrize('classes', [2, 3, 4, 5, 8, 9, 17])
@pytest.mark.parametrize('scale', [1.0, 300.0])
def test_what_rounding_hides_is_bounded(classes, scale):
    # 19 rows: tiles of 8 and of 4, and rows that are left.
    Z, Y, W = problem(19, 5, classes, classes, scale)
    found = Objective(Z, Y, 0.0).gradient(W)
    with mpmath.workdps(40):
        value, square = exact_gradient(Z, Y, W)
        off = mpmath.sqrt(
            sum(
                (x - exact) ** 2
                for row, line in zip(found.value.tolist(), value, strict=True)
                for x, exact in zip(row, line, strict=True)
            )
        )
        norm = mpmath.sqrt(sum(x * x for line in value for x in line))
        assert off <= found.norm.upper - found.norm.measured
        assert norm <= found.norm.upper
        mine = ops.loss_gradient(Z, Y, W)[1].sum()
        assert abs(float(mine) - square) <= 1e-13 * square


def test_every_slope_is_within_eight_units():
    # With Z = 1 the gradient is the slopes at the margins W.
    n, classes = 400, 5
    random = torch.Generator().manual_seed(1)
    W = torch.empty((n, classes), dtype=torch.float64)
    W.uniform_(-1, 1, generator=random)
    # Margins of every size, those that overflow, and the halves of log 2 where
    # the reduction of the argument turns over.
    W *= torch.logspace(-3, 3.2, n, dtype=torch.float64).unsqueeze(1)
    W[:80, 0] = (torch.arange(-40, 40) + 0.5).double() * 0.6931471805599453
    W[80:86, 1] = torch.tensor([708.0, -708, 709, -709, 746, -746]).double()
    Y = targets(torch.arange(n) % classes, classes)
    eye = torch.eye(n, dtype=torch.float64)
    found, _ = ops.loss_gradient(eye, Y, W)
    with mpmath.workdps(40):
        for row in zip(found.tolist(), W.tolist(), Y.tolist(), strict=True):
            for x, a, t in zip(*row, strict=True):
                exact = exact_slope(a, t)
                assert abs(x - exact) <= 8 * UNIT * max(1, abs(exact))


@pytest.mark.parametrize(
    ('n', 'd', 'classes'),
    [(0, 3, 3), (1, 1, 2), (512, 7, 3), (513, 7, 8), (3001, 9, 11)],
)
def test_chunks_of_rows_are_all_there(n, d, classes):
    Z, Y, W = problem(n, d, classes)
    value, square = ops.loss_gradient(Z, Y, W)
    G = slopes(Z @ W, Y)
    torch.testing.assert_close(value, Z.t() @ G, rtol=1e-11, atol=1e-10)
    torch.testing.assert_close(square, G.square().sum(0))


@pytest.mark.parametrize('classes', [2, 3, 7, 9])
def test_rows_without_a_target_add_nothing(classes):
    # Whatever their features are.
    Z, Y, W = problem(41, 6, classes)
    there = Y.abs().sum(1) > 0
    Z[~there] = 5.0
    assert 0 < int(there.sum()) < 41
    whole = ops.loss_gradient(Z, Y, W)
    part = ops.loss_gradient(Z[there], Y[there], W)
    for one, other in zip(whole, part, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('number', [float('nan'), float('inf')])
@pytest.mark.parametrize('where', ['Z', 'W'])
def test_what_is_not_finite_does_not_pass_for_a_small_residual(number, where):
    Z, Y, W = problem(30, 4, 3)
    bad = Z if where == 'Z' else W
    row = int(Y.abs().sum(1).argmax())
    bad[row if where == 'Z' else 2, 1 if where == 'Z' else 0] = number
    found = Objective(Z, Y, 1.0).gradient(W)
    assert not found.norm.upper < float('inf')


def test_gradients_have_the_bits_of_one_thread(threads):
    given = problem(40_000, 9, 5)
    threads(1)
    alone = ops.loss_gradient(*given)
    threads(3)
    for _ in range(5):
        assert all(map(torch.equal, alone, ops.loss_gradient(*given)))


SCRIPT = """
from heads import digest
print(digest())
"""


@pytest.mark.parametrize('kind', ['default', 'avx2'])
def test_gradients_have_the_bits_of_any_processor(kind):
    here = os.path.dirname(__file__)
    done = warm.run(
        *('-c', SCRIPT),
        cwd=here,
        env={
            **os.environ,
            'ATEN_CPU_CAPABILITY': kind,
            'PYTHONPATH': os.pathsep.join([os.path.dirname(here), here]),
        },
    )
    assert done.stdout.strip() == digest(), done.stderr


@pytest.mark.parametrize('columns', [[], [4], [6, 0], [1, 2, 3, 5, 6], [2, 2]])
def test_some_outputs_have_the_bits_of_all(columns):
    for n, d in ((37, 11), (1100, 16)):
        Z, Y, W = problem(n, d, 7)
        value, squares = ops.loss_gradient(Z, Y, W)
        some = torch.tensor(columns, dtype=torch.int64)
        found = ops.loss_gradient(Z, Y, W, some)
        assert torch.equal(found[0], value[:, some])
        assert torch.equal(found[1], squares[some])


@pytest.mark.parametrize('classes', [2, 3, 7])
@pytest.mark.parametrize('count', [0, 1, 17, 1300])
def test_a_change_is_that_of_the_rows_that_came_and_went(
    classes, count, threads
):
    # The sums written out, so that no kernel has a part in them; a list with
    # gaps, in no order, of more and less than a chunk; rows that do not count.
    random = torch.Generator().manual_seed(classes + count)
    Z = torch.randn((1500, 13), generator=random).double()
    y = torch.randint(-1, classes, (1500,), generator=random)
    Y = targets(y, classes)
    W = torch.randn((13, Y.size(1)), generator=random).double()
    rows = torch.randperm(1500, generator=random)[:count]
    old = torch.randn((21, 13), generator=random).double()
    old_Y = Y[:21].clone()
    value, squares, sizes = ops.loss_change(Z, Y, rows, old, old_Y, W)
    new_G, old_G = slopes(Z[rows] @ W, Y[rows]), slopes(old @ W, old_Y)
    close = {'rtol': 1e-12, 'atol': 1e-11}
    torch.testing.assert_close(
        value, Z[rows].t() @ new_G - old.t() @ old_G, **close
    )
    torch.testing.assert_close(
        squares, new_G.square().sum(0) + old_G.square().sum(0), **close
    )
    wanted = torch.stack([Z[rows].square().sum(), old.square().sum()])
    torch.testing.assert_close(sizes, wanted, **close)
    threads(2)
    again = ops.loss_change(Z, Y, rows, old, old_Y, W)
    assert all(map(torch.equal, again, (value, squares, sizes)))


def test_the_ops_have_the_schemas_they_declare():
    Z, Y, W = problem(20, 4, 3)
    check = torch.library.opcheck
    kernels = torch.ops.pyg_trust
    for given in ((Z, Y, W), (Z, Y, W, torch.tensor([2, 0]))):
        check(kernels.loss_gradient, given, test_utils='test_schema')
    given = (Z, Y, torch.tensor([3, 1]), Z[:2].clone(), Y[:2].clone(), W)
    check(kernels.loss_change, given, test_utils='test_schema')
