"""The kernel's residual, against real arithmetic in 60 digits."""

import hashlib
import hmac
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from forgetting import SETTINGS, forgotten
from references import digest

from pyg_trust.agp.measures import make_measure
from pyg_trust.graph import CSRGraph
from pyg_trust.unlearning.heads import HEAD, Objective, targets
from pyg_trust.unlearning.sums import Sums
from pyg_trust.verify import removal

HEADS = ('ovr', 'softmax', 'squared')


def power(degree, exponent):
    """Of the exponents whose powers are roots and quotients."""
    if exponent == 0:
        return 1.0
    if degree == 0:
        return 0.0
    return 1 / (math.sqrt(degree) if exponent == 0.5 else degree)


def true_features(entries, x, rows, weights, a, b, self_loops, bits=40):
    """By the definition, node after node, with integers of Python."""
    n, columns = len(x), range(len(x[0]))
    pairs = {(int(u), int(v)) for u, v in entries.T}
    if self_loops:
        pairs |= {(v, v) for v in range(n)}
    degree = [sum(u == v for u, _ in pairs) for v in range(n)]
    recv = [power(d, a) for d in degree]
    send = [power(d, b) for d in degree]
    grid = 2.0**bits
    q = [[round(send[v] * grid * float(x[v][c])) for c in columns]
         for v in range(n)]  # fmt: skip
    total = [[weights[0] * float(x[v][c]) for c in columns] for v in range(n)]
    for weight in weights[1:]:
        sums = [[0 for _ in columns] for _ in range(n)]
        for u, v in pairs:
            for c in columns:
                sums[v][c] += q[u][c]
        for v in range(n):
            for c in columns:
                part = float(sums[v][c])
                total[v][c] += weight * (recv[v] / grid * part)
                q[v][c] = round(recv[v] * send[v] * part)
    return [total[r] for r in rows]


def true_slopes(margins, y, head):
    m, y = ([mpmath.mpf(v) for v in row] for row in (margins, y))
    if head == 'ovr':
        return [-t / (1 + mpmath.exp(t * v)) for v, t in zip(m, y, strict=1)]
    if head == 'softmax':
        e = [mpmath.exp(v - max(m)) for v in m]
        return [p / mpmath.fsum(e) - t for p, t in zip(e, y, strict=True)]
    return [2 * (v - t) for v, t in zip(m, y, strict=True)]


def true_residual(Z, Y, W, lam, head):
    n, d, outputs = len(Z), len(W), len(W[0])
    W = [[mpmath.mpf(float(c)) for c in row] for row in W]
    total = [
        [mpmath.mpf(lam) * n * W[j][c] for c in range(outputs)]
        for j in range(d)
    ]
    for z, y in zip(Z, Y, strict=True):
        m = [
            mpmath.fsum(z[j] * W[j][c] for j in range(d))
            for c in range(outputs)
        ]
        g = true_slopes(m, map(float, y), head)
        for j in range(d):
            for c in range(outputs):
                total[j][c] += z[j] * g[c]
    return mpmath.sqrt(mpmath.fsum(v * v for row in total for v in row))


def random_graph(rng, n, directed=False):
    pairs = rng.random((n, n)) < 0.4
    if not directed:
        pairs |= pairs.T
    pairs[0, :] = pairs[:, 0] = False  # a node without neighbours
    return np.argwhere(pairs).T.astype(np.int64)


def random_case(seed, head):
    rng = np.random.default_rng(seed)
    n, d, outputs = 6, 3, 3
    scale = 10.0 ** rng.uniform(-3, 3)
    x = rng.standard_normal((n, d)) * scale
    rows = np.array([0, 2, 3, 5])
    kind = rng.integers(outputs, size=len(rows))
    hot = kind[:, None] == np.arange(outputs)
    low = 0.0 if head == 'softmax' else -1.0
    W = rng.standard_normal((d, outputs)) / scale * 10 ** rng.uniform(-1, 3)
    settings = {
        'weights': tuple(rng.random(4)),
        'a': float(rng.choice([0, 0.5, 1])),
        'b': float(rng.choice([0, 0.5, 1])),
        'self_loops': bool(rng.integers(2)),
    }
    entries = random_graph(rng, n, directed=bool(rng.integers(2)))
    return entries, x, rows, np.where(hot, 1.0, low), W, settings


