import re

import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Data

from pyg_trust import agp as F
from pyg_trust.testing import make_graph
from pyg_trust.transforms import AGP, GDC

GRAPH = make_graph('random')


def make_data(**kwargs):
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=GRAPH.to_edge_index()[0], **kwargs)


ARGUMENTS = {
    'transition': {'K': 2},
    'pagerank': {'alpha': 0.2},
    'ppr': {'alpha': 0.2, 'tol': 1e-3},
    'single_target': {'alpha': 0.2, 'K': 4},
    'hkpr': {'t': 2.0},
    'katz': {'beta': 0.05},
    'sgc': {},
    'appnp': {'alpha': 0.2},
    'heat': {'t': 2.0},
}


@pytest.mark.parametrize('eps', [0.0, 1e-2])
@pytest.mark.parametrize('name', ARGUMENTS)
def test_agp_is_the_functional(name, eps):
    data = make_data()
    before = data.clone()
    out = AGP(name, **ARGUMENTS[name], eps=eps, seed=3, force_push=True)(data)
    measure = F.make_measure(name, GRAPH, **ARGUMENTS[name])
    wanted = F.propagate(
        GRAPH, data.x, measure, eps=eps, seed=3, force_push=True
    )
    exact = F.propagate(GRAPH, data.x, measure)
    assert torch.equal(wanted, exact) == (eps == 0)
    assert torch.equal(out.x, wanted)
    assert torch.equal(out.edge_index, before.edge_index)
    assert torch.equal(data.x, before.x)
    assert torch.equal(data.edge_index, before.edge_index)


def test_agp_writes_where_it_is_told():
    data = make_data(score=torch.rand(40))
    out = AGP('ppr', alpha=0.2, eps=0, attr='score', out='rank')(data)
    assert torch.equal(out.x, data.x)
    assert torch.equal(out.score, data.score)
    assert torch.equal(out['rank'], F.propagate(GRAPH, data.score, F.ppr(0.2)))


def test_agp_in_a_pipeline():
    pipeline = T.Compose(
        [
            T.NormalizeFeatures(),
            AGP('appnp', alpha=0.1, seed=1),
            T.ToUndirected(),
        ]
    )
    out = pipeline(make_data())
    normal = T.NormalizeFeatures()(make_data())
    assert torch.equal(out.x, AGP('appnp', alpha=0.1, seed=1)(normal).x)
    assert 'AGP(appnp, alpha=0.1, eps=0.0, seed=1)' in str(pipeline)


def test_seed_everything_is_enough():
    transform = AGP('ppr', alpha=0.2, eps=1e-2, force_push=True)
    torch.manual_seed(1)
    first, second = transform(make_data()).x, transform(make_data()).x
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(transform(make_data()).x, first)


# GDC #########################################################################


@pytest.mark.parametrize('name', ['appnp', 'heat', 'ppr', 'single_target'])
def test_gdc_edges_carry_the_diffusion(name):
    # Summing over the new edges is multiplying by the diffusion matrix.
    data = make_data(y=torch.arange(40))
    transform = GDC(
        name, **ARGUMENTS[name], threshold=1e-12, normalization=None, eps=0
    )
    out = transform(data)
    source, target = out.edge_index
    z = torch.zeros(40, 3).index_add_(
        0, target, out.edge_weight[:, None] * data.x[source]
    )
    wanted = AGP(name, **ARGUMENTS[name], eps=0)(data).x
    torch.testing.assert_close(z, wanted)
    assert torch.equal(out.y, data.y)
    assert torch.equal(data.edge_index, GRAPH.to_edge_index()[0])


