"""Any sequence of calls ends at a fit of what is there."""

import copy
import pickle
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from graphs import blocks
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)
from living import LAM, STD, assert_present, make, pairs, rows, seen, world_of
from states import same

from pyg_trust.agp.measures import Measure
from pyg_trust.unlearning import ForgetReport, NodeClassifier
from pyg_trust.update import NewNodes, Update

WAYS = {
    'sgc': {},
    'heat': {'measure': 'heat', 't': 2.0, 'K': 3},
    'ppr': {'measure': 'ppr', 'alpha': 0.3, 'K': 3},
    'gbp': {'measure': Measure(0.3, 0.7, (0.2, 0.3, 0.5), True, True)},
    'tight': {'release_std': 3e-8},
    'series': {
        'measure': 'appnp',
        'alpha': 0.2,
        'features': 'push',
        'theta': 1e-3,
    },
    'one way': {'measure': 'ppr', 'alpha': 0.3, 'K': 3},
    'loops': {},
}


class Living(RuleBasedStateMachine):
    @initialize(way=st.sampled_from(sorted(WAYS)), seed=st.integers(0, 99))
    def begin(self, way, seed):
        self.how = WAYS[way]
        data, kind = blocks(seed=seed % 3), {}
        if way == 'one way':
            row, col = data.edge_index
            keep = (row < col) | (row % 3 == 0)
            data.edge_index = data.edge_index[:, keep]
            kind['directed'] = True
        if way in ('one way', 'loops'):
            both = torch.tensor([[3, 5, 70], [3, 5, 70]])
            data.edge_index = torch.cat([data.edge_index, both], 1)
            kind['loops'] = True
        self.model = make(data, **self.how)
        self.world = world_of(data, seed, **kind)
        self.releases = 1

    def reported(self, report):
        if isinstance(report, ForgetReport):
            self.releases += 1
            assert report.bound <= report.budget
            assert report.residual <= report.bound
            assert report.num_train == len(self.world.y)
        assert self.model.pending == report.pending
        assert len(self.model.ledger.entries) == self.releases

    @rule()
    def remove(self):
        self.reported(self.model.remove(self.world.remove()))

    @rule(count=st.integers(1, 3))
    def update(self, count):
        asked = [self.world.draw() for _ in range(count)]
        self.reported(self.model.update(asked))

    @precondition(lambda self: self.model.pending)
    @rule()
    def release(self):
        self.reported(self.model.release())

    @rule()
    def plan(self):
        world, before = copy.deepcopy(self.world), seen(self.model)
        asked = [world.draw(), world.draw()]
        plan = self.model.plan(asked)
        assert same(seen(self.model), before)
        other = copy.deepcopy(self.model)
        report = other.update(asked, release=True)
        for name in ('rows_touched', 'train_rows_touched', 'num_train'):
            assert getattr(plan, name) == getattr(report, name)
        assert (plan.action == 'hold') == (report.action == 'hold')
        assert same(seen(self.model), before)

    @rule()
    def refuse(self):
        before = seen(self.model)
        world = copy.deepcopy(self.world)
        nodes = NewNodes(rows(1), torch.tensor([7]))
        with pytest.raises(ValueError, match="'nodes' needs labels"):
            self.model.update([world.draw(), Update(nodes=nodes)])
        far = Update(edges=pairs((self.world.names + 9, 0)))
        with pytest.raises(ValueError, match='is not there'):
            self.model.update([world.draw(), far])
        assert same(seen(self.model), before)

    @rule(way=st.sampled_from(['file', 'pickle', 'copy', 'flush']))
    def go_on(self, way):
        held = self.model._model.data.to_dict()
        if way == 'file':
            with tempfile.TemporaryDirectory() as folder:
                self.model.save(Path(folder) / 'model')
                given = {'weight_decay': LAM, 'seed': 0, 'release_std': STD}
                made = NodeClassifier(**{**given, **self.how})
                self.model = made.load(Path(folder) / 'model')
        elif way == 'pickle':
            self.model = pickle.loads(pickle.dumps(self.model))
        elif way == 'copy':
            self.model = copy.deepcopy(self.model)
        else:
            self.model.flush()
        assert same(self.model._model.data.to_dict(), held)

    def teardown(self):
        if not hasattr(self, 'model'):
            return
        found = self.model.verify()
        assert found.ok, found
        assert found.leftovers == ()
        if 'theta' in self.how:
            names, eye = sorted(self.world.x), torch.eye(6).double()
            fresh = make(self.world.data(), **self.how)._model.data
            exact = fresh.margins(eye, torch.arange(len(names)))
            held = self.model._model.data.margins(eye, torch.tensor(names))
            torch.testing.assert_close(held, exact, rtol=0, atol=1e-10)
            return
        assert found.feature_error == 0
        if self.how is not WAYS['gbp'] and self.model.ledger.spent:
            assert found.proved
        assert_present(self.model, self.world, **self.how)


TestLiving = Living.TestCase
TestLiving.settings = settings(
    max_examples=min(settings.default.max_examples, 100),
    stateful_step_count=12,
)
