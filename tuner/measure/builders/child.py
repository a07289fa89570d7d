"""One build inside a builder's child process: whatever happens becomes a BuildResult or the end of the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import CompiledKernel, LibraryFiles
from tuner.measure._base import BuilderLost, BuildResult, LibraryFailed
from tuner.measure.machine import MACHINE, failure_kind, told
from tuner.measure.sandbox.limits import time_limit
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel

Build = Callable[[SearchTask, MicroKernel], CompiledKernel]
"""Compiles a candidate. Raises whatever went wrong. Travels to children pickled."""

Objects = Mapping[MicroKernel, bytes]
"""The object files of kernels that were compiled already."""

Link = Callable[[Dispatcher, str | None, Objects], LibraryFiles]
"""Links a library for a job of this id, and compiles what it has no object of. Raises whatever went wrong."""

LIBRARY_S, KERNEL_S = 60.0, 10.0
"""The time that compiling a library may take, and that each of its kernels adds."""
MAX_ERROR = 2000
"""Characters kept of a compiler's message; the end of it says what went wrong."""


def build_one(build: Build, task: SearchTask, kernel: MicroKernel, timeout_s: float) -> BuildResult:
    """Build one candidate in this process, which ends (SIGALRM) if that takes longer than ``timeout_s``.

    A timer of the operating system also ends a compiler that hangs in native code, and it works when whoever asked
    for the build is gone.
    """
    started = time.monotonic()
    try:
        with time_limit(timeout_s):
            made = build(task, kernel)
    except Exception as error:  # a candidate that cannot be built is a result
        kind = failure_kind(error, ErrorKind.BUILD)
        return failed_build(kernel, kind, f"{type(error).__name__}: {error}", time.monotonic() - started)
    return BuildResult(kernel, made.binary, time.monotonic() - started, code=made.code)


def lost_build(kernel: MicroKernel, build_s: float, timeout_s: float, *, is_killed: bool = False) -> BuildResult:
    """The result of a build whose process ended under it: out of time if it had used its time, else a crash, of the
    machine where it ``is_killed`` for want of memory."""
    if build_s >= timeout_s:
        return failed_build(kernel, ErrorKind.BUILD_TIMEOUT, f"the build took longer than {timeout_s:g} s", build_s)
    if is_killed:
        message = "the compiler's process ended while memory ran out"
        return failed_build(kernel, ErrorKind.MACHINE, message, build_s)
    return failed_build(kernel, ErrorKind.BUILD, "the compiler's process ended without an answer", build_s)


def link_one(
    link: Link, dispatcher: Dispatcher, job_id: str | None, objects: Objects, timeout_s: float
) -> LibraryFiles | str:
    """Make a library in this process, which ends (SIGALRM) if that takes longer; or what went wrong, as ``told``."""
    try:
        with time_limit(timeout_s):
            return link(dispatcher, job_id, objects)
    except Exception as error:
        return _shortened(told(error))


def link_timeout_s(dispatcher: Dispatcher) -> float:
    return LIBRARY_S + KERNEL_S * len(dispatcher.kernels)


def linked(
    answer: LibraryFiles | str | None, dispatcher: Dispatcher, spent_s: float, *, is_killed: bool = False
) -> LibraryFiles:
    """What ``link_one`` answered, None if its process ended. Raises LibraryFailed; BuilderLost where the machine
    failed, or the process ``is_killed`` for want of memory."""
    if isinstance(answer, LibraryFiles):
        return answer
    timeout_s = link_timeout_s(dispatcher)
    lost = f"it took longer than {timeout_s:g} s" if spent_s >= timeout_s else "the compiler's process ended"
    what = f"the library of {len(dispatcher.kernels)} kernels for {dispatcher.task.workload}"
    problem = f"{what} cannot be compiled: {lost if answer is None else answer}"
    if spent_s < timeout_s and (is_killed if answer is None else answer.startswith(MACHINE)):
        raise BuilderLost(problem)
    raise LibraryFailed(problem)


def failed_build(kernel: MicroKernel, kind: ErrorKind, message: str, build_s: float) -> BuildResult:
    return BuildResult(kernel, None, build_s, kind, message[-MAX_ERROR:])


def _shortened(message: str) -> str:
    """A message without its middle: its beginning says whose fault it is, its end what went wrong."""
    return message if len(message) <= MAX_ERROR else f"{message[: MAX_ERROR // 4]} ... {message[-MAX_ERROR // 2 :]}"
