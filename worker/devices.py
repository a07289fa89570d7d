"""Keeping the database's list of devices up to date with the tracker's."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.errors import InvalidInput
from tuner.measure import DeviceLost
from tuner.measure.addresses import Address
from tuner.measure.connecting import PROTOCOL_ERRORS, OutOfTime, Tracker, within
from tuner.measure.rpc_names import DESCRIBE, ID_SEPARATOR, device_key
from tuner.program.target import Target
from tuner.program.workload import JsonObject
from tuner.storage import DeviceState, DeviceStorage
from worker.speeds import DeviceSpeeds

log = logging.getLogger(__name__)

ANSWER_S = 10.0
RESERVED_IDS = (".", "..", "activity")
"""They mean something else in the paths of the API."""
FREE_S = 2.0
"""How long to wait for a device that the tracker lists as free."""


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device that has described itself, and the key by which the tracker hands it out: its own, if it is of this
    release."""

    about: JsonObject
    tracker_key: str

    @property
    def id(self) -> str:
        return str(self.about["id"])

    @property
    def key(self) -> str:
        return str(self.about["key"])


@dataclass
class DeviceList:
    """Registers the devices of a tracker, and keeps account of those that fail.

    A new device is asked for its description; of a known one only ``seen_at`` is renewed. A device that is busy when it
    is first seen is asked later. ``refresh`` is called by one thread, the rest by any.
    """

    storage: DeviceStorage
    tracker: Tracker
    keys: tuple[str, ...] | None = None
    every_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    speeds: DeviceSpeeds = field(init=False)
    _known: Mapping[Address, KnownDevice] = field(default_factory=dict)
    _quarantined: frozenset[str] = frozenset()
    _failing: frozenset[str] = frozenset()
    _next_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.speeds = DeviceSpeeds(self.storage)

    def refresh(self, force: bool = False) -> Mapping[str, int]:
        """How many devices each key has now; asks the tracker at most every ``every_s`` unless forced.

        Raises DeviceLost if the tracker cannot be reached, StorageUnavailable."""
        if force or self.clock() >= self._next_s:
            self._update()
            self._next_s = self.clock() + self.every_s
        return self.counts()

    def counts(self) -> Mapping[str, int]:
        """By key the devices that there were when the tracker was last asked, without those in quarantine."""
        return Counter(known.key for known in self._known.values() if known.id not in self._quarantined)

    def present(self, key: str) -> Mapping[Address, KnownDevice]:
        """Those of one key."""
        return {
            address: known
            for address, known in self._known.items()
            if known.key == key and known.id not in self._quarantined
        }

    def should_rest(self, address: Address) -> bool:
        """Whether others are to be preferred to a device: it is throttled or noisy, and was asked a while ago."""
        known = self._known.get(address)
        return known is not None and self.speeds.should_rest(known.id)

    def here(self, key: str) -> int:
        """How many of those of a key are on this machine, those in quarantine too: they come back."""
        host = socket.gethostname()
        of_key = (known for known in self._known.values() if known.key == key)
        return sum(known.about["description"].get("host") == host for known in of_key)

    def report(self, address: Address, problem: str | None) -> None:
        """Take note that a device failed, or that it did not (None). Never raises."""
        known = self._known.get(address)
        if known is None or (problem is None and known.id not in self._failing):
            return
        if known.tracker_key == known.key:
            # Of an earlier release: the tracker may have handed out another of the key.
            return
        try:
            if problem is None:
                self.storage.device_worked(known.id)
                self._failing -= {known.id}
                return
            device = self.storage.device_failed(known.id, problem)
        except Exception as error:
            # The account of a device is worth less than the search that it is told by.
            log.warning("device %s: %s, which could not be stored: %s", known.id, problem or "it works", error)
            return
        self._failing |= {known.id}
        log.warning("device %s failed, %d in a row: %s", known.id, device.failures, problem)
        if device.state is DeviceState.QUARANTINED:
            self._quarantined |= {known.id}
            log.warning("device %s is quarantined until %s", known.id, device.quarantined_until)

    def _update(self) -> None:
        servers = ((key, address) for key, address in self.tracker.servers())
        present = {address: key for key, address in servers if self.keys is None or _job_key(key) in self.keys}
        self._known = {
            address: known for address, known in self._known.items() if present.get(address) == known.tracker_key
        }
        for known in self._known.values():
            self._register(known.about)
        for key in sorted({key for address, key in present.items() if address not in self._known}):
            for _ in range(self.tracker.free(key)):
                self._describe(key)
        devices = self.storage.list_devices()
        self._quarantined = frozenset(each.id for each in devices if each.state is DeviceState.QUARANTINED)
        self._failing = frozenset(each.id for each in devices if each.failures)
        self.speeds.know(devices)

    def _describe(self, tracker_key: str) -> None:
        """Register the next free device of a key of the tracker."""
        try:
            connected = self.tracker.request(tracker_key, ANSWER_S, FREE_S)
            about = _described(within(ANSWER_S, lambda: connected.call(DESCRIBE)))
            _check_identity(about, tracker_key)
        except (DeviceLost, OutOfTime) as error:
            log.info("a device of key %r did not describe itself: %s", tracker_key, error)
            return
        except (*PROTOCOL_ERRORS, InvalidInput) as error:
            log.warning("a server under key %r is no device that this version knows: %s", tracker_key, error)
            return
        if connected.address not in self._known:
            log.info("device %s: %s", about["id"], about["description"])
        self._known = {**self._known, connected.address: KnownDevice(about, tracker_key)}
        self._register(about)

    def _register(self, about: JsonObject) -> None:
        target = Target.from_json(about["target"])
        self.storage.register_device(about["id"], about["key"], target, about["description"])


def _check_identity(about: JsonObject, tracker_key: str) -> None:
    """A device of an earlier release shares the tracker's key with others. Raises InvalidInput."""
    if about["id"] in RESERVED_IDS:
        raise InvalidInput("device", f"{about['id']!r} is no id of a device", "give it another, by --id")
    if tracker_key not in (about["key"], device_key(about["key"], about["id"])):
        problem = f"says that it is {about['id']!r} of key {about['key']!r}, and is registered as {tracker_key!r}"
        raise InvalidInput("device", problem, "serve it by `shapewright device serve`")


def _job_key(tracker_key: str) -> str:
    """What jobs name a device by."""
    key, own, _ = tracker_key.rpartition(ID_SEPARATOR)
    return key if own else tracker_key


def _described(answer: str) -> JsonObject:
    """What a device says of itself. Raises one of PROTOCOL_ERRORS, and InvalidInput for a target that is not known."""
    about = json.loads(answer)
    Target.from_json(about["target"])
    return {name: about[name] for name in ("id", "key", "target", "description")}
