"""Attacks by the last bits of a release: could a float be a noise's product?

A release that was computed as ``fl(fl(std * g) + S)`` is one of few doubles
once S is known or guessed: most doubles are no ``fl(std * g)``, and a sum
loses only some of the bits. So whoever guesses S asks for each number of a
row whether there is such a double g. With the right S there always is; with a
wrong one often not.
"""

import numpy as np
from scipy.stats import fisher_exact

#: Noise is not seeded: a false alarm of a test in a million runs.
LEAST = 1e-6


def could_be(y, std, guess=0.0):
    """Whether there is a double g with fl(fl(std * g) + guess) == y.

    Args:
        y (ndarray): float64: a release.
        std (float): the deviation of its noise, public.
        guess (float or ndarray): what the sum is guessed to be.
    """
    found = np.zeros(y.shape, dtype=bool)
    g = (y - guess) / std
    # The difference is rounded: those next to the quotient, too.
    for step in range(-4, 5):
        other = g + step * np.spacing(g)
        found |= std * other + guess == y
    return found


def compare(alarms, others):
    """Fisher's exact test of two lists of alarms: its p-value.

    Args:
        alarms (list[bool]): of releases of one set of data.
        others (list[bool]): of releases of its neighbour.
    """
    table = [[sum(side), len(side) - sum(side)] for side in (alarms, others)]
    return fisher_exact(table).pvalue
