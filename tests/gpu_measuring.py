"""Candidates for devices on GPUs: libraries of the launcher whose kernels are small programs in C, which the stand-in
for NVIDIA's driver runs, and that behave as they are asked to. Beside tests/measuring.py, which has those for CPUs."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpus import DRIVER
from tests.measuring import CRASH, HANG, HANG_WHEN_TIMED, RIGHT, SLOW, K, N, T, kernel
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.gpu.build import build_gpu_library
from tuner.library.package import LIBRARY, LibraryFiles
from tuner.measure import BuildResult, RunRequest
from tuner.measure.runners.local_device import LocalDevice
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import Target
from tuner.records import ErrorKind
from tuner.schedule import emit as emit_of
from tuner.schedule.gpu.cubin import SCRATCH_POINTERS, Cubin
from tuner.schedule.gpu.plan import Choices, emit
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.space import MicroKernel

H100 = Target.from_json({"kind": "cuda", "product": "h100"})
TASK = SearchTask("matmul", {"m": T, "n": N, "k": K}, (T,), instances=[5, 64], target=H100)
PRODUCT = {"program": "out[m, n] = sum(k) x[m, k] * y[k, n]", "extents": {"m": "T", "n": N, "k": K}}
"""The matmul of TASK, for tasks in which it has constants."""

_SUMS = """for (int i = 0; i < m; ++i)
    for (int j = 0; j < N; ++j) {
      float sum = 0;
      for (int p = 0; p < K; ++p) sum += x[i * K + p] * y[p * N + j];
      out[i * N + j] = sum;
    }"""
_SOURCE = """
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N = %(n)d, K = %(k)d, HANGS = 1, ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = -701 };
int kernel_0(const unsigned *grid, void **parameters, uint64_t *ns) {
  float *out = *(float **)parameters[0], *x = *(float **)parameters[1], *y = *(float **)parameters[2];
  const int m = *(int *)parameters[3], n = N;
  const uint64_t moved = *ns;
  *ns = 1000 + 100 * (uint64_t)m;
  %(sums)s
  %(behaviour)s
  return 0;
}
"""

ALIKE: Mapping[str, str] = {
    SLOW: "usleep(20000); *ns = 1500000;",
    CRASH: "if (m > 0) return ILLEGAL_ADDRESS;",
    HANG: "return HANGS;",
    HANG_WHEN_TIMED: "if (m == 64) return HANGS;",
}
"""What behaves on a GPU as another text does on a CPU; other texts do the same on both."""
WRITES_INPUT = "if (m > 1) y[3] = 7;"
REFUSED = "return OUT_OF_RESOURCES;"


def program(behaviour: str = RIGHT, task: SearchTask = TASK) -> bytes:
    """The machine code of such a library."""
    return library(behaviour, task).files[LIBRARY]


@cache
def library(behaviour: str = RIGHT, task: SearchTask = TASK) -> LibraryFiles:
    """A library that computes the matmul of a task and then does as ``behaviour`` says, in C."""
    module = emit(task.workload, Choices(product=Tiling(32, 32, 16)))
    code = _compiled(_SOURCE, n=N, k=K, behaviour=ALIKE.get(behaviour, behaviour))
    sizes = (8, 8, 8, 4, *(8,) * SCRATCH_POINTERS)
    (launch,) = module.launches
    cubin = Cubin(launch.function.name, code, "", 0, 32, 0, launch.num_warps, "sm_90", sizes)
    return build_gpu_library(Dispatcher(task, (kernel(),), 0, Leaf(0)), [(module, [cubin])])


def built(behaviour: str = RIGHT, number: int = 0) -> BuildResult:
    return BuildResult(kernel(number), program(behaviour), 0.01)


def request(behaviour: str = RIGHT, number: int = 0, *shapes: int) -> RunRequest:
    return RunRequest(built(behaviour, number), tuple(WorkloadInstance.of({"T": t}) for t in shapes or (5,)))


# -- kernels of searches ----------------------------------------------------------------------------------------------
_PRODUCT = """
#include <stdint.h>
enum { N = %(n)d, K = %(k)d, ROWS = %(rows)d, HANGS = 1, ILLEGAL_ADDRESS = 700 };
int %(name)s(const unsigned *grid, void **parameters, uint64_t *ns) {
  float *out = *(float **)parameters[%(out)d], *x = *(float **)parameters[%(x)d], *y = *(float **)parameters[%(y)d];
  const int m = *(int *)parameters[3];
  *ns = 1000 + 4000 * (uint64_t)((m + ROWS - 1) / ROWS) / ROWS;
  %(sums)s
  %(behaviour)s
  return 0;
}
"""


def seconds_of(kernel: MicroKernel, m: int) -> float:
    """What the kernel of a Compiler takes."""
    rows = kernel["block_m"]
    return 1e-9 * (1000 + 4000 * -(-m // rows) // rows)


@cache
def _compiled(text: str, **facts: Any) -> bytes:
    """The machine code of C that takes these facts, and ``sums``, in its places."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
        source.write_text(text % {"sums": _SUMS, **facts})
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(binary), str(source)], check=True, timeout=60)
        return binary.read_bytes()


