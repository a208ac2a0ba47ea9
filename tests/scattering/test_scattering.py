import itertools
import math

import numpy as np
import pytest
import torch

from pyg_trust.graph import CSRGraph
from pyg_trust.scattering.batch import num_paths
from pyg_trust.scattering.transform import METHODS, scattering_transform
from pyg_trust.scattering.wavelets import (
    WAVELETS,
    itersine,
    monic_cubic,
    wavelet_bank,
)

POLYNOMIAL = ('geometric', 'geometric_column', 'diffusion')


def frame_bounds(bank):
    # From the extreme eigenvalues of the sum of H_j^T H_j.
    gram = (bank.mT @ bank).sum(-3)
    return torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()[..., [0, -1]]


def undirected(pairs):
    pairs = list(pairs)
    return torch.tensor(pairs + [(v, u) for u, v in pairs]).view(-1, 2).t()


GRAPHS = {
    'path': (undirected([(0, 1), (1, 2), (2, 3)]), 4),
    'star': (undirected([(0, i) for i in range(1, 9)]), 9),
    'cycle': (undirected([(i, (i + 1) % 5) for i in range(5)]), 5),
    'isolated_ends': (undirected([(1, 2), (2, 3), (1, 3)]), 5),
    'edgeless': (torch.empty(2, 0, dtype=torch.int64), 3),
    'single': (torch.empty(2, 0, dtype=torch.int64), 1),
}


def random_graph(n, p, seed):
    rng = np.random.default_rng(seed)
    pairs = [
        pair
        for pair in itertools.combinations(range(n), 2)
        if rng.random() < p
    ]
    return undirected(pairs), n


