"""Candidates for the tests of builders, runners and workers: small programs in C that behave as they are asked to."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tvm_ffi.libinfo

from tuner.measure import BuildResult, RunRequest
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.program.target import native
from tuner.schedule.space import MicroKernel

N, K = 24, 16
T = ShapeVar("T", range(1, 65))
TASK = SearchTask("matmul", {"m": T, "n": N, "k": K}, (T,), instances=[5, 64]).on(native())

_SOURCE = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>

static DLTensor *tensor(const TVMFFIAny *arg) {
  if (arg->type_index == kTVMFFIDLTensorPtr) return (DLTensor *)arg->v_ptr;
  return (DLTensor *)((char *)arg->v_obj + sizeof(TVMFFIObject));
}

static float *data(const TVMFFIAny *arg) {
  DLTensor *found = tensor(arg);
  return (float *)((char *)found->data + found->byte_offset);
}

int __tvm_ffi_kernel(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  float *a = data(&args[0]), *b = data(&args[1]), *out = data(&args[2]);
  int64_t m = tensor(&args[0])->shape[0], k = tensor(&args[0])->shape[1], n = tensor(&args[1])->shape[1];
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
      out[i * n + j] = sum;
    }
  %s
  return 0;
}
"""

RIGHT = ""
SLOW = "usleep(1000);"
WRONG = "if (m > 1) out[n + 2] += 1;"
UNWRITTEN = "if (m > 1) out[m * n - 1] = NAN;"
PAST_THE_END = "if (m % 4) out[m * n + 1] = 1;"
BEFORE_THE_START = "if (m % 4) out[-3] = 1;"
CRASH = "raise(SIGSEGV);"
HANG = "for (;;) pause();"
HANG_WHEN_TIMED = "if (m == 64) for (;;) pause();"


def wait_for(what: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Until ``what()`` holds; fails after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"it did not happen within {limit_s:g} s"
        time.sleep(0.05)


@cache
def program(behaviour: str = RIGHT, compiler: str = "gcc") -> bytes:
    """A shared object that computes the matmul of TASK and then does as ``behaviour`` says, in C."""
    with tempfile.TemporaryDirectory() as directory:
        source, binary = Path(directory) / "kernel.c", Path(directory) / "kernel.so"
        source.write_text(_SOURCE.replace("%s", behaviour))
        include = tvm_ffi.libinfo.find_include_path()
        command = [compiler, "-shared", "-fPIC", "-O1", f"-I{include}", "-o", str(binary), str(source)]
        subprocess.run(command, check=True, timeout=60)
        return binary.read_bytes()


def kernel(number: int = 0) -> MicroKernel:
    # Of a rule that packs nothing: the device asks it.
    return MicroKernel("fallback", 1, (("number", number),))


def built(behaviour: str = RIGHT, number: int = 0) -> BuildResult:
    return BuildResult(kernel(number), program(behaviour), 0.01)


def request(behaviour: str = RIGHT, number: int = 0, *shapes: int) -> RunRequest:
    return RunRequest(built(behaviour, number), tuple(WorkloadInstance.of({"T": t}) for t in shapes or (5,)))
