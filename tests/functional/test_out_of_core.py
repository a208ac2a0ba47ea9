"""Propagation from disk to disk: the same bits, whatever happens."""

import random

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from pyg_trust.functional import (
    appnp,
    out_of_core,
    plan_memory,
    ppr,
    propagate,
    propagate_to,
)
from pyg_trust.graph import CSRGraph
from pyg_trust.testing import dense_operator, make_graph
from pyg_trust.transforms import AGP

pytestmark = pytest.mark.sparse
MEASURE = appnp(0.1)


@pytest.fixture(scope='module')
def graph():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(400, (2, 1500), generator=generator)
    pairs = torch.cat([pairs, pairs.flip(0)], 1)
    return CSRGraph.from_edge_index(pairs, 400, duplicates='merge')


def signal_of(columns=37, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, columns, generator=generator)
    return (x * (x > 0.5)).to(dtype)


def forms(folder, x):
    array = x.numpy()
    np.save(folder / 'rows.npy', array)
    np.save(folder / 'columns.npy', np.asfortranarray(array))
    yield 'tensor', x
    yield 'turned tensor', x.t().contiguous().t()
    yield 'file by rows', folder / 'rows.npy'
    yield 'file by columns', str(folder / 'columns.npy')
    yield 'mapped', np.load(folder / 'rows.npy', mmap_mode='r')
    if x.dtype != torch.float16:
        yield 'torch CSR', x.to_sparse_csr()
        yield 'scipy CSR', scipy.sparse.csr_array(array)


@pytest.mark.parametrize('columns', ['auto', 16, 23])
@pytest.mark.parametrize(
    ('dtype', 'how'),
    [
        (torch.float32, {}),
        (torch.float32, {'half': True}),
        (torch.float32, {'tol': 1e-3}),
        (torch.float64, {}),
        (torch.float16, {}),
    ],
)
def test_the_bits_are_those_of_propagate(tmp_path, graph, dtype, how, columns):
    x = signal_of(dtype=dtype)
    wide = x.float() if dtype == torch.float16 else x
    wanted = propagate(graph, wide, MEASURE, **how).to(dtype)
    graph.save(tmp_path / 'graph')
    mapped = CSRGraph.load(tmp_path / 'graph', mmap=True)
    for name, form in forms(tmp_path, x):
        z = propagate_to(
            tmp_path / 'z.npy', mapped, form, MEASURE, columns=columns, **how
        )
        assert torch.equal(z, wanted), name
        assert z.dtype == dtype
        # Nothing but the result is left, and numpy reads it.
        assert torch.equal(
            torch.from_numpy(np.load(tmp_path / 'z.npy')), wanted
        )
        assert not list(tmp_path.glob('*.part*'))
        assert not list(tmp_path.glob('.*'))


@pytest.mark.parametrize('name', ['self_loop', 'isolated', 'directed', 'star'])
def test_the_dense_definition(tmp_path, name):
    graph = make_graph(name)
    x = torch.rand(graph.num_nodes, 3, dtype=torch.float64)
    for measure in (ppr(0.2), ppr(0.2).adjoint()):
        if measure.undirected and not graph.is_undirected:
            continue
        z = propagate_to(tmp_path / 'z.npy', graph, x, measure, columns=2)
        assert torch.allclose(z, dense_operator(graph, measure) @ x)


def test_a_block_that_fails_leaves_the_others(tmp_path, graph, monkeypatch):
    x, out = signal_of(), tmp_path / 'z.npy'
    wanted = propagate(graph, x, MEASURE)
    np.save(tmp_path / 'x.npy', x.numpy())
    compute, done = out_of_core._compute, []

    def stops(block, job):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return compute(block, job)

    monkeypatch.setattr(out_of_core, '_compute', stops)

    def run(columns=8):
        return propagate_to(
            out, graph, tmp_path / 'x.npy', MEASURE, columns=columns
        )

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not out.exists()
    done.clear()
    # Two blocks are left, of another width.
    assert torch.equal(run(7), wanted)
    assert len(done) == 2


