"""The account of releases: killed, cut, copied, it never claims less."""

import math
import os
import signal

import pytest
import warm

from pyg_trust import noise
from pyg_trust.account import PaidNoise, ReleaseAccount
from pyg_trust.ledger import BudgetExceededError

ABOUT = {'relation': 'edge', 'form': 'either', 'delta': 1e-6}


def test_it_adds_up_in_squares_to_its_limit():
    account = ReleaseAccount(ABOUT, limit=1.0)
    account.spend(0.6)
    account.spend(0.8)
    assert account.mu == pytest.approx(1.0)
    before = account.lines
    with pytest.raises(BudgetExceededError, match='nothing was spent'):
        account.spend(1e-3)
    assert account.lines == before


def test_a_file_remembers(tmp_path):
    file = tmp_path / 'ledger'
    account = ReleaseAccount(ABOUT, limit=1.0, ledger=file)
    account.spend(0.3)
    head = account.head
    account.close()
    again = ReleaseAccount(ABOUT, limit=1.0, ledger=file, ledger_head=head)
    assert again.lines == pytest.approx((0.3,))
    with pytest.raises(BudgetExceededError):
        again.spend(0.99)
    again.close()
    for other in ({'relation': 'node'}, {'delta': 1e-3}, {'form': 'replace'}):
        with pytest.raises(ValueError, match='another mechanism'):
            ReleaseAccount({**ABOUT, **other}, ledger=file)


def test_another_process_is_refused():
    account = ReleaseAccount(ABOUT, limit=1.0)
    account._owner += 1  # as a child of a fork finds it
    with pytest.raises(RuntimeError, match='another process'):
        account.spend(0.5)


def test_noise_is_drawn_after_it_is_paid():
    events = []

    class Source(noise.SecureNoise):
        def cells(self, shape):
            events.append('noise')
            return super().cells(shape)

    paid = PaidNoise(Source(), lambda mu: events.append(mu), [0.5, 0.25])
    paid.cells((2, 2))
    paid.cells((2, 2))
    assert events == [0.5, 'noise', 0.25, 'noise']
    with pytest.raises(RuntimeError, match='planned'):
        paid.cells((2, 2))

    def broke(mu):
        raise BudgetExceededError('broke')

    events.clear()
    with pytest.raises(BudgetExceededError):
        PaidNoise(Source(), broke, [1.0]).cells((2, 2))
    assert events == []


KILLED = """
import os, signal, sys, torch
from torch_geometric.data import Data
from pyg_trust import noise
from pyg_trust.transforms import PrivateAGP

class Killer(noise.SecureNoise):
    def cells(self, shape):
        drawn = super().cells(shape)
        print('drawn', flush=True)
        if sys.argv[2] == 'after':
            os.kill(os.getpid(), signal.SIGKILL)
        return drawn

if sys.argv[2] == 'before':
    def spend(self, mu, spend=None):
        real(self, mu)
        os.kill(os.getpid(), signal.SIGKILL)
    from pyg_trust import account
    real = account.ReleaseAccount.spend
    account.ReleaseAccount.spend = spend
noise.source = lambda seed=None: Killer()
edges = torch.tensor([[0, 1], [1, 0]])
PrivateAGP(2, mu=0.5, delta=1e-3, ledger=sys.argv[1])(
    Data(x=torch.eye(2), edge_index=edges)
)
"""


@pytest.mark.parametrize('moment', ['before', 'after'])
def test_a_killed_release_is_on_the_disk(tmp_path, moment):
    file = tmp_path / 'ledger'
    done = warm.run(
        *('-c', KILLED, file, moment),
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    drawn = done.stdout.count('drawn')
    about = {
        'relation': 'edge',
        'form': 'either',
        'directed': False,
        'max_degree': None,
        'delta': 1e-3,
        'num_nodes': 2,
        'seeded': False,
    }
    account = ReleaseAccount(about, ledger=file)
    assert drawn == (0 if moment == 'before' else 1)
    assert len(account.lines) == 1 >= drawn
    assert account.mu == pytest.approx(0.5 / math.sqrt(2))
    account.close()
