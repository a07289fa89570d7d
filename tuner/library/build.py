"""Linking a dispatcher and its kernels to the files of a library. Imports TVM."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.library import codegen
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles, package
from tuner.schedule.space import MicroKernel


def build_library(
    dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes] | None = None
) -> LibraryFiles:
    """Link and package, in this process: a Builder does it in one that may die of it.

    ``objects``: the object files of kernels that were compiled already; the others are compiled here.
    """
    task, kernels, tree = dispatcher.task, dispatcher.kernels, dispatcher.tree
    known = objects or {}
    code = [known.get(kernel) or codegen.object_of(task, kernel) for kernel in kernels]
    binary = codegen.link(task, kernels, tree, code)
    module = codegen.module_of(task, kernels, tree)
    scripts = codegen.kernel_scripts(module, len(kernels))
    return package(dispatcher, binary, codegen.module_json(module), codegen.toolchain(), job_id, scripts)
