import hashlib
import itertools
import math
import os
from fractions import Fraction

import numpy as np
import pytest
import torch
import warm

from pyg_trust import ops
from pyg_trust.ops import PolicyFlips, PolicyThreat

KINDS = ('removals', 'additions', 'both', 'explicit')
COSTS = ('bonus', 'visit_cost', 'step_cost')
FOLLOW = 0.85
UNIT = 2.0**-53


def random_threat(seed, n, kind, *, hub=True, degree=4):
    """A directed graph with a cycle, a hub and a self-loop, as a threat."""
    generator = torch.Generator().manual_seed(seed)
    adj = torch.rand(n, n, generator=generator) < degree / n
    adj.fill_diagonal_(False)
    nodes = torch.arange(n)
    cycle = torch.zeros_like(adj)
    cycle[nodes, (nodes + 1) % n] = True
    if hub:
        adj[0] = torch.rand(n, generator=generator) < 0.7
        adj[1, 1] = True
    adj |= cycle
    fragile = torch.rand(n, n, generator=generator) < 0.8
    removable = adj & ~cycle & fragile & (kind != 'additions')
    addable = ~adj & fragile if kind == 'explicit' else torch.zeros_like(adj)
    budget = torch.randint(0, 6, (n,), generator=generator)
    budget[0] = n // 3
    return dense_threat(
        adj, removable, addable, budget, kind in ('additions', 'both')
    )


def dense_threat(adj, removable, addable, budget, all_pairs):
    row, col = adj.nonzero().t()

    def pointer(mask):
        return torch.cat([torch.zeros(1).long(), mask.sum(1).cumsum(0)])

    return PolicyThreat(
        pointer(adj),
        col.int(),
        removable[row, col],
        budget,
        pointer(addable),
        addable.nonzero()[:, 1].int(),
        all_pairs,
    )


def rows_of(threat):
    """Per row its neighbours, and which it can lose and win."""
    n = threat.rowptr.numel() - 1
    ptr, add_ptr = threat.rowptr.tolist(), threat.add_ptr.tolist()
    for i in range(n):
        mine = threat.col[ptr[i] : ptr[i + 1]].tolist()
        goes = threat.removable[ptr[i] : ptr[i + 1]].tolist()
        lose = [j for j, may in zip(mine, goes, strict=True) if may]
        win = threat.add_col[add_ptr[i] : add_ptr[i + 1]].tolist()
        if threat.all_pairs:
            win = [j for j in range(n) if j != i and j not in mine]
        yield i, mine, lose, win, int(threat.budget[i])


def best_row(value, mine, lose, win, budget, follow, bonus, visit, step):
    """The maximum over all numbers of additions and removals.

    In the arithmetic of what comes in: floats or fractions.
    """
    lose = sorted(lose, key=lambda j: value[j])
    win = sorted(win, key=lambda j: -value[j])
    clean = sum(value[j] for j in mine)
    best = None
    won, t = 0 * bonus, 0
    for t in range(min(len(win), budget) + 1):
        if t > 0:
            won = won + value[win[t - 1]]
        lost = 0 * bonus
        for s in range(min(len(lose), budget - t) + 1):
            if s > 0:
                lost = lost + value[lose[s - 1]]
            size, k = len(mine) + t - s, t + s
            total = follow * (clean + won - lost) + bonus - visit * k
            made = total / size - step * k
            best = made if best is None else max(best, made)
    return best


def reference_step(threat, value, costs):
    """T V - r of one column, by trying everything."""
    bonus, visit, step = costs
    return [
        best_row(value, *row, FOLLOW, bonus[i], visit[i], step[i])
        for i, *row in rows_of(threat)
    ]


