import copy
import os
import pickle
import random
import secrets
import signal
import sys
import threading

import pytest
import torch
import warm
from filelock import FileLock, Timeout

from pyg_trust import files
from pyg_trust.files import commit
from pyg_trust.files.commit import (
    ObjectLock,
    StaleStateError,
    synchronized,
)
from pyg_trust.ledger import RemovalLedger


def fitted():
    made = RemovalLedger(0.0)
    made.record('fit', 0.0, data=secrets.token_hex(8))
    return made


def without(ledger, *nodes):
    """The ledger of a copy that went on."""
    made = ledger.copy()
    for node in nodes:
        line = {'0': {'nodes': [node]}}, secrets.token_hex(8)
        made.record('retrain', 0.0, *line)
    return made


def state_of(ledger):
    return {'ledger': ledger.state_dict(), 'x': torch.arange(3)}


def loaded(state):
    made = RemovalLedger(0.0)
    made.load_state_dict(state['ledger'])
    return made


@pytest.mark.parametrize('seed', range(8))
def test_a_state_continues_its_ancestors_alone(seed, tmp_path):
    # A tree of states, by objects that read, copy, remove, add what waits,
    # and fit again.
    source = random.Random(seed)
    states, parents, gone = [fitted()], [None], [False]
    for _ in range(40):
        at = source.randrange(len(states))
        made, kind = states[at].copy(), source.choice('rrmmf')
        if source.random() < 0.5:
            made = loaded(state_of(made))
        lost = gone[at]
        if kind == 'r':
            made, lost = without(made, 1), True
        elif kind == 'm':
            made.mark()
        else:
            made = RemovalLedger.after(made, 0.0)
            made.record('fit', 0.0, data=secrets.token_hex(8))
            at, lost = None if lost else at, False
        states.append(made)
        parents.append(at)
        gone.append(lost)
    saved = [state_of(made) for made in states]
    for number, (one, new) in enumerate(zip(states, saved, strict=True)):
        ancestors, at = set(), number
        while at is not None:
            ancestors.add(at)
            at = parents[at]
        again = loaded(new)
        for other, (two, there) in enumerate(zip(states, saved, strict=True)):
            known = other in ancestors
            assert one.has(*two.tip) == again.has(*two.tip) == known
            try:
                commit.check_continues(tmp_path / 'a', there, new)
                assert known
            except (StaleStateError, ValueError):
                assert not known


def test_a_stale_state_is_not_written(tmp_path):
    path = tmp_path / 'state.pt'
    first = fitted()
    commit.save(path, state_of(first))
    one, two = state_of(without(first, 1)), state_of(without(first, 2))
    commit.save(path, one)
    commit.save(path, one)
    content = path.read_bytes()
    # Says what was done, and what is to be done again.
    with pytest.raises(StaleStateError) as error:
        commit.save(path, two)
    assert "recorded retrain {'0': {'nodes': [1]}}" in str(error.value)
    assert "not saved: retrain {'0': {'nodes': [2]}}" in str(error.value)
    assert 'load()' in str(error.value)
    # An older state of the same line, and a line of its own.
    with pytest.raises(StaleStateError, match='nodes'):
        commit.save(path, state_of(first))
    with pytest.raises(ValueError, match='another fit'):
        commit.save(path, state_of(fitted()))
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_not_written_over(tmp_path):
    path = tmp_path / 'state.pt'
    state = state_of(fitted())
    for content in (b'thesis', b''):
        path.write_bytes(content)
        with pytest.raises(ValueError, match='of another kind'):
            commit.save(path, state)
        assert path.read_bytes() == content
    files.save(path, {'x': 1})
    with pytest.raises(ValueError, match='of another kind'):
        commit.save(path, state)


def test_the_lock_is_one_for_all_and_leaves_no_file(tmp_path):
    place, inside, most = tmp_path / 'state', 0, 0
    gate = threading.Barrier(4)

    def work():
        nonlocal inside, most
        gate.wait()
        for _ in range(100):
            with files.exclusive(place):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list(tmp_path.iterdir()) == []


