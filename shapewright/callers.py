"""Who calls libraries of several threads: TVM makes a pool of threads for each thread that does, and keeps it for ever.

So MAX_CALLERS threads call by themselves, and the main thread does. Whoever comes later is called for by a few
threads of this module, as many as keep the cores busy: that takes some tens of microseconds more. A process that was
forked starts anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

MAX_CALLERS = 8
"""Threads that ever call by themselves, beside the main thread: also those that have ended, since their pools stay."""
MAX_THREADS = "TVM_NUM_THREADS"
BIG_CORES = 1
"""TVM's mode of a pool whose threads go to the fastest cores, which on most machines are all."""


class Pool(threading.local):
    """TVM's pool of the calling thread."""

    threads = 0
    """The number of threads that was set; 0: there is no pool."""
    is_allowed: bool | None = None
    """Whether there may be a pool; None: not decided yet."""


class _Call:
    """A call that is handed over."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.call()
        except BaseException as error:
            self.error = error
        self.done.release()


pool = Pool()


class Callers:
    """The threads of one process that have pools."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Return to the state of a process in which no library was called."""
        self._lock = threading.Lock()
        self._count = 0
        self._helpers = 0
        self._waiting = 0
        """Calls that are handed over and not done."""
        self._calls: SimpleQueue[_Call] = SimpleQueue()

    def is_ready(self, threads: int) -> bool:
        """Whether parallel loops that this thread starts run on ``threads`` from here on. If not, ``hand_over``."""
        if pool.is_allowed is None:
            with self._lock:
                is_main = threading.get_ident() == threading.main_thread().ident
                pool.is_allowed = is_main or self._count < MAX_CALLERS
                self._count += pool.is_allowed and not is_main
        if not pool.is_allowed:
            return False
        with self._lock:  # of the environment
            _size_pool(threads)
        return True

    def hand_over(self, call: Callable[[], object], threads: int) -> None:
        """Have a thread that may have a pool of ``threads`` call, and wait for it. Raises what ``call`` does."""
        handed = _Call(call)
        with self._lock:
            self._waiting += 1
            if self._helpers < min(self._waiting, max(1, len(os.sched_getaffinity(0)) // threads)):
                threading.Thread(target=self._help, name="shapewright-caller", daemon=True).start()
                self._helpers += 1
        try:
            self._calls.put(handed)
            handed.done.acquire()
        finally:
            with self._lock:
                self._waiting -= 1
        if handed.error is not None:
            raise handed.error

    def _help(self) -> None:
        pool.is_allowed = True
        while True:
            self._calls.get().run()


callers = Callers()


def _size_pool(threads: int) -> None:
    """Have parallel loops that this thread starts run on ``threads``; TVM's own choice is half of the machine's. Those
    of ``shapewright.runtime`` stand in where there is no TVM.

    TVM reads the most that it may use from the environment when it makes a thread's pool, which ``configure`` does.
    """
    import tvm_ffi  # noqa: PLC0415 - a second of import time that only users of a library should pay

    configure: Any = tvm_ffi.get_global_func("runtime.config_threadpool", allow_missing=True)
    if configure is None:
        pool.threads = threads
        return
    before = os.environ.get(MAX_THREADS)
    os.environ[MAX_THREADS] = str(max(threads, int(before or 0)))
    try:
        configure(BIG_CORES, threads)
    finally:
        if before is None:
            del os.environ[MAX_THREADS]
        else:
            os.environ[MAX_THREADS] = before
    pool.threads = threads


def _start_anew() -> None:
    """Start anew in a process that was forked: of all threads there is this one, and its pool's threads are gone, for
    which a call would wait for ever."""
    callers.start_anew()
    pool.is_allowed = False if pool.threads else None
    pool.threads = 0


os.register_at_fork(after_in_child=_start_anew)
