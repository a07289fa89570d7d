"""How fast the service is under load: ``python -m benchmarks.service --database-url URL --records N --json OUT``.

Fills an empty database (or takes one that was filled at this scale), starts the real service on it, and lets clients in
processes of their own ask. docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.service_clients import Service, raise_file_limit
from benchmarks.service_figures import Plan, measure
from benchmarks.service_load import CPUS, Loaded, NotEmpty, Scale, load
from benchmarks.service_sink import is_postgresql, opened
from tuner.program.target import native
from tuner.storage.sql import open_storage

ROOT = Path(__file__).parents[1]


@contextmanager
def serving(plan: Plan) -> Iterator[tuple[Service, psutil.Process]]:
    """The real service in processes of its own, with a key for it."""
    storage = open_storage(plan.database_url)
    _, key = storage.create_key("benchmark")
    storage.register_device("bench-0", "local", native(), {})
    storage.close()
    line = [sys.executable, "-m", "shapewright", "serve", "--port", "0"]
    line += ["--processes", str(plan.processes)] if plan.processes > 1 else []
    environment = os.environ | {"SHAPEWRIGHT_DATABASE_URL": plan.database_url}
    raise_file_limit()
    with (
        Path(os.devnull).open("w") as silence,
        subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=silence, text=True) as process,
    ):
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


def protocol(plan: Plan, loaded: Loaded, load_s: float) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "database": _database(plan.database_url),
        "loaded": {**asdict(loaded.scale), "pairs": len(loaded.pairs), "targets": len(CPUS), "in_s": load_s},
        **{name: value for name, value in asdict(plan).items() if name != "database_url"},
        "latency": "open loop: from the time a request was due; p99 is the smallest value that 99 % do not exceed",
        "event": "from the return of the commit to the arrival at the listener",
        "inserts": "one worker: batches of 3 kernels at 8 instances with events and summary, some of 3 readings",
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _database(url: str) -> dict[str, Any]:
    if not is_postgresql(url):
        pragmas = {"journal_mode": "wal", "synchronous": "full"}
        return {"kind": f"SQLite {sqlite3.sqlite_version}", **pragmas, "bytes": Path(url[10:]).stat().st_size}
    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_sync_method")
    with opened(url) as sink:
        settings: Mapping[str, Any] = {name: sink.run(f"SHOW {name}")[0][0] for name in names}
        size = sink.run("SELECT pg_database_size(current_database())")[0][0]
    return {"kind": "PostgreSQL", **settings, "bytes": size}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", required=True, help="an empty database, or one that this has filled")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each figure is measured")
    parser.add_argument("--processes", type=int, default=1, help="processes of the service")
    parser.add_argument("--streams", type=int, default=1000, help="idle event streams")
    parser.add_argument("--json", required=True, type=Path, metavar="OUT")
    options = parser.parse_args(arguments)
    plan = Plan(
        options.database_url,
        options.seconds,
        processes=options.processes,
        idle_streams=options.streams,
        beside_streams=min(100, options.streams),
        events=max(10, int(15 * options.seconds)),
    )
    started = time.monotonic()
    try:
        loaded = load(plan.database_url, Scale.of(options.records))
    except NotEmpty as error:
        print(error, file=sys.stderr)
        return 2
    load_s = time.monotonic() - started
    with serving(plan) as (service, process):
        figures = measure(plan, loaded, service, process)
    document = {"rows": figures.rows, "summary": figures.summary, "protocol": protocol(plan, loaded, load_s)}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(figures.summary, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
