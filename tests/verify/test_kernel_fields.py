"""Fields of a claim against each other: a table of what contradicts what.

Every case changes an honest claim, written out by hand, and names the fields
that are said to be contradicted: by arithmetic that is done here.
"""

import math

import mpmath
import pytest

from pyg_trust.verify.fields import confirmed, contradictions, given
from pyg_trust.verify.noise import DIGEST

GRID = {'grid_exponent': -32}
EXACT = {**GRID, 'arithmetic': 'exact', 'table': DIGEST}
TRAINING = {
    'epsilon': 1.0,
    'delta': 1e-5,
    'steps': 6,
    'relation': 'replace-one-feature-row',
    'sampling': 'without replacement',
    'mechanism': 'pld_wor',
    'batch_size': 50,
    'sample_rates': [[0.05, 6]],
    'noise_multiplier': 0.5,
    'account': [[0.5, 0.05, 6]],
    'units_per_row': 1,
    'unit': 'node-disjoint random walks',
    'lam': 0.25,
    'max_grad_norm': 0.75,
    'sensitivity': 1.5,
    'noise_std': 0.375,
    'clipping': 'flat',
    'history': [0.25, 0.5, 1.0],
    **GRID,
}
SPENT = {'epsilon': [0.25, 0.5, 1.0]}


def fields_of(found):
    """The names before the colon, each once, in their order."""
    return list(dict.fromkeys(text.split(':')[0] for text in found))


def trained(spent=SPENT, **changes):
    v = {**TRAINING, **changes}
    return fields_of(contradictions('private training', v, {}, spent))


GROUPS = {'units_per_row': 2, 'lam': 0.125, 'sensitivity': 3.0}
AWAY = {
    'relation': 'add-or-remove-one-graph',
    'unit': 'whole graphs',
    'lam': 0.5,
    'sensitivity': 0.75,
}
TWO = [[0.5, 0.05, 2], [0.5, 0.05, 4]]
BESIDE = {
    'account': [[0.5, 0.05, 5], [9.0, 1.0, 1]],
    'sample_rates': [[0.05, 5], [1.0, 1]],
}
OFF = 1000 * 0.9e-6, 1000 * 1.1e-6


def at(rate):
    return {'account': [[0.5, rate, 6]], 'sample_rates': [[rate, 6]]}


@pytest.mark.parametrize(
    ('changes', 'names'),
    [
        ({}, []),
        ({'steps': 7}, ['steps']),
        ({'account': TWO}, []),
        ({'sample_rates': [[0.05, 5]]}, ['sample_rates']),
        ({'mechanism': 'x', 'lam': 9.0}, ['mechanism']),
        ({'mechanism': 'x', 'lam': 9.0, 'vouched': 'me'}, []),
        ({'mechanism': 'pld_poisson', 'sampling': 'poisson'}, []),
        ({'mechanism': 'pld_group', 'sampling': 'poisson'}, []),
        ({'mechanism': 'pld_poisson'}, ['sampling']),
        ({'sampling': 'poisson'}, ['sampling']),
        ({'sampling': 'uniform-without-replacement'}, []),
        (AWAY, ['sampling']),
        ({**AWAY, 'mechanism': 'pld_poisson', 'sampling': 'poisson'}, []),
        ({'batch_size': 1}, []),
        # 50 of 1,000 units, and of 1,000 units and a half.
        (at(50 / (1000 + OFF[0])), []),
        (at(50 / (1000 + OFF[1])), ['batch_size']),
        (at(50 / (1000 - OFF[1])), ['batch_size']),
        (at(50 / 1000.5), ['batch_size']),
        (
            {
                **at(50 / 1000.5),
                'mechanism': 'pld_poisson',
                'sampling': 'poisson',
            },
            [],
        ),
        (BESIDE, []),
        (at(1.0), []),
        ({'account': [[0.5, 0.05, 3], [0.6, 0.05, 3]]}, ['noise_multiplier']),
        ({'account': [[9.0, 0.05, 6]]}, ['noise_multiplier']),
        (
            {'account': [[9.0, 1.0, 6]], 'sample_rates': [[1.0, 6]]},
            ['noise_multiplier'],
        ),
        ({'account': [], 'sample_rates': [], 'steps': 0}, []),
        ({'checked': 'always'}, []),
        ({'checked': 'at verify'}, []),
        ({'checked': 'not'}, []),
        ({'checked': 'never'}, ['checked']),
        ({'checked': 'sampled (1 of 6)'}, []),
        ({'checked': 'sampled (1 of 1)'}, []),
        ({'checked': 'sampled (2 of 3)'}, []),
        ({'checked': 'sampled (6 of 6)'}, []),
        ({'checked': 'sampled (0 of 6)'}, ['checked']),
        ({'checked': 'sampled (4 of 3)'}, ['checked']),
        ({'checked': 'sampled (1 of 7)'}, ['checked']),
        ({'checked': 'sampled (1 of 6) x'}, ['checked']),
        ({'arithmetic': 'exact'}, []),
        ({'arithmetic': 'sums'}, []),
        ({'arithmetic': 'float'}, []),
        ({'arithmetic': 'x'}, ['arithmetic']),
        (GROUPS, ['units_per_row']),
        ({**GROUPS, 'mechanism': 'pld_group_wor'}, []),
        ({**GROUPS, 'mechanism': 'rdp_fdp'}, []),
        ({**GROUPS, 'mechanism': 'rdp_wor'}, ['units_per_row']),
        ({'unit': 'whole graphs'}, ['relation']),
        ({'unit': 'whole graphs', 'relation': 'replace-one-graph'}, []),
        ({'unit': 'own', 'relation': 'own'}, ['relation']),
        ({'unit': 'own', 'relation': 'own', 'vouched': 'me'}, []),
        ({'lam': 0.25 * (1 + 0.9e-9)}, []),
        ({'lam': 0.25 * (1 + 1.1e-9)}, ['lam']),
        ({'lam': 0.5}, ['lam']),
        ({'sensitivity': 0.75}, ['sensitivity']),
        ({'noise_std': 0.4}, ['noise_std']),
        ({'noise_std': 0.4, 'clipping': 'adaptive'}, []),
        ({'history': [0.5, 0.25, 1.0]}, ['history']),
        ({'history': [0.25, 0.6, 1.0]}, ['history']),
        ({'epsilon': 0.5}, ['epsilon']),
        ({'grid_exponent': 32}, ['grid_exponent']),
        ({'grid_exponent': -31}, ['grid_exponent']),
    ],
    ids=str,
)
def test_of_training(changes, names):
    assert trained(**changes) == names


