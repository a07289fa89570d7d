from __future__ import annotations

from collections.abc import Callable

import pytest

from tuner.storage import LeaseLost, StorageUnavailable
from worker.jobs.retry import Retry


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def failing(times: int) -> Callable[[], str]:
    left = [times]

    def call() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise StorageUnavailable("away")
        return "stored"

    return call


def retry(clock: Clock, limit_s: float = 60.0) -> Retry:
    return Retry(limit_s, 1.0, clock=lambda: clock.now_s, sleep=clock.sleep)


def test_an_outage_is_waited_out_with_growing_waits() -> None:
    clock = Clock()
    assert retry(clock)(failing(5)) == "stored"
    assert clock.slept == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_retrying_ends_at_the_limit() -> None:
    clock = Clock()
    with pytest.raises(StorageUnavailable):
        retry(clock, limit_s=10.0)(failing(100))
    assert clock.now_s <= 10.0


def test_a_lost_lease_ends_the_wait_and_nothing_is_called() -> None:
    clock = Clock()
    calls: list[int] = []
    with pytest.raises(LeaseLost):
        retry(clock)(lambda: calls.append(1), lambda: True)
    assert calls == []
    with pytest.raises(LeaseLost):
        retry(clock)(failing(100), lambda: clock.now_s > 3)
