r"""Gradients of units of any PyG model, from two backward passes.

A batch of units (subgraphs, graphs, persons) is one graph without edges
between them. :class:`Recorder` notes each call that has a parameter, or a
tensor made of parameters alone, as an argument, with the gradient edge of its
result. The gradient by the outputs, scaled to about 1 for each unit, is sent
back twice: as it is, and with the rows of unit :math:`u` times a secret code
:math:`r_u \in [1, 2)`.

If units are isolated, the signal of each row of each noted result is in the
second pass :math:`r_u` times that in the first, for the one unit that the row
belongs to, as backpropagation is linear. So the owners of rows are verified,
or decoded from the ratio, and a row with a signal but without one ratio proves
that units meet (:class:`Mixing`). What parameters get from a row is then plain
algebra (``privacy/rules.py``). A check after Freivalds compares :math:`\sum_u
r_u \langle g_u, z \rangle`, for a random :math:`z`, with autograd's own
gradient of the second pass, so that a use of a parameter that nobody noted is
noticed (:class:`Unseen`).

All scales are powers of two, so that what a unit's rows are does not depend on
the others by a bit.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyg_trust import ops
from pyg_trust._checks import check_number
from pyg_trust.privacy.bounds import Sizes
from pyg_trust.privacy.clipping import opened
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.owners import KAPPA, Owners, known
from pyg_trust.privacy.recorder import (
    Gathered,
    Recorder,
    constants_of,
    followed,
)
from pyg_trust.privacy.rules import Mixing, Unseen, apply_rule

T = TypeVar('T')


class Attributor:
    """Maker of per-unit gradients of a model.

    Args:
        module (torch.nn.Module): the model.
        exact (bool): whether each row's bits are to be those of the row
            alone. (default: :obj:`False`)
    """

    def __init__(self, module: nn.Module, exact: bool = False) -> None:
        self.module, self.exact = module, exact
        #: Functions that may round a row otherwise in another batch.
        self.foreign: set[str] = set()
        self._recorder: Recorder | None = None
        self._given: list[Tensor] = []
        self._num_units = 0
        # By the noted calls that were verified, the names of their owners.
        self._plans: dict[Any, list[tuple[Any, int] | None]] = {}

    def parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters, by name."""
        named = self.module.named_parameters()
        return {name: p for name, p in named if p.requires_grad}

    def run(
        self, call: Callable[[], T], given: Sequence[Tensor], num_units: int
    ) -> T:
        """Run the model and record how it uses parameters.

        Args:
            call (callable): calls the model, once.
            given (sequence of Tensor): int64, owners of nodes, edges and
                whatever rows there may be.
            num_units (int): how many units there are.
        """
        device = given[0].device
        units = torch.arange(num_units, device=device)
        self._given, self._num_units = [*given, units], num_units
        sizes = {len(u) for u in self._given}
        recorder = Recorder(
            self.parameters(), constants_of(self.module), sizes, self.exact
        )
        with followed(self.module, recorder), recorder:
            out = call()
        self.foreign |= recorder.foreign
        self._recorder = recorder
        return out

    def attribute(
        self,
        out: Tensor,
        grad: Tensor,
        owner: Tensor,
        inputs: Sequence[tuple[Tensor, Tensor | None]] = (),
        verify: bool = True,
    ) -> 'Attributed':
        """Attribute gradients of the recorded call to units.

        Args:
            out (Tensor): the output of the model.
            grad (Tensor): the gradient by it, of a loss with a term per unit.
            owner (Tensor): int64, the unit of each row of the output.
            inputs (sequence): inputs that require a gradient, with the unit
                of each row, or None where it is to be found: units that meet
                before the first parameter show.
            verify (bool): whether to send the gradient back twice, also where
                the same calls were verified before. (default: :obj:`True`)

        Raises:
            Mixing: if rows of several units meet.
            Unseen: if a parameter is used where nothing recorded it.
        """
        recorder = self._recorder
        if recorder is None:
            raise RuntimeError('run the model first')
        scale, inverse = _scales(grad, owner, self._num_units)
        shape = -1, *[1] * (out.dim() - 1)
        first = grad * scale.to(grad)[owner].view(shape)
        first = first.nan_to_num(0.0, 0.0, 0.0)
        edges: list[Any] = [use.edge for use in recorder.uses]
        signals = self._back(out, edges + [x for x, _ in inputs], first)
        made = Gathered(recorder, self._num_units)
        key = tuple((use.name, use.where) for use in recorder.uses)
        broken = ~_finite(grad, owner, self._num_units)
        rows = signals[: len(edges)]
        plan = None if verify else self._planned(key, rows)
        if plan is not None:
            for use, b, found in zip(recorder.uses, rows, plan, strict=True):
                if found is not None:
                    assert b is not None
                    apply_rule(made, use, b, *found)
            return Attributed(made, inverse, broken)
        return self._verified(
            *(out, first, owner, inputs, signals, made, key),
            *(inverse, broken),
        )

    def _verified(
        self,
        out: Tensor,
        first: Tensor,
        owner: Tensor,
        inputs: Sequence[tuple[Tensor, Tensor | None]],
        signals: list[Any],
        made: Gathered,
        key: Any,
        inverse: Tensor,
        broken: Tensor,
    ) -> 'Attributed':
        recorder = made.recorder
        device, count = out.device, self._num_units
        code = _codes(count).to(device)
        shape = -1, *[1] * (out.dim() - 1)
        second = first * code.to(first)[owner].view(shape)
        params = list(recorder.params.values())
        bases = [known.tensor for known in recorder.derived]
        edges: list[Any] = [use.edge for use in recorder.uses]
        edges += [x for x, _ in inputs]
        coded = torch.autograd.grad(
            out,
            [*edges, *params, *bases],
            second,
            retain_graph=True,
            allow_unused=True,
        )
        refs = list(coded[len(edges) :])

        def third() -> list[Any]:
            again = self._back(out, edges, first * KAPPA)
            return list(zip(signals, again, strict=True))

        owners = Owners(
            *(code, self._given, recorder.edges, first.dtype, third)
        )
        rows = first.double().flatten(1).square().sum(1).sqrt()
        owners.see(owner, rows)
        plan: list[tuple[Any, int] | None] = [None] * len(recorder.uses)
        for i in reversed(range(len(recorder.uses))):
            use, b = recorder.uses[i], signals[i]
            if b is None or not b.numel():
                continue
            found = owners.find(i, b, coded[i]) if b.dim() else (1, 1)
            if len(found) == 2:
                raise Mixing(_mixing(f"'{use.where}'", use.name, found))
            u, d, name = found
            plan[i] = name if name is None else (name, d)
            if name is None:
                plan[i] = 'decoded', d
                if self.exact:
                    recorder.foreign.add(f'{use.name} (owners decoded)')
            apply_rule(made, use, b, u, d)
        for k, (_x, whose) in enumerate(inputs):
            i = len(recorder.uses) + k
            if signals[i] is None:
                continue
            if whose is None:
                found = owners.find(i, signals[i], coded[i])
                found = found if len(found) == 2 else (0, 1)
            else:
                found = owners.check(i, whose, signals[i], coded[i])
            if found[0]:
                raise Mixing(_mixing('the model', 'its inputs', found))
        self.foreign |= recorder.foreign
        broken = broken | owners.broken
        found_all = Attributed(made, inverse, broken)
        found_all.decoded, found_all.dropped = owners.decoded, owners.dropped
        found_all.thirds, found_all.verified = owners.thirds, True
        if not bool(broken.any()):
            self._freivalds(out, first, made, refs, code, owners)
        self._plans[key] = plan
        return found_all

    def _planned(
        self, key: Any, signals: list[Any]
    ) -> list[tuple[Tensor, int] | None] | None:
        # The owners that were verified for the same calls; None if they have
        # to be verified again.
        plan, recorder = self._plans.get(key), self._recorder
        assert recorder is not None
        if plan is None:
            return None
        out: list[tuple[Tensor, int] | None] = []
        same: dict[Any, Tensor | None] = {}
        for b, found in zip(signals, plan, strict=True):
            if b is None or not b.numel():
                out.append(None)
                continue
            if found is None or found[0] == 'decoded':
                return None
            name, d = found
            n = b.shape[d] if b.dim() > d else -1
            if (name, n) not in same:
                same[name, n] = known(n, name, self._given, recorder.edges)
            mine = same[name, n]
            if mine is None:
                return None
            out.append((mine, d))
        return out

    def _back(self, out: Tensor, edges: list[Any], grad: Tensor) -> list[Any]:
        # Signals; gradients of parameters are not computed.
        if not edges:
            return []
        stops = set()
        if self.exact:
            assert self._recorder is not None
            for known in self._recorder.known.values():
                if known.leaves:
                    stops.add(get_gradient_edge(known.tensor).node)
        with ops.without_gradients(stops):
            return list(
                torch.autograd.grad(
                    *(out, edges, grad), retain_graph=True, allow_unused=True
                )
            )

    def _freivalds(
        self,
        out: Tensor,
        first: Tensor,
        made: Gathered,
        refs: list[Any],
        code: Tensor,
        owners: Owners,
    ) -> None:
        # Compare random products with those of autograd's own gradients.
        recorder = made.recorder
        params = list(recorder.params.values())
        whole = [*params, *(known.tensor for known in recorder.derived)]
        direct = dict(zip(map(id, whole), refs, strict=True))
        used = {id(base.base): base for base in made.bases()}
        # What came by way of a tensor that has uses of its own is its own.
        for k in reversed(range(len(recorder.derived))):
            known = recorder.derived[k]
            ref = direct[id(known.tensor)]
            own = id(known.tensor) in used
            if not own:
                continue
            if ref is None:
                continue
            before = [
                *params,
                *(each.tensor for each in recorder.derived[:k]),
            ]
            pulled = torch.autograd.grad(
                *(known.tensor, before, ref),
                retain_graph=True,
                allow_unused=True,
            )
            for t, g in zip(before, pulled, strict=True):
                if g is not None and direct[id(t)] is not None:
                    direct[id(t)] = direct[id(t)] - g
        largest = float(owners.scale.norm())
        tolerance = owners.tolerance
        for t in whole:
            base = used.get(id(t))
            if base is None and id(t) not in made.names:
                continue
            z = _probe(t)
            total, size = 0.0, 0.0
            if base is not None:
                total, size = made.probed(base, z, code)
            ref = direct[id(t)]
            want = 0.0
            if ref is not None:
                want = float((ref.double() * _dense(z, t).double()).sum())
            if not math.isfinite(want):
                # Of an input that is not finite, whose unit adds nothing.
                continue
            size += abs(want)
            off = abs(total - want)
            least = tolerance.unit * largest * math.sqrt(t.numel())
            if off <= tolerance.sums * size + least:
                continue
            if self._is_rounding(out, first, t, off, size):
                continue
            names = [made.names[id(p)] for p in made.params_of(t)]
            raise Unseen(
                f"'{', '.join(names)}' is used where its gradient by units is "
                'not seen (in a function with a backward pass of its own, or '
                'behind a hook): write it with functions of torch'
            )

    def _is_rounding(
        self, out: Tensor, first: Tensor, t: Tensor, off: float, size: float
    ) -> bool:
        h, h3 = (
            torch.autograd.grad(
                *(out, t, first * factor), retain_graph=True, allow_unused=True
            )[0]
            for factor in (1, KAPPA)
        )
        if h is None:
            return False
        return off <= 100 * float((h3 - KAPPA * h).norm()) + size * 1e-6


