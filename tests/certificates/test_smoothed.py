"""Smoothing: no certified class of any small graph is ever changed."""

import functools
import io
import itertools
import json
import sys

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    GCNConv,
    GraphNorm,
    GraphSAGE,
    global_add_pool,
)

from pyg_trust._progress import Bar, progress
from pyg_trust.certificates import (
    BitFlips,
    SmoothedClassifier,
    certify,
    plot_certified_grid,
)
from pyg_trust.certificates.sampling import Pipeline, Sampler, evaluating
from pyg_trust.certificates.smoothing import certified, regions_at
from pyg_trust.report import TrustReport

MODELS = {'GCN': GCN, 'GAT': GAT, 'SAGE': GraphSAGE, 'GIN': GIN}

# Every graph, every model, exact probabilities ###############################


@functools.cache
def inputs(num_nodes, width):
    """Every graph and feature matrix: bits and the cells they stand for."""
    pairs = list(itertools.combinations(range(num_nodes), 2))
    cells = [('edges', pair) for pair in pairs]
    cells += [
        ('features', (v, j)) for v in range(num_nodes) for j in range(width)
    ]
    bits = torch.tensor(
        list(itertools.product([0, 1], repeat=len(cells))), dtype=torch.bool
    )
    return cells, bits


def classes_of(model, cells, bits, num_nodes, x):
    """The class of every node for all inputs: int64, [num_inputs, n]."""
    pairs = torch.tensor([c for kind, c in cells if kind == 'edges']).t()
    graphs = []
    for row in bits:
        on = pairs[:, row[: pairs.size(1)]]
        feats = x
        if len(cells) > pairs.size(1):
            feats = row[pairs.size(1) :].view(num_nodes, -1).float()
        graphs.append(Data(x=feats, edge_index=torch.cat([on, on.flip(0)], 1)))
    batch = Batch.from_data_list(graphs)
    with evaluating(model):
        out = model(batch.x, batch.edge_index)
    return out.argmax(1).view(len(graphs), num_nodes)


def kernel(cells, bits, noise):
    """The probability of every sample under every input, from the law."""
    made = torch.ones(len(bits), len(bits), dtype=torch.float64)
    for k, (kind, _) in enumerate(cells):
        plus, minus = getattr(noise, kind)
        flip = torch.tensor([plus, minus]).double()[bits[:, k].long()]
        other = bits[:, k][:, None] != bits[:, k]
        made *= torch.where(other, flip[:, None], 1 - flip[:, None])
    return made


def changes(cells, bits):
    """How many cells of each kind are set and deleted between two inputs."""
    made = []
    for kind in ('edges', 'features'):
        part = torch.tensor([name == kind for name, _ in cells])
        on = bits[:, part].double()
        made += [((1 - on) @ on.t()).long(), (on @ (1 - on).t()).long()]
    return torch.stack(made, -1)


