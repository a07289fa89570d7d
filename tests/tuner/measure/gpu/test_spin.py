"""The anchor of a GPU, with a driver that writes down what it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.measure.gpu.spin import HOLD_S, LOOPS, Spin

LOOP_S = 25e-9


class Asked:
    """As tuner.measure.gpu.driver.Driver, for Spin: ``calls`` in order, a launch as its turns."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def function(self, code: bytes, name: str) -> str:
        return name

    def allocate(self, size: int) -> int:
        return 256

    def event(self) -> int:
        return 0

    def record(self, event: int) -> None:
        self.calls.append("record")

    def launch(self, function: str, blocks: int, threads: int, out: Any, loops: Any) -> None:
        self.calls.append(loops.value)

    def seconds(self, first: int, second: int) -> float:
        return LOOPS * LOOP_S


def test_the_stream_is_busy_before_the_first_event() -> None:
    """An event on an idle stream is over at once: what follows would have the time of its launch in it."""
    driver = Asked()
    assert Spin(driver, 132).seconds() == pytest.approx(LOOPS * LOOP_S)  # type: ignore[arg-type]
    assert driver.calls == [LOOPS, "record", LOOPS, "record"]


def test_a_stream_is_held_as_long_as_asked_and_never_longer_than_a_bound() -> None:
    driver = Asked()
    spin = Spin(driver, 132)  # type: ignore[arg-type]
    spin.seconds()
    driver.calls.clear()
    spin.hold(1e-3)
    spin.hold(1.0)
    assert driver.calls == [pytest.approx(1e-3 / LOOP_S, abs=1), pytest.approx(HOLD_S / LOOP_S, abs=1)]
