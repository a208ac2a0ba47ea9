"""What runs on CUDA stays there: shown on a device that is simulated."""

import copy
import re

import pytest
import torch
from simulated import NAME, Elsewhere, Simulation
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust import agp as F
from pyg_trust import ops, utils
from pyg_trust.agp.clustering import uniform_signal
from pyg_trust.agp.queries import prune_bound
from pyg_trust.graph import CSRGraph
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import APPNP, PPNP, LabelPropagation, SGConv
from pyg_trust.privacy import PrivacyEngine, PrivateNodeClassifier
from pyg_trust.sampler import DisjointWalkSampler
from pyg_trust.sampler.walks import disjoint_walks
from pyg_trust.testing import make_graph
from pyg_trust.transforms import AGP, GDC, GraphScattering

RANDOM = make_graph('random')
EDGES, N = RANDOM.to_edge_index()[0], RANDOM.num_nodes
X = torch.rand(N, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3


@pytest.fixture
def device(monkeypatch):
    """The simulation, and kernels for its device."""
    tensor = torch.tensor

    def make(*args, device=None, **kwargs):
        # torch.tensor(..., device='meta') would drop the values unseen.
        made = tensor(*args, **kwargs)
        return made if device is None else made.to(device)

    monkeypatch.setattr(torch, 'tensor', make)
    monkeypatch.setattr(ops, 'has_kernel', lambda name: True)
    with Simulation() as simulation:
        yield simulation


def moved(simulation, *tensors):
    there = [t.to(NAME) for t in tensors]
    simulation.to_device.clear()
    return there


def here(value):
    assert isinstance(value, Elsewhere)
    assert value.device == NAME
    return value.inner


def nothing_moved(simulation, constants=(), lists=0):
    # But edges, whose rows are sorted on the CPU, and numbers of nodes.
    def feature(shape):
        return shape not in constants and not re.fullmatch(
            r'\(2, \d+\)|\(\d+,\)', shape
        )

    assert not list(filter(feature, simulation.to_host))
    assert simulation.lists <= lists
    assert not list(filter(feature, simulation.to_device))


def on(module, device):
    """A copy of a module whose weights are on a device."""
    made = copy.deepcopy(module)
    for owner in made.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            value = parameter.detach().to(device)
            setattr(owner, name, torch.nn.Parameter(value))
    return made


def test_the_simulation_sees_what_it_should(device):
    x = torch.rand(3).to(NAME)
    assert device.to_device == ['(3,)']
    assert x.device == NAME
    x.cpu()
    assert device.to_host == ['(3,)']
    with pytest.raises(RuntimeError, match='both devices'):
        x + torch.rand(3)
    with pytest.raises(RuntimeError, match='both devices'):
        x[torch.tensor([0])]
    with pytest.raises((TypeError, RuntimeError)):
        x.numpy()
    assert float((x + torch.tensor(1.0)).sum()) > 3
    assert device.scalars == 1


# The same everywhere #########################################################


def with_gradient(measure, eps):
    def call(edges, x, y):
        x = x.repeat(1, 8).requires_grad_()
        graph = CSRGraph.from_edge_index(edges, N)
        z = F.propagate(graph, x, measure, eps=eps, seed=1)
        z.square().sum().backward()
        return z.detach(), x.grad

    return call


def bounds(edges, x, y):
    graph, measure = CSRGraph.from_edge_index(edges, N), F.ppr(0.2, K=5)
    return (
        F.variance_bound(graph, x, measure, 1e-3),
        prune_bound(graph, measure, 1e-3),
    )


def asked(method):
    def call(edges, x, y):
        graph = CSRGraph.from_edge_index(edges, N)
        nodes = torch.tensor([3, 1, 7], device=edges.device)
        options = {'eps': 1e-2, 'seed': 1, 'method': method}
        few = F.query(graph, nodes, F.ppr(0.2), **options, top_k=4)
        signal = uniform_signal(nodes, N)
        one = F.query(graph, signal, F.ppr(0.2), **options)
        return [
            part
            for row in (few, one)
            for part in (row.col_indices(), row.values())
        ]

    return call


def layer(module):
    def call(edges, x, y):
        return on(module, x.device)(x, edges).detach()

    return call


def transformed(transform, shift=0.0):
    def call(edges, x, y):
        data = transform(Data(x=x + shift, edge_index=edges, num_nodes=N))
        names = ('x', 'edge_index', 'edge_weight', 'z')
        return [data[name] for name in names if data.get(name) is not None]

    return call


def walked(edges, x, y):
    data = Data(edge_index=edges, num_nodes=N)
    sampler = DisjointWalkSampler(data, 2, 2, y == 0, seed=1)
    walks = sampler.partition()
    out = sampler.sample_walks(walks)
    first = walks.select(walks.ptr[:2]).node
    return first, out.node, out.row, out.col, out.edge, out.batch


# Each with what may move and how many lists the host may read; None: all.
SCATTERED = {'J': 3, 'Q': 2, 'L': 2}
CASES = {
    **{
        f'{measure.name}, eps={eps}': (with_gradient(measure, eps), (), 0)
        for measure in (F.appnp(0.1, K=4), F.sgc(2), F.hkpr(1.0))
        for eps in (0.0, 1e-2)
    },
    'bounds': (bounds, (), 0),
    'query by samples': (asked('sample'), None, 0),
    'query by pruning': (asked('prune'), None, 0),
    'cluster': (
        lambda e, x, y: utils.local_cluster(e, 3, num_nodes=N).nodes,
        None,
        0,
    ),
    'SGConv': (layer(SGConv(5, 4, K=2, eps=0.0)), ('(4, 5)',), 0),
    'SGConv, pushed': (
        layer(SGConv(5, 4, K=2, eps=1e-2, seed=1)),
        ('(4, 5)',),
        0,
    ),
    'APPNP, pushed': (layer(APPNP(3, 0.1, eps=1e-2, seed=1)), (), 0),
    'PPNP': (layer(PPNP(torch.nn.Identity(), 0.2, None)), (), 0),
    'PPNP by levels': (layer(PPNP(torch.nn.Identity(), 0.2, 3)), (), 0),
    'labels': (
        lambda e, x, y: LabelPropagation(alpha=0.2, num_classes=3)(y, e),
        (),
        0,
    ),
    'AGP': (transformed(AGP('appnp', alpha=0.1, K=3, eps=0.0)), (), 0),
    # Queries run on the CPU.
    'GDC': (
        transformed(GDC('ppr', alpha=0.2, eps=1e-2, seed=1, top_k=3)),
        None,
        0,
    ),
    'scattering': (
        transformed(GraphScattering(**SCATTERED), -0.5),
        ('(1,)', '(2,)'),
        0,
    ),
    # Eigenvalues are found for blocks of graphs, whose sizes the host reads.
    'spectral scattering': (
        transformed(GraphScattering(**SCATTERED, wavelet='monic_cubic'), -0.5),
        ('(1,)', '(2,)'),
        4,
    ),
    'walks': (walked, (), 0),
}


@pytest.mark.parametrize('name', CASES)
def test_the_same_comes_out_and_nothing_moves(device, name):
    call, constants, lists = CASES[name]
    torch.manual_seed(0)
    wanted = call(EDGES, X, Y)
    there = moved(device, EDGES, X, Y)
    torch.manual_seed(0)
    got = call(*there)
    if constants is not None:
        nothing_moved(device, constants, lists)
    for one, other in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        torch.testing.assert_close(here(one), other)


def test_katz_reads_the_graph_once_for_its_radius(device):
    there, signal = moved(device, EDGES, X)
    graph = CSRGraph.from_edge_index(there, N)
    measure = F.katz(0.5 / graph.spectral_radius, graph)
    # The graph is built on the CPU, of edges and twice of its rows; then come
    # rowptr and col, for ARPACK and for the number of levels.
    assert len(device.to_host) == 7
    device.to_host.clear()
    for eps in (0.0, 0.1):
        z = F.propagate(graph, signal, measure, eps=eps, seed=1)
        own = CSRGraph.from_edge_index(EDGES, N)
        own = F.propagate(own, X, measure, eps=eps, seed=1)
        torch.testing.assert_close(here(z), own)
    nothing_moved(device)


def test_what_is_on_another_device_is_refused(device):
    (there,) = moved(device, EDGES)
    graph = CSRGraph.from_edge_index(there, N)
    with pytest.raises(ValueError, match="'signals' needs to be on the graph"):
        F.query(graph, torch.tensor([3, 1]), F.ppr(0.2), eps=1e-2)
    with pytest.raises(ValueError, match="'roots' needs to be on the graph"):
        disjoint_walks(graph, 2, 2, roots=Y == 0)


def test_loader(device):
    there, signal = moved(device, EDGES, X)
    arguments = {'batch_size': 4, 'walk_length': 2, 'num_steps': 3, 'seed': 1}
    batches, wanted = (
        DisjointWalkLoader(
            Data(x=x, edge_index=edges, num_nodes=N), **arguments
        )
        for edges, x in ((there, signal), (EDGES, X))
    )
    device.to_host.clear()
    device.to_device.clear()
    for got, own in zip(batches, wanted, strict=True):
        for name in ('x', 'edge_index', 'n_id', 'e_id', 'batch', 'input_id'):
            assert torch.equal(here(got[name]), own[name])
    # What moved are the choice and the indices of each batch: no features.
    assert device.to_host == []
    assert device.lists <= 3
    assert len(device.to_device) <= 6


def test_private_training(device):
    start = GCNConv(5, 3)
    weights = []
    for x, edges, y in ((X, EDGES, Y), moved(device, X, EDGES, Y)):
        model = on(start, x.device)
        engine = PrivacyEngine(insecure_seed=0)
        data = Data(x=x, edge_index=edges, y=y, num_nodes=N)
        private, optimizer, batches = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DisjointWalkLoader(data, 4, 2, num_steps=3, seed=1),
            noise_multiplier=8.0,
            max_grad_norm=1.0,
        )
        for batch in batches:
            out = private(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        assert engine.steps == 3
        weights.append([p.detach() for p in model.parameters()])
    for own, there, first in zip(*weights, start.parameters(), strict=True):
        torch.testing.assert_close(here(there), own)
        assert not torch.equal(own, first)


@pytest.mark.parametrize('relation', ['node', 'feature'])
def test_a_private_classifier_takes_data_of_the_device(device, relation):
    # The encoder was paid for, then tensors met on both devices.
    def fit(edges, x, y, train):
        data = Data(x=x, edge_index=edges, y=y, train_mask=train)
        model = PrivateNodeClassifier(
            relation, delta=1e-4, steps=2, num_classes=3, insecure_seed=0
        )
        return model.fit(data)

    given = (EDGES, X, Y, torch.arange(N) < 0.7 * N)
    expected = fit(*given).logits()
    there = moved(device, *given)
    model = fit(*there)
    assert torch.equal(model.logits(), expected)
    assert torch.equal(model.logits(there[1]), expected)


def test_a_device_without_kernels_is_an_error():
    recv = RANDOM.degree_power(-1, torch.float32)
    weights = torch.ones(2, dtype=torch.float64)
    call = (*RANDOM.receivers(), X, recv, recv, weights)
    with pytest.raises(ValueError, match=r"'x'.*CUDA.*meta.*no kernel"):
        ops.propagate(*call[:2], X.to('meta'), *call[3:])
    for i in (0, 1, 3, 4):
        other = [t.to('meta') if i == k else t for k, t in enumerate(call)]
        with pytest.raises(ValueError, match=r'device of the other.*got meta'):
            ops.propagate(*other)
    with pytest.raises(ValueError, match=r"'weights'.*cpu.*got meta"):
        ops.propagate(*call[:5], weights.to('meta'))
