"""Attacks on what a certificate speaks of: the model that is deployed.

Each of them certified another model than the one that answers.
"""

import functools
import json
from fractions import Fraction

import pytest
import torch
import torch_geometric.nn as pyg
from exhaustive import random_problem, undirected_graphs
from torch_geometric.data import Data

from pyg_trust import nn as ours
from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.certificates.deployed import Deployed
from pyg_trust.nn import PPNP, FeaturePropagation, LabelPropagation
from pyg_trust.nn.ppnp import PageRankDiffusion

MODELS = {
    'plain': {},
    'alpha': {'alpha': 0.05},
    'two steps': {'K': 2},
    'no step': {'K': 0},
    'ten steps': {'K': 10},
    'sym': {'normalization': 'sym'},
    'sym, loops': {'normalization': 'sym', 'add_self_loops': True},
    'loops': {'add_self_loops': True},
    'appnp': {'K': 3, 'normalization': 'sym', 'add_self_loops': True},
}


def undirected_problem(seed, n=6):
    """A graph with a path that stays, and features."""
    adj, _ = random_problem(seed, n)
    generator = torch.Generator().manual_seed(seed)
    path = torch.zeros_like(adj)
    path[torch.arange(n - 1), torch.arange(1, n)] = True
    path = path | path.t()
    adj = adj | path
    x = torch.randn(n, 3, generator=generator)
    return adj, path, Data(x=x, edge_index=adj.nonzero().t(), num_nodes=n)


def model_of(seed, dtype=torch.float32, **arguments):
    torch.manual_seed(seed)
    return PPNP(torch.nn.Linear(3, 3), **arguments).to(dtype).eval()


def predictions(model, data, graphs):
    """What is deployed answers, in each graph."""
    with torch.no_grad():
        return torch.stack(
            [model(data.x, graph.nonzero().t()).argmax(1) for graph in graphs]
        )


def check(report, found):
    """No robust node changes; every witness does what it says."""
    clean = found[0]
    changed = (found != clean).any(0)
    assert torch.equal(report.predicted, clean)
    assert not bool((report.robust & changed).any())
    return changed


@pytest.mark.parametrize('kind', ['removals', 'both'])
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('seed', range(2))
def test_nothing_robust_changes_in_what_is_deployed(kind, name, seed):
    n = 6 if kind == 'removals' else 5
    adj, path, data = undirected_problem(seed, n)
    model = model_of(seed, **MODELS[name])
    fragile = (adj if kind == 'removals' else ~adj | adj) & ~path
    fragile = fragile.clone().fill_diagonal_(False)
    every = fragile.nonzero().t()
    decided = 0
    for budget, local in ((1, None), (2, None), (2, 1), (None, 1)):
        limit = None if local is None else torch.full((n,), local)
        most = n // 2 if budget is None else budget
        graphs = undirected_graphs(adj, fragile, most, limit)
        found = predictions(model, data, graphs)
        for method in ('auto', 'dual'):
            threat = ThreatModel(
                data,
                every,
                local_budget=local,
                global_budget=budget,
                undirected=True,
            )
            report = certify(model, data, threat, method=method)
            changed = check(report, found)
            if method == 'auto':
                decided += int((report.robust | report.broken).sum())
            if budget is not None:
                assert not bool((report.broken & ~changed).any())
            for node in report.targets[report.broken].tolist():
                flips = report.witness(node)
                graph = adj.clone()
                graph[flips[0], flips[1]] ^= True
                assert torch.equal(graph, graph.t())
                assert bool(fragile[flips[0], flips[1]].all())
                after = predictions(model, data, [graph])[0]
                assert int(after[node]) != int(found[0][node])
    assert decided >= 2 * n


