"""Attacks on private training by somebody who knows how it checks."""

import os
import signal
import threading

import needs
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from pyg_trust.ledger import BudgetExceededError, PrivacyLedger
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.noise import source
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.transforms import AGP


class GCN(nn.Module):
    """Made before its optimizer."""

    def __init__(self):
        super().__init__()
        self.first = GCNConv(5, 6)
        self.second = GCNConv(6, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def step(setup, loss):
    # One step with a loss of outputs and the batch.
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        loss(out, batch).backward()
        setup.optimizer.step()
        break


def test_labels_of_the_batch_may_still_be_ignored(private):
    setup = private()
    setup.data.y[::2] = -100
    step(setup, lambda out, b: F.cross_entropy(out, b.y[:8].clone()))
    mask = torch.arange(8) > 3
    step(setup, lambda o, b: F.cross_entropy(o, b.y[:8].where(mask, -100)))
    assert setup.engine.steps == 2


def sum_of(setup, change):
    # The clipped sum of a step in which the batch was written into.
    found = []
    inner = setup.optimizer._step
    add = inner.add_noise

    def look(sums, *counts):
        found.extend(total.clone() for total in sums)
        return add(sums, *counts)

    inner.add_noise = look
    for batch in setup.loader:
        change(batch, 'before')
        out = setup.model(batch.x, batch.edge_index)
        change(batch, 'after')
        out.sum().backward()
        setup.optimizer.step()
        return torch.cat([total.flatten() for total in found])


def test_what_is_written_into_a_batch_after_its_call_changes_nothing(private):
    def owners(batch, when):
        # Rows of a subgraph in several others: each would be clipped alone.
        if when == 'after':
            batch.batch.copy_(torch.arange(len(batch.batch)) % 8)

    want = sum_of(private(max_grad_norm=1e-2), lambda batch, when: None)
    assert sum_of(private(max_grad_norm=1e-2), owners).equal(want)


@pytest.mark.parametrize('way', ['hook', 'forward'])
def test_models_that_couple_only_later(private, way):
    setup = private()
    if way == 'hook':
        setup.net.second.register_forward_hook(
            lambda layer, args, out: out - out.mean(0)
        )
    else:
        plain = setup.net.forward
        setup.net.forward = lambda x, e: plain(x - x.mean(0), e)
    with pytest.raises(ValueError, match='rows of several subgraphs meet'):
        setup.train(1)


@pytest.mark.parametrize('most', [None, 4])
def test_a_transform_does_not_exchange_batches(private, most):
    # With parts, the same subgraph would come twice in a step: 4 C.
    kept = []

    def transform(batch):
        kept.append(batch.clone())
        return kept[0].clone() if kept[0].x.shape[0] else batch

    setup = private(
        loader={'transform': transform}, max_physical_batch_size=most
    )
    kept.clear()
    with pytest.raises(ValueError, match='units that were drawn'):
        setup.train()
    assert setup.engine.steps <= 1


def test_norms_of_a_coupled_criterion_are_not_estimated(private):
    # One row would move the norms of all, for the price of one.
    loader = DisjointWalkLoader(
        private().data, batch_size=8, walk_length=2, seed=1
    )

    def criterion(out, y):
        loss = F.cross_entropy(out, y)
        return loss / loss.detach()

    engine = PrivacyEngine(seed=1)
    with pytest.raises(ValueError, match="'criterion' needs to be"):
        engine.estimate_max_grad_norm(
            module=GCN(), data_loader=loader, criterion=criterion, epsilon=1.0
        )


class Mixing(GCN):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index) * x.sum()


