import math

import pytest
import torch
from citeseer import load, local_oracle
from exhaustive import (
    admissible,
    csr,
    pagerank,
    random_perturbations,
    random_problem,
    worst_margins,
)

from pyg_trust.certificates.diffusion import diffuse
from pyg_trust.certificates.policy import (
    policy_iteration,
    policy_value,
    worst_case_margins,
)
from pyg_trust.certificates.threat import Perturbations, Policy
from pyg_trust.graph import CSRGraph

ALPHA = 0.15


@pytest.mark.parametrize('kind', ['removals', 'additions', 'both', 'explicit'])
@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('seed', range(12))
def test_exhaustive_search_finds_the_same_worst_case(kind, directed, seed):
    adj, logits = random_problem(seed, 5, directed=directed, loops=directed)
    made, fragile, budget = random_perturbations(adj, seed, kind)
    alpha = (0.05, 0.15, 0.6)[seed % 3]
    graphs = admissible(adj, fragile, budget)
    expected = worst_margins(graphs, logits, alpha)
    margins = worst_case_margins(logits, made, alpha)
    off = ~torch.eye(3, dtype=torch.bool)
    assert torch.allclose(margins[off], expected[off], atol=1e-11)
    pairs = off.nonzero()
    reward = (logits[:, pairs[:, 1]] - logits[:, pairs[:, 0]]).t()
    found = policy_iteration(made, reward.contiguous(), alpha)
    low = -alpha * (found.value + found.high[:, None])
    high = -alpha * (found.value + found.low[:, None])
    assert bool((low <= expected[off] + 1e-14).all())
    assert bool((high >= expected[off] - 1e-14).all())
    assert bool((high - low < 1e-9).all())
    for column, (c1, c2) in enumerate(pairs.tolist()):
        flips = found.policy.edges(column)
        graph = adj.clone()
        graph[flips[0], flips[1]] ^= True
        # It is admissible and attains the worst case at all nodes.
        assert bool(fragile[flips[0], flips[1]].all())
        count = flips[0].bincount(minlength=5)
        assert bool((count <= budget).all())
        z = pagerank(graph, alpha) @ logits
        assert torch.allclose(
            z[:, c1] - z[:, c2], expected[c1, c2], atol=1e-11
        )


@pytest.mark.parametrize('kind', ['removals', 'both', 'explicit'])
@pytest.mark.parametrize('seed', range(8))
def test_prices_and_bonus_enter_the_bellman_step_as_documented(kind, seed):
    adj, logits = random_problem(seed, 5)
    made, fragile, budget = random_perturbations(adj, seed, kind)
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    bonus, visit, step = torch.rand(
        3, 2, 5, generator=generator, dtype=torch.float64
    )
    found = policy_iteration(
        made,
        torch.zeros_like(value),
        0.2,
        bonus=bonus,
        visit_cost=visit,
        step_cost=step,
        start=value,
        max_iter=1,
    )
    policy = found.policy
    expected = torch.full((2, 5), -math.inf, dtype=torch.float64)
    for i in range(5):
        alone = torch.zeros_like(budget)
        alone[i] = budget[i]
        for graph in admissible(adj, fragile, alone):
            k = int((graph[i] != adj[i]).sum())
            size = int(graph[i].sum())
            sums = (value * graph[i]).sum(1)
            gain = (0.8 * sums + bonus[:, i] - visit[:, i] * k) / size
            gain = gain - step[:, i] * k
            expected[:, i] = torch.maximum(expected[:, i], gain)
    # The policy attains it.
    k, size = policy.flips, policy.size
    made_of = torch.stack([dense(adj, policy, c).double() for c in range(2)])
    sums = (made_of @ value[:, :, None]).squeeze(2)
    attained = (0.8 * sums + bonus - visit * k) / size - step * k
    assert torch.allclose(attained, expected, atol=1e-13)
    # And the bounds are those of the largest change of V.
    change = expected - value
    high = change.amax(1).clamp(min=0) / 0.2
    low = change.amin(1).clamp(max=0) / 0.2
    assert torch.allclose(found.high, high, atol=1e-12)
    assert torch.allclose(found.low, low, atol=1e-12)
    assert logits.size(0) == 5


def dense(adj, policy, column):
    """The graph of a column."""
    graph = adj.clone()
    flips = policy.edges(column)
    graph[flips[0], flips[1]] ^= True
    return graph


