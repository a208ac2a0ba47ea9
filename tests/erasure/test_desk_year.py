"""A simulated year: dates are kept, and batches cost less than half."""

import datetime

import torch
from desks import ALL, Clock, nodes

from pyg_trust.erasure import ErasureDesk, fields
from pyg_trust.ledger import RemovalLedger
from pyg_trust.removal import RemovalRequest

DAY = 86400.0
SHARDS = 20


class Costly:
    """A model of shards that takes time, by a simulated clock, and no work.

    A removal trains every touched shard once, a day for all of them, and
    spends the rest on what every removal takes.
    """

    folder = 'nowhere'

    def __init__(self, clock, rest, whole):
        self.clock, self.rest, self.whole = clock, rest, whole
        self.ledger, self.spent = RemovalLedger(0.0), 0.0
        self.ledger.record('fit', 0.0)

    n_id = torch.arange(10**6)
    data = type('Data', (), {'num_edges': 1})

    def shard_state(self):
        """As an unlearner of shards, which estimates times."""

    def cost(self, request):
        touched = {node % SHARDS for node in request.parts[0].nodes}
        return self.rest + self.whole * len(touched) / SHARDS

    def plan(self, request):
        return type('Plan', (), {'seconds': {'all': self.cost(request)}})

    def remove(self, request, *, reference='', on_report):
        seconds = self.cost(request)
        self.clock.now += seconds
        self.spent += seconds
        self.ledger.record(
            'retrain', 0.0, request.to_dict(), reference=reference
        )
        on_report(Promised())
        return Promised()


class Promised:
    procedure, promise, model = 'exact removal by shards', 'is gone', ''
    assumptions = not_covered = ()

    def guarantee(self):
        return self


def test_a_year_is_never_late_and_costs_less_than_half(tmp_path):
    generator = torch.Generator().manual_seed(0)
    clock = Clock()
    start = clock.now
    desk = ErasureDesk(tmp_path / 'desk.db', clock=clock, policy=ALL)
    models = {
        'small': Costly(clock, 600.0, 3600.0),
        'large': Costly(clock, 3600.0, 12 * 3600.0),
        'odd': Costly(clock, 60.0, 7200.0),
    }
    for name, model in models.items():
        desk.register(name, model)
    # Poisson, one a day; one in ten has most of its month behind it.
    times, alone = [], dict.fromkeys(models, 0.0)
    while not times or times[-1] < 365 * DAY:
        gap = -torch.rand((), generator=generator).log().item() * DAY
        times.append((times[-1] if times else 0.0) + gap)
    asked = []
    for i, moment in enumerate(times):
        late = torch.rand((), generator=generator).item() < 0.1
        node = int(torch.randint(10**6, (), generator=generator))
        asked.append((moment, node + i * 10**6, late))
    requests = iter(asked)
    coming = next(requests)
    while coming is not None or desk.status().next_due:
        # Whatever comes first: a request, or the latest start of a batch.
        moments = [
            fields.read('', row['starts']).timestamp()
            for row in desk.plan().models
            if row['starts']
        ]
        if coming is not None:
            moments.append(start + coming[0])
        # It runs every hour.
        clock.now += 3600.0
        clock.now = max(clock.now, min(moments))
        while coming is not None and start + coming[0] <= clock.now:
            came = start + coming[0] - (20 * DAY if coming[2] else 0)
            request = nodes(coming[1])
            desk.add(request, received_time=stamp(came))
            for name, model in models.items():
                alone[name] += model.cost(request)
            coming = next(requests, None)
        desk.run()
        assert not desk.status().overdue
    status = desk.status()
    assert status.completed == len(asked) > 300
    late = desk._sql('SELECT count(*) FROM request WHERE finished > due')
    assert late == [(0,)]
    spent = sum(model.spent for model in models.values())
    ratio = spent / sum(alone.values())
    assert ratio <= 0.5, ratio
    for model in models.values():
        gone = [
            node
            for line in model.ledger.entries[1:]
            for node in RemovalRequest.from_dict(line.request).parts[0].nodes
        ]
        assert sorted(gone) == sorted(node for _, node, _ in asked)


def stamp(moment):
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
