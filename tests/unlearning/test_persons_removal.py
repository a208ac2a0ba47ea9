"""Persons of several rows who are forgotten: equal to never having been."""

import pytest
import shops
import torch
from shops import BY, CLICK, HAS, declared
from torch_geometric.data import HeteroData

from pyg_trust.privacy import PrivateNodeClassifier
from pyg_trust.removal import RemovalRequest
from pyg_trust.transforms import MetapathFeatures
from pyg_trust.unlearning import NodeClassifier, ShardedUnlearner

N = 40


def shop() -> HeteroData:
    data = shops.shop(n=N)
    data['user'].train_mask = torch.arange(N) % 3 > 0
    del data[CLICK]
    return data


def table(data: HeteroData):
    unit = declared(data)
    paths = [[BY], [BY, HAS]]
    return unit, unit.table(MetapathFeatures(paths, 'user', unit=unit)(data))


@pytest.mark.parametrize('persons', [[4], [0, 7, 38]])
def test_shards_equal_a_twin_that_never_knew_them(persons) -> None:
    def fresh() -> ShardedUnlearner:
        return ShardedUnlearner(
            lambda: Row(9),
            4,
            aggregator='mean',
            num_classes=3,
            epochs=5,
            seed=1,
        )

    data = shop()
    unit, rows = table(data)
    model = fresh().fit(rows)
    before = model.predict()
    model.remove(RemovalRequest(persons=persons, unit=unit))
    # Chats go with any of their members: the twin has no row of them.
    _, others = table(unit.without(data, persons))
    assert not set(others.n_id.tolist()) & set(persons)
    twin = fresh().fit(others)
    assert torch.equal(model.outputs, twin.outputs)
    assert model.verify().ok
    assert len(before) == N


def test_names_outlast_a_removal() -> None:
    data = shop()
    unit, _ = table(data)
    left, rows = table(unit.without(data, [0, 7]))
    assert rows.n_id.tolist() == [i for i in range(N) if i not in (0, 7)]
    # Persons are rows of the unit; requests have the names of the model.
    assert RemovalRequest(persons=[0, 6], unit=left) == RemovalRequest(
        nodes=[1, 8]
    )


class Row(torch.nn.Module):
    """A model of rows alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 3)

    def forward(self, x, edge_index):
        return self.layer(x)


def test_a_classifier_of_persons_forgets_rows_alone() -> None:
    data = shop()
    unit, rows = table(data)
    model = NodeClassifier('sgc', K=0, seed=0).fit(rows)
    report = model.remove(RemovalRequest(persons=[4, 9], unit=unit))
    assert report.request['nodes'] == [4, 9]
    assert model.verify().ok


def test_persons_of_other_names_are_found_by_n_id_or_refused() -> None:
    data = shop()
    data['user'].n_id = torch.arange(N) + 5
    unit, rows = table(data)
    asked = RemovalRequest(persons=[4], unit=unit)
    assert asked == RemovalRequest(nodes=[9])
    named = NodeClassifier('sgc', K=0, seed=0).fit(rows)
    before = named.predict()
    assert named.remove(asked).request['nodes'] == [9]
    assert named.n_id.tolist() == [i + 5 for i in range(N) if i != 4]
    after = named.predict()
    assert (after < 0).nonzero().view(-1).tolist() == [4]
    assert len(after) == len(before)
    private = PrivateNodeClassifier('node', 1.0, 1e-3, steps=1, num_classes=3)
    private.fit(rows)
    # It names nodes by position.
    with pytest.raises(ValueError, match=r"'persons' need 'data\.n_id'"):
        private.plan(asked, rows)


def test_a_request_of_persons_is_of_their_rows() -> None:
    data = shop()
    unit, _ = table(data)
    made = RemovalRequest(persons=torch.tensor([9, 4]), unit=unit, nodes=[1])
    assert made == RemovalRequest(nodes=[1, 4, 9])
    with pytest.raises(ValueError, match="'persons' and 'unit' need"):
        RemovalRequest(persons=[3])
    with pytest.raises(ValueError, match="'persons' and 'unit' need"):
        RemovalRequest(nodes=[3], unit=unit)
    with pytest.raises(ValueError, match='persons'):
        RemovalRequest(persons=[N], unit=unit)
    with pytest.raises(TypeError, match='unit'):
        RemovalRequest(persons=[3], unit='user')
    twice = declared(data, same=torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match='one row each'):
        RemovalRequest(persons=[3], unit=twice)
