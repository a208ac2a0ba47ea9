"""Whatever kills a process, no promise is broken afterwards."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 70 if os.environ.get('FULL_TEST') == '1' else 10


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
@pytest.mark.parametrize('procedure', ['removal', 'training', 'shards'])
def test_killing(procedure, tmp_path):
    script = Path(__file__).with_name('killing.py')
    done = subprocess.run(
        [sys.executable, script, procedure, tmp_path, str(KILLS), '0'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r'(\d+) kills, (\d+) acknowledged', done.stdout)
    assert int(found.group(1)) == KILLS
    assert int(found.group(2)) > 0
