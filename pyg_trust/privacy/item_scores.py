r"""Private counts of the items that users share: a noisy sum of matrices.

The list of a user with :math:`d` items is a row of norm 1 with :math:`1 /
\sqrt{d}` at each of them, so that each user adds a matrix of norm 1 to
:math:`G = \sum_u x_u x_u^\top`. It is released as its triangle,
:math:`G_{ii}` and :math:`\sqrt{2}\, G_{ij}`, whose norm is that of the whole.
What one user adds are two integers, which are functions of :math:`d` alone.
"""

import math

import numpy as np
import torch

from pyg_trust._checks import Count, Positive, validated
from pyg_trust.privacy.propagation import MARGIN
from pyg_trust.unlearning.similar import Lists
from pyg_trust.verify.release import check_sum, truncated

# Rows of items whose sums are held as they come.
_BLOCK = 256
# A Lanczos method finds this share of all eigenvectors sooner.
_FEW = 16


@validated
def item_sums(lists: Lists, num_items: Count, std: Positive) -> np.ndarray:
    """Sum the triangles of all users on the grid of the noise, exactly."""
    check_sum(len(lists.length), std)
    unit = (1 - MARGIN) / np.maximum(lists.length, 1)
    both, own = (
        torch.from_numpy(truncated(unit * scale, std).astype(np.int64))
        for scale in (math.sqrt(2), 1.0)
    )
    ones = torch.ones(len(unit), dtype=torch.int64)
    into = lists.matrix(num_items, ones).T.tocsr()
    rows = lists.matrix(num_items, both)
    diagonal, start = into @ own.numpy(), 0
    made = np.empty(num_items * (num_items + 1) // 2, dtype=np.int64)
    for first in range(0, num_items, _BLOCK):
        block = (into[first : first + _BLOCK] @ rows).toarray()
        for i, row in enumerate(block, first):
            row[i] = diagonal[i]
            made[start : start + num_items - i] = row[i:]
            start += num_items - i
    return made


@validated
def item_matrix(triangle: np.ndarray, num_items: Count) -> np.ndarray:
    """Convert a released triangle to the symmetric table."""
    if triangle.shape != (num_items * (num_items + 1) // 2,):
        raise ValueError(
            f"'triangle' needs the entries of {num_items} items (got the "
            f'shape {list(triangle.shape)})'
        )
    made, start = np.empty((num_items, num_items)), 0
    for i in range(num_items):
        row = triangle[start : start + num_items - i] / math.sqrt(2)
        made[i, i:], made[i:, i] = row, row
        made[i, i] = triangle[start]
        start += num_items - i
    return made


@validated
def positive_factor(matrix: np.ndarray, rank: Count) -> np.ndarray:
    r"""Return :math:`B` with :math:`B B^\top` the positive part of low rank.

    Of the largest eigenvalues; negative ones are noise and count as zero.
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    k = len(matrix)
    rank = min(rank, k)
    if k > _FEW * rank:
        try:
            values, vectors = eigsh(
                matrix, rank, which='LA', v0=np.ones(k), tol=1e-6
            )
        except ArpackNoConvergence as some:
            values, vectors = some.eigenvalues, some.eigenvectors
    else:
        values, vectors = eigh(matrix, subset_by_index=[k - rank, k - 1])
    return vectors * np.sqrt(np.maximum(values, 0.0))
