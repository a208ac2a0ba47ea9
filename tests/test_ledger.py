import copy
import hashlib
import hmac
import json
import math
import os
import pickle
import sys
import tracemalloc

import pytest
import torch

from pyg_trust.account import ReleaseAccount
from pyg_trust.files.seals import Seals
from pyg_trust.ledger import (
    BudgetExceededError,
    PrivacyLedger,
    RemovalLedger,
    coarse,
)
from pyg_trust.verify import chain


def filled():
    ledger = RemovalLedger(1.0)
    ledger.record('fit', 0.1, data='a')
    ledger.record('step', 0.4, {'3': {'nodes': [1]}}, 'b')
    return ledger


def test_moves_toward_spent_only():
    ledger = filled()
    assert ledger.spent == 0.4
    assert ledger.remaining == pytest.approx(0.6)
    with pytest.raises(ValueError, match="can't fall"):
        ledger.record('step', 0.3)
    with pytest.raises(BudgetExceededError, match='of a budget of'):
        ledger.record('step', 1.5)
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="'spent'"):
            ledger.record('step', bad)
    with pytest.raises(ValueError, match="'action'"):
        ledger.record('forgive', 0.0)
    with pytest.raises(ValueError, match="'fit'"):
        ledger.record('fit', 0.0)
    # None of these left a trace.
    assert ledger.state_dict() == filled().state_dict()
    ledger.record('step', 0.4)
    # A model that was solved anew starts at its own residual.
    ledger.record('refine', 1e-9)
    assert ledger.spent == 1e-9
    actions = ['fit', 'step', 'step', 'refine']
    assert [line.action for line in ledger.entries] == actions


def test_begins_with_a_fit():
    with pytest.raises(ValueError, match="'fit'"):
        RemovalLedger(1.0).record('step', 0.0)
    with pytest.raises(BudgetExceededError):
        RemovalLedger(1.0).record('fit', 1.1)
    for budget in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="'budget'"):
            RemovalLedger(budget)
    exact = RemovalLedger(0.0)
    exact.record('fit', 0.0)
    exact.record('retrain', 0.0, {'0': {'nodes': [4]}})
    with pytest.raises(BudgetExceededError):
        exact.record('retrain', 1e-300)


def test_states_are_checked():
    ledger = filled()
    state = ledger.state_dict()
    fresh = RemovalLedger(1.0)
    fresh.load_state_dict(state)
    assert fresh.entries == ledger.entries
    ledger.record('step', 0.5)
    with pytest.raises(ValueError, match='turned back'):
        ledger.load_state_dict(state)
    assert ledger.spent == 0.5
    fresh.load_state_dict(ledger.state_dict())
    assert fresh.spent == 0.5
    with pytest.raises(ValueError, match='budget'):
        RemovalLedger(2.0).load_state_dict(state)
    for key, value in (
        ('spent', 0.2),
        ('request', {}),
        ('data', 'c'),
        ('link', ''),
    ):
        changed = copy.deepcopy(state)
        changed['entries'][1][key] = value
        with pytest.raises(ValueError, match='changed'):
            RemovalLedger(1.0).load_state_dict(changed)
    dropped = copy.deepcopy(ledger.state_dict())
    del dropped['entries'][1]
    with pytest.raises(ValueError, match='changed'):
        RemovalLedger(1.0).load_state_dict(dropped)


A, B = 'a' * 32, '0123456789abcdef' * 2


