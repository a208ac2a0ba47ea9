"""The command line of a desk: what it prints, and how it ends."""

import io
import json
import sys
import types
import uuid

import pytest
from desks import DAY, Clock, fitted, opened

from pyg_trust.erasure.cli import main


def test_commands_end_as_they_say(tmp_path, monkeypatch, capsys):
    clock, number = Clock(), str(uuid.uuid4())
    desk = opened(tmp_path, fitted(), clock)
    desk.recipient('partner')
    app = types.ModuleType('app_of_a_test')
    app.desk = lambda: desk
    monkeypatch.setitem(sys.modules, 'app_of_a_test', app)
    monkeypatch.setattr(sys, 'path', list(sys.path))

    def call(*words):
        return main(['--desk', 'app_of_a_test:desk', *words])

    asked = {'pyg_trust': {'request': {'0': {'nodes': [12]}}}}
    text = json.dumps({'subject_request_id': number, 'extensions': asked})
    monkeypatch.setattr(sys, 'stdin', io.StringIO(text))
    assert call('add') == 0
    assert call('run') == 0
    clock.now += 60 * DAY
    assert call('status') == 3
    assert number in capsys.readouterr().err
    assert call('done', number, 'partner') == 0
    file = str(tmp_path / 'evidence.json')
    assert call('report', number, '--save', file) == 0
    assert main(['check', file]) == 0
    changed = (tmp_path / 'evidence.json').read_text()
    changed = changed.replace('"overdue": true', '"overdue": false')
    (tmp_path / 'evidence.json').write_text(changed)
    assert main(['check', file]) == 1
    assert call('cancel', number, 'late') == 2
    with pytest.raises(SystemExit):
        call('forget')
