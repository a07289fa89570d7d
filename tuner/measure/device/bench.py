"""What happens on the device: candidates are loaded, verified and timed in one process that may die of any of them.

It needs NumPy alone: how code is loaded, and where it runs, is given. A Bench lives as long as its process, which is
that of a session (functions.py), or of a bundle's runner (tuner/bundle/session.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.library.package import ENTRY
from tuner.measure._base import Turns
from tuner.measure.device.place import Place, Timing
from tuner.measure.machine import failure_kind, told
from tuner.measure.sandbox.confinement import Appetite
from tuner.measure.timing.baselines import MIN_CALLS
from tuner.measure.timing.protocol import Timed, Timer
from tuner.measure.timing.turns import Contender, TurnTaking
from tuner.measure.verification.guarded import Array, Guarded
from tuner.measure.verification.inputs import Domain, Made, domain_of, random_array
from tuner.measure.verification.verify import Case, cases
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, Workload, WorkloadInstance
from tuner.program.target.calibration import Levels
from tuner.records import Baselines, ErrorKind
from tuner.schedule.layout import Layout
from tuner.schedule.space import MicroKernel

Load = Callable[[Any], Any]
"""Gives the module of what a candidate is sent as: of the bytes of a shared object, where nothing else is said."""
CasesOf = Callable[[Workload, Made], list[Case]]
LayoutsOf = Callable[[SearchTask, MicroKernel], Mapping[str, Layout]]
"""How a kernel takes its constants (tuner.schedule.layouts_of)."""
MAX_ERROR = 2000
GREEDY = 99
"""The exit code of a session that a candidate has left too little of."""


class Bench:
    """Measures candidates of one search task in this process. Inputs and references are made once and kept: those that
    every candidate is verified at by ``prepare``, or at the first trial. ``is_over``: no other one can run here."""

    def __init__(
        self, task: SearchTask, place: Place, load: Load, layouts_of: LayoutsOf, cases_of: CasesOf = cases
    ) -> None:
        self._task, self._place = task, place
        self._load, self._layouts_of, self._cases_of = load, layouts_of, cases_of
        self._made: Made = {}
        self._cases: list[Case] | None = None
        self._arrays: dict[tuple[str, tuple[int, ...], Domain, Layout | None], Array] = {}
        self._timer = Timer(place.anchor, place.waited)
        self.is_over = False
        self._appetite, self._own_before = Appetite(), 0

    def prepare(self) -> list[Case]:
        """The cases that every candidate is verified at, made at the first call."""
        if self._cases is None:
            self._cases = self._cases_of(self._task.workload, self._made)
            # What they take is no candidate's.
            self._appetite, self._own_before = Appetite(), self._own_bytes()
        return self._cases

    def trial(self, kernel: MicroKernel, binary: Any, shapes: Sequence[Mapping[str, int]]) -> list[JsonObject]:
        """Verify a candidate and time it on each of ``shapes``: the facts of a MeasureResult for each."""
        try:
            module = self._load(binary)
            layouts = self._layouts_of(self._task, kernel)
            problem = self._verify(module[ENTRY], layouts)
        except Exception as error:  # a candidate that raises is a result
            return [self._raised(error) for _ in shapes]
        if problem:
            return [_failure(ErrorKind.WRONG, problem) for _ in shapes]
        return [self._timed(module, layouts, self._task.workload.dims(shape)) for shape in shapes]

    def verify(self, kernel: MicroKernel, binary: bytes, dims: Mapping[str, int]) -> str | None:
        """What is wrong with a build at these values of the workload's symbols; None if nothing is."""
        try:
            call = self._load(binary)[ENTRY]
            return self._check(
                call, self._layouts_of(self._task, kernel), Case.of(self._task.workload, dims, self._made)
            )
        except Exception as error:  # a build that raises is a result
            self._notes_loss()
            return told(error)[:MAX_ERROR]

    def baselines(self, instances: Sequence[WorkloadInstance], binary: bytes) -> Baselines:
        """What kernels are compared with: the device's roof, measured with ``binary`` where it needs some."""
        return self._place.baselines(instances, self._load(binary) if binary else None, self._array)

    def levels(self, binary: bytes) -> Levels:
        """The device's peak and what it reads from each level, measured with ``binary``."""
        return self._place.levels(self._load(binary), Timer(self._place.anchor, least=MIN_CALLS - 1, again=0))

    def turns(self, data: JsonObject, binaries: Sequence[bytes]) -> Turns:
        """Time builds, and NumPy, in turns: see TurnsRequest."""
        kernels = [MicroKernel.from_json(kernel) for kernel in data["kernels"]]
        modules = [self._load(binary) for binary in binaries]
        layouts = [self._layouts_of(self._task, kernel) for kernel in kernels]
        contenders: list[list[Contender | None]] = []
        for at, instance in enumerate(instances_of(data)):
            dims = self._task.workload.dims(instance.shape)
            own: list[Contender | None] = []
            for places in data["runs"]:
                which = places[at]
                module = None if which is None else modules[data["binaries"][which]]
                own.append(None if which is None else self._timing(module, layouts[which], dims).mean)
            if data["with_numpy"]:
                own.append(self._place.numpy(dims, self._array))
            contenders.append(own)
        result = TurnTaking(contenders, self._place.anchor, data["seconds"], waited=self._place.waited).run()
        return replace(result, blas=self._place.blas())

    def end_if_greedy(self) -> None:
        """End this process if candidates hold what the next one needs: the last one is blamed, as for a crash."""
        if problem := self._appetite.excess(self._own_bytes() - self._own_before):
            sys.stderr.write(f"the session is ended by its last candidate: {problem}\n")
            sys.stderr.flush()
            os._exit(GREEDY)

    def _own_bytes(self) -> int:
        return sum(array.nbytes for array in (*self._arrays.values(), *self._made.values()))

    def _verify(self, call: Callable[..., object], layouts: Mapping[str, Layout]) -> str | None:
        problems = (self._check(call, layouts, case) for case in self.prepare())
        return next((problem for problem in problems if problem), None)

    def _check(self, call: Callable[..., object], layouts: Mapping[str, Layout], case: Case) -> str | None:
        inputs = [
            layouts[tensor.name].pack(array) if tensor.name in layouts else array
            for tensor, array in zip(self._task.workload.inputs, case.inputs, strict=True)
        ]
        return case.check_guarded(inputs, lambda operands: self._place.run(call, operands), self._place.alignment)

    def _timed(self, module: Any, layouts: Mapping[str, Layout], dims: Mapping[str, int]) -> JsonObject:
        try:
            timing = self._timing(module, layouts, dims)
            timed: Timed = self._timer.measure(timing.call, timing.sample)
        except Exception as error:  # a candidate that raises is a result; so are instances beyond the limit of memory
            return self._raised(error)
        return {"latency_s": timed.latency_s, "samples_s": timed.samples_s, "anchor_s": timed.anchor_s}

    def _timing(self, module: Any, layouts: Mapping[str, Layout], dims: Mapping[str, int]) -> Timing:
        operands = self._task.workload.operands
        arrays = {each.name: self._array(each.name, dims, layouts.get(each.name)) for each in operands}
        return self._place.timing(module, arrays)

    def _raised(self, error: Exception) -> JsonObject:
        """The facts of a candidate that raised. Where it has broken what others need, that is a crash."""
        otherwise = ErrorKind.CRASH if self._notes_loss() else ErrorKind.WRONG
        return _failure(failure_kind(error, otherwise), f"{type(error).__name__}: {error}")

    def _notes_loss(self) -> bool:
        self.is_over = self.is_over or self._place.is_lost()
        return self.is_over

    def _array(self, name: str, dims: Mapping[str, int], layout: Layout | None = None) -> Array:
        """An aligned array of random values for a tensor of the program, packed by ``layout``; kept for other calls."""
        tensor = self._task.workload.tensors[name]
        domain = domain_of(self._task.workload, name, dims)
        key = (name, tensor.shape(dims), domain, layout)
        if key not in self._arrays:
            values = random_array(name, tensor.shape(dims), tensor.dtype, domain)
            packed = layout.pack(values) if layout else values
            # Libraries keep what they have packed in huge pages.
            self._arrays[key] = Guarded.copy_of(packed, has_huge_pages=layout is not None).array
        return self._arrays[key]


def instances_of(data: JsonObject) -> list[WorkloadInstance]:
    return [WorkloadInstance.from_json(instance) for instance in data["instances"]]


def _failure(kind: ErrorKind, message: str) -> JsonObject:
    return {"error_kind": kind.value, "error": message[-MAX_ERROR:]}
