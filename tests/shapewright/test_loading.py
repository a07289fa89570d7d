"""Loading one of several libraries in a directory: that for this machine."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import shapewright as sw
from tests.shapewright import gpu_calls
from tests.shapewright.libraries import M, altered, save, save_library
from tests.shapewright.test_gpu import has_driver
from tests.tuner.library.gpu.driven import dense
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import MANIFEST
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native

pytestmark = pytest.mark.together("gpu")


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_library(tmp_path_factory.mktemp("product") / "own", "matmul", {"m": M, "n": 24, "k": 24}, (M,))


def for_another_cpu(library: Path, directory: Path) -> Path:
    target = json.loads((library / MANIFEST).read_text())["target"]
    hardware = target["hardware"] | {"features": [*target["hardware"]["features"], "of-a-later-cpu"]}
    return altered(library, directory, target=target | {"hardware": hardware})


def test_of_several_targets_that_of_this_cpu_is_loaded(product: Path, tmp_path: Path) -> None:
    for_another_cpu(product, tmp_path / "a")
    own = altered(product, tmp_path / "job" / "b")
    assert sw.load(tmp_path).directory == own


def test_where_none_runs_here_each_says_why(product: Path, tmp_path: Path) -> None:
    for_another_cpu(product, tmp_path / "a")
    with pytest.raises(ShapewrightError, match=r"no library of wl-\w+ in .* runs here: a: .* CPU with of-a-later-cpu"):
        sw.load(tmp_path)
    with pytest.raises(ShapewrightError, match="runs here: none is asked for"):
        sw.load(tmp_path, threads=4)


def test_several_workloads_ask_for_one_of_them(product: Path, tmp_path: Path) -> None:
    altered(product, tmp_path / "a")
    other = save_library(tmp_path / "b", "softmax", {"m": M, "n": 32}, (M,))
    with pytest.raises(InvalidInput, match=r"workload: .* has libraries of 2 workloads \(one of wl-\w+, wl-\w+\)"):
        sw.load(tmp_path)
    assert sw.load(tmp_path, sw.load(other).workload).directory == other


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_libraries_for_cpus_and_gpus_ask_for_a_kind(tmp_path: Path) -> None:
    workload = dense(dtype="float32")
    own = tmp_path / "cpu"
    save(own, SearchTask(workload, None, (ShapeVar("T", range(1, 33)),), target=native()))
    gpu_calls.saved(tmp_path / "gpu", workload, gpu_calls.PLAIN)
    with pytest.raises(InvalidInput, match=r"target: .* has libraries for CPUs and for GPUs \(llvm or cuda\)"):
        sw.load(tmp_path)
    assert sw.load(tmp_path, target="llvm").directory == own
    with pytest.raises(ShapewrightError, match=r"runs here: gpu: this library is for GPUs .* no NVIDIA driver is here"):
        sw.load(tmp_path, target="cuda")


def test_of_several_gpus_that_which_is_here_is_loaded(gpu: ProcessPoolExecutor) -> None:
    assert gpu.submit(gpu_calls.loaded_of_two, "8.0").result(200.0) == "sm_80"
    assert gpu.submit(gpu_calls.loaded_of_two, "9.0").result(200.0) == "sm_90a"
