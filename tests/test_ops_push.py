import pytest
import torch

from pyg_trust import functional as F
from pyg_trust import ops, rng
from pyg_trust.functional.propagation import _levels
from pyg_trust.testing import make_graph

GOLDEN = 0x9E3779B97F4A7C15


def uniform(key, counter):
    word = rng._mix((key + counter * GOLDEN) % 2**64)
    return (word >> 11) * 2.0**-53


def key_of(*items):
    key = items[0]
    for item in items[1:]:
        key = rng._mix(key ^ rng._mix(item))
    return key


def push_reference(graph, send, x, eps, ratio, keep, seed, first=0):
    """AGP in plain Python, with the streams of the C++ kernels.

    Every push places the sampled entries on a line, in order and each as long
    as its bound on the probability, and drops one point on every unit of it.
    """
    rowptr, col = graph.rowptr.tolist(), graph.col.tolist()
    scale = [1.0] * len(col) if graph.scale is None else graph.scale.tolist()
    ends = graph.group_end.tolist()
    out = torch.zeros_like(x)
    for k, signal in enumerate(x.tolist()):
        residue = signal
        quantum = eps[k].item()
        for level in range(len(keep)):
            following = [0.0] * len(residue)
            for u, r in enumerate(residue):
                out[k, u] += keep[level].item() * r
                if r == 0 or level == len(ratio):
                    continue
                c = ratio[level].item() * r * send[u].item()
                line = []  # entry, start, length, what a point is worth
                top = 0.0
                largest = 0.0
                for e in range(rowptr[u], rowptr[u + 1]):
                    if abs(c) * scale[e] >= quantum:
                        following[col[e]] += c * scale[e]
                        continue
                    if e in ends or not line:  # a new group
                        largest = scale[e]
                    length = abs(c) * largest / quantum
                    worth = scale[e] / largest if largest else 0.0
                    line.append((e, top, top + length, worth))
                    top += length
                key = key_of(seed, first + k, level, u)
                piece = 0
                while piece < top:
                    point = piece + uniform(key, piece)
                    for e, start, stop, worth in line:
                        if start <= point < stop:
                            sign = 1 if c > 0 else -1
                            following[col[e]] += sign * quantum * worth
                    piece += 1
            residue = following
    return out


def arguments(name, measure, dtype=torch.float64):
    graph = make_graph(name)
    prepared = graph.with_self_loops() if measure.self_loops else graph
    _, ratio, keep = _levels(measure)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(3, graph.num_nodes, generator=generator, dtype=dtype) - 0.3
    return {
        'graph': prepared.push_graph(measure.a, dtype, measure.along),
        'send': prepared.degree_power(-measure.b, dtype),
        'x': x,
        'ratio': ratio,
        'keep': keep,
    }


@pytest.mark.parametrize('eps', [1e-3, 0.03, 0.2, 1.0, 20.0])
@pytest.mark.parametrize(
    ('name', 'measure'),
    [
        ('random', F.ppr(0.3, levels=3)),
        ('random', F.appnp(0.3, levels=3)),
        ('random', F.single_target(0.3, levels=3)),
        ('star', F.sgc(3)),
        ('directed', F.single_target(0.3, levels=3)),
        ('directed', F.Measure(0.5, 0.5, (1, 1, 1))),
        ('directed', F.hkpr(1.0, levels=3)),
        ('duplicate', F.Measure(0.2, 0.9, (1, 0, 2))),
    ],
)
def test_push_equals_the_reference(name, measure, eps):
    args = arguments(name, measure)
    quantum = torch.full((3,), eps, dtype=torch.float64)
    got = ops.push(**args, eps=quantum, seed=11, first=5)
    wanted = push_reference(**args, eps=quantum, seed=11, first=5)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_float32_samples_the_same_edges():
    # The same stream and nearly the same probabilities: the same points, but
    # for those that fall within rounding of a border.
    measure = F.appnp(0.3, levels=3)
    one = arguments('random', measure)
    two = arguments('random', measure, torch.float32)
    two['x'] = one['x'].float()
    close = 0
    for seed in range(50):
        a, b = (
            ops.push(
                **args,
                eps=torch.full((3,), 0.2, dtype=args['x'].dtype),
                seed=seed,
            )
            for args in (one, two)
        )
        close += torch.allclose(a.float(), b, atol=1e-5)
    assert close >= 48


def test_first_shifts_the_streams():
    args = arguments('random', F.ppr(0.3, levels=3))
    eps = torch.full((3,), 0.1, dtype=torch.float64)
    whole = ops.push(**args, eps=eps, seed=3)
    args['x'] = args['x'][1:]
    assert torch.equal(
        ops.push(**args, eps=eps[1:], seed=3, first=1), whole[1:]
    )


def sparse_arguments(name='random'):
    measure = F.appnp(0.3, levels=3)
    args = arguments(name, measure)
    del args['x']
    return {
        **args,
        'ptr': torch.tensor([0, 2, 2, 3]),
        'node': torch.tensor([1, 4, 1]),
        'value': torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
        'eps': torch.full((3,), 0.05, dtype=torch.float64),
    }


