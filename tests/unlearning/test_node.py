"""Certified unlearning of node classifiers: what it promises, attacked."""

import gc
import math
import pickle

import numpy as np
import pytest
import torch
from graphs import blocks
from living import world_of
from states import level_of, same
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from pyg_trust import noise
from pyg_trust.agp.measures import Measure
from pyg_trust.agp.propagation import propagate
from pyg_trust.check import FAILS, check_report
from pyg_trust.files.seals import Seals
from pyg_trust.graph import CSRGraph
from pyg_trust.ledger import (
    BudgetExceededError,
    RemovalLedger,
)
from pyg_trust.privacy.mechanisms import gaussian_profile
from pyg_trust.removal import NotThere, RemovalRequest
from pyg_trust.report import TrustReport
from pyg_trust.unlearning import (
    NodeClassifier,
    Recommender,
    certified,
    node_releases,
    sums,
)
from pyg_trust.unlearning import heads as H
from pyg_trust.unlearning.node_rows import NodeState
from pyg_trust.unlearning.shifts import shift_epsilon
from pyg_trust.unlearning.sums import Sums
from pyg_trust.update import NewNodes, Update


def make(data=None, measure='sgc', **kwargs):
    kwargs = {'weight_decay': 0.02, 'seed': 0, **kwargs}
    return NodeClassifier(measure, **kwargs).fit(data or blocks())


def seen(model):
    """All of a classifier that can be told apart, to the bit."""
    state = model.state_dict()
    data = model._model.data
    held = {str(k): level_of(data.levels, k) for k in range(1)}
    held |= {'Z': data.Z, 'names': data.names, 'place': data.place}
    held |= {'gradient': model._model.gradient.value}
    held |= {'factor': model._model.factor.lower, 'Y': data.Y}
    return {**state, **held}


# Soundness ###################################################################


@pytest.mark.parametrize('classes', [2, 4])
def test_two_classes_and_more(classes):
    data = blocks(classes=classes)
    model = make(data)
    report = model.remove(RemovalRequest(nodes=[4], edges=[(5, 3)][:0]))
    assert model.verify().ok
    assert model.weight.shape == (6, 1 if classes == 2 else classes)
    test = data.test_mask.clone()
    test[4] = False
    assert model.score(test, data.y) > 0.55
    proba = model.predict_proba(test)
    torch.testing.assert_close(proba.sum(1), torch.ones(len(proba)).double())
    labels = torch.tensor(model.classes)[proba.argmax(1)]
    assert torch.equal(labels, model.predict(test))
    assert report.num_train == model.num_train


def test_a_sequence_is_that_of_dense_algebra(shared):
    held = np.load(shared / 'oracles/node_unlearning/sequence.npz')
    oracle = {
        name: torch.from_numpy(held[name].copy())
        for name in held.files
        if held[name].dtype.kind in 'fiub'
    }
    data = Data(
        x=oracle['x'], edge_index=oracle['edge_index'], y=oracle['y'].long()
    )
    lam = float(oracle['lam'])
    model = NodeClassifier(weight_decay=lam, tol=1e-11, seed=0)
    train = oracle['train'].bool()
    model.fit(data, train)
    for k, (kind, u, v) in enumerate(oracle['requests'].tolist()):
        name = ('nodes', 'edges', 'features', 'labels')[kind]
        named = {name: [(u, v) if kind == 1 else u]}
        report = model.remove(RemovalRequest(**named))
        train[u] &= kind in (1, 2)
        ids, Z = model.nodes, oracle['Z_after'][k]
        held = model._model.data.levels.rows(ids)
        torch.testing.assert_close(held, Z[ids], rtol=0, atol=1e-11)
        Y = H.targets(data.y[train], len(model.classes))
        exact = H.Objective(Z[train], Y, lam * int(train.sum()))
        W = H.refine(exact, torch.zeros_like(model.weight), 1e-11, 50).W
        gap = float((model._model.W - W).norm())
        assert gap <= report.distance_bound + 1e-9
        assert report.num_train == int(oracle['num_train'][k])


