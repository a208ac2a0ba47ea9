"""Ctrl-C at any point of whatever takes long leaves usable objects.

Python hands a signal over where a function begins or one of C returns: these
are the points at which an interrupt is raised here, of all that run in
pyg_trust.
"""

import copy
import gc
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tiers
import torch
import warm
from procedures import PROCEDURES, Private
from states import same
from tqdm import tqdm

import pyg_trust
from pyg_trust import files
from pyg_trust.ledger import PrivacyLedger

ROOT = os.path.dirname(pyg_trust.__file__)
# Points of a procedure that are tried, and those at its end.
SPREAD, LAST = (5, 6) if tiers.deep() else (1, 0)


class Interrupt:
    """Raises at the n-th point; counts them all for n = 0."""

    def __init__(self, at, error=KeyboardInterrupt):
        self.at, self.error, self.points = at, error, 0

    def __call__(self, frame, event, arg):
        if event not in ('call', 'c_return'):
            return
        if not frame.f_code.co_filename.startswith(ROOT):
            return
        self.points += 1
        if self.points == self.at:
            sys.setprofile(None)
            raise self.error

    def __enter__(self):
        # The ends of what others left behind are not points of this one.
        gc.disable()
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        gc.enable()
        return bool(error[0]) and issubclass(error[0], self.error)


def interrupted(at, call):
    """What a call raised that was interrupted at a point, if anything."""
    try:
        sys.setprofile(Interrupt(at))
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(None)
    return None


def surroundings():
    """What a procedure shares with everybody else."""
    return {
        'threads': torch.get_num_threads(),
        'random': torch.get_rng_state(),
        'python': random.getstate(),
        'numpy': np.random.get_state()[1].tolist(),
        'grad': torch.is_grad_enabled(),
        'dtype': torch.get_default_dtype(),
        'deterministic': torch.are_deterministic_algorithms_enabled(),
        'modes': torch._C._len_torch_function_stack(),
        'checks': torch.sparse.check_sparse_tensor_invariants.is_enabled(),
        'warnings': list(warnings.filters),
        'handler': signal.getsignal(signal.SIGINT),
        'children': multiprocessing.active_children(),
        'bars': open_bars(),
    }


def open_bars():
    # Those that were made to the end, and are shown.
    bars = getattr(tqdm, '_instances', ())
    return sum(hasattr(bar, 'start_t') for bar in bars)


def changed(before, after):
    return [key for key in before if not same(before[key], after[key])]


def points(total):
    """Some of them, more at the end, where new states are put in force."""
    spread = (1 + (total - 1) * i // SPREAD for i in range(SPREAD))
    return sorted({*spread, *range(max(1, total - LAST), total + 1)})


@pytest.mark.sentinel
@pytest.mark.parametrize('name', PROCEDURES)
def test_old_state_or_new_one_and_the_same_result_then(
    name, tmp_path_factory, monkeypatch
):
    # The number of threads, counted by functions of C, as torch's are.
    threads = [7]
    monkeypatch.setattr(torch, 'set_num_threads', threads.append)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: threads[-1])
    procedure = PROCEDURES[name]

    def prepare():
        return procedure.prepare(tmp_path_factory.mktemp('at'))

    objects = prepare()
    old = copy.deepcopy(procedure.state(objects))
    # What is kept for the next time is there from now on.
    procedure.run(prepare())
    before = surroundings()
    with Interrupt(0) as all_of_it:
        result = procedure.run(objects)
    may = ['random'] if procedure.draws else []
    assert changed(before, surroundings()) in ([], may)
    new = copy.deepcopy(procedure.state(objects))
    # The first run that is watched takes a few steps more than the others.
    again = prepare()
    with Interrupt(0) as all_of_it:
        procedure.run(again)

    objects, tried, raised = prepare(), points(all_of_it.points), 0
    for at in tried:
        with Interrupt(at) as one:
            procedure.run(objects)
        raised += one.points == at
        assert changed(before, surroundings()) in ([], may)
        state = procedure.state(objects)
        is_new = same(state, new)
        assert is_new or same(state, old)
        if is_new:
            procedure.check(objects)
            objects = prepare()
    assert raised > len(tried) // 2
    procedure.check(objects)
    assert same(procedure.run(objects), result)
    assert same(procedure.state(objects), new)
    procedure.check(objects)


