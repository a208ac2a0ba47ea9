import importlib

import pytest
import torch
from exhaustive import admissible, csr, random_problem, worst_margins
from torch.nn import functional as F

from pyg_trust.certificates import RobustLoss, ThreatModel, certify

Y = torch.tensor([0, 1, 2, 0, 1])


def problem(seed):
    adj, logits = random_problem(seed, 5)
    threat = ThreatModel(csr(adj), 'both', local_budget=1)
    fragile = torch.ones(5, 5, dtype=torch.bool).fill_diagonal_(False)
    graph = threat.graph
    held = ~threat.perturbations.removable
    fragile[graph.row[held], graph.col[held]] = False
    graphs = admissible(adj, fragile, torch.ones(5))
    return adj, logits, threat, graphs


@pytest.mark.parametrize('kind', ['rce', 'cem'])
@pytest.mark.parametrize('seed', range(3))
def test_losses_are_those_of_exhaustive_search(kind, seed):
    adj, logits, threat, graphs = problem(seed)
    index = torch.tensor([0, 2, 3])
    margins = worst_margins(graphs, logits, 0.15)[Y, :, torch.arange(5)]
    margins = margins[index]
    if kind == 'rce':
        expected = F.cross_entropy(-margins, Y[index])
    else:
        clean = worst_margins(adj[None], logits, 0.15)[0].t()
        hinge = (0.5 - margins).clamp(min=0).sum(1).mean() - 0.5
        expected = F.cross_entropy(-clean[index], Y[index]) + hinge
    loss = RobustLoss(threat, kind=kind, margin=0.5, tol=1e-12)
    assert torch.isclose(loss(logits, Y, index), expected)
    mask = torch.zeros(5, dtype=torch.bool)
    mask[index] = True
    assert torch.isclose(loss(logits, Y, mask), expected)


@pytest.mark.parametrize('kind', ['rce', 'cem'])
@pytest.mark.parametrize('seed', range(3))
def test_unlabelled_nodes_add_the_hinge_of_exhaustive_search(kind, seed):
    _, logits, threat, graphs = problem(seed)
    index = torch.tensor([0, 3])
    # A class for the labelled nodes too, which is not to be read.
    pseudo = torch.tensor([2, 2, -1, 1, 0])
    loss = RobustLoss(
        threat, kind=kind, margin=0.5, pseudo_weight=0.3, tol=1e-12
    )
    margins = worst_margins(graphs, logits, 0.15)
    hinge = [
        max(0.0, 0.5 - float(margins[pseudo[v], c, v]))
        for v in (1, 4)
        for c in range(3)
        if c != pseudo[v]
    ]
    expected = loss(logits, Y, index) + 0.3 * sum(hinge) / 2
    assert torch.isclose(loss(logits, Y, index, pseudo=pseudo), expected)
    mask = torch.zeros(5, dtype=torch.bool)
    mask[index] = True
    assert torch.isclose(loss(logits, Y, mask, pseudo=pseudo), expected)


@pytest.mark.parametrize('seed', range(3))
def test_the_hinge_bounds_how_many_are_not_certified(seed):
    adj, logits = random_problem(seed, 30)
    threat = ThreatModel(csr(adj), local_budget=2)
    y = pseudo = logits.argmax(1)
    one = RobustLoss(threat, 0.5, margin=0.2, pseudo_weight=1 / 0.2)
    index, rest = torch.arange(30).split([1, 29])
    bound = one(logits, y, index, pseudo=pseudo) - one(logits, y, index)
    made = certify(logits, threat, alpha=0.5, nodes=rest, reference=pseudo)
    assert 0 < made.certified_ratio() < 1
    assert 1 - made.certified_ratio() <= float(bound) + 1e-9


def test_both_terms_share_one_worst_case(monkeypatch):
    _, logits, threat, _ = problem(0)
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return losses.worst_case_margins(*args, **kwargs)

    losses = importlib.import_module('pyg_trust.certificates.policy')
    monkeypatch.setattr(
        'pyg_trust.certificates.losses.worst_case_margins', counted
    )
    RobustLoss(threat)(logits, Y, torch.tensor([0]), pseudo=Y)
    assert len(calls) == 1


@pytest.mark.parametrize('kind', ['rce', 'cem'])
@pytest.mark.parametrize('seed', range(3))
def test_gradients_with_unlabelled_nodes(kind, seed):
    _, logits, threat, _ = problem(seed)
    loss = RobustLoss(
        threat, kind=kind, margin=0.7, pseudo_weight=2.0, tol=1e-12
    )
    assert torch.autograd.gradcheck(
        lambda h: loss(h, Y, Y == 0, pseudo=(Y + seed) % 3),
        logits.requires_grad_(),
        atol=1e-6,
    )


@pytest.mark.parametrize('kind', ['rce', 'cem'])
def test_training_makes_unlabelled_nodes_robust(kind):
    # Two triangles; no label is near the second.
    half = torch.tensor([[0, 1, 0, 3, 4, 3], [1, 2, 2, 4, 5, 5]])
    edge_index = torch.cat([half, half.flip(0)], dim=1)
    threat = ThreatModel(edge_index, num_nodes=6)
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    far = torch.tensor([3, 4, 5])
    robust = []
    for pseudo in (None, y):
        h = torch.nn.Parameter(torch.zeros(6, 2))
        loss = RobustLoss(threat, kind=kind)
        optimizer = torch.optim.Adam([h], lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            loss(h, y, y == 0, pseudo=pseudo).backward()
            optimizer.step()
        made = certify(h, threat, nodes=far, reference=y)
        robust.append(made.num_robust)
    assert robust == [0, 3]


def test_float32_models_train_too():
    _, logits, threat, _ = problem(2)
    h = logits.float().requires_grad_()
    RobustLoss(threat)(h, Y).backward()
    assert h.grad.dtype == torch.float32
    assert float(h.grad.abs().sum()) > 0


def test_logits_of_another_width_start_afresh():
    _, logits, threat, _ = problem(2)
    loss = RobustLoss(threat)
    loss(logits, Y)
    wider = torch.cat([logits, logits[:, :1]], dim=1)
    expected = RobustLoss(threat)(wider, Y)
    assert torch.isclose(loss(wider, Y), expected, atol=1e-4)
