"""``sw.torch.optimize``: the modules of a model swapped for ones that call tuned libraries. Nothing is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shapewright.sources.finder import Finder, finder_of
from shapewright.sources.reports import Kept, Report
from shapewright.sources.source import Match, SourceLike
from shapewright.torch import modules as tuned
from shapewright.torch.modules import Bound, bound_rows, bound_whole
from shapewright.torch.reports import Replaced
from tuner.errors import InvalidInput
from tuner.program.build import make_workload
from tuner.program.workload import Workload

Bind = Callable[[str, Workload], Bound]


@dataclass(frozen=True)
class Part:
    """What a module computes by one library: ``workloads`` that would do, the best first."""

    name: str
    workloads: tuple[Workload, ...]
    bind: Bind = bound_rows


class Unfit(Exception):
    """Why a module of a known type has no tuned form."""


def optimize(
    model: nn.Module, source: SourceLike | None = None, *, strict: bool = False, threads: int | None = None
) -> nn.Module:
    """A copy of ``model`` whose Linear, LayerNorm, RMSNorm, Softmax, Conv2d and MultiheadAttention modules call the
    libraries of ``source``; the others, and those without a library, are as they were.

    Parameters are shared with ``model``, and keep their names. ``source``: the URL of a service (the one of
    SHAPEWRIGHT_URL if left out), a directory of libraries, a snapshot file, or several. ``threads``: of the libraries,
    PyTorch's own number if left out. ``sw.torch.report(model)`` tells what was replaced. With ``strict`` raises
    ShapewrightError where a source cannot be asked, or a module has no library.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput("model", f"{type(model).__name__} is none", "a torch.nn.Module")
    finder = finder_of(source, strict=strict, threads=torch.get_num_threads() if threads is None else threads)
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    result, report = copy.deepcopy(model, shared), Report()
    for name, module in list(result.named_modules()):
        if type(module) in SWAPS:
            _swap(name or type(module).__name__, module, finder, report)
    for layer in result.modules():
        if isinstance(layer, nn.TransformerEncoderLayer) and any(
            isinstance(each, tuned.Tuned) for each in layer.modules()
        ):
            # Its fast path computes the whole layer from the weights, past the modules in it.
            layer.activation_relu_or_gelu = 0
    report.note(finder.notes)
    result.shapewright_report = report
    return result


def _swap(name: str, module: nn.Module, finder: Finder, report: Report) -> None:
    swap, parts_of = SWAPS[type(module)]
    bound: dict[str, Bound] = {}
    try:
        parts = list(parts_of(module))
    except Unfit as error:
        report.kept.append(Kept(name, type(module).__name__, str(error)))
        return
    for part in parts:
        where = name if len(parts) == 1 else f"{name}.{part.name}"
        matched = _match(part, finder)
        if isinstance(matched, str):
            report.kept.append(Kept(where, str(part.workloads[0]), matched))
            continue
        match, workload = matched
        bound[part.name] = part.bind(match.library.digest, workload)
        plans = tuple(bound[part.name].plans.values())
        threads = match.library.manifest["threads"]
        report.replaced.append(
            Replaced(
                where, str(workload), workload.key, match.library.digest, match.how, match.source, threads, plans=plans
            )
        )
    if bound:
        module.__class__ = swap
        module.bound = bound
        module.shapewright_report = report


def _match(part: Part, finder: Finder) -> tuple[Match, Workload] | str:
    """The library of the first workload that has one; else why there is none. Raises ShapewrightError if strict."""
    reasons: list[str] = []
    for workload in part.workloads[:-1]:
        match = finder.find(workload, may_miss=True)
        if isinstance(match, Match):
            return match, workload
        reasons.append(match)
    match = finder.find(part.workloads[-1])
    return (match, part.workloads[-1]) if isinstance(match, Match) else "; ".join(dict.fromkeys([*reasons, match]))


