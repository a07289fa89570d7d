"""A Builder on child processes of this one: what `tune` uses in process."""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tvm.support.popen_pool import PopenWorker

from tuner import without_torch
from tuner.library.build import build_library, compile_candidate
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure._base import BuildResult
from tuner.measure.builders.child import Build, Link, Objects, build_one, link_one, link_timeout_s, linked, lost_build
from tuner.measure.machine import oom_kills
from tuner.program.job.task import SearchTask
from tuner.schedule.space import MicroKernel

T = TypeVar("T")
WORKER = f"import {without_torch.__name__} as alone; alone.install(); from tvm.exec.popen_worker import main; main()"
"""What a child process runs: TVM's own worker, which would import PyTorch where that is installed."""
BUILD_TIMEOUT_S = 30.0
BUILDS_PER_PROCESS = 200
"""The number of builds after which a process is replaced: what a compiler leaks must not add up over a long search."""


class _Worker(PopenWorker):  # type: ignore[misc]
    """A child process of WORKER. The thread that uses it and the one that closes the builder may both end it."""

    _proc: Any

    def __init__(self, *, maximum_uses: int) -> None:
        self._changing = threading.RLock()
        super().__init__(maximum_uses=maximum_uses)

    def kill(self) -> None:
        with self._changing:
            super().kill()

    def _start(self) -> None:
        with self._changing:
            if self._proc is not None:
                return
            answers, their_answers = os.pipe()
            their_questions, questions = os.pipe()
            command = [sys.executable, "-c", WORKER, str(their_questions), str(their_answers)]
            self._proc = subprocess.Popen(command, pass_fds=(their_questions, their_answers))
            os.close(their_questions)
            os.close(their_answers)
            self._reader, self._writer = os.fdopen(answers, "rb"), os.fdopen(questions, "wb")


class LocalBuilder:
    """Builds on ``processes`` child processes (one per core unless said otherwise), started at the first build.

    The children end with this process, however it ends: they read from a pipe that it holds.
    """

    def __init__(
        self,
        build: Build = compile_candidate,
        link: Link = build_library,
        *,
        processes: int | None = None,
        timeout_s: float = BUILD_TIMEOUT_S,
        builds_per_process: int = BUILDS_PER_PROCESS,
    ) -> None:
        self._build, self._link = build, link
        self._timeout_s = timeout_s
        self._count = processes or len(os.sched_getaffinity(0))
        self._workers = [_Worker(maximum_uses=builds_per_process) for _ in range(self._count)]
        # The one that was used last comes first: it has loaded the compiler.
        self._free: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="build")
        self._closed = threading.Event()

    def start(self) -> None:
        """Let a process load the compiler, without waiting for it."""
        self._threads.submit(self._in_child, _ready)

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return list(self._threads.map(lambda kernel: self._build_one(task, kernel), kernels))

    def close(self) -> None:
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Objects) -> LibraryFiles:
        limit_s = link_timeout_s(dispatcher)
        answer, spent_s, is_killed = self._in_child(link_one, self._link, dispatcher, job_id, objects, limit_s)
        return linked(answer, dispatcher, spent_s, is_killed=is_killed)

    def _build_one(self, task: SearchTask, kernel: MicroKernel) -> BuildResult:
        result, spent_s, is_killed = self._in_child(build_one, self._build, task, kernel, self._timeout_s)
        return result or lost_build(kernel, spent_s, self._timeout_s, is_killed=is_killed)

    def _in_child(self, function: Callable[..., T], *args: Any) -> tuple[T | None, float, bool]:
        """What it returns, None if its process ended under it; the seconds that it took; and whether memory ran out
        meanwhile, which ends whatever process is the largest."""
        if self._closed.is_set():
            raise RuntimeError("this builder is closed")
        worker = self._free.get()
        started, kills = time.monotonic(), oom_kills()
        try:
            if not worker.is_alive():
                worker.kill()
                # Loading the compiler is not part of a build and must not count against its time.
                worker.send(_ready)
                worker.recv()
                started = time.monotonic()
            worker.send(function, args)
            result: T | None = worker.recv()
            return result, time.monotonic() - started, False
        except (ChildProcessError, EOFError, struct.error, pickle.UnpicklingError):
            spent_s = time.monotonic() - started
            worker.kill()
            return None, spent_s, oom_kills() > kills
        finally:
            if self._closed.is_set():
                # It may have been started after the others were ended.
                worker.kill()
            self._free.put(worker)


def _ready() -> None:
    """Runs in a child to see it up."""
