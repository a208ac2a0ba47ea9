"""Metapath features against dense matrices, and their marks."""

import pytest
import torch
from torch_geometric.data import HeteroData

from pyg_trust.transforms import MetapathFeatures
from pyg_trust.transforms.metapath_features import metapath_features
from pyg_trust.unit import PrivacyUnit

BUYS, LIKE = ('user', 'buys', 'item'), ('item', 'like', 'item')


def shop(dtype: torch.dtype = torch.float64) -> HeteroData:
    """Thirty users who buy some of twelve items."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data['user'].x = torch.rand(30, 3, generator=generator, dtype=dtype)
    data['item'].x = torch.rand(12, 2, generator=generator, dtype=dtype)
    buys = torch.rand(30, 12, generator=generator) < 0.3
    buys[4] = False
    data[BUYS].edge_index = buys.nonzero().t()
    like = torch.rand(12, 12, generator=generator) < 0.2
    data[LIKE].edge_index = like.nonzero().t()
    return data


def declared(data: HeteroData) -> PrivacyUnit:
    return PrivacyUnit(data, 'user', public=('item',), public_edges=(LIKE,))


def dense(data: HeteroData, edge_type: tuple[str, str, str]) -> torch.Tensor:
    """The matrix that averages, receivers by senders."""
    sizes = data[edge_type[0]].num_nodes, data[edge_type[2]].num_nodes
    matrix = torch.zeros(sizes, dtype=torch.float64)
    matrix.index_put_(
        tuple(data[edge_type].edge_index),
        torch.ones(1, dtype=torch.float64),
        accumulate=True,
    )
    return matrix


def averaged(matrix: torch.Tensor) -> torch.Tensor:
    return matrix / matrix.sum(1, keepdim=True).clamp(min=1)


def test_paths_are_products_of_matrices() -> None:
    data = shop()
    buys, like = dense(data, BUYS), dense(data, LIKE)
    expected = {
        (BUYS,): averaged(buys) @ data['item'].x,
        (BUYS, LIKE): averaged(buys) @ averaged(like) @ data['item'].x,
        (BUYS, BUYS): averaged(buys) @ averaged(buys.t()) @ data['user'].x,
    }
    for path, z in expected.items():
        found = metapath_features(
            data.x_dict, data.edge_index_dict, path, 'user'
        )
        assert torch.allclose(found, z, rtol=0, atol=1e-14)
        assert not found[4].any()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('threads', [1, 2])
def test_a_row_has_the_bits_that_it_has_alone(
    dtype: torch.dtype, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        data = shop(dtype)
        path = [BUYS, LIKE]
        all_rows = metapath_features(
            data.x_dict, data.edge_index_dict, path, 'user'
        )
        for user in range(30):
            index = data[BUYS].edge_index
            own = index[:, index[0] == user].flip(1)
            edges = {**data.edge_index_dict, BUYS: own}
            one = metapath_features(data.x_dict, edges, path, 'user')
            assert torch.equal(one[user], all_rows[user])
    finally:
        torch.set_num_threads(before)


def test_blocks_of_messages_do_not_change_a_bit(monkeypatch) -> None:
    data = shop()
    call = (data.x_dict, data.edge_index_dict, [BUYS, BUYS], 'user')
    whole = metapath_features(*call)
    for few in (1, 7, 30):
        monkeypatch.setattr(
            'pyg_trust.transforms.metapath_features._MESSAGES', few
        )
        assert torch.equal(metapath_features(*call), whole)


def test_own_paths_are_own_of_their_unit() -> None:
    data = shop()
    unit = declared(data)
    out = MetapathFeatures([[BUYS], [BUYS, LIKE]], 'user', unit=unit)(data)
    assert out['user'].x.shape == (30, 3 + 2 + 2)
    assert torch.equal(out['user'].x[:, :3], data['user'].x)
    assert data['user'].x.shape == (30, 3)
    assert 'propagated' not in out['user']
    assert out['user'].own_of == unit.digest
    assert 'own_of' not in data['user']


@pytest.mark.parametrize('case', ['no unit', 'others', 'marked', 'own'])
def test_paths_of_others_are_marked(case: str) -> None:
    data = shop()
    unit = None if case == 'no unit' else declared(data)
    path = [BUYS, BUYS] if case == 'others' else [BUYS]
    if case == 'marked':
        data['item'].propagated = ('x',)
    if case == 'own':
        data['user'].propagated = ('x',)
    out = MetapathFeatures([path], 'user', 'z', unit=unit)(data)
    assert 'z' in out['user'].propagated


@pytest.mark.parametrize('same', [None, [[0], [1]]])
def test_rows_that_share_what_is_their_person_s_are_marked(same) -> None:
    """An order holds the others of its user."""
    data = HeteroData()
    data['user'].x, data['order'].x = torch.rand(3, 2), torch.rand(6, 3)
    by = ('order', 'by', 'user')
    data[by].edge_index = torch.tensor([range(6), [0, 0, 1, 1, 2, 2]])
    unit = PrivacyUnit(
        data,
        'user',
        owned={'order': by},
        same=None if same is None else torch.tensor(same),
    )
    assert unit.is_own([by, by], 'order')
    orders = MetapathFeatures([[by, by]], 'order', unit=unit)(data)
    assert orders['order'].propagated == ('x',)
    users = MetapathFeatures([[by]], 'user', unit=unit)(data)
    assert ('propagated' in users['user']) == (same is not None)


def test_public_rows_are_marked() -> None:
    data = shop()
    unit = declared(data)
    out = MetapathFeatures([[LIKE]], 'item', unit=unit)(data)
    assert out['item'].propagated == ('x',)


def test_without_the_features_as_they_are() -> None:
    transform = MetapathFeatures([[BUYS]], 'user', 'z', concat=False)
    assert transform(shop())['user'].z.shape == (30, 2)
    assert repr(transform).startswith('MetapathFeatures([[(')


@pytest.mark.parametrize(
    ('paths', 'message'),
    [
        ([[LIKE]], 'steps that follow each other'),
        ([[BUYS, ('user', 'knows', 'user')]], 'one of the edge types'),
        ([[]], 'needs to have a step'),
    ],
)
def test_wrong_paths_are_refused(paths, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetapathFeatures(paths, 'user')(shop())


def test_missing_features_are_refused() -> None:
    data = shop()
    del data['item'].x
    data['item'].num_nodes = 12
    with pytest.raises(ValueError, match="features of 'item'"):
        MetapathFeatures([[BUYS]], 'user')(data)
