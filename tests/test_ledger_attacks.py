"""What somebody who can write to a ledger's file may not get out of it."""

import hashlib
import json

import pytest

from pyg_trust.account import ReleaseAccount
from pyg_trust.ledger import BudgetExceededError, PrivacyLedger


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
