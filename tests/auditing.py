"""Reports for an auditor: honest ones, and one way to change them."""

import copy
import functools
import json
import math
import tempfile
from fractions import Fraction
from pathlib import Path

import torch

from pyg_trust.check import FAILS, check_report
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.report import Guarantee, TrustReport
from pyg_trust.verify.claims import finite
from pyg_trust.verify.promises import claim

STEPS, RATE, LAM, DELTA = 6, 0.05, 2.0, 1e-5
HISTORY = [(2 * LAM, RATE, STEPS)]


# A little more than the steps spend, so that a coarse grid proves it.
EPSILON = float(1.02 * wor_epsilon(HISTORY, DELTA, 'pld_wor'))


def privacy(**changes):
    """A promise of private training; all else follows from its given fields.

    An ``epsilon`` among the changes is the end of the history.
    """
    epsilon = float(changes.pop('epsilon', EPSILON))
    values = {
        'delta': DELTA,
        'target_epsilon': 100.0,
        'neighboring': 'replace-one-feature-row',
        'sampling': 'without replacement',
        'mechanism': 'pld_wor',
        'batch_size': 50,
        'noise_multiplier': 2 * LAM,
        'account': [[2 * LAM, RATE, STEPS]],
        'pure_epsilon': 0.0,
        'seeded': False,
        'ledger_head': None,
        'unit': 'node-disjoint random walks',
        'units_per_row': 1,
        'max_grad_norm': 1.0,
        'clipping': 'flat',
        'grid_exponent': -32,
        'history': [0.0, epsilon],
        **changes,
    }
    return lied('private training', values)


def lied(procedure, values, **rest):
    """A promise of such given fields, whether or not they agree."""
    made = claim(procedure, values)
    return Guarantee(
        procedure,
        kind=made.kind,
        values=made.to_dict(),
        **vars(made.words()),
        **rest,
    )


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
    """The text of a report that somebody has changed, without its digest."""
    whole = {name: whole[name] for name in whole if name != 'digest'}
    return json.dumps(whole)


def reworded(whole):
    """The report with what follows from its fields, as a forger writes it."""
    for each in whole['guarantees']:
        made = claim(each['procedure'], each['values'])
        each['values'] = made.to_dict()
        each.update(json.loads(json.dumps(finite(vars(made.words())))))
    return whole


# One honest promise of each kind, and one way to change it ###################


@functools.cache
def _made(name):
    from guarantees import MADE

    torch.manual_seed(0)
    report, files = MADE[name](Path(tempfile.mkdtemp()))
    (each,) = json.loads(TrustReport.of(report).to_json())['guarantees']
    if each['values'].get('seeded'):
        # As if it had been made without a seed, which alone is a failure.
        each = forge(each, seeded=False)
    return json.dumps(each), files, report


def honest(name):
    """A promise of :data:`guarantees.MADE` as JSON; each is made once."""
    return json.loads(_made(name)[0])


def made(name):
    """What an auditor is handed with it, and the report."""
    return _made(name)[1:]


def forge(each, **changes):
    """The promise with other given fields; all else is made anew."""
    each = copy.deepcopy(each)
    each['values'] = {**each['values'], **changes}
    return reworded({'guarantees': [each]})['guarantees'][0]


def written(folder, *promises, **changes):
    """Write a report of such promises, whatever they say."""
    whole = {
        'guarantees': promises,
        'created': '2026-01-01T00:00:00+00:00',
        'schema_version': 4,
        **changes,
    }
    path = folder / 'trust.json'
    path.write_text(json.dumps(whole))
    return path


def judged(folder, *promises, status=FAILS, **files):
    """The texts of a check with one status."""
    found = check_report(written(folder, *promises), **files)
    return [each.text for each in found if each.status == status]
