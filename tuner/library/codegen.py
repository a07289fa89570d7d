"""From micro-kernels to machine code: the one place where programs become binaries. Imports TVM.

A candidate and a library are the same thing, a candidate being a library of one kernel. Both export ``ENTRY``: the
operands of a call in order (constants packed as ``layouts_of`` says), the outputs last. Symbols are read from the
tensors' shapes, dtypes and shapes are checked there, and the call is handed on to a private function for each kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import compilation_pipeline
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.library.dispatcher import Leaf, Tree
from tuner.library.entry import EntryArguments
from tuner.library.machine_code import shared_object, tvm_target
from tuner.library.package import ENTRY
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.rules import emit, layout_group, layouts_of
from tuner.rules.layout import Layout
from tuner.rules.space import MicroKernel

LOWERING = "shapewright"
"""The name that TVM knows our passes by."""


def build_candidate(task: SearchTask, kernel: MicroKernel) -> bytes:
    """The bytes of a shared object that exports ENTRY, right for every shape. Raises if it cannot be built."""
    return compile_module(task, module_of(task, [kernel], Leaf(0)))


def module_of(task: SearchTask, kernels: Sequence[MicroKernel], tree: Tree) -> Any:
    """An IRModule with one private function for each kernel, and ENTRY, which dispatches by ``tree``."""
    groups = {layout_group(task, kernel) for kernel in kernels}
    if len(groups) > 1:
        raise ValueError(f"kernels of one library share their packed layouts, got {groups}")
    names = [_name(index) for index in range(len(kernels))]
    module = tvm.IRModule({name: emit(task, kernel, name) for name, kernel in zip(names, kernels, strict=True)})
    callees = [module.get_global_var(name) for name in names]
    module[ENTRY] = _entry(task.workload, layouts_of(task, kernels[0]), callees, tree)
    return module


def compile_module(task: SearchTask, module: Any) -> bytes:
    """The bytes of a shared object with the code of ``module`` for the task's target."""
    return shared_object(compiled(task, module), task.known_target)


def compiled(task: SearchTask, module: Any) -> Any:
    """What ``tvm.compile`` makes of ``module`` for the task's target."""
    return tvm.compile(module, target=tvm_target(task.known_target), tir_pipeline=LOWERING)


def module_json(module: Any) -> str:
    """The IR of ``module``, from which the library can be built again when the space has moved on."""
    return str(tvm.ir.save_json(module))


def kernel_scripts(module: Any, count: int) -> list[str]:
    """What ``module_of`` made of each of its ``count`` kernels, in order, as TVMScript to be read."""
    return [str(module[_name(index)].script()) for index in range(count)]


def toolchain() -> dict[str, str]:
    """What builds binaries here: versions that a manifest carries."""
    return {"tvm": tvm.__version__, "llvm": str(tvm.target.codegen.llvm_version_major())}


def _lowering() -> tuple[Any, Any, Any]:
    """What TensorIR goes through on its way to LLVM, as TVM wants it: the passes, then those of host and of device.

    TVM's own list takes four times as long: it is for programs with blocks, threads of a GPU or buffers to be made
    smaller, and looks for subexpressions in common, as LLVM does again.
    """
    passes = tirx.transform
    order = [
        passes.StmtSimplify(),
        # Takes away loops of one turn, around which LLVM allocates registers worse.
        s_tir.transform.LowerOpaqueBlock(),
        passes.FlattenBuffer(),
        passes.StorageRewrite(),
        # Again: masked loads must be of ramps, not of sums of ramps.
        passes.StmtSimplify(),
        passes.VerifyMemory(),
        passes.AnnotateEntryFunc(),
        passes.SplitHostDevice(),
        passes.MakePackedAPI(),
        # Only after the arguments' dtypes are checked: pointers to bfloat16 are none of LLVM's.
        passes.BF16StorageLegalize(),
    ]
    host, device = compilation_pipeline.finalize_host_passes, compilation_pipeline.finalize_device_passes
    return tvm.ir.transform.Sequential(order), host, device


tirx.register_tir_pipeline(LOWERING, _lowering)


def _name(index: int) -> str:
    """Of the private function of a kernel."""
    return f"{ENTRY}_{index}"


def _entry(workload: Workload, layouts: Mapping[str, Layout], callees: Sequence[Any], tree: Tree) -> Any:
    arguments = EntryArguments(workload, layouts)
    with IRBuilder() as builder, I.prim_func():
        I.func_name(ENTRY)
        I.func_attr({"tirx.noalias": True, "global_symbol": ENTRY})
        buffers = arguments.declare()
        with arguments.checked():
            passed = [buffer.data for buffer in buffers] + list(arguments.symbols.values())
            calls = [tvm.ir.Call(callee, passed, ret_ty="int32") for callee in callees]
            _dispatch(tree, arguments.symbols, calls)
    return builder.get()


def _dispatch(tree: Tree, dims: Mapping[str, Any], calls: Sequence[Any]) -> None:
    if isinstance(tree, Leaf):
        code = I.Bind(calls[tree.kernel])
        with I.Assert(code == tirx.IntImm("int32", 0), "the kernel could not run: out of memory or threads"):
            return
    with I.If(dims[tree.dim] <= tirx.IntImm("int64", tree.at_most)):
        with I.Then():
            _dispatch(tree.then, dims, calls)
        with I.Else():
            _dispatch(tree.otherwise, dims, calls)
