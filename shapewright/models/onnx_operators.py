"""ONNX's operators in neutral terms, with the shapes of what they give: each as its operator set has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shapewright.models.graph import ONE, CannotLift, Shape
from shapewright.models.onnx_rows import attention, batch_norm, instance_norm, norm, reduce, softmax
from shapewright.models.onnx_schemas import Call, Result, axis_of
from shapewright.models.onnx_values import broadcast_shapes, dims_of, reshaped
from shapewright.models.onnx_windows import conv, conv_transpose, global_mean, pad, pool
from shapewright.models.translated import Translated, celu, clamped, number, power, scaled_elu
from shapewright.models.views import product
from tuner.program.language.dims import DimExpr

ELEMENTWISE_NAMES: Mapping[str, str] = {
    **{name: name.lower() for name in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Abs", "Neg", "Sin")},
    **{name: name.lower() for name in ("Cos", "Floor", "Round", "Reciprocal", "HardSwish", "Softplus", "Mish")},
}
"""The neutral operations of one tensor, by ONNX name."""
BINARY_NAMES: Mapping[str, str] = {
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div")},
    "Max": "maximum",
    "Min": "minimum",
    "Sum": "add",
}
"""The neutral operations of two tensors, by ONNX name."""
FOUR_BITS = 4
NUMPY_BROADCASTS = {"Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "Pow": 7, "Gemm": 7, "And": 7}
"""The operator sets since which operands are broadcast as in NumPy; for the others it is 8."""


def _elementwise(call: Call) -> Result:
    return Translated(ELEMENTWISE_NAMES[call.op], call.tensors(1)), call.shape(0)


def _binary(call: Call) -> Result:
    count = len(call.inputs)
    if count == 1:
        return _identity(call)
    if count != 2 or call.op not in BINARY_NAMES:
        raise CannotLift(f"it is of {count} tensors")
    return Translated(BINARY_NAMES[call.op], (call.operand(0), call.operand(1))), _broadcast(call)


def _broadcast(call: Call) -> Shape:
    """The shape of two operands together. Before NumPy's rules the second one was laid along axes of the first."""
    x, y = call.shape(0), call.shape(1)
    if call.version >= NUMPY_BROADCASTS.get(call.op, 8):
        return broadcast_shapes([x, y])
    axis, is_broadcast = call.attr("axis"), call.attr("broadcast")
    if not is_broadcast and x != y:
        raise CannotLift("operands of different shapes, which operator sets of that time do not broadcast")
    is_behind = len(y) <= len(x) and (axis is None or axis % (len(x) or 1) == len(x) - len(y))
    if not is_behind or broadcast_shapes([x, y]) != x:
        raise CannotLift(f"the second operand is broadcast from axis {axis} on")
    return x


def _matmul(call: Call) -> Result:
    x, y = call.shape(0), call.shape(1)
    if min(len(x), len(y)) < 2:
        raise CannotLift("a product of vectors")
    shape = (*broadcast_shapes([x[:-2], y[:-2]]), x[-2], y[-1])
    return Translated("matmul", call.tensors(2)), shape


def _gemm(call: Call) -> Result:
    has_c, is_nk, w = call.tensor(2) is not None, bool(call.attr("transB")), call.shape(1)
    is_scaled = call.attr("alpha") != 1 or (has_c and call.attr("beta") != 1)
    if call.attr("transA") or is_scaled or len(call.shape(0)) != 2 or len(w) != 2:
        raise CannotLift("transA, or alpha or beta that are not 1, or no matrices")
    shape = (call.shape(0)[0], w[0] if is_nk else w[1])
    is_strict = has_c and call.version < NUMPY_BROADCASTS["Gemm"] and not call.attr("broadcast")
    if has_c and (call.shape(2) != shape if is_strict else broadcast_shapes([call.shape(2), shape]) != shape):
        raise CannotLift("C is not of the product's shape")
    call.attr("beta"), call.attr("broadcast")
    return Translated("linear" if is_nk else "matmul", call.tensors(3)), shape


