"""Whoever comes second is told: nothing that was acknowledged is lost."""

from pathlib import Path

import needs
import pytest
import warm

RACES = 50


@pytest.mark.slow
@needs.fork
@pytest.mark.parametrize('kind', ['processes', 'threads'])
@pytest.mark.parametrize('procedure', ['plain', 'removal', 'shards'])
def test_races(procedure, kind, tmp_path):
    script = Path(__file__).with_name('racing.py')
    done = warm.run(script, procedure, kind, tmp_path, str(RACES))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f'{RACES} races\n'
