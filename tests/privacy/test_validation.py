import math
from copy import deepcopy
from inspect import signature

import pytest
import torch
from references import Silence
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as PyGLoader
from torch_geometric.nn import GCNConv, global_mean_pool

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.validation import check_criterion, check_totals


class Net(nn.Module):
    """A convolution, whatever is to be tested, and another convolution."""

    def __init__(self, middle):
        super().__init__()
        self.first = GCNConv(5, 8)
        self.middle = middle
        self.second = GCNConv(8, 3)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.second(self.middle(x), edge_index)


def refused(private, match, **arguments):
    # Nothing is changed by a refusal.
    states = []

    def watch(net):
        states.append((net, {k: v.clone() for k, v in net.named_parameters()}))
        return net

    if 'net' in arguments:
        watch(arguments['net'])
    with pytest.raises((ValueError, TypeError), match=match):
        private(**arguments)
    for net, before in states:
        assert all(p.equal(before[k]) for k, p in net.named_parameters())


# E6: layers


def test_layers_refused_by_name(private):
    for layer in (
        *(nn.BatchNorm1d(8), nn.SyncBatchNorm(8), pyg.BatchNorm(8)),
        pyg.DiffGroupNorm(8, 2),
    ):
        refused(private, type(layer).__name__, net=Net(layer))
    for kind in (pyg.GCNConv, pyg.SGConv, pyg.APPNP):
        net = Net(nn.Identity())
        size = (2, 0.1) if kind is pyg.APPNP else (8, 3)
        net.second = kind(*size, cached=True)
        refused(private, 'cached=False', net=net)
    net.first = GCNConv(-1, 8)
    with pytest.raises(ValueError, match='no shapes yet'):
        private(net=net)


NORMS = [
    pyg.LayerNorm(8),
    pyg.GraphNorm(8),
    pyg.PairNorm(),
    pyg.InstanceNorm(8),
    pyg.MeanSubtractionNorm(),
]


class Normed(nn.Module):
    """With a norm between, which is given 'batch' or not."""

    def __init__(self, layer, whole=False):
        super().__init__()
        self.first, self.layer = GCNConv(5, 8), layer
        self.second = nn.Linear(8, 3)
        self.whole = whole

    def forward(self, x, edge_index, batch):
        x = self.first(x, edge_index)
        if isinstance(self.layer, pyg.GPSConv):
            x = self.layer(x, edge_index, batch)
        elif isinstance(self.layer, pyg.GENConv | pyg.GraphSAGE):
            x = self.layer(x, edge_index)
        elif isinstance(self.layer, pyg.MLP):
            x = self.layer(x)
        else:
            x = self.layer(x) if self.whole else self.layer(x, batch)
        return self.second(x.tanh())


def by_batch(model, batch):
    return model(batch.x, batch.edge_index, batch.batch)


@pytest.mark.parametrize('layer', NORMS)
def test_norms_of_each_subgraph_are_fine_and_of_all_are_not(private, layer):
    # Given 'batch' they change by 0.0 with other subgraphs.
    refused(
        private, 'treat subgraphs', net=Normed(layer, True), forward=by_batch
    )
    layer.zero_grad()
    setup = private(net=Normed(layer), forward=by_batch)
    for batch in setup.loader:
        setup.loss(batch, by_batch(setup.model, batch)).backward()
        setup.optimizer.step()
    assert setup.engine.steps == len(setup.loader)


def gps(**arguments):
    return pyg.GPSConv(8, GCNConv(8, 8), dropout=0.0, **arguments)


BY_NODE = {'norm': 'layer_norm', 'norm_kwargs': {'mode': 'node'}}


def test_batch_norm_is_refused_with_what_avoids_it(private):
    arguments = {'forward': by_batch, 'loader': {'contiguous': True}}
    for make, good in (
        (gps, {'norm': 'layer_norm'}),
        (lambda **k: pyg.GENConv(8, 8, **k), {'norm': 'layer'}),
        (lambda **k: pyg.MLP([8, 8, 8], **k), BY_NODE),
        (
            lambda norm='batch_norm', **k: pyg.GraphSAGE(
                8, 8, 2, norm=norm, **k
            ),
            BY_NODE,
        ),
    ):
        with pytest.raises(ValueError, match='running statistics') as error:
            private(net=Normed(make()), **arguments)
        assert "norm_kwargs={'mode': 'node'}" in str(error.value)
        setup = private(net=Normed(make(**good)), **arguments)
        for batch in setup.loader:
            out = by_batch(setup.model, batch)[batch.root_mask]
            F.cross_entropy(out, batch.y[batch.root_mask]).backward()
            setup.optimizer.step()
        assert setup.engine.steps == len(setup.loader)


