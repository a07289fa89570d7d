"""Machine code for two instruction sets, made without a GPU."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tuner.program.job.build import workload_from_json
from tuner.program.target.cuda import ARCHITECTURES
from tuner.schedule.gpu.attention import AttentionTile
from tuner.schedule.gpu.plan import Choices, emit
from tuner.schedule.gpu.rows import RowTile
from tuner.schedule.gpu.tiling import Tiling

TIMEOUT_S = 200.0
INSTRUCTION = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async"}
PROGRAMS: dict[str, tuple[dict[str, Any], Choices, bool]] = {
    "dense": (
        {"op": "dense", "args": {"m": "T", "n": 768, "k": 768}, "dtype": "float16", "epilogue": ["bias", "gelu"]},
        Choices(product=Tiling(128, 128, 64, num_warps=8)), True,
    ),
    "dense float32": (
        {"op": "dense", "args": {"m": "T", "n": 768, "k": 768}},
        Choices(product=Tiling(64, 64, 32, num_warps=4, precision="tf32x3")), True,
    ),
    "convolution": (
        {"op": "conv2d", "args": {"b": "T", "c": 64, "h": 28, "w": 28, "o": 64, "r": 3, "s": 3, "layout": "nhwc"},
         "dtype": "bfloat16"},
        Choices(product=Tiling(64, 64, 64, pack="nk")), True,
    ),
    "attention": (
        {"op": "attention", "args": {"b": 2, "h": 4, "i": "T", "j": "T", "d": 64, "causal": True}, "dtype": "float16"},
        Choices(attention=AttentionTile(64, 32, num_warps=4)), True,
    ),
    "softmax": (
        {"op": "softmax", "args": {"m": "T", "n": 1024}, "dtype": "float16"}, Choices(rows=RowTile(2, 1024)), False,
    ),
}  # fmt: skip


def facts(name: str, arch: str) -> list[tuple[int, int, int, bool]]:
    """Of each kernel: registers, spilled bytes, shared memory, and whether it has the instruction on tiles."""
    from tuner.schedule.gpu.cubins import compiled  # noqa: PLC0415

    program, choices, _ = PROGRAMS[name]
    made = compiled(emit(workload_from_json(program), choices), arch)
    return [(each.registers, each.spilled_bytes, each.shared_bytes, INSTRUCTION[arch] in each.ptx) for each in made]


@pytest.mark.parametrize("arch", INSTRUCTION)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_use_tensor_cores_and_spill_nothing(compiler: ProcessPoolExecutor, name: str, arch: str) -> None:
    for registers, spilled, shared, has_instruction in compiler.submit(facts, name, arch).result(TIMEOUT_S):
        assert 0 < registers <= 255
        assert spilled == 0
        assert shared <= ARCHITECTURES[arch].block_shared_bytes
        assert has_instruction is PROGRAMS[name][2]


def elements(tf32: bool) -> list[int]:
    """The dtypes of a product's tensor maps, by the driver's numbers."""
    from tuner.schedule.gpu.cubins import compiled  # noqa: PLC0415

    workload = workload_from_json({"op": "dense", "args": {"m": "T", "n": 768, "k": 768}, "tf32": tf32})
    precision = "tf32" if tf32 else "tf32x3"
    tiling = Tiling(64, 64, 32, num_warps=4, precision=precision, descriptors=True)
    (cubin,) = compiled(emit(workload, Choices(product=tiling)), "sm_90")
    return [each.element for each in cubin.maps]


def test_the_hardware_rounds_what_is_multiplied_in_tf32(compiler: ProcessPoolExecutor) -> None:
    float32, rounded = 7, 11
    assert compiler.submit(elements, True).result(TIMEOUT_S) == [rounded, rounded]
    assert compiler.submit(elements, False).result(TIMEOUT_S) == [float32, float32]
