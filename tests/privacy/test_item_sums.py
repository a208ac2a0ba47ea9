"""Tables of items: what one user moves, in integers, and what comes after."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyg_trust.privacy.items import (
    item_matrix,
    item_sums,
    positive_factor,
)
from pyg_trust.unlearning.similar import lists_of
from pyg_trust.verify.release import grid, sensitivity


def table(users, num_items):
    """Lists of users as a table."""
    pairs = [(u, i) for u, items in enumerate(users) for i in items]
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    return lists_of(edges, max(1, len(users)), num_items)


def triangle(users, num_items, std):
    """The integers as Python's, which do not wrap."""
    return [int(v) for v in item_sums(table(users, num_items), num_items, std)]


def lists(num_items):
    return [
        items
        for size in range(num_items + 1)
        for items in itertools.combinations(range(num_items), size)
    ]


def length(one, two, std):
    """Norm of a difference of integers, on the grid."""
    squares = sum((a - b) ** 2 for a, b in zip(one, two, strict=True))
    return squares * Fraction(grid(std)) ** 2


@pytest.mark.parametrize('std', [0.6, 1.0, 2.0**33])
def test_a_user_moves_the_table_as_claimed(std):
    # All lists of up to four items, against none and against all others. With
    # the last deviation few bits are left, so that truncation shows.
    away, other = 0, 0
    for num_items in (1, 2, 3, 4):
        made = [
            triangle([items], num_items, std) for items in lists(num_items)
        ]
        zero = [0] * len(made[0])
        assert made[0] == zero
        for one, two in itertools.product(made, repeat=2):
            away = max(away, length(one, zero, std))
            other = max(other, length(one, two, std))
    assert away <= 1
    assert other <= 2
    if std < 2:
        # Attained, so that no smaller bound holds.
        assert away > 1 - 3e-6
        assert other > 2 - 6e-6
    assert sensitivity('user', False, 'add_remove') == 1
    assert sensitivity('user', False, 'replace') == math.sqrt(2)


def test_all_pairs_of_neighbouring_tables_differ_by_one_user():
    # All tables of two users on three items: what is left is the other one.
    every = lists(3)
    alone = {items: triangle([items], 3, 1.0) for items in every}
    for one, two in itertools.product(every, repeat=2):
        both = triangle([one, two], 3, 1.0)
        assert both == [
            a + b for a, b in zip(alone[one], alone[two], strict=True)
        ]
        assert length(both, triangle([(), two], 3, 1.0), 1.0) <= 1
        assert length(both, triangle([one, ()], 3, 1.0), 1.0) <= 1


@pytest.mark.parametrize('num_items', [1, 5, 300])
def test_the_table_is_the_sum_of_products(num_items):
    source = np.random.default_rng(0)
    rows = source.random((40, num_items)) < 0.3
    rows[3] = False
    users = [row.nonzero()[0].tolist() for row in rows]
    norms = np.maximum(1, np.sqrt(rows.sum(1)))
    unit = rows / norms[:, None]
    sums = item_sums(table(users, num_items), num_items, 0.5)
    made = item_matrix(sums * grid(0.5), num_items)
    assert np.abs(made - unit.T @ unit).max() < 1e-4
    assert np.array_equal(made, made.T)
    # As many entries as have noise, of the norm of the whole.
    whole = np.linalg.norm(sums * grid(0.5))
    assert whole == pytest.approx(np.linalg.norm(made), rel=1e-9)
    order = source.permutation(40)
    again = table([users[k] for k in order], num_items)
    assert np.array_equal(sums, item_sums(again, num_items, 0.5))


def test_off_the_diagonal_noise_is_smaller():
    source = np.random.default_rng(0)
    noise = item_matrix(source.standard_normal(150 * 151 // 2), 150)
    off = noise[np.triu_indices(150, 1)]
    # 11,175 draws: a standard error of .005.
    assert 0.68 < off.std() < 0.735
    assert np.diag(noise).std() > 0.8


def test_both_ways_to_eigenvectors_make_one_factor():
    source = np.random.default_rng(1)
    low = source.standard_normal((60, 3)) * 4
    noise = source.standard_normal((60, 60))
    matrix = low @ low.T + noise + noise.T
    # By all eigenvectors, and by a Lanczos method.
    values, vectors = np.linalg.eigh(matrix)
    for rank in (3, 9, 60, 99):
        kept = np.maximum(values[-rank:], 0)
        wanted = (vectors[:, -rank:] * kept) @ vectors[:, -rank:].T
        factor = positive_factor(matrix, rank)
        assert factor.shape == (60, min(rank, 60))
        assert np.allclose(factor @ factor.T, wanted, atol=1e-4)
    negative = positive_factor(-np.eye(4), 2)
    assert not negative.any()
