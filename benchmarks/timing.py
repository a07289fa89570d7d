"""Rows of a benchmark: every contender timed at every test shape; what looks bad, or too good, is timed again before it
is believed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.alternating import Sampler, alternate, sampler
from benchmarks.contenders import (
    DLIGHT,
    METASCHEDULE,
    OURS,
    PEAK,
    SEPARATE,
    STREAM,
    Contender,
    contender,
    in_own_process,
    stream_bytes,
)
from benchmarks.rivals import DoesNotApply
from benchmarks.suite import Benchmark

Row = dict[str, Any]
Shape = Mapping[str, int]
Contenders = Mapping[str, Callable[[Shape], Sampler]]
NO_VENDORS = ("bucket", "single", "dietcode", "oracle", METASCHEDULE, SEPARATE, DLIGHT)
"""What ratios against the best rival leave out: our own libraries, and what needs each shape in advance."""
SHAPE_BUDGET_S = 1.0
EXTREME_SHARE = 0.1
SUSPECT = 0.95
"""Below this ratio against the best rival a shape is timed again."""
TIMINGS = 3
"""How often a doubtful row is timed, all in all: its median is not moved by one disturbance."""


@contextmanager
def open_contenders(
    benchmark: Benchmark, names: Sequence[str], libraries: Mapping[str, Path], threads: int, skipped: dict[str, str]
) -> Iterator[Contenders]:
    """The samplers of every contender that applies; why another does not goes to ``skipped``.

    One thread: in this process. More: each in a process of its own.
    """
    workload = benchmark.task.workload
    with ExitStack() as stack:
        contenders: dict[str, Callable[[Shape], Sampler]] = {}
        for name in names:
            arguments = (name, workload, libraries.get(name), threads, benchmark.task.target)
            try:
                if threads > 1:
                    contenders[name] = stack.enter_context(in_own_process(*arguments))
                else:
                    contenders[name] = _samples(contender(*arguments))
            except DoesNotApply as reason:
                skipped[f"{benchmark.name}/{name}"] = str(reason)
        yield contenders


def _samples(call: Contender) -> Callable[[Shape], Sampler]:
    return lambda shape: sampler(call(shape))


def time_at(
    contenders: Contenders, shape: Shape, budget_s: float = SHAPE_BUDGET_S
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of a call by contender, and why others do not serve the shape."""
    samplers: dict[str, Sampler] = {}
    reasons: dict[str, str] = {}
    for name, samples in contenders.items():
        try:
            samplers[name] = samples(shape)
        except DoesNotApply as reason:
            reasons[name] = str(reason)
    return alternate(samplers, budget_s=budget_s), reasons


def row_of(
    benchmark: Benchmark, shape: Shape, seconds: Mapping[str, float], peak_work: float, max_abs_error: float,
    not_timed: Mapping[str, str],
) -> Row:  # fmt: skip
    """``peak_work``: floating-point operations that the threads could have done in ``seconds[PEAK]``. ``not_timed``:
    why rivals that serve other shapes do not serve this one."""
    workload = benchmark.task.workload
    dims = workload.dims(shape)
    row: Row = {
        "workload": benchmark.name,
        "shape": dict(shape),
        "tuned_on": benchmark.tuned_on(shape),
        "flops": workload.flops(dims),
        "bytes": sum(stream_bytes(workload, shape)),
        "extents": workload.axis_sizes(dims),
        "max_abs_error": max_abs_error,
        "not_timed": dict(not_timed),
        "timings": [],
    }
    add_timing(row, seconds, peak_work)
    return row


def add_timing(row: Row, seconds: Mapping[str, float], peak_work: float) -> None:
    """One more timing of all contenders; the row's figures are the medians over its timings."""
    timings = row["timings"] = [*row["timings"], dict(seconds)]
    medians = {name: statistics.median(each[name] for each in timings) for name in seconds}
    # Beside ours in the same samples: a core whose clock moves has no one peak.
    row["peak_flops"] = peak_work / medians.pop(PEAK)
    row["ours_s"] = medians.pop(OURS)
    if STREAM in medians:
        row["stream_s"] = medians.pop(STREAM)
    row["rivals_s"] = medians
    row["peak_fraction"] = row["flops"] / row["ours_s"] / row["peak_flops"]


def against_best(row: Row) -> float | None:
    """How many times faster than the fastest vendor library ours is; None where none was timed."""
    vendors = [seconds for name, seconds in row["rivals_s"].items() if name not in NO_VENDORS]
    return min(vendors) / row["ours_s"] if vendors else None


def doubtful(rows: Sequence[Row]) -> list[Row]:
    """Rows to be timed again: those whose ratio against the best rival is below SUSPECT, the worst and the best tenth.

    Both tenths, because what disturbs a machine is as often beside a rival as beside ours: to time only low ratios
    again would raise the mean. All below SUSPECT, because a row that ours loses is reported by itself.
    """
    ratios = sorted((ratio, index) for index, row in enumerate(rows) if (ratio := against_best(row)) is not None)
    tenth = math.ceil(EXTREME_SHARE * len(ratios))
    chosen = {*ratios[:tenth], *ratios[len(ratios) - tenth :], *(pair for pair in ratios if pair[0] < SUSPECT)}
    return [rows[index] for _, index in sorted(chosen, key=lambda pair: pair[1])]
