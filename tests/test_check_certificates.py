"""Certificates and searches, checked by an auditor who has the report alone.

Somebody changes a report, or the code that makes it, so that more is promised
than follows from the votes and the steps that stand in it.
"""

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from auditing import forge, honest, judged, made, privacy, written
from guarantees import MADE
from procedures import cycle
from recount_renyi import fdp_again, select_again
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
from pyg_trust.check import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNPROVED,
    certificates,
    check_report,
)
from pyg_trust.loader import EgoLoader
from pyg_trust.privacy import PrivacyEngine, create_accountant
from pyg_trust.privacy.accountant import FDPAccountant
from pyg_trust.privacy.planning import search_epsilon
from pyg_trust.report import TrustReport
from pyg_trust.transforms import BoundedDegree
from pyg_trust.verify.promises import claim

VOTED = ('SmoothedCertificate', 'VoteCertificate', 'PoisonCertificate')
CERTIFICATES = (*VOTED, 'CollectiveCertificate', 'Certificate')


def more(name):
    """One more target stays, in the fields and in the sentence."""
    each = honest(name)
    counts, total = each['values']['certified'], each['values']['targets']
    most = next(k for k, n in counts.items() if n < total)
    return forge(each, certified={**counts, most: counts[most] + 1})


def of_report(report):
    (each,) = json.loads(TrustReport.of(report).to_json())['guarantees']
    return each


@pytest.mark.parametrize('name', CERTIFICATES)
def test_every_certificate_has_a_line_that_holds_and_one_that_does_not_hide(
    tmp_path, name
):
    each = honest(name)
    assert not judged(tmp_path, each)
    assert judged(tmp_path, each, status=HOLDS)
    texts = judged(tmp_path, each, status=UNKNOWN)
    texts += judged(tmp_path, each, status=UNPROVED)
    if name == 'Certificate':
        # What it rests on is a file: what is open is that it is not here.
        assert [text for text in texts if '(--witness)' in text]
        return
    (open_,) = [text for text in texts if '(--' not in text]
    assert 'again' in open_


@pytest.mark.parametrize('name', VOTED)
def test_one_target_more_than_the_votes_allow_fails(tmp_path, name):
    (text,) = judged(tmp_path, more(name))
    assert 'by the recorded votes' in text
    # Under another name nothing is said to hold.
    each = {**more(name), 'procedure': 'something better'}
    assert not judged(tmp_path, each, status=HOLDS)[1:]


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
        each = of_report(report)
        assert not judged(tmp_path, each)
        for name, stay in each['values']['certified'].items():
            claims = each['values']['answered']
            answered += [claims[name], stay]
            one = {**claims, name: claims[name] + 1}
            (text,) = judged(tmp_path, forge(each, answered=one))
            assert 'have an answer' in text
    assert len(set(answered)) > 1


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


# Of each: what is said of it, and with which answer.
SMOOTHED = 'SmoothedCertificate'
LIES = [
    # Two other classes: as many votes as two runners-up have, and one more.
    (SMOOTHED, row(298, 1, 1), '', FAILS),
    (SMOOTHED, row(297, 1, 2), 'other classes have votes', FAILS),
    (SMOOTHED, row(45, at=4), 'different numbers of cel', FAILS),
    (SMOOTHED, row(0, 0, at=4), 'nothing is there that', FAILS),
    (SMOOTHED, row(0, 0, at=6), 'nothing is there that', FAILS),
    (SMOOTHED, row(100, at=0), 'votes of 1', FAILS),
    (SMOOTHED, row(9, at=1), 'samples have voted', FAILS),
    (SMOOTHED, fields(certified={}, answered={}), 'no number of', FAILS),
    (SMOOTHED, fields(certified={}), 'nothing is certif', FAILS),
    (SMOOTHED, fields(alpha=0.01), 'of level', FAILS),
    (SMOOTHED, fields(num_abstained=1), 'are votes of 13', FAILS),
    (
        SMOOTHED,
        fields(certified={'edges_added_0_deleted_999': 0}, answered={}),
        '',
        FAILS,
    ),
    (SMOOTHED, edges_alone, 'no noise on the features', FAILS),
    (SMOOTHED, fields(flips={}), 'there is no noise', FAILS),
    (
        SMOOTHED,
        fields(flips={'edges': [0.5, 0.5], 'features': [0.05, 0.3]}),
        'no noise has',
        FAILS,
    ),
    (
        SMOOTHED,
        fields(flips={'edges': [0.0, 0.03], 'features': [0.05, 0.3]}),
        'by the recorded votes',
        FAILS,
    ),
    (SMOOTHED, fields(tallies=None), 'the report has no votes', UNPROVED),
    ('VoteCertificate', fields(num_groups=5), '4 votes were c', FAILS),
    ('VoteCertificate', row(5), '5 votes were counted', FAILS),
    ('VoteCertificate', three_classes, '', FAILS),
    ('VoteCertificate', row(3, 0, -1, 1), 'no votes make', FAILS),
    ('VoteCertificate', row(-1, 3, 2), 'no votes make', FAILS),
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
    ('Certificate', fields(witness_digest='none: lost'), 'lost', UNPROVED),
]


