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
    rule = rules_of(scores(1024))[0]
    assert 0 < rule.workspace_bytes(scores(1024)) <= MAX_WORKSPACE_BYTES


@pytest.mark.parametrize("heads", [1, 32])
def test_scores_of_attention_are_not_counted(heads: int) -> None:
    """A block of rows keeps its own: 64 GiB of them for a head of 131,072 positions."""
    longest = ShapeVar("S", range(1, 131_073))
    task = SearchTask("attention", {"b": 1, "h": heads, "i": "S", "j": "S", "d": 64}, (longest,), target=TARGET)
    rule = rules_of(task)[0]
    assert rule.name == "attention"
    assert rule.workspace_bytes(task) < 2**29


def test_an_operand_of_more_than_16_gib_is_refused() -> None:
    rows = ShapeVar("T", range(1, 2**19 + 1))
    with pytest.raises(InvalidInput, match="x takes up to 17 GiB"):
        SearchTask("softmax", {"m": "T", "n": 8704}, (rows,), target=TARGET)


def test_more_than_the_limit_is_refused_with_the_need() -> None:
    with pytest.raises(InvalidInput, match=r"intermediates of .* take too much memory \(fallback [0-9.]+ GiB\)"):
        rules_of(scores(6000))