def test_layers_that_are_fine(private):
    for layer in (
        *(nn.LayerNorm(8), pyg.LayerNorm(8, mode='node'), nn.PReLU()),
        nn.Dropout(),
    ):
        setup = private(net=Net(layer))
        setup.train(1)
        assert setup.engine.steps == 1


def centre(x):
    return x - x.mean(0)


def sort_rows(x):
    # Has no gradient across rows.
    return x + (x.sum(1).argsort().argsort() % 2).float().view(-1, 1)


def mask_with_zero(x):
    # Zero times infinity: isolated only while all rows are finite.
    return x + torch.eye(len(x)) @ x


def by_largest(x):
    return x / x.abs().max()


@pytest.mark.parametrize(
    'function', [centre, sort_rows, mask_with_zero, by_largest]
)
def test_couplings_that_only_show_in_numbers(private, function):
    class Couple(nn.Module):
        def forward(self, x):
            return function(x)

    refused(private, 'treat subgraphs apart', net=Net(Couple()))


def test_buffers_of_data(private):
    class Remember(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('seen', torch.zeros(8))

        def forward(self, x):
            if self.training:
                self.seen.mul_(0.9).add_(0.1 * x[0].detach())
            return x

    net = Net(Remember())
    refused(private, 'seen', net=net)
    assert net.middle.seen.equal(torch.zeros(8))


def test_buffers_that_begin_to_change(private):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('seen', torch.zeros(8))
            self.late = False

        def forward(self, x):
            if self.late:
                self.seen += x.detach().mean(0)
            return x

    setup = private(net=Net(Late()))
    setup.train(1)
    setup.net.middle.late = True
    with pytest.raises(ValueError, match='buffers'):
        setup.train(1)


def test_model_with_other_arguments_is_tested_at_its_first_call(private):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(5, 3)

        def forward(self, x, edge_index, batch=None):
            x = self.conv(x, edge_index)
            return x if batch is None else x - x.mean(0)

    setup = private(net=Two())
    for batch in setup.loader:
        with pytest.raises(ValueError, match='treat subgraphs apart'):
            setup.model(batch.x, batch.edge_index, batch.batch)
        break
    # And if it is announced, before.
    refused(
        private,
        'treat subgraphs apart',
        net=Two(),
        forward=lambda model, b: model(b.x, b.edge_index, b.batch),
    )


def test_pooling_per_subgraph(private):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(5, 3)

        def forward(self, x, edge_index, batch):
            return global_mean_pool(self.conv(x, edge_index), batch)

    class Unknown(Pooled):
        def forward(self, x, edge_index, batch, mood):
            return super().forward(x, edge_index, batch)

    refused(private, "'forward' needs to be given", net=Unknown())
    setup = private(net=Pooled())
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index, batch.batch)
        assert out.shape == (8, 3)
        F.cross_entropy(out, batch.y[:8]).backward()
        setup.optimizer.step()
    assert setup.engine.steps == len(setup.loader)


def test_compiled_models_and_autocast_are_refused_by_name(private):
    setup = private()
    fast = torch.compile(setup.model, backend='eager')
    for batch in setup.loader:
        with pytest.raises(TypeError, match='without torch'):
            fast(batch.x, batch.edge_index)
        break
    net = torch.compile(Net(nn.Identity()), backend='eager')
    with pytest.raises(TypeError, match='compile made'):
        private(net=net)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        refused(private, 'without autocast', net=Net(nn.Identity()))


def test_model_of_a_data_object(private):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(5, 3)

        def forward(self, data):
            return self.conv(data.x, data.edge_index)

    setup = private(net=Whole())
    for batch in setup.loader:
        setup.loss(batch, setup.model(batch)).backward()
        setup.optimizer.step()
    for batch in setup.loader:
        batch.x = batch.x / batch.x.sum()
        with pytest.raises(ValueError, match="'x' was changed"):
            setup.model(batch)
        break


