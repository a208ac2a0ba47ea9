"""Certificates of models that are linear in personalized PageRank."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_trust._checks import (
    Fraction,
    NodeIds,
    NotNegative,
    check_choice,
    check_nodes,
    check_range,
    check_tensor,
    validated,
)
from pyg_trust._moved import renamed
from pyg_trust.certificates.any_model import certifies
from pyg_trust.certificates.certificate import (
    BROKEN,
    ROBUST,
    UNKNOWN,
    Certificate,
)
from pyg_trust.certificates.deployed import Deployed, diffuse_steps
from pyg_trust.certificates.solver import Solver
from pyg_trust.certificates.threat import ThreatModel
from pyg_trust.certificates.witness import MOST_BYTES, Witness
from pyg_trust.distributed import check_same
from pyg_trust.graph.ragged import pointer
from pyg_trust.report import (
    fingerprint,
    fingerprint_data,
    fingerprint_model,
    provenance,
)

__all__ = ['certify_pagerank']

METHODS = ('auto', 'dual', 'lp', 'exact')
# Costs of a flip, by their number in a witness.
_COSTS = ('pagerank', 'visits')


@certifies(ThreatModel)
@renamed(targets='nodes', tolerance='tol')
@validated
def certify_pagerank(
    model: Any,
    data: Any,
    threat: ThreatModel,
    *,
    alpha: Fraction | None = None,
    nodes: NodeIds | None = None,
    reference: Tensor | None = None,
    method: str = 'auto',
    sign_only: bool = False,
    tol: NotNegative = 1e-9,
    over_ranks: bool = False,
) -> Certificate:
    r"""Certify the classes of a personalized PageRank model, if edges flip.

    Such a model predicts :math:`\arg\max_c (\Pi H)_{v, c}` at node :math:`v`,
    with the PageRank matrix :math:`\Pi` and logits :math:`H`. Examples are
    :class:`~pyg_trust.nn.PPNP`, label and feature propagation, and models that
    end in PyG's ``APPNP``. The certificate accounts for the number of steps,
    normalization, self-loops and rounding errors.

    The status of every node is exact for directed flips without a global
    budget, if the model has infinitely many steps. Otherwise margins are
    bounded, and attacks are searched at nodes that remain unknown.

    Args:
        model (PageRankDiffusion or Tensor): the deployed model; or :math:`H`,
            the logits **before** propagation, ``[num_nodes, num_classes]``.
        data (Data, optional): the input of the model; :obj:`None` with logits.
            For label propagation it has ``y``, and may have ``train_mask``.
        threat (ThreatModel): the attacker.
        alpha (float, optional): the teleport probability, for logits alone (a
            model has its own); by default 0.15. (default: :obj:`None`)
        nodes (Tensor, optional): the nodes to certify, int64 indices or a bool
            mask; by default all. (default: :obj:`None`)
        reference (Tensor, optional): the class that each node has to keep,
            int64, ``[num_nodes]``; by default the predicted one.
        method (str): how to treat a global budget: :obj:`'dual'` (bounds and
            attacks), :obj:`'lp'` (a linear program, by cvxpy), :obj:`'exact'`
            (try every graph) or :obj:`'auto'`. (default: :obj:`'auto'`)
        sign_only (bool): whether bounds are refined only until their sign is
            known, which is many times faster. (default: :obj:`False`)
        tol (float): a margin of at most this counts as unknown.
        over_ranks (bool): whether the processes of torchrun share the work.

    Returns:
        Certificate: bounds, status and witnesses.

    Raises:
        ValueError: if the model does not end in PageRank, :obj:`data` has
            another graph than the threat, or logits or method don't fit.
    """
    if over_ranks:
        given = {**locals(), 'threat': _parts(threat)}
        del given['over_ranks']
        check_same(given)
    targets = torch.arange(threat.num_nodes)
    if nodes is not None:
        # A copy: the caller may change the tensor after the report.
        targets = check_nodes('nodes', nodes, threat.num_nodes).cpu().clone()
    if isinstance(model, Tensor):
        if data is not None:
            raise TypeError(
                "'data' needs to be left out with logits: "
                'certify(logits, threat)'
            )
        alpha = 0.15 if alpha is None else alpha
        deployed = Deployed.of_logits(model, alpha, threat.graph)
    else:
        deployed = Deployed.of_model(model, data, threat)
        if alpha is not None:
            raise ValueError(
                "'alpha' goes with logits alone: a model has its own teleport "
                f'probability (got {alpha}); a failure rate of {alpha:g} is '
                f'confidence={1 - alpha:g}, with a threat of BitFlips'
            )
    check_choice('method', method, METHODS)
    if method == 'lp' and (
        deployed.K is not None or deployed.normalization != 'rw'
    ):
        raise ValueError(
            "'method' can be 'lp' for the limit of row-normalized steps alone "
            f'(got K={deployed.K}, {deployed.normalization!r})'
        )
    predicted = deployed.predicted
    if predicted is None:
        predicted = diffuse_steps(threat.graph, deployed).argmax(1)
    held = predicted
    if reference is not None:
        check_tensor('reference', reference, torch.int64, (threat.num_nodes,))
        check_range(
            'reference', reference, deployed.logits.size(1), 'the classes'
        )
        held = reference.cpu()
    solver = Solver(
        *(deployed, threat, targets, held[targets], tol, over_ranks)
    )
    return _report(
        solver,
        predicted[targets],
        method=solver.solve(method, sign_only),
        provenance=provenance(
            threat=repr(threat),
            model=repr(deployed),
            method=method,
            sign_only=sign_only,
            tolerance=tol,
        ),
        weights_sha256=fingerprint_model(model.state_dict())
        if isinstance(model, Module)
        else '',
        data_sha256=fingerprint_data(data) if isinstance(data, Data) else '',
    )


def _report(solver: Solver, predicted: Tensor, **fields: Any) -> Certificate:
    threat, deployed, slack = solver.threat, solver.deployed, solver.slack
    perturbations = solver.perturbations
    status = torch.full_like(solver.targets, UNKNOWN, dtype=torch.int8)
    # The deployed scores are off by roundoff of their own.
    class_margins = solver.lower - slack
    lower, upper = class_margins.amin(1), solver.upper + slack.amax(1)
    status[lower > solver.tolerance] = ROBUST
    status[upper < -solver.tolerance] = BROKEN
    flips = solver.witnesses
    counts = [pairs.size(1) for pairs in flips]
    empty = torch.zeros((2, 0), dtype=torch.int64)
    scale = float(deployed.logits.abs().max())
    width = solver.upper - solver.lower.amin(1)
    proof, digest = witness_of(solver)
    return Certificate(
        num_robust=int((status == ROBUST).sum()),
        num_broken=int((status == BROKEN).sum()),
        num_unknown=int((status == UNKNOWN).sum()),
        model=deployed.name,
        scenario=threat.scenario,
        undirected=threat.undirected,
        global_budget=threat.global_budget,
        alpha=deployed.alpha,
        K=deployed.K,
        normalization=deployed.normalization,
        self_loops=deployed.self_loops,
        dtype=deployed.kind,
        exact=bool((width <= 1e-6 * max(scale, 1e-300)).all()),
        tolerance=float(solver.tolerance),
        roundoff=float(slack.max()) if slack.numel() else 0.0,
        run_sha256=fingerprint(
            *(deployed.logits, deployed.alpha, deployed.K),
            *(deployed.normalization, str(deployed.self_loops)),
            *(deployed.kind, *_parts(threat)),
            solver.reference,
            solver.targets,
            perturbations.graph.num_edges,
        ),
        model_sha256=deployed.digest,
        targets=solver.targets,
        reference=solver.reference,
        predicted=predicted,
        status=status,
        lower=lower,
        upper=upper,
        class_margins=class_margins,
        local_budget=threat.local_budget,
        flips=torch.cat([empty, *flips], dim=1),
        flips_ptr=torch.tensor([0, *counts]).cumsum(0),
        flips_of=solver.witness_of,
        assumptions=deployed.assumptions,
        fixed_edges=int((~perturbations.removable).sum()),
        proof=proof,
        witness_digest=digest,
        **fields,
    )


def _parts(threat: ThreatModel) -> list[Any]:
    # What a threat consists of.
    return [
        threat.graph.rowptr,
        threat.graph.col,
        threat.perturbations.removable,
        threat.perturbations.pairs,
        str(threat.perturbations.all_pairs),
        threat.local_budget,
        threat.global_budget,
        str(threat.undirected),
    ]


def witness_of(solver: Solver) -> tuple[Witness | None, str]:
    """Collect the arrays that prove the status; or say why there are none."""
    perturbations, deployed = solver.perturbations, solver.deployed
    if solver.targets.numel() == 0:
        return None, 'none: there are no targets'
    limit, n = deployed.K is None, perturbations.num_nodes
    columns = _columns(solver)
    known = [solver.priced[pair] for pair in columns]
    names = {each.cost for each in known}
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
    if max(size, -solver.room) > MOST_BYTES or not names <= {*solver.vectors}:
        return None, f'none: {size / 2**20:.0f} MiB were left out'
    none = torch.zeros((0, n), dtype=torch.float64)
    scores, values, shares = none, none, none.new_zeros((0, 0))
    if limit:
        scores = _rounded(
            solver, torch.stack(list(solver.local.values())) * solver.alpha
        )
        proofs = [x.proof for x in known if x.proof is not None]
        values = _rounded(solver, torch.stack(proofs)) if proofs else none
    if solver.is_priced and shared:
        # Floats whose sum is below one, as the checker adds them.
        shares = none.new_zeros((len(known), prices))
        for i, x in enumerate(known):
            if x.shares is not None:
                shares[i] = x.shares * (1 - 2**-48)
    rows = [row for row, _ in charged]
    upper = none.new_zeros((len(known), len(charged)))
    for i, x in enumerate(known):
        upper[i] = x.upper[rows]
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
            [
                (*p, _COSTS.index(x.cost))
                for p, x in zip(columns, known, strict=True)
            ],
            3,
        ),
        'multipliers': none.new_tensor([x.multiplier for x in known]),
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


def _table(rows: list[Any], width: int) -> Tensor:
    table = torch.tensor(rows, dtype=torch.int64).view(-1, width)
    return table.t().contiguous()


def _columns(solver: Solver) -> list[tuple[int, int]]:
    # Pairs of a robust target and a class that local bounds leave open.
    robust = ~solver.open_pairs().any(1)
    columns = []
    for k in robust.nonzero().view(-1).tolist():
        u, y = int(solver.targets[k]), int(solver.reference[k])
        for c in range(solver.logits.size(1)):
            found = solver.priced.get((k, c))
            if found is None or found.proof is None:
                continue
            margin = -solver.alpha * solver.local[y, c][u]
            if margin - solver.slack[k, c] <= solver.tolerance + 1e-9:
                columns.append((k, c))
    return columns
