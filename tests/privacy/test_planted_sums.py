"""Faults in fast sums, found by whole numbers that know of none of them.

Of the rows that a step records, the kernel makes the integers of every unit;
the fast way has to add these, whatever is wrong with it.
"""

import math

import numpy as np
import pytest
import references
import torch
import torch.nn.functional as F
from torch import nn

from pyg_trust.privacy import bounds, clipping, engine, rowwise
from pyg_trust.privacy.bounds import exact_blocks, gram, products
from pyg_trust.privacy.exact import clip

C, UNITS = 1.0, 2400


@pytest.fixture(params=['library', 'torch'])
def way(request, monkeypatch):
    """Each of the two ways to make the integers: torch's is a GPU's."""
    if request.param == 'torch':
        with_torch(monkeypatch)


def with_torch(monkeypatch):
    monkeypatch.setattr(clipping, 'is_native', lambda rows: False)


def step(model, x, owner, exact=False, pull=3.0, units=UNITS):
    """The clipped sum, and the integers of the kernel for the same rows."""
    kept = {}
    true = clipping.Book.sums

    def keep(self, factors, norm):
        kept['rows'], kept['factors'] = self, factors * self.scale
        return true(self, factors, norm)

    clipping.Book.sums = keep
    try:
        pulled = torch.ones(len(x), model.out_features).to(x) * pull
        given = model, (x,), owner, pulled, C, units
        found, _ = references.clipped(*given, exact=exact)
    finally:
        clipping.Book.sums = true
    wanted = 0
    (base,) = kept['rows'].bases
    for cluster in base.clusters:
        gamma, a = (
            t[0].double().numpy() for t in (cluster.grads, cluster.inputs)
        )
        c = kept['factors'][cluster.owners[0]].numpy()
        gamma, a, c = (v[c > 0] for v in (gamma, a, c))
        alpha, inner = references.rows(gamma, a, c, C)
        # Python's own integers.
        whole = [v.astype(np.int64).astype(object) for v in (alpha, inner)]
        wanted = wanted + whole[0].T @ whole[1]
    return found, wanted


def rows():
    # All point one way: their sum is above 2^53.
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(UNITS, 2, generator=generator) / 8
    x[:, 0] += 1
    return x, torch.arange(UNITS)


def agrees(**more):
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    found, wanted = step(model, *rows(), **more)
    return found.integers['weight'].tolist() == wanted.tolist()


def test_the_fast_sum_is_that_of_whole_numbers(way):
    assert agrees()
    assert agrees(exact=True)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('shape', [(1, 1), (16, 4), (37, 21), (70, 130)])
def test_sums_and_bounds_of_both_ways(dtype, shape, monkeypatch):
    # Rows of zeros, tiny, large and infinite ones, and units of any size.
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([1, 2, 3, 9, 40, 0, 200, 1, 5, 1, 150])
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    model = nn.Linear(*shape, bias=False).to(dtype)
    x = torch.randn(len(owner), shape[0], generator=generator).to(dtype)
    pull = torch.randn(len(owner), shape[1], generator=generator).to(dtype)
    x *= 10.0 ** torch.randint(-9, 9, (len(x), 1), generator=generator)
    x[::7], pull[::5] = 0, 0
    x[owner == 7] = 1e-42 if dtype == torch.float32 else 1e-310
    for wild, (of, value) in enumerate([(8, math.inf), (9, math.nan)]):
        (x if wild else pull)[owner == of] = value
    many = {'pull': pull, 'units': len(sizes)}
    ways = []
    for change in (lambda patch: None, with_torch):
        change(monkeypatch)
        found, wanted = step(model, x, owner, **many)
        assert found.integers['weight'].tolist() == wanted.tolist()
        here = owner == 4
        alone, only = step(model, x[here], owner[here] * 0, pull=pull[here])
        assert alone.factors[0] == found.factors[4]
        assert alone.integers['weight'].tolist() == only.tolist()
        ways.append(found)
        for unit in range(len(sizes)):
            here = owner == unit
            true = (pull[here].double().t() @ x[here].double()).norm()
            if true.isfinite():
                assert float(found.factors[unit] * true) <= C
        assert found.factors[[8, 9]].tolist() == [0, 0]
    left, right = ways
    assert torch.allclose(left.factors, right.factors, rtol=1e-5, atol=0)