def test_the_test_before_training_leaves_everything_as_it_was(private):
    class Drawing(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training)

    data, states = private().data, []
    before = data.x.clone()
    for made in (lambda net: None, lambda net: private(net=net, data=data)):
        torch.manual_seed(0)
        net = Net(Drawing()).eval()
        torch.manual_seed(0)  # as private() does
        made(net)
        states.append(torch.rand(3))
    assert states[0].equal(states[1])
    assert data.x.equal(before)
    assert not net.training
    assert all(p.grad is None for p in net.parameters())


def test_outputs_that_are_none(private):
    class Odd(nn.Module):
        def __init__(self, result):
            super().__init__()
            self.conv = GCNConv(5, 3)
            self.result = result

        def forward(self, x, edge_index):
            return self.result(self.conv(x, edge_index))

    for result, match in (
        (lambda out: (out, out), 'one real tensor'),
        (lambda out: out.sum(), 'row per node'),
        (lambda out: out[:3], 'row per node'),
        (lambda out: out.argmax(1), 'one real tensor'),
    ):
        refused(private, match, net=Odd(result))


# E6: the loss


def weighted(out, target):
    weight = torch.tensor([1.0, 2.0, 3.0])
    return F.cross_entropy(out, target, weight=weight)


def weighted_terms(out, target):
    weight = torch.tensor([1.0, 2.0, 3.0])
    loss = F.cross_entropy(out, target, weight=weight, reduction='none')
    return loss.mean()


def contrast(out, target):
    return (out @ out.t()).logsumexp(1).mean()


def total(out, target):
    return F.cross_entropy(out, target, reduction='sum')


def squared(out, target):
    return F.cross_entropy(out, target).square()


@pytest.mark.parametrize(
    ('criterion', 'reduction', 'fine'),
    [
        (F.cross_entropy, 'mean', True),
        (weighted_terms, 'mean', True),
        (total, 'sum', True),
        (weighted, 'mean', False),
        (contrast, 'mean', False),
        (squared, 'mean', False),
        (total, 'mean', False),
        (F.cross_entropy, 'sum', False),
    ],
)
def test_losses(private, criterion, reduction, fine):
    arguments = {'criterion': criterion, 'loss_reduction': reduction}
    if fine:
        private(**arguments)
    else:
        refused(private, "'criterion'", **arguments)


def test_the_value_of_a_loss_of_terms_is_that_of_the_loop(private):
    setup = private(
        criterion=F.cross_entropy,
        forward=lambda model, batch: 3 * model(batch.x, batch.edge_index),
    )
    batch = next(iter(setup.loader))
    found = setup.engine._training.loss(batch)
    out = 3 * setup.net(batch.x, batch.edge_index)[:8]
    want = F.cross_entropy(out, batch.y[:8])
    assert float(found) == pytest.approx(float(want))


def test_losses_of_real_targets():
    out, target = torch.randn(9, 2), torch.randn(9, 2)
    check_criterion(F.mse_loss, out, target, 'mean')
    with pytest.raises(ValueError, match='one number'):
        check_criterion(lambda a, b: (a - b).square(), out, target, 'mean')


# E1: batches


def test_tensors_from_elsewhere(private):
    setup = private()
    for batch in setup.loader:
        x, edge_index = batch.x, batch.edge_index
        for args, match in (
            ((x.clone(), edge_index), 'got a Tensor of shape'),
            ((x / x.sum(), edge_index), 'got a Tensor'),
            ((x, edge_index.flip(0)), 'got a Tensor'),
            ((setup.data.x, setup.data.edge_index), r'\[40, 5\]'),
            ((object(), edge_index), 'got a object'),
        ):
            with pytest.raises(ValueError, match=match):
                setup.model(*args)
        x.add_(1)
        with pytest.raises(ValueError, match='changed in place'):
            setup.model(x, edge_index)
        break
    assert setup.engine.steps == 0
    # Nor of an earlier batch.
    batches = iter(setup.loader)
    batch = next(batches)
    setup.loss(batch).backward()
    setup.optimizer.step()
    next(batches)
    with pytest.raises(ValueError, match='gave last'):
        setup.model(batch.x, batch.edge_index)


def change(name, value):
    def transform(batch):
        batch[name] = value(batch)
        return batch

    return transform


