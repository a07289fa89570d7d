"""The x86 contraction rule: what it takes, its space, and what its theory says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import IllegalKernel
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target
from tuner.schedule import NoMatch, extents_of, rules_for
from tuner.schedule.layout import PackLayout
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.space import MicroKernel, SearchSpace

RULE = Matmul()
T = ShapeVar("T", range(0, 129))
WIDE = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
NARROW = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
OLDEST = Target.from_json({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})


def task(op: str = "dense", target: Target = WIDE, threads: int = 1) -> SearchTask:
    batch = {"b": 12} if op.startswith("batch") else {}
    return SearchTask(op, batch | {"m": 16 * T, "n": 2304, "k": 768}, (T,), target=target, threads=threads)


OPS, TARGETS = ("dense", "matmul", "batch_matmul_nn", "batch_matmul_nt"), (WIDE, NARROW, OLDEST)
PLAIN = {"mr": 8, "nv": 3, "mb": 8, "kc": 0, "ku": 1, "near": 0, "ahead": 0, "fetch": 0, "rows": 0}
PLAIN |= {"tail": 0, "edge": 0, "pack": 0, "tb": 1, "tn": 1}
TASKS = [task(op, target, threads) for op in OPS for target in TARGETS for threads in (1, 6)]


def _text(space: SearchSpace) -> str:
    lines = [f"{axis.name:6}{axis.doc}: {' '.join(map(str, axis.choices))}" for axis in space.axes]
    kernels = [space.sample(np.random.default_rng(seed)) for seed in range(6)]
    lines += [f"{space.size} points", *(f"{kernel.id}  {kernel}" for kernel in kernels)]
    return "\n".join([f"{space.rule} version {space.rule_version}", *lines, ""])


@pytest.mark.parametrize("op", OPS)
def test_the_space_is_the_golden_one(op: str, golden: Callable[[str, str], None]) -> None:
    result = task(op, threads=4)
    golden(f"space_{op}.txt", _text(RULE.space(result)) + f"safe  {RULE.default_kernel(result)}\n")


PRODUCT = "out[m, n] = sum(k) x[m, k] * y[k, n]"
EXTENTS = {"m": "T", "n": 8, "k": 16}


def _own(text: str, **fields: Any) -> dict[str, Any]:
    return {"program": text, "extents": EXTENTS, **fields}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_own("out[m] = max(k) x[m, k] * y[k]", extents={"m": "T", "k": 16}), "not a sum of products"),
        (_own("out[m, n] = x[m, n] * y[m, n]", extents={"m": "T", "n": 8}), "not a sum of products"),
        (_own("out[m, n] = sum(k) x[m, k] * (y[k, n] + 1)"), "not two tensors read at plain axes"),
        (_own("out[m, n] = sum(k) x[m, k + 0*n] * y[2*k, n]"), "not two tensors read at plain axes"),
        (_own("out[m, n] = sum(k) x[k, m] * y[k, n]"), r"not \[m, k\] and \[k, n\] or \[n, k\]"),
        (_own("out[m] = sum(k) x[m, k] * y[k]", extents={"m": "T", "k": 16}), "neither 2 nor 3 axes"),
        (_own("out[m, n] = sum(k, j) x[m, k] * y[k, n] * z[j]", extents=EXTENTS | {"j": 3}), "not two tensors"),
        (_own(PRODUCT, dtype="float64"), "is float64"),
        (_own(PRODUCT, dtype="int32"), "no instruction that multiplies int32 by int32"),
        (_own(PRODUCT, dtype={"x": "int8", "y": "int8"}), "no instruction that multiplies int8 by int8"),
        (_own(PRODUCT, dtype={"x": "int8"}), "no instruction that multiplies int8 by float32"),
        (_own("out[m, n] = sum(k) x[m, k] * x[n, k]", extents={"m": "T", "n": "T", "k": 16}), "x is both operands"),
        (_own(PRODUCT, constant=["x"]), "the left operand x is constant"),
        (_own(PRODUCT, constant=["y"]), r"the constant y is not \[n, k\]"),
        (
            _own("out[b, m, n] = sum(k) x[b, m, k] * y[b, n, k]", constant=["y"], extents=EXTENTS | {"b": "T"}),
            "the constant y has a batch axis",
        ),
        (_own(PRODUCT, shapes={"y": [20, "n"]}), "y is larger than what is read of it"),
        (_own(f"{PRODUCT}; top[m] = max(n) out[m, n]"), "stage top is not elementwise"),
        (_own(f"{PRODUCT}; late[m, n] = out[m, n] * n"), "stage late computes with the values of axes"),
        (
            _own(f"{PRODUCT}; late[m, n] = out[m, n] + x[m, n]", extents=EXTENTS | {"n": 16}),
            "reads x other than element",
        ),
        (_own(f"{PRODUCT}; late[m, n] = out[m, n] + z[n, m]"), "reads z in another order"),
        (_own(f"{PRODUCT}; late[m, n] = out[m, n] + 1", outputs=["out", "late"]), "an intermediate is an output"),
    ],
)
def test_what_is_no_such_contraction_has_a_reason(data: dict[str, Any], reason: str) -> None:
    workload = workload_from_json(data)
    answer = RULE.match(workload, WIDE)
    assert isinstance(answer, NoMatch)
    assert re.search(reason, answer.reason), answer.reason
    # Another rule takes it.
    assert RULE not in rules_for(workload, WIDE)


@pytest.mark.parametrize(
    ("data", "roles"),
    [
        (
            {"op": "dense", "args": {"m": "T", "n": 8, "k": 4}, "epilogue": ["bias", "gelu"]},
            {"m": "m", "n": "n", "k": "k"},
        ),
        (
            {"op": "batch_matmul_nt", "args": {"b": "B", "m": "T", "n": "T", "k": 4}},
            dict(zip("bmnk", "bmnk", strict=True)),
        ),
        ({"op": "matmul", "args": {"m": "T", "n": "T", "k": "T"}}, {"m": "m", "n": "n", "k": "k"}),
        (
            {
                "program": "c[i, j] = sum(p) a[i, p] * b[p, j]; d[i, j] = max(c[i, j], 0) * s[j]",
                "extents": {"i": "T", "j": 8, "p": 4},
            },
            {"i": "m", "j": "n", "p": "k"},
        ),
    ],
)
def test_axes_are_told_their_roles(data: dict[str, Any], roles: dict[str, str]) -> None:
    workload = workload_from_json(data)
    assert RULE.match(workload, WIDE) == roles
    assert [rule.name for rule in rules_for(workload, NARROW)] == [RULE.name]
    other = RULE.match(workload, replace(WIDE, kind="cuda"))
    assert isinstance(other, NoMatch)
    assert "cuda" in other.reason


@settings(max_examples=40)
@given(st.sampled_from(TASKS), st.integers(0, 2**32 - 1))
def test_every_move_gives_a_legal_kernel(found: SearchTask, seed: int) -> None:
    space, rng = RULE.space(found), np.random.default_rng(seed)
    first, second = space.sample(rng), space.sample(rng)
    for kernel in (first, second, space.mutate(first, rng), space.crossover(first, second, rng)):
        assert space.kernel(dict(kernel.values)) == kernel


@pytest.mark.parametrize("found", TASKS, ids=str)
def test_the_safe_kernel_is_legal_everywhere(found: SearchTask) -> None:
    kernel = RULE.default_kernel(found)
    assert RULE.space(found).kernel(dict(kernel.values)) == kernel


def test_sampling_is_not_stuck_and_uses_every_choice() -> None:
    space = RULE.space(task("matmul", threads=2))
    rng = np.random.default_rng(0)
    seen: dict[str, Counter[int]] = {axis.name: Counter() for axis in space.axes}
    for _ in range(3000):
        for name, value in space.values_of(space.sample(rng)).items():
            seen[name][value] += 1
    assert {axis.name: set(axis.choices) for axis in space.axes} == {name: set(result) for name, result in seen.items()}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mr": 14, "nv": 3}, r"mr=14 nv=3 needs 46 vector registers, there are 32"),
        ({"mr": 10, "nv": 2, "ku": 8, "tail": 1}, r"ku=8 tail=1 edge=0 unroll 880 operations, limit 768"),
        ({"mr": 1, "tail": 1}, r"tail=1 needs mr above 1"),
        ({"pack": 1, "mb": 8}, r"needs mb=256, got 8"),
        ({"near": 8}, r"near=8 needs a packed operand"),
        ({"ahead": 8}, r"ahead=8 needs every panel packed"),
        ({"pack": 1, "mb": 256, "nb": 4}, r"nb=4 pack=1 mb=256: strips need all panels packed"),
        ({"mb": 1, "nb": 4}, r"nb=4 pack=0 mb=1: strips need .* mb above 1"),
        ({"pack": 2, "ahead": 2, "ku": 4}, r"ahead=2 needs whole turns of ku=4 steps"),
        ({"rows": 1, "mb": 256}, r"mb=256 mr=4 packs 1024 rows, limit 512"),
        ({"mr": 11}, r"mr=11 is not one of"),
    ],
)
def test_an_illegal_kernel_is_told_its_need_and_the_limit(change: dict[str, int], says: str) -> None:
    plain = PLAIN | {"mr": 4, "nv": 2}
    space = RULE.space(task("matmul"))
    assert space.kernel(plain)
    with pytest.raises(IllegalKernel, match=says):
        space.kernel(plain | change)


def test_reading_both_operands_along_k_leaves_little_to_choose() -> None:
    space = RULE.space(task("batch_matmul_nt"))
    plain = PLAIN | {"mr": 2, "nv": 4, "mb": 256}
    assert space.kernel(plain)
    with pytest.raises(IllegalKernel, match=r"pack=0 reads both operands along k: needs kc=0, got 128"):
        space.kernel(plain | {"kc": 128})


def test_the_space_depends_on_hardware_and_threads_alone() -> None:
    def drawn(result: SearchTask) -> list[MicroKernel]:
        rng = np.random.default_rng(0)
        return [RULE.space(result).sample(rng) for _ in range(50)]

    base = task()
    small = ShapeVar("T", range(3, 5))
    for other in (
        SearchTask(base.workload, shape_vars=(small,), target=WIDE),
        SearchTask(base.workload, shape_vars=(T,), instances=[1], weights=[7.0], target=WIDE, max_kernels=2),
    ):
        assert RULE.space(other).axes == RULE.space(base).axes
        assert drawn(other) == drawn(base)
    assert RULE.space(task(threads=2)).size == 2 * RULE.space(base).size
    assert drawn(task(target=NARROW)) != drawn(base)


def test_a_panel_is_a_vector_whatever_the_register_tile() -> None:
    kernel = RULE.default_kernel(task())
    assert RULE.layouts(task(), kernel) == {"w": PackLayout(16)}
    stored = RULE.space(task()).kernel(dict(kernel.values) | {"panel": 1})
    assert RULE.layouts(task(), stored) == {"w": PackLayout(kernel["nv"] * 16)}
    assert RULE.layouts(task("matmul"), RULE.default_kernel(task("matmul"))) == {}


def test_a_task_without_a_target_is_told_to_find_one() -> None:
    with pytest.raises(ValueError, match=r"resolve it with task\.on"):
        RULE.space(SearchTask("dense", {"m": T, "n": 8, "k": 8}, (T,)))


# -- theory -----------------------------------------------------------------------------------------------------------
SHAPES = [{"T": t} for t in (0, 1, 2, 5, 64, 128)]


@settings(max_examples=40)
@given(st.sampled_from(TASKS), st.integers(0, 2**32 - 1))
def test_theory_and_features_are_finite_for_every_kernel_and_shape(found: SearchTask, seed: int) -> None:
    kernel = RULE.space(found).sample(np.random.default_rng(seed))
    extents = extents_of(found.workload, SHAPES)
    (latency,) = RULE.estimate_s(found, [kernel], extents)
    assert latency.shape == (len(SHAPES),)
    assert np.isfinite(latency).all()
    assert (latency > 0).all()
    assert (latency[-1] > latency[:3]).all()
    (features,) = RULE.features(found, [kernel], extents)
    assert features.shape[0] == len(SHAPES)
    assert np.isfinite(features).all()


def test_theory_knows_padding_balance_and_threads() -> None:
    def latency(m: int, threads: int = 1, **change: int) -> float:
        rows = ShapeVar("M", range(1, 4097))
        result = SearchTask("dense", {"m": rows, "n": 2304, "k": 768}, (rows,), target=WIDE, threads=threads)
        kernel = RULE.space(result).kernel(PLAIN | change)
        return float(RULE.estimate_s(result, [kernel], extents_of(result.workload, [{"M": m}]))[0, 0])

    # A ragged rest of one row costs a whole tile if it is padded, far less with exact code.
    assert latency(9) / latency(8) > 1.2
    assert latency(9, tail=1) < latency(9)
    assert latency(16, tail=1) == pytest.approx(latency(16))
    # Two threads halve a large shape; one tile cannot be shared along m, but can along n.
    assert 1.7 < latency(2048) / latency(2048, threads=2) <= 2.01
    assert latency(8, threads=2, tn=2) < latency(8, threads=2, tn=1)


def test_theory_sees_rows_that_push_each_other_out_of_the_first_cache() -> None:
    """Rows of 4 KiB fall on one set of L1, which has 8 ways on this CPU: 14 of them are too many."""
    target = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 1})

    def prior_s(k: int, **changed: int) -> float:
        workload = workload_from_json({"op": "dense", "args": {"m": "T", "n": 1024, "k": k}})
        task = SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 513)),), target=target)
        values = dict.fromkeys(("ahead", "edge", "fetch", "kc", "near", "pack", "rows"), 0) | {"tb": 1, "tn": 1}
        kernel = RULE.space(task).kernel({**values, "ku": 2, "mb": 16, "mr": 14, "nv": 2, "tail": 1, **changed})
        return float(RULE.estimate_s(task, [kernel], extents_of(workload, [{"T": 256}]))[0, 0]) / k

    assert target.hardware.l1d_bytes == 32 * 1024
    assert prior_s(1024) > 1.05 * prior_s(1032)
    assert prior_s(1024, mr=8, nv=3) < 1.02 * prior_s(1032, mr=8, nv=3)
    assert prior_s(1024, rows=1) < 1.02 * prior_s(1032, rows=1)


@pytest.mark.parametrize(("m", "n"), [(1, 2304), (8, 2304), (512, 48), (512, 40), (0, 2304)])
def test_strips_that_change_no_code_change_no_prediction(m: int, n: int) -> None:
    """Strips that one tile goes over, and strips of one panel."""
    found = SearchTask("dense", {"m": T, "n": n, "k": 768}, (T,), target=WIDE)
    kernels = [RULE.space(found).kernel(PLAIN | {"nb": nb}) for nb in (1, 16)]
    without, strips = RULE.estimate_s(found, kernels, extents_of(found.workload, [{"T": m}]))[:, 0]
    assert without == strips


def test_strips_of_several_panels_and_tiles_are_predicted_otherwise() -> None:
    found = SearchTask("dense", {"m": T, "n": 2304, "k": 768}, (T,), target=WIDE)
    kernels = [RULE.space(found).kernel(PLAIN | {"nb": nb}) for nb in (1, 16)]
    without, strips = RULE.estimate_s(found, kernels, extents_of(found.workload, [{"T": 512}]))[:, 0]
    assert without != strips
