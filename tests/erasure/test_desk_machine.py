"""Any sequence of calls, restarts, kills and restored backups of a desk."""

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

from desks import DAY, Clock, all_bytes, fitted, loaded, nodes, opened
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from pyg_trust.erasure import Policy
from pyg_trust.erasure.store import Store
from pyg_trust.unlearning import NodeClassifier

# Ids of the desk; nodes from N on never were in the model.
BASE, N = 10**12, 24
POLICY = Policy(max_share=1.0, backup_days=60)
# Nothing here loses its power: no disk needs to be waited for.
MEMORY = next((p for p in ('/dev/shm',) if os.access(p, os.W_OK)), None)


@functools.cache
def model_file():
    """A fitted model as it is saved; each machine begins with it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        fitted(N).save(Path(folder) / 'scores.pt')
        return (Path(folder) / 'scores.pt').read_bytes()


@functools.lru_cache(64)
def saved_nodes(content):
    """The nodes of the model in a file, by what the file has."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        (Path(folder) / 'scores.pt').write_bytes(content)
        model = NodeClassifier(weight_decay=0.1, seed=0)
        return {*model.load(Path(folder) / 'scores.pt').nodes.tolist()}


def names(request):
    return nodes(*(v - BASE for v in request.parts[0].nodes))


class Asked:
    """What is known of a request: its nodes, and how far it is."""

    def __init__(self, items):
        self.items, self.halted, self.closed = items, False, ''
        self.state, self.notified = 'pending', False

    def settle(self):
        if self.state == 'done' and self.notified and not self.closed:
            self.closed = 'completed'


class Desk(RuleBasedStateMachine):
    """The desk and a model in files, beside sets that say what has to be."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.clock = Clock()
        self.file, self.asked = self.folder / 'scores.pt', {}
        self.there, self.gone, self.backups = {*range(N)}, set(), []
        self.file.write_bytes(model_file())
        self.back_up()
        self.reopen()
        self.desk.recipient('partner')

    def reopen(self):
        self.model = loaded(self.file)
        self.desk = opened(self.folder, clock=self.clock, policy=POLICY)
        self.desk.register('scores', self.model, save=self.file, names=names)

    def picked(self, number):
        if not self.asked:
            return None, Asked(set())
        key = [*self.asked][number % len(self.asked)]
        return key, self.asked[key]

    @rule(items=some.sets(some.integers(0, N + 4), min_size=1, max_size=3))
    def add(self, items):
        if len(self.gone | items) < N - 4:
            report = self.desk.add(nodes(*(BASE + v for v in items)))
            self.asked[report.subject_request_id] = Asked(items)

    @rule(which=some.integers(0, 99), how=some.sampled_from('hpr'))
    def halt(self, which, how):
        key, one = self.picked(which)
        if key is not None and not one.closed:
            if how == 'r':
                self.desk.resume(key)
                one.state = one.state.replace('refused', 'pending')
            else:
                self.desk.hold(key, 'legal claims', paused=how == 'p')
            one.halted = how != 'r'

    @rule(which=some.integers(0, 99), cancel=some.booleans())
    def end(self, which, cancel):
        key, one = self.picked(which)
        if key is None or one.closed:
            return
        if cancel:
            self.desk.cancel(key, 'withdrawn')
            one.closed = 'cancelled'
        else:
            self.desk.done(key, 'partner')
            one.notified = True
            one.settle()

    @rule()
    def back_up(self):
        self.backups.append((self.file.read_bytes(), {*self.there}))

    @rule(which=some.integers(0, 99))
    def restore(self, which):
        content, self.there = self.backups[which % len(self.backups)]
        self.desk.close()
        self.file.write_bytes(content)
        self.there = {*self.there}
        self.reopen()

    @rule(hours=some.integers(0, 36))
    def wait(self, hours):
        self.clock.now += 3600 * hours

    @rule(at=some.integers(1, 60))
    def die(self, at):
        # At a statement of the desk; what is on the disk is all that is left.
        plain, left = Store.rows, [at]

        def stopping(store, *query):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return plain(store, *query)

        Store.rows = stopping
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self.desk._sql = self.desk._store.rows
                self.desk.run()
        finally:
            Store.rows = plain
        self.desk.close()
        self.reopen()
        self.run()

    @rule()
    def run(self):
        self.desk.run()
        for one in self.asked.values():
            if one.closed or one.halted or one.state != 'pending':
                continue
            if min(one.items) >= N:
                one.state = 'refused'
                continue
            one.state = 'done'
            self.gone |= one.items
            one.settle()
        # What a restored model holds again is removed again.
        self.there -= self.gone
        self.check()

    def check(self):
        assert {*self.model.nodes.tolist()} == self.there
        assert saved_nodes(self.file.read_bytes()) == self.there
        lines = [e.request for e in self.model.ledger.entries if e.request]
        removed = [v for line in lines for v in line['nodes']]
        assert sorted(removed) == sorted({*range(N)} - self.there)
        status = self.desk.status()
        closed = [one.closed for one in self.asked.values()]
        assert status.completed == closed.count('completed')
        assert status.cancelled == closed.count('cancelled')
        assert {key for key, _ in status.refused} == {
            key
            for key, one in self.asked.items()
            if one.state == 'refused' and not one.closed
        }
        for key, one in self.asked.items():
            report = self.desk.report(key)
            (task,) = (t for t in report.tasks if t['is_model'])
            assert task['state'] == one.state
            has_line = task['mode'] in ('now', 'again', 'in the ledger')
            found = self.model.ledger.refers_to(task['reference'] or '')
            assert found or not has_line

    @precondition(lambda self: self.asked)
    @rule()
    def late(self):
        # Long after the last backup nothing of who is done is in the file.
        self.run()
        self.clock.now += 70 * DAY
        self.backups = []
        self.desk.run()
        self.back_up()
        held = all_bytes(self.folder, apart=['scores.pt'])
        left = {
            v for o in self.asked.values() if not o.closed for v in o.items
        }
        for one in self.asked.values():
            if one.closed:
                for v in one.items - left:
                    assert str(BASE + v).encode() not in held

    def teardown(self):
        if hasattr(self, 'desk'):
            self.desk.close()
            shutil.rmtree(self.folder)


TestDesk = Desk.TestCase
TestDesk.settings = settings(
    deadline=None, max_examples=min(400, settings().max_examples)
)
