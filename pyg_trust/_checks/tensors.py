"""Constraints of the tensors of ops: dtype, device, shape and layout."""

import re
from typing import Any

import torch
from torch import Tensor

from pyg_trust._checks import Constraint, Is, Sizes, check_range, constraints

HOST = torch.device('cpu')
_DIM = re.compile(r'([a-z]\w*)(?:\+(\d+))?')


class Form(Constraint):
    """Constraint of an op's tensor: dtype, device and shape.

    It is on the device of the op's leading tensor (``ops._op``), and what the
    op gets is contiguous.

    Args:
        dtype (torch.dtype, optional): the dtype; :obj:`None` for that of the
            leading tensor, float32 or float64.
        *shape (str or int): the size of each dimension. A name is any size,
            but the same wherever it occurs in a declaration; ``'n+1'`` is one
            more.
        host (bool): whether the tensor is always on the CPU.
        own (bool): whether the op writes to the tensor, which then has to be
            contiguous.
        raw (bool): whether the tensor is passed unchanged, even a sparse CSR
            matrix.
        below (str, optional): the size that bounds the entries, and what
            these are: ``'n: the nodes'``.
        none (str, optional): the size that stands for that of a tensor that
            is missing.
    """

    def __init__(
        self,
        dtype: torch.dtype | None,
        *shape: str | int,
        host: bool = False,
        own: bool = False,
        raw: bool = False,
        below: str = '',
        none: str = '',
    ) -> None:
        self.dtype, self.host, self.none = dtype, host, none
        self.own, self.raw = own, raw
        self.below, _, self.what = below.partition(': ')
        # For each dimension its name, if any, and the number added to it.
        self.shape: list[tuple[str, int]] = []
        for size in shape:
            found = _DIM.fullmatch(str(size))
            name, more = found.groups('0') if found else ('', str(size))
            self.shape.append((name, int(more)))
        kind = dtype or 'float32 or float64'
        self.need = f'a {kind} tensor of the shape [{self._wanted({})}]'
        self.need += f', in [0, {self.below})' if below else ''

    def _wanted(self, sizes: dict[str, Any]) -> str:
        return ', '.join(
            str(sizes.get(of, 0) + more)
            if of in sizes or not of
            else f'{of}+{more}' * bool(more) or of
            for of, more in self.shape
        )

    def __call__(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        if value is None and self.optional:
            if self.none and sizes is not None:
                sizes[self.shape[0][0]] = sizes[self.none]
            return None
        return self.check(name, value, sizes)

    def check(self, name: str, value: Any, sizes: Any) -> Tensor:
        dtype = self.dtype or sizes['dtype']
        if not isinstance(value, Tensor) or value.dtype is not dtype:
            got = getattr(value, 'dtype', type(value).__name__)
            raise TypeError(
                f"'{name}' needs to be a {dtype} tensor (got {got})"
            )
        device = HOST if self.host else sizes['device']
        if not (value.is_cpu if device is HOST else value.device == device):
            raise ValueError(
                f"'{name}' needs to be on the device of the other tensors, "
                f'{device} (got {value.device})'
            )
        given = value.shape
        fits = len(given) == len(self.shape)
        for at, (of, more) in enumerate(self.shape if fits else ()):
            size = given[at]
            if of not in sizes:
                sizes[of] = max(size - more, 0)
            if size != sizes[of] + more:
                fits = False
        if not fits:
            raise ValueError(
                f"'{name}' needs to have the shape [{self._wanted(sizes)}] "
                f'(got {list(given)})'
            )
        if self.below:
            check_range(name, value, sizes[self.below], self.what)
        if value.layout is not torch.strided:
            if self.raw and value.layout is torch.sparse_csr:
                return value
            raise TypeError(f"'{name}' needs to be dense (got {value.layout})")
        # The kernels read memory, where a view may have another sign.
        if self.raw or (value.is_contiguous() and not value.is_neg()):
            return value
        if self.own:
            raise ValueError(f"'{name}' needs to be contiguous")
        return value.resolve_neg().contiguous()


class Parts(Is):
    """Constraint of a bundle of tensors, as declared by the bundle's class."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind)
        self.forms = constraints(kind)

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        super().check(name, value)
        for field, form in self.forms.items():
            old = getattr(value, field)
            new = form(field, old, sizes)
            if new is not old:
                value = value._replace(**{field: new})
        return value


class Pair(Constraint):
    """Constraint of a tuple (rowptr, col), with a name for the edge count."""

    need = 'a tuple of rowptr and col'

    def __init__(self, edges: str = 'm') -> None:
        self.forms = Form(torch.int64, 'n+1'), Form(torch.int32, edges)

    def check(self, name: str, value: Any, sizes: Sizes = None) -> Any:
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(
                f"'{name}' needs to be {self.need} "
                f'(got {type(value).__name__})'
            )
        rowptr, col = self.forms
        return (rowptr('rowptr', value[0], sizes), col('col', value[1], sizes))
