"""Faults in the fast code of accounting: what it claims the kernel refuses.

Each fault is one that somebody could make. The kernel does not know of it: it
proves the claim of the right code, and of the faulty one it says that it
fails, or that it is not proved.
"""

import math
from fractions import Fraction

import pytest
from planting import planted
from procedures import cycle

from pyg_trust import account
from pyg_trust.check import FAILS, HOLDS, UNPROVED, check_report
from pyg_trust.privacy import accounting, pld, poisson
from pyg_trust.privacy import gaussian as private_accounting
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.privacy.gaussian import gaussian_epsilon
from pyg_trust.privacy.poisson import poisson_epsilon
from pyg_trust.report import TrustReport
from pyg_trust.transforms import PrivateAGP, aggregation_report, private_agp
from pyg_trust.verify.accounting import judge, judge_mu

DELTA = 1e-5


def gaussian():
    """Two releases with noise of two and three times their sensitivity."""
    claim = gaussian_epsilon(math.hypot(1 / 2, 1 / 3), DELTA)
    return judge_mu(Fraction(1, 4) + Fraction(1, 9), claim, DELTA)


def by_renyi():
    orders = [1 + i / 10 for i in range(1, 300)]
    claim = accounting.rdp_epsilon(orders, [a / 8 for a in orders], DELTA)
    return judge_mu(Fraction(1, 4), claim, DELTA)


def wor():
    """Steps of two kinds, without replacement."""
    claim = wor_epsilon([(6.0, 0.4, 4), (10.0, 0.5, 3)], DELTA)
    lines = [(6.0, Fraction(2, 5), 4), (10.0, Fraction(1, 2), 3)]
    return judge('wor', lines, claim, DELTA)


def coins(form):
    claim = poisson_epsilon([(4.0, 0.5, 2)], DELTA, form)
    return judge(form, [(4.0, Fraction(1, 2), 2)], claim, DELTA)


def replaced():
    return coins('replace')


def withdrawn():
    return coins('withdraw')


FAULTS = {
    'a mean on the other side': (
        gaussian,
        private_accounting._log_delta,
        'epsilon / mu - mu / 2',
        'epsilon / mu + mu / 2',
    ),
    'twice the delta': (
        gaussian,
        gaussian_epsilon,
        'mu) > math.log(delta)',
        'mu) > math.log(2 * delta)',
    ),
    'a search that returns its lower end': (
        gaussian,
        private_accounting._bisect,
        'return low, high',
        'return low, low * (1 - 1e-9)',
    ),
    'a conversion without delta': (
        by_renyi,
        accounting.rdp_epsilon,
        '- (math.log(delta) + np.log(a)) / (a - 1)',
        '- np.log(a) / (a - 1)',
    ),
    'the noise of another norm': (
        wor,
        accounting._pair,
        'mu = j / lam',
        'mu = j / (2 * lam)',
    ),
    'losses rounded down': (
        wor,
        pld.connect,
        'mass[1:] += in_p - lower',
        'mass[:-1] += in_p - lower',
    ),
    'half of the outcomes with the unit': (
        wor,
        accounting._pair,
        'tail_p = q * tail_p',
        'tail_p = q / 2 * tail_p',
    ),
    'a step less': (wor, pld.compose, '** count', '** (count - 1)'),
    'the last phase alone': (
        wor,
        pld.compose,
        'spectrum *= (once',
        'spectrum = (once',
    ),
    'a budget that is halved in the grid': (
        wor,
        pld.epsilon,
        'profile <= delta',
        'profile <= 2 * delta',
    ),
    'a grid point inwards': (
        wor,
        pld.epsilon,
        'start + math.log1p(share * math.expm1(step))',
        'start - 40 * step',
    ),
    'cells at their lower ends': (
        replaced,
        pld.connect,
        'mass[1:] += in_p - lower',
        'mass[:-1] += in_p - lower',
    ),
    'a unit that moves the sum by half': (
        replaced,
        poisson._tail,
        '(at - x)',
        '(at / 2 - x)',
    ),
    'a unit that moves the sum once': (
        replaced,
        poisson._directions,
        '((1, -1),)',
        '((1, None),)',
    ),
    'units that come and never go': (
        withdrawn,
        poisson._directions,
        '((1, None), (None, -1))',
        '((None, -1),)',
    ),
}


@pytest.mark.parametrize(
    'claim', [gaussian, by_renyi, wor, replaced, withdrawn]
)
def test_what_the_right_code_claims_is_proved(claim):
    assert claim() == HOLDS


@pytest.mark.parametrize('name', sorted(FAULTS))
def test_what_a_faulty_account_claims_is_refused(name):
    claim, *fault = FAULTS[name]
    with planted(*fault):
        found = claim()
    assert found in (FAILS, UNPROVED)


RELEASES = {
    'every hop has all of the budget': (
        PrivateAGP.noise_stds,
        'self.mu / math.sqrt(self.K)',
        'self.mu',
    ),
    'a record against a blank, where any other is claimed': (
        aggregation_report.Relation.sensitivity,
        "self.neighboring.replace('either', 'replace')",
        "'add_remove'",
    ),
    'the release that was last, in place of all': (
        account.ReleaseAccount.mu,
        'math.hypot(*self._spent)',
        'max(self._spent, default=0.0)',
    ),
    'half of what was spent on the ledger': (
        account.ReleaseAccount.spend,
        '2 / float(mu)',
        '4 / float(mu)',
    ),
    'an epsilon of the sums of one hop': (
        PrivateAGP._spent,
        'gaussian_epsilon(account.mu, delta)',
        'gaussian_epsilon(account.mu / self.K**0.5, delta)',
    ),
    'a sensitivity that another rounding paid for': (
        private_agp.make_report,
        'sensitivity=relation.sensitivity',
        'sensitivity=relation.sensitivity * 0.99',
    ),
    'an epsilon against any other that is one against a blank': (
        private_agp.make_report,
        "gaussian_epsilon(apart * fields['mu'], delta)",
        "gaussian_epsilon(fields['mu'], delta)",
    ),
}


def released(folder, name=''):
    form = 'add_remove' if 'against a blank' in name[-16:] else None
    transform = PrivateAGP(
        *(2, 'node'),
        mu=0.3,
        epsilon=3.0,
        delta=1e-3,
        neighboring=form,
        ledger=folder / 'run.ledger',
    )
    data = cycle(20)
    for _ in range(1 + ('last' in name)):
        transform(data)
        data.x = data.x + 1
    TrustReport.of(transform.report()).save(folder / 'trust.json')
    found = check_report(folder / 'trust.json', ledger=folder / 'run.ledger')
    return {each.status for each in found}


def test_what_the_right_release_reports_holds(tmp_path):
    assert released(tmp_path) == {HOLDS}


@pytest.mark.parametrize('name', sorted(RELEASES))
def test_what_a_faulty_release_reports_is_refused(tmp_path, name):
    with planted(*RELEASES[name]):
        try:
            found = released(tmp_path, name)
        except ValueError as error:
            if 'the report contradicts itself' not in str(error):
                raise
            return
        assert FAILS in found
