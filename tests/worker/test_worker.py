"""A whole worker as a process: Ray, a tracker, a device, a database; ended in every way there is."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.measuring import wait_for
from tuner.program.job.jobspec import JobSpec, parse_job
from tuner.program.target import native
from tuner.storage import Job, JobState
from tuner.storage.sql import Storage

LIMIT_S = 600.0
STOP_S = 25.0
CODE = (
    "import sys; from pathlib import Path; from worker.run import run_worker;"
    "run_worker(sys.argv[1], ('127.0.0.1', int(sys.argv[2])), data_dir=Path(sys.argv[3]), device_keys=['local'])"
)


def job(trials: int, seconds: float = 240.0) -> JobSpec:
    return parse_job(
        {
            "name": "small dense",
            "workload": {"op": "dense", "args": {"m": "T", "n": 96, "k": 64}},
            "shape_vars": {"T": {"min": 1, "max": 40}},
            "instances": [{"T": 3}, {"T": 17}, {"T": 40}],
            "budget": {"trials": trials, "seconds": seconds},
            "max_kernels": 3,
        }
    ).on(native())


class Workers:
    """Starts worker processes and knows every process that came of them."""

    def __init__(self, url: str, port: int, directory: Path) -> None:
        self._argv = [sys.executable, "-c", CODE, url, str(port), str(directory)]
        self._log = directory.with_suffix(".log")
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            left = descendants(process) if process.poll() is None else []
            process.kill()
            process.wait(10)
            for child in left:
                if child.is_running():
                    child.kill()


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def workers(sqlite_url: str, tracker: tuple[str, int], tmp_path: Path) -> Iterator[Workers]:
    result = Workers(sqlite_url, tracker[1], tmp_path / "w")
    yield result
    result.end()


def submitted(storage: Storage, spec: JobSpec) -> Job:
    return storage.create_job(spec)[0]


def trial_names(storage: Storage, job_id: str) -> list[tuple[str, str, int]]:
    records = storage.list_trials(job_id, limit=10_000)
    return [(result.result.kernel.id, str(result.result.instance), result.result.attempt) for result in records]


@pytest.mark.soak
def test_a_job_survives_a_killed_worker_and_a_stopped_one(storage: Storage, workers: Workers) -> None:
    """kill -9 of a worker in mid-search, then of its Ray cluster, then SIGTERM, then a worker that is left alone."""
    spec = job(trials=100)
    result = submitted(storage, spec)

    first = workers.start()
    wait_for(lambda: storage.get_job(result.id).trials >= 4, LIMIT_S)
    device = storage.list_devices()[0]
    assert (device.id, device.key, device.target) == ("here:0", "local", native())
    children = descendants(first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(10)
    kept = trial_names(storage, result.id)
    wait_for(lambda: not any(child.is_running() and _builds(child) for child in children), 30)

    second = workers.start()
    wait_for(lambda: storage.get_job(result.id).trials >= len(kept) + 2, LIMIT_S)
    assert storage.get_job(result.id).epoch == 2
    (raylet,) = (child for child in descendants(second) if child.name() == "raylet")
    raylet.kill()
    before = storage.get_job(result.id).trials
    wait_for(lambda: storage.get_job(result.id).trials >= before + 8, LIMIT_S)
    children = descendants(second)
    second.send_signal(signal.SIGTERM)
    assert second.wait(STOP_S) == 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert storage.get_job(result.id).state is JobState.WAITING

    workers.start()
    wait_for(lambda: storage.get_job(result.id).state.ended, LIMIT_S)
    ended = storage.get_job(result.id)
    assert (ended.state, ended.error) == (JobState.COMPLETED, "")
    names = trial_names(storage, result.id)
    assert names[: len(kept)] == kept
    assert [name for name, count in collections.Counter(names).items() if count > 1] == []
    assert len(names) == ended.trials <= 100
    row = storage.search_tasks(result.id)[0]
    files = storage.artifact_files(storage.latest_artifact(row.workload_key, job_id=result.id).digest)
    assert {"library.so", "dispatch.json", "manifest.json"} <= set(files)


@pytest.mark.soak
def test_a_running_job_is_cancelled_and_the_worker_takes_the_next(storage: Storage, workers: Workers) -> None:
    """After the processes of its search were killed, too. None of them is left when the worker has stopped."""
    long, short = submitted(storage, job(trials=5000)), submitted(storage, job(trials=0))
    worker = workers.start()
    wait_for(lambda: storage.get_job(long.id).trials >= 4, LIMIT_S)
    # One for the job, and one in store, which starts while the job already runs.
    wait_for(lambda: len(searches(worker)) == 2, LIMIT_S)
    for process in searches(worker):
        process.kill()
    kept = trial_names(storage, long.id)
    wait_for(lambda: storage.get_job(long.id).trials >= len(kept) + 4, LIMIT_S)
    storage.request_cancel(long.id)
    wait_for(lambda: storage.get_job(long.id).state is JobState.CANCELLED, LIMIT_S)
    names = trial_names(storage, long.id)
    assert names[: len(kept)] == kept
    assert len(set(names)) == len(names) == storage.get_job(long.id).trials
    wait_for(lambda: storage.get_job(short.id).state is JobState.COMPLETED, LIMIT_S)
    wait_for(lambda: len(searches(worker)) == 1, LIMIT_S)
    children = descendants(worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(STOP_S) == 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def searches(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that host searches."""
    return [child for child in descendants(worker) if child.name().startswith("ray::SearchHost")]


def _builds(process: psutil.Process) -> bool:
    """Whether a process of Ray's is one that works: its two agents end within a minute."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "Agent" not in process.name()
    except psutil.NoSuchProcess:
        return False
