"""Compiling a dispatcher and its kernels to the files of a library. Imports TVM."""

from __future__ import annotations

from tuner.library import codegen
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles, package


def build_library(dispatcher: Dispatcher, job_id: str | None) -> LibraryFiles:
    """Compile and package, in this process: a Builder does it in one that may die of it."""
    module = codegen.module_of(dispatcher.task, dispatcher.kernels, dispatcher.tree)
    binary = codegen.compile_module(dispatcher.task, module)
    scripts = codegen.kernel_scripts(module, len(dispatcher.kernels))
    return package(dispatcher, binary, codegen.module_json(module), codegen.toolchain(), job_id, scripts)
