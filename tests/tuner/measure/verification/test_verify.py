"""Mutations of right results: each is caught, and the message says what and where."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.measure.verification import verify
from tuner.measure.verification.guarded import POISON
from tuner.measure.verification.verify import Case, cases
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.workload import Workload
from tuner.program.reference import compute

Array = NDArray[Any]
Call = Callable[[Sequence[Array]], object]
MATMUL = make_workload("matmul", {"m": "T", "n": 24, "k": 16})


def matmul(operands: Sequence[Array]) -> None:
    a, b, out = operands
    out[...] = a @ b


def problem_of(call: Call, m: int = 5) -> str:
    case = Case.of(MATMUL, {"m": m})
    return case.check(case.inputs, call) or ""


def program(text: str, extents: Mapping[str, Any], **fields: Any) -> Workload:
    return workload_from_json({"program": text, "extents": dict(extents), **fields})


def right(workload: Workload, dims: Mapping[str, int]) -> Call:
    """A kernel that computes what the reference does, rounded to the outputs' dtypes."""

    def call(operands: Sequence[Array]) -> None:
        inputs, outputs = operands[: len(workload.inputs)], operands[len(workload.inputs) :]
        for output, value in zip(outputs, compute(workload, inputs, dims), strict=True):
            output[...] = value.astype(output.dtype)

    return call


def test_a_right_result_has_no_problem() -> None:
    assert problem_of(matmul) == ""


def test_a_wrong_element_is_named() -> None:
    def call(operands: Sequence[Array]) -> None:
        matmul(operands)
        operands[-1][3, 7] += 0.5

    problem = problem_of(call)
    assert "1 of 120 elements are wrong: max error 0.5 at [3, 7]" in problem
    assert problem.endswith("at m=5")


def test_one_product_missing_is_found() -> None:
    def call(operands: Sequence[Array]) -> None:
        a, b, out = operands
        out[...] = a[:, :-1] @ b[:-1]

    assert "elements are wrong" in problem_of(call)
    long = Case.of(make_workload("matmul", {"m": 5, "n": 24, "k": 3072}), {})
    assert "elements are wrong" in (long.check(long.inputs, call) or "")


def test_nan_is_wrong() -> None:
    def call(operands: Sequence[Array]) -> None:
        matmul(operands)
        operands[-1][0, 0] = math.nan

    assert "1 of 120 elements are wrong: max error nan at [0, 0], nan in place of" in problem_of(call)


def test_an_element_that_is_never_written_is_wrong() -> None:
    def call(operands: Sequence[Array]) -> None:
        a, b, out = operands
        out[:-1] = (a @ b)[:-1]

    assert "24 of 120 elements are wrong" in problem_of(call)


def test_reading_past_an_input_shows_in_the_result() -> None:
    def call(operands: Sequence[Array]) -> None:
        a, b, out = operands
        beyond = np.lib.stride_tricks.as_strided(a, (6, 16))
        out[...] = a @ b
        out[0, 0] += beyond[5, 0]

    assert "nan in place of" in problem_of(call)


@pytest.mark.parametrize(("offset", "says"), [(-2, "before the start"), (120, "past the end"), (1100, "past the end")])
def test_writes_around_the_output_are_found(offset: int, says: str) -> None:
    def call(operands: Sequence[Array]) -> None:
        matmul(operands)
        _write(operands[-1], offset)

    assert f"1 elements {says} of its output were overwritten" in problem_of(call)


def test_writes_around_an_input_are_found() -> None:
    def call(operands: Sequence[Array]) -> None:
        matmul(operands)
        _write(operands[1], -1)

    assert "before the start of input 1 were overwritten, the nearest 1 away" in problem_of(call)


def _write(array: Array, offset: int) -> None:
    """An element outside of the array."""
    ctypes.c_uint32.from_address(array.ctypes.data + offset * array.itemsize).value = 1


def test_an_input_that_is_written_to_is_found() -> None:
    def call(operands: Sequence[Array]) -> None:
        matmul(operands)
        operands[0][0, 0] += 1.0

    assert "input 0 was written to" in problem_of(call)


def test_operands_stand_off_every_alignment() -> None:
    def call(operands: Sequence[Array]) -> None:
        matmul(operands)
        assert all(operand.ctypes.data % 64 == operand.itemsize for operand in operands)

    assert problem_of(call) == ""


def test_what_a_kernel_leaves_when_it_sums_over_nothing_is_found() -> None:
    workload = make_workload("batch_matmul_nn", {"b": 2, "m": 3, "n": 4, "k": "T"})
    case = Case.of(workload, dict.fromkeys(workload.symbols, 0))
    assert case.expected[0].value.shape == (2, 3, 4)
    assert case.check(case.inputs, lambda operands: operands[-1].fill(0.0)) is None
    assert "24 of 24 elements are wrong" in (case.check(case.inputs, lambda operands: None) or "")


def test_a_wrong_element_of_a_batch_is_named() -> None:
    def call(operands: Sequence[Array]) -> None:
        a, b, out = operands
        out[...] = a @ b.swapaxes(1, 2)
        out[4, 3, 1] += 0.5

    workload = make_workload("batch_matmul_nt", {"b": 5, "m": "T", "n": "T", "k": 16})
    case = Case.of(workload, dict.fromkeys(workload.symbols, 7))
    assert "1 of 245 elements are wrong: max error 0.5 at [4, 3, 1]" in (case.check(case.inputs, call) or "")


def test_a_static_workload_is_verified_at_its_shape() -> None:
    (case,) = cases(make_workload("matmul", {"m": 5, "n": 24, "k": 16}))
    assert case.expected[0].value.shape == (5, 24)
    problem = case.check(case.inputs, lambda operands: None)
    assert problem is not None
    assert problem.endswith("at its only shape")


