"""The examples run, on the data that is there, and print what they promise."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / 'examples'


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert 'Warning' not in done.stderr
    return done.stdout


def accuracies(output):
    rows = re.findall(
        r'^(.{28}) +(\S+) +\S+ +(\S+) +(\S+)$', output, re.MULTILINE
    )
    return {
        (name.strip(), eps): (float(error), float(accuracy))
        for name, eps, error, accuracy in rows[1:]
    }


@pytest.mark.parametrize('dataset', ['digits', 'Cora'])
def test_quickstart(dataset, tmp_path, request):
    root = tmp_path / 'data'
    if dataset != 'digits':
        shared = request.getfixturevalue('shared')
        shutil.copytree(shared / 'data/Planetoid', root)
    output = run(
        'quickstart.py', '--dataset', dataset, '--root', root, '--epochs', '20'
    )
    rows = accuracies(output)
    assert len(rows) == 9
    raw = rows['raw, no graph', '-'][1]
    for (_, eps), (error, accuracy) in rows.items():
        assert error == 0 if eps in ('0', '-') else 0 < error < 1
        # Propagation helps, whether exact or not.
        assert accuracy >= raw


def test_scattering_unlearning(shared, tmp_path):
    root = tmp_path / 'TU'
    shutil.copytree(shared / 'data/TU/PROTEINS', root / 'PROTEINS')
    output = run(
        *('scattering_unlearning.py', '--root', root, '--out', tmp_path),
        *('--datasets', 'PROTEINS', '--splits', '1'),
        *('--gin-splits', '0', '--gin-points', '0'),
    )
    # Removal with the stored noise ends where exact retraining does.
    gap = re.search(r'with the same noise.*mean ([+-]\S+)', output)
    assert abs(float(gap.group(1))) < 0.5
    assert len(list(tmp_path.glob('*.png'))) == 2


def test_certify_ppnp(shared, tmp_path):
    root = tmp_path / 'data'
    shutil.copytree(shared / 'data/CitationFull', root)
    run(
        *('certify_ppnp.py', '--dataset', 'CitationFull:CiteSeer'),
        *('--root', root, '--out', tmp_path / 'figures'),
        *('--figures', '3a', '--epochs', '10'),
    )
    assert len(list(tmp_path.glob('figures/*3a.png'))) == 1


@pytest.mark.parametrize('dataset', ['generated', 'Planetoid:Cora'])
def test_unlearning_power(dataset, tmp_path, request):
    arguments = ['--dataset', dataset, '--out', tmp_path]
    if dataset == 'generated':
        arguments += ['--epochs', '20', '--methods', 'hash + attention']
    else:
        # Read-only data is copied before it is opened.
        shared = request.getfixturevalue('shared')
        arguments += ['--root', shared / 'data/Planetoid', '--epochs', '2']
        arguments += ['--methods', 'SISA']
    output = run(
        *('unlearning_power.py', *map(str, arguments), '--models', 'GCN'),
        *('--num-shards', '4', '--seeds', '1', '--num', '60'),
    )
    row = re.search(
        r'^GCN +(?:hash|SISA)\D+(\S+) +(\S+) +(\S+) +\d +(yes|no) +(\S+)',
        output,
        re.MULTILINE,
    )
    never, poisoned, unlearned = map(float, row.groups()[:3])
    assert len(list(tmp_path.glob('unlearning_power.png'))) == 1
    if dataset == 'generated':
        # The unlearned model is the one that never saw the poison, and the
        # attack had found it.
        assert row.group(4) == 'yes'
        assert unlearned == never > poisoned
        assert float(row.group(5)) > 0.6


def test_readme_snippets_run_one_after_another(shared, tmp_path):
    shutil.copytree(shared / 'data/Planetoid/Cora', tmp_path / 'data/Cora')
    shutil.copytree(shared / 'data/TU/PROTEINS', tmp_path / 'data/PROTEINS')
    readme = (EXAMPLES.parent / 'README.md').read_text()
    snippets = re.findall(r'```python\n(.*?)```', readme, re.DOTALL)
    assert len(snippets) == 5
    for snippet in snippets:
        done = subprocess.run(
            [sys.executable, '-c', snippet],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
