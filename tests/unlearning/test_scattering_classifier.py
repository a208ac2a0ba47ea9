import copy

import pytest
import torch
from graphs import random_graphs, without
from states import same
from torch_geometric.data import Data, HeteroData

from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import GraphScattering
from pyg_trust.unlearning import ScatteringClassifier
from pyg_trust.unlearning.heads import minimize
from pyg_trust.unlearning.published import PublishedScatteringClassifier

SCATTERING = {'J': 3, 'Q': 2, 'L': 3}


def make(graphs, max_degree=None, **kwargs):
    transform = kwargs.pop('transform', None) or GraphScattering(
        **SCATTERING, max_degree=max_degree
    )
    kwargs = {'seed': 0, **kwargs}
    return ScatteringClassifier(transform, **kwargs).fit(graphs)


def replaced(model, **changes):
    """The inner state of a classifier with other training graphs."""
    return model._replace(train=model.train._replace(**changes))


# Fitting ####################################################################


def test_learns_and_predicts():
    graphs = random_graphs(80)
    model = make(graphs[:40])
    assert model.score(graphs[40:]) > 0.8
    assert model.num_graphs == 40
    margin = model.decision_function(graphs[40:])
    assert margin.shape == (40,)
    assert torch.equal(model.predict(graphs[40:]), (margin > 0).long())
    probability = model.predict_proba(graphs[40:])
    torch.testing.assert_close(probability[:, 1], torch.sigmoid(margin))
    torch.testing.assert_close(probability.sum(1), torch.ones(40).double())
    # One graph by itself.
    assert model.predict(graphs[41]).tolist() == (margin[1:2] > 0).tolist()


def test_more_classes_and_their_names():
    graphs = random_graphs(90, 3)
    for data in graphs:
        data.y = torch.tensor(10 * int(data.y) + 5)
    model = make(graphs[:45])
    assert model.classes == (5, 15, 25)
    assert set(model.predict(graphs[45:]).tolist()) <= {5, 15, 25}
    assert model.score(graphs[45:]) > 0.5
    assert model.decision_function(graphs[45:]).shape == (45, 3)
    probability = model.predict_proba(graphs[45:])
    torch.testing.assert_close(probability.sum(1), torch.ones(45).double())


# Removal ####################################################################


@pytest.mark.parametrize('max_degree', [None, 8])
@pytest.mark.parametrize('num_classes', [2, 3])
def test_deleting_is_training_without(max_degree, num_classes):
    graphs = random_graphs(30, num_classes, with_x=max_degree is None)
    model = make(graphs, max_degree, weight_decay=1e-2)
    request = RemovalRequest(
        nodes={2: [0, 4], 7: [1]},
        graphs=[11, 12],
        **({'features': {9: [0, 1]}} if max_degree is None else {}),
    )
    report = model.remove(request)
    assert report.graphs_embedded == (3 if max_degree is None else 2)
    assert report.num_graphs == model.num_graphs == 28
    Z = model.transform.embed(without(graphs, request), torch.float64)
    now = model._model
    torch.testing.assert_close(
        model.embeddings.to_dense(), Z, rtol=0, atol=1e-14
    )
    # The exact solution on what remains.
    exact = minimize(Z, now.train.Y, torch.zeros_like(now.W), 1e-2)
    distance = float((now.W - exact.W).norm())
    assert distance <= report.distance_bound < 1e-8
    assert distance <= report.bound * report.release_std
    # What is released, and nothing else, is off by the noise.
    gap = (model.weight - now.W).norm() / report.release_std
    assert float(gap) == pytest.approx(now.W.numel() ** 0.5, rel=0.5)
    assert model.verify().ok


def test_only_touched_graphs_are_embedded(monkeypatch):
    graphs = random_graphs(20)
    model = make(graphs)
    seen = []
    embed = GraphScattering.embed

    def counting(self, data, *args, **kwargs):
        seen.append(len(data))
        return embed(self, data, *args, **kwargs)

    monkeypatch.setattr(GraphScattering, 'embed', counting)
    model.remove(RemovalRequest(nodes={4: [0], 5: [1]}, graphs=[6]))
    assert seen == [2]
    model.remove(RemovalRequest(graphs=[7]))
    assert seen == [2]


def test_a_removed_node_is_gone_as_in_a_second_program(shared):
    import numpy as np

    oracle = np.load(shared / 'oracles' / 'unlearning' / 'gst_embeddings.npz')
    for name in oracle['names']:
        x = torch.from_numpy(oracle[f'{name}/x'])
        data = Data(
            x=x,
            edge_index=torch.from_numpy(oracle[f'{name}/edge_index']),
            y=torch.tensor([0]),
        )
        other = copy.copy(data)
        other.y = torch.tensor([1])
        node = int(oracle[f'{name}/removed_node'])
        for key, wavelet in (
            ('geometric_DA', 'geometric'),
            ('diffusion_mean', 'diffusion'),
        ):
            transform = GraphScattering(4, 3, 3, wavelet=wavelet)
            model = make([data, other], transform=transform)
            model.remove(RemovalRequest(nodes={0: [node]}))
            expected = oracle[f'{name}/delete/J4Q3L3/{key}'].ravel()
            row = model.embeddings[0]
            np.testing.assert_allclose(row, expected, rtol=0, atol=1e-12)


