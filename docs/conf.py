"""Sphinx: the API pages, made from the docstrings of every public name."""

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.util.nodes import make_refnode

import pyg_trust

project = 'pyg_trust'
release = version = pyg_trust.__version__
author = copyright = 'the authors of pyg_trust'
extensions = [
    'sphinx.ext.autodoc',
    'sphinx.ext.mathjax',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
]
html_theme = 'sphinx_rtd_theme'
exclude_patterns = ['build']
nitpicky = True
# Where these are documented is another project's business.
nitpick_ignore_regex = [
    (r'py:.*', r'(os|torch\w*|opacus|numpy|scipy|matplotlib)\b.*'),
    (r'py:obj', r'(?s).*'),  # as in PyG's docstrings: any piece of code
    (r'py:class', r'[^.]+'),  # types in PyG's short form: Tensor, optional
]
autodoc_member_order = 'groupwise'
autodoc_typehints = 'none'  # the signatures have them, and the Args
autodoc_class_signature = 'mixed'
napoleon_google_docstring = True
napoleon_numpy_docstring = False

API = Path(__file__).parent / 'api'


def page(module: ModuleType) -> str:
    """What is documented of a module, or of a package with its modules."""
    name = module.__name__
    lines = [name, '=' * len(name), '', f'.. automodule:: {name}']
    if not hasattr(module, '__path__'):
        return '\n'.join([*lines, '   :members:', ''])
    names = ', '.join(f':obj:`{public}`' for public in module.__all__)
    lines += ['   :no-members:', '', f'``from {name} import`` {names}', '']
    for info in pkgutil.iter_modules(module.__path__, f'{name}.'):
        title = info.name.rpartition('.')[2].replace('_', ' ')
        lines += [title, '-' * len(title), '']
        lines += [f'.. automodule:: {info.name}', '   :members:', '']
    return '\n'.join(lines)


def write_pages(app: Any) -> None:
    """Writes a page for every package and every module beside them."""
    API.mkdir(exist_ok=True)
    names = []
    for info in pkgutil.iter_modules(pyg_trust.__path__, 'pyg_trust.'):
        if info.name.rpartition('.')[2].startswith('_'):
            continue
        text = page(importlib.import_module(info.name))
        file = API / f'{info.name}.rst'
        names.append(info.name)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    toc = ['API', '===', '', '.. toctree::', '']
    toc += [f'   {name}' for name in names]
    (API / 'index.rst').write_text('\n'.join(toc) + '\n')


def resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Finds what a docstring names by its export, or by less than its path."""
    objects = env.domains['py'].objects
    target = node['reftarget']
    names = target.split('.')
    for at in range(len(names) - 1, 0, -1):
        module = sys.modules.get('.'.join(names[:at]))
        if names[0] == 'pyg_trust' and module is not None:
            home = getattr(
                getattr(module, names[at], None), '__module__', names[0]
            )
            target = '.'.join([home, *names[at:]])
            break
    found = [full for full in objects if f'.{full}'.endswith(f'.{target}')]
    if len(found) != 1:
        return None
    entry = objects[found[0]]
    return make_refnode(
        *(app.builder, node['refdoc'], entry.docname, entry.node_id),
        content,
    )


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect('builder-inited', write_pages)
    app.connect('missing-reference', resolve)