@pytest.mark.parametrize(
    'kwargs', [{}, {'alpha': 0.2, 'features': 'push', 'theta': 1e-2}], ids=str
)
def test_every_feature_may_go(kwargs):
    # Series of nothing: no scale to solve them to.
    data = blocks()
    model = make(data, measure='appnp' if kwargs else 'sgc', **kwargs)
    for nodes in (range(50), range(50, 90)):
        model.remove(RemovalRequest(features=list(nodes)))
        assert model.verify().ok
    last = int(data.train_mask.nonzero()[0])
    distance = model.remove(RemovalRequest(labels=[last])).distance_bound
    # Of features that are zero the minimiser is zero.
    assert float(model._model.W.norm()) <= distance


def test_margins_of_a_pushed_model_are_of_the_limit():
    data, eye = blocks(), torch.eye(90).double()
    model = make(data, 'appnp', alpha=0.2, features='push', theta=1e-2)
    edges, weight = gcn_norm(data.edge_index, None, 90, dtype=eye.dtype)
    step = eye * 0
    step[edges[1], edges[0]] = weight
    limit = 0.2 * torch.linalg.inv(eye - 0.8 * step) @ data.x.double()
    assert torch.allclose(
        model.decision_function(), limit @ model.weight, rtol=0, atol=1e-9
    )


def test_a_measure_of_given_weights_is_taken():
    model = make(blocks(), Measure(0.5, 0.5, (0.5, 0.25, 0.25)))
    model.remove(RemovalRequest(nodes=[7]))
    assert model.verify().ok


# Planted faults ##############################################################


def takes_no_step(monkeypatch):
    # A solver that says it is done.
    gradient = H.Objective.gradient

    def done(problem, W, tol, max_iter, **kwargs):
        return H.Refined(W, gradient(problem, W), problem.factor(W), 1)

    monkeypatch.setattr(node_releases, 'refine', done)


def test_a_solver_that_does_nothing_is_not_believed(monkeypatch):
    model = make()
    takes_no_step(monkeypatch)
    ledger = model.ledger.entries
    with pytest.raises(BudgetExceededError):
        model.remove(RemovalRequest(nodes=[3]))
    monkeypatch.undo()
    assert model.ledger.entries == ledger
    assert model.verify().ok


# Noise and account ###########################################################


def test_releases_are_as_hard_to_tell_apart_as_promised(monkeypatch):
    # The weights are held as far from exact retraining as the budget allows.
    monkeypatch.setattr(node_releases, 'PART', 1.0)
    data, epsilon, delta = blocks(d=3), 0.5, 0.05
    request = RemovalRequest(labels=[int(data.train_mask.nonzero()[1])])
    # Regularised so much that the bound is near the distance.
    kwargs = {'epsilon': epsilon, 'delta': delta, 'weight_decay': 2.0}
    # As much noise as holding needs.
    far = make(data, release_std=100.0, **kwargs).remove(request)
    assert far.action == 'hold'
    distance = far.residual / (kwargs['weight_decay'] * far.num_train)
    std = distance / certified.gaussian_budget(epsilon, delta)
    model = make(data, release_std=1.0001 * std, **kwargs)
    assert model.remove(request).action == 'hold'
    held = model._model
    fresh = held.data.fitted()
    zero = torch.zeros_like(held.W)
    exact = H.refine(fresh.problem(1e-11), zero, 1e-11, 50).W
    shift = held.W - exact
    assert float(shift.norm()) <= far.distance_bound
    size = 100_000

    def advantage(std):
        # Of the best test, whose statistic is the projection on the shift.
        model.release_std = std
        axis = shift / shift.norm()
        mine, theirs = (
            certified.noised(
                W.expand(size, *W.shape), noise.source(number), std
            )
            .mul_(axis)
            .sum((1, 2))
            for number, W in enumerate((held.W, exact))
        )
        # The likelihood ratio is monotone in the statistic: any threshold.
        at = torch.cat([mine, theirs]).sort().values[::500]
        p = (mine.unsqueeze(1) > at).double().mean(0)
        q = (theirs.unsqueeze(1) > at).double().mean(0)
        return float((p - math.exp(epsilon) * q).max())

    m = float(shift.norm()) / model.release_std
    wanted = gaussian_profile(epsilon, noise_multiplier=2 / m)
    # Four standard deviations of the two frequencies.
    error = 4 * (1 + math.exp(epsilon)) * 0.5 / math.sqrt(size)
    assert wanted <= delta
    fair = advantage(1.0001 * std)
    assert abs(fair - wanted) <= error
    assert fair <= delta + error
    # Half the noise is caught.
    assert advantage(0.5 * std) > delta + error


