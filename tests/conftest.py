"""The tiers of the tests, and fixtures that several modules share."""

import contextlib
import math
import os
import time
from pathlib import Path

# Two workers with two threads each share two cores: a thread that waits for
# the other one sleeps. By default it spins, which takes five times as long.
# The OpenMP of torch reads this when it is loaded; processes inherit it.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')

import pytest
import tiers
import torch

from pyg_trust import account
from pyg_trust.agp import propagation


def pytest_addoption(parser):
    """Which tests run, and for how long: tiers.py."""
    group = parser.getgroup('tiers', tiers.__doc__)
    group.addoption('--tier', choices=tiers.LIMITS, default='local')
    group.addoption(
        '--touched',
        type=float,
        metavar='SECONDS',
        help='for so long all tests of the rooms that a change touches, too',
    )
    group.addoption(
        '--costs', action='store_true', help='measure, and write costs.csv'
    )


def pytest_configure(config):
    """Tells the tier to tests that count, draw or kill."""
    tier = config.option.tier
    config.late = time.monotonic() + (config.option.touched or 0)
    os.environ['PYG_TRUST_TIER'] = tier
    with contextlib.suppress(ImportError):
        from hypothesis import settings

        examples = tiers.EXAMPLES[tier]
        # Other examples where all is run alone: no change fails by chance.
        options = {'deadline': None, 'derandomize': tier != 'deep'}
        settings.register_profile(tier, max_examples=examples, **options)
        settings.load_profile(tier)
    whole = tier == 'deep' and not (
        config.option.keyword
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
    root = config.invocation_params.dir.relative_to(config.rootpath)
    named = tuple(str(root / arg) for arg in config.args if '::' in arg)
    ours, last, out = [], [], []
    for item in items:
        item.touched = False
        if item.nodeid in kept or (named and item.nodeid.startswith(named)):
            ours.append(item)
        elif config.option.touched and tiers.touched(item.path):
            item.touched = True
            last.append(item)
        else:
            out.append(item)
    if out:
        config.hook.pytest_deselected(items=out)
    items[:] = ours + last


def pytest_runtest_setup(item):
    """Skips what a change touches when the time for it is over."""
    if item.touched and time.monotonic() > item.config.late:
        pytest.skip(f'{item.config.option.touched:.0f} seconds are over')


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
