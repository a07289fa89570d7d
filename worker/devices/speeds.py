"""How fast devices are, by the fixed piece of work that is timed beside every trial: throttled and noisy ones."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tuner.device_speed import USUAL, DeviceSpeed, SpeedState, assess
from tuner.records import MeasureResult
from tuner.storage import Device
from tuner.storage.sql import DeviceStorage

log = logging.getLogger(__name__)

STORE_EVERY_S = 60.0
ASK_AGAIN_S = 60.0
"""How long a device that is throttled or noisy is left alone while there are others."""


@dataclass
class _Readings:
    anchors_s: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL))
    speed: DeviceSpeed | None = None
    known_usual_s: float | None = None
    is_changed: bool = False
    measured_s: float = float("-inf")
    stored_s: float = float("-inf")


class DeviceSpeeds:
    """Follows the devices that measure for this worker, and stores what becomes of them. For use from any thread."""

    def __init__(self, storage: DeviceStorage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = storage, clock
        self._lock = threading.Lock()
        self._devices: dict[str, _Readings] = {}

    def know(self, devices: Iterable[Device]) -> None:
        """Take in what is stored of devices that this worker has not measured on yet."""
        with self._lock:
            for device in devices:
                if device.id not in self._devices and device.speed is not None:
                    self._devices[device.id] = _Readings(known_usual_s=device.speed.usual_s)

    def observe(self, results: Iterable[MeasureResult]) -> None:
        """Take in trials. Never raises."""
        changed: dict[str, DeviceSpeed] = {}
        with self._lock:
            for result in results:
                if result.device is not None and result.anchor_s:
                    self._add(result.device, result.anchor_s)
            for name, readings in self._devices.items():
                if (speed := self._to_store(readings)) is not None:
                    changed[name] = speed
        for name, speed in changed.items():
            try:
                self._storage.device_speed(name, speed)
            except Exception as error:
                # The account of a device is worth less than the search that measures on it.
                log.warning("device %s is %s, which could not be stored: %s", name, speed, error)

    def should_rest(self, device_id: str) -> bool:
        """Whether other devices are to be preferred to it for now."""
        with self._lock:
            readings = self._devices.get(device_id)
            if readings is None or readings.speed is None or readings.speed.state is SpeedState.STEADY:
                return False
            return self._clock() - readings.measured_s < ASK_AGAIN_S

    def _add(self, name: str, anchor_s: float) -> None:
        readings = self._devices.setdefault(name, _Readings())
        readings.anchors_s.append(anchor_s)
        readings.measured_s, readings.is_changed = self._clock(), True

    def _to_store(self, readings: _Readings) -> DeviceSpeed | None:
        """The speed, if it has changed its state or was stored long ago."""
        if not readings.is_changed:
            return None
        before = readings.speed
        was = SpeedState.STEADY if before is None else before.state
        speed = assess(tuple(readings.anchors_s), readings.known_usual_s, was)
        readings.speed, readings.is_changed = speed, False
        if speed is None:
            return None
        is_new = before is None or before.state is not speed.state
        if not is_new and self._clock() - readings.stored_s < STORE_EVERY_S:
            return None
        readings.stored_s = self._clock()
        return speed
