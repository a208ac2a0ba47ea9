"""Somebody who knows the code tries to break what the engine's report says."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric import seed_everything
from torch_geometric.nn import GCNConv, PairNorm, SAGEConv

from pyg_trust.ledger import PrivacyLedger
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.noise import SEEDED
from pyg_trust.privacy import PrivacyEngine


class Silent(nn.Module):
    """Gradients are zero, so that what is released is noise alone."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16))

    def forward(self, x, edge_index):
        return x[:, :1] + 0 * self.weight.sum()


def release(private, seed=None, **arguments):
    """The noise of the first step, in units of a standard deviation."""
    setup = private(net=Silent(), engine={'seed': seed}, **arguments)
    for batch in setup.loader:
        setup.model(batch.x, batch.edge_index)[:8].mean().backward()
        setup.optimizer.step()
        break
    std = setup.engine.report(1e-3).noise_std / 8
    return setup.net.weight.grad.double() / std


# S1, S2: secrets


def test_seeds_that_agree_in_32_bits_share_nothing(private):
    grads, batches = [], []
    for seed in (5, 5, 5 + 2**32):
        grads.append(release(private, seed))
        setup = private(engine={'seed': seed})
        batches.append(next(iter(setup.loader)).input_id)
    assert grads[0].equal(grads[1])
    assert batches[0].equal(batches[1])
    assert not (grads[0] == grads[2]).any()
    assert not batches[0].equal(batches[2])


def test_whoever_knows_what_seeded_everything_cannot_subtract(private):
    # The attacker runs the same script on data of its own.
    ends, batches = [], []
    for _ in range(2):
        setup = private(engine={'seed': None}, loader={'seed': None})
        seed_everything(7)
        np.random.seed(7)
        for batch in setup.loader:
            batches.append(batch.n_id)
            setup.loss(batch).backward()
            setup.optimizer.step()
            break
        ends.append(setup.net.first.lin.weight.grad)
    std = setup.engine.report(1e-3).noise_std / 8
    left = (ends[0] - ends[1]).norm() / math.sqrt(ends[0].numel())
    assert left > 0.5 * math.sqrt(2) * std
    assert not batches[0].equal(batches[1])


def test_with_a_loader_of_known_seed_batches_are_secret(private):
    seen = set()
    for _ in range(3):
        setup = private(engine={'seed': None}, loader={'seed': 1})
        seen.add(tuple(next(iter(setup.loader)).input_id.tolist()))
    assert len(seen) == 3


def test_a_seed_is_confessed_before_anything_else(private):
    setup = private(engine={'seed': 3})
    report = setup.engine.report(1e-3)
    assert report.explain().startswith(SEEDED)
    assert str(report).startswith(SEEDED)
    assert report.guarantee().promise.startswith(SEEDED)
    assert report.guarantee().values['seeded']
    assert report.assumptions[0] == SEEDED
    report = private(engine={'seed': None}).engine.report(1e-3)
    for text in (report.explain(), str(report), str(report.guarantee())):
        assert SEEDED not in text


def test_a_seeded_run_does_not_go_on_as_a_private_one(private, tmp_path):
    path = tmp_path / 'ledger'
    setup = private(engine={'seed': 3, 'ledger': path})
    setup.train(1)
    state = setup.engine.state_dict()
    setup.engine.close()
    with pytest.raises(ValueError, match='seeded=True instead of False'):
        private(engine={'seed': None, 'ledger': path})
    with pytest.raises(ValueError, match="'seeded'"):
        private(engine={'seed': None}).engine.load_state_dict(state)


# P4: other hands


def private_step(setup):
    for batch in setup.loader:
        setup.optimizer.zero_grad()
        setup.loss(batch).backward()
        setup.optimizer.step()
        return


@pytest.mark.parametrize('way', ['optimizer', 'data', 'in place', 'frozen'])
def test_raw_updates_between_steps_are_refused(private, way):
    net = None
    if way == 'frozen':
        net = private().net
        net.second.bias.requires_grad_(False)
        setup = private(
            net=net,
            optimizer=torch.optim.SGD(
                [p for p in net.parameters() if p.requires_grad], lr=0.1
            ),
        )
    else:
        setup = private()
    private_step(setup)
    x, edge_index, y = setup.data.x, setup.data.edge_index, setup.data.y
    weight = setup.net.second.lin.weight
    if way == 'optimizer':
        other = torch.optim.SGD(setup.net.parameters(), lr=0.1)
        F.cross_entropy(setup.net(x, edge_index), y).backward()
        other.step()
        other.zero_grad()
    elif way == 'data':
        weight.data.add_(1e-3)
    elif way == 'frozen':
        with torch.no_grad():
            setup.net.second.bias += x.mean()
    else:
        with torch.no_grad():
            weight.mul_(1.01)
    assert 'NOT COVERED: the weights' in setup.engine.report(1e-3).explain()
    with pytest.raises(RuntimeError, match='since the last private step'):
        private_step(setup)
    assert setup.engine.steps == 1