@pytest.mark.parametrize('steps', [None, 4])
@pytest.mark.parametrize('seed', range(6))
def test_large_logits_in_single_precision(steps, seed):
    # |H| of a million and gaps of one: roundoff decides, even without flips.
    generator = torch.Generator().manual_seed(seed)
    n = 60
    pairs = torch.randint(0, n, (2, 150), generator=generator)
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    edge_index = torch.cat([pairs, ring, pairs.flip(0), ring.flip(0)], 1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    edge_index = edge_index.unique(dim=1)
    x = 1e6 * torch.randn((n, 1), generator=generator) + 0.3 * torch.randn(
        (n, 3), generator=generator
    )
    data = Data(x=x, edge_index=edge_index, num_nodes=n)
    model = PPNP(torch.nn.Identity(), K=steps).eval()
    report = certify(model, data, ThreatModel(data, local_budget=0))
    predicted = model(x, edge_index).argmax(1)
    exact = PPNP(torch.nn.Identity(), K=steps)(x.double(), edge_index)
    assert torch.equal(report.predicted, predicted)
    # In exact arithmetic some are of another class: none of them is robust.
    assert not bool((report.robust & (exact.argmax(1) != predicted)).any())
    top = exact.topk(2).values
    close = top[:, 0] - top[:, 1] < 1e-3
    assert not bool((report.robust & close).any())
    assert report.roundoff > 0.05
    assert report.dtype == 'float32'
    # Any order of the edges is a right one.
    order = torch.randperm(edge_index.size(1), generator=generator)
    again = model(x, edge_index[:, order]).argmax(1)
    assert not bool((report.robust & (again != predicted)).any())


@pytest.mark.parametrize('steps', [1, 2, 20])
@pytest.mark.parametrize('degree', [1, 8])
@pytest.mark.parametrize('alpha', [0.125, 0.5])
def test_roundoff_of_steps_is_that_of_its_recursion(alpha, degree, steps):
    # e <- (1 - alpha) e + gamma (h + e), in fractions. In bfloat16 what the
    # error itself adds is more than a tenth of it.
    unit = Fraction(1, 2**8)
    gamma = (degree + 8) * unit / (1 - (degree + 8) * unit)
    top = [Fraction(3), Fraction(1, 2)]
    logits = torch.tensor([[-3.0, 0.5], [1.0, 0.25]]).double()
    found = Deployed(logits, alpha, steps, dtype=torch.bfloat16).error(degree)
    for h, mine in zip(top, found.tolist(), strict=True):
        error = Fraction(0)
        for _ in range(steps):
            error = (1 - Fraction(alpha)) * error + gamma * (h + error)
        assert error <= Fraction(mine) <= error * Fraction(1001, 1000)


def test_the_class_that_is_held_rounds_too():
    # One step over logits of a class that cancel, against a class of zeros
    # that is exact. A neighbour that is the mean of the others can go without
    # a change of the mean, but of the bits. Where the exact score is a little
    # above 0 in both graphs, the computed ones may have different signs.
    changed = certified = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        d = 6
        h = 1e6 * torch.randn(d + 2, generator=generator)
        h[d] = h[1:d].double().mean().float()
        h[d + 1] = 0
        leaves = torch.arange(1, d + 1)
        pairs = torch.stack([torch.zeros_like(leaves), leaves])
        back = torch.stack([leaves, torch.full_like(leaves, d + 1)])
        loop = torch.tensor([[d + 1], [d + 1]])
        edge_index = torch.cat([pairs, back, loop], 1)
        # The score of node 0, alpha h_0 + (1 - alpha) mean, is about 0.
        alpha = 0.25
        h[0] = (-(1 - alpha) / alpha * h[1 : d + 1].double().mean()).float()
        h[0] += 0.2 * torch.rand(1, generator=generator)[0]
        x = torch.stack([h, torch.zeros_like(h)], 1)
        data = Data(x=x, edge_index=edge_index, num_nodes=d + 2)
        model = PPNP(torch.nn.Identity(), alpha=alpha, K=1).eval()
        flip = torch.tensor([[0], [d]])
        threat = ThreatModel(data, flip, local_budget=1)
        report = certify(model, data, threat)
        keep = (edge_index != flip).any(0)
        before = model(x, edge_index)[0].argmax()
        after = model(x, edge_index[:, keep])[0].argmax()
        changed += int(before != after)
        certified += int(report.robust[0])
        assert not (bool(report.robust[0]) and before != after)
    assert changed >= 3


def test_a_hook_on_the_model_is_noticed():
    _, _, data = undirected_problem(0)
    threat = ThreatModel(data, local_budget=1)
    model = model_of(0)
    certify(model, data, threat)
    model.register_forward_hook(
        lambda *args: args[-1] + torch.tensor([5.0, 0, 0])
    )
    with pytest.raises(ValueError, match='no hook'):
        certify(model, data, threat)


def test_a_model_with_a_way_of_its_own_is_refused():
    _, _, data = undirected_problem(0)
    threat = ThreatModel(data, local_budget=1)

    class Sharper(PPNP):
        def forward(self, x, edge_index, edge_weight=None):
            return super().forward(x, edge_index) ** 3

    class Louder(PPNP):
        def message(self, x_j, edge_weight):
            return 2 * edge_weight.view(-1, 1) * x_j

    class Deaf(PPNP):
        def diffuse(self, h, graph, edge_weight=None):
            return h

    def linear():
        return torch.nn.Linear(3, 3)

    hooked = PPNP(linear(), K=2)
    hooked.register_message_forward_hook(lambda *args: None)
    for model, error, name in (
        (Sharper(linear()), ValueError, 'scores of node'),
        (Louder(linear(), K=2), ValueError, "'message'.*BitFlips"),
        (Deaf(linear()), ValueError, "'diffuse'.*BitFlips"),
        (hooked, ValueError, "'hooks'.*BitFlips"),
        (PageRankDiffusion(), TypeError, "'model'"),
        (linear(), TypeError, "'model'.*PPNP.*BitFlips"),
        (pyg.GCN(3, 4, 2, 3), TypeError, 'GCNConv.*BitFlips'),
        (PPNP(linear(), K=2, aggr='max'), ValueError, 'aggr'),
        (PPNP(linear(), flow='source_to_target'), ValueError, 'flow'),
    ):
        with pytest.raises(error, match=name):
            certify(model.eval(), data, threat)


class Ends(torch.nn.Module):
    # The usual model of PyG's examples.
    def __init__(self, layer, top=None):
        super().__init__()
        self.lin, self.prop, self.top = torch.nn.Linear(3, 3), layer, top

    def forward(self, x, edge_index):
        z = self.prop(self.lin(x), edge_index)
        return z if self.top is None else self.top(z)


class OfData(Ends):
    def forward(self, data):
        return super().forward(data.x, data.edge_index)


@pytest.mark.parametrize('seed', range(3))
def test_a_model_that_ends_in_appnp_is_certified_as_it_is(seed):
    adj, path, data = undirected_problem(seed)
    fragile = (adj & ~path).fill_diagonal_(False)
    graphs = undirected_graphs(adj, fragile, 2, None)
    threat = ThreatModel(
        data, fragile.nonzero().t(), global_budget=2, undirected=True
    )
    softmax = functools.partial(torch.log_softmax, dim=1)
    torch.manual_seed(seed)
    robust = 0
    for model in (
        Ends(pyg.APPNP(3, 0.3, dropout=0.5)),
        Ends(ours.APPNP(3, 0.3), softmax),
        OfData(pyg.APPNP(3, 0.3, add_self_loops=False)),
    ):
        model.eval()
        plain = Ends(model.prop)
        plain.lin = model.lin
        report = certify(model, data, threat)
        changed = check(report, predictions(plain, data, graphs))
        assert report.broken.equal(changed)
        robust += int(report.robust.sum())
    assert robust > 0


def test_what_is_no_pagerank_at_the_end_is_refused_with_a_way_out():
    _, _, data = undirected_problem(0)
    threat = ThreatModel(data, local_budget=1, undirected=True)
    for layer, top, name in (
        (pyg.APPNP(3, 0.3, aggr='mean'), None, "'aggr'"),
        (pyg.APPNP(3, 0.3, normalize=False), None, "'normalize'"),
        (pyg.APPNP(3, 0.3, cached=True), None, "'cached'"),
        (ours.APPNP(3, 0.3, eps=0.1), None, "'eps'"),
        (pyg.APPNP(3, 0.3), torch.nn.Linear(3, 3), 'on top'),
        (pyg.SGConv(3, 3), None, 'APPNP'),
    ):
        with pytest.raises((TypeError, ValueError), match=f'{name}.*BitFlips'):
            certify(Ends(layer, top).eval(), data, threat)
    directed = ThreatModel(data, local_budget=1)
    with pytest.raises(ValueError, match='undirected=True'):
        certify(Ends(pyg.APPNP(3, 0.3)).eval(), data, directed)


def test_another_graph_than_that_of_the_threat_is_refused():
    _, _, data = undirected_problem(0)
    _, _, other = undirected_problem(1)
    with pytest.raises(ValueError, match='same graph'):
        certify(model_of(0), other, ThreatModel(data, local_budget=1))
    data.edge_weight = torch.full((data.num_edges,), 2.0)
    threat = ThreatModel(data.edge_index, local_budget=1, num_nodes=6)
    with pytest.raises(ValueError, match='unweighted'):
        certify(model_of(0), data, threat)


def test_alpha_belongs_to_the_model():
    _, _, data = undirected_problem(0)
    threat = ThreatModel(data, local_budget=1)
    with pytest.raises(ValueError, match="'alpha'"):
        certify(model_of(0), data, threat, alpha=0.5)
    assert certify(model_of(0, alpha=0.4), data, threat).alpha == 0.4


def test_dropout_is_off_and_comes_back():
    _, _, data = undirected_problem(0)
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Dropout(0.9), torch.nn.Linear(3, 3))
    model = PPNP(encoder)
    model.train()
    model.encoder[1].eval()
    report = certify(model, data, ThreatModel(data, local_budget=1))
    assert model.training
    assert model.encoder[0].training
    assert not model.encoder[1].training
    model.eval()
    with torch.no_grad():
        expected = model(data.x, data.edge_index).argmax(1)
    assert torch.equal(report.predicted, expected)


