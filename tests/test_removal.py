import pickle
import random as random_module

import numpy as np
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
)
from pyg_trust.update import skipping


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


class Removal:
    """A report of what was removed."""

    def __init__(self, request):
        self.request = request

    def replace(self, skipped):
        self.skipped = skipped
        return self


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


def test_without_a_graph_it_is_graph_0():
    nodes = torch.tensor([False, True, False, True]).nonzero()
    assert RemovalRequest(nodes=nodes).parts == {0: Part(nodes=(1, 3))}
    assert RemovalRequest(edges=[(1, 2)]).parts == {0: Part(edges=((1, 2),))}


def test_a_mask_does_not_say_of_which_rows():
    for mask in (torch.ones(3).bool(), np.ones(3, bool)):
        with pytest.raises(TypeError, match=r'n_id\[mask\]'):
            RemovalRequest(nodes=mask)


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
    # A direction of an edge is a part of it.
    edge = RemovalRequest(edges=[(3, 4)])
    for asked in ((3, 4), (4, 3)):
        arc = RemovalRequest(edges=[asked], directed=True)
        assert arc.parts[0] == Part(directed_edges=(asked,))
        assert (arc | edge).parts == edge.parts


def drawn(source, data):
    """A part of a request, of what is there and of what is not."""
    ids = [*data.n_id.tolist(), 99]
    pairs = [*edges(data), (ids[0], ids[-1]), (ids[1], ids[1])]

    def some(items, most):
        return tuple(
            sorted(set(source.choices(items, k=source.randint(0, most))))
        )

    asked = {'nodes': some(ids, 2), 'features': some(ids, 2)}
    request = RemovalRequest(
        graphs=[9], **asked, edges=some(pairs, 2)
    ) | RemovalRequest(edges={0: some(pairs, 1), 8: [(0, 1)]}, directed=True)
    return request.parts.get(0, Part())


@pytest.mark.parametrize('seed', range(60))
def test_a_removal_is_that_of_sets(seed):
    # Of two removals, one after the other, with ids in a random order.
    source, random = random_module.Random(seed), torch.Generator()
    random.manual_seed(seed)
    n = source.randint(3, 6)
    there = (torch.rand(n, n, generator=random) < 0.4).nonzero().t()
    if seed % 2:
        there = torch.cat([there, there.flip(0)], 1).unique(dim=1)
    data = Data(
        x=torch.rand(n, 2, generator=random) + 1,
        edge_index=there,
        edge_weight=torch.rand(there.size(1), generator=random),
        y=torch.tensor([1]),
        n_id=torch.randperm(20, generator=random)[:n],
    )
    gone = set()
    for _ in range(2):
        before, part = data.clone(), drawn(source, data)
        ids = data.n_id.tolist()
        rows = dict(zip(ids, data.x.tolist(), strict=True))
        weights = data.edge_weight.tolist()
        held = [
            (*map(ids.__getitem__, pair), w)
            for pair, w in zip(
                data.edge_index.t().tolist(), weights, strict=True
            )
        ]
        pairs = {(u, v) for u, v, _ in held}
        lacks = [('nodes', v) for v in part.nodes if v not in rows]
        lacks += [('features', v) for v in part.features if v not in rows]
        lacks += [('features', v) for v in part.features if v in gone]
        for e in part.edges:
            lacks += [('edges', e)] * (not {e, e[::-1]} & pairs)
        for e in part.directed_edges:
            lacks += [('directed_edges', e)] * (e not in pairs)
        if lacks:
            with pytest.raises(NotThere) as error:
                remove_from_data(data, part)
            missing = {each[1:] for each in error.value.missing.items()}
            assert missing == {*lacks}
        elif {*part.nodes} == {*rows}:
            with pytest.raises(ValueError, match='leave no node'):
                remove_from_data(data, part)
        else:
            out = remove_from_data(data, part)
            cut, left = {*part.arcs}, [v for v in ids if v not in part.nodes]
            assert out.n_id.tolist() == left
            assert [
                (*out.n_id[pair].tolist(), w)
                for pair, w in zip(
                    out.edge_index.t(), out.edge_weight.tolist(), strict=True
                )
            ] == [
                (u, v, w)
                for u, v, w in held
                if {u, v} <= {*left} and (u, v) not in cut
            ]
            assert out.x.tolist() == [
                [0, 0] if v in part.features else rows[v] for v in left
            ]
            assert out.y.tolist() == [1]
            gone |= {*part.features}
            # The caller's graph is what it was.
            for key in ('x', 'edge_index', 'edge_weight', 'y', 'n_id'):
                assert torch.equal(data[key], before[key])
            data = out


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
    for bad in ({'a': {}}, {'0': {'kind': [1]}}, {'0': [1]}, [1]):
        with pytest.raises((TypeError, ValueError), match="'named'"):
            RemovalRequest.from_dict(bad)
    for bad in (3, [3]):
        with pytest.raises(TypeError, match="'requests'"):
            RemovalRequest.batch(bad)
    with pytest.raises(ValueError, match='labels of'):
        remove_from_data(diamond(), RemovalRequest(labels=[1]).parts[0])


def test_names_may_be_a_list():
    data = diamond()
    data.n_id = [10, 11, 12, 13]
    out = remove_from_data(data, Part(nodes=(11,)))
    assert out.n_id.tolist() == [10, 12, 13]
    data.n_id = [10, 11]
    with pytest.raises(ValueError, match=r"'data.n_id'.*4"):
        remove_from_data(data, Part(nodes=(11,)))


def test_refusals():
    # What is not there is in the oracle above, and in bad_ground.py.
    data = diamond()
    with pytest.raises(ValueError, match="'edge_index'"):
        remove_from_data(Data(x=torch.ones(2, 1)), Part(nodes=(0,)))
    data.x = None
    with pytest.raises(ValueError, match="no features 'x'"):
        remove_from_data(data, Part(features=(2,)))


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
        return Removal(request)

    found = skipping(whole, 'skip', remove)
    assert (found.request, found.skipped) == (left, gone.to_dict())
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
        (['3'], {}, "'request' needs to be a tensor or a list of ids"),
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
        # What never was keeps its id.
        none = torch.arange(n_id.max())
        none = none[~torch.isin(none, n_id)]
        assert bool((ids.rows(none) < 0).all())
        assert torch.equal(ids.of(ids.rows(none)), none)


def test_arrays_of_numpy_say_the_same_as_tensors():
    edges = torch.tensor([[0, 2, 0], [1, 3, 1]])
    for array in (np.array([3, 1, 3]), torch.tensor([3, 1])):
        assert RemovalRequest(nodes=array) == RemovalRequest(nodes=[1, 3])
    for array in (edges.numpy(), edges, [(0, 1), (2, 3)]):
        assert RemovalRequest(edges=array) == RemovalRequest(
            edges=[(0, 1), (2, 3)]
        )
    with pytest.raises(ValueError, match=r"'edges' .* \[2, num_edges\]"):
        RemovalRequest(edges=edges.t().numpy())
