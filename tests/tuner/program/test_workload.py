"""Workloads and shape variables: what they say of themselves, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.strategies import INSTANCES, WORKLOADS
from tuner.errors import InvalidInput
from tuner.program.dims import parse_dim
from tuner.program.workload import MAX_POINTS, ShapeVar, Workload, WorkloadInstance, format_shape

ARGS = {"m": "16*T", "n": 2304, "k": 768}


def refused(data: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Workload.from_json(data)
    return caught.value


@given(WORKLOADS)
def test_a_workload_comes_back_from_json(workload: Workload) -> None:
    again = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert again == workload
    assert again.key == workload.key


@given(INSTANCES)
def test_an_instance_holds_its_values_sorted(instance: WorkloadInstance) -> None:
    data = instance.to_json()
    weight = data.pop("weight")
    assert WorkloadInstance.of(data, weight) == instance
    assert list(instance.shape) == sorted(instance.shape)


def test_the_key_names_what_is_computed_and_nothing_else() -> None:
    workload = Workload.of("dense", ARGS)
    assert workload.key.startswith("dense-")
    assert workload.key == Workload.of("dense", ARGS | {"m": "T*2*8"}).key
    others = [
        Workload.of("matmul", ARGS),
        Workload.of("dense", ARGS | {"n": 2305}),
        Workload.of("dense", ARGS | {"m": "T"}),
        Workload.of("dense", ARGS, epilogue=["bias"]),
        Workload.of("dense", ARGS, epilogue=["bias", "relu"]),
        Workload.of("dense", ARGS, epilogue=["relu", "bias"]),
    ]
    assert len({other.key for other in others} | {workload.key}) == 7


def test_a_scaled_quotient_keeps_its_meaning_through_json() -> None:
    workload = Workload.of("dense", ARGS | {"m": "16*(T//2)"})
    assert Workload.from_json(workload.to_json()).extents({"T": 5})["m"] == 32


def test_extents_dims_and_operands() -> None:
    workload = Workload.of("dense", ARGS, epilogue=["bias", "gelu", "add"])
    assert workload.extents({"T": 3}) == {"m": 48, "n": 2304, "k": 768}
    assert workload.dims({"T": 3}) == {"m": 48}
    assert workload.extents_of_dims({"m": 5}) == {"m": 5, "n": 2304, "k": 768}
    assert workload.dynamic_dims == ("m",)
    assert workload.variables == {"T"}
    assert [operand.name for operand in workload.operands] == ["x", "w", "bias", "residual", "out"]
    assert workload.flops({"T": 1}) == 2 * 16 * 2304 * 768
    assert str(workload) == "dense(m=16*T, n=2304, k=768) + bias + gelu + add"


def test_equal_dims_are_one_dim() -> None:
    square = Workload.of("matmul", {"m": "S", "n": "S", "k": "S"})
    assert square.dynamic_dims == ("m",)
    assert square.extents_of_dims({"m": 7}) == {"m": 7, "n": 7, "k": 7}
    mixed = Workload.of("matmul", {"m": "T", "n": "2*T", "k": "T"})
    assert mixed.dynamic_dims == ("m", "n")
    assert mixed.dynamic_axes == {"m": "m", "n": "n", "k": "m"}


def test_a_batched_workload_has_a_dim_more_and_its_epilogue_follows_the_output() -> None:
    scores = Workload.of("batch_matmul_nt", {"b": 192, "m": "T", "n": "T", "k": 64}, epilogue=["bias", "add"])
    assert scores.dynamic_axes == {"m": "m", "n": "m"}
    assert scores.extents_of_dims({"m": 5}) == {"b": 192, "m": 5, "n": 5, "k": 64}
    assert {operand.name: operand.axes for operand in scores.operands} == {
        "a": ("b", "m", "k"),
        "b": ("b", "n", "k"),
        "bias": ("n",),
        "residual": ("b", "m", "n"),
        "out": ("b", "m", "n"),
    }
    assert scores.flops({"T": 3}) == scores.flops_of_dims({"m": 3}) == 2 * 192 * 3 * 3 * 64


def test_the_dim_of_a_batched_workload_may_be_summed_over() -> None:
    context = Workload.of("batch_matmul_nn", {"b": 192, "m": "T", "n": 64, "k": "T"})
    assert context.dynamic_axes == {"m": "m", "k": "m"}
    assert context.dynamic_dims == ("m",)
    assert str(context) == "batch_matmul_nn(b=192, m=T, n=64, k=T)"


@pytest.mark.parametrize(
    ("change", "field", "problem", "remedy"),
    [
        ({"op": "convolve"}, "op", "'convolve' is not in the catalogue", "one of: batch_matmul_nn, batch_matmul_nt"),
        ({"op": None}, "op", "not in the catalogue", "one of"),
        ({"op": ["dense"]}, "op", "not in the catalogue", "one of"),
        ({"args": None}, "args", "dense got None", "needs: m, n, k"),
        ({"args": []}, "args", "dense got []", "needs: m, n, k"),
        ({"args": {}}, "args", "dense got nothing", "needs: m, n, k"),
        ({"args": {"m": "T", "n": 1}}, "args", "dense got m, n", "needs: m, n, k"),
        ({"args": ARGS | {"z": 3}}, "args", "dense got m, n, k, z", "needs: m, n, k"),
        ({"op": "batch_matmul_nt"}, "args", "batch_matmul_nt got m, n, k", "needs: b, m, n, k"),
        ({"args": ARGS | {"m": "16*T.__class__"}}, "args.m", "not an integer expression", "16*T"),
        ({"args": ARGS | {"n": "T//0"}}, "args.n", "divides by 0", "positive constant"),
        ({"args": ARGS | {"k": 1.5}}, "args.k", "1.5 is not a dim", "16*T"),
        ({"args": ARGS | {"k": None}}, "args.k", "None is not a dim", "16*T"),
        ({"args": ARGS | {"k": True}}, "args.k", "True is not a dim", "16*T"),
        ({"dtype": "float16"}, "dtype", "'float16' is not supported by dense", "one of: float32"),
        ({"dtype": {"x": 1}}, "dtype", "is not supported", "float32"),
        ({"epilogue": "bias"}, "epilogue", "'bias' is not a list of names", "any of: bias"),
        ({"epilogue": [1]}, "epilogue", "[1] is not a list of names", "any of"),
        ({"epilogue": {"bias": 1}}, "epilogue", "is not a list of names", "any of"),
        ({"epilogue": ["swish"]}, "epilogue", "'swish' is not known", "any of"),
        ({"epilogue": ["bias", "relu", "bias"]}, "epilogue", "bias given twice", "each operand once"),
        ({"layout": "nk"}, "layout", "is not a field of a workload", "fields: op, args"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], field: str, problem: str, remedy: str) -> None:
    error = refused({"op": "dense", "args": ARGS} | change)
    assert error.field == field
    assert problem in error.problem
    assert remedy in error.remedy


@pytest.mark.parametrize("data", [None, 3, "dense", [], True])
def test_a_workload_is_a_mapping(data: object) -> None:
    assert "is not a mapping" in refused(data).problem


def test_a_workload_without_an_operator_is_refused() -> None:
    assert refused({"args": ARGS}).field == "op"


def test_a_dim_that_could_not_be_read_again_is_refused() -> None:
    source = "(Alpha+Beta)*(Gamma+Delta)*(Epsilon+Zeta)*(Eta+Theta)"
    error = refused({"op": "dense", "args": ARGS | {"m": source}})
    assert error.field == "args.m"
    assert "characters long when multiplied out" in error.problem


def test_no_epilogue_may_be_said_in_every_way() -> None:
    plain = Workload.of("dense", ARGS)
    nothing: list[Any] = [[], None]
    for epilogue in nothing:
        assert Workload.from_json({"op": "dense", "args": ARGS, "epilogue": epilogue}) == plain


def test_a_shape_var_knows_its_range() -> None:
    span, listed = ShapeVar("T", range(1, 129)), ShapeVar("S", [24, 5, 5, 43])
    assert (span.min, span.max) == (1, 128)
    assert span.to_json() == {"min": 1, "max": 128}
    assert listed.values == (5, 24, 43)
    assert listed.to_json() == {"values": [5, 24, 43]}
    assert ShapeVar("T", range(0, 10, 3)).values == (0, 3, 6, 9)
    assert span.expr == parse_dim("T")


@pytest.mark.parametrize(
    ("name", "values", "field", "problem"),
    [
        ("", range(1, 2), "shape_vars", "is not a name"),
        ("1T", range(1, 2), "shape_vars", "is not a name"),
        ("a.b", range(1, 2), "shape_vars", "is not a name"),
        ("if", range(1, 2), "shape_vars", "is not a name"),
        ("None", range(1, 2), "shape_vars", "is not a name"),
        ("\uff34", range(1, 2), "shape_vars", "is not a name"),
        ("weight", range(1, 2), "shape_vars", "is not a name"),
        (None, range(1, 2), "shape_vars", "is not a name"),
        ("T", range(5, 5), "shape_vars.T", "the range is empty"),
        ("T", range(9, 5), "shape_vars.T", "the range is empty"),
        ("T", [], "shape_vars.T", "the range is empty"),
        ("T", range(-1, 5), "shape_vars.T", "the smallest value is -1"),
        ("T", [3, -7], "shape_vars.T", "the smallest value is -7"),
        ("T", range(MAX_POINTS + 1), "shape_vars.T", f"{MAX_POINTS + 1} values"),
        ("T", range(1, 2**80), "shape_vars.T", "values"),
    ],
)
def test_a_bad_shape_var_is_refused(name: Any, values: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ShapeVar(name, values)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_shapes_are_written_by_name() -> None:
    assert format_shape({"T": 37, "S": 4}) == "S=4,T=37"
    assert str(WorkloadInstance.of({"T": 37, "S": 4}, 2)) == "S=4,T=37"
