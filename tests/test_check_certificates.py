"""Certificates and searches, checked by an auditor who has the report alone.

Somebody changes a report, or the code that makes it, so that more is promised
than follows from the votes and the steps that stand in it.
"""

import copy
import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from auditing import forged, privacy, reworded
from guarantees import MADE
from procedures import cycle
from recount_renyi import fdp_again, select_again
from recount_votes import bounds_again, radius_again, stays_again
from scipy.optimize import linprog
from scipy.stats import binom
from torch.nn import functional as F
from torch_geometric.data import Data

from pyg_trust.__main__ import main
from pyg_trust.certificates import (
    BitFlips,
    ThreatModel,
    Witness,
    certify,
    smoothed,
    votes,
    voting,
)
from pyg_trust.certificates.confidence import clopper_pearson
from pyg_trust.check import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    certificates,
    check_report,
)
from pyg_trust.check.answers import read_report
from pyg_trust.check.certificates import check_certificate
from pyg_trust.check.checker import _run
from pyg_trust.loader import EgoLoader
from pyg_trust.privacy import PrivacyEngine, create_accountant
from pyg_trust.privacy.ego_accounts import FDPAccountant
from pyg_trust.privacy.planning import search_epsilon
from pyg_trust.report import TrustReport
from pyg_trust.transforms import BoundedDegree

VOTED = ('SmoothedCertificate', 'VoteCertificate', 'PoisonCertificate')
CERTIFICATES = (*VOTED, 'CollectiveCertificate', 'Certificate')


@pytest.fixture(scope='module')
def honest(tmp_path_factory):
    """Reports in JSON, each made once."""
    kept = {}

    def make(name):
        if name not in kept:
            folder = tmp_path_factory.mktemp('made')
            torch.manual_seed(0)
            report, _ = MADE[name](folder)
            kept[name] = json.loads(TrustReport.of(report).to_json())
        return copy.deepcopy(kept[name])

    return make


def found(folder, whole):
    path = folder / 'trust.json'
    path.write_text(forged(whole))
    return check_report(path)


def failures(folder, whole):
    return [e.text for e in found(folder, whole) if e.status == FAILS]


def parts(whole):
    (each,) = whole['guarantees']
    return each, each['values']


def more(whole):
    """One more target stays, in the fields and in the sentence."""
    _, values = parts(whole)
    counts = values['certified']
    name = next(k for k, n in counts.items() if n < values['targets'])
    counts[name] += 1
    reworded(whole)
    return whole


@pytest.mark.parametrize('name', CERTIFICATES)
def test_every_certificate_has_a_line_that_holds_and_one_that_does_not_hide(
    honest, tmp_path, name
):
    lines = found(tmp_path, honest(name))[1:]
    assert not [e for e in lines if e.status == FAILS]
    assert [e for e in lines if e.status == HOLDS]
    texts = [e.text for e in lines if e.status in (UNKNOWN, UNPROVED)]
    if name == 'Certificate':
        # What it rests on is a file: what is open is that it is not here.
        assert [text for text in texts if '(--witness)' in text]
        return
    (open_,) = [text for text in texts if 'not handed in' not in text]
    assert 'again' in open_


@pytest.mark.parametrize('name', VOTED)
def test_one_target_more_than_the_votes_allow_fails(honest, tmp_path, name):
    (text,) = failures(tmp_path, more(honest(name)))
    assert 'by the recorded votes' in text


def test_one_answer_more_than_the_votes_allow_fails(tmp_path):
    # As many as are certified passed unseen before.
    class Held(torch.nn.Module):
        def forward(self, x, edge_index):
            degree = edge_index[0].bincount(minlength=len(x))[:, None]
            out = torch.cat([degree > 0, degree == 0], 1)
            return out.float()

    ends = torch.arange(3)
    pairs = torch.stack([ends, ends + 1])
    data = Data(
        x=torch.ones(4, 1), edge_index=torch.cat([pairs, pairs.flip(0)], 1)
    )
    noise, options = BitFlips(edges=(0.0, 0.25)), {'num_selection': 50}
    answered = []
    for classes in ('all', 'one'):
        report = certify(
            *(Held(), data, noise), num_samples=300, classes=classes, **options
        )
        whole = json.loads(TrustReport.of(report).to_json())
        assert not failures(tmp_path, whole)
        values = parts(whole)[1]
        for name, stay in values['certified'].items():
            claimed = values['answered'][name]
            answered += [claimed, stay]
            lie = copy.deepcopy(whole)
            parts(lie)[1]['answered'][name] = claimed + 1
            (text,) = failures(tmp_path, reworded(lie))
            assert 'have an answer' in text
    assert len(set(answered)) > 1


