"""The tiers: what runs by cost, by mark and by commit."""

import pytest
import tiers


class Item:
    """Stands for a test: its id, marks and fixtures."""

    def __init__(self, nodeid, *marks, fixtures=()):
        self.nodeid, self.marks = nodeid, {mark.name: mark for mark in marks}
        self.fixturenames = fixtures

    def get_closest_marker(self, name):
        return self.marks.get(name)


@pytest.fixture
def costs(tmp_path, monkeypatch):
    file = tmp_path / 'costs.csv'
    file.write_text(
        'test,rows,seconds\na.py::dear,1,3\na.py::many,10,2.0\n'
        'a.py::some[9],1,0.9\na.py::all,4,4.0\n'
        'a.py::made (fixture),1,1.0\n'
    )
    monkeypatch.setattr(tiers, 'COSTS', file)
    return file


def rows(name, number, *marks):
    return [Item(f'a.py::{name}[{i}]', *marks) for i in range(number)]


def number(items, tier, commit='c'):
    return len(tiers.chosen(items, tier, commit))


def test_a_tier_takes_what_is_cheap_and_some_rows_of_the_rest(costs):
    expected = {
        (Item('a.py::dear'),): (0, 0, 1),
        (Item('a.py::new'),): (1, 1, 1),
        (Item('a.py::new', fixtures=('made',)),): (0, 1, 1),
        (Item('b.py::new', fixtures=('made',)),): (1, 1, 1),
        tuple(rows('many', 10)): (2, 10, 10),
        tuple(rows('some', 10)): (9, 10, 10),
        tuple(rows('all', 4)): (0, 2, 4),
    }
    for items, counts in expected.items():
        for tier, count in zip(tiers.LIMITS, counts, strict=True):
            assert number(list(items), tier) == count, (items[0].nodeid, tier)


def test_every_row_comes_round(costs):
    items = rows('many', 10)
    taken = [tiers.chosen(items, 'local', str(i)) for i in range(60)]
    assert set.union(*taken) == {item.nodeid for item in items}
    assert taken[0] == tiers.chosen(items[::-1], 'local', '0')


def test_sentinels_run_where_changes_are_checked(costs):
    sentinel = pytest.mark.sentinel
    assert number([Item('a.py::dear', sentinel.mark)], 'ci') == 1
    assert number([Item('a.py::dear', sentinel.mark)], 'local') == 0
    assert number(rows('all', 4, sentinel(rows=3).mark), 'ci') == 3
    assert number(rows('all', 4, sentinel.mark), 'ci') == 4


def test_tests_of_sources_run_when_these_have_changed(costs, monkeypatch):
    items = [Item('a.py::dear', pytest.mark.sources('csrc/', 'docs').mark)]
    for changed, runs in [
        ({'csrc/cuda/walk.cu', 'README.md'}, 1),
        ({'docs/index.rst'}, 1),
        ({'pyg_trust/csrc.py'}, 0),
        (set(), 0),
        (None, 1),  # nobody knows
    ]:
        monkeypatch.setattr(tiers, 'changed', lambda files=changed: files)
        assert number(items, 'ci') == runs, changed
        assert number(items, 'deep') == 1


def test_a_change_touches_the_tests_of_its_room(monkeypatch):
    tests = tiers.ROOT / 'tests'
    for file, test, yes in [
        ('pyg_trust/privacy/engine.py', 'privacy/test_loss.py', True),
        ('pyg_trust/privacy/engine.py', 'unlearning/test_node.py', False),
        ('pyg_trust/ledger.py', 'test_ledger.py', True),
        ('pyg_trust/ledger.py', 'test_graph.py', False),
        ('tests/test_graph.py', 'test_graph.py', True),
        ('csrc/cpu/walk.cpp', 'test_ops_walk.py', True),
        ('README.md', 'test_graph.py', False),
    ]:
        monkeypatch.setattr(tiers, 'changed', lambda file=file: {file})
        assert tiers.touched(tests / test) is yes, (file, test)


def test_what_is_measured_is_written_and_the_rest_is_kept(costs):
    measured = {
        'a.py::dear': 1.0,
        'a.py::cheap': 0.2,
        **{f'a.py::some[{i}]': 0.05 for i in range(10)},
        'a.py::some[3]': 4.0,
    }
    tiers.write(measured, whole=False)
    costs = tiers.read()
    assert costs['a.py::dear'] == 1.0
    assert costs['a.py::some[3]'] == 4.0
    assert costs['a.py::some'] == pytest.approx(0.05)
    assert costs['a.py::all'] == 1.0
    assert not {'a.py::cheap', 'a.py::some[9]'} & set(costs)
    tiers.write(measured, whole=True)
    assert 'a.py::all' not in tiers.read()


@pytest.mark.parametrize('known', [True, False])
def test_who_costs_half_a_second_unknown_fails_the_run(costs, known):
    class Session:
        config, exitstatus = object(), 0

    recorder = tiers.Recorder(whole=False)
    recorder.spent['a.py::dear' if known else 'a.py::new'] = 0.6
    recorder.pytest_sessionfinish(Session)
    assert Session.exitstatus == (0 if known else 1)
