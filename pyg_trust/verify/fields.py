r"""Contradictions between the fields of a claim.

A forger changes a field and makes its sentence anew. What stands twice finds
him: a sum beside its parts, a bound beside what it follows from, a setting
beside the arguments of the run. :func:`contradictions` compares all of these,
and a checker that proves numbers from others does the rest. :func:`confirmed`
names the fields of which one of both notices a change that promises more. All
others are *stated by the report alone*; its sentences say so. A field or an
argument that confirms others has to be there: without it they contradict.

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
from functools import partial
from typing import Any

from . import ranks
from .accounting import HOLDS, judge_mu
from .claims import LATER, PROMISES, amount, count, number, same
from .noise import DIGEST, SHIFT
from .release import pair_mus, sensitivity

Fields = Mapping[str, Any]
Texts = Iterator[str]

#: The relations whose sentences speak of somebody who is there or not.
AWAY = 'add-or-remove-one-graph', 'add-or-remove-one-person'
#: Accountants, and whether a record may be in several of their units.
MECHANISMS = {
    **dict.fromkeys(('pld_wor', 'rdp_wor', 'pld_poisson'), False),
    **dict.fromkeys(('pld_group_wor', 'pld_group', 'rdp_fdp'), True),
}
WITHOUT = ('uniform-without-replacement', 'without replacement')
RELATIONS = ('edge', 'node', 'node_incident', 'feature')
PARTS = ('mu_encoder', 'mu_aggregation', 'mu_head')
_ROW, _PERSON = 'replace-one-feature-row', 'replace-one-person'
CONTENTS = 'replace-contents-of-one-person'
_PERSONS = _EACH, _ALL = 'persons, a row each', 'persons, with all they own'
_WALKS = f'walks between {_ALL}'
_UNITS = {
    'node-disjoint random walks': (_ROW,),
    'ego graphs of roots in a graph of bounded degree': (_ROW,),
    'whole graphs': ('replace-one-graph', AWAY[0]),
    **dict.fromkeys(_PERSONS, (_PERSON, AWAY[1])),
    _WALKS: (CONTENTS,),
}
ROWS = tuple(name for name in PROMISES if 'classifier' in name)
_REMOVAL = (
    'bound distance_bound budget history epsilon epsilon_transcript '
    'target_epsilon* lam* '
)
# By procedure, the fields whose change would promise more; starred fields are
# among the arguments of the run, too.
_MARKED = {
    'private training': 'epsilon delta steps relation sampling mechanism '
    'sample_rates noise_multiplier account units_per_row lam max_grad_norm '
    'sensitivity noise_std history grid_exponent',
    'search for settings of private training': '',
    'private aggregation': 'epsilon delta target_epsilon mu mu_encoder '
    'mu_aggregation mu_head mu_edge epsilon_replace degree_curve relation* '
    'form directed max_degree hops* releases rows raw_columns predictions '
    'seeded sensitivity noise_stds arithmetic grid_exponent table',
    'private link prediction': 'epsilon delta target_epsilon* mu mu_parts '
    'relation* form directed* steps* seeded* row_std count_std '
    'noise_multiplier arithmetic grid_exponent table',
    **dict.fromkeys(
        ROWS, f'{_REMOVAL}noise* release_std* delta* num_train seeded secure'
    ),
    'certified removal': _REMOVAL + 'noise release_std delta releases',
    'exact removal by shards': 'shards stages',
    'exact removal from a recommender': '',
    'removal covered by privacy': 'epsilon delta* target_epsilon budget mu '
    'history seeded units shift mu_units mu_shift',
    'robustness certificate': 'targets num_robust num_broken num_unknown '
    'scenario undirected global_budget* alpha* K* normalization* self_loops* '
    'tolerance* model*',
    'certificate by smoothing': 'targets confidence* per* alpha num_samples* '
    'num_abstained classes* noise* flips undirected certified answered '
    'num_selection* seed*',
    'collective certificate by smoothing': 'guaranteed counted one_by_one '
    'bound num_targets confidence*',
    'certificate of ranks': 'num_users k* num_kept num_lost num_unknown ranks '
    'global_budget* alpha* tolerance*',
    'certificate by division and voting': 'targets views num_groups* by* '
    'vote* certified seed*',
    'certificate against poisoning, by shards': 'targets num_shards* '
    'aggregator* certified',
    'propagation': 'levels eps* half seed*',
    'audit of a removal': 'verdicts tests level*',
}
# A field with a value, and the fields that nothing confirms then.
_UNLESS = {
    'noise objective': 'release_std distance_bound history releases epsilon '
    'epsilon_transcript delta budget num_train',
    'clipping adaptive': 'noise_std',
    'mechanism rdp_fdp': 'delta',
    'vote mean': 'targets certified',
    'aggregator mean': 'targets certified',
    'predictions True': 'target_epsilon',
}
# The values that a field can have.
_CHOICES = {
    'scenario': ('removals', 'additions', 'both', 'explicit'),
    'per': ('all', 'node'),
    'classes': ('all', 'one'),
    'task': ('nodes', 'graphs', 'pairs'),
    'inference': ('isolated', 'clean'),
}
# Arguments whose field has another name.
_NAMES = {'epsilon': 'target_epsilon', 'add_self_loops': 'self_loops'}
_PAIR = re.compile(r"(\w+)=(\([^()]*\)|'[^']*'|[^,()]+)")


class _Whole(dict[str, Any]):
    # Fields of which none that is read may be missing.
    def __missing__(self, name: str) -> Any:
        raise ValueError(f'{name!r} is missing, which confirms other fields')


def confirmed(procedure: str, values: Mapping[str, Any]) -> frozenset[str]:
    """List fields that other fields, or the run's arguments, confirm."""
    known = '' if values.get('vouched') else _MARKED[procedure]
    sure = {name.rstrip('*') for name in known.split()}
    sure |= {'persons', 'together'} & set(values) if known else set()
    if 'noise_stds' in sure and values.get('ledger_head') is not None:
        sure -= {'noise_stds', 'releases'}  # others' are on it as well
    for case, alone in _UNLESS.items():
        name, value = case.split()
        if str(values.get(name)) == value:
            sure -= set(alone.split())
    return frozenset(sure)


