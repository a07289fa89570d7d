"""What a GPU is, as a driver and a management library that are stand-ins say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu_measuring import gpu_host
from tuner.errors import GpuFailed
from tuner.measure.gpu.clocks import Clocks, drop_of
from tuner.measure.gpu.facts import ask, hold_gpu
from tuner.program.target import Target
from tuner.program.target.cuda import PRODUCTS, differs, nearest_product

NVML = Path(__file__).parent / "nvml.c"


def add_nvml(driver: Path) -> None:
    line = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(driver / "libnvidia-ml.so.1"), str(NVML)]
    subprocess.run(line, check=True, timeout=60)


def test_a_gpu_is_the_product_whose_numbers_it_has(fake_cuda: Path, tmp_path: Path) -> None:
    with gpu_host(fake_cuda, tmp_path, "FAKE_CUDA_GPUS=9.0,8.0"):
        found = [ask(number) for number in (0, 1)]
    assert [each.name for each in found] == ["Fake 0", "Fake 1"]
    targets = [each.target for each in found]
    assert [each.gpu and each.gpu.product for each in targets] == ["h100", "a100"]
    assert [each.gpu and (each.gpu.sms, each.gpu.clock_mhz) for each in targets] == [(132, 1980), (108, 1410)]
    # As a job may write it down again.
    assert [Target.from_json(each.to_json()) for each in targets] == targets
    assert "libnvidia-ml.so.1" in found[0].description()["clocks"]
    assert found[0].description()["cuda"] == "12.8"


def test_clocks_driver_and_power_limit_are_part_of_what_a_device_is(fake_cuda: Path, tmp_path: Path) -> None:
    with gpu_host(fake_cuda, tmp_path) as driver:
        without = ask(0)
        add_nvml(driver)
        found = ask(0)
    assert found.description() == {
        "gpu": "Fake 0", "gpu_number": 0, "cuda": "12.8", "driver": "570.86.15", "clock_mhz": 1980, "memory_mhz": 2619,
        "watts": 650,
    }  # fmt: skip
    assert found.target.fingerprint != without.target.fingerprint


@pytest.mark.parametrize(
    ("settings", "number", "said"),
    [
        ("FAKE_CUDA_GPUS=", 0, "there is no GPU 0: the driver finds 0, see nvidia-smi"),
        ("FAKE_CUDA_GPUS=9.0", 2, "there is no GPU 2: the driver finds 1, see nvidia-smi"),
        ("FAKE_CUDA_FAIL=cuInit=100", 0, r"cuInit: as was asked for \(CUDA_ERROR_OF_FAKE\)"),
    ],
)
def test_where_there_is_no_such_gpu_it_is_said(
    fake_cuda: Path, tmp_path: Path, settings: str, number: int, said: str
) -> None:
    with gpu_host(fake_cuda, tmp_path, settings), pytest.raises(GpuFailed, match=said):
        ask(number)


def test_where_there_is_no_driver_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(GpuFailed, match=r"^no NVIDIA driver is here \(.*libcuda\.so\.1.*\): install one"):
        ask(0)


def test_a_gpu_that_no_kernels_are_for_has_no_target(fake_cuda: Path, tmp_path: Path) -> None:
    with (
        gpu_host(fake_cuda, tmp_path, "FAKE_CUDA_GPUS=7.5"),
        pytest.raises(GpuFailed, match=r"Fake 0\) is sm_75: there"),
    ):
        _ = ask(0).target


def test_a_gpu_is_one_devices(fake_cuda: Path, tmp_path: Path) -> None:
    with gpu_host(fake_cuda, tmp_path):
        facts = ask(0)
    hold_gpu(facts)
    with pytest.raises(GpuFailed, match=r"another device of this machine measures on GPU 0 \(Fake 0, "):
        hold_gpu(facts)


def test_products_are_told_apart_by_what_latencies_depend_on() -> None:
    for name, gpu in PRODUCTS.items():
        assert nearest_product(gpu.arch, gpu.sms, gpu.memory_bytes_s).product == name
        assert [each for each in PRODUCTS.values() if not differs(gpu, each)] == [gpu]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (1980, 1900, ""), (None, 1410, ""), (1980, None, ""), (1410, 1980, ""),
        (1980, 1410, "the clock fell from 1980 to 1410 MHz within a trial, held by the power limit"),
    ],
)  # fmt: skip
def test_a_clock_that_falls_is_told(before: int | None, after: int | None, told: str) -> None:
    assert str(drop_of(before, after, ("the power limit",)) or "") == told


def test_where_there_is_no_management_library_nothing_is_known() -> None:
    clocks = Clocks("00000000:00:00.0")
    assert "libnvidia-ml.so.1" in clocks.problem
    assert (clocks.mhz, clocks.most_mhz, clocks.watts, clocks.driver, clocks.reasons) == (None, None, None, None, ())
