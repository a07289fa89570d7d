"""Products of a product: what the rule takes, and its kernels against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, shortest
from tests.contract.rule_samples import MLP, SWIGLU
from tests.shares import diagonal, every, spread
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import Target, native
from tuner.schedule import NoMatch, extents_of, rules_of
from tuner.schedule.rules.mlp import Mlp, emit

RULE = Mlp()
SERVER = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
PLAIN = "h[m, f] = sum(k) x[m, k] * w1[f, k]\nout[m, n] = sum(f) h[m, f] * w2[n, f]"


def workload_of(text: str = MLP, f: int = 70, n: int = 33, k: int = 40, **fields: Any) -> Workload:
    constant = [name for name in ("w1", "w2", "w3") if name in text]
    data = {"program": text, "extents": {"m": "T", "f": f, "n": n, "k": k}, "constant": constant}
    return workload_from_json({**data, **fields})


def task_of(workload: Workload, threads: int = 1, target: Target | None = None, most: int = 65) -> SearchTask:
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(most)),), target=target or native(), threads=threads)


@pytest.mark.soak
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    text=st.sampled_from([PLAIN, SWIGLU]), f=st.integers(1, 300), n=st.integers(1, 70), k=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_kernels_of_any_sizes_are_right(text: str, f: int, n: int, k: int, seed: int, threads: int) -> None:
    task = task_of(workload_of(text, f, n, k), threads)
    kernel = RULE.space(task).sample(np.random.default_rng(seed))
    shapes = [task.workload.dims({"T": size}) for size in (0, 1, 7, 64)]
    assert built_problems(task, kernel, shapes) == [], kernel


@pytest.mark.parametrize(("threads", "fb"), diagonal([1, 2], [0, 128], every=3))
def test_rows_whose_intermediate_is_too_large_come_in_parts(
    threads: int, fb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "WHOLE_BYTES", 24_000)
    task = task_of(workload_of(PLAIN, f=300), threads)
    values = dict(RULE.default_kernel(task).values)
    kernel = RULE.space(task).kernel({**values, "mr": 4, "whole": 1, "mb": 2, "fb": fb})
    assert emit.whole_rows(1, emit.kept_width(300, 16, 16), 4) == 16
    shapes = [task.workload.dims({"T": size}) for size in (0, 3, 16, 17, 64, 71)]
    assert built_problems(task, kernel, shapes) == []


FURTHER: Mapping[str, Workload] = {
    "weights the other way round": workload_of(
        "h[m, f] = sum(k) w1[k, f] * x[m, k]\nout[m, n] = sum(f) h[m, f] * w2[f, n]"
    ),
    "other names in the second product": workload_of(
        "h[m, f] = sum(k) x[m, k] * w1[f, k]\ny[i, n] = sum(j) h[i, j] * w2[n, j]\nout[i, n] = max(y[i, n], 0)",
        extents={"m": "T", "f": 70, "k": 40, "i": "T", "j": 70, "n": 33},
    ),
    "products of different rows": workload_of(
        "a[m, f] = sum(k) x[m, k] * w1[f, k]\nb[m, f] = sum(p) z[m, p] * w3[f, p]\n"
        "g[m, f] = max(a[m, f], 0) * b[m, f] * s[m]\nout[m, n] = sum(f) g[m, f] * w2[n, f]",
        extents={"m": "T", "f": 300, "k": 40, "p": 9, "n": 33},
    ),
    "short floats": workload_of(dtype={"x": "bfloat16", "w1": "bfloat16", "w2": "bfloat16", "out": "bfloat16"}, f=300),
    "weights of bytes": workload_of(SWIGLU, f=300, dtype={"w1": "int8", "w2": "int8"}),
    "the input once more": workload_of(f"{PLAIN.replace('out', 'z')}\nout[m, n] = z[m, n] + x[m, n]", k=33),
    "new weights": workload_of(SWIGLU, constant=["w2"], dtype={"w1": "float16"}),
}


@pytest.mark.parametrize(("seed", "name"), spread(every(3, enumerate(FURTHER))))
def test_further_forms_are_right(name: str, seed: int) -> None:
    task = task_of(FURTHER[name], 1 + seed % 2)
    assert rules_of(task)[0].name == RULE.name
    rng = np.random.default_rng(seed)
    kernel = shortest(RULE.space(task).sample(rng) for _ in range(12))
    assert built_problems(task, kernel, [task.workload.dims({"T": size}) for size in (1, 19)]) == [], kernel


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (workload_of("out[m, n] = sum(k) x[m, k] * w2[n, k]", extents={"m": "T", "n": 3, "k": 4}), "no two products"),
        (workload_of(PLAIN.replace("= sum(f)", "= max(f)")), "stage out is not a sum"),
        (workload_of(PLAIN.replace("h[m, f] * w2[n, f]", "h[m, f] * w2[m, f, n]")), "the operands of stage out"),
        (workload_of(PLAIN, constant=["x"]), "the left operand x is constant"),
        (workload_of(PLAIN.replace("w2[n, f]", "w1[f, n]"), n=40, constant=[]), "not different inputs"),
        (workload_of(PLAIN, dtype="float64"), "is float64"),
        (workload_of(PLAIN, dtype={"x": "int8", "w1": "int8"}), "int32 is not multiplied by float32"),
        (
            workload_of(PLAIN, constant=["w2"], dtype={"x": "int8", "w1": "int8", "h": "int8", "w2": "int8"}),
            "w1, of int8, is new at every call",
        ),
        (workload_of(PLAIN, outputs=["h", "out"]), "an intermediate is an output"),
        (workload_of(PLAIN, shapes={"w2": [50, "f"]}), "w2 is larger"),
        (workload_of(PLAIN, extents={"m": "T", "f": "T", "n": 3, "k": 4}, constant=[]), "shape variables"),
        (workload_of(f"{PLAIN}\nlast[m, n] = out[m, n] * n"), "values of axes"),
        (
            workload_of(
                "h[m, f] = sum(k) x[m, k] * w1[f, k]\ns[m, n] = sum(k) x[m, k] * w3[n, k]\n"
                "y[m, n] = sum(f) h[m, f] * w2[n, f]\nout[m, n] = y[m, n] * s[m, n]"
            ),
            "do not have the same axes",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_such_chain_has_a_reason(workload: Workload, reason: str) -> None:
    answer = RULE.match(workload, native())
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason


def test_both_orders_are_in_the_space() -> None:
    space = RULE.space(task_of(workload_of()))
    assert {space.sample(np.random.default_rng(seed))["whole"] for seed in range(20)} == {0, 1}


def test_theory_keeps_a_block_in_cache_where_the_whole_does_not_fit() -> None:
    """Rows by the thousand: what is kept of all of them comes from beyond L2, what a block keeps does not."""
    task = task_of(workload_of(MLP, f=2048, n=32, k=32), target=SERVER, most=9000)
    values = {**dict(RULE.default_kernel(task).values), "mb": 8, "fb": 512}
    block, whole = (RULE.space(task).kernel({**values, "whole": order}) for order in (0, 1))
    few, many = RULE.estimate_s(task, [block, whole], extents_of(task.workload, [{"T": 64}, {"T": 8192}])).T
    assert few[0] == pytest.approx(few[1], rel=0.2)
    assert many[0] < many[1]


def test_room_is_bounded_however_many_rows_there_are() -> None:
    rooms = [RULE.workspace_bytes(task_of(workload_of(f=4096), most=most)) for most in (10**5, 10**6)]
    assert rooms[0] == rooms[1] < 2 * emit.WHOLE_BYTES
