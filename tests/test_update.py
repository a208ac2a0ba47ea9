"""Updates of a graph: the bits of a fresh start, or nothing at all."""

import pickle

import pytest
import torch
from living import World, pairs
from states import same
from torch_geometric.data import Data

from pyg_trust.agp.measures import Measure, sgc
from pyg_trust.graph import CSRGraph
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import PropagatedFeatures
from pyg_trust.update import NewNodes, Update

N, COLUMNS = 30, 3


def world_of(directed, seed):
    random = torch.Generator().manual_seed(seed)
    ends = torch.randint(N, (2, 50), generator=random)
    if not directed:
        ends = torch.cat([ends, ends.flip(0)], 1)
    x = torch.randn((N, COLUMNS), generator=random, dtype=torch.float64)
    return World(Data(x=x, edge_index=ends), seed, directed, loops=True)


def features_of(world, measure, **how):
    """Made from scratch, with rows of nothing for those that are gone."""
    x = torch.zeros((world.names, COLUMNS), dtype=torch.float64)
    for v, row in world.x.items():
        x[v] = row
    edges = pairs(*sorted(world.edges))
    graph = CSRGraph.from_edge_index(edges, world.names)
    return PropagatedFeatures(graph, x, measure, **how)


@pytest.mark.parametrize('at_once', [1, 3])
@pytest.mark.parametrize('directed', [False, True])
def test_mixed_updates_have_the_bits_of_a_fresh_start(directed, at_once):
    measure = Measure(0.5, 0.5, (0.2, 0.3, 0.5)) if directed else sgc(2)
    world = world_of(directed, seed=at_once)
    features = features_of(world, measure)
    for _ in range(40):
        count = features.update([world.draw() for _ in range(at_once)])
        assert count >= 0
        nodes = features.nodes
        assert nodes.tolist() == sorted(world.x)
        fresh = features_of(world, measure)
        found = features.graph.to_edge_index()[0].t().tolist()
        assert {tuple(e) for e in found} == world.edges
        assert torch.equal(features.rows(nodes), fresh.rows(nodes))
    again = pickle.loads(pickle.dumps(features))
    assert torch.equal(again.rows(), features.rows())


def test_a_series_takes_updates_too():
    world = world_of(False, seed=5)
    how = {'alpha': 0.3, 'theta': 1e-9}
    features = features_of(world, sgc(1), **how)
    for _ in range(10):
        features.update([world.draw(), world.draw()])
    nodes = features.nodes
    fresh = features_of(world, sgc(1), **how)
    torch.testing.assert_close(
        features.rows(nodes), fresh.rows(nodes), rtol=0, atol=1e-6
    )


def path():
    ring = torch.arange(5)
    edges = torch.stack([ring, ring + 1])
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    x = torch.arange(12.0, dtype=torch.float64).view(6, 2)
    return PropagatedFeatures(CSRGraph.from_edge_index(edges, 6), x, sgc(2))


def test_what_comes_and_goes_again_is_nothing():
    features, other = path(), path()
    x = torch.ones((1, 2), dtype=torch.float64)
    three = (torch.tensor([3]), x)
    four = (torch.tensor([3]), 4 * x)
    features.update(
        [
            Update(nodes=x, edges=pairs((6, 0))),
            Update(edges=pairs((0, 4)), features=three),
            RemovalRequest(nodes=[6], edges=[(4, 0)]),
            Update(features=four),
        ]
    )
    other.update_features(torch.tensor([3]), 4 * x)
    assert torch.equal(features.rows(features.nodes), other.rows())
    # Its name is used up.
    assert features.num_nodes == 7
    assert features.nodes.tolist() == [*range(6)]


def test_a_request_is_an_update_that_removes():
    features, other = path(), path()
    request = RemovalRequest(nodes=[2], features=[4], edges=[(0, 1)])
    features.update(request)
    other.remove_edges(pairs((0, 1)))
    other.remove_nodes(torch.tensor([2]))
    zeros = torch.zeros((1, 2), dtype=torch.float64)
    other.update_features(torch.tensor([4]), zeros)
    assert torch.equal(features.rows(other.nodes), other.rows(other.nodes))
    assert features.update([]) == features.update(Update()) == 0


