"""ATen's operators in neutral terms, each overload by its own name.

Graphs are in the normal form of ``shapewright.models.aten``: functional, composite operators decomposed. What has no
entry here is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shapewright.models.fx_calls import Call, constant_numbers
from shapewright.models.graph import CannotLift
from shapewright.models.translated import Translated, celu, clamped, number, power, scaled_elu
from shapewright.models.windows import means, round_up

Translation = Callable[[Call], Translated]


# -- contractions ---------------------------------------------------------------------------------------------------
def _product(op: str, x: str, y: str, addend: str = "") -> Translation:
    def translate(call: Call) -> Translated:
        if addend and (call.arg("beta") != 1 or call.arg("alpha") != 1):
            raise CannotLift("alpha or beta is not 1")
        added = (call.tensor(addend),) if addend else ()
        return Translated(op, (call.tensor(x), call.tensor(y), *added))

    return translate


def _grouped_product(call: Call) -> Translated:
    # Where groups end says the same as the group of each row.
    call.arg("ends")
    return Translated("grouped_matmul", (call.tensor("x"), call.tensor("w"), call.tensor("group")))


def _convolution(call: Call) -> Translated:
    axes = call.rank("weight") - 2
    if any(constant_numbers(call.arg("output_padding"), axes)):
        raise CannotLift("output_padding is not 0")
    attrs = {
        "stride": constant_numbers(call.arg("stride"), axes),
        "pad": constant_numbers(call.arg("padding"), axes),
        "dilation": constant_numbers(call.arg("dilation"), axes),
        "groups": call.arg("groups"),
        "transposed": call.arg("transposed"),
    }
    return Translated("conv", (call.tensor("input"), call.tensor("weight"), call.tensor("bias")), attrs)


# -- rows -----------------------------------------------------------------------------------------------------------
def _layer_norm(call: Call) -> Translated:
    inputs = (call.tensor("input"), call.tensor("weight"), call.tensor("bias"))
    return Translated("layer_norm", inputs, {"rank": len(call.arg("normalized_shape")), "eps": call.arg("eps")})


def _rms_norm(call: Call) -> Translated:
    eps = call.arg("eps")
    if eps is None:
        # What PyTorch takes: the distance from 1 to the next number of the dtype that it computes in.
        eps = {"float64": 2.0**-52}.get(call.dtype, 2.0**-23)
    rank = len(call.arg("normalized_shape"))
    return Translated("rms_norm", (call.tensor("input"), call.tensor("weight")), {"rank": rank, "eps": eps})


def _batch_norm(call: Call) -> Translated:
    names = ("input", "weight", "bias", "running_mean", "running_var")
    return Translated("batch_norm", tuple(map(call.tensor, names)), {"eps": call.arg("eps")})


def _softmax(op: str) -> Translation:
    def translate(call: Call) -> Translated:
        if call.arg("half_to_float"):
            raise CannotLift("it changes the dtype")
        return Translated(op, (call.tensor("self"),), {"axis": call.arg("dim")})

    return translate


def _safe_softmax(call: Call) -> Translated:
    """Rows that are -inf as a whole give 0."""
    if call.arg("dtype") is not None and _dtype(call, "self") != call.dtype:
        raise CannotLift("it changes the dtype")
    return Translated("softmax", (call.tensor("self"),), {"axis": call.arg("dim"), "safe": True})


def _attention(mask: str | None, *, at_the_end: bool = False) -> Translation:
    """``mask``: the argument that is one. ``at_the_end``: of kernels that have the last query see all keys, whatever
    their number; ours, and those of PyTorch's CPU, count from the first one."""

    def translate(call: Call) -> Translated:
        if call.arg("dropout_p"):
            raise CannotLift("it has dropout")
        causal = call.arg("is_causal")
        inputs = (*map(call.tensor, ("query", "key", "value")), None if mask is None else call.tensor(mask))
        if at_the_end and causal and call.shape_of("query")[-2] != call.shape_of("key")[-2]:
            raise CannotLift("it is causal, and has not as many queries as keys")
        return Translated("attention", inputs, {"causal": causal, "scale": call.arg("scale")})

    return translate