@pytest.mark.parametrize('name', CERTIFICATES)
def test_a_sentence_that_promises_more_than_the_fields_fails(
    honest, tmp_path, name
):
    whole = honest(name)
    each, values = parts(whole)
    total = values.get('targets', values.get('num_targets'))
    # Every number in turn is another one that stands in the report as well.
    for word in dict.fromkeys(each['promise'].split()):
        if word.isdigit() and int(word) != total:
            lie = copy.deepcopy(whole)
            said = each['promise'].replace(f'{word} ', f'{total} ')
            lie['guarantees'][0]['promise'] = said
            if said != each['promise']:
                assert failures(tmp_path, lie), said


def test_a_level_that_the_confidence_does_not_leave_fails(honest, tmp_path):
    # As of each target alone, where all together are promised.
    whole = honest('SmoothedCertificate')
    values = parts(whole)[1]
    values['alpha'] *= values['targets']
    assert any('of level' in text for text in failures(tmp_path, whole))
    # As if the first look had been the only one.
    whole = honest('SmoothedCertificate')
    parts(whole)[1]['look'] = 2
    assert any('of level' in text for text in failures(tmp_path, whole))


def test_a_confidence_that_only_the_sentence_has_fails(honest, tmp_path):
    whole = honest('SmoothedCertificate')
    each, _ = parts(whole)
    each['promise'] = each['promise'].replace('0.99,', '0.9999,')
    assert failures(tmp_path, whole)


def test_fewer_samples_than_are_claimed_fail(honest, tmp_path):
    whole = honest('SmoothedCertificate')
    values = parts(whole)[1]
    values['num_samples'] *= 10
    texts = failures(tmp_path, whole)
    assert any('samples have voted where 3000' in text for text in texts)
    # Votes that are added to one class alone, until the sums are right.
    whole = honest('SmoothedCertificate')
    values = parts(whole)[1]
    values['num_samples'] *= 10
    for row in values['tallies']:
        row[1] += 2700
    # Of the run's own arguments he changes the number, too.
    for each in whole['guarantees']:
        each['origin']['arguments']['num_samples'] = 3000
    # Nothing in the report contradicts that: it is called unchecked.
    reworded(whole)
    assert not failures(tmp_path, whole)
    assert any(
        'that the model votes so' in e.text
        for e in found(tmp_path, whole)
        if e.status == UNKNOWN
    )


@pytest.mark.parametrize('name', VOTED)
def test_votes_of_other_targets_or_of_too_many_fail(honest, tmp_path, name):
    whole = honest(name)
    rows = parts(whole)[1]['tallies']
    rows[0][0] += 100
    assert any('votes of' in text for text in failures(tmp_path, whole))
    whole = honest(name)
    rows = parts(whole)[1]['tallies']
    rows[0][1] += 1
    assert any(
        'voted' in text or 'votes were' in text
        for text in failures(tmp_path, whole)
    )


HOSTILE = (None, -1, 10**400, 'x', True, [], {'a': 1}, [[1]], 'nan', 1.5)
OF_VOTES = {
    'SmoothedCertificate': (
        'tallies',
        'flips',
        'alpha',
        'confidence',
        'num_samples',
        'num_classes',
        'num_abstained',
        'look',
        'tolerance',
        'targets',
        'certified',
    ),
    'VoteCertificate': ('tallies', 'views', 'num_groups', 'certified'),
    'PoisonCertificate': ('tallies', 'num_shards', 'certified', 'targets'),
    'CollectiveCertificate': ('one_by_one', 'guaranteed', 'counted', 'edges'),
    'Certificate': ('num_robust', 'num_unknown', 'targets'),
}


@pytest.mark.parametrize(
    ('name', 'field'),
    [(name, field) for name in OF_VOTES for field in OF_VOTES[name]],
)
def test_no_field_of_a_certificate_is_a_traceback_or_holds(
    honest, tmp_path, name, field
):
    for bad in HOSTILE:
        whole = honest(name)
        parts(whole)[1][field] = bad
        statuses = [each.status for each in found(tmp_path, whole)]
        # Without votes nothing is said to hold of them. None are needed where
        # no target stays: by the key of the partition, which is secret, it
        # may be so.
        bare = field == 'tallies' and bad is None
        values = parts(whole)[1]
        none = field == 'tallies' and bad == [] and name == 'PoisonCertificate'
        none = none and not any(values['certified'].values())
        assert FAILS in statuses or bare or none, bad


def test_more_than_the_bound_leaves_is_not_guaranteed(honest, tmp_path):
    whole = honest('CollectiveCertificate')
    parts(whole)[1]['guaranteed'] += 1
    texts = failures(tmp_path, reworded(whole))
    assert any('follow from' in text for text in texts)


def test_a_certificate_under_another_name_is_not_said_to_hold(
    honest, tmp_path
):
    whole = more(honest('SmoothedCertificate'))
    parts(whole)[0]['procedure'] = 'certificate by something better'
    lines = found(tmp_path, whole)[1:]
    assert {each.status for each in lines} == {UNKNOWN}


