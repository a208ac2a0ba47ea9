"""The tiers of the tests, and fixtures that several modules share."""

import contextlib
import hashlib
import math
import os
import pickle
import time
from pathlib import Path

# Two workers with two threads each share two cores: a thread that waits for
# the other one sleeps. By default it spins, which takes five times as long.
# The OpenMP of torch reads this when it is loaded; processes inherit it.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')

import pytest
import tiers
import torch

from pyg_trust import account, unit
from pyg_trust.functional import propagation


def pytest_addoption(parser):
    """Which tests run, and for how long: tiers.py."""
    group = parser.getgroup('tiers', tiers.__doc__)
    group.addoption('--tier', choices=tiers.LIMITS, default='local')
    group.addoption(
        '--touched',
        action='store_true',
        help='what a change concerns, and the tier ci leaves out',
    )
    group.addoption(
        '--budget', type=float, metavar='SECONDS', help='then skip the rest'
    )
    group.addoption(
        '--costs', action='store_true', help='measure, and write costs.csv'
    )


def pytest_configure(config):
    """Tells the tier to tests that count, draw or kill."""
    tier = config.option.tier
    config.late = time.monotonic() + (config.option.budget or math.inf)
    os.environ['PYG_TRUST_TIER'] = tier
    with contextlib.suppress(ImportError):
        from hypothesis import settings

        examples = tiers.EXAMPLES[tier]
        settings.register_profile(tier, max_examples=examples, deadline=None)
        settings.load_profile(tier)
    whole = tier == 'deep' and not (
        config.option.touched
        or config.option.budget
        or config.option.keyword
        or config.option.markexpr
        or config.args_source is config.ArgsSource.ARGS
    )
    if whole or config.option.costs:
        config.pluginmanager.register(tiers.Recorder(whole))


def pytest_report_header(config):
    """Names the tier."""
    others = ' '.join(tiers.LIMITS)
    return f'tier: {config.option.tier} (--tier, one of {others})'


def pytest_collection_modifyitems(config, items):
    """Leaves out what the tier leaves out."""
    commit = ''.join(tiers.git('rev-parse', 'HEAD'))
    kept = tiers.chosen(items, config.option.tier, commit)
    if config.option.touched:
        kept -= tiers.chosen(items, 'ci', commit)
        kept -= {i.nodeid for i in items if not tiers.touched(i.path)}
    root = config.invocation_params.dir.relative_to(config.rootpath)
    named = tuple(str(root / arg) for arg in config.args if '::' in arg)
    out = [
        item
        for item in items
        if item.nodeid not in kept and not item.nodeid.startswith(named or '?')
    ]
    if out:
        config.hook.pytest_deselected(items=out)
        out = {id(item) for item in out}
        items[:] = [item for item in items if id(item) not in out]


def pytest_runtest_setup(item):
    """Skips what is left when the time is over."""
    if time.monotonic() > item.config.late:
        pytest.skip(f'the {item.config.option.budget:.0f} seconds are over')


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with real data and oracles, which not every machine has."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get('PYG_TRUST_SHARED', root.parent / 'shared'))
    if not folder.is_dir():
        pytest.skip(f'needs real data and oracles in {folder}')
    return folder


@pytest.fixture(autouse=True)
def no_releases_before(monkeypatch):
    """Tests release the same small graphs: each as in a process of its own."""
    monkeypatch.setattr(account, '_RELEASED', {})


_ACCEPTED = set()


@pytest.fixture
def couplings_once(monkeypatch):
    """Tables that were searched for couplings once are not searched again.

    A unit and a loader search the same tables, and tests make the same
    tables. The search is for test_unit_couplings.py.
    """
    search = unit.check_values

    def check_values(*given, **options):
        found = hashlib.sha256(pickle.dumps((given, options))).digest()
        if found not in _ACCEPTED:
            search(*given, **options)
            _ACCEPTED.add(found)

    monkeypatch.setattr(unit, 'check_values', check_values)


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def always_push(monkeypatch):
    """On small graphs most levels would be done exactly: push instead."""
    monkeypatch.setattr(propagation, 'PULL_ABOVE', math.inf)