def test_weights_that_were_released_can_be_loaded_and_are_noted(private):
    setup = private()
    private_step(setup)
    kept = copy.deepcopy(setup.model.state_dict())
    private_step(setup)
    setup.model.load_state_dict(kept)
    private_step(setup)
    assert setup.engine.steps == 3
    said = setup.engine.report(1e-3).explain()
    assert 'loaded from elsewhere 1 times' in said
    # Put aside for a while, as averages are for validation.
    kept = copy.deepcopy(setup.net.state_dict())
    with torch.no_grad():
        for p in setup.net.parameters():
            p.zero_()
        for name, p in setup.net.named_parameters():
            p.copy_(kept[name])
    private_step(setup)


def test_an_untouched_training_says_nothing_of_the_kind(private):
    setup = private()
    setup.train()
    said = setup.engine.report(1e-3).explain()
    assert 'NOT COVERED' not in said
    assert 'elsewhere' not in said


# P5: another try


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('seed', [None, 4])
def test_starting_over_does_not_draw_another_batch(private, seed, workers):
    setup = private(
        engine={'seed': seed},
        loader={'num_workers': workers, 'num_steps': 6, 'batch_size': 4},
    )
    tries = 2 if workers else 12
    for _ in range(2):
        seen = set()
        for _ in range(tries):
            for batch in setup.loader:
                seen.add(tuple(batch.n_id.tolist()))
                break
        assert len(seen) == 1
        private_step(setup)


def test_a_target_is_in_as_many_batches_as_claimed(private):
    # 0.1.0 with secure noise: in 20 of 20 steps, at a rate of 0.3.
    hits, steps = 0, 0
    for _ in range(5):
        setup = private(
            engine={'seed': None}, loader={'batch_size': 4, 'walk_length': 1}
        )
        target = int(setup.loader.draw(0).roots[0])
        rate = 4 / setup.loader.num_subgraphs
        for _ in range(12):
            for _ in range(10):
                batch = next(iter(setup.loader))
                if bool((batch.n_id == target).any()):
                    hits += 1
                    break
            private_step(setup)
            steps += 1
    spread = math.sqrt(steps * rate * (1 - rate))
    assert hits < steps * rate + 5 * spread < steps


def test_spent_draws_are_forgotten(private):
    setup = private(engine={'seed': None}, loader={'num_steps': 5})
    setup.train()
    assert len(setup.loader.batch_sampler._kept) <= 1
    assert pickle.loads(pickle.dumps(setup.loader.loader)).data.num_nodes == 40


# P6: copies


def test_copies_are_plain_and_leave_the_engine_alone(private):
    # In 0.1.0 every step of the process failed after this.
    setup = private()
    private_step(setup)
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
    private_step(setup)
    average.update_parameters(setup.model)
    assert plain.first.bias.equal(before)
    after = setup.net.first.bias.detach().clone()
    # The first call takes the weights as they are.
    private_step(setup)
    average.update_parameters(setup.model)
    want = (after + setup.net.first.bias) / 2
    assert torch.allclose(average.module.first.bias, want)
    # A copy is an ordinary model, and does not move the private one.
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(setup.data.x, setup.data.edge_index).sum().backward()
    optimizer.step()
    private().train()
    setup.train()
    assert setup.engine.steps == 5


@pytest.mark.parametrize('part', ['engine', 'optimizer', 'loader'])
def test_what_spends_the_budget_is_not_doubled(private, part):
    setup = private()
    thing = getattr(setup, part)
    for ask in (copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="can't be copied"):
            ask(thing)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(thing)
    setup.train()
    private().train()


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
    private_step(setup)
    outer.load_state_dict(state)
    assert setup.net.first.bias.equal(state['0.first.bias'])
    del state['0.first.bias']
    found = outer.load_state_dict(state, strict=False)
    assert found.missing_keys == ['0.first.bias']
    private_step(setup)


