"""Slow ways to clip per subgraph, where the bookkeeping fails."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from pyg_trust.privacy.bounds import (
    Clipped,
    Sizes,
    add_truncated,
    factors_of,
    lengths,
)
from pyg_trust.privacy.calls import (
    EDGE,
    INDEX,
    NODE,
    Call,
    Unsupported,
    tensors_in,
)
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.exact.step import Share


@dataclass
class Part:
    """Forward pass of some subgraphs, numbered from 0.

    Args:
        outputs (list[Tensor]): the tensors that the loss depends on.
        grads (list[Tensor]): the gradients by the outputs.
        owners (list[Tensor]): the number of the subgraph of each row, or -1.
    """

    outputs: list[Tensor]
    grads: list[Tensor]
    owners: list[Tensor]


class Total:
    """Sum of clipped gradients in integers, added up chunk by chunk.

    Args:
        params (dict): the parameters, by name.
        num_subgraphs (int): how many subgraphs there are.
        norm (float): the clipping norm.
        automatic (bool): whether short gradients are made longer.
        of (int, optional): the subgraph of which to tell what it has added.
            (default: :obj:`None`)
    """

    def __init__(
        self,
        params: dict[str, Tensor],
        num_subgraphs: int,
        norm: float,
        automatic: bool,
        of: int | None = None,
    ) -> None:
        self.of = of
        self.share: Share | None = None
        self.params = params
        self._sums = {
            name: torch.zeros_like(p, dtype=torch.int64)
            for name, p in params.items()
        }
        first = next(iter(params.values()))
        self.norms = first.new_full(
            (num_subgraphs,), torch.inf, dtype=torch.float64
        )
        self._factors = torch.zeros_like(self.norms)
        self.norm, self.automatic = norm, automatic
        self._kept: list[tuple[Tensor, dict[str, Tensor], Sizes]] = []

    def add(self, subgraphs: Tensor, grads: dict[str, Tensor]) -> Tensor:
        """Add gradients; return the subgraphs whose gradient is not finite.

        Args:
            subgraphs (Tensor): int64, ``[n]``.
            grads (dict): by the name of the parameter, ``[n, *]``.

        Returns:
            Tensor: those whose gradient is not finite.
        """
        # Few passes: these are the largest tensors of a step.
        square = torch.zeros_like(self.norms[subgraphs])
        for value in grads.values():
            flat = value.reshape(subgraphs.numel(), -1)
            square += lengths(flat)[0].square()
        norms = square.sqrt().nan_to_num(torch.inf, torch.inf)
        finite = norms.isfinite()
        # The only rounding is toward zero.
        none = torch.zeros_like(norms)
        sizes = Sizes(norms, norms * (1 + 2.0**-30), none, none, none)
        if self.norm == math.inf:
            # Without a clipping norm, the scale is known after the last
            # gradient.
            self._kept.append((subgraphs, grads, sizes))
        else:
            self._put(subgraphs, grads, sizes)
        self.norms[subgraphs] = norms
        return subgraphs[~finite]

    def _put(
        self, subgraphs: Tensor, grads: dict[str, Tensor], sizes: Sizes
    ) -> None:
        factors = factors_of(sizes, self.norm, self.automatic)
        for name, value in grads.items():
            add_truncated(self._sums[name], value, factors, self.norm)
        self._factors[subgraphs] = factors
        here = subgraphs == (-1 if self.of is None else self.of)
        for at in here.nonzero().view(-1).tolist():
            row = slice(at, at + 1)
            mine = {n: torch.zeros_like(s) for n, s in self._sums.items()}
            for name, value in grads.items():
                add_truncated(mine[name], value[row], factors[row], self.norm)
            self.share = sizes.share(at, float(factors[at]), mine.values())

    def result(self) -> Clipped:
        """Return the clipped sum of all gradients that were added."""
        if self.norm == math.inf:
            self.automatic = False
            self.norm = max((s.enough() for _, _, s in self._kept), default=1)
            for kept in self._kept:
                self._put(*kept)
        size = sum(p.numel() for p in self.params.values())
        lost = math.sqrt(size) * clip.grid(self.norm)
        return Clipped(
            self._sums,
            self.norm,
            self.norms,
            self._factors,
            torch.full_like(self.norms, lost),
            self.share,
        )


def vjp(
    total: Total,
    part: Callable[[Tensor], Part],
    chunk_size: int,
    apart: bool,
) -> None:
    r"""Compute one vector-Jacobian product per subgraph, in chunks.

    In a graph with a row that is not finite, no subgraph has a finite
    gradient, since the rows of the others are multiplied by zero and :math:`0
    \cdot \infty` is not a number. Those that are not finite are computed again
    in smaller and smaller groups, until those that are to blame stand alone.

    Args:
        total (Total): the sum to which gradients are added.
        part (callable): the forward pass for a group of subgraphs.
        chunk_size (int): the subgraphs of a chunk; 0 for one without vmap.
        apart (bool): whether :obj:`part` leaves out what is not in the group.
            If not, one forward pass is for all chunks.
    """
    everything = torch.arange(total.norms.numel(), device=total.norms.device)
    size = max(1, chunk_size)
    groups = list(everything.split(size)) if apart else [everything]
    while groups:
        group = groups.pop()
        if group.numel() == 0:
            continue
        whole, left = part(group), []
        for first in range(0, group.numel(), size):
            chunk = group[first : first + size]
            numbers = torch.arange(
                first, first + chunk.numel(), device=group.device
            )
            found = _products(total.params, whole, numbers, chunk_size > 0)
            left.append(total.add(chunk, found))
        bad = torch.cat(left)
        if group.numel() > 1:
            fewer = bad.numel() < group.numel()
            groups += [bad] if fewer else bad.tensor_split(2)


def _products(
    params: dict[str, Tensor], part: Part, numbers: Tensor, batched: bool
) -> dict[str, Tensor]:
    masked = []
    for value, owner in zip(part.grads, part.owners, strict=True):
        mask = owner == numbers.view(-1, 1)
        mask = mask.view(*mask.shape, *[1] * (value.dim() - 1))
        value = torch.where(mask, value, 0)
        masked.append(value if batched else value[0])
    found = torch.autograd.grad(
        part.outputs,
        list(params.values()),
        masked,
        retain_graph=True,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return {
        name: value if batched else value[None]
        for name, value in zip(params, found, strict=True)
        if value is not None
    }


def functorch(
    params: dict[str, Tensor],
    call: Call,
    grads: list[Tensor],
    norm: float,
    automatic: bool,
    chunk_size: int,
    of: int | None = None,
) -> Clipped:
    r"""Compute gradients by ``vmap`` over subgraphs of one size.

    Subgraphs with the same number of nodes and of edges are stacked, so that
    nothing is padded. Layers whose shapes depend on values (self-loops that
    are added only where there are none) cannot be vmapped, and the module is
    called again, so that it must not draw random numbers.

    Raises:
        Unsupported: if the module cannot be vmapped.
    """
    total = Total(params, call.num_subgraphs, norm, automatic, of)
    for subgraphs in _by_shape(call):
        if not bool(torch.isin(call.owner, subgraphs[:1]).any()):
            total.norms[subgraphs] = 0
            continue
        for chunk in subgraphs.split(chunk_size):
            batch, nodes = _stacked(call, chunk)
            found = _vmapped(
                call, params, batch, [value[nodes] for value in grads]
            )
            total.add(chunk, found)
    return total.result()


def _by_shape(call: Call) -> list[Tensor]:
    # The subgraphs with the same numbers of nodes and edges.
    nodes = torch.bincount(call.owner, minlength=call.num_subgraphs)
    edges = torch.zeros_like(nodes)
    if call.edges is not None:
        edges = call.owner[call.edges[0]].bincount(minlength=nodes.numel())
    _, shape = torch.stack([nodes, edges]).unique(dim=1, return_inverse=True)
    return [
        (shape == i).nonzero().view(-1) for i in range(int(shape.max()) + 1)
    ]


def _stacked(
    call: Call, subgraphs: Tensor
) -> tuple[Callable[[str, Any], Any], Tensor]:
    k = subgraphs.numel()
    number = call.owner.new_full((call.num_subgraphs,), -1)
    number[subgraphs] = torch.arange(k, device=number.device)
    mine = number[call.owner]
    nodes = mine.argsort(stable=True)
    nodes = nodes[int((mine < 0).sum()) :].view(k, -1)
    position = torch.full_like(call.owner, -1)
    position[nodes] = torch.arange(
        nodes.size(1), device=nodes.device
    ).expand_as(nodes)
    edges = nodes.new_empty(k, 0)
    if call.edges is not None:
        of = mine[call.edges[0]]
        order = of.argsort(stable=True)
        edges = order[int((of < 0).sum()) :].view(k, -1)

    def leaf(name: str, value: Any) -> Any:
        level = call.level(name, value)
        if level == INDEX and value.layout == torch.strided:
            return position[value[:, edges]].movedim(1, 0)
        if level == INDEX:
            raise Unsupported('a sparse matrix cannot be vmapped')
        if level == NODE and torch.equal(value, call.owner):
            return torch.zeros_like(nodes)
        if level == NODE:
            return value[nodes]
        if level == EDGE:
            return value[edges]
        return None

    return leaf, nodes


def _vmapped(
    call: Call,
    params: dict[str, Tensor],
    batch: Callable[[str, Any], Any],
    grads: list[Tensor],
) -> dict[str, Tensor]:
    stacked: list[Tensor] = []

    def collect(name: str, value: Any) -> Any:
        value = batch(name, value)
        if value is not None:
            stacked.append(value)
        return value

    call.map(collect)

    def loss(
        weights: dict[str, Tensor], parts: list[Tensor], upstream: list[Tensor]
    ) -> Tensor:
        place = iter(parts)

        def leaf(name: str, value: Any) -> Any:
            known = call.level(name, value) is not None
            return next(place) if known else value

        args, kwargs = call.map(leaf)
        out = functional_call(call.module, weights, args, kwargs)
        pairs = zip(tensors_in(out), upstream, strict=True)
        return sum((o * u).sum() for o, u in pairs)  # type: ignore[return-value]

    weights = {name: p.detach() for name, p in params.items()}
    try:
        return vmap(grad(loss), in_dims=(None, 0, 0), randomness='error')(
            weights, stacked, grads
        )
    except (RuntimeError, ValueError, IndexError) as error:
        raise Unsupported(
            f'the module cannot be vmapped ({str(error).splitlines()[0]})'
        ) from error