class Attributed:
    """Gradients of a batch by units, as rows that parameters got.

    Args:
        made (Gathered): the rows, of gradients times their units' scales.
        inverse (Tensor): float64, what undoes the scale of each unit.
        broken (Tensor): bool, units that are not finite.
    """

    def __init__(
        self, made: Gathered, inverse: Tensor, broken: Tensor
    ) -> None:
        self.made, self.inverse, self.broken = made, inverse, broken
        #: Calls whose owners were decoded, rows that were left out, and
        #: comparisons with the third pass.
        self.decoded = self.dropped = self.thirds = 0
        #: Whether the gradient was sent back twice.
        self.verified = False


def _mixing(where: str, what: str, rows: tuple[int, int]) -> str:
    return (
        'the model needs to treat subgraphs apart, but rows of several '
        f'subgraphs meet behind {what} in {where} ({rows[0]} of {rows[1]} '
        'rows): look '
        'for normalisation, pooling or attention over the whole batch (most '
        "norms and pools of PyG treat subgraphs apart if given 'batch')"
    )


def _codes(count: int) -> Tensor:
    # A permutation of a grid, with jitter; from torch's own generator would
    # be no secret, and nothing rests on more than that nobody foresaw it.
    generator = torch.Generator()
    generator.seed()
    order = torch.randperm(count, generator=generator)
    jitter = torch.rand(count, dtype=torch.float64, generator=generator) / 2
    return 1 + (order + jitter) / max(count, 1)


