"""The desk for erasure requests: dates, plans, completion, refusals."""

import json
import os
import random
import sqlite3
import sys
import threading
import time
import uuid

import pytest
import torch
from desks import (
    ALL,
    DAY,
    NOON,
    Clock,
    Slow,
    all_bytes,
    fitted,
    graph,
    loaded,
    nodes,
    opened,
    sharded,
)

from pyg_trust.erasure import ErasureDesk, Policy, check_erasure, fields
from pyg_trust.files.commit import StaleStateError
from pyg_trust.ledger import PrivacyLedger
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import (
    NodeClassifier,
    ScatteringClassifier,
)
from pyg_trust.update import NewNodes, Update

# Dates #######################################################################


def month_later(text, zone='Europe/Berlin', regulation='gdpr'):
    received = fields.read('received_time', text)
    return fields.written(
        fields.due(received, fields.find_zone(zone), regulation)
    )


@pytest.mark.parametrize(
    ('received', 'zone', 'due'),
    [
        # The last day of a month that has no such date; leap years.
        ('2026-01-31T10:00:00Z', 'Europe/Berlin', '2026-02-28T22:59:59Z'),
        ('2028-01-31T10:00:00Z', 'Europe/Berlin', '2028-02-29T22:59:59Z'),
        ('2026-01-15T10:00:00Z', 'UTC', '2026-02-15T23:59:59Z'),
        # Thirty days later would be 2 March.
        ('2026-01-31T10:00:00Z', 'UTC', '2026-02-28T23:59:59Z'),
        ('2026-08-31T10:00:00Z', 'UTC', '2026-09-30T23:59:59Z'),
        ('2026-12-31T10:00:00Z', 'UTC', '2027-01-31T23:59:59Z'),
        # The date is that of the zone: already 1 March in Auckland.
        ('2026-02-28T12:00:00Z', 'Pacific/Auckland', '2026-04-01T10:59:59Z'),
        # Summer time begins in between.
        ('2026-03-10T12:00:00Z', 'Europe/Berlin', '2026-04-10T21:59:59Z'),
        ('2026-03-10T12:00:00+05:00', 'UTC', '2026-04-10T23:59:59Z'),
        # 30 December 2011 is missing in Apia: its end is that of the 29th.
        ('2011-11-30T12:00:00Z', 'Pacific/Apia', '2011-12-30T09:59:59Z'),
    ],
)
def test_a_month_ends_with_the_same_date(received, zone, due):
    assert month_later(received, zone) == due
    # In California there are 45 days.
    found = month_later('2026-01-01T12:00:00Z', 'UTC', 'ccpa')
    assert found == '2026-02-15T23:59:59Z'


# From a request to its completion ############################################


def test_a_request_is_forgotten_told_and_erased(tmp_path):
    model = fitted()
    model.save(tmp_path / 'scores.pt')
    desk = opened(tmp_path)
    desk.recipient('partner')
    person = '700000000000007'
    number = str(uuid.uuid4())

    def names(request):
        return nodes(*(v % 100 for v in request.parts[0].nodes))

    desk.register('scores', model, save=tmp_path / 'scores.pt', names=names)
    added = desk.add(
        nodes(int(person)),
        subject_request_id=number.upper(),
    )
    assert added.subject_request_id == number
    assert added.request_status == 'pending'
    assert added.expected_completion_time == '2026-04-10T21:59:59Z'
    assert person.encode() in all_bytes(tmp_path)
    assert desk.run() == ()
    assert 7 not in model.nodes
    report = desk.report(number)
    assert report.request_status == 'in_progress'
    assert [t['state'] for t in report.tasks] == ['pending', 'done']
    report = desk.done(number, 'partner')
    assert report.request_status == 'completed'
    task = report.tasks[1]
    line = model.ledger.entries[-1]
    assert (task['reference'], task['head']) == (line.reference, line.link)
    assert task['promise']['procedure'].startswith('certified removal')
    assert not report.overdue
    # Who asked is nowhere any more.
    assert person.encode() not in all_bytes(tmp_path)
    saved = loaded(tmp_path / 'scores.pt')
    assert 7 not in saved.nodes
    assert desk.run() == ()
    assert len(model.ledger.entries) == 2
    # The page names nobody, and can be checked.
    (tmp_path / 'trust.json').write_text(report.to_json())
    assert person.encode() not in all_bytes(tmp_path)
    assert 'nodes": [' not in report.to_json()
    found = check_erasure(tmp_path / 'trust.json')
    assert [(f.status, f.text) for f in found] == [
        (
            'not proved',
            "partner is 'by its owner': stated by the evidence alone",
        ),
        ('not checked', 'scores: its ledger was not passed'),
    ]


