"""The figures of the benchmark of the service, each measured by clients in processes of their own."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

import psutil

from benchmarks import service_clients as clients
from benchmarks import service_workers as workers
from benchmarks.service_clients import Samples, Service
from benchmarks.service_load import LONGEST, MEASURED, WIDE_MEASURED, WIDEST, Loaded
from benchmarks.service_sink import is_postgresql, opened

SPAWN = get_context("spawn")
PAUSE_S = 0.03
"""The pause between two commits of events."""
MIXED = 4096
"""Different requests of a mixed load."""


@dataclass(frozen=True)
class Plan:
    """How long and how hard each figure is measured."""

    database_url: str
    seconds: float
    rate_per_s: float = 50.0
    pages_per_s: float = 20.0
    processes: int = 1
    clients: int = 2
    threads: int = 4
    """Threads of each client process in the closed loop; the open loop has one process with four times as many."""
    idle_streams: int = 1000
    beside_streams: int = 100
    events: int = 300


@dataclass
class Figures:
    """Rows of the document, and the summary."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, float | None] = field(default_factory=dict)

    def add(self, name: str, samples: Samples) -> Samples:
        """A row of latencies. Raises RuntimeError if nothing was answered."""
        if not samples.latencies_s:
            raise RuntimeError(f"{name}: no request was answered with 200, but {dict(samples.statuses)}")
        self.rows.append(
            {
                "figure": name,
                "requests": sum(samples.statuses.values()),
                "statuses": {str(status): count for status, count in sorted(samples.statuses.items())},
                "per_s": sum(samples.statuses.values()) / samples.elapsed_s if samples.elapsed_s else None,
                **{f"p{p}_s": percentile(samples.latencies_s, p) for p in (50, 90, 99)},
                "max_s": max(samples.latencies_s),
            }
        )
        print(json.dumps(self.rows[-1]), file=sys.stderr, flush=True)
        return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def measure(plan: Plan, loaded: Loaded, service: Service, process: psutil.Process) -> Figures:
    """Every figure, one after the other."""
    figures = Figures()
    mixed = [service.request(path) for path in best_paths(loaded, random.Random(0), MIXED)]
    with ProcessPoolExecutor(plan.clients, mp_context=SPAWN) as pool:

        def at_rate(name: str, requests: Sequence[bytes], rate_per_s: float) -> float:
            run = pool.submit(clients.open_loop, service, requests, rate_per_s, plan.seconds, 4 * plan.threads)
            return percentile(figures.add(name, run.result()).latencies_s, 99)

        # Whatever is prepared at the first request of a kind is not what is measured.
        pool.submit(clients.closed_loop, service, mixed, min(2.0, plan.seconds), plan.threads).result()
        summary = figures.summary
        summary["best_p99_s"] = at_rate("best", mixed, plan.rate_per_s)
        far = [service.request(path) for path in far_paths(loaded, random.Random(1), MIXED)]
        summary["best_far_p99_s"] = at_rate("best_far", far, plan.pages_per_s)
        runs = [
            pool.submit(clients.closed_loop, service, mixed, plan.seconds, plan.threads) for _ in range(plan.clients)
        ]
        together = Samples()
        for run in runs:
            together.merge(run.result())
        figures.add("best_closed", together)
        summary["best_per_s"] = sum(together.statuses.values()) / together.elapsed_s
        summary |= lookup_figures(service, loaded)
        tables = [service.request(path) for path in dispatcher_paths(loaded)]
        summary["dispatcher_p99_s"] = at_rate("dispatcher", tables, plan.rate_per_s)
        summary["jobs_page_p99_s"] = at_rate("jobs_page", [service.request("/v1/jobs")], plan.pages_per_s)
        trials = trial_pages(service, loaded)
        summary["trials_page_p99_s"] = at_rate("trials_page", trials, plan.pages_per_s)
        pages = workload_pages(service)
        summary["workloads_page_p99_s"] = at_rate("workloads_page", pages, plan.pages_per_s)
        stored = pool.submit(workers.insert_records, plan.database_url, fresh("inserts"), plan.seconds).result()
        summary["inserts_per_s"] = stored.records / stored.elapsed_s
        figures.rows.append({"figure": "inserts", **asdict(stored)})
        summary |= event_figures(plan, service, pool, figures, process)
    return figures


# -- what is asked ----------------------------------------------------------------------------------------------------
def best_paths(loaded: Loaded, draw: random.Random, count: int) -> list[str]:
    """Any workload and target; half of the shapes were never measured, half of the workloads have a library."""
    other = [t for t in range(1, LONGEST + 1) if t not in MEASURED]
    result = []
    for number in range(count):
        key, target = draw.choice(loaded.pairs)
        shape = draw.choice(MEASURED if number % 2 else other)
        result.append(f"/v1/workloads/{key}/best?target={target}&shape=m={16 * shape}")
    return result


def far_paths(loaded: Loaded, draw: random.Random, count: int) -> list[str]:
    """Shapes of the large workload that were never measured; it has no library."""
    key, target = loaded.large
    shapes = [t for t in range(1, WIDEST + 1) if t not in WIDE_MEASURED]
    return [f"/v1/workloads/{key}/best?target={target}&shape=m={16 * draw.choice(shapes)}" for _ in range(count)]


def dispatcher_paths(loaded: Loaded) -> list[str]:
    pairs = [pair for index, pair in enumerate(loaded.pairs) if loaded.has_library(index)]
    return [f"/v1/workloads/{key}/dispatcher?target={target}" for key, target in pairs]