def _scales(grad: Tensor, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    # Powers of two that bring the largest entry of each unit into [1/2, 1),
    # and their inverses.
    top = grad.detach().abs().flatten(1).amax(1).double()
    most = top.new_zeros(count).scatter_reduce_(0, owner, top, 'amax')
    live = (most > 0) & most.isfinite()
    power = torch.frexp(torch.where(live, most, 1.0))[1]
    if grad.dtype == torch.float32:
        power = power.clamp(-120, 120)
    one = torch.ones_like(most)
    scale = torch.where(live, torch.ldexp(one, -power), 0.0)
    return scale, torch.where(live, torch.ldexp(one, power), 0.0)


def _finite(grad: Tensor, owner: Tensor, count: int) -> Tensor:
    wrong = ~grad.detach().isfinite().flatten(1).all(1)
    out = torch.ones(count, dtype=torch.bool, device=grad.device)
    out[owner[wrong]] = False
    return out


def _probe(t: Tensor) -> Any:
    # Like the codes, and so that torch's generator is the user's alone.
    generator = torch.Generator()
    generator.seed()

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=t.dtype, generator=generator).to(t)

    if t.dim() == 2:
        return tuple(draw(n) for n in t.shape)
    return draw(*t.shape)


def _dense(z: Any, t: Tensor) -> Tensor:
    return torch.outer(*z) if isinstance(z, tuple) else z


