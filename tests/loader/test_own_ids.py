"""Ids of the user in ``data.n_id``, which need not be positions."""

import pytest
import torch
from graphs import Pooled
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GCNConv

from pyg_trust.loader import DisjointWalkLoader, EgoLoader, GraphLoader
from pyg_trust.privacy import PrivacyEngine

IDS = torch.randperm(34, generator=torch.Generator().manual_seed(0)) * 7 + 50


def named():
    data = KarateClub()[0]
    data.n_id = IDS.clone()
    return data


def private(model, loader, forward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = PrivacyEngine(insecure_seed=0).make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=9.0,
        max_grad_norm=1.0,
    )
    batch = next(iter(loader))
    out = forward(model, batch)
    out.square().sum().backward()
    optimizer.step()
    return batch


@pytest.mark.parametrize('Loader', [DisjointWalkLoader, EgoLoader])
def test_batches_have_the_users_ids(Loader):
    arguments = {'max_degree': 34} if Loader is EgoLoader else {}
    ids, plain = (
        next(iter(Loader(data, 3, 1, num_steps=2, seed=0, **arguments)))
        for data in (named(), KarateClub()[0])
    )
    assert ids.n_id.equal(IDS[plain.n_id])
    loader = Loader(named(), 3, 1, num_steps=2, **arguments)
    batch = private(GCNConv(34, 4), loader, lambda m, b: m(b.x, b.edge_index))
    assert torch.isin(batch.n_id, IDS).all()


def test_ids_that_are_there_twice_are_refused():
    data = named()
    data.n_id[3] = data.n_id[4]
    with pytest.raises(ValueError, match=r"'data\.n_id'"):
        DisjointWalkLoader(data, 3, 1)


def test_graphs_keep_their_own_ids():
    ends = torch.tensor([[0, 1], [1, 0]])
    graphs = [
        Data(x=torch.rand(2, 1), edge_index=ends, n_id=torch.tensor([70, 80]))
        for _ in range(6)
    ]
    loader = GraphLoader(graphs, 2, num_steps=3)
    assert next(iter(loader)).n_id.tolist() == [70, 80] * 2
    batch = private(
        Pooled(1), loader, lambda m, b: m(b.x, b.edge_index, b.batch)
    )
    assert batch.n_id.numel() == 4
