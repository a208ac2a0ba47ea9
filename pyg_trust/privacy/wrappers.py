# Longer than 700 lines because model and optimizer share the step in progress.
r"""A model and an optimizer that can only train privately.

With their loader (``privacy/loading.py``) they share a :class:`PrivateStep`,
which follows every step through its stages and refuses whatever would leave
the analysed mechanism:

    loader gives a batch -> model(...) once -> loss.backward() once
    -> optimizer.step()

Only the sum of clipped gradients plus noise ever reaches ``p.grad``.

Why no optimizer of Opacus: theirs trusts whoever fills ``p.grad``, draws the
noise in float32, and tells the accountant after the noise was made. Here the
step is on the account (and on the disk) before there is anything to see, a
gradient from elsewhere is refused, and only the accountants are of Opacus'
kind.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust._checks import check_callable
from pyg_trust.files.commit import ObjectLock, editing
from pyg_trust.privacy.alone import DISAGREES, Alone, CrossCheck, Draw
from pyg_trust.privacy.calls import Call
from pyg_trust.privacy.decoys import Decoys
from pyg_trust.privacy.draws import fresh_state, random_state, set_random_state
from pyg_trust.privacy.exact import step
from pyg_trust.privacy.exact.step import Share
from pyg_trust.privacy.exactness import Exactness
from pyg_trust.privacy.gradients import SubgraphGradients, Tape
from pyg_trust.privacy.layer_rules import LAYER_RULES
from pyg_trust.privacy.pins import Pins
from pyg_trust.privacy.pipeline import check_names
from pyg_trust.privacy.rehearsal import (
    Rehearsal,
    forgetting,
    settings,
)
from pyg_trust.privacy.rows import Args, Kwargs
from pyg_trust.privacy.typed import PROBED, TypedCall, TypedModel, reveal, show
from pyg_trust.privacy.validation import (
    BatchCall,
    buffer_versions,
    check_autocast,
    check_edges,
    check_gradients,
    check_isolation,
    check_output,
    features_of,
    randomised,
    same,
    snapshot,
    terms_of,
)

REDUCTIONS = ('mean', 'sum')
_ACCUMULATE = (
    '. To gather the gradients of a large batch, hand '
    "'max_physical_batch_size' to make_private: the batch then comes in "
    'parts, each with an optimizer.step()'
)
# Stands for the tape if the batch has no rows.
_NOBODY = 'nobody'
# Stands for the tape until the loss is computed.
_LATER = 'later'


class PrivateStep:
    r"""State of the step in progress: its batch, the call and the sums.

    Args:
        gradients (SubgraphGradients): the gradients of the model.
        parameters (list[Parameter]): the trained parameters.
        max_grad_norm (float): the clipping norm :math:`C`.
        loss_reduction (str): :obj:`'mean'` or :obj:`'sum'`.
        add_noise (callable): pays for a step, then maps sums of clipped
            gradients, in units of ``kernel.clip.grid``, the number of units
            they are of, and how many of these had a gradient below the
            clipping norm, to noisy ones.
        trust_loss (bool): whether the loss is left unchecked.
            (default: :obj:`False`)
        public (Sequence[str]): names of attributes that are public.
            (default: :obj:`()`)
        clipping (str): :obj:`'flat'` or :obj:`'automatic'`. (default:
            :obj:`'flat'`)
    """

    def __init__(
        self,
        gradients: SubgraphGradients,
        parameters: list[nn.Parameter],
        max_grad_norm: float,
        loss_reduction: str,
        add_noise: Callable[[list[Tensor], int, int], list[Tensor]],
        trust_loss: bool = False,
        public: Sequence[str] = (),
        clipping: str = 'flat',
    ) -> None:
        self._lock = ObjectLock()
        self.public = tuple(public)
        self.trust_loss = trust_loss
        self.ignored = False
        self.states_loaded = 0
        self.settings_changed = 0
        self.numbers_changed = 0
        self._numbers: frozenset[Any] | None = None
        self.by_unit = False
        self.decoys = Decoys()
        self.counts = False
        self.exactness = Exactness(gradients)
        self.isolation = 'followed'
        #: Whether random numbers of the batch may be known to nobody.
        self.secret = False
        #: Steps in which every unit was run alone, and one of them: of no
        #: step it is told whether it had a unit, or what that unit was.
        self.constructed = self.checked = 0
        #: Whether the model draws what can be drawn again for a unit alone.
        self.checkable = True
        #: Whether a unit has added something else than it does alone.
        self.disagrees = False
        self._draw, self._check = Draw(), CrossCheck()
        self.gradients = gradients
        self.module = gradients.module
        self.parameters = parameters
        self.max_grad_norm = max_grad_norm
        self.loss_reduction = loss_reduction
        self.clipping = clipping
        self.add_noise = add_noise
        names = {p: n for n, p in self.module.named_parameters()}
        self._names = [names[p] for p in parameters]
        self.pins = Pins(self.module, parameters)
        self._probed: set[str] = set()
        self._blank: Tensor | None = None
        self._written: list[tuple[Tensor, int] | None]
        self._written = [None] * len(parameters)
        self._rehearsal: Rehearsal | None = None
        self._settings: dict[str, str] = {}
        self.reset()

    @editing
    def reset(self) -> None:
        """Discard an unfinished step, of which nothing was released."""
        self._stage = 'idle'
        self._units = self._below = self._total = 0
        self._sums: list[Tensor] | None = None
        # Whether units of a part of the step were computed together.
        self._together = False
        self._drop_tape()

    def notes(self) -> list[str]:
        """Return the report's notes on loss, layers and optimizer."""
        notes = []
        if self.disagrees:
            notes.append(f'DOES NOT HOLD: {DISAGREES}')
        if self.trust_loss:
            notes.append(
                'NOT CHECKED: that the loss is one term per subgraph, each of '
                'its own rows (trust_loss=True); a loss that couples '
                'subgraphs has a larger epsilon'
            )
        for name in sorted(self.gradients.own_rules):
            notes.append(
                f'NOT CHECKED: {LAYER_RULES.note(name)}, beyond a comparison '
                'on random features: if its norms are too small, epsilon is'
            )
        if self.public:
            notes.append(
                f'DECLARED PUBLIC: {", ".join(self.public)} of the model or '
                'the data, which are not protected'
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
        if self.numbers_changed:
            notes.append(
                'numbers that the loss does not take from its batch changed '
                f'between steps ({self.numbers_changed} times): this holds if '
                'they follow a public schedule, and does not if they were '
                'read from private data, as a running mean of losses is, or '
                'what a model keeps of an earlier step'
            )
        if self.ignored:
            notes.append(
                'which labels are ignored (ignore_index) counts as public, as '
                'a mask does'
            )
        return notes

    def _drop_tape(self) -> None:
        if self._rehearsal is not None:
            self._rehearsal.restore()
        self._batch: Data | None = None
        self._plain: Data | None = None
        self._handed: Any = None
        self._rehearsal = None
        self._call: BatchCall | None = None
        self._tape: Tape | str | None = None
        self._out: Tensor | None = None

    @property
    def finished(self) -> bool:
        """Whether no delivered batch still waits for its step."""
        return self._stage in ('idle', 'done')

    @editing
    def deliver(
        self, batch: Data, owner: Tensor, count: int, total: int
    ) -> Data:
        """Record a batch before it is handed out.

        Args:
            batch (Data): the batch.
            owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
            count (int): the number of subgraphs.
            total (int): the number of subgraphs of the whole step.

        Returns:
            Data: the batch to hand out, in which rows are followed.
        """
        if self.disagrees:
            raise RuntimeError(DISAGREES)
        self._drop_tape()
        # Writing into the batch that is handed out does not change these.
        owner = owner.clone()
        if not self.trust_loss and (count or self.decoys.num_units):
            self._rehearsal = Rehearsal(
                batch, owner, count, self.decoys, self.by_unit
            )
            self._plain = self._rehearsal.batch
            batch = self._rehearsal.shown
        else:
            self._plain = batch.clone()
        shown = self._rehearsal
        self._batch = batch
        self._total = total
        self._owner = owner
        self._count = count
        self._terms = terms_of(self._plain, owner, count)
        self._versions = snapshot(batch)
        self._stage = 'delivered'
        if not isinstance(self.module, TypedModel):
            return batch
        made = self._plain if shown is None else shown._made
        watch = None if shown is None else shown.watch
        self._handed = show(self.module.schema, made, batch, watch)
        self._versions = TypedCall.snapshot(self._handed)
        return self._handed

    @editing
    def forward(self, args: Args, kwargs: Kwargs) -> Tensor:
        """Call the model and record how to differentiate it."""
        plain = self._plain
        if self._stage != 'delivered' or self._batch is None or plain is None:
            raise RuntimeError(
                'in training, the model needs to be called exactly once for '
                'each batch of the private loader '
                + {
                    'idle': '(got a call before the first batch)',
                    'done': '(got a call after the step of the last one)',
                }.get(self._stage, f'(got a second call){_ACCUMULATE}')
            )
        self.pins.check_layers()
        check_autocast(self._owner.device)
        call: BatchCall
        if isinstance(self.module, TypedModel):
            call = TypedCall(self._handed, self._versions, args, kwargs)
        else:
            call = BatchCall(self._batch, self._versions, args, kwargs)
        anchor = torch.zeros((), device=self._owner.device, requires_grad=True)
        if self._rehearsal is not None:
            # The loss sees rows that are made up. Those of the batch come
            # when it is done, with the random numbers of this moment.
            if self._count:
                self._probe(call)
            self._call = call
            self._states = random_state(self._owner.device)
            before = buffer_versions(self.module)
            shown = self._rehearsal.call(self.module, call)
            self._states = fresh_state(
                self._states, self._owner.device, self.secret
            )
            self._check_buffers(before)
            self._settings = settings(self.module)
            self._tape, self._stage = _LATER, 'called'
            return _Intercept.apply(shown, anchor, self, self._rehearsal)
        if self._count == 0:
            # No unit was drawn: the step adds noise alone.
            assert self._blank is not None
            blank = self._blank.to(self._owner.device)
            self._tape, self._out = _NOBODY, blank
            self._stage = 'called'
            return _Intercept.apply(blank, anchor, self, _NOBODY)
        self._probe(call)
        out = self._run(call)
        self._stage = 'called'
        return _Intercept.apply(out.detach(), anchor, self, self._tape)

    def _run(self, call: BatchCall) -> Tensor:
        # The model on the batch itself, recorded.
        before, plain = buffer_versions(self.module), self._plain
        assert plain is not None
        with self.gradients.record(self._owner, self._count) as tape:
            out = call(self.module, plain)
        self._check_output(out)
        self._check_buffers(before)
        if not out.requires_grad:
            raise ValueError(
                "'module' needs to return what depends on its parameters"
            )
        self._tape, self._out = tape, out
        return out

    def _check_buffers(self, before: list[tuple[int, int]]) -> None:
        if buffer_versions(self.module) != before:
            raise ValueError(
                "'module' needs to keep its buffers as they are in training, "
                'as they would carry data on'
            )

    def _rows(self, out: Tensor) -> Tensor:
        # The subgraph of each row of the output.
        if out.size(0) == self._owner.numel():
            return self._owner
        return self._terms

    def _check_output(self, out: Tensor) -> None:
        size = len(self._terms)
        check_output(out, self._owner.numel(), size, self.by_unit)

    def _probe(self, call: BatchCall) -> None:
        # A call with other arguments than those tested is tested first.
        if call.key not in self._probed:
            batch, owner = self._plain, self._owner
            assert batch is not None
            if isinstance(self.module, TypedModel):
                batch = self.module.schema.made(PROBED).to(owner.device)
                owner = batch.batch
            self.probe(call, batch, owner)

    def probe(self, call: BatchCall, batch: Data, owner: Tensor) -> None:
        """Test a call of the model on the structure of a batch."""
        check_edges(batch, owner)
        check_isolation(self.module, call, batch, owner, by_unit=self.by_unit)
        check_names(self.module, call, batch, owner, self.public)
        self.checkable &= check_gradients(self.gradients, call, batch, owner)
        if self.by_unit and not self.trust_loss:
            self.decoys.fit(self.module, call, batch, int(owner.max()) + 1)
        # The shape of outputs, for a batch without rows.
        generator = torch.Generator().manual_seed(0)
        rows = features_of(batch, owner.numel())
        with torch.no_grad(), torch.random.fork_rng():
            out = call(self.module, randomised(batch, rows, generator))
        self._blank = out.new_zeros((0, *out.shape[1:]))
        self._probed.add(call.key)

    def move(self, step: Callable[[], Any]) -> None:
        """Update the weights by an optimizer step on noisy gradients."""
        # Dropped before the step: if it stops halfway, weights have moved,
        # by noisy gradients alone, and nobody else has changed them.
        self.pins.release()
        step()
        self.pins.hold()

    @editing
    def backward(self, grad: Tensor) -> None:
        """Clip and sum the gradients of the batch's subgraphs."""
        if self._stage != 'called' or self._tape is None:
            raise RuntimeError(
                'in training, loss.backward() needs to be called exactly once '
                f'for each batch{_ACCUMULATE}'
            )
        count = self._count
        # An interrupt from here on ends the step: nothing is added twice, and
        # after a refusal, which tells of the data, no other loss is tried.
        self._stage = 'interrupted'
        back = grad
        if self._rehearsal is not None:
            grad = self._perform(self._rehearsal, grad)
        if count == 0:
            self._add([torch.zeros_like(p).long() for p in self.parameters])
            return
        self.fall_back(self._rehearsal is None)
        scale = 1
        if self.loss_reduction == 'mean':
            shown = self._rehearsal
            scale = count if shown is None else shown.size
        if self.isolation == 'construction':
            self._construct(back, scale)
            return
        self._together = True
        out = self._out
        assert out is not None
        owner = self._rows(out)
        norm, tape = self.max_grad_norm, self._tape
        assert isinstance(tape, Tape)
        unit = self._draw.of(self._units, count, self._total)
        clipped = tape.clipped_sum(
            out, grad * scale, norm, owner, self.clipping, unit
        )
        if unit is not None:
            self._compare(tape, unit, clipped.share, back, grad, scale)
        # An adaptive norm releases this count with noise; nothing else reads
        # it.
        below = int((clipped.norms <= norm).sum()) if self.counts else 0
        self._add(
            [clipped.integers[name] for name in self._names], count, below
        )

    def fall_back(self, trusted: bool) -> None:
        """Run units alone from now on if that alone makes sums exact.

        Args:
            trusted (bool): whether the loss is left unchecked, so that a unit
                has no loss of its own.

        Raises:
            ValueError: if sums are inexact either way.
        """
        exactness = self.exactness
        found = exactness.reasons() if exactness.insists else ()
        if found and not exactness.alone and not trusted:
            exactness.alone = True
            if not exactness.reasons():
                self.isolation = 'construction'
                warnings.warn(
                    f'every unit is run alone, as {"; ".join(found)}: this is '
                    'exact, and takes tens of times as long',
                    stacklevel=5,
                )
                return
            exactness.alone = False
        exactness.check()

    def _compare(
        self,
        tape: Tape,
        unit: int,
        share: Share | None,
        back: Tensor,
        grad: Tensor,
        scale: int,
    ) -> None:
        # Compare what a unit has added with what it adds alone.
        call, rehearsal, masks = tape._call, self._rehearsal, tape._masks
        assert call is not None
        if share is None or masks is None:
            # The unit has no rows, or its random numbers can't be drawn again.
            return
        if rehearsal is not None:
            by = rehearsal.pull(back, unit, scale)
        else:
            rows = self._rows(grad) == unit

            def by(out: Tensor) -> Tensor:
                return grad[rows] * scale

        try:
            passes = self._check.passes(
                Alone(call),
                unit,
                masks,
                by,
                share,
                self.max_grad_norm,
                self.clipping == 'automatic',
                # A rehearsal has compared them.
                self._settings if rehearsal else settings(self.module),
            )
        except Exception:
            # Some models, as LSTMs without edges, can't run on one unit. Fail
            # silently: the draw is secret.
            return
        if not passes:
            self.disagrees = True
            raise RuntimeError(DISAGREES)

    def _construct(self, back: Tensor, scale: int) -> None:
        # Clip each unit by itself, by the kernel's own functions.
        rehearsal, units = self._rehearsal, self._units_alone()
        assert rehearsal is not None
        norm, automatic = self.max_grad_norm, self.clipping == 'automatic'
        totals = [
            np.zeros(tuple(p.shape), dtype=np.int64) for p in self.parameters
        ]
        below = 0
        for number in range(self._count):
            found = units.gradients(
                number, rehearsal.pull(back, number, scale)
            )
            step.add(totals, step.adds(found, norm, automatic))
            below += step.length(found) <= norm
        device = self._owner.device
        self._add(
            [torch.from_numpy(total).to(device) for total in totals],
            self._count,
            below if self.counts else 0,
        )

    def _units_alone(self) -> Alone:
        # Their random numbers are those of the call, and of themselves.
        assert self._call is not None
        assert self._plain is not None
        device = self._owner.device
        now = random_state(device)
        set_random_state(self._states, device)
        key = int(torch.randint(2**62, ()))
        set_random_state(now, device)
        args, kwargs = self._call.arguments(self._plain)
        call = Call(self.module, args, kwargs, self._owner, self._count)
        return Alone(call, key)

    def _perform(self, rehearsal: Rehearsal, grad: Tensor) -> Tensor:
        # The gradient by the outputs on the batch.
        assert self._call is not None
        rehearsal.restore()
        now_set = settings(self.module)
        for name in {**self._settings, **now_set}:
            if self._settings.get(name) != now_set.get(name):
                raise ValueError(
                    "'module' needs to stay as it is from its call to "
                    f"loss.backward(), which runs it (got another '{name}')"
                )
        if self._count:
            grad = rehearsal.gradient(grad, self._outputs(self._call))
        numbers = rehearsal.numbers()
        if self._numbers is not None:
            self.numbers_changed += numbers != self._numbers
        self._numbers = numbers
        self.ignored |= rehearsal.watch.ignored
        self.exactness.loss |= rehearsal.watch.names
        rehearsal.reveal()
        if isinstance(self.module, TypedModel):
            reveal(
                self.module.schema,
                self._handed,
                rehearsal.batch,
                rehearsal.watch,
            )
        return grad

    def _outputs(self, call: BatchCall) -> Tensor:
        # Run the model on the batch.
        if self.isolation == 'construction':
            before, units = buffer_versions(self.module), self._units_alone()
            parts = [units.outputs(i) for i in range(self._count)]
            out = parts[0].new_empty(0)
            nodes = self._owner.bincount(minlength=self._count).tolist()
            sizes = [len(part) if part.dim() else 0 for part in parts]
            if len({part.shape[1:] for part in parts}) == 1:
                out = torch.cat(parts)
            if sizes == nodes and not self.by_unit:
                # Move the rows of a unit from their adjacent places to their
                # own.
                order = self._owner.argsort(stable=True)
                out = torch.empty_like(out).index_copy_(0, order, out)
            elif sizes != self._terms.bincount(minlength=self._count).tolist():
                out = out.new_empty(len(self._terms) + 1)
            self._check_output(out)
            self._check_buffers(before)
            return out
        device = self._owner.device
        now = random_state(device)
        set_random_state(self._states, device)
        # Layers may not keep private rows: copies of the model would hold
        # them, and the loss of another step could read them.
        with torch.enable_grad(), forgetting(self.module):
            out = self._run(call)
        set_random_state(now, device)
        return out

    def _add(self, sums: list[Tensor], count: int = 0, below: int = 0) -> None:
        if self._sums is not None:
            sums = [a + b for a, b in zip(self._sums, sums, strict=True)]
        self._sums = sums
        self._units += count
        self._below += below
        self._stage = 'clipped'
        self._tape = self._out = None
        self._rehearsal = self._call = None

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
        if self._units < self._total:
            self._stage = 'done'
            return False
        assert self._sums is not None
        sums, units, below = self._sums, self._units, self._below
        self._sums, self._units, self._below = None, 0, 0
        self._stage = 'done'
        noisy = self.add_noise(sums, units, below)
        # A count of steps is released: it must not tell which had units.
        alone = self.isolation == 'construction' and not self._together
        self.constructed += alone
        self.checked += self.checkable and not alone
        self._together = False
        for i, (parameter, grad) in enumerate(
            zip(self.parameters, noisy, strict=True)
        ):
            parameter.grad = grad.to(parameter)
            self._written[i] = (parameter.grad, parameter.grad._version)
        return True

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


class _Intercept(torch.autograd.Function):
    # Hands out the output; what comes back goes to the tape, not to p.grad.
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, anchor: Tensor, step: PrivateStep, call: Any
    ) -> Tensor:
        ctx.step, ctx.call = step, call
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        if ctx.call is not (ctx.step._rehearsal or ctx.step._tape):
            raise RuntimeError(
                'in training, loss.backward() needs to be called exactly once '
                f'for each batch, before the next one{_ACCUMULATE}'
            )
        ctx.step.backward(grads[0].detach())
        return None, None, None, None


