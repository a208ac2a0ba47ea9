"""Node classifiers that live: what comes, changes and goes."""

import io
import json
import pickle

import pytest
import torch
from graphs import blocks
from living import LAM, STD, assert_present, lived, make, pairs, rows, seen
from states import same

from pyg_trust.check import check_report
from pyg_trust.files.commit import StaleStateError
from pyg_trust.removal import NotThere, Part, RemovalRequest
from pyg_trust.report import TrustReport, save_tensors
from pyg_trust.unlearning import NodeClassifier
from pyg_trust.unlearning.node_rows import Edit, NodeState
from pyg_trust.unlearning.reports import AdditionReport
from pyg_trust.unlearning.sums import Sums
from pyg_trust.update import NewNodes, Update
from pyg_trust.verify import removal
from pyg_trust.verify.accounting import FAILS


def test_no_residual_is_beyond_its_bound_in_a_thousand_updates():
    # The kernel measures it, from the present data alone.
    largest, released = 0.0, 0
    for k, (model, world, report) in enumerate(lived(1000, seed=1)):
        if isinstance(report, AdditionReport):
            continue
        released += 1
        found = removal.prove(model._model.evidence())
        assert found.num_train == len(world.y) == report.num_train
        assert found.residual.most <= report.bound
        assert found.shift <= model.ledger.spent
        largest = max(largest, found.residual.least / report.bound)
        if k % 200 == 0:
            assert_present(model, world)
    assert released > 400
    assert 0 < largest <= 1


# Planted faults ##############################################################


def old_degrees(edit):
    # Neighbours do not send what they send now.
    def planted(self, *args):
        before = self._state[9][0].clone()
        edit(self, *args)
        self._state[9][0] = before

    return planted


def old_features(edit):
    def planted(self, *args):
        *rest, nodes, _, edits = args
        edit(self, *rest, nodes, self.x[nodes].clone(), edits)

    return planted


def an_arc_of_who_left(play):
    def planted(self, steps, undo=None):
        done, gone = play(self, steps, undo), steps[0].gone
        start, length, _ = self._state[0]
        length[gone] += 1
        self._state[1][start[gone]] = gone.int()
        return done

    return planted


def old_targets(relabel):
    # The gradient loses the new label, not the old one.
    def planted(self, rows, y):
        relabel(self, rows, y)
        self.Y[rows] = self.Y[rows].flip(1)

    return planted


def what_waited_is_forgotten(play):
    def planted(self, edit):
        play(self, edit)
        last = self.pending.named[-1:]
        self.pending = self.pending._replace(named=last)

    return planted


def old_lambda_n(mu):
    return property(lambda self: self.settings.lam * len(self.names))


FAULTS = [
    (Sums, '_edit', old_degrees),
    (Sums, '_edit', old_features),
    (Sums, 'play', an_arc_of_who_left),
    # Rows of neighbours stay as they were.
    (Sums, 'touched', lambda _: lambda self, changed, _: changed),
    (NodeState, 'mu', old_lambda_n),
    (NodeState, '_relabel', old_targets),
    (NodeState, 'play', what_waited_is_forgotten),
    # Labels of who left stay; who came is not trained on.
    (NodeState, '_drop', lambda _: lambda self, rows: None),
    (NodeState, '_append', lambda _: lambda self, keys: None),
]


@pytest.mark.parametrize(('owner', 'name', 'plant'), FAULTS)
@pytest.mark.filterwarnings('ignore')
def test_a_planted_fault_is_found(owner, name, plant, monkeypatch):
    model, data = make(), blocks()
    train = data.train_mask.nonzero().view(-1)
    n = data.num_nodes
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    refused = False
    try:
        if owner is Sums or name in ('mu', '_drop'):
            model.remove(RemovalRequest(nodes=[int(train[1])]))
        else:
            some = train[2:11].tolist()
            new = NewNodes(rows(9), torch.arange(9) % 2)
            ends = pairs(*((n + k, v) for k, v in enumerate(some)))
            later = pairs((n, n + 1), (n + 2, n + 3))
            model.update([Update(nodes=new, edges=ends), Update(edges=later)])
            y = 1 - data.y[train[:1]]
            model.update(Update(labels=(train[:1], y)))
    except (IndexError, RuntimeError, ValueError):
        refused = True
    monkeypatch.undo()
    # The auditor is honest.
    assert refused or not model.verify().ok