@pytest.mark.parametrize(('name', 'change', 'text', 'status'), LIES)
def test_what_is_wrong_with_a_certificate_is_said(
    tmp_path, name, change, text, status
):
    each = honest(name)
    change(each['values'])
    said = judged(tmp_path, forge(each), status=status)
    if text:
        assert any(text in line for line in said), said
    else:
        assert not said


def many_samples(values):
    values['num_samples'] = 10**8
    for row in values['tallies']:
        row[1:4] = [6 * 10**7, 4 * 10**7, 0]


def many_patterns(values):
    values['certified'] = {'edges_added_999_deleted_999': 0}
    values['answered'] = {}
    for row in values['tallies']:
        row[4:] = [1000] * len(row[4:])


@pytest.mark.parametrize('change', [many_samples, many_patterns])
def test_votes_that_take_long_are_not_proved_soon(tmp_path, change):
    each = honest(SMOOTHED)
    change(each['values'])
    start = time.process_time()
    assert judged(tmp_path, forge(each), status=UNPROVED)
    assert time.process_time() - start < 10


@pytest.mark.parametrize('name', ['_SUMS', '_ROWS', '_PATTERNS'])
def test_votes_are_summed_up_to_a_limit(tmp_path, monkeypatch, name):
    # Seven rows, six numbers of changes; 7 pairs of 300 samples.
    most = {
        '_SUMS': 7 * (300**2 + certificates._SUM),
        '_ROWS': 7 * 6,
        # A change has two patterns, and five have six: each by its length.
        '_PATTERNS': 2 * (2 * 2 + 2 * 2 + 6 * 6),
    }[name]
    each = honest('SmoothedCertificate')
    for limit, text in ((most, ''), (most - 1, 'too many')):
        monkeypatch.setattr(certificates, name, limit)
        said = judged(tmp_path, each, status=UNPROVED)
        assert bool(said) == bool(text)
        assert all(text in line for line in said)


# A library that lies ########################################################


def test_regions_that_certify_everything_are_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(
        votes, 'certified', lambda lower, *_, **__: torch.ones(len(lower)) > 0
    )
    report, _ = MADE['SmoothedCertificate'](tmp_path)
    texts = judged(tmp_path, of_report(report))
    assert len(texts) >= 4
    assert all('by the recorded votes' in text for text in texts)


def test_bounds_that_are_means_are_found_out(tmp_path, monkeypatch):
    def mean(counts, num_samples, alpha, side='lower'):
        return counts.double() / num_samples

    monkeypatch.setattr(smoothed, 'clopper_pearson', mean)
    report, _ = MADE['SmoothedCertificate'](tmp_path)
    texts = judged(tmp_path, of_report(report))
    assert any('by the recorded votes' in text for text in texts)


@pytest.mark.parametrize('name', ['VoteCertificate', 'PoisonCertificate'])
def test_radii_that_are_too_large_are_found_out(tmp_path, monkeypatch, name):
    from pyg_trust.certificates import divided, poisoning

    def large(*args, **kwargs):
        made = voting.certified_votes(*args, **kwargs)
        return made._replace(radius=made.radius + 1)

    for home in (divided, poisoning):
        monkeypatch.setattr(home, 'certified_votes', large)
    report, _ = MADE[name](tmp_path)
    assert judged(tmp_path, of_report(report))


# Searches and ego graphs #####################################################


def test_a_search_for_less_than_one_of_its_runs_fails(tmp_path):
    each = honest('SearchReport')
    assert judged(tmp_path, each, status=UNPROVED)
    assert not judged(tmp_path, each)
    less = 0.3 * each['values']['epsilon']
    (text,) = judged(tmp_path, forge(each, epsilon=less))
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
    made = of_report(engine.report())
    engine.close()
    return forge(made, seeded=False)


def test_the_account_of_ego_graphs_is_not_called_proved(tmp_path):
    each = egos()
    texts = judged(tmp_path, each, status=UNPROVED)
    assert any('no proof for this accountant' in text for text in texts)
    assert not judged(tmp_path, each)


