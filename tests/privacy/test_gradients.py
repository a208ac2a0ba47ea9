import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg

from pyg_trust.privacy import SubgraphGradients

SIZES = (1, 3, 5, 2, 1, 4, 7, 2, 2)
IN, HIDDEN, OUT = 6, 8, 5


def make(sizes=SIZES, seed=0, chords=0.3, shuffle=True):
    """A batch of connected subgraphs, with nodes in any order."""
    generator = torch.Generator().manual_seed(seed)
    pairs, owner = [], []
    for i, size in enumerate(sizes):
        first = len(owner)
        owner += [i] * size
        for a in range(size):
            for b in range(a + 1, size):
                chance = float(torch.rand((), generator=generator))
                if b == a + 1 or chance < chords:
                    pairs += [(first + a, first + b), (first + b, first + a)]
    owner = torch.tensor(owner)
    edge_index = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    if shuffle:
        order = torch.randperm(owner.numel(), generator=generator)
        owner, edge_index = owner[order], order.argsort()[edge_index]
        order = torch.randperm(edge_index.size(1), generator=generator)
        edge_index = edge_index[:, order]
    x = torch.randn(owner.numel(), IN, generator=generator)
    return x, edge_index, owner


def alone(model, x, edge_index, owner, num, cotangent, edge_attr=None):
    """The gradient of each subgraph, run with nothing else beside it."""
    params = [p for p in model.parameters() if p.requires_grad]
    out = []
    for i in range(num):
        nodes = (owner == i).nonzero().view(-1)
        local = torch.full_like(owner, -1)
        local[nodes] = torch.arange(nodes.numel())
        mine = owner[edge_index[0]] == i
        args = [x[nodes], local[edge_index[:, mine]]]
        if edge_attr is not None:
            args.append(edge_attr[mine])
        result = model(*args)
        grads = torch.autograd.grad(
            result, params, cotangent[nodes], allow_unused=True
        )
        pairs = zip(params, grads, strict=True)
        out.append([torch.zeros_like(p) if g is None else g for p, g in pairs])
    return out


def expected_sum(each, clip):
    norms = torch.stack(
        [torch.cat([g.flatten() for g in grads]).norm() for grads in each]
    )
    scales = (clip / norms).clamp(max=1)
    sums = [
        sum(c * g for c, g in zip(scales, grads, strict=True))
        for grads in zip(*each, strict=True)
    ]
    return sums, norms


def step(model, method, owner, num, cotangent, clip, args, chunk_size=4):
    gradients = SubgraphGradients(model, method, chunk_size)
    with gradients.record(owner, num) as tape:
        out = model(*args)
    return tape.clipped_sum(out, cotangent, clip)


