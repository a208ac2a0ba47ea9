import math

import pytest
import torch
from citeseer import load, local_oracle
from exhaustive import (
    admissible,
    pagerank,
    random_perturbations,
    random_problem,
    with_budget,
    worst_margins,
)

from pyg_trust.certificates import search
from pyg_trust.certificates.budget import (
    dual_bound,
    linear_program,
    pagerank_bounds,
)
from pyg_trust.certificates.policy import policy_value
from pyg_trust.certificates.search import attacks, try_each
from pyg_trust.certificates.threat import Perturbations, Policy
from pyg_trust.graph import CSRGraph

ALPHA = 0.15
NODES = torch.arange(5)


def problem(seed, kind):
    adj, logits = random_problem(seed, 5, directed=seed % 2 == 1)
    made, fragile, budget = random_perturbations(adj, seed, kind)
    return adj, logits, fragile, budget, made


def columns(logits, targets):
    """All pairs of a target and two classes: reward and target."""
    pairs = [(c1, c2) for c1 in range(3) for c2 in range(3) if c1 != c2]
    reward = [
        logits[:, c2] - logits[:, c1] for _ in targets for c1, c2 in pairs
    ]
    which = torch.tensor(targets).repeat_interleave(len(pairs))
    return torch.stack(reward), which, pairs


@pytest.mark.parametrize('cost', ['pagerank', 'visits'])
@pytest.mark.parametrize('kind', ['removals', 'both'])
@pytest.mark.parametrize('seed', range(8))
def test_upper_bounds_are_the_exact_maxima(cost, kind, seed):
    adj, _, fragile, budget, made = problem(seed, kind)
    graphs = admissible(adj, fragile, budget)
    most = pagerank(graphs, ALPHA)
    if cost == 'visits':
        most = most / graphs.sum(2)[:, None]
    most = most.amax(0)
    upper = pagerank_bounds(made, NODES, ALPHA, cost=cost)
    active = made.active
    assert bool((upper[:, active] >= most[:, active]).all())
    assert torch.allclose(upper[:, active], most[:, active], rtol=0, atol=2e-8)


@pytest.mark.parametrize('cost', ['pagerank', 'visits'])
@pytest.mark.parametrize('clip', [False, True])
@pytest.mark.parametrize('kind', ['removals', 'both'])
@pytest.mark.parametrize('seed', range(6))
def test_no_admissible_graph_exceeds_the_bound(cost, clip, kind, seed):
    adj, logits, fragile, budget, made = problem(seed, kind)
    for global_budget in (0, 1, 2, 3, 5):
        graphs = admissible(adj, fragile, budget, global_budget)
        expected = worst_margins(graphs, logits, ALPHA)
        used = (
            with_budget(made, made.budget.clamp(max=global_budget))
            if clip
            else made
        )
        upper = pagerank_bounds(used, NODES, ALPHA, cost=cost)
        reward, targets, pairs = columns(logits, NODES.tolist())
        guess = reward[:, 0]  # a wrong one
        for sign_only, clean in ((False, None), (True, None), (True, guess)):
            found = dual_bound(
                used,
                reward,
                targets,
                upper[targets],
                global_budget,
                ALPHA,
                cost=cost,
                sign_only=sign_only,
                clean=clean,
            )
            lower = -found.bound.view(5, 6)
            for k, (c1, c2) in enumerate(pairs):
                assert bool((lower[:, k] <= expected[c1, c2]).all())
            if global_budget == 0 and not sign_only and clip:
                clean = torch.stack([expected[p] for p in pairs], 1)
                assert torch.allclose(lower, clean, atol=1e-9)


