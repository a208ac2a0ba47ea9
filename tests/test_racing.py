"""Whoever comes second is told: nothing that was acknowledged is lost."""

import subprocess
import sys
from pathlib import Path

import needs
import pytest

RACES = 50


@pytest.mark.slow
@needs.fork
@pytest.mark.parametrize('kind', ['processes', 'threads'])
@pytest.mark.parametrize('procedure', ['plain', 'removal', 'shards'])
def test_races(procedure, kind, tmp_path):
    script = Path(__file__).with_name('racing.py')
    done = subprocess.run(
        [sys.executable, script, procedure, kind, tmp_path, str(RACES)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f'{RACES} races\n'
