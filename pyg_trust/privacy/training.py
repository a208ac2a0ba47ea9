r"""One private step, from the batch to the noisy gradient.

    loader gives a batch -> model(...) once -> loss.backward() once
    -> optimizer.step()

:class:`PrivateStep` follows every step through these stages and refuses
whatever would leave the analysed mechanism. The model runs on the batch as it
is; ``backward()`` hands the gradient by its outputs to
:mod:`pyg_trust.privacy.codes`, which tells what each unit gives to each
parameter, and clips. Only the sum of clipped gradients plus noise ever reaches
``p.grad``.

Three things are assumed, and said in the report: (a) the outputs of a unit
depend on that unit, on weights and on draws alone; (b) the loss is the mean or
the sum of one term per unit, of its outputs and labels alone; (c) each column
of a row was computed from that unit's data and public tables alone. The codes
and a unit that is run alone check (a); :meth:`PrivateStep.loss` makes (b) so.
"""

import copy
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust.files.commit import ObjectLock, editing
from pyg_trust.privacy.alone import DISAGREES, Alone, agrees
from pyg_trust.privacy.calls import Call
from pyg_trust.privacy.clipping import clipped_sum
from pyg_trust.privacy.codes import Attributor
from pyg_trust.privacy.exact import step
from pyg_trust.privacy.exactness import Exactness
from pyg_trust.privacy.pins import Pins, remembered
from pyg_trust.privacy.typed import (
    PROBED,
    TypedCall,
    TypedModel,
    plain_model,
)
from pyg_trust.privacy.validation import (
    SEED,
    BatchCall,
    Criterion,
    Forward,
    arguments_of,
    buffer_versions,
    check_autocast,
    check_edges,
    check_isolation,
    check_output,
    features_of,
    in_training,
    randomised,
    snapshot,
    terms_of,
)

REDUCTIONS = ('mean', 'sum')
_ACCUMULATE = (
    '. To gather the gradients of a large batch, hand '
    "'max_physical_batch_size' to make_private: the batch then comes in "
    'parts, each with an optimizer.step()'
)
# The first steps are verified, and one of so many others, drawn in secret.
_FIRST, _VERIFIED = 3, 8
# In one of so many steps, one unit is run alone as well.
_LOOKED = 16
# How many units run alone before training starts.
_TRIED = 8


class _Units(NamedTuple):
    # The unit of each node, that of each row of outputs unless these are of
    # nodes, and how many units there are.
    owner: Tensor
    terms: Tensor
    num: int

    def of(self, out: Tensor, by_unit: bool) -> Tensor:
        # The unit of each row of the output.
        nodes = out.size(0) == self.owner.numel() and not by_unit
        return self.owner if nodes else self.terms


