"""What changes while a desk is at work, dead, or at a new fit."""

import contextlib

import pytest
import torch
from desks import fitted, graph, loaded, nodes, opened, sharded

from pyg_trust.removal import RemovalRequest
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.update import Update


def cancels(desk, number):
    desk.cancel(number, 'withdrawn')


def holds(desk, number):
    desk.hold(number, 'legal claims')


def does(desk, number):
    desk.done(number, 'scores')


@pytest.mark.parametrize(
    ('act', 'status', 'mode'),
    [
        (cancels, 'cancelled', ''),
        (holds, 'pending', ''),
        (does, 'completed', 'by its owner'),
    ],
)
def test_what_another_desk_says_after_the_plan_counts(
    tmp_path, act, status, mode
):
    desk = opened(tmp_path, model := fitted())
    number = desk.add(nodes(3)).subject_request_id
    other = desk.add(nodes(5)).subject_request_id
    planned = desk._planned

    def meanwhile(name, now):
        found = planned(name, now)
        with contextlib.closing(opened(tmp_path)) as second:
            act(second, number)
        return found

    desk._planned = meanwhile
    assert [r.subject_request_id for r in desk.run()] == [other]
    # It says of the model what the model does.
    assert 5 not in model.nodes
    assert 3 in model.nodes
    report = desk.report(number)
    assert report.request_status == status
    assert [task['mode'] for task in report.tasks] == [mode]


@pytest.mark.parametrize('others', [True, False])
def test_who_is_held_after_a_crash_is_not_removed(tmp_path, others):
    desk = opened(tmp_path, model := fitted())
    model.save(tmp_path / 'scores.pt')
    number = desk.add(nodes(3)).subject_request_id
    if others:
        desk.add(nodes(4))

    def dies(*_):
        raise KeyboardInterrupt

    desk._perform = dies
    with pytest.raises(KeyboardInterrupt):
        desk.run()
    desk.close()
    model = loaded(tmp_path / 'scores.pt')
    desk = opened(tmp_path, model)
    desk.hold(number, 'legal claims')
    assert len(desk.run()) == others
    assert 3 in model.nodes
    assert (4 in model.nodes) != others
    (task,) = desk.report(number).tasks
    assert (task['state'], task['reference']) == ('pending', None)
    # What is not held any more goes, and once.
    desk.resume(number)
    (report,) = desk.run()
    assert 3 not in model.nodes
    assert report.tasks[0]['reference'] == model.ledger.entries[-1].reference


def test_a_new_fit_forgets_who_is_not_forgotten_everywhere(tmp_path):
    desk = opened(tmp_path, fitted())
    desk.recipient('partner')
    one, two = (desk.add(nodes(v)).subject_request_id for v in (3, 5))
    desk.run()
    desk.done(two, 'partner')
    desk.close()
    (tmp_path / 'scores.pt').unlink()
    # Fitted again without whose request is complete: 3 may be in it.
    desk, fresh = opened(tmp_path), fitted()
    fresh.remove(nodes(5))
    place = {'save': tmp_path / 'scores.pt', 'fresh': True}
    desk.register('scores', fresh, **place)
    assert desk.report(one).tasks[1]['state'] == 'pending'
    desk.run()
    assert 3 not in fresh.nodes
    report = desk.done(one, 'partner')
    assert report.request_status == 'completed'
    line = fresh.ledger.entries[-1]
    assert report.tasks[1]['reference'] == line.reference
    # Registered again, nothing is asked again.
    desk.close()
    desk = opened(tmp_path)
    desk.register('scores', fresh, **place)
    assert desk.run() == ()
    assert fresh.ledger.entries[-1] == line


def test_additions_that_another_object_saved_are_taken_over(tmp_path):
    model = fitted()
    model.save(tmp_path / 'scores.pt')
    desk = opened(tmp_path, model)
    other = loaded(tmp_path / 'scores.pt')
    # They wait for a release, so that no line of the ledger has them.
    other.update(Update(edges=torch.tensor([[0], [12]])))
    other.save(tmp_path / 'scores.pt')
    assert len(other.ledger.entries) == len(model.ledger.entries)
    desk.add(nodes(3))
    assert len(desk.run()) == 1
    assert 3 not in model.nodes
    edges = model.graph.to_edge_index()[0].t().tolist()
    assert [0, 12] in edges
    # What this object has not saved yet is not turned back.
    model.update(Update(edges=torch.tensor([[0], [14]])))
    desk.add(nodes(5))
    assert len(desk.run()) == 1
    edges = model.graph.to_edge_index()[0].t().tolist()
    assert [0, 14] in edges


def scores(folder):
    model = NodeClassifier(weight_decay=0.1, seed=0)
    if not (folder / 'scores.pt').exists():
        fitted().save(folder / 'scores.pt')
    model.load(folder / 'scores.pt')
    return model, opened(folder, model)


def shards(folder):
    model = sharded(folder)
    if (folder / 'shards').exists():
        model.load()
    else:
        model.fit(graph())
    desk = opened(folder)
    desk.register('scores', model)
    return model, desk


@pytest.mark.parametrize('kind', [scores, shards])
def test_what_another_desk_has_done_is_not_done_again(tmp_path, kind):
    (_, one), (model, two) = kind(tmp_path), kind(tmp_path)
    one.recipient('partner')
    open_, closed = (one.add(nodes(v)).subject_request_id for v in (3, 5))
    one.done(closed, 'partner')
    assert len(one.run()) == 1
    # The names of one of them are gone: it could not be repeated.
    assert two.run() == ()
    for number in (open_, closed):
        assert one.report(number).tasks[1]['mode'] == 'now'
    assert [bool(e.reference) for e in model.ledger.entries] == [0, 1]


@pytest.mark.parametrize('kind', [scores, shards])
def test_a_label_that_is_gone_is_done(tmp_path, kind):
    model, desk = kind(tmp_path)
    model.remove(RemovalRequest(labels=[3]))
    gone = desk.add(RemovalRequest(labels=[3])).subject_request_id
    rest = desk.add(RemovalRequest(labels=[3, 5])).subject_request_id
    assert {r.subject_request_id for r in desk.run()} == {gone, rest}
    assert desk.report(gone).tasks[0]['mode'] == 'removed before'
    assert model.ledger.removed.of('labels') == {3, 5}