def test_references_are_in_the_hash_and_used_once():
    ledger, plain = filled(), filled()
    ledger.record('step', 0.4, {'0': {'nodes': [2]}}, 'c', A)
    plain.record('step', 0.4, {'0': {'nodes': [2]}}, 'c')
    assert ledger.head != plain.head
    assert ledger.refers_to(A)
    assert not ledger.refers_to(B)
    assert not ledger.refers_to('')
    before = ledger.state_dict()
    for bad in (A, 'a' * 31, 'A' * 32, 'g' * 32, 'person-7@example.org'):
        with pytest.raises(ValueError, match="'reference'") as error:
            ledger.record('step', 0.4, reference=bad)
        assert 'person-7' not in str(error.value)
    with pytest.raises(TypeError, match="'reference'"):
        ledger.record('step', 0.4, reference=None)
    # A line may stand for several requests, none of them twice.
    c, d = 'c' * 32, 'd' * 32
    for bad in (c + A, c + c, c + d[1:]):
        with pytest.raises(ValueError, match="'reference'"):
            ledger.record('step', 0.4, reference=bad)
    assert ledger.state_dict() == before
    several = ledger.copy()
    several.record('step', 0.4, reference=c + d)
    assert all(map(several.refers_to, (c, d, c + d, A)))
    assert not several.refers_to(c + B)
    # Lines without one are as they were.
    assert set(before['entries'][1]) == set(plain.state_dict()['entries'][2])
    for forged in (B, None):
        state = copy.deepcopy(before)
        del state['entries'][2]['reference']
        if forged:
            state['entries'][2]['reference'] = forged
        with pytest.raises(ValueError, match='changed'):
            RemovalLedger(1.0).load_state_dict(state)
        assert chain.of_removals(json.dumps(state).encode()).broken == 3
    assert chain.of_removals(json.dumps(before).encode()).broken == 0
    again = RemovalLedger(1.0)
    again.load_state_dict(before)
    assert again.refers_to(A)
    assert again.head == ledger.head


def test_reads_well():
    assert str(filled().entries[1]).startswith('LedgerEntry\naction')
    assert repr(filled()) == 'RemovalLedger(spent=0.4, budget=1, lines=2)'


HEADER = {'format': 1, 'mechanism': 'pld_wor', 'nested': {'a': [1, 2]}}


def spent_file(path, steps=3):
    ledger = PrivacyLedger(path, HEADER)
    for _ in range(steps):
        ledger.record(8.0, 0.4)
    ledger.record(8.0, 0.5)
    ledger.record_pure(0.25)
    ledger.close()
    return path.read_bytes()


def test_file_is_read_back(tmp_path):
    path = tmp_path / 'ledger'
    spent_file(path)
    ledger = PrivacyLedger(path, HEADER)
    assert ledger.steps == 4
    assert ledger.history == [(8.0, 0.4, 3), (8.0, 0.5, 1)]
    assert ledger.pure_epsilon == 0.25
    ledger.record(8.0, 0.5)
    assert ledger.history[-1] == (8.0, 0.5, 2)
    assert 'steps=5' in str(ledger)
    ledger.close()
    assert PrivacyLedger(path, HEADER).steps == 5
    with pytest.raises(ValueError, match='closed'):
        ledger.record(8.0, 0.5)


def test_every_pure_release_counts(tmp_path):
    # A ledger that remembered the last alone would hide all before it.
    path = tmp_path / 'ledger'
    ledger = PrivacyLedger(path, HEADER)
    for epsilon in (0.25, 2.0, 0.5):
        ledger.record_pure(epsilon)
    ledger.record(8.0, 0.4)
    assert ledger.pure_epsilon == 2.75
    ledger.close()
    assert PrivacyLedger(path, HEADER).pure_epsilon == 2.75


def test_line_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    ledger = PrivacyLedger(tmp_path / 'ledger', HEADER)
    synced = []
    monkeypatch.setattr(os, 'fsync', lambda file: synced.append(ledger.steps))
    ledger.record(8.0, 0.4)
    assert synced == [0]
    assert ledger.steps == 1

    def full(file):
        raise OSError('no space left')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='no space'):
        ledger.record(8.0, 0.4)
    assert ledger.steps == 1
    monkeypatch.undo()
    ledger.record(8.0, 0.6)
    ledger.close()
    assert PrivacyLedger(tmp_path / 'ledger', HEADER).steps == 2


def test_any_prefix_of_a_file_is_whole_lines_or_less(tmp_path):
    # Wherever a write stops, no line that was finished is lost.
    path = tmp_path / 'ledger'
    whole = spent_file(path, steps=1)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        ledger = PrivacyLedger(path, HEADER)
        lines = whole[:end].count(b'\n')
        assert ledger.steps == min(max(0, lines - 1), 2)
        # And it goes on from there.
        ledger.record(1.0, 0.1)
        ledger.close()
        again = PrivacyLedger(path, HEADER)
        assert again.steps == ledger.steps
        again.close()


