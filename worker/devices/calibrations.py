"""Rates of the devices of a key: read from the database, or measured before the first search on one of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tuner.calibration import LevelRunner, calibrate
from tuner.calibration.calibrate import CALIBRATION_S, KINDS
from tuner.errors import ShapewrightError
from tuner.measure import Builder, DeviceBusy, DeviceLost
from tuner.measure.network.addresses import Address
from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.program.target.calibration import Calibration
from tuner.program.target.rates import TYPICAL, Rates
from tuner.storage.sql import DeviceStorage
from worker.devices.registry import DeviceList, KnownDevice

Say = Callable[[str], None]
RatesOf = Callable[[str, SearchTask, Callable[[], bool], Say], Rates]
"""``rates_of(key, task, interrupted, say)``: what theory takes for the devices of a tracker key. Never raises.

``say`` is told what the search waits for, before and after, in words.
"""
AGAIN_S = 1800.0
"""How long a device is left alone that could not be calibrated: searches must not wait for it one after another."""
TURN_S = 120.0
"""How long a search waits for another one's calibration: twice what one may take."""
LOOK_S = 0.5

log = logging.getLogger(__name__)


def silent(text: str) -> None:
    """``Say`` where nobody listens."""


def typical(key: str, task: SearchTask, interrupted: Callable[[], bool], say: Say = silent) -> Rates:
    """``RatesOf`` without calibrations."""
    return TYPICAL


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may be calibrated. ``report`` takes note of what it failed over."""

    id: str
    is_free: Callable[[], bool]
    runner: Callable[[], LevelRunner]
    report: Callable[[str | None], None]


class Calibrate(Protocol):
    """tuner.calibration.calibrate."""

    def __call__(
        self, target: Target, threads: int, *, builder: Builder, runner: LevelRunner, interrupted: Callable[[], bool]
    ) -> Calibration | None: ...


class Calibrations:
    """What devices were measured to do, for theory. ``candidates`` are those of a key, in order of id.

    One device stands for all of a key and a target: searches measure on all of them, and compare latencies at one
    speed. It is the first that has a calibration of this version for the task's target and threads, else the first
    that is free, which is calibrated now; none is waited for that measures for somebody else. For use from several
    threads: of one key one device is calibrated at a time, and the others wait for it.
    """

    def __init__(
        self,
        storage: DeviceStorage,
        candidates: Callable[[str], Sequence[Candidate]],
        builder: Callable[[], Builder],
        make: Calibrate = calibrate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._candidates, self._builder = storage, candidates, builder
        self._make, self._clock = make, clock
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failed_s: dict[tuple[str, str, int], float] = {}

    def rates(self, key: str, task: SearchTask, interrupted: Callable[[], bool], say: Say = silent) -> Rates:
        """A ``RatesOf``: the typical rates where there is no calibration and none can be made."""
        if task.known_target.kind not in KINDS:
            return TYPICAL
        turn, until_s = self._turns[key], self._clock() + TURN_S
        if turn.locked():
            say(f"waiting until another job has calibrated a device of {key!r}, up to {CALIBRATION_S:.0f} s")
        while not turn.acquire(timeout=LOOK_S):
            if interrupted() or self._clock() > until_s:
                log.info("theory takes typical rates: another search still waits for a calibration of %r", key)
                return TYPICAL
        try:
            calibration = self._stored(key, task) or self._made(key, task, interrupted, say)
        except Exception as error:
            # Rates are worth less than the search that would begin with them.
            log.warning("theory takes typical rates for devices of %r: %s", key, error, exc_info=_is_defect(error))
            return TYPICAL
        finally:
            turn.release()
        return TYPICAL if calibration is None else calibration.rates

    def _stored(self, key: str, task: SearchTask) -> Calibration | None:
        known = {device.id: device for device in self._storage.list_devices()}
        devices = (known[each.id] for each in self._candidates(key) if each.id in known)
        stored = (device.calibration(task.known_target, task.threads) for device in devices)
        return next((each for each in stored if each is not None), None)

    def _expected(self) -> str:
        """How long a calibration takes, by those that were made before."""
        took = [each.seconds for device in self._storage.list_devices() for each in device.calibrations]
        return f"about {max(took):.0f} s, as before" if took else f"up to {CALIBRATION_S:.0f} s"

    def _made(self, key: str, task: SearchTask, interrupted: Callable[[], bool], say: Say) -> Calibration | None:
        target, threads = task.known_target, task.threads
        for device in self._candidates(key):
            what = device.id, target.fingerprint, threads
            if self._clock() - self._failed_s.get(what, float("-inf")) < AGAIN_S or not device.is_free():
                continue
            log.info("device %s is calibrated for %s on %d threads", *what)
            on = f"{threads} thread{'s' * (threads != 1)}"
            say(f"calibrating device {device.id} for {on}, once, before the search: {self._expected()}")
            self._failed_s[what] = self._clock()
            calibration = self._on(device, target, threads, interrupted)
            if calibration is not None or interrupted():
                del self._failed_s[what]
            if calibration is None:
                say(f"device {device.id} could not be calibrated: theory takes typical rates")
                return None
            say(
                f"device {device.id} is calibrated, in {calibration.seconds:.0f} s: theory is off by "
                f"{100 * calibration.error_after:.0f} % of the time, by {100 * calibration.error_before:.0f} % before"
            )
            log.info("device %s: theory is off by %.1f %% of the time with the calibration, by %.1f %% without; %d "
                     "measurements in %.0f s", device.id, 100 * calibration.error_after, 100 * calibration.error_before,
                     calibration.probes, calibration.seconds)  # fmt: skip
            self._storage.device_calibrated(device.id, calibration)
            return calibration
        log.info("no device of %r can be calibrated now: theory takes typical rates", key)
        return None

    def _on(
        self, device: Candidate, target: Target, threads: int, interrupted: Callable[[], bool]
    ) -> Calibration | None:
        runner = device.runner()
        try:
            return self._make(target, threads, builder=self._builder(), runner=runner, interrupted=interrupted)
        except ShapewrightError as error:
            if isinstance(error, DeviceLost) and not isinstance(error, DeviceBusy):
                device.report(str(error))
            log.warning("device %s could not be calibrated: %s", device.id, error)
            return None
        finally:
            runner.close()


def candidates_of(
    devices: DeviceList, runner_on: Callable[[KnownDevice, Address], LevelRunner]
) -> Callable[[str], Sequence[Candidate]]:
    """The devices of a key that a worker knows, in order of id; those that are throttled or noisy last."""

    def candidates(key: str) -> Sequence[Candidate]:
        present = devices.present(key).items()
        ordered = sorted(present, key=lambda each: (devices.should_rest(each[0]), each[1].id))
        return [
            Candidate(
                known.id,
                partial(devices.is_free, known),
                partial(runner_on, known, address),
                partial(devices.report, address),
            )
            for address, known in ordered
        ]

    return candidates


def _is_defect(error: Exception) -> bool:
    return not isinstance(error, ShapewrightError)
