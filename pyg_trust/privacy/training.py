"""One private step, from the batch to the noisy gradient.

A batch, one call of the model, one ``loss.backward()`` and one
``optimizer.step()``, in this order. ``backward()`` passes the gradient of the
outputs to :mod:`pyg_trust.privacy.codes`, which finds the gradient of each
unit, and clips. Only the sum of clipped gradients plus noise ever reaches
``p.grad``.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust.files.commit import ObjectLock, editing
from pyg_trust.loader import DisjointWalkLoader, StepLoader
from pyg_trust.privacy.bounds import fitting
from pyg_trust.privacy.calls import (
    Call,
    Forward,
    Units,
    arguments_of,
    marks_of,
    with_gradients,
)
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.codes import Attributor
from pyg_trust.privacy.exact import clip
from pyg_trust.privacy.exact import step as exact
from pyg_trust.privacy.validation import (
    DISAGREES,
    Criterion,
    agrees,
    check_autocast,
    check_output,
    same,
    try_call,
)

__all__ = ['ACCUMULATE', 'REDUCTIONS', 'Intercept', 'PrivateStep']

REDUCTIONS = ('mean', 'sum')
ACCUMULATE = (
    '. To accumulate gradients of a large batch, pass '
    "'max_physical_batch_size' to make_private: it then comes in parts, each "
    'with an optimizer.step()'
)
# The first steps are verified, and one of so many others, drawn in secret; in
# one of so many steps, one unit is run alone as well.
_FIRST, _VERIFIED, _LOOKED = 3, 8, 16
# What torch keeps in each module; what is put back as a whole, and what a
# model may count.
_OWN, _NONE = frozenset(vars(nn.Module())), object()
_FULL, _COUNTED = (list, dict), (bool, int, float, str)


class PrivateStep:
    r"""State of the step in progress: its batch, the call and the sums.

    Args:
        module (torch.nn.Module): the model.
        loader (StepLoader): makes the batches.
        max_grad_norm (float): the clipping norm :math:`C`.
        add_noise (callable): pays for a step, then maps sums of clipped
            gradients, in units of ``exact.clip.grid``, the number of units
            they are of, and how many of these had a gradient below the
            clipping norm, to noisy ones.
        secret (bool): whether masks of dropout may be known to nobody.
        loss_reduction, clipping, isolation, forward, criterion: as of
            :meth:`.PrivacyEngine.make_private`.
    """

    def __init__(
        self,
        module: nn.Module,
        loader: StepLoader,
        max_grad_norm: float,
        add_noise: Callable[[list[Tensor], int, int], list[Tensor]],
        secret: bool,
        loss_reduction: str = 'mean',
        clipping: str = 'flat',
        isolation: str = 'checked',
        forward: Forward | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        self._lock = ObjectLock()
        self.module, self.loader = module, loader
        self.schema = getattr(loader, 'schema', None)
        self.by_unit = loader.by_unit
        self.max_grad_norm, self.add_noise = max_grad_norm, add_noise
        self.loss_reduction, self.clipping = loss_reduction, clipping
        self.isolation, self.secret = isolation, secret
        self.forward_with, self.criterion = forward, criterion
        # A replaced unit may have another size, so that shapes of batches
        # differ between neighbours.
        self.units = Attributor(
            module, not isinstance(loader, DisjointWalkLoader)
        )
        trained = self.units.parameters()
        self.names, self.parameters = [*trained], [*trained.values()]
        #: Whether an adaptive norm reads how many gradients are short; whether
        #: no noise is added, which would hide a coarse grid.
        self.counts = self.noiseless = False
        #: Steps in which every unit was run alone, in which one was, and in
        #: which owners of rows were verified.
        self.constructed = self.checked = self.verified = 0
        #: Whether the model draws nothing but dropout, and whether a unit's
        #: outputs were others when it was run alone.
        self.checkable, self.disagrees = True, False
        #: Whether the user has loaded weights.
        self.weights_loaded = False
        self._probed: set[str] = set()
        #: Whether the model returns its rows by type.
        self.by_type = False
        self._blank: Tensor | None = None
        self._written: list[Any] = [None] * len(self.parameters)
        self._weights: dict[str, Tensor] | None = None
        self._taken = 0
        self._restore: Callable[[], None] | None = None
        self.reset()

    @editing
    def reset(self) -> None:
        """Discard an unfinished step, of which nothing was released."""
        self._stage = 'idle'
        self._count = self._below = self._total = 0
        self._sums: list[Tensor] | None = None
        # What is done in all parts of the step.
        self._apart, self._verifies, self._looks = True, True, False
        self._drop()

    def _drop(self) -> None:
        if self._restore is not None:
            self._restore()
        self._restore = self._batch = self._shown = None
        self._call: Call | None = None
        self._out: Tensor | None = None
        self._parts: list[tuple[nn.Module, Tensor]] = []
        self._inputs: list[tuple[Tensor, Tensor]] = []
        # Whether the loss came from `loss`, which divides by nothing.
        self._summed = False
        self.token: object = None

    @property
    def finished(self) -> bool:
        """Whether no delivered batch still waits for its step."""
        return self._stage in ('idle', 'done')

    # What the report says #################################################

    def notes(self) -> list[str]:
        """Return what the report assumes of model, loss and optimizer."""
        notes = []
        if (name := self.moved()) is not None:
            notes.append(
                f"NOT COVERED: the weights as they are now: '{name}' was "
                'changed by something else since the last private step'
            )
        if self.disagrees:
            notes.append(f'DOES NOT HOLD: {DISAGREES}')
        notes.append(
            'the outputs of a unit depend on that unit, on weights and on '
            f'draws alone: whose each row is was verified in {self.verified} '
            'steps, and what has no derivative, as a gate, or remembers '
            'earlier batches, is not seen'
        )
        if self.criterion is None:
            notes.append(
                f'the loss is the {self.loss_reduction} of one term per unit, '
                'of its outputs and labels alone'
            )
        return [
            *notes,
            "each column of a row was computed from that unit's data and "
            'public tables alone, also by a transform of the loader',
            'nothing but this package and the model, as it was given, writes '
            'private numbers into layers, hooks or the optimizer; weights and '
            'optimizer states that were loaded were released by this training '
            'before, or are public, and settings, as a learning rate, follow '
            'a schedule that is fixed or public, and no private loss, as '
            'ReduceLROnPlateau does',
        ]

    def inexact(self) -> list[str]:
        """Return why the bits of a unit's gradient may depend on others."""
        why = []
        mean = self.loss_reduction == 'mean' and self.criterion is None
        if mean and self.loader.form == 'withdraw':
            why.append(
                'a mean divides by how many units were drawn, which differs '
                "between neighbours (loss_reduction='sum' and "
                'training.loss(batch) do not)'
            )
        if self.isolation == 'construction':
            return why
        if any(p.device.type != 'cpu' for p in self.parameters):
            why.append('a GPU chooses its kernels by the whole batch')
        if self.units.exact and self.units.foreign:
            foreign = ', '.join(map(repr, sorted(self.units.foreign)))
            why.append(
                f'{foreign} may round a row otherwise in a batch of another '
                'size'
            )
        return why

    # Weights between steps #################################################

    def hold(self) -> None:
        """Keep the present weights, to notice a second optimizer."""
        self._weights = {
            name: p.detach().clone()
            for name, p in self.module.named_parameters()
        }

    def release(self) -> None:
        """Drop the kept weights, as these are about to be moved."""
        self._weights = None

    def load(self) -> None:
        """Keep weights that the user has loaded."""
        self.weights_loaded = True
        self.hold()

    def moved(self) -> str | None:
        """Return the name of a parameter that was changed, if there is one."""
        if self._weights is None:
            return None
        for name, p in self.module.named_parameters():
            kept = self._weights.get(name)
            if kept is None or not same(p.detach(), kept.to(p.device)):
                return name
        return None

    def intact(self) -> bool:
        """Return whether the weights are those of the last private step."""
        held = self._weights is not None and not self.weights_loaded
        return held and self.moved() is None

    # A step ################################################################

    @editing
    def deliver(
        self, batch: Data, owner: Tensor, count: int, total: int
    ) -> Any:
        """Record a batch, as one graph, and return it as it is delivered.

        ``owner`` is the unit of each node, ``count`` their number, and
        ``total`` that of the whole step.
        """
        if self.disagrees:
            raise RuntimeError(DISAGREES)
        self._drop()
        if self._sums is None:
            # Drawn before anything is known of the units: how many steps were
            # looked at is released.
            first = self._taken == 0
            self._looks = first or not secrets.randbelow(_LOOKED)
            some = self._taken < _FIRST or not secrets.randbelow(_VERIFIED)
            self._verifies = some or self._looks
        self._at, self._total = Units(batch, owner, count), total
        self._batch = self._shown = batch
        if self.schema is not None:
            self._shown = self.schema.typed(batch)
        self._marks = marks_of(self._shown)
        self._stage = 'delivered'
        return self._shown

    @editing
    def forward(self, args: Any, kwargs: Any) -> Tensor:
        """Call the model and record how it uses its parameters."""
        batch = self._batch
        if self._stage != 'delivered' or batch is None:
            raise RuntimeError(
                'in training, the model needs to be called exactly once for '
                'each batch of the private loader '
                + {
                    'idle': '(got a call before the first batch)',
                    'done': '(got a call after the step of the last one)',
                }.get(self._stage, f'(got a second call){ACCUMULATE}')
            )
        trained = [p for p in self.module.parameters() if p.requires_grad]
        if {*map(id, trained)} != {*map(id, self.parameters)}:
            raise ValueError(
                "'module' needs to train the same parameters all the time: "
                'freeze, replace or add them before make_private'
            )
        for store in self._shown.stores:
            for name, value in store.items():
                if isinstance(value, Tensor) and value.requires_grad:
                    raise ValueError(
                        f"'{name}' of the batch needs to be without gradient, "
                        'as none comes back from a private model, also not '
                        f'for a penalty: take data.{name}.detach(); '
                        'embeddings of nodes are trained as a layer of the '
                        'model'
                    )
        at, device = self._at, self._at.owner.device
        check_autocast(device)
        given = self._shown, self._marks, at, args, kwargs
        call = self._call = Call(self.module, self.schema, *given)
        self.token = object()
        if at.count == 0:
            # No unit was drawn: the step adds noise alone.
            assert self._blank is not None
            self._out = self._blank.to(device)
            self._stage = 'called'
            return self._out
        if call.key not in self._probed:
            self.probe(call, batch, at)
        self._restore = _remember(self.module)
        before = _versions(self.module)
        with fresh_draws(device, self.secret), torch.enable_grad():
            if self.isolation == 'construction':
                out = self._alone(call, batch)
            else:
                shown = self._shown
                if self._looks:
                    batch, self._inputs = with_gradients(batch, at.owner)
                    shown = call.shown(batch)
                out = self.run(call, shown, at)
        if _versions(self.module) != before:
            raise ValueError(
                "'module' needs to keep its buffers as they are in training, "
                'as they would carry data on'
            )
        if not out.requires_grad:
            raise ValueError(
                "'module' needs to return what depends on its parameters"
            )
        self._out, self._stage = out, 'called'
        return out.detach()

    def run(self, call: Call, shown: Any, at: Units) -> Tensor:
        """Run the model on all units at once, and record how."""
        given = call.owners(shown, at)
        out: Any = self.units.run(lambda: call(shown), given, at.count)
        check_output(out, len(at.owner), len(at.rows), self.by_unit)
        self.by_type = call.by_type
        # The output of a batch of no units.
        self._blank = out.detach().new_zeros((0, *out.shape[1:]))
        return out

    def probe(self, call: Call, batch: Data, at: Units) -> None:
        """Test a call of the model on made-up rows, before the first one."""
        self.checkable = try_call(self, call, batch, at) is not None
        self._probed.add(call.key)

    def _alone(self, call: Call, batch: Data) -> Tensor:
        # Each unit by itself, by the functions of `exact.step`.
        at, key = self._at, int(torch.randint(2**62, ()))
        for number in range(at.count):
            twin = exact.twin(self.module)
            unit: exact.Unit = (at.alone(batch, number),), {}
            out = exact.outputs(_OnBatch(twin, call), unit, key)
            self._parts.append((twin, out))
        self.by_type = call.by_type
        parts = [out for _, out in self._parts]
        if len({part.shape[1:] for part in parts}) != 1:
            raise ValueError(
                "'module' needs to return rows of one shape for every subgraph"
            )
        out = torch.cat(parts)
        check_output(out, len(at.owner), len(at.rows), self.by_unit)
        rows = at.of(out, self.by_unit)
        sizes = [len(part) for part in parts]
        if sizes != rows.bincount(minlength=at.count).tolist():
            raise ValueError(
                "'module' needs to return a row per node, or one per "
                f'subgraph (got {sizes[:8]} rows of the first ones alone)'
            )
        # Move the rows of a unit from their adjacent places to their own.
        order = rows.argsort(stable=True)
        return torch.empty_like(out).index_copy(0, order, out)

    def loss(self, model: Any, batch: Any) -> Tensor:
        """Compute the loss of a batch, each unit's term by itself.

        Its value is the mean or the sum; its gradient is that of the sum,
        as what is divided by is the engine's own business.
        """
        if self.criterion is None:
            raise ValueError(
                "'criterion' needs to be given to make_private: "
                'training.loss(batch) is made of its terms'
            )
        if self.forward_with is not None:
            out: Any = self.forward_with(model, batch)
        else:
            out = model(*arguments_of(self.module, batch, self.by_unit))
        y = batch
        if self.schema is not None:
            target = self.schema.target
            y = batch[target]
            out = out[target] if isinstance(out, dict) else out
        whose = self._at.rows
        out, y = out[: len(whose)], y.y[: len(whose)]
        self._summed = True
        terms = [
            self.criterion(out[whose == unit], y[whose == unit]).reshape(())
            for unit in whose.unique().tolist()
        ]
        if not terms:
            return out.sum()
        count = len(terms) if self.loss_reduction == 'mean' else 1
        return _Terms.apply(torch.stack(terms), count)

    @editing
    def backward(self, grad: Tensor) -> None:
        """Clip and sum the gradients of the batch's units."""
        if self._stage != 'called' or self._out is None:
            raise RuntimeError(
                'in training, loss.backward() needs to be called exactly once '
                f'for each batch{ACCUMULATE}'
            )
        at, out = self._at, self._out
        # An interrupt from here on ends the step: nothing is added twice, and
        # after a refusal, which depends on the data, no other loss is tried.
        self._stage = 'interrupted'
        if at.count == 0:
            kind = torch.float64 if self.noiseless else torch.int64
            self._add(
                [torch.zeros_like(p, dtype=kind) for p in self.parameters]
            )
            return
        rows = at.of(out, self.by_unit)
        # A mean is over units; of a unit with several rows that the loss
        # reads, the term is the mean of theirs.
        mean = self.loss_reduction == 'mean' and not self._summed
        if self.schema is not None and self.schema.by_row:
            grad = grad * len(rows) if mean else grad
            if not self._summed:
                share = rows.bincount(minlength=at.count)[rows].to(grad)
                grad = grad / share.view(-1, *[1] * (grad.dim() - 1))
        elif mean:
            grad = grad * at.count
        norm, automatic = self.max_grad_norm, self.clipping == 'automatic'
        if self.isolation == 'construction':
            self._add(*self._construct(grad, rows, norm, automatic))
            return
        self._apart = False
        given = out, grad, rows, self._inputs, self._verifies
        found = self.units.attribute(*given)
        clipped = clipped_sum(found, norm, automatic, self.noiseless)
        if self._looks:
            # Compare a unit's outputs with those of it alone.
            call, unit = self._call, secrets.randbelow(at.count)
            assert call is not None
            assert self._batch is not None
            if agrees(call, self._batch, at, [unit], self.by_unit) is False:
                self.disagrees = True
                raise RuntimeError(DISAGREES)
        # An adaptive norm releases this count with noise; nothing else reads
        # it.
        below = int((clipped.norms <= norm).sum()) if self.counts else 0
        sums = [clipped.integers[name] for name in self.names]
        if self.noiseless:
            sums = [v.double() * (clipped.norm / norm) for v in sums]
        self._add(sums, at.count, below)

    def _construct(
        self, grad: Tensor, rows: Tensor, norm: float, automatic: bool
    ) -> tuple[list[Tensor], int, int]:
        # Clip each unit by itself, by the functions of `exact.step`.
        kind: Any = np.float64 if self.noiseless else np.int64
        totals = [np.zeros(tuple(p.shape), kind) for p in self.parameters]
        below = 0
        for number, (twin, out) in enumerate(self._parts):
            found = exact.gradient(twin, out, grad[rows == number])
            size, least = exact.length(found), norm
            if self.noiseless and not automatic and 0 < size < norm:
                least = fitting(norm, size)
            each: Any = exact.adds(found, least, automatic)
            if self.noiseless:
                each = [part * (least / norm) for part in each]
            exact.add(totals, each)
            below += self.counts and size <= norm
        device = self._at.owner.device
        sums = [torch.from_numpy(total).to(device) for total in totals]
        return sums, self._at.count, below

    def _add(self, sums: list[Tensor], count: int = 0, below: int = 0) -> None:
        if self._sums is not None:
            sums = [a + b for a, b in zip(self._sums, sums, strict=True)]
        self._sums = sums
        self._count += count
        self._below += below
        self._stage = 'clipped'
        self._out = self._call = None
        self._parts, self._inputs = [], []

    def finish(self, groups: list[dict[str, Any]]) -> bool:
        """End the batch; return whether it was the last of its step.

        If so, noisy gradients are in ``p.grad``. ``groups`` are those of the
        optimizer.
        """
        if (name := self.moved()) is not None:
            raise RuntimeError(
                f"'{name}' was changed since the last private step, by a "
                'second optimizer or by hand, so that it may hold private '
                'data without noise: load weights that were released, or are '
                'public, with load_state_dict of the private model'
            )
        self._check_gradients(groups)
        if self._stage != 'clipped':
            raise RuntimeError(
                'optimizer.step() needs to follow one loss.backward() on a '
                'batch of the private loader '
                + {
                    'idle': '(got none)',
                    'delivered': '(the model was not called)',
                    'called': '(got no backward pass)',
                    'interrupted': '(it was interrupted)',
                    'done': '(got a second step)',
                }[self._stage]
            )
        self._drop()
        self._stage = 'done'
        if self._count < self._total:
            return False
        assert self._sums is not None
        sums, count, below = self._sums, self._count, self._below
        self._sums, self._count, self._below = None, 0, 0
        noisy = self.add_noise(sums, count, below)
        # A count of steps is released: it must not reveal which had units.
        self.constructed += self.isolation == 'construction' and self._apart
        self.checked += self.checkable and self._looks
        self.verified += self._verifies
        self._taken += 1
        self._apart = True
        for i, (parameter, grad) in enumerate(
            zip(self.parameters, noisy, strict=True)
        ):
            parameter.grad = grad.to(parameter)
            self._written[i] = (parameter.grad, parameter.grad._version)
        return True

    def _check_gradients(self, groups: list[dict[str, Any]]) -> None:
        written = dict(zip(self.parameters, self._written, strict=True))
        moved = [p for group in groups for p in group['params']]
        names = dict.fromkeys(moved, 'a parameter of the optimizer')
        names |= {p: name for name, p in self.module.named_parameters()}
        for p, name in names.items():
            ours = written.get(p)
            if p.grad is not None and (
                ours is None
                or p.grad is not ours[0]
                or p.grad._version != ours[1]
            ):
                raise RuntimeError(
                    f"the gradient of '{name}' came from elsewhere than the "
                    'private model (a regulariser, a second model, a pass in '
                    'evaluation mode) and has no noise: put the term into the '
                    'model, or use weight_decay'
                )


