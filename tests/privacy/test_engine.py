import copy
import json
import math
import warnings

import pytest
import torch
from auditing import above
from references import Silence
from scipy.stats import chi2, norm
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from pyg_trust.ledger import BudgetExceededError
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import PrivacyEngine, unit_gradients
from pyg_trust.privacy.accountant import create_accountant
from pyg_trust.privacy.accounting import wor_epsilon
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import AGP


def clipped_mean(net, batch, C):
    # Each subgraph alone, as a graph of its own.
    sums = [torch.zeros_like(p) for p in net.parameters()]
    for i in range(batch.batch_size):
        own = batch.subgraph(batch.batch == i)
        assert own.n_id[0] == batch.n_id[i]
        out = net(own.x, own.edge_index)[:1]
        loss = F.cross_entropy(out, own.y[:1])
        grads = torch.autograd.grad(loss, list(net.parameters()))
        total = math.sqrt(sum(g.square().sum().item() for g in grads))
        for s, g in zip(sums, grads, strict=True):
            s += g * min(1, C / total)
    return [s / batch.batch_size for s in sums]


@pytest.mark.parametrize('chunk', [None, 1, 3, 8, 100])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_gradients_are_clipped_per_subgraph(private, chunk, reduction):
    setup = private(
        max_physical_batch_size=chunk, loss_reduction=reduction, loader={}
    )
    setup.engine._noise = Silence()
    net = copy.deepcopy(setup.net)
    index = setup.loader.batch_sampler.index(0)
    batches = setup.loader.loader
    whole = batches.of(0, index)
    scale = 1 if reduction == 'mean' else 8
    want = [scale * g for g in clipped_mean(net, whole, 0.5)]
    seen = []
    for batch in setup.loader:
        seen.append(batch.n_id[: batch.batch_size])
        setup.optimizer.zero_grad()
        out = setup.model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(
            out, batch.y[: batch.batch_size], reduction=reduction
        ).backward()
        setup.optimizer.step()
        if setup.engine.steps:
            break
    assert torch.cat(seen).equal(whole.n_id[:8])
    assert len(seen) == -(-8 // min(chunk or 8, 8))
    for p, g in zip(setup.net.parameters(), want, strict=True):
        assert torch.allclose(p.grad, g, atol=1e-6)
    # Some are clipped and some are not, or the test says little.
    out = net(whole.x, whole.edge_index)
    loss = F.cross_entropy(out[:8], whole.y[:8], reduction='sum')
    (grad,) = torch.autograd.grad(loss, out)
    given = whole.x, whole.edge_index
    norms = unit_gradients(net, given, owner=whole.batch, grad=grad).norms
    assert (norms > 0.5).any()


@pytest.mark.parametrize('secure', [False, True])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_noise_is_lam_times_twice_the_norm(private, secure, reduction):
    # sigma = z C on the sum, over m; z = 2 lam (T2). Gradients are zero.
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(30000))

        def forward(self, x, edge_index):
            return x[:, :1] + 0 * self.weight.sum()

    setup = private(
        net=Zero(),
        noise_multiplier=3.0,
        max_grad_norm=0.7,
        loss_reduction=reduction,
        engine={'insecure_seed': None if secure else 3},
    )
    before = setup.net.weight.detach().clone()
    for batch in setup.loader:
        setup.model(batch.x, batch.edge_index)[:8].mean().backward()
        setup.optimizer.step()
        break
    lam, C, m = 1.5, 0.7, 8 if reduction == 'mean' else 1
    grad = setup.net.weight.grad.double() * m / (lam * 2 * C)
    assert chi2(30000).cdf(grad.square().sum()) == pytest.approx(
        0.5, abs=0.499999
    )
    assert abs(grad.sum()) / math.sqrt(30000) < norm.isf(1e-6)
    moved = (before - setup.net.weight.detach()) / 0.1
    assert torch.allclose(moved, setup.net.weight.grad, atol=1e-6)
    assert setup.engine.report(1e-3).noise_std == pytest.approx(lam * 2 * C)


