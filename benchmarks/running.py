"""What every benchmark of libraries does: tune, check against the reference, time against the other contenders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import shapewright as sw
from benchmarks.contenders import OURS, inputs_of, library_call, outputs_of
from benchmarks.document import Report
from benchmarks.suite import Benchmark
from benchmarks.timing import (
    TIMINGS,
    Row,
    add_timing,
    against_best,
    doubtful,
    open_contenders,
    row_of,
    time_at,
)
from shapewright.session import TuneResult, tune_here
from tuner.program.reference import expected


def tuned_library(
    benchmark: Benchmark, options: argparse.Namespace, folder: Path, report: Report
) -> tuple[TuneResult, dict[str, Path]]:
    """The search, by ``trials``, ``seconds`` and ``seed`` of the options, and its library in ``folder``, under OURS."""
    progress: list[dict[str, object]] = []
    tuned = tune_here(
        benchmark.task, trials=options.trials, seconds=options.seconds, seed=options.seed, callbacks=[progress.append]
    )
    report.tuning.append({"workload": benchmark.name, **tuned.summary})
    kept = [result.to_json() for result in tuned.results] if getattr(options, "keep_trials", False) else []
    search = {"workload": benchmark.name, "task": tuned.task.to_json(), "progress": progress, "results": kept}
    report.searches.append(search)
    say(f"{benchmark.name}: {tuned.summary['trials']} trials, {tuned.summary['elapsed_s']:.0f} s")
    return tuned, {OURS: tuned.save(folder / OURS)}


def timed_rows(
    benchmark: Benchmark,
    names: Sequence[str],
    libraries: Mapping[str, Path],
    threads: int,
    peak_work: float,
    report: Report,
) -> list[Row]:
    """A row for each test shape, ours checked first. Raises ValueError if it is wrong at one.

    ``peak_work``: floating-point operations of a call of the contender PEAK, on all threads together.
    """
    errors, rows = max_abs_errors(benchmark, libraries[OURS]), list[Row]()
    with open_contenders(benchmark, names, libraries, threads, report.skipped) as contenders:
        for shape in benchmark.test:
            seconds, reasons = time_at(contenders, shape)
            rows.append(row_of(benchmark, shape, seconds, peak_work, errors[str(shape)], reasons))
            _say_row(rows[-1])
        for row in doubtful(rows):
            for _ in range(TIMINGS - 1):
                add_timing(row, time_at(contenders, row["shape"])[0], peak_work)
            _say_row(row, "again: ")
    return rows


def max_abs_errors(benchmark: Benchmark, directory: Path) -> dict[str, float]:
    """The largest difference from the reference at each test shape. Raises ValueError if one is more than rounding."""
    library, workload, errors = sw.load(directory), benchmark.task.workload, dict[str, float]()
    for shape in benchmark.test:
        inputs, outputs = inputs_of(workload, shape), outputs_of(workload, shape)
        for output in outputs:
            output.fill(0 if output.dtype.kind in "iub" else np.nan)
        library_call(library, inputs, outputs)()
        differences = [0.0]
        for output, wanted in zip(outputs, expected(workload, inputs, workload.dims(shape)), strict=True):
            # Infinities that are equal differ by nothing.
            same = output == wanted.value
            difference = np.where(same, 0.0, np.abs(np.subtract(output, wanted.value, dtype=np.float64)))
            if wanted.wrong(output).any():
                raise ValueError(f"{benchmark.name} at {shape}: wrong by {difference.max():g}")
            differences.append(float(np.nanmax(difference, initial=0.0)))
        errors[str(shape)] = max(differences)
    return errors


def _say_row(row: Row, prefix: str = "") -> None:
    ratio, speed = against_best(row), row["flops"] / row["ours_s"] / 1e9
    text = f"  {prefix}{row['shape']}  {row['ours_s'] * 1e6:10.1f} us  {speed:7.1f} GFLOP/s"
    if "stream_s" in row:
        text += f"  {row['bytes'] / row['ours_s'] / 1e9:6.1f} GB/s"
    say(text + (f"  {ratio:5.2f}x the best rival" if ratio else ""))


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
