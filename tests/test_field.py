"""Situations of public reports, with a value from PyG or by hand.

The table is in ``docs/field.rst``.
"""

import copy
import pickle

import networkx
import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
import torch_geometric.transforms as T
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ChainDataset
from torch_geometric.data import (
    Batch,
    Data,
    HeteroData,
    InMemoryDataset,
    OnDiskDataset,
    TemporalData,
)
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.utils import index_to_mask, is_undirected

import pyg_trust.nn as ours
from pyg_trust.certificates import BitFlips, Divided, ThreatModel, certify
from pyg_trust.loader import DisjointWalkLoader, GraphLoader, UnitLoader
from pyg_trust.privacy import PrivacyEngine, PrivateNodeClassifier
from pyg_trust.report import TrustReport
from pyg_trust.transforms import (
    AGP,
    GDC,
    BoundedDegree,
    FlipBits,
    GraphScattering,
)
from pyg_trust.unit import PrivacyUnit
from pyg_trust.unlearning import (
    NodeClassifier,
    Recommender,
    ScatteringClassifier,
    ShardedUnlearner,
)

N = 30
SEEDED = torch.Generator().manual_seed(0)
X = torch.rand(N, 6, generator=SEEDED)
Y = torch.arange(N) % 3
PAIRS = torch.randint(N, (2, 80), generator=SEEDED)
PAIRS = PAIRS[:, PAIRS[0] != PAIRS[1]]
PAIRS = torch.cat([PAIRS, PAIRS.flip(0)], 1).unique(dim=1)
PATH = torch.tensor([[0, 1], [1, 0]])


def data(**more):
    made = {
        'x': X.clone(),
        'edge_index': PAIRS.clone(),
        'y': Y.clone(),
        'train_mask': torch.arange(N) < 20,
    }
    return Data(**{**made, **more})


def graphs(**more):
    return [
        Data(
            x=torch.rand(3, 3, generator=SEEDED),
            edge_index=PATH,
            y=torch.tensor([k % 2]),
            **{name: make(k) for name, make in more.items()},
        )
        for k in range(8)
    ]


def private(net, loader):
    return PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.Adam(net.parameters()),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )


# Graphs as data sets hold them ###############################################


def test_labels_in_a_column_and_splits_by_ids():
    # OGB: y of [num_nodes, 1], and a dict of ids.
    given, train = data(), torch.arange(20)
    given.y = given.y.view(-1, 1)
    plain = NodeClassifier(weight_decay=0.1, seed=0).fit(data(), train)
    model = NodeClassifier(weight_decay=0.1, seed=0).fit(given, train)
    assert model.predict().equal(plain.predict())
    rest = torch.arange(20, N)
    assert model.score(rest, given.y) == plain.score(rest, Y)
    shards = ShardedUnlearner(
        lambda: pyg.GCN(6, 8, 2, 3), 2, epochs=1, num_classes=3, seed=0
    )
    given.train_mask = index_to_mask(train, N)
    shards.fit(given)
    loader = DisjointWalkLoader(given, 4, 1, input_nodes=train)
    model, optimizer, loader = private(pyg.GCN(6, 8, 2, 3), loader)
    batch = next(iter(loader))
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size, 0]).backward()
    optimizer.step()


def test_events_are_no_graph_and_the_message_says_what_is():
    events = TemporalData(
        src=torch.arange(5),
        dst=torch.arange(5) + 5,
        t=torch.arange(5),
        msg=torch.rand(5, 3),
    )
    for take in (
        NodeClassifier().fit,
        lambda given: DisjointWalkLoader(given, 2, 1),
        AGP('sgc', K=2),
        GDC(),
        BoundedDegree(2),
    ):
        with pytest.raises(TypeError, match='TemporalData') as error:
            take(events)
        said = str(error.value)
        assert 'edge_index=torch.stack([data.src, data.dst])' in said or (
            'HeteroData' in said
        )
        with pytest.raises(TypeError, match='got list') as error:
            take([data()])
        assert 'to_homogeneous' not in str(error.value)
    graph = Data(
        x=torch.rand(10, 3),
        edge_index=torch.stack([events.src, events.dst]),
        edge_attr=events.msg,
        time=events.t,
    )
    assert AGP('ppr', alpha=0.1)(graph).x.shape == (10, 3)


def test_edges_of_a_matrix_of_torch_are_all_there():
    # `num_edges` of such a graph was 0.
    given = T.ToSparseTensor(layout=torch.sparse_csr)(data())
    model = NodeClassifier(weight_decay=0.1, seed=0).fit(given)
    plain = NodeClassifier(weight_decay=0.1, seed=0).fit(data())
    assert model.graph.num_edges == plain.graph.num_edges == PAIRS.size(1)
    assert model.predict().equal(plain.predict())


