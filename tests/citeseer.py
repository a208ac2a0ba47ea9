"""CiteSeer, and what an attacker may change of it, as oracles have them."""

import numpy as np
import torch

from pyg_trust.graph import CSRGraph


def load(path):
    """The arrays of a file, as tensors."""
    file = np.load(path)
    return {name: torch.from_numpy(file[name]) for name in file.files}


def local_oracle(shared):
    """The graph, a mask of its fragile edges, and the oracle's tensors."""
    oracle = load(shared / 'oracles/certificates/local_citeseer.npz')
    graph = CSRGraph(oracle['adj_indptr'], oracle['adj_indices'])
    n = graph.num_nodes
    fragile = oracle['fragile_rem']
    fragile = torch.isin(
        graph.row * n + graph.col, fragile[:, 0] * n + fragile[:, 1]
    )
    return graph, fragile, oracle
