"""Sphinx: guides, tutorials made from scripts, and the API pages."""

import ast
import functools
import importlib
import inspect
import operator
import os
import pkgutil
import re
import shutil
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.util.nodes import make_refnode

import pyg_trust
from pyg_trust._checks import (
    AnyNumber,
    CanCall,
    Constraint,
    Is,
    constraints,
)

HERE = Path(__file__).parent
API = HERE / 'api'
sys.path.insert(0, str(HERE))

project = 'pyg_trust'
release = version = pyg_trust.__version__
author = copyright = 'the authors of pyg_trust'
extensions = [
    'sphinx.ext.autodoc',
    'sphinx-mathjax-offline',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_gallery.gen_gallery',
]
html_theme = 'sphinx_rtd_theme'
html_static_path = ['_static']
html_css_files = ['pages.css']
html_theme_options = {'navigation_depth': 3}
exclude_patterns = [
    'build',
    'gallery/*.md5',
    'sg_execution_times.rst',
    'tutorials',
]
nitpicky = True
suppress_warnings = ['ref.python']  # types of one name in signatures
# Where these are documented is another project's business.
nitpick_ignore_regex = [
    (r'py:.*', r'(os|time|torch\w*|opacus|numpy|scipy|matplotlib)\b.*'),
    (r'py:obj', r'(?s).*'),  # as in PyG's docstrings: any piece of code
    (r'py:class', r'[^.]+'),  # types in PyG's short form: Tensor, optional
    (r'py:class', r'.*'),  # and types in signatures
]
autodoc_member_order = 'groupwise'
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
autodoc_class_signature = 'mixed'
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Tutorials write files beside themselves: a copy runs.
TUTORIALS = HERE / 'tutorials'
shutil.rmtree(TUTORIALS, ignore_errors=True)
shutil.copytree(HERE.parent / 'examples' / 'tutorials', TUTORIALS)

# PYG_TRUST_TUTORIALS=1 runs the tutorials; the tests only read them.
sphinx_gallery_conf = {
    'examples_dirs': [str(TUTORIALS)],
    'gallery_dirs': ['gallery'],
    'filename_pattern': '/plot_',
    'ignore_pattern': 'network',
    'within_subsection_order': 'FileNameSortKey',
    'plot_gallery': os.environ.get('PYG_TRUST_TUTORIALS', '0') == '1',
    'abort_on_example_error': True,
    'remove_config_comments': True,
    'download_all_examples': False,
    'show_signature': False,
    'show_memory': False,
    'min_reported_time': 1e9,
}

# The API by capability: modules, by how their names begin; the first that
# fits.
CAPABILITIES = {
    'Propagation': (
        'agp',
        'loader.edge_stream',
        'nn.agp_conv',
        'transforms.agp',
        'transforms.gdc',
        'transforms.propagated_features',
        'update',
        'utils',
    ),
    'Private training': (
        'loader',
        'privacy',
        'sampler',
        'transforms.aggregation',
        'transforms.bounded_degree',
        'transforms.private',
    ),
    'Certificates': ('certificates', 'nn.ppnp', 'transforms.division'),
    'Unlearning': (
        'erasure',
        'loader.shard_loader',
        'nn.partitioner',
        'removal',
        'scattering',
        'transforms.graph_scattering',
        'transforms.shards',
        'unlearning',
    ),
    'Graphs and reports': (
        'audit',
        'check',
        'graph',
        'report',
        'transforms',
        'unit',
    ),
    'Developers': ('',),  # all else
}
# What a page of a capability begins with.
MAIN = {
    'Propagation': ('transforms.AGP', 'agp.query', 'transforms.GDC'),
    'Private training': (
        'privacy.PrivacyEngine',
        'loader.DisjointWalkLoader',
        'loader.GraphLoader',
        'loader.UnitLoader',
        'privacy.PrivateNodeClassifier',
        'privacy.PrivateLinkPredictor',
        'transforms.PrivateAGP',
    ),
    'Certificates': (
        'certificates.certify',
        'certificates.ThreatModel',
        'certificates.Certificate',
        'certificates.BitFlips',
        'certificates.SmoothedClassifier',
        'nn.PPNP',
    ),
    'Unlearning': (
        'unlearning.ShardedUnlearner',
        'unlearning.NodeClassifier',
        'unlearning.ScatteringClassifier',
        'unlearning.Recommender',
        'removal.RemovalRequest',
        'erasure.ErasureDesk',
    ),
    'Graphs and reports': (
        'report.TrustReport',
        'check.check_report',
        'audit.audit_training',
        'audit.audit_removal',
        'unit.PrivacyUnit',
    ),
    'Developers': (),
}