def bound_and_truth(seed, head, lam=0.01):
    entries, x, rows, Y, W, settings = random_case(seed, head)
    found = removal.features(entries, x, rows, **settings)
    least, bound = removal.residual(found, Y, W, lam, head)
    Z = true_features(entries, x, rows, **settings)
    assert found.Z.tolist() == Z
    with mpmath.workdps(60):
        Z = [[mpmath.mpf(v) for v in row] for row in Z]
        truth = true_residual(Z, Y, W, lam, head)
    z, w = np.linalg.norm(found.Z), np.linalg.norm(W)
    size = z * (z * w + 2) + lam * 4 * w
    return found, (least, bound, truth, size)


@pytest.mark.parametrize('head', HEADS)
def test_the_residual_is_never_below_real_arithmetic(head):
    for seed in range(25):
        found, (least, bound, truth, size) = bound_and_truth(seed, head)
        assert found.error == 0
        assert truth <= bound
        # And says something.
        assert bound <= truth + 2e-13 * (size + truth)
        assert truth - 2e-13 * (size + truth) <= least <= truth


def test_other_powers_and_sums_out_of_range_prove_nothing():
    # A library's power may be off by units, and a sum that wraps is none.
    entries = np.array([[0, 2, 1, 2], [2, 0, 2, 1]])
    x, rows = np.array([[1.0], [2.0], [1.0]]), np.arange(3)
    weights = (0.0, 1.0)
    for a, b, known in (
        (0.5, 0.5, 1),
        (1, 0.0, 1),
        (0.3, 0.7, 0),
        (0, 0.9, 0),
    ):
        found = removal.features(entries, x, rows, weights, a, b, False)
        assert found.error == (0 if known else math.inf)
    # A sum of 4 x 2^f is 2^62 at f = 60, which is out of range.
    for bits, error in ((59, 0.0), (60, math.inf)):
        case = (weights, 0.0, 0.0, False, True, bits)
        four = np.array([[1.0], [3.0], [1.0]])
        found = removal.features(entries, four, rows, *case)
        assert found.error == error
    # Node 2 has a sum of 3 x 2^f: 2^62 is reached between f = 60 and 61.
    for bits, error in ((60, 0.0), (61, math.inf)):
        case = (weights, 0.0, 0.0, False, True, bits)
        assert removal.features(entries, x, rows, *case).error == error
        found = removal.features(entries, -x, rows, *case)
        assert found.error == error
        Y, W = np.ones((3, 1)), np.zeros((1, 1))
        least, most = removal.residual(found, Y, W, 1.0, 'squared')
        assert (most == math.inf) == (error > 0)
        assert least == 0 if error else least > 0


@pytest.mark.parametrize('head', HEADS)
def test_no_exact_minimiser_is_farther_away_than_the_shift(head):
    # By gradient steps in long numbers until the gradient is gone.
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Z = rng.standard_normal((5, 2))
        kind = rng.integers(2, size=5)
        low = 0.0 if head == 'softmax' else -1.0
        Y = np.where(kind[:, None] == np.arange(2), 1.0, low)
        lam, std = 0.5, 1e-3
        W = np.zeros((2, 2))
        step = 1 / (lam * 5 + 2 * float((Z**2).sum()))
        for _ in range(5000):
            slope = removal.slopes(Z @ W, Y, head)
            W = W - step * (Z.T @ slope + lam * 5 * W)
        away = W + rng.standard_normal(W.shape) * 1e-4
        found = removal.Features(Z, 0.0)
        beta = removal.residual(found, Y, away, lam, head).most
        m = removal.shift(beta, 5, lam, away, std)
        grid = std * 2.0**-32
        released = np.rint(away / grid) * grid
        distance = float(np.linalg.norm(released - W))
        assert 1e-5 < distance <= m * std * (1 + 1e-9)


def test_a_node_that_nothing_leaves_is_reached_all_the_same():
    # Its degree is 0, and 0 to the power 0 is one.
    found = removal.features(
        *(np.array([[0], [1]]), np.array([[3.0], [5.0]]), np.array([1])),
        *((0.0, 1.0), 0.0, 0.0, False),
    )
    assert found.Z[0, 0] == 3