def test_a_lock_on_a_file_that_is_gone_is_none(tmp_path):
    # Whoever holds it lets go and deletes it, while others wait.
    place, path = tmp_path / 'state', tmp_path / '.state.lock'
    held = []

    def work():
        with files.exclusive(place):
            # Nobody can take the file that is there now.
            other = FileLock(path)
            with pytest.raises(Timeout):
                other.acquire(timeout=0.05)
            held.append(path.exists())

    with files.exclusive(place):
        waiting = threading.Thread(target=work)
        waiting.start()
        waiting.join(0.1)
    waiting.join()
    assert held == [True]
    assert list(tmp_path.iterdir()) == []


CHILD = """
import os, signal, sys
from pyg_trust import files
from pyg_trust.files import commit
from pyg_trust.ledger import RemovalLedger

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

path, when = sys.argv[1:]
state = files.load(path)
ledger = RemovalLedger(0.0)
ledger.load_state_dict(state['ledger'])
ledger.record('retrain', 0.0, {'nodes': [1]})
state['ledger'] = ledger.state_dict()
replace = os.replace
if when == 'locked':
    commit.check_continues = die
elif when == 'written':
    os.replace = die
elif when == 'replaced':
    os.replace = lambda *names: (replace(*names), die())
commit.save(path, state)
"""


@pytest.mark.skipif(os.name == 'nt', reason='needs signals')
@pytest.mark.parametrize('when', ['locked', 'written', 'replaced'])
def test_killed_inside_of_the_commit(when, tmp_path):
    path = tmp_path / 'state.pt'
    commit.save(path, state_of(fitted()))
    done = warm.run('-c', CHILD, path, when)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # The file is the old one or the new one, and the lock is free.
    found = loaded(files.load(path))
    assert found.has_removals == (when == 'replaced')
    commit.save(path, state_of(without(found, 2)))
    # What the killed one left is gone.
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_writer_waits_for_the_first(tmp_path, monkeypatch):
    # Two writers of one file that know nothing of each other.
    path = tmp_path / 'report.json'
    paused, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def waiting(handle):
        if threading.current_thread() is slow:
            paused.set()
            go_on.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, 'fsync', waiting)
    slow, fast = (
        threading.Thread(target=files.write, args=(path, text))
        for text in (b'slow', b'fast')
    )
    slow.start()
    assert paused.wait(60)
    fast.start()
    fast.join(0.1)
    assert not path.exists()
    go_on.set()
    slow.join()
    fast.join()
    assert path.read_bytes() == b'fast'
    assert list(tmp_path.iterdir()) == [path]


def test_threads_take_turns_with_an_object():
    class Counter:
        def __init__(self):
            self._lock, self.count = ObjectLock(), 0

        @synchronized
        def add(self):
            count = self.count
            for _ in range(50):
                pass
            self.count = count + 1

        @synchronized
        def add_two(self):
            self.add()
            self.add()

    counter = Counter()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda: [counter.add_two() for _ in range(200)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert counter.count == 1600
    # Copies have locks of their own.
    lock = counter._lock
    made = [copy.copy(lock), copy.deepcopy(lock)]
    made.append(pickle.loads(pickle.dumps(lock)))
    assert all(isinstance(m, ObjectLock) and m is not lock for m in made)


def test_what_somebody_else_recorded_is_named_and_counted(tmp_path):
    both = without(fitted(), 9)
    mine = state_of(without(both, 8))
    for count, more in ((3, False), (4, True)):
        found = state_of(without(both, *range(count)))
        with pytest.raises(StaleStateError, match=r'\[2\]') as error:
            commit.check_continues(tmp_path / 'a', found, mine)
        assert (' more' in str(error.value)) is more
        assert '[9]' not in str(error.value)
        assert '[3]' not in str(error.value)


def test_nothing_is_called_from_inside_of_a_change():
    class Box:
        def __init__(self):
            self._lock = ObjectLock()

        @synchronized
        def read(self, then=int):
            return then()

        @commit.editing
        def change(self, then=int):
            return then()

    box = Box()
    assert box.read(lambda: box.read(box.read)) == 0
    for outer, inner in (
        (box.change, box.read),
        (box.change, box.change),
        (box.read, box.change),
    ):
        with pytest.raises(RuntimeError, match='nothing was done'):
            outer(inner)
    assert box.change() == box.read() == 0
    with pytest.raises(TypeError, match=r'not on its class.*model\.read\('):
        Box.read('state.pt')
    # Nothing is made as a tensor of inference, and no gradient is asked for.
    with torch.inference_mode():
        assert not box.change(torch.is_inference_mode_enabled)
    with torch.no_grad():
        assert not box.change(torch.is_grad_enabled)