def public() -> Iterator[tuple[str, str, Any]]:
    """Every public class, function and constant: where from, name, itself."""
    for info in pkgutil.iter_modules(pyg_trust.__path__, 'pyg_trust.'):
        if info.name.rpartition('.')[2].startswith('_'):
            continue
        module = importlib.import_module(info.name)
        names = getattr(module, '__all__', None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith('_')
            and getattr(value, '__module__', '') == info.name
        ]
        for name in names:
            yield info.name, name, getattr(module, name)


def capability(home: str) -> str:
    """The capability that a module belongs to."""
    short = home.removeprefix('pyg_trust.')
    fits = [
        (len(prefix), title)
        for title, prefixes in CAPABILITIES.items()
        for prefix in prefixes
        if short.startswith(prefix)
    ]
    return max(fits)[1]


def object_page(source: str, name: str, value: Any) -> tuple[str, str, str]:
    """The home of an object, its page, and the first sentence about it."""
    home = getattr(value, '__module__', source)
    kind = 'autoclass' if inspect.isclass(value) else 'autofunction'
    title = f'{source.removeprefix("pyg_trust.")}.{name}'
    lines = [title, '=' * len(title), '']
    lines += [f'``from {source} import {name}``', '']
    lines += [f'.. currentmodule:: {home}', '', f'.. {kind}:: {name}']
    if kind == 'autoclass':
        lines += ['   :members:']
        # What a class inherits from one without a page is its own.
        if any(map(has_no_page, value.__bases__)):
            others = [
                base.__name__
                for base in value.__mro__
                if not base.__module__.startswith('pyg_trust')
            ]
            lines += [f'   :inherited-members: {", ".join(others)}']
        else:
            lines += ['   :show-inheritance:']
    return home, '\n'.join([*lines, '']), first_sentence(value)


def has_no_page(base: type) -> bool:
    """Whether a class is one of ours that nobody is to import."""
    package, *rest = base.__module__.split('.')
    if package != 'pyg_trust' or not rest:
        return False
    if any(part.startswith('_') for part in rest):
        return True
    home = sys.modules[f'{package}.{rest[0]}']
    return len(rest) > 1 and not hasattr(home, base.__name__)


def first_sentence(value: Any) -> str:
    """The beginning of a docstring; what it names is code, not a link."""
    said = (inspect.getdoc(value) or '').partition('\n\n')[0]
    return re.sub(r':\w+:`~?\.*([^`<]+)`', r'``\1``', ' '.join(said.split()))


def module_page(name: str, shown: set[str]) -> str:
    """What a module derives, and what it has beside its exports."""
    short = name.removeprefix('pyg_trust.')
    lines = [short, '=' * len(short), '', f'.. automodule:: {name}']
    lines += ['   :members:']
    if shown:
        lines += [f'   :exclude-members: {", ".join(sorted(shown))}']
    return '\n'.join([*lines, ''])


def modules() -> Iterator[str]:
    """The modules of the packages, and those beside them."""
    for info in pkgutil.walk_packages(pyg_trust.__path__, 'pyg_trust.'):
        short = info.name.removeprefix('pyg_trust.')
        private = any(part.startswith('_') for part in short.split('.'))
        if not info.ispkg and not private:
            yield info.name


