"""Some seconds of fuzzing.py, which runs longer under sanitizers by hand."""

import re
from pathlib import Path

import warm


def test_fuzzing():
    done = warm.run(Path(__file__).with_name('fuzzing.py'), '5', '0')
    assert done.returncode == 0, done.stderr
    assert int(re.match(r'(\d+) cases', done.stdout).group(1)) > 0