@pytest.mark.parametrize('name', ['Certificate', 'AggregationReport'])
def test_what_somebody_vouches_for_is_not_said_to_be_checked(
    honest, tmp_path, name
):
    whole = honest(name)
    parts(whole)[1]['vouched'] = 'me'
    said = [e for e in found(tmp_path, reworded(whole)) if 'vouch' in e.text]
    assert [e.status for e in said] == [UNKNOWN]
    # In the first layout the sentence alone says so.
    del parts(whole)[1]['vouched']
    whole['schema_version'] = 1
    said = [e for e in found(tmp_path, whole) if 'vouch' in e.text]
    assert [e.status for e in said] == [UNKNOWN]


def row(*votes, at=1):
    """Other votes in the first row."""

    def change(values):
        values['tallies'][0][at : at + len(votes)] = votes

    return change


def fields(**changes):
    return lambda values: values.update(changes)


def edges_alone(values):
    values['flips'] = {'edges': values['flips']['edges']}
    values['tallies'] = [each[:6] for each in values['tallies']]


def three_classes(values):
    row(2, 1, 1)(values)
    values['certified'] = {'0': 12}


def staying(value):
    def change(values):
        values['certified'][next(iter(values['certified']))] = value

    return change


# Of each: what is said of it, and with which answer.
LIES = [
    # Two other classes: as many votes as two runners-up have, and one more.
    ('SmoothedCertificate', row(298, 1, 1), '', FAILS),
    ('SmoothedCertificate', row(297, 1, 2), 'other classes have votes', FAILS),
    ('SmoothedCertificate', row(45, at=4), 'different numbers of cel', FAILS),
    ('SmoothedCertificate', row(0, 0, at=4), 'nothing is there that', FAILS),
    ('SmoothedCertificate', row(0, 0, at=6), 'nothing is there that', FAILS),
    ('SmoothedCertificate', row(0, at=4), 'different numbers of', FAILS),
    (
        'SmoothedCertificate',
        fields(certified={}, answered={}),
        'nothing is said of any number',
        FAILS,
    ),
    ('SmoothedCertificate', fields(certified={}), 'nothing is certif', FAILS),
    ('SmoothedCertificate', fields(look=1), 'ended early has no', FAILS),
    *(
        ('SmoothedCertificate', fields(alpha=alpha), 'are of level', FAILS)
        for alpha in (0.0, -1e-9, 1.0)
    ),
    *(
        (
            'SmoothedCertificate',
            fields(**{name: value}),
            f"'{name}' needs to be a count (got {value})",
            FAILS,
        )
        for name, value in (
            ('targets', 0),
            ('look', -1),
            ('num_samples', 0),
            ('num_classes', 0),
            ('num_selection', 0),
            ('num_abstained', -1),
        )
    ),
    ('SmoothedCertificate', fields(num_abstained=1), 'are votes of 13', FAILS),
    *(
        (
            'SmoothedCertificate',
            fields(certified={name: 0}, answered={}),
            text,
            FAILS,
        )
        for name, text in (
            ('edges_added_0_deleted_999', ''),
            ('edges_added_01_deleted_0', 'is no number of changes'),
            ('edges_added_1000_deleted_0', 'is no number of changes'),
            ('edges_added_1_deleted_1_', 'is no number of changes'),
            ('nodes_added_1_deleted_1', 'is no number of changes'),
        )
    ),
    *(
        ('SmoothedCertificate', staying(bad), 'needs to be a count', FAILS)
        for bad in (-1, True, 0.5)
    ),
    ('SmoothedCertificate', edges_alone, 'no noise on the features', FAILS),
    *(
        ('SmoothedCertificate', fields(flips=flips), text, FAILS)
        for flips, text in (
            ({'edges': [0.5, 0.5], 'features': [0.05, 0.3]}, 'no noise has'),
            ({'edges': [-0.1, 0.5], 'features': [0.05, 0.3]}, 'no noise has'),
            ({'edges': [0.5, -0.1], 'features': [0.05, 0.3]}, 'no noise has'),
            ({}, 'needs to hold noise'),
            ({'edges': [0.0, 0.3], 'nodes': [0.05, 0.3]}, 'to hold noise'),
            ({'edges': [0.0, 0.4], 'features': [0.05, 0.3]}, 'flips: edges'),
        )
    ),
    ('SmoothedCertificate', fields(undirected=False), 'flips: edges', FAILS),
    (
        'SmoothedCertificate',
        fields(tallies=None),
        'the report has no votes',
        UNPROVED,
    ),
    ('VoteCertificate', fields(num_groups=5), '5 groups make 5 v', FAILS),
    ('VoteCertificate', fields(by='grid'), '4 groups make 16 v', FAILS),
    ('VoteCertificate', fields(certified={'01': 0}), 'is no count', FAILS),
    ('VoteCertificate', fields(certified={'1' * 11: 0}), 'no count', FAILS),
    ('VoteCertificate', fields(certified={'1' * 10: 0}), '', FAILS),
    ('VoteCertificate', row(5), '5 votes were counted', FAILS),
    ('VoteCertificate', three_classes, '', FAILS),
    ('VoteCertificate', row(3, 0, -1, 1), 'no votes make', FAILS),
    ('VoteCertificate', row(-1, 3, 2), 'no votes make', FAILS),
    ('VoteCertificate', row(3, 2, -1, -1), 'no votes make', FAILS),
    ('VoteCertificate', row(4, -1, -1), 'no votes make', FAILS),
    ('VoteCertificate', row(13, at=0), 'votes of 13 targets', FAILS),
    ('VoteCertificate', fields(tallies=None), 'has no votes', UNPROVED),
    ('VoteCertificate', fields(vote='mean'), 'has no table', UNKNOWN),
    ('PoisonCertificate', fields(num_shards=4), '3 votes were c', FAILS),
    (
        'PoisonCertificate',
        fields(tallies=[[39, 2, 1, -1, 0]], certified={'0': 39}),
        '',
        FAILS,
    ),
    ('CollectiveCertificate', fields(counted=13), 'are guaranteed', FAILS),
    ('Certificate', fields(num_unknown=1), 'are 13 together, of 12', FAILS),
    (
        'Certificate',
        fields(witness_digest='none: lost'),
        'the witness is none: lost',
        UNPROVED,
    ),
]


