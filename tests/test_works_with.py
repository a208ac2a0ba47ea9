"""What of PyG works with what of ours: a cell of the table, a test.

A test is named ``test_ROW__COLUMN``; the first sentence of its docstring is
the cell in the docs (docs/conf.py reads this file). Cells without a test stay
empty.
"""

import pytest
import torch
import torch_geometric.transforms as T
from package import run
from procedures import cycle, node_classifier, unlearner
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData

from pyg_trust.certificates import ThreatModel, certify
from pyg_trust.loader import DisjointWalkLoader
from pyg_trust.nn import APPNP, PPNP
from pyg_trust.transforms import AGP


def with_edge_index():
    data = cycle(40)
    data.edge_index = EdgeIndex(
        data.edge_index.contiguous(), sparse_size=(40, 40)
    )
    return data


def with_adj_t():
    pytest.importorskip('torch_sparse')
    return T.ToSparseTensor()(cycle(40))


def hetero():
    data = HeteroData()
    data['user'].x = torch.rand(3, 5)
    data['user', 'knows', 'user'].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


def propagated(data):
    return AGP('appnp', alpha=0.2)(data).x


def robust(data):
    torch.manual_seed(0)
    model = PPNP(torch.nn.Linear(5, 2), alpha=0.2).eval()
    threat = ThreatModel(data, 'removals', local_budget=1)
    return certify(model, data, threat).status


def walks(data, **kwargs):
    loader = DisjointWalkLoader(data, 4, 1, num_steps=3, seed=0, **kwargs)
    return [(batch.n_id.tolist(), batch.x.clone()) for batch in loader]


def equal(one, two):
    assert len(one) == len(two) > 0
    for (a, x), (b, y) in zip(one, two, strict=True):
        assert a == b
        assert torch.equal(x, y)


def test_edge_index__propagation():
    """The same bits."""
    assert torch.equal(propagated(with_edge_index()), propagated(cycle(40)))


def test_edge_index__private_training():
    """The same batches."""
    equal(walks(with_edge_index()), walks(cycle(40)))


def test_edge_index__certificates():
    """The same certificate."""
    assert torch.equal(robust(with_edge_index()), robust(cycle(40)))


def test_edge_index__unlearning():
    """The same model."""
    one = node_classifier().fit(with_edge_index())
    assert torch.equal(one.weight, node_classifier().fit(cycle(40)).weight)


def test_adj_t__propagation():
    """The same bits."""
    assert torch.equal(propagated(with_adj_t()), propagated(cycle(40)))


def test_adj_t__private_training():
    """Refused: needs an edge_index."""
    with pytest.raises(ValueError, match='edge_index'):
        walks(with_adj_t())


def test_adj_t__certificates():
    """The same certificate."""
    assert torch.equal(robust(with_adj_t()), robust(cycle(40)))


def test_adj_t__unlearning():
    """The same model; shards refuse it: they need an edge_index."""
    one = node_classifier().fit(with_adj_t())
    assert torch.equal(one.weight, node_classifier().fit(cycle(40)).weight)
    with pytest.raises(ValueError, match='edge_index'):
        unlearner().fit(with_adj_t())


def test_hetero_data__propagation():
    """Refused by name, with what to do."""
    with pytest.raises(TypeError, match=r'HeteroData.*to_homogeneous'):
        propagated(hetero())


def test_hetero_data__private_training():
    """Refused by name, with what to do."""
    with pytest.raises(TypeError, match=r'HeteroData.*to_homogeneous'):
        walks(hetero())


def test_hetero_data__certificates():
    """Refused by name."""
    with pytest.raises(TypeError, match='HeteroData'):
        ThreatModel(hetero(), 'removals', local_budget=1)


def test_hetero_data__unlearning():
    """Refused by name."""
    for model in (node_classifier(), unlearner()):
        with pytest.raises(TypeError, match='HeteroData'):
            model.fit(hetero())


def test_workers__private_training():
    """The same batches with 0 and 2."""
    equal(walks(cycle(40), num_workers=2), walks(cycle(40)))


def test_torch_compile__propagation():
    """Layers, in one graph."""
    torch._dynamo.reset()
    conv, data = APPNP(3, 0.2), cycle(40)
    conv(data.x, data.edge_index)
    compiled = torch.compile(conv, backend='eager', fullgraph=True)
    want = conv(data.x, data.edge_index)
    # The messages of PyG are compiled, which sum in another order.
    torch.testing.assert_close(compiled(data.x, data.edge_index), want)


def test_lightning__private_training(tmp_path):
    """examples/dp_lightning.py."""
    pytest.importorskip('lightning')
    output = run(
        *('dp_lightning.py', '--steps', '4'),
        *('--ledger', tmp_path / 'ledger'),
    )
    assert 'after 4 steps' in output


def test_graphgym__propagation():
    """As a registered layer."""
    pytest.importorskip('yacs')
    from torch_geometric.graphgym import register

    name = 'pyg_trust_appnp'
    register.register_layer(name, APPNP)
    try:
        assert register.layer_dict[name] is APPNP
    finally:
        del register.layer_dict[name]
