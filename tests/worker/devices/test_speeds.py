"""How fast devices are by the anchors of their trials, and what becomes of those that are throttled or noisy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.samples import results
from tests.fakes import FakeClock
from tuner.device_speed import RECENT, USUAL, assess
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.storage import Device, DeviceSpeed, DeviceState, SpeedState, StorageUnavailable
from worker.devices.speeds import ASK_AGAIN_S, STORE_EVERY_S, DeviceSpeeds

FAST, SLOW = 1e-5, 1.4e-5


def readings(device: str, anchor_s: float, count: int = RECENT) -> list[MeasureResult]:
    return [replace(result, device=device, anchor_s=anchor_s) for result in results(count)]


@dataclass
class Account:
    """Keeps what is stored of devices."""

    stored: list[tuple[str, DeviceSpeed]] = field(default_factory=list)
    is_away: bool = False

    def device_speed(self, device_id: str, speed: DeviceSpeed) -> None:
        if self.is_away:
            raise StorageUnavailable("the database is away")
        self.stored.append((device_id, speed))


@dataclass
class Bed:
    account: Account = field(default_factory=Account)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.speeds = DeviceSpeeds(self.account, self.clock)  # type: ignore[arg-type]

    @property
    def states(self) -> list[tuple[str, SpeedState]]:
        return [(name, speed.state) for name, speed in self.account.stored]


def test_too_few_readings_say_nothing() -> None:
    assert assess([FAST] * (RECENT - 1)) is None


@pytest.mark.parametrize(
    ("anchors_s", "state"),
    [
        ([FAST] * 100, SpeedState.STEADY),
        ([FAST] * 100 + [SLOW] * RECENT, SpeedState.THROTTLED),
        ([SLOW] * 100 + [FAST] * RECENT, SpeedState.STEADY),
        ([FAST, 1.2 * FAST] * 50, SpeedState.STEADY),
        ([FAST, 1.24 * FAST] * 50, SpeedState.NOISY),
    ],
)
def test_a_device_is_steady_throttled_or_noisy(anchors_s: list[float], state: SpeedState) -> None:
    speed = assess(anchors_s)
    assert speed is not None
    assert speed.state is state


def test_a_device_that_was_throttled_from_the_start_is_told_by_what_is_stored() -> None:
    assert assess([SLOW] * RECENT) == DeviceSpeed(SpeedState.STEADY, SLOW, SLOW, 0.0)
    assert assess([SLOW] * RECENT, FAST) == DeviceSpeed(SpeedState.THROTTLED, SLOW, FAST, 0.0)
    # Readings enough of its own say more: it may be another machine by now.
    assert assess([SLOW] * USUAL, FAST) == DeviceSpeed(SpeedState.STEADY, SLOW, SLOW, 0.0)


@given(st.lists(st.floats(1e-6, 1e-3), min_size=RECENT, max_size=200), st.floats(0.1, 10.0))
def test_the_state_does_not_depend_on_the_unit(anchors_s: list[float], unit: float) -> None:
    one, other = assess(anchors_s), assess([unit * each for each in anchors_s])
    assert one is not None and other is not None
    assert other.slowdown == pytest.approx(one.slowdown)
    assert other.spread == pytest.approx(one.spread, abs=1e-9)


def test_a_change_is_stored_at_once_and_the_rest_now_and_then() -> None:
    bed = Bed()
    for _ in range(5):
        bed.speeds.observe(readings("a", FAST))
    assert bed.states == [("a", SpeedState.STEADY)]
    bed.speeds.observe(readings("a", SLOW))
    assert bed.states[1:] == [("a", SpeedState.THROTTLED)]
    bed.clock.now_s += STORE_EVERY_S
    # Nothing was measured since.
    bed.speeds.observe([])
    assert len(bed.states) == 2
    bed.speeds.observe(readings("a", FAST))
    assert bed.states[2:] == [("a", SpeedState.STEADY)]


def test_a_throttled_device_is_asked_now_and_then_until_it_is_steady() -> None:
    bed = Bed()
    bed.speeds.observe([*readings("a", FAST), *readings("b", FAST)])
    bed.speeds.observe(readings("a", SLOW))
    assert bed.speeds.should_rest("a")
    assert not bed.speeds.should_rest("b")
    assert not bed.speeds.should_rest("nobody knows it")
    bed.clock.now_s += ASK_AGAIN_S
    assert not bed.speeds.should_rest("a")
    bed.speeds.observe(readings("a", SLOW, 1))
    assert bed.speeds.should_rest("a")
    bed.clock.now_s += ASK_AGAIN_S
    bed.speeds.observe(readings("a", FAST))
    assert not bed.speeds.should_rest("a")


def test_what_another_worker_stored_is_known() -> None:
    bed = Bed()
    speed = DeviceSpeed(SpeedState.STEADY, FAST, FAST, 0.0)
    moment = "2026-01-01T00:00:00Z"
    bed.speeds.know([Device("a", "rack", native(), DeviceState.READY, {}, moment, moment, speed=speed)])
    bed.speeds.observe(readings("a", SLOW))
    assert bed.states == [("a", SpeedState.THROTTLED)]


def test_trials_that_say_nothing_of_a_device_are_left_out() -> None:
    bed = Bed()
    bed.speeds.observe([replace(each, device=None) for each in readings("a", FAST)])
    bed.speeds.observe([replace(each, anchor_s=None) for each in readings("a", FAST)])
    assert bed.states == []


def test_a_database_that_is_away_costs_the_search_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    bed.account.is_away = True
    bed.speeds.observe(readings("a", FAST))
    assert "could not be stored: the database is away" in caplog.text
