"""Transposes against the reference: squares in registers, ragged ends, threads; and what is only moved."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, loaded
from tests.shares import shares
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.reference import compute
from tuner.program.target import Target, native
from tuner.schedule import default_kernel, rules_of, space_of
from tuner.schedule.rule import matched
from tuner.schedule.rules.elementwise import match

AVX2 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
PROGRAMS = (
    "out[n, b, m] = x[b, m, n]",
    "out[b, n, m] = x[b, m, n] * y[b, n, m] + z[m] * n",
    "out[n, m, b] = max(x[b, m, n], y[m, b, n])",
)
SIZES = [(0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1), (2, 17, 16), (33, 35, 40), (1, 64, 130)]
"""Of b, m and n."""
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@shares(4)
@settings(max_examples=3)
@given(
    text=st.sampled_from(PROGRAMS), dtype=st.sampled_from(["float32", "float64", "bfloat16", "float16"]),
    threads=st.integers(1, 2), seed=st.integers(0, 2**32 - 1), is_narrow=st.booleans(),
)  # fmt: skip
def test_any_sizes(share: int, text: str, dtype: str, threads: int, seed: int, is_narrow: bool) -> None:
    workload = workload_from_json({"program": text, "extents": {"b": "B", "m": "M", "n": "N"}, "dtype": dtype})
    variables = tuple(ShapeVar(name, range(1, 65)) for name in "BMN")
    task = SearchTask(workload, shape_vars=variables, target=AVX2 if is_narrow else native(), threads=threads)
    assert rules_of(task)[0].name == "injective"
    kernel = space_of(task).sample(np.random.default_rng(seed))
    shapes = [workload.dims(dict(zip("BMN", sizes, strict=True))) for sizes in SIZES]
    assert built_problems(task, kernel, shapes) == []


@pytest.mark.parametrize("text", ["out[b, n] = x[b, n]", "out[b, n] = x[n, b]", "out[b, n] = x[b]", "out[n, b] = x[n]"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_short_floats_that_are_only_moved_keep_their_bits(text: str, dtype: str) -> None:
    """Those of numbers that are none, too, as a copy of memory does."""
    workload = workload_from_json({"program": text, "extents": {"b": "B", "n": "N"}, "dtype": dtype})
    task = SearchTask(workload, shape_vars=(ShapeVar("B", range(65)), ShapeVar("N", range(65))), target=native())
    kernel = default_kernel(task)
    # A square of a transpose goes through registers as numbers.
    kernel = space_of(task).space_of(kernel).kernel({**dict(kernel.values), "tile": 0})
    call, rng = loaded(compile_candidate(task, kernel).binary), np.random.default_rng(0)
    for sizes in ({"b": 5, "n": 37}, {"b": 3, "n": 16}, {"b": 1, "n": 1}):
        axes = text[text.index("x[") + 2 : -1].split(", ")
        bits = rng.integers(0, 2**16, [sizes[axis] for axis in axes], np.uint16)
        order = text[4 : text.index("]")].split(", ")
        out = np.zeros([sizes[axis] for axis in order], np.uint16)
        call([bits.view(DTYPES[dtype]), out.view(DTYPES[dtype])])
        wanted = bits[:, None] if len(axes) == 1 else bits if axes == order else bits.T
        assert (out == wanted).all()


def test_which_reads_are_turned() -> None:
    def turned(text: str) -> list[str]:
        workload = workload_from_json({"program": text, "extents": {"m": "M", "n": "N"}})
        return [read.tensor for read in matched(workload, match(workload))[0].turned]

    assert turned("out[n, m] = x[m, n] + y[n, m] * z[m]") == ["x"]
    assert turned("out[n, m] = x[m, n] + y[m, n + m]") == []
    assert turned("out[n, m] = x[n, m]") == []


@pytest.mark.parametrize("value", ["i + x[i]", "x[i] * i", "(i << 40) - x[i] // 3"])
@pytest.mark.parametrize("rest", ["out[j] = t[2] // 7 + y[j]", "out[j] = sum(k) y[j] * z[k] + t[2]"])
def test_an_axis_that_is_read_at_a_number_stays_an_int64(value: str, rest: str) -> None:
    """Where a stage is put into another one that reads it at a constant index."""
    text = f"t[i] = {value}; {rest}"
    dtypes = {"x": "int32", "y": "int32"} | ({"z": "int32"} if "z[" in rest else {})
    extents = {"i": 3, "j": "T"} | ({"k": 5} if "k" in rest else {})
    workload = workload_from_json({"program": text, "extents": extents, "dtype": dtypes})
    task = SearchTask(workload, shape_vars=(ShapeVar("T", range(33)),), target=native())
    dims, largest = dict.fromkeys(workload.symbols, 19), np.iinfo(np.int32).max
    x, y, z = np.array([1, 2, largest], np.int32), np.arange(19, dtype=np.int32), np.arange(5, dtype=np.int32)
    inputs = {"x": x, "y": y, "z": z}
    given = [inputs[tensor.name] for tensor in workload.inputs]
    out = np.zeros(19, workload.outputs[0].dtype)
    loaded(compile_candidate(task, default_kernel(task)).binary)([*given, out])
    (wanted,) = compute(workload, given, dims)
    np.testing.assert_array_equal(out, wanted.astype(out.dtype))


@pytest.mark.parametrize("value", [0, 1])
def test_conditions_outside_of_a_tensor(value: int) -> None:
    data = {"program": "out[i] = x[i - 1] & y[i]", "shapes": {"x": ["i"]}, "padded": {"x": value}}
    workload = workload_from_json({**data, "extents": {"i": "T"}, "dtype": "bool"})
    task = SearchTask(workload, shape_vars=(ShapeVar("T", range(33)),), target=native())
    assert built_problems(task, default_kernel(task), [{"m": 0}, {"m": 1}, {"m": 100}]) == []
