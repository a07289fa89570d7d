"""Shapes and element types that follow from a program, and reads that would be out of bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.program_strategies import PROGRAM_WORKLOADS, SHAPES
from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.language.expr import Read, axes_of, reads
from tuner.program.language.indices import index_dim
from tuner.program.language.program import Program
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload


def build(program: str, extents: dict[str, Any], **fields: Any) -> Workload:
    return workload_from_json({"program": program, "extents": extents, **fields})


def refused(program: str, extents: dict[str, Any], **fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        build(program, extents, **fields)
    return caught.value


def shape(workload: Workload, tensor: str, **values: int) -> tuple[int, ...]:
    return workload.tensors[tensor].shape(workload.dims(values))


# -- shapes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("index", "size"),
    [
        ("i", 4),
        ("i + j", 6),
        ("2*i + j", 9),
        ("i*extent(j) + j", 12),
        ("i//2", 2),
        ("i % 3", 3),
        ("(i + 1)//2", 3),
        ("extent(i) - 1 - i", 4),
        ("7", 8),
        ("i - i", 1),
        ("2*(extent(j)//2) + i", 6),
        ("(extent(j)//2)*i", 4),
        ("2*extent(j)*i + j", 21),
        ("(5*i + j) % 3", 3),
    ],
)
def test_a_dim_reaches_to_the_largest_index(index: str, size: int) -> None:
    workload = build(f"out[i, j] = x[{index}]", {"i": 4, "j": 3})
    assert shape(workload, "x") == (size,)


def test_dims_of_dynamic_axes_follow_the_shape_variables() -> None:
    workload = build("out[i, j] = x[i*extent(j) + j] + y[2*i + 1, j]", {"i": "T", "j": 8})
    assert shape(workload, "x", T=5) == (40,)
    assert shape(workload, "y", T=5) == (10, 8)
    assert shape(workload, "y", T=0) == (0, 8)


def test_a_stencil_needs_the_size_of_its_largest_index() -> None:
    workload = build("out[i] = x[i] + x[i + 2] + x[i + 1]", {"i": "T"})
    assert shape(workload, "x", T=5) == (7,)
    assert "either may be larger" in refused("out[i, j] = x[i] + x[j]", {"i": "T", "j": "S"}).problem
    assert shape(build("out[i, j] = x[i] + x[j]", {"i": 3, "j": 4}), "x") == (4,)
    assert shape(build("out[i, j] = x[i] + x[j]", {"i": "T", "j": "T"}), "x", T=3) == (3,)


def test_extents_of_0_need_nothing() -> None:
    assert shape(build("out[i] = x[2*i - 0]", {"i": 0}), "x") == (0,)
    assert shape(build("out[i] = sum(j) x[2*i + j]", {"i": 0, "j": 1}), "x") == (0,)


def test_a_shape_may_exceed_what_is_read() -> None:
    workload = build("out[i] = x[i, 0]", {"i": "T"}, shapes={"x": ["T + 3", 9]})
    assert shape(workload, "x", T=2) == (5, 9)
    assert workload.inference.unproved  # T + 3 is a symbol of its own
    assert workload.is_consistent(workload.dims({"T": 2}))


def test_an_axis_name_in_a_shape_is_its_extent() -> None:
    workload = build("out[i] = x[rows[i], i]", {"i": "16*T"}, shapes={"x": ["V", "i"]})
    assert shape(workload, "x", T=2, V=50) == (50, 32)
    named_t = build("out[T] = x[rows[T], T]", {"T": "16*T"}, shapes={"x": [9, "T"]})
    assert shape(named_t, "x", T=2) == (9, 32)
    assert workload_from_json(named_t.to_json()) == named_t


@pytest.mark.parametrize(
    ("program", "fields", "problem", "remedy"),
    [
        ("out[i] = x[i - 1]", {}, "column 14: the index reaches down to -1", "padded: {x: 0}"),
        (
            "out[i] = x[i + 1]",
            {"shapes": {"x": [4]}},
            "the index passes the end of dim 0 of x by 1",
            "padded",
        ),
        ("a[i] = x[i]; out[i] = a[i + 2]", {}, "the index passes the end of dim 0 of a by 2", "padded: {a: 0}"),
        ("out[i] = x[rows[i]]", {}, "column 12: the size of dim 0 of x does not follow", "shapes: {x: [...]}"),
        ("out[i] = x[i - 1]", {"padded": {"x": 0}}, "x is padded, so the size of dim 0", "shapes: {x: [...]}"),
        ("out[i] = x[rows[i]]", {"shapes": {"x": [0]}}, "dim 0 of x has no element to choose from", "1 or more"),
    ],
)
def test_reads_outside_a_tensor_are_refused(program: str, fields: dict[str, Any], problem: str, remedy: str) -> None:
    error = refused(program, {"i": 4}, **fields)
    assert error.field == "program"
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize("extent", [2**31 - 1, 2**31 - 2])
def test_sizes_beyond_all_tensors_are_refused_where_they_arise(extent: int) -> None:
    error = refused("out[i, j] = x[2*i + j]", {"i": extent, "j": 2})
    assert "out of every range" in error.problem
    assert "column 19" in error.problem or "column 17" in error.problem


@given(PROGRAM_WORKLOADS, SHAPES)
def test_no_read_is_out_of_bounds_where_a_workload_is_consistent(workload: Workload, values: dict[str, int]) -> None:
    dims = workload.dims(values)
    if not workload.is_consistent(dims):
        return
    sizes, padded = workload.axis_sizes(dims), dict(workload.padding)
    for stage in workload.program.stages:
        if not all(sizes[axis] for axis in (*stage.axes, *stage.reduce_axes)):
            continue
        for read in reads(stage.body):
            if read.tensor not in padded:
                axes = sorted(axes_of(read))
                for point in itertools.product(*(range(sizes[axis]) for axis in axes)):
                    _check_inside(workload, read, dict(zip(axes, point, strict=True)), dims)


def _check_inside(workload: Workload, read: Read, point: dict[str, int], dims: dict[str, int]) -> None:
    extents = {f"extent({axis})": size for axis, size in workload.axis_sizes(dims).items()}
    for index, size in zip(read.indices, workload.tensors[read.tensor].shape(dims), strict=True):
        dim = index_dim(index)
        if dim is None:
            assert size > 0  # an element of a tensor is clamped
        else:
            assert 0 <= dim.evaluate({**point, **extents}) < size


# -- element types ------------------------------------------------------------------------------------------------
def dtypes(program: str, given: object = "float32", outputs: list[str] | None = None) -> dict[str, str]:
    return dict(ElementTypes(Program.parse(program, outputs), given).of)


@pytest.mark.parametrize("whole", ["float32", "float64", "float16", "bfloat16", "int8"])
def test_one_dtype_is_that_of_every_input_and_output(whole: str) -> None:
    result = dtypes("a[m] = sum(k) x[m, k] * y[k]; out[m] = a[m] * 2", whole)
    assert (result["x"], result["y"], result["out"]) == (whole, whole, whole)
    assert result["a"] == {"float64": "float64", "int8": "int32"}.get(whole, "float32")


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("x[m]", "float32"),
        ("h[m]", "float32"),
        ("b[m]", "int32"),
        ("w[m]", "bool"),
        ("b[m] * 2", "int32"),
        ("b[m] * 3000000000", "int64"),
        ("b[m] * 0.5", "float32"),
        ("b[m] / 2", "float32"),
        ("b[m] + m", "int64"),
        ("x[m] * m", "float32"),
        ("d[m] * x[m]", "float64"),
        ("m + extent(m)", "int64"),
        ("m < 3", "bool"),
        ("(m < 3) & w[m]", "bool"),
        ("(m < 3) & 1", "int32"),
        ("(m < 3) + (m < 4)", "int32"),
        ("-(m < 3)", "int32"),
        ("-b[m]", "int32"),
        ("exp(b[m])", "float32"),
        ("exp(d[m])", "float64"),
        ("abs(b[m])", "int32"),
        ("max(b[m], 0)", "int32"),
        ("max(b[m], 0.0)", "float32"),
        ("max(w[m], w[m])", "int32"),
        ("round(x[m])", "float32"),
        ("where(m < 3, b[m], 0)", "int32"),
        ("where(m < 3, w[m], m < 1)", "bool"),
        ("where(m < 3, w[m], 1)", "int32"),
        ("where(m < 3, b[m], x[m])", "float32"),
        ("cast(x[m], int8)", "int32"),
        ("cast(b[m], bfloat16)", "float32"),
        ("cast(b[m], float64)", "float64"),
        ("b[m] >> 4 & 15", "int32"),
        ("b[m] >> (m % 2 * 4)", "int64"),
        ("sum(k) w[m] * (k < 2)", "int32"),
        ("sum(k) k < m", "int32"),
        ("max(k) k < m", "bool"),
        ("sum(k) h[m] * k", "float32"),
        ("prod(k) b[m] + k", "int64"),
    ],
)
def test_the_dtype_of_an_intermediate_follows_from_the_arithmetic(body: str, dtype: str) -> None:
    given = {"h": "float16", "b": "int8", "d": "float64", "w": "bool"}
    named = {name: value for name, value in given.items() if f"{name}[" in body}
    result = dtypes(f"a[m] = {body}; out[m] = x[m] * a[m]", named)
    assert result["a"] == dtype


def test_index_tensors_are_int32_unless_said_otherwise() -> None:
    program = "out[t] = x[rows[t]]"
    assert dtypes(program, "bfloat16")["rows"] == "int32"
    assert dtypes(program, {"rows": "int64"})["rows"] == "int64"
    with pytest.raises(InvalidInput, match=r"dtype.rows: rows is used as an index, float32 is no integer"):
        dtypes(program, {"rows": "float32"})


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ("float8", "dtype", "'float8' is not a dtype"),
        (None, "dtype", "None is not a dtype"),
        (3, "dtype", "3 is not a dtype"),
        (["float32"], "dtype", "is not a dtype"),
        ({"z": "float32"}, "dtype", "'z' is not a tensor"),
        ({1: "float32"}, "dtype", "1 is not a tensor"),
        ({"x": "f" * 5000}, "dtype.x", "is not a dtype"),
        ({"x": None}, "dtype.x", "None is not a dtype"),
        ({"x": {}}, "dtype.x", "{} is not a dtype"),
    ],
)
def test_wrong_dtypes_are_refused(given: object, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        dtypes("out[m] = x[m]", given)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert "float32" in str(caught.value) or "tensors: " in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("body", "column", "problem", "remedy"),
    [
        ("x[m] // 2", 15, "// of float32 and int32", "floor(x / y)"),
        ("x[m] & 1", 15, "& of float32 and int32", "cast(x, int32)"),
        ("1 << x[m]", 12, "<< of int32 and float32", "cast"),
        ("(m < 1) | x[m]", 18, "| of bool and float32", "conditions on both sides"),
        ("where(x[m], 1, 2)", 16, "where takes a condition first, not a value of float32", "x[m] != 0"),
        ("where(m, 1, x[m])", 16, "where takes a condition first, not a value of int64", "x[m] != 0"),
    ],
)
def test_operators_of_integers_and_conditions_are_checked(body: str, column: int, problem: str, remedy: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        dtypes(f"out[m] = {body}")
    assert f"line 1, column {column}: {problem}" in caught.value.problem
    assert remedy in caught.value.remedy


def test_element_types_are_inferred_in_one_walk_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    original = ElementTypes.type_of

    def counted(self: ElementTypes, expr: Any) -> str:
        nonlocal calls
        calls += 1
        return original(self, expr)

    monkeypatch.setattr(ElementTypes, "type_of", counted)
    dtypes(f"out[m] = {' + '.join(['x[m]'] * 60)}")
    assert calls == 60 + 59
