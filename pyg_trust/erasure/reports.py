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
        reserve (float): a factor: a batch starts this many times its expected
            duration before its earliest due date. The durations of the longest
            batches of all other models are added to it; the sum counts as one
            hour if it is less. (default: :obj:`3.0`)
        backup_days (int): the number of days that you keep backups of models.
            The desk keeps the items of a completed request for this time,
            since a restored model has to forget them again.
            (default: :obj:`0`)
        max_share (float): the largest share of a model's nodes or edges, in
            :math:`(0, 1]`, that a batch may remove without confirmation.
            (default: :obj:`0.05`)
        coverage_epsilon (float): the largest :math:`\epsilon`, for all removed
            people together, at which the noise in a private model alone counts
            as forgetting; 0 for never. (default: :obj:`1.0`)
    """

    reserve: Annotated[float, Number(0.0, closed='low')] = 3.0
    backup_days: Annotated[int, Int(0, 36500)] = 0
    max_share: Annotated[float, Number(0.0, 1.0, closed='high')] = 0.05
    coverage_epsilon: Annotated[float, Number(0.0, closed='low')] = 1.0


@dataclass(frozen=True)
class DeskPlan(Report):
    """Plan of the next :meth:`~pyg_trust.erasure.ErasureDesk.run`, by model.

    Args:
        models (tuple[dict, ...]): a dict for each model, with its name
            ``model``; the number of waiting ``requests``; the ``share`` of the
            model's nodes or edges in them; the expected ``seconds``, None if
            unknown; the earliest ``due`` date; the time when the batch
            ``starts``; whether it ``starts_now`` and ``needs_confirmation``;
            and the ``mode``: ``'now'``, ``'batch'`` (later), ``'covered'`` (a
            private model's noise suffices) or ``'nothing waits'``.
    """

    models: tuple[dict[str, Any], ...]

    def chart(self) -> Chart:
        """Draw the number of waiting requests of each model."""
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
        overdue (tuple[str, ...]): the ids of requests past their due date, the
            earliest first.
        refused (tuple[tuple[str, str], ...]): pairs of a request's id and the
            name of a model that refused it.
        halted (tuple[tuple[str, str], ...]): pairs of a request's id and
            ``'held'`` or ``'paused'``.
        unconfirmed (tuple[tuple[str, str], ...]): pairs of a request's id and
            a model that waits for ``run(confirm=True)``, as its next batch
            would remove more than the share ``max_share`` of the model.
        open (tuple[tuple[str, str], ...]): pairs of the id of each open
            request and its due date, the earliest first.
        next_due (str, optional): the earliest due date of an open request;
            :obj:`None` without one.
        pending (int): the number of open requests that no model has begun.
        in_progress (int): the number of open requests that a model has begun.
        completed (int): the number of completed requests.
        cancelled (int): the number of cancelled or refused requests.
    """

    overdue: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    halted: tuple[tuple[str, str], ...]
    unconfirmed: tuple[tuple[str, str], ...]
    open: tuple[tuple[str, str], ...]
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
    """Status of a request and evidence of its erasure, without its items.

    Times are texts in UTC, as ``'2026-01-31T12:00:00Z'``.

    Args:
        subject_request_id (str): the id of the request.
        subject_request_type (str): the type of the request, ``'erasure'``.
        regulation (str): the regulation, ``'gdpr'`` or ``'ccpa'``.
        zone (str): the controller's time zone, by which dates are computed.
        received_time (str): the time of receipt.
        expected_completion_time (str): the time by which the request has to be
            completed.
        completed_time (str, optional): the time of completion.
        request_status (str): ``'pending'``, ``'in_progress'``, ``'completed'``
            or ``'cancelled'``.
        halted (str): ``'held'``, ``'paused'`` or empty.
        reason (str): the reason for halting or cancelling the request.
        overdue (bool): whether the due date passed before completion.
        tasks (tuple[dict, ...]): a dict for each model or recipient, with the
            keys ``name``; ``is_model`` (bool); ``state``, such as
            ``'pending'`` or ``'done'``; ``mode``, how items were removed, such
            as ``'batch'``; ``finished``, the time when it was done, or None;
            and ``note``. For models also ``reference``, the id of the request
            in the ledger; ``head``, the hash of the ledger after the removal;
            and ``promise``, a dict with the guarantee, empty before it.
        backups_until (str, optional): the time until which the desk keeps the
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
        """Return a line: status, due date if open, and state of each task."""
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
        """Return an HTML page: what is erased, what is not, what to do."""
        return pages.erasure(self)

    def chart(self) -> Chart:
        """Draw the numbers of models and recipients that are done and open."""
        done = sum(task['state'] == 'done' for task in self.tasks)
        return Chart(
            f'{done} of {len(self.tasks)} models and recipients are done',
            bars={'done': done, 'open': len(self.tasks) - done},
            xlabel='models and recipients',
        )