def test_a_truth_is_no_number_of_steps():
    one = {'account': [[0.5, 0.05, 1]], 'sample_rates': [[0.05, 1]]}
    assert trained(steps=1, **one) == []
    assert trained(steps=True, **one) == ['steps']


def test_a_history_that_is_not_sorted_in_both_places():
    wrong = [0.5, 0.25, 1.0]
    assert trained({'epsilon': wrong}, history=wrong) == ['history']
    assert trained({}) == ['history']


@pytest.mark.parametrize(
    'changes',
    [
        {'batch_size': 0},
        {'units_per_row': 0},
        {'max_grad_norm': 0.0},
        {'account': [[0.0, 0.05, 6]]},
        {'account': [[0.5, 0.05, 6.5]]},
        {'sample_rates': [[0.05, 6.0]]},
        {'noise_multiplier': True},
        {'history': [-0.25, 0.5, 1.0]},
        {'lam': '0.25'},
    ],
    ids=str,
)
def test_what_is_no_number_of_training_is_refused(changes):
    (name,) = changes
    names = f"'({name}|n)' needs"
    with pytest.raises(ValueError, match=names):
        trained(**changes)


@pytest.mark.parametrize('name', [n for n in TRAINING if n != 'batch_size'])
def test_a_field_of_training_that_is_missing_is_named(name):
    less = {k: x for k, x in TRAINING.items() if k != name}
    with pytest.raises(ValueError, match=f"'{name}' is missing"):
        list(contradictions('private training', less, {}, SPENT))


# A sum of 2 hops with noise of 4 on each, of a record that may be blank.
SUMS = {
    'epsilon': 3.0,
    'delta': 1e-3,
    'target_epsilon': 3.0,
    'mu': 0.5,
    'mu_encoder': 0.0,
    'mu_aggregation': 0.5,
    'mu_head': 0.0,
    'mu_edge': 0.71,
    'epsilon_replace': 9.0,
    'degree_curve': [],
    'relation': 'node',
    'form': 'withdraw',
    'directed': False,
    'max_degree': None,
    'hops': 2,
    'releases': 2,
    'receivers': 20,
    'num_nodes': 20,
    'rows': 'all',
    'raw_columns': False,
    'predictions': False,
    'seeded': False,
    'sensitivity': 1.0,
    'noise_stds': [8**0.5, 8**0.5],
    'rho': 0.0,
    'ledger_head': None,
    **EXACT,
}
RUN = {
    'transform': "PrivateAGP(hops=2, relation='node', form='withdraw', "
    'epsilon=3.0)',
    'engine': False,
}


def summed(run=RUN, **changes):
    v = {**SUMS, **changes}
    return fields_of(contradictions('private aggregation', v, run, {}))


def of(text, **more):
    return {'transform': f'PrivateAGP({text})', 'engine': False, **more}


EDGES = {
    'relation': 'edge',
    'form': 'either',
    'sensitivity': 2**0.5,
    'mu_edge': None,
    'epsilon_replace': None,
    'noise_stds': [4.0, 4.0],
}
OF_EDGES = of("hops=2, relation='edge', epsilon=3.0")
ARCS = {
    **EDGES,
    'directed': True,
    'sensitivity': 1.0,
    'noise_stds': [8**0.5, 8**0.5],
}
OF_ARCS = of("hops=2, relation='edge', directed=True, epsilon=3.0")
ONE = of(
    "hops=2, relation='node', form='withdraw', directed=True, epsilon=3.0"
)
DEGREES = {
    'relation': 'node_incident',
    'rows': 'others',
    'max_degree': 4,
    'sensitivity': 2.0,
    'noise_stds': [32**0.5, 32**0.5],
    'mu_edge': None,
    'degree_curve': [[1, 3.0], [4, 3.0]],
}
OF_DEGREES = of(
    "hops=2, relation='node_incident', form='withdraw', max_degree=4, "
    'epsilon=3.0'
)
PAIRS = {
    'form': 'replace',
    'max_degree': 3,
    'sensitivity': 2 * 3**0.5,
    'noise_stds': [4 * 6**0.5, 4 * 6**0.5],
    'mu_edge': None,
    'epsilon_replace': None,
}
OF_PAIRS = of(
    "hops=2, relation='node', form='replace', max_degree=3, epsilon=3.0"
)
HEAD = {
    'mu_encoder': 0.3,
    'mu_head': 0.4,
    'mu': 0.5**0.5,
    'releases': 4,
    'predictions': True,
    'target_epsilon': 1.0,
}
OF_HEAD = {
    'relation': 'node',
    'form': 'withdraw',
    'hops': 2,
    'seeded': False,
    'engine': True,
}
LEDGER = {'ledger_head': 64 * '0'}
HOP = {'hops': 1, 'noise_stds': [2.0], 'releases': 1}
# The least that is not too small, by the same products.
LEAST = math.hypot(1 / 8**0.5, 1 / 8**0.5) * (1 - 1e-6)
EDGE = 2**0.5 * 0.5 * (1 - 1e-9)
NO_FORM = of("hops=2, relation='node', form='either', epsilon=3.0")
DEGREE = of(
    "hops=2, relation='edge', max_degree=3, epsilon=3.0",
)


