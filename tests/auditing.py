"""Reports for an auditor, honest ones and others."""

import json
import math
from fractions import Fraction

from pyg_trust.check import FAILS, check_report
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.report import Guarantee, TrustReport
from pyg_trust.report.base import stated
from pyg_trust.verify.claims import claim, finite
from pyg_trust.verify.sentences import words

STEPS, RATE, LAM, DELTA = 6, 0.05, 2.0, 1e-5
HISTORY = [(2 * LAM, RATE, STEPS)]


# A little more than the steps spend, so that a coarse grid proves it.
EPSILON = 1.02 * wor_epsilon(HISTORY, DELTA, 'pld_wor')


def privacy(**changes):
    """A claim of private training; sentences fit whatever is changed."""
    values = {
        'epsilon': EPSILON,
        'delta': DELTA,
        'target_epsilon': 100.0,
        'steps': STEPS,
        'relation': 'replace-one-feature-row',
        'sampling': 'without replacement',
        'mechanism': 'pld_wor',
        'batch_size': 50,
        'noise_multiplier': 2 * LAM,
        'lam': LAM,
        'sample_rates': [[RATE, STEPS]],
        'account': [[2 * LAM, RATE, STEPS]],
        'pure_epsilon': 0.0,
        'seeded': False,
        'ledger_head': None,
        'unit': 'node-disjoint random walks',
        'units_per_row': 1,
        'max_grad_norm': 1.0,
        'sensitivity': 2.0,
        'clipping': 'flat',
        'grid_exponent': -32,
        **changes,
    }
    values.setdefault('noise_std', values['noise_multiplier'])
    values.setdefault('history', [0.0, values['epsilon']])
    over = {'epsilon': values['history']}
    return stated('private training', values, history=over)


def removal(**request):
    return Guarantee(
        'removal',
        'it is gone',
        (),
        kind='removal',
        values={'request': {'0': request}},
    )


def above(value, digits=4):
    """The least number of so many digits that is not below a positive one."""
    step = Fraction(10) ** (math.floor(math.log10(value)) + 1 - digits)
    whole = math.ceil(Fraction(repr(float(value))) / step)
    return f'{float(whole * step):.{digits}g}'


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


def reworded(whole):
    """The report with the sentences of its fields, as a forger writes it."""
    for each in whole['guarantees']:
        made = words(claim(each['procedure'], each['values']))
        each.update(json.loads(json.dumps(finite(vars(made)))))
    return whole