# Releases ####################################################################


def test_what_goes_or_changes_ends_with_a_release_and_additions_wait():
    data = blocks()
    model = make(data)
    train = data.train_mask.nonzero().view(-1)
    u, v = data.edge_index[:, 0].tolist()
    before = model.weight
    report = model.update(Update(nodes=rows(2), edges=pairs((90, 3))))
    assert (report.pending, model.pending) == (3, 3)
    assert torch.equal(model.weight, before)
    assert len(model.ledger.entries) == 1
    changes = [
        {'features': (train[:1], rows(1))},
        {'labels': (train[:1], 1 - data.y[train[:1]])},
        {'labels': (train[1:2], torch.tensor([-1]))},
        {'remove': RemovalRequest(edges=[(u, v)])},
    ]
    for k, change in enumerate(changes):
        report = model.update(Update(**change))
        assert report.pending == model.pending == 0
        assert len(model.ledger.entries) == k + 2
        assert not torch.equal(model.weight, before)
        before = model.weight
        assert model.verify().ok
    lines = [line.request for line in model.ledger.entries]
    node, other = train[:2].tolist()
    assert lines[1:] == [
        {'changed_features': [node]},
        {'changed_labels': [node]},
        {'labels': [other]},
        {'edges': [[u, v]]},
    ]


def test_a_release_is_asked_for_forced_or_refused():
    model = make(max_pending=4)
    with pytest.raises(ValueError, match='pending'):
        model.release()
    edge = pairs((0, 89))
    edges = {tuple(e) for e in model.graph.to_edge_index()[0].t().tolist()}
    free = [(0, v) for v in range(1, 90) if (0, v) not in edges]
    for k in range(4):
        edge = pairs(free[k])
        assert model.update(Update(edges=edge)).pending == k + 1
    report = model.update(Update(edges=pairs(free[4])))
    assert (report.pending, len(model.ledger.entries)) == (0, 2)
    report = model.update(Update(edges=pairs(free[5])), release=True)
    assert (report.pending, len(model.ledger.entries)) == (0, 3)
    reference = 'ab' * 16
    model.update(Update(edges=pairs(free[6])), reference=reference)
    assert model.ledger.refers_to(reference)
    with pytest.raises(ValueError, match='reference'):
        model.update(Update(edges=pairs(free[7])), reference=reference)
    model.update(Update(edges=pairs(free[7])))
    reference = 'cd' * 16
    assert model.release(reference=reference).request == {}
    assert model.ledger.entries[-1].reference == reference
    assert model.ledger.has_removals is False


def test_additions_that_wait_are_not_written_over(tmp_path):
    path = tmp_path / 'model'
    first = make()
    first.save(path)
    known = {tuple(e) for e in first.graph.to_edge_index()[0].t().tolist()}
    edge = [(0, v) for v in range(1, 90) if (0, v) not in known][:2]

    def read():
        return NodeClassifier(weight_decay=LAM, seed=0, release_std=STD).load(
            path
        )

    one, two = read(), read()
    one.update(Update(edges=[edge[0]]))
    one.save(path)
    # No line of a ledger tells of them, and the other's ledger goes on.
    two.remove(nodes=[3])
    for stale in (two, first):
        with pytest.raises(StaleStateError, match='additions that wait'):
            stale.save(path)
    again = read()
    again.update(Update(edges=[edge[1]]))
    again.save(path)
    again.release()
    again.save(path)
    with pytest.raises(StaleStateError, match='a removal of'):
        one.save(path)
    assert read().graph.num_edges == first.graph.num_edges + 4
    assert read().verify().ok


