"""What a training starts from: a model that is passed, or a factory."""

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ['is_factory', 'same_start', 'start_of', 'takes_data', 'tensors_of']

# Any bits will do: the seed beside the one that is set.
_OTHER = 0x5DEECE66D


def start_of(name: str, given: Any, start_is_public: bool) -> Any:
    """Return what a training starts from, with the user's statement if needed.

    A factory is called under two seeds of torch. If its models have tensors
    in common, it hands in what it loads; else the one of torch's own seed is
    taken, in evaluation mode.

    Args:
        name (str): the name of the argument.
        given (callable, optional): a model, a function of rows, or a factory:
            a callable without an argument.
        start_is_public (bool): whether the user states that it is public.

    Raises:
        TypeError: if it can't be called.
        ValueError: if a model is passed without the statement.
    """
    if given is None:
        return None
    if not callable(given):
        raise TypeError(
            f"'{name}' needs to be callable (got a {type(given).__name__})"
        )
    if not is_factory(given):
        if start_is_public:
            return given
        raise ValueError(
            f"'{name}' needs start_is_public=True, your statement that it was "
            'not trained on these data: a trained model remembers the rows of '
            'people who ask for removal, or are protected. To draw its '
            f'weights anew, give a factory: {name}=lambda: '
            f'{type(given).__name__}(...)'
        )
    seed = torch.initial_seed()
    made, other = _made(given, seed), _made(given, seed ^ _OTHER)
    same = same_start(tensors_of(made), tensors_of(other))
    if same is not None and not start_is_public:
        raise ValueError(
            f"'{name}' makes models whose {same!r} is the same under two "
            'seeds of torch, and neither 0 nor 1: what was trained on these '
            'data, or computed from them, remembers them. Draw it anew, or '
            'state that it is public, by start_is_public=True'
        )
    return made.eval() if isinstance(made, nn.Module) else made


def is_factory(given: Any) -> bool:
    """Return whether something can be called without arguments alone."""
    if isinstance(given, nn.Module) or not callable(given):
        return False
    try:
        parameters = inspect.signature(given).parameters.values()
    except ValueError:  # Of a built-in function nothing is known.
        return False
    return all(
        p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in parameters
    )


def same_start(one: dict[str, Tensor], two: dict[str, Tensor]) -> str | None:
    """Return the name of a tensor that was not drawn with the seed."""
    for name, value in one.items():
        other = two.get(name)
        if other is not None and other.shape == value.shape:
            same = (value == other) & (value != 0) & (value != 1)
            if int(same.sum()) > value.numel() / 100:
                return name
    return None


def tensors_of(module: Any) -> dict[str, Tensor]:
    """Return all tensors of a model, or of an object with models in it.

    Those that are plain attributes are among them.
    """
    if not isinstance(module, nn.Module):
        held = getattr(module, '__dict__', {})
        parts = nn.ModuleDict()
        for name, value in held.items():
            if isinstance(value, nn.Module):
                parts[name] = value
        loose = {k: v for k, v in held.items() if isinstance(v, Tensor)}
        return {**loose, **(tensors_of(parts) if len(parts) else {})}
    found = {**dict(module.named_buffers()), **module.state_dict()}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                found[f'{path}.{name}'.lstrip('.')] = value
    return {
        name: value.detach()
        for name, value in found.items()
        if isinstance(value, Tensor)
        and value.layout == torch.strided
        and not nn.parameter.is_lazy(value)
    }


def _made(factory: Callable[[], Any], seed: int) -> Any:
    numbers = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        try:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            return factory()
        finally:
            np.random.set_state(numbers[0])
            random.setstate(numbers[1])


def takes_data(model: Any) -> bool:
    """Whether a model is called with the data: forward(self, data)."""
    if not isinstance(model, nn.Module):
        return False
    taken = inspect.signature(model.forward).parameters.values()
    named = [p for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD]
    return len(named) == len(taken) == 1
