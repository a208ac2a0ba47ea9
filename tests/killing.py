"""Kills a procedure at random points, again and again, and looks after it.

    python killing.py PROCEDURE FOLDER KILLS SEED

The procedure goes on in a child, which acknowledges what it has done and is
killed (SIGKILL, nothing can be caught) at a random moment. Then its files are
checked, and the next child goes on from them. Run by test_killing.py, in a
process of its own, because a process that forks can't have threads.
"""

import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import torch
from torch_geometric.data import Data

from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import ScatteringClassifier


def path(size, value, label):
    rows = torch.arange(size - 1)
    edges = torch.stack([rows, rows + 1])
    return Data(
        x=torch.full((size, 1), value),
        edge_index=torch.cat([edges, edges.flip(0)], dim=1),
        y=torch.tensor([label]),
    )


class Removal:
    """Certified removal: the state is saved after every request."""

    NUM_GRAPHS = 400

    def __init__(self, folder):
        self.file = folder / 'classifier.pt'
        self.gone = set()  # acknowledged

    def model(self):
        transform = GraphScattering(J=2, Q=1, L=2)
        return ScatteringClassifier(transform, noise_std=1.0)

    def start(self):
        graphs = [
            path(4, 0.2 + 0.6 * (i % 2) + 1e-4 * i, i % 2)
            for i in range(self.NUM_GRAPHS)
        ]
        self.model().fit(graphs).save(self.file)

    def work(self, acknowledge):
        model = self.model()
        model.load(self.file)
        while True:
            graph = min(model.graphs)
            model.remove(RemovalRequest(graphs=[graph]))
            model.save(self.file)
            acknowledge(graph)

    def check(self, acknowledged):
        self.gone.update(acknowledged)
        model = self.model()
        model.load(self.file)  # no file is half written
        assert not self.gone & set(model.graphs), 'a removed graph is back'
        removed = self.NUM_GRAPHS - len(model.graphs)
        lines = len(model.ledger.entries) - 1
        assert lines == removed >= len(self.gone), 'the ledger forgot a line'
        assert removed <= len(self.gone) + 1
        self.gone = set(range(self.NUM_GRAPHS)) - set(model.graphs)
        verified = model.verify()
        assert verified.ok, verified
        model.save(self.file)
        assert list(self.file.parent.iterdir()) == [self.file]


PROCEDURES = {'removal': Removal}


def child(procedure, pipe):
    try:
        procedure.work(lambda n: os.write(pipe, n.to_bytes(4, 'big')))
    finally:
        os._exit(1)  # it never ends by itself


def main():
    name, folder, kills, seed = sys.argv[1:]
    torch.set_num_threads(1)
    source = random.Random(int(seed))
    procedure = PROCEDURES[name](Path(folder))
    procedure.start()
    done = 0
    for _ in range(int(kills)):
        end, other = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(end)
            child(procedure, other)
        os.close(other)
        # Some die before the first acknowledgement, some in between.
        content = b''
        for _ in range(source.choice([0, 0, 1, 1, 2, 3])):
            if not select.select([end], [], [], 60)[0]:
                break
            content += os.read(end, 4)
        time.sleep(source.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), 'the child failed by itself'
        while more := os.read(end, 4096):
            content += more
        os.close(end)
        acknowledged = [
            int.from_bytes(content[i : i + 4], 'big')
            for i in range(0, len(content), 4)
        ]
        done += len(acknowledged)
        procedure.check(acknowledged)
    sys.stdout.write(f'{kills} kills, {done} acknowledged\n')


if __name__ == '__main__':
    main()
