"""Devices that work off the items of several calls, each device in a thread of its own while there is work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tuner.errors import ShapewrightError
from tuner.measure._base import DeviceBusy, DeviceLost, Interrupted, Runner, WrongDevice
from tuner.measure.runners.work_queue import Call, Work, WorkQueue
from tuner.program.job.task import SearchTask

DISCOVERY_S, POLL_S = 120.0, 0.5
"""How long a call waits for a first device where there is none: a tracker that was restarted learns of its devices
within seconds."""
IDLE_RELEASE_S = 1.0
"""The time after which a device with nothing left to do is given back: others may wait for it."""
LOOK_S = 0.25
"""How often a call that waits looks for devices, and checks whether it is still wanted."""
REST_S = 10.0
"""How long a device is left alone that was lost, or whose machine failed, while others work."""
TURN_S = 20.0
"""How long a device works for one search task while another has items, too."""
CLOSE_S = 20.0
"""How long closing waits for the devices to put down what they hold."""
SPARE = 2
"""Devices that are requested for each item, where there are more: some may be busy for others."""

Name = Any
"""Hashable."""
Members = Callable[[], Mapping[Name, Callable[[], Runner]]]
"""The devices that there are now, by name, each with what makes a runner on it."""
Report = Callable[[Name, str | None], None]
"""Called for each device that failed, with the reason; with None for one that worked."""


def no_report(name: Name, problem: str | None) -> None:
    """A ``Report`` for callers that keep no account of devices."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """A device that is connected and idle."""

    runner: Runner
    since_s: float


class DeviceWorkers:
    """The devices of ``members()``, and the queue that they share. For use from several threads.

    A device that was lost, or whose machine failed, rests while others work: until all calls are done, REST_S at most.
    So does one that ``should_rest``.
    """

    def __init__(
        self, members: Members, report: Report, should_rest: Callable[[Name], bool], discovery_s: float
    ) -> None:
        self._members, self._report, self._should_rest = members, report, should_rest
        self._discovery_s = discovery_s
        self._changed = threading.Condition()
        self._queue = WorkQueue()
        self._idle: dict[Name, _Idle] = {}
        """Connected idle devices, the one that worked last at the end."""
        self._looking: set[Name] = set()
        """Devices that wait to be handed out, or are about to take an item."""
        self._working: set[Name] = set()
        self._lost: dict[Name, ShapewrightError] = {}
        self._rests_until: dict[Name, float] = {}
        self._looked_s = float("-inf")
        self._watch: threading.Timer | None = None

    def perform(self, call: Call[Any, Any]) -> None:
        """Return once the call is done, no device can do it, or it is interrupted. Raises what else a device raises."""
        try:
            if call.items:
                self._wait_for_members(call.interrupted)
        except Interrupted:
            return
        self._give_idle_back()
        with self._changed:
            self._queue.add(call)
            self._engage()
        while not call.done.wait(LOOK_S):
            self._look_after(call, call.interrupted())
        with self._changed:
            # Whoever comes next finds the devices at hand.
            self._changed.wait_for(lambda: self._queue.calls or not self._looking, CLOSE_S)
        if call.raised is not None:
            raise call.raised

    def close(self) -> None:
        """Give the devices back."""
        with self._changed:
            self._changed.wait_for(lambda: not self._looking and not self._working, CLOSE_S)
            idle, self._idle = self._idle, {}
        for each in idle.values():
            each.runner.close()

    def _wait_for_members(self, interrupted: Callable[[], bool]) -> None:
        """Wait for a first device."""
        deadline = time.monotonic() + self._discovery_s
        while not self._members():
            if interrupted():
                raise Interrupted("the device is no longer wanted")
            if time.monotonic() > deadline:
                missing = f"there has been no device for {self._discovery_s:g} s, or none that is not quarantined"
                raise DeviceLost(missing)
            time.sleep(POLL_S)

    def _look_after(self, call: Call[Any, Any], is_interrupted: bool) -> None:
        with self._changed:
            if is_interrupted:
                self._queue.withdraw(call)
            elif time.monotonic() - self._looked_s >= LOOK_S:
                self._engage()

    def _give_idle_back(self) -> None:
        """Devices that are gone, and those that had nothing to do for a while; but for the last one at hand, on which a
        comparison goes on."""
        now_s, members = time.monotonic(), self._members()
        with self._changed:
            if self._watch is threading.current_thread():
                self._watch = None
            last = next(reversed(self._idle), None) if not self._looking and not self._working else None
            old = [name for name, idle in self._idle.items() if now_s - idle.since_s >= IDLE_RELEASE_S]
            gone = [name for name in self._idle if name not in members or (name in old and name != last)]
            released = [self._idle.pop(name).runner for name in gone]
            self._watch_idle()
        for runner in released:
            runner.close()

    def _watch_idle(self) -> None:
        """Look again after a while, whether anybody calls or not."""
        watch = self._watch
        is_watched = watch is not None and not watch.finished.is_set() and watch is not threading.current_thread()
        if len(self._idle) > 1 and not is_watched:
            self._watch = threading.Timer(IDLE_RELEASE_S, self._give_idle_back)
            self._watch.daemon = True
            self._watch.start()

    # -- who works, under the lock --------------------------------------------------------------------------------
    def _engage(self) -> None:
        """Set devices to work: those at hand first, and more than there are items, since some may be busy."""
        self._looked_s = time.monotonic()
        if len(self._queue):
            members = self._members()
            usable = self._usable(members)
            if not usable and not self._looking and not self._working:
                lost = next((error for name, error in self._lost.items() if name in members), None)
                self._queue.fail(lost or DeviceLost("the devices are gone, or quarantined"))
            for name in self._chosen(usable):
                idle = self._idle.pop(name, None)
                self._looking.add(name)
                arguments = name, idle.runner if idle else members[name]()
                threading.Thread(target=self._work, args=arguments, name=f"device {name}", daemon=True).start()
        if not self._queue.calls:
            # The next call tries them again.
            self._lost.clear()
            self._rests_until.clear()

    def _chosen(self, usable: list[Name]) -> list[Name]:
        """The devices to set to work now, those that worked last first."""
        free = [name for name in usable if name not in self._looking and name not in self._working]
        at_hand = [name for name in reversed(self._idle) if name in free]
        # A lone item goes to the device that is at hand: comparisons are made of such calls.
        is_lone = len(self._queue) == 1 and not self._working and bool(at_hand or self._looking)
        wanted = (1 if is_lone else SPARE * len(self._queue)) - len(self._looking)
        return [*at_hand, *(name for name in free if name not in self._idle)][: max(0, wanted)]

    def _usable(self, members: Mapping[Name, Callable[[], Runner]]) -> list[Name]:
        """The devices that may work. One that should rest may where all should; one that was lost may not."""
        now_s = time.monotonic()
        resting = {name for name, until_s in self._rests_until.items() if now_s < until_s}
        present = [name for name in members if not (name in resting and name in self._lost)]
        return [name for name in present if name not in resting and not self._should_rest(name)] or present

    # -- a device, in a thread of its own -------------------------------------------------------------------------
    def _work(self, name: Name, runner: Runner) -> None:
        """Take one item after another until nothing is left, or the device had better rest."""
        prepared: SearchTask | None = None
        since_s, has_worked, is_lost = time.monotonic(), False, True
        try:
            while (task := self._task_for(name, prepared, since_s)) is not None:
                if task is not prepared:
                    prepared, since_s = task, time.monotonic()
                if (work := self._taken(name, runner, task)) is not None:
                    has_worked = True
                    self._do(name, runner, work)
            is_lost = False
        except (DeviceLost, WrongDevice) as error:
            self._note_lost(name, error)
        except BaseException as error:
            with self._changed:
                self._queue.abort(error)
        finally:
            self._leave(name, None if is_lost else runner, has_worked)
            if is_lost:
                runner.close()

    def _task_for(self, name: Name, prepared: SearchTask | None, since_s: float) -> SearchTask | None:
        """Whose item the device should take next; None if it should take none."""
        with self._changed:
            # Others may have had it quarantined.
            if not len(self._queue) or name not in self._usable(self._members()):
                return None
            return self._queue.task(prepared if time.monotonic() - since_s < TURN_S else None)

    def _taken(self, name: Name, runner: Runner, task: SearchTask) -> Work | None:
        """The next item of a task, once the device is ready for it; None if others have taken the last."""
        try:
            # A device first, then an item: who waits for a device holds up nothing.
            runner.ready(task, lambda: not self._has_items(task))
        except Interrupted:
            return None
        with self._changed:
            work = self._queue.take(task)
            if work is not None:
                self._looking.discard(name)
                self._working.add(name)
            return work

    def _has_items(self, task: SearchTask) -> bool:
        with self._changed:
            return self._queue.task(task) is task

    def _do(self, name: Name, runner: Runner, work: Work) -> None:
        """Raises DeviceLost, WrongDevice."""
        try:
            if work.call.interrupted():
                raise Interrupted("the answer is no longer wanted")
            answer = work.call.do(runner, work.item)
        except Interrupted:
            self._put_down(name, partial(self._queue.answer, work, None))
        except (DeviceBusy, WrongDevice):
            self._put_down(name, partial(self._queue.give_back, work, first=True))
            raise
        except DeviceLost as error:
            self._put_down(name, partial(self._queue.lost_over, work, error))
            raise
        except BaseException as error:
            self._put_down(name, partial(self._queue.end, work, error))
        else:
            self._answered(name, work, answer)

    def _answered(self, name: Name, work: Work, answer: Any) -> None:
        worked, problem = work.call.health_of(answer)
        with self._changed:
            if problem is None:
                self._lost.pop(name, None)
                self._put_down(name, partial(self._queue.answer, work, answer))
            else:
                self._rests_until[name] = time.monotonic() + REST_S
                self._put_down(name, partial(self._queue.failed_over, work, answer))
        if worked or problem is not None:
            self._report(name, problem)

    def _put_down(self, name: Name, settle: Callable[[], None]) -> None:
        with self._changed:
            settle()
            self._working.discard(name)
            self._looking.add(name)

    def _note_lost(self, name: Name, error: ShapewrightError) -> None:
        with self._changed:
            self._lost[name], self._rests_until[name] = error, time.monotonic() + REST_S
        if isinstance(error, DeviceLost) and not isinstance(error, DeviceBusy):
            self._report(name, str(error))

    def _leave(self, name: Name, runner: Runner | None, has_worked: bool) -> None:
        with self._changed:
            self._looking.discard(name)
            self._working.discard(name)
            if runner is not None:
                mine = {name: _Idle(runner, time.monotonic())}
                self._idle = {**self._idle, **mine} if has_worked else {**mine, **self._idle}
            self._engage()
            self._watch_idle()
            self._changed.notify_all()
