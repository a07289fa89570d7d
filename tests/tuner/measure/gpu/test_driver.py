"""What devices take for granted of NVIDIA's driver, against its header and assembler, which Triton brings along."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.tuner.library.gpu.test_header import REASON
from tuner.measure.gpu import clocks, driver, facts
from tuner.measure.gpu.spin import PTX

NUMBERS = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": facts.MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": facts.MINOR,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": facts.SMS,
    "CU_DEVICE_ATTRIBUTE_CLOCK_RATE": facts.CLOCK_KHZ,
    "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": facts.MEMORY_KHZ,
    "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": facts.BUS_BITS,
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": facts.L2_BYTES,
}
MACHINES = (
    "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_SYSTEM_NOT_READY",
)  # fmt: skip


@pytest.fixture(scope="module")
def nvidia() -> Path:
    """Triton's folder of what NVIDIA gives away."""
    found = importlib.util.find_spec("triton")
    if found is None or not found.submodule_search_locations:
        pytest.skip(REASON)
    return Path(found.submodule_search_locations[0]) / "backends" / "nvidia"


def test_numbers_are_the_drivers(nvidia: Path) -> None:
    header = (nvidia / "include" / "cuda.h").read_text()
    for name, number in NUMBERS.items():
        assert re.search(rf"\b{name}\s*=\s*{number}\b", header), name
    assert {int(re.findall(rf"\b{name}\s*=\s*(\d+)", header)[0]) for name in MACHINES} == driver.MACHINES


def test_functions_are_asked_for_in_the_version_that_the_header_names(nvidia: Path) -> None:
    """A name without its version may mean an older function, with other types: but one, which drivers keep."""
    header = (nvidia / "include" / "cuda.h").read_text()
    versions = dict(re.findall(r"#define\s+(cu\w+)\s+(?:__CUDA_API_PTDS\(|__CUDA_API_PTSZ\()?(cu\w+)\)?", header))
    names = set(driver.FUNCTIONS)
    assert {name for name in names if not re.search(rf"\b{name}\b", header)} == set()
    assert {name for name in names if versions.get(name, name) != name} <= {"cuEventElapsedTime"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_fixed_piece_of_work_keeps_its_steps_when_it_is_assembled(nvidia: Path, tmp_path: Path, arch: str) -> None:
    source, binary = tmp_path / "spin.ptx", tmp_path / "spin.cubin"
    source.write_bytes(PTX.rstrip(b"\0"))
    line = [str(nvidia / "bin" / "ptxas"), f"-arch={arch}", str(source), "-o", str(binary)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    listed = [str(nvidia / "bin" / "cuobjdump"), "-sass", str(binary)]
    code = subprocess.run(listed, capture_output=True, text=True, timeout=60, check=True).stdout
    assert len(re.findall(r"\bFFMA\b", code)) >= 8
    assert re.search(r"\bBRA\b", code)


def test_reasons_are_told_apart() -> None:
    assert len(set(clocks.REASONS.values())) == len(clocks.REASONS)
    assert all(bit & (bit - 1) == 0 for bit in clocks.REASONS)
