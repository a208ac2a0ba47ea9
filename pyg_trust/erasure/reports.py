"""Rules and reports of a desk: plans, counts, and evidence of a request."""

from dataclasses import dataclass
from typing import Annotated, Any

from pyg_trust._checks import Int, Number, validated
from pyg_trust.report import Report, pages
from pyg_trust.report.charts import Chart

__all__ = ['DeskPlan', 'DeskStatus', 'ErasureReport', 'Policy']


@validated
@dataclass(frozen=True)
class Policy:
    r"""Rules by which a desk schedules removals.

    Args:
        reserve (float): a batch begins this many times the expected duration
            before its first due date: that of itself and of the longest batch
            of each other model, but at least an hour. (default: :obj:`3.0`)
        backup_days (int): the number of days that backups of the models are
            kept. The desk keeps the items of completed requests as long, as a
            restored model has to forget them again. (default: :obj:`0`)
        max_share (float): the largest share of a model's nodes or edges that a
            batch may name without being confirmed. (default: :obj:`0.05`)
        coverage_epsilon (float): the largest :math:`\epsilon` at which a
            private model's noise alone counts as forgetting, for all people
            together; 0 for never. (default: :obj:`1.0`)
    """

    reserve: Annotated[float, Number(0.0, closed='low')] = 3.0
    backup_days: Annotated[int, Int(0, 36500)] = 0
    max_share: Annotated[float, Number(0.0, 1.0, closed='high')] = 0.05
    coverage_epsilon: Annotated[float, Number(0.0, closed='low')] = 1.0


@dataclass(frozen=True)
class DeskPlan(Report):
    """Plan of the next :meth:`~pyg_trust.erasure.ErasureDesk.run`, by model.

    Args:
        models (tuple[dict, ...]): for each model its ``mode`` (``'now'``,
            ``'batch'``, ``'covered'`` or ``'nothing waits'``), the number of
            ``requests``, the ``share`` of its nodes or edges, the ``seconds``
            it takes, the first date that is ``due``, the time when it
            ``starts``, whether it ``starts_now``, and whether it
            ``needs_confirmation``.
    """

    models: tuple[dict[str, Any], ...]

    def chart(self) -> Chart:
        """Draw the requests that wait, by model."""
        waiting = {each['model']: each['requests'] for each in self.models}
        return Chart(
            f'{sum(waiting.values())} removals wait for a batch',
            bars={'all models': sum(waiting.values()), **waiting},
            xlabel='requests',
        )


@dataclass(frozen=True)
class DeskStatus(Report):
    """Numbers of requests by status, and requests that need attention.

    Args:
        overdue (tuple[str, ...]): the ids of requests whose date has passed,
            the earliest first.
        refused (tuple[tuple[str, str], ...]): pairs of an id and a model that
            refused the request.
        halted (tuple[tuple[str, str], ...]): pairs of an id and ``'held'`` or
            ``'paused'``.
        unconfirmed (tuple[tuple[str, str], ...]): pairs of an id and a model
            whose next batch names more than ``max_share`` of the model, and
            waits for ``run(confirm=True)``.
        next_due (str, optional): the earliest date of an open request.
        pending (int): the number of requests that no model has begun; a
            recipient may have.
        in_progress (int): the number of open requests of which a model has
            begun a batch.
        completed (int): the number of completed requests.
        cancelled (int): the number of cancelled or refused requests.
    """

    overdue: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    halted: tuple[tuple[str, str], ...]
    unconfirmed: tuple[tuple[str, str], ...]
    next_due: str | None
    pending: int
    in_progress: int
    completed: int
    cancelled: int

    def __repr__(self) -> str:
        """Return all numbers in one line; ``print(status)`` lists the ids."""
        parts = [
            f'{name}={len(value) if isinstance(value, tuple) else value!r}'
            for name, value in vars(self).items()
        ]
        return f'{type(self).__name__}({", ".join(parts)})'


@dataclass(frozen=True)
class ErasureReport(Report):
    r"""Status of a request and evidence of its erasure, without its items.

    Args:
        subject_request_id (str): the id of the request.
        subject_request_type (str): the type of the request, ``'erasure'``.
        regulation (str): the regulation, ``'gdpr'`` or ``'ccpa'``.
        zone (str): the controller's time zone, by which dates are computed.
        received_time (str): the time of receipt.
        expected_completion_time (str): the date by which the request has to be
            completed.
        completed_time (str, optional): the time of completion.
        request_status (str): ``'pending'``, ``'in_progress'``,
            ``'completed'`` or ``'cancelled'``.
        halted (str): ``'held'``, ``'paused'`` or empty.
        reason (str): the reason for halting or cancelling the request.
        overdue (bool): whether the date passed before completion.
        tasks (tuple[dict, ...]): by ``name`` of a model or recipient
            (``is_model``): its ``state``, the ``mode``, when it ``finished``,
            the ``note`` of a refusal, the ``reference`` that the line of the
            model's ledger has, the ``head`` of this ledger after it, and the
            model's ``promise``, with :math:`\mu`, :math:`\epsilon` and
            :math:`\delta` if its noise covers it.
        backups_until (str, optional): the date until which the desk keeps the
            items, because backups of models are kept.
    """

    subject_request_id: str
    subject_request_type: str
    regulation: str
    zone: str
    received_time: str
    expected_completion_time: str
    completed_time: str | None
    request_status: str
    halted: str
    reason: str
    overdue: bool
    tasks: tuple[dict[str, Any], ...]
    backups_until: str | None

    def line(self) -> str:
        """Return one line that says where the request is."""
        parts = [f'{self.subject_request_id} is {self.request_status}']
        if self.request_status in ('pending', 'in_progress'):
            parts.append(f'due {self.expected_completion_time}')
        parts += [self.halted] * bool(self.halted)
        parts += ['OVERDUE'] * self.overdue
        tasks = [
            f'{t["name"]} {t["mode"] if t["state"] == "done" else t["state"]}'
            + (f' ({t["note"]})' if t['note'] else '')
            for t in self.tasks
        ]
        return ', '.join(parts) + f': {"; ".join(tasks)}'

    def to_html(self) -> str:
        """Make a page for people: what is erased, what is not, what to do."""
        return pages.erasure(self)

    def chart(self) -> Chart:
        """Draw models and recipients that are done, and others."""
        done = sum(task['state'] == 'done' for task in self.tasks)
        return Chart(
            f'{done} of {len(self.tasks)} models and recipients are done',
            bars={'done': done, 'open': len(self.tasks) - done},
            xlabel='models and recipients',
        )