def test_a_batch_nets_what_comes_and_goes_again():
    data = blocks()
    u, v = data.edge_index[:, 0].tolist()
    one, two = make(data), make(data)
    back = Update(edges=pairs((v, u)))
    report = one.update([RemovalRequest(edges=[(u, v)]), back])
    # The edge is there as before, and nothing of the sort was removed.
    assert report.request == {}
    assert same(one._model.data.to_dict(), two._model.data.to_dict())
    assert one.verify().ok
    new = Update(nodes=NewNodes(rows(1), torch.tensor([0])))
    change = Update(features=(torch.tensor([4]), rows(1)))
    report = one.update(
        [new, change, RemovalRequest(nodes=[90]), RemovalRequest(features=[4])]
    )
    assert report.request == {'nodes': [90], 'features': [4]}
    assert not bool(one.graph.degree[90])
    assert one.verify().ok
    # Removals that follow one another are one request.
    w = int(data.edge_index[1, data.edge_index[0] == 7][0])
    one.update([RemovalRequest(nodes=[7]), RemovalRequest(edges=[(7, w)])])
    assert one.verify().ok


def test_what_was_removed_may_come_again():
    data = blocks()
    u, v = data.edge_index[:, 0].tolist()
    node = data.train_mask.nonzero().view(-1)[:1]
    model = make(data)
    gone = {'edges': [(u, v)], 'features': node, 'labels': node}
    model.remove(RemovalRequest(**gone))
    model.update(Update(edges=pairs((u, v))))
    report = model.update(
        Update(features=(node, rows(1)), labels=(node, data.y[node]))
    )
    assert report.request == {
        'changed_features': node.tolist(),
        'changed_labels': node.tolist(),
        'again': {
            'directed_edges': sorted([[u, v], [v, u]]),
            'features': node.tolist(),
            'labels': node.tolist(),
        },
    }
    assert model.verify().ok
    # And go again, which is seen if it does not.
    model.remove(RemovalRequest(**gone))
    assert model.verify().ok
    state = model._model.data
    state.levels.x[node] = 1.0
    assert 'features of what was removed' in model.verify().leftovers


def test_what_is_gone_is_skipped_and_what_has_come_again_is_removed():
    data = blocks()
    u, v = data.edge_index[:, 0].tolist()
    model = make(data)
    model.remove(RemovalRequest(edges=[(u, v)], nodes=[70]))
    both = RemovalRequest(edges=[(v, u)], nodes=[70])
    with pytest.raises(NotThere) as refused:
        model.remove(both, missing='skip')
    assert refused.value.missing == both
    model.update(Update(edges=pairs((u, v))))
    report = model.remove(both, missing='skip')
    assert report.request == {'edges': [[v, u]]}
    assert report.skipped == {'0': {'nodes': [70]}}


# History #####################################################################


def bytes_of(model):
    """The data of a file, as they are written."""
    state = model.state_dict()
    stream = io.BytesIO()
    torch.save({'data': state['data'], 'classes': state['classes']}, stream)
    return stream.getvalue()


def test_files_tell_the_present_data_and_not_the_way_there():
    data = blocks()
    n, taken = data.num_nodes, {tuple(e) for e in data.edge_index.t().tolist()}
    node = int(data.train_mask.nonzero()[0])
    free = [(1, v) for v in range(2, 90) if (1, v) not in taken and v != node]
    x, y = rows(3), torch.tensor([0, 1, -1])
    last = RemovalRequest(nodes=[node])
    one, two = make(data), make(data)
    one.update(Update(nodes=NewNodes(x, y), edges=pairs(free[0], (n, 3))))
    one.update(Update(features=(torch.tensor([8]), x[:1])))
    one.remove(last)
    two.update(Update(edges=pairs(free[5], free[0], free[1])))
    two.update(Update(features=(torch.tensor([8]), x[1:2])), release=True)
    two.update(Update(nodes=NewNodes(x[:1], y[:1]), edges=pairs((3, n))))
    two.update(
        [
            Update(features=(torch.tensor([8]), x[:1])),
            RemovalRequest(edges=[free[1], free[5]]),
            Update(nodes=NewNodes(x[1:], y[1:])),
        ]
    )
    two.remove(last)
    assert bytes_of(one) == bytes_of(two)
    # What waits for a release, too.
    one.update(Update(edges=pairs(free[3], free[2])))
    one.update(Update(nodes=NewNodes(x[:1], y[1:2]), edges=pairs((n + 3, 8))))
    two.update(Update(nodes=NewNodes(x[:1], y[1:2]), edges=pairs(free[3])))
    two.update(Update(edges=pairs((8, n + 3), free[2][::-1])))
    assert one.pending == two.pending == 4
    assert bytes_of(one) == bytes_of(two)
    for model in one, two:
        again = NodeClassifier(weight_decay=LAM, seed=0, release_std=STD)
        again.load_state_dict(model.state_dict())
        assert again.pending == 4
        assert again.verify().ok
        assert bytes_of(again) == bytes_of(model)
        again.release()
        assert again.verify().ok
        held = pickle.loads(pickle.dumps(model)).flush()
        assert bytes_of(held) == bytes_of(model)
        assert held.verify().ok
    one.release()
    two.release()
    one.flush()
    two.flush()
    held, other = one._model.data, two._model.data
    assert torch.equal(held.Z, other.Z)
    assert torch.equal(one._model.W, two._model.W)