def test_interactions_in_lists_and_items_after_users():
    pairs = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 2]])
    want = Recommender().fit(pairs, 3, 3).recommend(torch.arange(3), 2)
    for given in (pairs.int(), pairs.tolist(), pairs.numpy()):
        found = Recommender().fit(given, 3, 3).recommend(torch.arange(3), 2)
        assert str(found) == str(want)
    typed = HeteroData()
    typed['user'].num_nodes = typed['item'].num_nodes = 3
    typed['user', 'likes', 'item'].edge_index = pairs
    for given in (typed, T.ToSparseTensor(layout=torch.sparse_csr)(typed)):
        found = Recommender().fit(given).recommend(torch.arange(3), 2)
        assert str(found) == str(want)
    # One numbering for both, as of LightGCN.
    after = pairs + torch.tensor([[0], [3]])
    with pytest.raises(ValueError, match=r'torch.unique\(edge_index, dim=1\)'):
        Recommender().fit(pairs[:, [0, 0, 1]], 3, 3)
    with pytest.raises(ValueError, match=r'edge_index\[1\] - num_users'):
        Recommender().fit(after, 3, 3)
    again = torch.stack([after[0], after[1] - 3])
    found = Recommender().fit(again, 3, 3).recommend(torch.arange(3), 2)
    assert str(found) == str(want)


def test_edges_of_every_graph_of_a_list_are_checked():
    # One that names a node too many would read the next graph of a batch.
    for edges, error in (
        ([[0, 1], [1, 3]], ValueError),
        ([[0, -1], [1, 0]], ValueError),
        ([[0, 1]], ValueError),
        ([[0.0, 1], [1, 0]], TypeError),
    ):
        held = graphs()
        held[5].edge_index = torch.tensor(edges)
        with pytest.raises(error, match=r"'data\[5\]\.edge_index"):
            GraphLoader(held, 2)


def test_private_classifiers_take_columns_lists_and_leaves():
    # Without a seed of torch an MLP starts elsewhere; 'feature' has none.
    def fitted(**changes):
        given = data()
        for name, value in changes.items():
            given[name] = value
        model = PrivateNodeClassifier(
            'feature', epsilon=4.0, delta=1e-3, steps=2, insecure_seed=0
        )
        return model.fit(given).predict()

    want = fitted()
    for changes in (
        {'y': Y.view(-1, 1)},
        {'y': Y.int()},
        {'train_mask': (torch.arange(N) < 20).view(-1, 1)},
        {'train_mask': np.arange(N) < 20},
        {'x': X.clone().requires_grad_()},
        {'edge_index': PAIRS.int()},
    ):
        assert fitted(**changes).equal(want), changes
    with pytest.raises(ValueError, match="choose a column, as 'train_mask"):
        fitted(train_mask=torch.ones(N, 3).bool())
    leaf = data()
    leaf.x.requires_grad_()
    model = PrivateNodeClassifier('edge', epsilon=4.0, delta=1e-3, epochs=2)
    assert model.fit(leaf).predict().shape == (N,)


def test_rows_by_masks_lists_and_arrays_in_the_words_of_the_user():
    mask = torch.arange(N) < 20
    for given in (mask, mask.numpy(), mask.tolist(), mask.view(-1, 1)):
        model = NodeClassifier(weight_decay=0.1, seed=0).fit(data(), given)
        assert model.num_train == 20
        loader = DisjointWalkLoader(data(), 4, 1, input_nodes=given)
        assert loader.input_nodes.equal(torch.arange(20))
    with pytest.raises(TypeError, match=r'predict_on\(data\)'):
        model.predict(data())
    with pytest.raises(ValueError, match=r"99 is not there.*missing='skip'"):
        model.remove(nodes=[3, 99])
    known = model.predict(torch.arange(20))
    assert model.predict(mask.numpy()).equal(known)
    column = mask.nonzero()
    assert model.predict(column).equal(known)
    model.remove(nodes=column[:2])
    assert model.nodes.tolist() == [*range(2, N)]
    for bad in ([-1, 2], [1, 1], [], mask[:3], [N]):
        with pytest.raises(ValueError, match="'input_nodes' needs"):
            DisjointWalkLoader(data(), 2, 1, input_nodes=bad)
    threat = ThreatModel(PAIRS, local_budget=1, num_nodes=N)
    for given in (mask, mask.numpy(), mask.tolist(), [*range(20)]):
        found = certify(X[:, :3], threat, nodes=given)
        assert found.targets.equal(torch.arange(20))
    stream = ChainDataset([])
    with pytest.raises(TypeError, match=r'list\(data\).*got ChainDataset'):
        GraphLoader(stream, 2)
    joined = Batch.from_data_list(graphs())
    assert next(iter(GraphLoader(joined, 2))).num_graphs == 2


# Transforms ##################################################################


def test_gdc_of_edges_that_are_listed_twice():
    twice = data(edge_index=torch.cat([PAIRS, PAIRS[:, :9]], 1))
    theirs, mine = (
        kind(1.0, sparsification_kwargs={'method': 'threshold', 'eps': 1e-6})(
            copy.copy(twice)
        )
        for kind in (T.GDC, GDC)
    )
    one, two = (
        torch.zeros(N, N).index_put(tuple(g.edge_index), g.edge_attr)
        for g in (theirs, mine)
    )
    torch.testing.assert_close(one, two)


