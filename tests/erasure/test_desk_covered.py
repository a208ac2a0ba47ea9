"""Private models at the desk: what noise covers, and what evidence proves."""

import contextlib
import json

import pytest
import torch
from desks import ALL, Clock, fitted, graph, nodes, opened

from pyg_trust.erasure import ErasureDesk, Policy, check_erasure
from pyg_trust.erasure.store import Store
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.removal import RemovalRequest


def private(epsilon=0.2, **kwargs):
    made = PrivateNodeClassifier(
        'node', epsilon, 1e-3, steps=2, num_classes=2, **kwargs
    )
    return made.fit(graph(60))


def desk_of(folder, model, clock=None, policy=ALL):
    desk = opened(folder, clock=clock, policy=policy)
    desk.register(
        'private', model, save=folder / 'private.pt', data=lambda: graph(60)
    )
    return desk


def reopened(folder):
    again = PrivateNodeClassifier('node', 0.2, 1e-3, steps=2, num_classes=2)
    again.load(folder / 'private.pt')
    return again


def written(desk, folder, number, model):
    report = desk.report(number)
    evidence, lines = folder / 'one.json', folder / 'lines.json'
    evidence.write_text(report.to_json())
    lines.write_text(json.dumps(model.removals.state_dict()))
    return evidence, {'private': lines}


def test_a_private_model_covers_and_the_evidence_is_proved_anew(tmp_path):
    model = private()
    desk = desk_of(tmp_path, model)
    rows = [w.clone() for w in model._encoder.parameters()]
    number = desk.add(nodes(7)).subject_request_id
    assert desk.plan().models[0]['mode'] == 'covered'
    (report,) = desk.run()
    (task,) = report.tasks
    assert (task['mode'], task['state']) == ('covered', 'done')
    line = model.removals.entries[-1]
    assert line.reference == task['reference']
    assert task['promise']['mu'] == line.spent
    assert task['promise']['epsilon'] <= 1.0
    assert all(map(torch.equal, rows, model._encoder.parameters()))
    assert model.predict()[7] == -1
    path, lines = written(desk, tmp_path, number, model)
    found = check_erasure(path, lines)
    assert [f.status for f in found] == ['holds', 'holds']
    # The file is that of the model after it.
    assert reopened(tmp_path).removals.head == model.removals.head


def test_capacity_goes_to_the_oldest_and_ends_with_a_reason(tmp_path):
    clock, model = Clock(), private(0.5)
    desk = desk_of(tmp_path, model, clock)
    numbers = []
    # Together they are too much; whoever is due first has the first place.
    for k in range(5):
        due = f'2026-03-0{5 - k}T12:00:00Z'
        made = desk.add(nodes(10 * k), received_time=due)
        numbers.append(made.subject_request_id)
    desk.run()
    done = [desk.report(n).request_status == 'completed' for n in numbers]
    assert 0 < sum(done) < 5
    assert done == sorted(done)
    refused = dict(desk.status().refused)
    assert set(refused) == {
        n for n, d in zip(numbers, done, strict=True) if not d
    }
    (task,) = desk.report(numbers[0]).tasks
    assert 'fit again without them' in task['note']
    before = model.removals.spent
    desk.run()
    assert model.removals.spent == before
    # The owner fits it again, and says so.
    assert desk.done(numbers[0], 'private').request_status == 'completed'


