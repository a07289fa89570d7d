"""The database's times: ISO 8601, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(iso: str | None) -> datetime | None:
    return datetime.fromisoformat(iso).astimezone(UTC) if iso else None


def between_s(start: str | None, end: str | None) -> float | None:
    """Seconds from one time to another, at least 0; to now if there is no end, None if there is no start."""
    first, last = parse_time(start), parse_time(end) or datetime.now(UTC)
    return max(0.0, (last - first).total_seconds()) if first else None
