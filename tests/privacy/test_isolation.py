"""Units that are run alone: all of them, or one of a step, in secret."""

import secrets
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool

from pyg_trust.loader import DisjointWalkLoader, GraphLoader
from pyg_trust.privacy import PoissonAccountant, PrivacyEngine
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.validation import DISAGREES

C = 1.0


class Nodes(nn.Module):
    def __init__(self, drop=0.0, wide=8):
        super().__init__()
        self.one, self.two = GCNConv(6, wide), GCNConv(wide, 3)
        self.drop = drop

    def forward(self, x, edge_index):
        x = F.dropout(self.one(x, edge_index).relu(), self.drop, self.training)
        return self.two(x, edge_index)


class Graphs(nn.Module):
    def __init__(self, act=torch.relu):
        super().__init__()
        self.conv, self.head, self.act = GCNConv(5, 7), nn.Linear(7, 3), act

    def forward(self, x, edge_index, batch, batch_size):
        x = self.act(self.conv(x, edge_index))
        return self.head(global_add_pool(x, batch, batch_size))


class Pooled(Graphs):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch, None)


def by_graphs(model, batch):
    return model(batch.x, batch.edge_index, batch.batch, batch.batch_size)


def nodes(n=120):
    generator = torch.Generator().manual_seed(1)
    ring = torch.arange(n)
    edges = torch.stack([ring, (ring + 1) % n])
    return Data(
        x=torch.randn(n, 6, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.randint(3, (n,), generator=generator),
    )


def graph(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(size, 5, generator=generator),
        edge_index=torch.randint(size, (2, 2 * size), generator=generator),
        y=torch.randint(3, (1,), generator=generator),
    )


def graphs(count=24):
    return [graph(2 + i % 5, i) for i in range(count)]


class Training:
    """A training of nodes or of graphs, step by step."""

    def __init__(
        self, what='nodes', model=None, batch=12, ledger=None, **more
    ):
        torch.manual_seed(3)
        self.forward = lambda m, b: m(b.x, b.edge_index)
        more.setdefault('noise_multiplier', 1.0)
        self.reduction = more.get('loss_reduction', 'mean')
        loader = more.pop('loader', {})
        if what == 'nodes':
            model = model or Nodes()
            made = DisjointWalkLoader(
                nodes(), batch, walk_length=2, num_steps=20, seed=0, **loader
            )
        else:
            model, self.forward = model or Graphs(), by_graphs
            if isinstance(model, Pooled):
                self.forward = lambda m, b: m(b.x, b.edge_index, b.batch)
            made = GraphLoader(graphs(), batch, num_steps=20, **loader)
        seed = None if ledger else 5
        self.engine = PrivacyEngine(insecure_seed=seed, ledger=ledger)
        self.parts = self.engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=made,
            max_grad_norm=more.pop('max_grad_norm', C),
            forward=self.forward,
            **more,
        )
        self.batches = iter(self.parts.loader)

    def step(self):
        model, optimizer, _ = self.parts
        before = self.engine.steps
        while self.engine.steps == before:
            batch = next(self.batches)
            optimizer.zero_grad()
            out = self.forward(model, batch)[: batch.batch_size]
            F.cross_entropy(
                out, batch.y[: batch.batch_size], reduction=self.reduction
            ).backward()
            optimizer.step()

    def weights(self):
        return torch.cat(
            [p.detach().reshape(-1) for p in self.parts.model.parameters()]
        )

    def sums(self):
        """The integers of a step, before there is noise."""
        kept, step = [], self.engine._training_step()
        add = step.add_noise

        def keep(sums, units, below):
            kept.extend(each.clone() for each in sums)
            return add(sums, units, below)

        step.add_noise = keep
        self.step()
        step.add_noise = add
        return kept

    @property
    def report(self):
        return self.engine.report(1e-5)


CASES = {
    'nodes': {},
    'nodes, sum': {'loss_reduction': 'sum'},
    'nodes, parts': {'max_physical_batch_size': 5},
    'nodes, automatic': {'clipping': 'automatic'},
    'graphs': {'what': 'graphs'},
    'graphs, gone': {
        'what': 'graphs',
        'loss_reduction': 'sum',
        'loader': {
            'neighboring': 'add_remove',
            'sampling': 'poisson',
            'sample_rate': 0.5,
        },
        'model': lambda: Pooled(),
    },
}