def trial_pages(service: Service, loaded: Loaded) -> list[bytes]:
    """Every page of 1,000 trials of the large job."""
    result: list[bytes] = []
    after = 0
    while True:
        path = f"/v1/jobs/{loaded.large_job}/trials?limit=1000&after={after}"
        page = answered(service, path)
        if not page["items"]:
            return result
        result.append(service.request(path))
        after = page["after"]


def workload_pages(service: Service) -> list[bytes]:
    """Every page of 50 workloads."""
    result, path = [], "/v1/workloads?limit=50"
    while True:
        page = answered(service, path)
        result.append(service.request(path))
        if page["cursor"] is None:
            return result
        path = f"/v1/workloads?limit=50&cursor={page['cursor']}"


def answered(service: Service, path: str) -> Any:
    status, body = clients.ask(service, path)
    if status != 200:
        raise RuntimeError(f"{path}: {status} {body[:300]!r}")
    return json.loads(body)


def lookup_figures(service: Service, loaded: Loaded) -> dict[str, float | None]:
    """The median time of 1,000 lookups in one call, and of the same calls made again; None while there is no such
    route."""
    draw = random.Random(2)
    bodies = [json.dumps({"queries": queries_of(draw, loaded)}).encode() for _ in range(9)]
    first, again = ([lookup_s(service, body) for body in bodies] for _ in range(2))
    names = {"lookup_1000_s": first[1:], "lookup_1000_again_s": again}
    return {name: None if None in times else percentile([t for t in times if t], 50) for name, times in names.items()}


def queries_of(draw: random.Random, loaded: Loaded) -> list[dict[str, Any]]:
    return [
        {"workload_key": key, "target": target, "threads": 1, "shape": {"m": 16 * draw.randint(1, LONGEST)}}
        for key, target in draw.choices(loaded.pairs, k=1000)
    ]


def lookup_s(service: Service, body: bytes) -> float | None:
    """None for a service without the route."""
    started = time.monotonic()
    status, said = clients.ask(service, "/v1/lookup", body)
    if status in (404, 405):
        return None
    if status != 200:
        raise RuntimeError(f"/v1/lookup: {status} {said[:300]!r}")
    return time.monotonic() - started


# -- events -----------------------------------------------------------------------------------------------------------
def event_figures(
    plan: Plan, service: Service, pool: ProcessPoolExecutor, figures: Figures, process: psutil.Process
) -> dict[str, float | None]:
    """Commit to listener beside idle streams, and what idle streams cost the service and its database."""
    jobs = pool.submit(workers.waiting_jobs, plan.database_url, "nobody", plan.idle_streams).result()
    with streams(service, jobs[: plan.beside_streams]):
        latencies = event_latencies(plan, service, pool)
    figures.add("event", Samples(latencies, Counter({200: len(latencies)})))
    before_s = cores_used(plan, process)
    with streams(service, jobs):
        time.sleep(1.0)
        during_s = cores_used(plan, process)
    figures.rows.append({"figure": "idle_streams", "streams": len(jobs), "cores": during_s, "cores_without": before_s})
    return {"event_p99_s": percentile(latencies, 99), "idle_streams_cores": max(0.0, during_s - before_s)}


def event_latencies(plan: Plan, service: Service, pool: ProcessPoolExecutor) -> list[float]:
    name = fresh("events")
    [job_id] = pool.submit(workers.waiting_jobs, plan.database_url, name, 1).result()
    with SPAWN.Manager() as manager:
        arrivals = manager.dict()
        ours, theirs = SPAWN.Pipe()
        listener = SPAWN.Process(target=_listen, args=(service, job_id, plan.events, theirs, arrivals))
        listener.start()
        ours.recv()
        writer = pool.submit(workers.commit_events, plan.database_url, name, plan.events, PAUSE_S)
        committed = writer.result()
        listener.join(60)
        arrived = dict(arrivals)
    if missing := committed.keys() - arrived.keys():
        raise RuntimeError(f"{len(missing)} of {len(committed)} events did not arrive")
    # Some arrive before the call that committed them has returned.
    return [max(0.0, arrived[index] - at) for index, at in committed.items()]


def _listen(service: Service, job_id: str, count: int, told: Any, arrivals: Any) -> None:
    arrivals.update(clients.listen(service, job_id, count, told))


@contextmanager
def streams(service: Service, jobs: Sequence[str]) -> Iterator[None]:
    """Open event streams in a process of their own."""
    ours, theirs = SPAWN.Pipe()
    holder = SPAWN.Process(target=clients.hold_streams, args=(service, jobs, theirs))
    holder.start()
    try:
        if not ours.poll(300) or ours.recv() != len(jobs):
            raise RuntimeError("not every event stream was opened")
        yield
        ours.send(True)
        holder.join(60)
    finally:
        holder.kill()


def cores_used(plan: Plan, process: psutil.Process) -> float:
    """CPU seconds a second of the service's processes and, on this machine, of the database's that serve it."""
    parts = [process, *process.children(recursive=True), *_backends(plan.database_url)]
    started, before = time.monotonic(), [_cpu_s(part) for part in parts]
    time.sleep(plan.seconds)
    spent = sum(_cpu_s(part) - earlier for part, earlier in zip(parts, before, strict=True))
    return spent / (time.monotonic() - started)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _backends(url: str) -> list[psutil.Process]:
    if not is_postgresql(url):
        return []
    with opened(url) as sink:
        rows = sink.run("SELECT pid FROM pg_stat_activity WHERE application_name = 'shapewright'")
    return [psutil.Process(pid) for (pid,) in rows if psutil.pid_exists(pid)]


def fresh(name: str) -> str:
    return f"{name}-{time.time_ns()}"
