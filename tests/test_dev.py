"""dev.py where the index of torch for CPUs is out of reach."""

import importlib.util
import sys
from pathlib import Path

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
    monkeypatch.delenv('CI', raising=False)
    monkeypatch.setattr(dev.os, 'cpu_count', lambda: 2)
    quick = dev.estimate(env)
    assert quick.startswith('about 16 minutes')
    assert 'after 3 or more of installing' in quick
    monkeypatch.setenv('CI', '1')
    assert dev.estimate(env).startswith('about 24 minutes')
    env.stamp.touch()
    monkeypatch.setattr(env, 'has_sparse', lambda: True)
    assert 'install' not in dev.estimate(env)
    assert 'sparse' not in dev.estimate(env)


def test_a_build_that_takes_long_says_so_every_minute(env, monkeypatch, capfd):
    dev = sys.modules[type(env).__module__]

    asked = []

    class Build:
        def wait(self, seconds):
            asked.append(seconds)
            if len(asked) < 4:
                raise dev.subprocess.TimeoutExpired('pip', seconds)
            return 0

    wheels = dev.Wheels.__new__(dev.Wheels)
    wheels.began, wheels.told = dev.time.monotonic() - 130, False
    assert wheels.wait('torch-sparse', Build()) == 0
    assert asked == [0, 60, 60, 60]
    said = capfd.readouterr().out.splitlines()
    assert said == ['==> torch-sparse compiles, 2 minutes so far'] * 3


@pytest.mark.parametrize('can', [True, False])
def test_headers_are_compiled_once_where_a_compiler_can(
    env, monkeypatch, tmp_path, can
):
    dev = sys.modules[type(env).__module__]
    (tmp_path / 'torch').write_text('-I/of/torch')
    compiler = tmp_path / 'compiler'
    # What follows -o is the last argument.
    body = 'for last; do :; done; echo "$@" > "$last"' if can else 'exit 1'
    compiler.write_text(f'#!/bin/sh\n{body}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv('CXX', str(compiler))
    builds, run = [], dev.subprocess.Popen

    def begun(command, **options):
        if 'wheel' not in command:
            return run(command, **options)
        builds.append((command[-1], options['env']))
        return None

    monkeypatch.setattr(dev.subprocess, 'Popen', begun)
    wheels = dev.Wheels(env)
    wheels.first.join()
    assert [name for name, _ in builds] == [*dev.SPARSE]
    for _, given in builds:
        assert ('-include' in given['CXXFLAGS']) is can
        assert given['CFLAGS'] == given['CXXFLAGS']
    if can:
        told = Path(f'{wheels.header}.gch').read_text()
        assert '-I/of/torch' in told
        assert all(flag in told for flag in wheels.FLAGS)
