"""Run units of a batch one at a time, by ``privacy/exact/step.py``.

With ``isolation='construction'`` every unit is run alone. Otherwise, in some
steps, one unit that is drawn in secret is run alone, without dropout, and its
outputs are compared with those that it has in the batch.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_trust.privacy.calls import Call
from pyg_trust.privacy.exact import step

ISOLATIONS = ('checked', 'construction')
# How far outputs may be off by rounding, over the largest of the unit. Where
# they are further off, outputs of shaken features tell what rounding does.
_OFF, _TRIES, _SPREAD = 1e-3, 12, 8
_DROPOUTS = frozenset(
    [
        *(F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
        *(F.alpha_dropout, F.feature_alpha_dropout, torch.dropout_),
        *(torch.alpha_dropout, torch.feature_dropout),
        torch.feature_alpha_dropout,
    ]
)
DISAGREES = (
    'a unit that was run alone has other outputs than beside the others, so '
    'that the model mixes units and epsilon may not hold. The step was '
    'refused before its noise was drawn: nothing of it was spent or released, '
    'and this engine takes no more steps. Which unit it is stays secret, and '
    'that there is one depends on the data. Look for statistics of the whole '
    "batch; isolation='construction' runs every unit alone"
)


class Alone:
    """Runner of single units of one model call.

    Args:
        call (Call): the model's call on all units.
        key (int): the public seed of random numbers. (default: :obj:`0`)
    """

    def __init__(self, call: Call, key: int = 0) -> None:
        self.call = call
        self.module = call.module
        self.key = key

    def unit(self, number: int) -> step.Unit:
        """Return the arguments of the call for one unit."""
        at = torch.tensor([number], device=self.call.owner.device)
        part, _ = self.call.extract(at)
        return part.map(lambda name, value: value)


class NoDropout(TorchFunctionMode):
    """Context in which dropout does nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs['input']
        return func(*args, **kwargs)


def agrees(whole: Call, terms: Tensor, units: Iterable[int]) -> bool | None:
    """Return whether units have the same outputs alone as in the batch.

    Args:
        whole (Call): the call of the model on all units.
        terms (Tensor): int64, the unit of each row of its output, unless
            these are of nodes.
        units (iterable of int): the units that are run alone.

    Returns:
        bool, optional: None if the model draws other random numbers than
        masks of dropout, or can't run on any of them.
    """
    device, result = whole.owner.device, None
    with (
        torch.random.fork_rng([device] if device.type == 'cuda' else []),
        torch.no_grad(),
        NoDropout(),
    ):
        before = torch.get_rng_state()
        try:
            twin = step.twin(whole.module)
        except RuntimeError:  # It keeps what can't be copied.
            return None
        together = whole.on(twin, None).run()
        if not torch.equal(before, torch.get_rng_state()):
            return None
        rows = whole.owner if len(together) == len(whole.owner) else terms
        for unit in units:
            part = whole.extract(torch.tensor([unit], device=device))[0]
            try:
                alone = part.on(step.twin(whole.module), None).run()
            except Exception:  # as of an LSTM without edges
                continue
            own = together[rows == unit]
            if own.shape != alone.shape:
                return False
            result = True
            scale = own.abs().amax() if own.numel() else own.sum()
            off = (own - alone).abs()
            if bool(((off <= _OFF * scale) | (own == alone)).all()):
                continue
            # What is not finite adds nothing; a number that is rounded
            # otherwise may fall on the other side of a step.
            if bool(scale.isfinite()) and not _is_steep(part, alone, off):
                return False
    return result


def _is_steep(part: Call, alone: Tensor, off: Tensor) -> bool:
    # Whether features that differ in their last bits move outputs as far.
    def shaken(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        by = 4 * torch.finfo(value.dtype).eps * torch.randn_like(value)
        return value.detach() * (1 + by)

    most = torch.zeros_like(off).amax() if off.numel() else off.sum()
    for _ in range(_TRIES):
        args, kwargs = part.map(shaken)
        moved = step.twin(part.module)(*args, **kwargs) - alone
        most = torch.maximum(most, moved.abs().amax())
    return bool(off.amax() <= _SPREAD * most)