def perturbed(threat, flips, column):
    """A column's graph as a dense matrix."""
    n = threat.rowptr.numel() - 1
    adj = torch.zeros(n, n, dtype=torch.bool)
    row = torch.arange(n).repeat_interleave(threat.rowptr.diff())
    adj[row, threat.col.long()] = True
    start, end = flips.ptr[column : column + 2].tolist()
    adj[flips.row[start:end].long(), flips.col[start:end].long()] ^= True
    return adj


def one_step(threat, value, reward=None, **costs):
    """The maximizing flips at a value, and T V - V."""
    reward = torch.zeros_like(value) if reward is None else reward
    same, gap, *flips = ops.policy_iteration(
        threat,
        reward,
        value,
        torch.zeros(value.size(0), dtype=torch.float64),
        0.0,
        FOLLOW,
        1,
        **costs,
    )
    assert torch.equal(same, value)
    return gap, PolicyFlips(*flips)


def random_costs(seed, shape, priced):
    generator = torch.Generator().manual_seed(seed)
    made = 0.3 * torch.rand(
        3, *shape, generator=generator, dtype=torch.float64
    )
    keep = torch.tensor([name in priced for name in COSTS])
    return torch.where(keep[:, None, None], made, 0.0)


PRICED = [(), ('bonus',), ('visit_cost',), ('step_cost',), COSTS]


@pytest.mark.parametrize('priced', PRICED)
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('ties', [False, True])
def test_a_step_is_the_best_of_all_counts(kind, priced, ties):
    n, columns = 40, 3
    for seed in range(4):
        threat = random_threat(seed, n, kind)
        generator = torch.Generator().manual_seed(seed)
        value = torch.randn(
            columns, n, generator=generator, dtype=torch.float64
        )
        if ties:  # whole numbers: nearly every comparison is a tie
            value = value.round()
        costs = random_costs(seed, (columns, n), priced)
        gap, flips = one_step(
            threat,
            value,
            **{
                name: cost
                for name, cost in zip(COSTS, costs, strict=True)
                if name in priced
            },
        )
        for c in range(columns):
            expected = reference_step(
                threat, value[c].tolist(), costs[:, c].tolist()
            )
            expected = torch.tensor(expected, dtype=torch.float64)
            best = gap[c] + value[c]
            assert torch.allclose(best, expected, rtol=0, atol=1e-12)
            # The flips attain it, and are admissible.
            clean = perturbed(threat, flips, c) ^ perturbed(
                threat, PolicyFlips(torch.zeros(4).long(), *flips[1:]), 0
            )
            bonus, visit, step = costs[:, c]
            k = clean.sum(1)
            assert bool((k <= threat.budget).all())
            graph = perturbed(threat, flips, c).double()
            made = FOLLOW * graph @ value[c] + bonus - visit * k
            made = made / graph.sum(1) - step * k
            assert torch.allclose(made, expected, rtol=0, atol=1e-12)
            for i, mine, lose, win, _ in rows_of(threat):
                flipped = clean[i].nonzero().view(-1).tolist()
                assert set(flipped) <= {*lose, *win}, (mine, flipped)


@pytest.mark.parametrize('kind', KINDS)
def test_roundoff_is_within_its_bound(kind):
    # Values that cancel: sums of a hundred terms that are far smaller.
    n = 120
    for seed in range(3):
        threat = random_threat(seed, n, kind, degree=2)
        generator = torch.Generator().manual_seed(seed)
        value = torch.randn(1, n, generator=generator, dtype=torch.float64)
        sign = torch.where(torch.rand(n, generator=generator) < 0.5, -1, 1)
        value = sign * 1e6 + value * 1e-3
        gap, _ = one_step(threat, value)
        exact = [Fraction(x) for x in value[0].tolist()]
        zero = Fraction(0)
        for i, mine, lose, win, budget in itertools.islice(rows_of(threat), 6):
            best = best_row(
                exact,
                mine,
                lose,
                win,
                budget,
                Fraction(FOLLOW),
                zero,
                zero,
                zero,
            )
            lost, won = min(budget, len(lose)), min(budget, len(win))
            ratio = (len(mine) + won) / (len(mine) - lost)
            ratio = ratio if lost > 0 and won > 0 else 1
            error = abs(Fraction(float(gap[0, i])) - (best - exact[i]))
            assert error <= 64 * UNIT * ratio * float(value.abs().max())