def test_gdc_by_position_of_isolated_nodes_and_large_k():
    heat = {'method': 'heat', 't': 3.0}
    for given in (
        (1.0, 'sym', 'col', {'method': 'ppr', 'alpha': 0.15}),
        (0.0, 'sym', 'col', heat, {'method': 'topk', 'k': 200, 'dim': 0}),
        (1, 'col', None, heat, {'method': 'threshold', 'eps': 1e-3}, True),
    ):
        alone = data()
        keep = (alone.edge_index != 3).all(0)
        alone.edge_index = alone.edge_index[:, keep]
        theirs = T.GDC(*given)(copy.copy(alone))
        mine = GDC(*given)(copy.copy(alone))
        one, two = (
            torch.zeros(N, N).index_put(tuple(g.edge_index), g.edge_attr)
            for g in (theirs, mine)
        )
        assert torch.allclose(one, two, atol=1e-6)
    with pytest.raises(TypeError, match='multiple values'):
        GDC(1.0, 'sym', normalization_in='col')
    with pytest.raises(TypeError, match='too many'):
        GDC(1.0, 'sym', 'col', None, None, True, 4)


@pytest.mark.parametrize(
    'made',
    [
        AGP('sgc', K=2),
        GDC(),
        GDC(1.0),
        BoundedDegree(3),
        GraphScattering(J=2, Q=1, L=2),
        DisjointWalkLoader(data(), 4, 1),
        ours.APPNP(2, 0.1),
        ours.CorrectAndSmooth(2, 0.5, 2, 0.5),
    ],
    ids=lambda made: type(made).__name__,
)
def test_what_workers_need_can_be_pickled(made):
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert repr(other) == repr(made)


# Batches #####################################################################


def test_a_collate_fn_is_refused_and_not_ignored():
    for make in (
        lambda **more: GraphLoader(graphs(), 2, **more),
        lambda **more: DisjointWalkLoader(data(), 4, 1, **more),
    ):
        with pytest.raises(TypeError, match="Change batches by 'transform'"):
            make(collate_fn=lambda batch: batch)
        loader = make(transform=lambda batch: batch)
        assert next(iter(loader)).x is not None


def test_attributes_of_any_kind_are_those_of_pyg():
    held = graphs(
        thing=lambda k: k,
        thing_index=lambda k: torch.tensor([1]),
        name=lambda k: f'g{k}',
        extra=lambda k: [k, k + 1],
        nested=lambda k: {'a': torch.tensor([k])},
    )
    which = [4, 1, 6]
    mine = GraphLoader(held, 3)(which)
    theirs = Batch.from_data_list([held[k] for k in which])
    for name in ('thing', 'thing_index'):
        assert mine[name].equal(theirs[name])
    assert mine.name == theirs.name
    assert mine.extra == theirs.extra
    assert mine.nested['a'].equal(theirs.nested['a'])
    # Poisson sampling draws none at times, with the same attributes.
    empty = GraphLoader(held, 1, sampling='poisson')([])
    assert empty.num_graphs == 0
    assert set(theirs.keys()) <= set(empty.keys())


def test_graphs_on_disk(tmp_path):
    kept = {
        'x': {'dtype': torch.float, 'size': (-1, 3)},
        'edge_index': {'dtype': torch.int64, 'size': (2, -1)},
        'y': {'dtype': torch.int64, 'size': (-1,)},
    }

    class OnDisk(OnDiskDataset):
        def serialize(self, graph):
            return graph.to_dict()

        def deserialize(self, fields):
            return Data(**fields)

    stored, held = OnDisk(tmp_path, schema=kept), graphs()
    stored.extend(held)
    mine, theirs = GraphLoader(stored, 3)([5, 2]), GraphLoader(held, 3)([5, 2])
    stored.close()
    for name in kept:
        assert mine[name].equal(theirs[name])


def test_scattering_of_a_batch_whose_last_graphs_have_no_edges():
    made, held = GraphScattering(J=2, Q=1, L=2), graphs()
    for graph in held[-2:]:
        graph.edge_index = PATH[:, :0]
    joined = Batch.from_data_list(held)
    each = torch.cat([made(copy.copy(graph)).z for graph in held])
    torch.testing.assert_close(made(copy.copy(joined)).z, each)
    mixed = joined.x, joined.edge_index
    with pytest.raises(ValueError, match="'batch' needs to be ascending"):
        made(Data(*mixed, batch=joined.batch.flip(0)))


# Models ######################################################################


