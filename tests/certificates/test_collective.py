"""Many nodes at once: against brute force, and fields that are probed."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

from pyg_trust.certificates import (
    BitFlips,
    certify,
    certify_collective,
    collective,
)
from pyg_trust.certificates.collective import (
    _Fields,
    broken_bound,
    frontier,
    receptive_field,
)
from pyg_trust.report import TrustReport
from pyg_trust.verify.collective import Attack


def bounded(owner, points, reach, budget, caps, num, **more):
    """The bound, without the multipliers that prove it."""
    attack = Attack(owner, points, reach, budget, caps, **more)
    return broken_bound(attack)[0]


def of_entry(entry):
    owner = [v for v, row in enumerate(entry['frontier']) for _ in row]
    points = [p for row in entry['frontier'] for p in row]
    reach = scipy.sparse.csr_array(np.array(entry['reach'], dtype=float))
    budget = entry['budget']
    caps = [np.full(reach.shape[1], float(r)) for r in budget]
    return (
        np.array(owner),
        np.array(points),
        [reach, reach],
        budget,
        caps,
        len(entry['reach']),
    )


def test_bounds_are_those_of_the_oracle(shared):
    file = shared / 'oracles/any_model_certificates/collective.json'
    for entry in json.loads(file.read_text()):
        problem = of_entry(entry)
        bound = bounded(*problem)
        assert bound == pytest.approx(entry['broken_lp'], abs=1e-6)
        assert bound >= entry['broken_exact'] - 1e-6


def path(n):
    pairs = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    x = torch.rand(n, 6, generator=torch.Generator().manual_seed(n)) < 0.5
    edge_index = torch.cat([pairs, pairs.flip(0)], 1)
    return Data(x=x.float(), edge_index=edge_index)


def test_an_edge_that_changes_a_degree_within_is_seen():
    fields = _Fields(path(5), 2, 'source')
    seen = {
        tuple(fields.pairs[:, e].tolist())
        for e in fields.edges[[0]].tocoo().coords[1]
    }
    assert seen == {(0, 1), (1, 2), (2, 3)}
    fields = _Fields(path(5), 2, 'target')
    seen = {
        tuple(fields.pairs[:, e].tolist())
        for e in fields.edges[[0]].tocoo().coords[1]
    }
    assert seen == {(0, 1), (1, 2)}


def smooth(model, data, noise):
    return certify(
        model, data, noise, num_samples=2000, num_selection=50, seed=0
    )


@pytest.mark.parametrize(
    ('kind', 'hops', 'degrees', 'good'),
    [
        (GCN, 2, 'source', True),
        (GCN, 2, 'target', False),
        (GCN, 1, 'source', False),
        (GraphSAGE, 2, 'target', True),
        (GraphSAGE, 1, 'target', False),
        (GAT, 2, 'target', True),
        (GAT, 1, 'target', False),
        (GIN, 2, 'target', True),
        (GIN, 1, 'target', False),
    ],
)
def test_a_field_that_is_too_small_is_found_out(kind, hops, degrees, good):
    torch.manual_seed(0)
    data, model = path(12), kind(6, 8, 2, 3)
    report = smooth(model, data, BitFlips(edges=(0.0, 0.4)))
    arguments = {'K': hops, 'degrees': degrees, 'edges': (0, 2)}
    if good:
        made = certify_collective(report, model, data, **arguments)
        assert made.guaranteed >= made.one_by_one
    else:
        with pytest.raises(ValueError, match='outside of its field'):
            certify_collective(report, model, data, **arguments)


@pytest.mark.parametrize(
    ('kind', 'degrees'),
    [(GCN, 'source'), (GraphSAGE, 'target'), (GAT, 'target'), (GIN, 'target')],
)
def test_every_subgraph_shows_a_node_its_field_alone(kind, degrees):
    # All 64 subgraphs of a tree with a chord: those that agree on the field
    # of a node give it one output. With a hop less they do not.
    pairs = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 2, 3, 4, 5, 3]])
    torch.manual_seed(3)
    model, x = kind(3, 16, 2, 2).eval(), torch.randn(6, 3)
    outputs = {}
    for on in itertools.product([False, True], repeat=pairs.size(1)):
        part = pairs[:, list(on)]
        with torch.no_grad():
            outputs[on] = model(x, torch.cat([part, part.flip(0)], 1))
    data = Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], 1))
    listed = pairs.t().tolist()

    def spread(hops):
        fields = _Fields(data, hops, degrees)
        widest = 0.0
        for v in range(6):
            seen = [
                listed.index(fields.pairs[:, e].tolist())
                for e in fields.edges[[v]].tocoo().coords[1]
            ]
            groups = {}
            for on, out in outputs.items():
                key = tuple(on[e] for e in seen)
                groups.setdefault(key, []).append(out[v])
            for group in groups.values():
                rows = torch.stack(group)
                widest = max(widest, float((rows - rows[0]).abs().max()))
        return widest

    assert spread(2) < 1e-6
    assert spread(1) > 1e-3


def test_more_stays_at_once_than_one_by_one():
    torch.manual_seed(3)
    data, model = path(40), GCN(6, 16, 2, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    noise = BitFlips(features=(0.02, 0.3))
    report = smooth(model, data, noise)
    made = certify_collective(report, model, data, K=2, features=(1, 1))
    assert made.one_by_one < made.guaranteed <= made.counted
    assert made.verify() == 'holds'
    # Without a witness, by that of another, and of more than it proves.
    assert dataclasses.replace(made, proof=None).verify() == 'not proved'
    other = certify_collective(report, model, data, K=2, features=(1, 2))
    assert made.verify(other.proof) == 'FAILS'
    for lie, said in (
        ({'features': (2, 2)}, 'FAILS'),
        ({'attackers': 1}, 'FAILS'),
        ({'bound': made.bound - 1e-6}, 'not proved'),
    ):
        assert dataclasses.replace(made, **lie).verify() == said
    text = ' '.join(str(TrustReport.of(made)).split())
    assert 'stay at once' in text
    labels = report.predicted.clamp(min=0)
    labels[:20] = (labels[:20] + 1) % 3
    right = certify_collective(
        report, model, data, K=2, features=(1, 1), labels=labels
    )
    assert right.counted <= 20
    assert right.guaranteed <= right.counted
    assert right.certified_ratio() == right.guaranteed / 40
    few = certify_collective(
        *(report, model, data), K=2, features=(1, 1), attackers=1
    )
    assert few.verify() == 'holds'


@pytest.mark.parametrize(
    ('kind', 'reads'), [(GCN, 'source'), (GAT, 'target'), (GIN, 'target')]
)
def test_brute_force_over_smoothed_graphs_breaks_no_more(kind, reads):
    # Six nodes, exact probabilities over all subgraphs (p+ = 0), every set of
    # deleted edges: never more broken than the bound of the certificates.
    from pyg_trust.certificates.smoothing import certified, regions_at

    torch.manual_seed(1)
    pairs = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 2]])
    m, keep = pairs.size(1), 0.5
    subsets = list(itertools.product([False, True], repeat=m))
    checked = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model, x = kind(3, 8, 2, 2), torch.randn(6, 3)
        logits = {}
        for on in subsets:
            part = pairs[:, list(on)]
            both = torch.cat([part, part.flip(0)], 1)
            with torch.no_grad():
                logits[on] = model.eval()(x, both)
        # A constant of the model: else one class may win everywhere.
        level = logits[(True,) * m].mean(0)
        classes = {on: (out - level).argmax(1) for on, out in logits.items()}

        def chance(base, classes=classes):
            total = torch.zeros(6, 2, dtype=torch.float64)
            for on in subsets:
                if all(b or not o for o, b in zip(on, base, strict=True)):
                    p = keep ** sum(base)
                    one_hot = torch.nn.functional.one_hot(classes[on], 2)
                    total += p * one_hot
            return total

        clean = chance((True,) * m)
        predicted = clean.argmax(1)
        lower = clean.amax(1).clamp(max=1.0)
        sure = np.stack(
            [
                certified(
                    lower, None, regions_at([(0.0, 1 - keep)], [(0, r)])
                ).numpy()
                for r in range(3)
            ],
            1,
        )
        owner, points = frontier(sure)
        data = Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], 1))
        fields = _Fields(data, 2, reads)
        order = [
            pairs.t().tolist().index(pair)
            for pair in fields.pairs.t().tolist()
        ]
        assert sorted(order) == list(range(m))
        for budget in (1, 2):
            bound = bounded(
                owner, points, [fields.edges], [budget], [np.ones(m)], 6
            )
            for gone in itertools.combinations(range(m), budget):
                base = tuple(i not in gone for i in range(m))
                now = chance(base).argmax(1)
                broken = int((now != predicted).sum())
                assert broken <= np.floor(bound + 1e-6)
                checked += broken > 0
    assert checked > 0


def test_an_added_edge_makes_far_deletions_count():
    # The target sees no deletion by itself, and breaks at two of them: an
    # edge that is added at its side leads to both. (With the second variable
    # only for points that have additions, as is natural to write, 0 break.)
    blind = scipy.sparse.csr_array((1, 4))
    near = scipy.sparse.csr_array(np.eye(4)[:1])
    problem = (np.array([0]), np.array([[2, 0]]), [blind])
    caps, num = [np.ones(4)], 1
    assert bounded(*problem, [2, 1], caps, num, additions=near) == 1
    assert bounded(*problem, [2, 0], caps, num, additions=near) == 0
    assert bounded(*problem, [1, 1], caps, num, additions=near) == 0
    far = scipy.sparse.csr_array((1, 4))
    assert bounded(*problem, [2, 1], caps, num, additions=far) == 0


def test_ends_of_added_edges_are_shared():
    # Six targets that see only themselves, and break at one added edge: each
    # edge has two ends.
    owner, points = np.arange(6), np.ones((6, 1), dtype=int)
    near = scipy.sparse.eye_array(6).tocsr()
    for budget in (1, 2):
        bound = bounded(owner, points, [], [budget], [], 6, additions=near)
        assert bound == pytest.approx(2 * budget)


def test_brute_force_with_added_edges_breaks_no_more():
    # Five nodes, exact probabilities over all subgraphs (p+ = 0), every graph
    # within the budget.
    from pyg_trust.certificates.smoothing import certified, regions_at

    pairs = torch.combinations(torch.arange(5)).t()
    m, keep = pairs.size(1), 0.3
    there = tuple(
        pair in ([0, 1], [1, 2], [2, 3], [3, 4]) for pair in pairs.t().tolist()
    )
    base = pairs[:, list(there)]
    data = Data(edge_index=torch.cat([base, base.flip(0)], 1), num_nodes=5)
    fields = _Fields(data, 1, 'source')
    subsets = list(itertools.product([False, True], repeat=m))
    broke = held = 0
    for seed in range(8):
        torch.manual_seed(seed)
        model, x = GCN(3, 8, 1, 2), 2 * torch.randn(5, 3)
        classes = {}
        for on in subsets:
            part = pairs[:, list(on)]
            both = torch.cat([part, part.flip(0)], 1)
            with torch.no_grad():
                out = model.eval()(x, both).argmax(1)
            classes[on] = torch.nn.functional.one_hot(out, 2).double()

        def chance(graph, classes=classes):
            size, total = sum(graph), torch.zeros(5, 2, dtype=torch.float64)
            for some in itertools.product([False, True], repeat=size):
                left = iter(some)
                on = tuple(next(left) if edge else False for edge in graph)
                p = keep ** sum(some) * (1 - keep) ** (size - sum(some))
                total += p * classes[on]
            return total

        clean = chance(there)
        predicted, lower = clean.argmax(1), clean.amax(1).clamp(max=1.0)
        sure = np.empty((5, 3, 3), dtype=bool)
        for gone, new in np.ndindex(3, 3):
            regions = regions_at([(0.0, 1 - keep)], [(new, gone)])
            sure[:, gone, new] = certified(lower, None, regions).numpy()
        owner, points = frontier(sure)
        for gone, new in ((0, 1), (1, 1), (0, 2), (2, 1)):
            bound = bounded(
                owner,
                points,
                [fields.edges],
                [gone, new],
                [np.ones(4)],
                5,
                additions=fields.near,
            )
            held += bound < 5 - 1e-6
            old = [i for i in range(m) if there[i]]
            free = [i for i in range(m) if not there[i]]
            for flips in itertools.product(
                itertools.combinations(old, gone),
                itertools.combinations(free, new),
            ):
                change = {*flips[0], *flips[1]}
                graph = tuple(on ^ (i in change) for i, on in enumerate(there))
                moved = chance(graph).argmax(1) != predicted
                assert int(moved.sum()) <= np.floor(bound + 1e-6)
                broke += int(moved.any())
    assert broke > 0
    assert held > 0


def test_added_edges_and_few_attackers_in_a_certificate():
    torch.manual_seed(0)
    data, model = path(30), GCN(6, 8, 2, 3)
    report = smooth(model, data, BitFlips(edges=(0.0, 0.7)))
    arguments = {'K': 2, 'edges': (1, 0)}
    made = certify_collective(report, model, data, **arguments)
    assert made.verify() == 'holds'
    worse = certify_collective(report, model, data, K=2, edges=(1, 1))
    assert worse.verify() == 'holds'
    assert worse.guaranteed <= made.guaranteed <= made.counted
    assert '1 added and 0 deleted undirected edges' in made.guarantee().promise
    noise = BitFlips(features=(0.02, 0.3))
    report = smooth(model, data, noise)
    budget = {'K': 2, 'features': (2, 2)}
    all_rows = certify_collective(report, model, data, **budget)
    one_row = certify_collective(report, model, data, **budget, attackers=1)
    none = certify_collective(report, model, data, **budget, attackers=0)
    assert all_rows.guaranteed <= one_row.guaranteed <= none.guaranteed
    assert none.guaranteed == none.counted
    # Without a budget nothing changes. (It raised: no program has no rows.)
    clean = certify_collective(report, model, data, K=2)
    assert clean.guaranteed == clean.counted
    assert clean.verify() == 'holds'
    assert 'of at most 1 nodes together' in one_row.guarantee().promise


def test_what_does_not_hold_together_is_refused():
    torch.manual_seed(0)
    data, model = path(12), GCN(6, 8, 2, 3)
    noise = BitFlips(edges=(0.0, 0.4))
    report = smooth(model, data, noise)
    each = certify(model, data, noise, num_samples=2000, per='node', seed=0)
    wide = smooth(model, data, BitFlips(edges=(0.01, 0.4)))
    good = {'K': 2, 'edges': (0, 1)}
    other = path(12)
    other.x = 1 - other.x
    for made, graph, change, says in (
        (each, data, {}, "'report'"),
        (wide, data, {}, "'report'"),
        (report, other, {}, 'those of the report'),
        (report, data, {'attackers': 2}, "'attackers' needs a budget"),
        (report, data, {'local_budget': 2}, "'local_budget' needs a budget"),
        (report, data, {'features': (0, 1)}, "'features'"),
    ):
        with pytest.raises(ValueError, match=says):
            certify_collective(made, model, graph, **{**good, **change})


def test_fields_follow_the_direction_of_messages():
    edge_index = torch.tensor([[0, 1], [1, 2]])
    made = receptive_field(edge_index, 3, 1).toarray()
    assert made.tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_a_bound_that_rounding_takes_below_a_number_counts_it(monkeypatch):
    # Sums of the multipliers of a solver end some units beside the number
    # that can break.
    torch.manual_seed(3)
    data, model = path(40), GCN(6, 16, 2, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    report = smooth(model, data, BitFlips(features=(0.02, 0.3)))
    for number in (1, 2, 3):
        for off in (0.0, 2.0**-50, 1e-9):
            monkeypatch.setattr(
                collective,
                'broken_bound',
                lambda *args, of=number - off: (of, np.zeros(0)),
            )
            made = certify_collective(
                report, model, data, K=2, features=(1, 1)
            )
            assert made.guaranteed == max(
                made.counted - number, made.one_by_one
            )
    assert made.one_by_one < made.counted - 3