@pytest.mark.parametrize('seed', range(4))
def test_rows_may_add_every_edge_that_is_missing(seed):
    # Budgets beyond what there is to add, rows that lack few edges, and
    # self-loops, which are no edge to another node.
    n = 7
    generator = torch.Generator().manual_seed(seed)
    adj = torch.rand(n, n, generator=generator) < 0.7
    adj[torch.arange(n), torch.arange(n)] = torch.arange(n) % 2 == 0
    adj[torch.arange(n), (torch.arange(n) + 1) % n] = True
    none = torch.zeros_like(adj)
    budget = torch.full((n,), n)
    threat = dense_threat(adj, none, none, budget, True)
    value = torch.randn(2, n, generator=generator).double()
    value[1] = torch.arange(n)
    gap, flips = one_step(threat, value)
    zero = [0.0] * n
    for c in range(2):
        expected = reference_step(threat, value[c].tolist(), (zero,) * 3)
        expected = torch.tensor(expected, dtype=torch.float64)
        assert torch.allclose(gap[c] + value[c], expected, rtol=0, atol=1e-12)
        assert not bool((perturbed(threat, flips, c) < adj).any())


@pytest.mark.parametrize('priced', [(), COSTS])
@pytest.mark.parametrize('kind', KINDS)
def test_iteration_ends_at_the_fixed_point(kind, priced):
    n, columns = 50, 4
    threat = random_threat(5, n, kind)
    generator = torch.Generator().manual_seed(5)
    reward = torch.randn(columns, n, generator=generator, dtype=torch.float64)
    costs = random_costs(5, (columns, n), priced)
    value, gap, *_ = ops.policy_iteration(
        threat,
        reward,
        torch.zeros_like(reward),
        torch.full((columns,), 1e-12, dtype=torch.float64),
        0.0,
        FOLLOW,
        100,
        **dict(zip(COSTS, costs, strict=True)),
    )
    assert float(gap.abs().max()) <= 1e-12
    for c in range(columns):
        # That step is a contraction: it has one fixed point alone.
        best = reference_step(threat, value[c].tolist(), costs[:, c].tolist())
        best = torch.tensor(best, dtype=torch.float64)
        assert torch.allclose(reward[c] + best, value[c], atol=1e-10)


def best_priced_row(value, row, prices, bonus, visit, step):
    """The maximum over every set of flips, each with a price of its own."""
    _, mine, lose, win, budget = row
    best = -math.inf
    flips = [*lose, *win]
    for k in range(min(budget, len(flips)) + 1):
        for chosen in itertools.combinations(flips, k):
            left = set(mine) ^ set(chosen)
            total = sum(value[j] for j in left)
            gain = (FOLLOW * total if left else 0.0) + bonus - visit * k
            made = gain / max(len(left), 1) - step * k
            best = max(best, made - sum(prices[j] for j in chosen))
    return best


