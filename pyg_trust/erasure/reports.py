"""Reports of an erasure desk: plans, counts, and the evidence of a request."""

from dataclasses import dataclass
from typing import Any

from pyg_trust.report import Guarantee, Report, provenance

#: Under which its evidence is in a trust report.
PROCEDURE = 'erasure of a request'
_LIMITS = (
    'the raw data, and everything that was made from them outside of the '
    'models and recipients that are listed',
    'predictions that were served, and copies of older models and files',
    'what a file system, a disk or a snapshot keeps of files that were '
    'replaced',
    'whether this answers the request in law: the controller decides that',
)


@dataclass(frozen=True)
class DeskPlan(Report):
    """What :meth:`~pyg_trust.erasure.ErasureDesk.run` would do now.

    Args:
        models (tuple[dict, ...]): for each model its ``mode`` (``'now'``,
            ``'batch'``, or ``'nothing waits'``), the number of ``requests``,
            the ``share`` of its nodes or edges, the ``seconds`` it takes, the
            first date that is ``due``, the time when it ``starts``, whether it
            ``starts_now``, and whether it ``needs_confirmation``.
    """

    models: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class DeskStatus(Report):
    """Counts of a desk, and requests that need somebody.

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
    """A request, and the evidence of its erasure. It names nobody.

    Args:
        subject_request_id (str): of the request.
        subject_request_type (str): ``'erasure'``.
        regulation (str): ``'gdpr'`` or ``'ccpa'``.
        zone (str): of the controller, by which it is dated.
        submitted_time (str, optional): when it was sent.
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
            model's ``promise``.
        backups_until (str, optional): until when the desk keeps the names, as
            backups of models are kept so long.
    """

    subject_request_id: str
    subject_request_type: str
    regulation: str
    zone: str
    submitted_time: str | None
    received_time: str
    expected_completion_time: str
    completed_time: str | None
    request_status: str
    halted: str
    reason: str
    overdue: bool
    tasks: tuple[dict[str, Any], ...]
    backups_until: str | None

    def guarantee(self) -> Guarantee:
        """The erasure in the words of a trust report.

        Raises:
            ValueError: if the request is not complete.
        """
        if self.request_status != 'completed':
            raise ValueError(
                'the request needs to be complete: nothing can be promised of '
                f'one that is {self.request_status}'
            )
        models = [task for task in self.tasks if task['is_model']]
        others = len(self.tasks) - len(models)
        late = 'after' if self.overdue else 'before'
        kept = (
            f'backups of the models: until {self.backups_until} one that is '
            'restored forgets again once the desk runs',
        ) * (self.backups_until is not None)
        said = [
            f'{task["name"]}: {task["promise"]["promise"]}'
            for task in models
            if task['promise']
        ]
        return Guarantee(
            PROCEDURE,
            f'What request {self.subject_request_id} named was removed from '
            f'{len(models)} models, and {others} others say that they are '
            f'done, by {self.completed_time}, {late} its date '
            f'{self.expected_completion_time}.',
            assumptions=(
                'every model that learnt from the person, and everybody who '
                'has their data, was registered',
                'the names of the request are all that belongs to the person',
                *said,
            ),
            not_covered=(*kept, *_LIMITS),
            kind='removal',
            values=self.to_dict(),
            checked=tuple(
                f'{task["name"]}: batch {task["reference"]} in its ledger'
                for task in models
                if task['reference']
            ),
            origin=provenance(zone=self.zone),
        )
