"""Audits of releases that hold noise: two samples of runs."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_trust.functional.attacks import permutation_test
from pyg_trust.unlearning.subjects import Released


class NoisyRun(NamedTuple):
    """A run of a subject whose releases are noisy.

    Args:
        before (Tensor): all numbers in what it released before the removal.
        after (Tensor): and after.
        first (float): the score of the removed nodes before the removal.
        score (float): and after.
    """

    before: Tensor
    after: Tensor
    first: float
    score: float


def numbers(released: Released) -> Tensor:
    """All numbers of a release: float64.

    Args:
        released (dict): of :meth:`.Subject.released`.
    """
    flat = [
        value.detach().cpu().double().flatten()
        for value in released.values()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    if not flat:
        raise ValueError(
            'a subject that is noisy needs to release tensors of floats (got '
            f'{list(released)})'
        )
    return torch.cat(flat)


def mean(runs: list[Tensor]) -> Tensor:
    """The mean of some runs.

    Args:
        runs (list[Tensor]): of :func:`numbers`.
    """
    return torch.stack(runs).mean(0)


def told_apart(one: list[Tensor], two: list[Tensor]) -> Callable[[int], float]:
    """The p value of two samples of runs that are exchangeable.

    The first half of the runs finds the direction in which they differ, the
    second half is compared along it by permutations.

    Args:
        one (list[Tensor]): of :func:`numbers`.
        two (list[Tensor]): of as many other runs.

    Returns:
        callable: maps the seed of the permutations to the p value.
    """
    # The direction from the first half of the runs, the test on the second.
    half = max(len(one) // 2, 1)
    axis = mean(one[:half]) - mean(two[:half])

    def p(seed: int) -> float:
        return permutation_test(
            torch.stack(one[half:]) @ axis,
            torch.stack(two[half:]) @ axis,
            seed=seed,
        )

    return p