@pytest.mark.parametrize(
    'transform',
    [
        change('batch', lambda b: torch.zeros_like(b.batch)),
        change('batch', lambda b: b.batch.flip(0)),
        change('batch', lambda b: torch.arange(b.num_nodes)),
        change('n_id', lambda b: torch.zeros_like(b.n_id)),
        change('n_id', lambda b: b.n_id.roll(1)),
        change('n_id', lambda b: b.n_id + 1000),
        change('n_id', lambda b: None),
        change('x', lambda b: torch.cat([b.x, b.x.mean(0, keepdim=True)])),
        lambda batch: None,
        lambda batch: batch.subgraph(torch.arange(batch.num_nodes - 1)),
    ],
)
def test_batches_that_are_no_subgraphs(private, transform):
    refused(private, "'transform'", loader={'transform': transform})


@pytest.mark.parametrize(
    ('edges', 'match'),
    [
        (lambda b: torch.tensor([[0], [1]]), 'joins two'),
        (lambda b: torch.tensor([[0], [10**6]]), 'name its nodes'),
        (lambda b: torch.tensor([[-1], [0]]), 'name its nodes'),
    ],
)
def test_edges_that_do_not_match(private, edges, match):
    transform = change('edge_index', edges)
    refused(private, match, loader={'transform': transform})


# E7: gradients and steps


def test_steps_out_of_order(private):
    setup = private()
    with pytest.raises(RuntimeError, match='got none'):
        setup.optimizer.step()
    with pytest.raises(RuntimeError, match='before the first batch'):
        setup.model(setup.data.x, setup.data.edge_index)
    for batch in setup.loader:
        with pytest.raises(RuntimeError, match='was not called'):
            setup.optimizer.step()
        loss = setup.loss(batch)
        with pytest.raises(RuntimeError, match='no backward'):
            setup.optimizer.step()
        with pytest.raises(RuntimeError, match='second call'):
            setup.model(batch.x, batch.edge_index)
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match='exactly once'):
            loss.backward()
        break
    assert setup.engine.steps == 0
    batches = iter(setup.loader)
    loss = setup.loss(next(batches))
    loss.backward(retain_graph=True)
    setup.optimizer.step()
    with pytest.raises(RuntimeError, match='second step'):
        setup.optimizer.step()
    with pytest.raises(RuntimeError, match='after the step'):
        setup.model(setup.data.x, setup.data.edge_index)
    new = setup.loss(next(batches))
    with pytest.raises(RuntimeError, match='exactly once'):
        loss.backward()
    new.backward()
    setup.optimizer.step()
    assert setup.engine.steps == 2


def test_batches_left_out(private):
    setup = private(loader={'num_steps': 4})
    batches = iter(setup.loader)
    setup.loss(next(batches)).backward()
    setup.optimizer.step()
    next(batches)
    with pytest.raises(RuntimeError, match='every batch'):
        next(batches)
    assert setup.engine.steps == 1
    # To leave an epoch is fine: nothing of the batch was seen.
    for batch in setup.loader:
        setup.loss(batch).backward()
        break
    setup.train(1)
    assert setup.engine.steps == 2


def test_gradients_from_elsewhere(private):
    for how in range(3):
        setup = private(loader={'num_steps': 3})
        for batch in setup.loader:
            setup.loss(batch).backward()
            if how == 0:
                sum(p.norm() for p in setup.net.parameters()).backward()
            elif how == 1:
                setup.net.first.bias.grad = torch.ones(6)
            else:
                setup.model.eval()
                setup.loss(batch).backward()
                setup.model.train()
            with pytest.raises(RuntimeError, match='came from elsewhere'):
                setup.optimizer.step()
            break
        assert setup.engine.steps == 0


def test_gradients_may_stay(private):
    setup = private(loader={'num_steps': 3})
    want = private(loader={'num_steps': 3})
    want.train()
    for batch in setup.loader:
        setup.loss(batch).backward()
        setup.optimizer.step()
    assert setup.net.first.bias.equal(want.net.first.bias)
    for batch in setup.loader:
        setup.loss(batch).backward()
        setup.net.first.bias.grad.add_(1)
        with pytest.raises(RuntimeError, match='came from elsewhere'):
            setup.optimizer.step()
        break


