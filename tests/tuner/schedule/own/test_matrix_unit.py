"""An instruction that is not the project's is one entry of the table: every product is matched to it, searched, emitted
and right."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiled import built_problems
from tests.shares import chosen, every, shares, spread
from tests.tuner.schedule.own.matrix_unit import MADE_UP
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.schedule import extents_of, rules_of
from tuner.schedule.product import atoms
from tuner.schedule.space import MicroKernel

WORKLOADS: dict[str, dict[str, Any]] = {
    "dense": {"op": "dense", "args": {"m": "T", "n": 37, "k": 35}, "epilogue": ["bias", "gelu"]},
    "dense, dynamic": {"op": "dense", "args": {"m": "T", "n": "S", "k": "U"}},
    "batched": {"op": "batch_matmul_nt", "args": {"b": 3, "m": "T", "n": "S", "k": 33}},
    "batched, rows": {"op": "batch_matmul_nn", "args": {"b": 2, "m": "T", "n": 21, "k": "S"}},
    "convolution": {
        "op": "conv2d", "args": {"b": "T", "c": 5, "h": 7, "w": 9, "o": 18, "r": 3, "s": 3, "pad": 1},
        "epilogue": ["bias", "relu"],
    },
    "convolution, channels last": {
        "op": "conv2d", "args": {"b": "T", "c": 5, "h": 7, "w": 9, "o": 18, "r": 3, "s": 3, "layout": "nhwc"},
    },
    "experts": {"op": "moe_dense", "args": {"t": "T", "e": 4, "n": 33, "k": 35}},
}  # fmt: skip
KERNELS = 6


@pytest.fixture(autouse=True)
def _with_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atoms, "ATOMS", [*atoms.ATOMS, MADE_UP])


def task_of(name: str, threads: int = 1) -> SearchTask:
    workload = workload_from_json(WORKLOADS[name])
    variables = tuple(ShapeVar(symbol, range(65)) for symbol in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=native(), threads=threads)


def kernels_of(task: SearchTask) -> list[MicroKernel]:
    """Some that multiply by the unit."""
    space, random = rules_of(task)[0].space(task), np.random.default_rng(0)
    drawn = (space.sample(random) for _ in range(2000))
    found = {kernel.id: kernel for kernel in drawn if kernel.get("group") == MADE_UP.depth}
    return list(found.values())[:KERNELS]


QUICK = [("dense", 2), ("convolution", 1), ("experts", 1)]
"""A kernel of each rule."""


@pytest.mark.parametrize(("name", "threads"), spread(chosen(QUICK, itertools.product(WORKLOADS, [1, 2]))))
@shares(KERNELS)
def test_every_product_is_right_in_it(share: int, name: str, threads: int) -> None:
    task = task_of(name, threads)
    kernel = kernels_of(task)[share]
    sizes = [dict.fromkeys(task.workload.symbols, size) for size in (0, 1, 2, 7, 16, 33, 64)]
    sizes += [dict(zip(task.workload.symbols, (29, 3, 17), strict=False))]
    sizes = [each for each in sizes if each.keys() == set(task.workload.symbols)]
    assert built_problems(task, kernel, sizes) == []


@pytest.mark.parametrize("name", every(3, WORKLOADS))
def test_theory_goes_by_its_cycles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(name)
    rule, kernels = rules_of(task)[0], kernels_of(task)
    extents = extents_of(task.workload, task.shapes(8))
    quick = rule.estimate_s(task, kernels, extents)
    assert MADE_UP.unit is not None
    monkeypatch.setattr(atoms, "ATOMS", [*atoms.ATOMS, replace(MADE_UP, unit=replace(MADE_UP.unit, cycles=100.0))])
    slow = rule.estimate_s(task, kernels, extents)
    assert np.isfinite(quick).all()
    assert (slow >= quick).all()
    assert (slow > 2 * quick).any()