@pytest.mark.parametrize(('name', 'change', 'text', 'status'), LIES)
def test_what_is_wrong_with_a_certificate_is_said(
    honest, tmp_path, name, change, text, status
):
    whole = honest(name)
    change(parts(whole)[1])
    path = tmp_path / 'trust.json'
    path.write_text(forged(whole))
    _, (stated,) = read_report(path)
    said = [*_run(check_certificate, stated)]
    before = [*check_certificate(read_again(tmp_path, honest(name)))]
    new = [each for each in said if each not in before]
    if text:
        assert any(text in t and s == status for s, t in new), said
    else:
        assert not any(s == status for s, _ in new), said


def read_again(folder, whole):
    path = folder / 'honest.json'
    path.write_text(forged(whole))
    return read_report(path)[1][0]


@pytest.mark.parametrize('name', ['_SUMS', '_ROWS', '_PATTERNS'])
def test_votes_are_summed_up_to_a_limit(honest, tmp_path, monkeypatch, name):
    # Seven rows, six numbers of changes; 7 pairs of 300 samples.
    most = {
        '_SUMS': 7 * (300**2 + certificates._SUM),
        '_ROWS': 7 * 6,
        # A change has two patterns, and five have six: each by its length.
        '_PATTERNS': 2 * (2 * 2 + 2 * 2 + 6 * 6),
    }[name]
    stated = read_again(tmp_path, honest('SmoothedCertificate'))
    for limit, text in ((most, ''), (most - 1, 'too many')):
        monkeypatch.setattr(certificates, name, limit)
        said = [*check_certificate(stated)]
        found = [t for s, t in said if s == UNPROVED]
        assert bool(found) == bool(text)
        assert all(text in t for t in found)


# A library that lies ########################################################


def test_regions_that_certify_everything_are_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(
        votes, 'certified', lambda lower, *_, **__: torch.ones(len(lower)) > 0
    )
    report, _ = MADE['SmoothedCertificate'](tmp_path)
    whole = json.loads(TrustReport.of(report).to_json())
    texts = failures(tmp_path, whole)
    assert len(texts) >= 4
    assert all('by the recorded votes' in text for text in texts)


def test_bounds_that_are_means_are_found_out(tmp_path, monkeypatch):
    def mean(counts, num_samples, alpha, side='lower'):
        return counts.double() / num_samples

    monkeypatch.setattr(smoothed, 'clopper_pearson', mean)
    report, _ = MADE['SmoothedCertificate'](tmp_path)
    whole = json.loads(TrustReport.of(report).to_json())
    assert any('by the recorded votes' in t for t in failures(tmp_path, whole))


@pytest.mark.parametrize('name', ['VoteCertificate', 'PoisonCertificate'])
def test_radii_that_are_too_large_are_found_out(tmp_path, monkeypatch, name):
    from pyg_trust.certificates import divided, poisoning

    def large(*args, **kwargs):
        made = voting.certified_votes(*args, **kwargs)
        return made._replace(radius=made.radius + 1)

    for home in (divided, poisoning):
        monkeypatch.setattr(home, 'certified_votes', large)
    report, _ = MADE[name](tmp_path)
    whole = json.loads(TrustReport.of(report).to_json())
    assert failures(tmp_path, whole)


# The arithmetic ##############################################################