def test_a_transcript_composes_and_says_more_than_a_release():
    model = make()
    spent = [model.ledger.entries[0].spent]
    world = world_of(blocks(), 0)
    for _ in range(12):
        report = model.remove(world.remove())
        spent.append(model.ledger.entries[-1].spent)
        m = report.distance_bound / model.release_std
        # What is recorded is not below what was measured, and says little.
        assert m <= spent[-1] <= model.budget
        assert spent[-1] in (
            0.01 * model.budget,
            2.0 ** round(math.log2(spent[-1])),
        )
        assert report.epsilon == shift_epsilon(spent[-1], 1e-4)
        whole = math.sqrt(sum(s * s for s in spent))
        assert report.epsilon_transcript == pytest.approx(
            shift_epsilon(whole, 1e-4)
        )
        assert report.epsilon <= report.epsilon_transcript <= 1


# Failing #####################################################################

STAGES = [
    (Sums, 'play'),
    (Sums, '_edit'),
    (Sums, 'touched'),
    (Sums, 'rows'),
    (sums, '_LIVE_NET'),
    (sums, '_LIVE_EDIT'),
    (NodeState, 'play'),
    (NodeState, 'follow'),
    (NodeState, '_write'),
    (NodeState, '_drop'),
    (NodeState, '_follow'),
    (NodeState, 'blocks'),
    (node_releases, 'refine'),
    (H.Objective, 'gradient'),
    (Seals, 'replaced'),
    (RemovalLedger, 'record'),
    (NodeClassifier, '_release'),
    (NodeClassifier, '_epsilon'),
    (node_releases, 'provenance'),
]


@pytest.mark.parametrize('late', [False, True], ids=['before', 'after'])
@pytest.mark.parametrize('stage', STAGES, ids=lambda stage: stage[1])
@pytest.mark.parametrize('error', [KeyboardInterrupt, MemoryError])
def test_a_failure_at_any_stage_changes_nothing(
    stage, late, error, monkeypatch
):
    data = blocks()
    model, other = make(data), make(data)
    hub = int(model.graph.degree.argmax())
    request = RemovalRequest(
        nodes=[hub, int(data.train_mask.nonzero()[0])], features=[6]
    )
    if stage[1] == '_follow':
        # Where few rows change, the gradient follows by these alone.
        label = int(data.train_mask.nonzero()[0])
        request = RemovalRequest(labels=[label])
    first = RemovalRequest(nodes=[11])
    model.remove(first)
    other.remove(first)
    before = seen(model)
    owner, name = stage
    honest = getattr(owner, name)

    def fails(*args, **kwargs):
        if late:
            honest(*args, **kwargs)
        raise error

    monkeypatch.setattr(owner, name, fails)
    with pytest.raises(error):
        model.remove(request)
    monkeypatch.undo()
    assert same(seen(model), before)
    assert not model._model.data.undo
    assert model.verify().ok
    # And then it does what it would have done.
    model.remove(request)
    other.remove(request)
    assert torch.equal(model._model.W, other._model.W)
    assert torch.equal(model.weight, other.weight)


