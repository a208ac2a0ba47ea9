"""Somebody who knows the code tries to break what the engine's report says."""

import copy
import io
import math
import pickle
import secrets

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric import seed_everything
from torch_geometric.nn import GCNConv, PairNorm

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.noise import SEEDED
from pyg_trust.privacy import (
    PrivacyEngine,
    create_accountant,
    planning,
    search,
)


class GCN(nn.Module):
    """Made before its optimizer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(5, 6), GCNConv(6, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def step(setup, loss=None):
    """One step, with a loss of outputs and the batch."""
    for batch in setup.loader:
        setup.optimizer.zero_grad()
        if loss is None:
            setup.loss(batch).backward()
        else:
            out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
            loss(out, batch).backward()
        setup.optimizer.step()
        return batch


# Secrets #####################################################################


def test_whoever_knows_what_seeded_everything_cannot_subtract(private):
    # The attacker runs the same script on data of its own.
    ends, batches = [], []
    for _ in range(2):
        setup = private(engine={'insecure_seed': None}, loader={'seed': 1})
        seed_everything(7)
        np.random.seed(7)
        batches.append(step(setup).n_id)
        ends.append(setup.net.first.lin.weight.grad)
    std = setup.engine.report(1e-3).noise_std / 8
    left = (ends[0] - ends[1]).norm() / math.sqrt(ends[0].numel())
    assert left > 0.5 * math.sqrt(2) * std
    assert not batches[0].equal(batches[1])


def test_a_seed_is_confessed_before_anything_else(private, tmp_path):
    path = tmp_path / 'ledger'
    setup = private(engine={'insecure_seed': 3, 'ledger': path})
    setup.train(1)
    report = setup.engine.report(1e-3)
    for text in (report.explain(), str(report), report.guarantee().promise):
        assert text.startswith(SEEDED)
    assert report.guarantee().values['seeded']
    assert report.assumptions[0] == SEEDED
    other = private(engine={'insecure_seed': None}).engine.report(1e-3)
    for text in (other.explain(), str(other), str(other.guarantee())):
        assert SEEDED not in text
    # Nor does it go on as a private one.
    state = setup.engine.state_dict()
    setup.engine.close()
    with pytest.raises(ValueError, match='seeded=True instead of False'):
        private(engine={'insecure_seed': None, 'ledger': path})
    with pytest.raises(ValueError, match="'seeded'"):
        private(engine={'insecure_seed': None}).engine.load_state_dict(state)


# Other hands #################################################################


@pytest.mark.parametrize('way', ['optimizer', 'data', 'in place', 'frozen'])
def test_raw_updates_between_steps_are_refused(private, way):
    net = private().net
    net.second.bias.requires_grad_(way != 'frozen')
    trained = [p for p in net.parameters() if p.requires_grad]
    setup = private(net=net, optimizer=torch.optim.SGD(trained, lr=0.1))
    step(setup)
    x, edge_index, y = setup.data.x, setup.data.edge_index, setup.data.y
    if way == 'optimizer':
        other = torch.optim.SGD(setup.net.parameters(), lr=0.1)
        F.cross_entropy(setup.net(x, edge_index), y).backward()
        other.step()
        other.zero_grad()
    elif way == 'data':
        setup.net.second.lin.weight.data.add_(1e-3)
    else:
        with torch.no_grad():
            setup.net.second.bias += x.mean()
    report = setup.engine.report(1e-3)
    assert 'NOT COVERED: the weights' in report.explain()
    # A checker is not told that the changed weights are the private ones.
    assert report.weights_sha256 == ''
    with pytest.raises(RuntimeError, match='since the last private step'):
        step(setup)
    assert setup.engine.steps == 1


def test_training_with_the_objects_passed_in_is_no_private_training(private):
    setup = private()
    assert setup.engine.get_epsilon(1e-3) == 0
    own = torch.optim.SGD(setup.net.parameters(), lr=0.1)
    out = setup.net(setup.data.x, setup.data.edge_index)
    F.cross_entropy(out, setup.data.y).backward()
    own.step()
    for ask in (setup.engine.get_epsilon, setup.engine.report):
        with pytest.raises(ValueError, match='not by a private step'):
            ask(1e-3)


def test_weights_that_were_released_can_be_loaded_and_are_noted(private):
    setup = private()
    step(setup)
    said = setup.engine.report(1e-3).explain()
    assert 'NOT COVERED' not in said
    kept = copy.deepcopy(setup.model.state_dict())
    step(setup)
    setup.model.load_state_dict(kept)
    step(setup)
    assert setup.engine.steps == 3
    said = setup.engine.report(1e-3).explain()
    assert 'optimizer states that were loaded were released' in said
    # Put aside for a while, as averages are for validation.
    kept = copy.deepcopy(setup.net.state_dict())
    with torch.no_grad():
        for name, p in setup.net.named_parameters():
            p.zero_()
            p.copy_(kept[name])
    step(setup)
    # Of the optimizer as well.
    setup.optimizer.load_state_dict(setup.optimizer.state_dict())
    step(setup)
    assert setup.engine.steps == 5


@pytest.mark.parametrize('way', ['hook', 'norm', 'before', 'frozen', 'thawed'])
def test_models_that_change_later_are_refused(private, way, monkeypatch):
    # Each step looks, and not one of sixteen.
    monkeypatch.setattr(secrets, 'randbelow', lambda count: 0)
    net = GCN()
    net.first.act, forward = nn.Identity(), net.first.forward
    net.first.forward = lambda x, e: net.first.act(forward(x, e))
    net.first.bias.requires_grad_(way != 'thawed')
    trained = [p for p in net.parameters() if p.requires_grad]
    setup = private(net=net, optimizer=torch.optim.SGD(trained, lr=0.1))
    step(setup)
    match = 'rows of several subgraphs meet'
    if way == 'hook':
        net.second.register_forward_hook(lambda *a: a[-1] - a[-1].mean(0))
    elif way == 'norm':
        net.first.act = PairNorm()
    elif way == 'before':
        # Rows meet before the first parameter.
        net.first.forward = lambda x, e: forward(x.roll(1, 0), e)
    else:
        net.first.bias.requires_grad_(way == 'thawed')
        match = 'the same parameters'
    with pytest.raises(ValueError, match=match):
        step(setup)
    assert setup.engine.steps == 1


def test_labels_of_the_batch_may_still_be_ignored(private):
    setup = private()
    setup.data.y[::2] = -100
    step(setup, lambda out, b: F.cross_entropy(out, b.y[:8].clone()))
    mask = torch.arange(8) > 3
    step(setup, lambda o, b: F.cross_entropy(o, b.y[:8].where(mask, -100)))
    assert setup.engine.steps == 2


# Another try #################################################################


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('seed', [None, 4])
def test_starting_over_does_not_draw_another_batch(private, seed, workers):
    setup = private(
        engine={'insecure_seed': seed},
        loader={'num_workers': workers, 'num_steps': 6, 'batch_size': 4},
    )
    for _ in range(2):
        seen = {
            tuple(next(iter(setup.loader)).n_id.tolist())
            for _ in range(2 if workers else 12)
        }
        assert len(seen) == 1
        step(setup)


# Copies ######################################################################


def test_copies_are_plain_and_leave_the_engine_alone(private):
    # In 0.1.0 every step of the process failed after this.
    setup = private()
    step(setup)
    plain = copy.deepcopy(setup.model)
    average = AveragedModel(
        setup.model, multi_avg_fn=get_ema_multi_avg_fn(0.5)
    )
    stored = io.BytesIO()
    torch.save(setup.model, stored)
    stored.seek(0)
    for other in (
        plain,
        average.module,
        pickle.loads(pickle.dumps(setup.model)),
        torch.load(stored, weights_only=False),
    ):
        assert type(other) is type(setup.net)
        assert other.first.bias.equal(setup.net.first.bias)
        assert other.first.bias is not setup.net.first.bias
        assert other.first.bias.grad is None
    before = setup.net.first.bias.detach().clone()
    step(setup)
    average.update_parameters(setup.model)
    assert plain.first.bias.equal(before)
    after = setup.net.first.bias.detach().clone()
    # The first call takes the weights as they are.
    step(setup)
    average.update_parameters(setup.model)
    want = (after + setup.net.first.bias) / 2
    assert torch.allclose(average.module.first.bias, want)
    # A copy is an ordinary model, and does not move the private one.
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(setup.data.x, setup.data.edge_index).sum().backward()
    optimizer.step()
    setup.train()
    assert setup.engine.steps == 5


def test_what_spends_the_budget_is_not_doubled(private):
    setup = private()
    for thing in (setup.engine, setup.optimizer, setup.loader):
        for ask in (copy.deepcopy, copy.copy):
            with pytest.raises(TypeError, match="can't be copied"):
                ask(thing)
        with pytest.raises(TypeError, match="can't be pickled"):
            pickle.dumps(thing)
    setup.train()


def test_optimizer_is_one_of_torch(private):
    setup = private()
    calls = []
    setup.optimizer.register_step_pre_hook(lambda *_: calls.append('pre'))
    setup.optimizer.register_step_post_hook(lambda *_: calls.append('post'))
    setup.train()
    assert calls == ['pre', 'post'] * 2
    state = copy.deepcopy(setup.optimizer.state_dict())
    state['param_groups'][0]['lr'] = 0.5
    setup.optimizer.load_state_dict(state)
    inner = setup.optimizer.optimizer
    assert inner.param_groups[0]['lr'] == 0.5
    assert setup.optimizer.param_groups is inner.param_groups
    setup.optimizer.param_groups[0]['lr'] = 0.25
    assert inner.param_groups[0]['lr'] == 0.25


def test_names_are_those_of_the_model_inside_of_another(private):
    setup = private()
    outer = nn.Sequential(setup.model)
    state = copy.deepcopy(outer.state_dict())
    assert '0.first.bias' in state
    step(setup)
    outer.load_state_dict(state)
    assert setup.net.first.bias.equal(state['0.first.bias'])
    del state['0.first.bias']
    found = outer.load_state_dict(state, strict=False)
    assert found.missing_keys == ['0.first.bias']
    step(setup)


# Several processes ###########################################################


def test_other_processes_than_it_began_in_are_refused(private, monkeypatch):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    setup = private()
    for size in (1, 2):
        torch.distributed.init_process_group(
            'fake', rank=0, world_size=size, store=FakeStore()
        )
        try:
            if size == 1:
                step(setup)
                private()
                continue
            with pytest.raises(RuntimeError, match='process 0 of 2'):
                step(setup)
        finally:
            torch.distributed.destroy_process_group()
    assert setup.engine.steps == 1
    # As torchrun starts them, before they found each other.
    monkeypatch.setenv('WORLD_SIZE', '4')
    with pytest.raises(RuntimeError, match='announces 4 processes'):
        private()


# Refused by name, before anything starts #####################################


def test_optimizers_that_cannot_work_are_refused_at_once(private):
    net = private().net
    for optimizer, match in (
        (torch.optim.LBFGS(net.parameters()), 'LBFGS'),
        (torch.optim.SparseAdam(net.parameters()), 'SparseAdam'),
    ):
        with pytest.raises(ValueError, match=match):
            private(net=net, optimizer=optimizer)
    # Momentum of raw gradients.
    adam, data = torch.optim.Adam(net.parameters()), private().data
    F.cross_entropy(net(data.x, data.edge_index), data.y).backward()
    adam.step()
    adam.zero_grad()
    with pytest.raises(ValueError, match="'optimizer' needs to be new"):
        private(net=net, optimizer=adam)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(ValueError, match='float32 or float64'):
            private(net=copy.deepcopy(net).to(dtype))


def test_closures_are_called_once(private):
    setup = private()
    for batch in setup.loader:

        def closure(batch=batch):
            setup.optimizer.zero_grad()
            loss = setup.loss(batch)
            loss.backward()
            return loss

        assert setup.optimizer.step(closure) > 0
        with pytest.raises(RuntimeError, match='got a call after the step'):
            setup.optimizer.step(closure)
    assert setup.engine.steps == 2
    with pytest.raises(TypeError, match='closure'):
        setup.optimizer.step(3)


# Memory of a model, and of other runs ########################################


class Keeping(GCN):
    """Keeps what it reads, in one of many places, and counts its calls."""

    def __init__(self, how):
        super().__init__()
        self.how, self.kept, self.rows, self.calls = how, None, {}, 0

    def forward(self, x, edge_index):
        kept = x.detach().clone()
        self.calls += 1
        if self.how == 'attribute':
            self.kept = kept
        elif self.how == 'of a layer':
            self.first.memory = [kept]
        elif self.how == 'table':
            self.rows['x'] = kept
        else:
            self.rows = {'x': [kept]}
        return super().forward(x, edge_index)


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
@pytest.mark.parametrize('how', ['attribute', 'of a layer', 'table', 'other'])
def test_a_trained_model_has_kept_no_private_row(private, how, isolation):
    # Its rows were in every copy, and could be read by the next step's loss.
    data = private().data
    # Those of the fixture are random numbers that one may draw again.
    generator = torch.Generator().manual_seed(977)
    data.x = torch.randn(data.x.shape, generator=generator)
    setup = private(data=data, net=Keeping(how), isolation=isolation)
    before = setup.net.calls
    steps = setup.train(3)
    for net in (setup.net, copy.deepcopy(setup.model)):
        memory = getattr(net.first, 'memory', [])
        inside = net.rows.get('x', [])
        inside = [inside] if isinstance(inside, torch.Tensor) else inside
        for rows in (net.kept, *memory, *inside):
            # It may keep those that were made up.
            assert rows is None or not (rows[:, None] == data.x).all(2).any()
        if isolation == 'checked':
            assert net.calls == before + steps


def test_a_search_does_not_tell_that_another_run_had_other_data(
    private, monkeypatch
):
    # Of a search the number of runs is a secret, and so are those that lost.
    monkeypatch.setattr(planning, 'draw_runs', lambda *_: 2)
    bound = create_accountant('pld_wor')
    bound.step(noise_multiplier=4.0, sample_rate=1.0)
    made = []

    def train(_):
        roots = torch.arange(40 - len(made))
        setup = private(loader={'input_nodes': roots, 'num_steps': 1})
        setup.train(1)
        made.append(setup.engine)
        return setup.engine, float(len(made))

    _, report = search(train, [1], bound=bound, delta=1e-3, mean_runs=2.0)
    data = [engine.report(1e-3).data_sha256 for engine in made]
    assert data[0] != data[1]
    assert report.data_sha256 == data[1]


class Modest(DisjointWalkLoader):
    """Says that it draws less than it does."""

    def sample_rate_at(self, step):
        return super().sample_rate_at(step) / 100


def test_a_loader_of_somebody_else_is_named_in_the_report(private):
    ours = private().engine.report(1e-3)
    assert not any('not of this package' in text for text in ours.assumptions)
    net, engine = GCNConv(5, 3), PrivacyEngine()
    engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=Modest(private().data, 8, 2),
        noise_multiplier=4.0,
        max_grad_norm=1.0,
    )
    said = engine.report(1e-3).guarantee()
    assert any(
        'NOT CHECKED: how units are made and drawn' in text
        and 'Modest, which is not of this package' in text
        for text in said.assumptions
    )
