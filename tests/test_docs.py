"""The guides: prefixes that match, tables that tests stand for, snippets."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm

import pyg_trust
from pyg_trust.functional import plan_memory

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


@pytest.mark.sources('docs/', 'pyg_trust/', 'examples/tutorials/')
def test_the_pages_are_made_without_a_warning(tmp_path):
    for module in ('sphinx', 'sphinx_gallery', 'sphinx_rtd_theme'):
        pytest.importorskip(module)
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'sphinx', '-q', '-n', '-W'),
            *('--keep-going', '-d', tmp_path / 'trees'),
            *(ROOT / 'docs', tmp_path / 'pages'),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def snippets(text):
    return re.findall(r'```python\n(.*?)```', text, re.DOTALL)


README = (ROOT / 'README.md').read_text()


def test_the_readme_is_short_and_has_five_snippets():
    assert len(README.splitlines()) <= 125
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
    done = warm.run(
        *('-W', 'ignore', '-c', STAND_IN + code),
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr[-2000:]


OWN = ROOT / 'examples' / 'tutorials' / 'plot_0_your_own_data.py'
HIDDEN = re.compile(
    r'# sphinx_gallery_start_ignore.*?# sphinx_gallery_end_ignore\n', re.DOTALL
)

#: Files as people have them: almost a tree, one way, with loops, repeated
#: pairs and loners; classes that are words, unknown for some.
MINE = """
import random
from pathlib import Path

draw, words = random.Random(3), ('cats', 'dogs', 'eels', 'owls')
lines = ['name,id,wants,' + ','.join(words) + ',class']
for i in range(420):
    counts = [draw.randint(0, 3) + 3 * (i % 4 == j) for j in range(4)]
    known = words[i % 4] if draw.random() < 0.8 else ''
    lines.append(f'"A, {i}",{i:03d}x,{draw.random()},'
                 + ','.join(map(str, counts)) + f',{known}')
