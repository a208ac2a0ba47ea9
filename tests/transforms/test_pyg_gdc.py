"""GDC with the arguments of PyG, against PyG's own."""

import pytest
import torch
import torch_geometric.transforms as pyg
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.utils import to_dense_adj

from pyg_trust.agp.measures import hkpr, ppr
from pyg_trust.testing import make_graph
from pyg_trust.transforms import GDC

GRAPH = make_graph('random')
N = GRAPH.num_nodes
EDGES = GRAPH.to_edge_index()[0]
PPR = {'method': 'ppr', 'alpha': 0.2}
HEAT = {'method': 'heat', 't': 3.0}
COEFF = {'method': 'coeff', 'coeffs': [0.5, 0.3, 0.2]}
ALL = {'method': 'threshold', 'eps': 1e-5}


def graph(**more):
    return Data(edge_index=EDGES, num_nodes=N, y=torch.arange(N), **more)


def dense(data):
    edge = data.edge_index, None, data.edge_attr
    return to_dense_adj(*edge, max_num_nodes=N)[0]


@pytest.mark.parametrize(
    'arguments',
    [
        {},
        {'sparsification_kwargs': {'method': 'threshold', 'avg_degree': 3}},
        {'self_loop_weight': None, 'normalization_in': 'row'},
        {'self_loop_weight': 0.5, 'normalization_out': 'row'},
        {'diffusion_kwargs': HEAT, 'normalization_out': 'sym'},
        {'diffusion_kwargs': {'method': 'coeff', 'coeffs': [1, -0.3]}},
        {
            'normalization_in': 'col',
            'normalization_out': None,
            'sparsification_kwargs': {'method': 'topk', 'k': 2, 'dim': 1},
        },
    ],
)
@pytest.mark.parametrize('weighted', [False, True])
def test_exact_is_that_of_pyg(arguments, weighted):
    weight = torch.linspace(0.5, 1.5, EDGES.size(1)) if weighted else None
    data = graph(edge_attr=weight)
    theirs, ours = pyg.GDC(**arguments)(data), GDC(**arguments)(data)
    assert torch.equal(ours.edge_index, theirs.edge_index)
    assert torch.equal(ours.edge_attr, theirs.edge_attr)
    assert torch.equal(ours.y, data.y)
    assert torch.equal(data.edge_index, EDGES)


@pytest.mark.parametrize(
    ('diffusion', 'loops'),  # without loops, PyG's COEFF may lose nodes
    [(PPR, 1), (PPR, None), (HEAT, 1), (HEAT, None), (COEFF, 1)],
)
@pytest.mark.parametrize('normalization', ['sym', 'row', 'col'])
@pytest.mark.parametrize('out', ['col', None])
def test_without_a_dense_matrix_it_is_near_the_exact_one(
    diffusion, normalization, loops, out
):
    # All three, of which PyG estimates PPR alone.
    arguments = {
        'self_loop_weight': loops,
        'normalization_in': normalization,
        'normalization_out': out,
        'sparsification_kwargs': ALL,
    }
    wanted = pyg.GDC(diffusion_kwargs=diffusion, **arguments)(graph())
    near = GDC(
        diffusion_kwargs={**diffusion, 'eps': 1e-6}, exact=False, **arguments
    )(graph())
    torch.testing.assert_close(dense(near), dense(wanted), atol=1e-4, rtol=0)


@pytest.mark.parametrize('dim', [0, 1])
def test_the_largest_of_rows_and_of_columns(dim):
    arguments = {
        'normalization_in': 'row',
        'normalization_out': None,
        'diffusion_kwargs': {**PPR, 'eps': 1e-7},
        'sparsification_kwargs': {'method': 'topk', 'k': 3, 'dim': dim},
    }
    wanted = dense(pyg.GDC(**arguments)(graph()))
    made = dense(GDC(**arguments, exact=False)(graph()))
    alone = GRAPH.degree == 0
    assert torch.equal((made > 0).sum(dim), torch.where(alone, 1, 3))
    # Which of equals they are is open: compared by value, largest first.
    torch.testing.assert_close(
        made.sort(dim, descending=True).values,
        wanted.sort(dim, descending=True).values,
        atol=1e-5,
        rtol=0,
    )


def test_estimates_follow_the_edges_of_directed_graphs():
    one_way = Data(edge_index=EDGES[:, EDGES[0] < EDGES[1]], num_nodes=N)
    arguments = {
        'normalization_in': 'row',
        'normalization_out': None,
        'sparsification_kwargs': ALL,
    }
    wanted = pyg.GDC(diffusion_kwargs=PPR, **arguments)(one_way)
    made = GDC(
        diffusion_kwargs={**PPR, 'eps': 1e-7}, exact=False, **arguments
    )(one_way)
    torch.testing.assert_close(dense(made), dense(wanted), atol=1e-4, rtol=0)


