"""What a storage raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


class Unreadable:
    """Stands for a stored value that cannot be read: an object, or an array, that says so to whoever looks at it."""

    reason: str


class _UnreadableObject(dict[str, Any], Unreadable):
    pass


class _UnreadableArray(list[Any], Unreadable):
    pass


def unreadable(reason: str, shape: type[dict[str, Any]] | type[list[Any]]) -> Unreadable:
    """``{"unreadable": reason}``, or an empty array."""
    result = _UnreadableObject({"unreadable": reason}) if shape is dict else _UnreadableArray()
    result.reason = reason
    return result


@contextmanager
def reading(what: str, *stored: object) -> Iterator[None]:
    """Inside, ``what`` is read back from the database: whatever is wrong with it is raised as CorruptData.

    ``stored``: the values that it is read from, none of which may be Unreadable.
    """
    for value in stored:
        if isinstance(value, Unreadable):
            raise CorruptData(f"{what} is stored in a form that cannot be read: {value.reason}")
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
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
