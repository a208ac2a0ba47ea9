"""The gradient of each unit of a batch, without an engine."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyg_trust._checks import check_instance, check_number
from pyg_trust.privacy.bounds import Sizes
from pyg_trust.privacy.clipping import Book
from pyg_trust.privacy.codes import Attributor
from pyg_trust.privacy.exact import clip

__all__ = ['UnitGradients', 'unit_gradients']


class UnitGradients:
    """The gradients of a batch by units: their norms, and clipped sums.

    :func:`unit_gradients` makes it. A unit is a part of the batch that no edge
    leaves, such as a graph. ``norms`` (float64, ``[num_units]``) are the L2
    norms of the units' gradients over all parameters.

    Args:
        book (Book): the gradients by units, an internal record.
        params (dict[str, Tensor]): the trained parameters, by name.
    """

    def __init__(self, book: Book, params: dict[str, Tensor]) -> None:
        self._params = params
        self._book = book
        with torch.no_grad():
            self._sizes = sizes = book.sizes()
        #: Norms over all parameters, float64, ``[num_units]``; infinite where
        #: a gradient is not finite.
        self.norms = sizes.norms

    def __repr__(self) -> str:
        return f'{type(self).__name__}(num_units={len(self.norms)})'

    def clipped_sum(self, max_grad_norm: float) -> dict[str, Tensor]:
        """Sum the gradients of all units, each scaled to at most a norm.

        Args:
            max_grad_norm (float): the norm, positive; infinity to clip
                nothing.

        Returns:
            dict[str, Tensor]: the sum for each parameter, by its name. A unit
            whose gradient is not finite adds nothing.
        """
        max_grad_norm = check_number('max_grad_norm', max_grad_norm)
        if not max_grad_norm > 0:
            raise ValueError(
                f"'max_grad_norm' needs to be positive (got {max_grad_norm})"
            )
        norms = self.norms.clamp_min(1e-300)
        factors = (max_grad_norm / norms).clamp(max=1)
        factors = torch.where(norms.isfinite(), factors, 0.0)
        # A grid on which no gradient, so scaled, is cut any further.
        own = self._sizes
        clipped = Sizes(
            *(own.norms * factors, own.n * factors, own.tau * factors),
            *(own.kappa, own.weight * factors),
        )
        norm = clipped.enough()
        with torch.no_grad():
            found = self._book.sums(factors, norm)
        grid = clip.grid(norm)
        return {
            name: (found[name].double() * grid).to(p.dtype)
            for name, p in self._params.items()
        }


def unit_gradients(
    model: nn.Module,
    args: Sequence[Any],
    *,
    owner: Tensor,
    grad: Tensor | Callable[[Tensor], Tensor],
    kwargs: dict[str, Any] | None = None,
    num_units: int | None = None,
) -> UnitGradients:
    """Compute the gradient of each unit of a batch, for any PyG model.

    A unit is a part of the batch that no edge leaves: a graph, a subgraph or a
    person. The model runs once on the whole batch. A model that mixes units is
    refused.

    .. code-block:: python

        out = model(batch.x, batch.edge_index)
        loss = F.cross_entropy(out, batch.y, reduction='sum')
        (grad,) = torch.autograd.grad(loss, out)
        found = unit_gradients(
            model, (batch.x, batch.edge_index), owner=batch.batch, grad=grad
        )
        found.norms, found.clipped_sum(1.0)

    Args:
        model (torch.nn.Module): the model, in the mode that it is in.
        args (sequence): the positional arguments of its call. Tensors of
            floats hold rows of units; what units share belongs in the model,
            as a buffer.
        owner (Tensor): int64, ``[num_rows]``: the unit of each output row.
        grad (Tensor or callable): the gradient of the loss by the output, or a
            function that maps the output to it (for models that draw random
            numbers, as dropout does).
        kwargs (dict, optional): the named arguments of the call.
        num_units (int, optional): how many units there are; by default one
            more than the largest in :obj:`owner`. (default: :obj:`None`)

    Returns:
        UnitGradients: has ``.norms``, ``[num_units]``, and
        ``.clipped_sum(max_grad_norm)``, by the names of parameters.

    Raises:
        ValueError: if the model mixes rows of several units (the message says
            where), or uses a parameter in a way that has no gradient by units.
    """
    check_instance('model', model, nn.Module)
    count = _check_owner(owner, num_units)
    kwargs = kwargs or {}
    leaves, spec = tree_flatten((tuple(args), kwargs))
    given = [owner]
    for value in leaves:
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            continue
        inside = value.numel() and int(value.min()) >= 0
        if value.dim() == 1 and inside and int(value.max()) < count:
            given.append(value)
    # Tables of any number of rows may meet before the first parameter.
    fresh = [
        value.detach().requires_grad_()
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and value.dim()
        else value
        for value in leaves
    ]
    # How many rows tables have, and how many edges there are.
    sizes = {
        value.size(-1) if value.dtype == torch.int64 else len(value)
        for value in fresh
        if isinstance(value, Tensor)
        and value.dim()
        and (value.requires_grad or value.dtype == torch.int64)
    }
    inputs = [
        (a, None) for a, b in zip(fresh, leaves, strict=True) if a is not b
    ]
    own_args, own_kwargs = tree_unflatten(fresh, spec)
    made = Attributor(model)
    with torch.enable_grad():
        out = made.run(
            lambda: model(*own_args, **own_kwargs), given, count, sizes
        )
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise ValueError(
            "'model' needs to return one tensor that depends on its "
            f'parameters (got a {type(out).__name__})'
        )
    grad = grad if isinstance(grad, Tensor) else grad(out)
    if grad.shape != out.shape or len(owner) != out.size(0):
        raise ValueError(
            "'grad' needs to have the shape of the output, and 'owner' a unit "
            f'for each of its rows (got {list(grad.shape)} and {len(owner)} '
            f'for an output of {list(out.shape)})'
        )
    found = made.attribute(out, grad.detach(), owner, inputs)
    return UnitGradients(found, made.parameters())


def _check_owner(owner: Any, num_units: int | None) -> int:
    if not isinstance(owner, Tensor) or owner.dtype != torch.int64:
        kind = owner.dtype if isinstance(owner, Tensor) else type(owner)
        raise TypeError(f"'owner' needs to be an int64 tensor (got {kind})")
    if owner.dim() != 1 or not owner.numel():
        raise ValueError(
            "'owner' needs the unit of each row of the output (got the shape "
            f'{list(owner.shape)})'
        )
    low, high = int(owner.min()), int(owner.max())
    count = high + 1 if num_units is None else num_units
    if low < 0 or high >= count:
        raise ValueError(
            f"'owner' needs to be in [0, {count}) (got units from {low} to "
            f'{high})'
        )
    return count
