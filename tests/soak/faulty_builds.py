"""Candidates that are real kernels and yet do what tests.soak.landscape says of them.

Some crash, hang or compute wrongly. The others work on for as long as its model says, in multiplications: a core that
slows down slows them, too.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import tvm
import tvm_ffi.libinfo

from tests.soak.landscape import fault_of, steps_per_row
from tuner.library import codegen
from tuner.library.dispatcher import Leaf
from tuner.library.machine_code import tvm_target
from tuner.library.package import ENTRY, CompiledKernel
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel

INNER = "inner"
MIN_S = 1.0
"""What a build takes at least, so that on any machine the jobs last as long as what happens to them."""

_SHIM = """
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>

int __tvm_ffi_inner(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result);

int __tvm_ffi_kernel(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  int code = __tvm_ffi_inner(self, args, count, result);
  const TVMFFIAny *last = &args[count - 1];
  DLTensor *out = last->type_index == kTVMFFIDLTensorPtr
      ? (DLTensor *)last->v_ptr : (DLTensor *)((char *)last->v_obj + sizeof(TVMFFIObject));
  int64_t rows = out->shape[0];
  if (code || rows < 2) return code;
  BEHAVIOUR
  uint64_t x = rows;
  for (int64_t step = (rows + MR - 1) / MR * MR * STEPS; step > 0; --step) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    __asm__ volatile("" : "+r"(x));
  }
  return code;
}
"""
_BEHAVIOUR = {
    None: "",
    ErrorKind.CRASH: "abort();",
    ErrorKind.RUN_TIMEOUT: "for (;;) pause();",
    ErrorKind.WRONG: "((float *)((char *)out->data + out->byte_offset))[1] += 1;",
}


def build(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
    """The bytes that ``codegen.compile_candidate`` makes, with a shim around what is exported."""
    time.sleep(MIN_S)
    module = codegen.module_of(task, [kernel], Leaf(0))
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    functions[INNER] = functions.pop(ENTRY).with_attr("global_symbol", INNER)
    target = tvm_target(task.known_target)
    executable = tvm.compile(_renamed(module, functions), target=target, tir_pipeline=codegen.LOWERING)
    with tempfile.TemporaryDirectory(prefix="shapewright-build-") as folder:
        path = Path(folder) / "library.so"
        executable.export_library(str(path), addons=[str(_shim(kernel, Path(folder)))])
        return CompiledKernel(path.read_bytes())


def _renamed(module: tvm.IRModule, functions: Mapping[str, object]) -> tvm.IRModule:
    """The module with INNER in the place of ENTRY; the others keep their variables, by which they are called."""
    del module[ENTRY]
    module[INNER] = functions[INNER]
    return module


def _shim(kernel: MicroKernel, folder: Path) -> Path:
    source, made = folder / "shim.c", folder / "shim.o"
    source.write_text(_SHIM.replace("BEHAVIOUR", _BEHAVIOUR[fault_of(kernel)]))
    numbers = [f"-DMR={kernel['mr']}", f"-DSTEPS={steps_per_row(kernel)}"]
    include = tvm_ffi.libinfo.find_include_path()
    command = ["gcc", "-c", "-fPIC", "-O1", f"-I{include}", *numbers, "-o", str(made), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return made
