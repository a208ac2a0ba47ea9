"""Checks of removals: recompute numbers of a report from others.

How large the residual is can't be seen: it is a function of the data that
remain and of weights that are in no report. All that follows from its bound
is checked; and the bound itself where somebody hands in both.
"""

import math
from typing import Any

from ..verify import removal as kernel
from ..verify.accounting import judge_mu
from ..verify.chain import LISTED, Chain
from ..verify.claims import amount
from ..verify.claims_removal import ROWS
from ..verify.declare import alike
from .answers import FAILS, HOLDS, UNKNOWN, UNPROVED, Checks, Stated, requests
from .epsilon import together

__all__ = ['check_ledger', 'check_proof', 'check_removal', 'unbroken']

NODES = ROWS[0]
GRAPHS = 'certified removal'
COVERED = 'removal covered by privacy'


def check_removal(c: Any) -> Checks:
    """Prove the epsilons of a removal from its shifts."""
    if c.procedure == COVERED:
        # Budgets are searched for, from below, and kept to twelve digits.
        for name, mu, claimed in (
            ('mu', c.mu, c.epsilon),
            ('budget', c.budget, c.target_epsilon * (1 + 1e-9)),
        ):
            status = judge_mu(together([mu]), claimed, c.delta)
            yield status, f'{name}: {mu:.6g} makes epsilon {claimed:.6g}'
        return
    if c.procedure not in (*ROWS, GRAPHS):
        yield (
            UNKNOWN,
            'that what remains makes these weights: train again, or call '
            'verify()',
        )
        return
    if c.noise == 'objective':
        yield (
            UNPROVED,
            'epsilon: it assumes a theorem that does not hold in general',
        )
        return
    yield from _epsilons(c, *_shifts(c))
    if c.procedure != NODES:
        yield UNKNOWN, f'{kernel.RESIDUAL}: verify() measures it'


def _shifts(c: Any) -> tuple[float, list[float]]:
    # The largest ratio of shift to noise that the budget allows, and those of
    # all releases; of nodes they are in shares, and the budget of gradients.
    if c.procedure not in ROWS:
        return c.budget, c.history
    limit = c.budget / c.release_std / c.lam / c.num_train
    return limit, [share * limit for share in c.history]


def _epsilons(c: Any, limit: float, shifts: list[float]) -> Checks:
    last = max(c.distance_bound / c.release_std, *shifts[-1:])
    for name, what, parts in (
        ('epsilon', 'this release', [last]),
        ('epsilon_transcript', 'all releases', shifts),
        ('target_epsilon', 'the largest that the budget allows', [limit]),
    ):
        claimed = getattr(c, name)
        shift = math.hypot(*parts)
        # Budgets are searched for, from below, and kept to twelve digits.
        room = 1 + 1e-9 if name == 'target_epsilon' else 1.0
        yield (
            judge_mu(together(parts), claimed * room, c.delta),
            f'{name}: {claimed:.6g} at delta {c.delta:g} is claimed of '
            f'{what}, a shift of {shift:.6g} of the noise',
        )


def check_proof(
    c: Any, each: Stated, arrays: dict[str, Any], lists: bool
) -> Checks:
    """Prove a removal's residual from the remaining data, or its shift."""
    kind = COVERED if lists else NODES
    claimed = {
        **each.values,
        'data': each.data_sha256,
        'model': each.weights_sha256,
    }
    if each.procedure != kind:
        yield UNKNOWN, f'data: they are of a {kind}'
        return
    if lists:
        yield from kernel.compare_covered(arrays, claimed)
        return
    paid = _shifts(c)[1][-1]
    yield from kernel.compare(arrays, claimed, paid)


def unbroken(chain: Chain) -> tuple[str, str]:
    """Return whether the ledger's hash chain is unbroken."""
    if chain.broken:
        return FAILS, f'ledger: line {chain.broken} was changed'
    return HOLDS, 'ledger: the chain of its lines is unbroken'


def check_ledger(c: Any, each: Stated, chain: Chain, budget: float) -> Checks:
    """Compare a removal with its ledger's lines."""
    if each.kind != 'removal' or 'request' not in each.values:
        if each.values.get('ledger_head') is not None:
            yield UNKNOWN, 'ledger: the file is of another part of the report'
        return
    request = requests(each.values)
    yield unbroken(chain)
    paid = [amount('spent', line['spent']) for line in chain.bodies]
    within = sum(spent <= budget for spent in paid)
    yield (
        HOLDS if within == len(paid) else FAILS,
        f'ledger: {within} of {len(paid)} lines are within the budget',
    )
    matching = [
        number
        for number, line in enumerate(chain.bodies, 1)
        if line['request'] in (request, request.get('0'))
        and line['data'] == each.data_sha256
    ]
    if not matching or not each.data_sha256:
        yield (
            FAILS,
            'ledger: no line has this removal and seals the same data',
        )
        return
    end = matching[-1]
    yield (
        HOLDS,
        f'ledger: line {end} has this removal, and seals the same data',
    )
    head = each.values.get('ledger_head')
    same = head == chain.links[end - 1]
    yield (
        (HOLDS if same else FAILS) if head else UNPROVED,
        'ledger: up to this removal it has the lines that the report was '
        f'made from: {same}',
    )
    before = ['', *(line['data'] for line in chain.bodies)][end - 1]
    if each.values.get('before', before) != before:
        yield FAILS, 'ledger: the line before it seals other lists'
    if getattr(c, 'history', None) is None:
        return
    # By the budget that the report claims: no line seals the ledger's.
    listed = paid[:end][-LISTED:]
    if c.procedure == COVERED:
        listed[0] = 0.0
    elif end > LISTED:
        listed[0] = math.hypot(*paid[:end][: 1 - LISTED])
    same = alike(listed, _shifts(c)[1])
    yield (
        HOLDS if same else FAILS,
        f'ledger: its amounts are {"" if same else "not "}those of the '
        'releases that the report counts',
    )
