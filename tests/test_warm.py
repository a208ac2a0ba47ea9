"""What runs in a process of warm.py is told from what runs in a new Python."""

import os
import signal
import subprocess
import sys

import pytest
import warm

SCRIPT = """
import atexit, json, os, sys, warnings
atexit.register(print, 'over')
here = {name for name in sys.modules if name.startswith('pyg_trust')}
print(json.dumps([
    sorted(here), __name__, sys.modules['__main__'].__dict__ is globals(),
    sys.argv, os.getcwd(), os.environ.get('MINE'), os.environ.get('HOME'),
    sys.stdin.read(), sys.path[:2], sys.flags.dont_write_bytecode,
]))
class Local: pass
import pickle; pickle.loads(pickle.dumps(Local()))
warnings.warn('heard')
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='a new Python there')
@pytest.mark.parametrize('action', [[], ['-W', 'ignore']])
def test_it_is_as_if_it_had_started_there(tmp_path, action):
    env = {'MINE': 'yes', 'PYTHONPATH': '/nowhere'}
    env |= {k: v for k, v in os.environ.items() if k.startswith('PYTHOND')}
    process = warm.Process(
        *action, '-c', SCRIPT, 'an argument', cwd=tmp_path, env=env
    )
    warmed = process.wait()
    new = subprocess.run(
        [sys.executable, *action, '-c', SCRIPT, 'an argument'],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert new.returncode == 0, new.stderr
    assert (warmed.returncode, warmed.stdout) == (0, new.stdout)
    assert ('heard' in warmed.stderr) == ('heard' in new.stderr)
    assert ('heard' in warmed.stderr) == (not action)


@pytest.mark.parametrize(
    ('code', 'status', 'said'),
    [
        ('raise SystemExit(3)', 3, ''),
        ('1 / 0', 1, 'ZeroDivisionError'),
        ('import no_such_module', 1, 'ModuleNotFoundError'),
        ('import os; os.kill(os.getpid(), 9)', -signal.SIGKILL, ''),
    ],
)
def test_its_end_is_told(code, status, said):
    done = warm.run('-c', code)
    assert done.returncode == status
    assert said in done.stderr
