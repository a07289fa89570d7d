"""ONNX's operators of windows on images: convolutions, their transposes, and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shapewright.models.graph import ONE, CannotLift, Shape
from shapewright.models.onnx_schemas import Call, Result
from shapewright.models.translated import Translated
from tuner.program.language.dims import DimExpr


def _windows(shape: Shape, window: Sequence[DimExpr], attrs: Mapping[str, Sequence[int]]) -> Shape:
    """The spatial dims that a convolution or a pooling leaves."""
    parts = zip(shape[2:], window, attrs["stride"], attrs["pad"], attrs["dilation"], strict=True)
    return tuple(
        (size + 2 * pad - (width - 1) * dilation - 1) // stride + 1 for size, width, stride, pad, dilation in parts
    )


def _window_attrs(call: Call, rank: int) -> dict[str, tuple[int, ...]]:
    auto_pad, given = call.attr("auto_pad"), call.attr("pads")
    if auto_pad not in ("NOTSET", "VALID") or (auto_pad == "VALID" and any(given or ())):
        raise CannotLift(f"auto_pad {auto_pad}")
    pads = tuple(given or (0,) * 2 * rank)
    if pads[:rank] != pads[rank:] or min(pads, default=0) < 0:
        raise CannotLift(f"pads {list(pads)} differ between the sides")
    attrs = {"stride": tuple(call.attr("strides") or (1,) * rank), "pad": pads[:rank]}
    attrs["dilation"] = tuple(call.attr("dilations") or (1,) * rank)
    if any(len(each) != rank for each in attrs.values()) or min((*attrs["stride"], *attrs["dilation"]), default=1) < 1:
        raise CannotLift(f"strides, pads or dilations are none of {rank} axes")
    return attrs


def _spatial(call: Call) -> tuple[Shape, Shape, dict[str, tuple[int, ...]]]:
    """The image, the weight, and the window of a convolution."""
    x, w = call.shape(0), call.shape(1)
    kernel = call.attr("kernel_shape")
    if len(x) != len(w) or len(x) < 3 or (kernel and [dim.constant for dim in w[2:]] != list(kernel)):
        raise CannotLift("the image, the weight and kernel_shape do not agree")
    return x, w, _window_attrs(call, len(w) - 2)


def conv(call: Call) -> Result:
    x, w, attrs = _spatial(call)
    shape = (x[0], w[0], *_windows(x, w[2:], attrs))
    return Translated("conv", call.tensors(3), {**attrs, "groups": call.attr("group"), "transposed": False}), shape


def conv_transpose(call: Call) -> Result:
    x, w, attrs = _spatial(call)
    if any(call.attr("output_padding") or ()) or call.attr("output_shape"):
        raise CannotLift("output_padding or output_shape")
    groups = call.attr("group")
    parts = zip(x[2:], w[2:], attrs["stride"], attrs["pad"], attrs["dilation"], strict=True)
    spatial = tuple((size - 1) * step - 2 * pad + (width - 1) * wide + 1 for size, width, step, pad, wide in parts)
    shape = (x[0], w[1] * groups, *spatial)
    return Translated("conv", call.tensors(3), {**attrs, "groups": groups, "transposed": True}), shape


def pool(call: Call) -> Result:
    x, window = call.shape(0), tuple(call.attr("kernel_shape") or ())
    if not window or len(x) != len(window) + 2:
        raise CannotLift("kernel_shape is missing, or not of the image's axes")
    attrs = _window_attrs(call, len(window))
    counts = call.attr("count_include_pad")
    if call.op == "AveragePool" and any(attrs["pad"]) and not counts:
        raise CannotLift("its means do not count the padding")
    call.attr("storage_order")  # of the indices alone, which are no output of what is lifted
    shape = (*x[:2], *_windows(x, [ONE * width for width in window], attrs))
    op = "max_pool" if call.op == "MaxPool" else "avg_pool"
    return Translated(op, call.tensors(1), {**attrs, "window": window}), shape


def global_mean(call: Call) -> Result:
    x = call.shape(0)
    attrs = {"kind": "mean", "axes": list(range(2, len(x))), "keep": True}
    return Translated("reduce", call.tensors(1), attrs), (*x[:2], *(ONE for _ in x[2:]))