def test_norms_of_rows_that_cancel(way):
    generator = torch.Generator().manual_seed(0)
    x, pull = (torch.randn(60, 3, n, generator=generator) for n in (24, 16))
    x, pull = torch.cat([x, x], 1), torch.cat([pull, -1.001 * pull], 1)
    true = (pull.double().mT @ x.double()).flatten(1).norm(dim=1)
    owner = torch.arange(60).repeat_interleave(6)
    model = nn.Linear(24, 16, bias=False)
    given = model, x.flatten(0, 1), owner
    found, _ = step(*given, pull=pull.flatten(0, 1), units=60)
    assert torch.allclose(found.norms, true, rtol=1e-3, atol=0)


def planted(monkeypatch, change, before=lambda each: each):
    true = clipping._Use.sums
    monkeypatch.setattr(
        clipping._Use,
        'sums',
        lambda use, each: change(true(use, before(each.clone()))),
    )


def large_blocks(monkeypatch):
    with_torch(monkeypatch)
    monkeypatch.setattr(bounds, 'exact_blocks', lambda tops: [slice(None)])


def float32_total(monkeypatch):
    planted(monkeypatch, lambda value: value.float().long())


def int32_total(monkeypatch):
    planted(monkeypatch, lambda value: value.int().long())


def one_unit_less(monkeypatch):
    def without(each):
        each[17] = 0
        return each

    planted(monkeypatch, lambda value: value, without)


@pytest.mark.parametrize(
    'fault', [large_blocks, float32_total, int32_total, one_unit_less]
)
def test_a_fault_of_the_fast_sum_is_found(fault, monkeypatch):
    assert agrees()
    fault(monkeypatch)
    assert not agrees()


def test_blocks_are_added_without_error():
    # However large they are: of so many rows, none is above 2^52.
    for size in (2.0**16, 2.0**21, 2.0**22 - 1):
        for count in (1, 255, 2**9, 2**10, 2**14, 2**14 + 1):
            tops = torch.full((count,), size, dtype=torch.float64)
            blocks = list(exact_blocks(tops))
            rows = [i for at in blocks for i in range(count)[at]]
            assert rows == list(range(count))
            for at in blocks:
                most = int(np.rint(tops[at].numpy()).astype(object).sum())
                assert most * 2**22 <= 2**52
    # One that is large, and none that is a number.
    for value in (2.0**22, math.inf, math.nan):
        tops = torch.ones(600, dtype=torch.float64)
        tops[5] = value
        most = 600 if value == 2.0**22 else 256
        assert next(exact_blocks(tops)).stop == most
    assert list(exact_blocks(torch.zeros(0, dtype=torch.float64))) == []


def test_noise_of_every_rank_is_found():
    # Two ranks hand out the sum of one draw, and not of two.
    class Cells:
        def __init__(self):
            self.drawn = 0

        def cells(self, shape):
            self.drawn += 1
            return torch.full(shape, self.drawn << 40)

    noise, total = Cells(), torch.tensor([5 << 43])
    (once,) = engine.noisy_sums([total], noise, 1.0, C)
    (again,) = engine.noisy_sums([total], noise, 1.0, C)
    g, _ = clip.noise_grid(1.0, C, 1)
    assert round(float((once - 5 * C) / g)) - (1 << 40) in (-1, 0, 1)
    assert float(again - once) == pytest.approx((1 << 40) * g, rel=1e-9, abs=0)


def alike():
    """Whether rows have the same bits alone and beside others."""
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    whole, _ = rowwise.call(F.silu, 'silu', (x,), {})
    each = [rowwise.call(F.silu, 'silu', (row,), {})[0] for row in x.split(1)]
    return torch.equal(whole, torch.cat(each))