def test_typed_models_of_our_layers():
    rows = {'u': torch.rand(10, 6), 'i': torch.rand(4, 6)}
    edges = {
        ('u', 'r', 'u'): torch.randint(10, (2, 20)),
        ('i', 's', 'i'): torch.randint(4, (2, 8)),
    }

    class Net(nn.Module):
        def __init__(self, kit):
            super().__init__()
            self.first, self.last = kit.SGConv(6, 3, 2), kit.APPNP(2, 0.1)

        def forward(self, x, edge_index):
            return self.last(self.first(x, edge_index).relu(), edge_index)

    found = []
    for kit in (pyg, ours):
        torch.manual_seed(0)
        typed = pyg.to_hetero(Net(kit), (['u', 'i'], [*edges]))
        several = pyg.HeteroConv({k: kit.SGConv(6, 3, 2) for k in edges})
        for p in (*typed.parameters(), *several.parameters()):
            nn.init.normal_(p)
        found.append((typed(rows, edges), several(rows, edges)))
    for one, two in zip(*found, strict=True):
        assert all(torch.allclose(one[t], two[t], atol=1e-4) for t in rows)
    # Two kinds of rows at once: PyG fails inside, here the argument is named.
    for layer in (ours.SGConv(6, 3), ours.APPNP(2, 0.1)):
        with pytest.raises(
            TypeError, match=r"'x' needs to be a .* \(got tuple\)"
        ):
            layer((rows['u'], rows['i']), edges['u', 'r', 'u'])


def test_labels_that_a_post_step_keeps():
    mask, rows = torch.arange(N) < 10, F.one_hot(Y, 3).float()

    def keep(out):
        out[mask] = rows[mask]
        return out.clamp_(0, 1)

    one, two = (
        kit.LabelPropagation(5, 0.9)(Y, PAIRS, mask, post_step=keep)
        for kit in (pyg, ours)
    )
    assert torch.allclose(one, two, atol=1e-6)
    assert two[mask].equal(rows[mask])


def test_compiled_for_graphs_of_every_size():
    layer = ours.APPNP(3, 0.2)
    compiled = torch.compile(layer, dynamic=True, backend='eager')
    for n in (10, 20, N):
        part = PAIRS[:, PAIRS.amax(0) < n]
        assert torch.allclose(
            compiled(X[:n], part), pyg.APPNP(3, 0.2)(X[:n], part), atol=1e-5
        )


def test_a_quantized_encoder_predicts_and_does_not_train_privately():
    encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = ours.PPNP(encoder)
    few = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert (few(X, PAIRS) - model(X, PAIRS)).abs().max() < 0.1
    # Its scale is that of the largest row of a batch.
    net = pyg.Sequential(
        'x, edge_index',
        [
            (
                torch.ao.quantization.quantize_dynamic(encoder, {nn.Linear}),
                'x -> x',
            ),
            (pyg.GCNConv(3, 3), 'x, edge_index -> x'),
        ],
    )
    with pytest.raises(ValueError, match='treat subgraphs apart'):
        private(net, DisjointWalkLoader(data(), 8, 1))


def test_autoencoders_around_our_layers():
    torch.manual_seed(0)
    encoder = ours.SGConv(6, 8, 2)
    model = pyg.GAE(encoder)
    model.recon_loss(model.encode(X, PAIRS), PAIRS).backward()
    assert encoder.lin.weight.grad.abs().sum() > 0
    infomax = pyg.DeepGraphInfomax(
        8,
        encoder,
        lambda z, *rest: z.mean(0).sigmoid(),
        lambda x, edges: (x[torch.randperm(N)], edges),
    )
    infomax.loss(*infomax(X, PAIRS)).backward()


@pytest.mark.parametrize('form', ['edges', 'coo', 'csr'])
@pytest.mark.parametrize('first', [torch.ones, torch.rand])
def test_weights_of_edges_are_learned_in_every_form(form, first):
    # Also from weights that are all one, as those of no weights are.
    def learned(layer, form):
        torch.manual_seed(0)
        weight = first(PAIRS.size(1)).requires_grad_()
        graph = torch.sparse_coo_tensor(PAIRS.flip(0), weight, (N, N))
        if form == 'csr':
            graph = graph.coalesce().to_sparse_csr()
        given = (PAIRS, weight) if form == 'edges' else (graph,)
        out = layer(X, *given)
        out.square().sum().backward()
        return out.detach(), weight.grad

    def pagerank(x, edges, weight):
        adj = torch.zeros(N, N).index_put(tuple(edges), weight)
        spread = torch.eye(N) - 0.85 * adj / adj.sum(1, keepdim=True)
        return 0.15 * torch.linalg.solve(spread, x)

    for theirs, mine in (
        (pyg.APPNP(3, 0.1), ours.APPNP(3, 0.1)),
        (pagerank, ours.PPNP(nn.Identity(), 0.15)),
    ):
        wanted, found = learned(theirs, 'edges'), learned(mine, form)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