def test_a_self_loop_that_the_model_adds_cannot_be_removed():
    # 0 - 1 - 2 with a loop at 0: who removes it finds it back.
    edge_index = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 0, 2, 1]])
    data = Data(x=torch.eye(3), edge_index=edge_index, num_nodes=3)
    threat = ThreatModel(data, fixed='none', local_budget=2)
    model = PPNP(torch.nn.Identity(), add_self_loops=True)
    made = Deployed.of_model(model, data, threat)
    seen = made.perturbations(threat)
    loops = seen.graph.row == seen.graph.col
    assert int(loops.sum()) == 3
    assert not bool(seen.removable[loops].any())
    pair = torch.tensor([[1], [1]])
    threat = ThreatModel(data, pair, local_budget=1)
    assert made.perturbations(threat).pairs.numel() == 0


def test_nodes_without_edges_have_their_own_logits():
    # CiteSeer has 48 of them; on 43771ee they were refused.
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    x = torch.tensor([[1.0, 0], [0, 0.1], [0, 1], [2, 1]])
    data = Data(x=x, edge_index=edge_index, num_nodes=4)
    model = PPNP(torch.nn.Identity())
    report = certify(model, data, ThreatModel(data, local_budget=1))
    assert bool(report.robust[3])
    assert float(report.lower[3]) == pytest.approx(0.15, abs=1e-5)
    # Who may cut node 0 off makes it keep what it has.
    threat = ThreatModel(
        data, fixed='none', local_budget=1, global_budget=1, undirected=True
    )
    cut = certify(model, data, threat)
    for node in cut.targets[cut.broken].tolist():
        i, j = cut.witness(node)[:, 0].tolist()
        keep = ~((edge_index == i).any(0) & (edge_index == j).any(0))
        after = model(x, edge_index[:, keep]).argmax(1)
        assert int(after[node]) != int(cut.reference[node])
    cut = [
        model(x, edge_index[:, keep]).argmax(1)
        for keep in ((edge_index != 0).all(0), (edge_index != 2).all(0))
    ]
    changed = torch.stack(cut) != report.predicted
    again = certify(model, data, threat)
    assert torch.equal(again.broken, changed.any(0))


