import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

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
    _, norms = expected_sum(each, clip)
    result = step(model, method, owner, num, cotangent, clip, args)
    assert result.norms.shape == (num,)
    slack = tol * norms + 1e-9 * norms.max()
    assert bool(((result.norms - norms).abs() <= slack).all())
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert list(result.sums) == trained
    # The factors leave room for rounding, and are not much smaller for it.
    wanted = (clip / norms).clamp(max=1).double()
    assert bool((result.factors <= wanted * (1 + 1e-6)).all())
    assert bool((result.factors >= wanted * (1 - 1e-3)).all())
    sums = [
        sum(c * g for c, g in zip(result.factors.to(x), grads, strict=True))
        for grads in zip(*each, strict=True)
    ]
    total = torch.cat([s.flatten() for s in sums]).norm()
    for got, want in zip(result.sums.values(), sums, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        most = tol * float(total) + float(result.rounding.sum())
        assert float((got - want).norm()) <= most
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
        self.act = torch.tanh

    def forward(self, x, edge_index, *args):
        return self.conv(self.act(self.lin(x)), edge_index, *args)


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
    model, batch = net(LAYERS[name]), make()
    assert compare(model, 'functorch', batch).method == 'functorch'
    gradients = SubgraphGradients(model, 'functorch')
    x, edge_index, owner = batch
    assert gradients.check(owner, 9, x, edge_index) == 'functorch'


def test_functorch_refuses_what_cannot_be_vmapped():
    with pytest.raises(ValueError, match='cannot be vmapped'):
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
    compare(net(LAYERS[name]), 'bookkeeping', make(sizes))


def test_a_large_subgraph_has_its_gradient_computed():
    # More rows than a product of lengths is worth.
    x, edge_index, owner = make((60, 2, 1), chords=0.1)
    # Its norm is raised by what so many rows may lose in float32.
    batch = x, edge_index, owner
    compare(net(LAYERS['Edge']), 'bookkeeping', batch, tol=5e-5)


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
            pyg.JumpingKnowledge(what.split()[1])
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

    def thin(self, x, y):
        # One row of a matrix, as a matrix of one row and of one column.
        row = self.wide[:1, :IN]
        return F.linear(F.linear(y, row), row.t()) + x

    def scored(self, x, y):
        return (y @ self.scale).sigmoid().unsqueeze(1) * x

    def grouped(self, x, y):
        parts = [part.sum(-1) for part in y.chunk(2, dim=-1)]
        y = self.lin(x).softmax(-1) * parts[0].unsqueeze(-1)
        return y - parts[1][:, None].expand_as(y)


ZOO = (
    'node_norm',
    'activation',
    'twice',
    'jumping cat',
    'jumping max',
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
    'scored',
    'thin',
)


@pytest.mark.parametrize('what', ZOO)
@pytest.mark.parametrize('method', ['bookkeeping', 'vjp'])
def test_models(what, method):
    torch.manual_seed(0)
    compare(Zoo(what), method, make())


METHODS = ('bookkeeping', 'vjp', 'loop')


def random_cotangent(model, args, seed=1):
    with torch.no_grad():
        out = model(*args)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out.shape, generator=generator).to(out)


def drop(batch, subgraph):
    """The batch without a subgraph, and the rows that are left."""
    x, edge_index, owner = batch
    nodes = (owner != subgraph).nonzero().view(-1)
    local = torch.full_like(owner, -1)
    local[nodes] = torch.arange(nodes.numel())
    edges = local[edge_index[:, owner[edge_index[0]] != subgraph]]
    owner = owner[nodes]
    return (x[nodes], edges, owner - (owner > subgraph).long()), nodes


