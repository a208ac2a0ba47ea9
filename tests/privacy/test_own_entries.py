"""What a stranger adds to private training, and what reports say of it."""

import pytest
import torch

from pyg_trust.check import UNKNOWN, check_report
from pyg_trust.noise import source
from pyg_trust.privacy import (
    Accountant,
    PLDAccountant,
    create_accountant,
)
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.registries import ACCOUNTANTS, NOISES
from pyg_trust.report import TrustReport

WHOSE = ', registered by the user, not checked by this package'


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    for registry in (ACCOUNTANTS, NOISES):
        for own in [n for n in registry if registry.is_own(n)]:
            registry.remove(own)


def half():
    @ACCOUNTANTS.register('mine')
    class Mine(Accountant):
        """Half of what it costs."""

        def epsilon_of(self, history, delta):
            return wor_epsilon(history, delta) / 2

    return Mine


def warns(report, name):
    note = f"'{name}'{WHOSE}"
    return any('NOT CHECKED' in t and note in t for t in report.assumptions)


# Accountants #################################################################


def test_an_accountant_of_a_stranger_is_used_and_named(private, tmp_path):
    half()
    setup = private(engine={'accountant': 'mine', 'insecure_seed': None})
    known = private(engine={'accountant': 'pld_wor'})
    for each in (setup, known):
        each.train()
    assert setup.engine.steps == known.engine.steps > 0
    claimed = setup.engine.get_epsilon(1e-3)
    assert claimed == pytest.approx(known.engine.get_epsilon(1e-3) / 2)
    report = setup.engine.report(1e-3)
    assert report.mechanism == 'mine'
    assert f"'mine'{WHOSE}" in report.guarantee().promise
    assert f"'mine'{WHOSE}" in report.explain()
    assert warns(report, 'mine')
    # Nor does the checker of saved reports vouch for it.
    path = tmp_path / 'report.json'
    page = TrustReport.of(report)
    page.save(path)
    for text in (page.to_html(), page.to_markdown()):
        assert 'nobody here has checked' in text
        assert 'times as likely' not in text
    assert any(
        f.status == UNKNOWN and "'mine'" in f.text for f in check_report(path)
    )
    plain = known.engine.report(1e-3).guarantee()
    assert 'not checked' not in plain.promise


def test_who_inherits_from_a_proof_does_not_inherit_its_name(private):
    @ACCOUNTANTS.register('cheap')
    class Cheap(PLDAccountant):
        """Looks like one of this package's."""

        def epsilon_of(self, history, delta):
            return 0.0

    assert Cheap().mechanism() == 'cheap'
    report = private(engine={'accountant': 'cheap'}).engine.report(1e-3)
    assert WHOSE in report.guarantee().promise

    class Quiet(PLDAccountant):
        """Is not registered at all."""

    assert 'Quiet' in Quiet().mechanism()

    class Liar(PLDAccountant):
        @classmethod
        def mechanism(cls):
            return 'pld_wor'

    with pytest.raises(TypeError, match=r"'mechanism' of its own"):
        ACCOUNTANTS.register('liar')(Liar)
    with pytest.raises(TypeError, match=r'subclass of Accountant'):
        ACCOUNTANTS.register('liar')(lambda: None)


@pytest.mark.parametrize('wrong', [float('nan'), -1.0, None, True, '3'])
def test_an_epsilon_that_is_none_is_refused(wrong):
    half().epsilon_of = lambda self, history, delta: wrong
    account = create_accountant('mine')
    more = {'noise_multiplier': 2.0, 'sample_rate': 0.1}
    account.step(**more)
    with pytest.raises(ValueError, match=r"'mine' needs to give an epsilon"):
        account.get_epsilon(1e-5)
    with pytest.raises(ValueError, match=r"'mine' needs to give an epsilon"):
        account.remaining_steps(1.0, 1e-5, **more)


def test_a_checkpoint_goes_on_by_the_name_of_the_accountant(private):
    half()
    setup = private(engine={'accountant': 'mine'})
    setup.train()
    state = setup.engine.state_dict()
    again = private(engine={'accountant': 'mine'})
    again.engine.load_state_dict(state)
    assert again.engine.steps == setup.engine.steps
    # Not as another one: what it counted is not a proof of that.
    other = private(engine={'accountant': 'pld_wor'})
    with pytest.raises(ValueError, match=r"'mechanism'.*'pld_wor'.*'mine'"):
        other.engine.load_state_dict(state)
    ACCOUNTANTS.remove('mine')
    with pytest.raises(ValueError, match=r"'accountant'.*pld_wor.*'mine'"):
        private(engine={'accountant': 'mine'})


# Noise #######################################################################


def test_the_noise_of_a_stranger_is_drawn_and_named(private):
    asked = []

    @NOISES.register('card')
    def card(count):
        """A card that makes random bytes."""
        asked.append(count)
        drawn = torch.randint(256, (count,), dtype=torch.uint8)
        return drawn.numpy().tobytes()

    setup = private(engine={'noise': 'card', 'insecure_seed': None})
    setup.train()
    assert asked
    report = setup.engine.report(1e-3)
    assert warns(report, 'card')
    assert 'cryptographic' not in ' '.join(report.assumptions)
    state = setup.engine.state_dict()
    with pytest.raises(ValueError, match=r"'noise'.*'setting'"):
        private(engine={'insecure_seed': None}).engine.load_state_dict(state)
    NOISES.remove('card')
    with pytest.raises(ValueError, match=r"'noise'.*'system'.*'card'"):
        private(engine={'noise': 'card', 'insecure_seed': None})


def test_noise_goes_with_no_seed_and_gives_all_bytes(private):
    NOISES.register('short')(lambda count: b'1')
    with pytest.raises(ValueError, match=r"'noise' needs to be 'system'"):
        private(engine={'noise': 'short', 'insecure_seed': 0})
    with pytest.raises(ValueError, match=r"'kind' needs to be 'system'"):
        source(0, 'short')
    with pytest.raises(ValueError, match=r"'short'.*needs to return 8 bytes"):
        source(kind='short').uniform(1)
