"""What pushes and walks are called with, and their random numbers."""

import numpy as np
import torch

from pyg_trust import rng
from pyg_trust.agp.propagation import push_levels
from pyg_trust.graph import CSRGraph


def push_arguments(graph, measure, x):
    """All that :func:`pyg_trust.ops.push` takes but thresholds and a seed."""
    graph = graph.with_self_loops() if measure.self_loops else graph
    _, ratio, keep = push_levels(measure)
    return {
        'graph': graph.push_graph(measure.a, x.dtype, measure.along),
        'receivers': graph.receivers(measure.along),
        'recv': graph.degree_power(-measure.a, x.dtype),
        'send': graph.degree_power(-measure.b, x.dtype),
        'x': x,
        'ratio': ratio,
        'keep': keep,
    }


def power_law(n, m, seed=0):
    """Undirected, with a hub that is linked to every third node."""
    generator = np.random.default_rng(seed)
    rank = (1 / np.arange(1, n + 1)) ** 0.6
    ends = generator.choice(n, (2, m), p=rank / rank.sum())
    spokes = np.arange(3, n, 3)
    hub = np.stack([np.zeros_like(spokes), spokes])
    edges = torch.from_numpy(np.concatenate([ends, hub], axis=1))
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.cat([edges, edges.flip(0)], 1)
    return CSRGraph.from_edge_index(edges, n, duplicates='merge')


def close(got, wanted, tolerance):
    """Up to rounding, relative to the largest value of all."""
    scale = wanted.double().abs().max().item() + 1e-300
    error = (got.cpu().double() - wanted.double()).abs().max().item()
    return error <= tolerance * scale


class Stream:
    """The stream of a key, as csrc/rng.h has it."""

    def __init__(self, *items):
        self.key, self.counter = items[0], 0
        for item in items[1:]:
            self.key = rng._mix(self.key ^ rng._mix(item))

    def uniform(self):
        step = self.counter * 0x9E3779B97F4A7C15
        word = rng._mix((self.key + step) % 2**64)
        self.counter += 1
        return (word >> 11) * 2.0**-53

    def below(self, count):
        return int(self.uniform() * count)
