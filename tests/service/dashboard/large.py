"""A large database, and how long its pages take:

python -m tests.service.dashboard.large [--jobs 200] [--trials 100000] [--database FILE]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient

from service.app import create_app
from tests.fakes import latency_s
from tests.searched import nothing_compiled, searched, submitted
from tests.serving import lease, register_local
from tuner.figures import FIGURES
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import space_of
from tuner.search.summary import SearchSummary, Stage
from tuner.storage import Job, JobState, NewEvent
from tuner.storage.sql import Storage, open_storage, upgrade

BATCH = 2000
KERNELS = 4000
ROUNDS = 500


def many_jobs(storage: Storage, count: int) -> None:
    """Jobs that have ended, of ten workloads; every fiftieth was searched, to give libraries and kernels."""
    for number in range(count):
        workload = {"op": "dense", "args": {"m": "8*T", "n": 32 + 16 * (number % 10), "k": 32}}
        if number % 50 == 0:
            searched(storage, workload=workload, name=f"job {number}")
            continue
        submitted(storage, workload=workload, name=f"job {number}")
        held = lease(storage)
        done = SearchSummary(Stage.DONE, trials=40, trials_budget=60, elapsed_s=20.0, kernels=3)
        storage.append_results(held, held.tasks[0].id, [], [NewEvent("progress", done.to_json())], 1.0, done.to_json())
        storage.finish_job(held, JobState.COMPLETED)


def long_job(storage: Storage, trials: int) -> Job:
    """A running job with so many trials, and a report of its progress every few of them."""
    job = submitted(storage, name="a long search", budget={"trials": trials * 2})
    held = lease(storage)
    row = held.tasks[0]
    results = _results(row.task, trials)
    for first in range(0, trials, BATCH):
        part = list(islice(results, BATCH))
        summary = SearchSummary(Stage.SEARCH, trials=first + len(part), trials_budget=trials * 2, elapsed_s=first / 50)
        events = [NewEvent("progress", summary.to_json())] * (BATCH // 200)
        storage.append_results(held, row.id, part, events, 1.0, summary.to_json())
    return job


def _results(task: SearchTask, count: int) -> Iterator[MeasureResult]:
    rng, space = np.random.default_rng(0), space_of(task)
    kernels = list({kernel.id: kernel for kernel in (space.sample(rng) for _ in range(KERNELS))}.values())
    times = {(k.id, i.values): latency_s(task, k, dict(i.values)) for k in kernels for i in task.instances}
    for number in range(count):
        turn, index = divmod(number, len(kernels))
        attempt, at = divmod(turn, len(task.instances))
        kernel, instance = kernels[index], task.instances[at]
        has_failed, time_s = index % 50 == 0, times[kernel.id, instance.values] * rng.lognormal(0, 0.03)
        yield MeasureResult(
            kernel=kernel,
            instance=instance,
            latency_s=None if has_failed else time_s,
            samples_s=() if has_failed else (time_s,) * 5,
            error_kind=ErrorKind.CRASH if has_failed else None,
            error="signal 11" if has_failed else "",
            predicted_s=time_s * rng.lognormal(0, 0.2),
            round=number * ROUNDS // count,
            attempt=attempt,
            anchor_s=1e-3,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--database", type=Path, help="kept, and used again where it is there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.database or Path(folder) / "tuning.db"
        is_new, url = not path.exists(), f"sqlite:///{path}"
        upgrade(url)
        with closing(open_storage(url)) as storage, nothing_compiled():
            if is_new:
                register_local(storage)
                many_jobs(storage, given.jobs)
                long_job(storage, given.trials)
            measure(storage)


def measure(storage: Storage) -> None:
    job = storage.list_jobs().items[0]
    [row] = storage.search_tasks(job.id)
    kernel = storage.list_trials(job.id, limit=1)[0].result.kernel.id
    key = row.workload_key
    pages = [
        *("/", "/?q=job+1&order=name", "/fragments/jobs", f"/jobs/{job.id}", "/workloads", f"/workloads/{key}"),
        *("/records", f"/records?workload={key}&failed=yes", "/keys", "/audit", "/devices", "/devices/local-0"),
        *(f"/jobs/{job.id}/kernels/{kernel}", f"/fragments/jobs/{job.id}/kernels/{kernel}/times"),
        *(f"/jobs/{job.id}/trials", f"/jobs/{job.id}/trials?order=latency&error=none&instance=T=7"),
        *(f"/jobs/{job.id}/trials?error=any&order=kernel&descending=true", "/?q=tag:nightly+-state:failed"),
        *(f"/v1/jobs/{job.id}/coordinates", f"/fragments/jobs/{job.id}/instances"),
    ]
    figures = [f"/v1/jobs/{job.id}/figures/{name}" for name in FIGURES]
    headers = {"Authorization": f"Bearer {storage.create_key('large')[1]}", "Accept": "text/html"}
    with TestClient(create_app(storage), headers=headers) as client:
        for address in [*pages, *figures]:
            took_s = []
            for _ in range(3):
                before = time.perf_counter()
                answer = client.get(address)
                took_s.append(time.perf_counter() - before)
            sent = int(answer.headers["Content-Length"])
            print(f"{answer.status_code} first {took_s[0]:6.3f} s, then {statistics.median(took_s[1:]):6.3f} s, "
                  f"{len(answer.content) / 1e3:8.0f} kB ({sent / 1e3:.0f} sent)  {address}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
