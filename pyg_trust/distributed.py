"""Distribution of work over the processes of torchrun.

Launch, rendezvous, timeouts and process groups are torch's. What is here says
which part of a list of work is this process's, and puts the parts together.
A process that dies ends the call with torch's error on all others, at the
latest when the group's timeout is over.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pyg_trust import __version__
from pyg_trust._checks import (
    check_callable,
    check_instance,
    check_integer,
    validated,
)
from pyg_trust._checks.identity import fingerprint_any

__all__ = [
    'check_same',
    'from_first',
    'own_items',
    'rank_and_size',
    'run_over_ranks',
    'shared',
]

T = TypeVar('T')


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as integers."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@validated
def from_first(
    work: Callable[[], T], size: int | None = None, *, after: bool = False
) -> T:
    """Run a function in the process of rank 0; return its result in all.

    Args:
        work (callable): the function, without arguments.
        size (int, optional): 1 to run the function in this process instead; by
            default the number of processes. (default: :obj:`None`)
        after (bool): whether the work starts only when all processes have
            called this function. (default: :obj:`False`)

    Example:
        >>> from_first(lambda: 3)
        3
    """
    rank, world = rank_and_size()
    if (world if size is None else check_integer('size', size, 1)) == 1:
        return work()
    if after:
        dist.all_gather_object([None] * world, 0)
    result: list[Any] = [None]
    if rank == 0:
        try:
            result = [(True, work())]
        except Exception as error:
            dist.broadcast_object_list([(False, str(error))], 0)
            raise
    dist.broadcast_object_list(result, 0)
    good, value = result[0]
    if not good:
        raise RuntimeError(f'rank 0 failed: {value}')
    return value


@validated
def shared(
    items: Sequence[Any], work: Callable[[Any], T], over_ranks: bool
) -> Iterable[T]:
    """Iterate over ``work(item)`` for each item, on one or all processes.

    With ``over_ranks``, the processes share the work, by
    :func:`run_over_ranks`, and each gets the results of all ``items``, in
    their order. Otherwise this process does all of it, each item when its
    result is asked for.

    Example:
        >>> list(shared([1, 2], str, False))
        ['1', '2']
    """
    check_instance('items', items, Sequence)
    return run_over_ranks(items, work) if over_ranks else map(work, items)


def check_same(
    arguments: Mapping[str, Any], failed: Exception | None = None
) -> None:
    """Raise an error on all processes if their arguments differ.

    All processes call it together. Other versions of pyg_trust or torch are an
    error, too.

    Args:
        arguments (dict): the values that have to be equal, by name. Tensors,
            graphs, models and functions are compared by their tensors,
            attributes and code.
        failed (Exception, optional): an error that has occurred in this
            process. It is raised here, and the other processes raise a
            :class:`RuntimeError` with its text. (default: :obj:`None`)

    Example:
        >>> check_same({'seed': 3})
    """
    check_instance('arguments', arguments, Mapping)
    if failed is not None:
        check_instance('failed', failed, Exception)
    mine = {'version': f'pyg_trust {__version__}, torch {torch.__version__}'}
    try:
        if failed is None and rank_and_size()[1] > 1:
            for name, value in arguments.items():
                mine[name] = fingerprint_any(value)
    except Exception as error:
        failed = error
    first, *others = _exchanged(mine, failed)
    for other, theirs in enumerate(others, 1):
        for name in [*first, *theirs]:
            if first.get(name) != theirs.get(name):
                what = 'another one than rank 0'
                if name == 'version':
                    what = f'{theirs[name]}, and rank 0 {first[name]}'
                raise ValueError(
                    f"'{name}' needs to be the same on all ranks (rank "
                    f'{other} has {what})'
                )


def _exchanged(mine: T, failed: Exception | None) -> list[T]:
    # What every process has, or the error of any of them on all of them.
    message = None if failed is None else f'{type(failed).__name__}: {failed}'
    parts: list[Any] = [(message, mine)]
    if (size := rank_and_size()[1]) > 1:
        parts = [None] * size
        dist.all_gather_object(parts, (message, mine))
    if failed is not None:
        raise failed
    for other, (message, _) in enumerate(parts):
        if message is not None:
            raise RuntimeError(f'rank {other} failed: {message}')
    return [part for _, part in parts]


def own_items(count: int) -> range:
    """Return which of ``count`` pieces of work this process does.

    Of P processes, that of rank r does the pieces r, r + P, r + 2 P, ...

    Example:
        >>> own_items(3)  # in a single process
        range(0, 3)
    """
    check_integer('count', count, 0)
    rank, size = rank_and_size()
    return range(rank, count, size)


def run_over_ranks(items: Sequence[Any], work: Callable[[Any], T]) -> list[T]:
    """Return ``[work(item) for item in items]``, computed by all processes.

    Every process does a part of the items, and returns all results, in the
    order of the items. Results are sent with pickle. An error in one process
    is raised in all, when the others have done their parts.

    Args:
        items (Sequence): the pieces of work, the same on every process.
        work (callable): the function to run; its results have to be picklable,
            tensors on the CPU, and depend on the item alone.

    Example:
        >>> run_over_ranks([1, 2, 3], lambda item: item**2)
        [1, 4, 9]
    """
    check_instance('items', items, Sequence)
    check_callable('work', work)
    size = rank_and_size()[1]
    done: list[T] = []
    failed: Exception | None = None
    try:
        for place in own_items(len(items)):
            done.append(work(items[place]))
    except Exception as error:
        failed = error
    finished: list[Any] = [None] * len(items)
    for other, (count, results) in enumerate(
        _exchanged((len(items), done), failed)
    ):
        if count != len(items):
            raise ValueError(
                "'items' needs to be the same on all ranks (rank "
                f'{other} has {count} of them, and this one {len(items)})'
            )
        finished[other::size] = results
    return finished
