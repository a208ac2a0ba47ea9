"""What runs on CUDA stays there: shown on a device that is simulated."""

import copy
import re

import pytest
import torch
from simulated import NAME, Elsewhere, Simulation
from torch.nn.functional import cross_entropy
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


def inputs(name='random', columns=3):
    graph = make_graph(name)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(graph.num_nodes, columns, generator=generator)
    return graph.to_edge_index()[0], x, graph.num_nodes


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


MEASURES = [F.appnp(0.1, levels=4), F.sgc(2), F.ppr(0.2), F.hkpr(1.0)]


@pytest.mark.parametrize('eps', [0.0, 1e-2])
@pytest.mark.parametrize('measure', MEASURES, ids=lambda m: m.name)
def test_propagate_and_its_gradient(device, measure, eps):
    edge_index, x, n = inputs(columns=40)
    wanted_x = x.clone().requires_grad_()
    graph = CSRGraph.from_edge_index(edge_index, n)
    wanted = F.propagate(graph, wanted_x, measure, eps=eps, seed=1)
    wanted.square().sum().backward()

    there, signal = moved(device, edge_index, x)
    signal.requires_grad_()
    graph = CSRGraph.from_edge_index(there, n)
    z = F.propagate(graph, signal, measure, eps=eps, seed=1)
    z.square().sum().backward()
    nothing_moved(device)
    torch.testing.assert_close(here(z.detach()), wanted.detach())
    torch.testing.assert_close(here(signal.grad), wanted_x.grad)


def test_katz_reads_the_graph_once_for_its_radius(device):
    edge_index, x, n = inputs()
    there, signal = moved(device, edge_index, x)
    graph = CSRGraph.from_edge_index(there, n)
    measure = F.katz(0.5 / graph.spectral_radius, graph)
    # The graph is built on the CPU, of edges and twice of its rows; then come
    # rowptr and col, for ARPACK and for the number of levels.
    assert len(device.to_host) == 7
    device.to_host.clear()
    for eps in (0.0, 0.1):
        z = F.propagate(graph, signal, measure, eps=eps, seed=1)
        own = F.propagate(
            CSRGraph.from_edge_index(edge_index, n),
            *(x, measure),
            eps=eps,
            seed=1,
        )
        torch.testing.assert_close(here(z), own)
    nothing_moved(device)


def test_bounds(device):
    edge_index, x, n = inputs()
    there, signal = moved(device, edge_index, x)
    graph = CSRGraph.from_edge_index(there, n)
    measure = F.ppr(0.2, levels=5)
    here(F.variance_bound(graph, signal, measure, 1e-3))
    here(prune_bound(graph, measure, 1e-3))
    nothing_moved(device)


@pytest.mark.parametrize('method', ['sample', 'prune'])
def test_query(device, method):
    edge_index, _, n = inputs()
    own = CSRGraph.from_edge_index(edge_index, n)
    nodes = torch.tensor([3, 1, 7])
    wanted = F.query(
        own, nodes, F.ppr(0.2), eps=1e-2, method=method, seed=1, top_k=4
    )
    there, asked = moved(device, edge_index, nodes)
    graph = CSRGraph.from_edge_index(there, n)
    got = F.query(
        graph, asked, F.ppr(0.2), eps=1e-2, method=method, seed=1, top_k=4
    )
    again = F.query(
        graph, uniform_signal(asked, n), F.ppr(0.2), eps=1e-2, seed=1
    )
    assert again.device == got.device == NAME
    torch.testing.assert_close(here(got.values()), wanted.values())
    assert torch.equal(here(got.col_indices()), wanted.col_indices())
    with pytest.raises(ValueError, match="'signals' needs to be on the graph"):
        F.query(graph, nodes, F.ppr(0.2), eps=1e-2)


def test_clusters(device):
    edge_index, _, n = inputs()
    wanted = utils.local_cluster(edge_index, 3, num_nodes=n)
    (there,) = moved(device, edge_index)
    got = utils.local_cluster(there, 3, num_nodes=n)
    assert torch.equal(here(got.nodes), wanted.nodes)
    assert got.conductance == wanted.conductance


@pytest.mark.parametrize('eps', [0.0, 1e-2])
def test_convolutions(device, eps):
    edge_index, x, _ = inputs(columns=5)
    for conv in (
        SGConv(5, 4, K=2, eps=eps, seed=1),
        APPNP(3, 0.1, eps=eps, seed=1),
    ):
        wanted = conv(x, edge_index)
        there, signal = moved(device, edge_index, x)
        for name, parameter in list(conv.named_parameters()):
            module, _, last = name.rpartition('.')
            owner = conv.get_submodule(module)
            owner.register_parameter(
                last, torch.nn.Parameter(parameter.detach().to(NAME))
            )
        device.to_device.clear()
        z = conv(signal, there)
        nothing_moved(device)
        torch.testing.assert_close(here(z.detach()), wanted.detach())


@pytest.mark.parametrize('K', [None, 3])
def test_diffusions(device, K):
    edge_index, x, n = inputs(columns=4)
    model = PPNP(torch.nn.Identity(), 0.2, K)
    wanted = model(x, edge_index)
    y = torch.arange(n) % 3
    labels = LabelPropagation(alpha=0.2, num_classes=3, K=K)
    wanted_labels = labels(y, edge_index)
    there, signal, classes = moved(device, edge_index, x, y)
    got, got_labels = model(signal, there), labels(classes, there)
    nothing_moved(device)
    torch.testing.assert_close(here(got), wanted)
    torch.testing.assert_close(here(got_labels), wanted_labels)


