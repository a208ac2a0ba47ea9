"""Fields of erasure requests: times in RFC 3339 and UTC, ids, texts."""

import calendar
import uuid
import zoneinfo
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any

from pyg_trust._checks import check_instance

#: By regulation: the months and days until a request has to be done.
PERIODS = {'gdpr': (1, 0), 'ccpa': (0, 45)}


def find_zone(name: str) -> zoneinfo.ZoneInfo:
    """Find a time zone; the error of an unknown one names ``zone``."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError(
            "'zone' needs to be the name of a time zone, as 'Europe/Berlin' "
            f'(got {name!r})'
        ) from None


def written(moment: datetime) -> str:
    """Write a time as it is stored, so that later texts are larger."""
    utc = moment.astimezone(timezone.utc)
    return utc.strftime('%Y-%m-%dT%H:%M:%SZ')


def read(name: str, value: Any) -> datetime:
    """Read a time, to the second.

    Args:
        name (str): of the argument, for errors.
        value (str or datetime): RFC 3339, with a zone.
    """
    try:
        if isinstance(value, str):
            ends = value[-1:] in ('Z', 'z')
            value = datetime.fromisoformat(
                value[:-1] + '+00:00' if ends else value
            )
        if value.tzinfo is not None:
            made: datetime = value.astimezone(timezone.utc)
            return made.replace(microsecond=0)
    except (AttributeError, OverflowError, ValueError):
        pass
    raise ValueError(
        f"'{name}' needs to be a time with its zone, as "
        f"'2026-11-23T12:00:00Z' (got {str(value)[:40]!r})"
    )


def due(received: datetime, zone: tzinfo, regulation: str) -> datetime:
    """Compute by when a request has to be done.

    A month ends with the same date of the next one, in the controller's zone,
    or with its last day if it has no such date. Week-ends do not move it.
    """
    months, days = PERIODS[regulation]
    day = received.astimezone(zone).date()
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    day = day.replace(year, month + 1, min(day.day, last)) + timedelta(days)
    end = datetime.combine(day, time(23, 59, 59), zone)
    # Where clocks are set at midnight, the earlier of both.
    return min(end.replace(fold=f).astimezone(timezone.utc) for f in (0, 1))


def check_text(name: str, value: Any) -> None:
    """Refuse what is no line of text, or can look like another one."""
    check_instance(name, value, str)
    if not 0 < len(value) <= 1000 or not value.isprintable():
        raise ValueError(
            f"'{name}' needs to be a text of at most 1000 characters, all of "
            f'them printable (got {len(value)} characters)'
        )


def read_id(number: str | None) -> str:
    """Read the id of a request, a UUID; without one, make one."""
    try:
        return str(uuid.uuid4() if number is None else uuid.UUID(number))
    except ValueError:
        raise ValueError(
            "'subject_request_id' needs to be a UUID "
            f'(got {len(number or "")} characters that are none)'
        ) from None
