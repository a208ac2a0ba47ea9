import pickle

import pytest
import torch
from torch_geometric.data import Data

from pyg_trust.removal import (
    NodeIds,
    NotThere,
    Part,
    RemovalRequest,
    remove_from_data,
    requested,
    skipping,
)


def diamond():
    # 0 - 1, 0 - 2, 1 - 2, 2 - 3
    edge_index = torch.tensor(
        [[0, 1, 0, 2, 1, 2, 2, 3], [1, 0, 2, 0, 2, 1, 3, 2]]
    )
    return Data(
        x=torch.arange(1.0, 9.0).view(4, 2),
        edge_index=edge_index,
        edge_weight=torch.tensor([1.0, 1, 2, 2, 3, 3, 4, 4]),
        y=torch.tensor([1]),
        num_nodes=4,
    )


def edges(data):
    names = data.n_id[data.edge_index]
    return {tuple(edge) for edge in names.t().tolist()}


def test_request_of_every_kind():
    request = RemovalRequest(
        graphs=[7],
        nodes={3: torch.tensor([5, 0, 5]), 4: [1]},
        features={3: [2], 7: [0]},
        edges={9: torch.tensor([[0, 1], [2, 3]])},
    )
    assert request.graphs == [3, 4, 7, 9]
    assert request.parts[3] == Part(nodes=(0, 5), features=(2,))
    assert request.parts[7] == Part(whole=True)
    assert request.parts[9] == Part(edges=((0, 2), (1, 3)))
    assert request.to_dict() == {
        '3': {'nodes': [0, 5], 'features': [2]},
        '4': {'nodes': [1]},
        '7': {'whole': True},
        '9': {'edges': [[0, 2], [1, 3]]},
    }
    assert request.whole_graphs().to_dict() == {
        str(i): {'whole': True} for i in (3, 4, 7, 9)
    }


def test_without_a_graph_it_is_graph_0():
    mask = torch.tensor([False, True, False, True])
    assert RemovalRequest(nodes=mask).parts == {0: Part(nodes=(1, 3))}
    assert RemovalRequest(edges=[(1, 2)]).parts == {0: Part(edges=((1, 2),))}


def test_larger_things_contain_smaller_ones():
    one = RemovalRequest(
        nodes={0: [1]}, features={0: [1, 2]}, edges={0: [(1, 2), (2, 3)]}
    )
    assert one.parts[0] == Part(False, (1,), (2,), ((2, 3),))
    two = RemovalRequest(nodes={0: [2], 1: [0]})
    both = one | two
    assert both.parts[0] == Part(nodes=(1, 2))
    assert both.graphs == [0, 1]
    three = RemovalRequest.batch([one, two, RemovalRequest(graphs=[0])])
    assert three.parts[0] == Part(whole=True)


@pytest.mark.parametrize(
    ('change', 'error', 'match'),
    [
        ({}, ValueError, 'something'),
        ({'nodes': {}}, ValueError, 'something'),
        ({'nodes': {0: []}}, ValueError, 'something'),
        ({'graphs': [-1]}, ValueError, "'graphs'"),
        ({'nodes': [1.5]}, TypeError, "'nodes'"),
        ({'nodes': [True]}, TypeError, "'nodes'"),
        ({'nodes': torch.ones(2)}, TypeError, "'nodes'"),
        ({'features': {'a': [1]}}, TypeError, "'features'"),
        ({'edges': torch.ones(3, 2).long()}, ValueError, "'edges'"),
        ({'edges': [(1, 2, 3)]}, ValueError, "'edges'"),
        ({'edges': [(1, -2)]}, ValueError, "'edges'"),
    ],
)
def test_bad_requests(change, error, match):
    with pytest.raises(error, match=match):
        RemovalRequest(**change)


def test_delete_removes_the_node():
    data = diamond()
    before = data.clone()
    out = remove_from_data(data, Part(nodes=(1,)))
    assert out.num_nodes == 3
    assert out.n_id.tolist() == [0, 2, 3]
    assert edges(out) == {(0, 2), (2, 0), (2, 3), (3, 2)}
    assert out.edge_weight.tolist() == [2, 2, 4, 4]
    assert torch.equal(out.x, before.x[[0, 2, 3]])
    assert out.y.tolist() == [1]
    # Names are kept: 2 and 3 are what they were.
    out = remove_from_data(out, Part(nodes=(3,)))
    assert out.n_id.tolist() == [0, 2]
    assert edges(out) == {(0, 2), (2, 0)}
    with pytest.raises(ValueError, match='node 3 is not there'):
        remove_from_data(out, Part(nodes=(3,)))
    # The caller's graph is what it was.
    for key in ('x', 'edge_index', 'edge_weight', 'y'):
        assert torch.equal(data[key], before[key])