def test_removing_until_little_is_left():
    # The number of graphs falls below the number of coefficients on the way.
    graphs = random_graphs(40)
    model = make(graphs, transform=GraphScattering(2, 1, 3))
    for i in range(38):
        report = model.remove(RemovalRequest(graphs=[i]))
        assert report.bound <= report.budget
    assert model.num_graphs == 2
    assert model.verify().ok
    before = model.state_dict()
    with pytest.raises(ValueError, match='class'):
        model.remove(RemovalRequest(graphs=[38]))
    assert same(model.state_dict(), before)


# Bad input leaves everything as it was ######################################


def test_refused_for_other_reasons():
    graphs = random_graphs(16, with_x=False)
    model = make(graphs, 8)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match='features of its own'):
        model.remove(RemovalRequest(features={0: [0]}))
    with pytest.raises(TypeError, match="'request'"):
        model.remove({'nodes': [0]})
    assert same(model.state_dict(), before)
    with pytest.raises(ValueError, match='fitted'):
        ScatteringClassifier(GraphScattering()).predict(graphs)


def test_bad_training_data():
    graphs = random_graphs(8)
    model = make(graphs)
    before = copy.deepcopy(model.state_dict())

    def changed(**change):
        bad = [copy.copy(g) for g in graphs]
        for key, value in change.items():
            bad[3][key] = value
        return bad

    directed = torch.tensor([[0, 1], [1, 2]])
    diffusion = ScatteringClassifier(GraphScattering(wavelet='diffusion'))
    for classifier, bad, error, match in (
        (model, graphs[::2], ValueError, 'at least (one graph|two classes)'),
        (model, [], ValueError, 'at least (one graph|two classes)'),
        (model, changed(y=None), ValueError, "label 'y'"),
        (model, changed(y=torch.tensor([0.5])), ValueError, "label 'y'"),
        (model, changed(y=torch.tensor([0, 1])), ValueError, "label 'y'"),
        (model, changed(x=graphs[3].x + 1), ValueError, r'\[-1, 1\]'),
        (model, changed(x=None), ValueError, "'x'"),
        (model, [HeteroData()], TypeError, 'homogeneous'),
        (diffusion, changed(edge_index=directed), ValueError, 'undirected'),
    ):
        with pytest.raises(error, match=match):
            classifier.fit(bad)
    assert same(model.state_dict(), before)


# Verification and state #####################################################


def test_verify_finds_what_is_left_over():
    graphs = random_graphs(20)
    model = make(graphs)
    clean = model._model
    model.remove(RemovalRequest(nodes={3: [0]}, graphs=[4]))
    good = model._model
    assert model.verify().ok

    # A row of the removed node's graph that was not embedded again.
    Z = good.train.Z.clone()
    Z[3] = clean.train.Z[3]
    model._model = replaced(good, Z=Z)
    check = model.verify()
    assert not check.ok
    assert check.embedding_error > 1e-6
    # Inner products of it.
    K = good.train.K.clone()
    K[3, 5] = clean.train.K[3, 5]
    model._model = replaced(good, K=K)
    assert not model.verify().ok
    # Weights that never heard of the removal.
    model._model = good._replace(W=clean.W)
    check = model.verify()
    assert not check.ok
    assert not check.bound_holds
    # A release that never heard of it, or has little of the noise, or none.
    little = good.W + (good.weight - good.W) / 5
    for weight in (clean.weight, little, good.W):
        model._model = good._replace(weight=weight)
        check = model.verify()
        assert not check.ok
        assert check.noise_p_value < 1e-9
    # The graph as it was.
    now, was = good.train.graphs, clean.train.graphs
    model._model = replaced(good, graphs={**now, 3: was[3]})
    check = model.verify()
    assert not check.ok
    assert not check.sealed
    assert check.leftovers == ('the graphs are not those of the ledger',)
    model._model = good
    assert model.verify().ok


