"""``sw.torch.optimize``: the modules of a model swapped for ones that call tuned libraries. Nothing is compiled."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor

from shapewright.models.copies import copied
from shapewright.models.quantised import packed_layers
from shapewright.sources.finder import Finder, finder_of
from shapewright.sources.reports import NotReplaced
from shapewright.sources.source import Match, SourceLike
from shapewright.torch import modules as tuned
from shapewright.torch.devices import CPU, allows_tf32, device_of, target_of
from shapewright.torch.reports import Replaced, Report, note_shared
from shapewright.torch.tuned_module import Bound, Tuned, bound_rows, bound_whole, restored
from tuner.errors import InvalidInput
from tuner.program.job.build import make_workload
from tuner.program.language.workload import Workload
from tuner.program.target import native

PACKED = "its weights are packed: sw.torch.unpacked makes tensors of them, for torch.compile and torch.export"
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
    ShapewrightError where a source cannot be asked, or a module has no library. Where a tensor of the model is on a
    GPU, libraries are for that GPU, and modules elsewhere stay; where PyTorch is set to TF32 (``torch.
    set_float32_matmul_precision("high")``) as the model is optimized, libraries of workloads with ``tf32`` come first.

    Libraries compute in inference. Where a derivative is wanted (backward, forward mode, ``torch.func``), under
    autocast, for tensors of other classes and layouts, and while ``torch.jit`` traces, PyTorch's own forward runs, with
    one warning. Weights are packed when they are first used, and again when PyTorch has counted a change of them, or a
    fused optimizer has stepped. A write that it does not count (``weight.data.copy_``, NumPy, DLPack, memory that other
    processes write) has to be followed by ``sw.torch.forget()``; SHAPEWRIGHT_CHECK_WEIGHTS=1 finds those that are not.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput("model", f"{type(model).__name__} is none", "a torch.nn.Module")
    report = Report()
    target = target_of(itertools.chain(model.parameters(), model.buffers()))
    if isinstance(target, str):
        report.note([target])
        target = native()
    number = torch.get_num_threads() if target.gpu is None else 1
    threads = number if threads is None else threads
    finder = finder_of(source, strict=strict, threads=threads, target=target, tf32=allows_tf32(target))
    result = copied(model, note_shared(report))
    theirs = set(model.modules())
    for module in result.modules():
        if isinstance(module, Tuned) and module not in theirs:
            # Of an optimized model: what has a library now is found anew.
            restored(module)
    theirs.update(_inner(result))
    for name, module in list(result.named_modules()):
        if module not in theirs:
            _swap(name or type(module).__name__, module, finder, report, strict)
    for layer in list(result.modules()):
        if type(layer) is nn.TransformerEncoderLayer and any(isinstance(each, Tuned) for each in layer.modules()):
            _become(layer, tuned.TunedEncoderLayer, {}, report, finder)
    if not isinstance(result, Tuned):
        # torch.jit.script puts what it compiles in the places of modules: of a copy, then.
        result.__dict__["__prepare_scriptable__"] = functools.partial(_scriptable, result)
    report.kept += [
        NotReplaced(name or "the model", type(layer).__name__, PACKED) for name, layer in packed_layers(result).items()
    ]
    report.note(finder.notes)
    result.shapewright_report = report
    return result


def _inner(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that MultiheadAttention reads, and never calls."""
    for each in model.modules():
        if type(each) is nn.MultiheadAttention:
            yield from each.children()


def _swap(name: str, module: nn.Module, finder: Finder, report: Report, strict: bool) -> None:
    """Give ``module`` its tuned form. Whatever is in the way leaves it as it is; where ``strict``, faults raise."""
    base = next((each for each in SWAPS if isinstance(module, each)), None)
    if base is None:
        return
    found = Report()
    try:
        bound = _bound(name, module, base, finder, found)
        if bound:
            _become(module, SWAPS[base][0], bound, report, finder)
    except Unfit as error:
        found = Report(kept=[NotReplaced(name, type(module).__name__, str(error))])
    except Exception as error:
        if strict:
            raise
        reason = f"{type(error).__name__}: {error}"
        finder.note(f"{name} stays as it was: {reason}")
        warnings.warn(f"shapewright: {name} stays as it was: {reason}", stacklevel=3)
        found = Report(kept=[NotReplaced(name, type(module).__name__, reason)])
    report.kept += found.kept
    report.replaced += found.replaced