@functools.cache
def budgets_of(num_nodes, width):
    """All budgets between inputs, and the one of every pair."""
    apart = changes(*inputs(num_nodes, width))
    code = apart @ torch.tensor([4096, 256, 16, 1])
    codes, which = code.unique(return_inverse=True)
    budgets = [
        [c // 4096, c // 256 % 16, c // 16 % 16, c % 16]
        for c in codes.tolist()
    ]
    return budgets, which, apart.sum(2) > 0


def violations(noise, classes, num_classes, world, certificate, only=None):
    """How many certified pairs of inputs differ, certified, and all."""
    cells, bits = inputs(*world)
    p = kernel(cells, bits, noise)
    one_hot = torch.nn.functional.one_hot(classes, num_classes).double()
    chance = (p @ one_hot.view(len(bits), -1)).view(one_hot.shape)
    smooth = chance.argmax(2)
    lower = chance.amax(2).view(-1).clamp(max=1)
    upper = chance.scatter(2, smooth[..., None], 0).view(len(lower), -1)
    upper = upper.clamp(0, 1)
    counts = torch.zeros(3, dtype=torch.int64)
    budgets, which, moved = budgets_of(*world)
    for number, budget in enumerate(budgets):
        if only is not None and budget != only:
            continue
        sure = certificate(lower, upper, noise, budget).view(smooth.shape)
        one, two = ((which == number) & moved).nonzero().t()
        differ = smooth[one] != smooth[two]
        claims = sure[one]
        counts[0] += (claims & differ).sum()
        counts[1] += claims.sum()
        counts[2] += (~differ).sum()
    return counts.tolist()


def ours(lower, upper, noise, budget):
    radius = [tuple(budget[:2]), tuple(budget[2:])]
    regions = regions_at([noise.edges, noise.features], radius)
    return certified(lower, upper, regions)


SETTINGS = list(
    itertools.product(
        MODELS,
        (2, 3),
        [(0.1, 0.3), (0.0, 0.6), (0.25, 0.4), (0.3, 0.0)],
        range(3),
    )
)[::9]


def model_of(name, width, num_classes, seed):
    torch.manual_seed(seed)
    model = MODELS[name](width, 8, 2, num_classes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


def test_no_certified_class_of_any_graph_on_five_nodes_changes():
    cells, bits = inputs(5, 0)
    total = torch.zeros(3)
    for name, num_classes, noise, seed in SETTINGS:
        model = model_of(name, 3, num_classes, seed)
        x = torch.randn(5, 3)
        classes = classes_of(model, cells, bits, 5, x)
        counts = violations(
            BitFlips(edges=noise), classes, num_classes, (5, 0), ours
        )
        assert counts[0] == 0, (name, num_classes, noise, seed)
        total += torch.tensor(counts)
    # Certifying nothing would be easy.
    assert total[1] > 0.05 * total[2]


def test_no_certified_class_of_any_features_changes():
    # Two nodes with four bits each, and the one edge between them noisy, too.
    cells, bits = inputs(2, 4)
    for name, noise in itertools.product(
        ('GCN', 'SAGE'), [(0.1, 0.3), (0.05, 0.6), (0.0, 0.4)]
    ):
        classes = classes_of(model_of(name, 4, 3, 5), cells, bits, 2, None)
        counts = violations(
            BitFlips(edges=(0.2, 0.2), features=noise),
            classes,
            3,
            (2, 4),
            ours,
        )
        assert counts[0] == 0
        assert counts[1] > 0


def joint_unsorted(lower, upper, noise, budget):
    # The published code takes pairs of regions in their own order.
    from pyg_trust.certificates.smoothing import FlipRegions, flip_regions

    one = flip_regions(*budget[:2], *noise.edges)
    two = flip_regions(*budget[2:], *noise.features)
    regions = FlipRegions(
        np.outer(one.clean, two.clean).ravel(),
        np.outer(one.perturbed, two.perturbed).ravel(),
        one.clean,
    )
    return certified(lower, upper, regions)


def worst_classes(bits, cells, noise, budget):
    """The classifier that does worst at one pair, by likelihood ratios."""
    p = kernel(cells, bits, noise)
    apart = changes(cells, bits)
    hit = (apart == torch.tensor(budget)).all(2).nonzero()
    for a, b in hit[:6].tolist():
        order = (p[b] / p[a]).argsort()
        for share in (0.6, 0.8, 0.9, 0.97):
            ours_is = p[a][order].cumsum(0) <= share
            made = torch.ones(len(bits), dtype=torch.int64)
            made[order[ours_is]] = 0
            yield made[:, None].expand(-1, 3).clone()


def test_joint_certificates_hold_for_worst_classifiers_and_sorting_matters():
    # Three nodes with two bits each: 512 inputs; classifiers that are as bad
    # as can be at one pair of them.
    cells, bits = inputs(3, 2)
    noise = BitFlips(edges=(0.1, 0.3), features=(0.05, 0.2))
    wrong = claimed = 0
    for budget in ([1, 0, 1, 1], [2, 0, 1, 2], [1, 1, 1, 2], [1, 1, 0, 1]):
        for classes in worst_classes(bits, cells, noise, budget):
            counts = violations(noise, classes, 2, (3, 2), ours, budget)
            assert counts[0] == 0
            claimed += counts[1]
            wrong += violations(
                noise, classes, 2, (3, 2), joint_unsorted, budget
            )[0]
    assert claimed > 0
    assert wrong > 0


def test_wrong_certificates_are_found_out():
    # One radius more than certified; classes other than the runner-up left
    # out: the enumeration must see them.
    cells, bits = inputs(4, 0)
    noise = BitFlips(edges=(0.1, 0.3))

    def bolder(lower, upper, noise, budget):
        less = [max(b - 1, 0) for b in budget]
        return ours(lower, upper, noise, less)

    def one_other(lower, upper, noise, budget):
        return ours(lower, upper.amin(1, keepdim=True), noise, budget)

    wrong = {'bolder': 0, 'one other': 0}
    for seed in range(12):
        model = model_of('GIN', 3, 3, seed)
        classes = classes_of(model, cells, bits, 4, torch.randn(4, 3))
        for name, variant in (('bolder', bolder), ('one other', one_other)):
            wrong[name] += violations(noise, classes, 3, (4, 0), variant)[0]
    assert min(wrong.values()) > 0, wrong


# The pipeline ################################################################


def small(seed=0, n=12, d=6):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.tensor(list(itertools.combinations(range(n), 2))).t()
    keep = torch.rand(pairs.size(1), generator=generator) < 0.25
    pairs = pairs[:, keep]
    x = (torch.rand(n, d, generator=generator) < 0.3).float()
    return Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], 1))


