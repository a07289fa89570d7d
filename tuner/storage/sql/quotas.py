"""Quotas: what an owner's jobs use, against what a key allows."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from tuner.storage.access import QUOTAS, Quota
from tuner.storage.errors import QuotaExceeded
from tuner.storage.sql.columns import later
from tuner.storage.sql.schema import jobs, search_tasks

WINDOW_S = 24 * 3600.0
REMEDIES = {
    "open_jobs": "wait until a job has ended, cancel one, or ask an administrator for a key with a larger quota",
    "trials": "submit a smaller budget.trials, wait (use counts for 24 hours), or ask an administrator for more",
    "seconds": "submit a smaller budget.seconds, wait (use counts for 24 hours), or ask an administrator for more",
}

_open = jobs.c.ended_at.is_(None)
_recent = jobs.c.ended_at > later(-WINDOW_S)
_others = and_(jobs.c.owner == bindparam("owner"), jobs.c.id != bindparam("job_id"))
_trials = case((and_(_open, jobs.c.budget_trials > jobs.c.trials), jobs.c.budget_trials), else_=jobs.c.trials)
_JOBS = select(
    func.count().filter(_open).label("open_jobs"), func.coalesce(func.sum(_trials), 0).label("trials")
).where(_others, or_(_open, _recent))
_OPEN_SECONDS = select(func.coalesce(func.sum(jobs.c.budget_seconds), 0.0)).where(_others, _open)
_spent = (
    select(jobs.c.budget_seconds, func.sum(search_tasks.c.spent_s).label("spent_s"))
    .join(search_tasks, jobs.c.id == search_tasks.c.job_id)
    .where(_others, _recent)
    .group_by(jobs.c.id, jobs.c.budget_seconds)
    .subquery()
)
# Searches that ran at once took more together than the job was given.
_used_s = case((_spent.c.spent_s > _spent.c.budget_seconds, _spent.c.budget_seconds), else_=_spent.c.spent_s)
_SPENT_SECONDS = select(func.coalesce(func.sum(_used_s), 0.0))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job may use at most; None: without a limit."""

    trials: int | None
    seconds: float | None


def check_quota(connection: Connection, quota: Quota, owner: str, job_id: str, asked: Asked) -> None:
    """Raises QuotaExceeded if the owner's other jobs and this one would use more than ``quota``."""
    wanted = {"open_jobs": 1, "trials": asked.trials, "seconds": asked.seconds}
    used = _used(connection, quota, {"owner": owner, "job_id": job_id})
    for name in QUOTAS:
        limit, more = getattr(quota, name), wanted[name]
        if limit is not None and (more is None or used[name] + more > limit):
            raise QuotaExceeded(name, used[name], more, limit, REMEDIES[name])


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What an owner's jobs use, as quotas count it."""

    open_jobs: int
    trials: int
    seconds: float


def use_of(connection: Connection, owner: str) -> QuotaUse:
    """What counts against the quota of a key of this owner at present."""
    used = _used(connection, Quota(seconds=0.0), {"owner": owner, "job_id": ""})
    return QuotaUse(int(used["open_jobs"]), int(used["trials"]), used["seconds"])


def _used(connection: Connection, quota: Quota, whose: dict[str, str]) -> dict[str, float]:
    row = connection.execute(_JOBS, whose).one()
    seconds = 0.0
    if quota.seconds is not None:
        parts = (connection.execute(query, whose).scalar_one() for query in (_OPEN_SECONDS, _SPENT_SECONDS))
        seconds = float(sum(parts))
    return {"open_jobs": int(row.open_jobs), "trials": int(row.trials), "seconds": seconds}