@pytest.mark.parametrize('priced', [(), COSTS])
@pytest.mark.parametrize('size', [0.02, 0.1, 0.3])
@pytest.mark.parametrize('seed', range(4))
def test_iteration_with_a_price_per_edge_ends_at_the_fixed_point(
    seed, size, priced
):
    n, columns = 9, 3
    threat = random_threat(seed, n, 'explicit')
    generator = torch.Generator().manual_seed(seed)

    def uniform(count):
        made = torch.rand(columns, count, generator=generator)
        return size * made.double()

    reward = torch.randn(columns, n, generator=generator).double()
    removal, addition = (
        uniform(threat.col.numel()),
        uniform(threat.add_col.numel()),
    )
    costs = random_costs(seed, (columns, n), priced)
    value, gap, ptr, *_ = ops.policy_iteration(
        threat,
        reward,
        reward,
        torch.full((columns,), 1e-12, dtype=torch.float64),
        0.0,
        FOLLOW,
        100,
        removal_cost=removal,
        addition_cost=addition,
        **{
            name: cost.contiguous()
            for name, cost in zip(COSTS, costs, strict=True)
            if name in priced
        },
    )
    assert int(ptr[-1]) > 0
    assert float(gap.abs().max()) <= 1e-12
    start, end = threat.rowptr.tolist(), threat.add_ptr.tolist()
    for c in range(columns):
        for row in rows_of(threat):
            i = row[0]
            out = slice(start[i], start[i + 1])
            into = slice(end[i], end[i + 1])
            names = [*threat.col[out].tolist(), *threat.add_col[into].tolist()]
            paid = [*removal[c, out].tolist(), *addition[c, into].tolist()]
            best = best_priced_row(
                value[c].tolist(),
                row,
                dict(zip(names, paid, strict=True)),
                *costs[:, c, i].tolist(),
            )
            assert math.isclose(
                float(reward[c, i]) + best, float(value[c, i]), abs_tol=1e-10
            )


@pytest.mark.parametrize('back', [False, True])
@pytest.mark.parametrize('follow', [0.3, 0.85, 0.999])
def test_solutions_are_those_of_dense_algebra(back, follow):
    n, columns = 60, 3
    threat = random_threat(2, n, 'explicit')
    generator = torch.Generator().manual_seed(2)
    value = torch.randn(columns, n, generator=generator, dtype=torch.float64)
    _, flips = one_step(threat, value)
    assert int(flips.ptr.diff().min()) > 20
    x, left = ops.policy_solve(
        threat.rowptr,
        threat.col,
        flips,
        value,
        torch.zeros_like(value),
        torch.full((columns,), 1e-11, dtype=torch.float64),
        follow,
        back,
    )
    assert float(left.abs().max()) <= 1.1e-11
    for c in range(columns):
        graph = perturbed(threat, flips, c).double()
        move = follow * graph / graph.sum(1, keepdim=True)
        move = move.t() if back else move
        system = torch.eye(n, dtype=torch.float64) - move
        expected = torch.linalg.solve(system, value[c])
        assert torch.allclose(x[c], expected, rtol=1e-9, atol=1e-7)
        residual = value[c] - system @ x[c]
        assert torch.allclose(left[c], residual, rtol=0, atol=1e-12)


def test_an_impossible_goal_ends_at_roundoff():
    threat = random_threat(3, 30, 'removals')
    reward = torch.randn(2, 30, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.int32)
    x, left = ops.policy_solve(
        threat.rowptr,
        threat.col,
        PolicyFlips(torch.zeros(3).long(), none, none),
        reward,
        reward,
        torch.zeros(2, dtype=torch.float64),
        FOLLOW,
    )
    assert float(left.abs().max()) < 1e-14 * float(x.abs().max())


def test_nodes_without_edges_lead_nowhere():
    # Row 1 is empty; row 0 may lose the edge to it.
    threat = dense_threat(
        torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]]).bool(),
        torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0]]).bool(),
        torch.zeros(3, 3, dtype=torch.bool),
        torch.tensor([1, 1, 1]),
        False,
    )
    reward = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    goal = torch.tensor([1e-13], dtype=torch.float64)
    value, gap, ptr, row, col = ops.policy_iteration(
        threat, reward, reward, goal, 0.0, 0.5, 50
    )
    # By hand: 0 and 2 go to each other alone.
    v0 = (1 + 0.5 * 0.5) / (1 - 0.25)
    expected = torch.tensor([[v0, -2.0, 0.5 + 0.5 * v0]]).double()
    assert torch.allclose(value, expected)
    assert (ptr.tolist(), row.tolist(), col.tolist()) == ([0, 1], [0], [1])
    assert float(gap.abs().max()) <= 1e-13


