"""Rules and reports of a desk: plans, counts, and evidence of a request."""

from dataclasses import dataclass
from typing import Annotated, Any

from pyg_trust._checks import Int, Number, validated
from pyg_trust.report import Report
from pyg_trust.report.charts import Chart


@validated
@dataclass(frozen=True)
class Policy:
    r"""Rules of a desk.

    Args:
        reserve (float): a batch begins so many times its own duration and that
            of the longest batches of other models, and at least so many
            hours, before its first date. (default: :obj:`3.0`)
        backup_days (int): how long backups of the models are kept. So long
            the desk keeps the names of completed requests, as a model that is
            restored has to forget them again. (default: :obj:`0`)
        max_share (float): a batch that names more than this share of a model's
            nodes or edges needs to be confirmed. (default: :obj:`0.05`)
        coverage_epsilon (float): a private model has forgotten people by its
            noise alone up to this :math:`\epsilon`, all of them together; 0
            for never. (default: :obj:`1.0`)
    """

    reserve: Annotated[float, Number(0.0, closed='low')] = 3.0
    backup_days: Annotated[int, Int(0, 36500)] = 0
    max_share: Annotated[float, Number(0.0, 1.0, closed='high')] = 0.05
    coverage_epsilon: Annotated[float, Number(0.0, closed='low')] = 1.0


@dataclass(frozen=True)
class DeskPlan(Report):
    """Plan of the next :meth:`~pyg_trust.erasure.ErasureDesk.run`.

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
    """Counts of a desk, and requests that need attention.

    Args:
        overdue (tuple[str, ...]): ids whose date has passed, the first first.
        refused (tuple[tuple[str, str], ...]): ids, and the models that
            refused them.
        halted (tuple[tuple[str, str], ...]): ids, and how: held or paused.
        next_due (str, optional): the first date of an open request.
        pending (int): requests that nobody has begun with.
        in_progress (int): requests that some, but not all, have done.
        completed (int): requests that are done.
        cancelled (int): requests that were withdrawn or refused.
    """

    overdue: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    halted: tuple[tuple[str, str], ...]
    next_due: str | None
    pending: int
    in_progress: int
    completed: int
    cancelled: int


@dataclass(frozen=True)
class ErasureReport(Report):
    r"""A request, and the evidence of its erasure. It names nobody.

    Args:
        subject_request_id (str): of the request.
        subject_request_type (str): ``'erasure'``.
        regulation (str): ``'gdpr'`` or ``'ccpa'``.
        zone (str): of the controller, by which it is dated.
        received_time (str): when it came.
        expected_completion_time (str): by when it has to be done.
        completed_time (str, optional): when it was done.
        request_status (str): ``'pending'``, ``'in_progress'``,
            ``'completed'`` or ``'cancelled'``.
        halted (str): ``'held'``, ``'paused'`` or empty.
        reason (str): why it was halted or cancelled.
        overdue (bool): whether its date passed before it was done.
        tasks (tuple[dict, ...]): by ``name`` of a model or recipient
            (``is_model``): its ``state``, the ``mode``, when it ``finished``,
            the ``note`` of a refusal, the ``reference`` that the line of the
            model's ledger has, the ``head`` of this ledger after it, and the
            model's ``promise``, with :math:`\mu`, :math:`\epsilon` and
            :math:`\delta` if its noise covers it.
        backups_until (str, optional): until when the desk keeps the names, as
            backups of models are kept so long.
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

    def chart(self) -> Chart:
        """Draw models and recipients that are done, and others."""
        done = sum(task['state'] == 'done' for task in self.tasks)
        return Chart(
            f'{done} of {len(self.tasks)} models and recipients are done',
            bars={'done': done, 'open': len(self.tasks) - done},
            xlabel='models and recipients',
        )
