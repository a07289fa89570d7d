"""What happens on the device: candidates are loaded, verified and timed in one process that may die of any of them.

The functions that ``register`` makes known are called by RpcRunner over TVM RPC, each session in a process of its
own, so a Bench lives as long as a session.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import tvm
import tvm_ffi

from tuner.blas import numpys_blas
from tuner.library.package import ENTRY
from tuner.measure._base import Turns
from tuner.measure.device.signer import Signer
from tuner.measure.machine import failure_kind, told
from tuner.measure.roof import measure_roof
from tuner.measure.roof.levels import measure_levels
from tuner.measure.rpc_names import BASELINES, DESCRIBE, JOIN, LEVELS, OPEN, PREPARE, TAKE_TURNS, TRIAL, VERIFY
from tuner.measure.sandbox.confinement import Appetite
from tuner.measure.sandbox.limits import time_limit
from tuner.measure.tensors import tensor_of
from tuner.measure.timing.baselines import MIN_CALLS, flush_of_numpy, measure_baselines, numpy_call
from tuner.measure.timing.caches import flush_of, flushed
from tuner.measure.timing.protocol import Anchor, Flush, Timed, Timer
from tuner.measure.timing.turns import Contender, TurnTaking, called
from tuner.measure.verification.guarded import Array, Guarded
from tuner.measure.verification.inputs import Domain, Made, domain_of, random_array
from tuner.measure.verification.verify import Case, cases
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.program.target import native
from tuner.program.target.calibration import Levels
from tuner.records import Baselines, ErrorKind, Roof
from tuner.schedule import layouts_of
from tuner.schedule.layout import Layout
from tuner.schedule.space import MicroKernel

BEFORE = "shapewright.before_sample"
MAX_ERROR = 2000
GREEDY = 99
"""The exit code of a session that a candidate has left too little of."""


class Bench:
    """Measures candidates of one search task in this process. Inputs and references are made once and kept: those that
    every candidate is verified at by ``prepare``, or at the first trial."""

    def __init__(self, task: SearchTask, directory: Path) -> None:
        # Read by TVM when it starts its thread pool, at the first parallel loop of the first candidate.
        os.environ["TVM_NUM_THREADS"] = str(task.threads)
        self._task = task
        self._directory = directory
        self._made: Made = {}
        self._cases: list[Case] | None = None
        self._arrays: dict[tuple[str, tuple[int, ...], Domain, Layout | None], Array] = {}
        self._anchor = Anchor()
        self._timer = Timer(self._anchor.seconds)
        self._loaded = 0
        self._appetite, self._own_before = Appetite(), 0

    def prepare(self) -> list[Case]:
        """The cases that every candidate is verified at, made at the first call."""
        if self._cases is None:
            self._cases = cases(self._task.workload, self._made)
            # What they take is no candidate's.
            self._appetite, self._own_before = Appetite(), self._own_bytes()
        return self._cases

    def trial(self, kernel: MicroKernel, binary: bytes, shapes: Sequence[Mapping[str, int]]) -> list[JsonObject]:
        """Verify a candidate and time it on each of ``shapes``: the facts of a MeasureResult for each."""
        try:
            module = self._load(binary)
            layouts = layouts_of(self._task, kernel)
            problem = self._verify(module[ENTRY], layouts)
        except Exception as error:  # a candidate that raises is a result
            return [_raised(error) for _ in shapes]
        if problem:
            return [_failure(ErrorKind.WRONG, problem) for _ in shapes]
        return [self._timed(module, layouts, self._task.workload.dims(shape)) for shape in shapes]

    def verify(self, kernel: MicroKernel, binary: bytes, dims: Mapping[str, int]) -> str | None:
        """What is wrong with a build at these values of the workload's symbols; None if nothing is."""
        try:
            call = self._load(binary)[ENTRY]
            return self._check(call, layouts_of(self._task, kernel), Case.of(self._task.workload, dims, self._made))
        except Exception as error:  # a build that raises is a result
            return told(error)[:MAX_ERROR]

    def baselines(self, instances: Sequence[WorkloadInstance], binary: bytes) -> Baselines:
        """The device's roof, measured with ``binary``, and NumPy's products at these instances."""
        module = self._load(binary)

        def roof(timer: Timer) -> Roof:
            return measure_roof(module, native(), self._task.threads, timer)

        found = measure_baselines(self._task, instances, self._array, self._anchor.seconds, roof)
        return replace(found, blas=numpys_blas(native().hardware.features))

    def levels(self, binary: bytes) -> Levels:
        """The device's peak and what it reads from each level, measured with ``binary``."""
        timer = Timer(self._anchor.seconds, least=MIN_CALLS - 1, again=0)
        return measure_levels(self._load(binary), native(), self._task.threads, timer)

    def turns(self, data: JsonObject, binaries: Sequence[bytes]) -> Turns:
        """Time builds, and NumPy, in turns: see TurnsRequest."""
        kernels = [MicroKernel.from_json(kernel) for kernel in data["kernels"]]
        modules = [self._load(binary) for binary in binaries]
        contenders: list[list[Contender | None]] = []
        for at, instance in enumerate(_instances(data)):
            dims = self._task.workload.dims(instance.shape)
            own: list[Contender | None] = []
            for places in data["runs"]:
                place = places[at]
                module = None if place is None else modules[data["binaries"][place]]
                own.append(None if place is None else self._contender(module, kernels[place], dims))
            if data["with_numpy"]:
                own.append(self._numpy_contender(dims))
            contenders.append(own)
        result = TurnTaking(contenders, self._anchor.seconds, data["seconds"]).run()
        return replace(result, blas=numpys_blas(native().hardware.features))

    def _contender(self, module: Any, kernel: MicroKernel, dims: Mapping[str, int]) -> Contender:
        layouts = layouts_of(self._task, kernel)
        operands, flush = self._operands(dims, layouts)
        call, before_each = module[ENTRY], flush or (lambda: None)

        def sample(number: int) -> float:
            if number == 1:
                before_each()
                before = time.perf_counter()
                call(*operands)
                return time.perf_counter() - before
            return _means(module, operands, (number, 1), lambda: None, flush)[0]

        return sample

    def _numpy_contender(self, dims: Mapping[str, int]) -> Contender | None:
        call = numpy_call(self._task.workload, dims, self._array) if self._task.threads == 1 else None
        return None if call is None else called(call, flush_of_numpy(self._task, call, dims, self._array))

    def end_if_greedy(self) -> None:
        """End this process if candidates hold what the next one needs: the last one is blamed, as for a crash."""
        if problem := self._appetite.excess(self._own_bytes() - self._own_before):
            sys.stderr.write(f"the session is ended by its last candidate: {problem}\n")
            sys.stderr.flush()
            os._exit(GREEDY)

    def _own_bytes(self) -> int:
        return sum(array.nbytes for array in (*self._arrays.values(), *self._made.values()))

    def _load(self, binary: bytes) -> Any:
        # Each under a name of its own: the loader takes a known path for a library that it has already.
        self._loaded += 1
        path = self._directory / f"candidate{self._loaded}.so"
        path.write_bytes(binary)
        try:
            return tvm.runtime.load_module(str(path))
        finally:
            path.unlink()

    def _verify(self, call: Callable[..., object], layouts: Mapping[str, Layout]) -> str | None:
        problems = (self._check(call, layouts, case) for case in self.prepare())
        return next((problem for problem in problems if problem), None)

    def _check(self, call: Callable[..., object], layouts: Mapping[str, Layout], case: Case) -> str | None:
        inputs = [
            layouts[tensor.name].pack(array) if tensor.name in layouts else array
            for tensor, array in zip(self._task.workload.inputs, case.inputs, strict=True)
        ]
        return case.check(inputs, lambda operands: call(*map(tensor_of, operands)))

    def _timed(self, module: Any, layouts: Mapping[str, Layout], dims: Mapping[str, int]) -> JsonObject:
        def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
            return _means(module, operands, (number, repeat), before, flush)

        try:
            operands, flush = self._operands(dims, layouts)
            call = module[ENTRY]
            timed: Timed = self._timer.measure(flushed(lambda: call(*operands), flush), sample)
        except Exception as error:  # a candidate that raises is a result; so are instances beyond the limit of memory
            return _raised(error)
        return {"latency_s": timed.latency_s, "samples_s": timed.samples_s, "anchor_s": timed.anchor_s}

    def _operands(self, dims: Mapping[str, int], layouts: Mapping[str, Layout]) -> tuple[list[Any], Flush | None]:
        """What a call is made with, in order, and what comes before each by the task's protocol."""
        workload = self._task.workload
        arrays = {each.name: self._array(each.name, dims, layouts.get(each.name)) for each in workload.operands}
        outputs = list(arrays.values())[len(workload.inputs) :]
        return list(map(tensor_of, arrays.values())), flush_of(self._task, arrays.__getitem__, outputs)

    def _array(self, name: str, dims: Mapping[str, int], layout: Layout | None = None) -> Array:
        """An aligned array of random values for a tensor of the program, packed by ``layout``; kept for other calls."""
        tensor = self._task.workload.tensors[name]
        domain = domain_of(self._task.workload, name, dims)
        key = (name, tensor.shape(dims), domain, layout)
        if key not in self._arrays:
            values = random_array(name, tensor.shape(dims), tensor.dtype, domain)
            self._arrays[key] = Guarded.copy_of(layout.pack(values) if layout else values).array
        return self._arrays[key]


