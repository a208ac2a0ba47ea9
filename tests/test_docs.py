"""The guides: prefixes that match, tables that tests stand for, snippets."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyg_trust

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(pyg_trust.__file__).parent


def capabilities():
    """The table of docs/conf.py, without sphinx."""
    tree = ast.parse((ROOT / 'docs' / 'conf.py').read_text())
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        if ast.unparse(node.targets[0]) == 'CAPABILITIES':
            return ast.literal_eval(node.value)
    raise AssertionError('docs/conf.py has no CAPABILITIES')


def modules():
    for path in PACKAGE.rglob('*.py'):
        name = '.'.join(path.relative_to(PACKAGE).with_suffix('').parts)
        yield name.removesuffix('.__init__')


def test_every_prefix_of_the_api_pages_matches_a_module():
    found = set(modules())
    dead = [
        prefix
        for prefixes in capabilities().values()
        for prefix in prefixes
        if not any(name.startswith(prefix) for name in found)
    ]
    assert not dead


def test_mathematics_belongs_to_a_capability():
    # The last one takes what no other does.
    *named, _ = capabilities().values()
    prefixes = [prefix for each in named for prefix in each]
    odd = [
        name
        for name in modules()
        if name.split('.')[0] in ('privacy', 'certificates', 'unlearning')
        and not any(name.startswith(prefix) for prefix in prefixes)
    ]
    assert not odd


def snippets(text):
    return re.findall(r'```python\n(.*?)```', text, re.DOTALL)


README = (ROOT / 'README.md').read_text()


def test_the_readme_is_short_and_has_five_snippets():
    assert len(README.splitlines()) <= 165
    assert len(snippets(README)) == 5


#: Planetoid's Cora, made small, so that nothing is downloaded.
STAND_IN = """
import torch, torch_geometric.datasets
from torch_geometric.data import Data

def Planetoid(root, name, split='public', transform=None):
    generator = torch.Generator().manual_seed(0)
    n, classes = 400, 7
    y = torch.arange(n) % classes
    pairs = torch.randint(n, (2, 1200), generator=generator)
    pairs = pairs[:, pairs[0] != pairs[1]]
    near = torch.stack([torch.arange(n), (torch.arange(n) + classes) % n])
    edges = torch.cat([pairs, near, pairs.flip(0), near.flip(0)], 1)
    x = (torch.rand(n, 20, generator=generator) < 0.2).float()
    x[torch.arange(n), y] = 1.0
    mask = torch.arange(n) < 250
    data = Data(x=x, y=y, edge_index=edges.unique(dim=1), num_nodes=n)
    data.train_mask, data.test_mask = mask, ~mask
    return [data if transform is None else transform(data)]

torch_geometric.datasets.Planetoid = Planetoid
"""
CHANGES = {
    'batch_size=600': 'batch_size=40',
    'epochs=30': 'epochs=1',
    'num_steps=60': 'num_steps=4',
    'steps=60': 'steps=4',
}


@pytest.mark.parametrize('number', range(5))
def test_a_snippet_of_the_readme_runs(number, tmp_path):
    code = snippets(README)[number]
    for old, new in CHANGES.items():
        code = code.replace(old, new)
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', STAND_IN + code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