def made(name, **more):
    case = dict(CASES[name], **more)
    torch.manual_seed(3)
    if 'model' in case:
        case['model'] = case['model']()
    return Training(**case)


@pytest.mark.parametrize('name', CASES)
def test_by_construction_the_sum_is_that_of_the_checked_way(name):
    one = made(name)
    checked = one.sums()
    assert one.report.isolation == 'sampled (1 of 1)'
    assert one.report.arithmetic == 'exact'
    training = made(name, isolation='construction')
    slow = training.sums()
    size = sum(each.double().square().sum() for each in checked).sqrt()
    away = sum(
        (a - b).double().square().sum()
        for a, b in zip(checked, slow, strict=True)
    ).sqrt()
    assert size * clip.grid(C) > 0.5
    assert away <= 1e-5 * size
    report = training.report
    assert report.isolation == 'always'
    assert report.arithmetic == 'exact'
    text = ' '.join(report.guarantee().assumptions)
    assert '(sampled): always' in text
    assert 'in exact arithmetic' in report.guarantee().promise


def test_by_construction_dropout_of_a_unit_is_of_that_unit():
    # The masks are functions of the unit, whoever else is there.
    def sums(seed):
        torch.manual_seed(3)
        training = Training(model=Nodes(0.5), isolation='construction')
        torch.manual_seed(seed)
        return training.sums()

    one, two, other = sums(1), sums(1), sums(2)
    assert all(map(torch.equal, one, two))
    assert not all(map(torch.equal, one, other))


# What is wrong with one unit #################################################


def drawn(monkeypatch, unit):
    monkeypatch.setattr(secrets, 'randbelow', lambda total: unit % total)


class Later(Nodes):
    """Takes another course after training began."""

    way = ''

    def forward(self, x, edge_index):
        out = super().forward(x, edge_index)
        if self.way == 'detached mean':
            return out - out.detach().mean(0)
        if self.way == 'count':
            return out / len(out)
        return out


@pytest.mark.parametrize('way', ['detached mean', 'count'])
def test_a_unit_with_other_outputs_alone_ends_the_training(way, monkeypatch):
    training = Training(model=Later())
    training.parts.model.way = way
    training.parts.model.module.way = way
    drawn(monkeypatch, 0)
    before = training.weights()
    for _ in range(2):
        with pytest.raises(RuntimeError, match='other outputs than beside'):
            training.step()
        training.batches = iter(training.parts.loader)
    assert training.engine.steps == 0
    assert torch.equal(training.weights(), before)
    report = training.report
    assert report.isolation == 'not'
    assert any(DISAGREES in line for line in report.assumptions)


def test_a_model_that_draws_otherwise_is_not_checked_and_says_so():
    class Noisy(Nodes):
        def forward(self, x, edge_index):
            return super().forward(x + torch.rand_like(x), edge_index)

    training = Training(model=Noisy())
    training.step()
    assert training.report.isolation == 'not'
    assert '(sampled): not' in ' '.join(training.report.assumptions)


def test_steps_are_verified_at_first_and_now_and_then(monkeypatch):
    # Of many steps, three and one of eight; of these, one of sixteen alone.
    training = Training()
    count = iter(range(10**6))
    monkeypatch.setattr(secrets, 'randbelow', lambda n: next(count) % n)
    for _ in range(12):
        training.step()
    step = training.engine._training_step()
    assert step.checked >= 1
    assert 3 <= step.verified < 12
    assert f'verified in {step.verified} steps' in ' '.join(
        training.report.assumptions
    )


def test_a_loss_of_terms_is_that_of_the_criterion():
    for what in ('nodes', 'graphs'):
        for reduction in ('mean', 'sum'):
            more = {'what': what, 'loss_reduction': reduction}
            plain = Training(**more).sums()
            loss = partial(F.cross_entropy, reduction=reduction)
            other = Training(**more, criterion=loss)
            step, kept = other.engine._training_step(), []
            true = step.add_noise
            step.add_noise = lambda s, *n, t=true, k=kept: (
                k.extend(s) or t(s, *n)
            )
            batch = next(other.batches)
            losses = [float(other.parts.loss(batch))]
            assert losses[0] > 0
            other.engine._training_step().reset()
            other.batches = iter(other.parts.loader)
            batch = next(other.batches)
            other.parts.loss(batch).backward()
            other.parts.optimizer.step()
            for a, b in zip(plain, kept, strict=True):
                away = float((a - b).double().norm())
                assert away <= 1e-5 * float(a.double().norm() + 1)
    training = Training()
    batch = next(training.batches)
    with pytest.raises(ValueError, match="'criterion' needs to be given"):
        training.parts.loss(batch)
    # A mean of the loop's own divides by a private number.
    for criterion in (None, F.cross_entropy):
        gone = {'loss_reduction': 'mean', 'criterion': criterion}
        text = made('graphs, gone', **gone).report.explain()
        assert ('a mean divides by' in text) == (criterion is None)


