r"""Banks of wavelets on graphs.

**Banks.** Write :math:`d` for the degrees, :math:`1/d = 0` at degree zero.

==================== =====================================================
``geometric``        :math:`H_0 = I - P,\; H_j = P^{2^{j-1}} - P^{2^j}` of
                     the row walk :math:`P = \frac12 (I + D^{-1} A)`
``geometric_column`` the same of :math:`P = \frac12 (I + A D^{-1})`
``diffusion``        the same of :math:`P = \frac12 (I + D^{-1/2} A
                     D^{-1/2})`
``itersine``         :math:`H_j = h_j(\Lambda)` of the Laplacian
                     :math:`\Lambda = I - D^{-1/2} A D^{-1/2}`,
                     :func:`itersine`
``monic_cubic``      the same with :func:`monic_cubic`
==================== =====================================================
"""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyg_trust._checks import (
    Int,
    check_choice,
    check_integer,
    check_tensor,
    validated,
)

__all__ = ['itersine', 'lazy_walk', 'monic_cubic', 'wavelet_bank']

# The spectrum of the normalized Laplacian is in [0, 2].
LAMBDA_MAX = 2.0
# The widest over the narrowest scale of monic cubic wavelets (Hammond et al.).
MONIC_CUBIC_RATIO = 20.0


@validated
def itersine(eigenvalue: Tensor, J: Annotated[int, Int(3)]) -> Tensor:
    r"""Evaluate itersine kernels, rescaled to be tight on :math:`[0, 2]`.

    .. math::
        h_j(\lambda) = \sin\!\left( \tfrac{\pi}{2} \cos^2\!\left( \pi
        \left( s - \tfrac{j-1}{2} \right) \right) \right)
        \mathbb{1}\!\left[ \tfrac{j}{2} - 1 \le s \le \tfrac{j}{2} \right],
        \quad s = \frac{J - 1}{2} \cdot \frac{\lambda}{2},
        \quad j = 1, \dots, J.

    So :math:`\sum_j h_j^2 = 1` on :math:`[0, 2]`; without the rescaling this
    holds only for :math:`J = 5`.

    Args:
        eigenvalue (Tensor): eigenvalues of the normalized Laplacian.
        J (int): the number of kernels, at least 3.

    Returns:
        Tensor: the kernels in a new last dimension of size :obj:`J`.
    """
    check_tensor('eigenvalue', eigenvalue, None, eigenvalue.shape)
    s = (eigenvalue * ((J - 1) / (2 * LAMBDA_MAX))).unsqueeze(-1)
    j = torch.arange(1, J + 1, dtype=s.dtype, device=s.device)
    inside = (s >= j / 2 - 1) & (s <= j / 2)
    wave = (math.pi * (s - (j - 1) / 2)).cos().square() * (math.pi / 2)
    return wave.sin() * inside


@validated
def monic_cubic(eigenvalue: Tensor, J: Annotated[int, Int(3)]) -> Tensor:
    r"""Evaluate monic cubic kernels: a low-pass and :math:`J - 1` bands.

    .. math::
        h(\lambda) = \begin{cases} \lambda & \lambda < 1 \\
        -2 + 5.5 \lambda - 3 \lambda^2 + 0.5 \lambda^3 & 1 \le \lambda \le 2
        \\ 2 / \lambda & \lambda > 2 \end{cases}

    at the scales :math:`t_1, \dots, t_{J-1}`, spaced logarithmically from
    :math:`2 / \lambda_\mathrm{max}` to :math:`2 K / \lambda_\mathrm{max}` with
    :math:`K = 20` and :math:`\lambda_\mathrm{max} = 2`, and the low-pass
    :math:`\max_\lambda h(\lambda) \cdot \exp(-(\lambda / (0.6\,
    \lambda_\mathrm{max} / K))^4)` (`Hammond et al. 2011
    <https://arxiv.org/abs/0912.3848>`_; the printed cubic leaves kinks).

    Args:
        eigenvalue (Tensor): eigenvalues of the normalized Laplacian.
        J (int): the number of kernels, at least 3.

    Returns:
        Tensor: the kernels in a new last dimension of size :obj:`J`, the
        low-pass first, then from high to low frequencies.
    """
    check_tensor('eigenvalue', eigenvalue, None, eigenvalue.shape)
    low, high = 2 / LAMBDA_MAX, 2 * MONIC_CUBIC_RATIO / LAMBDA_MAX
    scales = torch.logspace(
        math.log10(low), math.log10(high), J - 1, dtype=torch.float64
    ).to(eigenvalue)
    scaled = eigenvalue.unsqueeze(-1) * scales
    # The maximum of the cubic is at 2 - 1 / sqrt(3).
    peak = 2 - 3**-0.5
    gamma = -2 + peak * (5.5 + peak * (-3 + 0.5 * peak))
    cubic = -2 + scaled * (5.5 + scaled * (-3 + 0.5 * scaled))
    bands = torch.where(
        scaled < 1,
        scaled,
        torch.where(scaled <= 2, cubic, 2 / scaled.clamp(min=1)),
    )
    cut = 0.6 * LAMBDA_MAX / MONIC_CUBIC_RATIO
    lowest = gamma * (-((eigenvalue / cut) ** 4)).exp()
    return torch.cat([lowest.unsqueeze(-1), bands], dim=-1)


