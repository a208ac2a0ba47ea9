"""The command line of the desk: what it prints, writes, and exits with."""

import json
import re
import uuid

import pytest
from desks import fitted, loaded

from pyg_trust.__main__ import _add_commands
from pyg_trust.check.__main__ import main
from pyg_trust.erasure import ErasureDesk

APP = """
from pyg_trust.unlearning import NodeClassifier

def models(desk):
    model = NodeClassifier(lam=0.1, seed=0)
    model.load('scores.pt')
    desk.register('scores', model, save='scores.pt')
    desk.recipient('partner')
"""


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f'app{uuid.uuid4().hex}'
    (tmp_path / f'{name}.py').write_text(APP)
    fitted().save(tmp_path / 'scores.pt')

    def call(text):
        try:
            status = main(
                text.replace('app', name).split(), more=_add_commands
            )
        except SystemExit as stop:
            status = stop.code
        found = capsys.readouterr()
        return status, found.out, found.err

    return call


def test_from_a_request_to_its_evidence(said, tmp_path):
    run = 'erasure run --models app:models --out out'
    args = '--zone Europe/Berlin --backup-days 9'
    status, out, _ = said(f'{run} {args}')
    assert (status, out[:9]) == (0, '0 pending')
    status, out, _ = said('erasure add --nodes 3 --edges 8,9 10,11')
    number = out[:36]
    assert re.fullmatch(
        f'{number} is pending, due .*: partner pending; scores pending\n', out
    )
    # Too large a share waits for somebody, who is told.
    with pytest.warns(UserWarning, match='confirm'):
        status, out, _ = said(run)
    assert status == 3
    assert f'{number} waits for run --confirm' in out
    assert said('erasure status')[::2] == (3, '')
    assert said(f'{run} --confirm')[0] == 0
    status, out, _ = said(f'erasure done {number} partner')
    assert f'{number} is completed: partner by its owner; scores now' in out
    status, out, _ = said(f'erasure report {number} --out out/one.json')
    assert status == 0
    assert json.loads((tmp_path / 'out/one.json').read_text())['tasks']
    # A page for people: a verdict, who has it, what is open, nothing twice.
    assert said(f'erasure report {number} --out page.html')[0] == 0
    page = (tmp_path / 'page.html').read_text()
    page = re.sub('\n?<td data-name="[^"]*"', '<td', page)
    assert 'Erased: 2 of 2 models and recipients are done' in page
    assert '<td>partner</td><td>done</td><td>its owner states' in page
    assert '<td>removed from the model: ' in page
    assert 'the released weights are (' in page
    for text in re.findall('<li>(.*?)</li>', page):
        assert page.count(text) == 1
    assert page.split('<details>')[0].count('<li>') == 3
    model = loaded('scores.pt')
    assert 3 not in model.nodes
    # What it wrote can be checked; what the evidence alone states, it says.
    check = 'check-erasure out/one.json --ledger scores=out/ledgers/scores'
    status, out, _ = said(f'{check}.json')
    assert status == 3
    assert 'holds        the ledger of scores has the removal, once' in out
    evidence = (tmp_path / 'out/one.json').read_text()
    late = evidence.replace('"completed"', '"pending"')
    (tmp_path / 'out/one.json').write_text(late)
    assert said(f'{check}.json')[0] == 1
    # The file keeps the zone and the policy.
    desk = ErasureDesk('erasure.db')
    assert (str(desk.zone), desk.policy.backup_days) == ('Europe/Berlin', 9)


def test_a_request_that_needs_somebody(said, tmp_path):
    said('erasure run --models app:models')
    _, out, _ = said('erasure add --nodes 777')
    number = out[:36]
    status, out, _ = said('erasure run --models app:models')
    assert status == 3
    assert f'{number} was refused by scores' in out
    said(f'erasure report {number} --out page.html')
    page = (tmp_path / 'page.html').read_text()
    assert 'Not yet erased: 0 of 2 models' in page
    assert 'Ask the recipient' in page
    _, out, _ = said('erasure add --nodes 4 --received 2026-01-01T00:00:00Z')
    assert 'OVERDUE' in out
    status, out, _ = said('erasure status')
    assert status == 1
    assert 'is OVERDUE' in out


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('erasure', 'required'),
        ('erasure add --nodes three', "--nodes: invalid int value: 'three'"),
        ('erasure status', "'--desk' needs to be the file of a desk"),
        ('erasure run', '--models'),
        ('erasure run --models app', 'is no function'),
        ('erasure run --models app:other', "has no attribute 'other'"),
        ('erasure run --models none:models', "No module named 'none'"),
        ('check-erasure none.json', 'none.json'),
        ('check-erasure none.json --ledger a', '--ledger'),
    ],
)
def test_wrong_use_is_two(said, text, why):
    status, out, err = said(text)
    assert (status, out) == (2, '')
    assert why in err


def test_help_and_version(said):
    for words in ('', 'erasure ', 'erasure add ', 'erasure run '):
        status, out, _ = said(f'{words}--help')
        assert status == 0
        assert max(map(len, out.splitlines())) <= 80
    assert 'def models(desk):' in out
    assert 'exit status' in out
    assert said('--version')[1].startswith('pyg_trust 0')
