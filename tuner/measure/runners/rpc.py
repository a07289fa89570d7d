"""A Runner over TVM RPC: candidates go to a device's process, which verifies and times them (see bench.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from tuner.measure._base import (
    BASELINES_S,
    BuildResult,
    DeviceFailed,
    DeviceLost,
    Interrupted,
    RunRequest,
    Turns,
    TurnsRequest,
    never,
    share_ends,
)
from tuner.measure.limits import RUN_TIMEOUT_S, run_limit_s, slowest_s
from tuner.measure.machine import MACHINE
from tuner.measure.roof.kernels import levels_binary, roof_binary
from tuner.measure.rpc_names import BASELINES, LEVELS, PREPARE, TAKE_TURNS, TRIAL, VERIFY
from tuner.measure.runners.session import GRACE_S, OPEN_TIMEOUT_S, Connect, Session, SessionDied
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.program.target.calibration import Levels
from tuner.records import Baselines, ErrorKind, MeasureResult

VERIFY_TIMEOUT_S = 60.0
LEVELS_S = 3.0
"""The time that reading all levels of memory may take, about."""
WAIT_SHARE = 0.5
"""How much of what opening a session may take one may wait for cores with it: its life has room for all of that."""
HOLD_S = 20.0
"""The time after which a session is given up, between two candidates: others may be waiting for the device."""


Cores = Callable[[int, Callable[[], bool]], AbstractContextManager[None]]
"""Holds a number of the machine's cores for a while, and waits for them unless interrupted. Raises Interrupted."""


def unshared(cores: int, interrupted: Callable[[], bool]) -> AbstractContextManager[None]:
    """``Cores`` of a device that shares its machine with nobody."""
    return nullcontext()


