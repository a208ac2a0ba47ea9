r"""What the fields of a claim say of one another.

A forger changes a field and makes its sentence anew. What stands twice finds
him: a sum beside its parts, a bound beside what it follows from, a setting
beside the arguments of the run. :func:`contradictions` compares all of these,
and a checker that proves numbers from others does the rest. :data:`CONFIRMED`
names the fields that one of both reads so that a change which promises more
is noticed. All others are *stated by the report alone*; its sentences say so.

**Noisy sums.** A hop with noise of standard deviation :math:`s` on a sum of
sensitivity :math:`\Delta` spends :math:`\mu = \Delta / s`, and all together
the root of the sum of squares. Rounding makes :math:`s` larger by a factor of
:math:`1 + \rho`, which is paid for beside :math:`\mu`.

**Private steps.** The sum of clipped gradients moves by ``sensitivity``, its
noise is ``noise_multiplier`` clipping norms: ``lam`` is their ratio.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

from .accounting import HOLDS, judge_mu
from .claims import amount, count, number, same
from .noise import DIGEST, SHIFT
from .release import pair_mus, sensitivity

Fields = Mapping[str, Any]
Texts = Iterator[str]

#: The relation whose sentence speaks of somebody who is there or not.
AWAY = 'add-or-remove-one-graph'
#: Accountants, and whether a record may be in several of their units.
MECHANISMS = {
    **dict.fromkeys(('pld_wor', 'rdp_wor', 'pld_poisson'), False),
    **dict.fromkeys(('pld_group_wor', 'pld_group', 'rdp_fdp'), True),
}
WITHOUT = ('uniform-without-replacement', 'without replacement')
FORMS = ('withdraw', 'replace')
PARTS = ('mu_encoder', 'mu_aggregation', 'mu_head')
SCENARIOS = ('removals', 'additions', 'both', 'explicit')
_ROW, _GRAPH = 'replace-one-feature-row', 'replace-one-graph'
_UNITS = {
    'node-disjoint random walks': (_ROW,),
    'ego graphs of roots in a graph of bounded degree': (_ROW,),
    'whole graphs': (_GRAPH, AWAY),
}
_REMOVAL = (
    'noise release_std bound distance_bound budget history epsilon '
    'epsilon_transcript target_epsilon delta lam '
)
#: By procedure, the fields of which a change that promises more is noticed.
CONFIRMED = {
    name: frozenset(fields.split())
    for name, fields in {
        'private training': 'epsilon delta steps relation sampling mechanism '
        'sample_rates noise_multiplier account units_per_row lam '
        'max_grad_norm sensitivity noise_std history grid_exponent',
        'search for settings of private training': 'epsilon',
        'private aggregation': 'epsilon delta target_epsilon mu mu_encoder '
        'mu_aggregation mu_head mu_edge epsilon_replace degree_curve relation '
        'form directed max_degree hops releases rows raw_columns predictions '
        'seeded sensitivity noise_stds arithmetic grid_exponent table',
        'private link prediction': 'epsilon delta target_epsilon mu mu_parts '
        'relation directed steps releases seeded row_std count_std '
        'noise_multiplier arithmetic grid_exponent table',
        'certified removal from a node classifier': _REMOVAL
        + 'num_train seeded secure',
        'certified removal': _REMOVAL + 'releases',
        'exact removal by shards': 'shards stages',
        'robustness certificate': 'targets num_robust num_broken num_unknown '
        'scenario undirected global_budget alpha K normalization self_loops '
        'tolerance model',
        'certificate by smoothing': 'targets confidence per alpha num_samples '
        'num_abstained classes noise flips undirected certified answered '
        'num_selection seed',
        'collective certificate by smoothing': 'guaranteed counted one_by_one '
        'bound num_targets confidence',
        'certificate by division and voting': 'targets views num_groups by '
        'vote certified seed',
        'certificate against poisoning, by shards': 'targets num_shards '
        'aggregator certified',
        'propagation': 'levels eps half bits seed',
        'audit of a removal': 'verdicts tests level',
    }.items()
}
# Arguments whose field has another name; and those of something else than the
# field of their name.
_NAMES = {
    'epsilon': 'target_epsilon',
    'add_self_loops': 'self_loops',
    'cat': 'raw_columns',
}
_OTHERS = {
    'private aggregation': ('delta', 'mu'),
    'private link prediction': ('delta',),
    'propagation': ('levels',),
    'exact removal by shards': ('aggregator',),
}
_PAIR = re.compile(r"(\w+)=(\([^()]*\)|'[^']*'|[^,()]+)")


def given(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names and values of a run's arguments, those in texts as well.

    ``{'model': "PPNP(alpha=0.2)", 'seed': 1}`` gives model, alpha and seed.

    Args:
        arguments (dict): as the origin of a report has them.
    """
    for name, value in arguments.items():
        yield name, value
        if isinstance(value, str):
            for word, text in _PAIR.findall(value[:2000]):
                with suppress(ValueError, SyntaxError, MemoryError):
                    yield word, ast.literal_eval(text)


