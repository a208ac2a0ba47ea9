"""Whatever kills a process, no promise is broken afterwards."""

import re
from pathlib import Path

import needs
import pytest
import tiers
import warm


@pytest.mark.sentinel
@needs.fork
@pytest.mark.parametrize(
    'procedure',
    [
        *('removal', 'training', 'shards', 'columns', 'release', 'fitting'),
        *('linking', 'records', 'paths', 'pairs'),
    ],
)
def test_killing(procedure, tmp_path):
    # The others have moments of many kinds.
    few = procedure not in ('columns', 'release', 'fitting', 'paths')
    kills = (10 if few else 20) if tiers.deep() else 3
    script = Path(__file__).with_name('killing.py')
    done = warm.run(script, procedure, tmp_path, str(kills), '0')
    assert done.returncode == 0, done.stderr
    found = re.search(r'(\d+) kills, (\d+) acknowledged', done.stdout)
    assert int(found.group(1)) == kills
    assert int(found.group(2)) > 0