def features(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(n, d, generator=generator, dtype=torch.float64) - 1


def adjacency(edge_index, n):
    adj = np.zeros((n, n))
    adj[edge_index[0], edge_index[1]] = 1
    return adj


def bank_reference(adj, wavelet, J):
    # The definitions, filter by filter.
    n = len(adj)
    degree = adj.sum(1)
    inverse = np.array([1 / v if v else 0 for v in degree])
    if wavelet == 'geometric':
        walk = (np.eye(n) + np.diag(inverse) @ adj) / 2
    elif wavelet == 'geometric_column':
        walk = (np.eye(n) + adj @ np.diag(inverse)) / 2
    else:
        root = np.diag(np.sqrt(inverse))
        walk = (np.eye(n) + root @ adj @ root) / 2
    power = np.linalg.matrix_power
    if wavelet in POLYNOMIAL:
        return [np.eye(n) - walk] + [
            power(walk, 2 ** (j - 1)) - power(walk, 2**j) for j in range(1, J)
        ]
    values, vectors = np.linalg.eigh(2 * (np.eye(n) - walk))

    def response(j, lam):
        if wavelet == 'itersine':
            s = lam * (J - 1) / 4
            if (
                not j / 2 - 0.5 <= s <= j / 2 + 0.5
                and abs(abs(s - j / 2) - 0.5) > 1e-12
            ):
                return 0.0
            return math.sin(math.pi / 2 * math.cos(math.pi * (s - j / 2)) ** 2)
        peak = 2 - 1 / math.sqrt(3)
        top = -2 + 5.5 * peak - 3 * peak**2 + 0.5 * peak**3
        if j == 0:
            return top * math.exp(-((lam / (0.6 * 2 / 20)) ** 4))
        t = 20 ** ((j - 1) / (J - 2)) * lam
        if t < 1:
            return t
        if t <= 2:
            return -2 + 5.5 * t - 3 * t**2 + 0.5 * t**3
        return 2 / t

    return [
        vectors @ np.diag([response(j, max(v, 0)) for v in values]) @ vectors.T
        for j in range(J)
    ]


def reference(
    edge_index,
    n,
    x,
    J,
    Q,
    L,
    wavelet='geometric',
    low_pass='mean',
    linear=False,
):
    adj = adjacency(edge_index, n)
    bank = bank_reference(adj, wavelet, J)
    degree = adj.sum(1)
    weight = np.full(n, 1 / n)
    if low_pass == 'degree' and degree.sum() > 0:
        weight = degree / degree.sum()
    layer, tree = [np.asarray(x)], [np.asarray(x)]
    for _ in range(L - 1):
        layer = [h @ u for u in layer for h in bank]
        if not linear:
            layer = [abs(u) for u in layer]
        tree += layer
    return np.array(
        [
            weight @ u[:, f] ** q
            for u in tree
            for f in range(x.shape[1])
            for q in range(1, Q + 1)
        ]
    )


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('wavelet', WAVELETS)
@pytest.mark.parametrize('linear', [False, True])
def test_equals_the_definition(name, wavelet, linear):
    edge_index, n = GRAPHS[name]
    graph = CSRGraph.from_edge_index(edge_index, n)
    x = features(n, 2)
    for low_pass, method in itertools.product(('mean', 'degree'), METHODS):
        if method == 'sparse' and wavelet not in POLYNOMIAL:
            continue
        z = scattering_transform(
            graph,
            x,
            J=4,
            Q=3,
            L=3,
            wavelet=wavelet,
            low_pass=low_pass,
            linear=linear,
            method=method,
        )
        expected = reference(
            edge_index, n, x, 4, 3, 3, wavelet, low_pass, linear
        )
        assert z.shape == (1, 21 * 2 * 3)
        np.testing.assert_allclose(z[0], expected, atol=1e-13)


@pytest.mark.parametrize('L', [1, 2, 4])
@pytest.mark.parametrize('J', [1, 3])
def test_any_number_of_layers_and_filters(J, L):
    edge_index, n = random_graph(7, 0.5, 1)
    graph = CSRGraph.from_edge_index(edge_index, n)
    x = features(n, 3)
    for method in METHODS:
        z = scattering_transform(graph, x, J=J, Q=2, L=L, method=method)
        expected = reference(edge_index, n, x, J, 2, L)
        np.testing.assert_allclose(z[0], expected, atol=1e-13)


@pytest.mark.parametrize(
    ('wavelet', 'method'),
    [
        (wavelet, method)
        for wavelet in WAVELETS
        for method in METHODS
        if method != 'sparse' or wavelet in POLYNOMIAL
    ],
)
def test_a_batch_is_its_graphs(wavelet, method):
    # Of different sizes and active columns, the last node of one isolated.
    parts = [*GRAPHS.values(), random_graph(40, 0.1, 3)]
    edges, signals, ptr = [], [], [0]
    for i, (edge_index, n) in enumerate(parts):
        edges.append(edge_index + ptr[-1])
        x = features(n, 4, i)
        x[:, i % 4] = 0
        signals.append(x if i else torch.zeros(n, 4, dtype=torch.float64))
        ptr.append(ptr[-1] + n)
    graph = CSRGraph.from_edge_index(torch.cat(edges, 1), ptr[-1])
    x = torch.cat(signals)
    kwargs = {'J': 3, 'Q': 2, 'L': 3, 'wavelet': wavelet, 'method': method}
    z = scattering_transform(graph, x, torch.tensor(ptr), **kwargs)
    for row, (edge_index, n), signal in zip(z, parts, signals, strict=True):
        expected = reference(edge_index, n, signal, 3, 2, 3, wavelet)
        np.testing.assert_allclose(row, expected, atol=1e-13)
    for features_of in (x, x.to_sparse_csr()):
        sparse = scattering_transform(
            graph, features_of, torch.tensor(ptr), sparse=True, **kwargs
        )
        assert sparse.layout == torch.sparse_csr
        torch.sparse_csr_tensor(
            sparse.crow_indices(),
            sparse.col_indices(),
            sparse.values(),
            sparse.shape,
            check_invariants=True,
        )
        torch.testing.assert_close(sparse.to_dense(), z, rtol=0, atol=1e-15)
        # Only active columns are stored.
        active = sum((s != 0).any(0).sum() for s in signals)
        assert sparse.values().numel() == active * num_paths(3, 3) * 2


def test_large_graphs_take_their_columns_in_parts(monkeypatch):
    edge_index, n = random_graph(20, 0.2, 7)
    x = features(n, 5)
    monkeypatch.setattr(
        'pyg_trust.scattering.transform._SPARSE_NUMBERS', 2 * 20 * 9
    )
    z = scattering_transform(
        CSRGraph.from_edge_index(edge_index, n),
        x,
        J=3,
        Q=2,
        L=3,
        method='sparse',
    )
    expected = reference(edge_index, n, x, 3, 2, 3)
    np.testing.assert_allclose(z[0], expected, atol=1e-13)


def test_weights_and_directions():
    # Row u averages over the nodes that its edges lead to.
    edge_index = torch.tensor([[0, 0, 1], [1, 2, 2]])
    weight = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    graph = CSRGraph.from_edge_index(edge_index, 3, weight)
    x = features(3, 1)
    adj = np.array([[0, 1, 3], [0, 0, 2], [0, 0, 0]], float)
    out, into = adj.sum(1), adj.sum(0)
    for wavelet, scaled in (
        ('geometric', adj / np.where(out, out, 1)[:, None]),
        ('geometric_column', adj / np.where(into, into, 1)),
    ):
        walk = (np.eye(3) + scaled) / 2
        expected = [
            x.mean(),
            *(
                abs(h @ x.numpy()).mean()
                for h in (np.eye(3) - walk, walk - walk @ walk)
            ),
        ]
        for method in METHODS:
            z = scattering_transform(
                graph, x, J=2, Q=1, L=2, wavelet=wavelet, method=method
            )
            np.testing.assert_allclose(z[0], expected, atol=1e-14)


def test_float32_follows_the_features():
    edge_index, n = GRAPHS['star']
    graph = CSRGraph.from_edge_index(edge_index, n)
    x = features(n, 2)
    z = scattering_transform(graph, x.float(), J=4, Q=3, L=3)
    assert z.dtype == torch.float32
    expected = scattering_transform(graph, x, J=4, Q=3, L=3)
    torch.testing.assert_close(z.double(), expected, rtol=0, atol=1e-5)


def test_differentiable_in_the_features():
    edge_index, n = random_graph(6, 0.5, 2)
    graph = CSRGraph.from_edge_index(edge_index, n)
    x = features(n, 2).requires_grad_()
    for method in METHODS:
        assert torch.autograd.gradcheck(
            lambda x, m=method: scattering_transform(
                graph, x, J=3, Q=2, L=2, method=m
            ),
            x,
        )


@pytest.mark.parametrize('J', [3, 4, 5, 8])
def test_itersine_is_tight_on_the_spectrum(J):
    grid = torch.linspace(0, 2, 4001, dtype=torch.float64)
    total = itersine(grid, J).square().sum(-1)
    torch.testing.assert_close(
        total, torch.ones_like(total), rtol=0, atol=1e-12
    )
    for seed in range(3):
        edge_index, n = random_graph(15, 0.2, seed)
        adj = torch.from_numpy(adjacency(edge_index, n))
        low, high = frame_bounds(wavelet_bank(adj, 'itersine', J))
        assert abs(low - 1) < 1e-12
        assert abs(high - 1) < 1e-12


def test_monic_cubic_has_no_kinks():
    # The first band (index 1) has scale 1; its knots are at 1 and 2.
    h = 1e-6
    for knot in (1.0, 2.0 - h):
        at = torch.tensor([knot - h, knot, knot + h], dtype=torch.float64)
        left, mid, right = monic_cubic(at, 4)[:, 1].tolist()
        assert abs((right - mid) - (mid - left)) < 1e-4 * h
    grid = torch.linspace(0, 2, 2_000_001, dtype=torch.float64)
    # The low-pass starts at the height of the bands.
    band = monic_cubic(grid, 4)[:, 1].max()
    assert monic_cubic(grid[:1], 4)[0, 0] == pytest.approx(float(band))


def test_energy_of_tight_banks_is_bounded_by_the_layers():
    for seed in range(10):
        edge_index, n = random_graph(14, 0.25, seed)
        graph = CSRGraph.from_edge_index(edge_index, n)
        x = features(n, 1, seed).sign()
        for wavelet in ('diffusion', 'itersine'):
            z = scattering_transform(graph, x, J=4, Q=1, L=3, wavelet=wavelet)
            assert z.norm() <= math.sqrt(3) + 1e-12


def test_row_walk_keeps_coefficients_in_the_unit_interval():
    for seed in range(20):
        edge_index, n = random_graph(14, 0.25, seed)
        graph = CSRGraph.from_edge_index(edge_index, n)
        z = scattering_transform(
            graph, features(n, 2, seed).abs(), J=4, Q=4, L=3
        )
        assert z.min() >= 0
        assert z.max() <= 1
    edge_index, n = GRAPHS['star']
    graph = CSRGraph.from_edge_index(edge_index, n)
    ones = torch.ones(n, 1, dtype=torch.float64)
    column = scattering_transform(
        graph, ones, J=4, Q=4, L=3, wavelet='geometric_column'
    )
    assert column.max() > 1


def test_oracles(shared):
    oracle = np.load(shared / 'oracles' / 'unlearning' / 'gst_embeddings.npz')
    options = {
        'geometric_AD': {'wavelet': 'geometric_column'},
        'geometric_DA': {},
        'geometric_DA_linear': {'linear': True},
        'diffusion_mean': {'wavelet': 'diffusion'},
        'diffusion_degree': {'wavelet': 'diffusion', 'low_pass': 'degree'},
    }
    for name in oracle['names']:
        x = torch.from_numpy(oracle[f'{name}/x'])
        edge_index = torch.from_numpy(oracle[f'{name}/edge_index'])
        graph = CSRGraph.from_edge_index(edge_index, x.size(0))
        for order, (J, Q, L) in {
            'J4Q3L3': (4, 3, 3),
            'J3Q1L2': (3, 1, 2),
        }.items():
            for variant, kwargs in options.items():
                expected = oracle[f'{name}/{order}/{variant}'].ravel()
                for method in METHODS:
                    z = scattering_transform(
                        graph, x, J=J, Q=Q, L=L, method=method, **kwargs
                    )
                    np.testing.assert_allclose(
                        z[0], expected, rtol=0, atol=1e-12
                    )
        adj = torch.from_numpy(adjacency(edge_index, x.size(0)))
        for key, wavelet in (
            ('AD', 'geometric_column'),
            ('DA', 'geometric'),
            ('sym', 'diffusion'),
        ):
            _, high = frame_bounds(wavelet_bank(adj, wavelet, 4))
            expected = float(oracle[f'{name}/frame_B_J4/{key}'])
            assert float(high) == pytest.approx(expected, abs=1e-12)


PATH = CSRGraph.from_edge_index(*GRAPHS['path'])
DIRECTED = CSRGraph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 4)
LOOP = CSRGraph.from_edge_index(torch.tensor([[0, 1], [1, 1]]), 4)
NEGATIVE = CSRGraph.from_edge_index(
    torch.tensor([[0, 1], [1, 0]]), 4, -torch.ones(2)
)