Path('people.csv').write_text('\\n'.join(lines))
pairs = []
for child in range(4, 417):
    kind = (child + (draw.random() < 0.2)) % 4
    parent = min(draw.randrange(child // 4) * 4 + kind, 416)
    pairs.append(f'{child:03d}x,{parent:03d}x')
Path('knows.csv').write_text(
    '\\n'.join(['from,to', *pairs, *pairs[:30], '007x,007x'])
)
"""
COLUMNS = "{'age': 100, 'visits': 20, 'posts': 20, 'likes': 20}"
MY_COLUMNS = "{'wants': 1, 'cats': 6, 'dogs': 6, 'eels': 6, 'owls': 6}"

#: What the page says, attacked from outside: everybody loses a friend at most.
ATTACKS = """
certain = certificate.status == 1
assert 0 < int(certain.sum()) < data.num_nodes
pairs = data.edge_index[:, data.edge_index[0] < data.edge_index[1]].t()
turned = 0
for _ in range(20):
    free, lost = torch.ones(data.num_nodes, dtype=torch.bool), set()
    for u, v in pairs[torch.randperm(len(pairs))].tolist():
        if free[u] and free[v]:
            free[u] = free[v] = False
            lost |= {(u, v), (v, u)}
    kept = [e for e in data.edge_index.t().tolist() if tuple(e) not in lost]
    with torch.no_grad():
        out = model(data.x, torch.tensor(kept).t()).argmax(1)
    same = out == certificate.predicted
    assert bool(same[certain].all())
    turned += int((~same).sum())
assert turned
assert 3.9 < training.epsilon <= 4.0 and training.delta * data.num_nodes < 1
assert sum(1 for _ in open('private.ledger')) > 40
assert removal.verification.ok and removal.request['nodes'] == [17, 230]
told = [known for known, p in zip(y, people) if p['class']]
assert classes == sorted(set(classes)) and min(told) == 0
assert [classes[c] for c in told] == [p['class'] for p in people if p['class']]
assert int(data.train_mask.sum()) == len(told)
found = check_report('trust.json', ledger='private.ledger')
said = [finding.status for finding in found]
assert 'FAILS' not in said and said.count('holds') >= 8, found
page = open('trust.html').read()
assert 'Article 17' in page and 'Article 32' in page
assert 'No check was recorded' not in page.partition('id="p3"')[2]
"""


@pytest.mark.slow
@pytest.mark.parametrize('mine', [None, MINE], ids=['as it is', 'another'])
def test_the_page_on_your_own_data_runs_on_it(mine, tmp_path):
    code = OWN.read_text()
    assert HIDDEN.search(code)
    assert COLUMNS in code
    if mine is not None:
        code = HIDDEN.sub('', code).replace(COLUMNS, MY_COLUMNS)
        code = code.replace("'p17'", "'017x'").replace("'p230'", "'230x'")
        (tmp_path / 'mine.py').write_text(mine)
        subprocess.run([sys.executable, 'mine.py'], cwd=tmp_path, check=True)
    done = warm.run(
        *('-W', 'ignore', '-c', code + ATTACKS),
        cwd=tmp_path,
        env={
            **os.environ,
            'PYTHONPATH': str(PACKAGE.parent),
            'MPLBACKEND': 'agg',
            'TMPDIR': str(tmp_path),
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]


def minutes(text):
    """Reading: 200 words of prose a minute, 10 seconds a line of code.

    Of a script up to the last block, which is a picture for whoever likes;
    lines of brackets alone are not read. Of a page without its contents.
    """
    prose, code, inside = [], 0, False
    if text.startswith('"""'):
        _, title, text = HIDDEN.sub('', text).split('"""', 2)
        text = text.partition('# That is all.')[0]
        prose.append(title)
        for line in text.splitlines():
            if line.startswith('#'):
                prose.append(line.lstrip('#% -'))
            else:
                code += bool(re.search(r'\w', line))
    else:
        for line in text.partition('.. toctree::')[0].splitlines():
            inside = line.startswith('.. code-block') or (
                inside and (not line or line[0] == ' ')
            )
            if inside:
                code += bool(line) and not line.startswith('..')
            elif not re.match(r'\s*(\.\.|:[\w-]+: )', line):
                prose.append(line)
    words = re.sub(r':\w+:`|[-=`*~]', ' ', ' '.join(prose)).split()
    return len(words) / 200 + code / 6


def test_a_newcomer_reads_the_way_to_a_model_in_15_minutes():
    docs = ROOT / 'docs'
    way = [
        minutes(page.read_text())
        for page in (docs / 'index.rst', docs / 'which.rst', OWN)
    ]
    assert 10 < sum(way) <= 15, way


def test_reading_takes_what_it_takes():
    assert minutes('word ' * 200) == 1
    assert minutes('.. code-block:: bash\n\n   a\n   b\n\nword\n') == (
        pytest.approx(2 / 6 + 1 / 200)
    )
    script = '"""one two"""\n# three\nx = (\n    1\n)\n# That is all. No'
    assert minutes(script) == pytest.approx(2 / 6 + 3 / 200)


# But what a build writes among them.
GUIDES = sorted(
    path
    for folder in ('docs', 'docs/theory')
    for path in (ROOT / folder).glob('*.rst')
    if path.name != 'sg_execution_times.rst'
)


def named(text):
    """What a page calls by its full name: in links and in code."""
    found = re.findall(r'`~?(pyg_trust\.[\w.]+)', text)
    rooms = '|'.join(p.parent.name for p in PACKAGE.glob('*/__init__.py'))
    short = re.findall(rf'``((?:{rooms})\.\w[\w.]*)', text)
    found += [f'pyg_trust.{name}' for name in short]
    for line in re.findall(r'(?:from|import) pyg_trust[\w., ]+', text):
        home, _, names = line.partition(' import ')
        if names:
            home = home.removeprefix('from ')
            found += [f'{home}.{name.strip()}' for name in names.split(',')]
    return {name.rstrip('.') for name in found}


def resolves(name):
    home, rest = pyg_trust, name.split('.')[1:]
    for i, part in enumerate(rest):
        if not hasattr(home, part):
            try:
                importlib.import_module(
                    '.'.join(['pyg_trust', *rest[: i + 1]])
                )
            except ImportError:
                fields = getattr(home, '__dataclass_fields__', {})
                return part in fields
        home = getattr(home, part)
    return True


@pytest.mark.parametrize(
    'page', [*GUIDES, ROOT / 'README.md'], ids=lambda page: page.stem
)
def test_what_a_page_names_is_there(page):
    dead = [n for n in named(page.read_text()) if not resolves(n)]
    assert not dead


def test_a_name_that_is_gone_is_found():
    text = ':class:`~pyg_trust.privacy.Gone`, ``pyg_trust.nn.PPNP``'
    text += ' ``nn.Gone``'
    names = named(text + '\nfrom pyg_trust.graph import CSRGraph, Lost\n')
    assert {n for n in names if not resolves(n)} == {
        'pyg_trust.nn.Gone',
        'pyg_trust.privacy.Gone',
        'pyg_trust.graph.Lost',
    }


FOLDERS = ('benchmarks', 'csrc', 'docs', 'examples', 'pyg_trust', 'tests')


def files(text):
    """The files of the repository that a page names."""
    return set(
        re.findall(r'``[^`]*?([\w/]+\.(?:py|sh|h|cpp|rst|cff))\b', text)
    )


@pytest.mark.parametrize('page', GUIDES, ids=lambda page: page.stem)
def test_files_that_a_page_names_are_there(page):
    known = [p for f in FOLDERS for p in (ROOT / f).rglob('*.*')]
    known += [p for p in ROOT.glob('*') if p.is_file()]
    names = [f'/{path.relative_to(ROOT)}' for path in known]
    lost = [
        name
        for name in files(page.read_text())
        if not any(path.endswith(f'/{name}') for path in names)
    ]
    assert set(lost) <= {'job.py'}


def options(text):
    """Arguments with a value, as ``name=value`` or ``name='value'``."""
    return set(re.findall(r'``([a-z]\w*)=[^`]*``', text))


def test_arguments_that_pages_name_are_somewhere():
    source = '\n'.join(p.read_text() for p in PACKAGE.rglob('*.py'))
    words = set(re.findall(r'\w+', source))
    for page in GUIDES:
        assert options(page.read_text()) <= words | {'seed'}, page


def test_every_tutorial_has_a_title_and_a_figure():
    scripts = sorted(OWN.parent.glob('plot_*.py'))
    assert len(scripts) >= 8
    for script in scripts:
        title, line, *_ = ast.get_docstring(
            ast.parse(script.read_text())
        ).splitlines()
        assert line == '=' * len(title)
        assert 'plt.show()' in script.read_text()  # the gallery's thumbnail


def test_pages_of_the_site_that_files_link_to_are_there():
    pages = re.findall(r'\]\(([^)#:]+)\)', README.replace('\n', ' '))
    assert pages
    for page in pages:
        assert (ROOT / page).exists()


def test_what_is_published_agrees_with_the_package():
    citation = (ROOT / 'CITATION.cff').read_text()
    assert f'\nversion: {pyg_trust.__version__}\n' in citation
    project = (ROOT / 'pyproject.toml').read_text()
    named = re.findall(r'Python :: (3\.\d+)"', project)
    install = (ROOT / 'docs' / 'install.rst').read_text()
    assert f'{named[0]} to {named[-1]}.' in install
    assert f'requires-python = ">={named[0]}"' in project
    torch_, pyg = (
        re.search(rf'"{name}>=([\d.]+)"', project)[1]
        for name in ('torch', 'torch-geometric')
    )
    assert f'{torch_} or later, CPU' in install
    assert f'{pyg} or later' in install
    workflow = ROOT / '.github' / 'workflows' / 'tests.yml'
    if workflow.exists():  # no part of a source distribution
        (line,) = re.findall(r'python: \[(.*)\]', workflow.read_text())
        assert re.findall(r'[\d.]+', line) == named


def messages():
    """The texts in the package, as they are put together."""
    for path in PACKAGE.rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def quoted(text):
    """What a page says that a message says."""
    rows = re.findall(r'^   \* - (.*?)\n     - ', text, re.M | re.DOTALL)
    for row in rows:
        yield from re.findall(r'"([^"]+)"', ' '.join(row.split()))


def test_errors_that_the_page_explains_are_raised():
    told = list(messages())
    page = (ROOT / 'docs' / 'errors.rst').read_text()
    found = list(quoted(page))
    assert len(found) >= 9
    assert not [t for t in found if not any(t in each for each in told)]
    assert list(quoted('   * - it "is\n       so"\n     - Do "this".\n')) == [
        'is so'
    ]


def table_of(name, title):
    """The rows of a list-table, as lists of texts."""
    text = (ROOT / 'docs' / f'{name}.rst').read_text()
    block = text.split(f'.. list-table:: {title}\n')[1].split('\n\n', 2)[1]
    rows = re.split(r'^   \* - ', block, flags=re.M)[1:]
    return [re.split(r'\n     - ', row.strip('\n')) for row in rows]


def test_the_table_of_memory_is_what_is_planned():
    # A column and its levels took three times what the page said.
    units = {'M': 1e6, 'billion': 1e9, 'MB': 1e6, 'GB': 1e9}

    def number(text):
        size, unit = re.fullmatch(r'([\d.]+) ?(\w+)', text).groups()
        return float(size) * units[unit]

    _, *rows = table_of('scale', 'One machine')
    assert len(rows) == 4
    for graph, *given in rows:
        n, m, held, column, eight = map(number, given)
        n, m = int(n), int(m)
        assert graph
        one = plan_memory(n, m, 64, columns=1, memory=10**13)
        half = plan_memory(n, m, 64, columns=8, half=True, memory=10**13)
        assert held == pytest.approx(one.graph, rel=0.01)
        assert column == pytest.approx(one.total - one.graph, rel=0.02)
        assert eight == pytest.approx(half.total, rel=0.01, abs=5e7)