def _reduce(kind: str, *, over_all: bool = False, has_dtype: bool = True) -> Translation:
    def translate(call: Call) -> Translated:
        if kind == "sum" and not over_all and (_dtype(call, "self"), call.dtype) == ("int8", "int32"):
            attrs = {"axes": list(call.arg("dim") or ()), "keep": call.arg("keepdim")}
            call.arg("dtype")
            return Translated("int_sum", (call.tensor("self"),), attrs)
        if has_dtype and call.arg("dtype") is not None and _dtype(call, "self") != call.dtype:
            raise CannotLift("it changes the dtype")
        axes = None if over_all else call.arg("dim")
        # PyTorch reads no axes as all of them.
        axes = list(axes) if axes else list(range(call.rank("self")))
        keep = False if over_all else call.arg("keepdim")
        return Translated("reduce", (call.tensor("self"),), {"kind": kind, "axes": axes, "keep": keep})

    return translate


def _dtype(call: Call, name: str) -> str:
    source = call.tensor(name)
    return call.nodes[source].dtype if isinstance(source, str) else ""


# -- pooling --------------------------------------------------------------------------------------------------------
def _max_pool(call: Call) -> Translated:
    return Translated("max_pool", (call.tensor("self"),), _pool(call, call.arg("dilation")))


def _avg_pool(call: Call) -> Translated:
    attrs = _pool(call, 1)
    if (divisor := call.arg("divisor_override")) is not None:
        call.arg("count_include_pad")
        attrs["divisor"] = divisor
    else:
        beyond = attrs.get("behind", attrs["pad"]) != attrs["pad"]
        means(attrs, count_padding=call.arg("count_include_pad"), beyond=beyond)
    return Translated("avg_pool", (call.tensor("self"),), attrs)


def _pool(call: Call, dilation: Any) -> dict[str, Any]:
    window = constant_numbers(call.arg("kernel_size"), 2)
    attrs: dict[str, Any] = {
        "window": window,
        "stride": constant_numbers(call.arg("stride") or list(window), 2),
        "pad": constant_numbers(call.arg("padding"), 2),
        "dilation": constant_numbers(dilation, 2),
    }
    if call.arg("ceil_mode"):
        round_up(attrs, call.shape_of("self")[-2:], may_drop=True)
    return attrs


