"""Reports: what a procedure promises its user, and how to run it again.

A procedure returns a frozen dataclass that inherits from :class:`Report`. Its
fields are plain (numbers, strings, booleans, tensors, and lists, tuples and
dictionaries of these), so that it can be printed, stored as JSON and compared.
"""

import dataclasses
import json
import platform
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric
from torch import Tensor

import pyg_trust


def provenance(**arguments: Any) -> dict[str, Any]:
    """The versions that are running and the arguments of a procedure.

    Args:
        **arguments (Any): the seed and whatever else it takes to run the
            procedure again.
    """
    return {
        'pyg_trust': pyg_trust.__version__,
        'torch': torch.__version__,
        'torch_geometric': torch_geometric.__version__,
        'python': platform.python_version(),
        'arguments': arguments,
    }


@dataclass(frozen=True)
class Report:
    """The base of all reports: a table to read, a dictionary to store."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, tensors as nested lists."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }

    def to_json(self) -> str:
        """The dictionary as JSON; numbers that are not finite are strings."""
        return json.dumps(_finite(self.to_dict()), indent=2, allow_nan=False)

    def __str__(self) -> str:
        rows = [
            (field.name.replace('_', ' '), _short(getattr(self, field.name)))
            for field in dataclasses.fields(self)
        ]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f'{name:<{width}}  {value}' for name, value in rows]
        return '\n'.join([type(self).__name__, *lines])


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return _short(value.item())
        shape = ', '.join(map(str, value.shape))
        return f'{value.dtype} tensor [{shape}]'.replace('torch.', '')
    if isinstance(value, float):
        return f'{value:.6g}'
    return str(value)
