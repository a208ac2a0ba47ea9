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
def test_gradients_are_those_of_finite_differences(kind, seed):
    _, logits, threat, _ = problem(seed)
    loss = RobustLoss(threat, kind=kind, margin=0.7, tol=1e-12)
    assert torch.autograd.gradcheck(
        lambda h: loss(h, Y), logits.requires_grad_(), atol=1e-6
    )


def test_a_diffused_signal_is_used_as_it_is():
    _, logits, threat, _ = problem(0)
    loss = RobustLoss(threat, kind='cem')
    other = loss(logits, Y, diffused=torch.zeros(5, 3).double())
    expected = loss(logits, Y)
    assert not torch.isclose(other, expected)


@pytest.mark.parametrize('kind', ['rce', 'cem'])
def test_training_makes_nodes_robust(kind):
    # Two triangles with an edge between them.
    half = torch.tensor([[0, 1, 0, 3, 4, 3, 2], [1, 2, 2, 4, 5, 5, 3]])
    edge_index = torch.cat([half, half.flip(0)], dim=1)
    threat = ThreatModel(edge_index, num_nodes=6)
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    logits = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert certify(logits, threat, reference=y).num_robust < 6
    h = torch.nn.Parameter(logits)
    loss = RobustLoss(threat, kind=kind)
    optimizer = torch.optim.Adam([h], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss(h, y).backward()
        optimizer.step()
    assert certify(h, threat, reference=y).num_robust == 6


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


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        ({'threat': None}, TypeError, "'threat'"),
        ({'kind': 'ce'}, ValueError, "'kind'"),
        ({'alpha': 0.0}, ValueError, "'alpha'"),
        ({'tol': 0.0}, ValueError, "'tol'"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    _, logits, threat, _ = problem(0)
    with pytest.raises(error, match=message):
        RobustLoss(**{'threat': threat, **arguments})
    with pytest.raises(ValueError, match='global budget'):
        RobustLoss(ThreatModel(threat.graph, global_budget=1))
    with pytest.raises(ValueError, match="'logits'"):
        RobustLoss(threat)(logits[:3], Y)
    with pytest.raises(TypeError, match="'y'"):
        RobustLoss(threat)(logits, Y.double())
