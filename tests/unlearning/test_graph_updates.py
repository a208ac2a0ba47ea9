"""Graph classifiers that live: what comes, changes and goes."""

import copy
import json
import random

import pytest
import torch
from graphs import random_graphs
from living import World, pairs
from states import same
from torch_geometric.data import Batch

from pyg_trust.check import check_report
from pyg_trust.removal import NotThere, RemovalRequest
from pyg_trust.report import TrustReport, save_tensors
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import ScatteringClassifier
from pyg_trust.update import NewNodes, Update
from pyg_trust.verify.accounting import FAILS

LAM = 1e-2


def make(graphs, max_degree=None, **kwargs):
    transform = GraphScattering(J=2, Q=2, L=2, max_degree=max_degree)
    settings = {'weight_decay': LAM, 'seed': 0, 'num_classes': 2, **kwargs}
    return ScatteringClassifier(transform, **settings).fit(graphs)


class Graphs:
    """Worlds by the id of a graph, which come and go."""

    def __init__(self, graphs, seed=0):
        self.random, self.graphs, self.y = random.Random(seed), {}, {}
        self.add(graphs)

    def add(self, graphs):
        for data in graphs:
            i = len(self.y)
            self.y[i], self.graphs[i] = int(data.y), World(data, i)

    def draw(self):
        i = self.random.choice(sorted(self.graphs))
        kind = self.random.randrange(6)
        if kind == 0 and len(self.graphs) > 10:
            del self.graphs[i]
            return RemovalRequest(graphs=[i])
        if kind == 1:
            new = random_graphs(2, seed=self.random.randrange(10**6))
            self.add(new)
            return Update(graphs=new)
        return self.graphs[i].draw(i)

    def data(self, i):
        made = self.graphs[i].data()
        made.y = torch.tensor([self.y[i]])
        del made.train_mask
        return made

    def present(self):
        """The present graphs, with names from 0 on in their order."""
        return [self.data(i) for i in sorted(self.graphs)]


def assert_present(model, world):
    """That the classifier is what a fit of the present graphs makes."""
    assert [*model.graphs] == sorted(world.graphs)
    for i, data in model.graphs.items():
        graph = world.graphs[i]
        assert data.n_id.tolist() == sorted(graph.x)
        arcs = data.n_id[data.edge_index].t().tolist()
        assert arcs == sorted(map(list, graph.edges))
        assert torch.equal(data.x, world.data(i).x)
        assert ('x_removed' in data) == bool(graph.bare)
    fresh = make(world.present(), tol=1e-13)
    now, then = model._model, fresh._model
    torch.testing.assert_close(now.train.Z, then.train.Z, rtol=0, atol=1e-13)
    assert torch.equal(now.train.Y, then.train.Y)
    assert (now.train.K is None) == (then.train.K is None)
    distance = float((now.W - then.W).norm())
    bound = model._bound(now) / (LAM * model.num_graphs)
    assert distance <= bound + 1e-10


def test_mixed_updates_end_at_a_fit_of_the_present_graphs():
    graphs = random_graphs(24)
    model, world = make(graphs), Graphs(graphs)
    for k in range(40):
        count = world.random.choice((1, 1, 3))
        report = model.update([world.draw() for _ in range(count)])
        assert report.bound <= report.budget
        assert report.num_graphs == len(world.graphs)
        assert len(model.ledger.entries) == k + 2
        if k % 10 == 9:
            assert_present(model, world)
            found = model.verify()
            assert found.ok, found
            assert found.proved
            again = ScatteringClassifier(
                model.transform, weight_decay=LAM, num_classes=2
            )
            again.load_state_dict(model.state_dict())
            assert again.verify().ok


def test_rows_and_inner_products_follow_below_and_above_the_columns():
    # d columns; from fewer graphs to more, inner products are given up.
    graphs = random_graphs(40)
    model = make(graphs[:6])
    d = model.embeddings.size(1)
    assert 6 < d < 40
    for k in (*range(6, 36, 6), *range(36, 40)):
        many = graphs[model.num_graphs : k + 1]
        model.update(Update(graphs=many))
        held = model._model.train
        Z = make(graphs[: k + 1])._model.train.Z
        torch.testing.assert_close(held.Z, Z, rtol=0, atol=1e-13)
        assert (held.K is None) == (k + 1 > d)
        if held.K is not None:
            torch.testing.assert_close(held.K, Z @ Z.t())
    model.remove(RemovalRequest(graphs=range(10, 40)))
    assert model._model.train.K is not None
    assert model.verify().ok


