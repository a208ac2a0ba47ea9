import os
from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def shared() -> Path:
    """The shared materials beside the project; skips where they are not."""
    beside = Path(__file__).resolve().parents[2] / 'shared'
    folder = Path(os.environ.get('PYG_TRUST_SHARED', beside))
    if not folder.is_dir():
        pytest.skip(f'the shared materials are not at {folder}')
    return folder
