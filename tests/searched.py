"""Searches on the synthetic device, recorded in a real database as a worker records them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes import FakeBuilder, FakeRunner, latency_s
from tests.searching import quick_policies
from tests.serving import lease
from tuner.library import codegen
from tuner.measure import Builder, Runner, RunRequest, never
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.storage import Job
from tuner.storage.sql import Storage
from worker.jobs.runner import JobRunner

SMALL: dict[str, Any] = {
    "name": "a small layer",
    "workload": {"op": "dense", "args": {"m": "8*T", "n": 96, "k": 32}},
    "shape_vars": {"T": {"min": 1, "max": 32}},
    "instances": [{"T": 1}, {"T": 7, "weight": 3.0}, {"T": 20}, {"T": 32}],
    "budget": {"trials": 24},
    "max_kernels": 4,
}


@dataclass
class SlowRunner(FakeRunner):
    """Takes real time for each request."""

    pause_s: float = 0.0

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        time.sleep(self.pause_s * len(requests))
        return super().run(task, requests, interrupted)


@dataclass
class Tools:
    """What a worker builds and measures with, here the synthetic device."""

    pause_s: float = 0.0
    crashes: Callable[[MicroKernel], bool] = lambda kernel: False
    time: Callable[[SearchTask, MicroKernel, Mapping[str, int]], float] = latency_s
    made: list[Runner] = field(default_factory=list)

    def builder(self) -> Builder:
        return FakeBuilder()

    def runner(self, key: str) -> Runner:
        self.made.append(SlowRunner(crashes=self.crashes, time=self.time, pause_s=self.pause_s))
        return self.made[-1]

    def parallel_builds(self, key: str, threads: int) -> int:
        return 1


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Inside, searches and their models are small, and what a compiler would make is a stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        quick_policies(patch)
        patch.setattr(codegen, "module_of", lambda task, kernels, tree: kernels)
        patch.setattr(codegen, "object_of", lambda task, kernel: b"object")
        patch.setattr(codegen, "link", lambda task, kernels, tree, objects: repr(kernels).encode())
        patch.setattr(codegen, "module_json", lambda module: "{}")
        patch.setattr(codegen, "kernel_scripts", lambda kernels, count: [f"# {each}" for each in kernels])
        yield


def submitted(storage: Storage, **fields: Any) -> Job:
    """A new job like SMALL with ``fields`` in place of its own; one that is ``...`` is left out."""
    whole = {name: value for name, value in (SMALL | fields).items() if value is not ...}
    return storage.create_job(parse_job(whole).on(native()))[0]


def searched(storage: Storage, tools: Tools | None = None, /, **fields: Any) -> Job:
    """A job like SMALL, searched to its end."""
    job = submitted(storage, **fields)
    with nothing_compiled():
        JobRunner(storage, tools or Tools()).run(lease(storage))
    return storage.get_job(job.id)


@contextmanager
def searching(storage: Storage, tools: Tools, **fields: Any) -> Iterator[Job]:
    """Inside, a job like SMALL is being searched; it is told to stop at the end, if it goes on by then."""
    job = submitted(storage, **fields)
    stop = threading.Event()
    runner = JobRunner(storage, tools, stopping=stop.is_set, heartbeat_s=0.2)
    with nothing_compiled():
        thread = threading.Thread(target=runner.run, args=(lease(storage),), daemon=True)
        thread.start()
        try:
            yield job
        finally:
            stop.set()
            thread.join(30)
            assert not thread.is_alive(), "the search did not stop"