@pytest.mark.parametrize('head', ['ovr', 'softmax'])
def test_exponentials_are_as_exact_as_assumed(head):
    rng = np.random.default_rng(0)
    margins = rng.standard_normal((300, 3)) * 10 ** rng.uniform(
        -8, 3, (300, 1)
    )
    kind = rng.integers(3, size=300)
    low = 0.0 if head == 'softmax' else -1.0
    Y = np.where(kind[:, None] == np.arange(3), 1.0, low)
    most = removal.UNIT * removal.SLOPE[head](3)
    with mpmath.workdps(60):
        for m, y, row in zip(
            margins, Y, removal.slopes(margins, Y, head), strict=True
        ):
            true = true_slopes(m.tolist(), y.tolist(), head)
            off = [t - float(g) for t, g in zip(true, row, strict=True)]
            assert mpmath.norm(off) <= most


def test_the_fast_residual_is_that_of_the_kernel():
    torch.manual_seed(0)
    n, outputs = 40, 3
    edge_index = torch.randint(n, (2, 120))
    edge_index = torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    graph = CSRGraph.from_edge_index(edge_index, n)
    x = torch.randn(n, 5, dtype=torch.float64)
    measure = make_measure('appnp', None, alpha=0.2, K=6)
    Z = Sums(graph, x, measure).rows()
    y = torch.randint(outputs, (n,))
    Y = targets(y, outputs)
    W = torch.randn(5, outputs, dtype=torch.float64)
    fast = Objective(Z, Y, 0.1 * n).gradient(W).norm
    found = removal.features(
        edge_index.numpy(),
        x.numpy(),
        np.arange(n),
        measure.weights,
        measure.a,
        measure.b,
        measure.self_loops,
    )
    assert torch.equal(Z, torch.from_numpy(found.Z))
    beta = removal.residual(found, Y.numpy(), W.numpy(), 0.1, HEAD).most
    assert beta >= fast.measured * (1 - 1e-12)
    assert math.isclose(beta, fast.upper, rel_tol=1e-9)


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        ({'entries': np.array([[0, 0], [1, 1]])}, 'once'),
        ({'entries': np.array([[2, 1, 2], [0, 0, 0]])}, 'once'),
        ({'x': np.array([[math.nan]] * 3)}, 'finite'),
        ({'x': np.array([[1.0], [math.inf], [1.0]])}, 'finite'),
        ({'weights': (1.0, -1.0)}, 'positive'),
    ],
)
def test_features_of_bad_input_are_refused(change, match):
    case = {
        'entries': np.array([[0, 1], [1, 0]]),
        'x': np.ones((3, 1)),
        'rows': np.arange(3),
        'weights': (0.0, 1.0),
        'a': 0.5,
        'b': 0.5,
        'self_loops': False,
    }
    removal.features(**case)
    with pytest.raises(ValueError, match=match):
        removal.features(**{**case, **change})


@pytest.mark.parametrize(
    ('head', 'targets', 'W', 'lam'),
    [
        ('ovr', [[0.0]], [[1.0]], 1.0),
        ('softmax', [[-1.0]], [[1.0]], 1.0),
        ('softmax', [[0.0]], [[1.0]], 1.0),
        ('ovr', [[1.0]], [[math.inf]], 1.0),
        ('ovr', [[1.0]], [[1.0]], 0.0),
        # One of several is enough.
        ('ovr', [[1.0, 0.5]], [[1.0, 1.0]], 1.0),
        ('ovr', [[1.0, 1.0]], [[1.0, math.nan]], 1.0),
        ('softmax', [[1.0, 0.0], [1.0, 1.0]], [[1.0, 1.0]], 1.0),
    ],
)
def test_residuals_of_bad_input_are_refused(head, targets, W, lam):
    found = removal.Features(np.ones((len(targets), 1)), 0.0)
    with pytest.raises(ValueError, match='to'):
        removal.residual(found, np.array(targets), np.array(W), lam, head)
    rows = removal.Features(np.array([[1.0], [math.nan]]), 0.0)
    with pytest.raises(ValueError, match='finite'):
        removal.residual(rows, np.ones((2, 1)), np.ones((1, 1)), 1.0, 'ovr')


