"""What is stored with the end of a job, to be sent to its webhook."""

from __future__ import annotations

import logging

from sqlalchemy import Connection, bindparam, insert, select

from tuner.program.language.workload import JsonObject
from tuner.storage.jobs import Job
from tuner.storage.sql.schema import jobs, webhook_deliveries

MAX_ERROR = 2000
"""Characters of a job's error that a message repeats."""

_log = logging.getLogger(__name__)
_WEBHOOK = select(jobs.c.webhook).where(jobs.c.id == bindparam("job_id"))


def announce(connection: Connection, job: Job) -> None:
    """Store the message that a job has ended, if its webhook wants one."""
    webhook: JsonObject | None = connection.scalar(_WEBHOOK, {"job_id": job.id})
    if webhook is None:
        return
    if not {"url", "key"} <= webhook.keys():
        _log.error("job %s: nobody is told that it ended, its webhook cannot be read: %s", job.id, webhook)
        return
    row = {"job_id": job.id, "url": webhook["url"], "api_key_id": webhook["key"], "payload": _payload(job)}
    connection.execute(insert(webhook_deliveries), row)


def _payload(job: Job) -> JsonObject:
    facts = {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "trials": job.trials,
        "error": job.error[:MAX_ERROR],
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }
    return {"type": f"job.{job.state.value.lower()}", "timestamp": job.ended_at, "data": facts}