@pytest.mark.parametrize(
    ('sampling', 'others'),
    [
        ('poisson', ('pld_poisson', 'pld_group_wor')),
        pytest.param(
            'without_replacement', ('pld_wor', 'pld_group', 'pld_poisson')
        ),
    ],
)
def test_the_account_of_groups_is_proved(sampling, others, tmp_path):
    each = egos(None, sampling=sampling)
    texts = judged(tmp_path, each, status=HOLDS)
    assert any('recorded steps' in text for text in texts)
    assert not judged(tmp_path, each)
    for name, value in (
        ('history', [0.0, 0.5 * each['values']['epsilon']]),
        *(('mechanism', other) for other in others),
    ):
        assert judged(tmp_path, forge(each, **{name: value})), (name, value)


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
    ledger = tmp_path / 'run.ledger'
    each = egos(ledger=ledger, **drawn)

    def of_ledger(status, **changes):
        lie = forge(each, **changes)
        texts = judged(tmp_path, lie, status=status, ledger=ledger)
        return [text for text in texts if ': ledger: ' in text]

    assert not of_ledger(FAILS)
    assert bool(of_ledger(UNPROVED)) == (drawn['accountant'] == 'rdp_fdp')
    less = each['values']['units_per_row'] - 1
    assert less > 1
    texts = of_ledger(FAILS, units_per_row=less)
    assert any(t.endswith(f'{less + 1}, {less} is claimed') for t in texts)
    # Of coins only the rate counts.
    size = each['values']['batch_size'] // 2
    texts = of_ledger(FAILS, batch_size=size)
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


def coded(folder, each, witness=None):
    path = written(folder, each)
    more = [] if witness is None else ['--witness', str(witness)]
    return main(['check', str(path), *more])


def test_an_exact_certificate_is_proved_from_its_witness(tmp_path):
    report, witness = proved(tmp_path)
    assert 0 < report.num_robust < 12
    whole = of_report(report)
    assert coded(tmp_path, whole, witness) == 0
    # Not handed in; that of other logits; damaged.
    assert coded(tmp_path, whole) == 3
    assert coded(tmp_path, whole, proved(tmp_path, 1)[1]) == 1
    content = witness.read_bytes()
    witness.write_bytes(content[: len(content) // 2])
    assert coded(tmp_path, whole, witness) == 2


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
    assert found(first) == (3, holds[0] + lacks[1])
    assert found(second) == (3, lacks[0] + holds[1])
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
    whole = of_report(report)
    assert coded(tmp_path, whole, tmp_path / 'w.npz') == 0


def test_more_than_a_witness_proves_does_not_hold(tmp_path):
    report, witness = proved(tmp_path)
    whole = of_report(report)
    assert report.verify() == 'holds'
    for lie in (
        *({'num_robust': 12, 'num_broken': 0}, {'num_broken': 12}),
        *({'undirected': True}, {'self_loops': True}, {'tolerance': 0.1}),
        *({'dtype': 'float32'}, {'K': 2}, {'normalization': 'sym'}),
        *({'global_budget': 2}, {'max_local_budget': 2}, {'alpha': 0.9}),
        *({'fixed_edges': 0}, {'scenario': 'both'}),
        *({'scenario': 'additions'}, {'witness_digest': 'none: lost'}),
    ):
        assert coded(tmp_path, forge(whole, **lie), witness) == 1, lie
        if 'max_local_budget' in lie:
            lie = {'local_budget': torch.full((12,), 7)}
        assert replace(report, **lie).verify() == 'FAILS', lie


def test_what_is_wrong_in_a_witness_by_one_bit_is_noticed(tmp_path):
    report, witness = proved(tmp_path)
    whole = of_report(report)
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
    whole = of_report(report)
    status = [1] * 5 + [0] * 4 + [-1] * 3
    monkeypatch.setattr(certificates.proofs, 'prove', lambda *_: status)
    values = {'num_robust': 5, 'num_broken': 3, **changes}
    c = claim(report.guarantee().procedure, {**whole['values'], **values})
    each = SimpleNamespace(weights_sha256='')
    said = [*certificates.check_witness(c, each, arrays)]
    assert [status for status, _ in said] == wanted
    assert f'5 of 12 are proved to stay, {c.num_robust} are' in said[0][1]
    assert f'3 of 12 are proved to be broken, {c.num_broken}' in said[1][1]
    if 'model' not in changes:
        each = SimpleNamespace(weights_sha256='m')
        said = certificates.check_witness(c, each, arrays)
        assert [status for status, _ in said] == [*wanted, UNKNOWN]
    # What would take minutes is not proved.
    monkeypatch.undo()
    monkeypatch.setattr(certificates.proofs, 'MOST', 0)
    ((status, text),) = certificates.check_witness(c, each, arrays)
    assert (status, 'takes minutes' in text) == (UNPROVED, True)


def test_a_bound_of_all_together_is_proved_to_the_last_digit(monkeypatch):
    _, report = made('CollectiveCertificate')
    each, arrays = honest('CollectiveCertificate'), report.proof.arrays
    monkeypatch.setattr(certificates.collective, 'prove', lambda _: 2)
    for more, rest in ((0, []), (1, [FAILS])):
        for off, wanted in ((0, HOLDS), (1e-9, HOLDS), (-1e-9, UNPROVED)):
            values = {**each['values'], 'bound': 2 + off}
            values['num_targets'] += more
            c = claim(each['procedure'], values)
            found = [*certificates.check_witness(c, None, arrays)]
            assert [status for status, _ in found] == [wanted, *rest]
