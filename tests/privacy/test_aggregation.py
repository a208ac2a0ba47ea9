"""A classifier with private edges or nodes: free predictions, one account."""

import copy
import functools
import math

import pytest
import torch
from graphs import homes
from racing import paid_by_two
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from pyg_trust.privacy import PrivateNodeClassifier

RELATIONS = [
    {'adjacency': 'edge'},
    {'adjacency': 'node'},
    {'adjacency': 'node', 'neighboring': 'replace', 'K': 2},
    {'adjacency': 'node_incident', 'max_degree': 4},
    {'adjacency': 'feature'},
]
graph = functools.partial(homes, columns=5)
QUICK = {'epsilon': 8.0, 'delta': 1e-4, 'steps': 5, 'epochs': 5}


@pytest.mark.parametrize('arguments', RELATIONS)
def test_predictions_are_free(arguments):
    data = graph()
    model = PrivateNodeClassifier(**QUICK, **arguments).fit(data)
    lines, first = len(model.account.lines), model.predict()
    assert torch.equal(model.predict(x=data.x), first)
    assert torch.equal(model.predict(data.train_mask), first[data.train_mask])
    right = (first == data.y)[data.train_mask].double().mean()
    assert model.score(data.train_mask, data.y) == float(right)
    assert torch.equal(model.logits().argmax(1), first)
    report = model.report()
    assert report.epsilon == pytest.approx(8.0, rel=1e-9)
    assert report.epsilon <= 8.0 + 1e-9
    assert math.hypot(
        report.mu_encoder, report.mu_aggregation, report.mu_head
    ) == pytest.approx(report.mu)
    private = arguments['adjacency'] != 'edge'
    assert lines == arguments.get('K', 1) + 2 * private
    assert bool(report.mu_head) == private
    assert report.rows == (
        'others' if arguments['adjacency'] == 'node_incident' else 'all'
    )
    report.to_json()
    assert 'Not covered' in report.explain()


@pytest.mark.parametrize('relation', ['edge', 'node', 'feature'])
def test_labels_of_other_nodes_are_never_read(relation):
    data = graph()
    del data.val_mask
    data.y[~data.train_mask] = 10**6  # would be out of range
    model = PrivateNodeClassifier(
        relation, **QUICK, num_classes=3, insecure_seed=0
    )
    torch.manual_seed(0)
    first = model.fit(data).logits()
    data.y[~data.train_mask] = 1
    other = PrivateNodeClassifier(
        relation, **QUICK, num_classes=3, insecure_seed=0
    )
    torch.manual_seed(0)
    assert torch.equal(other.fit(data).logits(), first)
    assert str(model.report()).startswith('not private')


def dense_hop(data):
    A = torch.zeros(60, 60, dtype=torch.float64)
    A[data.edge_index[0], data.edge_index[1]] = 1
    scale = A.sum(1).clamp(min=1).rsqrt()
    return scale[:, None] * A * scale


def test_smoothed_rows_are_functions_of_released_ones_and_edges():
    # Post-processing: nothing else of the data is in them.
    data = graph()
    model = PrivateNodeClassifier('feature', **QUICK).fit(data)
    P, rows = dense_hop(data), model.released[0]
    for smoothed in model.state_dict()['smoothed']:
        rows = P @ rows
        assert torch.allclose(smoothed, rows, atol=1e-12)


@pytest.mark.parametrize('relation', ['node', 'feature'])
def test_a_prediction_reads_no_raw_record_but_its_own(relation):
    # Predictions propagated over edges would show those of neighbours.
    data = graph()
    model = PrivateNodeClassifier(
        relation, **QUICK, insecure_seed=0, neighboring='replace'
    ).fit(data)
    before = model.logits()
    for v in (0, 7, 31):
        x = data.x.clone()
        x[v] = 100 * torch.randn(5)
        moved = (model.logits(x) != before).any(1)
        assert moved.nonzero().view(-1).tolist() == [v]


@pytest.mark.parametrize('relation', ['node', 'feature'])
def test_a_replaced_record_moves_sums_by_what_is_paid(relation, quiet):
    # Given the encoder, that is: it has an account of its own.
    torch.manual_seed(0)
    encoder = nn.Linear(5, 3)

    def sums(data):
        model = PrivateNodeClassifier(
            relation,
            **QUICK,
            neighboring='replace',
            encoder=encoder,
            start_is_public=True,
            num_classes=3,
        ).fit(data)
        # All of its share: mu is the sensitivity over the deviation.
        bound = model.noise_stds[0] * model.report().mu_aggregation
        assert model.report().sensitivity == pytest.approx(bound)
        assert bound == pytest.approx(math.sqrt(3))
        return model.released[0], bound

    data, most = graph(), 0.0
    for v in (
        *data.train_mask.nonzero()[:4],
        *(~data.train_mask).nonzero()[:4],
    ):
        rows = []
        for label, scale in ((0, 0), (0, 30), (1, -30), (2, 1)):
            other = data.clone()
            other.x[v] *= scale
            other.y[v] = label
            made, bound = sums(other)
            rows.append(made.flatten())
        found = torch.cdist(torch.stack(rows), torch.stack(rows))
        assert float(found.max()) <= bound
        most = max(most, float(found.max()))
    assert most == pytest.approx(bound, rel=1e-5)