def _constant_pad(call: Call) -> Translated:
    """Pairs of numbers, the last axis first."""
    rank, given = call.rank("self"), list(call.arg("pad"))
    sides = constant_numbers(given, len(given))
    front, behind = ((0,) * (rank - len(sides) // 2) + sides[at::2][::-1] for at in (0, 1))
    attrs = {"front": front, "behind": behind, "value": number(call.arg("value"))}
    return Translated("pad", (call.tensor("self"),), attrs)


# -- elementwise ----------------------------------------------------------------------------------------------------
def _elementwise(op: str, *names: str) -> Translation:
    return lambda call: Translated(op, tuple(map(call.tensor, names)))


def _sum(op: str, *names: str) -> Translation:
    def translate(call: Call) -> Translated:
        if call.arg("alpha") != 1:
            raise CannotLift("alpha is not 1")
        return Translated(op, tuple(map(call.tensor, names)))

    return translate


def _gelu(call: Call) -> Translated:
    op = {"none": "gelu", "tanh": "gelu_tanh"}[call.arg("approximate")]
    return Translated(op, (call.tensor("self"),))


def _pow(call: Call) -> Translated:
    return power(call.tensor("self"), call.arg("exponent"))


def _clamp(low: str | None, high: str | None) -> Translation:
    def translate(call: Call) -> Translated:
        return clamped(call.tensor("self"), low and call.arg(low), high and call.arg(high))

    return translate


def _leaky_relu(call: Call) -> Translated:
    return Translated("leaky_relu", (call.tensor("self"),), {"slope": number(call.arg("negative_slope"))})


def _elu(call: Call) -> Translated:
    alpha, scale, inner = (number(call.arg(name)) for name in ("alpha", "scale", "input_scale"))
    return scaled_elu(call.tensor("self"), alpha * scale, scale, inner)


def _celu(call: Call) -> Translated:
    return celu(call.tensor("self"), number(call.arg("alpha")))


def _softplus(call: Call) -> Translated:
    """A line from ``threshold`` on: beyond 17, where float32 knows no other."""
    if call.arg("beta") != 1 or number(call.arg("threshold")) < 17 or call.dtype == "float64":
        raise CannotLift("its beta is not 1, or it is a line where it need not be one")
    return Translated("softplus", (call.tensor("self"),))


def _threshold(call: Call) -> Translated:
    attrs = {"limit": number(call.arg("threshold")), "value": number(call.arg("value"))}
    return Translated("threshold", (call.tensor("self"),), attrs)


def _range(call: Call) -> Translated:
    """A range of integers, upwards."""
    names = {each.name for each in call.node.target._schema.arguments}
    start, step = (call.arg(name) if name in names else usual for name, usual in (("start", 0), ("step", 1)))
    for name in ("end", "dtype", "layout", "device", "pin_memory"):
        call.arg(name)
    if type(start) is not int or type(step) is not int or step < 1 or call.dtype not in ("int64", "int32"):
        raise CannotLift("it is none of integers, upwards from a constant")
    return Translated("range", (), {"least": start})


def _full(value: int | str) -> Translation:
    """A tensor of one number, or of the number that is the argument ``value``."""

    def translate(call: Call) -> Translated:
        given = {each.name: call.arg(each.name) for each in call.node.target._schema.arguments}
        return Translated("full", (), {"value": number(given[value]) if isinstance(value, str) else value})

    return translate


def _where(call: Call) -> Translated:
    return Translated("where", tuple(map(call.tensor, ("condition", "self", "other"))))


# -- views ----------------------------------------------------------------------------------------------------------
def _view(op: str, *arguments: str) -> Translation:
    """``arguments`` say nothing that the shape of the output does not."""

    def translate(call: Call) -> Translated:
        for name in arguments:
            call.arg(name)
        source = call.tensor("self")
        is_same = isinstance(source, str) and call.shape is not None and call.nodes[source].shape == call.shape
        return Translated("identity" if is_same else op, (source,))

    return translate


def _joined(op: str) -> Translation:
    return lambda call: Translated(op, tuple(map(call.input_of, call.arg("tensors"))), {"axis": call.arg("dim")})


def _permute(call: Call) -> Translated:
    dims = list(call.arg("dims"))
    return Translated("permute", (call.tensor("self"),), {"order": tuple(axis % len(dims) for axis in dims)})


def _transpose(call: Call) -> Translated:
    order = list(range(call.rank("self")))
    first, second = call.arg("dim0"), call.arg("dim1")
    if order:
        order[first], order[second] = order[second], order[first]
    return Translated("permute", (call.tensor("self"),), {"order": tuple(order)})


def _t(call: Call) -> Translated:
    order = tuple(reversed(range(call.rank("self"))))
    return Translated("permute", (call.tensor("self"),), {"order": order})


def _copied(call: Call) -> Translated:
    """``copy(self, src)``: src, in the dtype and the shape of self."""
    source, kept = call.tensor("src"), call.tensor("self")
    if (
        not isinstance(source, str)
        or not isinstance(kept, str)
        or call.nodes[source].shape != call.shape
        or call.nodes[source].dtype != call.dtype
    ):
        raise CannotLift("it changes the shape or the dtype of what it copies")
    return Translated("identity", (source,))


def _cast(*arguments: str) -> Translation:
    def translate(call: Call) -> Translated:
        first = call.node.target._schema.arguments[0].name
        for name in arguments:
            call.arg(name)
        x = call.tensor(first)
        if not isinstance(x, str):
            raise CannotLift("it casts a number")
        return Translated("identity" if call.nodes[x].dtype == call.dtype else "cast", (x,))

    return translate


SELF_ALONE = (
    *("relu", "sigmoid", "tanh", "silu", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "abs", "neg"),
    *("reciprocal", "floor", "round", "hardswish", "hardsigmoid"),
)
BINARY = {"mul": ("Tensor", "Scalar"), "div": ("Tensor", "Scalar"), "maximum": ("default",), "minimum": ("default",)}

ATTENTION = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention("attn_mask"),
    "aten._scaled_dot_product_efficient_attention.default": _attention("attn_bias"),
    "aten._scaled_dot_product_flash_attention.default": _attention(None, at_the_end=True),
    "aten._scaled_dot_product_cudnn_attention.default": _attention("attn_bias", at_the_end=True),
}
"""What ``scaled_dot_product_attention`` becomes on a CPU and on GPUs."""

TRANSLATIONS: Mapping[str, Translation] = {
    "aten.mm.default": _product("matmul", "self", "mat2"),
    "aten._int_mm.default": _product("int_matmul", "self", "mat2"),
    "shapewright.grouped_mm.default": _grouped_product,
    "aten.bmm.default": _product("matmul", "self", "mat2"),
    "aten.addmm.default": _product("matmul", "mat1", "mat2", "self"),
    "aten.baddbmm.default": _product("matmul", "batch1", "batch2", "self"),
    "aten.mv.default": _product("linear", "vec", "self"),
    "aten.addmv.default": _product("linear", "vec", "mat", "self"),
    "aten.convolution.default": _convolution,
    "aten.native_layer_norm.default": _layer_norm,
    "aten._fused_rms_norm.default": _rms_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    **{f"aten._{op}.default": _softmax(op) for op in ("softmax", "log_softmax")},
    "aten._safe_softmax.default": _safe_softmax,
    **ATTENTION,
    **{f"aten.{kind}.default": _reduce(kind, over_all=True) for kind in ("sum", "mean")},
    "aten.sum.dim_IntList": _reduce("sum"),
    "aten.mean.dim": _reduce("mean"),
    "aten.amax.default": _reduce("max", has_dtype=False),
    "aten.amin.default": _reduce("min", has_dtype=False),
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.constant_pad_nd.default": _constant_pad,
    "aten.avg_pool2d.default": _avg_pool,
    **{f"aten.{op}.default": _elementwise(op, "self") for op in SELF_ALONE},
    **{
        f"aten.{op}.{each}": _elementwise(op, "self", "other") for op, overloads in BINARY.items() for each in overloads
    },
    **{f"aten.{op}.{each}": _sum(op, "self", "other") for op in ("add", "sub") for each in ("Tensor", "Scalar")},
    **{f"aten.rsub.{each}": _sum("sub", "other", "self") for each in ("Tensor", "Scalar")},
    "aten.gelu.default": _gelu,
    "aten.pow.Tensor_Scalar": _pow,
    "aten.clamp.default": _clamp("min", "max"),
    "aten.clamp_min.default": _clamp("min", None),
    "aten.clamp_max.default": _clamp(None, "max"),
    "aten.hardtanh.default": _clamp("min_val", "max_val"),
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten.celu.default": _celu,
    "aten.mish.default": _elementwise("mish", "self"),
    "aten.softplus.default": _softplus,
    "aten.log_sigmoid_forward.default": _elementwise("log_sigmoid", "self"),
    "aten._prelu_kernel.default": _elementwise("prelu", "self", "weight"),
    "aten.threshold.default": _threshold,
    "aten.where.self": _where,
    **{f"aten.arange.{each}": _range for each in ("default", "start", "start_step")},
    **{f"aten.{op}.default": _full(1) for op in ("ones", "ones_like", "new_ones")},
    **{f"aten.{op}.default": _full(0) for op in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.{op}.default": _full("fill_value") for op in ("full_like", "new_full")},
    "aten.ge.Scalar": _elementwise("ge", "self", "other"),
    "aten.bitwise_and.Tensor": _elementwise("both", "self", "other"),
    "aten.bitwise_and.Scalar": _elementwise("bits_and", "self", "other"),
    **{f"aten.{op}": _elementwise("shift_right", "self", "other") for op in ("__rshift__.Scalar", "__rshift__.Tensor")},
    "aten.bitwise_right_shift.Tensor_Scalar": _elementwise("shift_right", "self", "other"),
    "aten.bitwise_right_shift.Tensor": _elementwise("shift_right", "self", "other"),
    "aten.stack.default": _joined("stack"),
    "aten.logical_and.default": _elementwise("both", "self", "other"),
    **{f"aten.{op}.default": _view("reshape", "size") for op in ("view", "_unsafe_view")},
    "aten.unsqueeze.default": _view("reshape", "dim"),
    "aten.squeeze.default": _view("reshape"),
    "aten.squeeze.dim": _view("reshape", "dim"),
    "aten.squeeze.dims": _view("reshape", "dim"),
    "aten.expand.default": _view("expand", "size", "implicit"),
    "aten.clone.default": _view("identity", "memory_format"),
    **{f"aten.{op}.default": _view("identity") for op in ("detach", "alias", "lift_fresh_copy")},
    "aten.cat.default": _joined("cat"),
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.copy.default": _copied,
    "aten._to_copy.default": _cast("dtype", "layout", "device", "pin_memory", "memory_format"),
    "prims.convert_element_type.default": _cast("dtype"),
}
"""Translations of calls, by the overload's name. Raise CannotLift with the reason."""

WITHOUT_MEANING: Mapping[str, tuple[str, ...]] = {
    "aten._native_batch_norm_legit_no_training.default": ("momentum",),
    "aten.copy.default": ("non_blocking",),
    "aten._to_copy.default": ("non_blocking",),
    # Of the first output, which alone is lifted.
    **dict.fromkeys(ATTENTION, ("compute_log_sumexp", "return_debug_mask")),
}
"""Arguments that change nothing of what an operator computes."""
