"""ONNX's operators of windows on images: convolutions, their transposes, pooling and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shapewright.models.graph import ONE, CannotLift, Shape
from shapewright.models.onnx_schemas import Call, Result, axis_of
from shapewright.models.translated import Translated
from shapewright.models.windows import means, positions, round_up
from tuner.program.language.dims import DimExpr


def _windows(shape: Shape, window: Sequence[DimExpr], attrs: Mapping[str, Sequence[int]]) -> Shape:
    """The spatial dims that a convolution or a pooling leaves."""
    parts = zip(shape[2:], window, *(attrs[name] for name in ("stride", "pad", "behind", "dilation")), strict=True)
    return tuple(positions(*part) for part in parts)


def _window_attrs(call: Call, shape: Shape, window: Sequence[DimExpr]) -> dict[str, tuple[int, ...]]:
    rank = len(window)
    attrs = {"stride": tuple(call.attr("strides") or (1,) * rank)}
    attrs["dilation"] = tuple(call.attr("dilations") or (1,) * rank)
    given, auto_pad = tuple(call.attr("pads") or (0,) * 2 * rank), call.attr("auto_pad")
    if any(len(each) != rank for each in attrs.values()) or min((*attrs["stride"], *attrs["dilation"]), default=1) < 1:
        raise CannotLift(f"strides, pads or dilations are none of {rank} axes")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sides = [_same(*part) for part in zip(shape[2:], window, attrs["stride"], attrs["dilation"], strict=True)]
        less, more = tuple(total // 2 for total in sides), tuple(total - total // 2 for total in sides)
        attrs["pad"], attrs["behind"] = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
        return attrs
    if auto_pad not in ("NOTSET", "VALID") or (auto_pad == "VALID" and any(given)):
        raise CannotLift(f"auto_pad {auto_pad}")
    if len(given) != 2 * rank or min(given, default=0) < 0:
        raise CannotLift(f"pads {list(given)} of {rank} axes")
    return {**attrs, "pad": given[:rank], "behind": given[rank:]}


def _same(size: DimExpr, window: DimExpr, stride: int, dilation: int) -> int:
    """The padding of both sides with which an axis of n elements has n / stride windows, rounded up."""
    if window.constant is None or (size.constant is None and stride > 1):
        raise CannotLift("auto_pad of an axis whose size is dynamic")
    length = stride if size.constant is None else size.constant
    return max((-(-length // stride) - 1) * stride + dilation * (window.constant - 1) + 1 - length, 0)


def _spatial(call: Call) -> tuple[Shape, Shape, dict[str, tuple[int, ...]]]:
    """The image, the weight, and the window of a convolution."""
    x, w = call.shape(0), call.shape(1)
    kernel = call.attr("kernel_shape")
    if len(x) != len(w) or len(x) < 3 or (kernel and [dim.constant for dim in w[2:]] != list(kernel)):
        raise CannotLift("the image, the weight and kernel_shape do not agree")
    return x, w, _window_attrs(call, x, w[2:])


def conv(call: Call) -> Result:
    x, w, attrs = _spatial(call)
    shape = (x[0], w[0], *_windows(x, w[2:], attrs))
    return Translated("conv", call.tensors(3), {**attrs, "groups": call.attr("group"), "transposed": False}), shape


def conv_transpose(call: Call) -> Result:
    x, w, attrs = _spatial(call)
    if any(call.attr("output_padding") or ()) or call.attr("output_shape") or attrs["pad"] != attrs["behind"]:
        raise CannotLift("output_padding, output_shape, or pads that differ between the sides")
    if call.attr("auto_pad") not in ("NOTSET", "VALID"):
        raise CannotLift(f"auto_pad {call.attr('auto_pad')}")
    groups = call.attr("group")
    parts = zip(x[2:], w[2:], attrs["stride"], attrs["pad"], attrs["dilation"], strict=True)
    spatial = tuple((size - 1) * step - 2 * pad + (width - 1) * wide + 1 for size, width, step, pad, wide in parts)
    shape = (x[0], w[1] * groups, *spatial)
    return Translated("conv", call.tensors(3), {**attrs, "groups": groups, "transposed": True}), shape


def pool(call: Call) -> Result:
    x, window = call.shape(0), tuple(call.attr("kernel_shape") or ())
    if not window or len(x) != len(window) + 2:
        raise CannotLift("kernel_shape is missing, or not of the image's axes")
    attrs: dict[str, Any] = {"window": window, **_window_attrs(call, x, sizes := [ONE * width for width in window])}
    is_mean, counts, beyond = call.op == "AveragePool", bool(call.attr("count_include_pad")), False
    if call.attr("ceil_mode"):
        if call.attr("auto_pad") != "NOTSET":
            raise CannotLift("ceil_mode and auto_pad")
        beyond = round_up(attrs, x[2:])
    if is_mean and beyond and counts:
        raise CannotLift("what the means of its last windows divide by depends on the runtime")
    if is_mean:
        means(attrs, count_padding=counts, beyond=beyond)
    call.attr("storage_order")  # of the indices alone, which are no output of what is lifted
    shape = (*x[:2], *_windows(x, sizes, attrs))
    op = "max_pool" if call.op == "MaxPool" else "avg_pool"
    return Translated(op, call.tensors(1), attrs), shape


def pad(call: Call) -> Result:
    """Constants around a tensor."""
    x, pads, axes = call.shape(0), call.integers("pads", 1), call.integers("axes", 3)
    if call.attr("mode") not in (None, "constant"):
        raise CannotLift(f"mode {call.attr('mode')}")
    value = call.attr("value") if "value" in call.operator.defaults else call.number(2)
    axes = list(range(len(x))) if axes is None else [axis_of(axis, len(x)) for axis in axes]
    if pads is None or len(pads) != 2 * len(axes):
        raise CannotLift("pads are missing, or not of its axes")
    sides = [dict(zip(axes, own, strict=True)) for own in (pads[: len(axes)], pads[len(axes) :])]
    front, behind = (tuple(side.get(axis, 0) for axis in range(len(x))) for side in sides)
    shape = tuple(size + a + b for size, a, b in zip(x, front, behind, strict=True))
    return Translated("pad", call.tensors(1), {"front": front, "behind": behind, "value": value or 0.0}), shape


def global_mean(call: Call) -> Result:
    x = call.shape(0)
    attrs = {"kind": "mean", "axes": list(range(2, len(x))), "keep": True}
    return Translated("reduce", call.tensors(1), attrs), (*x[:2], *(ONE for _ in x[2:]))