@pytest.mark.parametrize('name', MODELS)
def test_votes_have_the_exact_probabilities(name):
    # Three nodes, two bits each, against all 512 outcomes: within five
    # standard errors, for each of 3 nodes and 3 classes.
    cells, bits = inputs(3, 2)
    noise = BitFlips(edges=(0.1, 0.3), features=(0.05, 0.4))
    model = model_of(name, 2, 3, 1)
    classes = classes_of(model, cells, bits, 3, None)
    at = 0b110010110
    row = bits[at]
    on = torch.tensor(list(itertools.combinations(range(3), 2))).t()
    on = on[:, row[:3]]
    data = Data(
        x=row[3:].view(3, 2).float(), edge_index=torch.cat([on, on.flip(0)], 1)
    )
    one_hot = torch.nn.functional.one_hot(classes, 3).double()
    p = torch.einsum('z,zvc->vc', kernel(cells, bits, noise)[at], one_hot)
    n = 20_000
    report = certify(
        model, data, noise, num_samples=n, num_selection=10, seed=7
    )
    share = report.votes[:, :3] / n
    error = (p * (1 - p) / n).sqrt()
    assert bool(((share - p).abs() <= 5 * error + 1e-12).all())
    assert int(report.votes[:, 3].sum()) == 0
    assert bool((report.votes.sum(1) == n).all())


@pytest.mark.parametrize('name', ['GCN', 'SAGE', 'GIN', 'GAT'])
@pytest.mark.parametrize(
    'noise',
    [
        BitFlips(edges=(0.05, 0.4)),
        BitFlips(features=(0.05, 0.4)),
        BitFlips(edges=(0.0, 0.4), features=(0.1, 0.2)),
        BitFlips(edges=(0.05, 0.4), directed=True),
    ],
    ids=['edges', 'features', 'both', 'directed'],
)
def test_sparse_inputs_and_batches_change_no_output(name, noise):
    data, model = small(), model_of(name, 6, 3, 2)
    sparse = {'sparse_x': True, 'sparse_adj': name != 'GAT'}
    with evaluating(model):
        plain = Sampler(Pipeline(model), data, noise, 3)
        fast = Sampler(Pipeline(model, **sparse), data, noise, 3)
        alone = torch.cat([plain.logits(s, 1, True) for s in range(6)])
        torch.testing.assert_close(fast.logits(0, 6), alone)
        torch.testing.assert_close(plain.logits(0, 6), alone)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = GCNConv(6, 3), GraphNorm(3)

    def forward(self, x, edge_index):
        return self.norm(self.conv(x, edge_index))


def run(model, data, noise=None, **options):
    given = {'num_samples': 2000, 'num_selection': 50, 'seed': 1}
    noise = noise or BitFlips(edges=(0.0, 0.4))
    return certify(model, data, noise, **{**given, **options})


