"""What kernels of a bundle are compared with: PyTorch's own, by name, and references in higher precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Operands = Mapping[str, torch.Tensor]
Call = Callable[[], Any]


def _tf32(call: Call, allowed: bool) -> Call:
    def run() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        return call()

    return run


def _mm(block: Mapping[str, Any], own: Operands, allowed: bool = False) -> Call:
    x, w = own["x"], own["w"].T
    out = torch.empty_like(own["out"])
    return _tf32(lambda: torch.mm(x, w, out=out), allowed)


def _mm_kn(block: Mapping[str, Any], own: Operands) -> Call:
    x, w = own["x"], own["w"].T.contiguous()
    out = torch.empty_like(own["out"])
    return _tf32(lambda: torch.mm(x, w, out=out), False)


def _bmm(block: Mapping[str, Any], own: Operands, allowed: bool = False) -> Call:
    x, y = own["x"], own["y"]
    y = y.transpose(1, 2) if block["op"] == "bmm_nt" else y
    out = torch.empty_like(own["out"])
    return _tf32(lambda: torch.bmm(x, y, out=out), allowed)


def _linear_gelu(block: Mapping[str, Any], own: Operands) -> Call:
    return _tf32(lambda: F.gelu(F.linear(own["x"], own["w"], own["bias"])), False)


def _linear_add(block: Mapping[str, Any], own: Operands) -> Call:
    return _tf32(lambda: F.linear(own["x"], own["w"], own["bias"]) + own["residual"], False)


def _compiled(block: Mapping[str, Any], own: Operands) -> Call:
    """Tuned for this shape alone."""
    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = False
    compiled = torch.compile(F.linear, mode="max-autotune-no-cudagraphs", dynamic=False)
    return _tf32(lambda: compiled(own["x"], own["w"]), False)


def _sdpa(block: Mapping[str, Any], own: Operands) -> Call:
    q, k, v = own["q"], own["k"], own["v"]
    causal = bool(block["args"].get("causal"))
    return _tf32(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), False)


def _softmax(block: Mapping[str, Any], own: Operands) -> Call:
    return lambda: torch.softmax(own["x"], dim=1)


def _layer_norm(block: Mapping[str, Any], own: Operands) -> Call:
    return lambda: F.layer_norm(own["x"], own["x"].shape[1:], own["gamma"], own["beta"], block["args"]["eps"])


def _rms_norm(block: Mapping[str, Any], own: Operands) -> Call:
    return lambda: F.rms_norm(own["x"], own["x"].shape[1:], own["gamma"], block["args"]["eps"])


def _copy(block: Mapping[str, Any], own: Operands) -> Call:
    to = torch.empty_like(own["x"])
    return lambda: to.copy_(own["x"])


def _conv(block: Mapping[str, Any], own: Operands, allowed: bool = False) -> Call:
    torch.backends.cudnn.benchmark = True
    x, w, args = own["x"], own["weight"], block["args"]
    if args["layout"] == "nhwc":
        x = x.permute(0, 3, 1, 2)
    w = w.contiguous(memory_format=torch.channels_last) if args["layout"] == "nhwc" else w
    return _tf32(lambda: F.conv2d(x, w, stride=args["stride"], padding=args["pad"]), allowed)


def _conv_last(block: Mapping[str, Any], own: Operands) -> Call:
    """As channels_last, whatever the block's layout is: converted before."""
    torch.backends.cudnn.benchmark = True
    args = block["args"]
    x = own["x"].permute(0, 3, 1, 2) if args["layout"] == "nhwc" else own["x"]
    x = x.contiguous(memory_format=torch.channels_last)
    w = own["weight"].contiguous(memory_format=torch.channels_last)
    return _tf32(lambda: F.conv2d(x, w, stride=args["stride"], padding=args["pad"]), False)


def _by_expert(block: Mapping[str, Any], own: Operands) -> Call:
    """The rows sorted before; a product for each group."""
    x, w, expert = own["x"], own["w"], own["expert"].long()
    order = torch.argsort(expert)
    counts = torch.bincount(expert, minlength=w.shape[0]).tolist()
    parts = torch.split(x[order].contiguous(), counts)
    return lambda: [torch.mm(part, w[number].T) for number, part in enumerate(parts) if len(part)]


def _grouped_mm(block: Mapping[str, Any], own: Operands) -> Call:
    """PyTorch's grouped product in bfloat16, rows sorted before."""
    x, w, expert = own["x"].bfloat16(), own["w"].bfloat16(), own["expert"].long()
    order = torch.argsort(expert)
    rows, ends = x[order].contiguous(), torch.bincount(expert, minlength=w.shape[0]).cumsum(0).int()
    weights = w.transpose(1, 2)
    function = getattr(torch, "_grouped_mm")  # noqa: B009
    return lambda: function(rows, weights, offs=ends)


def _whole(block: Mapping[str, Any], own: Operands) -> Call:
    """The same product with weights of two bytes."""
    weight = _weight(block, own).to(own["x"].dtype)
    return lambda: F.linear(own["x"], weight)