def contradictions(
    procedure: str,
    values: Mapping[str, Any],
    arguments: Mapping[str, Any],
    history: Mapping[str, list[float]],
) -> Iterator[str]:
    """Say which fields others contradict.

    Args:
        procedure (str): one of :obj:`.claims.PROMISES`.
        values (dict): the fields.
        arguments (dict): of the run.
        history (dict): what was spent over time, by name.
    """
    known = CONFIRMED[procedure]
    for name, found in given(arguments):
        field = _NAMES.get(name, name)
        if field not in known or name in _OTHERS.get(procedure, ()):
            continue
        claimed = values[field]
        if field == 'model':
            alike = str(found).startswith(f'{claimed}(')
        elif field == 'aggregator':
            kind = 'Majority' if claimed == 'majority' else 'Mean'
            alike = str(found['type']).startswith(kind)
        elif isinstance(found, tuple | list | dict):
            continue
        else:
            alike = found == claimed
        if not alike:
            yield f'{field}: the run had {found!r}, {claimed!r} is claimed'
    if values.get('grid_exponent', -SHIFT) != -SHIFT:
        yield f'grid_exponent: no noise is on a grid of {-SHIFT} but this'
    exact = 'exact', DIGEST
    if 'table' in known and (values['arithmetic'], values['table']) != exact:
        yield 'arithmetic: no noise of the kernel has another table'
    yield from _RULES[procedure](values, arguments, history)


def _same(name: str, claimed: Any, made: float, off: float = 1e-9) -> Texts:
    # A number that follows from others.
    if not math.isclose(claimed, made, rel_tol=off, abs_tol=1e-300):
        yield f'{name}: {claimed:.6g} is claimed, other fields make {made:.6g}'


def _one_of(name: str, claimed: Any, known: Sequence[Any]) -> Texts:
    if claimed not in known:
        yield f'{name}: {claimed!r} is claimed, which can only be in {known}'


# Privacy #####################################################################


