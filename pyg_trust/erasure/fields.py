"""Fields of erasure requests: times, ids and texts."""

import calendar
import uuid
import zoneinfo
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any

from pyg_trust._checks import check_instance

__all__ = [
    'PERIODS',
    'check_text',
    'due',
    'find_zone',
    'read',
    'read_id',
    'written',
]

#: By regulation: the months and days until a request has to be done.
PERIODS = {'gdpr': (1, 0), 'ccpa': (0, 45)}


def find_zone(name: str) -> zoneinfo.ZoneInfo:
    """Return the time zone of a name."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError(
            "'zone' needs to be the name of a time zone, as 'Europe/Berlin' "
            f'(got {name!r})'
        ) from None


def written(moment: datetime) -> str:
    """Format a time in UTC, so that texts sort like times."""
    utc = moment.astimezone(timezone.utc)
    return utc.strftime('%Y-%m-%dT%H:%M:%SZ')


def read(name: str, value: Any) -> datetime:
    """Parse a time in RFC 3339 with a zone, to the second."""
    try:
        if isinstance(value, str):
            ends = value[-1:] in ('Z', 'z')
            value = datetime.fromisoformat(
                value[:-1] + '+00:00' if ends else value
            )
        if value.tzinfo is not None:
            made: datetime = value.astimezone(timezone.utc)
            # A year of two digits would sort as a later one.
            if made.year >= 1970:
                return made.replace(microsecond=0)
    except (AttributeError, OverflowError, ValueError):
        pass
    raise ValueError(
        f"'{name}' needs to be a time from 1970 on with its zone, as "
        f"'2026-11-23T12:00:00Z' (got {str(value)[:40]!r})"
    )


def due(received: datetime, zone: tzinfo, regulation: str) -> datetime:
    """Compute the date by which a request has to be completed.

    A month ends with the same date of the next one, in the controller's zone,
    or with its last day if it has no such date. Week-ends do not move it.
    """
    months, days = PERIODS[regulation]
    day = received.astimezone(zone).date()
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    day = day.replace(year, month + 1, min(day.day, last)) + timedelta(days)
    end = datetime.combine(day, time(23, 59, 59), zone)
    # If clocks change at midnight, take the earlier of both.
    return min(end.replace(fold=f).astimezone(timezone.utc) for f in (0, 1))


def check_text(name: str, value: Any) -> None:
    """Refuse anything but one printable line of text."""
    check_instance(name, value, str)
    if not 0 < len(value) <= 1000 or not value.isprintable():
        raise ValueError(
            f"'{name}' needs to be a text of at most 1000 characters, all of "
            f'them printable (got {len(value)} characters)'
        )


def read_id(number: str | None) -> str:
    """Check the id of a request, a UUID; without one, make a new one."""
    try:
        return str(uuid.uuid4() if number is None else uuid.UUID(number))
    except ValueError:
        raise ValueError(
            "'subject_request_id' needs to be a UUID "
            f'(got {len(number or "")} characters that are none)'
        ) from None
