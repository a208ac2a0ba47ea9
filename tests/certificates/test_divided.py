"""Division: attacks within the radius never change the voted class."""

import copy
import itertools
import random

import pytest
import torch
from auditing import failures
from shops import INTO, KNOWS, OF, declared, shop
from torch_geometric.data import Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GCNConv,
    GraphNorm,
    GraphSAGE,
    global_add_pool,
    to_hetero,
)

from pyg_trust.certificates import Divided, plot_certified_votes
from pyg_trust.report import TrustReport
from pyg_trust.transforms import Division

N = 24


def graph(seed=0, n=N):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n, (2, 3 * n), generator=generator)
    pairs = pairs[:, pairs[0] < pairs[1]].unique(dim=1)
    x = torch.randn(n, 4, generator=generator)
    edge_index = torch.cat([pairs, pairs.flip(0)], 1)
    return Data(x=x, edge_index=edge_index, n_id=torch.arange(n) * 7)


def model_of(kind, seed=0):
    torch.manual_seed(seed)
    return kind(4, 8, 2, 3)


def with_edges(data, drop=None, add=None):
    made = data.clone()
    if drop is not None:
        u, v = drop
        gone = (made.edge_index == torch.tensor([[u], [v]])).all(0)
        gone |= (made.edge_index == torch.tensor([[v], [u]])).all(0)
        made.edge_index = made.edge_index[:, ~gone]
    if add is not None:
        u, v = add
        both = torch.tensor([[u, v], [v, u]])
        made.edge_index = torch.cat([made.edge_index, both], 1)
    return made


@pytest.mark.parametrize('kind', [GCN, GAT, GraphSAGE, GIN])
def test_no_replacement_of_a_node_breaks_a_certified_class(kind):
    # Five nodes and two layers: each node with every set of neighbours and
    # three rows of features, exhaustively. Without groups it does break some.
    n = 5
    pairs = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    torch.manual_seed(3)
    x = torch.randn(n, 4)
    data = Data(
        x=x,
        edge_index=torch.cat([pairs, pairs.flip(0)], 1),
        n_id=torch.arange(n) * 7,
    )
    model = model_of(kind, 1)
    model.eval()
    divided = Divided(model, 5, 'nodes', seed=3)
    clean = divided.certify(data)
    held = clean.certified(1)
    assert int(held.sum()) >= 1
    with torch.no_grad():
        plain = model(x, data.edge_index).argmax(1)
    moved = plain_moved = 0
    for u in range(n):
        others = [v for v in range(n) if v != u]
        rest = (data.edge_index != u).all(0)
        for on in itertools.product([False, True], repeat=n - 1):
            new = torch.tensor(
                [v for v, o in zip(others, on, strict=True) if o]
            )
            new = new.long()
            star = torch.stack([new, torch.full_like(new, u)])
            bad = data.clone()
            bad.edge_index = torch.cat(
                [data.edge_index[:, rest], star, star.flip(0)], 1
            )
            for row in (x[u], -10 * x[u], 10 * torch.ones(4)):
                bad.x = x.clone()
                bad.x[u] = row
                with torch.no_grad():
                    votes = torch.stack(
                        [
                            model(view.x, view.edge_index).argmax(1)
                            for view in map(
                                divided.division.view, [bad] * 5, range(5)
                            )
                        ]
                    )
                    now = model(bad.x, bad.edge_index).argmax(1)
                apart = (votes != clean.votes)[:, others]
                assert bool((apart.any(1).sum()) <= 1)
                count = torch.nn.functional.one_hot(votes, 3).sum(0)
                voted = count.argmax(1)  # ties: the first class
                stays = voted == clean.predicted
                sure = held.clone()
                sure[u] = False
                assert bool(stays[sure].all())
                moved += int(apart.sum())
                plain_moved += int((now != plain)[others].sum())
    assert moved > 0
    assert plain_moved > 0, 'no attack'


