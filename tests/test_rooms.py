"""The rooms of CONTRIBUTING.md: one idea a file, and calls that only go down.

A long file says at its top why it is long. Imports and calls go from the
procedures to the kernels, through every room once.
"""

import ast
import re
import sys
from itertools import groupby
from pathlib import Path

import pytest
import torch
from torch.nn import Linear
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import grid

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import APPNP, PPNP
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.removal import RemovalRequest
from pyg_trust.testing import make_graph
from pyg_trust.transforms import AGP, GraphScattering
from pyg_trust.unlearning import ScatteringClassifier, ShardedUnlearner

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / 'pyg_trust'
REASON = 'Longer than 700 lines because '


def long_files(root):
    """The source files of more than 700 lines without a reason."""
    found = []
    for folder in ('pyg_trust', 'csrc'):
        for file in sorted((root / folder).rglob('*')):
            if file.suffix not in ('.py', '.cpp', '.cu', '.h'):
                continue
            lines = file.read_text().splitlines()
            top = [line.split(REASON) for line in lines[:5]]
            if len(lines) > 700 and not any(
                len(parts) == 2 and parts[1].strip() for parts in top
            ):
                found.append(str(file.relative_to(root)))
    return found


def test_no_file_is_long_without_a_reason():
    assert long_files(ROOT) == []


@pytest.mark.parametrize(
    ('lines', 'first', 'is_found'),
    [
        (700, '', False),
        (701, '', True),
        (701, f'# {REASON}it lists all.', False),
        (701, f'# {REASON}', True),
        (701, '\n' * 9 + f'# {REASON}it lists all.', True),
    ],
)
def test_a_long_file_is_found(tmp_path, lines, first, is_found):
    (tmp_path / 'csrc').mkdir()
    (tmp_path / 'pyg_trust').mkdir()
    made = [*first.split('\n'), *['x = 1'] * lines][:lines]
    (tmp_path / 'pyg_trust' / 'a.py').write_text('\n'.join(made))
    assert long_files(tmp_path) == (['pyg_trust/a.py'] if is_found else [])


# From the bottom up; all other modules are the ground, at 0.
FLOORS = {
    'verify': -1,
    'agp': 1,
    **dict.fromkeys(('transforms', 'sampler', 'loader', 'nn'), 2),
    # Their mathematics is what PyG's forms call.
    **dict.fromkeys(
        ('privacy', 'unlearning', 'certificates', 'scattering'), 2
    ),
    # What is asked from outside, about all of it.
    **dict.fromkeys(
        ('audit', 'check', 'erasure', 'testing', 'utils'),
        4,
    ),
    '__main__': 5,
}


def room(path):
    """Where a file of the package is: a folder, or the ground."""
    name = Path(path.parts[0]).stem
    return name if name in FLOORS else 'ground'


