import importlib
import json

import pytest
import torch
from citeseer import load, local_oracle
from exhaustive import admissible, csr, pagerank, random_problem, worst_margins

from pyg_trust.certificates import (
    UNKNOWN,
    ThreatModel,
    certify,
    plot_certified_ratio,
)
from pyg_trust.certificates.threat import spanning_tree
from pyg_trust.nn import FeaturePropagation, LabelPropagation

NODES = torch.arange(5)


def problem(seed, scenario):
    """A threat on five nodes, and its fragile pairs as a dense mask."""
    adj, logits = random_problem(seed, 5)
    graph = csr(adj)
    fixed = torch.zeros_like(adj)
    tree = spanning_tree(graph)
    fixed[graph.row[tree], graph.col[tree]] = True
    fragile = adj & ~fixed
    if scenario == 'both':
        fragile = ~fixed
        fragile.fill_diagonal_(False)
    budget = torch.randint(
        0, 3, (5,), generator=torch.Generator().manual_seed(seed)
    )
    return adj, logits, fragile, budget


def exact(adj, logits, fragile, budget, global_budget=None):
    """The predicted classes and the exact worst-case margins."""
    pred = (pagerank(adj, 0.15) @ logits).argmax(1)
    graphs = admissible(adj, fragile, budget, global_budget)
    margins = worst_margins(graphs, logits, 0.15)[pred, :, NODES]
    margins[NODES, pred] = torch.inf
    return pred, margins.amin(1)


def check_witness(certificate, adj, logits, fragile, budget, node, most=None):
    """A witness is admissible and really flips the prediction."""
    flips = certificate.witness(node)
    assert bool(fragile[flips[0], flips[1]].all())
    count = flips[0].bincount(minlength=adj.size(0))
    assert bool((count <= budget).all())
    assert most is None or flips.size(1) <= most
    graph = adj.clone()
    graph[flips[0], flips[1]] ^= True
    after = (pagerank(graph, 0.15)[node] @ logits).argmax()
    where = int((certificate.targets == node).nonzero())
    assert int(after) != int(certificate.reference[where])


@pytest.mark.parametrize('scenario', ['removals', 'both'])
@pytest.mark.parametrize('seed', range(15))
def test_local_certificates_are_exact(scenario, seed):
    adj, logits, fragile, budget = problem(seed, scenario)
    pred, expected = exact(adj, logits, fragile, budget)
    threat = ThreatModel(csr(adj), scenario, local_budget=budget)
    made = certify(logits, threat)
    assert made.exact
    assert torch.equal(made.predicted, pred)
    assert torch.allclose(made.lower, expected, rtol=0, atol=1e-11)
    assert torch.equal(made.robust, expected > 0)
    assert torch.equal(made.broken, expected < 0)
    for node in made.broken.nonzero().view(-1).tolist():
        check_witness(made, adj, logits, fragile, budget, node)


@pytest.mark.parametrize('scenario', ['removals', 'both'])
@pytest.mark.parametrize(
    'arguments',
    [{}, {'sign_only': True}, {'method': 'exact'}, {'method': 'lp'}],
)
@pytest.mark.parametrize('seed', range(6))
def test_global_certificates_never_beat_exhaustive_search(
    scenario, arguments, seed
):
    adj, logits, fragile, budget = problem(seed, scenario)
    method = arguments.get('method')
    for most in (0, 1, 2, 4):
        if method == 'exact' and most > 1:
            continue
        if method == 'lp' and (most != 2 or seed > 1):
            continue
        _, expected = exact(adj, logits, fragile, budget, most)
        threat = ThreatModel(
            csr(adj), scenario, local_budget=budget, global_budget=most
        )
        made = certify(logits, threat, **arguments)
        assert bool((made.lower <= expected).all())
        assert bool((made.upper >= expected).all())
        assert not bool((made.robust & (expected <= 0)).any())
        assert not bool((made.broken & (expected >= 0)).any())
        if made.exact:
            assert torch.allclose(made.lower, expected, atol=1e-7)
            assert not bool(made.unknown.any())
        for node in made.broken.nonzero().view(-1).tolist():
            check_witness(made, adj, logits, fragile, budget, node, most)


