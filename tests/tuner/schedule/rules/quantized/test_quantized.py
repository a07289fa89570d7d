"""Products with computed weights: what the rule takes, what it takes for four bits, and its kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems
from tests.shares import diagonal, shares
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import Target, native
from tuner.schedule import NoMatch, rules_of
from tuner.schedule.layout import PackLayout, layout_from_json
from tuner.schedule.rules.quantized import Quantized, match
from tuner.schedule.space import MicroKernel

RULE = Quantized()
HALF = "(w[n, k // 2] >> (4 * (k % 2))) & 15"
AVX2 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
AVX512 = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})


def workload_of(weight: str, n: int = 37, k: int = 45, behind: str = "", **fields: Any) -> Workload:
    text = f"z[m, n] = sum(k) x[m, k] * ({weight})\n{behind}"
    data = {"program": text, "extents": {"m": "T", "n": n, "k": k}, "constant": ["w"], "dtype": {"w": "uint8"}}
    return workload_from_json({**data, **fields})


def small_kernel(task: SearchTask, pack: int = 0, late: int = 0) -> MicroKernel:
    """One that is built quickly."""
    space = RULE.space(task)
    own = {"mr": 2, "nv": 1, "ku": 8, "pack": pack, "late": late}
    small = space.canonicalise({**dict(RULE.default_kernel(task).values), **own})
    return space.kernel(small)


def task_of(workload: Workload, threads: int = 1, target: Target | None = None) -> SearchTask:
    variables = (ShapeVar("T", range(65)),)
    return SearchTask(workload, shape_vars=variables, target=target or native(), threads=threads)


@pytest.mark.parametrize(
    ("weight", "offset", "flipped", "high_first"),
    [
        (HALF, 0, 0, False),
        (f"cast({HALF}, float32) - 8", -8, 0, False),
        ("where(k % 2 == 0, w[n, k // 2] & 15, w[n, k // 2] >> 4)", 0, 0, False),
        ("(w[n, k // 2] >> (4 - 4 * (k % 2))) & 15", 0, 0, True),
        (f"(({HALF}) + 8) % 16 - 8", -8, 8, False),
        ("cast(w[n, k // 2] << (4 - 4 * (k % 2)), int8) >> 4", -8, 8, False),
    ],
)
def test_four_bits_are_found_by_what_is_computed(weight: str, offset: int, flipped: int, high_first: bool) -> None:
    workload = workload_of(f"({weight}) * 0.5")
    found = match(workload)
    assert not isinstance(found, NoMatch), found
    code = found.right.code
    assert code is not None
    assert (code.offset, code.flipped, code.high_first) == (offset, flipped, high_first)
    task = task_of(workload)
    assert built_problems(task, small_kernel(task), [task.workload.dims({"T": 9})]) == []


@pytest.mark.parametrize(
    ("weight", "fields", "reason"),
    [
        ("w[n, k] * 2", {"constant": []}, "neither along n, nor a constant"),
        ("(w[n, k // 2] >> (4 * (k % 2))) & 7", {}, "values of axes"),
        ("(w[n, k // 2] >> (5 * (k % 2))) & 15", {}, "values of axes"),
        ("(w[n, k // 2] >> (4 * ((n + k) % 2))) & 15", {}, "values of axes"),
        (f"{HALF} & k", {}, "values of axes"),
        (f"({HALF}) * s[k]", {}, "neither along n"),
        (f"({HALF}) * s[n // 3]", {}, "shared by columns"),
        ("w[n, k]", {}, "not computed"),
    ],
)  # fmt: skip
def test_what_is_not_taken_has_its_reason(weight: str, fields: Mapping[str, Any], reason: str) -> None:
    found = match(workload_of(weight, **fields))
    assert isinstance(found, NoMatch)
    assert reason in found.reason


def test_the_value_of_an_axis_in_a_stage_of_the_weight_is_not_taken() -> None:
    program = "v[n, k] = w[n, k] * k\nz[m, n] = sum(k) x[m, k] * v[n, k]"
    data = {"program": program, "extents": {"m": "T", "n": 37, "k": 45}, "constant": ["w"]}
    found = match(workload_from_json(data))
    assert isinstance(found, NoMatch)
    assert "values of axes" in found.reason


def test_a_library_holds_four_bits_for_each_weight() -> None:
    task = task_of(make_workload("dense_int4", {"m": "T", "n": 96, "k": 64}))
    layouts = RULE.layouts(task, RULE.default_kernel(task))
    packed = layouts["w"].pack(np.zeros((96, 32), np.uint8))
    assert isinstance(layouts["w"], PackLayout)
    assert packed.nbytes == 96 * 64 // 2
    assert layouts["s"].pack(np.zeros((96, 2), np.float32)).nbytes == 96 * 2 * 4


@shares(2)
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    n=st.integers(1, 70), k=st.integers(1, 90), group=st.sampled_from([1, 3, 8, 32, 100]),
    seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]), form=st.sampled_from([(0, 0), (0, 1), (1, 0)]),
)  # fmt: skip
def test_kernels_of_any_sizes_are_right(
    share: int, n: int, k: int, group: int, seed: int, threads: int, form: tuple[int, int]
) -> None:
    task = task_of(make_workload("dense_int4", {"m": "T", "n": n, "k": k, "group": group}), threads)
    assert rules_of(task)[0].name == RULE.name
    space, rng = RULE.space(task), np.random.default_rng(seed)
    pack, late = form
    late = late if RULE.product(task.workload).right.grouped else 0
    drawn = iter(lambda: space.sample(rng), None)
    kernel = next(each for each in drawn if (each["pack"], each["late"]) == (pack, late))
    sizes = [task.workload.dims({"T": size}) for size in (0, 1, 7, 64)]
    assert built_problems(task, kernel, sizes) == [], kernel


WORD = "(w[k // 8, n] >> (4 * (k % 8))) & 15"
ZERO = "(z0[k // 16, n // 8] >> (4 * (n % 8))) & 15"
OF_WORDS: Mapping[str, Any] = {"constant": ["w", "z0", "s"], "dtype": {"w": "int32", "z0": "int32"}}
OF_BYTES: Mapping[str, Any] = {"constant": ["w", "z0", "s"], "dtype": {"w": "uint8", "z0": "uint8"}}
PLACED: Mapping[str, Workload] = {
    "GPTQ": workload_of(f"(cast({WORD}, float32) - cast(({ZERO}) + 1, float32)) * s[k // 16, n]", k=48, **OF_WORDS),
    "AWQ": workload_of(
        f"cast(((w[k, n // 8] >> (n % 2 * 16 + n % 8 // 2 * 4)) & 15) - ({ZERO}), float32) * s[k // 16, n]", **OF_WORDS,
    ),
    "blocks in halves": workload_of(
        "(cast((w[n, k // 32, k % 16] >> (4 * (k % 32 // 16))) & 15, float32) - 8) * s[n, k // 32]", k=70,
        constant=["w", "s"],
    ),
    "blocks in neighbours, zero points in halves": workload_of(
        "cast(((w[n, k // 32, k % 32 // 2] >> (4 * (k % 2))) & 15)"
        " - ((z0[n, k // 64] >> (4 * (k // 32 % 2))) & 15), float32) * s[n, k // 32]", k=70, **OF_BYTES,
    ),
    "a byte for each": workload_of("cast(w[n, k] & 15, int8) * s[n]", dtype={"w": "uint8"}, k=33),
}  # fmt: skip
"""Numbers of four bits in the orders that others pack them in."""


@pytest.mark.parametrize(("name", "form"), diagonal(PLACED, ["by tiles", "late", "by blocks"], every=3))
def test_four_bits_are_taken_wherever_they_lie(name: str, form: str) -> None:
    task, pack, late = task_of(PLACED[name]), int(form == "by blocks"), int(form == "late")
    assert rules_of(task)[0].name == RULE.name
    right = RULE.product(task.workload).right
    assert right.numbers
    assert right.dtype == "int4"
    kernel = small_kernel(task, pack, late if right.grouped else 0)
    assert built_problems(task, kernel, [task.workload.dims({"T": 9})]) == []
    layout = RULE.layouts(task, kernel)["w"]
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


FURTHER: Mapping[str, Workload] = {
    "zero points": workload_of(
        f"(cast({HALF}, float32) - z0[n, k // 16]) * s[n, k // 16]", constant=["w", "z0", "s"],
        dtype={"w": "uint8", "z0": "int8", "s": "bfloat16", "x": "float16"},
    ),
    "scales as they lie": workload_of(f"cast({HALF}, float32) * s[k // 8, n] + t[n]", behind="o[m, n] = z[m, n] * 2"),
    "bytes": workload_of("w[n, k] * s[n, k // 7]", constant=["w", "s"], dtype={"w": "int8"}, k=700, n=19),
    "a weight in stages": workload_from_json({
        "program": "a[j, p] = cast((w[j, p // 2] >> (4 * (p % 2))) & 15, bfloat16)\nb[j, p] = (a[j, p] - 8) * s[j]\n"
                   "z[m, n] = sum(k) b[n, k] * x[m, k]\nout[m, n] = 0.5 * z[m, n] * (1 + erf(z[m, n])) + y[m, n]",
        "extents": {"m": "T", "n": 21, "k": 30, "j": 21, "p": 30}, "constant": ["w", "s"],
        "dtype": {"w": "uint8", "y": "bfloat16", "out": "bfloat16"},
    }),
}  # fmt: skip


@pytest.mark.parametrize(("name", "seed"), diagonal(FURTHER, [1, 0], every=4))
def test_further_forms_are_right(name: str, seed: int) -> None:
    task = task_of(FURTHER[name], 1 + seed)
    assert rules_of(task)[0].name == RULE.name
    kernel = RULE.space(task).sample(np.random.default_rng(seed))
    assert built_problems(task, kernel, [task.workload.dims({"T": size}) for size in (1, 19)]) == [], kernel


@pytest.mark.parametrize(
    ("weight", "steps"),
    [
        (f"({HALF}) * s[n, k // 32]", 32),
        (f"t[n] * (({HALF}) - z0[n, k // 8]) * s[n, k // 32]", 32),
        (f"({HALF}) * s[n, k // 32] * t[n, k // 16]", 16),
        (f"({HALF}) * (t[n] * s[n, k // 32])", 32),
        (f"({HALF}) * t[n]", 70),
        (f"({HALF}) * 0.5", 70),
        (f"({HALF}) * s[n, k // 8]", None),
        (f"({HALF}) * i[n]", None),
        (f"({HALF}) * s[n, k // 32] * t[n, k // 48]", None),
        (f"({HALF}) * s[n, k // 32] + t[n]", None),
    ],
)  # fmt: skip
def test_factors_that_many_steps_share_are_found(weight: str, steps: int | None) -> None:
    constants = [name for name in ("w", "s", "z0") if f"{name}[" in weight] + ["t"] * ("t[n, k" in weight)
    dtypes = {name: dtype for name, dtype in (("w", "uint8"), ("z0", "int8"), ("i", "int32")) if f"{name}[" in weight}
    workload = workload_of(weight, k=70, constant=constants, dtype=dtypes)
    found = match(workload)
    assert not isinstance(found, NoMatch), found
    assert (found.right.grouped and found.right.grouped.steps) == steps
    task = task_of(workload)
    assert [axis.choices for axis in RULE.space(task).axes if axis.name == "late"] == [(0, 1) if steps else (0,)]
    if steps:
        assert built_problems(task, small_kernel(task, late=1), [task.workload.dims({"T": 9})]) == []


def test_theory_unpacks_a_panel_once_where_many_rows_use_it() -> None:
    # A tile of 8 x 3 vectors needs the registers of AVX-512.
    task = task_of(make_workload("dense_int4", {"m": "T", "n": 3072, "k": 768}), target=AVX512)
    space, safe = RULE.space(task), dict(RULE.default_kernel(task).values)
    values = [{"pack": 0}, {"pack": 1}, {"pack": 0, "ku": 8}, {"pack": 0, "ku": 8, "late": 1}]
    kernels = [space.kernel(space.canonicalise({**safe, "mr": 8, "nv": 3, **each})) for each in values]
    extents = {"m": np.array([8, 256]), "n": np.full(2, 3072), "k": np.full(2, 768)}
    expected = RULE.estimate_s(task, kernels, extents)
    often, once, turns, late = expected
    assert often[0] < once[0]
    assert once[1] < often[1]
    # A word in one turn needs no shifts by registers, and sums of a group one multiplication in all.
    assert (late < turns).all()
    assert (turns < often).all()


def test_code_for_shorter_vectors_is_right_too() -> None:
    task = task_of(make_workload("dense_int4", {"m": "T", "n": 21, "k": 37, "group": 8}), target=AVX2)
    assert built_problems(task, small_kernel(task), [task.workload.dims({"T": 9})]) == []