def test_features():
    data = diamond()
    out = remove_from_data(data, Part(features=(2,)))
    assert out.num_nodes == 4
    assert out.x.tolist() == [[1, 2], [3, 4], [0, 0], [7, 8]]
    assert edges(out) == {tuple(e) for e in data.edge_index.t().tolist()}
    with pytest.raises(ValueError, match='removed before'):
        remove_from_data(out, Part(features=(2,)))
    # The mark moves with its node.
    out = remove_from_data(out, Part(nodes=(0,)))
    with pytest.raises(ValueError, match='removed before'):
        remove_from_data(out, Part(features=(2,)))
    remove_from_data(out, Part(features=(3,)))
    data.x = None
    with pytest.raises(ValueError, match="no features 'x'"):
        remove_from_data(data, Part(features=(2,)))


def test_edges_of_undirected_and_directed_graphs():
    out = remove_from_data(diamond(), Part(edges=((2, 1),)))
    assert (1, 2) not in edges(out)
    assert (2, 1) not in edges(out)
    assert len(edges(out)) == 6
    assert out.edge_weight.tolist() == [1, 1, 2, 2, 4, 4]
    with pytest.raises(ValueError, match='edge 1 -> 2 is not there'):
        remove_from_data(out, Part(edges=((1, 2),)))
    directed = Data(
        edge_index=torch.tensor([[0, 1, 1], [1, 0, 2]]), num_nodes=3
    )
    out = remove_from_data(directed, Part(directed_edges=((0, 1),)))
    assert edges(out) == {(1, 0), (1, 2)}
    with pytest.raises(ValueError, match='edge 2 -> 1 is not there'):
        remove_from_data(directed, Part(directed_edges=((2, 1),)))


@pytest.mark.parametrize('stray', [False, True])
@pytest.mark.parametrize('weights', [[1.0, 1.0], [1.0, 2.0]])
@pytest.mark.parametrize('asked', [(0, 1), (1, 0)])
def test_both_directions_of_an_edge_go(asked, weights, stray):
    # One directed edge elsewhere, or weights that differ between directions,
    # make a graph directed: the named edge goes as a whole all the same.
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2), *([(4, 5)] if stray else [])]
    data = Data(
        edge_index=torch.tensor(pairs).t(),
        edge_weight=torch.tensor([*weights, 1.0, 1.0, 1.0][: len(pairs)]),
        num_nodes=6,
    )
    request = RemovalRequest(edges=[asked])
    out = remove_from_data(data, request.parts[0])
    assert edges(out) == set(pairs[2:])
    # What is there in one direction alone can be named by either.
    if stray:
        for edge in ((4, 5), (5, 4)):
            part = RemovalRequest(edges=[edge]).parts[0]
            assert (4, 5) not in edges(remove_from_data(data, part))
    one = RemovalRequest(edges=[asked], directed=True)
    assert edges(remove_from_data(data, one.parts[0])) == set(pairs) - {asked}
    # Two requests of both kinds are one that does both.
    both = RemovalRequest.batch([one, RemovalRequest(edges=[(2, 3)])])
    left = edges(remove_from_data(data, both.parts[0]))
    assert left == set(pairs) - {asked, (2, 3), (3, 2)}
    assert (one | request).parts == request.parts


def test_requests_are_read_back():
    request = RemovalRequest.batch(
        [
            RemovalRequest(graphs=[7], nodes={3: [0, 5]}, labels={3: [1]}),
            RemovalRequest(edges={3: [(1, 2)]}, features={4: [0]}),
            RemovalRequest(edges={3: [(8, 9)]}, directed=True),
        ]
    )
    again = RemovalRequest.from_dict(request.to_dict())
    assert again == request
    assert again.to_dict() == {
        '3': {
            'nodes': [0, 5],
            'edges': [[1, 2]],
            'directed_edges': [[8, 9]],
            'labels': [1],
        },
        '4': {'features': [0]},
        '7': {'whole': True},
    }
    # A label goes with its node.
    assert RemovalRequest(nodes=[1], labels=[1]).parts[0] == Part(nodes=(1,))
    with pytest.raises(ValueError, match='labels of nodes'):
        remove_from_data(diamond(), RemovalRequest(labels=[1]).parts[0])


