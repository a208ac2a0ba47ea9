"""The random numbers of a forward pass: left out, kept, and used again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_trust.privacy.calls import Unsupported
from pyg_trust.privacy.rows import Conflict, Rows, RowTracker

_DROPOUT = (F.dropout, torch.dropout)
_DROPOUTS = frozenset(
    [
        *_DROPOUT,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout_,
        torch.alpha_dropout,
        torch.feature_dropout,
        torch.feature_alpha_dropout,
    ]
)


@dataclass
class Mask:
    """What a dropout multiplied its input with, and whose the rows are."""

    value: Tensor
    rows: Rows
    axis: int


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that a module on a device draws from."""
    states = [torch.get_rng_state()]
    if device.type == 'cuda':
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Sets what :func:`random_state` told."""
    torch.set_rng_state(states[0])
    if device.type == 'cuda':
        torch.cuda.set_rng_state(states[1], device)


class KeepDraws(TorchFunctionMode):
    """Keeps the masks of dropout, and notes if anything else is drawn.

    Args:
        tracker (RowTracker): knows whose the rows are.
        device (torch.device): of the module.
    """

    def __init__(self, tracker: RowTracker, device: torch.device) -> None:
        super().__init__()
        self.tracker = tracker
        self.device = device
        self.masks: list[Mask] = []
        self.complete = True
        self._states = random_state(device)

    def look(self) -> None:
        """Notes whether anything was drawn since the last mask."""
        now = random_state(self.device)
        same = zip(now, self._states, strict=True)
        self.complete &= all(torch.equal(a, b) for a, b in same)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            x, p, inplace = _dropout(*args, **kwargs)
            found = self.tracker.get(x)
            if p > 0 and found is not None:
                self.look()
                value = F.dropout(torch.ones_like(x), p)
                self._states = random_state(self.device)
                self.masks.append(Mask(value, *found))
                out = x.mul_(value) if inplace else x * value
                self.tracker.set(out, *found)
                return out
        out = func(*args, **kwargs)
        name = getattr(func, '__name__', '')
        if name != '__get__':
            try:
                self.tracker.follow(name, args, kwargs, out)
            except Conflict:
                self.complete = False
        return out


class UseDraws(TorchFunctionMode):
    """Uses the masks again, for some of the subgraphs.

    Args:
        masks (list[Mask]): of all subgraphs.
        chosen (Tensor): bool, ``[num_subgraphs]``: which are here.
    """

    def __init__(self, masks: list[Mask], chosen: Tensor) -> None:
        super().__init__()
        self.masks = iter(masks)
        self.chosen = chosen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            x, p, inplace = _dropout(*args, **kwargs)
            if p > 0:
                value = self._next()
                if value.shape != x.shape:
                    raise Unsupported('dropout has rows of another number')
                return x.mul_(value) if inplace else x * value
        return func(*args, **kwargs)

    def _next(self) -> Tensor:
        mask = next(self.masks, None)
        owner = None if mask is None else mask.rows.owner
        if mask is None or owner is None:
            raise Unsupported('it is not known whose rows are dropped')
        here = self.chosen[owner].nonzero().view(-1)
        return mask.value.index_select(mask.axis, here)


class NoDropout(TorchFunctionMode):
    """Leaves dropout out."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _DROPOUTS:
            return args[0] if args else (kwargs or {})['input']
        return func(*args, **(kwargs or {}))


def _dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, float, bool]:
    training = kwargs.get('train', training)
    return input, p if training else 0.0, inplace
