"""Accountants of ego graphs, where a record is in several units."""

from functools import lru_cache
from typing import Any

import numpy as np

from pyg_trust._checks import Fraction, check_number, validated
from pyg_trust.privacy.accountant import (
    ACCOUNTANTS,
    FDP,
    GROUP,
    GROUP_WOR,
    POISSON_SAMPLING,
    Accountant,
    History,
    poisson_rdp,
)
from pyg_trust.privacy.accounting import (
    ORDERS,
    check_group,
    check_share,
    group_wor_epsilon,
    rdp_epsilon,
    rdp_group_wor,
)
from pyg_trust.privacy.mechanisms import check_q, lam_from_opacus, rdp_fdp
from pyg_trust.privacy.poisson import poisson_epsilon


@ACCOUNTANTS.builtin(GROUP_WOR)
class GroupAccountant(Accountant):
    r"""Accountant for records that are in several units, such as ego graphs.

    Each of at most :math:`k` roots sees a row; :math:`m` of :math:`N` roots
    are drawn without replacement, and clipped each. By
    :func:`pyg_trust.privacy.group_wor_epsilon`, which hides how many of the
    :math:`k` were drawn; :class:`FDPAccountant` tells it. For coins there is
    :class:`GroupPoissonAccountant`. As everywhere, :obj:`noise_multiplier` is
    Opacus' :math:`\sigma / C`, here at least a tenth of :math:`k`.

    Args:
        num_roots (int): :math:`N`, ``loader.num_subgraphs``.
        occurrences (int): :math:`k`, ``loader.terms``.

    Example:
        >>> accountant = GroupAccountant(13482, 5)
        >>> for _ in range(100):
        ...     accountant.step(noise_multiplier=8.2, sample_rate=674 / 13482)
        >>> 3.1 < accountant.get_epsilon(delta=1e-5) < 3.2
        True
    """

    def __init__(self, num_roots: int, occurrences: int) -> None:
        super().__init__()
        self.num_roots, self.occurrences = check_group(num_roots, occurrences)

    def _check_rate(self, sample_rate: float) -> None:
        check_share(sample_rate, self.num_roots, 'sample_rate')

    def epsilon_of(self, history: History, delta: float) -> float:
        """Compute epsilon of a history of steps."""
        return group_wor_epsilon(
            history, delta, self.num_roots, self.occurrences
        )

    def _rdp_of_step(
        self, orders: np.ndarray, noise_multiplier: float, sample_rate: float
    ) -> np.ndarray:
        key = tuple(orders.tolist()), sample_rate, noise_multiplier
        return _group_rdp(*key, self.num_roots, self.occurrences)

    def _constants(self) -> dict[str, Any]:
        return {
            **super()._constants(),
            'num_roots': self.num_roots,
            'occurrences': self.occurrences,
        }


@ACCOUNTANTS.builtin(GROUP)
class GroupPoissonAccountant(GroupAccountant):
    r"""Accountant as :class:`GroupAccountant`, for Poisson sampling of roots.

    By the pair of :mod:`pyg_trust.privacy.poisson` for so many
    occurrences, which is exact.

    Args:
        num_roots (int): :math:`N`, ``loader.num_subgraphs``.
        occurrences (int): :math:`k`, ``loader.terms``.

    Example:
        >>> accountant = GroupPoissonAccountant(13482, 5)
        >>> for _ in range(100):
        ...     accountant.step(noise_multiplier=8.2, sample_rate=0.05)
        >>> 2.4 < accountant.get_epsilon(delta=1e-5) < 2.5
        True
    """

    sampling = POISSON_SAMPLING

    def _check_rate(self, sample_rate: float) -> None:
        check_q(sample_rate, 'sample_rate')

    def epsilon_of(self, history: History, delta: float) -> float:
        """Compute epsilon of a history of steps."""
        return poisson_epsilon(history, delta, occurrences=self.occurrences)

    def _rdp_of_step(
        self, orders: np.ndarray, noise_multiplier: float, sample_rate: float
    ) -> np.ndarray:
        key = tuple(orders.tolist()), sample_rate, noise_multiplier
        return poisson_rdp(*key, 'replace', self.occurrences)


@ACCOUNTANTS.builtin(FDP)
class FDPAccountant(Accountant):
    r"""Accountant of the baseline on bounded-degree graphs, as in its paper.

    :class:`GroupAccountant` has a smaller :math:`\epsilon` for the same
    steps. See :func:`pyg_trust.privacy.mechanisms.rdp_fdp`: :math:`m` of
    :math:`N` training nodes are drawn, each with an ego graph of its own, and
    replacing a row changes the gradients of up to ``terms`` of them. The noise
    multiplier is :math:`2\, \mathrm{terms}\, \lambda`.

    Args:
        num_nodes (int): the number :math:`N` of training nodes.
        batch_size (int): the number :math:`m` drawn in each step.
        terms (int): as :func:`pyg_trust.privacy.mechanisms.fdp_terms` gives
            it.
    """

    def __init__(self, num_nodes: int, batch_size: int, terms: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes
        self.batch_size = batch_size
        self.terms = self.occurrences = terms
        rdp_fdp(ORDERS, num_nodes, batch_size, terms, 1.0)

    def _lam(self, noise_multiplier: float) -> float:
        check_number('noise_multiplier', noise_multiplier)
        return lam_from_opacus(noise_multiplier / self.terms)

    def _check_rate(self, sample_rate: float) -> None:
        rate = check_number('sample_rate', sample_rate)
        if rate != self.batch_size / self.num_nodes:
            raise ValueError(
                "'sample_rate' needs to be "
                f'{self.batch_size / self.num_nodes} (got {sample_rate})'
            )

    def _rdp_of_step(
        self, orders: np.ndarray, noise_multiplier: float, sample_rate: float
    ) -> np.ndarray:
        lam = self._lam(noise_multiplier)
        return rdp_fdp(
            orders, self.num_nodes, self.batch_size, self.terms, lam
        )

    def _rdp(self, noise_multiplier: float) -> np.ndarray:
        return self._rdp_of_step(np.asarray(ORDERS), noise_multiplier, 1.0)

    @validated
    def epsilon_of(self, history: History, delta: Fraction) -> float:
        """Compute epsilon by :func:`.mechanisms.rdp_fdp`."""
        if not history:
            return 0.0
        rdp = sum(n * self._rdp(z) for z, _, n in history)
        return rdp_epsilon(ORDERS, np.asarray(rdp), delta)

    def _constants(self) -> dict[str, Any]:
        return {
            **super()._constants(),
            'num_nodes': self.num_nodes,
            'batch_size': self.batch_size,
            'terms': self.terms,
        }


@lru_cache(maxsize=256)
def _group_rdp(
    orders: tuple[float, ...], rate: float, multiplier: float, n: int, k: int
) -> np.ndarray:
    return rdp_group_wor(orders, rate, multiplier, n, k)