def test_changed_files_are_refused(tmp_path):
    path = tmp_path / 'ledger'
    whole = spent_file(path)
    lines = whole.splitlines(keepends=True)
    for broken in (
        whole.replace(b'0.5', b'0.1'),
        b''.join(lines[:2] + lines[3:]),
        b''.join([*lines[:3], lines[2], *lines[3:]]),
        b''.join([lines[0], lines[2], lines[1], *lines[3:]]),
        b'junk\n' + whole,
        whole + b'[1, 2]\n',
        whole + b'\n',
    ):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match='was changed'):
            PrivacyLedger(path, HEADER)
        assert path.read_bytes() == broken
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="mechanism='pld_wor' instead of"):
        PrivacyLedger(path, {**HEADER, 'mechanism': 'rdp_wor'})
    path.write_bytes(chain.line('', [1])[1])
    with pytest.raises(ValueError, match=r'mechanism: it has \[1\]'):
        PrivacyLedger(path, HEADER)
    path.write_bytes(whole)
    assert PrivacyLedger(path, HEADER).steps == 4


def test_file_is_locked_while_it_is_open(tmp_path):
    path = tmp_path / 'ledger'
    ledger = PrivacyLedger(path, HEADER)
    with pytest.raises(RuntimeError, match='open in another'):
        PrivacyLedger(path, HEADER)
    ledger.close()
    ledger.close()
    PrivacyLedger(path, json.loads(json.dumps(HEADER))).close()


def append(path, body):
    # As whoever knows the format does: the chain of hashes is whole.
    last = json.loads(path.read_text().splitlines()[-1])['link']
    text = json.dumps([last, body], sort_keys=True)
    link = hashlib.sha256(text.encode()).hexdigest()
    with path.open('a') as file:
        file.write(json.dumps({'body': body, 'link': link}) + '\n')


@pytest.mark.parametrize(
    'body',
    [
        {'epsilon': -5.0},
        {'epsilon': 0.0},
        {'epsilon': float('nan')},
        {'epsilon': 10**400},
        {'epsilon': '-3'},
        {'step': 2, 'spent': [4.0, 0.05], 'epsilon': -5.0},
        {'step': 2, 'spent': [float('nan'), 0.05]},
        {'step': 2, 'spent': [float('inf'), 0.05]},
        {'step': 2, 'spent': [-4.0, 0.05]},
        {'step': 2, 'spent': [4.0, -0.05]},
        {'step': 2, 'spent': [4.0, 0.05, 1.0]},
    ],
)
def test_a_line_does_not_give_back_what_was_spent(tmp_path, body):
    # The head that was noted elsewhere does not tell: the file goes on.
    path = tmp_path / 'run.ledger'
    ledger = PrivacyLedger(path, {'mechanism': 'a'})
    ledger.record(4.0, 0.05)
    ledger.record_pure(5.0)
    head = ledger.head
    ledger.close()
    append(path, body)
    with pytest.raises(ValueError, match=r'line 4 of the ledger .* changed'):
        PrivacyLedger(path, {'mechanism': 'a'}, head)


def test_a_line_that_is_no_number_does_not_lift_a_limit(tmp_path):
    path = tmp_path / 'edges.ledger'
    account = ReleaseAccount({'relation': 'edge'}, limit=1.0, ledger=path)
    account.spend(0.9)
    with pytest.raises(BudgetExceededError):
        account.spend(0.9)
    account.close()
    append(path, {'step': 2, 'spent': [float('nan'), 1.0]})
    with pytest.raises(ValueError, match='was changed'):
        ReleaseAccount({'relation': 'edge'}, limit=1.0, ledger=path)


# Seals ######################################################################


