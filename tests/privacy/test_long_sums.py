"""Clipped gradients are no longer than the norm, however many numbers.

float32 loses what is added to a long sum, and always in one direction where
the numbers are alike. Somebody who knows chooses a model, or a subgraph, whose
norm comes out too small: what is clipped to it is longer than was paid for.
"""

import pytest
import references
import torch
from torch import nn
from torch_geometric.data import Data

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.mechanisms import row_norms


def exact_norm(tensors):
    return float(
        torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt()
    )


@pytest.mark.parametrize('value', [0.1, 0.3, 0.7, 1.1])
@pytest.mark.parametrize('length', [255, 256, 257, 10**4, 3 * 10**6 + 5])
def test_norms_of_long_rows_are_right(length, value):
    rows = torch.full((2, length), value)
    rows[1, 0] = 0.0
    wanted = rows.double().square().sum(1).sqrt()
    torch.testing.assert_close(
        row_norms(rows).double(), wanted, rtol=1e-6, atol=0
    )


class Bias(nn.Module):
    """Its gradient is the gradient of each node, added up."""

    def __init__(self, size):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x[:, :1] + self.bias


def clipped(model, owner, num, cotangent, x):
    return references.clipped(model, (x,), owner, cotangent, 1.0, num)[0]


def length(found):
    return exact_norm(found.integers.values()) * clip.grid(found.norm)


@pytest.mark.parametrize('value', [0.1, 0.3])
def test_wide_layers_are_clipped_to_the_norm(value):
    # A row that is a million times the same.
    model = nn.Linear(10**6, 1, bias=False)
    x = torch.full((1, 10**6), value)
    got = clipped(model, torch.zeros(1).long(), 1, torch.ones(1, 1), x)
    assert length(got) <= 1


@pytest.mark.parametrize('value', [0.1, 0.3])
def test_many_rows_of_a_subgraph_are_clipped_to_the_norm(value):
    rows = 10**5
    for model, width in ((Bias(3), 3), (nn.Linear(2, 3), 3)):
        x = torch.full((rows, 2), 1 / 3)
        got = clipped(
            model,
            torch.zeros(rows).long(),
            1,
            torch.full((rows, width), value),
            x,
        )
        assert length(got) <= 1


def test_a_step_adds_no_more_than_the_norm_to_the_last_bit():
    # Rounding alone makes about every other gradient a bit too long.
    torch.manual_seed(0)
    rows = torch.arange(40)
    data = Data(
        x=torch.randn(40, 50),
        y=rows % 3,
        edge_index=torch.stack([rows, (rows + 1) % 40]),
        train_mask=rows >= 0,
    )
    net, norm = nn.Linear(50, 3), 0.3
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-3),
        data_loader=DisjointWalkLoader(data, batch_size=1, walk_length=1),
        noise_multiplier=10.0,
        max_grad_norm=norm,
    )
    found = []
    for _, batch in zip(range(30), loader, strict=False):
        optimizer.zero_grad()
        out = model(batch.x)[: batch.batch_size]
        nn.functional.cross_entropy(1e3 * out, batch.y[:1]).backward()
        sums = engine._training_step()._sums
        found.append(exact_norm(sums) * clip.grid(norm))
        optimizer.step()
    # Somewhat less, as norms are rounded, and not much.
    assert max(found) <= norm
    assert max(found) >= norm * (1 - 1e-4)


def test_what_one_subgraph_adds_does_not_depend_on_the_others():
    # Neighbours differ in one subgraph of many: the sums as well, by no more
    # than the clipped gradients of both, whatever is lost on the way.
    num, each = 300, 40
    owner = torch.arange(num).repeat_interleave(each)
    x = torch.full((num * each, 2), 1 / 3)
    cotangent = torch.full((num * each, 3), 0.3)
    other = cotangent.clone()
    other[:each] *= -1
    sums = [
        clipped(nn.Linear(2, 3), owner, num, upstream, x).integers
        for upstream in (cotangent, other)
    ]
    apart = [sums[0][name] - sums[1][name] for name in sums[0]]
    assert exact_norm(apart) <= 2 * 2**clip.GRID_BITS
