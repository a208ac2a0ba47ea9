import copy
import json

import pytest

from pyg_trust.privacy import (
    FDPAccountant,
    PLDAccountant,
    RDPAccountant,
)

KINDS = [PLDAccountant, RDPAccountant]


def spend(accountant, steps, noise_multiplier=8.0, sample_rate=0.4):
    for _ in range(steps):
        accountant.step(
            noise_multiplier=noise_multiplier, sample_rate=sample_rate
        )
    return accountant


def test_oracle_in_opacus_units():
    # lam = 4 is Opacus' noise multiplier 8; lower bound and PLD of the spec.
    found = spend(PLDAccountant(), 50).get_epsilon(1e-7)
    assert 3.866943 <= found <= 1.001 * 3.946043
    found = spend(RDPAccountant(), 10).get_epsilon(1e-5)
    assert found == pytest.approx(2.509696, rel=1e-6)


@pytest.mark.parametrize('kind', KINDS)
def test_state_continues(kind):
    accountant = spend(kind(), 3)
    state = json.loads(json.dumps(accountant.state_dict()))
    resumed = kind()
    resumed.load_state_dict(state)
    assert resumed.history == accountant.history
    assert resumed.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
    spend(resumed, 2)
    spend(resumed, 1, sample_rate=0.5)
    accountant.load_state_dict(resumed.state_dict())
    assert len(accountant) == 6
    # What was saved does not change with what is spent later.
    assert len(state['history']) == 1


@pytest.mark.parametrize(
    'history',
    [
        [],
        [(8.0, 0.4, 2)],
        [(8.0, 0.4, 3)],
        [(8.0, 0.4, 4), (8.0, 0.5, 2)],
        [(8.0, 0.4, 3), (8.0, 0.5, 1)],
        [(8.0, 0.4, 3), (9.0, 0.5, 7)],
        [(8.0, 0.5, 2), (8.0, 0.4, 3)],
    ],
)
def test_state_never_goes_back(history):
    accountant = spend(PLDAccountant(), 3)
    spend(accountant, 2, sample_rate=0.5)
    before = copy.deepcopy(accountant.history)
    state = {**accountant.state_dict(), 'history': history}
    with pytest.raises(ValueError, match='does not continue'):
        accountant.load_state_dict(state)
    assert accountant.history == before


def test_pure_releases_add_up():
    accountant = spend(PLDAccountant(), 3)
    before = accountant.get_epsilon(1e-6)
    accountant.spend_pure(0.5)
    assert accountant.get_epsilon(1e-6) == before + 0.5
    line = {'noise_multiplier': 8.0, 'sample_rate': 0.4}
    left = accountant.remaining_steps(before + 0.6, 1e-6, **line)
    plain = spend(PLDAccountant(), 3)
    assert left == plain.remaining_steps(before + 0.1, 1e-6, **line)
    assert accountant.remaining_steps(0.5, 1e-6, **line) == 0
    fresh = PLDAccountant()
    fresh.spend_pure(1.0)
    noise = fresh.noise_multiplier_for(3.0, 1e-6, sample_rate=0.1, steps=9)
    assert 2.95 < spend(fresh, 9, noise, 0.1).get_epsilon(1e-6) <= 3
    with pytest.raises(ValueError, match='spent beside'):
        fresh.noise_multiplier_for(1.0, 1e-6, sample_rate=0.1, steps=9)
    for bad in (0.0, -1.0, float('inf'), float('nan')):
        with pytest.raises(ValueError, match='epsilon'):
            accountant.spend_pure(bad)
    # It does not go back, either.
    state = {**accountant.state_dict(), 'pure_epsilon': 0.1}
    with pytest.raises(ValueError, match='pure_epsilon'):
        accountant.load_state_dict(state)


def test_bounded_degree():
    accountant = FDPAccountant(1000, 200, 4)
    line = {'noise_multiplier': 2 * 4 * 3.0, 'sample_rate': 0.2}
    for _ in range(7):
        accountant.step(**line)

    def spent(noise, steps):
        return accountant.epsilon_of([(noise, 0.2, steps)], 1e-5)

    assert accountant.get_epsilon(1e-5) == pytest.approx(spent(24.0, 7))
    left = accountant.remaining_steps(8.0, 1e-5, **line)
    assert spent(24.0, 7 + left) <= 8 < spent(24.0, 8 + left)
    noise = accountant.noise_multiplier_for(
        8.0, 1e-5, sample_rate=0.2, steps=50
    )
    assert 0.99 * 8 <= spent(noise, 50) <= 8
    other = FDPAccountant(1000, 200, 4)
    other.load_state_dict(accountant.state_dict())
    assert other.history == accountant.history
    with pytest.raises(ValueError, match='terms'):
        FDPAccountant(1000, 200, 5).load_state_dict(accountant.state_dict())
    with pytest.raises(ValueError, match='mechanism'):
        PLDAccountant().load_state_dict(accountant.state_dict())
    with pytest.raises(ValueError, match='sample_rate'):
        accountant.step(noise_multiplier=24.0, sample_rate=0.3)
    with pytest.raises(ValueError, match='noise_multiplier'):
        accountant.step(noise_multiplier=0.1, sample_rate=0.2)
    with pytest.raises(ValueError, match='delta'):
        accountant.get_epsilon(0.0)
    with pytest.raises(ValueError, match='above'):
        FDPAccountant(10, 20, 4)