def test_the_same_request_twice_is_one(tmp_path):
    desk = opened(tmp_path, fitted())
    number = str(uuid.uuid4())
    given = {'subject_request_id': number, 'regulation': 'ccpa'}
    first = desk.add(nodes(3), **given)
    desk._clock.now += DAY
    assert desk.add(nodes(3), **given) == first
    for other in (
        {'request': nodes(4)},
        {'regulation': 'gdpr'},
        {'received_time': '2026-01-01T00:00:00Z'},
        {'immediately': True},
        {'exact': True},
    ):
        with pytest.raises(ValueError, match='other content'):
            desk.add(**{'request': nodes(3), **given, **other})
    assert desk.status().pending == len(desk.status().open) == 1
    desk.run()
    # What it named is gone: nobody can tell whether it is the same.
    for request in (nodes(3), nodes(4)):
        with pytest.raises(ValueError, match=r'closed \(completed\).*new id'):
            desk.add(request, **given)
    assert desk.report(number).request_status == 'completed'
    assert desk.status().completed == 1
    assert desk.status().open == ()


def test_a_tombstone_tells_an_id_that_was_used_before(tmp_path):
    clock, number = Clock(), str(uuid.uuid4())
    desk = opened(tmp_path, fitted(), clock, Policy(backup_days=9))
    given = {'subject_request_id': number}
    desk.add(nodes(3), **given)
    desk.run()
    assert desk.add(nodes(3), **given).request_status == 'completed'
    with pytest.raises(ValueError, match='other content'):
        desk.add(nodes(4), **given)
    clock.now += 10 * DAY
    desk.run()
    with pytest.raises(ValueError, match='is closed'):
        desk.add(nodes(3), **given)


def test_paths_are_those_of_the_call(tmp_path, monkeypatch):
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path)
    model = fitted()
    desk = ErasureDesk('desk.db', policy=ALL)
    desk.register('scores', model, save='scores.pt')
    desk.add(nodes(3))
    monkeypatch.chdir('elsewhere')
    assert len(desk.run()) == 1
    served = loaded(tmp_path / 'scores.pt')
    assert 3 not in served.nodes
    monkeypatch.chdir(tmp_path)
    ledger = PrivacyLedger('spent', {})
    monkeypatch.chdir('elsewhere')
    ledger.record(1.0, 0.5)
    assert not any((tmp_path / 'elsewhere').iterdir())


def test_an_error_of_a_model_goes_with_its_request(tmp_path):
    class Failing(Slow):
        def remove(self, request, *, reference='', on_report=None):
            raise ValueError('no row 987654 of Erika Mustermann')

    desk = opened(tmp_path)
    desk.register('scores', Failing(0.0))
    number = desk.add(nodes(3)).subject_request_id
    desk.run()
    (task,) = desk.report(number).tasks
    assert task['note'] == 'no row # of Erika Mustermann'
    assert b'Mustermann' in all_bytes(tmp_path)
    (task,) = desk.cancel(number, 'withdrawn').tasks
    assert task['note'] == ''
    assert b'Mustermann' not in all_bytes(tmp_path)