def test_what_overflows_or_underflows_proves_nothing_or_enough():
    Y, one = np.array([[1.0, 0.0]]), np.ones((1, 1))
    far = removal.Features(one * 1e200, 0.0)
    W = np.array([[1e200, -1e200]])
    assert removal.residual(far, Y, W, 1.0, 'softmax') == (0, math.inf)
    # The square of 1e-170 is no number, the gradient is one.
    near = removal.Features(np.full((1, 4), 1e-170), 0.0)
    beta = removal.residual(near, Y[:, :1], np.zeros((4, 1)), 1.0, 'ovr').most
    assert beta >= 0.5 * 2e-170
    for exponent in range(-1060, -480, 4):
        size = 2.0**exponent
        near = removal.Features(np.full((1, 4), size), 0.0)
        for w in (0.0, 1.0):
            W = np.zeros((4, 1))
            W[:2, 0] = w, -w
            found = removal.residual(near, Y[:, :1], W, size, 'ovr')
            with mpmath.workdps(60):
                z = [[mpmath.mpf(size)] * 4]
                true = true_residual(z, [[1.0]], W, size, 'ovr')
                assert found.least <= true <= found.most
    # Without features and weights the gradient is zero.
    none = removal.Features(np.zeros((1, 4)), 0.0)
    found = removal.residual(none, Y[:, :1], np.zeros((4, 1)), 1.0, 'ovr')
    assert found.least == 0 < found.most


def exact_norm(values):
    squares = sum(Fraction(float(v)) ** 2 for v in values.ravel())
    return mpmath.sqrt(mpmath.mpf(squares.numerator) / squares.denominator)


@mpmath.workdps(60)
def test_a_norm_is_never_below_that_of_real_numbers():
    rng = np.random.default_rng(0)
    for size in (*[1] * 40, 2, 3, 4, 5, 10, 100):
        values = rng.standard_normal((size, 1)) * 10 ** rng.uniform(-9, 9)
        exact, found = exact_norm(values), removal.norm(values)
        assert exact <= found <= exact * (1 + 2 * (size + 6) * 2.0**-53)


@mpmath.workdps(60)
def test_an_interval_of_many_numbers_holds_the_gradient():
    # One row, no weights: the gradient is that of the loss at 0, -2 y z.
    rng = np.random.default_rng(0)
    for columns in (1, 30, 300):
        Z = rng.standard_normal((1, columns))
        case = removal.Features(Z, 0.0), np.ones((1, 1))
        W = np.zeros((columns, 1))
        least, most = removal.residual(*case, W, 1.0, 'squared')
        assert least <= 2 * exact_norm(Z) <= most
        # The steps of this bound are 20 more, of less than an ulp.
        assert most >= 2 * exact_norm(Z) * (1 + 20 * 2.0**-53)


@mpmath.workdps(60)
def test_a_shift_is_never_below_that_of_real_numbers():
    rng = np.random.default_rng(0)
    for _ in range(100):
        beta, lam, std = 10 ** rng.uniform(-4, 4, 3)
        n, W = int(rng.integers(1, 99)), rng.standard_normal((3, 2)) / 9
        grid = mpmath.sqrt(6) * std * mpmath.mpf(2) ** -33
        grid += mpmath.mpf(2) ** -52 * exact_norm(W)
        exact = mpmath.mpf(beta) / (mpmath.mpf(lam) * n)
        exact = (exact + grid) / mpmath.mpf(std)
        found = removal.shift(beta, n, lam, W, std)
        assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -13)


# What is handed in ###########################################################


@pytest.mark.parametrize('name', sorted(SETTINGS))
def test_what_a_classifier_hands_in_proves_its_release(name):
    model, report, _ = forgotten(name)
    arrays = model._model.evidence()
    proof = removal.prove(arrays)
    assert proof.num_train == report.num_train
    assert proof.residual.most <= report.bound
    assert proof.shift <= model.ledger.spent
    assert removal.sealed(arrays) == model.ledger.entries[-1].data
    assert removal.setting(arrays) == report.setting
    assert removal.plausible(arrays) > 1e-6
    # By the definition, of numbers that are read off the classifier.
    held = model._model.data
    first = int(model.nodes[0])
    labels = arrays['labels']
    pairs = torch.stack([model.graph.row, model.graph.col]).numpy()
    measure = held.settings.measure
    if measure.along:
        row = true_features(
            pairs,
            arrays['x'],
            [first],
            measure.weights,
            measure.a,
            measure.b,
            measure.self_loops,
        )[0]
        wanted = held.levels.rows(torch.tensor([first]))[0]
        assert row == wanted.tolist()
    found = model.verify()
    assert found.ok
    assert found.proved
    assert found.proved_residual == proof.residual.most
    assert labels[71] == -1


