"""Private training on ego graphs: accounts, refusals, reports, an audit."""

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust import privacy as dp
from pyg_trust.loader import EgoLoader
from pyg_trust.privacy import (
    FDPAccountant,
    GroupAccountant,
    GroupPoissonAccountant,
    PrivacyEngine,
)
from pyg_trust.transforms import BoundedDegree


def make_data(max_degree=2, n=60):
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(n, (2, 7 * n), generator=generator)
    pairs = pairs[:, pairs[0] != pairs[1]].unique(dim=1)
    data = Data(
        x=torch.randn(n, 5, generator=generator),
        y=torch.arange(n) % 3,
        edge_index=pairs,
    )
    return BoundedDegree(max_degree, seed=0)(data)


def setup(accountant=None, *, sampling='without_replacement', hops=1, **more):
    torch.manual_seed(0)
    loader = more.pop('data_loader', None) or EgoLoader(
        make_data(), 3, hops, 2, sampling=sampling, seed=0, num_steps=10
    )
    net = GCNConv(5, 3)
    arguments = {
        'module': net,
        'optimizer': torch.optim.SGD(net.parameters(), lr=0.1),
        'data_loader': loader,
        'max_grad_norm': 0.3,
        'noise_multiplier': 6.0,
        **more,
    }
    return PrivacyEngine(accountant), arguments


def train(model, optimizer, loader):
    sizes = []
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(
            out, batch.y[: batch.batch_size], reduction='sum'
        )
        (loss / 3).backward()
        optimizer.step()
        sizes.append(int(batch.batch_size))
    return sizes


LAWS = [
    ('without_replacement', None, 'pld_group_wor', GroupAccountant),
    ('without_replacement', 'rdp', 'rdp_fdp', FDPAccountant),
    ('poisson', None, 'pld_group', GroupPoissonAccountant),
]


@pytest.mark.parametrize(('sampling', 'asked', 'name', 'kind'), LAWS)
def test_the_account_is_by_the_loader(sampling, asked, name, kind):
    engine, arguments = setup(asked, sampling=sampling)
    private = engine.make_private(
        **arguments, target_epsilon=9.0, target_delta=1e-4
    )
    assert type(engine.accountant) is kind
    sizes = train(*private)
    assert len(sizes) == engine.steps == 10
    if sampling == 'poisson':
        assert set(sizes) != {3}
    else:
        assert set(sizes) == {3}
    report = engine.report()
    assert report.mechanism == name
    assert report.units_per_row == 3
    assert report.sensitivity == pytest.approx(2 * 3 * 0.3)
    if sampling == 'poisson':
        want = dp.poisson_epsilon([(6.0, 0.05, 10)], 1e-4, occurrences=3)
        assert 'Poisson' in report.explain()
    elif asked == 'rdp':
        account = FDPAccountant(60, 3, 3)
        want = account.epsilon_of([(6.0, 0.05, 10)], 1e-4)
    else:
        want = dp.group_wor_epsilon([(6.0, 0.05, 10)], 1e-4, 60, 3)
    assert report.epsilon == pytest.approx(want, rel=1e-12)
    assert report.epsilon < report.epsilon_renyi
    assert 'at most 3 of all units see a row' in report.explain()


# What is refused: in the end nothing was spent ###############################


REFUSED = [
    ('without_replacement', name)
    for name in ('pld_wor', 'rdp_wor', 'pld_poisson', 'pld_group')
] + [
    ('poisson', name)
    for name in ('pld_wor', 'pld_poisson', 'pld_group_wor', 'rdp_fdp')
]


@pytest.mark.parametrize(('sampling', 'name'), REFUSED)
def test_ego_graphs_take_no_account_of_others(sampling, name):
    engine, arguments = setup(name, sampling=sampling)
    with pytest.raises(ValueError, match="'accountant' needs to be 'pld_gr"):
        engine.make_private(**arguments)
    with pytest.raises(RuntimeError, match='make_private first'):
        engine.get_epsilon(1e-5)


@pytest.mark.parametrize('kind', [GroupAccountant, GroupPoissonAccountant])
def test_a_state_is_that_of_its_groups(kind):
    account = kind(100, 4)
    account.step(noise_multiplier=5.0, sample_rate=0.1)
    state = account.state_dict()
    again = kind(100, 4)
    again.load_state_dict(state)
    assert again.get_epsilon(1e-5) == account.get_epsilon(1e-5) > 0
    for other, name in (
        (kind(50, 4), 'num_roots'),
        (kind(100, 3), 'occurrences'),
        (FDPAccountant(100, 10, 4), 'num_nodes'),
    ):
        with pytest.raises(ValueError, match=name):
            other.load_state_dict(state)
        assert not other.history
    # A history that is none of these steps.
    for line in ((0.3, 0.1, 1), (5.0, 1.5, 1), (5.0, 0.1, 0)):
        with pytest.raises(ValueError, match='needs'):
            kind(100, 4).load_state_dict({**state, 'history': [line]})


# What is saved ##############################################################


def test_a_ledger_and_a_checkpoint_go_on(tmp_path):
    path = tmp_path / 'ledger'
    for turn in (1, 2):
        engine, arguments = setup(sampling='poisson')
        engine = PrivacyEngine(ledger=path)
        train(*engine.make_private(**arguments))
        assert engine.steps == 10 * turn
        engine.close()
    # Of other roots, and so of another account.
    engine = PrivacyEngine(ledger=path)
    _, deeper = setup(sampling='poisson', hops=2)
    with pytest.raises(ValueError, match='ledger'):
        engine.make_private(**deeper)
