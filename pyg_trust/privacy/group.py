"""Processes that run one private training together."""

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pyg_trust._checks import NUMBERS

__all__ = ['Group', 'keyed_bytes']

T = TypeVar('T')


class Group:
    """The process group of ``torch.distributed``, or one process alone.

    The processes trust each other and the network between them: what they
    exchange are clipped sums without noise and the key of the draws. The first
    adds the noise, from its own operating system, and keeps the account's
    file.

    Args:
        rank (int): the number of this process. (default: :obj:`0`)
        size (int): how many there are. (default: :obj:`1`)
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        #: Whether this process keeps the account's file.
        self.first = rank == 0

    @classmethod
    def current(cls) -> 'Group':
        """Return the group of processes that ``torch.distributed`` knows."""
        made = cls()
        if dist.is_available() and dist.is_initialized():
            made = cls(dist.get_rank(), dist.get_world_size())
        word = os.environ.get('WORLD_SIZE', '')
        announced = int(word) if word.isdigit() else 1
        if announced > made.size:
            raise RuntimeError(
                f'torchrun announces {announced} processes, and '
                f'torch.distributed knows {made.size}: call '
                'torch.distributed.init_process_group before, as each process '
                'would otherwise report its own epsilon for all of them'
            )
        return made

    @property
    def adds_noise(self) -> bool:
        """Whether it draws the noise, which :meth:`spread` shares."""
        return self.rank == 0

    def check(self) -> None:
        """Refuse to continue with other processes than training began with."""
        now = Group.current()
        if (now.rank, now.size) != (self.rank, self.size):
            raise RuntimeError(
                'private training needs to continue in the processes that it '
                f'began in (got process {now.rank} of {now.size}, and began '
                f'as {self.rank} of {self.size})'
            )

    def of_first(self, call: Callable[[], T]) -> T:
        """Call a function in the first process, and broadcast its result.

        Raises:
            RuntimeError: in the others, if it fails there.
        """
        if self.size == 1:
            return call()
        box: list[Any] = [False, '']
        try:
            if self.first:
                box = [False, 'it was interrupted']
                try:
                    box = [True, call()]
                except Exception as error:
                    box = [False, f'{type(error).__name__}: {error}']
                    raise
        finally:
            dist.broadcast_object_list(box, src=0)
        if not box[0]:
            raise RuntimeError(f'the first process failed: {box[1]}')
        return box[1]

    def _gathered(self, values: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, values)
        return found

    def agree(self, values: Mapping[str, Any]) -> None:
        """Refuse values that are not the same in all processes.

        Raises:
            ValueError: in all processes, naming the first that differs.
        """
        if self.size == 1:
            return
        first, *others = self._gathered(dict(values))
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                one, two = first.get(name), other.get(name)
                if one != two:
                    got = f'{one!r} in the first, {two!r} in process {rank}'
                    if name == 'insecure_seed':
                        got = f'another one in process {rank}'
                    what = f"'{name}'" if name.isidentifier() else name
                    raise ValueError(
                        f'{what} needs to be the same in all processes (got '
                        f'{got})'
                    )

    def agree_on_training(
        self, module: nn.Module, optimizer: Any, **given: Any
    ) -> None:
        """Refuse other models or arguments, which decide what is spent."""
        if self.size == 1:
            return
        values: dict[str, Any] = {
            name: value if isinstance(value, NUMBERS) else repr(value)
            for name, value in given.items()
            if not callable(value)
        }
        values['module'] = [
            (name, list(p.shape), str(p.dtype), p.requires_grad)
            for name, p in module.named_parameters()
        ]
        self.agree({**values, 'optimizer': str(optimizer)})

    def differs(self, *values: Any) -> bool:
        """Return, in all processes, whether some of them differ in values."""
        first, *others = self._gathered(values)
        return any(other != first for other in others)

    def key(self) -> bytes | None:
        """Draw 32 bytes in the first process, and hand them to all.

        None for a process alone, which needs no key.
        """
        if self.size == 1:
            return None
        return self.of_first(lambda: os.urandom(32))

    def share(self, *parts: Any) -> None:
        """Load the state of the first process' model and optimizer in all."""
        if self.size == 1:
            return
        for part in parts:
            state = self.of_first(part.state_dict)
            if not self.first:
                part.load_state_dict(state)

    def total(self, sums: list[Tensor], *numbers: int) -> list[Tensor]:
        """Add up int64 tensors and numbers of all processes."""
        if self.size == 1:
            return [*sums, *torch.tensor(numbers).unbind()]
        flat = _joined(sums, numbers)
        dist.reduce(flat, 0)
        return _cut(flat, sums)

    def spread(self, values: list[Tensor], *numbers: float) -> list[Tensor]:
        """Hand float64 tensors and numbers of the first process to all."""
        if self.size == 1:
            # In float64, as over several processes: 1e-50 is no float32.
            last = torch.tensor(numbers, dtype=torch.float64)
            return [*values, *last.unbind()]
        flat = _joined(values, numbers)
        dist.broadcast(flat, 0)
        return _cut(flat, values)


def _joined(tensors: list[Tensor], numbers: tuple[float, ...]) -> Tensor:
    last = tensors[0].new_tensor(numbers)
    return torch.cat([*(t.reshape(-1) for t in tensors), last])


def _cut(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    sizes = [tensor.numel() for tensor in like]
    *parts, last = flat.split([*sizes, flat.numel() - sum(sizes)])
    shaped = [p.view(t.shape) for p, t in zip(parts, like, strict=True)]
    return [*shaped, *last.unbind()]


def keyed_bytes(key: bytes, step: int) -> Callable[[int], bytes]:
    """Return a source of random bytes that is the same in all processes.

    Its bytes are SHAKE-256 of the key, the step and the number of the call.
    """
    asked = 0

    def draw(count: int) -> bytes:
        nonlocal asked
        asked += 1
        text = key + step.to_bytes(8, 'big') + asked.to_bytes(8, 'big')
        return hashlib.shake_256(text).digest(count)

    return draw