@pytest.mark.parametrize(
    'name', [n for n, procedure in PROCEDURES.items() if procedure.shows > 0]
)
def test_bars_are_closed(name, tmp_path, capfd):
    procedure = PROCEDURES[name]
    objects = procedure.prepare(tmp_path)
    opened, before = [], open_bars()

    def while_one_is_open(frame, event, arg):
        file = frame.f_code.co_filename
        ours = file.startswith(ROOT) or 'torch_geometric' in file
        if event == 'c_return' and ours and open_bars() > before:
            sys.setprofile(None)
            opened.append(open_bars())
            raise KeyboardInterrupt

    try:
        sys.setprofile(while_one_is_open)
        with pyg_trust.progress():
            procedure.run(objects)
    except KeyboardInterrupt as error:
        # The traceback, which keeps the frames, is there.
        opened.append(error)
        opened.append(open_bars())
    finally:
        sys.setprofile(None)
    assert opened[-1] == before < opened[0]
    capfd.readouterr()


# Files and ledgers ##########################################################


def test_a_file_is_whole_and_the_interrupt_comes_through(tmp_path):
    path = tmp_path / 'state'
    files.write(path, b'old')
    with Interrupt(0) as all_of_it:
        files.write(path, b'old')
    for at in range(1, all_of_it.points + 1):
        files.write(path, b'old')
        assert interrupted(at, lambda: files.write(path, b'new')) is not None
        assert path.read_bytes() in (b'old', b'new')
        files.write(path, b'new')
        assert list(tmp_path.iterdir()) == [path]


HEADER = {'mechanism': 'pld_wor'}


@pytest.mark.parametrize('again', [False, True])
def test_a_ledger_goes_on_after_any_interrupt(tmp_path, again):
    path = tmp_path / 'ledger'
    ledger = PrivacyLedger(path, HEADER)
    ledger.record(8.0, 0.5)
    with Interrupt(0) as all_of_it:
        ledger.record(8.0, 0.5)
        ledger.record_pure(0.25)
    steps, pure = 2, 1
    for at in range(1, all_of_it.points + 1):
        with Interrupt(at):
            ledger.record(8.0, 0.5)
            steps += 1
            ledger.record_pure(0.25)
            pure += 1
        # It claims what was paid for, and no more than one line beside it.
        assert 0 <= ledger.steps - steps <= 1
        assert 0 <= ledger.pure_epsilon / 0.25 - pure <= 1
        steps, pure = ledger.steps, ledger.pure_epsilon / 0.25
        assert sum(n for *_, n in ledger.history) == steps
        if again:
            ledger.close()
            ledger = PrivacyLedger(path, HEADER)
            assert ledger.steps == steps
    ledger.record(8.0, 0.5)
    ledger.close()
    whole = PrivacyLedger(path, HEADER)
    assert whole.steps == steps + 1
    assert whole.pure_epsilon / 0.25 == pure


def test_a_ledger_survives_a_second_interrupt(tmp_path, monkeypatch):
    # The first left a line in the file, or a part of one, that is not known.
    path = tmp_path / 'ledger'
    ledger = PrivacyLedger(path, HEADER)
    ledger.record(8.0, 0.5)

    def interrupted(file, *data):
        if data:
            write(file, data[0][:5])
        raise KeyboardInterrupt

    write = os.write
    for name in ('fsync', 'write'):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, interrupted)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    ledger.record(8.0, 0.5)
    ledger.record(8.0, 0.5)
    assert ledger.steps == 4
    ledger.close()
    assert PrivacyLedger(path, HEADER).steps == 4


def test_who_loses_a_ledger_loses_the_lock(tmp_path):
    path = tmp_path / 'ledger'
    ledger = PrivacyLedger(path, HEADER)
    with pytest.raises(RuntimeError, match='open in another'):
        PrivacyLedger(path, HEADER)
    del ledger
    PrivacyLedger(path, HEADER).close()


def test_an_interrupted_engine_leaves_no_lock(tmp_path):
    objects = Private(tmp_path).make()
    objects.engine.close()
    objects = Private(tmp_path)
    with Interrupt(0) as all_of_it:
        objects.open()
    objects.engine.close()
    raised = []
    for at in points(all_of_it.points):
        objects = Private(tmp_path)
        # The traceback keeps all that was there.
        error = interrupted(at, objects.open)
        raised += [] if error is None else [error]
        objects.open()
        objects.engine.close()
    assert len(raised) > LAST


# Private training ###########################################################


