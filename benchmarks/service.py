"""How fast the service is under load.

Fills an empty database (or takes one that was filled at this scale), starts the real service on it, and lets clients in
processes of their own ask. ``--seconds`` is how long each figure is measured. Latencies of the open loop count from the
time a request was due; p99 is the smallest value that 99 % do not exceed. Events count from the return of the commit to
the arrival at the listener, beside idle streams. Records are stored by one worker: batches of 3 kernels at 8 instances
with events and summary, some of 3 readings.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import psycopg
import uvloop

from benchmarks.harness.results import ROOT, Row, finish, options_of, say
from benchmarks.serving import clients, filled
from benchmarks.serving.clients import Samples, Service
from benchmarks.serving.filled import CPUS, LONGEST, MEASURED, WIDE_MEASURED, WIDEST, Loaded, Scale
from tuner.errors import InvalidInput
from tuner.storage.sql import open_storage

RATE_PER_S, PAGES_PER_S = 50.0, 20.0
CLIENTS, CONNECTIONS = 2, 4
"""Client processes of the closed loop, and connections of each; the open loop has one with four times as many."""
BESIDE_STREAMS = 100
PAUSE_S = 0.03
"""The pause between two commits of events."""
MIXED = 4096
"""Different requests of a mixed load."""
ANSWER_S = 300.0


@dataclass
class Figures:
    """Measures every figure, one after the other: rows of the document, and the summary."""

    url: str
    seconds: float
    streams: int
    loaded: Loaded
    service: Service
    process: psutil.Process
    pool: ProcessPoolExecutor
    rows: list[Row] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, samples: Samples) -> None:
        """A row of latencies. Raises RuntimeError if nothing was answered."""
        if not samples.latencies_s:
            raise RuntimeError(f"{name}: no request was answered with 200, but {dict(samples.statuses)}")
        requests = samples.statuses.total()
        statuses = {str(status): count for status, count in sorted(samples.statuses.items())}
        per_s = requests / samples.elapsed_s if samples.elapsed_s else None
        found = np.percentile(samples.latencies_s, (50, 90, 99, 100), method="inverted_cdf").tolist()
        percentiles = dict(zip(("p50_s", "p90_s", "p99_s", "max_s"), found, strict=True))
        self.rows.append({"figure": name, "requests": requests, "statuses": statuses, "per_s": per_s, **percentiles})
        self.summary[f"{name}_p99_s"] = percentiles["p99_s"]
        say(json.dumps(self.rows[-1]))

    def of_requests(self) -> None:
        (host, port), key = self.service.address, {"Authorization": f"Bearer {self.service.key}"}
        having = [pair for index, pair in enumerate(self.loaded.pairs) if filled.has_library(index)]
        dispatchers = [f"/v1/workloads/{key}/dispatcher?target={target}" for key, target in having]
        mixed = best_paths(self.loaded, random.Random(0), MIXED)
        with httpx.Client(base_url=f"http://{host}:{port}", headers=key, timeout=ANSWER_S) as asking:
            loads = {
                "best": (mixed, RATE_PER_S),
                "best_far": (far_paths(self.loaded, random.Random(1), MIXED), PAGES_PER_S),
                "dispatcher": (dispatchers, RATE_PER_S),
                "jobs_page": (["/v1/jobs"], PAGES_PER_S),
                "trials_page": (
                    pages(asking, f"/v1/jobs/{self.loaded.large_job}/trials?limit=1000", "after"), PAGES_PER_S
                ),
                "workloads_page": (pages(asking, "/v1/workloads?limit=50", "cursor"), PAGES_PER_S),
            }  # fmt: skip
            # Whatever is prepared at the first request of a kind is not what is measured.
            self.pool.submit(clients.load, self.service, mixed, min(2.0, self.seconds), CONNECTIONS).result()
            for name, (paths, rate) in loads.items():
                at_rate = (self.service, paths, self.seconds, 4 * CONNECTIONS, rate)
                self.add(name, self.pool.submit(clients.load, *at_rate).result())
            given, together = (self.service, mixed, self.seconds, CONNECTIONS), Samples()
            for run in [self.pool.submit(clients.load, *given) for _ in range(CLIENTS)]:
                samples = run.result()
                together.latencies_s += samples.latencies_s
                together.statuses += samples.statuses
                together.elapsed_s = max(together.elapsed_s, samples.elapsed_s)
            self.add("best_closed", together)
            self.summary["best_per_s"] = together.statuses.total() / together.elapsed_s
            self.summary |= lookup_figures(asking, self.loaded)
        stored = self.pool.submit(filled.insert_records, self.url, f"inserts-{time.time_ns()}", self.seconds).result()
        self.summary["inserts_per_s"] = stored["records"] / stored["elapsed_s"]
        self.rows.append({"figure": "inserts", **stored})

    # -- events -------------------------------------------------------------------------------------------------------
    async def of_events(self) -> None:
        """Commit to listener beside idle streams, and what idle streams cost the service and its database."""
        jobs = await self._aside(filled.waiting_jobs, self.url, "nobody", self.streams)
        async with clients.idle_streams(self.service, jobs[:BESIDE_STREAMS]):
            latencies = await self._event_latencies(max(10, int(15 * self.seconds)))
        self.add("event", Samples(latencies, Counter({200: len(latencies)})))
        before = await asyncio.to_thread(self._cores_used)
        async with clients.idle_streams(self.service, jobs):
            await asyncio.sleep(1.0)
            during = await asyncio.to_thread(self._cores_used)
        self.rows.append({"figure": "idle_streams", "streams": len(jobs), "cores": during, "cores_without": before})
        self.summary["idle_streams_cores"] = max(0.0, during - before)

    async def _event_latencies(self, count: int) -> list[float]:
        name = f"events-{time.time_ns()}"
        [job_id] = await self._aside(filled.waiting_jobs, self.url, name, 1)
        reader, writer = await clients.stream(self.service, job_id)
        arriving = asyncio.create_task(clients.arrivals(reader, count))
        committed = await self._aside(filled.commit_events, self.url, name, count, PAUSE_S)
        arrived = await asyncio.wait_for(arriving, ANSWER_S)
        writer.close()
        if missing := committed.keys() - arrived.keys():
            raise RuntimeError(f"{len(missing)} of {len(committed)} events did not arrive")
        # Some arrive before the call that committed them has returned.
        return [max(0.0, arrived[index] - at) for index, at in committed.items()]

    async def _aside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)

    def _cores_used(self) -> float:
        """CPU seconds a second of the service's processes and, on this machine, of the database's that serve it."""
        parts = [self.process, *self.process.children(recursive=True)]
        if self.url.startswith("postgres"):
            with psycopg.connect(self.url) as server:
                rows = server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'shapewright'")
                parts += [psutil.Process(pid) for (pid,) in rows.fetchall() if psutil.pid_exists(pid)]
        started, before_s = time.monotonic(), sum(sum(part.cpu_times()[:2]) for part in parts)
        time.sleep(self.seconds)
        spent_s = sum(sum(part.cpu_times()[:2]) for part in parts) - before_s
        return spent_s / (time.monotonic() - started)


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
    return {
        "lookup_1000_s": statistics.median_low(seconds[1:9]),
        "lookup_1000_again_s": statistics.median_low(seconds[9:]),
    }


# -- the run ----------------------------------------------------------------------------------------------------------
@contextmanager
def serving(database_url: str, processes: int) -> Iterator[tuple[Service, psutil.Process]]:
    """The real service in processes of its own, with a key for it."""
    storage = open_storage(database_url)
    _, key = storage.create_key("benchmark")
    storage.close()
    line = [sys.executable, "-m", "shapewright", "serve", "--port", "0", "--processes", str(processes)]
    environment = os.environ | {"SHAPEWRIGHT_DATABASE_URL": database_url}
    # A thousand streams are more open files than a process may have at first.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with subprocess.Popen(
        line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if not said.startswith("serving at http://"):
                raise RuntimeError(f"the service did not start: {said!r}")
            host, _, port = said.removeprefix("serving at http://").rpartition(":")
            yield Service((host, int(port)), key), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def database_facts(url: str) -> dict[str, Any]:
    """The kind of the database, its settings of durability, its size."""
    if url.startswith("sqlite:///"):
        kind = {"kind": f"SQLite {sqlite3.sqlite_version}", "journal_mode": "wal", "synchronous": "full"}
        return {**kind, "bytes": Path(url.removeprefix("sqlite:///")).stat().st_size}
    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_sync_method")
    with psycopg.connect(url) as server:
        told = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
        settings = dict(server.execute(told, [list(names)]))
        [(size,)] = server.execute("SELECT pg_database_size(current_database())")
    return {"kind": "PostgreSQL", **settings, "bytes": size}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options_of(__doc__, records=1_000_000, seconds=20.0, processes=1, streams=1000)
    parser.add_argument("--database-url", required=True, help="an empty database, or one that this has filled")
    options = parser.parse_args(arguments)
    url, started = options.database_url, time.monotonic()
    try:
        loaded = filled.load(url, Scale(options.records))
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 2
    stored = {"records": options.records, "workloads": loaded.scale.workloads, "large": loaded.scale.large,
              "pairs": len(loaded.pairs), "targets": len(CPUS), "in_s": time.monotonic() - started}  # fmt: skip
    with (
        serving(url, options.processes) as (service, process),
        ProcessPoolExecutor(CLIENTS, mp_context=get_context("spawn")) as pool,
    ):
        figures = Figures(url, options.seconds, options.streams, loaded, service, process, pool)
        figures.of_requests()
        uvloop.run(figures.of_events())
    protocol = {
        "database": database_facts(url), "loaded": stored, "seconds": options.seconds, "processes": options.processes,
        "rate_per_s": RATE_PER_S, "pages_per_s": PAGES_PER_S, "clients": CLIENTS, "connections": CONNECTIONS,
        "idle_streams": options.streams, "beside_streams": min(BESIDE_STREAMS, options.streams),
    }  # fmt: skip
    return finish(options.json, {"rows": figures.rows, "summary": figures.summary, "protocol": protocol})


if __name__ == "__main__":
    sys.exit(main())
