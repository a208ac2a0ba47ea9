"""Gradients by units against a loop in float64, for kinds of models.

A loop runs each unit by itself; it shares nothing with what is tested.
"""

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Batch, Data

import pyg_trust
from pyg_trust.privacy import codes, unit_gradients

UNITS, WIDTH = 24, 8


def units(count=UNITS, seed=0):
    torch.manual_seed(seed)
    made = []
    for _ in range(count):
        n = int(torch.randint(2, 8, ()))
        e = torch.randint(0, n, (2, int(torch.randint(1, 3 * n, ()))))
        e = torch.unique(torch.cat([e, e.flip(0)], 1), dim=1)
        made.append(Data(x=torch.randn(n, WIDTH), edge_index=e))
    return made


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o))


class Net(nn.Module):
    """Two layers of a kind and a norm between them."""

    def __init__(self, make, norm=None, pool=False):
        super().__init__()
        self.a, self.b = make(WIDTH, 12), make(12, 4)
        self.norm, self.pool = norm, pool

    def forward(self, x, edge_index, batch):
        x = self.a(x, edge_index)
        if isinstance(self.norm, pyg.GraphNorm | pyg.InstanceNorm):
            x = self.norm(x, batch)
        elif self.norm is not None:
            x = self.norm(x)
        x = self.b(x.relu(), edge_index)
        return pyg.global_add_pool(x, batch) if self.pool else x


class Odd(nn.Module):
    """Uses of parameters that no layer of PyG has."""

    def __init__(self, how):
        super().__init__()
        self.how, self.lin = how, nn.Linear(WIDTH, WIDTH)
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.b = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Embedding(9, WIDTH, padding_idx=0)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.gru = nn.GRUCell(WIDTH, WIDTH)
        self.pre, self.norm = nn.PReLU(WIDTH), nn.RMSNorm(WIDTH)
        self.mha = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.virtual = nn.Parameter(torch.randn(1, WIDTH))
        self.conv = nn.Conv1d(1, 2, 3)
        self.out, self.wide = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 12)
        self.bn = nn.BatchNorm1d(WIDTH).eval()

    def forward(self, x, edge_index, batch):
        h, how = self.lin(x), self.how
        if how == 'tied':
            h = self.lin(h.relu()) @ self.lin.weight
        elif how == 'tied, not square':
            h = self.wide(h).relu() @ self.wide.weight
        elif how == 'einsum':
            h = torch.einsum('ni,ij->nj', h, self.w)
        elif how == 'views':
            p, q = self.w.chunk(2)
            h = (self.w @ h.t()).t() + F.linear(h, torch.cat([q, p]))
            h = h * self.w.norm()
        elif how == 'views that meet':
            flat = self.w.view(-1)
            last = WIDTH - 1
            h = h * flat[:WIDTH] + h.relu() * flat[last : last + WIDTH]
        elif how == 'table':
            h = h + self.table((x[:, 0].abs() * 4).long().clamp(max=8))
        elif how == 'lstm':
            h = self.rnn(torch.stack([h, x], 1))[0].sum(1)
        elif how == 'gru':
            h = self.gru(h, x)
        elif how == 'prelu':
            h = self.norm(self.pre(h))
        elif how == 'attention':
            pair = torch.stack([h, x], 1)
            h = self.mha(pair, pair, pair, need_weights=False)[0].sum(1)
        elif how == 'virtual node':
            v = self.virtual.expand(int(batch.max()) + 1, -1)
            h = h + (v + pyg.global_add_pool(h, batch))[batch]
        elif how == 'in place':
            h = h.clone()
            h += self.b
            h = h.relu_() + 1
            h *= self.b
        elif how == 'conv':
            h = F.pad(self.conv(h[:, None]).sum(1), (0, 2))
        elif how == 'eval':
            h = self.bn(h)
        return self.out(h)


def lin(kind, **more):
    return lambda i, o: kind(i, o, **more)


