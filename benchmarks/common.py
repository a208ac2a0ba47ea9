"""What the benchmarks share: graphs, interleaved timing and its floor."""

import time
from collections.abc import Callable
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
    methods: dict[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Runs the methods in turn, after a warm-up.

    Args:
        methods (dict): what to run, by name.
        repeats (int): how often.

    Returns:
        tuple[dict, dict]: the median seconds, and the last result, by name.
    """
    results = {name: method() for name, method in methods.items()}
    synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            results[name] = method()
            synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(runs) for name, runs in seconds.items()}, results
