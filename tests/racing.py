"""Lets two processes or two threads change one state at the same moment.

    python racing.py PROCEDURE KIND FOLDER RACES

Each of the two takes something out and is told that it is done, or refused
and tries again on what is there then. In the end both have to be gone. Run by
test_racing.py, in a process of its own, because a process that forks can't
have threads.
"""

import os
import sys
import threading
from pathlib import Path

import torch

from pyg_trust import commit, files
from pyg_trust.commit import Lineage, StaleStateError


class Plain:
    """A list of names in a file."""

    def __init__(self, folder):
        self.file = folder / 'state.pt'
        self.size = 0

    def start(self, size):
        self.size = size
        ledger = {'entries': []}
        lineage = list(Lineage().next().names)
        state = {'lineage': lineage, 'ledger': ledger, 'there': [*range(size)]}
        commit.save(self.file, state)

    def take(self, name):
        while True:
            state = files.load(self.file)
            state['there'].remove(name)
            lineage = Lineage.of(state).next()
            state['lineage'] = list(lineage.names)
            line = {'action': 'retrain', 'request': {'name': name}}
            state['ledger']['entries'].append(line)
            try:
                return commit.save(self.file, state)
            except StaleStateError:
                continue

    def left(self):
        found = files.load(self.file)
        assert len(found['ledger']['entries']) == self.size - len(
            found['there']
        )
        assert Lineage.of(found).generation == self.size - len(found['there'])
        return set(found['there'])

    def check(self):
        assert list(self.file.parent.iterdir()) == [self.file]


PROCEDURES = {'plain': Plain}


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
            procedure.take(name)
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