def test_of_a_large_output_rows_are_compared_and_all_must_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "WHOLE_WORK", 16 * MATMUL.work({"m": 1}))
    case = Case.of(MATMUL, {"m": 400})
    assert case.check(case.inputs, matmul) is None

    def spoilt(where: Any, value: Any) -> str:
        def call(operands: Sequence[Array]) -> None:
            matmul(operands)
            operands[-1][where] = value

        return case.check(case.inputs, call) or ""

    compared = np.isfinite(case.expected[0].limit)
    assert spoilt((0, 0), 9.0).endswith("at m=400, where 384 of 9600 elements were compared")
    assert "1 of 9600 elements are wrong" in spoilt((399, 23), 9.0)
    assert "384 of 9600 elements are wrong" in spoilt(..., 9.0)
    assert spoilt(~compared, 9.0) == ""
    assert "9216 of 9600 elements are wrong" in spoilt(~compared, POISON[4].view(np.float32))


# -- dtypes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"])
def test_products_of_every_dtype_are_verified(dtype: str) -> None:
    workload = make_workload("matmul", {"m": 5, "n": 6, "k": 300}, dtype)
    case = Case.of(workload, {})

    def few(operands: Sequence[Array]) -> None:
        x, y, out = operands
        out[...] = compute(make_workload("matmul", {"m": 5, "n": 6, "k": 299}, dtype), [x[:, 1:], y[1:]], {})[0]

    def past(operands: Sequence[Array]) -> None:
        right(workload, {})(operands)
        raw = operands[-1]
        ctypes.c_uint8.from_address(raw.ctypes.data + raw.nbytes).value ^= 1

    assert case.check(case.inputs, right(workload, {})) is None
    assert "elements are wrong" in (case.check(case.inputs, few) or "")
    assert "past the end" in (case.check(case.inputs, past) or "")
    assert "elements are wrong" in (case.check(case.inputs, lambda operands: None) or "")


def test_every_poison_is_no_number() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        poison = POISON[np.dtype(dtype).itemsize]
        assert np.isnan(poison.view(dtype))


def test_a_bool_that_is_never_written_is_wrong() -> None:
    workload = program("out[m] = x[m] < y[m]", {"m": 40}, dtype={"out": "bool"})
    case = Case.of(workload, {})
    assert case.check(case.inputs, right(workload, {})) is None
    assert "40 of 40 elements are wrong" in (case.check(case.inputs, lambda operands: None) or "")


def test_large_integers_are_compared_exactly() -> None:
    workload = program("out[m] = x[m] * 1125899906842624 + 1", {"m": 3}, dtype="int64", domain={"x": [4, 9]})
    case = Case.of(workload, {})

    def call(operands: Sequence[Array]) -> None:
        right(workload, {})(operands)
        operands[-1][1] += 1

    assert "1 of 3 elements are wrong" in (case.check(case.inputs, call) or "")


def test_each_output_is_verified_and_named() -> None:
    workload = program("low[m] = x[m] - 1.0\nhigh[m] = x[m] + 1.0", {"m": 6})
    case = Case.of(workload, {})

    def call(operands: Sequence[Array]) -> None:
        x, low, high = operands
        low[...], high[...] = x - 1, x + 1
        high[2] = 7

    assert case.check(case.inputs, right(workload, {})) is None
    problem = case.check(case.inputs, call) or ""
    assert "1 of 6 elements are wrong" in problem
    assert "of output high" in problem


def test_indices_that_are_not_clamped_are_found() -> None:
    workload = make_workload("moe_dense", {"t": 40, "e": 3, "n": 4, "k": 5})
    case = Case.of(workload, {})

    def call(operands: Sequence[Array]) -> None:
        x, w, expert, out = operands
        around = np.lib.stride_tricks.as_strided(w[:0], (5, 4, 5), w.strides)
        out[...] = np.einsum("tk,tnk->tn", x, around[np.clip(expert, 0, 3)])

    assert case.check(case.inputs, right(workload, {})) is None
    assert "elements are wrong" in (case.check(case.inputs, call) or "")


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("softmax", {"m": "T", "n": "S"}),
        ("layer_norm", {"m": "T", "n": 33}),
        ("attention", {"b": 1, "h": 2, "i": "T", "j": "T", "d": 8, "causal": True}),
        ("conv2d", {"b": "B", "c": 3, "h": 7, "w": "T", "o": 5, "r": 3, "s": 3}),
        ("max_pool2d", {"b": 1, "c": "C", "h": 7, "w": 7, "r": 3, "s": 3, "pad": 1}),
        ("moe_dense", {"t": "T", "e": 3, "n": 8, "k": 16}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_results_pass_at_all_ragged_shapes_and_mutations_do_not(
    op: str, args: dict[str, Any], dtype: str
) -> None:
    workload = make_workload(op, args, {"x": dtype, "out": dtype} if "x" in workload_inputs(op, args) else dtype)
    for case in cases(workload):
        assert case.check(case.inputs, right(workload, case.dims)) is None
        values = case.expected[0].value
        if not values.size:
            continue

        def call(operands: Sequence[Array], case: Case = case) -> None:
            right(workload, case.dims)(operands)
            operands[-1].reshape(-1)[-1] += 0.25

        # Nothing can be added to what is infinite, or is no number.
        assert bool(case.check(case.inputs, call)) == np.isfinite(values.flat[-1])


def workload_inputs(op: str, args: dict[str, Any]) -> Sequence[str]:
    return make_workload(op, args).program.inputs
