"""Run units of a batch one at a time, by ``privacy/exact/step.py``.

With ``isolation='construction'`` every unit is run alone. Otherwise one unit,
drawn in secret, is run alone and compared with what it added in the batch.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pyg_trust.privacy.calls import Call
from pyg_trust.privacy.draws import Mask, UseDraws
from pyg_trust.privacy.exact import step

ISOLATIONS = ('followed', 'construction')
# How often a gradient is looked for within the reach of rounding.
_TRIES = 24
DISAGREES = (
    'a unit that was run alone does not add to the clipped sum what it has '
    'added beside the others, so that epsilon may not hold. The step was '
    'refused before its noise was drawn: nothing of it was spent or released, '
    'and this engine takes no more steps. Which unit it is stays secret, and '
    'that there is one tells of the data. Report this as a defect '
    "(SECURITY.md); isolation='construction' runs every unit alone"
)


class Draw:
    """Secret choice of one unit in each step."""

    def __init__(self) -> None:
        self._at: int | None = None

    def of(self, first: int, count: int, total: int) -> int | None:
        """Return the chosen unit's index among this part's units, or None.

        The choice comes from the operating system, and from no seed.

        Args:
            first (int): the number of units in the parts before.
            count (int): the number of units in this part.
            total (int): the number of units in the step.
        """
        if first == 0 or self._at is None:
            self._at = secrets.randbelow(total) if total else None
        if self._at is None or not first <= self._at < first + count:
            return None
        return self._at - first


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

    def gradients(self, number: int, pull: step.Pull) -> list[step.Floats]:
        """Compute the gradient of one unit, by the kernel."""
        unit = self.unit(number)
        return step.alone(self.module, unit, pull, self.key)

    def outputs(self, number: int) -> Tensor:
        """Run the model on one unit, by the kernel."""
        twin, unit = step.twin(self.module), self.unit(number)
        return step.outputs(twin, unit, self.key).detach()


class CrossCheck:
    """Checker that a unit adds alone what it added in the batch."""

    def __init__(self) -> None:
        self._twin: nn.Module | None = None
        self._set: dict[str, str] = {}

    def passes(
        self,
        units: Alone,
        number: int,
        masks: list[Mask],
        pull: step.Pull,
        share: step.Share,
        norm: float,
        automatic: bool,
        settings: dict[str, str],
    ) -> bool:
        """Return whether a unit adds the same alone, up to rounding.

        A number that is rounded otherwise may fall on the other side of zero.
        The comparison is then repeated with weights and features that are
        perturbed in their last bits.

        Args:
            units (Alone): the units of the batch.
            number (int): the unit's number in the batch.
            masks (list[Mask]): the masks of dropout, for all units.
            pull (callable): maps outputs to the gradient by them.
            share (Share): what the unit added in the batch.
            norm (float): the clipping norm.
            automatic (bool): whether short gradients are made longer.
            settings (dict): settings of the model, which is copied anew when
                they change.
        """
        unit = units.unit(number)
        chosen = torch.zeros(
            units.call.num_subgraphs, dtype=torch.bool
        ).index_fill_(0, torch.tensor([number]), True)
        chosen = chosen.to(units.call.owner.device)

        rounding = max(
            torch.finfo(p.dtype).eps / 2
            for p in units.module.parameters()
            if p.requires_grad
        )
        tried: list[list[step.Floats]] = []
        for attempt in range(_TRIES):
            if attempt or self._twin is None or self._set != settings:
                self._twin, self._set = step.twin(units.module), settings
            twin, own = self._twin, unit
            if attempt > 1:
                twin, own = _shaken(units.module, unit, rounding)
            with UseDraws(masks, chosen) if masks else nullcontext():
                out = step.outputs(twin, own, 0)
            found = step.gradient(twin, out, pull(out.detach()))
            if step.agree(share, found, norm, rounding, automatic):
                return True
            tried.append(found)
        self._twin = None
        # A steep loss moves by more than its numbers are rounded by.
        first = tried[0]
        spread = 4 * max(
            step.length([a - b for a, b in zip(first, other, strict=True)])
            for other in tried[1:]
        )
        return step.agree(share, first, norm, rounding, automatic, spread)


def _shaken(
    module: nn.Module, unit: Any, rounding: float
) -> tuple[nn.Module, Any]:
    # A copy whose numbers are perturbed in their last bits.
    generator = torch.Generator().manual_seed(
        int.from_bytes(os.urandom(7), 'big')
    )

    def shake(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.layout != torch.strided:
            return value
        by = torch.randn(value.shape, generator=generator).to(value)
        return value.detach() * (1 + 4 * rounding * by)

    made = step.twin(module)
    made = _own_weights(made, shake)
    return made, _map(unit, shake)


def _own_weights(module: nn.Module, shake: Callable[[Any], Any]) -> nn.Module:
    # Parameters of its own, in the same places: shared ones stay shared.
    made: dict[int, nn.Parameter] = {}
    for layer in module.modules():
        for name, old in layer._parameters.items():
            if old is None:
                continue
            if id(old) not in made:
                made[id(old)] = nn.Parameter(shake(old), old.requires_grad)
            layer._parameters[name] = made[id(old)]
    return module


def _map(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_map(item, leaf) for item in value)
    if isinstance(value, dict):
        return {key: _map(item, leaf) for key, item in value.items()}
    if hasattr(value, 'to_dict'):
        made = value.clone()
        for key, item in value.to_dict().items():
            made[key] = leaf(item)
        return made
    return leaf(value)
