"""Checks of removals: recompute numbers of a report from others.

How large the residual is can't be seen: it is a function of the data that
remain and of weights that are in no report. All that follows from its bound
is checked; and the bound itself where somebody hands in both.
"""

import math
from typing import Any

from ..verify import removal as kernel
from ..verify.accounting import judge_mu
from ..verify.chain import Chain
from ..verify.claims import amount, count, number, same
from ..verify.fields import ROWS
from .answers import FAILS, HOLDS, UNKNOWN, UNPROVED, Checks, Stated, requests
from .epsilon import together

NODES = ROWS[0]
GRAPHS = 'certified removal'
COVERED = 'removal covered by privacy'


def check_removal(each: Stated) -> Checks:
    """Check the fields of a removal for consistency.

    Returns:
        iterator: a status and a text for every check.
    """
    values = each.values
    if each.procedure == COVERED:
        for mu, epsilon in (('mu', 'epsilon'), ('budget', 'target_epsilon')):
            room = 1 + 1e-9 * (mu == 'budget')
            moved = together([amount(mu, values[mu])])
            claimed = number(epsilon, values[epsilon]) * room
            delta = number('delta', values['delta'])
            yield judge_mu(moved, claimed, delta), f'{epsilon}: of its {mu}'
        return
    if each.procedure not in (*ROWS, GRAPHS):
        yield (
            UNKNOWN,
            'that what remains makes these weights: train again, or call '
            'verify()',
        )
        return
    if values['noise'] == 'objective':
        yield (
            UNPROVED,
            'epsilon: it assumes a theorem that does not hold in general',
        )
        return
    if values['noise'] != 'output':
        yield FAILS, f'no removal has noise of the kind {values["noise"]!r}'
        return
    yield from _epsilons(values, *_shifts(each))
    if each.procedure != NODES:
        yield UNKNOWN, f'{kernel.RESIDUAL}: verify() measures it'


def _shifts(each: Stated) -> tuple[float, list[float]]:
    # The largest shift over noise that the budget allows, and those of all
    # releases; of nodes they are in shares, and the budget of gradients.
    values = each.values
    shares = [amount('history', share) for share in values['history']]
    limit = number('budget', values['budget'], above=0.0)
    if each.procedure not in ROWS:
        return limit, shares
    for name in ('release_std', 'lam'):
        limit /= number(name, values[name], above=0.0)
    limit /= count('num_train', values['num_train'], 1)
    return limit, [share * limit for share in shares]


def _epsilons(
    values: dict[str, Any], limit: float, shifts: list[float]
) -> Checks:
    delta = number('delta', values['delta'])
    std = number('release_std', values['release_std'], above=0.0)
    last = max(values['distance_bound'] / std, *shifts[-1:])
    for name, what, parts in (
        ('epsilon', 'this release', [last]),
        ('epsilon_transcript', f'all {len(shifts)} releases', shifts),
        ('target_epsilon', 'the largest that the budget allows', [limit]),
    ):
        claimed = number(name, values[name])
        shift = math.hypot(*parts)
        # Budgets are searched for, from below, and kept to twelve digits.
        room = 1 + 1e-9 if name == 'target_epsilon' else 1.0
        yield (
            judge_mu(together(parts), claimed * room, delta),
            f'{name}: {claimed:.6g} is claimed at delta {delta:g} of {what}, '
            f'a shift of {shift:.6g} of the noise',
        )


def check_proof(each: Stated, arrays: dict[str, Any], lists: bool) -> Checks:
    """Prove a removal's residual from the remaining data, or its shift."""
    kind = COVERED if lists else NODES
    claimed = {**each.values, 'data': each.data, 'model': each.model}
    if each.procedure != kind:
        yield UNKNOWN, f'data: they are of a {kind}'
        return
    if lists:
        yield from kernel.compare_covered(arrays, claimed)
        return
    paid = _shifts(each)[1][-1]
    yield from kernel.compare(arrays, claimed, paid)


def unbroken(chain: Chain) -> tuple[str, str]:
    """Tell whether the ledger's hash chain is unbroken."""
    if chain.broken:
        return FAILS, f'ledger: line {chain.broken} was changed'
    return HOLDS, 'ledger: the chain of its lines is unbroken'


def check_ledger(each: Stated, chain: Chain, budget: Any) -> Checks:
    """Compare a removal with its ledger's lines."""
    if each.kind != 'removal' or 'request' not in each.values:
        if each.values.get('ledger_head') is not None:
            yield UNKNOWN, 'ledger: the file is of another procedure'
        return
    request, budget = requests(each.values), amount('budget', budget)
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
        and line['data'] == each.data
    ]
    if not matching or not each.data:
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
    alike = head == chain.links[end - 1]
    yield (
        (HOLDS if alike else FAILS) if head else UNPROVED,
        'ledger: up to this removal it has the lines that the report was '
        f'made from: {alike}',
    )
    before = ['', *(line['data'] for line in chain.bodies)][end - 1]
    if each.values.get('before', before) != before:
        yield FAILS, 'ledger: the line before it seals other lists'
    if each.values.get('history') is None:
        return
    # By the budget that the report claims: no line seals the ledger's.
    shifts = _shifts(each)[1]
    alike = len(shifts) == end and all(map(same, paid, shifts))
    yield (
        HOLDS if alike else FAILS,
        f'ledger: its amounts are {"" if alike else "not "}those of the '
        'releases that the report counts',
    )
