import copy
from collections import Counter
from itertools import combinations

import pytest
import torch
from scipy.stats import chi2
from torch_geometric import EdgeIndex
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_edge_index

from pyg_trust.loader import DisjointWalkLoader, EgoLoader
from pyg_trust.testing import make_graph


def make_data():
    edge_index, _ = make_graph('random').to_edge_index()
    return Data(
        x=torch.arange(40.0).view(-1, 1),
        y=torch.arange(40) % 3,
        edge_index=edge_index.flip(1),
        edge_attr=torch.arange(edge_index.size(1)),
        train_mask=torch.arange(40) % 3 != 0,
    )


def make_loader(data=None, **arguments):
    data = make_data() if data is None else data
    arguments = {'batch_size': 4, 'walk_length': 2, 'seed': 5, **arguments}
    return DisjointWalkLoader(data, **arguments)


def contents(batch):
    return (
        batch.n_id.tolist(),
        batch.batch.tolist(),
        batch.input_id.tolist(),
        batch.edge_index.tolist(),
        batch.e_id.tolist(),
    )


@pytest.mark.parametrize('restarts', [1, 2])
@pytest.mark.parametrize('resample_every', [None, 1, 3])
@pytest.mark.parametrize('mask', [True, False, None])
def test_batches(mask, resample_every, restarts):
    data = make_data()
    roots = torch.arange(40)
    if mask is not None:
        roots = data.train_mask.nonzero().view(-1)
        roots = roots if mask else roots.flip(0)
    loader = make_loader(
        data,
        batch_size=3,
        restarts=restarts,
        input_nodes={True: data.train_mask, False: roots, None: None}[mask],
        resample_every=resample_every,
        num_steps=8,
    )
    assert isinstance(loader, NodeLoader)
    assert len(loader) == 8
    seen = 0
    for batch in loader:
        seen += 1
        assert batch.batch_size == 3
        assert batch.input_id.numel() == 3
        assert batch.n_id[:3].equal(roots[batch.input_id])
        assert batch.batch[:3].tolist() == [0, 1, 2]
        assert batch.n_id.unique().numel() == batch.num_nodes
        assert int(batch.batch.bincount().max()) <= 1 + 2 * restarts
        row, col = batch.edge_index
        assert batch.batch[row].equal(batch.batch[col])
        assert batch.x.view(-1).equal(batch.n_id.float())
        assert batch.y.equal(batch.n_id % 3)
        assert batch.edge_attr.equal(batch.e_id)
        assert data.edge_index[:, batch.e_id].equal(
            batch.n_id[batch.edge_index]
        )
    assert seen == 8


def test_every_step_draws_uniformly_without_replacement():
    # All subsets of 3 of 6 subgraphs, step by step and pair by pair of steps.
    data = Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=6)
    loader = make_loader(data, batch_size=3, num_steps=8000, seed=0)
    assert loader.num_subgraphs == 6
    assert loader.sample_rate == 0.5
    draws = [
        tuple(sorted(loader.draw(step).node.tolist())) for step in range(8000)
    ]
    subsets = list(combinations(range(6), 3))
    for counts, cells in (
        (Counter(draws), 20),
        (Counter(zip(draws[::2], draws[1::2], strict=True)), 400),
    ):
        total = sum(counts.values())
        expected = total / cells
        statistic = sum(
            (c - expected) ** 2 / expected for c in counts.values()
        )
        statistic += (cells - len(counts)) * expected
        assert chi2.sf(statistic, cells - 1) > 0.001
    assert set(draws) == set(subsets)


@pytest.mark.parametrize('filter_per_worker', [None, True, False])
@pytest.mark.parametrize('num_workers', [0, 2])
@pytest.mark.parametrize('resample_every', [None, 2])
def test_workers_do_not_matter(num_workers, filter_per_worker, resample_every):
    plain = make_loader(num_steps=5, resample_every=resample_every)
    other = make_loader(
        num_steps=5,
        resample_every=resample_every,
        num_workers=num_workers,
        filter_per_worker=filter_per_worker,
        transform=lambda batch: batch.update({'seen': True}) or batch,
    )
    for _ in range(2):
        one = [contents(batch) for batch in plain]
        batches = list(other)
        assert one == [contents(batch) for batch in batches]
        assert all(batch.x.size(0) == batch.num_nodes for batch in batches)
    other = make_loader(num_steps=5, seed=6, resample_every=resample_every)
    assert one != [contents(batch) for batch in other]


def test_epochs_count_on():
    short = make_loader(num_steps=3, resample_every=2)
    long = make_loader(num_steps=6, resample_every=2)
    twice = [contents(batch) for _ in range(2) for batch in short]
    assert twice == [contents(batch) for batch in long]
    # An epoch that was left early is spent all the same.
    left = make_loader(num_steps=3, resample_every=2)
    next(iter(left))
    assert [contents(batch) for batch in left] == twice[3:]