KINDS = {
    'GCN': lin(pyg.GCNConv),
    'SAGE': lin(pyg.SAGEConv),
    'SAGE max': lin(pyg.SAGEConv, aggr='max'),
    'GAT': lin(pyg.GATConv, heads=2, concat=False),
    'GATv2': lin(pyg.GATv2Conv, heads=2, concat=False),
    'GIN': lambda i, o: pyg.GINConv(mlp(i, o), train_eps=True),
    'Transformer': lin(pyg.TransformerConv),
    'PNA': lambda i, o: pyg.PNAConv(
        *(i, o, ['mean', 'max'], ['identity', 'amplification']),
        deg=torch.tensor([1, 5, 9, 4, 2, 1]),
    ),
    'Graph': lin(pyg.GraphConv),
    'ResGated': lin(pyg.ResGatedGraphConv),
    'ARMA': lin(pyg.ARMAConv),
    'TAG': lin(pyg.TAGConv),
    'Cheb': lin(pyg.ChebConv, K=3),
    'FiLM': lin(pyg.FiLMConv),
    'SuperGAT': lin(pyg.SuperGATConv),
    'General': lin(pyg.GeneralConv),
    'LE': lin(pyg.LEConv),
    'MF': lin(pyg.MFConv),
    'ClusterGCN': lin(pyg.ClusterGCNConv),
    'FeaSt': lin(pyg.FeaStConv),
    'EdgeConv': lambda i, o: pyg.EdgeConv(mlp(2 * i, o)),
    'SSG': lin(pyg.SSGConv, alpha=0.1, K=3),
    'GEN': lin(pyg.GENConv, norm='layer'),
    'SG': lin(pyg.SGConv, K=2),
}
MODELS = {
    **{
        name: lambda m=make: Net(m, nn.LayerNorm(12))
        for name, make in KINDS.items()
    },
    'GraphNorm': lambda: Net(KINDS['GCN'], pyg.GraphNorm(12)),
    'InstanceNorm': lambda: Net(
        KINDS['GCN'], pyg.InstanceNorm(12, affine=True)
    ),
    'pooled': lambda: Net(KINDS['GIN'], pool=True),
    **{
        how: lambda h=how: Odd(h)
        for how in (
            *('tied', 'einsum', 'views', 'table', 'lstm', 'gru', 'prelu'),
            *('attention', 'virtual node', 'in place', 'conv', 'eval'),
            *('tied, not square', 'views that meet'),
        )
    },
}


def loop(model, data, grads):
    """Gradients of each unit alone, in float64: [units, numbers]."""
    model = copy.deepcopy(model).double()
    params = list(model.parameters())
    rows = []
    for d, grad in zip(data, grads, strict=True):
        own = torch.zeros(d.num_nodes, dtype=torch.long)
        out = model(d.x.double(), d.edge_index, own)
        found = torch.autograd.grad(
            out, params, grad.double(), materialize_grads=True
        )
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def compare(model, dtype, data=None, scale=None):
    """Largest relative errors of norms and clipped sums."""
    data = units() if data is None else data
    batch = Batch.from_data_list(data)
    plain, model = copy.deepcopy(model), model.to(dtype)
    given = batch.x.to(dtype), batch.edge_index, batch.batch
    with torch.no_grad():
        out = copy.deepcopy(model)(*given)
    owner = batch.batch
    if len(out) == len(data) != len(owner):
        owner = torch.arange(len(data))
    torch.manual_seed(1)
    grad = torch.randn_like(out)
    if scale is not None:
        grad *= scale[owner].view(-1, 1).to(dtype)
    found = unit_gradients(model, given, owner=owner, grad=grad)
    each = loop(plain, data, [grad[owner == u] for u in range(len(data))])
    norms = each.norm(dim=1)
    bound = float(norms.median())
    factors = (bound / norms.clamp_min(1e-300)).clamp(max=1)
    want = factors @ each
    sums = found.clipped_sum(bound)
    got = torch.cat([v.double().flatten() for v in sums.values()])
    least = float(norms.max()) * 1e-30
    off = ((found.norms - norms).abs() / norms.clamp_min(least)).max()
    return float(off), float((got - want).norm() / want.norm())