def test_schedulers_and_state_go_through(private):
    net = nn.Module()
    setup = private(optimizer=None)
    net = setup.net
    scheduler = torch.optim.lr_scheduler.StepLR(setup.optimizer, 1, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        setup.train(1)
        scheduler.step()
    assert setup.optimizer.param_groups[0]['lr'] == pytest.approx(0.01)
    assert list(setup.model.state_dict()) == list(net.state_dict())
    assert setup.model.first is net.first
    assert not setup.model.eval().training
    assert not net.training
    assert isinstance(setup.optimizer, torch.optim.Optimizer)
    with pytest.raises(ValueError, match='no more parameters'):
        setup.optimizer.add_param_group({'params': []})


def test_evaluation_goes_through_untouched(private):
    setup = private()
    x, edge_index = torch.randn(7, 5), torch.tensor([[0, 1], [1, 0]])
    setup.model.eval()
    assert setup.model(x, edge_index).equal(setup.net(x, edge_index))
    setup.model.train()
    with torch.no_grad():
        assert setup.model(x, edge_index).shape == (7, 3)
    assert setup.engine.steps == 0


# Accounting


@pytest.mark.parametrize('method', ['pld_wor', 'rdp_wor'])
@pytest.mark.parametrize('chunk', [None, 3])
def test_loader_ends_before_the_budget_does(private, method, chunk):
    setup = private(
        target=True,
        engine={'accountant': method},
        max_physical_batch_size=chunk,
    )
    q = 8 / setup.loader.num_subgraphs
    want = create_accountant(method).remaining_steps(
        2.5, 1e-3, noise_multiplier=4.0, sample_rate=q
    )
    assert want > 3
    setup.train(epochs=want)
    assert setup.engine.steps == want
    assert setup.engine.exhausted
    assert list(setup.loader) == []
    spent = setup.engine.get_epsilon(1e-3)
    assert spent == pytest.approx(wor_epsilon([(4.0, q, want)], 1e-3, method))
    assert spent <= 2.5 < wor_epsilon([(4.0, q, want + 1)], 1e-3, method)


def test_step_beyond_the_budget_is_refused(private):
    setup = private(target=True)
    setup.train(epochs=20)
    steps = setup.engine.steps
    before = copy.deepcopy(setup.net.state_dict())
    setup.loader._allowed = lambda step: True
    for batch in setup.loader:
        setup.optimizer.zero_grad()
        setup.loss(batch).backward()
        with pytest.raises(BudgetExceededError, match=r'epsilon 2\.5'):
            setup.optimizer.step()
        with pytest.raises(RuntimeError, match='second step'):
            setup.optimizer.step()
        break
    assert setup.engine.steps == steps
    for p in setup.net.parameters():
        assert p.grad is None
    for name, value in setup.net.state_dict().items():
        assert value.equal(before[name])


@pytest.mark.parametrize('method', ['pld_wor', 'rdp_wor'])
@pytest.mark.parametrize('plan', [{'steps': 30}, {'epochs': 9}])
def test_noise_for_a_target(private, method, plan):
    data = private().data
    net = nn.Linear(5, 3)
    engine = PrivacyEngine(method, insecure_seed=0)
    loader = DisjointWalkLoader(data, 4, 1, seed=0)
    steps = plan.get('steps') or 9 * len(loader)
    engine.make_private_with_epsilon(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=loader,
        target_epsilon=4.0,
        target_delta=1e-4,
        max_grad_norm=1.0,
        **plan,
    )
    for _ in range(steps):
        engine.accountant.step(
            noise_multiplier=engine.noise_multiplier,
            sample_rate=4 / loader.num_subgraphs,
        )
    assert 0.99 * 4 <= engine.get_epsilon(1e-4) <= 4


def test_rates_of_every_partition(private):
    setup = private(loader={'resample_every': 1, 'batch_size': 6})
    setup.train(epochs=2)
    steps = setup.engine.steps
    assert steps == 2 * len(setup.loader)
    exact = [6 / setup.loader.num_subgraphs_at(t) for t in range(steps)]
    assert len(set(exact)) > 1
    spent = [
        rate
        for _, rate, count in setup.engine.accountant.history
        for _ in range(count)
    ]
    for rate, actual in zip(spent, exact, strict=True):
        assert actual <= rate <= actual + 1 / 4096
    want = wor_epsilon([(4.0, q, 1) for q in exact], 1e-3)
    assert want <= setup.engine.get_epsilon(1e-3) <= 1.005 * want


def test_step_is_on_the_account_before_its_noise(private, tmp_path):
    setup = private(engine={'ledger': tmp_path / 'ledger'})
    seen = []

    class Noise:
        def cells(self, shape):
            lines = (tmp_path / 'ledger').read_text().splitlines()
            seen.append((setup.engine.steps, len(lines)))
            raise KeyboardInterrupt

    setup.engine._noise = Noise()
    before = copy.deepcopy(setup.net.state_dict())
    with pytest.raises(KeyboardInterrupt):
        setup.train()
    assert seen == [(1, 2)]
    assert setup.engine.steps == 1
    for name, value in setup.net.state_dict().items():
        assert value.equal(before[name])
    assert all(p.grad is None for p in setup.net.parameters())


def test_report_says_it_all(private):
    setup = private(target=True)
    setup.train()
    report = setup.engine.report()
    assert report.neighboring == 'replace-one-feature-row'
    assert report.sampling == 'uniform-without-replacement'
    assert report.noise_multiplier == 4.0
    assert report.sensitivity == 1.0
    assert report.noise_std == 2.0
    assert report.steps == 2
    q = 8 / setup.loader.num_subgraphs
    assert report.sample_rates == ((q, 2),)
    assert report.epsilon == pytest.approx(wor_epsilon([(4, q, 2)], 1e-3))
    json.loads(report.to_json())
    words = report.explain()
    for word in (
        'edges',
        'predictions',
        'labels',
        'loss',
        'C,',
        'guesses the seed',
    ):
        assert word in words
    assert above(report.epsilon) in words
    assert 'seed' not in report.provenance['arguments']
    with pytest.raises(ValueError, match='delta'):
        private().engine.report()


# Checkpoints


def test_resumed_training_goes_on(private):
    setup = private(target=True, optimizer=None)
    setup.train(3, epochs=9)
    state = copy.deepcopy(setup.engine.state_dict())
    buffer = __import__('io').BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)

    other = private(target=True)
    other.engine.load_state_dict(state)
    assert other.engine.steps == 3
    assert other.engine.get_epsilon(1e-3) == setup.engine.get_epsilon(1e-3)
    for name, value in setup.net.state_dict().items():
        assert other.net.state_dict()[name].equal(value)
    # The same batch comes next, with other noise.
    batches = []
    for one in (setup, other):
        for batch in one.loader:
            batches.append(batch.n_id)
            one.optimizer.zero_grad()
            one.loss(batch).backward()
            one.optimizer.step()
            break
    assert batches[0].equal(batches[1])
    assert not setup.net.first.bias.equal(other.net.first.bias)


