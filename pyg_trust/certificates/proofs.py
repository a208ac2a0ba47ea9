"""Witness of an exact certificate, built from its solutions."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_trust.certificates.dual_search import DualSearch, Mirror
from pyg_trust.certificates.problem import Problem
from pyg_trust.certificates.witness import MOST_BYTES, Witness
from pyg_trust.graph.ragged import pointer

# Costs of a flip, by their number in a witness.
_COSTS = ('pagerank', 'visits')


def witness_of(problem: Problem) -> tuple[Witness | None, str]:
    """Collect the arrays from which the kernel proves the targets' status.

    Returns:
        tuple: the witness and its digest, or None and the reason why there is
        none.
    """
    perturbations, deployed = problem.perturbations, problem.deployed
    if problem.targets.numel() == 0:
        return None, 'none: there are no targets'
    limit, n = deployed.K is None, perturbations.num_nodes
    columns = _columns(problem)
    names = {problem.priced[pair].cost for pair in columns}
    charged = [
        (row, cost)
        for cost, name in enumerate(_COSTS)
        if name in names
        for row in perturbations.active.tolist()
    ]
    prices = perturbations.graph.num_edges + perturbations.pairs.size(1)
    count = len(columns), len(charged)
    numbers = limit * n * (len(problem.local) + count[0])
    numbers += deployed.logits.numel() + 3 * prices + count[0] * count[1]
    # Shares of an edge's price, by column.
    shared = 'pagerank' in names
    numbers += n * count[1] + problem.is_priced * shared * count[0] * prices
    numbers += 2 * sum(pairs.size(1) for pairs in problem.witnesses)
    size = 8 * numbers
    if size > MOST_BYTES or not names <= set(problem.vectors):
        return None, f'none: {size / 2**20:.0f} MiB were left out'
    none = torch.zeros((0, n), dtype=torch.float64)
    scores, values, shares = none, none, none.new_zeros((0, 0))
    if limit:
        scores = _rounded(
            problem, torch.stack(list(problem.local.values())) * problem.alpha
        )
    multipliers = none.new_zeros(0)
    upper = none.new_zeros((0, len(charged)))
    if columns:
        multipliers, values, shares = _values(problem, columns)
        rows = torch.tensor([row for row, _ in charged], dtype=torch.int64)
        upper = torch.stack(
            [problem.priced[pair].upper[rows] for pair in columns]
        )
    reach = [none, *(problem.vectors[x] for x in _COSTS if x in names)]
    # Flips sorted by number, as in the file.
    flips = [torch.zeros((2, 0), dtype=torch.int64)]
    flips += [
        pairs[:, (pairs[0] * n + pairs[1]).argsort()]
        for pairs in problem.witnesses
    ]
    counts = [pairs.size(1) for pairs in problem.witnesses]
    arrays = {
        'rowptr': perturbations.graph.rowptr,
        'col': perturbations.graph.col,
        'removable': perturbations.removable,
        # With self-loops, some of which may not be there for this model.
        'budget': problem.threat.local_budget,
        'pairs': perturbations.pairs,
        'logits': deployed.logits,
        'classes': _table(list(problem.local), 2),
        'scores': scores,
        'columns': _table(
            [(*p, _COSTS.index(problem.priced[p].cost)) for p in columns], 3
        ),
        'multipliers': multipliers,
        'values': values,
        'shares': shares,
        'charged': _table(charged, 2),
        'reach': torch.cat(reach),
        'upper': upper,
        'flips': torch.cat(flips, dim=1),
        'flips_ptr': pointer(torch.tensor(counts, dtype=torch.int64)),
        'flips_of': problem.witness_of,
        'targets': problem.targets,
        'reference': problem.reference,
        'all_pairs': torch.tensor(perturbations.all_pairs),
        'undirected': torch.tensor(problem.undirected),
        'global_budget': torch.tensor(
            -1 if problem.budget is None else problem.budget
        ),
        'alpha': torch.tensor(deployed.alpha, dtype=torch.float64),
        'K': torch.tensor(-1 if limit else deployed.K),
        'self_loops': torch.tensor(deployed.self_loops),
        'tolerance': torch.tensor(problem.tolerance, dtype=torch.float64),
    }
    return Witness.of(
        arrays,
        {'normalization': deployed.normalization, 'dtype': deployed.kind},
    )


def _rounded(problem: Problem, values: Tensor) -> Tensor:
    # Rounded up to units that a file stores in five bytes: a bound moves by at
    # most 2^-33 of the largest score.
    lower = (problem.lower - problem.slack).amin(1) - problem.tolerance
    if bool(((lower > 0) & (lower < 1e-9)).any()):
        return values
    top = math.frexp(float(values.abs().max()))[1]
    places = 33 - min(top, 0) - math.floor(math.log2(problem.alpha))
    return torch.ldexp(
        torch.ldexp(values, torch.tensor(places)).ceil(),
        torch.tensor(-places),
    )


def _table(rows: Sequence[tuple[int, ...]], width: int) -> Tensor:
    table = torch.tensor(rows, dtype=torch.int64).view(-1, width)
    return table.t().contiguous()


def _columns(problem: Problem) -> list[tuple[int, int]]:
    # Pairs of a robust target and a class that local bounds leave open.
    robust = ~problem.open_pairs().any(1)
    columns = []
    for k in robust.nonzero().view(-1).tolist():
        u, y = int(problem.targets[k]), int(problem.reference[k])
        for c in range(problem.logits.size(1)):
            if (k, c) not in problem.priced:
                continue
            margin = -problem.alpha * problem.local[y, c][u]
            if margin - problem.slack[k, c] <= problem.tolerance + 1e-9:
                columns.append((k, c))
    return columns


def _values(
    problem: Problem, columns: list[tuple[int, int]]
) -> tuple[Tensor, Tensor, Tensor]:
    # The multipliers, the largest scores with these prices, and shares.
    perturbations = problem.perturbations
    k, against = torch.tensor(columns).t()
    signal = problem.signal(k, against)
    upper = torch.stack([problem.priced[pair].upper for pair in columns])
    multipliers = signal.new_tensor(
        [problem.priced[pair].multiplier for pair in columns]
    )
    costs = [problem.priced[pair].cost for pair in columns]
    values = signal.new_zeros(signal.shape)
    shares = signal.new_zeros((0, 0))
    assert problem.budget is not None
    for cost in dict.fromkeys(costs):
        which = torch.tensor([x == cost for x in costs]).nonzero().view(-1)
        search = DualSearch(
            perturbations,
            signal[which],
            problem.targets[k[which]],
            upper[which],
            *(problem.budget, problem.horizon, cost),
        )
        if problem.is_priced and cost == 'pagerank':
            mine, other = k[which], against[which]
            pairs = torch.stack([problem.reference[mine], other], 1).tolist()
            search.share(
                Mirror.of(perturbations),
                torch.stack([problem.local[y, c] for y, c in pairs]),
                problem.clean(mine, other),
                problem.sign_only,
                tol=1e-9,
                max_iter=60,
                rounds=4,
            )
            assert search.shares is not None
            multipliers[which] = search.multiplier
            # Floats whose sum is below one, as the kernel adds them.
            found_shares = torch.cat(list(search.shares), 1) * (1 - 2**-48)
            shares = signal.new_zeros((len(columns), found_shares.size(1)))
            shares[which] = found_shares
        if problem.horizon.K is None:
            every = torch.arange(which.numel())
            for block in perturbations.column_blocks(which.numel()):
                solution = search.solve(
                    every[block], multipliers[which[block]], None, 1e-12
                )
                values[which[block]] = problem.alpha * (
                    solution.value + solution.high[:, None]
                )
    if problem.horizon.K is not None:
        values = values[:0]
    else:
        values = _rounded(problem, values)
    return multipliers, values, shares