ROW = torch.ones((1, 2), dtype=torch.float64)
REFUSED = {
    'an edge that is there': (Update(edges=pairs((1, 0))), '1 -> 0 is there'),
    'an edge twice': (Update(edges=pairs((0, 5), (5, 0))), 'is there already'),
    'an edge that is not': (RemovalRequest(edges=[(0, 5)]), 'is not there'),
    'a name beyond': (Update(edges=pairs((0, 6))), "'edges' needs"),
    'a node that is not': (RemovalRequest(nodes=[6]), 'node 6 is not there'),
    'features of none': (Update(features=(torch.tensor([6]), ROW)), "'feat"),
    'other columns': (Update(nodes=ROW[:, :1]), "'nodes' needs"),
    'another type': (Update(nodes=ROW.float()), "'nodes' needs"),
    'too large': (Update(nodes=100 * ROW), "'bound'"),
    'one way': (Update(edges=pairs((0, 5)), directed=True), "'directed'"),
    'away one way': (
        RemovalRequest(edges=[(0, 1)], directed=True),
        "'directed'",
    ),
    'labels': (RemovalRequest(labels=[1]), 'labels'),
    'a graph': (RemovalRequest(graphs=[0]), 'graph 0'),
    'another graph': (RemovalRequest(nodes={3: [1]}), 'graph 0'),
    'no update': ([3], "'update' needs"),
    'a node that went before': (
        [RemovalRequest(nodes=[1]), Update(edges=pairs((1, 4)))],
        'node 1 is not there',
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_refused_leaves_everything_as_it_was(name):
    features = path()
    before = features.__getstate__()
    update, message = REFUSED[name]
    updates = update if isinstance(update, list) else [update]
    good = Update(nodes=ROW, edges=pairs((6, 0)), features=None)
    late = [*updates, good]
    with pytest.raises((ValueError, TypeError), match=message):
        features.update(late)
    assert same(features.__getstate__(), before)
    assert torch.equal(features.rows(), path().rows())
    features.update(good)


def test_of_a_directed_graph_goes_what_is_there():
    edges = pairs((0, 1), (1, 2), (2, 1), (3, 4))
    graph = CSRGraph.from_edge_index(edges, 5)
    measure = Measure(0.5, 0.5, (0.0, 1.0))
    features = PropagatedFeatures(graph, torch.ones(5, 1), measure)

    def left():
        return sorted(
            map(tuple, features.graph.to_edge_index()[0].t().tolist())
        )

    features.update(RemovalRequest(edges=[(1, 0), (1, 2)]))
    assert left() == [(3, 4)]
    with pytest.raises(ValueError, match='4 -> 3 is not there'):
        features.update(RemovalRequest(edges=[(4, 3)], directed=True))
    with pytest.raises(ValueError, match='1 -> 0 is not there'):
        features.update(RemovalRequest(edges=[(1, 0)]))
    features.update(Update(edges=pairs((4, 3), (0, 0)), directed=True))
    assert left() == [(0, 0), (3, 4), (4, 3)]
    # What came in the same list is found, in both directions.
    features.update(
        [Update(edges=pairs((0, 2))), RemovalRequest(edges=[(2, 0), (3, 4)])]
    )
    assert left() == [(0, 0)]


def test_updates_that_contradict_themselves_are_refused():
    one = torch.tensor([1])
    edges = {'edges': pairs((0, 1))}
    features, labels = {'features': (one, ROW)}, {'labels': (one, one)}
    for given, gone, message in (
        (edges, {'edges': [(1, 0)]}, "'edges' has 0 -> 1"),
        (edges, {'nodes': [1]}, 'an end of it'),
        (features, {'nodes': [1]}, 'node 1'),
        (features, {'features': [1]}, 'node 1'),
        (labels, {'nodes': [1]}, 'node 1'),
        ({'features': (one, ROW, ROW)}, {}, '3 entries'),
        ({'labels': (one, one - 3)}, {}, '-1'),
        ({'edges': pairs((0, -1))}, {}, 'from 0 on'),
    ):
        remove = RemovalRequest(**gone) if gone else None
        with pytest.raises(ValueError, match=message):
            Update(**given, remove=remove)


def test_an_update_says_names_and_is_not_changed_later():
    x, of = ROW.clone(), torch.tensor([2])
    edges = pairs((6, 0))
    update = Update(nodes=x, edges=edges, features=(of, x), directed=False)
    x.zero_()
    of.zero_()
    edges.zero_()
    assert update.to_dict() == {
        'new_nodes': 1,
        'edges': [[6, 0]],
        'features': [2],
    }
    assert '1.' not in repr(update)
    assert torch.equal(update.nodes.x, ROW)


def test_new_nodes_are_trained_on_if_they_have_labels():
    y = torch.tensor([1, -1])
    assert NewNodes(ROW.expand(2, 2), y).train.tolist() == [True, False]
    assert NewNodes(ROW).train.tolist() == [False]
    none = torch.zeros(2, dtype=torch.bool)
    assert not NewNodes(ROW.expand(2, 2), y, none).train.any()


def test_features_take_no_labels_graphs_or_names_in_between():
    features, y = path(), torch.tensor([0])
    for update, message in (
        (Update(labels=(y, y)), 'labels'),
        (Update(nodes=NewNodes(ROW, y)), 'labels'),
        (Update(graph=1), "'graph'"),
        (Update(nodes=NewNodes(ROW, n_id=torch.tensor([9]))), "'n_id'"),
    ):
        with pytest.raises(ValueError, match=message):
            features.update(update)
    assert features.update(Update(nodes=NewNodes(ROW, n_id=y + 6))) == 1


def test_lists_are_taken_where_tensors_are():
    x, y = torch.rand(2, 3), torch.tensor([0, 1])
    made = Update(
        edges=[(3, 7), (5, 4)], features=([1, 2], x), labels=([9, 8], y)
    )
    assert made.edges.tolist() == [[3, 5], [7, 4]]
    assert made.features[0].tolist() == [1, 2]
    assert made.labels[0].tolist() == [9, 8]
    for wrong in ([(3, 0.5)], [3, 7], [(1, 2, 3)]):
        with pytest.raises((TypeError, ValueError), match="'edges'"):
            Update(edges=wrong)
