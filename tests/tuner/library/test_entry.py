"""The entry point of a library: what it reads from shapes, what it refuses, and calls of every form of program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.compiled import Call, loaded, problems, small_kernel
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.arrays import NUMPY
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.schedule.packing import row_major

REFUSED = (TypeError, ValueError, RuntimeError)
T, S = ShapeVar("T", range(1, 65)), ShapeVar("S", range(1, 65))


def task_of(text: str, extents: dict[str, Any], **fields: Any) -> SearchTask:
    workload = workload_from_json({"program": text, "extents": extents, **fields})
    return SearchTask(workload, shape_vars=[var for var in (T, S) if var.name in workload.variables], target=native())


@cache
def built(task: SearchTask) -> Call:
    """One build for all tests of a program."""
    return loaded(compile_candidate(task, small_kernel(task)).binary)


def wrong_at(task: SearchTask, *points: Sequence[int]) -> list[str]:
    """What is wrong with the results at these values of the symbols, in the symbols' order."""
    dims = [dict(zip(task.workload.symbols, point, strict=True)) for point in points]
    return problems(task, small_kernel(task), built(task), dims)


def call(task: SearchTask, *shapes: Sequence[int]) -> None:
    """Call with ones of these shapes."""
    operands = zip(task.workload.operands, shapes, strict=True)
    built(task)([row_major(np.ones(shape, NUMPY[operand.dtype])) for operand, shape in operands])


# -- symbols ----------------------------------------------------------------------------------------------------------
WINDOW = task_of("out[i] = sum(k) x[i + k]", {"i": "T", "k": "S"})
STRIDED = task_of("out[p] = sum(r) x[2*p + r]", {"p": "T", "r": 3})
STEPS = task_of("out[r] = sum(p) x[3*p + r]", {"p": "T", "r": 2})


def test_a_symbol_that_no_dim_shows_is_solved_for() -> None:
    assert WINDOW.workload.symbols == ("m", "n")
    assert wrong_at(WINDOW, (1, 1), (5, 3), (3, 5), (1, 40), (40, 1), (37, 41), (5, 0), (0, 4)) == []


def test_a_solved_symbol_has_no_negative_size() -> None:
    """x has i + k - 1 elements: 1 of them and 5 results would need a window of -3."""
    call(WINDOW, [4], [5])
    with pytest.raises(REFUSED, match=r"x\.shape\[0\] is too small"):
        call(WINDOW, [1], [5])


def test_a_symbol_behind_a_factor_is_solved_for() -> None:
    assert wrong_at(STEPS, (1,), (2,), (37,)) == []
    call(STEPS, [3 * 4 + 2], [2])
    for size in (13, 15):
        with pytest.raises(REFUSED, match=r"x\.shape\[0\] is not"):
            call(STEPS, [size], [2])


def test_a_dim_may_be_an_expression_over_symbols() -> None:
    assert wrong_at(STRIDED, (1,), (2,), (37,)) == []
    call(STRIDED, [11], [5])
    for size in (0, 10, 12):
        with pytest.raises(REFUSED, match=r"x\.shape\[0\] is not"):
            call(STRIDED, [size], [5])


def test_equal_extents_must_be_equal_sizes() -> None:
    task = task_of("out[m] = x[m] + y[m] * s[]", {"m": "T"})
    assert wrong_at(task, (0,), (1,), (37,)) == []
    call(task, [7], [7], [], [7])
    for shapes in ([[7], [6], [], [7]], [[7], [7], [], [8]], [[7], [7], [1], [7]], [[7, 1], [7], [], [7]]):
        with pytest.raises(REFUSED):
            call(task, *shapes)


# -- bounds -----------------------------------------------------------------------------------------------------------
LARGER = task_of("out[p] = sum(r) x[p + r]", {"p": "T", "r": 3}, shapes={"x": ["T + 4"]})
TABLE = task_of(
    "out[t, n] = table[ids[t], n]", {"t": "T", "n": 5}, shapes={"table": ["S", "n"]}, dtype={"ids": "int32"}
)