def test_batches_wait_for_the_latest_start(tmp_path):
    clock, model = Clock(), Slow(7200.0)
    desk = opened(tmp_path, clock=clock)
    desk.register('shards', model)
    for node in (1, 2, 3):
        desk.add(nodes(node))
        desk.run()
        clock.now += DAY
    assert model.calls == []
    (row,) = desk.plan().models
    # Three times two hours before the first date, that of 10 April.
    assert (row['mode'], row['requests']) == ('batch', 3)
    assert row['due'] == '2026-04-10T21:59:59Z'
    assert row['starts'] == '2026-04-10T15:59:59Z'
    clock.now = fields.read('', row['starts']).timestamp() - 1
    assert desk.run() == ()
    clock.now += 1
    done = desk.run()
    assert [r.overdue for r in done] == [False] * 3
    assert [r.to_dict() for r in model.calls] == [nodes(1, 2, 3).to_dict()]
    # A request that can't wait takes all others with it.
    desk.add(nodes(4))
    desk.add(nodes(5), immediately=True)
    assert len(desk.run()) == 2
    assert len(model.calls) == 2


def test_the_reserve_counts_the_batches_of_other_models(tmp_path):
    desk = opened(tmp_path)
    desk.register('one', Slow(7200.0))
    desk.register('two', Slow(0.0, fitted(seed=1)))
    desk.add(nodes(1))
    first = desk.plan().models[0]
    assert first['starts'] == '2026-04-10T15:59:59Z'
    desk._sql(
        'INSERT INTO batch (id, place, state, mode, seconds) VALUES '
        "('a', 'two', 'superseded', 'now', 3600.0), "
        "('b', 'two', 'superseded', 'now', 60.0)"
    )
    # Three times an hour more.
    assert desk.plan().models[0]['starts'] == '2026-04-10T12:59:59Z'


def test_a_held_request_waits_and_a_paused_one_is_late(tmp_path):
    clock, model = Clock(), fitted()
    desk = opened(tmp_path, model, clock)
    held = desk.add(nodes(1)).subject_request_id
    paused = desk.add(nodes(2)).subject_request_id
    gone = desk.add(nodes(3)).subject_request_id
    assert desk.hold(held, 'legal claims').halted == 'held'
    assert desk.hold(paused, 'who asks?', paused=True).halted == 'paused'
    assert desk.cancel(gone, 'unfounded').request_status == 'cancelled'
    assert desk.run() == ()
    clock.now += 60 * DAY
    assert desk.status().overdue == (paused,)
    assert dict(desk.status().halted) == {held: 'held', paused: 'paused'}
    desk.resume(paused)
    (report,) = desk.run()
    assert report.overdue
    desk.resume(held)
    assert len(desk.run()) == 1
    assert 3 in model.nodes
    with pytest.raises(ValueError, match='open request'):
        desk.cancel(gone, 'again')


def test_what_is_gone_is_done_and_what_never_was_is_refused(tmp_path):
    desk = opened(tmp_path, model := fitted())
    desk.add(RemovalRequest(nodes=[5], edges=[(8, 9)]))
    desk.run()
    lines = len(model.ledger.entries)
    # With their nodes, or in the other direction.
    done = [
        desk.add(request).subject_request_id
        for request in (
            nodes(5),
            RemovalRequest(edges=[(5, 6)]),
            RemovalRequest(edges=[(9, 8)]),
            RemovalRequest(features=[5]),
        )
    ]
    stranger = desk.add(nodes(777)).subject_request_id
    part = desk.add(nodes(11, 777)).subject_request_id
    half = desk.add(RemovalRequest(nodes=[5, 12])).subject_request_id
    good = desk.add(nodes(13)).subject_request_id
    found = {report.subject_request_id for report in desk.run()}
    assert found == {*done, half, good, part}
    for number in done:
        (task,) = desk.report(number).tasks
        assert task['mode'] == 'removed before'
    assert {11, 12, 13}.isdisjoint(model.nodes.tolist())
    # What is there went, once; the note omits who was not there.
    (task,) = desk.report(part).tasks
    assert task['note'] == '1 of its items were not there'
    assert desk.status().refused == ((stranger, 'scores'),)
    (task,) = desk.report(stranger).tasks
    assert 'never was' in task['note']
    assert '777' not in task['note']
    assert len(model.ledger.entries) == lines + 1
    desk.run()
    assert len(model.ledger.entries) == lines + 1
    assert desk.done(stranger, 'scores').request_status == 'completed'
    for number, status in ((good, ['holds']), (part, ['not proved', 'holds'])):
        found = check(desk, tmp_path, number, model)
        assert [each.status for each in found] == status