@pytest.mark.parametrize(
    ('run', 'changes', 'names'),
    [
        (RUN, {}, []),
        (RUN, {'form': 'either'}, ['form', 'sensitivity', 'epsilon_replace']),
        (OF_EDGES, EDGES, []),
        (OF_EDGES, {**EDGES, 'max_degree': 3}, ['max_degree']),
        (OF_EDGES, {**EDGES, 'form': 'replace'}, ['form']),
        (OF_ARCS, ARCS, []),
        (OF_ARCS, EDGES, ['directed']),
        (OF_EDGES, ARCS, ['directed']),
        (OF_DEGREES, DEGREES, []),
        (OF_DEGREES, {**DEGREES, 'rows': 'all'}, ['rows']),
        (RUN, {'rows': 'others'}, ['rows']),
        (OF_PAIRS, PAIRS, []),
        (RUN, {'target_epsilon': 2.0}, ['target_epsilon']),
        (RUN, {'receivers': 21}, ['receivers']),
        (RUN, {'receivers': 19}, []),
        (of(RUN['transform'][11:-1] + ', seed=1'), {}, ['seeded']),
        (of(RUN['transform'][11:-1] + ', seed=1'), {'seeded': True}, []),
        (of(RUN['transform'][11:-1] + ', seed=None'), {'seeded': True}, []),
        (of(RUN['transform'][11:-1] + ', cat=True'), {}, ['raw_columns']),
        (RUN, {'predictions': True}, ['predictions']),
        (RUN, {'sensitivity': 2.0, 'mu_edge': 9.0}, ['sensitivity', 'mu_agg']),
        (RUN, {'hops': 3}, ['hops', 'hops', 'mu_aggregation']),
        (RUN, {'noise_stds': [8**0.5]}, ['hops', 'mu_aggregation']),
        (of(RUN['transform'][11:-1].replace('2', '1', 1)), HOP, []),
        (RUN, {'mu': 0.4}, ['mu']),
        (RUN, {'mu_aggregation': 0.4, 'mu': 0.4}, ['mu_aggregation']),
        # The root of 2 shares, which are rounded: to a millionth.
        (RUN, {'mu_aggregation': 0.5 * (1 + 0.9e-6), 'mu': 0.50000045}, []),
        (
            RUN,
            {'mu_aggregation': 0.5 * (1 + 1.1e-6), 'mu': 0.50000055},
            ['mu_aggregation'],
        ),
        (
            RUN,
            {
                'releases': 4,
                'mu_aggregation': 0.5**0.5,
                'mu': 0.5**0.5,
                'mu_edge': 1,
            },
            [],
        ),
        (RUN, {'rho': 0.1}, ['mu_aggregation']),
        (
            RUN,
            {'rho': 0.25, 'mu_aggregation': 0.625, 'mu': 0.625, 'mu_edge': 1},
            [],
        ),
        (OF_HEAD, HEAD, []),
        (OF_HEAD, {**HEAD, 'seeded': True}, []),
        ({**OF_HEAD, 'seeded': True}, HEAD, ['seeded']),
        # Without a transform predictions are released, by whomever.
        ({**OF_HEAD, 'engine': False, 'epsilon': 1.0}, HEAD, []),
        (
            RUN,
            {
                'noise_stds': [0.5, 0.5],
                'mu_aggregation': 8**0.5,
                'mu': 8**0.5,
                'mu_edge': 4.1,
                'epsilon_replace': 40.0,
            },
            [],
        ),
        (OF_HEAD, {**HEAD, 'predictions': False}, ['predictions']),
        (OF_HEAD, {**HEAD, 'releases': 3}, ['mu_aggregation']),
        (OF_HEAD, {**HEAD, **LEDGER, 'releases': 9}, ['mu_aggregation']),
        # Others' releases are on a ledger, one's own are among them.
        (RUN, LEDGER, []),
        (RUN, {**LEDGER, 'releases': 9}, []),
        (RUN, {**LEDGER, 'mu_aggregation': 0.8, 'mu': 0.8, 'mu_edge': 2}, []),
        (RUN, {**LEDGER, 'releases': 1}, ['mu_aggregation']),
        (
            RUN,
            {**LEDGER, 'mu_aggregation': 0.4, 'mu': 0.4},
            ['mu_aggregation'],
        ),
        (
            RUN,
            {**LEDGER, 'mu_aggregation': 0.5 * (1 - 0.9e-6), 'mu': 0.49999955},
            [],
        ),
        (
            RUN,
            {**LEDGER, 'mu_aggregation': 0.5 * (1 - 1.1e-6), 'mu': 0.49999945},
            ['mu_aggregation'],
        ),
        # Degrees, forms and edges.
        (OF_DEGREES, {**DEGREES, 'degree_curve': ()}, ['degree_curve']),
        (OF_DEGREES, {**DEGREES, 'degree_curve': []}, ['degree_curve']),
        (OF_DEGREES, {**DEGREES, 'degree_curve': [[1, 3.0]] * 20}, []),
        (
            OF_DEGREES,
            {**DEGREES, 'degree_curve': [[1, 3.0]] * 21},
            ['degree_curve'],
        ),
        (RUN, {'degree_curve': [[1, 3.0]], 'max_degree': 1}, None),
        (RUN, {'epsilon_replace': None}, ['epsilon_replace']),
        (OF_EDGES, {**EDGES, 'epsilon_replace': 9.0}, ['epsilon_replace']),
        (RUN, {'mu_edge': None}, ['mu_edge']),
        (RUN, {'mu_edge': EDGE}, []),
        (RUN, {**LEDGER, 'mu_aggregation': LEAST, 'mu': LEAST}, []),
        (
            NO_FORM,
            {
                'form': 'either',
                'sensitivity': 2.0,
                'noise_stds': [32**0.5] * 2,
                'epsilon_replace': None,
            },
            ['form'],
        ),
        (DEGREE, {**EDGES, 'max_degree': 3}, ['max_degree']),
        (OF_EDGES, {**EDGES, 'mu_edge': 1.0}, ['mu_edge']),
        (OF_PAIRS, {**PAIRS, 'mu_edge': 1.0}, ['mu_edge']),
        # An edge is in two rows, an arc is in one.
        (RUN, {'mu_edge': 0.5 * 2**0.5 * (1 - 0.9e-9)}, []),
        (RUN, {'mu_edge': 0.5 * 2**0.5 * (1 - 1.1e-9)}, ['mu_edge']),
        (ONE, {'directed': True, 'mu_edge': 0.5 * (1 - 0.9e-9)}, []),
        (ONE, {'directed': True, 'mu_edge': 0.5 * (1 - 1.1e-9)}, ['mu_edge']),
    ],
)
def test_of_sums(run, changes, names):
    if names is None:
        run = of(RUN['transform'][11:-1] + ', max_degree=1')
        names = ['degree_curve']
    names = ['mu_aggregation' if n == 'mu_agg' else n for n in names]
    assert summed(run, **changes) == list(dict.fromkeys(names))