def test_counts_as_weights_and_as_features():
    counts = torch.arange(PAIRS.size(1)) % 3 + 1
    mask = torch.arange(N) < 10
    wanted = pyg.LabelPropagation(2, 0.5)(Y, PAIRS, mask, counts)
    found = ours.LabelPropagation(2, 0.5)(Y, PAIRS, mask, counts)
    torch.testing.assert_close(found, wanted)
    # Elsewhere PyG fails inside, and here the error says what to call.
    words = data(x=(10 * X).long())
    shards = ShardedUnlearner(lambda: pyg.GCN(6, 4, 2, 3), 2, epochs=1)
    for call, way in (
        (lambda: ours.APPNP(2, 0.1)(X, PAIRS, counts), 'edge_weight.float'),
        (lambda: ours.PPNP(nn.Identity())(X, PAIRS, counts), 'weight.float'),
        (lambda: ours.APPNP(2, 0.1)(words.x, PAIRS), r'x.float\(\)'),
        (lambda: AGP('sgc', K=2)(words), r'x.float\(\)'),
        (lambda: NodeClassifier().fit(words), r'data.x.float\(\)'),
        (lambda: shards.fit(words), r'data.x.float\(\)'),
        (lambda: shards.fit(data(y=Y.int())), r'data.y.long\(\)'),
    ):
        with pytest.raises(TypeError, match=way):
            call()


# Private training ############################################################


def test_gradients_are_accumulated_by_the_engine():
    model, _, loader = private(
        pyg.GCN(6, 8, 2, 3), DisjointWalkLoader(data(), 8, 1)
    )

    def step(batch):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()

    batches = iter(loader)
    step(next(batches))
    with pytest.raises(RuntimeError, match="pass 'max_physical_batch_size'"):
        step(next(batches))


def test_a_norm_that_two_layers_share():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
            self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, x, edge_index):
            x = self.norm(self.first(x)).relu()
            return self.last(self.norm(self.second(x)))

    net = Net()
    before = copy.deepcopy(net.norm.weight)
    model, optimizer, loader = private(net, DisjointWalkLoader(data(), 8, 1))
    batch = next(iter(loader))
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()
    assert not net.norm.weight.equal(before)


class Partly(pyg.GCN):
    """Weights that are frozen, and biases that are trained."""

    def __init__(self):
        super().__init__(6, 8, 2, 3)
        for name, p in self.named_parameters():
            p.requires_grad_(name.endswith('bias'))


