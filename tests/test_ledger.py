import copy
import math

import pytest

from pyg_trust.ledger import BudgetExceededError, RemovalLedger


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
    assert ledger.count('step') == 2
    assert len(ledger.entries) == 4


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


def test_reads_well():
    assert str(filled().entries[1]).startswith('LedgerEntry\naction')
    assert repr(filled()) == 'RemovalLedger(spent=0.4, budget=1, lines=2)'
