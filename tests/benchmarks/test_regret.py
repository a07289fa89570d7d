"""Regret by theory: trees with features lose no more than those of extents; where two kernels could share a call."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.regret import figures, is_outermost, tasks, two_kernels
from tests.fakes import WIDE
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel

T = ShapeVar("T", range(1, 65))


def rows_of(task: SearchTask, *rows: int) -> list[MicroKernel]:
    safe = default_kernel(task)
    return [MicroKernel(safe.rule, safe.rule_version, tuple((dict(safe.values) | {"mr": mr}).items())) for mr in rows]


def test_figures_are_of_all_shapes() -> None:
    task = tasks(24)["dense, M x N"]
    found = figures(task, rows_of(task, 8, 6, 3))
    assert (found["kernels"], found["shapes"]) == (3, 24 * 24)
    assert found["features"]["mean"] <= found["extents"]["mean"] + 0.002
    assert all(0 <= found[each]["mean"] <= found[each]["max"] for each in ("extents", "features", "two_kernels"))


@pytest.mark.parametrize(
    ("op", "args", "outermost"),
    [
        ("dense", {"m": "T", "n": 8, "k": 8}, True),
        ("dense", {"m": 8, "n": "T", "k": 8}, False),
        ("matmul", {"m": "T", "n": 8, "k": "T"}, False),
        ("matmul", {"m": 8, "n": 8, "k": "T"}, False),
        ("batch_matmul_nt", {"b": "T", "m": 8, "n": 8, "k": 8}, True),
        ("batch_matmul_nt", {"b": 4, "m": "T", "n": 8, "k": 8}, False),
        ("softmax", {"m": "T", "n": 8}, True),
    ],
)
def test_only_dims_that_are_outermost_everywhere_can_be_cut_at_a_call(
    op: str, args: dict[str, object], outermost: bool
) -> None:
    task = SearchTask(op, args, (T,), target=WIDE)
    (symbol,) = task.workload.symbols
    assert is_outermost(task, symbol) == outermost


def test_two_kernels_gain_what_their_parts_take_less_than_one() -> None:
    task = SearchTask("dense", {"m": T, "n": 8, "k": 8}, (T,), target=WIDE)
    rows = np.arange(1, 65)
    # The first is fast where nothing is left of its 8 rows; the second takes as long for each row.
    first, second = np.ceil(rows / 8) * 8.0 + np.where(rows % 8, 20.0, 0.0), 3.0 * rows
    gain = two_kernels(task, rows_of(task, 8, 1), rows[:, None], np.stack([first, second], axis=1))
    # 9 rows: 8 and 3 in place of 27.
    assert gain["max"] == pytest.approx(27 / 11 - 1)
