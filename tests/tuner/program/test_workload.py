"""Workloads and shape variables: what they say of themselves, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.strategies import WORKLOADS
from tuner.errors import InvalidInput
from tuner.program.build import make_workload, workload_from_json
from tuner.program.workload import Workload

ARGS = {"m": "16*T", "n": 2304, "k": 768}


def refused(data: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        workload_from_json(data)
    return caught.value


@given(WORKLOADS)
def test_a_workload_comes_back_from_json(workload: Workload) -> None:
    again = workload_from_json(json.loads(json.dumps(workload.to_json())))
    assert again == workload
    assert again.key == workload.key


def test_the_key_names_what_is_computed_and_nothing_else() -> None:
    workload = make_workload("dense", ARGS)
    assert workload.key.startswith("wl-")
    for same in ("T*2*8", "T", "S//2+1"):
        assert workload.key == make_workload("dense", ARGS | {"m": same}).key
    others = [
        make_workload("matmul", ARGS),
        make_workload("dense", ARGS | {"n": 2305}),
        make_workload("dense", ARGS | {"m": 8}),
        make_workload("dense", ARGS, epilogue=["bias"]),
        make_workload("dense", ARGS, epilogue=["bias", "relu"]),
        make_workload("dense", ARGS, epilogue=["relu", "bias"]),
    ]
    assert len({other.key for other in others} | {workload.key}) == 7


def test_a_scaled_quotient_keeps_its_meaning_through_json() -> None:
    workload = make_workload("dense", ARGS | {"m": "16*(T//2)"})
    assert workload_from_json(workload.to_json()).dims({"T": 5})["m"] == 32


def test_symbols_dims_and_operands() -> None:
    workload = make_workload("dense", ARGS, epilogue=["bias", "gelu", "add"])
    assert workload.symbols == ("m",)
    assert workload.dims({"T": 3}) == {"m": 48}
    assert workload.axis_sizes({"m": 5}) == {"m": 5, "n": 2304, "k": 768}
    assert workload.variables == {"T"}
    assert [operand.name for operand in workload.operands] == ["x", "w", "bias", "residual", "out"]
    assert [operand.shape({"m": 5}) for operand in workload.operands[2:]] == [(2304,), (5, 2304), (5, 2304)]
    assert workload.bytes_moved({"m": 5}) == 4 * (5 * 768 + 2304 * 768 + 2304 + 2 * 5 * 2304)
    assert str(workload) == "dense(m=16*T, n=2304, k=768) + bias + gelu + add"
    plain = make_workload("dense", ARGS)
    assert plain.flops({"m": 16}) == 2 * 16 * 2304 * 768
    assert plain.points({"m": 16}) == 16 * 2304 * 768
    assert plain.points({"m": 0}) == plain.flops({"m": 0}) == 0


def test_equal_extents_are_one_symbol() -> None:
    square = make_workload("matmul", {"m": "S", "n": "S", "k": "S"})
    assert square.symbols == ("m",)
    assert square.axis_sizes({"m": 7}) == {"m": 7, "n": 7, "k": 7}
    mixed = make_workload("matmul", {"m": "T", "n": "2*T", "k": "T"})
    assert mixed.symbols == ("m", "n")
    assert mixed.dims({"T": 3}) == {"m": 3, "n": 6}
    assert mixed.axis_sizes({"m": 3, "n": 6}) == {"m": 3, "n": 6, "k": 3}


def test_a_batched_workload_has_an_axis_more_and_its_epilogue_follows_the_output() -> None:
    scores = make_workload("batch_matmul_nt", {"b": 192, "m": "T", "n": "T", "k": 64}, epilogue=["bias", "add"])
    # Canonical names go by first use: b is the first axis, m the second.
    assert scores.symbols == ("n",)
    assert scores.axis_sizes({"n": 5}) == {"b": 192, "m": 5, "n": 5, "k": 64}
    assert {operand.name: operand.shape({"n": 5}) for operand in scores.operands} == {
        "x": (192, 5, 64),
        "y": (192, 5, 64),
        "bias": (5,),
        "residual": (192, 5, 5),
        "out": (192, 5, 5),
    }


def test_the_symbol_of_a_batched_workload_may_be_summed_over() -> None:
    context = make_workload("batch_matmul_nn", {"b": 192, "m": "T", "n": 64, "k": "T"})
    assert context.symbols == ("n",)
    assert str(context) == "batch_matmul_nn(b=192, m=T, n=64, k=T)"


@pytest.mark.parametrize(
    ("change", "field", "problem", "remedy"),
    [
        ({"op": "convolve"}, "op", "'convolve' is not in the catalogue", "one of: attention"),
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
        ({"dtype": "float8"}, "dtype", "'float8' is not a dtype", "one of: float32"),
        ({"dtype": {"x": 1}}, "dtype.x", "1 is not a dtype", "float32"),
        ({"dtype": {"y": "int8"}}, "dtype", "'y' is not a tensor of the program", "out, x, w"),
        ({"epilogue": "bias"}, "epilogue", "'bias' is not a list of names", "any of: bias"),
        ({"epilogue": [1]}, "epilogue", "[1] is not a list of names", "any of"),
        ({"epilogue": {"bias": 1}}, "epilogue", "is not a list of names", "any of"),
        ({"epilogue": ["swish"]}, "epilogue", "'swish' is not known", "any of"),
        ({"epilogue": ["bias", "relu", "bias"]}, "epilogue", "bias", "each operand once"),
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
    plain = make_workload("dense", ARGS)
    nothing: list[Any] = [[], None]
    for epilogue in nothing:
        assert workload_from_json({"op": "dense", "args": ARGS, "epilogue": epilogue}) == plain
