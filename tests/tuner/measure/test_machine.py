"""What tells of the machine, and what of the candidate."""

from __future__ import annotations

import errno

import pytest

from tuner.library.package import CompiledKernel
from tuner.measure.builders.child import build_one
from tuner.measure.machine import failure_kind
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError(errno.EMFILE, "Too many open files"),
        PermissionError(errno.EACCES, "Permission denied"),
        PermissionError(errno.EPERM, "Operation not permitted"),
        RuntimeError("Unable to allocate 1.91 GiB for an array"),
        RuntimeError("ld: final link failed: No space left on device"),
        RuntimeError("cc1plus: out of memory allocating 65536 bytes"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_the_machine_failed(error: Exception) -> None:
    assert failure_kind(error, ErrorKind.WRONG) is ErrorKind.MACHINE


@pytest.mark.parametrize("error", [ValueError("m must be above 0"), OSError(errno.ENOEXEC, "Exec format error")])
def test_the_candidate_failed(error: Exception) -> None:
    assert failure_kind(error, ErrorKind.WRONG) is ErrorKind.WRONG


def test_a_build_without_room_on_the_disk_says_so() -> None:
    def build(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
        raise OSError(errno.ENOSPC, "No space left on device")

    task = SearchTask("dense", {"m": 8, "n": 8, "k": 8})
    result = build_one(build, task, MicroKernel("r", 1, ()), 10.0)
    assert (result.error_kind, result.binary) == (ErrorKind.MACHINE, None)
    assert "No space left" in result.error
