"""From micro-kernels to machine code: the one place where programs become binaries. Imports TVM.

A candidate and a library are the same thing, a candidate being a library of one kernel. Both export ``ENTRY``: the
operands of a call in order (constants packed as ``layouts_of`` says), the outputs last. Symbols are read from the
tensors' shapes, dtypes and shapes are checked there, and the call is handed on to a function for each kernel.

Each kernel is compiled to an object of its own, and ENTRY to another: a library is linked from the very code that was
measured in its candidates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import lru_cache
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import compilation_pipeline
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.library.dispatcher import Leaf, Node, Tree, expression
from tuner.library.entry import EntryArguments
from tuner.library.machine_code import linked, object_code, tvm_target
from tuner.library.package import ENTRY, CompiledKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.schedule import emit, layout_group, layouts_of
from tuner.schedule.function import dim_expr
from tuner.schedule.layout import Layout
from tuner.schedule.product.atom import NEEDS_TILES, Atom, imported
from tuner.schedule.product.atoms import atom_to_ask_for
from tuner.schedule.space import MicroKernel

LOWERING = "shapewright"
"""The name that TVM knows our passes by."""
SYMBOL = "shapewright.symbol"
"""The attribute of a function that names it to other objects."""
ENTRY_LEVEL: int | None = None
"""How much LLVM optimises ENTRY, see ``tvm_target``."""
ENTRIES = 64
"""Compiled entries of candidates that a process keeps: one for each workload, target and packed layout."""


def compile_candidate(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
    """A shared object that exports ENTRY, right for every shape, and the object that a library can be linked from.
    Raises if it cannot be built."""
    code = object_of(task, kernel)
    return CompiledKernel(link(task, [kernel], Leaf(0), [code]), code)


def object_of(task: SearchTask, kernel: MicroKernel) -> bytes:
    """The object file of a kernel alone."""
    return object_code(compiled(task, kernel_module(task, kernel)))


def kernel_module(task: SearchTask, kernel: MicroKernel) -> Any:
    """An IRModule of a kernel alone, which other objects know by ``symbol_of``."""
    function = emit(task, kernel, _name(0))
    return tvm.IRModule({_name(0): function.with_attr(SYMBOL, symbol_of(kernel))})


def symbol_of(kernel: MicroKernel) -> str:
    return f"{ENTRY}_{kernel.id}"


def link(task: SearchTask, kernels: Sequence[MicroKernel], tree: Tree, objects: Sequence[bytes]) -> bytes:
    """The bytes of a shared object that exports ENTRY, of the kernels' ``objects`` in the same order."""
    _check_layouts(task, kernels)
    entry = _compiled_entry(_EntryOf(task, kernels[0]), len(kernels), tree)
    symbols = {_name(index): symbol_of(kernel) for index, kernel in enumerate(kernels)}
    return linked([entry, *objects], task.known_target, symbols)


def module_of(task: SearchTask, kernels: Sequence[MicroKernel], tree: Tree) -> Any:
    """An IRModule with one private function for each kernel, and ENTRY, which dispatches by ``tree``: what is compiled
    in parts, as a whole."""
    _check_layouts(task, kernels)
    names = [_name(index) for index in range(len(kernels))]
    module = tvm.IRModule({name: emit(task, kernel, name) for name, kernel in zip(names, kernels, strict=True)})
    callees = [module.get_global_var(name) for name in names]

    def call(index: int, passed: Sequence[Any]) -> Any:
        return tvm.ir.Call(callees[index], passed, ret_ty="int32")

    module[ENTRY] = _entry(task, layouts_of(task, kernels[0]), call, tree)
    return module


def compiled(task: SearchTask, module: Any, level: int | None = None) -> Any:
    """What ``tvm.compile`` makes of ``module`` for the task's target. ``level``: see ``tvm_target``."""
    return tvm.compile(module, target=tvm_target(task.known_target, level), tir_pipeline=LOWERING)


def module_json(module: Any) -> str:
    """The IR of ``module``, from which the library can be built again when the space has moved on."""
    return str(tvm.ir.save_json(module))


def kernel_scripts(module: Any, count: int) -> list[str]:
    """What ``module_of`` made of each of its ``count`` kernels, in order, as TVMScript to be read."""
    return [str(module[_name(index)].script()) for index in range(count)]


def toolchain() -> dict[str, str]:
    """The toolchain that builds binaries here: versions that a manifest carries."""
    return {"tvm": tvm.__version__, "llvm": str(tvm.target.codegen.llvm_version_major())}


def _named(function: Any, _module: Any, _context: Any) -> Any:
    """A function that has a SYMBOL is known to other objects by it."""
    symbol = function.attrs.get(SYMBOL) if function.attrs else None
    return function if symbol is None else function.with_attr("global_symbol", symbol)


