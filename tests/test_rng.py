import numpy as np
import pytest
import torch
import torch_geometric

from pyg_trust import rng


def test_mix_is_splitmix64():
    # The published test vector of SplitMix64: the first outputs for the state
    # 1234567, which advances by the golden ratio.
    golden = 0x9E3779B97F4A7C15
    assert rng._mix(1234567) == 6457827717110365317
    assert rng._mix(1234567 + golden) == 3203168211198807973
    assert rng._mix(1234567 + 2 * golden) == 9817491932198370423


def test_resolve_keeps_a_seed():
    assert rng.resolve(0) == 0
    assert rng.resolve(2**63 - 1) == 2**63 - 1
    assert rng.resolve(torch.tensor(7)) == 7


def test_resolve_none_follows_seed_everything():
    torch_geometric.seed_everything(5)
    first = rng.resolve(None), rng.resolve(None)
    torch_geometric.seed_everything(5)
    assert (rng.resolve(None), rng.resolve(None)) == first
    assert first[0] != first[1]


def test_derived_seeds_differ_and_are_seeds():
    seeds = {rng.derive(3, part, i) for part in range(10) for i in range(100)}
    assert len(seeds) == 1000
    assert all(rng.resolve(seed) == seed for seed in seeds)
    assert rng.derive(3, 1, 2) != rng.derive(3, 2, 1)


def test_derived_bits_are_even():
    # Each of the 63 bits of 4000 derived seeds is a fair coin: 5 standard
    # deviations, a false alarm in 30,000 choices of the seeds.
    seeds = torch.tensor([rng.derive(0, i) for i in range(4000)])
    ones = torch.stack([(seeds >> bit) & 1 for bit in range(63)]).sum(1)
    assert (ones - 2000).abs().max() < 5 * 1000**0.5


@pytest.mark.parametrize('seed', [0, 7, 2**63 - 1])
def test_derive_each_is_derive(seed):
    items = [0, 1, 2, 12345, 2**31, 2**40 + 3, 2**62, 2**63 - 1]
    found = rng.derive_each(seed, torch.tensor(items))
    assert found.tolist() == [rng.derive(seed, item) for item in items]
    square = torch.arange(6).view(2, 3)
    flat = rng.derive_each(seed, square.flatten())
    assert torch.equal(rng.derive_each(seed, square).flatten(), flat)


def test_forked_seeds_a_block_and_no_more():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with rng.forked(5):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with rng.forked(5):
        assert torch.equal(torch.rand(3), first)
    with pytest.raises(KeyError), rng.forked(5):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_the_high_half_of_a_seed_matters():
    # torch's manual_seed gives these two one stream.
    seeds = 5, 5 + 2**32
    first, second = (torch.rand(4, generator=rng.generator(s)) for s in seeds)
    assert not torch.equal(first, second)
    drawn = []
    for seed in seeds:
        with rng.forked(seed):
            drawn.append(torch.rand(4))
    assert not torch.equal(*drawn)
    first, second = (rng.stream(seed).random(4) for seed in seeds)
    assert (first != second).all()


def test_a_generator_is_the_mersenne_twister_of_its_words():
    # The same words, handed to numpy's own implementation; more draws than
    # there are words.
    words = rng.stream(9).integers(2**32, size=624, dtype=np.uint64)
    twister = np.random.MT19937()
    state = {'key': words.astype(np.uint32), 'pos': 624}
    twister.state = {'bit_generator': 'MT19937', 'state': state}
    drawn = torch.randint(256, (1500,), generator=rng.generator(9))
    assert drawn.tolist() == (twister.random_raw(1500) % 256).tolist()


def test_streams_differ_by_what_they_are_for():
    lists = (1,), (1, 0), (1, 1), (1, 1, 0), (0, 1), (2**32,), (0,)
    assert len({rng.stream(*items).random() for items in lists}) == len(lists)


def test_secret_seeds_do_not_follow_torch():
    found = set()
    for _ in range(3):
        torch_geometric.seed_everything(5)
        found.add(rng.resolve_secret(None))
    assert len(found) == 3
    assert rng.resolve_secret(7) == 7
