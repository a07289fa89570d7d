"""What a storage raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.errors import ShapewrightError


class StorageUnavailable(ShapewrightError):
    """The database cannot be reached or is out of step; nothing was written. Try again later."""


class NotFound(ShapewrightError, KeyError):
    """No row of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


class Conflict(ShapewrightError):
    """The request does not fit the state that the row is in."""


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before, for another body."""


class LeaseLost(ShapewrightError):
    """Another worker has the job, or the job has ended. Stop working on it; nothing was written."""


class CorruptData(ShapewrightError):
    """Something stored cannot be read: nobody's input is wrong, the database is."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Inside, ``what`` is read back from the database: whatever is wrong with it is raised as CorruptData."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptData(f"{what} is stored in a form that cannot be read: {error}") from error


class QuotaExceeded(ShapewrightError):
    """A job would use more than its owner may. ``used`` counts what is open or was used lately, without this job."""

    def __init__(self, name: str, used: float, asked: float | None, limit: float, remedy: str) -> None:
        more = "no limit" if asked is None else f"{asked:g} more"
        super().__init__(f"quota {name}: {used:g} of {limit:g} are used, and the job asks for {more}; {remedy}")
        self.name = name
        self.used = used
        self.asked = asked
        self.limit = limit
        self.remedy = remedy