@pytest.mark.parametrize('num_classes', [2, 3])
def test_verify_proves_a_release_by_the_kernel(num_classes):
    graphs = random_graphs(24, num_classes)
    model = make(graphs, weight_decay=1e-2)
    report = model.remove(RemovalRequest(graphs=[3], nodes={0: [0]}))
    found = model.verify()
    assert found.ok
    assert found.proved
    # By the definition, in other words than those of both.
    Z, lam = model.embeddings.to_dense(), 1e-2
    W = model._model.W.clone().requires_grad_()
    labels = torch.tensor([int(g.y) for g in model.graphs.values()])
    hot = labels.view(-1, 1) == torch.arange(num_classes)
    Y = 2.0 * (hot[:, 1:] if num_classes == 2 else hot) - 1
    each = torch.nn.functional.softplus(-Y * (Z @ W))
    n = len(labels)
    total = each.sum() + lam * n / 2 * W.square().sum()
    (grad,) = torch.autograd.grad(total, W)
    true = float(grad.norm())
    assert true <= found.proved_residual <= true + 1e-9
    assert found.proved_shift <= report.bound
    said = report.verified(found).guarantee()
    assert said.values['residual_checked'] == 'by the kernel, at verify()'
    # Weights far from where they should be, and a measure that says less.
    far = model._model.W + 1e-4
    model._model = model._model._replace(W=far)
    assert not model.verify().ok
    held = type(model)._residual
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(model),
            '_residual',
            lambda self, m: type(held(self, m))(1e-13, 1e-13),
        )
        with pytest.raises(RuntimeError, match='the kernel finds'):
            model.verify()


def test_a_release_that_is_not_paid_for_is_refused(monkeypatch):
    graphs = random_graphs(20)
    model = make(graphs, weight_decay=1e-2)
    before = model.state_dict()
    monkeypatch.setattr(type(model), '_spends', lambda *_: 1e-13)
    with pytest.raises(RuntimeError, match='would be paid for'):
        model.remove(RemovalRequest(nodes={0: [0]}))
    assert same(model.state_dict(), before)


# What is refused, or runs empty #############################################


def test_noise_too_small_for_the_solver_or_its_grid_is_refused():
    graphs = random_graphs(24)
    with pytest.raises(ValueError, match="'release_std' needs to be at least"):
        make(graphs, release_std=1e-7, tol=1e-8)
    with pytest.raises(ValueError, match="'release_std' is too small"):
        make(graphs, release_std=1e-12)


def test_amounts_are_those_of_other_data():
    spent = []
    for seed in range(2):
        model = make(random_graphs(24, seed=seed), weight_decay=1e-2)
        model.remove(RemovalRequest(nodes={3: [0]}))
        spent.append([line.spent for line in model.ledger.entries])
    assert spent[0] == spent[1]


@pytest.mark.parametrize('weighted', [False, True])
def test_no_half_of_an_edge_stays(weighted):
    graphs = random_graphs(24)
    data = graphs[2]
    pairs = data.edge_index.t().tolist()
    u, v = pairs[0]
    if weighted:
        for each in graphs:
            each.edge_weight = torch.arange(1.0, each.num_edges + 1).double()
    else:
        # A stray directed edge elsewhere.
        every = torch.cartesian_prod(*2 * [torch.arange(data.num_nodes)])
        free = (e for e in every.tolist() if e not in pairs and e[0] != e[1])
        stray = next(e for e in free if {*e} != {u, v})
        data.edge_index = torch.tensor([*pairs, stray]).t()
    model = make(graphs)
    model.remove(RemovalRequest(edges={2: [(u, v)]}))
    left = {tuple(e) for e in model.graphs[2].edge_index.t().tolist()}
    assert not left & {(u, v), (v, u)}
    assert model.verify().ok


@pytest.mark.parametrize(
    'kind', [ScatteringClassifier, PublishedScatteringClassifier]
)
@pytest.mark.parametrize('num_classes', [2, 3])
def test_a_class_may_run_empty(kind, num_classes):
    graphs = random_graphs(24)

    def fitted(**kwargs):
        transform = GraphScattering(J=2, Q=3, L=2)
        return kind(transform, weight_decay=1e-2, **kwargs).fit(graphs)

    whole = RemovalRequest(graphs=range(1, len(graphs), 2))
    with pytest.raises(ValueError, match="give 'num_classes'"):
        fitted().remove(whole)
    model = fitted(num_classes=num_classes)
    report = model.remove(whole)
    assert report.empty_classes == tuple(range(1, num_classes))
    assert set(model.predict(graphs).tolist()) == {0}
    with pytest.raises(ValueError, match='no graph'):
        model.remove(RemovalRequest(graphs=range(0, len(graphs), 2)))
    graphs[0].y = torch.tensor([num_classes])
    with pytest.raises(ValueError, match=f'num_classes|{num_classes}'):
        fitted(num_classes=num_classes)


def test_errors_name_the_graph():
    graphs = random_graphs(24)
    odd, loop = graphs[4].clone(), graphs[4].clone()
    odd.edge_weight = torch.ones(odd.num_edges)
    one = torch.tensor([[1], [1]])
    loop.edge_index = torch.cat([loop.edge_index, one], dim=1)
    for bad, said in ((odd, 'one in graph 4'), (loop, 'graph 4.*self-loop')):
        with pytest.raises(ValueError, match=said):
            make([*graphs[:4], bad, *graphs[5:]])
