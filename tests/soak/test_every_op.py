"""The long ones: every operator tuned and checked at many shapes, and random kernels of random workloads.

Each operator is tuned once in float32 and once in a short type. On how many threads, and in which type, each run draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import shapewright as sw
from tests.compiled import built_problems
from tests.every_op import op_task, ragged_shapes
from tests.tuner.strategies import TAME_WORKLOADS
from tuner.measure.verification.verify import Case
from tuner.program.catalogue import OPS
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import native
from tuner.schedule import rules_for, space_of

pytestmark = pytest.mark.soak

CONTRACTIONS = ("batch_matmul_nn", "batch_matmul_nt", "dense", "matmul")
EPILOGUES = [(), ("bias",), ("relu",), ("bias", "gelu"), ("bias", "gelu_tanh"), ("add", "gelu")]


def problems_of(library: sw.Library, shapes: list[dict[str, int]]) -> list[str]:
    """What is wrong with a library at these values of the symbols, on skewed arrays between guard regions."""
    packed: dict[str, Any] = {}
    names = [tensor.name for tensor in library.workload.operands]

    def call(arrays: Sequence[Any]) -> None:
        library(*(packed.get(name, array) for name, array in zip(names, arrays, strict=True)))

    result = []
    for dims in shapes:
        case = Case.of(library.workload, dims)
        for tensor, array in zip(library.workload.inputs, case.inputs, strict=True):
            if tensor.constant and tensor.name not in packed:
                packed[tensor.name] = library.pack(tensor.name, array)
        problem = case.check(case.inputs, call)
        result += [problem] if problem else []
    return result


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_op_is_tuned_and_right_at_random_shapes(op: str) -> None:
    threads = Random().choice((1, 2))
    task = op_task(op, threads=threads)
    library = sw.tune(task, trials=16, seconds=60).build()
    assert problems_of(library, list(ragged_shapes(task.workload, 200, seed=threads))) == [], f"{threads} threads"


@pytest.mark.parametrize("op", sorted(OPS))
def test_short_floats_are_tuned_and_right_at_random_shapes(op: str) -> None:
    dtype = Random().choice(("float16", "bfloat16"))
    task = op_task(op, dtype=dtype)
    library = sw.tune(task, trials=8, seconds=60).build()
    assert problems_of(library, list(ragged_shapes(task.workload, 200))) == [], dtype


@pytest.mark.parametrize(
    ("x", "w"), [("int8", "int8"), ("uint8", "int8"), ("float32", "bfloat16"), ("float32", "int8")]
)
def test_products_of_other_dtypes_are_tuned_and_right_at_many_shapes(x: str, w: str) -> None:
    text = "z[m, n] = sum(k) x[m, k] * w[n, k]; out[m, n] = cast(z[m, n], float32) * s[n]"
    extents = {"m": "T", "n": 200, "k": 331}
    data = {"program": text, "extents": extents, "constant": ["w"], "dtype": {"x": x, "w": w}}
    task = SearchTask(workload_from_json(data), shape_vars=(ShapeVar("T", range(1, 401)),), target=native())
    library = sw.tune(task, trials=16, seconds=60).build()
    sizes = np.random.default_rng(0).integers(0, 400, 200)
    assert problems_of(library, [task.workload.dims({"T": int(size)}) for size in sizes]) == []


@pytest.mark.parametrize("x", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("axes", "at", "image"),
    [("b, o, p, q", "b, c, p + r - 1, q + s - 1", "bcpq"), ("b, p, q, o", "b, p + r - 1, q + s - 1, c", "bpqc")],
)
def test_convolutions_of_bytes_are_tuned_and_right_at_many_shapes(axes: str, at: str, image: str, x: str) -> None:
    text = f"z[{axes}] = sum(c, r, s) x[{at}] * w[o, c, r, s]; out[{axes}] = cast(z[{axes}], float32) * scale[o]"
    extents = {"b": 2, "o": 37, "p": "T", "q": 9, "c": 22, "r": 3, "s": 3}
    data = {"program": text, "extents": extents, "constant": ["w"], "padded": {"x": 2}, "shapes": {"x": list(image)}}
    workload = workload_from_json(data | {"dtype": {"x": x, "w": "int8"}})
    task = SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 65)),), target=native())
    library = sw.tune(task, trials=16, seconds=60).build()
    assert problems_of(library, [workload.dims({"T": size}) for size in range(64)]) == []


@pytest.mark.parametrize("epilogue", [(), ("bias", "gelu")])
@pytest.mark.parametrize("op", CONTRACTIONS)
def test_contractions_are_tuned_and_right_at_many_shapes(op: str, epilogue: tuple[str, ...]) -> None:
    threads = Random().choice((1, 2))
    task = op_task(op, threads=threads, epilogue=epilogue)
    library = sw.tune(task, trials=24, seconds=60).build()
    rng, symbols = np.random.default_rng(0), task.workload.symbols
    shapes = [{name: int(rng.integers(0, 400)) for name in symbols} for _ in range(200)]
    batch = symbols[0] if op.startswith("batch") else None
    shapes = [{name: size % 5 if name == batch else size for name, size in dims.items()} for dims in shapes]
    assert problems_of(library, shapes) == [], f"{threads} threads"


@pytest.mark.parametrize("seed", range(40))
def test_random_kernels_of_random_contractions_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    op = CONTRACTIONS[int(rng.integers(len(CONTRACTIONS)))]
    n, k = (int(rng.integers(1, 400)) for _ in range(2))
    fixed = op == "dense" or rng.random() < 0.3
    batch: dict[str, Any] = {"b": 3} if op.startswith("batch") else {}
    args = batch | ({"m": "T", "n": n, "k": k} if fixed else {"m": "T", "n": "S", "k": "S"})
    epilogue = EPILOGUES[int(rng.integers(len(EPILOGUES)))]
    variables = [ShapeVar(name, range(1, 65)) for name in ("T" if fixed else "ST")]
    task = SearchTask(op, args, variables, target=native(), epilogue=epilogue, threads=int(rng.integers(1, 3)))
    for _ in range(4):
        shapes = [{name: int(rng.integers(0, 200)) for name in task.workload.symbols} for _ in range(12)]
        assert built_problems(task, space_of(task).sample(rng), shapes) == []


@pytest.mark.parametrize("op", sorted(set(OPS) - set(CONTRACTIONS)))
def test_random_kernels_of_every_op_are_right(op: str) -> None:
    rng = np.random.default_rng(0)
    for threads in (1, 2):
        task = op_task(op, native(), threads)
        for kernel in dict.fromkeys(space_of(task).sample(rng) for _ in range(4)):
            shapes = list(ragged_shapes(task.workload, 12, seed=int(rng.integers(2**31))))
            assert built_problems(task, kernel, shapes) == [], str(kernel)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(workload=TAME_WORKLOADS, seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]))
def test_random_kernels_of_random_programs_are_right(workload: Workload, seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    task = SearchTask(
        workload,
        shape_vars=[ShapeVar(name, range(1, 9)) for name in sorted(workload.variables)],
        target=native(),
        threads=threads,
    )
    shapes = [{name: int(rng.integers(0, 9)) for name in task.ranges} for _ in range(6)]
    dims = [dims for dims in map(workload.dims, shapes) if workload.is_consistent(dims)]
    assume(dims)
    for rule in rules_for(workload, task.known_target):
        kernel = rule.space(task).sample(rng)
        assert built_problems(task, kernel, dims) == [], f"{workload.program}: {kernel}"