@pytest.mark.parametrize(
    ('change', 'error', 'match'),
    [
        ({'J': 2, 'wavelet': 'itersine'}, ValueError, "'J'"),
        (
            {'wavelet': 'monic_cubic', 'method': 'sparse'},
            ValueError,
            "'method'",
        ),
        (
            {'graph': DIRECTED, 'wavelet': 'diffusion'},
            ValueError,
            'undirected',
        ),
        ({'graph': DIRECTED, 'wavelet': 'itersine'}, ValueError, 'undirected'),
        ({'graph': LOOP}, ValueError, 'self-loops'),
        ({'graph': NEGATIVE}, ValueError, 'negative'),
        ({'x': torch.zeros(4)}, ValueError, "'x'"),
        ({'x': torch.zeros(4, 0)}, ValueError, "'x'"),
        ({'ptr': torch.tensor([0, 3])}, ValueError, "'ptr'"),
        ({'ptr': torch.tensor([0, 0, 4])}, ValueError, "'ptr'"),
        ({'ptr': torch.tensor([0, 2, 4])}, ValueError, 'between'),
    ],
)
def test_bad_input(change, error, match):
    arguments = {'graph': PATH, 'x': torch.zeros(4, 1), 'ptr': None}
    options = {'J': 3, 'Q': 1, 'L': 2}
    for key, value in change.items():
        (arguments if key in arguments else options)[key] = value
    with pytest.raises(error, match=match):
        scattering_transform(*arguments.values(), **options)