def test_degrees_are_derived_again():
    graphs = random_graphs(12, with_x=False)
    model = make(graphs[:10], max_degree=8)
    one = next(
        (u, v)
        for u in range(6)
        for v in range(u)
        if not (graphs[3].edge_index.t() == torch.tensor([u, v])).all(1).any()
    )
    model.update(
        [
            Update(graph=3, edges=pairs(one)),
            Update(graph=4, nodes=NewNodes(torch.zeros(1, 0))),
            Update(graphs=graphs[10:]),
        ]
    )
    now = [data.clone() for data in graphs]
    back = torch.cat([pairs(one), pairs(one).flip(0)], dim=1)
    now[3].edge_index = torch.cat([now[3].edge_index, back], dim=1)
    now[4].num_nodes += 1
    fresh = make(now, max_degree=8)
    Z = fresh.embeddings.to_dense()
    torch.testing.assert_close(
        model.embeddings.to_dense(), Z, rtol=0, atol=1e-13
    )
    assert model.verify().ok
    with pytest.raises(ValueError, match=r"graph 3: 'features' "):
        model.update(
            Update(graph=3, features=(torch.tensor([0]), torch.zeros(1, 0)))
        )


def test_what_came_and_went_is_in_no_file():
    graphs = random_graphs(12)
    model, plain = make(graphs), make(graphs)
    before = model.state_dict()
    new = random_graphs(1, seed=9)
    nodes = NewNodes(torch.tensor([[0.12345678987, 0.5]]).double())
    n = graphs[2].num_nodes
    model.update([Update(graphs=new), Update(graph=2, nodes=nodes)])
    model.update(Update(graph=2, edges=pairs((0, n))))
    model.remove(RemovalRequest(graphs=[12], nodes={2: [n]}))
    state = model.state_dict()
    assert [*state['graphs']] == [*before['graphs']]
    for i, data in state['graphs'].items():
        for name, value in data.items():
            other = before['graphs'][i][name]
            assert same(value, other)
    assert torch.equal(model._model.train.Z, plain._model.train.Z)
    # The names are used up, and the lines say no more.
    assert [line.request for line in model.ledger.entries] == [
        {},
        {},
        {},
        {'2': {'nodes': [n]}, '12': {'whole': True}},
    ]
    with pytest.raises(ValueError, match=rf'from {n + 1} on'):
        model.update(
            Update(graph=2, nodes=NewNodes(nodes.x, n_id=torch.tensor([n])))
        )
    model.update([Update(graphs=new), Update(graph=2, nodes=nodes)])
    assert 13 in model.graphs
    assert 12 not in model.graphs
    assert model.graphs[2].n_id[-1] == n + 1


@pytest.mark.parametrize('how', ['again', 'gone'])
def test_no_mark_tells_of_features_that_were_gone(how):
    graphs = random_graphs(12)
    model, plain = make(graphs), make(graphs)
    model.remove(RemovalRequest(features={2: [1]}))
    assert model.graphs[2].x_removed.tolist()[:3] == [False, True, False]
    if how == 'again':
        rows = torch.tensor([1]), graphs[2].x[[1]]
        model.update(Update(graph=2, features=rows))
    else:
        for each in (model, plain):
            each.remove(RemovalRequest(nodes={2: [1]}))
    held, other = (each.state_dict()['graphs'][2] for each in (model, plain))
    assert held.keys() == other.keys()
    assert torch.equal(held['x'], other['x'])
    assert model.verify().ok


@pytest.mark.parametrize('num_classes', [None, 2])
def test_a_class_or_all_graphs_may_be_replaced_at_once(num_classes):
    graphs, new = random_graphs(16), random_graphs(16, seed=5)
    one, other = ([int(data.y) for data in each] for each in (graphs, new))
    first = [i for i, y in enumerate(one) if y == 1]
    kept = [data for data in graphs if int(data.y) == 0]
    come = [data for data in new if int(data.y) == 1]
    assert {0, 1} <= {*one} & {*other}
    for gone, added, left in (
        (range(16), new, new),
        (first, come, kept + come),
    ):
        model = make(graphs, num_classes=num_classes)
        gone = RemovalRequest(graphs=gone)
        model.update(Update(graphs=added, remove=gone))
        fresh = make(left, num_classes=num_classes)._model.train
        held = model._model.train
        torch.testing.assert_close(held.Z, fresh.Z, rtol=0, atol=1e-13)
        assert torch.equal(held.Y, fresh.Y)
        assert model.verify().ok
        # What comes in an update is none of what goes in it.
        name = 16 + len(added)
        gone = RemovalRequest(graphs=[name])
        with pytest.raises(ValueError, match=f'graph {name} is not there'):
            model.update(Update(graphs=new[:1], remove=gone))
        report = model.update([Update(graphs=new[:1]), gone])
        assert report.request == {str(name): {'whole': True}}
        assert [*model.graphs] == [*held.graphs]
        model.update(Update(graphs=new[:1]))
        assert [*model.graphs][-1] == name + 1