def test_bounds_of_nodes_that_are_robust_anyway_are_refined_too():
    better = 0
    for seed in range(8):
        adj, logits, _, budget = problem(seed, 'both')
        threat = ThreatModel(
            csr(adj), 'both', local_budget=budget, global_budget=1
        )
        signs = certify(logits, threat, method='dual', sign_only=True)
        whole = certify(logits, threat, method='dual')
        assert bool((whole.lower >= signs.lower - 1e-9).all())
        local = certify(logits, ThreatModel(csr(adj), 'both', local_budget=1))
        sure = local.robust & (budget <= 1)
        better += int((whole.lower > signs.lower + 1e-6)[sure].sum())
    assert better > 0


def test_a_tie_is_unknown():
    # Classes 0 and 1 tie everywhere; no edge is fragile.
    adj, logits, _, _ = problem(0, 'removals')
    logits[:, 1] = logits[:, 0]
    logits[:, 2] = logits[:, 0] - 1
    made = certify(logits, ThreatModel(csr(adj), local_budget=0))
    assert made.status.tolist() == [UNKNOWN] * 5


def test_tolerance_widens_what_is_unknown():
    adj, logits, _, budget = problem(1, 'removals')
    threat = ThreatModel(csr(adj), local_budget=budget)
    made = certify(logits, threat)
    wide = certify(logits, threat, tol=float(made.lower.abs().median()))
    assert made.num_unknown == 0
    assert wide.num_unknown == 3


def test_targets_and_reference():
    adj, logits, _, budget = problem(2, 'both')
    threat = ThreatModel(csr(adj), 'both', local_budget=budget)
    everything = certify(logits, threat)
    some = certify(logits, threat, nodes=torch.tensor([3, 1]))
    assert torch.equal(some.lower, everything.lower[[3, 1]])
    mask = torch.tensor([False, True, False, True, False])
    masked = certify(logits, threat, nodes=mask)
    assert masked.targets.tolist() == [1, 3]
    # A class that is not even predicted is broken as things are.
    reference = (everything.predicted + 1) % 3
    wrong = certify(logits, threat, reference=reference)
    assert wrong.num_broken == 5
    none = certify(logits, threat, nodes=torch.zeros(0).long())
    assert none.targets.numel() == 0


def test_the_report_holds_what_one_needs():
    adj, logits, _, budget = problem(3, 'both')
    threat = ThreatModel(
        csr(adj), 'both', local_budget=budget, global_budget=3
    )
    made = certify(logits, threat)
    kept = json.loads(made.to_json())
    assert kept['global_budget'] == 3
    assert kept['alpha'] == 0.15
    assert kept['local_budget'] == threat.local_budget.tolist()
    assert kept['provenance']['arguments']['method'] == 'auto'
    assert f'({made.num_robust / 5:.1%})' in str(made)
    assert made.num_robust + made.num_broken + made.num_unknown == 5
    assert made.certified_ratio() == made.num_robust / 5
    labels = made.predicted.clone()
    assert made.certified_accuracy(labels) == made.certified_ratio()
    labels[made.robust] = (labels[made.robust] + 1) % 3
    assert made.certified_accuracy(labels) == 0
    again = certify(logits.clone(), threat)
    assert again.run_sha256 == made.run_sha256
    other = certify(logits + 1e-9, threat)
    assert other.run_sha256 != made.run_sha256
    said = made.guarantee()
    assert said.promise.startswith(f'{made.num_robust} of 5 predictions')
    assert 'local budgets and 3 directed flips in all' in said.promise
    assert said.data == made.run_sha256


def test_a_promise_names_the_edges_that_were_fixed():
    # On a tree the default keeps all edges, so that everything is robust.
    path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    path = torch.cat([path, path.flip(0)], dim=1)
    logits = torch.tensor([[9, 0], [0, 1], [0, 1], [9, 0]]).double()
    kept = certify(logits, ThreatModel(path, local_budget=1, num_nodes=4))
    free = certify(
        logits, ThreatModel(path, fixed='none', local_budget=1, num_nodes=4)
    )
    assert kept.num_robust == 4 > free.num_robust
    assert any(
        '6 directed edges are fixed' in s for s in kept.guarantee().assumptions
    )
    assert any(
        '0 directed edges are fixed' in s for s in free.guarantee().assumptions
    )
    assert 'at most 1 flip at a node' in free.guarantee().promise


