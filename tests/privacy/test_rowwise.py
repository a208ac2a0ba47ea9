"""Functions that give a row the same bits in every batch, one by one.

200 random rows in batches of 1 to 70, forward and backward, bit by bit.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge

from pyg_trust import ops
from pyg_trust.privacy.bounds import between, gram, lengths, products
from pyg_trust.privacy.codes import Recorder

ROWS = 200
WIDTHS = (1, 3, 7, 33)


def weight(columns, width):
    generator = torch.Generator().manual_seed(width)
    return torch.randn(columns, width, generator=generator)


def linear(x):
    return F.linear(x, weight(5, x.size(-1)).to(x), weight(1, 5)[0].to(x))


FUNCTIONS = {
    'linear': linear,
    'matmul': lambda x: torch.matmul(x, weight(5, x.size(-1)).t().to(x)),
    'mm': lambda x: torch.mm(x, weight(70, x.size(-1)).t().to(x)),
    '__matmul__': lambda x: x @ weight(3, x.size(-1))[0].to(x),
    'addmm': lambda x: torch.addmm(
        x[:, :1], x, weight(9, x.size(-1)).t().to(x)
    ),
    'batch': lambda x: torch.matmul(
        x, torch.stack([weight(4, x.size(-1)).t().to(x)] * 3)
    ).permute(1, 0, 2),
    **{
        name: getattr(torch, name)
        for name in (
            *('exp', 'expm1', 'sin', 'cos', 'tan', 'sinh', 'cosh', 'tanh'),
            *('erf', 'erfc', 'sigmoid', 'abs', 'relu', 'selu', 'celu', 'sign'),
            *('square', 'neg', 'floor', 'atan'),
        )
    },
    **{
        name: getattr(F, name)
        for name in (
            *('gelu', 'silu', 'elu', 'softplus', 'mish', 'logsigmoid'),
            *('leaky_relu', 'hardswish', 'hardsigmoid', 'softsign', 'relu6'),
            *('tanhshrink', 'hardtanh', 'softshrink', 'hardshrink'),
        )
    },
    'log': lambda x: x.abs().add(0.1).log(),
    'log1p': lambda x: x.abs().log1p(),
    'sqrt': lambda x: x.abs().add(0.1).sqrt(),
    'rsqrt': lambda x: x.abs().add(0.1).rsqrt(),
    'pow': lambda x: x.abs().add(0.1) ** 1.7,
    'pow_': lambda x: x.abs().add(0.1).pow_(-0.5),
    'reciprocal': lambda x: 1 / (x.abs() + 0.1),
    'divide': lambda x: x / (x.flip(1).abs() + 0.1),
    'lerp': lambda x: torch.lerp(x, 0.3 * x, 0.7),
    'addcmul': lambda x: torch.addcmul(x, 0.3 * x, 0.7 * x),
    'addcdiv': lambda x: torch.addcdiv(x, x, x.abs() + 0.1),
    'softmax': lambda x: x.softmax(-1),
    'log_softmax': lambda x: x.log_softmax(-1),
    'logsumexp': lambda x: x.logsumexp(-1),
    'sum': lambda x: x.sum(-1),
    'mean': lambda x: x.mean(-1),
    'prod': lambda x: x.prod(-1),
    'norm': lambda x: x.norm(dim=-1),
    'normalize': lambda x: F.normalize(x, dim=-1),
    'layer_norm': lambda x: F.layer_norm(x, (x.size(-1),)),
    'bmm': lambda x: torch.bmm(x.unsqueeze(2), x.unsqueeze(1)),
    'cumsum': lambda x: x.cumsum(-1),
    'amax': lambda x: x.amax(-1),
    'heads, mean': lambda x: torch.stack([x, 2 * x, x * x], 1).mean(1),
    'scatter': lambda x: torch.zeros_like(x).index_add_(
        0, torch.arange(len(x)), x
    ),
}


def run(function, rows, upstream):
    x = rows.clone().requires_grad_()
    record = Recorder({}, (), set(), exact=True)
    with record:
        out = function(x)
    (grad,) = torch.autograd.grad(out, x, upstream(out))
    return out.detach().reshape(len(x), -1), grad, record.foreign


def differing(function, width, dtype, threads=1, sizes=range(1, 71)):
    """How many rows have other bits in some batch, and what was not known."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(ROWS, width, generator=generator, dtype=dtype)
    with torch.no_grad():
        shape = function(rows).shape
    up = torch.randn(shape, generator=generator, dtype=dtype)
    before = torch.get_num_threads()
    wanted, grads, foreign = run(function, rows, lambda out: up)
    bad = 0
    torch.set_num_threads(threads)
    try:
        for size in sizes:
            first = (37 * size) % (ROWS - size)
            part = slice(first, first + size)
            out, grad, _ = run(function, rows[part], lambda out, p=part: up[p])
            bad += int((out != wanted[part]).any())
            bad += int((grad != grads[part]).any())
    finally:
        torch.set_num_threads(before)
    return bad, foreign


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_rows_bits_are_those_of_the_row_alone(name, dtype):
    for width in WIDTHS:
        bad, foreign = differing(FUNCTIONS[name], width, dtype)
        assert foreign == set()
        assert bad == 0


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_norms_of_a_unit_have_its_own_bits(dtype):
    # What the factors are made of, in batches of any size, from any place.
    generator = torch.Generator().manual_seed(0)
    for s, r, c in ((2, 16, 33), (8, 2, 33), (20, 1, 33), (5, 64, 500)):
        one = torch.randn(60, s, r, generator=generator, dtype=dtype)
        two = torch.randn(60, s, c, generator=generator, dtype=dtype)
        grams = gram(products(one), products(two))
        made = between(one, two)
        norms = lengths(two[:, 0].contiguous())[0]
        for first, size in ((0, 1), (1, 1), (6, 3), (26, 33), (3, 7), (1, 59)):
            part = slice(first, first + size)
            found = gram(products(one[part]), products(two[part]))
            assert torch.equal(found, grams[part])
            assert torch.equal(between(one[part], two[part]), made[part])
            assert torch.equal(lengths(two[part, 0])[0], norms[part])