class Dropping(Graphs):
    def forward(self, x, edge_index, batch, batch_size):
        x = F.dropout(self.conv(x, edge_index), 0.5, self.training)
        return self.head(global_add_pool(x, batch, batch_size))


@pytest.mark.parametrize('secret', [True, False])
def test_masks_of_graphs_do_not_hang_on_a_seed_of_torch(
    tmp_path, secret, monkeypatch
):
    # A larger graph moves the masks of all that come after it in torch's
    # stream: with a known seed every graph's gradient moved with it.
    # All are drawn, and alike: masks alone can differ.
    monkeypatch.setitem(globals(), 'graphs', lambda: [graph(4, 0)] * 24)
    found = []
    for run in range(3):
        ledger = tmp_path / f'{run}.ledger' if secret else None
        training = Training('graphs', Dropping(), batch=24, ledger=ledger)
        torch.manual_seed(11)
        sums = training.sums()
        found.append(b''.join(each.numpy().tobytes() for each in sums))
    # The first model of a process may draw once more.
    assert (found[1] == found[2]) is not secret


# What the count of steps tells ###############################################


class Fussy(Pooled):
    """Raises on a graph without edges, but not on others beside it."""

    def forward(self, x, edge_index, batch):
        if not edge_index.numel():
            raise IndexError('no edges')
        return super().forward(x, edge_index, batch)


@pytest.fixture
def unproved(monkeypatch):
    """Epsilon at a rate of 1e-9 takes seconds, and is not looked at."""
    monkeypatch.setattr(PoissonAccountant, 'epsilon_of', lambda *_: 0.5)


@pytest.mark.usefixtures('unproved')
@pytest.mark.parametrize('isolation', ['checked', 'construction'])
def test_which_steps_had_no_unit_is_not_in_the_report(isolation, monkeypatch):
    # Whether a graph is there is private, and so is whether a batch is empty.
    loader = {'neighboring': 'add_remove', 'sampling': 'poisson'}
    loader['sample_rate'] = 1e-9
    monkeypatch.setattr(secrets, 'randbelow', lambda total: 0)
    training = Training('graphs', Pooled(), loader=loader, isolation=isolation)
    for _ in range(3):
        training.step()
    wanted = {'checked': 'sampled (3 of 3)', 'construction': 'always'}
    assert training.report.isolation == wanted[isolation]


def test_on_which_units_a_model_does_not_run_is_not_in_the_report(
    monkeypatch,
):
    # One of the graphs of a step is without edges, and is the one drawn.
    without = graph(3, 7)
    without.edge_index = torch.zeros(2, 0, dtype=torch.int64)
    # Those that the probe looks at, whose structure counts as public, have.
    data = [*graphs(40), without]
    monkeypatch.setitem(globals(), 'graphs', lambda: data)
    found = set()
    for unit in (0, 40):
        training = Training('graphs', Fussy(), batch=41)
        batches = training.parts.loader.loader.batch_sampler
        batches._kept = {0: torch.arange(41)}
        drawn(monkeypatch, unit)
        training.step()
        found.add(training.report.isolation)
    assert found == {'sampled (1 of 1)'}


def test_arguments_that_went_warn():
    for name in ('trust_loss', 'public', 'exact', 'method'):
        with pytest.warns(DeprecationWarning, match=f"'{name}'.*leave it out"):
            Training(**{name: True})
    with pytest.warns(DeprecationWarning, match="now 'checked'"):
        training = Training(isolation='followed')
    training.step()
    training.engine.spend_gaussian(0.1)
    assert training.report.isolation == 'sampled (1 of 1)'
    with pytest.raises(ValueError, match="'isolation'"):
        Training(isolation='alone')
