"""Whether what a unit adds depends on that unit alone, bit by bit."""

from pyg_trust.loader import DisjointWalkLoader, StepLoader
from pyg_trust.privacy.codes import Attributor


class Exactness:
    """Record of operations whose rounding may depend on the other units.

    Args:
        units (Attributor): the gradients of the model.
    """

    def __init__(self, units: Attributor) -> None:
        self.units = units
        #: Whether every unit is run alone (``privacy/exact/step.py``).
        self.alone = False
        #: Whether the loss is divided by a number that is private.
        self.mean = False

    def prepare(self, loader: StepLoader, mean: bool) -> None:
        """Record how units are drawn and how losses are reduced."""
        # A replaced unit may have another size, so that shapes of batches
        # differ between neighbours.
        self.units.exact = not isinstance(loader, DisjointWalkLoader)
        self.mean = mean and loader.form == 'withdraw'

    def reasons(self) -> tuple[str, ...]:
        """Return reasons why a unit's summand may depend on other units."""
        why = []
        if self.mean:
            why.append(
                'a mean divides by how many units were drawn, which differs '
                "between neighbours (loss_reduction='sum' and "
                'training.loss(batch) do not)'
            )
        if self.alone:
            return tuple(why)
        trained = self.units.parameters().values()
        if any(p.device.type != 'cpu' for p in trained):
            why.append('a GPU chooses its kernels by the whole batch')
        if self.units.exact and self.units.foreign:
            foreign = ', '.join(map(repr, sorted(self.units.foreign)))
            why.append(
                f'{foreign} may round a row otherwise in a batch of another '
                'size'
            )
        return tuple(why)