def write_pages(app: Any) -> None:
    """Writes a page for every class and function, and one per capability."""
    pages: dict[str, str] = {}
    shown: dict[str, set[str]] = {}
    tables: dict[str, list[tuple[str, str, str]]] = {}
    for source, name, value in public():
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        home, text, said = object_page(source, name, value)
        short = f'{source.removeprefix("pyg_trust.")}.{name}'
        pages[short] = text
        shown.setdefault(home, set()).add(value.__name__)
        tables.setdefault(capability(home), []).append((source, short, said))
    toc = ['API', '===', '']
    toc += ['Every page begins with its main classes. The page of developers']
    toc += ['has operators, noise, files and registries.', '']
    toc += ['.. toctree::', '   :maxdepth: 1', '']
    for number, title in enumerate(CAPABILITIES):
        listed = tables.pop(title)
        lines = [title, '=' * len(title), '']
        sentences = {short: said for _, short, said in listed}
        if MAIN[title]:
            lines += ['Main classes', '------------', '']
            lines += ['.. list-table::', '   :widths: 40 60']
            lines += ['   :class: names', '']
            for short in MAIN[title]:
                lines += [f'   * - :doc:`{short.partition(".")[2]} <{short}>`']
                lines += [f'     - {sentences[short]}']
            lines += ['']
        for source in dict.fromkeys(each[0] for each in listed):
            lines += [source, '-' * len(source), '']
            lines += [first_sentence(sys.modules[source]), '']
            lines += ['.. list-table::', '   :widths: 40 60']
            lines += ['   :class: names', '']
            for _, short, said in (e for e in listed if e[0] == source):
                text = f':doc:`{short.partition(".")[2]} <{short}>`'
                lines += [f'   * - {text}', f'     - {said}']
            lines += ['']
        lines += ['.. toctree::', '   :hidden:', '']
        lines += [f'   {short}' for _, short, _ in listed]
        pages[f'capability-{number}'] = '\n'.join([*lines, ''])
        toc.append(f'   capability-{number}')
    assert not tables, tables
    found = {name: f'module-{name}' for name in modules()}
    for name, page in found.items():
        pages[page] = module_page(name, shown.get(name, set()))
    lines = ['Modules', '=======', '']
    lines += ['What each module computes.', '']
    for info in pkgutil.iter_modules(pyg_trust.__path__, 'pyg_trust.'):
        if info.ispkg:
            lines += [f'.. automodule:: {info.name}', '   :no-members:', '']
    lines += ['.. toctree::', '   :maxdepth: 1', '']
    lines += [f'   {page}' for page in found.values()]
    pages['modules'] = '\n'.join([*lines, ''])
    toc.append('   modules')
    pages['index'] = '\n'.join([*toc, ''])
    API.mkdir(exist_ok=True)
    for file in API.glob('*.rst'):
        if file.stem not in pages:
            file.unlink()
    (API / 'works_with.inc').write_text(works_with_table())
    for name, text in pages.items():
        file = API / f'{name}.rst'
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def works_with_table() -> str:
    """What works with what, from the names and docstrings of the tests."""
    tests = HERE.parent / 'tests' / 'test_works_with.py'
    cells: dict[str, dict[str, str]] = {}
    for node in ast.parse(tests.read_text()).body:
        if isinstance(node, ast.FunctionDef) and '__' in node.name:
            row, _, column = node.name.removeprefix('test_').partition('__')
            cells.setdefault(row, {})[column] = ast.get_docstring(node) or ''
    columns = list(dict.fromkeys(c for row in cells.values() for c in row))
    lines = ['.. list-table::', '   :header-rows: 1', '', '   * -']
    lines += [f'     - {column.replace("_", " ")}' for column in columns]
    for row, found in cells.items():
        lines.append(f'   * - {NAMES.get(row, row)}')
        lines += [f'     - {found.get(column, "")}' for column in columns]
    return '\n'.join([*lines, ''])


NAMES = {
    'edge_index': '``EdgeIndex``',
    'adj_t': '``adj_t``',
    'hetero_data': '``HeteroData``',
    'workers': 'workers of a ``DataLoader``',
    'torch_compile': '``torch.compile``',
    'lightning': 'Lightning',
    'graphgym': 'GraphGym',
}


