"""What theory expects of tilings on a GPU, against what one H200 measured (docs/measurements)."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.importing import times
from benchmarks.gpu.products import FLOAT16, FMA, TF32X3
from tuner.program.job.build import workload_from_json
from tuner.program.target.cuda import PRODUCTS
from tuner.schedule.gpu.contraction import contractions
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.theory import Problem, estimate_s, occupancy, problem_of
from tuner.schedule.gpu.tiling import Tiling

MEASURED = Path(__file__).parents[4] / "docs" / "measurements" / "h200-emitted.json.gz"


@cache
def measured(part: str) -> list[dict[str, Any]]:
    """The blocks of a part of the first run."""
    runs = json.loads(gzip.decompress(MEASURED.read_bytes()))["runs"]
    return [block for block in runs[0]["blocks"] if block["part"] == part]


def problem(block: dict[str, Any], dtype: str, size: int) -> Problem:
    n, k = (int(number) for number in re.findall(r"[nk]=(\d+)", block["title"]))
    return Problem(block["symbols"][0], n, k, dtype, size)


@pytest.mark.parametrize(
    ("part", "kernels", "dtype", "size", "share"),
    [
        ("dense16", FLOAT16, "float16", 2, 1.05),
        ("dense32", TF32X3, "tf32", 4, 1.12),
        ("dense32", FMA, "float32", 4, 1.08),
    ],
    ids=["float16", "tf32x3", "fma"],
)
def test_theory_ranks_what_was_measured(
    part: str, kernels: dict[str, Choices], dtype: str, size: int, share: float
) -> None:
    """Its choice takes no more than ``share`` of the best on average, and the best is among its first five."""
    losses, among_five = [], []
    for block in measured(part):
        us = {name: value for name, value in times(block).items() if name in kernels}
        found = [estimate_s(PRODUCTS["h200"], kernels[name].product, [problem(block, dtype, size)])[0] for name in us]
        taken = np.array(list(us.values()))[np.argsort(found)]
        losses.append(taken[0] / taken.min())
        among_five.append(taken[:5].min() / taken.min())
    assert len(losses) == 64
    assert np.exp(np.mean(np.log(losses))) < share
    assert np.exp(np.mean(np.log(among_five))) < 1.01


def test_what_does_not_fit_is_no_candidate() -> None:
    gpu, small = PRODUCTS["h100"], PRODUCTS["rtx4090"]
    wide = Tiling(256, 256, 128, num_warps=8, num_stages=5)
    assert occupancy(gpu, wide, 2) == 0
    assert np.isinf(estimate_s(gpu, wide, [Problem(1024, 1024, 1024, "float16", 2)])).all()
    assert np.isfinite(estimate_s(small, Tiling(64, 64, 32), [Problem(1024, 1024, 1024, "float16", 2)])).all()


def test_a_contraction_is_a_problem_of_its_groups() -> None:
    args = {"b": "T", "c": 64, "h": 28, "w": 28, "o": 32, "r": 3, "s": 3, "pad": 1, "layout": "nhwc"}
    workload = workload_from_json({"op": "conv2d", "args": args, "dtype": "float16"})
    (product,) = contractions(workload)
    assert problem_of(product, Tiling(), {"m": 2}) == Problem(2 * 28 * 28, 32, 9 * 64, "float16", 2)
