"""Forged reports and ledgers: the exit code of a check is never 0.

Each of these passed with exit code 0, or was a file that loads with another
text, before.
"""

import copy
import hashlib
import json
import random
import time

import numpy as np
import pytest
import torch
from auditing import above, privacy, reworded
from guarantees import MADE
from procedures import classifier, cycle, dataset

from pyg_trust.__main__ import main
from pyg_trust.check import check_report
from pyg_trust.check.prints import left_over
from pyg_trust.check.tensors import Tensor
from pyg_trust.privacy.poisson import poisson_epsilon
from pyg_trust.removal import RemovalRequest, remove_from_data
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.verify.accounting import judge, judge_mu
from pyg_trust.verify.claims import digest

FAILED, REFUSED, OPEN = 1, 2, 3


def as_json(*reports):
    return json.loads(TrustReport.of(*reports).to_json())


def checked(folder, whole, ledger=None):
    """The exit code for a report whose digest fits whatever it says."""
    path = folder / 'trust.json'
    if 'digest' in whole:
        whole['digest'] = digest(whole)
    path.write_text(json.dumps(whole))
    more = []
    if ledger is not None:
        (folder / 'ledger.json').write_text(json.dumps(ledger))
        more = ['--ledger', str(folder / 'ledger.json')]
    return main(['check', str(path), *more])


# Certified removal ###########################################################


def of_nodes():
    left = cycle(40)
    model = NodeClassifier(lam=0.1, levels=2).fit(left)
    for nodes in ([20], [3, 9]):
        request = RemovalRequest(nodes=nodes)
        report = model.remove(request)
        left = remove_from_data(left, request.parts[0])
    return as_json(report), model.ledger.state_dict()


def of_graphs():
    model = classifier(seed=None, release_std=1e-7).fit(dataset())
    model.remove(RemovalRequest(graphs=[8]))
    report = model.remove(RemovalRequest(graphs=[9]))
    return as_json(report), model.ledger.state_dict()


@pytest.fixture(scope='module')
def removals():
    made = {'nodes': of_nodes(), 'graphs': of_graphs()}
    return lambda kind: copy.deepcopy(made[kind])


def put(**changes):
    def change(each):
        for name in changes:
            assert name in each['values']
        each['values'].update(changes)

    return change


def sentence(old, new):
    def change(each):
        assert old in each['promise']
        each['promise'] = each['promise'].replace(old, new)

    return change


def tiny_epsilon(each):
    claimed = f'({above(each["values"]["epsilon"])}, '
    sentence(claimed, '(1e-12, ')(each)


def never_saw(each):
    each['promise'] = 'the released weights provably never saw the data'


def one_epsilon_for_all(each):
    values = each['values']
    assert values['epsilon_transcript'] > values['epsilon']
    values['epsilon_transcript'] = values['epsilon']
    each['promise'] = each['promise'].split(' and all releases')[0]


def tiny_bound(each):
    each['values']['bound'] = 1e-30
    each['spent'] = dict.fromkeys(each['spent'], 1e-30)
    for amounts in each['history'].values():
        amounts[-1] = 1e-30


def lower_end(each):
    for amounts in each['history'].values():
        amounts[-1] /= 2


def huge_budget(each):
    each['values']['budget'] = 1e30
    each['budget'] = dict.fromkeys(each['budget'], 1e30)


def no_limits(each):
    each['not_covered'] = []


def drop_noise(each):
    del each['values']['noise']


REMOVALS = {
    'a sentence with epsilon 1e-12': (tiny_epsilon, FAILED),
    'a sentence that never saw the data': (never_saw, FAILED),
    'all releases at the price of one': (one_epsilon_for_all, FAILED),
    'no distance': (put(distance_bound=0.0), FAILED),
    'much noise': (put(release_std=1e3), FAILED),
    'a tiny bound': (tiny_bound, FAILED),
    'a huge budget': (huge_budget, FAILED),
    'a history with a lower end': (lower_end, FAILED),
    'no limits': (no_limits, FAILED),
    'noise of another name': (put(noise='gaussian'), FAILED),
    'noise without a name': (drop_noise, FAILED),
}


@pytest.mark.parametrize('kind', ['nodes', 'graphs'])
@pytest.mark.parametrize('name', REMOVALS)
def test_a_forged_removal_is_not_accepted(removals, tmp_path, kind, name):
    whole, ledger = removals(kind)
    change, wanted = REMOVALS[name]
    change(whole['guarantees'][0])
    assert checked(tmp_path, whole) in (wanted, REFUSED, OPEN)
    assert checked(tmp_path, whole, ledger) in (wanted, REFUSED, OPEN)


