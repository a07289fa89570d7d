"""The arguments of compiled kernels: one symbol for each distinct dim, the weight as it is packed."""

from __future__ import annotations

import pytest

from tuner.program.build import make_workload
from tuner.rules.layout import PanelLayout
from tuner.rules.signature import extents, operand_shapes, symbols


def texts(shape: tuple[object, ...]) -> list[str]:
    return [str(size).removeprefix("T.int64(").removesuffix(")") for size in shape]


def test_constants_stay_constants_and_dims_become_symbols() -> None:
    workload = make_workload("dense", {"m": "16*T", "n": 50, "k": 8}, epilogue=["bias", "add"])
    dims = symbols(workload)
    assert list(dims) == ["m"]
    shapes = operand_shapes(workload, dims, {"w": PanelLayout(16)})
    assert list(shapes) == ["x", "w", "bias", "residual", "out"]
    assert {name: texts(shape) for name, shape in shapes.items()} == {
        "x": ["m", "8"],
        "w": ["4", "8", "16"],
        "bias": ["50"],
        "residual": ["m", "50"],
        "out": ["m", "50"],
    }
    assert texts(operand_shapes(workload, dims, {})["w"]) == ["50", "8"]


def test_a_dim_that_several_axes_read_is_one_symbol_of_every_operand() -> None:
    workload = make_workload("batch_matmul_nn", {"b": "B", "m": "T", "n": 64, "k": "T"}, epilogue=["add"])
    dims = symbols(workload)
    assert list(dims) == ["m", "n"]
    assert {name: texts(shape) for name, shape in operand_shapes(workload, dims, {}).items()} == {
        "x": ["m", "n", "n"],
        "y": ["m", "n", "64"],
        "residual": ["m", "n", "64"],
        "out": ["m", "n", "64"],
    }


@pytest.mark.parametrize(("args", "names"), [({"m": "S", "n": "S", "k": "S"}, ["m"]), ({"m": 4, "n": 4, "k": 4}, [])])
def test_equal_dims_share_one_symbol(args: dict[str, object], names: list[str]) -> None:
    workload = make_workload("matmul", args)
    dims = symbols(workload)
    assert list(dims) == names
    sizes = extents(workload, dims)
    assert len({str(size) for size in sizes.values()}) == 1
    assert all(str(size.ty if hasattr(size, "ty") else size.dtype).endswith("int64") for size in sizes.values())
