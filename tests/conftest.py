"""Fixtures that several test modules share."""

import math
import os
from pathlib import Path

# Two workers with two threads each share two cores: a thread that waits for
# the other one sleeps. By default it spins, which takes five times as long.
# The OpenMP of torch reads this when it is loaded; processes inherit it.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')

import pytest
import torch

from pyg_trust import account
from pyg_trust.functional import propagation


def pytest_collection_modifyitems(config, items):
    """Tests marked slow run where CI or FULL_TEST is set, or by -m slow."""
    asked = any(os.environ.get(name) for name in ('CI', 'FULL_TEST'))
    if asked or 'slow' in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason='slow: set CI=1')
    for item in items:
        if item.get_closest_marker('slow'):
            item.add_marker(skip)


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