def test_push_sparse_is_push():
    args = sparse_arguments()
    ptr, node, value = ops.push_sparse(**args, seed=7)
    x = torch.zeros(3, 40, dtype=torch.float64)
    x[0, 1], x[0, 4], x[2, 1] = 1, -2, 0.5
    dense = {k: args[k] for k in ('graph', 'send', 'eps', 'ratio', 'keep')}
    wanted = ops.push(**dense, x=x, seed=7)
    got = torch.zeros_like(wanted)
    got[torch.arange(3).repeat_interleave(ptr.diff()), node] = value
    torch.testing.assert_close(got, wanted)
    assert ptr.tolist()[:1] == [0]
    assert ptr[1] == ptr[2]


def opcheck_cases():
    args = arguments('random', F.appnp(0.3, levels=3))
    graph = args['graph']
    eps = torch.full((3,), 0.05, dtype=torch.float64)
    layout = (
        graph.rowptr,
        graph.col,
        graph.scale,
        graph.group_ptr,
        graph.group_end,
    )
    yield (
        'push',
        (*layout, args['send'], args['x'], eps, args['ratio'], args['keep']),
        (3, 0),
    )
    flat = (*layout[:2], None, *layout[3:])
    yield (
        'push',
        (*flat, args['send'], args['x'], eps, args['ratio'], args['keep']),
        (3, 0),
    )
    sparse = sparse_arguments()
    yield (
        'push_sparse',
        (
            *layout,
            sparse['send'],
            sparse['ptr'],
            sparse['node'],
            sparse['value'],
            eps,
            args['ratio'],
            args['keep'],
        ),
        (3, 0, 5, 1e-3),
    )
    yield (
        'propagate',
        (
            graph.rowptr,
            graph.col,
            args['x'].t().contiguous(),
            args['send'],
            args['send'],
            torch.tensor([0.5, 0.5], dtype=torch.float64),
        ),
        (),
    )


@pytest.mark.parametrize(('name', 'tensors', 'numbers'), list(opcheck_cases()))
def test_opcheck(name, tensors, numbers):
    op = getattr(torch.ops.pyg_trust, name).default
    torch.library.opcheck(op, (*tensors, *numbers))


def test_ops_compile():
    args = arguments('random', F.appnp(0.3, levels=3))
    eps = torch.full((3,), 0.05, dtype=torch.float64)

    @torch.compile(backend='aot_eager', fullgraph=True)
    def compiled(x):
        out = torch.ops.pyg_trust.push(
            args['graph'].rowptr,
            args['graph'].col,
            args['graph'].scale,
            args['graph'].group_ptr,
            args['graph'].group_end,
            args['send'],
            2 * x,
            eps,
            args['ratio'],
            args['keep'],
            3,
            0,
        )
        return out + 1

    wanted = ops.push(**{**args, 'x': 2 * args['x']}, eps=eps, seed=3) + 1
    assert torch.equal(compiled(args['x']), wanted)


@pytest.mark.parametrize(
    ('error', 'match', 'change'),
    [
        (TypeError, "'x'.*float16", {'x': torch.rand(3, 40).half()}),
        (TypeError, "'send'.*float64.*float32", {'send': torch.rand(40)}),
        (ValueError, r"'x'.*\[3, 40\].*\[3, 39\]", {'x': torch.rand(3, 39)}),
        (ValueError, r"'send'.*\[40\].*\[39\]", {'send': torch.rand(39)}),
        (ValueError, r"'eps'.*\[3\]", {'eps': torch.rand(2)}),
        (ValueError, r"'keep'.*\[4\]", {'keep': torch.rand(3)}),
        (TypeError, "'ratio'.*int64", {'ratio': torch.tensor([1, 1, 1])}),
        (ValueError, "'x'.*CPU.*meta", {'x': torch.rand(3, 40).to('meta')}),
    ],
)
def test_push_refuses(error, match, change):
    args = arguments('random', F.appnp(0.3, levels=3))
    args['eps'] = torch.rand(3, dtype=torch.float64)
    for name, tensor in change.items():
        if tensor.dtype == torch.float32 and 'float64.*' not in match:
            tensor = tensor.double()
        args[name] = tensor
    with pytest.raises(error, match=match):
        ops.push(**args, seed=0)


def test_push_refuses_a_foreign_layout():
    args = arguments('random', F.appnp(0.3, levels=3))
    args['eps'] = torch.rand(3, dtype=torch.float64)
    whole = args['graph']
    for name, tensor in (
        ('scale', whole.scale[1:]),
        ('group_ptr', whole.group_ptr[1:]),
        ('col', whole.col.long()),
    ):
        args['graph'] = whole._replace(**{name: tensor})
        with pytest.raises((ValueError, TypeError), match=f"'{name}'"):
            ops.push(**args, seed=0)


def test_missing_library_is_an_import_error(monkeypatch, tmp_path):
    monkeypatch.setattr(ops, '__file__', str(tmp_path / 'ops.py'))
    with pytest.raises(ImportError, match='compiled library is missing'):
        ops._load()