@pytest.mark.parametrize('model', ['labels', 'features'])
def test_propagation_models_go_the_same_way(model):
    adj, x, fragile, budget = problem(4, 'both')
    threat = ThreatModel(csr(adj), 'both', local_budget=budget)
    if model == 'labels':
        propagation = LabelPropagation(num_classes=3)
        y = torch.tensor([0, 1, 2, 0, 0])
        mask = torch.tensor([True, True, True, False, False])
        logits = propagation.logits(y, mask)
        z = propagation(y, adj.nonzero().t(), mask)
    else:
        propagation = FeaturePropagation(3, 3)
        logits = propagation.logits(x.float())
        z = propagation(x.float(), adj.nonzero().t())
    made = certify(logits, threat)
    assert torch.equal(made.predicted, z.argmax(1))
    _, expected = exact(adj, logits.detach().double(), fragile, budget)
    assert torch.allclose(made.lower, expected, rtol=0, atol=1e-9)


def citeseer(shared):
    graph, _, oracle = local_oracle(shared)
    return graph, oracle['logits'], oracle


@pytest.mark.parametrize(('strength', 'robust'), [(1, 2007), (6, 1809)])
def test_citeseer_counts(shared, strength, robust):
    graph, logits, oracle = citeseer(shared)
    made = certify(logits, ThreatModel(graph, strength=strength))
    assert (made.num_robust, made.num_unknown) == (robust, 0)
    assert torch.equal(made.predicted, oracle['pred'])


def test_no_node_that_one_flip_breaks_is_certified(shared):
    graph, logits, _ = citeseer(shared)
    one = certify(
        logits, ThreatModel(graph, strength=6, global_budget=1), method='exact'
    )
    assert one.num_robust == 2049
    assert one.broken[[185, 233, 1684, 2039]].all()
    oracle = load(shared / 'oracles/certificates/global_citeseer_rem_s6.npz')
    margins, at = oracle['exact_B1_margins'], oracle['targets']
    assert torch.allclose(one.lower[at], margins, rtol=0, atol=1e-7)
    for most in (1, 5):
        threat = ThreatModel(graph, strength=6, global_budget=most)
        made = certify(logits, threat, sign_only=True)
        assert not bool((made.robust & (one.lower < 0)).any())
        assert not bool(made.robust[at[margins < 0]].any())
        assert made.num_robust > 1940
        if most == 1:
            assert bool((made.lower <= one.upper).all())


def test_plots_show_the_certificates():
    matplotlib = pytest.importorskip('matplotlib')
    matplotlib.use('Agg')
    adj, logits, _, _ = problem(3, 'both')
    graph = csr(adj)
    certificates = [
        certify(logits, ThreatModel(graph, 'both', local_budget=b))
        for b in (0, 1, 2)
    ]
    ax = plot_certified_ratio([0, 1, 2], certificates, label='both')
    x, y = ax.lines[0].get_data()
    assert list(x) == [0, 1, 2]
    assert list(y) == [made.certified_ratio() for made in certificates]
    with pytest.raises(ValueError, match='the same length'):
        plot_certified_ratio([1], certificates)
    matplotlib.pyplot.close('all')


def test_one_flip_is_decided_by_itself_and_for_small_alpha_too():
    for seed in range(6):
        adj, logits, fragile, budget = problem(seed, 'both')
        for alpha in (1e-3, 0.15):
            threat = ThreatModel(
                csr(adj), 'both', local_budget=budget, global_budget=1
            )
            made = certify(logits, threat, alpha=alpha)
            z = pagerank(admissible(adj, fragile, budget, 1), alpha) @ logits
            clean = z[0].argmax(1)
            held = z[:, NODES, clean]
            z[:, NODES, clean] = -torch.inf
            exact = (held - z.amax(2)).amin(0)
            assert made.method == 'exact'
            assert made.exact
            width = made.upper - made.lower
            assert float(width.max()) < 1e-6
            assert bool((made.lower <= exact).all())
            assert bool((made.upper >= exact).all())


def test_one_target_costs_the_pairs_of_its_class_alone(monkeypatch):
    module = importlib.import_module('pyg_trust.certificates.policy')
    columns = []
    plain = module.policy_iteration

    def counted(perturbations, reward, *args, **kwargs):
        columns.append(reward.size(0))
        return plain(perturbations, reward, *args, **kwargs)

    monkeypatch.setattr(module, 'policy_iteration', counted)
    adj, _, _, budget = problem(0, 'removals')
    logits = torch.randn((5, 7), dtype=torch.float64)
    threat = ThreatModel(csr(adj), local_budget=budget)
    certify(logits, threat, nodes=torch.tensor([3]))
    assert sum(columns) == 6


def test_a_repeated_edge_is_refused_in_words_of_the_threat():
    twice = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]])
    with pytest.raises(ValueError, match='coalesce') as error:
        ThreatModel(twice, num_nodes=2)
    assert "duplicates='merge'" not in str(error.value)