def test_a_model_that_mixes_its_batch_goes_one_by_one():
    torch.manual_seed(0)
    model, data = Normed(), small()
    made = run(model, data, num_samples=700, per='node', confidence=0.9)
    assert 'one copy at a time' in made.note
    with evaluating(model):
        sampler = Sampler(Pipeline(model), data, made.noise, 1)
        votes = torch.zeros_like(made.votes)
        for s in range(50, 750):
            best = sampler.logits(s, 1)[0].argmax(1)
            votes[torch.arange(12), best] += 1
    assert torch.equal(votes, made.votes)


def test_model_and_data_are_left_as_they_were():
    data = small()
    model = GCN(6, 8, 2, 3, dropout=0.5, norm='BatchNorm')
    model.train()
    model.convs[0].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    x, edge_index = data.x.clone(), data.edge_index.clone()
    run(model, data)
    assert [m.training for m in model.modules()] == modes
    assert all(
        torch.equal(v, before[k]) for k, v in model.state_dict().items()
    )
    assert torch.equal(data.x, x)
    assert torch.equal(data.edge_index, edge_index)


def test_the_noise_is_secret_unless_seeded():
    data, model = small(), model_of('GCN', 6, 3, 0)
    torch.manual_seed(0)
    one = run(model, data, seed=None)
    torch.manual_seed(0)
    two = run(model, data, seed=None)
    assert one.seed != two.seed
    assert torch.equal(run(model, data, seed=one.seed).votes, one.votes)
    # The high half of a seed counts.
    low = run(model, data, seed=5)
    high = run(model, data, seed=5 + 2**40)
    assert not torch.equal(low.votes, high.votes)


def test_selection_and_bounds_use_different_copies():
    # With as many of both, the first copies choose and the next ones count.
    data, model = small(), model_of('GCN', 6, 3, 0)
    made = run(model, data, num_selection=2000)
    shifted = run(model, data, num_selection=1)
    assert not torch.equal(made.votes, shifted.votes)


@pytest.mark.parametrize(('per', 'share'), [('all', 12), ('node', 1)])
def test_the_level_is_shared_by_nodes_sides_and_classes(per, share):
    # Of twelve nodes with three classes, and what is not finite a fourth.
    data, model, alpha = small(), model_of('GCN', 6, 3, 0), 0.06
    made = run(model, data, per=per, classes='all', confidence=1 - alpha)
    n, level = 2000, alpha / share
    for votes, lower, upper in zip(
        made.votes, made.p_lower, made.p_upper, strict=True
    ):
        chosen = int((upper == 0).nonzero()[0])
        k = int(votes[chosen])
        below = beta.ppf(level / 2, k, n - k + 1)
        assert float(lower) == pytest.approx(below, rel=1e-9)
        for other in {0, 1, 2} - {chosen}:
            k = int(votes[other])
            above = beta.ppf(1 - level / 6, k + 1, n - k)
            assert float(upper[other]) == pytest.approx(above, rel=1e-9)


class Coin(torch.nn.Module):
    """The parity of edges at the first node: a classifier with a known p."""

    def forward(self, x, edge_index):
        degree = (edge_index[0] % 2 == 0).new_zeros(x.size(0), dtype=x.dtype)
        degree = degree.scatter_add(
            0, edge_index[0], torch.ones(edge_index.size(1))
        )
        odd = (degree % 2 == 1).float()
        return torch.stack([odd, 1 - odd], 1)


def test_bounds_cover_as_often_as_they_say():
    # A node with one edge keeps it with probability .6: class 0 has p = .6.
    runs, alpha = 400, 0.05
    pair = torch.tensor([[0, 1], [1, 0]])
    data = Data(x=torch.ones(2, 1), edge_index=pair)
    wrong = 0
    for seed in range(runs):
        made = certify(
            Coin(),
            data,
            BitFlips(edges=(0.0, 0.4)),
            num_samples=60,
            num_selection=5,
            confidence=1 - alpha,
            per='node',
            classes='one',
            nodes=torch.tensor([0]),
            seed=seed,
        )
        p = 0.6 if int(made.votes[0, 0]) == 60 - int(made.votes[0, 1]) else 0
        true = (p, 1 - p)
        column = int((made.p_upper[0, :2] == 0).nonzero()[0])
        wrong += float(made.p_lower[0]) > true[column]
    error = 3 * (alpha * (1 - alpha) / runs) ** 0.5
    assert 0.005 <= wrong / runs <= alpha + error


