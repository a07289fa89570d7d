"""A machine that lacks something over a build, or a device over a candidate: nothing is said of the kernel, and it is
built again once there is room."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tvm.support.cc import get_cc

from tests.compiled import small_kernel
from tests.measuring import RIGHT, TASK, request
from tuner.errors import MachineFailed
from tuner.library import codegen
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.machine_code import LinkFailed, NoLinker, linked
from tuner.library.package import CompiledKernel
from tuner.measure import BuilderLost, LibraryFailed
from tuner.measure.builders import child as building
from tuner.measure.builders import local as local_builder
from tuner.measure.builders.child import build_one
from tuner.measure.builders.local import LocalBuilder
from tuner.measure.machine import failure_kind, oom_kills
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import native
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel

T = ShapeVar("T", range(1, 9))
DENSE = SearchTask("dense", {"m": T, "n": 32, "k": 16}, (T,)).on(native())
KERNEL = small_kernel(DENSE)
LIMIT_S = 60.0


class Disk:
    """A file system of its own, of as many KiB as it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("size=16m")

    def resize(self, kib: int) -> None:
        self._mount(f"remount,size={kib}k")

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _mount(self, options: str) -> None:
        line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """Each test leaves it as large as it was."""
    made = Disk(tmp_path_factory.mktemp("full") / "disk")
    yield made
    made.close()