# P8: several processes


def test_other_processes_than_it_began_in_are_refused(private, monkeypatch):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    setup = private()
    for size in (1, 2):
        torch.distributed.init_process_group(
            'fake', rank=0, world_size=size, store=FakeStore()
        )
        try:
            if size == 1:
                private_step(setup)
                private()
                continue
            with pytest.raises(RuntimeError, match='process 0 of 2'):
                private_step(setup)
        finally:
            torch.distributed.destroy_process_group()
    assert setup.engine.steps == 1
    # As torchrun starts them, before they found each other.
    monkeypatch.setenv('WORLD_SIZE', '4')
    with pytest.raises(RuntimeError, match='announces 4 processes'):
        private()


# P11: ledgers that are cut, copied and put back


def spend(private, path, steps, **engine):
    setup = private(
        engine={'ledger': path, **engine}, loader={'num_steps': 20}
    )
    if steps:
        setup.train(steps)
    return setup


def test_a_ledger_cut_at_a_line_is_noticed_by_whoever_noted_its_head(
    private, tmp_path
):
    path = tmp_path / 'ledger'
    setup = spend(private, path, 6)
    state = copy.deepcopy(setup.engine.state_dict())
    head = setup.engine.report(1e-3).ledger_head
    assert head == setup.engine.ledger_head
    setup.engine.close()
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 7
    path.write_text(''.join(lines[:3]))
    with pytest.raises(ValueError, match='older or another'):
        spend(private, path, 1, ledger_head=head)
    # The file alone doesn't know, but the weights of six steps do.
    setup = spend(private, path, 0)
    with pytest.raises(ValueError, match='older or another'):
        setup.engine.load_state_dict(state)
    with pytest.raises(ValueError, match='older or another'):
        setup.engine.load_state_dict(state, rewind=True)
    setup.engine.close()
    path.write_text(''.join(lines))
    setup = spend(private, path, 0, ledger_head=head)
    setup.engine.load_state_dict(state)
    setup.train(2)
    assert setup.engine.steps == 8
    setup.engine.close()
    path.unlink()
    with pytest.raises(ValueError, match='empty or not there'):
        spend(private, path, 1, ledger_head=head)
    assert not path.exists()


def test_a_checkpoint_is_not_spent_twice_beside_its_ledger(private, tmp_path):
    path = tmp_path / 'ledger'
    setup = spend(private, path, 3)
    state = copy.deepcopy(setup.engine.state_dict())
    setup.engine.close()
    # Without the ledger, each branch would know of its own steps alone.
    for other in (private(), private(engine={'ledger': tmp_path / 'new'})):
        with pytest.raises(ValueError, match=r'with a ledger|older'):
            other.engine.load_state_dict(state)
        assert other.engine.steps == 0
    for want in (5, 7):
        setup = private(engine={'ledger': path}, loader={'num_steps': 20})
        setup.engine.load_state_dict(state, rewind=True)
        setup.train(2)
        assert setup.engine.steps == want
        setup.engine.close()


@pytest.mark.parametrize('way', ['cut', 'replaced', 'removed', 'written'])
def test_a_file_that_changes_while_it_is_open_is_noticed(tmp_path, way):
    path = tmp_path / 'ledger'
    ledger = PrivacyLedger(path, {})
    for _ in range(4):
        ledger.record(4.0, 0.5)
    content = path.read_bytes()
    if way == 'cut':
        path.write_bytes(b''.join(content.splitlines(keepends=True)[:2]))
    elif way == 'written':
        path.write_bytes(content + content.splitlines(keepends=True)[-1])
    elif way == 'removed':
        path.unlink()
    else:
        (tmp_path / 'copy').write_bytes(content)
        (tmp_path / 'copy').replace(path)
    with pytest.raises(ValueError, match='while it was open'):
        ledger.record(4.0, 0.5)


def test_heads_tell_every_state_of_a_ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / 'ledger', {})
    heads = [ledger.head]
    for _ in range(3):
        ledger.record(4.0, 0.5)
        heads.append(ledger.head)
    ledger.record_pure(0.5)
    heads.append(ledger.head)
    assert len(set(heads)) == 5
    assert all(ledger.has(head) for head in heads)
    assert not ledger.has('0' * 64)
    ledger.close()
    again = PrivacyLedger(tmp_path / 'ledger', {}, head=heads[2])
    assert again.head == heads[-1]