def restored(folder, content):
    (folder / 'scores.pt').write_bytes(content)
    model = loaded(folder / 'scores.pt')
    return model


def test_a_backup_older_than_an_addition_forgets_what_it_has(tmp_path):
    policy = Policy(max_share=1.0, backup_days=30)
    model = fitted()
    model.save(tmp_path / 'scores.pt')
    backup = (tmp_path / 'scores.pt').read_bytes()
    new = NewNodes(torch.rand(1, 4), torch.tensor([0]))
    model.update(Update(nodes=new))
    model.save(tmp_path / 'scores.pt')
    desk = opened(tmp_path, model, policy=policy)
    # An old node and the new one; and the new one alone.
    both, alone = (desk.add(nodes(*v)) for v in ((1, 24), (24,)))
    desk.run()
    desk.close()
    model = restored(tmp_path, backup)
    desk = opened(tmp_path, model, policy=policy)
    desk.run()
    assert 1 not in model.nodes
    assert desk.status().completed == 2
    found = [
        desk.report(each.subject_request_id).tasks[0] for each in (both, alone)
    ]
    assert found[0]['mode'] == 'again'
    assert found[0]['note'] == '1 of its items were not there'
    assert found[1]['mode'] == 'not in it'
    assert desk.run() == ()


def test_an_older_desk_removes_nothing_that_came_again(tmp_path):
    fitted().save(tmp_path / 'scores.pt')
    model = restored(tmp_path, (tmp_path / 'scores.pt').read_bytes())
    desk = opened(tmp_path, model)
    edge = desk.add(RemovalRequest(edges=[(8, 9)])).subject_request_id
    desk.close()
    older = (tmp_path / 'desk.db').read_bytes()
    desk = opened(tmp_path, model)
    assert len(desk.run()) == 1
    desk.close()
    # Its owner adds the edge again; then yesterday's desk is put back.
    model.update(Update(edges=torch.tensor([[8], [9]])), release=True)
    model.save(tmp_path / 'scores.pt')
    lines = len(model.ledger.entries)
    (tmp_path / 'desk.db').write_bytes(older)
    desk = opened(tmp_path, model)
    other = desk.add(nodes(3)).subject_request_id
    assert {r.subject_request_id for r in desk.run()} == {edge, other}
    assert len(model.ledger.entries) == lines + 1
    assert [8, 9] in model.graph.to_edge_index()[0].t().tolist()
    (task,) = desk.report(edge).tasks
    assert (task['mode'], task['promise']) == ('in the ledger', {})
    found = check(desk, tmp_path, edge, model)
    assert [each.status for each in found] == ['not proved', 'holds']


def check(desk, folder, number, model):
    (folder / 'one.json').write_text(desk.report(number).to_json())
    state = model.ledger.state_dict()
    (folder / 'ledger.json').write_text(json.dumps(state))
    return check_erasure(
        folder / 'one.json', {'scores': folder / 'ledger.json'}
    )


@pytest.mark.parametrize('first', range(3))
def test_requests_that_name_each_other(tmp_path, first):
    asked = [
        nodes(3),
        RemovalRequest(edges=[(3, 4), (4, 5)]),
        RemovalRequest(nodes=[4], edges=[(3, 4)]),
    ]
    for together in (True, False):
        folder = tmp_path / str(together)
        folder.mkdir()
        desk = opened(folder, model := fitted())
        for request in asked[first:] + asked[:first]:
            desk.add(request)
            if not together:
                desk.run()
        desk.run()
        assert desk.status().completed == 3
        assert {3, 4}.isdisjoint(model.nodes.tolist())


