"""A loss that reads what the model kept of its call, wherever it is kept."""

import contextvars
import os
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine

NUMBER = 24
NORM = 0.01
VARIABLE = contextvars.ContextVar('kept', default=1.0)
LOCAL = threading.local()
WORDS: dict[str, object] = {}
ARRAY = np.ones(1)
OUT = torch.ones(())


class Silent:
    """In the place of noise."""

    def normal(self, shape):
        return torch.zeros(shape, dtype=torch.float64)


class Keeps(nn.Module):
    """Keeps what all rows say together, in some way."""

    kept_by_class = 1.0

    def __init__(self, keep):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.keep = keep
        self.values = []

    def forward(self, x):
        self.keep(self, x.detach().sum())
        return self.lin(x)

    def loss(self, out, y, weight):
        return (F.cross_entropy(out, y, reduction='none') * weight).sum()


def in_a_closure():
    kept = [1.0]
    return (
        lambda model, value: kept.__setitem__(0, value),
        lambda model: kept[0],
    )


def in_a_generator():
    def cell():
        value = 1.0
        while True:
            new = yield value
            value = value if new is None else new

    made = cell()
    next(made)
    return lambda model, value: made.send(value), lambda model: next(made)


def as_a_seed(model, value):
    torch.manual_seed(int(1e3 * value.abs().clamp(max=1e9)))


def in_an_error(model, value):
    try:
        raise ValueError(float(value))
    except ValueError as error:
        WORDS['error'] = error


def by_a_hook():
    kept = [1.0]

    def hook(layer, args, out):
        kept[0] = float(out.detach().sum())

    def keep(model, value):
        if not model.lin._forward_hooks:
            raise AssertionError('no hook')

    keep.hook = hook
    return keep, lambda model: kept[0]


WAYS = {
    'attribute': (
        lambda model, value: setattr(model, 'value', value),
        lambda model: model.value,
    ),
    'number as attribute': (
        lambda model, value: setattr(model, 'value', value.item()),
        lambda model: model.value,
    ),
    'attribute of a layer, by a view': (
        lambda model, value: setattr(model.lin, 'value', value.view(1)),
        lambda model: model.lin.value[0],
    ),
    'list': (
        lambda model, value: model.values.append(value),
        lambda model: model.values[-1],
    ),
    'list of numbers': (
        lambda model, value: model.values.append(float(value)),
        lambda model: model.values[-1],
    ),
    'class': (
        lambda model, value: setattr(Keeps, 'kept_by_class', value),
        lambda model: Keeps.kept_by_class,
    ),
    'global': (
        lambda model, value: WORDS.update(value=value),
        lambda model: WORDS['value'],
    ),
    'text': (
        lambda model, value: WORDS.update(value=repr(float(value))),
        lambda model: float(WORDS['value']),
    ),
    'environment': (
        lambda model, value: os.environ.update(KEPT=str(float(value))),
        lambda model: float(os.environ['KEPT']),
    ),
    'error': (in_an_error, lambda model: WORDS['error'].args[0]),
    'closure': in_a_closure(),
    'generator': in_a_generator(),
    'hook': by_a_hook(),
    'context': (
        lambda model, value: VARIABLE.set(float(value)),
        lambda model: VARIABLE.get(),
    ),
    'thread': (
        lambda model, value: setattr(LOCAL, 'value', float(value)),
        lambda model: LOCAL.value,
    ),
    'array': (
        lambda model, value: ARRAY.fill(float(value)),
        lambda model: float(ARRAY[0]),
    ),
    'out': (
        lambda model, value: torch.add(value, 0, out=OUT),
        lambda model: OUT,
    ),
    'in place': (
        lambda model, value: OUT.data.copy_(value),
        lambda model: OUT.clone(),
    ),
    'function': (
        lambda model, value: setattr(in_an_error, 'value', value),
        lambda model: in_an_error.value,
    ),
    'seed of torch': (as_a_seed, lambda model: torch.rand(())),
    'seed of python': (
        lambda model, value: random.seed(float(value)),
        lambda model: random.random(),
    ),
    'seed of numpy': (
        lambda model, value: np.random.seed(
            int(1e3 * value.abs().clamp(max=1e6))
        ),
        lambda model: float(np.random.rand()),
    ),
    'whole number': (
        lambda model, value: WORDS.update(
            value=int(1e3 * value.clamp(-1e9, 1e9))
        ),
        lambda model: WORDS['value'],
    ),
    'sign': (
        lambda model, value: WORDS.update(value=bool(value > 0)),
        lambda model: 1 if WORDS['value'] else -1,
    ),
    'switch of a layer': (
        lambda model, value: model.lin.train(bool(value > 0)),
        lambda model: 1 if model.lin.training else -1,
    ),
}


def made(way, victim, num_steps=1):
    """A training of which one row is the victim's."""
    keep, read = WAYS[way]
    torch.manual_seed(0)
    data = Data(
        x=torch.randn(NUMBER, 4),
        y=torch.arange(NUMBER) % 3,
        edge_index=torch.empty(2, 0, dtype=torch.int64),
    )
    data.x[0] = victim
    net = Keeps(keep)
    if way == 'hook':
        net.lin.register_forward_hook(keep.hook)
    engine = PrivacyEngine(seed=0)
    training = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.0),
        data_loader=DisjointWalkLoader(
            data,
            NUMBER,
            0,
            num_steps=num_steps,
            seed=0,
            input_nodes=torch.arange(NUMBER),
        ),
        noise_multiplier=1.0,
        max_grad_norm=NORM,
        loss_reduction='sum',
        forward=lambda model, batch: model(batch.x),
    )
    engine._noise = Silent()
    return net, engine, training, read