# Refusals ####################################################################

N = 90
NODE, GONE, ONE = (torch.tensor([v]) for v in (3, 50, 1))
LATER = (~blocks().train_mask).nonzero().view(-1)[-1:]
BAD = [
    (
        "'nodes' needs labels of 'classes'",
        {'nodes': NewNodes(rows(1), 7 * ONE)},
    ),
    ("'labels' needs labels of", {'labels': (NODE, 5 * ONE)}),
    ("'nodes' needs", {'nodes': rows(1, d=5)}),
    ("'features' needs", {'features': (NODE, rows(1, d=5))}),
    ("'bound'", {'nodes': 17 + 0 * rows(1)}),
    ("'bound'", {'features': (NODE, 17 + 0 * rows(1))}),
    ("'n_id'", {'nodes': NewNodes(rows(1), n_id=7 * ONE)}),
    ('there already', {'edges': blocks().edge_index[:, :1]}),
    (f'node {N} is not there', {'edges': pairs((3, N))}),
    ('50', {'edges': pairs((3, 50))}),
    ('node 50 is not there', {'features': (GONE, rows(1))}),
    ('node 50 is not there', {'labels': (GONE, ONE)}),
    (f'node {N} is not there', {'labels': (N * ONE, ONE)}),
    ('label of node .* is not there', {'labels': (LATER, -ONE)}),
    ('directed', {'edges': pairs((3, 4)), 'directed': True}),
    ("'graphs'", {'graphs': [blocks()]}),
    ("'graph'", {'graph': 1, 'nodes': rows(1)}),
]


@pytest.mark.parametrize(('message', 'bad'), BAD)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(message, bad):
    model = make()
    model.remove(RemovalRequest(nodes=[50]))
    model.update(Update(nodes=rows(1)[:0]))
    before = seen(model)
    good = Update(edges=pairs((0, 89)), features=(NODE, rows(1)))
    for given in (Update(**bad), [good, Update(**bad)]):
        with pytest.raises(ValueError, match=message):
            model.update(given)
        assert same(seen(model), before)
        assert not model._model.data.undo
    assert model.verify().ok


def test_all_nodes_that_an_update_lacks_are_named():
    model, at = make(), torch.tensor([3, 95, 97])
    with pytest.raises(NotThere) as error:
        model.update(Update(features=(at, rows(3))))
    assert error.value.missing == RemovalRequest(nodes=[95, 97])


def test_a_gradient_that_is_followed_covers_its_rounding():
    # One label of many: it follows by the rows that change alone.
    model = make()
    held, state = model._model, model._model.data
    state.play(Edit(Part(labels=(int(state.names[1]),))))
    found = state.follow(held.W, held.gradient).gradient
    wanted = state.problem(1.0).gradient(held.W).value
    gap = float((found.value - wanted).norm())
    assert gap <= found.norm.upper - found.norm.measured < 1e-6
    assert found.norm.measured == pytest.approx(float(wanted.norm()))


