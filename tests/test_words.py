"""Public text has the words of the field, and none of our own."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a reader who knows PyG and not us would stumble over, and what to say.
PRIVATE = {
    r'coins?': 'Poisson sampling, random bits',
    r'handed (in|out|over)': 'passed, delivered',
    r'gives? away': 'reveals',
    r'tells? (apart|of|who|what|whose|whether)': 'shows, reveals, returns',
    r'withdrawn|withdraws': 'removed',
    r'(comes?|goes|go) or (comes?|goes|go)': 'is added or removed',
    r'a blank|blanks': 'an empty record',
    r'promises?': 'guarantee',
    r'served': 'returned, released',
    r'floors? of the house|debits?': 'layers, costs',
}
# Names and code are no words.
CODE = re.compile(r'``.*?``|:\w+:`[^`]*`|`[^`]*`|\'[\w ]*\'|\w+ \(|\w+\.\w+')


def texts(path):
    """The public docstrings of a module and the messages it raises."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if not getattr(node, 'name', '').startswith('_'):
                yield ast.get_docstring(node) or ''
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant):
                    yield str(part.value)


def sentences(path):
    """All texts of several words in a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and ' ' in str(node.value):
            yield path, str(node.value)


def test_private_words_are_not_in_public_text():
    pattern = re.compile(rf'\b({"|".join(PRIVATE)})\b', re.IGNORECASE)
    found = []
    for path in sorted((ROOT / 'pyg_trust').rglob('*.py')):
        found += [(path, text) for text in texts(path)]
    # Sentences of reports, of their pages and of findings are public, too.
    for room in ('report', 'check'):
        for path in sorted((ROOT / 'pyg_trust' / room).rglob('*.*')):
            if path.suffix in ('.html', '.md'):
                shown = re.sub('{.*?}|<.*?>', '', path.read_text())
                found.append((path, shown))
            elif path.suffix == '.py':
                found += sentences(path)
    for path in (ROOT / 'pyg_trust' / 'verify').glob('claims_*.py'):
        found += sentences(path)
    docs = ROOT / 'docs'
    pages = [ROOT / 'README.md', *docs.glob('*.rst')]
    pages += (docs / 'theory').glob('*.rst')  # others are made
    found += [(path, path.read_text()) for path in pages]
    for path in (ROOT / 'examples' / 'tutorials').glob('*.py'):
        lines = path.read_text().splitlines()
        said = [line for line in lines if line.startswith('# ')]
        found.append((path, '\n'.join([*texts(path), *said])))
    assert len(found) > 2000
    wrong = [
        f'{path.relative_to(ROOT)}: {hit.group(0)!r} in {line.strip()!r}'
        for path, text in found
        for line in CODE.sub('', text).splitlines()
        if (hit := pattern.search(line))
    ]
    assert not wrong, '\n'.join(wrong)
