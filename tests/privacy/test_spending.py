"""One account for all that is released, whoever takes it twice."""

import copy
import os
import signal
import threading

import needs
import pytest
import torch
from torch.nn import functional as F

from pyg_trust.ledger import PrivacyLedger
from pyg_trust.noise import source
from pyg_trust.privacy import PrivacyEngine


def step(setup, loss):
    """One step with a loss of outputs and the batch."""
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        loss(out, batch).backward()
        setup.optimizer.step()
        break


# Ledgers that are cut, copied and put back ###################################


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
        setup.engine.load_state_dict(state)
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
        setup.engine.load_state_dict(state)
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


def test_what_a_plan_will_spend_is_known_before(private):
    for loader in ({}, {'resample_every': 2, 'batch_size': 6}):
        setup = private(loader=loader)
        planned = setup.engine.get_epsilon(1e-3, steps=4)
        assert setup.engine.get_epsilon(1e-3) == 0
        setup.train(4, epochs=4)
        assert setup.engine.get_epsilon(1e-3) == pytest.approx(planned)
        assert setup.engine.get_epsilon(1e-3, steps=1) > planned


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
        insecure_seed=seed, ledger=tmp_path / 'ledger' if book else None
    )
    setup = private(engine=engine)
    before = [p.detach().clone() for p in setup.model.parameters()]

    def train():
        step(setup, lambda out, batch: F.cross_entropy(out, batch.y[:8]))
        return 'released'

    for release in (train, lambda: engine.spend_gaussian(0.5)):
        said = in_a_fork(release)
        assert said.startswith('RuntimeError')
        assert 'fork' in said
    assert engine.steps == 0
    train()
    assert engine.steps == 1
    assert not all(
        torch.equal(a, b)
        for a, b in zip(before, setup.model.parameters(), strict=True)
    )


def test_a_step_of_other_processes_is_refused(private, monkeypatch):
    engine = PrivacyEngine()
    setup = private(engine=engine)
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(RuntimeError, match='announces 2 processes'):
        step(setup, lambda out, batch: F.cross_entropy(out, batch.y[:8]))
    assert engine.steps == 0


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


@pytest.mark.parametrize('way', ['a step', 'pure'])
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
    else:
        engine.accountant.spend_pure(0.999 * left)
    steps, spent = engine.steps, engine.get_epsilon(delta)
    assert engine.exhausted
    for _ in range(3):
        setup.train()
    assert (engine.steps, engine.get_epsilon(delta)) == (steps, spent)