def test_names_may_be_a_list():
    data = diamond()
    data.n_id = [10, 11, 12, 13]
    out = remove_from_data(data, Part(nodes=(11,)))
    assert out.n_id.tolist() == [10, 12, 13]
    data.n_id = [10, 11]
    with pytest.raises(ValueError, match=r"'data.n_id'.*4"):
        remove_from_data(data, Part(nodes=(11,)))


def test_everything_at_once():
    part = Part(nodes=(3,), features=(0,), edges=((0, 1),))
    out = remove_from_data(diamond(), part)
    assert out.n_id.tolist() == [0, 1, 2]
    assert edges(out) == {(0, 2), (2, 0), (1, 2), (2, 1)}
    assert out.x.tolist() == [[0, 0], [3, 4], [5, 6]]


def test_refusals():
    data = diamond()
    for part, match in (
        (Part(nodes=(4,)), 'node 4 is not there'),
        (Part(edges=((0, 3),)), 'edge 0 -> 3 is not there'),
        (Part(nodes=(0, 1, 2, 3)), 'no node'),
        (Part(whole=True), 'whole graph'),
    ):
        with pytest.raises(ValueError, match=match):
            remove_from_data(data, part)
    with pytest.raises(ValueError, match="'edge_index'"):
        remove_from_data(Data(x=torch.ones(2, 1)), Part(nodes=(0,)))


def test_what_is_missing_is_named_or_skipped():
    whole = RemovalRequest(
        nodes={0: [1, 3], 2: [5]}, features=[4], edges=[(6, 7)], graphs=[9]
    )
    gone = RemovalRequest(nodes=[3], edges=[(6, 7)], graphs=[9])
    left = RemovalRequest(nodes={0: [1], 2: [5]}, features=[4])
    assert whole.without(gone) == left
    assert whole.without(whole) is None

    def remove(request):
        # A model that names what it lacks one by one.
        lacks = [each for each in request.items() if each in gone.items()]
        if lacks:
            raise NotThere(RemovalRequest.of_items(lacks[:1]))
        return request

    found, skipped = skipping(whole, 'skip', remove)
    assert (found, skipped) == (left, gone.to_dict())
    with pytest.raises(NotThere, match='node 3 is not there'):
        skipping(whole, 'raise', remove)
    with pytest.raises(NotThere) as error:
        skipping(gone, 'skip', remove)
    copied = pickle.loads(pickle.dumps(error.value))
    assert copied.missing == gone
    assert str(copied) == str(error.value)
    with pytest.raises(ValueError, match="'missing'"):
        skipping(whole, 'drop', remove)


def test_a_call_names_what_goes_once():
    request = RemovalRequest(nodes=[3, 4])
    for one in ([3, 4], torch.tensor([4, 3]), request, [request, request]):
        assert requested(one) == request
    assert requested(None, nodes=[3, 4], edges=None) == request
    for given, named, said in (
        (request, {'nodes': [3]}, 'beside'),
        (None, {}, r'RemovalRequest\(nodes=\[3\]\)'),
        (None, {'persons': [3]}, r'RemovalRequest\(persons=\[3\], unit=unit'),
        (['3'], {}, "'request' needs to hold integers"),
        ('3', {}, r'remove\(nodes=\[3\]\)'),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            requested(given, **named)


def test_ids_and_rows():
    random = torch.randperm(50)[:9]
    for ids, n_id in ((NodeIds(), torch.arange(9)), (NodeIds(random), random)):
        later = int(n_id.max()) + 1 + torch.arange(3)
        every = torch.cat([n_id, later])
        assert torch.equal(ids.of(torch.arange(12)), every)
        assert torch.equal(ids.rows(every), torch.arange(12))
        assert ids.next(12) == int(later[-1]) + 1
        assert ids.rows_of('nodes', every[4:].tolist(), 12).tolist() == [
            *range(4, 12)
        ]
        mask = torch.arange(12) % 2 == 0
        assert torch.equal(
            ids.rows_of('nodes', mask, 12), mask.nonzero()[:, 0]
        )
        with pytest.raises(NotThere, match=f'node {int(later[-1])} is not'):
            ids.rows_of('nodes', every, 11)