def _training(v: Fields, arguments: Fields, history: Fields) -> Texts:
    lines = [
        (number('account', z, above=0.0), number('account', q), count('n', n))
        for z, q, n in v['account']
    ]
    if v['steps'] != sum(n for *_, n in lines):
        yield f'steps: {v["steps"]} are claimed, others are recorded'
    rates: dict[float, int] = {}
    for _, rate, n in lines:
        rates[rate] = rates.get(rate, 0) + n
    if rates != {float(q): n for q, n in v['sample_rates']}:
        yield 'sample_rates: they are not those of the recorded steps'
    if v['mechanism'] not in MECHANISMS:
        return
    coins = v['mechanism'] in ('pld_poisson', 'pld_group')
    known = ('poisson',) if coins else WITHOUT
    yield from _one_of('sampling', v['sampling'], known)
    size = count('batch_size', v['batch_size'], 1)
    for _, rate, _ in lines:
        units = size / rate
        if not coins and not math.isclose(units, round(units), rel_tol=1e-6):
            yield f'batch_size: {size} at {rate:.6g}: no whole number of units'
    # A release beside the training is at rate 1, with noise of its own.
    noise = number('noise_multiplier', v['noise_multiplier'])
    other = [z for z, q, _ in lines if q < 1 and not same(z, noise)]
    if not other and not any(same(z, noise) for z, *_ in lines):
        other = [z for z, *_ in lines]
    if other:
        yield f'noise {noise:.6g} is claimed, {other[0]:.6g} is recorded'
    some = re.fullmatch(r'sampled \((\d+) of (\d+)\)', v.get('checked', ''))
    ways = ('', 'always', 'at verify', 'not', some and some[0])
    yield from _one_of('checked', v.get('checked', ''), ways)
    if some and not 0 < int(some[1]) <= int(some[2]) <= v['steps']:
        yield f'checked: {some[0]} are claimed of {v["steps"]}'
    kinds = ('', 'exact', 'sums', 'float')
    yield from _one_of('arithmetic', v.get('arithmetic', ''), kinds)
    if 'lam' not in v:
        return
    rows = count('units_per_row', v.get('units_per_row', 1), 1)
    if rows > 1 and not MECHANISMS[v['mechanism']]:
        yield f'units_per_row: {v["mechanism"]} is for one unit, not {rows}'
    moves = rows * (1 if v['relation'] == AWAY else 2)
    yield from _same('lam', v['lam'], noise / moves)
    if 'unit' not in v:
        return
    for unit, relations in _UNITS.items():
        if v['unit'] == unit:
            yield from _one_of('relation', v['relation'], relations)
    norm = number('max_grad_norm', v['max_grad_norm'], above=0.0)
    yield from _same('sensitivity', v['sensitivity'], moves * norm)
    if v['clipping'] == 'flat':
        yield from _same('noise_std', v['noise_std'], noise * norm)
    made = [amount('history', each) for each in v['history']]
    if made != sorted(made) or made != history.get('epsilon', made):
        yield 'history: it falls, or is not that of the budget'
    if made:
        yield from _same('history', made[-1], v['epsilon'])


def _sums(v: Fields, arguments: Fields, history: Fields) -> Texts:
    about, form = v['relation'], v['form']
    own = about == 'edge'
    yield from _one_of('form', form, ('either',) if own else FORMS)
    rows = 'others' if about == 'node_incident' else 'all'
    yield from _one_of('rows', v['rows'], (rows,))
    if about not in ('node', 'node_incident') and v['max_degree'] is not None:
        yield f'max_degree: there is none of the relation {about!r}'
    if v['receivers'] > v['num_nodes']:
        yield 'receivers: they are more than the nodes'
    # Seeds and engines of a transform are in its arguments.
    run = dict(given(arguments))
    if (run.get('seed') is not None) > bool(v['seeded']):
        yield 'seeded: the run had a seed, and secret noise is claimed'
    if 'transform' in run and v['predictions'] is not bool(run.get('engine')):
        yield 'predictions: the run was of a transform, with or without them'
    if 'transform' not in run and run and v['raw_columns']:
        yield 'raw_columns: a classifier returns none'
    moved = amount('sensitivity', v['sensitivity'])
    classes = [None, *range(2, 1000)] if v['predictions'] else [None]
    if not any(
        same(
            moved, sensitivity(about, v['directed'], form, v['max_degree'], c)
        )
        for c in classes
    ):
        yield f'sensitivity: no sum of the relation {about!r} has {moved:.6g}'
    stds = [number('noise_stds', std, above=0.0) for std in v['noise_stds']]
    hops = count('hops', v['hops'], 1)
    if len(stds) != hops:
        yield f'hops: {hops} are claimed, {len(stds)} have noise'
    parts = [amount(name, v[name]) for name in PARTS]
    yield from _same('mu', v['mu'], math.hypot(*parts))
    wider = 1 + amount('rho', v['rho'])
    each = math.hypot(*(moved * wider / std for std in stds))
    sums, lines = parts[1], count('releases', v['releases'], 1)
    lines -= bool(parts[0]) + bool(parts[2])
    if v['ledger_head'] is None and not run.get('engine'):
        # Nobody else has spent.
        made = each * math.sqrt(lines / hops)
        yield from _same('mu_aggregation', sums, made, 1e-6)
    elif sums < each * (1 - 1e-6) or lines < hops:
        yield f'mu_aggregation: {sums:.6g} is claimed, one has {each:.6g}'
    yield from _of_others(v, sums)


