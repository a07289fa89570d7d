"""The work of a RunnerPool's devices: the items of several calls, which they take one after another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tuner.errors import ShapewrightError
from tuner.measure._base import DeviceLost, Runner
from tuner.program.job.task import SearchTask

MAX_DEVICES = 2
"""Devices that may fail, or be lost, over one item before it is given up."""

Health = tuple[bool, str | None]
"""Whether a device worked, and why its machine failed."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class Call(Generic[Item, Answer]):
    """The items of one call, and their answers; None where there is none yet, or none any more.

    ``health_of`` says of an answer whether the device worked, or why the machine failed over it. ``give_up`` answers an
    item over which MAX_DEVICES were lost; None: others are tried.
    """

    task: SearchTask
    items: Sequence[Item]
    do: Callable[[Runner, Item], Answer]
    health_of: Callable[[Answer], Health]
    give_up: Callable[[Item, DeviceLost], Answer] | None
    interrupted: Callable[[], bool]
    answers: list[Answer | None] = field(init=False)
    lost: ShapewrightError | None = None
    """Why no device could do the rest."""
    raised: BaseException | None = None
    """Any other error that a device raised, which ends the call."""
    done: threading.Event = field(default_factory=threading.Event)
    """Nothing of it is left, and nothing is under way."""

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.items)
        self.open = len(self.items)
        if not self.open:
            self.done.set()


@dataclass(eq=False)
class Work:
    """One item of a call. ``failed_over``: how many devices were lost or failed over it."""

    call: Call[Any, Any]
    index: int
    failed_over: int = 0

    @property
    def item(self) -> Any:
        return self.call.items[self.index]


class WorkQueue:
    """Open: calls are added while devices take from it. Not locked: its owner does that."""

    def __init__(self) -> None:
        self._left: deque[Work] = deque()
        self.calls: list[Call[Any, Any]] = []
        """The calls that are not done."""

    def __len__(self) -> int:
        """Items that no device has taken."""
        return len(self._left)

    def add(self, call: Call[Any, Any]) -> None:
        if call.open:
            self.calls.append(call)
            self._left.extend(Work(call, index) for index in range(len(call.items)))

    def task(self, prepared: SearchTask | None) -> SearchTask | None:
        """The task of the item that a device takes next which is ``prepared`` for one; None if nothing is left."""
        work = self._next(prepared)
        return None if work is None else work.call.task

    def take(self, task: SearchTask) -> Work | None:
        """The next item of a task."""
        work = self._next(task)
        if work is None or work.call.task is not task:
            return None
        self._left.remove(work)
        return work

    def give_back(self, work: Work, *, first: bool) -> None:
        """Nobody has done it: others may."""
        if work.call.raised is not None:
            self._close(work)
        elif first:
            self._left.appendleft(work)
        else:
            self._left.append(work)

    def answer(self, work: Work, answer: Any) -> None:
        """``answer`` None: it was interrupted."""
        work.call.answers[work.index] = answer
        self._close(work)

    def lost_over(self, work: Work, error: DeviceLost) -> None:
        """A device was lost over it: another one tries, unless too many were."""
        work.failed_over += 1
        if work.call.give_up is not None and work.failed_over >= MAX_DEVICES:
            self.answer(work, work.call.give_up(work.item, error))
        else:
            self.give_back(work, first=True)

    def failed_over(self, work: Work, answer: Any) -> None:
        """A device's machine failed over it, and this is what it says."""
        work.failed_over += 1
        if work.failed_over >= MAX_DEVICES:
            self.answer(work, answer)
        else:
            self.give_back(work, first=False)

    def end(self, work: Work, error: BaseException) -> None:
        """Its call ends, and raises that."""
        work.call.raised = work.call.raised or error
        self.withdraw(work.call)
        self._close(work)

    def abort(self, error: BaseException) -> None:
        """All calls that wait for a device end, and raise that."""
        while self._left:
            self.end(self._left.popleft(), error)

    def withdraw(self, call: Call[Any, Any]) -> None:
        """Nobody wants the rest of it. What is under way is still waited for."""
        for work in [work for work in self._left if work.call is call]:
            self._left.remove(work)
            self._close(work)

    def fail(self, error: ShapewrightError) -> None:
        """No device can do any of what is left."""
        while self._left:
            work = self._left.popleft()
            work.call.lost = work.call.lost or error
            self._close(work)

    def _next(self, prepared: SearchTask | None) -> Work | None:
        """The first item of that task, else the first of all: preparing a device takes time."""
        own = (work for work in self._left if work.call.task is prepared)
        return next(own, self._left[0] if self._left else None)

    def _close(self, work: Work) -> None:
        call = work.call
        call.open -= 1
        if not call.open:
            self.calls.remove(call)
            call.done.set()
