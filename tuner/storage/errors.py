"""What a storage raises."""

from __future__ import annotations

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
