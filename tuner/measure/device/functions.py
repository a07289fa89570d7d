"""The functions of a device that RpcRunner calls over TVM RPC, each session in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tuner.measure.device.bench import Bench, instances_of
from tuner.measure.device.place import Place
from tuner.measure.device.signer import Signer
from tuner.measure.rpc_names import (
    BASELINES,
    DESCRIBE,
    JOIN,
    LAST_ANSWER,
    LEVELS,
    OPEN,
    PREPARE,
    TAKE_TURNS,
    TRIAL,
    VERIFY,
)
from tuner.measure.sandbox.limits import time_limit
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.schedule import layouts_of
from tuner.schedule.space import MicroKernel


class Loader:
    """Loads shared objects by TVM, through files of a folder that are gone afterwards."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loaded = 0

    def __call__(self, binary: bytes) -> Any:
        # Each under a name of its own: the loader takes a known path for a library that it has already.
        self._loaded += 1
        path = self._directory / f"candidate{self._loaded}.so"
        path.write_bytes(binary)
        try:
            return tvm.runtime.load_module(str(path))
        finally:
            path.unlink()


def register(describe: Callable[[], JsonObject], signer: Signer, place: Callable[[SearchTask], Place]) -> None:
    """Make the functions of a device known to TVM RPC. Call before serving; sessions inherit them. ``place``: where
    candidates of a task run, made in the session."""
    open_bench: list[Bench] = []

    def start(request: str) -> str:
        """Begin with one task."""
        signer.close()
        task = SearchTask.from_json(json.loads(request))
        open_bench[:] = [Bench(task, place(task), Loader(Path.cwd()), layouts_of)]
        return json.dumps(describe())

    def limited(request: str, work: Callable[[Bench, JsonObject], object]) -> str:
        """Do ``work``; the process ends (SIGALRM) if that takes longer than the request's limit_s."""
        data = json.loads(request)
        bench = open_bench[0]
        with time_limit(data["limit_s"]):
            answer = work(bench, data)
            bench.end_if_greedy()
            return json.dumps({LAST_ANSWER: answer} if bench.is_over else answer)

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
        return limited(request, lambda bench, data: bench.baselines(instances_of(data), bytes(binary)).to_json())

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