def test_a_change_of_anything_is_another_seal_or_another_setting():
    model, *_ = forgotten('appnp')
    arrays = model._model.evidence()
    seal, setting = removal.sealed(arrays), removal.setting(arrays)
    inside = {'weights', 'a', 'b', 'self_loops', 'along', 'lam', 'std', 'head'}
    inside.add('bits')
    for name, array in arrays.items():
        other = array.copy()
        if name == 'head':
            other = np.array('softmax')
        elif other.dtype == bool:
            other[(0,) * other.ndim] ^= True
        else:
            at = (1 if name in ('x', 'labels', 'rowptr') else 0,) * other.ndim
            other[at] += 1
        changed = {**arrays, name: other}
        assert (removal.setting(changed) != setting) == (name in inside)
        # W is in no seal: it is in no file.
        assert (removal.sealed(changed) != seal) == (name != 'W')


def test_weights_that_noise_does_not_lead_from_are_found_out():
    model, *_ = forgotten('two classes')
    arrays = model._model.evidence()
    W, std = arrays['W'], model.release_std
    noise = np.random.default_rng(0).standard_normal(W.shape) * std
    for away, likely in ((W, True), (W + 9 * std, False), (None, False)):
        released = W if away is None else away + noise
        found = removal.plausible({**arrays, 'released': released})
        assert (found > 1e-6) == likely
    # Chi-squared of two is exponential: by hand.
    pair = {'W': np.zeros(2), 'released': np.array([3.0, 4.0]), 'std': 2.5}
    assert removal.plausible(pair) == pytest.approx(2 * math.exp(-2), abs=0)
    assert removal.plausible({**pair, 'std': 5.0}) == pytest.approx(
        2 * (1 - math.exp(-0.5)), rel=1e-14
    )


def wrong(arrays):
    """Proofs that are none."""
    yield 'format', {**arrays, 'more': arrays['x']}
    for name, array in arrays.items():
        yield name, {k: v for k, v in arrays.items() if k != name}
        yield name, {**arrays, name: array[None]}
        yield (
            name,
            {**arrays, name: array.astype('f2')}
            if (name != 'head')
            else {**arrays, name: np.array('hinge')},
        )
        if array.dtype == float:
            bad = array.copy()
            bad[(0,) * bad.ndim] = math.nan
            yield name, {**arrays, name: bad}
        if array.ndim:
            yield name, {**arrays, name: array[:-1]}
    for name, value in (
        ('rowptr', -1),
        ('rowptr', 7),
        ('col', -1),
        ('col', 150),
        ('labels', -2),
        ('labels', 3),
        ('weights', -1.0),
    ):
        bad = arrays[name].copy()
        bad[0] = value
        yield name, {**arrays, name: bad}
    last = arrays['rowptr'].copy()
    last[-1] += 1
    yield 'rowptr', {**arrays, 'rowptr': last}
    dip = arrays['rowptr'].copy()
    dip[1], dip[2] = dip[2] + 1, dip[1]
    yield 'rowptr', {**arrays, 'rowptr': dip}
    for name in ('lam', 'std'):
        yield name, {**arrays, name: np.array(0.0)}
    # What is gone has neither edges nor a label nor features: 70 and 72.
    for name, at, value in (
        ('alive', 3, False),
        ('labels', 70, 0),
        ('x', (70, 0), 1.0),
        ('x', (72, 3), -1.0),
        ('col', 0, 70),
    ):
        bad = arrays[name].copy()
        bad[at] = value
        yield name, {**arrays, name: bad}
    yield 'labels', {**arrays, 'labels': np.full_like(arrays['labels'], -1)}
    yield 'weights', {**arrays, 'weights': arrays['weights'][:0]}
    one = {'classes': arrays['classes'][:1], 'W': arrays['W'][:, :1]}
    one |= {'released': arrays['W'][:, :1]}
    yield 'classes', {**arrays, **one, 'labels': arrays['labels'] * 0}