class Turning(torch.nn.Module):
    """Answers by how often it was called: a state, in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, edge_index, *batch):
        self.calls += 1
        rows = x if not batch else global_add_pool(x, *batch)
        return rows[:, :3] + self.calls


class Leaning(torch.nn.Module):
    """Graphs in a batch hear how large the others are."""

    def forward(self, x, edge_index, batch):
        rows = global_add_pool(x, batch)
        return rows[:, :3] - rows[:, :3].mean(0)


def test_a_state_between_views_is_refused():
    graphs = [graph(seed, 9) for seed in range(3)]
    for by in ('edges', 'subgraphs'):
        with pytest.raises(ValueError, match='same function'):
            Divided(Turning(), 3, by, seed=1).certify(graphs)
    with pytest.raises(ValueError, match='same function'):
        Divided(Turning(), 3, 'edges', seed=1).certify(graph())


def test_views_that_hear_unlike_neighbours_are_run_alone():
    # The first views alone may be alike: what mixes shows with others.
    graphs = [graph(seed, 9) for seed in range(4)]
    graphs[3].x = 50 * graphs[3].x
    divided = Divided(Leaning(), 3, 'edges', seed=1)
    votes = divided.certify(graphs).votes
    # Alone, every graph is its own mean: all outputs are equal.
    assert bool((votes == 0).all())


def _inputs(data):
    return data.x, data.edge_index


class Sum(torch.nn.Module):
    """The neighbours' features alone: every edge matters."""

    def forward(self, x, edge_index):
        u, v = edge_index
        return torch.zeros_like(x).index_add(0, v, x[u])[:, :3]


def test_a_changed_edge_changes_one_view():
    data = graph()
    divided = Divided(Sum(), 4, 'edges', seed=0)
    before = divided.certify(data).votes
    moved = 0
    for e in range(0, data.edge_index.size(1), 5):
        u, v = data.edge_index[:, e].tolist()
        after = divided.certify(with_edges(data, drop=(u, v))).votes
        assert int((before != after).any(1).sum()) <= 1
        moved += int((before != after).sum())
    for u, v in ((0, 9), (3, 20), (5, 11)):
        after = divided.certify(with_edges(data, add=(u, v))).votes
        assert int((before != after).any(1).sum()) <= 1
    assert moved > 0


def test_a_changed_entry_changes_one_view():
    torch.manual_seed(0)
    data = graph()
    data.x = (data.x > 0).float()
    divided = Divided(model_of(GCN), 6, 'entries', seed=3)
    views = [divided.division.view(data, i).x for i in range(6)]
    assert torch.equal(torch.stack(views).sum(0), data.x)
    touched = set()
    for node, column in itertools.product(range(4), range(data.x.size(1))):
        bad = copy.copy(data)
        bad.x = data.x.clone()
        bad.x[node, column] = 1 - bad.x[node, column]
        moved = [
            i
            for i in range(6)
            if not torch.equal(divided.division.view(bad, i).x, views[i])
        ]
        assert len(moved) == 1
        touched.add(moved[0])
    # One row is spread over views, where 'features' keeps it in one.
    assert len(touched) > 1


def test_inserting_a_node_moves_no_other_element():
    data = graph()
    more = data.clone()
    more.x = torch.cat([torch.ones(1, 4), data.x])
    more.n_id = torch.cat([torch.tensor([999]), data.n_id])
    more.edge_index = torch.cat(
        [data.edge_index + 1, torch.tensor([[0, 3], [3, 0]])], 1
    )
    for by in ('nodes', 'edges'):
        division = Division(7, by, seed=1)
        one, two = division.node_groups(data), division.node_groups(more)
        assert torch.equal(one, two[1:])
        one, two = division.edge_groups(data), division.edge_groups(more)
        assert torch.equal(one, two[:-2])
    for by in ('entries', 'features'):
        division = Division(7, by, seed=1)
        for number in range(7):
            one, two = (division.view(d, number).x for d in (data, more))
            assert torch.equal(one, two[1:])
    # Both directions of an edge belong together.
    groups = Division(7, 'edges', seed=1).edge_groups(data)
    half = data.edge_index.size(1) // 2
    assert torch.equal(groups[:half], groups[half:])


def test_every_element_is_in_one_view():
    data = graph()
    for by, count in (('edges', 4), ('nodes', 4), ('grid', 3)):
        division = Division(count, by, seed=2)
        views = [division.view(data, i) for i in range(division.num_views)]
        edges = sum(view.edge_index.size(1) for view in views)
        copies = count if by == 'grid' else 1
        assert edges == copies * data.edge_index.size(1)
        if by == 'grid':
            total = sum(view.x for view in views)
            torch.testing.assert_close(total, count * data.x)