def lowering(*more: Any) -> tuple[Any, Any, Any]:
    """What TensorIR goes through on its way to LLVM, as TVM wants it: the passes, then those of host and of device.

    ``more``: passes for functions whose arguments are unpacked already.

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
        *more,
        # Only after the arguments' dtypes are checked: pointers to bfloat16 are none of LLVM's.
        passes.BF16StorageLegalize(),
        # Last, since what has a global symbol before is wrapped to be called from outside.
        passes.prim_func_pass(_named, opt_level=0, name="shapewright.Named"),
    ]
    host, device = compilation_pipeline.finalize_host_passes, compilation_pipeline.finalize_device_passes
    return tvm.ir.transform.Sequential(order), host, device


tirx.register_tir_pipeline(LOWERING, lowering)


def _name(index: int) -> str:
    """The name by which ENTRY calls a kernel."""
    return f"{ENTRY}_{index}"


def _check_layouts(task: SearchTask, kernels: Sequence[MicroKernel]) -> None:
    groups = {layout_group(task, kernel) for kernel in kernels}
    if len(groups) > 1:
        raise ValueError(f"kernels of one library share their packed layouts, got {groups}")


class _EntryOf:
    """What the code of ENTRY depends on, beside the tree: equal for kernels of the same packed layouts."""

    def __init__(self, task: SearchTask, kernel: MicroKernel) -> None:
        self.task, self.layouts = task, layouts_of(task, kernel)
        layouts = {name: layout.to_json() for name, layout in self.layouts.items()}
        parts = task.workload.to_json(), task.known_target.to_json(), layouts
        self._text = json.dumps(parts, sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EntryOf) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(ENTRIES)
def _compiled_entry(entry: _EntryOf, count: int, tree: Tree) -> bytes:
    """The object file of ENTRY, which calls ``count`` kernels of other objects."""

    def call(index: int, passed: Sequence[Any]) -> Any:
        return tirx.call_extern("int32", _name(index), *passed)

    module = tvm.IRModule({ENTRY: _entry(entry.task, entry.layouts, call, tree)})
    return object_code(compiled(entry.task, module, ENTRY_LEVEL))


CallKernel = Callable[[int, Sequence[Any]], Any]
"""The call of a kernel, by its number, with these arguments: an error code."""


def _entry(task: SearchTask, layouts: Mapping[str, Layout], call: CallKernel, tree: Tree) -> Any:
    atom = atom_to_ask_for(task.known_target.hardware)

    def write(passed: Sequence[Any], dims: Mapping[str, Any]) -> None:
        with imported(atom) if atom else nullcontext():
            _dispatch(tree, dims, lambda index: _checked(call(index, passed), atom))

    return entry_function(task.workload, layouts, write)


def _checked(called: Any, atom: Atom | None) -> None:
    """``called``: a kernel, for registers perhaps that a process has to ask for, as those of ``atom``."""
    code, nothing = I.Bind(called), tirx.IntImm("int32", 0)
    with ExitStack() as stack:
        if atom and atom.unit and atom.unit.refused:
            # Asked only where the kernel failed.
            refused = tirx.if_then_else(code == nothing, nothing, atom.unit.refused())
            stack.enter_context(I.Assert(refused == nothing, NEEDS_TILES))
        stack.enter_context(I.Assert(code == nothing, "the kernel could not run: out of memory or threads"))


def entry_function(
    workload: Workload, layouts: Mapping[str, Layout], write: Callable[[Sequence[Any], Mapping[str, Any]], None]
) -> Any:
    """ENTRY as a PrimFunc. ``write``: the statements that call a kernel with these arguments, at these values of the
    symbols."""
    arguments = EntryArguments(workload, layouts)
    with IRBuilder() as builder, I.prim_func():
        I.func_name(ENTRY)
        I.func_attr({"tirx.noalias": True, "global_symbol": ENTRY})
        buffers = arguments.declare()
        with arguments.checked():
            passed = [buffer.data for buffer in buffers] + list(arguments.symbols.values())
            write(passed, arguments.symbols)
    return builder.get()


def _dispatch(tree: Tree, dims: Mapping[str, Any], call: Callable[[int], None]) -> None:
    if isinstance(tree, Leaf):
        call(tree.kernel)
        return
    with I.If(_is_small(tree, dims)):
        with I.Then():
            _dispatch(tree.then, dims, call)
        with I.Else():
            _dispatch(tree.otherwise, dims, call)


def _is_small(node: Node, dims: Mapping[str, Any]) -> Any:
    return dim_expr(expression(node.dim), dims) <= tirx.IntImm("int64", node.at_most)


def chosen(tree: Tree, dims: Mapping[str, Any]) -> Any:
    """The number of the kernel that the tree chooses, as an expression."""
    if isinstance(tree, Leaf):
        return tirx.IntImm("int64", tree.kernel)
    return tirx.Select(_is_small(tree, dims), chosen(tree.then, dims), chosen(tree.otherwise, dims))
