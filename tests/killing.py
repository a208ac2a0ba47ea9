"""Kills a procedure at random points, again and again, and looks after it.

    python killing.py PROCEDURE FOLDER KILLS SEED

The procedure goes on in a child, which acknowledges what it has done and is
killed (SIGKILL, nothing can be caught) at a random moment. Then its files are
checked, and the next child goes on from them. Run by test_killing.py, in a
process of its own, because a process that forks can't have threads.
"""

import json
import math
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust import files, noise
from pyg_trust.account import ReleaseAccount
from pyg_trust.agp.measures import appnp
from pyg_trust.agp.out_of_core import propagate_to
from pyg_trust.agp.propagation import propagate
from pyg_trust.graph import CSRGraph
from pyg_trust.graph._columns import ColumnFile
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import (
    PrivacyEngine,
    PrivateLinkPredictor,
    PrivateNodeClassifier,
)
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering, PrivateAGP
from pyg_trust.unlearning import (
    LinkClassifier,
    Recommender,
    ScatteringClassifier,
    ShardedUnlearner,
)


def path(size, value, label):
    rows = torch.arange(size - 1)
    edges = torch.stack([rows, rows + 1])
    return Data(
        x=torch.full((size, 1), value),
        edge_index=torch.cat([edges, edges.flip(0)], dim=1),
        y=torch.tensor([label]),
    )


class Training:
    """Private training: a durable ledger, and a checkpoint now and then."""

    def __init__(self, folder):
        self.ledger = folder / 'ledger.jsonl'
        self.checkpoint = folder / 'checkpoint.pt'
        self.released = 0  # steps, acknowledged after the noise was there

    def start(self):
        engine, _ = self.engine()
        files.save(self.checkpoint, engine.state_dict())
        engine.close()

    def engine(self):
        data = path(60, 1.0, 0)
        data.y = torch.arange(60) % 2
        model = GCNConv(1, 2)
        engine = PrivacyEngine(insecure_seed=0, ledger=self.ledger)
        return engine, engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DisjointWalkLoader(data, 4, 1, num_steps=5, seed=0),
            noise_multiplier=8.0,
            max_grad_norm=1.0,
        )

    def work(self, acknowledge):
        engine, (model, optimizer, loader) = self.engine()
        engine.load_state_dict(files.load(self.checkpoint))
        while True:
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                cross_entropy(out, batch.y[: batch.batch_size]).backward()
                optimizer.step()
                acknowledge(1)
            files.save(self.checkpoint, engine.state_dict())

    def check(self, acknowledged):
        self.released += len(acknowledged)
        engine, _ = self.engine()
        # One may have been paid for and not been released.
        assert self.released <= engine.steps <= self.released + 1
        state = files.load(self.checkpoint)
        assert state['steps'] <= engine.steps
        engine.load_state_dict(state)
        assert self.released <= engine.steps
        self.released = engine.steps
        engine.close()


class Shards:
    """Removal by shards: every state is in the folder before it counts."""

    NUM_NODES = 300

    def __init__(self, folder):
        self.folder = folder / 'shards'
        self.gone = set()  # acknowledged

    def unlearner(self):
        return ShardedUnlearner(
            lambda: GCNConv(1, 2),
            num_shards=4,
            epochs=2,
            aggregator='mean',
            folder=self.folder,
            seed=0,
        )

    def start(self):
        data = path(self.NUM_NODES, 1.0, 0)
        data.y = torch.arange(self.NUM_NODES) % 2
        data.train_mask = torch.ones(self.NUM_NODES, dtype=torch.bool)
        self.unlearner().fit(data)

    def work(self, acknowledge):
        unlearner = self.unlearner().load()
        while True:
            node = int(unlearner.n_id[0])
            unlearner.remove(RemovalRequest(nodes=[node]))
            acknowledge(node)

    def check(self, acknowledged):
        self.gone.update(acknowledged)
        unlearner = self.unlearner().load()  # nothing is half written
        there = set(unlearner.n_id.tolist())
        assert not self.gone & there, 'a removed node is back'
        removed = self.NUM_NODES - len(there)
        assert len(self.gone) <= removed <= len(self.gone) + 1
        lines = unlearner.ledger.entries
        assert [e.action for e in lines].count('retrain') == removed
        self.gone = set(range(self.NUM_NODES)) - there
        # Loading has finished what a killed process could not: nothing of
        # before the last removal is on the disk.
        manifest = json.loads((self.folder / 'manifest.json').read_text())
        named = {entry['file'] for entry in manifest['files'].values()}
        files_there = {path.name for path in self.folder.iterdir()}
        assert files_there == {'manifest.json', *named}
        verified = unlearner.verify()
        assert verified.ok, verified


