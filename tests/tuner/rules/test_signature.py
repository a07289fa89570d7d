"""The arguments of compiled kernels: one symbol for each distinct dim, the weight as it is packed."""

from __future__ import annotations

import pytest

from tuner.program.workload import Workload
from tuner.rules.layout import PanelLayout
from tuner.rules.signature import arguments, extents, symbols


def texts(shape: tuple[object, ...]) -> list[str]:
    return [str(size).removeprefix("T.int64(").removesuffix(")") for size in shape]


def test_constants_stay_constants_and_dims_become_symbols() -> None:
    workload = Workload.of("dense", {"m": "16*T", "n": 50, "k": 8}, epilogue=["bias", "add"])
    dims = symbols(workload)
    assert list(dims) == ["m"]
    shapes = arguments(workload, dims, PanelLayout(16))
    assert list(shapes) == ["x", "w", "bias", "residual", "out"]
    assert {name: texts(shape) for name, shape in shapes.items()} == {
        "x": ["m", "8"],
        "w": ["4", "8", "16"],
        "bias": ["50"],
        "residual": ["m", "50"],
        "out": ["m", "50"],
    }
    assert texts(arguments(workload, dims, None)["w"]) == ["50", "8"]


def test_a_dim_that_several_axes_read_is_one_symbol_of_every_operand() -> None:
    workload = Workload.of("batch_matmul_nn", {"b": "B", "m": "T", "n": 64, "k": "T"}, epilogue=["add"])
    dims = symbols(workload)
    assert list(dims) == ["b", "m"]
    assert {name: texts(shape) for name, shape in arguments(workload, dims, None).items()} == {
        "a": ["b", "m", "m"],
        "b": ["b", "m", "64"],
        "residual": ["b", "m", "64"],
        "out": ["b", "m", "64"],
    }


@pytest.mark.parametrize(("args", "names"), [({"m": "S", "n": "S", "k": "S"}, ["m"]), ({"m": 4, "n": 4, "k": 4}, [])])
def test_equal_dims_share_one_symbol(args: dict[str, object], names: list[str]) -> None:
    workload = Workload.of("matmul", args)
    dims = symbols(workload)
    assert list(dims) == names
    found = extents(workload, dims)
    assert len({str(size) for size in found.values()}) == 1
    assert all(str(size.ty if hasattr(size, "ty") else size.dtype).endswith("int64") for size in found.values())