@pytest.mark.parametrize('name', MODELS)
def test_norms_and_sums_are_those_of_units_run_alone(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    # Norms over nearly equal rows of one graph lose float32's digits.
    if name not in ('GraphNorm', 'InstanceNorm'):
        norms, sums = compare(copy.deepcopy(model), torch.float32)
        assert norms <= 2e-5
        assert sums <= 1e-4
    norms, sums = compare(model, torch.float64)
    assert norms <= 1e-8
    # Rows are rounded to 22 bits.
    assert sums <= 1e-4


def test_gradients_of_very_different_size():
    scale = torch.tensor([1e8, 1e-8, 1.0]).repeat(UNITS // 3)
    for name in ('GCN', 'GAT'):
        norms, sums = compare(MODELS[name](), torch.float32, scale=scale)
        assert norms <= 2e-5
        assert sums <= 1e-4


class Base(nn.Module):
    """Two convolutions, and something between them."""

    def __init__(self, middle=None, before=None):
        super().__init__()
        self.c, self.d = pyg.GCNConv(WIDTH, 8), pyg.GCNConv(8, 8)
        self.o, self.w = nn.Linear(8, 4), nn.Parameter(torch.randn(8, 8))
        self.middle, self.before = middle, before

    def forward(self, x, edge_index, batch):
        x = x if self.before is None else self.before(x)
        h = self.c(x, edge_index)
        h = h if self.middle is None else self.middle(self, h)
        return self.o(self.d(h.relu(), edge_index).relu())


class Joined(Base):
    """An edge between two units."""

    def forward(self, x, edge_index, batch):
        more = torch.tensor([[0], [len(x) - 1]])
        edge_index = torch.cat([edge_index, more], 1)
        return super().forward(x, edge_index, batch)


class Hidden(torch.autograd.Function):
    """A product that nobody records."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


MIXING = {
    'batch mean': lambda: Base(lambda m, h: h - h.mean(0)),
    'small batch mean': lambda: Base(lambda m, h: h - 0.01 * h.mean(0)),
    'batch max': lambda: Base(lambda m, h: h - 0.3 * h.max(0).values),
    'batch std': lambda: Base(lambda m, h: h / h.std(0)),
    'attention': lambda: Base(lambda m, h: (h @ h.t()).softmax(-1) @ h),
    'virtual node': lambda: Base(
        lambda m, h: h + h.mean(0, keepdim=True) @ m.w
    ),
    'sort': lambda: Base(lambda m, h: h.sort(0).values),
    'roll': lambda: Base(lambda m, h: h.roll(1, 0)),
    'cumsum': lambda: Base(lambda m, h: h.cumsum(0)),
    'before parameters': lambda: Base(before=lambda x: x - x.mean(0)),
    'two rows': lambda: Base(
        before=lambda x: torch.cat([x[:1] + 0.1 * x[-1:], x[1:]])
    ),
    'an edge': Joined,
    'BatchNorm': lambda: Net(KINDS['GCN'], nn.BatchNorm1d(12)),
    'PairNorm': lambda: Net(KINDS['GCN'], pyg.PairNorm()),
}


def attributed(model, dtype=torch.float32, data=None):
    batch = Batch.from_data_list(units() if data is None else data)
    given = batch.x.to(dtype), batch.edge_index, batch.batch
    model = model.to(dtype)

    def grad(out):
        torch.manual_seed(2)
        return torch.randn_like(out) / UNITS

    return unit_gradients(model, given, owner=batch.batch, grad=grad)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', MIXING)
def test_what_mixes_units_is_named(name, dtype):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match='subgraphs meet behind'):
        attributed(MIXING[name](), dtype)
    attributed(Base(), dtype)


def test_the_module_that_mixes_is_named():
    with pytest.raises(ValueError, match=r"behind \w+ in 'c'"):
        attributed(MIXING['batch mean']())


def test_a_parameter_that_nobody_sees_is_named():
    with pytest.raises(ValueError, match="'w' is used where its gradient"):
        attributed(Base(lambda m, h: Hidden.apply(h, m.w)))

    def written(module, h):
        h = h.clone()
        h[:, 0] = module.w[0, 0]
        return h

    with pytest.raises(ValueError, match=r'use torch.where or torch.cat'):
        attributed(Base(written))

    def changed(module, h):
        out = (h := h.clone()) * module.w[0]
        h.zero_()
        return out

    with pytest.raises(RuntimeError, match='modified by an inplace'):
        attributed(Base(changed))


@pytest.mark.parametrize('value', [math.nan, math.inf, 1e30])
@pytest.mark.parametrize('name', ['GCN', 'GAT', 'GIN'])
def test_a_unit_that_is_not_finite_changes_no_other(name, value):
    torch.manual_seed(0)
    model = Net(KINDS[name])
    data = units()
    calm = attributed(model, data=data)
    others = torch.arange(UNITS) != 5
    data[5].x[:] = value
    wild = attributed(model, data=data)
    assert torch.equal(wild.norms[others], calm.norms[others])
    assert not wild.norms[5].isfinite() or value == 1e30
    assert all(v.isfinite().all() for v in wild.clipped_sum(0.1).values())


@pytest.mark.parametrize('fault', ['dropped', 'swapped', 'code', 'unseen'])
def test_a_fault_of_the_accounts_is_found(monkeypatch, fault):
    # Each check of the passes is needed: without it, one of these is red.
    def wrong():
        norms, _ = compare(Net(KINDS['GCN']), torch.float64)
        return norms > 1e-3

    assert not wrong()
    if fault == 'dropped':
        rule = codes.apply_rule
        monkeypatch.setattr(
            codes,
            'apply_rule',
            lambda out, use, *rest: (
                None if use.where == 'b.lin' else rule(out, use, *rest)
            ),
        )
        with pytest.raises(ValueError, match='is used where'):
            wrong()
    elif fault == 'swapped':
        rule = codes.apply_rule

        def swapped(out, use, b, u, d):
            rule(out, use, b, (u + 1) % UNITS, d)

        monkeypatch.setattr(codes, 'apply_rule', swapped)
        with pytest.raises(ValueError, match='is used where'):
            wrong()
    elif fault == 'code':
        # With one code for all, what mixes units is not seen.
        monkeypatch.setattr(
            codes, '_codes', lambda n: torch.full((n,), 1.5).double()
        )
        attributed(MIXING['batch mean']())
    else:
        monkeypatch.setattr(codes.Attributor, '_compare', lambda *_: None)
        attributed(Base(lambda m, h: Hidden.apply(h, m.w)))


def test_saturated_attention_raises_no_alarm():
    # Features times 30: most attention weights are 0 or 1.
    alarms = {torch.float32: 0, torch.float64: 0}
    for seed in range(6):
        for name in ('GAT', 'GATv2', 'Transformer'):
            data = units(seed=seed)
            for d in data:
                d.x *= 30
            for dtype in alarms:
                torch.manual_seed(seed)
                try:
                    attributed(Net(KINDS[name]), dtype, data)
                except ValueError:
                    alarms[dtype] += 1
    assert alarms[torch.float64] == 0
    assert alarms[torch.float32] <= 1


TYPES = ['user', 'item']
BUYS, SOLD = ('user', 'buys', 'item'), ('item', 'sold', 'user')


class Typed(nn.Module):
    """Two types, whose tables differ in length; the output is of users."""

    def __init__(self, kind):
        super().__init__()
        self.conv = (
            pyg.HGTConv({'user': 4, 'item': 3}, 6, (TYPES, [BUYS, SOLD]), 2)
            if kind == 'HGT'
            else pyg.HeteroConv(
                {e: pyg.SAGEConv((-1, -1), 6) for e in (BUYS, SOLD)}
            )
        )

    def forward(self, x, edges):
        return self.conv(x, edges)['user']


def shops(kind, joined=False):
    """A model, its two tables and edges, and the unit of each row."""
    torch.manual_seed(0)
    users, items = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1])
    x = {'user': torch.randn(4, 4).double(), 'item': torch.randn(5, 3)}
    x['item'] = x['item'].double()
    edges = {
        BUYS: torch.tensor([[0, 1, 1, 2, 3], [0, 1, 2, 3, 4]]),
        SOLD: torch.tensor([[0, 1, 2, 3, 4, 3], [0, 0, 1, 2, 3, 3]]),
    }
    if joined:
        edges[SOLD] = torch.cat([edges[SOLD], torch.tensor([[4], [0]])], 1)
    model = Typed(kind).double()
    model(x, edges)
    return model, x, edges, {'user': users, 'item': items}


@pytest.mark.parametrize('kind', ['SAGE', 'HGT'])
def test_tables_of_several_types_are_followed(kind):
    # The prior of HGT is expanded to the edges, of which nobody has a unit.
    model, x, edges, own = shops(kind)
    grad = torch.randn(4, 6).double()
    found = unit_gradients(model, (x, edges), owner=own['user'], grad=grad)
    params = list(model.parameters())
    for u in range(2):
        kept = {t: (own[t] == u).nonzero().view(-1) for t in TYPES}
        place = {t: (own[t] == u).cumsum(0) - 1 for t in TYPES}
        mine = {}
        for e, (row, col) in edges.items():
            inside = own[e[0]][row] == u
            ends = place[e[0]][row[inside]], place[e[2]][col[inside]]
            mine[e] = torch.stack(ends)
        out = model({t: x[t][kept[t]] for t in TYPES}, mine)
        alone = torch.autograd.grad(
            out, params, grad[kept['user']], materialize_grads=True
        )
        norm = math.sqrt(sum(float(g.square().sum()) for g in alone))
        assert float(found.norms[u]) == pytest.approx(norm, rel=1e-6)


def test_rows_of_other_tables_that_meet_are_found():
    # The items have no parameter before they meet, nor an owner.
    model, x, edges, own = shops('SAGE', joined=True)
    with pytest.raises(ValueError, match='subgraphs meet'):
        unit_gradients(
            model, (x, edges), owner=own['user'], grad=torch.ones(4, 6)
        )
    # Nor are there owners of all rows where the output is of some.
    given = torch.randn(6, 3), torch.tensor([[2, 3, 4], [0, 1, 0]])

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(3, 2)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)[:2]

    apart = {'owner': torch.tensor([0, 1]), 'grad': torch.ones(2, 2)}
    unit_gradients(First(), given, **apart)
    given[1][:, 2] = torch.tensor([2, 1])
    with pytest.raises(ValueError, match='subgraphs meet'):
        unit_gradients(First(), given, **apart)


def test_bad_arguments_are_named():
    data = Batch.from_data_list(units())
    given = data.x, data.edge_index, data.batch
    good = {'owner': data.batch, 'grad': torch.ones(data.num_nodes, 4)}
    for change, error, match in (
        ({'owner': data.batch.float()}, TypeError, "'owner'"),
        ({'owner': data.batch[:0]}, ValueError, "'owner'"),
        ({'owner': data.batch - 1}, ValueError, "'owner'"),
        ({'num_units': 3}, ValueError, "'owner'"),
        ({'grad': torch.ones(3, 4)}, ValueError, "'grad'"),
    ):
        with pytest.raises(error, match=match):
            unit_gradients(Base(), given, **{**good, **change})
    found = unit_gradients(Base(), given, **good)
    with pytest.raises(ValueError, match="'max_grad_norm'"):
        found.clipped_sum(0.0)


def test_what_the_default_rests_on_is_short(capsys):
    folder = Path(pyg_trust.__file__).parent / 'privacy'
    names = 'codes rules rowwise'
    lines = sum(
        len((folder / f'{name}.py').read_text().splitlines())
        for name in names.split()
    )
    with capsys.disabled():
        sys.stdout.write(f'privacy/{{{names}}}: {lines} lines\n')
    assert lines <= 1300