@pytest.fixture(scope="module")
def builder(disk: Disk) -> Iterator[LocalBuilder]:
    """Its temporary files are on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(disk.folder))
        made = LocalBuilder(processes=1, timeout_s=LIMIT_S)
        yield made
        made.close()


def test_a_build_on_a_full_disk_is_the_machines_failure_and_is_made_again(disk: Disk, builder: LocalBuilder) -> None:
    (whole,) = builder.build(DENSE, [KERNEL])
    assert whole.binary is not None
    size = len(whole.binary) // 1024
    # No room for an object, for both, for the library, for all of it.
    for kib in sorted({4, 8, 16, size, size + 8}):
        disk.resize(kib)
        (result,) = builder.build(DENSE, [KERNEL])
        assert (result.error_kind, result.binary) == (ErrorKind.MACHINE, None), result.error
        assert "No space left on device" in result.error
        assert list(disk.folder.iterdir()) == []
    disk.resize(16 * 1024)
    assert builder.build(DENSE, [KERNEL])[0].binary == whole.binary


def test_a_library_on_a_full_disk_is_left_to_another_attempt(disk: Disk, builder: LocalBuilder) -> None:
    dispatcher = Dispatcher(DENSE, (KERNEL,), 0, Leaf(0), ())
    disk.resize(8)
    with pytest.raises(BuilderLost, match="No space left on device"):
        builder.library(dispatcher, None, {})
    disk.resize(16 * 1024)
    assert builder.library(dispatcher, None, {}).files


def test_a_device_with_a_full_disk_blames_no_candidate(disk: Disk) -> None:
    with LocalDevice(disk.folder) as device:
        runner = RpcRunner(device.connect, timeout_s=LIMIT_S)
        disk.resize(8)
        (result,) = runner.run(TASK, [request(RIGHT)])
        assert result.error_kind is ErrorKind.MACHINE, result.error
        ((_, problem),) = runner.verify(TASK, request(RIGHT).build, [{"m": 5}])
        assert failure_kind(RuntimeError(problem), ErrorKind.WRONG) is ErrorKind.MACHINE
        disk.resize(16 * 1024)
        assert runner.run(TASK, [request(RIGHT)])[0].ok
        assert runner.verify(TASK, request(RIGHT).build, [{"m": 5}]) == []
        runner.close()


# -- what else a machine may lack -------------------------------------------------------------------------------------
def compile_it() -> tuple[ErrorKind | None, str]:
    result = build_one(codegen.compile_candidate, DENSE, KERNEL, LIMIT_S)
    return result.error_kind, result.error


@contextmanager
def small_files(kib: int) -> Iterator[None]:
    """No file of this process and its children may be longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_of_the_length_of_files_is_the_machines() -> None:
    made = codegen.compile_candidate(DENSE, KERNEL)
    with small_files(len(made.code) // 1024 + 2):
        kind, error = compile_it()
    assert kind is ErrorKind.MACHINE, error
    assert compile_it() == (None, "")


def test_a_temporary_folder_that_is_gone_or_none_is_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (tmp_path / "gone", file):
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        assert compile_it()[0] is ErrorKind.MACHINE


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What the compiler's driver does instead, in shell."""
    path = tmp_path / "c++"

    def does(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return does


REAL = get_cc()


@pytest.mark.parametrize(
    "script", ["exit 1", "kill -KILL $$", "echo cannot find ld; exit 1"], ids=["fails", "is killed", "lacks its linker"]
)
def test_a_compiler_that_links_nothing_is_the_machines(compiler: Callable[[str], None], script: str) -> None:
    compiler(script)
    assert compile_it()[0] is ErrorKind.MACHINE


def test_a_compiler_that_is_gone_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    kind, error = compile_it()
    assert kind is ErrorKind.MACHINE
    assert "gone cannot be started: No such file or directory" in error
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    kind, error = compile_it()
    assert kind is ErrorKind.MACHINE
    assert "NoLinker: no C compiler is on the PATH: apt-get install gcc" in error


def test_a_compiler_that_was_killed_once_is_started_again(compiler: Callable[[str], None], tmp_path: Path) -> None:
    compiler(f'if mkdir "{tmp_path}/once" 2>/dev/null; then kill -KILL $$; fi; exec {REAL} "$@"')
    assert compile_it() == (None, "")
    assert (tmp_path / "once").exists()


def test_what_a_working_linker_refuses_is_no_failure_of_the_machine() -> None:
    whole = codegen.object_of(DENSE, KERNEL)
    with pytest.raises(LinkFailed, match="exit status"):
        linked([whole, b"this is no object"], native(), {})
    assert not issubclass(LinkFailed, MachineFailed) and issubclass(NoLinker, MachineFailed)

    def build(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
        return CompiledKernel(linked([whole, b"this is no object"], native(), {}), b"")

    assert build_one(build, DENSE, KERNEL, LIMIT_S).error_kind is ErrorKind.BUILD


def ends() -> building.Build:
    """A build, and a link, that ends its process."""

    def end(*_: object) -> CompiledKernel:
        import os  # noqa: PLC0415  (it has to be found in the other process)

        os._exit(1)

    return end


@pytest.mark.parametrize(
    ("kills", "kind", "raised"),
    [
        ([0, 1], ErrorKind.MACHINE, BuilderLost),
        pytest.param([0, 0], ErrorKind.BUILD, LibraryFailed, marks=pytest.mark.soak),
    ],
    ids=["memory", "itself"],
)
def test_a_process_that_ends_while_memory_runs_out_is_the_machines(
    monkeypatch: pytest.MonkeyPatch, kills: list[int], kind: ErrorKind, raised: type[Exception]
) -> None:
    counts = iter(2 * kills)
    monkeypatch.setattr(local_builder, "oom_kills", lambda: next(counts))
    builder = LocalBuilder(ends(), ends(), processes=1, timeout_s=LIMIT_S)  # type: ignore[arg-type]
    try:
        assert builder.build(DENSE, [KERNEL])[0].error_kind is kind
        with pytest.raises(raised):
            builder.library(Dispatcher(DENSE, (KERNEL,), 0, Leaf(0), ()), None, {})
    finally:
        builder.close()


def test_the_kernels_count_of_processes_that_it_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert oom_kills() >= 0
    for text, count in (("pgfault 5\noom_kill 3\ndrop_pagecache 0\n", 3), ("pgfault 5\n", 0), (None, 0)):
        path = tmp_path / "vmstat"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr("tuner.measure.machine.VMSTAT", path)
        assert oom_kills() == count


NUMBERS: Mapping[str, int] = {
    name: getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "EFBIG", "ENOENT", "ENOTDIR")
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_an_operating_system_refuses_is_the_machines(name: str) -> None:
    """Told by its number, whatever the text says in whichever language."""

    def build(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
        raise OSError(NUMBERS[name], "kein Platz")

    assert build_one(build, DENSE, KERNEL, LIMIT_S).error_kind is ErrorKind.MACHINE


def test_a_process_without_file_numbers_left_blames_no_kernel() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The least number that is free is the limit, and those below it are taken.
    limit = os.open("/dev/null", os.O_RDONLY)
    os.close(limit)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        kind, error = compile_it()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert kind is ErrorKind.MACHINE, error
