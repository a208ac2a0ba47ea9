"""A desk whose process dies at any line: nothing is lost or done twice."""

import os
import signal
import sys
import uuid
from itertools import pairwise

import pytest
import torch
from desks import ALL, Clock, all_bytes, graph, loaded, nodes

from pyg_trust.erasure import ErasureDesk
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.unlearning import NodeClassifier

KILLS = 50
BASE = 10**12
# Where a process is killed: at the lines of these.
FILES = (
    *('/erasure/', '/files/', '/ledger.py', '/node.py'),
    *('/node_releases.py', '/coverage.py'),
)


def names(request):
    return nodes(*(v - BASE for v in request.parts[0].nodes))


def number(i):
    return str(uuid.UUID(int=i))


def private():
    """A model of so much noise that it covers everybody."""
    return PrivateNodeClassifier(
        'node', 0.005, 1e-3, steps=2, num_classes=2, max_units=100.0
    )


def opened(folder):
    desk = ErasureDesk(folder / 'desk.db', clock=Clock(), policy=ALL)
    for file in sorted(folder.glob('*.pt')):
        covers = file.name == 'private.pt'
        model = (
            private() if covers else NodeClassifier(weight_decay=0.1, seed=0)
        )
        model.load(file)
        data = {'data': lambda: graph(3 * KILLS)} if covers else {}
        desk.register(file.stem, model, save=file, names=names, **data)
    return desk


def work(folder, i, counted):
    desk = opened(folder)
    desk.add(nodes(BASE + i), subject_request_id=number(i))
    counted('added')
    desk.run()
    counted('run')


def child(folder, i, last, pipe):
    """Works until the given line; the number of lines of a whole run."""
    seen = 0

    def lines(frame, event, arg):
        nonlocal seen
        if not any(part in frame.f_code.co_filename for part in FILES):
            return None
        if event == 'line':
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return lines

    def counted(what):
        if what == 'added':
            os.write(pipe, b'a')
        else:
            sys.settrace(None)
            os.write(pipe, f'{seen}'.encode())

    sys.settrace(lines)
    work(folder, i, counted)


def forked(folder, i, last):
    end, pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(end)
            # Threads of the parent are not in a fork: whoever waits for them
            # waits for ever.
            torch.set_num_threads(1)
            child(folder, i, last, pipe)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(pipe)
    with os.fdopen(end, 'rb') as stream:
        said = stream.read().decode()
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status), said


def check_traces(folder):
    """No identifier of a completed request is in any file."""
    desk = ErasureDesk(folder / 'desk.db', clock=Clock(), policy=ALL)
    done = desk._sql("SELECT id FROM request WHERE status = 'completed'")
    desk.close()
    held = all_bytes(folder)
    for (found,) in done:
        i = uuid.UUID(found).int
        assert str(BASE + i).encode() not in held
    return len(done)


def killed_often(folder, points=None):
    """Runs that are killed at lines of the first one, and one to the end."""
    code, said = forked(folder, 0, -1)
    assert code == 0
    whole = int(said[1:])
    added, finished, killed, largest = {0}, 1, 0, 0
    if points is None:
        points = torch.linspace(1, whole, KILLS).long()
    else:
        points = torch.randint(1, whole, (KILLS,), generator=points)
    for i, last in enumerate(points.tolist(), 1):
        code, said = forked(folder, i, last)
        assert code in (0, -signal.SIGKILL), said
        killed += code != 0
        if 'a' in said:
            added.add(i)
        largest = max(largest, finished)
        finished = check_traces(folder)
        assert finished >= largest, 'what was complete is not any more'
    # Recovery makes some runs longer than the first, none shorter.
    assert killed >= KILLS - 3
    desk = opened(folder)
    desk.run()
    status = desk.status()
    known = {uuid.UUID(n).int for (n,) in desk._sql('SELECT id FROM request')}
    assert added <= known
    assert status.completed == len(known)
    assert status.pending == status.in_progress == 0
    return desk, known


def check_lines(ledger, known):
    """Everybody was removed, once, and the batches are named once."""
    lines = [e for e in ledger.entries if e.request]
    parts = [e.request.get('0', e.request) for e in lines]
    assert sorted(v for part in parts for v in part['nodes']) == sorted(known)
    assert all(line.reference for line in lines)
    assert len({line.reference for line in lines}) == len(lines)


@pytest.mark.sentinel(rows=1)
@pytest.mark.parametrize('seed', [0, 1])
def test_kills_of_a_private_model_lose_nothing_and_spend_nothing_twice(
    tmp_path, seed
):
    private().fit(graph(3 * KILLS)).save(tmp_path / 'private.pt')
    points = torch.Generator().manual_seed(seed)
    desk, known = killed_often(tmp_path, points)
    (place,) = desk._places.values()
    saved = private()
    saved.load(place.save)
    assert saved.removals.head == place.ledger.head
    check_lines(saved.removals, known)
    # What is spent is that of all of them at once, and no more.
    lines = saved.removals.entries
    assert saved._held[0] == len(known)
    assert all(one.spent < two.spent for one, two in pairwise(lines))
    assert not saved.released[0][sorted(known)].any()
    assert check_traces(tmp_path) == len(known)
    promises = [
        task['promise']['mu']
        for i in known
        for task in desk.report(number(i)).tasks
    ]
    assert {*promises} == {line.spent for line in lines[1:]}
    desk.close()


def test_fifty_kills_lose_nothing_and_leave_nothing(tmp_path):
    for name, seed in (('one', 1), ('two', 2)):
        model = NodeClassifier(weight_decay=0.1, seed=0)
        model.fit(graph(3 * KILLS, seed)).save(tmp_path / f'{name}.pt')
    desk, known = killed_often(tmp_path)
    for place in desk._places.values():
        saved = loaded(place.save)
        assert saved.ledger.head == place.ledger.head
        check_lines(saved.ledger, known)
        assert set(saved.nodes.tolist()).isdisjoint(known)
        assert saved.verify().leftovers == ()
    desk.close()
    assert check_traces(tmp_path) == len(known)
    # Nor is what they held.
    held = all_bytes(tmp_path)
    for seed in (1, 2):
        rows = graph(3 * KILLS, seed).x.double()
        assert any(row.numpy().tobytes() in held for row in rows[KILLS + 1 :])
        for i in known:
            assert rows[i].numpy().tobytes() not in held
            assert rows[i].float().numpy().tobytes() not in held