@pytest.mark.parametrize('value', [1e20, 3e38, float('inf'), float('nan')])
@pytest.mark.parametrize('name', ['GCN', 'SAGE', 'GIN', 'GAT', 'GATv2'])
@pytest.mark.parametrize('method', METHODS)
def test_a_row_that_is_not_finite_changes_nothing_else(name, method, value):
    model, batch = net(LAYERS[name]), make()
    x, edge_index, owner = batch
    num, bad = len(SIZES), 6
    model.act = torch.relu
    cotangent = random_cotangent(model, batch[:2])
    broken = x.clone()
    broken[(owner == bad).nonzero()[1]] = value
    got = step(model, method, owner, num, cotangent, 1.0, (broken, edge_index))
    assert not bool(got.norms[bad].isfinite())
    fewer, nodes = drop(batch, bad)
    want = step(
        model, method, fewer[2], num - 1, cotangent[nodes], 1.0, fewer[:2]
    )
    others = torch.arange(num) != bad
    torch.testing.assert_close(got.norms[others], want.norms)
    for name in want.sums:
        assert bool(got.sums[name].isfinite().all())
        torch.testing.assert_close(got.sums[name], want.sums[name])


@pytest.mark.parametrize('method', METHODS)
def test_several_rows_that_are_not_finite(method):
    model, (x, edge_index, owner) = net(LAYERS['GAT']), make()
    cotangent = random_cotangent(model, (x, edge_index))
    want = step(model, method, owner, 9, cotangent, 1.0, (x, edge_index))
    x, cotangent = x.clone(), cotangent.clone()
    x[owner == 2] = float('inf')
    cotangent[owner == 5] = float('nan')
    got = step(model, method, owner, 9, cotangent, 1.0, (x, edge_index))
    bad = torch.zeros(9, dtype=torch.bool)
    bad[[2, 5]] = True
    assert torch.equal(got.norms.isinf(), bad)
    torch.testing.assert_close(got.norms[~bad], want.norms[~bad])
    assert all(bool(v.isfinite().all()) for v in got.sums.values())
    x[:] = float('nan')
    got = step(model, method, owner, 9, cotangent, 1.0, (x, edge_index))
    assert bool(got.norms.isinf().all())
    assert all(not bool(v.any()) for v in got.sums.values())


