"""Searches in Ray actors that are killed, or kill themselves: what becomes of their jobs, and of the processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from benchmarks.workers import SimulatedTools
from tests.contract.samples import JOB, take
from tests.measuring import wait_for
from tuner.measure.runners.simulated import Fleet
from tuner.program.job.jobspec import parse_job
from tuner.storage import JobState
from tuner.storage.sql import Storage
from worker.building.cluster import Cluster
from worker.jobs.runner import JobRunner
from worker.remote.actors import JobActors, SearchActors

pytestmark = pytest.mark.together("ray")
HARMFUL = 13
"""The seed of searches that abort."""
TRIALS = 24
FOREVER_S = 1000.0


def harmful() -> Callable[..., Any]:
    """Opens searches with small cost models, whose policy aborts if their seed is HARMFUL. Nested, so that it travels
    to actors by value."""

    def open_search(*given: Any, **named: Any) -> Any:
        import os  # noqa: PLC0415  (it has to be found in the other process)

        from tuner.search.cost_model import refit, residual  # noqa: PLC0415
        from tuner.search.search import Search  # noqa: PLC0415

        residual.ROUNDS, refit.MAX_PAIRS = 30, 0
        search = Search(*given, **named)
        if named["seed"] == 13:
            search._policy.suggest = lambda *args, **named: os.abort()  # type: ignore[method-assign]
        return search

    return open_search


def processes() -> set[psutil.Process]:
    """Those that host searches."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if child.is_running() and "SearchHost" in _title(child)}


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture(scope="module")
def actors(cluster: Cluster) -> Iterator[SearchActors]:
    before = processes()
    result = SearchActors(harmful(), alive=cluster.alive)
    result.start()
    yield result
    result.close()
    wait_for(lambda: processes() <= before)


class Job:
    """A job that is run in a thread, on devices of its own."""

    def __init__(self, storage: Storage, actors: SearchActors, trial_s: float = 0.0, **fields: Any) -> None:
        self.storage = storage
        self.id = storage.create_job(parse_job(JOB | {"budget": {"trials": TRIALS}, "policy": "random"} | fields))[0].id
        self.lease = take(storage)
        self._fleet, self._actors = Fleet(1, trial_s=trial_s), actors
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        job = JobActors(self._actors.take)
        tools = SimulatedTools(self._fleet)
        JobRunner(self.storage, tools, open_search=job.open, heartbeat_s=0.05).run(self.lease)
        job.close()

    @property
    def trials(self) -> int:
        return self.storage.get_job(self.id).trials

    def ended(self) -> tuple[JobState, str]:
        """The state in which it was left, and why."""
        self._thread.join(120.0)
        assert not self._thread.is_alive()
        job = self.storage.get_job(self.id)
        return job.state, job.error


def test_no_process_is_left_of_a_job_that_failed(storage: Storage, actors: SearchActors) -> None:
    """Over its storage, in the middle of a search; one process is in store for the next job."""
    wait_for(lambda: len(processes()) == 1)
    most: list[int] = []

    def fail(*args: Any, **more: Any) -> None:
        most.append(len(processes()))
        raise ValueError("a defect")

    storage.append_results = fail  # type: ignore[method-assign]
    job = Job(storage, actors)
    state, error = job.ended()
    assert (state, error) == (JobState.FAILED, "ValueError: a defect")
    assert most[0] >= 1
    wait_for(lambda: len(processes()) == 1)
    assert job.trials == 0


def test_a_job_whose_search_is_killed_goes_on_from_its_records(storage: Storage, actors: SearchActors) -> None:
    job = Job(storage, actors, trial_s=0.05)
    wait_for(lambda: job.trials >= 8)
    kept = [trial.result for trial in storage.list_trials(job.id, limit=10_000)]
    for process in processes():
        process.kill()
    assert job.ended() == (JobState.COMPLETED, "")
    results = [trial.result for trial in storage.list_trials(job.id, limit=10_000)]
    assert results[: len(kept)] == kept
    names = [(result.kernel, result.instance, result.attempt) for result in results]
    assert len(set(names)) == len(names) == job.trials <= TRIALS
    said = [event.data["message"] for event in storage.list_events(job.id, limit=10_000) if event.kind == "log"]
    assert any("the process of a search is gone: it has died" in text for text in said)


@pytest.mark.soak
def test_a_search_that_aborts_fails_its_own_job_alone(storage: Storage, actors: SearchActors) -> None:
    good = Job(storage, actors, trial_s=0.05)
    bad = Job(storage, actors, seed=HARMFUL, name="harmful")
    state, error = bad.ended()
    assert state is JobState.WAITING
    assert "the process of a search is gone: it has died" in error
    assert good.ended() == (JobState.COMPLETED, "")
    said = [event.data for event in storage.list_events(good.id, limit=10_000) if event.kind == "log"]
    assert not any("level" in data for data in said)


@pytest.mark.soak
def test_a_cancelled_job_waits_for_no_trial(storage: Storage, actors: SearchActors) -> None:
    job = Job(storage, actors, trial_s=FOREVER_S)
    wait_for(job._fleet._free.empty)
    storage.request_cancel(job.id)
    assert job.ended()[0] is JobState.CANCELLED