def compare(model, method, batch, edge_attr=None, tol=1e-5, kept=None):
    """Against each subgraph alone; some are clipped and some are not."""
    x, edge_index, owner = batch
    num = int(owner.max()) + 1
    args = [x, edge_index] + ([] if edge_attr is None else [edge_attr])
    with torch.no_grad():
        shape = model(*args).shape
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(shape, generator=generator).to(x.dtype)
    each = alone(model, x, edge_index, owner, num, cotangent, edge_attr)
    clip = float(expected_sum(each, 1.0)[1].median())
    sums, norms = expected_sum(each, clip)
    result = step(model, method, owner, num, cotangent, clip, args)
    assert result.norms.shape == (num,)
    slack = tol * norms + 1e-9 * norms.max()
    assert bool(((result.norms - norms).abs() <= slack).all())
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert list(result.sums) == trained
    total = torch.cat([s.flatten() for s in sums]).norm()
    for got, want in zip(result.sums.values(), sums, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert float((got - want).norm()) <= tol * float(total)
    return result


def mlp(fan_in, fan_out):
    return nn.Sequential(
        nn.Linear(fan_in, 7), nn.ReLU(), nn.Linear(7, fan_out)
    )


LAYERS = {
    'GCN': lambda: pyg.GCNConv(HIDDEN, OUT),
    'GCN, no bias': lambda: pyg.GCNConv(HIDDEN, OUT, bias=False),
    'GCN, no loops': lambda: pyg.GCNConv(HIDDEN, OUT, add_self_loops=False),
    'SAGE': lambda: pyg.SAGEConv(HIDDEN, OUT),
    'SAGE, max': lambda: pyg.SAGEConv(
        HIDDEN, OUT, aggr='max', project=True, normalize=True
    ),
    'Graph': lambda: pyg.GraphConv(HIDDEN, OUT),
    'GIN': lambda: pyg.GINConv(mlp(HIDDEN, OUT), train_eps=True),
    'GAT': lambda: pyg.GATConv(HIDDEN, OUT, heads=2),
    'GAT, mean': lambda: pyg.GATConv(
        HIDDEN, OUT, heads=3, concat=False, residual=True
    ),
    'GATv2': lambda: pyg.GATv2Conv(HIDDEN, OUT, heads=2),
    'GATv2, shared': lambda: pyg.GATv2Conv(HIDDEN, OUT, share_weights=True),
    'Transformer': lambda: pyg.TransformerConv(
        HIDDEN, OUT, heads=2, beta=True
    ),
    'APPNP': lambda: pyg.APPNP(3, 0.1),
    'SG': lambda: pyg.SGConv(HIDDEN, OUT, K=2),
    'SSG': lambda: pyg.SSGConv(HIDDEN, OUT, alpha=0.1, K=2),
    'TAG': lambda: pyg.TAGConv(HIDDEN, OUT),
    'Cheb': lambda: pyg.ChebConv(HIDDEN, OUT, K=3),
    'ARMA': lambda: pyg.ARMAConv(HIDDEN, OUT, num_stacks=2, num_layers=2),
    'ARMA, shared': lambda: pyg.ARMAConv(
        HIDDEN, OUT, num_stacks=2, num_layers=3, shared_weights=True
    ),
    'ResGated': lambda: pyg.ResGatedGraphConv(HIDDEN, OUT),
    'Edge': lambda: pyg.EdgeConv(mlp(2 * HIDDEN, OUT)),
    'Cluster': lambda: pyg.ClusterGCNConv(HIDDEN, OUT),
    'LE': lambda: pyg.LEConv(HIDDEN, OUT),
    'MixHop': lambda: pyg.MixHopConv(HIDDEN, OUT),
    'FeaSt': lambda: pyg.FeaStConv(HIDDEN, OUT, heads=3),
    'AGNN': lambda: pyg.AGNNConv(),
    'FiLM': lambda: pyg.FiLMConv(HIDDEN, OUT),
    'GEN': lambda: pyg.GENConv(
        HIDDEN, OUT, learn_t=True, norm='layer', num_layers=2
    ),
    'General': lambda: pyg.GeneralConv(HIDDEN, OUT),
    'EG': lambda: pyg.EGConv(HIDDEN, 8, num_heads=2, num_bases=2),
    'PNA': lambda: pyg.PNAConv(
        HIDDEN,
        OUT,
        ['mean', 'max', 'std'],
        ['identity', 'amplification'],
        deg=torch.tensor([1, 3, 4]),
    ),
    'MF': lambda: pyg.MFConv(HIDDEN, OUT),
    'CG': lambda: pyg.CGConv(HIDDEN),
    'DirGNN': lambda: pyg.DirGNNConv(pyg.SAGEConv(HIDDEN, OUT)),
    'GCN2': lambda: Pair(pyg.GCN2Conv(HIDDEN, 0.1, 0.5, layer=1)),
    'FA': lambda: Pair(pyg.FAConv(HIDDEN)),
    'GatedGraph': lambda: pyg.GatedGraphConv(HIDDEN, 2),
    'AntiSymmetric': lambda: pyg.AntiSymmetricConv(HIDDEN),
}
BY_VJP = {'GatedGraph', 'AntiSymmetric'}


class Pair(nn.Module):
    """A layer that wants the first features again."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, x, edge_index)


class Net(nn.Module):
    """Something before the layer, so that it has a gradient by its input."""

    def __init__(self, conv):
        super().__init__()
        self.lin = nn.Linear(IN, HIDDEN)
        self.conv = conv

    def forward(self, x, edge_index, *args):
        return self.conv(self.lin(x).tanh(), edge_index, *args)


def net(conv, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = Net(
        conv() if callable(conv) and not hasattr(conv, 'training') else conv
    )
    with torch.no_grad():
        for param in model.parameters():
            param += 0.2 * torch.randn_like(param)
    return model.to(dtype)


@pytest.mark.parametrize('name', LAYERS)
def test_layers_equal_each_subgraph_alone(name):
    model = net(LAYERS[name])
    result = compare(model, 'auto', make())
    assert result.method == ('vjp' if name in BY_VJP else 'bookkeeping')
    assert 'equal to each subgraph alone' in result.reason


@pytest.mark.parametrize('name', LAYERS)
def test_vjp_equals_each_subgraph_alone(name):
    assert compare(net(LAYERS[name]), 'vjp', make()).method == 'vjp'


@pytest.mark.parametrize('name', ['GCN', 'GAT', 'GatedGraph'])
def test_loop_equals_each_subgraph_alone(name):
    assert compare(net(LAYERS[name]), 'loop', make()).method == 'loop'


@pytest.mark.parametrize('name', ['Graph', 'SAGE', 'GIN', 'Edge'])
def test_functorch_equals_each_subgraph_alone(name):
    assert compare(net(LAYERS[name]), 'functorch', make()).method == (
        'functorch'
    )


def test_functorch_refuses_what_cannot_be_vmapped():
    with pytest.raises(ValueError, match=r"'functorch' .* cannot be vmapped"):
        compare(net(LAYERS['GCN']), 'functorch', make())


@pytest.mark.parametrize('name', ['GCN', 'GIN', 'GAT', 'TAG', 'ARMA', 'PNA'])
@pytest.mark.parametrize('method', ['bookkeeping', 'vjp'])
def test_double_precision(name, method):
    x, edge_index, owner = make()
    model = net(LAYERS[name], torch.float64)
    compare(model, method, (x.double(), edge_index, owner), tol=1e-10)


@pytest.mark.parametrize(
    'sizes',
    [
        (1,),
        (1, 1, 1),
        (4,),
        (2, 2, 2, 2),
        (30, 1, 2),
        (3, 3, 3),
    ],
)
@pytest.mark.parametrize('name', ['GCN', 'SAGE', 'GIN', 'GAT', 'GATv2'])
def test_sizes(name, sizes):
    if 1 in sizes and sum(sizes) == len(sizes) and name == 'GATv2':
        pytest.skip('attention over one neighbour has no gradient')
    compare(net(LAYERS[name]), 'bookkeeping', make(sizes))


def test_a_large_subgraph_has_its_gradient_computed():
    # More rows than a product of lengths is worth.
    x, edge_index, owner = make((60, 2, 1), chords=0.1)
    compare(net(LAYERS['Edge']), 'bookkeeping', (x, edge_index, owner))


class WithEdges(nn.Module):
    """Features of edges, mapped before they meet those of nodes."""

    def __init__(self, kind):
        super().__init__()
        self.lin = nn.Linear(IN, HIDDEN)
        if kind == 'GINE':
            self.conv = pyg.GINEConv(mlp(HIDDEN, OUT), edge_dim=4)
        elif kind == 'NN':
            self.conv = pyg.NNConv(HIDDEN, OUT, mlp(4, HIDDEN * OUT))
        else:
            conv = getattr(pyg, f'{kind}Conv')
            self.conv = conv(HIDDEN, OUT, edge_dim=4)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(self.lin(x), edge_index, edge_attr)


@pytest.mark.parametrize(
    'kind',
    ['GAT', 'GATv2', 'Transformer', 'GINE', 'NN', 'ResGatedGraph', 'GEN'],
)
@pytest.mark.parametrize('sizes', [SIZES, (2, 2, 2, 2, 2), (3, 1, 2, 1, 4)])
def test_features_of_edges(kind, sizes):
    # Pairs have as many edges as nodes.
    torch.manual_seed(0)
    if kind == 'GEN':
        model = net(pyg.GENConv(HIDDEN, OUT, norm='layer', edge_dim=4))
    else:
        model = WithEdges(kind)
    batch = make(sizes, chords=0.0)
    edge_attr = torch.randn(batch[1].size(1), 4)
    result = compare(model, 'auto', batch, edge_attr)
    assert result.method == 'bookkeeping'


@pytest.mark.parametrize('name', LAYERS)
def test_as_many_edges_as_nodes(name):
    x, edge_index, owner = make((2, 2, 2, 2, 2, 2), seed=3)
    assert edge_index.size(1) == owner.numel()
    assert not torch.equal(owner[edge_index[0]], owner)
    compare(net(LAYERS[name]), 'auto', (x, edge_index, owner))


class Zoo(nn.Module):
    """What models are made of, apart from layers."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.a = pyg.GCNConv(IN, IN)
        self.b = pyg.GCNConv(IN, IN)
        self.lin = nn.Linear(IN, IN)
        self.norm = pyg.LayerNorm(IN, mode='node')
        self.layer_norm = nn.LayerNorm(IN)
        self.prelu = nn.PReLU(IN)
        self.one = nn.PReLU()
        self.weight = nn.Parameter(torch.randn(IN, IN))
        self.scale = nn.Parameter(torch.rand(IN))
        self.number = nn.Parameter(torch.tensor(0.3))
        self.stack = nn.Parameter(torch.randn(2, IN, IN))
        self.wide = nn.Parameter(torch.randn(IN, 2 * IN))
        self.jump = (
            pyg.JumpingKnowledge(what.split()[1], IN, 2)
            if what.startswith('jump')
            else None
        )

    def forward(self, x, edge_index):
        y = self.a(x, edge_index)
        z = getattr(self, self.what.split()[0])(x, y)
        return self.b(z, edge_index)

    def node_norm(self, x, y):
        return self.layer_norm(self.norm(y).relu())

    def activation(self, x, y):
        return self.one(self.prelu(y.relu() - y))

    def twice(self, x, y):
        return self.lin(self.lin(y).relu()) + self.lin(x)

    def jumping(self, x, y):
        return self.jump([x, y])[:, :IN]

    def transposed(self, x, y):
        # A tied decoder: a matrix and its transpose.
        return (y @ self.weight).relu() @ self.weight.t()

    def parts(self, x, y):
        return x @ self.stack[0] + (y @ self.stack[1]).relu()

    def overlap(self, x, y):
        return x @ self.stack[0] + (y @ self.stack.sum(0)).relu()

    def columns(self, x, y):
        left, right = self.wide.chunk(2, dim=1)
        return F.linear(x, left) + F.linear(y, right).relu()

    def functions(self, x, y):
        y = y * self.scale.exp() + self.number * x
        return y / (1 + self.number.square())

    def in_place(self, x, y):
        y = self.lin(y)
        y += self.scale
        y.mul_(self.number)
        return y.relu_()

    def shapes(self, x, y):
        y = torch.stack([x, y], 1).view(-1, 2, 3, 2).transpose(1, 2)
        y = y.permute(0, 3, 2, 1).reshape(x.size(0), -1, 1).squeeze(-1)
        y = torch.cat([y, x], dim=-1)[:, 3 : 3 + IN]
        return self.lin(y.contiguous().clone())

    def heads(self, x, y):
        # Each half of a row by the same map: rows of rows.
        y = y.view(-1, 3) @ self.weight[:3, :3]
        return y.view(-1, IN)

    def reordered(self, x, y):
        order = torch.arange(x.size(0)).flip(0)
        return self.lin(y[order]).index_select(0, order)

    def masked(self, x, y):
        y = torch.where(y > 0, y, self.lin(y))
        return y.masked_fill(y > 3, 0.0).clamp(min=-3)

    def grouped(self, x, y):
        parts = [part.sum(-1) for part in y.chunk(2, dim=-1)]
        y = self.lin(x).softmax(-1) * parts[0].unsqueeze(-1)
        return y - parts[1][:, None].expand_as(y)


ZOO = [
    'node_norm',
    'activation',
    'twice',
    'jumping_cat',
    'jumping_max',
    'transposed',
    'parts',
    'overlap',
    'columns',
    'functions',
    'in_place',
    'shapes',
    'heads',
    'reordered',
    'masked',
    'grouped',
]


@pytest.mark.parametrize('what', ZOO)
@pytest.mark.parametrize('method', ['bookkeeping', 'vjp'])
def test_models(what, method):
    torch.manual_seed(0)
    compare(
        Zoo(what.replace('_cat', ' cat').replace('_max', ' max')),
        method,
        make(),
    )
