"""A Builder on Ray actors, one for each core of the cluster."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from tuner.library.build import build_library, compile_candidate
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuilderLost, BuildResult, never
from tuner.measure.builders.child import Build, Link, Objects, link_timeout_s, linked, lost_build
from tuner.measure.machine import oom_kills
from tuner.program.job.task import SearchTask
from tuner.schedule.space import MicroKernel
from worker.building.actor_pool import GONE, ActorPool, Slot
from worker.building.build_actor import BuildActor
from worker.building.cores import Cores

BUILD_TIMEOUT_S = 30.0
BUILDS_PER_ACTOR = 200
CORES = 0.9
"""Cores of a build actor, as Ray counts them: there is one for each core, and what is left is for searches."""
GRACE_S = 5.0
"""An actor ends itself when a build times out; after this much longer it is killed."""
POLL_S = 1.0


@dataclass(frozen=True)
class _Running:
    slot: Slot
    index: int
    started_s: float
    oom_kills: int
    """Processes that the kernel of this machine had killed for memory before the build."""


class RayBuilder:
    """Builds on ``actors()`` actors, which all searches of a worker share. One that crashes or hangs is replaced, one
    that is old, too. A kernel whose actor died is built once more.

    ``alive`` says whether the cluster still runs: calls to a dead one hang. ``cores``: those of the machine, where the
    cluster shares it with devices; a build takes one of them. Once it ``is_stopping`` nobody waits for builds any more.
    For use from several threads.
    """

    def __init__(
        self,
        build: Build = compile_candidate,
        link: Link = build_library,
        *,
        actors: Callable[[], int],
        timeout_s: float = BUILD_TIMEOUT_S,
        builds_per_actor: int = BUILDS_PER_ACTOR,
        alive: Callable[[], bool] = ray.is_initialized,
        cores: Cores | None = None,
        is_stopping: Callable[[], bool] = never,
    ) -> None:
        self.timeout_s, self.cores = timeout_s, cores or Cores(sys.maxsize)
        self._alive, self._is_stopping = alive, is_stopping
        self._calls, self._changed = 0, threading.Condition()
        actor: Any = ray.remote(num_cpus=CORES, max_restarts=0, max_task_retries=0)(BuildActor)
        self.pool = ActorPool(lambda: actor.remote(build, link), actors, uses=builds_per_actor, alive=alive)

    def start(self) -> None:
        """Start the actors, without waiting for them."""
        self.pool.start()

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        """Build kernels as ``Builder`` says. Raises BuilderLost if the cluster is gone."""
        with self._calling():
            return _Batch(self, task, kernels).results()

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Objects) -> LibraryFiles:
        limit_s, began, kills = link_timeout_s(dispatcher), time.monotonic(), oom_kills()
        with self._calling():
            answer = self._linked(dispatcher, job_id, objects, limit_s)
            if answer is None and time.monotonic() - began < limit_s:
                # The actor may have died before it was called.
                began = time.monotonic()
                answer = self._linked(dispatcher, job_id, objects, limit_s)
        return linked(answer, dispatcher, time.monotonic() - began, is_killed=oom_kills() > kills)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no thread builds. Ray must not be shut down before: whoever calls it then starts a cluster."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout_s)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        with self._changed:
            self._calls += 1
        try:
            self.check_alive()
            yield
        except RayError as error:
            raise BuilderLost(f"Ray failed: {error}") from error
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _linked(
        self, dispatcher: Dispatcher, job_id: str | None, objects: Objects, limit_s: float
    ) -> LibraryFiles | str | None:
        """What ``link_one`` gives; None if the actor died, or is too late. Raises BuilderLost."""
        # A core first, as in a batch: who waits for one must not hold an actor.
        with self.cores.taken(1, self.is_gone):
            while (slot := self.pool.take(POLL_S)) is None:
                pass
            try:
                return self._linked_by(slot, dispatcher, job_id, objects, limit_s)
            finally:
                self.pool.give(slot)

    def _linked_by(
        self, slot: Slot, dispatcher: Dispatcher, job_id: str | None, objects: Objects, limit_s: float
    ) -> LibraryFiles | str | None:
        while not slot.has_started():
            ray.wait([slot.starting], timeout=POLL_S)
            self.check_alive()
        slot.uses += 1
        started = time.monotonic()
        reference = slot.actor.library.remote(dispatcher, job_id, objects, limit_s)
        while not ray.wait([reference], timeout=POLL_S)[0] and time.monotonic() - started < limit_s + GRACE_S:
            self.check_alive()
        answer: LibraryFiles | str | None = self.answer(reference, slot)
        return answer

    def close(self) -> None:
        self.pool.close()

    def check_alive(self) -> None:
        if self._is_stopping():
            raise BuilderLost("the worker is stopping")
        if not self._alive():
            raise BuilderLost(GONE)

    def is_gone(self) -> bool:
        """False, as an ``interrupted``. Raises BuilderLost."""
        self.check_alive()
        return False

    def answer(self, reference: Any, slot: Slot) -> Any:
        """What an actor answered; None if it died or is too late, which it does not survive. Raises BuilderLost."""
        try:
            return ray.get(reference, timeout=0.1)
        except (RayActorError, GetTimeoutError):
            self.pool.drop(slot)
            return None
        except RayError as error:
            raise BuilderLost(f"Ray failed: {error}") from error


class _Batch:
    """The kernels of one call, on whatever actors are free."""

    def __init__(self, builder: RayBuilder, task: SearchTask, kernels: Sequence[MicroKernel]) -> None:
        self._builder, self._pool, self._timeout_s = builder, builder.pool, builder.timeout_s
        self._task, self._kernels = task, kernels
        self._todo = list(range(len(kernels)))[::-1]
        self._starting: list[Slot] = []
        self._running: dict[Any, _Running] = {}
        self._died: set[int] = set()
        self._results: dict[int, BuildResult] = {}
        self._cores = 0

    def results(self) -> list[BuildResult]:
        """The results in the order of the kernels. Raises BuilderLost."""
        cores = self._builder.cores
        if self._todo:
            self._cores = cores.take_some(len(self._todo), self._builder.is_gone)
        try:
            while self._todo or self._running:
                self._builder.check_alive()
                self._take()
                for slot in self._started()[: self._room]:
                    self._starting.remove(slot)
                    self._begin(slot, self._todo.pop())
                for reference in self._ended():
                    self._settle(reference)
                self._share_cores()
        finally:
            cores.give(self._cores)
            for left in self._running.values():
                self._pool.drop(left.slot)
            for slot in [*self._starting, *(left.slot for left in self._running.values())]:
                self._pool.give(slot)
        return [self._results[index] for index in range(len(self._kernels))]

    @property
    def _room(self) -> int:
        """How many more kernels may be begun now."""
        return min(len(self._todo), self._cores - len(self._running))

    def _share_cores(self) -> None:
        """Take more cores if some are free, or give back those that there is nothing more to do for."""
        wanted = len(self._todo) + len(self._running)
        if wanted > self._cores:
            self._cores += self._builder.cores.take_free(wanted - self._cores)
        elif wanted < self._cores:
            self._builder.cores.give(self._cores - wanted)
            self._cores = wanted

    def _take(self) -> None:
        """Take actors for kernels that may be begun, as far as nobody else uses them; the first may be waited for."""
        # One that a smaller cluster has no room for would never start.
        while self._starting and self._pool.is_too_large():
            self._pool.give(self._starting.pop())
        while len(self._starting) < self._room:
            slot = self._pool.take(0.0 if self._running or self._starting else POLL_S)
            if slot is None:
                return
            self._starting.append(slot)

    def _started(self) -> list[Slot]:
        """Raises BuilderLost if an actor takes too long to start, unless there are others to build on."""
        started = []
        for slot in list(self._starting):
            try:
                if slot.has_started():
                    started.append(slot)
            except BuilderLost:
                self._starting.remove(slot)
                # A slot whose actor never started is dropped there.
                self._pool.give(slot)
                if not (self._running or self._starting):
                    raise
        return started

    def _begin(self, slot: Slot, index: int) -> None:
        slot.uses += 1
        reference = slot.actor.build.remote(self._task, self._kernels[index], self._timeout_s)
        self._running[reference] = _Running(slot, index, time.monotonic(), oom_kills())

    def _ended(self) -> list[Any]:
        """References of builds that are done or out of time; waits a while for one, or for an actor to start."""
        starting = [slot.starting for slot in self._starting if slot.starting is not None]
        references = [*self._running, *starting]
        if not references:
            return []
        done, pending = ray.wait(references, num_returns=1, timeout=POLL_S)
        if not done:
            self._builder.check_alive()
        latest_s = time.monotonic() - self._timeout_s - GRACE_S
        late = [each for each in pending if each in self._running and self._running[each].started_s < latest_s]
        return [*(each for each in done if each in self._running), *late]

    def _settle(self, reference: Any) -> None:
        """Keep the result of a build that has ended; one whose actor died is done again, once: it may have been the
        actor's node that died."""
        build = self._running[reference]
        answer: BuildResult | None = self._builder.answer(reference, build.slot)
        spent_s = time.monotonic() - build.started_s
        del self._running[reference]
        self._pool.give(build.slot)
        if answer is None and spent_s < self._timeout_s and build.index not in self._died:
            self._died.add(build.index)
            self._todo.append(build.index)
        else:
            kernel, is_killed = self._kernels[build.index], oom_kills() > build.oom_kills
            self._results[build.index] = answer or lost_build(kernel, spent_s, self._timeout_s, is_killed=is_killed)