def _of_others(v: Fields, sums: float) -> Texts:
    # What the same releases are in other relations, and degrees.
    delta = number('delta', v['delta'])
    mu2 = Fraction(sums) ** 2
    degrees = v['degree_curve']
    if len(degrees) > 20:
        yield 'degree_curve: it has more than 20 degrees'
        return
    claims = [(mu2 * d / v['max_degree'], e) for d, e in degrees]
    if (v['form'] == 'withdraw') != (v['epsilon_replace'] is not None):
        yield 'epsilon_replace: it is of the form of a blank record'
    elif v['epsilon_replace'] is not None:
        claims.append((4 * Fraction(v['mu']) ** 2, v['epsilon_replace']))
    if (v['relation'] == 'node_incident') != bool(degrees):
        yield 'degree_curve: it is of nodes with their edges'
    for squared, epsilon in claims:
        # Roots and quotients of the report were rounded.
        squared *= 1 - Fraction(1, 2**44)
        if judge_mu(squared, number('epsilon', epsilon), delta) != HOLDS:
            yield f'degree_curve, epsilon_replace: {epsilon:.6g} is too small'
    node = v['relation'] == 'node' and v['max_degree'] in (None, 1)
    if node != (v['mu_edge'] is not None):
        yield 'mu_edge: it is of nodes whose lists have the energy of one'
    elif node:
        # Others' sums may be of more classes than one's own.
        moved = 1.0 if v['directed'] else math.sqrt(2)
        least = moved * sums / v['sensitivity']
        if not v['mu_edge'] >= least * (1 - 1e-9):
            yield f'mu_edge: it is at least {least:.6g}'