@pytest.mark.parametrize('classes', ['all', 'one'])
def test_bounds_are_those_at_which_tails_are_the_level(classes):
    for top, other, n in ((300, 0, 300), (280, 15, 300), (9000, 900, 10000)):
        lower, upper = bounds_again(top, other, n, 3, 0.01, classes)
        level = 0.005 if classes == 'all' else 0.01
        tail = binom.sf(top - 1, n, lower)
        assert tail == pytest.approx(level, rel=1e-6)
        if classes == 'one':
            assert upper == 1
            continue
        assert binom.cdf(other, n, upper) == pytest.approx(0.01 / 6, rel=1e-6)
        ours = clopper_pearson(torch.tensor([top]), n, level)
        assert 0 <= lower - float(ours) < 1e-8


def programmed(p, regions, maximize=False):
    clean, changed = np.array(regions).T
    sign = -1 if maximize else 1
    made = linprog(
        sign * changed,
        A_eq=clean[None],
        b_eq=[p],
        bounds=[(0, 1)] * len(clean),
    )
    return sign * made.fun


@pytest.mark.parametrize(
    'change',
    [(0, 1, 0.0, 0.3), (1, 0, 0.05, 0.3), (2, 3, 0.01, 0.6), (0, 5, 0.1, 0.2)],
)
def test_who_stays_is_who_stays_by_a_linear_program(change):
    added, deleted, plus, minus = change
    # Every pattern of the bits that differ, one by one.
    patterns = np.array(np.meshgrid(*[[0, 1]] * (added + deleted)))
    regions = []
    for bits in patterns.reshape(added + deleted, -1).T:
        clean = changed = 1.0
        for at, bit in enumerate(bits):
            one, two = (plus, 1 - minus) if at < added else (1 - minus, plus)
            clean *= one if bit else 1 - one
            changed *= two if bit else 1 - two
        regions.append((clean, changed))
    pairs = [(p, b) for p in np.linspace(0.3, 0.999, 25) for b in (0.01, 0.3)]
    wanted = []
    for p, b in pairs:
        low = programmed(p, regions)
        high = programmed(min(b, 1 - p), regions, maximize=True)
        wanted.append(low > 0.5 or low > high)
    assert sum(wanted) > 0 or change[1] == 5
    assert stays_again(pairs, [change], 0.0) == wanted


@pytest.mark.parametrize('ties', ['first', 'any'])
def test_radii_are_those_of_all_ways_to_vote(ties):
    # Votes of four classes, of which the second is voted for: k of them say
    # whatever they like.
    for counts in itertools.product(range(4), range(5), range(2), range(3)):
        top, total = counts[1], sum(counts)
        if top == 0 or not wins(counts, ties):
            continue
        votes = [c for c, count in enumerate(counts) for _ in range(count)]
        made = radius_again(top, counts[0], max(counts[2:]), len(votes), ties)
        radius = max(
            k
            for k in range(total + 1)
            if all(
                wins(changed, ties)
                for j in range(k + 1)
                for changed in after(counts, j)
            )
        )
        assert made == radius, counts


def wins(counts, ties):
    rest = [counts[0], *counts[2:]]
    if ties == 'any':
        return counts[1] > max(rest)
    return counts[1] > counts[0] and counts[1] >= max(counts[2:])


def after(counts, k):
    """All counts after k votes were taken away and given anew."""
    for taken in itertools.product(*(range(count + 1) for count in counts)):
        if sum(taken) != k:
            continue
        for given in itertools.product(range(k + 1), repeat=4):
            if sum(given) == k:
                yield tuple(
                    count - t + g
                    for count, t, g in zip(counts, taken, given, strict=True)
                )


# Searches and ego graphs #####################################################


def test_a_search_for_less_than_one_of_its_runs_fails(honest, tmp_path):
    whole = honest('SearchReport')
    lines = found(tmp_path, whole)
    assert UNPROVED in {each.status for each in lines}
    assert FAILS not in {each.status for each in lines}
    parts(whole)[1]['epsilon'] *= 0.3
    (text,) = failures(tmp_path, reworded(whole))
    assert 'epsilon: ' in text


@pytest.mark.parametrize('law', [(1.0, 1.0), (10.0, 0.0), (5.0, 2.5)])
@pytest.mark.parametrize('name', ['pld_wor', 'rdp_wor', 'pld_poisson'])
def test_two_packages_agree_on_a_search(name, law):
    pytest.importorskip('dp_accounting')
    bound = create_accountant(name)
    bound.history = [(4.0, 0.05, 20), (9.0, 1.0, 1)]
    bound.spend_pure(0.1)
    ours = search_epsilon(bound, 1e-4, *law)
    again = select_again(name, bound.history, 0.1, law, 1e-4)
    assert again == pytest.approx(ours, rel=1e-3)


