"""Some seconds of fuzzing.py, which runs longer under sanitizers by hand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_fuzzing():
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name('fuzzing.py'), '5', '0'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(re.match(r'(\d+) cases', done.stdout).group(1)) > 0