class Dead(torch.nn.Module):
    def forward(self, x, edge_index):
        return torch.full((x.size(0), 2), torch.nan)


def test_outputs_that_are_not_finite_are_no_class():
    made = run(Dead(), small())
    assert made.num_abstained == 12
    assert not made.certified().any()
    assert int(made.votes[:, 2].sum()) == 12 * 2000


# Whole graphs ################################################################


class GraphModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn = GIN(6, 8, 2, 3)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.gnn(x, edge_index), batch)


def test_graphs_are_certified_as_they_are_alone():
    torch.manual_seed(4)
    model, graphs = GraphModel(), [small(s, n) for s, n in ((0, 5), (1, 9))]
    noise = BitFlips(edges=(0.05, 0.3), features=(0.05, 0.3))
    made = run(model, graphs, noise)
    assert made.task == 'graphs'
    again = run(
        model,
        graphs,
        noise,
        forward=lambda b: model(b.x, b.edge_index, b.batch),
    )
    assert torch.equal(made.votes, again.votes)
    batch = run(model, Batch.from_data_list(graphs), noise)
    assert torch.equal(made.votes, batch.votes)
    # No more edges can go than a graph has.
    many = made.certified(edges=(0, 10**6))
    ones = int(made.cells['edges'][0, 1])
    assert bool(many[0]) == bool(made.certified(edges=(0, ones))[0])


def test_degrees_are_counted_in_every_copy():
    # A transform that makes degrees: without noise-aware features the votes
    # would not move at all.
    def degrees(data):
        ones = torch.ones(data.edge_index.size(1))
        degree = torch.zeros(data.num_nodes)
        data.x = degree.scatter_add(0, data.edge_index[0], ones)[:, None]
        return data

    class Edges(torch.nn.Module):
        def forward(self, x, edge_index, batch):
            total = global_add_pool(x, batch)
            return torch.cat([total - 8, 8 - total], 1)

    graph = small(3, 6)
    del graph.x
    graph.num_nodes = 6
    made = run(Edges(), [graph], transform=degrees)
    assert 0 < int(made.votes[0, 0]) < 2000


# Reports #####################################################################


def test_reports_say_what_was_certified_and_survive_json():
    noise = BitFlips(edges=(0.0, 0.6), features=(0.01, 0.3))
    made = run(model_of('GCN', 6, 3, 0), small(), noise)
    stored = json.loads(made.to_json())
    assert stored['votes'] == made.votes.tolist()
    assert stored['seed'] == 1
    text = str(TrustReport.of(made))
    for word in (
        'smoothed',
        'confidence 0.99',
        'without smoothing',
        'training',
    ):
        assert word in ' '.join(text.split()), word
    assert '12 nodes' in str(made)
    radii = made.radii('edges', limit=8)
    for a in range(radii.size(1)):
        for d in range(6):
            want = made.certified(edges=(a, d))
            assert torch.equal(radii[:, a] >= d, want)
    y = made.predicted.clamp(min=0)
    assert made.certified_accuracy(y) == made.certified_ratio()
    joint = made.certified(edges=(0, 1), features=(0, 1))
    assert not bool((joint & ~made.certified(edges=(0, 1))).any())
    pytest.importorskip('matplotlib').use('Agg')
    assert plot_certified_grid(made, limit=4).get_images()


def test_the_deployed_classifier_predicts_what_was_certified():
    model, data = model_of('GCN', 6, 3, 0), small()
    noise = BitFlips(edges=(0.0, 0.4))
    options = {'num_samples': 2000, 'num_selection': 50, 'seed': 1}
    deployed = SmoothedClassifier(model, noise, **options)
    assert torch.equal(deployed(data), run(model, data).predicted)


def test_models_with_exact_certificates_are_told_of_them():
    from pyg_trust.nn import PPNP

    torch.manual_seed(0)
    linear = run(PPNP(torch.nn.Linear(6, 3)), small())
    assert 'ThreatModel' in linear.advice
    assert 'ThreatModel' in str(linear)
    assert not run(model_of('GCN', 6, 3, 0), small()).advice