def test_empty_groups_vote():
    data = graph(n=5)
    made = Divided(model_of(GCN), 40, 'nodes', seed=0).certify(data)
    assert made.votes.size(0) == 40


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = GCNConv(4, 3), GraphNorm(3)

    def forward(self, x, edge_index):
        return self.norm(self.conv(x, edge_index))


class Loud(torch.nn.Module):
    """Weights by the out-degree of the sender."""

    def forward(self, x, edge_index):
        u, v = edge_index
        share = 1 / torch.bincount(u, minlength=len(x))[u].clamp(min=1)
        return x.index_add(0, v, share[:, None] * x[u])[:, :3]


def test_models_that_break_isolation_are_refused():
    torch.manual_seed(0)
    for model, says in ((Normed(), 'keep nodes apart'), (Loud(), 'receivers')):
        with pytest.raises(ValueError, match=says):
            Divided(model, 4, 'nodes', seed=0).certify(graph())
    with pytest.raises(ValueError, match='cached'):
        Divided(GCNConv(4, 3, cached=True))


def test_out_degrees_that_early_nodes_do_not_hear_are_found_out():
    # Three silent nodes were asked what they hear: those who listen came
    # later, or were of the group itself.
    for seed in range(4):
        data = graph(n=24)
        division = Division(3, 'nodes', seed)
        group = division.node_groups(data)
        inside = (group == 0).nonzero().view(-1)
        late = (group != 0).nonzero().view(-1)[5:]
        for to in (late[:2], torch.stack([inside[1], late[0]])):
            data.edge_index = torch.stack([inside[:1].expand(2), to])
            with pytest.raises(ValueError, match='receivers'):
                Divided(Loud(), 3, 'nodes', seed=seed).certify(data)


class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn = GIN(4, 8, 2, 3)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.gnn(x, edge_index), batch)


def test_graphs_are_voted_on_by_edges_and_by_subgraphs():
    torch.manual_seed(0)
    graphs, model = [graph(s, 8 + s) for s in range(4)], Pooled()
    for by in ('edges', 'subgraphs', 'features', 'entries'):
        divided = Divided(model, 5, by, seed=1)
        made = divided.certify(graphs)
        assert made.votes.shape == (5, 4)
        assert torch.equal(divided(graphs), made.predicted)
        lone = torch.stack(
            [divided.certify([g]).votes[:, 0] for g in graphs], 1
        )
        assert torch.equal(lone, made.votes)
    divided = Divided(model, 5, 'subgraphs', seed=1)
    before = divided.certify(graphs[:1]).votes[:, 0]
    bad = copy.copy(graphs[0])
    bad.x = bad.x.clone()
    bad.x[2] = 50.0
    after = divided.certify([bad]).votes[:, 0]
    group = int(divided.division.node_groups(bad)[2])
    other = torch.arange(5) != group
    assert torch.equal(before[other], after[other])


def test_the_grid_counts_rows_and_columns():
    made = Divided(model_of(GCN), 4, 'grid', seed=1).certify(graph())
    assert made.votes.size(0) == 16
    assert torch.equal(made.certified(1), made.radius >= 4)
    assert torch.equal(made.certified(1, 1), made.radius >= 7)
    assert not made.certified(4).any()


def test_means_are_certified_too():
    made = Divided(model_of(GCN), 5, vote='mean', seed=1).certify(graph())
    assert bool((made.radius <= 2).all())
    assert bool((made.radius >= 0).all())


def test_reports_name_voting_and_draw_the_baseline():
    data = graph()
    made = Divided(model_of(GCN), 5, seed=1).certify(data, baseline=0.4)
    text = ' '.join(str(TrustReport.of(made)).split())
    assert 'voted classifier' in text
    assert "target's own features" in text
    assert made.to_json()
    labels = made.predicted
    assert made.certified_accuracy(labels, 1) == made.certified_ratio(1)
    pytest.importorskip('matplotlib').use('Agg')
    assert len(plot_certified_votes(made, labels).lines) == 2


def test_a_view_is_drawn_for_training():
    data, division = graph(), Division(3, 'edges', seed=0)
    views = [division.view(data, i).edge_index for i in range(3)]
    drawn = [division(data).edge_index for _ in range(20)]
    found = {
        next(i for i, v in enumerate(views) if torch.equal(v, one))
        for one in drawn
    }
    assert found == {0, 1, 2}
    assert str(division) == "Division(3, by='edges', seed=0)"


