"""The kernel: what it may import, and how much has to be right for a promise.

The trusted base of a promise is counted by static reachability of names: from
the functions that prove it, every top-level definition whose name occurs in
one that is reached. Lines count that are neither blank, nor a comment, nor in
a docstring; the declarations of claims and ``chain.py`` are left out.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

import pyg_trust

ROOT = Path(pyg_trust.__file__).parent
KERNEL = ROOT / 'verify'
EXACT = ROOT / 'privacy' / 'exact'  # what runs, on the same terms
FILES = sorted([*KERNEL.glob('*.py'), *EXACT.glob('*.py')])
ALLOWED = {'numpy', 'scipy', 'mpmath', *sys.stdlib_module_names}
SAYS = ('claims', 'declare', 'promises', 'claims_privacy', 'claims_removal')
APART = (*SAYS, 'claims_robustness', 'chain')

# By promise: at most so many lines, and where its proof begins.
BASES = {
    'private training by construction': (
        1100,
        {
            'step': None,
            'accounting': ('judge',),
            'groups': ('judge_group',),
            'noise': ('cells',),
        },
    ),
    'private sums and predictions': (
        1100,
        {
            'accounting': ('judge', 'judge_mu'),
            'noise': ('cells',),
            'release': None,
        },
    ),
    'exact certificate': (1000, {'proofs': None}),
    'certificate of ranks': (300, {'ranks': None}),
    'collective certificate, of its votes': (300, {'collective': None}),
    'smoothed, divided and shard votes': (650, {'votes': None}),
    'certified removal': (
        1050,
        {'removal': None, 'accounting': ('judge_mu',), 'noise': ('cells',)},
    ),
    'exactness of shards': (600, {'shards': None}),
}
CHECKER = 1100
# Two rows have longer names in the docs.
DOCS = {
    'a checked report, beside it': 'a checked report, beside the kernel',
    'private training, followed': 'private training, units computed together',
}
# What a step is made of where units are computed together: it is not small,
# and one unit a step is compared with the kernel's.
FOLLOWED = ('wrappers',)


def outside(tree):
    """The modules that a file imports from elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1, 'the kernel imports itself alone'


@pytest.mark.parametrize('file', FILES, ids=str)
def test_the_kernel_imports_nothing_else(file):
    allowed = ALLOWED | ({'torch'} if file.stem == 'step' else set())
    for name in outside(ast.parse(file.read_text())):
        assert name.split('.')[0] in allowed, f'{file.name} imports {name}'


@pytest.mark.parametrize(
    ('text', 'bad'),
    [
        ('import torch', True),
        ('def f():\n    from pyg_trust.ops import push', True),
        ('from ..report import x', True),
        ('import numpy.linalg', False),
        ('from .claims import x', False),
    ],
)
def test_a_forbidden_import_is_found(text, bad):
    try:
        names = {n.split('.')[0] for n in outside(ast.parse(text))}
    except AssertionError:
        assert bad
        return
    assert bool(names - ALLOWED) == bad


