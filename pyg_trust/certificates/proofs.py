"""Witness of an exact certificate, built from its solutions."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_trust.certificates.budget import flip_costs
from pyg_trust.certificates.solver import Solver
from pyg_trust.certificates.witness import MOST_BYTES, Witness
from pyg_trust.graph.ragged import pointer

__all__ = ['witness_of']

# Costs of a flip, by their number in a witness.
_COSTS = ('pagerank', 'visits')


def witness_of(solver: Solver) -> tuple[Witness | None, str]:
    """Collect the arrays from which the kernel proves the targets' status.

    Returns:
        tuple: the witness and its digest, or None and the reason why there is
        none.
    """
    perturbations, deployed = solver.perturbations, solver.deployed
    if solver.targets.numel() == 0:
        return None, 'none: there are no targets'
    limit, n = deployed.K is None, perturbations.num_nodes
    columns = _columns(solver)
    names = {solver.priced[pair].cost for pair in columns}
    charged = [
        (row, cost)
        for cost, name in enumerate(_COSTS)
        if name in names
        for row in perturbations.active.tolist()
    ]
    prices = perturbations.graph.num_edges + perturbations.pairs.size(1)
    count = len(columns), len(charged)
    numbers = limit * n * (len(solver.local) + count[0])
    numbers += deployed.logits.numel() + 3 * prices + count[0] * count[1]
    # Shares of an edge's price, by column.
    shared = 'pagerank' in names
    numbers += n * count[1] + solver.is_priced * shared * count[0] * prices
    numbers += 2 * sum(pairs.size(1) for pairs in solver.witnesses)
    size = 8 * numbers
    if size > MOST_BYTES or not names <= set(solver.vectors):
        return None, f'none: {size / 2**20:.0f} MiB were left out'
    none = torch.zeros((0, n), dtype=torch.float64)
    scores, values, shares = none, none, none.new_zeros((0, 0))
    if limit:
        scores = _rounded(
            solver, torch.stack(list(solver.local.values())) * solver.alpha
        )
    multipliers = none.new_zeros(0)
    upper = none.new_zeros((0, len(charged)))
    if columns:
        multipliers, values, shares = _values(solver, columns)
        rows = torch.tensor([row for row, _ in charged], dtype=torch.int64)
        upper = torch.stack(
            [solver.priced[pair].upper[rows] for pair in columns]
        )
    reach = [none, *(solver.vectors[x] for x in _COSTS if x in names)]
    # Flips sorted by number, as in the file.
    flips = [torch.zeros((2, 0), dtype=torch.int64)]
    flips += [
        pairs[:, (pairs[0] * n + pairs[1]).argsort()]
        for pairs in solver.witnesses
    ]
    counts = [pairs.size(1) for pairs in solver.witnesses]
    arrays = {
        'rowptr': perturbations.graph.rowptr,
        'col': perturbations.graph.col,
        'removable': perturbations.removable,
        # With self-loops, some of which may not be there for this model.
        'budget': solver.threat.local_budget,
        'pairs': perturbations.pairs,
        'logits': deployed.logits,
        'classes': _table(list(solver.local), 2),
        'scores': scores,
        'columns': _table(
            [(*p, _COSTS.index(solver.priced[p].cost)) for p in columns], 3
        ),
        'multipliers': multipliers,
        'values': values,
        'shares': shares,
        'charged': _table(charged, 2),
        'reach': torch.cat(reach),
        'upper': upper,
        'flips': torch.cat(flips, dim=1),
        'flips_ptr': pointer(torch.tensor(counts, dtype=torch.int64)),
        'flips_of': solver.witness_of,
        'targets': solver.targets,
        'reference': solver.reference,
        'all_pairs': torch.tensor(perturbations.all_pairs),
        'undirected': torch.tensor(solver.undirected),
        'global_budget': torch.tensor(
            -1 if solver.budget is None else solver.budget
        ),
        'alpha': torch.tensor(deployed.alpha, dtype=torch.float64),
        'K': torch.tensor(-1 if limit else deployed.K),
        'self_loops': torch.tensor(deployed.self_loops),
        'tolerance': torch.tensor(solver.tolerance, dtype=torch.float64),
    }
    return Witness.of(
        arrays,
        {'normalization': deployed.normalization, 'dtype': deployed.kind},
    )


def _rounded(solver: Solver, values: Tensor) -> Tensor:
    # Rounded up to units that a file stores in five bytes: a bound moves by at
    # most 2^-33 of the largest score.
    lower = (solver.lower - solver.slack).amin(1) - solver.tolerance
    if bool(((lower > 0) & (lower < 1e-9)).any()):
        return values
    top = math.frexp(float(values.abs().max()))[1]
    places = 33 - min(top, 0) - math.floor(math.log2(solver.alpha))
    return torch.ldexp(
        torch.ldexp(values, torch.tensor(places)).ceil(),
        torch.tensor(-places),
    )


def _table(rows: Sequence[tuple[int, ...]], width: int) -> Tensor:
    table = torch.tensor(rows, dtype=torch.int64).view(-1, width)
    return table.t().contiguous()


def _columns(solver: Solver) -> list[tuple[int, int]]:
    # Pairs of a robust target and a class that local bounds leave open.
    robust = ~solver.open_pairs().any(1)
    columns = []
    for k in robust.nonzero().view(-1).tolist():
        u, y = int(solver.targets[k]), int(solver.reference[k])
        for c in range(solver.logits.size(1)):
            if (k, c) not in solver.priced:
                continue
            margin = -solver.alpha * solver.local[y, c][u]
            if margin - solver.slack[k, c] <= solver.tolerance + 1e-9:
                columns.append((k, c))
    return columns


def _values(
    solver: Solver, columns: list[tuple[int, int]]
) -> tuple[Tensor, Tensor, Tensor]:
    # The multipliers, the largest scores with these prices, and shares.
    moves, horizon = solver.perturbations, solver.horizon
    k, against = torch.tensor(columns).t()
    known = [solver.priced[pair] for pair in columns]
    signal = solver.signal(k, against)
    upper = torch.stack([proof.upper for proof in known])
    multipliers = signal.new_tensor([proof.multiplier for proof in known])
    values = signal.new_zeros(signal.shape)
    shares = signal.new_zeros((0, 0))
    for cost in dict.fromkeys(proof.cost for proof in known):
        which = torch.tensor([proof.cost == cost for proof in known])
        which = which.nonzero().view(-1)
        split = None
        if solver.is_priced and cost == 'pagerank':
            dual = solver.dual(k[which], against[which], upper[which], cost)
            multipliers[which], split = dual.multiplier, dual.shares
            # Floats whose sum is below one, as the checker adds them.
            found = torch.cat(list(split), 1) * (1 - 2**-48)
            shares = signal.new_zeros((len(columns), found.size(1)))
            shares[which] = found
        if horizon.K is not None:
            continue
        for block in moves.column_blocks(which.numel()):
            mine = which[block]
            part = split and type(split)(*(part[block] for part in split))
            paid = flip_costs(
                moves, upper[mine], multipliers[mine], cost, part
            )
            best = horizon.maximize(moves, signal[mine], **paid)
            values[mine] = solver.alpha * (best.value + best.high[:, None])
    if horizon.K is not None:
        return multipliers, values[:0], shares
    return multipliers, _rounded(solver, values), shares