def test_models_with_names_of_their_own(tmp_path):
    first, second = fitted(), fitted(seed=1)
    desk = ErasureDesk(tmp_path / 'desk.db', clock=Clock(), policy=ALL)
    people = {700010007000100: [1, 2], 700010007000200: []}

    def names(request):
        found = [v for p in request.parts[0].nodes for v in people[p]]
        return nodes(*found) if found else None

    desk.register('one', first, save=tmp_path / 'one.pt', names=names)
    desk.register(
        'two', second, save=tmp_path / 'two.pt', names=lambda r: None
    )
    desk.add(nodes(700010007000100))
    desk.add(nodes(700010007000200))
    reports = desk.run()
    assert len(reports) == 2
    assert {1, 2}.isdisjoint(first.nodes.tolist())
    assert len(second.ledger.entries) == 1
    modes = sorted(t['mode'] for r in reports for t in r.tasks)
    assert modes.count('not in it') == 3
    assert b'700010007000100' not in all_bytes(tmp_path)


def test_a_share_is_at_most_all(tmp_path):
    # More ids than there are nodes, as some never were.
    desk = opened(tmp_path, fitted(), policy=Policy(max_share=1.0))
    desk.add(RemovalRequest(nodes=range(2, 40)))
    (row,) = desk.plan().models
    assert row['share'] == 1
    assert not row['needs_confirmation']


def test_too_large_a_share_needs_to_be_confirmed(tmp_path):
    desk = opened(tmp_path, model := fitted(), policy=Policy())
    desk.add(nodes(1, 2))
    (row,) = desk.plan().models
    assert row['share'] == pytest.approx(2 / 24)
    assert row['needs_confirmation']
    assert desk.status().unconfirmed == ()
    with pytest.warns(
        UserWarning, match=r'name 8.3% of .scores.*confirm=True'
    ):
        assert desk.run() == ()
    assert 1 in model.nodes
    (waits,) = desk.status().unconfirmed
    assert waits[1] == 'scores'
    assert 'unconfirmed=1, open=1, next_due=' in repr(desk.status())
    assert waits[0] in str(desk.status())
    assert len(desk.run(confirm=True)) == 1
    assert desk.status().unconfirmed == ()


def test_other_models(tmp_path):
    graphs = [graph(6, seed=i) for i in range(8)]
    for i, each in enumerate(graphs):
        each.y = torch.tensor([i % 2])
        del each.train_mask
    transform = GraphScattering(J=2, Q=1, L=2)
    whole = ScatteringClassifier(transform, weight_decay=0.1, seed=0).fit(
        graphs
    )
    shards = sharded(tmp_path).fit(graph())
    desk = ErasureDesk(tmp_path / 'desk.db', clock=Clock(), policy=ALL)
    desk.register('graphs', whole, save=tmp_path / 'graphs.pt')
    desk.register(
        'shards',
        shards,
        names=lambda r: None if r.graphs != [0] else r,
    )
    desk.add(RemovalRequest(graphs=[3]))
    desk.add(RemovalRequest(nodes={0: [2]}))
    assert len(desk.run()) == 2
    assert 3 not in whole.graphs
    assert 2 not in shards.n_id
    again = sharded(tmp_path).load()
    assert again.ledger.entries[-1].reference


# What dies, and what is restored #############################################


def test_a_backup_that_is_too_old_is_refused(tmp_path):
    clock, policy = Clock(), Policy(max_share=1.0, backup_days=10)
    fitted().save(tmp_path / 'scores.pt')
    backup = (tmp_path / 'scores.pt').read_bytes()

    def reopened(model=None, **given):
        if model is None:
            model = loaded(tmp_path / 'scores.pt')
        desk = opened(tmp_path, None, clock, policy)
        desk.register('scores', model, save=tmp_path / 'scores.pt', **given)
        return desk

    desk = reopened()
    desk.add(nodes(5))
    (report,) = desk.run()
    assert report.backups_until == '2026-03-20T12:00:00Z'
    # Once the last backup is gone, so are the items.
    clock.now += 11 * DAY
    desk.run()
    assert desk._sql('SELECT * FROM tombstone') == []
    desk.close()
    (tmp_path / 'scores.pt').write_bytes(backup)
    desk = reopened()
    desk.add(nodes(6))
    for _ in range(2):
        with pytest.raises(RuntimeError, match='cannot be repeated'):
            desk.run()
    assert desk.status().completed == 1
    desk.close()
    # Fitted again by its owner, without the person.
    (tmp_path / 'scores.pt').unlink()
    assert len(reopened(fitted(), fresh=True).run()) == 1