@pytest.mark.parametrize('classes', [2, 3, 10, 999])
def test_predictions_are_of_2_to_999_classes(classes):
    moved = math.sqrt(2 * classes / (classes - 1))
    changes = {
        **HEAD,
        'form': 'replace',
        'epsilon_replace': None,
        'sensitivity': moved,
        'noise_stds': [moved * 8**0.5] * 2,
    }
    run = {**OF_HEAD, 'form': 'replace'}
    assert summed(run, **changes) == []
    transform = of(
        "hops=2, relation='node', form='replace', epsilon=3.0",
    )
    more = {'predictions': False, 'mu_encoder': 0.0, 'mu_head': 0.0}
    more.update(mu=0.5, releases=2, target_epsilon=3.0)
    found = summed(transform, **{**changes, **more})
    assert found == ([] if classes == 2 else ['sensitivity'])
    for other in (1000, 1001, 10**6):
        moved = math.sqrt(2 * other / (other - 1))
        changes.update(sensitivity=moved, noise_stds=[moved * 8**0.5] * 2)
        assert summed(run, **changes) == ['sensitivity']


def delta_of(mu, epsilon):
    """What Gaussian releases of this mu have, in closed form."""
    low, high = (
        math.erfc((epsilon / mu + sign * mu / 2) / 2**0.5) / 2
        for sign in (-1, 1)
    )
    return low - math.exp(epsilon) * high


def epsilon_of(mu, delta):
    low, high = 0.0, 100.0
    for _ in range(200):
        mid = (low + high) / 2
        low, high = (mid, high) if delta_of(mu, mid) > delta else (low, mid)
    return high


def test_other_forms_and_degrees_follow_in_closed_form():
    for more, right in ((1 + 1e-9, True), (1 - 1e-9, False)):
        # A replaced record is twice a blank one.
        found = summed(epsilon_replace=more * epsilon_of(1.0, 1e-3))
        assert found == ([] if right else ['degree_curve, epsilon_replace'])
        # A node of one edge of 4 has half of mu, of 4 of 4 all of it.
        for degree, mu in ((1, 0.25), (2, 0.125**0.5), (4, 0.5)):
            curve = [[degree, more * epsilon_of(mu, 1e-3)]]
            found = summed(OF_DEGREES, **{**DEGREES, 'degree_curve': curve})
            wrong = ['degree_curve, epsilon_replace']
            assert found == ([] if right else wrong)


@pytest.mark.parametrize(('part', 'right'), [(0.75, True), (1.25, False)])
def test_of_squares_2_to_the_minus_44_is_given_to_rounding(part, right):
    with mpmath.workdps(50):
        mu = mpmath.sqrt(1 - part * mpmath.mpf(2) ** -44)

        def excess(e):
            first = mpmath.ncdf(mu / 2 - e / mu)
            second = mpmath.ncdf(-mu / 2 - e / mu)
            return first - mpmath.exp(e) * second - mpmath.mpf(1e-3)

        epsilon = float(mpmath.findroot(excess, epsilon_of(1.0, 1e-3)))
    # Beside the float of it lie hundreds before the next quarter.
    found = summed(epsilon_replace=epsilon)
    assert found == ([] if right else ['degree_curve, epsilon_replace'])


@pytest.mark.parametrize(
    'changes',
    [
        {'receivers': -1},
        {'hops': 0, 'noise_stds': []},
        {'noise_stds': [0.0, 1.0]},
        {'releases': 0},
        {'rho': -0.5},
        {'mu_head': -1.0},
    ],
    ids=str,
)
def test_what_is_no_number_of_sums_is_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        summed(of(RUN['transform'][11:-1].replace('2', '0', 1)), **changes)