class Intercept(torch.autograd.Function):
    """Hands out the output; what comes back goes to the step."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, anchor: Tensor, owner: PrivateStep
    ) -> Tensor:
        """Return the output as it is."""
        ctx.step, ctx.token = owner, owner.token
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        """Hand the gradient to the step."""
        if ctx.token is not ctx.step.token:
            raise RuntimeError(
                'in training, loss.backward() needs to be called exactly once '
                f'for each batch, before the next one{ACCUMULATE}'
            )
        ctx.step.backward(grads[0].detach())
        return None, None, None


class _Terms(torch.autograd.Function):
    # The mean or the sum of terms, with the gradient of the sum.
    @staticmethod
    def forward(ctx: Any, each: Tensor, count: int) -> Tensor:
        ctx.size = each.shape
        return each.sum() / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return grads[0].expand(ctx.size), None


class _OnBatch(nn.Module):
    # A model as a function of a batch of one graph.
    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, batch: Data) -> Any:
        return self.call(self.call.shown(batch), self.model)


@contextmanager
def fresh_draws(device: torch.device, secret: bool) -> Iterator[None]:
    """Draw from fresh generators in a block, and put the old ones back."""
    seed = secrets.randbits(62) if secret else int(torch.randint(2**62, ()))
    cuda = [device] if device.type == 'cuda' else []
    with torch.random.fork_rng(cuda):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    return [(id(b), b._version) for b in module.buffers()]


def _remember(module: nn.Module) -> Callable[[], None]:
    # What puts the attributes of all layers back as they are now, so that
    # no copy of the model holds private rows. Numbers stay: a model may count.
    saved = []
    for place in map(vars, module.modules()):
        held = {k: v for k, v in place.items() if k not in _OWN}
        full = [(v, v.copy()) for v in held.values() if type(v) in _FULL]
        saved.append((place, held, full))

    def restore() -> None:
        for place, held, full in saved:
            for name, value in [*place.items()]:
                same_as_before = value is held.get(name, _NONE)
                if name in _OWN or same_as_before or type(value) in _COUNTED:
                    continue
                if name in held:
                    place[name] = held[name]
                else:
                    del place[name]
            for value, inside in full:
                value.clear()
                (value.update if type(value) is dict else value.extend)(inside)

    return restore


def noisy_sums(
    totals: list[Tensor],
    noise: Any,
    multiplier: float,
    norm: float,
) -> list[Tensor]:
    """Bring sums to the grid of the noise, in float64, and add it."""
    # All at once: every draw checks the table of the noise.
    (made,) = exact.release(
        [torch.cat([total.cpu().reshape(-1) for total in totals]).numpy()],
        lambda count: noise.cells((count,)).cpu().numpy(),
        multiplier,
        norm,
    )
    parts = torch.from_numpy(made).split([t.numel() for t in totals])
    return [
        part.view(total.shape).to(total.device, copy=True)
        for part, total in zip(parts, totals, strict=True)
    ]


def noisy_count(count: float, noise: Any, std: float) -> float:
    """Add noise to a count to which each subgraph adds 1/2 at most."""
    step, _ = clip.noise_grid(2 * std, 0.5, 1)
    return (round(count / step) + int(noise.cells((1,))[0])) * step