def test_a_billion_training_nodes_are_not_accepted(removals, tmp_path):
    whole, _ = removals('nodes')
    put(num_train=10**9)(whole['guarantees'][0])
    assert checked(tmp_path, whole) == FAILED


def test_a_seeded_removal_is_not_passed_off_as_secret(tmp_path):
    model = NodeClassifier(lam=0.1, levels=2, seed=0).fit(cycle(40))
    whole = as_json(model.remove(RemovalRequest(nodes=[3])))
    each = whole['guarantees'][0]
    put(seeded=False, secure=True)(each)
    each['promise'] = each['promise'].split('with secret noise, ')[1]
    assert checked(tmp_path, whole) == FAILED


def rehashed(ledger):
    """The lines with new digests: a chain that is whole."""
    link = ''
    for line in ledger['entries']:
        fields = [line[n] for n in ('action', 'spent', 'request', 'data')]
        text = json.dumps([link, *fields], sort_keys=True)
        link = line['link'] = hashlib.sha256(text.encode()).hexdigest()
    return ledger


def nothing_spent(ledger):
    for line in ledger['entries']:
        line['spent'] = 0.0


def without_the_first_removal(ledger):
    del ledger['entries'][1]


def another_name(ledger):
    ledger['entries'][1]['request'] = {'0': {'nodes': [17]}}


@pytest.mark.parametrize('kind', ['nodes', 'graphs'])
@pytest.mark.parametrize(
    'change', [nothing_spent, without_the_first_removal, another_name]
)
def test_a_ledger_that_was_written_anew_fails(
    removals, tmp_path, kind, change
):
    whole, ledger = removals(kind)
    assert len(ledger['entries']) == 3
    assert checked(tmp_path, whole, ledger) == OPEN
    change(ledger)
    assert checked(tmp_path, whole, rehashed(ledger)) == FAILED


def test_a_budget_is_not_that_of_a_ledger_with_larger_amounts(
    removals, tmp_path
):
    # Shares of a tenth of the budget, and an honest ledger: all of it agreed.
    whole, ledger = removals('nodes')
    (each,) = whole['guarantees']
    for name in ('budget', 'bound', 'distance_bound'):
        each['values'][name] /= 10
    for name in ('epsilon', 'epsilon_transcript'):
        each['values'][name] /= 5
    for amounts in each['history'].values():
        amounts[:] = [amount / 10 for amount in amounts]
    assert checked(tmp_path, reworded(whole)) == OPEN
    assert checked(tmp_path, whole, ledger) == FAILED


@pytest.mark.parametrize('kind', ['nodes', 'graphs'])
def test_an_honest_removal_is_open_without_its_data(removals, tmp_path, kind):
    whole, ledger = removals(kind)
    assert checked(tmp_path, whole) == OPEN
    assert checked(tmp_path, whole, ledger) == OPEN


# Certificates ################################################################


@pytest.fixture(scope='module')
def certificates(tmp_path_factory):
    kept = {}

    def make(name):
        if name not in kept:
            torch.manual_seed(0)
            report, _ = MADE[name](tmp_path_factory.mktemp('made'))
            kept[name] = as_json(report)
        return copy.deepcopy(kept[name])

    return make


def drop_tallies(each):
    del each['values']['tallies']


def no_cells(each):
    for row in each['values']['tallies']:
        row[4:] = [0] * len(row[4:])


def all_robust(each):
    values = each['values']
    values.update(num_robust=values['targets'], num_broken=0, num_unknown=0)
    for old, new in (('9 of', '12 of'), ('(3 have', '(0 have')):
        sentence(old, new)(each)


def nothing_breaks(each):
    values = each['values']
    old = values['guaranteed']
    values.update(bound=0.0, guaranteed=values['counted'])
    sentence(f'{old} of', f'{values["counted"]} of')(each)


def no_assumptions(each):
    each['assumptions'] = []


def other_flips(each):
    each['values']['flips']['edges'] = [0.0, 0.45]


CERTIFICATES = {
    'dropped votes': ('SmoothedCertificate', drop_tallies),
    'no votes': ('SmoothedCertificate', put(tallies=None)),
    'dropped votes of views': ('VoteCertificate', drop_tallies),
    'dropped votes of shards': ('PoisonCertificate', put(tallies=None)),
    'cells that do not exist': ('SmoothedCertificate', no_cells),
    'other words': (
        'SmoothedCertificate',
        sentence('smoothed classifier', 'classifier'),
    ),
    'words of views': ('VoteCertificate', sentence('12 nodes', '12 graphs')),
    'no assumptions': ('SmoothedCertificate', no_assumptions),
    'no assumptions of views': ('VoteCertificate', no_assumptions),
    'all robust': ('Certificate', all_robust),
    'nothing breaks together': ('CollectiveCertificate', nothing_breaks),
    'flips that the noise has not': ('SmoothedCertificate', other_flips),
}