@pytest.mark.parametrize('which', [('desk.db',), ('desk.db', 'scores.pt')])
def test_an_older_desk_loses_nothing_and_removes_nothing_twice(
    tmp_path, which
):
    fitted().save(tmp_path / 'scores.pt')

    def reopened():
        model = loaded(tmp_path / 'scores.pt')
        return opened(tmp_path, model), model

    desk, _ = reopened()
    number = desk.add(nodes(3)).subject_request_id
    desk.close()
    older = {name: (tmp_path / name).read_bytes() for name in which}
    desk, model = reopened()
    assert len(desk.run()) == 1
    desk.close()
    for name, content in older.items():
        (tmp_path / name).write_bytes(content)
    desk, model = reopened()
    (report,) = desk.run()
    assert report.subject_request_id == number
    both = len(which) == 2
    assert report.tasks[0]['mode'] == ('now' if both else 'in the ledger')
    named = [e.request for e in model.ledger.entries if e.request]
    assert named == [{'nodes': [3]}]
    assert 3 not in model.nodes


def test_two_desks_and_one_model(tmp_path):
    model = fitted()
    model.save(tmp_path / 'scores.pt')
    other = loaded(tmp_path / 'scores.pt')
    one = opened(tmp_path, model)
    folder = tmp_path / 'two'
    folder.mkdir()
    two = ErasureDesk(folder / 'desk.db', clock=Clock(), policy=ALL)
    two.register('scores', other, save=tmp_path / 'scores.pt')
    one.add(nodes(1))
    two.add(nodes(2))
    one.run()
    # The second takes over what the first has saved.
    assert len(two.run()) == 1
    assert {1, 2}.isdisjoint(other.nodes.tolist())
    assert [bool(e.reference) for e in other.ledger.entries] == [0, 1, 1]
    # A model that both have changed: nothing is lost, the desk says so.
    one.add(nodes(3))
    two.add(nodes(4))
    catch = one._places['scores'].catch_up
    one._places['scores'].catch_up = lambda: None
    with pytest.raises(RuntimeError, match='Nothing was written') as error:
        one.run()
    assert isinstance(error.value.__cause__, StaleStateError)
    one._places['scores'].catch_up = catch
    again = loaded(tmp_path / 'scores.pt')
    one.close()
    one = opened(tmp_path, again)
    assert len(one.run()) == 1
    assert 3 not in again.nodes
    assert len(two.run()) == 1


def test_a_model_that_fails_keeps_no_other_from_its_work(tmp_path):
    good, bad = fitted(), fitted(seed=1)
    desk = opened(tmp_path, good)

    class Broken(Slow):
        def remove(self, request, *, reference='', on_report=None):
            raise RuntimeError('out of memory')

    desk.register('broken', broken := Broken(0.0, bad))
    number = desk.add(nodes(1)).subject_request_id
    with pytest.raises(RuntimeError, match="'broken': out of memory"):
        desk.run()
    assert 1 not in good.nodes
    states = [task['state'] for task in desk.report(number).tasks]
    assert states == ['pending', 'done']
    broken.__class__ = Slow
    assert len(desk.run()) == 1
    assert len(good.ledger.entries) == 2


# Refusals ####################################################################