@pytest.mark.parametrize('sparse', [False, True])
@pytest.mark.parametrize(
    'noise', [BitFlips(edges=(0.05, 0.3)), BitFlips(features=(0.1, 0.1))]
)
def test_an_edge_index_in_any_order_gives_the_same_votes(noise, sparse):
    data, model = small(), model_of('GCN', 6, 3, 0)
    u, v = data.edge_index
    n = int(data.num_nodes)
    options = {'sparse_x': sparse, 'sparse_adj': sparse}
    wanted = run(model, data, noise, **options).votes
    for order, sort, undirected in (
        (torch.arange(u.numel()).flip(0), None, False),
        ((u * n + v).argsort(), 'row', True),
        ((v * n + u).argsort(), 'col', False),
    ):
        given = EdgeIndex(
            data.edge_index[:, order],
            sparse_size=(n, n),
            sort_order=sort,
            is_undirected=undirected,
        )
        other = data.clone()
        other.edge_index = given
        options['batch_size'] = 7 if sort == 'row' else None
        assert torch.equal(run(model, other, noise, **options).votes, wanted)


def test_attributes_of_edges_come_with_a_way_out():
    data = small()
    data.edge_attr = torch.ones(data.edge_index.size(1), 2)
    model = model_of('GCN', 6, 3, 0)
    with pytest.raises(ValueError, match=r'del data\.edge_attr') as refused:
        run(model, data, BitFlips(edges=(0.0, 0.3)))
    assert 'noise on the features alone' in str(refused.value)
    # Either way is open.
    run(model, data, BitFlips(features=(0.1, 0.1)))
    data.edge_attr = None
    run(model, data, BitFlips(edges=(0.0, 0.3)))


def test_models_that_are_random_or_of_another_shape_are_refused():
    class Random(torch.nn.Module):
        def forward(self, x, edge_index):
            return torch.rand(x.size(0), 2)

    class Short(torch.nn.Module):
        def forward(self, x, edge_index):
            return x[1:]

    class Product(torch.nn.Module):
        def forward(self, x, edge_index):
            return (x * x) @ torch.ones(6, 2)

    for model, says in ((Random(), 'same function'), (Short(), 'logits')):
        with pytest.raises(ValueError, match=says):
            run(model, small())
    # Not linear in the features: sparse features must not pass unnoticed.
    with pytest.raises(ValueError, match="'sparse_x'"):
        run(Product(), small(), sparse_x=True)


@pytest.mark.parametrize('noise', ['edges', 'features'])
def test_sparse_matrices_are_chosen_by_themselves(noise):
    data = small()
    data.x = torch.zeros(12, 40)
    data.x[torch.arange(12), torch.arange(12)] = 1
    flips = BitFlips(**{noise: (0.01, 0.3)})
    torch.manual_seed(0)

    class Reads(torch.nn.Module):
        def forward(self, x, edge_index):
            source = edge_index[0]
            assert source.layout == torch.strided
            return x[:, :2] + source.bincount(minlength=len(x))[:, None]

    for model, chosen in (
        (GCN(40, 8, 2, 3).eval(), (True, True)),
        (Reads(), (False, False)),
    ):
        report = run(model, data, flips, seed=0)
        told = report.provenance['arguments']
        assert (told['sparse_x'], told['sparse_adj']) == chosen
        plain = run(
            model, data, flips, seed=0, sparse_x=False, sparse_adj=False
        )
        assert torch.equal(report.votes, plain.votes)
    # Whoever says so decides; dense features stay dense.
    kept = run(GCN(40, 8, 2, 3).eval(), data, flips, sparse_adj=False)
    assert kept.provenance['arguments']['sparse_adj'] is False
    data.x = torch.ones(12, 40)
    dense = run(GCN(40, 8, 2, 3).eval(), data, BitFlips(edges=(0.0, 0.3)))
    assert dense.provenance['arguments']['sparse_x'] is False


def test_a_bar_is_shown_in_a_terminal_and_nowhere_else(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, 'stderr', io.StringIO())
    assert Bar().disable
    with progress(), Bar() as shown:
        assert not shown.disable
    monkeypatch.setattr(sys, 'stderr', Terminal())
    assert not Bar().disable
    with progress(False):
        assert Bar().disable
    assert not Bar().disable
    with pytest.raises(TypeError, match="'show' needs"):
        progress('on')
