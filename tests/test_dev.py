"""dev.py where the index of torch for CPUs is out of reach."""

import importlib.util
import sys

import pytest
from package import EXAMPLES

# Stands for Python and its pip: takes calls down, knows torch once a pip has
# installed it, and has no way to an index that is named.
PIP = """\
import json, os, sys
from pathlib import Path
here = Path(__file__).parent
if '-c' in sys.argv:
    print((here / 'torch').read_text())
    sys.exit()
with open(here / 'calls', 'a') as file:
    file.write(json.dumps(sys.argv[1:]) + '\\n')
if '--dry-run' in sys.argv:
    needs = ['nvidia-cublas; platform_system == "Linux"']
    print(json.dumps({'install': [{'metadata': {'requires_dist': needs}}]}))
elif '--index-url' in sys.argv and not (here / 'reached').exists():
    sys.exit(1)
else:
    (here / 'torch').write_text('2.13.0')
"""


@pytest.fixture
def env(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location(
        'dev', EXAMPLES.parent / 'dev.py'
    )
    dev = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, 'dev', dev)
    spec.loader.exec_module(dev)
    monkeypatch.setattr(dev, 'has_gpu', lambda: False)
    (tmp_path / 'pip.py').write_text(PIP)
    env = dev.Environment(tmp_path)
    env.python = tmp_path / 'python'
    env.python.write_text(
        f'#!/bin/sh\nexec {sys.executable} {tmp_path}/pip.py "$@"\n'
    )
    env.python.chmod(0o755)
    return env


@pytest.mark.parametrize('reached', [True, False])
def test_torch_comes_from_the_default_index_then(
    env, capfd, tmp_path, reached
):
    if reached:
        (tmp_path / 'reached').touch()
    assert env.torch() == '2.13.0'
    calls = (tmp_path / 'calls').read_text().splitlines()
    assert len(calls) == (2 if reached else 3)  # the first one only asks
    assert '--index-url' in calls[1]
    assert ('GB' in capfd.readouterr().out) is not reached
    assert reached or '--index-url' not in calls[2]


def test_torch_that_is_there_is_kept(env, tmp_path):
    (tmp_path / 'torch').write_text('2.12.1+cpu')
    assert env.torch() == '2.12.1+cpu'
    assert not (tmp_path / 'calls').exists()


def test_the_time_is_said_before_anything_is_done(env, monkeypatch):
    dev = sys.modules[type(env).__module__]
    monkeypatch.setattr(dev.os, 'cpu_count', lambda: 2)
    for arguments, tier, minutes in [
        (['-k', 'walks'], 'local', 6),
        (['--tier=ci', '--touched=600'], 'ci', 11),
        (['--tier=ci', '--tier=deep'], 'deep', 26),
    ]:
        assert dev.tier_of(arguments) == tier
        said = dev.estimate(env, tier)
        assert f'tier {tier}: about {minutes} minutes' in said
        assert 'after 4 or more of installing' in said
    env.stamp.touch()
    assert 'installing' not in dev.estimate(env, 'ci')