def test_policy_is_its_flips():
    adj, _ = random_problem(3, 6)
    made, _, _ = random_perturbations(adj, 3, 'both')
    value = torch.randn(4, 6, dtype=torch.float64)
    policy = policy_iteration(
        made, value, ALPHA, start=value, max_iter=1
    ).policy
    again = Policy.from_flips(
        made, [policy.edges(c).flip(1) for c in range(4)]
    )
    assert all(map(torch.equal, policy.flipped, again.flipped))
    for c in range(4):
        graph = dense(adj, policy, c)
        assert torch.equal(policy.size[c], graph.sum(1))
        assert torch.equal(policy.flips[c], (graph ^ adj).sum(1))


def test_a_row_may_be_emptied():
    adj, logits = random_problem(3, 6)
    made, _, _ = random_perturbations(adj, 3, 'both')
    col = adj[2].nonzero().view(-1)
    flips = torch.stack([torch.full_like(col, 2), col])
    policy = Policy.from_flips(made, [flips])
    reward = logits[:, 0][None].contiguous()
    value = policy_value(policy, reward, ALPHA).value
    assert int(policy.size[0, 2]) == 0
    assert torch.isclose(value[0, 2], logits[2, 0])


def test_bounds_hold_when_iteration_stops_early():
    adj, logits = random_problem(1, 5)
    made, fragile, budget = random_perturbations(adj, 1, 'both')
    expected = worst_margins(admissible(adj, fragile, budget), logits, ALPHA)
    reward = (logits[:, 1] - logits[:, 0])[None].contiguous()
    for start in (None, torch.randn(1, 5, dtype=torch.float64) * 10):
        found = policy_iteration(made, reward, ALPHA, start=start, max_iter=1)
        low = -ALPHA * (found.value + found.high[:, None])[0]
        high = -ALPHA * (found.value + found.low[:, None])[0]
        assert bool((low <= expected[0, 1]).all())
        assert bool((high >= expected[0, 1]).all())
        assert float((high - low).min()) > 1e-6


def test_bounds_scale_with_the_logits():
    adj, logits = random_problem(2, 5)
    made, fragile, budget = random_perturbations(adj, 2, 'removals')
    graphs = admissible(adj, fragile, budget)
    for scale in (1e-9, 1e9):
        expected = worst_margins(graphs, scale * logits, ALPHA)[0, 1]
        reward = scale * (logits[:, 1] - logits[:, 0])[None].contiguous()
        found = policy_iteration(made, reward, ALPHA)
        low = -ALPHA * (found.value + found.high[:, None])[0]
        high = -ALPHA * (found.value + found.low[:, None])[0]
        assert bool((low <= expected).all())
        assert bool((high >= expected).all())
        assert float((high - low).max()) < 1e-9 * scale


def test_blocks_of_columns_do_not_matter(monkeypatch):
    adj, logits = random_problem(4, 6)
    made, _, _ = random_perturbations(adj, 4, 'both')
    expected = worst_case_margins(logits, made, ALPHA)
    monkeypatch.setattr('pyg_trust.certificates.threat._BLOCK', 1)
    assert len(list(made.column_blocks(6))) == 6
    assert torch.allclose(worst_case_margins(logits, made, ALPHA), expected)


@pytest.mark.parametrize('kind', ['removals', 'both'])
@pytest.mark.parametrize('seed', range(4))
def test_danskin_gradient_is_that_of_finite_differences(kind, seed):
    adj, logits = random_problem(seed, 5)
    made, _, _ = random_perturbations(adj, seed, kind)
    weight = torch.randn(3, 3, 5, dtype=torch.float64)
    off = ~torch.eye(3, dtype=torch.bool)

    def value(logits):
        margins = worst_case_margins(logits, made, ALPHA)
        return (margins * weight)[off].sum()

    assert torch.autograd.gradcheck(
        value, logits.requires_grad_(), eps=1e-6, atol=1e-7
    )


@pytest.mark.parametrize('scenario', ['rem', 'both'])
@pytest.mark.parametrize('strength', [1, 6, 10])
def test_margins_are_those_of_the_oracle(shared, scenario, strength):
    graph, fragile, oracle = local_oracle(shared)
    made = Perturbations(
        graph,
        fragile,
        oracle[f'budget_s{strength}'],
        all_pairs=scenario == 'both',
    )
    margins = worst_case_margins(oracle['logits'], made, ALPHA)
    expected = oracle[f'margins_all_{scenario}_s{strength}']
    off = ~torch.eye(6, dtype=torch.bool)
    difference = (margins - expected)[off].abs().max()
    assert float(difference) < 1e-9


