"""Locks of modules in processes that are forked while other threads take them."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shapewright import forks, pages
from shapewright.torch import native, plan

WITHIN_S = 60.0
FORKS = 10


@pytest.mark.parametrize("lock", [pages._lock, native._lock, plan._shared_lock], ids=["pages", "native", "plan"])
def test_a_lock_is_free_in_a_forked_process_whatever_other_threads_do(lock: Any) -> None:
    with _taken_again_and_again(lock):
        assert [_answer_of(lock) for _ in range(FORKS)] == [0] * FORKS
    assert lock.acquire(timeout=WITHIN_S)
    lock.release()


def test_a_thread_that_has_the_lock_may_fork() -> None:
    lock = forks.lock()
    with lock:
        assert _answer_of(lock) == 0


def _answer_of(lock: Any) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=_take, args=(lock,))
    process.start()
    process.join(WITHIN_S)
    process.kill()
    return process.exitcode


def _take(lock: Any) -> None:
    if not lock.acquire(timeout=WITHIN_S / 4):
        raise SystemExit(1)
    lock.release()


@contextmanager
def _taken_again_and_again(lock: Any) -> Iterator[None]:
    over, started = threading.Event(), threading.Event()

    def take() -> None:
        while not over.is_set():
            with lock:
                started.set()
                over.wait(0.001)

    thread = threading.Thread(target=take)
    thread.start()
    assert started.wait(WITHIN_S)
    try:
        yield
    finally:
        over.set()
        thread.join(WITHIN_S)
