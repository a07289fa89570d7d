"""The kernels in tiles that theory alone chooses for a Sapphire Rapids, at every shape of the dense suites and at a
thousand others: in bfloat16 and in bytes, by emulated instructions, between guard regions.

Of the four kinds of bytes each run draws one for each layer of the suites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from tests import shares
from tests.compiled import loaded
from tests.shares import every
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.inputs import Made, random_inputs
from tuner.measure.verification.verify import Case
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.reference import Expected, expected
from tuner.program.target import Target, native
from tuner.schedule import extents_of, layouts_of, rule_of, rules_of, space_of
from tuner.schedule.product import atoms
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy.theory import TheorySettings, theory_set

ROOT = Path(__file__).resolve().parents[4]
SUITES = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "benchmarks" / "suites").glob("*-dense.yaml"))]
LAYERS: Mapping[str, tuple[Mapping[str, Any], Sequence[int]]] = {
    f"{suite['name']}-{layer['name']}": (layer["args"], [shape["T"] for shape in suite["test"]])
    for suite in SUITES
    for layer in suite["workloads"]
}
"""By name what a layer's sizes are, and its numbers of rows."""
BYTES: Mapping[str, Any] = {
    f"{left} by {right}": {"x": left, "w": right, "out": "int32"}
    for left in ("int8", "uint8")
    for right in ("int8", "uint8")
}
KINDS: Mapping[str, Any] = {"bfloat16": "bfloat16", **BYTES}
QUICK = ["bfloat16-dense-n1000_k600"]
QUICK_ROWS = 40
SAPPHIRE_RAPIDS = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
SAMPLED_WORK = 2e8
"""Operations of a float64 reference, beyond which rows are sampled."""
LAYERS_OF_A_KIND, ROWS_OF_A_LAYER = 20, 10
SIZES, LENGTHS, ROWS = (1, 200), (1, 600), (1, 200)


def task_of(args: Mapping[str, Any], kind: str, rows: int, target: Target) -> SearchTask:
    workload = workload_from_json({"op": "dense", "args": dict(args), "dtype": KINDS[kind]})
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(1, rows + 1)),), target=target, threads=1)


def chosen(task: SearchTask, samples: int) -> list[MicroKernel]:
    """What theory alone chooses: the kernels in tiles."""
    random, settings = np.random.default_rng(0), TheorySettings(samples=samples, generations=2)
    found = theory_set(task, space_of(task), PairCostModel(task), random, settings)
    units = depths_of_units(task)
    return [kernel for kernel in found if kernel.get("group", 1) in units]


def depths_of_units(task: SearchTask) -> set[int]:
    """Of the instructions for a task those in tiles, by depth."""
    left, right = (tensor.dtype for tensor in task.workload.inputs)
    total = "int32" if "int8" in left else "float32"
    known = atoms.atoms_of(left, right, total, task.known_target.hardware)
    return {depth for depth, atom in known.items() if atom.unit is not None}


@contextmanager
def emulation() -> Iterator[int]:
    """Emulated instructions in the place of those of AMX; the words of a multiplication."""
    known, lanes = atoms.ATOMS, native().hardware.lanes()
    atoms.ATOMS = [*(atom for atom in known if atom.unit is None), *emulated(lanes)]
    try:
        yield lanes
    finally:
        atoms.ATOMS = known


def here(task: SearchTask, kernel: MicroKernel, words: int) -> MicroKernel:
    """The kernel on this machine, whose vectors may be shorter."""
    space = rules_of(task)[0].space(task)
    found = space.legal({**dict(kernel.values), "group": kernel["group"] // atoms.AMX[0].steps * words})
    assert found is not None
    return found


def case_of(task: SearchTask, rows: int, made: Made) -> Case:
    """Integers are compared as a whole, floats where there is a reference."""
    workload, (symbol,) = task.workload, task.workload.symbols
    dims = {symbol: rows}
    inputs = random_inputs(workload, dims, made)
    if inputs[0].dtype.kind in "iu":
        value = (inputs[0].astype(np.float64) @ inputs[1].T.astype(np.float64)).astype(np.int64)
        wanted: tuple[Expected, ...] = (Expected(value, np.zeros(value.shape)),)
    else:
        wanted = expected(workload, inputs, dims, min(1.0, SAMPLED_WORK / max(workload.work(dims), 1)))
    return Case(dims, inputs, workload.outputs, wanted)


def problems(task: SearchTask, kernel: MicroKernel, rows: Sequence[int], made: Made) -> list[str]:
    """What is wrong with a kernel of this machine at these numbers of rows."""
    call, layout = loaded(compile_candidate(task, kernel).binary), layouts_of(task, kernel)["w"]
    (symbol,), packed, found = task.workload.symbols, None, list[str]()
    for each in rows:
        case = case_of(task, task.workload.dims({"T": each})[symbol], made)
        packed = layout.pack(case.inputs[1]) if packed is None else packed
        problem = case.check([case.inputs[0], packed], call)
        found += [f"{kernel}: {problem}"] if problem else []
    return found


@pytest.mark.parametrize("layer", shares.chosen(QUICK, LAYERS))
def test_dense_suites_are_right_in_tiles(layer: str, request: pytest.FixtureRequest) -> None:
    """Each shape by the kernel that is the fastest for it by theory, of those that theory alone chooses."""
    is_short = not request.node.get_closest_marker("soak")
    rows = [each for each in LAYERS[layer][1] if not is_short or each <= QUICK_ROWS]
    assert faults(layer, "bfloat16", rows) == []


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS)
def test_dense_suites_are_right_in_tiles_of_bytes(layer: str) -> None:
    assert faults(layer, Random().choice(list(BYTES)), LAYERS[layer][1]) == []


def faults(layer: str, kind: str, rows: Sequence[int]) -> list[str]:
    """What is wrong with a layer's kernels in tiles at these numbers of rows."""
    args, tested = LAYERS[layer]
    asked = task_of(args, kind, max(tested), SAPPHIRE_RAPIDS)
    kernels, made = chosen(asked, 300), Made()
    assert kernels, f"theory chooses no kernel in tiles for {kind}"
    shapes = extents_of(asked.workload, [{"T": each} for each in rows])
    best = rule_of(kernels[0]).estimate_s(asked, kernels, shapes).argmin(axis=0).tolist()
    found = []
    with emulation() as words:
        task = task_of(args, kind, max(tested), native())
        for number in sorted(set(best)):
            own = [each for each, of in zip(rows, best, strict=True) if of == number]
            found += [f"{kind}: {one}" for one in problems(task, here(task, kernels[number], words), own, made)]
    return found


@pytest.mark.parametrize("kind", every(4, KINDS))
@pytest.mark.parametrize("number", every(LAYERS_OF_A_KIND, range(LAYERS_OF_A_KIND)))
def test_random_shapes_are_right_in_tiles(number: int, kind: str) -> None:
    """Whatever the kernel is."""
    random = np.random.default_rng([number, list(KINDS).index(kind)])
    n, k = int(random.integers(*SIZES)), int(random.integers(*LENGTHS))
    rows = random.choice(np.arange(*ROWS), ROWS_OF_A_LAYER, replace=False).tolist()
    with emulation():
        task = task_of({"m": "T", "n": n, "k": k}, kind, ROWS[1], native())
        space, units = rules_of(task)[0].space(task), depths_of_units(task)
        drawn = (space.sample(random) for _ in range(10_000))
        kernel = next(kernel for kernel in drawn if kernel.get("group") in units)
        assert problems(task, kernel, rows, Made()) == []
