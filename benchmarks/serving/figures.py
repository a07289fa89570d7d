"""The figures of the benchmark of the service, each measured by clients in processes of their own."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import httpx
import psutil
import psycopg
import uvloop

from benchmarks.harness.results import Row, say
from benchmarks.serving import clients, filled
from benchmarks.serving.clients import Samples, Service
from benchmarks.serving.filled import LONGEST, MEASURED, WIDE_MEASURED, WIDEST, Loaded

PAUSE_S = 0.03
"""The pause between two commits of events."""
MIXED = 4096
"""Different requests of a mixed load."""
ANSWER_S = 300.0


@dataclass(frozen=True)
class Plan:
    """How long and how hard each figure is measured. ``connections``: of each client process in the closed loop; the
    open loop has one process with four times as many."""

    database_url: str
    seconds: float
    rate_per_s: float = 50.0
    pages_per_s: float = 20.0
    processes: int = 1
    clients: int = 2
    connections: int = 4
    idle_streams: int = 1000
    beside_streams: int = 100
    events: int = 300


@dataclass
class Figures:
    """Rows of the document, and the summary."""

    rows: list[Row] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, samples: Samples) -> float:
        """A row of latencies; the p99 of them. Raises RuntimeError if nothing was answered."""
        if not samples.latencies_s:
            raise RuntimeError(f"{name}: no request was answered with 200, but {dict(samples.statuses)}")
        requests = samples.statuses.total()
        statuses = {str(status): count for status, count in sorted(samples.statuses.items())}
        per_s = requests / samples.elapsed_s if samples.elapsed_s else None
        percentiles = {f"p{p}_s": percentile(samples.latencies_s, p) for p in (50, 90, 99)}
        row = {"figure": name, "requests": requests, "statuses": statuses, "per_s": per_s, **percentiles}
        self.rows.append({**row, "max_s": max(samples.latencies_s)})
        say(json.dumps(row))
        return percentiles["p99_s"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` % of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def measure(plan: Plan, loaded: Loaded, service: Service, process: psutil.Process) -> Figures:
    """Every figure, one after the other."""
    figures, (host, port) = Figures(), service.address
    summary, key = figures.summary, {"Authorization": f"Bearer {service.key}"}
    with (
        ProcessPoolExecutor(plan.clients, mp_context=get_context("spawn")) as pool,
        httpx.Client(base_url=f"http://{host}:{port}", headers=key, timeout=ANSWER_S) as asking,
    ):
        trials = pages(asking, f"/v1/jobs/{loaded.large_job}/trials?limit=1000", "after")
        mixed = best_paths(loaded, random.Random(0), MIXED)
        loads = {
            "best": (mixed, plan.rate_per_s),
            "best_far": (far_paths(loaded, random.Random(1), MIXED), plan.pages_per_s),
            "dispatcher": (dispatcher_paths(loaded), plan.rate_per_s),
            "jobs_page": (["/v1/jobs"], plan.pages_per_s),
            "trials_page": (trials, plan.pages_per_s),
            "workloads_page": (pages(asking, "/v1/workloads?limit=50", "cursor"), plan.pages_per_s),
        }
        # Whatever is prepared at the first request of a kind is not what is measured.
        pool.submit(clients.closed_loop, service, mixed, min(2.0, plan.seconds), plan.connections).result()
        for name, (paths, rate) in loads.items():
            at_rate = (service, paths, rate, plan.seconds, 4 * plan.connections)
            summary[f"{name}_p99_s"] = figures.add(name, pool.submit(clients.open_loop, *at_rate).result())
        given = (service, mixed, plan.seconds, plan.connections)
        together = Samples()
        for run in [pool.submit(clients.closed_loop, *given) for _ in range(plan.clients)]:
            samples = run.result()
            together.latencies_s += samples.latencies_s
            together.statuses += samples.statuses
            together.elapsed_s = max(together.elapsed_s, samples.elapsed_s)
        figures.add("best_closed", together)
        summary["best_per_s"] = together.statuses.total() / together.elapsed_s
        summary |= lookup_figures(asking, loaded)
        stored = pool.submit(filled.insert_records, plan.database_url, fresh("inserts"), plan.seconds).result()
        summary["inserts_per_s"] = stored["records"] / stored["elapsed_s"]
        figures.rows.append({"figure": "inserts", **stored})
        uvloop.run(event_figures(plan, service, pool, figures, process))
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


def pages(asking: httpx.Client, path: str, following: str) -> list[str]:
    """Every page of a list; ``following`` is the field of an answer that asks for the next one, by the same name."""
    result, there = list[str](), path
    while True:
        page = asking.get(there).raise_for_status().json()
        if page["items"]:
            result.append(there)
        if not page["items"] or page[following] is None:
            return result
        there = f"{path}&{following}={page[following]}"


def lookup_figures(asking: httpx.Client, loaded: Loaded) -> dict[str, float]:
    """The median time of 1,000 lookups in one call, and of the same calls made again."""
    draw, seconds = random.Random(2), list[float]()
    queries = [
        [
            {"workload_key": key, "target": target, "threads": 1, "shape": {"m": 16 * draw.randint(1, LONGEST)}}
            for key, target in draw.choices(loaded.pairs, k=1000)
        ]
        for _ in range(9)
    ]
    for each in (*queries, *queries):
        started = time.monotonic()
        asking.post("/v1/lookup", json={"queries": each}).raise_for_status()
        seconds.append(time.monotonic() - started)
    # Whatever is prepared at the first call is not what is measured.
    return {"lookup_1000_s": percentile(seconds[1:9], 50), "lookup_1000_again_s": percentile(seconds[9:], 50)}


# -- events -----------------------------------------------------------------------------------------------------------
async def event_figures(
    plan: Plan, service: Service, pool: ProcessPoolExecutor, figures: Figures, process: psutil.Process
) -> None:
    """Commit to listener beside idle streams, and what idle streams cost the service and its database."""
    jobs = await _aside(pool, filled.waiting_jobs, plan.database_url, "nobody", plan.idle_streams)
    async with clients.idle_streams(service, jobs[: plan.beside_streams]):
        latencies = await event_latencies(plan, service, pool)
    figures.summary["event_p99_s"] = figures.add("event", Samples(latencies, Counter({200: len(latencies)})))
    before = await asyncio.to_thread(cores_used, plan, process)
    async with clients.idle_streams(service, jobs):
        await asyncio.sleep(1.0)
        during = await asyncio.to_thread(cores_used, plan, process)
    figures.rows.append({"figure": "idle_streams", "streams": len(jobs), "cores": during, "cores_without": before})
    figures.summary["idle_streams_cores"] = max(0.0, during - before)


async def event_latencies(plan: Plan, service: Service, pool: ProcessPoolExecutor) -> list[float]:
    name = fresh("events")
    [job_id] = await _aside(pool, filled.waiting_jobs, plan.database_url, name, 1)
    reader, writer = await clients.stream(service, job_id)
    arriving = asyncio.create_task(clients.arrivals(reader, plan.events))
    committed = await _aside(pool, filled.commit_events, plan.database_url, name, plan.events, PAUSE_S)
    arrived = await asyncio.wait_for(arriving, ANSWER_S)
    writer.close()
    if missing := committed.keys() - arrived.keys():
        raise RuntimeError(f"{len(missing)} of {len(committed)} events did not arrive")
    # Some arrive before the call that committed them has returned.
    return [max(0.0, arrived[index] - at) for index, at in committed.items()]


async def _aside(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def cores_used(plan: Plan, process: psutil.Process) -> float:
    """CPU seconds a second of the service's processes and, on this machine, of the database's that serve it."""
    parts = [process, *process.children(recursive=True), *_backends(plan.database_url)]
    started, before_s = time.monotonic(), sum(sum(part.cpu_times()[:2]) for part in parts)
    time.sleep(plan.seconds)
    spent_s = sum(sum(part.cpu_times()[:2]) for part in parts) - before_s
    return spent_s / (time.monotonic() - started)


def _backends(url: str) -> list[psutil.Process]:
    if not url.startswith("postgres"):
        return []
    with psycopg.connect(url) as server:
        rows = server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'shapewright'").fetchall()
    return [psutil.Process(pid) for (pid,) in rows if psutil.pid_exists(pid)]


def fresh(name: str) -> str:
    return f"{name}-{time.time_ns()}"