def test_arrays_that_are_no_proof_are_refused():
    model, *_ = forgotten('appnp')
    arrays = model._model.evidence()
    removal.checked(arrays)
    tried = 0
    for name, bad in wrong(arrays):
        # Fewer classes, weights or edges are a proof of something else.
        if (
            name in ('weights', 'classes')
            and name in bad
            and (len(np.atleast_1d(bad[name])) > 1)
            and np.array_equal(
                np.ravel(bad[name]), np.ravel(arrays[name])[: bad[name].size]
            )
            and bad[name].ndim == 1
            and bad[name].dtype == arrays[name].dtype
        ):
            continue
        tried += 1
        with pytest.raises(ValueError, match=r'array|numbers'):
            removal.prove(bad)
    assert tried > 60


def triangle(**changes):
    """A proof of two classes on three nodes."""
    made = {
        **dict.fromkeys(('a', 'b'), 0.5),
        **{'lam': 0.1, 'std': 1.0, 'releases': 1, 'bits': 40},
        **dict.fromkeys(('self_loops', 'along', 'secure'), True),
        **{'directed': False, 'head': 'softmax', 'weights': [0.0, 1.0]},
        **{'rowptr': [0, 2, 4, 6], 'col': [1, 2, 0, 2, 0, 1]},
        **{'alive': [True] * 3, 'own_loop': [False] * 3},
        **{'featureless': [False] * 3, 'labels': [0, 1, -1]},
        **{'classes': [5, 8], 'x': [[1.0], [2.0], [3.0]]},
        **{'W': [[0.5, -0.5]], 'released': [[0.5, -0.5]]},
        **{'salt': [0] * 32, **changes},
    }
    kinds = removal.ARRAYS
    return {
        name: np.array(
            value, None if kinds[name][0] == 'str' else kinds[name][0]
        )
        for name, value in made.items()
    }