def test_seals_verify_what_is_there_and_depend_on_every_item():
    contents = {i: str(i) for i in (*range(3000), 5000)}
    seals = Seals(contents)
    state, root = seals.state_dict(), seals.root
    assert seals.fits(contents)
    assert Seals.of(state, contents).root == root
    for name in (0, 1, 1023, 1024, 2999, 5000):
        without = {k: v for k, v in contents.items() if k != name}
        renamed = {**without, 6000: contents[name]}
        for other in ({**contents, name: 'b'}, without, renamed):
            assert Seals.of(state, other).root != root
            assert not seals.fits(other)
    changed = {**contents, 7: 'other', 6000: 'new'}
    del changed[2999]
    # An object is never changed.
    after = seals.replaced({7: 'other', 6000: 'new'}, [2999])
    assert seals.root == root
    assert seals.fits(contents)
    assert after.fits(changed)
    assert Seals.of(after.state_dict(), changed).root == after.root != root
    # The last item of its block goes.
    left = {name: text for name, text in contents.items() if name != 5000}
    after = seals.replaced({}, [5000])
    assert Seals.of(after.state_dict(), left).root == after.root
    # Two of the same content differ, as their salts do.
    assert Seals(contents).root != root
    assert seals.replaced({}).root != root
    salt = state['salt'].clone()
    salt[31] ^= 1
    assert Seals.of({'salt': salt}, contents).root != root
    empty = Seals()
    assert Seals.of(empty.state_dict(), {}).root == empty.root


def test_what_is_gone_can_not_be_guessed():
    # The attacker has the states after a removal, the roots before and after,
    # knows all that remains, and tries both contents that are possible.
    contents = {0: 'rest', 1: 'A or B', 2: 'rest'}
    for secret in ('A', 'B'):
        before = Seals({**contents, 1: secret})
        after = before.replaced({}, [1])
        salts = [after.state_dict(), after.replaced({0: 'new'}).state_dict()]
        for guess in ('A', 'B'):
            for salt in (*salts, {'salt': torch.zeros(32, dtype=torch.uint8)}):
                made = Seals.of(salt, {**contents, 1: guess})
                assert made.root != before.root
        # With the salt that was destroyed, it would be an oracle.
        hit = Seals.of(before.state_dict(), {**contents, 1: secret})
        assert hit.root == before.root


def test_roots_of_0_1_are_read():
    # As version 0.1 made them: a salt for each item, hashes of 1024 names.
    contents, salts = {0: 'a', 1023: 'b', 1024: 'c'}, torch.arange(96)
    salts = salts.to(torch.uint8).view(3, 32)
    made = [
        b'%d ' % name + hmac.digest(bytes(salt), text.encode(), 'sha256')
        for (name, text), salt in zip(
            contents.items(), salts.numpy(), strict=True
        )
    ]
    blocks = (
        hashlib.sha256(made[0] + made[1]).digest(),
        hashlib.sha256(made[2]).digest(),
    )
    root = hashlib.sha256(b'0 ' + blocks[0] + b'1 ' + blocks[1]).hexdigest()
    state = {'names': torch.tensor([*contents]), 'salts': salts}
    seals = Seals.of(state, contents)
    assert seals.root == root
    assert not seals.fits({**contents, 1: 'd'})
    assert Seals.of(seals.state_dict(), contents).root == root
    # The next change draws a salt, and the old ones are gone.
    assert [*seals.replaced({}, [1024]).state_dict()] == ['salt']
    for bad in (
        {'salts': salts},
        {**state, 'salts': salts[1:]},
        {**state, 'names': torch.tensor([0, 1, 2])},
        {**state, 'names': torch.tensor([0, 1023, 1023])},
    ):
        with pytest.raises((TypeError, ValueError), match="'state'"):
            Seals.of(bad, contents)


def test_amounts_are_rounded_up():
    for amount in (1e-300, 0.1, 0.25, 0.3, 1.0, 1.5):
        assert amount <= coarse(amount) < 2 * amount
        assert coarse(coarse(amount)) == coarse(amount)
    assert {coarse(1e-10 * (1 + i / 100)) for i in range(10)} == {2.0**-33}
    assert coarse(0.0) == 0.0
    for amount, bits, found in (
        (0.3, 4, 5 / 16),
        (5 / 16, 4, 5 / 16),
        (math.nextafter(5 / 16, 1), 4, 11 / 32),
        (0.99, 4, 1.0),
        (1.1e300, 53, 1.1e300),
    ):
        assert coarse(amount, bits) == found