class Columns:
    """Propagation from disk to disk: a column that is finished stays."""

    NUM_NODES, NUM_COLUMNS = 400, 24

    def __init__(self, folder):
        self.folder = folder
        self.finished = 0
        self.there = set()

    def start(self):
        generator = torch.Generator().manual_seed(0)
        pairs = torch.randint(self.NUM_NODES, (2, 1500), generator=generator)
        pairs = torch.cat([pairs, pairs.flip(0)], 1)
        graph = CSRGraph.from_edge_index(pairs, 400, duplicates='merge')
        graph.save(self.folder / 'graph')
        x = torch.randn(self.NUM_NODES, self.NUM_COLUMNS, generator=generator)
        np.save(self.folder / 'x.npy', x.numpy())
        self.wanted = propagate(graph, x, appnp(0.1))

    def work(self, acknowledge):
        graph = CSRGraph.load(self.folder / 'graph', mmap=True)
        write = ColumnFile.write

        def told(file, first, block):
            write(file, first, block)
            acknowledge(first)

        ColumnFile.write = told
        propagate_to(
            self.folder / 'z.npy',
            graph,
            self.folder / 'x.npy',
            appnp(0.1),
            columns=2,
        )

    def check(self, acknowledged):
        result = self.folder / 'z.npy'
        markers = {
            int(path.name.split('-')[1])
            for path in self.folder.glob('z.npy.part.done-*')
        }
        if result.exists():
            # The whole of it, whenever there is any.
            assert np.array_equal(np.load(result), self.wanted.numpy())
            result.unlink()
            for path in self.folder.glob('z.npy.part*'):
                path.unlink()
            self.finished += 1
            self.there = set()
            return
        assert not self.there & set(acknowledged), 'was computed twice'
        self.there |= set(acknowledged)
        assert self.there <= markers, 'a finished column is lost'
        self.there = markers


class Seen(noise.SecureNoise):
    """Tells of all noise that is there, and of what shape."""

    def __init__(self, acknowledge):
        super().__init__()
        self.acknowledge = acknowledge

    def cells(self, shape):
        drawn = super().cells(shape)
        self.acknowledge(shape[0])
        return drawn


class Release:
    """Noisy sums: a line is on the disk before its noise is anywhere."""

    NUM_NODES, MU = 60, 0.25
    MOMENTS = range(8)  # within a release of three hops, and between two

    def __init__(self, folder):
        self.ledger = folder / 'ledger.jsonl'
        self.released = 0  # hops whose noise was seen

    def start(self):
        pass

    def work(self, acknowledge):
        noise.source = lambda seed=None, kind='system': Seen(acknowledge)
        transform = PrivateAGP(
            3, mu=math.sqrt(3) * self.MU, delta=1e-3, ledger=self.ledger
        )
        while True:
            data = path(self.NUM_NODES, 1.0, 0)
            data.x = torch.randn(self.NUM_NODES, 3)
            transform(data)

    def account(self):
        about = {
            'relation': 'edge',
            'form': 'either',
            'directed': False,
            'max_degree': None,
            'delta': 1e-3,
            'num_nodes': self.NUM_NODES,
            'seeded': False,
        }
        return ReleaseAccount(about, ledger=self.ledger)

    def check(self, acknowledged):
        self.released += len(acknowledged)
        account = self.account()
        lines = len(account.lines)
        # One may have been paid for whose noise nobody saw.
        assert self.released <= lines <= self.released + 1
        least = math.sqrt(self.released) * self.MU
        assert account.mu >= least * (1 - 1e-12)
        self.released = lines
        account.close()


class Fitting:
    """A classifier: encoder, sums and head, each paid for as a whole."""

    NUM_NODES, STEPS = 40, 12
    # In every one of its parts, between two, before and after all.
    MOMENTS = (0, 1, 6, 11, 12, 13, 14, 20, 24, 25)

    def __init__(self, folder):
        self.ledger = folder / 'ledger.jsonl'

    def start(self):
        pass

    def model(self):
        return PrivateNodeClassifier(
            'node', 4.0, 1e-3, ledger=self.ledger, steps=self.STEPS
        )

    def data(self):
        data = path(self.NUM_NODES, 1.0, 0)
        data.x = torch.randn(self.NUM_NODES, 3)
        data.y = torch.arange(self.NUM_NODES) % 2
        data.train_mask = torch.ones(self.NUM_NODES, dtype=torch.bool)
        return data

    def work(self, acknowledge):
        noise.source = lambda seed=None, kind='system': Seen(acknowledge)
        self.model().fit(self.data())

    # Weights have four rows, then five; the sums one for each node.
    ROWS = (4, NUM_NODES, 5)

    def check(self, acknowledged):
        assert set(acknowledged) <= set(self.ROWS)
        model = self.model()
        parts = dict(zip(self.ROWS, model.mus, strict=True))
        seen = math.hypot(*(parts[part] for part in set(acknowledged)))
        fresh = not self.ledger.exists()
        assert not fresh or not acknowledged
        account = model._open(self.NUM_NODES)
        assert account.mu >= seen * (1 - 1e-12), 'the ledger claims less'
        assert len(account.lines) <= len(set(acknowledged)) + 1
        # What is left is not enough for half a model, let alone a second.
        if account.lines:
            try:
                model.fit(self.data())
                raise AssertionError('was fitted on what was spent')
            except BudgetExceededError:
                pass
        model.close()
        self.ledger.unlink(missing_ok=True)  # the next one begins anew