def test_labels_and_features_are_taken_from_the_data():
    _, _, data = undirected_problem(2)
    data.y = torch.tensor([0, 1, 2, 0, 1, 2])
    data.train_mask = torch.tensor([True, True, True, True, False, False])
    threat = ThreatModel(data, local_budget=1)
    model = LabelPropagation(num_classes=3, alpha=0.2)
    report = certify(model, data, threat)
    z = model(data.y, data.edge_index, data.train_mask)
    assert torch.equal(report.predicted, z.argmax(1))
    model = FeaturePropagation(3, 3)
    report = certify(model, data, threat)
    assert torch.equal(
        report.predicted, model(data.x, data.edge_index).argmax(1)
    )
    with pytest.raises(ValueError, match="'y'"):
        certify(
            LabelPropagation(num_classes=3),
            Data(x=data.x, edge_index=data.edge_index),
            threat,
        )


def test_the_report_says_what_is_certified():
    _, _, data = undirected_problem(0)
    threat = ThreatModel(data, local_budget=1)
    report = certify(
        model_of(0, K=4, normalization='sym', add_self_loops=True),
        data,
        threat,
    )
    kept = json.loads(report.to_json())
    assert (kept['K'], kept['normalization']) == (4, 'sym')
    assert kept['self_loops'] is True
    assert kept['dtype'] == 'float32'
    assert kept['model'] == 'PPNP'
    said = ' '.join(report.guarantee().assumptions)
    assert 'K=4' in said
    assert "'sym'" in said
    # Logits alone: everything is an assumption.
    plain = certify(torch.randn(6, 3), threat)
    said = ' '.join(plain.guarantee().assumptions)
    assert 'no model was seen' in said
    assert 'exact arithmetic' in said
    assert plain.roundoff == 0