def test_training_is_paid_for_and_goes_on(tmp_path):
    objects = Private(tmp_path).make()
    noises, real = itertools.count(1), objects.engine._noise.cells
    drawn = 0

    def normal(shape):
        nonlocal drawn
        drawn = next(noises)
        return real(shape)

    objects.engine._noise.cells = normal
    with Interrupt(0) as all_of_it:
        objects.train()
    assert objects.engine.steps == 3
    each = drawn // 3
    before, hooks = surroundings(), objects.state()['hooks']
    wasted = 0
    for at in points(all_of_it.points):
        steps = objects.engine.steps
        with Interrupt(at):
            objects.train()
        engine = objects.engine
        # Whoever has drawn noise has paid for it, in both accounts.
        released = -(-drawn // each)
        assert released <= engine.steps <= engine._ledger.steps
        assert steps <= engine.steps <= steps + 3
        wasted = engine._ledger.steps - released
        assert wasted <= at
        assert objects.state()['hooks'] == hooks
        # Dropout draws.
        assert changed(before, surroundings()) in ([], ['random'])
        drawn = each * released
        noises = itertools.count(drawn + 1)
    steps = objects.engine.steps
    objects.train()
    assert objects.engine.steps == steps + 3
    assert all(
        bool(value.isfinite().all()) for value in objects.net.parameters()
    )
    ledger = objects.engine._ledger.steps
    assert objects.claimed() == ledger


def test_a_backward_pass_is_not_added_twice(tmp_path):
    model, optimizer, loader = Private(tmp_path).make().private
    batch = next(iter(loader))
    out = model(batch.x, batch.edge_index)
    step = optimizer._step

    class Units(int):
        def __add__(self, other):
            raise KeyboardInterrupt

    step._count = Units(step._count)
    loss = out[: batch.batch_size].sum()
    with pytest.raises(KeyboardInterrupt):
        loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match='exactly once'):
        loss.backward()
    with pytest.raises(RuntimeError, match='it was interrupted'):
        optimizer.step()


def test_a_checkpoint_is_loaded_or_not(tmp_path):
    objects = Private(tmp_path).make()
    objects.train()
    # As from a process that had no ledger.
    state = {**copy.deepcopy(objects.engine.state_dict()), 'ledger': ''}
    objects.engine.close()
    (tmp_path / 'ledger').unlink()

    def prepare():
        (tmp_path / 'ledger').unlink(missing_ok=True)
        return Private(tmp_path).make()

    objects = prepare()
    old, noise = objects.state(), objects.engine._noise
    with Interrupt(0) as all_of_it:
        objects.engine.load_state_dict(state)
    new = objects.state()
    assert not same(old, new)
    objects.engine.close()
    objects = prepare()
    noise = objects.engine._noise
    for at in points(all_of_it.points):
        with Interrupt(at):
            objects.engine.load_state_dict(state)
        now = objects.state()
        is_new = same(now['net'], new['net'])
        assert is_new or same(now, old)
        if is_new:
            # No noise is used twice, and nothing is unpaid.
            assert objects.engine._noise is not noise
            assert same(now, new)
            assert objects.engine.steps == objects.engine._ledger.steps == 3
            objects.engine.close()
            objects = prepare()
            noise = objects.engine._noise
    objects.engine.load_state_dict(state)
    assert same(objects.state(), new)
    assert objects.engine._ledger.steps == 3
    assert objects.claimed() == 3


# Processes and signals ######################################################


SIGNALS = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import torch
from procedures import PROCEDURES
import tiers
from states import same

# A shell may have started the tests with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

procedure = PROCEDURES[sys.argv[2]]
torch.set_num_threads(1)
from pathlib import Path
folder = Path(sys.argv[3])
(folder / '0').mkdir()
objects = procedure.prepare(folder / '0')
old = procedure.state(objects)
start = time.perf_counter()
procedure.run(objects)
took = time.perf_counter() - start
new = procedure.state(objects)
caught = 0
for trial in range(1, 11):
    here = folder / str(trial)
    here.mkdir()
    objects = procedure.prepare(here)
    timer = threading.Timer(
        took * trial / 11, os.kill, (os.getpid(), signal.SIGINT)
    )
    try:
        timer.start()
        procedure.run(objects)
        # It comes now at the latest.
        timer.join()
        time.sleep(60)
    except KeyboardInterrupt:
        caught += 1
    assert torch.get_num_threads() == 1
    state = procedure.state(objects)
    assert same(state, old) or same(state, new)
    procedure.check(objects)
assert caught == 10, caught
"""


@pytest.mark.sentinel(rows=1)
@pytest.mark.skipif(os.name == 'nt', reason='needs signals')
@pytest.mark.parametrize(
    'name', ['ScatteringClassifier.remove', 'certify, dual']
)
def test_real_signals(name, tmp_path):
    done = warm.run('-c', SIGNALS, Path(__file__).parent, name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.dumps(done.stdout + done.stderr) == '""'