class UnitGradients:
    """Gradients of units, as :func:`unit_gradients` returns them.

    Args:
        found (Attributed): the rows that parameters got.
        params (dict[str, Tensor]): the trained parameters, by name.
    """

    def __init__(self, found: Attributed, params: dict[str, Tensor]) -> None:
        self._params = params
        with torch.no_grad():
            self._book, sizes = opened(found)
        self._sizes = sizes
        #: Norms over all parameters, float64, ``[num_units]``; infinite where
        #: a gradient is not finite.
        self.norms = sizes.norms

    def __repr__(self) -> str:
        return f'{type(self).__name__}(num_units={len(self.norms)})'

    def clipped_sum(self, max_grad_norm: float) -> dict[str, Tensor]:
        """Sum the gradients, each scaled to at most a norm.

        Args:
            max_grad_norm (float): :math:`C`; infinity to clip nothing.

        Returns:
            dict[str, Tensor]: the sum for each parameter, by its name. A unit
            whose gradient is not finite adds nothing.

        Raises:
            ValueError: if the norm is not positive.
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
    r"""Compute the gradient of each unit of a batch, for any PyG model.

    A unit is a graph of the batch, a subgraph or a person: whatever no edge
    leaves. The model runs once, as it is; units that it mixes are found.

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
        args (sequence): the positional arguments of its call.
        owner (Tensor): int64, the unit of each row of the output.
        grad (Tensor or callable): the gradient of the loss by the output, or
            a function that maps the output to it (for models that draw random
            numbers, as dropout does).
        kwargs (dict, optional): the named arguments of the call.
            (default: :obj:`None`)
        num_units (int, optional): how many units there are; by default one
            more than the largest in :obj:`owner`. (default: :obj:`None`)

    Returns:
        UnitGradients: has ``.norms``, ``[num_units]``, and
        ``.clipped_sum(max_grad_norm)``, by the names of parameters.

    Raises:
        ValueError: if the model mixes units (with the module and function
            behind which their rows meet), or uses a parameter where its
            gradient by units is not seen.
    """
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
    sizes = {len(u) for u in given}
    fresh = [
        value.detach().requires_grad_()
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and value.dim()
        and value.size(0) in sizes
        else value
        for value in leaves
    ]
    inputs = [
        (a, None) for a, b in zip(fresh, leaves, strict=True) if a is not b
    ]
    own_args, own_kwargs = tree_unflatten(fresh, spec)
    made = Attributor(model)
    with torch.enable_grad():
        out = made.run(lambda: model(*own_args, **own_kwargs), given, count)
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