# Rows of 4 times the root of 2 (a mu of 1/4), a count of 8, 4 steps of 16.
LINKS = {
    'epsilon': 1.0,
    'delta': 1e-3,
    'target_epsilon': 1.0,
    'mu': math.sqrt(1 / 16 + 1 / 64 + 1 / 64),
    'mu_parts': [0.25, 0.125, 0.125, 0.0],
    'relation': 'edge',
    'form': 'either',
    'directed': False,
    'steps': 4,
    'seeded': False,
    'releases': 3,
    'row_std': 4 * 2**0.5,
    'count_std': 8.0,
    'noise_multiplier': 16.0,
    **EXACT,
}
OF_LINKS = {
    name: LINKS[name] for name in ('relation', 'directed', 'steps', 'seeded')
}
OF_LINKS['epsilon'] = 1.0


@pytest.mark.parametrize(
    ('changes', 'names'),
    [
        ({}, []),
        ({'relation': 'node', 'releases': 3}, None),
        ({'form': 'withdraw'}, ['form']),
        ({'directed': True}, ['directed', 'mu', 'mu_parts']),
        ({'steps': 5}, ['steps', 'mu', 'mu_parts']),
        (
            {
                'row_std': 0.5,
                'count_std': 0.5,
                'noise_multiplier': 0.5,
                'mu_parts': [8**0.5, 2.0, 4.0, 0.0],
                'mu': 28**0.5,
            },
            [],
        ),
        ({'mu': 0.3}, ['mu']),
        ({'mu_parts': [0.25, 0.125, 0.1, 0.0]}, ['mu_parts']),
        ({'mu_parts': [0.25, 0.125, 0.0]}, ['mu_parts']),
        ({'mu_parts': [0.25, 0.125, 0.125, 0.1]}, ['mu', 'releases']),
        ({'releases': 4}, ['releases']),
        (
            {
                'mu_parts': [0.25, 0.125, 0.125, 0.5],
                'mu': math.sqrt(11 / 32),
                'releases': 4,
            },
            [],
        ),
        ({'arithmetic': 'float'}, ['arithmetic']),
        ({'table': '0'}, ['table']),
        # The run says something else, or the same as another kind.
        ({'seeded': 0}, ['seeded']),
        ({'target_epsilon': 2.0}, ['target_epsilon']),
        ({'target_epsilon': True}, ['target_epsilon']),
    ],
    ids=str,
)
def test_of_links(changes, names):
    v = {**LINKS, **changes}
    found = contradictions('private link prediction', v, OF_LINKS, {})
    if names is None:
        assert {'relation', 'form', 'count_std'} <= {*fields_of(found)}
    else:
        assert fields_of(found) == names


@pytest.mark.parametrize(
    ('changes', 'names'),
    [
        ({}, []),
        # Against any other list the squares of mu double, and not fourfold.
        ({'epsilon_replace': 2.05}, ['degree_curve, epsilon_replace']),
        ({'epsilon_replace': None}, ['epsilon_replace']),
        ({'sensitivity': 2**0.5}, ['sensitivity', 'mu_aggregation']),
        ({'sensitivity': 0.5}, ['sensitivity', 'mu_aggregation']),
        ({'max_degree': 3}, ['max_degree']),
        ({'mu_edge': 0.5}, ['mu_edge']),
        ({'form': 'either', 'epsilon_replace': None}, ['form', 'sensitivity']),
    ],
    ids=str,
)
def test_of_users(changes, names):
    users = {
        **{'relation': 'user', 'mu_edge': None, 'epsilon_replace': 2.06},
        **{'hops': 1, 'releases': 1, 'noise_stds': [2.0], 'mu': 0.5},
        **{'mu_aggregation': 0.5, 'predictions': True},
        **{'target_epsilon': 2.0, 'epsilon': 1.9},
    }
    run = {'relation': 'user', 'form': 'withdraw', 'hops': 1, 'epsilon': 2.0}
    found = summed({**run, 'seeded': False}, **{**users, **changes})
    assert [name for name in names if name not in found] == []
    assert bool(found) == bool(names)


def test_of_links_one_step_and_one_relation():
    run = {**OF_LINKS, 'steps': 1}
    name, mu = 'private link prediction', math.sqrt(1 / 16 + 1 / 64 + 1 / 256)
    v = {**LINKS, 'steps': 1, 'mu': mu, 'mu_parts': [0.25, 0.125, 0.0625, 0.0]}
    assert fields_of(contradictions(name, v, run, {})) == []
    run = {**OF_LINKS, 'relation': 'feature'}
    v = {**LINKS, 'relation': 'feature'}
    assert fields_of(contradictions(name, v, run, {})) == ['relation']


OF_OWNERS = {
    **{**LINKS, 'relation': 'node', 'form': 'replace', 'count_std': None},
    **{'row_std': 8.0, 'noise_multiplier': 32.0, 'releases': 2},
    **{'mu_parts': [0.25, 0.0, 0.125, 0.0], 'mu': math.sqrt(5 / 64)},
}


