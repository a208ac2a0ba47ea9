"""What the benchmarks share: graphs, interleaved timing, floor, results."""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import coalesce, to_undirected


def power_law(
    num_nodes: int, num_edges: int, exponent: float = 2.5, seed: int = 0
) -> Tensor:
    """An undirected Chung-Lu graph with power-law degrees and random ids.

    Args:
        num_nodes (int): the number of nodes.
        num_edges (int): about the number of directed edges.
        exponent (float): of the degree distribution. (default: :obj:`2.5`)
        seed (int): the seed. (default: :obj:`0`)

    Returns:
        Tensor: the ``edge_index``, without duplicates and self-loops.
    """
    generator = torch.Generator().manual_seed(seed)
    rank = torch.arange(1, num_nodes + 1, dtype=torch.float64)
    cumulative = rank.pow(-1 / (exponent - 1)).cumsum(0)
    # Duplicates and self-loops are lost: draw some more.
    points = torch.rand(
        2, int(num_edges * 0.52), generator=generator, dtype=torch.float64
    )
    edge_index = torch.searchsorted(cumulative, points * cumulative[-1])
    ids = torch.randperm(num_nodes, generator=generator)
    edge_index = ids[edge_index.clamp_(max=num_nodes - 1)]
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    return coalesce(to_undirected(edge_index, num_nodes=num_nodes))


def block_model(
    num_nodes: int,
    num_edges: int,
    num_blocks: int = 20,
    inside: float = 0.6,
    exponent: float = 3.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """An undirected degree-corrected block model with random ids.

    Args:
        num_nodes (int): the number of nodes.
        num_edges (int): about the number of directed edges.
        num_blocks (int): the number of blocks, of equal size.
            (default: :obj:`20`)
        inside (float): the share of edges that stay in their block by choice;
            the others end anywhere. (default: :obj:`0.6`)
        exponent (float): of the degree distribution. (default: :obj:`3.0`)
        seed (int): the seed. (default: :obj:`0`)

    Returns:
        tuple[Tensor, Tensor]: the ``edge_index``, without duplicates and
        self-loops, and the block of each node.
    """
    generator = torch.Generator().manual_seed(seed)
    # Nodes in the order of their blocks, with weights of a power law in each.
    block = torch.arange(num_nodes) * num_blocks // num_nodes
    start = torch.searchsorted(block, torch.arange(num_blocks + 1))
    rank = torch.arange(num_nodes) - start[block] + 1
    ends = rank.double().pow(-1 / (exponent - 1)).cumsum(0)
    border = torch.cat([ends.new_zeros(1), ends])[start]

    def draw(low: Tensor, high: Tensor) -> Tensor:
        at = torch.rand(low.shape, generator=generator, dtype=torch.float64)
        found = torch.searchsorted(ends, low + at * (high - low))
        return found.clamp_(max=num_nodes - 1)

    count = int(num_edges * 0.51)
    source = draw(torch.zeros(count).double(), ends[-1].expand(count))
    stay = torch.rand(count, generator=generator) < inside
    home = block[source]
    target = draw(
        border[home].where(stay, border[0]),
        border[home + 1].where(stay, border[-1]),
    )
    ids = torch.randperm(num_nodes, generator=generator)
    edge_index = ids[torch.stack([source, target])]
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    blocks = torch.empty_like(block)
    blocks[ids] = block
    edge_index = coalesce(to_undirected(edge_index, num_nodes=num_nodes))
    return edge_index, blocks


def grid(num_nodes: int, seed: int = 0) -> Tensor:
    """A square grid, which mixes slowly, with random ids.

    Args:
        num_nodes (int): about the number of nodes.
        seed (int): the seed. (default: :obj:`0`)

    Returns:
        Tensor: the ``edge_index``.
    """
    generator = torch.Generator().manual_seed(seed)
    side = int(num_nodes**0.5)
    ids = torch.randperm(side * side, generator=generator).view(side, side)
    right = torch.stack([ids[:, :-1].reshape(-1), ids[:, 1:].reshape(-1)])
    down = torch.stack([ids[:-1].reshape(-1), ids[1:].reshape(-1)])
    return to_undirected(torch.cat([right, down], 1))


def synchronize() -> None:
    """Waits for all GPUs that are in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def bandwidth(device: torch.device | str) -> float:
    """The bytes per second that a copy on the device reads and writes.

    Args:
        device (torch.device or str): the CPU or a GPU.
    """
    source = torch.ones(2**27 if str(device) != 'cpu' else 2**25).to(device)
    target = torch.empty_like(source)
    seconds, _ = interleaved({'copy': lambda: target.copy_(source)}, 10)
    return 2 * source.numel() * source.itemsize / seconds['copy']


def interleaved(
    methods: dict[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    summary: Callable[[list[float]], float] = median,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Runs the methods in turn, after a warm-up.

    Args:
        methods (dict): what to run, by name.
        repeats (int): how often.
        clock (callable): :func:`time.process_time` for methods on one thread
            of a busy machine. (default: :func:`time.perf_counter`)
        summary (callable): of the seconds of a method; :func:`min` is the
            run that others disturbed least. (default: the median)

    Returns:
        tuple[dict, dict]: the seconds, and the last result, by name.
    """
    results = {name: method() for name, method in methods.items()}
    synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = clock()
            results[name] = method()
            synchronize()
            seconds[name].append(clock() - start)
    return {name: summary(runs) for name, runs in seconds.items()}, results


def one_and_two_threads(
    runs: dict[str, Callable[[], Any]],
    repeats: int,
    threads: int,
    summary: Callable[[list[float]], float] = median,
) -> dict[str, float]:
    """Wall seconds of each method by one thread and by two, interleaved.

    Args:
        runs (dict): what to run, by name.
        repeats (int): how often.
        threads (int): how many threads torch has afterwards.
        summary (callable): as in :func:`interleaved`.
            (default: the median)

    Returns:
        dict: by name and number: ``'exact 1'``, ``'exact 2'``, ...
    """

    def with_threads(count: int, run: Callable[[], Any]) -> None:
        torch.set_num_threads(count)
        run()

    methods: dict[str, Callable[[], Any]] = {
        f'{name} {count}': partial(with_threads, count, run)
        for name, run in runs.items()
        for count in (1, 2)
    }
    seconds, _ = interleaved(methods, repeats, summary=summary)
    torch.set_num_threads(threads)
    return seconds


def result(
    what: str, reached: float, target: float, *, at_most: bool = False
) -> None:
    """Prints a figure beside its target; `all.py` collects them.

    Args:
        what (str): what was measured, with its unit unless it is a ratio.
        reached (float): the figure of this run.
        target (float): what it is meant to be at least.
        at_most (bool): whether it is meant to be at most that instead.
            (default: :obj:`False`)
    """
    reached = float(reached)  # numpy's are no numbers of JSON
    met = reached <= target if at_most else reached >= target
    sign = '<=' if at_most else '>='
    print(
        f'{"met   " if met else "MISSED"} {what}: {reached:.4g} '
        f'({sign} {target:g})',
        flush=True,
    )
    if 'PYG_TRUST_RESULTS' in os.environ:
        line = [what, reached, f'{sign} {target:g}', met]
        with Path(os.environ['PYG_TRUST_RESULTS']).open('a') as file:
            file.write(json.dumps(line) + '\n')