def test_an_interrupted_way_back_is_gone_on_with(monkeypatch):
    model = make()
    before, data = seen(model), model._model.data

    def fails(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(node_releases, 'refine', fails)
    monkeypatch.setattr(data, 'back', fails)
    with pytest.raises(KeyboardInterrupt):
        model.remove(RemovalRequest(nodes=[3]))
    monkeypatch.undo()
    assert data.undo
    assert same(seen(model), before)
    assert not data.undo


REFUSED = [
    ({'nodes': [7]}, 'node 7 is not there'),
    ({'features': [7]}, 'node 7 is not there'),
    ({'features': [8]}, 'feature row of node 8 is not there'),
    ({'edges': [(0, 90)]}, 'edge 0 -> 90 is not there'),
    ({'edges': [(88, 89)]}, 'edge 88 -> 89 is not there'),
    ({'edges': [(4, 4)]}, 'edge 4 -> 4 is not there'),
    ({'labels': [88]}, 'training label of node 88 is not there'),
    ({'labels': 'again'}, 'training label of node [0-9]+ is not there'),
]


@pytest.mark.parametrize(('named', 'message'), REFUSED, ids=str)
def test_what_is_not_there_is_refused_and_nothing_changes(named, message):
    data = blocks()
    data.train_mask[88] = False
    train = data.train_mask.nonzero().view(-1)
    label = int(train[train != 7][0])
    model = make(data)
    model.remove(RemovalRequest(nodes=[7], features=[8], labels=[label]))
    named = {k: [label] if v == 'again' else v for k, v in named.items()}
    before = seen(model)
    for call in (model.plan, model.remove):
        with pytest.raises(ValueError, match=message):
            call(RemovalRequest(**named))
        assert same(seen(model), before)
    # What was removed has a row, and no class; what never was, has none.
    found = model.predict([3, 7])
    assert found[0] >= 0
    assert found[1] == -1
    assert model.predict_proba([7]).isnan().all()
    y = torch.where(torch.arange(90) == 7, 0, model.predict())
    assert model.score(torch.arange(90), y) == 1
    with pytest.raises(ValueError, match='a node that is there'):
        model.score([7], y)
    with pytest.raises(NotThere, match='node 90 is not there') as refused:
        model.predict([3, 90])
    assert refused.value.missing == RemovalRequest(nodes=[90])


def test_nodes_have_the_ids_of_the_data(tmp_path):
    # The same graph with other ids: the same request, in these ids.
    data, ids = blocks(), torch.randperm(500)[:90]
    renamed = data.clone()
    renamed.n_id = ids
    one, two = make(data, seed=1), make(renamed, seed=1)
    both = (one, range(90)), (two, ids.tolist())
    for model, n_id in both:
        file = tmp_path / f'{n_id[0]}.pt'
        n_id = [*n_id, 1 + max(n_id)]
        edge = data.edge_index[:, data.edge_index[0] > 20][:, 0].tolist()
        first = {'nodes': [n_id[3]], 'edges': [[n_id[v] for v in edge]]}
        report = model.remove(**first, features=[n_id[8]])
        assert report.request['nodes'] == [n_id[3]]
        assert report.request['features'] == [n_id[8]]
        with pytest.raises(NotThere) as refused:
            model.plan(nodes=[n_id[3], n_id[8], 600])
        missing = RemovalRequest(nodes=[n_id[3], 600])
        assert refused.value.missing == missing
        new = NewNodes(torch.ones(1, data.x.size(1)), torch.tensor([0]))
        edges = torch.tensor([[n_id[90]], [n_id[5]]])
        model.update(Update(nodes=new, edges=edges), release=True)
        report = model.remove(
            nodes=[n_id[90], n_id[4], n_id[3]], missing='skip'
        )
        assert report.request['nodes'] == sorted([n_id[90], n_id[4]])
        assert report.skipped == {'0': {'nodes': [n_id[3]]}}
        with pytest.raises(NotThere):
            model.remove([n_id[3]], missing='skip')
        model.save(file)
        again = NodeClassifier(seed=1, weight_decay=0.02)
        again.load(file)
        assert again.n_id.tolist() == model.n_id.tolist()
        assert model.n_id.tolist() == [n_id[v] for v in model.nodes.tolist()]
        assert len(again.predict()) == 91
        assert again.verify().proved
        assert again.verify().ok
        margin = again.decision_function(n_id[10:12])
        assert torch.equal(margin, again.decision_function()[10:12])
        path, proof = tmp_path / 'trust.json', tmp_path / 'proof.npz'
        model.save_for_check(proof)
        TrustReport.of(report.verified(model.verify())).save(path)
        found = check_report(path, data=proof)
        wrong = [each.text for each in found if each.status == FAILS]
        assert not [text for text in wrong if 'from a seed' not in text]
        assert not [f.text for f in found if ' not as ' in f.text]
    assert torch.equal(one.weight, two.weight)
    state = two.state_dict()
    state['data']['n_id'] = state['data']['n_id'].flip(0)
    with pytest.raises(ValueError, match='do not match its ledger'):
        NodeClassifier(seed=1, weight_decay=0.02).load_state_dict(state)
    for wrong, said in ((ids.float(), 'int64'), (ids * 0, 'each id once')):
        renamed.n_id = wrong
        with pytest.raises((TypeError, ValueError), match=said):
            make(renamed)


def test_data_that_can_not_be_promised_anything_are_refused():
    def refused(message, error=ValueError, **changes):
        data = blocks()
        for name, value in changes.items():
            data[name] = value
        data.num_nodes = 90
        with pytest.raises(error, match=message):
            NodeClassifier().fit(data)

    good = blocks()
    n, m = 90, good.edge_index.size(1)
    refused('unweighted', edge_weight=torch.rand(m))
    refused('more than once', edge_index=good.edge_index.repeat(1, 2))
    refused('undirected', edge_index=good.edge_index[:, :-1])
    refused("features 'x'", x=None)
    refused('finite', x=good.x / 0)
    refused('floating point', TypeError, x=good.x.long())
    refused("labels 'y'", y=None)
    refused('int64', TypeError, y=good.y.float())
    refused('non-negative', y=good.y - 1)
    refused('two classes', y=good.y * 0)
    refused('shape', train_mask=torch.ones(n - 1).bool())
    refused('need to be disjoint', test_mask=torch.ones(n).bool())
    refused('have a node', train_mask=torch.zeros(n).bool())
    refused("'train_mask'", train_mask=None)
    with pytest.raises(ValueError, match='each node once'):
        NodeClassifier().fit(good, torch.tensor([0, 1, 2, 2]))


def test_encoders_are_public_frozen_and_work_row_by_row():
    data = blocks()

    def fitted(encoder):
        return NodeClassifier(
            encoder=encoder, start_is_public=True, weight_decay=0.02, seed=0
        ).fit(data)

    linear = torch.nn.Linear(6, 4).double().eval()
    model = fitted(linear)
    report = model.remove(RemovalRequest(features=[3]))
    assert 'the encoder never saw the data' in str(report.assumptions)
    assert model.verify().ok
    # f(x) := 0, not f(0).
    assert not model._model.data.levels.x[3].any()
    with pytest.raises(ValueError, match='evaluation mode'):
        fitted(torch.nn.Linear(6, 4).double())
    with pytest.raises(ValueError, match='every row by itself'):
        fitted(lambda x: x - x.mean(0))
    with pytest.raises(ValueError, match='finite'):
        fitted(lambda x: x / 0)


@pytest.mark.parametrize(('seed', 'd', 'scale'), [(4, 9, 1e4), (5, 9, 1e5)])
def test_steps_that_end_on_a_plateau_are_not_the_end(seed, d, scale):
    # Features so large that every slope is 0 or 1: an edge moves the weights
    # to where Newton's steps lead nowhere, though the minimum is near zero.
    data = blocks(n=22, seed=seed, d=d)
    random = torch.Generator().manual_seed(seed)
    data.x[torch.rand(data.x.shape, generator=random) < 0.3] = 0
    data.x *= scale
    bound = {'bound': 2.0**20}
    model = make(data, 'transition', K=2, weight_decay=0.05, **bound)
    for u, v in data.edge_index.t().tolist()[:8]:
        report = model.remove(RemovalRequest(edges=[(u, v)]))
        assert report.bound <= report.budget
        assert model.verify().ok


def test_the_ledger_says_of_a_residual_its_size_alone():
    # Noise so small that rounding is a part of the budget, which steps can
    # not get below: the account has a power of two, not 16 digits of data.
    between = 0
    data = blocks()
    data.x *= 1e3
    for exponent in range(4, 25):
        try:
            model = make(data, release_std=2.0**-exponent, bound=1e4)
            model.remove(RemovalRequest(nodes=[3]))
        except BudgetExceededError:
            break
        for entry in model.ledger.entries:
            least, most = 0.01 * model.budget, model.budget
            # 0 where rounding is more than all of it: it was retrained.
            if entry.spent not in (0.0, least, most):
                assert math.frexp(entry.spent)[0] == 0.5
                assert least < entry.spent < most
                between += 1
    assert between >= 2


# Leftovers and state #########################################################


def tensors(root):
    """All tensors that can be reached, by whatever way."""
    found, queue, known = [], [root], set()
    while queue:
        thing = queue.pop()
        if id(thing) in known or isinstance(thing, type):
            continue
        known.add(id(thing))
        if isinstance(thing, torch.Tensor):
            found.append(thing)
        elif getattr(thing, '__name__', None) is None or callable(thing):
            if hasattr(thing, '__globals__'):
                queue.extend(c.cell_contents for c in thing.__closure__ or ())
            else:
                queue.extend(gc.get_referents(thing))
    return found


def test_no_tensor_and_no_file_holds_what_was_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(node_releases, 'COLUMNS_A_STEP', 0)
    data = blocks()
    target = int(data.train_mask.nonzero()[2])
    mark = 12345.678901234
    data.x[target, 2] = mark
    data.x[8, 3] = -mark
    model = make(data, weight_decay=1.0, bound=2.0**14)
    path = tmp_path / 'model.pt'
    model.save(path)
    pattern = np.float64(mark).tobytes()
    assert pattern in path.read_bytes()

    def marked():
        return [
            tensor
            for tensor in tensors(model)
            if tensor.is_floating_point()
            and bool((tensor.abs() == mark).any())
        ]

    assert marked()
    model.remove(RemovalRequest(nodes=[target], features=[8]))
    assert not marked()
    assert model.verify().leftovers == ()
    model.save(path)
    content = path.read_bytes()
    assert pattern not in content
    assert np.float64(-mark).tobytes() not in content
    # The frozen factor was made of removed rows, until it is refreshed.
    model.remove(RemovalRequest(labels=[int(data.train_mask.nonzero()[5])]))
    assert model.verify().frozen_factor
    frozen = model._model.factor.lower.clone()
    model.flush()
    assert not model.verify().frozen_factor
    fresh = model._model.data.fitted()
    wanted = fresh.problem(1.0).factor(model._model.W).lower
    torch.testing.assert_close(model._model.factor.lower, wanted)
    assert not torch.allclose(frozen, wanted)
    rows = model._model.data
    assert rows.Z.size(0) == rows.names.numel() == model.num_train
    # No file holds a factor at all.
    shapes = {
        tuple(v.shape)
        for v in model.state_dict().values()
        if isinstance(v, torch.Tensor)
    }
    assert tuple(wanted.shape) not in shapes


def test_features_beyond_their_bound_are_refused():
    data, model = blocks(), make()
    data.x[7, 2] = 16.5
    before = seen(model)
    for other in (model, NodeClassifier(weight_decay=0.02)):
        with pytest.raises(ValueError, match="'bound'=16"):
            other.fit(data)
    assert same(seen(model), before)
    assert make(data, bound=17).remove(RemovalRequest(nodes=[7]))
    # Of infinite series there are no sums.
    series = {'alpha': 0.2, 'features': 'push', 'theta': 1e-2}
    make(data, 'appnp', **series)


def test_states_of_before_there_were_sums_are_read():
    data = blocks()
    data.x[7, 2] = 20.0
    model = make(data, bound=32.0)
    state = model.state_dict()
    assert state['config'].pop('feature_bound') == 32.0
    # Lines of version 0.1 stand for the data alone.
    lines = RemovalLedger(model.budget)
    lines.record('fit', model.ledger.spent, data=model._model.seals.root)
    state['ledger'] = lines.state_dict()
    other = NodeClassifier(weight_decay=0.02, seed=0, bound=64.0)
    other.load_state_dict(state)
    assert other.verify().ok
    assert torch.equal(other.weight, model.weight)
    # Features that are out of range say what to do.
    with pytest.raises(ValueError, match='declare a larger bound'):
        NodeClassifier(weight_decay=0.02, seed=0).load_state_dict(state)
    with pytest.raises(ValueError, match="'feature_bound' = 64"):
        other.load_state_dict(model.state_dict())


def test_the_size_of_the_rows_is_followed_from_above_and_back():
    data = blocks()
    data.x[data.train_mask.nonzero()[:3, 0]] *= 1e4
    model = make(data, bound=1e5)
    state = model._model.data
    world = world_of(data, 0)
    for _ in range(24):
        before, request = state.square, world.remove()
        model.plan(request)
        assert state.square == before
        model.remove(request)
        exact = float(state.Z.double().square().sum())
        square = state.problem(1.0).size ** 2
        assert exact * (1 - 1e-12) <= square <= exact * (1 + 1e-6) + 1e-6
    large = data.train_mask.nonzero()[:3, 0]
    there = model.nodes[torch.isin(model.nodes, large)]
    if there.numel():
        model.remove(RemovalRequest(nodes=there))
    exact = float(state.Z.square().sum())
    assert exact * (1 - 1e-12) <= state.problem(1.0).size ** 2


def test_another_encoder_of_the_class_is_refused(tmp_path):
    def classifier(seed):
        torch.manual_seed(seed)
        encoder = torch.nn.Linear(6, 4).double().eval()
        return NodeClassifier(encoder=encoder, start_is_public=True)

    classifier(0).fit(blocks()).save(tmp_path / 'a.pt')
    classifier(0).load(tmp_path / 'a.pt')
    with pytest.raises(ValueError, match="'encoder'"):
        classifier(1).load(tmp_path / 'a.pt')
    with pytest.warns(DeprecationWarning, match="'start_is_public' now"):
        NodeClassifier(encoder=torch.nn.Identity(), encoder_is_public=True)


def test_labels_and_masks_come_as_in_data_sets():
    data, plain = blocks(), make()
    data.y, data.train_mask = data.y.view(-1, 1), data.train_mask.view(-1, 1)
    assert torch.equal(make(data).weight, plain.weight)
    train = blocks().train_mask.nonzero().view(-1).tolist()
    listed = NodeClassifier('sgc', weight_decay=0.02, seed=0).fit(
        blocks(), train
    )
    assert torch.equal(listed.weight, plain.weight)
    data.train_mask = data.train_mask.repeat(1, 3)
    with pytest.raises(ValueError, match=r'3 splits.*train_mask\[:, 0\]'):
        make(data)
    made = NodeClassifier('sgc', weight_decay=0.02, seed=0)
    made.fit(data, data.train_mask[:, 0])
    assert torch.equal(made.weight, plain.weight)


def test_models_have_the_surface_of_scikit_learn(tmp_path):
    for model in (
        make(),
        Recommender().fit(torch.tensor([[0, 1], [1, 0]]), 2, 2),
    ):
        model.save(tmp_path / type(model).__name__)
        for copied in (model, pickle.loads(pickle.dumps(model))):
            params = copied.get_params()
            fresh = type(model)(**params)
            assert fresh.get_params() == params
            assert fresh.load(tmp_path / type(model).__name__) is fresh
            assert fresh.verify().ok
    assert make().classes_.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match='unexpected keyword'):
        NodeClassifier(level=2)


@pytest.mark.parametrize('features', ['exact', 'push'])
def test_another_graph_is_predicted_as_by_a_fit(features):
    given = {'features': features, 'alpha': 0.2}
    given |= {'theta': 1e-4} if features == 'push' else {'K': 3}
    model = make(measure='appnp', **given)
    same_one = model.predict()
    model.remove(nodes=[3])
    assert torch.equal(make(measure='appnp', **given).predict(), same_one)
    other = blocks(n=60)
    margin = model._margins_on(other)
    if features == 'exact':
        Z = propagate(CSRGraph.from_data(other), other.x, model.measure)
        torch.testing.assert_close(margin, Z @ model.weight)
    labels = model.classes_[margin.argmax(1)]
    assert torch.equal(model.predict_on(other), labels)
    other.edge_weight = torch.rand(other.num_edges)
    with pytest.raises(ValueError, match='unweighted'):
        model.predict_on(other)
    with pytest.raises(ValueError, match=r"'data\.x'"):
        model.predict_on(Data(x=other.x[:, :2], edge_index=other.edge_index))
