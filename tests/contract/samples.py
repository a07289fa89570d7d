"""Values that the storage suites store, and short ways to the states that they start from."""

from __future__ import annotations

import time
from typing import Any

from tuner.program.job.jobspec import JobSpec, parse_job
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule.registry import RULES
from tuner.schedule.space import MicroKernel
from tuner.storage import KernelLatency, Lease, LookupScope
from tuner.storage.sql import Storage

LONG_S = 300.0
JOB: dict[str, Any] = {
    "name": "qkv",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 256, "k": 64}},
    "shape_vars": {"T": {"min": 1, "max": 128}},
    "instances": [{"T": 5}, {"T": 128, "weight": 2.0}],
    "target": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2},
    "budget": {"trials": 64},
}


def job_spec(k: int = 64, **fields: Any) -> JobSpec:
    """A job of one dense workload; ``k`` makes it another workload, ``fields`` replace the job's own."""
    workload = {"op": "dense", "args": {"m": "16*T", "n": 256, "k": k}}
    return parse_job(JOB | {"workload": workload} | fields)


def many_tasks() -> JobSpec:
    """A job of three tasks on two workloads."""
    first = JOB["workload"]
    other = {"op": "matmul", "args": {"m": "T", "n": 8, "k": 8}, "count": 12}
    return parse_job({**{k: v for k, v in JOB.items() if k != "workload"}, "workloads": [first, other, first]})


def kernel(number: int) -> MicroKernel:
    """A kernel of a rule version that this code has."""
    # The axes stand in no alphabetical order, and must come back as they stand.
    return MicroKernel(RULES[0].name, RULES[0].version, (("tile_m", number + 1), ("block_k", 64), ("unroll", 4)))


def results(count: int, start: int = 0, t: int = 5, **fields: Any) -> list[MeasureResult]:
    """Trials of as many kernels on T=t, the later the faster."""
    instance = WorkloadInstance.of({"T": t})
    return [
        MeasureResult(kernel(number), instance, **({"latency_s": 1.0 / (number + 1)} | fields))
        for number in range(start, start + count)
    ]


def leased(storage: Storage, spec: JobSpec | None = None) -> Lease:
    """A new job and the lease of it."""
    storage.create_job(spec or job_spec())
    return take(storage)


def take(storage: Storage, worker: str = "w1") -> Lease:
    lease = storage.lease_job(worker, LONG_S)
    assert lease is not None
    return lease


def expire(storage: Storage, lease: Lease) -> None:
    """Let the lease run out, by the database's clock."""
    storage.heartbeat(lease, 0.001)
    time.sleep(0.01)


def states(storage: Storage, job_id: str) -> list[str]:
    """What the job's state events say, in order."""
    return [event.data["state"] for event in storage.list_events(job_id) if event.kind == "state"]


def seqs(storage: Storage, job_id: str) -> list[int]:
    return [event.seq for event in storage.list_events(job_id)]


def best_at(
    storage: Storage, workload_key: str, target: str, instance: str, threads: int = 1, job_id: str | None = None
) -> KernelLatency | None:
    """The best kernel that was measured at this instance."""
    (known,) = storage.look_up([(LookupScope(workload_key, target, threads, job_id), instance)])
    return known.best