def _matmul_of_bits(call: Call) -> Result:
    n, block, blocks = call.attr("N"), call.attr("block_size"), call.shape(1)
    if call.attr("bits") != FOUR_BITS or call.attr("weight_prepacked"):
        raise CannotLift("weights that do not have four bits, or are packed for one CPU")
    if call.tensor(4) is not None or call.tensor(5) is not None:
        raise CannotLift("its steps have an order, or it has a bias")
    # How exact activations have to be: they stay as exact as they are.
    call.attr("accuracy_level")
    x, k, count = call.shape(0), call.attr("K"), -(-call.attr("K") // block)
    if len(x) < 2 or [each.constant for each in (x[-1], *blocks)] != [k, n, count, block // 2]:
        raise CannotLift("its operands are not of the sizes that it names")
    return Translated("linear_int4", call.tensors(4), {"block": block}), (*x[:-1], DimExpr.of(n))


# -- elementwise with attributes ------------------------------------------------------------------------------------
def _gelu(call: Call) -> Result:
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if call.attr("approximate") not in names:
        raise CannotLift(f"approximate {call.attr('approximate')}")
    return Translated(names[call.attr("approximate")], call.tensors(1)), call.shape(0)


def _sloped(op: str) -> Callable[[Call], Result]:
    return lambda call: (Translated(op, call.tensors(1), {"slope": number(call.attr("alpha"))}), call.shape(0))


def _selu(call: Call) -> Result:
    alpha, gamma = number(call.attr("alpha")), number(call.attr("gamma"))
    (x,) = call.tensors(1)
    return scaled_elu(x, alpha * gamma, gamma, 1.0), call.shape(0)


def _celu(call: Call) -> Result:
    (x,) = call.tensors(1)
    return celu(x, number(call.attr("alpha"))), call.shape(0)


def _prelu(call: Call) -> Result:
    x, slope = call.shape(0), call.shape(1)
    if broadcast_shapes([x, slope]) != x or (call.version < 7 and len(slope) != len(x)):
        raise CannotLift("its slopes are not broadcast to what they are of")
    return Translated("prelu", (call.operand(0), call.operand(1))), x


def _thresholded(call: Call) -> Result:
    return Translated("thresholded_relu", call.tensors(1), {"limit": number(call.attr("alpha"))}), call.shape(0)


def _hard_sigmoid(call: Call) -> Result:
    if not (abs(call.attr("alpha") - 1 / 6) <= 1e-6 and abs(call.attr("beta") - 0.5) <= 1e-6):
        raise CannotLift("another slope than 1/6")
    return Translated("hardsigmoid", call.tensors(1)), call.shape(0)


def _clip(call: Call) -> Result:
    is_attribute = "min" in call.operator.defaults
    low, high = (call.attr("min"), call.attr("max")) if is_attribute else (call.number(1), call.number(2))
    if any(len(shape or ()) for shape in call.shapes[1:]):
        raise CannotLift("its bounds are no scalars")
    if low is None and high is None:
        return _identity(call)
    return clamped(call.tensor(0), low, high), call.shape(0)


def _pow(call: Call) -> Result:
    return power(call.tensor(0), call.number(1)), _broadcast(call)


def _where(call: Call) -> Result:
    shape = broadcast_shapes([call.shape(n) for n in range(3)])
    return Translated("where", tuple(map(call.operand, range(3)))), shape


def _compared(call: Call) -> Result:
    return Translated("ge", (call.operand(0), call.operand(1))), _broadcast(call)


def _both(call: Call) -> Result:
    return Translated("both", (call.operand(0), call.operand(1))), _broadcast(call)


def _is_nan(call: Call) -> Result:
    return Translated("isnan", call.tensors(1)), call.shape(0)


def _range(call: Call) -> Result:
    start, step = call.number(0), call.number(2)
    if start is None or step is None or step < 1 or start != int(start):
        raise CannotLift("it is none of integers, upwards from a constant")
    call.tensor(1)
    return Translated("range", (), {"least": int(start)}), None


# -- views ----------------------------------------------------------------------------------------------------------
def _reshape(call: Call) -> Result:
    is_attribute = "shape" in call.operator.defaults
    wanted = tuple(ONE * size for size in call.attr("shape") or ()) if is_attribute else dims_of(call.value(1))
    copies_zero = not call.attr("allowzero")
    return Translated("reshape", call.tensors(1)), (
        None if wanted is None else reshaped(call.shape(0), wanted, copies_zero)
    )


def _flatten(call: Call) -> Result:
    x, axis = call.shape(0), call.attr("axis")
    if not -len(x) <= axis <= len(x):
        raise CannotLift(f"there is no axis {axis} of {len(x)}")
    return Translated("reshape", call.tensors(1)), (product(x[:axis]), product(x[axis:]))


def _unsqueeze(call: Call) -> Result:
    x, axes = call.shape(0), call.integers("axes", 1) or []
    rank = len(x) + len(axes)
    places = {axis_of(axis, rank) for axis in axes}
    if len(places) != len(axes):
        raise CannotLift(f"axes {axes} repeat one")
    rest = iter(x)
    return Translated("reshape", call.tensors(1)), tuple(ONE if n in places else next(rest) for n in range(rank))


def _squeeze(call: Call) -> Result:
    x, axes = call.shape(0), call.integers("axes", 1)
    if axes is None and any(dim.constant is None for dim in x):
        raise CannotLift("it drops every axis of size 1, and a dynamic one may be")
    if axes == []:
        raise CannotLift("its axes are empty")
    gone = {n for n, dim in enumerate(x) if dim == ONE} if axes is None else {axis_of(axis, len(x)) for axis in axes}
    return Translated("reshape", call.tensors(1)), tuple(dim for n, dim in enumerate(x) if n not in gone)


def _transpose(call: Call) -> Result:
    x = call.shape(0)
    order = tuple(call.attr("perm") or reversed(range(len(x))))
    if sorted(order) != list(range(len(x))):
        raise CannotLift(f"perm {list(order)} of {len(x)} axes")
    return Translated("permute", call.tensors(1), {"order": order}), tuple(x[axis] for axis in order)


def _concat(call: Call) -> Result:
    shapes = [call.shape(place) for place in range(len(call.inputs))]
    axis = axis_of(call.attr("axis"), len(shapes[0]))
    total = sum((shape[axis] for shape in shapes[1:]), start=shapes[0][axis])
    shape = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    return Translated("cat", call.tensors(len(call.inputs)), {"axis": axis}), shape


def _expand(call: Call) -> Result:
    wanted = dims_of(call.value(1))
    shape = None if wanted is None else broadcast_shapes([call.shape(0), wanted])
    return Translated("expand", call.tensors(1)), shape


def _identity(call: Call) -> Result:
    return Translated("identity", call.tensors(1)), call.shapes[0]


def _dropout(call: Call) -> Result:
    """Nothing at inference. Training is an attribute first, no matter of the operator later, and an input at last."""
    training: Any = call.version < 7 and not call.attr("is_test")
    if call.version >= 12 and call.tensor(2) is not None:
        known = call.value(2)
        training = known is None or bool(known.any())
    if training:
        raise CannotLift("it drops elements, or may")
    call.attr("ratio"), call.attr("seed"), call.tensor(1)  # of training
    return _identity(call)


TRANSLATIONS: Mapping[str, Callable[[Call], Result]] = {
    **dict.fromkeys(ELEMENTWISE_NAMES, _elementwise),
    **dict.fromkeys((*BINARY_NAMES, "Mean"), _binary),
    "MatMul": _matmul,
    "MatMulNBits": _matmul_of_bits,
    "Gemm": _gemm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    "GlobalAveragePool": global_mean,
    "LayerNormalization": norm("layer_norm", 3),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), norm("rms_norm", 2)),
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    **{name: softmax(op) for name, op in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax"))},
    "Attention": attention,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), reduce),
    "Gelu": _gelu,
    "LeakyRelu": _sloped("leaky_relu"),
    "Elu": _sloped("elu"),
    "Selu": _selu,
    "Celu": _celu,
    "PRelu": _prelu,
    "ThresholdedRelu": _thresholded,
    "HardSigmoid": _hard_sigmoid,
    "Pad": pad,
    "Clip": _clip,
    "Pow": _pow,
    "Where": _where,
    "GreaterOrEqual": _compared,
    "And": _both,
    "IsNaN": _is_nan,
    "Range": _range,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Expand": _expand,
    "Identity": _identity,
    "Dropout": _dropout,
}
"""Translations of nodes, by name, which also give the shape of the result. Raise CannotLift with the reason."""
