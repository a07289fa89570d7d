"""From a job without trials to calls of its library, in tiles: emulated ones, on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shapewright.library import library_of
from tests.compiled import built_problems
from tests.fakes import FakeRecorder
from tests.tuner.calibration.test_calibrate import fleet_at
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.library.build import build_library
from tuner.library.codegen import compile_candidate
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuildResult, never
from tuner.measure.runners.simulated import SimulatedBuilder, SimulatedRunner
from tuner.measure.verification.verify import Case
from tuner.program.job.build import workload_from_json
from tuner.program.job.jobspec import parse_budget
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.program.target.rates import TYPICAL
from tuner.schedule.product import atoms
from tuner.schedule.space import MicroKernel
from tuner.search.context import SearchTools
from tuner.search.tuning import tune

ROWS = (1, 7, 64, 100)
WORKLOADS: Mapping[str, dict[str, Any]] = {
    "bfloat16": {
        "op": "dense", "args": {"m": "T", "n": 48, "k": 200}, "epilogue": ["bias", "gelu"], "dtype": "bfloat16",
    },
    # As PyTorch's dynamic quantisation has it: a scale for each row, and one for each column.
    "int8": {
        "program": "z[m, n] = sum(k) x[m, k] * w[n, k]\nout[m, n] = cast(z[m, n], float32) * a[m] * s[n] + bias[n]",
        "extents": {"m": "T", "n": 48, "k": 200}, "constant": ["w"], "dtype": {"x": "int8", "w": "int8"},
    },
}  # fmt: skip


class Builder(SimulatedBuilder):
    """Compiles in this process, where instructions are emulated."""

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return [BuildResult(kernel, compile_candidate(task, kernel).binary, 0.0) for kernel in kernels]

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        return build_library(dispatcher, job_id)


class Runner(SimulatedRunner):
    """Compares kernels with the reference in this process."""

    def verify(
        self, task: SearchTask, build: BuildResult, dims: Sequence[Mapping[str, int]], interrupted: Any = never
    ) -> list[tuple[Mapping[str, int], str]]:
        found = [(each, built_problems(task, build.kernel, [each])) for each in dims]
        return [(each, problem) for each, problems in found for problem in problems]


@pytest.mark.soak
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_library_that_theory_chose_multiplies_in_tiles(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    units = emulated(native().hardware.lanes())
    monkeypatch.setattr(atoms, "ATOMS", [*vectors, *units])
    workload = workload_from_json(WORKLOADS[name])
    task = SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 129)),), target=native(), threads=1)
    tools = SearchTools(Builder(), Runner(fleet_at(TYPICAL)), FakeRecorder())
    tuned = tune(task, tools, budget=parse_budget({"trials": 0, "seconds": None}))
    library = library_of(tuned.files, tmp_path)
    dispatcher = Dispatcher.from_json(tuned.dispatch)
    depths = {atom.depth for atom in units}
    assert [dispatcher.kernel_for({"T": rows}).get("group") in depths for rows in ROWS[-2:]] == [True, True]
    (weight,) = workload.constants
    at = [tensor.name for tensor in workload.inputs].index(weight)
    for rows in ROWS:
        case = Case.of(workload, workload.dims({"T": rows}))
        packed = library.pack(case.inputs[at])

        def call(operands: Sequence[Any], packed: Any = packed) -> None:
            library(*(packed if number == at else each for number, each in enumerate(operands)))

        assert case.check(case.inputs, call) is None