def test_nothing_secret_is_in_a_checkpoint(private):
    setup = private(
        engine={'insecure_seed': 123456789}, loader={'seed': 987654321}
    )
    setup.train()
    text = str({**setup.engine.state_dict(), 'model': 0, 'optimizer': 0})
    text += str(setup.engine.report(1e-3).to_dict())
    assert '123456789' not in text
    assert '987654321' not in text
    # Neither a seed nor anything of the features.
    data = setup.data.clone()
    data.x = data.x + 1
    other = private(data=data)
    other.train()
    one, two = setup.engine.state_dict(), other.engine.state_dict()
    assert one['setting'] == two['setting']


def test_checkpoints_of_something_else_are_refused(private, tmp_path):
    path = tmp_path / 'ledger'
    setup = private(engine={'ledger': path})
    setup.train()
    state = {**setup.engine.state_dict(), 'ledger': ''}
    setup.engine.close()
    less = setup.data.clone()
    less.edge_index = less.edge_index[:, 2:]
    frozen = private().net
    frozen.first.bias.requires_grad_(False)
    trained = [p for p in frozen.parameters() if p.requires_grad]
    for arguments, match in (
        ({'noise_multiplier': 5.0}, 'noise_multiplier'),
        ({'max_grad_norm': 1.0}, 'max_grad_norm'),
        ({'loss_reduction': 'sum'}, 'loss_reduction'),
        ({'target': True}, 'target_epsilon'),
        ({'loader': {'batch_size': 7}}, 'sampler'),
        ({'loader': {'walk_length': 1}}, 'sampler'),
        ({'loader': {'resample_every': 3}}, 'sampler|data'),
        ({'loader': {'input_nodes': torch.arange(30)}}, 'data'),
        ({'engine': {'accountant': 'rdp_wor'}}, 'mechanism'),
        ({'engine': {'insecure_seed': None}}, 'seeded'),
        ({'data': less}, 'data'),
        ({'net': nn.Linear(5, 3)}, 'parameters'),
        (
            {'net': frozen, 'optimizer': torch.optim.SGD(trained, lr=0.1)},
            'parameters',
        ),
    ):
        other = private(**arguments)
        before = copy.deepcopy(other.net.state_dict())
        with pytest.raises(ValueError, match=match):
            other.engine.load_state_dict(state)
        assert other.engine.steps == 0
        for name, value in other.net.state_dict().items():
            assert value.equal(before[name])
    other = private()
    for change in ('steps', 'accountant', 'setting', 'model', 'optimizer'):
        value = {'steps': 0, 'accountant': None, 'setting': None}
        broken = {**state, change: value.get(change, {})}
        with pytest.raises(ValueError, match="'"):
            other.engine.load_state_dict(broken)
        del broken[change]
        with pytest.raises(ValueError, match='needs an entry'):
            other.engine.load_state_dict(broken)
    assert other.engine.steps == 0
    # Nor does a ledger go on with another account.
    for arguments in (
        {'engine': {'accountant': 'rdp_wor'}},
        {'loader': {'input_nodes': torch.arange(30)}},
    ):
        engine = {'ledger': path, **arguments.get('engine', {})}
        with pytest.raises(ValueError, match='another mechanism'):
            private(**{**arguments, 'engine': engine})