@pytest.mark.parametrize(
    ('changes', 'names'),
    [
        ({}, []),
        # A record that is withdrawn moves half as far.
        ({'form': 'withdraw'}, ['mu', 'mu_parts']),
        (
            {
                'form': 'withdraw',
                'mu_parts': [0.125, 0.0, 0.0625, 0.0],
                'mu': math.sqrt(5 / 256),
            },
            [],
        ),
        ({'form': 'either'}, ['form']),
        ({'count_std': 8.0}, ['count_std']),
        ({'relation': 'edge', 'count_std': 8.0, 'releases': 3}, None),
        ({'steps': 9}, ['steps', 'mu', 'mu_parts']),
        ({'releases': 3}, ['releases']),
        (
            {
                'mu_parts': [0.25, 0.0, 0.125, 0.5],
                'mu': math.sqrt(21 / 64),
                'releases': 3,
            },
            [],
        ),
        ({'mu_parts': [0.25, 0.125, 0.125, 0.0]}, ['mu_parts']),
    ],
    ids=str,
)
def test_of_links_of_owners(changes, names):
    run = {**OF_LINKS, 'relation': 'node'}
    v = {**OF_OWNERS, **changes}
    found = contradictions('private link prediction', v, run, {})
    if names is None:
        assert {'relation', 'form', 'mu'} <= {*fields_of(found)}
    else:
        assert fields_of(found) == names


@pytest.mark.parametrize(
    'changes',
    [{'row_std': 0.0}, {'count_std': 0}, {'releases': 2}, {'steps': 0}],
    ids=str,
)
def test_what_is_no_number_of_links_is_refused(changes):
    v = {**LINKS, **changes}
    with pytest.raises(ValueError, match=next(iter(changes))):
        list(contradictions('private link prediction', v, OF_LINKS, {}))


# 20 nodes, a deviation of 1/8 and a penalty of 1/2: bounds over 10 are shifts.
NODES = {
    'epsilon': 1.0,
    'epsilon_transcript': 1.5,
    'target_epsilon': 2.0,
    'delta': 1e-4,
    'noise': 'output',
    'release_std': 0.125,
    'lam': 0.5,
    'num_train': 20,
    'residual': 0.25,
    'bound': 0.5,
    'budget': 4.0,
    'distance_bound': 0.05,
    'history': [0.25, 0.125],
    'seeded': True,
    'secure': False,
}
OF_NODES = {
    'noise': 'output',
    'release_std': 0.125,
    'epsilon': 2.0,
    'delta': 1e-4,
    'lam': 0.5,
    'seed': 0,
}
PAID = {'residual': [1.0, 0.5]}
# 20 graphs: the bound is the shift over the deviation.
GRAPHS = {
    **{name: NODES[name] for name in NODES if name != 'num_train'},
    'num_graphs': 20,
    'releases': 2,
    'bound': 0.5,
    'residual': 0.625,
    'distance_bound': 0.0625,
    'history': [0.25, 0.5],
}
OF_GRAPHS = {'epsilon': 2.0, 'lam': 0.5}
SHIFTS = {'shift': [0.25, 0.5]}


@pytest.mark.parametrize(
    ('changes', 'run', 'paid', 'names'),
    [
        ({}, {}, PAID, []),
        ({'seeded': False, 'secure': True}, {}, PAID, ['seeded']),
        ({'seeded': False, 'secure': True}, {'seed': None}, PAID, []),
        ({'seeded': False}, {'seed': None}, PAID, ['seeded', 'secure']),
        ({}, {'seed': None}, PAID, []),
        ({'secure': True}, {}, PAID, ['secure']),
        ({'noise': 'x'}, {'noise': 'x'}, PAID, ['noise']),
        (
            {'noise': 'objective', 'bound': 9.0},
            {'noise': 'objective'},
            PAID,
            [],
        ),
        ({'residual': 0.5 * (1 + 0.9e-9)}, {}, PAID, []),
        ({'residual': 0.5 * (1 + 1e-9)}, {}, PAID, []),
        ({'residual': 0.5 * (1 + 1.1e-9)}, {}, PAID, ['residual']),
        (
            {'bound': 0.5 * (1 + 1e-9), 'distance_bound': 0.05 * (1 + 1e-9)},
            {},
            PAID,
            [],
        ),
        (
            {'history': [0.25, 0.0625, 0.125]},
            {},
            {'residual': [1.0, 0.3, 0.5]},
            ['history'],
        ),
        (
            {'history': [0.25, 0.0625, 0.125]},
            {},
            {'residual': [1.0, 0.25, 0.5]},
            [],
        ),
        ({'distance_bound': 0.06}, {}, PAID, ['distance_bound']),
        ({'lam': 0.25}, {'lam': 0.25}, PAID, ['distance_bound']),
        ({'num_train': 10}, {}, PAID, ['distance_bound']),
        ({'num_train': 1, 'distance_bound': 1.0}, {}, PAID, []),
        ({'release_std': 0.5}, {'release_std': 0.5}, PAID, []),
        ({'budget': 2.0}, {}, PAID, ['history']),
        ({'history': []}, {}, {}, ['history']),
        (
            {'history': [0.25, 0.0625]},
            {},
            {'residual': [1, 0.25]},
            ['history'],
        ),
        # What was paid last is in no other place, what it bounds is.
        ({}, {}, {'residual': [1.0, 9.0]}, []),
        ({}, {}, {'residual': [0.9, 0.5]}, ['history']),
        ({}, {}, {'residual': [1.0]}, ['history']),
        ({}, {}, {}, ['history']),
        (
            {'bound': 0.5 * (1 + 0.9e-9)},
            {},
            PAID,
            [],
        ),
        (
            {'bound': 0.5 * (1 + 1.2e-9), 'distance_bound': 0.05},
            {},
            PAID,
            ['distance_bound', 'history'],
        ),
    ],
    ids=str,
)
def test_of_removal_from_a_node_classifier(changes, run, paid, names):
    v, run = {**NODES, **changes}, {**OF_NODES, **run}
    name = 'certified removal from a node classifier'
    found = fields_of(contradictions(name, v, run, paid))
    assert found == names


