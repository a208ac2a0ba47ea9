"""Smoothing of links: rows are pairs, and no certified one ever changes."""

import itertools

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from pyg_trust.certificates import BitFlips, certify
from pyg_trust.check import FAILS, HOLDS, check_report
from pyg_trust.report import TrustReport

CELLS = list(itertools.combinations(range(4), 2))
PAIRS = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 3]])
NOISE = (0.1, 0.4)


def graph_of(bits):
    kept = [cell for cell, bit in zip(CELLS, bits, strict=True) if bit]
    edges = torch.tensor(kept, dtype=torch.int64).view(-1, 2).t()
    made = Data(
        x=torch.eye(4), edge_index=torch.cat([edges, edges.flip(0)], 1)
    )
    made.edge_label_index = PAIRS
    return made


class Links(torch.nn.Module):
    """Whether embeddings of two ends point one way."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.encode = GCN(4, 8, 2, 4)

    def forward(self, batch):
        z = self.encode(batch.x, batch.edge_index)
        u, w = batch.edge_label_index
        score = (z[u] * z[w]).sum(1)
        return torch.stack([torch.zeros_like(score), score - 0.05], 1)


@pytest.mark.parametrize('seed', range(6))
def test_no_certified_pair_changes_in_any_graph(seed):
    model = Links(seed).eval()
    every = list(itertools.product([0, 1], repeat=len(CELLS)))
    with torch.no_grad():
        classes = torch.stack([model(graph_of(b)).argmax(1) for b in every])
    bits = torch.tensor(every)
    plus, minus = NOISE

    def smoothed(clean):
        flip = torch.where(clean == 1, minus, plus)
        chance = torch.where(bits != clean, flip, 1 - flip).double().prod(1)
        return (chance[:, None] * (classes == 1)).sum(0) > 0.5

    # A path, the empty graph and all edges.
    tried = 0
    for clean in ((1, 0, 0, 1, 0, 1), (0,) * 6, (1,) * 6):
        report = certify(
            *(model, graph_of(clean), BitFlips(edges=NOISE)),
            **{'forward': model, 'pairs': True, 'seed': 3},
            **{'num_samples': 4000, 'num_selection': 200},
        )
        assert report.task == 'pairs'
        assert report.votes.shape == (4, 3)
        for added, removed in itertools.product(range(3), range(3)):
            sure = report.certified(edges=(added, removed))
            for other in every:
                now = torch.tensor(other)
                came = int(((now == 1) & (torch.tensor(clean) == 0)).sum())
                went = int(((now == 0) & (torch.tensor(clean) == 1)).sum())
                if came <= added and went <= removed:
                    same = smoothed(now).long() == report.predicted
                    assert bool(same[sure].all())
                    tried += int(sure.sum())
    assert tried > 20


def test_a_report_of_pairs_is_checked(tmp_path):
    model = Links(0)
    report = certify(
        *(model, graph_of((1, 0, 0, 1, 0, 1)), BitFlips(edges=NOISE)),
        **{'forward': model, 'pairs': True, 'nodes': torch.tensor([0, 2])},
        **{'num_samples': 500, 'num_selection': 50},
    )
    assert report.targets.tolist() == [0, 2]
    assert '2 pairs' in report.guarantee().promise
    path = tmp_path / 'trust.json'
    TrustReport.of(report).save(path)
    statuses = {each.status for each in check_report(path)}
    assert HOLDS in statuses
    assert FAILS not in statuses


@pytest.mark.parametrize(
    ('changes', 'name'),
    [
        ({'data': [graph_of((1,) * 6)]}, "'pairs'.*one graph"),
        ({'pairs': 1}, "'pairs'"),
        ({'nodes': torch.tensor([4])}, "'nodes'"),
    ],
)
def test_bad_pairs_are_named(changes, name):
    model = Links(0)
    given = {'data': graph_of((1,) * 6), 'pairs': True, 'forward': model}
    given |= {'num_samples': 500, 'num_selection': 50, **changes}
    data = given.pop('data')
    with pytest.raises((TypeError, ValueError), match=name):
        certify(model, data, BitFlips(edges=NOISE), **given)
    for bad in (None, torch.tensor([[0], [9]]), torch.ones(2, 1)):
        data = graph_of((1,) * 6)
        data.edge_label_index = bad
        with pytest.raises((TypeError, ValueError), match='edge_label_index'):
            certify(
                *(model, data, BitFlips(edges=NOISE)),
                **{'forward': model, 'pairs': True, 'num_samples': 500},
            )
    data.edge_label_index = PAIRS[:, :0]
    with pytest.raises(ValueError, match='different pairs, at least one'):
        certify(
            *(model, data, BitFlips(edges=NOISE)),
            **{'forward': model, 'pairs': True, 'num_samples': 500},
        )
    # Rows of nodes are no rows of pairs.
    data = graph_of((1,) * 6)
    data.edge_label_index = PAIRS[:, :3]
    with pytest.raises(ValueError, match='logits of the shape'):
        certify(
            *(model.encode, data, BitFlips(edges=NOISE)),
            forward=lambda batch: model.encode(batch.x, batch.edge_index),
            **{'pairs': True, 'num_samples': 500, 'num_selection': 5},
        )
