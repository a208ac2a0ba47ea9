r"""A model and an optimizer that can only train privately.

With their loader (``privacy/loading.py``) they share a
:class:`~pyg_trust.privacy.training.PrivateStep`.

Why no optimizer of Opacus: theirs trusts whoever fills ``p.grad``, draws the
noise in float32, and tells the accountant after the noise was made. Here the
step is on the account (and on the disk) before there is anything to see, a
gradient from elsewhere is refused, and only the accountants are of Opacus'
kind.
"""

import copy
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from pyg_trust._checks import check_callable
from pyg_trust.files.commit import ObjectLock, editing
from pyg_trust.privacy.training import Intercept, PrivateStep
from pyg_trust.privacy.typed import TypedModel
from pyg_trust.privacy.validation import same


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
            anchor = torch.zeros((), device=out.device, requires_grad=True)
            out = Intercept.apply(out, anchor, self._step)
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