def test_checkpoints_never_take_back_what_was_spent(private):
    setup = private(target=True)
    setup.train(1)
    early = copy.deepcopy(setup.engine.state_dict())
    setup.train(3, epochs=9)
    late = copy.deepcopy(setup.net.state_dict())
    spent = setup.engine.get_epsilon(1e-3)
    assert setup.net.state_dict()['first.bias'].equal(late['first.bias'])
    # Weights may go back, the account does not.
    with pytest.warns(UserWarning, match='stay spent'):
        setup.engine.load_state_dict(early)
    assert setup.engine.steps == 4
    assert setup.engine.get_epsilon(1e-3) == spent
    assert setup.net.first.bias.equal(early['model']['first.bias'])
    # And batches are new ones.
    first = next(iter(setup.loader)).n_id
    want = setup.loader.loader.draw(4).roots
    assert first[:8].equal(want)
    # A history that does not go on is refused whatever is asked for.
    early['accountant']['history'] = [(9.0, 0.5, 1)]
    with pytest.raises(ValueError, match='continue'):
        setup.engine.load_state_dict(early)


def test_an_epoch_goes_on_where_the_account_is(private):
    # Else a batch of one partition is paid at the rate of another.
    options = {'resample_every': 2, 'batch_size': 6, 'num_steps': 8}
    setup = private(loader=options)
    setup.train(5)
    state = copy.deepcopy(setup.engine.state_dict())
    other = private(loader=options)

    def step(batch):
        other.loss(batch).backward()
        other.optimizer.step()
        other.optimizer.zero_grad()

    loader = other.loader
    batches = iter(loader)
    step(next(batches))
    other.engine.load_state_dict(state)
    with pytest.raises(RuntimeError, match='iterate over the loader anew'):
        next(batches)
    # Nor does a batch go by without its step.
    batches = iter(loader)
    next(batches)
    other.engine.load_state_dict(state)
    with pytest.raises(RuntimeError, match='iterate over the loader anew'):
        next(batches)
    # Weights alone may go back between two steps.
    batches = iter(loader)
    step(next(batches))
    with pytest.warns(UserWarning, match='stay spent'):
        other.engine.load_state_dict(state)
    batch = next(batches)
    assert batch.n_id[:6].equal(loader.loader.draw(6).roots)
    step(batch)
    assert other.engine.steps == 7


