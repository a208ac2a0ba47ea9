"""Detection of changes to a model between private steps."""

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Attributes that torch itself keeps in each module.
_OWN_OF_MODULES = frozenset(vars(nn.Module()))


class Pins:
    """Detector of changes to a model between two private steps.

    A second optimizer on a shared layer moves weights by gradients without
    noise, and a layer put in later was not looked at. The values of all
    parameters are kept and compared, since versions do not tell of changes
    through ``.data``; that takes the memory of a second set of weights.

    Args:
        module (torch.nn.Module): the model.
        parameters (list[Parameter]): the trained parameters.
    """

    def __init__(
        self, module: nn.Module, parameters: list[nn.Parameter]
    ) -> None:
        self.module = module
        self._trained = {id(p) for p in parameters}
        self._layers = self._find_layers()
        self._values: dict[str, Tensor] | None = None
        self.loaded = 0

    def hold(self) -> None:
        """Save the present weights, to compare with later."""
        self._values = {
            name: p.detach().clone()
            for name, p in self.module.named_parameters()
        }

    def release(self) -> None:
        """Drop the saved weights, as a private step is about to move them."""
        self._values = None

    def load(self) -> None:
        """Save weights that the user has loaded; the report counts this."""
        self.loaded += 1
        self.hold()

    def hold_layers(self) -> None:
        """Save the present layers, to compare with later."""
        self._layers = self._find_layers()

    def check_layers(self) -> None:
        """Refuse if layers or trainable parameters were added or removed."""
        if self._find_layers() != self._layers:
            raise ValueError(
                "'module' needs to keep its layers: one was added, removed or "
                'replaced after make_private, or got a hook or another '
                'forward, which was not checked'
            )
        trained = [p for p in self.module.parameters() if p.requires_grad]
        if {id(p) for p in trained} != self._trained:
            raise ValueError(
                "'module' needs to train the same parameters all the time: "
                'freeze or add them before make_private'
            )

    def check_values(self) -> None:
        """Refuse weights that something else has moved."""
        name = self.moved()
        if name is not None:
            raise RuntimeError(
                f"'{name}' was changed since the last private step, by a "
                'second optimizer or by hand: weights that bypassed the '
                'private optimizer may hold private data without noise. Load '
                'weights that were released, or are public, with '
                'load_state_dict of the private model'
            )

    def moved(self) -> str | None:
        """Return the name of a parameter that has changed, if there is one."""
        if self._values is None:
            return None
        names, flags = [], []
        for name, p in self.module.named_parameters():
            kept = self._values.get(name)
            if kept is None or kept.shape != p.shape or kept.dtype != p.dtype:
                return name
            now = p.detach()
            kept = kept.to(now.device)
            if now.is_cpu and torch.equal(now, kept):
                continue
            moved = (now != kept) & ~(now.isnan() & kept.isnan())
            names.append(name)
            flags.append(moved.any())
        # Copy all flags from the device at once.
        found = torch.stack(flags).tolist() if flags else []
        return next((n for n, f in zip(names, found, strict=True) if f), None)

    def intact(self) -> bool:
        """Return whether the weights are those of the last private step."""
        kept = self._values is not None and not self.loaded
        return kept and self.moved() is None

    def notes(self) -> list[str]:
        """Return the report's notes on weights that were changed or loaded."""
        notes = []
        name = self.moved()
        if name is not None:
            notes.append(
                f"NOT COVERED: the weights as they are now: '{name}' was "
                'changed by something else since the last private step'
            )
        if self.loaded:
            notes.append(
                f'weights were loaded from elsewhere {self.loaded} times; '
                'they were released by this training before, or are public'
            )
        return notes

    def _find_layers(self) -> list[tuple[Any, ...]]:
        return [
            (name, id(m), type(m), vars(m).get('forward'), *_hooks(m))
            for name, m in self.module.named_modules()
        ]


def _hooks(layer: nn.Module) -> list[Any]:
    # Hooks: functions called with a layer's inputs or outputs.
    tables = (
        layer._forward_pre_hooks,
        layer._forward_hooks,
        layer._backward_pre_hooks,
        layer._backward_hooks,
        nn.modules.module._global_forward_pre_hooks,
        nn.modules.module._global_forward_hooks,
        nn.modules.module._global_backward_pre_hooks,
        nn.modules.module._global_backward_hooks,
    )
    return [tuple(table.values()) for table in tables]


def remembered(module: nn.Module) -> Callable[[], None]:
    """Return what puts the attributes of all layers back as they are now.

    So nothing that layers keep of private rows outlives the step. A tensor
    that is written to in place is not restored.
    """
    saved = []
    for place in map(vars, module.modules()):
        held = {k: v for k, v in place.items() if k not in _OWN_OF_MODULES}
        full = [
            (v, copy.copy(v))
            for v in held.values()
            if isinstance(v, list | dict | set | deque)
        ]
        saved.append((place, held, full))

    def restore() -> None:
        for place, held, full in saved:
            # Numbers stay: a model may count its calls.
            now = {
                k
                for k, v in place.items()
                if not isinstance(v, bool | int | float | str | None)
            }
            for key in now - {*held} - _OWN_OF_MODULES:
                del place[key]
            place.update({k: v for k, v in held.items() if k in now})
            for value, inside in full:
                value.clear()
                if isinstance(value, dict | set):
                    value.update(inside)
                else:
                    value.extend(inside)

    return restore
