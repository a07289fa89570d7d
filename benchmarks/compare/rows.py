"""Rows of a benchmark: every contender timed at every test shape; what looks bad, or too good, is timed again before it
is believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

import shapewright as sw
from benchmarks.harness.calls import Contender, DoesNotApply, Shape, inputs_of, library_call, outputs_of, stream_bytes
from benchmarks.harness.remote import Died, Remote, in_own_process
from benchmarks.harness.results import Row, say
from benchmarks.harness.suite import Benchmark
from benchmarks.harness.turns import Sampler, Samples, medians, once_awake, sampler, take_turns
from benchmarks.rivals import OURS, PEAK, STREAM, VENDORS, contender
from tuner.measure.roof import peak_work
from tuner.program.language.workload import Workload
from tuner.program.reference import expected
from tuner.program.target import Target

Contenders = Mapping[str, Callable[[Shape], Sampler]]
BEST = "best_pytorch"
"""The fastest vendor's routine at a shape: all of them are called through PyTorch."""
SHAPE_BUDGET_S = 1.0
EXTREME_SHARE = 0.1
SUSPECT = 0.95
"""Below this ratio against the best rival a shape is timed again."""
TIMINGS = 3
"""How often a doubtful row is timed, all in all: its median is not moved by one disturbance."""
ANSWER_S = 600.0
TIMING = (
    "medians of alternating samples in rotating order, caches warm: as many calls as 1 ms takes, one at least; 3 to 25 "
    "samples, three times as many of a doubtful row"
)


# -- contenders -------------------------------------------------------------------------------------------------------
@contextmanager
def open_contenders(
    benchmark: Benchmark, names: Sequence[str], libraries: Mapping[str, Path], skipped: dict[str, str] | None = None
) -> Iterator[Contenders]:
    """The samplers of every contender that applies; why another does not goes to ``skipped``. With several threads each
    has a process of its own, or their pools would disturb one another."""
    task = benchmark.task
    with ExitStack() as stack:
        contenders: dict[str, Callable[[Shape], Sampler]] = {}
        for name in dict.fromkeys(names):
            arguments = name, task.workload, libraries.get(name), task.threads, task.target
            try:
                if task.threads > 1:
                    made = in_own_process(_Served, *arguments, threads=task.threads, answer_s=ANSWER_S)
                    contenders[name] = partial(_asked, stack.enter_context(made))
                else:
                    contenders[name] = partial(_sampled, contender(*arguments))
            except DoesNotApply as reason:
                if skipped is not None:
                    skipped[f"{benchmark.name}/{name}"] = str(reason)
        yield contenders


class _Served:
    """A contender in a process of its own."""

    def __init__(self, name: str, workload: Workload, library: Path | None, threads: int, target: Target) -> None:
        self._call = contender(name, workload, library, threads, target)
        self._sampler: Sampler = sampler(lambda: None)

    def prepare(self, shape: Shape) -> None:
        self._sampler = sampler(self._call(shape))
        self._sampler(1)

    def sample(self, number: int) -> float:
        return once_awake(self._sampler, number)


def _sampled(contender: Contender, shape: Shape) -> Sampler:
    return sampler(contender(shape))


def _asked(remote: Remote, shape: Shape) -> Sampler:
    try:
        remote.ask("prepare", dict(shape))
    except Died as error:
        raise DoesNotApply(str(error)) from None
    return lambda number: float(remote.ask("sample", number))


def time_at(contenders: Contenders, shape: Shape, budget_s: float = SHAPE_BUDGET_S) -> tuple[Samples, dict[str, str]]:
    """Seconds of a call in each round, by contender, and why others do not serve the shape."""
    samplers, reasons = dict[str, Sampler](), dict[str, str]()
    for name, samples in contenders.items():
        try:
            samplers[name] = samples(shape)
        except DoesNotApply as reason:
            reasons[name] = str(reason)
    return take_turns(samplers, budget_s=budget_s), reasons


def time_libraries(
    benchmark: Benchmark, libraries: Mapping[str, Path], shapes: Sequence[Shape]
) -> list[dict[str, float]]:
    """The median seconds of libraries of ours, in turns, at each of the shapes."""
    with open_contenders(benchmark, list(libraries), libraries) as contenders:
        return [medians(time_at(contenders, shape)[0]) for shape in shapes]


