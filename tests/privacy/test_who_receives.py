"""Sums for nodes that need them: what the others' rows and edges can do."""

import numpy as np
import pytest
import torch
from graphs import homes
from torch import nn

from pyg_trust.privacy import PrivateNodeClassifier, aggregation, descent
from pyg_trust.privacy.descent import linear_sums, unit_rows, whole_rows
from pyg_trust.privacy.propagation import choose_receivers

QUICK = {'epsilon': 8.0, 'delta': 1e-4, 'steps': 5, 'num_classes': 3}
n = 80


def graph(directed=False):
    return homes(n, directed=directed, columns=5)


def silent(data):
    """The nodes that receive nothing, as the documentation has them."""
    return ~choose_receivers(data.train_mask, 0.2)


def fitted(data, **arguments):
    given = {'adjacency': 'node', 'insecure_seed': 0, **QUICK, **arguments}
    return PrivateNodeClassifier(**given).fit(data)


def zeros(model):
    return ~model.released[0].any(1)


def test_rows_of_those_who_receive_nothing_are_zero():
    data = graph()
    model = fitted(data)
    assert 30 < int(silent(data).sum()) < 60
    assert torch.equal(zeros(model), silent(data))
    # What they are told comes of their own row: no draw, no edge is in it.
    without = data.clone()
    without.edge_index = data.edge_index[:, :0]
    for other in (fitted(data, insecure_seed=1), fitted(without)):
        other._own, other._head = model._own, model._head
        same = (other.logits() == model.logits()).all(1)
        assert torch.equal(same, silent(data))


@pytest.mark.parametrize('directed', [False, True])
def test_edges_to_those_who_receive_nothing_change_no_bit(directed):
    data = graph(directed)
    nothing, (u, w) = silent(data), data.edge_index
    # Undirected, an edge goes both ways: neither may receive.
    idle = nothing[w] if directed else nothing[u] & nothing[w]
    assert idle.sum() > 20
    less = data.clone()
    less.edge_index = data.edge_index[:, ~idle]
    one, two = (fitted(each, directed=directed) for each in (data, less))
    assert torch.equal(one.logits(), two.logits())
    assert torch.equal(one.released[0], two.released[0])
    # And any other edge does.
    less.edge_index = data.edge_index[:, idle]
    assert not torch.equal(
        one.released[0], fitted(less, directed=directed).released[0]
    )


def test_heads_train_on_the_rows_of_receivers_alone(monkeypatch):
    data, seen = graph(), []
    train = aggregation.train_privately

    def spy(module, x, y, *rest):
        seen.append((x.clone(), y.clone()))
        return train(module, x, y, *rest)

    monkeypatch.setattr(aggregation, 'train_privately', spy)
    fitted(data)
    (own, labels), (read, told) = seen
    assert len(own) == int(data.train_mask.sum())
    assert torch.equal(labels, data.y[data.train_mask])
    both = data.train_mask & ~silent(data)
    assert torch.equal(told, data.y[both])
    assert 0 < len(read) == len(told) < 25
    assert bool(read[:, 3:].any(1).all())


@pytest.mark.parametrize(
    ('arguments', 'train', 'all_receive'),
    [
        ({}, 0.75, False),
        ({'neighboring': 'replace'}, 0.75, False),
        ({'train_receivers': 1.0}, 0.75, True),
        ({'K': 2}, 0.75, True),
        ({'head': nn.Linear(6, 3), 'start_is_public': True}, 0.75, True),
        (
            {
                'head': nn.Linear(6, 3),
                'train_receivers': 0.2,
                'start_is_public': True,
            },
            0.75,
            False,
        ),
        ({}, 0.4, True),
        ({'train_receivers': 0.2}, 0.4, False),
        ({}, 1.0, True),
        ({'adjacency': 'node_incident', 'max_degree': 4}, 0.75, True),
        ({'adjacency': 'feature'}, 0.75, True),
        ({'adjacency': 'edge', 'epochs': 3}, 0.75, True),
    ],
)
def test_who_receives_by_default(arguments, train, all_receive):
    data = graph()
    data.train_mask = torch.arange(n) < train * n
    model = fitted(data, **arguments)
    report = model.report()
    expected = n if all_receive else int((~silent(data)).sum())
    assert report.receivers == expected
    assert int((~zeros(model)).sum()) == expected
    assert report.epsilon == pytest.approx(8.0, rel=1e-9)
    said = report.explain()
    assert ('receive sums' in said) != all_receive
    if not all_receive:
        assert f'{expected:,} nodes receive sums' in said
        assert 'their own features alone' in said.replace('\n', ' ')
        assert any('weights of lists read' in s for s in report.assumptions)


class Drawn:
    """Noise that is known, so that its factor can be seen."""

    def cells(self, shape):
        return torch.full(shape, 2**32)


@pytest.mark.parametrize('name', ['encoder', 'head'])
def test_a_record_moves_each_step_by_no_more_than_its_noise_says(
    name, monkeypatch
):
    # Clipping norm and noise have to agree, whatever rows are scaled by.
    data, z = graph(), 3.0
    made = aggregation.LinearRows(5, 3, name == 'encoder')
    steps = []

    def gradient(x, error, C, std):
        total = linear_sums(x, error, C, std)
        one = [
            linear_sums(np.delete(x, v, 0), np.delete(error, v, 0), C, std)
            for v in range(len(error))
        ]
        moved = max(float(np.linalg.norm(total - t)) for t in one)
        steps.append(moved * std / 2**32)
        steps.append(C)
        return total

    class Kept(torch.optim.Adam):
        def step(self):
            (weight,) = self.param_groups[0]['params']
            graded.append(weight.grad.clone())

    graded: list = []
    monkeypatch.setattr('pyg_trust.privacy.descent.linear_sums', gradient)
    monkeypatch.setattr(torch.optim, 'Adam', Kept)
    x = 10 * data.x.double()
    descent.train_privately(made, x, data.y, 3, Drawn(), z, 1, 0.1)
    moved, C = steps
    assert 0.5 * C < moved <= C
    # What is added to the sum is z times as large as what a record moves.
    rows = unit_rows(x) * 4 if name == 'encoder' else x.numpy()
    error = np.full((n, 3), 1 / 3) - np.eye(3)[data.y]
    sums = linear_sums(whole_rows(rows), error, C, z * C)
    noise = n * graded[0].numpy() - sums * z * C / 2**32
    assert np.allclose(noise, z * C, rtol=1e-9)
