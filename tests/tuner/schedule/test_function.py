"""The arguments of compiled kernels: one symbol for each distinct dynamic extent, constants as they are packed."""

from __future__ import annotations

import pytest

from tuner.program.job.build import make_workload, workload_from_json
from tuner.schedule.function import dim_expr, extents, operand_dims, operand_shapes, symbols
from tuner.schedule.layout import PackLayout
from tuner.schedule.tir import i64


def texts(shape: tuple[object, ...]) -> list[str]:
    return [str(size).replace("T.int64(", "").replace(")", "") for size in shape]


def test_constants_stay_constants_and_dims_become_symbols() -> None:
    workload = make_workload("dense", {"m": "16*T", "n": 50, "k": 8}, epilogue=["bias", "add"])
    values = symbols(workload)
    assert list(values) == ["m"]
    shapes = operand_shapes(workload, values, {"w": PackLayout(16)})
    assert {name: texts(shape) for name, shape in shapes.items()} == {
        "x": ["m", "8"],
        "w": ["4", "8", "16"],
        "bias": ["50"],
        "residual": ["m", "50"],
        "out": ["m", "50"],
    }
    assert list(shapes) == ["x", "w", "bias", "residual", "out"]
    assert texts(operand_shapes(workload, values, {})["w"]) == ["50", "8"]


def test_packed_constants_may_have_dynamic_dims() -> None:
    workload = make_workload("dense", {"m": "T", "n": "3*S", "k": "U"})
    for layout, shape in (
        (PackLayout(16), ["(n+15)//16", "k", "16"]),
        (PackLayout(16, 4, 128), ["(n+15)//16", "(k+3)//4+1", "64"]),
    ):
        assert [str(dim) for dim in operand_dims(workload, {"w": layout})["w"]] == shape


def test_an_extent_of_several_axes_is_one_symbol_of_every_operand() -> None:
    workload = make_workload("batch_matmul_nn", {"b": "B", "m": "T", "n": 64, "k": "T"}, epilogue=["add"])
    values = symbols(workload)
    batch, rows = values
    assert {name: texts(shape) for name, shape in operand_shapes(workload, values, {}).items()} == {
        "x": [batch, rows, rows],
        "y": [batch, rows, "64"],
        "residual": [batch, rows, "64"],
        "out": [batch, rows, "64"],
    }


@pytest.mark.parametrize(("args", "names"), [({"m": "S", "n": "S", "k": "S"}, ["m"]), ({"m": 4, "n": 4, "k": 4}, [])])
def test_equal_extents_share_one_symbol(args: dict[str, object], names: list[str]) -> None:
    workload = make_workload("matmul", args)
    values = symbols(workload)
    assert list(values) == names
    result = extents(workload, values)
    assert list(result) == ["m", "n", "k"]
    assert len({str(size) for size in result.values()}) == 1
    assert all(str(size.ty if hasattr(size, "ty") else size.dtype).endswith("int64") for size in result.values())


def test_dims_may_be_expressions_over_the_symbols() -> None:
    text = "out[p] = sum(r) x[2*p + r] * w[r]"
    workload = workload_from_json({"program": text, "extents": {"p": "P", "r": 3}})
    values = symbols(workload)
    assert texts(operand_shapes(workload, values, {})["x"]) == ["m * 2 + 1"]


def test_quotients_and_remainders_round_down() -> None:
    workload = workload_from_json({"program": "out[i] = x[i // 4, i % 4]", "extents": {"i": 22}})
    assert {name: texts(shape) for name, shape in operand_shapes(workload, {}, {}).items()} == {
        "x": ["6", "4"],
        "out": ["22"],
    }
    quotient = workload_from_json({"program": "out[i] = x[i]", "extents": {"i": "(T + 3) // 4"}})
    (expr,) = quotient.symbol_exprs.values()
    assert [int(dim_expr(expr, {"T": i64(size)})) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