def egos(accountant='rdp_fdp', ledger=None, **drawn):
    torch.manual_seed(0)
    data = cycle(60)
    data.y = torch.arange(60) % 3
    data.edge_index = data.edge_index.unique(dim=1)
    del data.train_mask
    data = BoundedDegree(2, seed=0)(data)
    net = torch.nn.Linear(5, 3)
    engine = PrivacyEngine(accountant, ledger=ledger)
    model, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=EgoLoader(data, 10, 1, 2, **drawn),
        noise_multiplier=20.0,
        max_grad_norm=0.3,
        target_epsilon=50.0,
        target_delta=1e-3,
    )
    for _, batch in zip(range(4), loader, strict=False):
        optimizer.zero_grad()
        size = batch.batch_size
        out = model(batch.x)[:size]
        F.cross_entropy(out, batch.y[:size]).backward()
        optimizer.step()
    made = json.loads(TrustReport.of(engine.report()).to_json())
    engine.close()
    return made


def test_the_account_of_ego_graphs_is_not_called_proved(tmp_path):
    whole = egos()
    lines = [e for e in found(tmp_path, whole) if ': epsilon: ' in e.text]
    assert {e.status for e in lines} == {UNPROVED, HOLDS}
    assert not failures(tmp_path, whole)
    # A row in fewer graphs than it is.
    parts(whole)[1]['units_per_row'] = 1
    assert failures(tmp_path, reworded(whole))


