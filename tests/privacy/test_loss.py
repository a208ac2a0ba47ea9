"""Attacks on the loss that is really back-propagated."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool
from torch_geometric.utils import scatter, softmax

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.flow import Watch, follow
from pyg_trust.privacy.owners import MIXED

CLASSES = 3


class Silent:
    """In the place of noise."""

    def normal(self, shape):
        return torch.zeros(shape, dtype=torch.float64)


def clipped_sum(loss, m, victim, trust, real=False):
    # One step on m single nodes; the victim's row may be another.
    torch.manual_seed(0)
    data = Data(
        x=torch.randn(m, 4),
        y=torch.randn(m) if real else torch.arange(m) % CLASSES,
        edge_index=torch.empty(2, 0, dtype=torch.int64),
    )
    if victim is not None:
        data.x[0] = victim
    net = nn.Linear(4, 1 if real else CLASSES)
    engine = PrivacyEngine(seed=0)
    model, optimizer, batches = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        data_loader=DisjointWalkLoader(
            data, m, 0, num_steps=1, seed=0, input_nodes=torch.arange(m)
        ),
        noise_multiplier=1.0,
        max_grad_norm=0.01,
        **({'trust_loss': True} if trust else {}),
    )
    engine._noise = Silent()
    for batch in batches:
        out = model(batch.x)[: batch.batch_size]
        loss(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    grads = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    return grads * m, engine


def moved(loss, m=200, real=False):
    """I/2C: the most that one row moves the clipped sum, over 2C."""
    before, _ = clipped_sum(loss, m, None, True, real)
    found = [
        (clipped_sum(loss, m, value, True, real)[0] - before).norm()
        for value in (-100.0, 100.0, 1e4)
    ]
    return max(float(f) for f in found) / 0.02


def rmse(out, y):
    return F.mse_loss(out[:, 0], y).sqrt()


def correlation(out, y):
    a, b = out[:, 0] - out[:, 0].mean(), y - y.mean()
    return -(a * b).sum() / (a.norm() * b.norm())


def mean_penalty(out, y):
    return F.cross_entropy(out, y) + 5 * (out.mean(0) ** 2).sum()


@pytest.mark.parametrize(
    ('loss', 'real', 'least'),
    [(rmse, True, 3), (correlation, True, 3), (mean_penalty, False, 5)],
)
def test_couplings_of_the_table(loss, real, least):
    # What it would cost: the sum moves by several times what is paid for.
    assert moved(loss, real=real) > least
    with pytest.raises(ValueError, match=r"depends on the rows .* meet in '"):
        clipped_sum(loss, 200, None, False, real)


def test_a_plain_loss_moves_no_more_than_is_paid_for():
    assert moved(F.cross_entropy) <= 1


# Fifty ways to couple rows, by somebody who knows how they are looked for.


def terms(out, y):
    return F.cross_entropy(out, y, reduction='none')


def in_place(out, y):
    other = torch.zeros_like(out)
    other[0].copy_(out[1].detach())
    return (other * out).sum()


def in_place_view(out, y):
    other = torch.zeros_like(out)
    view = other.view(-1)
    view.add_(out.detach().mean())
    return (other * out).sum()


def into_a_constant(out, y):
    other = torch.zeros(out.shape)
    other.copy_(out.detach().flip(0))
    return (other * out).sum()


def with_out(out, y):
    other = torch.zeros(())
    torch.sum(out.detach(), out=other) if False else torch.add(
        out.detach().sum(), 0, out=other
    )
    return (other * out).sum()


def hooked(out, y):
    out.register_hook(lambda grad: grad / grad.norm())
    return F.cross_entropy(out, y)


def hooked_node(out, y):
    loss = F.cross_entropy(out, y)

    def hook(inputs, outputs):
        return tuple(None if g is None else g / g.norm() for g in inputs)

    loss.grad_fn.register_hook(hook)
    return loss


class Normalised(torch.autograd.Function):
    """Nothing in its forward pass tells of the backward pass."""

    @staticmethod
    def forward(ctx, out):
        ctx.save_for_backward(out)
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out.abs().amax()


def kept_aside(out, y):
    # What is saved for the backward pass is exchanged.
    def pack(tensor):
        return tensor

    def unpack(tensor):
        return tensor.flip(0) if tensor.dim() else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return out.square().sum()


def by_class(out, y):
    weight = 1 / torch.zeros(CLASSES).index_add(0, y, torch.ones(len(y)))
    return (terms(out, y) * weight[y]).mean()


def gradient_norm(out, y):
    (grad,) = torch.autograd.grad(
        F.cross_entropy(out, y), out, create_graph=True
    )
    return grad.norm()


def tried(out, y):
    try:
        weight = out.detach().sum().item()
    except Exception:
        weight = out.detach().sum()
    return out.sum() * weight


COUPLED = {
    'square of the mean': lambda o, y: F.cross_entropy(o, y) ** 2,
    'log of the mean': lambda o, y: F.cross_entropy(o, y).log(),
    'weights of classes': lambda o, y: F.cross_entropy(
        o, y, weight=torch.tensor([1.0, 2.0, 3.0])
    ),
    'contrast': lambda o, y: (o @ o.t()).logsumexp(1).mean(),
    'distances': lambda o, y: torch.cdist(o, o).mean(),
    'largest term': lambda o, y: terms(o, y).max(),
    'smallest term': lambda o, y: terms(o, y).amin(),
    'hard examples': lambda o, y: terms(o, y).topk(3).values.mean(),
    'median': lambda o, y: terms(o, y).median(),
    'quantile': lambda o, y: (
        terms(o, y) * (o[:, 0] > o[:, 0].quantile(0.5)).float()
    ).mean(),
    'sorted': lambda o, y: (o[:, 0].sort().values * torch.arange(8)).sum(),
    'ranks': lambda o, y: (o[:, 0] * o[:, 0].argsort().argsort()).sum(),
    'centred, detached': lambda o, y: (o - o.mean(0).detach()).square().mean(),
    'scaled by .data': lambda o, y: (o * o.data.std()).sum(),
    'signs': lambda o, y: (o * o.mean(0).sign().detach()).sum(),
    'softmax of terms': lambda o, y: (
        terms(o, y).softmax(0).detach() * terms(o, y)
    ).sum(),
    'no grad': lambda o, y: o.sum() * torch.no_grad()(o.var)(),
    'where': lambda o, y: torch.where(o.mean() > 0, o, 2 * o).sum(),
    'clamped': lambda o, y: o.clamp(max=o.detach().mean()).sum(),
    'neighbour': lambda o, y: (o * o.roll(1, 0).detach()).sum(),
    'flipped': lambda o, y: (o * o.flip(0).detach()).sum(),
    'shifted by a slice': lambda o, y: (o[1:] * o[:-1].detach()).sum(),
    'strides': lambda o, y: (o * o.detach().as_strided((8, 3), (0, 1))).sum(),
    'dice': lambda o, y: (
        1 - (o.sigmoid() * F.one_hot(y, 3)).sum() / (o.sigmoid().sum() + 8)
    ),
    'covariance': lambda o, y: torch.cov(o.t()).square().sum(),
    'batch norm': lambda o, y: F.cross_entropy(
        F.batch_norm(o, None, None, training=True), y
    ),
    'attention': lambda o, y: F.scaled_dot_product_attention(
        o[None], o[None], o[None]
    ).sum(),
    'einsum': lambda o, y: torch.einsum('ic,jc->ij', o, o).tanh().sum(),
    'fft': lambda o, y: torch.fft.rfft(o, dim=0).abs().sum(),
    'cumulative': lambda o, y: (o * o.cumsum(0).detach()).sum(),
    'label shares': by_class,
    'label as place': lambda o, y: (
        scatter(o.detach(), y, 0, 3, 'sum')[y] * o
    ).sum(),
    'hook': hooked,
    'hook of a node': hooked_node,
    'own function': lambda o, y: Normalised.apply(o).sum(),
    'saved tensors': kept_aside,
    'in place': in_place,
    'in place by a view': in_place_view,
    'into a constant': into_a_constant,
    'out': with_out,
    'gradient norm': gradient_norm,
    'item': lambda o, y: o.sum() * o.detach().sum().item(),
    'float': lambda o, y: o.sum() * float(o.std()),
    'tried': tried,
    'branch': lambda o, y: o.sum() if o.mean() > 0 else 2 * o.sum(),
    'numpy': lambda o, y: o.sum() * float(o.detach().numpy().mean()),
    'list': lambda o, y: o.sum() * sum(map(sum, o.tolist())),
    'memory': lambda o, y: (
        o.sum() * torch.tensor([]).set_(o.detach().untyped_storage()).sum()
    ),
    'pickle': lambda o, y: (
        o * pickle.loads(pickle.dumps(o.detach())).mean()
    ).sum(),
    'copy': lambda o, y: (o * copy.deepcopy(o.detach()).mean()).sum(),
    'dlpack': lambda o, y: (o * torch.from_dlpack(o.detach()).mean()).sum(),
    'rows of a class': lambda o, y: o[y == 1].square().mean(),
    'rows that are right': lambda o, y: terms(o, y)[o.argmax(1) == y].mean(),
    'unique': lambda o, y: o.sum() * len(y.unique()),
    'own gradient': lambda o, y: (
        o * o.detach().clone().requires_grad_().sum()
    ).sum(),
    'sum of squares and root': lambda o, y: o.norm(),
    'relu of the mean': lambda o, y: o.mean().relu(),
    'relu of a large mean': lambda o, y: (o.mean() + 100).relu(),
}


def train(setup, *losses):
    # A loss for each step.
    for batch, loss in zip(setup.loader, losses, strict=False):
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        loss(out, batch.y[: batch.batch_size]).backward()
        setup.optimizer.step()
    return setup


def use(loss, private, **arguments):
    return train(private(loader={'num_steps': 1}, **arguments), loss)


@pytest.mark.parametrize('name', COUPLED)
def test_coupled_losses_are_refused_in_the_first_step(private, name):
    setup = private()
    before = copy.deepcopy(setup.net.state_dict())
    with pytest.raises(ValueError, match='loss needs to be'):
        train(setup, COUPLED[name])
    assert setup.engine.steps == 0
    after = setup.net.state_dict()
    assert all(after[key].equal(value) for key, value in before.items())


def focal(out, y):
    p = out.softmax(1).gather(1, y[:, None])[:, 0]
    return (-((1 - p) ** 2) * p.log()).mean()


def pooled(out, y):
    # A row for each two rows, by an index of the user's own.
    return F.cross_entropy(out, y)


FINE = {
    'cross entropy': F.cross_entropy,
    'module': nn.CrossEntropyLoss(),
    'sum': lambda o, y: F.cross_entropy(o, y, reduction='sum'),
    'label smoothing': nn.CrossEntropyLoss(label_smoothing=0.1),
    'ignored': lambda o, y: F.cross_entropy(o, y, ignore_index=1),
    'ignored and smooth': nn.CrossEntropyLoss(
        ignore_index=1, label_smoothing=0.1
    ),
    'nll': lambda o, y: F.nll_loss(o.log_softmax(-1), y),
    'probabilities': lambda o, y: F.cross_entropy(o, F.one_hot(y, 3).float()),
    'bce with logits': lambda o, y: F.binary_cross_entropy_with_logits(
        o, F.one_hot(y, 3).float(), pos_weight=torch.tensor([1.0, 2, 3])
    ),
    'bce': lambda o, y: F.binary_cross_entropy(
        o.sigmoid(), F.one_hot(y, 3).float()
    ),
    'mse': lambda o, y: F.mse_loss(o[:, 0], y.float()),
    'l1': lambda o, y: F.l1_loss(o[:, 0], y.float()),
    'huber': lambda o, y: F.smooth_l1_loss(o[:, 0], y.float()),
    'multi margin': F.multi_margin_loss,
    'multi label': lambda o, y: F.multilabel_soft_margin_loss(
        o, F.one_hot(y, 3).float()
    ),
    'poisson': lambda o, y: F.poisson_nll_loss(o[:, 0], y.float()),
    'focal': focal,
    'focal by places': lambda o, y: (
        -o.log_softmax(1)[torch.arange(len(y)), y]
    ).mean(),
    'kl': lambda o, y: F.kl_div(
        o.log_softmax(1), torch.full((1, 3), 1 / 3), reduction='batchmean'
    ),
    'classes with fixed weights': lambda o, y: (
        torch.tensor([1.0, 2.0, 3.0])[y] * terms(o, y)
    ).mean(),
    'weighted sum': lambda o, y: F.cross_entropy(
        o, y, weight=torch.tensor([1.0, 2.0, 3.0]), reduction='sum'
    ),
    'masked by place': lambda o, y: terms(o, y)[
        torch.arange(8) % 2 == 0
    ].mean(),
    'masked by value': lambda o, y: (terms(o, y) * (y != 1)).sum() / 8,
    'self-weighted': lambda o, y: (
        terms(o, y) * o.softmax(1).amax(1).detach()
    ).mean(),
    'scaled hook': lambda o, y: (
        o.register_hook(lambda g: 2 * g),
        F.cross_entropy(o, y),
    )[1],
    'entropy': lambda o, y: -(o.softmax(1) * o.log_softmax(1)).sum(1).mean(),
    'one by one': lambda o, y: (
        sum(F.cross_entropy(o[i : i + 1], y[i : i + 1]) for i in range(8)) / 8
    ),
    'weights in place': lambda o, y: (
        terms(o, y) * torch.ones_like(o[:, 0]).masked_fill_(y == 1, 5.0)
    ).mean(),
    'weights by a mask': lambda o, y: (
        terms(o, y)
        * torch.ones_like(o[:, 0]).index_put_((y == 1,), o.new_tensor(5.0))
    ).mean(),
    'gradient penalty by row': lambda o, y: (
        torch.autograd.grad(
            F.cross_entropy(o, y, reduction='sum'), o, create_graph=True
        )[0]
        .square()
        .sum()
    ),
}


@pytest.mark.parametrize('name', FINE)
def test_ordinary_losses_go_through(private, name):
    setup = use(FINE[name], private)
    assert setup.engine.steps == 1
    # The gradient is the one that it would be.
    other = use(FINE[name], private, trust_loss=True)
    for one, two in zip(
        setup.net.parameters(), other.net.parameters(), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_what_the_report_says(private):
    def said(setup):
        return ' '.join(setup.engine.report(1e-3).assumptions)

    assert 'NOT CHECKED' not in said(use(F.cross_entropy, private))
    trusted = use(mean_penalty, private, trust_loss=True)
    assert 'NOT CHECKED: that the loss' in said(trusted)
    assert 'ignore_index' in said(use(FINE['ignored'], private))
    assert 'ignore_index' not in said(use(FINE['label smoothing'], private))


def test_losses_that_turn_bad_later(private):
    # Plain for two steps, coupled from the third.
    setup = private(loader={'num_steps': 4})
    plain = F.cross_entropy
    with pytest.raises(ValueError, match="meet in 'mean'"):
        train(setup, plain, plain, mean_penalty, plain)
    assert setup.engine.steps == 2


def test_what_earlier_batches_left_behind(private):
    setup = private(loader={'num_steps': 4})
    before = []

    def relative(out, y):
        loss = F.cross_entropy(out, y)
        before.append(loss.detach())
        return loss / before[-2] if len(before) > 1 else loss

    with pytest.raises(ValueError, match='an earlier batch'):
        train(setup, relative, relative)
    assert setup.engine.steps == 1


@pytest.mark.parametrize('what', ['x', 'y', 'n_id', 'labels of the graph'])
def test_features_and_labels_couple_as_outputs_do(private, what):
    setup = private()

    def weight(batch):
        if what == 'x':
            return batch.x.std()
        if what == 'y':
            return batch.y.float().mean()
        if what == 'n_id':
            return batch.n_id.float().mean()
        # Looked up in the whole graph by the names of the nodes.
        return setup.data.y[batch.n_id].float().mean()

    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        labels = setup.data.y[batch.n_id[: batch.batch_size]]
        loss = F.cross_entropy(out, labels) * weight(batch)
        with pytest.raises(ValueError, match=r"meet in '(mean|std)'"):
            loss.backward()
        break


def test_labels_of_the_whole_graph_by_name(private):
    setup = private(loader={'num_steps': 1})
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        labels = setup.data.y[batch.n_id[: batch.batch_size]]
        F.cross_entropy(out, labels).backward()
        setup.optimizer.step()
    want = private(loader={'num_steps': 1})
    want.train()
    assert setup.net.first.bias.equal(want.net.first.bias)


def test_values_can_be_read_after_the_gradient_has_come(private):
    setup = private(loader={'num_steps': 3})
    total, counts, seen = 0.0, torch.zeros(()), []
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        y = batch.y[: batch.batch_size]
        loss = F.cross_entropy(out, y)
        assert 'tensor' in repr(loss)
        assert f'{loss:.3f}'
        loss.backward()
        setup.optimizer.step()
        total += loss.item() + float(loss)
        counts += (out.argmax(1) == y).sum()
        seen.append(out.detach().cpu().numpy())
        assert batch.x.tolist()
        assert copy.deepcopy(loss.detach()) > 0
        assert len(batch.clone().y.unique())
        assert batch.to('cpu').x is batch.x
    assert math.isfinite(total)
    assert 0 <= float(counts) <= 24
    assert len(seen) == 3


class Readout(nn.Module):
    """A row for each subgraph, with attention inside of it."""

    def __init__(self):
        super().__init__()
        self.conv, self.gate = GCNConv(5, 3), nn.Linear(3, 1)

    def forward(self, x, edge_index, batch):
        x = self.conv(x, edge_index)
        return global_add_pool(softmax(self.gate(x), batch) * x, batch)


def test_readout_per_subgraph_and_in_the_loss(private):
    def forward(model, batch):
        return model(batch.x, batch.edge_index, batch.batch)

    setup = private(net=Readout(), forward=forward)
    for batch in setup.loader:
        out = forward(setup.model, batch)
        F.cross_entropy(out, batch.y[:8]).backward()
        setup.optimizer.step()
    assert setup.engine.steps == len(setup.loader)
    # The readout may as well be in the loss, if it is of each subgraph.
    setup = private(loader={'num_steps': 2})
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)
        out = global_add_pool(softmax(out, batch.batch) * out, batch.batch)
        F.cross_entropy(out, batch.y[:8]).backward()
        setup.optimizer.step()
    assert setup.engine.steps == 2
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)
        out = global_add_pool(out, batch.batch // 2)[batch.batch // 2]
        with pytest.raises(ValueError, match="meet in 'scatter_add'"):
            (out.square().sum()).backward()
        break


# The bookkeeping against brute force: what changes, if the rows of one change?

OPERATIONS = {
    **COUPLED,
    # Which labels are ignored counts as public: nothing follows it.
    **{k: v for k, v in FINE.items() if not k.startswith('ignored')},
    'view': lambda o, y: o.view(2, 4, 3).transpose(0, 1).reshape(4, 6),
    'permute': lambda o, y: o.t().flip(0)[1:].unsqueeze(0).squeeze(0),
    'pieces': lambda o, y: torch.stack([a.sum(0) for a in o.chunk(4)]),
    'cat': lambda o, y: torch.cat([o, 2 * o.flip(0), torch.ones(2, 3)]),
    'pad': lambda o, y: F.pad(o, (1, 2, 3, 0), value=7.0),
    'repeat': lambda o, y: (
        o.repeat(2, 2) + o.repeat_interleave(2, 0).repeat(1, 2)
    ),
    'triangles': lambda o, y: o.tril() + o.triu(1).flip(1),
    'diagonal': lambda o, y: o[:3].diagonal() + o.diag_embed().sum((0, 1)),
    'index': lambda o, y: o[torch.tensor([0, 2, 2, 7])][:, [2, 0]],
    'two places': lambda o, y: o[torch.tensor([[0, 1], [2, 3]]), :1],
    'label picks': lambda o, y: o[:, y % 3] + o[y],
    'gather rows': lambda o, y: o.gather(0, y[:, None]),
    'take': lambda o, y: o.take(torch.tensor([0, 5, 9])),
    'scatter': lambda o, y: torch.zeros(4, 3).scatter_add(
        0, torch.tensor([[0, 1, 2]] * 4 + [[3, 3, 3]] * 4), o
    ),
    'scatter mean': lambda o, y: scatter(
        o, torch.tensor([0, 0, 1, 1, 2, 3, 3, 3]), 0, 5, 'mean'
    ),
    'scatter max': lambda o, y: scatter(
        o, torch.tensor([0, 0, 1, 1, 2, 3, 3, 3]), 0, 5, 'max'
    ),
    'scatter by label': lambda o, y: torch.zeros(8, 3).scatter(
        1, y[:, None], o[:, :1]
    ),
    'put': lambda o, y: torch.zeros_like(o).index_put(
        (torch.tensor([0, 3]),), o[[1, 2]]
    ),
    'put by label': lambda o, y: torch.zeros_like(o).index_put(
        (torch.arange(8), y), o[:, 0], accumulate=True
    ),
    'matrix': lambda o, y: o @ torch.ones(3, 2) + o[:, :1] @ torch.ones(1, 2),
    'left matrix': lambda o, y: torch.eye(8)[:4] @ o,
    'batched': lambda o, y: o.view(4, 2, 3) @ o.view(4, 3, 2),
    'addmm': lambda o, y: torch.addmm(o[:, :2], o, torch.ones(3, 2)),
    'linear': lambda o, y: F.linear(o, torch.ones(2, 3), torch.ones(2)),
    'softmax': lambda o, y: o.softmax(1) + o.log_softmax(1) + o.cumsum(1),
    'softmax down': lambda o, y: o.softmax(0),
    'sort': lambda o, y: o.sort(1).values + o.topk(3, 1).values,
    'reduce': lambda o, y: torch.stack(
        [o.sum(1), o.mean(1), o.amax(1), o.std(1), o.norm(dim=1), o.prod(1)]
    ),
    'reduce down': lambda o, y: o.view(2, 4, 3).sum(1),
    'layer norm': lambda o, y: F.layer_norm(o, (3,)),
    'normalise': lambda o, y: (
        F.normalize(o) + F.cosine_similarity(o, o.roll(1, 1)).unsqueeze(1)
    ),
    'embedding': lambda o, y: F.embedding(y, torch.randn(3, 2)),
    'expand': lambda o, y: o[:, None, :].expand(8, 5, 3).sum(1),
    'unfold': lambda o, y: o.unfold(0, 2, 2),
    'cast': lambda o, y: o.double().float().half().float(),
    'glu': lambda o, y: F.glu(o.repeat(1, 2)) + F.logsigmoid(o) + F.gelu(o),
    'where rows': lambda o, y: torch.where(y[:, None] == 1, o, -o),
    'in place own': lambda o, y: o.clone().mul_(2).add_(o).relu_(),
    'as a matrix': lambda o, y: o.kron(torch.ones(2, 2)),
    'conv': lambda o, y: F.conv1d(o[:, None], torch.ones(1, 1, 2)),
    'bincount': lambda o, y: F.one_hot(y, 3).sum(0) * o,
    'searched': lambda o, y: torch.searchsorted(torch.arange(3.0), o),
    'rot': lambda o, y: o.rot90() @ torch.ones(8, 1),
    'select': lambda o, y: o.select(0, 3) + o.narrow(1, 0, 1)[2],
    'split': lambda o, y: o.split([3, 5])[1].unbind(1)[2],
}


@pytest.mark.parametrize('name', OPERATIONS)
@pytest.mark.parametrize('backward', [False, True])
def test_owners_by_brute_force(name, backward):
    rows = torch.tensor([0, 0, 1, 1, 2, 3, 3, 3])

    def result(victim, number):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8, 3, generator=generator)
        y = torch.randint(3, (8,), generator=generator)
        if victim is not None:
            # Other numbers, small and large, and other labels.
            scale = (0.3, 3.0, 30.0)[number % 3]
            generator.manual_seed(100 + number)
            mine = rows == victim
            x[mine] = scale * torch.randn(8, 3, generator=generator)[mine]
            y[mine] = torch.randint(3, (8,), generator=generator)[mine]
        watch = Watch()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            out = follow(x, rows, watch).requires_grad_()
            try:
                value = OPERATIONS[name](out, follow(y, rows, watch))
                if backward:
                    value.sum().backward()
                    value = out.grad
            except (ValueError, RuntimeError, BufferError):
                return None
        watch.live = False
        return value

    base = result(None, 0)
    if base is None:
        return
    owner = base._owner
    if base._memory.spoiled is not None:
        return
    for victim in range(4):
        for number in range(6):
            other = result(victim, number)
            if other is None or other.shape != base.shape:
                continue
            one, two = base._value.detach(), other._value.detach()
            same = (one == two) | (one.isnan() & two.isnan())
            if owner is None:
                assert same.all()
                continue
            allowed = (owner == victim + 1) | (owner == MIXED)
            assert (same | allowed).all(), (victim, number)
