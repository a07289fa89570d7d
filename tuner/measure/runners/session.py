"""A session with a device over RPC: opened for one search task, called with deadlines, given up when it dies."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Self

from tuner.errors import InvalidInput
from tuner.measure._base import DeviceLost, Interrupted, NotMeasured, WrongDevice, never
from tuner.measure.network.addresses import address_text
from tuner.measure.network.connecting import PROTOCOL_ERRORS, Connected, OutOfTime, within
from tuner.measure.rpc_names import LAST_ANSWER, OPEN
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.program.target.cpu_names import SPOKEN
from tuner.program.target.cuda import differs, spoken

Connect = Callable[[float, Callable[[], bool]], Connected]
"""Opens a session that the device ends after the given seconds, unless interrupted. Raises DeviceLost, Interrupted."""

OPEN_TIMEOUT_S = 60.0
GRACE_S = 10.0
"""How much longer than the device's own limits the runner waits before it calls the device lost."""

log = logging.getLogger(__name__)


class SessionDied(Exception):
    """The process behind the session ended, or cannot be reached."""


@dataclass(slots=True, eq=False)
class Session:
    """A session that is prepared for one search task. ``device`` names the device, ``server`` the process that serves
    it."""

    connected: Connected
    task: SearchTask
    device: str
    target: Target
    """The device's own."""
    server: str
    killed: int
    """Sessions of that process before this one that were killed."""
    opened_s: float
    is_over: bool = False
    """Whether its process can do no more: the last candidate has broken what others need."""

    @classmethod
    def open(cls, connect: Connect, task: SearchTask, life_s: float, interrupted: Callable[[], bool]) -> Self:
        """Raises DeviceLost, NotMeasured, WrongDevice, Interrupted."""
        connected = connect(life_s, interrupted)
        opened_s = time.monotonic()
        request = json.dumps(task.to_json())
        try:
            about = json.loads(within(OPEN_TIMEOUT_S, lambda: connected.call(OPEN, request), interrupted))
            target, name, server = Target.from_json(about["target"]), str(about["id"]), str(about["server"])
            cores = int(about["description"]["cores"])
            # One of an earlier release knows no other, and would time those warm as well.
            caches = about.get("caches", [Cache.WARM])
        except Interrupted:
            connected.hang_up()
            raise
        except (*PROTOCOL_ERRORS, OutOfTime, InvalidInput) as error:
            connected.hang_up()
            where = address_text(connected.address)
            raise DeviceLost(f"the device at {where} cannot prepare for {task.workload}: {brief(error)}") from error
        session = cls(connected, task, name, target, server, about.get("killed", 0), opened_s)
        try:
            _check_target(task, target, name)
            _check_threads(task, cores, name)
            _check_caches(task, caches, name)
        except (NotMeasured, WrongDevice):
            # Or the next session waits for this one to end.
            session.close()
            raise
        return session

    def ask(self, function: str, data: JsonObject, *binary: bytes, interrupted: Callable[[], bool] = never) -> Any:
        """What the device's ``function`` answers within ``limit_s`` of the request.

        Raises DeviceLost, SessionDied, Interrupted.
        """
        text = json.dumps(data)
        try:
            answer = within(
                data["limit_s"] + GRACE_S,
                lambda: self.connected.call(function, text, *map(bytearray, binary)),
                interrupted,
            )
        except OutOfTime as error:
            self.connected.hang_up()
            raise DeviceLost(f"the device stopped answering: {error}") from error
        except RuntimeError as error:
            # An error of the device's function leaves the session alive, which would keep the next one waiting. Not
            # hung up: another runner of this process may have a session of the device by now.
            self.close()
            raise SessionDied(brief(error)) from error
        told = json.loads(answer)
        if isinstance(told, dict) and LAST_ANSWER in told:
            self.is_over = True
            return told[LAST_ANSWER]
        return told

    def close(self) -> None:
        """Free the device. Not left to the garbage collector, which would take its time."""
        try:
            within(GRACE_S, lambda: self.connected.call("CloseRPCConnection"))
        except (RuntimeError, OutOfTime) as error:
            log.info("the session had ended already: %s", brief(error))


def _check_target(task: SearchTask, device: Target, name: str) -> None:
    """Code for instructions that the device lacks would crash there, and the crash would be taken for the kernel's."""
    target = task.target or device
    remedy = "tune for its own target, or name another device"
    if target.kind != device.kind:
        both = f"runs code for {device.kind} ({device.mcpu}), the task is for {target.kind} ({target.mcpu})"
        raise NotMeasured(f"device {name} {both}: {remedy}")
    if problem := _misfit(target, device):
        raise WrongDevice(f"device {name} {problem}: {remedy}")


def _misfit(target: Target, device: Target) -> str | None:
    """Why a device of the target's kind does not run its code, or not as that hardware does."""
    if target.gpu is not None and device.gpu is not None:
        both = f"is {spoken(device.gpu)}, the target {spoken(target.gpu)}"
        return both if differs(target.gpu, device.gpu) else None
    if target.architecture != device.architecture:
        theirs, ours = SPOKEN[device.architecture], SPOKEN[target.architecture]
        return f"({device.mcpu}) is of {theirs}, the target {target.mcpu} of {ours}"
    missing = sorted(set(target.hardware.features) - set(device.hardware.features))
    return f"({device.mcpu}) lacks {', '.join(missing)}, which the target {target.mcpu} has" if missing else None


def _check_threads(task: SearchTask, cores: int, name: str) -> None:
    if task.threads > cores:
        problem = f"device {name} measures on {cores} of its cores, the task has {task.threads} threads"
        raise WrongDevice(f"{problem}: name another device, or give this one more cores")


def _check_caches(task: SearchTask, known: Collection[str], name: str) -> None:
    if task.cache not in known:
        problem = (
            f"device {name} is of a release that times warm calls alone, the task asks for {task.cache.value} ones"
        )
        raise WrongDevice(f"{problem}: upgrade it, or name another device")


def brief(error: BaseException) -> str:
    """The last line of an error's message, as far as one wants to read it."""
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__