def test_closures_and_scalers(private):
    setup = private()
    for batch in setup.loader:
        loss = setup.loss(batch)
        with pytest.raises(RuntimeError, match='no backward pass'):
            setup.optimizer.step(lambda: 0.0)
        scaler = torch.amp.GradScaler('cpu')
        scaler.scale(loss).backward()
        with pytest.raises(TypeError, match='GradScaler'):
            scaler.step(setup.optimizer)
        break
    assert setup.engine.steps == 0


def test_parameters_and_optimizer(private):
    net = Net(nn.Identity())
    first = torch.optim.SGD(net.first.parameters(), lr=0.1)
    refused(private, 'every trainable parameter', net=net, optimizer=first)
    more = torch.optim.SGD(
        [*net.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1
    )
    refused(private, 'alone', net=net, optimizer=more)
    for p in net.parameters():
        p.requires_grad_(False)
    whole = torch.optim.SGD(net.parameters(), lr=0.1)
    refused(private, 'a parameter to train', net=net, optimizer=whole)
    net = Net(nn.Identity())
    net.first.bias.grad = torch.ones(8)
    refused(private, 'without gradients', net=net)


def test_frozen_parameters_stay(private):
    net = Net(nn.Identity())
    for p in net.first.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    setup = private(net=net, optimizer=optimizer)
    before = net.first.bias.clone(), net.second.bias.detach().clone()
    setup.train(1)
    assert net.first.bias.equal(before[0])
    assert not net.second.bias.equal(before[1])
    net.first.bias.requires_grad_(True)
    with pytest.raises(ValueError, match='the same parameters'):
        setup.train(1)


# E5: rows that are not finite


@pytest.mark.parametrize('value', [1e20, 1e38, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize('kind', ['GCN', 'GAT', 'MLP'])
def test_no_row_breaks_the_weights(private, value, kind):
    def make():
        torch.manual_seed(1)
        if kind == 'GAT':
            return pyg.GATConv(5, 3)
        if kind == 'MLP':
            return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        return Net(nn.ReLU())

    grads = []
    for row in (None, value):
        setup = private(
            net=make(), max_grad_norm=0.3, loader={'batch_size': 14}
        )
        whole = setup.loader.loader.draw(0)
        victim = int(whole.roots[0])
        own = whole.node[: int(whole.ptr[1])]
        x = setup.data.x.clone()
        if row is not None:
            x[victim] = row
        setup.data.x = x
        setup.loader.loader.data.x = x

        setup.engine._noise = Silence()
        for batch in setup.loader:
            args = (batch.x,) if kind == 'MLP' else (batch.x, batch.edge_index)
            loss = setup.loss(batch, setup.model(*args))
            loss.backward()
            setup.optimizer.step()
            break
        assert victim in own
        grads.append([p.grad for p in setup.net.parameters()])
        for p in setup.net.parameters():
            assert p.isfinite().all()
    # One subgraph of 14 changed: the sum by twice the norm at most.
    change = sum((a - b).square().sum() for a, b in zip(*grads, strict=True))
    assert 14 * change.sqrt() <= 2 * 0.3


# Arguments


def test_bad_arguments(private):
    for arguments, match in (
        ({'max_grad_norm': 1e-310}, "'max_grad_norm'.*exact"),
        ({'max_grad_norm': 1e300}, "'max_grad_norm'.*exact"),
        ({'noise_multiplier': 1e10}, "'noise_multiplier'.*too large"),
        ({'target_epsilon': 1.0}, 'target_delta'),
        ({'forward': lambda model, batch: 1}, 'call the model once'),
        ({'engine': {'accountant': 'gdp'}}, 'accountant'),
        ({'engine': {'ledger_head': 'a'}}, "needs a 'ledger'"),
    ):
        refused(private, match, **arguments)


def test_what_is_not_what_it_should_be(private):
    setup = private()
    net = Net(nn.Identity())
    good = {
        'module': net,
        'optimizer': torch.optim.SGD(net.parameters(), lr=0.1),
        'data_loader': DisjointWalkLoader(setup.data, 4, 1, seed=0),
        'noise_multiplier': 4.0,
        'max_grad_norm': 1.0,
    }
    for name, value, match in (
        ('module', lambda x: x, 'torch|Module'),
        ('optimizer', net, 'Optimizer'),
        ('data_loader', [setup.data], 'StepLoader'),
        ('module', setup.model, 'private already'),
        ('optimizer', setup.optimizer, 'private already'),
        ('data_loader', setup.loader.loader, 'private already'),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            PrivacyEngine().make_private(**{**good, name: value})
    with pytest.raises(ValueError, match='one model'):
        setup.engine.make_private(**good)
    for plan, match in (
        ({}, 'steps'),
        ({'steps': 3, 'epochs': 2}, 'steps'),
        ({'steps': 0}, 'steps'),
        ({'epochs': True}, 'epochs'),
        ({'steps': 3, 'noise_multiplier': 1.0}, 'noise_multiplier'),
        ({'steps': 3, 'target_epsilon': -1.0}, 'epsilon'),
    ):
        asked = {**good, 'target_epsilon': 1.0, 'target_delta': 1e-3, **plan}
        if 'noise_multiplier' not in plan:
            del asked['noise_multiplier']
        with pytest.raises((ValueError, TypeError), match=match):
            PrivacyEngine().make_private_with_epsilon(**asked)
    engine = PrivacyEngine()
    for ask in (
        lambda: engine.steps,
        lambda: engine.get_epsilon(1e-3),
        lambda: engine.report(1e-3),
        engine.state_dict,
        lambda: engine.exhausted,
    ):
        with pytest.raises(RuntimeError, match='make_private first'):
            ask()
    with pytest.raises(ValueError, match='batch_size'):
        DisjointWalkLoader(setup.data, 41, 1)
    nothing = torch.zeros(40, dtype=torch.bool)
    with pytest.raises(ValueError, match='at least one'):
        DisjointWalkLoader(setup.data, 1, 1, input_nodes=nothing)


def test_one_pass_at_a_time(private):
    setup = private(loader={'num_steps': 4})
    first = iter(setup.loader)
    batch = next(first)
    setup.loss(batch).backward()
    setup.optimizer.step()
    setup.train(1)
    with pytest.raises(RuntimeError, match='started again'):
        next(first)


def test_single_subgraph_and_single_nodes(private):
    data = Data(
        x=torch.randn(3, 5), y=torch.arange(3), edge_index=torch.empty(2, 0)
    )
    data.edge_index = data.edge_index.long()
    for batch_size in (1, 3):
        setup = private(
            data=data, loader={'batch_size': batch_size, 'walk_length': 0}
        )
        setup.train(1)
        assert setup.engine.steps == 1


def test_sums_of_other_units_than_were_drawn_are_refused():
    check_totals(torch.tensor(4), 4, 1.0)
    for found in (3, 5, 0):
        with pytest.raises(RuntimeError, match='other units'):
            check_totals(torch.tensor(found), 4, 1.0)
    check_totals(torch.tensor(2**18), 2**18, 1.0)
    with pytest.raises(RuntimeError, match='more than 262144'):
        check_totals(torch.tensor(2**18 + 1), 2**18 + 1, 2.0)
    # Of little noise fewer: by coins a batch may have any size.
    check_totals(torch.tensor(2**17), 2**17, 0.5)
    with pytest.raises(RuntimeError, match='more than'):
        check_totals(torch.tensor(2**17 + 1), 2**17 + 1, 0.5)


def test_every_argument_of_opacus_has_a_place(private):
    opacus = pytest.importorskip('opacus')
    optimizers = pytest.importorskip('opacus.optimizers')
    for call in ('__init__', 'make_private', 'make_private_with_epsilon'):
        mine = {
            *signature(getattr(PrivacyEngine, call)).parameters,
            *signature(PrivacyEngine.make_private).parameters,
        }
        for name in signature(getattr(opacus.PrivacyEngine, call)).parameters:
            if name not in mine and name != 'kwargs':
                with pytest.raises(TypeError, match=f"'{name}' of Opacus"):
                    getattr(PrivacyEngine(), call)(**{name: 'any'})
    adaptive = signature(optimizers.AdaClipDPOptimizer).parameters
    for name in ['total_steps', *(n for n in adaptive if 'clip' in n)]:
        if name != 'clipping':
            with pytest.raises(TypeError, match=f"'{name}' of Opacus"):
                private(**{name: 1.0})
    for clipping, place in (('per_layer', 'flat'), ('adaptive', 'Adaptive')):
        with pytest.raises(TypeError, match=f'of Opacus.*{place}'):
            private(clipping=clipping)


def test_every_attribute_of_opacus_has_a_place(private):
    opacus = pytest.importorskip('opacus')
    optimizers = pytest.importorskip('opacus.optimizers')
    made = private()
    net = nn.Linear(5, 2)
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    theirs = {
        'engine': opacus.PrivacyEngine(),
        'optimizer': optimizers.DPOptimizer(
            plain,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=4,
        ),
        'model': opacus.GradSampleModule(net),
    }
    for part, their in theirs.items():
        mine, seen = getattr(made, part), 0
        more = {'optimizer': 'expected_batch_size', 'model': '_module'}
        public = [n for n in dir(type(their)) if n[0] != '_']
        for name in [*public, *([more[part]] if part in more else ())]:
            if hasattr(mine, name):
                continue
            with pytest.raises(AttributeError, match=f"'{name}', unlike that"):
                getattr(mine, name)
            seen += 1
        assert seen > 2, part
    for name in ('optimizer', 'model'):
        given = {'module': net, 'optimizer': plain}
        given['module' if name == 'model' else name] = theirs[name]
        with pytest.raises(TypeError, match='before Opacus wrapped it'):
            PrivacyEngine.validate(**given)


def test_other_loaders_are_told_which_ones_to_use(private):
    graphs = [Data(x=torch.rand(2, 5)) for _ in range(3)]
    with pytest.raises(TypeError, match=r'GraphLoader\(graphs'):
        PrivacyEngine().make_private(
            module=(net := nn.Linear(5, 2)),
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=PyGLoader(graphs, 2),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


class Centre(nn.Module):
    def forward(self, x):
        return centre(x)


def test_validate_and_is_compatible_as_in_opacus():
    opacus = pytest.importorskip('opacus')
    nets = {
        'linear': nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
        'norm': nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)),
        'frozen norm': nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)
        ),
    }
    for name, net in nets.items():
        before = deepcopy(net.state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        theirs, ours = opacus.PrivacyEngine(), PrivacyEngine()
        call = {'module': net, 'optimizer': optimizer, 'data_loader': None}
        # Theirs looks at layers with weights alone, though one without keeps
        # statistics of all rows as well.
        if name != 'frozen norm':
            assert theirs.is_compatible(**call) == ours.is_compatible(**call)
        assert PrivacyEngine.is_compatible(net) == (name == 'linear')
        found = PrivacyEngine.validate(net, strict=False)
        assert len(found) == (name != 'linear')
        if found:
            with pytest.raises(ValueError, match='BatchNorm1d'):
                ours.validate(**call)
        assert all(
            value.equal(before[key]) for key, value in net.state_dict().items()
        )


def test_validate_with_a_loader_finds_what_make_private_refuses(private):
    data = private().data
    loader = DisjointWalkLoader(data, batch_size=8, walk_length=2, seed=1)
    fine, mixing = Net(nn.Identity()), Net(Centre())
    for net, right in ((fine, True), (mixing, False)):
        optimizer = torch.optim.Adam(net.parameters())
        assert PrivacyEngine.is_compatible(net)
        assert PrivacyEngine.is_compatible(net, data_loader=loader) == right
        assert PrivacyEngine.is_compatible(net, optimizer, loader) == right
    with pytest.raises(ValueError, match='treat subgraphs apart'):
        PrivacyEngine.validate(mixing, data_loader=loader)
    for kind in (PyGLoader([data]), torch.utils.data.DataLoader([1])):
        assert not PrivacyEngine.is_compatible(fine, data_loader=kind)
    # Nothing was taken over: a training starts as if nothing had been tried.
    optimizer = torch.optim.Adam(fine.parameters())
    PrivacyEngine().make_private(
        module=fine,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    with pytest.raises(TypeError, match="'module' needs to be"):
        PrivacyEngine.validate(None)


def test_an_edge_between_subgraphs_of_a_later_batch_is_refused(private):
    # That the first batch has none says nothing of the others.
    late = []

    def transform(batch):
        if late:
            batch.edge_index = torch.tensor([[0], [1]])
        return batch

    setup = private(loader={'transform': transform, 'num_steps': 3})
    setup.train(1)
    late.append(True)
    with pytest.raises(ValueError, match='an edge joins two of them'):
        setup.train(1)
    assert setup.engine.steps == 1
