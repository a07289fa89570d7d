"""What libraries are compared with, a file for each rival; ``contender`` makes any of them by its name.

Each is loaded when it is asked for, once the threads of libraries have been limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import shapewright as sw
from benchmarks.harness.calls import Call, Contender, Shape, inputs_of, library_call, outputs_of, stream_bytes
from benchmarks.rivals import metaschedule
from shapewright.library import Library
from tuner.measure.roof import peak_call
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

OURS = "ours"
PEAK = "peak"
"""Does multiply-adds in registers, for the share of the peak that a kernel reaches."""
STREAM = "stream"
"""Reads and writes as many bytes as the workload's operands have, for the share of the bandwidth."""
SEPARATE = "separate"
"""Libraries of ours one after the other, those of the parts of a program, whose folders are sorted as they run."""
METASCHEDULE, DLIGHT, DIETCODE = "metaschedule", "dlight", "dietcode"
VENDORS = {
    "mm": ("torch_products", "mm"),
    "bmm": ("torch_products", "bmm"),
    "linear": ("torch_products", "linear"),
    "mkl": ("torch_products", "mkl"),
    "onednn": ("torch_products", "packed"),
    "compile": ("torch_kernels", "compiled"),
    "torch": ("torch_kernels", "prepare"),
}
"""Routines that users call, all through PyTorch: the module and its function, from a workload to the calls. Ratios
against the best rival are over these alone; no others serve every shape without being told it in advance."""


def contender(
    name: str, workload: Workload, library: Path | None, threads: int, target: Target | None = None
) -> Contender:
    """A library of ours in ``library``, the rival of that name, PEAK or STREAM. Raises DoesNotApply.

    ``target``: whose instructions PEAK uses; by default this machine's.
    """
    if name == PEAK:
        from tuner.measure.roof.kernels import loaded_roof  # noqa: PLC0415 - compiles

        target = target or native()
        peak = peak_call(loaded_roof(target, 1), target)
        return lambda shape: peak
    if name == DLIGHT:
        from benchmarks.rivals.dlight import dlight  # noqa: PLC0415

        return dlight(workload, threads)
    if name == METASCHEDULE and library is not None:
        return metaschedule.prepare(workload, library)
    if name == SEPARATE and library is not None:
        parts = [sw.load(path.parent) for path in sorted(library.rglob("manifest.json"))]
        return lambda shape: separate_call(workload, parts, shape)
    if library is not None:
        ours = sw.load(library)
        return lambda shape: library_call(ours, inputs_of(workload, shape), outputs_of(workload, shape))
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    if name == STREAM:
        from benchmarks.rivals.torch_products import stream  # noqa: PLC0415

        return lambda shape: stream(*stream_bytes(workload, shape))
    module, function = VENDORS[name]
    prepared = getattr(import_module(f"benchmarks.rivals.{module}"), function)(workload)
    return lambda shape: prepared(inputs_of(workload, shape))


def separate_call(workload: Workload, parts: Sequence[Library], shape: Shape) -> Call:
    """Libraries of the parts of a workload, one after the other: tensors have the same names in all of them."""
    known = dict(zip(workload.program.inputs, inputs_of(workload, shape), strict=True))
    calls = list[Call]()
    for part in parts:
        own, outputs = part.workload, outputs_of(part.workload, shape)
        calls.append(library_call(part, [known[each.name] for each in own.inputs], outputs))
        known |= zip(own.program.outputs, outputs, strict=True)

    def call() -> None:
        for each in calls:
            each()

    return call
