"""Requests of a search in another process to the worker, carried out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tuner.measure import BuildResult, RunRequest
from tuner.program.job.task import SearchTask
from tuner.search.tuning import SearchTools, Tuned
from worker.remote.kept_bytes import KeptBytes
from worker.remote.messages import Call, Handle, Outcome


class Calls:
    """Carries out the requests of a search. It keeps the bytes of what is built, for which the search has handles."""

    def __init__(self, task: SearchTask, tools: SearchTools) -> None:
        self._task, self._tools = task, tools
        self._unwanted: dict[int, threading.Event] = {}
        self._kept = KeptBytes()

    def begun(self, number: int) -> None:
        self._unwanted[number] = threading.Event()

    def interrupt(self, number: int) -> None:
        if (unwanted := self._unwanted.get(number)) is not None:
            unwanted.set()

    def interrupt_all(self) -> None:
        for unwanted in list(self._unwanted.values()):
            unwanted.set()

    def carry_out(self, call: Call) -> Outcome:
        unwanted = self._unwanted[call.id]
        try:
            return Outcome.of(lambda: self._do(call, lambda: unwanted.is_set() or self._tools.should_stop()))
        finally:
            del self._unwanted[call.id]

    def _do(self, call: Call, interrupted: Callable[[], bool]) -> Any:
        args = call.args
        match call.method:
            case "build":
                return [self._handled(build) for build in self._tools.builder.build(args[0] or self._task, args[1])]
            case "library":
                objects = {kernel: self._bytes(held) for kernel, held in args[2].items()}
                library = self._tools.builder.library(args[0], args[1], objects)
                return replace(library, files={name: self._handle(held) for name, held in library.files.items()})
            case "ready":
                self._tools.runner.ready(args[0] or self._task, interrupted)
            case "run":
                requests = [RunRequest(self._whole(each.build), each.instances) for each in args[1]]
                return self._tools.runner.run(args[0] or self._task, requests, interrupted)
            case "verify":
                return self._tools.runner.verify(args[0] or self._task, self._whole(args[1]), args[2], interrupted)
            case "baselines":
                return self._tools.runner.baselines(args[0] or self._task, args[1])
            case "turns":
                whole = replace(args[1], builds=tuple(map(self._whole, args[1].builds)))
                return self._tools.runner.turns(args[0] or self._task, whole, interrupted)
            case "record":
                self._tools.recorder.record(*args)
            case "record_baselines":
                self._tools.recorder.record_baselines(*args)
            case other:
                raise ValueError(f"a search asks for {other!r}, which nobody does")
        return None

    # -- what it keeps --------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Drop what was built, once no call is carried out any more and nobody needs it."""
        self._kept.close()

    def whole(self, tuned: Tuned) -> Tuned:
        return replace(tuned, files={name: self._bytes(held) for name, held in tuned.files.items()})

    def _whole(self, build: BuildResult) -> BuildResult:
        # No runner needs the object.
        return build if build.binary is None else replace(build, binary=self._bytes(build.binary), code=b"")

    def _handled(self, build: BuildResult) -> BuildResult:
        if build.binary is None:
            return build
        return replace(build, binary=self._handle(build.binary), code=self._handle(build.code) if build.code else b"")

    def _handle(self, held: bytes) -> Handle:
        return Handle(b"%d" % self._kept.keep(held))

    def _bytes(self, held: bytes) -> bytes:
        return self._kept.get(int(held)) if isinstance(held, Handle) else held