def imported(tree):
    """The modules that a file imports, in functions and for types too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f'{node.module}.{alias.name}' for alias in node.names)
        yield from imported(node)


def upward(package):
    """The imports from a floor above."""
    found = []
    for file in sorted(package.rglob('*.py')):
        here = room(file.relative_to(package))
        for module in imported(ast.parse(file.read_text())):
            first, *rest = module.split('.')
            if first != 'pyg_trust' or not rest:
                continue
            if FLOORS.get(rest[0], 0) > FLOORS.get(here, 0):
                found.append((str(file.relative_to(package)), module))
    return found


def test_imports_go_down():
    assert upward(PACKAGE) == []


@pytest.mark.parametrize(
    ('line', 'is_found'),
    [
        ('from pyg_trust.nn import APPNP', True),
        ('def f():\n    import pyg_trust.privacy.engine', True),
        ('from pyg_trust import transforms', True),
        ('from pyg_trust.graph import CSRGraph', False),
        ('from pyg_trust import ops', False),
        (
            'from typing import TYPE_CHECKING\n'
            'if TYPE_CHECKING:\n    from pyg_trust.nn import APPNP',
            True,
        ),
    ],
)
def test_an_import_from_above_is_found(line, is_found, tmp_path):
    (tmp_path / 'agp').mkdir()
    (tmp_path / 'agp' / 'a.py').write_text(line)
    assert bool(upward(tmp_path)) == is_found


def circles(package):
    """The groups of modules that import each other, directly or not."""
    files = {}
    for file in package.rglob('*.py'):
        parts = ('pyg_trust', *file.relative_to(package).with_suffix('').parts)
        name = '.'.join(parts).removesuffix('.__init__')
        files[name] = file

    def home(name):
        while name and name not in files:
            name = name.rpartition('.')[0]
        return name

    reached = {
        name: {home(module) for module in imported(ast.parse(f.read_text()))}
        - {'', name}
        for name, f in files.items()
    }
    for middle in reached:
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    return sorted(
        {
            tuple(sorted(m for m in reached if m in to and name in reached[m]))
            for name, to in reached.items()
            if name in to
        }
    )


def test_imports_go_in_no_circle():
    assert circles(PACKAGE) == []


@pytest.mark.parametrize('last', ['c', 'a'])
def test_a_circle_of_imports_is_found(tmp_path, last):
    (tmp_path / 'nn').mkdir()
    for name, other in (('a', 'b'), ('b', last), ('c', 'd')):
        line = f'from pyg_trust.nn.{other} import f'
        (tmp_path / 'nn' / f'{name}.py').write_text(line)
    circle = ('pyg_trust.nn.a', 'pyg_trust.nn.b')
    assert circles(tmp_path) == ([circle] if last == 'a' else [])


# They stand around a call: whose turn it is, and who looks at what torch does.
AROUND = {
    '_checks/__init__.py',
    'files/commit.py',
    'privacy/calls.py',
    'privacy/draws.py',
    'privacy/flow.py',
    'privacy/recorder.py',
    'privacy/rowwise.py',
}


class Paths(TorchDispatchMode):
    """The files of the package that lead to a kernel, at every call of one."""

    def __init__(self):
        super().__init__()
        self.found, self.ops = set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == 'pyg_trust':
            self.ops.add(func._schema.name.removeprefix('pyg_trust::'))
            files, frame = [], sys._getframe(1)
            while frame is not None:
                file = Path(frame.f_code.co_filename)
                if file.is_relative_to(PACKAGE):
                    files.append(file.relative_to(PACKAGE))
                frame = frame.f_back
            self.found.add(
                tuple(f for f in files[::-1] if f.as_posix() not in AROUND)
            )
        return func(*args, **(kwargs or {}))


def people():
    edge_index, _ = make_graph('random').to_edge_index()
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.rand(40, 5, generator=generator),
        edge_index=edge_index,
        y=torch.arange(40) % 3,
        train_mask=torch.ones(40, dtype=torch.bool),
    )


def propagate():
    AGP('appnp', alpha=0.15, eps=1e-3)(people())


def train():
    data, model = people(), PPNP(Linear(5, 3), alpha=0.15, K=4)
    private, optimizer, batches = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.Adam(model.parameters()),
        data_loader=DisjointWalkLoader(
            data, batch_size=5, walk_length=1, num_steps=1
        ),
        target_epsilon=4.0,
        target_delta=1e-3,
        steps=1,
        max_grad_norm=1.0,
    )
    for batch in batches:
        out = private(batch.x, batch.edge_index)[: batch.batch_size]
        cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    APPNP(4, 0.15, eps=1e-3)(model.logits(data.x).detach(), data.edge_index)


def certify_people():
    certify(torch.rand(40, 3), ThreatModel(people(), local_budget=1))


def forget_people():
    unlearner = ShardedUnlearner(
        lambda: GCN(5, 8, 2, 3), num_shards=2, epochs=1, seed=0
    )
    unlearner.fit(people())
    unlearner.remove(RemovalRequest(nodes=[1]))


def forget_images():
    edge_index, _ = grid(3, 3)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    graphs = [
        Data(
            x=torch.rand(9, 3), edge_index=edge_index, y=torch.tensor([k % 2])
        )
        for k in range(20)
    ]
    classifier = ScatteringClassifier(GraphScattering(J=2, Q=2, L=2))
    classifier.fit(graphs)
    classifier.remove(RemovalRequest(graphs=[1]))


@pytest.mark.parametrize(
    'part', [propagate, train, certify_people, forget_people, forget_images]
)
def test_the_quickstart_passes_every_room_once(part):
    with Paths() as paths:
        part()
    assert paths.found
    step = Path('privacy/exact/step.py')
    for path in paths.found:
        # The kernel's step calls the model that it was given, as a user does.
        path = path[max(i for i, f in enumerate((step, *path)) if f == step) :]
        rooms = [name for name, _ in groupby(room(file) for file in path)]
        floors = [FLOORS.get(name, 0) for name in rooms]
        assert len(set(rooms)) == len(rooms), path
        assert floors == sorted(floors, reverse=True), path
        assert rooms[-1] == 'ground', path


CONTRIBUTING = (ROOT / 'CONTRIBUTING.md').read_text()


def test_every_file_that_contributing_names_is_there():
    # '- `room/`: `file.py` ...' names files in that room.
    named = re.findall(r'`([\w./]+(?:\.py|\.cpp|\.h|/))`', CONTRIBUTING)
    homes = [ROOT, PACKAGE, ROOT / 'csrc', *PACKAGE.glob('*/')]
    homes += [ROOT / 'csrc' / 'cpu', PACKAGE / 'unlearning' / 'shards']
    assert len(named) > 60
    ours = [n for n in named if n not in ('.venv/', 'dist/')]
    assert [n for n in ours if not any((h / n).exists() for h in homes)] == []


def chains(text):
    """The files that each call passes, as CONTRIBUTING.md lists them."""
    part = text.split('passes each room once')[1].split('Two things stand')[0]
    found = {}
    for item in re.split(r'^- ', part, flags=re.MULTILINE)[1:]:
        name, rest = item.split(':', 1)
        found[name] = []
        for chain in rest.split(';'):
            folder, files = Path(), []
            for file in re.findall(r'`([^`]+)`', chain):
                path = Path(file)
                if len(path.parts) == 1 and not (PACKAGE / path).exists():
                    path = folder / path
                files, folder = [*files, path], path.parent
            found[name].append(files)
    return found


CALLS = {
    '`AGP(...)(data)`': (propagate,),
    'A private step': (train,),
    '`certify(...)`': (certify_people,),
    '`remove(...)`': (forget_people, forget_images),
}


def is_passed(chain, path):
    """Whether a path passes these files and rooms, in their order."""
    rest = iter(path)
    return all(
        any(f == c or c in (f.parent, *f.parents) for f in rest) for c in chain
    )


def test_calls_pass_the_rooms_that_contributing_lists():
    listed = chains(CONTRIBUTING)
    assert sorted(listed) == sorted(CALLS)
    for name, parts in CALLS.items():
        found, ops = set(), set()
        for part in parts:
            with Paths() as paths:
                part()
            found, ops = found | paths.found, ops | paths.ops
        for chain in listed[name]:
            files = [f for f in chain if f.parts[0] != 'csrc']
            assert any(is_passed(files, path) for path in found), chain
            # One of the sources, where it says 'or', has an op that ran.
            sources = [f for f in chain if f.parts[0] == 'csrc']
            text = ''.join((ROOT / f).read_text() for f in sources)
            impl = [op for op in ops if f'm.impl("{op}"' in text]
            assert impl or not sources, chain


@pytest.mark.parametrize('name', CALLS)
def test_a_call_listed_wrongly_is_found(name):
    with Paths() as paths:
        CALLS[name][0]()
    chain = [f for f in chains(CONTRIBUTING)[name][0] if f.parts[0] != 'csrc']
    assert any(is_passed(chain, path) for path in paths.found)
    for wrong in (chain[::-1], [*chain, Path('privacy/engine.py')]):
        assert not any(is_passed(wrong, path) for path in paths.found)


def test_no_test_file_is_a_helper_of_another():
    # Helpers are under one roof: modules of tests/ without 'test_'.
    found = [
        f'{file.name}: {module}'
        for file in (ROOT / 'tests').rglob('*.py')
        for module in imported(ast.parse(file.read_text()))
        if module.split('.')[0].startswith('test_')
    ]
    assert not found
