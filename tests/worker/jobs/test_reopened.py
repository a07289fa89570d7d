"""Real searches on simulated devices that are opened again from their records: after a loss, and for want of room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.workers import SimulatedTools
from tests.contract.samples import JOB
from tuner.measure import DeviceLost, Runner
from tuner.measure.runners.simulated import Fleet
from tuner.program.job.jobspec import parse_job
from tuner.storage import JobState
from tuner.storage.sql import Storage
from worker.jobs import open_searches
from worker.jobs.runner import JobRunner

TRIALS = 32


@dataclass(frozen=True, slots=True)
class Losing(SimulatedTools):
    """Loses the device over as many verifications as ``losses`` has elements."""

    losses: list[str]

    def runner(self, key: str) -> Runner:
        runner = self.fleet.runner()
        verify = runner.verify

        def verify_or_lose(*args: Any, **more: Any) -> Any:
            if self.losses:
                raise DeviceLost(self.losses.pop())
            return verify(*args, **more)

        runner.verify = verify_or_lose  # type: ignore[method-assign]
        return runner


def run(storage: Storage, spec: dict[str, Any], losses: list[str]) -> str:
    job_id = storage.create_job(parse_job(spec))[0].id
    lease = storage.lease_job("w", 60.0)
    assert lease is not None
    assert JobRunner(storage, Losing(Fleet(1), losses)).run(lease) is JobState.COMPLETED
    return job_id


def check(storage: Storage, job_id: str, budget: int) -> None:
    """Each library is of kernels that were timed, and the summary counts what was recorded."""
    job, rows = storage.get_job(job_id), storage.search_tasks(job_id)
    summaries = job.summary.get("tasks", {"0": job.summary})
    assert job.trials <= budget
    for row in rows:
        summary = summaries[str(row.position)]
        assert summary["trials"] == len(storage.records_of_task(row.id)) > 0
        assert summary["library_objective_s"] is not None


def test_a_device_lost_over_the_verification_costs_nothing_that_was_measured(storage: Storage) -> None:
    job_id = run(storage, {**JOB, "budget": {"trials": TRIALS}}, losses=["gone"])
    check(storage, job_id, TRIALS)


def test_searches_that_had_no_room_end_with_what_they_measured(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_searches, "MAX_LIVE", 1)
    plain = {name: value for name, value in JOB.items() if name != "workload"}
    workloads = [{"op": "dense", "args": {"m": "16*T", "n": 256, "k": 64 * (number + 1)}} for number in range(3)]
    budget = 3 * TRIALS // 2
    job_id = run(storage, {**plain, "workloads": workloads, "budget": {"trials": budget}}, losses=[])
    check(storage, job_id, budget)
