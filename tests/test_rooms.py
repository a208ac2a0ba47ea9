"""Imports go down the floors of CONTRIBUTING.md, and in no circle."""

import ast
from pathlib import Path

import pyg_trust

PACKAGE = Path(pyg_trust.__file__).parent
# From the bottom up; all that is not named is the ground, at 0.
FLOORS = {
    'verify': -1,
    'agp': 1,
    # PyG's forms call the mathematics of the capabilities.
    **dict.fromkeys(('transforms', 'sampler', 'loader', 'nn'), 2),
    **dict.fromkeys(('privacy', 'unlearning', 'certificates'), 2),
    'scattering': 2,
    **dict.fromkeys(('audit', 'check', 'erasure', 'testing', 'utils'), 4),
    '__main__': 5,
}


def imported(tree):
    """The modules that a file imports, in functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def imports():
    """By module: the modules of the package that it imports."""
    files = {}
    for file in PACKAGE.rglob('*.py'):
        parts = file.relative_to(PACKAGE.parent).with_suffix('').parts
        files['.'.join(parts).removesuffix('.__init__')] = file

    def home(name):
        while name and name not in files:
            name = name.rpartition('.')[0]
        return name

    for name, file in files.items():
        found = map(home, imported(ast.parse(file.read_text())))
        yield name, {*found} - {'', name, 'pyg_trust'}


def test_imports_go_down_and_in_no_circle():
    reached = dict(imports())
    floors = {m: FLOORS.get((*m.split('.'), '')[1], 0) for m in reached}
    upward = {
        (m, to) for m, all_ in reached.items() for to in all_
        if floors[to] > floors[m]
    }  # fmt: skip
    assert not upward
    for middle in reached:
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    assert not [m for m, targets in reached.items() if m in targets]