# -- rows -------------------------------------------------------------------------------------------------------------
def timed_rows(
    benchmark: Benchmark, names: Sequence[str], libraries: Mapping[str, Path], skipped: dict[str, str]
) -> list[Row]:
    """A row for each test shape, ours checked first. Raises ValueError if it is wrong at one."""
    work = benchmark.task.threads * peak_work(benchmark.task.known_target)
    errors, rows = max_abs_errors(benchmark, libraries[OURS]), list[Row]()
    with open_contenders(benchmark, [OURS, PEAK, *names], libraries, skipped) as contenders:
        for shape in benchmark.test:
            samples, reasons = time_at(contenders, shape)
            rows.append(row_of(benchmark, shape, errors[str(shape)], reasons))
            add_timing(rows[-1], samples, work)
            _say_row(rows[-1])
        for row in doubtful(rows):
            for _ in range(TIMINGS - 1):
                add_timing(row, time_at(contenders, row["shape"])[0], work)
            _say_row(row, "again: ")
    return rows


def row_of(benchmark: Benchmark, shape: Shape, max_abs_error: float, not_timed: Mapping[str, str]) -> Row:
    """What is known of a shape before it is timed. ``not_timed``: why rivals that serve others do not serve it."""
    workload, task = benchmark.task.workload, benchmark.task
    dims, moved = workload.dims(shape), sum(stream_bytes(workload, shape))
    return {
        "workload": benchmark.name, "operator": benchmark.operator, "shape": dict(shape),
        "tuned_on": benchmark.tuned_on(shape), "flops": workload.flops(dims), "bytes": moved,
        "exceeds_l2": moved > task.known_target.hardware.l2_bytes * task.threads,
        "max_abs_error": max_abs_error, "not_timed": dict(not_timed),
        "samples_s": {},
    }  # fmt: skip


def add_timing(row: Row, samples: Samples, peak_work: float) -> None:
    """One more timing of all contenders; the row's figures are medians over the samples of all its timings.

    ``peak_work``: floating-point operations of a call of the contender PEAK, on all threads together. ``vs``: by rival,
    how many times faster than it ours is; the fastest vendor among them, where one was timed.
    """
    for name, times in samples.items():
        row["samples_s"].setdefault(name, []).extend(float(f"{seconds:.4g}") for seconds in times)
    seconds = medians(row["samples_s"])
    ours = row["ours_s"] = seconds.pop(OURS)
    # Beside ours in the same samples: a core whose clock moves has no one peak.
    row["peak_flops"] = peak_work / seconds.pop(PEAK)
    row["peak_fraction"] = row["flops"] / ours / row["peak_flops"]
    if STREAM in seconds:
        row["stream_s"] = seconds.pop(STREAM)
        row["bandwidth_fraction"] = row["stream_s"] / ours if row["exceeds_l2"] else None
    row["rivals_s"] = seconds
    row["vs"] = {name: rival / ours for name, rival in seconds.items()}
    if (best := fastest_vendor(row)) is not None:
        row["vs"][BEST] = seconds[best] / ours


def fastest_vendor(row: Row) -> str | None:
    vendors = [name for name in row["rivals_s"] if name in VENDORS]
    return min(vendors, key=lambda name: float(row["rivals_s"][name]), default=None)


def against_best(row: Row) -> float | None:
    """How many times faster than the fastest vendor's routine ours is; None where none was timed."""
    return row["vs"].get(BEST)  # type: ignore[no-any-return]


def doubtful(rows: Sequence[Row]) -> list[Row]:
    """Rows to be timed again: those whose ratio against the best rival is below SUSPECT, the worst and the best tenth.

    Both tenths, because what disturbs a machine is as often beside a rival as beside ours: to time only low ratios
    again would raise the mean. All below SUSPECT, because a row that ours loses is reported by itself.
    """
    ratios = sorted((ratio, index) for index, row in enumerate(rows) if (ratio := against_best(row)) is not None)
    tenth = math.ceil(EXTREME_SHARE * len(ratios))
    chosen = {*ratios[:tenth], *ratios[len(ratios) - tenth :], *(pair for pair in ratios if pair[0] < SUSPECT)}
    return [rows[index] for _, index in sorted(chosen, key=lambda pair: pair[1])]


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
