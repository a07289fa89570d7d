"""Candidates and libraries, by what compiles for a kind of target. Imports TVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.library import codegen
from tuner.library.dispatcher import Dispatcher
from tuner.library.gpu import candidate as gpu
from tuner.library.package import CompiledKernel, LibraryFiles, package
from tuner.program.job.task import SearchTask
from tuner.schedule.space import MicroKernel


class Compile(Protocol):
    """A shared object that exports ENTRY, right for every shape, and code that a library can be linked from. Raises if
    it cannot be built."""

    def __call__(self, task: SearchTask, kernel: MicroKernel) -> CompiledKernel: ...


class Link(Protocol):
    """Link and package, in this process: a Builder does it in one that may die of it.

    ``objects``: the code of kernels that were compiled already; the others are compiled here.
    """

    def __call__(
        self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes] | None = None
    ) -> LibraryFiles: ...


@dataclass(frozen=True)
class Backend:
    """What compiles for a kind of target."""

    compile: Compile
    link: Link


def compile_candidate(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
    """See Compile."""
    return BACKENDS[task.known_target.kind].compile(task, kernel)


def build_library(
    dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes] | None = None
) -> LibraryFiles:
    """See Link."""
    return BACKENDS[dispatcher.task.known_target.kind].link(dispatcher, job_id, objects)


def _linked(
    dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes] | None = None
) -> LibraryFiles:
    task, kernels, tree = dispatcher.task, dispatcher.kernels, dispatcher.tree
    known = objects or {}
    code = [known.get(kernel) or codegen.object_of(task, kernel) for kernel in kernels]
    binary = codegen.link(task, kernels, tree, code)
    module = codegen.module_of(task, kernels, tree)
    scripts = codegen.kernel_scripts(module, len(kernels))
    return package(dispatcher, binary, codegen.module_json(module), codegen.toolchain(), job_id, scripts)


BACKENDS: Mapping[str, Backend] = {
    "llvm": Backend(codegen.compile_candidate, _linked),
    "cuda": Backend(gpu.compile_candidate, gpu.build_library),
}
"""By the kind of a target."""
