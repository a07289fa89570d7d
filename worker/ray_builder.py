"""A Builder on Ray actors, one for each core of the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from tuner.library import codegen
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuilderLost, BuildResult
from tuner.measure.building import Build, Link, build_one, link_one, link_timeout_s, linked, lost_build
from tuner.program.task import SearchTask
from tuner.rules.space import MicroKernel
from worker.actor_pool import GONE, ActorPool, Slot

BUILD_TIMEOUT_S = 30.0
BUILDS_PER_ACTOR = 200
GRACE_S = 5.0
"""An actor ends itself when a build times out; after this much longer it is killed."""
POLL_S = 1.0


class BuildActor:
    """Lives in a Ray process and compiles, one candidate after another."""

    def __init__(self, build: Build, link: Link) -> None:
        self._build, self._link = build, link

    def ready(self) -> None:
        """Returns once the compiler is loaded, which importing this module does."""

    def build(self, task: SearchTask, kernel: MicroKernel, timeout_s: float) -> BuildResult:
        return build_one(self._build, task, kernel, timeout_s)

    def library(self, dispatcher: Dispatcher, job_id: str | None, timeout_s: float) -> LibraryFiles | str:
        return link_one(self._link, dispatcher, job_id, timeout_s)


@dataclass(frozen=True)
class _Running:
    slot: Slot
    index: int
    started_s: float


class RayBuilder:
    """Builds on ``actors()`` actors, which all searches of a worker share. One that crashes or hangs is replaced, one
    that is old, too.

    ``alive`` says whether the cluster still runs: calls to a dead one hang. For use from several threads.
    """

    def __init__(
        self,
        build: Build = codegen.build_candidate,
        link: Link = build_library,
        *,
        actors: Callable[[], int],
        timeout_s: float = BUILD_TIMEOUT_S,
        builds_per_actor: int = BUILDS_PER_ACTOR,
        alive: Callable[[], bool] = ray.is_initialized,
    ) -> None:
        self._timeout_s = timeout_s
        self._alive = alive
        actor: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(BuildActor)
        self._pool = ActorPool(lambda: actor.remote(build, link), actors, uses=builds_per_actor, alive=alive)

    def start(self) -> None:
        """Start the actors, without waiting for them."""
        self._pool.start()

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        """As Builder says. Raises BuilderLost if the cluster is gone."""
        results: dict[int, BuildResult] = {}
        todo = list(range(len(kernels)))[::-1]
        running: dict[Any, _Running] = {}
        starting: list[Slot] = []
        try:
            while todo or running:
                self._take(starting, len(todo), wait=not running)
                for slot in [slot for slot in starting if slot.has_started()][: len(todo)]:
                    starting.remove(slot)
                    running |= self._begin(slot, todo.pop(), task, kernels)
                for reference in self._ended(running, starting):
                    done = running[reference]
                    results[done.index] = self._result(reference, done, kernels[done.index])
                    del running[reference]
                    self._pool.give(done.slot)
        finally:
            for left in running.values():
                self._pool.drop(left.slot)
            for slot in [*starting, *(left.slot for left in running.values())]:
                self._pool.give(slot)
        return [results[index] for index in range(len(kernels))]

    def library(self, dispatcher: Dispatcher, job_id: str | None) -> LibraryFiles:
        limit_s = link_timeout_s(dispatcher)
        while (slot := self._pool.take(POLL_S)) is None:
            pass
        try:
            while not slot.has_started():
                ray.wait([slot.starting], timeout=POLL_S)
                self._check_alive()
            slot.uses += 1
            started = time.monotonic()
            reference = slot.actor.library.remote(dispatcher, job_id, limit_s)
            while not ray.wait([reference], timeout=POLL_S)[0] and time.monotonic() - started < limit_s + GRACE_S:
                self._check_alive()
            answer = self._answer(reference, slot)
        finally:
            self._pool.give(slot)
        return linked(answer, dispatcher, time.monotonic() - started)

    def close(self) -> None:
        self._pool.close()

    def _check_alive(self) -> None:
        if not self._alive():
            raise BuilderLost(GONE)

    def _take(self, slots: list[Slot], wanted: int, *, wait: bool) -> None:
        """Bring ``slots`` up to as many as are wanted, as far as nobody else uses them; the first may be waited for."""
        while len(slots) < wanted:
            slot = self._pool.take(POLL_S if wait and not slots else 0.0)
            if slot is None:
                return
            slots.append(slot)

    def _begin(self, slot: Slot, index: int, task: SearchTask, kernels: Sequence[MicroKernel]) -> dict[Any, _Running]:
        slot.uses += 1
        reference = slot.actor.build.remote(task, kernels[index], self._timeout_s)
        return {reference: _Running(slot, index, time.monotonic())}

    def _ended(self, running: dict[Any, _Running], starting: Sequence[Slot]) -> list[Any]:
        """References of builds that are done or out of time; waits a while for one, or for an actor to start."""
        references = [*running, *(slot.starting for slot in starting if slot.starting is not None)]
        if not references:
            return []
        done, pending = ray.wait(references, num_returns=1, timeout=POLL_S)
        if not done:
            self._check_alive()
        limit_s = self._timeout_s + GRACE_S
        late = [each for each in pending if each in running and time.monotonic() - running[each].started_s > limit_s]
        return [*(each for each in done if each in running), *late]

    def _result(self, reference: Any, done: _Running, kernel: MicroKernel) -> BuildResult:
        result: BuildResult | None = self._answer(reference, done.slot)
        return result or lost_build(kernel, time.monotonic() - done.started_s, self._timeout_s)

    def _answer(self, reference: Any, slot: Slot) -> Any:
        """What an actor answered; None if it died or is too late, which it does not survive. Raises BuilderLost."""
        try:
            return ray.get(reference, timeout=0.1)
        except (RayActorError, GetTimeoutError):
            self._pool.drop(slot)
            return None
        except RayError as error:
            raise BuilderLost(f"Ray failed: {error}") from error
