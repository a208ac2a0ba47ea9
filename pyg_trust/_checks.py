"""Checks of arguments with one wording: the value, and the need.

Each raises before anything is done, ``TypeError`` for what is no such thing
and ``ValueError`` for one that does not fit.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

REAL = (torch.float32, torch.float64)


def check_number(name: str, value: float) -> float:
    """Refuse anything but a number; return it as a float.

    Raises:
        TypeError: if it is no number.
    """
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.number
    ):
        raise TypeError(
            f"'{name}' needs to be a number (got {type(value).__name__})"
        )
    return float(value)


def check_finite(name: str, value: float) -> float:
    """Refuse anything but a finite number; return it as a float."""
    if not math.isfinite(check_number(name, value)):
        raise ValueError(f"'{name}' needs to be finite (got {value})")
    return float(value)


def check_positive(name: str, value: float) -> float:
    """Refuse anything but a positive finite number; return it as a float."""
    if not 0 < check_number(name, value) < math.inf:
        raise ValueError(
            f"'{name}' needs to be positive and finite (got {value})"
        )
    return float(value)


def check_non_negative(name: str, value: float) -> float:
    """Refuse anything but a finite number of at least 0; return a float."""
    if not 0 <= check_number(name, value) < math.inf:
        raise ValueError(
            f"'{name}' needs to be non-negative and finite (got {value})"
        )
    return float(value)


def check_share(name: str, value: float) -> float:
    """Refuse anything but a number from 0 to 1; return it as a float."""
    if not 0 <= check_number(name, value) <= 1:
        raise ValueError(f"'{name}' needs to be in [0, 1] (got {value})")
    return float(value)


def check_fraction(name: str, value: float) -> float:
    """Refuse anything but a number between 0 and 1; return a float."""
    if not 0 < check_number(name, value) < 1:
        raise ValueError(f"'{name}' needs to be in (0, 1) (got {value})")
    return float(value)


def check_rate(name: str, value: float) -> float:
    """Refuse anything but a number above 0, at most 1; return a float."""
    if not 0 < check_number(name, value) <= 1:
        raise ValueError(f"'{name}' needs to be in (0, 1] (got {value})")
    return float(value)


def check_integer(
    name: str,
    value: int,
    low: int | None = None,
    high: int | None = None,
    *,
    numpy: bool = False,
) -> int:
    """Refuse anything but an integer within bounds; return it.

    Those of numpy are only for who goes on with what is returned: JSON and
    the kernels take none.
    """
    kind = int | np.integer if numpy else int
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(
            f"'{name}' needs to be an integer (got {type(value).__name__})"
        )
    if low is not None and value < low:
        raise ValueError(f"'{name}' needs to be at least {low} (got {value})")
    if high is not None and value > high:
        raise ValueError(f"'{name}' needs to be at most {high} (got {value})")
    return int(value)


def check_choice(name: str, value: str, options: Iterable[str]) -> None:
    """Refuse anything but one of some names."""
    options = tuple(options)
    if not isinstance(value, str) or value not in options:
        raise ValueError(
            f"'{name}' needs to be one of {options} (got {value!r})"
        )


def check_instance(name: str, value: Any, *kinds: type) -> None:
    """Refuse an object of another class."""
    if not isinstance(value, kinds):
        wanted = ' or '.join(kind.__name__ for kind in kinds)
        article = 'an' if wanted[0] in 'AEIO' else 'a'
        raise TypeError(
            f"'{name}' needs to be {article} {wanted} "
            f'(got {type(value).__name__})'
        )


def check_callable(name: str, value: Any) -> None:
    """Refuse anything that cannot be called."""
    if not callable(value):
        raise TypeError(
            f"'{name}' needs to be callable (got {type(value).__name__})"
        )


def check_tensor(
    name: str,
    value: Tensor,
    dtype: torch.dtype | tuple[torch.dtype, ...] | None,
    shape: tuple[int | str, ...],
    *,
    finite: bool = False,
) -> None:
    """Refuse a tensor of another dtype or shape, or with bad entries.

    Args:
        name (str): of the argument.
        value (Tensor): the given value.
        dtype (torch.dtype or tuple[torch.dtype, ...], optional): the valid
            dtypes; :obj:`None` for any floating point.
        shape (tuple[int | str, ...]): a dimension of any size by its name.
        finite (bool): whether NaN and infinity are refused.
            (default: :obj:`False`)
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"'{name}' needs to be a tensor (got {type(value).__name__})"
        )
    if dtype is None:
        if not value.is_floating_point():
            raise TypeError(
                f"'{name}' needs to be floating point (got {value.dtype})"
            )
    else:
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
        if value.dtype not in dtypes:
            wanted = ' or '.join(str(d).removeprefix('torch.') for d in dtypes)
            raise TypeError(
                f"'{name}' needs to be {wanted} (got {value.dtype})"
            )
    if value.dim() != len(shape) or any(
        isinstance(wanted, int) and size != wanted
        for size, wanted in zip(value.shape, shape, strict=True)
    ):
        raise ValueError(
            f"'{name}' needs to have the shape [{', '.join(map(str, shape))}] "
            f'(got {list(value.shape)})'
        )
    if finite and not is_finite(value):
        raise ValueError(f"'{name}' needs to be finite (got NaN or infinity)")


