"""What leaves beside the weights: memory of a model, and of other runs."""

import copy
from collections import deque

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv

from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.privacy import (
    PrivacyEngine,
    create_accountant,
    planning,
    search,
)


class Keeping(nn.Module):
    """Two layers that keep what they read, in one of many places."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second = GCNConv(5, 6), GCNConv(6, 3)
        self.how, self.kept = how, None
        self.rows = {'list': [], 'queue': deque(), 'table': {}}

    def forward(self, x, edge_index):
        kept = x.detach().clone()
        if self.how == 'attribute':
            self.kept = kept
        elif self.how == 'new':
            self.first.memory = kept
        elif self.how == 'table':
            self.rows['table'] = {'x': kept}
        elif self.how == 'nested':
            self.kept = {'x': [kept]}
        elif self.how == 'number':
            self.kept = float(kept.sum())
        else:
            self.rows = {**self.rows, self.how: deque([kept])}
        return self.second(self.first(x, edge_index).relu(), edge_index)


def leaves(value):
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, list | deque | type({}.values())):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def memory(model):
    """What the layers of a model have, beside their parameters."""
    own = set(vars(nn.Module()))
    return [
        leaf
        for layer in model.modules()
        for name, value in vars(layer).items()
        if name not in own
        for leaf in leaves(value)
    ]


def other_rows(private):
    # Those of the fixture are random numbers that one may draw again.
    data = private().data
    generator = torch.Generator().manual_seed(977)
    data.x = torch.randn(data.x.shape, generator=generator)
    return data


@pytest.mark.parametrize('isolation', ['checked', 'construction'])
@pytest.mark.parametrize(
    'how',
    ['attribute', 'new', 'list', 'queue', 'table', 'nested'],
)
def test_a_trained_model_has_kept_no_private_row(private, how, isolation):
    # Its rows were in every copy, and could be read by the next step's loss.
    data = other_rows(private)
    setup = private(data=data, net=Keeping(how), isolation=isolation)
    setup.train(3)
    rows = setup.data.x
    for net in (setup.net, copy.deepcopy(setup.model)):
        for value in memory(net):
            if isinstance(value, torch.Tensor) and value.shape[1:] == (5,):
                same = (value[:, None] == rows).all(2)
                assert not bool(same.any())
    # Of rows that are made up it may keep what it likes.
    kept = [v for v in memory(setup.net) if isinstance(v, torch.Tensor)]
    assert isolation == 'construction' or kept


def test_what_a_model_counts_is_counted_once_a_step(private):
    class Counting(Keeping):
        def forward(self, x, edge_index):
            self.calls = getattr(self, 'calls', 0) + 1
            return super().forward(x, edge_index)

    setup = private(net=Counting('new'))
    before = getattr(setup.net, 'calls', 0)
    steps = setup.train(3)
    assert steps
    assert setup.net.calls == before + steps


def test_a_search_does_not_tell_that_another_run_had_other_data(
    private, monkeypatch
):
    # Of a search the number of runs is a secret, and so are those that lost.
    monkeypatch.setattr(planning, 'draw_runs', lambda *_: 2)
    bound = create_accountant('pld_wor')
    bound.step(noise_multiplier=4.0, sample_rate=1.0)
    made = []

    def train(_):
        roots = torch.arange(40 - len(made))
        setup = private(loader={'input_nodes': roots, 'num_steps': 1})
        setup.train(1)
        made.append(setup.engine)
        return setup.engine, float(len(made))

    _, report = search(train, [1], bound=bound, delta=1e-3, mean_runs=2.0)
    data = [engine.report(1e-3).data for engine in made]
    assert data[0] != data[1]
    assert report.data == data[1]


def test_a_run_that_spends_all_of_the_bound_and_no_more_is_paid_for(private):
    bound = create_accountant('pld_wor')
    bound.step(noise_multiplier=4.0, sample_rate=1.0)
    orders = planning.ORDERS
    most = planning._allowed(bound)
    assert (most > bound.rdp(orders)).all()
    paid = planning.rdp_select(orders, most, 3.0, 1.0)
    wanted = planning.rdp_epsilon(orders, paid, 1e-3)
    assert planning.search_epsilon(bound, 1e-3, 3.0) == wanted


class Modest(DisjointWalkLoader):
    """Says that it draws less than it does."""

    def sample_rate_at(self, step):
        return super().sample_rate_at(step) / 100


def test_a_loader_of_somebody_else_is_named_in_the_report(private):
    ours = private().engine.report(1e-3)
    assert not any('not of this package' in text for text in ours.assumptions)
    net, engine = GCNConv(5, 3), PrivacyEngine()
    engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=Modest(private().data, 8, 2),
        noise_multiplier=4.0,
        max_grad_norm=1.0,
    )
    said = engine.report(1e-3).guarantee()
    assert any(
        'NOT CHECKED: how units are made and drawn' in text
        and 'Modest, which is not of this package' in text
        for text in said.assumptions
    )