class PrivateStep:
    r"""State of the step in progress: its batch, the call and the sums.

    Args:
        module (torch.nn.Module): the model.
        parameters (list[Parameter]): the trained parameters.
        max_grad_norm (float): the clipping norm :math:`C`.
        loss_reduction (str): :obj:`'mean'` or :obj:`'sum'`.
        add_noise (callable): pays for a step, then maps sums of clipped
            gradients, in units of ``exact.clip.grid``, the number of units
            they are of, and how many of these had a gradient below the
            clipping norm, to noisy ones.
        clipping (str): :obj:`'flat'` or :obj:`'automatic'`. (default:
            :obj:`'flat'`)
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        max_grad_norm: float,
        loss_reduction: str,
        add_noise: Callable[[list[Tensor], int, int], list[Tensor]],
        clipping: str = 'flat',
    ) -> None:
        self._lock = ObjectLock()
        self.states_loaded = 0
        self.settings_changed = 0
        #: Whether a unit is a row of the output, as its size is private, and
        #: whether it may have several.
        self.by_unit = self.by_row = False
        self.counts = False
        self.isolation = 'checked'
        #: Whether random numbers of the batch may be known to nobody.
        self.secret = False
        #: Steps in which every unit was run alone, in which one was, and in
        #: which owners of rows were verified.
        self.constructed = self.checked = self.verified = 0
        #: Whether the model draws nothing but dropout.
        self.checkable = True
        #: Whether a unit's outputs were others when it was run alone.
        self.disagrees = False
        #: How the model and the loss are called, if that was given.
        self.call_with: Forward | None = None
        self.criterion: Criterion | None = None
        self.units = Attributor(module)
        self.exactness = Exactness(self.units)
        self.module = module
        self.parameters = parameters
        self.max_grad_norm = max_grad_norm
        self.loss_reduction = loss_reduction
        self.clipping = clipping
        self.add_noise = add_noise
        names = {p: n for n, p in module.named_parameters()}
        self._names = [names[p] for p in parameters]
        self.pins = Pins(module, parameters)
        self._probed: set[str] = set()
        self._blank: Tensor | None = None
        self._written: list[tuple[Tensor, int] | None]
        self._written = [None] * len(parameters)
        self._taken = 0
        self._forget: Callable[[], None] | None = None
        self.reset()

    @editing
    def reset(self) -> None:
        """Discard an unfinished step, of which nothing was released."""
        self._stage = 'idle'
        self._units = self._below = self._total = 0
        self._sums: list[Tensor] | None = None
        # What is done in all parts of the step.
        self._apart, self._verifies, self._looks = True, True, False
        self._drop()

    def _drop(self) -> None:
        if self._forget is not None:
            self._forget()
        self._forget = None
        self._batch: Data | None = None
        self._handed: Any = None
        self._call: BatchCall | None = None
        self._out: Tensor | None = None
        self._parts: list[tuple[nn.Module, Tensor]] = []
        self._inputs: list[tuple[Tensor, Tensor]] = []
        # Whether the loss came from `loss`, which divides by nothing.
        self._summed = False
        self.token: object = None

    def notes(self) -> list[str]:
        """Return the report's notes on loss, layers and optimizer."""
        notes = []
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
        notes.append(
            "each column of a row was computed from that unit's data and "
            'public tables alone, also by a transform of the loader'
        )
        if self.states_loaded:
            notes.append(
                'the state of the optimizer was loaded from elsewhere '
                f'{self.states_loaded} times; it was released by this '
                'training before, or is public'
            )
        if self.settings_changed:
            notes.append(
                'settings of the optimizer, as a learning rate, changed '
                f'between steps ({self.settings_changed} times): this holds '
                'if they follow a schedule that is fixed or public, and does '
                'not if they follow a private loss, as ReduceLROnPlateau does'
            )
        return notes

    @property
    def finished(self) -> bool:
        """Whether no delivered batch still waits for its step."""
        return self._stage in ('idle', 'done')

    @editing
    def deliver(
        self, batch: Data, owner: Tensor, count: int, total: int
    ) -> Any:
        """Record a batch before it is handed out.

        Args:
            batch (Data): the batch.
            owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
            count (int): the number of subgraphs.
            total (int): the number of subgraphs of the whole step.

        Returns:
            Data or HeteroData: the batch to hand out.
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
        # Writing into the batch that is handed out does not change this.
        terms = terms_of(batch, owner, count).clone()
        self._at = _Units(owner.clone(), terms, count)
        self._total = total
        self._batch = batch
        self._stage = 'delivered'
        if isinstance(self.module, TypedModel):
            self._handed = self.module.schema.typed(batch)
            self._versions = TypedCall.snapshot(self._handed)
            return self._handed
        self._handed = batch
        self._versions = snapshot(batch)
        return batch

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
                }.get(self._stage, f'(got a second call){_ACCUMULATE}')
            )
        self.pins.check_layers()
        check_autocast(self._at.owner.device)
        kind = TypedCall if self._handed is not batch else BatchCall
        call = kind(self._handed, self._versions, args, kwargs)
        self._call = call
        self.token = object()
        if self._at.num == 0:
            # No unit was drawn: the step adds noise alone.
            assert self._blank is not None
            self._out = self._blank.to(self._at.owner.device)
            self._stage = 'called'
            return self._out
        self._probe(call)
        self._forget = remembered(self.module)
        before = buffer_versions(self.module)
        device = self._at.owner.device
        with fresh_draws(device, self.secret), torch.enable_grad():
            if self.isolation == 'construction':
                out = self._alone(call)
            else:
                out = self._together(call, batch)
        sizes = len(self._at.owner), len(self._at.terms)
        check_output(out, *sizes, self.by_unit)
        if buffer_versions(self.module) != before:
            raise ValueError(
                "'module' needs to keep its buffers as they are in training, "
                'as they would carry data on'
            )
        if not out.requires_grad:
            raise ValueError(
                "'module' needs to return what depends on its parameters"
            )
        self._out = out
        self._stage = 'called'
        return out.detach()

    def _together(self, call: BatchCall, batch: Data) -> Tensor:
        # All units at once.
        if self._looks:
            batch, self._inputs = _with_gradients(batch, self._at.owner)
        given = self._owners(batch, self._at)
        return self.units.run(
            lambda: call(self.module, batch), given, self._at.num
        )

    def _owners(self, batch: Data, at: _Units) -> list[Tensor]:
        # Owners of the rows that there may be: nodes, edges, those by type.
        owner, given = at.owner, [at.owner]
        if len(at.terms) != at.num:
            given.append(at.terms)
        edges = batch.get('edge_index')
        if isinstance(edges, Tensor) and edges.layout == torch.strided:
            given.append(owner[edges[0]])
        if isinstance(self.module, TypedModel):
            given += self.module.owners(batch, owner)
        return given

    def _alone(self, call: BatchCall) -> Tensor:
        # Each unit by itself, by the kernel's own functions.
        assert self._batch is not None
        at = self._at
        units = Alone(
            self._whole(call, self._batch, at), int(torch.randint(2**62, ()))
        )
        for number in range(at.num):
            twin = step.twin(self.module)
            out = step.outputs(twin, units.unit(number), units.key)
            self._parts.append((twin, out))
        parts = [out for _, out in self._parts]
        if len({part.shape[1:] for part in parts}) != 1:
            raise ValueError(
                "'module' needs to return rows of one shape for every unit"
            )
        out = torch.cat(parts)
        rows = at.of(out, self.by_unit)
        sizes = [len(part) for part in parts]
        if sizes != rows.bincount(minlength=at.num).tolist():
            raise ValueError(
                "'module' needs to return a row per node, or one per "
                f'subgraph (got {sizes[:8]} rows of the first units alone)'
            )
        # Move the rows of a unit from their adjacent places to their own.
        order = rows.argsort(stable=True)
        return torch.empty_like(out).index_copy(0, order, out)

    def _probe(self, call: BatchCall) -> None:
        # A call with other arguments than those tested is tested first.
        if call.key not in self._probed:
            batch, owner = self._batch, self._at.owner
            assert batch is not None
            if isinstance(self.module, TypedModel):
                batch = self.module.schema.made(PROBED).to(owner.device)
                owner = batch.batch
            self.probe(call, batch, owner)

    def probe(self, call: BatchCall, batch: Data, owner: Tensor) -> None:
        """Test a call of the model on the structure of a batch.

        Features are made up; private ones are not read.
        """
        check_edges(batch, owner)
        check_isolation(self.module, call, batch, owner, by_unit=self.by_unit)
        count = int(owner.max()) + 1
        at = _Units(owner, terms_of(batch, owner, count), count)
        generator = torch.Generator().manual_seed(SEED)
        made = randomised(batch, features_of(batch, owner.numel()), generator)
        with in_training(self.module, {}), torch.random.fork_rng():
            torch.manual_seed(SEED)
            self._attribute(call, made, at, generator)
            whole = self._whole(call, made, at)
            found = agrees(whole, at.terms, range(min(count, _TRIED)))
        self.checkable = found is not None
        if found is False:
            raise ValueError(
                "'module' needs to treat subgraphs apart, but the output of "
                'one changes when it is run alone: look for statistics of the '
                'whole batch, for divisions by numbers of rows, and for '
                'ranks among all rows'
            )
        self._probed.add(call.key)

    def _attribute(
        self,
        call: BatchCall,
        made: Data,
        at: _Units,
        generator: torch.Generator,
    ) -> None:
        batch, inputs = _with_gradients(made, at.owner)
        with torch.enable_grad():
            out = self.units.run(
                lambda: call(self.module, batch),
                self._owners(batch, at),
                at.num,
            )
        self._blank = out.detach().new_zeros((0, *out.shape[1:]))
        if not out.requires_grad:
            return
        grad = torch.randn(out.shape, generator=generator).to(out)
        rows = at.of(out, self.by_unit)
        found = self.units.attribute(out, grad, rows, inputs)
        clipped_sum(found, self.max_grad_norm)

    def _whole(self, call: BatchCall, batch: Data, at: _Units) -> Call:
        args, kwargs = call.arguments(batch)
        return Call(self.module, args, kwargs, at.owner, at.num)

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
        if self.call_with is not None:
            out = self.call_with(model, batch)
        else:
            plain = plain_model(self.module)
            out = model(*arguments_of(plain, batch, self.by_unit))
        if isinstance(self.module, TypedModel):
            target = self.module.schema.target
            y = batch[target].y
            out = out[target] if isinstance(out, dict) else out
        else:
            y = batch.y
        whose = self._at.terms
        out, y = out[: len(whose)], y[: len(whose)]
        units = whose.unique().tolist()
        terms = [
            self.criterion(out[rows], y[rows])
            for rows in (whose == unit for unit in units)
        ]
        self._summed = True
        if not terms:
            return out.sum()
        each = torch.stack([term.reshape(()) for term in terms])
        mean = self.loss_reduction == 'mean'
        return _Terms.apply(each, len(terms) if mean else 1)

    @editing
    def backward(self, grad: Tensor) -> None:
        """Clip and sum the gradients of the batch's subgraphs."""
        if self._stage != 'called' or self._out is None:
            raise RuntimeError(
                'in training, loss.backward() needs to be called exactly once '
                f'for each batch{_ACCUMULATE}'
            )
        count, out = self._at.num, self._out
        # An interrupt from here on ends the step: nothing is added twice, and
        # after a refusal, which tells of the data, no other loss is tried.
        self._stage = 'interrupted'
        if count == 0:
            self._add([torch.zeros_like(p).long() for p in self.parameters])
            return
        rows = self._at.of(out, self.by_unit)
        if self.by_row:
            # The term of a unit is the mean of those of its rows.
            share = rows.bincount(minlength=count)[rows].to(grad)
            if not self._summed:
                if self.loss_reduction == 'mean':
                    grad = grad * len(rows)
                grad = grad / share.view(-1, *[1] * (grad.dim() - 1))
        elif self.loss_reduction == 'mean' and not self._summed:
            grad = grad * count
        if self.isolation == 'construction':
            self._construct(grad, rows)
            return
        self._apart = False
        found = self.units.attribute(
            out, grad, rows, self._inputs, self._verifies
        )
        norm, automatic = self.max_grad_norm, self.clipping == 'automatic'
        clipped = clipped_sum(found, norm, automatic)
        if self._looks:
            self._look()
        # An adaptive norm releases this count with noise; nothing else reads
        # it.
        below = int((clipped.norms <= norm).sum()) if self.counts else 0
        self._add(
            [clipped.integers[name] for name in self._names], count, below
        )

    def _look(self) -> None:
        # Compare a unit's outputs with those of it alone.
        assert self._call is not None
        assert self._batch is not None
        at = self._at
        whole = self._whole(self._call, self._batch, at)
        unit = secrets.randbelow(at.num)
        if agrees(whole, at.terms, [unit]) is False:
            self.disagrees = True
            raise RuntimeError(DISAGREES)

    def _construct(self, grad: Tensor, rows: Tensor) -> None:
        # Clip each unit by itself, by the kernel's own functions.
        norm, automatic = self.max_grad_norm, self.clipping == 'automatic'
        totals = [
            np.zeros(tuple(p.shape), dtype=np.int64) for p in self.parameters
        ]
        below = 0
        for number, (twin, out) in enumerate(self._parts):
            found = step.gradient(twin, out, grad[rows == number])
            step.add(totals, step.adds(found, norm, automatic))
            below += step.length(found) <= norm
        device = self._at.owner.device
        self._add(
            [torch.from_numpy(total).to(device) for total in totals],
            self._at.num,
            below if self.counts else 0,
        )

    def _add(self, sums: list[Tensor], count: int = 0, below: int = 0) -> None:
        if self._sums is not None:
            sums = [a + b for a, b in zip(self._sums, sums, strict=True)]
        self._sums = sums
        self._units += count
        self._below += below
        self._stage = 'clipped'
        self._out = self._call = None
        self._parts, self._inputs = [], []

    def finish(self) -> bool:
        """End the batch; return whether it was the last of its step.

        If so, noisy gradients are in ``p.grad``.
        """
        self._check_parameters()
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
        if self._units < self._total:
            self._stage = 'done'
            return False
        assert self._sums is not None
        sums, units, below = self._sums, self._units, self._below
        self._sums, self._units, self._below = None, 0, 0
        self._stage = 'done'
        noisy = self.add_noise(sums, units, below)
        # A count of steps is released: it must not tell which had units.
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

    def move(self, update: Callable[[], Any]) -> None:
        """Update the weights by an optimizer step on noisy gradients."""
        # Dropped before the step: if it stops halfway, weights have moved,
        # by noisy gradients alone, and nobody else has changed them.
        self.pins.release()
        update()
        self.pins.hold()

    def _check_parameters(self) -> None:
        self.pins.check_layers()
        self.pins.check_values()
        written = dict(zip(self.parameters, self._written, strict=True))
        for name, parameter in self.module.named_parameters():
            grad, ours = parameter.grad, written.get(parameter)
            if grad is None:
                continue
            if ours is None or grad is not ours[0] or grad._version != ours[1]:
                raise RuntimeError(
                    f"the gradient of '{name}' came from elsewhere than the "
                    'private model (a regulariser, a second model, a pass in '
                    'evaluation mode, or a change by hand): it would leave '
                    'without noise. Put the term into the model or use '
                    'weight_decay'
                )