def _means(
    module: Any, operands: Sequence[Any], plan: tuple[int, int], before: Callable[[], None], flush: Flush | None
) -> tuple[float, ...]:
    """Samples by TVM's clock: ``repeat`` means of ``number`` calls each (``plan``). Calls of flushed operands are timed
    one by one: a second one in a row would find them in the caches."""
    number, repeat = plan
    if flush is None:
        tvm_ffi.register_global_func(BEFORE, lambda *_: before(), override=True)
        timer = module.time_evaluator(ENTRY, tvm.cpu(), number=number, repeat=repeat, f_preproc=BEFORE)
        return tuple(timer(*operands).results)
    calls = count()

    def prepare(*_: object) -> None:
        if next(calls) % number == 0:
            before()
        flush()

    tvm_ffi.register_global_func(BEFORE, prepare, override=True)
    timer = module.time_evaluator(ENTRY, tvm.cpu(), number=1, repeat=number * repeat, f_preproc=BEFORE)
    each = list(timer(*operands).results)
    return tuple(fmean(each[at : at + number]) for at in range(0, len(each), number))


def register(describe: Callable[[], JsonObject], signer: Signer) -> None:
    """Make the functions of a device known to TVM RPC. Call before serving; sessions inherit them."""
    open_bench: list[Bench] = []

    def start(request: str) -> str:
        """Begin with one task."""
        signer.close()
        open_bench[:] = [Bench(SearchTask.from_json(json.loads(request)), Path.cwd())]
        return json.dumps(describe())

    def limited(request: str, work: Callable[[Bench, JsonObject], object]) -> str:
        """Do ``work``; the process ends (SIGALRM) if that takes longer than the request's limit_s."""
        data = json.loads(request)
        with time_limit(data["limit_s"]):
            answer = json.dumps(work(open_bench[0], data))
            open_bench[0].end_if_greedy()
            return answer

    def prepare(request: str, _: bytes) -> str:
        """Make what candidates are verified with: large weights take longer than a trial may."""
        return limited(request, lambda bench, _: len(bench.prepare()))

    def trial(request: str, binary: bytes) -> str:
        """Measure one candidate on the request's shapes."""
        return limited(request, lambda bench, data: bench.trial(_kernel(data), bytes(binary), data["shapes"]))

    def verify(request: str, binary: bytes) -> str:
        """Check one build at the request's values of the symbols."""
        return limited(request, lambda bench, data: bench.verify(_kernel(data), bytes(binary), data["dims"]))

    def baselines(request: str, binary: bytes) -> str:
        """Measure what the task's kernels are compared with, at the request's instances; the roof with ``binary``."""
        return limited(request, lambda bench, data: bench.baselines(_instances(data), bytes(binary)).to_json())

    def levels(request: str, binary: bytes) -> str:
        """Measure the device's peak and what it reads from each level of memory, with ``binary``."""
        return limited(request, lambda bench, _: bench.levels(bytes(binary)).to_json())

    def turns(request: str, *binaries: bytes) -> str:
        """Time the builds of ``binaries`` in turns at the request's instances."""
        return limited(request, lambda bench, data: bench.turns(data, [bytes(each) for each in binaries]).to_json())

    tvm_ffi.register_global_func(OPEN, start, override=True)
    tvm_ffi.register_global_func(PREPARE, prepare, override=True)
    tvm_ffi.register_global_func(TRIAL, trial, override=True)
    tvm_ffi.register_global_func(VERIFY, verify, override=True)
    tvm_ffi.register_global_func(BASELINES, baselines, override=True)
    tvm_ffi.register_global_func(LEVELS, levels, override=True)
    tvm_ffi.register_global_func(TAKE_TURNS, turns, override=True)
    tvm_ffi.register_global_func(JOIN, lambda nonce: json.dumps(signer.answer(nonce)), override=True)
    tvm_ffi.register_global_func(DESCRIBE, lambda: json.dumps(describe()), override=True)


def _kernel(data: JsonObject) -> MicroKernel:
    return MicroKernel.from_json(data["kernel"])


def _instances(data: JsonObject) -> list[WorkloadInstance]:
    return [WorkloadInstance.from_json(instance) for instance in data["instances"]]


def _raised(error: Exception) -> JsonObject:
    return _failure(failure_kind(error, ErrorKind.WRONG), f"{type(error).__name__}: {error}")


def _failure(kind: ErrorKind, message: str) -> JsonObject:
    return {"error_kind": kind.value, "error": message[-MAX_ERROR:]}