def test_sizes_that_let_reads_pass_the_end_are_refused() -> None:
    assert wrong_at(LARGER, (1, 3), (5, 9), (5, 7), (0, 2), (37, 50)) == []
    call(LARGER, [7], [5])
    for size in (0, 1, 6):
        with pytest.raises(REFUSED, match="reads of x pass the end of its dim 0"):
            call(LARGER, [size], [5])


def test_indices_are_clamped_to_whatever_size_there_is() -> None:
    assert wrong_at(TABLE, (1, 1), (37, 1), (5, 41)) == []
    table = np.arange(15, dtype=np.float32).reshape(3, 5)
    ids, out = np.array([-7, 2, 1, 3, 2**31 - 1, -(2**31)], np.int32), np.zeros((6, 5), np.float32)
    order = {"table": table, "ids": ids, "out": out}
    built(TABLE)([order[operand.name] for operand in TABLE.workload.operands])
    assert (out == table[[0, 2, 1, 2, 2, 0]]).all()


def test_nothing_can_be_looked_up_in_an_empty_table() -> None:
    shapes = {"table": [0, 5], "ids": [4], "out": [4, 5]}
    with pytest.raises(REFUSED, match=r"table\.shape\[0\] is 0"):
        call(TABLE, *(shapes[operand.name] for operand in TABLE.workload.operands))


# -- outputs and dtypes -----------------------------------------------------------------------------------------------
SEVERAL = task_of("low[m] = min(n) x[m, n]\ntotal[n] = sum(m) x[m, n]", {"m": "T", "n": "S"})


def test_several_outputs_follow_the_inputs_in_the_order_of_their_stages() -> None:
    assert wrong_at(SEVERAL, (1, 1), (5, 7), (37, 41), (0, 3), (3, 0)) == []
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    low, total = np.zeros(2, np.float32), np.zeros(3, np.float32)
    built(SEVERAL)([x, low, total])
    assert (low.tolist(), total.tolist()) == ([0.0, 3.0], [3.0, 5.0, 7.0])
    for shapes in ([[2, 3], [3], [2]], [[2, 3], [2], [2]], [[2, 3], [2]]):
        with pytest.raises((*REFUSED, AssertionError)):
            built(SEVERAL)([np.ones(shape, np.float32) for shape in shapes])


def test_an_output_may_have_no_dims() -> None:
    task = task_of("out[] = sum(m) x[m] * y[m]", {"m": "T"})
    assert wrong_at(task, (0,), (1,), (37,)) == []


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("out[m] = x[m] * 3 + y[m]", "int32"),
        ("out[m] = x[m] + y[m]", "int64"),
        ("out[m] = sum(n) cast(x[m, n], int32) * y[m]", {"x": "int8", "y": "int32", "out": "int32"}),
        ("out[m] = (x[m] & 15) + (y[m] >> 4)", {"x": "uint8", "y": "uint8", "out": "int32"}),
        ("out[m] = x[m] / (1 + abs(y[m]))", "float16"),
        ("out[m] = max(n) x[m, n] * y[m]", "bfloat16"),
        ("out[m] = x[m] + y[m]", "float64"),
        ("out[m] = (x[m] < y[m]) & (x[m] > 0)", {"out": "bool"}),
        ("out[m] = where(x[m], y[m], -1)", {"x": "bool"}),
    ],
)
def test_operands_have_the_dtypes_of_the_program_and_no_others(text: str, dtype: object) -> None:
    task = task_of(text, {"m": "T", **({"n": 7} if "n)" in text else {})}, dtype=dtype)
    assert wrong_at(task, (0,), (1,), (37,)) == []
    dims = dict.fromkeys(task.workload.symbols, 9)
    right = [np.ones(operand.shape(dims), NUMPY[operand.dtype]) for operand in task.workload.operands]
    built(task)(right)
    for position, operand in enumerate(task.workload.operands):
        other = np.float32 if operand.dtype != "float32" else np.int32
        wrong = [*right[:position], right[position].astype(other), *right[position + 1 :]]
        with pytest.raises(REFUSED):
            built(task)(wrong)