@pytest.mark.parametrize('by', ['nodes', 'edges', 'features', 'grid'])
def test_an_update_runs_the_views_that_it_changed(by, monkeypatch):
    data = graph()
    divided = Divided(model_of(GCN), 4, by, seed=3)
    held, calls, call = divided.certify(data), [], Divided._call

    def counted(self, *args):
        calls.append(1)
        return call(self, *args)

    monkeypatch.setattr(Divided, '_call', counted)
    u, v = data.edge_index[:, 5].tolist()
    known = set(map(tuple, data.edge_index.t().tolist()))
    new = next((0, w) for w in range(1, N) if (0, w) not in known)
    moved = data.clone()
    moved.x[3, 1] += 1.0
    for now in (
        data,
        with_edges(data, drop=(u, v)),
        with_edges(data, add=new),
        moved,
        graph(n=N + 2),
    ):
        calls.clear()
        whole = divided.certify(now)
        most, calls[:] = len(calls), []
        some = divided.certify(now, since=(held, data))
        fewer = most - len(calls)
        for name in ('votes', 'predicted', 'radius'):
            assert torch.equal(getattr(some, name), getattr(whole, name))
        assert some.run_sha256 == whole.run_sha256
        assert some.data == whole.data
        views = divided.division.num_views
        same = [
            i
            for i in range(1, views)
            if now.num_nodes == N
            and all(
                torch.equal(a, b)
                for a, b in zip(
                    _inputs(divided.division.view(data, i)),
                    _inputs(divided.division.view(now, i)),
                    strict=True,
                )
            )
        ]
        assert fewer == len(same)
        assert fewer == views - 1 or now is not data
    # Updates follow each other.
    one = with_edges(data, drop=(u, v))
    two = with_edges(one, add=new)
    first = divided.certify(one, since=(held, data))
    second = divided.certify(two, since=(first, one))
    assert torch.equal(second.radius, divided.certify(two).radius)


def test_votes_of_anything_else_are_not_kept():
    data, model = graph(), model_of(GCN)
    divided = Divided(model, 4, 'edges', seed=3)
    held = divided.certify(data)
    other = with_edges(data, drop=data.edge_index[:, 0].tolist())
    with pytest.raises(ValueError, match='the graph of its certificate'):
        divided.certify(other, since=(held, other))
    for kwargs in (
        {'num_groups': 5},
        {'by': 'features'},
        {'seed': 4},
        {'vote': 'mean'},
    ):
        kwargs = {'num_groups': 4, 'by': 'edges', 'seed': 3, **kwargs}
        with pytest.raises(ValueError, match='the same division'):
            Divided(model, **kwargs).certify(other, since=(held, data))
    changed = copy.deepcopy(model)
    with torch.no_grad():
        next(changed.parameters()).add_(1.0)
    with pytest.raises(ValueError, match='the same model'):
        Divided(changed, 4, 'edges', seed=3).certify(other, since=(held, data))
    with pytest.raises(TypeError):
        divided.certify(other, since=held)
    with pytest.raises(TypeError):
        divided.certify(other, since=(held, [data]))


# Persons #####################################################################


def everything(seed, person, n=9):
    """A person with other rows, who shares in all that it can."""
    data = shop(seed, n, changed=person, orders={person: seed % 4 * 3})
    own = random.Random(f'{seed} {person}')
    chats = torch.arange(len(data['chat'].x))
    of = data[OF].edge_index
    more = torch.stack([chats, torch.full_like(chats, person)])
    of = torch.cat([of, more], 1).unique(dim=1)
    of = of[:, of[0].argsort(stable=True)]
    data[OF].edge_index, data[INTO].edge_index = of, of.flip(0)
    everybody = torch.arange(n)
    met = torch.stack([everybody, torch.full((n,), person)])
    data[KNOWS].edge_index = torch.cat([data[KNOWS].edge_index, met], 1)
    for chat in range(len(chats)):
        if own.random() < 0.5 and person in of[1][of[0] == chat].tolist():
            data['chat'].x[chat] = own.gauss(0, 9)
    return data