@pytest.mark.parametrize('method', METHODS)
def test_dropout_stays_as_it_was_drawn(method):
    # A row that is not finite has the module called again by some methods:
    # the gradients of others must not be of another draw.
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = pyg.GCNConv(IN, HIDDEN)
            self.b = pyg.GATConv(HIDDEN, OUT, dropout=0.3)

        def forward(self, x, edge_index):
            x = F.dropout(self.a(x, edge_index), 0.5, self.training)
            return self.b(x, edge_index)

    torch.manual_seed(0)
    model, (x, edge_index, owner) = Dropped(), make()
    cotangent = random_cotangent(model, (x, edge_index))
    broken = x.clone()
    broken[owner == 3] = float('inf')
    torch.manual_seed(5)
    out = model(x, edge_index)
    params = list(model.parameters())
    want = []
    for i in range(9):
        mask = (owner == i).unsqueeze(1) & (i != 3)
        grads = torch.autograd.grad(
            out, params, cotangent * mask, retain_graph=True
        )
        want.append(list(grads))
    sums, norms = expected_sum([w for i, w in enumerate(want) if i != 3], 1.0)
    torch.manual_seed(5)
    got = step(model, method, owner, 9, cotangent, 1.0, (broken, edge_index))
    torch.testing.assert_close(got.norms[torch.arange(9) != 3], norms)
    for value, expected in zip(got.sums.values(), sums, strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize('method', METHODS)
def test_other_random_numbers_are_not_drawn_again(method):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(IN, OUT)

        def forward(self, x, edge_index):
            return self.conv(x * torch.rand(x.size(0), 1), edge_index)

    torch.manual_seed(0)
    model, (x, edge_index, owner) = Noisy(), make()
    cotangent = random_cotangent(model, (x, edge_index))
    broken = x.clone()
    broken[owner == 3] = float('inf')
    torch.manual_seed(5)
    out = model(x, edge_index)
    params = list(model.parameters())
    want = [
        torch.autograd.grad(
            out,
            params,
            cotangent * (owner == i).unsqueeze(1),
            retain_graph=True,
        )
        for i in range(9)
        if i != 3
    ]
    sums, norms = expected_sum(want, 1.0)
    gradients = SubgraphGradients(model, method, 2)
    torch.manual_seed(5)
    with gradients.record(owner, 9) as tape:
        out = model(broken, edge_index)
    got = tape.clipped_sum(out, cotangent, 1.0)
    torch.testing.assert_close(got.norms[torch.arange(9) != 3], norms)
    for value, expected in zip(got.sums.values(), sums, strict=True):
        torch.testing.assert_close(value, expected)
    if method != 'bookkeeping':
        # Parts of what was returned cannot be computed again.
        with gradients.record(owner, 9) as tape:
            part = model(broken, edge_index)[:, :2]
        with pytest.raises(RuntimeError, match='not finite, and its'):
            tape.clipped_sum(part, cotangent[:, :2], 1.0)
    # Drawn by subgraph, they couple nothing.
    SubgraphGradients(model).check(owner, 9, x, edge_index)


@pytest.mark.parametrize('scale', [1.0, 1e4, 1e8, 1e12])
def test_rows_that_cancel_are_not_longer_than_allowed(scale):
    # Two rows almost alike with opposite gradients: the square of the norm is
    # the difference of large numbers, and may come out as anything.
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(64, 32, bias=False)

        def forward(self, x, edge_index):
            return self.lin(x)

    torch.manual_seed(0)
    model = Tied()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        row = scale * torch.randn(1, 64, generator=generator)
        x = torch.cat([row, row * (1 + 2e-7), torch.zeros(1, 64)])
        g = torch.randn(1, 32, generator=generator)
        cotangent = torch.cat([g, -g, g])
        got = step(
            model,
            'bookkeeping',
            torch.tensor([0, 0, 1]),
            2,
            cotangent,
            1.0,
            (x, torch.empty(2, 0, dtype=torch.int64)),
        )
        assert float(got.sums['lin.weight'].norm()) <= 1 + 1e-5


@pytest.mark.parametrize('scale', [1e-6, 1e3, 1e9])
@pytest.mark.parametrize('name', ['GCN', 'GAT', 'Edge', 'ARMA'])
def test_one_row_moves_the_sum_by_no_more_than_allowed(name, scale):
    model, (x, edge_index, owner) = net(LAYERS[name]), make()
    model.act = torch.relu
    cotangent = random_cotangent(model, (x, edge_index))
    args = ('bookkeeping', owner, 9, cotangent, 0.5)
    before = step(model, *args, (x, edge_index))
    other = x.clone()
    other[(owner == 6).nonzero()[0]] *= scale
    after = step(model, *args, (other, edge_index))
    moved = sum(
        float((after.sums[n] - before.sums[n]).square().sum())
        for n in before.sums
    )
    assert moved**0.5 <= 2 * 0.5 * (1 + 1e-4)


@pytest.mark.parametrize('method', METHODS)
def test_frozen_and_unused_parameters(method):
    torch.manual_seed(0)
    model = Zoo('node_norm')
    model.a.lin.weight.requires_grad_(False)
    model.layer_norm.weight.requires_grad_(False)
    result = compare(model, method, make())
    assert 'a.lin.weight' not in result.sums
    assert 'wide' in result.sums
    assert not bool(result.sums['wide'].any())
    assert model.a.bias.grad is None


def test_weights_of_edges_need_not_be_features():
    # Random ones have to be positive, or their sums have no square root.
    model, batch = net(LAYERS['GCN']), make()
    weight = torch.rand(batch[1].size(1)) + 0.1
    result = compare(model, 'auto', batch, weight)
    assert result.method == 'bookkeeping'


def test_a_row_without_a_gradient_and_a_subgraph_without_nodes():
    model, (x, edge_index, owner) = net(LAYERS['GCN']), make()
    cotangent = random_cotangent(model, (x, edge_index))
    cotangent[owner == 4] = 0
    for method in METHODS:
        got = step(model, method, owner, 12, cotangent, 1.0, (x, edge_index))
        zero = torch.tensor([4, 9, 10, 11])
        assert not bool(got.norms[zero].any())
        assert bool((got.norms[:4] > 0).all())


@pytest.mark.parametrize('method', METHODS)
def test_an_infinite_norm_clips_nothing(method):
    model, (x, edge_index, owner) = net(LAYERS['GAT']), make()
    cotangent = random_cotangent(model, (x, edge_index))
    got = step(
        model, method, owner, 9, cotangent, float('inf'), (x, edge_index)
    )
    params = list(model.parameters())
    want = torch.autograd.grad(model(x, edge_index), params, cotangent)
    for value, expected in zip(got.sums.values(), want, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


class Roots(nn.Module):
    """Returns a row for each of the first nodes, and one per subgraph."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(IN, OUT)
        self.lin = nn.Linear(OUT, 2)

    def forward(self, x, edge_index, batch, batch_size):
        x = self.conv(x, edge_index)
        pooled = pyg.global_mean_pool(x.relu(), batch, batch_size)
        return x, self.lin(pooled)


def test_several_outputs_and_pooling():
    torch.manual_seed(0)
    model, (x, edge_index, owner) = Roots(), make()
    args = (x, edge_index, owner, 9)
    params = list(model.parameters())
    generator = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(t.shape, generator=generator) for t in model(*args)
    ]
    owners = [owner, torch.arange(9)]
    want = []
    for i in range(9):
        masked = [
            g * (o == i).unsqueeze(1)
            for g, o in zip(cotangents, owners, strict=True)
        ]
        want.append(torch.autograd.grad(model(*args), params, masked))
    sums, norms = expected_sum(want, 1.0)
    for method in ('auto', *METHODS):
        gradients = SubgraphGradients(model, method, 2)
        with gradients.record(owner, 9) as tape:
            out = model(*args)
        got = tape.clipped_sum(out, cotangents, 1.0, owners)
        assert got.method == method.replace('auto', 'bookkeeping')
        torch.testing.assert_close(got.norms, norms)
        for value, expected in zip(got.sums.values(), sums, strict=True):
            torch.testing.assert_close(value, expected)


class Whole(nn.Module):
    """Takes its input as keywords, as a Data object or as a sparse matrix."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(IN, OUT)

    def forward(self, data=None, *, x=None, edges=None):
        if data is None:
            return self.conv(x, edges)
        return self.conv(data.x, data.edge_index)


@pytest.mark.filterwarnings('ignore:Converting sparse tensor to CSR')
@pytest.mark.parametrize('method', ['auto', 'vjp'])
def test_other_inputs(method):
    torch.manual_seed(0)
    model, (x, edge_index, owner) = Whole(), make()
    adj = torch.sparse_coo_tensor(
        edge_index.flip(0),
        torch.ones(edge_index.size(1)),
        (27, 27),
        check_invariants=True,
    )
    cotangent = random_cotangent(model.conv, (x, edge_index))
    results = []
    for args, kwargs in (
        ((Data(x=x, edge_index=edge_index, batch=owner),), {}),
        ((), {'x': x, 'edges': edge_index}),
        ((), {'x': x, 'edges': adj.coalesce()}),
    ):
        gradients = SubgraphGradients(model, method)
        with gradients.record(owner, 9) as tape:
            out = model(*args, **kwargs)
        results.append(tape.clipped_sum(out, cotangent, 1.0))
        assert results[-1].method == method.replace('auto', 'bookkeeping')
        for name, value in results[0].sums.items():
            torch.testing.assert_close(results[-1].sums[name], value)


class Mixing(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.lin = nn.Linear(IN, OUT)
        self.norm = norm

    def forward(self, x, edge_index):
        return self.norm(self.lin(x))


@pytest.mark.parametrize(
    'norm',
    [
        nn.BatchNorm1d(OUT),
        pyg.BatchNorm(OUT),
        pyg.LayerNorm(OUT),
        pyg.GraphNorm(OUT),
        pyg.PairNorm(),
        pyg.InstanceNorm(OUT),
        pyg.MeanSubtractionNorm(),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_a_model_that_mixes_subgraphs_is_refused(norm):
    model, (x, edge_index, owner) = Mixing(norm), make((3, 4, 5, 2))
    gradients = SubgraphGradients(model)
    with pytest.raises(ValueError, match="'module' needs to keep subgraphs"):
        gradients.check(owner, 4, x, edge_index)
    with (
        pytest.raises(ValueError, match="'module' needs to keep subgraphs"),
        gradients.record(owner, 4),
    ):
        model(x, edge_index)
    # Nothing is left behind.
    assert model(x, edge_index).shape == (14, OUT)
    assert not model._forward_pre_hooks


class Hidden(torch.autograd.Function):
    """Uses a parameter where no torch function is called."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad

    @staticmethod
    def vmap(info, in_dims, x, weight):
        raise NotImplementedError


class Odd(nn.Module):
    """Does something that is not known."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.lin = nn.Linear(IN, IN)
        self.weight = nn.Parameter(torch.randn(IN, IN))
        self.nodes = nn.Parameter(torch.randn(27, IN))
        self.gru = nn.GRUCell(IN, IN)
        self.table = nn.Embedding(3, IN)
        self.jump = pyg.JumpingKnowledge('lstm', IN, 2)

    def forward(self, x, edge_index):
        return getattr(self, self.what)(self.lin(x))

    def hidden(self, x):
        return Hidden.apply(x, self.weight)

    def einsum(self, x):
        return torch.einsum('ni,ij->nj', x, self.weight)

    def left(self, x):
        return (self.weight @ x.t()).t()

    def cell(self, x):
        return self.gru(x, x)

    def flipped(self, x):
        return (x.flip(0) * self.weight[0]).flip(0)

    def embedding(self, x):
        return x + self.table((x[:, 0] > 0).long())

    def jumping(self, x):
        return self.jump([x, x.relu()])

    def each(self, x):
        return x + self.nodes[: x.size(0)]


@pytest.mark.parametrize(
    'what',
    ['hidden', 'einsum', 'left', 'cell', 'flipped', 'embedding', 'jumping'],
)
def test_what_is_not_known_is_found_and_done_slowly(what):
    torch.manual_seed(0)
    model, batch = Odd(what), make()
    result = compare(model, 'auto', batch)
    assert result.method in ('vjp', 'loop')
    assert "not 'bookkeeping'" in result.reason
    with pytest.raises(ValueError, match="'method' cannot be 'bookkeeping'"):
        compare(model, 'bookkeeping', batch)


def test_parameters_of_rows_are_no_parameters_of_subgraphs():
    model, (x, edge_index, owner) = Odd('each'), make()
    with pytest.raises(ValueError, match="'module' needs to keep subgraphs"):
        SubgraphGradients(model).check(owner, 9, x, edge_index)


def test_one_batch_may_be_done_slowly():
    # What is not known may depend on the batch.
    model, (x, edge_index, owner) = Odd('einsum'), make()
    model.einsum = lambda y: y @ model.weight
    gradients = SubgraphGradients(model)
    gradients.chosen = 'bookkeeping'
    cotangent = random_cotangent(model, (x, edge_index))
    results = []
    for wanted in ('bookkeeping', 'vjp'):
        with gradients.record(owner, 9) as tape:
            out = model(x, edge_index)
        results.append(tape.clipped_sum(out, cotangent, 1.0))
        assert results[-1].method == wanted
        model.__dict__.pop('einsum', None)
    for name, value in results[0].sums.items():
        torch.testing.assert_close(results[1].sums[name], value)
    assert "not 'bookkeeping': weight: 'einsum'" in results[1].reason


def test_checking_changes_nothing():
    torch.manual_seed(0)
    model, (x, edge_index, owner) = Zoo('node_norm'), make()
    model.drop = nn.Dropout(0.5)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    state = torch.get_rng_state()
    gradients = SubgraphGradients(model)
    assert 'at the first call' in gradients.explain()
    assert gradients.check(owner, 9, x, edge_index) == 'bookkeeping'
    assert 'equal to each subgraph alone' in gradients.explain()
    assert torch.equal(state, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())


def test_a_batch_far_from_the_first_is_the_same():
    # What was chosen for one batch holds for others.
    model = net(LAYERS['GAT'])
    gradients = SubgraphGradients(model)
    x, edge_index, owner = make((2, 2, 2))
    gradients.check(owner, 3, x, edge_index)
    for sizes in ((1, 1), (9, 1, 4), (2, 3)):
        x, edge_index, owner = make(sizes, seed=7)
        cotangent = random_cotangent(model, (x, edge_index))
        with gradients.record(owner, len(sizes)) as tape:
            out = model(x, edge_index)
        got = tape.clipped_sum(out, cotangent, 1.0)
        assert got.method == 'bookkeeping'
        each = alone(model, x, edge_index, owner, len(sizes), cotangent)
        sums, _ = expected_sum(each, 1.0)
        for value, expected in zip(got.sums.values(), sums, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_wrong_arguments():
    model, (x, edge_index, owner) = net(LAYERS['GCN']), make()
    with pytest.raises(TypeError, match=r"'module' needs to be a torch.nn"):
        SubgraphGradients(lambda x: x)
    compiled = nn.Module()
    compiled._orig_mod = model
    with pytest.raises(TypeError, match='be inspected'):
        SubgraphGradients(compiled)
    with pytest.raises(ValueError, match="'method' needs to be one of"):
        SubgraphGradients(model, 'ghost')
    with pytest.raises(TypeError, match="'chunk_size' needs to be an integer"):
        SubgraphGradients(model, chunk_size=2.0)
    with pytest.raises(ValueError, match=r"'chunk_size' .* at least 1"):
        SubgraphGradients(model, chunk_size=0)
    gradients = SubgraphGradients(model)

    def record(owner, num):
        with gradients.record(owner, num) as tape:
            return model(x, edge_index), tape

    with pytest.raises(TypeError, match="'owner' needs to be an int64"):
        record(owner.int(), 9)
    with pytest.raises(TypeError, match="'owner' needs to be an int64"):
        record([0, 1], 9)
    with pytest.raises(ValueError, match=r"'owner' .* one dimension"):
        record(owner.view(-1, 1), 9)
    with pytest.raises(ValueError, match=r"'owner' .* \[0, 8\)"):
        record(owner, 8)
    with pytest.raises(TypeError, match="'num_subgraphs' needs to be an"):
        record(owner, 9.0)
    with pytest.raises(ValueError, match=r"'num_subgraphs' .* at least 1"):
        record(owner, 0)
    with pytest.raises(ValueError, match=r"'owner' .* entry for every node"):
        record(owner[:10], 9)
    with pytest.raises(ValueError, match='an edge joins two subgraphs'):
        record(owner.roll(1), 9)
    out, tape = record(owner, 9)
    g = torch.ones_like(out)
    for clip in (0, -1.0, float('nan')):
        with pytest.raises(ValueError, match=r"'max_grad_norm' .* positive"):
            tape.clipped_sum(out, g, clip)
    with pytest.raises(TypeError, match=r"'max_grad_norm' .* a number"):
        tape.clipped_sum(out, g, '1')
    with pytest.raises(ValueError, match=r"'grad_output' .* the shape"):
        tape.clipped_sum(out, g[:-1], 1.0)
    with pytest.raises(ValueError, match=r"'grad_output' .* 1 tensors"):
        tape.clipped_sum(out, [g, g], 1.0)
    with pytest.raises(ValueError, match=r"'output_owner' .* each of the 9"):
        tape.clipped_sum(out[:9], g[:9], 1.0)
    with pytest.raises(ValueError, match="'output' needs to require"):
        tape.clipped_sum(out.detach(), g, 1.0)
    with gradients.record(owner, 9):
        model(x, edge_index)
        with pytest.raises(RuntimeError, match='one call of the module'):
            model(x, edge_index)
    with gradients.record(owner, 9) as blank:
        pass
    with pytest.raises(RuntimeError, match='The tape is blank'):
        blank.clipped_sum(out, g, 1.0)
    for param in model.parameters():
        param.requires_grad_(False)
    x.requires_grad_(True)
    gradients = SubgraphGradients(model, 'vjp')
    out, tape = record(owner, 9)
    with pytest.raises(ValueError, match=r"'module' .* requires a gradient"):
        tape.clipped_sum(out, g, 1.0)
