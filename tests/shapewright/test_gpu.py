"""Libraries for GPUs in use, by a driver that only writes down what it is asked for; and where there is none."""

from __future__ import annotations

import ctypes
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import shapewright as sw
from shapewright.c_library.project import write_project
from shapewright.checking import Checker
from shapewright.cli.tune import _gpus_of
from shapewright.loading import load
from tests import gpu_measuring
from tests.measuring import PAST_THE_END, RIGHT
from tests.shapewright import gpu_calls
from tests.tuner.library.gpu.driven import dense
from tuner.errors import GpuFailed, InvalidInput, ShapewrightError
from tuner.library import package as files_of
from tuner.measure import FIRST_GPU
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.target import Target

pytestmark = pytest.mark.together("gpu")

TIMEOUT_S = 200.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpu_calls.saved(tmp_path_factory.mktemp("gpu"), dense(), gpu_calls.PLAIN)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_loading_without_a_driver_says_what_is_missing(folder: Path) -> None:
    with pytest.raises(
        GpuFailed, match=r"for GPUs \(sm_90a\), and no NVIDIA driver is here \(libcuda.so.1: .*\): install"
    ):
        load(folder)


def test_what_a_library_says_of_itself_needs_no_gpu(folder: Path) -> None:
    files = files_of.read_files(folder)
    manifest = files_of.check_files(files, folder)
    dispatcher = files_of.dispatcher_of(files, manifest, folder)
    assert dispatcher.kernel_for({"T": 37}) == dispatcher.kernels[0]
    assert manifest["code_for"] == ["sm_90a"]
    assert "tl.dot" in next(iter(files_of.kernel_scripts(files).values()))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("code_for", "sm_90a", "is not a list of instruction sets of a GPU"),
        ("target", {"kind": "cuda", "arch": "sm_80", "hardware": {}}, "target: is sm_80, the library is for sm_90"),
        ("target", {"kind": "cuda", "arch": 90, "hardware": {}}, "is not a target"),
        ("target", {"kind": "llvm", "mcpu": "x86-64", "hardware": {"features": [], "cores": 1}}, "is not that of the"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, field: str, value: object, said: str) -> None:
    files = files_of.read_files(folder)
    manifest = files_of.check_files(files) | {field: value}
    manifest["manifest_digest"] = files_of.seal_of(manifest)
    changed = {**files, files_of.MANIFEST: json.dumps(manifest).encode()}
    with pytest.raises(ShapewrightError, match=said):
        files_of.dispatcher_of(changed, files_of.check_files(changed))


def test_a_call_with_a_packed_weight_launches_what_the_module_does(gpu: ProcessPoolExecutor) -> None:
    *found, packed, kernel = gpu.submit(gpu_calls.packed_call).result(TIMEOUT_S)
    assert found == []
    assert packed == "<PackedWeight w (48, 64)"
    assert "number" in kernel


