"""Bad inputs of the desk for erasure requests."""

import tempfile
from pathlib import Path
from typing import Any

from bad_inputs import bad, values
from bad_table import FOLDER, entry
from desks import ALL, Clock, fitted, nodes

from pyg_trust.erasure import ErasureDesk

MODEL = values(3, None, 'model')
WORDS = values(3, None, '', 'a\nb', 'x' * 1001)
ID = values(3, 'anna', 'a' * 33, b'a')


def place() -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER))


def desk() -> ErasureDesk:
    made = ErasureDesk(place() / 'desk.db', clock=Clock(), policy=ALL)
    made.recipient('partner')
    return made


def asked() -> tuple[ErasureDesk, dict[str, Any]]:
    made = desk()
    return made, {'subject_request_id': made.add(nodes(1)).subject_request_id}


entry(
    'erasure.ErasureDesk.register',
    lambda: (
        desk(),
        {'name': 'scores', 'model': fitted(), 'save': place() / 'a.pt'},
    ),
    bad(save=None),
    name=WORDS,
    model=MODEL,
)
entry(
    'erasure.ErasureDesk.done',
    lambda: (lambda made, given: (made, {**given, 'name': 'partner'}))(
        *asked()
    ),
    subject_request_id=ID,
    name=values(3, None, 'nobody'),
)


def evidence() -> dict[str, Any]:
    made, given = asked()
    report = made.done(given['subject_request_id'], 'partner')
    path = place() / 'one.json'
    path.write_text(report.to_json())
    return {'path': path}


def others() -> Any:
    for text in ('', '{}', '[1]', '{"tasks": 3}'):
        path = place() / 'bad.json'
        path.write_text(text)
        yield path


entry(
    'erasure.check_erasure',
    evidence,
    path=values(3, None, *others()),
    ledgers=values(3, 'a', {'nobody': 'a.json'}),
)
