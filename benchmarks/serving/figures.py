"""The figures of the benchmark of the service, each measured by clients in processes of their own."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

import psutil
import psycopg

from benchmarks.harness.results import Row, say
from benchmarks.serving import clients, writers
from benchmarks.serving.clients import Samples, Service
from benchmarks.serving.filled import LONGEST, MEASURED, WIDE_MEASURED, WIDEST, Loaded

SPAWN = get_context("spawn")
PAUSE_S = 0.03
"""The pause between two commits of events."""
MIXED = 4096
"""Different requests of a mixed load."""
ANSWER_S = 300.0


@dataclass(frozen=True)
class Plan:
    """How long and how hard each figure is measured."""

    database_url: str
    seconds: float
    rate_per_s: float = 50.0
    pages_per_s: float = 20.0
    processes: int = 1
    clients: int = 2
    connections: int = 4
    """Of each client process in the closed loop; the open loop has one process with four times as many."""
    idle_streams: int = 1000
    beside_streams: int = 100
    events: int = 300


@dataclass
class Figures:
    """Rows of the document, and the summary."""

    rows: list[Row] = field(default_factory=list)
    summary: dict[str, float | None] = field(default_factory=dict)

    def add(self, name: str, samples: Samples) -> float:
        """A row of latencies; the p99 of them. Raises RuntimeError if nothing was answered."""
        if not samples.latencies_s:
            raise RuntimeError(f"{name}: no request was answered with 200, but {dict(samples.statuses)}")
        requests = sum(samples.statuses.values())
        statuses = {str(status): count for status, count in sorted(samples.statuses.items())}
        per_s = requests / samples.elapsed_s if samples.elapsed_s else None
        percentiles = {f"p{p}_s": percentile(samples.latencies_s, p) for p in (50, 90, 99)}
        row = {"figure": name, "requests": requests, "statuses": statuses, "per_s": per_s, **percentiles}
        self.rows.append({**row, "max_s": max(samples.latencies_s)})
        say(json.dumps(row))
        return percentiles["p99_s"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def measure(plan: Plan, loaded: Loaded, service: Service, process: psutil.Process) -> Figures:
    """Every figure, one after the other."""
    figures = Figures()
    mixed = [service.request(path) for path in best_paths(loaded, random.Random(0), MIXED)]
    loads = {
        "best": (mixed, plan.rate_per_s),
        "best_far": ([service.request(path) for path in far_paths(loaded, random.Random(1), MIXED)], plan.pages_per_s),
        "dispatcher": ([service.request(path) for path in dispatcher_paths(loaded)], plan.rate_per_s),
        "jobs_page": ([service.request("/v1/jobs")], plan.pages_per_s),
        "trials_page": (pages(service, f"/v1/jobs/{loaded.large_job}/trials?limit=1000", "after"), plan.pages_per_s),
        "workloads_page": (pages(service, "/v1/workloads?limit=50", "cursor"), plan.pages_per_s),
    }
    with ProcessPoolExecutor(plan.clients, mp_context=SPAWN) as pool:
        # Whatever is prepared at the first request of a kind is not what is measured.
        pool.submit(clients.closed_loop, service, mixed, min(2.0, plan.seconds), plan.connections).result()
        for name, (requests, rate) in loads.items():
            at_rate = (service, requests, rate, plan.seconds, 4 * plan.connections)
            samples = pool.submit(clients.open_loop, *at_rate).result()
            figures.summary[f"{name}_p99_s"] = figures.add(name, samples)
        given = (service, mixed, plan.seconds, plan.connections)
        together = Samples()
        for run in [pool.submit(clients.closed_loop, *given) for _ in range(plan.clients)]:
            together.merge(run.result())
        figures.add("best_closed", together)
        figures.summary["best_per_s"] = sum(together.statuses.values()) / together.elapsed_s
        figures.summary |= lookup_figures(service, loaded)
        stored = pool.submit(writers.insert_records, plan.database_url, fresh("inserts"), plan.seconds).result()
        figures.summary["inserts_per_s"] = stored.records / stored.elapsed_s
        figures.rows.append({"figure": "inserts", **asdict(stored)})
        event_figures(plan, service, pool, figures, process)
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


def pages(service: Service, path: str, following: str) -> list[bytes]:
    """Every page of a list; ``following`` is the field of an answer that asks for the next one, by the same name."""
    result, there = list[bytes](), path
    while True:
        status, body = clients.ask(service, there)
        if status != 200:
            raise RuntimeError(f"{there}: {status} {body[:300]!r}")
        page = json.loads(body)
        if page["items"]:
            result.append(service.request(there))
        if not page["items"] or page[following] is None:
            return result
        there = f"{path}&{following}={page[following]}"


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
) -> None:
    """Commit to listener beside idle streams, and what idle streams cost the service and its database."""
    jobs = pool.submit(writers.waiting_jobs, plan.database_url, "nobody", plan.idle_streams).result()
    with aside(clients.hold_streams, service, jobs[: plan.beside_streams]) as told:
        told.recv()
        latencies = event_latencies(plan, service, pool)
        told.send(True)
    figures.summary["event_p99_s"] = figures.add("event", Samples(latencies, Counter({200: len(latencies)})))
    before = cores_used(plan, process)
    with aside(clients.hold_streams, service, jobs) as told:
        told.recv()
        time.sleep(1.0)
        during = cores_used(plan, process)
        told.send(True)
    figures.rows.append({"figure": "idle_streams", "streams": len(jobs), "cores": during, "cores_without": before})
    figures.summary["idle_streams_cores"] = max(0.0, during - before)


def event_latencies(plan: Plan, service: Service, pool: ProcessPoolExecutor) -> list[float]:
    name = fresh("events")
    [job_id] = pool.submit(writers.waiting_jobs, plan.database_url, name, 1).result()
    with aside(clients.listen, service, job_id, plan.events) as told:
        told.recv()
        committed = pool.submit(writers.commit_events, plan.database_url, name, plan.events, PAUSE_S).result()
        arrived = told.recv()
    if missing := committed.keys() - arrived.keys():
        raise RuntimeError(f"{len(missing)} of {len(committed)} events did not arrive")
    # Some arrive before the call that committed them has returned.
    return [max(0.0, arrived[index] - at) for index, at in committed.items()]


class _Told:
    """The pipe to a client, with a deadline for what it says."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self.send = pipe, pipe.send

    def recv(self) -> Any:
        if not self._pipe.poll(ANSWER_S):
            raise RuntimeError(f"a client said nothing within {ANSWER_S:g} s")
        return self._pipe.recv()


@contextmanager
def aside(function: Any, *arguments: Any) -> Iterator[_Told]:
    """A function of the clients in a process of its own, which ends with the context; its last argument is a pipe."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=function, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield _Told(ours)
        process.join(60)
    finally:
        process.kill()


def cores_used(plan: Plan, process: psutil.Process) -> float:
    """CPU seconds a second of the service's processes and, on this machine, of the database's that serve it."""
    parts = [process, *process.children(recursive=True), *_backends(plan.database_url)]
    started, before = time.monotonic(), [_cpu_s(part) for part in parts]
    time.sleep(plan.seconds)
    spent = sum(_cpu_s(part) - earlier for part, earlier in zip(parts, before, strict=True))
    return spent / (time.monotonic() - started)


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _backends(url: str) -> list[psutil.Process]:
    if not url.startswith("postgres"):
        return []
    with psycopg.connect(url) as server:
        rows = server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'shapewright'").fetchall()
    return [psutil.Process(pid) for (pid,) in rows if psutil.pid_exists(pid)]


def fresh(name: str) -> str:
    return f"{name}-{time.time_ns()}"
