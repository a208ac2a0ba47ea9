"""What was spent and what is left: ledgers of certified procedures."""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from torch_geometric.data import Data

from pyg_trust.report import Report


class BudgetExceededError(RuntimeError):
    """Something would spend more than the budget; nothing was changed."""


@dataclass(frozen=True)
class LedgerEntry(Report):
    """One line of a :class:`RemovalLedger`.

    Args:
        action (str): what was done.
        spent (float): a bound of the residual of what was released.
        request (dict): the names of what was removed.
        data (str): a fingerprint of the data that remain.
        link (str): a hash of this line and all before it.
    """

    action: str
    spent: float
    request: dict[str, Any]
    data: str
    link: str


class RemovalLedger:
    r"""The append-only account of an unlearner.

    What is spent is a bound of the gradient residual of the present model. It
    starts at the *measured* residual of the first fit, and a step can only
    raise it. Only a model that was solved anew on the remaining data (a
    refinement or a retraining) starts a new account, again at its measured
    residual. Lines are never changed, each is hashed with all before it, and
    a state that does not continue the present lines is not loaded: the ledger
    can't be turned back.

    An exact unlearner, whose models are retrained without what was removed,
    uses a budget of 0 and only ever records 0.

    Args:
        budget (float): what may be spent at most.
    """

    FRESH = ('fit', 'refine', 'retrain')

    def __init__(self, budget: float) -> None:
        if not 0 <= budget < math.inf:
            raise ValueError(
                f"'budget' needs to be non-negative and finite (got {budget})"
            )
        self.budget = float(budget)
        self._entries: list[LedgerEntry] = []

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All lines, the oldest first."""
        return tuple(self._entries)

    @property
    def spent(self) -> float:
        """The bound of the present model's residual; 0 before the first."""
        return self._entries[-1].spent if self._entries else 0.0

    @property
    def remaining(self) -> float:
        """What is left of the budget."""
        return self.budget - self.spent

    def count(self, action: str) -> int:
        """How many lines record an action."""
        return sum(entry.action == action for entry in self._entries)

    def record(
        self,
        action: str,
        spent: float,
        request: dict[str, Any] | None = None,
        data: str = '',
    ) -> LedgerEntry:
        """Writes a line; call it before the new model becomes visible.

        Args:
            action (str): :obj:`'fit'`, :obj:`'refine'` or :obj:`'retrain'`
                for a model solved anew, :obj:`'step'` for an update.
            spent (float): the bound of the new model's residual.
            request (dict, optional): the names of what was removed.
                (default: :obj:`None`)
            data (str): a fingerprint of the data that remain.
                (default: :obj:`''`)

        Raises:
            ValueError: on another action, a negative or lower amount, or a
                first line that is no fit.
            BudgetExceededError: if the budget does not allow it.
        """
        if action not in (*self.FRESH, 'step'):
            raise ValueError(
                f"'action' needs to be one of {(*self.FRESH, 'step')} "
                f'(got {action!r})'
            )
        if (action == 'fit') != (not self._entries):
            raise ValueError(
                "the first line, and it alone, needs to be a 'fit' "
                f'(got {action!r} as line {len(self._entries)})'
            )
        if not 0 <= spent < math.inf:
            raise ValueError(
                f"'spent' needs to be non-negative and finite (got {spent})"
            )
        if action == 'step' and spent < self.spent:
            raise ValueError(
                f"'spent' can't fall in a step (got {spent}, after "
                f'{self.spent})'
            )
        if spent > self.budget:
            raise BudgetExceededError(
                f'{action} would spend {spent:.6g} of a budget of '
                f'{self.budget:.6g}'
            )
        before = self._entries[-1].link if self._entries else ''
        request = {} if request is None else request
        entry = LedgerEntry(
            action,
            float(spent),
            request,
            data,
            _link(before, action, float(spent), request, data),
        )
        self._entries.append(entry)
        return entry

    def state_dict(self) -> dict[str, Any]:
        """The budget and all lines, plain."""
        return {
            'budget': self.budget,
            'entries': [entry.to_dict() for entry in self._entries],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a saved ledger that continues this one.

        Args:
            state (dict): of :meth:`state_dict`.

        Raises:
            ValueError: if the budget differs, a line was changed, or the
                state does not begin with the present lines.
        """
        self._entries = self._checked(state)

    def _checked(self, state: dict[str, Any]) -> list[LedgerEntry]:
        if state['budget'] != self.budget:
            raise ValueError(
                f"the state's budget needs to be {self.budget} "
                f'(got {state["budget"]})'
            )
        made = RemovalLedger(self.budget)
        for number, line in enumerate(state['entries']):
            entry = made.record(
                line['action'], line['spent'], line['request'], line['data']
            )
            if entry.link != line['link']:
                raise ValueError(f'line {number} of the state was changed')
        if made._entries[: len(self._entries)] != self._entries:
            raise ValueError(
                'the state does not continue the present lines: a ledger '
                "can't be turned back"
            )
        return made._entries

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(spent={self.spent:.6g}, '
            f'budget={self.budget:.6g}, lines={len(self._entries)})'
        )


def fingerprint(salt: str, data: Data) -> str:
    """A hash of what a graph holds, for a ledger.

    Args:
        salt (str): a secret, so that small graphs can't be guessed.
        data (Data): the graph.
    """
    digest = hashlib.sha256(salt.encode())
    for key in ('edge_index', 'edge_weight', 'x', 'n_id', 'y', 'shard'):
        value = data.get(key)
        if value is not None:
            digest.update(key.encode())
            digest.update(value.contiguous().numpy())
    return digest.hexdigest()


def fingerprints(prints: dict[int, str]) -> str:
    """A hash of the fingerprints of many graphs.

    Args:
        prints (dict): the fingerprint of every graph, by name.
    """
    lines = [f'{i} {prints[i]}' for i in sorted(prints)]
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def _link(
    before: str,
    action: str,
    spent: float,
    request: dict[str, Any],
    data: str,
) -> str:
    line = json.dumps([before, action, spent, request, data], sort_keys=True)
    return hashlib.sha256(line.encode()).hexdigest()
