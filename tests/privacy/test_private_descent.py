"""Private descent on single rows: no record moves a sum by more than C."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from references import Silence
from torch import nn
from torch.nn import functional as F

from pyg_trust.privacy.descent import (
    clipped_sums,
    descent_noise,
    linear_logits,
    linear_sums,
    private_linear,
    unit_rows,
    whole_rows,
)


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)
    )


ROWS = torch.cat(
    [
        torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 9,
        torch.tensor([[1e18, 0, 0, 0], [0, 0, 0, 0]]),
    ]
)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


@pytest.mark.parametrize('C', [0.01, 1.0])
def test_a_record_withdrawn_moves_any_model_by_C(C):
    # In integers: nothing is lost in what is compared.
    net, std = model(), 3.0 * C
    whole = clipped_sums(net, ROWS, LABELS, C, std)
    moved = []
    for v in range(len(ROWS)):
        kept = torch.arange(len(ROWS)) != v
        less = clipped_sums(net, ROWS[kept], LABELS[kept], C, std)
        both = zip(whole, less, strict=True)
        off = torch.cat([(a - b).flatten() for a, b in both])
        moved.append(sum(int(k) ** 2 for k in off))
        assert Fraction(moved[-1]) * Fraction(std / 2**32) ** 2 <= C**2
    assert max(moved) > (0.9 * C * 2**32 / std) ** 2


def test_gradients_are_those_of_a_loop():
    net = model()
    expected = [torch.zeros_like(p).double() for p in net.parameters()]
    for x, y in zip(ROWS[:6], LABELS[:6], strict=True):
        net.zero_grad()
        F.cross_entropy(net(x[None]), y[None]).backward()
        grads = [p.grad.double() for p in net.parameters()]
        norm = math.hypot(*(float(g.norm()) for g in grads))
        for total, g in zip(expected, grads, strict=True):
            total += g * min(1, 0.5 / norm)
    found = clipped_sums(net, ROWS[:6], LABELS[:6], 0.5, 1.0)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a.double() / 2**32, b, rtol=1e-4, atol=1e-6)


def test_a_linear_model_has_the_gradients_of_any_other():
    # Rows on the grid of rows: what is left is one truncation.
    x = np.random.default_rng(0).integers(-9000, 9000, (9, 4)) / 2**13
    y = np.arange(9) % 3
    W = np.random.default_rng(1).standard_normal((5, 3))
    net = nn.Linear(4, 3).double()
    net.weight.data = torch.from_numpy(W[:-1].T.copy())
    net.bias.data = torch.from_numpy(W[-1].copy())
    rows = whole_rows(x)
    logits = torch.from_numpy(x @ W[:-1] + W[-1])
    assert np.allclose(linear_logits(rows, W), logits, rtol=1e-6)
    error = logits.softmax(1).numpy() - np.eye(3)[y]
    std = 2.0**-18
    found = linear_sums(rows, error, 0.7, std)
    weight, bias = clipped_sums(
        net, torch.from_numpy(x), torch.from_numpy(y), 0.7, std
    )
    assert np.allclose(found[:-1].T, weight.numpy(), rtol=1e-7)
    assert np.allclose(found[-1], bias.numpy(), rtol=1e-7)


@pytest.mark.parametrize('std', [1.0, 7.3, 2.0**-20])
def test_a_record_withdrawn_moves_a_linear_model_by_C(std):
    x = np.random.default_rng(0).standard_normal((20, 6)) * 100
    x[3] = 0
    x[4, 2] = np.inf
    x[5] = 1e300
    error = np.random.default_rng(2).standard_normal((20, 3))
    error[7] = np.nan
    rows = whole_rows(x)
    whole, moved = linear_sums(rows, error, 1.0, std), []
    for v in range(20):
        kept = np.arange(20) != v
        less = linear_sums(rows[kept], error[kept], 1.0, std)
        off = [int(k) for k in (whole - less).ravel()]
        moved.append(Fraction(std / 2**32) ** 2 * sum(k * k for k in off))
        assert moved[-1] <= 1
    assert max(moved) > 0.9
    assert moved[7] == 0


def test_the_way_rows_are_kept_and_added_changes_no_bit():
    draw = np.random.default_rng(5)
    x = draw.standard_normal((300, 40)) * (draw.random((300, 40)) < 0.3)
    error, weight = draw.standard_normal((300, 4)), draw.random((41, 4)) * 9
    order = draw.permutation(300)
    for std in (4.0, 2.0**-16):
        one = whole_rows(x)
        two = whole_rows(scipy.sparse.csr_array(x)[order])
        made = linear_logits(one, weight)
        assert (made[order] == linear_logits(two, weight)).all()
        assert (made[17] == linear_logits(one[17:18], weight)).all()
        sums = linear_sums(one, error, 1.0, std)
        assert (sums == linear_sums(two, error[order], 1.0, std)).all()
        assert sums.any()


@pytest.mark.parametrize('layout', ['dense', 'sparse'])
def test_rows_have_norm_one(layout):
    x = torch.zeros(5, 300)
    x[0, :2] = torch.tensor([3.0, 4.0])
    x[1, 0] = math.nan
    x[2, 7] = 1e38
    x[3, 0], x[3, 1] = 1e-30, math.inf
    made = unit_rows(x.to_sparse_csr() if layout == 'sparse' else x)
    made = np.asarray(made.todense() if hasattr(made, 'todense') else made)
    assert np.allclose(made[0, :2], [0.6, 0.8], rtol=1e-5)
    assert np.allclose(np.linalg.norm(made, axis=1), [1, 0, 1, 0, 0])
    assert np.linalg.norm(made, axis=1).max() <= 1


def test_a_row_of_another_changes_no_bit_of_a_row():
    # A row beside full ones is kept dense, by itself sparse. Its first entry
    # was chosen so that the order of four squares moves an integer.
    x = torch.zeros(1, 60, dtype=torch.float64)
    for place, value in (
        (13, '0x1.337d11dd20f28p-3'),
        (18, '0x1.9de5182c1f1c4p-1'),
        (51, '0x1.4300bca7f0748p-2'),
        (15, '0x1.c7157cab6ccf6p-1'),
    ):
        x[0, place] = float.fromhex(value)
    alone = unit_rows(x)
    beside = unit_rows(torch.cat([x, torch.ones(9, 60).double()]))
    assert scipy.sparse.issparse(alone)
    assert isinstance(beside, np.ndarray)
    assert (alone.toarray() == beside[:1]).all()
    whole = whole_rows(4 * beside)[:1]
    assert (whole_rows(4 * alone).toarray() == whole).all()
    many = torch.randn(50, 200, dtype=torch.float64)
    many = torch.nn.functional.dropout(many, 0.95)
    full = torch.cat([many, torch.ones(50, 200).double()])
    assert (unit_rows(many).toarray() == unit_rows(full)[:50]).all()


def test_noise_is_drawn_once_a_step_and_has_its_deviation():
    counted = Silence()
    x = np.eye(4)
    private_linear(x, np.arange(4) % 2, 2, counted, 3.0, steps=7)
    assert counted.drawn == [(5, 2)] * 7
    assert descent_noise(0.5, 16) == 8
    assert descent_noise(0.5, 16, 'replace') == 16

    class Loud:
        def cells(self, shape):
            return torch.full(shape, 2**32)

    # A first step of Adam shows the sign of gradient plus z C.
    made = private_linear(
        x, np.arange(4) % 2, 2, Loud(), 100.0, steps=1, max_grad_norm=0.5
    )
    assert (made < 0).all()