class Couples(nn.Module):
    """Subtracts the mean over nodes: rows are not by themselves."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(x - x.mean(0))


@pytest.mark.parametrize(
    'part',
    [
        nn.BatchNorm1d(5),
        nn.InstanceNorm1d(5, track_running_stats=True),
        GCNConv(5, 3),
    ],
)
def test_layers_over_nodes_are_refused(part):
    with pytest.raises(ValueError, match='single rows'):
        PrivateNodeClassifier(
            'node',
            encoder=nn.Sequential(part, nn.Linear(5, 3)),
            start_is_public=True,
        )


def test_any_model_on_single_rows_trains():
    torch.manual_seed(0)
    data = graph()
    encoder = nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)
    )
    before = copy.deepcopy(encoder.state_dict())
    for relation in ('edge', 'node'):
        model = PrivateNodeClassifier(
            relation,
            **QUICK,
            encoder=encoder,
            start_is_public=True,
            head=nn.Linear(6, 3),
        ).fit(data)
        assert model.predict().shape == (60,)
        assert all(
            torch.equal(a, before[k]) for k, a in encoder.state_dict().items()
        )
    # A model that couples rows sees one at a time: others change nothing.
    model = PrivateNodeClassifier(
        'node', **QUICK, encoder=Couples(), start_is_public=True
    ).fit(data)
    x = data.x.clone()
    x[1:] = 7.0
    assert torch.equal(model.logits(x=x)[0], model.logits()[0])
    with pytest.raises(ValueError, match='3 logits'):
        PrivateNodeClassifier(
            'node', **QUICK, encoder=nn.Linear(5, 4), start_is_public=True
        ).fit(data)


def test_blank_rows_one_class_and_no_edges_are_fine():
    data = graph()
    data.x[:5] = math.nan
    data.x[5:9] = 0
    data.edge_index = data.edge_index[:, :0]
    data.y = torch.zeros(60, dtype=torch.int64)
    for arguments in RELATIONS:
        model = PrivateNodeClassifier(**QUICK, **arguments).fit(data)
        assert bool(model.logits().isfinite().all())


def test_the_length_of_a_row_says_nothing():
    # The own model of nodes reads directions alone, to the bit.
    data = graph()
    other = data.clone()
    other.x = data.x * 2.0 ** (torch.arange(60) % 9 - 4)[:, None]
    one, two = (
        PrivateNodeClassifier('node', **QUICK, insecure_seed=3)
        .fit(each)
        .logits()
        for each in (data, other)
    )
    assert torch.equal(one, two)


def test_facebook(shared):
    """The figures of the documentation, less their spread."""
    import numpy as np
    from torch_geometric.utils import remove_self_loops, to_undirected

    found = np.load(shared / 'data/MUSAE/facebook.npz')
    y = torch.from_numpy(found['y'].astype(np.int64))
    n, edges = len(y), torch.from_numpy(found['edges'].astype(np.int64))
    edges = edges if edges.size(0) == 2 else edges.t()
    row = np.repeat(np.arange(n), np.diff(found['x_indptr']))
    at = np.stack([row, found['x_indices']]).astype(np.int64)
    x = torch.sparse_coo_tensor(
        torch.from_numpy(at),
        torch.ones(at.shape[1]),
        (n, int(found['num_features'])),
        check_invariants=True,
    )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    train = torch.zeros(n, dtype=torch.bool)
    train[order[: int(0.75 * n)]] = True
    test = order[int(0.85 * n) :]
    data = Data(
        x=x.coalesce(),
        y=y,
        train_mask=train,
        edge_index=to_undirected(remove_self_loops(edges)[0], num_nodes=n),
    )
    for relation, form, epsilon, least in (
        ('node', 'add_remove', 4.0, 0.875),
        ('node', 'add_remove', 8.0, 0.900),
        ('node', 'add_remove', 16.0, 0.920),
        ('feature', 'replace', 8.0, 0.920),
    ):
        model = PrivateNodeClassifier(
            relation, epsilon, 1e-5, neighboring=form
        )
        right = model.fit(data).predict(test) == y[test]
        # One split has a deviation of half a point.
        assert float(right.float().mean()) > least - 0.01


def test_two_threads_have_one_account(monkeypatch):
    model = PrivateNodeClassifier('node', **QUICK)

    def fit(seed):
        model.fit(graph(seed=seed))

    assert paid_by_two(monkeypatch, fit) == 1
    assert model.report().epsilon <= 8.0 + 1e-9


@pytest.mark.parametrize('relation', ['node', 'node_incident', 'feature'])
def test_the_number_of_classes_is_told_and_the_report_says_so(relation):
    # One label of a node that does not even train shows in every row.
    data, other = graph(), graph()
    degree = {'max_degree': 4} if relation == 'node_incident' else {}
    other.y[(~other.train_mask).nonzero()[0]] = 3
    found = [
        PrivateNodeClassifier(relation, **degree, **QUICK, **given).fit(one)
        for given in ({}, {'num_classes': 4})
        for one in (data, other)
    ]
    assert [model.logits().size(1) for model in found] == [3, 4, 4, 4]
    said = found[0].report().guarantee().not_covered
    assert any('number of classes' in line for line in said)
