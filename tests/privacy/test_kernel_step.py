"""A step by construction, against whole numbers and fractions of Python."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from pyg_trust.privacy.exact import clip, step

C = 0.75
WILD = (1e30, -1e30, 3e38, 1e-45, 5e-324, 0.0, math.inf, -math.inf, math.nan)


def alone(module, unit, pull, key):
    """The gradient of a unit by itself."""
    twin = step.twin(module)
    out = step.outputs(twin, unit, key)
    return step.gradient(twin, out, pull(out.detach()))


def exact(parts):
    """The squared norm, as a fraction."""
    return sum(
        Fraction(float(v)) ** 2 for part in parts for v in part.reshape(-1)
    )


def wild(rng, size):
    """A gradient of several parts, from tiny to infinite."""
    value = rng.standard_normal(size) * 10.0 ** rng.uniform(-9, 9)
    for _ in range(rng.integers(3)):
        value[rng.integers(size)] = WILD[rng.integers(len(WILD))]
    return [value[: size // 2].reshape(1, -1), value[size // 2 :]]


def test_a_length_is_never_below_the_norm_and_hardly_above():
    rng = np.random.default_rng(0)
    cases = [wild(rng, 12) for _ in range(300)]
    cases += [
        [np.array([v, w])] for v in (5e-324, 1e-200, 3e200) for w in (0, v)
    ]
    # All squares as large as can be, and the last bit of the largest.
    cases += [[np.full(1000, 1 - 2.0**-53)], [np.full(3, 2.0**999)]]
    cases += [[np.full(n, 1 / 3)] for n in range(1, 50)]
    seen = 0
    for parts in cases:
        found = step.length(parts)
        if not all(np.isfinite(part).all() for part in parts):
            assert not math.isfinite(found)
            continue
        seen += 1
        square = exact(parts)
        assert Fraction(found) ** 2 >= square
        size = sum(part.size for part in parts)
        up = 1 + Fraction(4 * (size + 12), 2**53)
        assert (Fraction(found) - Fraction(1e-323)) ** 2 <= square * up
    assert seen > 250


def test_what_floats_do_not_hold_has_no_length():
    assert step.length([np.array([2.0**1000])]) == math.inf
    assert step.length([np.array([2.0**999])]) >= 2.0**999
    assert step.length([np.zeros(3), np.zeros(0)]) == 0
    assert step.length([np.zeros(0)]) == 0


def test_a_length_is_the_float_after_what_the_proof_says():
    # Of two numbers: 1 + (2 + 8) / 2^53, and one unit of the last place.
    assert step.length([np.array([1.0, 0.0])]) == 1 + 6 * 2.0**-52


@pytest.mark.parametrize('automatic', [False, True])
def test_what_a_unit_adds_is_no_longer_than_the_norm(automatic):
    rng = np.random.default_rng(1)
    longest = 0.0
    for _ in range(300):
        parts = wild(rng, 9)
        made = step.adds(parts, C, automatic)
        assert [m.shape for m in made] == [p.shape for p in parts]
        assert {m.dtype for m in made} == {np.dtype('int64')}
        total = sum(int(v) ** 2 for m in made for v in m.reshape(-1))
        assert total <= 2**86
        longest = max(longest, total / 2**86)
        if not all(np.isfinite(p).all() for p in parts):
            assert total == 0
            continue
        # As near as truncation allows, at the factor of its norm.
        n = math.sqrt(exact(parts))
        c = C / (n + 0.01) if automatic else min(1, C / n if n else 1)
        for part, integers in zip(parts, made, strict=True):
            off = np.abs(integers * clip.grid(C) - c * part)
            assert off.max() <= clip.grid(C) + 1e-11 * C
    assert longest > 0.99


def test_neighbours_differ_by_twice_the_norm_at_most():
    # All pairs of contents of one unit, of 40 hostile ones.
    rng = np.random.default_rng(2)
    ways = [step.adds(wild(rng, 6), C) for _ in range(40)]
    others = [step.adds(wild(rng, 6), C) for _ in range(5)]
    far = 0
    for one in ways:
        totals = [np.zeros((1, 3), 'i8'), np.zeros(3, 'i8')]
        for each in (*others, one):
            step.add(totals, each)
        for two in ways:
            away = [
                t - (s - o + w)
                for t, s, o, w in zip(totals, totals, one, two, strict=True)
            ]
            square = sum(int(v) ** 2 for a in away for v in a.reshape(-1))
            assert square <= 4 * 2**86
            far = max(far, square)
    assert far > 3 * 2**86


def test_units_are_added_in_place_and_none_is_left_out():
    totals = [np.array([1, -2]), np.array([[2**43]])]
    kept = [*totals]
    step.add(totals, [np.array([5, 7]), np.array([[-1]])])
    assert [each.tolist() for each in kept] == [[6, 5], [[2**43 - 1]]]
    with pytest.raises(ValueError, match='argument 2'):
        step.add(totals, [np.array([5, 7])])


class Keeps(nn.Module):
    """Whatever it can keep of its call, it keeps, and takes from it."""

    def __init__(self):
        super().__init__()
        self.lin, self.seen = nn.Linear(3, 2), []
        self.last = torch.zeros(())
        self.register_buffer('sum', torch.zeros(()))

    def forward(self, x):
        self.seen.append(float(x.sum()))
        self.last = self.last + x.sum()
        self.sum += x.sum()
        out = self.lin(x * (1 + len(self.seen)) + self.last + self.sum)
        return torch.dropout(out, 0.5, True)


def ones(out):
    return torch.ones_like(out)


def units(count=4):
    generator = torch.Generator().manual_seed(0)
    return [
        ((torch.randn(n + 1, 3, generator=generator),), {})
        for n in range(count)
    ]


def test_a_unit_is_run_as_if_there_were_no_other():
    model = Keeps()
    first = [alone(model, u, ones, 7) for u in units()]
    again = [alone(model, u, ones, 7) for u in units()[::-1]]
    for one, other in zip(first, again[::-1], strict=True):
        for p, q in zip(one, other, strict=True):
            assert p.tobytes() == q.tobytes()
    assert model.seen == []
    assert float(model.last) == float(model.sum) == 0
    # It is the gradient, of a new model.
    twin = Keeps()
    twin.load_state_dict(model.state_dict())
    (unit,) = units(1)
    out = step.outputs(twin, unit, 7)
    wanted = torch.autograd.grad(out.sum(), list(twin.parameters()))
    for one, other in zip(first[0], wanted, strict=True):
        assert one.dtype == np.float64
        np.testing.assert_array_equal(one, other.double().numpy())


class Calls(nn.Module):
    """Whatever is to be called, with a weight."""

    def __init__(self, call):
        super().__init__()
        self.weight, self.call = nn.Parameter(torch.ones(2, 3)), call

    def forward(self, *args, **kwargs):
        return self.call(self, *args, **kwargs)


def test_random_numbers_are_a_function_of_the_unit_and_the_key():
    before = torch.get_rng_state()
    model = Calls(lambda *_, **__: torch.dropout(torch.ones(64), 0.5, True))

    def drop(key, *args, **kwargs):
        return tuple(step.outputs(model, (args, kwargs), key).tolist())

    x = torch.arange(3.0)
    first = drop(1, x)
    assert first == drop(1, x.clone()) == drop(1, a=x) == drop(1, [x])
    cases = [drop(2, x), drop(1, x + 1), drop(1, x, x), drop(1, a=x, b=x + 1)]
    assert len({first, *cases}) == 5
    # Names in their order, whatever that of a dictionary is.
    assert cases[3] == drop(1, b=x + 1, a=x)
    assert cases[3] != drop(1, a=x + 1, b=x)
    sparse = torch.eye(3).to_sparse_csr()
    assert drop(1, sparse) == drop(1, torch.eye(3)) != first
    data = Data(x=x, y=2 * x)
    assert drop(1, data) == drop(1, {'y': 2 * x, 'x': x}) != first
    assert torch.equal(before, torch.get_rng_state())


def test_the_seed_is_the_hash_of_the_key_and_the_unit(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, 'manual_seed', seen.append)
    x = torch.arange(3.0)
    wanted = hashlib.sha256(b'7' + x.numpy().tobytes()).hexdigest()[:14]
    model = Calls(lambda *_: torch.tensor(torch.initial_seed()))
    assert int(step.outputs(model, ((x,), {}), 7)) == int(wanted, 16)
    # A model on the processor leaves other devices' generators alone.
    assert seen == []


def test_what_was_made_of_other_tensors_is_cut_off_everywhere():
    x = torch.ones(1, 3, requires_grad=True)

    def call(module, value, named, data):
        return (value + named['y'] + data.x) @ module.weight.t()

    def unit(x):
        return (2 * x, {'y': 3 * x}, Data(x=4 * x)), {}

    found = alone(Calls(call), unit(x), ones, 0)
    assert found[0].tolist() == [[9.0] * 3] * 2
    assert x.grad is None


def test_a_unit_is_not_written_to_and_weights_are_refused():
    def writes(module, x, more, data):
        for each in (x, more[0], data.x, more[1]['y']):
            each.zero_()
        data.z, more[1]['z'] = 1, 1
        return x @ module.weight.t()

    def moves(module, x):
        with torch.no_grad():
            module.weight += 1
        return x @ module.weight.t()

    x = torch.ones(1, 3)
    unit = (x, (x + 1, {'y': x + 2}), Data(x=x + 3)), {}
    alone(Calls(writes), unit, ones, 0)
    (one, (two, named), data), _ = unit
    assert one.all()
    assert two.all()
    assert named['y'].all()
    assert data.x.all()
    assert 'z' not in named
    assert 'z' not in data
    with pytest.raises(ValueError, match='leave its weights'):
        alone(Calls(moves), ((x,), {}), ones, 0)


def test_gradients_are_those_of_the_trained_weights_in_their_order():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(2, 2)
            self.unused = nn.Parameter(torch.ones(4))
            self.b.bias.requires_grad_(False)

        def forward(self, x):
            return self.b(self.a(x))

    model, unit, seen = Net(), units(2)[1], []
    model.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        # Whoever calls it may be in any mode.
        found = alone(model, unit, lambda out: 2 * ones(out), 0)
    trained = [p for p in model.parameters() if p.requires_grad]
    wanted = torch.autograd.grad(
        2 * model(*unit[0]).sum(), trained, allow_unused=True
    )
    assert len(found) == len(wanted) == 4
    for one, other in zip(found, wanted, strict=True):
        other = torch.zeros(4) if other is None else other
        np.testing.assert_array_equal(one, other.double().numpy())
    assert len(seen) == 2
    assert step.twin(model)._forward_hooks == model._forward_hooks


def test_a_release_is_the_grid_the_sum_and_the_cells():
    totals = [np.array([[2**43, -5]]), np.array([12345678901])]
    asked = []

    def draw(count):
        asked.append(count)
        return np.arange(count) * 2**31 + 3

    made = step.release(totals, draw, 2.0, C)
    assert asked == [2, 1]
    g, rho = clip.noise_grid(2.0, C, 3)
    assert g * 2**32 >= 2 * C
    assert 0 < rho < 1e-8
    for part, total in zip(made, totals, strict=True):
        assert part.shape == total.shape
        cells = np.arange(total.size).reshape(total.shape) * 2**31 + 3
        for found, t, n in zip(
            *(v.reshape(-1) for v in (part, total, cells)), strict=True
        ):
            k = round(Fraction(int(t)) * Fraction(clip.grid(C)) / Fraction(g))
            assert abs(Fraction(float(found)) / Fraction(g) - k - int(n)) <= 1
