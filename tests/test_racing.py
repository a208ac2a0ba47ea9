"""Whoever comes second is told: nothing that was acknowledged is lost."""

from pathlib import Path

import needs
import pytest
import tiers
import warm


@pytest.mark.sentinel
@needs.fork
@pytest.mark.parametrize('kind', ['processes', 'threads'])
@pytest.mark.parametrize('procedure', ['plain', 'removal', 'shards'])
def test_races(procedure, kind, tmp_path):
    script = Path(__file__).with_name('racing.py')
    # The second of two processes is the later one in every race.
    races = 20 if kind == 'processes' and procedure != 'plain' else 50
    races = races if tiers.deep() else 5
    done = warm.run(script, procedure, kind, tmp_path, str(races))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f'{races} races\n'