def _bound(name: str, module: nn.Module, base: type[nn.Module], finder: Finder, report: Report) -> dict[str, Bound]:
    """The libraries of a module, by part. Raises Unfit."""
    parts, device = _parts(module, base), device_of(finder.target)
    if any(tensor.device.type != device for tensor in itertools.chain(module.parameters(), module.buffers())):
        raise Unfit(f"its parameters are not in the memory of {'the CPU' if device == CPU else 'the GPU'}")
    bound: dict[str, Bound] = {}
    for part in parts:
        where = name if len(parts) == 1 else f"{name}.{part.name}"
        matched = _match(part, finder)
        if isinstance(matched, str):
            wanted = finder.wanted(part.workloads[0])
            report.kept.append(NotReplaced(where, str(wanted), matched, workload=wanted))
            continue
        match, workload = matched
        bound[part.name] = part.bind(match.library.digest, workload)
        plans = tuple(bound[part.name].plans.values())
        threads = match.library.manifest["threads"]
        report.replaced.append(
            Replaced(
                where, str(workload), workload.key, match.library.digest, match.how, match.source, threads,
                cache=match.cache, plans=plans,
            )
        )  # fmt: skip
    return bound


def _parts(module: nn.Module, base: type[nn.Module]) -> list[Part]:
    if type(module) is not base:
        raise Unfit(f"it is a subclass of {base.__name__}, and what that computes is not known")
    for each in module.modules():
        if "parametrizations" in each._modules or any(isinstance(value, torch.Tensor) for value in vars(each).values()):
            raise Unfit("a tensor of it is no parameter and no buffer: it is computed anew, and would be packed anew")
    try:
        return list(SWAPS[base][1](module))
    except InvalidInput as error:
        raise Unfit(f"no library can be made for it: {error}") from None


def _become(module: nn.Module, kind: type[nn.Module], bound: dict[str, Bound], report: Report, finder: Finder) -> None:
    # torch.fx leaves modules of this place whole, as it does those that they replace.
    module.__dict__["__module__"] = type(module).__module__
    module.__class__ = kind
    module.bound, module.fixed = bound, module.settings()
    module.tuned_for = device_of(finder.target)
    module.shapewright_report = report


def _scriptable(model: nn.Module) -> nn.Module:
    """A copy of an optimized model for torch.jit.script, with PyTorch's own modules."""
    result = copied(model, note_shared(Report()))
    for module in [result, *result.modules()]:
        restored(module)
    return result


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
    """The dtype of a module's parameters. Raises Unfit where libraries have none such."""
    given = [tensor for tensor in tensors if tensor is not None]
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in given}
    if dtypes not in ({"float32"}, {"bfloat16"}, {"float16"}):
        raise Unfit(f"its parameters are of {', '.join(sorted(dtypes))}")
    if any(
        type(tensor) not in (torch.Tensor, nn.Parameter, FakeTensor) or tensor.layout is not torch.strided
        for tensor in given
    ):
        raise Unfit("its parameters are sparse, or of a class of their own")
    if any(tensor.is_inference() for tensor in given):
        raise Unfit("its parameters were made in inference mode: a change of them could not be noticed")
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
    dtype = _dtype(module.weight)
    # PyTorch computes in float32 where a parameter has less, and takes that one's.
    eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    args = {"m": "M", "n": module.normalized_shape[0], "eps": eps}
    yield Part("rms_norm", (make_workload("rms_norm", args, dtype),))


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
"""Tuned modules and their parts by exact type: what a subclass computes is not known."""
