"""What launchers take for granted of NVIDIA's driver, against its header, which Triton brings along."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tuner.library.gpu import build
from tuner.schedule.gpu.cubin import TF32_ELEMENT

REASON = "triton is not installed (the extra gpu; a gigabyte): there is no cuda.h"
RUNTIME = Path(build.__file__).parent
VALUES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": "SW_MAJOR",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": "SW_MINOR",
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": "SW_DYNAMIC_SHARED",
    "CU_STREAM_CAPTURE_MODE_RELAXED": "SW_RELAXED",
    "CU_TENSOR_MAP_INTERLEAVE_NONE": "0",
    "CU_TENSOR_MAP_L2_PROMOTION_L2_128B": "2",
    "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE": "0",
    "CU_TENSOR_MAP_DATA_TYPE_FLOAT16": "6",
    "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32": f"{TF32_ELEMENT}",
    "sizeof(CUtensorMap)": "sizeof(sw_map)",
    "(_Alignof(CUtensorMap) <= _Alignof(sw_map))": "1",
    "sizeof(CUdeviceptr)": "sizeof(uint64_t)",
    "sizeof(CUresult)": "sizeof(int)",
}


@pytest.fixture(scope="module")
def header() -> Path:
    found = importlib.util.find_spec("triton")
    if found is None or not found.submodule_search_locations:
        pytest.skip(REASON)
    return Path(found.submodule_search_locations[0]) / "backends" / "nvidia" / "include" / "cuda.h"


def devices() -> str:
    return (RUNTIME / "devices.c").read_text()


def test_numbers_and_sizes_are_the_drivers(header: Path, tmp_path: Path) -> None:
    text = devices()
    own = text[text.index("// -- the driver") : text.index("static struct {")]
    checks = (f'_Static_assert({theirs} == {ours}, "{theirs}");' for theirs, ours in VALUES.items())
    source = tmp_path / "check.c"
    source.write_text("\n".join(["#include <stdint.h>", f'#include "{header}"', own, *checks, ""]))
    line = ["gcc", "-std=gnu11", "-Wno-enum-compare", "-fsyntax-only", str(source)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_functions_are_asked_for_in_the_version_that_the_header_names(header: Path) -> None:
    """A name without its version may mean an older function, with other types."""
    text = header.read_text()
    versions = dict(re.findall(r"#define\s+(cu\w+)\s+(?:__CUDA_API_PTDS\(|__CUDA_API_PTSZ\()?(cu\w+)\)?", text))
    listed = devices()
    names = re.findall(r'"(cu\w+)"', listed[listed.index("sw_names[]") : listed.index("SW_NAMES =")])
    assert len(names) == len(set(names)) == 20
    for name in names:
        assert re.search(rf"\b{name}\b\s*\(", text) or name in versions.values(), name
        assert versions.get(name, name) == name