@pytest.mark.parametrize(
    ('way', 'match'),
    [
        ('a sum', 'subgraph'),
        ('a mark', 'marked as propagated'),
        ('half', 'float32 or float64'),
        ('frozen', 'that are trained'),
    ],
)
def test_norms_of_what_sees_all_rows_are_not_estimated(private, way, match):
    # One row moves the norms of all units, for the price of one.
    data = private().data.clone()
    module = Mixing() if way == 'a sum' else GCN()
    if way == 'a mark':
        data = AGP('sgc', eps=0)(data)
    if way == 'half':
        module = module.to(torch.bfloat16)
    if way == 'frozen':
        module.requires_grad_(False)
    loader = DisjointWalkLoader(data, 8, 2, seed=1)
    engine = PrivacyEngine(seed=1)
    asked = {
        'module': module,
        'data_loader': loader,
        'criterion': F.cross_entropy,
        'epsilon': 1.0,
    }
    with pytest.raises(ValueError, match=match):
        engine.estimate_max_grad_norm(**asked)
    # Nothing was spent: the account was not opened.
    assert engine._accountant is None


def test_the_report_says_what_is_assumed(private):
    text = private().engine.report(1e-3).explain()
    assert 'the outputs of a unit depend on that unit' in text
    assert 'the loss is the mean of one term per unit' in text
    assert 'each column of a row was computed from' in text


# Twice, on one account ######################################################