# The ledger


def test_ledger_outlives_the_process(private, tmp_path):
    path = tmp_path / 'ledger'
    setup = private(target=True, engine={'ledger': path})
    setup.train(1)
    state = copy.deepcopy(setup.engine.state_dict())
    setup.train(3, epochs=5)
    history = setup.engine.accountant.history
    setup.engine.close()

    other = private(target=True, engine={'ledger': path})
    assert other.engine.steps == 4
    assert other.engine.accountant.history == history
    with pytest.warns(UserWarning, match='stay spent'):
        other.engine.load_state_dict(state)
    other.train(epochs=20)
    total = other.engine.steps
    other.engine.close()

    # The budget is one for all of them.
    plain = private(target=True)
    plain.train(epochs=20)
    assert total == plain.engine.steps
    # Nor does a new run take no step in silence.
    with pytest.raises(BudgetExceededError, match='no step fits the budget'):
        private(target=True, engine={'ledger': path})


def test_a_report_speaks_of_the_weights_of_this_process(private, tmp_path):
    path = tmp_path / 'ledger'
    setup = private(engine={'ledger': path})
    setup.train(2)
    setup.engine.close()
    with pytest.warns(UserWarning, match='2 steps of earlier runs'):
        other = private(engine={'ledger': path})
    none = other.engine.report(1e-3)
    assert none.steps == 2
    assert 'this process has taken no private step' in none.checked
    assert not any('last step' in line for line in none.checked)
    other.train(1)
    report = other.engine.report(1e-3)
    assert any('this process took 1, on' in s for s in report.assumptions)
    assert not report.isolation.endswith('of 3)')


def test_ledger_takes_over_a_checkpoint(private, tmp_path):
    setup = private()
    setup.train(4, epochs=9)
    other = private(engine={'ledger': tmp_path / 'ledger'})
    other.engine.load_state_dict(setup.engine.state_dict())
    other.engine.close()
    third = private(engine={'ledger': tmp_path / 'ledger'})
    assert third.engine.steps == 4
    third.engine.load_state_dict(setup.engine.state_dict())
    notes = third.engine.report(1e-3).assumptions
    assert any('weights of a checkpoint of 4 steps' in line for line in notes)


def test_noise_of_a_resumed_process_is_new(private, tmp_path):
    # With the same seed, the first noise after a crash must not be that of
    # the first step.
    ends = []
    for _ in range(2):
        setup = private(engine={'ledger': tmp_path / 'ledger'})
        setup.engine._noise.normal((1,))
        ends.append(setup.engine._noise.normal((3,)))
        setup.train(1)
        setup.engine.close()
    assert not ends[0].equal(ends[1])


