"""Batches of a desk: when they begin, how they end, and what was refused.

A model writes the references of requests (:func:`reference`) into the line of
its own ledger that records their removal, so that a batch that was not
finished is looked up there.
"""

import hashlib
import json
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from pyg_trust._checks import Number
from pyg_trust.erasure import fields, queries
from pyg_trust.erasure.checking import IN_LEDGER
from pyg_trust.erasure.places import Place, read
from pyg_trust.erasure.reports import Policy
from pyg_trust.erasure.store import Store
from pyg_trust.removal import RemovalRequest

__all__ = ['Batches', 'reference']

# A shorter removal is not waited for.
_QUICK = 1.0
_HOUR = 3600.0
# Seconds since 1970, to the year 9000.
_TIME = Number(0.0, 2.2e11)


def reference(place: str, number: str) -> str:
    """Return the 32 digits that stand for a request in a model's ledger."""
    text = json.dumps([place, number])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Batches:
    """Base of a desk: the batches of its models."""

    policy: Policy
    _clock: Callable[[], float]
    _places: dict[str, Place]
    _finished: list[str]
    _store: Store
    _sql: Callable[..., list[tuple[Any, ...]]]
    _one: Callable[..., tuple[Any, ...]]

    def _work(self, name: str, now: datetime, confirm: bool) -> None:
        for batch, *_ in self._sql(queries.BATCHES, name, 'in_progress'):
            self._perform(name, batch)
        self._repeat(name)
        self._take_over(name)
        if self._places[name].covers:
            note = 'noise is not exact: fit again without it, then done()'
            with self._store.change():
                self._sql(queries.REFUSE_EXACT, note, name)
        row, waiting = self._planned(name, now)
        if not row['starts_now']:
            return
        if row['needs_confirmation'] and not confirm:
            with self._store.change():
                for number, _ in waiting:
                    self._sql(queries.ASK_TO_CONFIRM, number, name)
            warnings.warn(
                f'{len(waiting)} requests wait to be confirmed: together they '
                f'name {row["share"]:.1%} of {name!r}, and max_share of the '
                f'policy is {self.policy.max_share:.1%}. The first is due on '
                f'{row["due"]}. Look at them, then call run(confirm=True)',
                stacklevel=4,
            )
            return
        with self._store.change():
            # Others may have cancelled, held or done some meanwhile.
            still = {number for number, *_ in self._sql(queries.WAITING, name)}
            taken = []
            for number, request in waiting:
                if number in still and request is not None:
                    taken.append(number)
                elif number in still:
                    self._end_task(number, name, 'not in it')
            self._complete()
            batch = self._begin(name, taken, row['mode']) if taken else ''
        if batch:
            self._perform(name, batch)

    def _planned(
        self, name: str, now: datetime
    ) -> tuple[dict[str, Any], list[tuple[str, RemovalRequest | None]]]:
        # The requests that wait for a model, and when they are due to begin.
        place, rows = self._places[name], self._sql(queries.WAITING, name)
        waiting = [(n, place.named(read(names))) for n, names, *_ in rows]
        named = [request for _, request in waiting if request is not None]
        share, seconds = 0.0, 0.0
        if named:
            whole = RemovalRequest.batch(named)
            share, known = place.share(whole), place.seconds(whole)
            if known is None:
                (known,) = self._one(queries.SECONDS, name) or (None,)
            seconds = known
        row: dict[str, Any] = {'model': name, 'mode': 'nothing waits'}
        row.update(requests=len(rows), share=share, seconds=seconds, due='')
        row.update(starts='', starts_now=False, needs_confirmation=False)
        if not rows:
            return row, waiting
        due = fields.read('due', rows[0][2])
        # Other models may be working on the request.
        (others,) = self._one(queries.OTHERS, name)
        busy = max(_HOUR, (seconds or 0) + others)
        start, mode = (
            due - timedelta(seconds=self.policy.reserve * busy),
            'batch',
        )
        if (seconds or 0) < _QUICK or any(each[3] for each in rows):
            start, mode = now, 'covered' if place.covers else 'now'
        row.update(
            mode=mode,
            due=fields.written(due),
            starts=fields.written(start),
            starts_now=start <= now,
            needs_confirmation=share > self.policy.max_share,
        )
        return row, waiting

    def _begin(self, name: str, requests: Sequence[str], mode: str) -> str:
        batch = secrets.token_hex(16)
        self._sql(queries.NEW_BATCH, batch, name, mode)
        for number in requests:
            self._sql(queries.TAKE, mode, batch, number, name)
            self._sql(queries.BEGIN, number)
        return batch

    def _recorded(self, name: str, numbers: Iterable[str]) -> list[str]:
        # The requests that the ledger of a model says were carried out.
        ledger = self._places[name].ledger
        return [n for n in numbers if ledger.refers_to(reference(name, n))]

    def _take_over(self, name: str) -> None:
        # An older file of the desk knows less than the ledger.
        waiting = [number for number, *_ in self._sql(queries.WAITING, name)]
        if waiting:
            self._places[name].catch_up()
        if done := self._recorded(name, waiting):
            with self._store.change():
                batch = self._begin(name, done, IN_LEDGER)
            self._perform(name, batch)

    def _perform(self, name: str, batch: str) -> None:
        # Finish a batch that was begun. Requests that end in different ways
        # are divided, and each part is tried by itself.
        place, started = self._places[name], self._clock()
        place.catch_up()
        done = self._recorded(name, dict(self._sql(queries.TASKS, batch)))
        if self._divided(name, batch, done):
            return
        if done:
            self._finish(name, batch)
            return
        # Held since the process died: nothing has gone yet.
        self._sql(queries.LEAVE_HALTED, batch)
        named: dict[str, RemovalRequest] = {}
        for number, names in self._sql(queries.TASKS, batch):
            request = place.named(read(names)) if names else None
            if request is not None:
                named[number] = request
        if self._divided(name, batch, [*named]):
            return
        if not named:
            self._finish(name, batch, 'not in it')
            return
        (mode,) = self._one('SELECT mode FROM batch WHERE id = ?', batch)
        ids = ''.join(reference(name, number) for number in named)
        try:
            self._promised(batch, None)
            counts = place.forget(
                [*named.values()],
                ids,
                lambda text: self._promised(batch, text),
            )
        except Exception as error:
            if self._recorded(name, named):
                raise
            is_refusal = isinstance(error, ValueError)
            half = [*named][: len(named) // 2]
            if is_refusal and self._divided(name, batch, half):
                return
            if mode != 'again':
                self._refuse(
                    name, batch, [*named] if is_refusal else [], error
                )
            if mode == 'again' or not is_refusal:
                raise
            return
        there = [n for n, count in zip(named, counts, strict=True) if count]
        if self._divided(name, batch, there):
            return
        if there:
            sizes = [len([*request.items()]) for request in named.values()]
            left = [s - t for s, t in zip(sizes, counts, strict=True)]
            seconds = max(0.0, self._clock() - started)
            self._finish(name, batch, seconds=seconds, left_out=left)
            return
        # Nothing of these requests is in the model.
        before = [n for n in named if place.has_removed(named[n])]
        if self._divided(name, batch, before):
            return
        if before or mode == 'again':
            how = 'removed before' if before else 'not in it'
            self._finish(name, batch, how)
            return
        why = 'nothing of it is there: it never was. Cancel it, or done()'
        self._refuse(name, batch, [*named], why)

    def _divided(self, name: str, batch: str, part: Sequence[str]) -> bool:
        # Perform a part of a batch and the rest by themselves, if there are
        # both.
        every = [number for number, _ in self._sql(queries.TASKS, batch)]
        rest = [number for number in every if number not in part]
        if not part or not rest:
            return False
        with self._store.change():
            (mode,) = self._one('SELECT mode FROM batch WHERE id = ?', batch)
            made = [self._begin(name, each, mode) for each in (part, rest)]
            self._drop(batch)
        for each in made:
            self._perform(name, each)
        return True

    def _drop(self, batch: str) -> None:
        self._sql(queries.UNDO, batch)
        self._sql('DELETE FROM batch WHERE id = ?', batch)

    def _refuse(
        self, name: str, batch: str, numbers: Sequence[str], why: object
    ) -> None:
        # Nothing was changed. Numbers in a message are names.
        note = re.sub(r'\d+', '#', str(why))
        with self._store.change():
            self._drop(batch)
            for number in numbers:
                self._sql(queries.REFUSE, note, number, name)

    def _finish(
        self,
        name: str,
        batch: str,
        how: str = '',
        seconds: float | None = None,
        left_out: Sequence[int] = (),
    ) -> None:
        place = self._places[name]
        place.keep()
        with self._store.change():
            if not how and self._one(queries.PROMISE, batch) == (None,):
                how = IN_LEDGER
            head = place.ledger.head
            self._sql(queries.END_BATCH, head, seconds, how, batch)
            tasks = self._sql(queries.TASKS, batch)
            counts = left_out or [0] * len(tasks)
            for (number, _), count in zip(tasks, counts, strict=True):
                note = f'{count} of its items were not there' if count else ''
                self._end_task(number, name, how, note)
            self._complete()

    def _promised(self, batch: str, promise: str | None) -> None:
        with self._store.change():
            self._sql(queries.PROMISED, promise, batch)

    def _missing(self, name: str) -> list[tuple[str, bool]]:
        # Batches that the desk has done, and the model has not; and whether
        # there was nothing to remove.
        ledger, missing = self._places[name].ledger, []
        kept = self._one(queries.SETTING, f'kept by {name}')
        if kept and not ledger.has(*kept):
            # An older state, or another fit: look for all of them.
            self._sql(queries.ASK_AGAIN_FOR, name)
        for batch, head, stated in self._sql(queries.BATCHES, name, 'done'):
            if not ledger.has(head):
                tasks = [n for n, _ in self._sql(queries.TASKS, batch)]
                if len(self._recorded(name, tasks)) < len(tasks):
                    missing.append((batch, bool(stated)))
        return missing

    def _repeat(self, name: str) -> None:
        # A model that was restored forgets again.
        if self._missing(name):
            # Another object may have done them, and saved the model.
            self._places[name].catch_up(whole=True)
        missing, lost = {}, []
        for batch, stated in self._missing(name):
            missing[batch] = dict(self._sql(queries.TASKS, batch))
            if None in missing[batch].values() and not stated:
                lost.append(batch)
        if lost:
            raise ValueError(
                f'the model is older than the batches {", ".join(lost)}, '
                "which cannot be repeated: keep 'backup_days' >= your "
                'backups. Fit it again without those people, and register it '
                'with fresh=True'
            )
        for batch, numbers in missing.items():
            with self._store.change():
                self._sql(queries.REPEAT, batch)
                for number in numbers:
                    self._sql(queries.TAKE, 'again', batch, number, name)
            self._perform(name, batch)
        if not missing and self._sql(queries.BATCHES, name, 'done'):
            # A head fixes all lines before it: these are not looked for again.
            with self._store.change():
                self._sql(queries.KEEP, name)
                head = self._places[name].ledger.head
                self._sql(queries.KEPT_UP_TO, f'kept by {name}', head)

    # Completion #############################################################

    def _end_task(
        self, number: str, name: str, how: str, note: str = ''
    ) -> None:
        now = fields.written(self._now())
        self._sql(queries.END_TASK, now, note, how, number, name)

    def _complete(self) -> None:
        for (number,) in self._sql(queries.COMPLETE):
            self._close_request(number, 'completed', '')
            self._finished.append(number)

    def _close_request(self, number: str, status: str, reason: str) -> None:
        known, until = self._request(number), None
        # A clock may have been set back.
        end = max(self._now(), fields.read('received', known['received']))
        if self.policy.backup_days and self._one(queries.WAS_TAKEN, number):
            until = fields.written(end + timedelta(self.policy.backup_days))
            values = (number, known['names'], until)
            self._sql('INSERT INTO tombstone VALUES (?, ?, ?)', *values)
        finished = fields.written(end)
        self._sql(queries.CLOSE, status, reason, finished, until, number)
        # The error of a model may quote what was named.
        self._sql(queries.FORGET_NOTES, number)

    def _now(self) -> datetime:
        now = _TIME('clock', self._clock())
        return datetime.fromtimestamp(now, timezone.utc).replace(microsecond=0)

    def _request(self, number: str) -> dict[str, Any]:
        rows = self._store.named(queries.REQUEST, number)
        return rows[0] if rows else {}