class RpcRunner:
    """Measures candidates one at a time, many in one session.

    A candidate may take ``timeout_s`` in all (verification and every instance), and what its instances take at
    SLOWEST_FLOPS besides; the device's process kills itself after that, and the next candidate goes to a new session. A
    device whose process was replaced under a candidate gets it once more, so that only what crashes twice, or crashes a
    device that stays, is called a crash. The session is kept between calls for up to ``hold_s``, and no longer than
    until ``close``. It takes as many ``cores`` as the task has threads while a candidate runs, never while it waits for
    the device: whoever has that may wait for cores. Not for use from several threads.
    """

    def __init__(
        self, connect: Connect, *, timeout_s: float = RUN_TIMEOUT_S, hold_s: float = HOLD_S, cores: Cores = unshared
    ) -> None:
        self._connect, self._cores = connect, cores
        self._timeout_s = timeout_s
        self._hold_s = hold_s
        self._session: Session | None = None
        self._prepared: Session | None = None
        """The last one that was prepared for trials."""

    devices = 1

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        self._open(task, interrupted)

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        result: list[MeasureResult] = []
        with suppress(Interrupted):
            for request in requests:
                if request.build.binary is None:
                    result += request.not_built()
                else:
                    result += self._measure(task, request, interrupted)
        return result

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        result = ((values, self._verify_at(task, build, values, interrupted)) for values in dims)
        return [(values, problem) for values, problem in result if problem is not None]

    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        # Beyond what they are meant to take, as long as a candidate has.
        limit_s = BASELINES_S + self._timeout_s
        data = {"instances": [instance.to_json() for instance in instances], "limit_s": limit_s}
        # Built for the device itself, which may be more than the task's target is. A GPU needs none.
        own = self._open(task).target
        binary = b"" if own.gpu else roof_binary(own, task.threads)
        with self._turn(task, never) as session:
            return self._baselines(session, data, binary, limit_s)

    def _baselines(self, session: Session, data: JsonObject, binary: bytes, limit_s: float) -> Baselines:
        try:
            return Baselines.from_json(session.ask(BASELINES, data, binary))
        except SessionDied as death:
            self.close()
            raise DeviceFailed(
                f"device {session.device} failed over the baselines, or took longer than {limit_s:g} s: {death}"
            ) from death

    def turns(self, task: SearchTask, request: TurnsRequest, interrupted: Callable[[], bool] = never) -> Turns:
        # Beyond what it is meant to take: once over the first calls, where each is a sample.
        limit_s = 3 * request.limit_s + self._limit_s(task, request.instances)
        # A library is the build of many kernels, and sent once.
        binaries = list(dict.fromkeys(build.binary or b"" for build in request.builds))
        data = {
            "instances": [instance.to_json() for instance in request.instances],
            "kernels": [build.kernel.to_json() for build in request.builds],
            "binaries": [binaries.index(build.binary or b"") for build in request.builds],
            "runs": request.runs, "with_numpy": request.with_numpy, "seconds": request.limit_s, "limit_s": limit_s,
        }  # fmt: skip
        with self._turn(task, interrupted) as session:
            try:
                answer = self._ask(session, TAKE_TURNS, data, binaries, interrupted)
            except AttributeError as error:
                session.close()
                raise DeviceFailed(f"device {session.device} is of a release that takes no turns") from error
            except SessionDied as death:
                raise DeviceFailed(f"device {session.device} failed while libraries took turns: {death}") from death
        return Turns.from_json(answer, session.device)

    def levels(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> Levels:
        """What the device reads from each level of memory, and its peak, on the task's threads.

        Raises DeviceFailed if it cannot tell, as devices of earlier releases cannot, DeviceLost, WrongDevice,
        Interrupted.
        """
        data = {"limit_s": LEVELS_S + self._timeout_s}
        binary = levels_binary(self._open(task, interrupted).target, task.threads)
        with self._turn(task, interrupted) as session:
            try:
                return Levels.from_json(self._ask(session, LEVELS, data, [binary], interrupted))
            except AttributeError as error:
                session.close()
                raise DeviceFailed(f"device {session.device} is of a release that does not read caches") from error
            except SessionDied as death:
                raise DeviceFailed(f"device {session.device} failed over reading caches: {death}") from death

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> Session:
        """The open session, or a new one if it is old or prepared for another task.

        Raises DeviceLost, NotMeasured, Interrupted.
        """
        if self._session is None or not self._serves(self._session, task):
            # The old one is given back first: there may be only one device.
            self.close()
            longest_s = max(self._limit_s(task, task.instances), _verify_limit_s(task, task.largest_dims))
            life_s = self._hold_s + OPEN_TIMEOUT_S + longest_s + GRACE_S
            self._session = Session.open(self._connect, task, life_s, interrupted)
        return self._session

    @contextmanager
    def _turn(self, task: SearchTask, interrupted: Callable[[], bool]) -> Iterator[Session]:
        """A session, and the cores to measure on. One that has become too old over the wait for them is replaced.

        Raises DeviceLost, Interrupted.
        """
        while True:
            session = self._open(task, interrupted)
            with self._cores(task.threads, interrupted):
                if time.monotonic() - session.opened_s <= self._hold_s + WAIT_SHARE * OPEN_TIMEOUT_S:
                    yield session
                    return
            self.close()

    def _ask(
        self, session: Session, function: str, data: JsonObject, binaries: Sequence[bytes],
        interrupted: Callable[[], bool],
    ) -> Any:  # fmt: skip
        """What the session answers; it is gone after anything that ``Session.ask`` raises."""
        try:
            return session.ask(function, data, *binaries, interrupted=interrupted)
        except BaseException as error:
            self._session = None
            if isinstance(error, Interrupted):
                session.connected.hang_up()
            raise

    def _prepare(self, session: Session, interrupted: Callable[[], bool]) -> None:
        """Have the device make what candidates are verified with, once in a session, at no candidate's expense: whoever
        verifies a library needs none of it. Raises DeviceLost, Interrupted."""
        if self._prepared is session:
            return
        try:
            self._ask(session, PREPARE, {"limit_s": OPEN_TIMEOUT_S}, [b""], interrupted)
        except AttributeError:
            # Of an earlier release, which did it when the session was opened.
            self._session = session
        except SessionDied as death:
            raise DeviceLost(f"device {session.device} cannot prepare for {session.task.workload}: {death}") from death
        self._prepared = session

    def _serves(self, session: Session, task: SearchTask) -> bool:
        return not session.is_over and session.task == task and time.monotonic() - session.opened_s <= self._hold_s

    def _measure(self, task: SearchTask, request: RunRequest, interrupted: Callable[[], bool]) -> list[MeasureResult]:
        died_on = []
        limit_s = self._limit_s(task, request.instances)
        data, binary = self._trial(request, limit_s), request.build.binary or b""
        while True:
            try:
                with self._turn(task, interrupted) as session:
                    self._prepare(session, interrupted)
                    started = time.monotonic()
                    answers = self._ask(session, TRIAL, data, [binary], interrupted)
            except SessionDied as death:
                died_on.append(session.server)
                spent_s = time.monotonic() - started
                if spent_s >= limit_s:
                    problem = f"not done after {limit_s:.3g} s"
                    return _all(request, session.device, ErrorKind.RUN_TIMEOUT, problem, spent_s)
                if len(died_on) == 2 or self._open(task, interrupted).server == session.server:
                    kind, problem = self._cause(session, death)
                    return _all(request, session.device, kind, problem, spent_s)
            else:
                return _results(request, session.device, answers, time.monotonic() - started)

    def _cause(self, session: Session, death: SessionDied) -> tuple[ErrorKind, str]:
        """Why a session died, by what the device's next session reports, if there is one of the same process."""
        again = self._session
        if again is not None and again.server == session.server and again.killed > session.killed:
            return ErrorKind.MACHINE, f"the device's process was killed, as when memory runs out: {death}"
        return ErrorKind.CRASH, f"the device's process died of it: {death}"

    def _limit_s(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> float:
        return run_limit_s(task, instances, self._timeout_s)

    def _trial(self, request: RunRequest, limit_s: float) -> JsonObject:
        shapes = [instance.shape for instance in request.instances]
        return {"kernel": request.build.kernel.to_json(), "shapes": shapes, "limit_s": limit_s}

    def _verify_at(
        self, task: SearchTask, build: BuildResult, dims: Mapping[str, int], interrupted: Callable[[], bool]
    ) -> str | None:
        if build.binary is None:
            return f"not built: {build.error}"
        limit_s = _verify_limit_s(task, dims)
        data = {"kernel": build.kernel.to_json(), "dims": dict(dims), "limit_s": limit_s}
        try:
            with self._turn(task, interrupted) as session:
                problem: str | None = self._ask(session, VERIFY, data, [build.binary], interrupted)
        except SessionDied as death:
            place = ", ".join(f"{name}={value}" for name, value in dims.items())
            problem = f"the device's process died, or took longer than {limit_s:.3g} s, at {place}: {death}"
            self._open(task, interrupted)
            return MACHINE + problem if self._cause(session, death)[0] is ErrorKind.MACHINE else problem
        return problem


def _verify_limit_s(task: SearchTask, dims: Mapping[str, int]) -> float:
    """The reference takes no more than VERIFY_TIMEOUT_S, as it is of a sample where an output is large; one call of the
    kernel is of all of it."""
    return VERIFY_TIMEOUT_S + slowest_s(task, dims)


def _all(request: RunRequest, device: str, kind: ErrorKind, message: str, run_s: float) -> list[MeasureResult]:
    answer = {"error_kind": kind.value, "error": message}
    return _results(request, device, [answer for _ in request.instances], run_s)


def _results(request: RunRequest, device: str, answers: Sequence[JsonObject], spent_s: float) -> list[MeasureResult]:
    """``spent_s`` is what the candidate took in all, until now; each instance is charged its share."""
    share_s = spent_s / max(1, len(answers))
    ended_s = share_ends(len(answers), share_s)
    return [
        _result(request, device, instance, answer, share_s, end_s)
        for instance, answer, end_s in zip(request.instances, answers, ended_s, strict=True)
    ]


def _result(
    request: RunRequest, device: str, instance: WorkloadInstance, answer: JsonObject, run_s: float, ended_s: float
) -> MeasureResult:
    kind: Any = answer.get("error_kind")
    return MeasureResult(
        request.build.kernel,
        instance,
        latency_s=answer.get("latency_s"),
        samples_s=tuple(answer.get("samples_s", ())),
        error_kind=ErrorKind(kind) if kind else None,
        error=answer.get("error", ""),
        build_s=request.build.build_s,
        run_s=run_s,
        anchor_s=answer.get("anchor_s"),
        device=device,
        ended_s=ended_s,
    )
