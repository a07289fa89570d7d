"""Rivals that compile one shape at a time from the program's own PrimFunc: what they share, and DLight, TVM's schedules
without a search. Imports TVM.

DLight gets the static function of each shape, which tells it more than a symbolic one would.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm.s_tir.dlight import cpu

from benchmarks.harness.calls import Array, Call, Contender, DoesNotApply, Shape, inputs_of, outputs_of
from benchmarks.rivals.static_function import static_function
from tuner.measure.tensors import tensor_of
from tuner.program.language.workload import Workload, format_shape
from tuner.program.reference import expected
from tuner.program.target import Target, native

SLOWEST_S = 0.5
DLIGHT_RULES = (cpu.GEMV, cpu.Reduction)


def tvm_target(target: Target, threads: int) -> Any:
    return tvm.target.Target({"kind": target.kind, "mcpu": target.mcpu, "num-cores": threads})


class Checked:
    """Calls of compiled functions, each compared once with the reference: nothing else has verified them.

    Where a call takes longer than SLOWEST_S, that shape and those of more work are left out: such rules as DLight's
    schedule what was not meant for them, and a call may take minutes.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._right: set[str] = set()
        self._too_slow: tuple[float, str] = float("inf"), ""

    def call(self, shape: Shape, function: Any, inputs: Sequence[Array], operands: Sequence[Array]) -> Call:
        """``operands``: the inputs as the function takes them. Raises DoesNotApply if the result is wrong."""
        dims, at = self._workload.dims(shape), format_shape(shape)
        flops = self._workload.flops(dims)
        if flops >= self._too_slow[0]:
            raise DoesNotApply(self._too_slow[1])
        outputs = outputs_of(self._workload, shape)
        tensors = [tensor_of(array) for array in (*operands, *outputs)]
        if at not in self._right:
            started = time.perf_counter()
            function(*tensors)
            elapsed_s = time.perf_counter() - started
            for output, wanted in zip(outputs, expected(self._workload, inputs, dims), strict=True):
                if (wrong := np.count_nonzero(wanted.wrong(output))) > 0:
                    raise DoesNotApply(f"{wrong} of {output.size} elements of its result are wrong")
            if elapsed_s > SLOWEST_S:
                reason = f"a call takes {elapsed_s:.1f} s at {at}: not timed there, nor at larger shapes"
                self._too_slow = flops, reason
                raise DoesNotApply(reason)
            self._right.add(at)
        return lambda: function(*tensors)


def dlight(workload: Workload, threads: int) -> Contender:
    """Calls of what DLight's rules make of the program at a shape; each shape is compiled once."""
    target, checked = tvm_target(native(), threads), Checked(workload)
    compiled: dict[str, Any] = {}

    def call(shape: Shape) -> Call:
        if format_shape(shape) not in compiled:
            compiled[format_shape(shape)] = _compiled(static_function(workload, shape), target)
        inputs = inputs_of(workload, shape)
        return checked.call(shape, compiled[format_shape(shape)], inputs, inputs)

    return call


def _compiled(function: Any, target: Any) -> Any:
    """Raises DoesNotApply where no rule takes the function, or where one takes it and what it makes has no code."""
    for rule in DLIGHT_RULES:
        try:
            schedule = rule().apply(function, target, False)
            if schedule is not None:
                return tvm.compile(schedule.mod, target=target)["main"]
        except Exception as error:
            # What went wrong, without TVM's own lines around it.
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise DoesNotApply(f"DLight's {rule.__name__}, or the code of it, fails: {said[:200]}") from error
    names = " nor ".join(rule.__name__ for rule in DLIGHT_RULES)
    raise DoesNotApply(f"none of DLight's rules for CPUs takes it: neither {names}")