def test_lines_name_what_went_changed_and_came_again():
    graphs = random_graphs(12)
    model = make(graphs)
    edge = tuple(graphs[1].edge_index[:, 0].tolist())
    x = torch.ones(1, 2).double()
    v = torch.tensor([0])
    gone = RemovalRequest(edges={1: [edge]}, features={1: [0]})
    model.remove(gone)
    assert model.verify().leftovers == ()
    back = Update(graph=1, edges=pairs(edge), features=(v, x))
    report = model.update(back)
    arcs = sorted([list(edge), list(edge[::-1])])
    assert report.request == {
        '1': {
            'changed_features': [0],
            'again': {'directed_edges': arcs, 'features': [0]},
        }
    }
    # What is there again is no leftover; what goes again is one.
    assert model.verify().ok
    model.remove(gone)
    held = model._model.train.graphs[1]
    held.x[0] = 1
    assert not model.verify().sealed
    held.x[0] = 0
    # In a list, what went and came back is not named as gone.
    other = tuple(graphs[2].edge_index[:, 0].tolist())
    report = model.update(
        [
            RemovalRequest(edges={2: [other]}, features={2: [1]}),
            Update(
                graph=2,
                edges=pairs(other),
                features=(torch.tensor([1]), x),
            ),
        ]
    )
    assert report.request == {'2': {'changed_features': [1]}}
    assert model.verify().ok


def test_the_evidence_of_an_update_is_checked(tmp_path):
    graphs = random_graphs(16)
    model = make(graphs, seed=None)
    report = model.update(
        [RemovalRequest(nodes={3: [1]}), Update(graphs=random_graphs(2))]
    )
    assert report.num_graphs == 18
    TrustReport.of(report.verified(model.verify())).save(
        tmp_path / 'trust.json'
    )
    (tmp_path / 'ledger').write_text(json.dumps(model.ledger.state_dict()))
    save_tensors(tmp_path / 'weights.pt', {'weight': model.weight})
    found = check_report(
        tmp_path / 'trust.json',
        model=tmp_path / 'weights.pt',
        ledger=tmp_path / 'ledger',
    )
    assert not [each for each in found if each.status == FAILS]
    # A report of additions alone.
    report = model.update(Update(graphs=random_graphs(1)))
    TrustReport.of(report).save(tmp_path / 'later.json')
    found = check_report(tmp_path / 'later.json')
    assert not [each for each in found if each.status == FAILS]


