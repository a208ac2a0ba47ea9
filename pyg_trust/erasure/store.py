"""File of an erasure desk: a sqlite database that overwrites deleted rows.

Deleted and overwritten content is zeroed (``secure_delete``), the rollback
journal is truncated after every change, and temporary tables stay in memory. A
row that moves to another page leaves a copy of it behind, which sqlite counts
as free and does not zero: so the file is written anew whenever names go. A
write-ahead log keeps old content for an unknown time: it is refused. What a
file system, a backup or a snapshot keeps of earlier content is outside of it.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ['Store']

_APPLICATION = 0x70794572
_VERSION = 2
_PRAGMAS = (
    'journal_mode = TRUNCATE',
    'secure_delete = ON',
    'synchronous = FULL',
    'foreign_keys = ON',
    'temp_store = MEMORY',
)
_SCHEMA = f"""CREATE TABLE IF NOT EXISTS setting
    (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS place
    (name TEXT PRIMARY KEY, is_model INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS request (id TEXT PRIMARY KEY, regulation TEXT,
    immediately INTEGER, exact INTEGER, received TEXT, due TEXT, status TEXT,
    halted TEXT, reason TEXT, finished TEXT, until TEXT, names TEXT);
CREATE TABLE IF NOT EXISTS batch (id TEXT PRIMARY KEY, place TEXT NOT NULL
    REFERENCES place, state TEXT, mode TEXT, head TEXT, seconds REAL,
    promise TEXT);
CREATE TABLE IF NOT EXISTS task (request TEXT NOT NULL REFERENCES request,
    place TEXT NOT NULL REFERENCES place, state TEXT, mode TEXT,
    batch TEXT REFERENCES batch, finished TEXT, note TEXT,
    PRIMARY KEY (request, place));
CREATE TABLE IF NOT EXISTS tombstone
    (request TEXT PRIMARY KEY REFERENCES request, names TEXT, until TEXT);
CREATE INDEX IF NOT EXISTS request_status ON request (status, due);
CREATE INDEX IF NOT EXISTS batch_place ON batch (place, state);
CREATE INDEX IF NOT EXISTS batch_longest ON batch (place, seconds);
CREATE INDEX IF NOT EXISTS batch_timed ON batch (place)
    WHERE seconds IS NOT NULL;
CREATE INDEX IF NOT EXISTS tombstone_until ON tombstone (until);
CREATE INDEX IF NOT EXISTS task_place ON task (place, state);
CREATE INDEX IF NOT EXISTS task_state ON task (state);
CREATE INDEX IF NOT EXISTS task_batch ON task (batch);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION}"""
# Names have gone, and the file is not written anew yet.
_MARK = "INSERT OR IGNORE INTO setting VALUES ('erased', '')"
_TRIGGERS = (
    'AFTER UPDATE OF names ON request WHEN new.names IS NULL',
    'AFTER DELETE ON tombstone',
)


class Store:
    """Open file of a desk; only the thread that opened it may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner = os.getpid(), threading.get_ident()
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if os.name == 'posix' and path.stat().st_mode & 0o077:
            raise ValueError(
                f'{path} needs to be for its owner alone, as it names people '
                'who asked for erasure: chmod 600 it'
            )
        self._database = sqlite3.connect(
            path, timeout=60, isolation_level=None, check_same_thread=False
        )
        try:
            self._open()
        except BaseException as error:
            self.close()
            if not isinstance(error, sqlite3.DatabaseError):
                raise
            raise ValueError(
                f'{path} needs to be the file of an erasure desk ({error})'
            ) from None

    def _open(self) -> None:
        known = self.one('PRAGMA application_id') + self.one(
            'PRAGMA user_version'
        )
        is_new = self.one('SELECT count(*) FROM sqlite_master') == (0,)
        if known != (0, 0) if is_new else known != (_APPLICATION, _VERSION):
            raise ValueError(
                f'{self.path} needs to be the file of an erasure desk of this '
                f'version (got application {known[0]}, version {known[1]})'
            )
        if self.one('PRAGMA journal_mode') == ('wal',):
            raise ValueError(
                f'{self.path} keeps a write-ahead log, in which erased names '
                "can stay: set its journal_mode to 'delete' with sqlite3"
            )
        for pragma in _PRAGMAS:
            self.rows(f'PRAGMA {pragma}')
        if is_new:
            with self.change():
                for statement in _SCHEMA.split(';'):
                    self.rows(statement)
        for number, event in enumerate(_TRIGGERS):
            self.rows(
                f'CREATE TEMP TRIGGER erased_{number} {event} '
                f'BEGIN {_MARK}; END'
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of the thread that opened the file."""
        if self._owner != (os.getpid(), threading.get_ident()):
            raise RuntimeError(
                'a desk can be used only by the thread that opened it: open '
                'the file again in this one'
            )
        self._cursor = self._database.execute(query, values)
        return self._cursor.fetchall()

    def one(self, query: str, *values: Any) -> tuple[Any, ...]:
        """Run a statement, and return its first row; () if there is none."""
        return next(iter(self.rows(query, *values)), ())

    def named(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement, and return each row as a dict by column name."""
        rows = self.rows(query, *values)
        names = [column[0] for column in self._cursor.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Commit all statements of a block to disk, or none.

        Afterwards no copy of names that have gone is in the file.
        """
        try:
            self.rows('BEGIN IMMEDIATE')
            yield
            self.rows('COMMIT')
        except BaseException:
            if self._database.in_transaction:
                self.rows('ROLLBACK')
            raise
        if self.one("SELECT 1 FROM setting WHERE name = 'erased'"):
            self.rows('VACUUM')
            self.rows("DELETE FROM setting WHERE name = 'erased'")
