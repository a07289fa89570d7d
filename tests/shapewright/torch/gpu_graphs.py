"""Graphs of PyTorch with tensors on GPUs that are fake, in a process with the stand-in for a driver."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from shapewright.download import write
from shapewright.sources.finder import finder_of
from shapewright.torch.devices import target_of
from shapewright.torch.graphs import replace_lifted
from shapewright.torch.modules import TunedLinear
from shapewright.torch.op import call
from shapewright.torch.optimizing import optimize
from shapewright.torch.reports import Report
from shapewright.torch.tuned_module import Bound
from tests.shapewright.torch.replacing import Seen
from tests.tuner.library.gpu.driven import build
from tuner.program.job.build import workload_from_json
from tuner.program.target import Target, native
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.tiling import Tiling

WORKLOAD = {"op": "dense", "args": {"m": "M", "n": 64, "k": 48}, "epilogue": ["bias"], "dtype": "float16"}
TARGETS = {
    "cpu": native(), "sm_90": Target.from_json({"kind": "cuda", "arch": "sm_90"}),
    "sm_80": Target.from_json({"kind": "cuda", "arch": "sm_80"}),
}  # fmt: skip


def targets(capability: tuple[int, int]) -> list[str]:
    """What libraries have to be for, of inputs on the CPU, and with one on a GPU of this capability."""
    before, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device: capability
    try:
        with FakeTensorMode():
            here, there = torch.empty(3), torch.empty(3, device="cuda")
            found = target_of([here, 3]), target_of([here, there])
    finally:
        torch.cuda.get_device_capability = before
    return [each if isinstance(each, str) else each.mcpu for each in found]


def optimized() -> dict[str, Any]:
    """A linear layer on a GPU, and one that stays on the CPU, where there is a library for sm_90."""
    before, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device: (9, 0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _, files = build(workload_from_json(WORKLOAD), [Choices()])
            write(files.files, Path(folder))
            model = nn.Sequential(*(nn.Linear(48, 64, device="meta", dtype=torch.float16) for _ in range(2)))
            with FakeTensorMode(), torch.no_grad():
                for layer, device in zip(model, ("cuda", "cpu"), strict=True):
                    for name, parameter in list(layer.named_parameters()):
                        fake = torch.empty(parameter.shape, dtype=torch.float16, device=device)
                        setattr(layer, name, nn.Parameter(fake, requires_grad=False))
                result = optimize(model, folder)
                x = torch.empty((5, 48), dtype=torch.float16, device="cuda")
                with Seen() as seen:
                    out = result[0](x)
            report = result.shapewright_report
            return {
                "calls": seen.functions.count(call),
                "output": (str(out.device), tuple(out.shape)),
                "notes": list(report.notes),
                "kept": [(each.where, each.reason) for each in report.kept],
                "for": [getattr(layer, "tuned_for", None) for layer in result],
            }
    finally:
        torch.cuda.get_device_capability = before


def elsewhere() -> list[Any]:
    """A module that is tuned for a GPU, given a tensor on the CPU: whether PyTorch's own ran, and what was said."""
    module = TunedLinear(48, 64)
    module.bound, module.shapewright_report, module.tuned_for = {}, Report(), "cuda"
    module.bound["linear"] = Bound("0" * 64, workload_from_json({**WORKLOAD, "dtype": "float32"}), {})
    x = torch.ones(5, 48)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return [
            torch.equal(module(x), functional.linear(x, module.weight, module.bias)),
            *module.shapewright_report.notes,
        ]


def replaced(device: str, target: str) -> dict[str, Any]:
    """What becomes of a linear layer on a device, where there is a library for sm_90."""
    with tempfile.TemporaryDirectory() as folder, FakeTensorMode():
        shapes = ((5, 48), (64, 48), (64,))
        operands = [torch.empty(shape, dtype=torch.float16, device=device) for shape in shapes]
        graph = make_fx(functional.linear)(*operands)
        constants = frozenset(node.name for node in list(graph.graph.nodes)[1:3])
        with unset_fake_temporarily():
            _, files = build(workload_from_json(WORKLOAD), [Choices(product=Tiling(64, 64, 32, pack="kn"))])
            write(files.files, Path(folder))
            finder = finder_of(folder, target=TARGETS[target])
            report = replace_lifted(graph, constants, finder)
        out = graph(*operands)
        return {
            "calls": sum(node.target is call for node in graph.graph.nodes),
            "kept": [each.reason for each in report.kept],
            "output": (str(out.device), tuple(out.shape), str(out.dtype), isinstance(out, FakeTensor)),
        }