# -- what modules compute -----------------------------------------------------------------------------------------
def _dtype(*tensors: torch.Tensor | None) -> str:
    """Of a module's parameters. Raises Unfit where libraries have none such."""
    given = [tensor for tensor in tensors if tensor is not None]
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in given}
    if dtypes not in ({"float32"}, {"bfloat16"}, {"float16"}):
        raise Unfit(f"its parameters are of {', '.join(sorted(dtypes))}")
    if any(tensor.is_inference() for tensor in given):
        raise Unfit("its parameters were made in inference mode: a change of them could not be noticed")
    if any(tensor.device.type != "cpu" for tensor in given):
        raise Unfit("its parameters are not in the memory of the CPU")
    return dtypes.pop()


def _dense(name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Part:
    args = {"m": "M", "n": weight.shape[0], "k": weight.shape[1]}
    dtype = _dtype(weight, bias)
    bare = make_workload("dense", args, dtype)
    return Part(name, (bare,) if bias is None else (make_workload("dense", args, dtype, ["bias"]), bare))


def _linear(module: nn.Linear) -> Iterator[Part]:
    yield _dense("linear", module.weight, module.bias)


def _layer_norm(module: nn.LayerNorm) -> Iterator[Part]:
    if len(module.normalized_shape) != 1 or module.weight is None or module.bias is None:
        raise Unfit("it normalises several axes, or has no weight or no bias")
    args = {"m": "M", "n": module.normalized_shape[0], "eps": module.eps}
    yield Part("layer_norm", (make_workload("layer_norm", args, _dtype(module.weight, module.bias)),))


def _rms_norm(module: nn.RMSNorm) -> Iterator[Part]:
    if len(module.normalized_shape) != 1 or module.weight is None:
        raise Unfit("it normalises several axes, or has no weight")
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    args = {"m": "M", "n": module.normalized_shape[0], "eps": eps}
    yield Part("rms_norm", (make_workload("rms_norm", args, _dtype(module.weight)),))


def _softmax(module: nn.Softmax) -> Iterator[Part]:
    yield Part("softmax", (make_workload("softmax", {"m": "M", "n": "N"}),))


def _conv2d(module: nn.Conv2d) -> Iterator[Part]:
    window = {}
    for name in ("stride", "padding", "dilation"):
        sizes = getattr(module, name)
        if isinstance(sizes, str) or len(set(sizes)) != 1 or module.padding_mode != "zeros":
            raise Unfit("its padding is not of zeros, or it differs along the axes")
        window["pad" if name == "padding" else name] = sizes[0]
    channels, kernel = {"b": "B", "c": module.in_channels, "o": module.out_channels}, module.kernel_size
    args = {**channels, "h": "H", "w": "W", "r": kernel[0], "s": kernel[1], **window, "groups": module.groups}
    dtype = _dtype(module.weight, module.bias)
    yield Part("conv2d", (make_workload("conv2d", args, dtype, [] if module.bias is None else ["bias"]),), bound_whole)


def _attention(module: nn.MultiheadAttention) -> Iterator[Part]:
    if module.in_proj_weight is None:
        raise Unfit("keys and values have sizes of their own")
    yield _dense("in_proj", module.in_proj_weight, module.in_proj_bias)
    args = {"b": "B", "h": module.num_heads, "i": "S", "j": "S", "d": module.head_dim}
    yield Part("attention", (make_workload("attention", args, _dtype(module.in_proj_weight)),), bound_whole)
    yield _dense("out_proj", module.out_proj.weight, module.out_proj.bias)


SWAPS: dict[type[nn.Module], tuple[type[nn.Module], Callable[[Any], Iterator[Part]]]] = {
    nn.Linear: (tuned.TunedLinear, _linear),
    nn.LayerNorm: (tuned.TunedLayerNorm, _layer_norm),
    nn.RMSNorm: (tuned.TunedRMSNorm, _rms_norm),
    nn.Softmax: (tuned.TunedSoftmax, _softmax),
    nn.Conv2d: (tuned.TunedConv2d, _conv2d),
    nn.MultiheadAttention: (tuned.TunedMultiheadAttention, _attention),
}
"""By exact type: what a subclass computes is not known."""