def clipped_sum(way, victim):
    net, _, (model, optimizer, loader), read = made(way, victim)
    for batch in loader:
        out = model(batch.x)
        # The loss may as well be the model's own.
        net.loss(out, batch.y, read(net)).backward()
        optimizer.step()
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize('way', WAYS)
def test_one_row_moves_no_gradient_of_others(way):
    found, said = [], None
    for victim in (-1e3, 1e3):
        try:
            found.append(clipped_sum(way, victim))
        except ValueError as error:
            said = str(error)
            break
    if said is not None:
        assert 'which the model kept of its call' in said
        return
    moved = float((found[0] - found[1]).norm())
    assert moved <= 2 * NORM * (1 + 1e-6)
    # A step that adds nothing is no pass.
    assert float(found[0].norm()) > NORM


@pytest.mark.parametrize('way', ['attribute', 'number as attribute'])
def test_who_reads_an_attribute_is_told(way):
    # It would be of rows that are made up, which nobody means.
    with pytest.raises(ValueError, match=r"reads '(value|lin\.value)'"):
        clipped_sum(way, 1.0)


class Box(nn.Module):
    """Keeps weights for the loss."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop = GCNConv(5, 3), nn.Dropout(0.5)
        self.scale, self.box, self.row = 1.0, {}, [0.0]

    def forward(self, x, edge_index):
        out = self.conv(self.drop(x), edge_index) * self.scale
        self.weight = out.detach().sigmoid()
        self.box['weight'] = self.row[0] = self.weight + 0
        return out


READ = {
    'attribute': lambda net: net.weight,
    'word': lambda net: net.box['weight'],
    'list': lambda net: net.row[0],
}


@pytest.mark.parametrize('way', READ)
def test_what_is_made_of_a_kept_tensor_is_refused_too(private, way):
    # It was of rows that are made up: the gradient would be another one.
    setup = private(net=Box())
    batch = next(iter(setup.loader))
    out = setup.model(batch.x, batch.edge_index)
    with pytest.raises(ValueError, match=r"reads '(weight|box|row)'"):
        (out * (READ[way](setup.net) + 1)).sum().backward()
    for _ in range(2):
        batch = next(iter(setup.loader))
        setup.loss(batch).backward()
        setup.optimizer.step()
        assert type(READ[way](setup.net)) is torch.Tensor
        assert float(READ[way](setup.net).sum()) > 0


@pytest.mark.parametrize('name', ['scale', 'drop.training'])
def test_a_model_stays_as_it_is_up_to_its_gradient(private, name):
    setup = private(net=Box())
    batch = next(iter(setup.loader))
    loss = setup.loss(batch)
    if name == 'scale':
        setup.net.scale = 5.0
    else:
        setup.net.drop.eval()
    with pytest.raises(ValueError, match=f"got another '{name}'"):
        loss.backward()


def test_numbers_of_nodes_may_be_read_one_by_one(private):
    setup = private()
    batch = next(iter(setup.loader))
    first = int(batch.n_id[0]) + batch.n_id[0].item()
    (setup.loss(batch) * (first + 1)).backward()
    setup.optimizer.step()
    assert setup.engine.steps == 1


@pytest.mark.parametrize('way', ['list', 'list of numbers', 'global'])
def test_what_a_model_keeps_of_an_earlier_step_is_in_the_report(way):
    net, engine, (model, optimizer, loader), _ = made(way, 1.0, 3)
    for batch in loader:
        before = 1.0
        if way == 'global':
            before = WORDS.get('value', before)
        elif net.values:
            before = net.values[-1]
        out = model(batch.x)
        net.loss(out, batch.y, before).backward()
        optimizer.step()
    text = engine.report(1e-3).explain()
    assert 'does not take from its batch changed' in text


def test_a_plain_loss_is_not_in_the_report(private):
    setup = private(loader={'num_steps': 4})
    setup.train()
    assert 'does not take from its batch' not in (
        setup.engine.report(1e-3).explain()
    )


def test_the_loss_is_the_one_of_the_batch(private):
    # What is read after the step, and the weights, are those of a plain loop.
    one, two = private(), private(trust_loss=True)
    for a, b in zip(one.loader, two.loader, strict=True):
        torch.manual_seed(1)
        first = one.loss(a)
        first = first + 0 * F.dropout(first, 0.5)
        first.backward()
        torch.manual_seed(1)
        second = two.loss(b)
        second.backward()
        assert first.item() == second.item()
        one.optimizer.step()
        two.optimizer.step()
        assert one.net.first.bias.equal(two.net.first.bias)


def test_a_mean_with_weights_of_classes_names_what_to_do(private):
    setup = private()
    weight = torch.tensor([1.0, 2.0, 3.0])
    for batch in setup.loader:
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: len(out)], weight=weight)
        with pytest.raises(ValueError, match="use reduction='sum'"):
            loss.backward()
        break
    with pytest.raises(ValueError, match="use reduction='sum'"):
        private(criterion=nn.CrossEntropyLoss(weight=weight))


def test_accumulation_names_what_to_do(private):
    def call(setup, batch, loss):
        setup.loss(batch)

    def backward(setup, batch, loss):
        loss.backward(retain_graph=True)
        loss.backward()

    def gather(setup, batch, loss):
        for other in setup.loader:
            setup.loss(other).backward()

    setup = private()
    for again in (call, backward, gather):
        batch = next(iter(setup.loader))
        with pytest.raises(RuntimeError, match="'max_physical_batch_size'"):
            again(setup, batch, setup.loss(batch))