@pytest.mark.parametrize(
    ('changes', 'paid', 'names'),
    [
        ({}, SHIFTS, []),
        ({'residual': 0.625 * (1 + 0.9e-9)}, SHIFTS, []),
        ({'residual': 0.625 * (1 + 1.1e-9)}, SHIFTS, ['residual']),
        ({'distance_bound': 0.05}, SHIFTS, ['distance_bound']),
        ({'num_graphs': 10}, SHIFTS, ['residual']),
        ({'releases': 3}, SHIFTS, ['releases']),
        ({'history': [0.25, 0.4]}, SHIFTS, ['history']),
        ({}, {'shift': [0.3, 0.5]}, ['history']),
        # Nothing but 0 is the same as 0, down to 1e-300.
        (
            {'bound': 7.2e-300, 'distance_bound': 0.0, 'residual': 0.0},
            SHIFTS,
            [],
        ),
        (
            {'bound': 8.8e-300, 'distance_bound': 0.0, 'residual': 0.0},
            SHIFTS,
            ['distance_bound'],
        ),
        # These have no seed of their own.
        ({'seeded': False}, SHIFTS, []),
    ],
    ids=str,
)
def test_of_removal_of_graphs(changes, paid, names):
    v = {**GRAPHS, **changes}
    found = contradictions('certified removal', v, OF_GRAPHS, paid)
    assert fields_of(found) == names


@pytest.mark.parametrize(
    'changes',
    [{'num_graphs': 0}, {'release_std': 0.0}, {'lam': 0.0}, {'bound': -1.0}],
    ids=str,
)
def test_what_is_no_number_of_removal_is_refused(changes):
    (name,) = changes
    run = {**OF_GRAPHS, **{n: x for n, x in changes.items() if n == 'lam'}}
    with pytest.raises(ValueError, match=f'{name!r} needs'):
        list(
            contradictions(
                'certified removal', {**GRAPHS, **changes}, run, SHIFTS
            )
        )


@pytest.mark.parametrize(
    ('shards', 'stages', 'names'),
    [
        ([0, 2], {'0': 0, '2': 1}, []),
        ([2, 0], {'0': 0, '2': 1}, []),
        ([], {}, []),
        ([3], {'3': 0}, ['shards']),
        ([-1], {'-1': 0}, ['shards']),
        ([True], {'True': 0}, ['shards']),
        ([0, 1], {'0': 0}, ['stages']),
        ([0], {'1': 0}, ['stages']),
    ],
    ids=str,
)
def test_of_shards(shards, stages, names):
    v = {'shards': shards, 'stages': stages}
    run = {'num_shards': 3}
    found = contradictions('exact removal by shards', v, run, {})
    assert fields_of(found) == names


CERTIFIED = {
    'targets': 12,
    'num_robust': 10,
    'num_broken': 1,
    'num_unknown': 1,
    'scenario': 'removals',
    'undirected': False,
    'global_budget': 2,
    'alpha': 0.2,
    'K': None,
    'normalization': 'rw',
    'self_loops': False,
    'tolerance': 1e-9,
    'model': 'PPNP',
}
OF_CERTIFIED = {
    'threat': 'ThreatModel(removals, local_budget=9 in all, global_budget=2)',
    'model': "PPNP(alpha=0.2, K=None, normalization='rw', "
    'add_self_loops=False, dtype=float32)',
    'tolerance': 1e-9,
}
BOTH = OF_CERTIFIED['threat'].replace('2)', '2, undirected)')


@pytest.mark.parametrize(
    ('changes', 'run', 'names'),
    [
        ({}, {}, []),
        ({'scenario': 'additions'}, {}, ['scenario']),
        ({'scenario': 'x'}, {}, ['scenario']),
        ({}, {'threat': 'nothing, global_budget=2)'}, None),
        ({'undirected': True}, {}, ['undirected']),
        ({'undirected': True}, {'threat': BOTH}, []),
        ({}, {'threat': BOTH}, ['undirected']),
        ({'model': 'GCN'}, {}, ['model']),
        ({'model': 'PPN'}, {}, ['model']),
        ({'alpha': 0.3}, {}, ['alpha']),
        ({'self_loops': True}, {}, ['self_loops']),
        ({'self_loops': 0}, {}, ['self_loops']),
        ({'tolerance': 1e-8}, {}, ['tolerance']),
    ],
    ids=str,
)
def test_of_exact_certificates(changes, run, names):
    v, run = {**CERTIFIED, **changes}, {**OF_CERTIFIED, **run}
    if names is None:
        run['global_budget'] = 2
        names = ['scenario']
    found = contradictions('robustness certificate', v, run, {})
    assert fields_of(found) == names


COLLECTED = {
    'num_targets': 12,
    'guaranteed': 9,
    'counted': 12,
    'one_by_one': 7,
    'bound': 3.9,
    'edges': [0, 1],
    'features': [2, 0],
    'confidence': 0.99,
}


@pytest.mark.parametrize(
    ('changes', 'names'),
    [
        ({}, []),
        # 12 less the whole part of the bound, up to its rounding.
        ({'bound': 3.0}, []),
        ({'bound': 4 - 0.9e-6}, ['guaranteed']),
        ({'bound': 4 - 1.1e-6}, []),
        ({'bound': 2.9}, ['guaranteed']),
        ({'one_by_one': 10, 'guaranteed': 10}, []),
        ({'one_by_one': 10}, ['guaranteed']),
        ({'edges': [0, 1, 2]}, ['edges']),
        ({'features': [0, 1, 2]}, ['features']),
        ({'confidence': 0.9}, ['confidence']),
    ],
    ids=str,
)
def test_of_collective_certificates(changes, names):
    v, run = {**COLLECTED, **changes}, {'confidence': 0.99}
    name = 'collective certificate by smoothing'
    assert fields_of(contradictions(name, v, run, {})) == names


