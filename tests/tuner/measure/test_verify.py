from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tuner.measure.verify import GUARD, Case, Floats, Guarded, ragged_dims, random_array
from tuner.program.reference import compute
from tuner.program.workload import ShapeVar, Workload

T = ShapeVar("T", range(1, 65))
MATMUL = Workload.of("matmul", {"m": T, "n": 24, "k": 16})


def matmul(operands: Sequence[Floats]) -> None:
    a, b, out = operands
    out[...] = a @ b


def problem_of(call: object, m: int = 5) -> str | None:
    case = Case.of(MATMUL, {"m": m})
    assert callable(call)
    return case.check(case.inputs, call)


def test_a_right_result_has_no_problem() -> None:
    assert problem_of(matmul) is None


def test_a_wrong_element_is_named() -> None:
    def call(operands: Sequence[Floats]) -> None:
        matmul(operands)
        operands[-1][3, 7] += 0.5

    problem = problem_of(call)
    assert problem is not None
    assert "1 of 120 elements are wrong: max error 0.5 at [3, 7]" in problem
    assert problem.endswith("at m=5")


def test_an_element_that_is_never_written_is_wrong() -> None:
    def call(operands: Sequence[Floats]) -> None:
        a, b, out = operands
        out[:-1] = (a @ b)[:-1]

    assert "24 of 120 elements are wrong" in (problem_of(call) or "")


def test_reading_past_an_input_shows_in_the_result() -> None:
    def call(operands: Sequence[Floats]) -> None:
        a, b, out = operands
        beyond = np.lib.stride_tricks.as_strided(a, (6, 16))
        out[...] = a @ b
        out[0, 0] += beyond[5, 0]

    assert "nan in place of" in (problem_of(call) or "")


@pytest.mark.parametrize(("offset", "says"), [(-2, "before the start"), (120, "past the end"), (1100, "past the end")])
def test_writes_around_the_output_are_found(offset: int, says: str) -> None:
    def call(operands: Sequence[Floats]) -> None:
        matmul(operands)
        out = operands[-1]
        around = np.lib.stride_tricks.as_strided(out.ravel(), (1 + max(0, offset),))
        if offset >= 0:
            around[offset] = 1.0
        else:
            before = np.frombuffer(_bytes_before(out, -offset), np.float32)
            before[0] = 1.0

    assert says in (problem_of(call) or "")


def _bytes_before(array: Floats, elements: int) -> memoryview:
    import ctypes  # noqa: PLC0415  (for this trespass alone)

    kind = ctypes.c_char * (4 * elements)
    return memoryview(kind.from_address(array.ctypes.data - 4 * elements))


@pytest.mark.parametrize("shape", [(1,), (37, 24), (3, 5, 7)])
def test_guarded_memory_is_aligned_and_surrounds_the_array(shape: tuple[int, ...]) -> None:
    guarded = Guarded.empty(shape)
    assert guarded.array.shape == shape
    assert guarded.array.ctypes.data % 64 == 0
    assert guarded.before.size == guarded.after.size == GUARD
    assert guarded.damage() is None
    guarded.array[...] = 1.0
    assert guarded.damage() is None


def test_an_empty_output_is_guarded_on_both_sides() -> None:
    guarded = Guarded.empty((0, 24))
    assert (guarded.array.shape, guarded.damage()) == ((0, 24), None)
    guarded.after[0] = 1.0
    assert "the nearest 1 away" in (guarded.damage() or "")


def test_ragged_dims_are_divided_by_no_tile_and_differ_from_each_other() -> None:
    square = ShapeVar("S", range(1, 65))
    workload = Workload.of("matmul", {"m": T, "n": square, "k": square + 1})
    dims = ragged_dims(workload)
    assert dims[0] == {"m": 1, "n": 1, "k": 1}
    for point in dims[1:3]:
        assert len(set(point.values())) == 3
        assert all(value % tile for value in point.values() for tile in (2, 3, 4, 5, 6, 7, 8))


