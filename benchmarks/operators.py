"""Operators beside matrix products, against PyTorch's kernels and the memory bandwidth.

    python -m benchmarks.operators [--op NAME]... [--threads N] [--trials N] [--seconds S] [--seed N]
        [--shapes T,T,...] --json OUT

Norms, softmax, sums of rows and chains of elementwise operations are limited by memory. Each is tuned at eight values
of T, on [T, 768] and [8*T, 4096], and timed at these and at held-out ones, beside PyTorch's kernel and beside a stream
that reads and writes as many bytes (benchmarks/streaming.py), all in alternating samples. ``bandwidth_fraction`` is the
rate at which ours moves the bytes of its operands, as a share of the stream's; it is given where the operands exceed
the L2 cache. ``--op`` (repeatable) names operators of the catalogue, or chains, in place of these.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import PEAK, STREAM, limit_threads
from benchmarks.document import SHORTEST_S, Report, against, document_of, mean, ratios, spent
from benchmarks.operator_cases import DEFAULT, TIMED, benchmarks_of
from benchmarks.suite import Benchmark
from benchmarks.timing import Row
from tuner.errors import InvalidInput
from tuner.program.target import Target, native

SECONDS = 30.0
TRIALS = 128
TORCH = "torch"


def main() -> int:
    options = _options()
    limit_threads(options.threads)
    target = native()
    try:
        chosen = [
            benchmark
            for name in options.op or DEFAULT
            for benchmark in benchmarks_of(name, target, options.threads, options.shapes)
        ]
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 2
    report = _timed(chosen, options, target)
    add_bandwidth(report.rows, target.hardware.l2_bytes * options.threads)
    protocol = {
        "threads": options.threads, "seed": options.seed, "target": target.fingerprint,
        "l2_bytes": target.hardware.l2_bytes,
    }  # fmt: skip
    document = document_of(report, summary_of(report), protocol)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


def _timed(benchmarks: Sequence[Benchmark], options: argparse.Namespace, target: Target) -> Report:
    """Every benchmark tuned, checked and timed."""
    # Only now, with the threads limited: PyTorch and TVM read the environment when they are loaded.
    from benchmarks.running import timed_rows, tuned_library  # noqa: PLC0415
    from tuner.measure.roof import peak_work  # noqa: PLC0415

    report, work = Report(), options.threads * peak_work(target)
    for benchmark in benchmarks:
        with tempfile.TemporaryDirectory(prefix="shapewright-operators-") as folder:
            _, libraries = tuned_library(benchmark, options, Path(folder), report)
            names = [*libraries, PEAK, STREAM, TORCH]
            report.rows += timed_rows(benchmark, names, libraries, options.threads, work, report)
    return report


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--op", action="append", help=f"operators or chains; default: {', '.join(DEFAULT)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shapes", type=_values, default=TIMED, help="the values of T that are timed, as in 1,24,128")
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


def _values(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def add_bandwidth(rows: list[Row], l2_bytes: int) -> None:
    """The share of the stream's rate, in rows whose operands exceed so many bytes; None in others."""
    for row in rows:
        is_beyond = row["bytes"] > l2_bytes
        row["bandwidth_fraction"] = row["stream_s"] / row["ours_s"] if is_beyond else None


def summary_of(report: Report) -> dict[str, Any]:
    """Every shape counts in the means; those without calls under SHORTEST_S are given, too."""
    rows, ratio = [row for row in report.rows if TORCH in row["rivals_s"]], against(TORCH)
    names = list(dict.fromkeys(row["workload"] for row in report.rows))
    worst = min(rows, key=lambda row: ratio(row) or 0.0, default=None)
    own_rows = {name: [row for row in report.rows if row["workload"] == name] for name in names}
    return {
        "geomean_vs": {TORCH: mean(ratio, rows)},
        "geomean_vs_held_out": {TORCH: mean(ratio, [row for row in rows if not row["tuned_on"]])},
        "geomean_vs_long": {TORCH: mean(ratio, [row for row in rows if row["ours_s"] >= SHORTEST_S])},
        "geomean_vs_by_workload": {name: mean(ratio, own) for name, own in own_rows.items()},
        "worst_vs": {TORCH: min(ratios(rows, ratio), default=None)},
        "worst_at": {name: worst[name] for name in ("workload", "shape")} if worst else None,
        "bandwidth_fraction": mean(_bandwidth, report.rows),
        "bandwidth_fraction_worst": min(ratios(report.rows, _bandwidth), default=None),
        "bandwidth_fraction_by_workload": {name: mean(_bandwidth, own) for name, own in own_rows.items()},
        **spent(report),
        "max_abs_error": max((row["max_abs_error"] for row in report.rows), default=None),
    }  # fmt: skip


def _bandwidth(row: Row) -> float | None:
    share: float | None = row["bandwidth_fraction"]
    return share


if __name__ == "__main__":
    sys.exit(main())
