"""ATen's operators, and PyTorch's functions of the same names, in neutral terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shapewright.models.fx_calls import Call, constant_numbers
from shapewright.models.graph import CannotLift
from shapewright.models.translated import Translated, clamped, literal, power


# -- contractions ---------------------------------------------------------------------------------------------------
def _linear(call: Call) -> Translated:
    return Translated("linear", (call.tensor(0, "input"), call.tensor(1, "weight"), call.tensor(2, "bias")))


def _matmul(call: Call) -> Translated:
    return Translated("matmul", (call.tensor(0, "self", "input"), call.tensor(1, "mat2", "other", "tensor2")))


def _added(call: Call) -> Translated:
    if call.node.kwargs.get("beta", 1) != 1 or call.node.kwargs.get("alpha", 1) != 1:
        raise CannotLift("alpha or beta is not 1")
    addend, x, y = call.tensor(0, "input"), call.tensor(1, "mat1", "batch1"), call.tensor(2, "mat2", "batch2")
    return Translated("matmul", (x, y, addend))


def _conv(rank: int | None, transposed: bool) -> Callable[[Call], Translated]:
    """``rank`` is None for aten.convolution, which tells all in its arguments."""

    def translate(call: Call) -> Translated:
        axes = rank if rank is not None else call.rank(call.tensor(1, "weight")) - 2
        is_transposed, groups_at, dilation_at, output_at = transposed, 6, 5, None
        if rank is None:
            is_transposed, groups_at, output_at = bool(call.arg(6, "transposed")), 8, 7
        elif transposed:
            groups_at, dilation_at, output_at = 6, 7, 5
        padding = call.arg(4, "padding", default=0)
        if isinstance(padding, str):
            padding = _named_padding(call, padding, axes)
        if output_at is not None and any(constant_numbers(call.arg(output_at, "output_padding", default=0), axes)):
            raise CannotLift("output_padding is not 0")
        attrs = {
            "stride": constant_numbers(call.arg(3, "stride", default=1), axes),
            "pad": constant_numbers(padding, axes),
            "dilation": constant_numbers(call.arg(dilation_at, "dilation", default=1), axes),
            "groups": call.arg(groups_at, "groups", default=1),
            "transposed": is_transposed,
        }
        return Translated("conv", (call.tensor(0, "input"), call.tensor(1, "weight"), call.tensor(2, "bias")), attrs)

    return translate


def _named_padding(call: Call, name: str, rank: int) -> Any:
    if name == "valid":
        return 0
    weight = call.nodes[str(call.tensor(1, "weight"))].shape or ()
    dilation = constant_numbers(call.arg(5, "dilation", default=1), rank)
    spans = [((size.constant or 0) - 1) * step for size, step in zip(weight[2:], dilation, strict=True)]
    if name != "same" or any(span % 2 for span in spans):
        raise CannotLift(f"padding {name!r} differs between the sides")
    return [span // 2 for span in spans]


# -- rows -----------------------------------------------------------------------------------------------------------
def _layer_norm(call: Call) -> Translated:
    rank = len(call.arg(1, "normalized_shape"))
    inputs = (call.tensor(0, "input"), call.tensor(2, "weight"), call.tensor(3, "bias"))
    return Translated("layer_norm", inputs, {"rank": rank, "eps": call.arg(4, "eps", default=1e-5)})


def _rms_norm(call: Call) -> Translated:
    eps = call.arg(3, "eps")
    if eps is None:
        # What PyTorch takes: the distance from 1 to the next number of the dtype that it computes in.
        eps = {"float64": 2.0**-52}.get(call.dtype, 2.0**-23)
    rank = len(call.arg(1, "normalized_shape"))
    return Translated("rms_norm", (call.tensor(0, "input"), call.tensor(2, "weight")), {"rank": rank, "eps": eps})


def _batch_norm(call: Call) -> Translated:
    x, first, second, third, fourth = (call.tensor(place) for place in range(5))
    if call.arg(5, "training", default=False):
        raise CannotLift("its statistics are those of the batch")
    if getattr(call.node.target, "__module__", "") == "torch.nn.functional":
        first, second, third, fourth = third, fourth, first, second
    return Translated("batch_norm", (x, first, second, third, fourth), {"eps": call.arg(7, "eps", default=1e-5)})


def _inference_norm(call: Call) -> Translated:
    return Translated("batch_norm", tuple(call.tensor(place) for place in range(5)), {"eps": call.arg(6, "eps")})


def _softmax(call: Call) -> Translated:
    if call.node.kwargs.get("dtype") is not None:
        raise CannotLift("it changes the dtype")
    return Translated("softmax", (call.tensor(0, "input", "self"),), {"axis": call.arg(1, "dim")})


def _attention(call: Call) -> Translated:
    if call.arg(4, "dropout_p", default=0.0):
        raise CannotLift("it has dropout")
    inputs = (*(call.tensor(n, k) for n, k in enumerate(("query", "key", "value"))), call.tensor(3, "attn_mask"))
    attrs = {"causal": call.arg(5, "is_causal", default=False), "scale": call.node.kwargs.get("scale")}
    return Translated("attention", inputs, attrs)


def _flash_attention(call: Call) -> Translated:
    if call.arg(3, "dropout_p", default=0.0):
        raise CannotLift("it has dropout")
    inputs = (*(call.tensor(place) for place in range(3)), call.input_of(call.node.kwargs.get("attn_mask")))
    attrs = {"causal": call.arg(4, "is_causal", default=False), "scale": call.node.kwargs.get("scale")}
    return Translated("attention", inputs, attrs)


def _reduce(kind: str) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        if call.node.kwargs.get("dtype") is not None:
            raise CannotLift("it changes the dtype")
        x = call.tensor(0, "input", "self")
        axes = call.arg(1, "dim")
        axes = list(range(call.rank(x))) if axes is None else ([axes] if isinstance(axes, int) else list(axes))
        return Translated("reduce", (x,), {"kind": kind, "axes": axes, "keep": call.arg(2, "keepdim", default=False)})

    return translate


# -- pooling --------------------------------------------------------------------------------------------------------
def _max_pool(call: Call) -> Translated:
    return _pool(call, "max_pool", call.arg(4, "dilation", default=1), call.arg(5, "ceil_mode", default=False))


def _avg_pool(call: Call) -> Translated:
    padded = any(constant_numbers(call.arg(3, "padding", default=0), 2))
    if call.arg(6, "divisor_override") is not None or (padded and not call.arg(5, "count_include_pad", default=True)):
        raise CannotLift("its means divide by something else than the size of the window")
    return _pool(call, "avg_pool", 1, call.arg(4, "ceil_mode", default=False))


def _pool(call: Call, op: str, dilation: Any, ceil: bool) -> Translated:
    if ceil:
        raise CannotLift("ceil_mode")
    window = constant_numbers(call.arg(1, "kernel_size"), 2)
    stride = call.arg(2, "stride") or list(window)
    attrs = {
        "window": window,
        "stride": constant_numbers(stride, 2),
        "pad": constant_numbers(call.arg(3, "padding", default=0), 2),
        "dilation": constant_numbers(dilation, 2),
    }
    return Translated(op, (call.tensor(0, "input", "self"),), attrs)


def _adaptive(call: Call) -> Translated:
    size = constant_numbers(call.arg(1, "output_size"), 2)
    if size != (1, 1):
        raise CannotLift(f"an output of {size[0]}x{size[1]} has windows of different sizes")
    return Translated("reduce", (call.tensor(0, "input"),), {"kind": "mean", "axes": [-2, -1], "keep": True})


# -- elementwise ----------------------------------------------------------------------------------------------------
def _gelu(call: Call) -> Translated:
    form = call.arg(1, "approximate", default="none")
    return Translated("gelu_tanh" if form == "tanh" else "gelu", (call.tensor(0, "input"),))


def _pow(call: Call) -> Translated:
    return power(call.tensor(0, "input", "self"), call.arg(1, "exponent"))


def _rsub(call: Call) -> Translated:
    if call.arg(2, "alpha", default=1) != 1:
        raise CannotLift("alpha is not 1")
    return Translated("sub", (call.tensor(1, "other"), call.tensor(0, "self")))


def _clamp(low_at: int, high_at: int, low: float | None, high: float | None) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        least = call.arg(low_at, "min", "min_val", default=low)
        most = call.arg(high_at, "max", "max_val", default=high)
        x = call.tensor(0, "input", "self")
        return clamped(x, least, most)

    return translate


def _sloped(op: str, default: float) -> Callable[[Call], Translated]:
    def translate(call: Call) -> Translated:
        slope = call.arg(1, "negative_slope", "alpha", default=default)
        if op == "elu" and (call.arg(2, default=1) != 1 or call.arg(3, default=1) != 1):
            raise CannotLift("its scales are not 1")
        return Translated(op, (call.tensor(0, "input", "self"),), {"slope": literal(slope)})

    return translate


# -- views ----------------------------------------------------------------------------------------------------------
def _view(op: str) -> Callable[[Call], Translated]:
    return lambda call: Translated(op, (call.tensor(0, "input", "self"),))


def _permute(call: Call) -> Translated:
    x = call.tensor(0, "input", "self")
    given = call.arg(1, "dims")
    given = list(call.node.args[1:]) if isinstance(given, int) else list(given)
    return Translated("permute", (x,), {"order": tuple(axis % len(given) for axis in given)})


def _transpose(call: Call) -> Translated:
    x = call.tensor(0, "input", "self")
    order = list(range(call.rank(x)))
    first, second = call.arg(1, "dim0", default=0), call.arg(2, "dim1", default=1)
    if order:
        order[first], order[second] = order[second], order[first]
    return Translated("permute", (x,), {"order": tuple(order)})


def _t(call: Call) -> Translated:
    x = call.tensor(0, "input", "self")
    return Translated("permute", (x,), {"order": tuple(reversed(range(call.rank(x))))})


def _dropout(call: Call) -> Translated:
    if call.arg(2, "train", "training", default=True) and call.arg(1, "p", default=0.5):
        raise CannotLift("dropout of training")
    return Translated("identity", (call.tensor(0, "input"),))


def _cast(call: Call) -> Translated:
    x = call.tensor(0, "input", "self")
    if not isinstance(x, str) or call.nodes[x].dtype != call.dtype:
        raise CannotLift("it changes the dtype")
    return Translated("identity", (x,))


TRANSLATIONS: Mapping[str, Callable[[Call], Translated]] = {
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "matmul", "__matmul__"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _added),
    **{f"conv{rank}d": _conv(rank, transposed=False) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _conv(rank, transposed=True) for rank in (1, 2, 3)},
    "convolution": _conv(None, transposed=False),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _inference_norm,
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    **{name: _reduce(name) for name in ("sum", "mean")},
    "amax": _reduce("max"),
    **dict.fromkeys(("max_pool2d", "max_pool2d_with_indices"), _max_pool),
    "avg_pool2d": _avg_pool,
    "adaptive_avg_pool2d": _adaptive,
    "gelu": _gelu,
    "pow": _pow,
    "rsub": _rsub,
    "clamp": _clamp(1, 2, None, None),
    "hardtanh": _clamp(1, 2, -1.0, 1.0),
    "relu6": _clamp(9, 9, 0.0, 6.0),
    "leaky_relu": _sloped("leaky_relu", 0.01),
    "elu": _sloped("elu", 1.0),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze"), _view("reshape")),
    **dict.fromkeys(("flatten", "unflatten"), _view("reshape")),
    **dict.fromkeys(("contiguous", "clone", "detach", "alias", "lift_fresh_copy"), _view("identity")),
    "expand": _view("expand"),
    "permute": _permute,
    "transpose": _transpose,
    "t": _t,
    **dict.fromkeys(("dropout", "native_dropout"), _dropout),
    **dict.fromkeys(("to", "_to_copy", "float", "type_as"), _cast),
}  # fmt: skip
"""By name what translates a call. Raises CannotLift with the reason."""