def test_a_line_costs_as_much_as_the_first():
    # The most bytes that a line takes, and the functions it calls.
    def cost(ledger, number):
        line = {'nodes': [number]}, '', f'{number:032x}'
        calls = []
        tracemalloc.start()
        sys.setprofile(lambda *event: calls.append(event[1]))
        made = ledger.copy()
        made.record('retrain', 0.0, *line)
        assert made.refers_to(line[-1])
        assert number in made.removed.of('nodes')
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return made, (len(calls), peak - 8 * len(calls))

    ledger = RemovalLedger(0.0)
    ledger.record('fit', 0.0)
    costs = []
    for number in range(1, 1000):
        ledger, found = cost(ledger, number)
        costs.append(found)
    # A table grows by a copy now and then.
    assert sorted(costs[-50:])[25][0] <= costs[10][0] + 5
    assert sorted(each[1] for each in costs[-50:])[25] < costs[10][1] + 2000


def test_changes_without_a_line_are_counted():
    ledger = filled()
    copies = [ledger.copy() for _ in range(3)]
    for _ in range(1000):
        ledger.mark()
    assert len(ledger.state_dict()['marks']) == 1
    again = RemovalLedger(1.0)
    again.load_state_dict(ledger.state_dict())
    again.mark()
    copies += [again, ledger.copy()]
    for one in copies[:3]:
        one.mark()
    for k, one in enumerate(copies):
        for m, two in enumerate(copies):
            assert one.has(*two.tip) == (k == m or (k, m) == (3, 4))


def test_a_report_lists_the_newest_amounts_and_the_rest_together():
    ledger, amounts = RemovalLedger(9.0), [1.0, *(0.01 * k for k in range(99))]
    for k, spent in enumerate(amounts, 1):
        ledger.record('measured' if k > 1 else 'fit', spent)
        found = ledger.amounts()
        assert len(found) == min(k, 64)
        assert found[1:] == tuple(amounts[:k][-64:][1:])
        old = math.hypot(*amounts[: max(1, k - 63)])
        assert old <= found[0] <= old * (1 + 1e-12)
        assert [line.spent for line in ledger.newest(3)] == amounts[:k][-3:]
    assert ledger.copy().amounts() == ledger.amounts()


def test_copies_of_a_ledger_go_their_own_ways():
    ledger = filled()
    one, two = ledger.copy(), copy.deepcopy(ledger)
    one.record('step', 0.5, {'3': {'nodes': [2]}}, '', A)
    two.record('step', 0.6, {'3': {'nodes': [1], 'again': {'nodes': [1]}}})
    assert [len(each.entries) for each in (ledger, one, two)] == [2, 3, 3]
    assert ledger.removed.of('nodes', 3) == {1}
    assert one.removed.of('nodes', 3) == {1, 2}
    assert two.removed.of('nodes', 3) == set()
    assert not ledger.refers_to(A)
    assert not two.refers_to(A)
    assert not ledger.has(one.head)
    assert not ledger.has(two.head)
    again = pickle.loads(pickle.dumps(one))
    assert again.state_dict() == one.state_dict()
    assert again.removed.of('nodes', 3) == {1, 2}


def test_lines_that_updates_made_are_read():
    # As updates write them: what went, what came again, what was replaced.
    went = {'nodes': [5], 'changed_features': [6], 'features': []}
    went['again'] = [[8, 9]]
    came = {'new_nodes': 2, 'edges': [], 'changed_labels': [3]}
    for lines in ([{'0': went}, {'0': came}], [went, came]):
        ledger = RemovalLedger(0.0)
        ledger.record('fit', 0.0, {'edges': [[8, 9], [1, 2]]})
        for line in lines:
            ledger.record('retrain', 0.0, line)
        arcs = {(9, 8), (1, 2), (2, 1)}
        assert ledger.removed.of('directed_edges') == arcs
        assert ledger.removed.of('nodes') == {5}
        assert ledger.removed.of('features') == set()
    before = ledger.state_dict()
    for bad in ({'0': 3}, {'nodes': 5}):
        with pytest.raises(ValueError, match='to_dict'):
            ledger.record('retrain', 0.0, bad)
    assert ledger.state_dict() == before
