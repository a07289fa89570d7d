"""How fast the service is under load.

Fills an empty database (or takes one that was filled at this scale), starts the real service on it, and lets clients in
processes of their own ask. ``--seconds`` is how long each figure is measured. Latencies of the open loop count from the
time a request was due; p99 is the smallest value that 99 % do not exceed. Events count from the return of the commit to
the arrival at the listener, beside idle streams. Records are stored by one worker: batches of 3 kernels at 8 instances
with events and summary, some of 3 readings.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks.harness.results import ROOT, finish, options_of
from benchmarks.serving.clients import Service, raise_file_limit
from benchmarks.serving.figures import Plan, measure
from benchmarks.serving.filled import CPUS, NotEmpty, Scale, load
from tuner.storage.sql import open_storage


@contextmanager
def serving(database_url: str, processes: int = 1) -> Iterator[tuple[Service, psutil.Process]]:
    """The real service in processes of its own, with a key for it."""
    storage = open_storage(database_url)
    _, key = storage.create_key("benchmark")
    storage.close()
    line = [sys.executable, "-m", "shapewright", "serve", "--port", "0"]
    line += ["--processes", str(processes)] if processes > 1 else []
    environment = os.environ | {"SHAPEWRIGHT_DATABASE_URL": database_url}
    raise_file_limit()
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
    plan = Plan(
        options.database_url, options.seconds, processes=options.processes, idle_streams=options.streams,
        beside_streams=min(100, options.streams), events=max(10, int(15 * options.seconds)),
    )  # fmt: skip
    started = time.monotonic()
    try:
        loaded = load(plan.database_url, Scale.of(options.records))
    except NotEmpty as error:
        print(error, file=sys.stderr)
        return 2
    sizes = {"pairs": len(loaded.pairs), "targets": len(CPUS), "in_s": time.monotonic() - started}
    with serving(plan.database_url, plan.processes) as (service, process):
        figures = measure(plan, loaded, service, process)
    given = {name: value for name, value in asdict(plan).items() if name != "database_url"}
    protocol = {"database": database_facts(plan.database_url), "loaded": asdict(loaded.scale) | sizes, **given}
    return finish(options.json, {"rows": figures.rows, "summary": figures.summary, "protocol": protocol})


if __name__ == "__main__":
    sys.exit(main())
