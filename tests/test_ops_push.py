import math

import pytest
import torch
from pushes import Stream, push_arguments

from pyg_trust import agp as F
from pyg_trust import ops
from pyg_trust.testing import dense_operator, make_graph


def push_reference(graph, send, x, eps, ratio, keep, seed, first=0, pulled=0):
    """AGP in plain Python, with the streams of the C++ kernels.

    Every push places the sampled entries on a line, in order and each as long
    as its bound on the probability, and drops one point on every unit of it.
    The levels before `pulled` are exact.
    """
    rowptr, col = graph.rowptr.tolist(), graph.col.tolist()
    scale = [1.0] * len(col) if graph.scale is None else graph.scale.tolist()
    ends = graph.group_end.tolist()
    out = torch.zeros_like(x)
    size = ops.block_size(x.dtype)
    for block in range(0, x.size(1), size):
        columns = slice(block, block + size)
        residue = x[:, columns].clone()
        for level in range(len(keep)):
            out[:, columns] += keep[level] * residue
            if level == len(ratio):
                break
            following = torch.zeros_like(residue)
            for u in range(x.size(0)):
                c = ratio[level] * residue[u] * send[u]
                if not c.any():
                    continue
                mass = (c.abs() / eps[columns]).max().item()
                line = []  # entry, start, end
                top = 0.0
                largest = 0.0
                for e in range(rowptr[u], rowptr[u + 1]):
                    if mass * scale[e] >= 1 or level < pulled:
                        following[col[e]] += c * scale[e]
                        continue
                    if (graph.scale is not None and e in ends) or not line:
                        largest = scale[e]  # a new group
                    length = mass * largest
                    line.append((e, top, top + length))
                    top += length
                stream = Stream(seed, first + block // size, level, u)
                for piece in range(math.ceil(top)):
                    point = piece + stream.uniform()
                    for e, start, stop in line:
                        if start <= point < stop:
                            factor = scale[e] / (stop - start)
                            following[col[e]] += c * factor
            residue = following
    return out


def arguments(name, measure, dtype=torch.float64, columns=3):
    graph = make_graph(name)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(
        graph.num_nodes, columns, generator=generator, dtype=torch.float64
    )
    return push_arguments(graph, measure, (x - 0.3).to(dtype))


def without_pull(args):
    return {k: v for k, v in args.items() if k not in ('receivers', 'recv')}


@pytest.mark.parametrize('columns', [1, 3, 13])
@pytest.mark.parametrize('eps', [1e-3, 0.03, 0.2, 1.0, 20.0])
@pytest.mark.parametrize(
    ('name', 'measure'),
    [
        ('random', F.ppr(0.3, K=3)),
        ('random', F.appnp(0.3, K=3)),
        ('random', F.single_target(0.3, K=3)),
        ('star', F.sgc(3)),
        ('directed', F.single_target(0.3, K=3)),
        ('directed', F.Measure(0.5, 0.5, (1, 1, 1))),
        ('directed', F.hkpr(1.0, K=3)),
        ('duplicate', F.Measure(0.2, 0.9, (1, 0, 2))),
    ],
)
def test_push_equals_the_reference(name, measure, eps, columns):
    args = arguments(name, measure, columns=columns)
    quantum = torch.linspace(eps, 2 * eps, columns, dtype=torch.float64)
    got, pushed = ops.push(**args, eps=quantum, seed=11, first=5)
    wanted = push_reference(
        **without_pull(args), eps=quantum, seed=11, first=5
    )
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert pushed.tolist() == [len(args['ratio'])] * ((columns + 7) // 8)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('name', ['random', 'directed'])
@pytest.mark.parametrize('columns', [1, 3, 5, 37])
def test_pulled_levels_are_exact(name, columns, dtype):
    measure = F.Measure(0.3, 0.8, (1, 2, 3, 4))
    args = arguments(name, measure, dtype, columns)
    eps = torch.full((columns,), 1e-9, dtype=dtype)
    got, pushed = ops.push(**args, eps=eps, seed=11, pull_above=0.0)
    # Level 0 is dense, and so is every other but for the small graph's.
    assert (pushed == 0).all()
    wanted = dense_operator(make_graph(name), measure) @ args['x'].double()
    got = got.double() * sum(measure.weights)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_levels_are_pulled_where_pushes_are_many():
    args = arguments('random', F.ppr(0.3, K=3))
    counts = []
    for eps in (1e-9, 1e-1, 1e9):
        quantum = torch.full((3,), eps, dtype=torch.float64)
        _, pushed = ops.push(**args, eps=quantum, seed=1, pull_above=4.0)
        counts.append(int(pushed))
    assert counts[0] == 0
    assert counts[2] == 3
    assert counts == sorted(counts)


@pytest.mark.parametrize('columns', [1, 3, 8, 20])
def test_levels_that_are_pushed_after_a_pulled_one_start_from_nothing(columns):
    # The buffer that a push adds to holds what the pulled level has read.
    args = arguments('random', F.ppr(0.6, K=4), columns=columns)
    args['x'] = args['x'].abs()
    seen = set()
    for eps in (0.01, 0.03, 0.1):
        quantum = torch.full((columns,), eps, dtype=torch.float64)
        got, pushed = ops.push(**args, eps=quantum, seed=11, pull_above=6.0)
        for block, number in enumerate(pushed.tolist()):
            part = slice(8 * block, 8 * block + 8)
            alone = {**without_pull(args), 'x': args['x'][:, part]}
            wanted = push_reference(
                **alone,
                eps=quantum[part],
                seed=11,
                first=block,
                pulled=4 - number,
            )
            torch.testing.assert_close(
                got[:, part], wanted, rtol=1e-12, atol=0
            )
            seen.add(number)
    assert seen & {1, 2, 3}


def test_float32_samples_the_same_edges():
    # The same stream and nearly the same probabilities: the same points, but
    # for those that fall within rounding of a border.
    measure = F.appnp(0.3, K=3)
    one = arguments('random', measure)
    two = arguments('random', measure, torch.float32)
    close = 0
    for seed in range(50):
        a, b = (
            ops.push(
                **args,
                eps=torch.full((3,), 0.2, dtype=args['x'].dtype),
                seed=seed,
            )[0]
            for args in (one, two)
        )
        close += torch.allclose(a.float(), b, atol=1e-5)
    assert close >= 48


def sparse_arguments(name='random'):
    args = without_pull(arguments(name, F.appnp(0.3, K=3)))
    del args['x']
    return {
        **args,
        'ptr': torch.tensor([0, 2, 2, 3]),
        'node': torch.tensor([1, 4, 1]),
        'value': torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
        'eps': torch.full((3,), 0.05, dtype=torch.float64),
        'prune': torch.zeros(3, dtype=torch.float64),
    }


def test_push_sparse_equals_the_reference():
    args = sparse_arguments()
    ptr, node, value = ops.push_sparse(**args, seed=7)
    got = torch.zeros(3, 40, dtype=torch.float64)
    got[torch.arange(3).repeat_interleave(ptr.diff()), node] = value
    for k, signal in enumerate(({1: 1.0, 4: -2.0}, {}, {1: 0.5})):
        x = torch.zeros(40, 1, dtype=torch.float64)
        for u, entry in signal.items():
            x[u] = entry
        wanted = push_reference(
            args['graph'],
            args['send'],
            x,
            args['eps'][k : k + 1],
            args['ratio'],
            args['keep'],
            seed=7,
            first=k,
        )
        torch.testing.assert_close(got[k], wanted[:, 0])
    assert ptr[1] == ptr[2]


@pytest.mark.parametrize('prune', [1e-3, 0.02, 0.1, 0.3])
def test_residues_stay_where_they_are_below_the_threshold(prune):
    # |r| S against the threshold, whatever the level: quanta so small that
    # nothing is drawn.
    args = sparse_arguments()
    args['eps'] = torch.full((3,), 1e-12, dtype=torch.float64)
    args['prune'] = torch.full((3,), prune, dtype=torch.float64)
    ptr, node, value = ops.push_sparse(**args, seed=7)
    got = torch.zeros(3, 40, dtype=torch.float64)
    got[torch.arange(3).repeat_interleave(ptr.diff()), node] = value
    graph = args['graph']
    rowptr, col = graph.rowptr.tolist(), graph.col.tolist()
    stayed = 0
    for k, signal in enumerate(({1: 1.0, 4: -2.0}, {}, {1: 0.5})):
        wanted = [0.0] * 40
        residue = [signal.get(u, 0.0) for u in range(40)]
        for level, keep in enumerate(args['keep'].tolist()):
            following = [0.0] * 40
            for u, r in enumerate(residue):
                wanted[u] += keep * r
                if level == len(args['ratio']) or r == 0:
                    continue
                send = float(args['send'][u])
                if abs(r) * send < prune:
                    stayed += 1
                    continue
                for e in range(rowptr[u], rowptr[u + 1]):
                    scale = 1 if graph.scale is None else graph.scale[e]
                    following[col[e]] += float(
                        args['ratio'][level] * r * send * scale
                    )
            residue = following
        torch.testing.assert_close(got[k], torch.tensor(wanted).double())
    assert stayed > 0 or prune < 0.02


@pytest.mark.parametrize('seed', [11 + 2**32, 2**62 + 5, 2**63 - 1])
def test_every_bit_of_a_seed_counts(seed):
    args = arguments('random', F.appnp(0.3, K=3))
    eps = torch.full((3,), 0.2, dtype=torch.float64)
    got, _ = ops.push(**args, eps=eps, seed=seed)
    wanted = push_reference(**without_pull(args), eps=eps, seed=seed)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    low, _ = ops.push(**args, eps=eps, seed=seed % 2**32)
    assert not torch.equal(got, low)
    sparse = sparse_arguments()
    one, two = (
        ops.push_sparse(**sparse, seed=s)[1:] for s in (seed, seed % 2**32)
    )
    assert not all(map(torch.equal, one, two))


def opcheck_cases():
    args = arguments('random', F.appnp(0.3, K=3))
    graph = args['graph']
    eps = torch.full((3,), 0.05, dtype=torch.float64)
    layout = (
        graph.rowptr,
        graph.col,
        graph.scale,
        graph.group_ptr,
        graph.group_end,
    )
    flat = (*layout[:2], None, *layout[3:])
    sides = (*args['receivers'], args['recv'], args['send'])
    levels = (args['ratio'], args['keep'])
    for graph in (layout, flat):
        yield (
            'push',
            (*graph, *sides, args['x'], eps, *levels),
            (3, 0, 0.25, False),
        )
    sparse = sparse_arguments()
    names = ('send', 'ptr', 'node', 'value', 'eps', 'prune')
    yield (
        'push_sparse',
        (*layout, *(sparse[name] for name in names), *levels),
        (3, 0, 5, 1e-3),
    )
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for x, half in ((args['x'], False), (args['x'].float(), True)):
        scale = args['send'].to(x.dtype)
        yield (
            'propagate',
            (*layout[:2], x, None, None, None, 3, scale, scale, weights),
            (half, None, not half, None, False, False),
        )


@pytest.mark.parametrize(('name', 'tensors', 'numbers'), list(opcheck_cases()))
def test_opcheck(name, tensors, numbers):
    op = getattr(torch.ops.pyg_trust, name).default
    known = name != 'push_sparse'  # of which no fake kernel exists
    kinds = {} if known else {'test_utils': 'test_schema'}
    torch.library.opcheck(op, (*tensors, *numbers), **kinds)


def test_ops_compile():
    args = arguments('random', F.appnp(0.3, K=3))
    eps = torch.full((3,), 0.05, dtype=torch.float64)

    @torch.compile(backend='aot_eager', fullgraph=True)
    def compiled(x):
        out, _ = torch.ops.pyg_trust.push(
            args['graph'].rowptr,
            args['graph'].col,
            args['graph'].scale,
            args['graph'].group_ptr,
            args['graph'].group_end,
            *args['receivers'],
            args['recv'],
            args['send'],
            2 * x,
            eps,
            args['ratio'],
            args['keep'],
            3,
            0,
            math.inf,
            False,
        )
        return out + 1

    out, _ = ops.push(**{**args, 'x': 2 * args['x']}, eps=eps, seed=3)
    assert torch.equal(compiled(args['x']), out + 1)