def test_bad_requests_change_nothing(tmp_path):
    desk = opened(tmp_path)
    with pytest.raises(ValueError, match='registered first'):
        desk.add(nodes(1))
    desk.register('scores', fitted(), save=tmp_path / 'scores.pt')
    for words, given in (
        ('future', {'received_time': '2026-03-10T12:00:01Z'}),
        ('with its zone', {'received_time': '2026-03-10T12:00:01'}),
        ('with its zone', {'received_time': 3}),
        ('from 1970 on', {'received_time': '0026-03-10T12:00:00Z'}),
        ('regulation', {'regulation': 'lgpd'}),
        ('UUID', {'subject_request_id': 'anna@example.org'}),
    ):
        with pytest.raises(ValueError, match=words) as error:
            desk.add(**{'request': nodes(1), **given})
        assert 'anna' not in str(error.value).lower()
    for given in (
        {'request': {'0': {}}},
        {'request': None},
        {'exact': 'no'},
    ):
        with pytest.raises((TypeError, ValueError)):
            desk.add(**{'request': nodes(1), **given})
    assert desk.status().pending == 0
    assert desk._sql('SELECT count(*) FROM task') == [(0,)]


def test_bad_places_are_refused(tmp_path):
    desk = opened(tmp_path, model := fitted())
    for words, args in (
        ('taken', ('scores', model, 'a.pt')),
        ('fitted first', ('new', NodeClassifier(weight_decay=0.1), 'a.pt')),
        ("'save'", ('new', model, None)),
        ('printable', ('a\tb', model, 'a.pt')),
    ):
        with pytest.raises(ValueError, match=words):
            desk.register(args[0], args[1], save=args[2])
    with pytest.raises(ValueError, match="'save'"):
        desk.register('new', Slow(1.0), save='a.pt')
    for other in (torch.nn.Linear(2, 2), object()):
        with pytest.raises(TypeError, match='recipient'):
            desk.register('new', other, save='a.pt')
    with pytest.raises(ValueError, match='is a model'):
        desk.recipient('scores')
    desk.recipient('partner')
    desk.recipient('partner')
    with pytest.raises(ValueError, match='is a recipient'):
        desk.register('partner', model, save='a.pt')
    number = desk.add(nodes(1)).subject_request_id
    for name in ('nobody', 'SCORES'):
        with pytest.raises(ValueError, match='whose task is none'):
            desk.done(number, name)
    for call in (desk.report, desk.resume):
        with pytest.raises(ValueError, match='subject_request_id'):
            call(str(uuid.uuid4()))


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / 'desk.db'
    with pytest.raises(ValueError, match="'zone'"):
        ErasureDesk(path, zone='Europe/Atlantis')
    assert not path.exists()
    ErasureDesk(path, zone='UTC').close()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="needs to be 'UTC'"):
        ErasureDesk(path, zone='Europe/Berlin')
    wal = sqlite3.connect(path)
    wal.execute('PRAGMA journal_mode = WAL')
    wal.close()
    with pytest.raises(ValueError, match='write-ahead'):
        ErasureDesk(path, zone='UTC')
    other = tmp_path / 'other.db'
    strange = sqlite3.connect(other)
    strange.execute('CREATE TABLE a (b)')
    strange.commit()
    strange.close()
    before = other.read_bytes()
    os.chmod(other, 0o600)
    with pytest.raises(ValueError, match='file of an erasure desk'):
        ErasureDesk(other)
    assert other.read_bytes() == before
    other.write_bytes(b'not a database, but long enough' * 100)
    with pytest.raises(ValueError, match='file of an erasure desk'):
        ErasureDesk(other)
    os.chmod(other, 0o644)
    with pytest.raises(ValueError, match='chmod 600'):
        ErasureDesk(other)


def test_another_thread_is_refused(tmp_path):
    desk = opened(tmp_path, fitted())
    found = []

    def work():
        try:
            desk.add(nodes(1))
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 'thread that opened it' in found[0]
    assert desk.add(nodes(1)).request_status == 'pending'


def test_a_clock_that_jumps_loses_nothing(tmp_path):
    clock = Clock()
    desk = opened(tmp_path, fitted(), clock)
    number = desk.add(nodes(1)).subject_request_id
    clock.now -= 400 * DAY
    (report,) = desk.run()
    assert report.completed_time == report.received_time
    for bad in (float('nan'), float('inf'), 1e300):
        clock.now = bad
        with pytest.raises(ValueError, match="'clock'"):
            desk.add(nodes(2))
    clock.now = NOON.timestamp()
    assert desk.report(number) == report


