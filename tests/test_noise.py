import math
import os
import random

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm
from torch_geometric import seed_everything

from pyg_trust import noise as noises
from pyg_trust.noise import SecureNoise, SeededNoise


def seeded_bytes(seed):
    # The construction is tested with numbers that can be drawn again.
    return random.Random(seed).randbytes


@pytest.mark.parametrize('kind', ['secure', 'seeded'])
def test_noise_is_standard_gaussian(kind):
    noise = (
        SecureNoise(seeded_bytes(0)) if kind == 'secure' else SeededNoise(0)
    )
    drawn = noise.normal((200, 500))
    assert drawn.shape == (200, 500)
    assert drawn.dtype == torch.float64
    values = drawn.flatten().numpy()
    assert kstest(values, norm.cdf).pvalue > 1e-3
    assert abs(values.mean()) * math.sqrt(values.size) < norm.isf(1e-4)
    assert 1e-4 < chi2(values.size).cdf((values**2).sum()) < 1 - 1e-4
    # Tails, which delta is about.
    for reach in (3.0, 4.0):
        want = 2 * values.size * norm.sf(reach)
        assert abs((np.abs(values) > reach).sum() - want) < 5 * want**0.5
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.015


def test_pieces_do_not_repeat(monkeypatch):
    monkeypatch.setattr('pyg_trust.verify.noise._PIECE', 7)
    values = SecureNoise().normal((50,))
    assert values.unique().numel() == 50
    assert SecureNoise().normal(()).shape == ()
    assert SecureNoise().normal((3, 0)).shape == (3, 0)


def test_bytes_come_from_the_system_and_are_used_once():
    asked = []

    def source(count):
        asked.append(count)
        return os.urandom(count)

    noise = SecureNoise(source)
    noise.normal((10,))
    # A word each.
    assert asked == [10 * 8]
    noise.choose(9, 3)
    assert asked[1:] == [9 * 8]
    assert SecureNoise()._source is os.urandom


def test_uniform_numbers_have_53_bits():
    words = np.array([0, 2**64 - 1, 2**11, 2**11 - 1], dtype=np.uint64)
    noise = SecureNoise(lambda count: words.tobytes())
    found = noise.uniform(4)
    assert found.tolist() == [2.0**-53, 1.0, 2.0**-52, 2.0**-53]


def test_noise_is_cells_on_their_grid():
    for make in (lambda: SecureNoise(seeded_bytes(3)), lambda: SeededNoise(3)):
        cells, drawn = make().cells((40, 5)), make().normal((40, 5))
        assert cells.dtype == torch.int64
        assert torch.equal(cells.double() / 2**32, drawn)
        assert cells.unique().numel() == 200
        # The last bits of a cell are fair: a grid of 2^-31 has even ones.
        assert 60 < (cells % 2).sum() < 140


def test_two_tensors_never_share_a_word():
    for noise in (SecureNoise(seeded_bytes(4)), SeededNoise(4)):
        first, second = noise.cells((50,)), noise.cells((50,))
        assert not set(first.tolist()) & set(second.tolist())


def test_choice_is_uniform_without_replacement():
    noise = SecureNoise(seeded_bytes(1))
    count = {}
    for _ in range(6000):
        chosen = noise.choose(6, 3)
        assert len(set(chosen.tolist())) == 3
        key = tuple(sorted(chosen.tolist()))
        count[key] = count.get(key, 0) + 1
    assert len(count) == math.comb(6, 3)
    want = 6000 / 20
    statistic = sum((c - want) ** 2 / want for c in count.values())
    assert chi2(19).sf(statistic) > 1e-3
    assert sorted(noise.choose(5, 5).tolist()) == [0, 1, 2, 3, 4]


def test_ties_are_drawn_again():
    words = [
        np.array([3, 3, 1], dtype=np.uint64),
        np.array([5, 2, 9], dtype=np.uint64),
    ]
    noise = SecureNoise(lambda count: words.pop(0).tobytes())
    assert noise.choose(3, 2).tolist() == [1, 0]
    assert not words


def test_seeding_torch_and_numpy_does_not_fix_the_noise():
    drawn = []
    for _ in range(2):
        seed_everything(7)
        drawn.append(noises.source().normal((4,)))
    assert not torch.equal(*drawn)
    assert noises.source().secure
    assert not noises.source(0).secure


def test_no_window_of_seeds_is_tried_through_the_high_half():
    # 0.1.0 drew one stream for these two, so that 2^32 tries found any seed.
    low, high = (SeededNoise(seed).normal((4,)) for seed in (5, 5 + 2**32))
    assert not torch.equal(low, high)
    low, high = (SeededNoise(s).choose(50, 9) for s in (5, 5 + 2**32))
    assert (low != high).any()
    low, high = (SeededNoise(s).uniform(4) for s in (5, 5 + 2**32))
    assert (low != high).all()
