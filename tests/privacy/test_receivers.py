"""Lists without nodes that need no sums, by brute force over small graphs."""

import functools
import itertools
import math

import pytest
import torch
from references import Silence

from pyg_trust.graph import CSRGraph
from pyg_trust.privacy.propagation import (
    choose_receivers,
    energy_weights,
    hop_sensitivity,
    private_propagate,
    received_lists,
)

MARGIN = 1 - 1e-6


def csr(lists):
    arcs = [(u, w) for u, own in enumerate(lists) for w in own]
    edges = torch.tensor(arcs, dtype=torch.int64).view(-1, 2).t()
    return CSRGraph.from_edge_index(edges, len(lists))


@functools.cache
def applied(lists, receivers, D):
    graph = received_lists(csr(lists), torch.tensor(receivers))
    made = private_propagate(
        *(graph, torch.eye(len(lists)).double(), [1.0], Silence(), 'node'),
        energy_weights(graph, D),
    )
    return made[0] / MARGIN


def matrix(lists, receivers, D=1):
    """The weights W that a hop really applies, by unit messages."""
    key = tuple(tuple(sorted(own)) for own in lists)
    return applied(key, tuple(receivers.tolist()), D)


def subsets(items):
    items = list(items)
    for k in range(len(items) + 1):
        yield from itertools.combinations(items, k)


def all_receivers(n):
    for chosen in subsets(range(n)):
        mask = torch.zeros(n, dtype=torch.bool)
        mask[list(chosen)] = True
        yield mask


def undirected(pairs, n):
    lists = [[] for _ in range(n)]
    for u, v in pairs:
        lists[u].append(v)
        lists[v].append(u)
    return lists


def every_graph(n):
    yield from subsets(itertools.combinations(range(n), 2))


def without(lists, v):
    return [[] if u == v else own for u, own in enumerate(lists)]


@pytest.mark.parametrize('D', [1, 2])
def test_a_record_moves_its_own_column_alone_by_the_bound(D):
    # All graphs of four nodes, all sets of receivers, and the record of node
    # 0, which is in every place of some graph.
    n, bound, most = 4, hop_sensitivity('node', max_degree=D), 0.0
    for pairs in every_graph(n):
        lists = undirected(pairs, n)
        for receivers in all_receivers(n):
            whole = matrix(lists, receivers, D)
            assert not whole[~receivers].any()
            blank = matrix(without(lists, 0), receivers, D)
            assert torch.equal(whole[:, 1:], blank[:, 1:])
            moved = float((whole - blank).norm())
            got = sum(bool(receivers[w]) for w in lists[0])
            assert moved == pytest.approx(math.sqrt(min(got, D)))
            most = max(most, moved)
    assert most == pytest.approx(bound)


def test_lists_replaced_move_by_twice_as_much():
    n, worst = 4, 0.0
    for receivers in all_receivers(n):
        made = []
        for own in subsets(range(1, n)):
            lists = [list(own), [], [], []]
            made.append(matrix(lists, receivers)[:, 0])
        for a, b in itertools.product(made, repeat=2):
            # Messages of opposite signs are the worst of unit ones.
            worst = max(worst, float((a + b).norm()))
    assert worst == pytest.approx(
        hop_sensitivity('node', neighboring='replace')
    )


def test_an_edge_moves_no_more_than_of_whole_lists():
    n = 4
    H = torch.tensor(list(itertools.product([1.0, -1.0], repeat=n))).t()
    H, one, both = H.double(), 0.0, 0.0
    for pairs in every_graph(n):
        lists = undirected(pairs, n)
        for receivers in all_receivers(n) if (0, 1) in pairs else ():
            whole = matrix(lists, receivers)
            less = undirected(set(pairs) - {(0, 1)}, n)
            moved = (whole - matrix(less, receivers)) @ H
            both = max(both, float(moved.norm(dim=0).max()))
            arc = [lists[0][1:], *lists[1:]]
            moved = (whole - matrix(arc, receivers)) @ H
            found = float(moved.norm(dim=0).max())
            assert bool(receivers[1]) == (found > 0)
            one = max(one, found)
    assert one == pytest.approx(hop_sensitivity('edge', directed=True))
    assert both == pytest.approx(hop_sensitivity('edge'))


def by_popularity(lists):
    # Reads who is named by two: in records.
    named = torch.bincount(
        torch.tensor([w for own in lists for w in own], dtype=torch.int64),
        minlength=len(lists),
    )
    return named >= 2


def by_length(lists):
    # Reads how long the own list is.
    return torch.tensor([len(own) < 2 for own in lists])


def of_nobody_silent(lists):
    # "Who says nothing needs nothing": reads whether a record is blank.
    return torch.tensor([len(own) > 0 for own in lists])


@pytest.mark.parametrize(
    'private', [by_popularity, by_length, of_nobody_silent]
)
def test_receivers_that_read_records_have_no_such_bound(private):
    # A planted fault in each: what the brute force above has to catch.
    n, most = 4, 0.0
    for pairs in every_graph(n):
        lists = undirected(pairs, n)
        whole = matrix(lists, private(lists))
        less = without(lists, 0)
        moved = (whole - matrix(less, private(less))).norm()
        most = max(most, float(moved))
    assert most > 1.2 * hop_sensitivity('node')


def test_weights_of_the_mean_list_have_no_such_bound():
    # Renewed by how much energy all lists lost, not by one's own.
    def shared(lists, receivers):
        graph = csr(lists)
        rest = received_lists(graph, receivers)
        kept = max(1, rest.num_edges) / max(1, graph.num_edges)
        weights = energy_weights(graph) / math.sqrt(kept)
        made = private_propagate(
            *(rest, torch.eye(4).double(), [1.0], Silence(), 'node', weights)
        )
        return made[0] / MARGIN

    most = 0.0
    for pairs in every_graph(4):
        lists = undirected(pairs, 4)
        for receivers in all_receivers(4):
            whole = shared(lists, receivers)
            blank = shared(without(lists, 0), receivers)
            most = max(most, float((whole - blank).norm()))
    assert most > 1.2 * hop_sensitivity('node')


@pytest.mark.parametrize('share', [0.2, 0.7, 1.0])
def test_who_receives_depends_on_nobody_else(share):
    generator = torch.Generator().manual_seed(0)
    train = torch.rand(300, generator=generator) < 0.75
    chosen = choose_receivers(train, share)
    assert bool(chosen[~train].all())
    for v in range(0, 300, 7):
        other = train.clone()
        other[v] = ~other[v]
        moved = choose_receivers(other, share) != chosen
        moved[v] = False
        assert not moved.any()
    # Nodes that come later change nobody's part, and no seed does.
    torch.manual_seed(1)
    assert torch.equal(choose_receivers(train[:77], share), chosen[:77])
    assert bool(chosen.all()) == (share == 1)


def test_a_share_of_those_who_train_is_that():
    n, share = 100_000, 0.2
    found = choose_receivers(torch.ones(n, dtype=torch.bool), share)
    # Six deviations of a fair draw: wrong once in 1e9, if it were one.
    away = abs(float(found.double().mean()) - share)
    assert away < 6 * math.sqrt(share * (1 - share) / n)
    # Larger shares add nodes and take none away.
    more = choose_receivers(torch.ones(n, dtype=torch.bool), 0.3)
    assert bool(more[found].all())
