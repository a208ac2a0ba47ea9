"""Certified ranks, against every graph, and what the kernel proves of them."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_trust.certificates import (
    BROKEN,
    ROBUST,
    ThreatModel,
    Witness,
    certify_ranks,
)
from pyg_trust.check import check_report
from pyg_trust.graph import CSRGraph
from pyg_trust.report import TrustReport
from pyg_trust.verify import ranks as kernel


def bipartite(source, users, items, share=0.4):
    made = np.zeros((users + items,) * 2)
    made[:users, users:] = source.random((users, items)) < share
    return made + made.T


def edges_of(A):
    return torch.from_numpy(np.stack(np.nonzero(A)))


def scores_of(graphs, alpha):
    """Row by row, from the inverses of many graphs."""
    d = graphs.sum(-1, keepdims=True)
    P = np.where(d > 0, graphs / np.maximum(d, 1), 0.0)
    return alpha * np.linalg.inv(np.eye(P.shape[-1]) - (1 - alpha) * P)


def all_flips(A, pairs):
    made = np.repeat(A[None], len(pairs) + 1, 0)
    for i, (v, j) in enumerate(pairs):
        made[i + 1, v, j] = made[i + 1, j, v] = 1 - A[v, j]
    return made


def threat_of(A, pairs, budget=1):
    return ThreatModel(
        edges_of(A),
        torch.tensor(pairs).t().contiguous(),
        global_budget=budget,
        undirected=True,
        num_nodes=len(A),
    )


def enumerate_against(source, wanted, more=0):
    """Compare ranks with those of every graph; count these."""
    graphs = tight = places = 0
    while graphs < wanted:
        nu, ni = source.integers(3, 6) + more, source.integers(4, 8) + more
        A, n = bipartite(source, nu, ni), nu + ni
        alpha = float(source.choice([0.15, 0.3, 0.8]))
        every = [(v, j) for v in range(nu) for j in range(nu, n)]
        pairs = [p for p in every if source.random() < 0.7]
        users = [u for u in (0, 1) if A[u].sum() <= ni - 2]
        if not users or not pairs:
            continue
        made = certify_ranks(
            *(edges_of(A), torch.tensor(users), threat_of(A, pairs)),
            alpha=alpha,
            k=2,
            items=torch.arange(nu, n),
        )
        scores = scores_of(all_flips(A, pairs), alpha)
        graphs += len(scores)
        for i, u in enumerate(users):
            free = [c for c in range(nu, n) if not A[u, c]]
            others = [True, *(u not in pair for pair in pairs)]
            rows = scores[others, u]
            for place, item in enumerate(made.items[i].tolist()):
                ranks = (rows[:, free] >= rows[:, [item]] - 1e-9).sum(1)
                assert made.worst_rank[i, place] >= ranks.max()
                tight += int(made.worst_rank[i, place] == ranks.max())
                places += 1
                flip = tuple(made.flips[i, place].tolist())
                at = 0 if flip == (-1, -1) else 1 + pairs.index(flip)
                rank = (
                    scores[at, u, free] >= scores[at, u, item] - 1e-9
                ).sum()
                assert rank >= made.attained[i, place]
                lost = made.status[i, place] == BROKEN
                assert not lost or ranks.max() > 2
        if places % 4 == 0:
            assert made.verify() == 'holds'
    assert tight == places
    return places


def test_no_competitor_is_forgotten():
    # The item at place 41 overtakes when one edge comes.
    A = np.zeros((64, 64))
    ends = [(0, 1), (2, 50), *((1, item) for item in range(3, 43))]
    A[tuple(zip(*ends, strict=True))] = 1
    A += A.T
    made = certify_ranks(
        *(edges_of(A), torch.tensor([0]), threat_of(A, [(1, 50)])), k=40
    )
    scores = scores_of(all_flips(A, [(1, 50)]), 0.15)[1, 0]
    assert 50 not in made.items
    for place, item in enumerate(made.items[0].tolist()):
        rank = (scores[2:] >= scores[item] - 1e-12).sum()
        assert made.worst_rank[0, place] == rank
    assert int(made.worst_rank.max()) == 41


def test_no_rank_is_below_that_of_any_graph():
    assert enumerate_against(np.random.default_rng(0), 2_000) > 200


def test_no_rank_is_below_that_of_any_of_many_graphs():
    enumerate_against(np.random.default_rng(1), 20_000, more=7)


def test_the_oracle_for_several_flips(shared):
    cases = json.loads((shared / 'oracles/links/ranks.json').read_text())
    tight = 0
    for case in cases:
        n = case['num_nodes']
        edges, pairs = torch.tensor(case['edges']), case['fragile']
        first = min(j for _, j in [*pairs, (0, min(case['candidates']))])
        taken = edges[1][edges[0] == case['user']]
        first = min([first, *taken.tolist()])
        threat = ThreatModel(
            edges,
            torch.tensor(pairs).t().contiguous(),
            global_budget=case['global_budget'],
            undirected=True,
            num_nodes=n,
        )
        made = certify_ranks(
            *(edges, torch.tensor([case['user']]), threat),
            alpha=case['alpha'],
            k=len(case['candidates']),
            items=torch.arange(first, n),
        )
        place = made.items[0].tolist().index(case['item'])
        found = int(made.worst_rank[0, place])
        assert found >= case['worst_rank']
        tight += found == case['worst_rank']
        assert made.verify() == (
            'holds' if made.method == 'flip' else 'not proved'
        )
    assert tight >= 0.9 * len(cases) == 27


def example(budget=1, **arguments):
    source = np.random.default_rng(3)
    A = bipartite(source, 6, 9)
    data = Data(edge_index=edges_of(A), num_nodes=15)
    threat = ThreatModel(
        *(data, 'removals'),
        fixed='none',
        global_budget=budget,
        undirected=True,
        num_nodes=15,
    )
    arguments = {'k': 3, 'items': torch.arange(6, 15), **arguments}
    return certify_ranks(data, torch.tensor([0, 4]), threat, **arguments)


def test_several_flips_cover_one():
    one, two = example(), example(2)
    assert two.method == 'certify'
    assert one.method == 'flip'
    assert bool((two.worst_rank >= one.worst_rank).all())
    assert bool(((two.status == BROKEN) >= (one.status == BROKEN)).all())
    assert two.num_lost >= one.num_lost > 0
    assert two.verify() == 'not proved'
    zero = example(0)
    assert zero.worst_rank.tolist() == [[1, 2, 3]] * 2
    assert bool((zero.status == ROBUST).all())
    assert zero.verify() == 'holds'
    assert one.certified_ratio() == one.num_kept / 6


def test_equal_scores_count_against_both():
    # Items 3 and 4 are one another's mirror image; a tie is no win.
    A = np.zeros((5, 5))
    for u, i in ((0, 2), (1, 2), (1, 3), (1, 4)):
        A[u, i] = A[i, u] = 1
    for budget in (1, 2):
        made = certify_ranks(
            *(edges_of(A), torch.tensor([0]), threat_of(A, [(1, 2)], budget)),
            k=1,
            items=torch.arange(2, 5),
        )
        assert made.worst_rank.tolist() == [[2]]
        assert made.num_kept == 0


def test_scores_are_no_further_off_than_the_kernel_says():
    # In fractions: the new scores of one flip, and both bounds.
    source = np.random.default_rng(4)
    A, alpha = bipartite(source, 3, 4, 0.6), 0.3
    users, items = np.arange(2), np.arange(3, 7)
    made = kernel.invert(
        CSRGraph.from_edge_index(edges_of(A), num_nodes=7)
        .to_scipy()
        .astype(float),
        alpha,
    )

    def exact(A):
        rate = Fraction(alpha)
        rows = [[Fraction(int(i == j)) for j in range(14)] for i in range(7)]
        for i in range(7):
            d = int(A[i].sum())
            for j in range(7):
                rows[i][7 + j] = Fraction(int(i == j))
                if A[i, j]:
                    rows[i][j] -= (1 - rate) / d
        for i in range(7):
            rows[i] = [x / rows[i][i] for x in rows[i]]
            for j in set(range(7)) - {i}:
                rows[j] = [
                    x - rows[j][i] * y
                    for x, y in zip(rows[j], rows[i], strict=True)
                ]
        return [[rate * x for x in row[7:]] for row in rows]

    truth = exact(A)
    off = kernel.clean(made)
    for u in users:
        for c in range(7):
            assert abs(Fraction(alpha * made.X[u, c]) - truth[u][c]) <= off
    assert off < 1e-12
    tried = 0
    for v, j in ((2, 3), (1, 5), (0, 6), (2, 4)):
        gone = bool(A[v, j])
        y, part, errors = kernel.flip(made, users, items, [v, j], gone)
        after = exact(all_flips(A, [(v, j)])[1])
        for u in users:
            t = alpha * made.X[u, items] + y[u] @ part
            for c, value in zip(items, t, strict=True):
                assert abs(Fraction(value) - after[u][c]) <= errors[u]
                tried += Fraction(value) != after[u][c]
        assert errors.max() < 1e-11
    assert tried > 10


@pytest.mark.parametrize('size', [1e-11, 1e-6, 1e-2, np.nan, np.inf])
def test_a_wrong_inverse_proves_less_and_nothing_false(monkeypatch, size):
    made = example()
    arrays = made.proof.arrays
    right, _ = kernel.prove(arrays)
    assert right.all()
    invert, source = np.linalg.inv, np.random.default_rng(0)
    monkeypatch.setattr(
        np.linalg,
        'inv',
        lambda m: invert(m) + size * source.standard_normal(m.shape),
    )
    try:
        proved, lost = kernel.prove(arrays)
    except ValueError:
        return
    under = {**arrays, 'worst': np.maximum(arrays['worst'] - 1, 1)}
    less = arrays['worst'] > 1
    assert not kernel.prove(under)[0][less].any()
    if size > 1e-3 or size != size:
        # No item can have a larger rank than there are items.
        A = np.zeros((15, 15))
        A[tuple(edges_of(bipartite(np.random.default_rng(3), 6, 9)))] = 1
        left = (A[[0, 4], 6:] == 0).sum(1)
        assert (arrays['worst'] == left[:, None])[proved].all()
        assert not lost.any()


def test_the_witness_proves_no_more_than_what_is_so(tmp_path):
    made = example()
    arrays = made.proof.arrays
    proved, lost = kernel.prove(arrays)
    assert proved.all()
    assert np.array_equal(lost, made.status.numpy() == BROKEN)
    for place in np.ndindex(*made.worst_rank.shape):
        if made.worst_rank[place] == 1:
            continue
        less = {**arrays, 'worst': arrays['worst'].copy()}
        less['worst'][place] -= 1
        again, _ = kernel.prove(less)
        assert not again[place]
        again[place] = True
        assert again.all()
        # It needs no hint, which flip that is.
        less['flips'] = np.full_like(less['flips'], -1)
        assert not kernel.prove(less)[0][place]
    # Another flip than the one that displaces it shows no loss.
    other = {**arrays, 'flips': np.full_like(arrays['flips'], -1)}
    assert not kernel.prove(other)[1].any()
    with pytest.raises(OverflowError, match='minutes'):
        kernel.prove(arrays, 100)
    made.proof.save(tmp_path / 'w.npz')
    again = Witness.load(tmp_path / 'w.npz')
    assert again.digest == made.witness_digest
    assert made.verify(again) == 'holds'
    assert example(alpha=0.3).verify(again) == 'FAILS'


# Numbers that an array may not hold, and others that are all in range.
OUTSIDE = {
    **dict.fromkeys(('users', 'items', 'pairs'), (-1, 15)),
    **{'worst': (0, 10), 'flips': (-2, 10**6), 'alpha': (0.0, 1.0, np.nan)},
    'tolerance': (-1e-3, np.nan, np.inf),
}
TWISTED = [
    ('users', lambda x: x[[0, 0]]),
    ('items', lambda x: x[[0, *range(9)]]),
    ('items', lambda x: x[::-1]),
    ('items', lambda x: x[-2:]),
    ('best', lambda x: x[:, [0, 0, 1]]),
    # Items that a user has, and items that are not the best.
    ('best', lambda x: x[::-1]),
    ('best', lambda x: (x - 6 + 4) % 9 + 6),
    ('flips', lambda x: x[:, :2]),
    ('pairs', lambda x: x[:, [0, *range(x.shape[1])]]),
    ('pairs', lambda x: np.append(x, [[14], [14]], 1)),
    ('pairs', lambda x: x[::-1]),
    ('pairs', lambda x: np.concatenate([x, x[:1]])),
    ('col', lambda x: np.concatenate([x[:1] + 1, x[1:]])),
    ('rowptr', lambda x: x[:1]),
]


def test_a_hostile_witness_is_refused():
    arrays = dict(example().proof.arrays)
    bad = [{**arrays, name: change(arrays[name])} for name, change in TWISTED]
    bad.append({**arrays, 'more': arrays['alpha']})
    none = {name: arrays[name][:, :0] for name in ('best', 'worst', 'flips')}
    bad.append({**arrays, **none})
    for name, value in arrays.items():
        bad.append({k: v for k, v in arrays.items() if k != name})
        bad += [{**arrays, name: x} for x in (value[None], value.astype('f4'))]
        for number in OUTSIDE.get(name, ()):
            for at in (0, -1):
                other = value.copy()
                other.reshape(-1)[at] = number
                bad.append({**arrays, name: other})
    for each in bad:
        with pytest.raises(ValueError, match='witness'):
            kernel.prove(each)


def lines(report, tmp_path, witness=None):
    path = tmp_path / 'trust.json'
    TrustReport.of(report).save(path)
    return [(f.status, f.text) for f in check_report(path, witness=witness)]


def test_a_checker_proves_the_ranks_of_a_report(tmp_path):
    made = example()
    file = tmp_path / 'w.npz'
    made.proof.save(file)
    found = lines(made, tmp_path, file)
    assert 'FAILS' not in {status for status, _ in found}
    said = ' '.join(text for status, text in found if status == 'holds')
    lost = f'{made.num_lost} of {made.num_lost}'
    assert f'6 of 6 ranks are proved, and that {lost} are above k' in said
    path = tmp_path / 'two.json'
    TrustReport.of(example(2)).save(path)
    assert any(
        f.status == 'not proved' and 'several flips' in f.text
        for f in check_report(path)
    )


def test_a_report_says_what_its_witness_does(tmp_path):
    made = example()
    arrays = made.proof.arrays
    _, ledger = np.unique(arrays['worst'], return_counts=True)
    claimed = {
        **{'num_users': 2, 'num_items': 9, 'k': 3},
        **{'alpha': 0.15, 'tolerance': 1e-9},
        'num_flips': arrays['pairs'].shape[1],
        'global_budget': 1,
        'ranks': np.stack([np.unique(arrays['worst']), ledger], 1).tolist(),
        'num_lost': made.num_lost,
    }
    assert float(arrays['alpha']) == claimed['alpha']
    assert float(arrays['tolerance']) == claimed['tolerance']

    def judged(**changes):
        found = kernel.judge(arrays, {**claimed, **changes}, np.inf)
        return list(zip(*found, strict=True))

    statuses, texts = judged()
    assert statuses == ('holds', 'not checked')
    assert 'edges are those of the data' in texts[-1]
    for name, value in (
        *(('num_users', 3), ('num_items', 8), ('k', 2), ('alpha', 0.2)),
        *(('tolerance', 0.0), ('num_flips', 1), ('global_budget', 2)),
        ('ranks', [[1, 6]]),
    ):
        statuses, texts = judged(**{name: value})
        assert statuses == ('holds', 'FAILS', 'not checked')
        assert f'{name} is' in texts[1]
    # One more is lost, or one rank is too low.
    assert judged(num_lost=made.num_lost + 1)[0][0] == 'not proved'
    less = {**arrays, 'worst': np.maximum(arrays['worst'] - 1, 1)}
    assert next(kernel.judge(less, claimed, np.inf))[0] == 'not proved'
    one = {**arrays, 'worst': arrays['worst'].copy()}
    one['worst'][0, 2] -= 1
    assert next(kernel.judge(one, claimed, np.inf))[0] == 'not proved'


# By hand: scores that are given, and errors of powers of two ################


def by_hand(scores, best, worst, tolerance, pairs=(), flips=None):
    """The witness of user 0; of its scores all are X / 2."""
    n = 2 + len(scores)
    X = np.zeros((n, n))
    X[0, 2:] = 2 * np.array(scores)
    size = len(best)
    arrays = {
        **{'alpha': np.array(0.5), 'tolerance': np.array(tolerance)},
        'rowptr': np.zeros(n + 1, np.int64),
        'col': np.zeros(0, np.int64),
        'users': np.array([0]),
        'items': np.arange(2, n),
        'pairs': np.array(pairs, dtype=np.int64).reshape(-1, 2).T,
        'best': np.array([best]),
        'worst': np.array([worst]),
        'flips': np.array([flips or [-1] * size]),
    }
    return arrays, X


def proved_by_hand(monkeypatch, off, error, moved, *args):
    arrays, X = by_hand(*args)
    degree = np.zeros(len(X))
    made = kernel.Inverse(X, X, degree, 0.5, off / 2, 0.0, 0.0)
    monkeypatch.setattr(kernel, 'invert', lambda *_: made)
    monkeypatch.setattr(
        kernel,
        'flip',
        lambda *_: (
            np.array([[1.0, 0.0]]),
            np.array([moved, moved]),
            np.array([error]),
        ),
    )
    return [x[0].tolist() for x in kernel.prove(arrays)]


def test_scores_count_as_beside_up_to_their_errors(monkeypatch):
    # Two errors of 1/16 and a tolerance of 1/8 make 1/4.
    hair = 2.0**-20
    scores = [1.0, 0.75, 0.75 - hair, 0.25]

    def proved(*args):
        return proved_by_hand(monkeypatch, 1 / 16, 0.0, [], *args)

    assert proved(scores, [2], [1], 0.125) == [[False], [False]]
    assert proved(scores, [2], [2], 0.125) == [[True], [False]]
    # An item that is above another by no more than two errors is no better.
    scores = [0.875, 0.75, 0.5, 0.25]
    assert proved(scores, [3], [2], 0.0)[0] == [True]
    scores[0] += hair
    with pytest.raises(ValueError, match='best'):
        proved(scores, [3], [2], 0.0)
    assert proved(scores, [3, 2], [2, 1], 0.0)[0] == [True, True]
    with pytest.raises(ValueError, match='best'):
        proved(scores, [2, 5], [1, 4], 0.0)
    with pytest.raises(ValueError, match='best'):
        proved([np.nan, 0.75], [2], [2], 0.0)
    assert kernel.beside(
        np.array([1.0, 0.5, 0.25, np.nan]), np.array([1.0]), 0.5
    ) == [3]


def test_a_flip_may_move_scores_up_to_its_error(monkeypatch):
    hair = 2.0**-20
    scores = [1.0, 0.75, 0.75 - hair, 0.25]

    def proved(worst, flips=(), moved=(0, 0, 0, 0)):
        args = scores, [2], worst, 0.125, [(1, 3)], list(flips)
        return proved_by_hand(monkeypatch, 0.0, 1 / 16, list(moved), *args)

    assert proved([1]) == [[False], [False]]
    assert proved([2]) == [[True], [False]]
    # The last item but one is one that all others may be beside.
    scores = [1.0, 0.9375, 0.875, 0.8125]
    assert proved([3]) == [[False], [False]]
    assert proved([4]) == [[True], [False]]
    scores = [1.0, 0.75, 0.75 - hair, 0.25]
    # Item 3 comes to be above by more than two errors, or by as many.
    for more, lost in ((0.375, False), (0.375 + hair, True)):
        assert proved([2], [0], (0, more, 0, 0))[1] == [lost]
        assert proved([2], [], (0, more, 0, 0))[1] == [False]


def test_what_an_item_is_not_has_no_rank():
    # User 0 has item 2: of the items only one is left to be ranked.
    arrays, _ = by_hand([0.0, 0.0], [2, 3], [2, 2], 0.0)
    arrays['rowptr'] = np.array([0, 1, 1, 2, 2])
    arrays['col'] = np.array([2, 0])
    with pytest.raises(ValueError, match='best'):
        kernel.prove(arrays)


def test_the_last_node_is_not_the_one_before_the_first():
    # Without edges, the last item has the only score: that of itself.
    arrays, X = by_hand([0.0, 0.0], [2], [2], 0.0)
    assert kernel.prove(arrays)[0].all()
    arrays |= {'users': np.array([-1]), 'best': np.array([[len(X) - 1]])}
    arrays['worst'] = np.array([[1]])
    with pytest.raises(ValueError, match='no ranks'):
        kernel.prove(arrays)


def test_only_ranks_of_a_graph_are_read():
    good = by_hand([0.5, 0.25, 0.125], [2, 3], [3, 3], 0.0)[0]
    arcs = {'rowptr': np.array([0, 0, 0, 0, 0, 1])}
    both = {x: np.repeat(good[x], 2, 0) for x in ('best', 'worst', 'flips')}
    kernel.read(good)
    for bad in (
        {**both, 'users': np.array([0, 0])},
        # Item 3 is none, and stands where item 4 would.
        {'items': np.array([2, 4]), 'worst': np.array([[2, 2]])},
        {**arcs, 'col': np.array([4])},
        {**arcs, 'col': np.array([3])},
    ):
        with pytest.raises(ValueError, match=r'.'):
            kernel.read({**good, **bad})


def test_all_nodes_of_any_graph_are_ranked_and_drawn():
    source = np.random.default_rng(8)
    A = np.triu((source.random((9, 9)) < 0.35).astype(float), 1)
    A += A.T
    threat = ThreatModel(
        *(edges_of(A), 'both'), global_budget=1, undirected=True, num_nodes=9
    )
    made = certify_ranks(edges_of(A), torch.tensor([2]), threat, k=2)
    assert made.verify() == 'holds'
    pairs = made.proof.arrays['pairs'].T.tolist()
    assert len(pairs) > 20
    others = [p for p in pairs if 2 not in p]
    rows = scores_of(all_flips(A, others), 0.15)[:, 2]
    free = [c for c in range(9) if not A[2, c] and c != 2]
    for place, item in enumerate(made.items[0].tolist()):
        worst = (rows[:, free] >= rows[:, [item]] - 1e-9).sum(1).max()
        assert made.worst_rank[0, place] == worst
    chart = made.chart()
    assert chart.limit == 2
    assert chart.lines['largest'][1] == made.worst_rank[0].tolist()


def test_a_graph_without_edges_has_ranks_and_a_threat():
    none = torch.zeros((2, 0), dtype=torch.int64)
    threat = ThreatModel(
        none,
        torch.tensor([[0, 1], [3, 4]]),
        global_budget=1,
        undirected=True,
        num_nodes=6,
    )
    made = certify_ranks(
        *(none, torch.tensor([0, 2]), threat), k=2, items=torch.arange(3, 6)
    )
    # All scores are zero, and all items beside each other.
    assert bool((made.worst_rank == 3).all())
    assert made.num_kept == 0
    assert made.verify() == 'holds'


@pytest.mark.parametrize('alpha', [1e-9, 1e-5, 1 - 1e-12])
def test_what_rounding_hides_is_unknown(alpha):
    made = example(alpha=alpha)
    assert made.num_kept == 0 or made.roundoff < 1e-9
    assert made.verify() == 'holds'
