"""Whatever ends a process, its ledger claims no less than was released."""

import json

import warm

# A child trains and writes down every step it has released. It is killed at
# a point of the step, or at any time. Forking saves importing torch again.
SCRIPT = """
import json, os, random, signal, sys, time
import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from pyg_trust import ledger as ledger_module
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine

torch.set_num_threads(1)
folder = sys.argv[1]
torch.manual_seed(0)
pairs = torch.randint(30, (2, 60)).unique(dim=1)
data = Data(x=torch.randn(30, 4), y=torch.arange(30) % 2, edge_index=pairs)
path, out = folder + '/ledger', folder + '/released'


def make():
    torch.manual_seed(1)
    net = GCNConv(4, 2)
    engine = PrivacyEngine(insecure_seed=0, ledger=path)
    return engine, engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DisjointWalkLoader(data, 5, 1, seed=0),
        noise_multiplier=4.0,
        max_grad_norm=1.0,
    )


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def train(point, when):
    engine, (model, optimizer, loader) = make()
    released = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    start = engine.steps
    due = lambda: engine.steps - start >= when
    record, cells = engine._ledger.record, engine._noise.cells
    write, step = os.write, optimizer.optimizer.step

    def before_record(*line):
        due() and die()
        record(*line)

    def after_record(*line):
        record(*line)
        engine.steps + 1 - start > when and die()

    def in_noise(shape):
        engine.steps - start > when and die()
        return cells(shape)

    def torn(file, content):
        if file == engine._ledger._file and due():
            write(file, content[: len(content) // 2])
            die()
        return write(file, content)

    def before_step():
        engine.steps - start > when and die()
        step()

    if point == 'before':
        engine._ledger.record = before_record
    elif point == 'after':
        engine._ledger.record = after_record
    elif point == 'noise':
        engine._noise.cells = in_noise
    elif point == 'torn':
        ledger_module.os = type('os', (), {**vars(os), 'write': torn})
    elif point == 'step':
        optimizer.optimizer.step = before_step
    while True:
        for batch in loader:
            optimizer.zero_grad()
            output = model(batch.x, batch.edge_index)[:5]
            F.cross_entropy(output, batch.y[:5]).backward()
            optimizer.step()
            write(released, b'x')


random.seed(int(sys.argv[2]))
found = []
points = ['before', 'after', 'noise', 'torn', 'step', 'any', 'any', 'any']
for point in points:
    child = os.fork()
    if child == 0:
        try:
            train(point, 10**9 if point == 'any' else random.randrange(4))
        finally:
            os._exit(1)
    if point == 'any':
        # Once it has begun, at any time.
        before = os.path.getsize(out)
        while os.path.getsize(out) == before:
            time.sleep(0.001)
        time.sleep(random.random() / 20)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), (point, status)
    engine, _ = make()
    found.append((point, engine.steps, os.path.getsize(out)))
    engine.close()
print(json.dumps(found))
"""


def test_ledger_never_claims_less_than_was_spent(tmp_path):
    done = warm.run('-c', SCRIPT, tmp_path, '0')
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 8
    last = (0, 0)
    for count, (_, claimed, released) in enumerate(found, 1):
        assert released <= claimed
        # And it wastes no more than the step in progress, at each death.
        assert claimed <= released + count
        assert last <= (claimed, released)
        last = claimed, released
    assert last[1] > 3
