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
        self._slow: tuple[int, str] | None = None

    def call(self, shape: Shape, function: Any, inputs: Sequence[Array], operands: Sequence[Array]) -> Call:
        """``operands``: the inputs as the function takes them. Raises DoesNotApply if the result is wrong."""
        self._refuse_slow(shape)
        outputs = outputs_of(self._workload, shape)
        tensors = [tensor_of(array) for array in (*operands, *outputs)]
        if format_shape(shape) not in self._right:
            started = time.perf_counter()
            function(*tensors)
            elapsed_s = time.perf_counter() - started
            self._check(shape, inputs, outputs)
            if elapsed_s > SLOWEST_S:
                reason = (
                    f"a call takes {elapsed_s:.1f} s at {format_shape(shape)}: not timed there, nor at larger shapes"
                )
                self._slow = (self._flops(shape), reason)
            self._refuse_slow(shape)
            self._right.add(format_shape(shape))
        return lambda: function(*tensors)

    def _refuse_slow(self, shape: Shape) -> None:
        if self._slow is not None and self._flops(shape) >= self._slow[0]:
            raise DoesNotApply(self._slow[1])

    def _flops(self, shape: Shape) -> int:
        return self._workload.flops(self._workload.dims(shape))

    def _check(self, shape: Shape, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for output, wanted in zip(outputs, expected(self._workload, inputs, self._workload.dims(shape)), strict=True):
            if (wrong := np.count_nonzero(wanted.wrong(output))) > 0:
                raise DoesNotApply(f"{wrong} of {output.size} elements of its result are wrong")


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
    rule, schedule = scheduled(function, target)
    try:
        return tvm.compile(schedule.mod, target=target)["main"]
    except Exception as error:
        raise DoesNotApply(f"what DLight's {rule} makes of it does not compile: {_first_line(error)}") from error


def scheduled(function: Any, target: Any) -> tuple[str, Any]:
    """The rule that takes the function, and its schedule. Raises DoesNotApply where none does."""
    for rule in DLIGHT_RULES:
        try:
            schedule = rule().apply(function, target, False)
        except Exception as error:
            raise DoesNotApply(f"DLight's {rule.__name__} fails: {_first_line(error)}") from error
        if schedule is not None:
            return rule.__name__, schedule
    names = " nor ".join(rule.__name__ for rule in DLIGHT_RULES)
    raise DoesNotApply(f"none of DLight's rules for CPUs takes it: neither {names}")


def _first_line(error: Exception) -> str:
    """What went wrong, without TVM's own lines around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