def test_gdc_top_k_and_normalization():
    data = make_data()
    out = GDC('heat', t=3.0, top_k=4, eps=1e-4, seed=1)(data)
    source, target = out.edge_index
    entering = torch.zeros(40).index_add_(0, target, out.edge_weight)
    torch.testing.assert_close(entering, torch.ones(40))
    assert target.bincount(minlength=40).max() == 4
    raw = GDC('heat', t=3.0, top_k=4, eps=1e-4, seed=1, normalization=None)
    value = raw(data).edge_weight
    leaving = torch.zeros(40).index_add_(0, source, value)
    entering = torch.zeros(40).index_add_(0, target, value)
    wanted = value / (leaving[source] * entering[target]).sqrt()
    both = GDC('heat', t=3.0, top_k=4, eps=1e-4, seed=1, normalization='sym')
    torch.testing.assert_close(both(data).edge_weight, wanted)


def test_gdc_prunes_if_told_to():
    transform = GDC('heat', t=3.0, top_k=4, eps=1e-3, method='prune')
    out = transform(make_data())
    wanted = F.query(
        *(GRAPH, torch.arange(40), F.heat(3.0).adjoint()),
        eps=1e-3,
        method='prune',
        top_k=4,
    )
    assert torch.equal(out.edge_index[0], wanted.col_indices())
    # Nothing is random.
    assert torch.equal(transform(make_data()).edge_weight, out.edge_weight)


def test_gdc_replaces_weights_and_adj_t():
    data = Data(x=make_data().x, adj_t=GRAPH.to_torch_sparse(), num_nodes=40)
    transform = GDC('appnp', alpha=0.2, threshold=1e-3, eps=0)
    out = transform(data)
    assert 'adj_t' not in out
    wanted = transform(make_data())
    assert torch.equal(out.edge_index, wanted.edge_index)
    torch.testing.assert_close(out.edge_weight, wanted.edge_weight)
    assert str(transform) == (
        'GDC(appnp, alpha=0.2, eps=0.0, threshold=0.001)'
    )


def test_agp_says_which_attributes_hold_the_rows_of_others():
    data = make_data(score=torch.rand(40))
    score = AGP('ppr', alpha=0.2, eps=0, attr='score', out='rank')
    data = AGP('sgc', eps=0)(score(score(data)))
    assert data.propagated == ('rank', 'x')
    assert 'propagated' not in make_data()


def test_agp_promises_what_the_bound_says():
    data = make_data()
    exact = AGP('appnp', alpha=0.2, eps=0).guarantee(data)
    assert exact.promise.endswith('up to rounding')
    assert exact.assumptions == ()
    sampled = AGP('appnp', alpha=0.2, eps=1e-2)
    measure = F.make_measure('appnp', GRAPH, alpha=0.2)
    variance = F.variance_bound(GRAPH, data.x, measure, 1e-2)
    said = sampled.guarantee(data)
    # Rounded outwards, to three digits.
    largest = float(variance.max().sqrt())
    assert largest <= float(said.promise.split()[-1]) <= largest * 1.01
    twice = exact.data_sha256, sampled.guarantee(sampled(data)).data_sha256
    assert said.data_sha256 == twice[0] != twice[1]


def test_half_and_fewer_levels():
    data = make_data()
    measure = F.heat(2.0)
    for ours, theirs in (
        ({'half': True}, {'half': True}),
        ({'level_tol': 1e-2}, {'tol': 1e-2}),
    ):
        transform = AGP('heat', t=2.0, **ours)
        wanted = F.propagate(GRAPH, data.x, measure, **theirs)
        assert torch.equal(transform(data).x, wanted)
        assert not torch.equal(AGP('heat', t=2.0)(data).x, wanted)
    bound = F.chebyshev(measure, 1e-2).bound
    told = re.search(
        'to within ([^ ]+) times', transform.guarantee(data).promise
    )
    assert bound <= float(told[1]) <= bound * 1.01
    with pytest.raises(ValueError, match="'eps'"):
        AGP('heat', t=2.0, eps=1e-3, half=True)


def test_sparse_features():
    data = make_data()
    data.x = torch.where(data.x > 0.7, data.x, 0)
    wanted = AGP('appnp', alpha=0.2)(data).x
    data.x = data.x.to_sparse_csr()
    assert torch.equal(AGP('appnp', alpha=0.2)(data).x, wanted)