# P12: refused by name, before anything starts


def refused(private, match, error=ValueError, **arguments):
    with pytest.raises(error, match=match):
        private(**arguments)


def test_optimizers_that_cannot_work_are_refused_at_once(private):
    net = private().net
    lbfgs = torch.optim.LBFGS(net.parameters())
    refused(private, 'LBFGS', net=net, optimizer=lbfgs)
    sparse = torch.optim.SparseAdam(net.parameters())
    refused(private, 'SparseAdam', net=net, optimizer=sparse)


def test_momentum_of_raw_gradients_is_refused(private):
    setup = private()
    net = copy.deepcopy(setup.net)
    adam = torch.optim.Adam(net.parameters())
    out = net(setup.data.x, setup.data.edge_index)
    F.cross_entropy(out, setup.data.y).backward()
    adam.step()
    adam.zero_grad()
    refused(private, "'optimizer' needs to be new", net=net, optimizer=adam)


@pytest.mark.parametrize('way', ['swapped', 'frozen', 'thawed'])
def test_models_that_change_later_are_refused(private, way):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = GCNConv(5, 6)
            self.norm = nn.Identity()
            self.second = GCNConv(6, 3)

        def forward(self, x, edge_index):
            x = self.norm(self.first(x, edge_index)).relu()
            return self.second(x, edge_index)

    net = Net()
    if way == 'thawed':
        net.first.bias.requires_grad_(False)
    trained = [p for p in net.parameters() if p.requires_grad]
    setup = private(net=net, optimizer=torch.optim.SGD(trained, lr=0.1))
    private_step(setup)
    if way == 'swapped':
        net.norm = PairNorm()
        match = 'treat subgraphs apart'
    else:
        net.first.bias.requires_grad_(way == 'thawed')
        match = 'the same parameters'
    with pytest.raises(ValueError, match=match):
        private_step(setup)
    assert setup.engine.steps == 1


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_by_name(private, dtype):
    setup = private()
    net = copy.deepcopy(setup.net).to(dtype)
    refused(private, 'float32 or float64', net=net)
    for batch in setup.loader:
        with (
            pytest.raises(ValueError, match='autocast'),
            torch.autocast('cpu', torch.bfloat16),
        ):
            setup.loss(batch)
        break


def test_unknown_arguments_and_loaders_are_named(private):
    setup = private()
    net = copy.deepcopy(setup.net)
    asked = {
        'module': net,
        'optimizer': torch.optim.SGD(net.parameters(), lr=0.1),
        'data_loader': DisjointWalkLoader(setup.data, 4, 1, seed=0),
        'target_epsilon': 1.0,
        'target_delta': 1e-3,
        'max_grad_norm': 1.0,
        'steps': 3,
    }
    with pytest.raises(TypeError, match="no argument 'max_grad_nrom'") as info:
        PrivacyEngine().make_private_with_epsilon(**asked, max_grad_nrom=1)
    assert '_prepare' not in str(info.value)
    data = torch.utils.data.DataLoader([setup.data])
    asked['data_loader'] = data
    with pytest.raises(TypeError, match='DisjointWalkLoader'):
        PrivacyEngine().make_private_with_epsilon(**asked)


def test_what_a_plan_will_spend_is_known_before(private):
    for loader in ({}, {'resample_every': 2, 'batch_size': 6}):
        setup = private(loader=loader)
        planned = setup.engine.get_epsilon(1e-3, steps=4)
        assert setup.engine.get_epsilon(1e-3) == 0
        setup.train(4, epochs=4)
        assert setup.engine.get_epsilon(1e-3) == pytest.approx(planned)
        assert setup.engine.get_epsilon(1e-3, steps=1) > planned


def test_features_in_a_tuple_are_refused_by_name(private):
    data = private().data
    data.x, data.num_nodes = (data.x, data.x), 40
    refused(private, "'x' in one tensor", TypeError, data=data)


def test_pairs_of_features_train(private):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = SAGEConv((5, 5), 3)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    setup = private(
        net=Net(), forward=lambda net, b: net((b.x, b.x), b.edge_index)
    )
    for batch in setup.loader:
        out = setup.model((batch.x, batch.x), batch.edge_index)
        setup.loss(batch, out).backward()
        setup.optimizer.step()
    assert setup.engine.steps == 2


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
