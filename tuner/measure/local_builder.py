"""A Builder on child processes of this one: what `tune` uses in process."""

from __future__ import annotations

import os
import pickle
import queue
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tvm.support.popen_pool import PopenWorker

from tuner.library import codegen
from tuner.measure._base import BuildResult
from tuner.measure.building import Build, build_one, lost_build
from tuner.program.task import SearchTask
from tuner.rules.space import MicroKernel

BUILD_TIMEOUT_S = 30.0
BUILDS_PER_PROCESS = 200
"""A process is replaced after so many builds: what a compiler leaks must not add up over a long search."""


class LocalBuilder:
    """Builds on ``processes`` child processes (one per core unless said otherwise), started at the first build.

    The children end with this process, however it ends: they read from a pipe that it holds.
    """

    def __init__(
        self,
        build: Build = codegen.build_candidate,
        *,
        processes: int | None = None,
        timeout_s: float = BUILD_TIMEOUT_S,
        builds_per_process: int = BUILDS_PER_PROCESS,
    ) -> None:
        self._build = build
        self._timeout_s = timeout_s
        self._count = processes or len(os.sched_getaffinity(0))
        self._workers = [PopenWorker(maximum_uses=builds_per_process) for _ in range(self._count)]
        self._free: queue.SimpleQueue[PopenWorker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="build")
        self._closed = threading.Event()

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return list(self._threads.map(lambda kernel: self._build_one(task, kernel), kernels))

    def close(self) -> None:
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()

    def _build_one(self, task: SearchTask, kernel: MicroKernel) -> BuildResult:
        if self._closed.is_set():
            raise RuntimeError("this builder is closed")
        worker = self._free.get()
        started = time.monotonic()
        try:
            if not worker.is_alive():
                worker.kill()
                # Loading the compiler is not part of a build and must not count against its time.
                worker.send(_ready)
                worker.recv()
                started = time.monotonic()
            worker.send(build_one, (self._build, task, kernel, self._timeout_s))
            result: BuildResult = worker.recv()
        except (ChildProcessError, EOFError, struct.error, pickle.UnpicklingError):
            worker.kill()
            return lost_build(kernel, time.monotonic() - started, self._timeout_s)
        finally:
            self._free.put(worker)
        return result


def _ready() -> None:
    """Runs in a child to see it up."""
