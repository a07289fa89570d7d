"""float32 rounded to bfloat16 by the CPU's instruction, and what kernels have of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.compiled import assembly, loaded, small_kernel
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import default_kernel

INSTRUCTION = "vcvtneps2bf16"
COPY: dict[str, Any] = {
    "program": "out[m] = x[m]", "extents": {"m": "T"}, "dtype": {"x": "float32", "out": "bfloat16"},
}  # fmt: skip
DENSE: dict[str, Any] = {"op": "dense", "args": {"m": "T", "n": 64, "k": 64}, "epilogue": ["bias"], "dtype": "bfloat16"}
PROGRAMS: dict[str, dict[str, Any]] = {
    "copy": COPY,
    "dense": DENSE,
    "softmax": {"op": "softmax", "args": {"m": "T", "n": 64}, "dtype": "bfloat16"},
    "attention": {"op": "attention", "args": {"b": 1, "h": 1, "i": "T", "j": "T", "d": 64}, "dtype": "bfloat16"},
}


def task_of(data: dict[str, Any], target: Target) -> SearchTask:
    return SearchTask(workload_from_json(data), shape_vars=(ShapeVar("T", range(1, 2049)),), target=target, threads=1)


def target_of(mcpu: str) -> Target:
    return Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_round_by_the_instruction_where_there_is_one(name: str) -> None:
    for mcpu, is_there in (("znver4", True), ("sapphirerapids", True), ("icelake-server", False)):
        task = task_of(PROGRAMS[name], target_of(mcpu))
        assert (INSTRUCTION in assembly(task, small_kernel(task))) == is_there, mcpu
    task = task_of(PROGRAMS[name] | {"dtype": "float32"}, target_of("znver4"))
    assert INSTRUCTION not in assembly(task, small_kernel(task))


def test_it_rounds_to_nearest_and_ties_to_even_and_keeps_what_is_no_number() -> None:
    task, random = task_of(COPY, native()), np.random.default_rng(0)
    bits = random.integers(0, 2**32, 2000, dtype=np.uint32)
    bits[:16] = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF,
                 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x00800000, 0x00808000, 1, 0x807FFFFF]  # fmt: skip
    x = bits.view(np.float32)
    out = np.zeros(len(x), ml_dtypes.bfloat16)

    loaded(compile_candidate(task, default_kernel(task)).binary)([x, out])

    with np.errstate(invalid="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16)
    found, right = out.view(np.uint16), wanted.view(np.uint16)
    is_nan, is_small = np.isnan(x), np.abs(x) < np.finfo(np.float32).tiny
    assert np.isnan(out[is_nan].astype(np.float32)).all()
    assert np.array_equal(found[~is_nan & ~is_small], right[~is_nan & ~is_small])
    # A number below the smallest normal one may be zero, of the same sign.
    small, exact = found[is_small], right[is_small]
    assert ((small == exact) | (small == exact & 0x8000)).all()