def test_what_remains_has_its_own_loops_and_new_numbers():
    # 0 - 1 - 3 and loops at 0, 1 and 3, of which that of 1 alone was there.
    arrays = triangle(
        **{'alive': [True, True, False, True], 'featureless': [False] * 4},
        **{'own_loop': [False, True, False, False]},
        **{'rowptr': [0, 2, 5, 5, 7], 'col': [0, 1, 0, 1, 3, 1, 3]},
        **{'labels': [1, -1, -1, 0], 'x': [[1.0], [2.0], [0.0], [4.0]]},
    )
    found = removal.remaining(arrays)
    assert found['n_id'].dtype == found['edge_index'].dtype == 'torch.int64'
    assert found['n_id'].array.tolist() == [0, 1, 3]
    assert found['x'].array.tolist() == [[1.0], [2.0], [4.0]]
    pairs = [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
    assert list(zip(*found['edge_index'].array.tolist(), strict=True)) == pairs
    assert found['trained'] == {0, 3}
    assert found['proof'] is arrays
    with pytest.raises(ValueError, match='out of range'):
        removal.remaining({**arrays, 'bits': np.array(0)})


def test_a_seal_is_that_of_its_format():
    # Blocks of 64 nodes with a salt each, hashed by 1,024 of them.
    rng, n = np.random.default_rng(0), 64 * 1025 + 1
    count = rng.integers(0, 2, n)
    arrays = triangle(
        **{'alive': [True] * n, 'own_loop': rng.random(n) < 0.5},
        **{'featureless': [False] * n, 'labels': rng.integers(-1, 2, n)},
        **{'rowptr': np.cumsum([0, *count]), 'x': rng.random((n, 1))},
        **{'col': rng.integers(0, n, count.sum()), 'releases': 3},
        salt=rng.integers(0, 256, 32),
    )
    root, part = b'', b''
    for block in range(1026):
        held = slice(64 * block, 64 * block + 64)
        ends = arrays['rowptr'][64 * block : 64 * block + 65]
        text = digest(
            count[held],
            arrays['col'][ends[0] : ends[-1]],
            *(arrays[k][held] for k in ('alive', 'own_loop', 'featureless')),
            *(arrays[k][held] for k in ('x', 'labels')),
        )
        made = hashlib.sha256(text.encode()).digest()
        part += f'{block} '.encode() + made
        if block % 1024 == 1023 or block == 1025:
            group = f'{block // 1024} '.encode()
            root, part = root + group + hashlib.sha256(part).digest(), b''
    salt, root = arrays['salt'].tobytes(), hashlib.sha256(root).digest()
    root = hmac.new(salt, root, hashlib.sha256).hexdigest()
    names = 'weights a b bits self_loops along lam std'
    about = digest(str(arrays['head']), *(arrays[k] for k in names.split()))
    whole = 'state', root, '(5, 8)', False, 3, True, about, arrays['released']
    assert removal.sealed(arrays) == digest(*whole)


def test_a_claim_is_compared_field_by_field(monkeypatch):
    model, *_ = forgotten('two classes')
    arrays = model._model.evidence()
    n, beta, m = removal.prove(arrays)
    std, lam, secure = (arrays[k].item() for k in ('std', 'lam', 'secure'))
    claimed = {'lam': lam, 'release_std': std, 'seeded': not secure}
    claimed |= {'num_train': n, 'bound': beta.most}
    claimed['data'] = removal.sealed(arrays)
    claimed['setting'] = removal.setting(arrays)
    claimed['model'] = removal.fingerprint('weight', arrays['released'])

    def statuses(**changes):
        fields = {**claimed, **changes}
        return [status for status, _ in removal.compare(arrays, fields, m)]

    assert statuses() == ['holds'] * 5
    for at, name in enumerate(('data', 'model', 'setting')):
        for value, status in (('0' * 64, 'FAILS'), ('', 'not proved')):
            assert statuses(**{name: value})[at] == status
        texts = [t for _, t in removal.compare(arrays, claimed, m)]
        assert ' not as the report' not in texts[at]
        wrong = {**claimed, name: '0' * 64}
        texts = [t for _, t in removal.compare(arrays, wrong, m)]
        assert 'not as the report has it' in texts[at]
    for name, value in (
        ('lam', lam * 2),
        ('release_std', std / 2),
        ('seeded', secure),
    ):
        assert statuses(**{name: value})[3] == 'FAILS'
    # Noise is as likely as it has to be, or the weights are others.
    chance = removal.plausible(arrays)
    for least, status in ((chance, 'holds'), (chance * 1.01, 'FAILS')):
        monkeypatch.setattr(removal, 'LEAST_CHANCE', least)
        assert statuses()[3] == status
    monkeypatch.setattr(removal, 'LEAST_CHANCE', 1e-9)
    # What has no bound, or takes too long, is not proved and not tried.
    monkeypatch.setattr(removal, 'prove', lambda _: pytest.fail('tried'))
    assert statuses(bound=0)[-1] == 'not proved'
    monkeypatch.setattr(removal, 'MOST_WORK', removal.work(arrays) - 1)
    assert statuses()[-1] == 'not proved'
    monkeypatch.setattr(removal, 'MOST_WORK', removal.work(arrays))
    with pytest.raises(pytest.fail.Exception):
        statuses()


def test_a_claim_holds_up_to_its_bound_and_what_is_paid():
    model, *_ = forgotten('two classes')
    arrays = model._model.evidence()
    n, beta, m = removal.prove(arrays)
    std, lam, secure = (arrays[k].item() for k in ('std', 'lam', 'secure'))
    claimed = {'lam': lam, 'release_std': std, 'seeded': not secure}
    claimed |= {'num_train': n, 'setting': removal.setting(arrays)}
    assert 0 < beta.least < beta.most

    def status(bound, paid, **changes):
        fields = {**claimed, 'bound': bound, **changes}
        *_, last = removal.compare(arrays, fields, paid)
        return last[0]

    below = math.nextafter(beta.most, 0)
    assert status(beta.most, m) == 'holds'
    # Of bound and payment, one alone does not do.
    assert status(beta.most, math.nextafter(m, 0)) == 'not proved'
    assert status(below, m) == 'not proved'
    assert status(beta.least, m) == 'not proved'
    assert status(math.nextafter(beta.least, 0), m) == 'FAILS'
    assert status(beta.most, m, num_train=n + 1) == 'FAILS'
