"""A loss that was followed once is followed again unless it is the same."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine
from pyg_trust.privacy.rehearsal import Rehearsal

M, CLASSES = 12, 3


class Silent:
    """In the place of noise."""

    def normal(self, shape):
        return torch.zeros(shape, dtype=torch.float64)


def train(losses, labels=None, forget=False, read=None):
    """Steps on all of some single nodes; what was followed in each."""
    torch.manual_seed(0)
    y = torch.arange(M) % CLASSES if labels is None else labels
    data = Data(
        x=torch.randn(M, 4),
        y=y,
        weight=torch.rand(M) + 0.5,
        edge_index=torch.empty(2, 0, dtype=torch.int64),
    )
    net = nn.Linear(4, CLASSES)
    engine = PrivacyEngine(seed=0)
    model, optimizer, batches = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        data_loader=DisjointWalkLoader(
            data,
            M,
            0,
            num_steps=len(losses),
            seed=0,
            input_nodes=torch.arange(M),
        ),
        noise_multiplier=1.0,
        max_grad_norm=0.1,
    )
    engine._noise = Silent()
    followed, steps = [], engine._training_step()
    count = []
    original = Rehearsal._followed

    def counted(self, *args):
        count.append(1)
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rehearsal, '_followed', counted)
        for batch, loss in zip(batches, losses, strict=True):
            if forget:
                steps.decoys.proved = None
            value = loss(model(batch.x), batch)
            value.backward()
            if read is not None:
                read.append((value.item(), batch.y.tolist()))
            optimizer.step()
            followed.append(len(count))
            count.clear()
    return followed, [p.detach().clone() for p in net.parameters()]


def plain(out, batch):
    return F.cross_entropy(out, batch.y)


def weighted(out, batch):
    each = F.cross_entropy(out, batch.y, reduction='none')
    return (each * batch.weight).sum() / 7.0 + out.square().mean()


def scaled(by):
    def loss(out, batch):
        return F.cross_entropy(by * out, batch.y)

    return loss


@pytest.mark.parametrize('loss', [plain, weighted])
def test_the_same_loss_is_followed_once_and_has_the_same_bits(loss):
    read, again = [], []
    once, weights = train([loss] * 4, read=read)
    always, expected = train([loss] * 4, forget=True, read=again)
    assert once == [1, 0, 0, 0]
    assert always == [1, 1, 1, 1]
    for one, two in zip(weights, expected, strict=True):
        assert one.equal(two)
    assert read == again
    assert len({value for value, _ in read}) == 4


def test_another_number_is_another_loss():
    losses = [scaled(1.0), scaled(1.0), scaled(2.0), scaled(2.0)]
    assert train(losses)[0] == [1, 0, 1, 0]
    # What is equal and of another type is another one as well.
    assert train([scaled(1.0), scaled(1)])[0] == [1, 1]


def test_a_loss_that_draws_or_writes_is_always_followed():
    def draws(out, batch):
        return F.cross_entropy(F.dropout(out, 0.5), batch.y)

    def writes(out, batch):
        made = out * 1.0
        made.mul_(2.0)
        return F.cross_entropy(made, batch.y)

    assert train([draws] * 2)[0] == [1, 1]
    assert train([writes] * 2)[0] == [1, 1]


def order(places):
    places = torch.tensor(places)

    def loss(out, batch):
        return (out[places].detach() * out).sum()

    return loss


def sums(places):
    places = torch.tensor(places)

    def loss(out, batch):
        found = torch.zeros_like(out).index_add(0, places, out)
        return (found.detach() * out).sum()

    return loss


@pytest.mark.parametrize('loss', [order, sums])
def test_values_of_places_are_looked_at_each_time(loss):
    # The same operations on the same shapes: rows meet in the second alone.
    own, other = list(range(M)), [1, 0, *range(2, M)]
    assert train([loss(own)] * 2)[0] == [1, 1]
    with pytest.raises(ValueError, match='depends on the rows of others'):
        train([loss(own), loss(other)])


def test_whether_labels_are_left_out_is_looked_at_each_time():
    # A mean over those that were not left out divides by their number.
    def loss(ignored):
        def of(out, batch):
            return F.cross_entropy(out, batch.y * 1, ignore_index=ignored)

        return of

    harmless = train([loss(-100)] * 2)[0]
    assert harmless == [1, 0]
    with pytest.raises(ValueError, match='depends on the rows of others'):
        train([loss(-100), loss(0)])
    # The same operations and constants, other labels.
    labels = torch.arange(M) % CLASSES
    turn = []

    def shifted(out, batch):
        # Nobody has the class that is left out, then somebody has.
        turn.append(len(turn))
        shift = torch.full_like(batch.y, turn[-1])
        target = (batch.y + shift) % CLASSES
        return F.cross_entropy(out, target, ignore_index=0)

    labels = torch.ones(M, dtype=torch.int64)
    assert train([shifted], labels)[0] == [1]
    turn.clear()
    with pytest.raises(ValueError, match='depends on the rows of others'):
        train([shifted] * 3, labels)


def test_an_earlier_batch_does_not_come_back_in_a_known_loss():
    kept = []

    def loss(out, batch):
        old = kept[-1] if len(kept) > 1 else torch.ones(M, CLASSES)
        kept.append(out.detach())
        return (out * old).sum()

    assert train([loss] * 2)[0] == [1, 0]
    kept.clear()
    with pytest.raises(ValueError, match='depends on the rows of others'):
        train([loss] * 3)
