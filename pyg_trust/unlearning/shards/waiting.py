r"""The waiting time of batched removals, and the cost of immediate ones.

A flush of :math:`k` requests trains every touched shard once, and runs all
models and the aggregator once, so requests that wait for one another share
that. Of requests at a rate :math:`r` (Poisson), each for one random training
node, a flush every :math:`T` costs on average

.. math::
    \operatorname{E} C = \sum_{s=1}^S \sum_{q=1}^R c_{sq} \bigl(1 - e^{-r T f_q
    / S}\bigr) + \bigl(1 - e^{-r T}\bigr) h ,

:math:`c_{sq}` the cost of stage :math:`q` of shard :math:`s` (one stage with
:math:`f = 1` without slices) and :math:`h` that of all else. It is concave in
:math:`T` with value 0 at 0: the cost per time falls with the wait, and the
longest wait that is allowed is the cheapest policy.

**The queue is not forgetting.** Until a flush, predictions come from models
that hold what was asked to be forgotten.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyg_trust._checks import Positive, validated
from pyg_trust.report import Report

ASSUMED = (
    'requests come at random times, each for one training node, shards are '
    'of equal size',
    'what parts cost is what each took last',
)


@dataclass(frozen=True)
class BatchPlan(Report):
    """The cost of batching removal requests, by the longest wait.

    Args:
        rate (float): requests per second.
        max_wait (float): the longest a request may wait, in seconds.
        waits (tuple[float, ...]): seconds between flushes: the longest, half
            and a quarter of it, and 0 for a removal at once.
        requests (tuple[float, ...]): how many a flush has on average, if it
            has any.
        seconds_per_request (tuple[float, ...]): of computing, on average.
        load (tuple[float, ...]): seconds of computing per second.
        flushes (tuple[float, ...]): the share of intervals with a flush; 1
            for a removal at once.
        assumptions (tuple[str, ...]): what the estimates rest on.
    """

    rate: float
    max_wait: float
    waits: tuple[float, ...]
    requests: tuple[float, ...]
    seconds_per_request: tuple[float, ...]
    load: tuple[float, ...]
    flushes: tuple[float, ...]
    assumptions: tuple[str, ...]


@validated
def batch_plan(
    stage_seconds: Sequence[Sequence[float]],
    shares: Sequence[float],
    rest: float,
    rate: Positive,
    max_wait: Positive,
) -> BatchPlan:
    """Compare the costs of flushing after the longest wait, earlier, at once.

    Args:
        stage_seconds (list): of every stage of every shard.
        shares (list[float]): of the stages, cumulative, the last 1.
        rest (float): seconds of all else that a flush takes.
        rate (float): requests per second.
        max_wait (float): in seconds.
    """
    count = len(stage_seconds)
    costs = [
        (seconds, share / count)
        for shard in stage_seconds
        for seconds, share in zip(shard, shares, strict=bool(shard))
    ]
    waits = (max_wait, max_wait / 2, max_wait / 4, 0.0)
    requests, per_request, flushes = [], [], []
    for wait in waits:
        mean = rate * wait
        if wait == 0:
            some, cost, mean = 1.0, sum(c * f for c, f in costs) + rest, 1.0
        else:
            some = -math.expm1(-mean)
            cost = -sum(c * math.expm1(-mean * f) for c, f in costs)
            cost += some * rest
        requests.append(mean / some)
        per_request.append(cost / mean)
        flushes.append(some)
    return BatchPlan(
        rate=float(rate),
        max_wait=float(max_wait),
        waits=waits,
        requests=tuple(requests),
        seconds_per_request=tuple(per_request),
        load=tuple(rate * cost for cost in per_request),
        flushes=tuple(flushes),
        assumptions=ASSUMED,
    )
