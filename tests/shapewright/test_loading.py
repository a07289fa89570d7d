"""Loading one of several libraries in a directory: that for this machine."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import shapewright as sw
from tests.shapewright import gpu_calls
from tests.shapewright.libraries import M, altered, save, save_library
from tests.shapewright.test_gpu import TIMEOUT_S, has_driver
from tests.tuner.library.gpu.driven import dense
from tuner.errors import GpuFailed, InvalidInput, ShapewrightError
from tuner.library.package import LIBRARY, MANIFEST
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
    with pytest.raises(ShapewrightError, match=r"no library in .* runs here: .*/a: .* CPU with of-a-later-cpu"):
        sw.load(tmp_path)


def test_what_is_damaged_leaves_its_place_to_the_next_and_is_told_of_where_there_is_none(
    product: Path, tmp_path: Path
) -> None:
    for place in ("a", "b", "c"):
        altered(product, tmp_path / place)
    (tmp_path / "a" / MANIFEST).write_text("{")
    (tmp_path / "b" / LIBRARY).write_bytes(b"damaged")
    assert sw.load(tmp_path).directory == tmp_path / "c"
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(ShapewrightError, match=r"runs here: .*/a: its manifest cannot be read.*; .*/b: "):
        sw.load(tmp_path)
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(ShapewrightError, match=r"no library in .* runs here: .*/a: its manifest cannot be read"):
        sw.load(tmp_path)


def test_a_folder_without_libraries_and_a_link_that_leads_nowhere_are_no_library(product: Path, tmp_path: Path) -> None:
    with pytest.raises(ShapewrightError, match=r"manifest.json is missing: this is not a library"):
        sw.load(tmp_path)
    altered(product, tmp_path / "a")
    (tmp_path / MANIFEST).symlink_to(tmp_path / "nowhere")
    with pytest.raises(ShapewrightError, match=r"manifest.json"):
        sw.load(tmp_path)


def test_what_is_asked_for_chooses(product: Path, tmp_path: Path) -> None:
    for cache in ("warm", "streamed"):
        save_library(tmp_path / cache, "matmul", {"m": M, "n": 24, "k": 24}, (M,), cache=cache)
    save_library(tmp_path / "two", "matmul", {"m": M, "n": 24, "k": 24}, (M,), threads=2)
    assert sw.load(tmp_path).directory.name == "warm"
    assert sw.load(tmp_path, cache="streamed").directory.name == "streamed"
    assert sw.load(tmp_path, threads=2, target=native().fingerprint).directory.name == "two"
    for asked, problem in (
        ({"threads": 4}, r"threads: .* has no library for 4 \(one of 1, 2\)"),
        ({"cache": "cold"}, r"cache: .* has no library for cold \(one of streamed, warm\)"),
        ({"target": "cuda"}, r"target: .* has no library for cuda \(one of llvm\)"),
        ({"target": "x"}, r"target: .* has no library for x \(one of llvm-"),
        ({"workload": "wl-0000000000000000"}, r"workload: .* has no library for wl-0000000000000000 \(one of wl-"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            sw.load(tmp_path, **asked)


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
    with pytest.raises(GpuFailed, match=r"runs here: .*/gpu: this library is for GPUs .* no NVIDIA driver is here"):
        sw.load(tmp_path, target="cuda")


def test_of_several_gpus_that_which_is_here_is_loaded(gpu: ProcessPoolExecutor) -> None:
    assert gpu.submit(gpu_calls.loaded_of, ("sm_80", "sm_90"), "9.0").result(TIMEOUT_S) == "sm_90"


def test_several_products_of_one_instruction_set_ask_for_one(gpu: ProcessPoolExecutor) -> None:
    said = gpu.submit(gpu_calls.loaded_of, ("sm_90", "sm_90"), "9.0").result(TIMEOUT_S)
    assert said == "target: 2 libraries are for GPUs of sm_90 (one of product-0, product-1)"
