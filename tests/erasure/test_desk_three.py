"""A person in three models of three kinds: one request, three proofs."""

import json

import pytest
from desks import ALL, fitted, graph, nodes, opened, sharded

from pyg_trust.erasure import check_erasure, queries
from pyg_trust.ledger import BudgetExceededError
from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.unlearning import NodeClassifier

NAMES = ('scores', 'shards', 'private')


def blank(folder):
    """The three models, before they are fitted or loaded."""
    return (
        NodeClassifier(weight_decay=0.1, seed=0),
        sharded(folder),
        PrivateNodeClassifier('node', 0.2, 1e-3, steps=2, num_classes=2),
    )


def first(folder):
    _, shards, private = blank(folder)
    return fitted(60), shards.fit(graph(60)), private.fit(graph(60))


def loaded(folder):
    scores, shards, private = blank(folder)
    scores.load(folder / 'scores.pt')
    shards.load()
    private.load(folder / 'private.pt')
    return scores, shards, private


def desk_of(folder, models):
    desk = opened(folder, models[0], policy=ALL)
    desk.register('shards', models[1])
    desk.register(
        'private',
        models[2],
        save=folder / 'private.pt',
        data=lambda: graph(60),
    )
    return desk


def check_gone(desk, folder, number):
    """All three have forgotten it, once, and the evidence proves it."""
    scores, shards, private = loaded(folder)
    assert 7 not in scores.nodes
    assert 7 not in shards.n_id
    assert private.predict(x=graph(60).x)[7] == -1
    report = desk.report(number)
    assert report.request_status == 'completed'
    (folder / 'one.json').write_text(report.to_json())
    ledgers = (scores.ledger, shards.ledger, private.removals)
    lines = {name: folder / f'{name}.json' for name in NAMES}
    for (name, path), ledger in zip(lines.items(), ledgers, strict=True):
        path.write_text(json.dumps(ledger.state_dict()))
        (task,) = (t for t in report.tasks if t['name'] == name)
        same = [e.reference == task['reference'] for e in ledger.entries]
        assert same.count(True) == 1
        assert len([e for e in ledger.entries if e.request]) == 1
        assert task['promise']
    found = check_erasure(folder / 'one.json', lines)
    # Three ledgers, and the epsilon of one.
    assert [f.status for f in found] == ['holds'] * 4
    # A ledger that was cut before the removal proves nothing.
    for name, ledger in zip(NAMES, ledgers, strict=True):
        state = ledger.state_dict()
        state['entries'] = state['entries'][:-1]
        (folder / 'cut.json').write_text(json.dumps(state))
        cut = {**lines, name: folder / 'cut.json'}
        found = check_erasure(folder / 'one.json', cut)
        assert [f.status for f in found].count('FAILS') == 1


def test_a_person_whom_noise_can_not_cover_is_gone_from_the_others(tmp_path):
    scores, shards, _ = first(tmp_path)
    private = PrivateNodeClassifier(
        'node', 0.2, 1e-3, steps=2, num_classes=2, forget_epsilon=1.0
    ).fit(graph(60))
    # Whoever came before has used what the noise covers.
    while True:
        try:
            gone = len(private.removals.entries) + 19
            private.remove(nodes(gone), graph(60))
        except BudgetExceededError:
            break
    lines = private.removals.entries
    desk = desk_of(tmp_path, (scores, shards, private))
    number = desk.add(nodes(7)).subject_request_id
    assert desk.run() == ()
    assert 7 not in scores.nodes
    assert 7 not in shards.n_id
    assert private.removals.entries == lines
    assert private.predict()[7] != -1
    assert desk.status().refused == ((number, 'private'),)
    report = desk.report(number)
    assert report.request_status == 'in_progress'
    (task,) = (t for t in report.tasks if t['name'] == 'private')
    assert task['promise'] == {}
    (tmp_path / 'open.json').write_text(report.to_json())
    with pytest.raises(ValueError, match='completed_time'):
        check_erasure(tmp_path / 'open.json')
    # Nobody else's work is done again while it waits for its owner.
    heads = scores.ledger.head, shards.ledger.head
    assert desk.run() == ()
    assert (scores.ledger.head, shards.ledger.head) == heads
    assert desk.done(number, 'private').request_status == 'completed'


@pytest.mark.parametrize('which', range(3))
@pytest.mark.parametrize('write', range(4))
def test_a_stop_at_any_write_loses_no_promise(
    tmp_path, monkeypatch, which, write
):
    # Of the desk's own: the promise is cleared, stored, and then complete.
    models = first(tmp_path)
    models[0].save(tmp_path / 'scores.pt')
    models[2].save(tmp_path / 'private.pt')
    desk = desk_of(tmp_path, models)
    number = desk.add(nodes(7)).subject_request_id
    seen = []
    plain = type(desk._store).rows

    def stopping(self, query, *values):
        if query in (queries.PROMISED, queries.END_BATCH):
            seen.append(query)
        if len(seen) == 3 * which + min(write, 2) + 1 and write < 3:
            raise KeyboardInterrupt
        made = plain(self, query, *values)
        if len(seen) == 3 * which + 3 and query == 'COMMIT' and write == 3:
            raise KeyboardInterrupt
        return made

    desk._sql = stopping.__get__(desk._store)
    monkeypatch.setattr(type(desk._store), 'rows', stopping)
    with pytest.raises(KeyboardInterrupt):
        desk.run()
    monkeypatch.undo()
    desk.close()
    desk = desk_of(tmp_path, loaded(tmp_path))
    desk.run()
    check_gone(desk, tmp_path, number)
