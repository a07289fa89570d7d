"""A Builder on Ray actors, one per core of the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from tuner.library import codegen
from tuner.measure import BuilderLost, BuildResult
from tuner.measure.building import Build, build_one, lost_build
from tuner.program.task import SearchTask
from tuner.rules.space import MicroKernel

BUILD_TIMEOUT_S = 30.0
BUILDS_PER_ACTOR = 200
START_S = 90.0
"""An actor's time to start: mostly loading the compiler, on every core at once."""
GRACE_S = 5.0
"""An actor ends itself when a build times out; after this much longer it is killed."""
POLL_S = 1.0
GONE = "a process of the Ray cluster has died"


class BuildActor:
    """Lives in a Ray process and compiles, one candidate after another."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def ready(self) -> None:
        """Returns once the compiler is loaded, which importing this module does."""

    def build(self, task: SearchTask, kernel: MicroKernel, timeout_s: float) -> BuildResult:
        return build_one(self._build, task, kernel, timeout_s)


@dataclass
class _Slot:
    """One actor, the reference that resolves when it has started (None once it has), and its number of builds."""

    actor: Any = None
    starting: Any = None
    uses: int = 0


@dataclass(frozen=True)
class _Running:
    slot: _Slot
    index: int
    started_s: float


class RayBuilder:
    """Builds on ``actors`` actors. One that crashes or hangs is replaced, one that is old, too.

    ``alive`` says whether the cluster still runs: calls to a dead one hang. Not for use from several threads.
    """

    def __init__(
        self,
        build: Build = codegen.build_candidate,
        *,
        actors: int,
        timeout_s: float = BUILD_TIMEOUT_S,
        builds_per_actor: int = BUILDS_PER_ACTOR,
        alive: Callable[[], bool] = ray.is_initialized,
    ) -> None:
        self._build = build
        self._timeout_s = timeout_s
        self._builds_per_actor = builds_per_actor
        self._alive = alive
        self._slots = [_Slot() for _ in range(actors)]
        self._class: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(BuildActor)

    def start(self) -> None:
        """Start the actors, without waiting for them."""
        for slot in self._slots:
            self._fill(slot)

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        """As Builder says. Raises BuilderLost if the cluster is gone."""
        results: dict[int, BuildResult] = {}
        todo = list(range(len(kernels)))[::-1]
        running: dict[Any, _Running] = {}
        free = list(self._slots)
        if not self._alive():
            raise BuilderLost(GONE)
        while todo or running:
            if todo and free:
                self._await(free[: len(todo)])
            while todo and free:
                slot, index = free.pop(0), todo.pop()
                slot.uses += 1
                reference = slot.actor.build.remote(task, kernels[index], self._timeout_s)
                running[reference] = _Running(slot, index, time.monotonic())
            for reference in self._ended(running):
                done = running.pop(reference)
                results[done.index] = self._result(reference, done, kernels[done.index])
                free.append(done.slot)
        return [results[index] for index in range(len(kernels))]

    def close(self) -> None:
        for slot in self._slots:
            self._drop(slot)

    def _fill(self, slot: _Slot) -> None:
        """Give the slot an actor if it has none, or one that has done its number of builds."""
        if slot.actor is not None and slot.uses >= self._builds_per_actor:
            self._drop(slot)
        if slot.actor is None:
            slot.actor, slot.uses = self._class.remote(self._build), 0
            slot.starting = slot.actor.ready.remote()

    def _await(self, slots: Sequence[_Slot]) -> None:
        """Wait until each slot has an actor that has started. An error at its start shows in its first build."""
        for slot in slots:
            self._fill(slot)
        starting = [slot.starting for slot in slots if slot.starting is not None]
        deadline = time.monotonic() + START_S
        while starting:
            _, starting = ray.wait(starting, num_returns=len(starting), timeout=POLL_S)
            if not self._alive():
                raise BuilderLost(GONE)
            if starting and time.monotonic() > deadline:
                raise BuilderLost(f"no build actor started within {START_S:g} s")
        for slot in slots:
            slot.starting = None

    def _ended(self, running: dict[Any, _Running]) -> list[Any]:
        """References of builds that are done or out of time."""
        done, pending = ray.wait(list(running), num_returns=1, timeout=POLL_S)
        if not done and not self._alive():
            raise BuilderLost(GONE)
        limit_s = self._timeout_s + GRACE_S
        return [*done, *(ref for ref in pending if time.monotonic() - running[ref].started_s > limit_s)]

    def _result(self, reference: Any, done: _Running, kernel: MicroKernel) -> BuildResult:
        try:
            result: BuildResult = ray.get(reference, timeout=0.1)
        except (RayActorError, GetTimeoutError):
            self._drop(done.slot)
            return lost_build(kernel, time.monotonic() - done.started_s, self._timeout_s)
        except RayError as error:
            raise BuilderLost(f"Ray failed: {error}") from error
        return result

    def _drop(self, slot: _Slot) -> None:
        if slot.actor is not None and ray.is_initialized() and self._alive():
            ray.kill(slot.actor, no_restart=True)
        slot.actor = slot.starting = None