@pytest.mark.parametrize('strength', [1, 6, 10])
@pytest.mark.parametrize('scenario', ['rem', 'both'])
def test_label_propagation_is_that_of_the_oracle(shared, scenario, strength):
    graph, fragile, local = local_oracle(shared)
    oracle = load(shared / 'oracles/certificates/labelprop_citeseer.npz')
    n, train = graph.num_nodes, oracle['train']
    logits = torch.zeros((n, 6), dtype=torch.float64)
    logits[train, local['labels'][train]] = 1
    made = Perturbations(
        graph,
        fragile,
        local[f'budget_s{strength}'],
        all_pairs=scenario == 'both',
    )
    worst = worst_case_margins(logits, made, ALPHA)
    margins = worst[oracle['pred'], :, torch.arange(n)].amin(1)
    expected = oracle[f'margins_{scenario}_s{strength}']
    assert torch.allclose(margins, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize('normalization', ['rw', 'sym'])
@pytest.mark.parametrize('alpha', [0.01, 0.15, 0.9])
def test_diffusion_is_that_of_the_inverse(normalization, alpha):
    adj, x = random_problem(7, 12)
    degree = adj.sum(1).double()
    step = adj / degree[:, None]
    if normalization == 'sym':
        step = adj / (degree[:, None] * degree).sqrt()
    inverse = torch.linalg.inv(
        torch.eye(12, dtype=torch.float64) - (1 - alpha) * step
    )
    z = diffuse(csr(adj), x, alpha, normalization=normalization)
    assert torch.allclose(z, alpha * inverse @ x, atol=1e-10)
    z = diffuse(csr(adj), x.float(), alpha, normalization=normalization)
    assert z.dtype == torch.float32
    assert torch.allclose(z.double(), alpha * inverse @ x, atol=1e-3)


@pytest.mark.parametrize('normalization', ['rw', 'sym'])
def test_diffusion_has_the_right_gradient(normalization):
    adj, x = random_problem(8, 6, directed=normalization == 'rw')
    assert torch.autograd.gradcheck(
        lambda x: diffuse(csr(adj), x, 0.2, normalization=normalization),
        x.requires_grad_(),
    )


@pytest.mark.parametrize('alpha', [0.01, 0.3])
@pytest.mark.parametrize('kind', ['weighted', 'parallel'])
def test_diffusion_by_weights_is_that_of_the_inverse(kind, alpha):
    adj, x = random_problem(9, 12, directed=True)
    edges = adj.nonzero().t()
    weight = torch.rand(edges.size(1), dtype=torch.float64) + 0.1
    if kind == 'parallel':
        edges, weight = edges.repeat(1, 2), None
    graph = CSRGraph.from_edge_index(edges, 12, weight, duplicates='keep')
    dense = adj.double()
    if weight is not None:
        dense[adj] = weight
    step = dense / dense.sum(1, keepdim=True)
    eye = torch.eye(12, dtype=torch.float64)
    inverse = alpha * torch.linalg.inv(eye - (1 - alpha) * step)
    x.requires_grad_()
    z = diffuse(graph, x, alpha)
    assert torch.allclose(z, inverse @ x, atol=1e-9)
    z.sum().backward()
    assert torch.allclose(x.grad, inverse.sum(0)[:, None].expand(12, 3))


def test_diffusion_of_directed_weighted_and_dangling_graphs():
    edge_index = torch.tensor([[0, 0, 1], [1, 2, 2]])
    weight = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    graph = CSRGraph.from_edge_index(edge_index, 3, weight)
    x = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    # By hand: node 2 leads nowhere, 1 to 2, 0 to 1 and 2 as 1 to 3.
    z2 = 0.5 * 4
    z1 = 0.5 * 2 + 0.5 * z2
    z0 = 0.5 * 1 + 0.5 * (0.25 * z1 + 0.75 * z2)
    expected = torch.tensor([[z0], [z1], [z2]], dtype=torch.float64)
    assert torch.allclose(diffuse(graph, x, 0.5), expected)