@pytest.mark.parametrize(
    'transform',
    [
        AGP('appnp', alpha=0.1, levels=3, eps=0.0),
        AGP('appnp', alpha=0.1, levels=3, eps=1e-2, seed=1),
        GDC('ppr', alpha=0.2, eps=1e-2, seed=1, top_k=3),
        GDC('heat', t=2.0, eps=1e-2, seed=1, threshold=1e-3),
    ],
    ids=repr,
)
def test_transforms(device, transform):
    edge_index, x, n = inputs()
    wanted = transform(Data(x=x, edge_index=edge_index, num_nodes=n))
    there, signal = moved(device, edge_index, x)
    data = transform(Data(x=signal, edge_index=there, num_nodes=n))
    if isinstance(transform, AGP):  # queries run on the CPU
        nothing_moved(device)
    for name in ('x', 'edge_index', 'edge_weight'):
        if wanted.get(name) is not None:
            torch.testing.assert_close(here(data[name]), wanted[name])


@pytest.mark.parametrize(
    'transform',
    [
        GraphScattering(J=3, Q=2, L=2),
        GraphScattering(J=3, Q=2, L=2, wavelet='monic_cubic'),
    ],
    ids=repr,
)
def test_scattering(device, transform):
    edge_index, x, n = inputs()
    data = Data(x=2 * x - 1, edge_index=edge_index, num_nodes=n)
    wanted = transform(data).z
    there, signal = moved(device, edge_index, 2 * x - 1)
    got = transform(Data(x=signal, edge_index=there, num_nodes=n)).z
    assert got.device == NAME
    # Eigenvalues are found for blocks of graphs, whose sizes the host reads.
    spectral = getattr(transform, 'wavelet', '') == 'monic_cubic'
    nothing_moved(device, ('(1,)', '(2,)'), lists=4 * spectral)
    torch.testing.assert_close(here(got), wanted)


def test_walks_and_their_sampler(device):
    edge_index, _, n = inputs()
    mask = torch.arange(n) % 2 == 0
    (there, roots) = moved(device, edge_index, mask)
    graph = CSRGraph.from_edge_index(there, n)
    walks = disjoint_walks(graph, 2, 2, roots=roots, seed=1)
    here(walks.select(walks.ptr[:2]).node)
    sampler = DisjointWalkSampler(
        Data(edge_index=there, num_nodes=n), 2, 2, roots, seed=1
    )
    out = sampler.sample_walks(sampler.partition())
    nothing_moved(device)
    own = DisjointWalkSampler(
        Data(edge_index=edge_index, num_nodes=n), 2, 2, mask, seed=1
    )
    wanted = own.sample_walks(own.partition())
    for name in ('node', 'row', 'col', 'edge', 'batch'):
        assert torch.equal(here(getattr(out, name)), getattr(wanted, name))
    with pytest.raises(ValueError, match="'roots' needs to be on the graph"):
        disjoint_walks(graph, 2, 2, roots=mask)


def test_loader(device):
    edge_index, x, n = inputs()
    there, signal = moved(device, edge_index, x)
    arguments = {'batch_size': 4, 'walk_length': 2, 'num_steps': 3, 'seed': 1}
    batches = DisjointWalkLoader(
        Data(x=signal, edge_index=there, num_nodes=n), **arguments
    )
    wanted = DisjointWalkLoader(
        Data(x=x, edge_index=edge_index, num_nodes=n), **arguments
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
    edge_index, x, n = inputs()
    y = torch.arange(n) % 2
    start = GCNConv(3, 2)
    weights = []
    for data in (
        Data(x=x, edge_index=edge_index, y=y, num_nodes=n),
        Data(*moved(device, x, edge_index), None, y.to(NAME), num_nodes=n),
    ):
        model = copy.deepcopy(start)
        for layer in model.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                value = parameter.detach().to(data.x.device)
                setattr(layer, name, torch.nn.Parameter(value))
        engine = PrivacyEngine(insecure_seed=0)
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
        assert there.device == NAME
        torch.testing.assert_close(here(there), own)
        assert not torch.equal(own, first)


def test_a_device_without_kernels_is_an_error():
    _, x, _ = inputs()
    graph = make_graph('random')
    recv = graph.degree_power(-1, torch.float32)
    weights = torch.ones(2, dtype=torch.float64)
    call = (*graph.receivers(), x, recv, recv, weights)
    with pytest.raises(ValueError, match=r"'x'.*CUDA.*meta.*no kernel"):
        ops.propagate(*call[:2], x.to('meta'), *call[3:])
    for i in (0, 1, 3, 4):
        moved = [t.to('meta') if i == k else t for k, t in enumerate(call)]
        with pytest.raises(ValueError, match=r'device of the other.*got meta'):
            ops.propagate(*moved)
    with pytest.raises(ValueError, match=r"'weights'.*cpu.*got meta"):
        ops.propagate(*call[:5], weights.to('meta'))


@pytest.mark.parametrize('relation', ['node', 'feature'])
def test_a_private_classifier_takes_data_of_the_device(device, relation):
    # The encoder was paid for, then tensors met on both devices.
    edges, x, n = inputs(columns=5)
    train = torch.arange(n) < 0.7 * n
    y = torch.arange(n) % 3

    def fit(edges, x, y, train):
        data = Data(x=x, edge_index=edges, y=y, train_mask=train)
        model = PrivateNodeClassifier(
            relation, delta=1e-4, steps=2, num_classes=3, insecure_seed=0
        )
        return model.fit(data)

    expected = fit(edges, x, y, train).logits()
    there = moved(device, edges, x, y, train)
    model = fit(*there)
    assert torch.equal(model.logits(), expected)
    assert torch.equal(model.logits(there[1]), expected)
