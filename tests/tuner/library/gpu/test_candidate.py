"""Candidates for GPUs: what is compiled for them, what is refused, and libraries that are linked of them."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import pytest

from tests.tuner.schedule.gpu.conftest import REASON
from tuner.library import build
from tuner.library.dispatcher import Dispatcher, Leaf, Node
from tuner.library.gpu import candidate
from tuner.library.gpu.candidate import Misfit, NoCompiler, compile_candidate
from tuner.library.package import KERNELS, LIBRARY, check_files, dispatcher_of, kernel_scripts
from tuner.measure.builders.child import build_one
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import READERS, Target
from tuner.records import ErrorKind
from tuner.schedule import default_kernel, space_of
from tuner.schedule.gpu.cubin import Cubin

H100 = Target.from_json({"kind": "cuda", "product": "h100"})
TASK = SearchTask(
    "dense", {"m": "16*T", "n": 96, "k": 64}, [ShapeVar("T", range(1, 33))], dtype="float16", epilogue=["bias"],
    target=H100,
)  # fmt: skip
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=REASON)


def test_every_kind_of_target_has_a_compiler() -> None:
    assert set(build.BACKENDS) == set(READERS)


def test_without_triton_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "COMPILER", "a_compiler_that_nobody_has")
    with pytest.raises(NoCompiler, match=r"pip install 'shapewright\[gpu\]'"):
        compile_candidate(TASK, default_kernel(TASK))
    result = build_one(build.compile_candidate, TASK, default_kernel(TASK), 30.0)
    assert (result.binary, result.error_kind) == (None, ErrorKind.BUILD)
    assert "shapewright[gpu]" in result.error


@pytest.mark.parametrize(("spilled", "shared", "problem"), [(8, 0, "spills 8 bytes"), (0, 240_000, "shared memory")])
def test_what_ptxas_says_does_not_fit_is_refused(spilled: int, shared: int, problem: str) -> None:
    assert H100.gpu is not None
    cubin = Cubin("kernel_0", b"", "", shared, 255, spilled, 4)
    with pytest.raises(Misfit, match=problem):
        candidate._check(cubin, H100.gpu.architecture.block_shared_bytes)


@needs_triton
def test_a_library_is_linked_of_what_was_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = default_kernel(TASK)
    second = space_of(TASK).space_of(first).kernel({**dict(first.values), "block_n": 32, "split_k": 2})
    made = {kernel: build_one(build.compile_candidate, TASK, kernel, 200.0) for kernel in (first, second)}
    assert [result.error for result in made.values()] == ["", ""]
    for result in made.values():
        cubins = pickle.loads(result.code)
        assert all(0 < each.registers <= 255 and each.spilled_bytes == 0 for each in cubins)
    # Another function adds the shares of k.
    assert [len(pickle.loads(made[kernel].code)) for kernel in (first, second)] == [1, 2]
    monkeypatch.setattr(candidate, "_compiled", lambda task, kernel: pytest.fail("it was compiled before"))
    tree = Node("m", 256, Leaf(1), Leaf(0))
    dispatcher = Dispatcher(TASK, (first, second), 0, tree)
    files = build.build_library(dispatcher, "job-1", {kernel: result.code for kernel, result in made.items()})
    manifest = check_files(files.files)
    assert manifest["code_for"] == ["sm_90a"]
    assert manifest["toolchain"]["triton"]
    again = dispatcher_of(files.files, manifest)
    assert [again.kernel_for({"T": size}) for size in (3, 32)] == [second, first]
    assert {LIBRARY, KERNELS} <= set(files.files)
    assert all("@triton.jit" in script for script in kernel_scripts(files.files).values())


@needs_triton
def test_nothing_is_left_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    compile_candidate(TASK, default_kernel(TASK))
    assert not list(tmp_path.iterdir())
