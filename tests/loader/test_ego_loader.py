import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GINConv
from torch_geometric.utils import k_hop_subgraph

from pyg_trust.loader import EgoLoader
from pyg_trust.privacy.mechanisms import fdp_terms
from pyg_trust.transforms import BoundedDegree


def make_data(K=2, n=40):
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(n, (2, 5 * n), generator=generator).unique(dim=1)
    data = Data(
        x=torch.randn(n, 3, generator=generator),
        y=torch.arange(n) % 2,
        edge_index=pairs,
        edge_attr=torch.arange(pairs.size(1)),
    )
    return BoundedDegree(K, seed=0)(data)


def make_loader(data=None, **arguments):
    data = make_data() if data is None else data
    arguments = {
        'batch_size': 6,
        'num_hops': 2,
        'max_degree': 2,
        'seed': 1,
        **arguments,
    }
    return EgoLoader(data, **arguments)


@pytest.mark.parametrize('along', [True, False])
@pytest.mark.parametrize('hops', [0, 1, 2, 3])
def test_ego_graphs_are_whole(hops, along):
    data = make_data()
    loader = make_loader(
        data, num_hops=hops, along=along, max_degree=40, num_steps=3
    )
    assert isinstance(loader, NodeLoader)
    flow = 'source_to_target' if along else 'target_to_source'
    for batch in loader:
        assert batch.batch_size == 6
        assert batch.batch[:6].equal(torch.arange(6))
        assert batch.n_id[:6].equal(batch.input_id)
        assert batch.x.equal(data.x[batch.n_id])
        for i in range(6):
            own = (batch.batch == i).nonzero().view(-1)
            want, _, _, _ = k_hop_subgraph(
                int(batch.n_id[i]), hops, data.edge_index, flow=flow
            )
            nodes = batch.n_id[own]
            assert nodes.sort().values.equal(want.sort().values)
            inside = data.subgraph(want)
            mine = torch.isin(batch.edge_index[0], own)
            assert (
                batch.edge_attr[mine]
                .sort()
                .values.equal(inside.edge_attr.sort().values)
            )
        row, col = batch.edge_index
        assert batch.batch[row].equal(batch.batch[col])
        assert batch.n_id[batch.edge_index].equal(
            data.edge_index[:, batch.e_id]
        )
        assert batch.edge_attr.equal(data.edge_attr[batch.e_id])


def test_roots_get_the_output_of_the_whole_graph():
    # All messages are there: without degrees, two layers are exact.
    data = make_data()
    torch.manual_seed(0)
    one = GINConv(torch.nn.Linear(3, 4))
    two = GINConv(torch.nn.Linear(4, 2))

    def run(x, edge_index):
        return two(one(x, edge_index).relu(), edge_index)

    whole = run(data.x, data.edge_index)
    for batch in make_loader(data):
        out = run(batch.x, batch.edge_index)[:6]
        assert torch.allclose(out, whole[batch.n_id[:6]], atol=1e-5)


@pytest.mark.parametrize('hops', [0, 1, 2, 3])
@pytest.mark.parametrize('K', [1, 2, 3])
@pytest.mark.parametrize('along', [True, False])
def test_no_row_is_in_more_ego_graphs_than_terms(hops, K, along):
    # The sensitivity, by counting in the whole graph.
    data = make_data(K=40)
    data = BoundedDegree(K, along=along, seed=3)(data)
    loader = make_loader(
        data, num_hops=hops, max_degree=K, along=along, batch_size=40
    )
    (batch,) = list(loader)
    count = batch.n_id.bincount(minlength=40)
    assert loader.terms == min(40, fdp_terms(K, hops))
    assert int(count.max()) <= loader.terms
    if hops == 1:
        assert int(count.max()) == 1 + K


def test_one_receiver_too_many_is_refused():
    # Nobody in a star has more than its centre, which has exactly three.
    star = Data(edge_index=torch.tensor([[0, 0, 0], [1, 2, 3]]), num_nodes=4)
    made = EgoLoader(star, batch_size=1, num_hops=1, max_degree=3, seed=0)
    assert made.terms == 4
    with pytest.raises(ValueError, match=r'with 3\): .*BoundedDegree\('):
        EgoLoader(star, batch_size=1, num_hops=1, max_degree=2, seed=0)
