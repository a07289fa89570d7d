"""Models whose numbers are bytes, as ONNX Runtime's quantisation writes them: what they become, and what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from shapewright.models.lifting import lift_graph
from shapewright.models.onnx_model import from_onnx
from tests.shapewright.models.checking import TARGET
from tests.shapewright.models.onnx_cases import built, check, reasons_of, values_of

RANDOM = np.random.default_rng(0)
ROWS, N, K = 5, 24, 40
X = RANDOM.standard_normal((ROWS, K)).astype(np.float32)
BIAS = RANDOM.standard_normal(N).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def numbers(*shape: int, dtype: str = "int8") -> Any:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def scales(*shape: int) -> Any:
    return RANDOM.uniform(0.005, 0.02, shape).astype(np.float32)


def checked(model: Any, *inputs: Any, minimum: int = 1) -> Any:
    """What was found of a model that ONNX's evaluator has run; casts that are no node of ONNX are carried out here."""
    values = values_of(model, list(inputs))
    for each in from_onnx(model).graph:
        if each.op in ("cast", "reshape") and each.name not in values and each.sources[0] in values:
            source = values[each.sources[0]]
            shape = [dim.constant for dim in each.shape or ()]
            values[each.name] = source.astype(each.dtype).reshape(shape)
    return check(model, [values], minimum=minimum)


def workloads(model: Any) -> list[str]:
    return [str(op.workload) for op in lift_graph(from_onnx(model).graph, TARGET).ops]


def dynamic(**constants: Any) -> Any:
    """A linear layer, of `quantize_dynamic`."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("MatMulInteger", "q w zero" + (" wz" if "wz" in constants else ""), "sums"),
        node("Cast", "sums", "floats", to=1),
        node("Mul", "scale ws", "both"),
        node("Mul", "floats both", "scaled"),
        node("Add", "scaled bias", "out"),
    ]
    held = {"w": numbers(K, N), "ws": np.float32(0.01), "bias": BIAS} | constants
    return built(nodes, {"x": X.shape}, held, opset=19)


@pytest.mark.parametrize(
    "constants",
    [{}, {"wz": np.zeros((), np.int8)}, {"ws": scales(N), "wz": np.zeros(N, np.int8)}],
    ids=["", "a zero point of 0", "by column"],
)
def test_rows_are_quantised_and_multiplied_as_integers(constants: dict[str, Any]) -> None:
    model = dynamic(**constants)
    found = checked(model, X)
    assert {"q", "sums", "out"} <= found.compared
    assert not found.left
    product = next(each for each in workloads(model) if "sum(k)" in each or "int_matmul" in each)
    assert "int_matmul" in product


def static(weight: Any, scale: Any, zero: Any, axis: int = 1) -> Any:
    """A linear layer between pairs of QuantizeLinear and DequantizeLinear."""
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("DequantizeLinear", "q xs xz", "rounded"),
        node("DequantizeLinear", "w ws wz", "weight", axis=axis),
        node("MatMul", "rounded weight", "product"),
        node("Add", "product bias", "out"),
    ]
    held = {"xs": np.float32(0.02), "xz": np.uint8(120), "w": weight, "ws": scale, "wz": zero, "bias": BIAS}
    return built(nodes, {"x": X.shape}, held, opset=19)


@pytest.mark.parametrize(
    ("weight", "scale", "zero", "kept"),
    [
        (numbers(K, N), scales(N), np.zeros(N, np.int8), True),
        (numbers(K, N), np.float32(0.01), np.zeros((), np.int8), True),
        (numbers(K, N), scales(N), numbers(N), False),
        (numbers(K, N, dtype="uint8"), np.float32(0.01), np.uint8(128), False),
    ],
    ids=["by column", "one scale", "zero points", "uint8"],
)
def test_what_is_dequantised_is_multiplied_as_floats(weight: Any, scale: Any, zero: Any, kept: bool) -> None:
    """Weights of int8 without zero points stay bytes in memory, others become floats before all calls."""
    model = static(weight, scale, zero)
    found = checked(model, X)
    assert {"rounded", "out"} <= found.compared
    assert not found.left
    lifted = lift_graph(from_onnx(model).graph, TARGET)
    (product,) = (op for op in lifted.ops if op.output == "out")
    assert (dict(product.workload.dtypes)["w"] == "int8") is kept


def test_filters_are_dequantised_before_all_calls() -> None:
    image = RANDOM.standard_normal((2, 3, 9, 9)).astype(np.float32)
    nodes = [
        node("DequantizeLinear", "w ws wz", "weight", axis=0),
        node("DequantizeLinear", "b bs", "bias", axis=0),
        node("Conv", "x weight bias", "y", pads=[1, 1, 1, 1]),
        node("Relu", "y", "out"),
    ]
    held = {"w": numbers(8, 3, 3, 3), "ws": scales(8), "wz": np.zeros(8, np.int8)}
    held |= {"b": numbers(8).astype(np.int32), "bs": scales(8)}
    model = built(nodes, {"x": image.shape}, held, opset=19)
    found = checked(model, image, minimum=2)
    assert "out" in found.compared
    assert not found.left


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [0, 3])
def test_numbers_are_rounded_to_even_and_saturate(dtype: str, zero: int) -> None:
    x = np.array([[-1e9, -300.0, -2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 126.5, 127.5, 254.5, 300.0, 1e9]], np.float32)
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "out")]
    model = built(nodes, {"x": x.shape}, {"s": np.float32(0.5), "z": np.array(zero, dtype)}, opset=19)
    found = checked(model, x)
    assert "out" in found.compared


def test_values_may_be_called_as_exporters_call_them() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "y"),
        node("Relu", "x", "y:0"),
        node("DequantizeLinear", "y s z", "y:1"),
        node("Add", "y:0 y:1", "out"),
    ]
    model = built(nodes, {"x": X.shape}, {"s": np.float32(0.02), "z": np.uint8(3)}, opset=19)
    assert "out" in checked(model, X).compared


def test_a_product_of_bytes_is_quantised_again() -> None:
    nodes = [
        node("QuantizeLinear", "x xs xz", "q"),
        node("QLinearMatMul", "q xs xz w ws wz ys yz", "product"),
        node("DequantizeLinear", "product ys yz", "out"),
    ]
    held = {"xs": np.float32(0.02), "xz": np.uint8(120), "w": numbers(K, N), "ws": np.float32(0.01)}
    held |= {"wz": np.int8(0), "ys": np.float32(0.05), "yz": np.uint8(128)}
    model = built(nodes, {"x": X.shape}, held, opset=19)
    assert "MatMul" not in reasons_of(model)
    assert any("sum(k)" in each or "QLinearMatMul" in each or "matmul" in each for each in workloads(model))


@pytest.mark.parametrize(
    ("nodes", "held", "reason"),
    [
        ([node("MatMulInteger", "q w z wz", "y")], {"w": numbers(K, N), "wz": np.int8(3)}, "has a zero point"),
        ([node("MatMulInteger", "q w z", "y")], {"w": numbers(K, N, dtype="uint8")}, "not of int8"),
        ([node("DequantizeLinear", "q bs", "y", axis=0, block_size=2)], {"bs": scales(3, K)}, "block_size"),
    ],
)
def test_what_is_not_known_is_left(nodes: list[Any], held: dict[str, Any], reason: str) -> None:
    first = node("QuantizeLinear", "x s z", "q")
    last = node("Cast", "y", "out", to=1)
    constants = {"s": np.float32(0.02), "z": np.uint8(0)} | held
    model = built([first, *nodes, last], {"x": X.shape}, constants, opset=21)
    assert reason in reasons_of(model)["y"]
