"""On a machine that other work loads, what ten jobs say of their libraries agrees with an independent paired timing.

Independent: in this process, called from Python, with another statistic (a sign test on turns). The cheap partner is in
tests/tuner/search/test_comparison.py: intervals and verdicts on a synthetic device with noise and drift.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import threadpoolctl

import shapewright as sw
from tuner.search.verdict import Ratio, Verdict

pytestmark = pytest.mark.soak

LOAD = """
import random, time
import numpy as np
rng, square = random.Random(1), np.ones((512, 512), np.float32)
while True:
    until = time.monotonic() + rng.uniform(0.05, 1.5)
    while time.monotonic() < until:
        square @ square
    time.sleep(rng.uniform(0.05, 1.5))
"""
"""Bursts of work, on one core."""
TURNS, SAMPLE_S = 25, 0.004
JOBS = [(96 + 32 * number, 128 + 48 * number, 64 + 32 * number) for number in range(10)]
"""Products of [rows * T, depth] and [columns, depth], by rows, columns and depth."""


@pytest.fixture
def loaded() -> Iterator[None]:
    environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen([sys.executable, "-c", LOAD], env=environment)
    yield
    process.kill()
    process.wait()


def sign_test(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Between which values the median of the paired ratios lies: order statistics, at 95 % for 25 turns."""
    calls = ours, theirs
    for call in calls:
        call()
    number = max(1, math.ceil(SAMPLE_S / max(_seconds(ours, 1), 1e-6)))
    logs = []
    for turn in range(TURNS):
        order = (0, 1) if turn % 2 else (1, 0)
        taken = {which: _seconds(calls[which], number) for which in order}
        logs.append(math.log(taken[1] / taken[0]))
    logs.sort()
    return math.exp(logs[7]), math.exp(logs[TURNS - 8])


def _seconds(call: Callable[[], object], number: int) -> float:
    before = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - before) / number


def agrees(told: Ratio, low: float, high: float) -> bool:
    """Neither refutes the other: their intervals overlap, or they are on the same side of equal."""
    assert told.low is not None and told.high is not None
    overlap = told.low <= high and low <= told.high
    same_side = (told.verdict is Verdict.FASTER and low > 1) or (told.verdict is Verdict.SLOWER and high < 1)
    return overlap or same_side


@pytest.mark.usefixtures("loaded")
@pytest.mark.timeout(1500)
def test_verdicts_agree_with_an_independent_timing() -> None:
    T = sw.ShapeVar("T", range(1, 9))  # noqa: N806
    refuted, compared = [], 0
    rng = np.random.default_rng(0)
    for rows, columns, depth in JOBS:
        task = sw.SearchTask("dense", {"m": rows * T, "n": columns, "k": depth}, (T,), instances=[6])
        result = sw.tune(task, trials=12, seconds=25)
        comparison = result.tuned.summary.comparison
        if comparison is None:
            # A machine may be too busy for four turns; a job says nothing then.
            continue
        x = rng.uniform(-1, 1, (6 * rows, depth)).astype(np.float32)
        weight = rng.uniform(-1, 1, (columns, depth)).astype(np.float32)
        out, transposed = np.empty((6 * rows, columns), np.float32), weight.T
        library, default = result.build(), sw.tune(task, trials=0).build()
        packed, packed_default = library.pack(weight), default.pack(weight)

        def ours(library: sw.Library = library, packed: object = packed, x: object = x, out: object = out) -> None:
            library(x, packed, out)

        rivals: dict[str, Callable[[], object]] = {
            "default": lambda d=default, p=packed_default, x=x, out=out: d(x, p, out),  # type: ignore[misc]
            "numpy": lambda x=x, w=transposed, out=out: np.matmul(x, w, out=out),  # type: ignore[misc]
        }
        with threadpoolctl.threadpool_limits(1):
            for told in comparison.ratios:
                low, high = sign_test(ours, rivals[told.over])
                compared += 1
                if not agrees(told, low, high):
                    refuted.append(f"m={6 * rows} n={columns} k={depth}: {told}, in fact {low:.3f} to {high:.3f}")
    print(f"{compared} verdicts of {len(JOBS)} jobs compared")
    assert refuted == []
    assert compared >= len(JOBS)