def test_finished_columns_that_are_damaged_are_computed_again(
    tmp_path, graph, monkeypatch
):
    x, out = signal_of(), tmp_path / 'z.npy'
    wanted = propagate(graph, x, MEASURE)
    np.save(tmp_path / 'x.npy', x.numpy())
    compute = out_of_core._compute
    for seed in range(10):
        done = []

        def stops(block, job, done=done):
            if len(done) == 4:
                raise KeyboardInterrupt
            done.append(1)
            return compute(block, job)

        monkeypatch.setattr(out_of_core, '_compute', stops)
        with pytest.raises(KeyboardInterrupt):
            propagate_to(out, graph, tmp_path / 'x.npy', MEASURE, columns=8)
        source = random.Random(seed)
        part = tmp_path / 'z.npy.part'
        markers = sorted(tmp_path.glob('*.part.done-*'))
        assert len(markers) == 4
        if seed % 2:
            content = bytearray(part.read_bytes())
            # Somewhere in the columns that are done.
            content[source.randrange(200, 128 + 32 * 1600)] ^= 4
            part.write_bytes(content)
        else:
            marker = source.choice(markers)
            marker.write_bytes(
                source.choice([b'', b'{}', b'[]', marker.read_bytes()[:-9]])
            )
        monkeypatch.setattr(out_of_core, '_compute', compute)
        z = propagate_to(out, graph, tmp_path / 'x.npy', MEASURE, columns=8)
        assert torch.equal(z, wanted)
        out.unlink()


def test_another_call_begins_anew(tmp_path, graph, monkeypatch):
    x, out = signal_of(), tmp_path / 'z.npy'
    compute = out_of_core._compute
    other = make_graph('random').with_self_loops()
    more = CSRGraph.from_edge_index(other.to_edge_index()[0], 400)
    calls = [
        (graph, x, ppr(0.3), {}),
        (graph, x, MEASURE, {'half': True}),
        (graph, 2 * x, MEASURE, {}),
        (more, x, MEASURE, {}),
    ]
    for given, features, measure, how in calls:
        left = [True, True]

        def stops(block, job, left=left):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            return compute(block, job)

        monkeypatch.setattr(out_of_core, '_compute', stops)
        with pytest.raises(KeyboardInterrupt):
            propagate_to(out, graph, x, MEASURE, columns=8)
        monkeypatch.setattr(out_of_core, '_compute', compute)
        z = propagate_to(out, given, features, measure, columns=8, **how)
        assert torch.equal(z, propagate(given, features, measure, **how))


def test_what_is_refused_changes_nothing(tmp_path, graph):
    x, out = signal_of(), tmp_path / 'z.npy'
    propagate_to(out, graph, x, MEASURE)
    before = out.read_bytes()
    bad = x.clone()
    bad[3, 30] = float('nan')
    with pytest.raises(ValueError, match='finite'):
        propagate_to(out, graph, bad, MEASURE, columns=8)
    with pytest.raises(ValueError, match=r'at least .* bytes'):
        propagate_to(out, graph, x, MEASURE, memory=9000)
    with pytest.raises(FileNotFoundError, match='missing'):
        propagate_to(tmp_path / 'missing' / 'z.npy', graph, x, MEASURE)
    with pytest.raises(FileNotFoundError, match='gone'):
        propagate_to(out, graph, tmp_path / 'gone.npy', MEASURE)
    (tmp_path / 'bad.npy').write_bytes(b'nothing')
    with pytest.raises(ValueError, match='bad'):
        propagate_to(out, graph, tmp_path / 'bad.npy', MEASURE)
    assert out.read_bytes() == before


def test_the_transform_writes_a_file(tmp_path, graph):
    x = signal_of()
    edge_index, _ = graph.to_edge_index()
    wanted = AGP('appnp', alpha=0.1, half=True)(
        Data(x=x, edge_index=edge_index)
    )
    transform = AGP(
        'appnp', alpha=0.1, half=True, out=tmp_path / 'z.npy', columns=16
    )
    made = transform(Data(x=x, edge_index=edge_index))
    assert torch.equal(made.x, wanted.x)
    assert made.propagated == ('x',)
    assert (tmp_path / 'z.npy').exists()
    assert 'z.npy' in str(transform)


def test_the_plan_is_the_sum_of_its_parts():
    plan = plan_memory(1000, 50_000, 64, memory='2MB', half=True)
    assert plan.graph == 4 * 50_000 + 8 * 1000 + 8 * 1000
    assert plan.column == 8 * 1000
    assert plan.total == plan.graph + plan.columns * plan.column <= 2e6
    assert plan.blocks * plan.columns >= 64
    for memory in range(230_000, 2_000_000, 37_000):
        for half in (False, True):
            plan = plan_memory(1000, 50_000, 64, memory=memory, half=half)
            assert 1 <= plan.columns <= 64
            assert plan.total <= memory