# What is left in the file ####################################################


@pytest.mark.parametrize('seed', [5, 10])
def test_nothing_stays_in_the_file(tmp_path, seed):
    desk = opened(tmp_path)
    desk.recipient('partner')
    draw, numbers = random.Random(seed), {}
    for k in range(60):
        first = 10**12 + 1000 * k
        size = draw.choice([1, 20, 700])
        number = str(uuid.UUID(int=draw.getrandbits(128)))
        desk.add(nodes(*range(first, first + size)), subject_request_id=number)
        numbers[number] = str(first).encode()[:-2]
        # A row that grows moves to another page.
        if k > 3 and draw.random() < 0.5:
            desk.hold(draw.choice([*numbers]), 'x' * draw.randint(1, 1000))
    assert all(name in all_bytes(tmp_path) for name in numbers.values())
    gone = draw.sample([*numbers], len(numbers))
    for count, number in enumerate(gone, 1):
        if draw.random() < 0.5:
            desk.done(number, 'partner')
        else:
            desk.cancel(number, 'unfounded')
        if count % 20 == 0:
            held = all_bytes(tmp_path)
            for number in numbers:
                is_there = numbers[number] in held
                assert is_there == (number not in gone[:count])
    assert desk._sql("SELECT * FROM setting WHERE name = 'erased'") == []


def test_an_interrupt_of_the_first_statement_keeps_nothing_open(
    tmp_path, monkeypatch
):
    desk = opened(tmp_path)
    desk.recipient('partner')
    rows = type(desk._store).rows

    def interrupted(self, query, *values):
        rows(self, query, *values)
        if query == 'BEGIN IMMEDIATE':
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(desk._store), 'rows', interrupted)
        with pytest.raises(KeyboardInterrupt):
            desk.add(nodes(1))
    desk.add(nodes(1))
    assert desk.status().pending == 1


def test_a_run_costs_as_much_after_many_batches_as_after_few(
    tmp_path, monkeypatch
):
    # What sqlite does, and the functions that are called, in an idle run.
    steps, calls = [], []

    def counted(*args, **kwargs):
        database = connect(*args, **kwargs)
        database.set_progress_handler(lambda: steps.append(1) or 0, 1)
        return database

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, 'connect', counted)
    model = fitted(64)
    policy = Policy(max_share=1.0, backup_days=30)
    desk, costs = opened(tmp_path, model, policy=policy), []
    for number in range(24):
        desk.add(nodes(number))
        assert len(desk.run()) == 1
        # A run that follows looks at what is new; the next has nothing new.
        desk.run()
        steps.clear()
        calls.clear()
        sys.setprofile(lambda *event: calls.append(event[1]))
        desk.run()
        sys.setprofile(None)
        costs.append((len(steps), len(calls)))
    assert max(costs[20:]) <= tuple(1.05 * each for each in costs[2])
    # A backup of long ago forgets all of them again.
    desk.close()
    again = opened(tmp_path, policy=policy)
    again.register('scores', fitted(64), save=tmp_path / 'restored.pt')
    again.run()
    gone = again.ledgers()['scores'].removed.of('nodes')
    assert gone == {*range(24)}


def test_status_is_quick(tmp_path):
    desk = opened(tmp_path)
    desk.recipient('partner')
    desk.add(nodes(1))
    with desk._store.change():
        desk._sql(
            'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n '
            "WHERE i < 100000) INSERT INTO request SELECT 'id' || i, 'gdpr', "
            "0, 0, '2026-01-01T00:00:00Z', '2026-02-01T00:00:00Z', "
            "'completed', '', '', '2026-01-02T00:00:00Z', NULL, NULL "
            'FROM n'
        )
    times = []
    for _ in range(5):
        start = time.process_time()
        assert desk.status().completed == 100000
        times.append(time.process_time() - start)
    assert min(times) < 0.05
