"""The long ones: every operator tuned and checked at many shapes, and random kernels of random workloads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tuner.program.ops import OPS

import shapewright as sw
from tuner.library import codegen
from tuner.library.package import ENTRY
from tuner.measure.verify import Case
from tuner.program.reference import compute, tolerance
from tuner.program.target import native
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar
from tuner.rules import rule_for
from tuner.rules.space import MicroKernel

pytestmark = pytest.mark.soak

S, T = ShapeVar("S", range(1, 301)), ShapeVar("T", range(1, 65))
SHAPES = 500


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("epilogue", [(), ("bias", "gelu")])
@pytest.mark.parametrize("op", sorted(OPS))
def test_every_op_is_tuned_and_right_at_random_shapes(op: str, epilogue: tuple[str, ...], threads: int) -> None:
    args = _batched(op, {"m": 4 * T, "n": 200, "k": 120} if op == "dense" else {"m": T, "n": S, "k": S})
    variables = (T,) if op == "dense" else (S, T)
    task = sw.SearchTask(op, args, variables, epilogue=epilogue, threads=threads)
    library = sw.tune(task, trials=24, seconds=60).build()
    workload, rng = library.workload, np.random.default_rng(0)
    weight = rng.uniform(-1, 1, (200, 120)).astype(np.float32)
    packed = library.pack(weight) if op == "dense" else None
    for _ in range(SHAPES):
        dims = {name: int(rng.integers(0, 400)) for name in workload.dynamic_dims}
        extents = workload.extents_of_dims(dims)
        inputs = [
            weight if operand.constant else rng.uniform(-1, 1, [extents[a] for a in operand.axes]).astype(np.float32)
            for operand in workload.operands[:-1]
        ]
        expected = compute(workload, inputs)
        out = np.full(expected.shape, np.nan, np.float32)
        given = zip(workload.operands, inputs, strict=False)
        library(*(packed if operand.constant else array for operand, array in given), out)
        rtol, atol = tolerance(workload, extents["k"])
        np.testing.assert_allclose(out, expected, rtol, atol, err_msg=str(dims))


@pytest.mark.parametrize("seed", range(40))
def test_random_kernels_of_random_workloads_are_right(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    op = sorted(OPS)[int(rng.integers(len(OPS)))]
    n, k = (int(rng.integers(1, 400)) for _ in range(2))
    fixed = op == "dense" or rng.random() < 0.3
    args = _batched(op, {"m": T, "n": n, "k": k} if fixed else {"m": T, "n": S, "k": S})
    variables = (T,) if fixed else (S, T)
    epilogue = [(), ("bias",), ("relu",), ("bias", "gelu_tanh"), ("add", "gelu")][int(rng.integers(5))]
    task = SearchTask(op, args, variables, target=native(), epilogue=epilogue, threads=int(rng.integers(1, 3)))
    rule = rule_for(task.workload)
    space = rule.space(task)
    for index in range(4):
        kernel = space.sample(rng)
        _check(task, kernel, tmp_path / f"{index}.so", rng)


def _batched(op: str, args: dict[str, object]) -> dict[str, object]:
    """With a batch of three where the operator has one."""
    return args | ({"b": 3} if "b" in OPS[op].args else {})


def _check(task: SearchTask, kernel: MicroKernel, path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(codegen.build_candidate(task, kernel))
    call = tvm_ffi.load_module(str(path))[ENTRY]
    layout = rule_for(task.workload).layout(task, kernel)
    for _ in range(12):
        case = Case.of(task.workload, {name: int(rng.integers(0, 200)) for name in task.workload.dynamic_dims})
        packed = [
            layout.pack(array) if operand.constant and layout else array
            for operand, array in zip(task.workload.operands, case.inputs, strict=False)
        ]
        problem = case.check(packed, lambda operands: call(*map(tvm_ffi.from_dlpack, operands)))
        assert problem is None, f"{kernel}: {problem}"