def draw_figures(app: Any) -> None:
    """Draws the figures of the guides, which no repository keeps."""
    import figures

    figures.draw(HERE / '_static' / 'figures')


KINDS = {
    'func': ('function',),
    'mod': ('module',),
    'meth': ('method', 'classmethod', 'staticmethod'),
    'class': ('class', 'exception'),
    'data': ('data',),
    'attr': ('attribute', 'property'),
}


def resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Finds what a docstring names by its export, or by less than its path."""
    objects = env.domains['py'].objects
    target = node['reftarget']
    names = target.split('.')
    for at in range(len(names) - 1, 0, -1):
        module = sys.modules.get('.'.join(names[:at]))
        if names[0] == 'pyg_trust' and module is not None:
            value = getattr(module, names[at], None)
            if inspect.ismodule(value):
                return None
            home = getattr(value, '__module__', names[0])
            target = '.'.join([home, *names[at:]])
            break
    kind = KINDS.get(node['reftype'], ())
    found = [
        full
        for full, entry in objects.items()
        if f'.{full}'.endswith(f'.{target}')
        and (not kind or entry.objtype in kind)
    ]
    # Of several, the one beside what names it.
    for place in (node.get('py:class'), node.get('py:module')):
        near = [full for full in found if place and f'{place}.' in full]
        found = near if len(found) > 1 and near else found
    if len(found) != 1:
        return None
    entry = objects[found[0]]
    return make_refnode(
        *(app.builder, node['refdoc'], entry.docname, entry.node_id),
        content,
    )


# By function, what its hints declare; signatures show the types alone.
DECLARED: dict[Any, dict[str, Constraint]] = {}


def _type_of(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return functools.reduce(
            operator.or_, map(_type_of, typing.get_args(hint))
        )
    return hint.__origin__ if hasattr(hint, '__metadata__') else hint


def plain_hints(app: Any) -> None:
    """Show types in signatures, and keep their constraints for "Raises"."""
    for info in pkgutil.walk_packages(pyg_trust.__path__, 'pyg_trust.'):
        if not info.name.endswith(('__main__', '_C')):
            for value in vars(importlib.import_module(info.name)).values():
                inner = vars(value).values() if inspect.isclass(value) else ()
                for function in (value, *inner):
                    _plain_hints(getattr(function, '__func__', function))
                if hasattr(value, '_fields') and inspect.isclass(value):
                    # Fields of tuples have forms, which ops check.
                    hints = getattr(value.__new__, '__annotations__', {})
                    hints.update({k: _type_of(v) for k, v in hints.items()})


def _plain_hints(function: Any) -> None:
    routine = inspect.isroutine(function)
    if not routine or not getattr(function, 'is_validated', False):
        return
    if function not in DECLARED:
        DECLARED[function] = constraints(function)
        # In place: the wrapper has the same dictionary.
        hints = inspect.unwrap(function).__annotations__
        hints.update({k: _type_of(v) for k, v in hints.items()})


def add_raises(
    app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]
) -> None:
    """Write the constraints of hints as the first line of "Raises"."""
    function = of.__init__ if inspect.isclass(of) else of
    function = getattr(function, '__func__', function)
    routine = inspect.isroutine(function)
    found = DECLARED.get(function, {}) if routine else {}
    said = '; '.join(
        f'``{k}`` {c.need}'
        for k, c in found.items()
        if not isinstance(c, AnyNumber | CanCall | Is)
        and c.need != 'an integer'
    )
    if not said:
        return
    row = f'    TypeError, ValueError: if something is not so: {said}.'
    if 'Raises:' in lines:
        lines.insert(lines.index('Raises:') + 1, row)
        return
    ends = [k for k, line in enumerate(lines) if line in ('Example:',)]
    place = ends[0] if ends else len(lines)
    lines[place:place] = ['', 'Raises:', row, '']


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect('builder-inited', plain_hints, priority=900)
    app.connect('autodoc-process-docstring', add_raises, priority=400)
    app.connect('builder-inited', write_pages, priority=100)
    app.connect('builder-inited', draw_figures, priority=100)
    app.connect('missing-reference', resolve)