@pytest.mark.parametrize(
    ('sampling', 'others'),
    [
        ('poisson', ('pld_poisson', 'pld_group_wor')),
        pytest.param(
            'without_replacement',
            ('pld_wor', 'pld_group', 'pld_poisson'),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_account_of_groups_is_proved(sampling, others, tmp_path):
    whole = egos(None, sampling=sampling)
    lines = [e for e in found(tmp_path, whole) if ': epsilon: ' in e.text]
    assert {e.status for e in lines} == {HOLDS}
    assert not failures(tmp_path, whole)
    epsilon = parts(whole)[1]['epsilon']
    for name, value in (
        ('units_per_row', 1),
        ('units_per_row', None),
        ('epsilon', 0.5 * epsilon),
        *(('mechanism', other) for other in others),
    ):
        forged = copy.deepcopy(whole)
        parts(forged)[1][name] = value
        assert failures(tmp_path, reworded(forged)), (name, value)


@pytest.mark.parametrize(
    'drawn',
    [
        {'accountant': None, 'sampling': 'poisson'},
        {'accountant': None, 'sampling': 'without_replacement'},
        {'accountant': 'rdp_fdp'},
    ],
    ids=str,
)
def test_a_ledger_tells_how_many_units_have_a_row(tmp_path, drawn):
    # The report was weighed by the number that it had itself: all agreed.
    whole = egos(ledger=tmp_path / 'run.ledger', **drawn)
    path = tmp_path / 'trust.json'

    def of_ledger(whole):
        path.write_text(forged(whole))
        lines = check_report(path, ledger=tmp_path / 'run.ledger')
        return [e for e in lines if ': ledger: ' in e.text]

    found = {e.status for e in of_ledger(whole)}
    proved = drawn['accountant'] is None
    assert found == ({HOLDS} if proved else {HOLDS, UNPROVED})
    values = parts(whole)[1]
    less = values['units_per_row'] - 1
    assert less > 1
    values['lam'] *= (less + 1) / less
    values['sensitivity'] *= less / (less + 1)
    values['units_per_row'] = less
    texts = [e.text for e in of_ledger(reworded(whole)) if e.status == FAILS]
    assert texts[0].endswith(f'{less + 1}, {less} is claimed')
    # Of coins only the rate counts.
    values['batch_size'] //= 2
    texts = [e.text for e in of_ledger(reworded(whole)) if e.status == FAILS]
    of_size = any('batch_size' in text for text in texts)
    assert of_size == (drawn.get('sampling') != 'poisson')


def test_ego_graphs_are_a_hypergeometric_number():
    pytest.importorskip('dp_accounting')
    account = FDPAccountant(1000, 50, 8)
    account.history = [(30.0, 0.05, 30)]
    ours = account.get_epsilon(1e-4)
    again = fdp_again(account.history, 50, 8, 1e-4)
    assert again == pytest.approx(ours, rel=1e-3)
    # All of them at every step would be one Gaussian.
    every = fdp_again([(30.0, 1.0, 30)], 50, 8, 1e-4)
    one = 2 * 8 / 30.0 * math.sqrt(30)
    assert every > one


# How it was checked ##########################################################


@pytest.mark.parametrize(
    'name',
    [
        *CERTIFICATES,
        'Certificate, global',
        'AggregationReport',
        'SearchReport',
        'PrivacyReport',
    ],
)
def test_every_promise_says_how_it_was_checked_on_its_run(
    honest, tmp_path, name
):
    each, values = parts(honest(name))
    assert each['checked']
    # The sentences of the run are no field; how units were checked is one.
    assert ('checked' in values) is (name == 'PrivacyReport')


def test_what_was_not_tried_out_is_not_said(tmp_path):
    threat = ThreatModel(cycle(8), 'removals', local_budget=1)
    report = certify(torch.rand(8, 3).double(), threat)
    assert report.guarantee().checked == ()


# A witness ###################################################################


def proved(folder, seed=0):
    """An exact certificate of logits, and its witness in a file."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.rand(12, 3, generator=generator).double()
    report = certify(logits, ThreatModel(cycle(12), local_budget=1))
    path = folder / f'{seed}.npz'
    report.proof.save(path)
    return report, path


def coded(folder, whole, witness=None):
    path = folder / 'trust.json'
    path.write_text(forged(whole))
    more = [] if witness is None else ['--witness', str(witness)]
    return main(['check', str(path), *more])


def test_an_exact_certificate_is_proved_from_its_witness(tmp_path):
    report, witness = proved(tmp_path)
    assert 0 < report.num_robust < 12
    whole = json.loads(TrustReport.of(report).to_json())
    assert coded(tmp_path, whole, witness) == 0
    # Not handed in; that of other logits; damaged.
    assert coded(tmp_path, whole) == 3
    assert coded(tmp_path, whole, proved(tmp_path, 1)[1]) == 1
    content = witness.read_bytes()
    witness.write_bytes(content[: len(content) // 2])
    assert coded(tmp_path, whole, witness) == 3


def test_each_certificate_is_proved_from_the_file_of_its_digest(tmp_path):
    # Of two in one report, the other one was said to FAIL.
    (one, first), (two, second) = proved(tmp_path), proved(tmp_path, 1)
    TrustReport.of(one, two).save(tmp_path / 'both.json')

    def found(*files):
        arguments = [f'--witness={file}' for file in files]
        code = main(['check', str(tmp_path / 'both.json'), *arguments])
        report = check_report(tmp_path / 'both.json', witness=[*files])
        return code, [
            (each.status, each.text[:1])
            for each in report
            if 'witness' in each.text
        ]

    holds = [('holds', '1')] * 2, [('holds', '2')] * 2
    lacks = [('not proved', '1')], [('not proved', '2')]
    assert found(first, second) == (0, holds[0] + holds[1])
    assert found(second, first) == (0, holds[0] + holds[1])
    assert found(first) == (2, holds[0] + lacks[1])
    assert found(second) == (2, lacks[0] + holds[1])
    # A file of neither is named.
    other = proved(tmp_path, 2)[1]
    strange = [('FAILS', 'w')]
    assert found(first, second, other) == (1, holds[0] + holds[1] + strange)
    assert found(other) == (1, lacks[0] + lacks[1] + strange)
    for wrong in (3, [first, 3]):
        with pytest.raises(TypeError, match="'witness'"):
            check_report(tmp_path / 'both.json', witness=wrong)
    # Of a promise that is no certificate nothing is missing.
    for reports, code in (((privacy(),), 1), ((privacy(), one), 0)):
        TrustReport.of(*reports).save(tmp_path / 'both.json')
        assert found(first)[0] == code
    (said,) = check_report(tmp_path / 'both.json', witness=other)[-1:]
    assert said.text.startswith(f'witness: {other.name} is that of another')


def test_a_collective_certificate_is_found_among_witnesses(tmp_path):
    exact, first = proved(tmp_path)
    made, _ = MADE['CollectiveCertificate'](tmp_path)
    made.proof.save(tmp_path / 'second.npz')
    TrustReport.of(exact, made).save(tmp_path / 'both.json')
    found = check_report(
        tmp_path / 'both.json', witness=[tmp_path / 'second.npz', first]
    )
    said = [
        (each.status, each.text[:1])
        for each in found
        if 'witness' in each.text
    ]
    assert said == [('holds', '1')] * 2 + [('holds', '2')]


@pytest.mark.parametrize('undirected', [False, True])
@pytest.mark.parametrize('scenario', ['additions', 'both'])
def test_additions_are_in_the_witness(tmp_path, scenario, undirected):
    budget = torch.ones(12, dtype=torch.int64)
    budget[3:5] = 0
    threat = ThreatModel(
        cycle(12), scenario, local_budget=budget, undirected=undirected
    )
    report = certify(torch.rand(12, 3).double(), threat)
    report.proof.save(tmp_path / 'w.npz')
    whole = json.loads(TrustReport.of(report).to_json())
    assert coded(tmp_path, whole, tmp_path / 'w.npz') == 0


@pytest.mark.parametrize(
    ('lie', 'code'),
    [
        ({'num_robust': 12, 'num_broken': 0, 'num_unknown': 0}, 1),
        ({'undirected': True}, 1),
        ({'self_loops': True}, 1),
        ({'tolerance': 0.1}, 1),
        ({'dtype': 'float32'}, 1),
        ({'global_budget': 2}, 1),
        ({'max_local_budget': 2}, 1),
        ({'alpha': 0.9}, 1),
        ({'fixed_edges': 0}, 1),
        ({'scenario': 'both'}, 1),
        ({'scenario': 'additions'}, 1),
        ({'witness_digest': 'none: it was lost'}, 1),
    ],
)
def test_more_than_a_witness_proves_does_not_hold(tmp_path, lie, code):
    report, witness = proved(tmp_path)
    whole = json.loads(TrustReport.of(report).to_json())
    parts(whole)[1].update(lie)
    assert coded(tmp_path, reworded(whole), witness) == code


def test_what_is_wrong_in_a_witness_by_one_bit_is_noticed(tmp_path):
    report, witness = proved(tmp_path)
    whole = json.loads(TrustReport.of(report).to_json())
    arrays = Witness.load(witness).arrays
    arrays['scores'][0, 0] = np.nextafter(arrays['scores'][0, 0], 9.0)
    np.savez(tmp_path / 'other.npz', **arrays)
    assert coded(tmp_path, whole, tmp_path / 'other.npz') == 1


@pytest.mark.parametrize(
    ('changes', 'wanted'),
    [
        ({}, [HOLDS, HOLDS]),
        ({'num_robust': 4, 'num_broken': 0}, [HOLDS, HOLDS]),
        # More than is proved, up to what is refuted.
        ({'num_robust': 6}, [UNPROVED, HOLDS]),
        ({'num_robust': 9}, [UNPROVED, HOLDS]),
        ({'num_robust': 10}, [FAILS, HOLDS]),
        ({'num_broken': 4}, [HOLDS, UNPROVED]),
        ({'num_broken': 7}, [HOLDS, UNPROVED]),
        ({'num_broken': 8}, [HOLDS, FAILS]),
        # Whose logits they are is in no witness.
        ({'model': 'PPNP'}, [HOLDS, HOLDS, UNKNOWN]),
    ],
)
def test_what_is_claimed_of_targets_is_what_is_proved(
    tmp_path, monkeypatch, changes, wanted
):
    report, witness = proved(tmp_path)
    arrays = Witness.load(witness).arrays
    whole = json.loads(TrustReport.of(report).to_json())
    each = read_again(tmp_path, whole)
    status = [1] * 5 + [0] * 4 + [-1] * 3
    monkeypatch.setattr(certificates, 'prove', lambda *_: status)
    each.values.update({'num_robust': 5, 'num_broken': 3, **changes})
    said = [*certificates.check_witness(each, arrays)]
    assert [status for status, _ in said] == wanted
    robust, broken = each.values['num_robust'], each.values['num_broken']
    assert f'5 of 12 are proved to stay, {robust} are' in said[0][1]
    assert f'3 of 12 are proved to be broken, {broken} are' in said[1][1]
    if 'model' not in changes:
        said = certificates.check_witness(replace(each, model='m'), arrays)
        assert [status for status, _ in said] == [*wanted, UNKNOWN]


def test_a_witness_that_takes_minutes_is_not_proved(tmp_path, monkeypatch):
    report, witness = proved(tmp_path)
    arrays = Witness.load(witness).arrays
    whole = json.loads(TrustReport.of(report).to_json())
    monkeypatch.setattr(certificates, 'MOST', 0)
    each = read_again(tmp_path, whole)
    ((status, text),) = certificates.check_witness(each, arrays)
    assert (status, 'takes minutes' in text) == (UNPROVED, True)


def test_a_bound_of_all_together_is_proved_to_the_last_digit(
    tmp_path, monkeypatch
):
    report, _ = MADE['CollectiveCertificate'](tmp_path)
    whole = json.loads(TrustReport.of(report).to_json())
    each, arrays = read_again(tmp_path, whole), report.proof.arrays
    monkeypatch.setattr(certificates.collective, 'prove', lambda _: 2)
    for more, rest in ((0, []), (1, [FAILS])):
        each.values['num_targets'] += more
        for off, wanted in ((0, HOLDS), (1e-9, HOLDS), (-1e-9, UNPROVED)):
            each.values['bound'] = 2 + off
            found = [*certificates.check_witness(each, arrays)]
            assert [status for status, _ in found] == [wanted, *rest]


@pytest.mark.parametrize(
    ('bound', 'most'),
    [(2.5, 10), (2.0, 10), (2 - 1e-7, 10), (2 - 1.5e-6, 11), (0.0, 12)],
)
def test_a_part_of_a_prediction_does_not_break(bound, most):
    values = {'counted': 12, 'one_by_one': 0, 'num_targets': 12}
    for guaranteed, wanted in ((most, HOLDS), (most + 1, FAILS)):
        values |= {'guaranteed': guaranteed, 'bound': bound}
        each = SimpleNamespace(values=values)
        (status, _), (alone, _) = certificates._collective(each)
        assert (status, alone) == (wanted, UNKNOWN)
