"""Fixtures that several test modules share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with the oracles and data beside the project, if any."""
    root = Path(__file__).resolve().parents[1]
    named = os.environ.get('PYG_TRUST_SHARED')
    folder = Path(named) if named else root.parent / 'shared'
    if not folder.is_dir():
        pytest.skip(f'needs {folder} (or PYG_TRUST_SHARED), which is missing')
    return folder
