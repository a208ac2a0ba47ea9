"""Processes that run one private training together."""

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ['Group', 'keyed_bytes']

T = TypeVar('T')


class Group:
    """The process group of ``torch.distributed``, or one process alone.

    The processes trust each other and the network between them: what they
    exchange are clipped sums without noise and the key of the draws. The first
    adds the noise, from its own operating system, and keeps the account's
    file; nobody else could make that noise again.

    Args:
        rank (int): the number of this process. (default: :obj:`0`)
        size (int): how many there are. (default: :obj:`1`)
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def current(cls) -> 'Group':
        """Return the group of the processes that ``torch.distributed`` knows.

        Raises:
            RuntimeError: if ``torchrun`` announces more of them.
        """
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
                'would otherwise report the epsilon of a single process for '
                'all of them'
            )
        return made

    @property
    def first(self) -> bool:
        """Whether this process keeps the account's file."""
        return self.rank == 0

    @property
    def adds_noise(self) -> bool:
        """Whether this process draws the noise, which is added once.

        It is added once since :meth:`spread` hands out the values of the first
        process alone.
        """
        return self.rank == 0

    def check(self) -> None:
        """Refuse to continue with other processes than training began with."""
        now = Group.current()
        if (now.rank, now.size) != (self.rank, self.size):
            raise RuntimeError(
                'private training needs to go on in the processes that it '
                f'began in (got process {now.rank} of {now.size}, and began '
                f'as {self.rank} of {self.size}): each would report the '
                'epsilon of a single process for all of them'
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

    def agree(self, values: Mapping[str, Any]) -> None:
        """Refuse values that are not the same in all processes.

        Args:
            values (dict): the values by name. Those of 'seed' are not shown.

        Raises:
            ValueError: in all processes, naming the first that differs.
        """
        if self.size == 1:
            return
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, dict(values))
        first = found[0]
        for rank, other in enumerate(found):
            for name in {**first, **other}:
                one, two = first.get(name), other.get(name)
                if one != two:
                    got = f'{one!r} in the first, {two!r} in process {rank}'
                    if name == 'seed':
                        got = f'another one in process {rank}'
                    what = f"'{name}'" if name.isidentifier() else name
                    raise ValueError(
                        f'{what} needs to be the same in all processes (got '
                        f'{got})'
                    )

    def differs(self, *values: Any) -> bool:
        """Tell, in all processes, whether some of them have other values."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, values)
        return any(other != found[0] for other in found)

    def key(self) -> bytes | None:
        """Draw 32 bytes from the first process' system, and hand them to all.

        None for a process alone, which needs no key.
        """
        if self.size == 1:
            return None
        return self.of_first(lambda: os.urandom(32))

    def share(self, *parts: Any) -> None:
        """Load the state of the first process' model and optimizer in all.

        Args:
            *parts (Any): have ``state_dict()`` and ``load_state_dict()``.
        """
        if self.size == 1:
            return
        for part in parts:
            state = self.of_first(part.state_dict)
            if not self.first:
                part.load_state_dict(state)

    def total(self, sums: list[Tensor], *numbers: int) -> list[Tensor]:
        """Add up tensors and numbers of all processes.

        Args:
            sums (list[Tensor]): int64, of the same shapes everywhere: their
                sum does not depend on who has which unit.
            *numbers (int): integers to add up as well.

        Returns:
            list[Tensor]: the totals of the tensors, then those of the
            numbers; in the first process alone.
        """
        if self.size == 1:
            return [*sums, *torch.tensor(numbers).unbind()]
        flat = _joined(sums, numbers)
        dist.reduce(flat, 0)
        return _cut(flat, sums)

    def spread(self, values: list[Tensor], *numbers: float) -> list[Tensor]:
        """Hand tensors and numbers of the first process to all.

        Args:
            values (list[Tensor]): float64, of the same shapes everywhere.
            *numbers (float): more to hand out, equally many everywhere.
        """
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
    Without the key they can't be predicted.
    """
    asked = 0

    def draw(count: int) -> bytes:
        nonlocal asked
        asked += 1
        text = key + step.to_bytes(8, 'big') + asked.to_bytes(8, 'big')
        return hashlib.shake_256(text).digest(count)

    return draw
