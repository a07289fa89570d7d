"""A rule that is not the project's: one file, and few names of it (docs/howto/add-a-rule.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.compiled import built_problems
from tests.rival import registered
from tests.shares import diagonal
from tests.tuner.schedule.own import table_rule
from tests.tuner.schedule.own.table_rule import TableProduct
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.schedule import extents_of, rules_of

RULE = TableProduct()
MAX_NAMES = 20


def task(weight: str = "w[n, k]") -> SearchTask:
    workload = workload_from_json({
        "program": f"out[m, n] = sum(k) x[index[m], k] * {weight}",
        "extents": {"m": "T", "n": 37, "k": 19},
        "shapes": {"x": [11, 19]},
        "dtype": {"index": "int32"},
        "constant": ["w"],
    })  # fmt: skip
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 65)),), target=native(), threads=1)


def test_a_rule_is_one_file_and_needs_few_names() -> None:
    tree = ast.parse(Path(table_rule.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports if (node.module or "").startswith("tuner") for alias in node.names]
    assert len(names) <= MAX_NAMES, names


def test_it_is_matched_before_others() -> None:
    with registered(RULE):
        assert rules_of(task())[0] is RULE


@pytest.mark.parametrize(("seed", "weight"), diagonal(range(6), ["w[n, k]", "w[k, n]"], every=2))
def test_its_kernels_are_right(seed: int, weight: str) -> None:
    given = task(weight)
    with registered(RULE):
        kernel = RULE.space(given).sample(np.random.default_rng(seed)) if seed else RULE.default_kernel(given)
        assert built_problems(given, kernel, [{"m": size} for size in (1, 7, 64)]) == []


def test_it_has_the_theory_of_the_engine() -> None:
    given = task()
    kernels = [RULE.space(given).sample(np.random.default_rng(seed)) for seed in range(5)]
    seconds = RULE.estimate_s(given, kernels, extents_of(given.workload, given.shapes(8)))
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()