@pytest.mark.parametrize(
    ("workload", "dims", "wanted"),
    [
        ({"op": "matmul", "args": {"m": "M", "n": "N", "k": "K"}}, {"m": 5, "n": 7, "k": 0}, ["kernel_0"]),
        ({"op": "matmul", "args": {"m": "M", "n": "N", "k": "K"}}, {"m": 5, "n": 0, "k": 3}, []),
        ({"op": "matmul", "args": {"m": "M", "n": "N", "k": "K"}, "dtype": "bfloat16"}, {"m": 0, "n": 3, "k": 3}, []),
    ],
)
def test_tensors_without_elements_may_have_any_strides(
    gpu: ProcessPoolExecutor, workload: dict[str, object], dims: dict[str, int], wanted: list[str]
) -> None:
    assert gpu.submit(gpu_calls.without_elements, workload, dims).result(TIMEOUT_S) == wanted


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("on the CPU", "InvalidInput: x: is on cpu:0 (a tensor on an NVIDIA GPU, detached from any gradient)"),
        ("weight on the CPU", "InvalidInput: w: is on cpu:0 (a tensor on an NVIDIA GPU"),
        ("another dtype", "InvalidInput: x: dtype bfloat16 (float16)"),
        ("another shape", "InvalidInput: x: shape (5, 47) (shape [m, 48])"),
        ("other rows", "InvalidInput: operands: out.shape[0] is 6, x.shape[0] is 5"),
        ("gaps", "InvalidInput: x: strides (96, 1) leave gaps (a row-major tensor without gaps)"),
        ("misaligned", "InvalidInput: x: begins at no multiple of 16 bytes"),
        ("two GPUs", "InvalidInput: w: is on cuda:0, x on cuda:1 (tensors of one GPU)"),
        ("not packed", "InvalidInput: w: Tensor is not a packed weight (library.pack(w), once)"),
        ("no memory", "GpuFailed: kernel_0 cannot be launched on GPU 0: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("nothing", "no error"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(gpu: ProcessPoolExecutor, case: str, said: str) -> None:
    assert gpu.submit(gpu_calls.message, case).result(TIMEOUT_S).startswith(said)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("9.0", ""), ("8.0,9.0", ""), ("", "GpuFailed: the NVIDIA driver finds no GPU"),
        ("12.0", "GpuFailed: GPU 0 (Fake 0) is sm_120, this library has code for sm_90a: take one for sm_120"),
    ],
)  # fmt: skip
def test_loading_says_why_a_library_cannot_run(gpu: ProcessPoolExecutor, gpus: str, said: str) -> None:
    message = gpu.submit(gpu_calls.loading, gpus).result(TIMEOUT_S)
    assert message.startswith(said)
    assert bool(message) is bool(said)


def test_a_library_is_checked_on_a_gpu(fake_cuda: Path, tmp_path: Path) -> None:
    right, wrong = (gpu_measuring.library(behaviour).files for behaviour in (RIGHT, PAST_THE_END))
    with gpu_measuring.gpu_host(fake_cuda, tmp_path), Checker() as checker:
        good, bad = checker.check("right", right, ("right", right)), checker.check("wrong", wrong)
    assert (good.problems, good.is_good, good.against and good.against.verdict) == ((), True, "equal")
    assert "elements past the end of its output were overwritten" in bad.problems[0]


def test_a_library_is_not_checked_where_there_is_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with Checker() as checker, pytest.raises(GpuFailed, match=r"^no NVIDIA driver is here"):
        checker.check("right", gpu_measuring.library(RIGHT).files)


def test_what_takes_cpus_alone_says_so(folder: Path, tmp_path: Path) -> None:
    files = files_of.read_files(folder)
    with pytest.raises(ShapewrightError, match="for GPUs, and is called from Python alone"):
        write_project(files, tmp_path / "c", "mine")


def test_errors_are_ones_of_ours() -> None:
    assert issubclass(GpuFailed, ShapewrightError)
    assert not issubclass(GpuFailed, InvalidInput)


# -- searches in this process -----------------------------------------------------------------------------------------
CPU_TASK = SearchTask("dense", {"m": 8, "n": 8, "k": 8}, target=Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3"}))


@pytest.mark.parametrize(
    ("tasks", "trials", "wanted"),
    [
        ([CPU_TASK], 9, (None,)),
        ([gpu_measuring.TASK], 9, (FIRST_GPU,)),
        ([gpu_measuring.TASK, CPU_TASK], None, (None, FIRST_GPU)),
        ([gpu_measuring.TASK, CPU_TASK], 0, (None,)),
    ],
)
def test_the_command_tune_starts_devices_of_the_kinds_that_it_needs(
    tasks: list[SearchTask], trials: int | None, wanted: tuple[int | None, ...]
) -> None:
    assert _gpus_of(tasks, Budget(trials, 60.0)) == wanted


def test_a_search_of_a_gpu_that_is_not_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(GpuFailed, match=r"^no NVIDIA driver is here"):
        sw.tune(gpu_measuring.TASK, trials=1)