def test_blas_and_scalar_tails_would_be_found():
    # The same test finds what there is to find: no mode, no rows.
    plain = {
        'linear': lambda x: F.linear(x, weight(16, x.size(-1)).to(x)),
        'silu': F.silu,
    }
    for name, function in plain.items():
        found = 0
        for width in (7, 33, 64):
            rows = torch.randn(ROWS, width, dtype=torch.float64)
            wanted = function(rows)
            for size in range(1, 71):
                found += int((function(rows[:size]) != wanted[:size]).any())
        if name == 'silu' or torch.backends.mkl.is_available():
            assert found


def test_many_elements_on_threads_have_the_bits_of_few():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3 * 2**15 + 77, generator=generator)
    with Recorder({}, (), set(), exact=True):
        few = torch.cat([F.silu(part) for part in x.split(1000)])
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            with Recorder({}, (), set(), exact=True):
                assert torch.equal(F.silu(x), few)
    finally:
        torch.set_num_threads(before)


def test_what_is_not_known_is_named():
    x = torch.randn(4, 3)
    for function, name in (
        (lambda x: torch.einsum('ij,ik->ijk', x, x), 'einsum'),
        (lambda x: torch.add(x, x, alpha=0.3), 'add'),
        (lambda x: x.var(1), 'var'),
    ):
        record = Recorder({}, (), set(), exact=True)
        with record:
            function(x)
        assert record.foreign == {name}
    # Of numbers that are no features, nothing has to be known.
    record = Recorder({}, (), set(), exact=True)
    with record:
        torch.bincount(torch.arange(4))
        torch.einsum('i,i->i', torch.arange(3), torch.arange(3))
    assert record.foreign == set()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(
    'shape', [(1, 1, 1), (13, 65, 33), (5, 0, 3), (0, 4, 2)]
)
def test_row_linear_is_a_product(dtype, shape):
    num, depth, columns = shape
    x = torch.randn(num, depth, dtype=dtype)
    w = torch.randn(columns, depth, dtype=dtype)
    out, bias = ops.row_linear(x, w), torch.randn(columns, dtype=dtype)
    assert out.dtype == dtype
    # Any strides of the weight, and a bias that is added once, at the end.
    assert out.equal(ops.row_linear(x, w.t().contiguous().t()))
    assert (out + bias).equal(ops.row_linear(x, w, bias))
    wanted = x.double() @ w.double().t()
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-4)
    # One chain, each step rounded once: fractions of float64 for float32.
    if dtype == torch.float32 and num and depth:
        total = 0.0
        for a, b in zip(x[0].tolist(), w[0].tolist(), strict=True):
            total = float(torch.tensor(total + a * b, dtype=torch.float32))
        assert abs(float(out[0, 0]) - total) <= 1e-6 * (1 + abs(total))


def test_row_linear_has_gradients():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.row_linear, (x, w))
    assert torch.autograd.gradcheck(ops.row_linear, (x, w, b))
    assert torch.autograd.gradgradcheck(ops.row_linear, (x, w, b))


def test_gradients_of_weights_are_left_out_where_nobody_asks_for_them():
    x = torch.randn(6, 3, requires_grad=True)
    w = nn.Parameter(torch.randn(2, 3))
    z = torch.randn(2, 3, requires_grad=True)
    alias, made = w.view_as(w), z.exp()
    stops = {get_gradient_edge(alias).node}
    ends = ops.row_linear(x, alias), ops.row_linear(x, alias.view(2, 3))
    flows = ops.row_linear(x, made)
    for out in ends:
        (expected,) = torch.autograd.grad(
            out.square().sum(), [w], retain_graph=True
        )
        assert bool(expected.any())
        with ops.without_gradients(stops):
            by_x, by_w = torch.autograd.grad(
                out.square().sum(), [x, w], allow_unused=True
            )
        assert by_w is None
        assert by_x.equal(ops.row_linear(2 * out.detach(), w.detach().t()))
    # What is made of rows is reached, whatever stops elsewhere.
    with ops.without_gradients(stops):
        (found,) = torch.autograd.grad(flows.sum(), [z])
    expected = x.detach().sum(0).expand(2, 3) * made.detach()
    torch.testing.assert_close(found, expected)
