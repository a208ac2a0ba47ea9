"""A desk whose process dies at any line: nothing is lost or done twice."""

import os
import signal
import sys
import uuid

import pytest
import torch
from desks import ALL, Clock, all_bytes, graph, nodes

from pyg_trust.erasure import ErasureDesk
from pyg_trust.unlearning import NodeClassifier

KILLS = 50
BASE = 10**12
# Where a process is killed: at the lines of these.
FILES = ('/erasure/', '/files/', '/ledger.py', '/node.py')


def names(request):
    return nodes(*(v - BASE for v in request.parts[0].nodes))


def number(i):
    return str(uuid.UUID(int=i))


def opened(folder):
    desk = ErasureDesk(folder / 'desk.db', clock=Clock(), policy=ALL)
    for name in ('one', 'two'):
        model = NodeClassifier(lam=0.1, seed=0)
        model.load(folder / f'{name}.pt')
        desk.register(name, model, save=folder / f'{name}.pt', names=names)
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


@pytest.mark.slow
def test_fifty_kills_lose_nothing_and_leave_nothing(tmp_path):
    for name, seed in (('one', 1), ('two', 2)):
        model = NodeClassifier(lam=0.1, seed=0)
        model.fit(graph(3 * KILLS, seed)).save(tmp_path / f'{name}.pt')
    code, said = forked(tmp_path, 0, -1)
    assert code == 0
    whole = int(said[1:])
    added, finished, killed, largest = {0}, 1, 0, 0
    points = torch.linspace(1, whole, KILLS).long().tolist()
    for i, last in enumerate(points, 1):
        code, said = forked(tmp_path, i, last)
        assert code in (0, -signal.SIGKILL), said
        killed += code != 0
        if 'a' in said:
            added.add(i)
        largest = max(largest, finished)
        finished = check_traces(tmp_path)
        assert finished >= largest, 'what was complete is not any more'
    # Recovery makes some runs longer than the first, none shorter.
    assert killed >= KILLS - 3
    desk = opened(tmp_path)
    desk.run()
    status = desk.status()
    known = {uuid.UUID(n).int for (n,) in desk._sql('SELECT id FROM request')}
    assert added <= known
    assert status.completed == len(known)
    assert status.pending == status.in_progress == 0
    for place in desk._places.values():
        saved = NodeClassifier(lam=0.1, seed=0)
        saved.load(place.save)
        assert saved.ledger.head == place.ledger.head
        lines = [e for e in saved.ledger.entries if e.request]
        gone = [v for e in lines for v in e.request['nodes']]
        assert sorted(gone) == sorted(known)
        assert all(line.reference for line in lines)
        assert len({line.reference for line in lines}) == len(lines)
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
