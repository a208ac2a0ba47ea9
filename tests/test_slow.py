"""Tests marked slow wait for CI, and are run there."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / '.ci' / 'run'


@pytest.mark.slow
def of_a_kind():
    """Stands for a test that takes long."""


class Item:
    def __init__(self, *marks):
        self.marks, self.added = marks, []

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark):
        self.added.append(mark.name)


class Config:
    def __init__(self, markexpr):
        self.option, self.markexpr = self, markexpr


@pytest.mark.parametrize(
    ('variables', 'markexpr', 'runs'),
    [
        ({}, '', False),
        ({'CI': ''}, '', False),
        ({}, 'not sparse', False),
        ({'CI': '1'}, '', True),
        ({'CI': 'true'}, 'not sparse', True),
        ({'FULL_TEST': '1'}, '', True),
        ({}, 'slow', True),
    ],
)
def test_they_run_where_they_are_asked_for(
    monkeypatch, pytestconfig, variables, markexpr, runs
):
    home = str(Path(__file__).with_name('conftest.py'))
    conftest = pytestconfig.pluginmanager.get_plugin(home)
    for name in ('CI', 'FULL_TEST'):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (mark,) = of_a_kind.pytestmark
    slow, other = Item(mark), Item()
    conftest.pytest_collection_modifyitems(Config(markexpr), [slow, other])
    assert slow.added == ([] if runs else ['skip'])
    assert other.added == []


@pytest.mark.skipif(not SCRIPT.exists(), reason='a source distribution')
def test_what_is_submitted_runs_them():
    assert 'CI=1 python3 dev.py test\n' in SCRIPT.read_text()