def check_dtype(
    name: str, value: Any, dtype: torch.dtype | tuple[torch.dtype, ...] | None
) -> None:
    """Refuse anything but a tensor of some dtype, of any shape.

    Args:
        name (str): of the argument.
        value (Any): the given value.
        dtype (torch.dtype or tuple[torch.dtype, ...], optional): the valid
            dtypes; :obj:`None` for any floating point.
    """
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    if isinstance(value, Tensor) and (
        value.is_floating_point() if dtype is None else value.dtype in dtypes
    ):
        return
    wanted = 'floating-point'
    if dtype is not None:
        wanted = ' or '.join(str(d).removeprefix('torch.') for d in dtypes)
    article = 'an' if wanted[0] == 'i' else 'a'
    got = getattr(value, 'dtype', type(value).__name__)
    raise TypeError(
        f"'{name}' needs to be {article} {wanted} tensor (got {got})"
    )


def is_finite(value: Tensor) -> bool:
    """Return whether no entry is NaN or infinite.

    The sum is the cheaper question; it may overflow, so it is not the last.
    """
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())


def check_range(
    name: str, value: Tensor, size: int, what: str, private: bool = False
) -> None:
    """Refuses an integer tensor with an entry outside of [0, size).

    Entries that are private are not in the text of the error.
    """
    if value.numel() > 0:
        low, high = int(value.min()), int(value.max())
        if low < 0 or high >= size:
            got = '(got others)' if private else f'(got {low} to {high})'
            raise ValueError(
                f"'{name}' needs to be in [0, {size}), {what} {got}"
            )


def check_nodes(name: str, value: Tensor, num_nodes: int) -> Tensor:
    """Convert int64 indices or a bool mask to node indices."""
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        check_tensor(name, value, torch.bool, (num_nodes,))
        return value.nonzero().view(-1)
    check_tensor(name, value, torch.int64, ('num',))
    check_range(name, value, num_nodes, 'the nodes')
    return value


def check_distinct(name: str, nodes: Tensor) -> None:
    """Refuse nodes of which one occurs twice."""
    if nodes.unique().numel() < nodes.numel():
        raise ValueError(f"'{name}' needs to name each node once")


def check_plain(name: str, value: dict[str, Any]) -> None:
    """Refuse anything but a dictionary that JSON can hold."""
    check_instance(name, value, dict)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"'{name}' needs to hold plain values ({error})"
        ) from None


def check_ledger(ledger: str | Path | None, ledger_head: str | None) -> None:
    """Refuse anything but a ledger's path, or a digest without one."""
    if ledger is not None:
        check_instance('ledger', ledger, str, Path)
    if ledger_head is not None:
        check_instance('ledger_head', ledger_head, str)
        if ledger is None:
            raise ValueError(
                "'ledger_head' needs a 'ledger' that goes on from it"
            )
