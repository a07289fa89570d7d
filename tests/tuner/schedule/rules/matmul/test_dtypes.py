"""Contractions of every pair of dtypes, by every instruction that this CPU has, against the reference."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, loaded, runnable, shortest
from tests.shares import chosen, diagonal, every, shares
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import Target, native
from tuner.schedule import NoMatch, layouts_of, rules_of
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.space import MicroKernel

RULE = Matmul()
T = ShapeVar("T", range(65))
DENSE = "out[m, n] = sum(k) x[m, k] * w[n, k]"
SUMS = "z[m, n] = sum(k) x[m, k] * w[n, k]"
PAIRS = [
    ("float32", "bfloat16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float16", "float16"),
    ("float32", "int8", "float32"),
    ("bfloat16", "uint8", "bfloat16"),
    ("int8", "int8", "int32"),
    ("uint8", "int8", "int32"),
    ("uint8", "uint8", "int32"),
]


def workload_of(text: str, k: int = 67, **fields: Any) -> Workload:
    extents = {"m": "T", "n": 83, "k": k}
    return workload_from_json({"program": text, "extents": extents, "constant": ["w"], **fields})


def task_of(workload: Workload, target: Target | None = None, threads: int = 1) -> SearchTask:
    return SearchTask(workload, shape_vars=(T,), target=target or native(), threads=threads)


def is_taken(task: SearchTask) -> bool:
    return RULE.name in [rule.name for rule in rules_of(task)]


def problems(task: SearchTask, kernel: MicroKernel, sizes: tuple[int, ...] = (0, 1, 7, 33)) -> list[str]:
    return built_problems(task, kernel, [task.workload.dims({"T": size}) for size in sizes])


@shares(2)
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    pair=st.sampled_from(PAIRS), k=st.integers(1, 150), seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2])
)
def test_kernels_of_every_pair_of_dtypes_are_right(
    share: int, pair: tuple[str, str, str], k: int, seed: int, threads: int
) -> None:
    left, right, out = pair
    task = task_of(workload_of(DENSE, k, dtype={"x": left, "w": right, "out": out}), threads=threads)
    assert is_taken(task)
    rng = np.random.default_rng(seed)
    kernel = shortest(RULE.space(task).sample(rng) for _ in range(1 if share else 4))
    assert problems(task, kernel) == [], kernel


QUICK_TARGETS = [(("int8", "int8", "int32"), "icelake-server"), (("bfloat16", "bfloat16", "float32"), "znver4")]
OF_TARGETS = itertools.product(PAIRS, ["x86-64-v3", "x86-64-v4", "icelake-server", "znver4"])


@pytest.mark.parametrize("case", chosen(QUICK_TARGETS, OF_TARGETS), ids=str)
def test_the_default_is_right_on_every_target(case: tuple[tuple[str, str, str], str]) -> None:
    (left, right, out), mcpu = case
    task = task_of(workload_of(DENSE, dtype={"x": left, "w": right, "out": out}), runnable(mcpu))
    kernel = RULE.default_kernel(task)
    groups = next((axis.choices for axis in RULE.space(task).axes if axis.name == "group"), (1,))
    assert kernel.get("group") == max(groups)
    assert problems(task, kernel) == []


EPILOGUES: Mapping[str, dict[str, Any]] = {
    "scales": {
        "program": f"{SUMS}; out[m, n] = cast(z[m, n], float32) * s[n] * t[m] + b[n]",
        "dtype": {"x": "int8", "w": "int8", "b": "bfloat16"},
    },
    "quantised again": {
        "program": f"{SUMS}; out[m, n] = cast(min(max(round(cast(z[m, n], float32) * s[n]), -128), 127), int8)",
        "dtype": {"x": "uint8", "w": "int8", "out": "int8"},
    },
    "a long epilogue in place of a short output": {
        "program": f"{SUMS}; out[m, n] = 0.5 * z[m, n] * (1 + erf(0.7 * z[m, n]))",
        "dtype": "bfloat16",
    },
    "sums that wait as integers where floats go": {
        "program": f"{SUMS}; out[m, n] = tanh(cast(z[m, n], float32) * 0.001)",
        "dtype": {"x": "int8", "w": "int8", "out": "float32"},
    },
    "an intermediate that is rounded": {
        "program": f"{SUMS}; out[m, n] = z[m, n] * z[m, n] + y[m, n]",
        "dtype": {"x": "float32", "w": "float32", "z": "bfloat16", "y": "float16"},
    },
}


@pytest.mark.parametrize(("name", "seed"), diagonal(EPILOGUES, range(3), every=6))
def test_epilogues_follow_the_dtypes_of_their_stages(name: str, seed: int) -> None:
    text = EPILOGUES[name]["program"]
    task = task_of(workload_of(text, 300, dtype=EPILOGUES[name]["dtype"]))
    assert is_taken(task)
    # In chunks of k where that is legal.
    space, rng = RULE.space(task), np.random.default_rng(seed)
    drawn = [space.sample(rng) for _ in range(20)]
    chunk = max(kernel["kc"] for kernel in drawn)
    kernel = shortest(kernel for kernel in drawn if kernel["kc"] == chunk)
    assert problems(task, kernel) == [], kernel


@pytest.mark.parametrize("out", every(3, ["int8", "uint8", "int16", "bfloat16"]))
def test_a_single_column_past_whole_vectors_is_stored_alone(out: str) -> None:
    text = f"{SUMS}; out[m, n] = cast(z[m, n], {out})"
    extents = {"m": "T", "n": 49, "k": 36}
    data = {"program": text, "extents": extents, "constant": ["w"], "dtype": {"x": "uint8", "w": "int8", "out": out}}
    task = task_of(workload_from_json(data))
    assert is_taken(task)
    assert problems(task, RULE.default_kernel(task)) == []


@pytest.mark.soak
@pytest.mark.parametrize(("dtype", "right"), itertools.product(["bfloat16", "float16"], ["b, n, k", "b, k, n"]))
def test_operands_that_are_new_at_every_call_are_widened_as_they_are_packed(dtype: str, right: str) -> None:
    data = {"program": f"out[b, m, n] = sum(k) x[b, m, k] * w[{right}]", "dtype": dtype}
    task = task_of(workload_from_json({**data, "extents": {"b": 3, "m": "T", "n": "T", "k": 37}}))
    assert is_taken(task)
    space = RULE.space(task)
    rng = np.random.default_rng(0)
    drawn = [space.sample(rng) for _ in range(60)]
    forms = {(each["pack"], each.get("group")) for each in drawn}
    kernels = {form: shortest(each for each in drawn if (each["pack"], each.get("group")) == form) for form in forms}
    assert {pack for pack, _ in kernels} == {0, 1, 2}
    groups = next((axis.choices for axis in space.axes if axis.name == "group"), ())
    if right == "b, n, k" and 2 in groups:
        # Vectors along k take words of two as they lie, the ragged last one too.
        assert (0, 2) in kernels
    assert [problem for kernel in kernels.values() for problem in problems(task, kernel)] == []


@pytest.mark.parametrize(("k", "depth"), diagonal([31, 63, 257], [None, "S"], every=2))
def test_an_infinity_stays_in_its_row(k: int, depth: str | None) -> None:
    """Also where k ends within a word, which must not be read from the next row."""
    args = {"m": "T", "n": 32, "k": depth or k}
    workload = workload_from_json({"op": "dense", "args": args, "dtype": "bfloat16"})
    sizes = [ShapeVar("T", range(1, 17)), *([ShapeVar("S", range(1, 300))] if depth else [])]
    task = SearchTask(workload, shape_vars=sizes, target=native(), threads=1)
    rule = rules_of(task)[0]
    kernel = rule.space(task).kernel(dict(rule.default_kernel(task).values) | {"rows": 1})
    x, weight = np.ones((4, k), ml_dtypes.bfloat16), np.ones((32, k), ml_dtypes.bfloat16)
    x[1] = np.inf
    out = np.zeros((4, 32), ml_dtypes.bfloat16)
    loaded(compile_candidate(task, kernel).binary)([x, layouts_of(task, kernel)["w"].pack(weight), out])
    assert np.isinf(out[1].astype(float)).all()
    assert np.isfinite(out[[0, 2, 3]].astype(float)).all()


@pytest.mark.parametrize(("pair", "seed"), diagonal(PAIRS, range(3), every=10))
def test_weights_of_dynamic_dims_are_packed(pair: tuple[str, str, str], seed: int) -> None:
    left, right, out = pair
    extents, dtypes = {"m": 5, "n": "3*T", "k": "2*T+1"}, {"x": left, "w": right, "out": out}
    workload = workload_from_json({"program": DENSE, "extents": extents, "constant": ["w"], "dtype": dtypes})
    task = task_of(workload, threads=1 + seed % 2)
    assert is_taken(task)
    kernel = RULE.space(task).sample(np.random.default_rng(seed))
    assert RULE.layouts(task, kernel).keys() == {"w"}
    assert problems(task, kernel, (0, 1, 7, 15, 32)) == [], kernel


def test_what_no_instruction_multiplies_has_a_reason() -> None:
    oldest = Target.from_json({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1})
    workload = workload_of(DENSE, dtype={"x": "int8", "w": "int8"})
    answer = RULE.match(workload, oldest)
    assert isinstance(answer, NoMatch)
    assert answer.reason == "x86-64 has no instruction that multiplies int8 by int8 as the operands lie"
    assert not is_taken(task_of(workload, oldest))
