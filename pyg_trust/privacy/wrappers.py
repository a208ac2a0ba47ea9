"""A model, an optimizer and a loader that can only train privately.

They share a :class:`~pyg_trust.privacy.training.PrivateStep`.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from pyg_trust._checks import check_callable
from pyg_trust._checks.graphs import warn_user
from pyg_trust._checks.identity import fingerprint_any
from pyg_trust.files.commit import ObjectLock, editing
from pyg_trust.privacy.calls import Target
from pyg_trust.privacy.from_opacus import refuse_attribute
from pyg_trust.privacy.training import ACCUMULATE, Intercept, PrivateStep

__all__ = [
    'PrivateLoader',
    'PrivateModule',
    'PrivateOptimizer',
    'PrivateTraining',
    'Single',
]


class PrivateModule(nn.Module):
    """Model whose gradients are released with noise only.

    In evaluation mode, or without gradients, it is the model, with its
    attributes and the names of its ``state_dict``. A copy (``copy.deepcopy``,
    ``AveragedModel``) or a pickle is the plain model with the present weights,
    which costs no more privacy. Weights that are loaded here are noted in the
    report.

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
        if not (self.training and torch.is_grad_enabled()):
            return self.module(*args, **kwargs)
        step: PrivateStep = self._step
        out = step.forward(args, kwargs)
        anchor = torch.zeros((), device=out.device, requires_grad=True)
        out = Intercept.apply(out, anchor, step)
        if step.schema is not None and step.by_type:
            return Target({step.schema.target: out})
        return out

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == 'module':
                raise
            if not hasattr(self.module, name):
                refuse_attribute(self.module, name)
            return getattr(self.module, name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the wrapped model."""
        return self.module.state_dict(*args, **kwargs)


@torch.compiler.disable
def _refuse_compiled() -> NoReturn:
    # Not traced, so that the error reaches whoever calls compiled code.
    raise TypeError(
        "a private model can't be compiled, as its step is recorded and not "
        'traced: call it without torch.compile; compile a copy for '
        'evaluation (torch.compile(copy.deepcopy(model)))'
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
    module._step.load()


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

    Schedulers, state and parameter groups are those of the optimizer inside.

    Args:
        optimizer (torch.optim.Optimizer): the optimizer inside.
        step (PrivateStep): the step in progress.
        noise_multiplier (float): the noise multiplier, to be read.
    """

    # GradScaler skips steps on what the data are: let it find us.
    _step_supports_amp_scaling = True
    advice = ': take its state_dict()'

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        step: PrivateStep,
        noise_multiplier: float,
    ) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self._step = optimizer, step
        self._noise_multiplier = noise_multiplier
        self._share()

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier, as in Opacus; it does not change."""
        return self._noise_multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        raise AttributeError(
            'the noise multiplier was accounted for at make_private and '
            "can't be changed: leave out noise schedulers"
        )

    def signal_skip_step(self, do_skip: bool = True) -> NoReturn:
        """Refuse Opacus' BatchMemoryManager, which calls this."""
        raise TypeError(
            'a private optimizer needs no BatchMemoryManager: give '
            'max_physical_batch_size= to make_private, and iterate over the '
            'loader itself'
        )

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm of the present step."""
        return self._step.max_grad_norm

    def _share(self) -> None:
        # The same groups and state as the optimizer inside.
        own = self.optimizer
        self.param_groups, self.state = own.param_groups, own.state
        self.defaults = own.defaults

    def step(self, closure: Any = None) -> Any:
        """Add noise and move the parameters.

        After a part of a batch (``max_physical_batch_size``) it only ends
        this part.

        Args:
            closure (callable, optional): is called once, before, for the
                forward and the backward pass of the batch.

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
        if not self._step.finish(self.param_groups):
            return
        # Dropped before the step: if it stops halfway, weights have moved,
        # by noisy gradients alone, and nobody else has changed them.
        self._step.release()
        self.optimizer.step()
        self._step.hold()

    @property
    def _lock(self) -> ObjectLock:
        # One lock for all parts of a step.
        return self._step._lock

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients by setting them to None."""
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> Any:
        """Return the state of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse new parameters: all are checked at the start."""
        if not hasattr(self, '_step'):
            super().add_param_group(param_group)
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

    def __getattr__(self, name: str) -> Any:
        refuse_attribute(self, name)

    def __repr__(self) -> str:
        return f'{type(self).__name__}({type(self.optimizer).__name__})'


class PrivateLoader(Single):
    """Loader of private batches that checks how each one is used.

    It ends by itself, also in the midst of an epoch, before a step that would
    exceed the budget; then it is empty. If an epoch is left early, the next
    one begins with the batch whose step was not taken.

    Args:
        loader (StepLoader): the loader, not to be iterated over any more.
        step (PrivateStep): the step in progress.
        engine (PrivacyEngine): draws the batches, and has the account.
    """

    def __init__(self, loader: Any, step: PrivateStep, engine: Any) -> None:
        self.loader, self._step, self._engine = loader, step, engine
        self._allowed, self._turn = engine._allowed, 0
        batches, group = loader.batch_sampler, engine._group
        batches.choose = engine._choose
        batches.rank, batches.num_ranks = group.rank, group.size

    def __iter__(self) -> Iterator[Data]:
        self.end_epoch()
        turn = self._turn
        batches = self.loader.batch_sampler
        batches.position = first = self._engine.steps
        self._step.reset()
        iterator: Iterator[Data] | None = None
        for step in range(first, first + batches.num_steps):
            if step != self._engine.steps:
                raise RuntimeError(
                    'the account was changed within an epoch (was a '
                    'checkpoint loaded?): iterate over the loader anew'
                )
            if not self._allowed(step):
                return
            batches.forget(step)
            if iterator is None:
                self._begin()
                iterator = iter(self.loader)
            parts = batches.parts(step)
            total = sum(part.numel() for part in parts)
            for part in parts:
                batch = self.loader.flat(next(iterator))
                owner, count = batch.batch, part.numel()
                device = self._step.parameters[0].device
                batch, owner = batch.to(device), owner.to(device)
                yield self._step.deliver(batch, owner, count, total)
                if self._turn != turn:
                    raise RuntimeError(
                        'the private loader was started again: use one '
                        'iterator at a time'
                    )
                if not self._step.finished:
                    raise RuntimeError(
                        'every batch of the private loader needs one forward '
                        'pass, one backward pass and one optimizer.step(); '
                        'skipping batches depending on the data is not '
                        'accounted for. To evaluate, call the model on the '
                        f'data that the loader was made of{ACCUMULATE}'
                    )

    def _begin(self) -> None:
        # Begin an epoch with one state in all processes: the first one's.
        group = self._engine._group
        if group.size == 1:
            return
        model, optimizer, _ = self._engine._attached()
        group.agree({'the number of steps': str(self._engine.steps)})
        if group.differs(
            fingerprint_any(model.state_dict()),
            fingerprint_any(optimizer.state_dict()),
        ):
            warn_user(
                'weights or settings of the optimizer differ between the '
                'processes, and those of the first process are taken: load '
                'checkpoints, and change learning rates, in all processes'
            )
            group.share(model, optimizer)

    def end_epoch(self) -> None:
        """End the current epoch: the next batch begins a new one."""
        self._turn += 1

    def __len__(self) -> int:
        return len(self.loader.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        if name == 'loader':
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.loader})'


class PrivateTraining(NamedTuple):
    """The result of :meth:`PrivacyEngine.make_private`.

    Args:
        model (PrivateModule): the wrapped model, called as before.
        optimizer (PrivateOptimizer): the wrapped optimizer; it adds the noise.
        loader (PrivateLoader): the wrapped loader, iterated as before.
    """

    model: PrivateModule
    optimizer: PrivateOptimizer
    loader: PrivateLoader

    def __repr__(self) -> str:
        parts = self.model.module, self.optimizer.optimizer, self.loader.loader
        names = ', '.join(type(part).__name__ for part in parts)
        return f'{type(self).__name__}({names})'

    def loss(self, batch: Any) -> Tensor:
        """Compute the loss of a batch, by the ``criterion`` of make_private.

        Each subgraph's term is computed by itself, from its rows alone.

        .. code-block:: python

            training = engine.make_private(..., criterion=F.cross_entropy)
            for batch in training.loader:
                training.optimizer.zero_grad()
                training.loss(batch).backward()
                training.optimizer.step()

        Args:
            batch (Data or HeteroData): the batch that the loader yielded last.

        Returns:
            Tensor: the mean or the sum of the terms, to call ``backward()``.

        Raises:
            ValueError: if ``make_private`` got no ``criterion``.
        """
        return self.model._step.loss(self.model, batch)
