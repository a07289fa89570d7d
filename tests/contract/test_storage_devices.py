"""Devices that fail: counted, quarantined for a while, on probation, released."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from tests.calibrated import FOUND as CALIBRATION
from tuner.program.target import native
from tuner.program.target.calibration import VERSION
from tuner.storage import QUARANTINE_AFTER, DeviceSpeed, DeviceState, NotFound, SpeedState
from tuner.storage.devices import FIRST_QUARANTINE_S, LONGEST_QUARANTINE_S, MAX_CALIBRATIONS
from tuner.storage.sql import Storage
from tuner.storage.sql.columns import later
from tuner.storage.sql.schema import devices


@pytest.fixture
def device(storage: Storage) -> str:
    storage.register_device("rack-1", "rack", native(), {})
    return "rack-1"


def state_of(storage: Storage) -> DeviceState:
    (device,) = storage.list_devices()
    return device.state


def fail(storage: Storage, times: int) -> None:
    for _ in range(times):
        storage.device_failed("rack-1", "it does not answer")


def let_pass(storage: Storage) -> None:
    """The quarantine's time."""
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        connection.execute(update(devices).values(quarantined_until=later(-1.0)))


def test_failures_in_a_row_end_in_a_quarantine_that_says_why(storage: Storage, device: str) -> None:
    fail(storage, QUARANTINE_AFTER - 1)
    assert state_of(storage) is DeviceState.READY
    result = storage.device_failed(device, "the disk is full")
    assert (result.state, result.failures, result.reason) == (DeviceState.QUARANTINED, 3, "the disk is full")
    assert result.quarantined_until is not None
    assert storage.list_devices() == (result,)
    entry = storage.list_audit(subject=device).items[0]
    assert (entry.action, entry.detail["wait_s"]) == ("device.quarantine", FIRST_QUARANTINE_S)


def test_work_done_in_between_starts_the_count_again(storage: Storage, device: str) -> None:
    fail(storage, QUARANTINE_AFTER - 1)
    storage.device_worked(device)
    fail(storage, QUARANTINE_AFTER - 1)
    assert state_of(storage) is DeviceState.READY


def test_a_quarantine_ends_in_probation_where_one_failure_makes_a_longer_one(storage: Storage, device: str) -> None:
    fail(storage, QUARANTINE_AFTER)
    let_pass(storage)
    assert state_of(storage) is DeviceState.PROBATION
    fail(storage, 1)
    assert state_of(storage) is DeviceState.QUARANTINED
    assert storage.list_audit(subject=device).items[0].detail["wait_s"] == 2 * FIRST_QUARANTINE_S
    let_pass(storage)
    storage.device_worked(device)
    (good,) = storage.list_devices()
    assert (good.state, good.failures, good.reason, good.quarantined_until) == (DeviceState.READY, 0, "", None)


def test_no_quarantine_is_for_ever(storage: Storage, device: str) -> None:
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        connection.execute(update(devices).values(failures=5000))
    fail(storage, 1)
    assert storage.list_audit(subject=device).items[0].detail["wait_s"] == LONGEST_QUARANTINE_S


def test_what_somebody_quarantined_stays_so_until_it_is_released(storage: Storage, device: str) -> None:
    result = storage.quarantine_device(device, "its fan is loud", "key-1")
    assert (result.state, result.reason, result.quarantined_until) == (DeviceState.QUARANTINED, "its fan is loud", None)
    fail(storage, QUARANTINE_AFTER + 1)
    storage.device_worked(device)
    storage.register_device(device, "rack", native(), {})
    assert state_of(storage) is DeviceState.QUARANTINED
    assert storage.list_devices()[0].reason == "its fan is loud"
    assert storage.release_device(device, "key-2").state is DeviceState.READY
    assert [(each.actor, each.action) for each in storage.list_audit(subject=device).items[:2]] == [
        ("key-2", "device.release"),
        ("key-1", "device.quarantine"),
    ]


def test_a_device_that_is_not_known_cannot_be_quarantined(storage: Storage) -> None:
    with pytest.raises(NotFound, match="no device 'none'"):
        storage.quarantine_device("none", "", "key-1")
    with pytest.raises(NotFound, match="no device 'none'"):
        storage.release_device("none", "key-1")
    with pytest.raises(NotFound, match="no device 'none'"):
        storage.device_failed("none", "gone")
    storage.device_worked("none")


def test_the_speed_of_a_device_is_kept_and_a_change_of_its_state_noted(storage: Storage, device: str) -> None:
    assert storage.list_devices()[0].speed is None
    steady = DeviceSpeed(SpeedState.STEADY, 1.1e-5, 1e-5, 0.02)
    throttled = DeviceSpeed(SpeedState.THROTTLED, 1.4e-5, 1e-5, 0.02)
    for speed in (steady, throttled, throttled, steady):
        storage.device_speed(device, speed)
        assert storage.list_devices()[0].speed == speed
    changes = [entry.detail for entry in storage.list_audit(subject=device).items if entry.action == "device.speed"]
    assert changes == [
        {"speed": "steady", "was": "throttled", "slowdown": 1.1},
        {"speed": "throttled", "was": "steady", "slowdown": 1.4},
    ]
    assert str(throttled) == "throttled: reference work takes 1.40 times as long as usual"


def test_the_speed_of_a_device_that_is_not_there_is_nobodys(storage: Storage) -> None:
    storage.device_speed("nobody", DeviceSpeed(SpeedState.STEADY, 1e-5, 1e-5, 0.0))
    assert storage.list_devices() == ()


def test_a_calibration_is_kept_until_another_for_the_same_threads_and_target_takes_its_place(
    storage: Storage, device: str
) -> None:
    assert storage.list_devices()[0].calibrations == ()
    again, of_two = replace(CALIBRATION, error_after=0.04), replace(CALIBRATION, threads=2)
    elsewhere = replace(CALIBRATION, target="llvm-other-0123")
    for each in (CALIBRATION, of_two, elsewhere, again):
        storage.device_calibrated(device, each)
    (known,) = storage.list_devices()
    assert known.calibrations == (of_two, elsewhere, again)
    assert known.calibration(native(), 1) == again
    assert known.calibration(native(), 2) == of_two
    assert known.calibration(native(), 4) is None
    storage.register_device(device, "rack", native(), {})
    assert storage.list_devices()[0].calibrations == known.calibrations


def test_a_calibration_of_another_version_is_kept_and_not_used(storage: Storage, device: str) -> None:
    storage.device_calibrated(device, replace(CALIBRATION, version=VERSION + 1))
    (known,) = storage.list_devices()
    assert len(known.calibrations) == 1
    assert known.calibration(native(), 1) is None


def test_a_calibration_that_cannot_be_read_costs_no_device(storage: Storage, device: str) -> None:
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        connection.execute(update(devices).values(calibrations=[{"version": 9, "target": "t", "threads": 1}]))
    assert storage.list_devices()[0].calibrations == ()
    storage.device_calibrated(device, CALIBRATION)
    assert storage.list_devices()[0].calibrations == (CALIBRATION,)


def test_only_so_many_calibrations_are_kept_the_newest(storage: Storage, device: str) -> None:
    for threads in range(1, MAX_CALIBRATIONS + 3):
        storage.device_calibrated(device, replace(CALIBRATION, threads=threads))
    kept = [each.threads for each in storage.list_devices()[0].calibrations]
    assert kept == list(range(3, MAX_CALIBRATIONS + 3))


def test_the_calibration_of_a_device_that_is_not_there_is_nobodys(storage: Storage) -> None:
    storage.device_calibrated("nobody", CALIBRATION)
    assert storage.list_devices() == ()