@pytest.mark.parametrize('kind', ['removals', 'both'])
@pytest.mark.parametrize('seed', range(5))
def test_dual_is_the_optimum_of_the_linear_program(kind, seed):
    _, logits, _, _, made = problem(seed, kind)
    upper = pagerank_bounds(made, NODES, ALPHA, cost='visits')
    reward, targets, _ = columns(logits, [seed % 5])
    for global_budget in (1, 3):
        found = dual_bound(
            made,
            reward,
            targets,
            upper[targets],
            global_budget,
            ALPHA,
            cost='visits',
        )
        for k, target in enumerate(targets.tolist()):
            value, multiplier = linear_program(
                made, reward[k], target, upper[target], global_budget, ALPHA
            )
            # HiGHS is off by up to 1e-7 on either side.
            assert abs(float(found.bound[k]) - value) < 1e-6
            assert float(found.bound[k]) > value - 1e-7
            assert multiplier >= 0
        gap = (found.bound - found.optimum).abs().max()
        assert float(gap) < 1e-7


def test_any_multiplier_is_valid():
    adj, logits, fragile, budget, made = problem(0, 'removals')
    expected = worst_margins(
        admissible(adj, fragile, budget, 2), logits, ALPHA
    )
    upper = pagerank_bounds(made, NODES, ALPHA)
    reward, targets, pairs = columns(logits, NODES.tolist())
    for steps in (1, 2, 3):
        found = dual_bound(
            made, reward, targets, upper[targets], 2, ALPHA, max_iter=steps
        )
        lower = -found.bound.view(5, 6)
        for k, (c1, c2) in enumerate(pairs):
            assert bool((lower[:, k] <= expected[c1, c2]).all())


@pytest.mark.parametrize('kind', ['removals', 'both'])
@pytest.mark.parametrize('seed', range(10))
def test_single_flips_are_those_of_exhaustive_search(kind, seed):
    adj, logits, fragile, budget, made = problem(seed, kind)
    expected = worst_margins(
        admissible(adj, fragile, budget, 1), logits, ALPHA
    )
    reference = torch.randint(0, 3, (5,))
    found = try_each(logits, made, NODES, reference, ALPHA)
    exact = expected[reference, :, NODES]
    exact[NODES, reference] = math.inf
    others = exact.isfinite()
    assert torch.equal(found.lower.isinf(), ~others)
    assert bool((found.lower <= exact)[others].all())
    assert bool((found.upper >= exact)[others].all())
    assert float((found.upper - found.lower)[others].max()) < 1e-8
    for u, c in others.nonzero().tolist():
        graph = adj.clone()
        for i, j in found.flips[u][c].t().tolist():
            assert bool(fragile[i, j])
            graph[i, j] ^= True
        z = pagerank(graph, ALPHA)[u] @ logits
        margin = z[reference[u]] - z[c]
        assert torch.isclose(margin, exact[u, c], atol=1e-10)


def citeseer(shared):
    graph, fragile, local = local_oracle(shared)
    oracle = load(shared / 'oracles/certificates/global_citeseer_rem_s6.npz')
    made = Perturbations(graph, fragile, oracle['local_budget'])
    return made, local['logits'], oracle


def test_upper_bounds_are_those_of_the_oracle(shared):
    made, _, oracle = citeseer(shared)
    upper = pagerank_bounds(made, oracle['targets'], ALPHA, cost='visits')
    difference = upper * made.graph.degree - oracle['xbar']
    difference = difference[:, made.active]
    assert float(difference.min()) > -1e-12
    assert float(difference.max()) < 1e-7


def test_bounds_are_those_of_the_oracle(shared):
    made, logits, oracle = citeseer(shared)
    targets, pred = oracle['targets'], oracle['pred']
    upper = pagerank_bounds(made, targets, ALPHA, cost='visits')
    k, against = (torch.nn.functional.one_hot(pred, 6) == 0).nonzero(
        as_tuple=True
    )
    reward = (logits[:, against] - logits[:, pred[k]]).t().contiguous()
    for i, global_budget in enumerate(oracle['B'].tolist()):
        found = dual_bound(
            made,
            reward,
            targets[k],
            upper[k],
            global_budget,
            ALPHA,
            cost='visits',
        )
        program = oracle['lower_bounds'][k, against, i]
        assert float((-found.bound - program).abs().max()) < 1e-6
        assert float((-found.bound - program).max()) < 1e-8


