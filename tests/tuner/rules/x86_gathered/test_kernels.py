"""Kernels of contractions of any form against the reference, between guard regions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems
from tests.tuner.rules.x86_gathered.random_contractions import contractions
from tuner.program.build import workload_from_json
from tuner.program.target import native
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar, Workload
from tuner.rules import rule_of, rules_of
from tuner.rules.x86_gathered import X86Gathered

RULE = X86Gathered()


def task_of(workload: Workload, threads: int = 1) -> SearchTask:
    variables = [ShapeVar(name, range(1, 17)) for name in sorted(workload.variables)]
    return SearchTask(workload, shape_vars=variables, target=native(), threads=threads)


def problems_at(workload: Workload, sizes: tuple[int, ...], seed: int, threads: int) -> list[str]:
    """What is wrong with the safe kernel and a random one where every shape variable has each of some sizes."""
    task = task_of(workload, threads)
    shapes = [workload.dims(dict.fromkeys(workload.variables, size)) for size in sizes]
    shapes = [dims for dims in shapes if min(dims.values(), default=0) >= 0 and workload.is_consistent(dims)]
    rule = rules_of(task)[0]
    kernels = dict.fromkeys([rule.safe_kernel(task), rule.space(task).sample(np.random.default_rng(seed))])
    distinct = [dict(items) for items in dict.fromkeys(tuple(dims.items()) for dims in shapes)]
    return [problem for kernel in kernels for problem in built_problems(task, kernel, distinct)]


@settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
@given(workload=contractions(), seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]))
def test_random_contractions_are_right(workload: Workload, seed: int, threads: int) -> None:
    assert problems_at(workload, (0, 1, 6, 19), seed, threads) == [], workload.program


def conv(**args: object) -> Workload:
    return workload_from_json({"op": "conv2d", "args": args})


@pytest.mark.parametrize(
    "text",
    [
        "z[m, n] = sum(k) x[k, m] * w[n, k]; out[m, n] = z[m, n] + w[m, n]",
        "out[m, n] = sum(k) w[m, k] * w[n, k]",
        "out[m, n] = sum(k) (x[m, k] + w[m, k]) * w[n, k]",
    ],
)
def test_a_constant_that_is_read_twice_is_not_packed(text: str) -> None:
    extents = dict.fromkeys("mnk", 24)
    workload = workload_from_json({"program": text, "extents": extents, "constant": ["w"]})
    assert problems_at(workload, (1,), 0, 1) == []


CONVOLUTIONS = {
    "rows of fewer columns than a vector": conv(b="T", c=3, h=9, w=5, o=6, r=3, s=3, pad=1),
    "rows of whole vectors": conv(b="T", c=3, h=6, w=16, o=6, r=3, s=3, pad=1),
    "rows of a few columns": conv(b="T", c=3, h=9, w=3, o=6, r=2, s=2),
    "a size that is known at the call": conv(b=2, c=3, h=7, w="T", o=6, r=3, s=3, pad=2),
    "every other column": conv(b=2, c=3, h=7, w=41, o=6, r=3, s=2, stride=2, pad=1),
    "every fourth column": conv(b=2, c=3, h=7, w=77, o=6, r=3, s=2, stride=4, pad=1),
    "every sixth column": conv(b=2, c=3, h=7, w=77, o=6, r=3, s=2, stride=6, pad=1),
    "windows of padding alone": conv(b=1, c=2, h=3, w=3, o=4, r=2, s=2, stride=3, pad=4),
    "channels along rows": conv(b="T", c=19, h=6, w=5, o=18, r=3, s=3, stride=2, pad=1, layout="nhwc"),
    "groups": conv(b="T", c=6, h=6, w=5, o=9, r=2, s=2, groups=3),
    "groups along rows": conv(b="T", c=6, h=6, w=5, o=9, r=2, s=2, groups=3, layout="nhwc"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_convolutions_are_right_in_every_way_of_gathering(name: str, seed: int) -> None:
    task = task_of(CONVOLUTIONS[name])
    assert rule_of(RULE.safe_kernel(task)).name == rules_of(task)[0].name == RULE.name
    assert problems_at(CONVOLUTIONS[name], (1, 2, 7, 23), seed, 1 + seed) == []


PROGRAMS = {
    "a last axis of one element": workload_from_json({
        "program": "z[b, m, n] = sum(k, l) x[k, m, b, l] * y[n, k, l, b]",
        "extents": {"b": 16, "m": 21, "n": 1, "k": 16, "l": 1},
    }),
    "shares of columns through a buffer": workload_from_json({
        "program": "z[n, m, l] = sum(k) x[l, k, m] * y[k, n]; out[n, m, l] = max(z[n, m, l] + bias[m], 0)",
        "extents": {"m": 17, "l": "T", "n": 3, "k": 7},
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_programs_that_were_wrong_once_are_right(name: str, threads: int) -> None:
    assert problems_at(PROGRAMS[name], (1, 6, 19), 0, threads) == []