class Sequences(nn.Module):
    """Reads the rows of a node one after another."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.conv = GCNConv(3, 3)

    def forward(self, x, edge_index):
        steps, _ = self.layer(x.unsqueeze(-1))
        return self.conv(steps[:, -1, :3], edge_index)


@pytest.mark.parametrize(
    'layer',
    [
        nn.RNN(1, 3, batch_first=True),
        nn.RNN(1, 3, 2, nonlinearity='relu', bias=False, batch_first=True),
        nn.GRU(1, 3, batch_first=True, bidirectional=True),
        nn.LSTM(1, 4, batch_first=True, proj_size=3),
        nn.LSTM(1, 4, batch_first=True, proj_size=3, bias=False),
    ],
)
@pytest.mark.filterwarnings('ignore:LSTM with projections:UserWarning')
def test_recurrent_layers_of_torch(private, layer):
    """By the loop over subgraphs, which torch's own kernels compute."""
    torch.manual_seed(0)
    setup = private(net=Sequences(layer), noise_multiplier=0)
    net = copy.deepcopy(setup.net)
    index = setup.loader.batch_sampler.index(0)
    wanted = clipped_mean(net, setup.loader.loader.of(0, index), 0.5)
    setup.train(1)
    for p, value in zip(setup.net.parameters(), wanted, strict=True):
        assert torch.allclose(p.grad, value, atol=1e-6)


# The baseline of bounded degree


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
@pytest.mark.parametrize('norm', [0.5, 1e6, 1e30])
def test_without_noise_a_large_norm_clips_nothing(private, norm, isolation):
    """As plain training: the grid of sums is not that of the norm."""
    setup = private(
        noise_multiplier=0,
        max_grad_norm=norm,
        isolation=isolation,
        max_physical_batch_size=3,
    )
    net = copy.deepcopy(setup.net)
    index = setup.loader.batch_sampler.index(0)
    wanted = clipped_mean(net, setup.loader.loader.of(0, index), norm)
    setup.train(3)
    assert setup.engine.steps == 1
    for p, value in zip(setup.net.parameters(), wanted, strict=True):
        assert torch.allclose(p.grad, value, atol=1e-6)


def test_a_run_without_noise_is_called_not_private(private, tmp_path):
    """Clipped sums alone, as the loop over subgraphs makes them."""
    setup = private(noise_multiplier=0)
    net = copy.deepcopy(setup.net)
    index = setup.loader.batch_sampler.index(0)
    batches = setup.loader.loader
    whole = batches.of(0, index)
    wanted = clipped_mean(net, whole, 0.5)
    setup.train(1)
    for p, value in zip(setup.net.parameters(), wanted, strict=True):
        assert torch.allclose(p.grad, value, atol=1e-6)
    engine = setup.engine
    assert engine.steps == 1
    assert engine.get_epsilon(1e-3) == math.inf
    assert engine.accountant.get_epsilon(1e-3) == math.inf
    report = engine.report(1e-3)
    assert report.explain().startswith('NOT PRIVATE')
    with pytest.raises(ValueError, match='NOT PRIVATE'):
        report.guarantee()
    with pytest.raises(ValueError, match='NOT PRIVATE'):
        engine.covers(RemovalRequest(features=[0]), 1e-3)
    for arguments in (
        {'engine': {'ledger': tmp_path / 'ledger'}},
        {'target_epsilon': 1.0, 'target_delta': 1e-3},
    ):
        with pytest.raises(ValueError, match='epsilon is infinite'):
            private(noise_multiplier=0, **arguments)
    with pytest.raises(ValueError, match='make_private_with_epsilon'):
        private(noise_multiplier=0.05)


def test_accountants_have_the_names_of_opacus(private):
    for name, sampling, wanted in (
        ('rdp', 'without_replacement', 'rdp_wor'),
        ('prv', 'without_replacement', 'pld_wor'),
        ('rdp', 'poisson', 'pld_poisson'),
        ('prv', 'poisson', 'pld_poisson'),
    ):
        setup = private(
            engine={'accountant': name}, loader={'sampling': sampling}
        )
        assert setup.engine.accountant.mechanism() == wanted


def test_features_that_were_propagated_are_refused(private):
    data = private().data
    for graph in (AGP('sgc', eps=0)(data), AGP('sgc', eps=0)(data).clone()):
        with pytest.raises(ValueError, match="'x', marked as propagated"):
            private(data=graph)
