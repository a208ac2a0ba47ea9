"""Outputs of a single unit, alone and beside the others of its batch.

In some steps one unit that is drawn in secret is run alone, without dropout,
and its outputs are compared with those that it has in the batch.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data

from pyg_trust.privacy.calls import Call, Units
from pyg_trust.privacy.exact import step

__all__ = ['DISAGREES', 'ISOLATIONS', 'agrees']

ISOLATIONS = ('checked', 'construction')
# How far outputs may be off by rounding, over the largest of the unit. Where
# they are further off, outputs of shaken features show what rounding does.
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


class _NoDropout(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs['input']
        return func(*args, **kwargs)


def agrees(
    call: Call, batch: Data, units: Units, tried: Iterable[int], by_unit: bool
) -> bool | None:
    """Return whether units have the same outputs alone as in the batch.

    Returns:
        bool, optional: None if the model draws other random numbers than
        masks of dropout, or can't run on any of them.
    """
    device, result = units.owner.device, None

    def run(part: Data) -> Tensor:
        out: Tensor = call(call.shown(part), step.twin(call.model))
        return out

    with (
        torch.random.fork_rng([device] if device.type == 'cuda' else []),
        torch.no_grad(),
        _NoDropout(),
    ):
        before = torch.get_rng_state()
        try:
            together = run(batch)
        except RuntimeError:  # It keeps what can't be copied.
            return None
        if not torch.equal(before, torch.get_rng_state()):
            return None
        rows = units.of(together, by_unit)
        for unit in tried:
            part = units.alone(batch, unit)
            try:
                alone = run(part)
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
            if not bool(scale.isfinite()):
                continue
            most = torch.zeros_like(scale)
            for _ in range(_TRIES):
                moved = run(_shaken(part)) - alone
                most = torch.maximum(most, moved.abs().amax())
            if not bool(off.amax() <= _SPREAD * most):
                return False
    return result


def _shaken(batch: Data) -> Data:
    # Features that differ in their last bits.
    out = batch.clone()
    for name, value in batch.to_dict().items():
        if (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.layout == torch.strided
        ):
            eps = torch.finfo(value.dtype).eps
            out[name] = value * (1 + 4 * eps * torch.randn_like(value))
    return out