class Compiler:
    """A ``Builder`` for a matmul of any m, whose machine code the stand-in runs, the longer the smaller its tiles are.
    It refuses what takes several launches, or tensor maps. ``behaviour``: what else a kernel does, in C."""

    def __init__(self, behaviour: Callable[[MicroKernel], str] = lambda _: RIGHT) -> None:
        self._behaviour = behaviour

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return [self._built(task, kernel) for kernel in kernels]

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        task = dispatcher.task
        made = [(emit_of(task, each, each.id), pickle.loads(objects[each])) for each in dispatcher.kernels]
        return build_gpu_library(dispatcher, made, job_id)

    def close(self) -> None:
        """Nothing was started."""

    def _built(self, task: SearchTask, kernel: MicroKernel) -> BuildResult:
        module = emit_of(task, kernel, kernel.id)
        launches = module.launches
        if len(launches) > 1 or launches[0].function.descriptors:
            return BuildResult(kernel, None, 0.0, ErrorKind.BUILD, "kernel_0 spills 8 bytes")
        function, sizes = launches[0].function, {axis: dim.constant for axis, dim in task.workload.sizes.items()}
        places = {name: place for place, name in enumerate(function.pointers)}
        what = {"rows": kernel["block_m"], "behaviour": self._behaviour(kernel), **places}
        code = _compiled(_PRODUCT, name=function.name, n=sizes["n"], k=sizes["k"], **what)
        widths = (8, 8, 8, *(4,) * len(function.symbols), *(8,) * SCRATCH_POINTERS)
        cubins = [Cubin(function.name, code, "", 0, 32, 0, launches[0].num_warps, "sm_90", widths)]
        made = build_gpu_library(Dispatcher(task, (kernel,), 0, Leaf(0)), [(module, cubins)])
        return BuildResult(kernel, made.files[LIBRARY], 0.01, code=pickle.dumps(cubins))


@contextmanager
def gpu_host(fake_cuda: Path, folder: Path, *settings: str) -> Iterator[Path]:
    """A folder with a driver of its own: what starts meanwhile finds it. ``settings``: as in FAKE_CUDA_GPUS=8.0."""
    own = folder / "driver"
    own.mkdir()
    shutil.copy(fake_cuda / DRIVER, own / DRIVER)
    set_gpu(own, *settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(own))
        yield own


def set_gpu(driver: Path, *settings: str) -> None:
    """Of a driver that may be running."""
    part = driver / "fake.conf.part"
    part.write_text("".join(f"{line}\n" for line in settings))
    part.rename(driver / "fake.conf")


@contextmanager
def gpu_device(fake_cuda: Path, folder: Path, *settings: str) -> Iterator[LocalDevice]:
    """A device that measures on the stand-in's first GPU."""
    with gpu_host(fake_cuda, folder, *settings), LocalDevice(folder, ["--gpu", "0"]) as device:
        yield device
