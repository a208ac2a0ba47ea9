import copy
import shutil

import pytest
import torch
from references import Silence
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.nn import GINConv, global_mean_pool

from pyg_trust.loader import GraphLoader
from pyg_trust.privacy import PrivacyEngine


def make_graph(number, nodes=None):
    generator = torch.Generator().manual_seed(number)
    nodes = 2 + number % 5 if nodes is None else nodes
    ring = torch.arange(nodes)
    edges = torch.stack([ring, (ring + 1) % nodes])
    return Data(
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        edge_attr=torch.rand(2 * nodes, 1, generator=generator),
        y=torch.tensor([number % 2]),
    )


GRAPHS = [make_graph(i) for i in range(24)]


class GIN(nn.Module):
    """Two layers, pooled, with a row per graph."""

    def __init__(self, fan_in=4, hidden=8, classes=2):
        super().__init__()
        self.first = GINConv(nn.Linear(fan_in, hidden))
        self.second = GINConv(nn.Linear(hidden, hidden))
        self.out = nn.Linear(hidden, classes)

    def forward(self, x, edge_index, batch):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return self.out(global_mean_pool(x, batch))


def forward(model, batch):
    return model(batch.x, batch.edge_index, batch.batch)


def attach(graphs=GRAPHS, net=None, loader=None, engine=None, **arguments):
    torch.manual_seed(0)
    net = GIN() if net is None else net
    engine = PrivacyEngine(**{'insecure_seed': 1, **(engine or {})})
    options = {'batch_size': 6, 'seed': 2, **(loader or {})}
    arguments = {
        'noise_multiplier': 2.0,
        'max_grad_norm': 0.1,
        'forward': forward,
        **arguments,
    }
    training = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=GraphLoader(graphs, **options),
        **arguments,
    )
    return engine, net, training


def train(training, loss=F.cross_entropy, steps=100):
    model, optimizer, loader = training
    for batch, _ in zip(loader, range(steps), strict=False):
        loss(forward(model, batch), batch.y).backward()
        optimizer.step()


def test_batches_are_whole_graphs():
    loader = GraphLoader(GRAPHS, 5, num_steps=7, seed=3)
    seen = 0
    for batch in loader:
        assert batch.input_id.unique().numel() == 5
        for place, number in enumerate(batch.input_id.tolist()):
            graph = GRAPHS[number]
            mine = batch.batch == place
            assert batch.x[mine].equal(graph.x)
            assert batch.y[place] == graph.y[0]
            edges = batch.edge_index[:, mine[batch.edge_index[0]]]
            assert (edges - batch.ptr[place]).equal(graph.edge_index)
        seen += 1
    assert seen == 7
    assert str(loader).startswith('GraphLoader(24 graphs, batch_size=5')
    workers = GraphLoader(GRAPHS, 5, num_steps=7, seed=3, num_workers=2)
    for one, two in zip(
        GraphLoader(GRAPHS, 5, num_steps=7, seed=3), workers, strict=True
    ):
        assert one.x.equal(two.x)
        assert one.input_id.equal(two.input_id)


class Odd(Data):
    """Puts its graphs together by a rule of its own."""

    def __inc__(self, key, value, *args, **kwargs):
        return 1 if key == 'tag' else super().__inc__(key, value, *args)


def told(number, kind):
    graph = make_graph(number)
    nodes = graph.num_nodes
    more = {
        'plain': {'x': torch.eye(nodes).half()[:, :2]},
        'scalar': {'y': torch.tensor(number)},
        'number': {'level': number / 3},
        'index': {'pair_index': torch.tensor([[0], [1]]), 'face': None},
        'face': {'face': torch.tensor([[0], [1], [nodes - 1]])},
        'small index': {'near_index': torch.zeros(3, dtype=torch.int32)},
        'truths': {'root_index': torch.ones(2, dtype=torch.bool)},
        'text': {'name': f'graph {number}'},
        'batch': {'my_batch': torch.arange(2)},
        'ptr': {'ptr': torch.tensor([0, nodes])},
        'nodes': {'num_nodes': nodes},
        'sparse': {'adj': torch.eye(nodes).to_sparse()},
        'some': {'more': torch.ones(1)} if number else {},
        'own rule': {'tag': torch.zeros(1, dtype=torch.int64)},
    }[kind]
    made = Odd() if kind == 'own rule' else Data()
    return made.update({**graph.to_dict(), **more})


KINDS = (
    *('plain', 'scalar', 'number', 'index', 'face', 'small index', 'truths'),
    *('text', 'batch', 'ptr', 'nodes', 'sparse', 'some', 'own rule'),
)


@pytest.mark.parametrize('kind', KINDS)
def test_batches_are_those_of_pyg(kind):
    # Of the same graphs in the same order, PyG makes the batch.
    graphs = [told(i, kind) for i in range(9)]
    loader = GraphLoader(graphs, 4, seed=3)
    for index in ([8, 1, 5], [2], [6, 4, 3, 7]):
        batch = loader.collate_fn(index)
        expected = Batch.from_data_list([graphs[i] for i in index]).to_dict()
        found = batch.to_dict()
        own = {'n_id', 'input_id', 'batch_size', 'num_nodes'}
        assert found.keys() - own == expected.keys() - own
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert found[name].dtype == value.dtype
                assert found[name].to_dense().equal(value.to_dense())
            else:
                assert found[name] == value
        assert batch.num_nodes == sum(graphs[i].num_nodes for i in index)


