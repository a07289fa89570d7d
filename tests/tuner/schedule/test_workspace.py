"""Intermediates that a rule keeps in memory are bounded."""

from __future__ import annotations

import pytest

from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.program.target import Target
from tuner.schedule import rules_of
from tuner.schedule.registry import MAX_WORKSPACE_BYTES

TARGET = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def scores(longest: int) -> SearchTask:
    """Products of 64 heads are the intermediates: no rule fuses them with the product of all of a row."""
    workload = workload_from_json({
        "program": "s[h, i, j] = sum(d) q[h, i, d] * k[h, j, d]\nout[h, i] = prod(j) s[h, i, j]",
        "extents": {"h": 64, "i": "T", "j": "T", "d": 16},
    })  # fmt: skip
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(1, longest + 1)),), target=TARGET)


def test_what_fits_is_taken() -> None:
    (rule,) = rules_of(scores(1024))
    assert 0 < rule.workspace_bytes(scores(1024)) <= MAX_WORKSPACE_BYTES


def test_more_than_the_limit_is_refused_with_the_need() -> None:
    with pytest.raises(InvalidInput, match=r"intermediates of .* take too much memory \(fallback [0-9.]+ GiB\)"):
        rules_of(scores(6000))
