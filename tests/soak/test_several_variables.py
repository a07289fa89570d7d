"""Two and three shape variables at once, from the job to a library that is right at shapes drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shapewright as sw
from tuner.library.build import build_library
from tuner.library.dispatcher import is_within
from tuner.measure.verification.verify import Case
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.schedule import space_of
from tuner.search.cost_model import PairCostModel
from tuner.search.finalize import choose_set, make_dispatcher
from tuner.search.observations import Measured

pytestmark = pytest.mark.soak

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": (
        {"op": "dense", "args": {"m": "B*S", "n": "N", "k": "K"}, "epilogue": ["bias", "relu"]},
        {
            "B": {"min": 1, "max": 8},
            "S": {"min": 8, "max": 64, "step": 8},
            "N": {"values": [48, 64, 200]},
            "K": {"min": 1, "max": 256, "powers_of": 2},
        },
    ),
    "batch_matmul_nn": (
        {"op": "batch_matmul_nn", "args": {"b": "B", "m": "M", "n": 40, "k": "K"}},
        {"B": {"min": 1, "max": 12}, "M": {"min": 4, "max": 200, "step": 4}, "K": {"min": 1, "max": 200}},
    ),
    "attention": (
        {"op": "attention", "args": {"b": "B", "h": 2, "i": "S", "j": "S", "d": 16, "causal": True}},
        {"B": {"min": 1, "max": 4}, "S": {"min": 16, "max": 128, "step": 16}},
    ),
    "conv2d": (
        {"op": "conv2d", "args": {"b": "B", "c": 8, "h": "S", "w": "S", "o": 16, "r": 3, "s": 3}},
        {"B": {"min": 1, "max": 4}, "S": {"min": 7, "max": 35, "step": 7}},
    ),
}


def a_library(task: SearchTask, directory: Path) -> sw.Library:
    """Of kernels drawn at random, chosen and dispatched by theory."""
    rng, space = np.random.default_rng(0), space_of(task)
    pool = list(dict.fromkeys(space.sample(rng) for _ in range(40)))
    model, known = PairCostModel(task), Measured([])
    chosen = choose_set(task, model, known, pool, task.max_kernels)
    files = build_library(make_dispatcher(task, model, known, chosen), None)
    for each, content in files.files.items():
        (directory / each).write_bytes(content)
    return sw.load(directory)


def problem_at(library: sw.Library, dims: dict[str, int]) -> str | None:
    """What is wrong with a library at these values of the symbols, its constants packed for them."""
    case = Case.of(library.workload, dims)
    packed = {
        tensor.name: library.pack(tensor.name, array)
        for tensor, array in zip(library.workload.inputs, case.inputs, strict=True)
        if tensor.constant
    }
    names = [tensor.name for tensor in library.workload.operands]

    def call(arrays: Sequence[Any]) -> None:
        library(*(packed.get(name, array) for name, array in zip(names, arrays, strict=True)))

    return case.check(case.inputs, call)


@pytest.mark.parametrize("name", CASES)
def test_a_library_over_several_variables_is_right_in_the_range_between_its_values_and_beyond(
    name: str, tmp_path: Path
) -> None:
    workload, shape_vars = CASES[name]
    job = {"workload": workload, "shape_vars": shape_vars, "budget": {"trials": 0}, "max_kernels": 3}
    (task,) = parse_job(job).on(native()).tasks
    library, rng = a_library(task, tmp_path), np.random.default_rng(0)

    table = library.dispatcher.table
    assert library.dispatcher.task == task
    assert all(task.contains(row.shape) for row in table), "no other shape is predicted or dispatched for"
    drawn = [{var.name: int(rng.choice(var.values)) for var in task.shape_vars} for _ in range(20)]
    assert all(is_within(task.workload.dims(shape), library.dispatcher.bounds) for shape in drawn)
    drawn += [{var.name: int(rng.integers(0, 2 + var.max)) for var in task.shape_vars} for _ in range(20)]
    dims = [task.workload.dims(shape) for shape in drawn]
    kept = [each for each in dims if min(each.values()) >= 0 and task.workload.is_consistent(each)]
    assert len(kept) > 30
    assert [problem for each in kept if (problem := problem_at(library, each))] == []