PROPAGATED = {
    'levels': 41,
    'eps': 0.0,
    'half': False,
    'seed': None,
    'measure': 'Measure(appnp, a=0.5, b=0.5, levels=41)',
    'level_bound': None,
    'level_tol': None,
    'standard_deviation': None,
}
CUT = {'level_tol': 0.125, 'level_bound': 0.125}
SAMPLED = {'eps': 0.25, 'standard_deviation': 0.5}


@pytest.mark.parametrize(
    ('changes', 'text', 'names'),
    [
        ({}, '', []),
        ({'levels': 4}, '', ['levels']),
        ({'half': True}, '', ['half']),
        ({'half': True}, ', half=True', []),
        ({}, ', half=True', ['half']),
        (CUT, '', []),
        ({**CUT, 'level_bound': 0.0}, '', []),
        ({**CUT, 'level_bound': 0.126}, '', ['level_bound']),
        ({**CUT, 'level_bound': -0.1}, '', ['level_bound']),
        ({**CUT, 'level_bound': None}, '', ['level_bound']),
        ({'level_bound': 0.1}, '', ['level_bound']),
        (SAMPLED, '', []),
        # Where values are estimated no levels are cut.
        ({**SAMPLED, 'level_tol': 0.125}, '', []),
        ({**SAMPLED, **CUT}, '', ['level_bound']),
        ({**SAMPLED, 'standard_deviation': None}, '', ['standard_deviation']),
        ({'standard_deviation': 0.5}, '', ['standard_deviation']),
    ],
    ids=str,
)
def test_of_propagation(changes, text, names):
    v = {**PROPAGATED, **changes}
    run = {'transform': f'AGP(appnp, eps={v["eps"]}{text})', 'seed': None}
    assert fields_of(contradictions('propagation', v, run, {})) == names


def test_of_audits():
    rows = [{'verdict': 'a', 'test': t} for t in '12']
    rows.append({'verdict': 'b', 'test': '3'})
    name, run = 'audit of a removal', {'level': 0.95}
    v = {'tests': rows, 'level': 0.95}
    for verdicts, names in (
        ({'a': ['1', '2'], 'b': ['3'], 'c': []}, []),
        ({'a': ['1', '2'], 'b': []}, ['verdicts']),
        ({'a': ['1'], 'b': ['2', '3']}, ['verdicts']),
    ):
        found = contradictions(name, {**v, 'verdicts': verdicts}, run, {})
        assert fields_of(found) == names


def test_of_votes_and_their_choices():
    v = {
        'targets': 9,
        'num_shards': 3,
        'aggregator': 'majority',
        'certified': {},
        'inference': 'isolated',
    }
    run = {'num_shards': 3, 'aggregator': {'type': 'MajorityAggregator'}}
    name = 'certificate against poisoning, by shards'
    mean = {**run, 'aggregator': {'type': 'MeanAggregator'}}
    for changes, given_run, names in (
        ({}, run, []),
        ({}, mean, ['aggregator']),
        ({'aggregator': 'mean'}, mean, []),
        ({'aggregator': 'mean'}, run, ['aggregator']),
        ({'inference': 'clean'}, run, []),
        ({'inference': 'x'}, run, ['inference']),
        ({'task': 'edges'}, run, ['task']),
        ({'task': 'graphs', 'per': 'node', 'classes': 'one'}, run, []),
    ):
        found = contradictions(name, {**v, **changes}, given_run, {})
        assert fields_of(found) == names
    with pytest.raises(ValueError, match="'aggregator' is missing and"):
        list(contradictions(name, v, {'num_shards': 3}, {}))
    # Of somebody else nothing has to be there.
    less = {'vouched': 'me', 'num_shards': 3}
    assert list(contradictions(name, less, {}, {})) == []


def test_arguments_stand_in_texts_as_well():
    run = {'model': "PPNP(alpha=0.2, name='x', shares=(1, 2), f=g)", 'n': 1}
    assert list(given(run)) == [
        ('model', run['model']),
        ('alpha', 0.2),
        ('name', 'x'),
        ('shares', (1, 2)),
        ('n', 1),
    ]
    # Of a text 2,000 signs are read: its numbers are cut there.
    for size, names in ((1994, ['t', 'a']), (1995, ['t', 'a']), (1998, ['t'])):
        text = 'x' * (size - 1) + ',a=12345'
        found = list(given({'t': text}))
        assert [name for name, _ in found] == names
        if len(names) > 1:
            assert found[1][1] == int('12345'[: 2000 - size - 2])


@pytest.mark.parametrize(
    ('name', 'values', 'sure', 'alone'),
    [
        ('private training', {}, 'epsilon noise_std', 'batch_size'),
        ('private training', {'vouched': 'me'}, '', 'epsilon'),
        ('private training', {'clipping': 'adaptive'}, 'delta', 'noise_std'),
        ('private aggregation', {}, 'noise_stds releases hops', 'rho'),
        ('private aggregation', LEDGER, 'hops', 'noise_stds releases'),
        ('private aggregation', {'predictions': 1}, 'target_epsilon', ''),
        (
            'private aggregation',
            {'predictions': True},
            'mu',
            'target_epsilon',
        ),
        ('certified removal', LEDGER, 'releases', ''),
    ],
    ids=str,
)
def test_names_of_confirmed_fields(name, values, sure, alone):
    found = confirmed(name, values)
    assert found.issuperset(sure.split())
    assert not found.intersection(alone.split())
