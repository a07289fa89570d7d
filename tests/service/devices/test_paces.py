from __future__ import annotations

from service.devices.paces import paces
from tuner.program.target import native
from tuner.storage import Device, DeviceSpeed, DeviceState, SpeedState


def device(name: str, usual_s: float | None, recent_s: float | None = None, key: str = "rack") -> Device:
    speed = None
    if usual_s is not None:
        recent_s = recent_s or usual_s
        state = SpeedState.THROTTLED if recent_s > usual_s else SpeedState.STEADY
        speed = DeviceSpeed(state, recent_s, usual_s, 0.01)
    moment = "2026-01-01T00:00:00Z"
    return Device(name, key, native(), DeviceState.READY, {}, moment, moment, speed=speed)


def test_devices_that_agree_and_are_steady_need_no_word() -> None:
    assert paces([device("a", 1e-5), device("b", 1.05e-5), device("c", None)]) == {"a": "", "b": "", "c": ""}


def test_a_throttled_device_says_by_how_much() -> None:
    assert paces([device("a", 1e-5, 1.5e-5)]) == {"a": "throttled: reference work takes 1.50 times as long as usual"}


def test_devices_of_a_key_that_differ_are_told_apart() -> None:
    told = paces([device("a", 1e-5), device("b", 1e-5), device("c", 1.3e-5)])
    assert told == {"a": "", "b": "", "c": "usually 1.30 times as slow as the others of its key"}
    two = paces([device("a", 1e-5), device("b", 2e-5)])
    assert two["a"] == "usually 2.00 times as fast as the others of its key"
    assert two["b"] == "usually 2.00 times as slow as the others of its key"


def test_devices_of_different_keys_need_not_agree() -> None:
    assert paces([device("a", 1e-5), device("b", 2e-5, key="other")]) == {"a": "", "b": ""}
