"""Desk for erasure requests: one durable file, over all models.

A model writes the references of requests (:func:`reference`) into the line of
its own ledger that records their removal. What was not finished when a process
died is looked up there, also by an older copy of the desk's file: no removal
is lost or done twice.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from torch_geometric.data import Data

from pyg_trust import files
from pyg_trust._checks import OneOf, validated
from pyg_trust.erasure import fields, queries
from pyg_trust.erasure.batches import Batches, reference
from pyg_trust.erasure.places import Names, Place
from pyg_trust.erasure.reports import (
    DeskPlan,
    DeskStatus,
    ErasureReport,
    Policy,
)
from pyg_trust.erasure.store import Store
from pyg_trust.ledger import RemovalLedger
from pyg_trust.removal import RemovalRequest, requested

__all__ = ['ErasureDesk']


class ErasureDesk(Batches):
    """Queue erasure requests for all models in one durable file.

    .. code-block:: python

        desk = ErasureDesk('erasure.db', zone='Europe/Berlin')
        desk.register('scores', model, save='scores.pt')
        desk.recipient('partner export')
        desk.add(RemovalRequest(nodes=[12]))
        desk.run()                  # every hour, by cron or systemd
        print(desk.status())

    A request is complete when every model has forgotten its items and every
    recipient has confirmed. The file then no longer has the ids of its items,
    but the ledgers of the models do, as evidence: use ids that mean nothing
    elsewhere. The fields of reports are named as in OpenDSR. Due dates follow
    the regulation, in the time zone of the controller, who decides who may
    ask, which exceptions apply, and what to answer.

    A removal that takes less than a second, or was never timed, is done at
    once. Others wait for further requests as long as due dates allow, since a
    batch of requests trains each affected part of a model only once.

    Args:
        path (str or Path): the path of the file, created if it does not exist.
        zone (str, optional): the controller's time zone, such as
            ``'Europe/Berlin'``; by default that of the file, and UTC for a new
            one.
        clock (Callable): returns the time in seconds since 1970.
            (default: :func:`time.time`)
        policy (Policy, optional): the rules of the desk, which the file keeps;
            by default those of the file.

    Raises:
        ValueError: if the zone is unknown, or the file is of another program
            or zone, has SQLite's write-ahead log, or can be read by others.
    """

    @validated
    def __init__(
        self,
        path: str | Path,
        *,
        zone: str | None = None,
        clock: Callable[[], float] = time.time,
        policy: Policy | None = None,
    ) -> None:
        if zone is not None:
            fields.find_zone(zone)
        self._clock = clock
        self._places: dict[str, Place] = {}
        self._finished: list[str] = []
        self.path = Path(path).absolute()
        self._store = Store(self.path)
        self._sql, self._one = self._store.rows, self._store.one
        held = {'zone': zone or 'UTC', 'policy': json.dumps(asdict(Policy()))}
        with self._store.change():
            for name, value in held.items():
                self._sql(queries.NEW_SETTING, name, value)
            if policy is not None:
                text = json.dumps(asdict(policy))
                self._sql(queries.SET_POLICY, text)
        (known,) = self._one(queries.SETTING, 'zone')
        if zone not in (None, known):
            self.close()
            raise ValueError(
                f"'zone' needs to be {known!r}, by which the dates in "
                f'{self.path} were made (got {zone!r})'
            )
        self.zone = fields.find_zone(known)
        (text,) = self._one(queries.SETTING, 'policy')
        self.policy = Policy(**json.loads(text))

    def __repr__(self) -> str:
        return f"ErasureDesk('{self.path.name}', zone='{self.zone}')"

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    # Who has to forget ######################################################

    @validated
    def register(
        self,
        name: str,
        model: Any,
        *,
        save: str | Path | None = None,
        names: Names | None = None,
        data: Callable[[], Data] | None = None,
        fresh: bool = False,
    ) -> None:
        """Register a model; call it every time the desk is opened.

        A request waits for every model whose name was ever registered.

        Args:
            name (str): the name of the model in reports.
            model (Any): the fitted model, whose ``remove()`` takes a request
                and ``reference``; also ``on_report`` if it has its own folder.
            save (str or Path, optional): the file to save the model in; left
                out for a model with its own folder.
            names (Callable, optional): translates a request from the desk's
                ids to the model's, or returns :obj:`None` if the model holds
                none of it; by default ids are the same. Keep the data it needs
                until the last backup is deleted.
            data (Callable, optional): for a private model, returns the graph
                that it was fitted on; people removed since may be missing.
            fresh (bool): whether the model was fitted again, without the
                people of completed requests. People of open requests are
                then removed again. (default: :obj:`False`)
        """
        most = self.policy.coverage_epsilon
        file = None if save is None else Path(save).absolute()
        place = Place(model, file, names, data, most)
        if name in self._places:
            raise ValueError(f"'name' is taken: {name!r} is registered")
        self._add_place(name, True)
        self._places[name] = place
        with self._store.change():
            for batch, _ in self._missing(name) if fresh else ():
                # Who is not forgotten everywhere may be in the new fit.
                self._sql(queries.ASK_ANEW, batch)
                self._sql(queries.SUPERSEDE, batch)

    @validated
    def recipient(self, name: str) -> None:
        """Register a recipient of the data, by a name for reports.

        A request stays open until :meth:`done` records the recipient's answer.
        """
        self._add_place(name, False)

    def _add_place(self, name: str, is_model: bool) -> None:
        fields.check_text('name', name)
        with self._store.change():
            self._sql(queries.NEW_PLACE, name, is_model)
            if self._one(queries.KIND, name) != (is_model,):
                raise ValueError(
                    f"'name' is taken: {name!r} is "
                    f'{"a recipient" if is_model else "a model"}'
                )
            # Requests that wait concern it, too.
            self._sql(queries.NEW_TASKS, name)

    # Requests ###############################################################

    @validated
    def add(
        self,
        request: RemovalRequest | Any,
        *,
        subject_request_id: str | None = None,
        regulation: Annotated[str, OneOf(fields.PERIODS)] = 'gdpr',
        received_time: Any = None,
        immediately: bool = False,
        exact: bool = False,
    ) -> ErasureReport:
        """Store a request; it is on disk when the call returns.

        Adding a request a second time, with its id, changes nothing. The id of
        a closed request is refused once its items are deleted.

        Args:
            request (RemovalRequest or list[int]): the items to forget; a list
                has ids of nodes. All models use the same ids, unless ``names``
                of :meth:`register` translates them for a model.
            subject_request_id (str, optional): a UUID; by default a new one.
            regulation (str): the regulation that sets the due date:
                ``'gdpr'``, a month, or ``'ccpa'``, 45 days.
                (default: :obj:`'gdpr'`)
            received_time (str or datetime, optional): the time of receipt,
                with a time zone (RFC 3339), from which the period runs; by
                default now.
            immediately (bool): whether to start without waiting for other
                requests. (default: :obj:`False`)
            exact (bool): whether to remove exactly, even if a private model's
                noise would suffice. (default: :obj:`False`)
        """
        request = requested(request)
        number, now = fields.read_id(subject_request_id), self._now()
        came = now if received_time is None else received_time
        came = fields.read('received_time', came)
        if came > now:
            raise ValueError(
                "'received_time' can't be in the future (got "
                f'{fields.written(came)}, now is {fields.written(now)})'
            )
        due = fields.due(came, self.zone, regulation)
        content = {'regulation': regulation, 'immediately': immediately}
        content |= {'exact': exact, 'names': json.dumps(request.to_dict())}
        content['received'] = fields.written(came)
        with self._store.change():
            known = self._request(number)
            if known and known['names'] is None:
                # It is closed: the tombstone can tell, as long as it stays.
                kept = self._one(queries.TOMBSTONE, number)
                if not kept:
                    raise ValueError(
                        f"'subject_request_id' {number} is of a request that "
                        f'is closed ({known["status"]}): report() returns its '
                        'evidence, and a new request needs a new id'
                    )
                (known['names'],) = kept
            if not known:
                values = (number, *content.values(), fields.written(due))
                self._sql(queries.NEW_REQUEST, *values)
                self._sql(queries.NEW_TASKS, number)
                if not self._one('SELECT 1 FROM place'):
                    raise ValueError(
                        'a model or recipient needs to be registered first: '
                        'the request would reach nobody'
                    )
            if any(
                known.get(name, value) != value
                for name, value in content.items()
                if name != 'received' or received_time is not None
            ):
                raise ValueError(
                    f"'subject_request_id' {number} is of a request with "
                    'other content: a new request needs a new one'
                )
        return self.report(number)

    @validated
    def done(self, subject_request_id: str, name: str) -> ErasureReport:
        """Record that a recipient or model owner erased a request's items.

        The owner of a model does so by fitting it again without the items.

        Args:
            subject_request_id (str): the id of the request.
            name (str): the name of the recipient or model.
        """
        with self._store.change():
            number = self._open(subject_request_id)
            (state,) = self._one(queries.STATE, number, name) or ('none',)
            if state in ('none', 'in_progress'):
                raise ValueError(
                    "'name' needs to be registered for this request, with a "
                    f'task that is not in progress (got {name!r}, whose task '
                    f'is {state})'
                )
            if state != 'done':
                self._end_task(number, name, 'by its owner')
            self._complete()
        return self.report(number)

    @validated
    def hold(
        self, subject_request_id: str, reason: str, *, paused: bool = False
    ) -> ErasureReport:
        """Hold a request by an exception of GDPR article 17(3), or pause it.

        A model that has begun the removal finishes it.

        Args:
            subject_request_id (str): the id of the request.
            reason (str): the reason, without names of people, as it is kept.
            paused (bool): whether to pause the request instead, while the
                sender's identity is in doubt; the due date stays.
                (default: :obj:`False`)
        """
        fields.check_text('reason', reason)
        how = 'paused' if paused else 'held'
        return self._halt(subject_request_id, how, reason)

    @validated
    def resume(self, subject_request_id: str) -> ErasureReport:
        """Resume a request that was held, paused, or refused by a model."""
        return self._halt(subject_request_id, '', '')

    def _halt(self, number: str, how: str, reason: str) -> ErasureReport:
        with self._store.change():
            number = self._open(number)
            self._sql(queries.HALT, how, reason, number)
            if not how:
                self._sql(queries.ASK_AGAIN, number)
        return self.report(number)

    @validated
    def cancel(self, subject_request_id: str, reason: str) -> ErasureReport:
        """Cancel or refuse a request; its item ids are deleted from the file.

        No data are removed. Models that have forgotten it stay as they are.

        Args:
            subject_request_id (str): the id of the request.
            reason (str): the reason, without names of people, as it is kept.
        """
        fields.check_text('reason', reason)
        with self._store.change():
            number = self._open(subject_request_id)
            if self._one(queries.BUSY, number):
                raise ValueError(
                    "'subject_request_id' is of a request that a model is "
                    'working on: wait for run() to end, then cancel the rest'
                )
            self._close_request(number, 'cancelled', reason)
        return self.report(number)

    # Work ###################################################################

    def plan(self) -> DeskPlan:
        """Plan the next :meth:`run`, model by model; change nothing."""
        now = self._now()
        return DeskPlan(tuple(self._planned(n, now)[0] for n in self._places))

    @validated
    def run(self, *, confirm: bool = False) -> tuple[ErasureReport, ...]:
        """Carry out the removals that are due; call it every hour.

        Finishes interrupted batches, starts those that are due, and deletes
        the item ids of complete requests. If a model fails, the others go on.

        Args:
            confirm (bool): whether to carry out batches of more than
                ``max_share`` of a model, too. Otherwise there is a warning,
                and ``status().unconfirmed`` lists their requests.
                (default: :obj:`False`)

        Returns:
            tuple[ErasureReport]: the reports of requests that became complete.

        Raises:
            RuntimeError: if a model failed; the work of the others is kept.
        """
        now, failed = self._now(), {}
        with files.exclusive(self.path):
            self._finished = []
            with self._store.change():
                self._sql(queries.EXPIRED, fields.written(now))
            for name in self._places:
                try:
                    self._work(name, now, confirm)
                except Exception as error:
                    failed[name] = error
        if failed:
            raise RuntimeError(
                'finished work is kept; repair this and call run() again: '
                + '; '.join(f'{name!r}: {failed[name]}' for name in failed)
            ) from next(iter(failed.values()))
        return tuple(map(self.report, self._finished))

    # What can be seen #######################################################

    def ledgers(self) -> dict[str, RemovalLedger]:
        """Return the removal ledgers of the registered models, by name.

        :func:`check_erasure` reads ``json.dumps(ledger.state_dict())``.
        """
        return {name: each.ledger for name, each in self._places.items()}

    @validated
    def report(self, subject_request_id: str) -> ErasureReport:
        """Return the status and evidence of a request, without its items."""
        number = fields.read_id(subject_request_id)
        now = fields.written(self._now())
        known = self._store.named(queries.REPORT, now, number)
        if not known:
            raise ValueError(
                "'subject_request_id' needs to be one of the desk "
                f'(got {number})'
            )
        tasks = self._store.named(queries.EVIDENCE, number)
        for task in tasks:
            task['is_model'] = bool(task['is_model'])
            has_line = task.pop('batch') is not None
            given = reference(task['name'], number) if has_line else None
            task['reference'] = given
            task['promise'] = json.loads(task['promise'] or '{}')
        known[0]['overdue'] = bool(known[0]['overdue'])
        return ErasureReport(**known[0], tasks=tuple(tasks))

    def status(self) -> DeskStatus:
        """Count requests by status, and list those that need attention."""
        now = fields.written(self._now())
        late = f"{queries.OPEN} AND halted != 'held' AND due < ? ORDER BY due"
        overdue = self._sql(f'SELECT id FROM request {late}', now)
        left = f'SELECT id, due FROM request {queries.OPEN} ORDER BY due'
        waiting = tuple(self._sql(left))
        names = ('pending', 'in_progress', 'completed', 'cancelled')
        return DeskStatus(
            tuple(number for (number,) in overdue),
            tuple(self._sql(queries.REFUSED)),
            tuple(self._sql(queries.HALTED)),
            tuple(self._sql(queries.UNCONFIRMED)),
            waiting,
            waiting[0][1] if waiting else None,
            **{name: self._one(queries.COUNT, name)[0] for name in names},
        )

    # Private ################################################################

    def _open(self, number: str) -> str:
        number = fields.read_id(number)
        status = self._request(number).get('status', 'unknown')
        if status not in ('pending', 'in_progress'):
            raise ValueError(
                "'subject_request_id' needs to be an open request "
                f'(got {number}, which is {status})'
            )
        return number