def lazy_walk(adj: Tensor, wavelet: str) -> Tensor:
    r"""Return the lazy walk :math:`P = \frac12 (I + D^{-a} A D^{-b})`.

    :math:`(a, b)` is :math:`(1, 0)` for ``'geometric'``, :math:`(0, 1)` for
    ``'geometric_column'`` and :math:`(\frac12, \frac12)` for other banks. A
    node of degree zero has :math:`P_{ii} = \frac12`.

    Args:
        adj (Tensor): dense, ``[..., num_nodes, num_nodes]``, non-negative.
        wavelet (str): the name of the bank.
    """
    a, b = find_bank(wavelet).exponents
    check_tensor('adj', adj, None, adj.shape, finite=True)
    if adj.dim() < 2 or adj.size(-1) != adj.size(-2):
        raise ValueError(
            "'adj' needs to have the shape [..., num_nodes, num_nodes] (got "
            f'{list(adj.shape)})'
        )
    scaled = adj
    for dim, power in ((-1, a), (-2, b)):
        if power:
            scaled = scaled * power_of(adj.sum(dim, keepdim=True), -power)
    eye = torch.eye(adj.size(-1), dtype=adj.dtype, device=adj.device)
    return (eye + scaled) / 2


def wavelet_bank(adj: Tensor, wavelet: str, J: int) -> Tensor:
    """Compute the filters of graphs as dense matrices.

    Memory: :math:`J + 2` matrices of the size of :obj:`adj`.

    Args:
        adj (Tensor): weighted adjacency matrices, ``[..., num_nodes,
            num_nodes]``, dense and non-negative; symmetric unless the bank is
            geometric.
        wavelet (str): ``'geometric'``, ``'geometric_column'`` or
            ``'diffusion'``, differences of powers of :math:`(I + M) / 2`, with
            :math:`M = D^{-1} A`, :math:`A D^{-1}` or :math:`D^{-1/2} A
            D^{-1/2}`; or ``'itersine'`` or ``'monic_cubic'``, functions of the
            normalised Laplacian, which need at least 3 filters.
        J (int): the number of filters.

    Returns:
        Tensor: ``[..., J, num_nodes, num_nodes]``.
    """
    walk = lazy_walk(adj, wavelet)
    bank = WAVELETS[wavelet]
    check_integer('J', J, bank.least)
    eye = torch.eye(adj.size(-1), dtype=adj.dtype, device=adj.device)
    if bank.kernel is not None:
        values, vectors = torch.linalg.eigh(2 * (eye - walk))
        response = bank.kernel(values.clamp(0, LAMBDA_MAX), J)
        scaled = vectors.unsqueeze(-3) * response.mT.unsqueeze(-2)
        return scaled @ vectors.mT.unsqueeze(-3)
    filters = [eye - walk]
    for _ in range(J - 1):
        square = walk @ walk
        filters.append(walk - square)
        walk = square
    return torch.stack(filters, dim=-3)


class Wavelet(NamedTuple):
    """Bank of filters of the lazy walk, or functions of the Laplacian.

    Args:
        exponents (tuple[float, float]): those of the degrees in the walk.
        kernel (callable, optional): ``kernel(eigenvalue, J)``: ``[..., J]``;
            by default powers of the walk.
        least (int): the least number of filters. (default: :obj:`1`)
    """

    exponents: tuple[float, float] = (0.5, 0.5)
    kernel: Callable[[Tensor, int], Tensor] | None = None
    least: int = 1


#: The banks, by name.
WAVELETS: dict[str, Wavelet] = {
    'geometric': Wavelet((1.0, 0.0)),
    'geometric_column': Wavelet((0.0, 1.0)),
    'diffusion': Wavelet(),
    'itersine': Wavelet(kernel=itersine, least=3),
    'monic_cubic': Wavelet(kernel=monic_cubic, least=3),
}


def find_bank(wavelet: str) -> Wavelet:
    """Return the bank of a name; refuse others."""
    check_choice('wavelet', wavelet, tuple(sorted(WAVELETS)))
    return WAVELETS[wavelet]


def power_of(degree: Tensor, exponent: float) -> Tensor:
    """Raise degrees to a power, with 0 at degree zero."""
    return torch.where(degree > 0, degree.pow(exponent), 0)
