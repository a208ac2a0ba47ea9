"""Reports for an auditor, honest ones and others."""

import json

from pyg_trust.check import FAILS, check_report
from pyg_trust.functional import wor_epsilon
from pyg_trust.report import Guarantee, TrustReport

STEPS, RATE, LAM, DELTA = 6, 0.05, 2.0, 1e-5
HISTORY = [(LAM, RATE, STEPS)]


def privacy(**changes):
    epsilon = wor_epsilon(HISTORY, DELTA, 'pld_wor')
    values = {
        'epsilon': epsilon,
        'delta': DELTA,
        'steps': STEPS,
        'mechanism': 'pld_wor',
        'batch_size': 50,
        'noise_multiplier': 2 * LAM,
        'lam': LAM,
        'sample_rates': [[RATE, STEPS]],
    }
    values = {**values, **changes}
    return Guarantee(
        'private training',
        'the weights are private',
        (),
        spent={'epsilon': values['epsilon']},
        budget={'epsilon': 100.0},
        kind='privacy',
        values=values,
    )


def removal(**request):
    return Guarantee(
        'removal',
        'it is gone',
        (),
        kind='removal',
        values={'request': {'0': request}},
    )


def saved(folder, *guarantees):
    path = folder / 'trust.json'
    TrustReport.of(*guarantees).save(path)
    return path


def failures(*args, **kwargs):
    found = check_report(*args, **kwargs)
    return [each.text for each in found if each.status == FAILS]


def forged(whole):
    """The text of a report that somebody has changed, digest and all."""
    whole = {name: whole[name] for name in whole if name != 'digest'}
    return json.dumps(whole)
