"""The build actors of a Ray cluster, shared by all searches of a worker."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from tuner.measure import BuilderLost

START_S = 90.0
"""An actor's time to start: mostly loading the compiler, on every core at once."""
GONE = "a process of the Ray cluster has died"


@dataclass(eq=False)
class Slot:
    """One actor, the reference that resolves when it has started (None once it has), and its number of builds."""

    actor: Any = None
    starting: Any = None
    created_s: float = 0.0
    uses: int = 0

    def has_started(self) -> bool:
        """Raises BuilderLost if the actor takes too long. An error at its start shows in its first build."""
        if self.starting is not None and ray.wait([self.starting], timeout=0)[0]:
            self.starting = None
        if self.is_overdue():
            raise BuilderLost(f"a build actor did not start within {START_S:g} s")
        return self.starting is None

    def is_overdue(self) -> bool:
        return self.starting is not None and time.monotonic() - self.created_s > START_S


class ActorPool:
    """Up to ``size()`` actors, created by ``create`` as they are needed; one that is old is replaced.

    ``size`` may change as the cluster does. Whoever takes a slot has it alone until it is given back. For use from
    several threads.
    """

    def __init__(
        self, create: Callable[[], Any], size: Callable[[], int], *, uses: int, alive: Callable[[], bool]
    ) -> None:
        self._create, self._size, self._uses, self._alive = create, size, uses, alive
        self._free: deque[Slot] = deque()
        self._slots: set[Slot] = set()
        self._changed = threading.Condition()

    def start(self) -> None:
        """Create all actors, without waiting until they have started."""
        slots = []
        while (slot := self.take(0.0)) is not None:
            slots.append(slot)
        for slot in slots:
            self.give(slot)

    def take(self, wait_s: float) -> Slot | None:
        """A slot with an actor, which may not have started yet; None if all are in use for that time.

        Raises BuilderLost if the cluster is gone.
        """
        if not self._alive():
            raise BuilderLost(GONE)
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or len(self._slots) < self._size(), wait_s):
                return None
            slot = self._free.popleft() if self._free else Slot()
            self._slots.add(slot)
        if slot.actor is not None and slot.uses >= self._uses:
            self.drop(slot)
        if slot.actor is None:
            slot.actor, slot.uses, slot.created_s = self._create(), 0, time.monotonic()
            slot.starting = slot.actor.ready.remote()
        return slot

    def give(self, slot: Slot) -> None:
        if slot.is_overdue():
            # The next to take the slot tries with another.
            self.drop(slot)
        with self._changed:
            surplus = len(self._slots) > self._size()
            if surplus:
                self._slots.discard(slot)
            else:
                self._free.append(slot)
            self._changed.notify()
        if surplus:
            self.drop(slot)

    def is_too_large(self) -> bool:
        """Whether there are more slots than ``size()`` by now."""
        with self._changed:
            return len(self._slots) > self._size()

    def drop(self, slot: Slot) -> None:
        """Kill the slot's actor; the next to take it gets another."""
        if slot.actor is not None and ray.is_initialized() and self._alive():
            ray.kill(slot.actor, no_restart=True)
        slot.actor = slot.starting = None

    def close(self) -> None:
        with self._changed:
            slots = list(self._slots)
        for slot in slots:
            self.drop(slot)