def _links(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _one_of('relation', v['relation'], ('edge',))
    names = ('row_std', 'count_std', 'noise_multiplier')
    s, c, z = (number(name, v[name], above=0.0) for name in names)
    made = pair_mus(s, c, z, count('steps', v['steps'], 1), v['directed'])
    *parts, others = [amount('mu_parts', mu) for mu in v['mu_parts']]
    yield from _same('mu', v['mu'], math.hypot(*made, others))
    if not all(map(same, parts, made)) or len(parts) != len(made):
        yield 'mu_parts: noise and steps make others'
    if (count('releases', v['releases'], 3) > 3) != (others > 0):
        yield 'releases: what is beside three of them is in mu_parts'


# Removal #####################################################################


def _removed(v: Fields, arguments: Fields, history: Fields) -> Texts:
    secret = v.get('secure', not v['seeded'])
    if secret is v['seeded'] or (
        arguments.get('seed') is not None and not v['seeded']
    ):
        yield 'seeded: the run had a seed, and secret noise is claimed'
    if v['noise'] != 'output':
        return
    of_nodes = 'num_train' in v
    std = number('release_std', v['release_std'], above=0.0)
    lam = number('lam', v['lam'], above=0.0)
    n = count('num_train', v['num_train' if of_nodes else 'num_graphs'], 1)
    bound, most = amount('bound', v['bound']), amount('budget', v['budget'])
    # Of nodes the bound is of a gradient, of graphs it is of a shift.
    unit = 1.0 if of_nodes else std * lam * n
    scale = std * lam * n if of_nodes else 1.0
    if amount('residual', v['residual']) > bound * unit * (1 + 1e-9):
        yield 'residual: it is more than its bound'
    yield from _same(
        'distance_bound', v['distance_bound'], std * bound / scale
    )
    if v.get('releases', len(v['history'])) != len(v['history']):
        yield 'releases: the history has others'
    shares = [amount('history', share) for share in v['history']]
    paid = [share * most for share in shares] if of_nodes else shares
    if not paid or paid[-1] * (1 + 1e-9) < bound:
        yield 'history: its last release is less than the bound'
    (over,) = history.values() or ([],)
    if len(over) != len(paid) or not all(map(same, over[:-1], paid)):
        yield 'history: it is not what was spent of the budget over time'


def _shards(v: Fields, arguments: Fields, history: Fields) -> Texts:
    there = range(arguments.get('num_shards', 2**62))
    if not all(type(each) is int and each in there for each in v['shards']):
        yield f'shards: {v["shards"]} are not among {len(there)}'
    if sorted(map(str, v['shards'])) != sorted(v['stages']):
        yield 'stages: they are of other shards'


# Robustness ##################################################################


def _exact(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _one_of('scenario', v['scenario'], SCENARIOS)
    threat = str(arguments.get('threat', ''))
    found = re.match(r'\w+\((\w+),', threat)
    if found is not None and found[1] != v['scenario']:
        yield f'scenario: the run had {found[1]!r}'
    if found is not None and v['undirected'] != threat.endswith('undirected)'):
        yield 'undirected: the run had other flips'


def _smoothed(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _one_of('per', v['per'], ('all', 'node'))
    yield from _one_of('classes', v['classes'], ('all', 'one'))
    yield from _one_of('task', v['task'], ('nodes', 'graphs'))


def _voted(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _one_of('task', v['task'], ('nodes', 'graphs'))


def _poisoned(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _one_of('inference', v['inference'], ('isolated', 'clean'))


def _collective(v: Fields, arguments: Fields, history: Fields) -> Texts:
    for name in ('edges', 'features'):
        if [count(name, each) for each in v[name]] != v[name][:2]:
            yield f'{name}: they are no pair of counts'
    broken = math.floor(amount('bound', v['bound']) + 1e-6)
    made = max(v['counted'] - broken, v['one_by_one'])
    yield from _same('guaranteed', v['guaranteed'], made)


# Others ######################################################################


def _propagated(v: Fields, arguments: Fields, history: Fields) -> Texts:
    if f'levels={v["levels"]})' not in str(v['measure']):
        yield f'levels: {v["levels"]} are not those of {v["measure"]}'
    if v.get('bits') != (16 if v['half'] and not v['eps'] else None):
        yield 'bits: they are 16 of levels in float16 alone'
    bound, most = v['level_bound'], v.get('level_tol')
    if (bound is None) != (most is None or bool(v['eps'])):
        yield 'level_bound: it is there if levels are cut'
    elif bound is not None and not 0 <= bound <= most:
        yield f'level_bound: {bound} is more than {most}, which was asked for'
    if (v['standard_deviation'] is None) != (v['eps'] == 0):
        yield 'standard_deviation: it is there if values are estimated'


def _audited(v: Fields, arguments: Fields, history: Fields) -> Texts:
    found: dict[str, list[str]] = {}
    for row in v['tests']:
        found.setdefault(row['verdict'], []).append(row['test'])
    if found != {
        name: tests for name, tests in v['verdicts'].items() if tests
    }:
        yield 'verdicts: they are not those of the tests'


_RULES: dict[str, Callable[[Fields, Fields, Fields], Texts]] = {
    'private training': _training,
    'search for settings of private training': lambda *_: iter(()),
    'private aggregation': _sums,
    'private link prediction': _links,
    'certified removal from a node classifier': _removed,
    'certified removal': _removed,
    'exact removal by shards': _shards,
    'robustness certificate': _exact,
    'certificate by smoothing': _smoothed,
    'collective certificate by smoothing': _collective,
    'certificate by division and voting': _voted,
    'certificate against poisoning, by shards': _poisoned,
    'propagation': _propagated,
    'audit of a removal': _audited,
}