class Linking(Fitting):
    """A predictor of links: rows, their number, and all steps at once."""

    MOMENTS = range(4)
    ROWS = (Fitting.NUM_NODES, 1, Fitting.STEPS)

    def model(self):
        return PrivateLinkPredictor(
            'edge', 4.0, 1e-3, self.ledger, steps=self.STEPS
        )


class Records(Linking):
    """The same of records: rows, and all steps at once."""

    MOMENTS = range(3)
    ROWS = (Fitting.NUM_NODES, Fitting.STEPS)

    def model(self):
        return PrivateLinkPredictor(
            'node', 4.0, 1e-3, self.ledger, steps=self.STEPS
        )


class Paths:
    """A recommender that forgets a user and is saved, again and again."""

    USERS, ITEMS = 300, 12

    def __init__(self, folder):
        self.file = folder / 'model.pt'
        self.gone = set()

    def model(self):
        return Recommender('paths')

    def table(self):
        user = torch.arange(self.USERS)
        item = torch.stack([user % 12, (5 * user + 1) % 12, (user // 7) % 12])
        return torch.stack([user.repeat(3), item.reshape(-1)]).unique(dim=1)

    def start(self):
        self.model().fit(self.table(), self.USERS, self.ITEMS).save(self.file)

    def work(self, acknowledge):
        model = self.model()
        model.load(self.file)
        while True:
            user = len(model.ledger.entries) - 1
            self.forget(model, user)
            model.save(self.file)
            acknowledge(user)

    def forget(self, model, user):
        model.remove(users=[user])

    def check(self, acknowledged):
        model = self.model()
        model.load(self.file)
        self.gone.update(acknowledged)
        removed = len(model.ledger.entries) - 1
        assert self.gone <= set(range(removed)), 'a removed user is back'
        assert removed <= len(self.gone) + 1, 'nobody asked for one'
        self.gone = set(range(removed))
        self.compare(model, removed)
        model.save(self.file)  # what was half written goes
        assert list(self.file.parent.iterdir()) == [self.file]

    def compare(self, model, removed):
        table = self.table()
        fresh = self.model().fit(
            table[:, table[0] >= removed], self.USERS, self.ITEMS
        )
        users = list(range(removed, self.USERS))
        same = model.recommend(users, k=5), fresh.recommend(users, k=5)
        assert torch.equal(*same), 'it is not as if they had never been'
        assert model.verify().ok


class Removal(Paths):
    """Certified removal of graphs."""

    def model(self):
        return ScatteringClassifier(GraphScattering(J=2, Q=1, L=2))

    def start(self):
        graphs = [
            path(4, 0.2 + 0.6 * (i % 2) + 1e-4 * i, i % 2)
            for i in range(self.USERS)
        ]
        self.model().fit(graphs).save(self.file)

    def forget(self, model, user):
        model.remove(RemovalRequest(graphs=[user]))

    def compare(self, model, removed):
        assert sorted(model.graphs) == list(range(removed, self.USERS))
        verified = model.verify()
        assert verified.ok, verified


class Pairs(Paths):
    """A classifier of links that forgets a node, again and again."""

    def model(self):
        return LinkClassifier(K=2, weight_decay=0.05, seed=0, partners=2)

    def start(self):
        data = path(self.USERS, 1.0, 0)
        data.x = torch.randn(self.USERS, 3, dtype=torch.float64) / 2
        self.model().fit(data, num_names=self.USERS).save(self.file)

    def forget(self, model, user):
        model.remove(RemovalRequest(nodes=[user]))

    def compare(self, model, removed):
        assert model.nodes.tolist() == list(range(removed, self.USERS))
        assert model.verify().ok


PROCEDURES = {
    'removal': Removal,
    'training': Training,
    'shards': Shards,
    'columns': Columns,
    'release': Release,
    'fitting': Fitting,
    'linking': Linking,
    'records': Records,
    'paths': Paths,
    'pairs': Pairs,
}


def child(procedure, pipe):
    try:
        procedure.work(lambda n: os.write(pipe, n.to_bytes(4, 'big')))
        os.close(pipe)  # nobody waits for more
        while True:
            time.sleep(1)
    finally:
        os._exit(1)  # it never ends by itself


def main():
    name, folder, kills, seed = sys.argv[1:]
    torch.set_num_threads(1)
    # A kill comes after three removals or so, nine at most.
    Removal.USERS = 10 * int(kills)
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
        moments = getattr(procedure, 'MOMENTS', (0, 1, 1, 2, 3, 5))
        for _ in range(source.choice(moments)):
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