class PrivateModule(nn.Module):
    """Model whose gradients are released with noise only.

    In evaluation mode, or without gradients, it is the model. Attributes are
    those of the model; so are the names in ``state_dict``, also where it is a
    part of another module.

    A copy (``copy.deepcopy``, ``AveragedModel``) and what is pickled or saved
    whole is the plain model with the weights of this moment: that, averages of
    them, and whatever is computed of them alone cost no more privacy. Weights
    that are loaded here are noted in the report.

    Args:
        module (torch.nn.Module): the model.
        step (PrivateStep): the step in progress.
    """

    def __init__(self, module: nn.Module, step: PrivateStep) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        object.__setattr__(self, '_step', step)
        self.register_load_state_dict_pre_hook(_rename)
        self.register_load_state_dict_post_hook(_note)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(self.module, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self.module,)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        if torch.compiler.is_compiling():
            _refuse_compiled()
        if self.training and torch.is_grad_enabled():
            out = self._step.forward(args, kwargs)
            typed = self._step.module
            return typed.handed(out) if isinstance(typed, TypedModel) else out
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == 'module':
                raise
            return getattr(self.module, name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the wrapped model."""
        return self.module.state_dict(*args, **kwargs)


@torch.compiler.disable
def _refuse_compiled() -> NoReturn:
    # Not traced, so that the error reaches whoever calls compiled code.
    raise TypeError(
        "a private model can't be compiled, as its step is recorded and not "
        'traced: call the model that make_private returned, without '
        'torch.compile; compile a copy for evaluation '
        '(torch.compile(copy.deepcopy(model)))'
    )


def _itself(module: nn.Module) -> nn.Module:
    return module


def _rename(
    module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any
) -> None:
    # Names are those of the model: put in that it is inside of another.
    for name in [name for name in state if name.startswith(prefix)]:
        state[f'{prefix}module.{name[len(prefix) :]}'] = state.pop(name)


def _note(module: nn.Module, keys: Any) -> None:
    assert isinstance(module, PrivateModule)
    # Remove the prefix 'module.' from reported keys, too.
    for names in keys:
        names[:] = [n.replace('module.', '', 1) for n in names]
    module._step.pins.load()


class Single:
    """Base of objects that refuse copies, which would spend a budget twice."""

    #: What to do instead.
    advice = ''

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._refuse('copied')

    def __copy__(self) -> Any:
        self._refuse('copied')

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._refuse('pickled')

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can't be {what}, as two would spend one "
            f'budget{self.advice}'
        )


class PrivateOptimizer(Single, torch.optim.Optimizer):
    """Optimizer that steps with noisy gradients, once per whole batch.

    Everything else is that of the optimizer inside: schedulers, its state and
    its parameter groups work as before. It can't be copied or pickled, since
    two would spend one budget: its ``state_dict`` can.

    Args:
        optimizer (torch.optim.Optimizer): the optimizer inside.
        step (PrivateStep): the step in progress.
    """

    # GradScaler skips steps on what the data are: let it find us.
    _step_supports_amp_scaling = True
    advice = ': take its state_dict()'

    def __init__(
        self, optimizer: torch.optim.Optimizer, step: PrivateStep
    ) -> None:
        # torch attaches hooks to optimizers; all other state is that of the
        # inner optimizer.
        self._made = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer
        self._step = step
        self._made = True
        self._settings = self._find_settings()
        self._moved = self._find_moved()
        self._hold()

    def step(self, closure: Any = None) -> Any:
        """Add noise and move the parameters.

        After a part of a batch (``max_physical_batch_size``) it only ends
        this part.

        Args:
            closure (callable, optional): is called once, before, for the
                forward and the backward pass of the batch.
                (default: :obj:`None`)

        Returns:
            Any: what the closure returned.

        Raises:
            BudgetExceededError: if the step would exceed the budget; nothing
                was spent then.
            RuntimeError: unless it follows one forward and one backward pass.
        """
        loss = None
        if closure is not None:
            check_callable('closure', closure)
            with torch.enable_grad():
                loss = closure()
        self._private_step()
        return loss

    @editing
    def _private_step(self) -> None:
        self._check_hooks()
        self._check_groups()
        self._check_state()
        if self._step.finish():
            # Allow changed settings, which a schedule makes without the data,
            # and count them.
            settings = self._find_settings()
            self._step.settings_changed += settings != self._settings
            self._settings = settings
            self._moving = True
            self._step.move(self.optimizer.step)
            self._hold()

    @property
    def _lock(self) -> ObjectLock:
        # One lock for all parts of a step.
        return self._step._lock

    def _hold(self) -> None:
        """Take the state as it is."""
        self._held = self._tensors()
        self._moving = False

    def _check_groups(self) -> None:
        if self._find_moved() != self._moved:
            raise ValueError(
                "'optimizer' needs to keep its parameters: parameters were "
                'added to its groups after make_private, and their gradients '
                'have no noise'
            )

    def _find_moved(self) -> list[int]:
        groups = self.optimizer.param_groups
        return [id(p) for group in groups for p in group['params']]

    def _find_settings(self) -> list[str]:
        return [
            repr(sorted((k, v) for k, v in group.items() if k != 'params'))
            for group in self.optimizer.param_groups
        ]

    def _tensors(self) -> list[tuple[Any, str, Tensor]]:
        return [
            (parameter, name, value.detach().clone())
            for parameter, values in self.optimizer.state.items()
            for name, value in values.items()
            if isinstance(value, Tensor)
        ]

    def _check_state(self) -> None:
        if self._moving:
            # A step was interrupted after its noise: the state is its own.
            self._hold()
        now = self._tensors()
        if len(now) != len(self._held) or not all(
            one[0] is other[0]
            and one[1] == other[1]
            and same(one[2], other[2].to(one[2].device))
            for one, other in zip(now, self._held, strict=True)
        ):
            raise RuntimeError(
                'the state of the optimizer was changed since the last '
                'private step: it may hold private data without noise, and '
                'moves the weights. Load a state that was released with '
                'load_state_dict'
            )

    def _check_hooks(self) -> None:
        inner = self.optimizer
        if inner._optimizer_step_pre_hooks or inner._optimizer_step_post_hooks:
            raise ValueError(
                "'optimizer' needs to be without hooks, which could exchange "
                'noisy gradients: register them with the private optimizer'
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients by setting them to None."""
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the wrapped optimizer."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        if self._made:
            self.optimizer.param_groups = value

    @property
    def state(self) -> Any:
        """State of the wrapped optimizer."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        if self._made:
            self.optimizer.state = value

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the wrapped optimizer."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        if self._made:
            self.optimizer.defaults = value

    def state_dict(self) -> Any:
        """Return the state of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)
        self._hold()
        self._step.states_loaded += 1

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse new parameters: all are checked at the start."""
        if not self._made:
            return
        raise ValueError(
            'a private optimizer takes no more parameters: add them before '
            'make_private'
        )

    @property
    def grad_scale(self) -> None:
        """Refuse the attribute that GradScaler sets."""
        raise AttributeError('grad_scale')

    @grad_scale.setter
    def grad_scale(self, value: Any) -> None:
        raise TypeError(
            'a private optimizer needs to be used without GradScaler: it '
            'skips steps depending on the data, and scales what is clipped'
        )

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.optimizer})'