class Tied(nn.Module):
    """A weight that two layers share."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GCNConv(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.lin.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x, edge_index):
        return self.last(self.second(self.first(x, edge_index).relu()))


class Normed(pyg.GCN):
    """A weight that is made of two parameters."""

    def __init__(self):
        super().__init__(6, 8, 2, 3)
        nn.utils.parametrizations.weight_norm(self.convs[0].lin)


# Means of these would divide by the labels of others.
WEIGHTS = torch.tensor([1.0, 5.0, 0.2])
LOSSES = {
    'mean': {},
    'weights of classes': {'weight': WEIGHTS, 'reduction': 'sum'},
    'unknown labels': {'ignore_index': 2, 'reduction': 'sum'},
}


@pytest.mark.parametrize(
    ('kind', 'loss'),
    [
        *((kind, 'mean') for kind in (Partly, Tied, Normed)),
        *((Tied, loss) for loss in LOSSES),
    ],
)
def test_gradients_of_subgraphs_that_are_run_alone(kind, loss):
    torch.manual_seed(0)
    net, options = kind(), LOSSES[loss]
    trained = [p for p in net.parameters() if p.requires_grad]
    model, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(trained, lr=0.0),
        data_loader=DisjointWalkLoader(data(train_mask=None), 8, 1),
        noise_multiplier=0.0,
        max_grad_norm=1.0,
    )
    batch = next(iter(loader))
    count = batch.batch_size
    out = model(batch.x, batch.edge_index)[:count]
    value = F.cross_entropy(out, batch.y[:count], **options)
    optimizer.zero_grad()  # late: nothing of the step is lost
    (value / count if options else value).backward()
    optimizer.step()
    wanted = [torch.zeros_like(p) for p in trained]
    for number in range(count):
        own = batch.subgraph(batch.batch == number)
        alone = net(own.x, own.edge_index)[:1]
        term = F.cross_entropy(alone, own.y[:1], **options)
        grads = torch.autograd.grad(term, trained)
        norm = sum(float(g.square().sum()) for g in grads) ** 0.5
        for total, g in zip(wanted, grads, strict=True):
            total += g * min(1.0, 1.0 / max(norm, 1e-9)) / count
    for p, value in zip(trained, wanted, strict=True):
        torch.testing.assert_close(p.grad, value, atol=1e-6, rtol=1e-4)


def test_what_no_private_step_can_do_is_refused_by_name():
    class Words(nn.Module):
        def __init__(self, use=None, **options):
            super().__init__()
            self.table, self.use = nn.Embedding(12, 3, **options), use
            self.rows = nn.GRU(3, 3, batch_first=True)
            self.conv = pyg.GCNConv(3, 3)

        def forward(self, x, edge_index):
            words = self.table(x)
            if self.use is not None:
                return self.use(self, words)
            return self.conv(self.rows(words)[0][:, -1], edge_index)

    def packed(net, words):
        lengths = torch.full((len(words),), 2)
        pack = nn.utils.rnn.pack_padded_sequence
        return net.rows(pack(words, lengths, batch_first=True))[1][0]

    given = data(x=torch.randint(12, (N, 2)), train_mask=None)
    loader = DisjointWalkLoader(given, 8, 1)
    for net, match in (
        (Words(max_norm=1.0), r"'table' \(Embedding\).*max_norm=None"),
        (Words(scale_grad_by_freq=True), 'scale_grad_by_freq=False'),
        (Words(packed), 'give the layer padded sequences'),
        (
            Words(lambda _, words: (words, words)),
            r'torch.cat\(\[one, two\], 1',
        ),
    ):
        with pytest.raises(ValueError, match=match):
            private(net, loader)
    # A gradient penalty, or features that a loop trains.
    given = data(x=X.clone().requires_grad_(), train_mask=None)
    model, _, loader = private(
        pyg.GCNConv(6, 3), DisjointWalkLoader(given, 8, 1)
    )
    batch = next(iter(loader))
    with pytest.raises(ValueError, match=r'data.x.detach\(\)'):
        model(batch.x, batch.edge_index)


def test_models_of_the_tutorials_take_the_data():
    # forward(self, data), as in PyG's introduction: the same bits.
    class OnParts(pyg.GCNConv):
        def __init__(self):
            super().__init__(6, 3)

    class OnData(OnParts):
        def forward(self, data):
            return super().forward(data.x, data.edge_index, data.edge_weight)

    graph = data(edge_weight=torch.rand(PAIRS.size(1), generator=SEEDED))
    found = []
    for kind in (OnParts, OnData):
        model = ShardedUnlearner(kind, 2, epochs=2, seed=0).fit(graph)
        model.remove(nodes=[3])
        found.append(model.predict_proba().nan_to_num(-1))
    assert torch.equal(*found)


def test_predictions_of_a_mask():
    model = ShardedUnlearner(
        lambda: pyg.GCN(6, 4, 2, 3), 2, epochs=1, seed=0
    ).fit(data())
    model.remove(nodes=[3])
    mask = torch.arange(N) > 20
    assert torch.equal(model.predict(nodes=mask), model.predict()[mask])


def test_as_many_nodes_as_edges():
    ring = torch.stack([torch.arange(N), (torch.arange(N) + 1) % N])
    graph = Data(x=X, edge_index=ring, y=Y, name=torch.arange(N))
    for batch in DisjointWalkLoader(graph, 4, 3, num_steps=3):
        assert torch.equal(batch.x, X[batch.name])
    single = [
        Data(x=torch.rand(2, 3), edge_index=PATH[:, :1], y=torch.tensor([k]))
        for k in range(6)
    ]
    batch = next(iter(GraphLoader(single, 4)))
    assert batch.y.numel() == 4
    assert batch.edge_index.size(1) == 4


def test_schedulers_and_questions_change_what_they_should():
    model = pyg.GCN(6, 4, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = PrivacyEngine()
    net, private, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DisjointWalkLoader(data(), 4, 2, num_steps=3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(private, 1, 0.1)
    for batch in loader:
        private.zero_grad()
        F.cross_entropy(net(batch.x, batch.edge_index), batch.y).backward()
        private.step()
        scheduler.step()
        assert engine.get_epsilon(1e-5) == engine.get_epsilon(1e-5)
    assert optimizer.param_groups[0]['lr'] == pytest.approx(1e-3)


def test_edges_of_requests_in_either_direction_and_one_after_another():
    u, v = PAIRS[:, 0].tolist()
    kept = ~torch.isin(PAIRS, PAIRS[:, 0]).all(0)
    plain = NodeClassifier(weight_decay=0.1, seed=0)
    plain.fit(data(edge_index=PAIRS[:, kept]))
    for edges in ([(u, v)], [(v, u)], [(u, v), (v, u)], [(u, v), (u, v)]):
        model = NodeClassifier(weight_decay=0.1, seed=0).fit(data())
        model.remove(edges=edges)
        assert model.graph.to_edge_index()[0].equal(
            plain.graph.to_edge_index()[0]
        )
        assert model.verify().ok
    found = []
    for steps in ([[3, 7]], [[3], [7]], [[7], [3]]):
        shards = ShardedUnlearner(
            lambda: pyg.GCN(6, 4, 2, 3), 2, epochs=1, num_classes=3, seed=0
        ).fit(data())
        for nodes in steps:
            shards.remove(nodes=nodes)
        found.append(shards.predict_proba().nan_to_num(-1))
    assert all(torch.equal(each, found[0]) for each in found)


def test_too_few_noisy_copies_to_certify_anything():
    with pytest.raises(ValueError, match="'num_samples' needs to be at least"):
        certify(
            pyg.GCNConv(6, 3), data(), BitFlips((0.0, 0.3)), num_samples=10
        )
    # Noise adds no edge twice, no loop, and keeps graphs undirected.
    for seed in range(3):
        noisy = FlipBits((0.2, 0.1), seed=seed)(data()).edge_index
        assert noisy.unique(dim=1).size(1) == noisy.size(1)
        assert (noisy[0] != noisy[1]).all()
        assert is_undirected(noisy)


def test_a_model_of_data_is_certified():
    class OnData(pyg.GCNConv):
        def forward(self, data):
            return super().forward(data.x, data.edge_index)

    noise, model = BitFlips(edges=(0.0, 0.3)), OnData(6, 3)
    plain = pyg.GCNConv(6, 3)
    plain.load_state_dict(model.state_dict())
    found = [
        certify(made, data(), noise, num_samples=200, seed=0).votes
        for made in (model, plain)
    ]
    assert torch.equal(*found)


def test_a_call_without_names_is_told_the_names():
    for call in ('make_private', 'make_private_with_epsilon'):
        with pytest.raises(TypeError, match=f"'{call}'.*module=model.*got 3"):
            getattr(PrivacyEngine(), call)(pyg.GCN(6, 4, 2, 3), None, None)


def test_what_opacus_tutorials_print_and_save():
    torch.manual_seed(0)
    net = pyg.GCN(6, 8, 2, 3)
    loader = DisjointWalkLoader(data(), 4, 1, num_steps=2, seed=0)
    model, optimizer, loader = private(net, loader)
    assert optimizer.noise_multiplier == optimizer.max_grad_norm == 1
    with (
        pytest.raises(TypeError, match='max_physical_batch_size='),
        BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=2, optimizer=optimizer
        ) as parts,
    ):
        next(iter(parts))
    with pytest.raises(AttributeError, match='schedulers'):
        ExponentialNoise(optimizer, gamma=0.9).step()
    for batch in loader:
        optimizer.zero_grad()
        with torch.no_grad():  # an evaluation in between, in training mode
            model(X, PAIRS)
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    # The names of weights have no prefix.
    plain = pyg.GCN(6, 8, 2, 3)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain.eval()(X, PAIRS), model.eval()(X, PAIRS))
    with pytest.raises(RuntimeError, match='To evaluate, call the model on'):
        sum(len(model(batch.x, batch.edge_index)) for batch in loader)


def test_a_data_set_or_a_graph_of_networkx_in_place_of_a_graph(tmp_path):
    class One(InMemoryDataset):
        def __init__(self):
            super().__init__(tmp_path)
            self._data, self.slices = self.collate([data()])

    for given, call in (
        (One(), r'dataset\[0\]'),
        (networkx.path_graph(3), 'from_networkx'),
    ):
        for fit in (NodeClassifier().fit, AGP('sgc', K=2)):
            with pytest.raises(TypeError, match=call):
                fit(given)
    assert NodeClassifier().fit(One()[0]).nodes.numel() == N


def test_correction_of_predictions_that_have_no_error():
    mask = torch.arange(N) < 20
    sure = F.one_hot(Y, 3).float()
    model = ours.CorrectAndSmooth(3, 0.8, 3, 0.8)
    assert torch.equal(model.correct(sure, Y[:20], mask, PAIRS), sure)


def test_processed_files_of_other_arguments_are_noticed(tmp_path):
    class Made(InMemoryDataset):
        processed_file_names = ('data.pt',)

        def __init__(self, levels):
            super().__init__(tmp_path, pre_transform=AGP('sgc', K=levels))
            self.load(self.processed_paths[0])

        def process(self):
            self.save([self.pre_transform(data())], self.processed_paths[0])

    made = Made(2)[0]
    assert torch.equal(made.x, AGP('sgc', K=2)(data()).x)
    with pytest.warns(UserWarning, match='pre_transform'):
        Made(3)


def test_splits_of_links_in_batches_of_graphs():
    split = T.RandomLinkSplit(is_undirected=True)
    parts = [AGP('sgc', K=2)(split(data())[0]) for _ in range(3)]
    (batch,) = DataLoader(parts, batch_size=3)
    for part, back in zip(parts, batch.to_data_list(), strict=True):
        assert torch.equal(part.edge_label_index, back.edge_label_index)
        assert torch.equal(part.x, back.x)


def test_a_graph_of_one_node():
    alone, none = X[:1], torch.empty(2, 0, dtype=torch.int64)
    torch.testing.assert_close(ours.APPNP(2, 0.1)(alone, none), alone)
    layer = ours.SGConv(6, 3, K=2)
    torch.testing.assert_close(layer(alone, none), layer.lin(alone))


def test_the_length_of_the_data_of_a_loader():
    assert len(GraphLoader(graphs(), 4).dataset) == 8
    loader = DisjointWalkLoader(
        *(data(), 4, 1), input_nodes=data().train_mask, num_steps=2
    )
    assert len(loader.dataset) == 20


def test_weights_in_a_column_and_features_in_coo():
    column = torch.rand(PAIRS.size(1), 1)
    wanted = pyg.APPNP(3, 0.1)(X, PAIRS, column)
    found = ours.APPNP(3, 0.1)(X, PAIRS, column)
    torch.testing.assert_close(found, wanted)
    lists = ours.LabelPropagation(2, 0.5)
    mask = torch.arange(N) < 20
    torch.testing.assert_close(
        lists(Y, PAIRS, mask, column),
        pyg.LabelPropagation(2, 0.5)(Y, PAIRS, mask, column),
    )
    given, transform = data(), AGP('sgc', K=2)
    wanted = transform(given).x
    given.x = X.to_sparse()
    torch.testing.assert_close(transform(given).x.to_dense(), wanted)


def test_mistakes_that_lose_no_privacy_are_warned_of():
    with pytest.warns(UserWarning, match='input_nodes=data.train_mask'):
        loader = DisjointWalkLoader(data(), 8, 1)
    loader.data.x[3, 0] = torch.nan
    with pytest.warns(UserWarning, match="'x' has NaN"):
        private(pyg.GCNConv(6, 3), loader)
    table = HeteroData()
    table['p'].x = X.clone()
    table['p', 'knows', 'p'].edge_index = PAIRS.clone()
    unit = PrivacyUnit(table, person='p')
    with pytest.warns(UserWarning, match='no batch has them'):
        UnitLoader(table, unit, 4)


def test_a_certificate_is_asked_by_a_mask_of_its_graph():
    model = ours.APPNP(10, 0.1)
    net = pyg.Sequential('x, edge_index', [(model, 'x, edge_index -> x')])
    undirected = ThreatModel(
        PAIRS, 'removals', local_budget=1, num_nodes=N, undirected=True
    )
    found = certify(net.eval(), data(), undirected)
    mask = data().train_mask
    assert torch.equal(found.status_of(mask, data()), found.status[mask])
    with pytest.raises(ValueError, match=r'\[30\]'):
        found.status_of(mask[:10], data())


def test_calls_that_newcomers_try(tmp_path):
    model = PrivateNodeClassifier('node', epsilon=1.0, insecure_seed=None)
    model.fit(data())
    assert model.remove(nodes=[1], data=data()).epsilon > 0
    model.save(tmp_path / 'p.pt')
    other = PrivateNodeClassifier('node', epsilon=1.0)
    assert other.load(tmp_path / 'p.pt') is other
    for kind in (NodeClassifier, ShardedUnlearner):
        with pytest.raises(TypeError, match=r'model.load\(...\)'):
            kind.load(str(tmp_path / 'p.pt'))
    with pytest.raises(TypeError, match=r'data.y.long\(\)'):
        NodeClassifier().fit(data(y=Y.float()))
    with pytest.raises(ValueError, match=r'a tensor \(got list'):
        NodeClassifier().fit(data(y=Y.tolist()))
    with pytest.raises(TypeError, match='index_to_mask'):
        NodeClassifier().fit(data(train_mask=torch.arange(9)))
    with pytest.raises(TypeError, match=r"public=\('i',"):
        PrivacyUnit(HeteroData(), person='p', public='i')
    shards = ShardedUnlearner(
        lambda: pyg.GCN(6, 4, 2, 3), num_shards=2, epochs=2
    ).fit(data())
    mask = data().train_mask
    assert shards.score(mask, Y) == shards.score(mask, Y[mask])
    # Labels of ids are in the order of the ids, however many there are.
    back = torch.arange(N).flip(0)
    assert shards.score(back, Y[back]) == shards.score(mask | True, Y)
    report = NodeClassifier().fit(data()).remove(nodes=[1])
    assert str(TrustReport.of([report])) == str(TrustReport.of(report))
    lazy = pyg.SAGEConv((-1, -1), 3)
    loader = DisjointWalkLoader(data(train_mask=None), 8, 1)
    with pytest.raises(ValueError, match=r'call it once under'):
        private(lazy, loader)


class Indexed:
    def __init__(self, graphs):
        self.graphs = graphs

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


class OfGraphs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn = GIN(3, 4, 1, 2)

    def forward(self, data):
        return global_add_pool(self.gnn(data.x, data.edge_index), data.batch)


def test_graphs_come_as_a_list_a_subset_or_a_batch_and_not_in_batches():
    torch.manual_seed(0)
    made, model = graphs(), OfGraphs().eval()
    fitted = ScatteringClassifier(GraphScattering()).fit(made)
    noise = BitFlips(edges=(0.0, 0.4))
    options = {'num_samples': 300, 'num_selection': 20, 'seed': 0}
    for call in (
        lambda x: Divided(model, 3, 'edges', seed=0).certify(x).votes,
        lambda x: certify(model, x, noise, **options).predicted,
        fitted.predict,
    ):
        right = call(made)
        assert right.size(-1) == 8
        for form in (
            Batch.from_data_list(made),
            torch.utils.data.Subset(made, range(8)),
            Indexed(made),
        ):
            assert torch.equal(call(form), right)
        with pytest.raises(TypeError, match='of a DataLoader, pass'):
            call(DataLoader(made, batch_size=4))
    with pytest.raises(TypeError, match='of a DataLoader, pass'):
        GraphLoader([*DataLoader(made, batch_size=4)], batch_size=2)
