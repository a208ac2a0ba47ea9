"""Several processes train as one: torch.distributed on this machine."""

import json
import os
from pathlib import Path

import pytest
import torch
import warm

from pyg_trust.privacy import PoissonAccountant
from pyg_trust.privacy.group import keyed_bytes

WORKER = Path(__file__).with_name('together.py')


def start(folder, size, *args):
    root = str(WORKER.parents[2])
    path = os.pathsep.join([root, os.environ.get('PYTHONPATH', '')])
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path}
    env.pop('WORLD_SIZE', None)
    what, *rest = args
    ranks = [
        warm.Process(
            *('-W', 'ignore', WORKER, what, rank, size, folder, *rest),
            env=env,
        )
        for rank in range(size)
    ]
    ended = [rank.wait(timeout=300) for rank in ranks]
    return [(r.stdout, r.stderr, r.returncode) for r in ended]


@pytest.fixture(scope='module', params=[1, 2, 4])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp('together')
    for _, error, code in start(folder, request.param, 'all'):
        assert code == 0, error
    return folder, [
        json.loads((folder / f'out{rank}.json').read_text())
        for rank in range(request.param)
    ]


def test_bytes_of_a_key_never_repeat():
    # Batches of all steps come from one key: whoever saw two draws alike
    # would know one by the other.
    key, other = bytes(32), bytes(31) + b'\x01'
    made = []
    for k in (key, other):
        for step in (0, 1, 256):
            draw, again = keyed_bytes(k, step), keyed_bytes(k, step)
            drawn = [draw(32) for _ in range(300)]
            assert drawn == [again(32) for _ in range(300)]
            made += drawn
    assert len(set(made)) == len(made) == 1800


@pytest.mark.sentinel(rows=1)
def test_noise_is_added_once(trained):
    # 3,000 numbers of noise alone; a right one fails once in a billion, and
    # twice the variance is 38 standard deviations of it away.
    _, found = trained
    assert all(one['noise'] > 1e-9 for one in found)


def test_faults_in_who_adds_noise_are_noticed(trained):
    _, found = trained
    for planted in ('every rank adds noise', 'no rank does'):
        for one in found:
            assert one.get(planted, 0.0) < 1e-9


def test_each_drawn_subgraph_is_in_one_process(trained):
    _, found = trained
    for step in range(6):
        drawn = [unit for one in found for unit in one['law']['units'][step]]
        assert len(set(drawn)) == len(drawn)
        sizes = [len(one['law']['units'][step]) for one in found]
        assert max(sizes) - min(sizes) <= 1
    # Not the same in every step, as an exchanged key would make it.
    assert len({str(one) for one in found[0]['law']['units']}) > 1


def test_processes_have_one_result_and_one_account(trained):
    folder, found = trained
    first = found[0]['law']
    for one in found:
        assert one['law']['grads'] == first['grads']
        assert one['law']['weights'] == first['weights']
        assert one['law']['epsilon'] == first['epsilon']
        assert one['law']['steps'] == 6
        assert one['law']['processes'] == len(found)
    account = PoissonAccountant()
    account.history = [(2.0, 2 / 12, 6)]
    assert first['epsilon'] == account.get_epsilon(1e-5)
    lines = (folder / 'law.ledger').read_text().splitlines()
    assert sum('"step"' in line for line in lines) == 6


def test_clipped_sums_are_those_of_one_process(trained):
    # By hand: the gradient of a star is the sum of its rows, clipped.
    _, found = trained
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(36, 12, generator=generator)
    grad = x[:12].double() + x[12:].view(12, 2, 12).sum(1)
    grad *= (0.7 / grad.norm(dim=1, keepdim=True)).clamp(max=1)
    moved = sum(
        grad[one['fixed'][0][step]].sum(0)
        for one in found
        for step in range(6)
    )
    drawn = sum(len(units) for one in found for units in one['fixed'][0])
    assert drawn == 2 * (0 + 4 + 8)
    for one in found:
        _, before, after = one['fixed']
        want = torch.tensor(before[0]).double() - 0.1 * moved
        assert torch.allclose(torch.tensor(after[0]).double(), want, atol=1e-4)
        assert one['fixed'][1:] == found[0]['fixed'][1:]


def test_other_partitions_and_wrapped_models_are_refused(trained):
    _, found = trained
    if len(found) > 1:
        for one in found:
            assert "'seed'" in one['seeds']
            assert 'DistributedDataParallel' in one['wrapped']
            for name in (
                'noise_multiplier',
                'max_grad_norm',
                'clipping',
                'max_physical_batch_size',
            ):
                assert f"'{name}' needs to be the same" in one[name]
            for name in ('weights', 'optimizer'):
                said, weights = one[name]
                assert any('of the first process are taken' in s for s in said)
                assert weights == found[0][name][1]


@pytest.mark.sentinel(rows=1)
@pytest.mark.parametrize('when', ['total', 'of_first', 'spread'])
def test_a_process_that_dies_leaves_no_step_unpaid(tmp_path, when):
    # Each call of a step in turn, in the third step.
    count = {'total': 3, 'spread': 3, 'of_first': 5}[when]
    results = start(tmp_path, 2, 'killed', when, count)
    assert sorted(code != 0 for _, _, code in results) == [True, True]
    lines = (tmp_path / 'killed.ledger').read_text().splitlines()
    spent = sum('"step"' in line for line in lines)
    # Two steps were seen; the third is paid, though nobody has seen it.
    assert [(tmp_path / f'seen{rank}').read_text() for rank in (0, 1)] == [
        '2',
        '2',
    ]
    assert spent == 3
