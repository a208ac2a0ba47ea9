"""Check that what a unit adds depends on that unit alone, bit by bit."""

from pyg_trust.loader import DisjointWalkLoader, StepLoader
from pyg_trust.privacy.gradients import SubgraphGradients

# Operations of a loss that give a row the same bits in every batch.
_LOCAL = frozenset(
    (
        *('_log_softmax', '_log_softmax_backward_data', 'nll_loss_forward'),
        *('nll_loss_backward', 'add', 'sub', 'mul', 'div', 'neg', 'sum'),
        *('expand', 'view', 'reshape', '_unsafe_view', 'slice', 'select'),
        *('slice_backward', 'select_backward', 'squeeze', 'unsqueeze', 't'),
        *('detach', 'clone', 'copy', 'ones_like', 'zeros_like', 'new_zeros'),
        *('new_ones', 'abs', 'relu', 'threshold_backward', 'where', 'gather'),
        *('zeros', 'alias', '_to_copy', 'lift_fresh', 'empty_like', 'fill'),
        *('index', 'index_select', 'new_empty', 'empty', 'sgn', 'scatter'),
    )
)


class Exactness:
    """Record of operations whose rounding may depend on the other units.

    Args:
        gradients (SubgraphGradients): the gradients of the model.
    """

    def __init__(self, gradients: SubgraphGradients) -> None:
        self.gradients = gradients
        self.insists = False
        #: Whether every unit is run alone (``privacy/exact/step.py``).
        self.alone = False
        #: Operations that losses applied to rows.
        self.loss: set[str] = set()
        # Whether a loss is divided by a private number; whether it is
        # unchecked.
        self._mean = self._trusted = False

    def prepare(
        self, loader: StepLoader, mean: bool, trusted: bool, insists: bool
    ) -> None:
        """Record how units are drawn and how losses are reduced."""
        # A replaced unit may have another size, so that shapes of batches
        # differ between neighbours.
        self.gradients.rowwise = not isinstance(loader, DisjointWalkLoader)
        self._trusted = trusted
        self._mean = mean and trusted and loader.form == 'withdraw'
        self.insists = insists

    def reasons(self) -> tuple[str, ...]:
        """Return reasons why a unit's summand may depend on other units."""
        gradients, why = self.gradients, []
        if self.alone:
            return self._of_loss()
        trained = gradients.parameters().values()
        if any(p.device.type != 'cpu' for p in trained):
            why.append('a GPU chooses its kernels by the whole batch')
        if gradients.together:
            why.append("units are computed together (method 'vjp')")
        if not gradients.rowwise:
            return tuple(why)
        if gradients.chosen != 'bookkeeping':
            why.append(
                f'the method {gradients.chosen!r} calls the model on all units'
            )
        foreign = sorted(gradients.foreign) + sorted(self.loss - _LOCAL)
        if foreign:
            why.append(
                f'{", ".join(map(repr, foreign))} may round a row otherwise '
                'in a batch of another size'
            )
        return (*why, *self._of_loss())

    def _of_loss(self) -> tuple[str, ...]:
        why = []
        if self._trusted:
            why.append('the loss is not followed (trust_loss=True)')
        if self._mean:
            why.append(
                'a mean divides by how many units were drawn, which differs '
                "between neighbours (loss_reduction='sum' does not)"
            )
        return tuple(why)

    def check(self) -> None:
        """Refuse inexact sums, if exact ones were asked for."""
        why = self.reasons() if self.insists else ()
        if why:
            raise ValueError(
                "'exact' needs summands that do not depend on the other "
                f'units ({"; ".join(why)})'
            )
