"""All promises of the package: numbers are fields, and can be checked."""

import ast
import json
import math
import re
from pathlib import Path

import jsonschema
import pytest
import torch
from auditing import above
from guarantees import MADE
from package import import_all, reports

import pyg_trust
from pyg_trust.check import FAILS, HOLDS, check_report
from pyg_trust.report import Guarantee, TrustReport, save_tensors, schema
from pyg_trust.report.claimed import ClaimedReport

NODES = 'ForgetReport, nodes'
SOURCES = sorted(Path(pyg_trust.__file__).parent.rglob('*.py'))
NUMBER = r'(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])'


def test_every_report_that_promises_something_is_among_these():
    import_all()
    promising = {
        each.__name__
        for each in reports()
        if {'guarantee', '_procedure'} & {*vars(each)}
        and each not in (Guarantee, ClaimedReport)
    }
    made = {name.partition(',')[0] for name in MADE}
    missing = promising - made
    assert not missing, f'give {missing} an entry in tests/guarantees.py'


def test_every_guarantee_of_the_package_is_a_claim():
    # Sentences have one home: a report hands in fields.
    for path in SOURCES:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and path.parent.name != 'report':
                func = call.func
                name = getattr(func, 'id', getattr(func, 'attr', ''))
                assert name != 'Guarantee', (path, call.lineno)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """The guarantees, and what an auditor is handed; each made once."""
    kept = {}

    def make(name):
        if name not in kept:
            folder = tmp_path_factory.mktemp('made')
            report, files = MADE[name](folder)
            kept[name] = report.guarantee(), files
        return kept[name]

    return make


def written(folder, files):
    """The files of an auditor."""
    paths = {}
    for name, content in files.items():
        paths[name] = path = folder / f'{name}.file'
        if name != 'ledger':
            save_tensors(path, content)
        elif isinstance(content, dict):
            path.write_text(json.dumps(content))
        else:
            path.write_bytes(content.read_bytes())
    return paths


def checked(folder, guarantee, files):
    """What a checker finds out of a report and these files."""
    path = folder / 'trust.json'
    TrustReport.of(guarantee).save(path)
    return check_report(path, **written(folder, files))


def leaves(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(str(key))
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        yield len(value)
        for item in value:
            yield from leaves(item)
    else:
        yield value


def said(fields):
    """All ways in which prose can say the numbers of some fields."""
    ways = set()
    for leaf in leaves(fields):
        if isinstance(leaf, str):
            ways |= set(re.findall(NUMBER, leaf))
            # Names that end in a number, as of a budget.
            ways |= set(re.findall(r'(?<=_)\d+', leaf))
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            ways |= {f'{leaf:.{k}g}' for k in (3, 4, 6)} | {str(leaf)}
            # Rounded to where less is promised.
            up = leaf if 0 < leaf < math.inf else 1.0
            ways |= {above(up, k) for k in (3, 4, 6)}
    return ways


@pytest.mark.parametrize('name', MADE)
def test_numbers_in_a_promise_are_fields(made, name):
    guarantee, _ = made(name)
    values = {k: v for k, v in guarantee.values.items() if k != 'tallies'}
    fields = [values, guarantee.spent, guarantee.budget]
    text = re.sub(r'\^\([^)]*\)', '', guarantee.promise)  # exponents
    missing = {found.replace(',', '') for found in re.findall(NUMBER, text)}
    missing -= said(fields)
    assert not missing, (missing, guarantee.promise)


@pytest.mark.parametrize('name', MADE)
def test_a_promise_is_of_a_kind_and_fits_the_schema(made, name, tmp_path):
    guarantee, _ = made(name)
    assert guarantee.kind != 'other'
    assert guarantee.values
    report = TrustReport.of(guarantee)
    report.save(tmp_path / 'trust.json')
    read = json.loads((tmp_path / 'trust.json').read_text())
    jsonschema.validate(read, schema())
    again = TrustReport.load(tmp_path / 'trust.json')
    assert again.to_json() == report.to_json()
    for name, amounts in guarantee.history.items():
        assert amounts[-1] == pytest.approx(guarantee.spent[name])


@pytest.mark.parametrize('name', MADE)
def test_an_auditor_finds_nothing_wrong(made, name, tmp_path):
    guarantee, files = made(name)
    found = checked(tmp_path, guarantee, files)
    bad = [each.text for each in found if each.status == FAILS]
    if guarantee.values.get('seeded'):
        # Tests are seeded, and a checker says that nothing is private then.
        bad = [text for text in bad if 'comes from a seed' not in text]
    assert not bad
    for file in files:
        texts = [each for each in found if f': {file}: ' in each.text]
        assert texts, f'nothing was found out about {file}'
        assert all(each.status == HOLDS for each in texts)


WITHOUT = ('AGP', 'Agg', 'Cov', 'Ite', 'Lin', 'Ran', 'Rem')
COUNTED = ('counts', 'closed form', 'links')
WITH_MODEL = [
    name
    for name in MADE
    if name[:3] not in WITHOUT and not name.endswith(COUNTED)
]


@pytest.mark.parametrize('name', WITH_MODEL)
def test_weights_that_differ_in_one_bit_are_found_out(made, name, tmp_path):
    guarantee, files = made(name)
    state = files['model']
    key = next(iter(state))
    if isinstance(state[key], dict):
        state = {**state, key: dict(state[key])}
        inner = state[key]
        key = next(iter(inner))
    else:
        inner = state = dict(state)
    changed = inner[key].clone()
    flat = changed.view(-1)
    flat[0] = torch.nextafter(flat[0], flat[0] + 1)
    inner[key] = changed
    found = checked(tmp_path, guarantee, {'model': state})
    assert any(
        each.status == FAILS and 'not those' in each.text for each in found
    )


@pytest.mark.parametrize(
    'name', ['AGP, exact', 'Certificate', 'SmoothedCertificate']
)
def test_a_graph_with_an_edge_less_is_found_out(made, name, tmp_path):
    guarantee, files = made(name)
    data = files['data'].clone()
    data.edge_index = data.edge_index[:, 1:]
    found = checked(tmp_path, guarantee, {'data': data})
    assert any(each.status == FAILS for each in found)


def without_line(ledger):
    del ledger['entries'][0]


def other_name(ledger):
    for line in ledger['entries']:
        if line['request']:
            line['request'] = {'0': {'nodes': [0]}}


def relinked(ledger):
    # Somebody who knows how lines are hashed leaves a removal out.
    from pyg_trust.verify.chain import link

    del ledger['entries'][-1]
    before = ''
    for line in ledger['entries']:
        body = [line[k] for k in ('action', 'spent', 'request', 'data')]
        before = line['link'] = link(before, *body)


def overspent(ledger):
    ledger['entries'].append(dict(ledger['entries'][-1]))
    for line in ledger['entries']:
        line['spent'] = ledger['budget'] + 1.0
    relinked(ledger)


@pytest.mark.parametrize(
    'damage', [without_line, other_name, relinked, overspent]
)
@pytest.mark.parametrize('name', [NODES, 'ForgetReport, graphs'])
def test_a_ledger_of_removals_that_lies_is_found_out(
    made, name, damage, tmp_path
):
    guarantee, files = made(name)
    ledger = json.loads(json.dumps(files['ledger']))
    damage(ledger)
    found = checked(tmp_path, guarantee, {'ledger': ledger})
    assert any(
        each.status == FAILS and ': ledger: ' in each.text for each in found
    )