def typed(seed=0):
    torch.manual_seed(seed)
    data = shop(seed)
    model = to_hetero(GraphSAGE((-1, -1), 6, 2, 3), data.metadata()).eval()
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    return model


@pytest.mark.parametrize('seed', range(8))
def test_a_person_reaches_one_view_whatever_it_does(seed):
    n, groups = 9, 4
    data = shop(seed, n)
    unit = declared(data)
    division = Division(groups, 'owners', seed=seed, unit=unit)
    group = division.owner_groups()
    before = [division.view(data, i) for i in range(groups)]
    # All persons, and each once; public rows are in all, joint ones in none.
    assert sum(len(view['user'].x) for view in before) == n
    assert sum(len(view['order'].x) for view in before) == len(data['order'].x)
    for view in before:
        assert view['item'].x.equal(data['item'].x)
        assert not len(view['chat'].x)
    model = typed(seed)
    divided = Divided(
        model, groups, 'owners', seed=seed, unit=unit, target='item'
    )
    clean = divided.certify(data)
    assert clean.targets.numel() == 7
    moved = 0
    for person in range(n):
        bad = everything(seed, person)
        other = declared(bad)
        again = Division(groups, 'owners', seed=seed, unit=other)
        for i in range(groups):
            view = again.part(bad, i)
            same = all(
                view[t].x.equal(before[i][t].x) for t in view.node_types
            ) and all(
                view[e].edge_index.equal(before[i][e].edge_index)
                for e in view.edge_types
            )
            assert same or i == int(group[person])
            moved += not same
        attacked = Divided(
            model, groups, 'owners', seed=seed, unit=other, target='item'
        ).certify(bad)
        changed = (attacked.votes != clean.votes).any(1)
        assert not changed[torch.arange(groups) != group[person]].any()
        stays = attacked.predicted == clean.predicted
        assert bool(stays[clean.certified(1)].all())
    assert moved == n


def test_joint_rows_of_one_group_would_let_a_person_reach_two_views():
    # Who joins a chat of others takes it out of their view.
    data = shop(1, 9)
    unit = declared(data)
    group = Division(4, 'owners', seed=1, unit=unit).owner_groups()
    reached = set()
    for person in range(9):
        bad = everything(1, person)
        other = declared(bad)
        for i in range(4):
            inside = (group == i).nonzero().view(-1)
            one = unit._inside(data, inside)['chat'].n_id
            two = other._inside(bad, inside)['chat'].n_id
            if not one.equal(two) and i != int(group[person]):
                reached.add((person, i))
    assert reached


def test_a_certificate_about_persons_says_so(tmp_path):
    data = shop()
    unit = declared(data)
    divided = Divided(typed(), 5, 'owners', seed=3, unit=unit, target='item')
    made = divided.certify(data, baseline=0.5)
    said = made.guarantee()
    assert 'persons, each with all rows and edges that it owns' in said.promise
    assert 'DECLARED PUBLIC: item, category, item/in/category' in (
        said.not_covered
    )
    assert 'rows of several persons: in no view' in said.not_covered
    assert made.persons == unit.summary()
    assert made.certified(1).shape == (7,)
    path = tmp_path / 'trust.json'
    TrustReport.of(made).save(path)
    assert not failures(path)


def test_wrong_owners():
    data, model = shop(), typed()
    unit = declared(data)
    for options, match in (
        ({'by': 'owners'}, "'unit' needs"),
        ({'by': 'nodes', 'unit': unit}, "'unit' needs"),
        ({'by': 'owners', 'unit': unit}, "'target' needs to be a public"),
        (
            {'by': 'owners', 'unit': unit, 'target': 'user'},
            "'target' needs to be a public",
        ),
        ({'by': 'nodes', 'target': 'item'}, "'target' needs"),
    ):
        with pytest.raises(ValueError, match=match):
            Divided(model, 3, seed=0, **options)
    divided = Divided(model, 3, 'owners', seed=0, unit=unit, target='item')
    with pytest.raises(TypeError, match="'data' needs"):
        divided.certify(graph())
    with pytest.raises(ValueError, match='sizes or edges differ'):
        divided.certify(shop(2))
    with pytest.raises(TypeError, match="'data' needs"):
        Divided(model_of(GCN), 3, seed=0).certify(data)
