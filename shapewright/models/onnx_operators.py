"""ONNX's operators in neutral terms, with the shapes of what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shapewright.models.graph import ONE, CannotLift, Input, Shape
from shapewright.models.onnx_values import Values, broadcast_shapes, constants, reshaped, windows
from shapewright.models.translated import Translated, clamped, literal, power

ELEMENTWISE_NAMES: Mapping[str, str] = {
    **{name: name.lower() for name in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Abs", "Neg", "Sin")},
    **{name: name.lower() for name in ("Cos", "Floor", "Round", "Reciprocal", "HardSwish", "Softplus")},
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div")},
    "Max": "maximum",
    "Min": "minimum",
}
"""By name the neutral operation: tensors and numbers in the same order."""


@dataclass(frozen=True, slots=True)
class Call:
    """One node of an ONNX graph: its inputs, their shapes, numbers among them, and known integers."""

    op: str
    inputs: tuple[Input, ...]
    attrs: Mapping[str, Any]
    shapes: tuple[Shape | None, ...]
    integers: tuple[Values | None, ...]
    opset: int

    def input(self, position: int) -> Input:
        return self.inputs[position] if position < len(self.inputs) else None

    def shape(self, position: int) -> Shape:
        """Raises CannotLift where it is not known."""
        shape = self.shapes[position] if position < len(self.shapes) else None
        if shape is None:
            raise CannotLift(f"the shape of input {position} is not known")
        return shape

    def listed(self, position: int, name: str) -> list[int] | None:
        """Integers that older operator sets have as an attribute, newer ones as an input."""
        if name in self.attrs:
            return list(self.attrs[name])
        if self.input(position) is None:
            return None
        return constants(self.integers[position], name)


Result = tuple[Translated, Shape | None]


def _elementwise(call: Call) -> Result:
    if len(call.inputs) > 2:
        raise CannotLift(f"{call.op} of {len(call.inputs)} tensors")
    shapes = [call.shape(place) for place, each in enumerate(call.inputs) if isinstance(each, str)]
    return Translated(ELEMENTWISE_NAMES[call.op], call.inputs), broadcast_shapes(shapes)


def _matmul(call: Call) -> Result:
    x, y = call.shape(0), call.shape(1)
    if min(len(x), len(y)) < 2:
        raise CannotLift("a product of vectors")
    shape = (*broadcast_shapes([x[:-2], y[:-2]]), x[-2], y[-1])
    return Translated("matmul", call.inputs), shape


def _gemm(call: Call) -> Result:
    attrs = call.attrs
    if attrs.get("transA", 0) or attrs.get("alpha", 1.0) != 1 or (len(call.inputs) > 2 and attrs.get("beta", 1.0) != 1):
        raise CannotLift("transA, or alpha or beta that are not 1")
    is_nk, w = bool(attrs.get("transB", 0)), call.shape(1)
    return Translated("linear" if is_nk else "matmul", call.inputs), (call.shape(0)[0], w[0] if is_nk else w[1])


def _window_attrs(call: Call, rank: int) -> dict[str, tuple[int, ...]]:
    attrs = call.attrs
    if attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise CannotLift(f"auto_pad {attrs['auto_pad']}")
    pads = tuple(attrs.get("pads", (0,) * 2 * rank))
    if pads[:rank] != pads[rank:]:
        raise CannotLift(f"pads {list(pads)} differ between the sides")
    return {
        "stride": tuple(attrs.get("strides", (1,) * rank)),
        "pad": pads[:rank],
        "dilation": tuple(attrs.get("dilations", (1,) * rank)),
    }


def _conv(call: Call) -> Result:
    x, w = call.shape(0), call.shape(1)
    attrs = _window_attrs(call, len(w) - 2)
    shape = (x[0], w[0], *windows(x, w[2:], attrs))
    return Translated("conv", call.inputs, {**attrs, "groups": call.attrs.get("group", 1), "transposed": False}), shape


def _conv_transpose(call: Call) -> Result:
    x, w = call.shape(0), call.shape(1)
    if any(call.attrs.get("output_padding", ())) or "output_shape" in call.attrs:
        raise CannotLift("output_padding or output_shape")
    attrs, groups = _window_attrs(call, len(w) - 2), call.attrs.get("group", 1)
    parts = zip(x[2:], w[2:], attrs["stride"], attrs["pad"], attrs["dilation"], strict=True)
    spatial = tuple((size - 1) * step - 2 * pad + (width - 1) * wide + 1 for size, width, step, pad, wide in parts)
    shape = (x[0], w[1] * groups, *spatial)
    return Translated("conv", call.inputs, {**attrs, "groups": groups, "transposed": True}), shape


def _pool(call: Call) -> Result:
    x = call.shape(0)
    window = tuple(call.attrs["kernel_shape"])
    attrs = _window_attrs(call, len(window))
    if call.attrs.get("ceil_mode", 0):
        raise CannotLift("ceil_mode")
    if call.op == "AveragePool" and any(attrs["pad"]) and not call.attrs.get("count_include_pad", 0):
        raise CannotLift("its means do not count the padding")
    shape = (*x[:2], *windows(x, [ONE * width for width in window], attrs))
    op = "max_pool" if call.op == "MaxPool" else "avg_pool"
    return Translated(op, call.inputs[:1], {**attrs, "window": window}), shape


def _global_mean(call: Call) -> Result:
    x = call.shape(0)
    attrs = {"kind": "mean", "axes": list(range(2, len(x))), "keep": True}
    return Translated("reduce", call.inputs, attrs), (*x[:2], *(ONE for _ in x[2:]))


def _norm(op: str) -> Callable[[Call], Result]:
    def translate(call: Call) -> Result:
        x = call.shape(0)
        axis = call.attrs.get("axis", -1)
        attrs = {"rank": -axis if axis < 0 else len(x) - axis, "eps": call.attrs.get("epsilon", 1e-5)}
        return Translated(op, call.inputs, attrs), x

    return translate


def _batch_norm(call: Call) -> Result:
    if call.attrs.get("training_mode", 0):
        raise CannotLift("its statistics are those of the batch")
    return Translated("batch_norm", call.inputs, {"eps": call.attrs.get("epsilon", 1e-5)}), call.shape(0)


def _softmax(call: Call) -> Result:
    x = call.shape(0)
    axis = call.attrs.get("axis", -1 if call.opset >= 13 else 1)
    if call.opset < 13 and axis % len(x) != len(x) - 1:
        raise CannotLift("it is over several axes, as before operator set 13")
    return Translated("softmax", call.inputs, {"axis": axis}), x


def _attention(call: Call) -> Result:
    q, v = call.shape(0), call.shape(2)
    if len(q) != 4 or len(call.inputs) > 4 or call.attrs.get("softcap", 0.0) or call.attrs.get("qk_matmul_output_mode"):
        raise CannotLift("it is of three axes, with a cache, or with a cap")
    attrs = {"causal": bool(call.attrs.get("is_causal", 0)), "scale": call.attrs.get("scale")}
    return Translated("attention", (*call.inputs, None)[:4], attrs), (*q[:3], v[3])


def _reduce(call: Call) -> Result:
    x = call.shape(0)
    axes = call.listed(1, "axes") or list(range(len(x)))
    axes, keep = [axis % len(x) for axis in axes], bool(call.attrs.get("keepdims", 1))
    shape = tuple(ONE if axis in axes else dim for axis, dim in enumerate(x) if keep or axis not in axes)
    kind = call.op.removeprefix("Reduce").lower()
    return Translated("reduce", call.inputs[:1], {"kind": kind, "axes": axes, "keep": keep}), shape


# -- elementwise with attributes ------------------------------------------------------------------------------------
def _gelu(call: Call) -> Result:
    op = "gelu_tanh" if call.attrs.get("approximate", "none") == "tanh" else "gelu"
    return Translated(op, call.inputs), call.shape(0)


def _sloped(op: str, default: float) -> Callable[[Call], Result]:
    return lambda call: (
        Translated(op, call.inputs, {"slope": literal(call.attrs.get("alpha", default))}),
        call.shape(0),
    )


def _hard_sigmoid(call: Call) -> Result:
    if abs(call.attrs.get("alpha", 0.2) - 1 / 6) > 1e-6 or abs(call.attrs.get("beta", 0.5) - 0.5) > 1e-6:
        raise CannotLift("another slope than 1/6")
    return Translated("hardsigmoid", call.inputs), call.shape(0)


def _clip(call: Call) -> Result:
    low, high = call.attrs.get("min", call.input(1)), call.attrs.get("max", call.input(2))
    return clamped(call.inputs[0], low, high), call.shape(0)


def _pow(call: Call) -> Result:
    return power(call.inputs[0], call.input(1)), call.shape(0)


# -- views ----------------------------------------------------------------------------------------------------------
def _reshape(call: Call) -> Result:
    wanted = call.integers[1]
    shape = None if wanted is None else reshaped(call.shape(0), wanted, not call.attrs.get("allowzero", 0))
    return Translated("reshape", call.inputs[:1]), shape


def _flatten(call: Call) -> Result:
    x, axis = call.shape(0), call.attrs.get("axis", 1)
    ends = x[:axis], x[axis:]
    shape = []
    for part in ends:
        size = ONE
        for dim in part:
            size = size * dim
        shape.append(size)
    return Translated("reshape", call.inputs[:1]), tuple(shape)


def _unsqueeze(call: Call) -> Result:
    x, axes = call.shape(0), call.listed(1, "axes") or []
    rank = len(x) + len(axes)
    places, rest = {axis % rank for axis in axes}, iter(x)
    return Translated("reshape", call.inputs[:1]), tuple(ONE if n in places else next(rest) for n in range(rank))


def _squeeze(call: Call) -> Result:
    x, axes = call.shape(0), call.listed(1, "axes")
    gone = {axis % len(x) for axis in axes} if axes is not None else {n for n, dim in enumerate(x) if dim == ONE}
    return Translated("reshape", call.inputs[:1]), tuple(dim for n, dim in enumerate(x) if n not in gone)


def _transpose(call: Call) -> Result:
    x = call.shape(0)
    order = tuple(call.attrs.get("perm", tuple(reversed(range(len(x))))))
    return Translated("permute", call.inputs, {"order": order}), tuple(x[axis] for axis in order)


def _expand(call: Call) -> Result:
    wanted = call.integers[1]
    shape = None if wanted is None else broadcast_shapes([call.shape(0), wanted])
    return Translated("expand", call.inputs[:1]), shape


def _identity(call: Call) -> Result:
    return Translated("identity", call.inputs[:1]), call.shape(0)


TRANSLATIONS: Mapping[str, Callable[[Call], Result]] = {
    **dict.fromkeys(ELEMENTWISE_NAMES, _elementwise),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    "GlobalAveragePool": _global_mean,
    "LayerNormalization": _norm("layer_norm"),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _norm("rms_norm")),
    "BatchNormalization": _batch_norm,
    "Softmax": _softmax,
    "Attention": _attention,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), _reduce),
    "Gelu": _gelu,
    "LeakyRelu": _sloped("leaky_relu", 0.01),
    "Elu": _sloped("elu", 1.0),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Pow": _pow,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Expand": _expand,
    **dict.fromkeys(("Identity", "Dropout"), _identity),
}
"""By name what translates a node, and tells the shape that it gives. Raises CannotLift with the reason."""
