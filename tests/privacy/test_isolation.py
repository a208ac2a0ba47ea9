"""Units that are run alone: all of them, or one of a step, in secret."""

import math
import secrets
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool

from pyg_trust.loader import DisjointWalkLoader, GraphLoader
from pyg_trust.privacy import (
    PoissonAccountant,
    PrivacyEngine,
    alone,
    clipping,
    gradients,
    norms,
)
from pyg_trust.privacy.alone import DISAGREES, Draw
from pyg_trust.privacy.exact import clip

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
        self.engine = PrivacyEngine(seed=seed, ledger=ledger)
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
    'nodes, dropout': {'model': lambda: Nodes(0.5)},
    'nodes, parts': {'max_physical_batch_size': 5},
    'nodes, automatic': {'clipping': 'automatic'},
    'nodes, vjp': {'method': 'vjp'},
    'nodes, loop': {'method': 'loop'},
    'nodes, functorch': {'method': 'functorch'},
    'nodes, float64': {'model': lambda: Nodes().double()},
    'nodes, trusted': {'trust_loss': True},
    'graphs': {'what': 'graphs'},
    'graphs, gone': {
        'what': 'graphs',
        'loader': {
            'relation': 'add_remove',
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
    if name == 'nodes, functorch':
        pytest.skip('PyG adds self-loops by their values')
    return Training(**case)


@pytest.mark.parametrize('name', CASES)
def test_one_unit_of_each_step_is_found_to_agree(name):
    if name == 'nodes, float64':
        pytest.skip('features are of another type')
    training = made(name)
    for _ in range(3):
        training.step()
    report = training.report
    assert report.isolation == 'sampled (3 of 3)'
    said = report.guarantee()
    assert said.values['checked'] == 'sampled (3 of 3)'
    assert '(sampled): sampled (3 of 3)' in ' '.join(said.assumptions)


@pytest.mark.parametrize('name', CASES)
def test_by_construction_the_sum_is_that_of_the_fast_way(name):
    if name in ('nodes, float64', 'nodes, trusted', 'nodes, dropout'):
        pytest.skip('not the same, or refused')
    fast = made(name).sums()
    training = made(name, isolation='construction')
    slow = training.sums()
    size = sum(each.double().square().sum() for each in fast).sqrt()
    away = sum(
        (a - b).double().square().sum()
        for a, b in zip(fast, slow, strict=True)
    ).sqrt()
    assert size * clip.grid(C) > 0.5
    assert away <= 1e-5 * size
    report = training.report
    assert report.isolation == 'always'
    assert report.arithmetic == 'exact'
    text = ' '.join(report.guarantee().assumptions)
    assert '(sampled): always' in text
    assert 'treats subgraphs apart on every data' not in text
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


def test_by_construction_others_add_the_same_bits_beside_any_graph():
    # No function is known to round a row alike in another batch: here none is
    # in one.
    class Odd(Graphs):
        def forward(self, x, edge_index, batch, batch_size):
            out = super().forward(x, edge_index, batch, batch_size)
            return torch.fft.rfft(out).real.sum(1, keepdim=True) + out

    def total(sizes):
        data = [graph(2 + i % 5, i) for i in range(11)]
        torch.manual_seed(0)
        model = Odd()
        engine = PrivacyEngine(seed=1)
        loader = GraphLoader([graph(sizes, 99), *data], 12, num_steps=1)
        parts = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=C,
            forward=by_graphs,
            isolation='construction',
        )
        kept, step = [], engine._training_step()
        construct = alone.Alone.gradients

        def keep(self, number, pull):
            found = construct(self, number, pull)
            size = len(self.unit(number)[0][0])
            kept.append((size, b''.join(g.tobytes() for g in found)))
            return found

        alone.Alone.gradients = keep
        try:
            batch = next(iter(parts.loader))
            out = by_graphs(parts.model, batch)
            F.cross_entropy(out, batch.y).backward()
        finally:
            alone.Alone.gradients = construct
        assert step._units == 12
        return kept

    one, two = total(1), total(23)
    mine = {text for size, text in one if size != 1}
    assert len(mine) == 11
    assert mine == {text for size, text in two if size != 23}


# What is wrong with one unit #################################################


def drawn(monkeypatch, unit):
    monkeypatch.setattr(secrets, 'randbelow', lambda total: unit % total)


def scaled(monkeypatch, unit):
    # Its gradient is larger than all bounds say.
    true = clipping.Book._integers

    def wrong(self, cluster, factors, *rest):
        factors = factors.clone()
        factors[unit] *= 1.01
        yield from true(self, cluster, factors, *rest)

    monkeypatch.setattr(clipping.Book, '_integers', wrong)


def twice(monkeypatch, unit):
    # Rows of another one are counted as its own, too.
    true = clipping.Book._add

    def wrong(self, cluster, use, grad):
        owner = use.rows.owner.clone()
        owner[owner == (unit + 1) % self.num_subgraphs] = unit
        use.rows = type(use.rows)(len(owner), owner)
        true(self, cluster, use, grad)

    monkeypatch.setattr(clipping.Book, '_add', wrong)


def stale(monkeypatch, unit):
    # Of a clipping norm that was.
    true = gradients.clipped_sum

    def wrong(recorder, outputs, grads, count, norm, *rest):
        return true(recorder, outputs, grads, count, norm * 2, *rest)

    monkeypatch.setattr(gradients, 'clipped_sum', wrong)


def smaller(monkeypatch, unit):
    # The same, and of one that was smaller.
    true = gradients.clipped_sum

    def wrong(recorder, outputs, grads, count, norm, *rest):
        return true(recorder, outputs, grads, count, norm / 2, *rest)

    monkeypatch.setattr(gradients, 'clipped_sum', wrong)


def short(monkeypatch, unit):
    # Its norm is found to be a half of what it is.
    true = clipping.Book.sizes

    def wrong(self):
        sizes = true(self)
        sizes.n[unit] *= 0.5
        return sizes

    monkeypatch.setattr(clipping.Book, 'sizes', wrong)


def coupled(monkeypatch, unit):
    # What it reads changes with its company.
    true = GCNConv.forward

    def wrong(self, x, edge_index, *rest):
        out = true(self, x, edge_index, *rest)
        if len(x) > 10:
            out = out + 0.1 * out.mean(0)
        return out

    monkeypatch.setattr(GCNConv, 'forward', wrong)


FAULTS = (scaled, twice, stale, smaller, short, coupled)


@pytest.mark.parametrize('what', ['nodes', 'graphs'])
@pytest.mark.parametrize('fault', FAULTS)
def test_a_unit_that_adds_something_else_ends_the_training(
    fault, what, monkeypatch, tmp_path
):
    path = tmp_path / 'ledger.json'
    training = Training(what, ledger=path, max_grad_norm=0.5)
    training.step()
    before = path.read_bytes(), training.weights()
    drawn(monkeypatch, 3)
    with monkeypatch.context() as patch:
        fault(patch, 3)
        with pytest.raises(RuntimeError, match='run alone') as error:
            training.step()
    assert str(error.value) == DISAGREES
    # Nothing was paid, written or moved.
    assert path.read_bytes() == before[0]
    assert torch.equal(training.weights(), before[1])
    assert training.engine.steps == 1
    with pytest.raises(RuntimeError, match='interrupted'):
        training.parts.optimizer.step()
    assert all(p.grad is None for p in training.parts.model.parameters())
    # And there is no other try, though nothing is wrong any more.
    training.batches = iter(training.parts.loader)
    with pytest.raises(RuntimeError, match='no more steps'):
        training.step()
    report = training.report
    assert report.isolation == 'not'
    assert any('DOES NOT HOLD' in text for text in report.assumptions)


def test_others_than_the_unit_that_is_drawn_are_not_looked_at(monkeypatch):
    training = Training()
    drawn(monkeypatch, 4)
    short(monkeypatch, 3)
    training.step()
    assert training.report.isolation == 'sampled (1 of 1)'


@pytest.mark.parametrize('name', ['nodes', 'nodes, dropout', 'graphs'])
def test_which_unit_is_drawn_changes_nothing(name, monkeypatch):
    found = set()
    for unit in (0, 1, 7, 11):
        drawn(monkeypatch, unit)
        training = made(name)
        torch.manual_seed(11)
        for _ in range(2):
            training.step()
        state = bytes(torch.get_rng_state())
        found.add((training.weights().numpy().tobytes(), state))
    assert len(found) == 1


def test_a_unit_is_drawn_evenly_of_all_parts():
    draw, seen = Draw(), [0] * 10
    for _ in range(4000):
        hits = [(p, draw.of(p, 3 if p < 9 else 1, 10)) for p in (0, 3, 6, 9)]
        (hit,) = [p + unit for p, unit in hits if unit is not None]
        seen[hit] += 1
    # A chance of 10^-9 that it fails.
    assert all(abs(n - 400) < 7 * math.sqrt(360) for n in seen)
    assert Draw().of(0, 0, 0) is None


def test_a_number_on_the_other_side_of_zero_is_no_disagreement(monkeypatch):
    # Of many sums near zero some are positive beside others, and not alone.
    class Edge(Nodes):
        def forward(self, x, edge_index):
            hidden = self.one(x, edge_index)
            # Zero but for how it was rounded.
            near = hidden - (hidden * 3) / 3
            return self.two((hidden.relu() + 1e6 * near.relu()), edge_index)

    drawn(monkeypatch, 2)
    tries = []
    true = alone.step.agree

    def counted(*args):
        tries.append(true(*args))
        return tries[-1]

    monkeypatch.setattr(alone.step, 'agree', counted)
    training = Training(model=Edge(wide=3))
    for _ in range(6):
        training.step()
    assert training.report.isolation == 'sampled (6 of 6)'


def test_a_model_that_draws_otherwise_is_not_checked_and_says_so():
    class Noisy(Nodes):
        def forward(self, x, edge_index):
            return super().forward(x + torch.rand_like(x), edge_index)

    training = Training(model=Noisy())
    training.step()
    assert training.report.isolation == 'not'
    assert '(sampled): not' in ' '.join(training.report.assumptions)


def test_steps_of_both_kinds_are_sampled():
    training = Training()
    training.step()
    training.engine._training_step().isolation = 'construction'
    training.step()
    assert training.report.isolation == 'sampled (2 of 2)'


def test_a_release_beside_the_training_is_no_step_to_check():
    training = Training()
    training.step()
    training.engine.spend_gaussian(0.1)
    assert training.report.isolation == 'sampled (1 of 1)'


# What falls back #############################################################


def odd(x):
    # Known to torch alone.
    return torch.erfinv(0.5 * torch.tanh(x))


def test_an_unknown_function_is_run_on_every_unit_alone_with_one_warning():
    with pytest.warns(UserWarning, match='every unit is run alone'):
        training = Training('graphs', Graphs(odd), exact=True)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        training.step()
        training.step()
    assert training.report.isolation == 'always'
    assert training.report.arithmetic == 'exact'
    # Without being asked for, it is computed together, and said.
    training = Training('graphs', Graphs(odd))
    training.step()
    assert training.report.arithmetic == 'sums'


def test_a_loss_that_is_not_known_falls_back_at_its_first_step():
    training = Training('graphs', exact=True)
    model, optimizer, _ = training.parts
    batch = next(training.batches)
    loss = F.cross_entropy(odd(by_graphs(model, batch)), batch.y)
    with pytest.warns(UserWarning, match='every unit is run alone'):
        loss.backward()
    optimizer.step()
    assert training.report.isolation == 'always'


def test_a_loss_that_is_trusted_has_no_unit_alone():
    with pytest.raises(ValueError, match=r"'isolation'.*trust_loss"):
        Training(isolation='construction', trust_loss=True)
    with pytest.raises(ValueError, match="'isolation' needs to be"):
        Training(isolation='alone')
    with pytest.raises(ValueError, match="'exact' needs summands"):
        Training('graphs', exact=True, trust_loss=True)


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


@pytest.mark.parametrize('secret', [True, False])
def test_masks_of_an_estimate_do_not_hang_on_a_seed_of_torch(
    secret, monkeypatch
):
    # One larger graph moved the norms of all after it, and one is paid for.
    found = []

    def kept(values, *_):
        found.append(values.copy())
        return 1.0

    monkeypatch.setattr(norms, 'private_quantile', kept)
    loader = GraphLoader([graph(4, 0)] * 24, 12)
    for _ in range(3):
        torch.manual_seed(3)
        model = Dropping()
        torch.manual_seed(11)
        before = bytes(torch.get_rng_state())
        PrivacyEngine(seed=None if secret else 1).estimate_max_grad_norm(
            module=model,
            data_loader=loader,
            criterion=F.cross_entropy,
            epsilon=1.0,
            forward=by_graphs,
        )
        assert bytes(torch.get_rng_state()) != before
    assert (found[1] == found[2]).all() != secret


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
@pytest.mark.parametrize('isolation', ['followed', 'construction'])
def test_which_steps_had_no_unit_is_not_in_the_report(isolation):
    # Whether a graph is there is private, and so is whether a batch is empty.
    loader = {'relation': 'add_remove', 'sampling': 'poisson'}
    loader['sample_rate'] = 1e-9
    training = Training('graphs', Pooled(), loader=loader, isolation=isolation)
    for _ in range(3):
        training.step()
    wanted = {'followed': 'sampled (3 of 3)', 'construction': 'always'}
    assert training.report.isolation == wanted[isolation]


@pytest.mark.usefixtures('unproved')
def test_which_steps_had_no_unit_is_not_told_of_models_without_checks():
    class Noisy(Pooled):
        def forward(self, x, edge_index, batch):
            return super().forward(x + torch.rand_like(x), edge_index, batch)

    loader = {'relation': 'add_remove', 'sampling': 'poisson'}
    loader['sample_rate'] = 1e-9
    training = Training('graphs', Noisy(), loader=loader)
    training.step()
    assert training.report.isolation == 'not'


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