class Intercept(torch.autograd.Function):
    """Hands out the output; what comes back goes to the step."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, anchor: Tensor, owner: PrivateStep
    ) -> Tensor:
        """Return the output."""
        ctx.step, ctx.token = owner, owner.token
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        """Hand the gradient to the step."""
        if ctx.token is not ctx.step.token:
            raise RuntimeError(
                'in training, loss.backward() needs to be called exactly once '
                f'for each batch, before the next one{_ACCUMULATE}'
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


@contextmanager
def fresh_draws(device: torch.device, secret: bool) -> Iterator[None]:
    """Draw from fresh generators in a block, and put the old ones back.

    So masks of dropout are known to nobody. Where the sizes of units are
    private, a unit shifts the masks of all after it.

    Args:
        device (torch.device): the device of the model.
        secret (bool): whether the seed comes from the operating system, and
            not from torch's generator.
    """
    seed = secrets.randbits(62) if secret else int(torch.randint(2**62, ()))
    cuda = [device] if device.type == 'cuda' else []
    with torch.random.fork_rng(cuda):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield


def _with_gradients(
    batch: Data, owner: Tensor
) -> tuple[Data, list[tuple[Tensor, Tensor]]]:
    # A batch whose features require a gradient, and the unit of each row.
    out, inputs = copy.copy(batch), []
    for name in features_of(batch, owner.numel()).floating:
        out[name] = batch[name].detach().requires_grad_()
        inputs.append((out[name], owner))
    return out, inputs
