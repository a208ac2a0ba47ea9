"""The graphs of the two AGP examples: by name, or generated."""

from pathlib import Path

import numpy as np
import torch
import torch_geometric.datasets
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

HELP = (
    "'generated', a PyG dataset ('Planetoid:Cora', 'CitationFull:Cora_ML', "
    "'Reddit'), or 'MUSAE:facebook' and the like, an .npz file in --root"
)


def load(dataset: str, root: str, num_nodes: int, seed: int = 0) -> Data:
    """A graph by name: undirected, without self-loops.

    Args:
        dataset (str): see HELP.
        root (str): the folder of the data.
        num_nodes (int): of a generated graph.
        seed (int): of a generated graph. (default: :obj:`0`)
    """
    kind, _, name = dataset.partition(':')
    if kind == 'generated':
        data = generate(num_nodes, seed)
    elif kind == 'MUSAE':
        data = read_musae(Path(root) / f'{name}.npz')
    else:
        make = getattr(torch_geometric.datasets, kind)
        data = (make(root, name) if name else make(root))[0]
    edge_index, _ = remove_self_loops(data.edge_index)
    data.edge_index = to_undirected(edge_index, num_nodes=data.num_nodes)
    return data


def generate(
    num_nodes: int,
    seed: int,
    *,
    mean_degree: float = 10,
    classes: int = 10,
    features: int = 64,
    exponent: float = 3.0,
) -> Data:
    """A block model with power-law degrees and noisy features."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_nodes) * classes // num_nodes
    start = torch.searchsorted(y, torch.arange(classes + 1))
    rank = torch.arange(num_nodes) - start[y] + 1
    ends = rank.double().pow(-1 / (exponent - 1)).cumsum(0)
    border = torch.cat([ends.new_zeros(1), ends])[start]
    count = int(num_nodes * mean_degree / 2)

    def draw(low: Tensor, high: Tensor) -> Tensor:
        at = torch.rand(count, generator=generator, dtype=torch.float64)
        found = torch.searchsorted(ends, low + at * (high - low))
        return found.clamp_(max=num_nodes - 1)

    source = draw(border[:1], border[-1:])
    stay = torch.rand(count, generator=generator) < 0.6
    target = draw(
        border[y[source]].where(stay, border[0]),
        border[y[source] + 1].where(stay, border[-1]),
    )
    means = torch.randn(classes, features, generator=generator)
    noise = torch.randn(num_nodes, features, generator=generator)
    return Data(
        x=0.3 * means[y] + noise,
        y=y,
        edge_index=torch.stack([source, target]),
    )


def read_musae(path: Path) -> Data:
    """One of the MUSAE graphs."""
    with np.load(path) as file:
        y = torch.from_numpy(file['y']).long()
        data = Data(
            y=y,
            edge_index=torch.from_numpy(file['edges']).long().t(),
            num_nodes=y.numel(),
        )
        if 'x_indptr' in file:
            ptr = torch.from_numpy(file['x_indptr']).long()
            column = torch.from_numpy(file['x_indices']).long()
            row = torch.arange(y.numel()).repeat_interleave(ptr.diff())
            x = torch.zeros(y.numel(), int(file['num_features']))
            x[row, column] = 1
            data.x = x
    return data
