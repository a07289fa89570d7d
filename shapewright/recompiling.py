"""Libraries that are compiled again from their IR, to be linked into something else. Imports TVM.

The TVM that built a library has to be the one that compiles it again. What comes out need not be the bytes that were
verified, so it is verified again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from shapewright.checking import Checker
from shapewright.gpu import is_for_gpu
from tuner.errors import ShapewrightError
from tuner.library.codegen import toolchain
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import IR, inflated
from tuner.program.language.workload import JsonObject


def ir_of(files: Mapping[str, bytes], manifest: JsonObject) -> Any:
    """The IRModule of a checked library: a function for each kernel, and ENTRY. Raises ShapewrightError."""
    if is_for_gpu(manifest):
        problem = "the library is for GPUs, and is called from Python alone"
        raise ShapewrightError(f"{problem}: take one for CPUs to link its code into something else")
    if IR not in files:
        raise ShapewrightError(f"the library has no {IR}: tune it again")
    built_by, here = manifest.get("toolchain") or {}, toolchain()
    if built_by != here:
        told = [", ".join(f"{name} {version}" for name, version in sorted(each.items())) for each in (built_by, here)]
        raise ShapewrightError(
            f"the library was built by {told[0]}, here is {told[1]}: install that TVM, or tune again"
        )
    return tvm.ir.load_json(inflated(files, IR).decode())


def verify(checker: Checker, dispatcher: Dispatcher, binary: bytes) -> None:
    """Raise ShapewrightError if a shared object that was compiled again is wrong."""
    _, problems = checker.verify(dispatcher, binary)
    if problems:
        raise ShapewrightError(f"compiled again the library is wrong: {problems[0]}; tune it again")