def test_overflow_is_told_by_nan():
    threat = random_threat(0, 30, 'both')
    reward = torch.full((2, 30), 1e308, dtype=torch.float64)
    reward[1] = 1
    goal = torch.full((2,), 1e-9, dtype=torch.float64)
    value, gap, ptr, *_ = ops.policy_iteration(
        threat, reward, reward, goal, 0.0, FOLLOW, 50
    )
    assert bool(gap[0].isnan().any())
    assert bool(value[1].isfinite().all())
    assert float(gap[1].abs().max()) < 1e-8
    assert ptr.numel() == 3


def iteration_arguments(kind='explicit', n=40, columns=2):
    threat = random_threat(1, n, kind)
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(columns, n, generator=generator, dtype=torch.float64)
    goal = torch.full((columns,), 1e-10, dtype=torch.float64)
    price = reward.abs() / 10
    return threat, reward, goal, price


@pytest.mark.parametrize('kind', KINDS)
def test_threads_do_not_matter(threads, kind):
    threat, reward, goal, price = iteration_arguments(kind, 150, 100)
    made = []
    for count in (1, 4):
        threads(count)
        found = ops.policy_iteration(
            threat, reward, reward, goal, 0.0, FOLLOW, 50, step_cost=price
        )
        x = ops.policy_solve(
            threat.rowptr,
            threat.col,
            PolicyFlips(*found[2:]),
            reward,
            reward,
            goal,
            FOLLOW,
            True,
        )
        made.append((*found, *x))
    assert all(map(torch.equal, *made))


@pytest.mark.parametrize('kind', ['explicit', 'both'])
def test_opcheck(kind):
    threat, reward, goal, price = iteration_arguments(kind)
    _, flips = one_step(threat, reward)
    costs = (None, price, None, None, None, None)
    graph, kernels = (threat.rowptr, threat.col), torch.ops.pyg_trust
    for op, given in (
        (
            kernels.policy_iteration,
            (*threat, reward, *costs, reward, goal, 0.0, FOLLOW, 9),
        ),
        (
            kernels.policy_solve,
            (*graph, *flips, reward, reward, goal, FOLLOW, False),
        ),
    ):
        torch.library.opcheck(op.default, given, test_utils='test_schema')


def digest():
    """Of policies and of their values, of graphs of every rest of a line."""
    made = hashlib.sha256()
    for n in (7, 8, 33, 90):
        # Numbers of numpy: those of torch depend on the processor.
        random = np.random.default_rng(n)
        adj = torch.from_numpy(random.random((n, n)) < 6 / n)
        adj[torch.arange(n), (torch.arange(n) + 1) % n] = True
        goes = adj & torch.from_numpy(random.random((n, n)) < 0.8)
        budget = torch.from_numpy(random.integers(0, 9, n))
        threat = dense_threat(adj, goes, adj & ~adj, budget, False)
        reward = torch.from_numpy(random.standard_normal((3, n)))
        zero, goal = torch.zeros_like(reward), torch.full((3,), 1e-9).double()
        found = ops.policy_iteration(
            threat, reward, zero, goal, 1e-13, FOLLOW, 50
        )
        for part in found:
            made.update(part.numpy().tobytes())
    return made.hexdigest()


@pytest.mark.parametrize('kind', ['default', 'avx2'])
def test_policies_have_the_bits_of_any_processor(kind):
    here = os.path.dirname(__file__)
    done = warm.run(
        *('-W', 'ignore', '-c'),
        'from test_ops_policy import digest; print(digest())',
        cwd=here,
        env={
            **os.environ,
            'ATEN_CPU_CAPABILITY': kind,
            'PYTHONPATH': os.pathsep.join([os.path.dirname(here), here]),
        },
    )
    assert done.stdout.strip() == digest(), done.stderr
