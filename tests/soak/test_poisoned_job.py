"""A job that kills every worker that runs it, among others: it fails with the reason, and the others complete."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.contract.samples import job_spec
from tuner.program.target import native
from tuner.storage import MAX_ATTEMPTS, JobState
from tuner.storage.sql import Storage

pytestmark = pytest.mark.soak

JOBS, POISONED = 10, 3
DEADLINE_S = 300.0
WITHIN_S = 120.0
"""From its first turn to its end."""

WORKER = """
import os, sys, threading
from dataclasses import dataclass
from tests.worker.jobs.scripted import Tools, scripted, tuned
from tuner.storage.sql import open_storage
from worker.jobs.runner import JobRunner
from worker.jobs.lease_loop import LeaseLoop

class Devices:
    def refresh(self, force=False):
        return {"local": 1}

def search(task, *, job_id, **_):
    if storage.get_job(job_id).name == "poisoned":
        os.kill(os.getpid(), 9)
    return tuned()

storage = open_storage(sys.argv[1])
runner = JobRunner(storage, Tools(), open_search=scripted(search))
LeaseLoop(storage, Devices(), runner.run, f"worker-{os.getpid()}", threading.Event()).run_forever()
"""


def test_a_poisoned_job_fails_and_the_others_complete(storage: Storage, database_url: str) -> None:
    storage.register_device("local-0", "local", native(), {})
    specs = [job_spec(name="poisoned" if number == POISONED else f"job {number}") for number in range(JOBS)]
    made = [storage.create_job(spec)[0].id for spec in specs]

    supervised(storage, database_url, made)

    jobs = [storage.get_job(job_id) for job_id in made]
    poisoned = jobs.pop(POISONED)
    assert [job.state for job in jobs] == [JobState.COMPLETED] * (JOBS - 1)
    assert (poisoned.state, poisoned.failed_attempts) == (JobState.FAILED, MAX_ATTEMPTS)
    assert "worker worker-" in poisoned.error and "was lost" in poisoned.error
    began, ended = (datetime.fromisoformat(str(at)) for at in (poisoned.started_at, poisoned.ended_at))
    assert (ended - began).total_seconds() < WITHIN_S
    # Those behind it in the queue did not wait for its end.
    assert all(str(job.ended_at) < str(poisoned.ended_at) for job in jobs)


def supervised(storage: Storage, url: str, jobs: list[str]) -> None:
    """Keep a worker running until all jobs have ended, as `up` does."""
    root, until, worker = Path(__file__).parents[2], time.monotonic() + DEADLINE_S, None
    try:
        while not all(storage.get_job(job_id).state.ended for job_id in jobs):
            assert time.monotonic() < until, [storage.get_job(job_id).state for job_id in jobs]
            if worker is None or worker.poll() is not None:
                worker = subprocess.Popen([sys.executable, "-c", WORKER, url], cwd=root)
            time.sleep(0.2)
    finally:
        if worker is not None:
            worker.kill()
            worker.wait(20)
