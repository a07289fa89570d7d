"""Failed attempts at a job: how many there were in a row, and when it may be tried again.

An attempt fails when its worker is lost (the lease expires) or gives it up for want of a device or a builder. One that
has recorded trials starts the count again: what moves on is not stuck.
"""

from __future__ import annotations

from sqlalchemy import Connection

from tuner.storage.jobs import MAX_ATTEMPTS, Job, JobState
from tuner.storage.sql._rows import AnyRow, end, set_state
from tuner.storage.sql.columns import later

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""The wait before the third attempt in a row, and the longest: each is twice the one before. The second has none."""
MAX_ERROR = 4000


def count_failure(connection: Connection, row: AnyRow, error: str) -> Job:
    """Count a failed attempt at a job, whose row is locked: WAITING again, or FAILED after MAX_ATTEMPTS in a row."""
    failed = 1 if row.trials > row.trials_at_failure else row.failed_attempts + 1
    counted = {"failed_attempts": failed, "trials_at_failure": row.trials}
    error = error[-MAX_ERROR:]
    if failed >= MAX_ATTEMPTS:
        problem = f"{failed} attempts in a row failed with nothing recorded; the last: {error}"
        return end(connection, row.id, JobState.FAILED, problem, **counted)
    wait_s = min(FIRST_WAIT_S * 2 ** (failed - 2), LONGEST_WAIT_S) if failed > 1 else 0.0
    facts = {"error": error, "failed_attempts": failed, "max_attempts": MAX_ATTEMPTS, "wait_s": wait_s}
    again = {"worker": None, "lease_expires_at": None, "not_before": later(wait_s), "error": error}
    return set_state(connection, row.id, JobState.WAITING, facts, **again, **counted)


FORGOTTEN = {"failed_attempts": 0, "not_before": None}
"""The columns of a job that starts anew."""