def _int4pack(block: Mapping[str, Any], own: Operands) -> Call:
    """PyTorch's int4 product (bfloat16 activations), weights packed before."""
    group = block["args"]["group"]
    swapped = ((own["w"] & 15) << 4) | (own["w"] >> 4)
    packed = torch._convert_weight_to_int4pack(swapped, 8)
    scales = own["s"].bfloat16().T.contiguous()
    both = torch.stack([scales, torch.zeros_like(scales)], dim=2).contiguous()
    x = own["x"].bfloat16()
    return lambda: torch._weight_int4pack_mm(x, packed, group, both)


def _plain(block: Mapping[str, Any], own: Operands) -> torch.Tensor:
    """Programs that PyTorch says in a line."""
    op, args = block["op"], block["args"]
    if op == "silu_add":
        return F.silu(own["x"]) + own["y"]
    if op == "transpose":
        return own["x"].T.contiguous()
    if op == "column_sum":
        return own["x"].sum(dim=0)
    if op == "gemv":
        return torch.mv(own["w"], own["x"])
    if op == "depthwise":
        weight = own["weight"][:, None]
        return F.conv2d(own["x"], weight, stride=args["stride"], padding=args["pad"], groups=weight.shape[0])
    return F.max_pool2d(own["x"], 3, stride=args["stride"], padding=args["pad"])


PLAIN = ("silu_add", "transpose", "column_sum", "gemv", "depthwise", "max_pool")
RIVALS: Mapping[str, Callable[[Mapping[str, Any], Operands], Call]] = {
    "mm": _mm, "mm_tf32": lambda block, own: _mm(block, own, True), "mm_kn": _mm_kn, "bmm": _bmm,
    "bmm_tf32": lambda block, own: _bmm(block, own, True), "linear_gelu": _linear_gelu, "linear_add": _linear_add,
    "compiled": _compiled, "sdpa": _sdpa, "softmax": _softmax, "layer_norm": _layer_norm,
    "rms_norm": _rms_norm, "copy": _copy, "conv": _conv, "conv_tf32": lambda block, own: _conv(block, own, True),
    "conv_last": _conv_last, "by_expert": _by_expert, "grouped_mm": _grouped_mm, "whole": _whole, "int4pack": _int4pack,
    **{name: lambda block, own: lambda: _plain(block, own) for name in PLAIN},
}  # fmt: skip


# -- references -------------------------------------------------------------------------------------------------------
def _weight(block: Mapping[str, Any], own: Operands) -> torch.Tensor:
    """A quantized weight in float32, [n, k]."""
    w = own["w"]
    if block["op"] == "int8":
        return w.float() * own["s"].float()[:, None]
    numbers = torch.stack([w & 15, w >> 4], dim=2).reshape(w.shape[0], -1).float() - 8
    return numbers * own["s"].float().repeat_interleave(block["args"]["group"], dim=1)


def reference(block: Mapping[str, Any], own: Operands) -> dict[str, torch.Tensor]:
    """The outputs in float64, or in float32 where that takes too long."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    op, wide = block["op"], {name: tensor.double() for name, tensor in own.items() if tensor.is_floating_point()}
    if op in ("dense", "linear_gelu", "linear_add"):
        result = wide["x"] @ wide["w"].T
        result = result + wide["bias"] if "bias" in wide else result
        result = F.gelu(result) if op == "linear_gelu" else result
        result = result + wide["residual"] if "residual" in wide else result
    elif op in ("bmm_nt", "bmm_nn"):
        result = wide["x"] @ (wide["y"].transpose(1, 2) if op == "bmm_nt" else wide["y"])
    elif op == "attention":
        q, k, v = (own[name].float() for name in "qkv")
        scores = q @ k.transpose(2, 3) * block["args"]["scale"]
        if block["args"].get("causal"):
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        result = torch.softmax(scores, dim=-1) @ v
    elif op == "softmax":
        result = torch.softmax(wide["x"], dim=1)
    elif op == "layer_norm":
        result = F.layer_norm(wide["x"], wide["x"].shape[1:], wide["gamma"], wide["beta"], block["args"]["eps"])
    elif op == "rms_norm":
        result = F.rms_norm(wide["x"], wide["x"].shape[1:], wide["gamma"], block["args"]["eps"])
    elif op == "conv":
        x = wide["x"].permute(0, 3, 1, 2) if block["args"]["layout"] == "nhwc" else wide["x"]
        result = F.conv2d(
            x.float(), own["weight"].float(), stride=block["args"]["stride"], padding=block["args"]["pad"]
        )
        result = result.permute(0, 2, 3, 1) if block["args"]["layout"] == "nhwc" else result
    elif op == "moe":
        result = torch.zeros_like(wide["out"])
        for number in range(own["w"].shape[0]):
            rows = own["expert"] == number
            result[rows] = wide["x"][rows] @ wide["w"][number].T
    elif op in PLAIN:
        result = _plain(block, {name: tensor.float() for name, tensor in own.items()})
    else:
        result = wide["x"] @ _weight(block, own).double().T
    return {block["outputs"][0]["name"]: result}