def test_the_fingerprint_is_of_everything():
    _, _, data = undirected_problem(0)
    logits = torch.randn(6, 3)
    seen = set()
    for arguments in (
        {'local_budget': 1},
        {'local_budget': 0},
        {'local_budget': 1, 'global_budget': 1},
        {'local_budget': 1, 'undirected': True},
        {'local_budget': 1, 'fragile': 'both'},
        {'local_budget': 1, 'fixed': 'none'},
    ):
        threat = ThreatModel(data, **arguments)
        seen.add(certify(logits, threat).run_sha256)
    threat = ThreatModel(data, local_budget=1)
    seen.add(certify(logits, threat, alpha=0.2).run_sha256)
    model = PPNP(torch.nn.Identity())
    same = Data(x=logits, edge_index=data.edge_index, num_nodes=6)
    seen.add(certify(model, same, threat).run_sha256)
    model.K = 3
    seen.add(certify(model, same, threat).run_sha256)
    assert len(seen) == 9


def test_reports_print_one_short_line():
    _, _, data = undirected_problem(0)
    report = certify(model_of(0), data, ThreatModel(data, local_budget=1))
    for made in (report, report.guarantee()):
        text = repr(made)
        assert len(text) < 300
        assert '\n' not in text
        assert text.startswith(f'{type(made).__name__}(')
    assert f'num_robust={report.num_robust}' in repr(report)
    assert 'tensor' not in repr(report)