@pytest.mark.parametrize('size', [1, 5, 24])
def test_a_seeded_loader_draws_at_the_rate_that_it_states(size):
    # Each of 24 graphs by a coin of its own, in every step.
    loader = GraphLoader(GRAPHS, size, sampling='poisson', seed=3)
    steps = 400
    drawn = torch.zeros(24)
    for step in range(steps):
        drawn[loader.batch_sampler.index(step)] += 1
    rate = loader.sample_rate
    assert rate == size / 24
    error = (rate * (1 - rate) / steps) ** 0.5
    assert float((drawn / steps - rate).abs().max()) <= 5 * error
    assert abs(float(drawn.mean()) / steps - rate) <= 5 * error / 24**0.5


@pytest.mark.parametrize('seed', range(3))
def test_one_graph_moves_the_sum_by_twice_the_norm(seed):
    # Replaced by graphs of another size, structure, label and scale.
    def total(graphs):
        engine, net, training = attach(
            graphs, loader={'batch_size': 24, 'seed': seed}
        )
        engine._noise = Silence()
        train(training, steps=1)
        grads = [p.grad.reshape(-1) for p in net.parameters()]
        return 24 * torch.cat(grads)

    before = total(GRAPHS)
    largest = 0.0
    for nodes in (1, 30):
        for scale in (1.0, 1e3, -1e3):
            other = make_graph(100 + seed, nodes)
            other.x *= scale
            other.y = 1 - GRAPHS[seed].y
            graphs = [*GRAPHS[:seed], other, *GRAPHS[seed + 1 :]]
            largest = max(largest, float((total(graphs) - before).norm()))
    assert 0.1 < largest <= 2 * 0.1 * (1 + 1e-6)


def test_what_is_private_of_a_graph_is_in_no_file(tmp_path):
    # The edges of a graph are as secret as its features.
    states = []
    for change in (False, True):
        graphs = copy.deepcopy(GRAPHS)
        if change:
            graphs[3].edge_index = graphs[3].edge_index[:, :2]
            graphs[3].edge_attr = graphs[3].edge_attr[:2]
        engine, _, _ = attach(
            graphs, engine={'ledger': tmp_path / f'{change}.ledger'}
        )
        states.append(engine.report(1e-3).data_sha256)
        engine.close()
    assert states[0] == states[1]


def test_gin_on_proteins(shared, tmp_path):
    shutil.copytree(shared / 'data/TU/PROTEINS', tmp_path / 'PROTEINS')
    graphs = list(TUDataset(str(tmp_path), 'PROTEINS'))
    order = torch.randperm(
        len(graphs), generator=torch.Generator().manual_seed(0)
    ).tolist()
    test = [graphs[i] for i in order[:222]]
    graphs = [graphs[i] for i in order[222:]]
    torch.manual_seed(0)
    net = GIN(graphs[0].num_features, 16)
    engine = PrivacyEngine(insecure_seed=1)
    training = engine.make_private_with_epsilon(
        module=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.02),
        data_loader=GraphLoader(graphs, 256, num_steps=60, seed=0),
        target_epsilon=8.0,
        target_delta=1e-4,
        steps=60,
        max_grad_norm=1.0,
        forward=forward,
    )
    train(training)
    assert engine.steps == 60
    assert engine.get_epsilon(1e-4) <= 8
    net.eval()
    right = sum(
        int(
            net(g.x, g.edge_index, torch.zeros(len(g.x)).long()).argmax(1)
            == g.y
        )
        for g in test
    )
    # The larger class has 0.6.
    assert right / len(test) > 0.65


# What a loss reads of a batch besides outputs and labels


@pytest.mark.parametrize('count', [12, 13])
def test_no_refusal_tells_how_many_graphs_there_are(count):
    # A table of 13 rows was refused for 13 graphs, which were named.
    class Table(GIN):
        def __init__(self):
            super().__init__()
            self.table = torch.zeros(13, 2)

    options = {
        'batch_size': 4,
        'num_steps': 1,
        'sampling': 'poisson',
        'neighboring': 'add_remove',
        'sample_rate': 0.3,
    }
    engine, _, training = attach(GRAPHS[:count], Table(), options)
    train(training)
    assert engine.steps == 1

    class Nodes(GIN):
        def forward(self, x, edge_index, batch):
            return self.out(self.first(x, edge_index))

    said = []
    for graphs in (GRAPHS[:count], GRAPHS[:11]):
        with pytest.raises(ValueError, match='a row per graph') as error:
            attach(graphs, Nodes(), options)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_a_transform_of_a_dataset_is_called_at_every_access():
    class Noisy(torch.utils.data.Dataset):
        size = 2

        def __len__(self):
            return 4

        def __getitem__(self, i):
            x = torch.rand(self.size, 1)
            return Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]))

    data = Noisy()
    loader = GraphLoader(data, 4, num_steps=1)
    values = {float(v) for _ in range(3) for b in loader for v in b.x.view(-1)}
    assert len(values) == 24
    data.size = 3
    with pytest.raises(ValueError, match='pre_transform='):
        next(iter(loader))