@pytest.mark.parametrize('name', CERTIFICATES)
def test_a_forged_certificate_is_not_accepted(certificates, tmp_path, name):
    which, change = CERTIFICATES[name]
    whole = certificates(which)
    change(whole['guarantees'][0])
    assert checked(tmp_path, whole) in (FAILED, REFUSED, OPEN)


# Files #######################################################################


def test_no_damage_leaves_a_report_with_another_text(tmp_path):
    path = tmp_path / 'trust.json'
    report = TrustReport.of(privacy())
    report.save(path)
    good, draw = path.read_bytes(), random.Random(0)
    loaded = 0
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(bad))
            kind = draw.randrange(4)
            if kind == 0:
                bad[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                bad[at] = draw.choice(b'0123456789"{}[],: abc')
            elif kind == 2:
                del bad[at : at + draw.randrange(1, 40)]
            else:
                bad[at:at] = bad[at : at + draw.randrange(1, 40)]
        path.write_bytes(bytes(bad))
        try:
            found = TrustReport.load(path)
        except ValueError:
            continue
        loaded += 1
        assert found == report
    # Some damage is in white space alone.
    assert loaded > 0


@pytest.mark.parametrize('number', ['1e999', '-1e999', '1e400'])
def test_a_number_that_no_double_holds_is_refused(tmp_path, number, capsys):
    whole = as_json(privacy())
    whole['guarantees'][0]['values']['epsilon'] = 'X'
    text = json.dumps(whole).replace('"X"', number)
    path = tmp_path / 'trust.json'
    path.write_text(text)
    assert main(['check', str(path)]) == 2
    assert number in capsys.readouterr().err


@pytest.mark.parametrize('honest', [True, False])
def test_three_thousand_different_steps_are_checked_soon(tmp_path, honest):
    lines = [(4 + 1e-3 * i, 0.05, 1) for i in range(3000)]
    merged = [(4 + 0.1 * i, 0.05, 100) for i in range(30)]
    top = poisson_epsilon(merged, 1e-5, 'replace')
    report = privacy(
        mechanism='pld_poisson',
        relation='replace-one-record',
        account=lines,
        steps=3000,
        sample_rates=[[0.05, 3000]],
        noise_multiplier=4.0,
        epsilon=top if honest else 0.9 * top,
    )
    start = time.process_time()
    code = checked(tmp_path, as_json(report))
    assert time.process_time() - start < 25
    # Noise that changes is not that of the one field.
    assert code == FAILED


def test_all_of_a_budget_may_be_spent(tmp_path):
    report = privacy()
    whole = privacy(target_epsilon=report.values['epsilon'])
    assert checked(tmp_path, as_json(whole)) == 0


def test_infinite_budgets_are_texts_and_stay(tmp_path):
    whole = as_json(privacy(target_epsilon=None))
    assert whole['guarantees'][0]['budget']['epsilon'] == 'inf'
    assert checked(tmp_path, whole) == 0


# Fields of another promise ###################################################

NO_COST = {
    'mechanism': None,
    'epsilon': 0.0,
    'mu': 0.0,
    'mu_encoder': 0.0,
    'mu_aggregation': 0.0,
    'mu_head': 0.0,
}


PERSONS = ('declared_public', 'public_edges', 'joint')


@pytest.mark.parametrize(
    ('fields', 'wanted'),
    [
        # Steps at the price of releases without cost.
        (NO_COST, FAILED),
        # A unit that is there or not costs less than one that is replaced,
        # of which the sentence speaks.
        (
            {
                'mechanism': 'pld_poisson',
                'relation': 'add-or-remove-one-record',
                'epsilon': 0.7
                * poisson_epsilon([(4.0, 0.05, 6)], 1e-5, 'replace'),
                'lam': 4.0,
            },
            FAILED,
        ),
        # It tells of a ledger and names none.
        ({'ledger_head': ''}, OPEN),
        ({'sampling': 'poisson'}, FAILED),
        # Whose records they are was compared with known units alone, and
        # with the arguments of the run unless somebody vouched for it.
        ({'unit': 'graphs', 'relation': 'replace-one-graph'}, FAILED),
        ({'unit': None, 'relation': 'replace-one-graph'}, FAILED),
        (
            {
                'vouched': 'pyg_trust',
                'unit': 'persons, a row each',
                'relation': 'replace-one-person',
                'persons': dict.fromkeys(PERSONS, ()),
            },
            OPEN,
        ),
        (
            {
                'sample_rates': [[1.0, 6]],
                'account': [[1e3, 1.0, 6]],
                'noise_multiplier': 1e6,
                'lam': 5e5,
            },
            FAILED,
        ),
    ],
)
def test_training_is_not_weighed_as_something_else(tmp_path, fields, wanted):
    whole = reworded(as_json(privacy(**fields)))
    assert checked(tmp_path, whole) == wanted


def test_sums_are_not_weighed_as_steps(certificates, tmp_path):
    whole = certificates('AggregationReport')
    each = whole['guarantees'][0]
    values = {**privacy().values, **each['values'], 'seeded': False}
    values.update(mu=5.0, mu_aggregation=5.0)
    each['values'] = json.loads(json.dumps(values))
    assert checked(tmp_path, reworded(whole)) == FAILED


def test_a_ledger_of_another_procedure_checks_nothing(tmp_path, certificates):
    whole = as_json(privacy(ledger_head='0' * 64))
    state = certificates('NodeUnlearnReport')
    whole['guarantees'] += state['guarantees']
    whole = reworded(whole)
    path = tmp_path / 'trust.json'
    whole['digest'] = digest(whole)
    path.write_text(json.dumps(whole))
    (tmp_path / 'ledger').write_text(of_ledger())
    found = [
        str(each)
        for each in check_report(path, ledger=tmp_path / 'ledger')
        if '1. private training: ledger' in str(each)
    ]
    assert len(found) == 1
    assert found[0].startswith('not checked')


def of_ledger():
    model = NodeClassifier(lam=0.1, levels=2).fit(cycle(40))
    model.remove(RemovalRequest(nodes=[20]))
    return json.dumps(model.ledger.state_dict())


# Votes that nobody cast ######################################################


@pytest.mark.parametrize('which', ['VoteCertificate', 'PoisonCertificate'])
@pytest.mark.parametrize('row', ['no runner-up', 'less than none'])
def test_votes_that_nobody_cast_fail(certificates, tmp_path, which, row):
    whole = certificates(which)
    values = whole['guarantees'][0]['values']
    votes = values.get('views', values.get('num_shards'))
    top, second = (1, -1) if row == 'no runner-up' else (votes, 1)
    rest = votes - top - max(second, 0)
    values['tallies'] = [[values['targets'], top, second, -1, rest]]
    values['certified'] = {'0': values['targets']}
    assert checked(tmp_path, reworded(whole)) == FAILED


def test_answers_at_changes_of_which_nothing_stays_fail(
    certificates, tmp_path
):
    whole = certificates('SmoothedCertificate')
    values = whole['guarantees'][0]['values']
    values['answered']['edges_added_9_deleted_9'] = 12
    assert checked(tmp_path, reworded(whole)) == FAILED


@pytest.mark.parametrize(
    'fields', [{'scenario': 'any edge'}, {'scenario': 'both '}]
)
def test_a_scenario_of_another_name_fails(certificates, tmp_path, fields):
    whole = certificates('Certificate')
    whole['guarantees'][0]['values'].update(fields)
    assert checked(tmp_path, reworded(whole)) == FAILED


# Names #######################################################################


@pytest.mark.parametrize(
    'part',
    [
        *(
            {'nodes': ['3']},
            {'node': [3]},
            {'nodes': [3.5]},
            {'labels': ['3']},
        ),
        *({'edges': [['0', 1]]}, {'directed_edges': [[0, True]]}),
    ],
)
def test_a_name_that_no_graph_can_have_is_not_called_gone(part):
    edges = Tensor('torch.int64', np.array([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match="'request'"):
        list(left_over({'edge_index': edges, 'num_nodes': 5}, part, ''))


def test_of_two_nodes_with_one_name_neither_is_called_gone():
    # The last row of a name was looked at, and the first has the features.
    graph = {
        'n_id': Tensor('torch.int64', np.array([5, 5])),
        'x': Tensor('torch.float64', np.array([[1.0], [0.0]])),
    }
    with pytest.raises(ValueError, match="'n_id'"):
        list(left_over(graph, {'features': [5]}, ''))


def test_a_number_of_nodes_takes_no_memory():
    edges = Tensor('torch.int64', np.array([[0, 1], [1, 0]]))
    graph = {'edge_index': edges, 'num_nodes': 10**15}
    assert list(left_over(graph, {'nodes': [7]}, '')) == ['node 7']


# Time ########################################################################


@pytest.mark.parametrize(
    ('law', 'lines', 'epsilon'),
    [
        ('replace', [(1e-3, 0.1, 5)], 1.0),
        ('replace', [(0.1, 0.9, 1)], 800.0),
        ('wor', [(3.0, 0.5, 1 << 41)], 800.0),
    ],
)
def test_steps_that_take_long_are_not_proved_soon(law, lines, epsilon):
    start = time.process_time()
    assert judge(law, lines, epsilon, 1e-5) == 'not proved'
    assert time.process_time() - start < 10


@pytest.mark.slow
def test_a_billion_billion_steps_are_not_proved_soon():
    start = time.process_time()
    assert judge('wor', [(1, 0.5, 10**18)], 1.0, 0.5) == 'not proved'
    assert time.process_time() - start < 60


@pytest.mark.parametrize('epsilon', [1e6, 1e300])
def test_a_huge_epsilon_is_not_proved_soon(epsilon):
    assert judge_mu(1, epsilon, 1e-5) == 'not proved'


LONG = 20_000


def many_samples(values):
    values['num_samples'] = 10**8
    for row in values['tallies']:
        row[1:4] = [6 * 10**7, 4 * 10**7, 0]


def many_patterns(values):
    values['certified'] = {'edges_added_999_deleted_999': 0}
    values['answered'] = {}
    for row in values['tallies']:
        row[4:] = [1000] * len(row[4:])


def many_counts(values):
    # A bound of each takes some milliseconds, and all of them minutes.
    values['targets'] = values['num_samples'] = 2 * LONG
    values['tallies'] = [
        [1, LONG + i, LONG - i, 0, 46, 20, 28, 32] for i in range(LONG)
    ]


def many_changes(values):
    values['answered'] = {}
    values['certified'] = {
        f'edges_added_{i}_deleted_{j}': 0 for i in range(99) for j in range(99)
    }
    values['targets'] = 1000
    row = values['tallies'][0]
    values['tallies'] = [
        [1, *row[1:4], 46, 20 + i, *row[6:]] for i in range(999)
    ]


@pytest.mark.parametrize(
    'change', [many_samples, many_patterns, many_counts, many_changes]
)
def test_votes_that_take_long_are_not_proved_soon(
    certificates, tmp_path, change
):
    whole = certificates('SmoothedCertificate')
    values = whole['guarantees'][0]['values']
    values['seeded'] = False
    change(values)
    start = time.process_time()
    assert checked(tmp_path, reworded(whole)) in (FAILED, REFUSED, OPEN)
    assert time.process_time() - start < 10


def test_votes_for_many_changes_are_counted_once(certificates, tmp_path):
    # Each number of changes read all rows.
    whole = certificates('VoteCertificate')
    values = whole['guarantees'][0]['values']
    values['targets'] = LONG
    values['tallies'] = [[1, 4, 0, -1, 0] for _ in range(LONG)]
    values['certified'] = {str(i): 0 for i in range(LONG)}
    start = time.process_time()
    assert checked(tmp_path, reworded(whole)) == OPEN
    assert time.process_time() - start < 10


def test_a_curve_of_many_degrees_is_refused_soon(certificates, tmp_path):
    # Each has an epsilon of its own.
    whole = certificates('AggregationReport')
    values = whole['guarantees'][0]['values']
    values.update(relation='node_incident', max_degree=4, seeded=False)
    values['degree_curve'] = [[i, 5.0] for i in range(1, LONG)]
    start = time.process_time()
    assert checked(tmp_path, reworded(whole)) == FAILED
    assert time.process_time() - start < 10


def test_a_name_that_is_there_twice_among_many_is_found_soon(tmp_path):
    # By counting each name among all others.
    names = ','.join(f'"a{i}":1' for i in range(10 * LONG))
    (tmp_path / 'trust.json').write_text(f'{{{names},"a{LONG}":2}}')
    start = time.process_time()
    with pytest.raises(ValueError, match='is there twice'):
        check_report(tmp_path / 'trust.json')
    assert time.process_time() - start < 10


def test_a_report_of_many_promises_is_refused(certificates, tmp_path, capsys):
    whole = certificates('VoteCertificate')
    whole['guarantees'] *= 101
    assert checked(tmp_path, whole) == REFUSED
    assert 'it has more than 100 promises' in capsys.readouterr().err