def test_measure_and_repr():
    # PyG prints GDC() whatever was asked, and would take a dataset of other
    # settings from the disk.
    assert str(GDC()) == str(pyg.GDC()) == 'GDC()'
    assert len({str(GDC(exact=e)) for e in (True, False)}) == 2
    assert GDC(diffusion_kwargs=PPR).make_measure(GRAPH) == ppr(0.2)
    assert GDC(diffusion_kwargs=HEAT).make_measure(GRAPH) == hkpr(3.0)
    assert GDC(normalization_in='row').normalization_in == 'row'


DIFFUSIONS = {
    "'diffusion_kwargs'.*'method'": {'alpha': 0.2},
    "'diffusion_kwargs'.*'t'": {'method': 'heat', 'alpha': 0.2},
    "'alpha'": {'method': 'ppr', 'alpha': 0},
    "'coeffs'": {'method': 'coeff', 'coeffs': [1, -1]},
    "'eps'": {**PPR, 'eps': 0},
}


@pytest.mark.parametrize(
    ('match', 'arguments'),
    [
        ("'top_k'.*'exact'", {'top_k': 2, 'exact': True}),
        ("'exact'", {'exact': 1}),
        ('unexpected.*dim', {'dim': 1}),
        ("'self_loop_weight'", {'self_loop_weight': 'yes'}),
        ("'self_loop_weight'", {'self_loop_weight': -1.0}),
        ("'self_loop_weight'", {'self_loop_weight': 2, 'exact': False}),
        ("'normalization_in'", {'normalization_in': 'in'}),
        ("'normalization_out'", {'normalization_out': 'in'}),
        ("'normalization_in'", {'normalization_in': None, 'exact': False}),
        ("'diffusion_kwargs'", {'diffusion_kwargs': 'ppr'}),
        *(
            (match, {'diffusion_kwargs': given, 'exact': False})
            for match, given in DIFFUSIONS.items()
        ),
        (
            "'sparsification_kwargs'.*'avg_degree'",
            {'sparsification_kwargs': {'method': 'threshold'}},
        ),
        (
            "'dim'",
            {'sparsification_kwargs': {'method': 'topk', 'k': 1, 'dim': 2}},
        ),
    ],
)
def test_refused(match, arguments):
    with pytest.raises((TypeError, ValueError), match=match):
        GDC(**arguments)


def test_edge_attributes_that_are_no_weights_are_refused():
    many = torch.ones(EDGES.size(1), 2)
    with pytest.raises(ValueError, match="'edge_attr'"):
        GDC()(graph(edge_attr=many))
    with pytest.raises(ValueError, match="'edge_attr'"):
        GDC(exact=False)(graph(edge_attr=many[:, 0]))
    with pytest.raises(ValueError, match="'edge_weight'"):
        GDC()(graph(edge_weight=many[:, 0]))
    with pytest.raises(ValueError, match=r"'data'.*'adj_t'"):
        GDC()(Data(num_nodes=3))


def test_graphs_of_any_form():
    # PyG's own result of plain edges is the right one.
    weight = torch.linspace(0.5, 1.5, EDGES.size(1))
    plain = {
        None: pyg.GDC()(graph()).edge_index,
        'weighted': pyg.GDC()(graph(edge_attr=weight)).edge_index,
        'own': GDC('appnp', alpha=0.2, top_k=2, eps=0.01, seed=0)(
            graph()
        ).edge_index,
    }
    size = (N, N)
    ends = {
        'int32': EDGES.int(),
        'EdgeIndex': EdgeIndex(EDGES, sparse_size=size, sort_order='row'),
        'EdgeIndex of int32': EdgeIndex(EDGES.int(), sparse_size=size),
    }
    forms = {n: {'edge_index': e} for n, e in ends.items()}
    for values in (torch.ones_like(weight), weight):
        flipped = EDGES.flip(0)
        adj_t = torch.sparse_coo_tensor(flipped, values, size).coalesce()
        forms['adj_t' if values is not weight else 'weighted'] = {
            'adj_t': adj_t
        }
    forms['both'] = {**forms['adj_t'], 'edge_index': EDGES}
    for name, form in forms.items():
        want = plain.get(name, plain[None])
        out = GDC()(Data(**form, num_nodes=N))
        assert out.edge_index.equal(want), name
        assert 'adj_t' not in out
        if name != 'weighted':
            own = GDC('appnp', alpha=0.2, top_k=2, eps=0.01, seed=0)
            out = own(Data(**form, num_nodes=N))
            assert out.edge_index.equal(plain['own']), name
            assert 'adj_t' not in out


def test_after_a_split_of_links():
    train = pyg.RandomLinkSplit(0.1, 0.1, True)(KarateClub()[0])[0]
    want = pyg.GDC()(train)
    for transform in (GDC(), GDC('appnp', alpha=0.1, top_k=4)):
        out = transform(train.clone())
        assert out.edge_label_index.equal(train.edge_label_index)
        assert out.edge_label.equal(train.edge_label)
    assert GDC()(train).edge_index.equal(want.edge_index)