def test_dims_that_are_too_much_work_are_left_out_but_for_the_smallest_that_fill_tiles() -> None:
    huge = Workload.of("matmul", {"m": T, "n": 30_000, "k": 30_000})
    assert ragged_dims(huge) == [{"m": 1}, {"m": 37}]


def test_a_batch_is_verified_at_few_of_many_dims() -> None:
    batch, S, K = ShapeVar("B", range(1, 9)), ShapeVar("S", range(1, 9)), ShapeVar("K", range(1, 9))  # noqa: N806
    workload = Workload.of("batch_matmul_nn", {"b": batch, "m": T, "n": S, "k": K})
    ones, blocks, larger, nothing, *longer = ragged_dims(workload)
    assert ones == {"b": 1, "m": 1, "n": 1, "k": 1}
    assert [dims["b"] for dims in (blocks, larger)] == [3, 5]
    assert all(min(dims["m"], dims["n"], dims["k"]) > size for dims, size in ((blocks, 32), (larger, 96)))
    assert nothing == blocks | {"k": 0}
    assert longer == [blocks | {"k": 563}, blocks | {"k": 1543}]
    both = Workload.of("batch_matmul_nn", {"b": T, "m": T, "n": 8, "k": 8})
    assert ragged_dims(both)[1] == {"b": 37}


@pytest.mark.parametrize(
    ("op", "args", "dims"),
    [
        ("batch_matmul_nt", {"b": 192, "m": T, "n": T, "k": 64}, [1, 37, 113]),
        ("batch_matmul_nn", {"b": 192, "m": T, "n": 64, "k": T}, [1, 37, 113, 0]),
        ("matmul", {"m": 37, "n": 24, "k": T}, [1, 37, 113, 0, 563, 1543]),
        ("matmul", {"m": T, "n": T, "k": T}, [1, 37, 113, 0, 563]),
    ],
)
def test_a_dim_that_is_summed_over_has_sums_of_all_lengths(op: str, args: dict[str, object], dims: list[int]) -> None:
    workload = Workload.of(op, args)
    (name,) = workload.dynamic_dims
    assert ragged_dims(workload) == [{name: size} for size in dims]


def test_what_a_kernel_leaves_when_it_sums_over_nothing_is_found() -> None:
    case = Case.of(Workload.of("batch_matmul_nn", {"b": 2, "m": 3, "n": 4, "k": T}), {"k": 0})
    assert case.expected.shape == (2, 3, 4)
    assert case.check(case.inputs, lambda operands: operands[-1].fill(0.0)) is None
    assert "24 of 24 elements are wrong" in (case.check(case.inputs, lambda operands: None) or "")


def test_a_wrong_element_of_a_batch_is_named() -> None:
    def call(operands: Sequence[Floats]) -> None:
        a, b, out = operands
        out[...] = a @ b.swapaxes(1, 2)
        out[4, 3, 1] += 0.5

    case = Case.of(Workload.of("batch_matmul_nt", {"b": 5, "m": T, "n": T, "k": 16}), {"m": 7})
    assert "1 of 245 elements are wrong: max error 0.5 at [4, 3, 1]" in (case.check(case.inputs, call) or "")


def test_a_static_workload_is_verified_at_its_shape() -> None:
    static = Workload.of("matmul", {"m": 5, "n": 24, "k": 16})
    assert ragged_dims(static) == [{}]
    assert Case.of(static, {}).expected.shape == (5, 24)


def test_inputs_are_the_same_everywhere_and_in_range() -> None:
    first, second = random_array("a", (50, 40)), random_array("a", (50, 40))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, random_array("b", (50, 40)))
    assert -1 <= first.min() < -0.9 and 0.9 < first.max() < 1
    assert compute(MATMUL, Case.of(MATMUL, {"m": 5}).inputs).dtype == np.float64


def test_an_input_that_is_written_to_is_found() -> None:
    def call(operands: Sequence[Floats]) -> None:
        matmul(operands)
        operands[0][0, 0] += 1.0

    assert "input 0 was written to" in (problem_of(call) or "")
