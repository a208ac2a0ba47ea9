"""Weights in closed form: residuals within bounds, in exact arithmetic."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch
from procedures import liked
from states import same

from pyg_trust.erasure import ErasureDesk
from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import Recommender, closed_form, recommender
from pyg_trust.unlearning.closed_form import column_bounds, factored, stepped
from pyg_trust.unlearning.similar import Row, lists_of

LAM = 3.0


def edges_of(table):
    return torch.from_numpy(np.stack(np.nonzero(table)))


def fitted(table, lam=LAM):
    model = Recommender('closed_form', lam=lam)
    return model.fit(edges_of(table), *table.shape)


def random_table(seed, num_users=14, num_items=7, share=0.4):
    return np.random.default_rng(seed).random((num_users, num_items)) < share


def exact(matrix):
    return np.array([[Fraction(x) for x in row] for row in matrix.tolist()])


def stored(inverse):
    """The inverse that a state stands for, in rationals."""
    steps = exact(inverse.steps).reshape(inverse.steps.shape)
    signs = np.array([Fraction(x) for x in inverse.signs.tolist()])
    return exact(inverse.base) + (steps * signs) @ steps.T


def normal(table, lam=LAM):
    """The matrix of the normal equations, in rationals."""
    size = table.shape[1]
    table = exact(table.astype(float))
    return table.T @ table + Fraction(lam) * exact(np.eye(size))


def inverted(matrix):
    """Gauss and Jordan, in rationals."""
    size = len(matrix)
    rows = np.concatenate([matrix, exact(np.eye(size))], 1)
    for k in range(size):
        pivot = next(i for i in range(k, size) if rows[i, k])
        rows[[k, pivot]] = rows[[pivot, k]]
        rows[k] = rows[k] / rows[k, k]
        for i in range(size):
            if i != k:
                rows[i] = rows[i] - rows[i, k] * rows[k]
    return rows[:, size:]


def check_bounds(inverse, table, lam=LAM):
    """Residual, and all columns of the weights, are within their bounds."""
    matrix, made = normal(table, lam), stored(inverse)
    residual = exact(np.eye(len(made))) - matrix @ made
    assert (residual**2).sum() <= Fraction(inverse.residual) ** 2
    true = inverted(matrix)
    gap = made / made.diagonal() - true / true.diagonal()
    for column, bound in zip(gap.T, column_bounds(inverse, lam), strict=True):
        assert (column**2).sum() <= Fraction(bound) ** 2
    return float((residual**2).sum()) ** 0.5


@pytest.mark.parametrize('kept', [2, 64])
@pytest.mark.parametrize('seed', range(3))
def test_bounds_hold_in_rationals_after_any_removals(seed, kept, monkeypatch):
    monkeypatch.setattr(recommender, 'RECOUNT', 1e9)
    monkeypatch.setattr(closed_form, 'KEPT', kept)
    table, generator = random_table(seed), np.random.default_rng(seed)
    model = fitted(table)
    check_bounds(model._model.inverse, table)
    users = generator.permutation(len(table))[:8].tolist()
    for user in users:
        request = {'users': [user]}
        pairs = np.argwhere(table)
        pairs = pairs[~np.isin(pairs[:, 0], users)]
        some = pairs[generator.integers(0, len(pairs), 2)]
        request['interactions'] = some.tolist()
        report = model.remove(**request)
        table[user], table[tuple(some.T)] = False, False
        check_bounds(model._model.inverse, table)
        assert not report.recounted
        assert not report.exact
        far = column_bounds(model._model.inverse, LAM).max()
        assert report.column_distance == far
        assert model.verify().ok
    assert len(model._model.inverse.signs) <= kept


def test_a_poor_inverse_is_bounded_as_it_is(monkeypatch):
    # Errors far above rounding, so that every term of the bound counts.
    table, lam = random_table(5, 30, 8), 5.0
    lists = lists_of(edges_of(table), *table.shape)
    true = factored(lists, 8, lam)
    noise = 1e-7 * np.random.default_rng(0).standard_normal((8, 8))
    base = true.base + noise + noise.T
    poor = true._replace(base=base)
    poor = poor._replace(residual=sum(closed_form.measured(lists, poor, lam)))
    assert check_bounds(poor, table, lam) > 1e-7
    monkeypatch.setattr(closed_form, 'KEPT', 3)
    for user in range(12):
        row = np.flatnonzero(table[user])
        stays = np.zeros(len(row), bool)
        if user % 3 == 0:
            stays[1:] = True
        table[user, row[~stays]] = False
        lists = lists_of(edges_of(table), *table.shape)
        # Without what a step adds, the bound does not hold at the end.
        before = poor.residual
        poor = stepped(poor, lists, [Row(user, row, stays)], lam)
        assert poor.residual > before
        found = check_bounds(poor, table, lam)
        assert found >= 0.01 * poor.residual


def test_a_hundred_users_of_a_larger_table_leave_within_bounds():
    # In extended precision, as rationals take too long.
    table = random_table(2, 500, 120, 0.08)
    model = fitted(table, 20.0)
    for user in range(100):
        assert not model.remove(users=[user]).recounted
        table[user] = False
    inverse = model._model.inverse
    base, steps = (a.astype(np.longdouble) for a in inverse[:2])
    whole = base + (steps * inverse.signs) @ steps.T
    gram = (table.T.astype(float) @ table).astype(np.longdouble)
    matrix = gram + np.longdouble(20) * np.eye(120)
    found = np.linalg.norm((np.eye(120) - matrix @ whole).astype(float))
    assert found < inverse.residual < 1e-8
    assert model.verify().residual == pytest.approx(found, abs=1e-12)
    again = np.linalg.inv(matrix.astype(float))
    mine = (whole / whole.diagonal()).astype(float)
    gap = np.linalg.norm(mine - again / again.diagonal(), axis=0)
    assert gap.max() < model.remove(users=[100]).column_distance < 1e-5


def test_a_flushed_model_and_a_file_have_the_bits_of_a_fit(tmp_path):
    table = random_table(1, 40, 30)
    model = fitted(table)
    model.remove(users=[3, 4], interactions=[np.argwhere(table)[0].tolist()])
    table[[3, 4]] = False
    table[tuple(np.argwhere(random_table(1, 40, 30))[0])] = False
    assert model.verify().leftovers[-1] == 'the roundings of 4 steps'
    model.save(tmp_path / 'model.pt')
    late = Recommender('closed_form', lam=LAM)
    late.load(tmp_path / 'model.pt')
    anew = fitted(table)._model.inverse
    for each in (late, model.flush()):
        assert np.array_equal(each._model.inverse.base, anew.base)
        assert each._model.inverse.residual == anew.residual
        assert each.verify().ok
        assert not each.verify().leftovers
    assert same(late.state_dict(), model.state_dict())
    with pytest.raises(ValueError, match="'lam'"):
        Recommender('closed_form').load(tmp_path / 'model.pt')
    with pytest.raises(ValueError, match='method'):
        Recommender().load(tmp_path / 'model.pt')


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


def test_rounding_recommends_nothing(monkeypatch):
    # User 0 alone ties the two halves. Without them no path is left.
    monkeypatch.setattr(recommender, 'RECOUNT', 1e9)
    table = np.zeros((20, 8), bool)
    halves = random_table(3, 20, 8, 0.6)
    table[1:10, :4], table[10:, 4:] = halves[1:10, :4], halves[10:, 4:]
    table[0] = True
    model = fitted(table)
    model.remove(users=[0])
    left = stored(model._model.inverse)[:4, 4:]
    assert left.any(), 'there is rounding to be recommended'
    best = model.recommend(range(1, 20), 8)
    assert not ((best[:9] >= 4) & (best[:9] < 8)).any()
    assert not (best[9:] < 4).any()


def test_an_item_or_many_users_factor_anew():
    table = random_table(4, 40, 20)
    model = fitted(table)
    for request in ({'items': [3]}, {'users': list(range(20))}):
        plan, report = model.plan(**request), model.remove(**request)
        assert plan.recount
        assert report.recounted
        assert report.exact
    table[:, 3], table[:20] = False, False
    anew = fitted(table)
    assert np.array_equal(model._model.inverse.base, anew._model.inverse.base)
    best = model.recommend(range(20, 40), 20)
    assert not (best == 3).any()
    assert torch.equal(best, anew.recommend(range(20, 40), 20))
    counts = model.counts([0, 5])
    assert counts.tolist() == (table[:, [0, 5]].T @ table.astype(int)).tolist()


def test_a_step_that_is_not_possible_factors_anew(monkeypatch):
    table = random_table(4, 40, 20)
    model = fitted(table)
    # An inverse that does not know the user who goes.
    held = model._model
    small = held.inverse._replace(base=np.eye(20))
    model._model = held._replace(inverse=small)
    report = model.remove(users=[0])
    assert report.recounted
    assert model.verify().ok
    lost = model._model.inverse._replace(residual=1.0)
    model._model = model._model._replace(inverse=lost)
    assert model.remove(users=[1]).recounted


@pytest.mark.parametrize('part', ['lists', 'steps', 'base', 'sign'])
def test_verification_finds_what_is_planted(part, monkeypatch):
    table = random_table(6, 40, 30)
    model = fitted(table)
    if part == 'lists':
        # The lists without the inverse.
        monkeypatch.setattr(
            recommender, 'stepped', lambda inverse, *_: inverse
        )
    model.remove(users=[0])
    held = model._model
    changed = held.inverse
    if part == 'steps':
        # The inverse without its last step.
        none = np.empty((30, 0)), np.empty(0)
        changed = changed._replace(steps=none[0], signs=none[1])
    elif part == 'base':
        base = changed.base.copy()
        base[3, 4] += 1e-9
        changed = changed._replace(base=base)
    elif part == 'sign':
        changed = changed._replace(signs=-changed.signs)
    model._model = held._replace(inverse=changed)
    found = model.verify()
    assert not found.ok
    assert not found.counts_equal
    assert found.sealed
    assert 'FAILED' in found.summary()
    assert found.residual > found.residual_bound


def test_what_fails_changes_nothing(monkeypatch):
    model = fitted(random_table(6, 40, 30))
    before, inverse = model.state_dict(), model._model.inverse
    base = inverse.base.copy()
    with monkeypatch.context() as patch:
        patch.setattr(recommender, 'provenance', lambda **_: 1 / 0)
        patch.setattr(recommender, 'stepped', lambda *_: stepped(*_) and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.remove(users=[0])
    assert same(model.state_dict(), before)
    assert model._model.inverse is inverse
    assert np.array_equal(inverse.base, base)


def test_reports_state_the_distance(tmp_path):
    model = Recommender('closed_form').fit(liked(), 30, 20)
    model.save(tmp_path / 'model.pt')
    desk = ErasureDesk(tmp_path / 'desk.db')
    desk.register('likes', model, save=tmp_path / 'model.pt')
    desk.add(RemovalRequest(nodes=[4]), immediately=True)
    assert len(desk.run(confirm=True)) == 1
    desk.close()
    report = model.remove(users=[5])
    promise = report.verified(model.verify()).guarantee()
    assert 'are, by column, within' in promise.promise
    assert 'a residual of' in promise.checked[0]
    assert model.ledger.entries[-1].link == report.ledger_head
    assert promise.values['column_distance'] == report.column_distance


@pytest.mark.parametrize('far', [0.0, -1e-12, 0.5])
def test_no_report_claims_columns_nearer_than_its_residual(far):
    model = fitted(random_table(0), 2.0)
    report = dataclasses.replace(model.remove([0]), column_distance=far)
    if far == 0.5:
        # Diagonal entries of A^-1 are at most 1 / lam: |E| / lam times lam.
        report = dataclasses.replace(report, residual_bound=0.6)
    with pytest.raises(ValueError, match='column_distance'):
        report.guarantee()


def test_what_belongs_to_the_other_method_is_refused():
    with pytest.raises(ValueError, match="'exponents' can't be given"):
        Recommender('closed_form', exponents=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="'cached' can't be given"):
        Recommender('closed_form', cached=False)
    with pytest.raises(ValueError, match="'lam' can't be given"):
        Recommender(lam=3.0)
    with pytest.raises(ValueError, match="'max_items' can't be given"):
        Recommender(max_items=6)
    few = Recommender('closed_form', max_items=6)
    with pytest.raises(ValueError, match=r"'max_items'.*'paths'"):
        few.fit(edges_of(random_table(0)), 14, 7)
    for lam in (1e-14, 1e300):
        with pytest.raises(ValueError, match="'lam' needs to be another"):
            fitted(np.ones((3, 5), bool), lam)
