"""Candidates on the cores of this machine, timed by TVM's clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import fmean
from typing import Any

import tvm
import tvm_ffi

from tuner.blas import Blas, numpys_blas
from tuner.library.package import ENTRY
from tuner.measure.roof import measure_roof
from tuner.measure.roof.levels import measure_levels
from tuner.measure.tensors import tensor_of
from tuner.measure.timing.baselines import MakeArray, flush_of_numpy, measure_baselines, numpy_call
from tuner.measure.timing.caches import flush_of, flushed
from tuner.measure.timing.protocol import Anchor, Flush, Timer
from tuner.measure.timing.turns import Contender, called
from tuner.measure.timing.waiting import waited_s
from tuner.measure.verification.guarded import Array, Guarded
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import native
from tuner.program.target.calibration import Levels
from tuner.records import Baselines, Roof

BEFORE = "shapewright.before_sample"


class CpuPlace:
    """A ``Place``."""

    alignment = 1

    def __init__(self, task: SearchTask) -> None:
        # Read by TVM when it starts its thread pool, at the first parallel loop of the first candidate.
        os.environ["TVM_NUM_THREADS"] = str(task.threads)
        self._task = task
        self._anchor = Anchor()

    def anchor(self) -> float:
        return self._anchor.seconds()

    def waited(self) -> float:
        return waited_s()

    def run(self, call: Callable[..., object], operands: Sequence[Guarded]) -> None:
        call(*(tensor_of(each.array) for each in operands))

    def timing(self, module: Any, arrays: Mapping[str, Array]) -> CpuTiming:
        outputs = list(arrays.values())[len(self._task.workload.inputs) :]
        operands = list(map(tensor_of, arrays.values()))
        return CpuTiming(module, operands, flush_of(self._task, arrays.items(), outputs))

    def numpy(self, dims: Mapping[str, int], array: MakeArray) -> Contender | None:
        call = numpy_call(self._task.workload, dims, array) if self._task.threads == 1 else None
        return None if call is None else called(call, flush_of_numpy(self._task, call))

    def blas(self) -> Blas | None:
        return numpys_blas(native().hardware.features)

    def baselines(self, instances: Sequence[WorkloadInstance], module: Any, array: MakeArray) -> Baselines:
        """The roof, and NumPy's products at these instances."""

        def roof(timer: Timer) -> Roof:
            return measure_roof(module, native(), self._task.threads, timer)

        found = measure_baselines(self._task, instances, array, self.anchor, roof)
        return replace(found, blas=self.blas())

    def levels(self, module: Any, timer: Timer) -> Levels:
        return measure_levels(module, native(), self._task.threads, timer)

    def is_lost(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class CpuTiming:
    """A ``Timing``."""

    module: Any
    operands: Sequence[Any]
    flush: Flush | None

    def call(self) -> object:
        call = self.module[ENTRY]
        return flushed(lambda: call(*self.operands), self.flush)()

    def mean(self, number: int) -> float:
        if number > 1:
            return self.sample(number, 1, lambda: None)[0]
        call = self.module[ENTRY]
        if self.flush is not None:
            self.flush()
        before = time.perf_counter()
        call(*self.operands)
        return time.perf_counter() - before

    def sample(self, number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        """Calls of flushed operands are timed one by one: a second one in a row would find them in the caches."""
        if self.flush is None:
            tvm_ffi.register_global_func(BEFORE, lambda *_: before(), override=True)
            timer = self.module.time_evaluator(ENTRY, tvm.cpu(), number=number, repeat=repeat, f_preproc=BEFORE)
            return tuple(timer(*self.operands).results)
        calls, flush = count(), self.flush

        def prepare(*_: object) -> None:
            if next(calls) % number == 0:
                before()
            flush()

        tvm_ffi.register_global_func(BEFORE, prepare, override=True)
        timer = self.module.time_evaluator(ENTRY, tvm.cpu(), number=1, repeat=number * repeat, f_preproc=BEFORE)
        each = list(timer(*self.operands).results)
        return tuple(fmean(each[at : at + number]) for at in range(0, len(each), number))