class Modules:
    """Definitions of a folder, and the definitions that each one names."""

    def __init__(self, folder, files=None):
        self.lines, self.names = {}, {}
        for file in files or sorted(folder.glob('*.py')):
            text = file.read_text()
            self._read(file.stem, ast.parse(text), text.splitlines())

    def _read(self, module, tree, lines):
        taken = {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                for alias in node.names:
                    name = alias.asname or alias.name
                    taken[name] = (node.module, alias.name)
        for node in tree.body:
            for name in defined(node):
                first = min(
                    [node.lineno, *(d.lineno for d in decorators(node))]
                )
                part = lines[first - 1 : node.end_lineno]
                key = (module, name)
                self.lines.setdefault(key, set()).update(
                    (module, first + i)
                    for i, line in enumerate(part)
                    if line.strip() and not line.lstrip().startswith('#')
                )
                self.lines[key] -= docstrings(node, module)
                self.names.setdefault(key, set()).update(
                    uses(node, module, taken)
                )

    def has(self, module):
        return any(key[0] == module for key in self.lines)

    def base(self, starts):
        """The lines that are reached, without what is counted apart."""
        todo = []
        for module, names in starts.items():
            todo += [
                key
                for key in self.lines
                if key[0] == module and (names is None or key[1] in names)
            ]
        reached = set()
        while todo:
            key = todo.pop()
            if key in reached or key not in self.lines or key[0] in APART:
                continue
            reached.add(key)
            todo += self.names[key]
        return set().union(*(self.lines[key] for key in reached))


def docstrings(node, module):
    """The lines of the texts of a definition, and of those in it."""
    return {
        (module, line)
        for each in ast.walk(node)
        if isinstance(each, ast.FunctionDef | ast.ClassDef)
        and ast.get_docstring(each) is not None
        for line in range(each.body[0].lineno, each.body[0].end_lineno + 1)
    }


def decorators(node):
    return getattr(node, 'decorator_list', [])


def defined(node):
    """The names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [
        name.id
        for target in targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    ]


def uses(node, module, taken):
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield taken.get(each.id, (module, each.id))
        elif isinstance(each, ast.Attribute) and isinstance(
            each.value, ast.Name
        ):
            # A module of the folder by its name.
            above = taken.get(each.value.id)
            if above is not None and above[0] is None:
                yield (above[1], each.attr)


def table():
    """Rows: promise, lines, target, and what is missing."""
    kernel, rows = Modules(KERNEL, FILES), []
    for promise, (most, starts) in BASES.items():
        missing = [name for name in starts if not kernel.has(name)]
        rows.append((promise, len(kernel.base(starts)), most, missing))
    checker = Modules(ROOT / 'check')
    # The command line prints, and a list of names proves nothing.
    apart = ('__init__', '__main__')
    every = set().union(
        *(checker.lines[key] for key in checker.lines if key[0] not in apart)
    )
    rows.append(('a checked report, beside it', len(every), CHECKER, []))
    together = kernel.base({'step': ('release',), 'accounting': ('judge',)})
    together |= kernel.base({'noise': ('cells',)})
    for name in reached(ROOT / 'privacy', FOLLOWED):
        file = Modules(ROOT / 'privacy', [ROOT / 'privacy' / f'{name}.py'])
        together |= set().union(*file.lines.values())
    rows.append(('private training, followed', len(together), None, []))
    return rows


def reached(folder, names):
    """The files of a folder of the package that some of them import."""
    todo, found = list(names), set()
    above = f'pyg_trust.{folder.name}.'
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        for each in outside(ast.parse((folder / f'{name}.py').read_text())):
            if each.startswith(above) and 'exact' not in each:
                todo.append(each.removeprefix(above))
    return sorted(found)


def test_the_trusted_base_of_every_promise_is_small(capsys):
    rows = table()
    with capsys.disabled():
        sys.stdout.write('\n')
        for promise, lines, most, _ in rows:
            of = '' if most is None else f' of {most:>5}'
            sys.stdout.write(f'{promise:<36} {lines:>5}{of}\n')
    for promise, lines, most, missing in rows:
        assert most is None or lines <= most, promise
        assert not missing, promise
        assert lines, promise


def test_the_docs_have_the_table():
    folder = Path(__file__).resolve().parents[1] / 'docs'
    page = (folder / 'theory' / 'kernel.rst').read_text()
    rows = re.findall(r'\* - (.+)\n {5}- ([\d,]+)\n {5}- ?([\d,]*)\n', page)
    said = {
        name.lower(): [int(n.replace(',', '') or 0) for n in numbers]
        for name, *numbers in rows
    }
    for promise, lines, most, _ in table():
        name = DOCS.get(promise, promise)
        assert said[name] == [pytest.approx(lines, rel=0.05), most or 0], name
    assert len(said) == len(table())


def test_what_is_reached_is_counted(tmp_path):
    (tmp_path / 'a.py').write_text(
        'from . import b\nfrom .b import two\n\n'
        'def one():\n    return two() + b.three\n\n'
        'def unused():\n    return 0\n'
    )
    (tmp_path / 'b.py').write_text(
        'def two():\n    # why\n    """Text."""\n    return four\n\n'
        'three = 3\nfour = 4\nfive = 5\n'
    )
    base = Modules(tmp_path).base({'a': ('one',)})
    assert base == {
        *(('a', 4), ('a', 5)),
        *(('b', 1), ('b', 4), ('b', 6), ('b', 7)),
    }
