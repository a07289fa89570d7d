"""Search tasks: defaults, checks, and the shapes of a range."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.strategies import tasks
from tuner.errors import InvalidInput
from tuner.program.job.build import in_tf32, make_workload
from tuner.program.job.instances import MAX_INSTANCES, default_instances, parse_shape
from tuner.program.job.shape_fields import parse_instances, parse_shape_vars
from tuner.program.job.task import SearchTask, check_shape
from tuner.program.language.ranges import shapes_of
from tuner.program.language.workload import ShapeVar, WorkloadInstance, format_shape
from tuner.program.target import Target, native

T = ShapeVar("T", range(1, 129))
S = ShapeVar("S", range(1, 33))
ARGS = {"m": 16 * T, "n": 2304, "k": 768}


def task(**fields: Any) -> SearchTask:
    return SearchTask("dense", ARGS, (T,), **fields)


def refused(**fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        task(**fields)
    return caught.value


def test_products_in_tf32_are_asked_for_by_name() -> None:
    assert task(tf32=True).workload == in_tf32(task().workload)
    with pytest.raises(InvalidInput, match="tf32"):
        SearchTask("softmax", {"m": T, "n": 8}, (T,), tf32=True)


@given(tasks())
def test_a_task_comes_back_from_json(found: SearchTask) -> None:
    again = SearchTask.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert hash(again) == hash(found)
    assert again.workload.key == found.workload.key


@given(tasks())
def test_instances_lie_in_the_range_and_so_do_its_shapes(found: SearchTask) -> None:
    assert all(found.contains(instance.shape) for instance in found.instances)
    shapes = found.shapes()
    assert all(found.contains(shape) for shape in shapes)
    assert len({format_shape(shape) for shape in shapes}) == len(shapes)
    for name, (low, high) in found.ranges.items():
        assert {min(shape[name] for shape in shapes), max(shape[name] for shape in shapes)} == {low, high}


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_large_ranges_are_thinned_and_keep_their_ends(one: int, other: int) -> None:
    a, b = ShapeVar("A", range(1, one + 1)), ShapeVar("B", range(1, other + 1))
    shapes = SearchTask("matmul", {"m": a, "n": b, "k": 8}, (a, b)).shapes(limit=64)
    assert len(shapes) <= 64
    assert {"A": 1, "B": 1} in shapes
    assert {"A": one, "B": other} in shapes


def test_the_default_spreads_over_the_range() -> None:
    result = task()
    values = [instance.shape["T"] for instance in result.instances]
    assert (values[0], values[-1], len(values)) == (1, 128, 8)
    assert values == sorted(values)
    assert {instance.weight for instance in result.instances} == {1.0}
    assert (result.target, result.threads, result.max_kernels) == (None, 1, 8)


def test_the_default_of_two_variables_holds_all_corners() -> None:
    result = SearchTask("matmul", {"m": T, "n": S, "k": 8}, (T, S))
    shapes = {tuple(instance.shape.values()) for instance in result.instances}
    assert {(1, 1), (32, 1), (1, 128), (32, 128)} <= shapes


def test_a_workload_of_fixed_size_has_one_instance() -> None:
    result = SearchTask("dense", {"m": 4, "n": 5, "k": 6})
    assert result.instances == (WorkloadInstance.of({}),)
    assert result.shapes() == [{}]
    assert result.contains({})


def test_instances_take_every_form() -> None:
    expected = (WorkloadInstance.of({"T": 5}, 2.0), WorkloadInstance.of({"T": 24}, 0.5))
    assert task(instances=[5, 24], weights=[2.0, 0.5]).instances == expected
    assert task(instances=[{"T": 5}, {"T": 24}], weights=[2, 0.5]).instances == expected
    assert task(instances=list(expected)).instances == expected
    assert SearchTask(make_workload("dense", ARGS), shape_vars=(T,), instances=list(expected)).instances == expected


def test_a_target_takes_every_form() -> None:
    plain = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
    target = Target.from_json(plain)
    assert task(target=plain).target == task(target=target).target == task().on(target).target == target
    assert task(target=None).target is None
    assert task().on(native()).on(target) == task(target=target)


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"instances": []}, "instances", "0 instances"),
        ({"instances": list(range(1, 129)) * 3}, "instances", f"{3 * 128} instances"),
        ({"instances": [5, 5]}, "instances[1]", "T=5 is given twice"),
        ({"instances": [0]}, "instances[0].T", "0 is outside the range"),
        ({"instances": [5, 129]}, "instances[1].T", "129 is outside the range"),
        ({"instances": [{"S": 5}]}, "instances[0]", "gives S"),
        ({"instances": [{}]}, "instances[0]", "gives nothing"),
        ({"instances": [{"T": 5, "S": 5}]}, "instances[0]", "gives S, T"),
        ({"instances": [{"T": 5.0}]}, "instances[0].T", "5.0 is not an integer"),
        ({"instances": [{"T": "5"}]}, "instances[0].T", "'5' is not an integer"),
        ({"instances": [{"T": True}]}, "instances[0].T", "True is not an integer"),
        ({"instances": [5], "weights": [1, 2]}, "weights", "2 weights for 1 instances"),
        ({"instances": [5], "weights": [-1]}, "instances[0].weight", "-1 is not a weight"),
        ({"instances": [5], "weights": [math.nan]}, "instances[0].weight", "nan is not a weight"),
        ({"instances": [5], "weights": [math.inf]}, "instances[0].weight", "inf is not a weight"),
        ({"instances": [5], "weights": ["1"]}, "instances[0].weight", "'1' is not a weight"),
        ({"instances": [5], "weights": [True]}, "instances[0].weight", "True is not a weight"),
        ({"instances": [5, 6], "weights": [0, 0]}, "instances", "every weight is 0"),
        ({"threads": 0}, "threads", "0 will not do"),
        ({"threads": 2.0}, "threads", "2.0 will not do"),
        ({"threads": "2"}, "threads", "'2' will not do"),
        ({"threads": True}, "threads", "True will not do"),
        ({"max_kernels": 0}, "max_kernels", "0 will not do"),
        ({"max_kernels": 65}, "max_kernels", "65 will not do"),
        ({"target": "cuda"}, "target", "'cuda' is not known"),
        ({"target": {"kind": "cuda", "arch": "sm_42"}}, "target.arch", "'sm_42' is not known"),
        ({"target": {"kind": "cuda", "arch": "sm_90"}, "threads": 4}, "threads", "4 threads of a CPU"),
        ({"dtype": "float8"}, "dtype", "'float8' is not a dtype"),
        ({"epilogue": ["x"]}, "epilogue", "'x' is not known"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str, problem: str) -> None:
    error = refused(**fields)
    assert error.field == field
    assert problem in error.problem
    assert error.remedy


@pytest.mark.parametrize(
    ("args", "variables", "field", "problem"),
    [
        ({"m": "T", "n": 1, "k": 1}, (), "workload.args.m", "T is not declared"),
        ({"m": 1, "n": 1, "k": 1}, (T,), "shape_vars.T", "no dim of the workload uses it"),
        ({"m": "T", "n": 1, "k": 1}, (T, T), "shape_vars", "repeats a name"),
        ({"m": "T-2", "n": 1, "k": 1}, (T,), "workload.args.m", "T-2 runs from -1 to 126"),
        ({"m": "100-T", "n": 1, "k": 1}, (T,), "workload.args.m", "100-T runs from -28 to 99"),
        ({"m": "T*T*T*T*T*T", "n": 1, "k": 1}, (T,), "workload.args.m", "runs from 1 to"),
        ({"m": "T", "n": 0, "k": 1}, (T,), "workload.args.n", "is always 0"),
        ({"m": "T", "n": -3, "k": 1}, (T,), "args.n", "the extent of n is -3"),
    ],
)
def test_dims_must_be_extents_over_the_whole_range(args: Any, variables: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SearchTask("matmul", args, variables)
    assert caught.value.field == field
    assert problem in caught.value.problem


VARIABLES = st.lists(
    st.builds(range, st.integers(1, 8), st.integers(9, 2000), st.integers(1, 16))
    | st.just((1, 2, 4, 8, 16, 32)) | st.just((7,)),
    min_size=3, max_size=6,
).map(lambda every: [ShapeVar(f"V{index}", values) for index, values in enumerate(every)])  # fmt: skip


@given(VARIABLES)
def test_instances_and_shapes_of_many_variables_are_few_and_hold_the_corners(variables: list[ShapeVar]) -> None:
    ends = [{var.name: var.min for var in variables}, {var.name: var.max for var in variables}]
    for shapes, most in ((default_instances(variables), 12), (shapes_of(variables, 300), 300)):
        assert (shapes[0], shapes[-1]) == (ends[0], ends[1])
        assert len({tuple(shape.values()) for shape in shapes}) == len(shapes) <= most
        assert all(var.takes(shape[var.name]) for var in variables for shape in shapes)
        for var in variables:
            assert ends[0] | {var.name: var.max} in shapes


def test_shapes_of_several_long_variables_part_small_sizes_and_large_ones() -> None:
    long = [ShapeVar(name, range(8, 1025, 8)) for name in "MNK"]
    shapes = shapes_of(long, 4096)
    assert len(shapes) == 4096
    for var in long:
        assert len({shape[var.name] for shape in shapes}) == var.count, "a grid has sixteen values of each"
    few = [ShapeVar("A", range(1, 5)), ShapeVar("B", range(1, 1001))]
    assert len(shapes_of(few, 4096)) == 4000, "every one, where they are not too many"


def test_there_are_not_too_many_variables_or_instances() -> None:
    many = [ShapeVar(f"V{index}", range(1, 3)) for index in range(9)]
    with pytest.raises(InvalidInput, match="at most 8"):
        SearchTask("matmul", {"m": "+".join(var.name for var in many), "n": 1, "k": 1}, many)
    eight = SearchTask("matmul", {"m": "+".join(var.name for var in many[:8]), "n": 1, "k": 1}, many[:8])
    assert len(eight.instances) <= MAX_INSTANCES


@pytest.mark.parametrize(
    ("data", "field", "problem"),
    [
        (3, "shape_vars", "3 is not a mapping"),
        ([], "shape_vars", "[] is not a mapping"),
        ({"T": 3}, "shape_vars.T", "3 is not a range"),
        ({"T": {}}, "shape_vars.T", "{} is not a range"),
        ({"T": {"min": 1}}, "shape_vars.T", "is not a range"),
        ({"T": {"min": 1, "max": 2, "values": [1]}}, "shape_vars.T", "values and max and min are both given"),
        ({"T": {"values": [8, 16], "step": 8}}, "shape_vars.T", "values and step are both given"),
        ({"T": {"min": 1, "max": 2, "stride": 1}}, "shape_vars.T", "'stride' is not a field of a range"),
        ({"T": {"step": 8}}, "shape_vars.T", "is not a range"),
        ({"T": {"powers_of": 2, "max": 8}}, "shape_vars.T", "is not a range"),
        ({"T": {"min": 8, "max": 64, "step": 0}}, "shape_vars.T", "step: 0 is not a step"),
        ({"T": {"min": 8, "max": 64, "step": -8}}, "shape_vars.T", "step: -8 is not a step"),
        ({"T": {"min": 8, "max": 64, "step": 8.0}}, "shape_vars.T", "step: 8.0 is not an integer"),
        ({"T": {"min": 1, "max": 64, "step": 1, "powers_of": 2}}, "shape_vars.T", "step and powers_of are both given"),
        ({"T": {"min": 1, "max": 64, "powers_of": 1}}, "shape_vars.T", "powers_of: 1 has no powers"),
        ({"T": {"min": 1, "max": 64, "powers_of": True}}, "shape_vars.T", "powers_of: True is not an integer"),
        ({"T": {"min": 0, "max": 64, "powers_of": 2}}, "shape_vars.T", "min: 0 is below every power of 2"),
        ({"T": {"min": 11, "max": 99, "powers_of": 10}}, "shape_vars.T", "no power of 10 is from 11 to 99"),
        ({"T": {"min": "1", "max": 2}}, "shape_vars.T", "'1' is not an integer"),
        ({"T": {"min": 1, "max": 2.5}}, "shape_vars.T", "2.5 is not an integer"),
        ({"T": {"min": None, "max": 2}}, "shape_vars.T", "None is not an integer"),
        ({"T": {"min": 9, "max": 2}}, "shape_vars.T", "min 9 is above max 2"),
        ({"T": {"values": 5}}, "shape_vars.T", "values: 5 is not a list"),
        ({"T": {"values": "5"}}, "shape_vars.T", "is not a list"),
        ({"T": {"values": []}}, "shape_vars.T", "the range is empty"),
        ({"T": {"values": [1, [2]]}}, "shape_vars.T", "[2] is not an integer"),
        ({"T": {"values": [True]}}, "shape_vars.T", "True is not an integer"),
        ({"": {"min": 1, "max": 2}}, "shape_vars", "is not a name"),
        ({"weight": {"min": 1, "max": 2}}, "shape_vars", "is not a name"),
    ],
)
def test_bad_shape_vars_are_refused(data: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_shape_vars(data)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_shape_vars_and_instances_are_read() -> None:
    data = {"T": {"min": 1, "max": 128}, "S": {"values": [5, 24]}}
    assert parse_shape_vars(data) == (T, ShapeVar("S", [5, 24]))
    (stepped,) = parse_shape_vars({"S": {"min": 8, "max": 1030, "step": 8}})
    assert stepped.values == range(8, 1025, 8)
    (powers,) = parse_shape_vars({"P": {"min": 2, "max": 100, "powers_of": 3}})
    assert powers.values == (3, 9, 27, 81)
    assert parse_shape_vars({"P": {"min": 1, "max": 1, "powers_of": 2}}) == (ShapeVar("P", [1]),)
    for var in (T, stepped, powers):
        assert parse_shape_vars({var.name: var.to_json()}) == (var,)
    assert parse_shape_vars(None) == ()
    assert parse_instances(None) is None
    assert parse_instances([{"T": 5, "weight": 2}]) == [WorkloadInstance.of({"T": 5}, 2.0)]


def test_a_shape_is_read_from_text_and_checked() -> None:
    assert parse_shape("T=37, S=4") == {"T": 37, "S": 4}
    assert parse_shape("") == {}
    for text in ("T", "T=", "=3", "T=-1", "T=1.5", "T=1,T=2", "T=" + "9" * 19, "a b=3"):
        with pytest.raises(InvalidInput, match="does not give one variable a size") as caught:
            parse_shape(text)
        assert caught.value.field == "shape"
    check_shape(task(), {"T": 100_000})
    for shape in ({}, {"S": 1}, {"T": 1, "S": 1}):
        with pytest.raises(InvalidInput, match="give T"):
            check_shape(task(), shape)
    shrinking = SearchTask("dense", {"m": 200 - T, "n": 8, "k": 8}, (T,))
    check_shape(shrinking, {"T": 200})
    with pytest.raises(InvalidInput, match="T=201 makes 200-T -1"):
        check_shape(shrinking, {"T": 201})


@given(st.dictionaries(st.sampled_from(["T", "S", "Long_1"]), st.integers(0, 10**17), min_size=1))
def test_a_shape_comes_back_from_text(shape: dict[str, int]) -> None:
    assert parse_shape(format_shape(shape)) == shape


@pytest.mark.parametrize(
    ("least", "instances", "added"),
    [
        (1, [5, 128], {"T": 1}),
        (0, [5, 128], {"T": 1}),
        (1, [1, 128], None),
        (16, [31, 128], None),
        (16, [32, 128], {"T": 16}),
    ],
)
def test_the_least_shape_is_searched_for_where_no_instance_is_near(
    least: int, instances: list[int], added: dict[str, int] | None
) -> None:
    result = SearchTask(
        "dense", {"m": "16*T", "n": 64, "k": 64}, (ShapeVar("T", range(least, 129)),), instances, [4.0, 2.0]
    )
    searched = result.with_least_shape()
    if added is None:
        assert searched == result
        return
    first, *rest = searched.instances
    assert (first.shape, tuple(rest)) == (added, result.instances)
    assert 0 < first.weight < 2.0
    assert searched.with_least_shape() == searched


def test_the_least_shape_is_left_out_where_there_is_no_room_or_nothing_to_do() -> None:
    var = ShapeVar("T", range(1, 1000))
    full = SearchTask("dense", {"m": "T", "n": 64, "k": 64}, (var,), list(range(9, 9 + MAX_INSTANCES)))
    assert full.with_least_shape() == full
    empty = SearchTask("dense", {"m": "T-1", "n": 64, "k": 64}, (var,), [100])
    assert empty.with_least_shape() == empty
    fixed = SearchTask("dense", {"m": 8, "n": 64, "k": 64})
    assert fixed.with_least_shape() == fixed
    square = SearchTask("matmul", {"m": "T", "n": "T", "k": "T"}, (var,), [1, 64])
    assert square.with_least_shape() == square
