"""Weights in closed form: the bits of a fit, after any removals."""

import numpy as np
import pytest
import torch
from procedures import liked

from pyg_trust.check import FAILS, check_report
from pyg_trust.erasure import ErasureDesk
from pyg_trust.removal import RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import Recommender, recommender
from pyg_trust.unlearning.similar import factored

LAM = 3.0


def edges_of(table):
    return torch.from_numpy(np.stack(np.nonzero(table)))


def fitted(table, lam=LAM):
    model = Recommender('closed_form', weight_decay=lam)
    return model.fit(edges_of(table), *table.shape)


def random_table(seed, num_users=14, num_items=7, share=0.4):
    return np.random.default_rng(seed).random((num_users, num_items)) < share


def test_a_removal_factors_nothing_and_the_next_answer_once(monkeypatch):
    calls = []

    def counted(*given):
        calls.append(given)
        return factored(*given)

    monkeypatch.setattr(recommender, 'factored', counted)
    model = fitted(random_table(2, 40, 20))
    assert len(calls) == 1
    for user in range(5):
        assert model.plan(users=[user]).recount
        assert model.remove(users=[user]).recounted
    assert len(calls) == 1
    model.recommend([7])
    model.recommend([8])
    assert len(calls) == 2


def test_scores_are_those_of_the_exact_weights():
    table = random_table(7, 60, 25, 0.2)
    model = fitted(table, 10.0)
    model.remove(users=[1, 2])
    table[[1, 2]] = False
    true = np.linalg.inv(table.T.astype(float) @ table + 10 * np.eye(25))
    scores = table @ (np.eye(25) - true / true.diagonal())
    scores[table] = -1.0
    users = [0, *range(3, 60)]
    for user, row in zip(users, model.recommend(users, 9), strict=True):
        order = np.argsort(-scores[user], kind='stable')[:9]
        wanted = [i if scores[user, i] > 1e-9 else 25 for i in order]
        assert row.tolist() == wanted


def test_rounding_recommends_nothing():
    # Two halves that no user ties together, in a random order of items.
    for seed in range(20):
        random = np.random.default_rng(seed)
        table = random.random((40, 30)) < 0.5
        half = random.permutation(30) < 15
        table[:20, half], table[20:, ~half] = False, False
        best = fitted(table, 0.5).recommend(range(40), 30)
        for rows, other in ((best[:20], half), (best[20:], ~half)):
            assert not torch.isin(rows, torch.tensor(other).nonzero()).any()


@pytest.mark.parametrize('part', ['lists', 'base'])
def test_verification_finds_what_is_planted(part):
    model = fitted(random_table(6, 40, 30))
    held = model._model
    model.remove(users=[0])
    if part == 'lists':
        # The lists without the inverse.
        model._model = model._model._replace(inverse=held.inverse)
    else:
        model.recommend([1])
        model._model.inverse.base[3, 4] += 1e-15
    found = model.verify()
    assert not found.ok
    assert not found.counts_equal
    assert found.sealed
    assert 'FAILED' in found.summary()


def test_reports_say_that_the_bits_are_those_of_a_fit(tmp_path):
    model = Recommender('closed_form').fit(liked(), 30, 20)
    model.save(tmp_path / 'model.pt')
    desk = ErasureDesk(tmp_path / 'desk.db')
    desk.register('likes', model, save=tmp_path / 'model.pt')
    desk.add(RemovalRequest(nodes=[4]), immediately=True)
    assert len(desk.run(confirm=True)) == 1
    desk.close()
    report = model.remove(users=[5]).verified(model.verify())
    assert 'have the bits of a fit' in report.guarantee().promise
    assert model.ledger.entries[-1].link == report.ledger_head
    TrustReport.of(report).save(tmp_path / 'r.json')
    found = check_report(tmp_path / 'r.json')
    assert not [x.text for x in found if x.status == FAILS]
    bad = report.replace(column_distance=-1e-12)
    with pytest.raises(ValueError, match='column_distance'):
        bad.guarantee()


def test_what_belongs_to_the_other_method_is_refused():
    with pytest.raises(ValueError, match="'exponents' can't be given"):
        Recommender('closed_form', exponents=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="'cached' can't be given"):
        Recommender('closed_form', cached=False)
    with pytest.raises(ValueError, match="'weight_decay' can't be given"):
        Recommender(weight_decay=3.0)
    with pytest.raises(ValueError, match="'max_items' can't be given"):
        Recommender(max_items=6)
    few = Recommender('closed_form', max_items=6)
    with pytest.raises(ValueError, match=r"'max_items'.*'paths'"):
        few.fit(edges_of(random_table(0)), 14, 7)
    for lam in (1e-14, 1e300):
        with pytest.raises(
            ValueError, match="'weight_decay' needs to be another"
        ):
            fitted(np.ones((3, 5), bool), lam)


def test_a_file_of_another_setting_is_refused(tmp_path):
    fitted(random_table(1)).save(tmp_path / 'model.pt')
    with pytest.raises(ValueError, match="'weight_decay'"):
        Recommender('closed_form').load(tmp_path / 'model.pt')
    with pytest.raises(ValueError, match='method'):
        Recommender().load(tmp_path / 'model.pt')
