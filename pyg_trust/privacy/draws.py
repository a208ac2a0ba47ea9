"""Switch off, keep or reuse the random numbers of a forward pass."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_trust import rng
from pyg_trust.privacy.calls import Unsupported, Watch, name_of
from pyg_trust.privacy.rows import (
    Args,
    Conflict,
    Kwargs,
    Rows,
    RowTracker,
    tensors_of,
    version_of,
)

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
    """Multiplier that a dropout applied, and the rows it belongs to."""

    value: Tensor
    rows: Rows
    axis: int


def random_state(device: torch.device) -> list[Tensor]:
    """Return the states of the generators that a module draws from."""
    states = [torch.get_rng_state()]
    if device.type == 'cuda':
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Restore the result of :func:`random_state`."""
    torch.set_rng_state(states[0])
    if device.type == 'cuda':
        torch.cuda.set_rng_state(states[1], device)


def fresh_state(
    before: list[Tensor], device: torch.device, secret: bool = False
) -> list[Tensor]:
    """Return the same states, or fresh ones if anything was drawn since.

    Fresh states are seeded with a number that is drawn now, so that they
    repeat no numbers that were drawn before or will be drawn later. Where the
    sizes of units are private, a unit's size shifts the masks of others, and
    somebody who knows torch's seed would see that. With :obj:`secret`, the
    seed therefore also depends on random bits of the operating system.
    """
    now = random_state(device)
    if all(map(torch.equal, now, before)):
        return before
    seed = int(torch.randint(2**62, ()))
    if secret:
        seed ^= secrets.randbits(62)
    now = random_state(device)
    torch.default_generator.manual_seed(seed)
    if device.type == 'cuda':
        torch.cuda.manual_seed(seed)
    made = random_state(device)
    set_random_state(now, device)
    return made


class Masks:
    """Record of the masks of dropout, and of whether anything else was drawn.

    Args:
        tracker (RowTracker): knows whose the rows are.
        device (torch.device): the module's device.
    """

    def __init__(self, tracker: RowTracker, device: torch.device) -> None:
        self.tracker = tracker
        self.device = device
        self.masks: list[Mask] = []
        self.complete = True
        self._states = random_state(device)

    def look(self) -> None:
        """Note whether anything was drawn since the last mask."""
        now = random_state(self.device)
        same = zip(now, self._states, strict=True)
        self.complete &= all(torch.equal(a, b) for a, b in same)

    def drop(
        self, func: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Tensor | None:
        """Apply a dropout and keep its mask; None for other functions."""
        if func not in _DROPOUT:
            return None
        x, p, inplace = _dropout(*args, **kwargs)
        found = self.tracker.get(x)
        if not p > 0 or found is None:
            return None
        self.look()
        value = F.dropout(torch.ones_like(x), p)
        self._states = random_state(self.device)
        self.masks.append(Mask(value, *found))
        out = x.mul_(value) if inplace else x * value
        self.tracker.set(out, *found)
        return out


class KeepDraws(Watch):
    """Mode that keeps masks of dropout, and notes if anything else is drawn.

    Args:
        tracker (RowTracker): knows whose the rows are.
        device (torch.device): the module's device.
    """

    def __init__(self, tracker: RowTracker, device: torch.device) -> None:
        super().__init__()
        self.tracker = tracker
        self.draws = Masks(tracker, device)

    def call(
        self, func: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Any:
        """Make a call; keep masks of dropout, and follow the rows."""
        dropped = self.draws.drop(func, args, kwargs)
        if dropped is not None:
            return dropped
        tensors = tensors_of(args, kwargs)
        versions = [version_of(t) for t in tensors]
        out = func(*args, **kwargs)
        name = name_of(func)
        if name is not None:
            try:
                self.tracker.follow(name, args, kwargs, out, tensors, versions)
            except Conflict:
                self.draws.complete = False
        return out


class UseDraws(Watch):
    """Mode that applies kept masks of dropout to some of the subgraphs.

    Args:
        masks (list[Mask]): the kept masks, of all subgraphs.
        chosen (Tensor): bool, ``[num_subgraphs]``: those in the call.
    """

    def __init__(self, masks: list[Mask], chosen: Tensor) -> None:
        super().__init__()
        self.masks = iter(masks)
        self.chosen = chosen

    def call(
        self, func: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Any:
        """Apply the next mask in the place of a dropout."""
        if func in _DROPOUT:
            x, p, inplace = _dropout(*args, **kwargs)
            if p > 0:
                value = self._next()
                if value.shape != x.shape:
                    raise Unsupported('dropout has another number of rows')
                return x.mul_(value) if inplace else x * value
        return func(*args, **kwargs)

    def _next(self) -> Tensor:
        mask = next(self.masks, None)
        owner = None if mask is None else mask.rows.owner
        if mask is None or owner is None:
            raise Unsupported('the owners of the dropped rows are not known')
        here = self.chosen[owner].nonzero().view(-1)
        return mask.value.index_select(mask.axis, here)


class NoDropout(Watch):
    """Context in which dropout does nothing."""

    def call(
        self, func: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Any:
        """Replace dropout by the identity."""
        if func in _DROPOUTS:
            return args[0] if args else kwargs['input']
        return func(*args, **kwargs)


class DrawsBySubgraph(TorchDispatchMode):
    """Mode in which each subgraph draws from a random stream of its own.

    In a random tensor with a row per node or edge, the rows of a subgraph get
    the numbers that they would get if the subgraph were alone. So a model's
    outputs on several subgraphs can be compared with those on each. Any other
    draw (one number for all, say) depends on the seed and on how many draws
    there were before.

    Args:
        owner (Tensor): int64, ``[num_nodes]``: the subgraph of each node.
        edge_owner (Tensor, optional): int64, ``[num_edges]``: that of each
            edge.
        names (Sequence[int]): the subgraphs' names, which seed their streams.
        seed (int): the seed.
    """

    def __init__(
        self,
        owner: Tensor,
        edge_owner: Tensor | None,
        names: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__()
        self.rows = {} if edge_owner is None else {len(edge_owner): edge_owner}
        self.rows[len(owner)] = owner
        self.names = names
        self.seed = seed
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Any:
        """Call random operations once for each subgraph."""
        kwargs = kwargs or {}
        # Draw as usual too, so that others notice the draw.
        out = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return out
        self.count += 1
        rows = None
        if isinstance(out, Tensor) and out.dim():
            rows = self.rows.get(out.size(0))
        if rows is None:
            with _seeded(rng.derive(self.seed, self.count)):
                return func(*args, **kwargs)
        for number, name in enumerate(self.names):
            here = (rows == number).nonzero().view(-1)

            def cut(value: Any, here: Tensor = here) -> Any:
                size = out.size(0)
                if isinstance(value, Tensor) and value.dim():
                    return value[here] if value.size(0) == size else value
                if isinstance(value, list) and value and value[0] == size:
                    return [here.numel(), *value[1:]]
                return value

            with _seeded(rng.derive(self.seed, self.count, name)):
                own = {k: cut(v) for k, v in kwargs.items()}
                out[here] = func(*map(cut, args), **own)
        return out


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, float, bool]:
    training = kwargs.get('train', training)
    return input, p if training else 0.0, inplace
