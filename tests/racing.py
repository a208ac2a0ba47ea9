"""Lets two processes or two threads change one state at the same moment.

    python racing.py PROCEDURE KIND FOLDER RACES

Each of the two takes something out and is told that it is done, or refused
and tries again on what is there then. In the end both have to be gone. Run by
test_racing.py, in a process of its own, because a process that forks can't
have threads.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path

import torch
from killing import path
from torch_geometric.nn import GCNConv

from pyg_trust import files
from pyg_trust.account import ReleaseAccount
from pyg_trust.files import commit
from pyg_trust.files.commit import StaleStateError
from pyg_trust.ledger import BudgetExceededError, RemovalLedger
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering, release_checks
from pyg_trust.unlearning import ScatteringClassifier, ShardedUnlearner


def paid_by_two(monkeypatch, release):
    """How many of two threads that meet at a new account can pay there.

    Both found none, made one each, and spent the whole budget twice.

    Args:
        release: called by each thread, with 0 and 1; one budget is enough for
            one.
    """
    meet = threading.Barrier(2)

    class Slow(ReleaseAccount):
        def __init__(self, *args, **kwargs):
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(release_checks, 'ReleaseAccount', Slow)
    paid, refused = [], []

    def pay(number):
        try:
            release(number)
            paid.append(number)
        except BudgetExceededError:
            refused.append(number)

    threads = [threading.Thread(target=pay, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paid) + len(refused) == 2
    return len(paid)


class Plain:
    """A list of names in a file."""

    def __init__(self, folder):
        self.file = folder / 'state.pt'
        self.size = 0

    def start(self, size):
        self.size = size
        ledger = RemovalLedger(0.0)
        ledger.record('fit', 0.0)
        state = {'ledger': ledger.state_dict(), 'there': [*range(size)]}
        commit.save(self.file, state)

    def take(self, name, together=False):
        while True:
            state = files.load(self.file)
            state['there'].remove(name)
            ledger = RemovalLedger(0.0)
            ledger.load_state_dict(state['ledger'])
            ledger.record('retrain', 0.0, {'nodes': [name]})
            state['ledger'] = ledger.state_dict()
            try:
                return commit.save(self.file, state)
            except StaleStateError:
                continue

    def left(self):
        found = files.load(self.file)
        lines = found['ledger']['entries']
        assert len(lines) == 1 + self.size - len(found['there'])
        return set(found['there'])

    def check(self):
        assert list(self.file.parent.iterdir()) == [self.file]


class Removal:
    """Certified removal: every request is saved, by whoever comes."""

    def __init__(self, folder):
        self.file = folder / 'classifier.pt'
        self.shared = None

    def model(self):
        return ScatteringClassifier(GraphScattering(J=2, Q=1, L=2))

    def start(self, size):
        graphs = [
            path(4, 0.2 + 0.6 * (i % 2) + 1e-4 * i, i % 2) for i in range(size)
        ]
        self.shared = self.model().fit(graphs)
        self.shared.save(self.file)

    def take(self, name, together=False):
        if together:
            # Two threads, one object.
            self.shared.remove(RemovalRequest(graphs=[name]))
            return self.shared.save(self.file)
        while True:
            model = self.model()
            model.load(self.file)
            model.remove(RemovalRequest(graphs=[name]))
            try:
                return model.save(self.file)
            except StaleStateError:
                continue

    def left(self):
        model = self.model()
        model.load(self.file)
        return set(model.graphs)

    def check(self):
        model = self.model()
        model.load(self.file)
        assert model.verify().ok
        assert list(self.file.parent.iterdir()) == [self.file]


class Shards:
    """Removal by shards in one folder."""

    def __init__(self, folder):
        self.folder = folder / 'shards'
        self.shared = None

    def unlearner(self):
        return ShardedUnlearner(
            lambda: GCNConv(1, 2),
            num_shards=3,
            epochs=1,
            aggregator='mean',
            folder=self.folder,
            seed=0,
        )

    def start(self, size):
        data = path(size, 1.0, 0)
        data.y = torch.arange(size) % 2
        data.train_mask = torch.ones(size, dtype=torch.bool)
        self.shared = self.unlearner().fit(data)

    def take(self, name, together=False):
        request = RemovalRequest(nodes=[name])
        if together:
            return self.shared.remove(request)
        unlearner = self.unlearner().load()
        while True:
            try:
                return unlearner.remove(request)
            except StaleStateError:
                unlearner.load()

    def left(self):
        return set(self.unlearner().load().n_id.tolist())

    def check(self):
        assert self.unlearner().load().verify().ok


PROCEDURES = {'plain': Plain, 'removal': Removal, 'shards': Shards}


def processes(procedure, names):
    # Both wait until the other end of a pipe is closed.
    end, start = os.pipe()
    children = []
    for name in names:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(start)
                os.read(end, 1)
                procedure.take(name)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    os.close(end)
    os.close(start)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0, 'a child failed'


def threads(procedure, names):
    barrier = threading.Barrier(len(names))
    failed = []

    def work(name):
        barrier.wait()
        try:
            procedure.take(name, together=True)
        except BaseException as error:
            failed.append(error)

    started = [threading.Thread(target=work, args=(n,)) for n in names]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failed:
        raise failed[0]


def main():
    name, kind, folder, races = sys.argv[1:]
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    procedure = PROCEDURES[name](Path(folder))
    procedure.start(2 * int(races) + 4)
    gone = set()
    for race in range(int(races)):
        both = (2 * race, 2 * race + 1)
        (threads if kind == 'threads' else processes)(procedure, both)
        gone.update(both)
        left = procedure.left()
        assert not left & gone, f'{left & gone} came back'
    procedure.check()
    sys.stdout.write(f'{races} races\n')


if __name__ == '__main__':
    main()