def test_features_and_labels_do_not_matter():
    data = make_data()
    one = [contents(batch) for batch in make_loader(data, num_steps=4)]
    data.x = torch.full((40, 7), torch.nan)
    data.y = torch.zeros(40)
    assert one == [contents(b) for b in make_loader(data, num_steps=4)]


def test_public_rates():
    loader = make_loader(num_steps=4)
    walks = loader.node_sampler.partition()
    assert loader.num_subgraphs == walks.num_subgraphs
    assert loader.sample_rate == 4 / walks.num_subgraphs
    assert loader.num_subgraphs_at(1000) == walks.num_subgraphs

    loader = make_loader(num_steps=4, resample_every=3, batch_size=14)
    counts = [loader.num_subgraphs_at(step) for step in range(30)]
    assert len(set(counts)) > 1
    for step, count in enumerate(counts):
        walks = loader.node_sampler.partition(step // 3)
        assert count == walks.num_subgraphs
        assert loader.sample_rate_at(step) == 14 / count
        assert set(loader.draw(step).roots.tolist()) <= set(
            walks.roots.tolist()
        )


def test_subgraphs_are_isolated_in_a_model():
    batch = next(iter(make_loader()))
    x = batch.x.requires_grad_()
    conv = GCNConv(1, 1)
    out = conv(conv(x, batch.edge_index), batch.edge_index)
    for i in range(4):
        grad = torch.autograd.grad(out[i, 0], x, retain_graph=True)[0]
        assert (grad[batch.batch != i] == 0).all()
        assert (grad[i] != 0).all()


def test_subgraphs_that_stand_together():
    edge_index, _ = make_graph('random').to_edge_index()
    data = Data(x=torch.randn(40, 2), edge_index=edge_index)
    arguments = {'batch_size': 6, 'walk_length': 3, 'seed': 1}
    first = DisjointWalkLoader(data, **arguments)
    whole = DisjointWalkLoader(
        data,
        **arguments,
        contiguous=True,
        transform=lambda b: b if b.root_mask.sum() == 6 else None,
    )
    for one, two in zip(first, whole, strict=True):
        assert bool((two.batch.diff() >= 0).all())
        assert two.n_id[two.root_mask].equal(one.n_id[:6])
        assert two.n_id[two.ptr[:-1]].equal(one.n_id[:6])
        assert two.ptr.diff().equal(one.batch.bincount())
        assert bool((two.edge_index[1].diff() >= 0).all())
        assert two.x.equal(data.x[two.n_id])
        for batch in (one, two):
            batch.pairs = {
                tuple(pair)
                for pair in batch.n_id[batch.edge_index].t().tolist()
            }
        assert one.pairs == two.pairs
        assert two.n_id[two.edge_index].equal(data.edge_index[:, two.e_id])


def test_graphs_and_nodes_come_in_every_form_of_pyg():
    """Each form has the batch of int64 edges and a mask of the same graph."""
    plain = T.ToSparseTensor(remove_edge_index=False)(make_data())
    # In the order of adj_t, which is transposed.
    plain.edge_index = to_edge_index(plain.adj_t)[0].flip(0)
    mask = plain.pop('train_mask')
    plain.pop('edge_attr', None)
    adj_t = plain.pop('adj_t')
    short, typed, sparse = (copy.copy(plain) for _ in range(3))
    short.edge_index = plain.edge_index.int()
    typed.edge_index = EdgeIndex(plain.edge_index, sparse_size=(40, 40))
    del sparse.edge_index
    sparse.adj_t = adj_t
    for kind in (DisjointWalkLoader, EgoLoader):
        more = {'seed': 5}
        more |= (
            {'walk_length': 2}
            if kind is DisjointWalkLoader
            else {'num_hops': 1, 'max_degree': 40}
        )
        index = mask.nonzero().view(-1)
        wanted = next(iter(kind(plain, 4, input_nodes=mask, **more)))
        for data, nodes in (
            (short, mask),
            (typed, mask[:, None]),
            (sparse, index.tolist()),
            (plain, index.int()),
            (plain, index.numpy()),
        ):
            batch = next(iter(kind(data, 4, input_nodes=nodes, **more)))
            assert contents(batch)[:4] == contents(wanted)[:4]
    with pytest.raises(ValueError, match=r'input_nodes\[:, 0\]|choose a col'):
        make_loader(plain, input_nodes=mask[:, None].expand(40, 3))


def test_a_loader_is_called_with_places_of_input_nodes():
    data = make_data()
    loader = make_loader(data, input_nodes=data.train_mask)
    roots = data.train_mask.nonzero().view(-1)
    for index in ([0, 1, 2], torch.arange(len(roots))):
        batch = loader(index)
        assert batch.n_id[: batch.batch_size].equal(roots[index])
