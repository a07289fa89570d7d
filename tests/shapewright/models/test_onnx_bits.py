"""Weights of four bits in ONNX Runtime's MatMulNBits: what they are, and which nodes are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from shapewright.models.onnx_schemas import RUNTIMES
from tests.shapewright.models.onnx_cases import built, check, reasons_of

ROWS, N, RANDOM = 3, 5, np.random.default_rng(0)


def model_of(k: int, block: int, zeros: str = "", *, flat: bool = True, **attrs: Any) -> tuple[Any, dict[str, Any]]:
    """A model of one product, and its values: what ``zeros`` are ("", "uint8", "float32"), and whether scales and zero
    points are one after the other."""
    blocks = -(-k // block)
    numbers = RANDOM.integers(0, 16, (N, blocks, block))
    scales = RANDOM.uniform(0.5, 1.5, (N, blocks)).astype(np.float32)
    offsets = {
        "": np.full((N, blocks), 8), "uint8": RANDOM.integers(0, 16, (N, blocks)),
        "float32": RANDOM.uniform(0, 15, (N, blocks)).astype(np.float32),
    }[zeros]  # fmt: skip
    packed = (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)
    constants = {"w": packed, "s": scales.ravel() if flat else scales}
    if zeros:
        if zeros == "uint8":
            pairs = np.pad(offsets, [(0, 0), (0, blocks % 2)]).reshape(N, -1, 2)
            stored = (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8)
        else:
            stored = offsets
        constants["z"] = stored.ravel() if flat else stored
    x = RANDOM.standard_normal((ROWS, k)).astype(np.float32)
    weight = ((numbers - offsets[..., None]) * scales[..., None].astype(np.float64)).reshape(N, -1)[:, :k]
    names = [*"xws", *("z" if zeros else "")]
    attrs = {"K": k, "N": N, "bits": 4, "block_size": block} | attrs
    node = helper.make_node("MatMulNBits", names, ["y"], domain=RUNTIMES, **attrs)
    after = helper.make_node("Relu", ["y"], ["out"])
    y = x @ weight.T
    values = {"x": x, **constants, "y": y.astype(np.float32), "out": np.maximum(y, 0).astype(np.float32)}
    return built([node, after], {"x": x.shape}, constants), values


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "by column"])
@pytest.mark.parametrize("zeros", ["", "uint8", "float32"])
@pytest.mark.parametrize(("k", "block"), [(64, 16), (70, 32), (32, 32), (96, 32)])
def test_a_product_is_what_its_numbers_are(k: int, block: int, zeros: str, flat: bool) -> None:
    model, values = model_of(k, block, zeros, flat=flat)
    found = check(model, [values], minimum=1)
    assert not found.left
    assert "out" in found.compared


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"bits": 8}, "do not have four bits"),
        ({"weight_prepacked": 1}, "packed for one CPU"),
        ({"K": 65}, "sizes that it names"),
        ({"N": 6}, "sizes that it names"),
        ({"axis": 1}, "no attribute axis"),
    ],
)
def test_what_is_not_known_is_left(attrs: dict[str, Any], reason: str) -> None:
    model, _ = model_of(64, 32, **attrs)
    assert reason in reasons_of(model)["y"]


def test_a_weight_that_is_new_at_every_call_is_left() -> None:
    model, _ = model_of(64, 32)
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("w", 2, [N, 2, 16]))
    assert "new at every call" in reasons_of(model)["y"]


@pytest.mark.parametrize("further", [["s"], ["", "s"]], ids=["an order of steps", "a bias"])
def test_what_else_a_product_may_have_is_left(further: list[str]) -> None:
    model, _ = model_of(64, 32, "uint8")
    model.graph.node[0].input.extend(further)
    assert "its steps have an order, or it has a bias" in reasons_of(model)["y"]


@pytest.mark.parametrize("zeros", ["", "uint8"])
def test_onnx_runtime_computes_the_same(zeros: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, values = model_of(96, 32, zeros)
    model.ir_version = 10
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": values["x"]})
    np.testing.assert_allclose(found, values["out"], rtol=1e-3, atol=1e-2)
