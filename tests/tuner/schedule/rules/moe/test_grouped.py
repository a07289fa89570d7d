"""Rows times the matrix of their group: what the rule takes, and its kernels against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, loaded, shortest
from tests.shares import diagonal, shares
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.reference import compute
from tuner.program.target import native
from tuner.schedule import NoMatch, rules_of
from tuner.schedule.packing import row_major
from tuner.schedule.rules.moe import Moe

RULE = Moe()
MOE = "out[t, n] = sum(k) x[t, k] * w[expert[t], n, k]"


def workload_of(text: str = MOE, e: int = 5, n: int = 33, k: int = 40, **fields: Any) -> Workload:
    extents = {"t": "T", "n": n, "k": k}
    data = {"program": text, "extents": extents, "shapes": {"w": [e, "n", "k"]}, "constant": ["w"]}
    return workload_from_json({**data, **fields})


def task_of(workload: Workload, threads: int = 1) -> SearchTask:
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(65)),), target=native(), threads=threads)


@shares(4)
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    e=st.integers(1, 9), n=st.integers(1, 70), k=st.integers(1, 90), seed=st.integers(0, 2**32 - 1),
    threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_kernels_of_any_sizes_are_right(share: int, e: int, n: int, k: int, seed: int, threads: int) -> None:
    task = task_of(workload_of(e=e, n=n, k=k), threads)
    assert rules_of(task)[0].name == RULE.name
    rng = np.random.default_rng(seed)
    kernel = shortest(RULE.space(task).sample(rng) for _ in range(1 if share else 4))
    sizes = [task.workload.dims({"T": size}) for size in (0, 1, 7, 64)]
    assert built_problems(task, kernel, sizes) == [], kernel


@pytest.mark.parametrize("numbers", [[], [2] * 40, [0, 4] * 20, [-7, 99, 1, -1, 5, 4] * 7, list(range(5)) * 8], ids=str)
def test_loads_may_be_uneven_and_numbers_out_of_bounds(numbers: list[int]) -> None:
    task = task_of(workload_of())
    rng, expert = np.random.default_rng(0), np.array(numbers, np.int32)
    x = rng.standard_normal((len(expert), 40)).astype(np.float32)
    w = rng.standard_normal((5, 33, 40)).astype(np.float32)
    (expected,) = compute(task.workload, [x, w, expert], task.workload.dims({"T": len(expert)}))
    kernel = RULE.default_kernel(task)
    x, expert, out = map(row_major, (x, expert, np.full((len(expert), 33), np.nan, np.float32)))
    loaded(compile_candidate(task, kernel).binary)([x, RULE.layouts(task, kernel)["w"].pack(w), expert, out])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


FURTHER: Mapping[str, Workload] = {
    "an epilogue": workload_of(f"z{MOE[3:]}; out[t, n] = max(z[t, n] + bias[n], 0) * gate[t] + y[t, n]"),
    "a long epilogue": workload_of(f"z{MOE[3:]}; out[t, n] = 0.5 * z[t, n] * (1 + erf(z[t, n]))", k=700),
    "operands of the group": workload_of(
        f"z{MOE[3:]}; y[t, n] = z[t, n] * s[expert[t]] + b[expert[t], n]; out[t, n] = y[t, n] * erf(y[t, n])",
        shapes={"w": [5, "n", "k"], "b": [5, "n"], "s": [5]},
        constant=["w", "b"],
        dtype={"b": "bfloat16"},
    ),
    "short floats": workload_of(dtype={"x": "bfloat16", "w": "bfloat16", "out": "bfloat16"}),
    "weights of bytes": workload_of(f"z{MOE[3:]}; out[t, n] = z[t, n] * s[n]", dtype={"w": "int8"}),
    "operands the other way round": workload_of("out[t, n] = sum(k) w[expert[t], n, k] * x[t, k]"),
    "numbers of 64 bits": workload_of(dtype={"expert": "int64"}),
}


@pytest.mark.parametrize(("name", "seed"), diagonal(FURTHER, [0, 1], every=7))
def test_further_forms_are_right(name: str, seed: int) -> None:
    task = task_of(FURTHER[name], 1 + seed)
    assert rules_of(task)[0].name == RULE.name
    kernel = RULE.space(task).sample(np.random.default_rng(seed))
    assert built_problems(task, kernel, [task.workload.dims({"T": size}) for size in (1, 19)]) == [], kernel


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (workload_of("out[t, n] = max(k) x[t, k] * w[expert[t], n, k]"), "not a sum over one axis"),
        (workload_of("out[t, n] = sum(k) x[t, k] * w[expert[n], n, k]"), "the operands are not"),
        (workload_of("out[t, n] = sum(k) x[t, k] * w[]", shapes={}), "the operands are not"),
        (workload_of(constant=[]), "w is not constant"),
        (workload_of(dtype={"x": "float64"}), "is float64"),
        (workload_of(dtype={"x": "int8", "w": "int8"}), "int8 is not multiplied by int8"),
        (workload_of(f"z{MOE[3:]}; out[t, n] = z[t, n] + x[t, n]", n=40), "reads x other than"),
        (
            workload_of(
                f"z{MOE[3:]}; out[t, n] = z[t, n] + b[expert[t], n]", shapes={"w": [5, "n", "k"], "b": [4, "n"]}
            ),
            "reads b other than",
        ),
        (workload_of(f"z{MOE[3:]}; out[t] = max(n) z[t, n]"), "stage out is not elementwise"),
        (workload_of(shapes={"w": [5, 50, "k"]}), "w is larger"),
    ],
    ids=str,
)
def test_what_is_no_such_product_has_a_reason(workload: Workload, reason: str) -> None:
    answer = RULE.match(workload, native())
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason
    assert RULE.name not in [rule.name for rule in rules_of(task_of(workload))]
