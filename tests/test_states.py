"""Saved states of all kinds: their format, entries and settings."""

import copy

import pytest
from graphs import blocks, random_graphs

from pyg_trust._checks.states import check_settings, check_state, reading
from pyg_trust.privacy import PLDAccountant
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import NodeClassifier, ScatteringClassifier

KINDS = {
    'nodes': (
        lambda: NodeClassifier(weight_decay=0.02),
        lambda model: model.fit(blocks(n=30)),
    ),
    'graphs': (
        lambda: ScatteringClassifier(
            GraphScattering(2, 1, 2), weight_decay=0.02
        ),
        lambda model: model.fit(random_graphs(10)),
    ),
}


@pytest.mark.parametrize('kind', KINDS)
def test_a_state_has_a_format_and_those_of_0_1_had_none(kind):
    make, fit = KINDS[kind]
    state = fit(make()).state_dict()
    later = {**state, 'format': state['format'] + 1}
    with pytest.raises(ValueError, match='another version of pyg_trust'):
        make().load_state_dict(later)
    for wrong in (True, 2.0, '2', None):
        with pytest.raises(ValueError, match="'format'"):
            make().load_state_dict({**state, 'format': wrong})
    old = {k: v for k, v in copy.deepcopy(state).items() if k != 'format'}
    model = make()
    model.load_state_dict(old)
    assert model.verify().ok
    assert model.state_dict()['format'] == state['format']


def test_entries_and_settings_are_named():
    with pytest.raises(ValueError, match="needs an entry 'b'"):
        check_state({'a': 1}, ('a', 'b'))
    with pytest.raises(ValueError, match="needs an entry 'a'"):
        check_state(3, ('a',))
    with pytest.raises(ValueError, match=r"'weight_decay' = 2.* = 1 "):
        check_settings('config', {'lam': 2}, {'lam': 1})
    with pytest.raises(ValueError, match=r"'more' = 2.* = None "):
        check_settings('config', {'lam': 1, 'more': 2}, {'lam': 1})
    with pytest.raises(ValueError, match='dictionary'):
        check_settings('config', None, {'lam': 1})
    check_settings('config', {'lam': 1}, {'lam': 1, 'new': None})
    for error in (KeyError('x'), TypeError('x'), AttributeError('x')):
        with pytest.raises(ValueError, match='state_dict'), reading():
            raise error
    with pytest.raises(ZeroDivisionError), reading():
        raise ZeroDivisionError
    with pytest.raises(ValueError, match='needs an entry'):
        PLDAccountant().load_state_dict({})
