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
from tuner.measure.network.addresses import Address, address_text
from tuner.measure.network.connecting import PROTOCOL_ERRORS, Connected, OutOfTime, Tracker, within
from tuner.measure.rpc_names import DESCRIBE, ID_SEPARATOR, device_key
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.storage import DeviceState, Joined, StorageUnavailable
from tuner.storage.sql import DeviceStorage
from worker.devices.admission import Admission, NotAdmitted, TokenRule
from worker.devices.speeds import DeviceSpeeds

log = logging.getLogger(__name__)

ANSWER_S = 10.0
RESERVED_IDS = (".", "..", "activity", "tokens")
"""Names that no device may have: they mean something else in the paths of the API."""
FREE_S = 2.0
"""How long to wait for a device that the tracker lists as free."""
DEVICE_WAIT_S = 120.0
"""How long a batch waits for a free device before that counts as lost."""
AGAIN_S = 0.5
"""The pause after a server that is not the device whose key it has."""


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device that has described itself, and the key by which the tracker hands it out: its own, if it is of this
    release."""

    about: JsonObject
    tracker_key: str
    joined: Joined | None = None

    @property
    def id(self) -> str:
        return str(self.about["id"])

    @property
    def key(self) -> str:
        return str(self.about["key"])

    def is_here(self) -> bool:
        """Whether it measures on this machine."""
        return bool(self.about["description"].get("host") == socket.gethostname())


@dataclass
class DeviceList:
    """Registers the devices of a tracker, and keeps account of those that fail.

    A new device is queried for its description; of a known one only ``seen_at`` is renewed. A device that is busy when
    it is first seen is queried later. ``refresh`` is called by one thread, the rest by any.
    """

    storage: DeviceStorage
    tracker: Tracker
    keys: tuple[str, ...] | None = None
    tokens: TokenRule = TokenRule.AUTO
    every_s: float = 10.0
    refused_s: float = 20.0
    """How long a device that was refused is left alone: one that takes its time must not hold up the others."""
    clock: Callable[[], float] = time.monotonic
    speeds: DeviceSpeeds = field(init=False)
    admission: Admission = field(init=False)
    _known: Mapping[Address, KnownDevice] = field(default_factory=dict)
    _quarantined: frozenset[str] = frozenset()
    _failing: frozenset[str] = frozenset()
    _refused: Mapping[Address, tuple[str, float]] = field(default_factory=dict)
    """The reason and the time of each refusal, by the address of the device."""
    _next_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.speeds = DeviceSpeeds(self.storage)
        self.admission = Admission(self.storage, self.tokens)

    def refresh(self, force: bool = False) -> Mapping[str, int]:
        """How many devices each key has now; queries the tracker at most every ``every_s`` unless forced.

        Raises DeviceLost if the tracker cannot be reached, StorageUnavailable."""
        if force or self.clock() >= self._next_s:
            self._update()
            self._next_s = self.clock() + self.every_s
        return self.counts()

    def counts(self) -> Mapping[str, int]:
        """The number of devices by key when the tracker was last queried, without those in quarantine."""
        return Counter(known.key for known in self._known.values() if known.id not in self._quarantined)

    def present(self, key: str) -> Mapping[Address, KnownDevice]:
        """The devices of one key, without those in quarantine."""
        return {
            address: known
            for address, known in self._known.items()
            if known.key == key and known.id not in self._quarantined
        }

    def should_rest(self, address: Address) -> bool:
        """Whether others are to be preferred to a device: it is throttled or noisy, and was queried a while ago."""
        known = self._known.get(address)
        return known is not None and self.speeds.should_rest(known.id)

    def is_free(self, known: KnownDevice) -> bool:
        """Whether nobody measures on a device now, or FREE_S later: after a session it takes a moment to come back.

        Raises DeviceLost if the tracker cannot be reached.
        """
        deadline = time.monotonic() + FREE_S
        while not (is_free := self.tracker.free(known.tracker_key) > 0) and time.monotonic() < deadline:
            time.sleep(AGAIN_S)
        return is_free

    def here(self, key: str) -> int:
        """How many of those of a key are on this machine, those in quarantine too: they come back."""
        return sum(known.key == key and known.is_here() for known in self._known.values())

    def session(
        self, known: KnownDevice, address: Address, life_s: float, interrupted: Callable[[], bool]
    ) -> Connected:
        """A session with a known device. Where it needs a token it proves it again: the tracker hands out whoever
        registered under its key. Raises DeviceLost, Interrupted."""
        deadline = time.monotonic() + DEVICE_WAIT_S
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            connected = self.tracker.request(known.tracker_key, life_s, left_s, interrupted)
            try:
                self._admitted(connected, known.about)
                return connected
            except DeviceLost:
                connected.hang_up()
                raise
            except NotAdmitted as error:
                self._refuse(connected, known.about, error)
                if connected.address == address:
                    self._known = {at: each for at, each in self._known.items() if at != address}
                    raise DeviceLost(f"device {known.id} was refused: {error}") from error
            time.sleep(AGAIN_S)

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
        self.admission.refresh()
        self._known = {
            address: known
            for address, known in self._known.items()
            if present.get(address) == known.tracker_key and self.admission.may_stay(known.key, known.joined)
        }
        self._refused = {address: refusal for address, refusal in self._refused.items() if address in present}
        for known in self._known.values():
            self._register(known)
        for key in sorted({key for address, key in present.items() if self._is_to_be_asked(address)}):
            for _ in range(self.tracker.free(key)):
                self._describe(key)
        devices = self.storage.list_devices()
        self._quarantined = frozenset(each.id for each in devices if each.state is DeviceState.QUARANTINED)
        self._failing = frozenset(each.id for each in devices if each.failures)
        self.speeds.know(devices)

    def _is_to_be_asked(self, address: Address) -> bool:
        _, at_s = self._refused.get(address, ("", float("-inf")))
        return address not in self._known and self.clock() - at_s >= self.refused_s

    def _describe(self, tracker_key: str) -> None:
        """Register the next free device of a key of the tracker."""
        try:
            connected = self.tracker.request(tracker_key, 2 * ANSWER_S, FREE_S)
            about = _described(within(ANSWER_S, lambda: connected.call(DESCRIBE)))
            _check_identity(about, tracker_key)
            joined = self._admitted(connected, about)
        except NotAdmitted as error:
            self._refuse(connected, about, error)
            return
        except (DeviceLost, OutOfTime) as error:
            log.info("a device of key %r did not describe itself: %s", tracker_key, error)
            return
        except (*PROTOCOL_ERRORS, InvalidInput) as error:
            log.warning("a server under key %r is no device that this version knows: %s", tracker_key, error)
            return
        if connected.address not in self._known:
            log.info("device %s: %s", about["id"], about["description"])
        known = KnownDevice(about, tracker_key, joined)
        self._known = {**self._known, connected.address: known}
        self._refused = {at: refusal for at, refusal in self._refused.items() if at != connected.address}
        self._register(known)
        self.storage.accept_device(known.id, _where(connected.address))

    def _admitted(self, connected: Connected, about: JsonObject) -> Joined | None:
        """Raises NotAdmitted."""
        target = Target.from_json(about["target"]).fingerprint
        return self.admission.admit(connected, about["id"], about["key"], target)

    def _refuse(self, connected: Connected, about: JsonObject, why: NotAdmitted) -> None:
        """End the session; say why in the log where that is new, and in the database, where people see it."""
        address, reason = connected.address, str(why)
        connected.hang_up()
        if self._refused.get(address, ("", 0.0))[0] != reason:
            log.warning("device %s at %s was refused: %s", about["id"], _where(address), reason)
        self._refused = {**self._refused, address: (reason, self.clock())}
        try:
            self.storage.refuse_device(about["id"], about["key"], _where(address), reason)
        except StorageUnavailable as error:
            log.warning("that device %s was refused could not be stored: %s", about["id"], error)

    def _register(self, known: KnownDevice) -> None:
        target = Target.from_json(known.about["target"])
        self.storage.register_device(known.id, known.key, target, known.about["description"], known.joined)


def _check_identity(about: JsonObject, tracker_key: str) -> None:
    """A device of an earlier release shares the tracker's key with others. Raises InvalidInput."""
    if about["id"] in RESERVED_IDS:
        raise InvalidInput("device", f"{about['id']!r} is no id of a device", "give it another, by --id")
    if tracker_key not in (about["key"], device_key(about["key"], about["id"])):
        problem = f"says that it is {about['id']!r} of key {about['key']!r}, and is registered as {tracker_key!r}"
        raise InvalidInput("device", problem, "serve it by `shapewright device serve`")


def _where(address: Address) -> str:
    return address_text(address)


def _job_key(tracker_key: str) -> str:
    """The key that jobs name a device by."""
    key, own, _ = tracker_key.rpartition(ID_SEPARATOR)
    return key if own else tracker_key


def _described(answer: str) -> JsonObject:
    """What a device says of itself. Raises one of PROTOCOL_ERRORS, and InvalidInput for a target that is not known."""
    about = json.loads(answer)
    Target.from_json(about["target"])
    return {name: about[name] for name in ("id", "key", "target", "description")}
