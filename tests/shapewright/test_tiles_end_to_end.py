"""From a job without trials to calls of its library, in tiles: emulated ones, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import shapewright as sw
from shapewright.download import write
from shapewright.library import library_of
from tests.compiled import assembly, built_problems
from tests.fakes import FakeRecorder
from tests.shapewright.models.packed import quantised
from tests.shapewright.models.quantised import Linear
from tests.shapewright.torch.replacing import same
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
from tuner.program.target import Target, native
from tuner.program.target.rates import TYPICAL
from tuner.schedule.product import atoms
from tuner.schedule.space import MicroKernel
from tuner.search.context import SearchTools
from tuner.search.tuning import Tuned, tune

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


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Those of the emulated tiles that this process has."""
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    units = emulated(native().hardware.lanes())
    monkeypatch.setattr(atoms, "ATOMS", [*vectors, *units])
    return {atom.depth for atom in units}


def by_theory(task: SearchTask, runner: type[SimulatedRunner] = Runner) -> Tuned:
    tools = SearchTools(Builder(), runner(fleet_at(TYPICAL)), FakeRecorder())
    return tune(task, tools, budget=parse_budget({"trials": 0, "seconds": None}))


@pytest.mark.soak
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_library_that_theory_chose_multiplies_in_tiles(name: str, tmp_path: Path, depths: set[int]) -> None:
    workload = workload_from_json(WORKLOADS[name])
    tuned = by_theory(SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 129)),), target=native(), threads=1))
    library = library_of(tuned.files, tmp_path)
    dispatcher = Dispatcher.from_json(tuned.dispatch)
    assert [dispatcher.kernel_for({"T": rows}).get("group") in depths for rows in ROWS[-2:]] == [True, True]
    (weight,) = workload.constants
    at = [tensor.name for tensor in workload.inputs].index(weight)
    for rows in ROWS:
        case = Case.of(workload, workload.dims({"T": rows}))
        packed = library.pack(case.inputs[at])

        def call(operands: Sequence[Any], packed: Any = packed) -> None:
            library(*(packed if number == at else each for number, each in enumerate(operands)))

        assert case.check(case.inputs, call) is None


def layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return Linear(200, 48).eval()


def rows_for(count: int) -> torch.Tensor:
    return torch.randn(count, 200)


DIMS = ({0: torch.export.Dim("T", min=1, max=128)},)


def packed() -> torch.nn.Module:
    """The same, by one scale for all rows, as PyTorch quantises a layer; what it packed is unpacked."""
    torch.manual_seed(0)
    return sw.torch.unpacked(quantised(torch.nn.Sequential(torch.nn.Linear(200, 48))))


@pytest.mark.soak
@pytest.mark.parametrize(("make", "left"), [(layer, []), (packed, ["unknown", "mul"])])
def test_a_model_that_is_quantised_dynamically_multiplies_in_tiles(
    make: Callable[[], torch.nn.Module], left: list[str], tmp_path: Path, depths: set[int]
) -> None:
    model = make()
    tasks = sw.extract(model, (rows_for(7),), DIMS)
    assert [each.op for each in tasks.left] == left
    has_tiles = []
    for task in tasks:
        tuned = by_theory(SearchTask(task.workload, None, task.shape_vars, target=native(), threads=1))
        write(tuned.files, tmp_path / task.workload.key)
        kernel = Dispatcher.from_json(tuned.dispatch).kernel_for({"T": ROWS[-1]})
        has_tiles.append(kernel.get("group") in depths)
    assert has_tiles == [task.workload.constants == ("w",) for task in tasks]
    program = torch.export.export(model, (rows_for(7),), dynamic_shapes=DIMS)
    compiled = sw.torch.compile_exported(program, tmp_path, strict=True, options={"rest": "eager", "threads": 1})
    assert sw.torch.report(compiled).share == 1.0
    for rows in map(rows_for, ROWS):
        with torch.no_grad():
            same(compiled(rows), model(rows))


def test_the_product_of_such_a_model_is_of_the_instruction_of_tiles() -> None:
    """Of the real ones, in the code for a CPU that has them."""
    target = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
    (product,) = (
        task for task in sw.extract(layer(), (rows_for(7),), DIMS, target=target, threads=1)
        if task.workload.constants == ("w",)
    )  # fmt: skip
    # Nothing is run here: this CPU may not have the instruction.
    tuned = by_theory(product, SimulatedRunner)
    kernels = {Dispatcher.from_json(tuned.dispatch).kernel_for({"T": rows}) for rows in ROWS[-2:]}
    assert kernels
    assert all("tdpbssd" in assembly(product, kernel) for kernel in kernels)