def test_policy_and_request_can_ask_for_more(tmp_path):
    model = private()
    desk = desk_of(
        tmp_path, model, policy=Policy(max_share=1.0, coverage_epsilon=0.01)
    )
    number = desk.add(nodes(7)).subject_request_id
    assert desk.run() == ()
    (task,) = desk.report(number).tasks
    assert task['state'] == 'refused'
    assert 'coverage_epsilon' in task['note']
    desk.close()
    other = tmp_path / 'other'
    other.mkdir()
    desk = desk_of(other, model)
    number = desk.add(nodes(8), exact=True).subject_request_id
    assert desk.run() == ()
    (task,) = desk.report(number).tasks
    assert task['state'] == 'refused'
    assert 'not exact' in task['note']
    assert model.removals.spent == 0
    with pytest.raises(ValueError, match="'coverage_epsilon'"):
        desk_of(tmp_path, model, policy=Policy(coverage_epsilon=2.0))
    with pytest.raises(ValueError, match="'data'"):
        desk.register('two', private(), save=tmp_path / 'two.pt')
    with pytest.raises(ValueError, match="'data'"):
        desk.register(
            'two', fitted(), save=tmp_path / 'two.pt', data=lambda: graph(60)
        )


def test_a_hub_and_what_a_relation_does_not_cover_are_refused(tmp_path):
    model = private()
    desk = desk_of(tmp_path, model)
    one = desk.add(RemovalRequest(edges=[(0, 1)])).subject_request_id
    two = desk.add(nodes(3)).subject_request_id
    desk.run()
    assert dict(desk.status().refused) == {one: 'private'}
    assert desk.report(two).request_status == 'completed'


def test_a_restored_private_model_covers_again_once(tmp_path):
    clock, policy = Clock(), Policy(max_share=1.0, backup_days=30)
    model = private()
    desk = desk_of(tmp_path, model, clock, policy)
    model.save(tmp_path / 'private.pt')
    old = (tmp_path / 'private.pt').read_bytes()
    desk.add(nodes(7))
    desk.run()
    desk.close()
    (tmp_path / 'private.pt').write_bytes(old)

    again = reopened(tmp_path)
    desk = desk_of(tmp_path, again, clock, policy)
    desk.run()
    desk.run()
    assert len(again.removals.entries) == 2
    assert reopened(tmp_path).removals.head == again.removals.head
    assert not again.released[0][7].any()


def test_two_desks_cover_by_one_private_model(tmp_path):
    private().save(tmp_path / 'private.pt')
    desks = []
    for name in ('one', 'two'):
        (tmp_path / name).mkdir()
        desk = ErasureDesk(
            tmp_path / name / 'desk.db', clock=Clock(), policy=ALL
        )
        desk.register(
            'private',
            reopened(tmp_path),
            save=tmp_path / 'private.pt',
            data=lambda: graph(60),
        )
        desks.append(desk)
    one, two = desks
    one.add(nodes(7))
    # The same person twice, and another one.
    two.add(nodes(7))
    two.add(nodes(9))
    one.run()
    assert len(two.run()) == 2
    model = reopened(tmp_path)
    lines = model.removals.entries
    assert [line.request for line in lines[1:]] == [
        {'0': {'nodes': [7]}},
        {'0': {'nodes': [9]}},
    ]
    # What the one has spent counts for the other.
    assert lines[2].spent > lines[1].spent
    assert not model.released[0][[7, 9]].any()


