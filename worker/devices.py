"""Keeping the database's list of devices up to date with the tracker's."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.errors import InvalidInput
from tuner.measure import DeviceLost
from tuner.measure.addresses import Address
from tuner.measure.connecting import OutOfTime, Tracker, within
from tuner.measure.rpc_names import DESCRIBE
from tuner.program.target import Target
from tuner.program.workload import JsonObject
from tuner.storage import DeviceStorage

log = logging.getLogger(__name__)

ANSWER_S = 10.0
FREE_S = 2.0
"""How long to wait for a device that the tracker lists as free."""

@dataclass
class DeviceList:
    """Registers the devices of a tracker. A new device is asked for its description; of a known one only ``seen_at`` is
    renewed. A device that is busy when it is first seen is asked later.
    """

    storage: DeviceStorage
    tracker: Tracker
    keys: tuple[str, ...] | None = None
    every_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    _known: dict[Address, JsonObject] = field(default_factory=dict)
    _next_s: float = float("-inf")

    def refresh(self, force: bool = False) -> tuple[str, ...]:
        """The keys that have a device now; asks the tracker at most every ``every_s`` unless forced.

        Raises DeviceLost if the tracker cannot be reached, StorageUnavailable."""
        if force or self.clock() >= self._next_s:
            self._update()
            self._next_s = self.clock() + self.every_s
        return tuple(sorted({about["key"] for about in self._known.values()}))

    def _update(self) -> None:
        present = {address: key for key, address in self.tracker.servers() if self.keys is None or key in self.keys}
        self._known = {address: about for address, about in self._known.items() if address in present}
        for about in self._known.values():
            self._register(about)
        for key in sorted({key for address, key in present.items() if address not in self._known}):
            for _ in range(self.tracker.free(key)):
                self._describe(key)

    def _describe(self, key: str) -> None:
        """Register the next free device of ``key``."""
        try:
            session, address = self.tracker.request_at(key, ANSWER_S, FREE_S)
            about = json.loads(within(ANSWER_S, session.get_function(DESCRIBE)))
        except (DeviceLost, OutOfTime, RuntimeError) as error:
            log.info("a device of key %r did not describe itself: %s", key, error)
            return
        if address not in self._known:
            log.info("device %s: %s", about["id"], about["description"])
        self._known[address] = about
        self._register(about)

    def _register(self, about: JsonObject) -> None:
        try:
            target = Target.from_json(about["target"])
        except (InvalidInput, TypeError) as error:
            log.warning("device %s has a target that this version does not know: %s", about["id"], error)
            return
        self.storage.register_device(about["id"], about["key"], target, about["description"])