def test_classes_that_may_come_are_declared():
    data = blocks()
    train = data.train_mask.nonzero().view(-1)
    zeros = train[data.y[train] == 0]
    with pytest.raises(ValueError, match='class 0 without'):
        make(data).update(Update(labels=(zeros, torch.ones_like(zeros))))
    with pytest.raises(ValueError, match='classes'):
        make(data, classes=[0, 1, 5])
    model = make(data, classes=[5, 0, 1, 2])
    assert model.classes == (0, 1, 2, 5)
    model.update(Update(nodes=NewNodes(rows(1), torch.tensor([5]))))
    report = model.update(Update(labels=(zeros, torch.ones_like(zeros))))
    assert report.request == {'changed_labels': zeros.tolist()}
    assert model.verify().ok
    # Who came as the first of a class may go.
    model.remove(RemovalRequest(nodes=[90]))
    assert model.verify().ok
    again = NodeClassifier(weight_decay=LAM, seed=0, release_std=STD)
    again.load_state_dict(model.state_dict())
    again.remove(RemovalRequest(labels=[int(zeros[0])]))
    assert again.verify().ok
    names = again._model.data.names
    left = names[names >= 0]
    with pytest.raises(ValueError, match='no training node'):
        again.remove(RemovalRequest(labels=left))


def test_an_encoder_makes_the_rows_that_come():
    calls = []

    def encoder(x):
        calls.append(len(x))
        return x[:, :4].double() * 0.5

    data = blocks()
    kwargs = {'encoder': encoder, 'start_is_public': True}
    model, plain = make(data, **kwargs), blocks()
    plain.x = plain.x[:, :4] * 0.5
    other = make(plain)
    calls.clear()
    x = rows(2)
    of = torch.tensor([5])
    model.update(Update(nodes=x, features=(of, x[:1])))
    assert max(calls) == 2
    half = x[:, :4] * 0.5
    other.update(Update(nodes=half, features=(of, half[:1])))
    held, wanted = model._model.data, other._model.data
    assert torch.equal(held.levels.rows(), wanted.levels.rows())
    kwargs['encoder'] = lambda x: x.double() * (len(x) + 1)
    broken = make(data, encoder=lambda x: x.double(), start_is_public=True)
    broken.encoder = kwargs['encoder']
    with pytest.raises(ValueError, match='every row by itself'):
        broken.update(Update(nodes=x))
    assert broken.graph.num_nodes == 90


# Whoever checks ##############################################################


@pytest.mark.parametrize('change', ['edge', 'features', 'release'])
def test_a_check_proves_releases_of_updates(change, tmp_path):
    data = blocks()
    model = make(data, seed=None)
    model.update(Update(nodes=NewNodes(rows(1), torch.tensor([1]))))
    u, v = data.edge_index[:, 0].tolist()
    if change == 'edge':
        model.remove(RemovalRequest(edges=[(u, v)]))
        report = model.update(Update(edges=pairs((u, v))), release=True)
    elif change == 'features':
        report = model.update(Update(features=(NODE, rows(1))))
    else:
        report = model.release()
    TrustReport.of(report).save(tmp_path / 'trust.json')
    # What waits is no part of what was released.
    model.update(Update(nodes=rows(1)))
    model.save_for_check(tmp_path / 'proof.npz')
    save_tensors(tmp_path / 'weights.pt', {'weight': model.weight})
    ledger = json.dumps(model.ledger.state_dict())
    (tmp_path / 'ledger').write_text(ledger)
    found = check_report(
        tmp_path / 'trust.json',
        data=tmp_path / 'proof.npz',
        model=tmp_path / 'weights.pt',
        ledger=tmp_path / 'ledger',
    )
    wrong = [each.text for each in found if each.status == FAILS]
    assert not wrong
    proved = [each.text for each in found if removal.RESIDUAL in each.text]
    assert 'at most' in proved[0]
    asked = [each.text for each in found if 'replaced' in each.text]
    assert len(asked) == (change == 'features')


def test_names_of_nodes_go_on_over_the_updates_of_a_call():
    model, first = make(blocks()), blocks().num_nodes
    updates = [Update(edges=torch.tensor([[0], [50]]))]
    for name in (first, first + 1):
        nodes = NewNodes(torch.randn(1, 6), n_id=torch.tensor([name]))
        updates.append(Update(nodes=nodes))
    model.update(updates)
    assert model.predict([first, first + 1]).shape == (2,)