def test_a_function_that_is_not_filled_up_is_found(monkeypatch):
    assert alike()
    monkeypatch.setattr(rowwise, '_PADDED', rowwise._PADDED - {'silu'})
    assert not alike()


def test_products_have_their_bits_whoever_else_has_as_many_rows():
    # A sum of all numbers of one matrix is added up in parts by two threads.
    generator = torch.Generator().manual_seed(0)
    grads, inners = (
        torch.randn(4, 200, 16, generator=generator) for _ in range(2)
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        every = gram(products(grads), products(inners))
        each = [
            gram(products(g[None]), products(a[None]))
            for g, a in zip(grads, inners, strict=True)
        ]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(every, torch.cat(each))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_units_of_any_size_add_alone_what_they_add_beside_others(way, dtype):
    # By Gram matrices, by gradients, and where rows cancel.
    sizes = torch.tensor([*range(1, 34), 40, 300, 3, 17])
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    generator = torch.Generator().manual_seed(0)
    owner = owner[torch.randperm(len(owner), generator=generator)]
    x = torch.randn(len(owner), 40, generator=generator).to(dtype)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, 3))
    model = model.to(dtype)

    def added(rows, owner, count):
        pull = torch.where(rows[:, :1] > 0, 1.0, -1.0).expand(-1, 3)
        given = model, (rows,), owner, pull.to(dtype), C, count
        return references.clipped(*given, exact=True)[0]

    many = added(x, owner, len(sizes))
    total = dict.fromkeys(many.integers, 0)
    for unit in range(len(sizes)):
        here = owner == unit
        alone = added(x[here], owner[here] * 0, 1)
        assert many.factors[unit] == alone.factors[0]
        for name, value in alone.integers.items():
            total[name] = total[name] + value
    for name, value in many.integers.items():
        assert torch.equal(value, total[name])


class Maps(nn.Module):
    """Maps of the same rows with the same gradients, two of them alike."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(n, 4) for n in (6, 6, 3))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        one, two, three = self.maps
        return one(x) + two(x) + three(x[:, :3]) + self.last(one(x).tanh())


def test_rows_that_add_nothing_are_left_out(way):
    # In each unit other rows have a gradient; in some none, or all.
    sizes = torch.tensor([1, 2, 3, 5, 9, 14, 40, 4, 4, 4])
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    generator = torch.Generator().manual_seed(1)
    owner = owner[torch.randperm(len(owner), generator=generator)]
    x = torch.randn(len(owner), 6, generator=generator)
    pull = torch.randn(len(owner), 4, generator=generator)
    pull[(x[:, 0] > 0) & (owner != 8) | (owner == 9)] = 0
    torch.manual_seed(0)
    model = Maps()

    def added(rows, pull, owner, count):
        given = model, (rows,), owner, pull, C, count
        return references.clipped(*given, exact=True)[0]

    found = added(x, pull, owner, len(sizes))
    params = list(model.parameters())
    total = dict.fromkeys(found.integers, 0)
    for unit in range(len(sizes)):
        here = owner == unit
        loss = (model(x[here]) * pull[here]).sum()
        each = torch.autograd.grad(loss, params)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in each))
        assert float(found.norms[unit]) == pytest.approx(norm, rel=1e-5)
        alone = added(x[here], pull[here], owner[here] * 0, 1)
        assert found.factors[unit] == alone.factors[0]
        for name, value in alone.integers.items():
            total[name] = total[name] + value
    for name, value in found.integers.items():
        assert torch.equal(value, total[name])
    # One whose gradient would be zero times infinity counts as zero, and
    # others add what they did.
    row = int(((owner == 6) & (x[:, 0] > 0)).nonzero()[0])
    wild = x.clone()
    wild[row, 1] = math.inf
    after = added(wild, pull, owner, len(sizes))
    assert not after.norms[6].isfinite()
    assert after.factors[6] == 0
    others = torch.arange(len(sizes)) != 6
    assert torch.equal(after.factors[others], found.factors[others])