def test_a_stop_at_any_statement_of_a_private_run_is_continued(
    tmp_path, monkeypatch
):
    first = tmp_path / 'first'
    first.mkdir()
    private().save(first / 'private.pt')
    content = (first / 'private.pt').read_bytes()
    plain, k = Store.rows, 0
    while True:
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / 'private.pt').write_bytes(content)
        left = [10**9]

        def stopping(self, *query, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return plain(self, *query)

        monkeypatch.setattr(Store, 'rows', stopping)
        desk = desk_of(folder, reopened(folder))
        number = desk.add(nodes(7)).subject_request_id
        left[0] = k
        with contextlib.suppress(KeyboardInterrupt):
            desk.run()
        monkeypatch.undo()
        desk.close()
        model = reopened(folder)
        desk = desk_of(folder, model)
        desk.run()
        assert desk.report(number).request_status == 'completed'
        assert len(model.removals.entries) == 2
        assert reopened(folder).removals.head == model.removals.head
        desk.close()
        if left[0] >= 0:
            break
        k += 1
    assert k > 20


# Evidence ####################################################################

GOOD = {'holds', 'not checked', 'not proved'}


def fields_of(values):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((name, *path) for path in fields_of(value))
        else:
            yield (name,)


def changed(values, path, value):
    made = json.loads(json.dumps(values))
    at = made
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return made


# Nothing else speaks of these: ids, texts, and when it came and ended.
ALONE = {
    *('subject_request_id', 'subject_request_type', 'halted', 'reason'),
    *('received_time', 'completed_time', 'backups_until', 'is_model'),
    *('finished', 'note', 'procedure', 'promise', 'assumptions'),
    *('not_covered', 'model', 'zone'),
}


def test_every_field_of_evidence_that_is_forged_is_found_or_listed(tmp_path):
    model = private()
    desk = desk_of(tmp_path, model)
    desk.add(nodes(9))
    desk.run()
    number = desk.add(nodes(7)).subject_request_id
    desk.run()
    path, lines = written(desk, tmp_path, number, model)
    values = json.loads(path.read_text())
    (task,) = values['tasks']
    forged = set()
    hostile = (None, '', 'x', 0, -1, 1e-9, True, [], {}, '0' * 64, '0' * 32)
    hostile += ('2020-01-01T00:00:00Z', 'by its owner', 'now', 'ccpa', 'nan')
    for field in fields_of({**values, 'tasks': None, **{'task': task}}):
        if field == ('tasks',):
            continue
        for value in hostile:
            if field[0] == 'task':
                made = {**values, 'tasks': [changed(task, field[1:], value)]}
            else:
                made = changed(values, field, value)
            if made == values:
                continue
            path.write_text(json.dumps(made))
            try:
                statuses = {f.status for f in check_erasure(path, lines)}
            except ValueError:
                continue
            if statuses == {'holds'}:
                forged.add(field[-1])
    assert forged <= ALONE, forged - ALONE


@pytest.mark.parametrize(
    ('words', 'change'),
    [
        ('no model or recipient', {'tasks': []}),
        (
            'before it came',
            {
                'received_time': '2026-03-10T00:00:00-23:00',
                'expected_completion_time': '2026-04-11T21:59:59Z',
            },
        ),
    ],
)
def test_evidence_of_nobody_or_of_another_day_fails(tmp_path, words, change):
    model = private()
    desk = desk_of(tmp_path, model)
    number = desk.add(nodes(7)).subject_request_id
    desk.run()
    path, lines = written(desk, tmp_path, number, model)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found = check_erasure(path, lines if 'tasks' not in change else None)
    assert [words in f.text for f in found if f.status == 'FAILS'] == [True]


def test_a_mode_without_a_line_never_holds(tmp_path):
    model = private()
    desk = desk_of(tmp_path, model)
    number = desk.add(nodes(7)).subject_request_id
    path, lines = written(desk, tmp_path, number, model)
    values = json.loads(path.read_text())
    # Nothing was removed: the evidence says it was.
    for mode in (
        'by its owner',
        'removed before',
        'not in it',
        'now',
        'covered',
    ):
        (task,) = values['tasks']
        task = {**task, 'mode': mode, 'state': 'done'}
        made = {**values, 'tasks': [task], 'request_status': 'completed'}
        made['completed_time'] = values['received_time']
        path.write_text(json.dumps(made))
        try:
            statuses = {f.status for f in check_erasure(path, lines)}
        except ValueError:
            continue
        assert statuses != {'holds'}, mode
    stated = ('by its owner', 'removed before', 'not in it')
    # And where it was, no other mode passes for it.
    desk.run()
    path, lines = written(desk, tmp_path, number, model)
    values = json.loads(path.read_text())
    for mode in stated:
        task = {**values['tasks'][0], 'mode': mode}
        path.write_text(json.dumps({**values, 'tasks': [task]}))
        assert 'FAILS' in {f.status for f in check_erasure(path, lines)}
