"""What libraries are compared with: PyTorch's own, by name, and references in higher precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Operands = Mapping[str, torch.Tensor]
Call = Callable[[], Any]


def _tf32(call: Call, allowed: bool) -> Call:
    def run() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        return call()

    return run


def _mm(block: Mapping[str, Any], own: Operands, allowed: bool = False) -> Call:
    x, w = own["x"], own["w"].T
    out = torch.empty_like(own["out"])
    return _tf32(lambda: torch.mm(x, w, out=out), allowed)


def _bmm(block: Mapping[str, Any], own: Operands, allowed: bool = False) -> Call:
    x, y = own["x"], own["y"]
    y = y.transpose(1, 2) if block["op"] == "bmm_nt" else y
    out = torch.empty_like(own["out"])
    return _tf32(lambda: torch.bmm(x, y, out=out), allowed)


def _linear_gelu(block: Mapping[str, Any], own: Operands) -> Call:
    return _tf32(lambda: F.gelu(F.linear(own["x"], own["w"], own["bias"])), False)


def _compiled(block: Mapping[str, Any], own: Operands) -> Call:
    """Tuned for this shape alone."""
    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = False
    compiled = torch.compile(F.linear, mode="max-autotune-no-cudagraphs", dynamic=False)
    return _tf32(lambda: compiled(own["x"], own["w"]), False)


def _softmax(block: Mapping[str, Any], own: Operands) -> Call:
    return lambda: torch.softmax(own["x"], dim=1)


def _layer_norm(block: Mapping[str, Any], own: Operands) -> Call:
    return lambda: F.layer_norm(own["x"], own["x"].shape[1:], own["gamma"], own["beta"], block["args"]["eps"])


def _rms_norm(block: Mapping[str, Any], own: Operands) -> Call:
    return lambda: F.rms_norm(own["x"], own["x"].shape[1:], own["gamma"], block["args"]["eps"])


def _copy(block: Mapping[str, Any], own: Operands) -> Call:
    to = torch.empty_like(own["x"])
    return lambda: to.copy_(own["x"])


RIVALS: Mapping[str, Callable[[Mapping[str, Any], Operands], Call]] = {
    "mm": _mm, "mm_tf32": lambda block, own: _mm(block, own, True), "bmm": _bmm,
    "bmm_tf32": lambda block, own: _bmm(block, own, True), "linear_gelu": _linear_gelu, "compiled": _compiled,
    "softmax": _softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm, "copy": _copy,
}  # fmt: skip


def reference(block: Mapping[str, Any], own: Operands) -> dict[str, torch.Tensor]:
    """The outputs in float64."""
    torch.backends.cuda.matmul.allow_tf32 = False
    op, wide = block["op"], {name: tensor.double() for name, tensor in own.items() if tensor.is_floating_point()}
    if op in ("dense", "linear_gelu"):
        result = wide["x"] @ wide["w"].T
        result = result + wide["bias"] if "bias" in wide else result
        result = F.gelu(result) if op == "linear_gelu" else result
    elif op in ("bmm_nt", "bmm_nn"):
        result = wide["x"] @ (wide["y"].transpose(1, 2) if op == "bmm_nt" else wide["y"])
    elif op == "softmax":
        result = torch.softmax(wide["x"], dim=1)
    elif op == "layer_norm":
        result = F.layer_norm(wide["x"], wide["x"].shape[1:], wide["gamma"], wide["beta"], block["args"]["eps"])
    else:
        result = F.rms_norm(wide["x"], wide["x"].shape[1:], wide["gamma"], block["args"]["eps"])
    return {block["outputs"][0]["name"]: result}
