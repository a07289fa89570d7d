"""What the benchmark of the service runs on: a tuning database as a team has it after some years, loaded in bulk.

The rows are written at an early schema and migrated: what later schemas derive from them is derived as it is for users.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psycopg

from benchmarks.service_sink import Sink, is_postgresql, opened
from tuner.library.dispatcher import Dispatcher, Leaf, Node, TableRow, Tree
from tuner.library.package import package
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.records import PROTOCOL
from tuner.schedule import default_kernel, space_of
from tuner.schedule.space import MicroKernel
from tuner.storage.sql import upgrade
from tuner.storage.sql.identity import stored_workload

WRITTEN_AT = "0005"
CPUS = ("x86-64-v3", "x86-64-v4", "znver4", "icelake-server", "sapphirerapids")
MEASURED = (5, 24, 43, 62, 81, 100, 119, 128)
"""The values of T that were measured, of 1..LONGEST."""
LONGEST = 128
WIDE_MEASURED = range(8, 2001, 8)
WIDEST = 2048
"""The largest T of the one large workload: all values but the multiples of 8 were never measured."""
KERNELS = 512
LIBRARY_KERNELS = 8
FAILED_SHARE = 0.05
WHEN = "2026-01-01T00:00:00.000Z"
SAMPLES = 3


@dataclass(frozen=True)
class Scale:
    """How much is loaded. ``large`` records are of one workload and one job, in addition to ``records``."""

    records: int
    workloads: int
    jobs: int
    large: int

    @staticmethod
    def of(records: int) -> Scale:
        """2,000 workloads, 100,000 jobs and one of 100,000 trials for a million records; less for fewer."""
        workloads = max(2, min(2_000, records // 500))
        jobs = max(workloads * len(CPUS), min(100_000, records // 10))
        return Scale(records, workloads, jobs, max(100, min(100_000, records // 10)))

    @property
    def pairs(self) -> int:
        return self.workloads * len(CPUS)


@dataclass(frozen=True)
class Loaded:
    """What clients query. ``pairs``: (workload key, target fingerprint); those with an even index of the workload
    have libraries. ``large``: the same of the large workload, which has none, and the job of its records."""

    scale: Scale
    pairs: tuple[tuple[str, str], ...]
    large: tuple[str, str]
    large_job: str

    @staticmethod
    def from_json(text: str) -> Loaded:
        data = json.loads(text)
        pairs = tuple((key, target) for key, target in data["pairs"])
        return Loaded(Scale(**data["scale"]), pairs, tuple(data["large"]), data["large_job"])

    def has_library(self, pair: int) -> bool:
        return pair // len(CPUS) % 2 == 0


class NotEmpty(Exception):
    """The database holds something that this benchmark has not loaded."""


def load(url: str, scale: Scale) -> Loaded:
    """Fill an empty database; one that was loaded at this scale is taken as it is. Raises NotEmpty."""
    with opened(url) as sink:
        if (before := _loaded_before(sink, url)) is not None:
            if before.scale != scale:
                raise NotEmpty(f"the database was loaded at another scale, {before.scale}; give an empty one")
            upgrade(url)
            return before
    upgrade(url, WRITTEN_AT)
    with opened(url) as sink:
        loaded = _fill(sink, scale, is_postgresql(url))
    upgrade(url)
    with opened(url) as sink:
        sink.run("CREATE TABLE benchmark_load (facts TEXT)")
        sink.copy("benchmark_load", ["facts"], [[json.dumps(asdict(loaded))]])
    if is_postgresql(url):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    return loaded


def _loaded_before(sink: Sink, url: str) -> Loaded | None:
    postgresql = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    sqlite = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {row[0] for row in sink.run(postgresql if is_postgresql(url) else sqlite)}
    if "benchmark_load" in tables:
        return Loaded.from_json(sink.run("SELECT facts FROM benchmark_load")[0][0])
    if tables:
        raise NotEmpty(f"the database has tables already ({', '.join(sorted(tables)[:3])}, ...); give an empty one")
    return None


# -- the rows ---------------------------------------------------------------------------------------------------------
def dense_job(n: int, k: int, longest: int = LONGEST, device: str = "local") -> dict[str, Any]:
    return {
        "name": f"dense {n} {k}",
        "workload": {"op": "dense", "args": {"m": "16*T", "n": n, "k": k}},
        "shape_vars": {"T": {"min": 1, "max": longest}},
        "instances": [{"T": t} for t in MEASURED],
        "target": {"kind": "llvm", "mcpu": CPUS[0], "num-cores": 2},
        "device": device,
        "budget": {"trials": 1000},
    }


def _fill(sink: Sink, scale: Scale, postgresql: bool) -> Loaded:
    targets = [Target.from_json({"kind": "llvm", "mcpu": cpu, "num-cores": 2}) for cpu in CPUS]
    specs = [parse_job(dense_job(64 * (1 + i % 50), 64 * (1 + i // 50))) for i in range(scale.workloads)]
    large = parse_job(dense_job(64 * 51, 64, WIDEST))
    tasks = [spec.tasks[0] for spec in [*specs, large]]
    kernels = _kernels(tasks[0])

    rows = [(i, t.workload.key, json.dumps(stored_workload(t.workload)), WHEN) for i, t in enumerate(tasks, start=1)]
    sink.copy("workloads", ["id", "key", "workload", "created_at"], rows)
    described = [(i, t.fingerprint, json.dumps(t.to_json()), WHEN) for i, t in enumerate(targets, start=1)]
    sink.copy("targets", ["id", "fingerprint", "target", "created_at"], described)
    stored = [(k.id, k.rule, k.rule_version, json.dumps(k.to_json())) for k in kernels]
    sink.copy("micro_kernels", ["id", "rule", "rule_version", "kernel"], stored)

    on_target = [task.on(target) for task in tasks[:-1] for target in targets]
    texts = [json.dumps(task.to_json()) for task in on_target]
    sources = [json.dumps(spec.source) for spec in [*specs, large]]
    last = scale.jobs + 1
    sink.copy("jobs", *_jobs(scale, sources))
    sink.copy("search_tasks", *_tasks(scale, texts, json.dumps(tasks[-1].to_json())))
    sink.copy("job_events", ["job_id", "seq", "kind", "data", "created_at"], _events(last))
    sink.copy("tuning_records", *_records(scale, kernels))
    _store_libraries(sink, on_target, kernels)
    if postgresql:
        for table, column in (
            ("workloads", "id"),
            ("targets", "id"),
            ("jobs", "number"),
            ("search_tasks", "id"),
            ("tuning_records", "id"),
            ("artifacts", "id"),
        ):
            sink.run(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}")
    pairs = tuple((task.workload.key, task.known_target.fingerprint) for task in on_target)
    return Loaded(scale, pairs, (tasks[-1].workload.key, targets[0].fingerprint), job_id(last))


def job_id(number: int) -> str:
    return f"job-{number:019x}"


def _kernels(task: SearchTask) -> list[MicroKernel]:
    rng, space, result = np.random.default_rng(0), space_of(task), dict.fromkeys([default_kernel(task)])
    while len(result) < KERNELS:
        result[space.mutate(list(result)[int(rng.integers(len(result)))], rng)] = None
    return list(result)


def _jobs(scale: Scale, sources: Sequence[str]) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    columns = ["number", "id", "name", "owner", "state", "device", "spec", "summary", "error", "created_at"]
    columns += ["started_at", "ended_at", "epoch", "worker", "trials", "event_seq"]
    summary = json.dumps({"phase": "done", "trials": 100, "objective_s": 1e-3, "speedup_vs_default": 1.5})

    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(1, scale.jobs + 2):
            of_large = number == scale.jobs + 1
            source = sources[-1] if of_large else sources[(number - 1) % scale.pairs // len(CPUS)]
            trials = scale.large if of_large else _of_pair(scale) if number <= scale.pairs else 0
            shared = (f"job {number}", "key-bench", "COMPLETED", "local", source, summary, "", WHEN, WHEN, WHEN)
            yield (number, job_id(number), *shared, 1, "w1", trials, 3)

    return columns, rows()


def _tasks(scale: Scale, texts: Sequence[str], large: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    columns = ["id", "job_id", "position", "count", "workload_id", "target_id", "threads", "task", "spent_s", "done"]

    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(1, scale.jobs + 1):
            pair = (number - 1) % scale.pairs
            numbers = (pair // len(CPUS) + 1, pair % len(CPUS) + 1)
            yield (number, job_id(number), 0, 1, *numbers, 1, texts[pair], 60.0, True)
        yield (scale.jobs + 1, job_id(scale.jobs + 1), 0, 1, scale.workloads + 1, 1, 1, large, 60.0, True)

    return columns, rows()


def _events(jobs: int) -> Iterator[tuple[Any, ...]]:
    states = [json.dumps({"state": state}) for state in ("WAITING", "RUNNING", "COMPLETED")]
    for number in range(1, jobs + 1):
        for seq, data in enumerate(states, start=1):
            yield (job_id(number), seq, "state", data, WHEN)


def _of_pair(scale: Scale) -> int:
    return max(len(MEASURED), scale.records // scale.pairs)


RECORD = [
    *("id", "search_task_id", "workload_id", "target_id", "threads", "rule", "kernel_id", "instance", "attempt"),
    *("protocol", "provenance", "latency_s", "error_kind", "error", "weight", "samples_s", "build_s", "run_s"),
    *("predicted_s", "anchor_s", "device", "round", "phase", "created_at"),
]


def _records(scale: Scale, kernels: Sequence[MicroKernel]) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    ids = [kernel.id for kernel in kernels]
    rule, draw = kernels[0].rule, random.Random(0)

    def rows_of(numbers: tuple[int, int, int], count: int, shapes: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        start = draw.randrange(len(ids))
        for number in range(count):
            kernel, shape = number // len(shapes), shapes[number % len(shapes)]
            latency_s = 1e-6 * shape * (1.0 + draw.random())
            failed = kernel > 0 and draw.random() < FAILED_SHARE
            samples = f"[{latency_s!r}, {latency_s * 1.01!r}, {latency_s * 0.99!r}]"
            told = (0.4, 0.05, latency_s, 1e-3, "bench-0", kernel, "search" if kernel else "theory", WHEN)
            # More kernels than there are in the pool are further attempts.
            attempt, which = divmod(kernel, len(ids))
            name = ids[(start + which) % len(ids)]
            # A library with a kernel that was found wrong would not be served.
            is_wrong = draw.random() >= 0.8 and name not in ids[:LIBRARY_KERNELS]
            error = ("wrong" if is_wrong else "run_timeout", "it failed") if failed else (None, "")
            measured = (None if failed else latency_s, *error, 1.0, "[]" if failed else samples)
            yield (*numbers, 1, rule, name, f"m={16 * shape}", attempt, PROTOCOL, "measured", *measured, *told)

    def rows() -> Iterator[tuple[Any, ...]]:
        number = 0
        for pair in range(scale.pairs):
            numbers = (pair + 1, pair // len(CPUS) + 1, pair % len(CPUS) + 1)
            for row in rows_of(numbers, _of_pair(scale), MEASURED):
                yield (number := number + 1, *row)
        for row in rows_of((scale.jobs + 1, scale.workloads + 1, 1), scale.large, WIDE_MEASURED):
            yield (number := number + 1, *row)

    return RECORD, rows()


def _store_libraries(sink: Sink, tasks: Sequence[SearchTask], kernels: Sequence[MicroKernel]) -> None:
    rows, contents, dispatches = [], [], []
    for index, task in enumerate(tasks):
        if index // len(CPUS) % 2 == 0:
            library, number = package(_dispatcher(task, kernels), b"\0" * 4096, "{}", {}, job_id(index + 1)), index + 1
            numbers = (number, index // len(CPUS) + 1, index % len(CPUS) + 1)
            rows.append((number, library.manifest["digest"], *numbers, 1, json.dumps(library.manifest), WHEN))
            contents += [(number, name, content) for name, content in library.files.items()]
            dispatches.append((number, json.dumps(library.dispatch)))
    columns = ["id", "digest", "search_task_id", "workload_id", "target_id", "threads", "manifest", "created_at"]
    sink.copy("artifacts", columns, rows)
    sink.copy("artifact_files", ["artifact_id", "name", "content"], contents)
    sink.copy("dispatchers", ["artifact_id", "dispatch"], dispatches)


def _dispatcher(task: SearchTask, kernels: Sequence[MicroKernel]) -> Dispatcher:
    """A kernel for each measured shape and those below it, and a table of the whole range."""
    tree: Tree = Leaf(LIBRARY_KERNELS - 1)
    for index in reversed(range(LIBRARY_KERNELS - 1)):
        tree = Node("m", 16 * MEASURED[index], Leaf(index), tree)
    table = tuple(TableRow({"T": t}, min(t // 16, LIBRARY_KERNELS - 1), 1.5e-6 * t) for t in range(1, LONGEST + 1))
    return Dispatcher(task, tuple(kernels[:LIBRARY_KERNELS]), 0, tree, table)