def in_a_fork(call):
    """What a forked child says: the text of an error, or what it returns."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        # Threads of OpenMP do not live on in a fork: who waits for them waits
        # for ever.
        torch.set_num_threads(1)
        signal.alarm(120)
        try:
            said = str(call())
        except BaseException as error:
            said = f'{type(error).__name__}: {error}'
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said


@needs.fork
@pytest.mark.parametrize('seed', [None, 0])
@pytest.mark.parametrize('book', [False, True])
def test_a_fork_releases_nothing_that_is_on_no_account(
    private, tmp_path, seed, book
):
    # Parent and child released a step each, with the noise of the seed both,
    # and each had one step on its account.
    engine = PrivacyEngine(
        seed=seed, ledger=tmp_path / 'ledger' if book else None
    )
    setup = private(engine=engine)
    before = [p.detach().clone() for p in setup.model.parameters()]

    def train():
        step(setup, lambda out, batch: F.cross_entropy(out, batch.y[:8]))
        return 'released'

    said = in_a_fork(train)
    assert said.startswith('RuntimeError')
    assert 'fork' in said
    assert engine.steps == 0
    train()
    assert engine.steps == 1
    assert not all(
        torch.equal(a, b)
        for a, b in zip(before, setup.model.parameters(), strict=True)
    )


@needs.fork
def test_a_fork_spends_nothing_on_a_ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})
    for spend in (
        lambda: ledger.record(8.0, 0.5),
        lambda: ledger.record_pure(0.5),
    ):
        assert 'fork' in in_a_fork(spend)
    # Nor does it take the lock away.
    ledger.record(8.0, 0.5)
    with pytest.raises(RuntimeError, match='open in another'):
        PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})
    ledger.close()
    again = PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})
    assert again.steps == 1
    again.close()


@needs.fork
def test_a_fork_draws_other_noise():
    noise = source()
    noise.normal((3,))
    child = in_a_fork(lambda: noise.normal((3,)).tolist())
    assert child != str(noise.normal((3,)).tolist())
    assert child.startswith('[')


def test_lines_in_one_another_do_not_break_a_ledger(tmp_path, monkeypatch):
    # Two lines followed the same one, and the file could not be read again.
    ledger = PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})
    write, said = os.write, []

    def handler(*_):
        try:
            said.append(ledger.record(8.0, 0.5))
        except RuntimeError as error:
            said.append(str(error))

    def interrupted(file, data):
        monkeypatch.undo()
        before = signal.signal(signal.SIGTERM, handler)
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        return write(file, data)

    monkeypatch.setattr(os, 'write', interrupted)
    ledger.record(4.0, 0.5)
    ledger.record(2.0, 0.5)
    ledger.close()
    assert "'record' was going on" in said[0]
    again = PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})
    assert again.history == [(4.0, 0.5, 1), (2.0, 0.5, 1)]
    again.close()


def test_threads_take_turns_with_a_ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})

    def spend():
        for _ in range(20):
            ledger.record(8.0, 0.5)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    again = PrivacyLedger(tmp_path / 'ledger', {'mechanism': 'a'})
    assert again.steps == 80
    again.close()


def test_no_step_inside_of_a_step(private, monkeypatch):
    # The inner one drew the batch of the outer one, and went past the budget.
    engine = PrivacyEngine()
    setup, said = private(engine=engine), []
    allowed = engine._allowed

    def inner(*_):
        try:
            step(setup, lambda out, batch: out.sum())
            said.append('released')
        except RuntimeError as error:
            said.append(str(error))

    def interrupted(number):
        if setup.optimizer._step._stage == 'done':
            monkeypatch.undo()
            before = signal.signal(signal.SIGTERM, inner)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)
        return allowed(number)

    monkeypatch.setattr(engine, '_allowed', interrupted)
    step(setup, lambda out, batch: F.cross_entropy(out, batch.y[:8]))
    assert "'_private_step' was going on" in said[0]
    assert engine.steps == 1


@pytest.mark.parametrize('way', ['a step', 'pure', 'an estimate'])
def test_what_is_spent_beside_the_plan_ends_training(private, way):
    # The steps that were left were counted once, before it was spent.
    setup = private(target=True)
    setup.train()
    engine, delta = setup.engine, setup.engine.target_delta
    limit = engine.target_epsilon
    left = limit - engine.get_epsilon(delta)
    assert left > 0
    assert not engine.exhausted
    if way == 'a step':
        engine.accountant.step(noise_multiplier=0.4, sample_rate=1.0)
    elif way == 'pure':
        engine.accountant.spend_pure(0.999 * left)
    else:
        asked = {
            'module': GCN(),
            'data_loader': setup.loader.loader,
            'criterion': F.cross_entropy,
        }
        before = engine.get_epsilon(delta)
        with pytest.raises(BudgetExceededError, match='would exceed the'):
            engine.estimate_max_grad_norm(**asked, epsilon=1.01 * left)
        assert engine.get_epsilon(delta) == before
        engine.estimate_max_grad_norm(**asked, epsilon=0.999 * left)
    steps, spent = engine.steps, engine.get_epsilon(delta)
    assert engine.exhausted
    for _ in range(3):
        setup.train()
    assert (engine.steps, engine.get_epsilon(delta)) == (steps, spent)


# Settings that a private loss chooses ########################################


@pytest.mark.parametrize('kind', ['plateau', 'by hand', 'tensor'])
def test_a_learning_rate_that_reads_the_loss_is_in_the_report(private, kind):
    # The weights then tell of losses that no noise has gone over; every step
    # went through, and the report said nothing of it.
    setup = private()
    optimizer = setup.optimizer
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0
    )
    (group,) = optimizer.param_groups
    for _, batch in zip(range(3), setup.loader, strict=False):
        optimizer.zero_grad()
        loss = setup.loss(batch)
        loss.backward()
        optimizer.step()
        if kind == 'plateau':
            plateau.step(1.0 + loss.item())
            plateau.step(2.0 + loss.item())
        elif kind == 'by hand':
            group['lr'] = loss.item() / 100
        else:
            group['weight_decay'] = loss.detach() / 100
    text = setup.engine.report(1e-3).explain()
    assert 'does not if they follow a private loss' in text


def test_a_report_of_fixed_settings_says_nothing_of_changes(private):
    setup = private()
    setup.train(2)
    text = setup.engine.report(1e-3).explain()
    assert 'changed between steps' not in text
    assert 'learning rates' in text


def test_a_parameter_outside_of_the_model_gets_no_gradient(private):
    # A temperature of the loss was moved by gradients without noise.
    setup = private()
    extra = torch.nn.Parameter(torch.ones(()))
    setup.optimizer.param_groups[0]['params'].append(extra)
    batch = next(iter(setup.loader))
    (setup.loss(batch) * extra).backward()
    with pytest.raises(RuntimeError, match='came from elsewhere'):
        setup.optimizer.step()
    assert extra.item() == 1.0
    assert setup.engine.steps == 0