def test_refusals_change_nothing():
    graphs = random_graphs(16)
    model = make(graphs, num_classes=None)
    gone = RemovalRequest(graphs=[14], nodes={3: [1]}, features={4: [2]})
    model.remove(gone)
    state = copy.deepcopy(model.state_dict())
    x = torch.ones(1, 2).double()
    one, n = torch.tensor([0]), graphs[0].num_nodes
    edge = graphs[0].edge_index[:, :1]

    def changed(**fields):
        made = graphs[0].clone()
        for name, value in fields.items():
            made[name] = value
        return Update(graphs=[made])

    left = [i for i in range(16) if i != 14]
    cases = [
        ('graph 99 is not there', RemovalRequest(nodes={99: [0]})),
        ('node 500 is not there', RemovalRequest(nodes={1: [500]})),
        ('500 is not there', RemovalRequest(edges={1: [(0, 500)]})),
        ('class', RemovalRequest(graphs=left)),
        ('graph 14 is not there', RemovalRequest(graphs=[14])),
        ('graph 14 is not there', RemovalRequest(nodes={14: [0]})),
        ('node 1 is not there', RemovalRequest(nodes={3: [1]})),
        ('node 1 is not there', RemovalRequest(features={3: [1]})),
        ('removed before', RemovalRequest(features={4: [2]})),
        # Good parts do not save a bad one.
        ('node 99', RemovalRequest(nodes={5: [0], 6: [99]}, graphs=[7])),
        ('graph 99 is not there', Update(graph=99, edges=edge)),
        ('which is there already', Update(edges=edge)),
        ('node 99 is not there', Update(edges=pairs((0, 99)))),
        (rf'from {n} on', Update(nodes=NewNodes(x, n_id=one + n + 1))),
        ("'nodes'", Update(nodes=torch.ones(1, 3))),
        ("'features'", Update(features=(one, torch.ones(1, 3)))),
        ('node 77 is not there', Update(features=(one + 77, x))),
        ("graph 0: 'labels' of", Update(nodes=NewNodes(x, one))),
        (
            "'edge_weight'",
            changed(edge_weight=torch.ones(graphs[0].num_edges)),
        ),
        ("'graphs' needs 2 columns", changed(x=torch.ones(n, 3))),
        ("'graphs' needs labels of 'classes'", changed(y=torch.tensor([2]))),
        ('one integer label', changed(y=None)),
        (
            'was removed before',
            [RemovalRequest(graphs=[5]), Update(graph=5, edges=edge)],
        ),
    ]
    good = Update(nodes=x, graph=2)
    for match, update in cases:
        several = update if isinstance(update, list) else [update]
        for given in (update, [good, *several] if several else []):
            with pytest.raises(ValueError, match=match):
                model.update(given)
            assert same(model.state_dict(), state)
    assert model.verify().ok
    model.update(good)


def test_a_class_without_graphs_may_get_one():
    graphs = random_graphs(12)
    model = make(graphs, num_classes=3)
    new = random_graphs(1, seed=5)[0]
    new.y = torch.tensor([2])
    report = model.update(
        Update(graphs=[new], remove=RemovalRequest(graphs=range(0, 12, 2)))
    )
    assert report.empty_classes == (0,)
    strict = make(graphs, num_classes=None)
    with pytest.raises(ValueError, match="'num_classes'"):
        strict.update(Update(graphs=[new]))
    # A class may go and come within an update.
    label = random_graphs(1, seed=6)
    strict.update(
        Update(graphs=label, remove=RemovalRequest(graphs=range(0, 12, 2)))
    )
    assert strict.verify().ok


def test_nodes_of_graphs_have_the_ids_of_their_data():
    graphs = random_graphs(12)
    named = [g.clone() for g in graphs]
    for g in named:
        g.n_id = torch.randperm(90)[: g.num_nodes]
    one, two = make(graphs), make(named)
    ids = {i: named[i].n_id.tolist() for i in (1, 2)}
    one.remove(nodes={1: [0], 2: [3]}, graphs=[5])
    report = two.remove(
        graphs=[5],
        nodes={1: [ids[1][0], 99], 2: [ids[2][3]], 77: [1]},
        missing='skip',
    )
    assert report.skipped == {'1': {'nodes': [99]}, '77': {'nodes': [1]}}
    assert report.request['1'] == {'nodes': [ids[1][0]]}
    torch.testing.assert_close(one.embeddings, two.embeddings)
    with pytest.raises(NotThere, match='graph 5 is not there') as refused:
        two.remove([5, 4])
    assert refused.value.missing == RemovalRequest(graphs=[5])
    new = 1 + max(ids[2])
    edge = torch.tensor([[new], [ids[2][0]]])
    width = graphs[0].x.size(1)
    added = Update(nodes=torch.ones(1, width), edges=edge, graph=2)
    two.update(added)
    assert two.graphs[2].n_id.tolist()[-1] == new


def test_graphs_come_as_pyg_and_torch_have_them():
    graphs = random_graphs(24)
    train, test = torch.utils.data.random_split(graphs, [18, 6])
    model = make(train)
    found = model.predict(list(test))
    for given in (test, Batch.from_data_list(list(test)), tuple(test)):
        assert torch.equal(model.predict(given), found)
    y = torch.cat([g.y for g in test])
    assert model.score(test) == float((found == y).double().mean())
    for g in graphs:
        g.edge_weight = torch.ones(g.num_edges)
    weighted = make(graphs)
    with pytest.raises(ValueError, match='none in graph 0, but one in the'):
        weighted.predict(random_graphs(2))