def given(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a run's arguments by name, also those written in a text.

    ``{'model': "PPNP(alpha=0.2)", 'seed': 1}`` gives model, alpha and seed.
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
    """Describe each field that other fields contradict.

    Raises:
        ValueError: if a field or an argument that confirms others is missing.
    """
    # Two fields are younger than reports that are to be read.
    v = _Whole({**dict.fromkeys(LATER, ''), **values})
    run = [(_NAMES.get(name, name), x) for name, x in given(arguments)]
    marked = _MARKED[procedure].split()
    known = {name.rstrip('*') for name in marked}
    compared = {name[:-1] for name in marked if name[-1] == '*'}
    missing = (known - set(v)) | (compared - {name for name, _ in run})
    if missing and not v.get('vouched'):
        raise ValueError(f'{min(missing)!r} is missing and confirms others')
    for field, found in run:
        if field not in compared:
            continue
        claimed = v[field]
        if field == 'model':
            alike = str(found).startswith(f'{claimed}(')
        elif field == 'aggregator':
            kind = 'Majority' if claimed == 'majority' else 'Mean'
            alike = str(found['type']).startswith(kind)
        else:
            alike = not [*_is(field, claimed, found)]
        if not alike:
            yield f'{field}: {claimed!r} is claimed, the run had {found!r}'
    if 'grid_exponent' in known:
        yield from _is('grid_exponent', v['grid_exponent'], -SHIFT)
    if 'table' in known:
        yield from _is('arithmetic', v['arithmetic'], 'exact')
        yield from _is('table', v['table'], DIGEST)
    for name, choices in _CHOICES.items():
        if name in v:
            yield from _one_of(name, v[name], choices)
    if procedure in _RULES:
        yield from _RULES[procedure](v, _Whole(arguments), history)


def _is(name: str, claimed: Any, made: Any) -> Texts:
    kinds = {isinstance(each, bool) for each in (claimed, made)}
    if claimed != made or len(kinds) > 1:
        yield f'{name}: {claimed!r} is claimed, other fields make {made!r}'


def _same(name: str, claimed: Any, made: float, off: float = 1e-9) -> Texts:
    # The same of numbers, which were rounded.
    claimed = number(name, claimed)
    if not math.isclose(claimed, made, rel_tol=off, abs_tol=1e-300):
        yield f'{name}: {claimed:.6g} is claimed, other fields make {made:.6g}'


def _one_of(name: str, claimed: Any, known: Sequence[Any]) -> Texts:
    if claimed not in known:
        yield f'{name}: {claimed!r} is claimed, it can only be in {known}'


# Privacy #####################################################################


def _training(v: Fields, arguments: Fields, history: Fields) -> Texts:
    lines = [
        (number('account', z, above=0.0), number('account', q), count('n', n))
        for z, q, n in v['account']
    ]
    yield from _is('steps', v['steps'], sum(n for *_, n in lines))
    rates: dict[float, int] = {}
    for _, rate, n in lines:
        rates[rate] = rates.get(rate, 0) + n
    stated = {float(q): count('n', n) for q, n in v['sample_rates']}
    yield from _is('sample_rates', stated, rates)
    mechanism, about = v['mechanism'], v['relation']
    if mechanism not in MECHANISMS:
        if not v.get('vouched'):
            yield f'mechanism: {mechanism!r} is none of {sorted(MECHANISMS)}'
        return
    coins = mechanism in ('pld_poisson', 'pld_group')
    known = ('poisson',) if coins else () if about in AWAY else WITHOUT
    yield from _one_of('sampling', v['sampling'], known)
    size = count('batch_size', v['batch_size'], 1)
    for _, rate, _ in lines:
        units = size / rate
        if not coins and not math.isclose(units, round(units), rel_tol=1e-6):
            yield f'batch_size: {size} at {rate:.6g}: no whole number of units'
    # A release beside the training is at rate 1, with noise of its own.
    noise = number('noise_multiplier', v['noise_multiplier'])
    alike = [same(z, noise) for z, *_ in lines]
    of_steps = [same(z, noise) for z, q, _ in lines if q < 1]
    if not all(of_steps) or (lines and not any(alike)):
        yield f'noise_multiplier: {noise:.6g} is not that of the account'
    some = re.fullmatch(r'sampled \(([0-9]+) of ([0-9]+)\)', v['checked'])
    ways = ('', 'always', 'at verify', 'not', some and some[0])
    yield from _one_of('checked', v['checked'], ways)
    if some and not 0 < int(some[1]) <= int(some[2]) <= v['steps']:
        yield f'checked: {some[0]} is claimed of {v["steps"]} steps'
    kinds = ('', 'exact', 'sums', 'float')
    yield from _one_of('arithmetic', v['arithmetic'], kinds)
    rows = count('units_per_row', v['units_per_row'], 1)
    if rows > 1 and not MECHANISMS[mechanism]:
        yield f'units_per_row: {mechanism} counts one unit, {rows} are claimed'
    if not v.get('vouched'):
        yield from _one_of('relation', about, _UNITS.get(v['unit'], ()))
    named = 'persons' in v or str(about).endswith('person')
    if named and not v.get('vouched'):
        run = _Whole(arguments['sampler'])
        wide = (_ALL, _WALKS)['walk_length' in run]
        kind = wide if 'hops' in run else run['walk_length'] or _EACH
        made = [kind, run['persons'], run.get('relation', _PERSON)]
        yield from _is('persons', [v['unit'], v['persons'], about], made)
    moves = rows * (1 if about in AWAY else 2)
    norm = number('max_grad_norm', v['max_grad_norm'], above=0.0)
    yield from _same('lam', v['lam'], noise / moves)
    yield from _same('sensitivity', v['sensitivity'], moves * norm)
    if v['clipping'] != 'adaptive':
        yield from _same('noise_std', v['noise_std'], noise * norm)
    spent = [amount('history', each) for each in v['history']]
    yield from _is('history', spent, sorted(spent))
    yield from _is('history', spent, history.get('epsilon'))
    yield from _same('epsilon', v['epsilon'], spent[-1])


def _sums(v: Fields, arguments: Fields, history: Fields) -> Texts:
    about, form, most = v['relation'], v['form'], v['max_degree']
    known = ('either',) if about == 'edge' else ('withdraw', 'replace')
    yield from _one_of('form', form, known)
    # A transform prints what is not as it is by default.
    run = dict(given(arguments))
    usual = {'form': 'either', 'directed': False, 'max_degree': None}
    for name, value in usual.items():
        yield from _is(name, v[name], run.get(name, value))
    transform, engine = 'transform' in run, bool(run.get('engine'))
    if not engine:  # whose budget it is
        goal = run.get('epsilon')
        yield from _is('target_epsilon', v['target_epsilon'], goal)
    of_edges = about == 'node_incident'
    yield from _is('rows', v['rows'], 'others' if of_edges else 'all')
    if about in ('edge', 'feature', 'user'):
        yield from _is('max_degree', most, None)
    if count('receivers', v['receivers']) > v['num_nodes']:
        yield f'receivers: {v["receivers"]} of {v["num_nodes"]} nodes'
    seed = run.get('seed') is not None if transform else run['seeded']
    if seed and not v['seeded']:
        yield 'seeded: the run had a seed, secret noise is claimed'
    yield from _is('predictions', v['predictions'], engine or not transform)
    yield from _is('raw_columns', v['raw_columns'], run.get('cat', False))
    moved = amount('sensitivity', v['sensitivity'])
    classes = [None, *range(2, 1000)] if v['predictions'] else [None]
    made = (sensitivity(about, v['directed'], form, most, c) for c in classes)
    if not any(same(moved, each) for each in made):
        yield f'sensitivity: no sum of the relation {about!r} has {moved:.6g}'
    stds = [number('noise_stds', std, above=0.0) for std in v['noise_stds']]
    hops = count('hops', v['hops'], 1)
    yield from _is('hops', hops, len(stds))
    encoder, sums, head = parts = [amount(name, v[name]) for name in PARTS]
    yield from _same('mu', v['mu'], math.hypot(*parts))
    wider = 1 + amount('rho', v['rho'])
    each = math.hypot(*(moved * wider / std for std in stds))
    lines = count('releases', v['releases'], 1) - bool(encoder) - bool(head)
    if v['ledger_head'] is None or engine:
        # No other owner's releases are counted here.
        one = each / math.sqrt(hops)
        yield from _same('mu_aggregation', sums, one * lines**0.5, 1e-6)
    elif sums < each * (1 - 1e-6) or lines < hops:
        yield f'mu_aggregation: {sums:.6g} is claimed, one has {each:.6g}'
    yield from _of_others(v, sums)


def _of_others(v: Fields, sums: float) -> Texts:
    # The same releases in other relations, and with other degrees.
    delta, degrees = number('delta', v['delta']), v['degree_curve']
    mu2 = Fraction(sums) ** 2
    if type(degrees) is not list or len(degrees) > 20:
        yield 'degree_curve: it is no list of at most 20 degrees'
        return
    claims = [(mu2 * d / v['max_degree'], e) for d, e in degrees]
    if (v['form'] == 'withdraw') != (v['epsilon_replace'] is not None):
        yield 'epsilon_replace: it is of the form of a blank record'
    elif v['epsilon_replace'] is not None:
        apart = 2 if v['relation'] == 'user' else 4
        claims.append((apart * Fraction(v['mu']) ** 2, v['epsilon_replace']))
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
        # The sums of other people may hold other classes than one's own.
        moved = 1.0 if v['directed'] else math.sqrt(2)
        least = moved * sums / v['sensitivity']
        if number('mu_edge', v['mu_edge']) < least * (1 - 1e-9):
            yield f'mu_edge: it is at least {least:.6g}'


def _links(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _one_of('relation', v['relation'], ('edge', 'node'))
    names = ('row_std', 'noise_multiplier')
    s, z = (number(name, v[name], above=0.0) for name in names)
    steps, nodes = count('steps', v['steps'], 1), v['relation'] == 'node'
    forms = ('withdraw', 'replace') if nodes else ('either',)
    yield from _one_of('form', v['form'], forms)
    c = None if nodes else number('count_std', v['count_std'], above=0.0)
    yield from _is('count_std', v['count_std'], c)
    made = pair_mus(s, c, z, steps, v['directed'], v['form'])
    *parts, others = [amount('mu_parts', mu) for mu in v['mu_parts']]
    yield from _same('mu', v['mu'], math.hypot(*made, others))
    if not all(map(same, parts, made)) or len(parts) != len(made):
        yield 'mu_parts: noise and steps make others'
    own = 2 if nodes else 3
    if (count('releases', v['releases'], own) > own) != (others > 0):
        yield f'releases: what is beside {own} of them is in mu_parts'


# Removal #####################################################################


def _removed(
    v: Fields, arguments: Fields, history: Fields, of_nodes: bool = True
) -> Texts:
    if of_nodes:
        seeded = arguments['seed'] is not None
        yield from _is('seeded', v['seeded'], seeded or not v['secure'])
        yield from _is('secure', v['secure'], not v['seeded'])
    yield from _one_of('noise', v['noise'], ('output', 'objective'))
    if v['noise'] != 'output':
        return
    std, lam = (number(k, v[k], above=0.0) for k in ('release_std', 'lam'))
    of = 'num_train' if of_nodes else 'num_graphs'
    n = count(of, v[of], 1)
    bound, most = amount('bound', v['bound']), amount('budget', v['budget'])
    # The bound is of a gradient for nodes, and of a shift for graphs.
    unit, scale = (1.0, lam * n) if of_nodes else (std * lam * n, 1 / std)
    most_left = bound * unit * (1 + 1e-9)
    if amount('residual', v['residual']) > most_left:
        yield f'residual: {v["residual"]:.6g} is more than {most_left:.6g}'
    yield from _same('distance_bound', v['distance_bound'], bound / scale)
    if not of_nodes:
        yield from _is('releases', v['releases'], len(v['history']))
    shares = [amount('history', share) for share in v['history']]
    paid = [share * most for share in shares] if of_nodes else shares
    if not paid or paid[-1] * (1 + 1e-9) < bound:
        yield 'history: its last release is less than the bound'
    (over,) = history.values() or ([],)
    if len(over) != len(paid) or not all(map(same, over[:-1], paid)):
        yield 'history: it is not what was spent of the budget over time'


def _shards(v: Fields, arguments: Fields, history: Fields) -> Texts:
    there = range(count('num_shards', arguments['num_shards']))
    if not all(type(each) is int and each in there for each in v['shards']):
        yield f'shards: {v["shards"]} are not among {len(there)}'
    if sorted(map(str, v['shards'])) != sorted(v['stages']):
        yield 'stages: they are of other shards'


def _covered(v: Fields, arguments: Fields, history: Fields) -> Texts:
    yield from _is('seeded', v['seeded'], False)
    yield from _one_of('relation', v['relation'], RELATIONS)
    moved = v['units'] * v['mu_units'], v['shift'] * v['mu_shift']
    yield from _same('mu', v['mu'], math.hypot(*moved))
    ends = v['history'][:1] + v['history'][-1:]
    if ends != [0.0, v['mu']] or not v['units'] or not v['mu'] > 0:
        yield 'history: it goes from nothing to mu, of units'
    more = (Fraction(v['budget']) * (1 + Fraction(1, 2**20))) ** 2
    if judge_mu(more, v['target_epsilon'], v['delta']) == HOLDS:
        yield 'budget: target_epsilon allows more'


# Robustness, and others ######################################################


def _exact(v: Fields, arguments: Fields, history: Fields) -> Texts:
    run = str(arguments['threat'])
    found = re.match(r'\w+\((\w+),', run)
    yield from _is('scenario', v['scenario'], found and found[1])
    yield from _is('undirected', v['undirected'], run[-11:] == 'undirected)')


def _collective(v: Fields, arguments: Fields, history: Fields) -> Texts:
    for name in ('edges', 'features'):
        if [count(name, each) for each in v[name]] != v[name][:2]:
            yield f'{name}: they are no pair of counts'
    broken = math.floor(amount('bound', v['bound']) + 1e-6)
    made = max(v['counted'] - broken, v['one_by_one'])
    yield from _same('guaranteed', v['guaranteed'], made)


def _propagated(v: Fields, arguments: Fields, history: Fields) -> Texts:
    if f'levels={v["levels"]})' not in str(v['measure']):
        yield f'levels: {v["levels"]} are not those of {v["measure"]}'
    half = 'half=True' in str(arguments['transform'])
    yield from _is('half', v['half'], half)
    bound, most = v['level_bound'], v['level_tol']
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
    stated = {name: tests for name, tests in v['verdicts'].items() if tests}
    yield from _is('verdicts', stated, found)


def _counted(v: Fields, run: Fields, _: Fields) -> Texts:
    far, rest = v['column_distance'], v.get('residual_bound')
    yield from _is('method', run['method'] == 'paths', far is None)
    # Diagonal entries of the inverse are at most 1 / lam.
    if far is not None and not 0 <= (rest or 0) <= far:
        yield f'column_distance: {far} is claimed, of a residual of {rest}'


_RULES: dict[str, Callable[[Fields, Fields, Fields], Texts]] = {
    'private training': _training,
    'private aggregation': _sums,
    'private link prediction': _links,
    **dict.fromkeys(ROWS, _removed),
    'certified removal': partial(_removed, of_nodes=False),
    'exact removal by shards': _shards,
    'exact removal from a recommender': _counted,
    'removal covered by privacy': _covered,
    'robustness certificate': _exact,
    'collective certificate by smoothing': _collective,
    'certificate by division and voting': lambda v, run, _: _is(
        'persons', v.get('persons'), run.get('persons')
    ),
    'certificate of ranks': lambda values, *_: ranks.contradictions(values),
    'propagation': _propagated,
    'audit of a removal': _audited,
}