def test_single_flips_are_those_of_the_oracle(shared):
    made, logits, oracle = citeseer(shared)
    found = try_each(
        logits,
        with_budget(made, made.budget.clamp(max=1)),
        oracle['targets'],
        oracle['pred'],
        ALPHA,
    )
    for side in (found.lower, found.upper):
        off = side.amin(1) - oracle['exact_B1_margins']
        assert float(off.abs().max()) < 1e-9


def test_attacks_on_a_real_graph_stay_above_the_bound(shared):
    made, logits, oracle = citeseer(shared)
    targets, pred = oracle['targets'], oracle['pred']
    made = with_budget(made, made.budget.clamp(max=5))
    upper = pagerank_bounds(made, targets, ALPHA)
    against = (pred + 1) % 6
    reward = (logits[:, against] - logits[:, pred]).t().contiguous()
    found = dual_bound(made, reward, targets, upper, 5, ALPHA)
    flips = attacks(made, reward, targets, 5, ALPHA)
    value = policy_value(Policy.from_flips(made, flips), reward, ALPHA).value
    reached = ALPHA * value[torch.arange(20), targets]
    clean = policy_value(made.clean_policy(20), reward, ALPHA).value
    clean = ALPHA * clean[torch.arange(20), targets]
    assert bool((reached <= found.bound).all())
    # They do something: half of the possible gain in the median.
    share = (reached - clean) / (found.bound - clean)
    assert float(share.median()) > 0.5


@pytest.mark.parametrize('all_pairs', [True, False])
def test_attacks_with_few_pairs_add_edges_to_the_best_nodes(
    all_pairs, monkeypatch
):
    # On a ring without removals the best flip is known: an edge from the
    # target to the node of the largest value, here by dense algebra.
    ring, eye = torch.arange(40), torch.eye(40).double()
    edges = torch.stack([ring.repeat(2), torch.cat([ring + 1, ring - 1]) % 40])
    graph = CSRGraph.convert(edges, 40)
    reward = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    reward, targets = reward.double(), torch.tensor([7, 8, 9])
    step = (eye.roll(1, 1) + eye.roll(-1, 1)) / 2
    value = torch.linalg.solve(eye - (1 - ALPHA) * step, reward.t()).t()
    near = (targets[:, None] + torch.tensor([-1, 0, 1])) % 40
    best = value.scatter(1, near, -9).argmax(1)
    none, one = torch.zeros(80, dtype=torch.bool), torch.ones(40).long()
    pairs = None if all_pairs else (step + eye == 0).nonzero().t()
    made = Perturbations(graph, none, one, pairs, all_pairs=all_pairs)
    monkeypatch.setattr(search, '_MANY', 1)
    flips = attacks(made, reward, targets, 1, ALPHA)
    expected = torch.stack([targets, best])
    assert torch.equal(torch.cat(flips, 1), expected)
    tried = []
    monkeypatch.setattr(
        search, 'candidates', lambda moves, _: tried.append(moves) or flips[0]
    )
    attacks(made, reward, targets, 1, ALPHA)
    assert tried[0].pairs.size(1) < 7 * 40


def test_many_removals_are_searched_for_as_long_as_few(monkeypatch):
    ring = torch.arange(12)
    graph = CSRGraph.convert(torch.stack([ring, (ring + 1) % 12]), 12)
    rounds = []
    monkeypatch.setattr(search, '_MOST', 1)
    monkeypatch.setattr(
        search._Attack, 'run', lambda self, *given: rounds.append(given[-1])
    )
    for addable in (None, torch.tensor([[0], [5]])):
        every, one = torch.ones(12).bool(), torch.ones(12).long()
        made = Perturbations(graph, every, one, addable)
        attacks(made, torch.rand(1, 12).double(), ring[:1], 9, ALPHA)
    assert rounds == [32, 4]
