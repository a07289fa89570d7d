"""Transposes against the reference: squares in registers, ragged ends, threads."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems
from tests.shares import shares
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import rules_of, space_of
from tuner.schedule.rule import matched
from tuner.schedule.rules.elementwise import match

AVX2 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
PROGRAMS = (
    "out[n, b, m] = x[b, m, n]",
    "out[b, n, m] = x[b, m, n] * y[b, n, m] + z[m] * n",
    "out[n, m, b] = max(x[b, m, n], y[m, b, n])",
)
SIZES = [(0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1), (2, 17, 16), (33, 35, 40), (1, 64, 130)]
"""Of b, m and n."""


@shares(4)
@settings(max_examples=3)
@given(
    text=st.sampled_from(PROGRAMS), dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
    threads=st.integers(1, 2), seed=st.integers(0, 2**32 - 1), is_narrow=st.booleans(),
)  # fmt: skip
def test_any_sizes(share: int, text: str, dtype: str, threads: int, seed: int, is_narrow: bool) -> None:
    workload = workload_from_json({"program": text, "extents": {"b": "B", "m": "M", "n": "N"}, "dtype": dtype})
    variables = tuple(ShapeVar(name, range(1, 65)) for name in "BMN")
    task = SearchTask(workload, shape_vars=variables, target=AVX2 if is_narrow else native(), threads=threads)
    assert rules_of(task)[0].name == "injective"
    kernel = space_of(task).sample(np.random.default_rng(seed))
    shapes = [workload.dims(dict(zip("BMN", sizes, strict=True))) for sizes in SIZES]
    assert built_problems(task, kernel, shapes) == []


def test_which_reads_are_turned() -> None:
    def turned(text: str) -> list[str]:
        workload = workload_from_json({"program": text, "extents": {"m": "M", "n": "N"}})
        return [read.tensor for read in matched(workload, match(workload))[0].turned]

    assert turned("out[n, m] = x[m, n] + y[n, m] * z[m]") == ["x"]
    assert turned("out[n, m] = x[m, n] + y[m, n + m]") == []
    assert turned("out[n, m] = x[n, m]") == []
