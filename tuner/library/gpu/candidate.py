"""Candidates for GPUs: a micro-kernel as machine code, and whether the hardware carries it. Imports TVM; Triton where
something is compiled."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pickle
from collections.abc import Mapping, Sequence

from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.gpu.build import build_gpu_library
from tuner.library.package import LIBRARY, CompiledKernel, LibraryFiles
from tuner.program.job.task import SearchTask
from tuner.schedule import emit
from tuner.schedule.gpu.cubin import Cubin
from tuner.schedule.gpu.module import Module
from tuner.schedule.space import MicroKernel

COMPILER, EXTRA = "triton", "shapewright[gpu]"


class NoCompiler(ShapewrightError):
    """What compiles kernels for GPUs is not installed where candidates are built."""


class Misfit(ShapewrightError):
    """A kernel that ptxas says the hardware does not carry, or not without spilling."""


def compile_candidate(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
    """A library of one kernel, and its machine code, which another library can be linked from. Raises NoCompiler,
    Misfit, and what Triton raises where it refuses."""
    module, cubins = _compiled(task, kernel)
    made = build_gpu_library(Dispatcher(task, (kernel,), 0, Leaf(0)), [(module, cubins)])
    return CompiledKernel(made.files[LIBRARY], pickle.dumps(cubins))


def build_library(
    dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes] | None = None
) -> LibraryFiles:
    """See tuner.library.build."""
    task, known = dispatcher.task, objects or {}
    each = [_known(task, kernel, known.get(kernel)) for kernel in dispatcher.kernels]
    return build_gpu_library(dispatcher, each, job_id, {COMPILER: _version()})


def _known(task: SearchTask, kernel: MicroKernel, code: bytes | None) -> tuple[Module, Sequence[Cubin]]:
    """A kernel's module, and the machine code that this process's builder made of it before, or makes now."""
    return (_module(task, kernel), pickle.loads(code)) if code else _compiled(task, kernel)


def _module(task: SearchTask, kernel: MicroKernel) -> Module:
    module: Module = emit(task, kernel, kernel.id)
    return module


def _compiled(task: SearchTask, kernel: MicroKernel) -> tuple[Module, list[Cubin]]:
    gpu = task.known_target.gpu
    assert gpu is not None
    if importlib.util.find_spec(COMPILER) is None:
        raise NoCompiler(f"kernels for GPUs need {COMPILER} where they are built: pip install '{EXTRA}'")
    from tuner.schedule.gpu.cubins import compiled  # noqa: PLC0415 - Triton, for those who compile for GPUs

    module = _module(task, kernel)
    cubins = compiled(module, gpu.arch)
    for each in cubins:
        _check(each, gpu.architecture.block_shared_bytes)
    return module, cubins


def _check(cubin: Cubin, block_shared_bytes: int) -> None:
    if cubin.shared_bytes > block_shared_bytes:
        problem = f"takes {cubin.shared_bytes} bytes of shared memory, a block has {block_shared_bytes}"
        raise Misfit(f"{cubin.name} {problem}")
    if cubin.spilled_bytes:
        raise Misfit(f"{cubin.name} spills {cubin.spilled_bytes} bytes, with {cubin.registers} registers of a thread")


def _version() -> str:
    return importlib.metadata.version(COMPILER)
