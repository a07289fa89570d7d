"""Every attribute of Relax's operators that are translated: read, so that the program is right, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from shapewright.models.lifted import LiftedOp, Lifting, unviewed
from shapewright.models.lifting import lift_graph
from shapewright.models.relax_model import Read, read_function
from tests.shapewright.models.checking import TARGET
from tests.shares import every
from tuner.program.reference import compute

OP, NN = relax.op, relax.op.nn
ROW, IMAGE, LINE, ROOM = (6, 8), (1, 4, 35, 35), (2, 4, 9), (1, 4, 5, 6, 7)
HEADS = (2, 5, 2, 8)


def function_of(call: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], dtype: str) -> Any:
    """A module whose main function is one call; its weights are all inputs but the first."""
    params = [relax.Var(f"x{n}", relax.TensorType(shape, dtype)) for n, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params, attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(call(*params))
        builder.emit_func_output(out)
    return builder.finalize()


def lifting_of(module: Any) -> tuple[Read, Lifting]:
    read = read_function(module["main"])
    return read, lift_graph(read.model.graph, TARGET)


def of_tvm(module: Any, inputs: Mapping[str, Any]) -> Any:
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs.values())).numpy()


def of_program(op: LiftedOp, inputs: Mapping[str, Any]) -> Any:
    (out,) = compute(op.workload, [operand.value(inputs) for operand in op.operands], {})
    return unviewed(out, op.output_view, [dim.evaluate({}) for dim in op.output_shape])


def inputs_of(module: Any) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    shapes = {str(param.name): [int(dim) for dim in param.ty.shape.values] for param in module["main"].params}
    dtypes = {str(param.name): str(param.ty.dtype) for param in module["main"].params}
    return {name: rng.standard_normal(shape).astype(dtypes[name]) for name, shape in shapes.items()}


Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], bool]
"""A call, the shapes of its inputs, and whether it is lifted."""


def _conv2d(lifted: bool, weight: tuple[int, ...] = (4, 4, 3, 3), **attrs: Any) -> Case:
    return lambda x, w: NN.conv2d(x, w, **attrs), (IMAGE, weight), lifted


def _pool(op: Any, lifted: bool, **attrs: Any) -> Case:
    return lambda x: op(x, **{"pool_size": (3, 3), **attrs}), (IMAGE,), lifted


def _attention(lifted: bool, *shapes: tuple[int, ...], **attrs: Any) -> Case:
    given = (HEADS, *(shapes or (HEADS, HEADS)))
    return lambda *x: NN.attention(*x, **attrs), given, lifted


CASES: dict[str, Case] = {
    "matmul": (OP.matmul, (ROW, (8, 4)), True),
    "matmul out_dtype": (lambda x, w: OP.matmul(x, w, out_dtype="float64"), (ROW, (8, 4)), False),
    "conv1d": (lambda x, w: NN.conv1d(x, w, padding=(1, 1), strides=2, dilation=2), (LINE, (4, 4, 3)), True),
    "conv1d sides": (lambda x, w: NN.conv1d(x, w, padding=(0, 1)), (LINE, (4, 4, 3)), True),
    "conv1d out_layout": (lambda x, w: NN.conv1d(x, w, out_layout="NWC"), (LINE, (4, 4, 3)), False),
    "conv2d": _conv2d(True, strides=(2, 2), padding=(1, 1), dilation=(2, 2)),
    "conv2d groups": _conv2d(True, (8, 2, 3, 3), groups=2),
    "conv2d strides": _conv2d(True, strides=(1, 2)),
    "conv2d sides": _conv2d(True, padding=(0, 0, 1, 1)),
    "conv2d data_layout": _conv2d(False, (4, 35, 3, 3), data_layout="NHWC"),
    "conv2d kernel_layout": _conv2d(False, (3, 3, 4, 4), kernel_layout="HWIO"),
    "conv2d out_layout": _conv2d(False, out_layout="NHWC"),
    "conv2d out_dtype": _conv2d(False, out_dtype="float64"),
    "conv3d": (lambda x, w: NN.conv3d(x, w, padding=1), (ROOM, (4, 4, 3, 3, 3)), True),
    "conv3d out_layout": (lambda x, w: NN.conv3d(x, w, out_layout="NDHWC"), (ROOM, (4, 4, 3, 3, 3)), False),
    "max_pool2d": _pool(NN.max_pool2d, True, strides=(2, 2), padding=(1, 1), dilation=(2, 2)),
    "max_pool2d sides": _pool(NN.max_pool2d, True, padding=(0, 0, 1, 1)),
    "max_pool2d ceil_mode": _pool(NN.max_pool2d, True, strides=(2, 2), pool_size=(2, 2), ceil_mode=True),
    "max_pool2d in the padding": _pool(NN.max_pool2d, False, strides=(7, 7), padding=(3, 3), ceil_mode=True),
    "max_pool2d layout": _pool(NN.max_pool2d, False, layout="NHWC"),
    "max_pool2d out_layout": _pool(NN.max_pool2d, False, out_layout="NHWC"),
    "avg_pool2d": _pool(NN.avg_pool2d, True, strides=(2, 2), dilation=(2, 2)),
    "avg_pool2d dilation and padding": _pool(NN.avg_pool2d, False, padding=(1, 1), dilation=(2, 2)),
    "avg_pool2d padding": _pool(NN.avg_pool2d, True, padding=(1, 1)),
    "avg_pool2d count_include_pad": _pool(NN.avg_pool2d, True, padding=(1, 1), count_include_pad=True),
    "avg_pool2d ceil_mode": _pool(NN.avg_pool2d, True, strides=(2, 2), pool_size=(2, 2), ceil_mode=True),
    "avg_pool2d beyond the padding": _pool(
        NN.avg_pool2d, False, strides=(2, 2), pool_size=(2, 2), ceil_mode=True, count_include_pad=True
    ),
    "avg_pool2d out_layout": _pool(NN.avg_pool2d, False, out_layout="NHWC"),
    "layer_norm": (lambda x, g, b: NN.layer_norm(x, g, b, axes=[-1], epsilon=0.1), (ROW, (8,), (8,)), True),
    "layer_norm axes": (lambda x, g, b: NN.layer_norm(x, g, b, axes=[0]), (ROW, (6,), (6,)), False),
    "layer_norm center": (lambda x, g, b: NN.layer_norm(x, g, b, axes=[-1], center=False), (ROW, (8,), (8,)), False),
    "layer_norm scale": (lambda x, g, b: NN.layer_norm(x, g, b, axes=[-1], scale=False), (ROW, (8,), (8,)), False),
    "rms_norm": (lambda x, g: NN.rms_norm(x, g, axes=[-1], epsilon=0.1), (ROW, (8,)), True),
    "rms_norm axes": (lambda x, g: NN.rms_norm(x, g, axes=[0]), (ROW, (6,)), False),
    "softmax": (NN.softmax, (ROW,), True),
    "softmax axis": (lambda x: NN.softmax(x, axis=0), (ROW,), False),
    "attention": _attention(True),
    "attention scale": _attention(True, scale=tirx.FloatImm("float32", 0.7)),
    "attention from the start": _attention(True, (2, 9, 2, 8), (2, 9, 2, 8), causal_mask="TopLeft"),
    "attention from the end": _attention(True, (2, 9, 2, 8), (2, 9, 2, 8), causal_mask="BottomRight"),
    "attention of few keys": _attention(True, (2, 3, 2, 8), (2, 3, 2, 8), causal_mask="TopLeft"),
    "attention of few keys from the end": _attention(False, (2, 3, 2, 8), (2, 3, 2, 8), causal_mask="BottomRight"),
    "attention bias": _attention(True, HEADS, HEADS, (2, 2, 5, 5)),
    "attention bias of all heads": _attention(True, HEADS, HEADS, (2, 1, 5, 5)),
    "leakyrelu": (lambda x: NN.leakyrelu(OP.exp(x), alpha=0.3), (ROW,), True),
    "mean": (lambda x: OP.mean(x, axis=[-1], keepdims=True), (ROW,), True),
    "sum": (lambda x: OP.sum(x, axis=0), (ROW,), True),
    "max": (OP.max, (ROW,), True),
    "min": (OP.min, (ROW,), True),
    "gelu": (NN.gelu, (ROW,), True),
    "gelu_tanh": (NN.gelu_tanh, (ROW,), True),
    "round": (lambda x: OP.exp(OP.round(x)), (ROW,), True),
    "floor": (lambda x: OP.exp(OP.floor(x)), (ROW,), True),
}


@pytest.mark.parametrize("name", every(2, CASES))
def test_an_attribute_is_read_or_refused(name: str) -> None:
    call, shapes, is_lifted = CASES[name]
    module = function_of(call, shapes, "float32")
    inputs = inputs_of(module)
    if "round" in name:
        inputs["x0"][0] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5, -3.5]
    _, lifting = lifting_of(module)
    assert bool(lifting.ops) == is_lifted, lifting.left
    if not is_lifted:
        assert lifting.left
        return
    (op,) = lifting.ops
    np.testing.assert_allclose(of_program(op, inputs), of_tvm(module, inputs), rtol=1e-4, atol=1e-5)


def test_short_floats_may_be_summed_in_float32() -> None:
    module = function_of(lambda x, w: OP.matmul(x, w, out_dtype="float32"), (ROW, (8, 4)), "float16")
    _, lifting = lifting_of(module)
    inputs = inputs_of(module)
    np.testing.assert_allclose(of_program(lifting.ops[0], inputs), of_tvm(module, inputs), rtol=1e-4, atol=1e-5)
    assert lifting.ops[0].workload.outputs[0].dtype == "float32"


def test_rows_that_a_bias_hides_whole_are_nan_as_tvm_has_them() -> None:
    call, shapes, _ = CASES["attention bias"]
    module = function_of(call, shapes, "float32")
    inputs = inputs_of(module)
    inputs["x3"][:, :, 1] = -np.inf
    _, lifting = lifting_of(module)
    found, right = of_program(lifting.ops[0], inputs), of_tvm(module, inputs)
    assert np.isnan(right[:, 1]).all()
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
