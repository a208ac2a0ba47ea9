"""Where pushing a level costs what doing it exactly costs, on a device.

`propagate` pushes a level where it expects that to cost less than PULL_ABOVE
(agp/propagation.py) times an exact one, in units of csrc/push.h that
were measured on a CPU. Here one level of 64 columns is pushed, of signals on
fewer and fewer nodes. `cost` is what the kernel expects, by bisection of the
limit at which it stops pushing, `ms` what it takes. The line through them says
at which cost both take the same time: that is PULL_ABOVE for this device. If
pushing is slower at every cost, it prints 0.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from common import power_law, synchronize
from torch import Tensor

from pyg_trust import ops
from pyg_trust.graph import CSRGraph


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The fastest of some runs."""
    run()
    best = math.inf
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def cost_of(push: Callable[[float], Any]) -> float:
    """The limit, in exact levels, above which a level is pushed."""
    low, high = 0.0, 1024.0
    for _ in range(40):
        middle = (low + high) / 2
        pushed = int(push(middle)[1].sum()) > 0
        low, high = (low, middle) if pushed else (middle, high)
    return high


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--num_nodes', type=int, default=200_000)
    parser.add_argument('--columns', type=int, default=64)
    parser.add_argument('--repeats', type=int, default=5)
    args = parser.parse_args()
    n = args.num_nodes
    graph = CSRGraph.from_edge_index(power_law(n, 10 * n), n).to(args.device)
    dtype = torch.float32
    power = graph.degree_power(-0.5, dtype)
    x = torch.rand(n, args.columns, device=args.device)
    place = torch.rand(n, 1, device=args.device)
    fixed: dict[str, Any] = {
        'graph': graph.push_graph(0.5, dtype),
        'receivers': graph.receivers(),
        'recv': power,
        'send': power,
        'ratio': torch.tensor([0.5], dtype=torch.float64),
        'keep': torch.tensor([0.5, 1.0], dtype=torch.float64),
        'seed': 0,
    }

    def push(limit: float, there: Tensor) -> Any:
        return ops.push(**fixed, x=there, eps=quanta, pull_above=limit)

    quanta = torch.full((args.columns,), 0.1, device=args.device)
    exact = seconds(partial(push, 0.0, x), args.repeats)
    print(f'{torch.get_num_threads()} threads, {args.device}')
    print(f'an exact level: {1e3 * exact:.2f} ms')
    print(f'{"density":>8}{"cost":>10}{"ms":>10}')
    costs, times = [], []
    for density in (0.3, 0.1, 0.03, 0.01, 0.003):
        run = partial(push, there=x * (place < density))
        taken = seconds(partial(run, math.inf), args.repeats)
        cost = cost_of(run)
        costs.append(cost)
        times.append(taken)
        print(f'{density:>8g}{cost:>10.4f}{1e3 * taken:>10.2f}', flush=True)
    slope, start = np.polyfit(costs, times, 1)
    even = max(0.0, (exact - start) / slope) if slope > 0 else 0.0
    print(f'both take the same time at cost {even:.3f}: PULL_ABOVE')


if __name__ == '__main__':
    main()
