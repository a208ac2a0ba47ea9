import copy
import os
import pickle
import random
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
    Lineage,
    ObjectLock,
    StaleStateError,
    synchronized,
)


def state_of(lineage, *requests):
    lines = [{'action': 'retrain', 'request': r} for r in requests]
    return {
        'lineage': lineage.to_list(),
        'ledger': {'entries': lines},
        'x': torch.arange(3),
    }


def test_a_lineage_tells_changes_apart():
    first = Lineage().next()
    one, two = first.next(), first.next()
    assert (first.generation, one.generation) == (0, 1)
    assert one.continues(first)
    assert one.continues(one)
    assert not one.continues(two)
    assert not first.continues(one)
    assert first.continues(Lineage())
    assert Lineage.of({'lineage': one.to_list()}).runs == one.runs
    # What version 0.1 wrote: a token for each state.
    old = Lineage.of({'lineage': ['a' * 32, 'b' * 32]})
    assert old.generation == 1
    assert old.next().continues(Lineage(['a' * 32]))
    token = 'c' * 32
    for bad in (
        *({}, {'lineage': []}, {'lineage': 'a'}, {'lineage': ['a']}),
        *({'lineage': [[token, n]]} for n in (0, -1, True, 1.5, '1')),
        *({'lineage': [each]} for each in ([token], [token, 1, 1], 3)),
    ):
        with pytest.raises(ValueError, match=r'lineage|runs'):
            Lineage.of(bad)


def in_fork(lineage):
    # The next state, as another process makes it.
    end, start = os.pipe()
    if (child := os.fork()) == 0:
        os.write(start, pickle.dumps(lineage.next()))
        os._exit(0)
    os.close(start)
    with open(end, 'rb') as pipe:
        made = pickle.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    return made


def test_whoever_else_goes_on_begins_a_run_of_its_own():
    mine = Lineage().next()
    for _ in range(5):
        mine = mine.next()
    # Many changes of one object are one run.
    assert (len(mine.runs), mine.generation) == (1, 5)
    others = [
        pickle.loads(pickle.dumps(mine)).next(),
        Lineage.of({'lineage': mine.to_list()}).next(),
        mine.next(),
        copy.deepcopy(mine).next(),
        copy.copy(mine).next(),
        mine.next(),
    ]
    families = [(mine, others)]
    if hasattr(os, 'fork'):
        mine = Lineage.of({'lineage': mine.to_list()}).next()
        families.append((mine, [in_fork(mine), mine.next(), in_fork(mine)]))
    for mine, others in families:
        for number, one in enumerate(others):
            assert one.continues(mine)
            for two in others[number + 1 :]:
                assert not one.continues(two)
                assert not two.next().continues(one)


@pytest.mark.parametrize('seed', range(20))
def test_a_lineage_continues_its_ancestors_alone(seed):
    # A tree of states, by objects that read, copy and go on at random.
    source = random.Random(seed)
    states, parents = [Lineage().next()], [None]
    for _ in range(40):
        at = source.randrange(len(states))
        origin = states[at]
        if source.random() < 0.5:
            origin = Lineage.of({'lineage': origin.to_list()})
        states.append(origin.next())
        parents.append(at)
    for number, one in enumerate(states):
        ancestors, at = set(), number
        while at is not None:
            ancestors.add(at)
            at = parents[at]
        assert len(ancestors) == one.generation + 1
        for other, two in enumerate(states):
            assert one.continues(two) == (other in ancestors)


def test_a_stale_state_is_not_written(tmp_path):
    path = tmp_path / 'state.pt'
    first = Lineage().next()
    commit.save(path, state_of(first))
    one = state_of(first.next(), {'0': {'nodes': [1]}})
    two = state_of(first.next(), {'0': {'nodes': [2]}})
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
        commit.save(path, state_of(Lineage().next()))
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_not_written_over(tmp_path):
    path = tmp_path / 'state.pt'
    state = state_of(Lineage().next())
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
            with commit.exclusive(place):
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
        with commit.exclusive(place):
            # Nobody can take the file that is there now.
            other = FileLock(path)
            with pytest.raises(Timeout):
                other.acquire(timeout=0.05)
            held.append(path.exists())

    with commit.exclusive(place):
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
from pyg_trust.files.commit import Lineage

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

path, when = sys.argv[1:]
state = files.load(path)
lineage = Lineage.of(state).next()
state['lineage'] = lineage.to_list()
state['ledger']['entries'].append({'action': 'retrain', 'request': {}})
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
    commit.save(path, state_of(Lineage().next()))
    done = warm.run('-c', CHILD, path, when)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # The file is the old one or the new one, and the lock is free.
    found = files.load(path)
    generation = Lineage.of(found).generation
    assert generation == len(found['ledger']['entries'])
    assert generation == (when == 'replaced')
    after = state_of(Lineage.of(found).next(), *[{}] * (generation + 1))
    commit.save(path, after)
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
    first = Lineage().next()
    mine, other = state_of(first.next(), 'both'), first.next()
    for count, more in ((3, False), (4, True)):
        found = state_of(other, 'both', *range(count))
        with pytest.raises(StaleStateError, match='retrain 2') as error:
            commit.check_continues(tmp_path / 'a', found, mine)
        assert (' more' in str(error.value)) is more
        assert 'both' not in str(error.value)
        assert 'retrain 3' not in str(error.value)
    for bad in (
        lambda: commit.check_continues(tmp_path / 'a', 3, mine),
        lambda: Lineage('ab'),
        lambda: Lineage.of(mine, 3),
    ):
        with pytest.raises(TypeError, match=r"'(found|runs|present)'"):
            bad()


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
    # Nothing is made as a tensor of inference, and no gradient is asked for.
    with torch.inference_mode():
        assert not box.change(torch.is_inference_mode_enabled)
    with torch.no_grad():
        assert not box.change(torch.is_grad_enabled)


def test_states_by_name_as_of_0_1():
    first = Lineage().next()
    later = first.next().next()
    assert later.names == first.names * 3
    assert Lineage(later.names).generation == later.generation == 2
