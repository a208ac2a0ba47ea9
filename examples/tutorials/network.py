"""The small social network of the tutorials and the quickstart."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_trust import rng

NUM_TRAIN = 1_200  # people whose digit is known


def social_network(seed: int, friends: int = 8, alike: float = 0.6) -> Data:
    """The digits, and friendships that were not made from the images.

    The privacy of features does not cover a graph that was made from them, as
    that of nearest neighbours is.
    """
    images, label = load_digits(return_X_y=True)
    y = torch.from_numpy(label).long()
    generator = rng.generator(seed)

    def draw() -> Tensor:
        return torch.rand(one.numel(), generator=generator)

    one = torch.arange(y.numel()).repeat_interleave(friends // 2)
    by_digit, count = y.argsort(stable=True), y.bincount()
    first = (count.cumsum(0) - count)[y[one]]
    same = by_digit[first + (draw() * count[y[one]]).long()]
    anyone = (draw() * y.numel()).long()
    other = torch.where(draw() < alike, same, anyone)
    edge_index = torch.stack([one, other])[:, one != other]
    train_mask = torch.zeros(y.numel(), dtype=torch.bool)
    known = torch.randperm(y.numel(), generator=generator)[:NUM_TRAIN]
    train_mask[known] = True
    return Data(
        x=torch.from_numpy(images).float() / 16,
        y=y,
        edge_index=to_undirected(edge_index, num_nodes=y.numel()),
        train_mask=train_mask,
    )


def accuracy(out: Tensor, data: Data) -> float:
    """The share of the other people whose digit is predicted right."""
    right = out.argmax(1) == data.y
    return right[~data.train_mask].float().mean().item()
